"""What every job begins with: which snapshot, and its tables as data frames."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from asterism.spark.options import columns_in
from asterism.spark.schemas import SCHEMAS
from asterism.storage.snapshot import MANIFEST, Snapshot, list_snapshots, open_snapshot

Tables = Mapping[str, DataFrame]


class JobError(Exception):
    """A job cannot be done: what is wrong, and what to do."""


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
        reader = spark.read.format("asterism").option("table", name)
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
    """The answer to SQL in which ``{messages}``, ``{history}`` and so on are the tables."""
    session = next(iter(tables.values())).sparkSession
    named = {name: table for name, table in tables.items() if f"{{{name}}}" in text}
    return session.sql(text, None, **named)
