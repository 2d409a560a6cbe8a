"""The data source "asterism": tables of a snapshot, read by Spark's executors.

    spark.read.format("asterism").option("table", "history").load("snapshots")

The driver plans from the manifest; each task opens one store of the snapshot for reading and hands
Arrow batches to Spark. Every machine has to see the snapshot under the same path.
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from asterism.spark import deliveries, tables
from asterism.spark.filters import understood
from asterism.spark.options import (
    OptionError,
    Options,
    check_names,
    find_snapshot,
    read_options,
    schema_of,
    table_of,
)
from asterism.spark.planning import TIME_END, Filters, Part, plan
from asterism.spark.schemas import SCHEMAS, columns_in
from asterism.spark.tables import Span, Want, joined
from asterism.storage.reading import ReadOnlyStore
from asterism.storage.snapshot import Snapshot, open_snapshot

_Read = Callable[[ReadOnlyStore, int, Span, Want], Iterator[pa.RecordBatch]]
_TABLES: Final[dict[str, _Read]] = {
    "messages": tables.messages,
    "deliveries": deliveries.deliveries,
    "receivers": deliveries.receivers,
    "topics": tables.topics,
    "history": tables.history,
}


class AsterismSource(DataSource):
    """What ``format("asterism")`` stands for."""

    @classmethod
    def name(cls) -> str:
        return "asterism"

    def schema(self) -> str:
        check_names(self.options)
        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        check_names(self.options, streaming=False)
        options = read_options(self.options)
        # Spark refuses a reader that takes filters where its own setting does not allow it. And up
        # to 4.3 it keeps what was pushed down with the relation, not with its use: a frame that is
        # used again, with another filter or with none, is read by the last one, and rows are
        # missing without a word. So filters are taken only from whoever says that there is one use.
        return (FilteringReader if options.pushdown else Reader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from asterism.spark.stream import reader_of

        check_names(self.options, streaming=True)
        return reader_of(self.options, _checked(schema, table_of(self.options)))


class Reader(DataSourceReader):
    """Plans on the driver, reads in the executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = _checked(schema, options.table)
        self._filters = _asked(options)

    def partitions(self) -> Sequence[InputPartition]:
        snapshot = find_snapshot(self._options.path)
        _check_topics(snapshot, self._options.topics)
        parts = plan(snapshot, self._options.table, self._filters, self._options.rows_per_partition)
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part: Part | None = partition.value
        if part is None:  # of a plan without parts, Spark makes one
            return iter(())
        return self._batches(part)

    def _batches(self, part: Part) -> Iterator[pa.RecordBatch]:
        filters, read = self._filters, _TABLES[self._options.table]
        snapshot = open_snapshot(part.folder)
        want = Want(
            to_arrow_schema(self._schema, timezone="UTC"),
            self._options.batch_rows,
            filters.statuses,
            filters.accepted_ms,
            filters.sequences,
            snapshot,
        )
        with ReadOnlyStore(snapshot.store_folder(part.store)) as rows:
            found = (batch for span in part.spans for batch in read(rows, part.store, span, want))
            yield from joined(found, want.batch_rows)
        if self._options.trace is not None:
            _leave_trace(Path(self._options.trace), part, want)


class FilteringReader(Reader):
    """A reader that applies filters itself, as far as it understands them."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._filters, left = understood(filters, self._options.table, self._filters)
        return left


def _asked(options: Options) -> Filters:
    """What the options themselves ask for."""
    bounds = "resolved_ms" if options.table == "history" else "accepted_ms"
    since_ms, until_ms = options.since_ms or 0, options.until_ms
    end = TIME_END if until_ms is None else until_ms
    return Filters(topics=options.topics).narrowed(bounds, since_ms, end)


def _checked(schema: StructType, table: str) -> StructType:
    """A schema that is some of the table's columns, as they are; a user may have given another."""
    there = columns_in(SCHEMAS[table])
    for field in schema:
        kind = field.dataType.simpleString()
        if kind != there.get(field.name, "").lower().replace(", ", ",").replace(": ", ":"):
            raise OptionError(
                f"the table {table} has no column {field.name} {kind}; there are {SCHEMAS[table]}"
            )
    return schema


def _check_topics(snapshot: Snapshot, asked: frozenset[str] | None) -> None:
    unknown = sorted((asked or frozenset()) - snapshot.topics.keys())
    if unknown:
        raise OptionError(
            f"{snapshot.folder}: there is no topic {', '.join(unknown)} in this snapshot; there "
            f"are {', '.join(snapshot.topics) or 'none'}"
        )


def _leave_trace(folder: Path, part: Part, want: Want) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {
        "store": part.store,
        "spans": [span._asdict() for span in part.spans],
        "scanned": dict(want.scanned),
        "process": os.getpid(),
        "ended_ms": time.time_ns() // 1_000_000,
    }
    (folder / f"{uuid.uuid4()}.json").write_text(json.dumps(told))
