"""Rows in memory, in key order: a store that forgets.

``MemoryRows`` ships for tests (ours and users'), for measuring the core alone, and for embedding a
broker whose messages need not outlive the process. Nothing in it is durable: no file, no commit,
no discard; a write is seen at once, and a crash loses everything.

``SortedRows`` is the structure under it, and under the pending writes of ``store.py``.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from typing import Final

_INSORT_MAX: Final = 32  # new keys put in place one by one; more than that are sorted in
_CHUNK_KEYS: Final = 256  # keys taken from the order at a time, so that a walk copies little
_DEAD_MIN: Final = 1_024  # deleted rows kept before they are worth sweeping out


class SortedRows:
    """A dict of rows that can be walked in key order; it is sorted when walked, not when written.

    A deleted row stays in ``rows`` as ``None``.

    I1  The keys of ``_order`` are the first ``len(_order)`` keys of ``rows``, sorted. A dict keeps
        the order in which its keys first came, so the keys that are not sorted yet are its last
        ones, and writing a row stays a plain dict write. Only ``drop`` and ``sweep`` take keys out.
    """

    __slots__ = ("_order", "rows")

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self._order: list[bytes] = []

    def between(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        """The rows with ``low <= key < high`` in key order, deleted ones (``None``) included.

        The rows may change during the walk: what changes behind it is not seen.
        """
        while True:
            order = self._sorted_keys()
            start = bisect_left(order, low)
            keys = order[start : start + _CHUNK_KEYS]
            rows = self.rows
            for key in keys:
                if key >= high:
                    return
                yield key, rows.get(key)
            if len(keys) < _CHUNK_KEYS:
                return
            low = keys[-1] + b"\x00"  # the smallest key after it

    def drop(self, low: bytes, high: bytes) -> None:
        """Takes the rows with ``low <= key < high`` out, deleted ones included."""
        order = self._sorted_keys()
        inside = slice(bisect_left(order, low), bisect_left(order, high))
        for key in order[inside]:
            del self.rows[key]
        del order[inside]

    def sweep(self) -> None:
        """Takes the deleted rows out."""
        self.rows = {key: value for key, value in self.rows.items() if value is not None}
        self._order = [key for key in self._order if key in self.rows]

    def _sorted_keys(self) -> list[bytes]:
        order = self._order
        fresh_count = len(self.rows) - len(order)
        if fresh_count:
            fresh = islice(reversed(self.rows), fresh_count)
            if fresh_count <= _INSORT_MAX:
                for key in fresh:
                    insort(order, key)
            else:
                order.extend(fresh)
                order.sort()
        return order


class MemoryRows:
    """The rows of one store, in memory; a write is seen at once.

    ``get``, ``put`` and ``delete`` cost a dict operation; ``scan`` sorts what is new since another.
    """

    def __init__(self) -> None:
        self._sorted = SortedRows()
        self._dead = 0  # at least the number of deleted rows that are still in the dict

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or ``None``."""
        return self._sorted.rows.get(key)

    def scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows with ``low <= key < high``, in key order."""
        for key, value in self._sorted.between(low, high):
            if value is not None:
                yield key, value

    def put(self, key: bytes, value: bytes) -> None:
        """Writes a row."""
        self._sorted.rows[key] = value

    def delete(self, key: bytes) -> None:
        """Deletes a row; a row that is not there is no error."""
        rows = self._sorted.rows
        if rows.get(key) is None:
            return
        rows[key] = None
        self._dead += 1
        # Once the dead outnumber the living: each sweep is paid for by as many deletes.
        if self._dead > _DEAD_MIN and self._dead * 2 > len(rows):
            self._sorted.sweep()
            self._dead = 0

    def write_all(self, rows: dict[bytes, bytes | None]) -> None:
        """Writes rows, and deletes those of value ``None``."""
        for key, value in rows.items():
            if value is None:
                self.delete(key)
            else:
                self._sorted.rows[key] = value

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Deletes the rows with ``low <= key < high``."""
        if low < high:
            self._sorted.drop(low, high)
