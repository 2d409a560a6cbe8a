"""Any snapshots, any retention, any restarts: a stream reads every row that is there for it, once.

The machine plays a broker whose topics come and go, snapshots that are taken and deleted, and a
query that plans, logs, reads, commits, and dies anywhere in between, as Spark's does: what was
planned and logged is read again with the same offsets. Rows have positions that only grow: one
each, as messages do by their sequence, or several together, as endings of one millisecond do.
"""

import json
from collections import Counter
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from asterism.spark.stream_plan import (
    APART_MS,
    IDLE_SNAPSHOTS_MAX,
    Extent,
    Mark,
    Offset,
    Piece,
    Seen,
    StreamError,
    cut,
    latest,
    next_offset,
    offset_from,
    plan,
    read_instead,
    seen_in,
    split,
)

TOPICS = st.sampled_from("ab")
NEAR_MS = 5  # snapshots that are so near may be in another order than their times say


class Row(NamedTuple):
    topic: str
    position: int
    identity: int


class Taken(NamedTuple):
    seen: Seen
    rows: frozenset[Row]


class Streaming(RuleBasedStateMachine):
    """One query over the snapshots of one broker."""

    @initialize(together=st.booleans())
    def begin(self, together: bool) -> None:
        self.together = together  # several rows have one position, which time alone moves
        self.next: dict[str, int] = {}
        self.live: set[Row] = set()
        self.names: set[str] = set()
        self.made = self.taken = 0
        self.time_ms = 1
        self.snapshots: list[Taken] = []
        self.start = Offset("messages")
        self.end: Offset | None = None
        self.read: Counter[Row] = Counter()
        self.owed: set[Row] = set()
        self.is_orderly = True  # every snapshot was taken after all that are before it

    # --- the broker -----------------------------------------------------------------------------

    @rule(topic=TOPICS, count=st.integers(1, 4))
    def publish(self, topic: str, count: int) -> None:
        self.names.add(topic)
        self.next.setdefault(topic, 1)
        for _ in range(count):
            self.made += 1
            self.live.add(Row(topic, self.next[topic], self.made))
            self.next[topic] += not self.together

    @rule(by=st.integers(1, 3))
    def pass_time(self, by: int) -> None:
        if self.together:
            self.next = {topic: position + by for topic, position in self.next.items()}

    @rule(which=st.randoms(use_true_random=False), share=st.floats(0, 1))
    def consume(self, which: Random, share: float) -> None:
        self.live = {row for row in sorted(self.live) if which.random() > share}

    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        self.names.discard(topic)
        self.live = {row for row in self.live if row.topic != topic}

    @rule(gap_ms=st.sampled_from((0, 1, NEAR_MS, APART_MS + 1)))
    def take_snapshot(self, gap_ms: int) -> None:
        self.time_ms += gap_ms
        self._take(self.time_ms)

    @precondition(lambda self: len(self.snapshots) > 1)
    @rule(before_ms=st.integers(1, NEAR_MS))
    def take_snapshot_that_was_begun_before(self, before_ms: int) -> None:
        self.is_orderly = False
        self._take(max(self.time_ms - before_ms, 1))

    def _take(self, time_ms: int) -> None:
        self.taken += 1
        mark = Mark(time_ms, f"{self.taken:06}")
        extents = {}
        for topic in self.names:
            positions = [row.position for row in self.live if row.topic == topic]
            extents[topic] = Extent(min(positions, default=self.next[topic]), self.next[topic])
        rows = frozenset(row for row in self.live if row.position < self.next[row.topic])
        self.snapshots.append(Taken(Seen(mark, extents), rows))
        self.snapshots.sort(key=lambda taken: taken.seen.mark)
        self.owed |= rows

    @rule(count=st.integers(1, 3))
    def retain(self, count: int) -> None:
        """Deletes the oldest; the newest stays."""
        for taken in self.snapshots[:-1][:count]:
            self.snapshots.remove(taken)
            left = {row for other in self.snapshots for row in other.rows}
            self.owed -= taken.rows - left - set(self.read)

    # --- the query --------------------------------------------------------------------------------

    @property
    def seen(self) -> list[Seen]:
        return [taken.seen for taken in self.snapshots]

    def rows_of(self, piece: Piece) -> list[Row]:
        taken = next(taken for taken in self.snapshots if taken.seen.mark == piece.mark)
        wanted = (row for row in taken.rows if row.topic == piece.topic)
        return sorted(row for row in wanted if piece.low <= row.position < piece.high)

    def count(self, piece: Piece, max_rows: int | None) -> tuple[int, int]:
        return cut((row.position for row in self.rows_of(piece)), piece.high, max_rows)

    @precondition(lambda self: self.end is None)
    @rule(max_rows=st.none() | st.integers(1, 5))
    def plan_batch(self, max_rows: int | None) -> None:
        end = next_offset(self.start, self.seen, max_rows, self.count)
        if end != self.start:
            # As the checkpoint keeps it.
            self.end = offset_from(json.loads(json.dumps(end.as_json())), "messages")

    @precondition(lambda self: self.end is not None)
    @rule(deleted=st.integers(0, 2), dies=st.booleans())
    def read_batch(self, deleted: int, dies: bool) -> None:
        """Snapshots may go between planning and reading, and all may be in vain."""
        assert self.end is not None
        try:
            pieces = plan(self.start, self.end, self.seen)
            if deleted:
                self.retain(deleted)
            rows = [row for piece in pieces for row in self._read(piece)]
        except StreamError:
            assert not self.is_orderly  # else the newest one has it all
            self.take_snapshot(NEAR_MS)
            return
        if dies:
            return
        self.read.update(rows)
        self.start, self.end = self.end, None

    def _read(self, piece: Piece) -> list[Row]:
        if all(taken.seen.mark != piece.mark for taken in self.snapshots):
            instead = read_instead(piece, self.seen)
            return [] if instead is None else self.rows_of(instead)
        return self.rows_of(piece)

    # --- what holds -------------------------------------------------------------------------------

    @invariant()
    def none_is_read_twice(self) -> None:
        assert all(count == 1 for count in getattr(self, "read", Counter()).values())

    def teardown(self) -> None:
        """In the end, all that some snapshot has kept for the query has been read."""
        if not hasattr(self, "read"):
            return
        for _ in range(3 + 3 * IDLE_SNAPSHOTS_MAX):
            if self.end is None:
                self.plan_batch(None)
            if self.end is None:
                break
            self.read_batch(0, False)
        else:
            pytest.fail("the query does not come to an end")
        self.none_is_read_twice()
        if self.is_orderly:
            assert not self.owed - set(self.read), "a row that was there for it was not read"


