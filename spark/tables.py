"""The tables out of a store's rows, as Arrow batches. Imports no Spark; opens nothing.

Each table is a function that takes the rows of a store, a span of one topic, and what is wanted of
it. Rows that a filter leaves out are dropped before anything of them is decoded that costs time.

What is in flight stands in pages (``g`` rows), which are written once and never changed: an entry
counts only while its message's own row, or the receiver's exception, knows of fewer attempts. A
worker that was restarted keeps the pages of deliveries that were out until they go out again, so
until then they count as sent.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asterism.limits import TIME_MS_MAX
from asterism.message import Status
from asterism.options import topic_overrides, topic_settings_as_user
from asterism.settings import TopicSettings, overrides_from_plain
from asterism.spark.columns import (
    HEADER_COLUMNS,
    Headers,
    MessageBlock,
    Numbers,
    maybe_times,
    repeated,
    times,
)
from asterism.storage.keys import TopicKeys, number_at_end
from asterism.storage.reading import ReadOnlyStore
from asterism.storage.records import (
    NATURAL,
    PLACED,
    HistoryRow,
    ReceiverRow,
    decode_floor,
    decode_history,
    decode_page,
    decode_receiver,
    decode_settings,
)
from asterism.storage.snapshot import Snapshot
from asterism.storage.store import StoreError

SEQUENCE_END: Final = 2**63
STATUSES: Final = ("waiting", "drafting", "failed", "sent", "received")
WAITING, DRAFTING, FAILED, SENT, RECEIVED = range(len(STATUSES))
OF_STATE: Final = np.array([WAITING, WAITING, FAILED, DRAFTING, WAITING], np.int64)
OF_FLIGHT: Final = {int(Status.SENT): SENT, int(Status.RECEIVED): RECEIVED}


_Key = TypeVar("_Key")


class Span(NamedTuple):
    """Part of a topic: of its sequences, or for ``history`` of the milliseconds of its endings."""

    topic: str
    number: int
    low: int
    high: int
    held: int = 0  # of a whole topic: how many messages the manifest says it holds


@dataclass
class Want:
    """What is asked for, and a count of the rows that were read for it."""

    schema: pa.Schema
    batch_rows: int = 4_096
    statuses: frozenset[str] | None = None  # None: every one
    accepted_ms: tuple[int, int] = (0, TIME_MS_MAX + 1)  # from, and before
    sequences: tuple[int, int] = (0, SEQUENCE_END)
    snapshot: Snapshot | None = None
    scanned: Counter[str] = field(default_factory=Counter)

    @property
    def codes(self) -> npt.NDArray[np.bool_]:
        """By the number of a status: is it wanted?"""
        wanted = self.statuses
        return np.array([wanted is None or name in wanted for name in STATUSES])

    def times_wanted(self, accepted_ms: Numbers) -> npt.NDArray[np.bool_]:
        low, high = self.accepted_ms
        wanted: npt.NDArray[np.bool_] = (accepted_ms >= low) & (accepted_ms < high)
        return wanted

    def batch(self, built: dict[str, Callable[[], pa.Array]]) -> pa.RecordBatch:
        """A batch of the columns that are asked for, and only those are built."""
        return pa.RecordBatch.from_arrays(
            [built[name]() for name in self.schema.names], schema=self.schema
        )


def joined(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows, so many at a time: small topics are handed over together."""
    small: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if small and count + batch.num_rows > rows:
            yield _one(small)
            small, count = [], 0
        small.append(batch)
        count += batch.num_rows
    if small:
        yield _one(small)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)  # which copies


# --- what a topic has of its own ------------------------------------------------------------------


class Flight(NamedTuple):
    """A delivery that is out."""

    status: int
    attempt: int
    receiver: int
    sent_ms: int | None
    deadline_ms: int


class Flights:
    """What is out of a span: of the pool by sequence, of the log by receiver and sequence."""

    def __init__(self, rows: ReadOnlyStore, keys: TopicKeys, span: Span) -> None:
        self.pool: dict[int, Flight] = {}
        self.log: dict[tuple[int, int], Flight] = {}
        for _, row in rows.scan(*keys.range_of("g")):
            page = decode_page(row)
            begun = page.started_ms if page.status == Status.SENT else None
            for sequence, attempt in page.entries:
                if span.low <= sequence < span.high:
                    flight = Flight(page.status, attempt, page.receiver, begun, page.deadline_ms)
                    _note(self.pool, sequence, flight)
                    _note(self.log, (page.receiver, sequence), flight)

    def within(self, sequences: Numbers) -> Iterator[tuple[int, Flight]]:
        """Those of the pool that are among these sequences, which are sorted: where, and what."""
        if not self.pool or not len(sequences):
            return
        out = np.fromiter(self.pool, np.int64, len(self.pool))
        places = np.searchsorted(sequences, out)
        places[places == len(sequences)] = 0
        for at in places[sequences[places] == out].tolist():
            yield at, self.pool[int(sequences[at])]


