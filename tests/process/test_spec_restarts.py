"""Processes that end in the middle of something, snapshots under traffic, and a first message."""

import asyncio
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import asterism
from asterism.sdk.aio import Node
from asterism.testing import Broker
from tests.process.conftest import (
    ROOT,
    WAIT_S,
    WORKERS,
    counts,
    has_receivers,
    is_empty,
    moment,
    new_topic,
    receive,
    take,
    until,
    with_a_client,
    worker_of_topic,
)

pytestmark = pytest.mark.process

KINDS = ["frontend", "interests", "worker"]
ENDS = [signal.SIGKILL, signal.SIGTERM]


async def restart(
    broker: Broker, kind: str, topic: str, end: signal.Signals = signal.SIGKILL
) -> None:
    """Ends a process that a topic needs, and waits for another."""
    index = worker_of_topic(topic) if kind == "worker" else 0
    await asyncio.to_thread(broker.restart, kind, index, end)


# --- in the middle of something -------------------------------------------------------------------


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.name)
@pytest.mark.parametrize("kind", KINDS)
@with_a_client
async def test_a_client_goes_on_when_a_process_was_restarted(
    node: Node, topic: str, broker: Broker, kind: str, end: signal.Signals
) -> None:
    inbox = await node.subscribe(topic, name="r")
    await node.publish(topic, b"before", expect="processed")
    assert await take(inbox, 1) == [b"before"]
    await restart(broker, kind, topic, end)
    await node.publish(topic, b"after", expect="processed")
    assert await take(inbox, 1) == [b"after"]
    assert topic in await node.list_topics()


@pytest.mark.parametrize("max_receivers", [1, None])
@with_a_client
async def test_a_key_keeps_its_order_whatever_its_priorities_when_its_worker_was_killed(
    node: Node, topic: str, broker: Broker, max_receivers: int | None
) -> None:
    await node.create_receiver(topic, "r")
    for number, priority in enumerate((None, 0, 5, 0)):
        await node.publish(
            topic, b"%d" % number, expect="processed", max_receivers=max_receivers,
            ordering_key="k", priority=priority,
        )  # fmt: skip
    await restart(broker, "worker", topic)
    inbox = await node.subscribe(topic, name="r")
    assert await take(inbox, 2) == [b"0", b"1"]
    await restart(broker, "worker", topic)
    assert await take(inbox, 2) == [b"2", b"3"]


@pytest.mark.parametrize("kind", KINDS)
@with_a_client
async def test_a_waiting_pull_outlives_the_kill_of_a_process(
    node: Node, topic: str, broker: Broker, kind: str
) -> None:
    await node.create_receiver(topic, "r")
    waiting = asyncio.create_task(node.pull(topic, "r", 10, WAIT_S))
    await node.describe(topic)
    await restart(broker, kind, topic)
    await node.publish(topic, b"", expect="processed")
    pulled = await waiting or await node.pull(topic, "r", 10, WAIT_S)
    assert [delivery.payload for delivery in pulled] == [b""]


@pytest.mark.parametrize("what", ["set_interests", "pull", "extend"])
@with_a_client
async def test_what_is_asked_of_an_endpoint_while_its_worker_restarts_is_done(
    node: Node, topic: str, broker: Broker, what: str
) -> None:
    worker = worker_of_topic(topic)
    inbox = await node.subscribe(topic, topic, name="r")
    await node.publish(topic, b"", expect="processed", max_receivers=1)
    delivery = await inbox.receive(WAIT_S)
    await node.create_receiver(topic, "pulled", "nothing")
    await node.pull(topic, "pulled", 1)
    before = broker.pids()["worker"]

    async def is_away() -> bool:
        return broker.pids()["worker"] != before

    restarting = asyncio.create_task(asyncio.to_thread(broker.restart, "worker", worker))
    await until(is_away, "the worker to be gone")
    if what == "set_interests":
        await inbox.set_interests("other")
        await node.publish(topic, b"other", subject="other")
        assert (await inbox.receive(WAIT_S)).payload == b"other"
    elif what == "pull":
        assert await node.pull(topic, "pulled", 1) == []
    else:
        try:
            await delivery.extend(60)
        except asterism.PeerError as error:
            assert error.code == "not_yours", "it waits again, and may not have come back yet"
    await restarting


