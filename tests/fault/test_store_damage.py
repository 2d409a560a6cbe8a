"""A store whose files were damaged, or whose process was killed or failed by its disk.

The promise: what was synced is there, or the store is refused; and only then is it refused.
A copy of a live store's folder is what a kill at that moment would leave behind.
"""

import contextlib
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from asterism.storage.store import MARK_NAME, Store, StoreError
from tests.fault import damage

pytestmark = pytest.mark.fault

ROOT: Final = Path(__file__).resolve().parents[2]
LOW, HIGH = b"\x01", b"\x02"
BATCHES: Final = 8
BATCH_ROWS: Final = 5
ENTRIES_AT: Final = 4_096
ENTRY_HEAD: Final = struct.Struct(">16sQQII")
SLOTS: Final = (0, 4_096)
SLOT_BYTES: Final = 20


def put_batch(store: Store, batch: int) -> None:
    for row in range(BATCH_ROWS):
        store.put(LOW + bytes([batch, row]), os.urandom(40))


def batches_in(store: Store) -> int:
    """How many batches there are; they are the first ones, and whole."""
    found = [key for key, _ in store.scan(LOW, HIGH)]
    count, rest = divmod(len(found), BATCH_ROWS)
    assert rest == 0
    assert found == [
        LOW + bytes([batch, row]) for batch in range(count) for row in range(BATCH_ROWS)
    ]
    return count


def log_of(folder: Path) -> Path:
    """The segment that is written to."""
    (log,) = (path for path in folder.glob("log-*") if path.stat().st_size > ENTRIES_AT)
    return log


def end_of(log: Path) -> int:
    """Where the last entry of a whole log ends."""
    content, at = log.read_bytes(), ENTRIES_AT
    while any(content[at : at + ENTRY_HEAD.size]):
        at += ENTRY_HEAD.size + ENTRY_HEAD.unpack_from(content, at)[3]
    return at


def middle_of(log: Path) -> int:
    return (ENTRIES_AT + end_of(log)) // 2


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


@pytest.fixture
def synced(tmp_path: Path) -> Iterator[Path]:
    """What a kill leaves of a store that wrote and synced its batches one by one."""
    with Store(tmp_path / "live") as store:
        for batch in range(BATCHES):
            put_batch(store, batch)
            store.commit()
        shutil.copytree(store.folder, tmp_path / "killed")
    yield tmp_path / "killed"


# --- synced writes are missing ----------------------------------------------------------------


def test_a_flipped_bit_anywhere_in_the_synced_log_is_refused(synced: Path, tmp_path: Path) -> None:
    end = end_of(log_of(synced))
    for position in (*range(0, 56, 3), *range(ENTRIES_AT, end, 37), end - 1):
        folder = tmp_path / f"flipped-{position}"
        shutil.copytree(synced, folder)
        flip(log_of(folder), position)
        with pytest.raises(StoreError, match=r"synced writes .*snapshot.*accept_loss"):
            Store(folder)


def test_a_refusal_says_where_how_much_and_what_to_do(synced: Path) -> None:
    flip(log_of(synced), end_of(log_of(synced)) - 1)  # in the last batch
    with pytest.raises(StoreError) as refusal:
        Store(synced)
    message = str(refusal.value)
    assert f"synced writes are missing (1 of {BATCHES} batches)" in message
    assert str(synced) in message
    assert "snapshot" in message
    assert "accept_loss=True" in message


def test_a_refused_store_keeps_its_log_and_is_refused_again(synced: Path) -> None:
    log = log_of(synced)
    middle = middle_of(log)
    flip(log, middle)
    before = log.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreError, match="missing"):
            Store(synced)
        assert log.read_bytes() == before
    flip(log, middle)  # back
    with Store(synced) as store:
        assert batches_in(store) == BATCHES


def test_an_accepted_loss_opens_with_what_came_before_it_and_is_over(synced: Path) -> None:
    flip(log_of(synced), middle_of(log_of(synced)))
    with Store(synced, accept_loss=True) as store:
        kept = batches_in(store)
        assert 0 < kept < BATCHES
    with Store(synced) as store:
        assert batches_in(store) == kept
        put_batch(store, kept)
        store.commit()
        shutil.copytree(synced, synced.with_name("again"))
    again = synced.with_name("again")
    empty_log(again)  # the mark that was set anew tells this too
    with pytest.raises(StoreError, match=rf"writes are missing \(1 of {kept + 1} batches\)"):
        Store(again)


def test_accepting_a_loss_of_nothing_loses_nothing(synced: Path) -> None:
    with Store(synced, accept_loss=True) as store:
        assert batches_in(store) == BATCHES


