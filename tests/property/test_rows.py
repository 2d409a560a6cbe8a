"""Any history of reads, writes, commits and reopenings, beside a dict that is sorted when asked.

``Store`` and ``MemoryRows`` live through the same histories. A scan may be held open over part of a
history: what it gives is in key order, and every row that nobody touched meanwhile is there.
"""

import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.rows import Rows
from asterism.storage import memory
from asterism.storage.memory import MemoryRows
from asterism.storage.store import Store

LOW, HIGH = b"\x01", b"\x02"

# Few keys, so that histories meet; among them neighbours, prefixes of each other, and the ends.
TAILS: Final = b" |\x00|\x00\x00|\x01|a|a\x00|aa|ab|b|ba|c|\xfe\xff|\xff|\xff\x00|\xff\xff".split(
    b"|"
)
KEYS: Final = [LOW + tail.strip(b" ") for tail in TAILS]

Row = tuple[bytes, bytes]


class Step(NamedTuple):
    """One thing that happens; most need fewer than two arguments."""

    name: str
    first: bytes = b""
    second: bytes = b""


keys = st.sampled_from(KEYS)
bounds = st.sampled_from([*KEYS, HIGH])
puts = st.builds(Step, st.just("put"), keys, st.binary(max_size=3))
steps = st.one_of(
    puts,
    puts,
    st.builds(Step, st.sampled_from(["get", "delete"]), keys),
    st.builds(Step, st.sampled_from(["scan", "hold", "delete_range"]), bounds, bounds),
    st.builds(Step, st.sampled_from(["release", "write", "sync", "commit", "discard", "reopen"])),
)
histories = st.lists(steps, max_size=40)


class Auditor:
    """The rows as they should be, and a scan that is held open, beside the rows under test."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.written: dict[bytes, bytes] = {}
        self.seen: dict[bytes, bytes] = {}  # with this turn's writes
        self.held: Iterator[Row] | None = None
        self.held_taken: list[Row] = []
        self.held_expected: list[Row] = []
        self.touched: set[bytes] = set()

    def run(self, history: list[Step]) -> None:
        for step in history:
            self.look(step)
            self.change(step)
            self.end_turn(step)
            self.advance_held()
        self.release()
        assert list(self.rows.scan(LOW, HIGH)) == self.expected(LOW, HIGH)
        for key in KEYS:
            assert self.rows.get(key) == self.seen.get(key)

    def expected(self, low: bytes, high: bytes) -> list[Row]:
        return sorted((key, value) for key, value in self.seen.items() if low <= key < high)

    def look(self, step: Step) -> None:
        match step.name:
            case "get":
                assert self.rows.get(step.first) == self.seen.get(step.first)
            case "scan":
                expected = self.expected(step.first, step.second)
                assert list(self.rows.scan(step.first, step.second)) == expected
            case "hold":
                self.release()
                self.held = self.rows.scan(step.first, step.second)
                self.held_expected = self.expected(step.first, step.second)
            case "release":
                self.release()

    def change(self, step: Step) -> None:
        match step.name:
            case "put":
                self.rows.put(step.first, step.second)
                self.seen[step.first] = step.second
                self.touched.add(step.first)
            case "delete":
                self.rows.delete(step.first)
                self.seen.pop(step.first, None)
                self.touched.add(step.first)
            case "delete_range":
                self.rows.delete_range(step.first, step.second)
                for key in KEYS:
                    if step.first <= key < step.second:
                        self.seen.pop(key, None)
                        self.touched.add(key)

    def end_turn(self, step: Step) -> None:
        if not isinstance(self.rows, Store):
            return
        match step.name:
            case "write":
                self.rows.write()
                self.written = dict(self.seen)
            case "sync":
                self.rows.sync()
            case "commit":
                self.rows.commit()
                self.written = dict(self.seen)
            case "discard":
                self.rows.discard()
                self.touched.update(self.seen, self.written)
                self.seen = dict(self.written)
            case "reopen":
                self.release()
                self.rows.close()
                self.rows = Store(self.rows.folder)
                self.seen = dict(self.written)

    def advance_held(self) -> None:
        """One row of the held scan, so that it is somewhere in the middle when rows change."""
        if self.held is not None:
            self.held_taken.extend(islice(self.held, 1))

    def release(self) -> None:
        if self.held is not None:
            rows = [*self.held_taken, *self.held]
            found = [key for key, _ in rows]
            assert found == sorted(set(found))
            untouched = [row for row in rows if row[0] not in self.touched]
            assert untouched == [row for row in self.held_expected if row[0] not in self.touched]
        self.held = None
        self.held_taken = []
        self.touched = set()


@settings(max_examples=80, deadline=None)
@given(histories)
def test_a_store_is_a_sorted_dict_through_any_history(history: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        auditor = Auditor(Store(Path(folder)))
        try:
            auditor.run(history)
        finally:
            assert isinstance(auditor.rows, Store)
            auditor.rows.close()


@settings(max_examples=300, deadline=None)
@given(histories)
def test_rows_in_memory_are_a_sorted_dict_through_any_history(history: list[Step]) -> None:
    Auditor(MemoryRows()).run(history)


@settings(max_examples=300, deadline=None)
@given(histories, st.integers(1, 3), st.integers(0, 3), st.integers(0, 3))
def test_rows_in_memory_are_so_at_every_bound_of_theirs(
    history: list[Step], chunk_keys: int, insort_max: int, dead_min: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_CHUNK_KEYS", chunk_keys)
        patch.setattr(memory, "_INSORT_MAX", insort_max)
        patch.setattr(memory, "_DEAD_MIN", dead_min)
        Auditor(MemoryRows()).run(history)
