"""The record of a front door, ``DOOR`` in a module ``door``: all that the broker knows of it. Pure.

Configuration, command line, supervisor and tests find doors by that record (``doors_host``), and
name none. A door of another project is found by an entry point of the group ``asterism.doors``.

``gateways/bell/door.py`` declares a door called bell like this:

    @dataclass(frozen=True, slots=True)
    class Settings:
        listen: str = setting("127.0.0.1:7000", listen_address, "where it listens")
        rings: int = setting(3, lambda name, value: checks.whole(name, value, 1, 9), "how often")

    DOOR: Final = Door(
        name="bell",                        # the table [bell], ASTERISM_BELL__RINGS, `up --bell`
        title="bell",                       # people read: the bell door
        settings=Settings,
        module="asterism.gateways.bell",    # python -m asterism.gateways.bell runs it
        extra="bell",                       # python -m pip install 'asterism[bell]'
        needs=("bells",),                   # modules that this installs
        shows="address",                    # of what it says when it is ready; broker.bell_address
        health=health,                      # health(said, timeout_s): what is wrong, or None
        clients=clients,                    # clients(said, most, timeout_s): who is connected
        customary={"BELL_PORT": Customary("listen", with_port)},
    )

The module that runs it is ``process.run_door(DOOR, run)``; there ``config.door(DOOR)`` is a
``Settings``. It imports no more than it needs here: every command reads this record.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from asterism import checks
from asterism.errors import PeerError
from asterism.limits import PORT_MAX
from asterism.variables import as_flag, as_seconds, as_text, as_whole

LISTEN_BYTES_MAX: Final = 300  # of an address: a name has 253 at most
# Letters alone with digits: `_` ends the name in ``broker.bell_url``, `-` in the name of a second
# process of the door.
_NAME: Final = re.compile(r"[a-z][a-z0-9]{0,15}")
# Other things go by these names: processes, keys and tables of the configuration, options of `up`.
RESERVED: Final = frozenset(
    {
        *("frontend", "interests", "worker", "dedicated", "lane", "workers", "clients", "stores"),
        *("topic", "sync", "listen", "insecure", "heartbeat", "lanes", "alert"),
        *("config", "data", "json", "logs", "help", "module", "function", "asterism"),
    }
)
_SETTING: Final = "asterism setting"
_T = TypeVar("_T")

Check = Callable[[str, object], object]  # of a name and a value: the value, or ``PeerError``


# --- settings -------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """One key of a door's table: how its value is checked, and what people read about it."""

    check: Check
    meaning: str
    read: Callable[[str], object]  # the value that the text of a variable stands for
    may_be_none: bool


def setting(
    default: _T,
    check: Check,
    meaning: str,
    read: Callable[[str], object] | None = None,
    is_secret: bool = False,
) -> _T:
    """A field of a door's settings, with its default.

    Where the default is ``None``, so may the value be: nothing is checked then, and an empty
    variable sets it; ``read`` says how the text of another is read. What is secret is left out of
    ``repr``.
    """
    assert default is not None or read is not None, "nothing says how its variable is read"
    read = read or _READERS.get(type(default), as_text)
    held = Setting(check, meaning, read, default is None)
    found: Any = field(default=default, repr=not is_secret, metadata={_SETTING: held})
    return found  # type: ignore[no-any-return]


_READERS: Final[dict[type, Callable[[str], object]]] = {
    bool: as_flag,
    int: as_whole,
    float: as_seconds,
}


def settings_of(table: type) -> dict[str, Setting]:
    """The settings of a door by their keys, as its class declares them."""
    return {held.name: held.metadata[_SETTING] for held in fields(table)}


class Table(Protocol):
    """The settings of a door: a frozen dataclass of which every field is a ``setting``."""

    @property
    def listen(self) -> str: ...


class Listen(NamedTuple):
    """Where a door listens."""

    host: str  # a name, an address without brackets, * for all addresses; empty where none is said
    port: int


_LISTEN: Final = re.compile(
    r"(?:(?:\[([0-9a-fA-F:.]+(?:%[\w.-]+)?)\]|([^\[\]:/\s]+)):)?([0-9]{1,5})"
)


