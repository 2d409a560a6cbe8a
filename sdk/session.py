"""The client's side of the protocol: a pure state machine under both clients.

No socket, no clock, no chance, no logging: frames come in and events go out, frames to send are
collected, time is an argument, and random bytes come from a function that is passed in.

    session.open(now_ms)                a socket is connected: says hello
    events = session.receive(frames, now_ms)
    events = session.tick(now_ms)       at ``next_due_ms``: heartbeats, and what is tried again
    parts = session.flush(now_ms)       what is to be sent now; everything since the last flush
    session.ways.take_lanes()           the same for lanes, by the worker: ask behind each flush
    session.lost()                      the socket is gone; ``open`` on the next

I1 A request is in the table from the moment it is made until its answer came or it is forgotten;
   after a lost connection, or a restarted worker, what is in the table is sent again.
I2 Nothing but hello is sent before the broker has said welcome.
I3 No input raises: what is not understood ends the connection (``Lost``), and is sent again.
"""

from collections.abc import Callable, Container, Sequence
from typing import Any, Final, NamedTuple

from asterism import limits
from asterism.checks import are_all
from asterism.errors import PeerError
from asterism.sdk.events import (
    Answered,
    Delivered,
    Ended,
    Event,
    Gone,
    LaneOpened,
    LaneOver,
    LaneWanted,
    Lost,
    Noted,
    Overheard,
    Refused,
    Rejected,
    Replied,
    Reported,
    Resolved,
    Subscribed,
    Welcomed,
)
from asterism.sdk.leases import LOOK_MS_MIN, NEVER_MS
from asterism.sdk.producing import (
    GAPS_MAX,
    MESSAGE_BYTES,
    RETRY_MS_MIN,
    Batch,
    Identity,
    Incoming,
    Producer,
    Window,
    retry_pause_ms,
)
from asterism.sdk.receiving import Item, Report, Subscription, header_of
from asterism.sdk.tickets import UNKNOWN, Outcome, Ticket, error_of
from asterism.sdk.ways import Ways
from asterism.wire import (
    ANY_WORKER,
    LANE_SOCKET,
    VERSION,
    Part,
    Verb,
    pack_body,
    pack_part,
    read_body,
    read_parts,
    worker_topic,
)

WINDOW_MESSAGES: Final = 16_384
WINDOW_BYTES: Final = 32 * 1_048_576
RECEIPTS_MAX: Final = 100_000  # receipts that are still to come; beyond it a publisher waits
REQUESTS_MAX: Final = 10_000  # requests without an answer; the next is refused with busy
WELCOME_MS: Final = 5_000  # a connection on which hello is not answered for so long is given up
HEARTBEATS_MISSED: Final = 3
PRODUCERS_MAX: Final = 10_000  # idle ones are forgotten past it; a new one begins at 1
LANES_MAX: Final = 64  # workers that a client has lanes to; what is for others goes without
WORKERS_KNOWN_MAX: Final = 100_000  # topics whose worker is remembered

_ELSEWHERE, _REFUSE = int(Verb.ELSEWHERE), int(Verb.REFUSE)  # every part is compared with these
_OF_ENDPOINT = frozenset({Verb.SET_INTERESTS, Verb.PULL, Verb.EXTEND})
FRAME_MARGIN_BYTES: Final = 1_024  # of a frame with one message, beyond its header and payload
COLUMNS_MIN: Final = 8  # deliveries that are checked column by column; fewer, one by one
EARLY_MAX: Final = 64  # refusals of what came before its endpoint, from one return to the next
_DOWN, _GREETING, _READY, _LEAVING, _OVER = "down", "greeting", "ready", "leaving", "over"


class Asked:
    """A request of the client."""

    __slots__ = ("body", "endpoint", "failures", "is_cancelled", "number", "place", "topic", "verb")

    def __init__(self, number: int, verb: int, topic: bytes, fields: object) -> None:
        self.number = number
        self.verb = verb
        self.topic = topic
        self.body = pack_body(fields)
        # Whose it is, where it is asked of an endpoint of this client: then it is the first field.
        of_endpoint = verb in _OF_ENDPOINT and isinstance(fields, tuple)
        self.endpoint: int | None = fields[0] if of_endpoint else None  # type: ignore[index]
        self.failures = 0
        self.place = 0  # among what has gone through the front-end; 0: it went by a lane
        self.is_cancelled = False  # its answer still counts, but it is not sent again

    def part(self) -> bytes:
        return pack_part(self.verb, self.number, self.topic, self.body)


class Joining:
    """A subscription that is on its way to its topic."""

    __slots__ = ("credit", "place", "subscription")

    def __init__(self, subscription: Subscription, credit: int) -> None:
        self.subscription = subscription
        self.credit = credit  # to be granted once it is there
        self.place = 0  # among what has gone through the front-end, as that of ``Asked``


class Asking:
    """Receipts of one producer that are asked for again."""

    __slots__ = ("failures", "identity", "numbers")

    def __init__(self, identity: Identity, numbers: list[int]) -> None:
        self.identity = identity
        self.numbers = numbers
        self.failures = 0


class Renewing:
    """Leases of one endpoint that are renewed, or given up; nobody waits for it."""

    __slots__ = ("attempts", "doubts", "endpoint", "sequences", "subscription", "timeout_ms")

    def __init__(
        self, subscription: Subscription, held: Sequence[tuple[int, int]], timeout_ms: int | None
    ) -> None:
        self.subscription = subscription
        self.sequences, self.attempts = zip(*held, strict=True)
        self.timeout_ms = timeout_ms  # None: renewed; 0: given up
        self.doubts = subscription.doubts  # an answer from before a stall says nothing behind it

    def part(self, number: int) -> bytes:
        held = self.subscription
        fields = (held.endpoint, self.sequences, self.timeout_ms, None, self.attempts)
        return pack_part(Verb.EXTEND, number, held.topic_bytes, pack_body(fields))


_Entry = Asked | Joining | Asking | Report | Batch | Renewing


class _Lost(NamedTuple):
    """What is gone with a worker or a connection: all of some topics, and strays of others.

    Publishing and asking for receipts do no harm twice: where one of a topic's frames strayed, all
    of that kind are sent again. Of other requests only the strays are.
    """

    has_all_of: Callable[[bytes], bool]
    strays: Container[int] = ()  # numbers of entries of the table
    kinds: Container[tuple[type, bytes]] = ()  # theirs, each with its topic

    def has_some_of(self, kind: type, topic: bytes) -> bool:
        return (kind, topic) in self.kinds or self.has_all_of(topic)

    def has(self, number: int, topic: bytes) -> bool:
        return number in self.strays or self.has_all_of(topic)

    def voids(self, entry: _Entry) -> bool:
        """Will it not be answered, and is it said again under another number?"""
        match entry:
            case Batch() | Asking():
                return self.has_some_of(type(entry), _topic_of(entry))
            case Report() | Renewing():
                return self.has_all_of(_topic_of(entry))
            case Asked() | Joining():
                return False


