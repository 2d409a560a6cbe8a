"""ZMTP 3.x as far as the gate needs it: the handshake, and where frames begin and end. Pure.

    greeting   FF, 8 bytes, 7F, major:u8 minor:u8, mechanism:20, as-server:u8, 31 zeros
    frame      flags:u8, size:u8 or (flags & LONG) u64 big-endian, body
    READY      a command frame: 05 "READY", then properties: size:u8 name size:u32 value

Bodies of messages are counted and never looked at. What a peer does wrong is a ``ViolationError``,
and costs it its connection: behind it nothing can be understood.
"""

import struct
from typing import Final

GREETING_BYTES: Final = 64
GREETING: Final = b"\xff" + bytes(7) + b"\x01\x7f\x03\x01" + b"NULL".ljust(52, b"\0")
MORE, LONG, COMMAND = 1, 2, 4
READY_BYTES_MAX: Final = 1_024  # of a peer's READY, with its head
COMMAND_BYTES_MAX: Final = 64  # of a command after the handshake; PING and PONG have 23 at most
COMMANDS_MAX: Final = 64  # PING and PONG in one read: a peer that sends more has no other aim
MULTIPART_BYTES_MAX: Final = 64 << 10  # of a message that is refused for its number of frames
MESSAGE_FRAMES_MAX: Final = 64  # of one message, though one is all that the protocol allows
_SIZE: Final = struct.Struct(">Q")
_VALUE: Final = struct.Struct(">I")
_PEER_TYPES: Final = (b"DEALER", b"REQ", b"ROUTER")  # whom a ROUTER talks to
_COMMANDS: Final = (b"\x04PING", b"\x04PONG")
_HEAD_BYTES: Final = (2, 9)

Data = bytes | bytearray | memoryview


class ViolationError(Exception):
    """A peer breaks the protocol, or goes past a bound; the message says how."""


def ready(socket_type: bytes, routing: bytes = b"") -> bytes:
    """The command that ends a handshake from our side."""
    body = b"\x05READY" + _property(b"Socket-Type", socket_type) + _property(b"Identity", routing)
    assert len(body) < 256
    return bytes((COMMAND, len(body))) + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + _VALUE.pack(len(value)) + value


