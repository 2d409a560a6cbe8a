"""The table of deliveries: what each receiver has still to do, or has failed at. Imports no Spark.

A message of the pool is one delivery, for whoever takes it. A log message is one for each durable
receiver that is interested in it and has not done it: nothing is written for those, so they are
found as the broker finds them, from the receiver's floor on, without what it has done (``x`` rows),
and with what it had moved or has parked (``d`` rows) wherever that lies. Deliveries of log messages
to receivers that live with their connection are left out, but for those that are parked.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from asterism.limits import HEADERS_CACHED_MAX
from asterism.router.interest import InterestTrie
from asterism.spark.columns import Headers, MessageBlock, maybe_times, repeated
from asterism.spark.tables import (
    FAILED,
    OF_FLIGHT,
    STATUSES,
    WAITING,
    Flight,
    Flights,
    Span,
    Want,
    floor_of,
    ladder_of,
    receivers_of,
)
from asterism.storage.keys import WORK, WORK_NAME, TopicKeys, number_at_end
from asterism.storage.reading import ReadOnlyStore
from asterism.storage.records import (
    DRAFT,
    PARKED,
    ExceptionRow,
    ParkedRow,
    decode_exception,
    decode_fared,
    decode_parked,
)


class _Row(NamedTuple):
    """A delivery, as the columns are built from many."""

    sequence: int
    receiver: str | None
    status: str
    attempts: int
    accepted_ms: int
    sent_ms: int | None = None
    deadline_ms: int | None = None
    failed_ms: int | None = None
    reason: str | None = None


class _Receiver(NamedTuple):
    """A durable receiver, and what it has of one block of log messages."""

    number: int
    name: str
    floor: int
    done: frozenset[int]
    moved: dict[int, ExceptionRow]  # by sequence: state, place, attempts


def deliveries(rows: ReadOnlyStore, store: int, span: Span, want: Want) -> Iterator[pa.RecordBatch]:
    """Those of the pool, then those of the log, each in order of sequence."""
    reading = _Reading(rows, span, want)
    for found in (reading.of_pool(), reading.of_log()):
        statuses = want.statuses
        wanted = (row for row in found if statuses is None or row.status in statuses)
        while batch := _take(wanted, want.batch_rows):
            yield _batch(batch, span.topic, store, want)


def _take(found: Iterator[_Row], most: int) -> list[_Row]:
    taken: list[_Row] = []
    for row in found:
        taken.append(row)
        if len(taken) == most:
            break
    return taken


def _batch(batch: list[_Row], topic: str, store: int, want: Want) -> pa.RecordBatch:
    columns: dict[str, Any] = dict(zip(_Row._fields, zip(*batch, strict=True), strict=True))
    return want.batch(
        {
            "topic": lambda: repeated(topic, len(batch), pa.string()),
            "sequence": partial(pa.array, columns["sequence"], pa.int64()),
            "receiver": partial(pa.array, columns["receiver"], pa.string()),
            "status": partial(pa.array, columns["status"], pa.string()),
            "attempts": partial(pa.array, columns["attempts"], pa.int32()),
            "accepted_at": partial(maybe_times, columns["accepted_ms"]),
            "sent_at": partial(maybe_times, columns["sent_ms"]),
            "deadline_at": partial(maybe_times, columns["deadline_ms"]),
            "failed_at": partial(maybe_times, columns["failed_ms"]),
            "reason": partial(pa.array, columns["reason"], pa.string()),
            "store": lambda: repeated(store, len(batch), pa.int32()),
        }
    )


class _Reading:
    """What the deliveries of a span are found by."""

    def __init__(self, rows: ReadOnlyStore, span: Span, want: Want) -> None:
        self._rows = rows
        self._span = span
        self._want = want
        self._keys = keys = TopicKeys(span.number)
        self._headers = Headers()
        self._flights = Flights(rows, keys, span)
        self._receivers = receivers_of(rows, keys)
        self._floors = {number: floor_of(rows, keys, number) for number in self._receivers}
        self._names = {WORK: WORK_NAME}
        self._names.update((number, row.name) for number, row in self._receivers.items())
        self._trie: InterestTrie[int] = InterestTrie()
        for number, receiver in self._receivers.items():
            for interest in receiver.interests:
                self._trie.add(interest, number)
        self._audiences: dict[tuple[str, ...], frozenset[int]] = {}
        # By sequence, of this span; the pool has one at most.
        self._parked: dict[int, list[ParkedRow]] = {}
        for _, row in rows.scan(*keys.range_of("p")):
            parked = decode_parked(row)
            if span.low <= parked.sequence < span.high:
                self._parked.setdefault(parked.sequence, []).append(parked)

    def _blocks(self, low: bytes, high: bytes) -> Iterator[MessageBlock]:
        for keyed, values in self._rows.scan_blocks(low, high, self._want.batch_rows):
            block = MessageBlock(keyed, values, self._headers)
            self._want.scanned["messages"] += len(block)
            wanted = self._want.times_wanted(block.accepted_ms)
            if wanted.any():
                yield block.only(wanted)

    # --- the pool -----------------------------------------------------------------------------

    def of_pool(self) -> Iterator[_Row]:
        keys, span = self._keys, self._span
        for block in self._blocks(keys.pool(span.low), keys.pool(span.high)):
            block = block.only(block.states != DRAFT)
            status, attempts = ladder_of(block, self._flights)
            for sequence, code, tried, accepted_ms in zip(
                block.sequences.tolist(),
                status.tolist(),
                attempts.tolist(),
                block.accepted_ms.tolist(),
                strict=True,
            ):
                if code == WAITING:
                    yield _Row(sequence, None, STATUSES[WAITING], tried, accepted_ms)
                elif code == FAILED:
                    yield from self._failed(sequence, accepted_ms, tried)
                else:
                    yield self._out(sequence, accepted_ms, self._flights.pool[sequence])

    def _failed(self, sequence: int, accepted_ms: int, tried: int) -> Iterator[_Row]:
        for parked in self._parked.get(sequence, ()):
            yield _parked_row(parked, accepted_ms)
        if sequence not in self._parked:
            yield _Row(sequence, None, STATUSES[FAILED], tried, accepted_ms)

    def _out(self, sequence: int, accepted_ms: int, flight: Flight) -> _Row:
        name = self._names.get(flight.receiver)
        status = STATUSES[OF_FLIGHT[flight.status]]
        return _Row(
            sequence, name, status, flight.attempt, accepted_ms, flight.sent_ms, flight.deadline_ms
        )

    # --- the log ------------------------------------------------------------------------------

    def of_log(self) -> Iterator[_Row]:
        keys, span = self._keys, self._span
        for block in self._blocks(keys.log(span.low), keys.log(span.high)):
            table, numbers = block.headers()
            audiences = [
                self._audience(table.header(number).subjects) for number in numbers.tolist()
            ]
            first, last = int(block.sequences[0]), int(block.sequences[-1])
            there = {
                number: self._receiver(number, first, last)
                for number in sorted(frozenset().union(*audiences))
            }
            for sequence, state, accepted_ms, audience in zip(
                block.sequences.tolist(),
                block.states.tolist(),
                block.accepted_ms.tolist(),
                audiences,
                strict=True,
            ):
                for parked in self._parked.get(sequence, ()):
                    yield _parked_row(parked, accepted_ms)
                for number in sorted(audience):
                    tried = self._tried(there[number], sequence, state)
                    if tried is not None:
                        yield self._owed(there[number], sequence, accepted_ms, tried)

    def _audience(self, subjects: tuple[str, ...]) -> frozenset[int]:
        found = self._audiences.get(subjects)
        if found is None:
            if len(self._audiences) >= HEADERS_CACHED_MAX:
                self._audiences.clear()
            found = self._audiences[subjects] = self._trie.match_any(subjects)
        return found

    def _receiver(self, number: int, first: int, last: int) -> _Receiver:
        keys, rows = self._keys, self._rows
        done = rows.scan(keys.done(number, first), keys.done(number, last + 1))
        moved = rows.scan(keys.exception(number, first), keys.exception(number, last + 1))
        return _Receiver(
            number,
            self._receivers[number].name,
            self._floors[number],
            frozenset(number_at_end(key) for key, _ in done),
            {number_at_end(key): decode_exception(row) for key, row in moved},
        )

    def _tried(self, receiver: _Receiver, sequence: int, state: int) -> int | None:
        """How often what it is owed was tried before, by what is written; ``None``: not owed."""
        moved = receiver.moved.get(sequence)
        if moved is not None:
            if moved.state == PARKED:
                return None
            if state == PARKED and not self._is_renewed(receiver.number, sequence):
                return None
            return moved.attempts
        if state == PARKED or sequence < receiver.floor or sequence in receiver.done:
            return None
        return 0

    def _is_renewed(self, number: int, sequence: int) -> bool:
        """Of a message that is there for parked deliveries alone: was this one of them?"""
        fared = self._rows.get(self._keys.fared(sequence, number))
        return fared is not None and decode_fared(fared).status == "waiting"

    def _owed(self, receiver: _Receiver, sequence: int, accepted_ms: int, tried: int) -> _Row:
        flight = self._flights.log.get((receiver.number, sequence))
        if flight is not None and flight.attempt > tried:
            return self._out(sequence, accepted_ms, flight)
        return _Row(sequence, receiver.name, STATUSES[WAITING], tried, accepted_ms)


def _parked_row(parked: ParkedRow, accepted_ms: int) -> _Row:
    return _Row(
        parked.sequence,
        parked.receiver,
        STATUSES[FAILED],
        parked.attempts,
        accepted_ms,
        failed_ms=parked.failed_ms,
        reason=parked.reason,
    )


# --- receivers ------------------------------------------------------------------------------------


def receivers(rows: ReadOnlyStore, store: int, span: Span, want: Want) -> Iterator[pa.RecordBatch]:
    """The durable receivers of a topic, in order of their numbers."""
    keys = TopicKeys(span.number)
    found = list(receivers_of(rows, keys).items())
    want.scanned["receivers"] += len(found)
    if not found:
        return
    parked: dict[int, int] = {}
    for _, row in rows.scan(*keys.range_of("p")):
        number = decode_parked(row).list_number
        parked[number] = parked.get(number, 0) + 1
    for begin in range(0, len(found), want.batch_rows):
        some = found[begin : begin + want.batch_rows]
        numbers = [number for number, _ in some]
        columns = {
            "topic": [span.topic] * len(some),
            "receiver": [receiver.name for _, receiver in some],
            "number": numbers,
            "interests": [receiver.interests for _, receiver in some],
            "floor": [floor_of(rows, keys, number) for number in numbers],
            "parked": [parked.get(number, 0) for number in numbers],
            "store": [store] * len(some),
        }
        kinds = want.schema
        yield want.batch(
            {name: partial(pa.array, columns[name], kinds.field(name).type) for name in kinds.names}
        )