TestStreaming = Streaming.TestCase


# --- one thing at a time --------------------------------------------------------------------------


def seen(time_ms: int, **ends: int) -> Seen:
    return Seen(Mark(time_ms, str(time_ms)), {topic: Extent(1, end) for topic, end in ends.items()})


def every_row(piece: Piece, max_rows: int | None) -> tuple[int, int]:
    return cut(range(piece.low, piece.high), piece.high, max_rows)


def no_row(piece: Piece, max_rows: int | None) -> tuple[int, int]:
    return piece.high, 0


BEGIN = Offset("messages")


def test_each_range_is_read_from_the_oldest_snapshot_that_has_it() -> None:
    snapshots = [seen(10, a=5), seen(20, a=9, b=3)]
    end = next_offset(BEGIN, snapshots, None, every_row)
    assert plan(BEGIN, end, snapshots) == [
        Piece(Mark(10, "10"), "a", 1, 5),
        Piece(Mark(20, "20"), "a", 5, 9),
        Piece(Mark(20, "20"), "b", 1, 3),
    ]
    assert next_offset(end, snapshots, None, every_row) is end


def test_what_is_deleted_between_planning_and_reading_is_read_from_a_newer_snapshot() -> None:
    snapshots = [seen(10, a=5), seen(20, a=9)]
    end = next_offset(BEGIN, snapshots[:1], None, every_row)
    assert plan(BEGIN, end, snapshots[1:]) == [Piece(Mark(20, "20"), "a", 1, 5)]
    (piece,) = plan(BEGIN, end, snapshots)
    assert read_instead(piece, snapshots[1:]) == Piece(Mark(20, "20"), "a", 1, 5)


def test_of_a_topic_that_was_deleted_with_its_last_snapshot_nothing_is_read() -> None:
    planned, later = seen(10, a=5, b=5), seen(20, b=5)
    end = next_offset(BEGIN, [planned], None, every_row)
    assert plan(BEGIN, end, [later]) == [Piece(Mark(20, "20"), "b", 1, 5)]
    assert read_instead(Piece(planned.mark, "a", 1, 5), [later]) is None


@pytest.mark.parametrize("left", [[], [seen(5, a=3)]])
def test_a_range_that_no_snapshot_has_any_more_is_an_error_and_no_gap(left: list[Seen]) -> None:
    end = next_offset(BEGIN, [seen(10, a=5)], None, every_row)
    with pytest.raises(StreamError, match="Take another snapshot"):
        plan(BEGIN, end, left)
    with pytest.raises(StreamError, match="Take another snapshot"):
        read_instead(Piece(Mark(10, "10"), "a", 1, 5), left)


def test_no_more_rows_than_asked_for_are_planned_and_the_rest_comes_after_them() -> None:
    snapshots, offset, read = [seen(10, a=5, b=8), seen(20, a=12, b=8)], BEGIN, []
    while (end := next_offset(offset, snapshots, 3, every_row)) is not offset:
        pieces = plan(offset, end, snapshots)
        assert 0 < sum(piece.high - piece.low for piece in pieces) <= 3
        read += [(p.topic, at) for p in pieces for at in range(p.low, p.high)]
        offset = end
    assert sorted(read) == [("a", at) for at in range(1, 12)] + [("b", at) for at in range(1, 8)]


