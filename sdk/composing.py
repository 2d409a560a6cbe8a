"""What a publisher says of a message, made into the bytes of its header. Pure.

Ids are 16 bytes in the layout of UUIDv7, so that they sort by time:

    time in ms:48  version 7:4  chance:12  variant 10:2  counter:62
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypedDict, Unpack

from asterism import checks, limits
from asterism.errors import PeerError, of_wrong_type
from asterism.message import ALL_RECEIVERS, EXPECTED, NEVER_MS, Header, Mode
from asterism.options import milliseconds
from asterism.sdk.arguments import wrong
from asterism.settings import TIMEOUT_MS_MAX, TTL_MS_MAX

MODES: Final = {mode.name.lower(): mode for mode in Mode}
ALL: Final = "all"  # max_receivers of a message without limit, on a topic that sets one
HEADERS_KEPT_MAX: Final = 1_024
_COUNTER_MASK: Final = 2**62 - 1


class Wishes(TypedDict, total=False):
    """What may be said of a message; ``docs/sdk.md`` has the defaults."""

    subject: str
    subjects: Iterable[str]
    mode: str
    expect: str | None
    attributes: dict[str, str] | None
    max_receivers: int | Literal["all"] | None
    ttl: float | None
    expires_at: float | datetime | str | None
    priority: int | None
    deliver_at: float | datetime | None
    ordering_key: str | None
    receipt: bool | None


class Ids:
    """Makes the ids of messages: in order, and never the same twice."""

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        seed = int.from_bytes(random_bytes(10), "big")
        self._chance = seed & 0xFFF
        # Half of the counter's range is left, so that it does not come round.
        self._counter = (seed >> 12) & (_COUNTER_MASK >> 1)
        self._time_ms = 0

    def take_one(self, now_ms: int) -> bytes:
        """The next id."""
        if now_ms > self._time_ms:
            self._time_ms = now_ms
        high = self._time_ms << 16 | 0x7000 | self._chance
        low = 1 << 63 | self._counter + 1
        self._counter = (self._counter + 1) & _COUNTER_MASK
        return (high << 64 | low).to_bytes(16, "big")

    def take(self, count: int, now_ms: int) -> list[bytes]:
        """So many ids, rising; a clock that was set back does not make them fall."""
        self._time_ms = time_ms = max(self._time_ms, now_ms)
        high = (time_ms << 16 | 0x7000 | self._chance).to_bytes(8, "big")
        first = 1 << 63 | self._counter + 1
        self._counter = (self._counter + count) & _COUNTER_MASK
        return [high + low.to_bytes(8, "big") for low in range(first, first + count)]


class Composer:
    """Makes headers; those that many messages share are made once."""

    def __init__(self) -> None:
        self._kept: dict[object, Header] = {}

    def header(self, topic: str, now_ms: int, wishes: Wishes) -> Header:
        """The header of a message on this topic; one that is wrong is a ``TypeError`` or so."""
        key: object = None
        if "ttl" not in wishes and "attributes" not in wishes and type(topic) is str:
            try:
                key = (topic, *wishes.items())
                kept = self._kept.get(key)
            except TypeError:  # a list of subjects, say
                key = kept = None
            if kept is not None:
                return kept
        try:
            header = make_header(checks.topic_name(topic), now_ms, **wishes)
        except PeerError as refusal:
            raise wrong(refusal) from None
        if key is not None:
            if len(self._kept) >= HEADERS_KEPT_MAX:
                self._kept.clear()
            self._kept[key] = header
        return header


def make_header(topic: str, now_ms: int, **wishes: Unpack[Wishes]) -> Header:
    """A header of what the publisher wishes and, for the rest, the defaults."""
    given: dict[str, Any] = dict(wishes)
    unknown = given.keys() - Wishes.__annotations__.keys()
    if unknown:
        raise TypeError(f"there is no {min(unknown)!r} to say of a message")
    mode = MODES[checks.one_of("mode", given.get("mode", "durable"), MODES)]
    said, max_receivers = given.get("expect"), given.get("max_receivers")
    expect = None if said is None else EXPECTED[checks.one_of("expect", said, EXPECTED)]
    receipt = given.get("receipt")
    if receipt is None:
        # Who says what counts as done, or how often, wants to know; others ask for it.
        receipt = said not in (None, "sent") or max_receivers not in (None, ALL)
    deliver_at = given.get("deliver_at")
    return Header(
        mode,
        expect,
        _subjects(topic, given),
        _attributes(given.get("attributes")),
        _receivers_wanted(max_receivers),
        _expiry_ms(given, now_ms),
        given.get("priority"),
        None if deliver_at is None else moment_ms("deliver_at", deliver_at),
        given.get("ordering_key"),
        receipt,
    )


def _subjects(topic: str, given: dict[str, Any]) -> tuple[str, ...]:
    subject, subjects = given.get("subject"), given.get("subjects")
    if subject is not None and subjects is not None:
        raise PeerError("bad_subject", "give subject or subjects, not both")
    if subjects is None:
        return (topic if subject is None else subject,)
    if isinstance(subjects, str):
        raise of_wrong_type("bad_subject", "subjects must be a list; for one there is subject")
    if not isinstance(subjects, Iterable):
        raise of_wrong_type("bad_subject", f"subjects must be a list, not {checks.shown(subjects)}")
    return tuple(subjects)


def _attributes(given: object) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise of_wrong_type("bad_request", f"attributes must be a map, not {checks.shown(given)}")
    return dict(given)


def _receivers_wanted(value: object) -> int | None:
    if value is None or value == ALL:
        return None if value is None else ALL_RECEIVERS
    if type(value) is str:
        raise PeerError("bad_request", f"max_receivers is a number or 'all', not {value!r}")
    return checks.whole("max_receivers", value, 1, limits.RECEIVERS_WANTED_MAX)


def _expiry_ms(given: dict[str, Any], now_ms: int) -> int | None:
    ttl, expires_at = given.get("ttl"), given.get("expires_at")
    if ttl is not None and expires_at is not None:
        raise PeerError("bad_request", "give ttl or expires_at, not both")
    if ttl is not None:
        return now_ms + milliseconds("ttl", ttl, 0, TTL_MS_MAX)
    if expires_at is None:
        return None
    return NEVER_MS if expires_at == "never" else moment_ms("expires_at", expires_at)


def moment_ms(name: str, moment: object) -> int:
    """A point in time, in milliseconds; users give seconds since 1970, or a datetime."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise PeerError("bad_request", f"{name} must say its time zone")
        moment = moment.timestamp()
    return milliseconds(name, moment, 0, limits.TIME_MS_MAX)


def timeout_ms(name: str, value: float | None) -> int | None:
    """A timeout of a receiver, from seconds."""
    return None if value is None else milliseconds(name, value, 1, TIMEOUT_MS_MAX)
