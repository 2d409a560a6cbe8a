"""Google's clients as the tests use them: a project with a publisher and a subscriber."""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Self
from unittest.mock import patch

import grpc
from google.api_core.exceptions import DeadlineExceeded, GoogleAPICallError
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.message import Message
from google.pubsub_v1 import PublisherClient as BarePublisher
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import (
    PubsubMessage,
    ReceivedMessage,
    StreamingPullRequest,
    StreamingPullResponse,
    Subscription,
    Topic,
)

HOST_VARIABLE: Final = "PUBSUB_EMULATOR_HOST"
PATIENCE_S: Final = 20.0
QUIET_S: Final = 0.6  # that nothing comes in, where nothing is to come
LOOK_S: Final = 0.01


class Pair:
    """A publisher and a subscriber as an application makes them: it sets one variable."""

    def __init__(self, address: str, **options: Any) -> None:
        with patch.dict(os.environ, {HOST_VARIABLE: address}):
            self.publisher = pubsub_v1.PublisherClient(**options)
            self.subscriber = pubsub_v1.SubscriberClient()
        # The method of the API itself: `publish` of the other batches, and checks before it sends.
        self.bare = BarePublisher(transport=self.publisher.transport)

    def close(self) -> None:
        self.publisher.stop()
        self.publisher.transport.close()
        self.subscriber.close()


def wide_subscriber(address: str) -> pubsub_v1.SubscriberClient:
    """A subscriber whose channel takes responses of any size."""
    channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
    return pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))


class Project:
    """A project of its own, in which a test makes topics and subscriptions."""

    def __init__(
        self,
        pair: Pair,
        project_id: str,
        subscriber: pubsub_v1.SubscriberClient | None = None,
    ) -> None:
        self.publisher = pair.publisher
        self.subscriber = subscriber or pair.subscriber
        self.bare = pair.bare
        self.id = project_id
        self.path = f"projects/{project_id}"

    # --- names ------------------------------------------------------------------------------------

    def topic_path(self, name: str) -> str:
        return f"{self.path}/topics/{name}"

    def subscription_path(self, name: str) -> str:
        return f"{self.path}/subscriptions/{name}"

    def snapshot_path(self, name: str) -> str:
        return f"{self.path}/snapshots/{name}"

    # --- making -----------------------------------------------------------------------------------

    def topic(self, name: str = "orders", **settings: Any) -> str:
        """Makes a topic; its path."""
        made: Topic = self.publisher.create_topic(
            request={"name": self.topic_path(name), **settings}
        )
        return str(made.name)

    def subscription(self, topic: str, name: str = "billing", **settings: Any) -> str:
        """Makes a subscription of a topic; its path."""
        made: Subscription = self.subscriber.create_subscription(
            request={"name": self.subscription_path(name), "topic": topic, **settings}
        )
        return str(made.name)

    def both(self, **settings: Any) -> tuple[str, str]:
        """A topic and a subscription of it."""
        topic = self.topic()
        return topic, self.subscription(topic, **settings)

    # --- messages ---------------------------------------------------------------------------------

    def publish(
        self, topic: str, *data: bytes, ordering_key: str = "", **attributes: str
    ) -> list[str]:
        """Publishes in one request; the ids."""
        messages = [
            PubsubMessage(data=one, ordering_key=ordering_key, attributes=attributes)
            for one in data
        ]
        return list(self.bare.publish(topic=topic, messages=messages).message_ids)

    def pull(
        self, subscription: str, count: int = 1, s: float = PATIENCE_S, most: int | None = None
    ) -> list[ReceivedMessage]:
        """Pulls until so many have come."""
        got: list[ReceivedMessage] = []
        deadline = time.monotonic() + s
        while len(got) < count:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{len(got)} of {count} messages have come"
            try:
                answer = self.subscriber.pull(
                    subscription=subscription, max_messages=most or count - len(got), timeout=left_s
                )
            except DeadlineExceeded:
                continue
            got += answer.received_messages
        return got

    def pulled(self, subscription: str, count: int = 1, s: float = PATIENCE_S) -> list[bytes]:
        """The data of so many messages, which are acknowledged."""
        got = self.pull(subscription, count, s)
        self.acknowledge(subscription, got)
        return data_of(got)

    def acknowledge(self, subscription: str, got: Sequence[ReceivedMessage]) -> None:
        self.subscriber.acknowledge(subscription=subscription, ack_ids=[one.ack_id for one in got])

    def extend(self, subscription: str, got: Sequence[ReceivedMessage], seconds: int) -> None:
        """Moves the deadline; 0 is a nack."""
        self.subscriber.modify_ack_deadline(
            subscription=subscription,
            ack_ids=[one.ack_id for one in got],
            ack_deadline_seconds=seconds,
        )

    def nack(self, subscription: str, got: Sequence[ReceivedMessage]) -> None:
        self.extend(subscription, got, 0)

    def nothing(self, subscription: str, s: float = QUIET_S) -> None:
        """Asserts that nothing comes."""
        try:
            answer = self.subscriber.pull(
                subscription=subscription, max_messages=10, timeout=s, retry=None
            )
        except DeadlineExceeded:
            return
        assert not answer.received_messages, data_of(answer.received_messages)

    # --- streams ----------------------------------------------------------------------------------

    def stream(self, subscription: str, **first: Any) -> "Stream":
        """Opens a stream of the API itself, so that each request is the test's."""
        return Stream(self.subscriber, subscription, **first)

    @contextmanager
    def unread(self, subscription: str, **first: Any) -> Iterator[None]:
        """Opens a stream from which nothing is ever read."""
        is_over = threading.Event()

        def said() -> Iterator[StreamingPullRequest]:
            yield StreamingPullRequest(
                subscription=subscription, stream_ack_deadline_seconds=60, **first
            )
            is_over.wait(PATIENCE_S)

        call = self.subscriber.transport.grpc_channel.stream_stream(
            "/google.pubsub.v1.Subscriber/StreamingPull",
            request_serializer=StreamingPullRequest.serialize,
            response_deserializer=StreamingPullResponse.deserialize,
        )(said())
        yield
        is_over.set()
        call.cancel()

    def collect(
        self, subscription: str, take: Callable[[Message], None] | None = None, **options: Any
    ) -> "Collected":
        """Subscribes as an application does, with a callback; without one, all is acknowledged."""
        return Collected(self.subscriber, subscription, take, options)


