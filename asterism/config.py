"""The broker's configuration: one typed value, from a TOML file and the environment.

The names here are the names users see (``docs/configuration.md``): times in seconds, sizes in
bytes. Each door brings a table of its own (``doors``). Whatever is wrong with a configuration is a
``ConfigError`` that names the key and where it was set. A variable that nobody knows ends nothing,
as others may have set it: it is warned of.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from asterism import checks
from asterism.addresses_host import ADDRESS_VARIABLE, DEFAULT_ADDRESS, place_of
from asterism.doors import Check, Door, Table, settings_of
from asterism.doors_host import DoorError, doors
from asterism.errors import PeerError
from asterism.options import TOPIC_NAMES, milliseconds, topic_overrides, unknown
from asterism.settings import DEFAULT_BOUNDS, Bounds, TopicSettings
from asterism.variables import PREFIX, as_flag, as_seconds, as_text, as_whole, variable_of

CONFIG_VARIABLE: Final = "ASTERISM_CONFIG"  # the path of the file, where none is given
# Ours, but no settings of the broker: clients read the second, bin/test and bin/up the third.
_OTHER_VARIABLES: Final = frozenset({CONFIG_VARIABLE, ADDRESS_VARIABLE, "ASTERISM_VENV"})

NAME_SHOWN_MAX: Final = 100  # characters of a variable's name that others are compared with
FILE_BYTES_MAX: Final = 1_048_576
PATH_BYTES_MAX: Final = 4_096
STORES_MAX: Final = 1_024
WORKERS_MAX: Final = 1_024
SYNC_MS_MAX: Final = 60_000
FREE_BYTES_MAX: Final = 1 << 50
SNAPSHOTS_MAX: Final = 10_000
HEARTBEAT_MS_MIN: Final = 50
HEARTBEAT_MS_MAX: Final = 600_000
REQUESTS_MIN: Final = 100  # fewer would not do for a client that only says that it is there
BOUND_MAX: Final = 10_000_000  # of anything that clients can make
GRACE_MS_MAX: Final = 3_600_000
HELLO_MS_MIN: Final = 100
HELLO_MS_MAX: Final = 600_000
CONNECTIONS_MAX: Final = 1_000_000
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_S = TypeVar("_S", bound=Table)


class ConfigError(Exception):
    """A configuration that cannot be used: what is wrong, and in which file or variable."""


class AddressTakenError(ConfigError):
    """Another program listens where this one should; others can go on without it."""


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


_TCP: Final = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\[\]:/*,]+|\*):([0-9]{1,5})")
IPC: Final = "ipc://"
IPC_PATH_BYTES_MAX: Final = 100  # the system allows 107


class Address(NamedTuple):
    """Where clients connect: a host and a port, or a path in the file system."""

    text: str
    host: str = ""
    port: int = 0
    path: str = ""


def read_addresses(text: str) -> tuple[Address, ...]:
    """The addresses in a setting, between commas; ``ValueError`` with the one that is none."""
    found = []
    for part in (part.strip() for part in text.split(",")):
        parts = _TCP.fullmatch(part)
        path = part.removeprefix(IPC)
        if parts is not None and int(parts[2]) <= 65_535:
            found.append(Address(part, parts[1], int(parts[2])))
        elif path.startswith("/") and path != part and "\0" not in path:
            if len(path.encode()) > IPC_PATH_BYTES_MAX:
                raise ValueError(part)
            found.append(Address(part, path=path))
        else:
            raise ValueError(part)
    return tuple(found)


def _addresses(name: str, value: object) -> str:
    text = checks.text(name, value, PATH_BYTES_MAX)
    try:
        read_addresses(text)
    except ValueError as error:
        wrong = checks.shown(str(error))
        raise PeerError(
            "bad_request",
            f"{name} must be like tcp://127.0.0.1:7700, or ipc:// and a path from / on of at most "
            f"{IPC_PATH_BYTES_MAX} bytes, or several of these between commas; not {wrong}",
        ) from None
    return text


def _resolve(address: Address) -> tuple[Address, bool]:
    """An address with no name in it that would have to be resolved once more, and whether only
    this machine can reach it. Both come of one look-up."""
    if address.path:
        return address, True
    place = place_of(address.host.strip("[]"))
    host = f"[{place.host}]" if ":" in place.host else place.host
    return Address(f"tcp://{host}:{address.port}", host, address.port), place.is_local


def _heartbeat(name: str, value: object) -> object:
    milliseconds(name, value, HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX)
    return value


def _hello_timeout(name: str, value: object) -> object:
    milliseconds(name, value, HELLO_MS_MIN, HELLO_MS_MAX)
    return value


def _path(name: str, value: object) -> str:
    path = checks.text(name, value, PATH_BYTES_MAX)
    if "\0" in path:
        raise PeerError("bad_request", f"{name} must have no zero byte")
    return path


def _bound(name: str, value: object) -> int:
    return checks.whole(name, value, 1, BOUND_MAX)


def _grace(name: str, value: object) -> object:
    milliseconds(name, value, 0, GRACE_MS_MAX)
    return value


_CHECKS: Final[dict[str, Check]] = {
    "data_dir": _path,
    "stores": lambda name, value: checks.whole(name, value, 1, STORES_MAX),
    "workers": lambda name, value: checks.whole(name, value, 1, WORKERS_MAX),
    "sync": _sync,
    "auto_create": checks.flag,
    "max_topics": _bound,
    "max_dedicated": _bound,
    "max_receivers_per_topic": _bound,
    "max_producers_per_topic": _bound,
    "listen": _addresses,
    "insecure": checks.flag,
    "heartbeat": _heartbeat,
    "restart_grace": _grace,
    "hello_timeout": _hello_timeout,
    "max_connections": lambda name, value: checks.whole(name, value, 1, CONNECTIONS_MAX),
    "max_requests": lambda name, value: checks.whole(name, value, REQUESTS_MIN, BOUND_MAX),
    "lanes": checks.flag,
    "alert": checks.flag,
    "log_level": lambda name, value: checks.one_of(name, value, LOG_LEVELS),
    "min_free": lambda name, value: checks.whole(name, value, 0, FREE_BYTES_MAX),
    "max_snapshots": lambda name, value: checks.whole(name, value, 1, SNAPSHOTS_MAX),
}


@dataclass(frozen=True, slots=True)
class Config:
    """Everything a broker is told when it starts."""

    data_dir: str = "asterism-data"
    stores: int = 8
    workers: int = 2
    sync: str = "always"
    auto_create: bool = True
    max_topics: int = DEFAULT_BOUNDS.topics
    max_dedicated: int = 64
    max_receivers_per_topic: int = DEFAULT_BOUNDS.receivers
    max_producers_per_topic: int = DEFAULT_BOUNDS.producers
    listen: str = DEFAULT_ADDRESS
    insecure: bool = False
    heartbeat: float = 2
    restart_grace: float = 5
    hello_timeout: float = 5
    max_connections: int = 4_096
    max_requests: int = 10_000
    lanes: bool = True
    alert: bool = True
    log_level: str = "info"
    min_free: int = 268_435_456
    max_snapshots: int = 256
    topic: TopicSettings = field(default_factory=TopicSettings)
    doors: Mapping[str, Table] = field(default_factory=dict, hash=False)  # those that are set

    def __post_init__(self) -> None:
        to_check = [(check, name, getattr(self, name)) for name, check in _CHECKS.items()]
        for door, table in self.doors.items():
            for name, setting in settings_of(type(table)).items():
                value = getattr(table, name)
                if value is not None or not setting.may_be_none:
                    to_check.append((setting.check, f"{door}.{name}", value))
        for check, key, value in to_check:
            try:
                check(key, value)
            except PeerError as error:
                raise ConfigError(error.detail) from None
        if not self.insecure:
            self.endpoints()

    def door(self, door: Door[_S]) -> _S:
        """The settings of a door, by its record."""
        table = self.doors.get(door.name)
        return table if isinstance(table, door.settings) else door.settings()

    def endpoints(self) -> tuple[Address, ...]:
        """What to bind: ``listen`` with an address for each name, which is checked here and now.

        A name may resolve to something else a moment later, so this is called for each binding.
        """
        found = [(_resolve(address), address.text) for address in self.addresses]
        open_to_others = [text for (_, is_local), text in found if not is_local]
        if open_to_others and not self.insecure:
            raise ConfigError(
                f"listen is {', '.join(open_to_others)}: others than this machine could connect, "
                "and nothing asks them who they are. Listen on 127.0.0.1, or set insecure = true."
            )
        return tuple(address for (address, _), _ in found)

    def bounds(self, stores: int) -> Bounds:
        """What one of so many stores holds its clients to.

        A store knows of no topics but its own, so each has its share; and a quarter more than that,
        as names do not spread evenly.
        """
        share = self.max_topics if stores == 1 else -(-self.max_topics * 5 // (stores * 4))
        return Bounds(share, self.max_receivers_per_topic, self.max_producers_per_topic)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where clients connect; the first is the one that clients are told."""
        return read_addresses(self.listen)

    @property
    def hello_timeout_ms(self) -> int:
        """How long a connection may be without a session."""
        return round(self.hello_timeout * 1_000)

    @property
    def heartbeat_ms(self) -> int:
        """How often a session gives a sign of life; after three that are missed it is cut."""
        return round(self.heartbeat * 1_000)

    @property
    def restart_grace_ms(self) -> int:
        """How long what a client holds is kept for it while it may come back."""
        return round(self.restart_grace * 1_000)

    @property
    def sync_interval_ms(self) -> int | None:
        """How long an accepted message may be unsynced; ``None`` where it never may."""
        interval = _SYNC.fullmatch(self.sync)
        return int(interval[1]) if interval else None


