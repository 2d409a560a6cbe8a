"""A store that is only read: one of a snapshot, or one that nobody has open.

RocksDB writes into a folder that it opens, if only for reading: its text log, and rocksdict a file
of its own. So what is opened is a *view*, a temporary folder of links to the store's files. The
store itself is never changed, needs no permission to write, and any number of processes may read it
at once.

What is damaged is told: RocksDB checks every block that it reads, and ``scan`` asks it at the end
whether that was the end. It never repairs anything, and never ends early without a word.

A store that a broker has open is not for this: RocksDB deletes files there at any moment.
"""

import os
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
)

from asterism.storage.folder import StoreError
from asterism.storage.format1 import JOURNAL_NAME
from asterism.storage.keys import STORE_APPLIED, STORE_FORMAT, STORE_IDENTITY
from asterism.storage.log import LOG_PREFIX, FileLog
from asterism.storage.mark import MARK_NAME
from asterism.storage.store import FORMAT_VERSION, read_format

_CACHE_BYTES: Final = 8 << 20  # a scan reads each block once
_OPEN_FILES_MAX: Final = 256
_READ_AHEAD_BYTES: Final = 1 << 20
_VIEW_PREFIX: Final = "asterism-view-"
# What whoever opens a folder writes there; and the mark and the log, which are the owner's.
_NOT_VIEWED: Final = (
    *(".", "LOCK", "LOG", "rocksdict-config.json", MARK_NAME, LOG_PREFIX),
    JOURNAL_NAME,  # of format 1, whose rows are the same
)
_FORMATS: Final = (1, FORMAT_VERSION)


class ReadOnlyStore:
    """The rows of a store, for ``with``. ``number`` and ``count`` say which one it is."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Raises ``StoreError`` unless there is a store of a format that can be read."""
        self.folder = Path(folder)
        self._view = _view_of(self.folder)
        try:
            self._rocksdb = self._open()
            try:
                self.number, self.count = self._check_format()
                self._check_log()
            except BaseException:
                self._rocksdb.close()
                raise
        except BaseException:
            shutil.rmtree(self._view, ignore_errors=True)
            raise
        self._is_closed = False

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or ``None``."""
        try:
            value: bytes | None = self._rocksdb.get(key)
        except Exception as error:
            raise self._unreadable(error) from error
        return value

    def scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows with ``low <= key < high``, in key order; ``StoreError`` where one is damaged.

        An iterator that has come to its end has given every row.
        """
        return iter(()) if low >= high else self._rows(self._cursor(low, high), high)

    def scan_blocks(
        self, low: bytes, high: bytes, size: int
    ) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """The same rows, ``size`` at a time, keys and values apart: half the time of ``scan``."""
        if low >= high:
            return
        cursor = self._cursor(low, high)
        read_key, read_value, step = cursor.key, cursor.value, cursor.next
        ended = False
        while not ended:
            keys: list[bytes] = []
            values: list[bytes] = []
            add_key, add_value = keys.append, values.append
            for _ in range(size):
                key = read_key()
                if key is None:
                    ended = True
                    break
                add_key(key)
                add_value(read_value())
                step()
            if keys and keys[-1] >= high:  # sorted as they are, the last tells for all
                kept = bisect_left(keys, high)
                del keys[kept:], values[kept:]
                ended = True
            if ended:
                self._check_end(cursor)
            if keys:
                yield keys, values

    def _cursor(self, low: bytes, high: bytes) -> RdictIter:
        # RocksDB reads the bound out of these very bytes while the cursor lives, and nobody keeps
        # them for it: the generators that step it hold on to them, and check keys besides.
        until_high = ReadOptions()
        until_high.set_iterate_upper_bound(high)
        until_high.set_readahead_size(_READ_AHEAD_BYTES)
        try:
            cursor = self._rocksdb.iter(until_high)
        except Exception as error:
            raise self._unreadable(error) from error
        cursor.seek(low)
        return cursor

    def close(self) -> None:
        """Lets the files go."""
        if self._is_closed:
            return
        self._is_closed = True
        self._rocksdb.close()
        shutil.rmtree(self._view, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- reading ------------------------------------------------------------------------------

    def _rows(self, cursor: RdictIter, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        read_key, read_value, step = cursor.key, cursor.value, cursor.next
        while (key := read_key()) is not None and key < high:
            yield key, read_value()
            step()
        self._check_end(cursor)

    def _check_end(self, cursor: RdictIter) -> None:
        try:
            # A cursor that meets a damaged block looks like one at the end.
            cursor.status()
        except Exception as error:
            raise self._unreadable(error) from error

    def _open(self) -> Rdict:
        try:
            return Rdict(str(self._view), _options(), None, AccessType.read_only(False))
        except Exception as error:
            raise StoreError(
                f"{self.folder}: RocksDB cannot open it: {error}. A file of it is damaged or "
                "missing; take another snapshot."
            ) from error

    def _check_format(self) -> tuple[int, int]:
        row = self.get(STORE_FORMAT)
        found = None if row is None else read_format(row)
        if found is None:
            raise StoreError(f"{self.folder}: this RocksDB is no store of Asterism.")
        version, number, count = found
        if version not in _FORMATS:
            which = "or a later one" if version > FORMAT_VERSION else "or let a broker migrate it"
            raise StoreError(
                f"{self.folder}: it is of format {version}, and this version of Asterism reads "
                f"format {FORMAT_VERSION}. Use the version that wrote it, {which}."
            )
        return number, count

    def _check_log(self) -> None:
        """Nothing may be in the log alone, which is not read here."""
        identity, applied = self.get(STORE_IDENTITY), self.get(STORE_APPLIED)
        if identity is None or applied is None:
            return  # of format 1
        position = int.from_bytes(applied, "big")
        log = FileLog(self.folder, identity, read_only=True)
        log.read(position)
        log.close()
        if max(log.last, log.claimed) > position:
            raise StoreError(
                f"{self.folder}: its last writes are in its log alone: it is open, or was not "
                "closed. Read a snapshot, or have `asterism doctor` open and close it first."
            )

    def _unreadable(self, error: Exception) -> StoreError:
        return StoreError(
            f"{self.folder}: reading failed: {error}. A file of it is damaged or missing; use "
            "another snapshot."
        )


def _view_of(folder: Path) -> Path:
    """A new temporary folder with a link to each of the store's files."""
    # RocksDB makes what is not there, so a mistyped path has to be found out before.
    try:
        names = os.listdir(folder)
        if "CURRENT" not in names:
            raise StoreError(f"{folder}: there is no store here (no file CURRENT).")
        with open(folder / "CURRENT", "rb"):
            pass
    except OSError as error:
        raise StoreError(
            f"{folder}: no store can be read here: {error.strerror}. Check the path, and that this "
            "user may read it."
        ) from error
    view = Path(tempfile.mkdtemp(prefix=_VIEW_PREFIX))
    home = folder.absolute()
    for name in names:
        if not name.startswith(_NOT_VIEWED):
            (view / name).symlink_to(home / name)
    return view


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(False)
    options.set_paranoid_checks(True)
    options.set_max_open_files(_OPEN_FILES_MAX)
    options.set_keep_log_file_num(1)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(_CACHE_BYTES))
    table.set_cache_index_and_filter_blocks(True)
    options.set_block_based_table_factory(table)
    return options
