"""A store after power cuts: what was confirmed is there, and nothing without what it follows on.

A power cut is made by hand, of a live store's folder: of RocksDB's log whatever was written since
it was synced may be missing from some point on; of the journal each sector that was written since
it was synced may be old or new; the mark is never synced, and may be any that was ever written.
"""

import os
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from asterism.storage import journal as journal_module
from asterism.storage import store as store_module
from asterism.storage.journal import JOURNAL_NAME, Journal
from asterism.storage.store import MARK_NAME, Store

pytestmark = pytest.mark.fault

LOW, HIGH = b"\x01", b"\x02"
COUNT: Final = LOW + b"count"  # the row that says how many batches there were
SECTOR_BYTES: Final = 512
SMALL_JOURNAL_BYTES: Final = 1_500  # full after some five batches
SMALL_ENTRY_BYTES: Final = 400
LIVES: Final = 3  # with more, RocksDB merges tables: files go while they are copied
STEPS_MAX: Final = 50

State = dict[bytes, bytes]


class Powered:
    """A store, what its files held when they were last synced, and what it must hold."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._chance = chance
        self.states: list[State] = [{}]  # after so many batches
        self.confirmed = 0  # the batches that are known to be durable
        self.open(folder)

    def open(self, folder: Path) -> None:
        """Opens the store that a power cut has left, and looks at what is there."""
        self.store = Store(folder)
        found = dict(self.store.scan(LOW, HIGH))
        count = int(found.get(COUNT, b"0"))
        assert count >= self.confirmed, "what was confirmed is lost"
        assert found == self.states[count], "not what the batches up to this one made"
        del self.states[count + 1 :]
        self.store.sync()
        self.confirmed = count
        self._marks: list[bytes] = []
        self.note_synced_log()
        self.note_synced_journal()

    def _file(self, name: str) -> Path:
        return self.store.folder / name

    def _log(self) -> Path:
        logs = [path for path in self.store.folder.glob("*.log") if path.stat().st_size]
        return max(logs, default=self._file("none"))

    def note_synced_log(self) -> None:
        log = self._log()
        self._synced_log = (log.name, log.stat().st_size if log.exists() else 0)

    def note_synced_journal(self) -> None:
        self._synced_journal = self._file(JOURNAL_NAME).read_bytes()

    # --- living -----------------------------------------------------------------------------

    def step(self) -> bool:
        """A turn, as a worker has it; ``True`` if the power is cut in the midst of it."""
        chance, store = self._chance, self.store
        state = dict(self.states[-1])
        self._put(state)
        is_durable = chance.random() < 0.7
        if not (is_durable and store.stage()):
            store.write(journal=True)
        self.states.append(state)
        if chance.random() < 0.02:
            return True
        if is_durable and chance.random() < 0.9:  # else nobody has asked for it to be confirmed
            was_staged = bool(store._staged)
            store.sync()
            if was_staged:
                self.note_synced_journal()
            else:
                self.note_synced_log()
            self.confirmed = len(self.states) - 1
        if chance.random() < 0.02:
            return True
        store.write()
        self._marks.append(self._file(MARK_NAME).read_bytes())
        return chance.random() < 0.02

    def _put(self, state: State) -> None:
        chance, store = self._chance, self.store
        size = chance.choice((10, 10, 50, 100, SMALL_ENTRY_BYTES + 1))
        if chance.random() < 0.2:
            low, high = sorted(self._key() for _ in range(2))
            store.delete_range(low, high)
            for key in [key for key in state if low <= key < high]:
                del state[key]
        for _ in range(chance.randrange(4)):
            key, value = self._key(), chance.randbytes(chance.randrange(size))
            state[key] = value
            store.put(key, value)
        key = self._key()
        state.pop(key, None)
        store.delete(key)
        state[COUNT] = b"%d" % len(self.states)
        store.put(COUNT, state[COUNT])

    def _key(self) -> bytes:
        return LOW + b"k%d" % self._chance.randrange(8)

    # --- dying ------------------------------------------------------------------------------

    def cut(self, to: Path) -> None:
        """The folder as a power cut at this moment may leave it."""
        chance = self._chance
        shutil.copytree(self.store.folder, to)
        log, synced_bytes = self._log(), 0
        if log.name == self._synced_log[0]:
            synced_bytes = self._synced_log[1]
        if log.exists():
            kept = chance.choice((synced_bytes, chance.randint(synced_bytes, log.stat().st_size)))
            (to / log.name).write_bytes(log.read_bytes()[:kept])
        new, old = self._file(JOURNAL_NAME).read_bytes(), self._synced_journal
        sectors = range(0, len(new), SECTOR_BYTES)
        parts = [chance.choice((old, new))[at : at + SECTOR_BYTES] for at in sectors]
        (to / JOURNAL_NAME).write_bytes(b"".join(parts))
        if self._marks:
            (to / MARK_NAME).write_bytes(chance.choice(self._marks))
        self.store.close()


@pytest.fixture
def small_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what happens when one is full, or a batch too large, happens often."""
    monkeypatch.setattr(store_module, "Journal", partial(Journal, size=SMALL_JOURNAL_BYTES))
    monkeypatch.setattr(journal_module, "ENTRY_BYTES_MAX", SMALL_ENTRY_BYTES)


