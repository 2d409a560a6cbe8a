"""Reading a snapshot with Spark: rows a second, beside Parquet and beside plain Python.

    python -m tests.benchmark.bench_spark [--messages N] [--rounds N] [--snapshot FOLDER]
                                          [--json FILE]

A broker takes durable 128-byte messages of random bytes for one receiver, on two topics, and a
snapshot of it is read in Spark on two cores (``local[2]``). The same rows are written to Parquet
and read from there in the same run; rounds are interleaved, and medians are told.

- *all columns*: every column is read and handed to nobody (Spark's ``noop`` writer).
- *two columns*: the sums of the sequences and of the payload sizes; the data source is told by its
  option ``columns``, Parquet finds out by itself.
- *count*: counting rows.
- *plain Python*: one process reads all rows of the stores and builds all columns, without Spark.
- *memory*: the most that any Python worker of Spark had resident.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

import asterism
import asterism.spark
from asterism.testing import Broker
from tests.benchmark.report import progress, write_report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 10_000
PAYLOAD_BYTES = 128
TOPICS = ("orders", "events")
TIMEOUT_S = 300
SAMPLE_S = 0.05


def fill(messages: int, folder: Path) -> tuple[Path, float]:
    """A snapshot of a broker that was given so many messages; how many a second it took."""
    with Broker(workers=2) as broker:
        began = time.monotonic()
        with asterism.connect_blocking(broker.address) as node:
            for first in progress(range(0, messages, BATCH), "publishing"):
                payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(min(BATCH, messages - first))]
                topic = TOPICS[first // BATCH % len(TOPICS)]
                node.publish_many(
                    topic, payloads, subject="order/1/paid", max_receivers=1, receipt=False,
                    timeout=TIMEOUT_S,
                )  # fmt: skip
        rate = messages / (time.monotonic() - began)
        shutil.copytree(broker.snapshot(), folder)
    return folder, rate


class Memory:
    """The most that the Python workers of Spark had resident, each by itself."""

    def __init__(self) -> None:
        self.peak = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._stopped.set()
        self._thread.join()
        return self.peak

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stopped.wait(SAMPLE_S):
            for process in me.children(recursive=True):
                try:
                    if "pyspark" in " ".join(process.cmdline()) and "java" not in process.name():
                        self.peak = max(self.peak, process.memory_info().rss)
                except psutil.Error:
                    continue


def plain_python(snapshot: Path) -> float:
    """Reads every row in this process, and builds every column; seconds."""
    from asterism.spark import tables
    from asterism.spark.columns import arrow_schema
    from asterism.spark.options import find_snapshot
    from asterism.spark.planning import Filters, plan
    from asterism.spark.schemas import SCHEMAS
    from asterism.storage.reading import ReadOnlyStore

    found = find_snapshot(snapshot)
    want = tables.Want(arrow_schema(SCHEMAS["messages"]))
    began = time.monotonic()
    for part in plan(found, "messages", Filters(), 1 << 40):
        with ReadOnlyStore(found.store_folder(part.store)) as rows:
            for span in part.spans:
                for _ in tables.messages(rows, part.store, span, want):
                    pass
    return time.monotonic() - began


def ways(spark: "SparkSession", snapshot: Path, parquet: Path) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""

    def source(**options: str) -> "DataFrame":
        return spark.read.format("asterism").options(**options).load(str(snapshot))

    def drain(frame: "DataFrame") -> None:
        frame.write.format("noop").mode("overwrite").save()

    def sums(frame: "DataFrame") -> Any:
        return frame.selectExpr("sum(sequence)", "sum(length(payload))").first()

    return {
        "all columns, asterism": lambda: drain(source()),
        "all columns, parquet": lambda: drain(spark.read.parquet(str(parquet))),
        "two columns, asterism": lambda: sums(source(columns="sequence,payload")),
        "two columns, parquet": lambda: sums(spark.read.parquet(str(parquet))),
        "count, asterism": lambda: source(columns="sequence").count(),
        "count, parquet": lambda: spark.read.parquet(str(parquet)).count(),
        "plain Python, one process": lambda: plain_python(snapshot),
    }


def measure(snapshot: Path, parquet: Path, rounds: int) -> dict[str, float]:
    """Rows a second of each way, the median of the rounds, and the memory of the workers."""
    spark = asterism.spark.session("local[2]", {"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.read.format("asterism").load(str(snapshot))
    frame.write.mode("overwrite").parquet(str(parquet))
    count = spark.read.parquet(str(parquet)).count()
    assert frame.count() == count
    timed = ways(spark, snapshot, parquet)
    assert timed["two columns, asterism"]() == timed["two columns, parquet"]()
    took: dict[str, list[float]] = {name: [] for name in timed}
    memory = Memory()
    for _ in progress(range(rounds), "reading"):
        for name, run in timed.items():
            began = time.monotonic()
            run()
            took[name].append(time.monotonic() - began)
    figures = {"rows": float(count)}
    for name, seconds in took.items():
        figures[f"{name}, rows/s"] = count / statistics.median(seconds)
    for what in ("all columns", "two columns"):
        ours, theirs = took[f"{what}, asterism"], took[f"{what}, parquet"]
        figures[f"{what}, of parquet"] = statistics.median(theirs) / statistics.median(ours)
    figures["memory of a worker, MB"] = memory.stop() / 1e6
    spark.stop()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="Reading a snapshot with Spark.")
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--snapshot", help="a snapshot that is there already")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        figures: dict[str, float] = {}
        if options.snapshot is None:
            snapshot, figures["published, messages/s"] = fill(options.messages, scratch / "taken")
        else:
            snapshot = Path(options.snapshot)
        figures.update(measure(snapshot, scratch / "parquet", options.rounds))
    write_report("spark", figures, options.json)


if __name__ == "__main__":
    main()
