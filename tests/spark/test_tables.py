"""The tables of a snapshot, against what was published and reported before it was taken."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from asterism.spark.columns import arrow_schema
from asterism.spark.schemas import SCHEMAS
from asterism.storage.snapshot import open_snapshot
from tests.spark.world import EMPTY, LOG, MIXED, OWN, PASSING, POOL, WORK, World

pytestmark = pytest.mark.process
Table = Callable[[str], list[Row]]


@pytest.fixture(scope="module")
def table(spark: SparkSession, world: World) -> Table:
    """All rows of a table; each is read once for all tests here."""

    @cache
    def read(name: str) -> list[Row]:
        frame = spark.read.format("asterism").option("table", name).load(str(world.folder))
        assert frame.schema == spark.createDataFrame([], SCHEMAS[name]).schema
        return frame.collect()

    return read


def ms(time: datetime) -> float:
    """Spark gives times without a zone, in that of this process."""
    return time.timestamp() * 1_000


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_means_the_same_to_arrow_and_to_spark(spark: SparkSession, name: str) -> None:
    known = spark.createDataFrame([], SCHEMAS[name]).schema
    assert arrow_schema(SCHEMAS[name]).equals(to_arrow_schema(known, timezone="UTC"))


# --- messages -------------------------------------------------------------------------------------


def test_every_message_is_there_once(world: World, table: Table) -> None:
    found = [(row.topic, row.sequence) for row in table("messages")]
    assert sorted(found) == sorted(world.messages)


def test_a_message_has_its_kind_status_and_attempts(world: World, table: Table) -> None:
    for row in table("messages"):
        said = world.messages[row.topic, row.sequence]
        found = (row.kind, row.status, row.attempts)
        assert found == (said["kind"], said["status"], said["attempts"]), row
    assert {row.status for row in table("messages")} == {
        *("drafting", "waiting", "sent", "received", "failed"),
    }


def test_a_message_has_its_header_and_payload(world: World, table: Table) -> None:
    for row in table("messages"):
        said = world.messages[row.topic, row.sequence]
        assert bytes(row.payload) == said["payload"]
        assert row.payload_bytes == len(said["payload"])
        assert row.mode == "durable"
        for name in ("subjects", "attributes", "priority", "ordering_key", "max_receivers"):
            assert row[name] == said.get(name), (name, row)
        if "id" in said:  # a draft is given its own
            assert (bytes(row.id), row.expect) == (said["id"], said["expect"])
            assert row.receipt is bool(said["receipt"])


def test_a_message_has_its_times(world: World, table: Table) -> None:
    for row in table("messages"):
        assert world.began_ms <= ms(row.accepted_at) <= world.ended_ms
        said = world.messages[row.topic, row.sequence]
        due, over = said.get("deliver_at"), said.get("expires_at")
        assert (row.deliver_at and ms(row.deliver_at)) == (due and pytest.approx(due * 1_000))
        if over == "never" or row.topic == WORK:
            assert row.expires_at is None
        elif over is not None:
            assert ms(row.expires_at) == pytest.approx(over * 1_000)
        else:
            week_ms = 7 * 86_400_000
            assert ms(row.expires_at) == ms(row.accepted_at) + week_ms


def test_a_message_says_in_which_store_it_is(world: World, table: Table) -> None:
    topics = open_snapshot(world.folder).topics
    assert {(row.topic, row.store) for row in table("messages")} == {
        (name, told["store"]) for name, told in topics.items() if name != EMPTY
    }
    assert len({row.store for row in table("messages")}) > 2
    (own,) = {row.store for row in table("messages") if row.topic == OWN}
    assert own >= 32_768


# --- deliveries -----------------------------------------------------------------------------------


def test_deliveries_are_what_receivers_have_to_do_or_failed_at(world: World, table: Table) -> None:
    found = [(row.topic, row.sequence, row.receiver) for row in table("deliveries")]
    assert len(found) == len(set(found))
    assert {
        (row.topic, row.sequence, row.receiver): (row.status, row.attempts)
        for row in table("deliveries")
    } == world.deliveries


def test_a_failed_delivery_has_its_reason_and_time(world: World, table: Table) -> None:
    failed = [row for row in table("deliveries") if row.status == "failed"]
    assert {(row.topic, row.sequence): row.reason for row in failed} == world.reasons
    for row in failed:
        assert ms(row.accepted_at) <= ms(row.failed_at) <= world.ended_ms
    rest = [row for row in table("deliveries") if row.status != "failed"]
    assert {(row.reason, row.failed_at) for row in rest} == {(None, None)}


def test_a_delivery_that_is_out_has_its_times(world: World, table: Table) -> None:
    out = [row for row in table("deliveries") if row.status in ("sent", "received")]
    assert {row.topic for row in out} == {POOL, LOG, WORK, PASSING}
    for row in out:
        timeout_ms = 45_500 if row.status == "sent" else 300_000
        assert world.began_ms < ms(row.deadline_at) - timeout_ms <= world.ended_ms
        if row.status == "sent":
            assert ms(row.sent_at) == ms(row.deadline_at) - timeout_ms
    waiting = [row for row in table("deliveries") if row.status == "waiting"]
    assert {(row.sent_at, row.deadline_at) for row in waiting} == {(None, None)}


# --- receivers, topics ----------------------------------------------------------------------------


def test_receivers_have_their_interests_and_progress(world: World, table: Table) -> None:
    found = {(row.topic, row.receiver): row for row in table("receivers")}
    durable = {key for key, told in world.receivers.items() if told["durable"]}
    assert found.keys() == durable
    assert found[LOG, "us"].interests == ["us/**", "eu/0"]
    assert found[LOG, "audit"].parked == 1 and found[POOL, "billing"].parked == 0
    done = [key[1] for key in world.messages if key[0] == LOG]
    owed = [at for topic, at, name in world.deliveries if (topic, name) == (LOG, "audit")]
    assert min(done) < found[LOG, "audit"].floor <= min(owed)
    assert len({row.number for row in found.values() if row.topic == LOG}) == 3


def test_topics_have_their_counts(world: World, table: Table) -> None:
    found = {row.topic: row for row in table("topics")}
    assert found.keys() == world.described.keys()
    for name, told in world.described.items():
        row = found[name]
        for count in ("held", "parked", "drafting", "completed", "next_sequence"):
            assert row[count] == told[count], (name, count)
        held = [sequence for topic, sequence in world.messages if topic == name]
        assert row.first_sequence == min(held, default=row.next_sequence)
        assert ms(row.snapshot_at) == open_snapshot(world.folder).time_ms


def test_topics_have_their_settings(world: World, table: Table) -> None:
    found = {row.topic: row.settings for row in table("topics")}
    assert json.loads(found[EMPTY]["overflow"]) == {"size": 17, "policy": "drop_old"}
    assert (found[POOL]["history"], found[LOG]["history"]) == ("full", "headers")
    assert found[OWN]["dedicated"] == "true"
    assert found[MIXED]["max_deliveries"] is None
    assert found[MIXED]["sent_timeout"] == "45.5"  # the broker's own default
    for name, told in world.described.items():
        assert found[name] == {
            setting: value if value is None or type(value) is str else json.dumps(value)
            for setting, value in told["settings"].items()
        }


# --- history --------------------------------------------------------------------------------------


def test_history_has_what_ended(world: World, table: Table) -> None:
    found = {(row.topic, row.sequence): row for row in table("history")}
    assert len(found) == len(table("history"))
    assert found.keys() == world.ended.keys()
    for key, said in world.ended.items():
        row: dict[str, Any] = found[key].asDict()
        assert row["verdict"] == said["verdict"]
        ladder = [(step.receiver, step.status, step.attempts) for step in row["ladder"]]
        assert ladder == said["ladder"]
        for name in ("subjects", "attributes", "priority", "max_receivers"):
            assert row[name] == said.get(name)
        if "id" in said:
            assert bytes(row["id"]) == said["id"]


def test_history_has_payloads_where_the_topic_keeps_them(world: World, table: Table) -> None:
    kept = {row.topic: row for row in table("history")}
    assert kept.keys() == {POOL, WORK}
    for row in table("history"):
        said = world.ended[row.topic, row.sequence]["payload"]
        if row.topic == POOL:
            assert (bytes(row.payload), row.payload_bytes) == (said, len(said))
        else:
            assert (row.payload, row.payload_bytes) == (None, None)


def test_history_has_the_times_of_each_step(world: World, table: Table) -> None:
    assert table("history")
    for row in table("history"):
        (step,) = row.ladder
        accepted, resolved = ms(row.accepted_at), ms(row.resolved_at)
        assert world.began_ms <= accepted <= ms(step.sent_at) <= resolved <= world.ended_ms
        assert step.ended_at == row.resolved_at
        assert datetime.fromtimestamp(resolved / 1_000, UTC).year >= 2024
