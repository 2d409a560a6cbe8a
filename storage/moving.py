"""A topic with a store of its own: how its rows get there, and back.

    dedicated/<number>/topic.json     which topic; written before the folder has this name
    dedicated/<number>/store/         its store

The number, from 32,768 on, is also the number of the process that opens the store. A move is made
while nobody has the topic open, and survives being killed at any instruction: a folder under its
final name holds the whole topic, and then whatever the shared store still has of it is void.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from asterism.storage.keys import (
    STORE_NEXT,
    STORE_SNAPSHOT,
    STORE_TOPIC,
    after,
    settings_key,
    topic_prefix,
)
from asterism.storage.records import pack, unpack
from asterism.storage.store import Store, sync_folder

FIRST_NUMBER: Final = 32_768
NUMBERS: Final = 32_767  # the last one, 65,535, means no worker
_OWN_NUMBER: Final = 1  # of the topic, in a store of its own
_ROWS_A_COMMIT: Final = 10_000


class Dedicated(NamedTuple):
    """A topic that has a store of its own."""

    topic: str
    number: int
    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def deleted(self) -> Path:
        """A file that says that the topic was deleted, while its process ends."""
        return self.folder / "deleted"


def dedicated_in(home: Path) -> Iterator[Dedicated]:
    """Those in a data folder, in the order of their numbers."""
    folders = home.iterdir() if home.is_dir() else iter(())
    for folder in sorted(folder for folder in folders if folder.name.isdigit()):
        named = json.loads((folder / "topic.json").read_text())
        yield Dedicated(named["topic"], int(folder.name), folder)


def move_out(shared: Store, topic: str, home: Path) -> Dedicated:
    """Gives a topic of a shared store a store of its own."""
    home.mkdir(parents=True, exist_ok=True)
    known = next((held for held in dedicated_in(home) if held.topic == topic), None)
    if known is None:
        known = _copy_out(shared, topic, home)
    forget(shared, topic)
    return known


def _copy_out(shared: Store, topic: str, home: Path) -> Dedicated:
    row = shared.get(STORE_TOPIC + topic.encode())
    assert row is not None, "a topic that is moved is in its store"
    number = FIRST_NUMBER + crc32(topic.encode()) % NUMBERS
    draft = home / f"new-{number}-{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    (draft / "topic.json").write_text(json.dumps({"topic": topic}))
    with Store(draft / "store") as own:
        _copy(shared, int.from_bytes(row, "big"), own, _OWN_NUMBER)
        own.put(STORE_TOPIC + topic.encode(), _OWN_NUMBER.to_bytes(4, "big"))
        _, first_sequence = unpack(shared.get(STORE_NEXT) or pack(1, 1), 2)
        own.put(STORE_NEXT, pack(_OWN_NUMBER + 1, first_sequence))
        _carry_snapshot_time(shared, own)
        own.commit()
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


def move_back(shared: Store, held: Dedicated) -> None:
    """Brings a topic back into a shared store, if it is still there, and deletes its own."""
    forget(shared, held.topic)
    with Store(held.store) as own:
        row = own.get(STORE_TOPIC + held.topic.encode())
        next_topic, first_sequence = unpack(shared.get(STORE_NEXT) or pack(1, 1), 2)
        if row is not None:
            _copy(own, int.from_bytes(row, "big"), shared, next_topic)
            shared.put(STORE_TOPIC + held.topic.encode(), next_topic.to_bytes(4, "big"))
            next_topic += 1
        # A topic of the same name never gives a sequence again, wherever it was before.
        _, own_first = unpack(own.get(STORE_NEXT) or pack(1, 1), 2)
        shared.put(STORE_NEXT, pack(next_topic, max(first_sequence, own_first)))
        _carry_snapshot_time(own, shared)
        shared.commit()
    gone = held.folder.with_name(f"gone-{held.number}")
    os.rename(held.folder, gone)
    sync_folder(held.folder.parent)
    shutil.rmtree(gone)


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


def _copy(source: Store, number: int, target: Store, new_number: int) -> None:
    """Copies a topic's rows under another number."""
    old, new = topic_prefix(number), topic_prefix(new_number)
    for count, (key, value) in enumerate(source.scan(old, after(old)), 1):
        target.put(new + key[len(old) :], value)
        if count % _ROWS_A_COMMIT == 0:
            target.commit()
    target.commit()
