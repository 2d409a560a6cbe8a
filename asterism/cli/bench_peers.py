"""Other brokers that ``asterism bench`` measures beside ours: Redis Streams, and core NATS.

Each runs as a server of its own in a temporary folder on a free port, with a publisher and a
consumer in processes of their own, over the Python client that its makers publish (extra
``bench``). What is not installed is said, and left out.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from asterism.cli.bench_cases import AHEAD_MAX, BATCH, PeerRun, latencies_us, per_second
from asterism.cli.bench_clients import (
    PAUSE_S,
    TIMEOUT_S,
    BenchError,
    Client,
    Shared,
    answers,
    quantities,
    shared,
    stamp_of,
    stamped,
)

READY_S: Final = 10.0
STOP_S: Final = 5.0
LOOK_S: Final = 0.02
READ_COUNT: Final = 200  # entries that a Redis consumer reads at a time
YIELD_EVERY: Final = 100  # messages after which a NATS publisher lets its client write
STREAM: Final = "bench"
GROUP: Final = "bench"

# Ends with us, however we end: what it becomes keeps the tie.
_ATTACHED: Final = (
    "import os, sys; from asterism.attached import attach; "
    "attach(int(sys.argv[1])); os.execvp(sys.argv[2], sys.argv[2:])"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def not_installed(package: str, module: str, server: str) -> str:
    """What of a peer is not there, and how to get it; nothing if all is."""
    wanted = []
    if shutil.which(server) is None:
        wanted.append(f"{server} is not on the path (a package of that name in most systems)")
    if find_spec(module) is None:
        wanted.append(f"the package {package} is not installed (pip install 'asterism[bench]')")
    return "; ".join(wanted)


class Server:
    """A foreign server in a folder of its own."""

    def __init__(self, program: str) -> None:
        self.port = free_port()
        self.folder = tempfile.mkdtemp(prefix="asterism-bench-")
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        """Starts it; returns when somebody listens on its port."""
        command = [sys.executable, "-c", _ATTACHED, str(os.getpid()), self._program, *arguments]
        with open(os.path.join(self.folder, "log"), "wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )
        deadline = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), READY_S).close()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                with open(os.path.join(self.folder, "log"), errors="replace") as log_text:
                    said = log_text.read()[-500:].strip()
                raise BenchError(f"{self._program} did not start: {said}")
            time.sleep(LOOK_S)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


# --- Redis Streams --------------------------------------------------------------------------------


class RedisMember:
    """A publisher or a consumer of a stream. It blocks its loop: nothing else runs on it."""

    def __init__(self, port: int, size: int, shared: Shared) -> None:
        self._port = port
        self._size = size
        self._shared = shared
        self._redis: Any = None

    async def open(self) -> None:
        redis = import_module("redis")
        self._redis = redis.Redis(port=self._port)
        self._redis.ping()

    async def close(self) -> None:
        self._redis.close()

    async def empty(self) -> None:
        """Begins with an empty stream."""
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
        """Reads and acknowledges; when the last one was acknowledged."""
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

    async def publish_each(self, count: int) -> list[tuple[int, int]]:
        moments = []
        for _ in range(count):
            payload = stamped(self._size)
            self._redis.xadd(STREAM, {b"payload": payload})
            moments.append((stamp_of(payload), time.monotonic_ns()))
            self._shared.heard.recv_bytes()
        return moments

    async def consume_each(self, count: int) -> list[int]:
        moments = []
        for _ in range(count):
            ((number, _),) = self._read(1)
            moments.append(time.monotonic_ns())
            self._redis.xack(STREAM, GROUP, number)
            self._shared.told.send_bytes(b"1")
        return moments


class RedisStreams:
    """Redis, every write synced before it is answered."""

    name = "redis"

    def __init__(self) -> None:
        self._server: Server | None = None
        self._clients: list[Client] = []

    def missing(self) -> str:
        return not_installed("redis", "redis", "redis-server")

    def start(self, size: int) -> Mapping[str, PeerRun]:
        server = self._server = Server("redis-server")
        server.start(
            *("--port", str(server.port), "--bind", "127.0.0.1", "--dir", server.folder),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "always"),
        )
        held = shared()
        for role in ("publisher", "consumer"):
            self._clients.append(Client(f"redis {role}", RedisMember, server.port, size, held))
        always = "appendfsync always"
        return {
            "durable": PeerRun(f"redis streams, {always}, pipelines of {BATCH}", self._end_to_end),
            "latency": PeerRun(f"redis streams, {always}", self._latency),
        }

    def stop(self) -> None:
        while self._clients:
            self._clients.pop().close()
        if self._server is not None:
            self._server.stop()

    def _end_to_end(self, count: int) -> float:
        publisher, consumer = self._clients
        publisher.ask("empty")
        consumer.tell("consume", count)
        publisher.tell("publish", count, BATCH)
        began, ended = answers(publisher, consumer)
        return per_second(count, began, ended)

    def _latency(self, count: int) -> tuple[list[float], list[float]]:
        publisher, consumer = self._clients
        publisher.ask("empty")
        consumer.tell("consume_each", count)
        publisher.tell("publish_each", count)
        published, delivered = answers(publisher, consumer)
        return latencies_us(published, delivered)


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


class Nats:
    """Core NATS: nothing is stored, and nothing is acknowledged."""

    name = "nats"

    def __init__(self) -> None:
        self._server: Server | None = None
        self._clients: list[Client] = []

    def missing(self) -> str:
        return not_installed("nats-py", "nats", "nats-server")

    def start(self, size: int) -> Mapping[str, PeerRun]:
        server = self._server = Server("nats-server")
        server.start("--addr", "127.0.0.1", "--port", str(server.port))
        held = shared()
        for role in ("publisher", "consumer"):
            self._clients.append(Client(f"nats {role}", NatsMember, server.port, size, held))
        self._clients[1].ask("subscribe")
        run = PeerRun("nats-server, core NATS, nats-py", self._end_to_end)
        return {"push": run, "online": run}

    def stop(self) -> None:
        while self._clients:
            self._clients.pop().close()
        if self._server is not None:
            self._server.stop()

    def _end_to_end(self, count: int) -> float:
        publisher, consumer = self._clients
        consumer.ask("expect", count)
        consumer.tell("consume")
        publisher.tell("publish", count, AHEAD_MAX)
        began, ended = answers(publisher, consumer)
        return per_second(count, began, ended)
