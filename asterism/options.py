"""A topic's settings between what users write and what the broker holds. Pure.

Users write seconds and plain maps, in a configuration and through every door; inside the broker
times are whole milliseconds. Here one is turned into the other, for all of them alike.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Final, Literal, TypedDict

from asterism import checks
from asterism.errors import PeerError, of_wrong_type
from asterism.settings import (
    RECEIPT_TTL_MS_MAX,
    TIMEOUT_MS_MAX,
    TTL_MS_MAX,
    BackoffMs,
    DropOld,
    RejectNew,
    TopicSettings,
)


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pause before a retry: ``min`` seconds after one failure, doubling up to ``max``."""

    min: float
    max: float

    def __post_init__(self) -> None:
        try:
            self.in_ms()
        except PeerError as error:
            raise (TypeError if error.is_about_type else ValueError)(error.detail) from None

    def in_ms(self) -> BackoffMs:
        """The same as the broker holds it."""
        return _backoff_ms(self.min, self.max)


class TopicOptions(TypedDict, total=False):
    """What may be set on a topic, as users write it, with times in seconds: see ``docs/sdk.md``."""

    expect: Literal["sent", "received", "processed"] | None
    max_receivers: int | None
    blocking: bool
    overflow: RejectNew | DropOld | Mapping[str, int | str] | None
    concurrency: int | None
    unique: bool
    draft_timeout: float
    sent_timeout: float
    received_timeout: float
    max_attempts: int
    max_deliveries: int | None
    retry_backoff: Backoff | Mapping[str, float] | None
    dead_letter: str | None
    requeue: Literal["back", "front"]
    default_ttl: float
    max_payload: int
    history: Literal["none", "headers", "full"]
    history_ttl: float
    receipt_ttl: float
    dedicated: bool


# The user's name -> the field, and its least and most in milliseconds.
_SECONDS: Final[dict[str, tuple[str, int, int]]] = {
    "draft_timeout": ("draft_timeout_ms", 0, TIMEOUT_MS_MAX),
    "sent_timeout": ("sent_timeout_ms", 1, TIMEOUT_MS_MAX),
    "received_timeout": ("received_timeout_ms", 1, TIMEOUT_MS_MAX),
    "default_ttl": ("default_ttl_ms", 1, TTL_MS_MAX),
    "history_ttl": ("history_ttl_ms", 0, TIMEOUT_MS_MAX),
    "receipt_ttl": ("receipt_ttl_ms", 0, RECEIPT_TTL_MS_MAX),
}
_USER_NAMES: Final = {field_name: name for name, (field_name, _, _) in _SECONDS.items()}
TOPIC_NAMES: Final = tuple(_USER_NAMES.get(held.name, held.name) for held in fields(TopicSettings))


def topic_overrides(mapping: Mapping[str, object]) -> dict[str, object]:
    """What a user sets on a topic, checked, as overrides for ``TopicSettings.changed``.

    ``None`` sets a setting to none where it may be. ``overflow`` and ``retry_backoff`` are maps,
    or the values that ``asterism`` exports for them.
    """
    if not isinstance(mapping, Mapping):
        raise of_wrong_type("bad_request", "topic settings must be a map")
    overrides: dict[str, object] = {}
    for name, value in mapping.items():
        if name not in TOPIC_NAMES:
            raise PeerError("bad_request", unknown("topic setting", name, TOPIC_NAMES))
        if name in _SECONDS:
            field_name, least_ms, most_ms = _SECONDS[name]
            overrides[field_name] = milliseconds(name, value, least_ms, most_ms)
            continue
        if name == "overflow":
            value = _overflow(value)
        elif name == "retry_backoff":
            value = _backoff(value)
        TopicSettings().changed({name: value})
        overrides[name] = value
    return overrides


