"""A store of format 1, made of its bytes by hand: RocksDB with a log, a journal and a mark."""

import os
import shutil
import struct
import zlib
from hashlib import blake2b
from pathlib import Path

import msgpack
import pytest
from rocksdict import Options, Rdict, WriteBatch

from asterism.storage.keys import STORE_APPLIED, STORE_FORMAT
from asterism.storage.reading import ReadOnlyStore
from asterism.storage.store import MARK_NAME, Store, StoreError

LOW, HIGH = b"\x01", b"\x02"
HEAD = struct.Struct(">8sQII")
JOURNAL_BYTES = 8_192
FORMAT_ROW = struct.pack(">III", 1, 0, 1)


class Old:
    """A folder as the version before has left it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rocksdb = Rdict(str(folder / "live"), Options(raw_mode=True))
        self._at = 0
        self._round = b""
        self._journal = bytearray(JOURNAL_BYTES)
        self.write({STORE_FORMAT: FORMAT_ROW})

    @property
    def sequence(self) -> int:
        return self._rocksdb.latest_sequence_number()

    def write(self, rows: dict[bytes, bytes]) -> None:
        """Gives RocksDB a batch."""
        batch = WriteBatch(raw_mode=True)
        for key, value in rows.items():
            batch.put(key, value)
        self._rocksdb.write(batch)
        self._rocksdb.flush_wal(True)

    def journal(self, rows: dict[bytes, bytes], first: int) -> None:
        """Notes a batch in the journal."""
        if not self._at:
            identity = (self.folder / "live" / "IDENTITY").read_bytes()
            named = first.to_bytes(8, "big") + identity
            self._round = blake2b(named, digest_size=8).digest()
        body = msgpack.packb([[], [], rows])
        head = HEAD.pack(self._round, first, len(rows), len(body))
        entry = head + zlib.crc32(head + body).to_bytes(4, "big") + body
        self._journal[self._at : self._at + len(entry)] = entry
        self._at += len(entry)

    def killed(self, mark: int, to: str = "killed") -> Path:
        """The folder after a kill, with a mark that claims so much."""
        folder = Path(shutil.copytree(self.folder / "live", self.folder / to))
        (folder / "journal").write_bytes(self._journal)
        slot = struct.pack(">8sQ", b"asterism", mark)
        slot += zlib.crc32(slot).to_bytes(4, "big")
        (folder / MARK_NAME).write_bytes(slot.ljust(4_096, b"\0") + slot)
        return folder


@pytest.fixture
def old(tmp_path: Path) -> Old:
    return Old(tmp_path)


def row(name: str, value: bytes = b"1") -> dict[bytes, bytes]:
    return {LOW + name.encode(): value}


def names(store: Store) -> str:
    return "".join(key[1:].decode() for key, _ in store.scan(LOW, HIGH))


def test_an_old_store_is_migrated_with_what_its_journal_has_alone(old: Old) -> None:
    old.write(row("a"))
    old.journal(row("b"), 3)
    old.write(row("b"))
    old.journal(row("c"), 4)
    folder = old.killed(mark=4)
    for _ in ("migrated", "reopened"):
        with Store(folder) as store:
            assert names(store) == "abc"
            assert store.get(STORE_FORMAT) == struct.pack(">III", 2, 0, 1)
    assert not (folder / "journal").exists()
    assert {"log-0", "log-1"} <= set(os.listdir(folder))


def test_what_is_written_behind_a_migration_is_guarded_as_ever(old: Old) -> None:
    old.write(row("a"))
    folder = old.killed(mark=2)
    with Store(folder) as store:
        store.put(LOW + b"b", b"2")
        store.commit()
        killed = shutil.copytree(folder, folder.with_name("again"))
    with Store(shutil.copytree(killed, folder.with_name("whole"))) as store:
        assert names(store) == "ab"
    os.truncate(killed / "log-0", 4_096)
    with pytest.raises(StoreError, match=r"synced writes are missing \(1 of "):
        Store(killed)


def test_a_migration_that_was_cut_short_is_made_again(old: Old, tmp_path: Path) -> None:
    old.write(row("a"))
    old.journal(row("b"), 3)
    folder = old.killed(mark=3)
    migrated = shutil.copytree(folder, tmp_path / "migrated")
    Store(migrated).close()
    for name in ("log-0", "log-1"):  # the log is there, and RocksDB has no table of the new format
        shutil.copy(migrated / name, folder)
        with Store(shutil.copytree(folder, tmp_path / f"cut-{name}")) as store:
            assert names(store) == "ab"


def test_a_hole_in_what_rocksdb_has_recovered_is_closed_by_the_journal(old: Old) -> None:
    # The numbers go on, and a batch amid them was lost with the end of a log.
    old.write(row("a"))
    old.journal(row("b"), 3)
    old.journal(row("c"), 4)
    old.write(row("x"))  # number 3: stands for what was behind the hole
    old.write(row("c", b"2"))
    with Store(old.killed(mark=4)) as store:
        assert names(store) == "abcx"
        assert store.get(LOW + b"c") == b"1"


def test_a_journal_that_rocksdbs_log_has_overtaken_is_not_written_again(old: Old) -> None:
    old.journal(row("a", b"old"), 2)
    old.write(row("a", b"old"))
    old.write(row("a", b"new"))
    with Store(old.killed(mark=3)) as store:
        assert store.get(LOW + b"a") == b"new"


def test_synced_writes_that_an_old_store_lacks_are_missed(old: Old) -> None:
    old.write(row("a"))
    folder = old.killed(mark=9)
    with pytest.raises(StoreError, match=r"synced writes are missing.*accept_loss"):
        Store(folder)
    with pytest.raises(StoreError, match="missing"):
        Store(folder)  # nothing was changed
    with Store(folder, accept_loss=True) as store:
        assert names(store) == "a"
    Store(folder).close()


def test_a_journal_that_does_not_follow_on_is_missed(old: Old) -> None:
    old.write(row("a"))
    old.journal(row("d"), 5)
    folder = old.killed(mark=0)
    with pytest.raises(StoreError, match=r"2 synced writes are missing.*accept_loss"):
        Store(folder)
    with Store(folder, accept_loss=True) as store:
        assert names(store) == "a"
    Store(folder).close()


def test_an_old_store_can_be_read_as_it_is(old: Old) -> None:
    # As a snapshot that an earlier version has taken.
    old.write(row("a"))
    with ReadOnlyStore(old.killed(mark=2)) as store:
        assert dict(store.scan(LOW, HIGH)) == row("a")
        assert store.get(STORE_APPLIED) is None


def test_a_batch_that_was_too_large_for_the_journal_does_not_end_what_it_tells(old: Old) -> None:
    # RocksDB's log was synced behind the large batch, and the journal went on in the same round.
    small = {LOW + b"a": b"1"}
    old.journal(small, old.sequence + 1)
    old.write(small)
    old.write({LOW + b"large-%d" % number: b"" for number in range(200)})
    confirmed = {LOW + b"b": b"2"}
    old.journal(confirmed, old.sequence + 1)  # confirmed, and RocksDB was not given it any more
    with Store(old.killed(mark=old.sequence)) as store:
        assert store.get(LOW + b"b") == b"2"
        assert len(list(store.scan(LOW, HIGH))) == 202
