"""The small files that a recovery reads: durable before anybody relies on them, never fatal."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asterism.actors.moves_host import Moves
from asterism.config import Config, ConfigError
from asterism.process_host import store_count
from asterism.storage.keys import STORE_NEXT, STORE_TOPIC, topic_prefix
from asterism.storage.moving import Dedicated, MoveError, dedicated_in, move_back, move_out
from asterism.storage.records import pack
from asterism.storage.store import Store, StoreError


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Store]:
    """A store with one topic, of number 1, and one row."""
    with Store(tmp_path / "stores" / "0000") as store:
        store.put(STORE_TOPIC + b"own", (1).to_bytes(4, "big"))
        store.put(STORE_NEXT, pack(2, 1))
        store.put(topic_prefix(1) + b"m1", b"a message")
        store.commit()
        yield store


class Recorded:
    """What a process does to names, and what it makes durable, in order: by paths as they were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, str]] = []
        for name in ("rename", "replace", "link"):
            monkeypatch.setattr(os, name, self._noting(name, getattr(os, name)))
        fsync = os.fsync

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            self.events.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))

        monkeypatch.setattr(os, "fsync", synced)

    def _noting(self, name: str, do: Any) -> Any:
        def noting(source: Any, target: Any) -> None:
            do(source, target)
            self.events.append((name, os.fspath(target)))

        return noting

    def at(self, what: str, path: Path) -> int:
        """When that happened last."""
        found = [at for at, event in enumerate(self.events) if event == (what, str(path))]
        assert found, f"no {what} of {path} in {self.events}"
        return found[-1]