def test_a_snapshot_with_nothing_new_makes_no_batch_but_many_make_one() -> None:
    snapshots = [seen(time_ms, a=time_ms) for time_ms in range(10, 10 + IDLE_SNAPSHOTS_MAX)]
    assert next_offset(BEGIN, snapshots[:-1], None, no_row) is BEGIN
    end = next_offset(BEGIN, snapshots, None, no_row)
    assert (end.mark, end.topics) == (snapshots[-1].mark, {})


def test_latest_begins_behind_all_that_is_there() -> None:
    snapshots = [seen(10, a=5, gone=4), seen(20, a=9)]
    start = latest("messages", snapshots)
    assert next_offset(start, snapshots, None, every_row) is start
    later = [*snapshots, seen(30, a=10, new=3)]
    end = next_offset(start, later, None, every_row)
    assert [piece[1:] for piece in plan(start, end, later)] == [("a", 9, 10), ("new", 1, 3)]
    assert latest("messages", []) == BEGIN


def test_a_deleted_topic_is_forgotten_in_time_and_goes_on_counting_when_it_is_back() -> None:
    first = seen(10, a=5, b=5)
    offset = next_offset(BEGIN, [first], None, every_row)
    for time_ms in (20, 20 + APART_MS, 22 + APART_MS):
        offset = next_offset(offset, [seen(time_ms, b=offset.topics["b"] + 1)], None, every_row)
    assert dict(offset.topics) == {"b": 8} and not offset.gone
    back = Seen(Mark(10 * APART_MS, "z"), {"a": Extent(6, 8)})
    end = next_offset(offset, [first, back], None, every_row)
    assert plan(offset, end, [first, back]) == [Piece(back.mark, "a", 6, 8)]


def test_a_deleted_topic_is_read_from_the_snapshots_that_still_have_it() -> None:
    snapshots = [seen(10, a=5), seen(20, b=2), seen(20 + 2 * APART_MS, b=3)]
    end = next_offset(BEGIN, snapshots, None, every_row)
    assert plan(BEGIN, end, snapshots)[0] == Piece(Mark(10, "10"), "a", 1, 5)


def test_a_snapshot_that_was_read_is_not_looked_at_again() -> None:
    first, later = seen(10, a=5), seen(20 + APART_MS, b=3)
    forgotten = Offset("messages", later.mark, later.mark, {"b": 3})
    assert next_offset(forgotten, [first, later], None, every_row) is forgotten


def test_a_topic_that_is_missing_in_one_of_two_snapshots_of_one_time_is_not_forgotten() -> None:
    """Two were taken at once, and the later one has this store from before the topic was made."""
    offset = next_offset(BEGIN, [seen(10, a=5)], None, every_row)
    offset = next_offset(offset, [seen(11, b=2)], None, every_row)
    end = next_offset(offset, [third := seen(12, a=6, b=2)], None, every_row)
    assert plan(offset, end, [third]) == [Piece(third.mark, "a", 5, 6)]


def test_what_is_read_instead_is_read_from_one_that_has_it_all() -> None:
    piece = Piece(Mark(10, "10"), "a", 1, 5)
    instead = read_instead(piece, [seen(11, a=4), seen(12, a=7)])
    assert instead == piece._replace(mark=Mark(12, "12"))


def test_a_broker_that_was_put_back_is_an_error() -> None:
    offset = next_offset(BEGIN, [seen(10, a=50)], None, every_row)
    soon, late = seen(20, a=30), seen(20 + APART_MS, a=30)
    assert next_offset(offset, [soon], None, every_row) is offset
    with pytest.raises(StreamError, match="put back"):
        next_offset(offset, [late], None, every_row)


def test_a_checkpoint_of_another_table_or_version_is_refused() -> None:
    kept = BEGIN.as_json()
    assert offset_from(kept, "messages") == BEGIN
    with pytest.raises(StreamError, match="checkpoint of its own"):
        offset_from(kept, "history")
    with pytest.raises(StreamError, match="version"):
        offset_from({**kept, "version": 2}, "messages")


def test_a_manifest_is_read_by_the_table() -> None:
    mark = Mark(10, "10")
    topic = {"first_sequence": 3, "next_sequence": 9, "history_until_ms": 1_000}
    assert seen_in(mark, {"a": topic}, "messages").topics == {"a": Extent(3, 9)}
    assert seen_in(mark, {"a": topic}, "history").topics == {"a": Extent(0, 1_000)}
    with pytest.raises(StreamError, match="earlier version"):
        seen_in(mark, {"a": {"first_sequence": 3, "next_sequence": 9}}, "history")


@given(st.lists(st.integers(0, 20)).map(sorted), st.integers(1, 10))
def test_a_cut_leaves_rows_of_one_position_together(positions: list[int], most: int) -> None:
    end, rows = cut(positions, 21, most)
    within = [position for position in positions if position < end]
    assert len(within) == rows
    assert rows <= most or len(set(within)) == 1
    assert (rows > 0) == bool(positions)
    assert (end == 21) if len(positions) <= most else (end <= 21)


def test_a_piece_is_split_where_asked() -> None:
    piece = Piece(Mark(1, "1"), "a", 5, 20)
    assert [part[2:] for part in split(piece, [1, 5, 10, 15, 20])] == [(5, 10), (10, 15), (15, 20)]
