"""The audit: nothing to say of a good snapshot, and each wrong that it looks for is found."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rocksdict import Options, Rdict

import asterism
from asterism.cli import main
from asterism.spark.jobs.audit import CHECKS, audit
from asterism.storage.keys import TopicKeys
from asterism.storage.records import pack, unpack
from asterism.testing import Broker
from tests.spark.jobs.conftest import ORDERS, WAIT_S, World
from tests.spark.jobs.rows import TAKEN, before, step, tables
from tests.support.batches import some_blocking

pytestmark = [pytest.mark.process, pytest.mark.slow]
COUNTED = {"held": 3, "drafting": 1, "parked": 2}
# A message that waits, one that is parked, a draft, one for several of whom one has failed, and one
# that its receiver had moved.
GOOD: dict[str, list[dict[str, Any]]] = {
    "topics": [COUNTED, {"topic": "empty", "number": 2}],
    "messages": [
        {"sequence": 1},
        {"sequence": 2, "status": "failed"},
        {"sequence": 3, "status": "drafting"},
        {"sequence": 4, "kind": "log", "max_receivers": None},
        {"sequence": 5, "kind": "log", "max_receivers": None},
    ],
    "deliveries": [
        {"sequence": 1},
        {"sequence": 2, "status": "failed", "receiver": "billing"},
        {"sequence": 4, "status": "failed", "receiver": "billing", "failed_at": TAKEN},
        {"sequence": 4, "status": "sent", "receiver": "audit", "sent_at": TAKEN},
        # Moved behind its equals: it is still to do, and the floor has passed it.
        {"sequence": 5, "receiver": "moved", "attempts": 1},
    ],
    "receivers": [
        {"floor": 5, "parked": 1},
        {"receiver": "audit", "number": 17, "floor": 4},
        {"receiver": "moved", "number": 18, "floor": 900},
    ],
    "history": [
        {"sequence": 900, "accepted_at": before(9), "resolved_at": before(1),
         "ladder": [step("billing", "processed", before(9), None, before(1))]},
    ],
}  # fmt: skip

# What is added to the good rows, for each check: of a topic of its own, so that it is told apart.
BAD: dict[str, dict[str, dict[str, Any]]] = {
    "delivery-without-message": {"deliveries": {"sequence": 77, "receiver": "x"}},
    "message-without-delivery": {"messages": {"sequence": 78}},
    "parked-without-delivery": {"messages": {"sequence": 5, "kind": "log", "status": "failed"}},
    "twice": {"messages": {"sequence": 6, "status": "drafting"}},
    "counters": {},
    "receivers-counters": {"receivers": {"parked": 3}},
    "sequences": {"history": {"sequence": 1_000}},
    "floors": {"receivers": {"floor": 1_001}},
    "topics": {"receivers": {}},
    "times": {"history": {"sequence": 901, "resolved_at": before(1)}},
}


def test_every_check_finds_what_it_looks_for(spark: SparkSession) -> None:
    assert set(BAD) == set(CHECKS)
    rows = {name: list(good) for name, good in GOOD.items()}
    for number, (check, bad) in enumerate(BAD.items(), 10):
        for table, row in bad.items():
            times = 2 if check == "twice" else 1
            rows[table] += [{"topic": check, **row}] * times
        if check != "topics":
            held = {"held": 1} if check in ("message-without-delivery", "counters") else {}
            drafts = {"drafting": 2} if check == "twice" else {}
            rows["topics"].append({"topic": check, "number": number, **held, **drafts})
    found = {entry.check: entry for entry in audit(tables(spark, **rows))}
    assert set(found) == set(CHECKS)
    for check, entry in found.items():
        assert {row["topic"] for row in entry.rows} == {check}, f"{check} sees what is right"
        assert entry.misfits == len(entry.rows) == 1
        bad_row = next(iter(BAD[check].values()), {})
        assert entry.rows[0]["sequence"] == bad_row.get("sequence")


def planted(world: World, folder: Path, change: Any) -> Path:
    """A copy of the snapshot in whose store something was changed behind the broker's back."""
    copy = Path(shutil.copytree(world.snapshot.folder, folder))
    topic = world.snapshot.topics["orders"]
    store = next(s for s in world.snapshot.stores if s["number"] == topic["store"])
    opened = Rdict(str(copy / store["folder"]), Options(raw_mode=True))
    try:
        change(opened, TopicKeys(topic["number"]))
    finally:
        opened.close()
    return copy


