"""The socket beneath an asyncio client, on the loop by its descriptor.

The descriptor is edge-triggered: whenever the socket was touched, it has to be read until nothing
is left. A socket is used for one connection; after that connection was lost, a new one is opened.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import zmq

from asterism.frames_host import is_readable, receive, send
from asterism.sdk.producing import RETRY_MS_MIN
from asterism.wire import TOGETHER_BYTES_MAX, TOGETHER_MAX

DRAIN_MAX: Final = 256  # messages read before others on the loop get their turn
SEND_FRAMES_MAX: Final = 1_000  # frames in the socket; what is behind them waits here
RECEIVE_FRAMES_MAX: Final = 10_000

_EVENT: Final = struct.Struct("=hi")

RECONNECT_MS_MAX: Final = 250  # between two tries while nobody listens: a restart takes no longer


class Link:
    """The socket of a node, the one that it has at the moment, and the parts that wait for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_frame: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._on_frame = on_frame
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self.is_open = False  # is there a socket?
        self._monitor: Any = None
        self.outbox: deque[bytes] = deque()

    def open(self, address: str, on_ready: Callable[[], None], on_lost: Callable[[], None]) -> None:
        """Connects a new socket."""
        assert self._socket is None
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.linger = 0
            socket.ipv6 = True  # addresses of both kinds
            socket.sndhwm = SEND_FRAMES_MAX
            socket.rcvhwm = RECEIVE_FRAMES_MAX
            socket.reconnect_ivl = RETRY_MS_MIN
            socket.reconnect_ivl_max = RECONNECT_MS_MAX
            socket.connect(address)
        except BaseException as error:
            socket.close()  # else the context waits for it for ever
            if not isinstance(error, zmq.ZMQError):
                raise
            raise ValueError(f"cannot connect to {address!r}: {error}") from None
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket = socket
        self.is_open = True
        self._loop.add_reader(self._fd(), on_ready)
        self._loop.add_reader(self._monitor.fd, self._read_monitor, on_lost)
        # Its descriptor speaks up only once somebody has looked and found nothing.
        self._read_monitor(on_lost)

    def _read_monitor(self, on_lost: Callable[[], None]) -> None:
        while self._monitor is not None and is_readable(self._monitor):
            what, _ = _EVENT.unpack(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
            if what == zmq.EVENT_DISCONNECTED:
                on_lost()
                return

    def _fd(self) -> int:
        assert self._socket is not None
        descriptor = self._socket.fd
        assert isinstance(descriptor, int)
        return descriptor

    def send(self) -> None:
        """Sends what waits, as far as the socket takes it; its descriptor tells when more goes."""
        if self._socket is None:
            return
        outbox = self.outbox
        while outbox:
            count, frame = self._together()
            try:
                send(self._socket, (frame,))
            except zmq.Again:
                return
            for _ in range(count):
                outbox.popleft()

    def _together(self) -> tuple[int, bytes]:
        """The first of what waits, as many as go in one frame."""
        outbox = self.outbox
        if len(outbox) == 1:
            return 1, outbox[0]
        size = 0
        parts: list[bytes] = []
        for part in islice(outbox, TOGETHER_MAX):
            size += len(part)
            if parts and size > TOGETHER_BYTES_MAX:
                break
            parts.append(part)
        return len(parts), b"".join(parts)

    def read(self) -> bool:
        """Hands on what has arrived; true if there is more than fits in one turn."""
        for _ in range(DRAIN_MAX):
            socket = self._socket  # what is handed on may close it
            if socket is None or not is_readable(socket):
                return False
            self._on_frame(receive(socket))
        return True

    def close(self) -> None:
        self.outbox.clear()
        if self._socket is None:
            return
        self._loop.remove_reader(self._fd())
        socket, self._socket = self._socket, None
        self.is_open = False
        monitor, self._monitor = self._monitor, None
        self._loop.remove_reader(monitor.fd)
        socket.disable_monitor()
        monitor.close(linger=0)
        socket.close(linger=0)

    def end(self) -> None:
        self.close()
        self._context.term()
