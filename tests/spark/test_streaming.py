"""A stream over a real broker's snapshots: every row once, whatever is stopped, killed or deleted.

What has to come out is taken from the snapshots themselves, by scanning their stores: every message
that some snapshot had, and every ending before the last snapshot's time.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import asterism
from asterism.sdk.client import BlockingNode
from asterism.spark.options import OptionError, schema_of
from asterism.storage.keys import TopicKeys, number_at_end
from asterism.storage.reading import ReadOnlyStore
from asterism.storage.snapshot import delete_snapshot, list_snapshots
from asterism.storage.store import StoreError
from asterism.testing import Broker
from tests.support.batches import some_blocking

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from asterism.spark.stream import StreamReader

WAIT_S = 120  # nobody waits so long, but on a machine that is busy with something else
_Row = tuple[str, int]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(workers=2, config={"stores": 3}) as running:
        (running.data_dir / "snapshots").mkdir()
        yield running


@pytest.fixture(scope="module")
def node(broker: Broker) -> Iterator[BlockingNode]:
    with asterism.connect_blocking(broker.address, name="streams") as connected:
        yield connected


@pytest.fixture
def home(broker: Broker) -> Path:
    return broker.data_dir / "snapshots"


def publish(node: BlockingNode, topic: str, count: int) -> None:
    """Messages for one receiver and for several, by turns."""
    for at in range(0, count, 20):
        wishes: dict[str, Any] = {"max_receivers": 1} if at % 40 else {}
        node.publish_many(topic, [b"%d" % number for number in range(at, at + 20)], **wishes)


def finish(node: BlockingNode, topic: str, count: int) -> None:
    """Messages from publishing to their end, so that they are in the history alone."""
    with node.subscribe(topic, name="reader", durable=True) as inbox:
        node.publish_many(topic, [b"x"] * count, max_receivers=1, expect="processed")
        left = count
        until = time.monotonic() + WAIT_S
        while left:
            assert time.monotonic() < until
            batch = some_blocking(inbox, left, 1)
            inbox.processed(batch)
            left -= len(batch)


def messages_in(home: Path, *topics: str) -> set[_Row]:
    """Every message that some snapshot has."""
    found: set[_Row] = set()
    for snapshot in list_snapshots(home):
        for topic in snapshot.topics.keys() & set(topics):
            told = snapshot.topics[topic]
            keys = TopicKeys(told["number"])
            with ReadOnlyStore(snapshot.store_folder(told["store"])) as store:
                for kind in "ml":
                    rows = store.scan(*keys.range_of(kind))
                    found |= {(topic, number_at_end(key)) for key, _ in rows}
    return found


class Query:
    """A query into Parquet with a checkpoint of its own, which may be run any number of times."""

    def __init__(self, spark: "SparkSession", home: Path, at: Path, **options: str) -> None:
        self._spark, self._home, self._options = spark, home, options
        self.sink, self.checkpoint = at / "sink", at / "checkpoint"

    def frame(self) -> "DataFrame":
        stream = self._spark.readStream.format("asterism").options(**self._options)
        return stream.load(str(self._home))

    def run(self) -> None:
        """Reads what there is by now, and ends."""
        query = self._start(availableNow=True)
        assert query.awaitTermination(WAIT_S), "the query does not end"

    def run_until(self, is_so: Callable[[], bool]) -> None:
        """Runs on until something is so, and stops it, wherever it is then."""
        query = self._start(processingTime="0 seconds")
        try:
            wait_until(lambda: is_so() or not query.isActive)
            assert query.exception() is None
        finally:
            query.stop()

    def _start(self, **trigger: Any) -> Any:
        writer = self.frame().writeStream.format("parquet").trigger(**trigger)
        return writer.option("checkpointLocation", str(self.checkpoint)).start(str(self.sink))

    def batches(self) -> int:
        """How many batches are done with, over all runs."""
        return sum(path.name.isdigit() for path in (self.checkpoint / "commits").glob("*"))

    def rows(self) -> Counter[_Row]:
        """What is in the sink, by its own log of which files count."""
        read = self._spark.read.parquet(str(self.sink)).select("topic", "sequence").collect()
        return Counter((row.topic, row.sequence) for row in read)


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.02)


def once(rows: set[_Row]) -> Counter[_Row]:
    return Counter(rows)


# --- messages -------------------------------------------------------------------------------------


def test_every_message_comes_once_over_restarts_while_the_broker_works(
    spark: "SparkSession", broker: Broker, node: BlockingNode, home: Path, tmp_path: Path
) -> None:
    topics = ("load-a", "load-b", "load-new")
    query = Query(spark, home, tmp_path, topics=",".join(topics), maxRowsPerTrigger="300")
    stopping = threading.Event()

    def work() -> None:
        with asterism.connect_blocking(broker.address, name="load") as own:
            while not stopping.wait(0.1):
                for topic in topics if query.batches() else topics[:2]:
                    publish(own, topic, 20)
                broker.snapshot()

    publish(node, topics[0], 400)
    broker.snapshot()
    working = threading.Thread(target=work)
    working.start()
    try:
        query.run()
        before = query.batches()
        query.run_until(lambda: query.batches() > before)
    finally:
        stopping.set()
        working.join(WAIT_S)
    publish(node, topics[-1], 20)
    broker.snapshot()
    Query(spark, home, tmp_path, topics=",".join(topics)).run()
    published = messages_in(home, *topics)
    assert {topic for topic, _ in published} == set(topics)
    assert query.rows() == once(published)


def test_a_driver_that_is_killed_loses_nothing_and_repeats_nothing(
    spark: "SparkSession", broker: Broker, node: BlockingNode, home: Path, tmp_path: Path
) -> None:
    for _ in range(3):
        publish(node, "killed", 400)
        broker.snapshot()
    query = Query(spark, home, tmp_path, topics="killed")
    program = f"""
