"""The client's side of the protocol: frames in, events out, parts to send, and nothing else."""

import ast
import gc
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from asterism import PeerError, limits
from asterism.message import Header, Mode, Status
from asterism.router.placement import store_of, worker_of
from asterism.sdk import events as happened
from asterism.sdk import producing, session
from asterism.sdk.composing import Composer, Ids, Wishes, make_header
from asterism.sdk.receiving import FAILED, PROCESSED, RECEIVED, Subscription
from asterism.sdk.session import Session
from asterism.sdk.tickets import Outcome, Ticket
from asterism.wire import TOGETHER_MAX, VERSION, Verb, pack_body, pack_part, read_body, read_parts
from tests.tidy import tree
from tests.tidy.test_imports import IO_CALLS, IO_MODULES

HEARTBEAT_MS = 1_000
HEADER = Header(Mode.DURABLE, Status.PROCESSED, ("a",), None, 1).encoded
SENT_HEADER = Header(Mode.DURABLE, Status.SENT, ("a",), None, 1).encoded
ONLINE_HEADER = Header(Mode.ONLINE, Status.PROCESSED, ("a",)).encoded


class Sent:
    """One part that the session sent."""

    def __init__(self, packed: bytes) -> None:
        (part,) = read_parts(packed)
        self.verb, self.request = Verb(part.verb), part.request
        self.topic = part.topic.decode()
        self.body: Any = read_body(packed[part.body :])

    def __repr__(self) -> str:
        return f"{self.verb.name} {self.request} {self.topic} {self.body}"


STORES, WORKERS = 8, 2
OWN = 40_000  # the number of a process that has one topic


def topics_of(worker: int) -> Iterator[str]:
    """Topics that live in a worker, one after the other."""
    names = (f"topic-{number}" for number in itertools.count())
    return (name for name in names if worker_of(store_of(name, STORES), WORKERS) == worker)


MINE, ALSO_MINE = itertools.islice(topics_of(0), 2)
OTHER = next(topics_of(1))


class Client:
    """A session and a clock, and a broker's part by hand."""

    def __init__(self, **options: Any) -> None:
        chance = itertools.count(1)
        self.session = Session("test", lambda n: next(chance).to_bytes(n, "big"), **options)
        self.now_ms = 1_000
        self.tickets: list[Ticket] = []
        self.about: dict[str, Any] = {}  # what else the broker says of itself

    def open(self) -> list[Sent]:
        """Connects and is welcomed; what is sent then."""
        self.session.open(self.now_ms)
        (hello,) = self.flush()
        assert hello.verb is Verb.HELLO
        self.welcome(hello.request)
        return self.flush()

    def welcome(self, request: int) -> list[happened.Event]:
        body = {
            "version": 1,
            "session": b"s" * 13,
            "heartbeat_ms": HEARTBEAT_MS,
            "workers": 2,
            "broker": "0.1.0",
            "frame_bytes_max": 64 << 20,
            "stores": STORES,
            **self.about,
        }
        return self.told(Verb.WELCOME, body, request=request)

    def reconnect(self) -> list[Sent]:
        self.session.lost()
        return self.open()

    def flush(self) -> list[Sent]:
        return [Sent(part) for part in self.session.flush(self.now_ms)]

    def by_lanes(self) -> dict[int, list[Sent]]:
        """What is sent on lanes, by the worker; ask behind a flush."""
        taken = self.session.ways.take_lanes()
        return {worker: [Sent(part) for part in parts] for worker, parts in taken.items()}

    def told(
        self, verb: Verb, body: object, *, request: int = 0, topic: str = "", worker: int = 0xFFFF
    ) -> list[happened.Event]:
        frame = pack_part(verb, request, topic.encode(), pack_body(body), worker=worker)
        return self.session.receive(frame, self.now_ms)

    def publish(self, *payloads: bytes, topic: str = "t", receipt: bool = False) -> Ticket:
        ticket = Ticket(topic, len(payloads), receipt)
        messages = [(b"i" * 16, HEADER, payload) for payload in payloads]
        size = sum(len(HEADER) + len(payload) for payload in payloads)
        self.session.publish(ticket, 0, messages, size)
        self.tickets.append(ticket)
        return ticket

    def accept(self, sent: Sent, *results: object, worker: int = 0) -> list[happened.Event]:
        """Answers a publish; with no results, each message gets its number for a sequence."""
        first, count = sent.body[2], len(sent.body[0])
        return self.told(
            Verb.ACCEPTED,
            results or list(range(first, first + count)),
            request=sent.request,
            topic=sent.topic,
            worker=worker,
        )

    def refuse(
        self, sent: Sent, code: str, detail: str = "", retry_after_ms: int | None = None
    ) -> list[happened.Event]:
        body = [code, detail, retry_after_ms]
        return self.told(Verb.REFUSE, body, request=sent.request, topic=sent.topic, worker=0)

    def subscribe(
        self, credit: int = 10, topic: str = "t", worker: int = 0, **wishes: Any
    ) -> Subscription:
        held = self.session.subscribe(topic, ("**",), credit=credit, name="me", **wishes)
        (sent,) = self.flush()
        self.joined(sent, worker)
        return held

    def joined(self, sent: Sent, worker: int = 0) -> list[happened.Event]:
        assert sent.verb is Verb.SUBSCRIBE
        return self.told(
            Verb.REPLY, {"receiver": "me"}, request=sent.request, topic=sent.topic, worker=worker
        )

    def deliver(
        self, held: Subscription, *sequences: int, header: bytes = HEADER
    ) -> list[happened.Event]:
        items = [[sequence, 1, b"i" * 16, header, b"x"] for sequence in sequences]
        return self.told(Verb.DELIVER, [held.endpoint, "me", items], topic=held.topic, worker=0)


@pytest.fixture
def client() -> Client:
    client = Client()
    client.open()
    return client


def payloads(sent: Sent) -> list[bytes]:
    return [message[2] for message in sent.body[0]]


def numbering(sent: Sent) -> tuple[bytes, int]:
    return sent.body[1], sent.body[2]


# --- the connection -----------------------------------------------------------------------------


def test_a_session_begins_with_hello_and_sends_nothing_else_before_welcome() -> None:
    client = Client()
    client.publish(b"early")
    client.session.request(Verb.DESCRIBE, b"t", ())
    client.session.subscribe("t", ("**",))
    client.session.open(client.now_ms)
    (hello,) = client.flush()
    assert hello.verb is Verb.HELLO
    assert hello.body["versions"] == (1,)
    assert client.flush() == []
    assert happened.Welcomed("0.1.0", 2) in client.welcome(hello.request)
    verbs = [sent.verb for sent in client.flush()]
    assert verbs == [Verb.SUBSCRIBE, Verb.DESCRIBE, Verb.PUBLISH]


def test_a_hello_that_is_refused_for_good_rejects_the_client() -> None:
    client = Client()
    client.session.open(0)
    (hello,) = client.flush()
    (event,) = client.refuse(hello, "unsupported_version", "2")
    assert isinstance(event, happened.Rejected)
    assert event.error.code == "unsupported_version"


def test_why_something_is_tried_again_is_remembered_for_who_gives_up_waiting() -> None:
    client = Client()
    client.open()
    client.session.request(Verb.STATS, b"t", ())
    (asked,) = client.flush()
    client.refuse(asked, "busy", "no space is left")
    said_ms, said = client.session.last_busy
    assert (said_ms, said and said.detail) == (client.now_ms, "no space is left")


def test_what_the_front_end_took_behind_a_restart_is_not_asked_twice() -> None:
    client = Client()
    client.open()
    client.session.request(Verb.DRAFT, b"t", ())
    (before,) = client.flush()
    client.session.request(Verb.DRAFT, b"t", ())
    client.flush()  # the front-end takes it behind its telling of the restart
    client.told(Verb.RESTARTED, 1, worker=0)
    assert [sent.request for sent in client.flush()] == [before.request]
    client.told(Verb.RESTARTED, 3, worker=0)
    assert len(client.flush()) == 2


def test_a_subscription_that_the_front_end_took_behind_a_restart_is_not_made_twice() -> None:
    """The second would fail over what the first was given meanwhile, and is being worked on."""
    client = Client()
    client.open()
    held = client.subscribe()
    client.told(Verb.RESTARTED, 0, worker=0)
    (sent,) = client.flush()
    client.refuse(sent, "busy", "the worker is away")
    client.now_ms += 60_000
    client.session.tick(client.now_ms)
    (again,) = [sent for sent in client.flush() if sent.verb is Verb.SUBSCRIBE]
    client.told(Verb.RESTARTED, 2, worker=0)  # said before the front-end took the second
    assert client.flush() == []
    client.joined(again)
    assert held.is_ready
    client.flush()
    client.told(Verb.RESTARTED, 10, worker=0)
    assert [sent.verb for sent in client.flush()] == [Verb.SUBSCRIBE]