def topic_fields(names: object) -> tuple[str, ...]:
    """The fields of ``TopicSettings`` that go by these names among users."""
    fields_named = []
    for name in checks.tuple_of("names of settings", names, len(TOPIC_NAMES), least=0):
        if name not in TOPIC_NAMES:
            raise PeerError("bad_request", unknown("topic setting", name, TOPIC_NAMES))
        assert isinstance(name, str)
        fields_named.append(_SECONDS[name][0] if name in _SECONDS else name)
    return tuple(fields_named)


def names_for_users(field_names: Iterable[str]) -> list[str]:
    """By which names users know these fields of ``TopicSettings``; ``topic_fields`` undoes it."""
    return sorted(_USER_NAMES.get(name, name) for name in field_names)


def topic_settings_as_user(settings: TopicSettings) -> dict[str, object]:
    """Every setting under the user's name and in the user's unit; ``topic_overrides`` undoes it."""
    shown: dict[str, object] = {}
    for held in fields(settings):
        value = getattr(settings, held.name)
        match value:
            case RejectNew(size):
                value = {"size": size, "policy": "reject_new"}
            case DropOld(size):
                value = {"size": size, "policy": "drop_old"}
            case BackoffMs(least_ms, most_ms):
                value = {"min": seconds(least_ms), "max": seconds(most_ms)}
            case int() if held.name in _USER_NAMES:
                value = seconds(value)
        shown[_USER_NAMES.get(held.name, held.name)] = value
    return shown


def _overflow(value: object) -> object:
    if value is None or isinstance(value, RejectNew | DropOld):
        return value
    given = _table("overflow", value, required=("size",), optional=("policy",))
    policy = checks.one_of(
        "overflow.policy", given.get("policy", "reject_new"), ("reject_new", "drop_old")
    )
    return RejectNew(given["size"]) if policy == "reject_new" else DropOld(given["size"])


def _backoff(value: object) -> object:
    if isinstance(value, Backoff):
        return value.in_ms()
    if value is None:
        return value
    given = _table("retry_backoff", value, required=("min", "max"))
    return _backoff_ms(given["min"], given["max"])


def _backoff_ms(least: object, most: object) -> BackoffMs:
    least_ms = milliseconds("retry_backoff.min", least, 0, TIMEOUT_MS_MAX)
    most_ms = milliseconds("retry_backoff.max", most, 0, TIMEOUT_MS_MAX)
    if most_ms < least_ms:
        raise PeerError("bad_request", "retry_backoff.max must not be under retry_backoff.min")
    return BackoffMs(least_ms, most_ms)


def _table(
    name: str, value: object, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    """A map with all of the required names, and none but these."""
    names = required + optional
    if not isinstance(value, Mapping):
        raise of_wrong_type("bad_request", f"{name} must be a map of {' and '.join(names)}")
    for key in value:
        if key not in names:
            raise PeerError(
                "bad_request", f"{name} has {', '.join(names)}; not {checks.shown(key)}"
            )
    for key in required:
        if key not in value:
            raise PeerError("bad_request", f"{name}.{key} must be given")
    return value


def milliseconds(name: str, value: object, least_ms: int, most_ms: int) -> int:
    """A number of seconds in whole milliseconds; what is above nothing stays above nothing."""
    if type(value) is not int and type(value) is not float:
        raise of_wrong_type(
            "bad_request", f"{name} must be a number of seconds, not {checks.shown(value)}"
        )
    # Not a number, and either infinity, are outside every range, so that rounding cannot fail.
    if not least_ms <= value * 1_000 <= most_ms:
        raise PeerError(
            "bad_request",
            f"{name} must be from {seconds(least_ms)} to {seconds(most_ms)} seconds, "
            f"not {checks.shown(value)}",
        )
    return max(1, round(value * 1_000)) if value > 0 else 0


def seconds(milliseconds: int) -> int | float:
    whole, rest = divmod(milliseconds, 1_000)
    return milliseconds / 1_000 if rest else whole


def unknown(what: str, name: object, known: Collection[str]) -> str:
    """Says that there is no such thing, and which one may have been meant."""
    near = get_close_matches(name, known, n=1) if type(name) is str and len(name) < 100 else []
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"there is no {what} {checks.shown(name)}{meant}"