class Handshake:
    """The peer's half of a handshake: its greeting and its READY, cut anywhere."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = bytearray()

    def take(self, data: Data) -> bytes | None:
        """Takes what has come; what came behind the handshake once that is whole, else ``None``."""
        held = self._held
        held += data
        _check_greeting(held)
        if len(held) < GREETING_BYTES + 2:
            return None
        flags = held[GREETING_BYTES]
        if flags not in (COMMAND, COMMAND | LONG):
            raise ViolationError("the greeting is not followed by a command")
        head = _HEAD_BYTES[flags == COMMAND | LONG]
        if len(held) < GREETING_BYTES + head:
            return None
        body = GREETING_BYTES + head
        size = held[body - 1] if head == 2 else _SIZE.unpack_from(held, body - 8)[0]
        if head + size > READY_BYTES_MAX:
            raise ViolationError(f"READY has more than {READY_BYTES_MAX} bytes")
        if len(held) < body + size:
            return None
        _check_ready(bytes(held[body : body + size]))
        return bytes(held[body + size :])


def _check_greeting(held: bytearray) -> None:
    """Refuses what cannot become a greeting, as early as that can be told."""
    if held[0] != 0xFF or (len(held) > 9 and not held[9] & 1):
        raise ViolationError("this is not ZMTP")
    if len(held) > 10 and held[10] < 3:
        raise ViolationError("this is ZMTP older than 3.0")
    if len(held) >= 32 and held[12:32].rstrip(b"\0") != b"NULL":
        raise ViolationError("the mechanism is not NULL")


def _check_ready(body: bytes) -> None:
    if not body.startswith(b"\x05READY"):
        raise ViolationError("the greeting is not followed by READY")
    at = 6
    while at < len(body):
        name = body[at + 1 : at + 1 + body[at]]
        at += 1 + body[at]
        if at + 4 > len(body):
            raise ViolationError("a property of READY is cut off")
        (size,) = _VALUE.unpack_from(body, at)
        value = body[at + 4 : at + 4 + size]
        at += 4 + size
        if at > len(body):
            raise ViolationError("a property of READY is cut off")
        if name.lower() == b"socket-type" and value not in _PEER_TYPES:
            raise ViolationError("the peer's socket is not a DEALER")


class Frames:
    """Frames as they pass, cut anywhere: how many bytes of messages they hold.

    I1  ``payload`` counts the bytes of messages' frames without their heads, as their reader does.
    I2  ``whole`` is what ``payload`` was when the last message ended.
    """

    __slots__ = (
        *("_command", "_flags", "_frames", "_head", "_left"),
        *("commands", "message", "messages", "payload", "whole"),
    )

    def __init__(self) -> None:
        self.payload = 0
        self.whole = 0
        self.messages = 0  # that have ended
        self.commands = 0  # that have begun
        self.message = 0  # bytes that the message under way has announced so far
        self._frames = 0  # of it
        self._flags = 0
        self._left = 0  # bytes of this frame that have not passed
        self._head = b""  # the beginning of a head that is not whole yet
        self._command: bytearray | None = None  # what has passed of a command

    def take(self, data: Data, size_max: int, most: int = 0) -> int:
        """Takes bytes as they pass, of messages up to a size; how many bytes it has taken.

        That is all of them, but for those behind so many messages where there is a ``most``.
        """
        at, size = 0, len(data)
        commands_max = self.commands + COMMANDS_MAX
        while at < size:
            if not self._left:
                at = self._take_head(data, at, size_max)
                if self.commands > commands_max:
                    raise ViolationError("it sends commands without end")
                if self._head:
                    break
            if self._left:
                step = min(self._left, size - at)
                if self._command is not None:
                    self._command += data[at : at + step]
                else:
                    self.payload += step
                self._left -= step
                at += step
            if not self._left and self._end_frame():
                most -= 1
                if not most:
                    break
        return at

    def _take_head(self, data: Data, at: int, size_max: int) -> int:
        """Reads a head, or as much of it as is there; where its body begins."""
        held = self._head
        head = held + bytes(data[at : at + 9 - len(held)])
        wanted = _HEAD_BYTES[bool(head[0] & LONG)]
        if len(head) < wanted:
            self._head = head
            return at + len(head) - len(held)
        self._head = b""
        flags = head[0]
        size = head[1] if wanted == 2 else _SIZE.unpack_from(head, 1)[0]
        if flags & COMMAND:
            if flags != COMMAND or size > COMMAND_BYTES_MAX:
                raise ViolationError("a command is neither PING nor PONG")
            self._command = bytearray()
            self.commands += 1
        else:
            self.message += size
            self._frames += 1
            if flags > MORE | LONG:
                raise ViolationError("a frame has flags that there are not")
            if self.message > size_max:
                raise ViolationError(f"a message has more than {size_max} bytes")
            if self._frames > 1 and self.message > MULTIPART_BYTES_MAX:
                raise ViolationError("a message is one frame")
            if self._frames > MESSAGE_FRAMES_MAX:
                raise ViolationError(f"a message has more than {MESSAGE_FRAMES_MAX} frames")
        self._flags = flags
        self._left = size
        return at + wanted - len(held)

    def _end_frame(self) -> bool:
        """A frame has passed; was it the last of a message?"""
        if self._command is not None:
            if not self._command.startswith(_COMMANDS):
                raise ViolationError("a command is neither PING nor PONG")
            self._command = None
            return False
        if self._flags & MORE:
            return False
        self.whole = self.payload
        self.messages += 1
        self.message = self._frames = 0
        return True
