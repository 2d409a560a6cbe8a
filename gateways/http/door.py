"""The record of the HTTP door: everything that the rest of the broker knows of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from asterism import checks
from asterism.doors import Customary, Door, listen_address, setting, with_host, with_port
from asterism.errors import PeerError
from asterism.variables import as_whole

TEXT_BYTES_MAX: Final = 65_536  # of a list of names, or of a password
SECONDS_MAX: Final = 86_400
CONNECTIONS_MAX: Final = 65_536
BYTES_MAX: Final = 1 << 40


def _hosts(name: str, value: object) -> str:
    from asterism.gateways.http.origins import hosts_of  # its imports are the server's

    hosts = checks.text(name, value, TEXT_BYTES_MAX, least=0)
    try:
        hosts_of(hosts)
    except ValueError as error:
        raise PeerError("bad_request", f"{name}: {error}") from None
    return hosts


def _origins(name: str, value: object) -> str:
    from asterism.gateways.http.origins import origins_of

    origins = checks.text(name, value, TEXT_BYTES_MAX, least=0)
    try:
        origins_of(origins)
    except ValueError as error:
        raise PeerError("bad_request", f"{name}: {error}") from None
    return origins


def _password(name: str, value: object) -> str:
    return checks.text(name, value, TEXT_BYTES_MAX, least=0)


def _seconds(name: str, value: object) -> int:
    return checks.whole(name, value, 1, SECONDS_MAX)


def _connections(name: str, value: object) -> int:
    return checks.whole(name, value, 1, CONNECTIONS_MAX)


def _bytes(name: str, value: object) -> int:
    return checks.whole(name, value, 0, BYTES_MAX)


@dataclass(frozen=True, slots=True)
class Settings:
    """The table ``[http]``."""

    listen: str = setting(
        "127.0.0.1:8080",
        listen_address,
        "where it listens; port 0 takes a free one. Another host than this machine needs "
        "`insecure = true`",
    )
    hosts: str = setting(
        "",
        _hosts,
        "names of this service, between commas, beside those of this machine and of the address "
        "it listens on ([browsers](http.md#browsers))",
    )
    cors_origins: str = setting(
        "loopback",
        _origins,
        "origins, between commas, whose pages may use it; `*` is all",
    )
    admin_password: str = setting(
        "",
        _password,
        "the password of `/admin`, without which nobody is let in there, and of what destroys or "
        "reconfigures under `/v1`",
        is_secret=True,
    )
    request_timeout: int = setting(
        20, _seconds, "how long a request may take to come ([limits](http.md#what-a-client-may-do))"
    )
    idle_timeout: int = setting(75, _seconds, "how long a connection may be idle between requests")
    connections: int = setting(
        16_384, _connections, "connections at a time; never more than files allow"
    )
    payload_limit: int | None = setting(
        None,
        _bytes,
        "bytes of a request's body; 413 beyond it. None: 1048576, and 16 MiB for what is "
        "published under `/v1`",
        as_whole,
    )
    set_payload_limit: int | None = setting(
        None,
        _bytes,
        "bytes of a message's payload under `/mq`, of which 64 MiB less 64 KiB count at most. "
        "None: those of `payload_limit`",
        as_whole,
    )


def health(said: Mapping[str, Any], timeout_s: float) -> str | None:
    """Asks the door whether it is alive; what is wrong, or none."""
    from http.client import HTTPConnection, HTTPException
    from urllib.parse import urlsplit

    place = urlsplit(str(said.get("url")))
    try:
        asked = HTTPConnection(str(place.hostname), place.port, timeout=timeout_s)
        try:
            asked.request("GET", "/health")
            answer = asked.getresponse()
            if answer.status == 200:
                return None
            return f"/health answers {answer.status}: {answer.read(200).decode(errors='replace')}"
        finally:
            asked.close()
    except (OSError, HTTPException, ValueError) as error:
        return f"/health does not answer: {error}"


DOOR: Final = Door(
    name="http",
    title="HTTP",
    settings=Settings,
    module="asterism.gateways.http",
    extra="http",
    needs=("uvicorn", "uvloop", "httptools", "websockets"),
    shows="url",
    health=health,
    # By the names of the service whose interface it has.
    customary={
        "MQ_HOST": Customary("listen", with_host),
        "MQ_PORT": Customary("listen", with_port),
        "MQ_HOSTS": Customary("hosts"),
        "MQ_CORS_ORIGINS": Customary("cors_origins"),
        "MQ_ADMIN_PASSWORD": Customary("admin_password"),
        "MQ_REQUEST_TIMEOUT": Customary("request_timeout"),
        "MQ_IDLE_TIMEOUT": Customary("idle_timeout"),
        "MQ_CONNECTIONS": Customary("connections"),
        "MQ_PAYLOAD_LIMIT": Customary("payload_limit"),
        "MQ_SET_PAYLOAD_LIMIT": Customary("set_payload_limit"),
        "MQ_UNIQUE": Customary("topic.unique"),
        "MQ_DRAFTING_TIMEOUT": Customary("topic.draft_timeout"),
        "MQ_ORDERED_TIMEOUT": Customary("topic.sent_timeout"),
        "MQ_ACTIVE_TIMEOUT": Customary("topic.received_timeout"),
        "MQ_CONCURRENCY": Customary("topic.concurrency"),
    },
)
