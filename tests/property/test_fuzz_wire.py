"""Whatever comes in frames is read or refused with a code: nothing else may be raised.

Any other exception would end a process of the broker, so that a client could stop it at will.
"""

from collections.abc import Callable
from typing import Any

import msgpack
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asterism import PeerError, wire
from asterism.commands import Request
from asterism.errors import ERRORS
from asterism.message import Header, Mode, Status
from asterism.options import TOPIC_NAMES
from asterism.wire import COMMANDS, Verb

# A loaded machine is not a failure.
quiet = settings(deadline=None, max_examples=300)
NODE = bytes(wire.NODE_BYTES)
ID = b"i" * 16
HEADER = Header(Mode.DURABLE, Status.PROCESSED, ("a",)).encoded
DETAIL_BYTES_MAX = 10_000

# --- what MessagePack can hold ------------------------------------------------------------------

integers = st.integers(-(2**63), 2**64 - 1) | st.integers(-2, 10)
extensions = st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=8)) | st.builds(
    msgpack.Timestamp, st.integers(0, 2**40), st.integers(0, 999_999_999)
)
scalars = (
    st.none()
    | st.booleans()
    | integers
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=20)
    | extensions
)
keys = st.none() | st.booleans() | integers | st.text(max_size=8) | st.binary(max_size=8)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)
# Near what fields are: the right sort of thing, often within its bounds, often not.
near = (
    anything
    | st.sampled_from([ID, HEADER, "a/*", "**", "name", 2**53, 2**63 - 1, 2**31])
    | st.lists(st.sampled_from(["a", "a/b", "**", "", "/", 1]), max_size=3)
    | st.lists(integers, max_size=3)
    | st.lists(st.tuples(st.just(ID), st.just(HEADER), st.binary(max_size=4)), max_size=3)
    | st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3)
)
parts = st.sampled_from(["size", "policy", "min", "max", "drop_old", "reject_new"]) | keys
changes = st.dictionaries(
    st.sampled_from(TOPIC_NAMES) | keys,
    near | st.floats() | st.dictionaries(parts, near | parts, max_size=3),
    max_size=4,
)
bodies = st.lists(near, max_size=9) | st.tuples(changes) | st.tuples(changes, near) | anything
verbs = st.sampled_from(list(Verb)) | st.integers(0, 255)


def only_refusals(act: Callable[..., Any], *arguments: object) -> Any:
    """Calls it; the one thing it may raise is a refusal that a peer can be told."""
    try:
        return act(*arguments)
    except PeerError as error:
        assert error.code in ERRORS
        # It goes back over the wire, and into a log as a line.
        told = wire.pack_body((error.code, error.detail, error.retry_after_ms))
        assert "\n" not in error.detail
        assert len(told) < DETAIL_BYTES_MAX
        return None


# --- the three frames ---------------------------------------------------------------------------


@quiet
@given(st.binary(max_size=40) | st.binary(min_size=16, max_size=16))
@example(b"\x01" + bytes(15))
def test_a_head_is_read_or_refused(frame: bytes) -> None:
    head = only_refusals(wire.read_head, frame)
    if head is not None:
        assert wire.pack_head(head.verb, head.node, head.request, head.worker) == frame


@quiet
@given(st.binary(max_size=60))
@example(b"\xc7\x03\xffabc")
@example(b"\xd7\xff" + b"\xff" * 8)
@example(b"\x91" * 2_000)
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x81\x81\x01\x01\x01")
def test_bytes_are_a_body_or_refused(frame: bytes) -> None:
    only_refusals(wire.read_body, frame)


@quiet
@given(anything, st.data())
def test_a_body_that_was_damaged_on_the_way_is_read_or_refused(value: Any, data: Any) -> None:
    frame = bytearray(wire.pack_body(value))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] = data.draw(st.integers(0, 255))
    only_refusals(wire.read_body, bytes(frame))
    only_refusals(wire.read_body, bytes(frame[:place]))


# --- commands -----------------------------------------------------------------------------------


def read(verb: int, request: int, body: bytes) -> None:
    command = only_refusals(wire.read_command, verb, NODE, request, body)
    if command is not None:
        assert isinstance(command, Request)
        assert (command.node, command.request) == (NODE, request)
        assert type(command) is COMMANDS[Verb(verb)]


@quiet
@given(verbs, st.integers(0, 2**64 - 1), st.binary(max_size=60))
def test_bytes_are_a_command_or_refused(verb: int, request: int, body: bytes) -> None:
    read(verb, request, body)


@settings(quiet, max_examples=1_500)
@given(st.sampled_from(list(COMMANDS)), st.integers(0, 2**63), bodies)
@example(Verb.CONFIGURE, 1, [{"sent_timeout": float("nan")}])
@example(Verb.CONFIGURE, 1, [{"overflow": {"size": msgpack.Timestamp(1, 0)}}])
@example(Verb.CREATE_TOPIC, 1, [{}, 5])
@example(Verb.REPORT, 1, [1, True, [1]])
@example(Verb.SUBSCRIBE, 1, [1, ["**/" * 33]])
@example(Verb.SUBSCRIBE, 1, [1, ["\n" * 33 + "/" * 3]])
@example(Verb.SUBSCRIBE, 1, [1, ["é" * 1_024]])
def test_structures_are_a_command_or_refused(verb: Verb, request: int, body: Any) -> None:
    read(verb, request, wire.pack_body(body))


@quiet
@given(st.sampled_from([Verb.CREATE_TOPIC, Verb.CONFIGURE]), changes, near)
def test_settings_are_read_or_refused(verb: Verb, written: Any, inherit: Any) -> None:
    read(verb, 1, wire.pack_body([written]))
    read(verb, 1, wire.pack_body([written, inherit]))
