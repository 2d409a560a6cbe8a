"""Frames through a ZeroMQ socket, at once or not at all, with as little around them as can be.

pyzmq's ``send_multipart`` and ``recv_multipart`` take 9 and 10 us for four small frames here,
nearly all of it in enums: the flags, and the option that tells whether more follows. Its ``send``
takes twice what the one beneath it does, for two options that are not used here. A message goes
through eight of them on its way to a worker and back.
"""

from collections.abc import Sequence
from typing import Final

import zmq
from zmq.backend import Socket as Plain

_NOT_NOW: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS: Final = zmq.EVENTS
_READABLE: Final = int(zmq.POLLIN)
_HAS_MORE: Final = zmq.RCVMORE
_send: Final = Plain.send
COPIED_BYTES_MAX: Final = 1 << 20  # of a frame; to copy a larger one would hold up everybody else


def send(socket: "zmq.Socket[bytes]", frames: Sequence[bytes]) -> None:
    """Sends a message; ``zmq.Again`` where the peer does not take it now."""
    for frame in frames[:-1]:
        _send(socket, frame, _MORE)
    _send(socket, frames[-1], _NOT_NOW)


def is_readable(socket: "zmq.Socket[bytes]") -> bool:
    """Is there a message? Cheaper than to try, where most often there is none."""
    return int(socket.get(_EVENTS)) & _READABLE != 0


def receive(socket: "zmq.Socket[bytes]") -> bytes:
    """Takes the next frame of a message that is there."""
    return socket.recv(_NOT_NOW)


def receive_any(socket: "zmq.Socket[bytes]") -> bytes | memoryview:
    """Takes the next frame of a message that is there; a large one as it lies in ZeroMQ's hands."""
    frame = socket.recv(_NOT_NOW, copy=False)
    return frame.bytes if len(frame) <= COPIED_BYTES_MAX else frame.buffer


def rest(socket: "zmq.Socket[bytes]") -> list[bytes]:
    """Takes what is left of a message whose frame was taken last."""
    frames = []
    while socket.get(_HAS_MORE):
        frames.append(socket.recv(_NOT_NOW))
    return frames