@pytest.mark.parametrize("kind", KINDS)
@with_a_client
async def test_a_request_is_answered_through_the_kill_of_a_process(
    node: Node, topic: str, broker: Broker, kind: str
) -> None:
    """The one who answers holds the request while the process is killed."""
    inbox = await node.subscribe(topic, name="server")
    async with asterism.connect(node.address, replies=new_topic()) as other:
        asking = asyncio.create_task(other.request(topic, b"?", mode="durable", ttl=60))
        delivery = await inbox.receive(WAIT_S)
        await restart(broker, kind, topic)
        await until(functools.partial(answers, delivery, b"!"), "somebody to take the answer")
        assert (await asking).payload == b"!"


async def answers(delivery: asterism.Delivery, payload: bytes) -> bool:
    """Whether the answer found the one who asked; he may just be coming back."""
    try:
        await delivery.reply(payload)
    except asterism.PeerError as error:
        assert error.code == "no_receiver"
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
@with_a_client
async def test_settings_interests_and_parked_messages_outlive_every_process(
    node: Node, topic: str, broker: Broker, kind: str
) -> None:
    await node.create_topic(topic, max_payload=5, retry_backoff=asterism.Backoff(0.001, 0.002))
    inbox = await node.subscribe(topic, "a/*", "b", name="r")
    receipt = await node.publish(topic, b"x", subject="b", expect="processed", max_receivers=1)
    await (await inbox.receive(WAIT_S)).failed("broken", confirm=True)
    await restart(broker, kind, topic)
    assert (await node.describe(topic)).settings["max_payload"] == 5
    (parked,) = await node.list_parked(topic)
    assert (parked.sequence, parked.reason) == (receipt.sequence, "broken")
    (row,) = await node.list_receivers(topic)
    assert set(row.interests) == {"a/*", "b"}
    await node.renew_all(topic)
    assert await take(inbox, 1) == [b"x"]


@pytest.mark.parametrize("kind", [None, *KINDS])
@with_a_client
async def test_what_a_receiver_without_a_name_has_parked_outlives_it(
    node: Node, topic: str, broker: Broker, kind: str | None
) -> None:
    async with asterism.connect(node.address) as passing:
        inbox = await passing.subscribe(topic)
        receipt = await node.publish(topic, b"bad", expect="processed", max_receivers=2)
        brief = await node.publish(topic, b"brief", expect="processed", ttl=3)
        for failed in await receive(inbox, 2):
            await failed.failed("broken", confirm=True)
    await until(functools.partial(has_receivers, node, topic, 0), "its receiver to end")
    if kind is not None:
        await restart(broker, kind, topic)
    parked = await node.list_parked(topic)
    assert {each.sequence for each in parked} == {receipt.sequence, brief.sequence}
    assert {each.reason for each in parked} == {"broken"}
    assert (await receipt.resolved(WAIT_S)).verdict == "failed"
    assert (await brief.resolved(WAIT_S)).verdict == "failed"
    first, second = [await node.subscribe(topic, name=name) for name in ("first", "second")]
    assert [each.payload for each in await receive(first, 1)] == [b"bad"]
    assert await is_empty(node, second), "what is parked keeps its place"
    await node.renew(topic, receipt.sequence)
    assert await take(second, 1) == [b"bad"]
    await node.abandon(topic, brief.sequence)
    assert await node.list_parked(topic) == []


@pytest.mark.parametrize("kind", KINDS)
@with_a_client
async def test_the_lag_of_a_receiver_outlives_every_process(
    node: Node, topic: str, broker: Broker, kind: str
) -> None:
    await node.create_receiver(topic, "every", "a", "b")
    await node.create_receiver(topic, "one", "b")
    for subject in ("a", "b", "b"):
        await node.publish(topic, b"x", subject=subject, expect="processed")
        await node.publish(topic, b"x", subject=subject, expect="processed", max_receivers=1)
    before = (await node.describe(topic)).lags
    assert (before["every"].lag, before["one"].lag) == (6, 4)
    await restart(broker, kind, topic)
    after = (await node.describe(topic)).lags
    assert (after["every"].lag, after["one"].lag) == (6, 4)
    assert before["one"].oldest is not None and after["one"].oldest is not None
    assert after["one"].counted and after["one"].oldest >= before["one"].oldest


