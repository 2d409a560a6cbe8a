"""RabbitMQ beside our broker, in ``asterism bench``: a quorum queue, over pika on asyncio.

A quorum queue syncs what it confirms; a classic one, durable or not, does not always. The server is
alone: its files, its cookie and the port mapper of Erlang are of this run, and end with it.
"""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from asterism.cli.bench_cases import PeerRun
from asterism.cli.bench_clients import TIMEOUT_S, BenchError, Shared, quantities
from asterism.cli.bench_servers import (
    READ_COUNT,
    STREAM,
    WINDOWS_MAX,
    QueueMember,
    QueuePeer,
    Server,
    free_port,
    not_installed,
)

PROGRAM: Final = "rabbitmq-server"
MAPPER: Final = "epmd"
PREFETCH: Final = 2_000  # messages that a consumer has and has not acknowledged
QUORUM: Final = {"x-queue-type": "quorum"}


class RabbitMember(QueueMember):
    """A publisher or a consumer of a queue.

    The client calls back, and whatever it calls back for is awaited here one at a time: an answer,
    a message, or that enough is confirmed.
    """

    def __init__(self, port: int, size: int, shared: Shared) -> None:
        super().__init__(port, size, shared)
        self._connection: Any = None
        self._channel: Any = None
        self._persistent: Any = None
        self._awaited: asyncio.Future[Any] | None = None
        self._failure = ""
        self._published = 0
        self._unconfirmed: set[int] = set()
        self._confirmed = 0  # all up to this one are, by one confirmation
        self._allowed = 0  # as many may be unconfirmed when the wait for confirmations ends

    async def open(self) -> None:
        pika = import_module("pika")
        asyncio_connection = import_module("pika.adapters.asyncio_connection")
        self._persistent = pika.BasicProperties(delivery_mode=2)
        self._expect()
        self._connection = asyncio_connection.AsyncioConnection(
            pika.ConnectionParameters("127.0.0.1", self._port),
            on_open_callback=self._on_answer,
            on_open_error_callback=self._on_closed,
            on_close_callback=self._on_closed,
        )
        await self._wait()
        self._expect()
        self._channel = self._connection.channel(on_open_callback=self._on_answer)
        self._channel.add_on_close_callback(self._on_closed)
        await self._wait()
        await self._ask(self._channel.confirm_delivery, self._on_confirmed)
        await self._ask(self._channel.basic_qos, prefetch_count=PREFETCH)

    async def close(self) -> None:
        if self._connection is not None and self._connection.is_open:
            self._expect()
            self._connection.close()
            with contextlib.suppress(BenchError):
                await self._wait()

    async def empty(self) -> None:
        await self._ask(self._channel.queue_declare, STREAM, durable=True, arguments=QUORUM)
        await self._ask(self._channel.queue_purge, STREAM)

    # --- publishing -----------------------------------------------------------------------------

    async def publish(self, count: int, batch: int) -> int:
        payload = b"x" * self._size
        began = time.monotonic_ns()
        for quantity in quantities(count, batch):
            for _ in range(quantity):
                self._publish(payload)
            await self._confirmed_but((WINDOWS_MAX - 1) * batch)
        await self._confirmed_but(0)
        return began

    async def publish_one(self, payload: bytes) -> None:
        self._publish(payload)
        await self._confirmed_but(0)

    def _publish(self, payload: bytes) -> None:
        self._channel.basic_publish("", STREAM, payload, self._persistent)
        self._published += 1
        self._unconfirmed.add(self._published)

    async def _confirmed_but(self, allowed: int) -> None:
        """Waits until no more than so many are unconfirmed."""
        if len(self._unconfirmed) > allowed:
            self._allowed = allowed
            self._expect()
            await self._wait()

    def _on_confirmed(self, frame: Any) -> None:
        confirmed = frame.method
        if confirmed.NAME != "Basic.Ack":
            self._fail("the server refused a message")
        elif confirmed.multiple:
            self._unconfirmed.difference_update(
                range(self._confirmed + 1, confirmed.delivery_tag + 1)
            )
            self._confirmed = confirmed.delivery_tag
        else:
            self._unconfirmed.discard(confirmed.delivery_tag)
        if len(self._unconfirmed) <= self._allowed:
            self._on_answer()

    # --- consuming ------------------------------------------------------------------------------

    async def consume(self, count: int) -> int:
        taken = 0

        def on_message(channel: Any, delivery: Any, *_: Any) -> None:
            nonlocal taken
            taken += 1
            if taken == count:
                self._on_answer(delivery.delivery_tag)
            elif taken % READ_COUNT == 0:
                channel.basic_ack(delivery.delivery_tag, multiple=True)

        self._expect()
        consumer = self._channel.basic_consume(STREAM, on_message)
        await self.acknowledge(await self._wait())
        ended = time.monotonic_ns()
        await self._ask(self._channel.basic_cancel, consumer)
        return ended

    async def consume_each(self, count: int) -> list[int]:
        def on_message(_: Any, delivery: Any, *__: Any) -> None:
            self._on_answer(delivery.delivery_tag)

        consumer = self._channel.basic_consume(STREAM, on_message)
        moments = await super().consume_each(count)
        await self._ask(self._channel.basic_cancel, consumer)
        return moments

    async def take_one(self) -> Any:
        self._expect()
        return await self._wait()

    async def acknowledge(self, taken: Any) -> None:
        """Acknowledges all up to that one.

        The protocol has no answer to that. One to a question about the queue, which goes the same
        way after it, stands for it; the server may not have synced it by then.
        """
        self._channel.basic_ack(taken, multiple=True)
        await self._ask(self._channel.queue_declare, STREAM, passive=True)

    # --- what the client calls back -------------------------------------------------------------

    def _expect(self) -> None:
        """From now on something is awaited."""
        self._awaited = asyncio.get_running_loop().create_future()

    async def _wait(self) -> Any:
        assert self._awaited is not None
        if self._failure:
            raise BenchError(self._failure)
        async with asyncio.timeout(TIMEOUT_S):
            return await self._awaited

    async def _ask(self, method: Callable[..., object], *arguments: Any, **wishes: Any) -> None:
        """Calls a method of the client, and waits until the server has answered."""
        self._expect()
        method(*arguments, callback=self._on_answer, **wishes)
        await self._wait()

    def _on_answer(self, answer: Any = None) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(answer)

    def _on_closed(self, _: Any, reason: Any) -> None:
        self._fail(f"closed: {reason}")

    def _fail(self, reason: str) -> None:
        self._failure = reason
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(BenchError(reason))


