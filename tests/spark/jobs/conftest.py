"""One broker for all tests of the jobs, whose traffic is known, and a Spark that hurries."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import asterism
from asterism.sdk.client import BlockingDelivery
from asterism.storage.snapshot import Snapshot, open_snapshot
from asterism.testing import Broker
from tests.support.batches import some_blocking

WAIT_S = 30
# Queries over a handful of rows: to plan and to compile them is all that they cost.
QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}


@pytest.fixture(scope="module", name="spark")
def quick(spark: SparkSession) -> Iterator[SparkSession]:
    """The one Spark of the run, while it does as little as it can."""
    before = {name: spark.conf.get(name) for name in QUICK}
    for name, value in QUICK.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        spark.conf.set(name, str(old))


@dataclass(frozen=True)
class World:
    """A broker whose traffic is known, and a snapshot of it."""

    broker: Broker
    snapshot: Snapshot


ORDERS = 30  # of which billing processes 20, fails 4, and leaves 6
LARGE = b"x" * 5_000


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    with Broker(workers=1) as broker:
        with asterism.connect_blocking(broker.address, name="traffic") as node:
            make_traffic(node)
        yield World(broker, open_snapshot(broker.snapshot()))


def make_traffic(node: asterism.BlockingNode) -> None:
    """Pool messages that end in every way, log messages that wait, a draft."""
    node.create_topic("orders", history="full")
    node.create_topic("notes", history="headers")
    inbox = node.subscribe("orders", name="billing", credit=24)
    messages = [
        asterism.Message(
            LARGE if number == 7 else b"order %d" % number,
            subject=f"order/{number % 3}",
            attributes={"number": str(number)},
        )
        for number in range(ORDERS)
    ]
    node.publish_many("orders", messages, expect="processed", max_receivers=1, receipt=False)
    taken: list[BlockingDelivery] = []
    while len(taken) < 24:
        taken += inbox.batch(24 - len(taken), WAIT_S)
    for delivery in taken[:20]:
        delivery.received(confirm=True)
    time.sleep(0.2)
    for delivery in taken[:20]:
        delivery.processed(confirm=True)
    for delivery, reason in zip(taken[20:], ["out of stock"] * 3 + ["card declined"], strict=True):
        delivery.failed(reason, confirm=True)
    inbox.close()
    node.create_receiver("notes", "reader")
    node.publish_many("notes", [b"note %d" % number for number in range(5)], subject="note/a")
    node.draft("orders")


@pytest.fixture
def topic_of(world: World) -> Iterator[Callable[[str], list[bytes]]]:
    """The payloads that a topic holds now."""
    with asterism.connect_blocking(world.broker.address, name="reader") as node:

        def payloads(topic: str) -> list[bytes]:
            held = int(node.describe(topic).waiting)
            if not held:
                return []
            with node.subscribe(topic, credit=held + 10) as inbox:
                found: list[bytes] = []
                deadline = time.monotonic() + WAIT_S
                while len(found) < held and time.monotonic() < deadline:
                    found += [delivery.payload for delivery in some_blocking(inbox, 1_000, 1)]
                return found

        yield payloads


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"