def test_what_a_process_of_its_own_never_answered_is_asked_again_when_that_restarts() -> None:
    """The topic was its worker's before: only the topic that is told says whose restart it is."""
    client = Client()
    client.open()
    client.subscribe()
    client.flush()
    client.told(Verb.RESTARTED, 2, worker=0)  # the topic gets a process of its own
    (sent,) = client.flush()
    client.told(Verb.RESTARTED, 3, worker=40_000)  # of another topic
    assert client.flush() == []
    client.told(Verb.RESTARTED, 3, worker=40_000, topic="t")
    (again,) = client.flush()
    assert (again.verb, again.request) == (Verb.SUBSCRIBE, sent.request)


def test_what_a_topic_that_moved_back_has_not_answered_is_asked_again_of_its_worker() -> None:
    client = Client()
    client.open()
    client.subscribe(topic=MINE, worker=OWN)
    client.flush()
    client.told(Verb.RESTARTED, 1, worker=OWN, topic=MINE)  # it is its worker's again
    (sent,) = client.flush()
    client.told(Verb.RESTARTED, 2, worker=0)
    (again,) = client.flush()
    assert (again.verb, again.request) == (Verb.SUBSCRIBE, sent.request)


def test_after_a_reconnect_it_is_not_known_any_more_which_process_has_a_topic() -> None:
    """The broker may have moved the topic while the client was away."""
    client = Client()
    client.open()
    client.subscribe(topic=MINE, worker=OWN)
    client.flush()
    (sent,) = client.reconnect()
    client.told(Verb.RESTARTED, 1, worker=0)
    (again,) = client.flush()
    assert (again.verb, again.request) == (Verb.SUBSCRIBE, sent.request)


def test_receipts_asked_of_a_worker_are_asked_for_again_though_the_topic_has_a_process_by_now() -> (
    None
):
    """It has not taken them, and its topic has answered something else from the process since."""
    client = Client()
    client.open()
    ticket = client.publish(b"1", topic=MINE, receipt=True)
    (sent,) = client.flush()
    client.accept(sent)
    (asked,) = client.reconnect()
    client.publish(b"2", topic=MINE)  # behind that the front-end knows of the process
    (published,) = client.flush()
    client.accept(published, worker=OWN)
    client.told(Verb.RESTARTED, None, worker=1)
    assert client.flush() == []
    client.told(Verb.RESTARTED, None, worker=0)
    (again,) = client.flush()
    assert (again.verb, again.body) == (Verb.AWAIT_RECEIPTS, asked.body)
    client.told(Verb.RESTARTED, None, worker=0)
    assert client.flush() == [], "the process has it now"
    outcomes = {"outcomes": [[1, "ok", {}]]}
    client.told(Verb.REPLY, outcomes, request=again.request, topic=MINE, worker=OWN)
    assert ticket.is_resolved


def test_what_a_worker_has_not_taken_is_sent_again_though_the_topic_has_a_process_by_now() -> None:
    client = Client()
    client.open()
    client.publish(b"1", topic=MINE)
    client.session.subscribe(MINE, ("**",), credit=1, name="me")
    client.session.request(Verb.STATS, MINE.encode(), ())
    client.session.request(Verb.STATS, ALSO_MINE.encode(), ())
    before = client.flush()
    client.session.request(Verb.DESCRIBE, MINE.encode(), ())
    (taken,) = client.flush()
    client.told(Verb.REPLY, {}, request=taken.request, topic=MINE, worker=OWN)
    client.session.request(Verb.DESCRIBE, MINE.encode(), ())
    assert verbs(client.flush()) == [Verb.DESCRIBE], "this one goes to the process"
    client.told(Verb.RESTARTED, None, worker=0)
    again = client.flush()
    assert sorted((sent.verb, sent.topic) for sent in again) == sorted(
        (sent.verb, sent.topic) for sent in before
    )
    (published,) = [sent for sent in again if sent.verb is Verb.PUBLISH]
    client.accept(published, worker=OWN)
    (ticket,) = client.tickets
    assert ticket.accepted_count == 1


def test_what_a_lane_has_lost_is_sent_again_though_its_topic_has_a_process_by_now(
    near: Client,
) -> None:
    near.session.request(Verb.DESCRIBE, MINE.encode(), ())
    (first,) = near.flush()
    open_lane(near)
    near.publish(b"1", topic=MINE)
    assert near.flush() == []
    ((lost,),) = near.by_lanes().values()
    near.told(Verb.REPLY, {}, request=first.request, topic=MINE, worker=OWN)
    near.session.lane_lost(0)
    (again,) = near.flush()
    assert numbering(again) == numbering(lost)


def test_what_the_front_end_took_behind_a_restart_is_not_asked_twice_of_a_process() -> None:
    client = Client()
    client.open()
    client.session.request(Verb.DRAFT, MINE.encode(), ())
    client.session.request(Verb.DRAFT, MINE.encode(), ())
    lost = client.flush()[0]
    client.session.request(Verb.DESCRIBE, MINE.encode(), ())
    (sent,) = client.flush()
    client.told(Verb.REPLY, {}, request=sent.request, topic=MINE, worker=OWN)
    client.told(Verb.RESTARTED, 1, worker=0)
    assert [again.request for again in client.flush()] == [lost.request]


def test_a_request_that_fills_a_frame_is_refused_before_it_is_sent() -> None:
    client = Client()
    client.open()
    with pytest.raises(PeerError, match="too_large"):
        client.session.request(Verb.SET_DRAFT, b"t", (1, bytes(64 << 20)))
    assert client.flush() == []
    client.session.request(Verb.SET_DRAFT, b"t", (1, bytes((64 << 20) - 2_048)))
    assert [sent.verb for sent in client.flush()] == [Verb.SET_DRAFT]


@pytest.mark.parametrize("left", [0, 40, 120, 1_023])
def test_a_message_that_fills_a_frame_to_the_brim_is_refused_before_it_is_sent(left: int) -> None:
    """The broker would cut the connection for it, again and again."""
    client = Client()
    client.open()
    with pytest.raises(PeerError, match="too_large"):
        client.publish(bytes((64 << 20) - len(HEADER) - left))
    assert client.flush() == []
    client.publish(bytes((64 << 20) - len(HEADER) - 1_024))
    (part,) = client.session.flush(client.now_ms)
    assert len(part) <= 64 << 20


def test_a_hello_that_is_refused_as_busy_is_tried_again() -> None:
    client = Client()
    client.session.open(0)
    (hello,) = client.flush()
    (event,) = client.refuse(hello, "busy")
    assert isinstance(event, happened.Lost)


def test_a_hello_that_is_not_answered_loses_the_connection() -> None:
    client = Client()
    client.session.open(0)
    assert client.session.next_due_ms() == session.WELCOME_MS
    assert client.session.tick(session.WELCOME_MS - 1) == []
    (event,) = client.session.tick(session.WELCOME_MS)
    assert isinstance(event, happened.Lost)


def test_a_silent_client_pings_once_a_heartbeat(client: Client) -> None:
    due_ms = client.session.next_due_ms()
    assert due_ms == client.now_ms + HEARTBEAT_MS
    client.now_ms = due_ms
    assert client.session.tick(client.now_ms) == []
    (ping,) = client.flush()
    assert ping.verb is Verb.PING
    client.told(Verb.PONG, None, request=ping.request)
    assert client.session.next_due_ms() == client.now_ms + HEARTBEAT_MS


def test_a_client_that_only_sends_asks_for_a_sign_of_life(client: Client) -> None:
    held = client.subscribe(credit=1)
    for _ in range(4):
        client.now_ms += HEARTBEAT_MS // 2
        held.returned = 1
        client.session.touch(held)
        client.session.tick(client.now_ms)
        if any(sent.verb is Verb.PING for sent in client.flush()):
            return
    pytest.fail("nothing was heard for two heartbeats, and nothing was asked")


def test_a_broker_that_is_silent_for_three_heartbeats_is_gone(client: Client) -> None:
    for _ in range(2):
        client.now_ms += HEARTBEAT_MS
        assert client.session.tick(client.now_ms) == []
        client.flush()
    client.now_ms += HEARTBEAT_MS
    (event,) = client.session.tick(client.now_ms)
    assert isinstance(event, happened.Lost)


def test_a_client_that_was_held_up_itself_asks_before_it_judges(client: Client) -> None:
    client.now_ms += 60 * HEARTBEAT_MS
    assert client.session.tick(client.now_ms) == []
    assert [sent.verb for sent in client.flush()] == [Verb.PING]
    client.now_ms += HEARTBEAT_MS
    assert client.session.next_due_ms() == client.now_ms
    (event,) = client.session.tick(client.now_ms)
    assert isinstance(event, happened.Lost)


def test_a_session_that_the_broker_closed_is_lost(client: Client) -> None:
    (event,) = client.told(Verb.CLOSED, ["wrong_state", "no such session"])
    assert event == happened.Lost("the broker closed the session: wrong_state no such session")


def test_goodbye_is_the_last_word(client: Client) -> None:
    client.session.leave()
    (goodbye,) = client.flush()
    assert goodbye.verb is Verb.GOODBYE
    assert client.told(Verb.CLOSED, ["busy", ""], request=goodbye.request) == [happened.Ended()]
    assert client.session.is_over
    assert client.session.next_due_ms() is None


