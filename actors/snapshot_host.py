"""Snapshots of a worker's stores, while it works: one store after another, between two turns.

A checkpoint needs everything in files: RocksDB begins it by writing what it holds in memory, and
that would stop the worker for as long. So a thread has it written first, while turns go on, and
again until little is left. Then, at the end of a turn, the checkpoint itself takes a few
milliseconds. A snapshot is answered when each store has its checkpoint; those that are asked for
meanwhile wait for their turn.

A store that is closed on the way, for whatever reason, makes the snapshot ``busy``: whoever asked
asks again, and what was there of it is made anew.
"""

import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from asterism.actors.shard import Shard
from asterism.actors.topic import TopicActor
from asterism.errors import PeerError
from asterism.storage.store import Store, StoreError

ASKED_MAX: Final = 16  # that wait; one more is told busy
ROUNDS_MAX: Final = 4  # how often what is in memory is written, at most, before a checkpoint
ROUND_S: Final = 0.01  # what takes less leaves little for the checkpoint
BUSY_MS: Final = 1_000  # the hint of busy
log = logging.getLogger("asterism.worker")


class Open(NamedTuple):
    """A store of which a checkpoint is to be made, as it was when the snapshot was asked for."""

    number: int
    store: Store
    shard: Shard


class Taking:
    """A snapshot that is being taken."""

    def __init__(self, asker: Any, folder: Path, stores: list[Open]) -> None:
        self.asker = asker  # whoever has to be answered; nothing here looks into it
        self.folder = folder
        self.left = deque(stores)
        self.stores: list[dict[str, Any]] = []  # what is told of those that are done
        self.error: PeerError | None = None


class Snapshots:
    """Those that were asked for, of which one is being taken."""

    def __init__(self) -> None:
        self.wakeup, self._write_end = os.pipe()  # readable when a thread has done its part
        os.set_blocking(self.wakeup, False)
        self._asked: deque[Taking] = deque()
        self._prepared = threading.Event()
        self._thread: threading.Thread | None = None

    def ask(self, asker: Any, folder: Path, stores: list[Open]) -> None:
        """Begins a snapshot, or has it wait; ``step`` tells when it is over."""
        if len(self._asked) >= ASKED_MAX:
            raise PeerError("busy", "too many snapshots are asked for", BUSY_MS)
        self._asked.append(Taking(asker, folder, stores))
        if len(self._asked) == 1:
            self._prepare(self._asked[0])

    def step(self, now_ms: int) -> Taking | None:
        """At the end of a turn: a checkpoint, if one is prepared; the snapshot, if that ends it."""
        if not self._prepared.is_set():
            return None
        self._prepared.clear()
        os.read(self.wakeup, 1)
        taking = self._asked[0]
        if taking.left:
            self._checkpoint(taking, now_ms)
        if taking.left and taking.error is None:
            self._prepare(taking)
            return None
        self._asked.popleft()
        if self._asked:
            self._prepare(self._asked[0])
        return taking

    def close(self) -> None:
        """Waits for the thread: nothing of it is left when the stores are closed."""
        if self._thread is not None:
            self._thread.join()
        os.close(self.wakeup)
        os.close(self._write_end)

    # --- one store ----------------------------------------------------------------------------

    def _prepare(self, taking: Taking) -> None:
        if not taking.left:  # a worker of no store: there is nothing to wait for
            self._on_prepared()
            return
        first = taking.left[0]
        arguments = (first.store, _folder_of(taking, first), self._on_prepared)
        self._thread = threading.Thread(target=_write_ahead, args=arguments, daemon=True)
        self._thread.start()

    def _on_prepared(self) -> None:
        os.write(self._write_end, b"\0")  # before the event, so that whoever sees that finds this
        self._prepared.set()

    def _checkpoint(self, taking: Taking, now_ms: int) -> None:
        number, store, shard = taking.left[0]
        target = _folder_of(taking, taking.left.popleft())
        try:
            if store.is_closed:
                raise PeerError("busy", f"store {number} was closed meanwhile", BUSY_MS)
            time_ms = shard.note_snapshot(now_ms)
            store.write()
            store.checkpoint(target)
        except StoreError as error:
            log.error("no snapshot: %s", error)
            taking.error = PeerError("internal", str(error))
        except PeerError as error:
            taking.error = error
        else:
            topics = [told_of(actor, time_ms) for actor in shard.topics.values()]
            taking.stores.append({"number": number, "folder": target.name, "topics": topics})


def _folder_of(taking: Taking, of: Open) -> Path:
    return taking.folder / f"store-{of.number:04}"


def _write_ahead(store: Store, target: Path, on_end: Callable[[], None]) -> None:
    """In a thread of its own: has the store write what it holds in memory, until little is left."""
    try:
        shutil.rmtree(target, ignore_errors=True)  # of a snapshot that was broken off
        for _ in range(ROUNDS_MAX):
            began = time.monotonic()
            store.flush_beside()
            if time.monotonic() - began < ROUND_S:
                break
    except StoreError as error:
        log.warning("a store cannot be written ahead of its checkpoint: %s", error)
    finally:
        on_end()


def told_of(actor: TopicActor, time_ms: int) -> dict[str, Any]:
    """What a snapshot tells of a topic; its rows are looked at by whoever writes the manifest."""
    return {
        "name": actor.name,
        "number": actor.keys.number,
        "next_sequence": actor.next_sequence,
        "history_until_ms": time_ms,
        "held": actor.pool_held + actor.log_held,
        "parked": actor.parked,
        "drafting": actor.drafting,
        "completed": actor.completed,
    }
