"""Clients of the NATS door in one process without a broker: who is heard when, what is held of
them, and what ends whom.

The server and its clients are the real ones. What they write is caught where a connection would
take it, and the broker is away.
"""

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

from asterism.gateways.nats import server as module
from asterism.gateways.nats.client import OPERATIONS_MAX, STEP, Client
from asterism.gateways.nats.door import Settings
from asterism.gateways.nats.exchange import Presence
from asterism.gateways.nats.protocol import Publication
from asterism.gateways.nats.server import FANOUT_MAX, Server

QUIET = b'CONNECT {"verbose":false,"pedantic":false}\r\n'


class Away:
    """The broker's side, with nobody there."""

    is_full = False

    def __init__(self) -> None:
        self.told: list[bytes] = []

    def want(self, interest: str, queue: bytes | None) -> None:
        return None

    def tell(self, publication: Publication, body: bytes) -> None:
        self.told.append(publication.subject)

    def end_turn(self) -> None:
        pass

    def after_barrier(
        self, reached: Callable[[], None], wanted: Iterable[tuple[Presence, int]] = ()
    ) -> None:
        asyncio.get_running_loop().call_soon(reached)


class Line(asyncio.Transport):
    """A connection whose other end reads what it is told to."""

    def __init__(self, reads: bool = True) -> None:
        super().__init__()
        self.reads = reads
        self.written: list[bytes] = []
        self.unread = 0
        self.may_read = True
        self.ended = ""

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))
        self.unread += 0 if self.reads else len(data)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        self.may_read = False

    def resume_reading(self) -> None:
        self.may_read = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = self.ended or "eof"

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"
        self.unread = 0

    @property
    def said(self) -> bytes:
        return b"".join(self.written)


class Door:
    """A server, and clients by their connections."""

    def __init__(self, **settings: Any) -> None:
        self._numbers = itertools.count(1)
        self.exchange = Away()
        self.server = Server(Settings(**settings), 1_000, ("127.0.0.1", 4222))
        self.server.exchange = self.exchange  # type: ignore[assignment]

    def client(self, said: bytes = QUIET, reads: bool = True) -> tuple[Client, Line]:
        client, line = Client(self.server, next(self._numbers)), Line(reads)
        client.connection_made(line)
        if said:
            client.data_received(said)
        return client, line

    async def until(self, reached: Callable[[], bool], turns: int = 100_000) -> None:
        for _ in range(turns):
            if reached():
                return
            await asyncio.sleep(0)
        raise AssertionError("it does not come about")


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def messages(said: bytes) -> int:
    return said.count(b"MSG ")


def test_one_that_says_little_is_heard_before_one_that_says_much_is_through() -> None:
    async def test() -> None:
        door = Door()
        _, ears = door.client(QUIET + b"SUB modest 1\r\n")
        greedy, line = door.client()
        greedy.data_received(b"PUB greedy 0\r\n\r\n" * 100_000)
        assert not line.may_read, "it is read on when this is worked off"
        before = greedy.in_messages
        assert before < 50_000
        modest, _ = door.client()
        modest.data_received(b"PUB modest 0\r\n\r\n")
        await door.until(lambda: messages(ears.said) == 1, turns=10)
        assert greedy.in_messages < 100_000
        await door.until(lambda: greedy.in_messages == 100_000 and line.may_read)

    run(test)


def test_those_that_say_much_share_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        for name in ("TURN_S", "TURN_ALONE_S"):  # on a fast machine one turn would do for many
            monkeypatch.setattr(module, name, 0.0)
        door = Door()
        greedy = [door.client()[0] for _ in range(20)]
        for client in greedy:
            client.data_received(b"PUB greedy 0\r\n\r\n" * 2_000)
        while any(client.in_messages < 2_000 for client in greedy):
            before = [client.in_messages for client in greedy]
            await asyncio.sleep(0)
            after = [client.in_messages for client in greedy]
            assert sum(after) - sum(before) <= 2 * STEP
            assert max(after) - min(after) <= 3 * STEP

    run(test)


