"""A topic with a store of its own: how its rows get there, and back.

    dedicated/<number>/topic.json     which topic; durable before the folder has this name
    dedicated/<number>/store/         its store
    dedicated/naming.lock             held by the worker that mends a topic.json

The number, from 32,768 on, is also the number of the process that opens the store. A move is made
while nobody has the topic open, and survives being killed at any instruction, and a power cut: a
folder under its final name holds the whole topic, and then whatever the shared store still has of
it is void.

A move that fails, on a full disk say, leaves the topic whole where it was (``MoveError``).

A ``topic.json`` that is missing or damaged concerns its own topic alone. The store has the name as
well, so the file is mended from there; where the store cannot be opened either, the number of the
folder still tells which names the topic can have (``first_number``).
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from asterism.files_host import make_folder, open_lock, read_json, sync_folder, write_durably
from asterism.storage.keys import (
    STORE_NEXT,
    STORE_SNAPSHOT,
    STORE_TOPIC,
    after,
    settings_key,
    topic_prefix,
)
from asterism.storage.records import pack, unpack
from asterism.storage.store import Store, StoreError

FIRST_NUMBER: Final = 32_768
NUMBERS: Final = 32_767  # the last one, 65,535, means no worker
_OWN_NUMBER: Final = 1  # of the topic, in a store of its own
_ROWS_A_COMMIT: Final = 10_000
_BYTES_A_COMMIT: Final = 4 << 20
_NAME_FILE: Final = "topic.json"
_TOPICS: Final = topic_prefix(0)[:1]  # the first byte of every row of every topic
HasRoom = Callable[[], bool]  # may more be written to the disk?


def _always() -> bool:
    return True


class MoveError(Exception):
    """A topic could not be moved, and is whole where it was; the message says why."""


class Dedicated(NamedTuple):
    """A topic that has a store of its own."""

    topic: str
    number: int
    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def is_there(self) -> bool:
        """Has its store ever been? It is made before the folder has its name."""
        return (self.store / "CURRENT").exists()

    @property
    def missing(self) -> str:
        """What to say of a store that is not there."""
        return f"{self.store}: the topic's store is missing. Restore it from a snapshot."

    @property
    def deleted(self) -> Path:
        """A file that says that the topic was deleted, while its process ends."""
        return self.folder / "deleted"


def first_number(topic: str) -> int:
    """The number that a topic's folder has, or the first that was tried for it."""
    return FIRST_NUMBER + crc32(topic.encode()) % NUMBERS


def dedicated_in(home: Path) -> Iterator[Dedicated]:
    """Those in a data folder, in the order of their numbers; none whose name cannot be read."""
    for folder in _folders_in(home):
        topic = _name_of(folder)
        if topic is not None:
            yield Dedicated(topic, int(folder.name), folder)


def unnamed_in(home: Path) -> list[Path]:
    """The folders whose ``topic.json`` does not say which topic they are of."""
    return [folder for folder in _folders_in(home) if _name_of(folder) is None]


def _folders_in(home: Path) -> list[Path]:
    folders = home.iterdir() if home.is_dir() else iter(())
    return sorted(folder for folder in folders if folder.name.isdecimal())


def _name_of(folder: Path) -> str | None:
    try:
        named = read_json(folder / _NAME_FILE)
    except (OSError, ValueError):
        return None
    topic = named.get("topic") if isinstance(named, dict) else None
    return topic if isinstance(topic, str) and topic else None


