"""Replays: exactly what is selected, each message once, whatever ends them halfway; a rate."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import asterism
from asterism.sdk.client import BlockingDelivery
from asterism.spark.jobs import export, replay
from asterism.spark.jobs.common import JobError
from asterism.spark.jobs.replay import Pace, Progress, Task, Wanted, batches, publish_all
from tests.spark.jobs.conftest import WAIT_S, World
from tests.spark.jobs.rows import frame, tables
from tests.support.batches import some_blocking
from tests.tidy import tree

pytestmark = [pytest.mark.process, pytest.mark.slow]
_names = count(1)
Payloads = Callable[[str], list[bytes]]


@pytest.fixture
def topic() -> str:
    return f"again-{next(_names)}"


# --- a producer, without Spark --------------------------------------------------------------------


def task_of(folder: Path, world: World, topic: str, messages: int, **more: Any) -> Task:
    """The work of one producer: a file with so many messages."""
    (folder / "selection").mkdir(parents=True)
    (folder / "progress").mkdir()
    rows = [
        {"topic": "t", "sequence": number, "mode": "durable", "expect": "sent", "subjects": ["s"],
         "attributes": [("n", str(number))], "priority": None, "ordering_key": None,
         "max_receivers": 1, "payload": b"%d" % number}
        for number in range(messages)
    ]  # fmt: skip
    text = pa.string()
    schema = pa.schema(
        {"topic": text, "sequence": pa.int64(), "mode": text, "expect": text,
         "subjects": pa.list_(text), "attributes": pa.map_(text, text), "priority": pa.int64(),
         "ordering_key": text, "max_receivers": pa.int64(), "payload": pa.binary()}
    )  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "selection" / "a.parquet")
    producer = os.urandom(16).hex()
    fields: dict[str, Any] = {"ttl_s": None, "rate": None, "timeout_s": WAIT_S, **more}
    address = world.broker.address
    return Task(str(folder), 0, "a.parquet", messages, producer, address, topic, **fields)


def numbers(messages: int) -> Counter[bytes]:
    return Counter(b"%d" % number for number in range(messages))


def test_a_producer_publishes_its_file_once(
    world: World, out: Path, topic: str, topic_of: Payloads
) -> None:
    task = task_of(out, world, topic, 2_500)
    assert publish_all(task) == ""
    assert publish_all(task) == ""
    assert Progress(out, 0).upto == 2_500
    assert Counter(topic_of(topic)) == numbers(2_500)


def test_what_was_accepted_but_not_recorded_is_not_stored_again(
    world: World, out: Path, topic: str, topic_of: Payloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(out, world, topic, 2_500)
    real = Progress.add

    def dying(self: Progress, upto: int, *more: Any) -> None:
        if upto == 2_000:
            raise SystemExit("killed here")
        real(self, upto, *more)

    monkeypatch.setattr(Progress, "add", dying)
    with pytest.raises(SystemExit):
        publish_all(task)
    monkeypatch.undo()
    assert Progress(out, 0).upto == 1_000
    assert publish_all(task) == ""
    assert Counter(topic_of(topic)) == numbers(2_500)


def test_a_producer_that_is_killed_again_and_again_publishes_each_message_once(
    world: World, out: Path, topic: str, topic_of: Payloads
) -> None:
    task = task_of(out, world, topic, 3_000, rate=4_000.0)
    chance = random.Random(5)
    kills = 0
    deadline = time.monotonic() + 2 * WAIT_S
    while Progress(out, 0).upto < 3_000:
        assert time.monotonic() < deadline
        process = multiprocessing.get_context("fork").Process(target=publish_all, args=(task,))
        process.start()
        process.join(chance.uniform(0.05, 0.4))
        kills += process.is_alive()
        process.kill()
        process.join()
    assert kills >= 2
    assert Counter(topic_of(topic)) == numbers(3_000)


def test_a_line_that_a_kill_has_cut_short_does_not_count(out: Path) -> None:
    (out / "progress").mkdir(parents=True)
    progress = Progress(out, 0)
    progress.add(10, [("overflow", 3)], 1)
    path = out / "progress" / "0000.jsonl"
    with open(path, "ab") as file:
        file.write(b'{"upto": 20, "ti')
    again = Progress(out, 0)
    assert (again.upto, again.refused) == (10, {"overflow": 1})
    again.add(30, (), 2)
    assert [json.loads(line)["upto"] for line in path.read_text().splitlines()] == [10, 30]


def test_a_producer_that_the_broker_may_have_forgotten_publishes_nothing(
    world: World, out: Path, topic: str
) -> None:
    task = task_of(out, world, topic, 10)
    Progress(out, 0).add(4, (), int(time.time_ns() / 1e6) - replay.DOUBT_MS - 1_000)
    assert "may have forgotten" in publish_all(task)


def test_what_a_topic_refuses_is_counted_and_what_it_cannot_take_at_all_is_an_error(
    world: World, out: Path, topic: str
) -> None:
    with asterism.connect_blocking(world.broker.address, name="setup") as node:
        node.create_topic(topic, overflow=asterism.RejectNew(6))
    assert publish_all(task_of(out, world, topic, 10)) == ""
    progress = Progress(out, 0)
    assert (progress.upto, progress.refused) == (10, {"overflow": 4})
    other = replace(task_of(out / "other", world, topic, 3), address="tcp://127.0.0.1:9")
    assert "127.0.0.1:9" in publish_all(replace(other, timeout_s=0.5))
    unknown = task_of(out / "unknown", world, f"{topic}-b", 3)
    Progress(out / "unknown", 0).add(2, (), time.time_ns() // 1_000_000)
    assert "wrong_state" in publish_all(unknown), "the topic does not know what it had confirmed"


def test_a_pace_never_runs_ahead_of_its_rate() -> None:
    now = 100.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    pace = Pace(50.0, lambda: now, sleep)
    assert pace.most == 5
    for at in range(20):
        pace.wait(5)
        assert 5 * (at + 1) <= 50.0 * (now - 100.0) + 5 + 1e-6
    now += 60  # held up for a minute: that minute is not made up for
    pace.wait(5)
    pace.wait(5)
    assert slept[-1] == pytest.approx(0.1)
    assert Pace(0.5, lambda: now, sleep).most == 1


def test_a_batch_is_one_frame() -> None:
    row = {"payload": b"x" * 1_000, "subjects": ["s"], "attributes": None}
    sizes = [len(batch) for batch in batches([row] * 1_000, 1_000)]
    assert sum(sizes) == 1_000 and max(sizes) * 1_200 <= replay.BATCH_BYTES
    large = {**row, "payload": b"x" * 900_000}
    assert [len(batch) for batch in batches([row, large, row], 1_000)] == [1, 1, 1]
    assert [len(batch) for batch in batches([row] * 5, 2)] == [2, 2, 1]


# --- what is selected -----------------------------------------------------------------------------


def test_a_selection_is_by_sql_over_messages_or_history(spark: SparkSession) -> None:
    made = tables(
        spark,
        messages=[{"sequence": 1}, {"sequence": 2, "status": "failed"},
                  {"sequence": 3, "status": "drafting"}],
        history=[{"sequence": 9, "verdict": "failed"}, {"sequence": 9}, {"sequence": 8}],
    )  # fmt: skip

    def chosen(**wanted: Any) -> list[int]:
        rows = replay.select(made, Wanted("t", **wanted)).collect()
        return sorted(row["sequence"] for row in rows)

    assert chosen() == [1, 2]
    assert chosen(where="status = 'failed'") == [2]
    assert chosen(source="history", where="sequence > 8") == [9], "it ended twice, and is one"
    with pytest.raises(JobError, match="--where"):
        chosen(where="nothing = 1")


def test_history_without_payloads_is_not_replayed_in_silence(
    spark: SparkSession, world: World, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = frame(spark, "history", [{"sequence": 1}, {"sequence": 2, "payload": None}])
    monkeypatch.setattr(replay, "read_tables", lambda *_: {"history": rows})
    wanted = Wanted("t", "history")
    with pytest.raises(JobError, match="payload is not null"):
        replay.prepare(spark, world.snapshot, wanted, out, 2)
    assert replay.read_plan(out) is None
    plan, _ = replay.prepare(
        spark, world.snapshot, replace(wanted, where="payload is not null"), out, 2
    )
    assert plan.count == 1
    with pytest.raises(JobError, match="another replay"):
        replay.prepare(spark, world.snapshot, wanted, out, 2)


# --- from end to end ------------------------------------------------------------------------------


def test_a_replay_publishes_exactly_what_is_selected_and_again_nothing(
    spark: SparkSession, world: World, out: Path, topic: str, topic_of: Payloads
) -> None:
    where = "topic = 'orders' and attributes['number'] < '2' and verdict = 'ok'"
    wanted = Wanted(topic, "history", where)
    address = world.broker.address
    done = replay.run(spark, world.snapshot, wanted, out, address)
    expected = [b"order 0", b"order 1", *[b"order %d" % n for n in range(10, 20)]]
    assert done == (len(expected), len(expected), {}, False)
    again = replay.run(spark, world.snapshot, wanted, out, address)
    assert again == (len(expected), len(expected), {}, True)
    with asterism.connect_blocking(address, name="look") as node:
        found: list[BlockingDelivery] = []
        with node.subscribe(topic, credit=100) as inbox:
            while len(found) < len(expected):
                found += inbox.batch(100, WAIT_S)
            assert some_blocking(inbox, 100, 0.3) == []
    assert sorted(delivery.payload for delivery in found) == sorted(expected)
    first = next(delivery for delivery in found if delivery.payload == b"order 10")
    assert (first.subject, first.attributes) == ("order/1", {"number": "10"})
    assert (first.expect, first.mode) == ("processed", "durable")
    other = replay.run(spark, world.snapshot, replace(wanted, name="b"), out / "b", address)
    assert other.published == len(expected), "another name is another replay"


def test_a_replay_keeps_to_its_rate(
    spark: SparkSession, world: World, out: Path, topic: str
) -> None:
    wanted = Wanted(topic, "history", "topic = 'orders'")
    done = replay.run(spark, world.snapshot, wanted, out, world.broker.address, rate=8.0)
    assert done.published == 24
    lines = [
        json.loads(line)
        for path in (out / "progress").iterdir()
        for line in path.read_text().splitlines()
    ]
    times = sorted(line["time_ms"] for line in lines if line["upto"])
    # Two producers, each with its first batch at once.
    assert (times[-1] - times[0]) / 1_000 >= (24 - 2) / 8.0 - 0.5


KILLED = """
import os, signal, sys, threading, time
from pathlib import Path
import asterism.spark
from asterism.sdk.client import BlockingDelivery
from asterism.spark.jobs import export, replay
from asterism.spark.jobs.folders import Folders
from asterism.storage.snapshot import open_snapshot
from tests.spark.jobs.conftest import QUICK