# --- requests -----------------------------------------------------------------------------------


def test_a_request_is_answered_by_its_number(client: Client) -> None:
    first = client.session.request(Verb.DESCRIBE, b"t", ())
    second = client.session.request(Verb.STATS, b"t", ())
    client.flush()
    assert client.told(Verb.REPLY, {"a": 1}, request=second) == [happened.Replied(second, {"a": 1})]
    (event,) = client.told(Verb.REFUSE, ["no_such_topic", "t", None], request=first)
    assert isinstance(event, happened.Refused) and event.error.code == "no_such_topic"
    assert client.told(Verb.REPLY, {}, request=first) == []


def test_a_request_that_is_refused_as_busy_is_asked_again_after_the_hint(client: Client) -> None:
    client.session.request(Verb.DESCRIBE, b"t", ())
    (asked,) = client.flush()
    assert client.refuse(asked, "busy", "", 70) == []
    assert client.session.next_due_ms() == client.now_ms + 70
    client.now_ms += 70
    client.session.tick(client.now_ms)
    (again,) = client.flush()
    assert (again.verb, again.request) == (Verb.DESCRIBE, asked.request)


def test_a_request_that_nobody_waits_for_is_not_asked_again(client: Client) -> None:
    number = client.session.request(Verb.DESCRIBE, b"t", ())
    client.flush()
    client.session.forget(number)
    assert client.reconnect() == []
    assert client.told(Verb.REPLY, {}, request=number) == []


def test_unanswered_requests_have_a_bound(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "REQUESTS_MAX", 2)
    client.session.request(Verb.DESCRIBE, b"t", ())
    number = client.session.request(Verb.DESCRIBE, b"t", ())
    with pytest.raises(PeerError, match="busy"):
        client.session.request(Verb.DESCRIBE, b"t", ())
    client.session.forget(number)
    client.session.request(Verb.DESCRIBE, b"t", ())


def test_a_code_of_a_newer_broker_is_kept_as_text(client: Client) -> None:
    number = client.session.request(Verb.DESCRIBE, b"t", ())
    (event,) = client.told(Verb.REFUSE, ["too_new", "what", None], request=number)
    assert isinstance(event, happened.Refused)
    assert event.error.code == "internal" and "too_new: what" in event.error.detail


# --- publishing ---------------------------------------------------------------------------------


def test_what_is_published_between_two_flushes_is_one_part_a_topic(client: Client) -> None:
    client.publish(b"1")
    client.publish(b"2", b"3")
    client.publish(b"4", topic="u")
    first, second = client.flush()
    assert (first.topic, payloads(first)) == ("t", [b"1", b"2", b"3"])
    assert (second.topic, payloads(second)) == ("u", [b"4"])
    assert client.flush() == []


def test_messages_are_numbered_from_one_without_a_gap(client: Client) -> None:
    client.publish(b"1", b"2")
    (first,) = client.flush()
    client.publish(b"3")
    (second,) = client.flush()
    producer = first.body[1]
    assert len(producer) == limits.PRODUCER_ID_BYTES
    assert [numbering(sent) for sent in (first, second)] == [(producer, 1), (producer, 3)]
    client.publish(b"1", topic="u")
    assert client.flush()[0].body[2] == 1


def test_a_publish_says_up_to_where_answers_have_been_seen(client: Client) -> None:
    client.publish(b"1", b"2")
    (first,) = client.flush()
    client.publish(b"3")
    (second,) = client.flush()
    assert (first.body[3], second.body[3]) == (0, 0)
    client.accept(first)
    client.publish(b"4")
    assert client.flush()[0].body[3] == 2
    client.accept(second)
    client.publish(b"5")
    assert client.flush()[0].body[3] == 3


def test_an_answer_reaches_each_ticket_in_its_place(client: Client) -> None:
    first, second = client.publish(b"1", b"2"), client.publish(b"3")
    (sent,) = client.flush()
    events = client.accept(sent, 7, ["overflow", "full"], 8)
    assert events == [happened.Answered(first), happened.Answered(second)]
    assert first.results[0] == 7 and second.results == [8]
    error = first.first_error()
    assert error is not None and (error.code, error.detail) == ("overflow", "full")
    assert second.first_error() is None


