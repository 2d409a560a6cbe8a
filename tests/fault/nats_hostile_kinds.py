"""What a hostile client of the NATS door does, one kind a function: as ``hostile_kinds`` has them.

python -m tests.fault.nats_hostile_kinds --job JSON   is one hostile client
"""

import contextlib
import itertools
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

from tests.fault.hostile_kinds import IDLE_MAX, SOME_S, Kind, Target, Until, run_job
from tests.fault.hostile_kinds import on_connections as on_tcp_connections

PLAIN: Final = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
FULL: Final = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
SUBSCRIPTIONS: Final = 10_000
HEADER_LINES: Final = 100_000
PAYLOAD_BYTES: Final = 1 << 20
READERS_MAX: Final = 100  # connections that take part in one round
READ_BYTES: Final = 1 << 16

# What must be answered by -ERR or by the end of the connection, with what the -ERR says.
GARBAGE: Final[dict[str, tuple[bytes, bytes]]] = {
    "no verb": (b"\0\1\2\3\r\n", b"Unknown Protocol Operation"),
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"Unknown Protocol Operation"),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), b"Unknown Protocol"),
    "huge line": (b"SUB " + b"a" * 5_000_000, b"maximum control line exceeded"),
    "huge name": (b'CONNECT {"name":"' + b"x" * 1_000_000 + b'"}\r\n', b"maximum control line"),
    "deep json": (b"CONNECT " + b"[" * 4_000 + b"\r\n", b""),
    "deep maps": (b"CONNECT " + b'{"a":' * 600 + b"1" + b"}" * 600 + b"\r\nFOO\r\n", b"Unknown"),
    "json of a list": (b"CONNECT []\r\n", b""),
    "wrong kinds": (b'CONNECT {"verbose":"yes"}\r\n', b""),
    "huge number": (b'CONNECT {"protocol":' + b"9" * 4_000 + b"}\r\n", b"invalid client protocol"),
    "no size": (b"PUB a\r\n", b""),
    "negative size": (b"PUB a -1\r\n", b""),
    "too large": (b"PUB a 999999999\r\n", b"Maximum Payload Violation"),
    "no line end": (b"PUB a 1\r\nxyz", b"Unknown Protocol Operation"),
    "no headers": (b"HPUB a 5 5\r\nhello\r\n", b""),
    "header size": (FULL + b"HPUB a 6 5\r\n", b""),
    "a message": (b"MSG a 1 1\r\nx\r\n", b"Unknown Protocol Operation"),
    "an error": (b"-ERR 'x'\r\n", b""),
    "utf-8": (b"CONNECT \xff\xfe\r\n", b""),
    "flood": (b"FOO\r\n" * 1_000_000, b"Unknown Protocol Operation"),
}


def reader(one: socket.socket) -> Iterator[bytes]:
    """What comes, until it is over; it may be ended by the other side, in any way."""
    with contextlib.suppress(OSError):
        while said := one.recv(READ_BYTES):
            yield said


def on_connections(target: Target, until: Until, attempt: Callable[[socket.socket], object]) -> int:
    return on_tcp_connections(target.port, until, attempt)


def pour(one: socket.socket, until: Until, blocks: Iterator[bytes]) -> None:
    """Sends until the time is over or the connection is, and throws away what comes."""
    one.setblocking(False)
    left = b""
    while not until.is_over:
        with contextlib.suppress(BlockingIOError):
            left = left or next(blocks)
            left = left[one.send(left) :]
            continue
        with contextlib.suppress(BlockingIOError):
            if not one.recv(READ_BYTES):
                return
            continue
        time.sleep(0.001)


def subs(count: int, pattern: str = ">") -> bytes:
    return b"".join(b"SUB %b %d\r\n" % (pattern.encode(), sid) for sid in range(count))


# --- bytes that are wrong -------------------------------------------------------------------------


def garbage(target: Target, chance: random.Random, until: Until) -> int:
    """All that is wrong, one after the other, and random bytes."""
    wrong = [data for data, _ in GARBAGE.values()]

    def attempt(one: socket.socket) -> None:
        one.sendall(chance.choice(wrong) if chance.random() < 0.8 else chance.randbytes(2_000))
        if chance.random() < 0.5:
            for _ in reader(one):
                pass

    return on_connections(target, until, attempt)


