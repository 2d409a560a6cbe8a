"""The process of the NATS door: hands messages from client to client, and tells the broker."""

import asyncio
import contextlib
import logging
import platform
import random
import secrets
import signal
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import uvloop

from asterism import __version__
from asterism.config import Config, ConfigError
from asterism.errors import PeerError
from asterism.gateways.nats import protocol
from asterism.gateways.nats.client import Client
from asterism.gateways.nats.door import DOOR, Settings
from asterism.gateways.nats.exchange import Exchange
from asterism.gateways.nats.headers import block_of
from asterism.gateways.nats.monitor import Monitor
from asterism.gateways.nats.protocol import Lines, Publication
from asterism.gateways.nats.subjects import UnspeakableError, interest_of, nats_subject_of
from asterism.gateways.nats.subscriptions import NOBODY, Route, Subscription, Subscriptions
from asterism.gateways.process import (
    CONNECT_S,
    allow_many_files,
    find_broker,
    listener,
    open_door,
    own_socket,
)
from asterism.process_host import return_large_blocks
from asterism.sdk.aio import Node, connect
from asterism.sdk.connection import Delivery
from asterism.sdk.deliveries import REPLY_SUBJECT, REPLY_TOPIC

# The version of nats-server that this door is held against: clients ask for features by it.
NATS_VERSION: Final = "2.15.1"
FILES_KEPT: Final = 256  # for all else than connections
LOOK_S: Final = 0.05  # between looks at who is silent, slow, or has not said who it is
LOOKS: Final = 20  # a round of looks: each client is looked at once a second, or oftener
PENDING_ALL_MAX: Final = 512 * 1_048_576  # of all clients; past it the one with the most is cut
STOP_S: Final = 1.0  # for clients to read what is on its way when the process is told to stop
CLOSE_S: Final = 0.05
log = logging.getLogger("asterism.nats")