def data_of(got: Sequence[ReceivedMessage]) -> list[bytes]:
    return [bytes(one.message.data) for one in got]


def until(is_so: Callable[[], bool], s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)


class Stream:
    """A streaming pull whose requests a test writes itself."""

    def __init__(
        self,
        subscriber: pubsub_v1.SubscriberClient,
        subscription: str,
        stream_ack_deadline_seconds: int = 60,
        **first: Any,
    ) -> None:
        self._requests: queue.SimpleQueue[StreamingPullRequest | None] = queue.SimpleQueue()
        self._responses: queue.SimpleQueue[StreamingPullResponse | Exception | None] = (
            queue.SimpleQueue()
        )
        self.send(
            subscription=subscription,
            stream_ack_deadline_seconds=stream_ack_deadline_seconds,
            **first,
        )
        self._call = subscriber.streaming_pull(requests=self._said(), timeout=None, retry=None)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _said(self) -> Iterator[StreamingPullRequest]:
        while (request := self._requests.get()) is not None:
            yield request

    def _read(self) -> None:
        try:
            for response in self._call:
                self._responses.put(response)
        except Exception as error:
            self._responses.put(error)
        else:
            self._responses.put(None)

    def send(self, **fields: Any) -> None:
        self._requests.put(StreamingPullRequest(**fields))

    def next(self, s: float = PATIENCE_S) -> StreamingPullResponse:
        """The next response; raises what ended the stream."""
        answer = self._responses.get(timeout=s)
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None, "the stream has ended"
        return answer

    def take(self, count: int, s: float = PATIENCE_S) -> list[ReceivedMessage]:
        """The next so many messages."""
        got: list[ReceivedMessage] = []
        deadline = time.monotonic() + s
        while len(got) < count:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{len(got)} of {count} messages have come"
            try:
                got += self.next(left_s).received_messages
            except queue.Empty:
                continue
        return got

    def waiting(self) -> list[ReceivedMessage]:
        """The messages that have come already."""
        got: list[ReceivedMessage] = []
        while not self._responses.empty():
            got += self.next().received_messages
        return got

    def nothing(self, s: float = QUIET_S) -> None:
        """Asserts that no message comes."""
        deadline = time.monotonic() + s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                got = self.next(left_s).received_messages
            except queue.Empty:
                return
            assert not got, data_of(got)

    def acknowledge(self, got: Sequence[ReceivedMessage]) -> None:
        self.send(ack_ids=[one.ack_id for one in got])

    def extend(self, got: Sequence[ReceivedMessage], seconds: int) -> None:
        self.send(
            modify_deadline_ack_ids=[one.ack_id for one in got],
            modify_deadline_seconds=[seconds] * len(got),
        )

    def error(self, s: float = PATIENCE_S) -> GoogleAPICallError:
        """What ends the stream; what comes before it does not count."""
        deadline = time.monotonic() + s
        while True:
            answer = self._responses.get(timeout=max(deadline - time.monotonic(), LOOK_S))
            assert answer is not None, "the stream has ended without an error"
            if isinstance(answer, GoogleAPICallError):
                return answer
            assert not isinstance(answer, Exception), answer

    def finish(self) -> None:
        """Says that no more requests come."""
        self._requests.put(None)

    def close(self) -> None:
        self.finish()
        self._call.cancel()
        self._reader.join(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Collected:
    """What the callback of a subscriber got, until it is left."""

    def __init__(
        self,
        subscriber: pubsub_v1.SubscriberClient,
        subscription: str,
        take: Callable[[Message], None] | None,
        options: dict[str, Any],
    ) -> None:
        self._lock = threading.Lock()
        self._take = take or Message.ack
        self.messages: list[Message] = []
        self.future = subscriber.subscribe(subscription, callback=self._on_message, **options)

    def _on_message(self, message: Message) -> None:
        with self._lock:
            self.messages.append(message)
        self._take(message)

    @property
    def data(self) -> list[bytes]:
        with self._lock:
            return [bytes(message.data) for message in self.messages]

    def wait_for(self, count: int, s: float = PATIENCE_S) -> list[bytes]:
        """The data of the messages, when there are so many."""
        deadline = time.monotonic() + s
        while len(self.data) < count:
            assert time.monotonic() < deadline, f"{len(self.data)} of {count} messages have come"
            assert not self.future.done(), self.future.exception(0)
            time.sleep(LOOK_S)
        return self.data

    def close(self) -> None:
        self.future.cancel()
        # Where it has ended by an error before, a test has seen that if it matters.
        with suppress(GoogleAPICallError):
            self.future.result(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def code_of(error: GoogleAPICallError) -> grpc.StatusCode:
    code = error.grpc_status_code
    assert isinstance(code, grpc.StatusCode)
    return code
