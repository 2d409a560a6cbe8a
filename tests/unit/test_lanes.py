"""The sockets of lanes, in a worker: whose they are, what is read and sent, and how they end."""

import contextlib
import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from asterism import PeerError, wire
from asterism.actors import lanes_host
from asterism.actors.lanes_host import Lanes
from asterism.wire import Verb

SESSION, OTHER = b"s" * wire.SESSION_BYTES, b"o" * wire.SESSION_BYTES
WAIT_S = 10.0
PING = wire.pack_part(Verb.PING, 1)
_tokens = itertools.count(1)


class World:
    """The lanes of a worker, and clients that connect to them."""

    def __init__(self, path: Path, alert: bool = False) -> None:
        self.path = str(path)
        self.lanes = Lanes(self.path, alert)
        self.clients: list[socket.socket] = []

    def connect(self, token: bytes | None = None) -> tuple[socket.socket, bytes]:
        """A client that has written its token."""
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(WAIT_S)
        client.connect(self.path)
        self.clients.append(client)
        token = next(_tokens).to_bytes(wire.LANE_TOKEN_BYTES, "big") if token is None else token
        client.sendall(token)
        return client, token

    def open(self, session: bytes = SESSION) -> socket.socket:
        """A client whose lane is claimed."""
        client, token = self.connect()
        self.claim(session, token)
        return client

    def claim(self, session: bytes, token: bytes) -> None:
        self.take_in()
        self.lanes.claim(session, token)

    def take_in(self) -> None:
        while not self.lanes.take_in():
            pass

    def turn(self) -> list[tuple[bytes, list[bytes]]]:
        """Waits until something has come; the parts of it, by session."""
        self.lanes.wait(int(WAIT_S * 1_000))
        return self.read()

    def read(self) -> list[tuple[bytes, list[bytes]]]:
        return [
            (session, [data[part.begin : part.end] for part in parts])
            for session, data, parts in self.lanes.read()
        ]

    def look(self) -> list[tuple[bytes, list[bytes]]]:
        """What there is to read now."""
        self.lanes.wait(0)
        return self.read()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.lanes.end()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "lane-0.sock")
    yield world
    world.close()


def is_cut(client: socket.socket) -> bool:
    """Has the worker closed it? What it sent before is passed over."""
    try:
        while client.recv(1 << 20):
            pass
    except ConnectionResetError:
        pass  # something that was sent to it was not read
    except TimeoutError:
        return False
    return True


def test_lanes_tell_whether_something_has_come(world: World) -> None:
    client, other = world.open(), world.open(OTHER)
    assert not world.lanes.has_input()
    client.sendall(PING)
    assert world.lanes.has_input()
    world.lanes.wait(0)
    other.sendall(PING)
    assert world.lanes.has_input(), "what a turn had no time for counts too"
    assert [session for session, _ in world.read() + world.look()] == [SESSION, OTHER]
    assert not world.lanes.has_input()


def is_open(client: socket.socket) -> bool:
    """Has the worker neither closed it nor sent anything?"""
    client.setblocking(False)
    try:
        client.recv(1)
    except BlockingIOError:
        return True
    finally:
        client.settimeout(WAIT_S)
    return False


def taken(client: socket.socket) -> bytes:
    """Some of what the worker has sent."""
    data = client.recv(1 << 20)
    assert data, "the lane is cut"
    return data


