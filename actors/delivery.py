"""A message and its deliveries, as a topic holds them in memory. Plain data; no decisions.

Only what is near the head of a queue or on its way is here; the rest of a backlog is on disk.
"""

from typing import TYPE_CHECKING, Final

from asterism import limits
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
    """An accepted message. ``payload`` is ``None`` where it is to be read from disk when needed.

    Most fields of most messages keep their default: those are class attributes, and an instance
    sets only what differs. Publishing makes two of these objects a message; slots would be slower.
    """

    flags = 0
    producer: bytes | None = None  # set where a receipt was asked for
    number = 0
    # Log and online messages have one delivery a receiver; the pool has one in all.
    copies: "dict[int, Delivery] | None" = None
    statuses: dict[str, str] | None = None  # online: how the copies that ended fared
    ladder: dict[str, list[object]] | None = None  # online: the same with its times, for history

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
        if kind != POOL_KIND and header.mode is not Mode.PUSH:
            self.copies = {}

    @property
    def large_bytes(self) -> int:
        """The size of a payload that is large and in memory; 0 of any other."""
        size = 0 if self.payload is None else len(self.payload)
        return size if size > limits.WINDOW_RECORD_BYTES_MAX else 0


class Delivery:
    """One message on its way to one receiver; in the pool, to whoever takes it."""

    status = Status.WAITING
    waits = True  # False once it was taken or is over: windows drop it lazily
    placed = False  # a w row holds its place
    holder = 0  # the receiver that had it last
    receiver: "Receiver | None" = None
    endpoint: "Endpoint | None" = None
    page: "Page | None" = None
    returns_credit = True
    counts = True  # of the pool and push: it is in the tally of what is held
    size = 0  # of a large payload, as long as the delivery is out
    sent_ms = 0
    received_ms = 0
    spent = 0  # of its attempts, those before it was renewed last

    def __init__(self, message: Message, rank: int, attempts: int = 0) -> None:
        self.message = message
        self.sequence = message.sequence
        self.rank = rank
        self.attempts = attempts

    @property
    def tries(self) -> int:
        """How often it went out since it was renewed: what the bounds of attempts count."""
        return self.attempts - self.spent

    def ends_plainly(self) -> bool:
        """Does its end concern nobody but its holder? Then see ``Endings.end_plainly``."""
        message = self.message
        return (
            message.kind == POOL_KIND
            and message.producer is None
            and message.header.ordering_key is None
            and not self.placed
            and self.returns_credit
            and not self.size
            and self.endpoint is not None
            and self.attempts == 1
        )

    def is_plain(self, now_ms: int) -> bool:
        """Of the pool, new, in time, without an ordering key: it may go to whoever has credit."""
        message = self.message
        return (
            self.attempts == 0
            and message.header.ordering_key is None
            and message.expires_ms > now_ms
        )
