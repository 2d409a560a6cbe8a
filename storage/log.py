"""The durable log of a store: a batch is durable once it is here, before RocksDB has it.

``Log`` is all that a store knows of it. Today a log is a pair of files beside RocksDB's
(``FileLog``); another one may send batches to other machines. Two rules make that possible:

I1  A log refuses a batch that does not follow on: positions are 1, 2, 3 …, one for each batch.
I2  RocksDB is never ahead of it: the owner appends first, and lets RocksDB write tables only of
    batches that are synced here. So RocksDB needs no log of its own, and has none.

**The files.** Two segments, used in turn. Syncing a file that grows makes the file system write
down its new length too, which takes twice as long. So the blocks of a segment are written once as
zeros, ahead of the entries, and then overwritten in place, round after round. A segment begins
small and grows by steps while there is load. When a segment is full, the log goes on in the other
one if everything in that has been trimmed; until then, the segment grows.

    log-0, log-1
    0      magic:8  version:u32  store:16  round:16  base:u64  check:u32     big-endian
    4096   entries, each right behind the one before it:
           round:16  position:u64  synced:u64  size:u32  check:u32           40 bytes
           batch: size bytes of MessagePack: an array of lows, highs, {key: value or nil}

``store`` is the random name of the store, and ``round`` a random name made each time a segment is
begun, so an entry that is left of an earlier round, or comes from another store, is none.
``check`` is the CRC-32 of all but itself. The first entry of a round has position ``base`` + 1.

**Torn, or damaged?** A power cut may leave any mixture of old and new sectors of what was not
synced. So the log ends at the first entry that is not whole. Nothing there tells whether it had
been synced; later entries do. Each says up to which position the log was *synced* when it was
written, and a round begins only when everything up to its ``base`` is synced. The highest such
claim that is found anywhere in the files is ``claimed``. A log that ends before that is damaged.

I3  What ``sync`` has returned for is found by ``read``, or ``claimed`` tells that it is missing,
    or nothing at all was written after it.
"""

import ctypes
import errno
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgpack

from asterism.files_host import FILE_MODE, sync_folder
from asterism.packing import pack_value
from asterism.storage.folder import RESTORE, StoreError, unusable

LOG_PREFIX: Final = "log-"
LOG_NAMES: Final = ("log-0", "log-1")
START_BYTES: Final = 256 << 10  # of a segment that is not busy: about 500 messages, one at a time
STEP_BYTES: Final = 1 << 20  # the most by which it grows at once, unless an entry is larger
TURN_BYTES: Final = 8 << 20  # a segment that holds as much is full
ENTRIES_AT: Final = 4_096  # the header has the largest sector in use for itself
NAME_BYTES: Final = 16

_MAGIC: Final = b"astrmlog"
_VERSION: Final = 1
_HEADER: Final = struct.Struct(">8sI16s16sQ")
_HEAD: Final = struct.Struct(">16sQQI")
_CHECK: Final = struct.Struct(">I")
_HEAD_BYTES: Final = _HEAD.size + _CHECK.size
_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE


class Batch(NamedTuple):
    """The writes of a turn: ranges that are deleted, then rows (``None``: deleted)."""

    lows: list[bytes]
    highs: list[bytes]
    rows: dict[bytes, bytes | None]


class Entry(NamedTuple):
    """A batch and its position in the log."""

    position: int
    batch: Batch


class Log(Protocol):
    """What makes the batches of a store durable."""

    @property
    def last(self) -> int:
        """The position of the last batch. Known once ``read`` was called."""

    @property
    def claimed(self) -> int:
        """Up to this position batches were synced, as far as can be told when it is opened."""

    def append(self, position: int, batch: Batch) -> int:
        """Takes a batch, safe from a kill; returns its size in bytes."""

    def begin_sync(self) -> None:
        """Has what was appended be made durable, without waiting."""

    def sync(self) -> None:
        """Returns when all that was appended is durable."""

    def read(self, after: int) -> Iterator[Entry]:
        """The batches behind a position, in order, up to ``last``. Once, before any is appended."""

    def trim(self, up_to: int) -> None:
        """Lets the batches up to a position go: RocksDB has them in synced tables."""

    def close(self) -> None:
        """Lets it go. What was trimmed need not be looked at again."""


def _sync_file_range() -> Callable[[int, int, int, int], object]:
    """What has the system begin to write a part of a file; nothing where it knows no such call."""
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return lambda file, offset, size, flags: None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


_sync_range: Final = _sync_file_range()


