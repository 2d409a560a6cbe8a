"""Subscriptions: created, looked up, listed, updated, detached and deleted; and their feeds."""

import logging
import secrets
from collections.abc import Callable
from typing import Any, Final

from google.protobuf import empty_pb2
from google.pubsub_v1.types import pubsub as types

from asterism.errors import PeerError
from asterism.gateways.pubsub import rules
from asterism.gateways.pubsub.catalogue import Catalogue, Record
from asterism.gateways.pubsub.errors import Code, Refusal, already_exists, not_found
from asterism.gateways.pubsub.feeds import Feed, Forward
from asterism.gateways.pubsub.holds import LEASE_S, Budget
from asterism.gateways.pubsub.masks import SUBSCRIPTION_FIELDS, updated
from asterism.gateways.pubsub.names import Kind, broker_name, read_name
from asterism.gateways.pubsub.terms import terms_of
from asterism.gateways.pubsub.topics import Topics
from asterism.sdk.aio import Node
from asterism.sdk.connection import clock_ms

ListSubscriptionsResponse: Final[Any] = types.ListSubscriptionsResponse.pb()
DetachSubscriptionResponse: Final[Any] = types.DetachSubscriptionResponse.pb()
Subscription: Final[Any] = types.Subscription.pb()
USES_NOTED: Final = 24  # times in its time to live a use of a subscription is written down, at most
ID_BYTES: Final = 8  # of a name that a client left out
log = logging.getLogger("asterism.pubsub")

Listener = Callable[[Record], None]