class Server:
    """All clients of the door."""

    version = NATS_VERSION

    def __init__(self, settings: Settings, clients_max: int, address: tuple[str, int]) -> None:
        self.settings = settings
        self.lines = Lines(settings.max_payload, settings.max_control_line)
        self.subscriptions = Subscriptions()
        self.exchange: Exchange
        self.clients: dict[int, Client] = {}
        self.touched: list[Client] = []  # those that are written to at the end of this turn
        self.paused: set[Client] = set()
        self.host, self.port = address
        self.id = "N" + secrets.token_hex(27).upper() + "A"
        self.began_s = self.now_s()
        self.began_at = datetime.now(UTC)
        self.tls = tls_of(settings)
        self.entered = 0  # clients, in all
        self.slow = self.stale = 0  # those of them that were cut
        self.in_messages = self.in_bytes = self.out_messages = self.out_bytes = 0  # of those gone
        self.is_leaving = False
        self._clients_max = clients_max
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._delayed: list[Client] = []
        self._chance = random.Random()

    @staticmethod
    def now_s() -> float:
        return time.monotonic()

    @property
    def asks_who(self) -> bool:
        """Do clients have to say who they are?"""
        settings = self.settings
        return bool(settings.user or settings.password or settings.token)

    @property
    def is_full(self) -> bool:
        return self.exchange.is_full

    # --- clients come and go ----------------------------------------------------------------

    def enter(self, client: Client) -> None:
        self.entered += 1
        self.clients[client.number] = client
        if self.tls is not None:
            self._loop.create_task(self._secure(client, self.tls))
            return
        client.say(self.info_for(client))
        self._check_room(client)
        self.schedule()

    def _check_room(self, client: Client) -> None:
        if len(self.clients) > self._clients_max:
            client.fail(protocol.CONNECTIONS_EXCEEDED)

    async def _secure(self, client: Client, context: ssl.SSLContext) -> None:
        """What follows INFO is encrypted."""
        beneath = client.transport
        if beneath is None or client.is_closed:
            return
        # A client begins with TLS as soon as it has seen INFO: nobody else may read that.
        beneath.pause_reading()
        client.say(self.info_for(client))
        client.flush()
        try:
            transport = await self._loop.start_tls(
                beneath,
                client,
                context,
                server_side=True,
                ssl_handshake_timeout=self.settings.auth_timeout,
            )
        except (OSError, ssl.SSLError, TimeoutError, RuntimeError) as error:
            log.info("client %d: no TLS: %s", client.number, error)
            client.cut()
            return
        if transport is None or client.is_closed:
            beneath.abort()
            return
        client.transport = transport
        client.is_securing = False
        self._check_room(client)

    def leave(self, client: Client) -> None:
        """A client is gone, and all that it wanted."""
        self.clients.pop(client.number, None)
        self.paused.discard(client)
        self.in_messages += client.in_messages
        self.in_bytes += client.in_bytes
        self.out_messages += client.out_messages
        self.out_bytes += client.out_bytes
        for subscription in list(client.subscriptions.values()):
            client.finish(subscription)

    def info_for(self, client: Client, **more: object) -> bytes:
        """INFO for one client."""
        info: dict[str, object] = {
            "server_id": self.id,
            "server_name": "asterism",
            "version": NATS_VERSION,
            "asterism": __version__,
            "proto": 1,
            "git_commit": "",
            "go": f"python{platform.python_version()}",
            "host": self.host,
            "port": self.port,
            "headers": True,
            "max_payload": self.settings.max_payload,
            "client_id": client.number,
            "client_ip": client.peer[0],
        }
        if self.asks_who:
            info["auth_required"] = True
        if self.tls is not None:
            info["tls_required"] = True
            if self.settings.tls_verify:
                info["tls_verify"] = True
        return protocol.info_line(info | more)

    def cut_slow(self, client: Client, why: str) -> None:
        self.slow += 1
        log.warning("client %d %r is cut as too slow: %s", client.number, client.name, why)
        client.cut()

    # --- turns of the loop --------------------------------------------------------------------

    def schedule(self) -> None:
        """What has gathered leaves at the end of this turn."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_scheduled = False
        touched, self.touched = self.touched, []
        for client in touched:
            client.flush()
        self.exchange.end_turn()
        if self.touched:
            self.schedule()
        if self.paused and not self.exchange.is_full:
            for client in list(self.paused):
                client.work()

    def later(self, client: Client) -> None:
        """A client has used up this turn."""
        if not self._delayed:
            self._loop.call_soon(self._work_on)
        self._delayed.append(client)

    def _work_on(self) -> None:
        delayed, self._delayed = self._delayed, []
        self._end_turn()
        for client in delayed:
            client.work()

    def after_barrier(self, reached: Callable[[], None]) -> None:
        self.exchange.after_barrier(reached)

    # --- subscriptions ------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        self.subscriptions.add(subscription)
        with contextlib.suppress(UnspeakableError):  # then it is for clients of this door alone
            self.exchange.want(interest_of(subscription.pattern), subscription.queue)

    def unsubscribe(self, subscription: Subscription) -> None:
        self.subscriptions.remove(subscription)
        with contextlib.suppress(UnspeakableError):
            self.exchange.want_no_more(interest_of(subscription.pattern), subscription.queue)

    # --- messages -----------------------------------------------------------------------------

    def publish(self, client: Client, publication: Publication, body: bytes) -> int:
        """Hands a client's message to whoever wants it; to how many of this door."""
        route = self.subscriptions.route(publication.subject)
        count = 0
        for subscription in route.plain:
            if subscription.client is not client or client.echo:
                self._deliver(subscription, publication, body)
                count += 1
        for group in route.groups:
            member = self._member_of(group, client)
            if member is not None:
                self._deliver(member, publication, body)
                count += 1
        if count == 0 and publication.reply is not None and client.no_responders:
            self._ask_others(client, publication, body)  # as is_question says
        elif route is not NOBODY:
            self.exchange.tell(publication, body)
        self.schedule()
        return count

    def _member_of(self, group: tuple[Subscription, ...], client: Client) -> Subscription | None:
        if not client.echo:
            group = tuple(member for member in group if member.client is not client)
        return self._chance.choice(group) if group else None

    def _deliver(self, subscription: Subscription, publication: Publication, body: bytes) -> None:
        client = subscription.client
        if client.is_closed or subscription.is_over:
            return
        pieces = client.pieces
        if not pieces:
            self.touched.append(client)
        if not publication.header_size or client.headers:
            pieces += (publication.head, subscription.sid_field, publication.tail, body)
        else:
            bare = publication.without_headers()
            payload = body[publication.header_size :]
            pieces += (bare.head, subscription.sid_field, bare.tail, payload)
        client.pending += publication.announced
        client.out_messages += 1
        client.out_bytes += publication.size
        subscription.delivered += 1
        if subscription.delivered == subscription.most:
            client.finish(subscription)
        if client.pending > self.settings.max_pending:
            client.flush()

    def is_question(self, client: Client, publication: Publication) -> bool:
        """Is it a request that nobody of this door would take?"""
        if publication.reply is None or not client.no_responders:
            return False
        found = self.subscriptions.route(publication.subject)
        every = (*found.plain, *(member for group in found.groups for member in group))
        return not any(member.client is not client or client.echo for member in every)

    def _ask_others(self, client: Client, publication: Publication, body: bytes) -> None:
        """A request that nobody of this door takes: is there anybody else?"""

        def answer(is_there: bool) -> None:
            if not is_there:
                self._say_nobody(client, publication)
            client.end_question()

        client.begin_question()
        if NOBODY is self.subscriptions.route(publication.subject):
            answer(False)
        else:
            self.exchange.ask(publication, body, answer)

    def _say_nobody(self, client: Client, publication: Publication) -> None:
        reply = publication.reply
        assert reply is not None
        for subscription in self.subscriptions.route(reply).plain:
            if subscription.client is client and client.headers:
                sid = subscription.sid_field
                client.say(protocol.no_responders(publication.subject, reply, sid))
                self.schedule()
                return

    # --- messages of other doors --------------------------------------------------------------

    def hand_out(
        self, deliveries: Sequence[Delivery], queue: bytes | None
    ) -> tuple[list[Delivery], list[Delivery]]:
        """Hands out what the broker has sent: what clients were given, and what nobody here wants
        that others may."""
        taken: list[Delivery] = []
        unwanted: list[Delivery] = []
        for delivery in deliveries:
            is_wanted = self._hand_out(delivery, queue)
            if not delivery.is_finished:
                is_for_few = delivery.header.max_receivers is not None or delivery.mode == "push"
                (taken if is_wanted or not is_for_few else unwanted).append(delivery)
        self.schedule()
        return taken, unwanted

    def _hand_out(self, delivery: Delivery, queue: bytes | None) -> bool:
        is_wanted = False
        attributes = delivery.attributes
        reply = None
        if attributes.get(REPLY_TOPIC) == self.settings.topic and REPLY_SUBJECT in attributes:
            reply = nats_subject_of(attributes[REPLY_SUBJECT])
        block = block_of(
            {name: text for name, text in attributes.items()
             if name not in (REPLY_TOPIC, REPLY_SUBJECT)}
            if reply is not None else attributes
        )  # fmt: skip
        body = b"".join((block, delivery.payload, protocol.CRLF))
        given: set[Subscription] = set()
        for subject in map(nats_subject_of, delivery.subjects):
            publication = Publication(subject, reply, len(block), len(body) - 2, bool(block))
            for subscription in self._chosen(self.subscriptions.route(subject), delivery, queue):
                if subscription not in given:  # once, however many of its subjects match
                    given.add(subscription)
                    self._deliver(subscription, publication, body)
                    is_wanted = True
            if is_wanted and (queue is not None or delivery.mode == "push"):
                break
        return is_wanted

    def _chosen(
        self, route: Route, delivery: Delivery, queue: bytes | None
    ) -> tuple[Subscription, ...]:
        """Who of a route gets a delivery: all, or one where it is for one."""
        if queue is not None:
            group = next((held for held in route.groups if held[0].queue == queue), ())
            return (self._chance.choice(group),) if group else ()
        if delivery.mode == "push" and route.plain:
            return (self._chance.choice(route.plain),)
        return route.plain

    # --- what is looked at again and again ------------------------------------------------------

    async def watch(self) -> None:
        """Looks at each client again and again: is it there, does it read, who is it?"""
        pause_s = min(LOOK_S, self.settings.ping_interval / 4, self.settings.auth_timeout / 4)
        while True:
            for part in _parts(list(self.clients.values()), LOOKS):
                now_s = self.now_s()
                for client in part:
                    if not client.is_closed:
                        self._look_at(client, now_s)
                self._bound()
                self.schedule()
                await asyncio.sleep(pause_s)

    def _look_at(self, client: Client, now_s: float) -> None:
        settings = self.settings
        is_unknown = self.asks_who and not client.has_connected
        if is_unknown and now_s - client.began_s > settings.auth_timeout:
            client.fail(protocol.AUTHENTICATION_TIMEOUT)
            return
        if client.clogged_s and now_s - client.clogged_s > settings.write_deadline:
            self.cut_slow(client, "it takes nothing of what waits for it")
            return
        if not client.is_securing:
            client.look(now_s)

    def _bound(self) -> None:
        """Cuts the client with the most to be read, while there is too much for all of them."""
        behind = [client for client in self.clients.values() if client.clogged_s]
        total = sum(client.waiting_bytes for client in behind)
        while total > PENDING_ALL_MAX and behind:
            worst = max(behind, key=lambda client: client.waiting_bytes)
            total -= worst.waiting_bytes
            behind.remove(worst)
            self.cut_slow(worst, "all clients together are too far behind")

    # --- the end --------------------------------------------------------------------------------

    async def leave_slowly(self) -> None:
        """Tells clients to go elsewhere, and gives them time to."""
        self.is_leaving = True
        for client in list(self.clients.values()):
            if client.protocol >= 1:
                client.say(self.info_for(client, ldm=True))
        self.schedule()
        deadline_s = self.now_s() + self.settings.lame_duck
        while self.clients and self.now_s() < deadline_s:
            await asyncio.sleep(CLOSE_S)

    async def close(self) -> None:
        """Closes every connection, behind what is on its way to it."""
        self._end_turn()
        deadline_s = self.now_s() + STOP_S
        for client in list(self.clients.values()):
            if client.transport is not None:
                client.transport.close()
        while self.clients and self.now_s() < deadline_s:
            await asyncio.sleep(CLOSE_S)
        for client in list(self.clients.values()):
            client.cut()


