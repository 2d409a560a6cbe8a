"""The asyncio client: a ``Node`` is one connection to a broker, made again when it is lost."""

import asyncio
import os
import secrets
import time
from collections.abc import Generator, Iterable, Sequence
from datetime import datetime
from hashlib import blake2b
from types import EllipsisType
from typing import Any, Final, Literal, NamedTuple, Self, Unpack

from asterism import checks, limits
from asterism.addresses_host import DEFAULT_ADDRESS, address_in, checked_address
from asterism.errors import NoSuchReceiver, NoSuchTopic, PeerError
from asterism.message import Header
from asterism.options import Backoff, TopicOptions, topic_fields, topic_overrides
from asterism.sdk import arguments
from asterism.sdk.composing import Composer, Ids, Wishes, moment_ms, timeout_ms
from asterism.sdk.connection import (
    CLOSE_TIMEOUT,
    CONNECT_TIMEOUT,
    MAX_LEASE,
    TIMEOUT,
    BatchReceipt,
    Connection,
    Delivery,
    Inbox,
    MessageReceipt,
    Payload,
    Receipt,
    clock_ms,
    log,
    sayable,
)
from asterism.sdk.consuming import CONCURRENCY, Consumer, Handler, OnError, SubscribeOptions
from asterism.sdk.consuming import check as check_consume
from asterism.sdk.deliveries import FAILED, PROCESSED, RECEIVED, REPLY_SUBJECT, REPLY_TOPIC
from asterism.sdk.listing import Listing, Pages
from asterism.sdk.producing import MESSAGE_BYTES, Incoming
from asterism.sdk.receiving import Subscription
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
from asterism.settings import DropOld, RejectNew
from asterism.wire import Verb, dedicated_topic, worker_topic

STATUS_TIMEOUT: Final = 5.0
CREDIT: Final = 1_024  # of the inbox that answers to requests come by
REPLIES: Final = "asterism.replies"
WORK_QUEUE: Final = "work-queue"  # the receiver of what is ordered
Query = Literal["describe", "fetch", "list_parked", "list_receivers", "stats"]
QUERIES: Final[dict[str, Verb]] = {
    "describe": Verb.DESCRIBE,
    "fetch": Verb.FETCH,
    "list_parked": Verb.LIST_PARKED,
    "list_receivers": Verb.LIST_RECEIVERS,
    "stats": Verb.STATS,
}
REPORTED: Final = {"received": RECEIVED, "processed": PROCESSED, "failed": FAILED}
CHUNK_MESSAGES: Final = 2_000  # of a long list, so much is published at a time
CHUNK_BYTES: Final = 1_000_000
FLUSH_MESSAGES: Final = 500  # gathered in one turn of the loop; they leave before it ends
FLUSH_BYTES: Final = 250_000
PENDING: Final = "pending"  # the verdict on a message that is not over
ASK_AGAIN_S: Final = 1.0  # between questions for an outcome that another client may be told of

_moment_ms: Final = arguments.local(moment_ms)
_timeout_ms: Final = arguments.local(timeout_ms)
_check_names: Final = arguments.local(topic_fields)
_check_settings: Final = arguments.local(topic_overrides)

FRONT_END: Final = b"\0f"
INTERESTS: Final = b"\0i"

__all__ = [
    "BatchReceipt",
    "ClosedError",
    "Delivery",
    "Inbox",
    "Message",
    "MessageReceipt",
    "Node",
    "Once",
    "Outcome",
    "Receipt",
    "connect",
]


class Message:
    """A message for ``publish_many`` that differs from the others in more than its payload."""

    __slots__ = ("payload", "wishes")

    @with_wishes
    def __init__(self, payload: Payload, **wishes: Unpack[Wishes]) -> None:
        """A payload, and what is said of it."""
        self.payload = payload
        self.wishes = wishes

    def __repr__(self) -> str:
        said = "".join(f", {name}={value!r}" for name, value in self.wishes.items())
        return f"<Message of {len(self.payload)} bytes{said}>"


class Once(NamedTuple):
    """What became of a message of ``publish_once``: a sequence, or why it was refused."""

    number: int  # of its producer: 1, 2, ...
    id: bytes
    result: int | PeerError


