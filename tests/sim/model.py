"""What the auditor remembers: plain data about messages, receivers and what is out.

None of it is shared with the broker; even the matcher of interests is another, naive one.
"""

from dataclasses import dataclass, field
from enum import Enum
from functools import cache

from asterism.message import Header, Mode


class Violation(AssertionError):  # noqa: N818 (it is the broker that erred)
    """The broker broke a promise."""


class Kind(Enum):
    """Where a message belongs, by what its publisher asked for."""

    POOL = "pool"  # durable, one receiver
    LOG = "log"  # any other durable
    PUSH = "push"
    ONLINE = "online"

    @property
    def single(self) -> bool:
        """One delivery in all, whoever takes it."""
        return self in (Kind.POOL, Kind.PUSH)

    @property
    def in_memory(self) -> bool:
        return self in (Kind.PUSH, Kind.ONLINE)


def kind_of(header: Header) -> Kind:
    if header.mode is Mode.PUSH:
        return Kind.PUSH
    if header.mode is Mode.ONLINE:
        return Kind.ONLINE
    return Kind.POOL if header.max_receivers == 1 else Kind.LOG


class State(Enum):
    """A message's."""

    DRAFT = "draft"
    HELD = "held"
    PARKED = "parked"  # of the pool
    KEPT = "kept"  # expired, and there for its parked deliveries alone
    ENDED = "ended"


class Standing(Enum):
    """How a message stands with a receiver, or in the pool with whoever takes it."""

    OWED = "owed"
    OUT = "out"
    DONE = "done"
    PARKED = "parked"
    FAILED = "failed"  # for good, and not parked: dead-lettered, or a copy that was online
    OVER = "over"  # not owed any more: moved past, abandoned, withdrawn


@dataclass(eq=False)
class Endpoint:
    """An endpoint as the broker should know it."""

    node: bytes
    number: int
    receiver: "Receiver"
    interests: tuple[str, ...]
    credit: int = 0
    owed: int = 0  # credit that was taken back while deliveries had it
    pull: int | None = None  # the request of the pull that waits
    pull_left: int = 0
    pull_taken: int = 0
    pull_deadline_ms: int = 0
    last_first: dict[int, int] = field(default_factory=dict)  # priority -> order of the last first


@dataclass(eq=False)
class Receiver:
    """A receiver; one that is deleted and made again is another."""

    name: str
    durable: bool
    born: int  # stamp
    interests: tuple[str, ...] = ()
    history: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    endpoints: dict[tuple[bytes, int], Endpoint] = field(default_factory=dict)
    # Those that may come back to one that lives with its connections: what they want, until when.
    away: dict[tuple[bytes, int], tuple[tuple[str, ...], int]] = field(default_factory=dict)
    held: "dict[int, Out]" = field(default_factory=dict)
    sent_timeout_ms: int | None = None
    received_timeout_ms: int | None = None
    last_first: dict[int, int] = field(default_factory=dict)  # as an endpoint's, of earlier steps
    first_now: dict[int, int] = field(default_factory=dict)  # and of the present one
    step: int = 0
    moved_to: int = 0  # sequences below it were passed over by a seek
    exists: bool = True

    def wants(self, subjects: tuple[str, ...]) -> bool:
        return wants_any(self.interests, subjects)

    def wanted_since(self, stamp: int, subjects: tuple[str, ...]) -> list[bool]:
        """Whether it wanted these, for each set of interests in force since a stamp."""
        answers = []
        for index, (begun, interests) in enumerate(self.history):
            last = index + 1 == len(self.history)
            if last or self.history[index + 1][0] > max(stamp, begun):
                answers.append(wants_any(interests, subjects))
        return answers

    def forget_order(self) -> None:
        """What it is owed has changed: older ones may come now."""
        self.last_first.clear()
        self.first_now.clear()
        for endpoint in self.endpoints.values():
            endpoint.last_first.clear()

    @property
    def credit(self) -> int:
        return sum(endpoint.credit for endpoint in self.endpoints.values())


@dataclass(eq=False)
class Fate:
    """A message's standing with one receiver, and how it came to it."""

    standing: Standing = Standing.OWED
    attempts: int = 0
    spent: int = 0  # of them, those before it was renewed last
    holder: Receiver | None = None  # who had it last
    renewed: bool = False
    paused_until_ms: int = 0
    pause_may_end: bool = False  # a pause kept in memory, and the worker crashed since
    moved: bool = False  # a seek brought it back
    unsure: bool = False  # it may come, or not: its message was revived after it was over here
    has_place: bool = False  # one of ``max_receivers``, by how it had ended before that
    record: str = ""  # how it last ended with the receiver; a seek does not change that

    @property
    def tries(self) -> int:
        """How often it went out since it was renewed."""
        return self.attempts - self.spent


@dataclass(eq=False)
class Message:
    """An accepted message, or a draft."""

    sequence: int
    id: bytes
    header: Header
    payload: bytes
    accepted_ms: int
    expires_ms: int
    kind: Kind
    stamp: int
    order: int  # where it came among those accepted
    state: State = State.HELD
    producer: bytes | None = None
    number: int = 0
    asked: bool = False  # a verdict is owed
    delayed_until_ms: int = 0
    sent_in_epoch: int = 0  # a blocking topic's, when it last went out
    parked_by: Receiver | None = None
    shared: Fate = field(default_factory=Fate)  # pool and push
    fates: dict[Receiver, Fate] = field(default_factory=dict)  # log and online
    renewals: int = 0
    revived: int = 0  # stamp: it had expired, and was renewed for whoever has not had it

    def fate(self, receiver: Receiver) -> Fate:
        if self.kind.single:
            return self.shared
        return self.fates.setdefault(receiver, Fate())

    def outs(self) -> list["tuple[Receiver, Out]"]:
        fates = [self.shared] if self.kind.single else list(self.fates.values())
        holders = [fate.holder for fate in fates if fate.standing is Standing.OUT]
        return [(holder, holder.held[self.sequence]) for holder in holders if holder is not None]

    def count(self, *standings: Standing) -> int:
        return sum(fate.standing in standings for fate in self.fates.values())

    def count_ended(self, record: str, *standings: Standing) -> int:
        """How many have it on these standings, or had when they were moved back."""
        return sum(
            fate.standing in standings or (fate.has_place and fate.record == record)
            for fate in self.fates.values()
        )


@dataclass(eq=False)
class Out:
    """A delivery that is out."""

    message: Message
    receiver: Receiver
    endpoint: Endpoint | None
    status: str
    started_ms: int
    deadline_ms: int
    step: int = 0  # in which it went out
    extended: bool = False
    returns_credit: bool = True
    absent: tuple[bytes, int] | None = None  # kept for this node and endpoint, which is away


@dataclass(eq=False)
class DeadLetter:
    """A message on its way to another topic."""

    target: str
    message: Message
    receiver: Receiver
    reason: str


# --- the naive matcher --------------------------------------------------------------------------


def wants_any(interests: tuple[str, ...], subjects: tuple[str, ...]) -> bool:
    return any(wants(interest, subject) for interest in interests for subject in subjects)


@cache
def wants(interest: str, subject: str) -> bool:
    """Whether an interest matches a subject, straight from the definition."""
    return _match([s for s in interest.split("/") if s], [s for s in subject.split("/") if s])


def _match(glob: list[str], segments: list[str]) -> bool:
    if not glob:
        return not segments
    if not segments:
        return False
    if glob[0] == "**":
        return any(_match(glob[1:], segments[taken:]) for taken in range(1, len(segments) + 1))
    return glob[0] in ("*", segments[0]) and _match(glob[1:], segments[1:])