# --- every key, and how its value is read from a variable's text --------------------------------


KEYS: Final[dict[str, Callable[[str], object]]] = {
    "data_dir": as_text,
    "stores": as_whole,
    "workers": as_whole,
    "sync": as_text,
    "auto_create": as_flag,
    "max_topics": as_whole,
    "max_dedicated": as_whole,
    "max_receivers_per_topic": as_whole,
    "max_producers_per_topic": as_whole,
    "listen": as_text,
    "insecure": as_flag,
    "heartbeat": as_seconds,
    "restart_grace": as_seconds,
    "hello_timeout": as_seconds,
    "max_connections": as_whole,
    "max_requests": as_whole,
    "lanes": as_flag,
    "alert": as_flag,
    "log_level": as_text,
    "min_free": as_whole,
    "max_snapshots": as_whole,
    "topic.expect": as_text,
    "topic.max_receivers": as_whole,
    "topic.blocking": as_flag,
    "topic.overflow.size": as_whole,
    "topic.overflow.policy": as_text,
    "topic.concurrency": as_whole,
    "topic.unique": as_flag,
    "topic.draft_timeout": as_seconds,
    "topic.sent_timeout": as_seconds,
    "topic.received_timeout": as_seconds,
    "topic.max_attempts": as_whole,
    "topic.max_deliveries": as_whole,
    "topic.retry_backoff.min": as_seconds,
    "topic.retry_backoff.max": as_seconds,
    "topic.dead_letter": as_text,
    "topic.requeue": as_text,
    "topic.default_ttl": as_seconds,
    "topic.max_payload": as_whole,
    "topic.history": as_text,
    "topic.history_ttl": as_seconds,
    "topic.receipt_ttl": as_seconds,
    "topic.dedicated": as_flag,
}
TABLES: Final = ("topic", "topic.overflow", "topic.retry_backoff")
# Their default is none, so that to set one to none is to forget what was set before.
MAY_BE_NONE: Final = frozenset(
    {
        "topic.expect",
        "topic.max_receivers",
        "topic.overflow",
        "topic.concurrency",
        "topic.max_deliveries",
        "topic.retry_backoff",
        "topic.dead_letter",
    }
)


