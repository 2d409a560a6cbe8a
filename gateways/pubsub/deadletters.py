"""Dead letters: a message that was delivered too often goes to another topic, once.

It is published there under a producer of its own, made of the subscription and the message: whoever
does so again, after a kill between this and the acknowledgement, publishes nothing twice.
"""

import logging
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final

from asterism.errors import PeerError
from asterism.gateways.pubsub.errors import Refusal
from asterism.gateways.pubsub.feeds import Feed
from asterism.gateways.pubsub.messages import (
    attributes_of,
    data_of,
    encoded,
    key_of,
    published_ms,
)
from asterism.gateways.pubsub.names import Kind, read_name
from asterism.gateways.pubsub.subscriptions import Subscriptions
from asterism.gateways.pubsub.topics import Topics
from asterism.limits import PRODUCER_ID_BYTES
from asterism.message import Header, decode_header
from asterism.sdk.aio import Delivery, Message, Node
from asterism.sdk.composing import Wishes
from asterism.sdk.connection import clock_ms

# Attributes by which a dead letter says where it comes from, as those of the service do.
_SOURCE: Final = "CloudPubSubDeadLetterSource"
log = logging.getLogger("asterism.pubsub")


class DeadLetters:
    """Moves messages to dead-letter topics."""

    def __init__(self, node: Node, topics: Topics, subscriptions: Subscriptions) -> None:
        self._node = node
        self._topics = topics
        self._subscriptions = subscriptions

    async def forward(self, feed: Feed, delivery: Delivery) -> bool:
        """Publishes a message to the dead-letter topic; if that fails, it is delivered once more.

        True says that the topic has it on disk.
        """
        try:
            topic = self._topics.get(feed.terms.dead_letter)
            stored = topic.facts["stored"]
            made_of = f"{feed.uid}/{feed.generation}/{delivery.sequence}"
            producer = blake2b(made_of.encode(), digest_size=PRODUCER_ID_BYTES).digest()
            attributes = {**attributes_of(delivery), **_source_of(feed, delivery)}
            header, payload = encoded(
                stored,
                attributes,
                key_of(delivery),
                self._subscriptions.is_ordered(topic),
                data_of(delivery),
            )
            message = Message(payload, **_wishes_of(decode_header(header)))
            (once,) = await self._node.publish_once(stored, producer, [message])
        except (Refusal, PeerError, TimeoutError, ConnectionError) as error:
            log.warning("%s: a dead letter could not be published: %s", feed.name, error)
            return False
        if isinstance(once.result, PeerError):
            log.warning("%s: a dead letter was refused: %s", feed.name, once.result)
            return False
        return True


def _wishes_of(header: Header) -> Wishes:
    """What the broker is told of a message with this header."""
    wishes: Wishes = {
        "subjects": header.subjects,
        "attributes": header.attributes,
        "expect": "processed",
        "receipt": False,
    }
    if header.ordering_key is not None:
        wishes["ordering_key"] = header.ordering_key
    return wishes


def _source_of(feed: Feed, delivery: Delivery) -> dict[str, str]:
    name = read_name(feed.name, Kind.SUBSCRIPTION)
    time_ms = published_ms(delivery, clock_ms())
    return {
        f"{_SOURCE}DeliveryCount": str(delivery.attempt - 1),
        f"{_SOURCE}Subscription": name.id,
        f"{_SOURCE}SubscriptionProject": name.project,
        f"{_SOURCE}TopicPublishTime": _iso_time(time_ms),
    }


def _iso_time(time_ms: int) -> str:
    """A time as Google's JSON has it."""
    return (
        datetime.fromtimestamp(time_ms / 1_000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
