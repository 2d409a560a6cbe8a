"""One store: a RocksDB in a folder of its own, and the log ahead of it. Besides ``reading``, nobody
else imports rocksdict.

It holds rows of bytes and knows nothing of what they mean. It has no clock and no thread of its
own, and it never repairs anything: a store that cannot be trusted is refused with a ``StoreError``,
and its rows and its log are left as they were found.

I1  What ``get`` and ``scan`` see is what is written plus this turn's own pending writes.
I2  Pending writes are one batch: all of them survive, or none. ``stage`` appends it to the log,
    ``write`` gives it to RocksDB, ``sync`` makes durable what is in the log. In this order: stage,
    sync, answers, write; nothing else is put in between.
I3  After ``sync`` returns, everything staged or written before it began survives a power cut.
I4  RocksDB is never ahead of the log. It has no log of its own, and writes tables only when the
    owner says so, of batches that are synced here.
I5  Nothing claims to be synced that I3 has not made so. A store that comes back with less than
    is claimed has lost synced writes, and only such a store is refused for it.

The folder:

    CURRENT, MANIFEST-*, *.sst, …           RocksDB's own
    log-0, log-1                            what RocksDB may not have in tables yet (``log.py``)
    synced                                  the mark, and the lock (``mark.py``)

Rows of the store itself:

    format      version:u32 number:u32 count:u32     big-endian; store ``number`` of ``count``
    identity    16 random bytes, which its log has too
    applied     position:u64, written with every batch: the position of that batch in the log

**Opening.** What RocksDB has in tables is a prefix of all batches, and ``applied`` tells where it
ends. The log is read from there on, and written to RocksDB. If that ends before what the log or the
mark claim to be synced, something is lost, and the store is refused. ``applied`` may be behind the
end of the log: a store whose disk failed to sync, and that was closed then, has had RocksDB write
its tables as it closed. Those batches were never confirmed, and follow on; they are kept.

**Flushing.** RocksDB holds batches in memory until the owner has them written to a table, which is
when they fill the store's share of the ``Budget``. A thread of RocksDB's does that; when it has
ended, the log is trimmed. If memory holds twice the share by then, the owner waits for it.

**Threads.** One thread owns a store. ``is_flushing`` alone may be asked by another.
"""

import contextlib
import inspect
import os
import struct
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, NoReturn, Self
from weakref import WeakSet

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    Checkpoint,
    CompactOptions,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from asterism.files_host import sync_folder
from asterism.storage.folder import RESTORE, StoreError, in_use, unusable
from asterism.storage.format1 import JOURNAL_NAME, batches_to_repeat
from asterism.storage.keys import STORE_APPLIED, STORE_FORMAT, STORE_IDENTITY
from asterism.storage.log import LOG_NAMES, NAME_BYTES, TURN_BYTES, Batch, FileLog, Log
from asterism.storage.mark import MARK_NAME, SyncedMark
from asterism.storage.memory import SortedRows

__all__ = [
    "FORMAT_VERSION",
    "MARK_NAME",
    "MIGRATIONS",
    "Budget",
    "Store",
    "StoreError",
    "read_format",
]

_Rows = Generator[tuple[bytes, bytes], None, None]

FORMAT_VERSION: Final = 2
_FORMAT: Final = struct.Struct(">III")
_POSITION: Final = struct.Struct(">Q")

# From a version to the next: writes what must change as pending rows of the store it is given,
# which are committed together with the new format row. Format 1 has its own file.
MIGRATIONS: Final[dict[int, Callable[["Store"], None]]] = {}

