"""The streaming read: follows new snapshots in a folder, and reads every row once.

    spark.readStream.format("asterism").option("table", "history").load("snapshots")

What is read next is decided in ``stream_plan``; here it meets Spark. The driver plans, and looks
into the stores only for whether there are rows, and where so many of them end; the tasks read.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from asterism.spark import tables
from asterism.spark.options import OptionError, Options, count_of, read_options
from asterism.spark.stream_plan import (
    NOTHING,
    TABLES,
    Mark,
    Offset,
    Piece,
    Seen,
    cut,
    latest,
    next_offset,
    offset_from,
    plan,
    split,
)
from asterism.spark.stream_rows import Folder, Following, Stores, positions
from asterism.spark.tables import Span, Want

_READ: Final = {"messages": tables.messages, "history": tables.history}
_EMPTY_MAX: Final = 100_000  # pieces that are remembered to have no rows


def reader_of(given: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader of a stream with these options."""
    options = read_options(given)
    lower = {name.lower(): value for name, value in given.items()}
    if options.table not in TABLES:
        raise OptionError(
            f"the table {options.table} cannot be followed: its rows change. A stream reads "
            f"{' or '.join(TABLES)}; read the others with spark.read."
        )
    starting = lower.get("startingoffsets", "earliest")
    if starting not in ("earliest", "latest"):
        raise OptionError(f"startingOffsets must be earliest or latest, not {starting!r}")
    max_rows = count_of(lower, "maxRowsPerTrigger", 0)
    return StreamReader(options, schema, starting == "latest", max_rows or None)


class Part(NamedTuple):
    """What one task reads: pieces of one store of one snapshot."""

    pieces: tuple[Piece, ...]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver for as long as the query runs; a copy of it reads in each task."""

    def __init__(
        self, options: Options, schema: StructType, from_latest: bool, max_rows: int | None
    ) -> None:
        self._options = options
        self._schema = schema
        self._from_latest = from_latest
        self._max_rows = max_rows
        self._last: Mark | None = None  # with AvailableNow: the snapshot to end with
        self._begin()
        self._folder.check()

    def _begin(self) -> None:
        options = self._options
        self._folder = Folder(options.path, options.table, options.topics)
        self._empty: set[Piece] = set()

    def __getstate__(self) -> dict[str, Any]:
        """What a task needs; it looks at the folder with its own eyes."""
        kept = dict(self.__dict__)
        del kept["_folder"], kept["_empty"]
        return kept

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)
        self._begin()

    # --- on the driver ----------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        table = self._options.table
        start = latest(table, self._folder.seen()) if self._from_latest else Offset(table)
        return start.as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._max_rows is None else ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        seen = self._folder.seen()
        self._last = seen[-1].mark if seen else NOTHING

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        offset = offset_from(start, self._options.table)
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        with Stores(self._folder) as stores:

            def count(piece: Piece, most: int | None) -> tuple[int, int]:
                return self._count(stores, piece, most)

            end = next_offset(offset, self._followed(), max_rows, count)
        return start if end is offset else end.as_json()

    def _followed(self) -> list[Seen]:
        """The snapshots to read: all, or those that were there when a query of one run began."""
        seen = self._folder.seen()
        if self._last is None:
            return seen
        if self._last == NOTHING:
            return []
        # Where the last of them was deleted meanwhile, the next newer one stands for it.
        beyond = [at for at, one in enumerate(seen) if one.mark >= (self._last or NOTHING)]
        return seen[: beyond[0] + 1] if beyond else seen

    def _count(self, stores: Stores, piece: Piece, most: int | None) -> tuple[int, int]:
        if piece in self._empty:
            return piece.high, 0
        reached, rows = cut(positions(stores, piece, self._options.table), piece.high, most)
        if not rows and len(self._empty) < _EMPTY_MAX:
            self._empty.add(piece)
        return reached, rows

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        table = self._options.table
        self._empty.clear()  # what was planned will not be looked at again
        begin, until = offset_from(start, table), offset_from(end, table)
        pieces = plan(begin, until, self._folder.seen())
        with Stores(self._folder) as stores:
            sized = [part for piece in pieces for part in self._sized(stores, piece)]
        return [InputPartition(part) for part in self._packed(sized)]

    def _sized(self, stores: Stores, piece: Piece) -> Iterator[tuple[Piece, int]]:
        """A piece in parts of no more rows than a task is to read, about; and how many."""
        most = self._options.rows_per_partition
        if self._options.table == "history":
            at = list(islice(positions(stores, piece, "history"), None, None, most))
            for part in split(piece, at[1:]):
                yield part, most if len(at) > 1 else 1
            return
        snapshot = self._folder.find(piece.mark)
        told = {} if snapshot is None else snapshot.topics[piece.topic]
        held = sum(told.get(name, 0) for name in ("held", "parked", "drafting"))
        rows = min(held or most, piece.high - piece.low)
        count, width = max(-(-rows // most), 1), piece.high - piece.low
        for part in split(piece, [piece.low + width * at // count for at in range(1, count)]):
            yield part, rows // count + 1

    def _packed(self, sized: list[tuple[Piece, int]]) -> Iterator[Part]:
        """Small pieces of one store go together: a topic more is not a task more."""
        for _, group in groupby(sorted(sized, key=self._place), key=self._place):
            pieces: list[Piece] = []
            gathered = 0
            for piece, rows in group:
                if pieces and gathered + rows > self._options.rows_per_partition:
                    yield Part(tuple(pieces))
                    pieces, gathered = [], 0
                pieces.append(piece)
                gathered += rows
            yield Part(tuple(pieces))

    def _place(self, sized: tuple[Piece, int]) -> tuple[Mark, int]:
        piece, _ = sized
        snapshot = self._folder.find(piece.mark)
        return piece.mark, 0 if snapshot is None else snapshot.topics[piece.topic]["store"]

    # --- in a task --------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part: Part | None = partition.value
        return iter(()) if part is None else self._batches(part)

    def _batches(self, part: Part) -> Iterator[pa.RecordBatch]:
        read = _READ[self._options.table]
        want = Want(to_arrow_schema(self._schema, timezone="UTC"), self._options.batch_rows)
        with Stores(self._folder) as stores:
            for piece in part.pieces:
                rows = Following(stores, piece)
                span = Span(piece.topic, rows.number, piece.low, piece.high)
                yield from read(rows.as_store(), rows.store, span, want)
