"""uvicorn's HTTP, with an answer in one write, and with a sign when a client has hung up.

uvicorn writes the head of an answer and its body one after the other: two system calls, and a
client that is woken twice. What is written in one turn of the loop goes out together here. And it
tells that a client is gone only to who asks for more of its request, one turn late; who waits for
something else is told by ``on_lost``, at once.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CONNECTION: Final = "asterism.connection"  # where a request's scope has its connection


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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(GatheringTransport(transport, self.loop))  # type: ignore[arg-type]

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
