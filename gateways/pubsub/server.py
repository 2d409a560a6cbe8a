"""The process of the Pub/Sub door: a gRPC server, and the broker behind it."""

import asyncio
import errno
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
import uvloop

from asterism.config import Config, ConfigError
from asterism.doors import listen_text
from asterism.errors import PeerError
from asterism.gateways.process import (
    CONNECT_S,
    allow_many_files,
    cannot_listen,
    find_broker,
    listener,
    say_open,
)
from asterism.gateways.pubsub.catalogue import Catalogue
from asterism.gateways.pubsub.deadletters import DeadLetters
from asterism.gateways.pubsub.door import DOOR, Settings
from asterism.gateways.pubsub.errors import (
    STATUS_DETAILS,
    Code,
    Refusal,
    refusal_of,
    status_details,
)
from asterism.gateways.pubsub.feeds import Feed
from asterism.gateways.pubsub.holds import SLOTS, Budget
from asterism.gateways.pubsub.publishing import Publishing
from asterism.gateways.pubsub.pulling import Pulling
from asterism.gateways.pubsub.rpcs import (
    STREAMING_PULL,
    SUBSCRIBER,
    Method,
    Methods,
    StreamingPullRequest,
    methods_of,
)
from asterism.gateways.pubsub.seeking import Seeking
from asterism.gateways.pubsub.streams import Streams
from asterism.gateways.pubsub.subscriptions import Subscription, Subscriptions
from asterism.gateways.pubsub.topics import Topic, Topics
from asterism.process_host import return_large_blocks, settle_memory
from asterism.sdk.aio import ClosedError, Delivery, Node, connect
from asterism.sdk.connection import clock_ms

STOP_S: Final = 1.0  # for requests to be answered when the process is told to stop
EXPIRE_S: Final = 60.0  # between looks for what has expired
# A request over this gets RESOURCE_EXHAUSTED from gRPC itself, which clients try again for minutes:
# what is over Google's limits but under this is told that it never will do.
RECEIVE_BYTES_MAX: Final = 32 * 1_048_576
REQUESTS_MAX: Final = 20_000  # at a time, streams among them; the next is refused
log = logging.getLogger("asterism.pubsub")

_CODES: Final = {int(code.value[0]): code for code in grpc.StatusCode}


class PubSub:
    """All that serves clients, over one connection to the broker."""

    def __init__(self, node: Node, settings: Settings) -> None:
        self._settings = settings
        self.catalogue = Catalogue(node)
        self.topics = Topics(node, self.catalogue)
        self.subscriptions = Subscriptions(
            node, self.catalogue, self.topics, Budget(settings.max_held), self._forward
        )
        self._dead_letters = DeadLetters(node, self.topics, self.subscriptions)
        self.publishing = Publishing(node, self.topics, self.subscriptions)
        self.seeking = Seeking(node, self.catalogue, self.topics, self.subscriptions)
        self.streams = Streams(self.subscriptions, settings)
        self.methods: Methods = methods_of(
            self.topics,
            self.publishing,
            self.subscriptions,
            Pulling(self.subscriptions),
            self.seeking,
        )

    async def _forward(self, feed: Feed, delivery: Delivery) -> bool:
        return await self._dead_letters.forward(feed, delivery)

    async def begin(self) -> None:
        """Reads what there is, mends what a killed door has left half done, and makes what the
        configuration lists."""
        await self.catalogue.load()
        await self.topics.recover()
        await self.subscriptions.recover()
        try:
            for name in self._settings.topics or ():
                await self._make_topic(name)
            for name, topic in self._settings.subscriptions or ():
                await self._make_topic(topic)
                if self.catalogue.find("subscription", name) is None:
                    await self.subscriptions.create(Subscription(name=name, topic=topic))
        except Refusal as refusal:
            raise ConfigError(f"pubsub.topics, pubsub.subscriptions: {refusal.detail}") from None

    async def _make_topic(self, name: str) -> None:
        if self.catalogue.find("topic", name) is None:
            await self.topics.create(Topic(name=name))

    async def watch(self) -> None:
        """Looks at deadlines, for as long as the door runs."""
        while True:
            await asyncio.sleep(1 / SLOTS)
            self.subscriptions.sweep(time.monotonic())

    async def expire(self) -> None:
        """Deletes what has expired, for as long as the door runs."""
        while True:
            await asyncio.sleep(EXPIRE_S)
            try:
                await self.seeking.expire(clock_ms())
                await self.subscriptions.expire(clock_ms())
            except (PeerError, TimeoutError, ConnectionError) as error:
                log.warning("what has expired is looked for again in a while: %s", error)


