"""What a message expects that does not say, and for how many receivers it is (spec 2 to 4)."""

import copy
import pickle
from typing import Any

import pytest

from asterism import commands as ask
from asterism.errors import PeerError
from asterism.message import ALL_RECEIVERS, Header, Mode, Status, decode_header
from asterism.rows import Rows
from tests.support.core import CoreBroker

PRODUCER = b"producer-of-open"
OTHERS: dict[str, Any] = {"attributes": {"a": "1"}}


def publish(
    broker: CoreBroker, *fields: dict[str, Any], mode: Mode = Mode.DURABLE, topic: str | None = None
) -> list[int]:
    """Publishes a message for each of these fields in one batch; what they leave out is open."""
    messages = []
    for number, one in enumerate(fields, broker.request() * 1_000):
        rest = {name: value for name, value in one.items() if name != "expect"}
        header = Header(mode, one.get("expect"), ("a/b",), **rest)
        messages.append((number.to_bytes(16, "big"), header.encoded, b"x"))
    command = ask.Publish(b"publisher", broker.request(), tuple(messages))
    broker.do(command, topic)
    answer: Any = broker.answers[b"publisher", command.request]
    assert all(type(result) is int for result in answer.results), answer
    return list(answer.results)


def delivered(broker: CoreBroker, **subscription: Any) -> list[Header]:
    """The headers that a new receiver is sent."""
    broker.subscribe(**subscription)
    return [decode_header(one.header) for one in broker.take()]


# --- the header ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, OTHERS, {"max_receivers": 3}, {"max_receivers": 0}])
def test_a_header_that_leaves_something_open_travels_and_is_copied(fields: dict[str, Any]) -> None:
    made = Header(Mode.DURABLE, None, ("a",), **fields)
    assert not made.says_expect and made.expect is Status.PROCESSED
    for other in (decode_header(made.encoded), copy.copy(made), pickle.loads(pickle.dumps(made))):
        assert other == made and other.encoded == made.encoded
    assert not made.with_attributes({"b": "2"}).says_expect


@pytest.mark.parametrize(
    ("mode", "topic_says", "expected"),
    [
        (Mode.DURABLE, None, Status.PROCESSED),
        (Mode.PUSH, None, Status.SENT),
        (Mode.ONLINE, None, Status.SENT),
        (Mode.DURABLE, Status.SENT, Status.SENT),
        (Mode.PUSH, Status.RECEIVED, Status.RECEIVED),
        (Mode.ONLINE, Status.PROCESSED, Status.PROCESSED),
    ],
)
def test_a_settled_header_says_what_is_expected(
    mode: Mode, topic_says: Status | None, expected: Status
) -> None:
    settled = Header(mode, None, ("a",), {"k": "v"}, priority=3).settled(topic_says, None)
    assert settled == Header(mode, expected, ("a",), {"k": "v"}, priority=3)
    assert settled.says_expect


def test_a_header_that_says_everything_is_left_as_it_is() -> None:
    for header in (
        Header(Mode.DURABLE, Status.SENT, ("a",), max_receivers=2),
        Header(Mode.PUSH, Status.SENT, ("a",)),
    ):
        assert header.settled(Status.PROCESSED, 7) is header


@pytest.mark.parametrize(
    ("said", "topic_says", "expected"),
    [(None, None, None), (None, 1, 1), (2, 1, 2), (ALL_RECEIVERS, 1, None), (0, None, None)],
)
def test_a_settled_header_says_for_how_many_receivers_it_is(
    said: int | None, topic_says: int | None, expected: int | None
) -> None:
    header = Header(Mode.DURABLE, Status.PROCESSED, ("a",), max_receivers=said)
    assert header.settled(None, topic_says).max_receivers == expected


def test_the_number_of_receivers_of_a_topic_is_for_durable_messages_alone() -> None:
    assert Header(Mode.ONLINE, None, ("a",)).settled(None, 1).max_receivers is None


