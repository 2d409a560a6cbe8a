"""Which topics of a worker's stores have a store of their own, and moving them there and back.

A move that fails is no reason to end anything: the topic stays where it was, and is tried again
later, ever less often. How a topic is moved stands in ``storage/moving.py``.
"""

import logging
from collections.abc import Callable, Container
from pathlib import Path
from typing import Final, NamedTuple

from asterism.errors import PeerError
from asterism.files_host import sync_folder
from asterism.process_host import fields_of
from asterism.router.placement import store_of
from asterism.storage.moving import (
    Dedicated,
    MoveError,
    clear_unused,
    dedicated_in,
    first_number,
    forget,
    mend_names,
    move_back,
    move_out,
    topics_in,
    unnamed_in,
    wants_own_store,
)
from asterism.storage.store import Store, StoreError

PAUSE_MS_MIN: Final = 2_000  # before a move that failed is tried again; it doubles
PAUSE_MS_MAX: Final = 60_000
UNNAMED_MS: Final = 1_000  # the hint of busy for a topic that cannot be told
log = logging.getLogger("asterism.worker")


class _Late(NamedTuple):
    """A move that failed: when it is tried again, and how long it waited for that."""

    due_ms: int
    pause_ms: int


class Moves:
    """The dedicated topics of a data folder, as one worker sees them."""

    def __init__(self, home: Path, count: int, default: bool, has_room: Callable[[], bool]) -> None:
        self._home = home
        self._count = count
        self._default = default  # of the setting ``dedicated``
        self._has_room = has_room
        self._late: dict[str, _Late] = {}
        self._unnamed: frozenset[int] = frozenset()  # folders of topics whose names are not known

    def settle(
        self, number: int, store: Store, running: Container[str], now_ms: int
    ) -> list[Dedicated]:
        """Moves what has to be moved, while nobody has the topics of a store open.

        Those that have a store of their own then; ``running`` ones are left as they are. Raises
        ``StoreError`` where the shared store itself fails.
        """
        self._sync_names()
        self._mend_names()
        clear_unused(store)
        for held in self._of(number):
            if held.topic not in running and self._is_due(held.topic, now_ms):
                self._move_back(store, held, now_ms)
        for topic in topics_in(store):
            if wants_own_store(store, topic, self._default) and self._is_due(topic, now_ms):
                self._move_out(store, topic, now_ms)
        found = self._of(number)
        for held in found:
            forget(store, held.topic)  # void, if a move was broken off after the folder was there
        for topic in [topic for topic, late in self._late.items() if late.due_ms <= now_ms]:
            if store_of(topic, self._count) == number:
                del self._late[topic]  # it need not be moved any more
        return found

    def _sync_names(self) -> None:
        """Syncs the folder, so that a power cut cannot undo a rename of a process that was killed
        before it could sync it itself."""
        try:
            if self._home.is_dir():
                sync_folder(self._home)
        except OSError as error:
            raise StoreError(f"{self._home}: cannot be synced: {error.strerror}") from error

    def may_begin(self, topic: str, now_ms: int) -> bool:
        """Is it time to move a topic, and room for it? Without room it is put off.

        Asked before its store is closed: on a full disk that might not open again.
        """
        if not self._is_due(topic, now_ms):
            return False
        if not self._has_room():
            self._put_off(topic, now_ms, "the disk is short of room")
            return False
        return True

    def wait_with(self, topic: str, now_ms: int) -> None:
        """Leaves a topic where it is for a while: somebody else has just failed to move it."""
        self._late[topic] = _Late(now_ms + PAUSE_MS_MAX, PAUSE_MS_MAX)

    def _is_due(self, topic: str, now_ms: int) -> bool:
        late = self._late.get(topic)
        return late is None or late.due_ms <= now_ms

    def due(self, now_ms: int) -> list[str]:
        """Topics whose moves failed, and are to be tried again now."""
        if not self._late:
            return []
        due = [topic for topic, late in self._late.items() if late.due_ms <= now_ms]
        return due if due and self._has_room() else []

    def check_name(self, topic: str) -> None:
        """``busy`` for a topic that may be one of those whose names cannot be read.

        It must not be made anew beside them: what it took would be void once the name is known.
        """
        if self._unnamed and first_number(topic) in self._unnamed:
            raise PeerError(
                "busy",
                "the topic may have a store of its own whose topic.json cannot be read; the "
                "worker's log says what to do",
                UNNAMED_MS,
            )

    def _of(self, number: int) -> list[Dedicated]:
        held_in = dedicated_in(self._home)
        return [held for held in held_in if store_of(held.topic, self._count) == number]

    def _mend_names(self) -> None:
        for held in mend_names(self._home, _tell_unnamed):
            log.warning(
                "a topic.json was empty or damaged, and is mended from the topic's store %s",
                fields_of(topic=held.topic, folder=held.folder),
            )
        self._unnamed = frozenset(int(folder.name) for folder in unnamed_in(self._home))

    def _move_back(self, store: Store, held: Dedicated, now_ms: int) -> None:
        if not held.is_there:
            log.error("%s %s", held.missing, fields_of(topic=held.topic))
            return
        try:
            with Store(held.store) as own:
                stays = wants_own_store(own, held.topic, self._default)
        except StoreError as error:
            # That topic alone is away: its own process says so, and tries again.
            log.error("%s %s", error, fields_of(topic=held.topic))
            return
        if not stays:
            log.info("a topic is dedicated no longer %s", fields_of(topic=held.topic))
            self._attempt(held.topic, now_ms, lambda: move_back(store, held, self._has_room))

    def _move_out(self, store: Store, topic: str, now_ms: int) -> None:
        log.info("a topic is dedicated %s", fields_of(topic=topic))
        self._attempt(topic, now_ms, lambda: move_out(store, topic, self._home, self._has_room))

    def _attempt(self, topic: str, now_ms: int, move: Callable[[], object]) -> None:
        try:
            move()
        except (MoveError, OSError) as error:
            self._put_off(topic, now_ms, error)
        except StoreError as error:
            self._put_off(topic, now_ms, error)
            raise
        else:
            self._late.pop(topic, None)

    def _put_off(self, topic: str, now_ms: int, why: object) -> None:
        before = self._late.get(topic)
        pause_ms = PAUSE_MS_MIN if before is None else min(2 * before.pause_ms, PAUSE_MS_MAX)
        self._late[topic] = _Late(now_ms + pause_ms, pause_ms)
        log.error(
            "a topic stays where it is, and is moved later: %s %s",
            why,
            fields_of(topic=topic, retry_ms=pause_ms),
        )


def _tell_unnamed(folder: Path, why: str) -> None:
    log.error(
        'a topic is away: its topic.json is missing or damaged: %s. Write {"topic": "its name"} '
        "into the file, and restart the broker %s",
        why,
        fields_of(folder=folder),
    )