def bytewise(target: Target, chance: random.Random, until: Until) -> int:
    """Lines and payloads a byte at a time."""
    whole = FULL + b"SUB a.b 1\r\nPUB a.b 3000\r\n" + b"x" * 3_000 + b"\r\nPING\r\n"

    def attempt(one: socket.socket) -> None:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(whole)):
            one.sendall(whole[at : at + 1])
            if until.is_over:
                return

    return on_connections(target, until, attempt)


def halves(target: Target, chance: random.Random, until: Until) -> int:
    """Messages of which all but the last byte comes, on as many connections as there may be."""
    held: list[socket.socket] = []
    begun = PLAIN + b"PUB half %d\r\n" % PAYLOAD_BYTES + bytes(PAYLOAD_BYTES - 1)

    def attempt(one: socket.socket) -> None:
        copy = one.dup()
        held.append(copy)
        copy.settimeout(1)
        copy.sendall(begun)
        if len(held) >= IDLE_MAX:
            held.pop(chance.randrange(len(held))).close()

    count = on_connections(target, until, attempt)
    for one in held:
        one.close()
    return count


def vanishing(target: Target, chance: random.Random, until: Until) -> int:
    """Ends in the middle of a payload, by half, or with all that it sent unread."""

    def attempt(one: socket.socket) -> None:
        one.sendall(FULL + b"SUB v.> 1\r\nPUB v.a 100\r\n" + b"x" * chance.randrange(110))
        if chance.random() < 0.5:
            one.shutdown(socket.SHUT_WR)
            for _ in reader(one):
                pass

    return on_connections(target, until, attempt)


def connects(target: Target, chance: random.Random, until: Until) -> int:
    """CONNECT again and again, each with fields of its own."""
    numbers = itertools.count()

    def blocks() -> Iterator[bytes]:
        while True:
            fields = ",".join(f'"f{next(numbers)}":"{"x" * 60}"' for _ in range(40))
            yield b"CONNECT {%b}\r\n" % fields.encode() * 4

    return on_connections(target, until, lambda one: pour(one, until, blocks()))


# --- floods ---------------------------------------------------------------------------------------


def pings(target: Target, chance: random.Random, until: Until) -> int:
    block = b"PING\r\n" * 20_000
    return on_connections(
        target, until, lambda one: pour(one, until, itertools.repeat(PLAIN + block))
    )


def tiny(target: Target, chance: random.Random, until: Until) -> int:
    """The smallest messages there are, on several connections at once."""
    return _many(target, until, 20, b"PUB a 0\r\n\r\n" * 5_000)


def overlapping(target: Target, chance: random.Random, until: Until) -> int:
    """Ten thousand subscriptions to one subject, and tiny messages, each of which comes to all."""

    def attempt(one: socket.socket) -> None:
        one.sendall(PLAIN + subs(SUBSCRIPTIONS, "o.>"))
        pour(one, until, itertools.repeat(b"PUB o.a 0\r\n\r\n" * 100))

    return on_connections(target, until, attempt)


def everything(target: Target, chance: random.Random, until: Until) -> int:
    """A hundred subscriptions to everything, on several connections: what others say comes too."""

    def attempt(one: socket.socket) -> None:
        one.sendall(PLAIN + subs(READERS_MAX))
        pour(one, until, itertools.repeat(b"PING\r\n"))

    return on_connections(target, until, attempt)


def unread(target: Target, chance: random.Random, until: Until) -> int:
    """Subscribers that never read, and a flood for them."""
    flood = b"PUB unread 65536\r\n" + bytes(65_536) + b"\r\n"
    while not until.is_over:
        held = []
        with contextlib.suppress(OSError):
            for _ in range(READERS_MAX):
                one = socket.create_connection(("127.0.0.1", target.port), 1)
                held.append(one)
                one.sendall(PLAIN + b"SUB unread 1\r\n")
            on_tcp_connections(
                target.port, Until(2), lambda one: pour(one, Until(2), itertools.repeat(flood))
            )
        for one in held:
            one.close()
        time.sleep(SOME_S)
    return 1