def cut_log(folder: Path) -> None:
    os.truncate(log_of(folder), middle_of(log_of(folder)))


def empty_log(folder: Path) -> None:
    os.truncate(log_of(folder), ENTRIES_AT)


def zero_end_of_log(folder: Path) -> None:
    log = log_of(folder)
    size, end = log.stat().st_size, end_of(log)
    os.truncate(log, end - 30)
    os.truncate(log, size)


def delete_all_but_the_mark(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != MARK_NAME:
            path.unlink()


@pytest.mark.parametrize("harm", [cut_log, empty_log, zero_end_of_log, delete_all_but_the_mark])
def test_synced_writes_that_are_gone_are_missed(synced: Path, harm: Callable[[Path], None]) -> None:
    harm(synced)
    with pytest.raises(StoreError, match="synced writes are missing"):
        Store(synced)
    with Store(synced, accept_loss=True) as store:
        kept = batches_in(store)
        assert kept < BATCHES
    with Store(synced) as store:
        assert batches_in(store) == kept


def test_a_store_that_lost_its_list_of_files_keeps_the_files(tmp_path: Path) -> None:
    # RocksDB would make a new store, and sweep out the tables of the old one.
    with Store(tmp_path) as store:
        put_batch(store, 0)
        store.commit()
    (tmp_path / "CURRENT").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="CURRENT is missing, and with it all synced writes"):
        Store(tmp_path)
    (tmp_path / "elsewhere").rename(tmp_path / "CURRENT")
    with Store(tmp_path) as store:
        assert batches_in(store) == 1


def test_files_of_an_older_copy_are_missed(tmp_path: Path) -> None:
    with Store(tmp_path / "live") as store:
        put_batch(store, 0)
        store.commit()
        shutil.copytree(store.folder, tmp_path / "older")
        put_batch(store, 1)
        store.commit()
    shutil.copy(tmp_path / "live" / MARK_NAME, tmp_path / "older" / MARK_NAME)
    with pytest.raises(StoreError, match=r"synced writes are missing \(1 of 2 batches\)"):
        Store(tmp_path / "older")


