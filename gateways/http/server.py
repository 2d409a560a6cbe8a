"""The process of the HTTP door: an ASGI application under uvicorn, with a client of the broker."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import uvicorn
import uvloop

from asterism.addresses_host import EVERYWHERE
from asterism.config import Config
from asterism.doors import listen_text, read_listen
from asterism.errors import PeerError
from asterism.gateways.http.admin import Admin
from asterism.gateways.http.connections import LOOK_S, Connections, Patience
from asterism.gateways.http.door import DOOR, Settings
from asterism.gateways.http.metrics import Metrics
from asterism.gateways.http.origins import Origins, check_once, hosts_of, origins_of
from asterism.gateways.http.processes import Processes
from asterism.gateways.http.protocol import (
    RETRY_AFTER_S,
    STALLED_S,
    Operation,
    Receive,
    RefusedError,
    Request,
    Response,
    Send,
    Stream,
    check_names,
    check_version,
    compressed,
    cors_of,
    of_error,
    parts_of,
    preflight,
    refusal_of,
    takes_gzip,
    template_of,
    with_code,
)
from asterism.gateways.http.queues import Queues
from asterism.gateways.http.routes import Routes
from asterism.gateways.http.transport import CONNECTION, GatheringProtocol, WebSocket
from asterism.gateways.http.v1_routes import paths_of
from asterism.gateways.process import (
    CONNECT_S,
    allow_many_files,
    find_broker,
    listener,
    open_door,
)
from asterism.process_host import return_large_blocks
from asterism.sdk.aio import Node, connect
from asterism.sdk.arguments import ARGUMENT_ERRORS
from asterism.wire import FRAME_BYTES_MAX

PAYLOAD_LIMIT: Final = 1_048_576
PAYLOAD_LIMIT_MAX: Final = FRAME_BYTES_MAX - 65_536  # fits a frame, with all that goes with it
GZIP_THREAD_BYTES_MIN: Final = 65_536  # a larger body is compressed beside the loop
BODIES_BYTES_MAX: Final = 256 * 1_048_576  # of all requests at a time; small ones are always taken
SMALL_BODY_BYTES: Final = 65_536
GRACE_S: Final = 5  # for what is under way when the process is told to stop
POLLS_MAX: Final = (
    9_000  # clients that wait: of the 10,000 requests to the broker, others need some
)
LAST_WORD_S: Final = 1.0  # to write the end of a stream
SOCKET_BYTES_MAX: Final = 1_048_576  # of what comes by a WebSocket at a time
FILES_KEPT: Final = 256  # for all else than connections
CONNECTIONS_MIN: Final = 64
LOOK_TICKS: Final = round(LOOK_S * 10)  # uvicorn's server ticks ten times a second
log = logging.getLogger("asterism.http")


class GoneError(Exception):
    """The client has hung up."""


class Connection(Protocol):
    """What a request comes in by."""

    is_lost: bool
    on_lost: Callable[[], object] | None


class Limits(NamedTuple):
    """How many bytes a body may have."""

    body: int = PAYLOAD_LIMIT
    payload: int = PAYLOAD_LIMIT  # that of set
    is_told: bool = False  # it holds for every body, also where more would be taken

    def of(self, operation: Operation, is_set: bool) -> tuple[int, str]:
        """The limit of an operation, and the setting by which it can be raised."""
        if is_set:
            may_rise = self.payload < PAYLOAD_LIMIT_MAX
            return self.payload, "set_payload_limit" if may_rise else ""
        most = self.body if self.is_told else max(self.body, operation.body_bytes_max)
        return most, "payload_limit"


class Application:
    """Takes requests, and answers them with what the broker says."""

    def __init__(
        self, node: Node, limits: Limits, password: str, origins: Origins | None = None
    ) -> None:
        self._limits = limits
        self._origins = origins or Origins()
        self._queues = Queues(node, limits.payload)
        self._admin = Admin(node, self._queues, password)
        processes = Processes(node)
        metrics = Metrics(node, processes)
        self._paths = Routes(self._queues, self._admin, paths_of(node), processes, metrics).paths
        self._waiting: set[asyncio.Future[Any]] = set()  # long polls and streams
        self._polls = 0
        self._bodies_bytes = 0  # of all requests that are not answered yet
        self._is_stopping = False

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        method = scope.get("method", "GET")
        request = Request(method, (), dict(scope["headers"]), query=scope["query_string"])
        request.peer = (scope.get("client") or ("",))[0]
        is_core = scope["raw_path"].startswith(b"/v1/")
        try:
            self._origins.check_host(request.headers)
            check_once(scope["headers"])
            if scope["type"] == "websocket":
                await self._talk(request, scope, receive, send)
                return
            response = await self._answer(request, scope, receive)
        except RefusedError as refused:
            response = (with_code(refused) if is_core else refused).response()
        except PeerError as error:
            response = _told(error, request, is_core)
        except ARGUMENT_ERRORS as error:
            response = _told(error.refusal, request, is_core)
        except (TimeoutError, ConnectionError) as error:
            away = PeerError("busy", f"the broker does not answer: {error}")
            response = _told(away, request, is_core)
        except GoneError:
            return
        if response.stream is not None:
            await self._stream(request, response, response.stream, receive, send)
        else:
            is_socket = scope["type"] == "websocket"
            await self._send(request, response, send, "websocket" if is_socket else "")

    def _operations(self, request: Request, raw_path: bytes) -> dict[str, Operation]:
        """What there is on the path of a request."""
        request.parts = parts_of(raw_path.partition(b"?")[0])
        template, request.names = template_of(request.parts)
        operations = self._paths.get(template)
        is_list = request.method in ("GET", "HEAD")
        if operations is None or (request.parts == ("mq", "") and is_list):
            raise RefusedError(404, "there is no such path; /docs shows what there is")
        check_names(request.names)
        check_version(request.header(b"accept-version"))
        return operations

    async def _answer(self, request: Request, scope: dict[str, Any], receive: Receive) -> Response:
        operations = self._operations(request, scope["raw_path"])
        operation = _operation(operations, request.method)
        self._origins.check(request.headers, operation is not None and operation.safe)
        if operation is None:
            allowed = _allowed(operations)
            if request.method == "OPTIONS":
                return preflight(request, allowed)
            raise RefusedError(405, f"there is {allowed} here", ((b"allow", allowed.encode()),))
        if operation.private or (operation.guarded and self._admin.has_password):
            self._admin.check(request)
        limit = self._limits.of(operation, operation.run == self._queues.set)
        request.body = await self._body(request, receive, *limit)
        try:
            if operation.waits and operation.waits_with in request.query:
                return await self._wait(operation, request, scope.get(CONNECTION))
            return await operation.run(request)
        finally:
            self._bodies_bytes -= len(request.body)

    async def _body(self, request: Request, receive: Receive, limit: int, setting: str) -> bytes:
        """The body of a request; refused as soon as it is too large, or all bodies together are."""
        told = request.headers.get(b"content-length", b"")
        if told.isdigit() and int(told) > limit:
            raise _too_large(limit, setting)
        body = bytearray()
        try:
            while True:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise GoneError
                piece = event.get("body", b"")
                body += piece
                self._bodies_bytes += len(piece)
                if len(body) > limit:
                    raise _too_large(limit, setting)
                if self._bodies_bytes > BODIES_BYTES_MAX and len(body) > SMALL_BODY_BYTES:
                    raise _later("the bodies of many requests are large: try again")
                if not event.get("more_body"):
                    return bytes(body)
        except BaseException:
            self._bodies_bytes -= len(body)
            raise

    # --- WebSockets and streams -------------------------------------------------------------

    async def _talk(
        self, request: Request, scope: dict[str, Any], receive: Receive, send: Send
    ) -> None:
        """Hands a WebSocket over to who talks there."""
        await receive()  # that it wants to connect
        self._origins.check(request.headers, safe=False)
        operation = self._operations(request, scope["raw_path"]).get("GET")
        if operation is None or operation.socket is None:
            raise RefusedError(404, "there is no WebSocket on this path; /docs shows where one is")
        if self._is_stopping:
            raise _stopping()
        await operation.socket(request, receive, send)

    async def _stream(
        self, request: Request, response: Response, stream: Stream, receive: Receive, send: Send
    ) -> None:
        """Writes piece by piece, until there is no more or the client hangs up."""
        headers = self._headers(request, response)
        writing = asyncio.ensure_future(_write(response.status, headers, stream, send))
        hung_up = asyncio.ensure_future(_until_gone(receive))
        self._waiting.add(writing)
        if self._is_stopping:
            writing.cancel()
        try:
            await asyncio.wait((writing, hung_up), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.discard(writing)
            writing.cancel()
            hung_up.cancel()
            await asyncio.gather(writing, hung_up, return_exceptions=True)
            await stream.close()
        if not writing.cancelled():
            writing.result()

    # --- long polls -------------------------------------------------------------------------

    async def _wait(
        self, operation: Operation, request: Request, connection: Connection | None
    ) -> Response:
        """Answers when there is something, unless the client hangs up before.

        Whoever waits is cancelled then, also in the very moment that it has an answer: the client
        of the broker gives back what a cancelled order or pull has brought.
        """
        if self._is_stopping:
            raise _stopping()
        if self._polls >= POLLS_MAX:
            raise _later(f"{POLLS_MAX} clients wait at this door: try again, or at another door")
        if connection is None or connection.is_lost:
            raise GoneError
        poll = asyncio.current_task()
        assert poll is not None
        connection.on_lost = poll.cancel
        self._waiting.add(poll)
        self._polls += 1
        try:
            return await operation.run(request)
        except asyncio.CancelledError:
            if not connection.is_lost and not self._is_stopping:
                raise
            poll.uncancel()
            raise GoneError if connection.is_lost else _stopping() from None
        finally:
            self._waiting.discard(poll)
            self._polls -= 1
            connection.on_lost = None

    def stop(self) -> None:
        """Ends the long polls, so that their clients look for a service elsewhere, or later."""
        self._is_stopping = True
        for answer in list(self._waiting):
            answer.cancel()

    # --- answering --------------------------------------------------------------------------

    def _headers(self, request: Request, response: Response) -> list[tuple[bytes, bytes]]:
        headers = [(b"cache-control", b"private, no-cache"), *response.headers]
        origin = request.headers.get(b"origin")
        if origin is not None:
            headers += cors_of(origin, self._origins.allows(request.headers))
        if response.media is not None:
            headers.append((b"content-type", response.media.encode("latin-1", "replace")))
            headers += response.policy
        return headers

    async def _send(
        self, request: Request, response: Response, send: Send, refuses: str = ""
    ) -> None:
        """Answers; a WebSocket that is refused is answered as any request is."""
        accepted = request.header(b"accept-encoding")
        if len(response.body) > GZIP_THREAD_BYTES_MIN and takes_gzip(accepted):
            response = await asyncio.to_thread(compressed, response, accepted)
        else:
            response = compressed(response, accepted)
        headers = self._headers(request, response)
        if response.status != 204 and not refuses:  # uvicorn says it there, in some versions again
            headers.append((b"content-length", b"%d" % len(response.body)))
        kind = f"{refuses}.http.response" if refuses else "http.response"
        await send({"type": f"{kind}.start", "status": response.status, "headers": headers})
        body = b"" if request.method == "HEAD" else response.body
        await send({"type": f"{kind}.body", "body": body})


def _told(error: PeerError, request: Request, is_core: bool) -> Response:
    return refusal_of(error).response() if is_core else of_error(error, request.names)


def _later(message: str) -> RefusedError:
    return RefusedError(503, message, ((b"retry-after", b"%d" % RETRY_AFTER_S),))


def _stopping() -> RefusedError:
    return _later("the service is being stopped: try again")


def _operation(operations: dict[str, Operation], method: str) -> Operation | None:
    if method == "HEAD":
        held = operations.get("GET")
        return held if held is not None and held.safe else None
    return operations.get(method)


def _allowed(operations: dict[str, Operation]) -> str:
    head = ["HEAD"] if "GET" in operations and operations["GET"].safe else []
    return ", ".join([*operations, *head, "OPTIONS"])


def _too_large(limit: int, setting: str) -> RefusedError:
    otherwise = f", or raise http.{setting} (MQ_{setting.upper()})" if setting else ""
    return RefusedError(413, f"the body may have {limit} bytes: send less{otherwise}")


async def _write(
    status: int, headers: list[tuple[bytes, bytes]], stream: Stream, send: Send
) -> None:
    """Writes a stream to its end, or until the client reads no more of it."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    try:
        async for piece in stream.pieces():
            async with asyncio.timeout(STALLED_S):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    except TimeoutError:
        log.info("a client reads nothing of its stream any more")
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD_S):
                await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# --- the process --------------------------------------------------------------------------------


