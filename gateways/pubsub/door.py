"""The record of the Pub/Sub door: everything that the rest of the broker knows of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from asterism import checks
from asterism.doors import Door, listen_address, setting
from asterism.errors import PeerError

NEXT: Final = "next"  # the port after that of gRPC
NAME_BYTES_MAX: Final = 1_024
NAMES_MAX: Final = 10_000  # topics, or subscriptions, that the configuration lists
STREAMS_MAX: Final = 65_536
MESSAGES_MAX: Final = 1_000_000
BYTES_MAX: Final = 1 << 40
HELD_MAX: Final = 100_000_000

# The client's side of HTTP/2: its preface, and an empty frame of settings.
_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_SETTINGS: Final = 4  # the type of the frame that a server begins with; behind 3 bytes of length


def _rest(name: str, value: object) -> str:
    text = checks.text(name, value, NAME_BYTES_MAX, least=0)
    return text if text in ("", NEXT) else listen_address(name, text)


def _whole(least: int, most: int) -> Any:
    return lambda name, value: checks.whole(name, value, least, most)


def _topics(name: str, value: object) -> tuple[str, ...]:
    """The names of topics in a list."""
    given = checks.tuple_of(name, value, NAMES_MAX, least=0)
    return tuple(_resource(name, "topics", each) for each in given)


def _subscriptions(name: str, value: object) -> tuple[tuple[str, str], ...]:
    """Subscriptions and their topics: a table, or what was made of one before."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list | tuple) or len(pairs) > NAMES_MAX:
        raise PeerError("bad_request", f"{name} must be a table of subscriptions and their topics")
    found = []
    for pair in pairs:
        subscription, topic = checks.tuple_of(name, pair, 2, least=2)
        found.append(
            (_resource(name, "subscriptions", subscription), _resource(name, "topics", topic))
        )
    return tuple(found)


def _resource(name: str, kind: str, value: object) -> str:
    """A name such as ``projects/p/topics/t``; the door checks the rest of it when it starts."""
    text = checks.text(name, value, NAME_BYTES_MAX)
    parts = text.split("/")
    if len(parts) != 4 or parts[0] != "projects" or parts[2] != kind or not all(parts):
        raise PeerError(
            "bad_request",
            f"{name} has {checks.shown(text)}, which is not like projects/shop/{kind}/orders",
        )
    return text


def _read_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _read_pairs(text: str) -> object:
    return [tuple(part.strip() for part in pair.split("=")) for pair in _read_list(text)]


@dataclass(frozen=True, slots=True)
class Settings:
    """The table ``[pubsub]``."""

    listen: str = setting(
        "127.0.0.1:8085",
        listen_address,
        "where gRPC listens; port 0 takes a free one. Another host than this machine needs "
        "`insecure = true`",
    )
    rest_listen: str = setting(
        NEXT,
        _rest,
        "where REST listens: `next` is the port after that of `listen`; empty: nowhere",
    )
    topics: tuple[str, ...] | None = setting(
        None, _topics, "topics that exist from the start, by their whole names", _read_list
    )
    subscriptions: tuple[tuple[str, str], ...] | None = setting(
        None,
        _subscriptions,
        "subscriptions that exist from the start, each with its topic; in a variable as "
        "`SUBSCRIPTION=TOPIC`, between commas",
        _read_pairs,
    )
    max_streams: int = setting(
        4_096, _whole(1, STREAMS_MAX), "streaming pulls at a time; the next one is refused"
    )
    max_outstanding_messages: int = setting(
        10_000,
        _whole(1, MESSAGES_MAX),
        "messages that one streaming pull may have unacknowledged, whatever its client allows",
    )
    max_outstanding_bytes: int = setting(
        104_857_600,
        _whole(1_024, BYTES_MAX),
        "bytes that one streaming pull may have unacknowledged, whatever its client allows",
    )
    max_held: int = setting(
        1_000_000,
        _whole(1, HELD_MAX),
        "messages that all clients together may have unacknowledged; past it nobody gets more",
    )


def health(said: Mapping[str, Any], timeout_s: float) -> str | None:
    """Asks the door for the first frame of a connection of HTTP/2; what is wrong, or none."""
    import socket

    from asterism.doors import read_listen

    try:
        host, port = read_listen(str(said.get("address")))
        with socket.create_connection((host, port), timeout_s) as asked:
            asked.sendall(_HELLO)
            answer = asked.recv(9)
    except (OSError, ValueError) as error:
        return f"it does not answer: {error}"
    return None if answer[3:4] == bytes((_SETTINGS,)) else "it does not answer as gRPC does"


DOOR: Final = Door(
    name="pubsub",
    title="Pub/Sub",
    settings=Settings,
    module="asterism.gateways.pubsub",
    extra="pubsub",
    needs=("grpc", "google.pubsub_v1"),
    shows="address",
    health=health,
)
