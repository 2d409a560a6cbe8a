"""The process of the NATS door: hands messages from client to client, and tells the broker."""

import asyncio
import contextlib
import heapq
import logging
import platform
import random
import secrets
import signal
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from operator import attrgetter
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
from asterism.process_host import return_large_blocks, settle_memory
from asterism.sdk.aio import Node, connect
from asterism.sdk.connection import Delivery
from asterism.sdk.deliveries import REPLY_SUBJECT, REPLY_TOPIC

# The version of nats-server that this door is held against: clients ask for features by it.
NATS_VERSION: Final = "2.15.1"
FILES_KEPT: Final = 256  # for all else than connections
LOOK_S: Final = 0.05  # between looks at who is silent, slow, or has not said who it is
LOOKS: Final = 20  # a round of looks: each client is looked at once a second, or oftener
# A turn: what is worked off for clients that say much, before what has gathered is written and
# others are heard. It is longer where nobody else has said anything for a while. In it, so many
# bytes are handed out at most.
TURN_S: Final = 0.0002
LEAVING_PART: Final = 0.25  # of it, for subscriptions of those that are gone
TURN_ALONE_S: Final = 0.003
ALONE_S: Final = 0.1
HANDED_OVER_MAX: Final = 4  # clients that are written to within a turn; more wait for its end
TURN_BYTES_MAX: Final = 524_288
FANOUT_MAX: Final = 128  # subscribers that are handed a message in one go; the rest follow
FANOUT_BYTES_MAX: Final = 262_144  # the same, of large messages
# Bytes that wait for clients to read them, or in messages that have come by half; past it those are
# cut that have the most of them.
WAITING_ALL_MAX: Final = 512 * 1_048_576
WAITING_ALL_LOW: Final = WAITING_ALL_MAX - 1_048_576  # then no more are cut
CUT_MAX: Final = 16  # at a time: to free what they held takes a while
# Bytes that subscriptions hold, of all clients and of one; past it SUB is refused, as past
# max_subscriptions.
SUBSCRIBED_ALL_MAX: Final = 256 * 1_048_576
SUBSCRIBED_MAX: Final = SUBSCRIBED_ALL_MAX // 2
YOUNG_MAX: Final = 5_000  # objects before the collector looks at them: half a millisecond
CLOSING_S: Final = 1.0  # for a client to read why its connection ends; then it ends
CLOSING_MAX: Final = 128  # that are given this time; others are closed at once
ERROR_S: Final = 1.0  # between two errors of the door itself that are logged in full
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
        self.closing: dict[Client, float] = {}  # and when their time is over
        self.waiting_bytes = 0  # as ``count`` found them
        self.host, self.port = address
        self.id = "N" + secrets.token_hex(27).upper() + "A"
        self.began_s = self.now_s()
        self.began_at = datetime.now(UTC)
        self.tls = tls_of(settings)
        self.entered = 0  # clients, in all
        self.slow = self.stale = 0  # those of them that were cut
        self.in_messages = self.in_bytes = self.out_messages = self.out_bytes = 0  # of those gone
        self._clients_max = clients_max
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._is_working = False  # will the next turn go on for those that wait for it?
        self._waiting: deque[Client] = deque()  # for their turn
        self._leaving: deque[Iterator[Subscription]] = deque()  # what those had that are gone
        self._turn_ends_s = 0.0  # 0: it has not begun
        self._turn_bytes = 0
        self._heard: Client | None = None  # who was heard last
        self._others_heard_s = 0.0  # when it was another than before
        self._error_logged_s = 0.0
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
            if len(self.clients) > self._clients_max + FILES_KEPT // 2:
                client.cut()  # it can be told why only behind a handshake, and those are too many
            else:
                self.exchange.keep(self._secure(client, self.tls))
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
        try:
            # A client begins with TLS as soon as it has seen INFO: nobody else may read that.
            beneath.pause_reading()
            client.say(self.info_for(client))
            client.flush()
            transport = await self._loop.start_tls(
                beneath,
                client,
                context,
                server_side=True,
                ssl_handshake_timeout=self.settings.auth_timeout,
            )
        except Exception as error:  # whatever the peer has sent
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
        self.in_messages += client.in_messages
        self.in_bytes += client.in_bytes
        self.out_messages += client.out_messages
        self.out_bytes += client.out_bytes
        if client.subscriptions:
            self._leaving.append(iter(list(client.subscriptions.values())))
            self._work_soon()

    def let_go(self, client: Client) -> None:
        """Closes a connection behind what is on its way, so that its client can read that.

        A connection that is closed with something unread is reset, and what was said last is lost.
        """
        transport = client.transport
        assert transport is not None
        if len(self.closing) < CLOSING_MAX:
            self.closing[client] = self.now_s() + CLOSING_S
            if client.reading is not None:
                client.reading.resume_reading()
            if transport.can_write_eof():
                transport.write_eof()
            else:
                transport.close()
        elif client.unwritten_bytes:
            transport.abort()
        else:
            transport.close()

    def forget(self, client: Client) -> None:
        """The connection of a client is over."""
        self._heard = None if self._heard is client else self._heard
        self.closing.pop(client, None)
        self.count(client)

    def guard(self, client: Client, work: Callable[[], None]) -> None:
        """Does something for a client. An error of ours ends its connection, and nothing else."""
        try:
            work()
        except Exception:
            now_s = self.now_s()
            if now_s - self._error_logged_s > ERROR_S:
                self._error_logged_s = now_s
                log.exception("client %d %r is cut: internal error", client.number, client.name)
            client.cut()

    # --- what waits -----------------------------------------------------------------------------

    def count(self, client: Client) -> None:
        """Counts what waits for a client, or of it; where it is too much for all, some are cut."""
        self._recount(client)
        if self.waiting_bytes > WAITING_ALL_MAX:
            self._make_room()

    def _recount(self, client: Client) -> None:
        now = client.parser.held + client.unwritten_bytes
        self.waiting_bytes += now - client.counted
        client.counted = now

    def _make_room(self) -> None:
        clients = [*self.clients.values(), *self.closing]
        most = heapq.nlargest(CUT_MAX, clients, key=_counted_of)
        for client in most:
            self._recount(client)  # some have read since they were counted
        if self.waiting_bytes <= WAITING_ALL_MAX:
            return
        for client in sorted(most, key=_counted_of, reverse=True):
            if self.waiting_bytes <= WAITING_ALL_LOW:
                return
            self.waiting_bytes -= client.counted
            client.counted = 0
            self.cut_slow(client, "all clients together are too far behind")

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

    def hand_over(self) -> None:
        """Has those go to work, ahead of the end of this turn, who have been given something; many
        are given more first."""
        if len(self.touched) <= HANDED_OVER_MAX:
            self._flush_touched()

    def _flush_touched(self) -> None:
        touched, self.touched = self.touched, []
        for client in touched:
            self.guard(client, client.flush)

    def _end_turn(self) -> None:
        self._is_scheduled = False
        self._turn_ends_s, self._turn_bytes = 0.0, 0
        self._flush_touched()
        self.exchange.end_turn()
        if self.touched:
            self.schedule()
        if self._waiting:
            self._work_soon()

    def hear(self, client: Client, now_s: float) -> None:
        """A client has said something."""
        if client is not self._heard:
            self._heard, self._others_heard_s = client, now_s

    def is_turn_over(self) -> bool:
        """Are others to be heard now?"""
        if self._turn_bytes > TURN_BYTES_MAX:
            return True
        now_s = self.now_s()
        if not self._turn_ends_s:
            is_alone = now_s - self._others_heard_s > ALONE_S
            self._turn_ends_s = now_s + (TURN_ALONE_S if is_alone else TURN_S)
            self.schedule()
        return now_s >= self._turn_ends_s

    def later(self, client: Client) -> None:
        """A client has to wait for its turn."""
        if not client.is_queued:
            client.is_queued = True
            self._waiting.append(client)
        self._work_soon()

    def _work_soon(self) -> None:
        if not self._is_working and (self._leaving or not self.is_full):
            self._is_working = True
            self._loop.call_soon(self._work_on)

    def _work_on(self) -> None:
        """One turn of those that wait for theirs."""
        self._is_working = False
        self._end_turn()
        if self._leaving:
            self._end_some()
        waiting = self._waiting
        while waiting and not self.is_full:
            client = waiting.popleft()
            client.is_queued = False
            if client.take_turn() or self.is_turn_over():
                break
        if waiting or self._leaving:
            self._work_soon()

    def _end_some(self) -> None:
        """Ends subscriptions of those that are gone, for a part of the turn."""
        until_s = self.now_s() + TURN_S * LEAVING_PART
        while self._leaving:
            subscription = next(self._leaving[0], None)
            if subscription is None:
                self._leaving.popleft()
                continue
            client = subscription.client
            self.guard(client, partial(client.finish, subscription))
            if self.now_s() >= until_s:
                return

    def after_barrier(self, client: Client, reached: Callable[[], None]) -> None:
        """Calls back when what this client has said and asked for is known to all."""
        asked, client.asked = client.asked, {}
        self.exchange.after_barrier(lambda: self.guard(client, reached), asked.items())

    # --- subscriptions ------------------------------------------------------------------------

    def has_room_for(self, subscription: Subscription) -> bool:
        """May its client have this one too?"""
        client, weight = subscription.client, subscription.weight
        return (
            len(client.subscriptions) < self.settings.max_subscriptions
            and client.weight + weight <= SUBSCRIBED_MAX
            and self.subscriptions.weight + weight <= SUBSCRIBED_ALL_MAX
        )

    def subscribe(self, subscription: Subscription) -> None:
        self.subscriptions.add(subscription)
        with contextlib.suppress(UnspeakableError):  # then it is for clients of this door alone
            interest = interest_of(subscription.pattern)
            asked = subscription.asked = self.exchange.want(interest, subscription.queue)
            if asked is not None:
                subscription.client.asked[asked] = asked.version

    def unsubscribe(self, subscription: Subscription) -> None:
        self.subscriptions.remove(subscription)
        if subscription.asked is not None:
            self.exchange.want_no_more(interest_of(subscription.pattern), subscription.asked)

    # --- messages -----------------------------------------------------------------------------

    def publish(
        self, client: Client, publication: Publication, body: bytes
    ) -> tuple["Unfinished | None", int]:
        """Hands a client's message to whoever wants it; what is left to do, and what it cost."""
        route = self.subscriptions.route(publication.subject)
        everybody = route.everybody
        if len(everybody) > 1 and len(everybody) * publication.weight > FANOUT_BYTES_MAX:
            return Unfinished(client, publication, body, route), 1
        if len(everybody) > FANOUT_MAX:
            return Unfinished(client, publication, body, route), 1
        count = self._hand_to(everybody, client, publication, body)
        self._tell(client, publication, body, count, route)
        return None, 1 + count

    def go_on_with(self, left: "Unfinished") -> "Unfinished | None":
        """Hands a message to some more of many; what is left after that."""
        publication, everybody = left.publication, left.route.everybody
        step = max(1, min(FANOUT_MAX, FANOUT_BYTES_MAX // publication.weight))
        some = everybody[left.at : left.at + step]
        left.at += step
        left.count += self._hand_to(some, left.client, publication, left.body)
        self._turn_bytes += len(some) * publication.weight
        self.schedule()
        if left.at < len(everybody):
            return left
        self._tell(left.client, publication, left.body, left.count, left.route)
        return None

    def _hand_to(
        self,
        receivers: Sequence[Subscription | tuple[Subscription, ...]],
        client: Client,
        publication: Publication,
        body: bytes,
    ) -> int:
        """Hands a message to these, of whom a group is one; to how many."""
        count = 0
        for receiver in receivers:
            chosen = receiver
            if type(chosen) is tuple:
                chosen = self._one_of(chosen, None if client.echo else client)  # type: ignore[assignment]
                if chosen is None:
                    continue
            if chosen.client is not client or client.echo:  # type: ignore[union-attr]
                count += self._deliver(chosen, publication, body)  # type: ignore[arg-type]
        return count

    def _tell(
        self, client: Client, publication: Publication, body: bytes, count: int, route: Route
    ) -> None:
        """Tells all others of a message that was handed to so many here."""
        if count == 0 and publication.reply is not None and client.no_responders:
            self._ask_others(client, publication, body)  # as is_question says
        elif route is not NOBODY:
            self.exchange.tell(publication, body)
        self.schedule()

    def _one_of(
        self, group: tuple[Subscription, ...], but: Client | None = None
    ) -> Subscription | None:
        """One of a group that is there still."""
        chosen = group[0] if len(group) == 1 else self._chance.choice(group)
        if chosen.is_there and chosen.client is not but:
            return chosen
        left = [member for member in group if member.is_there and member.client is not but]
        return self._chance.choice(left) if left else None

    def _deliver(self, subscription: Subscription, publication: Publication, body: bytes) -> bool:
        client = subscription.client
        if client.is_closed or subscription.is_over:
            return False
        pieces = client.pieces
        if not pieces:
            self.touched.append(client)
        if not publication.header_size or client.headers:
            pieces += (publication.head, subscription.sid_field, publication.tail, body)
        else:
            bare = publication.without_headers()
            payload = body[publication.header_size :]
            pieces += (bare.head, subscription.sid_field, bare.tail, payload)
        client.pending += publication.weight + len(subscription.sid_field)
        client.out_messages += 1
        client.out_bytes += publication.size
        subscription.delivered += 1
        if subscription.delivered == subscription.most:
            client.finish(subscription)
        if client.pending > self.settings.max_pending:
            client.flush()
        return True

    def is_question(self, client: Client, publication: Publication) -> bool:
        """Is it a request that nobody of this door would take?"""
        if publication.reply is None or not client.no_responders:
            return False
        found = self.subscriptions.route(publication.subject)
        every = chain(found.plain, chain.from_iterable(found.groups))
        return not any(
            member.is_there and (member.client is not client or client.echo) for member in every
        )

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

    async def hand_out(
        self, deliveries: Sequence[Delivery], queue: bytes | None
    ) -> tuple[list[Delivery], list[Delivery]]:
        """Hands out what the broker has sent: what clients were given, and what nobody here wants
        that others may."""
        taken: list[Delivery] = []
        unwanted: list[Delivery] = []
        for delivery in deliveries:
            is_wanted = await self._hand_out(delivery, queue)
            if not delivery.is_finished:
                is_for_few = queue is not None or _is_for_few(delivery)
                (taken if is_wanted or not is_for_few else unwanted).append(delivery)
            if self.is_turn_over():
                await asyncio.sleep(0)
        self.schedule()
        return taken, unwanted

    async def _hand_out(self, delivery: Delivery, queue: bytes | None) -> bool:
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
            chosen = self._chosen(self.subscriptions.route(subject), delivery, queue)
            step = max(1, min(FANOUT_MAX, FANOUT_BYTES_MAX // publication.weight))
            for number, subscription in enumerate(chosen, 1):
                if subscription not in given:  # once, however many of its subjects match
                    given.add(subscription)
                    is_wanted |= self._deliver(subscription, publication, body)
                if number % step == 0:
                    self.schedule()
                    await asyncio.sleep(0)
            if is_wanted and (queue is not None or delivery.mode == "push"):
                break
        return is_wanted

    def _chosen(
        self, route: Route, delivery: Delivery, queue: bytes | None
    ) -> tuple[Subscription, ...]:
        """Who of a route gets a delivery: all, or one where it is for one."""
        if queue is None and delivery.mode != "push":
            return route.plain
        among = route.plain if queue is None else route.by_queue.get(queue, ())
        chosen = self._one_of(among) if among else None
        return () if chosen is None else (chosen,)

    # --- what is looked at again and again ------------------------------------------------------

    async def watch(self) -> None:
        """Looks at each client again and again: is it there, does it read, who is it?"""
        pause_s = min(LOOK_S, self.settings.ping_interval / 4, self.settings.auth_timeout / 4)
        while True:
            for part in _parts(list(self.clients.values()), LOOKS):
                now_s = self.now_s()
                for client in part:
                    if not client.is_closed:
                        self.guard(client, partial(self._look_at, client, now_s))
                self._end_late(now_s)
                self.exchange.look()
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

    def _end_late(self, now_s: float) -> None:
        """Ends connections that were to be closed behind what nobody reads."""
        for client in [one for one, until_s in self.closing.items() if until_s <= now_s]:
            del self.closing[client]
            if client.transport is not None:
                client.transport.abort()

    # --- the end --------------------------------------------------------------------------------

    async def leave_slowly(self) -> None:
        """Tells clients to go elsewhere, and gives them time to."""
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
        for client in [*self.clients.values(), *self.closing]:
            client.cut()


class Unfinished:
    """A message for so many that it is handed to them in parts, while its client waits."""

    __slots__ = ("at", "body", "client", "count", "publication", "route")

    def __init__(self, client: Client, publication: Publication, body: bytes, route: Route) -> None:
        self.client = client
        self.publication = publication
        self.body = body
        self.route = route
        self.at = 0  # how far it has come
        self.count = 0  # who have been given it


_counted_of: Final = attrgetter("counted")


def _parts(clients: list[Client], count: int) -> Iterator[list[Client]]:
    """All clients in so many parts, one of them at least."""
    size = max(1, -(-len(clients) // count))
    yield from ([clients[at : at + size] for at in range(0, len(clients), size)] or [[]])


def _is_for_few(delivery: Delivery) -> bool:
    """May another receiver have it in place of this door, where nobody here wants it?"""
    return delivery.header.max_receivers is not None or delivery.mode == "push"


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
            # Or many subscriptions would have it look through all of them often.
            settle_memory(YOUNG_MAX)
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