def received(client: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (more := client.recv(size - len(data))):
        data += more
    return bytes(data)


def refusal(world: World, token: bytes, session: bytes = SESSION) -> str:
    with pytest.raises(PeerError) as refused:
        world.claim(session, token)
    return refused.value.code


# --- whose they are -----------------------------------------------------------------------------


def test_a_session_claims_the_lane_of_its_token(world: World) -> None:
    first, one = world.connect()
    second, two = world.connect()
    world.claim(SESSION, two)
    world.claim(OTHER, one)
    assert len(world.lanes) == 2
    assert world.lanes.has(SESSION) and world.lanes.has(OTHER)
    first.sendall(PING)
    second.sendall(PING * 2)
    assert sorted(world.turn() + world.look()) == [(OTHER, [PING]), (SESSION, [PING, PING])]
    assert world.lanes.send(SESSION, b"for the second")
    assert world.lanes.send(OTHER, b"for the first")
    assert received(first, 13) == b"for the first"
    assert received(second, 14) == b"for the second"


def test_a_token_that_nobody_wrote_is_refused(world: World) -> None:
    assert refusal(world, bytes(16)) == "wrong_state"
    client, token = world.connect()
    assert refusal(world, bytes(16)) == "wrong_state"
    assert not world.lanes.has(SESSION) and len(world.lanes) == 0
    world.claim(SESSION, token)
    assert refusal(world, token, OTHER) == "wrong_state", "it is another's"
    assert is_open(client)


def test_connections_are_taken_in_a_few_at_a_time(world: World) -> None:
    """A worker that takes in all that wait holds up everybody else."""
    tokens = [world.connect()[1] for _ in range(lanes_host.ACCEPTS_MAX + 1)]
    assert not world.lanes.take_in()
    have_connected = [world.lanes.has_connected(token) for token in tokens]
    assert have_connected == [True] * lanes_host.ACCEPTS_MAX + [False]
    assert world.lanes.take_in()
    assert world.lanes.has_connected(tokens[-1])


def test_a_token_that_was_written_twice_is_the_first_one_s(world: World) -> None:
    first, token = world.connect()
    second, _ = world.connect(token)
    world.claim(SESSION, token)
    first.sendall(PING)
    assert world.turn() == [(SESSION, [PING])]
    assert is_cut(second)


def test_a_connection_that_has_not_written_its_token_yet_may_still(world: World) -> None:
    client, _ = world.connect(b"")
    assert refusal(world, b"k" * 16) == "wrong_state"
    client.sendall(b"k" * 16)
    world.claim(SESSION, b"k" * 16)


@pytest.mark.parametrize("token", [b"", b"short"])
def test_a_connection_that_leaves_before_its_token_is_whole_is_forgotten(
    world: World, token: bytes
) -> None:
    client, _ = world.connect(token)
    client.shutdown(socket.SHUT_WR)
    assert refusal(world, token.ljust(16, b"\0")) == "wrong_state"
    assert is_cut(client)


def test_a_lane_that_was_given_up_before_it_was_claimed_is_refused(world: World) -> None:
    """Its client claims another by now, and its end would be taken for the end of that."""
    client, token = world.connect()
    client.sendall(PING)
    client.close()
    assert refusal(world, token) == "wrong_state"
    assert not world.lanes.is_over(SESSION)


def test_a_lane_is_not_read_before_it_is_claimed(world: World) -> None:
    client, token = world.connect()
    client.sendall(PING)
    world.take_in()
    assert world.look() == [], "nothing is read of it"
    client.sendall(PING)
    world.claim(SESSION, token)
    assert world.turn() == [(SESSION, [PING, PING])]


def test_connections_that_nobody_claims_have_a_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_host, "UNCLAIMED_MAX", 3)
    connected = [world.connect() for _ in range(5)]
    world.take_in()
    assert [is_cut(client) for client, _ in connected[:2]] == [True, True]
    assert all(is_open(client) for client, _ in connected[2:])
    assert refusal(world, connected[1][1]) == "wrong_state"
    world.claim(SESSION, connected[2][1])


def test_lanes_have_a_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_host, "LANES_MAX", 1)
    first = world.open()
    second, token = world.connect()
    assert refusal(world, token, OTHER) == "busy"
    assert is_cut(second) and is_open(first)
    assert len(world.lanes) == 1
    world.lanes.close(SESSION)
    world.open(OTHER)


def test_the_socket_of_a_worker_that_was_killed_is_taken_over(tmp_path: Path) -> None:
    killed = World(tmp_path / "lane-0.sock")
    after = World(tmp_path / "lane-0.sock")
    after.open()
    for world in (killed, after):
        world.close()


def test_without_a_path_there_are_no_lanes() -> None:
    lanes = Lanes(None)
    assert lanes.wait(0) is False
    with pytest.raises(PeerError):
        lanes.claim(SESSION, bytes(16))
    assert not lanes.send(SESSION, b"x")
    lanes.end()


# --- what comes ---------------------------------------------------------------------------------


def test_a_part_in_pieces_is_there_once_it_is_whole(world: World) -> None:
    client = world.open()
    client.sendall(PING + PING[:9])
    assert world.turn() == [(SESSION, [PING])]
    client.sendall(PING[9:])
    assert world.turn() == [(SESSION, [PING])]


