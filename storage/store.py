"""One store: a RocksDB in a folder of its own. Besides ``reading``, nobody else imports rocksdict.

It holds rows of bytes and knows nothing of what they mean. It has no clock and no thread of its
own, and it never repairs anything: a store that cannot be trusted is refused with a ``StoreError``,
and its rows and its log are left as they were found.

I1  What ``get`` and ``scan`` see is what is written plus this turn's own pending writes.
I2  Pending writes reach RocksDB in one batch (``write``): all of them, or none. They may have been
    *staged* before, in the journal, which is as safe; nothing else is put in between.
I3  After ``sync`` returns, everything written or staged before it began survives a power cut.
I4  The mark never claims more than I3 has made true, so a store that comes back with less than its
    mark has lost synced writes, and only such a store is refused for it.

The folder:

    CURRENT, MANIFEST-*, *.sst, *.log, …    RocksDB's own; *.log is its write-ahead log
    synced                                  the mark, and the lock (see ``SyncedMark``)
    journal                                 what RocksDB may have lost (see ``journal.py``)

The format row, under ``keys.STORE_FORMAT``, written when the store is made:

    version:u32 number:u32 count:u32        big-endian; store ``number`` of ``count``

**Why a mark.** RocksDB recovers up to the first damaged record of its log and forgets the rest
without a word, which is right for the torn tail that a crash leaves and wrong for synced writes.
Every put, delete and range of a batch counts one on RocksDB's sequence number, and that number
comes back after any recovery as the count of what was recovered. So the number known to be synced,
kept outside the log, tells the two apart.

**The journal** is the quick way to sync, where it holds all that was written since the log was
synced. A batch that is too large for it leaves a gap: the next sync is one of the log, and ends it.
What is staged there can be confirmed before RocksDB has it.

**Threads.** One thread owns a store. ``flush_beside`` alone may run in another at the same time: it
covers what was written before it began.
"""

import contextlib
import fcntl
import inspect
import os
import struct
import threading
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn, Self
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
    WriteBufferManager,
)

from asterism.storage.journal import JOURNAL_NAME, Batch, Entry, Journal
from asterism.storage.keys import STORE_FORMAT
from asterism.storage.memory import SortedRows

_Rows = Generator[tuple[bytes, bytes], None, None]

FORMAT_VERSION: Final = 1
_FORMAT: Final = struct.Struct(">III")

# From a version to the next: writes what must change as pending rows of the store it is given,
# which are committed together with the new format row.
MIGRATIONS: Final[dict[int, Callable[["Store"], None]]] = {}

MARK_NAME: Final = "synced"
_MARK_MAGIC: Final = b"asterism"
_MARK_HEAD: Final = struct.Struct(">8sQ")
_MARK_CHECK: Final = struct.Struct(">I")
_MARK_BYTES: Final = _MARK_HEAD.size + _MARK_CHECK.size
_MARK_SLOTS: Final = (0, 4_096)  # apart by the largest sector in use: one torn write hits one slot

_MEGABYTE: Final = 1 << 20
_CACHE_BYTES: Final = 8 * _MEGABYTE
_WRITE_BYTES: Final = 64 * _MEGABYTE
_BUFFER_BYTES: Final = 16 * _MEGABYTE  # of one memtable; full ones wait for their flush
_BUFFERS_MAX: Final = 4
_FILE_BYTES: Final = 32 * _MEGABYTE
_BLOCK_BYTES: Final = 16 * 1_024
_METADATA_BLOCK_BYTES: Final = 4_096  # of a partitioned index or filter
_FILTER_BITS: Final = 10  # per key: one in a hundred absent keys costs a read
_OPEN_FILES_MAX: Final = 256
_DELETIONS_WINDOW: Final = 131_072  # rows of a table file of which not more than so many ...
_DELETIONS_MAX: Final = 98_304  # ... may be deletions: about 20 ms to step over
_LOG_BYTES: Final = _MEGABYTE  # of RocksDB's own text log
_LOGS_KEPT: Final = 3

_RESTORE: Final = (
    "Restore this store from a snapshot, or open it with accept_loss=True "
    "(asterism doctor --accept-loss) to go on without them."
)


class StoreError(Exception):
    """A store cannot be used; the message says why, and what to do."""