_MEGABYTE: Final = 1 << 20
_CACHE_BYTES: Final = 8 * _MEGABYTE
_WRITE_BYTES: Final = 64 * _MEGABYTE
_SHARE_BYTES_MAX: Final = 16 * _MEGABYTE
_ROW_BYTES: Final = 64  # what a row takes in memory besides its key and value
_TOGETHER: Final = 64  # batches of the log that RocksDB is given at once when a store is opened
_SHARES_MAX: Final = 2  # in memory before the owner waits for RocksDB
_BUFFER_BYTES: Final = 1 << 30  # RocksDB shall not flush by itself, which it would at this size
_BUFFERS_MAX: Final = 4
_IMMUTABLE: Final = "rocksdb.num-immutable-mem-table"  # not yet in a table that is synced
_ERRORS: Final = "rocksdb.background-errors"
_FILE_BYTES: Final = 32 * _MEGABYTE
_BLOCK_BYTES: Final = 16 * 1_024
_METADATA_BLOCK_BYTES: Final = 4_096  # of a partitioned index or filter
_FILTER_BITS: Final = 10  # per key: one in a hundred absent keys costs a read
_OPEN_FILES_MAX: Final = 256
_DELETIONS_WINDOW: Final = 131_072  # rows of a table file of which not more than so many ...
_DELETIONS_MAX: Final = 98_304  # ... may be deletions: about 20 ms to step over
_LOG_BYTES: Final = _MEGABYTE  # of RocksDB's own text log
_LOGS_KEPT: Final = 3


