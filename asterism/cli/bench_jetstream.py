"""NATS JetStream beside our broker, in ``asterism bench``: a work queue in files, over nats-py."""

import asyncio
import contextlib
import json
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from asterism.cli.bench_cases import PeerRun
from asterism.cli.bench_clients import TIMEOUT_S, BenchError, quantities
from asterism.cli.bench_servers import (
    GROUP,
    NATS_PACKAGES,
    NATS_SERVER,
    READ_COUNT,
    READY_S,
    STREAM,
    WINDOWS_MAX,
    QueueMember,
    QueuePeer,
    Server,
    not_installed,
    version_of,
)

ALWAYS: Final = "sync_interval: always"


class JetStreamMember(QueueMember):
    """A publisher or a consumer of a stream that keeps messages until they are acknowledged."""

    _nats: Any = None
    _stream: Any = None
    _pull: Any = None

    async def open(self) -> None:
        nats = import_module("nats")
        # A server that is gone is not waited for: there is nothing to compare.
        self._nats = await nats.connect(f"nats://127.0.0.1:{self._port}", allow_reconnect=False)
        self._stream = self._nats.jetstream(timeout=TIMEOUT_S)
        # It goes by names, and so outlives the stream that is deleted.
        self._pull = await self._stream.pull_subscribe_bind(GROUP, STREAM)

    async def close(self) -> None:
        await self._nats.close()

    async def empty(self) -> None:
        with contextlib.suppress(import_module("nats.js.errors").NotFoundError):
            await self._stream.delete_stream(STREAM)
        await self._stream.add_stream(
            name=STREAM, subjects=[STREAM], retention="workqueue", storage="file"
        )
        await self._stream.add_consumer(
            STREAM, durable_name=GROUP, ack_policy="explicit", ack_wait=TIMEOUT_S
        )

    async def publish(self, count: int, batch: int) -> int:
        payload = b"x" * self._size
        unconfirmed: deque[list[asyncio.Future[Any]]] = deque()
        began = time.monotonic_ns()
        for quantity in quantities(count, batch):
            unconfirmed.append(
                [await self._stream.publish_async(STREAM, payload) for _ in range(quantity)]
            )
            if len(unconfirmed) >= WINDOWS_MAX:
                await asyncio.gather(*unconfirmed.popleft())
        for window in unconfirmed:
            await asyncio.gather(*window)
        return began

    async def consume(self, count: int) -> int:
        while count > 0:
            # No more than are to come: it waits for as many as it asks for.
            taken = await self._pull.fetch(min(READ_COUNT, count), timeout=TIMEOUT_S)
            count -= len(taken)
            last = taken.pop()
            for message in taken:
                await message.ack()
            await (last.ack() if count else self.acknowledge(last))
        return time.monotonic_ns()

    async def publish_one(self, payload: bytes) -> None:
        await self._stream.publish(STREAM, payload)

    async def take_one(self) -> Any:
        (message,) = await self._pull.fetch(1, timeout=TIMEOUT_S)
        return message

    async def acknowledge(self, taken: Any) -> None:
        await taken.ack_sync(timeout=TIMEOUT_S)


class JetStream(QueuePeer):
    """JetStream in files; synced before it is answered where the server can do that."""

    name = "jetstream"

    def missing(self) -> str:
        return not_installed(NATS_PACKAGES, NATS_SERVER)

    def start(self, size: int) -> Mapping[str, PeerRun]:
        server = self._serve(NATS_SERVER)
        settings, is_synced = _settings(server)
        server.start("--config", settings)
        self._connect(JetStreamMember, server.port, size)
        synced = f"{ALWAYS} (synced at commit)" if is_synced else "not synced at commit"
        version = version_of(server.program)
        return self._runs(f"nats jetstream {version}, file, {synced}", "windows")


def _settings(server: Server) -> tuple[str, bool]:
    """The path of the server's settings, and whether it syncs before it answers.

    Servers before 2.10 do not know such a setting, and sync every two minutes.
    """
    path = _write_settings(server, ALWAYS)
    try:
        check = subprocess.run(
            [server.program, "--config", path, "-t"], capture_output=True, timeout=READY_S
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{server.program} does not say whether it knows {ALWAYS}") from None
    if check.returncode == 0:
        return path, True
    return _write_settings(server, ""), False


def _write_settings(server: Server, sync: str) -> str:
    return server.write(
        "settings",
        f"listen: 127.0.0.1:{server.port}\n"
        f"jetstream {{\n  store_dir: {json.dumps(server.folder)}\n  {sync}\n}}\n",
    )