def copy_if_there(source: str, target: str) -> None:
    """Copies a file of an open store; RocksDB deletes what a compaction replaced a moment later."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


def test_a_compaction_after_the_last_sync_does_not_hide_damage(tmp_path: Path) -> None:
    # All rests on the position that comes back being that of the last batch in the tables.
    with Store(tmp_path / "live") as store:
        for _ in range(3):
            store.put(LOW + b"\xff", os.urandom(40))
            store.commit()
            store.flush()
        for batch in range(BATCHES):
            put_batch(store, batch)
            store.commit()
        store._rocksdb.compact_range(LOW + b"\xff", HIGH)
        shutil.copytree(store.folder, tmp_path / "killed", copy_function=copy_if_there)
    log = log_of(tmp_path / "killed")
    assert end_of(log) > BATCHES * BATCH_ROWS * 40
    first_after_flush = log.read_bytes().index(LOW + bytes([0, 0]))
    flip(log, first_after_flush)
    with pytest.raises(StoreError, match=rf"writes are missing \({BATCHES} of {BATCHES + 3} "):
        Store(tmp_path / "killed")


def test_a_damaged_store_is_whole_or_says_what_to_do(tmp_path: Path) -> None:
    # Many more: python -m tests.fault.damage
    counts = damage.run(150, 7, tmp_path, lambda counts: None)
    assert counts["whole"] and counts["refused"]
    assert counts["whole"] + counts["refused"] == 150, counts


# The files in which a batch is synced, of this format and of the one before.
LOGS: Final = ("journal", "log-0", "log-1")


def test_a_log_that_is_gone_is_missed_and_not_made_anew(tmp_path: Path) -> None:
    with Store(tmp_path / "live") as store:
        put_batch(store, 0)
        store.commit()
        put_batch(store, 1)
        store.stage()
        store.sync()
        shutil.copytree(store.folder, tmp_path / "killed")
        store.write()
    for name in LOGS:
        folder = tmp_path / f"without-{name}"
        shutil.copytree(tmp_path / "killed", folder)
        if not (folder / name).exists():
            continue
        (folder / name).unlink()
        with pytest.raises(StoreError, match=rf"{name}.* is missing.*snapshot.*accept_loss"):
            Store(folder)
        assert not (folder / name).exists()
        with Store(folder, accept_loss=True) as store:
            assert batches_in(store) <= 2
        Store(folder).close()


def test_damage_amid_what_was_synced_is_missed_though_the_mark_is_old(tmp_path: Path) -> None:
    # After a power cut the mark may be as old as it likes, and RocksDB has what it had synced.
    with Store(tmp_path / "live") as store:
        put_batch(store, 0)
        store.commit()
        mark = (store.folder / MARK_NAME).read_bytes()
        synced_bytes = {path.name: path.stat().st_size for path in store.folder.glob("*.log")}
        for batch in range(1, BATCHES):
            put_batch(store, batch)
            store.put(LOW + bytes([batch, 0]), bytes([batch]) * 99)
            store.stage()
            store.sync()
            store.write()
        shutil.copytree(store.folder, tmp_path / "cut")
    for name, size in synced_bytes.items():
        os.truncate(tmp_path / "cut" / name, size)
    (tmp_path / "cut" / MARK_NAME).write_bytes(mark)
    with Store(shutil.copytree(tmp_path / "cut", tmp_path / "whole")) as store:
        assert batches_in(store) == BATCHES
    log = next(path for name in LOGS if needle(path := tmp_path / "cut" / name, 2) > 0)
    flip(log, needle(log, 2))
    with pytest.raises(StoreError, match=r"synced writes are missing.*snapshot.*accept_loss"):
        Store(tmp_path / "cut")


def needle(path: Path, batch: int) -> int:
    return path.read_bytes().find(bytes([batch]) * 99) if path.exists() else -1


# --- nothing synced is missing ----------------------------------------------------------------


def test_a_torn_or_damaged_tail_of_unsynced_writes_opens(tmp_path: Path) -> None:
    with Store(tmp_path / "live") as store:
        for batch in range(BATCHES):
            put_batch(store, batch)
            store.commit()
        synced_bytes = end_of(log_of(store.folder))
        for batch in range(BATCHES, 2 * BATCHES):
            put_batch(store, batch)
            store.write()
        shutil.copytree(store.folder, tmp_path / "killed")
    size = end_of(log_of(tmp_path / "killed"))
    for position in range(synced_bytes, size, (size - synced_bytes) // 12):
        for harm in (os.truncate, flip):
            folder = tmp_path / f"{harm.__name__}-{position}"
            shutil.copytree(tmp_path / "killed", folder)
            harm(log_of(folder), position)
            with Store(folder) as store:
                assert BATCHES <= batches_in(store) < 2 * BATCHES


def test_a_mark_torn_at_any_byte_opens(synced: Path, tmp_path: Path) -> None:
    mark = synced / MARK_NAME
    content = mark.read_bytes()
    newest = max(SLOTS, key=lambda slot: content[slot : slot + SLOT_BYTES])
    for torn_bytes in range(SLOT_BYTES + 1):
        torn = bytearray(content)
        torn[newest : newest + torn_bytes] = os.urandom(torn_bytes)
        mark.write_bytes(torn)
        folder = tmp_path / f"torn-{torn_bytes}"
        shutil.copytree(synced, folder)
        with Store(folder) as store:
            assert batches_in(store) == BATCHES
            put_batch(store, BATCHES)
            store.commit()
        with Store(folder) as store:
            assert batches_in(store) == BATCHES + 1


def test_the_newest_slot_of_a_mark_is_not_the_next_to_be_written(synced: Path) -> None:
    mark = synced / MARK_NAME
    for batch in range(BATCHES, BATCHES + 3):
        content = mark.read_bytes()
        slots = [content[slot : slot + SLOT_BYTES] for slot in SLOTS]
        with Store(synced) as store:
            put_batch(store, batch)
            store.commit()
        assert max(slots) in mark.read_bytes()
        assert min(slots) not in mark.read_bytes()


def test_a_mark_with_one_slot_damaged_still_guards(synced: Path) -> None:
    for slot in SLOTS:
        folder = synced.with_name(f"slot-{slot}")
        shutil.copytree(synced, folder)
        flip(folder / MARK_NAME, slot + 12)
        cut_log(folder)
        with pytest.raises(StoreError, match="synced writes are missing"):
            Store(folder)


def test_a_mark_with_both_slots_damaged_is_refused_until_accepted(synced: Path) -> None:
    for slot in SLOTS:
        flip(synced / MARK_NAME, slot + 12)
    with pytest.raises(StoreError, match=r"'synced' is damaged.*accept_loss"):
        Store(synced)
    with Store(synced, accept_loss=True) as store:
        assert batches_in(store) == BATCHES
    with Store(synced) as store:
        assert batches_in(store) == BATCHES


@pytest.mark.parametrize("content", [None, b"", bytes(4_116)])
def test_a_store_without_a_mark_opens_and_gets_one(synced: Path, content: bytes | None) -> None:
    # So does a snapshot that is put in place, and a store whose making a power cut ended.
    (synced / MARK_NAME).unlink()
    if content is not None:
        (synced / MARK_NAME).write_bytes(content)
    shutil.copytree(synced, synced.with_name("unmarked"))
    with Store(synced) as store:
        assert batches_in(store) == BATCHES
    shutil.copy(synced / MARK_NAME, synced.with_name("unmarked"))
    empty_log(synced.with_name("unmarked"))
    with pytest.raises(StoreError, match="missing"):
        Store(synced.with_name("unmarked"))


# --- killed, and failed by the disk -----------------------------------------------------------

WRITER: Final = """
import os, sys
from asterism.storage.store import Store
from tests.fault.test_store_damage import put_turn

