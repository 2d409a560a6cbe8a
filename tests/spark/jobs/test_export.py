"""Exports: what is new and nothing twice, whatever ends them halfway; columns that change."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

import asterism
from asterism.spark.jobs import export
from asterism.spark.jobs.common import JobError
from asterism.spark.jobs.export import Exported
from asterism.spark.jobs.folders import Folders
from asterism.storage.snapshot import open_snapshot
from tests.spark.jobs.conftest import World
from tests.spark.jobs.rows import before, frame

pytestmark = [pytest.mark.process, pytest.mark.slow]


def messages(spark: SparkSession, *sequences: int, **fields: Any) -> DataFrame:
    return frame(spark, "messages", [{"sequence": number, **fields} for number in sequences])


def there(spark: SparkSession, folder: Path, table: str = "messages") -> Counter[int]:
    rows = export.read(spark, str(folder), table).select("sequence").collect()
    return Counter(row["sequence"] for row in rows)


def test_an_export_adds_what_is_new_and_nothing_twice(spark: SparkSession, out: Path) -> None:
    first = messages(spark, 1, 2)
    assert export.add(spark, first, "messages", str(out)) == Exported("messages", 1, 2, 1)
    assert export.add(spark, first, "messages", str(out)) == Exported("messages", None, 0, 0)
    # Of the first two only one is left, as after a while; of the new ones one is of another topic.
    later = messages(spark, 2, 3).unionAll(
        messages(spark, 2, topic="17", accepted_at=before(90_000))
    )
    assert export.add(spark, later, "messages", str(out)).rows == 2
    rows = export.read(spark, str(out), "messages").collect()
    assert sorted((row["topic"], row["sequence"]) for row in rows) == [
        ("17", 2), ("orders", 1), ("orders", 2), ("orders", 3),
    ]  # fmt: skip
    assert (out / "messages" / "topic=17" / "date=2026-01-30").is_dir()
    assert bytes(rows[0]["payload"]) == b"abc"


def test_a_draft_is_exported_once_it_is_a_message(spark: SparkSession, out: Path) -> None:
    draft = messages(spark, 1, status="drafting").unionAll(messages(spark, 2))
    assert export.add(spark, draft, "messages", str(out)).rows == 1
    assert export.add(spark, messages(spark, 1, 2), "messages", str(out), payload=False).rows == 1
    rows = export.read(spark, str(out), "messages").orderBy("sequence").collect()
    assert [row["payload"] is None for row in rows] == [True, False]


def test_a_message_that_ended_twice_is_in_history_twice(spark: SparkSession, out: Path) -> None:
    failed = {"sequence": 1, "verdict": "failed", "resolved_at": before(9)}
    export.add(spark, frame(spark, "history", [failed]), "history", str(out))
    both = frame(spark, "history", [failed, {"sequence": 1, "resolved_at": before(1)}])
    assert export.add(spark, both, "history", str(out)).rows == 1
    assert there(spark, out, "history") == {1: 2}


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", range(1, 6))
def test_an_export_that_ends_anywhere_is_whole_when_it_is_run_again(
    spark: SparkSession, out: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    export.add(spark, messages(spark, 1), "messages", str(out))
    rows = messages(spark, 1, 2).unionAll(messages(spark, 3, topic="other"))
    steps = count(1)

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def until_its_end(*arguments: Any) -> Any:
            if next(steps) >= step:
                raise Killed
            return real(*arguments)

        return until_its_end

    for name in ("move", "delete", "write_new"):
        monkeypatch.setattr(Folders, name, dying(getattr(Folders, name)))
    with pytest.raises(Killed):
        export.add(spark, rows, "messages", str(out))
    monkeypatch.undo()
    seen = there(spark, out)
    assert seen[1] == 1 and max(seen.values()) == 1, "what is half added is not there twice"
    export.add(spark, rows, "messages", str(out))
    assert there(spark, out) == {1: 1, 2: 1, 3: 1}
    assert not [path for path in (out / "messages" / "_export").iterdir() if path.is_dir()]


def test_a_column_that_was_added_is_null_in_rows_from_before(
    spark: SparkSession, out: Path
) -> None:
    export.add(spark, messages(spark, 1), "messages", str(out))
    wider = messages(spark, 1, 2).withColumn("colour", lit("red"))
    assert export.add(spark, wider, "messages", str(out)).rows == 1
    rows = export.read(spark, str(out), "messages").orderBy("sequence").collect()
    assert [row["colour"] for row in rows] == [None, "red"]
    recorded = sorted((out / "messages" / "_export").glob("schema-*.json"))
    assert [json.loads(path.read_text())["version"] for path in recorded] == [1, 2]


def test_columns_that_do_not_fit_are_refused_and_nothing_is_touched(
    spark: SparkSession, out: Path
) -> None:
    wider = messages(spark, 1).withColumn("colour", lit("red"))
    export.add(spark, wider, "messages", str(out))
    before_it = sorted(out.rglob("*"))
    with pytest.raises(JobError, match="'colour' is not known to this version"):
        export.add(spark, messages(spark, 2), "messages", str(out))
    other = messages(spark, 2).withColumn("colour", lit(1))
    with pytest.raises(JobError, match="'colour' is string, and would now be int"):
        export.add(spark, other, "messages", str(out))
    assert sorted(out.rglob("*")) == before_it
    (newest,) = (out / "messages" / "_export").glob("schema-*.json")
    (newest.parent / f".{newest.name}.crc").unlink()
    newest.write_text(newest.read_text().replace('"layout": 1', '"layout": 2'))
    with pytest.raises(JobError, match="laid out by version 2"):
        export.add(spark, wider, "messages", str(out))


def test_exports_of_two_real_snapshots_have_each_message_once(
    spark: SparkSession, world: World, out: Path
) -> None:
    first = {done.table: done.rows for done in export.run(spark, world.snapshot, str(out))}
    assert first == {"messages": 15, "history": 24}
    again = export.run(spark, world.snapshot, str(out))
    assert [done.rows for done in again] == [0, 0]
    with asterism.connect_blocking(world.broker.address, name="more") as node:
        node.publish_many("exported", [b"new"] * 3)
    later = open_snapshot(world.broker.snapshot())
    third = export.run(spark, later, str(out), ("messages",))
    with asterism.connect_blocking(world.broker.address, name="more") as node:
        node.delete_topic("exported")
    topics = Counter(row["topic"] for row in export.read(spark, str(out), "messages").collect())
    assert third[0].rows == 3 + sum(topics.values()) - 18, "and what other tests have published"
    assert (topics["orders"], topics["notes"], topics["exported"]) == (10, 5, 3)
