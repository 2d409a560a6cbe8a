"""A NATS client of bytes: it sends what it is told, and reads what came, a command at a time.

It knows as much of the protocol as it takes to find the end of a command. It answers the server's
PINGs, so that slow tests live; a test about them turns that off. No read is without a deadline.
"""

import contextlib
import json
import math
import socket
import ssl
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

WAIT_S: Final = 20.0  # for what has to come; a machine may be busy
QUIET_S: Final = 0.2  # for what must not come, where no PONG can show that it did not
READ_BYTES: Final = 1 << 18
PLAIN: Final[Mapping[str, object]] = {"verbose": False, "pedantic": False}
# What nats-py and most clients ask for.
FULL: Final[Mapping[str, object]] = {**PLAIN, "headers": True, "no_responders": True}


class LateError(AssertionError):
    """What had to come within the time did not."""


class Message(NamedTuple):
    """A MSG or HMSG: ``headers`` is the block as it came, nothing for a MSG."""

    subject: bytes
    sid: bytes
    reply: bytes
    headers: bytes
    payload: bytes


def message_of(command: bytes) -> Message:
    """What a command says that has to be a MSG or HMSG."""
    line, _, body = command.partition(b"\r\n")
    verb, subject, sid, *rest = line.split(b" ")
    assert verb in (b"MSG", b"HMSG"), command
    assert body.endswith(b"\r\n"), command
    cut = 0
    size = int(rest.pop())
    if verb == b"HMSG":
        cut = int(rest.pop())
    assert len(rest) <= 1 and size == len(body) - 2, command
    return Message(subject, sid, rest[0] if rest else b"", body[:cut], body[cut:-2])


