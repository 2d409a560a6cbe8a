"""Peers that mean harm, with no credential: they abort nobody, starve nobody, and outgrow nothing.

They speak ZMTP by hand, since a ZeroMQ library would not do most of what is done here.
"""

import asyncio
import contextlib
import os
import resource
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import asterism
from asterism import wire
from asterism.router.gate_host import MESSAGES_MAX
from asterism.testing import Broker
from asterism.wire import Verb
from tests.process.conftest import Raw, message

WAIT_S = 30.0
MIB = 1 << 20
MORE, LONG, COMMAND = 1, 2, 4
GREETING = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00" + b"NULL".ljust(52, b"\0")
HELLO = wire.pack_part(Verb.HELLO, 1, b"", wire.pack_body({"versions": [1]}))


def frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return struct.pack(">BQ", flags | LONG, len(body)) + body


def ready(identity: bytes) -> bytes:
    kind = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    return frame(
        b"\x05READY" + kind + b"\x08Identity" + struct.pack(">I", len(identity)) + identity, 4
    )


class Peer:
    """A connection whose bytes are ours to choose."""

    def __init__(self, address: str, identity: bytes = b"", handshake: bool = True) -> None:
        host, port = address.removeprefix("tcp://").split(":")
        self.socket = socket.create_connection((host, int(port)), WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if handshake:
            self.socket.sendall(GREETING + ready(identity))
            self._read(64)
            self.next_frame()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            some = self.socket.recv(size - len(data))
            if not some:
                raise ConnectionError("the broker has closed it")
            data += some
        return data

    def next_frame(self) -> bytes:
        flags, size = self._read(2)
        if flags & LONG:
            (size,) = struct.unpack(">Q", bytes((size,)) + self._read(7))
        return self._read(size)

    def send(self, part: bytes) -> None:
        self.socket.sendall(frame(part))

    def next(self) -> tuple[int, object]:
        data = self.next_frame()
        (part, *_) = wire.read_parts(data)
        return part.verb, wire.read_body(data[part.body : part.end])

    def hello(self) -> bytes:
        """Begins a session; its name."""
        self.send(HELLO)
        verb, body = self.next()
        assert verb == Verb.WELCOME and isinstance(body, dict)
        return bytes(body["session"])

    def is_cut(self, within_s: float) -> bool:
        """Does the broker close it in time, whatever it says before?"""
        deadline = time.monotonic() + within_s
        with contextlib.suppress(ConnectionError):
            while (left := deadline - time.monotonic()) > 0:
                self.socket.settimeout(left)
                try:
                    if not self.socket.recv(65_536):
                        return True
                except TimeoutError:
                    return False
            return False
        return True

    def close(self) -> None:
        self.socket.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(workers=1) as broker:
        yield broker


@pytest.fixture
def fresh() -> Iterator[Broker]:
    """One of its own, for what is measured."""
    with Broker(workers=1) as broker:
        yield broker


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no peak")


def is_served(broker: Broker) -> bool:
    with Raw(broker.address) as raw:
        return raw.ask(Verb.PUBLISH, "served", [[message()]]).verb == Verb.ACCEPTED


# --- the names of connections ---------------------------------------------------------------------


def test_a_peer_that_chooses_the_routing_id_that_comes_next_aborts_nobody(broker: Broker) -> None:
    pids = broker.pids()
    peer = Peer(broker.address)
    counter = int.from_bytes(peer.hello()[-4:], "big")
    chosen = [b"\0" + ((counter + n) % 2**32).to_bytes(4, "big") for n in range(1, 9)]
    hostile = [Peer(broker.address, identity) for identity in chosen]
    for _ in range(3):
        assert is_served(broker)
    assert broker.pids() == pids
    for one in (peer, *hostile):
        one.close()


def test_a_session_is_not_taken_over_by_its_routing_id_when_its_connection_breaks(
    broker: Broker,
) -> None:
    for _ in range(10):
        peer = Peer(broker.address)
        routing = peer.hello()[8:]
        peer.close()
        thief = Peer(broker.address, routing)
        thief.send(wire.pack_part(Verb.PING, 7))
        verb, body = thief.next()
        assert (verb, body[0]) == (Verb.CLOSED, "wrong_state")  # type: ignore[index]
        thief.close()


def test_a_routing_id_that_a_client_chooses_is_not_looked_at(broker: Broker) -> None:
    """Two that choose the same are two clients, each with its own session."""
    first, second = (Peer(broker.address, b"the same") for _ in range(2))
    assert first.hello() != second.hello()
    for number, peer in enumerate((first, second), 1):
        peer.send(wire.pack_part(Verb.PING, number))
        assert peer.next()[0] == Verb.PONG
        peer.close()


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("says_hello", [False, True])
def test_a_message_that_never_ends_does_not_grow_the_front_end(
    fresh: Broker, says_hello: bool
) -> None:
    """One message of at most 64 MiB is held, and a copy of what is on its way."""
    (pid,) = fresh.pids()["frontend"]
    peer = Peer(fresh.address)
    if says_hello:
        peer.hello()
    before = peak_bytes(pid)
    part = frame(bytes(MIB), MORE)
    with pytest.raises(OSError):  # it is cut
        for _ in range(512):
            peer.socket.sendall(part)
    assert is_served(fresh)
    assert fresh.pids()["frontend"] == [pid]
    assert peak_bytes(pid) - before < (96 if says_hello else 16) * MIB
    peer.close()


def test_many_clients_with_half_a_large_message_each_do_not_grow_the_front_end(
    fresh: Broker,
) -> None:
    """All large messages share 256 MiB; those that hold a part of it and do not go on are cut."""
    (pid,) = fresh.pids()["frontend"]
    before = peak_bytes(pid)
    head = struct.pack(">BQ", LONG, 60 * MIB)
    peers = [Peer(fresh.address) for _ in range(24)]

    def half(peer: Peer) -> None:
        peer.hello()
        with contextlib.suppress(OSError):
            peer.socket.sendall(head)
            peer.socket.sendall(bytes(40 * MIB))

    threads = [threading.Thread(target=half, args=(peer,), daemon=True) for peer in peers]
    for thread in threads:
        thread.start()
    for _ in range(3):
        assert is_served(fresh)
    with Raw(fresh.address) as raw:  # large ones of others are served too
        large = raw.ask_again(Verb.PUBLISH, "large", [[message(bytes(MIB - 1))]])
        assert large.verb == Verb.ACCEPTED
    for peer in peers:
        peer.close()
    for thread in threads:
        thread.join(WAIT_S)
    assert peak_bytes(pid) - before < 320 * MIB


def maps(size: int) -> bytes:
    return b"\x91\xdd" + struct.pack(">I", size) + b"\x80" * size


def test_sixty_megabytes_of_empty_maps_are_refused_at_little_cost(fresh: Broker) -> None:
    """In memory, the frame and its copy; in time, none that others on the worker would notice."""
    (worker,) = fresh.pids()["worker"]
    with Raw(fresh.address) as raw, Raw(fresh.address) as other:
        assert other.publish("other", message())
        before = peak_bytes(worker)
        part = wire.pack_part(Verb.PUBLISH, 9, b"maps", maps(60_000_000))
        raw.socket.send(part)
        longest = 0.0
        while not raw.socket.poll(0):
            began = time.monotonic()
            assert other.publish("other", message())
            longest = max(longest, time.monotonic() - began)
        assert raw.next().body[0] == "too_large"
        assert longest < 2
    assert peak_bytes(worker) - before < 256 * MIB
    assert fresh.pids()["worker"] == [worker]


def test_many_large_frames_at_once_do_not_grow_the_broker(fresh: Broker) -> None:
    (pid,) = fresh.pids()["frontend"]
    (worker,) = fresh.pids()["worker"]
    before = peak_bytes(pid), peak_bytes(worker)
    part = wire.pack_part(Verb.PUBLISH, 9, b"maps", maps(60_000_000))
    with Raw(fresh.address) as raw:
        for _ in range(12):
            raw.socket.send(part, copy=False)
        for _ in range(12):
            assert raw.next().body[0] in ("too_large", "busy")
        assert is_served(fresh)
    grown = [peak_bytes(pid) - before[0], peak_bytes(worker) - before[1]]
    assert grown[0] < 320 * MIB
    assert grown[1] < 320 * MIB


@pytest.mark.parametrize("verb", [Verb.SUBSCRIBE, Verb.REPORT, Verb.STATUS, Verb.HELLO])
def test_a_verb_without_a_payload_has_a_small_body(broker: Broker, verb: Verb) -> None:
    topic = "\0w0" if verb == Verb.STATUS else "" if verb == Verb.HELLO else "small"
    with Raw(broker.address) as raw:
        assert raw.refusal(verb, topic, bytes(4 * MIB)) == "too_large"
        assert raw.ask(Verb.PING, "", None).verb == Verb.PONG


def test_clients_that_do_not_read_do_not_grow_the_front_end(fresh: Broker) -> None:
    """Each may be owed 64 MiB, and all together 512; the bytes that are owed are known."""
    (pid,) = fresh.pids()["frontend"]
    before = peak_bytes(pid)
    peers = [Peer(fresh.address) for _ in range(4)]
    for number, peer in enumerate(peers):
        peer.hello()
        fields = [1, ["**"], f"r{number}", None, None, 1_000]
        peer.send(wire.pack_part(Verb.SUBSCRIBE, 1, b"unread", wire.pack_body(fields)))
        assert peer.next()[0] == Verb.REPLY
    with asterism.connect_blocking(fresh.address) as node:
        for _ in range(64):
            node.publish("unread", bytes(MIB - 1), mode="online", subject="a")
    assert is_served(fresh)
    assert peak_bytes(pid) - before < (4 * 64 + 64) * MIB
    for peer in peers:
        peer.close()


# --- connections ----------------------------------------------------------------------------------


@contextlib.contextmanager
def few_files(soft: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_silent_connections_lock_nobody_out_and_are_cut() -> None:
    """Some say nothing, some half a handshake, some all of it and no hello."""
    with few_files(1_024):
        broker = Broker(workers=1).start()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    peers: list[Peer] = []
    try:
        for number in range(1_100):
            peer = Peer(broker.address, handshake=number % 3 == 2)
            if number % 3 == 1:
                peer.socket.sendall(GREETING + ready(b"")[:10])
            peers.append(peer)
        assert is_served(broker)
        deadline = time.monotonic() + WAIT_S
        assert all(peer.is_cut(max(0.1, deadline - time.monotonic())) for peer in peers)
        assert is_served(broker)
    finally:
        for peer in peers:
            peer.close()
        broker.stop()


def test_at_the_bound_of_connections_those_without_a_session_make_room() -> None:
    with Broker(workers=1, config={"max_connections": 20, "hello_timeout": 60}) as broker:
        known = Peer(broker.address)
        known.hello()
        silent = [Peer(broker.address, handshake=False) for _ in range(40)]
        assert is_served(broker)
        known.send(wire.pack_part(Verb.PING, 2))
        assert known.next()[0] == Verb.PONG
        assert sum(peer.is_cut(0.05) for peer in silent) >= 20
        for peer in (known, *silent):
            peer.close()


def test_a_client_that_asks_too_much_is_read_more_slowly_and_nobody_else_is() -> None:
    count, most = 300, 4_000
    slow = {"max_requests": most, "lanes": False}
    with (
        Broker(workers=1, config=slow) as broker,
        Raw(broker.address) as raw,
        asterism.connect_blocking(broker.address) as node,
    ):
        began = time.monotonic()
        for _ in range(count):
            raw.send(Verb.PING, "", None)
        node.publish("orders", b"x")
        early = 0
        while raw.next_within(0) is not None:
            early += 1
        assert early < count, "the other client did not wait for all of them"
        for _ in range(count - early):
            assert raw.next().verb == Verb.PONG
        # Each costs 40. What comes within a second may come at once, and the last ones are owed.
        assert time.monotonic() - began > 40 * (count - MESSAGES_MAX) / most - 1


def test_a_flood_of_what_cannot_be_understood_costs_the_connection_and_no_long_log(
    fresh: Broker,
) -> None:
    peer = Peer(fresh.address)
    peer.hello()
    bad = frame(b"\x01bad") * 500
    with contextlib.suppress(OSError):
        for _ in range(10):
            peer.socket.sendall(bad)
    assert peer.is_cut(WAIT_S)
    for _ in range(300):
        Peer(fresh.address, handshake=False).socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert is_served(fresh)
    assert fresh.logs().count("cuts a connection") < 50


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n",
        b"\xff" + bytes(8) + b"\x00",
        b"\xff" + bytes(8) + b"\x7f\x01",
        GREETING[:12] + b"PLAIN".ljust(52, b"\0"),
        GREETING + frame(b"\x05HELLO", COMMAND),
        GREETING + frame(b"\x05READY\xff", COMMAND),
        GREETING + struct.pack(">BQ", COMMAND | LONG, 2**60),
        GREETING + ready(b"") + frame(b"\x09SUBSCRIBE", COMMAND),
        GREETING + ready(b"") + b"\x08\x00",
        GREETING + ready(b"") + struct.pack(">BQ", LONG, 2**63),
    ],
    ids=lambda sent: str(len(sent)),
)
def test_what_is_not_zmtp_of_a_dealer_is_cut_at_once(broker: Broker, sent: bytes) -> None:
    peer = Peer(broker.address, handshake=False)
    peer.socket.sendall(sent)
    assert peer.is_cut(2)
    assert is_served(broker)


