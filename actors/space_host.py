"""How much room the disk of the data folder has, and whether publishing is held for want of it.

Below the low-water mark nothing more is stored, while reports, clears and deletes go on: they need
a little room themselves, and make much. A disk that is full to the last byte would stop them too,
and nobody could empty a queue any more.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from asterism.errors import PeerError
from asterism.files_host import room_of
from asterism.process_host import fields_of
from asterism.storage.store import Store

OVER_PART: Final = 8  # publishing goes on when an eighth more than the mark is free
LOOK_PART: Final = 8  # looked at before its time when an eighth of the mark has been taken
RETRY_MS: Final = 1_000  # the hint of busy
MOVE_BYTES_MIN: Final = 64 << 20  # to open a store again: what it holds in memory is written then
RECLAIM_MS: Final = 1_000  # between steps to give the room of consumed messages back
STUCK_BYTES_MIN: Final = 4 << 20  # a smaller store has nothing to give back
COMPACT_BYTES_MAX: Final = 512 << 20  # of a store that is compacted for it: a second or two
log = logging.getLogger("asterism.worker")


class FreeSpace:
    """The room of one disk, as it was when it was last looked at."""

    def __init__(
        self, folder: Path, min_free_bytes: int, unwritten: Callable[[], int] = lambda: 0
    ) -> None:
        self._folder = folder
        self._setting = min_free_bytes
        self._unwritten = unwritten  # bytes of messages that are in memory, and in the log
        self._taken = 0  # bytes that were published since the last look
        self.free_bytes = 0
        self.mark_bytes = 0
        self.is_low = False
        self.look()

    def look(self) -> bool:
        """Asks the system, which takes about a microsecond; whether there is room."""
        self._taken = 0
        try:
            self.free_bytes, _, self.mark_bytes = room_of(self._folder, self._setting)
        except OSError:  # not made yet, or away: the stores say so better
            self.is_low = False
            return True
        was_low, mark = self.is_low, self.mark_bytes
        left = self.free_bytes - self._unwritten()  # once RocksDB has written its tables
        self.is_low = mark > 0 and left < (mark + mark // OVER_PART if was_low else mark)
        if self.is_low != was_low:
            what = "is held: the disk is short of room" if self.is_low else "goes on"
            log.warning("publishing %s %s", what, fields_of(**self.told()))
        return not self.is_low

    def can_move(self) -> bool:
        """Is there room to open a store again and to copy a topic? Asked also without a mark."""
        try:
            room = room_of(self._folder, max(self._setting, MOVE_BYTES_MIN))
        except OSError:
            return True
        return room.free_bytes >= room.mark_bytes

    def check(self, size: int) -> None:
        """``busy`` if nothing more may be stored; ``size`` is that of what is asked to be."""
        self._taken += size
        if self._taken * LOOK_PART > self.mark_bytes > 0:
            self.look()
        if self.is_low:
            raise PeerError(
                "busy",
                f"less than {self.mark_bytes / (1 << 20):.3g} MiB is free on the disk of the data "
                "folder, so nothing more is stored: consume, clear or delete, or make room",
                RETRY_MS,
            )

    def told(self) -> dict[str, Any]:
        """The fields that a worker's status shows."""
        return {
            "free_bytes": self.free_bytes,
            "min_free_bytes": self.mark_bytes,
            "publishing_held": self.is_low,
        }


class Reclaiming:
    """Gives the room of consumed messages back to the disk, for one store, while room is short.

    RocksDB deletes by writing that a row is gone, and frees its room when it comes to rewrite the
    file, which on a disk that takes nothing more may be never. So what is in memory is flushed, and
    once much less is held than before, the files are rewritten. After a rewriting of its own that
    found no room, RocksDB refuses every other until there is room for all that it reads; it forgets
    that when it is opened again.
    """

    def __init__(self) -> None:
        self._held_then: int | None = None  # messages, when the files were last rewritten
        self._due_ms = 0
        self._was_opened_again = False

    def is_due(self, now_ms: int) -> bool:
        """Is it time for a step? Then the next is a while later."""
        if now_ms < self._due_ms:
            return False
        self._due_ms = now_ms + RECLAIM_MS
        return True

    def step(self, store: Store, held: int, free_bytes: int) -> bool:
        """Does what can be done now; whether the store has to be opened again for more.

        Raises ``StoreError`` if the store fails by it.
        """
        then = self._held_then
        if then is None or held > then:
            self._held_then = held
        # About what a flush writes beside the old files, which is what is not deleted yet. One that
        # finds no room fails the store, and then it cannot even be opened.
        most = max(then or held, 1)
        if 2 * store.held_bytes * held // most > free_bytes:
            return False
        store.flush()
        is_worth = held == 0 if then is None else 4 * held < 3 * then
        size = store.size_on_disk()
        left = size * held // most
        if not is_worth or size > COMPACT_BYTES_MAX or 2 * left > free_bytes:
            return False
        store.compact()
        is_stuck = size > STUCK_BYTES_MIN and 4 * store.size_on_disk() > 3 * size
        self._was_opened_again = is_stuck and not self._was_opened_again
        self._held_then = then if self._was_opened_again else held
        return self._was_opened_again
