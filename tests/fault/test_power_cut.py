"""A store after power cuts: what was confirmed is there, and nothing without what it follows on."""

import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from asterism.storage.store import MARK_NAME, Budget, Store, StoreError
from tests.fault.power_cuts import (
    FAULTS,
    LIVES_A_MACHINE,
    Disk,
    note_flushes,
    run_machine,
    watched,
)

pytestmark = pytest.mark.fault

LOW, HIGH = b"\x01", b"\x02"
LOGS: Final = ("journal", "log-0", "log-1")  # where batches are synced, in this format or before


@pytest.mark.parametrize("seed", range(8))
def test_what_was_confirmed_is_there_after_power_cuts_and_nothing_out_of_order(
    seed: int, tmp_path: Path
) -> None:
    # Many more: python -m tests.fault.power_cuts
    counts: Counter[str] = Counter()
    run_machine(tmp_path / "machine", f"test {seed}", LIVES_A_MACHINE, counts)
    assert counts["lives"] == LIVES_A_MACHINE and counts["accepted"]
    assert not any(counts[fault] for fault in FAULTS), counts


def commit(store: Store, name: bytes, value: bytes = b"1" * 40) -> None:
    """A turn of a worker: durable before RocksDB has it."""
    store.put(LOW + name, value)
    store.stage()
    store.sync()
    store.write()


def rows_in(store: Store) -> dict[bytes, bytes]:
    return {key[1:]: value for key, value in store.scan(LOW, HIGH)}


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in LOGS if (folder / name).exists()}


def sizes_of_rocksdb_logs(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.glob("*.log")}


def test_what_is_lost_between_two_logs_of_rocksdb_is_put_back(tmp_path: Path) -> None:
    # RocksDB switched to another log; the power is cut before the end of the first one is on the
    # disk, and after the second one is.
    live, cut = tmp_path / "live", tmp_path / "cut"
    with Store(live) as store:
        store.put(LOW + b"first", b"1")
        store.commit()
        synced_bytes = sizes_of_rocksdb_logs(live)
        for number in range(5):
            commit(store, b"before %d" % number)
        shutil.copytree(live, cut)
        store._rocksdb.flush(False)
        for number in range(5):
            commit(store, b"behind %d" % number)
        for path in live.iterdir():
            is_new_log = path.suffix == ".log" and not (cut / path.name).exists()
            if is_new_log or path.name in (*LOGS, MARK_NAME):
                shutil.copy(path, cut)
        expected = rows_in(store)
    for name, size in synced_bytes.items():
        os.truncate(cut / name, size)
    with Store(cut) as store:
        assert rows_in(store) == expected


def test_an_entry_of_a_round_that_was_cut_short_does_not_follow_on_another(tmp_path: Path) -> None:
    live, cut = tmp_path / "live", tmp_path / "cut"
    with Store(live) as store:
        mark = (live / MARK_NAME).read_bytes()
        store.put(LOW + b"first", b"1")
        store.commit()
        synced_bytes = sizes_of_rocksdb_logs(live)
        before = contents(live)
        store.put(LOW + b"lost", b"x" * 600)
        store.stage()
        store.write()
        between = contents(live)
        store.put(LOW + b"stale", b"y" * 600)
        store.stage()
        store.write()
        shutil.copytree(live, cut)
    # The power is cut: of the two, which nobody synced, only the second one is on the disk. Nor was
    # the mark synced.
    (cut / MARK_NAME).write_bytes(mark)
    for name, new in contents(cut).items():
        start = 0 if name == "journal" else 4_096
        end = start + len(between[name][start:].rstrip(b"\0"))
        old = before[name][start:end].ljust(end - start, b"\0")
        if between[name] != before[name]:
            (cut / name).write_bytes(new[:start] + old + new[end:])
    for name, size in synced_bytes.items():
        os.truncate(cut / name, size)
    with Store(cut) as store:
        assert rows_in(store) == {b"first": b"1"}
        store.sync()
        commit(store, b"next", b"z" * 600)  # as large as what was lost
        shutil.copytree(cut, tmp_path / "killed")
    with Store(tmp_path / "killed") as store:
        assert rows_in(store) == {b"first": b"1", b"next": b"z" * 600}


