"""``asterism spark export``: what is new of messages and history, as Parquet by topic and date.

    <folder>/messages/topic=orders/date=2026-01-31/000007-0.parquet
    <folder>/history/topic=orders/date=2026-01-31/000007-1.parquet
    <folder>/<table>/_export/schema-000001.json     the columns, and the version of this layout
    <folder>/<table>/_export/000007.json            what export 7 has added: a line of the log
    <folder>/<table>/_export/staged-…/ …            what export 7 has written and not yet added

What Spark reads in a folder are the names that do not begin with ``_``. So an export writes beside
them, then writes its line of the log, whole or not at all, then moves what it wrote to the places
that the line names, and lastly deletes what it wrote beside.

I1  Before its line is there, an export has added nothing; what it wrote beside is thrown away.
I2  Once its line is there, it will be added whole: the next export first moves what was not moved.
I3  Nothing is added that is there: new is what no file of the dates in question has, by topic and
    sequence, and of history by the time as well, since a message that was renewed ends twice.
I4  One export at a time: one that finds what it wrote taken away has added nothing, and says so.
"""

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from asterism.spark.jobs.common import JobError, read_tables
from asterism.spark.jobs.folders import Folders
from asterism.spark.schemas import SCHEMAS
from asterism.storage.snapshot import Snapshot

LAYOUT: Final = 1  # of the folder: which names lie where
LOG: Final = "_export"
DATE: Final = "date"


class Kind(NamedTuple):
    """What an export of a table goes by: the time that gives its date, and what names a row."""

    time: str
    key: tuple[str, ...]


KINDS: Final = {
    "messages": Kind("accepted_at", ("topic", "sequence")),
    "history": Kind("resolved_at", ("topic", "sequence", "resolved_at")),
}


class Exported(NamedTuple):
    """What one export added to a table."""

    table: str
    number: int | None  # of the export; none where nothing was new
    rows: int
    files: int


# --- the frames -----------------------------------------------------------------------------------


def dated(rows: DataFrame, table: str, payload: bool = True) -> DataFrame:
    """Rows as they are exported. A draft is no message yet, and is exported once it is one."""
    if table == "messages":
        rows = rows.where(sql.col("status") != "drafting")
    if not payload:
        rows = rows.withColumn("payload", sql.lit(None).cast("binary"))
    return rows.withColumn(DATE, sql.to_date(KINDS[table].time))


def new_rows(rows: DataFrame, there: DataFrame | None, table: str) -> DataFrame:
    """Those of the rows that are not there."""
    if there is None:
        return rows
    return rows.join(there, on=[*KINDS[table].key], how="left_anti")


def read(spark: SparkSession, folder: str, table: str) -> DataFrame:
    """What was exported. A column that was added later is null in rows from before."""
    place = f"{folder}/{table}"
    recorded = _recorded(Folders(spark, place), place)
    if recorded is None:
        raise JobError(f"{place}: nothing was exported here")
    return _read(spark, place, recorded)


def _read(spark: SparkSession, place: str, columns: dict[str, str]) -> DataFrame:
    text = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    # The columns are named, so no file decides for the others; and a topic named 17 stays text.
    return spark.read.schema(f"{text}, {DATE} DATE").parquet(place)


# --- the columns ----------------------------------------------------------------------------------