class Session:
    """One client, over as many connections as it takes."""

    def __init__(
        self,
        name: str,
        random_bytes: Callable[[int], bytes],
        *,
        client: str = "",
        window_messages: int = WINDOW_MESSAGES,
        window_bytes: int = WINDOW_BYTES,
        receipts_max: int = RECEIPTS_MAX,
    ) -> None:
        self.name = name
        self.client = client
        self.workers = 0
        self.window = Window(window_messages, window_bytes)
        # When the broker last refused something that is tried again, and why.
        self.last_busy: tuple[int, PeerError | None] = (0, None)
        self.unsent_messages = 0  # published since the last flush
        self.unsent_bytes = 0
        self._random_bytes = random_bytes
        self._receipts_max = receipts_max
        self._receipts = 0
        self._state = _DOWN
        self._next_request = 1
        self._next_endpoint = 1
        self._table: dict[int, _Entry] = {}
        self._asked = 0  # how many of the table are requests of the client
        self.ways = Ways()
        self._claims: dict[int, int] = {}  # request -> worker, whose lane it claims
        self._lanes_due: dict[int, int] = {}  # worker that was busy -> when its lane is tried again
        self._producers: dict[str, Producer] = {}
        self._fed: dict[str, Producer] = {}  # those with something to send
        self._identities: dict[bytes, Identity] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._touched: dict[int, Subscription] = {}  # those with reports or credit to send
        self._retries: dict[int, int] = {}  # number of an entry of the table -> when
        self._looking: dict[int, Subscription] = {}  # those that hold something to be renewed
        self.look_ms = NEVER_MS  # when the first of them is looked at, or earlier
        self._worker_of: dict[bytes, int] = {}
        # Entries sent before their topic was known to have a process of its own, without an answer:
        # they may be with the worker of its store.
        self._strays: set[int] = set()
        self._hello = 0
        self._id = b""  # the name that the broker gave it: who says it may claim what it was given
        self._heartbeat_ms = WELCOME_MS
        self._frame_bytes_max = 64 << 20  # until the broker says what it takes
        self._opened_ms = 0
        self._heard_ms = 0
        self._sent_ms = 0
        self._pinged = False
        self._ticked_ms = 0

    # --- the connection ---------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return self._state == _READY

    @property
    def is_over(self) -> bool:
        return self._state == _OVER

    def open(self, now_ms: int) -> None:
        """A new socket is there: says hello on it."""
        assert self._state == _DOWN
        self._state = _GREETING
        self._hello = self._take_number()
        self._opened_ms = self._heard_ms = self._sent_ms = self._ticked_ms = now_ms
        body = {"versions": [VERSION], "name": self.name, "client": self.client}
        self.ways.front.append(pack_part(Verb.HELLO, self._hello, b"", pack_body(body)))

    def lost(self) -> None:
        """The socket is gone. What was under way is sent again on the next."""
        if self._state == _OVER:
            return
        self._state = _DOWN
        self.ways.clear()
        self._claims.clear()
        self._lanes_due.clear()
        self._pinged = False
        self._retries.clear()
        self._strays.clear()
        self._forget_answers(_Lost(lambda topic: True))

    def leave(self) -> None:
        """Says goodbye; nothing but its answer counts from here on."""
        if self._state == _READY:
            self.ways.front.append(pack_part(Verb.GOODBYE, self._take_number()))
            self._state = _LEAVING
        else:
            self._state = _OVER

    @property
    def is_idle(self) -> bool:
        """Is nothing unanswered, and nothing unsent, that a clean close should wait for?"""
        reports = any(isinstance(entry, Report) for entry in self._table.values())
        unsent = any(held.reports and not held.is_over for held in self._subscriptions.values())
        return self.window.messages == 0 and not reports and not unsent

    @property
    def has_something_to_do(self) -> bool:
        """Is there something to send, or to send again later?"""
        is_held = bool(self._fed or self._touched or self._retries or self._lanes_due)
        is_held |= bool(self.ways.front)
        return is_held or any(self.ways.lanes.values())

    @property
    def has_one_under_way(self) -> bool:
        """Is there no more than one thing to be sent, or sent and without an answer yet?"""
        return len(self._table) + len(self._fed) + len(self._touched) <= 1

    def tickets(self) -> list[Ticket]:
        """Those that are not answered, and those that are not resolved and still held."""
        unanswered = [held for producer in self._producers.values() for held in producer.tickets()]
        awaited = [
            entry[0]() for held in self._identities.values() for entry in held.awaited.values()
        ]
        return unanswered + [held for held in awaited if held is not None]

    def _take_number(self) -> int:
        number = self._next_request
        self._next_request += 1
        return number

    # --- time -------------------------------------------------------------------------------

    @property
    def has_retries(self) -> bool:
        """May something be due before the next sign of life?"""
        is_held = bool(self._retries or self._fed or self._touched or self._lanes_due)
        return self._state != _READY or is_held

    def next_due_ms(self) -> int | None:
        """When ``tick`` has something to do."""
        if self._state == _GREETING:
            return self._opened_ms + WELCOME_MS
        if self._state != _READY:
            return None
        due = [self._ping_due_ms(), self.look_ms]
        due += self._retries.values()
        due += self._lanes_due.values()
        due += [fed.resume_ms for fed in self._fed.values() if fed.resume_ms]
        due += [held.resume_ms for held in self._touched.values() if held.resume_ms]
        return min(due)

    def _ping_due_ms(self) -> int:
        if self._pinged:
            return self._heard_ms + HEARTBEATS_MISSED * self._heartbeat_ms
        return min(self._sent_ms, self._heard_ms) + self._heartbeat_ms

    def tick(self, now_ms: int) -> list[Event]:
        """Does what has become due; read what has arrived before."""
        late_ms = now_ms - self._ticked_ms
        self._ticked_ms = now_ms
        if self._state == _GREETING:
            if now_ms - self._opened_ms >= WELCOME_MS:
                return [Lost(f"no answer to hello within {WELCOME_MS / 1_000:g} s")]
            return []
        if self._state != _READY:
            return []
        silent_ms = HEARTBEATS_MISSED * self._heartbeat_ms
        if now_ms - self._heard_ms >= silent_ms:
            # A client that was itself held up has not listened: it asks before it judges.
            if self._pinged and late_ms < silent_ms:
                return [Lost(f"the broker was silent for {now_ms - self._heard_ms} ms")]
            self._heard_ms = now_ms - silent_ms + self._heartbeat_ms
            self._ping(now_ms)
        elif now_ms >= self._ping_due_ms() and not self._pinged:
            self._ping(now_ms)
        if now_ms >= self.look_ms:
            self._look(now_ms)
        for number in [number for number, due_ms in self._retries.items() if due_ms <= now_ms]:
            del self._retries[number]
            self._send_entry(number)
        due = [worker for worker, due_ms in self._lanes_due.items() if due_ms <= now_ms]
        return [self._lane_wanted(worker) for worker in due]

    def _ping(self, now_ms: int) -> None:
        self._pinged = True
        self.ways.front.append(pack_part(Verb.PING, self._take_number()))

    # --- what is sent -----------------------------------------------------------------------

    def flush(self, now_ms: int) -> list[bytes]:
        """Everything that is to be sent now, in order."""
        self.unsent_messages = self.unsent_bytes = 0
        if self._state == _READY:
            if self._fed:
                self._flush_producers(now_ms)
            if self._touched:
                self._flush_subscriptions(now_ms)
        out = self.ways.take_front()
        if out:
            self._sent_ms = now_ms
        return out

    def _flush_producers(self, now_ms: int) -> None:
        kept = {}
        for topic, producer in self._fed.items():
            producer.flush(now_ms, self._number_for, self.ways.of(producer.identity.topic))
            if producer.buffer or producer.sent < len(producer.batches):
                kept[topic] = producer
        self._fed = kept

    def _number_for(self, entry: _Entry) -> int:
        number = self._next_request
        self._next_request = number + 1
        self._table[number] = entry
        return number

    def _flush_subscriptions(self, now_ms: int) -> None:
        kept = {}
        for endpoint, held in self._touched.items():
            if not held.is_ready:
                continue  # once it is on its topic it is touched again
            if held.reports and now_ms < held.resume_ms:
                kept[endpoint] = held
            elif held.reports:
                held.resume_ms = 0
                self._send_reports(held)
            if held.owes_credit:
                self.ways.of(held.topic_bytes).append(held.grant_part())
        self._touched = kept

    def _send_reports(self, held: Subscription) -> None:
        out = self.ways.of(held.topic_bytes)
        for report in held.take_reports():
            out.append(report.part(self._number_for(report)))

    # --- requests ---------------------------------------------------------------------------

    def request(self, verb: Verb, topic: bytes, fields: object) -> int:
        """Asks something; ``Replied`` or ``Refused`` of this number follows."""
        if self._asked >= REQUESTS_MAX:
            raise PeerError("busy", f"{REQUESTS_MAX} requests are without an answer", 100)
        number = self._take_number()
        asked = Asked(number, verb, topic, fields)
        self.check_frame(len(asked.body))
        self._table[number] = asked
        self._asked += 1
        if verb == Verb.CANCEL_WAIT and isinstance(fields, tuple):
            # Sent again, each at its own time, what it cancels could come behind it and stay.
            cancelled = self._table.get(fields[0])
            if isinstance(cancelled, Asked):
                cancelled.is_cancelled = True
        if self._state == _READY:
            # What was reported or published before it goes before it.
            self._flush_producers(self._ticked_ms)
            self._flush_subscriptions(self._ticked_ms)
            self._send_asked(asked)
        return number

    def forget(self, number: int) -> None:
        """Nobody waits for this answer any more."""
        if isinstance(self._table.get(number), Asked):
            del self._table[number]
            self._asked -= 1
            self._retries.pop(number, None)

    def _send_entry(self, number: int) -> None:
        """Sends an entry of the table, under its number."""
        self._strays.discard(number)
        entry = self._table.get(number)
        match entry:
            case Asked():
                self._send_asked(entry)
            case Joining(subscription=held):
                body, entry.credit = held.subscribe_body(self._id)
                part = pack_part(Verb.SUBSCRIBE, number, held.topic_bytes, body)
                entry.place = self._place(held.topic_bytes, part)
            case Asking(identity=identity, numbers=numbers):
                sequences = [
                    identity.awaited[n][2] if n in identity.awaited else 0 for n in numbers
                ]
                body = pack_body((identity.id, numbers, sequences))
                self._post(Verb.AWAIT_RECEIPTS, number, identity.topic, body)

    def _send_asked(self, asked: Asked) -> None:
        if asked.is_cancelled:
            return
        asked.place = self._place(asked.topic, asked.part())

    def _place(self, topic: bytes, part: bytes) -> int:
        """Sends a part, and returns its place among what goes through the front-end, or 0."""
        out = self.ways.of(topic)
        out.append(part)
        return self.ways.front_count if out is self.ways.front else 0

    def _post(self, verb: Verb, number: int, topic: bytes, body: bytes) -> None:
        self.ways.of(topic).append(pack_part(verb, number, topic, body))

    # --- publishing -------------------------------------------------------------------------

    def admits(self, count: int, size: int, receipt: bool) -> bool:
        """May so much be published now, or must the publisher wait?"""
        if receipt and self._receipts and self._receipts + count > self._receipts_max:
            self._sweep_receipts()
            if self._receipts and self._receipts + count > self._receipts_max:
                return False
        return self.window.admits(count, size)

    def has_unsent(self, topic: str) -> bool:
        """Does anything that was published on a topic still wait to be sent on this connection?"""
        producer = self._producers.get(topic)
        return producer is not None and producer.has_unsent

    def surely_admits(self, count: int, size: int, receipt: bool) -> bool:
        """May so much be published now, as far as can be told without changing anything?

        This may be asked by another thread than the one that has the session.
        """
        window = self.window
        return (
            window.messages + count <= window.messages_max
            and window.bytes + size <= window.bytes_max
            and not (receipt and self._receipts + count > self._receipts_max)
        )

    def publish(
        self, ticket: Ticket, start: int, messages: list[Incoming], payload_bytes: int
    ) -> None:
        """Publishes messages of a ticket, from position ``start`` of it, with the next flush.

        ``payload_bytes`` is the size of their payloads and headers together.
        """
        producer = self._producers.get(ticket.topic)
        if producer is None:
            producer = self._new_producer(ticket.topic)
        size = payload_bytes + MESSAGE_BYTES * len(messages)
        if size + FRAME_MARGIN_BYTES > self._frame_bytes_max:
            for _, header, payload in messages:
                self.check_frame(len(header) + len(payload))
        self.window.add(len(messages), size)
        producer.add(ticket, start, messages, size)
        self.unsent_messages += len(messages)
        self.unsent_bytes += size
        self._fed[ticket.topic] = producer

    def produce_as(self, topic: str, producer_id: bytes, next_number: int) -> None:
        """Publishes on this topic under an id of the caller's, from this number on."""
        if len(producer_id) != limits.PRODUCER_ID_BYTES or next_number < 1:
            raise PeerError("bad_request", "a producer has an id of 16 bytes and counts from 1")
        if topic in self._producers:
            raise PeerError("wrong_state", "this client has published on the topic already")
        identity = Identity(topic.encode(), producer_id)
        self._identities[identity.id] = identity
        self._producers[topic] = Producer(topic, identity, next_number, is_fixed=True)

    def _new_producer(self, topic: str) -> Producer:
        if len(self._producers) >= PRODUCERS_MAX:
            for idle in [p for p in self._producers.values() if p.is_idle and not p.is_fixed]:
                del self._producers[idle.topic]
                self._drop_identity_if_over(idle.identity)
        producer = Producer(topic, self._new_identity(topic.encode()))
        self._producers[topic] = producer
        return producer

    def _new_identity(self, topic: bytes) -> Identity:
        identity = Identity(topic, self._random_bytes(limits.PRODUCER_ID_BYTES))
        self._identities[identity.id] = identity
        return identity

    def _drop_identity_if_over(self, identity: Identity) -> None:
        producer = self._producers.get(identity.topic.decode())
        if not identity.awaited and (producer is None or producer.identity is not identity):
            self._identities.pop(identity.id, None)

    def _sweep_receipts(self) -> None:
        for identity in list(self._identities.values()):
            self._receipts -= identity.forget_dropped()
            self._drop_identity_if_over(identity)

    # --- receiving --------------------------------------------------------------------------

    def subscribe(self, topic: str, interests: tuple[str, ...], **wishes: Any) -> Subscription:
        """Puts an endpoint on a topic; ``Subscribed`` or ``Gone`` follows."""
        held = Subscription(topic, self._next_endpoint, interests, **wishes)
        self._next_endpoint += 1
        self._subscriptions[held.endpoint] = held
        number = self._number_for(Joining(held, 0))
        if self._state == _READY:
            self._send_entry(number)
        return held

    def check_frame(self, size: int) -> None:
        """Refuses what the broker would not take in one frame, and cut the connection for."""
        most = self._frame_bytes_max
        if size + FRAME_MARGIN_BYTES > most:
            raise PeerError("too_large", f"the broker takes {most} bytes in one frame")

    def unsubscribe(self, held: Subscription) -> int | None:
        """Takes an endpoint off its topic; the number of the request, where one is needed."""
        if held.is_over:
            return None
        self._subscriptions.pop(held.endpoint, None)
        self._looking.pop(held.endpoint, None)
        was_ready = held.is_ready
        if was_ready:  # first what is still to be said on it
            self._send_reports(held)
        held.is_over = True
        self._touched.pop(held.endpoint, None)
        for number, entry in list(self._table.items()):
            if isinstance(entry, Joining) and entry.subscription is held:
                del self._table[number]
                self._retries.pop(number, None)
                was_ready = True  # it may be there by now
        if not was_ready or self._state != _READY:
            return None
        return self.request(Verb.UNSUBSCRIBE, held.topic_bytes, (held.endpoint,))

    def touch(self, held: Subscription) -> None:
        """A subscription has reports or credit to send."""
        if not held.is_over:
            self._touched[held.endpoint] = held

    # --- leases -----------------------------------------------------------------------------

    def _begin_looking(self, held: Subscription, now_ms: int) -> None:
        """It holds something, which is to be renewed in time."""
        if held.leases.begin(now_ms):
            self._looking[held.endpoint] = held
            self.look_ms = min(self.look_ms, held.leases.look_ms)

    def _look(self, now_ms: int) -> None:
        """Renews what has been held for long enough, of each that is due."""
        for held in list(self._looking.values()):
            if held.is_over:
                del self._looking[held.endpoint]
            elif held.leases.look_ms <= now_ms:
                self._look_at(held, now_ms)
        looks = [held.leases.look_ms for held in self._looking.values()]
        self.look_ms = max(min(looks, default=NEVER_MS), now_ms + LOOK_MS_MIN)

    def _look_at(self, held: Subscription, now_ms: int, *, all_: bool = False) -> None:
        if not held.is_ready:  # the broker says whose it is, and gives new deadlines with that
            held.leases.look_later(now_ms)
            return
        if held.reports:  # what is finished need not be renewed, and goes first
            self._send_reports(held)
        if held.credit and held.leases.is_late(now_ms):  # a pull counts what comes: not there
            held.doubt()
        looked = held.look(now_ms, all_=all_ or bool(held.aside))
        held.is_doubting &= bool(looked.renewed)
        if held.lowered:
            self.ways.of(held.topic_bytes).append(held.grant_part())
        self._renew(held, looked.renewed, None)
        self._renew(held, looked.given_up, 0)
        if held.leases.look_ms == NEVER_MS:
            del self._looking[held.endpoint]

    def look_if_late(self, held: Subscription, now_ms: int) -> None:
        """Before something is handed out: after a stall it may be that others have it by now."""
        is_there = self._state == _READY and held.is_ready and held.endpoint in self._looking
        if is_there and held.leases.is_late(now_ms):
            self._look_at(held, now_ms)
            self.look_ms = min(self.look_ms, held.leases.look_ms)

    def _renew(self, held: Subscription, leases: dict[int, int], timeout_ms: int | None) -> None:
        pairs = list(leases.items())
        for start in range(0, len(pairs), limits.BATCH_MESSAGES_MAX):
            entry = Renewing(held, pairs[start : start + limits.BATCH_MESSAGES_MAX], timeout_ms)
            part = entry.part(self._number_for(entry))
            self.ways.of(held.topic_bytes).append(part)

    def _on_renewed(
        self, entry: Renewing, body: dict[str, Any], now_ms: int, events: list[Event]
    ) -> None:
        refused = _refused(body.get("refused", ()))
        held = entry.subscription
        if entry.timeout_ms is not None or not (refused or held.aside or held.is_doubting):
            return
        attempts = dict(zip(entry.sequences, entry.attempts, strict=True))
        if refused:
            held.lose({sequence: attempts.get(sequence, 0) for sequence in refused})
            events.append(Noted(f"{held.topic}: {len(refused)} deliveries have gone to others"))
        if held.is_over or entry.doubts != held.doubts:
            return
        was_doubting = held.is_doubting
        if held.trust(attempts):
            events.append(Delivered(held))
        if was_doubting and held.aside and held.is_ready:
            # It lay in the socket, ahead of this answer: what comes behind it is fresh.
            self._look_at(held, now_ms)

    def _on_timeouts(self, held: Subscription, body: dict[str, Any], now_ms: int) -> None:
        """The broker says how long this endpoint may hold a delivery."""
        sent_ms = _whole(body.get("sent_timeout_ms", 0), "sent_timeout_ms", 0)
        received_ms = _whole(body.get("received_timeout_ms", 0), "received_timeout_ms", 0)
        if held.leases.set_timeouts(sent_ms, received_ms) and held.is_ready:
            self._look_at(held, now_ms, all_=True)
            self.look_ms = min(self.look_ms, held.leases.look_ms)
        elif held.buffer or held.taken:
            self._begin_looking(held, now_ms)

    # --- what is received -------------------------------------------------------------------

    def receive(self, frame: bytes, now_ms: int) -> list[Event]:
        """Takes one message of the broker."""
        self._heard_ms = now_ms
        self._pinged = False
        try:
            return self.receive_parts(frame, read_parts(frame), now_ms)
        except PeerError as error:
            return [_misunderstood(error)]

    def receive_parts(self, data: bytes, parts: list[Part], now_ms: int) -> list[Event]:
        """Takes parts that lie in these bytes: those of a message, or what came on a lane."""
        events: list[Event] = []
        try:
            for verb, worker, _, request, topic, _, begin, end in parts:
                if verb == _ELSEWHERE:
                    self.ways.is_elsewhere(topic)
                    continue
                if self._worker_of.get(topic) != worker or worker >= self.workers:
                    self._learn_worker(verb, topic, worker)
                handler = _HANDLERS.get(verb)
                if handler is not None:
                    handler(self, request, worker, read_body(data[begin:end]), now_ms, events)
                else:
                    told = f"the broker sent verb {verb}, which this version does not know"
                    events.append(Noted(told))
        except PeerError as error:
            events.append(_misunderstood(error))
        return events

    def _learn_worker(self, verb: int, topic: bytes, worker: int) -> None:
        """Something came from this process, which has the topic that it is about, if any."""
        # A refusal may be of a worker that no longer has the topic.
        if worker == ANY_WORKER or not topic or verb == _REFUSE:
            return
        if len(self._worker_of) >= WORKERS_KNOWN_MAX:
            self._worker_of.clear()
        if worker >= self.workers:
            if self._worker_of.get(topic) != worker:
                self._note_strays(topic)
            self.ways.is_elsewhere(topic, worker)
        self._worker_of[topic] = worker

    def _note_strays(self, topic: bytes) -> None:
        """Notes what may have been sent to the worker of a topic's store, and not been taken yet:
        the front-end did so until it knew of the process that has answered now."""
        self._strays.intersection_update(self._table)
        self._strays.update(
            number for number, entry in self._table.items() if _topic_of(entry) == topic
        )

    def _strays_at(self, worker: int) -> set[int]:
        """Entries that this worker may have, though their topics have processes of their own."""
        self._strays.intersection_update(self._table)
        home = self.ways.worker_of_store
        return {number for number in self._strays if home(_topic_of(self._table[number])) == worker}

    # --- of the session -----------------------------------------------------------------------

    def _on_welcome(
        self, request: int, worker: int, body: Any, now_ms: int, events: list[Event]
    ) -> None:
        if self._state != _GREETING or request != self._hello:
            return
        if type(body) is not dict or body.get("version") != VERSION:
            raise PeerError("bad_request", "a welcome without a version")
        self._heartbeat_ms = _whole(body.get("heartbeat_ms"), "heartbeat_ms", 1)
        self._frame_bytes_max = _whole(body.get("frame_bytes_max", 64 << 20), "frame_bytes_max", 1)
        self.workers = _whole(body.get("workers"), "workers", 1)
        named = body.get("session")
        self._id = named if type(named) is bytes else b""
        folder = str(body.get("lanes", ""))
        self.ways.begin(folder, _whole(body.get("stores"), "stores", 1), self.workers)
        self._worker_of.clear()  # this may be another broker: topics may have moved
        self._state = _READY
        self._finish_drained(events)
        self._send_all_again(_Lost(lambda topic: True))
        events.append(Welcomed(str(body.get("broker", "")), self.workers))
        if folder:
            events += [self._lane_wanted(number) for number in range(min(self.workers, LANES_MAX))]

    def _on_pong(
        self, request: int, worker: int, body: Any, now_ms: int, events: list[Event]
    ) -> None:
        """That it came is all that it says."""

    def _on_closed(
        self, request: int, worker: int, body: Any, now_ms: int, events: list[Event]
    ) -> None:
        if self._state == _LEAVING:
            self._state = _OVER
            events.append(Ended())
            return
        said = [str(part) for part in body[:2]] if type(body) is tuple else []
        events.append(Lost("the broker closed the session: " + " ".join(said)))

    def _on_restarted(
        self, request: int, worker: int, body: Any, now_ms: int, events: list[Event]
    ) -> None:
        if self._state != _READY:
            return
        events.append(Noted(f"worker {worker} has restarted: sending again what it had"))
        if self._close_lane(worker):
            events.append(LaneOver(worker))
        # What the front-end took behind its telling us goes to the worker that is there now: sent
        # again, it would be done twice.
        seen = body if type(body) is int else None
        self._begin_again(worker, events, seen)
        if self.ways.folder and worker < min(self.workers, LANES_MAX):
            events.append(self._lane_wanted(worker))

    def _begin_again(self, worker: int, events: list[Event], seen: int | None = None) -> None:
        """A worker knows nothing of this session any more: sends again what it had.

        With ``seen``, what was asked through the front-end behind so many parts is on its way.
        """

        def is_of_it(topic: bytes) -> bool:
            # Before a topic has answered, it counts as of the worker of its store alone, or what
            # was asked of it would be asked again, and done again, for each worker that restarts;
            # but as of any process of its own, which nobody can know.
            home = self._worker_of.get(topic)
            if home is None and worker < self.workers:
                home = self.ways.home(topic)
            return home is None or home == worker

        strays = self._strays_at(worker)
        strayed = [self._table[number] for number in strays]
        lost = _Lost(is_of_it, strays, {(type(entry), _topic_of(entry)) for entry in strayed})
        self._forget_answers(lost)
        self._finish_drained(events)
        # Should an endpoint not be gone after all, it is made anew: it says what it holds.
        self._send_all_again(lost, seen)
        if worker >= self.workers:
            # Its topic may have moved to the worker of its store. Until the topic answers, a
            # restart of either process loses requests, so neither may count as its only home.
            self._worker_of = {
                topic: home for topic, home in self._worker_of.items() if home != worker
            }

    # --- lanes ------------------------------------------------------------------------------

    def _lane_wanted(self, worker: int) -> LaneWanted:
        self._lanes_due.pop(worker, None)
        return LaneWanted(worker, f"{self.ways.folder}/{LANE_SOCKET.format(worker)}")

    def open_lane(self, worker: int, token: bytes) -> None:
        """A lane is connected, and this token written to it: uses it from here on."""
        number = self._take_number()
        self._claims[number] = worker
        topic = worker_topic(worker)
        self.ways.front.append(pack_part(Verb.LANE, number, topic, pack_body((token,))))
        self.ways.open(worker)

    def lane_lost(self, worker: int) -> list[Event]:
        """A lane has ended: what was under way on it goes through the front-end."""
        events: list[Event] = []
        if self._close_lane(worker) and self._state == _READY:
            events.append(Noted(f"lost the lane to worker {worker}"))
            self._begin_again(worker, events)
        return events

    def _close_lane(self, worker: int) -> bool:
        self._claims = {number: held for number, held in self._claims.items() if held != worker}
        return self.ways.close(worker)

    def _on_claim_refused(
        self, worker: int, error: PeerError, now_ms: int, events: list[Event]
    ) -> None:
        """There is no such lane; of a worker that is only away, another one is made later."""
        if error.code == "busy":
            self._lanes_due[worker] = now_ms + max(retry_pause_ms(error, 0), RETRY_MS_MIN)
        if self._close_lane(worker):
            events.append(LaneOver(worker))
            self._begin_again(worker, events)

    def _forget_answers(self, lost: _Lost) -> None:
        """What was sent there will not be answered, and the endpoints there are gone."""
        for number, entry in list(self._table.items()):
            if lost.voids(entry):
                del self._table[number]
                if isinstance(entry, Report):
                    entry.subscription.put_back(entry)
        for producer in self._producers.values():
            if lost.has_some_of(Batch, producer.identity.topic):
                producer.forget_connection()
                if not producer.is_idle:
                    self._fed[producer.topic] = producer
        joining = {
            entry.subscription.endpoint
            for entry in self._table.values()
            if isinstance(entry, Joining)
        }
        for held in self._subscriptions.values():
            if lost.has_all_of(held.topic_bytes):
                held.forget_connection()
                if held.endpoint not in joining:
                    self._number_for(Joining(held, 0))

    def _send_all_again(self, lost: _Lost, seen: int | None = None) -> None:
        """Sends the table again: subscriptions first, then all else as it was asked."""
        joining: list[int] = []
        others: list[int] = []
        for number, entry in self._table.items():
            if not isinstance(entry, Joining | Asked):
                continue
            if seen is not None and entry.place > seen:
                continue  # it is on its way to the worker that is there now
            if lost.has(number, _topic_of(entry)):
                (others if isinstance(entry, Asked) else joining).append(number)
        for identity in list(self._identities.values()):
            if lost.has_some_of(Asking, identity.topic):
                self._receipts -= identity.forget_dropped()
                others += self._ask_receipts(identity, list(identity.awaited))
                self._drop_identity_if_over(identity)
        for number in joining + others:
            self._retries.pop(number, None)
            self._send_entry(number)

    def _ask_receipts(self, identity: Identity, numbers: list[int]) -> list[int]:
        most = limits.BATCH_MESSAGES_MAX
        return [
            self._number_for(Asking(identity, numbers[start : start + most]))
            for start in range(0, len(numbers), most)
        ]

    # --- answers ----------------------------------------------------------------------------

    def _on_accepted(
        self, request: int, worker: int, body: Any, now_ms: int, events: list[Event]
    ) -> None:
        batch = self._table.get(request)
        if isinstance(batch, Asked) and type(body) is tuple:
            events.append(Replied(request, {"results": [_result(entry) for entry in body]}))
            self.forget(request)
            return
        if not isinstance(batch, Batch):
            return  # answered before, under another number
        if type(body) is not tuple or len(body) != batch.count:
            raise PeerError("bad_request", "an answer that is not one for each message")
        results = (
            list(body) if set(map(type, body)) == {int} else [_result(entry) for entry in body]
        )
        self._settle(batch, results, events)

    def _settle(self, batch: Batch, results: list[int | PeerError], events: list[Event]) -> None:
        """A batch has its answers."""
        producer = batch.producer
        for number in batch.requests:
            self._table.pop(number, None)
        batch.requests.clear()
        producer.settle(batch)
        self.window.remove(batch.count, batch.size)
        position = 0
        for share in batch.shares:
            ticket, start, count = share
            mine = results[position : position + count]
            accepted = [*map(type, mine)].count(int)
            if ticket.receipt and accepted:
                first = batch.first + position
                self._receipts += producer.identity.expect(first, share, mine)
                if batch.sends > 1:  # its receipt may have come and gone
                    for number in self._ask_receipts(
                        producer.identity, list(range(first, first + count))
                    ):
                        self._send_entry(number)
            if ticket.answer(start, mine, accepted):
                events.append(Answered(ticket))
            position += count
        if producer.buffer:
            self._fed[producer.topic] = producer
        if producer.draining:
            self._finish_drained(events)

    def _on_reply(
        self, request: int, worker: int, body: Any, now_ms: int, events: list[Event]
    ) -> None:
        claimed = self._claims.pop(request, None)
        if claimed is not None:
            events.append(LaneOpened(claimed))  # now it has what comes next
            return
        entry = self._table.get(request)
        if request == 0:
            self._on_unasked(body, now_ms)
        elif entry is None or isinstance(entry, Batch):
            return
        elif type(body) is not dict:
            raise PeerError("bad_request", "a reply that is not a map")
        elif isinstance(entry, Asked):
            events.append(Replied(request, body))
            self.forget(request)
        else:
            self._on_answer(entry, body, now_ms, events)
            del self._table[request]

    def _on_answer(
        self,
        entry: Joining | Asking | Report | Renewing,
        body: dict[str, Any],
        now_ms: int,
        events: list[Event],
    ) -> None:
        match entry:
            case Joining():
                self._on_joined(entry, body, now_ms, events)
            case Renewing():
                self._on_renewed(entry, body, now_ms, events)
            case Asking():
                self._on_outcomes(entry, body, events)
            case Report():
                refused = _refused(body.get("refused", ()))
                if refused:
                    codes = ", ".join(sorted(set(refused.values())))
                    topic = entry.subscription.topic
                    events.append(Noted(f"{topic}: {len(refused)} reports do not count: {codes}"))
                entry.subscription.failures = 0
                for token in entry.tokens:
                    events.append(Reported(token, refused, None))

    def _on_unasked(self, body: Any, now_ms: int) -> None:
        """The deadlines of an endpoint have changed, or nothing that this version knows of."""
        number = body.get("endpoint") if type(body) is dict else None
        held = self._subscriptions.get(number) if type(number) is int else None
        if held is not None:
            self._on_timeouts(held, body, now_ms)

    def _on_joined(
        self, entry: Joining, body: dict[str, Any], now_ms: int, events: list[Event]
    ) -> None:
        held = entry.subscription
        held.receiver = str(body.get("receiver", ""))
        held.is_ready = held.was_ready = True
        held.early = 0
        held.failures = 0
        events.append(Subscribed(held))
        if held.came_back(self._id, _sequences(body.get("lost", ()))):
            events.append(Delivered(held))
        self._on_timeouts(held, body, now_ms)
        self.touch(held)
        if held.reports:
            self._send_reports(held)
        if entry.credit:
            self._post(Verb.GRANT, 0, held.topic_bytes, pack_body((held.endpoint, entry.credit)))
            entry.credit = 0

    def _on_refuse(
        self, request: int, worker: int, body: Any, now_ms: int, events: list[Event]
    ) -> None:
        if type(body) is not tuple or not 1 <= len(body) <= 3:
            raise PeerError("bad_request", "a refusal that is not a code and a detail")
        error = error_of(*body)
        if self._state == _GREETING and request == self._hello:
            if error.code == "busy":
                events.append(Lost(f"the broker is {error}"))
            else:
                events.append(Rejected(error))
            return
        claimed = self._claims.pop(request, None)
        if claimed is not None:
            self._on_claim_refused(claimed, error, now_ms, events)
            return
        entry = self._table.get(request)
        if entry is None:
            return  # of something that nobody waits for any more
        if error.code == "busy":
            self.last_busy = now_ms, error
        self._on_refused(entry, request, error, now_ms, events)

    def _on_refused(
        self, entry: _Entry, request: int, error: PeerError, now_ms: int, events: list[Event]
    ) -> None:
        if isinstance(entry, Batch):
            self._on_batch_refused(entry, request, error, now_ms, events)
        elif isinstance(entry, Renewing):
            self._on_not_renewed(entry, request, error, now_ms)
        elif isinstance(entry, Asked) and entry.verb == Verb.ORDER and error.code == "wrong_state":
            return  # sent again, though it waits there already: its answer is still to come
        elif error.code == "busy" or self._came_too_early(entry, error):
            self._try_later(entry, request, error, now_ms)
        else:
            self._on_entry_refused(entry, request, error, events)

    def _on_not_renewed(self, entry: Renewing, request: int, error: PeerError, now_ms: int) -> None:
        """Nothing was renewed: where the broker is only busy, it is looked at again soon."""
        del self._table[request]
        held = entry.subscription
        if error.code == "busy" and held.endpoint in self._looking:
            due_ms = now_ms + max(retry_pause_ms(error, 0), 1)
            held.leases.look_ms = min(held.leases.look_ms, due_ms)
            self.look_ms = min(self.look_ms, due_ms)

    def _came_too_early(self, entry: _Entry, error: PeerError) -> bool:
        """Has the topic's worker restarted, so that the endpoint is not there yet again?

        This client is about to be told so, and to subscribe again. An endpoint that is gone for
        good was told so before, and is over.
        """
        held = None
        if isinstance(entry, Report):
            held = entry.subscription
        elif isinstance(entry, Asked) and entry.endpoint is not None:
            held = self._subscriptions.get(entry.endpoint)
        if error.code != "no_such_receiver" or held is None or held.is_over:
            return False
        held.early += 1
        return held.early <= EARLY_MAX

    def _try_later(
        self, entry: Asked | Joining | Asking | Report, request: int, error: PeerError, now_ms: int
    ) -> None:
        if isinstance(entry, Report):
            held = entry.subscription
            del self._table[request]
            held.put_back(entry)
            held.resume_ms = now_ms + max(retry_pause_ms(error, held.failures), 1)
            held.failures += 1
            self.touch(held)
            return
        counted = entry.subscription if isinstance(entry, Joining) else entry
        self._retries[request] = now_ms + retry_pause_ms(error, counted.failures)
        counted.failures += 1

    def _on_entry_refused(
        self,
        entry: Asked | Joining | Asking | Report,
        request: int,
        error: PeerError,
        events: list[Event],
    ) -> None:
        match entry:
            case Asked():
                self.forget(request)
                events.append(Refused(request, error))
                return
            case Joining(subscription=held):
                self._end(held, error, events)
            case Asking():
                for number in entry.numbers:
                    self._resolve_all(entry.identity, [(number, UNKNOWN, {})], events)
            case Report():
                events.append(Noted(f"a report on {entry.subscription.topic} was refused: {error}"))
                events += [Reported(token, {}, error) for token in entry.tokens]
        del self._table[request]

    def _on_batch_refused(
        self, batch: Batch, request: int, error: PeerError, now_ms: int, events: list[Event]
    ) -> None:
        """Nothing of a frame was stored: it is sent again, or was in vain."""
        producer = batch.producer
        del self._table[request]
        batch.requests.remove(request)
        batch.unsure -= 1
        self._fed[producer.topic] = producer
        if producer.draining:
            if error.code not in ("busy", "wrong_state") and not producer.is_fixed:
                self._settle(batch, [error] * batch.count, events)
            self._finish_drained(events)
        elif error.code == "busy" or (
            # The broker knows nothing of this producer, and what is to come first is still under
            # way: it was refused while the worker was away, and this came through a moment later.
            error.code == "wrong_state" and producer.batches[0] is not batch
        ):
            self._publish_later(producer, batch, error, now_ms, events)
        else:
            # Its numbers are not used, so that all behind it wait for a gap to close: under a new
            # id there is none. What is under way under the old one has to come back before.
            producer.draining = True
            if producer.is_fixed:
                # Under another id it could be stored twice, so its publisher decides. What follows
                # may use its numbers, and must not before all behind it has come back.
                producer.refused = producer.refused or error
            elif error.code != "wrong_state" or batch.unsure:
                self._settle(batch, [error] * batch.count, events)
            self._finish_drained(events)

    def _publish_later(
        self, producer: Producer, batch: Batch, error: PeerError, now_ms: int, events: list[Event]
    ) -> None:
        if batch.requests or not producer.is_sent(batch):
            return  # it has been, or is to be, sent once more: that answer counts
        # Behind the first, a gap is no wonder: the first may be refused while its worker is away.
        if error.retry_after_ms == 0 and producer.batches[0] is batch:
            producer.gaps += 1
            if producer.gaps > GAPS_MAX:
                events.append(Noted(f"{producer.topic}: the broker misses what it had confirmed"))
                producer.draining = True
                self._finish_drained(events)
                return
        pause_ms = retry_pause_ms(error, producer.failures)
        producer.failures += 1
        producer.send_again(max(now_ms + pause_ms, producer.resume_ms))

    def _finish_drained(self, events: list[Event]) -> None:
        """Producers that wait for a new id get it once nothing is under way under the old."""
        for producer in [p for p in self._producers.values() if p.is_drained()]:
            if producer.is_fixed:
                self._give_up(producer, events)
                continue
            old = producer.identity
            lost = producer.begin_anew(self._new_identity(old.topic))
            self._drop_identity_if_over(old)
            detail = "the broker does not know whether it was stored"
            for batch in lost:
                # It is off the producer already: only its window and its tickets are left.
                producer.batches.appendleft(batch)
                error = PeerError("wrong_state", detail)
                self._settle(batch, [error] * batch.count, events)
            if not producer.is_idle:
                self._fed[producer.topic] = producer

    def _give_up(self, producer: Producer, events: list[Event]) -> None:
        """Everything unanswered of an id that is fixed was in vain."""
        error = producer.refused or PeerError("wrong_state", "the broker misses what it confirmed")
        producer.refused = None
        lost = producer.give_up()
        for batch in lost:
            producer.batches.appendleft(batch)
            self._settle(batch, [error] * batch.count, events)

    # --- receipts ---------------------------------------------------------------------------

    def _on_resolved(
        self, request: int, worker: int, body: Any, now_ms: int, events: list[Event]
    ) -> None:
        if type(body) is not tuple:
            raise PeerError("bad_request", "receipts that are not a list")
        for receipt in body:
            if type(receipt) is not tuple or len(receipt) != 4 or type(receipt[0]) is not bytes:
                raise PeerError("bad_request", "a receipt without its four fields")
            outcome = _outcome(receipt[1:])
            identity = self._identities.get(receipt[0])
            if identity is not None:
                self._resolve_all(identity, [outcome], events)
            else:
                events.append(Overheard(receipt[0]))

    def _on_outcomes(self, entry: Asking, body: dict[str, Any], events: list[Event]) -> None:
        outcomes = body.get("outcomes")
        if type(outcomes) is not tuple:
            raise PeerError("bad_request", "outcomes that are not a list")
        known = [_outcome(fields) for fields in outcomes]
        self._resolve_all(entry.identity, [o for o in known if o[1] != "pending"], events)

    def _resolve_all(
        self,
        identity: Identity,
        outcomes: list[tuple[int, str, dict[str, str]]],
        events: list[Event],
    ) -> None:
        for number, verdict, statuses in outcomes:
            awaited = identity.awaited.pop(number, None)
            if awaited is None:
                continue
            self._receipts -= 1
            ticket = awaited[0]()
            if ticket is not None:
                ticket.resolve(awaited[1], Outcome(verdict, statuses))
                events.append(Resolved(ticket))
        self._drop_identity_if_over(identity)

    # --- deliveries -------------------------------------------------------------------------

    def _on_deliver(
        self, request: int, worker: int, body: Any, now_ms: int, events: list[Event]
    ) -> None:
        if type(body) is not tuple or len(body) != 3 or type(body[0]) is not int:
            raise PeerError("bad_request", "a delivery without its three fields")
        held = self._subscriptions.get(body[0])
        if held is not None and self._state == _READY:  # else it fails over by itself
            # What waited for a new endpoint comes ahead of the answer to its subscription.
            if held.arrive(_items(body[2]), now_ms):
                self.touch(held)
            if held.leases.look_ms == NEVER_MS:
                self._begin_looking(held, now_ms)
            events.append(Delivered(held))

    def _on_gone(
        self, request: int, worker: int, body: Any, now_ms: int, events: list[Event]
    ) -> None:
        if type(body) is not tuple or len(body) != 2 or type(body[0]) is not int:
            raise PeerError("bad_request", "a farewell without its two fields")
        held = self._subscriptions.get(body[0])
        if held is not None:
            self._end(held, error_of(body[1]), events)

    def _end(self, held: Subscription, error: PeerError, events: list[Event]) -> None:
        held.is_over = True
        held.is_ready = False
        self._subscriptions.pop(held.endpoint, None)
        self._touched.pop(held.endpoint, None)
        self._looking.pop(held.endpoint, None)
        events.append(Gone(held, error))


