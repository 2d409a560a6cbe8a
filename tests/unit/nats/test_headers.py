"""Headers of NATS and attributes of the broker, and what is too much for a message."""

import time

import pytest

from asterism import limits
from asterism.gateways.nats.headers import (
    LINES_MAX,
    OPAQUE,
    STATUS,
    UntellableError,
    attributes_of,
    block_of,
)

BEGIN = b"NATS/1.0\r\n"


def test_headers_are_attributes() -> None:
    block = BEGIN + b"A: 1\r\nB:two \r\nA: 3\r\n\r\n"
    assert attributes_of(block) == {"A": "1\n3", "B": "two"}
    assert attributes_of(b"NATS/1.0 503\r\n\r\n") == {STATUS: "503"}
    assert attributes_of(b"NATS/1.0 100 Idle\r\nA:b\r\n\r\n") == {STATUS: "100 Idle", "A": "b"}


@pytest.mark.parametrize(
    "block",
    [
        b"garbage",
        b"HTTP/1.1 200\r\n\r\n",
        BEGIN + b"A: b\r\n",
        BEGIN + b" folded\r\n\r\n",
        BEGIN + b"\xff: b\r\n\r\n",
        BEGIN + b"no colon\r\n\r\n",
        b"\xff\xfe\x00",
    ],
)
def test_a_block_that_is_no_list_of_headers_comes_back_as_it_was(block: bytes) -> None:
    found = attributes_of(block)
    assert set(found) == {OPAQUE} and block_of(found) == block


def test_attributes_are_headers_whatever_they_hold() -> None:
    block = block_of({"a b": "1\r\n2\n3\r4", "": "x", "ü:": "y", STATUS: "1\n2", "%": "z"})
    assert block == (
        b"NATS/1.0 1 2\r\na%20b: 1\r\na%20b: 2\r\na%20b: 3\r\na%20b: 4\r\n%: x\r\n"
        b"%C3%BC%3A: y\r\n%: z\r\n\r\n"
    )


LINES = 100_000
BOMBS = {
    "one name": BEGIN + b"a:bcdef\r\n" * LINES + b"\r\n",
    "names": BEGIN + b"".join(b"a%d:b\r\n" % n for n in range(LINES)) + b"\r\n",
    "no values": BEGIN + b"a:\r\n" * LINES + b"\r\n",
    "a value": BEGIN + b"a: " + b"v" * 1_000_000 + b"\r\n\r\n",
    "no text": BEGIN + b"\xff:\xfe\r\n" * LINES,
    "line ends": b"\r\n" * LINES,
    "too many": BEGIN + b"".join(b"a%d:b\r\n" % n for n in range(129)) + b"\r\n",
    "lines": BEGIN + b"a:b\r\n" * LINES_MAX + b"\r\n",
    "long": BEGIN + b"a:" + b"b" * (limits.ATTRIBUTE_BYTES_MAX + 1) + b"\r\n\r\n",
    "opaque": b"\xff" * (limits.ATTRIBUTE_BYTES_MAX // 2 + 1),
}


@pytest.mark.parametrize("block", BOMBS.values(), ids=BOMBS.keys())
def test_too_many_headers_are_told_so_at_once(block: bytes) -> None:
    """A hundred thousand values of one name took as long as their number squared."""
    began = time.perf_counter()
    for _ in range(20):
        with pytest.raises(UntellableError):
            attributes_of(block)
    assert time.perf_counter() - began < 1