import asterism.spark
spark = asterism.spark.session("local[2]", {{"spark.local.dir": {str(tmp_path)!r}}})
stream = spark.readStream.format("asterism").options(topics="killed", maxRowsPerTrigger="60")
writer = stream.load({str(home)!r}).writeStream.format("parquet")
writer = writer.option("checkpointLocation", {str(query.checkpoint)!r})
writer.start({str(query.sink)!r}).awaitTermination()
"""
    driver = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # the driver, its Java and its workers are one group
    )
    try:
        wait_until(lambda: query.batches() >= 2 or driver.poll() is not None)
        assert driver.poll() is None
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(WAIT_S)
    published = messages_in(home, "killed")
    assert 2 <= query.batches() < len(published) // 60, "it was killed in the middle"
    query.run()
    assert query.rows() == once(published)


def test_a_planned_snapshot_that_is_deleted_is_read_from_a_newer_one(
    spark: "SparkSession", broker: Broker, node: BlockingNode, home: Path, tmp_path: Path
) -> None:
    publish(node, "retained", 60)
    planned = broker.snapshot()
    query = Query(spark, home, tmp_path, topics="retained")
    collected: Counter[_Row] = Counter()

    def on_batch(frame: "DataFrame", number: int) -> None:
        if planned.exists():  # after the batch was planned, and before a task has read
            publish(node, "retained", 20)
            broker.snapshot()
            for snapshot in list_snapshots(home)[:-1]:
                delete_snapshot(snapshot.folder)
        read = frame.select("topic", "sequence").collect()
        collected.update((row.topic, row.sequence) for row in read)

    for _ in range(2):  # the second finds what came meanwhile
        writer = query.frame().writeStream.foreachBatch(on_batch).trigger(availableNow=True)
        started = writer.option("checkpointLocation", str(query.checkpoint)).start()
        assert started.awaitTermination(WAIT_S)
    assert not planned.exists()
    assert collected == once(messages_in(home, "retained"))
    assert len(collected) == 80


def test_a_topic_that_is_made_again_goes_on_and_one_that_moves_comes_once(
    spark: "SparkSession", broker: Broker, node: BlockingNode, home: Path, tmp_path: Path
) -> None:
    query = Query(spark, home, tmp_path, topics="again,moves")
    publish(node, "again", 40)
    publish(node, "moves", 40)
    broker.snapshot()
    query.run()
    expected = messages_in(home, "again", "moves")
    node.delete_topic("again")
    publish(node, "again", 20)
    node.configure("moves", dedicated=True)
    wait_until(
        lambda: any("moves" in (told or {})["dedicated"] for told in node.query_status()["workers"])
    )
    publish(node, "moves", 20)
    broker.snapshot()
    expected |= messages_in(home, "again", "moves")
    query.run()
    assert query.rows() == once(expected)
    assert len(expected) == 120


def test_latest_begins_with_what_comes_after_the_newest_snapshot(
    spark: "SparkSession", broker: Broker, node: BlockingNode, home: Path, tmp_path: Path
) -> None:
    publish(node, "later", 20)
    broker.snapshot()
    before = messages_in(home, "later")
    query = Query(spark, home, tmp_path, topics="later", startingOffsets="latest")
    query.run()
    publish(node, "later", 20)
    broker.snapshot()
    query.run()
    assert query.rows() == once(messages_in(home, "later") - before)


# --- history --------------------------------------------------------------------------------------


def test_every_ending_comes_once_over_restarts_and_snapshots(
    spark: "SparkSession", broker: Broker, node: BlockingNode, home: Path, tmp_path: Path
) -> None:
    topics = ("ends-a", "ends-b")
    for topic in topics:
        node.create_topic(topic, history="headers")
    query = Query(spark, home, tmp_path, table="history", topics=",".join(topics))
    stopping = threading.Event()

    def work() -> None:
        with asterism.connect_blocking(broker.address, name="ends") as own:
            while not stopping.wait(0.01):
                for topic in topics:
                    finish(own, topic, 7)

    working = threading.Thread(target=work)
    working.start()
    try:
        for _ in range(2):
            for _ in range(4):  # in the middle of a millisecond in which messages end
                broker.snapshot()
            query.run()
    finally:
        stopping.set()
        working.join(WAIT_S)
    time.sleep(0.01)  # the last ones end before the snapshot's time
    broker.snapshot()
    query.run()
    rows = query.rows()
    assert set(rows.values()) == {1}
    counted = Counter(topic for topic, _ in rows)
    assert counted == {topic: node.describe(topic).completed for topic in topics}


# --- without Spark --------------------------------------------------------------------------------


def reader(home: Path, **options: str) -> "StreamReader":
    from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

    from asterism.spark.stream import StreamReader, reader_of

    assert schema_of({"columns": "topic,sequence,payload"}).startswith("topic STRING")
    fields = [("topic", StringType()), ("sequence", LongType()), ("payload", BinaryType())]
    schema = StructType([StructField(name, kind) for name, kind in fields])
    made = reader_of({"path": str(home), **options}, schema)
    assert isinstance(made, StreamReader)
    return made


def read_all(made: "StreamReader", start: dict[str, Any], end: dict[str, Any]) -> list[_Row]:
    """What tasks would read, each with a copy of the reader."""
    rows: list[_Row] = []
    for partition in made.partitions(start, end):
        copy = pickle.loads(pickle.dumps(made))
        for batch in copy.read(pickle.loads(pickle.dumps(partition))):
            rows += zip(*(batch.column(at).to_pylist() for at in range(2)), strict=True)
    return rows


def test_a_task_goes_on_in_a_newer_snapshot_when_its_own_is_deleted_while_it_reads(
    broker: Broker, node: BlockingNode, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    publish(node, "midway", 100)
    first = broker.snapshot()
    made = reader(home, topics="midway", batchRows="7", rowsPerPartition="1000")
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    expected = messages_in(home, "midway")
    scan, left = ReadOnlyStore.scan_blocks, [5]

    def breaking(
        self: ReadOnlyStore, low: bytes, high: bytes, size: int
    ) -> Iterator[tuple[list[bytes], list[bytes]]]:
        for block in scan(self, low, high, size):
            if self.folder.parent == first:
                left[0] -= 1
                if left[0] == 0:
                    broker.snapshot()
                    for snapshot in list_snapshots(home)[:-1]:
                        delete_snapshot(snapshot.folder)
                if left[0] <= 0:
                    raise StoreError("a file of it is missing")
            yield block

    monkeypatch.setattr(ReadOnlyStore, "scan_blocks", breaking)
    rows = read_all(made, start, end)
    monkeypatch.undo()
    assert left[0] <= 0, "it was deleted while it was read"
    assert Counter(rows) == once(expected)


def test_a_damaged_snapshot_is_an_error_though_a_newer_one_is_whole(
    broker: Broker, node: BlockingNode, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    publish(node, "damaged", 20)
    broker.snapshot()
    broker.snapshot()
    made = reader(home, topics="damaged")
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())

    def broken(self: ReadOnlyStore, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        raise StoreError("a block of it is damaged")

    monkeypatch.setattr(ReadOnlyStore, "scan", broken)
    with pytest.raises(StoreError, match="damaged"):
        read_all(made, start, end)


@pytest.mark.parametrize("table", ["messages", "history"])
def test_batches_have_no_more_rows_than_asked_for_and_many_parts(
    broker: Broker, node: BlockingNode, home: Path, table: str
) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    topic = f"limited-{table}"
    node.create_topic(topic, history="headers")
    if table == "messages":
        publish(node, topic, 100)
    else:
        for _ in range(10):
            finish(node, topic, 5)
        time.sleep(0.01)  # the last ones end before the snapshot's time
    broker.snapshot()
    made = reader(home, topics=topic, table=table, maxRowsPerTrigger="25", rowsPerPartition="10")
    offset, rows = made.initialOffset(), []
    limit = made.getDefaultReadLimit()
    assert limit == ReadMaxRows(25)
    while (end := made.latestOffset(offset, limit)) != offset:
        end = json.loads(json.dumps(end))
        batch = read_all(made, offset, end)
        assert 0 < len(batch) <= (25 if table == "messages" else 50)
        assert len(made.partitions(offset, end)) >= len(batch) // 20
        rows += batch
        offset = end
    assert len(rows) == len(set(rows)) == (100 if table == "messages" else 50)


def test_what_is_handed_to_tasks_holds_nothing_open(
    broker: Broker, node: BlockingNode, home: Path
) -> None:
    publish(node, "handles", 20)
    broker.snapshot()
    made = reader(home, topics="handles")
    size = len(pickle.dumps(made))
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    start = made.initialOffset()
    made.partitions(start, made.latestOffset(start, ReadAllAvailable()))
    assert len(pickle.dumps(made)) == size


def test_what_cannot_be_followed_is_refused(broker: Broker, home: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="messages or history"):
        reader(home, table="deliveries")
    with pytest.raises(OptionError, match="earliest or latest"):
        reader(home, startingOffsets="now")
    with pytest.raises(OptionError, match="maxRowsPerTrigger"):
        reader(home, maxRowsPerTrigger="0")
    with pytest.raises(OptionError, match="no such folder"):
        reader(tmp_path / "nowhere")
    with pytest.raises(OptionError, match="one snapshot"):
        reader(broker.snapshot())
