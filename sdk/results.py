"""What a broker answers, as users see it: frozen values with seconds and times. Pure.

Each is read from the map that the broker sends (``docs/protocol.md``). A broker of another version
may say more or less: what is not known here is left out, what is missing is zero, empty or none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

Said = Mapping[str, Any]


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1_000


def _moment(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC)


@dataclass(frozen=True, slots=True)
class ReceiverLag:
    """What a receiver has still to do."""

    lag: int  # so many messages
    out: int  # those of them that are out
    oldest: float | None  # how old the oldest of them is, in seconds
    counted: bool  # False: the numbers are near

    @classmethod
    def from_wire(cls, said: Said) -> Self:
        return cls(
            lag=said.get("lag", 0),
            out=said.get("out", 0),
            oldest=_seconds(said.get("oldest_ms")),
            counted=said.get("counted", False),
        )


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic: its settings, in seconds, and what it holds. Times are in seconds."""

    name: str
    settings: dict[str, Any]  # every one in force; ``create_topic(name, **settings)`` takes them
    overrides: tuple[str, ...]  # the names of those that the topic has of its own
    held: int  # messages that wait or are in flight
    drafting: int
    waiting: int
    sent: int  # deliveries that are out and not received yet
    received: int  # deliveries that are out and received
    parked: int
    completed: int  # durable messages for one receiver that were done, since it was cleared
    receivers: int
    endpoints: int
    next_sequence: int
    oldest_waiting: float | None  # for how long the oldest message has waited
    totals: dict[str, int]  # since the worker started
    rates: dict[str, float]  # the same a second, over the last minute
    kept: int  # of those held, what every receiver who is interested has done
    counted: bool  # False: ``kept`` is being counted
    lags: dict[str, ReceiverLag]  # of its receivers, by name; the largest, where they are many

    @classmethod
    def from_wire(cls, said: Said) -> Self:
        return cls(
            name=said.get("topic", ""),
            settings=dict(said.get("settings") or {}),
            overrides=tuple(said.get("overrides") or ()),
            **{name: said.get(name, 0) for name in _TOPIC_COUNTS},
            oldest_waiting=_seconds(said.get("oldest_waiting_ms")),
            totals=dict(said.get("totals") or {}),
            rates=dict(said.get("rates") or {}),
            counted=said.get("counted", False),
            lags={
                name: ReceiverLag.from_wire(lag) for name, lag in (said.get("lags") or {}).items()
            },
        )


_TOPIC_COUNTS: Final = (
    *("held", "drafting", "waiting", "sent", "received", "parked", "completed"),
    *("receivers", "endpoints", "next_sequence", "kept"),
)


@dataclass(frozen=True, slots=True)
class ReceiverInfo:
    """A receiver of a topic. Times are in seconds."""

    name: str
    durable: bool  # it outlives its connections
    online: bool
    endpoints: int
    interests: tuple[str, ...]
    credit: int  # unused, of all its endpoints
    in_flight: int  # deliveries that it holds
    parked: int
    floor: int  # messages for several receivers before this sequence are behind it
    sent_timeout: float
    received_timeout: float
    lag: int | None = None  # messages that it has still to do; none where the broker does not say
    out: int | None = None  # those of them that are out
    oldest: float | None = None  # how old the oldest of them is
    counted: bool | None = None  # False: these numbers are near

    @classmethod
    def from_wire(cls, said: Said) -> Self:
        return cls(
            name=said.get("name", ""),
            durable=said.get("durable", False),
            online=said.get("online", False),
            endpoints=said.get("endpoints", 0),
            interests=tuple(said.get("interests") or ()),
            credit=said.get("credit", 0),
            in_flight=said.get("in_flight", 0),
            parked=said.get("parked", 0),
            floor=said.get("floor", 0),
            sent_timeout=said.get("sent_timeout_ms", 0) / 1_000,
            received_timeout=said.get("received_timeout_ms", 0) / 1_000,
            lag=said.get("lag"),
            out=said.get("out"),
            oldest=_seconds(said.get("oldest_ms")),
            counted=said.get("counted"),
        )


@dataclass(frozen=True, slots=True)
class ParkedDelivery:
    """A delivery that has failed for good and waits for somebody to renew or abandon it."""

    position: int  # its place in the list
    sequence: int
    receiver: str
    reason: str
    attempts: int
    failed_at: datetime

    @classmethod
    def from_wire(cls, said: Said) -> Self:
        return cls(
            position=said.get("position", 0),
            sequence=said.get("sequence", 0),
            receiver=said.get("receiver", ""),
            reason=said.get("reason", ""),
            attempts=said.get("attempts", 0),
            failed_at=_moment(said.get("failed_ms", 0)),
        )


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as its topic holds it."""

    sequence: int
    id: bytes
    status: str  # waiting, sent, received or failed
    payload: bytes
    attributes: dict[str, str]
    priority: int | None

    @classmethod
    def from_wire(cls, sequence: int, said: Said) -> Self:
        return cls(
            sequence=sequence,
            id=said.get("id", b""),
            status=said.get("status", ""),
            payload=said.get("payload", b""),
            attributes=dict(said.get("attributes") or {}),
            priority=said.get("priority"),
        )


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many messages of a work queue are in each state."""

    drafting: int
    waiting: int
    ordered: int
    active: int
    completed: int  # until the topic is cleared
    failed: int

    @classmethod
    def from_wire(cls, said: Said) -> Self:
        names = ("drafting", "waiting", "ordered", "active", "completed", "failed")
        return cls(*(said.get(name, 0) for name in names))


@dataclass(frozen=True, slots=True)
class DiskStatus:
    """The disk of a worker."""

    free_bytes: int
    min_free_bytes: int  # with less than this, publishing is refused
    publishing_held: bool

    @classmethod
    def from_wire(cls, said: Said) -> Self:
        return cls(
            said.get("free_bytes", 0),
            said.get("min_free_bytes", 0),
            said.get("publishing_held", False),
        )


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What a process of the broker says of itself."""

    name: str
    pid: int
    uptime: float  # seconds
    memory_bytes: int
    disk: DiskStatus | None = None  # of a worker
    details: dict[str, Any] = field(default_factory=dict, repr=False)  # all else, as it says it

    @classmethod
    def from_wire(cls, said: Said) -> Self:
        known = ("process", "pid", "uptime_ms", "memory_bytes", "disk")
        disk = said.get("disk")
        return cls(
            name=said.get("process", ""),
            pid=said.get("pid", 0),
            uptime=said.get("uptime_ms", 0) / 1_000,
            memory_bytes=said.get("memory_bytes", 0),
            disk=None if disk is None else DiskStatus.from_wire(disk),
            details={name: value for name, value in said.items() if name not in known},
        )


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The processes of a broker; ``None`` for one that does not answer in time."""

    frontend: ProcessStatus | None
    interests: ProcessStatus | None
    workers: tuple[ProcessStatus | None, ...]

    @classmethod
    def from_wire(cls, said: Said) -> Self:
        return cls(
            _process(said.get("frontend")),
            _process(said.get("interests")),
            tuple(map(_process, said.get("workers") or ())),
        )


def _process(said: Said | None) -> ProcessStatus | None:
    return None if said is None else ProcessStatus.from_wire(said)
