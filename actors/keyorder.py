"""The order of ordering keys: the live messages of each key, by their place in its order.

A durable message has a ``k`` row in the list in which it waits; push and online messages are kept
here, in memory. Without this, an earlier message of a worse priority could not be found behind the
windows. What a message means to a receiver is not known here: see ``ordering.py``.

I1 A live message with a key is in its order, unless it is delayed, parked, or was accepted by an
   earlier version. What is found there may be stale, so whoever asks looks at the message.
I2 Before a place that was *passed* for a receiver there is nothing of the key that counts for it.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from asterism import limits
from asterism.rows import Rows
from asterism.storage.keys import TopicKeys, number_at_end, position_of

PUSHED: Final = -1  # the list of push messages
ONLINE: Final = -2  # and of online ones


class KeyOrder:
    """The keys of one topic."""

    def __init__(self, rows: Rows, keys: TopicKeys) -> None:
        self._rows = rows
        self._keys = keys
        self._memory: dict[tuple[int, str], list[int]] = {}  # sequences, in order
        # By key: the list and the receiver, up to which place nothing counts.
        self._passed: dict[str, dict[tuple[int, int], int]] = {}
        self._epoch = 0  # of the audiences for which ``_passed`` holds

    def put(self, list_number: int, key: str, rank: int, sequence: int) -> None:
        """A durable message has its place in the order of its key."""
        position = position_of(rank)
        self._rows.put(self._row(list_number, key, position), sequence.to_bytes(8, "big"))
        self._came(key, position)

    def delete(self, list_number: int, key: str, rank: int) -> None:
        """A durable message has its place no longer."""
        self._rows.delete(self._row(list_number, key, position_of(rank)))

    def move(self, list_number: int, key: str, before: int, rank: int, sequence: int) -> None:
        """A durable message waits at a rank, and was at another before."""
        if position_of(before) != position_of(rank):
            self.delete(list_number, key, before)
        self.put(list_number, key, rank, sequence)

    def enter(self, list_number: int, key: str, sequence: int) -> None:
        """A push or online message waits: its place is its sequence, for as long as it lives."""
        insort(self._memory.setdefault((list_number, key), []), sequence)
        self._came(key, sequence)

    def leave(self, list_number: int, key: str, sequence: int) -> None:
        """A push or online message is over; one that was delayed until then never entered."""
        order = self._memory.get((list_number, key), [])
        at = bisect_left(order, sequence)
        if order[at : at + 1] == [sequence]:
            del order[at]
            if not order:
                del self._memory[list_number, key]

    def before(
        self, list_number: int, key: str, start: int, position: int
    ) -> Iterator[tuple[int, int]]:
        """What is in a list between two places of a key: place and sequence of each."""
        if list_number < 0:
            order = self._memory.get((list_number, key), [])
            for sequence in order[bisect_left(order, start) : bisect_left(order, position)]:
                yield sequence, sequence
            return
        low, high = (self._row(list_number, key, place) for place in (start, position))
        for row_key, row in self._rows.scan(low, high):
            yield number_at_end(row_key), int.from_bytes(row, "big")

    def _row(self, list_number: int, key: str, position: int) -> bytes:
        digest = blake2b(key.encode(), digest_size=16).digest()
        return self._keys.keyed(list_number, digest, position)

    # --- what was passed --------------------------------------------------------------------

    def passed(self, key: str, list_number: int, receiver: int, epoch: int) -> int:
        """From which place on a list must be looked at for a receiver."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._passed.clear()
        return self._passed.get(key, {}).get((list_number, receiver), 0)

    def note_passed(self, key: str, list_number: int, receiver: int, position: int) -> None:
        if key not in self._passed and len(self._passed) >= limits.KEYS_PASSED_MAX:
            self._passed.clear()
        self._passed.setdefault(key, {})[list_number, receiver] = position

    def _came(self, key: str, position: int) -> None:
        """A message came to a place: what was passed behind it is to be looked at again."""
        passed = self._passed.get(key)
        if passed is not None and any(reached > position for reached in passed.values()):
            del self._passed[key]

    def forget_passed(self) -> None:
        """A receiver was moved: it may want again what it has done."""
        self._passed.clear()

    def forget_all(self) -> None:
        """The topic was cleared, and its rows with it."""
        self._memory.clear()
        self._passed.clear()