def mend_names(home: Path, on_failure: Callable[[Path, str], None]) -> list[Dedicated]:
    """Writes every ``topic.json`` anew that can be read out of its store; those that it mended.

    A folder whose store cannot tell is left alone, with a word to ``on_failure``.
    """
    if not unnamed_in(home):
        return []
    mended = []
    # All workers come here at once, and a store has one owner: each waits for the one before it.
    lock = open_lock(home / "naming.lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for folder in unnamed_in(home):
            try:
                topic = name_in_store(folder)
                write_durably(folder / _NAME_FILE, {"topic": topic})
            except (OSError, StoreError, MoveError) as error:
                on_failure(folder, str(error))
            else:
                mended.append(Dedicated(topic, int(folder.name), folder))
    finally:
        os.close(lock)
    return mended


def name_in_store(folder: Path) -> str:
    """Which topic the store of a folder is of; ``MoveError`` or ``StoreError`` if it is none."""
    place = folder / "store"
    if not (place / "CURRENT").exists():  # or a new and empty store would be made
        raise MoveError(f"{place}: there is no store here")
    with Store(place) as own:
        topics = topics_in(own)
    if len(topics) != 1:
        raise MoveError(f"{place}: it holds {len(topics)} topics, and not one")
    return topics[0]


def move_out(shared: Store, topic: str, home: Path, has_room: HasRoom = _always) -> Dedicated:
    """Gives a topic of a shared store a store of its own; ``MoveError`` leaves it where it is."""
    known = next((held for held in dedicated_in(home) if held.topic == topic), None)
    if known is None:
        known = _copy_out(shared, topic, home, has_room)
    forget(shared, topic)
    return known


def _copy_out(shared: Store, topic: str, home: Path, has_room: HasRoom) -> Dedicated:
    number = first_number(topic)
    draft = home / f"new-{number}-{os.getpid()}"
    try:
        if not home.is_dir():
            make_folder(home)
            sync_folder(home.parent)
        shutil.rmtree(draft, ignore_errors=True)
        make_folder(draft)
        _fill_draft(draft, shared, topic, has_room)
        return _take_number(draft, topic, number, home)
    except (OSError, StoreError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise MoveError(str(error)) from error
    except MoveError:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _fill_draft(draft: Path, shared: Store, topic: str, has_room: HasRoom) -> None:
    row = shared.get(STORE_TOPIC + topic.encode())
    assert row is not None, "a topic that is moved is in its store"
    write_durably(draft / _NAME_FILE, {"topic": topic})
    with Store(draft / "store") as own:
        _copy(shared, int.from_bytes(row, "big"), own, _OWN_NUMBER, has_room)
        own.put(STORE_TOPIC + topic.encode(), _OWN_NUMBER.to_bytes(4, "big"))
        _, first_sequence = unpack(shared.get(STORE_NEXT) or pack(1, 1), 2)
        own.put(STORE_NEXT, pack(_OWN_NUMBER + 1, first_sequence))
        _carry_snapshot_time(shared, own)
        own.commit()


def _take_number(draft: Path, topic: str, number: int, home: Path) -> Dedicated:
    while True:
        folder = home / str(number)
        try:
            os.rename(draft, folder)  # to an empty folder or to none; never over another's
        except OSError:
            if not folder.exists():
                raise
            number = FIRST_NUMBER + (number + 1 - FIRST_NUMBER) % NUMBERS
        else:
            sync_folder(home)
            return Dedicated(topic, number, folder)


def move_back(shared: Store, held: Dedicated, has_room: HasRoom = _always) -> None:
    """Brings a topic back into a shared store, if it is still there, and deletes its own.

    After a ``MoveError`` it is in its own store as before. ``StoreError`` is one of the shared
    store: whoever has it open must open it again, and ``clear_unused`` before using it.
    """
    forget(shared, held.topic)
    clear_unused(shared)
    next_topic, first_sequence = unpack(shared.get(STORE_NEXT) or pack(1, 1), 2)
    try:
        own = Store(held.store)
    except StoreError as error:
        raise MoveError(str(error)) from error
    with own:
        row = own.get(STORE_TOPIC + held.topic.encode())
        if row is not None:
            try:
                _copy(own, int.from_bytes(row, "big"), shared, next_topic, has_room)
            except MoveError:
                clear_unused(shared)
                raise
            shared.put(STORE_TOPIC + held.topic.encode(), next_topic.to_bytes(4, "big"))
            next_topic += 1
        # A topic of the same name never gives a sequence again, wherever it was before.
        _, own_first = unpack(own.get(STORE_NEXT) or pack(1, 1), 2)
        shared.put(STORE_NEXT, pack(next_topic, max(first_sequence, own_first)))
        _carry_snapshot_time(own, shared)
        shared.commit()
    gone = held.folder.with_name(f"gone-{held.number}")
    shutil.rmtree(gone, ignore_errors=True)  # of a deletion that was broken off
    os.rename(held.folder, gone)
    sync_folder(held.folder.parent)
    shutil.rmtree(gone, ignore_errors=True)


def clear_unused(store: Store) -> None:
    """Deletes the rows under numbers that no topic has been given yet.

    A move that was broken off leaves some, and the next topic of that number must not have them.
    """
    next_topic, _ = unpack(store.get(STORE_NEXT) or pack(1, 1), 2)
    low, high = topic_prefix(next_topic), after(_TOPICS)
    if next(iter(store.scan(low, high)), None) is not None:
        store.delete_range(low, high)
        store.commit()


def _carry_snapshot_time(source: Store, target: Store) -> None:
    """A topic files no history before a snapshot that has it, wherever it was then."""
    times = [store.get(STORE_SNAPSHOT) or bytes(8) for store in (source, target)]
    target.put(STORE_SNAPSHOT, max(times))


def wants_own_store(store: Store, topic: str, default: bool) -> bool:
    """Is the topic in this store, and dedicated by its own settings or else by default?"""
    row = store.get(STORE_TOPIC + topic.encode())
    if row is None:
        return False
    settings = store.get(settings_key(int.from_bytes(row, "big")))
    overrides = {} if settings is None else dict(unpack(settings, 1)[0])
    return bool(overrides.get("dedicated", default))


def topics_in(store: Store) -> list[str]:
    """The names of the topics of a store."""
    rows = store.scan(STORE_TOPIC, after(STORE_TOPIC))
    return [key[len(STORE_TOPIC) :].decode() for key, _ in rows]


def forget(store: Store, topic: str) -> None:
    """Deletes what a store has of a topic."""
    key = STORE_TOPIC + topic.encode()
    row = store.get(key)
    if row is not None:
        prefix = topic_prefix(int.from_bytes(row, "big"))
        store.delete_range(prefix, after(prefix))
        store.delete(key)
        store.commit()


def _rows_of(source: Store, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Rows to be copied. That they cannot be read is no fault of the store they would go to."""
    try:
        yield from source.scan(low, high)
    except StoreError as error:
        raise MoveError(str(error)) from error


def _copy(source: Store, number: int, target: Store, new_number: int, has_room: HasRoom) -> None:
    """Copies a topic's rows under another number; ``MoveError`` when the disk gets too full."""
    old, new = topic_prefix(number), topic_prefix(new_number)
    rows = size = 0
    for key, value in _rows_of(source, old, after(old)):
        if rows == _ROWS_A_COMMIT or size >= _BYTES_A_COMMIT:
            target.commit()
            rows = size = 0
            if not has_room():
                raise MoveError("the disk has too little room for a copy of the topic")
        target.put(new + key[len(old) :], value)
        rows += 1
        size += len(key) + len(value)
    target.commit()