def _parts(clients: list[Client], count: int) -> Iterator[list[Client]]:
    """All clients in so many parts, one of them at least."""
    size = max(1, -(-len(clients) // count))
    yield from ([clients[at : at + size] for at in range(0, len(clients), size)] or [[]])


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """How connections are encrypted, if they are; ``ConfigError`` where that cannot be."""
    if not settings.tls_cert:
        if settings.tls_key or settings.tls_ca or settings.tls_verify:
            raise ConfigError("nats.tls_cert is missing: without it there is no TLS")
        return None
    if settings.tls_verify and not settings.tls_ca:
        raise ConfigError("nats.tls_verify needs nats.tls_ca: the file of those who sign")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(settings.tls_cert, settings.tls_key or None)
        if settings.tls_ca:
            context.load_verify_locations(settings.tls_ca)
            context.verify_mode = ssl.CERT_REQUIRED if settings.tls_verify else ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"nats.tls_cert, tls_key, tls_ca: cannot be used: {error}") from None
    return context


# --- the process ----------------------------------------------------------------------------------


async def _serve(config: Config, name: str) -> None:
    settings = config.door(DOOR)
    listening = listener(config, DOOR)
    host, port = listening.getsockname()[:2]
    clients_max = min(settings.max_connections, allow_many_files() - FILES_KEPT)
    server = Server(settings, clients_max, (host, port))
    # What is delivered here is handed on at once, and kept by nobody.
    async with connect(await find_broker(config), name, timeout=CONNECT_S, max_lease=0) as node:
        server.exchange = Exchange(server, node, settings.topic)
        await _make_topic(node, settings.topic)
        await server.exchange.begin()
        numbers = iter(range(1, 1 << 62))
        loop = asyncio.get_running_loop()
        said: dict[str, str] = {}
        async with contextlib.AsyncExitStack() as open_until:
            path = own_socket(config, name)
            if path is not None:
                inside = await Monitor(server).open_socket(path)
                open_until.push_async_callback(inside.close)
                said["monitor_socket"] = str(path)
            if settings.monitor:
                monitor = await Monitor(server).open(config, settings.monitor)
                open_until.push_async_callback(monitor.close)
                said["monitor_url"] = monitor.url
            shown = f"[{host}]" if ":" in host else host
            open_door(config, DOOR, name, listening, url=f"nats://{shown}:{port}", **said)
            entrance = await loop.create_server(
                lambda: Client(server, next(numbers)), sock=listening, backlog=2_048
            )
            watching = loop.create_task(server.watch())
            is_slow = await _until_told(loop)
            entrance.close()
            if is_slow:
                await server.leave_slowly()
            await server.close()
            watching.cancel()
            await server.exchange.end()


async def _make_topic(node: Node, topic: str) -> None:
    """The topic is there, also where none is made by itself."""
    try:
        await node.create_topic(topic)
    except PeerError as error:
        if error.code != "topic_exists":
            raise


async def _until_told(loop: asyncio.AbstractEventLoop) -> bool:
    """Waits until the process is told to end; is it to let its clients leave first?"""
    told: asyncio.Future[bool] = loop.create_future()

    def tell(is_slow: bool) -> None:
        if not told.done():
            told.set_result(is_slow)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, tell, False)
    loop.add_signal_handler(signal.SIGUSR2, tell, True)
    return await told


def run(config: Config, name: str) -> None:
    """Runs the door until it is told to stop; it has a file of this name in the run folder."""
    return_large_blocks()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, name))
    log.info("has stopped")
