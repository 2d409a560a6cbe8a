"""The store on a real RocksDB: what a turn sees, what a commit keeps, and what is refused."""

import os
import shutil
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest
from rocksdict import Options, Rdict

from asterism.rows import Rows
from asterism.storage import store as store_module
from asterism.storage.keys import STORE_FORMAT
from asterism.storage.log import FileLog
from asterism.storage.memory import MemoryRows
from asterism.storage.store import MARK_NAME, MIGRATIONS, Budget, Store, StoreError

LOW, HIGH = b"\x01", b"\x02"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store") as opened:
        yield opened


def everything(rows: Rows) -> list[tuple[bytes, bytes]]:
    return list(rows.scan(LOW, HIGH))


def key(name: str) -> bytes:
    return LOW + name.encode()


def put_all(rows: Rows, names: str, value: bytes = b"old") -> None:
    for name in names:
        rows.put(key(name), value)


def names(rows: Rows) -> str:
    return "".join(found[1:].decode() for found, _ in rows.scan(LOW, HIGH))


def killed_copy(store: Store, to: Path) -> Path:
    """The folder as a kill at this moment would leave it."""
    shutil.copytree(store.folder, to)
    return to


# --- what a turn sees -------------------------------------------------------------------------


def test_a_turn_reads_its_own_writes(store: Store) -> None:
    store.put(key("a"), b"1")
    assert store.get(key("a")) == b"1"
    assert everything(store) == [(key("a"), b"1")]


def test_an_empty_value_is_a_value(store: Store) -> None:
    store.put(key("a"), b"")
    assert store.get(key("a")) == b""
    store.commit()
    assert store.get(key("a")) == b""
    assert everything(store) == [(key("a"), b"")]


def test_a_row_that_is_not_there_is_none_and_may_be_deleted(store: Store) -> None:
    assert store.get(key("a")) is None
    store.delete(key("a"))
    store.commit()
    assert store.get(key("a")) is None


def test_a_pending_delete_hides_a_written_row(store: Store) -> None:
    put_all(store, "abc")
    store.commit()
    store.delete(key("b"))
    assert store.get(key("b")) is None
    assert names(store) == "ac"


def test_a_deleted_range_hides_written_and_pending_rows_up_to_its_end(store: Store) -> None:
    put_all(store, "abc")
    store.commit()
    put_all(store, "bd", b"new")
    store.delete_range(key("b"), key("d"))
    assert [store.get(key(name)) for name in "abcd"] == [b"old", None, None, b"new"]
    assert names(store) == "ad"


def test_a_row_put_after_its_range_was_deleted_is_there(store: Store) -> None:
    put_all(store, "abc")
    store.commit()
    store.delete_range(key("a"), key("z"))
    store.put(key("b"), b"new")
    for _ in ("pending", "written"):
        assert store.get(key("b")) == b"new"
        assert everything(store) == [(key("b"), b"new")]
        store.commit()


def test_deleted_ranges_that_meet_become_one(store: Store) -> None:
    put_all(store, "abcdefgh")
    store.commit()
    for low, high in (("b", "c"), ("e", "f"), ("g", "h"), ("c", "e"), ("a", "b")):
        store.delete_range(key(low), key(high))
    assert store.pending_count == 2
    assert names(store) == "fh"
    store.commit()
    assert names(store) == "fh"


def test_a_range_that_ends_before_it_begins_deletes_nothing(store: Store) -> None:
    put_all(store, "abc")
    store.delete_range(key("c"), key("a"))
    store.delete_range(key("b"), key("b"))
    assert store.pending_count == 3
    store.commit()
    assert names(store) == "abc"


def test_a_scan_merges_pending_and_written_rows_in_key_order(store: Store) -> None:
    put_all(store, "bdfh")
    store.commit()
    put_all(store, "gca", b"new")
    store.put(key("d"), b"new")
    store.delete(key("f"))
    store.delete(key("x"))
    found = [(found[1:].decode(), value.decode()) for found, value in store.scan(LOW, HIGH)]
    assert found == [
        ("a", "new"), ("b", "old"), ("c", "new"), ("d", "new"), ("g", "new"), ("h", "old")
    ]  # fmt: skip