def read_listen(text: str) -> Listen:
    """The host and port in a text, which may have no host; ``ValueError`` where it is neither."""
    parts = _LISTEN.fullmatch(text)
    if parts is None or int(parts[3]) > PORT_MAX:
        raise ValueError(text)
    return Listen(parts[1] or parts[2] or "", int(parts[3]))


def listen_text(host: str, port: int) -> str:
    """The text that ``read_listen`` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen_address(name: str, value: object) -> str:
    """Checks where a door listens."""
    text = checks.text(name, value, LISTEN_BYTES_MAX)
    try:
        is_whole = bool(read_listen(text).host)
    except ValueError:
        is_whole = False
    if not is_whole:
        raise PeerError(
            "bad_request",
            f"{name} must be a host and a port from 0 to {PORT_MAX}, as 127.0.0.1:8080 or "
            f"[::1]:8080, not {checks.shown(text)}",
        )
    return text


class Customary(NamedTuple):
    """A variable that programs of a protocol know already: it counts beneath our own.

    ``key`` is one of the door's own, or ``topic.…`` of every topic. ``change`` makes its value from
    the text and the value so far; without it the text is read as that of our own variable is.
    """

    key: str
    change: Callable[[str, Any], object] | None = None


def with_host(text: str, listen: str) -> str:
    """``listen`` with another host."""
    return f"{f'[{text}]' if ':' in text else text}:{listen.rpartition(':')[2]}"


def with_port(text: str, listen: str) -> str:
    """``listen`` with another port.

    Of a service named as a variable begins, Kubernetes and Docker set the port to an address, as
    ``tcp://10.0.0.1:8080``: that is where the service is, and not where to listen.
    """
    if "://" in text:
        return listen
    return f"{listen.rpartition(':')[0]}:{text}"


# --- the record -----------------------------------------------------------------------------------

_S = TypeVar("_S", bound=Table)


def _is_well(said: Mapping[str, Any], timeout_s: float) -> str | None:
    return None


class Client(NamedTuple):
    """A client that is connected to a door, as ``asterism status`` shows it."""

    name: str  # what it calls itself; empty where it has not said
    address: str
    subscriptions: int
    messages_in: int  # that it has published
    messages_out: int  # that it was sent


class Clients(NamedTuple):
    """The clients of a door: how many there are, and the first of them."""

    total: int
    listed: tuple[Client, ...]


def _tells_no_clients(said: Mapping[str, Any], most: int | None, timeout_s: float) -> None:
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Door(Generic[_S]):
    """A front door: everything that the rest of the broker knows of it."""

    name: str  # of its table, its option of `up`, its process, and that one's file
    title: str  # what people call it, before the word door
    settings: type[_S]
    module: str  # what ``python -m`` runs; by the word asterism in it its processes are known
    extra: str = ""  # of asterism, which installs what it needs
    needs: tuple[str, ...] = ()  # modules without which it cannot run
    shows: str = "address"  # what people are shown of what it says
    # Asks a process of the door whether it is well; returns what is wrong, or None. It is given
    # what the process said when it was ready, and how many seconds it may take.
    health: Callable[[Mapping[str, Any], float], str | None] = _is_well
    # Asks a process of the door for its clients: this many at most (None: all), within these
    # seconds. Returns None where the door lists none; raises ``OSError`` where the process does not
    # answer.
    clients: Callable[[Mapping[str, Any], int | None, float], Clients | None] = _tells_no_clients
    customary: Mapping[str, Customary] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in RESERVED:
            raise ValueError(f"{self.name!r} cannot be the name of a door")
        if "asterism" not in self.module:  # as `process_host.is_ours` looks for
            raise ValueError(f"the module of the door {self.name} must have asterism in its name")
        if "listen" not in settings_of(self.settings):
            raise ValueError(f"the settings of the door {self.name} must have listen")

    def key(self, name: str) -> str:
        """The whole name of one of its keys."""
        return f"{self.name}.{name}"

    @property
    def listen_key(self) -> str:
        return self.key("listen")

    @property
    def install(self) -> str:
        """The command that installs what it needs."""
        wanted = f"'asterism[{self.extra}]'" if self.extra else " ".join(self.needs)
        return f"python -m pip install {wanted}"
