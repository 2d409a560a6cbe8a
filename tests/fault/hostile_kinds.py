"""What a hostile client does, one kind a function: as fast as it can, for a given time.

A kind takes where the broker is, a source of chance and the moment to end at, and returns how often
it did what it does. It needs no answer: whatever the broker does, be it to cut the connection, to
refuse or to say nothing, the kind goes on with the next one and ends when its time is over.

    python -m tests.fault.hostile_kinds --job JSON   is one hostile client
"""

import contextlib
import json
import os
import random
import resource
import secrets
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import zmq

from asterism import wire
from asterism.wire import Verb

WAIT_S: Final = 0.5  # for a connection, or for anything that it should say
PART_BYTES: Final = 1 << 20
BOMB_BYTES: Final = 60_000_000
HTTP_BOMB_BYTES: Final = 16_000_000
IDLE_MAX: Final = 1_500
TOPICS_MAX: Final = 3_000  # that one storm makes, where nobody refuses it before
ENDPOINTS_MAX: Final = 5_000
BURST: Final = 200  # frames between two looks at the clock
SOME_S: Final = 0.05

GREETING: Final = b"\xff" + bytes(7) + b"\x01\x7f\x03\x01" + b"NULL".ljust(52, b"\0")
HEADS: Final = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
FILES_WANTED: Final = 4_096


class Target(NamedTuple):
    """Where the broker is."""

    port: int
    http_port: int
    lanes: str = ""