# --- the topic ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 10])
@pytest.mark.parametrize("fields", [{}, OTHERS])
def test_by_default_a_durable_message_is_done_when_it_is_processed(
    rows: Rows, count: int, fields: dict[str, Any]
) -> None:
    broker = CoreBroker(rows)
    sequences = publish(broker, *[fields] * count)
    assert [one.expect for one in delivered(broker, name="r")] == [Status.PROCESSED] * count
    broker.detach()
    broker.subscribe(b"next", name="r")
    again = broker.take(b"next")
    assert [(one.sequence, one.attempt) for one in again] == [(at, 2) for at in sequences]
    broker.processed(*sequences, node=b"next")
    assert not delivered(broker, name="r")


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.ONLINE])
def test_by_default_a_push_or_online_message_is_done_when_it_is_sent(mode: Mode) -> None:
    broker = CoreBroker()
    broker.subscribe()
    publish(broker, {}, {}, OTHERS, mode=mode)
    taken = broker.take()
    assert [decode_header(one.header).expect for one in taken] == [Status.SENT] * 3
    assert broker.describe()["held"] == 0


@pytest.mark.parametrize("count", [1, 10])
def test_a_topic_says_what_its_messages_expect_and_for_how_many_they_are(
    rows: Rows, count: int
) -> None:
    broker = CoreBroker(rows, expect="received", max_receivers=1)
    sequences = publish(broker, *[{}] * count)
    own = publish(broker, {"expect": Status.SENT}, {"max_receivers": 0}, {"max_receivers": 2})
    broker.subscribe(name="r")
    headers = {one.sequence: decode_header(one.header) for one in broker.take()}
    assert {(headers[at].expect, headers[at].max_receivers) for at in sequences} == {
        (Status.RECEIVED, 1)
    }
    assert [(headers[at].expect, headers[at].max_receivers) for at in own] == [
        (Status.SENT, 1),
        (Status.RECEIVED, None),
        (Status.RECEIVED, 2),
    ]
    broker.received(*sequences)
    broker.subscribe(b"other", name="other")
    assert {one.sequence for one in broker.take(b"other")} == {own[1], own[2]}


def test_a_change_of_the_topic_holds_for_what_is_published_afterwards(rows: Rows) -> None:
    broker = CoreBroker(rows)
    publish(broker, {}, {})
    broker.configure(expect="sent", max_receivers=1)
    publish(broker, {}, {})
    broker.restart()
    headers = delivered(broker, name="r")
    assert [(one.expect, one.max_receivers) for one in headers] == [
        (Status.PROCESSED, None),
        (Status.PROCESSED, None),
        (Status.SENT, 1),
        (Status.SENT, 1),
    ]


def test_what_a_topic_fills_in_cannot_make_a_message_that_is_refused() -> None:
    """A message that says that it is for all cannot live for ever, whatever its topic says."""
    broker = CoreBroker(max_receivers=1)
    with pytest.raises(PeerError) as caught:
        broker.publish(max_receivers=ALL_RECEIVERS, expires_ms=2**53)
    assert caught.value.code == "bad_request"


def test_a_header_that_is_none_is_refused_by_itself() -> None:
    broker = CoreBroker()
    good = Header(Mode.DURABLE, None, ("a",)).encoded
    messages = tuple((bytes(15) + bytes([at]), held, b"") for at, held in enumerate((good, b"x")))
    command = ask.Publish(b"publisher", broker.request(), messages)
    broker.do(command)
    answer: Any = broker.answers[b"publisher", command.request]
    accepted, refusal = answer.results
    assert type(accepted) is int and refusal.code == "bad_request"


def test_a_dead_letter_expects_what_its_message_expected(rows: Rows) -> None:
    broker = CoreBroker(rows, dead_letter="dead")
    with broker.on("dead"):
        broker.configure(expect="sent", dead_letter=None)
    (sequence,) = publish(broker, {})
    broker.subscribe(name="r")
    broker.take()
    broker.failed(sequence)
    with broker.on("dead"):
        broker.subscribe(b"undertaker", name="r")
        (letter,) = broker.take(b"undertaker")
    assert decode_header(letter.header).expect is Status.PROCESSED
