"""MessagePack from one packer for each thread: to make one for each value costs as much as to pack
it, and more in a process that gives large blocks of memory back to the system."""

import threading
from typing import Final

import msgpack

KEPT_BYTES_MAX: Final = 1 << 20  # of a packer's buffer, which grows and never shrinks


class Packing(threading.local):
    """Packs values. Each thread has a packer of its own, since one is not for several at a time."""

    def __init__(self) -> None:
        self._pack = msgpack.Packer().pack

    def pack(self, value: object) -> bytes:
        packed: bytes = self._pack(value)
        if len(packed) > KEPT_BYTES_MAX:
            self._pack = msgpack.Packer().pack
        return packed


pack_value: Final = Packing().pack