def unread_errors(target: Target, chance: random.Random, until: Until) -> int:
    """Who does not read what it is owed makes a mistake, again and again."""
    flood = b"PUB mine 65536\r\n" + bytes(65_536) + b"\r\n"
    held: list[socket.socket] = []

    def attempt(one: socket.socket) -> None:
        copy = one.dup()
        held.append(copy)
        copy.sendall(PLAIN + b"SUB mine 1\r\n" + flood * 100 + b"FOO\r\n")
        if len(held) >= IDLE_MAX:
            held.pop(0).close()

    count = on_connections(target, until, attempt)
    for one in held:
        one.close()
    return count


def subjects(target: Target, chance: random.Random, until: Until) -> int:
    """Subjects that nobody has used before, long ones among them, with many subscribers."""
    numbers = itertools.count(chance.getrandbits(32))
    long = b"x" * 3_000

    def blocks() -> Iterator[bytes]:
        while True:
            yield b"".join(b"PUB u.%d 0\r\n\r\n" % next(numbers) for _ in range(500))
            yield b"".join(b"PUB %b.%d 0\r\n\r\n" % (long, next(numbers)) for _ in range(20))

    def attempt(one: socket.socket) -> None:
        one.sendall(PLAIN + subs(1_000, "u.*"))
        pour(one, until, blocks())

    return on_connections(target, until, attempt)


# --- subscriptions --------------------------------------------------------------------------------


def churn(target: Target, chance: random.Random, until: Until) -> int:
    """Subscriptions with wildcards come and go."""

    def blocks() -> Iterator[bytes]:
        while True:
            tokens = [chance.choice(("*", "a", "b", str(chance.randrange(9)))) for _ in range(6)]
            pattern = ".".join(tokens).encode()
            yield b"SUB %b.> 1\r\nUNSUB 1\r\n" % pattern * 50

    return on_connections(
        target, until, lambda one: pour(one, until, itertools.chain((PLAIN,), blocks()))
    )


def patterns(target: Target, chance: random.Random, until: Until) -> int:
    """Subscriptions of two thousand tokens, as many as there may be; then it goes, and comes."""
    numbers = itertools.count()
    tokens = b".a" * 1_900

    def blocks() -> Iterator[bytes]:
        for _ in range(3_000):
            number = next(numbers)
            yield b"SUB p%d%b %d\r\n" % (number, tokens, number)

    def attempt(one: socket.socket) -> None:
        with contextlib.suppress(StopIteration, RuntimeError):
            pour(one, until, itertools.chain((PLAIN,), blocks()))

    return on_connections(target, until, attempt)


def many_subs(target: Target, chance: random.Random, until: Until) -> int:
    """As many subscriptions as one connection may have; then it goes at once, and comes again."""
    block = b"".join(b"SUB m.%d.%d %d\r\n" % (n % 999, n, n) for n in range(65_000))

    def attempt(one: socket.socket) -> None:
        one.settimeout(5)
        one.sendall(PLAIN + block + b"PING\r\n")
        for said in reader(one):
            if b"PONG" in said:
                return

    return on_connections(target, until, attempt)


def groups(target: Target, chance: random.Random, until: Until) -> int:
    """Queue groups by the thousand, on few patterns."""
    numbers = itertools.count(chance.getrandbits(32))

    def attempt(one: socket.socket) -> None:
        names = (b"SUB g q%d %d\r\n" % (next(numbers), sid) for sid in range(6_000))
        one.settimeout(5)
        one.sendall(PLAIN + b"".join(names) + b"PUB g 0\r\n\r\n" * 10 + b"PING\r\n")
        for said in reader(one):
            if b"PONG" in said:
                return

    return on_connections(target, until, attempt)


def requests(target: Target, chance: random.Random, until: Until) -> int:
    """Requests to nobody, which are asked about at the broker."""
    numbers = itertools.count()

    def blocks() -> Iterator[bytes]:
        yield FULL + b"SUB inbox.* 1\r\n"
        while True:
            yield b"".join(
                b"PUB nobody.%d inbox.%d 0\r\n\r\n" % (next(numbers) % 9, next(numbers))
                for _ in range(200)
            )

    return on_connections(target, until, lambda one: pour(one, until, blocks()))


