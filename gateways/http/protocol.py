"""HTTP as the work queue speaks it: paths, methods, what may be sent, and what is answered. Pure.

A request comes in whole, as plain values, and a response goes out whole, or piece by piece; who
asks the broker in between is in ``queues.py``, ``admin.py`` and ``v1*.py``.
"""

import gzip
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, NamedTuple, NoReturn, Protocol
from urllib.parse import unquote_to_bytes

from asterism.errors import PeerError, told
from asterism.gateways.http.versions import is_within

NAME: Final = re.compile(r"[a-zA-Z0-9.\-_]{0,255}")
_FIELD: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]+")  # what the value of a header may have
PATH_PART_MAX: Final = 600  # characters of a part of a path; beyond it there is no such path
V1_PART_MAX: Final = 765  # the same under /v1, where a name has 255 bytes that may all be encoded
GZIP_BYTES_MIN: Final = 512  # a smaller body is not worth compressing
API_VERSION: Final = (0, 6, 2)  # of the service whose interface this is; see Accept-Version
JSON: Final = "application/json; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"
NDJSON: Final = "application/x-ndjson"
OCTETS: Final = "application/octet-stream"
VALUES_MAX: Final = 200_000  # in a body of JSON; an object or a list counts twice
VALUES_UNCOUNTED_BYTES: Final = 65_536  # a smaller body cannot have many
RETRY_AFTER_S: Final = 1
STALLED_S: Final = 60.0  # a client that reads nothing of a stream for so long is taken for gone


Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Stream(Protocol):
    """A body that is written piece by piece for as long as somebody reads it."""

    def pieces(self) -> AsyncIterator[bytes]: ...

    async def close(self) -> None: ...


# What an answer may do in a browser: nothing, in an origin of its own. What somebody has published
# must not act with the rights of this door's pages.
INERT: Final = (b"content-security-policy", b"sandbox; default-src 'none'; frame-ancestors 'none'")


class Response(NamedTuple):
    """What is answered."""

    status: int
    body: bytes = b""
    media: str | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    stream: Stream | None = None  # in place of a body
    policy: tuple[tuple[bytes, bytes], ...] = (INERT,)  # of a body, in a browser


class RefusedError(Exception):
    """A request that is answered with an error; the body says what to do."""

    def __init__(
        self,
        status: int,
        message: str,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers
        self.code = code

    def response(self) -> Response:
        told = {"statusCode": self.status, "error": HTTPStatus(self.status).phrase}
        body = {**told, **({"code": self.code} if self.code else {}), "message": self.message}
        return Response(self.status, json.dumps(body).encode(), JSON, self.headers)


@dataclass(slots=True)
class Request:
    """What a client asks, with its body once that was read."""

    method: str
    parts: tuple[str, ...]  # of the path, decoded
    headers: dict[bytes, bytes]
    body: bytes = b""
    names: dict[str, str] = field(default_factory=dict)  # what the path names
    query: bytes = b""
    peer: str = ""  # the address that it comes from

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def media(self) -> str:
        """The type of the body, without its parameters."""
        return self.header(b"content-type").partition(";")[0].strip().lower()

    def json(self) -> Any:
        """The body as JSON; refused if it is said to be something else, or is not JSON."""
        if self.media != "application/json":
            raise RefusedError(415, "send a body of JSON, with Content-Type: application/json")
        if len(self.body) > VALUES_UNCOUNTED_BYTES and _values_in(self.body) > VALUES_MAX:
            raise RefusedError(413, f"a body of JSON may have {VALUES_MAX} values: send less")
        try:
            # Decoded here, since json.loads lets halves of characters pass.
            return json.loads(self.body.decode(), parse_constant=_no_constant, parse_float=_number)
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, f"the body is not JSON: {error}") from None


def _values_in(body: bytes) -> int:
    """How many values a body of JSON has at most, counted before anything is made of them.

    A value is a few bytes in a body, and up to a hundred in memory.
    """
    if b"\\" in body:  # without escapes, every quote that is left begins or ends a text
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if body.count(b'"') > 4 * VALUES_MAX:  # a value has a name at most
        return VALUES_MAX + 1
    between = b"".join(body.split(b'"')[::2])
    return sum(map(between.count, (b",", b"[", b"{")))


