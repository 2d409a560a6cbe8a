"""What the gate reads of ZMTP, and how a pipe to a worker is shared: no sockets."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.router import pipes
from asterism.router.pipes import Pipe
from asterism.router.zmtp import (
    COMMAND,
    GREETING,
    LONG,
    MESSAGE_FRAMES_MAX,
    MORE,
    MULTIPART_BYTES_MAX,
    Frames,
    Handshake,
    ViolationError,
    ready,
)

PING = bytes((COMMAND, 7)) + b"\x04PING\0\0"


def frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return struct.pack(">BQ", flags | LONG, len(body)) + body


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False) if begin < end]


MESSAGES = st.lists(st.lists(st.binary(max_size=600), min_size=1, max_size=4), max_size=5)
PLACES = st.lists(st.integers(0, 10_000), max_size=8)


@given(MESSAGES, PLACES, st.booleans())
def test_frames_are_counted_wherever_they_are_cut(
    messages: list[list[bytes]], places: list[int], pings: bool
) -> None:
    data = b""
    for message in messages:
        data += PING * pings
        data += b"".join(frame(body, MORE) for body in message[:-1]) + frame(message[-1])
    frames = Frames()
    for piece in cut(data, places):
        assert frames.take(piece, 10_000) == len(piece)
    size = sum(len(body) for message in messages for body in message)
    assert (frames.payload, frames.whole, frames.message) == (size, size, 0)


@given(st.binary(max_size=700), PLACES)
def test_what_stands_behind_the_first_message_is_left_where_one_is_wanted(
    body: bytes, places: list[int]
) -> None:
    frames, first = Frames(), frame(b"x", MORE) + frame(body)
    taken = 0
    for piece in cut(first + frame(b"next"), places):
        size = frames.take(piece, 10_000, most=1)
        taken += size
        if size < len(piece) or taken == len(first):
            break
    assert (taken, frames.whole) == (len(first), len(body) + 1)


@given(PLACES, st.binary(max_size=20), st.binary(max_size=255))
def test_a_handshake_is_read_wherever_it_is_cut(
    places: list[int], behind: bytes, identity: bytes
) -> None:
    handshake = Handshake()
    found = None
    data = GREETING + ready(b"DEALER", identity[:200]) + behind
    for piece in cut(data, places):
        if found is None:
            found = handshake.take(piece)
        else:
            found += piece
    assert found == behind


@given(st.binary(min_size=1, max_size=300))
def test_noise_is_a_violation_or_waits_for_more_and_nothing_else(noise: bytes) -> None:
    for begin in (b"", GREETING, GREETING + b"\x04"):
        with contextlib.suppress(ViolationError):
            Handshake().take(begin + noise)
    with contextlib.suppress(ViolationError):
        assert 0 < Frames().take(noise, 1_000) <= len(noise)


def test_a_message_has_a_bound_in_bytes_and_in_frames() -> None:
    frames = Frames()
    frames.take(frame(bytes(600), MORE), 1_000)
    with pytest.raises(ViolationError, match="more than 1000 bytes"):
        frames.take(frame(bytes(401)), 1_000)
    frames = Frames()
    frames.take(frame(bytes(MULTIPART_BYTES_MAX), MORE), 10 * MULTIPART_BYTES_MAX)
    with pytest.raises(ViolationError, match="one frame"):
        frames.take(frame(b"x"), 10 * MULTIPART_BYTES_MAX)
    frames = Frames()
    frames.take(frame(b"", MORE) * MESSAGE_FRAMES_MAX, 1_000)
    with pytest.raises(ViolationError, match="frames"):
        frames.take(frame(b""), 1_000)


MIB = 1 << 20


def test_a_pipe_is_bounded_in_bytes_and_small_frames_pass_large_ones() -> None:
    pipe = Pipe()
    for session in (b"a", b"b"):
        while pipe.admits(session, 8 * MIB):
            pipe.count_sent(session, 8 * MIB)
    assert not pipe.admits(b"c", 8 * MIB)
    sent = 0
    while pipe.admits(b"c", 1_000):
        pipe.count_sent(b"c", 1_000)
        sent += 1_000
    assert sent > 15 * MIB
    pipe.count_taken(16 * MIB)
    assert pipe.admits(b"c", 1_000)


def test_one_session_leaves_room_for_large_frames_of_others() -> None:
    pipe = Pipe()
    while pipe.admits(b"a", MIB):
        pipe.count_sent(b"a", MIB)
    assert pipe.admits(b"b", 20 * MIB)


def test_a_frame_of_any_size_goes_where_no_large_one_is() -> None:
    pipe = Pipe()
    assert pipe.admits(b"a", 64 * MIB)
    pipe.count_sent(b"a", 64 * MIB)
    assert not pipe.admits(b"a", 64 * MIB) and not pipe.admits(b"b", MIB)
    pipe.count_taken(64 * MIB)
    assert pipe.admits(b"b", 64 * MIB)


def test_what_waits_for_a_worker_is_bounded_in_bytes() -> None:
    pipe = Pipe()
    while pipe.park((b"session", bytes(MIB))):
        pass
    assert pipe.outbox_bytes <= pipes.OUTBOX_BYTES_MAX
    pipe.unpark()
    assert pipe.park((b"session", bytes(MIB)))
