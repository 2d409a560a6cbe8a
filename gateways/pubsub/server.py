"""The process of the Pub/Sub door: where gRPC and REST listen, and how it starts and stops."""

import asyncio
import errno
import logging
import signal
import socket
from typing import Final

import grpc
import uvloop

from asterism.addresses_host import place_of
from asterism.config import AddressTakenError, Config, ConfigError
from asterism.doors import listen_text, read_listen
from asterism.gateways.process import (
    CONNECT_S,
    allow_many_files,
    cannot_listen,
    find_broker,
    listener,
    say_open,
)
from asterism.gateways.pubsub.door import DOOR, NEXT
from asterism.gateways.pubsub.grpc_handlers import handlers_of, refusal_for
from asterism.gateways.pubsub.rest_server import RestServer
from asterism.gateways.pubsub.service import PubSub
from asterism.limits import PORT_MAX
from asterism.process_host import return_large_blocks, settle_memory
from asterism.sdk.aio import connect

STOP_S: Final = 1.0  # for requests to be answered when the process is told to stop
# A request over this gets RESOURCE_EXHAUSTED from gRPC itself, which clients try again for minutes:
# what is over Google's limits but under this is told that it never will do.
RECEIVE_BYTES_MAX: Final = 16 * 1_048_576
REQUESTS_MAX: Final = 20_000  # at a time, streams among them; the next is refused
PAIRS_TRIED: Final = 100  # free ports, until the one behind is free as well
log = logging.getLogger("asterism.pubsub")

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # two doors on one port would each have some of the clients
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    # Clients that ask often whether the server is there are not cut for it.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A client whose machine is gone never hangs up by itself, and what it holds would stay its own.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
)


# --- where it listens -----------------------------------------------------------------------------


class Places:
    """The two addresses: that of gRPC, which the server binds itself, and the socket of REST."""

    def __init__(self, config: Config) -> None:
        settings = config.door(DOOR)
        is_any = read_listen(settings.listen).port == 0
        for left in reversed(range(PAIRS_TRIED if is_any else 1)):
            # Judges the address and takes the port; it does not listen, so that gRPC may bind it.
            self.bound = listener(config, DOOR)
            self.host, self.port = self.bound.getsockname()[:2]
            self.rest = self._rest(config, settings.rest_listen)
            if self.rest is not None or settings.rest_listen != NEXT or not left:
                break
            self.bound.close()

    @property
    def address(self) -> str:
        return listen_text(self.host, self.port)

    @property
    def is_rest_local(self) -> bool:
        """Can this machine alone reach REST?"""
        return self.rest is None or place_of(self.rest.getsockname()[0]).is_local

    def _rest(self, config: Config, listen: str) -> socket.socket | None:
        """The socket of REST, if it has one."""
        if not listen:
            return None
        if listen != NEXT:
            return _rest_listener(config, *read_listen(listen)[:2])
        if self.port == PORT_MAX:
            return None
        try:
            return _rest_listener(config, self.host, self.port + 1)
        except AddressTakenError as error:
            log.warning("%s REST is nowhere for now.", error)
            return None


def _rest_listener(config: Config, host: str, port: int) -> socket.socket:
    place = place_of(host)
    where = listen_text(host, port)
    if not place.is_local and not config.insecure:
        raise ConfigError(
            f"pubsub.rest_listen is {where}: others than this machine could connect, and nothing "
            "asks them who they are. Use 127.0.0.1, or set insecure = true."
        )
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((place.host, port))
        found.listen()
    except OSError as error:
        found.close()
        raise AddressTakenError(
            f"cannot listen on {where} for REST: {error.strerror}. Name another address by "
            "pubsub.rest_listen, or an empty one for none."
        ) from None
    return found


def _listen(server: grpc.aio.Server, places: Places) -> None:
    """Has the server listen where it is to."""
    try:
        found = server.add_insecure_port(places.address)
    except RuntimeError:
        found = 0
    places.bound.close()
    if not found:
        taken = OSError(errno.EADDRINUSE, "Address already in use")
        raise cannot_listen(DOOR, places.address, taken)


# --- the process ----------------------------------------------------------------------------------


async def _serve(config: Config, name: str) -> None:
    settings = config.door(DOOR)
    allow_many_files()
    async with connect(await find_broker(config), name, timeout=CONNECT_S, max_lease=0) as node:
        door = PubSub(node, settings)
        await door.begin()
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=REQUESTS_MAX)
        server.add_generic_rpc_handlers(tuple(handlers_of(door)))
        places = Places(config)
        _listen(server, places)
        await server.start()
        said = {"address": places.address}
        rest = RestServer(door.methods, refusal_for, places.is_rest_local)
        if places.rest is not None:
            said["rest_url"] = f"http://{listen_text(*places.rest.getsockname()[:2])}"
            await rest.start(places.rest)
        say_open(config, DOOR, name, places.port, **said)
        settle_memory()
        await _until_told(door)
        await rest.close()
        await server.stop(STOP_S)
        await door.end()


async def _until_told(door: PubSub) -> None:
    """Waits until the process is told to end, or what looks after the door has failed."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    waiting = [asyncio.ensure_future(each) for each in (told.wait(), door.watch(), door.expire())]
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    for task in done:
        task.result()


def run(config: Config, name: str) -> None:
    """Runs the door until it is told to stop; it has a file of this name in the run folder."""
    return_large_blocks()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, name))
    log.info("has stopped")