def _number(text: str) -> int | float:
    """A number with a point; 1.0 is as whole as 1, since JSON has but one kind of number."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= 2**53 else value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON value")


Handler = Callable[[Request], Awaitable[Response]]


class Operation(NamedTuple):
    """What one method does on one path."""

    run: Handler
    summary: str
    answers: dict[int, str]
    safe: bool = False  # it changes nothing, so HEAD may stand for it
    body: str | None = None  # the type of what is sent
    returns: tuple[str, ...] = ()
    waits: bool = False  # for as long as the client does
    private: bool = False
    guarded: bool = False  # private, where there is a password
    waits_with: bytes = b""  # it waits only where the query has this
    socket: Callable[[Request, Receive, Send], Awaitable[None]] | None = None
    body_bytes_max: int = 0  # where it is more than of other bodies
    schema: dict[str, Any] | None = None  # of the body, where that is JSON
    raw: bool = False  # a body of any other type is taken too
    needs_body: bool = True
    query: dict[str, dict[str, Any]] | None = None  # schemas by name
    sends: dict[str, dict[str, Any]] | None = None  # the same of its own headers
    returned: dict[str, Any] | None = None  # the schema of what is answered


# --- paths --------------------------------------------------------------------------------------


def parts_of(raw_path: bytes) -> tuple[str, ...]:
    """The parts of a path, each decoded by itself: an encoded slash does not part."""
    if raw_path.isascii() and b"%" not in raw_path and len(raw_path) <= PATH_PART_MAX:
        return tuple(raw_path.decode().split("/")[1:])  # as nearly all are
    parts = []
    is_core = raw_path.startswith(b"/v1/")
    for part in raw_path.split(b"/")[1:]:
        if is_core and len(part) > V1_PART_MAX:
            raise RefusedError(400, "a name has at most 255 bytes")
        if not is_core and len(part) > PATH_PART_MAX:
            raise RefusedError(404, "there is no such path")
        try:
            parts.append(unquote_to_bytes(part).decode())
        except UnicodeDecodeError:
            raise RefusedError(400, "a path is UTF-8, percent-encoded") from None
    return tuple(parts)


def template_of(parts: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """A path with names in place of what it names, and what that is."""
    match parts:
        case ("mq", namespace, "messages", message, *rest):
            names = {"namespace": namespace, "id": message}
            return "/".join(("", "mq", "{namespace}", "messages", "{id}", *rest)), names
        case ("mq", namespace, *rest):
            return "/".join(("", "mq", "{namespace}", *rest)), {"namespace": namespace}
        case ("admin", "mq", namespace, *rest):
            return "/".join(("", "admin", "mq", "{namespace}", *rest)), {"namespace": namespace}
        case ("v1", "topics", topic, *rest):
            below, names = _below_topic(tuple(rest))
            return "/".join(("", "v1", "topics", "{topic}", *below)), {"topic": topic, **names}
    return "/" + "/".join(parts), {}


def _below_topic(rest: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    match rest:
        case ("receivers", receiver, *more):
            return ("receivers", "{receiver}", *more), {"receiver": receiver}
        case ("messages", sequence, *more):
            return ("messages", "{sequence}", *more), {"sequence": sequence}
        case ("receipts", receipt, *more):
            return ("receipts", "{receipt}", *more), {"receipt": receipt}
    return rest, {}


def check_names(names: dict[str, str]) -> None:
    """Refuses a namespace or an id that cannot be one."""
    for what in ("namespace", "id"):
        name = names.get(what)
        if name is not None and NAME.fullmatch(name) is None:
            raise RefusedError(
                400, f"{what} must match ^[a-zA-Z0-9.\\-_]{{0,255}}$, which {name[:64]!r} does not"
            )


# --- what is answered ---------------------------------------------------------------------------

NO_CONTENT: Final = Response(204)
NOT_FOUND: Final = Response(404)
CONFLICT: Final = Response(409)


def text(value: str) -> Response:
    return Response(200, value.encode(), TEXT)


def media_of(kept: str) -> str:
    """The type that a message has kept; other doors keep any text, and not all of it is one."""
    return kept if _FIELD.fullmatch(kept) else OCTETS


def json_of(value: object) -> Response:
    return Response(200, json.dumps(value, separators=(",", ":")).encode(), JSON)


def list_of(values: list[str], accept: str) -> Response:
    """A list of text, as JSON or line by line, as the client prefers."""
    if prefers_ndjson(accept):
        return Response(200, "\n".join(map(json.dumps, values)).encode(), NDJSON)
    return json_of(values)


def prefers_ndjson(accept: str) -> bool:
    """Would the client rather have lines than one array? In a tie, or with no wish, it has one."""
    return quality(accept, NDJSON) > quality(accept, "application/json")


def quality(accept: str, media: str) -> float:
    """How much a client wants a type, by the entry that names it most closely."""
    best, weight = -1, 0.0
    kind = media.partition("/")[0]
    for entry in accept.lower().split(","):
        named, *parameters = (part.strip() for part in entry.split(";"))
        closeness = {media: 2, f"{kind}/*": 1, "*/*": 0}.get(named, -1)
        if closeness > best:
            best, weight = closeness, _weight(parameters)
    return weight


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0


def of_error(error: PeerError, names: dict[str, str]) -> Response:
    """What an error of the broker is over HTTP, on a path that names these."""
    if error.code == "no_such_topic" and "id" not in names:
        return RefusedError(404, _NOT_MADE, code=error.code).response()
    if error.code in ("no_such_message", "no_such_topic", "topic_gone"):
        return NOT_FOUND
    if error.code in ("wrong_state", "duplicate"):
        return CONFLICT
    status = {"too_large": 413, "busy": 503, "overflow": 503, "internal": 500}.get(error.code, 400)
    later = ((b"retry-after", b"%d" % RETRY_AFTER_S),) if status == 503 else ()
    return RefusedError(status, error.detail or error.code, later, error.code).response()


_NOT_MADE: Final = (
    "there is no such queue, and this broker makes none by itself (auto_create): make it first, "
    "with PUT /v1/topics/<namespace>"
)
_STATUS: Final = {
    "unauthorized": 401,
    "forbidden": 403,
    **dict.fromkeys(("no_such_topic", "no_such_receiver", "no_such_message", "topic_gone"), 404),
    **dict.fromkeys(("wrong_state", "not_yours", "topic_exists", "no_receiver", "duplicate"), 409),
    "too_large": 413,
    "internal": 500,
    "busy": 503,
    "overflow": 503,
}
_CODE: Final = {
    401: "unauthorized",
    403: "forbidden",
    404: "no_such_path",
    405: "no_such_method",
    413: "too_large",
    429: "busy",
}


def refusal_of(error: PeerError) -> RefusedError:
    """What an error of the broker is under /v1: always with its code, and what to do."""
    status = _STATUS.get(error.code, 400)
    later_s = -(-(error.retry_after_ms or 0) // 1_000) or RETRY_AFTER_S
    later = ((b"retry-after", b"%d" % later_s),) if status == 503 else ()
    return RefusedError(status, told(error.code, error.detail), later, error.code)


def with_code(refused: RefusedError) -> RefusedError:
    """A refusal as /v1 tells it: there every one has a code."""
    if refused.code is None:
        busy_or_bad = "busy" if refused.status == 503 else "bad_request"
        refused.code = _CODE.get(refused.status, busy_or_bad)
    return refused


def compressed(response: Response, accept_encoding: str) -> Response:
    """The same response, compressed if the client takes that and it is worth it."""
    if len(response.body) < GZIP_BYTES_MIN:
        return response
    headers = (*response.headers, (b"vary", b"accept-encoding"))
    if takes_gzip(accept_encoding):
        body = gzip.compress(response.body, 6, mtime=0)
        if len(body) < len(response.body):
            return response._replace(body=body, headers=(*headers, (b"content-encoding", b"gzip")))
    return response._replace(headers=headers)


def takes_gzip(accept_encoding: str) -> bool:
    """Does a client take what is compressed? What is said of gzip itself goes first."""
    weights: dict[str, float] = {}
    for entry in accept_encoding.lower().split(","):
        named, *parameters = (part.strip() for part in entry.split(";"))
        weights[named] = _weight(parameters)
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def check_version(wanted: str) -> None:
    """Refuses a client that asks for another version of this interface."""
    if wanted and not is_within(API_VERSION, wanted):
        ours = ".".join(map(str, API_VERSION))
        raise RefusedError(400, f"Accept-Version is {wanted[:64]!r}, and this is {ours}")


def cors_of(origin: bytes, allowed: bool) -> tuple[tuple[bytes, bytes], ...]:
    """What a browser wants to be told before it shows an answer to a page."""
    if not allowed:
        return ((b"vary", b"origin"),)
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"X-MQ-Priority, X-MQ-State, Retry-After"),
        (b"vary", b"origin"),
    )


def preflight(request: Request, allowed: str) -> Response:
    """The answer to OPTIONS, whether or not a browser asks."""
    headers: list[tuple[bytes, bytes]] = [(b"allow", allowed.encode())]
    if b"access-control-request-method" in request.headers:
        headers.append((b"access-control-allow-methods", b"GET,HEAD,PUT,PATCH,POST,DELETE"))
        wanted = request.headers.get(b"access-control-request-headers")
        if wanted is not None:
            headers.append((b"access-control-allow-headers", wanted))
        if request.headers.get(b"access-control-request-private-network") == b"true":
            headers.append((b"access-control-allow-private-network", b"true"))
        headers.append((b"access-control-max-age", b"600"))
    return Response(204, headers=tuple(headers))