def test_a_part_has_at_most_as_many_messages_as_a_batch_may(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BATCH_MESSAGES_MAX", 2)
    ticket = client.publish(*[b"%d" % n for n in range(5)])
    sent = client.flush()
    assert [payloads(part) for part in sent] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    assert client.accept(sent[0]) == client.accept(sent[1]) == []
    assert client.accept(sent[2]) == [happened.Answered(ticket)]
    assert ticket.results == [1, 2, 3, 4, 5]


def test_a_part_has_about_a_megabyte_and_a_larger_message_goes_alone(client: Client) -> None:
    large, larger = b"x" * 600_000, b"y" * 1_500_000
    client.publish(large, large, larger, b"small")
    assert [[len(p) for p in payloads(sent)] for sent in client.flush()] == [
        [600_000],
        [600_000],
        [1_500_000],
        [5],
    ]


def test_past_a_number_of_parts_messages_gather(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "FRAMES_MAX", 2)
    client.publish(b"1")
    (first,) = client.flush()
    client.publish(b"2")
    client.flush()
    client.publish(b"3")
    client.publish(b"4")
    assert client.flush() == []
    client.accept(first)
    (gathered,) = client.flush()
    assert payloads(gathered) == [b"3", b"4"]


def test_the_window_is_bounded_in_messages_and_in_bytes() -> None:
    client = Client(window_messages=3, window_bytes=1_000)
    client.open()
    assert client.session.admits(2, 10, False)
    client.publish(b"1", b"2")
    assert client.session.admits(1, 10, False)
    assert not client.session.admits(2, 10, False)
    assert not client.session.admits(1, 1_000, False)
    (sent,) = client.flush()
    assert not client.session.admits(2, 10, False)
    client.accept(sent)
    assert (client.session.window.messages, client.session.window.bytes) == (0, 0)
    assert client.session.admits(50, 1_000_000, False), "what is larger than the window goes alone"


# --- publishing again ---------------------------------------------------------------------------


def test_what_was_not_answered_is_sent_again_under_the_same_numbers(client: Client) -> None:
    client.publish(b"1")
    client.publish(b"2", topic="u")
    first = client.flush()
    client.publish(b"3")
    first += client.flush()
    client.accept(first[1])
    client.session.lost()
    client.publish(b"4")
    again = client.open()
    assert [payloads(sent) for sent in again] == [[b"1"], [b"3"], [b"4"]]
    assert [numbering(sent) for sent in again[:2]] == [numbering(first[0]), numbering(first[2])]
    assert again[2].body[2] == 3


def test_an_answer_counts_once_however_often_it_was_sent(client: Client) -> None:
    ticket = client.publish(b"1")
    (first,) = client.flush()
    (again,) = client.reconnect()
    assert client.accept(first) == [], "a number of the last connection is nobody's"
    assert client.accept(again) == [happened.Answered(ticket)]
    assert client.accept(again) == []
    assert client.session.window.messages == 0


def test_a_busy_broker_gets_everything_again_in_order_after_the_hint(client: Client) -> None:
    client.publish(b"1")
    (first,) = client.flush()
    client.publish(b"2")
    (second,) = client.flush()
    client.refuse(first, "busy", "the worker is away", 50)
    client.publish(b"3")
    client.refuse(second, "busy", "number 1 is still missing", 0)
    assert client.flush() == []
    assert client.session.next_due_ms() == client.now_ms + 50
    client.now_ms += 50
    assert client.session.tick(client.now_ms) == []
    again = client.flush()
    assert [payloads(sent) for sent in again] == [[b"1"], [b"2"], [b"3"]]
    assert [numbering(sent) for sent in again[:2]] == [numbering(first), numbering(second)]
    for sent in again:
        client.accept(sent)
    assert all(not ticket.missing for ticket in client.tickets)


def test_a_late_refusal_of_what_was_sent_again_changes_nothing(client: Client) -> None:
    client.publish(b"1")
    (first,) = client.flush()
    client.publish(b"2")
    (second,) = client.flush()
    client.refuse(first, "busy", "", 0)
    again = client.flush()
    assert len(again) == 2
    client.refuse(second, "busy", "number 1 is still missing", 0)
    assert client.flush() == []
    client.accept(again[0])
    client.accept(again[1])
    assert client.session.is_idle


def test_a_producer_that_is_not_known_any_more_begins_anew(client: Client) -> None:
    client.publish(b"1")
    (first,) = client.flush()
    client.accept(first)
    tickets = [client.publish(b"2"), client.publish(b"3")]
    (second,) = client.flush()
    client.publish(b"4")
    (third,) = client.flush()
    client.refuse(second, "wrong_state", "this producer is not known here")
    client.publish(b"5")
    assert client.flush() == [], "first everything under way comes back"
    client.refuse(third, "wrong_state", "this producer is not known here")
    again = client.flush()
    assert [payloads(sent) for sent in again] == [[b"2", b"3"], [b"4"], [b"5"]]
    assert [sent.body[2] for sent in again] == [1, 3, 4]
    assert again[0].body[1] != first.body[1]
    client.accept(again[0])
    assert [ticket.results for ticket in tickets] == [[1], [2]]


def test_what_comes_through_ahead_of_the_first_is_sent_again_behind_it(client: Client) -> None:
    """The worker came back in between: to the first it was away, of the second it knew nothing."""
    tickets = [client.publish(b"1")]
    client.flush()
    tickets.append(client.publish(b"2"))
    client.flush()
    again = client.reconnect()
    assert [payloads(sent) for sent in again] == [[b"1"], [b"2"]]
    client.refuse(again[0], "busy", "the topic's worker is away or behind", 50)
    client.refuse(again[1], "wrong_state", "this producer is not known here: begin a new one at 1")
    client.now_ms += 1_000
    client.session.tick(client.now_ms)
    last = [sent for sent in client.flush() if sent.verb is Verb.PUBLISH]
    assert [(payloads(sent), sent.body[2]) for sent in last] == [([b"1"], 1), ([b"2"], 2)]
    assert last[0].body[1] == again[0].body[1], "under the same id: it may be stored already"
    for sent in last:
        client.accept(sent)
    assert [ticket.first_error() for ticket in tickets] == [None, None]


def test_a_worker_that_was_away_for_long_costs_no_message_though_the_second_comes_first(
    client: Client,
) -> None:
    tickets = [client.publish(b"1")]
    client.flush()
    tickets.append(client.publish(b"2"))
    first, second = client.reconnect()
    for _ in range(3 * producing.GAPS_MAX):
        for sent in (first, second):
            client.refuse(sent, "busy", "the topic's worker is away or behind", 50)
        client.now_ms += 50
        first, second = client.flush()
    client.refuse(first, "busy", "the topic's worker is away or behind", 50)
    client.refuse(second, "busy", "number 1 is still missing: send from there", 0)
    assert client.flush() == [], "what the first was told counts"
    client.now_ms += 50
    again = client.flush()
    assert [(payloads(sent), sent.body[2]) for sent in again] == [([b"1"], 1), ([b"2"], 2)]
    for sent in again:
        client.accept(sent)
    assert [ticket.first_error() for ticket in tickets] == [None, None]


def test_what_may_have_been_stored_under_a_forgotten_producer_is_reported(client: Client) -> None:
    unsure = client.publish(b"1")
    client.flush()
    (again,) = client.reconnect()
    fresh = client.publish(b"2")
    (sent,) = client.flush()
    assert client.refuse(again, "wrong_state") == [happened.Answered(unsure)]
    error = unsure.first_error()
    assert error is not None and error.code == "wrong_state"
    client.refuse(sent, "wrong_state")
    (anew,) = client.flush()
    assert (payloads(anew), anew.body[2]) == ([b"2"], 1)
    assert client.accept(anew) == [happened.Answered(fresh)]


def test_a_refused_part_fails_and_those_behind_it_are_sent_without_a_gap(client: Client) -> None:
    bad, good = client.publish(b"1"), None
    (first,) = client.flush()
    good = client.publish(b"2")
    (second,) = client.flush()
    assert client.refuse(first, "no_such_topic", "t") == [happened.Answered(bad)]
    error = bad.first_error()
    assert error is not None and error.code == "no_such_topic"
    client.refuse(second, "busy", "number 1 is still missing", 0)
    (again,) = client.flush()
    assert (payloads(again), again.body[2]) == ([b"2"], 1)
    assert again.body[1] != first.body[1]
    assert client.accept(again) == [happened.Answered(good)]
    assert client.session.window.messages == 0


def test_a_broker_that_lost_what_it_confirmed_gets_the_rest_from_a_new_producer(
    client: Client,
) -> None:
    client.publish(b"1")
    (first,) = client.flush()
    client.accept(first)
    client.publish(b"2")
    for _ in range(producing.GAPS_MAX):
        (sent,) = client.flush()
        assert sent.body[1] == first.body[1]
        client.refuse(sent, "busy", "number 1 is still missing", 0)
    (sent,) = client.flush()
    client.refuse(sent, "busy", "number 1 is still missing", 0)
    (anew,) = client.flush()
    assert anew.body[1] != first.body[1] and anew.body[2] == 1


def test_a_producer_of_the_callers_goes_on_from_its_number(client: Client) -> None:
    client.session.produce_as("t", b"p" * 16, 41)
    client.publish(b"1", b"2")
    (sent,) = client.flush()
    assert (numbering(sent), sent.body[3]) == ((b"p" * 16, 41), 40)
    with pytest.raises(PeerError, match="already"):
        client.session.produce_as("t", b"q" * 16, 1)
    for wrong in ((b"p", 1), (b"p" * 16, 0)):
        with pytest.raises(PeerError, match="16 bytes"):
            client.session.produce_as("u", *wrong)


@pytest.mark.parametrize("code", ["wrong_state", "no_such_topic"])
def test_a_producer_of_the_callers_is_never_exchanged_for_another(
    client: Client, code: str
) -> None:
    client.session.produce_as("t", b"p" * 16, 7)
    tickets = [client.publish(b"1"), None]
    (first,) = client.flush()
    tickets[1] = client.publish(b"2")
    (second,) = client.flush()
    assert client.refuse(first, code) == [], "first everything under way comes back"
    client.refuse(second, "busy", "number 7 is still missing", 0)
    for ticket in tickets:
        assert ticket is not None
        error = ticket.first_error()
        assert error is not None and error.code == code
    assert client.session.window.messages == 0
    client.publish(b"3")
    (third,) = client.flush()
    assert numbering(third) == (b"p" * 16, 7), "nothing was stored under these numbers"


def test_what_may_have_been_stored_for_a_producer_of_the_callers_is_not_taken_for_the_next(
    client: Client,
) -> None:
    client.session.produce_as("t", b"p" * 16, 1)
    unsure = client.publish(b"1")
    client.flush()
    (again,) = client.reconnect()
    client.refuse(again, "wrong_state")
    assert unsure.first_error() is not None
    client.publish(b"2")
    (sent,) = client.flush()
    assert numbering(sent) == (b"p" * 16, 2)
    assert sent.body[3] == 0, "the first was not answered, so it does not count as settled"


def test_a_producer_of_the_callers_whose_numbers_are_missing_there_ends_with_an_error(
    client: Client,
) -> None:
    client.session.produce_as("t", b"p" * 16, 9)
    ticket = client.publish(b"1")
    for _ in range(producing.GAPS_MAX + 1):
        (sent,) = client.flush()
        client.refuse(sent, "busy", "number 1 is still missing", 0)
    error = ticket.first_error()
    assert error is not None and error.code == "wrong_state"
    assert client.flush() == []


# --- a worker that restarted ----------------------------------------------------------------------


def ask_of_three(client: Client) -> None:
    """Publishes on a topic of each worker, and asks; and on one that answers from a process."""
    for topic, worker in ((MINE, 0), (OTHER, 1), (ALSO_MINE, OWN)):
        client.publish(b"known", topic=topic)
        (sent,) = client.flush()
        client.told(Verb.ACCEPTED, [1], request=sent.request, topic=topic, worker=worker)
        client.publish(b"new", topic=topic)
        client.session.request(Verb.DRAFT, topic.encode(), ())
        client.flush()


def sent_again(client: Client, restarted: int) -> list[tuple[int, str]]:
    """What a client sends when it is told that a process has restarted."""
    client.told(Verb.RESTARTED, None, worker=restarted)
    return sorted((sent.verb, sent.topic) for sent in client.flush())


@pytest.mark.parametrize(("worker", "topic"), [(0, MINE), (1, OTHER), (OWN, ALSO_MINE)])
def test_only_what_a_restarted_worker_had_is_sent_again(
    client: Client, worker: int, topic: str
) -> None:
    ask_of_three(client)
    assert sent_again(client, worker) == [(Verb.PUBLISH, topic), (Verb.DRAFT, topic)]


def test_what_has_no_answer_yet_is_sent_again_to_the_worker_of_its_name_alone(
    client: Client,
) -> None:
    """When both restart, it is done once: one of them had it, the other never will."""
    client.session.request(Verb.DRAFT, MINE.encode(), ())
    (draft,) = client.flush()
    client.told(Verb.REFUSE, ["no_such_topic", ""], request=draft.request, topic=MINE, worker=0)
    client.session.request(Verb.DRAFT, MINE.encode(), ())
    client.session.request(Verb.DRAFT, OTHER.encode(), ())
    client.flush()
    assert sent_again(client, 0) == [(Verb.DRAFT, MINE)]
    assert sent_again(client, 1) == [(Verb.DRAFT, OTHER)]
    # Nobody can know whether it has a process of its own by now.
    assert sent_again(client, OWN) == [(Verb.DRAFT, MINE), (Verb.DRAFT, OTHER)]


def test_an_order_that_was_cancelled_is_not_asked_again_behind_that(client: Client) -> None:
    """Both are refused while the worker is away, and each is tried again at its own time."""
    order = client.session.request(Verb.ORDER, MINE.encode(), (None,))
    cancel = client.session.request(Verb.CANCEL_WAIT, MINE.encode(), (order,))
    assert verbs(client.flush()) == [Verb.ORDER, Verb.CANCEL_WAIT]
    for number in (order, cancel):
        client.told(Verb.REFUSE, ["busy", "", 10], request=number, topic=MINE, worker=0)
    client.now_ms += 100
    client.session.tick(client.now_ms)
    assert verbs(client.flush()) == [Verb.CANCEL_WAIT]
    assert sent_again(client, 0) == [(Verb.CANCEL_WAIT, MINE)]
    assert verbs(client.reconnect()) == [Verb.CANCEL_WAIT]
    (replied,) = client.told(Verb.REPLY, {"sequence": 7}, request=order, topic=MINE, worker=0)
    assert replied == happened.Replied(order, {"sequence": 7}), "what it brought is given back"


def test_a_restarted_worker_gets_its_subscriptions_again(client: Client) -> None:
    held = client.subscribe(credit=10)
    client.told(Verb.RESTARTED, None, worker=0)
    (on,) = client.flush()
    assert on.verb is Verb.SUBSCRIBE
    client.joined(on)
    (grant,) = client.flush()
    assert (grant.verb, grant.body) == (Verb.GRANT, (held.endpoint, 10))


# --- lanes --------------------------------------------------------------------------------------

LANES = {"lanes": "/run/asterism"}
TOKEN = b"k" * 16


@pytest.fixture
def near() -> Client:
    """A client of the broker's machine."""
    client = Client()
    client.about = LANES
    client.open()
    return client


def open_lane(client: Client, worker: int = 0) -> Sent:
    """Claims a lane, which its worker grants; the claim."""
    client.session.open_lane(worker, TOKEN)
    (claim,) = client.flush()
    assert client.told(Verb.REPLY, {}, request=claim.request, topic=claim.topic) == [
        happened.LaneOpened(worker)
    ]
    return claim


def lane_of(worker: int) -> happened.LaneWanted:
    return happened.LaneWanted(worker, f"/run/asterism/lane-{worker}.sock")


def wanted(events: list[happened.Event]) -> list[happened.Event]:
    return [event for event in events if isinstance(event, happened.LaneWanted)]


def verbs(sent: list[Sent]) -> list[Verb]:
    return [one.verb for one in sent]


def test_a_welcome_with_lanes_wants_one_to_every_worker() -> None:
    client = Client()
    client.about = LANES
    client.session.open(0)
    (hello,) = client.flush()
    events = client.welcome(hello.request)
    assert wanted(events) == [lane_of(0), lane_of(1)]
    assert client.flush() == [], "that they are wanted is all, as yet"


def test_lanes_have_a_bound() -> None:
    client = Client()
    client.about = {**LANES, "workers": 1_000}
    client.session.open(0)
    (hello,) = client.flush()
    assert len(wanted(client.welcome(hello.request))) == session.LANES_MAX
    assert wanted(client.told(Verb.RESTARTED, None, worker=session.LANES_MAX - 1))
    assert not wanted(client.told(Verb.RESTARTED, None, worker=session.LANES_MAX))


def test_a_welcome_without_lanes_wants_none() -> None:
    client = Client()
    client.session.open(0)
    (hello,) = client.flush()
    assert not wanted(client.welcome(hello.request))
    assert not wanted(client.told(Verb.RESTARTED, None, worker=0))
    client.publish(b"1", topic=MINE)
    assert verbs(client.flush()) == [Verb.PUBLISH]
    assert client.by_lanes() == {}


def test_a_lane_is_claimed_through_the_front_end_behind_all_that_went_there(near: Client) -> None:
    near.session.request(Verb.STATS, MINE.encode(), ())
    near.session.open_lane(0, TOKEN)
    near.session.request(Verb.STATS, MINE.encode(), ())
    before, claim = near.flush()
    assert before.verb is Verb.STATS
    assert (claim.verb, claim.topic, claim.body) == (Verb.LANE, "\0w0", (TOKEN,))
    assert verbs(near.by_lanes()[0]) == [Verb.STATS], "nobody waits for the answer to the claim"
    assert near.told(Verb.REPLY, {}, request=claim.request, topic="\0w0") == [
        happened.LaneOpened(0)
    ]
    assert near.flush() == [] and near.by_lanes() == {}


def test_what_is_for_the_worker_of_a_lane_goes_there_in_order_and_nothing_else(
    near: Client,
) -> None:
    open_lane(near)
    near.publish(b"1", topic=MINE)
    near.publish(b"elsewhere", topic=OTHER)
    near.session.request(Verb.DESCRIBE, ALSO_MINE.encode(), ())
    near.publish(b"2", topic=MINE)
    for process in (b"\0w0", b"\0w1", b"\0i", b"\0f", b"\0d40000", b"\0w"):
        near.session.request(Verb.STATUS, process, ())
    front = near.flush()
    assert near.session.has_something_to_do
    lanes = near.by_lanes()
    assert list(lanes) == [0]
    assert [(sent.verb, sent.topic) for sent in lanes[0]] == [
        (Verb.PUBLISH, MINE),
        (Verb.DESCRIBE, ALSO_MINE),
        (Verb.PUBLISH, MINE),
        (Verb.STATUS, "\0w0"),
    ]
    assert [payloads(sent) for sent in (lanes[0][0], lanes[0][2])] == [[b"1"], [b"2"]]
    assert [(sent.verb, sent.topic) for sent in front] == [
        (Verb.PUBLISH, OTHER),
        *((Verb.STATUS, process) for process in ("\0w1", "\0i", "\0f", "\0d40000", "\0w")),
    ]
    assert not near.session.has_something_to_do


def test_subscriptions_their_reports_and_their_credit_go_by_the_lane(near: Client) -> None:
    open_lane(near)
    held = near.session.subscribe(MINE, ("**",), credit=1, name="me")
    assert near.flush() == []
    ((subscribe,),) = near.by_lanes().values()
    near.joined(subscribe)
    near.deliver(held, 1, header=SENT_HEADER)
    held.take(1)
    held.report(PROCESSED, (1,), (1,))
    near.session.touch(held)
    assert near.flush() == []
    assert verbs(near.by_lanes()[0]) == [Verb.REPORT, Verb.GRANT]


def test_what_comes_on_a_lane_counts_as_what_comes_through_the_front_end(near: Client) -> None:
    open_lane(near)
    ticket = near.publish(b"1", topic=MINE)
    near.flush()
    ((sent,),) = near.by_lanes().values()
    data = pack_part(Verb.PONG) + pack_part(Verb.ACCEPTED, sent.request, b"t", pack_body([7]))
    events = near.session.receive_parts(data, read_parts(data), near.now_ms)
    assert events == [happened.Answered(ticket)] and ticket.results == [7]


def test_a_lane_to_a_worker_that_is_away_is_tried_again(near: Client) -> None:
    """The front-end was restarted, and did not know the worker yet."""
    near.session.open_lane(0, TOKEN)
    (claim,) = near.flush()
    near.refuse(claim, "busy", "the topic's worker is away or behind", 50)
    assert near.session.has_something_to_do
    assert near.session.tick(near.now_ms + 49) == []
    (wanted,) = near.session.tick(near.now_ms + 50)
    assert isinstance(wanted, happened.LaneWanted) and wanted.worker == 0
    assert near.session.tick(near.now_ms + 100) == []
    near.session.open_lane(0, TOKEN)
    (claim,) = near.flush()
    near.refuse(claim, "wrong_state")
    assert near.session.tick(near.now_ms + 5_000) == [], "it would be refused again"


def test_a_claim_that_is_refused_has_everything_go_through_the_front_end_again(
    near: Client,
) -> None:
    held = near.subscribe(topic=MINE)
    near.publish(b"1", topic=MINE)
    (first,) = near.flush()
    near.session.open_lane(0, TOKEN)
    near.publish(b"2", topic=MINE)
    (claim,) = near.flush()
    ((second,),) = near.by_lanes().values()
    assert near.refuse(claim, "wrong_state") == [happened.LaneOver(0)]
    on, *again = near.flush()
    assert (on.verb, on.body[0]) == (Verb.SUBSCRIBE, held.endpoint)
    assert on.body[8] == ((b"s" * 13,), (), ()), "should it be there still, it is made anew"
    assert [numbering(sent) for sent in again] == [numbering(first), numbering(second)]
    assert near.by_lanes() == {}
    near.session.request(Verb.STATS, MINE.encode(), ())
    assert verbs(near.flush()) == [Verb.STATS]


def test_a_worker_that_restarted_is_sent_all_through_the_front_end_and_wants_a_new_lane(
    near: Client,
) -> None:
    for worker in range(WORKERS):
        open_lane(near, worker)
    for topic in (MINE, OTHER):
        near.publish(b"1", topic=topic)
    near.flush()
    lanes = near.by_lanes()
    for worker in range(WORKERS):
        (sent,) = lanes[worker]
        near.told(Verb.ACCEPTED, [1], request=sent.request, topic=sent.topic, worker=worker)
    for topic in (MINE, OTHER):
        near.publish(b"2", topic=topic)
    near.flush()
    ((under_way,), _) = near.by_lanes().values()
    events = near.told(Verb.RESTARTED, None, worker=0)
    assert events[1:] == [happened.LaneOver(0), lane_of(0)]
    (again,) = near.flush()
    assert numbering(again) == numbering(under_way)
    near.publish(b"3", topic=OTHER)
    near.flush()
    assert list(near.by_lanes()) == [1], "that of the other worker is as it was"
    assert near.told(Verb.RESTARTED, None, worker=0)[1:] == [lane_of(0)], "none is open"


def test_a_lost_lane_has_what_was_under_way_go_through_the_front_end(near: Client) -> None:
    open_lane(near)
    held = near.session.subscribe(MINE, ("**",), credit=2, name="me")
    near.flush()
    ((subscribe,),) = near.by_lanes().values()
    near.joined(subscribe)
    near.publish(b"1", topic=MINE)
    near.flush()
    ((under_way,),) = near.by_lanes().values()
    near.publish(b"2", topic=MINE)
    (noted,) = near.session.lane_lost(0)
    assert isinstance(noted, happened.Noted)
    on, first, second = near.flush()
    assert (on.verb, on.body[0]) == (Verb.SUBSCRIBE, held.endpoint)
    assert numbering(first) == numbering(under_way)
    assert payloads(second) == [b"2"] and second.body[2] == 2
    assert near.by_lanes() == {}
    assert near.session.lane_lost(0) == [], "it is lost once"


def test_a_lane_that_ends_behind_a_goodbye_is_not_lost(near: Client) -> None:
    open_lane(near)
    near.session.leave()
    assert near.session.lane_lost(0) == []
    assert verbs(near.flush()) == [Verb.GOODBYE]


def elsewhere(client: Client, topic: str) -> None:
    data = pack_part(Verb.ELSEWHERE, 0, topic.encode(), worker=0)
    assert client.session.receive_parts(data, read_parts(data), client.now_ms) == []


def test_a_topic_that_is_elsewhere_goes_through_the_front_end(near: Client) -> None:
    open_lane(near)
    near.publish(b"1", topic=MINE)
    near.flush()
    ((sent,),) = near.by_lanes().values()
    elsewhere(near, MINE)
    near.refuse(sent, "busy", "", 50)
    near.now_ms += 50
    near.session.tick(near.now_ms)
    (again,) = near.flush()
    assert numbering(again) == numbering(sent)
    near.publish(b"x", topic=ALSO_MINE)
    assert near.flush() == [], "the others are where they were"
    assert list(near.by_lanes()) == [0]
    near.told(Verb.RESTARTED, None, worker=0)
    near.flush()
    open_lane(near)
    near.session.request(Verb.STATS, MINE.encode(), ())
    assert near.flush() == []
    assert verbs(near.by_lanes()[0]) == [Verb.STATS], "the worker may have it again"


def subscribed_elsewhere(near: Client) -> Subscription:
    """A subscription that the process of a dedicated topic answered, though its worker is near."""
    held = near.session.subscribe(MINE, ("**",), credit=1, name="me")
    (sent,) = near.flush()
    near.session.open_lane(0, TOKEN)
    near.flush()
    near.joined(sent, worker=OWN)
    return held


def granted(near: Client, held: Subscription) -> list[Verb]:
    """What goes through the front-end when there is credit to give back."""
    held.returned = 1
    near.session.touch(held)
    return verbs(near.flush())


def test_credit_for_a_topic_with_its_own_process_is_not_given_to_its_worker(near: Client) -> None:
    """It wants no answer: whoever has not got the topic could only lose it."""
    held = subscribed_elsewhere(near)
    assert granted(near, held) == [Verb.GRANT]
    elsewhere(near, MINE)  # of something that was sent before
    near.told(Verb.RESTARTED, None, worker=1)
    near.told(Verb.RESTARTED, None, worker=0)
    near.flush()
    open_lane(near)
    assert granted(near, held) == [Verb.GRANT]
    assert near.by_lanes() == {}


def test_a_topic_whose_own_process_is_gone_is_asked_of_its_worker_again(near: Client) -> None:
    subscribed_elsewhere(near)
    assert not wanted(near.told(Verb.RESTARTED, None, worker=OWN))
    assert near.flush() == []
    assert verbs(near.by_lanes()[0]) == [Verb.SUBSCRIBE]


def test_a_refusal_does_not_say_whose_a_topic_is(near: Client) -> None:
    """Or what its own process has would not be sent again when that restarts."""
    subscribed_elsewhere(near)
    near.session.request(Verb.STATS, MINE.encode(), ())
    (sent,) = near.flush()
    near.refuse(sent, "busy")  # of worker 0, which has it no longer
    near.told(Verb.RESTARTED, None, worker=OWN)
    near.flush()
    assert Verb.SUBSCRIBE in verbs(near.by_lanes()[0])


@pytest.mark.parametrize("is_granted", [True, False])
def test_the_answer_to_an_old_claim_does_not_touch_a_new_lane(
    near: Client, is_granted: bool
) -> None:
    near.session.open_lane(0, b"old " * 4)
    (old,) = near.flush()
    near.told(Verb.RESTARTED, None, worker=0)
    near.session.open_lane(0, TOKEN)
    (new,) = near.flush()
    if is_granted:
        assert near.told(Verb.REPLY, {}, request=old.request, topic=old.topic) == []
    else:
        assert near.refuse(old, "wrong_state") == []
    near.publish(b"1", topic=MINE)
    assert near.flush() == []
    assert verbs(near.by_lanes()[0]) == [Verb.PUBLISH]
    assert near.told(Verb.REPLY, {}, request=new.request, topic=new.topic) == [
        happened.LaneOpened(0)
    ]


def test_signs_of_life_go_through_the_front_end_though_all_else_goes_by_lanes(
    near: Client,
) -> None:
    for worker in range(WORKERS):
        open_lane(near, worker)
    answer = pack_part(Verb.REPLY, 99_999, b"", pack_body({}))
    pings = 0
    for _ in range(2 * session.HEARTBEATS_MISSED):
        near.now_ms += HEARTBEAT_MS // 2
        near.publish(b"busy", topic=MINE)
        assert near.session.receive_parts(answer, read_parts(answer), near.now_ms) == []
        lost = near.session.tick(near.now_ms)
        pings += verbs(near.flush()).count(Verb.PING)
        assert near.by_lanes()[0]
    assert pings == 1, "it was asked, and has not answered"
    (event,) = lost
    assert isinstance(event, happened.Lost), "a worker's answer is no sign of the front-end's life"


def test_a_client_that_sends_by_lanes_alone_gives_the_front_end_signs_of_its_life(
    near: Client,
) -> None:
    open_lane(near)
    for _ in range(4):
        near.now_ms += HEARTBEAT_MS // 2
        near.publish(b"busy", topic=MINE)
        near.told(Verb.PONG, None)  # the front-end is well; does it know that of this client?
        near.session.tick(near.now_ms)
        if Verb.PING in verbs(near.flush()):
            return
    pytest.fail("the front-end heard nothing for two heartbeats")


def test_a_lost_connection_forgets_its_lanes(near: Client) -> None:
    claim = open_lane(near)
    near.session.open_lane(1, TOKEN)
    near.flush()
    near.publish(b"1", topic=MINE)
    near.flush()
    near.session.lost()
    assert near.by_lanes() == {}
    (again,) = near.open()
    assert (again.verb, again.topic) == (Verb.PUBLISH, MINE)
    assert near.by_lanes() == {}
    assert near.told(Verb.REPLY, {}, request=claim.request + 1) == [], "of another connection"


# --- receiving ----------------------------------------------------------------------------------


def test_a_subscription_says_what_it_wants(client: Client) -> None:
    held = client.session.subscribe(
        "t", ("a/*", "b"), name="n", group="g", durable=False, credit=5, sent_timeout_ms=9
    )
    (sent,) = client.flush()
    assert sent.body == (held.endpoint, ("a/*", "b"), "n", "g", False, 5, 9, None)
    assert happened.Subscribed(held) in client.joined(sent)
    assert held.receiver == "me"


def test_a_subscription_that_is_refused_is_gone(client: Client) -> None:
    held = client.session.subscribe("t", ("**",))
    (sent,) = client.flush()
    (event,) = client.refuse(sent, "forbidden")
    assert isinstance(event, happened.Gone) and event.subscription is held
    assert client.reconnect() == []


def test_deliveries_are_taken_even_ahead_of_the_answer(client: Client) -> None:
    held = client.session.subscribe("t", ("**",), credit=2)
    client.flush()
    assert client.deliver(held, 1, 2) == [happened.Delivered(held)]
    assert [item[0] for item, _ in held.take(9)] == [1, 2]


def test_deliveries_for_an_endpoint_that_left_are_passed_over(client: Client) -> None:
    held = client.subscribe()
    assert client.session.unsubscribe(held) is not None
    assert [sent.verb for sent in client.flush()] == [Verb.UNSUBSCRIBE]
    assert client.deliver(held, 1) == []


def test_credit_is_given_back_for_what_expects_no_report_once_it_is_taken(client: Client) -> None:
    held = client.subscribe(credit=8)
    client.deliver(held, *range(1, 9), header=SENT_HEADER)
    held.take(1)
    client.session.touch(held)
    assert client.flush() == [], "one credit is not worth a part"
    assert all(is_free for _, is_free in held.take(1))
    client.session.touch(held)
    (grant,) = client.flush()
    assert (grant.verb, grant.request, grant.body) == (Verb.GRANT, 0, (held.endpoint, 2))


def test_credit_for_what_expects_a_report_is_the_brokers_to_give_back(client: Client) -> None:
    held = client.subscribe(credit=1)
    client.deliver(held, 1)
    assert held.take(1)[0][1] is False
    client.session.touch(held)
    assert client.flush() == []


def test_reports_of_many_deliveries_are_one_part_each_kind(client: Client) -> None:
    held = client.subscribe()
    client.deliver(held, 1, 2, 3, 4, 5)
    held.take(5)
    held.report(RECEIVED, (1, 2, 5), (1, 1, 1))
    held.report(PROCESSED, (1,), (1,))
    held.report(PROCESSED, (2,), (1,))
    held.report(FAILED, (3,), (1,), "why")
    held.report(FAILED, (4,), (1,), "because")
    client.session.touch(held)
    bodies = [sent.body for sent in client.flush()]
    assert bodies == [
        (held.endpoint, RECEIVED, (5,), "", None, (1,)),
        (held.endpoint, PROCESSED, (1, 2)),
        (held.endpoint, FAILED, (3,), "why", None, (1,)),
        (held.endpoint, FAILED, (4,), "because", None, (1,)),
    ]


def test_a_report_tells_who_asked_what_the_broker_says(client: Client) -> None:
    held = client.subscribe()
    held.report(PROCESSED, (1, 2), (1, 1), token="a")
    client.session.touch(held)
    (sent,) = client.flush()
    assert not client.session.is_idle
    body = {"refused": [[2, "not_yours"]]}
    events = client.told(Verb.REPLY, body, request=sent.request, topic="t", worker=0)
    assert happened.Reported("a", {2: "not_yours"}, None) in events
    assert client.session.is_idle


def test_a_busy_worker_gets_a_report_again(client: Client) -> None:
    held = client.subscribe()
    held.report(PROCESSED, (1,), (1,))
    client.session.touch(held)
    (sent,) = client.flush()
    client.refuse(sent, "busy", "", 50)
    assert client.flush() == []
    client.now_ms += 50
    client.session.tick(client.now_ms)
    (again,) = client.flush()
    assert again.body == sent.body


def test_after_a_reconnect_reports_come_before_credit(client: Client) -> None:
    held = client.subscribe(credit=10)
    client.deliver(held, 1)
    held.take(1)
    held.report(PROCESSED, (1,), (1,))
    client.session.touch(held)
    client.flush()
    client.session.lost()
    held.report(PROCESSED, (2,), (1,))
    client.session.touch(held)
    (subscribe,) = client.open()
    assert subscribe.body[5] == 2, "no credit yet but for what it holds"
    client.joined(subscribe)
    report, grant = client.flush()
    assert report.body == (held.endpoint, PROCESSED, (1, 2))
    assert (grant.verb, grant.body) == (Verb.GRANT, (held.endpoint, 8))


def test_a_lost_connection_sets_aside_what_others_may_have_by_now(client: Client) -> None:
    held = client.subscribe(credit=10)
    client.deliver(held, 1)
    client.deliver(held, 2, header=SENT_HEADER)
    client.deliver(held, 3, header=ONLINE_HEADER)
    (subscribe,) = client.reconnect()
    assert [item[0] for item in held.buffer] == [2, 3]
    assert subscribe.body[8] == ((b"s" * 13,), (1,), (1,))
    client.joined(subscribe)
    assert [item[0] for item in held.buffer] == [1, 2, 3], "it is its own again"
    (grant,) = client.flush()
    assert grant.body == (held.endpoint, 8), "what is still here gives its credit back when taken"


def holding(subscribe: Sent) -> tuple[tuple[bytes, ...], dict[int, int]]:
    """The sessions and the attempts by sequence that a subscribe names."""
    sessions, sequences, attempts = subscribe.body[8]
    return sessions, dict(zip(sequences, attempts, strict=True))


def test_a_first_subscribe_holds_nothing(client: Client) -> None:
    client.session.subscribe("t", ("**",), credit=1)
    (subscribe,) = client.flush()
    assert len(subscribe.body) == 8


def test_a_client_that_comes_back_names_all_that_it_has_not_finished(client: Client) -> None:
    held = client.subscribe(credit=10)
    for sequence in range(1, 6):
        client.deliver(held, sequence)
    held.take(4)
    held.report(RECEIVED, (1,), (1,), is_last=False)
    held.report(PROCESSED, (2,), (1,))
    held.report(FAILED, (3,), (1,), "no")
    client.session.touch(held)
    client.flush()
    (subscribe,) = client.reconnect()
    assert holding(subscribe) == ((b"s" * 13,), dict.fromkeys((1, 2, 3, 4, 5), 1))


def test_what_is_finished_and_answered_is_not_named(client: Client) -> None:
    held = client.subscribe(credit=10)
    client.deliver(held, 1)
    held.take(1)
    held.report(PROCESSED, (1,), (1,))
    client.session.touch(held)
    (report,) = client.flush()
    client.told(Verb.REPLY, {}, request=report.request, topic="t", worker=0)
    (subscribe,) = client.reconnect()
    assert holding(subscribe)[1] == {}


def test_what_the_broker_says_is_lost_is_not_handed_out(client: Client) -> None:
    held = client.subscribe(credit=10)
    client.deliver(held, 1)
    client.deliver(held, 2)
    (subscribe,) = client.reconnect()
    body = {"receiver": "me", "lost": [1]}
    events = client.told(Verb.REPLY, body, request=subscribe.request, topic="t", worker=0)
    assert [item[0] for item in held.buffer] == [2]
    assert happened.Delivered(held) in events, "whoever waits for it is woken"


def test_every_session_since_the_last_answer_is_named(client: Client) -> None:
    held = client.subscribe(credit=10)
    client.deliver(held, 1)
    names = [bytes([number]) * 13 for number in range(1, 4)]
    for name in names:
        client.about = {"session": name}
        (subscribe,) = client.reconnect()
    assert holding(subscribe) == ((b"s" * 13, *names[:-1]), {1: 1})
    client.joined(subscribe)
    (subscribe,) = client.reconnect()
    assert holding(subscribe) == ((names[-1],), {1: 1})


def test_an_application_that_never_reports_holds_no_more_than_can_be_named(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HOLDING_MAX", 3)
    held = client.subscribe(credit=10)
    for sequence in range(1, 7):
        client.deliver(held, sequence)
    held.take(4)
    held.take_one()
    assert held.taken == {3: 1, 4: 1, 5: 1}
    (subscribe,) = client.reconnect()
    assert len(holding(subscribe)[1]) == 3


def test_what_a_pull_asked_for_is_not_kept_for_the_next(client: Client) -> None:
    held = client.subscribe(credit=0)
    client.deliver(held, 1)
    client.deliver(held, 2)
    held.take(1)
    (subscribe,) = client.reconnect()
    assert holding(subscribe)[1] == {1: 1}, "what was taken is held, what was not waits again"
    client.joined(subscribe)
    assert not held.buffer


def test_an_endpoint_that_the_broker_took_off_is_not_made_again(client: Client) -> None:
    held = client.subscribe()
    (event,) = client.told(Verb.GONE, [held.endpoint, "topic_gone"], topic="t", worker=0)
    assert isinstance(event, happened.Gone) and event.error.code == "topic_gone"
    assert client.reconnect() == []


# --- receipts -----------------------------------------------------------------------------------


def resolved(*receipts: tuple[bytes, int, str, dict[str, str]]) -> list[Any]:
    return [list(receipt) for receipt in receipts]


def test_a_receipt_resolves_its_ticket(client: Client) -> None:
    ticket = client.publish(b"1", b"2", receipt=True)
    (sent,) = client.flush()
    client.accept(sent)
    producer = sent.body[1]
    body = resolved((producer, 2, "failed", {"me": "failed"}), (producer, 1, "ok", {}))
    assert not ticket.is_resolved
    assert client.told(Verb.RESOLVED, body) == [happened.Resolved(ticket)] * 2
    assert ticket.is_resolved
    assert ticket.outcomes == {0: Outcome("ok", {}), 1: Outcome("failed", {"me": "failed"})}
    assert client.told(Verb.RESOLVED, body) == []


def test_receipts_that_are_still_open_are_asked_for_again(client: Client) -> None:
    tickets = [client.publish(b"%d" % n, receipt=True) for n in range(3)]
    (sent,) = client.flush()
    client.accept(sent, 11, 12, 13)
    producer = sent.body[1]
    client.told(Verb.RESOLVED, resolved((producer, 1, "ok", {})))
    (asked,) = client.reconnect()
    assert (asked.verb, asked.body) == (Verb.AWAIT_RECEIPTS, (producer, (2, 3), (12, 13)))
    outcomes = {"outcomes": [[2, "pending", {}], [3, "unknown", {}]]}
    events = client.told(Verb.REPLY, outcomes, request=asked.request, topic="t", worker=0)
    assert events == [happened.Resolved(tickets[2])]
    assert tickets[2].outcomes == {0: Outcome("unknown", {})}
    client.told(Verb.RESOLVED, resolved((producer, 2, "expired", {})))
    assert tickets[1].outcomes == {0: Outcome("expired", {})}


def test_a_receipt_that_nobody_holds_is_not_asked_for(client: Client) -> None:
    client.publish(b"1", receipt=True)
    (sent,) = client.flush()
    client.accept(sent)
    client.tickets.clear()
    gc.collect()
    assert client.reconnect() == []


def test_the_receipt_of_what_was_sent_twice_is_asked_for_at_once(client: Client) -> None:
    client.publish(b"1", receipt=True)
    client.flush()
    (again,) = client.reconnect()
    client.accept(again)
    (asked,) = client.flush()
    assert (asked.verb, asked.body[1]) == (Verb.AWAIT_RECEIPTS, (1,))


def test_open_receipts_have_a_bound_and_those_dropped_do_not_count() -> None:
    client = Client(receipts_max=2)
    client.open()
    client.publish(b"1", b"2", receipt=True)
    (sent,) = client.flush()
    client.accept(sent)
    assert not client.session.admits(1, 1, True)
    assert client.session.admits(1, 1, False)
    client.tickets.clear()
    gc.collect()
    assert client.session.admits(1, 1, True)


# --- what is not of the protocol ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        (Verb.ACCEPTED, [1, 2]),
        (Verb.ACCEPTED, ["x"]),
        (Verb.ACCEPTED, None),
        (Verb.REFUSE, "busy"),
        (Verb.DELIVER, [1, "me", [[1, 1, b"", b"", b""]]]),
        (Verb.DELIVER, [1, "me", [[1, 1]]]),
        (Verb.DELIVER, [1, "me", [["1", 1, b"i", HEADER, b""]]]),
        (Verb.DELIVER, [1, "me", 5]),
        (Verb.RESOLVED, [[b"p"]]),
        (Verb.GONE, []),
    ],
)
def test_what_is_not_of_the_protocol_ends_the_connection_alone(
    client: Client, verb: Verb, body: object
) -> None:
    client.subscribe()
    ticket = client.publish(b"1")
    (sent,) = client.flush()
    (event,) = client.told(verb, body, request=sent.request, topic="t", worker=0)
    assert isinstance(event, happened.Lost)
    subscribe, again = client.reconnect()
    assert (subscribe.verb, again.verb) == (Verb.SUBSCRIBE, Verb.PUBLISH)
    assert client.accept(again) == [happened.Answered(ticket)]


