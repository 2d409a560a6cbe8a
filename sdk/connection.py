"""An asyncio client without its verbs: what keeps it connected, and those who wait on it.

What decides is ``session.py``; here are the clock, and the futures of those who wait. What is
published in one turn of the loop leaves as one frame.
"""

import asyncio
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self, Unpack

from asterism import __version__, limits
from asterism.errors import PeerError
from asterism.message import Header
from asterism.sdk import arguments
from asterism.sdk import events as happened
from asterism.sdk.composing import Wishes
from asterism.sdk.deliveries import (
    FAILED,
    PROCESSED,
    RECEIVED,
    Received,
    finish,
)
from asterism.sdk.lane import Lane
from asterism.sdk.leases import MAX_LEASE_MS
from asterism.sdk.link import Link
from asterism.sdk.producing import RETRY_MS_MAX, RETRY_MS_MIN
from asterism.sdk.receiving import Subscription
from asterism.sdk.session import Session
from asterism.sdk.signatures import with_push_wishes
from asterism.sdk.tickets import ClosedError, Outcome, Ticket
from asterism.sdk.waiting import Waiting, deadline_in
from asterism.wire import LANE_TOKEN_BYTES, Part, Verb

log = logging.getLogger("asterism")

TIMEOUT: Final = 30.0  # seconds that a verb waits for its answer, unless it is told otherwise
CONNECT_TIMEOUT: Final = 10.0
MAX_LEASE: Final = MAX_LEASE_MS / 1_000  # seconds that a delivery is kept, unless told otherwise
CLOSE_TIMEOUT: Final = 5.0  # seconds that a close waits for what is still unanswered

Payload = bytes | bytearray | memoryview


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def sayable(reason: str) -> str:
    """A reason as it can be sent: of bounded length, and valid text whatever was in it."""
    return reason[: limits.REASON_BYTES_MAX].encode(errors="replace").decode()


def clock_ms() -> int:
    return time.time_ns() // 1_000_000


# --- receipts -----------------------------------------------------------------------------------


