"""The data source itself: options, filters, partitions, and snapshots that are damaged."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from asterism.spark.schemas import SCHEMAS
from asterism.storage.snapshot import open_snapshot
from tests.spark.world import LOG, MIXED, POOL, WORK, World

pytestmark = pytest.mark.process
Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, world: World) -> Read:
    def reading(path: Path | None = None, **options: object) -> DataFrame:
        given = {name: str(value) for name, value in options.items()}
        return spark.read.format("asterism").options(**given).load(str(path or world.folder))

    return reading


def refusal(action: Callable[[], object]) -> str:
    """What is said when something cannot be read."""
    with pytest.raises(Exception) as refused:
        action()
    return str(refused.value)


def scanned(trace: Path) -> int:
    """How many rows the tasks of a query have read."""
    told = [json.loads(path.read_text()) for path in trace.glob("*.json")]
    return sum(sum(one["scanned"].values()) for one in told)


# --- options --------------------------------------------------------------------------------------


def test_columns_that_are_asked_for_are_those_that_come(read: Read, world: World) -> None:
    frame = read(columns="sequence, topic,payload_bytes")
    assert frame.columns == ["sequence", "topic", "payload_bytes"]
    assert frame.schema["sequence"].dataType.simpleString() == "bigint"
    found = {(row.topic, row.sequence): row.payload_bytes for row in frame.collect()}
    assert found == {key: len(said["payload"]) for key, said in world.messages.items()}


def test_a_schema_of_ones_own_is_a_choice_of_columns(
    spark: SparkSession, world: World, read: Read
) -> None:
    reader = spark.read.format("asterism").schema("topic STRING, sequence BIGINT")
    assert reader.load(str(world.folder)).count() == len(world.messages)
    other = spark.read.format("asterism").schema("sequence STRING")
    said = refusal(other.load(str(world.folder)).collect)
    assert "no column sequence string" in said and "sequence BIGINT" in said


def test_topics_that_are_asked_for_are_those_that_come(read: Read, world: World) -> None:
    names = {row.topic for row in read(topics=f"{POOL}, {MIXED}", columns="topic").collect()}
    assert names == {POOL, MIXED}
    said = refusal(read(topics="nobody").collect)
    assert "no topic nobody" in said and POOL in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "parked"}, ["no table 'parked'", *SCHEMAS]),
        ({"tabel": "messages"}, ["no option tabel", "rowsPerPartition", "pushdown"]),
        ({"columns": "topic,size"}, ["no column size", "payload_bytes"]),
        ({"columns": "topic,topic"}, ["each column once"]),
        ({"columns": " , "}, ["columns names none"]),
        ({"rowsPerPartition": "0"}, ["rowsPerPartition", "from 1 on"]),
        ({"batchRows": "many"}, ["batchRows", "'many'"]),
        ({"pushdown": "perhaps"}, ["pushdown", "true or false"]),
        ({"since": "yesterday"}, ["since", "2026-01-31T12:00:00Z", "'yesterday'"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_option_that_is_wrong_is_refused_with_what_there_is(
    read: Read, options: dict[str, str], words: list[str]
) -> None:
    said = refusal(lambda: read(**options).collect())
    assert all(word in said for word in words), said


# --- filters --------------------------------------------------------------------------------------

FILTERS = {
    "a topic": ("messages", f"topic = '{POOL}'"),
    "topics": ("messages", f"topic IN ('{LOG}', '{MIXED}')"),
    "sequences": ("messages", f"topic = '{LOG}' AND sequence >= 3 AND sequence < 9"),
    "one sequence": ("deliveries", f"topic = '{LOG}' AND sequence = 5"),
    "some sequences": ("messages", f"topic = '{LOG}' AND sequence IN (3, 5)"),
    "nothing": ("messages", "sequence > 9 AND sequence < 4"),
    "nobody": ("receivers", "topic = 'nobody'"),
    "history of a topic": ("history", f"topic = '{WORK}'"),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_reads_less_and_answers_the_same(
    read: Read, world: World, tmp_path: Path, name: str
) -> None:
    table, condition = FILTERS[name]
    answers, counts = [], []
    for pushdown in ("true", "false"):
        trace = tmp_path / pushdown
        frame = read(table=table, pushdown=pushdown, trace=trace).filter(condition)
        answers.append(sorted(map(str, frame.collect())))
        counts.append(scanned(trace))
    assert answers[0] == answers[1]
    assert counts[0] < counts[1]
    if "noth" in name or "nobody" in name:
        assert counts[0] == 0 and not answers[0]
    else:
        assert answers[0] and counts[0] <= 3 * len(answers[0])


def test_a_time_and_a_status_are_filtered_to_the_microsecond(read: Read, world: World) -> None:
    rows = read().collect()
    for status in ("drafting", "received"):
        found = read(pushdown="true").filter(f"status = '{status}'").count()
        assert found == sum(row.status == status for row in rows) > 0
    times = sorted({row.accepted_at for row in rows})
    middle = times[len(times) // 2]
    after = middle + timedelta(microseconds=1)
    for condition, expected in (
        (col("accepted_at") > middle, sum(row.accepted_at > middle for row in rows)),
        (col("accepted_at") == middle, sum(row.accepted_at == middle for row in rows)),
        (col("accepted_at") < after, sum(row.accepted_at <= middle for row in rows)),
    ):
        assert read(pushdown="true").filter(condition).count() == expected


def test_a_frame_may_be_used_again_with_other_filters(read: Read, world: World) -> None:
    frame = read()
    counts = Counter(topic for topic, _ in world.messages)
    assert frame.filter(f"topic = '{POOL}'").count() == counts[POOL]
    assert frame.count() == len(world.messages)
    both = frame.filter(f"topic = '{LOG}'").union(frame.filter(f"topic = '{MIXED}'"))
    assert both.count() == counts[LOG] + counts[MIXED]


def test_a_span_of_time_is_read_by_itself(read: Read, world: World, tmp_path: Path) -> None:
    for table, column in (("history", "resolved_at"), ("messages", "accepted_at")):
        times = sorted(row[column] for row in read(table=table).collect())
        since, until = times[1].astimezone(UTC), times[-1].astimezone(UTC)
        frame = read(
            table=table, since=since.isoformat(), until=until.isoformat(), trace=tmp_path / table
        )
        found = sorted(row[column] for row in frame.collect())
        assert found == [time for time in times if times[1] <= time < times[-1]]
        assert (scanned(tmp_path / table) < len(times)) is (table == "history")


def test_a_time_of_ending_is_a_range_of_keys(read: Read, tmp_path: Path) -> None:
    rows = read(table="history").collect()
    first = min(row.resolved_at for row in rows)
    frame = read(table="history", pushdown="true", trace=tmp_path)
    assert frame.filter(frame.resolved_at <= first).count() == sum(
        row.resolved_at == first for row in rows
    )
    assert scanned(tmp_path) < len(rows)


def test_a_filter_that_is_not_understood_is_left_to_spark(read: Read, world: World) -> None:
    wanted = [said for said in world.messages.values() if said["priority"] == 0]
    taken = read(pushdown="true")
    frame = taken.filter("priority = 0 AND status != 'sent' AND topic LIKE 'g%'")
    assert frame.count() == len(wanted) == 1
    either = read(pushdown="true").filter(f"topic = '{POOL}' OR sequence = 3")
    assert either.count() == sum(
        topic == POOL or sequence == 3 for topic, sequence in world.messages
    )


# --- partitions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["messages", "deliveries", "history"])
def test_many_small_parts_hold_every_row_once(read: Read, table: str) -> None:
    whole = read(table=table)
    split = read(table=table, rowsPerPartition=3, batchRows=2)
    assert split.rdd.getNumPartitions() > whole.rdd.getNumPartitions()
    assert sorted(map(str, split.collect())) == sorted(map(str, whole.collect()))


def test_small_topics_share_a_part(read: Read, world: World) -> None:
    stores = {told["store"] for told in open_snapshot(world.folder).topics.values()}
    assert read(table="topics").rdd.getNumPartitions() == len(stores)


def test_a_folder_of_snapshots_stands_for_its_newest(
    read: Read, world: World, tmp_path: Path
) -> None:
    newer = tmp_path / "newer"
    shutil.copytree(world.folder, newer)
    manifest = json.loads((newer / "manifest.json").read_text())
    manifest["time_ms"] += 1_000
    (newer / "manifest.json").write_text(json.dumps(manifest))
    shutil.copytree(world.folder, tmp_path / "older")
    (tmp_path / "half").mkdir()
    times = {row.snapshot_at.timestamp() for row in read(tmp_path, table="topics").collect()}
    assert times == {manifest["time_ms"] / 1_000}


# --- damage ---------------------------------------------------------------------------------------


@pytest.fixture
def copied(world: World, tmp_path: Path) -> Path:
    """A snapshot to be spoilt."""
    folder = tmp_path / "spoilt"
    shutil.copytree(world.folder, folder)
    return folder


def store_of(folder: Path, topic: str) -> Path:
    snapshot = open_snapshot(folder)
    return snapshot.store_folder(snapshot.topics[topic]["store"])


def test_a_flipped_byte_is_an_error_and_never_a_missing_row(read: Read, copied: Path) -> None:
    tables = sorted(store_of(copied, POOL).glob("*.sst"))
    assert tables
    for path in tables:
        spoilt = bytearray(path.read_bytes())
        at = spoilt.find(b"order/1")  # within a block of rows
        if at >= 0:
            spoilt[at] ^= 0xFF
            path.write_bytes(spoilt)
            break
    else:  # compressed: a byte near the beginning is of the first block
        spoilt = bytearray(tables[0].read_bytes())
        spoilt[20] ^= 0xFF
        tables[0].write_bytes(spoilt)
    said = refusal(read(copied).collect)
    assert "reading failed" in said and str(store_of(copied, POOL)) in said


def test_rows_that_the_manifest_counted_and_are_not_there_are_missed(
    read: Read, copied: Path
) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["topics"][POOL]["held"] += 1
    (copied / "manifest.json").write_text(json.dumps(manifest))
    said = refusal(read(copied).collect)
    assert f"'{POOL}'" in said and "rows are missing" in said


def test_a_store_that_is_not_there_is_named(read: Read, copied: Path) -> None:
    gone = store_of(copied, POOL)
    shutil.rmtree(gone)
    said = refusal(read(copied).collect)
    assert gone.name in said and "not there" in said


def test_what_is_no_snapshot_is_said_to_be_none(read: Read, copied: Path, tmp_path: Path) -> None:
    (copied / "manifest.json").unlink()
    assert "half-written" in refusal(read(copied).collect)
    assert "no such folder" in refusal(read(tmp_path / "nowhere").collect)
    (tmp_path / "empty").mkdir()
    assert "no snapshot here" in refusal(read(tmp_path / "empty").collect)


def test_a_snapshot_of_another_format_is_refused(read: Read, copied: Path) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    (copied / "manifest.json").write_text(json.dumps({**manifest, "version": 99}))
    assert "format 99" in refusal(read(copied).collect)