# --- sockets in the file system -------------------------------------------------------------------


def test_a_broker_may_listen_on_a_path_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()  # nobody listens there: it is replaced
    config = {"listen": f"ipc://{path},tcp://127.0.0.1:0"}
    with Broker(workers=1, config=config) as broker:
        assert broker.address == f"ipc://{path}"
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
        with asterism.connect_blocking(broker.address) as node:
            node.publish("t", b"x", subject="a")
        broker.restart("frontend")
        with asterism.connect_blocking(broker.address) as node:
            node.publish("t", b"x", subject="a")
        with (
            pytest.raises(asterism.testing.StartError, match="Address already in use"),
            Broker(workers=1, config=config),
        ):
            pass
        assert is_served(broker)
    assert not path.exists()


# --- names that are none, and clients that are slowed ---------------------------------------------


def test_a_topic_of_sixty_thousand_bytes_is_refused_and_remembered_nowhere(fresh: Broker) -> None:
    (pid,) = fresh.pids()["frontend"]
    before = peak_bytes(pid)
    peers = [Peer(fresh.address) for _ in range(2)]
    for peer in peers:
        peer.hello()
    for number in range(1_000):
        topic = (b"%08d" % number).ljust(65_535, b"a")
        peers[number % 2].send(wire.pack_part(Verb.PUBLISH, 5, topic, b""))
        assert peers[number % 2].next()[0] == Verb.REFUSE
    assert peak_bytes(pid) - before < 40 * MIB


