"""What the door says of itself over HTTP: ``/varz``, ``/connz``, ``/subsz``, ``/healthz``.

The pages have the fields that programs read which watch nats-server. A request is one line, an
answer is one document, and the connection ends with it: no more of HTTP is needed here. They are
always on a socket in the run folder, for ``asterism status``, and on a port where that is set.
"""

import asyncio
import json
import logging
import os
import resource
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from asterism.addresses_host import place_of
from asterism.config import Config, ConfigError
from asterism.doors import read_listen
from asterism.process_host import memory_bytes

if TYPE_CHECKING:
    from asterism.gateways.nats.client import Client
    from asterism.gateways.nats.server import Server
    from asterism.gateways.nats.subscriptions import Subscription

LINES_BYTES_MAX: Final = 16_384  # of a request
WAIT_S: Final = 5.0  # for a request, and for its answer to be read
CONNECTIONS_MAX: Final = 64  # at a time; another is closed at once
LIMIT: Final = 1_024  # connections on a page, unless it is told otherwise
LIMIT_MAX: Final = 65_536
ROWS_MAX: Final = 16_384  # subscriptions on a page; the rest is left out: it is made in one go
NANOSECOND: Final = 1_000_000_000
log = logging.getLogger("asterism.nats")

Query = dict[str, str]


class WrongError(Exception):
    """A question that is wrong: what is wrong with it."""


