"""The snapshots in a folder as a stream follows them, and rows that outlive the one they are in.

Retention may delete a snapshot at any moment: after a range was planned on it, or while a task
reads it. So whoever reads a piece goes on in the next newer snapshot that has it, behind the last
row that it had. A snapshot that is damaged is not one that was deleted: that is an error.
"""

import os
from collections.abc import Callable, Iterator
from heapq import merge
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from asterism.spark.options import OptionError
from asterism.spark.stream_plan import Mark, Piece, Seen, read_instead, seen_in
from asterism.storage.keys import TopicKeys, number_at_end, topic_prefix
from asterism.storage.reading import ReadOnlyStore
from asterism.storage.snapshot import MANIFEST, Snapshot, SnapshotError, open_snapshot
from asterism.storage.store import StoreError

PREFIX_BYTES: Final = len(topic_prefix(0))
_Block = tuple[list[bytes], list[bytes]]
_Found = TypeVar("_Found")
# By the name of a snapshot, and its manifest's file; ``None``: it cannot be read.
_Known = dict[tuple[str, int, int], tuple[Snapshot, Seen] | None]


class Folder:
    """A folder of snapshots; each manifest is read once, since it never changes."""

    def __init__(self, path: str, table: str, topics: frozenset[str] | None) -> None:
        self.path = Path(path.removeprefix("file://").removeprefix("file:")).absolute()
        self._table = table
        self._topics = topics
        self._known: _Known = {}

    def check(self) -> None:
        """Refuses a path at which no snapshot can ever appear."""
        if (self.path / MANIFEST).exists():
            raise OptionError(
                f"{self.path}: this is one snapshot. A stream follows a folder of snapshots: give "
                f"{self.path.parent}, or read this one with spark.read."
            )
        if not self.path.is_dir():
            raise OptionError(f"{self.path}: there is no such folder for a stream to follow.")

    def seen(self) -> list[Seen]:
        """The whole snapshots that are there, in the order of their times."""
        return [seen for _, seen in self._now()]

    def find(self, mark: Mark) -> Snapshot | None:
        """A snapshot; ``None`` if it is there no more."""
        kept = self._look(mark.name, self._known)
        return None if kept is None or kept[1].mark != mark else kept[0]

    def _now(self) -> list[tuple[Snapshot, Seen]]:
        before, self._known = self._known, {}
        found = [self._look(name, before) for name in self._names()]
        whole = [kept for kept in found if kept is not None]
        return sorted(whole, key=lambda kept: kept[1].mark)

    def _look(self, name: str, known: _Known) -> tuple[Snapshot, Seen] | None:
        try:
            status = os.stat(self.path / name / MANIFEST)
        except OSError:
            return None  # not finished, or being deleted
        # A name may be given again within its second: another file tells.
        key = (name, status.st_ino, status.st_mtime_ns)
        kept = self._known[key] = known[key] if key in known else self._open(name)
        return kept

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []

    def _open(self, name: str) -> tuple[Snapshot, Seen] | None:
        try:
            snapshot = open_snapshot(self.path / name)
        except SnapshotError:
            return None  # as ``spark.read`` does
        wanted = self._topics
        topics = {
            topic: told
            for topic, told in snapshot.topics.items()
            if wanted is None or topic in wanted
        }
        return snapshot, seen_in(Mark(snapshot.time_ms, name), topics, self._table)


class Stores:
    """The stores that a task has open, by snapshot and number; for ``with``."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._open: dict[tuple[Mark, int], ReadOnlyStore] = {}

    def get(self, mark: Mark, snapshot: Snapshot, number: int) -> ReadOnlyStore:
        store = self._open.get((mark, number))
        if store is None:
            store = ReadOnlyStore(snapshot.store_folder(number))
            self._open[mark, number] = store
        return store

    def close(self) -> None:
        for store in self._open.values():
            store.close()
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Following:
    """The rows of a piece's topic, with the keys that the topic has where they were first found."""

    def __init__(self, stores: Stores, piece: Piece) -> None:
        self._stores = stores
        self._piece = piece
        self._rows: ReadOnlyStore | None = None  # None: the topic was deleted
        self._prefix = b""
        self._open()
        self.store: int = self._told["store"] if self._rows else 0
        self.number: int = self._told["number"] if self._rows else 0
        self._first_prefix = self._prefix

    def as_store(self) -> ReadOnlyStore:
        """As what tables read from; they scan, and that is all that this does."""
        return cast(ReadOnlyStore, self)

    def scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As that of a store; what was yielded before a snapshot was deleted is not again."""
        for key, row in self._follow(ReadOnlyStore.scan, lambda found: found[0], low, high):
            yield self._first_prefix + key[PREFIX_BYTES:], row

    def scan_blocks(
        self, low: bytes, high: bytes, size: int
    ) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """The same rows by the block."""

        def scan(rows: ReadOnlyStore, low: bytes, high: bytes) -> Iterator[_Block]:
            return rows.scan_blocks(low, high, size)

        for keys, values in self._follow(scan, lambda block: block[0][-1], low, high):
            if self._prefix != self._first_prefix:
                keys = [self._first_prefix + key[PREFIX_BYTES:] for key in keys]
            yield keys, values

    def _follow(
        self,
        scan: Callable[[ReadOnlyStore, bytes, bytes], Iterator[_Found]],
        last_key: Callable[[_Found], bytes],
        low: bytes,
        high: bytes,
    ) -> Iterator[_Found]:
        while self._rows is not None:
            prefix = self._prefix
            low, high = prefix + low[PREFIX_BYTES:], prefix + high[PREFIX_BYTES:]
            try:
                for found in scan(self._rows, low, high):
                    yield found
                    low = last_key(found) + b"\0"
                return
            except StoreError:
                if self._stores.folder.find(self._piece.mark) is not None:
                    raise
                self._open()

    def _open(self) -> None:
        """Opens the store of the piece's snapshot, or of a newer one."""
        folder = self._stores.folder
        while True:
            snapshot = folder.find(self._piece.mark)
            if snapshot is not None:
                self._told: dict[str, Any] = snapshot.topics[self._piece.topic]
                self._prefix = topic_prefix(self._told["number"])
                try:
                    number = self._told["store"]
                    self._rows = self._stores.get(self._piece.mark, snapshot, number)
                    return
                except StoreError:
                    if folder.find(self._piece.mark) is not None:
                        raise
            if not self._move():
                return

    def _move(self) -> bool:
        instead = read_instead(self._piece, self._stores.folder.seen())
        self._rows = None
        if instead is not None:
            self._piece = instead
        return instead is not None


def positions(stores: Stores, piece: Piece, table: str) -> Iterator[int]:
    """The positions of a piece's rows, rising."""
    if table == "history":
        return (number_at_end(key[:-8]) for key in _keys(stores, piece, "h"))
    # Each goes on by itself where the snapshot is deleted.
    pool, log = (_keys(stores, piece, kind) for kind in "ml")
    return merge(map(number_at_end, pool), map(number_at_end, log))


def _keys(stores: Stores, piece: Piece, kind: str) -> Iterator[bytes]:
    rows = Following(stores, piece)
    begin = TopicKeys(rows.number).range_of(kind)[0]
    # A position is the first number behind a kind, in each of them.
    low, high = (begin + at.to_bytes(8, "big") for at in (piece.low, piece.high))
    return (key for key, _ in rows.scan(low, high))
