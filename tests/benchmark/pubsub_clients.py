"""The clients that ``bench_pubsub`` measures with; each runs in a process of its own.

``Member`` uses google-cloud-pubsub as an application does: ``publish`` with its batches, and
``subscribe`` with a callback that acknowledges. It differs in one thing alone, which costs next to
nothing: it counts acknowledgements when the server has confirmed them, which the client hides.
"""

import asyncio
import os
import threading
import time
from typing import Any, Final

from google.api_core.exceptions import GoogleAPICallError
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.message import Message
from google.pubsub_v1 import SubscriberAsyncClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport
from google.pubsub_v1.types import StreamingPullRequest
from grpc.aio import insecure_channel

from asterism.cli.bench_clients import BenchError, Shared, readable, stamp_of, stamped

SIZE: Final = 128  # bytes of a payload
PAYLOAD: Final = b"x" * SIZE
ARRIVE_S: Final = 120.0  # until all that was published must be confirmed
AHEAD_MAX: Final = 10_000  # messages that a publisher has unconfirmed
MADE_AT_ONCE: Final = 8
DEADLINE_S: Final = 60  # to acknowledge: nothing is to come twice
ALONE: Final = 1  # messages in a batch of a publisher that waits for each


class Confirmed(pubsub_v1.SubscriberClient):  # type: ignore[misc]  # the package has no types
    """The client, which counts the acknowledgements that the server has confirmed."""

    def __init__(self, counts: Any, slot: int) -> None:
        super().__init__()
        self._counts = counts
        self._slot = slot
        self._counting = threading.Lock()

    def acknowledge(self, *given: Any, **named: Any) -> None:
        super().acknowledge(*given, **named)
        with self._counting:
            self._counts[self._slot] += len(named["ack_ids"])