def test_a_scan_holds_to_its_bounds(store: Store) -> None:
    put_all(store, "abcd")
    assert [found for found, _ in store.scan(key("b"), key("d"))] == [key("b"), key("c")]
    store.commit()
    assert [found for found, _ in store.scan(key("b"), key("d"))] == [key("b"), key("c")]
    assert list(store.scan(key("d"), key("b"))) == []
    assert list(store.scan(key("b"), key("b"))) == []


def test_scans_that_are_open_together_hold_each_to_its_own_bounds(store: Store) -> None:
    # RocksDB reads a bound through a pointer. Were it freed, a later and lower one took its place.
    for number in range(1_000):
        store.put(LOW + number.to_bytes(4, "big"), b"")
    store.commit()
    scans = [
        store.scan(LOW + low.to_bytes(4, "big"), LOW + (low + 10).to_bytes(4, "big"))
        for low in range(990, -1, -10)
    ]
    assert [len(list(rows)) for rows in scans] == [10] * 100


def test_a_scan_keeps_its_view_over_a_commit_and_a_discard(store: Store) -> None:
    put_all(store, "bd")
    store.commit()
    put_all(store, "ac")
    before_commit = store.scan(LOW, HIGH)
    store.commit()
    put_all(store, "xy")
    before_discard = store.scan(LOW, HIGH)
    store.discard()
    assert [found for found, _ in before_commit] == [key(name) for name in "abcd"]
    assert [found for found, _ in before_discard] == [key(name) for name in "abcdxy"]


@pytest.mark.parametrize("kind", ["store", "memory"])
def test_rows_may_be_changed_during_a_scan(store: Store, kind: str) -> None:
    rows: Rows = store if kind == "store" else MemoryRows()
    for number in range(1_000):
        rows.put(LOW + number.to_bytes(4, "big"), b"")
    seen = []
    for found, _ in rows.scan(LOW, HIGH):
        seen.append(found)
        rows.delete(found)
        rows.put(found + b"again", b"")
        if len(seen) == 500:
            rows.delete_range(LOW, found)
    assert seen == sorted(seen)
    assert {LOW + number.to_bytes(4, "big") for number in range(1_000)} <= set(seen)


def test_a_scan_may_be_left_early(store: Store) -> None:
    put_all(store, "abcd")
    store.commit()
    assert len(list(islice(store.scan(LOW, HIGH), 2))) == 2


# --- what a commit keeps ----------------------------------------------------------------------