class RabbitMQ(QueuePeer):
    """RabbitMQ with a quorum queue, every commit synced."""

    name = "rabbitmq"

    def missing(self) -> str:
        missing = not_installed({"pika": "pika"}, PROGRAM)
        if not missing and shutil.which(MAPPER) is None:
            return f"{MAPPER} is not on the path (it comes with Erlang)"
        return missing

    def start(self, size: int) -> Mapping[str, PeerRun]:
        # The server would start one that outlives it, were none there.
        mapper = self._serve(MAPPER)
        mapper.start("-port", str(mapper.port), "-address", "127.0.0.1")
        server = self._serve(_program())
        server.start("-noinput", environment=_environment(server, mapper.port))
        self._connect(RabbitMember, server.port, size)
        return self._runs("rabbitmq, quorum queue (synced), pika", "windows")


def _program() -> str:
    """The server's own script. What packages put on the path may be a wrapper beside it, which
    wants to be root, and runs it as another user with another home."""
    found = shutil.which(PROGRAM)
    assert found is not None
    return os.path.join(os.path.dirname(os.path.realpath(found)), PROGRAM)


def _environment(server: Server, mapper_port: int) -> dict[str, str]:
    """Has the server keep to its folder, and to the loopback interface."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ERL_", "RABBITMQ_"))
    }
    return inherited | {
        "HOME": server.folder,  # for Erlang's cookie
        "ERL_CRASH_DUMP_BYTES": "0",
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(mapper_port),
        # With -noinput: the server takes the place of its script, and so ends with us as well.
        "RABBITMQ_ALLOW_INPUT": "true",
        "RABBITMQ_CONFIG_FILE": server.write(
            "rabbitmq.conf", f"listeners.tcp.local = 127.0.0.1:{server.port}\n"
        ),
        "RABBITMQ_CONF_ENV_FILE": server.write("rabbitmq-env.conf", ""),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_ENABLED_PLUGINS_FILE": server.write("enabled_plugins", "[].\n"),
        "RABBITMQ_LOG_BASE": server.folder,
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_MNESIA_BASE": server.folder,
        "RABBITMQ_NODENAME": f"{os.path.basename(server.folder)}@localhost",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }
