"""Consumers as people write them, on the defaults: nothing is lost, nothing is done twice, work is
shared. Each promise is kept by both clients.

Work that takes time is a sleep here; nothing else sleeps.
"""

import asyncio
import contextlib
import functools
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import asterism
from asterism.sdk.aio import Inbox, Node
from asterism.sdk.client import BlockingInbox, BlockingNode
from asterism.testing import Broker
from tests.process.conftest import ROOT, WAIT_S, Consumer, receive, until, with_a_client
from tests.support.batches import some, some_blocking

pytestmark = pytest.mark.process

SHORT = 0.4  # seconds of every deadline, where work is to take longer than that
LONG = 5 * SHORT
JOBS = 200
WORKERS = 3


async def create_hasty_topic(node: Node, topic: str, **settings: Any) -> None:
    await node.create_topic(topic, sent_timeout=SHORT, received_timeout=SHORT, **settings)


def in_thread(work: Callable[..., Any], *arguments: Any) -> Coroutine[Any, Any, Any]:
    return asyncio.to_thread(work, *arguments)


# --- a consumer that is killed --------------------------------------------------------------------

KILLED = {
    "asyncio": """
import asyncio, sys
import asterism

async def main(address, topic):
    async with asterism.connect(address) as node:
        done = 0
        async for delivery in await node.subscribe(topic, name="consumer"):
            async with delivery:
                if done == 3:
                    print("works", flush=True)
                    await asyncio.sleep(3_600)
                await delivery.processed(confirm=True)
                print(delivery.payload.decode(), flush=True)
                done += 1

asyncio.run(main(*sys.argv[1:]))
""",
    "blocking": """
import sys, time
import asterism

with asterism.connect_blocking(sys.argv[1]) as node:
    done = 0
    for delivery in node.subscribe(sys.argv[2], name="consumer"):
        with delivery:
            if done == 3:
                print("works", flush=True)
                time.sleep(3_600)
            delivery.processed(confirm=True)
            print(delivery.payload.decode(), flush=True)
            done += 1
""",
}


@contextlib.asynccontextmanager
async def running(script: str, *arguments: str) -> AsyncIterator[Consumer]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, *arguments), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    child = Consumer(process)
    try:
        yield child
    finally:
        if process.returncode is None:
            await child.kill()


@pytest.mark.parametrize("client", KILLED)
@with_a_client
async def test_what_a_killed_consumer_had_not_processed_comes_to_the_next(
    node: Node, topic: str, client: str
) -> None:
    payloads = {b"%d" % number for number in range(1_000)}
    await node.create_receiver(topic, "consumer", "**")
    await node.publish_many(topic, sorted(payloads))
    async with running(KILLED[client], node.address, topic) as child:
        processed = {(await child.line()).encode() for _ in range(3)}
        assert await child.line() == "works"
        await child.kill()
    inbox = await node.subscribe(topic, name="consumer")
    came: Counter[bytes] = Counter()
    for _ in range(997):
        async with await inbox.receive(WAIT_S) as delivery:
            came[delivery.payload] += 1
    assert set(came) == payloads - processed and set(came.values()) == {1}


# --- a handler that fails -------------------------------------------------------------------------


class WorkError(Exception):
    """What a handler raises."""


@pytest.mark.parametrize("attempts", [1, 3])
@with_a_client
async def test_what_a_handler_fails_at_is_tried_again_and_then_parked(
    node: Node, topic: str, attempts: int
) -> None:
    await node.create_topic(topic, max_attempts=attempts)
    inbox = await node.subscribe(topic, name="consumer")
    await node.publish(topic, b"job")
    for attempt in range(1, attempts + 1):
        with pytest.raises(WorkError):
            async with await inbox.receive(WAIT_S) as delivery:
                assert delivery.attempt == attempt
                raise WorkError("it broke")

    async def is_parked() -> bool:
        return len(await node.list_parked(topic)) == 1

    await until(is_parked, "the message to be parked")
    assert "it broke" in str(await node.list_parked(topic))


@with_a_client
async def test_what_a_blocking_handler_fails_at_is_parked(node: Node, topic: str) -> None:
    await node.create_receiver(topic, "consumer", "**")
    await node.publish(topic, b"job")

    def work() -> None:
        with asterism.connect_blocking(node.address) as own:
            for delivery in own.subscribe(topic, name="consumer"):
                with delivery:
                    raise WorkError("it broke")

    with pytest.raises(WorkError):
        await in_thread(work)
    (parked,) = await node.list_parked(topic)
    assert "it broke" in str(parked)


# --- slow work ------------------------------------------------------------------------------------


async def work_on_all(inbox: Inbox, count: int, seconds: float) -> Counter[bytes]:
    """Works on jobs one after the other until so many were, and nothing is left; who came."""
    came: Counter[bytes] = Counter()
    while sum(came.values()) < count:
        async with await inbox.receive(WAIT_S) as delivery:
            came[delivery.payload] += 1
            await asyncio.sleep(seconds)
    return came


def work_on_all_blocking(inbox: BlockingInbox, count: int, seconds: float) -> Counter[bytes]:
    came: Counter[bytes] = Counter()
    for delivery in inbox:
        with delivery:
            came[delivery.payload] += 1
            time.sleep(seconds)
        if sum(came.values()) == count:
            break
    return came


async def is_all_done(node: Node, topic: str) -> bool:
    told = await node.describe(topic)
    return told.sent + told.received == 0 and told.completed == 60


@pytest.mark.parametrize("credit", [None, 100])
@pytest.mark.parametrize("client", ["asyncio", "blocking"])
@with_a_client
async def test_a_healthy_consumer_runs_each_job_once_however_long_its_inbox(
    node: Node, topic: str, client: str, credit: int | None
) -> None:
    await create_hasty_topic(node, topic)
    jobs = [b"%d" % number for number in range(60)]
    await node.publish_many(topic, jobs, max_receivers=1)
    if client == "asyncio":
        inbox = await node.subscribe(topic, name="consumer", credit=credit)
        came = await work_on_all(inbox, 60, 0.05)
    else:

        def work() -> Counter[bytes]:
            with asterism.connect_blocking(node.address) as own:
                inbox = own.subscribe(topic, name="consumer", credit=credit)
                return work_on_all_blocking(inbox, 60, 0.05)

        came = await in_thread(work)
    await until(functools.partial(is_all_done, node, topic), "every job to be done")
    assert came == Counter(jobs), "as many executions as jobs"


@pytest.mark.parametrize("client", ["asyncio", "blocking"])
@with_a_client
async def test_a_job_that_takes_longer_than_every_deadline_is_run_once(
    node: Node, topic: str, client: str
) -> None:
    await create_hasty_topic(node, topic)
    idle = await node.subscribe(topic, group="crew", credit=0)
    receipt = await node.publish(topic, b"job", max_receivers=1)
    if client == "asyncio":
        async with asterism.connect(node.address) as own:
            busy = await own.subscribe(topic, group="crew")
            async with await busy.receive(WAIT_S) as delivery:
                idle.grant(10)
                await asyncio.sleep(LONG)
                assert not delivery.lost
            outcome = await receipt.resolved(WAIT_S)
    else:
        with ThreadPoolExecutor() as pool:
            taken = threading.Event()
            future = pool.submit(work_long_blocking, node.address, topic, taken)
            await in_thread(taken.wait, WAIT_S)
            idle.grant(10)
            await in_thread(future.result, WAIT_S)
            outcome = await receipt.resolved(WAIT_S)
    assert outcome.verdict == "ok"
    assert await some(idle, 1, 0) == []


def work_long_blocking(address: str, topic: str, taken: threading.Event) -> None:
    with (
        asterism.connect_blocking(address) as own,
        own.subscribe(topic, group="crew").receive(WAIT_S) as delivery,
    ):
        taken.set()
        time.sleep(LONG)
        assert not delivery.lost


@with_a_client
async def test_what_was_pulled_is_kept_like_all_else(node: Node, topic: str) -> None:
    await create_hasty_topic(node, topic)
    await node.create_receiver(topic, "crew", "**")
    await node.publish(topic, b"job")
    (delivery,) = await node.pull(topic, "crew", wait=WAIT_S)
    await asyncio.sleep(LONG)
    assert not delivery.lost
    assert await node.pull(topic, "crew") == []
    await delivery.processed(confirm=True)


@pytest.mark.parametrize("credit", [None, 2])
@pytest.mark.parametrize("client", ["asyncio", "blocking"])
@with_a_client
async def test_a_consumer_that_hangs_loses_its_delivery_after_max_lease_and_can_see_it(
    node: Node, topic: str, client: str, credit: int | None, broker: Broker
) -> None:
    await create_hasty_topic(node, topic)
    await node.publish_many(topic, [b"job", b"behind it"], max_receivers=1)
    async with asterism.connect(broker.address, max_lease=2 * SHORT) as own:
        began = time.monotonic()
        if client == "asyncio":
            hung = await own.subscribe(topic, group="crew", credit=credit)
            delivery: Any = await hung.receive(WAIT_S)
        else:
            blocking = await in_thread(hang_blocking, broker.address, topic, credit)
            delivery = blocking[1]
        assert not delivery.lost
        healthy = await node.subscribe(topic, group="crew")
        again = await receive(healthy, 2)
        assert time.monotonic() - began >= 2 * SHORT, "it was kept until then"
        assert {(held.payload, held.attempt) for held in again} == {
            (b"job", 2),
            (b"behind it", 2),
        }

        async def is_lost() -> bool:
            return bool(delivery.lost)

        await until(is_lost, "the holder to see it")
        await healthy.processed(again)
        if client == "asyncio":
            assert await some(hung, 2, 0) == [], "a stale copy is never handed out"
        else:
            own_blocking, _, inbox = blocking
            assert await in_thread(some_blocking, inbox, 2, 0) == []
            await in_thread(own_blocking.close)


def hang_blocking(
    address: str, topic: str, credit: int | None
) -> tuple[BlockingNode, Any, BlockingInbox]:
    own = asterism.connect_blocking(address, max_lease=2 * SHORT)
    inbox = own.subscribe(topic, group="crew", credit=credit)
    return own, next(iter(inbox)), inbox


@with_a_client
async def test_other_deadlines_are_heard_of_and_kept(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="consumer")
    await node.publish(topic, b"job")
    delivery = await inbox.receive(WAIT_S)
    await node.configure(topic, sent_timeout=LONG)
    await node.configure(topic, sent_timeout=SHORT * 2)
    await asyncio.sleep(LONG)
    assert not delivery.lost
    await delivery.processed(confirm=True)
    assert await some(inbox, 1, 0) == []


# --- sharing --------------------------------------------------------------------------------------


def seconds_of_jobs() -> list[float]:
    chance = random.Random(7)
    return [chance.uniform(0.02, 0.05) for _ in range(JOBS)]


def assert_fair(shares: list[int]) -> None:
    assert sum(shares) == JOBS
    third = JOBS / WORKERS
    assert all(0.8 * third <= share <= 1.2 * third for share in shares), shares


async def work_share(inbox: Inbox, seconds: list[float], left: list[int]) -> int:
    """Works until all jobs are done, by whomever; how many it did."""
    share = 0
    while left[0] > 0:
        for delivery in await some(inbox, 1, 0.05):
            async with delivery:
                await asyncio.sleep(seconds[int(delivery.payload)])
            share += 1
            left[0] -= 1
    return share


@pytest.mark.parametrize("published", ["beforehand", "meanwhile"])
@with_a_client
async def test_workers_of_a_group_share_slow_jobs_fairly(
    node: Node, topic: str, published: str
) -> None:
    seconds, left = seconds_of_jobs(), [JOBS]
    jobs = [b"%d" % number for number in range(JOBS)]
    wishes: Any = {"max_receivers": 1}
    async with contextlib.AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(asterism.connect(node.address)) for _ in range(WORKERS)
        ]
        if published == "beforehand":
            await node.publish_many(topic, jobs, **wishes)
        subscribing = (each.subscribe(topic, group="crew") for each in nodes)
        inboxes = await asyncio.gather(*subscribing)
        working = [asyncio.create_task(work_share(inbox, seconds, left)) for inbox in inboxes]
        if published == "meanwhile":
            for job in jobs:
                await node.publish(topic, job, **wishes)
        assert_fair(await asyncio.gather(*working))


@with_a_client
async def test_blocking_workers_of_a_group_share_slow_jobs_fairly(node: Node, topic: str) -> None:
    seconds, left = seconds_of_jobs(), [JOBS]
    lock, begin = threading.Lock(), threading.Barrier(WORKERS + 1)

    def work() -> int:
        share = 0
        with asterism.connect_blocking(node.address) as own:
            inbox = own.subscribe(topic, group="crew")
            begin.wait(WAIT_S)
            while left[0] > 0:
                for delivery in some_blocking(inbox, 1, 0.05):
                    with delivery:
                        time.sleep(seconds[int(delivery.payload)])
                    share += 1
                    with lock:
                        left[0] -= 1
        return share

    with ThreadPoolExecutor(WORKERS) as pool:
        working = [pool.submit(work) for _ in range(WORKERS)]
        await in_thread(begin.wait, WAIT_S)
        jobs = [b"%d" % number for number in range(JOBS)]
        await node.publish_many(topic, jobs, max_receivers=1)
        assert_fair([await in_thread(each.result, 2 * WAIT_S) for each in working])


# --- looking only ---------------------------------------------------------------------------------


@with_a_client
async def test_with_auto_ack_a_delivery_is_processed_as_it_is_handed_out(
    node: Node, topic: str
) -> None:
    inbox = await node.subscribe(topic, name="viewer", auto_ack=True)
    receipts = await node.publish_many(topic, [b"1", b"2", b"3"])
    one = await inbox.receive(WAIT_S)
    assert one.is_finished and not one.lost
    assert len(await receive(inbox, 2)) == 2
    assert len(receipts) == 3

    async def is_done() -> bool:
        (row,) = [row async for row in node.list_receivers(topic)]
        return row.in_flight == 0

    await until(is_done, "all to be processed")


@with_a_client
async def test_with_auto_ack_a_blocking_consumer_acknowledges_what_it_was_handed(
    node: Node, topic: str
) -> None:
    await node.create_receiver(topic, "viewer", "**")
    await node.publish_many(topic, [b"1", b"2", b"3"])

    def look() -> list[bytes]:
        with asterism.connect_blocking(node.address) as own:
            inbox = own.subscribe(topic, name="viewer", auto_ack=True)
            seen = []
            for delivery in inbox:
                seen.append(delivery.payload)
                if len(seen) == 2:
                    return seen
        return []

    assert await in_thread(look) == [b"1", b"2"]
    rest = await node.subscribe(topic, name="viewer")
    assert (await rest.receive(WAIT_S)).payload == b"3", "it was fetched, and not handed out"