def cut_with_one_batch_in_the_log_alone(folder: Path) -> Path:
    """A store that RocksDB has no table of, besides that of its making."""
    with Store(folder / "live") as store:
        commit(store, b"a", b"1")
        store.put(LOW + b"a", b"2")
        store.delete_range(LOW + b"b", LOW + b"c")
        store.stage()
        store.sync()
        store.write()
        shutil.copytree(store.folder, folder / "cut")
    return folder / "cut"


@pytest.mark.parametrize("seed", range(12))
def test_a_flush_that_ended_stays_on_the_disk_though_the_next_has_begun(
    seed: int, tmp_path: Path
) -> None:
    """Of the simulated disk: a cut must not undo tables whose log was let go with good reason."""
    disk = Disk(tmp_path / "live")
    with (
        watched(disk),
        Store(disk.folder, budget=Budget(write_bytes=2_000)) as store,
    ):
        disk.note_rocksdb()
        note_flushes(store, disk)
        numbers = iter(range(10_000))
        while not store._flushing:
            commit(store, b"%d" % next(numbers))
        first = store._flushing
        deadline = time.monotonic() + 30
        while store.is_flushing and time.monotonic() < deadline:
            time.sleep(0.001)
        while store._flushing in (0, first):  # one of these writes ends it and begins the next
            commit(store, b"%d" % next(numbers), bytes(1_000))
        for _ in range(3):  # which go over what the log had of the first flush
            commit(store, b"%d" % next(numbers), bytes(600))
        rows = rows_in(store)
        disk.cut(tmp_path / "cut", random.Random(seed), is_flushing=True)
    with Store(tmp_path / "cut") as store:
        assert rows_in(store) == rows


def test_a_batch_that_is_in_the_log_alone_is_put_back_once(tmp_path: Path) -> None:
    cut = cut_with_one_batch_in_the_log_alone(tmp_path)
    with Store(cut) as store:
        assert rows_in(store) == {b"a": b"2"}
        commit(store, b"a", b"3")
    with Store(cut) as store:
        assert rows_in(store) == {b"a": b"3"}


def test_a_loss_that_was_accepted_is_not_undone_by_what_the_log_held(tmp_path: Path) -> None:
    with Store(tmp_path / "live") as store:
        for name in (b"first", b"second", b"third", b"fourth", b"fifth"):
            commit(store, name)
        shutil.copytree(store.folder, tmp_path / "lost")
    log = tmp_path / "lost" / "log-0"
    content = log.read_bytes()
    at = content.index(LOW + b"second")
    log.write_bytes(content[:at] + b"\xff" + content[at + 1 :])
    with pytest.raises(StoreError, match=r"synced writes are missing \(4 of 5 batches\)"):
        Store(tmp_path / "lost")
    with Store(tmp_path / "lost", accept_loss=True) as store:
        assert rows_in(store).keys() == {b"first"}
        commit(store, b"z")
        shutil.copytree(store.folder, tmp_path / "killed")
    for folder in ("lost", "killed"):
        with Store(tmp_path / folder) as store:
            assert rows_in(store).keys() == {b"first", b"z"}


def test_a_batch_that_was_confirmed_before_rocksdb_had_it_is_there_after_a_kill(
    tmp_path: Path,
) -> None:
    with Store(tmp_path / "live") as store:
        commit(store, b"a", b"1")
        store.put(LOW + b"a", b"2")
        store.delete_range(LOW + b"b", LOW + b"c")
        store.stage()
        assert store.get(LOW + b"a") == b"2"
        store.sync()
        shutil.copytree(store.folder, tmp_path / "killed")
        store.write()
        assert store.get(LOW + b"a") == b"2"
        assert store.pending_count == 0
    for _ in range(2):
        with Store(tmp_path / "killed") as store:
            assert rows_in(store) == {b"a": b"2"}


def test_what_is_staged_is_not_forgotten(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        commit(store, b"a", b"1")
        store.put(LOW + b"a", b"2")
        store.stage()
        with pytest.raises(AssertionError, match="may be confirmed"):
            store.discard()
    with Store(tmp_path) as store:
        assert rows_in(store) == {b"a": b"2"}


def test_nothing_is_put_behind_what_is_staged(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.put(LOW + b"a", b"1")
        store.stage()
        store.put(LOW + b"b", b"2")
        with pytest.raises(AssertionError, match="put behind what is staged"):
            store.write()
        store.delete(LOW + b"b")
        store._pending.rows.pop(LOW + b"b")
