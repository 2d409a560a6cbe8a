"""What every job begins with: which snapshot, and its tables as data frames."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from asterism.spark.schemas import SCHEMAS, columns_in
from asterism.storage.snapshot import MANIFEST, Snapshot, list_snapshots, open_snapshot

Tables = Mapping[str, DataFrame]


class JobError(Exception):
    """A job cannot be done: what is wrong, and what to do."""


_OURS: Final = re.compile(r"asterism\.[\w.]+Error: (.+)")


def reason_of(error: Exception) -> str:
    """What is wrong, in one line: what our own code said in an executor, else Spark's first line.

    Spark tells its plan, and the stacks of two languages, with it.
    """
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def find_snapshot(given: str | None, home: Path | None = None) -> Snapshot:
    """The snapshot that is meant: a path, the newest of a folder of them, or a name in ``home``.

    With nothing given it is the newest in ``home``. What is no snapshot is a ``SnapshotError``.
    """
    if given is None:
        if home is None:
            raise JobError("no snapshot is named: give its folder")
        return _newest(home)
    path = Path(given)
    if not path.exists() and home is not None and (home / given).exists():
        path = home / given
    if path.is_dir() and not (path / MANIFEST).exists() and list_snapshots(path):
        return _newest(path)
    return open_snapshot(path.absolute())


def _newest(home: Path) -> Snapshot:
    found = list_snapshots(home.absolute())
    if not found:
        raise JobError(f"{home}: there is no snapshot here. Take one with `asterism snapshot`.")
    return found[-1]


def read_tables(
    spark: SparkSession, snapshot: Snapshot, payload: bool = True
) -> dict[str, DataFrame]:
    """The five tables of a snapshot, read when they are asked for; payloads cost most of that."""
    tables = {}
    for name, schema in SCHEMAS.items():
        columns = [column for column in columns_in(schema) if payload or column != "payload"]
        # Spark 4.3 keeps what was pushed down with the table, not with its use: a query that uses
        # one table twice, with different filters, would read both times by one of them.
        reader = spark.read.format("asterism").option("table", name).option("pushdown", "false")
        tables[name] = reader.option("columns", ",".join(columns)).load(str(snapshot.folder))
    return tables


@contextmanager
def kept(tables: Tables) -> Iterator[dict[str, DataFrame]]:
    """The tables, each read once however often it is asked."""
    frames = {name: table.persist(StorageLevel.MEMORY_AND_DISK) for name, table in tables.items()}
    try:
        yield frames
    finally:
        for frame in frames.values():
            frame.unpersist()


def query(tables: Tables, text: str) -> DataFrame:
    """The answer to SQL in which ``{messages}``, ``{history}`` and so on are the tables.

    The views stay: with a view that is dropped, Spark drops what was kept of its table.
    """
    session = next(iter(tables.values())).sparkSession
    names = {name: f"asterism_{name}" for name in tables}
    for name, table in tables.items():
        if f"{{{name}}}" in text:
            table.createOrReplaceTempView(names[name])
    return session.sql(text.format(**names))