_Handler = Callable[[Session, int, int, Any, int, list[Event]], None]
_HANDLERS: Final[dict[int, _Handler]] = {
    Verb.WELCOME: Session._on_welcome,
    Verb.PONG: Session._on_pong,
    Verb.CLOSED: Session._on_closed,
    Verb.RESTARTED: Session._on_restarted,
    Verb.ACCEPTED: Session._on_accepted,
    Verb.REPLY: Session._on_reply,
    Verb.REFUSE: Session._on_refuse,
    Verb.DELIVER: Session._on_deliver,
    Verb.GONE: Session._on_gone,
    Verb.RESOLVED: Session._on_resolved,
}


def _topic_of(entry: _Entry) -> bytes:
    match entry:
        case Asked(topic=topic):
            return topic
        case Batch(producer=producer):
            return producer.identity.topic
        case Report(subscription=held) | Renewing(subscription=held) | Joining(subscription=held):
            return held.topic_bytes
        case Asking(identity=identity):
            return identity.topic


# --- reading what the broker sends --------------------------------------------------------------


def _misunderstood(error: PeerError) -> Lost:
    return Lost(f"the broker sent what is not of the protocol: {error.detail}")


def _whole(value: object, name: str, least: int) -> int:
    if type(value) is not int or value < least:
        raise PeerError("bad_request", f"a wrong {name}")
    return value


