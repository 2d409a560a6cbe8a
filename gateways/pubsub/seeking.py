"""Snapshots, and Seek: a subscription is moved to a time, or to what a snapshot has kept.

A snapshot is the first message that its subscription had not acknowledged. To seek to it delivers
that one and all behind it again, those that were acknowledged out of order among them.
"""

import secrets
from typing import Any, Final

from google.protobuf import empty_pb2
from google.pubsub_v1.types import pubsub as types

from asterism import limits
from asterism.errors import PeerError
from asterism.gateways.pubsub import rules
from asterism.gateways.pubsub.catalogue import Catalogue, Record
from asterism.gateways.pubsub.errors import (
    Code,
    Refusal,
    already_exists,
    invalid,
    not_found,
)
from asterism.gateways.pubsub.masks import SNAPSHOT_FIELDS, updated
from asterism.gateways.pubsub.names import Kind, read_name
from asterism.gateways.pubsub.subscriptions import ID_BYTES, Subscriptions
from asterism.gateways.pubsub.topics import Topics
from asterism.sdk.aio import Node
from asterism.sdk.connection import clock_ms

ListSnapshotsResponse: Final[Any] = types.ListSnapshotsResponse.pb()
SeekResponse: Final[Any] = types.SeekResponse.pb()
Snapshot: Final[Any] = types.Snapshot.pb()
SECONDS_MIN, SECONDS_MAX = -62_135_596_800, 253_402_300_799  # of the years 1 to 9999
LIFE_MS: Final = 7 * 86_400_000


