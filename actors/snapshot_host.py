"""Snapshots of a worker's stores, while it works: one store after another, between two turns.

A checkpoint needs everything in files: RocksDB begins it by writing what it holds in memory, and
that would stop the worker for as long. So RocksDB has it written first, in a thread of its own,
while turns go on, and again until little is left; a thread here waits for that. Then, at the end of
a turn, the checkpoint itself takes a few milliseconds; the next store follows after a pause, so
that nobody waits for several of them. A
snapshot is answered when each store has its checkpoint; those that are asked for meanwhile wait for
their turn.

A store that is closed on the way, for whatever reason, makes the snapshot ``busy``: whoever asked
asks again, and what was there of it is made anew.
"""

import contextlib
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
from asterism.files_host import FOLDER_MODE, make_folder
from asterism.storage.snapshot import MANIFEST, clear_abandoned, is_name, taken_in
from asterism.storage.store import Store, StoreError

ASKED_MAX: Final = 16  # that wait; one more is told busy
ROUNDS_MAX: Final = 4  # how often what is in memory is written, at most, before a checkpoint
LITTLE_BYTES: Final = 256 << 10  # in memory: the checkpoint itself writes them in milliseconds
POLL_S: Final = 0.002  # how often a thread asks whether RocksDB has written
PAUSE_TIMES: Final = 6  # a pause after each checkpoint, of so many times as long as it took
BUSY_MS: Final = 1_000  # the hint of busy
log = logging.getLogger("asterism.worker")


def folder_for(home: Path, named: str, most: int, now_ms: int) -> Path:
    """Where a snapshot goes: a folder of its own in ``home``, made if need be, and nowhere else.

    The request gives its name or its whole path. ``busy`` where there are as many as may be.
    """
    name = named.removeprefix(f"{home}/")
    if not is_name(name):
        raise PeerError(
            "bad_request",
            f"a snapshot is a folder in {home}; its name has letters, digits, '-', '_' and '.', "
            "and begins with a letter or a digit",
        )
    folder = home / name
    if (folder / MANIFEST).exists():
        raise PeerError("bad_request", f"{folder} is a finished snapshot: name another")
    if len([each for each in taken_in(home) if each != folder]) >= most:
        clear_abandoned(home, now_ms)
    if len([each for each in taken_in(home) if each != folder]) >= most:
        raise PeerError(
            "bad_request",
            f"there are {most} snapshots in {home}, as many as max_snapshots allows: delete some "
            "(asterism snapshot delete NAME, or --keep N), or raise max_snapshots",
        )
    try:
        make_folder(home)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(FOLDER_MODE)
    except OSError as error:
        raise PeerError("internal", f"{folder} cannot be made: {error.strerror}") from error
    for each in (home, folder):
        if each.is_symlink() or not each.is_dir():
            raise PeerError("bad_request", f"{each} is a link, or no folder: remove it")
    return folder


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
        self.time_ms = 0  # of the store that is next, once it is being prepared
        self.rounds = 0  # of writing what it has in memory
        self.stores: list[dict[str, Any]] = []  # what is told of those that are done
        self.error: PeerError | None = None

    @property
    def target(self) -> Path:
        """Where the checkpoint of the store that is next goes."""
        return self.folder / f"store-{self.left[0].number:04}"


class Snapshots:
    """Those that were asked for, of which the first is being taken."""

    def __init__(self) -> None:
        self.wakeup, self._write_end = os.pipe()  # readable when a thread has done its part
        os.set_blocking(self.wakeup, False)
        self._asked: deque[Taking] = deque()
        self._prepared = threading.Event()
        self._pause_s = 0.0
        self._thread: threading.Thread | None = None  # that prepares a store

    def ask(self, asker: Any, folder: Path, stores: list[Open]) -> None:
        """Has a snapshot taken behind those that were asked for; ``step`` tells when it is over."""
        if len(self._asked) >= ASKED_MAX:
            raise PeerError("busy", "too many snapshots are asked for", BUSY_MS)
        self._asked.append(Taking(asker, folder, stores))

    def step(self, now_ms: int) -> Taking | None:
        """At the end of a turn: what can be done without waiting; a snapshot that is over."""
        if not self._asked:
            return None
        taking = self._asked[0]
        if self._thread is not None:
            if not self._prepared.is_set():
                return None
            os.read(self.wakeup, 1)
            self._thread = None
            self._attempt(taking, self._go_on, now_ms)
        if self._thread is None and taking.left and taking.error is None:
            self._attempt(taking, self._prepare, now_ms)
        if taking.left and taking.error is None:
            return None
        self._asked.popleft()
        return taking

    @property
    def has_more(self) -> bool:
        """Is there one that waits for the next turn to begin?"""
        return bool(self._asked) and self._thread is None

    def close(self) -> None:
        """Waits for the thread: nothing of it is left when the stores are closed."""
        if self._thread is not None:
            self._thread.join()
        os.close(self.wakeup)
        os.close(self._write_end)

    # --- one store ----------------------------------------------------------------------------

    def _attempt(
        self, taking: Taking, do: Callable[[Taking, Open, int], None], now_ms: int
    ) -> None:
        number, store, _ = taking.left[0]
        try:
            if store.is_closed:
                raise PeerError("busy", f"store {number} was closed meanwhile", BUSY_MS)
            do(taking, taking.left[0], now_ms)
        except StoreError as error:
            log.error("no snapshot: %s", error)
            taking.error = PeerError("internal", str(error))
        except PeerError as error:
            taking.error = error

    def _prepare(self, taking: Taking, first: Open, now_ms: int) -> None:
        # Noted here, not with the checkpoint, which would then have a file to write for it.
        taking.time_ms = first.shard.note_snapshot(now_ms)
        first.store.write()
        taking.rounds = 0
        self._write_ahead(taking, first, self._pause_s)

    def _write_ahead(self, taking: Taking, first: Open, pause_s: float) -> None:
        """Has what a store holds in memory written, and goes on when that is done."""
        taking.rounds += 1
        first.store.begin_flush()
        self._prepared.clear()
        target = taking.target if taking.rounds == 1 else None
        arguments = (first.store, target, pause_s, self._on_prepared)
        self._thread = threading.Thread(target=_await_flush, args=arguments, daemon=True)
        self._thread.start()

    def _on_prepared(self) -> None:
        os.write(self._write_end, b"\0")  # before the event, so that whoever sees that finds this
        self._prepared.set()

    def _go_on(self, taking: Taking, first: Open, now_ms: int) -> None:
        if first.store.held_bytes > LITTLE_BYTES and taking.rounds < ROUNDS_MAX:
            self._write_ahead(taking, first, 0.0)
        else:
            self._checkpoint(taking, first)

    def _checkpoint(self, taking: Taking, first: Open) -> None:
        began = time.monotonic()
        first.store.checkpoint(taking.target)
        topics = [told_of(actor, taking.time_ms) for actor in first.shard.topics.values()]
        told = {"number": first.number, "folder": taking.target.name, "topics": topics}
        taking.stores.append(told)
        taking.left.popleft()
        self._pause_s = PAUSE_TIMES * (time.monotonic() - began)


def _await_flush(
    store: Store, target: Path | None, pause_s: float, on_end: Callable[[], None]
) -> None:
    """In a thread of its own: returns when RocksDB has written what it was told to."""
    time.sleep(pause_s)
    try:
        if target is not None:
            shutil.rmtree(target, ignore_errors=True)  # of a snapshot that was broken off
        while store.is_flushing:
            time.sleep(POLL_S)
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