class _Segment:
    """One file of the log."""

    def __init__(self, path: Path, flags: int) -> None:
        self.path = path
        self.file = os.open(path, os.O_CLOEXEC | flags, FILE_MODE)
        self.size = os.fstat(self.file).st_size
        self.base = 0
        self.last = 0  # the position of its last entry; ``base`` if it has none
        self.round = b""
        self.end = ENTRIES_AT  # where the next entry goes
        self.found: list[tuple[int, int]] = []  # where the entries are that were there at first

    def write(self, parts: list[bytes], size: int, at: int) -> None:
        if os.pwritev(self.file, parts, at) < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def begin(self, store: bytes, base: int) -> None:
        """Begins a new round. Nothing that is in it may be needed any more."""
        self.base = self.last = base
        self.round = os.urandom(NAME_BYTES)
        self.end = ENTRIES_AT
        self.found = []
        head = _HEADER.pack(_MAGIC, _VERSION, store, self.round, base)
        self.write([head, _CHECK.pack(zlib.crc32(head))], len(head) + _CHECK.size, 0)

    def fill(self, size: int) -> None:
        """Writes every block once up to this size."""
        if size > self.size:
            self.write([bytes(size - self.size)], size - self.size, self.size)
            self.size = size

    def cut(self, size: int) -> None:
        """Gives back what it has grown beyond a size."""
        if size < self.size:
            os.ftruncate(self.file, size)
            self.size = size

    def append(self, position: int, synced: int, batch: Batch) -> int:
        rows = pack_value(batch)
        head = _HEAD.pack(self.round, position, synced, len(rows))
        check = _CHECK.pack(zlib.crc32(rows, zlib.crc32(head)))
        size, at = _HEAD_BYTES + len(rows), self.end
        if at + size > self.size:
            self.fill(max(at + size, self.size + min(self.size, STEP_BYTES)))
        self.write([head, check, rows], size, at)
        self.end = at + size
        self.last = position
        return size

    # --- reading ----------------------------------------------------------------------------

    def look(self, store: bytes) -> int:
        """Finds what is in it; returns what it claims. ``ValueError`` if it is damaged."""
        content = os.pread(self.file, self.size, 0)
        head = content[: _HEADER.size]
        if len(content) < _HEADER.size + _CHECK.size:
            raise ValueError("its header is missing")
        (check,) = _CHECK.unpack_from(content, _HEADER.size)
        magic, version, owner, name, base = _HEADER.unpack(head)
        if magic != _MAGIC or check != zlib.crc32(head):
            raise ValueError("its header is damaged")
        if version != _VERSION:
            raise ValueError(f"it is of version {version}, which is not known here")
        if owner != store:
            raise ValueError("it belongs to another store")
        self.round, self.base = name, base
        self.last, claimed, at = base, base, ENTRIES_AT
        while (entry := _entry_at(content, at, self.round)) and entry[0] == self.last + 1:
            self.last, claimed, end = entry
            self.found.append((at, end))
            at = end
        # Behind the end, whole entries still tell what had been synced.
        claimed = max(claimed, base)
        while (at := content.find(self.round, at)) >= 0:
            later = _entry_at(content, at, self.round)
            claimed, at = (max(claimed, later[1]), later[2]) if later else (claimed, at + 1)
        return int(claimed)

    def entries(self, after: int) -> Iterator[Entry]:
        """Those behind a position that were there at first."""
        if self.last <= after:
            return
        content = memoryview(os.pread(self.file, self.size, 0))
        for position, (at, end) in enumerate(self.found, self.base + 1):
            if position > after:
                rows = content[at + _HEAD_BYTES : end]
                yield Entry(position, Batch(*msgpack.unpackb(rows, strict_map_key=False)))


def _entry_at(content: bytes, at: int, name: bytes) -> tuple[int, int, int] | None:
    """The position of the entry there, what it says is synced, and its end; ``None`` if it is not
    a whole one of this round."""
    if at + _HEAD_BYTES > len(content):
        return None
    round_, position, synced, size = _HEAD.unpack_from(content, at)
    end = at + _HEAD_BYTES + size
    if round_ != name or end > len(content):
        return None
    (check,) = _CHECK.unpack_from(content, at + _HEAD.size)
    head = zlib.crc32(memoryview(content)[at : at + _HEAD.size])
    if check != zlib.crc32(memoryview(content)[at + _HEAD_BYTES : end], head):
        return None
    return position, synced, end