class Budget:
    """Memory for the stores of one process: those opened with the same budget share it.

    ``cache_bytes`` bounds blocks, indexes and filters read from files; ``write_bytes`` bounds rows
    written and not yet flushed. At a bound, blocks are dropped and rows are flushed.
    """

    def __init__(self, cache_bytes: int = _CACHE_BYTES, write_bytes: int = _WRITE_BYTES) -> None:
        self._cache = Cache(cache_bytes)
        self._write_buffers = WriteBufferManager(write_bytes, False)

    def _apply(self, options: Options, table: BlockBasedOptions) -> None:
        table.set_block_cache(self._cache)
        options.set_write_buffer_manager(self._write_buffers)


class SyncedMark:
    """The sequence number known to be synced, in a small file beside the log; and the store's lock.

        slot, at 0 and at 4096:   "asterism"  sequence:u64  crc32:u32     big-endian

    Slots are written in turn, so a torn write leaves the other one: the mark then lags by one
    commit. It is written after the sync that it speaks of and is not synced itself. Any order in
    which a crash lets the two reach the disk is safe: the log is there before the mark is written,
    and an older mark claims less.

    The lock is on the open file, not on its process, so a second opening is refused in the same
    process too. It goes when the process ends, however that ends, and its forked children with it.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / MARK_NAME
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unusable(folder, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise _in_use(folder) from error
        slots = [os.pread(self._file, _MARK_BYTES, offset) for offset in _MARK_SLOTS]
        claims = [_read_slot(slot) for slot in slots]
        known = [claim for claim in claims if claim is not None]
        # Nothing but zeros is a file that a power cut caught before its first claim was synced.
        self.blank = not any(map(any, slots))
        self.readable = bool(known)
        self.sequence = max(known, default=0)
        self._next = 1 if claims[0] == self.sequence else 0

    def advance(self, sequence: int) -> None:
        """Claims that everything up to ``sequence`` is synced."""
        head = _MARK_HEAD.pack(_MARK_MAGIC, sequence)
        slot = head + _MARK_CHECK.pack(zlib.crc32(head))
        os.pwrite(self._file, slot, _MARK_SLOTS[self._next])
        self._next ^= 1
        self.sequence = sequence

    def reset(self, sequence: int) -> None:
        """Claims exactly this, whatever was claimed before, and syncs the claim."""
        self.advance(sequence)
        self.advance(sequence)
        os.fsync(self._file)
        self.blank = False
        self.readable = True

    def close(self) -> None:
        os.close(self._file)


def _read_slot(slot: bytes) -> int | None:
    if len(slot) < _MARK_BYTES:
        return None
    magic, sequence = _MARK_HEAD.unpack_from(slot)
    (check,) = _MARK_CHECK.unpack_from(slot, _MARK_HEAD.size)
    if magic != _MARK_MAGIC or check != zlib.crc32(slot[: _MARK_HEAD.size]):
        return None
    return int(sequence)


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
        self._beside = threading.Lock()  # held while another thread flushes
        _make_folder(self.folder)
        self._staged = 0  # the number of the last write that is staged; 0: none is
        self._synced = 0  # the number of the last write that was synced since it is open
        self._logged = 0  # of those, the last that was synced by RocksDB's log
        self._mark = SyncedMark(self.folder)
        try:
            self._journal = _open_journal(self.folder)
        except BaseException:
            self._mark.close()
            raise
        try:
            options = _options(budget or Budget())
            self._inspect(options, accept_loss)
            self._rocksdb = self._open_rocksdb(options, AccessType.read_write())
        except BaseException:
            self._journal.close()
            self._mark.close()
            raise
        self._closed = False
        self._get_written: Callable[[bytes], bytes | None] = self._rocksdb.get
        try:
            self._begin(accept_loss)
        except BaseException:
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

    def stage(self) -> bool:
        """Puts what is pending into the journal, and has the disk begin with it: safe from a kill,
        and the quickest to ``sync``.

        To give it to RocksDB is left for ``write``, behind the answers. ``False``, with nothing
        done, if the journal cannot take it: then ``write`` it now.
        """
        self._check_usable()
        assert not self._staged
        batch = self._pending.batch()
        last = self._append_to_journal(batch)
        if last:
            try:
                self._journal.begin_sync()
            except OSError as error:
                self._fail("writing", error)
            self._staged = last
        return bool(last)

    def write(self, journal: bool = False) -> None:
        """Writes all that is pending in one batch: visible, safe from a kill, not yet durable.

        With ``journal`` it is noted there as well, if that can take it, so that what follows can be
        staged: for what need not be synced for its own sake.
        """
        self._check_usable()
        batch = self._pending.batch()
        if not batch.rows and not batch.lows:
            return
        if journal and not self._staged:
            self._append_to_journal(batch)
        self._write_rocksdb(batch)
        # A scan may still hold the old one, so it is left as it is.
        self._pending = _Pending()
        if self._staged:
            assert self._rocksdb.latest_sequence_number() == self._staged
            self._staged = 0
            self._note_synced()

    def _append_to_journal(self, batch: Batch) -> int:
        """The number of the last write that is in the journal by it; 0 if it cannot take it."""
        journal = self._journal
        before = self._rocksdb.latest_sequence_number()
        if before not in (journal.last, self._logged):
            return 0  # something before it is neither in the journal nor synced
        count = len(batch.rows) + len(batch.lows)
        if not journal.append(before + 1, count, batch):
            if journal.last > self._logged:
                return 0
            journal.begin_round()
            if not journal.append(before + 1, count, batch):
                return 0
        return before + count

    def _write_rocksdb(self, writes: Batch) -> None:
        batch = WriteBatch(raw_mode=True)
        for low, high in zip(writes.lows, writes.highs, strict=True):
            batch.delete_range(low, high)
        put, delete = batch.put, batch.delete
        for key, value in writes.rows.items():
            if value is None:
                delete(key)
            else:
                put(key, value)
        try:
            self._rocksdb.write(batch)
        except Exception as error:
            self._fail("writing", error)

    def sync(self) -> None:
        """Makes all that is written or staged durable; costs nothing when it is already."""
        self._check_usable()
        if self._staged:
            try:
                self._journal.sync()
            except OSError as error:
                self._fail("syncing", error)
            self._synced = self._staged  # the mark follows with ``write``: nobody waits for it
            return
        sequence = self._rocksdb.latest_sequence_number()
        if sequence <= self._mark.sequence:
            return
        try:
            # Unlike a write that syncs, this lets the thread that flushes run meanwhile.
            self._rocksdb.flush_wal(True)
        except Exception as error:
            self._fail("syncing", error)
        self._synced = self._logged = sequence
        self._note_synced()

    def _note_synced(self) -> None:
        """Moves the mark to what is synced."""
        if self._synced > self._mark.sequence:
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
        """Moves what is written from the log into table files."""
        self.sync()
        try:
            self._rocksdb.flush(True)
        except Exception as error:
            self._fail("flushing", error)

    def flush_beside(self) -> None:
        """Flushes from another thread, while the owner goes on; nothing once it is closed."""
        with self._beside:
            if self._closed:
                return
            try:
                self._rocksdb.flush(True)
            except Exception as error:
                # For the owner to meet: RocksDB fails whatever is written after this.
                raise StoreError(f"{self.folder}: flushing failed: {error}") from error

    def compact(self) -> None:
        """Rewrites every table file, so that nothing deleted is left in any. Slow."""
        self.flush()
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
                self.sync()
        finally:
            self._staged = 0  # where it failed: it is in the journal, and comes back
            self.discard()
            try:
                self._rocksdb.close()
            except Exception as error:
                if self._failure is None:
                    self._fail("closing", error)
            finally:
                self._journal.close()
                self._mark.close()
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

    def _inspect(self, options: Options, accept_loss: bool) -> None:
        """Refuses a store that must not be opened, without changing it.

        Opening RocksDB for writing flushes what it recovered and deletes the log, damaged or not:
        after that, there is nothing left to examine. So it is first opened for reading.
        """
        mark = self._mark
        exists = (self.folder / "CURRENT").exists()
        if not exists:
            if mark.sequence and not accept_loss:
                raise self._lost(0)
            return
        if not mark.blank and not mark.readable and not accept_loss:
            raise StoreError(
                f"{self.folder}: the file {MARK_NAME!r} is damaged, so it cannot be told whether "
                f"synced writes are missing. {_RESTORE}"
            )
        rocksdb = self._open_rocksdb(options, AccessType.read_only(False))
        try:
            sequence = rocksdb.latest_sequence_number()
            for entry in self._missed(sequence):
                sequence = entry.last
            if sequence < mark.sequence and not accept_loss:
                raise self._lost(sequence)
            self._check_format(rocksdb.get(STORE_FORMAT), rocksdb)
        finally:
            rocksdb.close()

    def _check_format(self, row: bytes | None, rocksdb: Rdict) -> None:
        if row is None:
            # A crash while the store was being made leaves it empty; anything else is not ours.
            cursor = rocksdb.iter()
            cursor.seek_to_first()
            if cursor.valid():
                raise StoreError(
                    f"{self.folder}: this RocksDB was not made by Asterism. Use another folder."
                )
            return
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
        if any(step not in MIGRATIONS for step in range(version, FORMAT_VERSION)):
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

    def _begin(self, accept_loss: bool) -> None:
        """Makes or migrates the opened store, and sets its mark if it has none that holds."""
        self._use_up_journal()
        sequence = self._rocksdb.latest_sequence_number()
        if sequence < self._mark.sequence and not accept_loss:
            raise self._lost(sequence)
        if sequence < self._mark.sequence or not self._mark.readable:
            self._rocksdb.flush(True)  # into synced table files, which makes the claim true
            self._mark.reset(sequence)
            sync_folder(self.folder)
        row = self.get(STORE_FORMAT)
        version = FORMAT_VERSION if row is None else int(_FORMAT.unpack(row)[0])
        for step in range(version, FORMAT_VERSION):
            MIGRATIONS[step](self)
            self._put_format(step + 1)
            self.commit()
        if row is None:
            self._put_format(FORMAT_VERSION)
            self.commit()

    def _use_up_journal(self) -> None:
        """Puts back what is in the journal alone. Then it is emptied: what is left in it must not
        seem to follow on another time, when a loss was accepted."""
        if self._journal.is_empty():
            return
        for entry in self._missed(self._rocksdb.latest_sequence_number()):
            self._write_rocksdb(entry.batch)
            assert self._rocksdb.latest_sequence_number() == entry.last
        try:
            self._rocksdb.flush_wal(True)
            self._journal.erase()
        except Exception as error:
            self._fail("syncing", error)
        self._logged = self._rocksdb.latest_sequence_number()

    def _missed(self, sequence: int) -> Iterator[Entry]:
        """What is in the journal behind this write: what RocksDB has lost to a power cut, or was
        not given before a kill. Where the journal does not follow on, nothing in it helps."""
        for entry in self._journal.read():
            if entry.first == sequence + 1:
                yield entry
                sequence = entry.last

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
                raise _in_use(self.folder) from error
            raise StoreError(
                f"{self.folder}: RocksDB cannot open it: {error}. If files are damaged or missing, "
                "restore this store from a snapshot."
            ) from error

    def _lost(self, sequence: int) -> StoreError:
        missing = self._mark.sequence - sequence
        return StoreError(
            f"{self.folder}: {missing} synced writes are missing (of {self._mark.sequence}): the "
            f"log is damaged, or files were deleted or put back from an older copy. {_RESTORE}"
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
            "opened again; check the disk and its free space first."
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


def _make_folder(folder: Path) -> None:
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            sync_folder(folder.parent)
    except OSError as error:
        raise _unusable(folder, error) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(
            f"{folder}: no permission to write. Give this user the folder, or another."
        )


def _open_journal(folder: Path) -> Journal:
    is_new = not (folder / JOURNAL_NAME).exists()
    try:
        journal = Journal(folder)
        if is_new:
            sync_folder(folder)
        return journal
    except OSError as error:
        raise _unusable(folder, error) from error


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(folder: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{folder}: cannot be used as a store's folder: {error.strerror}. Name a folder that this "
        "user can make and write to."
    )


def _in_use(folder: Path) -> StoreError:
    return StoreError(
        f"{folder}: it is open already, here or in another process. A store has one owner; stop "
        "that one first."
    )


def _options(budget: Budget) -> Options:
    """How RocksDB is set up for queues: much is written once, read once in order, and deleted."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    # Recovery ends at the first damaged record; the mark tells whether that was too soon.
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
    budget._apply(options, table)
    options.set_block_based_table_factory(table)
    return options