class Seeking:
    """All snapshots, and what moves subscriptions."""

    def __init__(
        self, node: Node, catalogue: Catalogue, topics: Topics, subscriptions: Subscriptions
    ) -> None:
        self._node = node
        self._catalogue = catalogue
        self._topics = topics
        self._subscriptions = subscriptions

    # --- snapshots ----------------------------------------------------------------------------

    async def create(self, request: Any) -> Any:
        """Keeps what a subscription has not acknowledged, and what comes from now on."""
        rules.check_snapshot(request)
        async with self._catalogue.changing:
            subscription = self._attached(request.subscription)
            name = request.name
            if not name:
                project = read_name(request.subscription, Kind.SUBSCRIPTION).project
                name = f"projects/{project}/snapshots/snap-{secrets.token_hex(ID_BYTES)}"
            if self._catalogue.find("snapshot", name) is not None:
                raise already_exists(name)
            resource = Snapshot(name=name, topic=self._topics.shown_name(subscription))
            resource.labels.update(request.labels)
            resource.expire_time.FromMilliseconds(clock_ms() + LIFE_MS)
            facts = {
                "topic_uid": subscription.facts["topic_uid"],
                "sequence": await self._floor(subscription),
            }
            record = Record("snapshot", name, resource, facts)
            await self._catalogue.put(record)
            return self._shown(record)

    async def get_snapshot(self, request: Any) -> Any:
        """One snapshot."""
        return self._shown(self._get(request.snapshot))

    async def list_all(self, request: Any) -> Any:
        """The snapshots of a project."""
        records, token = self._catalogue.listed("snapshot", request)
        response = ListSnapshotsResponse(next_page_token=token)
        for record in records:
            response.snapshots.add().CopyFrom(self._shown(record))
        return response

    async def update(self, request: Any) -> Any:
        """Replaces the fields of a snapshot that the mask names."""
        async with self._catalogue.changing:
            record = self._get(request.snapshot.name)
            paths = request.update_mask.paths
            resource = updated(record.resource, request.snapshot, paths, SNAPSHOT_FIELDS)
            rules.check_snapshot_update(resource)
            _time_ms(resource.expire_time)
            after = record.changed(resource)
            await self._catalogue.put(after)
            return self._shown(after)

    async def delete(self, request: Any) -> Any:
        """Deletes a snapshot."""
        async with self._catalogue.changing:
            await self._catalogue.remove(self._get(request.snapshot))
        return empty_pb2.Empty()

    async def expire(self, now_ms: int) -> None:
        """Deletes the snapshots whose time is over."""
        for record in list(self._catalogue.named("snapshot").values()):
            if record.resource.expire_time.ToMilliseconds() <= now_ms:
                async with self._catalogue.changing:
                    if self._catalogue.by_uid(record.uid) is record:
                        await self._catalogue.remove(record)

    def _get(self, name: str) -> Record:
        read_name(name, Kind.SNAPSHOT)
        record = self._catalogue.find("snapshot", name)
        if record is None:
            raise not_found(name)
        return record

    def _shown(self, record: Record) -> Any:
        resource = Snapshot()
        resource.CopyFrom(record.resource)
        resource.topic = self._topics.shown_name(record)
        return resource

    # --- seek -----------------------------------------------------------------------------------

    async def seek(self, request: Any) -> Any:
        """Moves a subscription, backwards or forwards."""
        target = request.WhichOneof("target")
        if target is None:
            raise invalid("A seek needs a time or a snapshot.")
        async with self._catalogue.changing:
            subscription = self._attached(request.subscription)
            if target == "snapshot":
                sequence = self._sequence_of(request.snapshot, subscription)
            else:
                sequence = await self._sequence_at(_time_ms(request.time), subscription)
                if not self._topic_keeps(subscription):
                    sequence = max(sequence, subscription.facts["first"])
                    if not subscription.resource.retain_acked_messages:
                        floor = await self._floor(subscription)
                        if sequence <= floor:
                            return SeekResponse()  # nothing before it could come again
            await self._move(subscription, sequence)
        return SeekResponse()

    async def _move(self, subscription: Record, sequence: int) -> None:
        generation = subscription.facts.get("generation", 0) + 1
        await self._subscriptions.mark(subscription, generation=generation)
        feed = self._subscriptions.feeds.get(subscription.uid)
        if feed is not None:
            feed.will_move(generation)
        facts = subscription.facts
        await self._node.seek(facts["stored"], facts["receiver"], sequence=sequence)

    def _attached(self, name: str) -> Record:
        """A subscription that has messages."""
        record = self._subscriptions.get(name)
        if record.facts.get("detached"):
            raise Refusal(Code.FAILED_PRECONDITION, f"{name} is detached from its topic.")
        return record

    def _sequence_of(self, name: str, subscription: Record) -> int:
        snapshot = self._get(name)
        if snapshot.facts["topic_uid"] != subscription.facts["topic_uid"]:
            said = f"{name} is of another topic than {subscription.name}."
            raise Refusal(Code.FAILED_PRECONDITION, said)
        return int(snapshot.facts["sequence"])

    def _topic_keeps(self, subscription: Record) -> bool:
        """Does its topic keep messages for those who come later, or come back?"""
        topic = self._topics.of(subscription)
        return topic is not None and topic.resource.HasField("message_retention_duration")

    async def _floor(self, subscription: Record) -> int:
        """The first message that a subscription has not acknowledged."""
        stored, receiver = subscription.facts["stored"], subscription.facts["receiver"]
        async for row in self._node.list_receivers(stored, after=receiver[:-1]):
            if row.name == receiver:
                return row.floor
            if row.name > receiver:
                break
        raise PeerError("no_such_receiver", f"{receiver} of {stored}")

    async def _sequence_at(self, time_ms: int, subscription: Record) -> int:
        """The first message that was published at a time or later.

        The broker tells it of a receiver that it moves there: of one of its own, so that the
        subscription stays where it is until it is known where that is to be.
        """
        stored = subscription.facts["stored"]
        scout = f"{subscription.facts['receiver'][: limits.NAME_BYTES_MAX - 5]}#seek"
        time_s = min(max(time_ms, 0), limits.TIME_MS_MAX) / 1_000
        try:
            await self._node.create_receiver(stored, scout, "#seek")
        except PeerError as error:
            if error.code != "wrong_state":  # a door that was killed has made it
                raise
        try:
            return await self._node.seek(stored, scout, time=time_s)
        finally:
            await self._node.delete_receiver(stored, scout)


def _time_ms(time: Any) -> int:
    """A ``Timestamp`` in milliseconds; refuses what is none."""
    if not (SECONDS_MIN <= time.seconds <= SECONDS_MAX and 0 <= time.nanos < 10**9):
        raise invalid("time must be from the year 1 to the year 9999.")
    return int(time.seconds * 1_000 + time.nanos // 1_000_000)
