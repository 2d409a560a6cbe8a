"""Whatever comes in frames is read or refused with a code: nothing else may be raised.

Any other exception would end a process of the broker, so that a client could stop it at will.
"""

from collections.abc import Callable
from itertools import pairwise
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
inner_keys = st.sampled_from(["size", "policy", "min", "max", "drop_old", "reject_new"]) | keys
changes = st.dictionaries(
    st.sampled_from(TOPIC_NAMES) | keys,
    near | st.floats() | st.dictionaries(inner_keys, near | inner_keys, max_size=3),
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


# --- frames and parts ---------------------------------------------------------------------------


def read_parts(frame: bytes) -> None:
    """The parts of a frame lie one behind the other in it, and are what packs to the same bytes."""
    parts = only_refusals(wire.read_parts, frame)
    if parts is None:
        return
    assert 1 <= len(parts) <= wire.TOGETHER_MAX
    again = [
        wire.pack_part(
            *(part.verb, part.request, part.topic, frame[part.body : part.end]),
            node=part.node,
            worker=part.worker,
        )
        for part in parts
    ]
    assert again == [frame[part.begin : part.end] for part in parts]
    assert b"".join(again) == frame


# Heads that say what is near, so that now and then it is what follows.
heads = st.builds(
    wire.HEAD.pack,
    st.sampled_from([wire.VERSION] * 20 + [0, 2, 255]),
    st.integers(0, 255),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 3) | st.integers(0, 2**16 - 1),
    st.integers(0, 3) | st.integers(0, 2**32 - 1),
)
noise = st.binary(max_size=40)
packed_parts = st.builds(
    wire.pack_part, st.integers(0, 255), st.integers(0, 2**64 - 1), noise, noise
)


@quiet
@given(st.lists(heads | st.binary(max_size=6), max_size=12).map(b"".join) | noise)
@example(b"")
@example(b"\x01" + bytes(21))
@example(b"\x01" + bytes(20))
@example((b"\x01" + bytes(21)) * 64)
@example((b"\x01" + bytes(21)) * 65)
@example(b"\x01" + bytes(15) + b"\xff" * 6)
def test_bytes_are_parts_or_refused(frame: bytes) -> None:
    read_parts(frame)


@quiet
@given(st.lists(packed_parts, min_size=1, max_size=5).map(b"".join), st.data())
def test_a_frame_that_was_damaged_on_the_way_is_read_or_refused(frame: bytes, data: Any) -> None:
    damaged = bytearray(frame)
    place = data.draw(st.integers(0, len(frame) - 1))
    damaged[place] = data.draw(st.integers(0, 255))
    read_parts(bytes(damaged))
    read_parts(frame[:place])
    read_parts(frame + frame[:place])


# --- parts of a lane ----------------------------------------------------------------------------


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The pieces of it between these places."""
    ends = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(ends)]


def taken(pieces: list[bytes]) -> tuple[list[bytes], bool]:
    """The parts of a lane that brings these pieces, and whether it is refused behind them."""
    stream = wire.PartStream()
    found: list[bytes] = []
    for piece in pieces:
        try:
            data, parts = stream.take(piece)
        except PeerError as error:
            assert error.code in ("unsupported_version", "too_large")
            return found, True
        found += [data[part.begin : part.end] for part in parts]
    return found, False


places = st.lists(st.integers(0, 2**16), max_size=12)


@quiet
@given(st.lists(packed_parts, max_size=8), st.binary(max_size=21), places)
def test_any_cut_of_any_parts_gives_the_same_parts(
    packed: list[bytes], beginning: bytes, places: list[int]
) -> None:
    assert taken(cut(b"".join(packed) + beginning, places)) == (packed, False)


@quiet
@given(st.lists(heads | noise, max_size=8).map(b"".join), places)
def test_bytes_on_a_lane_are_parts_or_refused_however_they_are_cut(
    data: bytes, places: list[int]
) -> None:
    found, is_refused = taken(cut(data, places))
    in_one, is_refused_in_one = taken([data])
    assert is_refused == is_refused_in_one
    # In one piece, what comes before it is refused along with it: the lane is over either way.
    assert found == in_one or (is_refused and not in_one)
    for part in found:
        (read,) = wire.read_parts(part)
        assert read.end == len(part)


# --- bodies -------------------------------------------------------------------------------------


@quiet
@given(st.binary(max_size=60))
@example(b"\xc7\x03\xffabc")
@example(b"\xd7\xff" + b"\xff" * 8)
@example(b"\x91" * 2_000)
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x81\x81\x01\x01\x01")
def test_bytes_are_a_body_or_refused(body: bytes) -> None:
    only_refusals(wire.read_body, body)


@quiet
@given(anything, st.data())
def test_a_body_that_was_damaged_on_the_way_is_read_or_refused(value: Any, data: Any) -> None:
    body = bytearray(wire.pack_body(value))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    only_refusals(wire.read_body, bytes(body))
    only_refusals(wire.read_body, bytes(body[:place]))


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
