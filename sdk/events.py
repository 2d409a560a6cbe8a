"""What a session tells its client: one small class for each thing that can have happened. Pure."""

from typing import Any, NamedTuple

from asterism.errors import PeerError
from asterism.sdk.receiving import Subscription
from asterism.sdk.tickets import Ticket


class Welcomed(NamedTuple):
    """The broker knows this session; whatever was under way is being sent again."""

    broker: str
    workers: int


class LaneWanted(NamedTuple):
    """A lane to this worker may be made: connect there, and say ``open_lane``."""

    worker: int
    path: str


class LaneOpened(NamedTuple):
    """What comes next from this worker comes on its lane: read it from now on."""

    worker: int


class LaneOver(NamedTuple):
    """A lane is of no use any more: close it."""

    worker: int


class Lost(NamedTuple):
    """The connection is of no use any more: connect anew, with a new socket."""

    reason: str


class Rejected(NamedTuple):
    """The broker will not have this client; connecting again would not help."""

    error: PeerError


class Ended(NamedTuple):
    """The broker has confirmed the goodbye."""


class Noted(NamedTuple):
    """Something that a log should have."""

    text: str


class Answered(NamedTuple):
    """Every message of a ticket is accepted or refused."""

    ticket: Ticket


class Resolved(NamedTuple):
    """A ticket has one outcome more."""

    ticket: Ticket


class Overheard(NamedTuple):
    """A message of a producer that this client has no ticket of is resolved: ask for it."""

    producer: bytes


class Replied(NamedTuple):
    """A request was answered."""

    request: int
    body: Any


class Refused(NamedTuple):
    """A request was refused."""

    request: int
    error: PeerError


class Reported(NamedTuple):
    """A report was answered; ``refused`` has a code for each delivery it does not count for."""

    token: object
    refused: dict[int, str]
    error: PeerError | None


class Subscribed(NamedTuple):
    """A subscription is on its topic, for the first time or again."""

    subscription: Subscription


class Delivered(NamedTuple):
    """Deliveries are in a subscription's buffer."""

    subscription: Subscription


class Gone(NamedTuple):
    """A subscription is off its topic for good."""

    subscription: Subscription
    error: PeerError


Event = (
    Welcomed
    | LaneWanted
    | LaneOpened
    | LaneOver
    | Lost
    | Rejected
    | Ended
    | Noted
    | Answered
    | Resolved
    | Overheard
    | Replied
    | Refused
    | Reported
    | Subscribed
    | Delivered
    | Gone
)
