"""A topic's configuration (spec section 4), typed and checked.

``TopicSettings`` holds what is in force. What a user sets on one topic is a map of overrides on
the broker's defaults, so that a changed default reaches every topic that did not choose.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from asterism import checks, limits
from asterism.errors import PeerError

DAY_MS: Final = 86_400_000
RECEIPT_TTL_MS_MAX: Final = 7 * DAY_MS  # an outcome is looked for in one place per ten minutes
TIMEOUT_MS_MAX: Final = 366 * DAY_MS
# A hundred years: a time to live is added to a clock, and the sum must stay under TIME_MS_MAX.
TTL_MS_MAX: Final = 36_525 * DAY_MS


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much clients may make; whatever is over a bound that was lowered stays."""

    topics: int = 10_000  # in one store; busy
    receivers: int = 20_000  # durable ones, on one topic; busy
    producers: int = 100_000  # remembered by one topic; the longest silent is forgotten, or busy


DEFAULT_BOUNDS: Final = Bounds()


@dataclass(frozen=True, slots=True)
class RejectNew:
    """Overflow: a topic that holds ``size`` messages refuses the next with ``overflow``."""

    size: int


@dataclass(frozen=True, slots=True)
class DropOld:
    """Overflow: a topic that holds ``size`` messages drops its oldest for the next."""

    size: int


@dataclass(frozen=True, slots=True)
class BackoffMs:
    """The pause before a retry: ``least_ms`` after one failure, doubling up to ``most_ms``."""

    least_ms: int
    most_ms: int

    def pause_ms(self, failures: int) -> int:
        """The pause after the ``failures``-th failure, counted from 1."""
        # The shift is bounded so that a message that failed for years costs no huge integer.
        return min(self.most_ms, self.least_ms << min(failures - 1, 62))


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Every setting of a topic, with the defaults of the spec."""

    expect: str | None = None  # none: processed of durable messages, sent of push and online
    max_receivers: int | None = None  # of durable messages that do not say
    blocking: bool = False
    overflow: RejectNew | DropOld | None = None
    concurrency: int | None = None
    unique: bool = False
    draft_timeout_ms: int = 60_000
    sent_timeout_ms: int = 60_000
    received_timeout_ms: int = 300_000
    max_attempts: int = 1
    max_deliveries: int | None = None
    retry_backoff: BackoffMs | None = None
    dead_letter: str | None = None
    requeue: str = "back"
    default_ttl_ms: int = 7 * DAY_MS
    max_payload: int = 1_048_576
    history: str = "none"
    history_ttl_ms: int = DAY_MS
    receipt_ttl_ms: int = 3_600_000
    dedicated: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or field.name not in _MAY_BE_NONE:
                _CHECKS[field.name](field.name, value)

    def changed(self, overrides: Mapping[str, Any]) -> "TopicSettings":
        """These settings with some replaced; an unknown or bad one is ``bad_request``."""
        if not isinstance(overrides, Mapping):
            raise PeerError("bad_request", "topic settings must be a map")
        self.check_names(overrides)
        return replace(self, **overrides)

    def check_names(self, names: Iterable[object]) -> None:
        """Refuses the name of a setting that there is not."""
        for name in names:
            if name not in _CHECKS:
                raise PeerError("bad_request", f"there is no topic setting {checks.shown(name)}")


def _timeout(name: str, value: object) -> None:
    checks.whole(name, value, 0, TIMEOUT_MS_MAX)


def _deadline(name: str, value: object) -> None:
    # One of 0 would have passed as it began: a delivery would go out again and again.
    checks.whole(name, value, 1, TIMEOUT_MS_MAX)


def _receipt_ttl(name: str, value: object) -> None:
    checks.whole(name, value, 0, RECEIPT_TTL_MS_MAX)


def _count(name: str, value: object) -> None:
    checks.whole(name, value, 1, limits.SEQUENCE_MAX)


def _overflow(name: str, value: object) -> None:
    if type(value) is not RejectNew and type(value) is not DropOld:
        raise PeerError("bad_request", f"{name} must be RejectNew(size), DropOld(size) or None")
    checks.whole(f"{name}.size", value.size, 1, limits.SEQUENCE_MAX)


def _backoff(name: str, value: object) -> None:
    if type(value) is not BackoffMs:
        raise PeerError("bad_request", f"{name} must be BackoffMs(least_ms, most_ms) or None")
    least = checks.whole(f"{name}.least_ms", value.least_ms, 0, TIMEOUT_MS_MAX)
    checks.whole(f"{name}.most_ms", value.most_ms, least, TIMEOUT_MS_MAX)


def _choice(*allowed: str) -> Callable[[str, object], None]:
    def check(name: str, value: object) -> None:
        checks.one_of(name, value, allowed)

    return check


def _flag(name: str, value: object) -> None:
    checks.flag(name, value)


_CHECKS: Final[dict[str, Callable[[str, object], None]]] = {
    "expect": _choice("sent", "received", "processed"),
    "max_receivers": lambda name, value: _void(
        checks.whole(name, value, 1, limits.RECEIVERS_WANTED_MAX)
    ),
    "blocking": _flag,
    "overflow": _overflow,
    "concurrency": _count,
    "unique": _flag,
    "draft_timeout_ms": _timeout,
    "sent_timeout_ms": _deadline,
    "received_timeout_ms": _deadline,
    "max_attempts": _count,
    "max_deliveries": _count,
    "retry_backoff": _backoff,
    "dead_letter": lambda name, value: _void(checks.topic_name(value, name)),
    "requeue": _choice("back", "front"),
    "default_ttl_ms": lambda name, value: _void(checks.whole(name, value, 1, TTL_MS_MAX)),
    "max_payload": lambda name, value: _void(checks.whole(name, value, 0, 512 * 1_048_576)),
    "history": _choice("none", "headers", "full"),
    "history_ttl_ms": _timeout,
    "receipt_ttl_ms": _receipt_ttl,
    "dedicated": _flag,
}
_MAY_BE_NONE: Final = frozenset(
    {
        *("expect", "max_receivers", "overflow", "concurrency", "max_deliveries"),
        *("retry_backoff", "dead_letter"),
    }
)


def _void(_: object) -> None:
    """Drops a value that was only asked for its check."""


def plain_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides as MessagePack can hold them; ``overrides_from_plain`` reads them again."""
    plain = dict(overrides)
    overflow, backoff = plain.get("overflow"), plain.get("retry_backoff")
    if overflow is not None:
        plain["overflow"] = (type(overflow).__name__, overflow.size)
    if backoff is not None:
        plain["retry_backoff"] = (backoff.least_ms, backoff.most_ms)
    return plain


def overrides_from_plain(plain: Mapping[str, Any]) -> dict[str, Any]:
    overrides = dict(plain)
    overflow, backoff = overrides.get("overflow"), overrides.get("retry_backoff")
    if overflow is not None:
        policy, size = overflow
        overrides["overflow"] = (DropOld if policy == DropOld.__name__ else RejectNew)(size)
    if backoff is not None:
        overrides["retry_backoff"] = BackoffMs(*backoff)
    return overrides
