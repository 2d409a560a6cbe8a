"""The blocking client: the same verbs without ``await``, from as many threads as you like.

Beneath is the asyncio client, on a loop that the thread which calls a verb drives while it waits
(``driving.py``). Reports are handed over without waiting; deliveries are fetched some at a time.
"""

import secrets
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from types import EllipsisType, TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from asterism.errors import PeerError
from asterism.options import TopicOptions
from asterism.sdk.aio import (
    REPLIES,
    STATUS_TIMEOUT,
    Message,
    Node,
    Once,
    Query,
    given_or_default,
)
from asterism.sdk.composing import Ids, Wishes
from asterism.sdk.connection import (
    CLOSE_TIMEOUT,
    CONNECT_TIMEOUT,
    MAX_LEASE,
    TIMEOUT,
    BatchReceipt,
    Delivery,
    Inbox,
    MessageReceipt,
    Payload,
    Receipt,
    sayable,
)
from asterism.sdk.consuming import (
    CONCURRENCY,
    BlockingConsumer,
    BlockingHandler,
    OnError,
    SubscribeOptions,
)
from asterism.sdk.consuming import check_blocking as check_consume
from asterism.sdk.deliveries import FAILED, PROCESSED, RECEIVED, Received
from asterism.sdk.driving import Loop
from asterism.sdk.listing import BlockingListing, Listing
from asterism.sdk.producing import Incoming
from asterism.sdk.results import (
    BrokerStatus,
    ParkedDelivery,
    ProcessStatus,
    QueueStats,
    ReceiverInfo,
    StoredMessage,
    TopicInfo,
)
from asterism.sdk.session import WINDOW_BYTES, WINDOW_MESSAGES
from asterism.sdk.signatures import (
    with_push_wishes,
    with_settings,
    with_subscribe_options,
    with_wishes,
)
from asterism.sdk.tickets import ClosedError, Outcome

_T = TypeVar("_T")
PREFETCH: Final = 64  # deliveries that an iteration fetches at a time


class BlockingMessageReceipt:
    """What has become of a message: first accepted, later, where that was asked for, resolved."""

    def __init__(self, loop: Loop, receipt: Receipt | MessageReceipt) -> None:
        self._loop = loop
        self._receipt: Any = receipt

    @property
    def sequence(self) -> int:
        """The number that the topic gave the message; the refusal, if it was refused."""
        sequence: int = self._receipt.sequence
        return sequence

    def resolved(self, timeout: float | None = TIMEOUT) -> Outcome:
        """Waits for how it ended; a receipt has to have been asked for."""
        outcome: Outcome = self._loop.run(self._receipt.resolved(timeout))
        return outcome

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._receipt)[1:]}"


class BlockingReceipt(BlockingMessageReceipt):
    """The receipt of one message."""

    def __init__(self, loop: Loop, receipt: Receipt) -> None:
        super().__init__(loop, receipt)
        self._receipt: Receipt = receipt

    @property
    def topic(self) -> str:
        return self._receipt.topic

    @property
    def id(self) -> bytes:
        return self._receipt.id

    @property
    def results(self) -> list[int | PeerError]:
        """A sequence or a refusal for each message, once it is answered."""
        return self._receipt.results

    def accepted(self, timeout: float | None = TIMEOUT) -> Self:
        """Waits until the topic has it (durable: on disk)."""
        if self._receipt.missing:
            self._loop.run(self._receipt.accepted(timeout))
        error = self._receipt.first_error()
        if error is not None:
            raise error
        return self


class BlockingBatchReceipt(BlockingReceipt):
    """The receipt of many messages."""

    def __init__(self, loop: Loop, receipt: BatchReceipt) -> None:
        super().__init__(loop, receipt)
        self._batch = receipt

    @property
    def count(self) -> int:
        return self._batch.count

    @property
    def sequences(self) -> list[int]:
        """The sequences of those that were accepted."""
        return self._batch.sequences

    @property
    def refused(self) -> list[tuple[int, PeerError]]:
        """Position and refusal of those that were not."""
        return self._batch.refused

    def all_resolved(self, timeout: float | None = TIMEOUT) -> list[Outcome | None]:
        """Waits for how each of them ended; ``None`` for those that were refused."""
        return self._loop.run(self._batch.all_resolved(timeout))

    def __len__(self) -> int:
        return self._batch.count

    def __getitem__(self, position: int) -> BlockingMessageReceipt:
        return BlockingMessageReceipt(self._loop, self._batch[position])

    def __iter__(self) -> Iterator[BlockingMessageReceipt]:
        return (BlockingMessageReceipt(self._loop, receipt) for receipt in self._batch)