class Until:
    """The moment to end at."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._deadline


Kind = Callable[[Target, random.Random, Until], int]


# --- connections ----------------------------------------------------------------------------------


def connect(port: int) -> socket.socket:
    one = socket.create_connection(("127.0.0.1", port), WAIT_S)
    one.settimeout(WAIT_S)
    return one


def on_connections(port: int, until: Until, attempt: Callable[[socket.socket], object]) -> int:
    """Attempts it on one TCP connection after the other; how often."""
    count = 0
    while not until.is_over:
        try:
            with connect(port) as one:
                count += 1
                attempt(one)
        except ConnectionRefusedError:
            time.sleep(SOME_S)  # nobody is there: not in a tight loop
        except OSError:
            pass  # it was cut, or not read any more
    return count


def zmtp_frame(content: bytes, flags: int = 0) -> bytes:
    if len(content) < 256:
        return bytes([flags, len(content)]) + content
    return bytes([flags | 2]) + struct.pack(">Q", len(content)) + content


def zmtp_ready(identity: bytes = b"") -> bytes:
    def pair(name: bytes, value: bytes) -> bytes:
        return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value

    properties = pair(b"Socket-Type", b"DEALER") + pair(b"Identity", identity)
    return zmtp_frame(b"\x05READY" + properties, 4)


def handshake(one: socket.socket, identity: bytes = b"") -> None:
    """Becomes a DEALER: libzmq cuts who sends it all in one go."""
    one.sendall(GREETING)
    heard = 0
    while heard < len(GREETING):
        said = one.recv(len(GREETING))
        if not said:
            raise ConnectionAbortedError
        heard += len(said)
    one.sendall(zmtp_ready(identity))


def hello(name: str = "hostile") -> bytes:
    body = wire.pack_body({"versions": [wire.VERSION], "name": name})
    return wire.pack_part(Verb.HELLO, 1, b"", body)


@contextlib.contextmanager
def dealer(target: Target) -> Iterator[zmq.Socket[bytes]]:
    """A client with a session, as far as the broker gives it one."""
    context = zmq.Context()
    one = context.socket(zmq.DEALER)
    one.linger = 0
    one.sndhwm = one.rcvhwm = 100
    one.connect(f"tcp://127.0.0.1:{target.port}")
    try:
        with contextlib.suppress(zmq.Again):
            one.send(hello(), zmq.NOBLOCK)
            one.poll(int(WAIT_S * 1_000))
        yield one
    finally:
        one.close()
        context.term()


def flood(target: Target, until: Until, frame: Callable[[int], bytes], reads: bool = True) -> int:
    """Sends frames on one session after the other."""
    sent = 0
    while not until.is_over:
        with dealer(target) as one:
            for _ in range(50 * BURST):
                if until.is_over:
                    break
                try:
                    one.send(frame(sent), zmq.NOBLOCK)
                    sent += 1
                except zmq.Again:
                    one.poll(10, zmq.POLLOUT)
                if reads:
                    with contextlib.suppress(zmq.Again):
                        while True:
                            one.recv(zmq.NOBLOCK, copy=False)
    return sent


# --- ZeroMQ ---------------------------------------------------------------------------------------


def identities(target: Target, chance: random.Random, until: Until) -> int:
    """Chooses the routing ids that the ROUTER would give next."""
    count = 0
    while not until.is_over:
        own = _own_identity(target)
        if own is None:
            time.sleep(SOME_S)
            continue
        (number,) = struct.unpack(">I", own[-4:])
        held = []
        for step in range(1, 30):
            chosen = b"\0" + struct.pack(">I", (number + step) & 0xFFFFFFFF)
            with contextlib.suppress(OSError):
                one = connect(target.port)
                held.append(one)
                handshake(one, chosen)
                count += 1
        time.sleep(SOME_S)
        _own_identity(target)  # this one asks the ROUTER for the next
        for one in held:
            one.close()
    return count


def _own_identity(target: Target) -> bytes | None:
    """What WELCOME tells a client of its name, the end of which was its routing id."""
    said = b""
    with contextlib.suppress(OSError), connect(target.port) as one:
        handshake(one)
        one.sendall(zmtp_frame(hello()))
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            more = one.recv(65_536)
            said += more
            _, found, rest = said.partition(b"session\xc4")
            if found and len(rest) > rest[0]:
                return rest[1 : 1 + rest[0]][-5:]
            if not more:
                break
    return None


def endless_multipart(target: Target, chance: random.Random, until: Until) -> int:
    """One message whose parts never end, before a hello or behind it."""
    part = zmtp_frame(bytes(PART_BYTES), 1)

    def attempt(one: socket.socket) -> None:
        handshake(one)
        if chance.random() < 0.5:
            one.sendall(zmtp_frame(hello()))
        while not until.is_over:
            one.sendall(part)

    return on_connections(target.port, until, attempt)


def bombs(target: Target, chance: random.Random, until: Until) -> int:
    """Frames of millions of empty maps and arrays, for verbs of every kind."""
    count = 0
    verbs = (Verb.PUBLISH, Verb.SUBSCRIBE, Verb.CREATE_TOPIC, Verb.REPORT, Verb.AWAIT_RECEIPTS)
    while not until.is_over:
        filler = chance.choice((b"\x80", b"\x90", b"\xc0", b"\x91"))
        size = chance.choice((BOMB_BYTES, BOMB_BYTES // 10, BOMB_BYTES // 100))
        body = b"\xdd" + struct.pack(">I", size) + filler * size
        topic = b"ordinary" if chance.random() < 0.3 else b"bombs"
        with dealer(target) as one:
            for request in range(2, 6):
                with contextlib.suppress(zmq.Again):
                    verb = chance.choice((*verbs, Verb.HELLO, Verb.PING))
                    one.send(wire.pack_part(verb, request, topic, body), zmq.NOBLOCK)
                    count += 1
            one.poll(int(WAIT_S * 1_000))
    return count


def pings(target: Target, chance: random.Random, until: Until) -> int:
    """PINGs, HELLOs again on the same session, and verbs that there are not."""
    frames = [
        *(wire.pack_part(Verb.PING, number) for number in (1, 0)),
        hello(),
        *(wire.pack_part(verb, 7, b"ordinary") for verb in (0, 5, 99, 127, 144, 255)),
        b"".join(wire.pack_part(Verb.PING, number) for number in range(1, 65)),
    ]
    return flood(target, until, lambda _: chance.choice(frames))


def hellos(target: Target, chance: random.Random, until: Until) -> int:
    """A connection and a session each time, and nothing more."""

    def attempt(one: socket.socket) -> None:
        handshake(one)
        one.sendall(zmtp_frame(hello(secrets.token_hex(8))))

    return on_connections(target.port, until, attempt)


def noise(target: Target, chance: random.Random, until: Until) -> int:
    """Random frames, and frames with good heads and random bodies."""
    verbs = [verb for verb in Verb if verb < 128 and verb not in (Verb.HELLO, Verb.GOODBYE)]
    topics = (b"", b"noise", b"\0w0", b"\0f", b"\xff\xfe", b"n" * 300)

    def frame(number: int) -> bytes:
        content = chance.randbytes(chance.randint(0, 200))
        if chance.random() < 0.3:
            return content
        return wire.pack_part(chance.choice(verbs), number + 1, chance.choice(topics), content)

    return flood(target, until, frame)


def raw_noise(target: Target, chance: random.Random, until: Until) -> int:
    """Random bytes behind a greeting, behind half a one, or at once."""

    def attempt(one: socket.socket) -> None:
        if chance.random() < 0.5:
            handshake(one)
        else:
            one.sendall(GREETING[: chance.randint(0, 64)])
        one.sendall(chance.randbytes(chance.randint(1, 3_000)))

    return on_connections(target.port, until, attempt)


def subscriptions(target: Target, chance: random.Random, until: Until) -> int:
    """Endpoints by the thousand, whose deliveries nobody reads."""

    def frame(number: int) -> bytes:
        endpoint = number % ENDPOINTS_MAX + 1
        interests = ["/".join(chance.choice(("*", "**", "a", "b")) for _ in range(8))]
        body = wire.pack_body([endpoint, interests, None, None, None, 1_000])
        return wire.pack_part(Verb.SUBSCRIBE, number + 2, b"storm", body)

    return flood(target, until, frame, reads=False)


def topics(target: Target, chance: random.Random, until: Until) -> int:
    """As many topics as there may be."""

    def frame(number: int) -> bytes:
        name = f"storm-{chance.randrange(TOPICS_MAX)}".encode()
        return wire.pack_part(Verb.CREATE_TOPIC, number + 2, name, wire.pack_body([{}]))

    return flood(target, until, frame)


def lanes(target: Target, chance: random.Random, until: Until) -> int:
    """Lanes that are half opened, or opened with a token that nobody told of."""
    count = 0
    while not until.is_over:
        held = []
        for _ in range(50):
            one = socket.socket(socket.AF_UNIX)
            one.settimeout(WAIT_S)
            held.append(one)
            with contextlib.suppress(OSError):
                one.connect(os.path.join(target.lanes, f"lane-{chance.randrange(2)}.sock"))
                one.sendall(chance.randbytes(chance.choice((0, 8, 16, 16, 4_000))))
                count += 1
        with dealer(target) as session, contextlib.suppress(zmq.Again):
            for worker in (b"\0w0", b"\0w1", b"\0w9"):
                token = wire.pack_body([chance.randbytes(chance.choice((0, 16, 17)))])
                session.send(wire.pack_part(Verb.LANE, 2, worker, token), zmq.NOBLOCK)
        for one in held:
            one.close()
    return count


# --- HTTP, and connections that do nothing --------------------------------------------------------


def idle(target: Target, chance: random.Random, until: Until) -> int:
    """Connections that say nothing, or begin to and never end."""
    body = b"POST /mq/slow/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
    begins = {
        target.port: (b"", GREETING[:10], GREETING[:40], GREETING, GREETING + zmtp_ready()),
        target.http_port: (b"", b"GET", HEADS, body),
    }
    held: list[socket.socket] = []
    count = 0
    while not until.is_over:
        if len(held) >= IDLE_MAX:
            held.pop(chance.randrange(len(held))).close()
            time.sleep(SOME_S)
        port = chance.choice((target.port, target.port, target.http_port))
        with contextlib.suppress(OSError):
            one = connect(port)
            held.append(one)
            one.sendall(chance.choice(begins[port]))
            count += 1
    for one in held:
        one.close()
    return count


def http_noise(target: Target, chance: random.Random, until: Until) -> int:
    """Bad requests, heads without end, chunks that lie, other origins and hosts."""
    host = b"Host: localhost\r\n"
    requests = (
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0\1\2\3\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: attacker.example\r\n\r\n",
        b"POST /v1/topics/web/messages HTTP/1.1\r\n" + host + b"Origin: http://attacker.example\r\n"
        b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\nhi",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        b"POST /mq/x/messages HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /mq/x/messages HTTP/1.1\r\n" + host + b"Content-Length: 99999999999\r\n\r\n",
        b"PUT /mq/../../x HTTP/1.1\r\n" + host + b"Content-Length: 0\r\n\r\n",
        (b"GET /mq/x/stats HTTP/1.1\r\n" + host + b"\r\n") * 100,
    )

    def attempt(one: socket.socket) -> None:
        one.sendall(chance.choice(requests))
        if chance.random() < 0.5:
            one.recv(1_000)

    return on_connections(target.http_port, until, attempt)


def http_bombs(target: Target, chance: random.Random, until: Until) -> int:
    """Bodies of millions of empty objects, published under /v1."""
    filler = chance.choice((b"{},", b"[],", b"0,"))
    body = b'{"messages": [' + filler * (HTTP_BOMB_BYTES // len(filler)) + b"{}]}"
    head = (
        b"POST /v1/topics/bombs/messages HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )

    def attempt(one: socket.socket) -> None:
        one.sendall(head + body)
        one.recv(1_000)

    return on_connections(target.http_port, until, attempt)


def websockets(target: Target, chance: random.Random, until: Until) -> int:
    """WebSockets from other origins, with random frames, never read."""

    def attempt(one: socket.socket) -> None:
        origin = chance.choice((b"", b"Origin: http://attacker.example\r\n"))
        one.sendall(
            b"GET /v1/topics/web/subscribe?interest=** HTTP/1.1\r\nHost: localhost\r\n"
            b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + origin + b"\r\n"
        )
        one.sendall(b"\x82\xff" + struct.pack(">Q", 1 << 40) + chance.randbytes(1_000))

    return on_connections(target.http_port, until, attempt)


KINDS: Final[dict[str, Kind]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        *(identities, endless_multipart, bombs, pings, hellos, noise, raw_noise, subscriptions),
        *(topics, lanes, idle, http_noise, http_bombs, websockets),
    )
}


def run_job(arguments: list[str], kinds: Mapping[str, Kind]) -> None:
    """Is the one hostile client that a job is for."""
    job: dict[str, Any] = json.loads(arguments[-1])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if not job["near"] and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    count = kinds[job["kind"]](
        Target(*job["target"]), random.Random(job["seed"]), Until(job["seconds"])
    )
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    run_job(sys.argv[1:], KINDS)
