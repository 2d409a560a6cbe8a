"""Clients of bare sockets for ``bench_nats``, which do so little that it is servers that differ.

What they send was made beforehand, and what comes is counted by its bytes: all messages of a round
are of one size, and of all else only PING and PONG may come between them.
"""

import asyncio
import resource
import time
from collections.abc import Iterable
from typing import Final, Self

from asterism.cli.bench_clients import BenchError, Shared, quantities
from tests.benchmark.nats_clients import AHEAD_MAX, ARRIVE_S, HOST, PAUSE_S, PAYLOAD, SIZE, SUBJECT

CONNECT: Final = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"protocol":0}\r\n'
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"
BATCH: Final = 400  # messages that are written at once
OPENED_AT_ONCE: Final = 100  # connections
FILES_KEPT: Final = 100  # for all else than connections


class Tally:
    """What has come to all connections of a process."""

    def __init__(self, shared: Shared) -> None:
        self._counts = shared.counts
        self.size = 1  # of a message, as it comes
        self.bytes = 0
        self.bytes_wanted = 0
        self.done: asyncio.Future[int] | None = None
        self.error: BenchError | None = None

    @property
    def shown(self) -> str:
        return f"{self.bytes // self.size:,} of {self.bytes_wanted // self.size:,} deliveries came"

    def expect(self, count: int) -> None:
        self.bytes, self.bytes_wanted, self._counts[0] = 0, count * self.size, 0
        self.done = asyncio.get_running_loop().create_future()

    def add(self, size: int) -> None:
        if not size:
            return  # who publishes counts nothing, and sees what the consumer has counted
        self.bytes += size
        self._counts[0] = self.bytes // self.size
        if self.bytes >= self.bytes_wanted and self.done is not None and not self.done.done():
            self.done.set_result(time.monotonic_ns())

    def fail(self, error: BenchError) -> None:
        self.error = self.error or error
        if self.done is not None and not self.done.done():
            self.done.set_exception(error)


class Link(asyncio.Protocol):
    """One connection, from INFO to its end."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._greeting: asyncio.Future[None] | None = self._loop.create_future()
        self._pong: asyncio.Future[None] | None = None
        self._begun = b""  # of INFO, and later the end of what has come
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_closing = False

    @classmethod
    async def open(cls, port: int, tally: Tally, subscriptions: bytes) -> Self:
        """Connects; the server knows of the subscriptions when it returns."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: cls(tally), HOST, port)
        assert link._greeting is not None
        await link._greeting
        link._greeting = None
        await link.pass_through(CONNECT + subscriptions)
        return link

    # --- the connection -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_closing:
            said = self._begun.decode(errors="replace").strip()
            failure = BenchError(f"the server has ended a connection: {error or said}")
            self._tally.fail(failure)
            for waiting in (self._greeting, self._pong):
                if waiting is not None and not waiting.done():
                    waiting.set_exception(failure)
            self._flows.set()

    def close(self) -> None:
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    # --- in -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._greeting is not None:
            self._greet(data)
            return
        seen = self._begun + data  # as much of what came before as cannot be a whole one
        self._begun = seen[1 - len(PING) :]
        pings, pongs = seen.count(PING), seen.count(PONG)
        self._tally.add(len(data) - (pings + pongs) * len(PING))
        if pings:
            self.write(PONG * pings)
        if pongs and self._pong is not None and not self._pong.done():
            self._pong.set_result(None)

    def _greet(self, data: bytes) -> None:
        self._begun += data
        if b"\n" in self._begun and self._greeting is not None and not self._greeting.done():
            self._begun = b""
            self._greeting.set_result(None)

    # --- out ------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def pause_writing(self) -> None:
        self._flows.clear()

    def resume_writing(self) -> None:
        self._flows.set()

    async def flow(self) -> None:
        """Waits until the server takes what is written, and gives others their turn."""
        await asyncio.sleep(0)
        await self._flows.wait()

    async def pass_through(self, data: bytes = b"") -> None:
        """Sends, and waits until the server has handled it."""
        self._pong = self._loop.create_future()
        self.write(data + PING)
        async with asyncio.timeout(ARRIVE_S):
            await self._pong


class Links:
    """A publisher or a consumer over bare sockets; the verbs are those of a ``Member``."""

    def __init__(self, port: int, shared: Shared) -> None:
        self._port = port
        self._counts = shared.counts
        self._tally = Tally(shared)
        self._links: list[Link] = []

    async def open(self) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    async def close(self) -> None:
        for link in self._links:
            link.close()

    # --- receiving ------------------------------------------------------------------------------

    async def subscribe(
        self,
        subject: str = SUBJECT,
        connections: int = 1,
        subscriptions: int = 1,
        wanting: int | None = None,
    ) -> float:
        """Opens connections, each with so many subscriptions; the seconds that it took.

        All, or as many as are ``wanting``, subscribe to the subject; else each has its own.
        """
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_KEPT
        if connections > most:
            raise BenchError(f"the system allows a process {most:,} connections (ulimit -n)")
        self._tally.size = len(f"MSG {subject} 1 {SIZE}\r\n{PAYLOAD.decode()}\r\n")
        lines = [
            _subscriptions(subject if wanting is None or n < wanting else "", n, subscriptions)
            for n in range(connections)
        ]
        began = time.monotonic()
        left = iter(lines)
        await asyncio.gather(*(self._open(left) for _ in range(OPENED_AT_ONCE)))
        return time.monotonic() - began

    async def _open(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._links.append(await Link.open(self._port, self._tally, line))

    async def expect(self, count: int) -> None:
        """Begins to count; so many deliveries are to come."""
        self._tally.expect(count)

    async def consume(self) -> int:
        """Waits for all deliveries; when the last one had come."""
        done = self._tally.done
        assert done is not None, "it was not told what to expect"
        try:
            async with asyncio.timeout(ARRIVE_S):
                return await done
        except TimeoutError:
            raise BenchError(self._tally.shown) from None

    async def check(self) -> None:
        """Fails where more has come than was to come."""
        await asyncio.gather(*(link.pass_through() for link in self._links))
        if self._tally.error is not None:
            raise self._tally.error
        if self._tally.bytes != self._tally.bytes_wanted:
            raise BenchError(self._tally.shown)

    # --- publishing -----------------------------------------------------------------------------

    async def publish(self, count: int, copies: int = 1, subject: str = SUBJECT) -> int:
        """Publishes; when it began. Of each message come ``copies``."""
        if not self._links:
            self._links.append(await Link.open(self._port, self._tally, b""))
        link, message = self._links[0], f"PUB {subject} {SIZE}\r\n".encode() + PAYLOAD + b"\r\n"
        batch = message * BATCH
        sent = 0
        began = time.monotonic_ns()
        for quantity in quantities(count, BATCH):
            link.write(batch if quantity == BATCH else message * quantity)
            sent += quantity
            await link.flow()
            while sent - self._counts[0] // copies >= AHEAD_MAX and self._tally.error is None:
                await asyncio.sleep(PAUSE_S)
        await link.pass_through()
        if self._tally.error is not None:
            raise self._tally.error
        return began


def _subscriptions(subject: str, number: int, count: int) -> bytes:
    """What a connection subscribes to: the subject, if there is one, and else its own."""
    subjects = [f"{SUBJECT}.own.{number}.{n}" for n in range(1, count + 1)]
    if subject:
        subjects[0] = subject
    return "".join(f"SUB {each} {sid}\r\n" for sid, each in enumerate(subjects, 1)).encode()