class _Known(NamedTuple):
    """Everything that may be set, doors and all."""

    keys: Mapping[str, Callable[[str], object]]  # how the text of its variable is read
    tables: tuple[str, ...]
    may_be_none: frozenset[str]
    variables: Mapping[str, str]  # the key of each


def _known() -> _Known:
    return _known_with(tuple(_doors().values()))


def _doors() -> Mapping[str, Door[Any]]:
    try:
        return doors()
    except DoorError as error:
        raise ConfigError(str(error)) from None


@cache
def _known_with(found: tuple[Door[Any], ...]) -> _Known:
    keys, may_be_none = dict(KEYS), set(MAY_BE_NONE)
    for door in found:
        for name, setting in settings_of(door.settings).items():
            keys[door.key(name)] = setting.read
            if setting.may_be_none:
                may_be_none.add(door.key(name))
    variables = {variable_of(key): key for key in (*keys, *may_be_none)}
    tables = (*TABLES, *(door.name for door in found))
    return _Known(keys, tables, frozenset(may_be_none), variables)


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
    environ = environ or {}
    known = _known()
    for key, value in _leaves("", values, source):
        _put(given, key, _Given(value, source))
    for door in _doors().values():
        for variable in door.customary:
            if text := environ.get(variable):
                _put(given, *_customary(door, variable, text, given))
    for variable, text in sorted(environ.items()):
        if variable in known.variables:
            key = known.variables[variable]
            _put(given, key, _Given(_from_variable(key, variable, text), variable))
    own: dict[str, Any] = {}
    for key, check in _CHECKS.items():
        if key in given:
            own[key] = _checked(check, key, given[key])
    tables = {door.name: _table(door, given) for door in _doors().values()}
    set_ones = {name: table for name, table in tables.items() if table is not None}
    return Config(**own, topic=_topic(given), doors=set_ones)