def test_a_verb_of_a_newer_broker_is_passed_over(client: Client) -> None:
    (event,) = client.session.receive(pack_part(200), 0)
    assert isinstance(event, happened.Noted)


def delivery_part(held: Subscription, sequence: int) -> bytes:
    items = [[sequence, 1, b"i" * 16, HEADER, b"x"]]
    body = pack_body([held.endpoint, "me", items])
    return pack_part(Verb.DELIVER, 0, held.topic_bytes, body, worker=0)


def test_the_parts_of_a_frame_are_taken_in_order(client: Client) -> None:
    held = client.subscribe()
    client.publish(b"1")
    (sent,) = client.flush()
    accepted = pack_part(Verb.ACCEPTED, sent.request, b"t", pack_body([9]), worker=0)
    frame = delivery_part(held, 1) + accepted + delivery_part(held, 2)
    kinds = [type(event) for event in client.session.receive(frame, client.now_ms)]
    assert kinds == [happened.Delivered, happened.Answered, happened.Delivered]
    assert [item[0] for item in held.buffer] == [1, 2]


@pytest.mark.parametrize(
    "behind",
    [
        pack_part(Verb.PONG)[:-1],
        pack_part(Verb.PONG)[:10],
        b"\0",
        bytes([VERSION + 1]) + pack_part(Verb.PONG)[1:],
        pack_part(Verb.PONG) * TOGETHER_MAX,
    ],
    ids=["a cut body", "a cut head", "a byte", "another version", "too many"],
)
def test_a_frame_that_is_not_of_the_protocol_ends_the_connection_and_nothing_of_it_is_taken(
    client: Client, behind: bytes
) -> None:
    held = client.subscribe()
    (event,) = client.session.receive(delivery_part(held, 1) + behind, client.now_ms)
    assert isinstance(event, happened.Lost)
    assert not held.buffer
    assert [sent.verb for sent in client.reconnect()] == [Verb.SUBSCRIBE]


