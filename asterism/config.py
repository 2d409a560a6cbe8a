"""The broker's configuration: one typed value, from a TOML file and the environment.

The names here are the names users see (``docs/configuration.md``): times in seconds, sizes in
bytes. Inside the broker times are whole milliseconds, so this is also where a topic's settings are
turned from one form into the other, for every door alike. Whatever is wrong with a configuration
is a ``ConfigError`` that names the key and where it was set; nothing is ignored in silence.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from asterism import checks
from asterism.errors import PeerError
from asterism.settings import (
    RECEIPT_TTL_MS_MAX,
    TIMEOUT_MS_MAX,
    TTL_MS_MAX,
    Backoff,
    DropOld,
    RejectNew,
    TopicSettings,
)

PREFIX: Final = "ASTERISM_"
CONFIG_VARIABLE: Final = "ASTERISM_CONFIG"  # the path of the file, where none is given
# Ours, but no settings of the broker: bin/test reads the second.
_OTHER_VARIABLES: Final = frozenset({CONFIG_VARIABLE, "ASTERISM_VENV"})

FILE_BYTES_MAX: Final = 1_048_576
PATH_BYTES_MAX: Final = 4_096
STORES_MAX: Final = 1_024
WORKERS_MAX: Final = 1_024
SYNC_MS_MAX: Final = 60_000


class ConfigError(Exception):
    """A configuration that cannot be used: what is wrong, and in which file or variable."""


# --- a topic's settings, between what users write and what the broker holds ---------------------

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
        raise PeerError("bad_request", "topic settings must be a map")
    overrides: dict[str, object] = {}
    for name, value in mapping.items():
        if name not in TOPIC_NAMES:
            raise PeerError("bad_request", _unknown("topic setting", name, TOPIC_NAMES))
        if name in _SECONDS:
            field_name, least_ms, most_ms = _SECONDS[name]
            overrides[field_name] = _milliseconds(name, value, least_ms, most_ms)
            continue
        if name == "overflow":
            value = _overflow(value)
        elif name == "retry_backoff":
            value = _backoff(value)
        TopicSettings().changed({name: value})
        overrides[name] = value
    return overrides


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
            case Backoff(least_ms, most_ms):
                value = {"min": _seconds(least_ms), "max": _seconds(most_ms)}
            case int() if held.name in _USER_NAMES:
                value = _seconds(value)
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
    if value is None or isinstance(value, Backoff):
        return value
    given = _table("retry_backoff", value, required=("min", "max"))
    least_ms = _milliseconds("retry_backoff.min", given["min"], 0, TIMEOUT_MS_MAX)
    most_ms = _milliseconds("retry_backoff.max", given["max"], 0, TIMEOUT_MS_MAX)
    if most_ms < least_ms:
        raise PeerError("bad_request", "retry_backoff.max must not be under retry_backoff.min")
    return Backoff(least_ms, most_ms)


def _table(
    name: str, value: object, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    """A map with all of the required names, and none but these."""
    names = required + optional
    if not isinstance(value, Mapping):
        raise PeerError("bad_request", f"{name} must be a map of {' and '.join(names)}")
    for key in value:
        if key not in names:
            raise PeerError(
                "bad_request", f"{name} has {', '.join(names)}; not {checks.shown(key)}"
            )
    for key in required:
        if key not in value:
            raise PeerError("bad_request", f"{name}.{key} must be given")
    return value


def _milliseconds(name: str, value: object, least_ms: int, most_ms: int) -> int:
    """A number of seconds in whole milliseconds; what is above nothing stays above nothing."""
    if type(value) is not int and type(value) is not float:
        raise PeerError(
            "bad_request", f"{name} must be a number of seconds, not {checks.shown(value)}"
        )
    # Not a number, and either infinity, are outside every range, so that rounding cannot fail.
    if not least_ms <= value * 1_000 <= most_ms:
        raise PeerError(
            "bad_request",
            f"{name} must be from {_seconds(least_ms)} to {_seconds(most_ms)} seconds, "
            f"not {checks.shown(value)}",
        )
    return max(1, round(value * 1_000)) if value > 0 else 0


def _seconds(milliseconds: int) -> int | float:
    whole, rest = divmod(milliseconds, 1_000)
    return milliseconds / 1_000 if rest else whole


def _unknown(what: str, name: object, known: Collection[str]) -> str:
    """Says that there is no such thing, and which one may have been meant."""
    near = get_close_matches(name, known, n=1) if type(name) is str and len(name) < 100 else []
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"there is no {what} {checks.shown(name)}{meant}"


# --- the broker's own settings ------------------------------------------------------------------

_SYNC: Final = re.compile(r"([1-9][0-9]{0,5})ms")


def _sync(name: str, value: object) -> str:
    sync = checks.text(name, value, 32)
    interval = _SYNC.fullmatch(sync)
    if sync != "always" and (interval is None or int(interval[1]) > SYNC_MS_MAX):
        raise PeerError(
            "bad_request",
            f'{name} must be "always", or "1ms" to "{SYNC_MS_MAX}ms", not {checks.shown(sync)}',
        )
    return sync


def _path(name: str, value: object) -> str:
    path = checks.text(name, value, PATH_BYTES_MAX)
    if "\0" in path:
        raise PeerError("bad_request", f"{name} must have no zero byte")
    return path


_CHECKS: Final[dict[str, Callable[[str, object], object]]] = {
    "data_dir": _path,
    "stores": lambda name, value: checks.whole(name, value, 1, STORES_MAX),
    "workers": lambda name, value: checks.whole(name, value, 1, WORKERS_MAX),
    "sync": _sync,
    "auto_create": checks.flag,
}


@dataclass(frozen=True, slots=True)
class Config:
    """Everything a broker is told when it starts."""

    data_dir: str = "asterism-data"
    stores: int = 8
    workers: int = 2
    sync: str = "always"
    auto_create: bool = True
    topic: TopicSettings = field(default_factory=TopicSettings)

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            try:
                check(name, getattr(self, name))
            except PeerError as error:
                raise ConfigError(error.detail) from None

    @property
    def sync_interval_ms(self) -> int | None:
        """How long an accepted message may be unsynced; ``None`` where it never may."""
        interval = _SYNC.fullmatch(self.sync)
        return int(interval[1]) if interval else None


# --- every key, and how its value is read from a variable's text --------------------------------


def _as_text(text: str) -> object:
    return text


def _as_flag(text: str) -> object:
    return {"true": True, "false": False}.get(text, text)


def _as_whole(text: str) -> object:
    # What is not a number stays text: the check of the key then refuses it with the right words.
    return int(text) if re.fullmatch(r"-?[0-9]{1,19}", text) else text


def _as_seconds(text: str) -> object:
    return float(text) if re.fullmatch(r"-?[0-9]{1,19}\.[0-9]{1,19}", text) else _as_whole(text)


KEYS: Final[dict[str, Callable[[str], object]]] = {
    "data_dir": _as_text,
    "stores": _as_whole,
    "workers": _as_whole,
    "sync": _as_text,
    "auto_create": _as_flag,
    "topic.blocking": _as_flag,
    "topic.overflow.size": _as_whole,
    "topic.overflow.policy": _as_text,
    "topic.concurrency": _as_whole,
    "topic.unique": _as_flag,
    "topic.draft_timeout": _as_seconds,
    "topic.sent_timeout": _as_seconds,
    "topic.received_timeout": _as_seconds,
    "topic.max_attempts": _as_whole,
    "topic.max_deliveries": _as_whole,
    "topic.retry_backoff.min": _as_seconds,
    "topic.retry_backoff.max": _as_seconds,
    "topic.dead_letter": _as_text,
    "topic.requeue": _as_text,
    "topic.default_ttl": _as_seconds,
    "topic.max_payload": _as_whole,
    "topic.history": _as_text,
    "topic.history_ttl": _as_seconds,
    "topic.receipt_ttl": _as_seconds,
    "topic.dedicated": _as_flag,
}
TABLES: Final = ("topic", "topic.overflow", "topic.retry_backoff")
# Their default is none, so that to set one to none is to forget what was set before.
MAY_BE_NONE: Final = frozenset(
    {
        "topic.overflow",
        "topic.concurrency",
        "topic.max_deliveries",
        "topic.retry_backoff",
        "topic.dead_letter",
    }
)


def variable_of(key: str) -> str:
    """The environment variable that overrides a key."""
    return PREFIX + key.upper().replace(".", "__")


_VARIABLES: Final = {variable_of(key): key for key in (*KEYS, *MAY_BE_NONE)}


# --- reading ------------------------------------------------------------------------------------


class _Given(NamedTuple):
    """A value, and the file or variable that an error about it has to name."""

    value: object
    source: str


def load(path: str | None, environ: Mapping[str, str]) -> Config:
    """The configuration of a process: its file, if it has one, and what the environment overrides.

    Without a path the variable ``ASTERISM_CONFIG`` may give one; without either there is no file.
    """
    path = path or environ.get(CONFIG_VARIABLE)
    if not path:
        return from_mapping({}, environ)
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: has more than {FILE_BYTES_MAX} bytes")
    return parse(data, environ, path)


def parse(
    data: bytes, environ: Mapping[str, str] | None = None, source: str = "the file"
) -> Config:
    """The configuration in a TOML document, under what the environment overrides."""
    try:
        document = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        # Besides its own error tomllib lets through those of int() and of a stack too deep.
        raise ConfigError(f"{source}: is not TOML: {error}") from None
    return from_mapping(document, environ, source)


def from_mapping(
    values: Mapping[str, object],
    environ: Mapping[str, str] | None = None,
    source: str = "the configuration",
) -> Config:
    """The configuration in a nested map, under what the environment overrides."""
    given: dict[str, _Given] = {}
    for key, value in _leaves("", values, source):
        _put(given, key, _Given(value, source))
    for variable, text in sorted((environ or {}).items()):
        if variable.startswith(PREFIX) and variable not in _OTHER_VARIABLES:
            key, value = _from_variable(variable, text)
            _put(given, key, _Given(value, variable))
    own: dict[str, Any] = {}
    for key, check in _CHECKS.items():
        if key in given:
            own[key] = _checked(check, key, given[key])
    return Config(**own, topic=_topic(given))


def _leaves(table: str, values: object, source: str) -> Iterator[tuple[str, object]]:
    """Every key that is set in a map, by its whole name; only tables that we know are entered."""
    if not isinstance(values, Mapping):
        what = table or "a configuration"
        raise ConfigError(f"{source}: {what} must be a table, not {checks.shown(values)}")
    if not values and table in MAY_BE_NONE:
        raise ConfigError(f"{source}: {table} is empty; set what is in it, or leave it out")
    prefix = f"{table}." if table else ""
    known = [key.removeprefix(prefix) for key in (*KEYS, *TABLES) if key.startswith(prefix)]
    for name, value in values.items():
        if type(name) is not str or "." in name or name not in known:
            where = f"setting in {table}" if table else "setting"
            raise ConfigError(f"{source}: {_unknown(where, name, known)}")
        key = prefix + name
        if key in TABLES and not (value is None and key in MAY_BE_NONE):
            yield from _leaves(key, value, source)
        else:
            yield key, value


def _from_variable(variable: str, text: str) -> tuple[str, object]:
    key = _VARIABLES.get(variable)
    if key is None:
        raise ConfigError(_unknown("variable", variable, _VARIABLES))
    if text == "" and key in MAY_BE_NONE:
        return key, None
    if key in TABLES:
        inner = ", ".join(variable_of(name) for name in KEYS if name.startswith(f"{key}."))
        raise ConfigError(
            f"{variable}: {key} is a table; set {inner}, or leave this empty for none"
        )
    return key, KEYS[key](text)


def _put(given: dict[str, _Given], key: str, latest: _Given) -> None:
    """Sets a key over what was set before; none takes everything beneath the key with it."""
    if latest.value is None and key in MAY_BE_NONE:
        for name in [name for name in given if name == key or name.startswith(f"{key}.")]:
            del given[name]
    else:
        given[key] = latest


def _checked(check: Callable[[str, object], object], key: str, given: _Given) -> object:
    try:
        return check(key, given.value)
    except PeerError as error:
        raise ConfigError(f"{given.source}: {error.detail}") from None


def _topic(given: Mapping[str, _Given]) -> TopicSettings:
    overrides: dict[str, object] = {}
    for name in TOPIC_NAMES:
        key = f"topic.{name}"
        inner = {
            inside.removeprefix(f"{key}."): held
            for inside, held in given.items()
            if inside.startswith(f"{key}.")
        }
        if key not in given and not inner:
            continue
        value = (
            given[key].value if key in given else {part: held.value for part, held in inner.items()}
        )
        try:
            overrides |= topic_overrides({name: value})
        except PeerError as error:
            sources = dict.fromkeys(held.source for held in (inner.values() or [given[key]]))
            raise ConfigError(f"{' and '.join(sources)}: topic.{error.detail}") from None
    return TopicSettings().changed(overrides)