def test_what_is_committed_is_there_after_reopening(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        put_all(store, "abc")
        store.commit()
        store.delete_range(key("a"), key("b"))
        store.delete(key("b"))
        store.put(key("d"), b"new")
        store.commit()
    with Store(tmp_path) as store:
        assert everything(store) == [(key("c"), b"old"), (key("d"), b"new")]


def test_what_is_pending_is_nowhere_else(store: Store, tmp_path: Path) -> None:
    put_all(store, "abc")
    with Store(killed_copy(store, tmp_path / "copy")) as copy:
        assert everything(copy) == []


def test_a_batch_that_is_written_survives_a_kill_before_its_sync(
    store: Store, tmp_path: Path
) -> None:
    put_all(store, "abc")
    store.write()
    assert store.pending_count == 0
    with Store(killed_copy(store, tmp_path / "copy")) as copy:
        assert names(copy) == "abc"


def test_a_batch_whose_end_is_torn_off_is_gone_as_a_whole(store: Store, tmp_path: Path) -> None:
    put_all(store, "ab")
    store.commit()
    put_all(store, "cdefgh")
    store.delete_range(key("a"), key("b"))
    store.write()
    end = store._log._current.end  # type: ignore[attr-defined]
    folder = killed_copy(store, tmp_path / "copy")
    os.truncate(folder / "log-0", end - 1)
    with Store(folder) as copy:
        assert names(copy) == "ab"


def test_closing_keeps_what_is_written_and_drops_what_is_pending(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        put_all(store, "ab")
        store.commit(sync=False)
        put_all(store, "cd")
    with Store(tmp_path) as store:
        assert names(store) == "ab"


def test_discarded_writes_are_forgotten(store: Store) -> None:
    put_all(store, "abc")
    store.commit()
    store.put(key("a"), b"new")
    store.delete_range(key("b"), key("z"))
    assert store.pending_count == 2
    store.discard()
    assert store.pending_count == 0
    store.commit()
    assert [value for _, value in everything(store)] == [b"old"] * 3


def test_the_mark_moves_with_the_sync_and_not_before(store: Store) -> None:
    def mark() -> bytes:
        return (store.folder / MARK_NAME).read_bytes()

    before = mark()
    put_all(store, "abc")
    store.write()
    assert mark() == before
    store.sync()
    synced = mark()
    assert synced != before
    store.sync()
    assert mark() == synced


def test_a_sync_that_fails_claims_nothing_and_ends_the_writing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: int) -> None:
        raise OSError("the disk is gone")

    put_all(store, "ab")
    store.commit()
    before = (store.folder / MARK_NAME).read_bytes()
    put_all(store, "c")
    monkeypatch.setattr(os, "fdatasync", fail)
    for _ in range(2):
        with pytest.raises(StoreError, match="syncing failed: the disk is gone"):
            store.commit()
    assert (store.folder / MARK_NAME).read_bytes() == before
    assert names(store) == "abc"  # reading goes on
    monkeypatch.undo()
    with Store(killed_copy(store, tmp_path / "copy")) as copy:
        assert names(copy) == "abc"


def test_a_disk_that_fails_while_it_is_compacted_is_an_error_of_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none that ends the worker, with all its other stores."""

    def fail(_: object) -> None:
        raise OSError(5, "Input/output error")

    put_all(store, "ab")
    store.commit()
    with monkeypatch.context() as patched, pytest.raises(StoreError, match="Input/output error"):
        patched.setattr(FileLog, "close", fail)
        store.compact()


def test_a_batch_that_rocksdb_has_in_a_table_and_the_log_has_not_is_kept(
    store: Store, tmp_path: Path
) -> None:
    # As after a failed sync: closing RocksDB makes it write a table all the same.
    put_all(store, "ab")
    store.commit()
    before = killed_copy(store, tmp_path / "before")
    put_all(store, "c")
    store.write()
    store._rocksdb.flush(True)
    folder = killed_copy(store, tmp_path / "copy")
    shutil.copy(before / "log-0", folder)
    for _ in ("opened", "reopened"):
        with Store(folder) as copy:
            assert names(copy) == "abc"
            put_all(copy, "d")
            copy.delete(key("d"))
            copy.commit()


def test_a_store_in_memory_needs_no_commit() -> None:
    rows = MemoryRows()
    put_all(rows, "cab")
    rows.delete(key("b"))
    rows.delete(key("b"))
    rows.put(key("b"), b"new")
    rows.delete_range(key("a"), key("b"))
    rows.delete_range(key("z"), key("a"))
    assert rows.get(key("a")) is None
    assert rows.get(key("b")) == b"new"
    assert names(rows) == "bc"


# --- the files --------------------------------------------------------------------------------


def files_holding(folder: Path, needle: bytes) -> list[str]:
    return [path.name for path in folder.iterdir() if needle in path.read_bytes()]


def test_compaction_leaves_nothing_of_what_was_deleted(store: Store) -> None:
    needle = os.urandom(64)  # not compressible, so it stands in the files as it is
    store.put(key("a"), needle)
    store.flush()
    assert files_holding(store.folder, needle) == []  # pending rows are not flushed
    store.commit()
    store.flush()
    assert files_holding(store.folder, needle) != []
    store.delete_range(key("a"), key("b"))
    store.commit()
    store.compact()
    assert files_holding(store.folder, needle) == []


def test_the_size_on_disk_follows_the_rows(store: Store) -> None:
    empty = store.size_on_disk()
    store.put(key("a"), os.urandom(1_000_000))
    store.commit()
    store.compact()  # the log gives back what it has grown by
    assert 1_000_000 <= store.size_on_disk() - empty < 2_000_000


def test_a_reopened_store_keeps_its_filter(tmp_path: Path) -> None:
    # rocksdict forgets it unless the options are given for the column family too.
    for _ in ("made", "reopened"):
        with Store(tmp_path) as store:
            newest = max(tmp_path.glob("OPTIONS-*"))
            assert "filter_policy=bloomfilter" in newest.read_text()
            store.commit()


def test_stores_may_share_a_budget(tmp_path: Path) -> None:
    budget = Budget(cache_bytes=1 << 20, write_bytes=4 << 20)
    with (
        Store(tmp_path / "0", number=0, count=2, budget=budget) as first,
        Store(tmp_path / "1", number=1, count=2, budget=budget) as second,
    ):
        for store in (first, second):
            for number in range(6):
                store.put(key(str(number)), os.urandom(1 << 20))
                store.commit()
        for store in (first, second):
            assert names(store) == "012345"


def test_a_damaged_table_file_is_noticed_by_a_scan_and_a_get(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        for number in range(5_000):
            store.put(LOW + number.to_bytes(4, "big"), os.urandom(100))
        store.commit()
        store.compact()
    table = max(tmp_path.glob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0xFF
    table.write_bytes(content)
    with Store(tmp_path) as store:
        rows = store.scan(LOW, HIGH)
        seen = 0
        with pytest.raises(StoreError, match="restore this store from a snapshot"):
            for _ in rows:
                seen += 1
        assert 0 < seen < 5_000
        store.put(LOW + b"\xff", b"")  # the merging scan looks too
        with pytest.raises(StoreError, match="restore this store from a snapshot"):
            everything(store)
        with pytest.raises(StoreError, match="restore this store from a snapshot"):
            for number in range(5_000):
                store.get(LOW + number.to_bytes(4, "big"))


class Watched:
    """A store's RocksDB, whose flushes and properties a test looks at."""

    def __init__(self, store: Store) -> None:
        self.rocksdb = store._rocksdb
        self.properties: dict[str, int] = {}
        self.synced_at_flush: list[bool] = []
        self._log = cast(FileLog, store._log)
        store._rocksdb = cast(Any, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rocksdb, name)

    def flush(self, wait: bool) -> None:
        self.synced_at_flush.append(self._log._synced == self._log.last)
        self.rocksdb.flush(wait)

    def property_int_value(self, name: str) -> int | None:
        return self.properties.get(name, self.rocksdb.property_int_value(name))


def test_rocksdb_writes_tables_only_of_what_is_synced_in_the_log(tmp_path: Path) -> None:
    with Store(tmp_path, budget=Budget(write_bytes=20_000)) as store:
        watched = Watched(store)
        for number in range(100):
            store.put(key(str(number)), os.urandom(1_000))
            store.write()  # that nobody has synced
        store.flush()
    assert len(watched.synced_at_flush) > 5
    assert all(watched.synced_at_flush)


def test_the_log_is_let_go_when_tables_have_what_is_in_it(tmp_path: Path) -> None:
    with Store(tmp_path, budget=Budget(write_bytes=20_000)) as store:
        log, watched = cast(FileLog, store._log), Watched(store)
        watched.properties["rocksdb.num-immutable-mem-table"] = 1  # RocksDB takes its time
        for number in range(20):
            store.put(key(str(number)), os.urandom(1_000))
            store.commit()
        assert store.is_flushing and log._trimmed == 0
        watched.properties.clear()
        while store.is_flushing:
            pass
        store.put(key("one more"), b"")
        store.commit()
        assert 0 < log._trimmed < log.last


def test_rocksdb_falling_behind_is_waited_for(tmp_path: Path) -> None:
    with Store(tmp_path, budget=Budget(write_bytes=20_000)) as store:
        watched = Watched(store)
        watched.properties["rocksdb.num-immutable-mem-table"] = 1
        for number in range(200):
            store.put(key(str(number)), os.urandom(1_000))
            store.commit()
            assert store.held_bytes < 60_000


def test_a_table_that_cannot_be_written_ends_the_writing(store: Store) -> None:
    put_all(store, "abc")
    store.commit()
    store.begin_flush()
    Watched(store).properties["rocksdb.background-errors"] = 1
    assert not store.is_flushing  # nobody need wait
    put_all(store, "d")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"flushing failed: .*free space"):
            store.commit()


