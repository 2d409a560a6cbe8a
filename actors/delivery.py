"""A message and its deliveries, as a topic holds them in memory. Plain data; no decisions.

Only what is near the head of a queue or on its way is here; the rest of a backlog is on disk.
"""

from typing import TYPE_CHECKING, Final

from asterism.message import Header, Mode, Status

if TYPE_CHECKING:
    from asterism.actors.leases import Page
    from asterism.actors.receivers import Endpoint, Receiver

# Where a message is kept, and so who is its audience.
POOL_KIND: Final = 0  # durable, max_receivers = 1: whoever takes it first
LOG_KIND: Final = 1  # any other durable: a copy to every interested receiver
MEMORY_KIND: Final = 2  # push and online


def kind_of(header: Header) -> int:
    if header.mode is not Mode.DURABLE:
        return MEMORY_KIND
    return POOL_KIND if header.max_receivers == 1 else LOG_KIND


class Message:
    """An accepted message. ``payload`` is ``None`` where it is to be read from disk when needed."""

    __slots__ = ("accepted_ms", "copies", "expires_ms", "flags", "header", "id", "kind", "number",
                 "payload", "producer", "sequence", "statuses")  # fmt: skip

    def __init__(
        self,
        sequence: int,
        message_id: bytes,
        header: Header,
        payload: bytes | None,
        accepted_ms: int,
        expires_ms: int,
        kind: int,
    ) -> None:
        self.sequence = sequence
        self.id = message_id
        self.header = header
        self.payload = payload
        self.accepted_ms = accepted_ms
        self.expires_ms = expires_ms
        self.kind = kind
        self.flags = 0
        self.producer: bytes | None = None  # set where a receipt was asked for
        self.number = 0
        # Log and online messages have one delivery a receiver; the pool has one in all.
        single = kind == POOL_KIND or header.mode is Mode.PUSH
        self.copies: dict[int, Delivery] | None = None if single else {}
        self.statuses: dict[str, str] | None = None  # online: how the copies that ended fared


class Delivery:
    """One message on its way to one receiver; in the pool, to whoever takes it."""

    __slots__ = ("attempts", "endpoint", "holder", "message", "page", "placed", "rank", "receiver",
                 "received_ms", "returns_credit", "sent_ms", "sequence", "status", "waits")  # fmt: skip

    def __init__(self, message: Message, rank: int, attempts: int = 0) -> None:
        self.message = message
        self.sequence = message.sequence
        self.rank = rank
        self.attempts = attempts
        self.status = Status.WAITING
        self.waits = True  # False once it was taken or is over: windows drop it lazily
        self.placed = False  # a w row holds its place
        self.holder = 0  # the receiver that had it last
        self.receiver: Receiver | None = None
        self.endpoint: Endpoint | None = None
        self.page: Page | None = None
        self.returns_credit = True
        self.sent_ms = 0
        self.received_ms = 0
