"""What comes in on one connection of the NATS door: bytes into operations, however they come."""

import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from asterism.gateways.nats import protocol
from asterism.gateways.nats.protocol import (
    CONTROL_LINE_MAX,
    LINE_KEPT_BYTES_MAX,
    LINES_KEPT_MAX,
    PIECES_MAX,
    Connect,
    Lines,
    Parser,
    Ping,
    Pong,
    Publication,
    Subscribe,
    Unsubscribe,
)

PAYLOAD_MAX = 4_096
ALL_OF_THEM = (
    b'CONNECT {"verbose":false}\r\nPING\r\nPONG\r\nSUB a.* 1\r\nSUB a.> crew 2\nUNSUB 1\r\n'
    b"UNSUB 2 7\r\nPUB a.b 5\r\nhello\r\nPUB a.b answer.to 0\r\n\r\nHPUB a.b 12 14\r\n"
    b"NATS/1.0\r\n\r\nhi\r\nPUB \xff\xfe 3\r\n\r\n\r\r\nping\r\n+OK\r\nINFO {}\r\n"
    b"PUB a.b 300\r\n" + b"x" * 300 + b"\r\n"
)
WRONG = b"PUB a -1\r\n"


def parser() -> Parser:
    return Parser(Lines(PAYLOAD_MAX))


def shown(operations: list[Any]) -> list[Any]:
    """Operations as values: a publication is known by its fields."""
    return [
        (one[0].subject, one[0].reply, one[0].header_size, one[0].size, one[1])
        if isinstance(one[0] if type(one) is tuple else None, Publication)
        else (type(one).__name__, *one)
        for one in operations
    ]


def splits(data: bytes) -> Iterator[list[bytes]]:
    """In one piece, in pieces of each size, and in two at each place."""
    for size in (1, 2, 3, 7, 64):
        yield [data[at : at + size] for at in range(0, len(data), size)]
    for at in range(len(data) + 1):
        yield [data[:at], data[at:]]


def test_each_operation_is_read() -> None:
    found = shown(parser().feed(ALL_OF_THEM))
    assert found == [
        ("Connect", {"verbose": False}),
        ("Ping",),
        ("Pong",),
        ("Subscribe", b"a.*", None, b"1"),
        ("Subscribe", b"a.>", b"crew", b"2"),
        ("Unsubscribe", b"1", 0),
        ("Unsubscribe", b"2", 7),
        (b"a.b", None, 0, 5, b"hello\r\n"),
        (b"a.b", b"answer.to", 0, 0, b"\r\n"),
        (b"a.b", None, 12, 14, b"NATS/1.0\r\n\r\nhi\r\n"),
        (b"\xff\xfe", None, 0, 3, b"\r\n\r\r\n"),
        ("Ping",),
        ("Nothing",),
        ("Nothing",),
        (b"a.b", None, 0, 300, b"x" * 300 + b"\r\n"),
    ]


def test_however_it_is_split_it_is_the_same() -> None:
    expected = shown(parser().feed(ALL_OF_THEM))
    for pieces in splits(ALL_OF_THEM):
        reading = parser()
        assert shown([one for piece in pieces for one in reading.feed(piece)]) == expected
        assert reading.error is None and reading.held == 0 and not reading.is_behind


@pytest.mark.parametrize("most", [1, 2, 5])
def test_however_few_are_asked_for_at_a_time_they_are_the_same(most: int) -> None:
    expected = shown(parser().feed(ALL_OF_THEM))
    for pieces in splits(ALL_OF_THEM):
        reading = parser()
        found = []
        for piece in pieces:
            some = reading.feed(piece, most)
            assert len(some) <= most
            found += some
        while reading.is_behind:
            found += reading.feed(b"", most)
        assert shown(found) == expected and reading.held == 0


def test_what_was_not_asked_for_waits_as_bytes() -> None:
    reading = parser()
    assert reading.feed(ALL_OF_THEM, 0) == [] and reading.is_behind
    assert reading.held == len(ALL_OF_THEM)
    assert shown(reading.feed(b"PI", 1)) == [("Connect", {"verbose": False})]
    assert len(reading.feed(b"")) == 14 and reading.held == 2
    assert shown(reading.feed(b"NG\r\n")) == [("Ping",)]


