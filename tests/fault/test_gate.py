"""The gate alone, with a real ROUTER behind it: grants, pace, connections that end at any time."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from asterism.config import Address
from asterism.router.gate_host import MESSAGES_MAX, Connection, Gate
from asterism.router.zmtp import COMMANDS_MAX
from tests.fault.test_hostile_peers import COMMAND, GREETING, MIB, WAIT_S, frame, ready

pytestmark = pytest.mark.fault
DEBT_MS = 2_000
PING = frame(b"\x04PING\0\0", COMMAND)


def head_of(size: int) -> bytes:
    """The head of a frame, which announces so much."""
    return struct.pack(">BQ", 2, size)


class Bench:
    """A gate whose clock and whose front-end are the test's."""

    def __init__(self, folder: Path, requests_max: int = 1_000) -> None:
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(f"ipc://{folder}/r")
        address = Address("tcp://127.0.0.1:0", host="127.0.0.1", port=0)
        self.gate = Gate([address], f"{folder}/r", 100, 5_000, requests_max, DEBT_MS)
        self.now_ms = 1_000
        self._clients: list[socket.socket] = []

    def until(self, is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            assert time.monotonic() < deadline, "waited in vain"
            self.gate.turn(self.now_ms)
            time.sleep(0.001)

    def client(self) -> tuple[socket.socket, Connection]:
        """A client with a session."""
        host, port = self.gate.addresses[0].removeprefix("tcp://").split(":")
        client = socket.create_connection((host, int(port)), WAIT_S)
        self._clients.append(client)
        client.sendall(GREETING + ready(b""))
        count = len(self.gate) + 1
        self.until(lambda: len(self.gate) == count)
        connection = list(self.gate.by_routing.values())[-1]
        self.until(lambda: connection.router is not None and connection.handshake_up is None)
        self.gate.begin_session(connection)
        return client, connection

    def take(self, cost: float = 0.0, cut: bool = False) -> Connection | None:
        """The front-end takes the next message; with ``cut``, it ends the connection for it."""

        def is_there() -> bool:
            return bool(self._router.poll(0))

        self.until(is_there)
        routing, *frames = self._router.recv_multipart()
        connection = self.gate.taken(routing, sum(map(len, frames)))
        if connection is not None:
            if cut:
                self.gate.cut(connection, "for a test")
            self.gate.charge_taken(connection, cost, sum(map(len, frames)))
            self.gate.proceed(connection)
        return connection

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.gate.close()
        self._router.close(0)
        self._context.term()


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("g"))
    yield bench
    bench.close()


