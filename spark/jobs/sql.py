"""``asterism spark sql``: the question nobody thought of, over the five tables of a snapshot."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from asterism.spark.jobs.common import JobError, read_tables, reason_of
from asterism.storage.snapshot import Snapshot


class Answer(NamedTuple):
    """Columns and rows, and whether there were more than were asked for."""

    columns: list[str]
    rows: list[list[Any]]
    is_cut: bool


def make_views(tables: Mapping[str, DataFrame]) -> None:
    """Lets SQL name the tables."""
    for name, table in tables.items():
        table.createOrReplaceTempView(name)


def ask(spark: SparkSession, text: str, limit: int | None) -> Answer:
    """The answer to a query; with a limit, no more than that is brought to the driver."""
    try:
        frame = spark.sql(text)
        found = (frame if limit is None else frame.limit(limit + 1)).collect()
    except PySparkException as error:
        raise JobError(reason_of(error)) from error
    is_cut = limit is not None and len(found) > limit
    types = [field.dataType for field in frame.schema.fields]
    rows = [
        [plain(value, kind) for value, kind in zip(row, types, strict=True)]
        for row in found[:limit]
    ]
    return Answer(frame.columns, rows, is_cut)


def run(spark: SparkSession, snapshot: Snapshot, text: str, limit: int | None) -> Answer:
    make_views(read_tables(spark, snapshot))
    return ask(spark, text, limit)


def plain(value: Any, kind: DataType) -> Any:
    """A value as JSON knows it: maps for structs, and bytes and times as they are."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        return {
            field.name: plain(inner, field.dataType)
            for field, inner in zip(kind.fields, value, strict=True)
        }
    if isinstance(kind, ArrayType):
        return [plain(inner, kind.elementType) for inner in value]
    if isinstance(kind, MapType):
        return {str(key): plain(inner, kind.valueType) for key, inner in value.items()}
    return bytes(value) if isinstance(value, bytearray) else value