class Receipt(Ticket):
    """What has become of a message: first accepted, later, where that was asked for, resolved."""

    __slots__ = ("_node", "_waiters", "id")

    def __init__(
        self, node: "Connection", topic: str, header: Header, count: int, id: bytes
    ) -> None:
        Ticket.__init__(self, topic, count, header.receipt)
        self._node = node
        self._waiters: list[asyncio.Future[None]] = []
        self.id = id

    @property
    def sequence(self) -> int:
        """The number that the topic gave the (first) message; the refusal, if it was refused."""
        return self._sequence_at(0)

    def _sequence_at(self, position: int) -> int:
        if self.missing:
            raise RuntimeError("it is not accepted yet: await accepted() first")
        result = self.results[position]
        if isinstance(result, PeerError):
            raise result
        return result

    async def accepted(self, timeout: float | None = TIMEOUT) -> Self:
        """Waits until the topic has it (durable: on disk); ``BrokerError`` if it is refused."""
        if self.missing:
            if self._node._flushing:
                self._node._hurry()
            if not await self._node._until(self, self._is_answered, timeout):
                raise self._late("accepted", timeout)
        if self.accepted_count < self.count:
            error = self.first_error()
            if error is not None:
                raise error
        return self

    def _is_answered(self) -> bool:
        return not self.missing

    async def resolved(self, timeout: float | None = TIMEOUT) -> Outcome:
        """Waits for how the (first) message ended; a receipt has to have been asked for."""
        return await self._resolved_at(0, timeout)

    async def _resolved_at(self, position: int, timeout: float | None) -> Outcome:
        self._check_asked()
        if not await self._node._until(self, lambda: self._is_over_at(position), timeout):
            raise self._late("resolved", timeout)
        if position not in self.outcomes:
            self._sequence_at(position)  # raises the refusal
        return self.outcomes[position]

    def _is_over_at(self, position: int) -> bool:
        refused = not self.missing and isinstance(self.results[position], PeerError)
        return refused or position in self.outcomes

    def _check_asked(self) -> None:
        if not self.receipt:
            raise RuntimeError("no receipt was asked for: publish(..., receipt=True)")

    def _late(self, what: str, timeout: float | None) -> TimeoutError:
        why = self._node._why_late(timeout)
        return TimeoutError(f"not {what} within {timeout:g} s; it may still be{why}")

    def _wake(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                self._node._waiting.settle(waiter, None)

    def __repr__(self) -> str:
        state = "under way" if self.missing else "answered"
        return f"<{type(self).__name__} of {self.count} on {self.topic!r}, {state}>"


class BatchReceipt(Receipt):
    """The receipt of many messages: ``results`` has a sequence or a ``BrokerError`` for each."""

    __slots__ = ()

    @property
    def sequences(self) -> list[int]:
        """The sequences of those that were accepted."""
        return [result for result in self.results if type(result) is int]

    @property
    def refused(self) -> list[tuple[int, PeerError]]:
        """Position and refusal of those that were not."""
        return [(at, held) for at, held in enumerate(self.results) if isinstance(held, PeerError)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, position: int) -> "MessageReceipt":
        return MessageReceipt(self, range(self.count)[position])

    def __iter__(self) -> Iterator["MessageReceipt"]:
        return (MessageReceipt(self, position) for position in range(self.count))

    async def all_resolved(self, timeout: float | None = TIMEOUT) -> list[Outcome | None]:
        """Waits for how each of them ended; ``None`` for those that were refused."""
        self._check_asked()
        if not await self._node._until(self, lambda: self.is_resolved, timeout):
            raise self._late("resolved", timeout)
        return [self.outcomes.get(position) for position in range(self.count)]


class MessageReceipt:
    """The receipt of one message of many."""

    __slots__ = ("batch", "position")

    def __init__(self, batch: BatchReceipt, position: int) -> None:
        self.batch = batch
        self.position = position

    @property
    def sequence(self) -> int:
        """The number that the topic gave the message; the refusal, if it was refused."""
        return self.batch._sequence_at(self.position)

    async def resolved(self, timeout: float | None = TIMEOUT) -> Outcome:
        """Waits for how it ended."""
        return await self.batch._resolved_at(self.position, timeout)

    def __repr__(self) -> str:
        return f"<MessageReceipt {self.position} of {self.batch!r}>"


# --- deliveries ---------------------------------------------------------------------------------


class Delivery(Received):
    """A delivery. ``async with`` reports it received, and at the end processed or failed."""

    __slots__ = ("_inbox",)

    def __init__(
        self, inbox: "Inbox", subscription: Subscription, item: Any, is_free: bool
    ) -> None:
        self._subscription = subscription
        self._item = item
        self._step = PROCESSED if is_free else 0
        self._inbox = inbox

    async def received(self, *, confirm: bool = False) -> None:
        """Reports that it has arrived; with ``confirm``, waits until the broker knows."""
        await self._report(RECEIVED, "", confirm)

    async def processed(self, *, confirm: bool = False) -> None:
        """Reports that it is done, and waits for nothing; with ``confirm``, until the broker knows.

        A publisher waits for that with ``receipt.resolved()``.
        """
        await self._report(PROCESSED, "", confirm)

    async def failed(self, reason: str = "", *, confirm: bool = False) -> None:
        """Reports that it could not be done, and why; ``confirm`` as for ``processed``.

        That is final, and the message is parked or a dead letter, unless the topic's
        ``max_attempts`` allows another attempt. ``give_back`` says that nobody has tried.
        """
        await self._report(FAILED, reason, confirm)

    async def ack(self, *, confirm: bool = False) -> None:
        """The same as ``processed``."""
        await self._report(PROCESSED, "", confirm)

    async def nack(self, reason: str = "", *, confirm: bool = False) -> None:
        """The same as ``failed``: final, unless ``max_attempts`` allows another attempt."""
        await self._report(FAILED, reason, confirm)

    async def give_back(self) -> None:
        """Returns it unharmed: it waits again at once, for another receiver or for this one."""
        node = self._inbox._node
        node._check_open()
        if not self.is_finished:
            self._step = PROCESSED
            node._give_up(self._subscription, {self.sequence: self.attempt})

    async def extend(self, seconds: float, *, timeout: float | None = TIMEOUT) -> None:
        """Moves its deadline to so many seconds from now; 0 gives it back at once."""
        extension_ms = arguments.milliseconds("seconds", seconds, 0, limits.TIME_MS_MAX)
        held, own = self._subscription, {self.sequence: self.attempt}
        fields = (held.endpoint, tuple(own), extension_ms, None, tuple(own.values()))
        reply = await self._inbox._node._ask(Verb.EXTEND, held.topic_bytes, fields, timeout)
        refused = reply.get("refused", ())
        if refused or not extension_ms:
            held.lose(own)
        for _, code in refused:
            raise PeerError(code, f"message {self.sequence} of {self.topic}")

    @with_push_wishes
    async def reply(self, payload: Payload, **wishes: Unpack[Wishes]) -> Receipt:
        """Answers a request."""
        target = self.reply_to
        if target is None:
            raise RuntimeError("this message does not ask for an answer")
        topic, subject = target
        answer: Wishes = {"mode": "push", "subject": subject, **wishes}
        return await self._inbox._node.publish(topic, payload, **answer)

    async def _report(self, status: int, reason: str, confirm: bool) -> None:
        node = self._inbox._node
        node._check_open()
        answer = node._loop.create_future() if confirm else None
        if confirm and self._subscription.is_over and not self.is_finished:
            gone = ClosedError("its inbox is closed: the broker takes no report on it any more")
            raise self._inbox._error or gone
        if not self._climb(status, sayable(reason) if reason else "", answer):
            return
        node._session.touch(self._subscription)
        if answer is None:
            node._schedule()
            return
        node._hurry()
        refused: dict[int, str] = await node._wait(answer, TIMEOUT, "a report")
        if self.sequence in refused:
            raise PeerError(refused[self.sequence], f"message {self.sequence} of {self.topic}")

    async def __aenter__(self) -> Self:
        await self.received()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._inbox._node.is_closed:
            return  # the broker gives it to somebody else
        if error is None:
            await self.processed()
        elif isinstance(error, Exception):
            await self.failed(f"{type(error).__name__}: {error}")
        elif not self.is_finished:  # cancelled: nobody's fault, so it goes to the next
            self._inbox._node._give_up(self._subscription, {self.sequence: self.attempt})


class Inbox:
    """The deliveries of a subscription: iterate, or take them in batches."""

    def __init__(
        self, node: "Connection", subscription: Subscription, auto_ack: bool = False
    ) -> None:
        self._node = node
        self._auto_ack = auto_ack
        self._subscription = subscription
        self._waiters: list[asyncio.Future[None]] = []
        self._error: PeerError | None = None
        self._is_closed = False
        self._is_pulled_by_name = False  # it serves the node's pulls, of one receiver
        self._pulling = 0  # the request of the pull that waits; 0: none does
        self._is_cancelled = False  # a pull that nobody waits for: what it brings goes back

    @property
    def topic(self) -> str:
        return self._subscription.topic

    @property
    def receiver(self) -> str:
        """The name of the receiver."""
        return self._subscription.receiver

    @property
    def interests(self) -> tuple[str, ...]:
        return self._subscription.interests

    @property
    def is_closed(self) -> bool:
        """Has it been left, or has its client been closed?"""
        return self._is_closed or self._node.is_closed

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the payloads that have come and nobody has taken yet."""
        return sum(len(item[4]) for item in self._subscription.buffer)

    def __repr__(self) -> str:
        state = ", closed" if self.is_closed else ""
        return f"<Inbox of {self.receiver!r} on {self.topic!r}{state}>"

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        while not self._is_there():
            await self._wait_for_news(1, None)
            if not self._subscription.buffer:
                raise StopAsyncIteration
        return self._take_one()

    async def receive(self, timeout: float | None = TIMEOUT) -> Delivery:
        """The next delivery, waiting ``timeout`` seconds for it, or for ever with ``None``.

        ``TimeoutError`` when none came in time, ``ClosedError`` when the inbox is closed.
        """
        while not self._is_there():
            await self._until_delivery(1, timeout)
        return self._take_one()

    async def batch(self, max: int = 1_000, timeout: float | None = TIMEOUT) -> list[Delivery]:
        """Up to ``max`` deliveries, at least one; it waits for the first as ``receive`` does."""
        return await self._some(max, timeout, max)

    async def _some(self, most: int, timeout: float | None, wanted: int) -> list[Delivery]:
        """Up to ``most`` deliveries, for a consumer that takes ``wanted`` at a time."""
        if self._is_there() and wanted > len(self._subscription.buffer):
            self._want_more(wanted)
        while not self._is_there():
            await self._until_delivery(wanted, timeout)
        return self._take(most)

    def _is_there(self) -> bool:
        """Is there a delivery that is its own as far as one can know?"""
        held = self._subscription
        if held.buffer and (now_ms := monotonic_ms()) >= held.leases.look_ms:
            self._node._session.look_if_late(held, now_ms)
            if held.aside:
                self._node._schedule()
        return bool(held.buffer)

    async def _until_delivery(self, wanted: int, timeout: float | None) -> None:
        """Waits until a delivery is there."""
        await self._wait_for_news(wanted, timeout)
        if self._subscription.buffer:
            return
        if self._is_closed:
            raise ClosedError("this inbox is closed")
        raise TimeoutError(f"no delivery within {timeout:g} s")

    async def _wait_for_news(self, wanted: int, timeout: float | None) -> None:
        self._subscription.is_awaited = True
        self._want_more(wanted)
        await self._node._until(self, self._has_news, timeout)

    def _want_more(self, wanted: int) -> None:
        """The consumer has all there is: it may be that it could have more at a time."""
        held = self._subscription
        if held.want_more(wanted, monotonic_ms()):
            self._node._touch(held)

    def _take_one(self) -> Delivery:
        held = self._subscription
        item, is_free = held.take_one()
        if is_free and held.owes_credit:
            self._node._touch(held)
        delivery = Delivery(self, held, item, is_free)
        if self._auto_ack:
            self._node._finish((delivery,), PROCESSED)
        return delivery

    def _take(self, max: int) -> list[Delivery]:
        held = self._subscription
        taken = held.take(max)
        if held.owes_credit:
            self._node._touch(held)
        deliveries = [Delivery(self, held, item, is_free) for item, is_free in taken]
        if self._auto_ack:
            self._node._finish(deliveries, PROCESSED)
        return deliveries

    def _has_news(self) -> bool:
        """Is something there, or the inbox closed?"""
        if self._subscription.buffer or self._is_closed:
            return True
        if self._error is not None:
            raise self._error
        return False

    async def processed(self, deliveries: Sequence[Received]) -> None:
        """Reports many deliveries processed, in one frame."""
        self._node._finish(deliveries, PROCESSED)

    async def failed(self, deliveries: Sequence[Received], reason: str = "") -> None:
        """Reports many deliveries failed, in one frame."""
        self._node._finish(deliveries, FAILED, reason)

    async def pull(
        self, max: int = 100, wait: float = 0, *, timeout: float | None = TIMEOUT
    ) -> list[Delivery]:
        """Up to ``max`` deliveries, for an inbox without credit, waiting ``wait`` seconds.

        ``timeout`` is for the answer, beyond ``wait``.
        """
        arguments.whole("max", max, 1, limits.CREDIT_MAX)
        wait_ms = arguments.milliseconds("wait", wait, 0, limits.TIME_MS_MAX)
        return await self._node._pull_by(self, max, wait_ms, timeout)

    async def end_pull(self, *, timeout: float | None = TIMEOUT) -> None:
        """Has a ``pull`` of this inbox that waits return at once, with what it has got by then.

        Cancelling the pull instead gives back what it has got.
        """
        number = self._pulling
        if number and not self.is_closed:
            topic = self._subscription.topic_bytes
            await self._node._ask(Verb.CANCEL_WAIT, topic, (number,), timeout)

    def let_go(self, sequences: Collection[int]) -> None:
        """Keeps these no longer: they were reported by another way than their deliveries."""
        self._subscription.drop(sequences)

    def grant(self, credit: int) -> None:
        """Widens it: so many more deliveries may be out at a time."""
        held = self._subscription
        held.adaptive = None  # from here on it is the caller's to say
        held.credit += arguments.whole("credit", credit, 1, limits.CREDIT_MAX - held.credit)
        held.returned += credit
        self._node._touch(held)

    async def set_interests(self, *interests: str, timeout: float | None = TIMEOUT) -> None:
        """Replaces the interests; what is on its way is neither lost nor repeated."""
        held = self._subscription
        arguments.interests(interests)
        before, held.interests = held.interests, interests
        try:
            await self._node._ask(
                Verb.SET_INTERESTS, held.topic_bytes, (held.endpoint, interests), timeout
            )
        except PeerError:
            held.interests = before
            raise

    async def close(self, timeout: float | None = TIMEOUT) -> None:
        """Leaves the topic; what was delivered and not finished goes to others."""
        if self._is_closed:
            return
        self._is_closed = True
        held = self._subscription
        self._node._inboxes.pop(held.endpoint, None)
        held.buffer.clear()
        self._wake()
        if self._node.is_closed:
            return
        number = self._node._session.unsubscribe(held)
        if number is not None:
            try:
                await self._node._answer(number, timeout, "unsubscribe")
            except PeerError as error:  # it was gone already
                log.debug("unsubscribe from %s: %s", held.topic, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            self._node._waiting.settle(waiter, None)


# --- the node -----------------------------------------------------------------------------------


class Connection(ABC):
    """A node without its verbs: what keeps it connected, and hands on what it is told."""

    def __init__(
        self,
        address: str,
        name: str,
        connect_timeout: float,
        window_messages: int,
        window_bytes: int,
        max_lease: float | None = MAX_LEASE,
    ) -> None:
        self.address = address
        self._max_lease = max_lease
        self.name = name
        self._connect_timeout = connect_timeout
        self._session = Session(
            name,
            secrets.token_bytes,
            client=f"python {__version__}",
            window_messages=window_messages,
            window_bytes=window_bytes,
        )
        self._loop: asyncio.AbstractEventLoop
        self._link: Link
        self._waiting: Waiting
        self._lanes: dict[int, Lane] = {}  # by the worker
        self._writing = asyncio.Lock()  # held by who waits for room, so that others wait behind
        self._crowd = 0  # how many wait for room; while some do, nobody goes ahead of them
        self._is_open = False
        self._failure: Exception | None = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._joining: dict[int, asyncio.Future[None]] = {}
        self._inboxes: dict[int, Inbox] = {}
        # Producer -> those who wait for an outcome of it, of which there is no receipt here.
        self._overhearing: dict[bytes, set[asyncio.Future[Any]]] = {}
        self._ready: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._losses = 0

    def __repr__(self) -> str:
        state = "" if self._is_open else ", closed" if self._failure is not None else ", not open"
        return f"<{type(self).__name__} {self.name!r} at {self.address}{state}>"

    # --- opening and closing ----------------------------------------------------------------

    async def open(self) -> Self:
        """Connects; ``ConnectionError`` when no broker answers in time."""
        if self._is_open or self._failure is not None:
            raise ClosedError("this client is open, or has been")
        self._loop = asyncio.get_running_loop()
        self._link = Link(self._loop, self._on_frame)
        self._waiting = Waiting(self._loop)
        self._is_open = True
        self._ready = self._loop.create_future()
        try:
            self._connect()
            async with asyncio.timeout(self._connect_timeout):
                await self._ready
        except BaseException as error:
            self._shut(ClosedError("this client did not connect"))
            if isinstance(error, TimeoutError):
                raise ConnectionError(
                    f"no broker answered at {self.address} within {self._connect_timeout:g} s"
                ) from None
            raise
        return self

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Waits for what is unanswered, at most ``timeout`` seconds, and says goodbye."""
        if not self._is_open:
            return
        try:
            async with asyncio.timeout(timeout):
                while not self._session.is_idle:
                    self._schedule()
                    await self._some_answer()
                self._ended = self._loop.create_future()
                self._session.leave()
                self._flush()
                if not self._session.is_over:
                    await self._ended
        except TimeoutError:
            log.warning("%s: closed before everything was answered", self.name)
        finally:
            self._shut(ClosedError("this client is closed"))

    @property
    def is_closed(self) -> bool:
        return not self._is_open

    def _check_open(self) -> None:
        if not self._is_open:
            raise self._failure or ClosedError("this client is not open: use it in async with")

    async def _some_answer(self) -> None:
        if self._room is None:
            self._room = self._loop.create_future()
        await asyncio.shield(self._room)

    def _shut(self, failure: Exception) -> None:
        """Ends everything at once; whoever waits is told why."""
        self._is_open = False
        self._failure = failure
        self._disarm()
        self._close_lanes()
        self._link.end()
        waiting = [*self._answers.values(), *self._joining.values(), self._ready, self._ended]
        for future in waiting:
            if future is not None and not future.done():
                future.set_exception(failure)
                future.exception()  # it may be that nobody waits any more
        for ticket in self._session.tickets():
            assert isinstance(ticket, Receipt)
            ticket._wake()
        for inbox in self._inboxes.values():
            inbox._wake()
        self._wake_writers()
        self._waiting.stop()

    # --- the connection ---------------------------------------------------------------------

    def _connect(self) -> None:
        if not self._is_open:
            return
        self._link.open(self.address, self._on_ready, lambda: self._lose("it was cut"))
        if not self._link.is_open:
            return  # it was cut at once, and is tried again
        self._session.open(monotonic_ms())
        self._flush()

    def _lose(self, reason: str) -> None:
        """The connection is of no use: a new one is made, after a pause that grows."""
        if not self._link.is_open:
            return
        self._link.close()
        self._close_lanes()
        self._session.lost()
        if self._ended is not None:  # it said goodbye, and nobody is there to answer
            self._settle(self._ended, None)
            return
        pause_ms = min(RETRY_MS_MIN << min(self._losses, 10), RETRY_MS_MAX)
        self._losses += 1
        log.warning(
            "%s: lost the connection to %s (%s); connecting again in %d ms",
            *(self.name, self.address, reason, pause_ms),
        )
        self._loop.call_later(pause_ms / 1_000, self._connect)

    def _on_ready(self) -> None:
        """The socket's descriptor has something to say: there may be something to read or send."""
        if self._link.read():
            self._loop.call_soon(self._on_ready)
        if self._link.outbox:
            self._flush()

    def _schedule(self) -> None:
        """Flushes at the end of this turn of the loop."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        if self._flushing:  # else somebody was in a hurry
            self._flush()

    def _hurry(self) -> None:
        """Somebody is about to wait: what he said leaves at once, where nothing else is under way.

        Else others are likely to say more in this turn of the loop, and it leaves with that.
        """
        if self._session.has_one_under_way:
            self._flush()
        else:
            self._schedule()

    def _flush(self) -> None:
        self._flushing = False
        link = self._link
        if not link.is_open:
            return
        if not link.outbox:  # while the socket takes no more, what is published gathers
            link.outbox.extend(self._session.flush(monotonic_ms()))
            for worker, parts in self._session.ways.take_lanes().items():
                self._lanes[worker].send(parts)
        if link.outbox:
            link.send()
            # Sending may have swallowed the descriptor's sign that there is something to read.
            if link.read():
                self._loop.call_soon(self._on_ready)
        if self._timer is None or self._session.has_retries:
            self._arm()

    # --- lanes ------------------------------------------------------------------------------

    def _open_lane(self, worker: int, path: str) -> None:
        """Connects to a worker of this machine; one of another has no such socket here."""
        token = secrets.token_bytes(LANE_TOKEN_BYTES)
        try:
            lost = self._on_lane_lost
            lane = Lane(self._loop, path, token, self._on_parts, lambda: lost(worker, lane))
        except OSError as error:
            log.debug("%s: no lane to worker %d: %s", self.name, worker, error)
            return
        self._lanes[worker] = lane
        self._session.open_lane(worker, token)
        self._schedule()

    def _on_lane_lost(self, worker: int, lane: Lane) -> None:
        if self._lanes.get(worker) is lane:
            del self._lanes[worker]
            self._on_events(self._session.lane_lost(worker))

    def _close_lane(self, worker: int) -> None:
        lane = self._lanes.pop(worker, None)
        if lane is not None:
            lane.close()

    def _close_lanes(self) -> None:
        for worker in list(self._lanes):
            self._close_lane(worker)

    # --- time -------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Sets the timer for when the session has something to do.

        Where nothing is to be tried again it is set already, for the next sign of life.
        """
        due_ms = self._session.next_due_ms()
        if due_ms is None or not self._is_open:
            return
        if self._timer is not None and self._timer_ms <= due_ms:
            return
        self._disarm()
        self._timer_ms = due_ms
        pause_ms = max(due_ms - monotonic_ms(), 0)
        self._timer = self._loop.call_later(pause_ms / 1_000, self._tick)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        if not self._is_open:
            return
        self._link.read()
        for event in self._session.tick(monotonic_ms()):
            self._on_event(event)
        self._flush()
        self._arm()

    # --- what happened ----------------------------------------------------------------------

    def _on_frame(self, frame: bytes) -> None:
        self._on_events(self._session.receive(frame, monotonic_ms()))

    def _on_parts(self, data: bytes, parts: list[Part]) -> None:
        self._waiting.hold()
        try:
            self._on_events(self._session.receive_parts(data, parts, monotonic_ms()))
        finally:
            self._waiting.release()

    def _on_events(self, events: Iterable[happened.Event]) -> None:
        for event in events:
            self._on_event(event)
        if self._room is not None:  # an answer may be all that somebody waits for
            self._wake_writers()
        if self._session.has_something_to_do:
            self._schedule()
        if self._session.look_ms < self._timer_ms:
            self._arm()

    def _on_event(self, event: happened.Event) -> None:
        match event:
            case happened.Answered(ticket):
                assert isinstance(ticket, Receipt)
                ticket._wake()
            case happened.Delivered(subscription):
                inbox = self._inboxes.get(subscription.endpoint)
                if inbox is not None and inbox._is_cancelled:
                    self._give_back(inbox)
                elif inbox is not None and inbox._waiters:
                    inbox._wake()
            case happened.Replied(request, body):
                self._settle(self._answers.pop(request, None), body)
            case happened.Refused(request, error):
                self._settle(self._answers.pop(request, None), error)
            case happened.Resolved(ticket):
                assert isinstance(ticket, Receipt)
                ticket._wake()
            case happened.Reported(token, refused, error):
                assert isinstance(token, asyncio.Future)
                self._settle(token, error or refused)
            case _:
                self._on_rare_event(event)

    def _on_rare_event(self, event: happened.Event) -> None:
        match event:
            case happened.Subscribed(subscription):
                self._settle(self._joining.pop(subscription.endpoint, None), None)
            case happened.Gone(subscription, error):
                self._on_gone(subscription, error)
            case happened.Welcomed(broker, workers):
                again = " again" if self._losses else ""
                log.info("%s: connected%s to %s", self.name, again, self.address)
                log.debug("%s: the broker is %s with %d workers", self.name, broker, workers)
                self._losses = 0
                self._settle(self._ready, None)
                self._disarm()  # it was set for an answer to hello; now signs of life are due
                self._arm()
            case happened.Lost(reason):
                self._lose(reason)
            case happened.Rejected(error):
                self._settle(self._ready, error)
                self._shut(error)
            case happened.Ended():
                self._settle(self._ended, None)
            case happened.Overheard(producer):
                for waiter in self._overhearing.pop(producer, ()):
                    self._settle(waiter, None)
            case happened.Noted(text):
                log.info("%s: %s", self.name, text)
            case _:
                self._on_lane_event(event)

    def _on_lane_event(self, event: happened.Event) -> None:
        match event:
            case happened.LaneWanted(worker, path):
                self._open_lane(worker, path)
            case happened.LaneOpened(worker):
                if worker in self._lanes:  # else the connection was lost in the same breath
                    self._lanes[worker].read_on()
            case happened.LaneOver(worker):
                self._close_lane(worker)

    def _give_back(self, inbox: Inbox) -> None:
        held = inbox._subscription
        taken = held.take(len(held.buffer))
        self._give_up(held, {item[0]: item[1] for item, is_free in taken if not is_free})

    def _on_gone(self, subscription: Subscription, error: PeerError) -> None:
        joining = self._joining.pop(subscription.endpoint, None)
        self._settle(joining, error)
        inbox = self._inboxes.pop(subscription.endpoint, None)
        if inbox is not None:
            inbox._error = error
            inbox._wake()
            if joining is None:
                log.warning("%s: off %s: %s", self.name, subscription.topic, error)

    def _settle(self, future: "asyncio.Future[Any] | None", value: object) -> None:
        if future is not None:
            self._waiting.settle(future, value)

    def _wake_writers(self) -> None:
        room, self._room = self._room, None
        self._settle(room, None)

    @abstractmethod
    async def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        timeout: float | None = TIMEOUT,
        **wishes: Unpack[Wishes],
    ) -> Receipt:
        """Publishes a message; the node's verb, here for the answers to requests."""

    @abstractmethod
    async def _pull_by(
        self, inbox: Inbox, max: int, wait_ms: int, timeout: float | None
    ) -> list[Delivery]:
        """Pulls by the endpoint of an inbox; the node's, here for inboxes."""

    # --- asking -----------------------------------------------------------------------------

    async def _ask(
        self, verb: Verb, topic: bytes, fields: object, timeout: float | None
    ) -> dict[str, Any]:
        """Asks, and waits for the answer."""
        self._check_open()
        number = self._session.request(verb, topic, fields)
        return await self._answer(number, timeout, verb.name.lower())

    async def _answer(self, number: int, timeout: float | None, what: str) -> dict[str, Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._answers[number] = future
        self._hurry()
        try:
            reply: dict[str, Any] = await self._wait(future, timeout, what)
            return reply
        finally:
            self._answers.pop(number, None)
            self._session.forget(number)

    async def _wait(self, future: "asyncio.Future[Any]", timeout: float | None, what: str) -> Any:
        self._waiting.begin(future, deadline_in(timeout))
        try:
            return await future
        except TimeoutError:
            late = f"no answer to {what} within {timeout:g} s{self._why_late(timeout)}"
            raise TimeoutError(late) from None
        finally:
            self._waiting.end(future)

    def _why_late(self, timeout: float | None) -> str:
        """Why the broker does not do what it was asked so long ago, as it said last."""
        said_ms, said = self._session.last_busy
        if said is None or timeout is None or monotonic_ms() - said_ms > timeout * 1_000:
            return ""
        return f"; the broker is {said}"

    async def _until(
        self, owner: "Receipt | Inbox", reached: Callable[[], bool], timeout: float | None
    ) -> bool:
        """Waits until something holds, looking whenever its owner is woken; False if too late."""
        deadline = deadline_in(timeout)
        while not reached():
            self._check_open()
            waiter = self._loop.create_future()
            owner._waiters.append(waiter)
            self._waiting.begin(waiter, deadline)
            try:
                await waiter
            except TimeoutError:
                return reached()
            finally:
                self._waiting.end(waiter)
                if waiter in owner._waiters:
                    owner._waiters.remove(waiter)
        return True

    def _touch(self, subscription: Subscription) -> None:
        self._session.touch(subscription)
        self._schedule()

    def _finish(self, deliveries: Sequence[Received], status: int, reason: str = "") -> None:
        self._check_open()
        for subscription in finish(deliveries, status, sayable(reason)):
            self._session.touch(subscription)
        self._schedule()

    def _give_up(self, subscription: Subscription, held: dict[int, int]) -> None:
        """Gives deliveries, attempts by sequence, back at once; nobody waits for the answer."""
        subscription.lose(held)
        if held and not subscription.is_over and self._is_open:
            fields = (subscription.endpoint, list(held), 0, None, list(held.values()))
            self._session.request(Verb.EXTEND, subscription.topic_bytes, fields)
            self._schedule()