class Monitor:
    """A small server of HTTP/1.0."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._entrance: asyncio.Server | None = None
        self._path: Path | None = None
        self._count = 0
        self.url = ""

    async def open(self, config: Config, listen: str) -> "Monitor":
        host, port = read_listen(listen)
        place = place_of(host)
        if not place.is_local and not config.insecure:
            raise ConfigError(
                f"nats.monitor is {listen}: others than this machine could look. Use 127.0.0.1, or "
                "set insecure = true."
            )
        try:
            self._entrance = await asyncio.start_server(
                self._serve, place.host, port, limit=LINES_BYTES_MAX, reuse_address=True
            )
        except OSError as error:
            raise ConfigError(
                f"nats.monitor: cannot listen on {listen}: {error.strerror}"
            ) from None
        host, port = self._entrance.sockets[0].getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return self

    async def open_socket(self, path: Path) -> "Monitor":
        """Serves the pages on a socket in the file system, for those who may open the folder."""
        # One that is there was left by a process of this name that was killed.
        path.unlink(missing_ok=True)
        self._entrance = await asyncio.start_unix_server(
            self._serve, str(path), limit=LINES_BYTES_MAX
        )
        self._path = path
        return self

    async def close(self) -> None:
        if self._entrance is not None:
            self._entrance.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        try:
            if self._count <= CONNECTIONS_MAX:
                async with asyncio.timeout(WAIT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head.split(b"\r\n", 1)[0]))
                    writer.close()
                    await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        except Exception:
            log.exception("a page could not be shown")
        finally:
            self._count -= 1
            writer.transport.abort()  # it is over, or its reader takes too long

    def _answer(self, line: bytes) -> bytes:
        method, _, rest = line.decode("latin-1").partition(" ")
        try:
            asked = urlsplit(rest.partition(" ")[0])
            query = {name: values[-1] for name, values in parse_qs(asked.query).items()}
        except ValueError as error:
            return _response("400 Bad Request", f"{error}\n".encode(), "text/plain")
        page = _PAGES.get(asked.path)
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"GET a page\n", "text/plain")
        if page is None:
            return _response("404 Not Found", b"there is no such page\n", "text/plain")
        try:
            # Without blanks to look good: those are made many times more slowly.
            body = json.dumps(page(self._server, query)).encode()
        except WrongError as error:
            return _response("400 Bad Request", f"{error}\n".encode(), "text/plain")
        callback = query.get("callback", "")
        kind = "application/json"
        if callback.isidentifier():
            body, kind = b"%b(%b)" % (callback.encode(), body), "application/javascript"
        return _response("200 OK", b"" if method == "HEAD" else body, kind)


def _response(status: str, body: bytes, kind: str) -> bytes:
    head = (
        f"HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


# --- pages ----------------------------------------------------------------------------------------


def _root(server: "Server", query: Query) -> dict[str, Any]:
    return {"pages": sorted(path for path in _PAGES if path != "/")}


def _healthz(server: "Server", query: Query) -> dict[str, Any]:
    return {"status": "ok"}


def varz(server: "Server", query: Query) -> dict[str, Any]:
    """The whole of the door."""
    settings, clients = server.settings, list(server.clients.values())
    used = resource.getrusage(resource.RUSAGE_SELF)
    uptime_s = server.now_s() - server.began_s
    return {
        "server_id": server.id,
        "server_name": "asterism",
        "version": server.version,
        "proto": 1,
        "host": server.host,
        "port": server.port,
        "max_connections": settings.max_connections,
        "max_subscriptions": settings.max_subscriptions,
        "max_payload": settings.max_payload,
        "max_pending": settings.max_pending,
        "max_control_line": settings.max_control_line,
        "ping_interval": round(settings.ping_interval * NANOSECOND),
        "ping_max": settings.max_pings,
        "auth_timeout": settings.auth_timeout,
        "auth_required": server.asks_who,
        "tls_required": server.tls is not None,
        "write_deadline": round(settings.write_deadline * NANOSECOND),
        "http_host": "",
        "http_port": 0,
        "start": _moment(server.began_at),
        "now": _moment(datetime.now(UTC)),
        "uptime": duration(int(uptime_s)),
        "mem": memory_bytes(),
        "cores": os.cpu_count() or 1,
        "cpu": round(100 * (used.ru_utime + used.ru_stime) / max(uptime_s, 0.001), 1),
        "connections": len(clients),
        "total_connections": server.entered,
        "routes": 0,
        "remotes": 0,
        "leafnodes": 0,
        "in_msgs": server.in_messages + sum(client.in_messages for client in clients),
        "in_bytes": server.in_bytes + sum(client.in_bytes for client in clients),
        "out_msgs": server.out_messages + sum(client.out_messages for client in clients),
        "out_bytes": server.out_bytes + sum(client.out_bytes for client in clients),
        "slow_consumers": server.slow,
        "stale_connections": server.stale,
        "subscriptions": len(server.subscriptions),
        "untold_msgs": server.exchange.untold,
        "topic": settings.topic,
    }


def connz(server: "Server", query: Query) -> dict[str, Any]:
    """The clients that are connected."""
    clients = list(server.clients.values())
    if "cid" in query:
        number = _whole(query, "cid", 0)
        clients = [client for client in clients if client.number == number]
    order = _ORDERS.get(query.get("sort", "cid"))
    if order is None:
        raise WrongError(f"invalid sorting option: {query['sort']}")
    clients.sort(key=order)
    offset = _whole(query, "offset", 0)
    limit = min(_whole(query, "limit", LIMIT) or LIMIT, LIMIT_MAX)
    shown = clients[offset : offset + limit]
    left = ROWS_MAX
    rows = []
    for client in shown:
        rows.append(_client(server, client, query.get("subs", ""), left))
        left = max(0, left - len(client.subscriptions))
    return {
        "server_id": server.id,
        "now": _moment(datetime.now(UTC)),
        "num_connections": len(shown),
        "total": len(clients),
        "offset": offset,
        "limit": limit,
        "connections": rows,
    }


def _client(server: "Server", client: "Client", subs: str, most: int) -> dict[str, Any]:
    now_s = server.now_s()
    began = server.began_at.timestamp() + client.began_s - server.began_s
    heard = server.began_at.timestamp() + client.heard_s - server.began_s
    shown: dict[str, Any] = {
        "cid": client.number,
        "kind": "Client",
        "type": "nats",
        "ip": str(client.peer[0]),
        "port": client.peer[1],
        "start": _moment(datetime.fromtimestamp(began, UTC)),
        "last_activity": _moment(datetime.fromtimestamp(heard, UTC)),
        "rtt": duration(client.round_trip_s),
        "uptime": duration(int(now_s - client.began_s)),
        "idle": duration(int(now_s - client.heard_s)),
        "pending_bytes": client.waiting_bytes,
        "in_msgs": client.in_messages,
        "out_msgs": client.out_messages,
        "in_bytes": client.in_bytes,
        "out_bytes": client.out_bytes,
        "subscriptions": len(client.subscriptions),
    }
    for name in ("name", "lang", "version"):
        if text := client.options.get(name):
            shown[name] = text
    held = list(islice(client.subscriptions.values(), most))
    if subs in ("1", "true"):
        shown["subscriptions_list"] = [_text(each.pattern) for each in held]
    elif subs == "detail":
        shown["subscriptions_list_detail"] = [
            {
                "subject": _text(each.pattern),
                **({"qgroup": _text(each.queue)} if each.queue is not None else {}),
                "sid": _text(each.sid),
                "msgs": each.delivered,
                "cid": client.number,
            }
            for each in held
        ]
    return shown


def subsz(server: "Server", query: Query) -> dict[str, Any]:
    """The subscriptions of all clients."""
    count = len(server.subscriptions)
    found: dict[str, Any] = {
        "server_id": server.id,
        "now": _moment(datetime.now(UTC)),
        "num_subscriptions": count,
        "num_cache": server.subscriptions.routes_known,
        "num_inserts": server.subscriptions.added,
        "num_removes": server.subscriptions.removed,
        "num_matches": server.subscriptions.looked_up,
        "total": count,
        "offset": _whole(query, "offset", 0),
        "limit": min(_whole(query, "limit", LIMIT) or LIMIT, LIMIT_MAX),
    }
    if query.get("subs") in ("1", "true"):
        begin = found["offset"]
        end = begin + min(found["limit"], ROWS_MAX)
        found["subscriptions_list"] = [
            {
                "subject": _text(each.pattern),
                "sid": _text(each.sid),
                "msgs": each.delivered,
                "cid": each.client.number,
                **({"qgroup": _text(each.queue)} if each.queue is not None else {}),
            }
            for each in islice(_every(server), begin, end)
        ]
    return found


def _every(server: "Server") -> Iterator["Subscription"]:
    for client in server.clients.values():
        yield from client.subscriptions.values()


def _routez(server: "Server", query: Query) -> dict[str, Any]:
    return {"server_id": server.id, "num_routes": 0, "routes": []}


def _jsz(server: "Server", query: Query) -> dict[str, Any]:
    return {"server_id": server.id, "disabled": True}


_PAGES: Final[dict[str, Callable[["Server", Query], dict[str, Any]]]] = {
    "/": _root,
    "/healthz": _healthz,
    "/varz": varz,
    "/connz": connz,
    "/subsz": subsz,
    "/routez": _routez,
    "/jsz": _jsz,
}
_ORDERS: Final[dict[str, Callable[["Client"], Any]]] = {
    "cid": lambda client: client.number,
    "start": lambda client: client.began_s,
    "uptime": lambda client: client.began_s,
    "subs": lambda client: -len(client.subscriptions),
    "pending": lambda client: -client.waiting_bytes,
    "msgs_to": lambda client: -client.out_messages,
    "msgs_from": lambda client: -client.in_messages,
    "bytes_to": lambda client: -client.out_bytes,
    "bytes_from": lambda client: -client.in_bytes,
    "last": lambda client: -client.heard_s,
    "idle": lambda client: client.heard_s,
    "rtt": lambda client: -client.round_trip_s,
}


def _whole(query: Query, name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise WrongError(f"invalid {name}: {text[:32]}")
    return int(text)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _moment(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def duration(seconds: float) -> str:
    """A duration as nats-server writes one: 1h2m3s, or 226µs where it is short."""
    if seconds < 1:
        return f"{round(seconds * 1_000_000)}µs" if seconds > 0 else "0s"
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    first = next(at for at, (count, _) in enumerate(parts) if count or at == 3)
    return "".join(f"{count}{unit}" for count, unit in parts[first:])


__all__ = ["Monitor", "connz", "duration", "subsz", "varz"]
