"""What a stream reads next: from an offset and the snapshots that are there, to ranges. Pure.

A *position* of a topic is a number below which everything has been read. In ``messages`` it is a
sequence, and a snapshot is complete up to its topic's ``next_sequence``; in ``history`` it is a
time in milliseconds, and a snapshot is complete up to its topic's ``history_until_ms``: what ends
later is filed at that time or after it. Both only grow, under one topic *name*: a topic that is
deleted and made again, or gets a store of its own, goes on counting where it was.

Each range is read from the oldest snapshot that has it and is still there. So a message is read as
it was in the first snapshot after it was published, a query that was away for a while misses
nothing that a snapshot has kept for it, and whatever retention deletes on the way is read from the
next newer one.

I1  Ranges of one topic never overlap, in one batch or in different ones: what is read is read once.
I2  Positions never go back, whichever snapshots come, go, or turn up late.
I3  A snapshot at or before the mark is never looked at again, so a topic may be forgotten once no
    snapshot after the mark can have it at an old position.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

TABLES: Final = {
    # table -> the fields of a topic in the manifest: its first position there, and its end.
    "messages": ("first_sequence", "next_sequence"),
    "history": (None, "history_until_ms"),
}
OFFSET_VERSION: Final = 1
# Two snapshots that are taken at the same time may have their stores in another order than their
# times say. What is decided by one snapshot's being later waits until it is later by this much,
# which is more than a snapshot may take.
APART_MS: Final = 1_800_000
# While nothing happens, snapshots come all the same. A batch of no rows for each would be waste;
# none at all would leave more and more of them to be looked at in each batch.
IDLE_SNAPSHOTS_MAX: Final = 32


class StreamError(Exception):
    """Why a stream cannot go on, and what to do."""


class Mark(NamedTuple):
    """A snapshot's place in the order of all of them."""

    time_ms: int
    name: str


NOTHING: Final = Mark(0, "")


class Extent(NamedTuple):
    """What a snapshot has of a topic: positions from ``first``, up to but not ``end``."""

    first: int
    end: int


@dataclass(frozen=True)
class Seen:
    """What planning needs to know of a snapshot."""

    mark: Mark
    topics: Mapping[str, Extent]


@dataclass(frozen=True)
class Offset:
    """How far a query has read."""

    table: str
    mark: Mark = NOTHING  # the last snapshot of which all has been read
    until: Mark = NOTHING  # the newest one that was there when this was planned
    topics: Mapping[str, int] = field(default_factory=dict)  # positions
    gone: Mapping[str, int] = field(default_factory=dict)  # topic -> in no snapshot since this time

    def as_json(self) -> dict[str, Any]:
        return {
            "version": OFFSET_VERSION,
            "table": self.table,
            "mark": self.mark._asdict(),
            "until": self.until._asdict(),
            "topics": dict(self.topics),
            "gone": dict(self.gone),
        }


class Piece(NamedTuple):
    """A range of one topic, and the snapshot to read it from."""

    mark: Mark
    topic: str
    low: int
    high: int


# Counts the rows of a piece, up to so many (none: is there one?): its end then, and its rows.
Count = Callable[[Piece, int | None], tuple[int, int]]


def offset_from(value: Mapping[str, Any], table: str) -> Offset:
    """The offset that a checkpoint has kept."""
    if value.get("version") != OFFSET_VERSION:
        raise StreamError(
            "the checkpoint of this query is of another version of Asterism. Begin a new one."
        )
    if value["table"] != table:
        raise StreamError(
            f"the checkpoint of this query is of the table {value['table']!r}, and it now asks for "
            f"{table!r}. Give each query a checkpoint of its own."
        )
    mark, until = Mark(**value["mark"]), Mark(**value["until"])
    return Offset(table, mark, until, value["topics"], value["gone"])


def seen_in(mark: Mark, topics: Mapping[str, Mapping[str, Any]], table: str) -> Seen:
    """What a manifest says of its topics, as one table has them."""
    first, end = TABLES[table]
    extents = {}
    for name, told in topics.items():
        if end not in told:
            raise StreamError(
                f"the snapshot {mark.name} does not say up to which time the history of {name!r} "
                "is complete: it was taken by an earlier version of Asterism. Remove it."
            )
        extents[name] = Extent(0 if first is None else int(told[first]), int(told[end]))
    return Seen(mark, extents)


def latest(table: str, snapshots: Sequence[Seen]) -> Offset:
    """The offset at which everything that is in a snapshot by now counts as read."""
    if not snapshots:
        return Offset(table)
    newest = snapshots[-1]
    topics: dict[str, int] = {}
    for seen in snapshots:
        for name, extent in seen.topics.items():
            topics[name] = max(topics.get(name, 0), extent.end)
    gone = {name: newest.mark.time_ms for name in topics if name not in newest.topics}
    return Offset(table, newest.mark, newest.mark, topics, gone)


def pieces_in(
    seen: Seen, positions: Mapping[str, int], ends: Mapping[str, int] | None = None
) -> Iterator[Piece]:
    """What a snapshot has beyond these positions, up to these ends where they are given."""
    for topic, extent in sorted(seen.topics.items()):
        high = extent.end if ends is None else min(extent.end, ends.get(topic, 0))
        low = positions.get(topic, 0)
        if high > low:
            yield Piece(seen.mark, topic, max(low, min(extent.first, high)), high)