def columns_of(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def merged_columns(recorded: dict[str, str], now: dict[str, str], place: str) -> dict[str, str]:
    """The columns of a folder once rows of these columns are added; refused where that cannot be.

    A column may be added. One that changes its type, or that these rows do not have, was written
    by a version that meant something else: then nothing is touched.
    """
    for name, kind in recorded.items():
        if name not in now:
            raise JobError(
                f"{place}: its column {name!r} is not known to this version of Asterism. It was "
                "exported by a later one: use that, or export into another folder."
            )
        if now[name] != kind:
            raise JobError(
                f"{place}: its column {name!r} is {kind}, and would now be {now[name]}. Export "
                "into another folder."
            )
    return {**recorded, **{name: kind for name, kind in now.items() if name not in recorded}}


def _recorded(folders: Folders, place: str) -> dict[str, str] | None:
    """The columns that a folder has, of the last version; ``None`` where nothing was exported."""
    names = [n for n in folders.names(f"{place}/{LOG}") if _is_json(n, "schema-")]
    if not names:
        return None
    said = json.loads(folders.read(f"{place}/{LOG}/{names[-1]}"))
    if said["layout"] != LAYOUT:
        raise JobError(
            f"{place}: it is laid out by version {said['layout']}, and this version of Asterism "
            f"knows {LAYOUT}. Export into another folder."
        )
    columns: dict[str, str] = said["columns"]
    return columns


def _is_json(name: str, prefix: str = "") -> bool:
    digits = name.removeprefix(prefix).removesuffix(".json")
    return name.startswith(prefix) and name.endswith(".json") and digits.isdecimal()


def _record(folders: Folders, place: str, columns: dict[str, str]) -> None:
    names = [n for n in folders.names(f"{place}/{LOG}") if _is_json(n, "schema-")]
    text = json.dumps({"layout": LAYOUT, "version": len(names) + 1, "columns": columns}, indent=1)
    if not folders.write_new(f"{place}/{LOG}/schema-{len(names) + 1:06}.json", text):
        raise _disturbed(place)


def _disturbed(place: str) -> JobError:
    return JobError(f"{place}: another export is writing here. Run this again when it is done.")


# --- an export ------------------------------------------------------------------------------------


def run(
    spark: SparkSession,
    snapshot: Snapshot,
    folder: str,
    tables: tuple[str, ...] = tuple(KINDS),
    payload: bool = True,
    tell: Callable[[str], None] | None = None,
) -> list[Exported]:
    """Adds what is new in a snapshot to a folder."""
    frames = read_tables(spark, snapshot)
    done = []
    for table in tables:
        if tell is not None:
            tell(table)
        done.append(add(spark, frames[table], table, folder, payload))
    return done


def add(
    spark: SparkSession, rows: DataFrame, table: str, folder: str, payload: bool = True
) -> Exported:
    """Adds what is new of a table to a folder; first finishes what an earlier export began."""
    place = f"{folder}/{table}"
    folders = Folders(spark, place)
    recorded = _recorded(folders, place)
    columns = merged_columns(recorded or {}, columns_of(rows.schema), place)
    last = finish(folders, place)
    if columns != recorded:
        _record(folders, place, columns)
    there = None if recorded is None else _there(_read(spark, place, recorded), rows, table)
    number = last + 1
    name = f"staged-{uuid4().hex}"
    staged = f"{place}/{LOG}/{name}"
    fresh = new_rows(dated(rows, table, payload), there, table)
    fresh.write.partitionBy("topic", DATE).option("compression", "zstd").parquet(staged)
    count = spark.read.schema("sequence BIGINT").parquet(staged).count()
    files = [name for name in folders.files(staged) if name.endswith(".parquet")]
    if not count:
        folders.delete(staged)
        return Exported(table, None, 0, 0)
    moves = {name: _final_name(name, number, at) for at, name in enumerate(files)}
    line = {"number": number, "rows": count, "staged": name, "files": moves}
    whole = files == [n for n in folders.files(staged) if n.endswith(".parquet")]
    if not whole or not folders.write_new(
        f"{place}/{LOG}/{number:06}.json", json.dumps(line, indent=1)
    ):
        raise _disturbed(place)
    _move(folders, place, line)
    return Exported(table, number, count, len(moves))


def _there(exported: DataFrame, rows: DataFrame, table: str) -> DataFrame | None:
    """The keys of what is there, of the dates that the rows have: so no old file is read."""
    first = rows.select(sql.min(sql.to_date(KINDS[table].time))).collect()[0][0]
    if first is None:
        return None
    return exported.where(sql.col(DATE) >= sql.lit(first)).select(*KINDS[table].key)


def _final_name(staged: str, number: int, at: int) -> str:
    folder, _, _ = staged.rpartition("/")
    return f"{folder}/{number:06}-{at}.parquet"


def finish(folders: Folders, place: str) -> int:
    """Brings to its end what an earlier export began; the number of the last one."""
    names = folders.names(f"{place}/{LOG}")
    lines = {}
    for name in names:
        if _is_json(name):
            lines[int(name.removesuffix(".json"))] = f"{place}/{LOG}/{name}"
    last = max(lines, default=0)
    if last:
        _move(folders, place, json.loads(folders.read(lines[last])))
    for name in names:
        # What has no line: nothing of it was added, and it is not known to be whole.
        if name.startswith("staged-"):
            folders.delete(f"{place}/{LOG}/{name}")
    return last


def _move(folders: Folders, place: str, line: dict[str, Any]) -> None:
    """Moves files to the places that a line of the log names; those that are there stay."""
    staged = f"{place}/{LOG}/{line['staged']}"
    for source, target in line["files"].items():
        if folders.exists(f"{place}/{target}"):
            continue
        if not folders.move(f"{staged}/{source}", f"{place}/{target}"):
            raise JobError(f"{place}/{target}: could not be moved here from {staged}")
    folders.delete(staged)


assert set(KINDS) <= set(SCHEMAS)