@with_a_client
async def test_what_is_due_later_outlives_the_kill_of_its_worker(
    node: Node, topic: str, broker: Broker
) -> None:
    pause = asterism.Backoff(0.3, 0.3)
    await node.create_topic(topic, max_attempts=2, retry_backoff=pause, draft_timeout=0.3)
    inbox = await node.subscribe(topic, name="r")
    await node.publish(topic, b"retried", expect="processed", max_receivers=1)
    await (await inbox.receive(WAIT_S)).failed("no", confirm=True)
    await node.draft(topic)
    expiring = await node.publish(topic, b"", subject="unheard", deliver_at=moment(60), ttl=0.3)
    await node.publish(topic, b"delayed", deliver_at=moment(0.3), max_receivers=1)
    await restart(broker, "worker", topic)
    came = {(each.payload, each.attempt) for each in await receive(inbox, 2)}
    assert came == {(b"retried", 2), (b"delayed", 1)}
    await until(functools.partial(is_over, node, topic, expiring.sequence), "it to expire")
    await until(functools.partial(has_no_draft, node, topic), "the draft to be deleted")


async def is_over(node: Node, topic: str, sequence: int) -> bool:
    try:
        await node.fetch(topic, sequence)
    except asterism.PeerError as error:
        assert error.code == "no_such_message"
        return True
    return False


async def has_no_draft(node: Node, topic: str) -> bool:
    return await counts(node, topic, "drafting") == (0,)


@pytest.mark.parametrize("kind", KINDS)
@with_a_client
async def test_changed_interests_hold_after_the_kill_of_a_process(
    node: Node, topic: str, broker: Broker, kind: str
) -> None:
    inbox = await node.subscribe(topic, "before", name="r")
    await inbox.set_interests("after")
    await restart(broker, kind, topic)
    await node.publish(topic, b"not", subject="before")
    await node.publish(topic, b"wanted", subject="after")
    assert (await inbox.receive(WAIT_S)).payload == b"wanted"
    assert await is_empty(node, inbox)


@pytest.mark.parametrize("mode", ["push", "online"])
@with_a_client
async def test_what_was_in_memory_alone_is_unknown_after_the_kill_of_its_worker(
    node: Node, topic: str, broker: Broker, mode: str
) -> None:
    inbox = await node.subscribe(topic, name="r")
    receipt = await node.publish(topic, b"", mode=mode, expect="processed")
    delivery = await inbox.receive(WAIT_S)
    await restart(broker, "worker", topic)
    await delivery.processed()
    assert (await receipt.resolved(WAIT_S)).verdict == "unknown", "and nobody waits in vain"


async def holds_nothing(node: Node, topic: str) -> bool:
    return await counts(node, topic, "held") == (0,)


@with_a_client
async def test_dead_letters_cross_workers_that_are_killed_and_come_once(
    node: Node, topic: str, broker: Broker
) -> None:
    here = worker_of_topic(topic)
    letters = new_topic((here + 1) % WORKERS)
    await node.create_topic(topic, dead_letter=letters)
    payloads = [b"%d" % number for number in range(200)]
    inbox = await node.subscribe(topic, name="r", credit=50)
    dead = await node.subscribe(letters, name="undertaker")
    await node.publish_many(topic, payloads, expect="processed", max_receivers=1)

    async def fail_all() -> None:
        failed: set[bytes] = set()
        while len(failed) < len(payloads):
            taken = await inbox.batch(20, WAIT_S)
            assert taken, f"only {len(failed)} came"
            await inbox.failed(taken, "broken")
            failed.update(delivery.payload for delivery in taken)

    async def kill() -> None:
        for worker in (here, 1 - here):
            await asyncio.to_thread(broker.restart, "worker", worker)

    await asyncio.gather(fail_all(), kill())
    seen: Counter[int] = Counter()
    while len(seen) < len(payloads):
        taken = await receive(dead, 1)
        await dead.processed(taken)
        # One that was handed out when its worker was killed may come again, but is stored once.
        seen.update({delivery.sequence for delivery in taken})
    await until(functools.partial(holds_nothing, node, letters), "all letters to be processed")
    assert await counts(node, topic, "held", "parked") == (0, 0)
    assert await counts(node, letters, "completed") == (len(payloads),)


@with_a_client
async def test_a_worker_that_is_stopped_for_a_while_loses_nothing(
    node: Node, topic: str, broker: Broker
) -> None:
    worker = worker_of_topic(topic)
    inbox = await node.subscribe(topic, name="r")
    broker.kill("worker", worker, signal.SIGSTOP)
    try:
        sending = asyncio.create_task(
            node.publish_many(topic, [b"1", b"2"], expect="processed", timeout=3 * WAIT_S)
        )
        other = new_topic(1 - worker)
        await node.publish(other, b"")  # the other worker is not held up
        assert not sending.done()
    finally:
        broker.kill("worker", worker, signal.SIGCONT)
    await sending
    assert await take(inbox, 2) == [b"1", b"2"]
    assert await is_empty(node, inbox)


