"""Publish: messages go to the broker, and their ids come back when they are on disk."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from google.pubsub_v1.types import pubsub as types

from asterism.errors import PeerError
from asterism.gateways.pubsub import rules
from asterism.gateways.pubsub.catalogue import Record
from asterism.gateways.pubsub.errors import Code, Refusal
from asterism.gateways.pubsub.messages import encoded
from asterism.gateways.pubsub.schema_rpcs import Schemas
from asterism.gateways.pubsub.subscriptions import Subscriptions
from asterism.gateways.pubsub.topics import Topics
from asterism.message import Header, Mode, Status
from asterism.sdk.aio import Node, Receipt

PublishResponse: Final[Any] = types.PublishResponse.pb()
TIMEOUT_S: Final = 30.0  # for the broker to take a request
UNDER_WAY_BYTES_MAX: Final = 256 * 1_048_576  # of all requests that wait for the broker
CHUNK_BYTES: Final = 1_048_576  # go to the broker at a time, or one message that is larger
CHUNK_MESSAGES: Final = 1_000
PLAIN_MAX: Final = 1_024  # headers of messages without attributes that are remembered

Encoded = tuple[bytes, bytes]


class Publishing:
    """What publishers ask."""

    def __init__(
        self, node: Node, topics: Topics, subscriptions: Subscriptions, schemas: Schemas
    ) -> None:
        self._node = node
        self._topics = topics
        self._subscriptions = subscriptions
        self._schemas = schemas
        self._bytes = 0  # of requests that have no answer yet
        self._plain: dict[str, bytes] = {}  # headers by subject
        self._asks_nothing = Header(Mode.DURABLE, Status.PROCESSED, ("publish",))

    async def publish(self, request: Any) -> Any:
        """Publishes messages; they are on disk when this returns."""
        rules.check_publish(request)
        topic = self._topics.get(request.topic)
        if topic.resource.HasField("schema_settings"):
            await self._schemas.enforce(topic.resource.schema_settings, request.messages)
        size = request.ByteSize()
        if self._bytes + size > UNDER_WAY_BYTES_MAX:
            raise Refusal(Code.UNAVAILABLE, "Too much is being published: try again.")
        self._bytes += size
        try:
            sequences = await self.send(topic, request.messages)
        finally:
            self._bytes -= size
        return PublishResponse(message_ids=[str(sequence) for sequence in sequences])

    async def send(self, topic: Record, messages: Any) -> list[int]:
        """Publishes checked messages; the sequence of each."""
        stored = topic.facts["stored"]
        receipts = []
        async with asyncio.timeout(TIMEOUT_S):
            for chunk, size in _chunks(self._encoded(topic, messages)):
                receipt = Receipt(self._node, stored, self._asks_nothing, len(chunk), b"")
                while not self._node.forward(receipt, chunk, size):
                    # Too much is unanswered: there is room once some of it is.
                    await self._node.pass_through(stored)
                receipts.append(receipt)
            sequences: list[int] = []
            for receipt in receipts:
                await receipt.accepted(None)
                for result in receipt.results:
                    if isinstance(result, PeerError):
                        raise result
                    sequences.append(result)
        return sequences

    def _encoded(self, topic: Record, messages: Any) -> Iterator[Encoded]:
        """Header and payload of each message, as the broker has them."""
        subject, is_ordered = topic.facts["stored"], self._subscriptions.is_ordered(topic)
        plain = self._plain.get(subject)
        if plain is None:
            if len(self._plain) >= PLAIN_MAX:
                self._plain.clear()
            plain = self._plain[subject] = encoded(subject, {}, "", False, b"")[0]
        for message in messages:
            attributes, key = message.attributes, message.ordering_key
            if attributes or key:
                yield encoded(subject, attributes, key, is_ordered, message.data)
            else:
                yield plain, message.data


def _chunks(messages: Iterator[Encoded]) -> Iterator[tuple[list[Encoded], int]]:
    """Messages in parts that are sent one at a time, with the size of each part."""
    chunk: list[Encoded] = []
    size = 0
    for each in messages:
        own = len(each[0]) + len(each[1])
        if chunk and (size + own > CHUNK_BYTES or len(chunk) >= CHUNK_MESSAGES):
            yield chunk, size
            chunk, size = [], 0
        chunk.append(each)
        size += own
    if chunk:
        yield chunk, size
