"""Snapshots of a worker: what goes on while they are prepared, and what ends them early."""

import itertools
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asterism.actors.shard import Shard
from asterism.actors.snapshot_host import ASKED_MAX, Open, Snapshots, Taking
from asterism.errors import PeerError
from asterism.settings import TopicSettings
from asterism.storage.reading import ReadOnlyStore
from asterism.storage.store import Store

NOW_MS = 1_700_000_000_000
WAIT_S = 20.0


class Held(Store):
    """A store whose flush does not end until it is let go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.begun, self.may_end = threading.Event(), threading.Event()

    @property
    def is_flushing(self) -> bool:
        self.begun.set()
        assert self.may_end.wait(WAIT_S)
        return super().is_flushing


class Rig:
    """Some stores, and snapshots of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stores = [Held(folder / f"live-{number}") for number in range(2)]
        shards = [Shard(store, TopicSettings()) for store in self.stores]
        self.opened = [
            Open(number, store, shard)
            for number, (store, shard) in enumerate(zip(self.stores, shards, strict=True))
        ]
        self.snapshots = Snapshots()

    def let_go(self) -> None:
        for store in self.stores:
            store.may_end.set()

    def ask(self, name: str) -> Path:
        (self.folder / name).mkdir()
        self.snapshots.ask(name, self.folder / name, list(self.opened))
        return self.folder / name

    def turn(self) -> Taking | None:
        return self.snapshots.step(NOW_MS)

    def until_over(self) -> Taking:
        """Turns, each as soon as the poll of a worker would begin it."""
        while (taking := self.turn()) is None:
            if not self.snapshots.has_more:
                assert select.select([self.snapshots.wakeup], [], [], WAIT_S)[0]
        return taking


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.let_go()
    made.snapshots.close()
    for store in made.stores:
        store.close()


def key_of(number: int) -> bytes:
    return b"\x01" + number.to_bytes(4, "big")


def test_turns_go_on_while_a_store_is_written_ahead(rig: Rig) -> None:
    folder = rig.ask("one")
    assert rig.turn() is None
    store = rig.stores[0]
    assert store.begun.wait(WAIT_S)
    for number in range(10):
        store.put(key_of(number), b"meanwhile")
        store.commit()
        assert rig.turn() is None
    assert not (folder / "store-0000").exists()
    rig.let_go()
    assert rig.until_over().error is None
    with ReadOnlyStore(folder / "store-0000") as taken:
        assert [key for key, _ in taken.scan(b"\x01", b"\x02")] == [key_of(n) for n in range(10)]


def test_a_turn_makes_one_checkpoint_at_most(rig: Rig) -> None:
    folder = rig.ask("one")
    rig.let_go()
    seen = []
    while (taking := rig.turn()) is None:
        seen.append(len(list(folder.iterdir())))
        assert select.select([rig.snapshots.wakeup], [], [], WAIT_S)[0]
    assert [store["number"] for store in taking.stores] == [0, 1]
    assert {after - before for before, after in itertools.pairwise(seen)} <= {0, 1}


def test_those_that_are_asked_for_at_once_are_taken_one_after_another(rig: Rig) -> None:
    rig.let_go()
    folders = [rig.ask(name) for name in ("a", "b", "c")]
    takings = [rig.until_over() for _ in folders]
    assert [taking.asker for taking in takings] == ["a", "b", "c"]
    for folder, taking in zip(folders, takings, strict=True):
        assert taking.error is None
        assert sorted(path.name for path in folder.iterdir()) == ["store-0000", "store-0001"]
    assert rig.turn() is None


def test_one_too_many_is_told_to_come_again(rig: Rig) -> None:
    for number in range(ASKED_MAX):
        rig.ask(str(number))
    with pytest.raises(PeerError) as refused:
        rig.ask("one more")
    assert (refused.value.code, refused.value.retry_after_ms) == ("busy", 1_000)


@pytest.mark.parametrize("number", [0, 1])
def test_a_store_that_is_closed_meanwhile_makes_it_busy(rig: Rig, number: int) -> None:
    rig.ask("one")
    rig.ask("two")
    rig.turn()
    if number == 0:
        assert rig.stores[0].begun.wait(WAIT_S)
    closing = threading.Thread(target=rig.stores[number].close)
    closing.start()
    rig.let_go()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    for _ in range(2):
        error = rig.until_over().error
        assert error is not None
        assert (error.code, error.detail) == ("busy", f"store {number} was closed meanwhile")


def test_a_store_closes_while_it_is_flushed_and_another_thread_asks(tmp_path: Path) -> None:
    def wait() -> None:
        while store.is_flushing:
            asked.set()

    asked = threading.Event()
    with Store(tmp_path / "store") as store:
        for number in range(20_000):
            store.put(key_of(number), bytes(500))
        store.write()
        store.begin_flush()
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert asked.wait(WAIT_S)
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    assert not store.is_flushing
    with Store(tmp_path / "store") as again:
        assert sum(1 for _ in again.scan(b"\x01", b"\x02")) == 20_000


def test_a_checkpoint_that_cannot_be_made_is_told_and_the_next_is_made(rig: Rig) -> None:
    rig.let_go()
    rig.ask("one").rmdir()
    rig.ask("two")
    error = rig.until_over().error
    assert error is not None
    assert error.code == "internal"
    assert rig.until_over().error is None


def test_what_a_broken_snapshot_has_left_is_made_anew(rig: Rig) -> None:
    rig.let_go()
    left = rig.ask("one") / "store-0000"
    left.mkdir()
    (left / "CURRENT").write_text("half")
    assert rig.until_over().error is None
    with ReadOnlyStore(left) as taken:
        assert taken.number == 0


def test_a_worker_without_a_store_answers_at_once(tmp_path: Path) -> None:
    snapshots = Snapshots()
    asker: Any = object()
    snapshots.ask(asker, tmp_path, [])
    taking = snapshots.step(NOW_MS)
    assert taking is not None
    assert (taking.asker, taking.stores, taking.error) == (asker, [], None)
    snapshots.close()