@pytest.mark.usefixtures("small_journals")
@pytest.mark.parametrize("seed", range(60))
def test_what_was_confirmed_is_there_after_power_cuts_and_nothing_out_of_order(
    seed: int, tmp_path: Path
) -> None:
    powered = Powered(tmp_path / "0", random.Random(seed))
    for life in range(1, LIVES):
        for _ in range(STEPS_MAX):
            if powered.step():
                break
        powered.cut(tmp_path / f"{life}")
        powered.open(tmp_path / f"{life}")
    powered.store.close()


def cut_with_one_batch_in_the_journal_alone(folder: Path) -> Path:
    """A store that has lost all of its log since that was synced, and with it a batch."""
    with Store(folder / "live") as store:
        store.put(LOW + b"a", b"1")
        store.commit()
        log = next(path for path in store.folder.glob("*.log") if path.stat().st_size)
        synced_bytes = log.stat().st_size
        store.put(LOW + b"a", b"2")
        store.delete_range(LOW + b"b", LOW + b"c")
        assert store.stage()
        store.sync()
        store.write()
        shutil.copytree(store.folder, folder / "cut")
    os.truncate(folder / "cut" / log.name, synced_bytes)
    return folder / "cut"


def test_a_batch_that_is_in_the_journal_alone_is_put_back_once(tmp_path: Path) -> None:
    cut = cut_with_one_batch_in_the_journal_alone(tmp_path)
    with Store(cut) as store:
        assert store.get(LOW + b"a") == b"2"
        store.put(LOW + b"a", b"3")
        store.commit()
    with Store(cut) as store:
        assert store.get(LOW + b"a") == b"3"


def test_a_damaged_journal_that_is_needed_is_noticed(tmp_path: Path) -> None:
    cut = cut_with_one_batch_in_the_journal_alone(tmp_path)
    content = bytearray((cut / JOURNAL_NAME).read_bytes())
    content[30] ^= 1
    (cut / JOURNAL_NAME).write_bytes(content)
    with pytest.raises(store_module.StoreError, match="2 synced writes are missing"):
        Store(cut)


def test_a_loss_that_was_accepted_is_not_undone_by_what_the_journal_held(tmp_path: Path) -> None:
    # The log loses what the journal follows on; then just as much is written anew.
    with Store(tmp_path / "live") as store:
        store.put(LOW + b"a", b"1")
        store.commit()
        log = next(path for path in store.folder.glob("*.log") if path.stat().st_size)
        synced_bytes = log.stat().st_size
        store.put(LOW + b"b", b"2")
        store.commit()
        store.put(LOW + b"c", b"3")
        assert store.stage()
        store.sync()
        store.write()
        shutil.copytree(store.folder, tmp_path / "lost")
    with open(tmp_path / "lost" / log.name, "r+b") as file:
        file.truncate(synced_bytes)
    with pytest.raises(store_module.StoreError, match="2 synced writes are missing"):
        Store(tmp_path / "lost")
    with Store(tmp_path / "lost", accept_loss=True) as store:
        assert store.get(LOW + b"c") is None
        store.put(LOW + b"z", b"4")
        store.commit()
    with Store(tmp_path / "lost") as store:
        assert dict(store.scan(LOW, HIGH)) == {LOW + b"a": b"1", LOW + b"z": b"4"}


def test_a_batch_that_was_confirmed_before_rocksdb_had_it_is_there_after_a_kill(
    tmp_path: Path,
) -> None:
    with Store(tmp_path / "live") as store:
        store.put(LOW + b"a", b"1")
        store.commit()
        store.put(LOW + b"a", b"2")
        store.delete_range(LOW + b"b", LOW + b"c")
        assert store.stage()
        assert store.get(LOW + b"a") == b"2"
        store.sync()
        shutil.copytree(store.folder, tmp_path / "killed")
        store.write()
        assert store.get(LOW + b"a") == b"2"
        assert store.pending_count == 0
    for _ in range(2):
        with Store(tmp_path / "killed") as store:
            assert store.get(LOW + b"a") == b"2"


def test_what_is_staged_is_not_forgotten(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.put(LOW + b"a", b"1")
        store.commit()
        store.put(LOW + b"a", b"2")
        assert store.stage()
        with pytest.raises(AssertionError, match="may be confirmed"):
            store.discard()
    with Store(tmp_path) as store:
        assert store.get(LOW + b"a") == b"2"