@pytest.fixture
def unpaced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A bench at which everybody can pay for everything."""
    bench = Bench(tmp_path_factory.mktemp("g"), requests_max=10_000_000)
    yield bench
    bench.close()


def test_a_connection_that_was_cut_for_a_message_gets_no_grant_for_the_next(bench: Bench) -> None:
    client, connection = bench.client()
    client.sendall(frame(b"x") * MESSAGES_MAX + head_of(64 * MIB))
    bench.until(lambda: connection.held)
    bench.take(cut=True)
    assert bench.gate._granted_bytes == 0
    assert connection.is_over and not connection.held


def test_a_client_waits_for_a_grant_once_and_only_for_a_message_that_is_under_way(
    unpaced: Bench,
) -> None:
    gate = unpaced.gate
    large = [unpaced.client() for _ in range(3)]
    for (client, _), size in zip(large, (64, 64, 60), strict=True):
        client.sendall(head_of(size * MIB))
    unpaced.until(lambda: gate._granted_bytes == 188 * MIB)
    (first, one), (second, other) = unpaced.client(), unpaced.client()
    first.sendall(head_of(300 << 10) + bytes(300 << 10) + head_of(10 * MIB))
    unpaced.until(lambda: one.is_waiting)
    second.sendall(head_of(64 * MIB))
    unpaced.until(lambda: other.is_waiting)
    assert unpaced.take() is one
    assert list(gate._waiting) == [one, other]
    large[2][0].close()
    unpaced.until(lambda: not one.is_waiting)
    assert list(gate._waiting) == [other]
    for client, _ in large[:2]:
        client.close()
    unpaced.until(lambda: not other.is_waiting)
    first.close()
    second.close()
    unpaced.until(lambda: not one.client.fileno() >= 0 and not other.client.fileno() >= 0)
    unpaced.now_ms += 10_000
    unpaced.until(lambda: not len(gate))
    assert (gate._granted_bytes, len(gate._granted), len(gate._waiting)) == (0, 0, 0)


def test_a_client_that_asks_too_much_is_held_up_and_goes_on_by_itself(bench: Bench) -> None:
    client, connection = bench.client()
    client.sendall(frame(b"x"))
    bench.take(cost=1_000_000)
    assert connection.is_indebted and connection.is_held_up
    client.sendall(frame(b"y"))
    bench.now_ms += DEBT_MS - 1
    bench.gate.turn(bench.now_ms)
    assert connection.is_held_up, "for as long as a client waits for a sign of life, and no longer"
    assert 0 < bench.gate.wait_ms() <= 2
    bench.now_ms += 1
    assert bench.take() is connection
    bench.now_ms += 60_000
    bench.gate.turn(bench.now_ms)
    assert not connection.is_held_up


def test_a_client_that_owes_more_is_read_a_message_at_a_time_until_it_has_paid(
    bench: Bench,
) -> None:
    client, connection = bench.client()
    client.sendall(frame(b"x"))
    bench.take(cost=30_000)
    client.sendall(frame(b"y") * 50)
    bench.now_ms += DEBT_MS
    bench.until(lambda: connection.held)
    assert connection.frames_up.messages - connection.taken_messages == 1
    bench.take(cost=0)
    assert connection.is_held_up
    bench.now_ms += 60_000
    while connection.taken_messages < 51:
        bench.take(cost=1)
    assert not connection.is_held_up


def test_a_large_message_is_paid_before_it_is_read_and_its_client_is_not_cut_for_that(
    bench: Bench,
) -> None:
    client, connection = bench.client()
    client.sendall(head_of(32 * MIB) + bytes(16))
    bench.until(lambda: connection.is_indebted)
    assert connection.charged_until == 32 * MIB and not connection.granted
    bench.now_ms += DEBT_MS
    client.sendall(bytes(16))
    bench.until(lambda: connection.granted == 32 * MIB)
    assert connection.charged_until == 32 * MIB, "once"
    rest = bytes(32 * MIB - 32)
    sender = threading.Thread(target=client.sendall, args=(rest,))
    sender.start()
    paid_ms = connection.paid_ms
    assert bench.take() is connection
    sender.join()
    assert connection.paid_ms == paid_ms, "its bytes are not charged again"


def test_a_client_whose_messages_cost_much_has_few_of_them_on_their_way(bench: Bench) -> None:
    client, connection = bench.client()
    bench.now_ms += 1_000
    client.sendall(frame(b"x") * 1_000)
    bench.take(cost=1)
    bench.until(lambda: connection.frames_up.messages - connection.taken_messages == MESSAGES_MAX)
    for _ in range(30):
        bench.take(cost=20)
    bench.until(lambda: connection.held)
    assert 1 <= connection.frames_up.messages - connection.taken_messages < MESSAGES_MAX
    assert connection.window == int((1_000 - 30 * 20 - 1) / connection.cost)


def test_a_client_that_leaves_in_debt_is_forgotten(bench: Bench) -> None:
    client, connection = bench.client()
    client.sendall(frame(b"x"))
    bench.take(cost=1_000_000)
    client.close()
    bench.now_ms += 60_000
    bench.until(lambda: not len(bench.gate))
    assert connection.is_over and not bench.gate._indebted


def test_commands_are_charged_and_a_flood_of_them_costs_the_connection(bench: Bench) -> None:
    client, connection = bench.client()
    client.sendall(PING * COMMANDS_MAX)
    bench.until(lambda: connection.frames_up.commands == COMMANDS_MAX)
    assert connection.is_indebted
    other, flooding = bench.client()
    other.sendall(PING * (COMMANDS_MAX + 1))
    bench.until(lambda: flooding.is_over)
    with contextlib.suppress(ConnectionError):
        while other.recv(65_536):
            pass
    assert not connection.is_over