class Subscriptions:
    """All subscriptions."""

    def __init__(
        self, node: Node, catalogue: Catalogue, topics: Topics, budget: Budget, forward: Forward
    ) -> None:
        self._node = node
        self._catalogue = catalogue
        self._topics = topics
        self._budget = budget
        self._forward = forward
        self.feeds: dict[str, Feed] = {}  # by uid
        self._ordered: set[str] = set()  # uids of topics with a subscription that promises order
        # Who wants to know that a subscription was made or changed, or is gone.
        self.listeners: list[Listener] = []

    # --- for the rest of the door -------------------------------------------------------------

    def get(self, name: str) -> Record:
        """A subscription; ``NOT_FOUND`` where there is none of this name."""
        read_name(name, Kind.SUBSCRIPTION)
        record = self._catalogue.find("subscription", name)
        if record is None:
            raise not_found(name)
        return record

    def feed(self, name: str) -> Feed:
        """What hands out the messages of a subscription."""
        return self.feed_of(self.get(name))

    def feed_of(self, record: Record) -> Feed:
        """The same, by its record."""
        if record.facts.get("detached"):
            raise _detached(record.name)
        feed = self.feeds.get(record.uid)
        if feed is None:
            facts = record.facts
            feed = self.feeds[record.uid] = Feed(
                self._node, record.name, facts["stored"], facts["receiver"], record.uid,
                facts.get("generation", 0), terms_of(record.resource), self._budget, self._forward,
                self.mend,
            )  # fmt: skip
        return feed

    def pulled_feed(self, name: str) -> Feed:
        """The same for those who pull: refused where messages are pushed."""
        record = self.get(name)
        if record.resource.push_config.push_endpoint:
            said = f"{name} pushes its messages: it cannot be pulled."
            raise Refusal(Code.FAILED_PRECONDITION, said)
        return self.feed_of(record)

    def is_ordered(self, topic: Record) -> bool:
        """Has a topic a subscription that promises order?"""
        return topic.uid in self._ordered

    def records(self) -> list[Record]:
        return list(self._catalogue.named("subscription").values())

    def sweep(self, now_s: float) -> None:
        """Looks at all deadlines."""
        for feed in self.feeds.values():
            feed.sweep(now_s)

    async def expire(self, now_ms: int) -> None:
        """Notes which subscriptions are in use, and deletes those that were not for too long."""
        for record in self.records():
            ttl = record.resource.expiration_policy.ttl
            ttl_ms = rules.duration_ms(ttl)
            if not ttl_ms or record.facts.get("detached"):
                continue
            feed = self.feeds.get(record.uid)
            used_ms = record.facts["used_ms"]
            if record.resource.push_config.push_endpoint or (feed is not None and feed.is_in_use):
                used_ms = now_ms
            elif feed is not None:
                used_ms = max(used_ms, feed.used_ms)
            async with self._catalogue.changing:
                if self._catalogue.by_uid(record.uid) is not record:
                    continue
                if now_ms - used_ms > ttl_ms:
                    log.info("%s has expired: nobody used it", record.name)
                    await self.remove(record)
                elif used_ms - record.facts["used_ms"] > ttl_ms // USES_NOTED:
                    await self.mark(record, used_ms=used_ms)

    async def recover(self) -> None:
        """Makes what is missing at the broker, and drops what is left over there."""
        by_topic: dict[str, list[Record]] = {}
        await self.finish()
        for record in self.records():
            by_topic.setdefault(record.facts["stored"], []).append(record)
        for stored, records in by_topic.items():
            try:
                there = {each.name: each for each in await self._node.list_receivers(stored)}
            except PeerError as error:
                if error.code != "no_such_topic":
                    raise
                there = {}
            for record in records:
                found = there.get(record.facts["receiver"])
                if record.facts.get("detached"):
                    if found is not None:
                        await self._drop_receiver(record)
                elif found is None or not record.facts.get("made"):
                    await self._make(record)
            longest_ms = max(_retention_ms(record.resource) for record in records)
            await self._topics.keep_for(stored, longest_ms)
            for record in records:
                self._note(record)

    def _note(self, record: Record) -> None:
        if record.resource.enable_message_ordering and not record.facts.get("detached"):
            self._ordered.add(record.facts["topic_uid"])
        for listener in self.listeners:
            listener(record)

    def shown(self, record: Record) -> Any:
        """A subscription as clients see it."""
        resource = Subscription()
        resource.CopyFrom(record.resource)
        topic = self._topics.of(record)
        resource.topic = self._topics.shown_name(record)
        resource.detached = bool(record.facts.get("detached"))
        if topic is not None and topic.resource.HasField("message_retention_duration"):
            resource.topic_message_retention_duration.CopyFrom(
                topic.resource.message_retention_duration
            )
        return resource

    async def _make(self, record: Record) -> None:
        """Makes the receiver, which gets what is published from now on."""
        stored, receiver = record.facts["stored"], record.facts["receiver"]
        try:
            await self._node.create_receiver(
                stored, receiver, sent_timeout=LEASE_S, received_timeout=LEASE_S
            )
        except PeerError as error:
            # A door that was killed has made it, or another door has its name.
            if error.code != "wrong_state":
                raise
        if record.facts.get("made"):  # and somebody has deleted it at the broker
            await self._node.seek(stored, receiver)
            return
        # Not to now: a client may know of it already, and something may be published by now.
        await self._node.seek(stored, receiver, sequence=record.facts["first"])
        await self.mark(record, made=True)

    async def mend(self, feed: Feed) -> None:
        """Makes a receiver anew that was deleted at the broker, by another door or a command."""
        async with self._catalogue.changing:
            record = self._catalogue.find("subscription", feed.name)
            if record is None or record.uid != feed.uid or record.facts.get("detached"):
                raise not_found(feed.name)
            log.warning(
                "%s was deleted at the broker: it is made anew, without messages", feed.name
            )
            await self._make(record)

    async def finish(self) -> None:
        """Ends what a deletion has left half done."""
        for record in self._catalogue.deleted():
            if record.kind == "subscription":
                await self._finish(record)

    async def _finish(self, record: Record) -> None:
        place = (record.facts["stored"], record.facts["receiver"])
        taken = {(each.facts["stored"], each.facts["receiver"]) for each in self.records()}
        if place not in taken:  # by one that was made since, under the same name
            await self._drop_receiver(record)
        await self._catalogue.remove(record)
        await self._topics.release(record.facts["topic_uid"])

    async def _drop_receiver(self, record: Record) -> None:
        try:
            await self._node.delete_receiver(record.facts["stored"], record.facts["receiver"])
        except PeerError as error:
            if error.code not in ("no_such_receiver", "no_such_topic"):
                raise

    def _end_feed(self, record: Record, refusal: Refusal) -> None:
        feed = self.feeds.pop(record.uid, None)
        if feed is not None:
            feed.end(refusal)

    # --- what clients ask ---------------------------------------------------------------------

    async def create(self, request: Any) -> Any:
        """Makes a subscription: it gets every message that is published when this has returned."""
        rules.check_subscription(request)
        async with self._catalogue.changing:
            resource = Subscription()
            resource.CopyFrom(request)
            if not resource.name:
                project = read_name(request.topic, Kind.TOPIC).project
                resource.name = (
                    f"projects/{project}/subscriptions/sub-{secrets.token_hex(ID_BYTES)}"
                )
            if self._catalogue.find("subscription", resource.name) is not None:
                raise already_exists(resource.name)
            topic = self._topics.get(resource.topic)
            self._check_dead_letter(resource)
            rules.fill_subscription(resource)
            record = Record("subscription", resource.name, resource)
            record.facts = {
                "topic_uid": topic.uid,
                "stored": topic.facts["stored"],
                "receiver": broker_name(read_name(resource.name, Kind.SUBSCRIPTION)),
                "used_ms": clock_ms(),
                # Before it there is nothing for this subscription, wherever it is moved.
                "first": (await self._node.describe(topic.facts["stored"])).next_sequence,
            }
            await self._topics.keep_for(topic.facts["stored"], _retention_ms(resource))
            await self._catalogue.put(record)
            # A door that is killed here makes the receiver when it starts.
            try:
                await self._make(record)
            except Exception:
                await self.remove(record)
                raise
            record = self.get(record.name)
            self._note(record)
            return self.shown(record)

    def _check_dead_letter(self, resource: Any) -> None:
        name = resource.dead_letter_policy.dead_letter_topic
        if name:
            self._topics.get(name)

    async def get_subscription(self, request: Any) -> Any:
        """One subscription."""
        return self.shown(self.get(request.subscription))

    async def list_all(self, request: Any) -> Any:
        """The subscriptions of a project."""
        records, token = self._catalogue.listed("subscription", request)
        response = ListSubscriptionsResponse(next_page_token=token)
        for record in records:
            response.subscriptions.add().CopyFrom(self.shown(record))
        return response

    async def update(self, request: Any) -> Any:
        """Replaces the fields of a subscription that the mask names, at once."""
        async with self._catalogue.changing:
            record = self.get(request.subscription.name)
            paths = request.update_mask.paths
            resource = updated(record.resource, request.subscription, paths, SUBSCRIPTION_FIELDS)
            return await self._change(record, resource)

    async def modify_push_config(self, request: Any) -> Any:
        """Has messages pushed to an endpoint, or pulled where there is none."""
        rules.check_push_config(request.push_config)
        async with self._catalogue.changing:
            record = self.get(request.subscription)
            resource = Subscription()
            resource.CopyFrom(record.resource)
            resource.push_config.CopyFrom(request.push_config)
            await self._change(record, resource)
        return empty_pb2.Empty()

    async def _change(self, record: Record, resource: Any) -> Any:
        rules.check_subscription(resource, is_new=False)
        if resource.dead_letter_policy != record.resource.dead_letter_policy:
            self._check_dead_letter(resource)
        rules.fill_subscription(resource)
        await self._topics.keep_for(record.facts["stored"], _retention_ms(resource))
        after = record.changed(resource)
        await self._catalogue.put(after)
        feed = self.feeds.get(record.uid)
        if feed is not None:
            feed.change(terms_of(resource))
        self._note(after)
        return self.shown(after)

    async def mark(self, record: Record, **facts: Any) -> Record:
        """Notes something of a subscription; the caller keeps others from changing."""
        after = record.changed(record.resource, **facts)
        await self._catalogue.put(after)
        return after

    async def delete(self, request: Any) -> Any:
        """Deletes a subscription, and drops its messages."""
        async with self._catalogue.changing:
            await self.remove(self.get(request.subscription))
        return empty_pb2.Empty()

    async def remove(self, record: Record) -> None:
        """Deletes a subscription; the caller keeps others from changing."""
        self._end_feed(record, not_found(record.name))
        # From here on it is gone; what is left of it goes now, or when the door starts again.
        after = record.changed(record.resource, deleted=True)
        await self._catalogue.put(after)
        for listener in self.listeners:
            listener(after)
        await self._finish(after)

    async def detach(self, request: Any) -> Any:
        """Drops a subscription's messages, and lets nobody have any from now on."""
        async with self._catalogue.changing:
            record = self.get(request.subscription)
            after = record.changed(record.resource, detached=True)
            await self._catalogue.put(after)
            self._end_feed(record, _detached(record.name))
            await self._drop_receiver(record)
            self._note(after)
            await self._topics.release(record.facts["topic_uid"])
        return DetachSubscriptionResponse()


def _detached(name: str) -> Refusal:
    said = f"{name} is detached from its topic: it has no messages, and gets none."
    return Refusal(Code.FAILED_PRECONDITION, said)


def _retention_ms(subscription: Any) -> int:
    return rules.duration_ms(subscription.message_retention_duration)
