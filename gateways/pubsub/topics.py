"""Topics: created, looked up, listed, updated and deleted."""

import logging
from typing import Any, Final

from google.protobuf import empty_pb2
from google.pubsub_v1.types import pubsub as types

from asterism import limits
from asterism.errors import PeerError
from asterism.gateways.pubsub import rules
from asterism.gateways.pubsub.catalogue import Catalogue, Record, settings_of
from asterism.gateways.pubsub.errors import already_exists, not_found
from asterism.gateways.pubsub.masks import TOPIC_FIELDS, updated
from asterism.gateways.pubsub.names import (
    DELETED_SCHEMA,
    DELETED_TOPIC,
    Kind,
    broker_name,
    read_name,
)
from asterism.gateways.pubsub.pages import page_of
from asterism.sdk.aio import Node

ListTopicsResponse: Final[Any] = types.ListTopicsResponse.pb()
ListTopicSubscriptionsResponse: Final[Any] = types.ListTopicSubscriptionsResponse.pb()
ListTopicSnapshotsResponse: Final[Any] = types.ListTopicSnapshotsResponse.pb()
Topic: Final[Any] = types.Topic.pb()
PAYLOAD_MAX: Final = 10 * 1_048_576
log = logging.getLogger("asterism.pubsub")


class Topics:
    """All topics."""

    def __init__(self, node: Node, catalogue: Catalogue) -> None:
        self._node = node
        self._catalogue = catalogue
        self._ttl_ms: dict[str, int] = {}  # how long the broker keeps messages, by its topics

    # --- for the rest of the door -------------------------------------------------------------

    def get(self, name: str) -> Record:
        """A topic; ``NOT_FOUND`` where there is none of this name."""
        read_name(name, Kind.TOPIC)
        record = self._catalogue.find("topic", name)
        if record is None:
            raise not_found(name)
        return record

    def of(self, record: Record) -> Record | None:
        """The topic of a subscription or a snapshot; none once it is deleted."""
        topic = self._catalogue.by_uid(record.facts["topic_uid"])
        return None if topic is None or topic.is_deleted else topic

    def shown_name(self, record: Record) -> str:
        """The name of that topic as clients see it."""
        topic = self.of(record)
        return DELETED_TOPIC if topic is None else topic.name

    async def keep_for(self, stored: str, wanted_ms: int) -> None:
        """Has the broker keep the messages of one of its topics for so long, at least."""
        if wanted_ms > self._ttl_ms.get(stored, rules.RETENTION_MS):
            await self._node.configure(stored, default_ttl=wanted_ms / 1_000)
            self._ttl_ms[stored] = wanted_ms

    async def release(self, uid: str) -> None:
        """Forgets a deleted topic once no subscription has messages of it any more."""
        record = self._catalogue.by_uid(uid)
        if record is None or not record.is_deleted or self._dependents(record):
            return
        await self._drop(record)

    async def recover(self) -> None:
        """Makes what is missing at the broker, and drops what is left over there."""
        for record in self._catalogue.named("topic").values():
            await self._make(record)
        for record in self._catalogue.deleted():
            if record.kind == "topic":
                await self.release(record.uid)

    def _dependents(self, record: Record) -> list[Record]:
        """The subscriptions that have messages of a topic."""
        return [
            each
            for each in self._catalogue.named("subscription").values()
            if each.facts["topic_uid"] == record.uid and not each.facts.get("detached")
        ]

    async def _make(self, record: Record) -> None:
        """Makes a topic at the broker; one of another door stays as it is."""
        stored = record.facts["stored"]
        wanted_ms = max(rules.RETENTION_MS, _retention_ms(record.resource))
        try:
            await self._node.create_topic(stored, **settings_of(wanted_ms, PAYLOAD_MAX))
            self._ttl_ms[stored] = wanted_ms
        except PeerError as error:
            if error.code != "topic_exists":
                raise

    async def _drop(self, record: Record) -> None:
        if not record.facts["adopted"]:
            try:
                await self._node.delete_topic(record.facts["stored"])
            except PeerError as error:
                if error.code != "no_such_topic":
                    raise
        self._ttl_ms.pop(record.facts["stored"], None)
        await self._catalogue.remove(record)

    def _free_name(self, name: str) -> tuple[str, bool]:
        """What the broker is to call a topic; is that another's, of this door?"""
        stored = broker_name(read_name(name, Kind.TOPIC))
        taken = {each.facts["stored"] for each in self._catalogue.deleted() if each.kind == "topic"}
        return stored, stored in taken

    async def _is_there(self, stored: str) -> bool:
        try:
            await self._node.describe(stored)
        except PeerError as error:
            if error.code != "no_such_topic":
                raise
            return False
        return True

    # --- what clients ask ---------------------------------------------------------------------

    async def create(self, request: Any) -> Any:
        """Makes a topic; one that another door has made is used as it is."""
        rules.check_topic(request)
        async with self._catalogue.changing:
            name = request.name
            if self._catalogue.find("topic", name) is not None:
                raise already_exists(name)
            self._check_schema(request)
            resource = Topic()
            resource.CopyFrom(request)
            rules.fill_topic(resource)
            record = Record("topic", name, resource)
            stored, is_taken = self._free_name(name)
            if is_taken:  # by a deleted topic of this name, with messages for its subscriptions
                stored = f"{stored[: limits.TOPIC_BYTES_MAX - len(record.uid) - 1]}#{record.uid}"
            record.facts["stored"] = stored
            record.facts["adopted"] = await self._is_there(stored)
            await self._catalogue.put(record)
            await self._make(record)
            return record.resource

    def _check_schema(self, topic: Any) -> None:
        name = topic.schema_settings.schema
        if name and name != DELETED_SCHEMA and self._catalogue.find("schema", name) is None:
            raise not_found(name)

    async def get_topic(self, request: Any) -> Any:
        """One topic."""
        return self.get(request.topic).resource

    async def list_topics(self, request: Any) -> Any:
        """The topics of a project."""
        records, token = self._catalogue.listed("topic", request)
        response = ListTopicsResponse(next_page_token=token)
        for record in records:
            response.topics.add().CopyFrom(record.resource)
        return response

    async def update(self, request: Any) -> Any:
        """Replaces the fields of a topic that the mask names."""
        async with self._catalogue.changing:
            record = self.get(request.topic.name)
            paths = request.update_mask.paths
            resource = updated(record.resource, request.topic, paths, TOPIC_FIELDS)
            rules.check_topic(resource)
            rules.fill_topic(resource)
            self._check_schema(resource)
            await self.keep_for(record.facts["stored"], _retention_ms(resource))
            await self._catalogue.put(record.changed(resource))
            return resource

    async def delete(self, request: Any) -> Any:
        """Deletes a topic; its subscriptions stay, with what they have still to deliver."""
        async with self._catalogue.changing:
            record = self.get(request.topic)
            if self._dependents(record):
                await self._catalogue.put(record.changed(record.resource, deleted=True))
            else:
                await self._drop(record)
        return empty_pb2.Empty()

    async def list_subscriptions(self, request: Any) -> Any:
        """The names of a topic's subscriptions."""
        record = self.get(request.topic)
        names = [each.name for each in self._dependents(record)]
        page = page_of(names, request.page_size, request.page_token)
        return ListTopicSubscriptionsResponse(
            subscriptions=page.names, next_page_token=page.next_page_token
        )

    async def list_snapshots(self, request: Any) -> Any:
        """The names of a topic's snapshots."""
        record = self.get(request.topic)
        names = [
            each.name
            for each in self._catalogue.named("snapshot").values()
            if each.facts["topic_uid"] == record.uid
        ]
        page = page_of(names, request.page_size, request.page_token)
        return ListTopicSnapshotsResponse(
            snapshots=page.names, next_page_token=page.next_page_token
        )


def _retention_ms(topic: Any) -> int:
    """How long a topic asks that its messages be kept; 0: it does not ask."""
    return rules.duration_ms(topic.message_retention_duration)
