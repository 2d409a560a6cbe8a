"""The record of the NATS door: everything that the rest of the broker knows of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from asterism import checks
from asterism.doors import Client, Clients, Door, listen_address, listen_text, setting
from asterism.options import milliseconds

TEXT_BYTES_MAX: Final = 4_096
PAYLOAD_MAX: Final = 64 * 1_048_576 - 131_072  # fits a frame to the broker, with its headers
CONNECTIONS_MAX: Final = 65_536
SUBSCRIPTIONS_MAX: Final = 1_000_000
PENDING_MAX: Final = 1 << 34
MS_MAX: Final = 86_400_000
MS_MIN: Final = 10
PAGE: Final = 1_024  # clients that the door is asked for at a time, so that it stalls for none
PAGE_BYTES_MAX: Final = 16 * 1_048_576  # of an answer of it; a longer one is none


def _text(name: str, value: object) -> str:
    return checks.text(name, value, TEXT_BYTES_MAX, least=0)


def _topic(name: str, value: object) -> str:
    return checks.topic_name(value)


def _monitor(name: str, value: object) -> str:
    return listen_address(name, value) if value != "" else ""


def _whole(least: int, most: int) -> Any:
    return lambda name, value: checks.whole(name, value, least, most)


def _seconds(name: str, value: object) -> object:
    milliseconds(name, value, MS_MIN, MS_MAX)
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """The table ``[nats]``."""

    listen: str = setting(
        "127.0.0.1:4222",
        listen_address,
        "where it listens; port 0 takes a free one. Another host than this machine needs "
        "`insecure = true`",
    )
    monitor: str = setting(
        "", _monitor, "where `/varz`, `/connz`, `/subsz` and `/healthz` are; empty: nowhere"
    )
    topic: str = setting("nats", _topic, "the topic that its clients publish and subscribe to")
    max_payload: int = setting(
        1_048_576, _whole(1, PAYLOAD_MAX), "bytes of a message's headers and payload"
    )
    max_control_line: int = setting(
        4_096, _whole(128, 1_048_576), "bytes of a line of the protocol, such as `SUB`"
    )
    max_connections: int = setting(
        16_384, _whole(1, CONNECTIONS_MAX), "clients at a time; never more than files allow"
    )
    max_subscriptions: int = setting(
        65_536, _whole(1, SUBSCRIPTIONS_MAX), "subscriptions of one client"
    )
    max_pending: int = setting(
        67_108_864,
        _whole(1_024, PENDING_MAX),
        "bytes that a client may be behind; one that is further behind is cut",
    )
    write_deadline: float = setting(
        10.0,
        _seconds,
        "seconds after which a client is cut that takes nothing of what waits for it",
    )
    ping_interval: float = setting(
        120.0, _seconds, "how often a silent client is asked whether it is there"
    )
    max_pings: int = setting(
        2, _whole(1, 1_000), "questions without an answer after which a client is cut"
    )
    auth_timeout: float = setting(
        2.0, _seconds, "how long a client may take to say who it is, and for TLS"
    )
    lame_duck: float = setting(
        10.0, _seconds, "how long clients have to leave, after `SIGUSR2` told them to"
    )
    user: str = setting("", _text, "the user that clients have to be; empty: anybody")
    password: str = setting("", _text, "the password of that user", is_secret=True)
    token: str = setting("", _text, "a token that clients have to know, instead", is_secret=True)
    tls_cert: str = setting("", _text, "the file of the server's certificate; with it, TLS alone")
    tls_key: str = setting("", _text, "the file of its key; empty: it is in that file too")
    tls_ca: str = setting("", _text, "the file of those who sign clients' certificates")
    tls_verify: bool = setting(
        False, checks.flag, "whether clients need a certificate that `tls_ca` has signed"
    )


def health(said: Mapping[str, Any], timeout_s: float) -> str | None:
    """Asks the door for the line that every client is greeted with; what is wrong, or none."""
    import socket
    from urllib.parse import urlsplit

    place = urlsplit(str(said.get("url")))
    try:
        with socket.create_connection((place.hostname, place.port), timeout_s) as asked:
            greeting = asked.recv(4_096)
    except (OSError, ValueError) as error:
        return f"it does not answer: {error}"
    return None if greeting.startswith(b"INFO ") else "it does not greet as a NATS server does"


def clients(said: Mapping[str, Any], most: int | None, timeout_s: float) -> Clients | None:
    """Asks the door for its clients, by its socket in the run folder; so many at most."""
    import time

    path = said.get("monitor_socket")
    if not isinstance(path, str):  # its path was too long
        return None
    until_s = time.monotonic() + timeout_s
    found: dict[int, Client] = {}
    offset, total = 0, 1
    while offset < total and (most is None or len(found) < most):
        left = PAGE if most is None else min(PAGE, most - len(found))
        page = _page(path, f"/connz?sort=cid&offset={offset}&limit={left}", until_s)
        try:
            total = page["total"]
            for each in page["connections"]:
                found[each["cid"]] = _client(each)
            offset += page["limit"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise OSError(f"what it says of its clients is not understood: {error!r}") from None
    return Clients(total, tuple(found.values()))


def _client(each: Mapping[str, Any]) -> Client:
    return Client(
        str(each.get("name", "")),
        listen_text(each["ip"], each["port"]),
        each["subscriptions"],
        each["in_msgs"],
        each["out_msgs"],
    )


def _page(path: str, wanted: str, until_s: float) -> Any:
    """A page of the door's monitor; ``OSError`` where it has not come by then."""
    import json
    import socket
    import time

    def left_s() -> float:
        left = until_s - time.monotonic()
        if left <= 0:
            raise TimeoutError("it does not answer in time")
        return left

    answer = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(left_s())
        try:
            asked.connect(path)
        except OSError as error:
            raise OSError(f"it does not listen: {error.strerror or error}") from None
        asked.sendall(f"GET {wanted} HTTP/1.0\r\n\r\n".encode())
        while True:
            asked.settimeout(left_s())
            try:
                part = asked.recv(65_536)
            except TimeoutError:
                raise TimeoutError("it does not answer in time") from None
            if not part:
                break
            answer += part
            if len(answer) > PAGE_BYTES_MAX:
                raise OSError("its answer has no end")
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1:2] != [b"200"]:
        raise OSError(f"it answers {head[:80].decode(errors='replace')!r}")
    try:
        return json.loads(body)
    except ValueError:
        raise OSError("its answer is cut short") from None


DOOR: Final = Door(
    name="nats",
    title="NATS",
    settings=Settings,
    module="asterism.gateways.nats",
    extra="nats",
    needs=("uvloop",),
    shows="url",
    health=health,
    clients=clients,
)
