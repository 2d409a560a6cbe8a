"""The options of the data source, checked: what is wrong is said with what there is. No Spark."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from asterism.spark.schemas import SCHEMAS, columns_in
from asterism.storage.snapshot import (
    MANIFEST,
    Snapshot,
    SnapshotError,
    list_snapshots,
    open_snapshot,
)

TABLE_DEFAULT: Final = "messages"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# As Spark hands them over: in lower case.
OPTIONS: Final[dict[str, str]] = {
    "path": "a snapshot, or a folder of snapshots, of which the newest is taken",
    "table": f"one of {', '.join(SCHEMAS)}",
    "topics": "names of topics, separated by commas; all if it is not given",
    "columns": "names of columns, separated by commas; all if it is not given",
    "rowsPerPartition": "about how many rows a task reads; 250000",
    "batchRows": "how many rows are handed to Spark at once; 4096",
    "since": "a time: of the history, what ended from then on; else what was accepted from then on",
    "until": "a time: what ended, or was accepted, before it",
    "pushdown": "true: filters are applied while reading, for a frame of one query; false",
    "trace": "a folder in which each task leaves a file that says how many rows it read",
}
READ_OPTIONS: Final = ("since", "until", "pushdown")  # not of a stream
STREAM_OPTIONS: Final = ("startingOffsets", "maxRowsPerTrigger")  # of a stream, besides those


class OptionError(ValueError):
    """An option that there is not, or a value that it cannot have."""


@dataclass(frozen=True)
class Options:
    """What a reader was asked for."""

    path: str
    table: str
    topics: frozenset[str] | None
    columns: tuple[str, ...]
    rows_per_partition: int
    batch_rows: int
    since_ms: int | None
    until_ms: int | None
    pushdown: bool
    trace: str | None


def check_names(given: Mapping[str, str], streaming: bool | None = None) -> None:
    """Refuses an option that there is not; before it is known what for, one that neither has."""
    known = [name for name in OPTIONS if streaming is not True or name not in READ_OPTIONS]
    known += () if streaming is False else STREAM_OPTIONS
    unknown = sorted(set(given) - {name.lower() for name in known})
    if unknown:
        raise OptionError(
            f"asterism has no option {', '.join(unknown)}; there are {', '.join(known)}"
        )


def read_options(given: Mapping[str, str]) -> Options:
    """The options of a batch read."""
    given = {name.lower(): value for name, value in given.items()}
    table = table_of(given)
    path = given.get("path", "")
    if not path:
        raise OptionError("asterism needs a path: load(path), or the option path")
    if table in ("receivers", "topics") and ("since" in given or "until" in given):
        raise OptionError(f"the table {table} has no times: since and until are not for it")
    return Options(
        path,
        table,
        None if (names := _names(given, "topics")) is None else frozenset(names),
        columns_of(given, table),
        count_of(given, "rowsPerPartition", 250_000),
        count_of(given, "batchRows", 4_096),
        _time_ms(given, "since"),
        _time_ms(given, "until"),
        _flag(given, "pushdown", False),
        given.get("trace"),
    )


def table_of(given: Mapping[str, str]) -> str:
    table = given.get("table", TABLE_DEFAULT)
    if table not in SCHEMAS:
        raise OptionError(f"asterism has no table {table!r}; there are {', '.join(SCHEMAS)}")
    return table


def columns_of(given: Mapping[str, str], table: str) -> tuple[str, ...]:
    """The columns that are asked for, in the order asked."""
    there = tuple(columns_in(SCHEMAS[table]))
    asked = _names(given, "columns")
    if asked is None:
        return there
    unknown = [name for name in asked if name not in there]
    if unknown or len(set(asked)) != len(asked):
        what = f"no column {', '.join(unknown)}" if unknown else "each column once"
        raise OptionError(f"the table {table} has {what}; there are {', '.join(there)}")
    return asked


def schema_of(given: Mapping[str, str]) -> str:
    """The text of the schema of what is asked for."""
    table = table_of(given)
    kinds = columns_in(SCHEMAS[table])
    return ", ".join(f"{name} {kinds[name]}" for name in columns_of(given, table))


def _names(given: Mapping[str, str], option: str) -> tuple[str, ...] | None:
    text = given.get(option)
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise OptionError(f"the option {option} names none")
    return names


def count_of(given: Mapping[str, str], option: str, default: int) -> int:
    """An option that is a number from 1 on."""
    text = given.get(option.lower())
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"the option {option} must be a whole number from 1 on, not {text!r}")
    return int(text)


def _flag(given: Mapping[str, str], option: str, default: bool) -> bool:
    text = given.get(option.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"the option {option} must be true or false, not {text!r}")
    return text == "true"


def _time_ms(given: Mapping[str, str], option: str) -> int | None:
    """A time in milliseconds, rounded up: rows have no finer ones, and begin at or after it."""
    text = given.get(option)
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"the option {option} must be a time like 2026-01-31T12:00:00Z, not {text!r}"
        ) from None
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return -((_EPOCH - aware) // timedelta(milliseconds=1))


def find_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """The snapshot at a path, or the newest of those in it; ``SnapshotError`` if there is none."""
    folder = Path(str(path).removeprefix("file://").removeprefix("file:")).absolute()
    if (folder / MANIFEST).exists() or not folder.is_dir():
        return open_snapshot(folder)
    found = list_snapshots(folder)
    if found:
        return found[-1]
    inside = [path for path in sorted(folder.iterdir()) if (path / MANIFEST).exists()]
    if inside:  # none of them can be opened: the newest says why
        return open_snapshot(inside[-1])
    raise SnapshotError(
        f"{folder}: there is no snapshot here, and this is none: a snapshot has a {MANIFEST}, "
        "which is written last. One without it is half-written. Take one: asterism snapshot."
    )
