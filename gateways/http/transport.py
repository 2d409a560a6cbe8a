"""uvicorn's HTTP, with an answer in one write, and with a sign when a client has hung up.

uvicorn writes the head of an answer and its body one after the other: two system calls, and a
client that is woken twice. What is written in one turn of the loop goes out together here. And it
tells that a client is gone only to who asks for more of its request, one turn late; who waits for
something else is told by ``on_lost``, at once. What cannot be a request is answered as any other
mistake is, and the head of one may not grow for ever.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from asterism.gateways.http.protocol import RefusedError

CONNECTION: Final = "asterism.connection"  # where a request's scope has its connection
HEAD_BYTES_MAX: Final = 65_536  # of a request line and headers that come in pieces


class GatheringTransport:
    """A transport that writes once an answer, or once a turn; in all else the one beneath."""

    def __init__(self, beneath: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._beneath = beneath
        self._loop = loop
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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)


class GatheringProtocol(HttpToolsProtocol):
    """One connection. Its requests are answered one at a time, so one at most waits."""

    is_lost = False
    on_lost: Callable[[], object] | None = None
    _head_bytes = 0  # that have come of a head that is not whole yet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(GatheringTransport(transport, self.loop))  # type: ignore[arg-type]

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
        self._refuse(400, "this is not a request of HTTP/1.1, or its address is far too long")

    def _refuse(self, status: int, message: str) -> None:
        self.transport.write(last_answer(status, message, self.server_state.default_headers))
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.is_lost = True
        if self.on_lost is not None:
            self.on_lost()
        if self.scope is not None:  # so that nothing holds itself
            self.scope.pop(CONNECTION, None)  # type: ignore[typeddict-item]


class WebSocket(WebSocketsSansIOProtocol):
    """One WebSocket. What cannot begin one is answered, where uvicorn would leave it open."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
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
