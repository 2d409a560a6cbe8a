"""Whatever comes in, the core answers with a value, an effect, or a code from the table.

Every public constructor and decoder of the core gets structures of the wrong type, length, encoding
and size, and good ones with one thing wrong; what can be built at all is handed to a topic that has
a message in every state. Any exception but ``PeerError`` is a remote kill switch. A command that is
refused has changed no row, and the topic works on.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asterism import commands as ask
from asterism import limits
from asterism.effects import Accepted, Refusal, Refuse
from asterism.errors import ERRORS, PeerError
from asterism.message import Header, Mode, Status, decode_header
from asterism.settings import BackoffMs, DropOld, RejectNew, TopicSettings
from asterism.storage import keys, records
from tests.support.core import CoreBroker, header

# --- values -----------------------------------------------------------------------------------

texts = st.text(max_size=12) | st.text(st.characters(categories=["Cs", "Cc", "Ll"]), max_size=6)
# Made by a function: hypothesis prints what it samples from, and the largest cannot be printed.
huge = st.sampled_from([31, 32, 53, 63, 64, 400, 20_000]).map(lambda bits: 2**bits)
numbers = st.integers() | huge | huge.map(lambda number: -number) | st.integers(-2, 12)
scalars = st.none() | st.booleans() | numbers | st.floats() | texts | st.binary(max_size=20)
map_keys = texts | numbers | st.binary(max_size=4) | st.booleans() | st.none()
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(map_keys, inner, max_size=4)
    ),
    max_leaves=10,
)
# Too long for one bound or another.
long = st.sampled_from([256, 1_025, 10_001]).flatmap(
    lambda size: st.sampled_from(["a", "é", "a/", b"a", (1,), ("a",), (b"",)]).map(
        lambda unit: unit * size  # type: ignore[operator]
    )
)
wild = anything | long

COMMANDS: list[type[ask.Request]] = [
    kind
    for kind in vars(ask).values()
    if isinstance(kind, type) and issubclass(kind, ask.Request) and kind is not ask.Request
]
SETTING_NAMES = [held.name for held in fields(TopicSettings)]
setting_values = (
    st.integers(-1, 5)
    | st.booleans()
    | st.sampled_from(["back", "front", "full", "none", "orders", "graves", RejectNew(2)])
    | st.builds(DropOld, numbers)
    | st.builds(BackoffMs, numbers, numbers)
    | anything
)
changes = st.dictionaries(st.sampled_from(SETTING_NAMES) | texts, setting_values, max_size=3)
incoming = st.tuples(
    st.binary(min_size=16, max_size=16) | anything,
    st.builds(lambda mode: header("a/b", mode=mode).encoded, st.sampled_from(["push", "durable"]))
    | anything,
    st.binary(max_size=8) | anything,
)

sequences = st.integers(0, 12)
holdings = st.lists(st.tuples(sequences, st.integers(1, 3)), max_size=3).map(
    lambda held: ((b"consumer",), tuple(one for one, _ in held), tuple(one for _, one in held))
)
# For each field what would do; what is not listed has no good value of its own.
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "node": st.sampled_from([b"consumer", b"stranger"]),
    "request": st.integers(10_000, 10_010),
    "messages": st.lists(incoming, min_size=1, max_size=3).map(tuple),
    "producer": st.none() | st.just(b"p" * 16),
    "first": st.integers(1, 3),
    "settled": st.integers(0, 3),
    "numbers": st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple),
    "endpoint": st.integers(1, 2),
    "interests": st.sampled_from([("**",), ("a/*", "b"), ["c"]]),
    "name": st.sampled_from(["anna", "berta"]),
    "group": st.none() | st.just("crew"),
    "durable": st.none() | st.booleans(),
    "echo": st.booleans(),
    "credit": st.integers(1, 3),
    "less": st.integers(0, 3),
    "holding": st.none() | holdings,
    "count": st.integers(1, 3),
    "wait_ms": st.integers(0, 3),
    "waiting": st.integers(0, 3),
    "status": st.sampled_from([Status.RECEIVED, Status.PROCESSED, Status.FAILED]),
    "sequences": st.lists(sequences, min_size=1, max_size=3).map(tuple),
    "sequence": sequences,
    "reason": texts,
    "receiver": st.none() | st.just("anna"),
    "attempts": st.none(),
    "timeout_ms": st.integers(0, 3),
    "time_ms": st.none(),
    "after": st.just(""),
    "changes": changes,
    "inherit": st.lists(st.sampled_from(SETTING_NAMES), max_size=2).map(tuple),
    "id": st.binary(min_size=16, max_size=16),
    "priority": st.none() | st.integers(0, 3),
    "payload": st.binary(max_size=8),
    "attributes": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    "sent_timeout_ms": st.none() | st.integers(1, 9),
    "received_timeout_ms": st.none() | st.integers(1, 9),
}


@st.composite
def command_fields(draw: st.DrawFn, kind: type[ask.Request]) -> dict[str, Any]:
    """Fields for a command: good ones, of which a few are replaced by anything."""
    names = [held.name for held in fields(kind)]
    drawn = {name: draw(GOOD[name]) for name in names}
    for name in draw(st.sets(st.sampled_from(names), max_size=2)):
        drawn[name] = draw(wild)
    return drawn


def refusal(act: Callable[[], Any]) -> tuple[Any, str | None]:
    """What came of it, and the code that it was refused with."""
    try:
        return act(), None
    except PeerError as error:
        assert error.code in ERRORS
        # It goes over a wire as UTF-8, and into a log as a line.
        str(error).encode()
        assert "\n" not in error.detail and len(error.detail) < 10_000
        return None, error.code


# --- a topic with something in every state ------------------------------------------------------


def lively_broker() -> CoreBroker:
    broker = CoreBroker(max_attempts=1)
    broker.subscribe(name="anna", interests="a/**", credit=3)
    broker.publish(b"parked")
    broker.publish(b"received")
    broker.publish(b"sent to all", max_receivers=None)
    parked, received, _ = (delivered.sequence for delivered in broker.take())
    broker.failed(parked)
    broker.received(received)
    broker.publish(b"pushed", mode="push")
    broker.publish(b"waiting", receipt=True)
    broker.publish(b"waiting for two", max_receivers=2)
    broker.publish(b"online", mode="online")
    broker.publish(b"delayed", deliver_ms=broker.now_ms + 10)
    for _ in range(2):
        draft = broker.ask(ask.Draft(b"worker", broker.request(), b"d" * 16))["sequence"]
    broker.ask(ask.SetDraft(b"worker", broker.request(), draft, b"work"))
    broker.ask(ask.Order(b"worker", broker.request(), 0))
    return broker


def all_rows(broker: CoreBroker) -> list[tuple[bytes, bytes]]:
    return list(broker.rows.scan(b"\x00", b"\xff"))


def round_trip(broker: CoreBroker) -> None:
    """A good message goes its way: published, sent, processed."""
    node = b"a good consumer"
    broker.subscribe(node, "round/trip", name="round", credit=1)
    sequence = broker.publish(b"good", "round/trip", expires_ms=None)
    (delivered,) = broker.take(node)
    assert (delivered.sequence, delivered.payload) == (sequence, b"good")
    assert broker.processed(sequence, node=node) == {}
    broker.detach(node)


def perform(broker: CoreBroker, topic: Any, command: Any) -> bool:
    """Hands a command to the shard; was it refused?"""
    broker.shard.handle(topic, command, broker.now_ms)
    refused = False
    for effect in broker.end_turn():
        if isinstance(effect, Refuse):
            assert (effect.node, effect.request) == (command.node, command.request)
            refused = True
        if isinstance(effect, Accepted):
            assert len(effect.results) == len(command.messages)
            for result in effect.results:
                assert not isinstance(result, Refusal) or result.code in ERRORS
    return refused


# --- commands -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_a_command_is_done_or_refused_with_nothing_done(
    kind: type[ask.Request], data: st.DataObject
) -> None:
    drawn = data.draw(command_fields(kind))
    command, code = refusal(lambda: kind(**drawn))
    if code is not None:
        return
    broker = lively_broker()
    before = all_rows(broker)
    if perform(broker, broker.topic, command):
        assert all_rows(broker) == before, "a refused command has written something"
        round_trip(broker)
    else:
        # Whatever it has done, the topic is there to be asked, also after a restart.
        broker.shard.tick(broker.now_ms)
        broker.end_turn()
        broker.restart()
        refusal(broker.describe)


@given(
    wild, st.sampled_from([ask.Describe, ask.DeleteTopic, ask.Clear, ask.Stats, ask.CreateTopic])
)
def test_a_topic_is_named_well_or_refused(topic: Any, kind: type[ask.Request]) -> None:
    broker = CoreBroker()
    perform(broker, topic, kind(b"node", 10_000))
    round_trip(broker)


@given(st.lists(incoming | wild, min_size=1, max_size=4).map(tuple), st.booleans())
def test_each_message_of_a_batch_is_accepted_or_refused(messages: Any, named: bool) -> None:
    broker = lively_broker()
    command = ask.Publish(b"node", 10_000, messages, b"p" * 16 if named else None)
    assert not perform(broker, broker.topic, command)
    # The same again is the same answer, if its producer is known.
    first = broker.answers[b"node", 10_000]
    if named:
        assert not perform(broker, broker.topic, command)
        assert broker.answers[b"node", 10_000] == first
    round_trip(broker)


@given(changes, st.booleans())
def test_settings_of_a_topic_are_taken_whole_or_not_at_all(values: Any, fresh: bool) -> None:
    broker = lively_broker()
    before = all_rows(broker)
    kind = ask.CreateTopic if fresh else ask.Configure
    command, code = refusal(lambda: kind(b"node", 10_000, values))
    if code is not None or perform(broker, "fresh" if fresh else broker.topic, command):
        assert all_rows(broker) == before
        round_trip(broker)


def test_a_status_must_be_one_and_not_only_equal_one() -> None:
    for status in (3, 4.0, 5, True, "processed", None, Status.SENT, Status.UNREACHABLE):
        _, code = refusal(lambda status=status: ask.Report(b"n", 1, 1, status, (1,)))  # type: ignore[misc]
        assert code == "bad_request"


# --- headers ------------------------------------------------------------------------------------

HEADER_FIELDS = (
    "mode", "expect", "subjects", "attributes", "max_receivers", "expires_ms", "priority",
    "deliver_ms", "ordering_key", "receipt",
)  # fmt: skip
good_headers = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(Mode),
        "expect": st.sampled_from([Status.SENT, Status.RECEIVED, Status.PROCESSED]),
        "subjects": st.lists(st.sampled_from(["a", "a/b", "ü/**x"]), min_size=1, max_size=3).map(
            tuple
        ),
    },
    optional={
        "attributes": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        "max_receivers": st.none() | st.integers(1, 3),
        "expires_ms": st.none() | st.integers(0, limits.TIME_MS_MAX),
        "priority": st.none() | st.integers(0, limits.PRIORITY_MAX),
        "deliver_ms": st.none() | st.integers(0, limits.TIME_MS_MAX),
        "ordering_key": st.none() | st.text(min_size=1, max_size=4),
        "receipt": st.booleans(),
    },
)
spoilt = st.dictionaries(st.sampled_from(HEADER_FIELDS), wild, max_size=2)


@given(good_headers, spoilt)
def test_a_header_is_built_or_refused(values: dict[str, Any], bad: dict[str, Any]) -> None:
    built, code = refusal(lambda: Header(**{**values, **bad}))
    if code is None:
        # What was built is what the other side reads.
        assert decode_header(built.encoded) == built
        assert len(built.encoded) <= limits.HEADER_BYTES_MAX


packable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | texts
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def packed(value: object) -> bytes:
    encoded: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return encoded


near_headers = st.tuples(
    st.integers(-1, 4) | packable,
    st.integers(0, 6) | packable,
    st.lists(texts | st.sampled_from(["a", "b/c", "*"]), max_size=3) | packable,
).flatmap(lambda front: st.lists(packable, max_size=9).map(lambda rest: packed([*front, *rest])))


@st.composite
def mutated_headers(draw: st.DrawFn) -> bytes:
    """A good header with some bytes changed, cut, doubled or added."""
    values: dict[str, Any] = draw(good_headers)
    if values["mode"] is not Mode.DURABLE:
        values = {**values, "max_receivers": None, "expires_ms": None}
    elif values.get("max_receivers") is None:
        values = {**values, "expires_ms": None}
    encoded = bytearray(Header(**values).encoded)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(encoded)))
        length = draw(st.integers(0, 3))
        encoded[place : place + length] = draw(st.binary(max_size=3))
    return bytes(encoded)


@given(st.binary(max_size=60) | near_headers | mutated_headers() | packable.map(packed) | wild)
@example(b"\xdd\xff\xff\xff\xff")  # an array of four thousand million
@example(b"\x91" * 10_000)
@example(b"\x93\x02\x04\x91\xa1a" + b"\x00" * 70_000)
@example(b"\xc7\x08\xff" + b"\x00" * 8)  # a timestamp
@example(packed([2, 4, ["a"], {b"a": "b"}]))
@example(packed([2, 4, ["a"], {}, True]))
def test_a_header_is_decoded_or_refused(encoded: Any) -> None:
    decoded, code = refusal(lambda: decode_header(encoded))
    if code is None:
        assert decoded.encoded == encoded
        assert decode_header(decoded.encoded) == decoded


# --- rows ---------------------------------------------------------------------------------------

good_record = records.encode_record(
    records.Record(1, 1, 2, 3, 4, 5 << 64 | 6, 7, b"p" * 16, 8, b"i" * 16, b"header", b"payload")
)
good_page = records.encode_page(records.PageRecord(2, 16, 1, 2, [(3, 1), (4, 2)]))
good_due = keys.TopicKeys(7).due(1, 2, 3, 4)
good_row = records.pack("anna", ["**"], None, 5)
row_bytes = st.binary(max_size=80) | st.builds(
    lambda row, place, length, put: row[:place] + put + row[place + length :],
    st.sampled_from([good_record, good_page, good_due, good_row]),
    st.integers(0, 90),
    st.integers(0, 5),
    st.binary(max_size=5),
)


@given(row_bytes)
@example(b"\x02" + b"\x00" * 20 + b"\xff\xff\xff\xff")  # a page of four thousand million
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x91" * 10_000)
def test_a_row_is_decoded_or_said_to_be_damaged(row: bytes) -> None:
    for decode in (
        records.decode_record,
        records.decode_page,
        records.decode_exception,
        keys.read_due,
        lambda row: records.unpack(row, 5, 4),
        records.decode_floor,
    ):
        _, code = refusal(lambda decode=decode: decode(row))  # type: ignore[misc]
        assert code in (None, "internal")


@given(row_bytes)
def test_a_record_that_is_decoded_is_encoded_to_the_same_bytes(row: bytes) -> None:
    record, code = refusal(lambda: records.decode_record(row))
    if code is None:
        assert records.encode_record(record) == row