def _note(known: dict[_Key, Flight], key: _Key, flight: Flight) -> None:
    """A later page tells more of the same attempt, but not when it began."""
    before = known.get(key)
    if before is None or before.attempt < flight.attempt:
        known[key] = flight
    elif before.attempt == flight.attempt:
        known[key] = flight._replace(sent_ms=before.sent_ms or flight.sent_ms)


def receivers_of(rows: ReadOnlyStore, keys: TopicKeys) -> dict[int, ReceiverRow]:
    """The durable receivers of a topic by number."""
    return {
        number_at_end(key, 4): decode_receiver(row) for key, row in rows.scan(*keys.range_of("r"))
    }


def floor_of(rows: ReadOnlyStore, keys: TopicKeys, number: int) -> int:
    row = rows.get(keys.floor(number))
    return 0 if row is None else decode_floor(row).floor


# --- messages -------------------------------------------------------------------------------------


def messages(rows: ReadOnlyStore, store: int, span: Span, want: Want) -> Iterator[pa.RecordBatch]:
    """What a topic holds: the pool, then the log, each in order of sequence."""
    keys, headers, codes = TopicKeys(span.number), Headers(), want.codes
    flights, held = Flights(rows, keys, span), 0
    for kind, key in (("pool", keys.pool), ("log", keys.log)):
        for keyed, values in rows.scan_blocks(key(span.low), key(span.high), want.batch_rows):
            block = MessageBlock(keyed, values, headers)
            want.scanned["messages"] += len(block)
            held += int(block.held.sum())
            status, attempts = ladder_of(block, flights if kind == "pool" else None)
            wanted = codes[status] & want.times_wanted(block.accepted_ms)
            if wanted.any():
                built = _message_columns(block.only(wanted), span.topic, kind, store, want.schema)
                built["status"] = partial(_status_names, status[wanted])
                built["attempts"] = partial(pa.array, attempts[wanted], pa.int32())
                yield want.batch(built)
    _check_held(span, held)


def _status_names(status: Numbers) -> pa.Array:
    return pa.array(STATUSES).take(pa.array(status))


def _check_held(span: Span, held: int) -> None:
    """Is everything there that the manifest counted?"""
    if held < span.held:
        raise StoreError(
            f"the topic {span.topic!r} holds {span.held} messages by the manifest of the snapshot, "
            f"and {held} of them were found: rows are missing. Use another snapshot."
        )


def ladder_of(block: MessageBlock, flights: Flights | None) -> tuple[Numbers, Numbers]:
    """The status of each message, as its place in ``STATUSES``, and its attempts.

    What is out says nothing of a log message, which has a status of its own with each receiver.
    """
    status, attempts = OF_STATE[block.states], block.attempts
    status[block.held] = WAITING
    for at, flight in () if flights is None else flights.within(block.sequences):
        if block.states[at] in (NATURAL, PLACED) and flight.attempt > attempts[at]:
            status[at], attempts[at] = OF_FLIGHT[flight.status], flight.attempt
    return status, attempts


def _message_columns(
    block: MessageBlock, topic: str, kind: str, store: int, schema: pa.Schema
) -> dict[str, Callable[[], pa.Array]]:
    count = len(block)
    built: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: repeated(topic, count, pa.string()),
        "sequence": lambda: pa.array(block.sequences),
        "kind": lambda: repeated(kind, count, pa.string()),
        "id": block.ids,
        "accepted_at": lambda: times(block.accepted_ms),
        "expires_at": block.expires_at,
        "payload_bytes": block.payload_bytes,
        "payload": block.payloads,
        "store": lambda: repeated(store, count, pa.int32()),
    }
    for name in HEADER_COLUMNS.intersection(schema.names):
        built[name] = partial(block.of_header, name, schema.field(name).type)
    return built


# --- history --------------------------------------------------------------------------------------


