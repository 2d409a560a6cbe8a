"""StreamingPull: messages flow to a client for as long as it keeps up with them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from google.pubsub_v1.types import pubsub as types

from asterism.gateways.pubsub import rules
from asterism.gateways.pubsub.door import Settings
from asterism.gateways.pubsub.errors import Code, Refusal
from asterism.gateways.pubsub.feeds import Feed, Handed, Taker
from asterism.gateways.pubsub.pulling import ANSWER_BYTES_MAX
from asterism.gateways.pubsub.subscriptions import Subscriptions
from asterism.sdk.connection import clock_ms

KEEP_ALIVE_S: Final = 25.0  # without anything to say
MESSAGES_MAX: Final = 1_000  # in one response
CONFIRMATIONS_MAX: Final = 4  # that wait to be written
StreamingPullResponse: Final[Any] = types.StreamingPullResponse.pb()

Write = Callable[[Any], Awaitable[None]]


class Stream(Taker):
    """One client's stream."""

    def __init__(self, feed: Feed, start: Any, settings: Settings) -> None:
        most = _least(start.max_outstanding_messages, settings.max_outstanding_messages)
        most_bytes = _least(start.max_outstanding_bytes, settings.max_outstanding_bytes)
        super().__init__(most, most_bytes, start.stream_ack_deadline_seconds)
        self._serves = feed
        self._handed: deque[Handed] = deque()
        self._leaving: list[Handed] = []  # in the response that is being written
        # A client that does not read is not read either.
        self._confirmations: asyncio.Queue[Any] = asyncio.Queue(CONFIRMATIONS_MAX)
        self._news = asyncio.Event()
        self._shown = (False, False)  # the properties that the client knows
        self._refusal: Exception | None = None  # why it ends
        self._is_over = False  # the client says no more
        self._writing: asyncio.Task[Any] | None = None  # that writes a response just now

    # --- from the feed ------------------------------------------------------------------------

    def give(self, handed: Handed) -> None:
        self._handed.append(handed)

    def settle(self, is_all: bool) -> None:
        if self._handed or self._properties != self._shown:
            self._news.set()

    def fail(self, refusal: Refusal) -> None:
        self._refusal = refusal
        self._news.set()
        if self._writing is not None:  # to a client that may never read it
            self._writing.cancel()

    def wanted(self, size: int) -> int:
        self._drop_lost()
        return super().wanted(size)

    def _drop_lost(self) -> None:
        """What its client has not read, and does not hold any more, is not kept for it."""
        if len(self._handed) > self.out:
            held = self._serves.is_held
            self._handed = deque(each for each in self._handed if held(each))

    # --- from the client ----------------------------------------------------------------------

    async def _read(self, start: Any, requests: AsyncIterator[Any]) -> None:
        try:
            await self._take(start)
            async for request in requests:
                rules.check_stream_next(request)
                if request.stream_ack_deadline_seconds:
                    self.deadline_s = request.stream_ack_deadline_seconds
                await self._take(request)
        except Exception as error:  # whatever it is, the client is told of it
            self._refusal = self._refusal or error
        self._is_over = True
        self._news.set()

    async def _take(self, request: Any) -> None:
        """Acknowledgements and deadlines that come by the stream."""
        if request.ack_ids:
            invalid = await self._serves.acknowledge(request.ack_ids)
            await self._confirm(request.ack_ids, invalid, "acknowledge_confirmation")
        if request.modify_deadline_ack_ids:
            by_seconds: dict[int, list[str]] = {}
            for ack_id, seconds in zip(
                request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=True
            ):
                by_seconds.setdefault(seconds, []).append(ack_id)
            invalid = []
            for seconds, ack_ids in by_seconds.items():
                invalid += await self._serves.modify(ack_ids, seconds)
            ids = request.modify_deadline_ack_ids
            await self._confirm(ids, invalid, "modify_ack_deadline_confirmation")

    async def _confirm(self, ack_ids: Any, invalid: list[str], field: str) -> None:
        """With exactly-once delivery, clients are told what has become of what they said."""
        if not self._serves.terms.is_exactly_once:
            return
        response = StreamingPullResponse()
        wrong = set(invalid)
        told = getattr(response, field)
        told.ack_ids.extend(each for each in ack_ids if each not in wrong)
        told.invalid_ack_ids.extend(invalid)
        await self._confirmations.put(response)
        self._news.set()

    # --- to the client ------------------------------------------------------------------------

    @property
    def _properties(self) -> tuple[bool, bool]:
        terms = self._serves.terms
        return terms.is_exactly_once, terms.is_ordered

    async def run(self, start: Any, requests: AsyncIterator[Any], write: Write) -> None:
        """Serves the client until it leaves, or the subscription ends."""
        feed = self._serves
        feed.join(self)
        reading = asyncio.ensure_future(self._read(start, requests))
        try:
            # The client learns at once what kind of subscription it has.
            await self._write_messages(write)
            while not self._is_over and self._refusal is None:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await self._news.wait()
                except TimeoutError:
                    await self._write_messages(write)
                    continue
                self._news.clear()
                await self._write_all(write)
            if self._refusal is not None:
                raise self._refusal
        except asyncio.CancelledError:
            if self._refusal is None:
                raise
            raise self._refusal from None
        finally:
            reading.cancel()
            feed.leave(self)
            feed.give_back([*self._leaving, *self._handed])

    async def _write_all(self, write: Write) -> None:
        while not self._confirmations.empty():
            response = self._confirmations.get_nowait()
            self._fill_properties(response)
            await self._write(write, response)
        if self._properties != self._shown and not self._handed:
            await self._write_messages(write)
        while self._handed and self._refusal is None and not self._is_over:
            await self._write_messages(write)

    async def _write_messages(self, write: Write) -> None:
        await self._write(write, self._response())
        self._leaving.clear()

    async def _write(self, write: Write, response: Any) -> None:
        self._writing = asyncio.current_task()
        try:
            await write(response)
        finally:
            self._writing = None

    def _response(self) -> Any:
        """The next messages, as many as one response may have."""
        response = StreamingPullResponse()
        self._fill_properties(response)
        handed, feed, now_ms, size = self._handed, self._serves, clock_ms(), 0
        messages = response.received_messages
        while handed and len(messages) < MESSAGES_MAX:
            size += handed[0].size
            if size > ANSWER_BYTES_MAX and len(messages):
                break
            each = handed.popleft()
            if feed.is_held(each):  # else its deadline has passed while the client was slow
                feed.write(messages.add(), each, now_ms)
                self._leaving.append(each)
        return response

    def _fill_properties(self, response: Any) -> None:
        self._shown = self._properties
        is_exactly_once, is_ordered = self._shown
        properties = response.subscription_properties
        properties.SetInParent()
        properties.exactly_once_delivery_enabled = is_exactly_once
        properties.message_ordering_enabled = is_ordered


def _least(asked: int, most: int) -> int:
    """What a client asks for, but no more than that; 0 asks for no limit."""
    return min(asked, most) if asked > 0 else most


class Streams:
    """All streams."""

    def __init__(self, subscriptions: Subscriptions, settings: Settings) -> None:
        self._subscriptions = subscriptions
        self._settings = settings
        self._open = 0

    async def streaming_pull(self, requests: AsyncIterator[Any], write: Write) -> None:
        """Serves one stream, from its first request to its end."""
        start = await anext(requests, None)
        if start is None:
            return
        rules.check_stream_start(start)
        feed = self._subscriptions.pulled_feed(start.subscription)
        if self._open >= self._settings.max_streams:
            said = f"{self._open} streams are open, as many as pubsub.max_streams allows."
            raise Refusal(Code.RESOURCE_EXHAUSTED, said)
        self._open += 1
        try:
            await Stream(feed, start, self._settings).run(start, requests, write)
        finally:
            self._open -= 1
