"""What a snapshot is: reading, verifying, deleting, keeping and copying it, with real stores."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asterism.storage import copying, snapshot, verifying
from asterism.storage.keys import STORE_TOPIC, TopicKeys
from asterism.storage.moving import FIRST_NUMBER
from asterism.storage.reading import ReadOnlyStore
from asterism.storage.records import (
    DELAYED,
    DRAFT,
    NATURAL,
    ONLY_PARKED,
    PARKED,
    RENEWED,
    encode_fields,
)
from asterism.storage.snapshot import (
    MANIFEST,
    Snapshot,
    SnapshotError,
    begin_snapshot,
    delete_snapshot,
    expired,
    finish_snapshot,
    list_snapshots,
    open_snapshot,
    unfinished_in,
)
from asterism.storage.store import Store

NOW_MS = 1_769_860_800_123  # 2026-01-31 12:00:00.123
NAME = "20260131T120000Z"
DAY_MS = 86_400_000
PAYLOAD_BYTES = 3_000


def message(state: int = NATURAL, flags: int = 0) -> bytes:
    # What cannot be compressed, so that a file is nearly all rows.
    payload = os.urandom(PAYLOAD_BYTES)
    return encode_fields(state, flags, 0, NOW_MS, 0, 0, 0, None, 0, bytes(16), b"", payload)


def fill(store: Store) -> list[dict[str, Any]]:
    """Two topics; what their worker would tell of them."""
    keys = TopicKeys(1)
    store.put(STORE_TOPIC + b"orders", (1).to_bytes(4, "big"))
    for sequence in range(11, 61):
        store.put(keys.pool(sequence), message())
    store.put(keys.pool(61), message(DRAFT))
    store.put(keys.pool(62), message(PARKED))
    store.put(keys.pool(63), message(DELAYED))
    store.put(keys.parked(64), b"")
    store.put(keys.log(9), message())
    store.put(keys.log(10), message(PARKED, ONLY_PARKED))
    store.put(keys.log(12), message(PARKED, ONLY_PARKED | RENEWED))
    store.put(STORE_TOPIC + b"empty", (2).to_bytes(4, "big"))
    store.commit()
    counts = {"held": 53, "parked": 1, "drafting": 1, "completed": 8, "history_until_ms": 0}
    none = {"held": 0, "parked": 0, "drafting": 0, "completed": 0, "history_until_ms": 0}
    return [
        {"name": "orders", "number": 1, "next_sequence": 65, **counts},
        {"name": "empty", "number": 2, "next_sequence": 7, **none},
    ]


def taken_in(home: Path, now_ms: int = NOW_MS, store_count: int = 2) -> Snapshot:
    """A snapshot of a data folder with two stores."""
    folder = begin_snapshot(home, now_ms)
    stores = []
    for number in range(2):
        live = home.parent / f"live-{folder.name}-{number}"
        with Store(live, number=number, count=2) as store:
            topics = fill(store) if number == 0 else []
            store.checkpoint(folder / f"store-{number:04}")
        stores.append({"number": number, "folder": f"store-{number:04}", "topics": topics})
    # Two workers, of one store each.
    answers = [{"store_count": store_count, "stores": [store]} for store in stores]
    return finish_snapshot(folder, answers, now_ms, "a test")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


@pytest.fixture
def taken(home: Path) -> Snapshot:
    return taken_in(home)


def change(folder: Path, changed: Callable[[dict[str, Any]], object]) -> None:
    """Changes the manifest of a snapshot."""
    manifest = json.loads((folder / MANIFEST).read_text())
    changed(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def flip(path: Path, part: float = 0.3) -> None:
    """Flips one bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * part)] ^= 1
    path.unlink()  # it is a link: the live store keeps its own
    path.write_bytes(content)


def table_of(taken: Snapshot, number: int = 0) -> Path:
    """The table file of a store."""
    return max(taken.store_folder(number).glob("*.sst"), key=lambda path: path.stat().st_size)


# --- what it says ---------------------------------------------------------------------------------