class BlockingDelivery(Received):
    """A delivery. ``with`` reports it received, and at the end processed or failed."""

    __slots__ = ("_delivery", "_loop")

    def __init__(self, loop: Loop, delivery: Delivery) -> None:
        self._subscription = delivery._subscription
        self._item = delivery._item
        self._step = delivery._step
        self._delivery = delivery
        self._loop = loop

    def received(self, *, confirm: bool = False) -> None:
        """Reports that it has arrived; with ``confirm``, waits until the broker knows."""
        self._report(RECEIVED, "", confirm)

    def processed(self, *, confirm: bool = False) -> None:
        """Reports that it is done, and waits for nothing; with ``confirm``, until the broker knows.

        A publisher waits for that with ``receipt.resolved()``.
        """
        self._report(PROCESSED, "", confirm)

    def failed(self, reason: str = "", *, confirm: bool = False) -> None:
        """Reports that it could not be done, and why; ``confirm`` as for ``processed``.

        That is final, and the message is parked or a dead letter, unless the topic's
        ``max_attempts`` allows another attempt. ``give_back`` says that nobody has tried.
        """
        self._report(FAILED, reason, confirm)

    def ack(self, *, confirm: bool = False) -> None:
        """The same as ``processed``."""
        self._report(PROCESSED, "", confirm)

    def nack(self, reason: str = "", *, confirm: bool = False) -> None:
        """The same as ``failed``: final, unless ``max_attempts`` allows another attempt."""
        self._report(FAILED, reason, confirm)

    def give_back(self) -> None:
        """Returns it unharmed: it waits again at once, for another receiver or for this one."""
        if not self.is_finished:
            self._step = PROCESSED
            self._delivery._step = PROCESSED
            node = self._delivery._inbox._node
            own = {self.sequence: self.attempt}
            self._loop.hand_over(node._give_up, self._subscription, own)

    def extend(self, seconds: float, *, timeout: float | None = TIMEOUT) -> None:
        """Moves its deadline to so many seconds from now; 0 gives it back at once."""
        self._loop.run(self._delivery.extend(seconds, timeout=timeout))

    @with_push_wishes
    def reply(self, payload: Payload, **wishes: Unpack[Wishes]) -> BlockingReceipt:
        """Answers a request."""
        return BlockingReceipt(self._loop, self._loop.run(self._delivery.reply(payload, **wishes)))

    @property
    def is_finished(self) -> bool:
        """Is nothing more to be reported on it?"""
        return self._step >= PROCESSED

    def _report(self, status: int, reason: str, confirm: bool) -> None:
        if self._step >= min(status, PROCESSED):
            return
        self._step = min(status, PROCESSED)
        if confirm:
            self._loop.run(self._delivery._report(status, reason, True))
        else:
            self._loop.hand_over(self._tell, status, reason)

    def _tell(self, status: int, reason: str) -> None:
        node = self._delivery._inbox._node
        if not node.is_closed and self._delivery._climb(status, sayable(reason)):
            node._touch(self._subscription)

    def __enter__(self) -> Self:
        self.received()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._loop.is_over:
            return  # the broker gives it to somebody else
        if error is None:
            self.processed()
        elif isinstance(error, Exception):
            self.failed(f"{type(error).__name__}: {error}")
        else:  # interrupted: nobody's fault, so it goes to the next
            self.give_back()


