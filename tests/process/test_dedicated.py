"""A dedicated topic has a process of its own; setting it so, or no longer, loses nothing."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import asterism
from asterism.cli.doctor import examine
from asterism.storage.moving import dedicated_in
from asterism.testing import Broker
from tests.support.batches import some_blocking

pytestmark = pytest.mark.process
SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(workers=2) as running:
        yield running


def wait_until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SECONDS_MAX
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)
    return found


def process_of(node: Any, topic: str) -> int | None:
    """The process of a dedicated topic, by what the workers say."""
    for worker in node.query_status()["workers"]:
        known = worker.get("dedicated", {}).get(topic)
        if known:
            return int(known["pid"])
    return None


def test_a_dedicated_topic_has_a_process_of_its_own(broker: Broker) -> None:
    with asterism.connect_blocking(broker.address) as node:
        node.create_topic("own", dedicated=True)
        pid = wait_until(lambda: process_of(node, "own"))
        assert pid not in [pid for pids in broker.pids().values() for pid in pids]
        node.publish("own", b"1", max_receivers=1, receipt=False)
        inbox = node.subscribe("own", "**", name="reader")
        (delivery,) = inbox.batch(1, timeout=SECONDS_MAX)
        assert delivery.payload == b"1"
        assert "own" in node.list_topics()
        assert node.describe("own").settings["dedicated"] is True


def test_what_waits_moves_with_its_topic_there_and_back(broker: Broker) -> None:
    with asterism.connect_blocking(broker.address) as node:
        sent = [b"%d" % number for number in range(300)]
        inbox = node.subscribe("moved", "**", name="reader", credit=10)
        node.publish_many("moved", sent[:100], max_receivers=1, receipt=False)
        node.configure("moved", dedicated=True)
        wait_until(lambda: process_of(node, "moved"))
        node.publish_many("moved", sent[100:200], max_receivers=1, receipt=False)
        got = take(inbox, 150)
        node.configure("moved", dedicated=False)
        wait_until(lambda: not process_of(node, "moved"))
        node.publish_many("moved", sent[200:], max_receivers=1, receipt=False)
        got |= take(inbox, 300 - len(got))
        assert got == set(sent)
        wait_until(lambda: node.describe("moved").held == 0)
        assert not folder_of(broker, "moved")


def is_so(node: Any, topic: str, dedicated: bool) -> bool:
    return bool(process_of(node, topic)) is dedicated


def test_what_a_receiver_without_a_name_has_done_moves_with_its_topic(broker: Broker) -> None:
    topic = "moved with a receiver without a name"
    with asterism.connect_blocking(broker.address) as node:
        inbox = node.subscribe(topic, "**", credit=10)
        for dedicated in (True, False):
            done = b"before it is %s" % str(dedicated).encode()
            node.publish(topic, done, expect="processed", receipt=False)
            (delivery,) = inbox.batch(1, timeout=SECONDS_MAX)
            assert delivery.payload == done
            delivery.processed(confirm=True)
            node.configure(topic, dedicated=dedicated)
            wait_until(partial(is_so, node, topic, dedicated))
            wait_until(lambda: node.describe(topic).endpoints == 1)
        node.publish(topic, b"last", expect="processed", receipt=False)
        (delivery,) = inbox.batch(10, timeout=SECONDS_MAX)
        assert delivery.payload == b"last"


def take(inbox: Any, count: int) -> set[bytes]:
    """So many different payloads; some may come twice, as they were out when their topic moved."""
    got: set[bytes] = set()
    deadline = time.monotonic() + SECONDS_MAX
    while len(got) < count:
        assert time.monotonic() < deadline, f"only {len(got)} of {count} came"
        deliveries = some_blocking(inbox, count - len(got), timeout=1)
        inbox.processed(deliveries)
        got.update(delivery.payload for delivery in deliveries)
    return got


def folder_of(broker: Broker, topic: str) -> list[Path]:
    home = Path(broker.data_dir) / "dedicated"
    return [held.folder for held in dedicated_in(home) if held.topic == topic]


@pytest.mark.parametrize("whose", ["its own", "the worker's"])
def test_a_dedicated_topic_survives_a_kill(broker: Broker, whose: str) -> None:
    topic = f"killed {whose}"
    with asterism.connect_blocking(broker.address) as node:
        node.create_topic(topic, dedicated=True)
        pid = wait_until(lambda: process_of(node, topic))
        node.publish_many(topic, [b"1", b"2"], max_receivers=1, receipt=False)
        if whose == "its own":
            os.kill(pid, signal.SIGKILL)
        else:
            broker.restart("worker")
        wait_until(lambda: process_of(node, topic) not in (None, pid))
        node.publish(topic, b"3", max_receivers=1, receipt=False)
        inbox = node.subscribe(topic, "**", name="reader")
        assert take(inbox, 3) == {b"1", b"2", b"3"}


def test_a_deleted_dedicated_topic_leaves_nothing(broker: Broker) -> None:
    with asterism.connect_blocking(broker.address) as node:
        node.create_topic("gone", dedicated=True)
        wait_until(lambda: process_of(node, "gone"))
        node.delete_topic("gone")
        wait_until(lambda: not process_of(node, "gone"))
        wait_until(lambda: not folder_of(broker, "gone"))
        assert "gone" not in node.list_topics()


def test_an_asyncio_client_follows_a_topic_that_moves(broker: Broker) -> None:
    async def scenario() -> list[bytes]:
        async with asterism.connect(broker.address) as node:
            inbox = await node.subscribe("followed", "**", name="reader")
            await node.publish("followed", b"1", max_receivers=1, receipt=False)
            await node.configure("followed", dedicated=True)
            await node.publish("followed", b"2", max_receivers=1, receipt=False)
            got: list[bytes] = []
            async with asyncio.timeout(SECONDS_MAX):
                while set(got) != {b"1", b"2"}:
                    delivery = await inbox.receive()
                    await delivery.processed()
                    got.append(delivery.payload)
            return got

    assert set(asyncio.run(scenario())) == {b"1", b"2"}


def test_a_dedicated_store_that_is_damaged_keeps_its_own_topic_away_and_no_other() -> None:
    """One store for all shared topics: any of them would be away with it."""
    with (
        Broker(workers=1, config={"stores": 1}) as running,
        asterism.connect_blocking(running.address) as node,
    ):
        node.create_topic("own", dedicated=True)
        pid = wait_until(lambda: process_of(node, "own"))
        node.publish("own", b"kept", max_receivers=1, receipt=False)
        (folder,) = folder_of(running, "own")
        current = folder / "store" / "CURRENT"
        content = current.read_bytes()
        current.write_bytes(b"damaged\n")
        running.restart("worker")
        wait_until(lambda: process_of(node, "own") not in (None, pid))
        node.publish("shared", b"", max_receivers=1, receipt=False, timeout=SECONDS_MAX)
        with pytest.raises(TimeoutError, match="busy: the topic's own store cannot be used now"):
            node.publish("own", b"", receipt=False, timeout=3)
        found = [finding for finding in examine(None, str(running.data_dir)) if finding.to_do]
        (told,) = (finding for finding in found if finding.about.startswith("store "))
        assert told.about == "store of own"
        assert "stop the broker and run this again" in told.to_do
        current.write_bytes(content)
        inbox = node.subscribe("own", "**", name="reader", timeout=SECONDS_MAX)
        (delivery,) = inbox.batch(1, timeout=SECONDS_MAX)
        assert delivery.payload == b"kept"


# --- a folder as a power cut leaves it ------------------------------------------------------------


def stopped_with_an_own_topic(topic: str) -> Path:
    """The data folder of a broker that is stopped, with a message in a dedicated topic."""
    with Broker(workers=2, keep=True) as first:
        with asterism.connect_blocking(first.address) as node:
            node.create_topic(topic, dedicated=True)
            wait_until(lambda: process_of(node, topic))
            node.publish(topic, b"kept", max_receivers=1, receipt=False)
            node.publish("another", b"kept as well", max_receivers=1, receipt=False)
        return first.data_dir


@pytest.mark.parametrize("content", ["", None, '{"top'], ids=["empty", "missing", "torn"])
def test_an_empty_topic_json_is_mended_from_its_store(content: str | None) -> None:
    data = stopped_with_an_own_topic("own")
    try:
        (file,) = (data / "dedicated").glob("*/topic.json")
        file.unlink()
        if content is not None:
            file.write_text(content)
        with Broker(workers=2, config={"data_dir": str(data)}) as broker:
            with asterism.connect_blocking(broker.address) as node:
                assert take(node.subscribe("another", "**", name="reader"), 1) == {b"kept as well"}
                assert take(node.subscribe("own", "**", name="reader"), 1) == {b"kept"}
                assert process_of(node, "own")
            assert folder_of(broker, "own") == [file.parent]
    finally:
        shutil.rmtree(data.parent)


def test_a_dedicated_folder_that_cannot_be_told_takes_its_own_topic_alone_with_it() -> None:
    data = stopped_with_an_own_topic("own")
    try:
        (file,) = (data / "dedicated").glob("*/topic.json")
        file.write_text("")
        current = file.parent / "store" / "CURRENT"
        content = current.read_bytes()
        current.unlink()
        with Broker(workers=2, config={"data_dir": str(data)}) as broker:
            with asterism.connect_blocking(broker.address) as node:
                assert take(node.subscribe("another", "**", name="reader"), 1) == {b"kept as well"}
                node.publish("new", b"1")
                # It is not made anew: what it took would be void once its name is known.
                with pytest.raises((TimeoutError, asterism.PeerError)):
                    node.publish("own", b"lost", timeout=1)
            assert str(file.parent) in broker.logs() and '{"topic": ' in broker.logs()
            found = list(examine(None, str(data)))
            assert any(each.state == "wrong" and str(file.parent) in each.what for each in found)
        current.write_bytes(content)
        file.write_text('{"topic": "own"}')
        with (
            Broker(workers=2, config={"data_dir": str(data)}) as broker,
            asterism.connect_blocking(broker.address) as node,
        ):
            assert take(node.subscribe("own", "**", name="reader"), 1) == {b"kept"}
    finally:
        shutil.rmtree(data.parent)