class Node(Connection):
    """A connection to a broker, and everything that can be asked of it."""

    def __init__(
        self,
        address: str,
        name: str,
        *,
        timeout: float = CONNECT_TIMEOUT,
        window_messages: int = WINDOW_MESSAGES,
        window_bytes: int = WINDOW_BYTES,
        replies: str = REPLIES,
        max_lease: float | None = MAX_LEASE,
    ) -> None:
        _check_connect(address, name, timeout)
        lease_ms("max_lease", max_lease)
        super().__init__(address, name, timeout, window_messages, window_bytes, max_lease)
        self._composer = Composer()
        self._ids = Ids(secrets.token_bytes)
        self._replies = replies
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulls: dict[tuple[str, str], list[Inbox]] = {}
        self._replying: asyncio.Task[tuple[Inbox, asyncio.Task[None]]] | None = None
        self._requests: dict[str, asyncio.Future[Delivery]] = {}

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Waits for what is unanswered, at most ``timeout`` seconds, and says goodbye."""
        began = time.monotonic()
        if self._tasks:  # what was cancelled, and is being given back
            await asyncio.wait(self._tasks, timeout=timeout)
        await super().close(max(timeout - (time.monotonic() - began), 0))

    # --- publishing -------------------------------------------------------------------------

    @with_wishes
    async def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        timeout: float | None = TIMEOUT,
        **wishes: Unpack[Wishes],
    ) -> Receipt:
        """Publishes a message; returns when it is accepted (durable: on disk).

        A refusal is a ``BrokerError``. After a ``TimeoutError`` it may still be accepted.
        """
        self._check_open()
        receipt, message, size = self._compose(topic, payload, wishes, self._ids)
        if self._crowd or not self._session.admits(1, size, receipt.receipt):
            await self._until_room(1, size, receipt.receipt, timeout)
        self._session.publish(receipt, 0, [message], size)
        if self._session.has_one_under_way or self._is_frame_full():
            self._flush()
        else:
            self._schedule()
        return await receipt.accepted(timeout)

    @with_wishes
    async def send(
        self,
        topic: str,
        payload: Payload,
        *,
        timeout: float | None = TIMEOUT,
        **wishes: Unpack[Wishes],
    ) -> Receipt:
        """Publishes without waiting for the answer: ``await receipt.accepted()`` does.

        It waits while as much as may be is under way: so a loop over it keeps its memory.
        """
        self._check_open()
        receipt, message, size = self._compose(topic, payload, wishes, self._ids)
        await self._put(receipt, message, size, timeout)
        return receipt

    def produce_as(self, topic: str, producer: bytes, next_number: int = 1) -> None:
        """Publishes on this topic as a producer of the caller's, from this number of it on.

        For who keeps a record of what was accepted: after a crash, what is published again under
        the numbers that it had is stored once. Before anything was published on the topic.
        """
        self._check_open()
        arguments.producer(producer)
        arguments.whole("next_number", next_number, 1, limits.SEQUENCE_MAX)
        self._session.produce_as(arguments.topic_name(topic), producer, next_number)

    def _compose(
        self, topic: str, payload: Payload, wishes: Wishes, ids: Ids
    ) -> tuple[Receipt, Incoming, int]:
        """A message, its receipt, and its size."""
        now_ms = clock_ms()
        header = self._composer.header(topic, now_ms, wishes)
        content = payload if type(payload) is bytes else _content(payload)
        message_id = ids.take_one(now_ms)
        receipt = Receipt(self, topic, header, 1, message_id)
        encoded = header.encoded
        return receipt, (message_id, encoded, content), len(encoded) + len(content)

    async def _put(
        self, receipt: Receipt, message: Incoming, size: int, timeout: float | None
    ) -> None:
        """Publishes a message as soon as there is room for it."""
        if self._crowd or not self._session.admits(1, size, receipt.receipt):
            await self._until_room(1, size, receipt.receipt, timeout)
        self._put_now(receipt, message, size)
        if self._is_frame_full():
            await self._flush_and_yield()

    def _put_now(self, receipt: Receipt, message: Incoming, size: int) -> None:
        self._session.publish(receipt, 0, [message], size)
        self._schedule()

    @with_wishes
    async def publish_many(
        self,
        topic: str,
        messages: Iterable[Payload | Message],
        *,
        timeout: float | None = TIMEOUT,
        **common: Unpack[Wishes],
    ) -> BatchReceipt:
        """Publishes many messages; returns when all are accepted.

        Messages are payloads, or ``Message`` where one has wishes of its own. If some are refused,
        the first refusal is raised, with the whole receipt as its ``receipt``; the others stand.
        """
        receipt = await self.send_many(topic, messages, timeout=timeout, **common)
        try:
            return await receipt.accepted(timeout)
        except PeerError as error:
            error.receipt = receipt
            raise

    @with_wishes
    async def send_many(
        self,
        topic: str,
        messages: Iterable[Payload | Message],
        *,
        timeout: float | None = TIMEOUT,
        **common: Unpack[Wishes],
    ) -> BatchReceipt:
        """Publishes many messages without waiting for the answers, as ``send`` does."""
        self._check_open()
        now_ms = clock_ms()
        header = self._composer.header(topic, now_ms, common)
        listed = messages if type(messages) is list else list(messages)
        if not listed:
            raise ValueError("there are no messages to publish")
        contents, headers = self._contents(topic, listed, header, now_ms, common)
        ids = self._ids.take(len(contents), now_ms)
        receipt = BatchReceipt(self, topic, header, len(contents), ids[0])
        start = 0
        while start < len(contents):
            count, size = _chunk(contents, headers, start)
            if self._crowd or not self._session.admits(count, size, header.receipt):
                await self._until_room(count, size, header.receipt, timeout)
            end = start + count
            packed = list(zip(ids[start:end], headers[start:end], contents[start:end], strict=True))
            self._session.publish(receipt, start, packed, size)
            if self._is_frame_full():
                await self._flush_and_yield()
            else:
                self._schedule()
            start = end
        return receipt

    async def publish_once(
        self,
        topic: str,
        producer: bytes,
        messages: Sequence[Message],
        *,
        timeout: float | None = TIMEOUT,
    ) -> list[Once]:
        """Publishes messages that are all that a producer, an id of 16 bytes, ever publishes.

        Whoever does so again, from whichever process, gets the first answer: nothing is stored
        twice within 7 days, and what was refused stays refused. It is one frame.
        """
        self._check_open()
        arguments.producer(producer)
        now_ms, packed, size = clock_ms(), [], 0
        for number, message in enumerate(messages, 1):
            header = self._composer.header(topic, now_ms, message.wishes)
            content = _content(message.payload)
            # The same whoever publishes it: what is answered again tells the id that is stored.
            named = producer + number.to_bytes(8, "big") + topic.encode()
            message_id = blake2b(named, digest_size=limits.MESSAGE_ID_BYTES).digest()
            packed.append((message_id, header.encoded, content))
            size += len(header.encoded) + len(content) + MESSAGE_BYTES
        self._session.check_frame(size)
        reply = await self._ask_topic(Verb.PUBLISH, topic, (packed, producer, 1, 0), timeout)
        return [
            Once(number, message[0], result)
            for number, (message, result) in enumerate(
                zip(packed, reply["results"], strict=True), 1
            )
        ]

    async def outcomes(
        self,
        topic: str,
        producer: bytes,
        sequences: dict[int, int],
        wait: float = 0,
        *,
        timeout: float | None = TIMEOUT,
    ) -> dict[int, Outcome]:
        """How messages of ``publish_once`` ended, by number; ``sequences`` says which.

        It waits ``wait`` seconds for all of them; what is not over by then is ``pending``. Any
        client may ask, and several at a time.
        """
        arguments.producer(producer)
        deadline = self._loop.time() + wait
        found: dict[int, Outcome] = {}
        open_ = dict(sequences)
        while True:
            waiter = self._loop.create_future()
            self._overhearing.setdefault(producer, set()).add(waiter)
            try:
                fields = (producer, tuple(open_), tuple(open_.values()))
                reply = await self._ask_topic(Verb.AWAIT_RECEIPTS, topic, fields, timeout)
                found |= {number: Outcome(*rest) for number, *rest in reply.get("outcomes", ())}
                still = Outcome(PENDING, {})
                open_ = {n: at for n, at in open_.items() if found.get(n, still).verdict == PENDING}
                left_s = deadline - self._loop.time()
                if not open_ or left_s <= 0:
                    return found
                # The broker tells but one client, the last that asked: the others ask again.
                await asyncio.wait((waiter,), timeout=min(left_s, ASK_AGAIN_S))
            finally:
                self._overhear_no_more(producer, waiter)

    def _overhear_no_more(self, producer: bytes, waiter: "asyncio.Future[Any]") -> None:
        waiters = self._overhearing.get(producer, set())
        waiters.discard(waiter)
        if not waiters:
            self._overhearing.pop(producer, None)

    def forward(self, receipt: Receipt, messages: Sequence[tuple[bytes, bytes]], size: int) -> bool:
        """Publishes messages whose headers are encoded already, if there is room for them now.

        For doors, which make many headers and keep order by themselves. ``receipt`` is one for all
        of them, on their topic; ``size`` is that of headers and payloads together. What is
        forwarded in one turn of the loop leaves at its end, in as few frames as possible.
        """
        self._check_open()
        count = len(messages)
        if self._crowd or not self._session.admits(count, size, receipt.receipt):
            return False
        ids = self._ids.take(count, clock_ms())
        packed = [(number, *message) for number, message in zip(ids, messages, strict=True)]
        self._session.publish(receipt, 0, packed, size)
        self._schedule()
        return True

    async def pass_through(self, topic: str, *, timeout: float | None = TIMEOUT) -> bool:
        """Returns when the topic has handled all that this client sent to it before.

        All that the topic sent to this client until then is in its inboxes. True says that online
        messages of this client come to nobody there: all endpoints are its own, and without echo.
        """
        async with asyncio.timeout(timeout):
            self._flush_scheduled()
            while self._session.has_unsent(topic):  # too much is unanswered to send more
                await self._some_answer()
                self._check_open()
                self._flush_scheduled()
            reply = await self._ask_topic(Verb.CANCEL_WAIT, topic, (0,), timeout)
        return reply.get("alone") is True

    def _is_frame_full(self) -> bool:
        session = self._session
        return session.unsent_messages >= FLUSH_MESSAGES or session.unsent_bytes >= FLUSH_BYTES

    async def _flush_and_yield(self) -> None:
        """Sends at once what has gathered, and lets others on the loop have a turn.

        A loop that publishes and never has to wait would hold up all else, and gather more than
        is good for a frame: the broker works best while the next frame is being filled.
        """
        self._flush()
        await asyncio.sleep(0)

    def _contents(
        self, topic: str, messages: list[Any], header: Header, now_ms: int, common: Wishes
    ) -> tuple[list[bytes], list[bytes]]:
        """Payloads and encoded headers of messages."""
        if set(map(type, messages)) == {bytes}:
            return messages, [header.encoded] * len(messages)
        contents, headers = [], []
        for message in messages:
            encoded = header.encoded
            if isinstance(message, Message):
                # One receipt is asked for all of them, or none.
                wishes: Wishes = {**common, **message.wishes, "receipt": header.receipt}
                if "subjects" in message.wishes and "subject" not in message.wishes:
                    wishes.pop("subject", None)
                elif "subject" in message.wishes and "subjects" not in message.wishes:
                    wishes.pop("subjects", None)
                encoded = self._composer.header(topic, now_ms, wishes).encoded
                message = message.payload
            contents.append(_content(message))
            headers.append(encoded)
        return contents, headers

    async def _until_room(
        self, count: int, size: int, receipt: bool, timeout: float | None
    ) -> None:
        """Waits until so much may be published; those who came before go first."""
        self._crowd += 1
        try:
            async with asyncio.timeout(timeout), self._writing:
                while not self._session.admits(count, size, receipt):
                    self._check_open()
                    await self._some_answer()
                self._check_open()
        except TimeoutError:
            late = f"no room to publish within {timeout:g} s: too much is unanswered or unresolved"
            raise TimeoutError(late + self._why_late(timeout)) from None
        finally:
            self._crowd -= 1

    # --- receiving --------------------------------------------------------------------------

    async def subscribe(
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
        echo: bool = True,
        timeout: float | None = TIMEOUT,
    ) -> Inbox:
        """Subscribes to what matches one of the interests, by default to everything.

        When it returns, every message accepted from then on that matches reaches the inbox. With
        a name or a group the receiver is durable, unless ``durable`` is false.

        The inbox holds at most ``credit`` deliveries; where none is given, as many as its consumer
        is quick enough for. It keeps each for up to ``max_lease`` seconds, however long the work
        takes (``None``: for ever; 0: no longer than the deadlines of the topic; left out: as
        ``connect`` was told). With ``auto_ack`` a delivery is reported processed as it is handed
        out, for a consumer that only looks. Without ``echo``, online messages that this very
        client publishes do not come here.
        """
        self._check_open()
        arguments.interests(interests)
        if name is not None and group is not None:
            raise ValueError("a receiver has a name or a group, not both")
        subscription = self._session.subscribe(
            arguments.topic_name(topic),
            interests or ("**",),
            name=arguments.maybe_name("name", name),
            group=arguments.maybe_name("group", group),
            durable=durable,
            credit=arguments.maybe_whole("credit", credit, 0, limits.CREDIT_MAX),
            sent_timeout_ms=_timeout_ms("sent_timeout", sent_timeout),
            received_timeout_ms=_timeout_ms("received_timeout", received_timeout),
            max_lease_ms=lease_ms("max_lease", self._max_lease if max_lease is ... else max_lease),
            echo=echo,
        )
        inbox = Inbox(self, subscription, auto_ack)
        joining = self._loop.create_future()
        self._inboxes[subscription.endpoint] = inbox
        self._joining[subscription.endpoint] = joining
        self._schedule()
        try:
            await self._wait(joining, timeout, "subscribe")
        except BaseException:
            self._joining.pop(subscription.endpoint, None)
            if self._inboxes.pop(subscription.endpoint, None) is not None and self._is_open:
                self._session.unsubscribe(subscription)
                self._schedule()
            raise
        return inbox

    @with_subscribe_options(subscribe)
    async def consume(
        self,
        topic: str,
        handler: Handler,
        *interests: str,
        concurrency: int = CONCURRENCY,
        on_error: OnError = "fail",
        stop: asyncio.Event | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> None:
        """Subscribes, and awaits ``handler(delivery)`` for each delivery, until it is stopped.

        ``concurrency`` handlers run at a time. A delivery is received when its handler begins and
        processed when that returns, unless the handler has reported something else. What a handler
        raises is logged, and the delivery ``failed``, or given back with ``on_error="give_back"``.
        Cancelling this, or setting ``stop``, lets the handlers that run come to their end, gives
        the rest back, and leaves the topic; cancelling it again cancels them too. Other options
        are those of ``subscribe``.
        """
        check_consume(handler, concurrency, on_error, stop)
        inbox = await self.subscribe(topic, *interests, **options)
        await Consumer(inbox, handler, on_error).run(concurrency, stop)

    async def pull(
        self,
        topic: str,
        receiver: str,
        max: int = 100,
        wait: float = 0,
        *,
        interests: Sequence[str] | None = None,
        timeout: float | None = TIMEOUT,
    ) -> list[Delivery]:
        """Up to ``max`` deliveries of a durable receiver, waiting ``wait`` seconds for the first.

        The receiver has to exist (``NoSuchReceiver``), unless ``interests`` are given: then it is
        made with them. One that has others is refused (``WrongState``). ``timeout`` is for the
        answer, beyond ``wait``.
        """
        arguments.topic_name(topic)
        arguments.receiver_name(receiver)
        arguments.whole("max", max, 1, limits.CREDIT_MAX)
        wait_ms = arguments.milliseconds("wait", wait, 0, limits.TIME_MS_MAX)
        if interests is not None:
            arguments.interests(interests)
        inbox = self._idle_puller(topic, receiver)
        if inbox is None:
            inbox = await self._puller(topic, receiver, interests, timeout)
        elif interests is not None and set(interests) != set(inbox.interests):
            self._keep_puller(inbox)
            raise _other_interests(topic, receiver, inbox.interests)
        return await self._pull_by(inbox, max, wait_ms, timeout)

    async def _pull_by(
        self, inbox: Inbox, max: int, wait_ms: int, timeout: float | None
    ) -> list[Delivery]:
        held = inbox._subscription
        self._check_open()
        number = self._session.request(Verb.PULL, held.topic_bytes, (held.endpoint, max, wait_ms))
        longest = None if timeout is None else timeout + wait_ms / 1_000
        inbox._pulling = number
        try:
            reply = await self._answer(number, longest, "pull")
        except PeerError:
            if inbox._is_pulled_by_name:
                await inbox.close()
            raise
        except BaseException:
            self._cancel_pull(inbox, number)
            raise
        finally:
            inbox._pulling = 0
        self._keep_puller(inbox)
        return inbox._take(int(reply.get("count", 0)))

    def _idle_puller(self, topic: str, receiver: str) -> Inbox | None:
        idle = self._pulls.get((topic, receiver))
        if idle is None:
            return None
        inbox = idle.pop()
        if not idle:
            del self._pulls[topic, receiver]
        return inbox

    def _keep_puller(self, inbox: Inbox) -> None:
        """It is on its topic, and nobody pulls by it just now."""
        if not inbox._is_pulled_by_name:
            return
        self._pulls.setdefault((inbox.topic, inbox.receiver), []).append(inbox)

    def _on_gone(self, subscription: Subscription, error: PeerError) -> None:
        key = subscription.topic, subscription.receiver
        idle = self._pulls.get(key, [])
        kept = [inbox for inbox in idle if inbox._subscription is not subscription]
        if len(kept) == len(idle):
            super()._on_gone(subscription, error)
            return
        # Nobody pulls by it just now, and whoever does next is told what there is to tell.
        self._inboxes.pop(subscription.endpoint, None)
        self._pulls[key] = kept
        if not kept:
            del self._pulls[key]

    async def _puller(
        self, topic: str, receiver: str, interests: Sequence[str] | None, timeout: float | None
    ) -> Inbox:
        try:
            found = await self._interests_of(topic, receiver, timeout)
        except (NoSuchReceiver, NoSuchTopic):
            if interests is None:
                raise
            found = tuple(interests)
        if interests is not None and set(interests) != set(found):
            raise _other_interests(topic, receiver, found)
        interests = found
        # As one of a group: it joins whoever is there, and takes nothing from them.
        options: SubscribeOptions = {"group": receiver, "credit": 0, "timeout": timeout}
        inbox = await self.subscribe(topic, *interests, **options)
        inbox._is_pulled_by_name = True
        return inbox

    async def _interests_of(
        self, topic: str, receiver: str, timeout: float | None
    ) -> tuple[str, ...]:
        async for row in self.list_receivers(topic, after=receiver[:-1], timeout=timeout):
            if row.name == receiver:
                return row.interests
            if row.name > receiver:
                break
        raise PeerError("no_such_receiver", f"{receiver!r} is not on {topic!r}")

    def _cancel_pull(self, inbox: "Inbox", number: int) -> None:
        """Nobody waits for a pull any more: it ends, and what it still brings is given back."""
        if not self._is_open:
            return
        inbox._is_cancelled = True
        task = self._loop.create_task(self._end_pull(inbox, number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_pull(self, inbox: Inbox, number: int) -> None:
        held = inbox._subscription
        try:
            await self._ask(Verb.CANCEL_WAIT, held.topic_bytes, (number,), TIMEOUT)
        except (PeerError, ConnectionError, TimeoutError) as error:
            log.debug("%s: a pull on %s was not cancelled: %s", self.name, held.topic, error)
            return
        self._give_back(inbox)
        inbox._is_cancelled = False
        self._keep_puller(inbox)

    async def report(
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
        """Reports deliveries of a receiver by its name, whoever holds them.

        ``status`` is ``received``, ``processed`` or ``failed``. Returns those reports that do not
        count, each with its code. It is for those who got a delivery by another way than an inbox.
        """
        reported = REPORTED[arguments.one_of("status", status, REPORTED)]
        arguments.receiver_name(receiver)
        fields = (0, reported, tuple(sequences), sayable(reason), receiver, attempts)
        reply = await self._ask_topic(Verb.REPORT, topic, fields, timeout)
        return dict(reply.get("refused", ()))

    async def extend(
        self,
        topic: str,
        receiver: str,
        sequences: Sequence[int],
        seconds: float,
        *,
        timeout: float | None = TIMEOUT,
    ) -> dict[int, str]:
        """Moves the deadline of deliveries of a receiver by its name; 0 gives them up at once.

        Returns those that could not be, each with its code.
        """
        arguments.receiver_name(receiver)
        extension_ms = arguments.milliseconds("seconds", seconds, 0, limits.TIME_MS_MAX)
        fields = (0, tuple(sequences), extension_ms, receiver)
        reply = await self._ask_topic(Verb.EXTEND, topic, fields, timeout)
        return dict(reply.get("refused", ()))

    # --- request and reply ------------------------------------------------------------------

    @with_push_wishes
    async def request(
        self,
        topic: str,
        payload: Payload,
        *,
        timeout: float = TIMEOUT,
        **wishes: Unpack[Wishes],
    ) -> Delivery:
        """Publishes a request and waits for the answer that a receiver gives with ``reply``.

        By default it is a push message: with nobody there to answer it is ``no_receiver`` at once.
        """
        self._check_open()
        if self._replying is None:
            self._replying = self._loop.create_task(self._listen_for_replies())
        inbox, _ = await asyncio.shield(self._replying)
        correlation = secrets.token_hex(8)
        subject = f"{inbox.interests[0].removesuffix('/*')}/{correlation}"
        attributes = dict(wishes.get("attributes") or {})
        attributes |= {REPLY_TOPIC: self._replies, REPLY_SUBJECT: subject}
        asked: Wishes = {"mode": "push", **wishes, "attributes": attributes}
        answer: asyncio.Future[Delivery] = self._loop.create_future()
        self._requests[subject] = answer
        try:
            await self.publish(topic, payload, timeout=timeout, **asked)
            delivery: Delivery = await self._wait(answer, timeout, "the request")
            return delivery
        finally:
            del self._requests[subject]

    async def _listen_for_replies(self) -> "tuple[Inbox, asyncio.Task[None]]":
        try:
            mine = f"reply/{secrets.token_hex(16)}/*"
            inbox = await self.subscribe(self._replies, mine, credit=CREDIT)
        except BaseException:
            self._replying = None
            raise
        return inbox, self._loop.create_task(self._hand_on_replies(inbox))

    async def _hand_on_replies(self, inbox: Inbox) -> None:
        try:
            async for delivery in inbox:
                await delivery.processed()
                self._settle(self._requests.get(delivery.subject), delivery)
        except (PeerError, ClosedError) as error:
            self._replying = None
            for answer in self._requests.values():
                self._settle(answer, error)

    # --- topics -----------------------------------------------------------------------------

    @with_settings
    async def create_topic(
        self,
        topic: str,
        *,
        exist_ok: bool = False,
        timeout: float | None = TIMEOUT,
        **settings: Unpack[TopicOptions],
    ) -> None:
        """Makes a topic with settings of its own; ``topic_exists`` unless ``exist_ok``."""
        try:
            await self._ask_topic(Verb.CREATE_TOPIC, topic, (_plain(settings),), timeout)
        except PeerError as error:
            if error.code != "topic_exists" or not exist_ok:
                raise

    @with_settings
    async def configure(
        self,
        topic: str,
        *,
        inherit: Sequence[str] = (),
        timeout: float | None = TIMEOUT,
        **settings: Unpack[TopicOptions],
    ) -> None:
        """Changes settings of a topic; those in ``inherit`` follow the broker's defaults again."""
        _check_names(tuple(inherit))
        fields = (_plain(settings), tuple(inherit))
        await self._ask_topic(Verb.CONFIGURE, topic, fields, timeout)

    async def describe(self, topic: str, *, timeout: float | None = TIMEOUT) -> TopicInfo:
        """Settings, counts and rates of a topic."""
        return TopicInfo.from_wire(await self.query("describe", topic, timeout=timeout))

    def list_topics(
        self, *, worker: int | None = None, timeout: float | None = TIMEOUT
    ) -> Listing[str]:
        """The names of all topics, of all workers or of one, sorted: ``async for``, or ``await``.

        ``timeout`` is for each question to the broker, which has a list by the page.
        """
        found: list[list[str]] = []

        async def all_names() -> list[str] | None:
            if found:
                return None
            found.append([])
            for each in range(self._session.workers) if worker is None else (worker,):
                found[0] += await self._topics_of(each, timeout)
            return sorted(set(found[0]))

        return Listing("topics", all_names)

    async def _topics_of(self, worker: int, timeout: float | None) -> list[str]:
        async def page(after: str) -> list[str]:
            reply = await self._ask(Verb.LIST_TOPICS, worker_topic(worker), (after,), timeout)
            return list(reply.get("topics", ()))

        return await Listing("topics", Pages(page, str, "", limits.LIST_MAX))

    async def clear(self, topic: str, *, timeout: float | None = TIMEOUT) -> None:
        """Drops every message of a topic; settings and durable receivers stay."""
        await self._ask_topic(Verb.CLEAR, topic, (), timeout)

    async def delete_topic(self, topic: str, *, timeout: float | None = TIMEOUT) -> None:
        """Drops a topic with all that belongs to it."""
        await self._ask_topic(Verb.DELETE_TOPIC, topic, (), timeout)

    # --- receivers --------------------------------------------------------------------------

    def list_receivers(
        self, topic: str, *, after: str = "", timeout: float | None = TIMEOUT
    ) -> Listing[ReceiverInfo]:
        """The receivers of a topic by name, all of those after a name; as ``list_topics``."""
        arguments.topic_name(topic)

        async def page(after: str) -> list[ReceiverInfo]:
            reply = await self.query("list_receivers", topic, after, timeout=timeout)
            return [ReceiverInfo.from_wire(said) for said in reply.get("receivers", ())]

        pages = Pages(page, lambda row: row.name, after, limits.LIST_MAX)
        return Listing(f"receivers of {topic!r}", pages)

    async def create_receiver(
        self,
        topic: str,
        receiver: str,
        *interests: str,
        sent_timeout: float | None = None,
        received_timeout: float | None = None,
        timeout: float | None = TIMEOUT,
    ) -> None:
        """Makes a durable receiver with nobody on it yet."""
        arguments.receiver_name(receiver)
        arguments.interests(interests)
        timeouts = (
            _timeout_ms("sent_timeout", sent_timeout),
            _timeout_ms("received_timeout", received_timeout),
        )
        fields = (receiver, interests or ("**",), *timeouts)
        await self._ask_topic(Verb.CREATE_RECEIVER, topic, fields, timeout)

    async def delete_receiver(
        self, topic: str, receiver: str, *, timeout: float | None = TIMEOUT
    ) -> None:
        """Deletes a durable receiver and drops its backlog."""
        arguments.receiver_name(receiver)
        await self._ask_topic(Verb.DELETE_RECEIVER, topic, (receiver,), timeout)

    async def seek(
        self,
        topic: str,
        receiver: str,
        *,
        sequence: int | None = None,
        time: float | datetime | None = None,
        timeout: float | None = TIMEOUT,
    ) -> int:
        """Moves a durable receiver to a sequence or a time; with neither, to now."""
        arguments.receiver_name(receiver)
        arguments.maybe_whole("sequence", sequence, 0, limits.SEQUENCE_MAX)
        at_ms = None if time is None else _moment_ms("time", time)
        reply = await self._ask_topic(Verb.SEEK, topic, (receiver, sequence, at_ms), timeout)
        return int(reply["sequence"])

    # --- parked deliveries ------------------------------------------------------------------

    def list_parked(
        self, topic: str, *, after: int = 0, timeout: float | None = TIMEOUT
    ) -> Listing[ParkedDelivery]:
        """Parked deliveries, oldest failure first, after a position; as ``list_topics``."""
        arguments.topic_name(topic)

        async def page(after: int) -> list[ParkedDelivery]:
            reply = await self.query("list_parked", topic, after, timeout=timeout)
            return [ParkedDelivery.from_wire(said) for said in reply.get("parked", ())]

        pages = Pages(page, lambda row: row.position, after, limits.LIST_MAX)
        return Listing(f"parked deliveries of {topic!r}", pages)

    async def renew(
        self,
        topic: str,
        sequence: int,
        receiver: str | None = None,
        *,
        timeout: float | None = TIMEOUT,
    ) -> None:
        """Puts a parked delivery back to waiting; with no receiver, all of the message."""
        arguments.sequence(sequence)
        await self._ask_topic(Verb.RENEW, topic, (sequence, receiver), timeout)

    async def abandon(
        self,
        topic: str,
        sequence: int,
        receiver: str | None = None,
        *,
        timeout: float | None = TIMEOUT,
    ) -> None:
        """Drops a message in any state, or its parked delivery to one receiver."""
        arguments.sequence(sequence)
        await self._ask_topic(Verb.ABANDON, topic, (sequence, receiver), timeout)

    async def renew_all(self, topic: str, *, timeout: float | None = TIMEOUT) -> None:
        """Puts every parked delivery back to waiting."""
        await self._ask_topic(Verb.RENEW_ALL, topic, (), timeout)

    async def abandon_all(self, topic: str, *, timeout: float | None = TIMEOUT) -> None:
        """Drops every parked delivery."""
        await self._ask_topic(Verb.ABANDON_ALL, topic, (), timeout)

    # --- the work queue ---------------------------------------------------------------------

    async def draft(
        self, topic: str, priority: int | None = None, *, timeout: float | None = TIMEOUT
    ) -> int:
        """Begins a message; its sequence. It is deleted unless it is ``set`` in time."""
        arguments.maybe_whole("priority", priority, 0, limits.PRIORITY_MAX)
        message_id = self._ids.take_one(clock_ms())
        reply = await self._ask_topic(Verb.DRAFT, topic, (message_id, priority), timeout)
        return int(reply["sequence"])

    async def set(
        self,
        topic: str,
        sequence: int,
        payload: Payload,
        attributes: dict[str, str] | None = None,
        *,
        timeout: float | None = TIMEOUT,
    ) -> None:
        """Gives a draft its payload, or replaces that of a waiting message."""
        given = arguments.string_map("attributes", {} if attributes is None else attributes)
        fields = (arguments.sequence(sequence), _content(payload), given)
        await self._ask_topic(Verb.SET_DRAFT, topic, fields, timeout)

    async def order(
        self, topic: str, wait: float | None = 0, *, timeout: float | None = TIMEOUT
    ) -> int | None:
        """Takes the best waiting message, waiting for one; its sequence, or ``None``.

        A ``wait`` of ``None`` waits for ever; ``timeout`` is for the answer, beyond ``wait``.
        """
        self._check_open()
        wait_ms = None
        if wait is not None:
            wait_ms = arguments.milliseconds("wait", wait, 0, limits.TIME_MS_MAX)
        frame = arguments.topic_name(topic).encode()
        number = self._session.request(Verb.ORDER, frame, (wait_ms,))
        longest = None if wait is None or timeout is None else timeout + wait
        asked = self._loop.create_future()
        self._answers[number] = asked
        self._schedule()
        try:
            reply = await self._wait(asyncio.shield(asked), longest, "order")
        except PeerError:
            self._forget_order(number)
            raise
        except BaseException:
            self._cancel_order(topic, number, asked)
            raise
        self._forget_order(number)
        sequence: int | None = reply["sequence"]
        return sequence

    def _forget_order(self, number: int) -> None:
        self._answers.pop(number, None)
        self._session.forget(number)

    def _cancel_order(self, topic: str, number: int, asked: "asyncio.Future[Any]") -> None:
        """Nobody waits for an order any more: it ends, and what it still brings is given back."""
        if not self._is_open:
            self._forget_order(number)
            return
        task = self._loop.create_task(self._end_order(topic, number, asked))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_order(self, topic: str, number: int, asked: "asyncio.Future[Any]") -> None:
        try:
            # What the order brought leaves the broker before the answer to this.
            await self._ask_topic(Verb.CANCEL_WAIT, topic, (number,), TIMEOUT)
            if asked.done() and not asked.cancelled() and asked.exception() is None:
                sequence = asked.result()["sequence"]
                if sequence is not None:
                    await self.give_back(topic, sequence)
        except (PeerError, ConnectionError, TimeoutError) as error:
            log.debug("%s: an order on %s was not cancelled: %s", self.name, topic, error)
        finally:
            self._forget_order(number)

    async def give_back(
        self, topic: str, sequence: int, *, timeout: float | None = TIMEOUT
    ) -> None:
        """Has a message that was ordered wait again, at once, as if its time had run out."""
        refused = await self.extend(topic, WORK_QUEUE, (sequence,), 0, timeout=timeout)
        if refused:
            raise PeerError(refused[sequence], f"message {sequence} of {topic}")

    async def fetch(
        self, topic: str, sequence: int, *, timeout: float | None = TIMEOUT
    ) -> StoredMessage:
        """Reads a message; one that was ordered becomes active."""
        said = await self.query("fetch", topic, arguments.sequence(sequence), timeout=timeout)
        return StoredMessage.from_wire(sequence, said)

    async def complete(self, topic: str, sequence: int, *, timeout: float | None = TIMEOUT) -> None:
        """Ends an active message well."""
        await self._ask_topic(Verb.COMPLETE, topic, (arguments.sequence(sequence),), timeout)

    async def fail(
        self, topic: str, sequence: int, reason: str = "", *, timeout: float | None = TIMEOUT
    ) -> None:
        """Ends an active message badly: it is parked, or retried where the topic says so."""
        arguments.sequence(sequence)
        await self._ask_topic(Verb.FAIL, topic, (sequence, sayable(reason)), timeout)

    async def stats(self, topic: str, *, timeout: float | None = TIMEOUT) -> QueueStats:
        """The counts of the work queue."""
        return QueueStats.from_wire(await self.query("stats", topic, timeout=timeout))

    # --- processes --------------------------------------------------------------------------

    async def status(self, *, timeout: float = STATUS_TIMEOUT) -> BrokerStatus:
        """What each process says of itself; ``None`` for one that does not answer in time."""
        return BrokerStatus.from_wire(await self.query_status(timeout=timeout))

    async def status_of(
        self, process: str, *, timeout: float | None = STATUS_TIMEOUT
    ) -> ProcessStatus:
        """What one process says of itself: ``frontend``, ``interests``, ``worker-0`` and so on."""
        return ProcessStatus.from_wire(await self.query_process(process, timeout=timeout))

    # --- what the broker says, as it travels: for doors and tools -----------------------------

    async def query(
        self, verb: Query, topic: str, *fields: object, timeout: float | None = TIMEOUT
    ) -> dict[str, Any]:
        """The answer to a question about a topic, as the map of ``docs/protocol.md``."""
        asked = QUERIES[arguments.one_of("verb", verb, QUERIES)]
        return await self._ask_topic(asked, topic, fields, timeout)

    async def query_process(
        self, process: str, *, timeout: float | None = STATUS_TIMEOUT
    ) -> dict[str, Any]:
        """What a process says of itself, as the map of ``docs/protocol.md``."""
        return await self._ask(Verb.STATUS, _process_topic(process), None, timeout)

    async def query_status(self, *, timeout: float = STATUS_TIMEOUT) -> dict[str, Any]:
        """Those of all processes; ``None`` for one that does not answer in time."""
        workers = [f"worker-{number}" for number in range(self._session.workers)]
        front_end, interests, *others = await asyncio.gather(
            *(self._if_answered(name, timeout) for name in ("frontend", "interests", *workers))
        )
        return {"frontend": front_end, "interests": interests, "workers": others}

    async def _if_answered(self, process: str, timeout: float) -> dict[str, Any] | None:
        try:
            return await self.query_process(process, timeout=timeout)
        except (TimeoutError, PeerError):
            return None

    @property
    def workers(self) -> int:
        """How many workers the broker has: ``worker-0`` and so on."""
        return self._session.workers

    async def snapshot(self, folder: str, *, timeout: float | None = 300) -> list[dict[str, Any]]:
        """Has every worker write checkpoints of its stores into a folder; what each says."""
        workers = map(worker_topic, range(self._session.workers))
        answers = await self._ask_all(Verb.SNAPSHOT, workers, (folder,), timeout)
        own = [number for answer in answers for number in answer.get("dedicated", ())]
        dedicated = map(dedicated_topic, own)
        return answers + await self._ask_all(Verb.SNAPSHOT, dedicated, (folder,), timeout)

    async def _ask_all(
        self, verb: Verb, processes: Iterable[bytes], fields: object, timeout: float | None
    ) -> list[dict[str, Any]]:
        asked = [self._ask(verb, process, fields, timeout) for process in processes]
        answers = await asyncio.gather(*asked, return_exceptions=True)  # none is left unheard
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def _ask_topic(
        self, verb: Verb, topic: str, fields: object, timeout: float | None
    ) -> dict[str, Any]:
        return await self._ask(verb, arguments.topic_name(topic).encode(), fields, timeout)


