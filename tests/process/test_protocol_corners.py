"""What ``docs/protocol.md`` says of the corners, with bare frames: what is not answered, how
sessions end, how endpoints of one receiver combine, times that have passed, what a verb is about.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from asterism import wire
from asterism.message import Mode, Status
from asterism.testing import Broker
from asterism.wire import Verb
from tests.process.conftest import WAIT_S, Answer, Raw, message

pytestmark = pytest.mark.process
PROCESSED, FAILED = int(Status.PROCESSED), int(Status.FAILED)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def given(answers: list[Answer]) -> list[tuple[int, bytes]]:
    """The sequences and payloads of what was delivered."""
    delivered = [said.body[2] for said in answers if said.verb == Verb.DELIVER]
    return [(entry[0], entry[4]) for entries in delivered for entry in entries]


def interests_of(raw: Raw, topic: str, name: str) -> list[str]:
    listed = raw.reply(Verb.LIST_RECEIVERS, topic)["receivers"]
    (found,) = [receiver for receiver in listed if receiver["name"] == name]
    return sorted(found["interests"])


def published_for_a_receipt(raw: Raw, topic: str, **header: Any) -> tuple[str, dict[str, str]]:
    """Publishes one message and waits for its receipt: verdict and statuses."""
    producer = os.urandom(16)
    accepted = raw.ask(Verb.PUBLISH, topic, [[message(receipt=True, **header)], producer])
    assert accepted.verb == Verb.ACCEPTED and type(accepted.body[0]) is int, accepted
    _, number, verdict, statuses = raw.until(Verb.RESOLVED).body[0]
    assert number == 1
    return verdict, statuses


def wait_for(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


# --- sessions -------------------------------------------------------------------------------------


def test_a_second_hello_begins_a_session_of_another_name_and_ends_the_first(
    broker: Broker, topic: str
) -> None:
    with Raw(broker.address, hello=False) as raw:
        first = raw.ask(Verb.HELLO, "", {"versions": [1]}).body["session"]
        raw.ask_again(Verb.SUBSCRIBE, topic, [1, ["a"]])
        again = raw.ask(Verb.HELLO, "", {"versions": [1]})
        assert again.verb == Verb.WELCOME and again.body["session"] != first
        assert raw.refusal(Verb.UNSUBSCRIBE, topic, [1]) == "no_such_receiver"
        assert raw.refusal(Verb.HELLO, "", {"versions": [9]}) == "unsupported_version"
        assert raw.ask(Verb.PING, "", None).verb == Verb.CLOSED


def test_parts_behind_a_hello_are_of_its_session(broker: Broker, topic: str) -> None:
    with Raw(broker.address), Raw(broker.address, hello=False) as raw:
        parts = [
            (Verb.HELLO, b"", {"versions": [1]}),
            (Verb.SUBSCRIBE, topic.encode(), [1, ["a"]]),
            (Verb.PUBLISH, topic.encode(), [[message()]]),
        ]
        packed = [
            wire.pack_part(verb, number, about, wire.pack_body(body))
            for number, (verb, about, body) in enumerate(parts, 1)
        ]
        raw.socket.send(b"".join(packed))
        said = [raw.next().verb for _ in parts]
        assert said == [Verb.WELCOME, Verb.REPLY, Verb.ACCEPTED]


def test_closed_says_why_and_bears_the_number_of_what_was_asked(broker: Broker) -> None:
    with Raw(broker.address) as raw:
        goodbye = raw.ask(Verb.GOODBYE, "", None)
        assert (goodbye.verb, goodbye.body[0]) == (Verb.CLOSED, "busy")
        three = [wire.pack_part(Verb.PING, number, b"", b"\xc0") for number in (71, 72, 0)]
        raw.socket.send(b"".join(three))
        said = [raw.next() for _ in three]
        assert [(each.verb, each.request, each.body[0]) for each in said] == [
            (Verb.CLOSED, number, "wrong_state") for number in (71, 72, 0)
        ]


# --- what is not answered -------------------------------------------------------------------------


def test_every_request_is_answered_but_those_that_the_page_names(
    broker: Broker, topic: str
) -> None:
    with Raw(broker.address) as raw:
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["**"], "r")
        unanswered = [raw.send(Verb.GRANT, topic, [1, 1]), raw.send(Verb.GRANT, topic, [9, 1])]
        order = raw.send(Verb.ORDER, topic, [None])
        raw.reply(Verb.CANCEL_WAIT, topic, order)
        waiting = [raw.send(Verb.PULL, topic, [1, 1, 60_000]), raw.send(Verb.ORDER, topic, [None])]
        assert raw.reply(Verb.DETACH, "") == {}
        # Behind a subscription of the same node nothing of before is under way any more.
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["**"], "r")
        numbers = {said.request for said in raw.unasked}
        assert numbers.isdisjoint({*unanswered, order, *waiting})


def test_a_process_that_there_is_not_is_refused_with_busy_or_bad_request(broker: Broker) -> None:
    with Raw(broker.address) as raw:
        assert raw.refusal(Verb.STATUS, "\0w99", None) == "bad_request"
        assert raw.refusal(Verb.STATUS, "\0x", None) == "bad_request"
        assert raw.refusal(Verb.STATUS, "\0d999999", None) == "bad_request"
        assert raw.refusal(Verb.STATUS, "\0d5", None) == "busy"
        assert raw.refusal(Verb.LIST_TOPICS, "\0f", [""]) == "bad_request"


# --- receivers ------------------------------------------------------------------------------------


def test_a_receiver_wants_what_any_of_its_endpoints_wants(broker: Broker, topic: str) -> None:
    with Raw(broker.address) as raw:
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["a"], None, "group", None, 10)
        raw.reply(Verb.SUBSCRIBE, topic, 2, ["b"], None, "group", None, 10)
        raw.publish(topic, *[message(subjects=("b",)) for _ in range(4)])
        by_endpoint = [said.body[0] for said in raw.unasked if said.verb == Verb.DELIVER]
        assert set(by_endpoint) == {1, 2}, "whichever of them asked for it"


def test_interests_of_a_receiver_when_endpoints_come_and_go(broker: Broker, topic: str) -> None:
    with Raw(broker.address) as raw:
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["a"], None, "group")
        raw.reply(Verb.SUBSCRIBE, topic, 2, ["b"], None, "group")
        raw.reply(Verb.UNSUBSCRIBE, topic, 2)
        assert interests_of(raw, topic, "group") == ["a", "b"], "one that leaves takes none away"
        raw.reply(Verb.SET_INTERESTS, topic, 1, ["c"])
        assert interests_of(raw, topic, "group") == ["c"]
        raw.reply(Verb.UNSUBSCRIBE, topic, 1)
        raw.reply(Verb.SUBSCRIBE, topic, 2, ["d"], None, "group")
        assert interests_of(raw, topic, "group") == ["c", "d"], "a group adds"
        raw.reply(Verb.SUBSCRIBE, topic, 3, ["a"], "name")
        raw.reply(Verb.UNSUBSCRIBE, topic, 3)
        raw.reply(Verb.SUBSCRIBE, topic, 3, ["b"], "name")
        assert interests_of(raw, topic, "name") == ["b"], "a name replaces"
        raw.reply(Verb.SUBSCRIBE, topic, 4, ["a"], None, "passing", False)
        raw.reply(Verb.SUBSCRIBE, topic, 5, ["b"], None, "passing", False)
        raw.reply(Verb.UNSUBSCRIBE, topic, 5)
        assert interests_of(raw, topic, "passing") == ["a"]


def test_a_pull_on_an_endpoint_with_credit_brings_both_together(broker: Broker, topic: str) -> None:
    with Raw(broker.address) as raw:
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["**"], "r", None, None, 2)
        pull = raw.send(Verb.PULL, topic, [1, 3, 60_000])
        raw.publish(topic, *[message(max_receivers=1) for _ in range(8)])
        answered = [said for said in raw.unasked if said.request == pull] or [raw.answer(pull)]
        assert answered[0].body == {"count": 5}


def test_clear_gives_credit_back_and_leaves_pulls_waiting(broker: Broker, topic: str) -> None:
    with Raw(broker.address) as raw:
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["held"], "holder", None, None, 1)
        (held,) = raw.publish(topic, message(max_receivers=1, subjects=("held",)))
        raw.reply(Verb.SUBSCRIBE, topic, 2, ["**"], "puller")
        pull = raw.send(Verb.PULL, topic, [2, 1, 60_000])
        raw.reply(Verb.CLEAR, topic)
        assert raw.reply(Verb.REPORT, topic, 1, PROCESSED, [held]) == {}
        listed = raw.reply(Verb.LIST_RECEIVERS, topic)["receivers"]
        assert [receiver["credit"] for receiver in listed] == [1, 1], "the pull's own, too"
        raw.publish(topic, message(max_receivers=1))
        answered = [said for said in raw.unasked if said.request == pull] or [raw.answer(pull)]
        assert answered[0].body == {"count": 1}


@pytest.mark.parametrize("status", [PROCESSED, FAILED])
def test_a_report_on_what_is_over_is_answered_and_does_nothing(
    broker: Broker, topic: str, status: int
) -> None:
    with Raw(broker.address) as raw:
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["**"], "r", None, None, 10)
        (abandoned,) = raw.publish(topic, message(max_receivers=1))
        raw.reply(Verb.ABANDON, topic, abandoned)
        (sent,) = raw.publish(topic, message(max_receivers=1, expect=Status.SENT))
        assert raw.reply(Verb.REPORT, topic, 1, status, [abandoned, sent]) == {}
        later = raw.reply(Verb.REPORT, topic, 1, status, [sent + 1_000_000])
        assert later == {"refused": ((sent + 1_000_000, "no_such_message"),)}
        assert raw.reply(Verb.DESCRIBE, topic)["parked"] == 0


# --- times ----------------------------------------------------------------------------------------


def test_a_delayed_push_that_nobody_wants_at_its_time_has_failed(
    broker: Broker, topic: str
) -> None:
    with Raw(broker.address) as raw:
        soon = now_ms() + 200
        ended = published_for_a_receipt(
            raw, topic, mode=Mode.PUSH, expect=Status.SENT, deliver_ms=soon
        )
        assert ended == ("failed", {})


def test_a_delayed_online_message_is_for_those_who_are_online_at_its_time(
    broker: Broker, topic: str
) -> None:
    with Raw(broker.address) as raw:
        soon = now_ms() + 500
        raw.publish(topic, message(mode=Mode.ONLINE, expect=Status.SENT, deliver_ms=soon))
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["a"], None, None, None, 1)
        assert len(given([raw.until(Verb.DELIVER)])) == 1


def test_a_delayed_message_does_not_hold_up_a_blocking_topic(broker: Broker, topic: str) -> None:
    with Raw(broker.address) as raw:
        raw.reply(Verb.CREATE_TOPIC, topic, {"blocking": True})
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["a"], "r", None, None, 10)
        later = now_ms() + 3_600_000
        raw.publish(topic, message(b"later", max_receivers=1, deliver_ms=later))
        raw.publish(topic, message(b"now", max_receivers=1))
        assert [payload for _, payload in given(raw.unasked)] == [b"now"]


@pytest.mark.parametrize("max_receivers", [1, None])
def test_what_expired_before_it_came_is_accepted_and_reaches_nobody(
    broker: Broker, topic: str, max_receivers: int | None
) -> None:
    with Raw(broker.address) as raw:
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["a"], "r", None, None, 10)
        ended = published_for_a_receipt(
            raw, topic, max_receivers=max_receivers, expires_ms=now_ms() - 1_000
        )
        assert ended == ("expired", {})
        assert not given(raw.unasked)


# --- the work queue and what has failed -----------------------------------------------------------


def test_fetch_shows_what_the_other_verbs_of_the_work_queue_do_not_know(
    broker: Broker, topic: str
) -> None:
    with Raw(broker.address) as raw:
        (several,) = raw.publish(topic, message(b"for several"))
        assert raw.reply(Verb.FETCH, topic, several)["payload"] == b"for several"
        assert raw.refusal(Verb.COMPLETE, topic, [several]) == "no_such_message"
        assert raw.refusal(Verb.SET_DRAFT, topic, [several, b""]) == "no_such_message"
        assert raw.reply(Verb.ORDER, topic, 0) == {"sequence": None}


def test_an_order_is_extended_and_given_back_by_the_name_of_its_receiver(
    broker: Broker, topic: str
) -> None:
    with Raw(broker.address) as raw:
        (sequence,) = raw.publish(topic, message(max_receivers=1))
        assert raw.reply(Verb.ORDER, topic, 0) == {"sequence": sequence}
        assert raw.reply(Verb.EXTEND, topic, 0, [sequence], 600_000, "work-queue") == {}
        by_name = [0, PROCESSED, [sequence], "", "work-queue"]
        assert raw.refusal(Verb.REPORT, topic, by_name) == "no_such_receiver"
        assert raw.reply(Verb.EXTEND, topic, 0, [sequence], 0, "work-queue") == {}
        assert raw.reply(Verb.FETCH, topic, sequence)["status"] == "waiting"


def test_a_renewed_message_goes_past_the_size_of_its_topic(broker: Broker, topic: str) -> None:
    with Raw(broker.address) as raw:
        raw.reply(Verb.CREATE_TOPIC, topic, {"overflow": {"size": 1}})
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["a"], "r", None, None, 1)
        (failed,) = raw.publish(topic, message(max_receivers=1))
        raw.reply(Verb.REPORT, topic, 1, FAILED, [failed], "why")
        raw.reply(Verb.UNSUBSCRIBE, topic, 1)
        raw.publish(topic, message(max_receivers=1))
        raw.reply(Verb.RENEW, topic, failed)
        assert raw.reply(Verb.DESCRIBE, topic)["held"] == 2
        refused = raw.ask(Verb.PUBLISH, topic, [[message(max_receivers=1)]]).body
        assert refused[0][0] == "overflow"


def test_a_dead_letter_that_waits_for_room_counts_nowhere_and_lives_by_its_new_topic(
    broker: Broker, topic: str
) -> None:
    dead = f"{topic}-dead"
    with Raw(broker.address) as raw:
        raw.reply(Verb.CREATE_TOPIC, dead, {"overflow": {"size": 1}, "default_ttl": 1})
        (full,) = raw.publish(dead, message(max_receivers=1, expires_ms=now_ms() + 600_000))
        raw.reply(Verb.CREATE_TOPIC, topic, {"dead_letter": dead})
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["a"], "r", None, None, 1)
        (failed,) = raw.publish(topic, message(max_receivers=1, expires_ms=now_ms() + 600_000))
        raw.reply(Verb.REPORT, topic, 1, FAILED, [failed], "why")
        counted = raw.reply(Verb.DESCRIBE, topic)
        assert [counted[name] for name in ("held", "waiting", "parked")] == [0, 0, 0]
        assert raw.refusal(Verb.FETCH, topic, [failed]) == "no_such_message"
        raw.reply(Verb.SUBSCRIBE, dead, 1, ["a"], "r")
        raw.reply(Verb.ABANDON, dead, full)
        wait_for(lambda: raw.reply(Verb.PULL, dead, 1, 1)["count"], "there is room, and it comes")
        # Nobody finishes it; were its time that of the message, it would be here for long.
        raw.reply(Verb.UNSUBSCRIBE, dead, 1)
        wait_for(lambda: not raw.reply(Verb.DESCRIBE, dead)["held"], "it lives by default_ttl")


@pytest.mark.parametrize("name", ["*", "/", "a/**"])
def test_a_topic_whose_name_is_no_subject_takes_drafts_and_publishes_of_another_subject(
    broker: Broker, topic: str, name: str
) -> None:
    with Raw(broker.address) as raw:
        sequence = raw.reply(Verb.DRAFT, name, bytes(16))["sequence"]
        raw.reply(Verb.SET_DRAFT, name, sequence, b"drafted")
        raw.publish(name, message())
        by_its_name = wire.pack_body([int(Mode.DURABLE), PROCESSED, [name]])
        refused = raw.ask(Verb.PUBLISH, name, [[(bytes(16), by_its_name, b"")]]).body
        assert refused[0][0] == "bad_subject"
        raw.reply(Verb.DELETE_TOPIC, name)