@pytest.mark.usefixtures("spark")
def test_a_good_snapshot_passes_and_a_bad_row_is_told(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def accepted_later(store: Rdict, keys: TopicKeys) -> None:
        key, row = next(iter(store.items(from_key=keys.range_of("h")[0])))
        fields = list(unpack(row, 7))
        fields[3] = fields[4] + 60_000
        store[key] = pack(*fields)

    def less(store: Rdict, keys: TopicKeys) -> None:
        del store[keys.pool(ORDERS)]

    assert main(["spark", "audit", str(world.snapshot.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["found"] == []
    copy = planted(world, tmp_path / "later", accepted_later)
    assert main(["spark", "audit", str(copy), "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["found"]
    assert found["check"] == "times"
    assert {(row["topic"], row["sequence"]) for row in found["rows"]} == {("orders", 1)}
    copy = planted(world, tmp_path / "less", less)
    assert main(["spark", "audit", str(copy)]) == 1
    said = capsys.readouterr()
    assert "rows are missing" in said.out and "Traceback" not in said.out
    assert "do not hold" in said.err


def hold(node: asterism.BlockingNode, topic: str, count: int) -> list[Any]:
    """So many deliveries of a topic to the durable receiver ``reader``, in order of sequence."""
    inbox = node.subscribe(topic, name="reader", durable=True, credit=count)
    taken: list[Any] = []
    until = time.monotonic() + WAIT_S
    while len(taken) < count:
        assert time.monotonic() < until, f"{len(taken)} of {count} deliveries came"
        taken += some_blocking(inbox, count - len(taken), 1)
    return sorted(taken, key=lambda delivery: delivery.sequence)


def wait_until_gone(node: asterism.BlockingNode, topic: str) -> None:
    until = time.monotonic() + WAIT_S
    while any(receiver.online for receiver in node.list_receivers(topic)):
        assert time.monotonic() < until, f"the receiver of {topic} did not go"
        time.sleep(0.01)


@pytest.mark.usefixtures("spark")
def test_what_does_not_wait_by_its_sequence_is_no_misfit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its consumer went with it in hand, it pauses before a retry, it was renewed, or sought."""
    pause = asterism.Backoff(3_600, 3_600)
    settings: dict[str, dict[str, Any]] = {
        "dropped": {},
        "dropped-pool": {},
        "paused": {"max_attempts": 2, "retry_backoff": pause},
        "renewed": {},
        "sought": {},
    }
    with Broker(workers=1) as broker, asterism.connect_blocking(broker.address) as node:
        for topic, own in settings.items():
            node.create_topic(topic, history="full", **own)
            node.create_receiver(topic, "reader")
            most = 1 if topic == "dropped-pool" else None
            for number in range(5):
                # One that has a key pauses in its place.
                key = "key" if topic == "paused" and number == 1 else None
                node.publish(
                    topic, b"%d" % number, expect="processed", max_receivers=most, ordering_key=key
                )
        with asterism.connect_blocking(broker.address) as consumer:
            held = {topic: hold(consumer, topic, 4) for topic in settings}
            for taken in held.values():
                taken[3].processed(confirm=True)
            for topic in ("paused", "renewed"):
                for delivery in held[topic][:2]:
                    delivery.failed("not now", confirm=True)
            held["renewed"][2].processed(confirm=True)
            node.renew_all("renewed")
        for topic in settings:
            wait_until_gone(node, topic)
        node.seek("sought", "reader", sequence=held["sought"][2].sequence)
        floors = {topic: next(node.list_receivers(topic)).floor for topic in settings}
        waiting = [delivery.sequence for delivery in held["dropped"][:3]]
        assert floors["dropped"] > max(waiting), "what was in hand lies before the floor"
        assert main(["spark", "audit", str(broker.snapshot()), "--json"]) == 0, floors
    assert json.loads(capsys.readouterr().out)["found"] == []
