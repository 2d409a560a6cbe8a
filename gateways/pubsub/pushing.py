"""Which subscriptions push, and what their messages are pushed from."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from asterism.gateways.pubsub.catalogue import Catalogue, Record
from asterism.gateways.pubsub.errors import Refusal
from asterism.gateways.pubsub.feeds import Feed
from asterism.gateways.pubsub.pulling import take
from asterism.gateways.pubsub.push import Pusher
from asterism.gateways.pubsub.subscriptions import Subscriptions

log = logging.getLogger("asterism.pubsub")


class FeedBacklog:
    """The messages of a subscription, as the push loop takes them."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def pull(self, count: int) -> Sequence[Any]:
        """Some messages, once there is one."""
        response = await take(self._feed, count, None)
        return list(response.received_messages)

    async def acknowledge(self, ack_ids: Sequence[str]) -> None:
        """The endpoint took them."""
        await self._feed.acknowledge(ack_ids)

    async def nack(self, ack_ids: Sequence[str]) -> None:
        """The endpoint did not."""
        await self._feed.modify(ack_ids, 0)


class _Running(NamedTuple):
    config: Any
    deadline_s: int
    task: "asyncio.Task[None]"


class Pushing:
    """All subscriptions that push."""

    def __init__(self, catalogue: Catalogue, subscriptions: Subscriptions) -> None:
        self._catalogue = catalogue
        self._subscriptions = subscriptions
        self._running: dict[str, _Running] = {}  # by uid
        self._ending: set[asyncio.Task[None]] = set()

    def review(self, record: Record) -> None:
        """A subscription was made or changed, or is gone: it pushes or not, and to where."""
        running = self._running.get(record.uid)
        resource = record.resource
        is_there = self._catalogue.find("subscription", record.name) is record
        config, deadline_s = resource.push_config, resource.ack_deadline_seconds
        wants = is_there and not record.facts.get("detached") and bool(config.push_endpoint)
        if running is not None:
            if wants and running.config == config and running.deadline_s == deadline_s:
                return
            del self._running[record.uid]
            running.task.cancel()
        if wants:
            feed = self._subscriptions.feed_of(record)
            pusher = Pusher(record.name, config, deadline_s, FeedBacklog(feed))
            task = asyncio.ensure_future(self._push(record.name, pusher))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            self._running[record.uid] = _Running(config, deadline_s, task)

    async def _push(self, name: str, pusher: Pusher) -> None:
        try:
            await pusher.run()
        except Refusal as refusal:  # the subscription was deleted, or detached
            log.info("%s pushes no more: %s", name, refusal)

    async def close(self) -> None:
        """Ends all of it; what is under way is given back."""
        for task in self._ending:
            task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
