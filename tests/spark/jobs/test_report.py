"""The tables of the report: on rows that are known, and on the traffic of a real broker."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from asterism.cli import main
from asterism.spark.jobs import report
from tests.spark.jobs.conftest import LARGE, World
from tests.spark.jobs.rows import before, step, tables

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def made(spark: SparkSession) -> dict[str, list[dict[str, Any]]]:
    """Every table of the report, of rows that are known."""
    ages = [1, 59, 61, 3_599, 3_601, 90_000]
    whole = tables(
        spark,
        messages=[
            *[
                {"sequence": number, "accepted_at": before(age), "payload_bytes": 10 * number}
                for number, age in enumerate(ages, 1)
            ],
            {"sequence": 7, "status": "drafting", "payload_bytes": 0, "accepted_at": before(5)},
            {"sequence": 8, "status": "failed", "accepted_at": before(30)},
        ],
        deliveries=[
            *[
                {"sequence": number, "accepted_at": before(age)}
                for number, age in enumerate(ages, 1)
            ],
            *[
                {"sequence": 8, "receiver": name, "status": "failed", "reason": reason,
                 "accepted_at": before(30), "failed_at": before(20)}
                for name, reason in (("a", "no stock"), ("b", "no stock"), ("c", ""))
            ],
            {"sequence": 9, "receiver": "slow", "accepted_at": before(40), "status": "sent"},
        ],
        history=[
            # It failed, and is parked: it is seen in both tables, and is one message.
            {"sequence": 8, "verdict": "failed", "accepted_at": before(30),
             "resolved_at": before(20), "ladder": []},
            *[
                {"sequence": 100 + number, "accepted_at": before(120), "subjects": ["a/b", "c"],
                 "resolved_at": before(60), "payload_bytes": 1,
                 "ladder": [step("fast", "processed", before(120 - number / 1_000),
                                 before(119), before(118)),
                            step("slow", "failed", before(119), None, before(60))]}
                for number in range(1, 101)
            ],
        ],
    )  # fmt: skip
    return {name: make(whole).toArrow().to_pylist() for name, make in report.TABLES.items()}


def test_the_backlog_is_by_status_and_age(made: dict[str, list[dict[str, Any]]]) -> None:
    counts = {(row["status"], row["age"]): row["deliveries"] for row in made["backlog"]}
    assert counts == {
        ("waiting", "under 1 min"): 2,
        ("waiting", "1 to 10 min"): 1,
        ("waiting", "10 to 60 min"): 1,
        ("waiting", "1 to 24 h"): 1,
        ("waiting", "over 1 day"): 1,
        ("drafting", "under 1 min"): 1,
        ("failed", "under 1 min"): 3,
        ("sent", "under 1 min"): 1,
    }
    oldest = max(row["oldest_s"] for row in made["backlog"])
    assert oldest == 90_000
    sizes = {
        row["age"]: row["payload_bytes"] for row in made["backlog"] if row["status"] == "waiting"
    }
    assert sizes["over 1 day"] == 60


def test_rates_count_each_message_once_in_its_minute(made: dict[str, list[dict[str, Any]]]) -> None:
    rates = made["rates"]
    assert sum(row["accepted"] for row in rates) == 7 + 100, "drafts are no messages yet"
    by_minute = {row["minute"]: row for row in rates}
    assert by_minute[before(120)]["accepted"] == 100 + 1, "one that waits is as old"
    assert by_minute[before(60)]["ended_ok"] == 100
    assert by_minute[before(60)]["ended_otherwise"] == 1


def test_the_first_minute_and_that_of_the_snapshot_are_not_whole(spark: SparkSession) -> None:
    messages = [
        {"sequence": number, "accepted_at": before(seconds)}
        for number, seconds in enumerate((150, 90, 60, 1, 0), 1)
    ]
    rows = report.rates(tables(spark, messages=messages)).toArrow().to_pylist()
    assert [(row["minute"], row["whole"]) for row in rows] == [
        (before(180), False), (before(120), True), (before(60), True), (before(0), False),
    ]  # fmt: skip


def test_the_ladder_has_percentiles_of_each_step(made: dict[str, list[dict[str, Any]]]) -> None:
    steps = {row["step"]: row for row in made["ladder"]}
    assert list(steps) == ["sent", "received", "processed"]
    # 100 were sent after 1 to 100 ms, 100 after a second.
    assert (steps["sent"]["p50_ms"], steps["sent"]["p99_ms"]) == (100, 1_000)
    assert steps["received"]["deliveries"] == 100
    assert (steps["processed"]["deliveries"], steps["processed"]["p50_ms"]) == (100, 2_000)


def test_failures_go_by_reason(made: dict[str, list[dict[str, Any]]]) -> None:
    counts = {row["reason"]: (row["deliveries"], row["receivers"]) for row in made["failures"]}
    assert counts == {"no stock": (2, 2), "(no reason given)": (1, 1)}


def test_the_slowest_receiver_comes_first(made: dict[str, list[dict[str, Any]]]) -> None:
    slow, fast = made["receivers"][:2]
    assert (slow["receiver"], slow["p50_ms"], slow["failed"]) == ("slow", 59_000, 100)
    assert (slow["waiting"], slow["oldest_s"]) == (1, 40)
    assert (fast["receiver"], fast["failed"], fast["deliveries"]) == ("fast", 0, 100)
    assert 1_900 <= fast["p50_ms"] <= 2_000


def test_payloads_and_subjects_go_by_size(made: dict[str, list[dict[str, Any]]]) -> None:
    assert [row["payload_bytes"] for row in made["payloads"][:3]] == [60, 50, 40]
    volumes = {row["subject"]: row["messages"] for row in made["subjects"]}
    assert volumes == {"a/b": 100, "c": 100, "order/1": 7}, "one that does not vary is as it is"
    assert {row["verdict"]: row["messages"] for row in made["endings"]} == {"ok": 100, "failed": 1}


def test_subjects_are_counted_by_their_shape(spark: SparkSession) -> None:
    many = report.SEGMENT_VALUES_MAX + 1
    names = [f"{chr(97 + at // 26)}{chr(97 + at % 26)}" for at in range(many)]
    subjects = [
        *["v1/order/17/paid", "v1/order/18/paid", "v1/order/18/paid", "v1/order/18/sent"],
        *["v1/user/1f0c-9a/paid", "plain", "", "order/17", "order/new"],
        *[f"by/{name}/name/of/it" for name in names],
    ]
    messages = [
        {"sequence": number, "subjects": [subject], "payload_bytes": 2}
        for number, subject in enumerate(subjects, 1)
    ]
    rows = report.subjects(tables(spark, messages=messages)).toArrow().to_pylist()
    shapes = {row["subject"]: (row["subjects"], row["messages"]) for row in rows}
    assert shapes == {
        "by/*/name/of/it": (many, many),
        "v1/order/*/paid": (2, 3),
        "v1/order/*/sent": (1, 1),
        "v1/user/*/paid": (1, 1),
        "plain": (1, 1),
        "": (1, 1),
        "order/17": (1, 1),
        "order/new": (1, 1),
    }
    assert rows[0]["payload_bytes"] == 2 * many, "most messages first"


def test_the_report_of_a_real_broker_has_its_traffic(
    spark: SparkSession, world: World, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(world.snapshot.folder)
    assert main(["spark", "report", folder, "--out", str(out), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert spark.range(3).count() == 3, "a session that was there stays"
    made = {name: json.loads((out / f"{name}.json").read_text()) for name in report.TABLES}
    for name, rows in made.items():
        assert pq.read_table(out / f"{name}.parquet").num_rows == len(rows) == written["rows"][name]
    backlog = {(row["topic"], row["status"]): row["deliveries"] for row in made["backlog"]}
    assert backlog == {
        ("orders", "waiting"): 6,
        ("orders", "failed"): 4,
        ("orders", "drafting"): 1,
        ("notes", "waiting"): 5,
    }
    assert all(0 <= row["oldest_s"] < 60 for row in made["backlog"])
    assert [(row["reason"], row["deliveries"]) for row in made["failures"]] == [
        ("out of stock", 3),
        ("card declined", 1),
    ]
    assert {(row["verdict"], row["messages"]) for row in made["endings"]} == {
        ("ok", 20),
        ("failed", 4),
    }
    processed = next(row for row in made["ladder"] if row["step"] == "processed")
    assert (processed["topic"], processed["deliveries"]) == ("orders", 20)
    assert 200 <= processed["p50_ms"] < 20_000
    assert made["receivers"][0]["receiver"] == "billing"
    assert made["payloads"][0]["payload_bytes"] == len(LARGE)
    assert {row["subject"]: row["messages"] for row in made["subjects"]} == {
        "order/*": 30, "note/a": 5,
    }  # fmt: skip
    accepted = {"orders": 0, "notes": 0}
    for row in made["rates"]:
        accepted[row["topic"]] += row["accepted"]
    assert accepted == {"orders": 30, "notes": 5}
    assert "out of stock" in Path(written["page"]).read_text()