def connect(
    address: str | None = None,
    name: str = "",
    *,
    timeout: float = CONNECT_TIMEOUT,
    window_messages: int = WINDOW_MESSAGES,
    window_bytes: int = WINDOW_BYTES,
    replies: str = REPLIES,
    max_lease: float | None = MAX_LEASE,
) -> Node:
    """A client for ``async with``; ``timeout`` is how long it waits for a broker at first.

    Without an address it is that of the variable ``ASTERISM_ADDRESS``, else
    ``tcp://127.0.0.1:7700``.

    At most ``window_messages`` messages and ``window_bytes`` bytes are published and unanswered;
    beyond that, publishing waits. ``replies`` is the topic that answers to requests come by.
    ``max_lease`` is for how many seconds a delivery is kept, as ``subscribe`` says.
    """
    return Node(
        given_or_default(address),
        name or "python",
        timeout=timeout,
        window_messages=window_messages,
        window_bytes=window_bytes,
        replies=replies,
        max_lease=max_lease,
    )


def given_or_default(address: str | None) -> str:
    """Where to connect: the address given, else that of the environment, else the default."""
    return (address_in(os.environ) or DEFAULT_ADDRESS) if address is None else address


def _check_connect(address: object, name: object, timeout: object) -> None:
    """Refuses what no socket could be opened with, while there is none yet."""
    for argument, value in (("address", address), ("name", name)):
        if not isinstance(value, str):
            raise TypeError(f"{argument} must be text, not {checks.shown(value)}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float | None):
        raise TypeError(f"timeout must be a number of seconds, not {checks.shown(timeout)}")
    assert isinstance(address, str)
    checked_address("address", address)


def lease_ms(name: str, seconds: float | None) -> int | None:
    """How long a delivery is kept; ``None`` is for ever."""
    return None if seconds is None else arguments.milliseconds(name, seconds, 0, limits.TIME_MS_MAX)


def _process_topic(process: str) -> bytes:
    """The topic of what is asked of a process."""
    kind, _, number = process.partition("-")
    if process == "frontend":
        return FRONT_END
    if process == "interests":
        return INTERESTS
    if kind in ("worker", "dedicated") and number.isascii() and number.isdigit():
        return worker_topic(int(number)) if kind == "worker" else dedicated_topic(int(number))
    refusal = PeerError("bad_request", f"there is no process {checks.shown(process)}")
    raise arguments.wrong(refusal)


def _other_interests(topic: str, receiver: str, interests: Sequence[str]) -> PeerError:
    said = f"{receiver!r} of {topic!r} is interested in {', '.join(interests)}, not in these"
    return PeerError("wrong_state", f"{said}: pull without interests, or by another name")


def _content(payload: object) -> bytes:
    if type(payload) is bytes:
        return payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise TypeError(f"a payload is bytes, not {type(payload).__name__}")


def _chunk(contents: list[bytes], headers: list[bytes], start: int) -> tuple[int, int]:
    """How many messages to publish at a time, from ``start`` on, and their size."""
    count = min(CHUNK_MESSAGES, len(contents) - start)
    while True:
        end = start + count
        size = sum(map(len, contents[start:end])) + sum(map(len, headers[start:end]))
        if size <= CHUNK_BYTES or count == 1:
            return count, size
        count = max(1, min(count - 1, count * CHUNK_BYTES // size))


def _plain(settings: TopicOptions) -> dict[str, object]:
    """Settings as they travel, checked: the values that ``asterism`` exports become maps."""
    unknown = settings.keys() - TopicOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"there is no topic setting {min(unknown)!r}")
    _check_settings(settings)
    return {name: _plain_setting(value) for name, value in settings.items()}


def _plain_setting(value: object) -> object:
    match value:
        case RejectNew(size):
            return {"size": size, "policy": "reject_new"}
        case DropOld(size):
            return {"size": size, "policy": "drop_old"}
        case Backoff(least, most):
            return {"min": least, "max": most}
    return value