class BlockingInbox:
    """The deliveries of a subscription: iterate, or take them in batches."""

    def __init__(self, loop: Loop, inbox: Inbox, auto_ack: bool = False) -> None:
        self._loop = loop
        self._inbox = inbox
        self._auto_ack = auto_ack
        self._fetched: deque[BlockingDelivery] = deque()

    @property
    def topic(self) -> str:
        return self._inbox.topic

    @property
    def receiver(self) -> str:
        """The name of the receiver."""
        return self._inbox.receiver

    @property
    def interests(self) -> tuple[str, ...]:
        return self._inbox.interests

    @property
    def is_closed(self) -> bool:
        """Has it been left, or has its client been closed?"""
        return self._inbox.is_closed

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._inbox)[1:]}"

    def __iter__(self) -> Iterator[BlockingDelivery]:
        """Every delivery, for as long as the inbox is open."""
        while True:
            taken = self._take_fetched(1)
            if not taken:
                try:
                    fetched = self._fetch(PREFETCH, None, 1)
                except ClosedError:
                    if self._inbox._is_closed:
                        return
                    raise
                self._fetched.extend(fetched[1:])
                taken = self._handed(fetched[:1])
            yield taken[0]

    def receive(self, timeout: float | None = TIMEOUT) -> BlockingDelivery:
        """The next delivery, waiting ``timeout`` seconds for it, or for ever with ``None``.

        ``TimeoutError`` when none came in time, ``ClosedError`` when the inbox is closed.
        """
        return self.batch(1, timeout)[0]

    def batch(self, max: int = 1_000, timeout: float | None = TIMEOUT) -> list[BlockingDelivery]:
        """Up to ``max`` deliveries, at least one; it waits for the first as ``receive`` does."""
        return self._take_fetched(max) or self._handed(self._fetch(max, timeout, max))

    def _take_fetched(self, max: int) -> list[BlockingDelivery]:
        """Hands out what was fetched; what has gone to another meanwhile is nobody's here."""
        taken: list[BlockingDelivery] = []
        while len(taken) < max:
            try:
                delivery = self._fetched.popleft()
            except IndexError:
                break
            if not delivery.lost:
                taken.append(delivery)
        return self._handed(taken)

    def _handed(self, taken: list[BlockingDelivery]) -> list[BlockingDelivery]:
        """The application gets these."""
        if self._auto_ack and taken:
            self.processed(taken)
        return taken

    def _fetch(self, max: int, timeout: float | None, wanted: int) -> list[BlockingDelivery]:
        taken = self._loop.run(self._inbox._some(max, timeout, wanted))
        return [BlockingDelivery(self._loop, delivery) for delivery in taken]

    def processed(self, deliveries: Sequence[BlockingDelivery]) -> None:
        """Reports many deliveries processed, in one frame."""
        self._finish(deliveries, PROCESSED, "")

    def failed(self, deliveries: Sequence[BlockingDelivery], reason: str = "") -> None:
        """Reports many deliveries failed, in one frame."""
        self._finish(deliveries, FAILED, reason)

    def _finish(self, deliveries: Sequence[BlockingDelivery], status: int, reason: str) -> None:
        for delivery in deliveries:
            delivery._step = PROCESSED
        inner = [delivery._delivery for delivery in deliveries]
        self._loop.hand_over(self._tell, inner, status, reason)

    def _tell(self, deliveries: list[Delivery], status: int, reason: str) -> None:
        node = self._inbox._node
        if not node.is_closed:
            node._finish(deliveries, status, reason)

    def pull(
        self, max: int = 100, wait: float = 0, *, timeout: float | None = TIMEOUT
    ) -> list[BlockingDelivery]:
        """Up to ``max`` deliveries, for an inbox without credit, waiting ``wait`` seconds."""
        taken = self._loop.run(self._inbox.pull(max, wait, timeout=timeout))
        return [BlockingDelivery(self._loop, delivery) for delivery in taken]

    def end_pull(self, *, timeout: float | None = TIMEOUT) -> None:
        """Has a ``pull`` of another thread return at once, with what it has got by then."""
        self._loop.run(self._inbox.end_pull(timeout=timeout))

    def grant(self, credit: int) -> None:
        """Widens it: so many more deliveries may be out at a time."""

        async def widen() -> None:
            self._inbox.grant(credit)

        self._loop.run(widen())

    def set_interests(self, *interests: str, timeout: float | None = TIMEOUT) -> None:
        """Replaces the interests; what is on its way is neither lost nor repeated."""
        self._loop.run(self._inbox.set_interests(*interests, timeout=timeout))

    def close(self, timeout: float | None = TIMEOUT) -> None:
        """Leaves the topic; what was delivered and not finished goes to others."""
        self._fetched.clear()
        self._loop.run(self._inbox.close(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingNode:
    """A connection to a broker, and everything that can be asked of it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._ids = Ids(secrets.token_bytes)  # of what is composed here, not on the loop
        self._handed = 0  # messages on their way to the loop
        self._handed_bytes = 0
        self._loop = Loop(node.name)
        try:
            self._loop.run(node.open())
        except BaseException:
            self._loop.end()
            raise

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._node)[1:]}"

    @property
    def address(self) -> str:
        return self._node.address

    @property
    def name(self) -> str:
        return self._node.name

    @property
    def is_closed(self) -> bool:
        return self._node.is_closed

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Waits for what is unanswered, at most ``timeout`` seconds, and says goodbye."""
        if not self._loop.is_over:
            try:
                self._loop.run(self._node.close(timeout))
            finally:
                self._loop.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- publishing -------------------------------------------------------------------------

    def produce_as(self, topic: str, producer: bytes, next_number: int = 1) -> None:
        """Publishes on this topic as a producer of the caller's, from this number of it on."""

        async def begin() -> None:
            self._node.produce_as(topic, producer, next_number)

        self._loop.run(begin())

    @with_wishes
    def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        timeout: float | None = TIMEOUT,
        **wishes: Unpack[Wishes],
    ) -> BlockingReceipt:
        """Publishes a message; returns when it is accepted (durable: on disk)."""
        done = self._loop.run(self._node.publish(topic, payload, timeout=timeout, **wishes))
        return BlockingReceipt(self._loop, done)

    @with_wishes
    def send(
        self,
        topic: str,
        payload: Payload,
        *,
        timeout: float | None = TIMEOUT,
        **wishes: Unpack[Wishes],
    ) -> BlockingReceipt:
        """Publishes without waiting for the answer; ``receipt.accepted()`` does."""
        node = self._node
        if node.is_closed:
            raise ClosedError("this client is closed")
        with self._lock:
            receipt, message, size = node._compose(topic, payload, wishes, self._ids)
            has_room = node._session.surely_admits(
                self._handed + 1, self._handed_bytes + size, receipt.receipt
            )
            if has_room:  # most often: then there is nothing to wait for
                self._handed += 1
                self._handed_bytes += size
        if has_room:
            self._loop.hand_over(self._put_handed, receipt, message, size)
        else:
            self._loop.run(node._put(receipt, message, size, timeout))
        return BlockingReceipt(self._loop, receipt)

    def _put_handed(self, receipt: Receipt, message: Incoming, size: int) -> None:
        with self._lock:
            self._handed -= 1
            self._handed_bytes -= size
        if not self._node.is_closed:
            self._node._put_now(receipt, message, size)

    @with_wishes
    def publish_many(
        self,
        topic: str,
        messages: Iterable[Payload | Message],
        *,
        timeout: float | None = TIMEOUT,
        **common: Unpack[Wishes],
    ) -> BlockingBatchReceipt:
        """Publishes many messages; returns when all are accepted.

        If some are refused, the first refusal is raised, with the whole receipt as its ``receipt``.
        """
        receipt = self.send_many(topic, messages, timeout=timeout, **common)
        try:
            return receipt.accepted(timeout)
        except PeerError as error:
            error.receipt = receipt
            raise

    @with_wishes
    def send_many(
        self,
        topic: str,
        messages: Iterable[Payload | Message],
        *,
        timeout: float | None = TIMEOUT,
        **common: Unpack[Wishes],
    ) -> BlockingBatchReceipt:
        """Publishes many messages without waiting for the answers."""
        listed = list(messages)  # what makes them may block, and is not to block the loop
        done = self._loop.run(self._node.send_many(topic, listed, timeout=timeout, **common))
        return BlockingBatchReceipt(self._loop, done)

    # --- receiving --------------------------------------------------------------------------

    def publish_once(
        self,
        topic: str,
        producer: bytes,
        messages: Sequence[Message],
        *,
        timeout: float | None = TIMEOUT,
    ) -> list[Once]:
        """Publishes messages that are all that a producer ever publishes; again, stores nothing."""
        return self._loop.run(self._node.publish_once(topic, producer, messages, timeout=timeout))

    def outcomes(
        self,
        topic: str,
        producer: bytes,
        sequences: dict[int, int],
        wait: float = 0,
        *,
        timeout: float | None = TIMEOUT,
    ) -> dict[int, Outcome]:
        """How messages of ``publish_once`` ended, by number; what is not over is ``pending``."""
        return self._loop.run(
            self._node.outcomes(topic, producer, sequences, wait, timeout=timeout)
        )

    def subscribe(
        self,
        topic: str,
        *interests: str,
        name: str | None = None,
        group: str | None = None,
        durable: bool | None = None,
        credit: int | None = None,
        sent_timeout: float | None = None,
        received_timeout: float | None = None,
        max_lease: float | EllipsisType | None = ...,
        auto_ack: bool = False,
        timeout: float | None = TIMEOUT,
    ) -> BlockingInbox:
        """Subscribes to what matches one of the interests, by default to everything."""
        inbox = self._loop.run(
            self._node.subscribe(
                topic,
                *interests,
                name=name,
                group=group,
                durable=durable,
                credit=credit,
                sent_timeout=sent_timeout,
                received_timeout=received_timeout,
                max_lease=max_lease,
                timeout=timeout,
            )
        )
        return BlockingInbox(self._loop, inbox, auto_ack)

    @with_subscribe_options(subscribe)
    def consume(
        self,
        topic: str,
        handler: BlockingHandler,
        *interests: str,
        concurrency: int = CONCURRENCY,
        on_error: OnError = "fail",
        stop: threading.Event | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> None:
        """Subscribes, and calls ``handler(delivery)`` for each delivery, until it is stopped.

        ``concurrency`` handlers run at a time, each in a thread. A delivery is received when its
        handler begins and processed when that returns, unless the handler has reported something
        else. What a handler raises is logged, and the delivery ``failed``, or given back with
        ``on_error="give_back"``. Ctrl-C, or setting ``stop``, lets the handlers that run come to
        their end, gives the rest back, and leaves the topic. Other options are those of
        ``subscribe``.
        """
        check_consume(handler, concurrency, on_error, stop)
        inbox = self.subscribe(topic, *interests, **options)
        BlockingConsumer(inbox, handler, on_error, concurrency).run(stop)

    def pull(
        self,
        topic: str,
        receiver: str,
        max: int = 100,
        wait: float = 0,
        *,
        interests: Sequence[str] | None = None,
        timeout: float | None = TIMEOUT,
    ) -> list[BlockingDelivery]:
        """Up to ``max`` deliveries of a durable receiver, waiting ``wait`` s for the first."""
        taken = self._loop.run(
            self._node.pull(topic, receiver, max, wait, interests=interests, timeout=timeout)
        )
        return [BlockingDelivery(self._loop, delivery) for delivery in taken]

    def report(
        self,
        topic: str,
        receiver: str,
        status: str,
        sequences: Sequence[int],
        reason: str = "",
        *,
        attempts: Sequence[int] | None = None,
        timeout: float | None = TIMEOUT,
    ) -> dict[int, str]:
        """Reports deliveries of a receiver by its name; those that do not count, and why."""
        fields = (topic, receiver, status, sequences, reason)
        return self._loop.run(self._node.report(*fields, attempts=attempts, timeout=timeout))

    def extend(
        self,
        topic: str,
        receiver: str,
        sequences: Sequence[int],
        seconds: float,
        *,
        timeout: float | None = TIMEOUT,
    ) -> dict[int, str]:
        """Moves the deadline of deliveries of a receiver by its name; those that were not."""
        fields = (topic, receiver, sequences, seconds)
        return self._loop.run(self._node.extend(*fields, timeout=timeout))

    @with_push_wishes
    def request(
        self, topic: str, payload: Payload, *, timeout: float = TIMEOUT, **wishes: Unpack[Wishes]
    ) -> BlockingDelivery:
        """Publishes a request and waits for the answer."""
        answer = self._loop.run(self._node.request(topic, payload, timeout=timeout, **wishes))
        return BlockingDelivery(self._loop, answer)

    # --- topics -----------------------------------------------------------------------------

    @with_settings
    def create_topic(
        self,
        topic: str,
        *,
        exist_ok: bool = False,
        timeout: float | None = TIMEOUT,
        **settings: Unpack[TopicOptions],
    ) -> None:
        """Makes a topic with settings of its own; ``topic_exists`` unless ``exist_ok``."""
        self._loop.run(
            self._node.create_topic(topic, exist_ok=exist_ok, timeout=timeout, **settings)
        )

    @with_settings
    def configure(
        self,
        topic: str,
        *,
        inherit: Sequence[str] = (),
        timeout: float | None = TIMEOUT,
        **settings: Unpack[TopicOptions],
    ) -> None:
        """Changes settings of a topic; those in ``inherit`` follow the broker's defaults again."""
        self._loop.run(self._node.configure(topic, inherit=inherit, timeout=timeout, **settings))

    def describe(self, topic: str, *, timeout: float | None = TIMEOUT) -> TopicInfo:
        """Settings, counts and rates of a topic."""
        return self._loop.run(self._node.describe(topic, timeout=timeout))

    def list_topics(
        self, *, worker: int | None = None, timeout: float | None = TIMEOUT
    ) -> BlockingListing[str]:
        """The names of all topics, of all workers or of one, sorted: iterate, or make a ``list``.

        ``timeout`` is for each question to the broker, which has a list by the page.
        """
        return self._listing(self._node.list_topics(worker=worker, timeout=timeout))

    def clear(self, topic: str, *, timeout: float | None = TIMEOUT) -> None:
        """Drops every message of a topic; settings and durable receivers stay."""
        self._loop.run(self._node.clear(topic, timeout=timeout))

    def delete_topic(self, topic: str, *, timeout: float | None = TIMEOUT) -> None:
        """Drops a topic with all that belongs to it."""
        self._loop.run(self._node.delete_topic(topic, timeout=timeout))

    # --- receivers --------------------------------------------------------------------------

    def list_receivers(
        self, topic: str, *, after: str = "", timeout: float | None = TIMEOUT
    ) -> BlockingListing[ReceiverInfo]:
        """The receivers of a topic by name, all of those after a name; as ``list_topics``."""
        return self._listing(self._node.list_receivers(topic, after=after, timeout=timeout))

    def create_receiver(
        self,
        topic: str,
        receiver: str,
        *interests: str,
        sent_timeout: float | None = None,
        received_timeout: float | None = None,
        timeout: float | None = TIMEOUT,
    ) -> None:
        """Makes a durable receiver with nobody on it yet."""
        self._loop.run(
            self._node.create_receiver(
                topic,
                receiver,
                *interests,
                sent_timeout=sent_timeout,
                received_timeout=received_timeout,
                timeout=timeout,
            )
        )

    def delete_receiver(
        self, topic: str, receiver: str, *, timeout: float | None = TIMEOUT
    ) -> None:
        """Deletes a durable receiver and drops its backlog."""
        self._loop.run(self._node.delete_receiver(topic, receiver, timeout=timeout))

    def seek(
        self,
        topic: str,
        receiver: str,
        *,
        sequence: int | None = None,
        time: float | datetime | None = None,
        timeout: float | None = TIMEOUT,
    ) -> int:
        """Moves a durable receiver to a sequence or a time; with neither, to now."""
        return self._loop.run(
            self._node.seek(topic, receiver, sequence=sequence, time=time, timeout=timeout)
        )

    # --- parked deliveries ------------------------------------------------------------------

    def list_parked(
        self, topic: str, *, after: int = 0, timeout: float | None = TIMEOUT
    ) -> BlockingListing[ParkedDelivery]:
        """Parked deliveries, oldest failure first, after a position; as ``list_topics``."""
        return self._listing(self._node.list_parked(topic, after=after, timeout=timeout))

    def renew(
        self,
        topic: str,
        sequence: int,
        receiver: str | None = None,
        *,
        timeout: float | None = TIMEOUT,
    ) -> None:
        """Puts a parked delivery back to waiting; with no receiver, all of the message."""
        self._loop.run(self._node.renew(topic, sequence, receiver, timeout=timeout))

    def abandon(
        self,
        topic: str,
        sequence: int,
        receiver: str | None = None,
        *,
        timeout: float | None = TIMEOUT,
    ) -> None:
        """Drops a message in any state, or its parked delivery to one receiver."""
        self._loop.run(self._node.abandon(topic, sequence, receiver, timeout=timeout))

    def renew_all(self, topic: str, *, timeout: float | None = TIMEOUT) -> None:
        """Puts every parked delivery back to waiting."""
        self._loop.run(self._node.renew_all(topic, timeout=timeout))

    def abandon_all(self, topic: str, *, timeout: float | None = TIMEOUT) -> None:
        """Drops every parked delivery."""
        self._loop.run(self._node.abandon_all(topic, timeout=timeout))

    # --- the work queue ---------------------------------------------------------------------

    def draft(
        self, topic: str, priority: int | None = None, *, timeout: float | None = TIMEOUT
    ) -> int:
        """Begins a message; its sequence. It is deleted unless it is ``set`` in time."""
        return self._loop.run(self._node.draft(topic, priority, timeout=timeout))

    def set(
        self,
        topic: str,
        sequence: int,
        payload: Payload,
        attributes: dict[str, str] | None = None,
        *,
        timeout: float | None = TIMEOUT,
    ) -> None:
        """Gives a draft its payload, or replaces that of a waiting message."""
        self._loop.run(self._node.set(topic, sequence, payload, attributes, timeout=timeout))

    def order(
        self, topic: str, wait: float | None = 0, *, timeout: float | None = TIMEOUT
    ) -> int | None:
        """Takes the best waiting message, waiting for one; its sequence, or ``None``."""
        return self._loop.run(self._node.order(topic, wait, timeout=timeout))

    def give_back(self, topic: str, sequence: int, *, timeout: float | None = TIMEOUT) -> None:
        """Has a message that was ordered wait again, at once, as if its time had run out."""
        self._loop.run(self._node.give_back(topic, sequence, timeout=timeout))

    def fetch(self, topic: str, sequence: int, *, timeout: float | None = TIMEOUT) -> StoredMessage:
        """Reads a message; one that was ordered becomes active."""
        return self._loop.run(self._node.fetch(topic, sequence, timeout=timeout))

    def complete(self, topic: str, sequence: int, *, timeout: float | None = TIMEOUT) -> None:
        """Ends an active message well."""
        self._loop.run(self._node.complete(topic, sequence, timeout=timeout))

    def fail(
        self, topic: str, sequence: int, reason: str = "", *, timeout: float | None = TIMEOUT
    ) -> None:
        """Ends an active message badly: it is parked, or retried where the topic says so."""
        self._loop.run(self._node.fail(topic, sequence, reason, timeout=timeout))

    def stats(self, topic: str, *, timeout: float | None = TIMEOUT) -> QueueStats:
        """The counts of the work queue."""
        return self._loop.run(self._node.stats(topic, timeout=timeout))

    # --- processes --------------------------------------------------------------------------

    def status(self, *, timeout: float = STATUS_TIMEOUT) -> BrokerStatus:
        """What each process says of itself; ``None`` for one that does not answer in time."""
        return self._loop.run(self._node.status(timeout=timeout))

    def status_of(self, process: str, *, timeout: float | None = STATUS_TIMEOUT) -> ProcessStatus:
        """What one process says of itself: ``frontend``, ``interests``, ``worker-0`` and so on."""
        return self._loop.run(self._node.status_of(process, timeout=timeout))

    # --- what the broker says, as it travels: for doors and tools -----------------------------

    def query(
        self, verb: Query, topic: str, *fields: object, timeout: float | None = TIMEOUT
    ) -> dict[str, Any]:
        """The answer to a question about a topic, as the map of ``docs/protocol.md``."""
        return self._loop.run(self._node.query(verb, topic, *fields, timeout=timeout))

    def query_process(
        self, process: str, *, timeout: float | None = STATUS_TIMEOUT
    ) -> dict[str, Any]:
        """What a process says of itself, as the map of ``docs/protocol.md``."""
        return self._loop.run(self._node.query_process(process, timeout=timeout))

    def query_status(self, *, timeout: float = STATUS_TIMEOUT) -> dict[str, Any]:
        """Those of all processes; ``None`` for one that does not answer in time."""
        return self._loop.run(self._node.query_status(timeout=timeout))

    def _listing(self, listing: Listing[_T]) -> BlockingListing[_T]:
        return BlockingListing(listing, self._loop.run)

    @property
    def workers(self) -> int:
        """How many workers the broker has: ``worker-0`` and so on."""
        return self._node.workers

    def snapshot(self, folder: str, *, timeout: float | None = 300) -> list[dict[str, Any]]:
        """Has every worker write checkpoints of its stores into a folder; what each says."""
        return self._loop.run(self._node.snapshot(folder, timeout=timeout))


def connect_blocking(
    address: str | None = None,
    name: str = "",
    *,
    timeout: float = CONNECT_TIMEOUT,
    window_messages: int = WINDOW_MESSAGES,
    window_bytes: int = WINDOW_BYTES,
    replies: str = REPLIES,
    max_lease: float | None = MAX_LEASE,
) -> BlockingNode:
    """Connects; ``close`` it, or use it in ``with``. The arguments are those of ``connect``."""
    return BlockingNode(
        Node(
            given_or_default(address),
            name or "python",
            timeout=timeout,
            window_messages=window_messages,
            window_bytes=window_bytes,
            replies=replies,
            max_lease=max_lease,
        )
    )