folder, address, topic, out = sys.argv[1:]
spark = asterism.spark.session("local[2]", QUICK)
snapshot, wanted = open_snapshot(folder), replay.Wanted(topic, "history", "topic = 'orders'")
work = threading.Thread(
    target=replay.run, args=(spark, snapshot, wanted, Path(out) / "replay", address, 4.0, 2)
)
work.start()
move = Folders.move

def move_and_die(self, source, target):
    moved = move(self, source, target)
    if target.endswith(".parquet"):
        lines = 0
        while lines < 4:  # the replay has published some, and has more to do
            time.sleep(0.05)
            files = (Path(out) / "replay" / "progress").glob("*.jsonl")
            lines = sum(len(path.read_bytes().splitlines()) for path in files)
        os.kill(os.getpid(), signal.SIGKILL)
    return moved

Folders.move = move_and_die
export.run(spark, snapshot, str(Path(out) / "export"))
"""


def test_a_replay_and_an_export_that_are_killed_are_whole_when_run_again(
    spark: SparkSession, world: World, out: Path, topic: str, topic_of: Payloads
) -> None:
    out.mkdir()
    address, folder = world.broker.address, str(world.snapshot.folder)
    command = [sys.executable, "-c", KILLED, folder, address, topic, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tree.ROOT)
    assert done.returncode == -signal.SIGKILL, done.stderr
    wanted = Wanted(topic, "history", "topic = 'orders'")
    plan = replay.read_plan(out / "replay")
    assert plan is not None
    before = replay.done(out / "replay", plan, False)
    assert 0 < before.published < 24, "it was killed between its first batch and its last"
    resumed = replay.run(spark, world.snapshot, wanted, out / "replay", address)
    assert resumed == (24, 24, {}, True)
    assert len(topic_of(topic)) == len(set(topic_of(topic))) == 24
    for table, rows in (("messages", 15), ("history", 24)):
        export.run(spark, world.snapshot, str(out / "export"), (table,))
        there = export.read(spark, str(out / "export"), table)
        keys = [(row["topic"], row["sequence"]) for row in there.collect()]
        assert len(keys) == len(set(keys)) == rows