def test_what_has_not_its_turn_waits_as_bytes() -> None:
    """As operations it took up to twenty times its room."""

    async def test() -> None:
        door = Door()
        client, _ = door.client()
        said = b"PING\r\n" + b"SUB a 1\r\n" * 20_000
        client.data_received(said)
        assert len(client._operations) <= OPERATIONS_MAX
        assert len(said) - 9 * OPERATIONS_MAX - 99 < client.parser.held == client.counted
        assert door.server.waiting_bytes == client.counted
        await door.until(lambda: client.parser.held == 0)
        assert door.server.waiting_bytes == 0

    run(test)


def test_a_message_for_very_many_is_handed_out_in_parts_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        for name in ("TURN_S", "TURN_ALONE_S"):  # on a fast machine all would be done in one
            monkeypatch.setattr(module, name, 0.0)
        door = Door()
        subs = b"".join(b"SUB a.> %d\r\n" % number for number in range(5_000))
        _, greedy = door.client(QUIET + subs)
        _, modest = door.client(QUIET + b"SUB a.b 1\r\n")
        await door.until(lambda: len(door.server.subscriptions) == 5_001)
        client, _ = door.client()
        client.data_received(b"PUB a.b 1\r\n1\r\nPUB a.b 1\r\n2\r\n")
        await door.until(lambda: messages(modest.said) == 1, turns=5)
        assert messages(greedy.said) < 5_000, "who has one subscription does not wait for all these"
        await door.until(lambda: messages(greedy.said) == 10_000)
        payloads = [part[:1] for part in greedy.said.split(b" 1\r\n")[1:]]
        assert payloads == [b"1"] * 5_000 + [b"2"] * 5_000
        assert messages(modest.said) == 2 and door.exchange.told == [b"a.b", b"a.b"]

    run(test)


def test_a_large_message_for_many_is_handed_out_in_parts() -> None:
    async def test() -> None:
        door = Door()
        lines = [door.client(QUIET + b"SUB a 1\r\n")[1] for _ in range(100)]
        client, _ = door.client()
        client.data_received(b"PUB a 1000000\r\n" + bytes(1_000_000) + b"\r\n")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert 0 < sum(messages(line.said) for line in lines) < 50
        await door.until(lambda: all(messages(line.said) == 1 for line in lines))

    run(test)


def test_a_client_that_does_not_read_is_cut_by_all_that_it_is_sent_and_not_the_payload_alone() -> (
    None
):
    async def test() -> None:
        door = Door(max_pending=1_000_000)
        _, line = door.client(QUIET + b"SUB > 1\r\n", reads=False)
        client, _ = door.client()
        client.data_received(b"PUB %b 0\r\n\r\n" % (b"s" * 4_000) * 400)
        await door.until(lambda: line.ended == "aborted")
        assert len(line.said) < 3_000_000

    run(test)


def test_past_what_may_wait_for_all_those_with_the_most_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        monkeypatch.setattr(module, "WAITING_ALL_MAX", 1_000_000)
        monkeypatch.setattr(module, "WAITING_ALL_LOW", 900_000)
        door = Door()
        halves = [door.client(QUIET + b"PUB a 500000\r\n" + bytes(150_000)) for _ in range(8)]
        _, modest = door.client(QUIET + b"PUB a 500000\r\n" + bytes(50_000))
        ended = [line.ended for _, line in halves]
        assert ended.count("aborted") >= 2 and not modest.ended
        assert door.server.waiting_bytes <= 1_000_000
        _, deaf = door.client(QUIET + b"SUB b 1\r\n", reads=False)
        client, _ = door.client()
        client.data_received(b"PUB b 600000\r\n" + bytes(600_000) + b"\r\n")
        await door.until(lambda: deaf.ended == "aborted")
        assert not modest.ended

    run(test)


def test_subscriptions_are_refused_past_what_they_may_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        monkeypatch.setattr(module, "SUBSCRIBED_MAX", 1_000_000)
        monkeypatch.setattr(module, "SUBSCRIBED_ALL_MAX", 1_500_000)
        door = Door()
        subs = b"".join(b"SUB a%b.%d %d\r\n" % (b".b" * 1_000, n, n) for n in range(10))
        lines = [door.client(QUIET + subs)[1] for _ in range(2)]
        await door.until(lambda: all(line.said.count(b"-ERR") >= 7 for line in lines))
        assert b"maximum subscriptions exceeded" in lines[0].said
        assert len(door.server.subscriptions) == 4 and not lines[0].ended
        first = next(iter(door.server.clients.values()))
        first.data_received(b"UNSUB 0\r\nSUB again 99\r\n")
        await door.until(lambda: b"99" in first.subscriptions)

    run(test)