def test_a_part_that_is_larger_than_one_read_comes_with_its_last(
    world: World,
) -> None:
    part = wire.pack_part(Verb.PUBLISH, 1, b"t", bytes(lanes_host.READ_BYTES))
    client = world.open()
    client.settimeout(0)
    sent = turns = 0
    found: list[tuple[bytes, list[bytes]]] = []
    while not found:
        with contextlib.suppress(BlockingIOError):
            sent += client.send(part[sent:]) if sent < len(part) else 0
        found = world.turn()
        turns += 1
    assert turns > 1, "each lane has its turn"
    assert found == [(SESSION, [part])]


def test_wait_tells_whether_something_else_has_something_to_say(world: World) -> None:
    here, there = socket.socketpair()
    with here, there:
        world.lanes.watch(here.fileno())
        assert world.lanes.wait(0) is False
        client = world.open()
        client.sendall(PING)
        assert world.lanes.wait(int(WAIT_S * 1_000)) is False
        assert world.read() == [(SESSION, [PING])]
        there.sendall(b"!")
        assert world.lanes.wait(int(WAIT_S * 1_000)) is True
        assert world.read() == []


def test_who_does_not_read_on_gets_the_rest_with_the_next_wait(world: World) -> None:
    clients = {session: world.open(session) for session in (SESSION, OTHER)}
    for client in clients.values():
        client.sendall(PING)
    world.lanes.wait(int(WAIT_S * 1_000))
    session, _, parts = next(world.lanes.read())
    assert len(parts) == 1
    ((left, again),) = world.turn()
    assert {session, left} == {SESSION, OTHER} and again == [PING]


@pytest.mark.parametrize(
    "garbage",
    [
        bytes(wire.HEAD.size),
        PING + b"\xff" * wire.HEAD.size,
        wire.HEAD.pack(wire.VERSION, Verb.PUBLISH, 0, 0, 1, 0, wire.FRAME_BYTES_MAX),
    ],
    ids=["another version", "behind a part", "too large"],
)
def test_garbage_cuts_a_lane_and_no_other(world: World, garbage: bytes) -> None:
    client, good = world.open(), world.open(OTHER)
    client.sendall(garbage)
    assert world.turn() == []
    assert is_cut(client) and is_open(good)
    assert world.lanes.take_ended() == [SESSION]
    assert not world.lanes.has(SESSION) and world.lanes.has(OTHER)


# --- what goes ----------------------------------------------------------------------------------


def test_what_a_client_does_not_take_at_once_comes_whole_and_in_order(world: World) -> None:
    client = world.open()
    large = [bytes([number]) * 3_000_000 for number in range(1, 5)]
    for data in large:
        assert world.lanes.send(SESSION, data), "nobody waits for a client"
    got = client.recv(100_000)  # there is room again, and others were before
    assert world.lanes.send(SESSION, b"small")
    wanted = b"".join(large) + b"small"
    while len(got) < len(wanted):
        world.look()
        got += taken(client)
    assert got == wanted
    world.look()
    world.lanes.wait(0)
    assert not world.lanes._ready, "that it would take more wakes nobody"
    assert world.lanes.send(SESSION, PING)
    assert received(client, len(PING)) == PING, "the outbox is empty: it goes at once again"


def test_a_client_may_be_read_while_it_does_not_take(world: World) -> None:
    client = world.open()
    world.lanes.send(SESSION, bytes(5_000_000))
    client.sendall(PING)
    assert world.turn() == [(SESSION, [PING])]


def fill(world: World) -> None:
    """Sends past the bound of an outbox."""
    for _ in range(6):
        world.lanes.send(SESSION, bytes(1_000_000))


def test_a_client_that_takes_nothing_for_long_is_cut_at_the_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_host, "OUTBOX_BYTES_MAX", 2_000_000)
    monkeypatch.setattr(lanes_host, "STALLED_S", 0.0)
    client = world.open()
    fill(world)
    assert not world.lanes.has(SESSION)
    assert world.lanes.take_ended() == [SESSION]
    assert is_cut(client)


