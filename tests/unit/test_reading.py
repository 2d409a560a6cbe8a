"""A store that is only read: what it finds, what it refuses, and that it changes nothing."""

import multiprocessing
import os
import shutil
import struct
import tempfile
from pathlib import Path

import pytest

from asterism.storage.keys import STORE_FORMAT
from asterism.storage.reading import ReadOnlyStore
from asterism.storage.store import FORMAT_VERSION, Store, StoreError

ROWS = 2_000


def key_of(number: int) -> bytes:
    return b"\x01" + number.to_bytes(4, "big")


@pytest.fixture(autouse=True)
def views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where views are made, so that nobody else's are counted."""
    folder = tmp_path / "views"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of a store."""
    with Store(tmp_path / "live", number=3, count=8) as store:
        for number in range(ROWS):
            store.put(key_of(number), os.urandom(100))
        store.commit()
        store.checkpoint(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def table_of(folder: Path) -> Path:
    return max(folder.glob("*.sst"), key=lambda path: path.stat().st_size)


def test_rows_are_found_by_key_and_by_range(folder: Path, tmp_path: Path) -> None:
    with ReadOnlyStore(str(folder)) as store, Store(tmp_path / "live", number=3, count=8) as live:
        assert (store.number, store.count) == (3, 8)
        assert store.get(key_of(7)) == live.get(key_of(7))
        assert store.get(key_of(ROWS)) is None
        found = list(store.scan(key_of(5), key_of(9)))
        assert found == [(key_of(number), live.get(key_of(number))) for number in range(5, 9)]
        assert len(list(store.scan(b"\x01", b"\x02"))) == ROWS
        assert list(store.scan(key_of(9), key_of(9))) == list(store.scan(b"\x02", b"\x01")) == []


@pytest.mark.parametrize("size", [1, 7, ROWS, ROWS + 1])
def test_blocks_have_the_same_rows(folder: Path, size: int) -> None:
    with ReadOnlyStore(folder) as store:
        for low, high in ((0, ROWS), (5, 19), (9, 9), (ROWS - 1, ROWS + 5), (ROWS, ROWS + 1)):
            between = (key_of(low), key_of(high))
            blocks = list(store.scan_blocks(*between, size))
            assert all(0 < len(keys) == len(values) <= size for keys, values in blocks)
            found = [row for keys, values in blocks for row in zip(keys, values, strict=True)]
            assert found == list(store.scan(*between))


def test_bounds_hold_when_nobody_else_keeps_their_bytes(folder: Path) -> None:
    with ReadOnlyStore(folder) as store:
        for number in range(200):
            rows = store.scan(bytes(key_of(number)), bytes(key_of(number + 3)))
            noise = [bytes(key_of(other)) for other in range(50)]
            assert [key for key, _ in rows] == [key_of(number + more) for more in range(3)]
            del noise


def test_reading_changes_nothing_and_leaves_nothing(folder: Path, views: Path) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        paths = sorted(folder.iterdir())
        return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}

    before = state()
    with ReadOnlyStore(folder) as store:
        assert len(list(store.scan(b"\x01", b"\x02"))) == ROWS
    assert state() == before
    assert list(views.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_read(folder: Path) -> None:
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    try:
        with ReadOnlyStore(folder) as store:
            assert store.get(key_of(1)) is not None
    finally:
        folder.chmod(0o755)


def _count(folder: str) -> int:
    with ReadOnlyStore(folder) as store:
        return sum(1 for _ in store.scan(b"\x01", b"\x02"))


def test_several_processes_read_at_a_time(folder: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(_count, [str(folder)] * 9, chunksize=1) == [ROWS] * 9


def test_a_store_that_has_something_in_its_log_alone_is_not_read_without_it(tmp_path: Path) -> None:
    with Store(tmp_path / "live") as store:
        store.put(key_of(1), b"value")
        store.commit()
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    with pytest.raises(StoreError, match=r"in its log alone.*asterism doctor"):
        ReadOnlyStore(tmp_path / "killed")
    Store(tmp_path / "killed").close()
    with ReadOnlyStore(tmp_path / "killed") as closed:
        assert closed.get(key_of(1)) == b"value"


@pytest.mark.parametrize("part", [0.1, 0.5, 0.8])
def test_a_damaged_block_is_told_and_does_not_end_the_rows(folder: Path, part: float) -> None:
    table = table_of(folder)
    content = bytearray(table.read_bytes())
    content[int(len(content) * part)] ^= 1
    table.unlink()
    table.write_bytes(content)
    with ReadOnlyStore(folder) as store:
        with pytest.raises(StoreError, match="reading failed"):
            list(store.scan(b"\x01", b"\x02"))
        with pytest.raises(StoreError, match="reading failed"):
            list(store.scan_blocks(b"\x01", b"\x02", 64))


def test_a_missing_file_is_told(folder: Path, views: Path) -> None:
    table_of(folder).unlink()
    with pytest.raises(StoreError), ReadOnlyStore(folder) as store:
        list(store.scan(b"\x01", b"\x02"))
    assert list(views.iterdir()) == []


def test_what_is_no_store_is_refused_and_not_made(tmp_path: Path, views: Path) -> None:
    with pytest.raises(StoreError, match="No such file or directory"):
        ReadOnlyStore(tmp_path / "mistyped")
    assert not (tmp_path / "mistyped").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="no store here"):
        ReadOnlyStore(tmp_path / "empty")
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "CURRENT").write_text("MANIFEST-000001\n")
    with pytest.raises(StoreError, match="RocksDB cannot open it"):
        ReadOnlyStore(tmp_path / "wrong")
    assert list(views.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "said"),
    [(FORMAT_VERSION + 1, "a later one"), (0, "migrate"), (None, "no store of")],
)
def test_another_format_is_refused(tmp_path: Path, version: int | None, said: str) -> None:
    with Store(tmp_path / "live") as store:
        row = b"?" if version is None else struct.pack(">III", version, 0, 1)
        store.put(STORE_FORMAT, row)
        store.commit()
        store.checkpoint(tmp_path / "checkpoint")
    with pytest.raises(StoreError, match=said):
        ReadOnlyStore(tmp_path / "checkpoint")