store = Store(sys.argv[1])
turn = int(sys.argv[2])
while True:
    put_turn(store, turn)
    if sys.argv[3] == "staged":
        store.stage()
    else:
        store.write()
    store.sync()
    os.write(1, b"%d\\n" % turn)
    store.write()
    turn += 1
"""

HOLDER: Final = """
import os, sys
from asterism.storage.store import Store

store = Store(sys.argv[1])
os.write(1, b"open\\n")
sys.stdin.read()
"""

FILLER: Final = """
import os, resource, sys
from asterism.storage.store import Store, StoreError
from tests.fault.test_store_damage import put_turn

store = Store(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
turn = 0
try:
    while True:
        put_turn(store, turn)
        store.commit()
        os.write(1, b"%d\\n" % turn)
        turn += 1
except StoreError as error:
    os.write(1, b"%s\\n" % str(error).encode())
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for again in (store.commit, store.sync):
    try:
        again()
    except StoreError as error:
        os.write(1, b"%s\\n" % str(error).encode())
store.close()
os.write(1, b"closed\\n")
"""

TURN_ROWS: Final = 20
TURNS_KEPT: Final = 50


def put_turn(store: Store, turn: int) -> None:
    """A turn's rows, and the end of those of an old turn, by a range or one by one."""
    for row in range(TURN_ROWS):
        store.put(LOW + turn.to_bytes(4, "big") + bytes([row]), turn.to_bytes(4, "big") * 25)
    over = turn - TURNS_KEPT
    if over >= 0 and over % 2:
        store.delete_range(LOW + over.to_bytes(4, "big"), LOW + (over + 1).to_bytes(4, "big"))
    elif over >= 0:
        for row in range(TURN_ROWS):
            store.delete(LOW + over.to_bytes(4, "big") + bytes([row]))


def last_turn_in(store: Store) -> int:
    """The last turn that is there; the turns kept before it are there too, and whole."""
    found = [key for key, _ in store.scan(LOW, HIGH)]
    last = int.from_bytes(found[-1][1:5], "big")
    assert found == [
        LOW + turn.to_bytes(4, "big") + bytes([row])
        for turn in range(max(0, last - TURNS_KEPT + 1), last + 1)
        for row in range(TURN_ROWS)
    ]
    return last


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def kill(process: subprocess.Popen[str]) -> str:
    """Kills it, and returns what it had still said."""
    assert process.stdout is not None
    process.send_signal(signal.SIGKILL)
    # Not communicate: with a timeout it passes over what a readline before it has buffered.
    with process.stdout:
        said = process.stdout.read()
    process.wait(timeout=30)
    return said


@pytest.mark.parametrize("way", ["staged", "written"])
def test_all_that_was_reported_synced_is_there_after_each_kill(way: str, tmp_path: Path) -> None:
    turn = 0
    chance = random.Random(5)
    for _ in range(5):
        process = start(WRITER, tmp_path, turn, way)
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 400)):
            reported = int(process.stdout.readline())
        reported = int((f"{reported}\n" + kill(process)).splitlines()[-1])
        with Store(tmp_path) as store:
            last = last_turn_in(store)
        # The turn under way when it was killed may be there as well, but no other.
        assert last in (reported, reported + 1)
        turn = last + 1


def test_a_store_has_one_owner_among_processes_and_none_after_a_kill(tmp_path: Path) -> None:
    process = start(HOLDER, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    with pytest.raises(StoreError, match="open already"):
        Store(tmp_path)
    kill(process)
    Store(tmp_path).close()


def test_a_store_that_failed_to_write_stops_and_comes_back_whole(tmp_path: Path) -> None:
    process = start(FILLER, tmp_path)
    said, _ = process.communicate(timeout=60)
    *turns, first, second, third, closed = said.splitlines()
    assert process.returncode == 0
    assert closed == "closed"
    assert "failed: " in first
    assert "free space" in first
    assert first == second == third  # though there was room again
    with Store(tmp_path) as store:
        assert last_turn_in(store) in (int(turns[-1]), int(turns[-1]) + 1)
