"""Other brokers that ``asterism bench`` measures beside ours: Redis Streams, and core NATS.

Each runs over the Python client that its makers publish (extra ``bench``). What is not installed is
said, and left out. JetStream and RabbitMQ have files of their own.
"""

import asyncio
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from asterism.cli.bench_cases import AHEAD_MAX, PeerRun, per_second
from asterism.cli.bench_clients import (
    PAUSE_S,
    TIMEOUT_S,
    BenchError,
    Shared,
    answers,
    quantities,
)
from asterism.cli.bench_servers import (
    GROUP,
    NATS_PACKAGES,
    NATS_SERVER,
    READ_COUNT,
    STREAM,
    QueueMember,
    QueuePeer,
    ServedPeer,
    not_installed,
    version_of,
)

YIELD_EVERY: Final = 100  # messages after which a NATS publisher lets its client write


# --- Redis Streams --------------------------------------------------------------------------------


class RedisMember(QueueMember):
    """A publisher or a consumer of a stream. It blocks its loop: nothing else runs on it."""

    _redis: Any = None

    async def open(self) -> None:
        redis = import_module("redis")
        self._redis = redis.Redis(port=self._port)
        self._redis.ping()

    async def parser(self) -> str:
        """What reads the answers: redis-py takes hiredis by itself where it is installed."""
        connection = self._redis.connection_pool.get_connection()
        self._redis.connection_pool.release(connection)
        kind = type(connection._parser).__name__
        return "hiredis" if "Hiredis" in kind else "redis-py's own parser"

    async def close(self) -> None:
        self._redis.close()

    async def empty(self) -> None:
        self._redis.delete(STREAM)
        self._redis.xgroup_create(STREAM, GROUP, "0", mkstream=True)

    async def publish(self, count: int, batch: int) -> int:
        """Appends in pipelines; when it began."""
        fields = {b"payload": b"x" * self._size}
        began = time.monotonic_ns()
        for quantity in quantities(count, batch):
            pipeline = self._redis.pipeline(transaction=False)
            for _ in range(quantity):
                pipeline.xadd(STREAM, fields)
            pipeline.execute()
        return began

    async def consume(self, count: int) -> int:
        while count > 0:
            entries = self._read(READ_COUNT)
            self._redis.xack(STREAM, GROUP, *[number for number, _ in entries])
            count -= len(entries)
        return time.monotonic_ns()

    def _read(self, count: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        streams = {STREAM: ">"}
        told = self._redis.xreadgroup(
            GROUP, "consumer", streams, count=count, block=round(TIMEOUT_S * 1_000)
        )
        if not told:
            raise BenchError("nothing came")
        # A map or a list of pairs, by the version of its protocol.
        entries = next(iter(told.values()))[0] if isinstance(told, dict) else told[0][1]
        return list(entries)

    async def publish_one(self, payload: bytes) -> None:
        self._redis.xadd(STREAM, {b"payload": payload})

    async def take_one(self) -> bytes:
        ((number, _),) = self._read(1)
        return number

    async def acknowledge(self, taken: bytes) -> None:
        self._redis.xack(STREAM, GROUP, taken)


class RedisStreams(QueuePeer):
    """Redis, every write synced before it is answered."""

    name = "redis"

    def missing(self) -> str:
        return not_installed({"redis": "redis", "hiredis": "hiredis"}, "redis-server")

    def start(self, size: int) -> Mapping[str, PeerRun]:
        server = self._serve("redis-server")
        server.start(
            *("--port", str(server.port), "--bind", "127.0.0.1", "--dir", server.folder),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "always"),
        )
        self._connect(RedisMember, server.port, size)
        what = f"redis {version_of(server.program)} streams, appendfsync always"
        return self._runs(f"{what}, {self._clients[0].ask('parser')}", "pipelines")


# --- core NATS ------------------------------------------------------------------------------------


class NatsMember:
    """A publisher or a consumer of a subject."""

    def __init__(self, port: int, size: int, shared: Shared) -> None:
        self._port = port
        self._size = size
        self._counts = shared.counts
        self._nats: Any = None
        self._got = 0
        self._wanted = 0
        self._done: asyncio.Future[int] | None = None
        self._error: Exception | None = None

    async def open(self) -> None:
        nats = import_module("nats")
        self._nats = await nats.connect(f"nats://127.0.0.1:{self._port}", error_cb=self._on_error)

    async def close(self) -> None:
        await self._nats.close()

    async def _on_error(self, error: Exception) -> None:
        """Messages were dropped, for example: then there is nothing to compare."""
        self._error = error
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    async def subscribe(self) -> None:
        await self._nats.subscribe(STREAM, cb=self._on_message)
        await self._nats.flush()

    async def _on_message(self, _: Any) -> None:
        self._got += 1
        self._counts[0] = self._got
        if self._got == self._wanted and self._done is not None and not self._done.done():
            self._done.set_result(time.monotonic_ns())

    async def expect(self, count: int) -> None:
        """Begins to count."""
        self._got, self._wanted = 0, count
        self._counts[0] = 0
        self._done = asyncio.get_running_loop().create_future()

    async def consume(self) -> int:
        """When the last of them was in the hands of the application."""
        assert self._done is not None
        async with asyncio.timeout(TIMEOUT_S):
            return await self._done

    async def publish(self, count: int, ahead_max: int) -> int:
        """Publishes, no further ahead of the consumer than that; when it began."""
        payload = b"x" * self._size
        began = time.monotonic_ns()
        for sent in range(count):
            await self._nats.publish(STREAM, payload)
            if sent % YIELD_EVERY == 0:
                await asyncio.sleep(0)
                if sent - self._counts[0] >= ahead_max:
                    await self._nats.flush()
                    while sent - self._counts[0] >= ahead_max:
                        await asyncio.sleep(PAUSE_S)
        await self._nats.flush()
        if self._error is not None:
            raise self._error
        return began


class Nats(ServedPeer):
    """Core NATS: nothing is stored, and nothing is acknowledged."""

    name = "nats"

    def missing(self) -> str:
        return not_installed(NATS_PACKAGES, NATS_SERVER)

    def start(self, size: int) -> Mapping[str, PeerRun]:
        server = self._serve(NATS_SERVER)
        server.start("--addr", "127.0.0.1", "--port", str(server.port))
        self._connect(NatsMember, server.port, size)
        self._clients[1].ask("subscribe")
        version = version_of(server.program)
        run = PeerRun(f"nats-server {version}, core NATS, nats-py", self._end_to_end)
        return {"push": run, "online": run}

    def _end_to_end(self, count: int) -> float:
        publisher, consumer = self._clients
        consumer.ask("expect", count)
        consumer.tell("consume")
        publisher.tell("publish", count, AHEAD_MAX)
        began, ended = answers(publisher, consumer)
        return per_second(count, began, ended)