def test_ready_after_a_kill_means_that_new_processes_are_ready(broker: Broker) -> None:
    before = broker.pids()["interests"]
    broker.kill("interests")
    broker.wait_ready()
    assert broker.pids()["interests"] != before


# --- a snapshot while traffic flows ---------------------------------------------------------------


def run_cli(*arguments: str, data_dir: Path) -> str:
    """What a command of the command line prints."""
    done = subprocess.run(
        [sys.executable, "-m", "asterism", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "ASTERISM_DATA_DIR": str(data_dir)},
        capture_output=True,
        text=True,
        timeout=3 * WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@with_a_client
async def test_a_snapshot_under_traffic_holds_all_that_was_accepted_before_it(
    node: Node, topic: str, broker: Broker, tmp_path: Path
) -> None:
    topics = [topic, new_topic((worker_of_topic(topic) + 1) % WORKERS)]
    accepted = {name: 0 for name in topics}
    is_over = False

    async def publish(name: str) -> None:
        while not is_over:
            payloads = [b"%d" % (accepted[name] + number) for number in range(10)]
            await node.publish_many(name, payloads, expect="processed")
            accepted[name] += len(payloads)

    async def reached(count: int) -> bool:
        return min(accepted.values()) >= count

    async with asyncio.TaskGroup() as tasks:
        for name in topics:
            tasks.create_task(publish(name))
        await until(functools.partial(reached, 100), "traffic to flow")
        before = dict(accepted)
        said = await asyncio.to_thread(
            functools.partial(run_cli, "snapshot", "create", "--json", data_dir=broker.data_dir)
        )
        after = dict(accepted)
        await until(functools.partial(reached, max(after.values()) + 50), "traffic to flow on")
        is_over = True
    folder = Path(json.loads(said)["folder"])
    found = await asyncio.to_thread(payloads_of_snapshot, folder, tmp_path / "data", topics)
    for name, payloads in found.items():
        assert payloads == [b"%d" % number for number in range(len(payloads))], "none is missing"
        assert before[name] <= len(payloads) <= after[name] + 10


def payloads_of_snapshot(folder: Path, data_dir: Path, topics: list[str]) -> dict[str, list[bytes]]:
    """What a broker that is started from a snapshot has on these topics."""
    with Broker(workers=1, config={"data_dir": str(data_dir)}):
        pass  # makes the folder
    for store in json.loads((folder / "manifest.json").read_text())["stores"]:
        place = data_dir / "stores" / f"{store['number']:04}"
        shutil.rmtree(place)
        shutil.copytree(folder / store["folder"], place)
    with (
        Broker(workers=1, config={"data_dir": str(data_dir)}) as restored,
        asterism.connect_blocking(restored.address) as node,
    ):
        found = {}
        for name in topics:
            inbox = node.subscribe(name, name="reader", credit=10_000)
            held = node.describe(name).held
            payloads: list[bytes] = []
            while len(payloads) < held:
                taken = inbox.batch(10_000, WAIT_S)
                assert taken, f"only {len(payloads)} of {held} came"
                payloads += [delivery.payload for delivery in taken]
            found[name] = payloads
        return found


# --- a first message ------------------------------------------------------------------------------


def test_a_first_message_goes_in_and_comes_out_on_the_command_line(
    broker: Broker, topic: str
) -> None:
    command = functools.partial(run_cli, data_dir=broker.data_dir)
    command("pub", topic, "Hello, Asterism", "--subject", "greeting/first")
    assert command("sub", topic, "greeting/*", "--count", "1", "--raw") == "Hello, Asterism\n"


FIRST_MESSAGE = """
import asyncio
import sys

import asterism


async def main() -> None:
    async with asterism.connect(sys.argv[1], name="first") as node:
        inbox = await node.subscribe(sys.argv[2], "greeting/*", name="reader")
        receipt = await node.publish(
            sys.argv[2], b"Hello", subject="greeting/first", expect="processed", max_receivers=1
        )
        async for delivery in inbox:
            async with delivery:
                print(delivery.payload.decode())
            break
        print((await receipt.resolved(timeout=5)).verdict)


asyncio.run(main())
"""


def test_a_first_message_goes_in_and_comes_out_from_python(broker: Broker, topic: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_MESSAGE, broker.address, topic],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert (done.stdout, done.stderr) == ("Hello\nok\n", "")