def next_offset(
    start: Offset, snapshots: Sequence[Seen], max_rows: int | None, count: Count
) -> Offset:
    """How far the next batch goes; ``start`` itself while there is nothing to read.

    Snapshots are read one after the other: the oldest, which retention deletes first, are done
    with first, and no topic waits for another for ever. A piece without rows is passed over, and
    its topic stays where it is: a later snapshot has none there either.
    """
    newer = [seen for seen in snapshots if seen.mark > start.mark]
    if not newer:
        return start
    check_not_behind(start, newer[-1])
    positions, gone, rows_left = dict(start.topics), dict(start.gone), max_rows
    end = replace(start, until=newer[-1].mark)
    for seen in newer:
        for piece in pieces_in(seen, positions):
            reached, rows = (piece.low, 0) if rows_left == 0 else count(piece, rows_left)
            if rows:
                positions[piece.topic] = reached
            if rows_left is not None:
                rows_left = max(rows_left - rows, 0)
            if reached < piece.high:
                return replace(end, topics=positions, gone=gone)
        _note_gone(seen, start, positions, gone)
        end = replace(end, mark=seen.mark)
    if positions == start.topics and len(newer) < IDLE_SNAPSHOTS_MAX:
        return start
    return replace(end, topics=positions, gone=gone)


def check_not_behind(start: Offset, newest: Seen) -> None:
    """A broker that was put back to an earlier state gives sequences again: say so."""
    if newest.mark.time_ms - start.until.time_ms <= APART_MS:
        return
    for topic, extent in newest.topics.items():
        position = start.topics.get(topic, 0)
        if extent.end < position:
            raise StreamError(
                f"the topic {topic!r} ends at {extent.end} in the snapshot {newest.mark.name}, and "
                f"has been read up to {position} before: the broker was put back to an earlier "
                "state, or the snapshots are another broker's. Begin a new checkpoint."
            )


def _note_gone(seen: Seen, start: Offset, positions: dict[str, int], gone: dict[str, int]) -> None:
    """Forgets topics that were deleted: of those that are not in this snapshot, the long gone."""
    for topic in list(positions):
        if topic in seen.topics:
            gone.pop(topic, None)
            continue
        since_ms = gone.setdefault(topic, seen.mark.time_ms)
        has_moved = positions[topic] != start.topics.get(topic)  # its end must be in the offset
        if seen.mark.time_ms - since_ms > APART_MS and not has_moved:
            del positions[topic], gone[topic]


def plan(start: Offset, end: Offset, snapshots: Sequence[Seen]) -> list[Piece]:
    """What is read between two offsets, from the snapshots that are there now.

    They need not be those by which ``end`` was found: what is gone meanwhile is read from newer.
    """
    positions = dict(start.topics)
    pieces = []
    for seen in snapshots:
        if seen.mark > start.mark:
            for piece in pieces_in(seen, positions, end.topics):
                pieces.append(piece)
                positions[piece.topic] = piece.high
    missing = [topic for topic, high in end.topics.items() if positions.get(topic, 0) < high]
    for topic in missing:
        # A topic that is in the newest snapshot no more was deleted, and its messages with it.
        if not snapshots or snapshots[-1].mark < end.until or topic in snapshots[-1].topics:
            raise StreamError(
                f"no snapshot that is left has the topic {topic!r} up to {end.topics[topic]}, "
                f"which was in {end.until.name}: it was deleted before it was read. Take another "
                "snapshot and start the query again."
            )
    return pieces


def read_instead(piece: Piece, snapshots: Sequence[Seen]) -> Piece | None:
    """The same range from a newer snapshot; ``None`` if its topic was deleted.

    Raises ``StreamError`` while there is none.
    """
    newer = [seen for seen in snapshots if seen.mark > piece.mark]
    for seen in newer:
        if piece.topic in seen.topics and seen.topics[piece.topic].end >= piece.high:
            return piece._replace(mark=seen.mark)
    if newer and piece.topic not in newer[-1].topics:
        return None
    raise StreamError(
        f"the snapshot {piece.mark.name} was deleted before the topic {piece.topic!r} was read "
        f"from it up to {piece.high}, and no newer one has it. Take another snapshot and start the "
        "query again."
    )


def cut(positions: Iterable[int], high: int, max_rows: int | None) -> tuple[int, int]:
    """Where to end so that no more than so many rows at these rising positions are read; how many.

    Rows of one position stay together, also where that alone makes more: a time may have several.
    Without ``max_rows``, the first row is enough.
    """
    best: tuple[int, int] | None = None
    rows, last = 0, None
    for position in positions:
        if max_rows is None:
            return high, 1
        if position != last:
            if rows >= max_rows:
                return position, rows
            if rows:
                best = position, rows
            last = position
        rows += 1
        if best is not None and rows > max_rows:
            return best
    return high, rows


def split(piece: Piece, cuts: Iterable[int]) -> list[Piece]:
    """A piece as several, cut at these rising positions."""
    edges = [piece.low, *(at for at in cuts if piece.low < at < piece.high), piece.high]
    return [piece._replace(low=low, high=high) for low, high in pairwise(edges)]
