"""All that serves the clients of the Pub/Sub door, over one connection to the broker."""

import asyncio
import logging
import time
from typing import Final

from asterism.config import ConfigError
from asterism.errors import PeerError
from asterism.gateways.pubsub import rules, schema_rpcs
from asterism.gateways.pubsub.catalogue import Catalogue
from asterism.gateways.pubsub.deadletters import DeadLetters
from asterism.gateways.pubsub.door import Settings
from asterism.gateways.pubsub.errors import Refusal
from asterism.gateways.pubsub.feeds import Feed
from asterism.gateways.pubsub.holds import SLOTS, Budget
from asterism.gateways.pubsub.publishing import Publishing
from asterism.gateways.pubsub.pulling import Pulling
from asterism.gateways.pubsub.pushing import Pushing
from asterism.gateways.pubsub.rpcs import Method, methods_of, whole
from asterism.gateways.pubsub.schema_rpcs import Schemas
from asterism.gateways.pubsub.seeking import Seeking
from asterism.gateways.pubsub.streams import Streams
from asterism.gateways.pubsub.subscriptions import Subscription, Subscriptions
from asterism.gateways.pubsub.topics import Topic, Topics
from asterism.sdk.aio import Delivery, Node
from asterism.sdk.connection import clock_ms

EXPIRE_S: Final = 60.0  # between looks for what has expired
log = logging.getLogger("asterism.pubsub")


class PubSub:
    """All that serves clients, over one connection to the broker."""

    def __init__(self, node: Node, settings: Settings) -> None:
        self._settings = settings
        self.catalogue = Catalogue(node)
        self.topics = Topics(node, self.catalogue)
        self.subscriptions = Subscriptions(
            node, self.catalogue, self.topics, Budget(settings.max_held), self._forward
        )
        self._dead_letters = DeadLetters(node, self.topics, self.subscriptions)
        schemas = Schemas(self.catalogue, clock_ms)
        self.publishing = Publishing(node, self.topics, self.subscriptions, schemas)
        self.pushing = Pushing(self.catalogue, self.subscriptions)
        self.subscriptions.listeners.append(self.pushing.review)
        self.seeking = Seeking(node, self.catalogue, self.topics, self.subscriptions)
        self.streams = Streams(self.subscriptions, settings)
        pulling = Pulling(self.subscriptions)
        self.methods = {
            **methods_of(self.topics, self.publishing, self.subscriptions, pulling, self.seeking),
            **{
                name: Method(request, reply, whole(call), rules.REQUEST_BYTES_MAX)
                for name, (request, reply, call) in schema_rpcs.methods_of(schemas).items()
            },
        }

    async def _forward(self, feed: Feed, delivery: Delivery) -> bool:
        return await self._dead_letters.forward(feed, delivery)

    async def begin(self) -> None:
        """Reads what there is, mends what a killed door has left half done, and makes what the
        configuration lists."""
        await self.catalogue.load()
        await self.topics.recover()
        await self.subscriptions.recover()
        try:
            for name in self._settings.topics or ():
                await self._make_topic(name)
            for name, topic in self._settings.subscriptions or ():
                await self._make_topic(topic)
                if self.catalogue.find("subscription", name) is None:
                    await self.subscriptions.create(Subscription(name=name, topic=topic))
        except Refusal as refusal:
            raise ConfigError(f"pubsub.topics, pubsub.subscriptions: {refusal.detail}") from None

    async def _make_topic(self, name: str) -> None:
        if self.catalogue.find("topic", name) is None:
            await self.topics.create(Topic(name=name))

    async def watch(self) -> None:
        """Looks at deadlines, for as long as the door runs."""
        while True:
            await asyncio.sleep(1 / SLOTS)
            self.subscriptions.sweep(time.monotonic())

    async def expire(self) -> None:
        """Deletes what has expired, for as long as the door runs."""
        while True:
            await asyncio.sleep(EXPIRE_S)
            try:
                await self.seeking.expire(clock_ms())
                await self.subscriptions.expire(clock_ms())
                async with self.catalogue.changing:
                    await self.subscriptions.finish()
            except (PeerError, TimeoutError, ConnectionError) as error:
                log.warning("what has expired is looked for again in a while: %s", error)

    async def end(self) -> None:
        """Gives back what is being pushed."""
        await self.pushing.close()