def limits_of(settings: Settings) -> Limits:
    """What the settings say about bodies."""
    told = settings.payload_limit
    body = PAYLOAD_LIMIT if told is None else told
    payload = body if settings.set_payload_limit is None else settings.set_payload_limit
    return Limits(body, min(payload, PAYLOAD_LIMIT_MAX), told is not None)


def origins_and_hosts(settings: Settings, listens: str) -> Origins:
    """What the settings say about pages, and about the names of this service."""
    named, _ = read_listen(settings.listen)
    # In `listen` it means every address, among hosts every name.
    own = () if named == EVERYWHERE else (named,)
    return Origins((*hosts_of(settings.hosts), *own), origins_of(settings.cors_origins), listens)


def patience_of(settings: Settings, files: int) -> Patience:
    """What the settings say about connections; each is one of so many files."""
    most = max(files - FILES_KEPT, CONNECTIONS_MIN)
    return Patience(
        settings.request_timeout, settings.idle_timeout, min(settings.connections, most)
    )


class _Server(uvicorn.Server):
    """Ends the long polls when it is told to stop: they would never end by themselves."""

    def __init__(
        self, config: uvicorn.Config, application: Application, all_of: Connections
    ) -> None:
        super().__init__(config)
        self._application = application
        self._all = all_of

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Takes signals as uvicorn does, which would raise them anew in the end.

        The process would be gone before the broker is told so, with what is to be given back.
        """
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    async def on_tick(self, counter: int) -> bool:
        ends = await super().on_tick(counter)
        if counter % LOOK_TICKS == 0:
            self._all.look(asyncio.get_running_loop().time())
        if ends:
            self._application.stop()
        return ends


async def _serve(config: Config, name: str) -> None:
    told = config.door(DOOR)
    listening = listener(config, DOOR)
    host, port = listening.getsockname()[:2]
    origins = origins_and_hosts(told, host)
    all_of = Connections(patience_of(told, allow_many_files()))
    # What is pulled here is held by somebody without a session: the broker's deadlines are for him.
    address = await find_broker(config)
    async with connect(address, name, timeout=CONNECT_S, max_lease=0) as node:
        application = Application(node, limits_of(told), told.admin_password, origins)
        settings = uvicorn.Config(
            application,
            http=partial(GatheringProtocol, all_of=all_of),  # type: ignore[arg-type]
            ws=WebSocket,
            lifespan="off",
            proxy_headers=False,
            ws_max_size=SOCKET_BYTES_MAX,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            headers=[("x-content-type-options", "nosniff")],
            timeout_keep_alive=round(all_of.patience.idle_s),
            timeout_graceful_shutdown=GRACE_S,
        )
        server = _Server(settings, application, all_of)
        open_door(config, DOOR, name, listening, url=f"http://{listen_text(host, port)}")
        await server.serve([listening])


def run(config: Config, name: str) -> None:
    """Runs the door until it is told to stop; it has a file of this name in the run folder."""
    return_large_blocks()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, name))
    log.info("has stopped")
