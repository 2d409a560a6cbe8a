"""``asterism spark``: jobs over snapshots. They need the extra ``spark``."""

import argparse
import csv
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from asterism.cli import context, output
from asterism.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from asterism.storage.snapshot import Snapshot

NEEDED: Final = ("pyspark", "pyarrow", "pandas", "rocksdict")
POLL_S: Final = 0.25
CELL_MAX: Final = 60  # letters of a cell of a table for people
_TOLD_TWICE: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")  # as exceptions too
# Spark has much to say while it starts; what goes wrong still comes.
_QUIET: Final = {"spark.log.level": "ERROR"}


@dataclass(frozen=True)
class Job:
    """What a job has: Spark, the snapshot, and a line on the terminal."""

    spark: "SparkSession"
    snapshot: "Snapshot"
    progress: "Progress"


class Progress:
    """How far Spark has come, on a terminal: asked of Spark now and then, on a thread."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_shown = is_wanted and sys.stderr.isatty()
        self._what = "starting Spark"
        self._over = threading.Event()
        self._spark: SparkSession | None = None
        self._began = time.monotonic()
        self._width = 0
        self._terminal = os.fdopen(os.dup(2), "w") if self._is_shown else sys.stderr
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Progress":
        if self._is_shown:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._is_shown:
            self._thread.join()
            self._terminal.write("\r" + " " * self._width + "\r")
            self._terminal.close()

    def watch(self, spark: "SparkSession") -> None:
        self._spark = spark

    def tell(self, what: str) -> None:
        self._what = what

    def _run(self) -> None:
        while not self._over.wait(POLL_S):
            line = self._line()
            self._terminal.write("\r" + line.ljust(self._width))
            self._terminal.flush()
            self._width = len(line)

    def _line(self) -> str:
        done, tasks = self._tasks()
        bar = ""
        if tasks:
            part = done / tasks
            bar = f"[{'#' * int(30 * part):30}] {done}/{tasks} tasks  "
        return f"{bar}{self._what}  {time.monotonic() - self._began:.0f} s"

    def _tasks(self) -> tuple[int, int]:
        if self._spark is None:
            return 0, 0
        try:
            tracker = self._spark.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except Exception:  # Spark is ending, or has ended: there is nothing to show
            return 0, 0
        found = [stage for stage in stages if stage is not None]
        done = sum(stage.numCompletedTasks for stage in found)
        return done, sum(stage.numTasks for stage in found)


@contextmanager
def _job(options: argparse.Namespace) -> Iterator[Job]:
    """Spark and the snapshot, for one job; what goes wrong in it is one line."""
    _check_installed()
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    import asterism.spark
    from asterism.spark.jobs.common import JobError, find_snapshot, reason_of
    from asterism.storage.snapshot import SnapshotError

    try:
        home = context.data_folder(_config(options)) / "snapshots"
        snapshot = find_snapshot(options.snapshot, home)
    except (SnapshotError, JobError) as error:
        raise output.CommandError(str(error), output.WRONG_USE) from error
    with Progress(not options.json) as progress:
        master = options.master or "local[*]"
        is_ours = SparkSession.getActiveSession() is None  # else whoever made it goes on with it
        with _hushed("spark.log.level" not in dict(options.conf)):
            spark = asterism.spark.session(master, {**_QUIET, **dict(options.conf)})
        try:
            if not master.startswith("local"):
                spark.sparkContext.addPyFile(str(asterism.spark.package()))
            for name in _TOLD_TWICE:
                PySparkLogger.getLogger(name).disabled = True
            progress.watch(spark)
            yield Job(spark, snapshot, progress)
        except (SnapshotError, JobError) as error:
            raise output.CommandError(str(error)) from error
        except PySparkException as error:
            raise output.CommandError(reason_of(error)) from error
        finally:
            if is_ours:
                spark.stop()


@contextmanager
def _hushed(is_wanted: bool) -> Iterator[None]:
    """Keeps what a starting Spark says from the terminal, unless it fails to start.

    The program beneath takes its standard error from here, and keeps it: what goes wrong later
    comes as an exception. A log level in ``--conf`` brings it all back.
    """
    if not is_wanted:
        yield
        return
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            said.seek(0)
            os.write(terminal, said.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def _config(options: argparse.Namespace) -> Config:
    return context.configuration(options)


def _check_installed() -> None:
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise output.CommandError(
            f"this needs {', '.join(missing)}: pip install 'asterism[spark]'", output.WRONG_USE
        )


# --- the jobs -------------------------------------------------------------------------------------


def report(options: argparse.Namespace) -> int:
    with _job(options) as job:
        from asterism.spark.jobs import report

        done = report.run(job.spark, job.snapshot, Path(options.out), job.progress.tell)
    if options.json:
        output.say_json({"folder": done.folder, "page": done.page, "rows": done.rows})
    else:
        output.say(f"{done.page}  ({len(done.rows)} tables beside it, as Parquet and JSON)")
    return output.DONE


def export(options: argparse.Namespace) -> int:
    folder = options.out if "://" in options.out else str(Path(options.out).absolute())
    with _job(options) as job:
        from asterism.spark.jobs import export

        tables = tuple(options.table or export.KINDS)
        done = export.run(
            job.spark, job.snapshot, folder, tables, not options.no_payload, job.progress.tell
        )
    if options.json:
        output.say_json({"folder": folder, "tables": [entry._asdict() for entry in done]})
    else:
        for entry in done:
            output.say(f"{folder}/{entry.table}  {entry.rows:,} new rows, {entry.files} files")
    return output.DONE


def replay(options: argparse.Namespace) -> int:
    with _job(options) as job:
        from asterism.spark.jobs import replay

        wanted = replay.Wanted(options.to, options.source, options.where, options.ttl, options.name)
        if options.dry_run:
            job.progress.tell("counting")
            return _say_count(options, replay.count(job.spark, job.snapshot, wanted))
        home = context.data_folder(_config(options)) / "replays"
        folder = options.progress or home / replay.replay_id(job.snapshot, wanted)
        done = replay.run(
            job.spark, job.snapshot, wanted, Path(folder), context.address(options),
            options.rate, options.producers, options.timeout, job.progress.tell,
        )  # fmt: skip
    if options.json:
        output.say_json({**done._asdict(), "progress": folder})
    else:
        again = " (it had begun before)" if done.is_resumed else ""
        output.say(f"{done.published:,} of {done.selected:,} are published{again}; {folder}")
        for code, number in sorted(done.refused.items()):
            output.warn(f"{number:,} were refused: {code}")
    return output.REFUSED if done.refused else output.DONE


def _say_count(options: argparse.Namespace, counts: dict[str, int]) -> int:
    total = sum(counts.values())
    if options.json:
        output.say_json({"selected": total, "topics": counts})
    else:
        if counts:
            rows = [(topic, f"{number:,}") for topic, number in counts.items()]
            output.say(output.table(("topic", "messages"), rows))
        output.say(f"{total:,} would be published to {options.to}")
    return output.DONE


def audit(options: argparse.Namespace) -> int:
    with _job(options) as job:
        from asterism.spark.jobs import audit

        job.progress.tell("checking")
        found = audit.run(job.spark, job.snapshot)
        folder = job.snapshot.folder
    if options.json:
        output.say_json({"snapshot": folder, "found": [entry._asdict() for entry in found]})
        return output.REFUSED if found else output.DONE
    for entry in found:
        output.say(f"{entry.check}: {entry.promise}; {entry.misfits:,} rows do not fit")
        head = ("topic", "sequence", "receiver", "detail")
        output.say(output.table(head, [[row[name] for name in head] for row in entry.rows]))
        if entry.misfits > len(entry.rows):
            output.say(f"… and {entry.misfits - len(entry.rows):,} more")
        output.say()
    if found:
        output.warn(f"{folder}: {len(found)} checks do not hold")
        return output.REFUSED
    output.say(f"{folder}: all {len(audit.CHECKS)} checks hold")
    return output.DONE


def sql(options: argparse.Namespace) -> int:
    if options.json and options.csv:
        raise output.CommandError("give --json or --csv, not both", output.WRONG_USE)
    with _job(options) as job:
        from asterism.spark.jobs import sql

        job.progress.tell("asking")
        answer = sql.run(job.spark, job.snapshot, options.query, options.limit or None)
    if options.json:
        rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
        output.say_json(rows)
    elif options.csv:
        texts = [["" if cell is None else _text(cell) for cell in row] for row in answer.rows]
        with output.writing():
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(answer.columns)
            writer.writerows(texts)
            sys.stdout.flush()
    else:
        output.say(output.table(answer.columns, [list(map(_cell, row)) for row in answer.rows]))
    if answer.is_cut:
        output.warn(f"there are more than {options.limit:,} rows: see --limit")
    return output.DONE


def _text(value: Any) -> str:
    """A value as text: bytes where they are text, else their digits."""
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return value.hex()
        return text if text.isprintable() else value.hex()
    return str(value)


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    text = " ".join(_text(value).split())
    return text if len(text) <= CELL_MAX else text[: CELL_MAX - 1] + "…"
