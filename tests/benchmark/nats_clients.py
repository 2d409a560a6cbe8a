"""The clients that ``bench_nats`` measures with; each runs in a process of its own.

``Member`` uses nats-py as an application does. What it holds back, it holds back for both servers
alike: a publisher is never so far ahead of the consumer that a server would cut it as too slow.
"""

import asyncio
import time
from typing import Final

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from asterism.cli.bench_clients import BenchError, Shared

HOST: Final = "127.0.0.1"
SUBJECT: Final = "bench"
SIZE: Final = 128  # bytes of a payload
PAYLOAD: Final = b"x" * SIZE
ARRIVE_S: Final = 60.0  # until all messages of a round must have come
AHEAD_MAX: Final = 200_000  # messages; in bytes, half of what nats-server lets a client be behind
YIELD_EVERY: Final = 100  # messages after which a publisher lets its client write
PAUSE_S: Final = 0.000_5  # of a publisher that is too far ahead
# Of a subscription: more than any round has, so that the client itself drops nothing.
PENDING_MESSAGES_MAX: Final = 100_000_000
PENDING_BYTES_MAX: Final = 1 << 36
OPENED_AT_ONCE: Final = 50  # connections


class Member:
    """A publisher, a consumer, one that asks or one that answers, over nats-py."""

    def __init__(self, port: int, shared: Shared) -> None:
        self._url = f"nats://{HOST}:{port}"
        self._counts = shared.counts
        self._clients: list[Client] = []
        self._error: Exception | None = None
        self._got = 0
        self._wanted = 0
        self._done: asyncio.Future[int] | None = None
        self._is_closing = False

    async def open(self) -> None:
        await self.connect(1)

    async def close(self) -> None:
        self._is_closing = True
        for client in self._clients:
            await client.close()

    async def connect(self, count: int) -> None:
        """Opens connections until there are so many."""
        while len(self._clients) < count:
            missing = min(count - len(self._clients), OPENED_AT_ONCE)
            self._clients += await asyncio.gather(*(self._connected() for _ in range(missing)))

    async def _connected(self) -> Client:
        # A connection that ends fails the round, where another one would hide it.
        return await nats.connect(
            self._url,
            error_cb=self._on_error,
            disconnected_cb=self._on_end,
            allow_reconnect=False,
            connect_timeout=round(ARRIVE_S),
        )

    async def _on_end(self) -> None:
        if not self._is_closing:
            await self._on_error(BenchError("the server has ended a connection"))

    async def _on_error(self, error: Exception) -> None:
        self._error = self._error or error
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    # --- publish and subscribe ------------------------------------------------------------------

    async def subscribe(self, subject: str = SUBJECT, connections: int = 1) -> None:
        """Subscribes with so many connections; the server knows when it returns."""
        await self.connect(connections)
        for client in self._clients[:connections]:
            await client.subscribe(
                subject,
                cb=self._on_message,
                pending_msgs_limit=PENDING_MESSAGES_MAX,
                pending_bytes_limit=PENDING_BYTES_MAX,
            )
        await self._settle()

    async def _settle(self) -> None:
        """Returns when the server has handled all that was sent to it before."""
        for _ in range(2):  # the first writes what is buffered, behind its own PING
            await asyncio.gather(*(client.flush(round(ARRIVE_S)) for client in self._clients))

    async def _on_message(self, message: Msg) -> None:
        self._got += 1
        self._counts[0] = self._got
        if self._got == self._wanted and self._done is not None and not self._done.done():
            self._done.set_result(time.monotonic_ns())

    async def expect(self, count: int) -> None:
        """Begins to count; so many deliveries are to come."""
        self._got, self._wanted, self._counts[0] = 0, count, 0
        self._done = asyncio.get_running_loop().create_future()

    async def consume(self) -> int:
        """Waits for all deliveries; when the callback of the last one ran."""
        self._check()
        assert self._done is not None, "it was not told what to expect"
        try:
            async with asyncio.timeout(ARRIVE_S):
                ended = await self._done
        except TimeoutError:
            raise BenchError(f"{self._got} of {self._wanted} deliveries came") from None
        return ended

    async def check(self) -> None:
        """Fails where more has come than was to come."""
        await self._settle()
        self._check()
        if self._got != self._wanted:
            raise BenchError(f"{self._got} deliveries came, and {self._wanted} were to come")

    async def publish(self, count: int, copies: int = 1, subject: str = SUBJECT) -> int:
        """Publishes, and flushes at the end; when it began. Of each message come ``copies``."""
        client, counts = self._clients[0], self._counts
        began = time.monotonic_ns()
        for sent in range(count):
            await client.publish(subject, PAYLOAD)
            if sent % YIELD_EVERY == 0:
                await asyncio.sleep(0)
                while sent - counts[0] // copies >= AHEAD_MAX:
                    self._check()
                    await asyncio.sleep(PAUSE_S)
        await client.flush(round(ARRIVE_S))
        self._check()
        return began

    # --- requests -------------------------------------------------------------------------------

    async def answer(self) -> None:
        """Answers requests from now on."""
        await self._clients[0].subscribe(SUBJECT, cb=self._on_request)
        await self._settle()

    async def _on_request(self, message: Msg) -> None:
        await message.respond(PAYLOAD)

    async def ask_each(self, count: int) -> list[float]:
        """Asks one after the other; the microseconds that each took."""
        client = self._clients[0]
        took = []
        for _ in range(count):
            began = time.monotonic_ns()
            await client.request(SUBJECT, PAYLOAD, timeout=ARRIVE_S)
            took.append((time.monotonic_ns() - began) / 1_000)
        return took

    async def ask_many(self, count: int, in_flight: int) -> float:
        """Asks with so many requests on their way; the seconds that all of them took."""
        left = [count]
        began = time.monotonic_ns()
        await asyncio.gather(*(self._ask_on(left) for _ in range(in_flight)))
        return (time.monotonic_ns() - began) / 1e9

    async def _ask_on(self, left: list[int]) -> None:
        client = self._clients[0]
        while left[0] > 0:
            left[0] -= 1
            await client.request(SUBJECT, PAYLOAD, timeout=ARRIVE_S)