def _result(entry: object) -> int | PeerError:
    if type(entry) is int:
        return entry
    if type(entry) is tuple and len(entry) == 2:
        return error_of(*entry)
    raise PeerError("bad_request", "an answer that is neither a sequence nor a refusal")


def _sequences(value: object) -> tuple[int, ...]:
    if type(value) is not tuple or not set(map(type, value)) <= {int}:
        raise PeerError("bad_request", "sequences that are not a list of numbers")
    return value


def _refused(pairs: object) -> dict[int, str]:
    if type(pairs) is not tuple:
        raise PeerError("bad_request", "refusals that are not a list")
    refused = {}
    for pair in pairs:
        if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not int:
            raise PeerError("bad_request", "a refusal that is not a sequence and a code")
        refused[pair[0]] = str(pair[1])
    return refused


def _outcome(fields: object) -> tuple[int, str, dict[str, str]]:
    if type(fields) is tuple and len(fields) == 3:
        number, verdict, statuses = fields
        if type(number) is int and type(verdict) is str and type(statuses) is dict:
            return number, verdict, statuses
    raise PeerError("bad_request", "an outcome that is not a number, a verdict and statuses")


def _items(items: object) -> tuple[Item, ...]:
    """Deliveries, each of five fields of the right types; many column by column, which is fast."""
    if type(items) is not tuple:
        raise PeerError("bad_request", "deliveries that are not a list")
    if len(items) < COLUMNS_MIN:
        for item in items:
            _check_item(item)
        return items
    if not are_all(tuple, items) or set(map(len, items)) != {5}:
        raise PeerError("bad_request", "a delivery without its five fields")
    sequences, attempts, ids, headers, payloads = zip(*items, strict=True)
    if not (are_all(int, sequences) and are_all(int, attempts)):
        raise PeerError("bad_request", "a delivery whose numbers are none")
    if not (are_all(bytes, ids) and are_all(bytes, headers) and are_all(bytes, payloads)):
        raise PeerError("bad_request", "a delivery whose bytes are none")
    for header in set(headers):
        header_of(header)
    return items


def _check_item(item: object) -> None:
    if type(item) is not tuple or len(item) != 5:
        raise PeerError("bad_request", "a delivery without its five fields")
    sequence, attempt, message_id, header, payload = item
    if type(sequence) is not int or type(attempt) is not int:
        raise PeerError("bad_request", "a delivery whose numbers are none")
    if type(message_id) is not bytes or type(header) is not bytes or type(payload) is not bytes:
        raise PeerError("bad_request", "a delivery whose bytes are none")
    header_of(header)