@pytest.mark.parametrize("behind", [b"", b"PING\r\n", b"PUB a 10\r\n"])
def test_what_stands_before_a_mistake_is_handed_out_and_nothing_behind_it(behind: bytes) -> None:
    expected = shown(parser().feed(ALL_OF_THEM))
    for pieces in splits(ALL_OF_THEM[-60:] + WRONG + behind):
        reading = parser()
        reading.feed(ALL_OF_THEM[:-60])
        found = [one for piece in pieces for one in reading.feed(piece)]
        assert shown(found) == expected[-1:]
        assert reading.error is not None
        assert reading.feed(b"PING\r\n") == [] and reading.held == 0 and not reading.is_behind


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (b"FOO", protocol.UNKNOWN_OPERATION),
        (b"X", protocol.UNKNOWN_OPERATION),
        (b"\r\n", protocol.UNKNOWN_OPERATION),
        (b" PING\r\n", protocol.UNKNOWN_OPERATION),
        (b"\x16\x03\x01", protocol.UNKNOWN_OPERATION),
        (b"SUB\r\n", protocol.UNKNOWN_OPERATION),
        (b"SUB a\r\n", ""),
        (b"SUB a b c d\r\n", ""),
        (b"PUB a 1\r\nxyz", protocol.UNKNOWN_OPERATION),
        (b"PUB a 1\r\nx\n", protocol.UNKNOWN_OPERATION),
        (b"PUB a 1\r\nx\rz", protocol.UNKNOWN_OPERATION),
        (b"PUB a 0x1\r\n", ""),
        (b"PUB a 1000000000\r\n", ""),
        (b"PUB a 4097\r\n", protocol.PAYLOAD_VIOLATION),
        (b"HPUB a 3 2\r\n", ""),
        (b"SUB " + b"a" * (CONTROL_LINE_MAX + 10), protocol.CONTROL_LINE_EXCEEDED),
        (b"SUB " + b"a" * CONTROL_LINE_MAX + b" 1\r\n", protocol.CONTROL_LINE_EXCEEDED),
        (b"CONNECT " + b"[" * 3_000 + b"\r\n", ""),
        (b"CONNECT {}x\r\n", ""),
        (b"CONNECT \xff\r\n", ""),
        (b"-ERR 'x'\r\n", ""),
    ],
)
def test_a_mistake_is_the_same_in_one_piece_and_byte_by_byte(said: bytes, sentence: str) -> None:
    for pieces in ([said], [said[at : at + 1] for at in range(len(said))]):
        reading = parser()
        for piece in pieces:
            reading.feed(piece)
        assert reading.error is not None and reading.error.sentence == sentence


def test_nothing_but_connect_is_read_where_it_has_to_come_first() -> None:
    reading = parser()
    reading.must_connect = True
    assert reading.feed(b"P") == [] and reading.error is not None
    assert reading.error.sentence == protocol.AUTHORIZATION
    reading = parser()
    reading.must_connect = True
    assert reading.feed(b"connect {}\r\nPING\r\n") == [Connect({}), Ping()]


def test_a_line_of_a_megabyte_takes_no_longer_a_byte_at_a_time_than_it_has_bytes() -> None:
    """It was looked through anew with each byte: half a trillion bytes in all."""
    size = 1_000_000
    reading = Parser(Lines(PAYLOAD_MAX, line_max=2 * size))
    began = time.perf_counter()
    reading.feed(b"SUB ")
    for _ in range(size):
        reading.feed(b"a")
    assert reading.held == size + 4
    assert shown(reading.feed(b" 1\r\n")) == [("Subscribe", b"a" * size, None, b"1")]
    assert time.perf_counter() - began < 20


def test_a_payload_that_comes_in_many_pieces_is_held_in_few() -> None:
    reading = Parser(Lines(1_000_000))
    reading.feed(b"PUB a 1000000\r\n")
    for _ in range(100_000):
        reading.feed(b"xy")
    assert len(reading._rest) < 100_000 / PIECES_MAX + 2 * PIECES_MAX
    assert reading.held == 15 + 200_000
    (found,) = reading.feed(b"z" * 800_000 + b"\r\n")
    (shown_as,) = shown([found])
    assert shown_as[-1] == b"xy" * 100_000 + b"z" * 800_000 + b"\r\n"


def test_lines_of_publishers_are_remembered_within_bounds() -> None:
    lines = Lines(PAYLOAD_MAX)
    reading = Parser(lines)
    operations: list[Any] = reading.feed(b"PUB a 0\r\n\r\n" * 2)
    assert operations[0][0] is operations[1][0]
    for number in range(LINES_KEPT_MAX + 1):
        reading.feed(b"PUB s%d 0\r\n\r\n" % number)
        assert len(lines.known) <= LINES_KEPT_MAX
    kept = len(lines.known)
    reading.feed(b"PUB %b 0\r\n\r\n" % (b"a" * LINE_KEPT_BYTES_MAX))
    reading.feed(b"PUB a reply.to.1 0\r\n\r\n")
    assert len(lines.known) == kept


def test_what_a_subscriber_is_sent_is_counted_whole() -> None:
    """Bounds of what waits for a client go by it: the subject counts, not the payload alone."""
    for subject, reply, header in product((b"a", b"a" * 4_000), (None, b"b" * 99), (0, 12)):
        one = Publication(subject, reply, header, 20, header > 0)
        sent = one.head + b"1 " + one.tail + bytes(20) + b"\r\n"
        assert one.weight + len(b"1 ") == len(sent)


def test_options_may_be_nested_as_deep_as_a_line_is_long() -> None:
    depth = (CONTROL_LINE_MAX - 20) // 6
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    (connect,) = parser().feed(b"CONNECT %b\r\n" % deep)
    assert isinstance(connect, Connect)


def test_an_unsubscribe_with_a_number_that_is_none_ends_at_once() -> None:
    lines = b"UNSUB 1 x\r\nUNSUB 1 -1\r\nUNSUB 1 99999999999999999999\r\n"
    assert parser().feed(lines) == [Unsubscribe(b"1", 0)] * 3
    assert parser().feed(b"SUB a\tq  1\r\nPONG x\r\n") == [Subscribe(b"a", b"q", b"1"), Pong()]