def history(rows: ReadOnlyStore, store: int, span: Span, want: Want) -> Iterator[pa.RecordBatch]:
    """How messages ended, in the order in which they did."""
    keys, headers = TopicKeys(span.number), Headers()
    first, last = want.sequences
    between = (keys.history(span.low, 0), keys.history(span.high, 0))
    for keyed, values in rows.scan_blocks(*between, want.batch_rows):
        want.scanned["history"] += len(keyed)
        kept = [
            (sequence, decode_history(row))
            for key, row in zip(keyed, values, strict=True)
            if first <= (sequence := number_at_end(key)) < last
        ]
        low, high = want.accepted_ms
        kept = [one for one in kept if low <= one[1].accepted_ms < high]
        if kept:
            sequences, ended = zip(*kept, strict=True)
            yield want.batch(
                _history_columns(sequences, ended, span.topic, store, headers, want.schema)
            )


def _history_columns(
    sequences: tuple[int, ...],
    ended: tuple[HistoryRow, ...],
    topic: str,
    store: int,
    headers: Headers,
    schema: pa.Schema,
) -> dict[str, Callable[[], pa.Array]]:
    count = len(ended)
    payloads = [row.payload for row in ended]
    sizes = [None if payload is None else len(payload) for payload in payloads]
    built: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: repeated(topic, count, pa.string()),
        "sequence": lambda: pa.array(sequences, pa.int64()),
        "verdict": lambda: pa.array([row.verdict for row in ended], pa.string()),
        "id": lambda: pa.array([row.id for row in ended], pa.binary()),
        "accepted_at": lambda: maybe_times([row.accepted_ms for row in ended]),
        "resolved_at": lambda: maybe_times([row.resolved_ms for row in ended]),
        "ladder": lambda: _ladders(ended, schema.field("ladder").type),
        "payload_bytes": lambda: pa.array(sizes, pa.int64()),
        "payload": lambda: pa.array(payloads, pa.binary()),
        "store": lambda: repeated(store, count, pa.int32()),
    }
    of_header = HEADER_COLUMNS.intersection(schema.names)
    if of_header:
        table, numbers = headers.table_for([row.header for row in ended])
        for name in of_header:
            built[name] = partial(table.rows, name, schema.field(name).type, numbers)
    return built


def _ladders(ended: tuple[HistoryRow, ...], kind: pa.ListType) -> pa.Array:
    """An entry for each receiver, flat, and where the entries of each row begin."""
    steps = [(name, *step) for row in ended for name, step in row.ladder.items()]
    names, statuses, attempts, sent, received, over = (
        zip(*steps, strict=True) if steps else [()] * 6
    )
    values = pa.StructArray.from_arrays(
        [
            pa.array(names, pa.string()),
            pa.array(statuses, pa.string()),
            pa.array(attempts, pa.int32()),
            maybe_times(sent),
            maybe_times(received),
            maybe_times(over),
        ],
        fields=list(kind.value_type),
    )
    ends = np.cumsum([0, *(len(row.ladder) for row in ended)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), values, type=kind)


# --- topics ---------------------------------------------------------------------------------------


def topics(rows: ReadOnlyStore, store: int, span: Span, want: Want) -> Iterator[pa.RecordBatch]:
    """A topic, as the manifest tells of it."""
    assert want.snapshot is not None
    told = want.snapshot.topics[span.topic]
    want.scanned["topics"] += 1
    said: dict[str, Any] = {
        **told,
        "topic": span.topic,
        "snapshot_at": want.snapshot.time_ms * 1_000,
        "store": store,
    }
    if "settings" in want.schema.names:
        said["settings"] = list(_settings(rows, span, want.snapshot).items())
    kinds = want.schema
    yield want.batch(
        {name: partial(pa.array, [said[name]], kinds.field(name).type) for name in kinds.names}
    )


def _settings(rows: ReadOnlyStore, span: Span, snapshot: Snapshot) -> dict[str, str | None]:
    """Every setting as a user writes it; what is neither text nor none, as JSON."""
    defaults = topic_overrides(snapshot.manifest.get("topic_defaults", {}))
    row = rows.get(TopicKeys(span.number).settings)
    own = {} if row is None else overrides_from_plain(decode_settings(row))
    held = topic_settings_as_user(TopicSettings().changed(defaults).changed(own))
    return {
        name: value if value is None or type(value) is str else json.dumps(value)
        for name, value in held.items()
    }