def test_who_is_gone_is_given_nothing_while_its_subscriptions_end() -> None:
    async def test() -> None:
        door = Door()
        subs = b"".join(b"SUB a q %d\r\n" % number for number in range(5_000))
        gone, _ = door.client(QUIET + subs)
        await door.until(lambda: len(door.server.subscriptions) == 5_000)
        _, there = door.client(QUIET + b"SUB a q 1\r\n")
        client, _ = door.client()
        gone.connection_lost(None)
        assert len(door.server.subscriptions) > 1, "they end by and by"
        client.data_received(b"PUB a 0\r\n\r\n" * 3)
        await door.until(lambda: messages(there.said) == 3, turns=10)
        await door.until(lambda: len(door.server.subscriptions) == 1)
        assert door.server.subscriptions.weight == sum(
            one.weight for client in door.server.clients.values()
            for one in client.subscriptions.values()
        )  # fmt: skip

    run(test)


def test_an_error_of_the_door_ends_one_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        door = Door()
        monkeypatch.setattr(Client, "_pong", lambda self: 1 / 0)
        client, line = door.client(QUIET + b"SUB a 1\r\n")
        _, other = door.client(QUIET + b"SUB a 1\r\n")
        client.data_received(b"PONG\r\nPUB a 0\r\n\r\n")
        assert line.ended == "aborted" and client.is_closed
        await door.until(lambda: len(door.server.subscriptions) == 1)
        door.client()[0].data_received(b"PUB a 0\r\n\r\n")
        await door.until(lambda: messages(other.said) == 1)

    run(test)
    assert "internal error" in caplog.text


def test_what_a_client_calls_itself_is_kept_and_all_else_that_it_says_is_not() -> None:
    async def test() -> None:
        door = Door()
        client, _ = door.client()
        for number in range(500):
            fields = {f"f{number}": "x" * 3_000, "name": f"me {number}"}
            client.data_received(b"CONNECT %b\r\n" % json.dumps(fields).encode())
        await door.until(lambda: client.name == "me 499")
        assert len(client.options) < 10

    run(test)


def test_a_mistake_is_told_and_then_the_connection_ends_whether_that_is_read_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        monkeypatch.setattr(module, "CLOSING_S", 0.0)
        door = Door()
        client, line = door.client(QUIET + b"FOO\r\n", reads=False)
        assert line.said.endswith(b"-ERR 'Unknown Protocol Operation'\r\n")
        assert line.ended == "eof" and line.may_read, "its -ERR is not lost to what it still says"
        client.data_received(b"FOO\r\n" * 1_000)
        assert not client.eof_received()
        door.server._end_late(door.server.now_s())
        assert line.ended == "aborted" and not door.server.closing
        client.connection_lost(None)
        assert door.server.waiting_bytes == 0

    run(test)


def test_only_so_many_are_given_the_time_to_read_why_they_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        monkeypatch.setattr(module, "CLOSING_MAX", 2)
        door = Door()
        lines = [door.client(QUIET + b"FOO\r\n", reads=at < 3)[1] for at in range(4)]
        assert [line.ended for line in lines] == ["eof", "eof", "closed", "aborted"]

    run(test)


def test_what_was_said_before_the_end_is_worked_off() -> None:
    async def test() -> None:
        door = Door()
        client, line = door.client(QUIET + b"SUB a 1\r\n")
        client.data_received(b"PUB a 0\r\n\r\n" * 20_000)
        assert client.eof_received()
        await door.until(lambda: bool(line.ended))
        assert messages(line.said) == 20_000 and line.ended == "eof"

    run(test)


def test_the_parts_of_a_message_are_bounded() -> None:
    assert FANOUT_MAX <= 1_000 and module.FANOUT_BYTES_MAX <= module.TURN_BYTES_MAX
