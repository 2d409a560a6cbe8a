"""The socket of a lane beneath an asyncio client: straight to a worker of this machine."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from asterism.errors import PeerError
from asterism.wire import Part, PartStream

READ_BYTES: Final = 256 << 10  # before others on the loop get their turn
SOCKET_BUFFER_BYTES: Final = 1 << 20  # as far as the system allows

OnParts = Callable[[bytes, list[Part]], None]


class Lane:
    """A connection to a worker, and what waits for it to take more."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: str,
        token: bytes,
        on_parts: OnParts,
        on_lost: Callable[[], None],
    ) -> None:
        """Connects; ``OSError`` where no worker listens there."""
        self._loop = loop
        self._on_parts = on_parts
        self._on_lost = on_lost
        self._outbox: deque[bytes] = deque()
        self._stream = PartStream()
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._is_open = True
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.connect(path)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
            self._socket.send(token)
        except OSError:
            self._socket.close()
            raise

    def read_on(self) -> None:
        """Begins to read."""
        if self._is_open:
            self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        try:
            size = self._socket.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self._lose()
            return
        try:
            data, parts = self._stream.take(bytes(self._view[:size]))
        except PeerError:
            self._lose()
            return
        self._on_parts(data, parts)

    def send(self, parts: list[bytes]) -> None:
        """Sends parts, now or as soon as the worker takes them."""
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if self._outbox:
            self._outbox.append(data)
            return
        sent = self._send(data)
        if sent < len(data) and self._is_open:
            self._outbox.append(data[sent:])
            self._loop.add_writer(self._socket.fileno(), self._on_writable)

    def _send(self, data: bytes) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            # Not from within whoever sends: he is in the midst of something.
            self._loop.call_soon(self._lose)
            return 0

    def _on_writable(self) -> None:
        while self._outbox:
            data = self._outbox[0]
            sent = self._send(data)
            if sent < len(data):
                self._outbox[0] = data[sent:]
                return
            self._outbox.popleft()
        self._loop.remove_writer(self._socket.fileno())

    def _lose(self) -> None:
        if self._is_open:
            self.close()
            self._on_lost()

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