# --- what is refused --------------------------------------------------------------------------


def write_format(folder: Path, row: bytes) -> None:
    with Store(folder) as store:
        store.put(STORE_FORMAT, row)
        store.commit()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    write_format(tmp_path, struct.pack(">III", 7, 0, 1))
    with pytest.raises(StoreError, match=r"format 7.* up to format 2\. Use the version"):
        Store(tmp_path)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    write_format(tmp_path, b"something else")
    with pytest.raises(StoreError, match="format is not known"):
        Store(tmp_path)


def test_a_format_too_old_to_migrate_is_refused(tmp_path: Path) -> None:
    write_format(tmp_path, struct.pack(">III", 0, 0, 1))
    with pytest.raises(StoreError, match=r"format 0, which .* cannot migrate"):
        Store(tmp_path)


def test_an_older_format_is_migrated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path) as store:
        put_all(store, "a")
        store.commit()

    def migrate(store: Store) -> None:
        put_all(store, "a", (store.get(key("a")) or b"") + b"+")

    monkeypatch.setattr(store_module, "FORMAT_VERSION", 4)
    monkeypatch.setitem(MIGRATIONS, 2, migrate)
    with pytest.raises(StoreError, match="cannot migrate"):
        Store(tmp_path)
    monkeypatch.setitem(MIGRATIONS, 3, migrate)
    for _ in ("migrated", "reopened"):
        with Store(tmp_path) as store:
            assert store.get(key("a")) == b"old++"
            assert store.get(STORE_FORMAT) == struct.pack(">III", 4, 0, 1)