class Budget:
    """Memory for the stores of one process: those opened with the same budget share it.

    ``cache_bytes`` bounds blocks, indexes and filters read from files; ``write_bytes`` is for rows
    that are not in tables yet. Half of that is divided among the stores, and a store that holds its
    share has it flushed; the other half is for what is being flushed meanwhile.
    """

    def __init__(self, cache_bytes: int = _CACHE_BYTES, write_bytes: int = _WRITE_BYTES) -> None:
        self._cache = Cache(cache_bytes)
        self._write_bytes = write_bytes
        self._stores = 0

    @property
    def share_bytes(self) -> int:
        """What one store may hold in memory before it is flushed."""
        return min(self._write_bytes // 2 // max(self._stores, 1), _SHARE_BYTES_MAX)


class _Found(NamedTuple):
    """What is in a folder before anything in it is changed."""

    version: int  # 0: no store yet
    sequence: int  # RocksDB's number of its last write
    identity: bytes
    applied: int


class _Pending(SortedRows):
    """The writes of a turn: rows (``None``: deleted), and ranges deleted before those rows.

    I1  Ranges are disjoint and sorted; the n-th is from ``lows[n]`` up to ``highs[n]``.
    """

    __slots__ = ("highs", "lows")

    def __init__(self) -> None:
        super().__init__()
        self.lows: list[bytes] = []
        self.highs: list[bytes] = []

    def batch(self) -> Batch:
        return Batch(self.lows, self.highs, self.rows)

    def cover(self, low: bytes, high: bytes) -> None:
        """Deletes a range: the rows pending in it are over, rows put into it later are not."""
        self.drop(low, high)
        first = bisect_left(self.highs, low)
        last = bisect_right(self.lows, high)
        if first < last:
            low = min(low, self.lows[first])
            high = max(high, self.highs[last - 1])
        self.lows[first:last] = [low]
        self.highs[first:last] = [high]

    def cover_end(self, key: bytes) -> bytes | None:
        """Where the deleted range that holds this key ends; ``None`` if none holds it."""
        index = bisect_right(self.lows, key) - 1
        if index >= 0 and key < self.highs[index]:
            return self.highs[index]
        return None

    def covers_any(self, low: bytes, high: bytes) -> bool:
        """Whether a deleted range meets this one."""
        index = bisect_right(self.highs, low)
        return index < len(self.lows) and self.lows[index] < high


class Store:
    """One RocksDB, as ``asterism.rows.Rows`` sees it, and the commit of a turn's writes."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        number: int = 0,
        count: int = 1,
        accept_loss: bool = False,
        budget: Budget | None = None,
    ) -> None:
        """Opens store ``number`` of ``count``; makes it if there is none in the folder.

        ``accept_loss`` opens a store that has lost synced writes, and forgets that it had them.
        Raises ``StoreError`` for a store that is in use, damaged, of another format or another's.
        """
        assert 0 <= number < count
        self.folder = Path(folder)
        self.number = number
        self.count = count
        self._failure: str | None = None
        self._pending = _Pending()
        self._scans: WeakSet[_Rows] = WeakSet()
        self._beside = threading.Lock()  # held while another thread looks at RocksDB
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[assignment,method-assign]  # an attribute
        self._budget = budget or Budget()
        self._staged = 0  # writes of the batch that is in the log and not in RocksDB; 0: none is
        self._held = 0  # about how many bytes RocksDB has in memory, those being flushed aside
        self._flushing = 0  # up to this position RocksDB is writing tables; 0: it is not
        self._synced = 0  # the last position that was synced since it is open
        self._trimmed = 0  # up to this position RocksDB has all in tables
        self._log: Log
        self._files = contextlib.ExitStack()  # the mark and the log, to be closed
        self._mark = _make_folder(self.folder)
        self._files.callback(self._mark.close)
        try:
            options = _options(self._budget)
            found = self._inspect(options, accept_loss)
            self._rocksdb = self._open_rocksdb(options, AccessType.read_write())
        except BaseException:
            self._files.close()
            raise
        self._closed = False
        self._budget._stores += 1
        self._get_written: Callable[[bytes], bytes | None] = self._rocksdb.get
        try:
            self._begin(found, accept_loss)
        except BaseException:
            self._failure = self._failure or f"{self.folder}: it was not opened."
            self.close()
            raise

    # --- rows ---------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or ``None``."""
        pending = self._pending
        if key in pending.rows:
            return pending.rows[key]
        if pending.lows and pending.cover_end(key) is not None:
            return None
        try:
            return self._get_written(key)
        except Exception as error:
            raise self._unreadable(error) from error

    def scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows with ``low <= key < high``, in key order, as they are now.

        Rows written while the iterator is open may or may not be seen. Raises ``StoreError`` where
        the rows cannot be read.
        """
        if low >= high:
            return iter(())
        pending = self._pending
        own = pending.between(low, high)
        first = next(own, None)
        # RocksDB reads the bound out of these very bytes while the cursor lives, and nobody keeps
        # them for it: the generators below hold on to them, and check each key besides.
        until_high = ReadOptions()
        until_high.set_iterate_upper_bound(high)
        try:
            cursor = self._rocksdb.iter(until_high)
        except Exception as error:
            raise self._unreadable(error) from error
        cursor.seek(low)
        rows: _Rows
        if first is None and not pending.covers_any(low, high):
            rows = self._written_rows(cursor, high)
        else:
            rows = self._merged_rows(cursor, high, pending, first, own)
        self._scans.add(rows)
        return rows

    def put(self, key: bytes, value: bytes) -> None:
        """Writes a row with this turn's batch."""
        self._pending.rows[key] = value

    def delete(self, key: bytes) -> None:
        """Deletes a row with this turn's batch; a row that is not there is no error."""
        self._pending.rows[key] = None

    def write_all(self, rows: dict[bytes, bytes | None]) -> None:
        """Writes rows, and deletes those of value ``None``, with this turn's batch."""
        self._pending.rows.update(rows)

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Deletes the rows with ``low <= key < high`` with this turn's batch."""
        # RocksDB takes a range that ends before it begins, fails halfway through its batch and
        # keeps the other half.
        if low < high:
            self._pending.cover(low, high)

    # --- a turn's writes ----------------------------------------------------------------------

    @property
    def pending_count(self) -> int:
        """How many writes the next batch holds."""
        return len(self._pending.rows) + len(self._pending.lows)

    def has_pending_but(self, excepted: Callable[[bytes], bool]) -> bool:
        """Is anything pending besides rows of these keys?"""
        return bool(self._pending.lows) or not all(map(excepted, self._pending.rows))

    def discard(self) -> None:
        """Forgets the pending writes."""
        assert not self._staged, "what is staged may be confirmed"
        self._pending = _Pending()

    def stage(self, begin_sync: bool = True) -> None:
        """Appends what is pending to the log: safe from a kill, and ``sync`` makes it durable.

        To give it to RocksDB is left for ``write``, behind the answers. ``begin_sync`` has the disk
        begin with it, for a ``sync`` that follows soon.
        """
        self._check_usable()
        assert not self._staged
        batch = self._pending.batch()
        count = len(batch.rows) + len(batch.lows)
        if not count:
            return
        log = self._log
        try:
            size = log.append(log.last + 1, batch)
            if begin_sync:
                log.begin_sync()
        except OSError as error:
            self._fail("writing", error)
        self._held += size + _ROW_BYTES * count
        self._staged = count

    def write(self) -> None:
        """Gives RocksDB what is staged, or stages what is pending first: safe from a kill."""
        self._check_usable()
        if not self._staged:
            self.stage(begin_sync=False)
            if not self._staged:
                return
        batch = self._pending.batch()
        assert self._staged == len(batch.rows) + len(batch.lows), "put behind what is staged"
        self._write_rocksdb(self._log.last, batch)
        # A scan may still hold the old one, so it is left as it is.
        self._pending = _Pending()
        self._staged = 0
        self._note_synced()
        if self._flushing:
            self._end_flush()
        if self._held >= self._budget.share_bytes:
            self._bound_memory()

    def _write_rocksdb(self, position: int, *batches: Batch) -> None:
        """Gives RocksDB batches of the log, the last of which has this position there."""
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for lows, highs, rows in batches:
            for low, high in zip(lows, highs, strict=True):
                batch.delete_range(low, high)
            for key, value in rows.items():
                if value is None:
                    delete(key)
                else:
                    put(key, value)
        put(STORE_APPLIED, _POSITION.pack(position))
        try:
            self._rocksdb.write(batch, self._unlogged)
        except Exception as error:
            self._fail("writing", error)

    def sync(self) -> None:
        """Makes all that is written or staged durable; costs nothing when it is already."""
        self._check_usable()
        last = self._log.last
        if last <= self._synced:
            return
        try:
            self._log.sync()
        except OSError as error:
            self._fail("syncing", error)
        self._synced = last
        if not self._staged:  # else the mark follows with ``write``: nobody waits for it
            self._note_synced()

    def _note_synced(self) -> None:
        """Moves the mark to what is synced."""
        if self._synced > self._mark.position:
            try:
                self._mark.advance(self._synced)
            except OSError as error:
                self._fail("syncing", error)

    def commit(self, sync: bool = True) -> None:
        """Writes all that is pending, and by default makes it durable."""
        self.write()
        if sync:
            self.sync()

    # --- the files ----------------------------------------------------------------------------

    def flush(self) -> None:
        """Moves what is written into table files."""
        self._start_flush(wait=True)
        self._trim(self._log.last)

    def begin_flush(self) -> None:
        """Has what is written be moved into table files, while the owner goes on."""
        if self._flushing:
            self._end_flush()
        if not self._flushing:
            self._start_flush(wait=False)
            self._flushing = self._log.last

    @property
    def held_bytes(self) -> int:
        """About how many bytes a flush would have to write."""
        return self._held

    @property
    def is_flushing(self) -> bool:
        """Is RocksDB still at it? No thread but the owner's may ask anything else."""
        with self._beside:
            if self._closed or self._rocksdb.property_int_value(_ERRORS):
                return False  # for the owner to meet
            return bool(self._rocksdb.property_int_value(_IMMUTABLE))

    def _start_flush(self, wait: bool) -> None:
        """RocksDB writes tables of what is synced in the log, and of nothing else."""
        assert not self._staged
        self.sync()
        try:
            self._mark.sync()
            self._rocksdb.flush(wait)
        except Exception as error:
            self._fail("flushing", error)
        self._held = 0

    def _end_flush(self) -> None:
        """Lets the log go up to what is in tables by now."""
        if self._rocksdb.property_int_value(_ERRORS):
            self._fail("flushing", OSError("RocksDB could not write a table"))
        if not self._rocksdb.property_int_value(_IMMUTABLE):
            self._trim(self._flushing)

    def _trim(self, up_to: int) -> None:
        self._flushing = 0
        self._trimmed = up_to
        self._log.trim(up_to)

    def _bound_memory(self) -> None:
        if not self._flushing:
            self.begin_flush()
        elif self._held >= _SHARES_MAX * self._budget.share_bytes:
            self.flush()

    def compact(self) -> None:
        """Rewrites every table file, so that nothing deleted is left in any. Slow."""
        self.flush()
        try:
            self._log.close()  # which leaves nothing in it
        except OSError as error:
            self._fail("compacting", error)
        self._open_log(self._identity).read(self._trimmed)
        self._trim(self._trimmed)
        how = CompactOptions()
        how.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        try:
            self._rocksdb.compact_range(None, None, how)
        except Exception as error:
            self._fail("compacting", error)

    def checkpoint(self, folder: str | os.PathLike[str]) -> None:
        """Makes a copy of the store as it is now in a folder that is not there yet.

        Table files are linked, not copied, so it is quick; what it holds does not change any more.
        """
        self.flush()
        try:
            Checkpoint(self._rocksdb).create_checkpoint(str(folder))
        except Exception as error:
            raise StoreError(f"{folder}: no checkpoint could be made there: {error}") from error
        # All of it is in tables. A log that says so makes it a store again.
        FileLog.create(Path(folder), self._identity, self._log.last)

    def size_on_disk(self) -> int:
        """Bytes in the store's files."""
        total = 0
        for path in self.folder.iterdir():
            try:
                total += path.stat().st_size
            except FileNotFoundError:  # compaction deletes files at any moment
                continue
        return total

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Syncs what is written, forgets what is pending, and lets the folder go."""
        if self._closed:
            return
        with self._beside:
            self._closed = True
        # An open RocksDB iterator would keep the folder locked.
        for rows in list(self._scans):
            if inspect.getgeneratorstate(rows) == inspect.GEN_CREATED:
                # One that was never asked keeps what it was made with, from Python 3.12 on.
                with contextlib.suppress(StoreError):
                    next(rows, None)
            rows.close()
        try:
            if self._failure is None:
                if self._staged:
                    self.write()
                if self._log.last > self._trimmed:
                    self.flush()
        finally:
            self._staged = 0  # where it failed: it is in the log, and comes back
            self.discard()
            self._budget._stores -= 1
            try:
                self._rocksdb.close()
            except Exception as error:
                if self._failure is None:
                    self._fail("closing", error)
            finally:
                self._close_files()
                self._failure = self._failure or f"{self.folder}: it is closed. Open it again."

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- opening ------------------------------------------------------------------------------

    def _inspect(self, options: Options, accept_loss: bool) -> _Found:
        """Refuses a store that must not be opened, without changing it.

        Opening RocksDB for writing sweeps out what it does not know, and in format 1 the log,
        damaged or not: after that, there is nothing left to examine. So it is first opened for
        reading.
        """
        found = self._look(options, accept_loss)
        claimed = self._mark.position
        recovered = 0
        if found.version == 1:
            recovered, _ = self._repeated(found.sequence, accept_loss)
        elif found.version:
            log = self._open_log(found.identity, accept_loss)
            log.read(found.applied)
            recovered, claimed = log.last, max(claimed, log.claimed)
        if recovered < claimed and not accept_loss:
            raise self._lost(recovered, claimed)
        return found

    def _look(self, options: Options, accept_loss: bool) -> _Found:
        """What RocksDB has in its files."""
        mark = self._mark
        if not (self.folder / "CURRENT").exists():
            if not accept_loss and any((self.folder / name).exists() for name in LOG_NAMES):
                raise StoreError(
                    f"{self.folder}: its log is here, and RocksDB's file CURRENT is missing, and "
                    f"with it all synced writes. {RESTORE}"
                )
            return _Found(0, 0, b"", 0)
        if not mark.blank and not mark.readable and not accept_loss:
            raise StoreError(
                f"{self.folder}: the file {MARK_NAME!r} is damaged, so it cannot be told whether "
                f"synced writes are missing. {RESTORE}"
            )
        rocksdb = self._open_rocksdb(options, AccessType.read_only(False))
        try:
            version = self._check_format(rocksdb.get(STORE_FORMAT), rocksdb)
            sequence = rocksdb.latest_sequence_number()
            if version < 2:
                return _Found(version, sequence, b"", 0)
            identity, applied = rocksdb.get(STORE_IDENTITY), rocksdb.get(STORE_APPLIED)
        except StoreError:
            raise
        except Exception as error:
            raise self._unreadable(error) from error
        finally:
            rocksdb.close()
        if identity is None or applied is None:
            raise StoreError(
                f"{self.folder}: rows that every store has are missing. Restore it from a snapshot."
            )
        return _Found(version, sequence, identity, *_POSITION.unpack(applied))

    def _repeated(self, sequence: int, accept_loss: bool) -> tuple[int, list[Batch]]:
        try:
            return batches_to_repeat(self.folder, sequence)
        except StoreError:
            if not accept_loss:
                raise
            return sequence, []

    def _check_format(self, row: bytes | None, rocksdb: Rdict) -> int:
        """The version of a store that may be opened; 0 if it was not made yet."""
        if row is None:
            # A crash while the store was being made leaves it empty; anything else is not ours.
            cursor = rocksdb.iter()
            cursor.seek_to_first()
            if cursor.valid():
                raise StoreError(
                    f"{self.folder}: this RocksDB was not made by Asterism. Use another folder."
                )
            cursor.status()
            return 0
        found = read_format(row)
        if found is None:
            raise StoreError(
                f"{self.folder}: its format is not known to this version of Asterism, which reads "
                f"up to format {FORMAT_VERSION}. Use the version that wrote it."
            )
        version, number, count = found
        if version > FORMAT_VERSION:
            raise StoreError(
                f"{self.folder}: it is of format {version}, and this version of Asterism reads up "
                f"to format {FORMAT_VERSION}. Use the version that wrote it, or a later one."
            )
        steps = {1, *MIGRATIONS}
        if any(step not in steps for step in range(version, FORMAT_VERSION)):
            raise StoreError(
                f"{self.folder}: it is of format {version}, which this version of Asterism cannot "
                f"migrate to format {FORMAT_VERSION}. Migrate it with an earlier version first."
            )
        if (number, count) != (self.number, self.count):
            raise StoreError(
                f"{self.folder}: this is store {number} of {count}, not store {self.number} of "
                f"{self.count}. The number of stores is fixed when a data folder is made; check "
                "the configured number, and that no store's folder was moved."
            )
        return version

    def _begin(self, found: _Found, accept_loss: bool) -> None:
        """Makes, migrates or recovers the opened store, and sets its mark if none holds."""
        if found.version < 2:
            end = self._make(found, accept_loss)
        else:
            end = self._recover(found, accept_loss)
        self._synced = end
        try:
            if end < self._mark.position or not self._mark.readable:
                self._mark.reset(end)
                sync_folder(self.folder)
            (self.folder / JOURNAL_NAME).unlink(missing_ok=True)
        except OSError as error:
            self._fail("opening", error)
        version, *_ = _FORMAT.unpack(self.get(STORE_FORMAT) or b"")
        for step in range(version, FORMAT_VERSION):
            MIGRATIONS[step](self)
            self._put_format(step + 1)
            self.commit()
            self.flush()  # the version is read ahead of the log

    def _make(self, found: _Found, accept_loss: bool) -> int:
        """Makes a store, of nothing or of one of format 1.

        It is of the old format, or none, until RocksDB has the new rows in a table: only then is
        the log looked at. Positions go on behind RocksDB's numbers, so that an old mark holds.
        """
        if found.version:
            for batch in self._repeated(found.sequence, accept_loss)[1]:
                self._write_rocksdb(0, batch)
        base = self._rocksdb.latest_sequence_number() if found.version else 0
        self._identity = os.urandom(NAME_BYTES)
        FileLog.create(self.folder, self._identity, base)
        row = _FORMAT.pack(2, self.number, self.count)
        rows: dict[bytes, bytes | None] = {STORE_FORMAT: row, STORE_IDENTITY: self._identity}
        self._write_rocksdb(base, Batch([], [], rows))
        try:
            self._rocksdb.flush(True)
        except Exception as error:
            self._fail("flushing", error)
        self._open_log(self._identity).read(base)
        self._trim(base)
        return base

    def _recover(self, found: _Found, accept_loss: bool) -> int:
        """Gives RocksDB what the log has behind its tables, in order, and empties the log."""
        log, self._identity = self._log, found.identity
        entries = log.read(found.applied)
        while some := list(islice(entries, _TOGETHER)):
            self._write_rocksdb(some[-1].position, *(entry.batch for entry in some))
        if log.last > found.applied:
            try:
                self._rocksdb.flush(True)
            except Exception as error:
                self._fail("flushing", error)
        if accept_loss:
            # What is left of what was lost must not speak against the store another time.
            log.close()
            FileLog.create(self.folder, found.identity, log.last)
            self._open_log(found.identity).read(log.last)
        self._trim(log.last)
        return log.last

    def _open_log(self, identity: bytes, accept_loss: bool = False) -> FileLog:
        turn_bytes = min(TURN_BYTES, self._budget.share_bytes)
        log = FileLog(self.folder, identity, turn_bytes, accept_loss)
        self._files.callback(log.close)
        self._log = log
        return log

    def _close_files(self) -> None:
        try:
            self._files.close()
        except OSError as error:
            if self._failure is None:
                self._fail("closing", error)

    def _put_format(self, version: int) -> None:
        self.put(STORE_FORMAT, _FORMAT.pack(version, self.number, self.count))

    def _open_rocksdb(self, options: Options, access: AccessType) -> Rdict:
        try:
            # Named once more for the column family: without that, rocksdict opens an existing one
            # with its own cache of 8 MB and no filter, whatever the options say.
            families = {"default": options}
            return Rdict(str(self.folder), options, families, access)
        except Exception as error:
            if "lock hold by current process" in str(error) or "While lock file" in str(error):
                raise in_use(self.folder) from error
            raise StoreError(
                f"{self.folder}: RocksDB cannot open it: {error}. If files are damaged or missing, "
                "restore this store from a snapshot."
            ) from error

    def _lost(self, recovered: int, claimed: int) -> StoreError:
        return StoreError(
            f"{self.folder}: synced writes are missing ({claimed - recovered} of {claimed} "
            "batches): its log is damaged, or files were deleted or put back from an older copy. "
            + RESTORE
        )

    # --- scanning -----------------------------------------------------------------------------

    def _written_rows(self, cursor: RdictIter, high: bytes) -> _Rows:
        """Rows from where the cursor is."""
        read_key, read_value, step = cursor.key, cursor.value, cursor.next
        while (key := read_key()) is not None and key < high:
            yield key, read_value()
            step()
        self._check_cursor(cursor)

    def _merged_rows(
        self,
        cursor: RdictIter,
        high: bytes,
        pending: _Pending,
        first: tuple[bytes, bytes | None] | None,
        own: Iterator[tuple[bytes, bytes | None]],
    ) -> _Rows:
        """Rows from where the cursor is, as the pending ones make them."""
        end: tuple[bytes, bytes | None] = (high, None)
        own_key, own_value = first or end
        read_key, read_value, step = cursor.key, cursor.value, cursor.next
        key = _key_before(cursor, high)
        while own_key < high or key < high:
            if pending.lows and key < own_key and (cover_end := pending.cover_end(key)) is not None:
                cursor.seek(cover_end)
            elif key < own_key:
                yield key, read_value()
                step()
                if not pending.lows:  # up to the next that is pending, as fast as it goes
                    while (key := read_key()) is not None and key < own_key:
                        yield key, read_value()
                        step()
            else:
                if key == own_key:
                    step()
                if own_value is not None:
                    yield own_key, own_value
                own_key, own_value = next(own, end)
            key = _key_before(cursor, high)
        self._check_cursor(cursor)

    def _check_cursor(self, cursor: RdictIter) -> None:
        """A cursor that meets a damaged block looks like one at the end; only its status tells."""
        try:
            cursor.status()
        except Exception as error:
            raise self._unreadable(error) from error

    # --- failing ------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise StoreError(self._failure)

    def _fail(self, doing: str, error: Exception) -> NoReturn:
        """After a failed write or sync, nobody knows what is on the disk: only reopening tells.

        A second sync may well succeed, and prove nothing: the system has forgotten the first.
        """
        self._failure = (
            f"{self.folder}: {doing} failed: {error}. Nothing more is written to it until it is "
            "opened again; check the disk and its free space first. If a file is damaged, restore "
            "this store from a snapshot."
        )
        raise StoreError(self._failure) from error

    def _unreadable(self, error: Exception) -> StoreError:
        return StoreError(
            f"{self.folder}: reading failed: {error}. If a file is damaged, restore this store "
            "from a snapshot."
        )


def read_format(row: bytes) -> tuple[int, int, int] | None:
    """The version, number and count of a format row; ``None`` if it is none."""
    if len(row) != _FORMAT.size:
        return None
    version, number, count = _FORMAT.unpack(row)
    return version, number, count


def _key_before(cursor: RdictIter, high: bytes) -> bytes:
    """The cursor's key, or ``high`` when it is past the last row before it."""
    key: bytes | None = cursor.key()
    return high if key is None or key > high else key


def _make_folder(folder: Path) -> SyncedMark:
    """Makes the folder of a store if it is not there, and takes its lock."""
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            sync_folder(folder.parent)
    except OSError as error:
        raise unusable(folder, error) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(
            f"{folder}: no permission to write. Give this user the folder, or another."
        )
    return SyncedMark(folder)


def _options(budget: Budget) -> Options:
    """How RocksDB is set up for queues: much is written once, read once in order, and deleted."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    # For a log of format 1. Recovery ends at the first damaged record; the mark tells whether that
    # was too soon.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_paranoid_checks(True)
    options.set_write_buffer_size(_BUFFER_BYTES)
    options.set_max_write_buffer_number(_BUFFERS_MAX)
    options.set_target_file_size_base(_FILE_BYTES)
    options.set_max_open_files(_OPEN_FILES_MAX)
    options.set_max_background_jobs(2)
    options.set_bytes_per_sync(_MEGABYTE)  # table files reach the disk evenly, not in one stall
    options.set_compression_type(DBCompressionType.lz4())
    # Consumed messages leave deletions in dense runs, over which a scan has to step: such files are
    # compacted soon, not when their level is full.
    options.add_compact_on_deletion_collector_factory(_DELETIONS_WINDOW, _DELETIONS_MAX, 0.0)
    options.set_keep_log_file_num(_LOGS_KEPT)
    options.set_max_log_file_size(_LOG_BYTES)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    table = BlockBasedOptions()
    table.set_block_size(_BLOCK_BYTES)
    table.set_format_version(5)
    # Indexes and filters in partitions, through the cache: memory is bounded whatever the backlog.
    table.set_bloom_filter(_FILTER_BITS, False)
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(_METADATA_BLOCK_BYTES)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_pin_top_level_index_and_filter(True)
    table.set_block_cache(budget._cache)
    options.set_block_based_table_factory(table)
    return options
