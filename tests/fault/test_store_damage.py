"""A store whose files were damaged, or whose process was killed or failed by its disk.

The promise: what was synced is there, or the store is refused; and only then is it refused.
A copy of a live store's folder is what a kill at that moment would leave behind.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from asterism.storage.store import MARK_NAME, Store, StoreError

pytestmark = pytest.mark.fault

ROOT: Final = Path(__file__).resolve().parents[2]
LOW, HIGH = b"\x01", b"\x02"
BATCHES: Final = 8
BATCH_ROWS: Final = 5
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
    (log,) = (path for path in folder.glob("*.log") if path.stat().st_size)
    return log


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
    size = log_of(synced).stat().st_size
    positions = sorted({*range(0, size, size // 40), size - 1})
    for position in positions:
        folder = tmp_path / f"flipped-{position}"
        shutil.copytree(synced, folder)
        flip(log_of(folder), position)
        with pytest.raises(StoreError, match="synced writes are missing"):
            Store(folder)


def test_a_refusal_says_where_how_much_and_what_to_do(synced: Path) -> None:
    flip(log_of(synced), log_of(synced).stat().st_size - 1)  # in the last batch
    with pytest.raises(StoreError) as refusal:
        Store(synced)
    message = str(refusal.value)
    # One more is the format row.
    assert f"{BATCH_ROWS} synced writes are missing (of {BATCHES * BATCH_ROWS + 1})" in message
    assert str(synced) in message
    assert "snapshot" in message
    assert "accept_loss=True" in message


def test_a_refused_store_keeps_its_log_and_is_refused_again(synced: Path) -> None:
    log = log_of(synced)
    flip(log, log.stat().st_size // 2)
    before = log.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreError, match="missing"):
            Store(synced)
        assert log.read_bytes() == before
    flip(log, log.stat().st_size // 2)  # back
    with Store(synced) as store:
        assert batches_in(store) == BATCHES


def test_an_accepted_loss_opens_with_what_came_before_it_and_is_over(synced: Path) -> None:
    flip(log_of(synced), log_of(synced).stat().st_size // 2)
    with Store(synced, accept_loss=True) as store:
        kept = batches_in(store)
        assert 0 < kept < BATCHES
    with Store(synced) as store:
        assert batches_in(store) == kept
        put_batch(store, kept)
        store.commit()
        shutil.copytree(synced, synced.with_name("again"))
    again = synced.with_name("again")
    log_of(again).unlink()  # the mark that was set anew tells this too
    with pytest.raises(StoreError, match=f"{BATCH_ROWS} synced writes are missing"):
        Store(again)


def test_accepting_a_loss_of_nothing_loses_nothing(synced: Path) -> None:
    with Store(synced, accept_loss=True) as store:
        assert batches_in(store) == BATCHES


def cut_log(folder: Path) -> None:
    os.truncate(log_of(folder), log_of(folder).stat().st_size // 2)


def empty_log(folder: Path) -> None:
    os.truncate(log_of(folder), 0)


def delete_log(folder: Path) -> None:
    log_of(folder).unlink()


def zero_end_of_log(folder: Path) -> None:
    log = log_of(folder)
    size = log.stat().st_size
    os.truncate(log, size - 30)
    os.truncate(log, size)


def delete_all_but_the_mark(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != MARK_NAME:
            path.unlink()


@pytest.mark.parametrize(
    "damage", [cut_log, empty_log, delete_log, zero_end_of_log, delete_all_but_the_mark]
)
def test_synced_writes_that_are_gone_are_missed(
    synced: Path, damage: Callable[[Path], None]
) -> None:
    damage(synced)
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
    with pytest.raises(StoreError, match="synced writes are missing"):
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
    with pytest.raises(StoreError, match=f"{BATCH_ROWS} synced writes are missing"):
        Store(tmp_path / "older")


def test_a_compaction_after_the_last_sync_does_not_hide_damage(tmp_path: Path) -> None:
    # All rests on the sequence number that comes back being that of the last row recovered: were
    # the one at the time of a later compaction written down with it, nothing would seem missing.
    with Store(tmp_path / "live") as store:
        for _ in range(3):
            store.put(LOW + b"\xff", os.urandom(40))
            store.commit()
            store.flush()
        for batch in range(BATCHES):
            put_batch(store, batch)
            store.commit()
        store._rocksdb.compact_range(LOW + b"\xff", HIGH)
        shutil.copytree(store.folder, tmp_path / "killed")
    assert log_of(tmp_path / "killed").stat().st_size > BATCHES * BATCH_ROWS * 40
    flip(log_of(tmp_path / "killed"), 10)
    with pytest.raises(StoreError, match=f"{BATCHES * BATCH_ROWS} synced writes are missing"):
        Store(tmp_path / "killed")


# --- nothing synced is missing ----------------------------------------------------------------


def test_a_torn_or_damaged_tail_of_unsynced_writes_opens(tmp_path: Path) -> None:
    with Store(tmp_path / "live") as store:
        for batch in range(BATCHES):
            put_batch(store, batch)
            store.commit()
        synced_bytes = log_of(store.folder).stat().st_size
        for batch in range(BATCHES, 2 * BATCHES):
            put_batch(store, batch)
            store.write()
        shutil.copytree(store.folder, tmp_path / "killed")
    size = log_of(tmp_path / "killed").stat().st_size
    for position in range(synced_bytes, size, (size - synced_bytes) // 12):
        for damage in (os.truncate, flip):
            folder = tmp_path / f"{damage.__name__}-{position}"
            shutil.copytree(tmp_path / "killed", folder)
            damage(log_of(folder), position)
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
    delete_log(synced.with_name("unmarked"))
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
    if not (sys.argv[3] == "journal" and store.stage()):
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
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
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


@pytest.mark.parametrize("way", ["log", "journal"])
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