class FileLog:
    """The log in a store's folder. Its owner has the store's lock."""

    def __init__(
        self,
        folder: Path,
        store: bytes,
        turn_bytes: int = TURN_BYTES,
        accept_loss: bool = False,
        read_only: bool = False,
    ) -> None:
        """Opens it. ``StoreError`` if a file is missing or damaged; or that is taken for empty."""
        self._store = store
        self._full = ENTRIES_AT + turn_bytes  # where a segment ends, if the other one is free
        self._start_bytes = min(START_BYTES, self._full)
        self._segments: list[_Segment] = []
        self._current: _Segment | None = None  # none until something is appended
        self._synced = 0  # the last position that is known to be synced
        self._trimmed = -1
        self._unsent = ENTRIES_AT  # from here on, the disk was not told to begin
        self.last = 0
        self.claimed = 0
        try:
            for name in LOG_NAMES:
                segment = _open_segment(folder / name, accept_loss, read_only)
                self._segments.append(segment)
                self.claimed = max(self.claimed, _look(segment, store, accept_loss))
        except BaseException:
            self._let_go()
            raise
        # Of two that begin at the same position, one is empty or was given up.
        self._segments.sort(key=lambda segment: (segment.base, segment.last))

    @staticmethod
    def create(folder: Path, store: bytes, base: int, size: int = ENTRIES_AT) -> None:
        """Makes an empty log that goes on behind ``base``, in place of whatever is there."""
        try:
            for name in LOG_NAMES:
                segment = _Segment(folder / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                try:
                    segment.fill(size)
                    segment.begin(store, base)
                    os.fsync(segment.file)
                finally:
                    os.close(segment.file)
            sync_folder(folder)
        except OSError as error:
            raise unusable(folder, error) from error

    def read(self, after: int) -> Iterator[Entry]:
        """The batches behind a position, in order; ``last`` is where they end."""
        self.last = after
        for segment in self._segments:
            if segment.base <= self.last:
                self.last = max(self.last, segment.last)
        return self._entries(after)

    def _entries(self, after: int) -> Iterator[Entry]:
        for segment in self._segments:
            if segment.base <= after:
                yield from segment.entries(after)
                after = max(after, segment.last)

    def append(self, position: int, batch: Batch) -> int:
        """Takes a batch. ``ValueError`` if it does not follow on."""
        if position != self.last + 1:
            raise ValueError(f"position {position} does not follow on {self.last}")
        current = self._current
        if current is None or current.end >= self._full:
            current = self._turn()
        size = current.append(position, self._synced, batch)
        self.last = position
        return size

    def _turn(self) -> _Segment:
        """Goes on in a segment that is trimmed, if there is one."""
        current = self._current
        for segment in self._segments:
            if segment is not current and segment.last <= self._trimmed:
                if current is not None:
                    self.sync()  # the new round claims that
                    segment.cut(self._full + STEP_BYTES)
                segment.begin(self._store, self.last)
                segment.fill(self._start_bytes)
                self._current, self._unsent = segment, 0
                return segment
        assert current is not None, "a log is appended to once all that was in it is trimmed"
        return current

    def begin_sync(self) -> None:
        """Has the disk begin with what was appended."""
        if (current := self._current) is not None:
            _sync_range(current.file, self._unsent, current.end - self._unsent, _WRITE)
            self._unsent = current.end

    def sync(self) -> None:
        """Makes every entry durable."""
        if self._current is not None and self._synced < self.last:
            os.fdatasync(self._current.file)
            self._synced = self.last

    def trim(self, up_to: int) -> None:
        """Lets the segments go in which nothing is behind this position."""
        self._trimmed = up_to
        if self._current is None:
            assert up_to == self.last, "all that was found is in tables before anything follows"
            self._synced = up_to
            for segment in self._segments:
                segment.last = up_to  # whatever is behind that was never promised
                segment.found = []

    def close(self) -> None:
        """Says that it is empty, if it is: nothing of what was in it is left."""
        try:
            if self._trimmed == self.last:
                for segment in self._segments:
                    if segment.size > ENTRIES_AT:
                        segment.begin(self._store, self.last)
                        segment.cut(ENTRIES_AT)
                        os.fsync(segment.file)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for segment in self._segments:
            os.close(segment.file)
        self._segments = []
        self._current = None  # its descriptor may be another file's by now


def _open_segment(path: Path, accept_loss: bool, read_only: bool) -> _Segment:
    flags = os.O_RDONLY if read_only else os.O_RDWR
    try:
        return _Segment(path, flags | os.O_CREAT if accept_loss else flags)
    except FileNotFoundError:
        raise StoreError(
            f"{path.parent}: its log {path.name!r} is missing, and with it the last synced writes. "
            f"{RESTORE}"
        ) from None
    except OSError as error:
        raise unusable(path.parent, error) from error


def _look(segment: _Segment, store: bytes, accept_loss: bool) -> int:
    try:
        return segment.look(store)
    except (ValueError, OSError) as error:
        if accept_loss:
            return 0
        raise StoreError(
            f"{segment.path.parent}: its log {segment.path.name!r} cannot be used: {error}. The "
            f"last synced writes are in it. {RESTORE}"
        ) from None