def test_a_name_that_is_no_text_ends_no_worker_by_a_lane(fresh: Broker) -> None:
    workers = fresh.pids()["worker"]
    peer = Peer(fresh.address)
    peer.send(HELLO)
    _, welcome = peer.next()
    assert isinstance(welcome, dict)
    token = os.urandom(wire.LANE_TOKEN_BYTES)
    with socket.socket(socket.AF_UNIX) as lane:
        lane.settimeout(WAIT_S)
        lane.connect(f"{welcome['lanes']}/{wire.LANE_SOCKET.format(0)}")
        lane.sendall(token)
        peer.send(wire.pack_part(Verb.LANE, 2, wire.worker_topic(0), wire.pack_body((token,))))
        assert peer.next()[0] == Verb.REPLY
        for topic in (b"\xff" * 65_535, b"\xff" * 200, b"a" * 300):
            lane.sendall(wire.pack_part(Verb.DESCRIBE, 3, topic, wire.pack_body(None)))
            assert lane.recv(65_536)
    assert is_served(fresh)
    assert fresh.pids()["worker"] == workers


def test_a_client_that_the_broker_does_not_read_is_not_cut_as_silent() -> None:
    slow = {"max_requests": 4_000, "lanes": False, "heartbeat": 0.2}

    async def ask_much(address: str) -> None:
        async with asterism.connect(address) as node:
            await node.create_topic("t")
            await asyncio.gather(*(node.describe("t") for _ in range(300)))
            await node.publish("t", b"x")

    with Broker(workers=1, config=slow) as broker:
        asyncio.run(ask_much(broker.address))
        assert "cuts" not in broker.logs()