# --- gRPC -----------------------------------------------------------------------------------------


def refusal_for(error: Exception) -> Refusal | None:
    """What a client is told of a failure; none of an error of ours."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ClosedError):
        return Refusal(Code.UNAVAILABLE, "The door is closing: try again.")
    if isinstance(error, PeerError):
        return refusal_of(error)
    if isinstance(error, TimeoutError | ConnectionError):
        return Refusal(Code.UNAVAILABLE, f"The broker does not answer: {error}")
    return None


async def _abort(context: Any, error: Exception) -> None:
    refusal = refusal_for(error)
    if refusal is None:
        log.error("a request has failed by an error of ours", exc_info=error)
        refusal = Refusal(Code.INTERNAL, "Internal error: the log of the door says more.")
    trailer = ((STATUS_DETAILS, status_details(refusal)),) if refusal.has_info else ()
    await context.abort(_CODES[int(refusal.code)], refusal.detail, trailer)


def _unary(method: Method) -> Any:
    call = method.call

    async def answer(request: Any, context: Any) -> Any:
        try:
            return await call(request)
        except Exception as error:
            await _abort(context, error)

    return grpc.unary_unary_rpc_method_handler(
        answer, method.request.FromString, method.reply.SerializeToString
    )


def _streaming(run: Callable[[AsyncIterator[Any], Any], Awaitable[None]]) -> Any:
    async def answer(requests: AsyncIterator[Any], context: Any) -> None:
        try:
            await run(requests, context.write)
        except Exception as error:
            await _abort(context, error)

    return grpc.stream_stream_rpc_method_handler(
        answer, StreamingPullRequest.FromString, lambda response: response.SerializeToString()
    )


def _services(door: PubSub) -> list[Any]:
    """The handlers of every service."""
    services: dict[str, dict[str, Any]] = {}
    for name, method in door.methods.items():
        service, _, rpc = name.partition("/")
        services.setdefault(service, {})[rpc] = _unary(method)
    services[SUBSCRIBER][STREAMING_PULL] = _streaming(door.streams.streaming_pull)
    return [
        grpc.method_handlers_generic_handler(service, handlers)
        for service, handlers in services.items()
    ]


def _options() -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # two doors on one port would each have some of the clients
        ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
        ("grpc.max_send_message_length", -1),
        # Clients that ask often whether the server is there are not cut for it.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


# --- the process ----------------------------------------------------------------------------------


def _listen(server: Any, config: Config) -> tuple[str, int]:
    """Has the server listen where the configuration says; host and port."""
    bound = listener(config, DOOR)  # judges the address, and takes a port
    host, port = bound.getsockname()[:2]
    bound.close()
    try:
        found = server.add_insecure_port(listen_text(host, port))
    except RuntimeError:
        found = 0
    if not found:
        taken = OSError(errno.EADDRINUSE, "Address already in use")
        raise cannot_listen(DOOR, listen_text(host, port), taken)
    return host, port


async def _serve(config: Config, name: str) -> None:
    settings = config.door(DOOR)
    allow_many_files()
    async with connect(await find_broker(config), name, timeout=CONNECT_S, max_lease=0) as node:
        door = PubSub(node, settings)
        await door.begin()
        server = grpc.aio.server(options=_options(), maximum_concurrent_rpcs=REQUESTS_MAX)
        server.add_generic_rpc_handlers(tuple(_services(door)))
        host, port = _listen(server, config)
        await server.start()
        said = {"address": listen_text(host, port)}
        say_open(config, DOOR, name, port, **said)
        watching = [asyncio.ensure_future(door.watch()), asyncio.ensure_future(door.expire())]
        settle_memory()
        await _until_told()
        for task in watching:
            task.cancel()
        await server.stop(STOP_S)


async def _until_told() -> None:
    """Waits until the process is told to end."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    await told.wait()


def run(config: Config, name: str) -> None:
    """Runs the door until it is told to stop; it has a file of this name in the run folder."""
    return_large_blocks()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, name))
    log.info("has stopped")
