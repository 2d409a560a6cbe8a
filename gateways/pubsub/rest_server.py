"""The HTTP/1.1 server of REST: requests come in, rpcs run, JSON goes out.

A connection has one request under way at a time. A client that hangs up has its rpc cancelled, so
that a pull that nobody waits for takes no messages. Whatever a client can send, or leave
unsent, has a bound. Where there is no room for another connection, the one that has been waited for
longest ends: a client that is idle, or sends its request or reads its answer slowly. One whose rpc
is under way stays.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import h11

from asterism.gateways.pubsub.errors import HTTP_STATUS, Code, Refusal, json_body
from asterism.gateways.pubsub.origins import check_page
from asterism.gateways.pubsub.rest import find_call, json_bytes, json_of, request_of

HEAD_BYTES_MAX: Final = 65_536  # of a request's first line and headers; 431
BODY_BYTES_MAX: Final = 15 * 1_048_576  # 10 MiB of messages, in base64; 413
BODIES_BYTES_MAX: Final = 256 * 1_048_576  # of all requests at a time; 503
CONNECTIONS_MAX: Final = 1_024  # past it one that is waited for ends, or else the new one
IDLE_S: Final = 75.0  # for the next request on a connection
HEAD_S: Final = 10.0  # for a head to arrive, from its first byte to its last
BODY_S: Final = 30.0  # for the body to arrive behind it
WRITE_S: Final = 30.0  # for a client to read its answer
LINGER_S: Final = 1.0  # for a client that is refused to read why
READ_BYTES: Final = 65_536
HEALTHY: Final = b"Ok\n"
log = logging.getLogger("asterism.pubsub")


class Rpc(Protocol):
    """What the server has to know of an rpc."""

    @property
    def request(self) -> Any:
        """The protobuf class of its request."""

    @property
    def call(self) -> Callable[[Any], Awaitable[Any]]:
        """Takes a request and returns the reply."""


class _Request(NamedTuple):
    method: str
    target: str
    headers: Mapping[bytes, bytes]
    body: bytes


class _Answer(NamedTuple):
    status: int
    body: bytes
    kind: str = "application/json; charset=UTF-8"


class _Bodies:
    """The bytes of all bodies that are held, and the most that may be."""

    def __init__(self) -> None:
        self.held_bytes = 0

    def take(self, count: int) -> None:
        if self.held_bytes + count > BODIES_BYTES_MAX:
            raise _HttpError(503, "Too many requests are under way: try again later.")
        self.held_bytes += count

    def give_back(self, count: int) -> None:
        self.held_bytes -= count


class _HttpError(Exception):
    """A request that is not even HTTP as it is spoken here; the connection ends behind it."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail


class _GoneError(Exception):
    """The client has hung up, or said nothing for too long."""


