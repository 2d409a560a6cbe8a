"""MessagePack from one packer for all: to make one for each value costs as much as to pack it."""

from typing import Final

import msgpack

KEPT_BYTES_MAX: Final = 1 << 20  # of a packer's buffer, which grows and never shrinks


class Packing:
    """Packs values of our own; for one thread at a time."""

    __slots__ = ("_pack",)

    def __init__(self) -> None:
        self._pack = msgpack.Packer().pack

    def pack(self, value: object) -> bytes:
        packed: bytes = self._pack(value)
        if len(packed) > KEPT_BYTES_MAX:
            self._pack = msgpack.Packer().pack
        return packed


pack_value: Final = Packing().pack
