"""What there is: topics, subscriptions, snapshots and schemas, kept in a topic of the broker.

Each resource is an entry of the topic ``asterism.pubsub``: the last one counts, and those before it
are abandoned. The door reads them all when it starts and keeps them in memory, so that it has no
file and may be killed at any moment. A change is in memory once it is on disk.

    subject   KIND/NAME, such as topic/projects/p/topics/t
    payload   MessagePack: [version, uid, the resource as protobuf, facts]

``uid`` tells two resources apart that had one name, one after the other. ``facts`` is what the door
knows of a resource beyond what its clients see.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgpack
from google.pubsub_v1.types import pubsub as types
from google.pubsub_v1.types import schema as schemas

from asterism.errors import PeerError
from asterism.gateways.pubsub.names import read_project
from asterism.gateways.pubsub.pages import page_of
from asterism.options import TopicOptions
from asterism.packing import pack_value
from asterism.sdk.aio import Delivery, Node, Receipt
from asterism.settings import TTL_MS_MAX

TOPIC: Final = "asterism.pubsub"
VERSION: Final = 1
UID_BYTES: Final = 8
ENTRY_BYTES_MAX: Final = 8 * 1_048_576  # a schema has 20 revisions of 300 KiB
START: Final = "start"  # the subject of the entry behind all those that a door reads first
KINDS: Final[dict[str, Any]] = {
    "topic": types.Topic.pb(),
    "subscription": types.Subscription.pb(),
    "snapshot": types.Snapshot.pb(),
    "schema": schemas.Schema.pb(),
}
log = logging.getLogger("asterism.pubsub")


def settings_of(ttl_ms: int, max_payload: int) -> TopicOptions:
    """The settings of a topic of this door, whatever the broker's defaults are for others: every
    subscription gets every message, until it has acknowledged it."""
    return {
        "expect": "processed",
        "max_receivers": None,
        "blocking": False,
        "unique": False,
        "concurrency": None,
        "overflow": None,
        "max_deliveries": None,
        "dead_letter": None,
        "default_ttl": ttl_ms / 1_000,
        "max_payload": max_payload,
    }


class Record:
    """One resource: as its clients see it, and what the door knows of it besides."""

    __slots__ = ("facts", "kind", "name", "resource", "sequences", "uid")

    def __init__(
        self,
        kind: str,
        name: str,
        resource: Any,
        facts: Mapping[str, Any] | None = None,
        uid: str = "",
    ) -> None:
        self.kind = kind
        self.name = name
        self.resource = resource
        self.facts = dict(facts or {})
        self.uid = uid or secrets.token_hex(UID_BYTES)
        self.sequences: list[int] = []  # of its entries; all but the last are to be abandoned

    def changed(self, resource: Any, **facts: Any) -> "Record":
        """The same resource as it is to be; ``Catalogue.put`` makes it so."""
        after = Record(self.kind, self.name, resource, {**self.facts, **facts}, self.uid)
        after.sequences = self.sequences
        return after

    @property
    def is_deleted(self) -> bool:
        """Is it there only for what still depends on it? Its name is free again."""
        return bool(self.facts.get("deleted"))

    def encoded(self) -> bytes:
        return pack_value([VERSION, self.uid, self.resource.SerializeToString(), self.facts])

    @classmethod
    def decoded(cls, delivery: Delivery) -> "Record | None":
        """The resource of an entry, if it is one."""
        kind, _, name = delivery.subject.partition("/")
        if kind not in KINDS:
            return None
        version, uid, resource, facts = msgpack.unpackb(delivery.payload)
        if version != VERSION:
            raise PeerError("unsupported_version", f"an entry of {TOPIC} has version {version}")
        return cls(kind, name, KINDS[kind].FromString(resource), facts, uid)


class Catalogue:
    """All resources, and the one place where they change."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._records: dict[str, Record] = {}  # by uid
        self._named: dict[str, dict[str, Record]] = {kind: {} for kind in KINDS}
        self._undoing: set[asyncio.Task[None]] = set()
        # Held while resources change: what one change has looked at, no other changes meanwhile.
        self.changing = asyncio.Lock()

    # --- looking ----------------------------------------------------------------------------

    def find(self, kind: str, name: str) -> Record | None:
        """The resource of a kind that has this name."""
        return self._named[kind].get(name)

    def named(self, kind: str) -> Mapping[str, Record]:
        """All resources of a kind by their names."""
        return self._named[kind]

    def listed(self, kind: str, request: Any) -> tuple[list[Record], str]:
        """The page that a request asks for of a kind in its project, and the token of the next."""
        prefix = f"projects/{read_project(request.project)}/"
        named = self._named[kind]
        page = page_of(
            (name for name in named if name.startswith(prefix)),
            request.page_size,
            request.page_token,
            lambda name: int(named[name].resource.ByteSize()),
        )
        return [named[name] for name in page.names], page.next_page_token

    def by_uid(self, uid: str) -> Record | None:
        return self._records.get(uid)

    def deleted(self) -> list[Record]:
        """Those that are there only for what still depends on them."""
        return [record for record in self._records.values() if record.is_deleted]

    # --- changing ---------------------------------------------------------------------------

    async def put(self, record: Record) -> None:
        """Writes a resource, new or changed; it is on disk when this returns."""
        receipt = await self._node.send(
            TOPIC,
            record.encoded(),
            subject=f"{record.kind}/{record.name}",
            expect="processed",
            max_receivers="all",
            receipt=False,
        )
        try:
            await receipt.accepted()
        except TimeoutError:
            # The client is told that it has failed: if it is accepted all the same, it is undone.
            undoing = asyncio.ensure_future(self._undo(receipt))
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            raise
        self._keep(record, receipt.sequence)
        await self._abandon(record, 1)

    async def _undo(self, receipt: Receipt) -> None:
        try:
            await receipt.accepted(None)
            await self._drop(receipt.sequence)
        except (PeerError, ConnectionError) as error:
            log.debug("an entry of %s is not undone: %s", TOPIC, error)

    async def remove(self, record: Record) -> None:
        """Forgets a resource, on disk too when this returns."""
        await self._abandon(record, 0)
        if record.sequences:
            raise PeerError("busy", f"{record.name} could not be removed")
        self._forget(record)

    def _keep(self, record: Record, sequence: int) -> None:
        record.sequences.append(sequence)
        self._records[record.uid] = record
        named = self._named[record.kind]
        if not record.is_deleted:
            named[record.name] = record
        elif (other := named.get(record.name)) is not None and other.uid == record.uid:
            del named[record.name]

    def _forget(self, record: Record) -> None:
        self._records.pop(record.uid, None)
        named = self._named[record.kind]
        if (other := named.get(record.name)) is not None and other.uid == record.uid:
            del named[record.name]

    async def _abandon(self, record: Record, kept: int) -> None:
        """Abandons the entries of a resource, but for so many of the last."""
        # The last at last: as long as one is left, those before it do not count.
        for sequence in record.sequences[: len(record.sequences) - kept]:
            if not await self._drop(sequence):
                return
            record.sequences.remove(sequence)

    async def _drop(self, sequence: int) -> bool:
        try:
            await self._node.abandon(TOPIC, sequence)
        except PeerError as error:
            if error.code != "no_such_message":
                log.warning("an entry of %s is abandoned later: %s", TOPIC, error)
                return False
        return True

    # --- reading ----------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads every entry, when the door starts."""
        settings = settings_of(TTL_MS_MAX, ENTRY_BYTES_MAX)
        await self._node.create_topic(TOPIC, exist_ok=True, **settings)
        inbox = await self._node.subscribe(TOPIC, auto_ack=True)
        receipt = await self._node.publish(
            TOPIC, b"", subject=START, expect="processed", max_receivers="all", receipt=False
        )
        left_over = []
        async for delivery in inbox:
            record = Record.decoded(delivery)
            if record is None:
                left_over.append(delivery.sequence)
                if delivery.sequence == receipt.sequence:
                    break
                continue
            before = self._records.get(record.uid)
            if before is not None:
                record.sequences = before.sequences
            self._keep(record, delivery.sequence)
        await inbox.close()
        for sequence in left_over:
            await self._drop(sequence)
        for record in list(self._records.values()):
            await self._abandon(record, 1)
        counts = {kind: len(named) for kind, named in self._named.items()}
        log.info("has %s", ", ".join(f"{count} of kind {kind}" for kind, count in counts.items()))