def test_a_dedicated_folder_has_its_name_only_when_all_in_it_is_durable(
    shared: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(monkeypatch)
    held = move_out(shared, "own", tmp_path / "dedicated")
    named = recorded.at("rename", held.folder)
    before = recorded.events[:named]
    (draft,) = {
        Path(path).parent for _, path in before if Path(path).parent.name.startswith("new-")
    }
    synced = [Path(path) for what, path in before if what == "fsync"]
    assert any(path.parent == draft and "topic.json" in path.name for path in synced)
    assert draft in synced[1:]
    assert recorded.at("fsync", held.folder.parent) > named


def test_a_rename_of_a_killed_move_is_durable_before_its_topic_is_forgotten(
    shared: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move was killed between the rename and the sync of its folder."""
    home = tmp_path / "dedicated"
    move_out(shared, "own", home)
    recorded = Recorded(monkeypatch)
    moves = Moves(home, 1, False, lambda: True)
    before: list[int] = []
    delete_range = shared.delete_range

    def forgotten(low: bytes, high: bytes) -> None:
        before.append(len(recorded.events))
        delete_range(low, high)

    monkeypatch.setattr(shared, "delete_range", forgotten)
    shared.put(STORE_TOPIC + b"own", (1).to_bytes(4, "big"))  # as it was when the move was killed
    shared.commit()
    moves.settle(0, shared, {"own"}, 0)
    assert before and recorded.at("fsync", home) < before[0]


def test_a_folder_that_cannot_be_synced_fails_the_opening(
    shared: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "dedicated"
    move_out(shared, "own", home)

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match="cannot be synced: Input/output error"):
        Moves(home, 1, False, lambda: True).settle(0, shared, {"own"}, 0)


def test_a_topics_own_store_that_cannot_be_read_is_no_fault_of_the_shared_one(
    shared: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = move_out(shared, "own", tmp_path / "dedicated")
    scan = Store.scan

    def damaged(store: Store, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        if store.folder == held.store and low == topic_prefix(1):
            raise StoreError("Corruption: block checksum mismatch")
        return scan(store, low, high)

    monkeypatch.setattr(Store, "scan", damaged)
    with pytest.raises(MoveError, match="checksum mismatch"):
        move_back(shared, held)
    monkeypatch.undo()
    assert held.folder.is_dir(), "it stays where it is"
    assert shared.get(STORE_TOPIC + b"own") is None
    shared.put(topic_prefix(9) + b"m1", b"goes on")
    shared.commit()


def test_how_many_stores_there_are_is_durable_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(monkeypatch)
    assert store_count(Config(data_dir=str(tmp_path), stores=3)) == 3
    assert recorded.events[0][0] == "fsync" and "stores.json" in recorded.events[0][1]
    assert recorded.at("fsync", tmp_path) > recorded.at("link", tmp_path / "stores.json")
    assert [path.name for path in tmp_path.iterdir()] == ["stores.json"]


NO_NUMBER = "is damaged: it does not say how many stores there are. "
DAMAGED = [
    (None, "is missing. "),
    ("", "is empty. "),
    ("{", "is damaged: it is not JSON. "),
    ("[" * 100_000, "is damaged: it is not JSON. "),
    ("\x00" * 20, "is damaged: it is not JSON. "),
    *((content, NO_NUMBER) for content in ("[]", '{"stores": 0}', '{"stores": "many"}', "{}")),
]


@pytest.mark.parametrize(("content", "wrong"), DAMAGED)
def test_a_damaged_number_of_stores_is_a_sentence_that_says_what_to_write(
    content: str | None, wrong: str, tmp_path: Path
) -> None:
    for number in range(3):
        (tmp_path / "stores" / f"{number:04}").mkdir(parents=True)
        (tmp_path / "stores" / f"{number:04}.made").touch()
    if content is not None:  # or it is missing, and must not be made anew with another number
        (tmp_path / "stores.json").write_text(content)
    with pytest.raises(ConfigError) as refusal:
        store_count(Config(data_dir=str(tmp_path)))
    assert str(refusal.value).startswith(f"{tmp_path / 'stores.json'}: {wrong}")
    assert '{"stores": 3}' in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(("content", "wrong"), DAMAGED[1:])
def test_a_damaged_number_of_stores_may_be_deleted_where_there_are_none(
    content: str, wrong: str, tmp_path: Path
) -> None:
    path = tmp_path / "stores.json"
    path.write_text(content)
    with pytest.raises(ConfigError) as refusal:
        store_count(Config(data_dir=str(tmp_path)))
    assert str(refusal.value) == (
        f"{path}: {wrong}There are no stores yet: delete the file, and the next start makes "
        "another."
    )
    path.unlink()
    assert store_count(Config(data_dir=str(tmp_path), stores=3)) == 3


def test_a_number_of_stores_that_cannot_be_read_is_told_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "stores.json").mkdir()
    with pytest.raises(ConfigError, match=r"stores\.json: cannot be read: Is a directory\. "):
        store_count(Config(data_dir=str(tmp_path)))


@pytest.mark.parametrize("content", [None, "", '{"topic"', "[]", '{"topic": 5}', "\x00" * 20])
def test_a_folder_that_does_not_say_whose_it_is_hides_no_other(
    content: str | None, tmp_path: Path
) -> None:
    for number, topic in ((32_768, "first"), (40_000, "damaged"), (50_000, "last")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "topic.json").write_text(json.dumps({"topic": topic}))
    damaged = tmp_path / "40000" / "topic.json"
    damaged.unlink()
    if content is not None:
        damaged.write_text(content)
    assert [held.topic for held in dedicated_in(tmp_path)] == ["first", "last"]


def test_rows_of_a_move_back_that_was_broken_off_are_no_rows_of_the_next_topic(
    shared: Store, tmp_path: Path
) -> None:
    held = move_out(shared, "own", tmp_path / "dedicated")
    shared.put(topic_prefix(2) + b"m9", b"of a copy that was broken off")
    shared.commit()
    move_back(shared, Dedicated("own", held.number, held.folder))
    rows = list(shared.scan(topic_prefix(2), topic_prefix(3)))
    assert rows == [(topic_prefix(2) + b"m1", b"a message")]
    assert not held.folder.exists()
