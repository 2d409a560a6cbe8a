"""The mark of a store: up to where its batches are known to be synced; and the store's lock."""

import fcntl
import os
import struct
import zlib
from pathlib import Path
from typing import Final

from asterism.files_host import FILE_MODE
from asterism.storage.folder import in_use, unusable

MARK_NAME: Final = "synced"
_MAGIC: Final = b"asterism"
_HEAD: Final = struct.Struct(">8sQ")
_CHECK: Final = struct.Struct(">I")
_SLOT_BYTES: Final = _HEAD.size + _CHECK.size
_SLOTS: Final = (0, 4_096)  # apart by the largest sector in use: one torn write hits one slot


class SyncedMark:
    """The last position known to be synced, in a small file beside the log.

        slot, at 0 and at 4096:   "asterism"  position:u64  crc32:u32     big-endian

    The log tells by itself what is missing from its midst; only the mark tells that its very end
    is. Slots are written in turn, so a torn write leaves the other one: the mark then lags by one
    commit. It is written after the sync that it speaks of, and synced itself when the log turns.
    Any order in which a crash lets the two reach the disk is safe: the log is there before the mark
    is written, and an older mark claims less.

    The lock is on the open file, not on its process, so a second opening is refused in the same
    process too. It goes when the process ends, however that ends, and its forked children with it.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / MARK_NAME
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise unusable(folder, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise in_use(folder) from error
        slots = [os.pread(self._file, _SLOT_BYTES, offset) for offset in _SLOTS]
        claims = [_read_slot(slot) for slot in slots]
        known = [claim for claim in claims if claim is not None]
        # Nothing but zeros is a file that a power cut caught before its first claim was synced.
        self.blank = not any(map(any, slots))
        self.readable = bool(known)
        self.position = max(known, default=0)
        self._next = 1 if claims[0] == self.position else 0

    def advance(self, position: int) -> None:
        """Claims that everything up to ``position`` is synced."""
        head = _HEAD.pack(_MAGIC, position)
        os.pwrite(self._file, head + _CHECK.pack(zlib.crc32(head)), _SLOTS[self._next])
        self._next ^= 1
        self.position = position

    def reset(self, position: int) -> None:
        """Claims exactly this, whatever was claimed before, and syncs the claim."""
        self.advance(position)
        self.advance(position)
        os.fsync(self._file)
        self.blank = False
        self.readable = True

    def sync(self) -> None:
        """Makes the claim itself durable."""
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


def _read_slot(slot: bytes) -> int | None:
    if len(slot) < _SLOT_BYTES:
        return None
    magic, position = _HEAD.unpack_from(slot)
    (check,) = _CHECK.unpack_from(slot, _HEAD.size)
    if magic != _MAGIC or check != zlib.crc32(slot[: _HEAD.size]):
        return None
    return int(position)