class Member:
    """A publisher, a subscriber, or one that makes topics and subscriptions."""

    def __init__(self, address: str, shared: Shared, slot: int = 0) -> None:
        os.environ["PUBSUB_EMULATOR_HOST"] = address
        self._address = address
        self._shared = shared
        self._slot = slot
        self._publishers: dict[int, Any] = {}
        self._pulling: Any = None
        self._error: BaseException | None = None
        self._streams: list[asyncio.Task[None]] = []
        self._arrived = 0

    async def open(self) -> None:
        self._subscriber = Confirmed(self._shared.counts, self._slot)

    async def close(self) -> None:
        for task in self._streams:
            task.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        if self._pulling is not None:
            await asyncio.to_thread(self._leave)
        for publisher in self._publishers.values():
            await asyncio.to_thread(publisher.stop)
        await asyncio.to_thread(self._subscriber.close)

    # --- topics and subscriptions -----------------------------------------------------------------

    async def make(self, topic: str, subscriptions: list[str]) -> float:
        """Makes a topic with subscriptions; the seconds that the subscriptions took."""
        return await asyncio.to_thread(self._make, topic, subscriptions)

    def _make(self, topic: str, subscriptions: list[str]) -> float:
        self._publisher(ALONE).create_topic(name=topic)
        began = time.monotonic()
        for name in subscriptions:
            self._subscriber.create_subscription(
                name=name, topic=topic, ack_deadline_seconds=DEADLINE_S
            )
        return time.monotonic() - began

    async def drop(self, topic: str, subscriptions: list[str]) -> None:
        """Deletes them again."""

        def drop() -> None:
            for name in subscriptions:
                self._subscriber.delete_subscription(subscription=name)
            self._publisher(ALONE).delete_topic(topic=topic)

        await asyncio.to_thread(drop)

    # --- publish ----------------------------------------------------------------------------------

    def _publisher(self, batch: int) -> Any:
        """A client that sends so many messages at a time."""
        found = self._publishers.get(batch)
        if found is None:
            ahead = pubsub_v1.types.PublishFlowControl(
                message_limit=AHEAD_MAX,
                limit_exceeded_behavior=pubsub_v1.types.LimitExceededBehavior.BLOCK,
            )
            found = self._publishers[batch] = pubsub_v1.PublisherClient(
                batch_settings=pubsub_v1.types.BatchSettings(max_messages=batch),
                publisher_options=pubsub_v1.types.PublisherOptions(flow_control=ahead),
            )
        return found

    async def publish(self, topic: str, count: int, batch: int) -> tuple[int, int]:
        """Publishes; when it began, and when the last message was confirmed."""
        return await asyncio.to_thread(self._publish, topic, count, batch)

    def _publish(self, topic: str, count: int, batch: int) -> tuple[int, int]:
        client = self._publisher(batch)
        began = time.monotonic_ns()
        futures = [client.publish(topic, PAYLOAD) for _ in range(count)]
        for future in futures:
            future.result(ARRIVE_S)
        return began, time.monotonic_ns()

    async def publish_each(self, topic: str, count: int) -> list[float]:
        """Publishes one after the other; the microseconds until each was confirmed."""
        return await asyncio.to_thread(self._publish_each, topic, count)

    def _publish_each(self, topic: str, count: int) -> list[float]:
        client = self._publisher(ALONE)
        took = []
        for _ in range(count):
            began = time.monotonic_ns()
            client.publish(topic, PAYLOAD).result(ARRIVE_S)
            took.append((time.monotonic_ns() - began) / 1_000)
        return took

    async def publish_heard(self, topic: str, count: int) -> None:
        """Publishes one after the other, each when the one before has come to its subscriber."""
        client, heard = self._publisher(ALONE), self._shared.heard
        for _ in range(count):
            client.publish(topic, stamped(SIZE))
            async with asyncio.timeout(ARRIVE_S):
                await readable(heard)
            heard.recv_bytes()

    # --- subscribe --------------------------------------------------------------------------------

    async def consume(self, subscription: str) -> int:
        """Takes and acknowledges messages from now on; when it began."""
        began = time.monotonic_ns()
        self._arrived = 0
        self._pulling = self._subscriber.subscribe(subscription, callback=self._on_message)
        return began

    def _on_message(self, message: Message) -> None:
        self._arrived += 1
        message.ack()

    async def consume_heard(self, subscription: str) -> None:
        """The same; tells the publisher of each message how long it took."""
        self.took: list[float] = []
        self._pulling = self._subscriber.subscribe(subscription, callback=self._on_heard)

    def _on_heard(self, message: Message) -> None:
        self.took.append((time.monotonic_ns() - stamp_of(message.data)) / 1_000)
        self._shared.told.send_bytes(b"1")
        message.ack()

    async def leave(self) -> int:
        """Takes no more; how many messages came."""
        await asyncio.to_thread(self._leave)
        return self._arrived

    async def leave_heard(self) -> list[float]:
        """Takes no more; the microseconds from publish to callback."""
        await asyncio.to_thread(self._leave)
        return self.took

    def _leave(self) -> None:
        pulling, self._pulling = self._pulling, None
        pulling.cancel()
        pulling.result(ARRIVE_S)

    async def check(self) -> None:
        """Fails where a stream has ended by itself."""
        if self._pulling is not None and self._pulling.done():
            raise BenchError(f"the stream has ended: {self._pulling.exception()}")

    # --- many streams -----------------------------------------------------------------------------

    async def open_streams(self, subscriptions: list[str]) -> None:
        """Opens a streaming pull of each, over one connection; returns when all have an answer."""
        channel = insecure_channel(self._address)
        client = SubscriberAsyncClient(transport=SubscriberGrpcAsyncIOTransport(channel=channel))
        for name in subscriptions:
            calls = await client.streaming_pull(requests=_first(name))
            self._streams.append(asyncio.create_task(_listen(calls)))

    async def streams(self) -> int:
        """How many of them are open."""
        return sum(not task.done() for task in self._streams)


async def _first(subscription: str) -> Any:
    """The request that opens a stream; the client says no more, and stays."""
    yield StreamingPullRequest(subscription=subscription, stream_ack_deadline_seconds=DEADLINE_S)
    await asyncio.Event().wait()


async def _listen(calls: Any) -> None:
    try:
        async for _ in calls:
            pass
    except GoogleAPICallError as error:
        raise BenchError(str(error)) from error