def test_an_empty_frame_ends_the_connection_alone(client: Client) -> None:
    (event,) = client.session.receive(b"", client.now_ms)
    assert isinstance(event, happened.Lost)
    assert client.reconnect() == []


# --- composing ----------------------------------------------------------------------------------


def test_ids_rise_with_time_and_have_the_layout_of_version_7() -> None:
    ids = Ids(lambda n: b"\xff" * n)
    made = ids.take(3, 5_000) + ids.take(2, 4_000) + ids.take(1, 6_000)
    assert made == sorted(made) and len(set(made)) == 6
    assert all(len(each) == 16 and each[6] >> 4 == 7 and each[8] >> 6 == 2 for each in made)
    assert int.from_bytes(made[0][:6], "big") == 5_000


def test_a_header_has_the_defaults_of_the_spec() -> None:
    header = make_header("orders", 0)
    assert (header.mode, header.says_expect) == (Mode.DURABLE, False), (
        "that is for the topic to say"
    )
    assert header.max_receivers is None
    assert header.subjects == ("orders",) and not header.receipt


@pytest.mark.parametrize(
    ("wishes", "asked"),
    [
        ({}, False),
        ({"expect": "processed"}, True),
        ({"max_receivers": 1}, True),
        ({"expect": "received", "receipt": False}, False),
        ({"receipt": True}, True),
    ],
)
def test_a_receipt_is_asked_for_where_the_publisher_says_what_counts(
    wishes: dict[str, Any], asked: bool
) -> None:
    assert make_header("t", 0, **wishes).receipt is asked