class RawClient:
    """A connection. ``connect`` is what CONNECT says; nothing for a client that does not connect.

    With ``tls`` it has its handshake after INFO, as clients do.
    """

    def __init__(
        self,
        url: str,
        connect: Mapping[str, object] | None = FULL,
        tls: ssl.SSLContext | None = None,
        receive_bytes: int | None = None,
    ) -> None:
        host, _, port = url.rpartition("/")[2].rpartition(":")
        self.socket = socket.socket()
        self.answers_pings = True
        self.pings = 0  # that came from the server
        self.infos: list[dict[str, Any]] = []  # the first, and those that came later
        self._buffer = bytearray()
        self._is_over = False
        try:
            if receive_bytes is not None:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            self.socket.settimeout(WAIT_S)
            self.socket.connect((host, int(port)))
            # Small packets are sent when they are told to be.
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.first_line = self.read_line()
            assert self.first_line.startswith(b"INFO {"), self.first_line
            self.infos.append(json.loads(self.first_line[5:]))
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname=host)
            if connect is not None:
                self.send(b"CONNECT " + json.dumps(connect).encode() + b"\r\n")
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    @property
    def info(self) -> dict[str, Any]:
        return self.infos[0]

    # --- to the server ------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.socket.settimeout(WAIT_S)
        self.socket.sendall(data)

    def shut(self) -> None:
        """Sends no more, and still reads."""
        self.socket.shutdown(socket.SHUT_WR)

    # --- from the server ----------------------------------------------------------------------

    def read_line(self, s: float = WAIT_S) -> bytes:
        """The next line, whatever it is, without its end."""
        deadline = time.monotonic() + s
        while (end := self._buffer.find(b"\r\n")) < 0:
            self._read_more(deadline)
        return self._take(end + 2)[:-2]

    def read_bytes(self, count: int, s: float = WAIT_S) -> bytes:
        deadline = time.monotonic() + s
        while len(self._buffer) < count:
            self._read_more(deadline)
        return self._take(count)

    def read_command(self, s: float = WAIT_S) -> bytes:
        """The next command, with its payload; PINGs and later INFOs are passed over."""
        deadline = time.monotonic() + s
        while True:
            while (length := self._command_length()) is None:
                self._read_more(deadline)
            command = self._take(length)
            if command == b"PING\r\n":
                self.pings += 1
                if self.answers_pings:
                    self.send(b"PONG\r\n")
            elif command.startswith(b"INFO "):
                self.infos.append(json.loads(command[5:]))
            else:
                return command

    def read_commands(self, count: int, s: float = WAIT_S) -> list[bytes]:
        deadline = time.monotonic() + s
        return [self.read_command(deadline - time.monotonic()) for _ in range(count)]

    def read_message(self, s: float = WAIT_S) -> Message:
        return message_of(self.read_command(s))

    def read_messages(self, count: int, s: float = WAIT_S) -> list[Message]:
        return [message_of(command) for command in self.read_commands(count, s)]

    def commands_until_pong(self, data: bytes = b"", s: float = WAIT_S) -> list[bytes]:
        """Sends this and a PING, in one packet if it fits; what came before the PONG."""
        deadline = time.monotonic() + s
        self.send(data + b"PING\r\n")
        commands = []
        while (command := self.read_command(deadline - time.monotonic())) != b"PONG\r\n":
            commands.append(command)
        return commands

    def until_pong(self, data: bytes = b"", s: float = WAIT_S) -> bytes:
        """As ``commands_until_pong``, in one."""
        return b"".join(self.commands_until_pong(data, s))

    def messages_until_pong(self, data: bytes = b"", s: float = WAIT_S) -> list[Message]:
        return [message_of(command) for command in self.commands_until_pong(data, s)]

    def until_closed(self, data: bytes = b"", s: float = WAIT_S) -> bytes:
        """Sends this; everything that comes until the server closes, which it has to."""
        deadline = time.monotonic() + s
        with contextlib.suppress(OSError):  # it may close before it has taken everything
            self.send(data)
        try:
            while True:
                self._read_more(deadline)
        except ConnectionError:
            return self._take(len(self._buffer))

    def commands_until_closed(self, s: float = WAIT_S) -> list[bytes]:
        """Every whole command until the server closes; PINGs are dealt with as always."""
        deadline = time.monotonic() + s
        commands = []
        try:
            while True:
                commands.append(self.read_command(deadline - time.monotonic()))
        except ConnectionError:
            return commands

    def is_quiet(self, s: float = QUIET_S) -> bool:
        """Whether nothing comes for so long, where no PONG can be asked for."""
        try:
            self._read_more(time.monotonic() + s)
        except LateError:
            return not self._buffer
        return False

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _command_length(self) -> int | None:
        """How long the command at the start of the buffer is; none while it is not all there."""
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return None
        length = end + 2
        if self._buffer.startswith((b"MSG ", b"HMSG ")):
            length += int(self._buffer[:end].rpartition(b" ")[2]) + 2
        return length if len(self._buffer) >= length else None

    def _read_more(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise LateError(f"nothing more came; there is {bytes(self._buffer[:500])!r}")
        if self._is_over:
            raise ConnectionResetError(f"closed, after {bytes(self._buffer[:500])!r}")
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(READ_BYTES)
        except TimeoutError:
            raise LateError(f"nothing more came; there is {bytes(self._buffer[:500])!r}") from None
        except (ConnectionError, ssl.SSLError):
            self._is_over = True
            raise ConnectionResetError("reset") from None
        if not data:
            self._is_over = True
            raise ConnectionResetError(f"closed, after {bytes(self._buffer[:500])!r}")
        self._buffer += data


def pub(subject: bytes | str, payload: bytes = b"", reply: bytes | str = b"") -> bytes:
    words = [b"PUB", _bytes(subject), *([_bytes(reply)] if reply else []), b"%d" % len(payload)]
    return b" ".join(words) + b"\r\n" + payload + b"\r\n"


def hpub(
    subject: bytes | str, headers: bytes, payload: bytes = b"", reply: bytes | str = b""
) -> bytes:
    sizes = b"%d %d" % (len(headers), len(headers) + len(payload))
    words = [b"HPUB", _bytes(subject), *([_bytes(reply)] if reply else []), sizes]
    return b" ".join(words) + b"\r\n" + headers + payload + b"\r\n"


def sub(subject: bytes | str, sid: int | str = 1, queue: bytes | str = b"") -> bytes:
    words = [b"SUB", _bytes(subject), *([_bytes(queue)] if queue else []), str(sid).encode()]
    return b" ".join(words) + b"\r\n"


def error(text: str) -> bytes:
    return f"-ERR '{text}'\r\n".encode()


def _bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text


def assert_spread(counts: list[int], chances: list[float] | None = None) -> None:
    """Each count is within three standard deviations and a bit of what its chance would give it.

    Three would fail one run in some hundred, where several are looked at.
    """
    total = sum(counts)
    for count, chance in zip(counts, chances or [1 / len(counts)] * len(counts), strict=True):
        allowed = 4 * math.sqrt(total * chance * (1 - chance))
        assert abs(count - total * chance) <= allowed, counts


VIOLATION: Final = error("Authorization Violation")