class RestServer:
    """Serves rpcs, each by its name such as ``google.pubsub.v1.Publisher/Publish``.

    ``refusal_for`` makes a refusal of what an rpc raises, or returns none for an error of ours.
    ``is_local`` says that nobody but this machine can connect.
    """

    def __init__(
        self,
        rpcs: Mapping[str, Rpc],
        refusal_for: Callable[[Exception], Refusal | None],
        is_local: bool = True,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._rpcs = rpcs
        self._refusal_for = refusal_for
        self._is_local = is_local
        self._connections_max = connections_max
        self._bodies = _Bodies()
        self._serving: dict[asyncio.Task[None], _Connection] = {}
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        """Serves connections of a bound socket from here on."""
        self._server = await asyncio.start_server(self._accept, sock=listening, limit=READ_BYTES)

    async def close(self) -> None:
        """Stops listening, and ends what is under way."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= self._connections_max and not self._make_room():
            writer.transport.abort()
            return
        connection = _Connection(reader, writer, self._bodies, self._answer)
        task = asyncio.ensure_future(connection.serve())
        self._serving[task] = connection
        task.add_done_callback(self._serving.pop)

    def _make_room(self) -> bool:
        """Ends the connection that has been waited for longest; is there one?"""
        waited_for = [each for each in self._serving.values() if each.waited_since_s is not None]
        if not waited_for:
            return False
        min(waited_for, key=lambda each: each.waited_since_s or 0.0).abort()
        return True

    async def _answer(self, request: _Request) -> _Answer:
        """Runs the rpc that a request is for."""
        is_pretty = True
        try:
            check_page(request.headers, self._is_local)
            if request.target == "/" and request.method in ("GET", "HEAD"):
                return _Answer(200, HEALTHY, "text/plain; charset=UTF-8")
            call = find_call(request.method, request.target)
            is_pretty = call.is_pretty
            rpc = self._rpcs.get(call.route.rpc)
            if rpc is None:
                raise Refusal(Code.UNIMPLEMENTED, f"{call.route.rpc} is not implemented here.")
            reply = await rpc.call(request_of(call, rpc.request, request.body))
            return _Answer(200, json_of(reply, is_pretty))
        except Exception as error:
            refusal = self._refusal_for(error)
            if refusal is None:
                log.exception("%s %s: internal error", request.method, request.target[:200])
                refusal = Refusal(Code.INTERNAL, "Internal error: the log of the door has more.")
        return _Answer(HTTP_STATUS[refusal.code], json_bytes(json_body(refusal), is_pretty))


class _Connection:
    """One connection of a client, from its first request to its last."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        bodies: _Bodies,
        answer: Callable[[_Request], Awaitable[_Answer]],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._bodies = bodies
        self._answer = answer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._held_bytes = 0  # of the body of this request
        self._is_head = False
        # Since when it is the client's turn; none while an rpc is under way.
        self.waited_since_s: float | None = asyncio.get_running_loop().time()

    def abort(self) -> None:
        """Ends the connection without a word."""
        self.waited_since_s = None
        self._writer.transport.abort()

    async def serve(self) -> None:
        try:
            while await self._serve_one():
                self._http.start_next_cycle()
        except (_GoneError, OSError, TimeoutError):
            pass
        finally:
            self._let_go()
            await self._hang_up()

    async def _serve_one(self) -> bool:
        """Answers one request; may another one follow?"""
        try:
            request = await self._read()
        except h11.RemoteProtocolError as error:
            await self._refuse(_HttpError(error.error_status_hint, f"This is not HTTP: {error}."))
            return False
        except _HttpError as error:
            await self._refuse(error)
            return False
        if request is None:
            return False
        self.waited_since_s = None
        answer = await self._unless_gone(request)
        self.waited_since_s = asyncio.get_running_loop().time()
        self._let_go()
        await self._send(answer)
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    # --- reading --------------------------------------------------------------------------------

    async def _read(self) -> _Request | None:
        """The next request; none where the client is done, or says nothing for too long."""
        async with asyncio.timeout(IDLE_S) as limit:
            has_begun = False
            while (event := self._http.next_event()) is h11.NEED_DATA:
                if not has_begun and self._http.trailing_data[0]:
                    has_begun = True
                    limit.reschedule(asyncio.get_running_loop().time() + HEAD_S)
                self._http.receive_data(await self._reader.read(READ_BYTES))
            if not isinstance(event, h11.Request):
                return None
        async with asyncio.timeout(BODY_S):
            return await self._read_rest(event)

    async def _read_rest(self, head: h11.Request) -> _Request:
        if head.http_version not in (b"1.0", b"1.1"):
            raise _HttpError(400, "This port speaks HTTP/1.1 for REST; gRPC has one of its own.")
        method = head.method.decode("ascii")
        self._is_head = method == "HEAD"
        length = dict(head.headers).get(b"content-length", b"0")
        if length.isdigit() and int(length) > BODY_BYTES_MAX:
            raise _too_large()
        if self._http.they_are_waiting_for_100_continue:
            self._writer.write(
                self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b""
            )
        body = bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(READ_BYTES))
            elif isinstance(event, h11.Data):
                self._bodies.take(len(event.data))
                self._held_bytes += len(event.data)
                body += event.data
                if len(body) > BODY_BYTES_MAX:
                    raise _too_large()
            elif isinstance(event, h11.EndOfMessage):
                target = head.target.decode("latin-1")
                return _Request(method, target, dict(head.headers), bytes(body))
            else:
                raise _GoneError

    async def _unless_gone(self, request: _Request) -> _Answer:
        """The answer to a request; it is given up as soon as the client hangs up."""
        running = asyncio.ensure_future(self._answer(request))
        # What comes meanwhile is kept for the next request: one piece, and no more is read.
        reading = asyncio.ensure_future(self._reader.read(READ_BYTES))
        try:
            await asyncio.wait((running, reading), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                piece = reading.result()
                if not piece and not running.done():
                    raise _GoneError
                self._http.receive_data(piece)
            return await running
        finally:
            # A read that is cancelled has taken nothing from what is still to come.
            for task in (running, reading):
                task.cancel()
            await asyncio.gather(running, reading, return_exceptions=True)

    # --- writing --------------------------------------------------------------------------------

    async def _refuse(self, error: _HttpError) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        code = Code.UNAVAILABLE if error.status == 503 else Code.INVALID_ARGUMENT
        body = json_body(Refusal(code, error.detail))
        body["error"]["code"] = error.status
        await self._send(_Answer(error.status, json_bytes(body, True)), is_last=True)
        # A connection that is closed with something unread is reset, and the answer lost.
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(LINGER_S):
                if self._writer.can_write_eof():
                    self._writer.write_eof()
                while await self._reader.read(READ_BYTES):
                    pass

    async def _send(self, answer: _Answer, is_last: bool = False) -> None:
        headers = [
            ("Content-Type", answer.kind),
            ("Content-Length", str(len(answer.body))),
            *([("Connection", "close")] if is_last else []),
        ]
        parts = [
            self._http.send(h11.Response(status_code=answer.status, headers=headers)),
            b"" if self._is_head else self._http.send(h11.Data(data=answer.body)),
            self._http.send(h11.EndOfMessage()),
        ]
        self._writer.write(b"".join(part or b"" for part in parts))
        async with asyncio.timeout(WRITE_S):
            await self._writer.drain()

    def _let_go(self) -> None:
        self._bodies.give_back(self._held_bytes)
        self._held_bytes = 0

    async def _hang_up(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(WRITE_S):
                await self._writer.wait_closed()


def _too_large() -> _HttpError:
    return _HttpError(413, f"The body may have {BODY_BYTES_MAX} bytes.")