def _leaves(table: str, values: object, source: str) -> Iterator[tuple[str, object]]:
    """Every key that is set in a map, by its whole name; only tables that we know are entered."""
    if not isinstance(values, Mapping):
        what = table or "a configuration"
        raise ConfigError(f"{source}: {what} must be a table, not {checks.shown(values)}")
    known = _known()
    if not values and table in known.may_be_none:
        raise ConfigError(f"{source}: {table} is empty; set what is in it, or leave it out")
    prefix = f"{table}." if table else ""
    all_keys = (*known.keys, *known.tables)
    names = [key.removeprefix(prefix) for key in all_keys if key.startswith(prefix)]
    for name, value in values.items():
        if type(name) is not str or "." in name or name not in names:
            where = f"setting in {table}" if table else "setting"
            above = f"; {name} stands above the tables" if table and name in known.keys else ""
            raise ConfigError(f"{source}: {unknown(where, name, names)}{above}")
        key = prefix + name
        if key in known.tables and not (value is None and key in known.may_be_none):
            yield from _leaves(key, value, source)
        else:
            yield key, value


def _from_variable(key: str, variable: str, text: str) -> object:
    known = _known()
    if text == "" and key in known.may_be_none:
        return None
    if key in known.tables:
        inner = ", ".join(variable_of(name) for name in KEYS if name.startswith(f"{key}."))
        raise ConfigError(
            f"{variable}: {key} is a table; set {inner}, or leave this empty for none"
        )
    return known.keys[key](text)


def _customary(
    door: Door[Any], variable: str, text: str, given: Mapping[str, _Given]
) -> tuple[str, _Given]:
    """The key that a customary variable of a door sets, and its value."""
    name, change = door.customary[variable]
    key = name if name.startswith("topic.") else door.key(name)
    if change is None:
        return key, _Given(_known().keys[key](text), variable)
    setting = settings_of(door.settings)[name]
    before = getattr(door.settings(), name)
    if key in given:
        before = _checked(setting.check, key, given[key])
    return key, _Given(change(text, before), variable)


def _table(door: Door[_S], given: Mapping[str, _Given]) -> _S | None:
    """The settings of a door, or none where they are the defaults."""
    own = {
        name: _checked(setting.check, door.key(name), given[door.key(name)])
        for name, setting in settings_of(door.settings).items()
        if door.key(name) in given
    }
    usual, table = door.settings(), door.settings(**own)
    return table if table != usual else None


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """The variables that begin as ours do, and are none.

    A misspelt one is among them, and what Kubernetes sets for a Service named asterism.
    """
    known = _known().variables.keys() | _OTHER_VARIABLES
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def warning_of(environ: Mapping[str, str]) -> str:
    """One line on the variables that are not known, and which may have been meant; else nothing."""
    known = [name.removeprefix(PREFIX) for name in (*_known().variables, *_OTHER_VARIABLES)]
    named = []
    for variable in unknown_variables(environ):
        # Without the prefix: all of them would be near each other with it.
        near = get_close_matches(variable.removeprefix(PREFIX)[:NAME_SHOWN_MAX], known, n=1)
        meant = f" (did you mean {PREFIX}{near[0]}?)" if near else ""
        named.append(f"{checks.shown(variable)}{meant}")
    return f"variables that asterism does not know are ignored: {', '.join(named)}" if named else ""


def _put(given: dict[str, _Given], key: str, latest: _Given) -> None:
    """Sets a key over what was set before; none takes everything beneath the key with it."""
    if latest.value is None and key in _known().may_be_none:
        for name in [name for name in given if name == key or name.startswith(f"{key}.")]:
            del given[name]
    else:
        given[key] = latest


def _checked(check: Check, key: str, given: _Given) -> Any:
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