# --- headers --------------------------------------------------------------------------------------


def headers(target: Target, chance: random.Random, until: Until) -> int:
    """A hundred thousand lines of headers, of one name or of many; values of a megabyte."""
    blocks = (
        b"NATS/1.0\r\n" + b"a:bcdef\r\n" * HEADER_LINES + b"\r\n",
        b"NATS/1.0\r\n" + b"".join(b"a%d:b\r\n" % n for n in range(HEADER_LINES)) + b"\r\n",
        b"NATS/1.0\r\n" + b"a:\r\n" * HEADER_LINES + b"\r\n",
        b"NATS/1.0\r\na: " + b"v" * 1_000_000 + b"\r\n\r\n",
        b"NATS/1.0\r\n" + b"\xff:\xfe\r\n" * HEADER_LINES,
        b"\r\n" * HEADER_LINES,
        b"NATS/1.0\r\n" + b"".join(b"a%d:%b\r\n" % (n, b"v" * 4_000) for n in range(100)) + b"\r\n",
    )

    def pieces() -> Iterator[bytes]:
        yield FULL
        while True:
            block = chance.choice(blocks)
            yield b"HPUB h %d %d\r\n%b\r\n" % (len(block), len(block), block)

    return on_connections(target, until, lambda one: pour(one, until, pieces()))


# --- connections that do nothing ------------------------------------------------------------------


def idle(target: Target, chance: random.Random, until: Until) -> int:
    """Connections that say nothing, or begin to and never end."""
    begins = (b"", b"C", b"CONNECT {", PLAIN, b"PUB a 10\r\nx", b"SUB " + b"a" * 4_000)
    held: list[socket.socket] = []

    def attempt(one: socket.socket) -> None:
        copy = one.dup()
        held.append(copy)
        copy.sendall(chance.choice(begins))
        if len(held) >= IDLE_MAX:
            held.pop(chance.randrange(len(held))).close()
            time.sleep(SOME_S / 10)

    count = on_connections(target, until, attempt)
    for one in held:
        one.close()
    return count


def monitor(target: Target, chance: random.Random, until: Until) -> int:
    """Heads without end at the port of the monitor, large pages, pages that nobody reads."""
    said = (
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        b"GET /connz?limit=65536&subs=detail HTTP/1.1\r\n\r\n",
        b"GET /subsz?subs=1&limit=65536 HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
        b"GET /connz?offset=" + b"9" * 5_000 + b" HTTP/1.1\r\n\r\n",
        b"\0\xff\r\n\r\n",
        b"GET /varz",
    )

    def attempt(one: socket.socket) -> None:
        one.sendall(chance.choice(said))
        if chance.random() < 0.5:
            one.recv(100)

    return on_tcp_connections(target.http_port, until, attempt)


def _many(target: Target, until: Until, count: int, block: bytes) -> int:
    """Pours on so many connections in turn."""
    held: list[socket.socket] = []
    sent = 0
    try:
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", target.port), 1)
            one.setblocking(False)
            held.append(one)
        while not until.is_over:
            for one in held:
                with contextlib.suppress(BlockingIOError):
                    one.recv(READ_BYTES)
                with contextlib.suppress(BlockingIOError):
                    size = one.send(block)
                    # What is left of a message has to follow, whatever the time.
                    if rest := block[size:]:
                        one.setblocking(True)
                        one.settimeout(1)
                        one.sendall(rest)
                        one.setblocking(False)
                    sent += 1
    except OSError:
        time.sleep(SOME_S)
    finally:
        for one in held:
            one.close()
    return sent


KINDS: Final[dict[str, Kind]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        *(garbage, bytewise, halves, vanishing, connects, pings, tiny, overlapping, everything),
        *(unread, unread_errors, subjects, churn, patterns, many_subs, groups, requests, headers),
        *(idle, monitor),
    )
}

if __name__ == "__main__":
    run_job(sys.argv[1:], KINDS)