def test_times_are_given_in_seconds_or_as_datetimes() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    header = make_header("t", 1_000, ttl=2.5, deliver_at=at)
    assert (header.expires_ms, header.deliver_ms) == (3_500, int(at.timestamp()) * 1_000)
    header = make_header("t", 0, expires_at="never", max_receivers=1)
    assert header.expires_ms == limits.TIME_MS_MAX
    with pytest.raises(PeerError, match="time zone"):
        make_header("t", 0, deliver_at=datetime(2030, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    "wishes",
    [
        {"mode": "loud"},
        {"expect": "waiting"},
        {"subject": "a", "subjects": ["b"]},
        {"subjects": "a"},
        {"subject": "a/*"},
        {"ttl": 1, "expires_at": 2},
        {"priority": -1},
        {"mode": "push", "max_receivers": 1},
    ],
)
def test_what_cannot_be_said_of_a_message_is_refused_before_it_is_sent(
    wishes: dict[str, Any],
) -> None:
    with pytest.raises(PeerError):
        make_header("t", 0, **wishes)


def test_a_wish_that_there_is_not_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="colour"):
        make_header("t", 0, colour="red")  # type: ignore[call-arg]


def test_a_header_that_many_messages_share_is_made_once() -> None:
    composer = Composer()
    wishes: Wishes = {"subject": "a", "expect": "processed"}
    first = composer.header("t", 0, wishes)
    assert composer.header("t", 9, wishes) is first
    assert composer.header("u", 9, wishes) == first
    assert composer.header("t", 1, {"ttl": 1}) != composer.header("t", 2, {"ttl": 1})
    assert composer.header("t", 1, {"subjects": ["a", "b"]}).subjects == ("a", "b")


@pytest.mark.parametrize("topic", ["", "a\nb", 7, None, b"t", Verb.PING, ["t"]])
def test_a_header_is_made_for_a_topic_alone(topic: object) -> None:
    composer = Composer()
    composer.header("t", 0, {})
    with pytest.raises((TypeError, ValueError)):
        composer.header(topic, 0, {})  # type: ignore[arg-type]


# --- purity -------------------------------------------------------------------------------------

PURE = [
    "composing",
    "deliveries",
    "events",
    "producing",
    "receiving",
    "session",
    "tickets",
    "ways",
]


@pytest.mark.parametrize("name", PURE)
def test_the_protocol_touches_nothing(name: str) -> None:
    path = tree.ROOT / "sdk" / f"{name}.py"
    touched = {module.partition(".")[0] for module in tree.imports(path)} & IO_MODULES
    assert touched <= {"datetime"}, f"{name} is pure, and imports {sorted(touched)}"
    called = {
        node.func.id
        for node in ast.walk(tree.parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & IO_CALLS, f"{name} is pure, and calls {sorted(called & IO_CALLS)}"
