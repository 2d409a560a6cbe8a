"""Errors (spec section 9): every code of the core, what it says, and that it changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from asterism import PeerError, RejectNew, limits
from asterism import commands as ask
from asterism.actors.shard import Shard
from asterism.effects import Accepted, EndpointGone, Refusal, Refuse
from asterism.errors import ADVICE, ERRORS
from asterism.message import Status
from tests.support.core import PRODUCER, CoreBroker, header

# The front-end gives these: who may come in, and in which version, is decided before a topic is
# asked.
OF_THE_FRONT_END = {"unsupported_version", "unauthorized", "forbidden"}

ID = bytes(16)
UNKNOWN = b"unknown producer"
BAD_TEXT = "\ud800"  # half a surrogate pair: no UTF-8

Act = Callable[[CoreBroker], object]


def tell(broker: CoreBroker, kind: Any, *fields: Any, topic: str | None = None) -> dict[str, Any]:
    """Asks something; a refusal is a ``PeerError``."""
    return broker.ask(kind(b"peer", broker.request(), *fields), topic)


def publish(broker: CoreBroker, producer: bytes | None, first: int, topic: str = "orders") -> None:
    message = (ID, header().encoded, b"")
    tell(broker, ask.Publish, (message,), producer, first, topic=topic)


def refusal_of(act: Act, broker: CoreBroker) -> PeerError:
    with pytest.raises(PeerError) as raised:
        act(broker)
    return raised.value


def state_of(broker: CoreBroker) -> dict[bytes, bytes]:
    """What is stored, but for the answers to producers and the counters that ``describe`` shows."""
    return {
        key: value
        for key, value in broker.rows.scan(b"", b"\xff" * 64)
        if key[:1] == b"\x00" or key[5:6] not in b"ac"
    }


# --- every code, from a topic that is in use --------------------------------------------------

PARKED, HELD, DRAFT, NEVER = 1, 3, 4, 999


def topic_in_use() -> CoreBroker:
    """A topic with something of everything: a holder, a bystander, a draft, a parked message."""
    broker = CoreBroker(max_payload=8)
    broker.subscribe(b"holder", name="holder")
    assert broker.publish(b"parked") == PARKED
    broker.failed(PARKED, node=b"holder")
    assert broker.publish(b"held") == HELD
    broker.subscribe(b"bystander", "elsewhere", name="bystander", credit=0)
    assert broker.draft() == DRAFT
    return broker


REFUSED: list[tuple[str, str, Act]] = [
    # What is asked cannot be understood.
    ("bad_request", "a producer's id", lambda b: publish(b, b"short", 1)),
    ("bad_request", "a number of nought", lambda b: publish(b, PRODUCER, 0)),
    ("bad_request", "a topic's name", lambda b: publish(b, None, 1, "bad\nname")),
    ("bad_request", "a node", lambda b: b.ask(ask.Stats(b"", 1))),
    ("bad_request", "a request", lambda b: b.ask(ask.Stats(b"peer", -1))),
    ("bad_request", "a name", lambda b: b.create_receiver(BAD_TEXT, "a")),
    ("bad_request", "a reserved name", lambda b: b.create_receiver("~x", "a")),
    ("bad_request", "a setting", lambda b: b.configure(no_such_setting=1)),
    ("bad_request", "a setting's value", lambda b: b.configure(concurrency=0)),
    ("bad_request", "its own dead letters", lambda b: b.configure(dead_letter="orders")),
    ("bad_request", "a status", lambda b: tell(b, ask.Report, 1, Status.SENT, (HELD,))),
    ("bad_request", "no sequence", lambda b: b.processed(node=b"holder")),
    ("bad_request", "a wait", lambda b: tell(b, ask.Order, -1)),
    ("bad_request", "a seek", lambda b: b.seek("holder", sequence=1, time_ms=1)),
    ("bad_request", "a credit", lambda b: b.subscribe(b"new", credit=limits.CREDIT_MAX + 1)),
    ("bad_interest", "no interest", lambda b: b.subscribe(b"new", ())),
    ("bad_interest", "an empty interest", lambda b: b.subscribe(b"new", "//")),
    ("bad_interest", "of a new receiver", lambda b: b.create_receiver("new", "")),
    ("bad_subject", "an empty subject", lambda b: b.publish(subject="/")),
    ("bad_subject", "a wildcard", lambda b: b.publish(subject="a/*")),
    # What it is about is not there.
    ("no_such_topic", "described", lambda b: tell(b, ask.Describe, topic="nowhere")),
    ("no_such_topic", "deleted", lambda b: b.delete_topic("nowhere")),
    ("no_such_topic", "awaited", lambda b: tell(b, ask.AwaitReceipts, ID, (1,), topic="nowhere")),
    ("no_such_receiver", "an endpoint", lambda b: tell(b, ask.Pull, 7, 1)),
    ("no_such_receiver", "a reporter", lambda b: b.processed(HELD, node=b"stranger")),
    ("no_such_receiver", "an extender", lambda b: b.extend(0, HELD, node=b"stranger")),
    ("no_such_receiver", "a report by name", lambda b: b.processed(HELD, receiver="nobody")),
    ("no_such_receiver", "deleted", lambda b: b.delete_receiver("nobody")),
    ("no_such_receiver", "moved", lambda b: b.seek("nobody")),
    ("no_such_receiver", "interests", lambda b: b.set_interests("a", node=b"stranger")),
    ("no_such_message", "fetched", lambda b: b.fetch(NEVER)),
    ("no_such_message", "renewed", lambda b: b.renew(NEVER)),
    ("no_such_message", "abandoned", lambda b: b.abandon(NEVER)),
    ("no_such_message", "abandoned by one", lambda b: b.abandon(NEVER, "holder")),
    ("no_such_message", "completed", lambda b: b.complete(NEVER)),
    ("no_such_message", "failed", lambda b: b.fail(NEVER)),
    ("no_such_message", "set", lambda b: b.set_draft(NEVER)),
    # It is there, but not so that this could be done.
    ("wrong_state", "a draft is read", lambda b: b.fetch(DRAFT)),
    ("wrong_state", "a draft is completed", lambda b: b.complete(DRAFT)),
    ("wrong_state", "renewed in flight", lambda b: b.renew(HELD)),
    ("wrong_state", "abandoned where not parked", lambda b: b.abandon(HELD, "holder")),
    ("wrong_state", "set in flight", lambda b: b.set_draft(HELD)),
    ("wrong_state", "set when parked", lambda b: b.set_draft(PARKED)),
    ("wrong_state", "completed when parked", lambda b: b.complete(PARKED)),
    ("wrong_state", "failed and not active", lambda b: b.fail(HELD)),
    ("wrong_state", "an endpoint twice", lambda b: b.subscribe(b"holder")),
    ("wrong_state", "a receiver twice", lambda b: b.create_receiver("holder", "a")),
    ("wrong_state", "another kind", lambda b: b.subscribe(b"new", name="holder", durable=False)),
    ("wrong_state", "an unknown producer", lambda b: publish(b, UNKNOWN, 2)),
    ("topic_exists", "made again", lambda b: b.create_topic("orders")),
    # It may not be taken.
    ("no_receiver", "a push", lambda b: b.publish(subject="elsewhere/too", mode="push")),
    ("too_large", "a payload", lambda b: b.publish(b"123456789")),
    ("too_large", "a draft's payload", lambda b: b.set_draft(DRAFT, b"123456789")),
    ("too_large", "an empty batch", lambda b: tell(b, ask.Publish, ())),
    ("busy", "a gap", lambda b: publish(b, PRODUCER, 4)),
]


@pytest.mark.parametrize(
    ("code", "act"),
    [pytest.param(code, act, id=f"{code}: {case}") for code, case, act in REFUSED],
)
def test_a_refusal_has_its_code_says_what_was_wrong_and_changes_nothing(
    code: str, act: Act
) -> None:
    broker = topic_in_use()
    broker.set_interests("a/**", node=b"holder")  # so that a push elsewhere finds nobody
    before, rows = broker.describe(), state_of(broker)
    error = refusal_of(act, broker)
    assert error.code == code
    assert error.detail and "\n" not in error.detail
    assert broker.describe() == before
    assert state_of(broker) == rows


def test_overflow_is_refused_and_changes_nothing() -> None:
    broker = CoreBroker(overflow=RejectNew(1))
    broker.publish(b"1")
    before, rows = broker.describe(), state_of(broker)
    error = refusal_of(lambda b: b.publish(b"2"), broker)
    assert error.code == "overflow" and error.detail
    assert (broker.describe(), state_of(broker)) == (before, rows)


def test_a_draft_that_would_overflow_stays_a_draft() -> None:
    broker = CoreBroker(overflow=RejectNew(1))
    broker.publish(b"1")
    sequence = broker.draft()
    before, rows = broker.describe(), state_of(broker)
    assert refusal_of(lambda b: b.set_draft(sequence), broker).code == "overflow"
    assert (broker.describe(), state_of(broker)) == (before, rows)


@pytest.mark.parametrize("mode", ["push", "online", "durable"])
def test_a_duplicate_is_refused_and_changes_nothing(mode: str) -> None:
    broker = CoreBroker(unique=True)
    broker.subscribe(credit=0)
    broker.publish(b"same")
    before, rows = broker.describe(), state_of(broker)
    error = refusal_of(lambda b: b.publish(b"same", mode=mode), broker)
    assert error.code == "duplicate" and error.detail
    assert (broker.describe(), state_of(broker)) == (before, rows)


def test_not_yours_is_said_of_each_report_and_changes_nothing() -> None:
    broker = topic_in_use()
    before, rows = broker.describe(), state_of(broker)
    assert broker.processed(HELD, NEVER, node=b"bystander") == {
        HELD: "not_yours",
        NEVER: "no_such_message",
    }
    assert (broker.describe(), state_of(broker)) == (before, rows)


def test_a_report_that_is_refused_in_part_is_done_for_the_rest() -> None:
    broker = topic_in_use()
    mine = broker.publish(b"mine", subject="elsewhere", max_receivers=None)
    broker.grant(1, b"bystander")
    assert broker.processed(HELD, mine, node=b"bystander") == {HELD: "not_yours"}
    assert broker.extend(0, mine, node=b"bystander") == {}
    assert broker.describe()["sent"] == 1 + 1  # what the holder has: its own, and its copy of mine


def test_waiting_orders_and_pulls_are_told_that_the_topic_is_gone() -> None:
    broker = CoreBroker()
    broker.subscribe(b"puller", credit=0)
    pull, order = broker.pull(1, 60_000, node=b"puller"), broker.order(60_000)
    broker.delete_topic()
    for answer in (broker.answers[b"puller", pull], broker.answers[b"worker", order]):
        assert isinstance(answer, Refuse)
        assert answer.code == "topic_gone" and answer.detail
    assert broker.gone == [EndpointGone(b"puller", 1, "topic_gone")]


def test_a_waiting_order_is_told_that_the_topic_was_cleared() -> None:
    broker = CoreBroker()
    order = broker.order(60_000)
    broker.clear()
    answer = broker.answers[b"worker", order]
    assert isinstance(answer, Refuse) and (answer.code, bool(answer.detail)) == ("topic_gone", True)


def test_without_auto_create_a_topic_must_exist() -> None:
    broker = CoreBroker()
    broker.shard = Shard(broker.rows, broker.defaults, auto_create=False)
    for act in (lambda b: b.publish(), lambda b: b.subscribe(), lambda b: b.draft()):
        error = refusal_of(act, broker)
        assert error.code == "no_such_topic" and "orders" in error.detail
    assert state_of(broker) == {}
    broker.create_topic("orders")
    broker.subscribe()


@pytest.mark.parametrize(
    ("bound", "act"),
    [
        ("ENDPOINTS_MAX", lambda b: b.subscribe(b"one too many")),
        ("PULLS_MAX", lambda b: tell(b, ask.Order, 1_000)),
        ("MEMORY_MESSAGES_MAX", lambda b: b.publish(mode="push")),
        ("MEMORY_MESSAGES_MAX", lambda b: b.publish(mode="online")),
    ],
)
def test_a_bound_that_is_reached_is_busy(
    monkeypatch: pytest.MonkeyPatch, bound: str, act: Act
) -> None:
    broker = CoreBroker()
    broker.subscribe(name="holder")
    broker.publish(mode="push")
    broker.order(60_000)
    monkeypatch.setattr(limits, bound, 1)
    before, rows = broker.describe(), state_of(broker)
    error = refusal_of(act, broker)
    assert error.code == "busy" and error.detail
    assert (broker.describe(), state_of(broker)) == (before, rows)


def test_busy_comes_with_a_hint_when_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = CoreBroker()
    broker.subscribe()
    monkeypatch.setattr(limits, "ENDPOINTS_MAX", 1)
    broker.do(ask.Subscribe(b"peer", 7, 1, ("a",)))
    answer = broker.answers[b"peer", 7]
    assert isinstance(answer, Refuse)
    assert answer.code == "busy" and answer.retry_after_ms is not None


def test_a_damaged_row_is_internal() -> None:
    broker = CoreBroker()
    sequence = broker.publish()
    broker.rows.put(broker.actor.keys.pool(sequence), b"\x00damaged")
    error = refusal_of(lambda b: b.fetch(sequence), broker)
    assert error.code == "internal" and error.detail


def test_every_code_that_the_core_gives_is_shown_here() -> None:
    elsewhere = {"overflow", "duplicate", "not_yours", "topic_gone", "internal"}
    assert {code for code, _, _ in REFUSED} | elsewhere | OF_THE_FRONT_END == set(ERRORS)


# --- a command that asks for no answer --------------------------------------------------------


@pytest.mark.parametrize("command", [ask.Grant(b"stranger", 5, 1, 1), ask.Detach(b"stranger", 5)])
@pytest.mark.parametrize("topic", ["orders", "nowhere"])
def test_what_asks_for_no_answer_gets_none(command: Any, topic: str) -> None:
    broker = topic_in_use()
    before = broker.describe()
    assert broker.do(command, topic) == []
    assert broker.describe() == before
    assert set(broker.shard.topics) == {"orders"}


# --- malformed messages within a batch --------------------------------------------------------

GOOD = (ID, header().encoded, b"good")
MALFORMED: list[tuple[str, str, Any]] = [
    ("bad_request", "no tuple", [ID, header().encoded, b""]),
    ("bad_request", "too short", (ID, header().encoded)),
    ("bad_request", "too long", (ID, header().encoded, b"", b"")),
    ("bad_request", "nothing", None),
    ("bad_request", "an id too short", (ID[:15], header().encoded, b"")),
    ("bad_request", "an id of text", ("0123456789abcdef", header().encoded, b"")),
    ("bad_request", "a payload of text", (ID, header().encoded, "text")),
    ("bad_request", "a header of text", (ID, "text", b"")),
    ("bad_request", "no MessagePack", (ID, b"\xc1", b"")),
    ("bad_request", "cut short", (ID, header().encoded[:-1], b"")),
    ("bad_request", "with more behind it", (ID, header().encoded + b"\x00", b"")),
    ("bad_request", "no array", (ID, b"\x01", b"")),
    ("bad_request", "an empty array", (ID, b"\x90", b"")),
    ("bad_request", "no mode", (ID, b"\x93\x09\x04\x91\xa1a", b"")),
    ("bad_request", "no expectation", (ID, b"\x93\x02\x01\x91\xa1a", b"")),
    ("bad_subject", "no subjects", (ID, b"\x93\x02\x04\x90", b"")),
    ("bad_subject", "a subject of bytes", (ID, b"\x93\x02\x04\x91\xc4\x01a", b"")),
    ("too_large", "an empty header", (ID, b"", b"")),
    ("too_large", "a header too long", (ID, b"\x90" * (limits.HEADER_BYTES_MAX + 1), b"")),
    ("too_large", "a payload too long", (ID, header().encoded, b"123456789")),
]


@pytest.mark.parametrize(
    ("code", "bad"), [pytest.param(code, bad, id=case) for code, case, bad in MALFORMED]
)
def test_a_malformed_message_is_refused_by_itself(code: str, bad: Any) -> None:
    broker = CoreBroker(max_payload=8)
    broker.do(ask.Publish(b"peer", 1, (GOOD, bad, GOOD), PRODUCER))
    answer = broker.answers[b"peer", 1]
    assert isinstance(answer, Accepted)
    first, refusal, last = answer.results
    assert isinstance(first, int) and isinstance(last, int)
    assert isinstance(refusal, Refusal)
    assert refusal.code == code and refusal.detail
    assert broker.describe()["held"] == 2
    broker.subscribe()
    assert broker.taken() == [b"good", b"good"]


def test_a_refused_message_takes_no_sequence() -> None:
    broker = CoreBroker(max_payload=8)
    results = broker.publish_many([b"1", b"too long to take", b"3"])
    assert isinstance(results[0], int)
    assert results[2] == results[0] + 1


def test_a_batch_may_be_as_large_as_its_bound_and_no_larger() -> None:
    broker = CoreBroker()
    broker.do(ask.Publish(b"peer", 1, (GOOD,) * limits.BATCH_MESSAGES_MAX, PRODUCER))
    assert broker.describe()["held"] == limits.BATCH_MESSAGES_MAX
    with pytest.raises(PeerError, match="too_large"):
        ask.Publish(b"peer", 2, (GOOD,) * (limits.BATCH_MESSAGES_MAX + 1), PRODUCER)


def test_an_error_says_its_code_its_detail_and_what_to_do() -> None:
    error = refusal_of(lambda b: b.publish(b"123456789"), CoreBroker(max_payload=8))
    assert str(error).startswith("too_large: the payload has 9 bytes")
    assert str(error).endswith(ADVICE["too_large"])