def test_rows_of_somebody_else_are_refused(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.delete(STORE_FORMAT)
        put_all(store, "a")
        store.commit()
    with pytest.raises(StoreError, match="not made by Asterism"):
        Store(tmp_path)


def test_a_store_whose_making_was_cut_short_is_made_again(tmp_path: Path) -> None:
    Rdict(str(tmp_path), Options(raw_mode=True)).close()
    FileLog.create(tmp_path, bytes(16), 0)
    for _ in ("made", "reopened"):
        with Store(tmp_path, number=3, count=8) as store:
            assert store.get(STORE_FORMAT) == struct.pack(">III", 2, 3, 8)


@pytest.mark.parametrize(("number", "count"), [(2, 8), (1, 4)])
def test_another_store_is_refused(tmp_path: Path, number: int, count: int) -> None:
    Store(tmp_path, number=1, count=8).close()
    with pytest.raises(StoreError, match=f"store 1 of 8, not store {number} of {count}"):
        Store(tmp_path, number=number, count=count)
    Store(tmp_path, number=1, count=8).close()


def test_a_store_is_open_once(store: Store) -> None:
    before = sorted(os.listdir(store.folder))
    with pytest.raises(StoreError, match="open already"):
        Store(store.folder)
    assert sorted(os.listdir(store.folder)) == before  # not even looked into
    put_all(store, "a")
    store.commit()
    store.close()
    with Store(store.folder) as again:
        assert names(again) == "a"


def test_a_store_is_open_once_even_without_its_mark(store: Store) -> None:
    (store.folder / MARK_NAME).unlink()
    with pytest.raises(StoreError, match="open already"):
        Store(store.folder)


def test_a_scan_left_open_does_not_keep_the_folder_after_closing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put_all(store, "abc")
    store.commit()
    rows = store.scan(LOW, HIGH)
    next(rows)
    unread = store.scan(LOW, HIGH)
    store.close()
    Store(tmp_path).close()
    assert list(rows) == list(unread) == []


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(StoreError, match="cannot be used as a store's folder"):
            Store(folder)


def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o555)
    child = os.fork()
    if child == 0:
        # Root may write anywhere, so the attempt is made as somebody else.
        os.chdir(tmp_path)
        tmp_path.chmod(0o755)
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            Store(Path("store"))
        except StoreError as error:
            os._exit(0 if "permission" in str(error) else 2)
        except BaseException:
            os._exit(3)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_missing_table_file_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        put_all(store, "abc")
        store.commit()
    for table in tmp_path.glob("*.sst"):
        table.unlink()
    with pytest.raises(StoreError, match="RocksDB cannot open it"):
        Store(tmp_path)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.close()
    store.close()
    for use in (store.write, store.sync, store.commit, store.flush, store.compact):
        with pytest.raises(StoreError, match="it is closed"):
            use()
    with pytest.raises(StoreError, match="closed"):
        store.get(key("a"))
    with pytest.raises(StoreError, match="closed"):
        store.scan(LOW, HIGH)


def test_a_refused_store_is_let_go(tmp_path: Path) -> None:
    Store(tmp_path, number=1, count=8).close()
    for _ in range(3):
        with pytest.raises(StoreError, match="not store 0"):
            Store(tmp_path)
    Store(tmp_path, number=1, count=8).close()
