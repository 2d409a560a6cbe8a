"""Messages of several frames through a ZeroMQ socket, at once or not at all.

pyzmq's own ``send_multipart`` and ``recv_multipart`` take 9 and 10 us for four small frames here,
nearly all of it in enums: the flags, and the option that tells whether more follows. A message goes
through eight of them on its way to a worker and back. These take 3 and 1 us.
"""

from collections.abc import Sequence
from typing import Final

import zmq

_NOT_NOW: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS: Final = zmq.EVENTS
_READABLE: Final = int(zmq.POLLIN)
_HAS_MORE: Final = zmq.RCVMORE


def send(socket: "zmq.Socket[bytes]", frames: Sequence[bytes]) -> None:
    """Sends a message; ``zmq.Again`` where the peer does not take it now."""
    send_frame = socket.send
    for frame in frames[:-1]:
        send_frame(frame, _MORE)
    send_frame(frames[-1], _NOT_NOW)


def is_readable(socket: "zmq.Socket[bytes]") -> bool:
    """Is there a message? Cheaper than to try, where most often there is none."""
    return int(socket.get(_EVENTS)) & _READABLE != 0


def receive(socket: "zmq.Socket[bytes]") -> list[bytes]:
    """Takes a message of anybody, of as many frames as it has; ``zmq.Again`` if there is none."""
    receive_frame, get = socket.recv, socket.get
    frames = [receive_frame(_NOT_NOW)]
    while get(_HAS_MORE):
        frames.append(receive_frame(_NOT_NOW))
    return frames


def has_more(socket: "zmq.Socket[bytes]") -> bool:
    """Does the message whose frame was taken last go on?"""
    return bool(socket.get(_HAS_MORE))


def receive_some(socket: "zmq.Socket[bytes]", count: int) -> list[bytes]:
    """Takes the next frames of a message that is known to have so many more."""
    receive_frame = socket.recv
    return [receive_frame(_NOT_NOW) for _ in range(count)]