def test_a_client_that_has_not_had_the_time_to_take_it_is_not_cut(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn may have more for it than the bound, and it reads as fast as it can."""
    monkeypatch.setattr(lanes_host, "OUTBOX_BYTES_MAX", 2_000_000)
    monkeypatch.setattr(lanes_host, "STALLED_S", 3_600.0)
    client = world.open()
    fill(world)
    got = 0
    while got < 6_000_000:
        world.look()
        got += len(taken(client))
    assert world.lanes.has(SESSION)


def test_a_client_that_takes_something_now_and_then_is_not_cut(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(lanes_host, "monotonic", lambda: now[0])
    monkeypatch.setattr(lanes_host, "OUTBOX_BYTES_MAX", 2_000_000)
    client = world.open()
    for _ in range(4):
        fill(world)
        now[0] += lanes_host.STALLED_S - 1
        fill(world)
        assert world.lanes.has(SESSION), "it is not that long ago"
        while not is_open(client):  # until it has taken all that the system holds
            taken(client)
        world.turn()
    now[0] += lanes_host.STALLED_S
    fill(world)
    assert not world.lanes.has(SESSION), "that it takes nothing any more is noticed"


def test_a_session_whose_lane_is_over_is_sent_nothing_more_by_any_way(world: World) -> None:
    """It would overtake what was cut off; and the session begins again anyway."""
    client = world.open()
    client.close()
    assert world.lanes.send(SESSION, b"1"), "it is lost with the lane"
    assert world.lanes.send(SESSION, b"2")
    assert world.lanes.take_ended() == [SESSION]
    assert not world.lanes.send(SESSION, b"3"), "from here on it goes through the front-end"


def test_a_session_without_a_lane_is_sent_nothing_here(world: World) -> None:
    world.connect()
    assert not world.lanes.send(SESSION, PING)
    assert not world.lanes.has(SESSION)


# --- the end ------------------------------------------------------------------------------------


def test_a_client_that_leaves_is_told_of_once(world: World) -> None:
    client, good = world.open(), world.open(OTHER)
    client.sendall(PING)
    client.close()
    assert world.turn() == [(SESSION, [PING])], "what it sent before counts"
    assert world.lanes.take_ended() == []
    assert world.turn() == []
    assert world.lanes.take_ended() == [SESSION]
    assert world.lanes.take_ended() == []
    assert len(world.lanes) == 1 and is_open(good)


def test_a_lane_that_its_client_closed_is_over_for_what_came_behind_it(world: World) -> None:
    """Whatever there is still to be read of it: its client goes on through the front-end."""
    client = world.open()
    client.sendall(PING)
    assert not world.lanes.is_over(SESSION)
    client.close()
    assert not world.lanes.is_over(OTHER)
    assert world.lanes.is_over(SESSION)
    assert world.lanes.is_over(SESSION), "until it is taken note of"
    assert world.lanes.take_ended() == [SESSION]
    assert not world.lanes.is_over(SESSION)
    assert world.look() == []


def test_a_lane_that_is_closed_by_the_worker_is_not_told_of(world: World) -> None:
    client = world.open()
    assert world.lanes.close(SESSION)
    assert not world.lanes.close(SESSION)
    assert is_cut(client)
    assert world.lanes.take_ended() == []
    assert not world.lanes.is_over(SESSION)


def test_after_its_lane_is_over_a_session_may_have_another(world: World) -> None:
    world.open().close()
    assert world.turn() == []
    assert world.lanes.take_ended() == [SESSION]
    client = world.open()
    client.sendall(PING)
    assert world.turn() == [(SESSION, [PING])]


def test_all_lanes_can_be_closed_and_further_ones_come(world: World) -> None:
    first, second = world.open(), world.open(OTHER)
    world.lanes.close_all()
    assert is_cut(first) and is_cut(second)
    assert len(world.lanes) == 0 and world.lanes.take_ended() == []
    client = world.open()
    client.sendall(PING)
    assert world.turn() == [(SESSION, [PING])]


def test_who_has_connected_may_claim_a_lane_though_all_were_closed_meanwhile(world: World) -> None:
    """He may have heard of a new front-end sooner than the worker, which closes all for it."""
    client, token = world.connect()
    world.take_in()
    world.lanes.close_all()
    world.claim(SESSION, token)
    client.sendall(PING)
    assert world.turn() == [(SESSION, [PING])]


def test_at_the_end_nobody_can_connect_any_more(tmp_path: Path) -> None:
    world = World(tmp_path / "lane-0.sock")
    client = world.open()
    unclaimed, _ = world.connect()
    world.take_in()
    world.lanes.end()
    assert is_cut(client) and is_cut(unclaimed)
    with pytest.raises(OSError):
        world.connect()


# --- staying awake ----------------------------------------------------------------------------


class Arrivals:
    """Stands for what a worker waits on and for its clock: something comes at each of these times.

    ``asleep`` has the times at which it went to sleep.
    """

    def __init__(self, at: list[float]) -> None:
        self.now = 0.0
        self.at = at
        self.asleep: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def poll(self, timeout_s: float, most: int) -> list[tuple[int, int]]:
        if timeout_s:
            self.asleep.append(round(self.now, 6))
            self.now = max(self.now, self.at[0])
        else:
            self.now += 0.000_01
        if self.now < self.at[0]:
            return []
        self.at.pop(0)
        return [(-1, 1)]

    def close(self) -> None:
        """As a poll that is real has to be."""


def slept_at(
    world: World, monkeypatch: pytest.MonkeyPatch, at: list[float], size: int = 100
) -> list[float]:
    """When a worker falls asleep that something of this size comes to at these times."""
    arrivals, count = Arrivals(list(at)), len(at)
    monkeypatch.setattr(lanes_host, "monotonic", arrivals.monotonic)
    monkeypatch.setattr(world.lanes, "_epoll", arrivals)
    for _ in range(count):
        world.lanes.wait(1_000)
        world.lanes._ready.clear()
        world.lanes._taken_bytes += size
    return arrivals.asleep


@pytest.fixture
def alert(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "lane-1.sock", alert=True)
    yield world
    world.close()


def test_a_worker_in_a_dialogue_stays_awake(alert: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first short wait shows that it is one; through the next ones it is awake.
    assert slept_at(alert, monkeypatch, [1, 1.000_1, 1.000_25, 1.000_4]) == [0, 1]


def test_a_worker_falls_asleep_when_nothing_comes_soon(
    alert: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = slept_at(alert, monkeypatch, [1, 1.000_1, 5, 5.000_5, 5.001, 5.001_1, 5.001_2])
    # Awake for 0.2 ms behind the second; asleep at once from then on, until a wait is short again.
    assert slept == [0, 1, pytest.approx(1.000_3), 5, 5.000_5, 5.001]


def test_a_worker_sleeps_between_large_things(
    alert: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = lanes_host.SMALL_BYTES + 1
    assert len(slept_at(alert, monkeypatch, [1, 1.000_1, 1.000_2, 1.000_3], size)) == 4


def test_a_worker_that_is_told_to_sleeps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(slept_at(world, monkeypatch, [1, 1.000_1, 1.000_2, 1.000_3])) == 4


# --- clients that send much ----------------------------------------------------------------------


def test_many_parts_of_one_lane_come_in_slices_with_others_in_between(world: World) -> None:
    many = [wire.pack_part(Verb.PING, number) for number in range(2 * lanes_host.SLICE_PARTS + 1)]
    world.open().sendall(b"".join(many))
    world.lanes.wait(int(WAIT_S * 1_000))
    world.open(OTHER).sendall(PING)
    got: list[tuple[bytes, list[bytes]]] = []
    world.lanes.wait(0)
    while sum(len(parts) for _, parts in got) <= len(many):
        got += world.read() or world.look()
    assert max(len(parts) for _, parts in got) == lanes_host.SLICE_PARTS
    assert [part for session, parts in got if session == SESSION for part in parts] == many
    assert (OTHER, [PING]) in got[:-1]


def test_parts_that_are_put_back_come_again_ahead_of_what_follows(world: World) -> None:
    client = world.open()
    first, second = wire.pack_part(Verb.PING, 1), wire.pack_part(Verb.PING, 2)
    client.sendall(first + second)
    world.lanes.wait(int(WAIT_S * 1_000))
    for session, data, parts in world.lanes.read():
        world.lanes.put_back(session, data, parts[1:])
        break
    client.sendall(PING)
    assert world.look() == [(SESSION, [second])]
    assert world.turn() == [(SESSION, [PING])]


def test_a_client_that_takes_nothing_is_not_read_past_its_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_host, "OUTBOX_BYTES_MAX", 1_000)
    client = world.open()
    fill(world)
    client.sendall(PING)
    assert world.look() == []
    while not (read := world.look()):
        taken(client)
    assert read == [(SESSION, [PING])]
