"""What to read for a query: filters made into ranges, and ranges made into parts. No Spark.

A part is read by one task: ranges of keys of one store. Messages are split by arithmetic on what
the manifest says; history, of which it says nothing, by samples of how dense it is in time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

from asterism.limits import TIME_MS_MAX
from asterism.spark.tables import SEQUENCE_END, Span
from asterism.storage.keys import TopicKeys
from asterism.storage.reading import ReadOnlyStore
from asterism.storage.snapshot import Snapshot

TIME_END: Final = TIME_MS_MAX + 1
_SAMPLES: Final = 64  # places in a topic's history that are looked at
_SAMPLE_ROWS: Final = 1_024
_RESOLVED_AT: Final = 6  # where the time stands in the key of a history row
_PARTS_MAX: Final = 10_000  # of one topic: a plan is made and kept in memory


@dataclass(frozen=True)
class Filters:
    """What rows have to be. Bounds are from, and before."""

    topics: frozenset[str] | None = None
    statuses: frozenset[str] | None = None
    sequences: tuple[int, int] = (0, SEQUENCE_END)
    accepted_ms: tuple[int, int] = (0, TIME_END)
    resolved_ms: tuple[int, int] = (0, TIME_END)

    def narrowed(self, bounds: str, low: int, high: int) -> "Filters":
        """Between these, too."""
        old_low, old_high = getattr(self, bounds)
        changed: dict[str, Any] = {bounds: (max(low, old_low), min(high, old_high))}
        return replace(self, **changed)

    def among(self, names: str, values: Iterable[str]) -> "Filters":
        """One of these, too."""
        old: frozenset[str] | None = getattr(self, names)
        new = frozenset(values)
        changed: dict[str, Any] = {names: new if old is None else new & old}
        return replace(self, **changed)

    def is_empty(self) -> bool:
        """Can no row be all of this?"""
        bounds = (self.sequences, self.accepted_ms, self.resolved_ms)
        names = (self.topics, self.statuses)
        return any(low >= high for low, high in bounds) or any(
            wanted is not None and not wanted for wanted in names
        )


class Part(NamedTuple):
    """What one task reads."""

    folder: str  # of the snapshot
    store: int
    spans: tuple[Span, ...]


class _Piece(NamedTuple):
    span: Span
    rows: int  # about


def plan(snapshot: Snapshot, table: str, filters: Filters, rows_per_partition: int) -> list[Part]:
    """The parts of a table."""
    if filters.is_empty():
        return []
    by_store: dict[int, dict[str, dict[str, Any]]] = {}
    for name, topic in snapshot.topics.items():
        if filters.topics is None or name in filters.topics:
            by_store.setdefault(topic["store"], {})[name] = topic
    parts: list[Part] = []
    for store, topics in sorted(by_store.items()):
        pieces = _pieces(snapshot, store, table, topics, filters, rows_per_partition)
        for spans in _packed(pieces, rows_per_partition):
            parts.append(Part(str(snapshot.folder), store, spans))
    return parts


def _pieces(
    snapshot: Snapshot,
    store: int,
    table: str,
    topics: dict[str, dict[str, Any]],
    filters: Filters,
    most: int,
) -> Iterator[_Piece]:
    if table == "history":
        with ReadOnlyStore(snapshot.store_folder(store)) as rows:
            for name, topic in topics.items():
                yield from _history_pieces(rows, snapshot.time_ms, name, topic, filters, most)
    for name, topic in topics.items():
        if table in ("messages", "deliveries"):
            yield from _message_pieces(name, topic, filters, most)
        elif table != "history":
            yield _Piece(Span(name, topic["number"], 0, SEQUENCE_END), 1)


def _message_pieces(
    name: str, topic: dict[str, Any], filters: Filters, most: int
) -> Iterator[_Piece]:
    """A topic's sequences, in even ranges: so many of them as its rows fill."""
    first, after = topic["first_sequence"], topic["next_sequence"]
    low, high = max(first, filters.sequences[0]), min(after, filters.sequences[1])
    if low >= high:
        return
    rows = topic["held"] + topic["parked"] + topic["drafting"]
    rows = rows * (high - low) // (after - first) + 1
    held = topic["held"] if (low, high) == (first, after) and rows <= most else 0
    for begin, end in _even(low, high, rows, most):
        span = Span(name, topic["number"], begin, end, held)
        yield _Piece(span, rows * (end - begin) // (high - low) + 1)


def _even(low: int, high: int, rows: int, most: int) -> Iterator[tuple[int, int]]:
    parts = min(-(-rows // most), high - low, _PARTS_MAX)
    cuts = [low + (high - low) * at // parts for at in range(parts + 1)]
    return pairwise(cuts)


def _packed(pieces: Iterable[_Piece], most: int) -> Iterator[tuple[Span, ...]]:
    """Small topics go together, so that ten thousand of them are not ten thousand tasks."""
    spans: list[Span] = []
    rows = 0
    for piece in pieces:
        if spans and rows + piece.rows > most:
            yield tuple(spans)
            spans, rows = [], 0
        spans.append(piece.span)
        rows += piece.rows
    if spans:
        yield tuple(spans)


# --- history --------------------------------------------------------------------------------------


def _history_pieces(
    rows: ReadOnlyStore,
    taken_ms: int,
    name: str,
    topic: dict[str, Any],
    filters: Filters,
    most: int,
) -> Iterator[_Piece]:
    keys = TopicKeys(topic["number"])
    low, high = filters.resolved_ms
    for key, _ in rows.scan(keys.history(low, 0), keys.history(high, 0)):
        low = _resolved_ms(key)
        break
    else:
        return
    # A clock that was set back may have left rows of after the snapshot: the last part has them.
    last = min(max(taken_ms, low) + 1, high)
    step = max((last - low) // _SAMPLES, 1)
    begin, gathered = low, 0
    for at in range(low, last, step):
        end = min(at + step, last)
        # A burst at the beginning of a step says little of the rest of it.
        counted = min(_estimate(rows, keys, at, end), topic["next_sequence"])
        if gathered and gathered + counted > most:
            yield _Piece(Span(name, topic["number"], begin, at), gathered)
            begin, gathered = at, 0
        parts = list(_even(at, end, counted, most)) if counted > most else []
        for cut, cut_end in parts[:-1]:
            yield _Piece(Span(name, topic["number"], cut, cut_end), most)
            begin = cut_end
        gathered += counted // max(len(parts), 1)
    yield _Piece(Span(name, topic["number"], begin, high), gathered + 1)


def _estimate(rows: ReadOnlyStore, keys: TopicKeys, low: int, high: int) -> int:
    """About how many endings there are between two times, from the first of them."""
    scan = rows.scan(keys.history(low, 0), keys.history(high, 0))
    found = [_resolved_ms(key) for key, _ in islice(scan, _SAMPLE_ROWS)]
    if len(found) < _SAMPLE_ROWS:
        return len(found)
    return len(found) * (high - low) // max(found[-1] + 1 - low, 1)


def _resolved_ms(key: bytes) -> int:
    return int.from_bytes(key[_RESOLVED_AT : _RESOLVED_AT + 8], "big")
