"""A disk that gets short of room: publishing is held, and whoever consumes makes room again.

Beside it, a topic that is to be moved on a disk that has no room for it.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import asterism
from asterism.testing import Broker
from tests.fault.disk import BarePublisher, Disk, Refused, small_disk, until

pytestmark = [pytest.mark.fault, pytest.mark.slow]

MARK: Final = 16 << 20  # a quarter of the disk: what min_free comes to there
PAYLOAD: Final = 64 << 10
BACK_S: Final = 30.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path) as disk:
        yield disk


@contextlib.contextmanager
def broker_on(disk: Disk, workers: int = 1, **config: Any) -> Iterator[Broker]:
    settings = {"data_dir": str(disk.folder), "stores": 2, **config}
    with Broker(workers=workers, config=settings) as broker:
        yield broker


def free_on(disk: Disk) -> int:
    found = os.statvfs(disk.folder)
    return found.f_bavail * found.f_frsize


def take_room(disk: Disk, leaving: int) -> None:
    """Another program fills the disk, but for so many bytes."""
    with open(disk.folder.parent / "filler", "ab", buffering=0) as file:
        while (more := free_on(disk) - leaving) > 0:
            file.write(bytes(min(more, 1 << 20)))


def publish_until_refused(publisher: BarePublisher) -> tuple[int, Refused]:
    """Publishes what does not compress; how many were accepted, and the refusal."""
    for count in range(10_000):
        answer = publisher.publish([os.urandom(PAYLOAD)])
        if isinstance(answer, Refused):
            return count, answer
    raise AssertionError("the disk never got full")


def is_accepted(answer: Refused | list[int]) -> bool:
    return not isinstance(answer, Refused)


def wait_until(condition: Callable[[], Any]) -> Any:
    return until(BACK_S, condition, bool)


def is_held(node: asterism.BlockingNode) -> bool:
    return any(worker["disk"]["publishing_held"] for worker in node.query_status()["workers"])


# --- the low-water mark ---------------------------------------------------------------------------


def test_below_the_mark_publishing_is_refused_and_consuming_makes_room_for_it(disk: Disk) -> None:
    with (
        broker_on(disk) as broker,
        BarePublisher(broker.address, "t") as publisher,
        asterism.connect_blocking(broker.address) as node,
    ):
        count, refused = publish_until_refused(publisher)
        assert count > 50
        assert refused.code == "busy" and refused.retry_after_ms
        assert "less than 16 MiB is free" in refused.detail and "make room" in refused.detail
        assert free_on(disk) > MARK // 2  # there is room to consume in
        assert is_held(node)
        inbox = node.subscribe("t", group="crew", credit=20)
        for _ in range(count):
            inbox.receive(timeout=BACK_S).processed(confirm=True)
        assert node.describe("t").held == 0
        with BarePublisher(broker.address, "t") as later:  # the first was silent for long
            until(BACK_S, lambda: later.publish([bytes(PAYLOAD)]), is_accepted)
        assert not is_held(node)
        logs = broker.logs()
    assert "publishing is held" in logs and "publishing goes on" in logs
    assert "a store fails" not in logs


@pytest.mark.parametrize("how", ["clear", "delete", "another program"])
def test_whatever_makes_room_lets_publishing_go_on_by_itself(disk: Disk, how: str) -> None:
    with (
        broker_on(disk) as broker,
        BarePublisher(broker.address, "t") as publisher,
        BarePublisher(broker.address, "elsewhere") as other,
        asterism.connect_blocking(broker.address) as node,
    ):
        if how == "another program":
            assert is_accepted(publisher.publish([b"1"]))
            take_room(disk, MARK // 2)
            wait_until(lambda: is_held(node))
        else:
            publish_until_refused(publisher)
        answer = other.publish([b"1"])
        assert isinstance(answer, Refused) and answer.code == "busy"
        with pytest.raises((asterism.PeerError, TimeoutError)):
            node.create_topic("new", timeout=1)
        if how == "clear":
            node.clear("t")
        elif how == "delete":
            node.delete_topic("t")
        else:
            disk.empty()
        until(BACK_S, other.again, is_accepted)


def test_without_a_mark_the_disk_may_be_filled(disk: Disk) -> None:
    with broker_on(disk, min_free=0) as broker, BarePublisher(broker.address, "t") as publisher:
        take_room(disk, MARK // 2)
        for _ in range(20):
            assert is_accepted(publisher.publish([os.urandom(PAYLOAD)]))
            time.sleep(0.02)  # longer in all than a worker takes to look


def test_dead_letters_and_reports_go_on_below_the_mark(disk: Disk) -> None:
    topics = [f"dead-{number}" for number in range(8)]  # of both workers, whatever they are called
    with (
        broker_on(disk, workers=2, topic={"max_attempts": 1}) as broker,
        asterism.connect_blocking(broker.address) as node,
    ):
        for topic in topics:
            node.create_topic(f"of-{topic}", dead_letter=topic)
            node.publish(f"of-{topic}", b"1", expect="processed", max_receivers=1)
        take_room(disk, MARK // 2)
        wait_until(lambda: is_held(node))
        for topic in topics:
            node.subscribe(f"of-{topic}", group="crew").receive(timeout=BACK_S).failed()
        for topic in topics:
            assert node.subscribe(topic, group="crew").receive(timeout=BACK_S).payload == b"1"


# --- a topic that is to be moved ------------------------------------------------------------------


def process_of(node: asterism.BlockingNode, topic: str) -> Any:
    known = [worker["dedicated"].get(topic) for worker in node.query_status()["workers"]]
    return next((each["pid"] for each in known if each), None)


@pytest.mark.parametrize("min_free", [None, 0], ids=["low", "full"])
def test_a_topic_that_cannot_be_moved_stays_where_it_is_until_there_is_room(
    disk: Disk, min_free: int | None
) -> None:
    config = {} if min_free is None else {"min_free": min_free}
    with broker_on(disk, **config) as broker, asterism.connect_blocking(broker.address) as node:
        sent = [os.urandom(PAYLOAD) for _ in range(200)]
        node.publish_many("moved", sent, expect="processed", max_receivers=1)
        node.publish("other", b"1", expect="processed", max_receivers=1)
        pids = broker.pids()["worker"]
        take_room(disk, 4 << 20)
        node.configure("moved", dedicated=True)
        wait_until(lambda: "a topic stays where it is" in broker.logs())
        inbox = node.subscribe("other", group="crew", timeout=BACK_S)
        inbox.receive(timeout=BACK_S).processed()
        assert node.describe("moved").held == len(sent)
        assert process_of(node, "moved") is None
        assert not [*(disk.folder / "dedicated").glob("[0-9]*")]
        disk.empty()
        wait_until(lambda: process_of(node, "moved"))
        inbox = node.subscribe("moved", group="crew", timeout=BACK_S)
        got: set[bytes] = set()
        while len(got) < len(sent):
            delivery = inbox.receive(timeout=BACK_S)
            got.add(delivery.payload)
            delivery.processed()
        assert got == set(sent)
        assert broker.pids()["worker"] == pids


def test_a_topic_that_cannot_be_moved_back_goes_on_in_its_own_process(disk: Disk) -> None:
    with broker_on(disk) as broker, asterism.connect_blocking(broker.address) as node:
        node.create_topic("moved", dedicated=True)
        wait_until(lambda: process_of(node, "moved"))
        sent = [os.urandom(PAYLOAD) for _ in range(200)]
        node.publish("moved", sent[0], expect="processed", max_receivers=1)
        node.publish_many("moved", sent[1:], expect="processed", max_receivers=1)
        pids = broker.pids()["worker"]
        take_room(disk, MARK - (1 << 20))  # RocksDB may have to write what was published
        node.configure("moved", dedicated=False)
        wait_until(lambda: "a topic stays where it is" in broker.logs())
        wait_until(lambda: process_of(node, "moved"))
        inbox = node.subscribe("moved", group="crew", timeout=BACK_S)
        got: set[bytes] = set()
        while len(got) < 100:
            delivery = inbox.receive(timeout=BACK_S)
            got.add(delivery.payload)
            delivery.processed(confirm=True)
        disk.empty()
        wait_until(lambda: process_of(node, "moved") is None)
        while len(got) < len(sent):
            delivery = inbox.receive(timeout=BACK_S)
            got.add(delivery.payload)
            delivery.processed(confirm=True)
        assert got == set(sent)
        assert node.describe("moved").held == 0
        assert broker.pids()["worker"] == pids
