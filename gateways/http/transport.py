"""uvicorn's HTTP, with an answer in one write.

uvicorn writes the head of an answer and its body one after the other: two system calls, and a
client that is woken twice. What is written in one turn of the loop goes out together here.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class GatheringTransport:
    """A transport that writes once a turn; in everything else the one beneath."""

    def __init__(self, beneath: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._beneath = beneath
        self._loop = loop
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)

    def _flush(self) -> None:
        pieces, self._pieces = self._pieces, []
        if pieces and not self._beneath.is_closing():
            self._beneath.write(b"".join(pieces))

    def close(self) -> None:
        self._flush()
        self._beneath.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)


class GatheringProtocol(HttpToolsProtocol):
    """One connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(GatheringTransport(transport, self.loop))  # type: ignore[arg-type]
