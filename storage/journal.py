"""The journal of a store: the quick way to make a small batch durable.

A file of fixed size beside RocksDB's own, written in place. To sync a file that grows is to write
down its new length too, which makes the disk wait twice more; the blocks of this one have all been
written once, so a sync is one write and one flush, and the write is begun early. A batch that is
here need not be in RocksDB, and not be synced there: what RocksDB has lost, or was not given any
more, is put back when the store is opened.

    entry   round:8  first:u64  count:u32  size:u32  check:u32    big-endian, 28 bytes
            rows     size bytes: MessagePack, an array of lows, highs, {key: value or nil}

The first entry is at 0, each of the others right behind the one before it. ``first`` is the number
that RocksDB gives the first of its ``count`` writes, ``check`` the CRC-32 of all but itself.
A *round* is the journal from its start up to where it is full; its name is a digest of RocksDB's
identity and the ``first`` of its first entry, so that what is left of a round before, or of another
database, is not taken for an entry of this one.

I1  What ``sync`` has returned for is found again by ``read``.
I2  A new round begins only when everything in the one before it is synced elsewhere.
"""

import ctypes
import errno
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

import msgpack

from asterism.packing import pack_value

JOURNAL_NAME: Final = "journal"
JOURNAL_BYTES: Final = 512 << 10  # about a thousand messages, one at a time; then a new round
ENTRY_BYTES_MAX: Final = 32 << 10  # a larger batch gains nothing by it
ENTRY_ROWS_MAX: Final = 128

_HEAD: Final = struct.Struct(">8sQII")
_CHECK: Final = struct.Struct(">I")
_HEAD_BYTES: Final = _HEAD.size + _CHECK.size
_ROUND_BYTES: Final = 8
_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE


class Batch(NamedTuple):
    """The writes of a turn: ranges that are deleted, then rows (``None``: deleted)."""

    lows: list[bytes]
    highs: list[bytes]
    rows: dict[bytes, bytes | None]


class Entry(NamedTuple):
    """A batch, and the sequence numbers of its writes."""

    first: int
    last: int
    batch: Batch


def _sync_file_range() -> Callable[[int, int, int, int], object]:
    """What has the system begin to write a part of a file; nothing where it knows no such call."""
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return lambda file, offset, size, flags: None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


_sync_range: Final = _sync_file_range()


class Journal:
    """The journal in a store's folder. Its owner has the store's lock."""

    def __init__(self, folder: Path, size: int = JOURNAL_BYTES) -> None:
        """Opens it, or makes it; ``OSError`` where that cannot be done."""
        self._folder = folder
        path = folder / JOURNAL_NAME
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._size = max(os.fstat(self._file).st_size, size)
            self._fill(os.fstat(self._file).st_size)
        except BaseException:
            os.close(self._file)
            raise
        self._at = self._size  # where the next entry goes: at first nowhere, until a round begins
        self._unwritten: list[bytes] = []  # entries of which nobody waits for a sync yet
        self._written = self._size  # where they go
        self._round = b""
        self.last = 0  # the number of the last write in this round; 0: it has none

    def _fill(self, held: int) -> None:
        """Writes every block once: one that never was has to be entered in the file system."""
        if held < self._size:
            self._write(bytes(self._size - held), held)
            os.fsync(self._file)

    def _write(self, content: bytes, at: int) -> None:
        if os.pwrite(self._file, content, at) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def is_empty(self) -> bool:
        """Has nothing been written to it since it was made or erased?"""
        return not any(os.pread(self._file, _HEAD_BYTES, 0))

    def erase(self) -> None:
        """Takes every entry away for good. All that is in it must be synced elsewhere."""
        self._write(bytes(_HEAD_BYTES), 0)
        os.fdatasync(self._file)

    def begin_round(self) -> None:
        """Goes on at the start. All that is in it must be synced elsewhere."""
        self._at = self._written = self.last = 0
        self._unwritten.clear()

    def append(self, first: int, count: int, batch: Batch) -> bool:
        """Takes a batch behind those that are there; ``False``, with nothing done, if it is too
        large or there is no room."""
        if count > ENTRY_ROWS_MAX or _size_of(batch) > ENTRY_BYTES_MAX:
            return False
        rows = pack_value(batch)
        size, at = len(rows), self._at
        if at + _HEAD_BYTES + size > self._size:
            return False
        if not at:
            self._round = self._name_of(first)
        head = _HEAD.pack(self._round, first, count, size)
        check = zlib.crc32(rows, zlib.crc32(head))
        self._unwritten += (head, _CHECK.pack(check), rows)
        self._at = at + _HEAD_BYTES + size
        self.last = first + count - 1
        return True

    def begin_sync(self) -> None:
        """Has the disk begin with what was appended."""
        content, at = b"".join(self._unwritten), self._written
        self._write(content, at)
        _sync_range(self._file, at, len(content), _WRITE)
        self._unwritten.clear()
        self._written = self._at

    def sync(self) -> None:
        """Makes every entry durable."""
        if self._unwritten:
            self.begin_sync()
        os.fdatasync(self._file)

    def read(self) -> Iterator[Entry]:
        """The entries of the last round, up to the first that is not whole."""
        content = os.pread(self._file, self._size, 0)
        at, name = 0, b""
        while at + _HEAD_BYTES <= len(content):
            round_, first, count, size = _HEAD.unpack_from(content, at)
            (check,) = _CHECK.unpack_from(content, at + _HEAD.size)
            if not at:
                name = self._name_of(first)
            rows = content[at + _HEAD_BYTES : at + _HEAD_BYTES + size]
            whole = len(rows) == size and count
            if round_ != name or not whole:
                return
            if check != zlib.crc32(rows, zlib.crc32(content[at : at + _HEAD.size])):
                return
            batch = Batch(*msgpack.unpackb(rows, strict_map_key=False))
            yield Entry(first, first + count - 1, batch)
            at += _HEAD_BYTES + size

    def _name_of(self, first: int) -> bytes:
        """The round that begins with this write."""
        try:
            identity = (self._folder / "IDENTITY").read_bytes()
        except FileNotFoundError:
            identity = b""
        named = first.to_bytes(8, "big") + identity
        return blake2b(named, digest_size=_ROUND_BYTES).digest()

    def close(self) -> None:
        os.close(self._file)


def _size_of(batch: Batch) -> int:
    """Bytes of the values, which are most of a batch."""
    return sum(map(len, filter(None, batch.rows.values())))
