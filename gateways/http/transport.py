"""uvicorn's HTTP, with an answer in one write, and with a sign when a client has hung up.

uvicorn writes the head of an answer and its body one after the other: two system calls, and a
client that is woken twice. What is written in one turn of the loop goes out together here. And it
tells that a client is gone only to who asks for more of its request, one turn late; who waits for
something else is told by ``on_lost``, at once. What cannot be a request is answered as any other
mistake is; and nothing that a client sends, or does not read, may grow or last for ever.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NoReturn

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from asterism.gateways.http.connections import RATE_MIN, Connections
from asterism.gateways.http.protocol import RETRY_AFTER_S, RefusedError

CONNECTION: Final = "asterism.connection"  # where a request's scope has its connection
HEAD_BYTES_MAX: Final = 65_536  # of a request line and headers
HEADERS_MAX: Final = 256  # of a request, with those behind its body
AHEAD_MAX: Final = 64  # requests that a client sends before the first of them is answered
FRAGMENTS_MAX: Final = 4_096  # of one message of a WebSocket; empty ones have no size to be bound
SOCKET_AHEAD_BYTES: Final = 1_048_576  # from a WebSocket that does not read: each ping is answered


class GatheringTransport:
    """A transport that writes once an answer, or once a turn; in all else the one beneath."""

    def __init__(
        self, beneath: asyncio.Transport, loop: asyncio.AbstractEventLoop, all_of: Connections
    ) -> None:
        self._beneath = beneath
        self._loop = loop
        self._all = all_of
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append(data)

    def flush(self) -> None:
        """Writes what has gathered."""
        pieces, self._pieces = self._pieces, []
        if pieces and not self._beneath.is_closing():
            self._beneath.write(b"".join(pieces))

    def close(self) -> None:
        self.flush()
        self._beneath.close()
        if self._beneath.get_write_buffer_size():
            self.clogs()

    def clogs(self) -> None:
        """There is more to be read than the client has read."""
        self._all.clogs(self, self._loop.time())

    def flows(self) -> None:
        """There is not any more, or nobody to read it."""
        self._all.flows(self)

    def get_write_buffer_size(self) -> int:
        return self._beneath.get_write_buffer_size()

    def abort(self) -> None:
        self._beneath.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)


class GatheringProtocol(HttpToolsProtocol):
    """One connection. Its requests are answered one at a time, so one at most waits."""

    transport: GatheringTransport  # type: ignore[assignment]
    is_lost = False
    on_lost: Callable[[], object] | None = None
    due_s = 0.0  # when what it owes has to be there, while it owes something
    _is_coming = False  # a request has begun and is not whole yet
    _head_bytes = 0  # that have come of a head that is not whole yet
    _body_bytes = 0  # that have come of a body since it was given its time
    _wrong = (400, "this is not a request of HTTP/1.1, or its address is far too long")

    def __init__(self, *, all_of: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._all = all_of

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(GatheringTransport(transport, self.loop, self._all))  # type: ignore[arg-type]
        self._owe(self._all.patience.request_s)
        if not self._all.make_room(self, len(self.connections)):
            later = (b"retry-after", b"%d" % RETRY_AFTER_S)
            self._refuse(503, "all connections are in use: try again, or at another door", later)

    def _owe(self, patience_s: float) -> None:
        self.due_s = self.loop.time() + patience_s
        self._all.owing[self] = None

    def give_up(self, now_s: float) -> None:
        if self.flow.read_paused:  # what it has sent is not read yet: it owes nothing
            self.due_s = now_s + self._all.patience.request_s
            return
        del self._all.owing[self]
        has_head = self.scope is not None and "method" in self.scope
        if not self._is_coming or (has_head and self.cycle.response_started):
            self.transport.close()
        else:
            self._refuse(408, "the rest of this request did not come in time")

    def cut(self) -> None:
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.scope is None or "method" in self.scope:  # a head that has come whole has one
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._refuse(431, f"a request may have {HEAD_BYTES_MAX} bytes before its body")

    def send_400_response(self, msg: str) -> None:
        """Answers what cannot be read; uvicorn calls this."""
        self._refuse(*self._wrong)

    def _refuse(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        told = [*self.server_state.default_headers, *headers]
        self.transport.write(last_answer(status, message, told))
        self.transport.close()

    def _stop_reading(self, status: int, message: str) -> NoReturn:
        """Ends the parser, which has uvicorn answer."""
        self._wrong = (status, message)
        raise ValueError(message)

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= HEADERS_MAX:
            self._stop_reading(431, f"a request may have {HEADERS_MAX} headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= AHEAD_MAX:
            self._stop_reading(429, f"send at most {AHEAD_MAX} requests ahead of their answers")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes >= RATE_MIN * self._all.patience.request_s:
            self._body_bytes = 0
            self.due_s = self.loop.time() + self._all.patience.request_s
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_coming = False
        self._all.owing.pop(self, None)

    def handle_websocket_upgrade(self) -> None:
        self._all.owing.pop(self, None)
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.clogs()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.transport.flows()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        self._is_coming = True
        self._body_bytes = 0
        self.due_s = self.loop.time() + self._all.patience.request_s

    def on_response_complete(self) -> None:
        self.transport.flush()
        super().on_response_complete()
        if self.is_lost:
            return
        if self._is_coming:
            self._owe(self._all.patience.request_s)
        elif self.cycle.response_complete:
            self._owe(self._all.patience.idle_s)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._all.owing.pop(self, None)
        self.transport.flows()
        self.is_lost = True
        if self.on_lost is not None:
            self.on_lost()
        if self.scope is not None:  # so that nothing holds itself
            self.scope.pop(CONNECTION, None)  # type: ignore[typeddict-item]


class WebSocket(WebSocketsSansIOProtocol):
    """One WebSocket. What cannot begin one is answered, where uvicorn would leave it open."""

    transport: GatheringTransport  # type: ignore[assignment]
    _ahead_bytes = 0  # that have come while the client did not read

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.transport.flows()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._ahead_bytes = 0 if self.writable.is_set() else self._ahead_bytes + len(data)
        if self._ahead_bytes > SOCKET_AHEAD_BYTES or len(self.frames) > FRAGMENTS_MAX:
            self.transport.abort()
            return
        if self.conn.handshake_exc is None or self.handshake_initiated:
            return
        said = b"".join(self.conn.data_to_send())
        wrong = f"this cannot begin a WebSocket: {self.conn.handshake_exc}"
        self.close_sent = True
        self.transport.write(said or last_answer(400, wrong, self.default_headers))
        self.transport.close()


def last_answer(status: int, message: str, headers: list[tuple[bytes, bytes]]) -> bytes:
    """An answer in place of the application's, before the door hangs up."""
    response = RefusedError(status, message).response()
    assert response.media is not None
    told = (
        *headers,
        (b"content-type", response.media.encode()),
        (b"content-length", b"%d" % len(response.body)),
        (b"connection", b"close"),
    )
    lines = b"".join(b"%b: %b\r\n" % header for header in told)
    return STATUS_LINE[status] + lines + b"\r\n" + response.body