def test_a_snapshot_says_what_it_holds(taken: Snapshot, home: Path) -> None:
    found = open_snapshot(taken.folder)
    assert found == taken
    assert (found.name, found.time_ms) == (NAME, NOW_MS)
    assert found.manifest["time"] == "2026-01-31T12:00:00.123Z"
    assert found.store_folder(1) == home / NAME / "store-0001"
    # A parked message that is over for everybody else is still one that can be read.
    assert found.topics["orders"] == {
        **{"store": 0, "number": 1, "first_sequence": 9, "next_sequence": 65},
        **{"held": 53, "parked": 1, "drafting": 1, "completed": 8, "history_until_ms": 0},
    }
    assert found.topics["empty"]["first_sequence"] == found.topics["empty"]["next_sequence"] == 7
    with pytest.raises(SnapshotError, match="store 2 is not in this snapshot"):
        found.store_folder(2)


def test_tables_are_shared_with_the_live_store(taken: Snapshot) -> None:
    total, own = snapshot.sizes_of(taken)
    assert total > 52 * PAYLOAD_BYTES
    assert own < 52 * PAYLOAD_BYTES / 4
    assert table_of(taken).stat().st_nlink == 2


def test_a_folder_without_a_manifest_is_no_snapshot(taken: Snapshot, home: Path) -> None:
    (taken.folder / MANIFEST).unlink()
    with pytest.raises(SnapshotError, match=r"no manifest\.json.*half-written"):
        open_snapshot(taken.folder)
    assert list_snapshots(home) == []
    assert unfinished_in(home) == [taken.folder]


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="no such folder"):
        open_snapshot(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_store_that_is_missing_is_told(taken: Snapshot) -> None:
    shutil.rmtree(taken.store_folder(1))
    with pytest.raises(SnapshotError, match="store-0001, which its manifest names, is not there"):
        open_snapshot(taken.folder)


@pytest.mark.parametrize(("version", "said"), [(2, "or a later one"), (0, "no longer")])
def test_another_format_is_told(taken: Snapshot, version: int, said: str) -> None:
    change(taken.folder, lambda manifest: manifest.update(version=version))
    with pytest.raises(SnapshotError, match=f"format {version}.*{said}"):
        open_snapshot(taken.folder)


def test_a_manifest_that_is_cut_short_is_told_wherever_it_is_cut(taken: Snapshot) -> None:
    whole = (taken.folder / MANIFEST).read_bytes()
    for size in range(0, len(whole) - 1, 37):
        (taken.folder / MANIFEST).write_bytes(whole[:size])
        with pytest.raises(SnapshotError, match="damaged"):
            open_snapshot(taken.folder)


DAMAGED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "nothing": (lambda m: m.clear(), "not one of a snapshot"),
    "no topics": (lambda m: m.pop("topics"), "'topics' is missing"),
    "no stores": (lambda m: m["stores"].clear(), r"it has stores \[\] of 2"),
    "a store less": (lambda m: m["stores"].pop(), r"it has stores \[0\] of 2"),
    "a store twice": (lambda m: m["stores"].append(m["stores"][0]), r"it has stores \[0, 0, 1\]"),
    "a store elsewhere": (
        lambda m: m["stores"][0].update(folder="../../stores/0000"),
        "is no folder of a store",
    ),
    "a file elsewhere": (
        lambda m: m["stores"][0].update(files={"../secret": {"bytes": 1}}),
        "is no file of a store",
    ),
    "a count that is none": (lambda m: m["topics"]["empty"].update(held="7"), "is no number"),
    "a topic of no store": (lambda m: m["topics"]["empty"].update(store=5), "does not have"),
    "no time": (lambda m: m.update(time_ms=None), "its time is no number"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_manifest_that_is_not_as_it_was_written_is_told(taken: Snapshot, what: str) -> None:
    changed, said = DAMAGED[what]
    change(taken.folder, changed)
    with pytest.raises(SnapshotError, match=said):
        open_snapshot(taken.folder)


def test_a_snapshot_without_one_of_the_stores_is_not_finished(home: Path) -> None:
    with pytest.raises(ValueError, match=r"it has stores \[0, 1\] of 3"):
        taken_in(home, store_count=3)
    assert list_snapshots(home) == []


def test_a_store_of_a_topic_of_its_own_is_not_counted_among_the_others(taken: Snapshot) -> None:
    own = f"store-{FIRST_NUMBER}"
    with Store(taken.folder.parent.parent / "own") as store:
        store.checkpoint(taken.folder / own)
    entry = {"number": FIRST_NUMBER, "folder": own, "files": {}}
    change(taken.folder, lambda manifest: manifest["stores"].append(entry))
    found = open_snapshot(taken.folder)
    assert found.store_folder(FIRST_NUMBER) == taken.folder / own
    assert verifying.verify(found).problems == []


# --- a folder of them -----------------------------------------------------------------------------


def test_snapshots_are_listed_from_the_oldest_and_what_is_none_is_passed_over(home: Path) -> None:
    later = taken_in(home, NOW_MS + 5_000)
    first = taken_in(home)
    second = taken_in(home)
    assert [first.name, second.name] == [NAME, f"{NAME}-2"]
    (home / "something else").mkdir()
    (home / "a file").write_text("")
    begin_snapshot(home, NOW_MS + DAY_MS)
    assert list_snapshots(home) == [first, second, later]


def test_where_there_is_no_folder_there_are_no_snapshots(tmp_path: Path) -> None:
    assert list_snapshots(tmp_path / "nothing") == []


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SnapshotError, match="Not a directory"):
        list_snapshots(tmp_path / "file")
    with pytest.raises(SnapshotError, match="cannot be made here"):
        begin_snapshot(tmp_path / "file" / "snapshots", NOW_MS)


# --- deleting and keeping -------------------------------------------------------------------------


def test_a_deleted_snapshot_is_gone_and_the_live_store_is_not(taken: Snapshot, home: Path) -> None:
    delete_snapshot(taken.folder)
    assert list(home.iterdir()) == []
    with Store(home.parent / f"live-{NAME}-0", number=0, count=2) as store:
        assert store.get(TopicKeys(1).pool(11)) is not None


def test_a_snapshot_that_is_half_deleted_is_none(
    taken: Snapshot, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(shutil, "rmtree", interrupted)
        delete_snapshot(taken.folder)
    assert list_snapshots(home) == []
    assert taken.store_folder(0).exists()
    delete_snapshot(taken.folder)
    assert list(home.iterdir()) == []


def test_what_a_worker_left_that_was_killed_while_it_copied_can_be_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots" / NAME
    (folder / "store-0000.tmp").mkdir(parents=True)  # as RocksDB calls it until it is whole
    delete_snapshot(folder)
    assert not folder.exists()


def test_nothing_but_a_snapshot_is_deleted(tmp_path: Path, taken: Snapshot) -> None:
    for name in ("documents", NAME):
        folder = tmp_path / "other" / name
        folder.mkdir(parents=True)
        (folder / "letter.txt").write_text("dear")
        with pytest.raises(SnapshotError, match="no snapshot"):
            delete_snapshot(folder)
        (folder / MANIFEST).write_text("{}")
        with pytest.raises(SnapshotError, match="not one of a snapshot"):
            delete_snapshot(folder)
        assert (folder / "letter.txt").exists()
    change(taken.folder, lambda manifest: manifest.update(version=99))
    delete_snapshot(taken.folder)
    assert not taken.folder.exists()


AGES = [0, 1, 2, 3, 10]  # days, of as many snapshots
KEPT = [
    (None, None, AGES),
    (2, None, [0, 1]),
    (1, None, [0]),
    (9, None, AGES),
    (None, 2, [0, 1]),
    (None, 0, [0]),
    (None, 30, AGES),
    (4, 2, [0, 1, 2, 3]),
    (1, 3, [0, 1, 2]),
]


@pytest.mark.parametrize(("keep", "days", "kept"), KEPT)
def test_retention_keeps_the_newest_and_the_young(
    keep: int | None, days: int | None, kept: list[int]
) -> None:
    found = [
        Snapshot(Path(str(age)), {"time_ms": NOW_MS - age * DAY_MS}) for age in (3, 0, 10, 1, 2)
    ]
    older_than_ms = None if days is None else days * DAY_MS
    gone = expired(found, NOW_MS, keep=keep, older_than_ms=older_than_ms)
    assert sorted(set(AGES) - {int(each.name) for each in gone}) == kept


# --- verifying ------------------------------------------------------------------------------------


def problems_of(taken: Snapshot) -> list[str]:
    return verifying.verify(open_snapshot(taken.folder)).problems


def test_a_whole_snapshot_has_no_problems_and_reading_does_not_change_it(taken: Snapshot) -> None:
    before = {path: path.stat().st_mtime_ns for path in taken.folder.rglob("*")}
    told: list[float] = []
    found = verifying.verify(taken, lambda rows, part: told.append(part))
    assert found.problems == []
    assert found.rows == 65
    assert found.files == sum(len(store["files"]) for store in taken.stores)
    assert {path: path.stat().st_mtime_ns for path in taken.folder.rglob("*")} == before


@pytest.mark.parametrize("part", [0.05, 0.3, 0.6, 0.9])
def test_a_flipped_bit_is_found(taken: Snapshot, part: float) -> None:
    flip(table_of(taken), part)
    (problem,) = problems_of(taken)
    assert problem.startswith("store-0000: Corruption")


def test_a_missing_file_is_found(taken: Snapshot) -> None:
    table_of(taken).unlink()
    (problem,) = problems_of(taken)
    assert "cannot be read: No such file" in problem


def test_a_file_that_is_cut_short_is_found(taken: Snapshot) -> None:
    table = table_of(taken)
    content = table.read_bytes()
    table.unlink()
    table.write_bytes(content[:-1])
    (problem,) = problems_of(taken)
    assert f"has {len(content) - 1:,} bytes, not {len(content):,}" in problem


MISCOUNTED = ["number", "held", "parked", "drafting", "first_sequence"]


@pytest.mark.parametrize("what", MISCOUNTED)
def test_a_count_that_is_another_is_found(taken: Snapshot, what: str) -> None:
    said = taken.topics["orders"][what] + 1
    change(taken.folder, lambda manifest: manifest["topics"]["orders"].update({what: said}))
    (problem,) = problems_of(taken)
    assert f"'orders' has {what} {said - 1}, and its manifest says {said}" in problem


def test_a_message_beyond_the_last_is_found(taken: Snapshot) -> None:
    change(taken.folder, lambda manifest: manifest["topics"]["orders"].update(next_sequence=63))
    (problem,) = problems_of(taken)
    assert "has a message 63, and its manifest says that 63 is the next" in problem


def test_a_topic_too_few_and_one_too_many_are_found(taken: Snapshot) -> None:
    def rename(manifest: dict[str, Any]) -> None:
        manifest["topics"]["other"] = manifest["topics"].pop("empty")

    change(taken.folder, rename)
    assert problems_of(taken) == [
        "store-0000: the topic 'empty' is not in the manifest",
        "store-0000: the topic 'other' is missing",
    ]


def test_a_store_in_the_place_of_another_is_found(taken: Snapshot) -> None:
    shutil.rmtree(taken.store_folder(1))
    shutil.copytree(taken.store_folder(0), taken.store_folder(1))

    def same_files(manifest: dict[str, Any]) -> None:
        manifest["stores"][1]["files"] = manifest["stores"][0]["files"]

    change(taken.folder, same_files)
    assert "store-0001: it is store 0 of 2, not 1 of 2" in problems_of(taken)


def test_digests_find_what_no_row_is_read_from(taken: Snapshot) -> None:
    copying.add_digests(taken)
    assert problems_of(taken) == []
    options = next(taken.store_folder(1).glob("OPTIONS-*"))
    flip(options)
    (problem,) = problems_of(taken)
    assert f"{options.name} is not as it was" in problem


# --- copying --------------------------------------------------------------------------------------


def test_a_copy_is_the_same_and_shares_nothing(taken: Snapshot, tmp_path: Path) -> None:
    told: list[tuple[int, float]] = []
    copied = copying.copy(taken, tmp_path / "elsewhere" / "copies", lambda *done: told.append(done))
    assert copied.folder == tmp_path / "elsewhere" / "copies" / NAME
    assert copied.topics == taken.topics
    assert told[-1] == (snapshot.sizes_of(taken)[0], 1.0)
    total, own = snapshot.sizes_of(copied)
    assert total == own
    for store, name, file in snapshot.files_of(copied):
        path = copied.folder / store["folder"] / name
        assert path.read_bytes() == (taken.folder / store["folder"] / name).read_bytes()
        assert file["digest"] == copying.digest_of(path)
    delete_snapshot(taken.folder)
    assert problems_of(copied) == []
    assert list_snapshots(copied.folder.parent) == [copied]


def test_a_copy_does_not_go_over_another(taken: Snapshot, tmp_path: Path) -> None:
    copying.copy(taken, tmp_path / "copies")
    with pytest.raises(SnapshotError, match="there already"):
        copying.copy(taken, tmp_path / "copies")


def test_what_is_damaged_is_not_copied(taken: Snapshot, tmp_path: Path) -> None:
    copied = copying.copy(taken, tmp_path / "copies")
    flip(table_of(copied))
    with pytest.raises(SnapshotError, match="not what its manifest says"):
        copying.copy(copied, tmp_path / "again")
    table_of(copied).unlink()
    with pytest.raises(SnapshotError, match="missing"):
        copying.copy(copied, tmp_path / "again")
    assert list_snapshots(tmp_path / "again") == []


def test_what_does_not_come_back_as_it_was_written_is_no_copy(
    taken: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_sync = os.fsync

    def damaging(descriptor: int) -> None:
        true_sync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.suffix == ".sst":
            flip(path)

    monkeypatch.setattr(os, "fsync", damaging)
    with pytest.raises(SnapshotError, match="not what was written"):
        copying.copy(taken, tmp_path / "copies")
    assert list_snapshots(tmp_path / "copies") == []


@pytest.mark.parametrize("step", ["mkdir", "fsync", "replace", "rename"])
def test_a_copy_that_is_broken_off_is_none_and_can_be_made_again(
    taken: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def broken(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, step, broken)
        copying.copy(taken, tmp_path / "copies")
    assert list_snapshots(tmp_path / "copies") == []
    copied = copying.copy(taken, tmp_path / "copies")
    assert list((tmp_path / "copies").iterdir()) == [copied.folder]
    assert problems_of(copied) == []


def test_what_a_broken_copy_has_left_is_no_snapshot_by_its_own_name(
    taken: Snapshot, tmp_path: Path
) -> None:
    left = tmp_path / f".{NAME}.tmp"
    shutil.copytree(taken.folder, left)
    with pytest.raises(SnapshotError, match="not finished"):
        open_snapshot(left)
    assert list_snapshots(tmp_path) == []
    assert unfinished_in(tmp_path) == [left]
    delete_snapshot(left)
    assert not left.exists()


def test_two_copies_to_one_place_do_not_disturb_each_other(taken: Snapshot, tmp_path: Path) -> None:
    draft = tmp_path / "copies" / f".{NAME}.tmp"
    draft.mkdir(parents=True)
    other = os.open(draft, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(SnapshotError, match="being copied here already"):
            copying.copy(taken, tmp_path / "copies")
    finally:
        os.close(other)
    copying.copy(taken, tmp_path / "copies")


def test_a_place_that_cannot_be_written_is_told(taken: Snapshot, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SnapshotError, match="could not be copied here"):
        copying.copy(taken, tmp_path / "file" / "copies")


def test_a_copy_can_be_read_as_any_store(taken: Snapshot, tmp_path: Path) -> None:
    copied = copying.copy(taken, tmp_path / "copies")
    with ReadOnlyStore(copied.store_folder(0)) as store:
        assert len(list(store.scan(*TopicKeys(1).range_of("m")))) == 53
