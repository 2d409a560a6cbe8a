"""Large payloads through real processes: memory is bounded in bytes, whoever reads them or not."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psutil
import pytest

import asterism
from asterism.sdk.aio import Node
from asterism.testing import Broker
from tests.process.conftest import WAIT_S, new_topic, with_a_client

pytestmark = pytest.mark.process
SIZE = 1 << 20
LOOK_S = 0.005
MARGIN_BYTES = 128 << 20  # what a worker needs besides: to read, to encode, to send


@pytest.fixture(scope="module", params=[True, False], ids=["lanes", "no-lanes"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(workers=1, config={"lanes": request.param}) as running:
        yield running


@asynccontextmanager
async def watched(broker: Broker) -> AsyncIterator[list[int]]:
    """Has the most bytes that front-end and worker had at once, beyond those at the start."""
    pids = [*broker.pids()["worker"], *broker.pids()["frontend"]]
    processes = [psutil.Process(pid) for pid in pids]

    def held() -> int:
        return sum(int(process.memory_info().rss) for process in processes)

    before, most = held(), [0]

    async def look() -> None:
        while True:
            most[0] = max(most[0], held() - before)
            await asyncio.sleep(LOOK_S)

    looking = asyncio.create_task(look())
    try:
        yield most
    finally:
        looking.cancel()


def payload(number: int) -> bytes:
    return number.to_bytes(4, "big") * (SIZE // 4)


@with_a_client
async def test_a_backlog_of_large_payloads_costs_no_more_memory_than_a_part_of_it(
    node: Node, broker: Broker
) -> None:
    """By default an inbox has credit for 1,024 deliveries, here more than half a gigabyte."""
    topic, count = new_topic(), 512
    for first in range(0, count, 16):
        payloads = [payload(number) for number in range(first, first + 16)]
        await node.publish_many(topic, payloads, max_receivers=1)
    async with watched(broker) as most, await node.subscribe(topic, group="all") as inbox:
        for number in range(count):
            delivery = await inbox.receive(WAIT_S)
            assert delivery.payload == payload(number)
            await delivery.processed()
    assert most[0] < MARGIN_BYTES + (64 << 20)


@with_a_client
async def test_who_takes_nothing_does_not_fill_the_memory_of_the_broker(
    node: Node, broker: Broker
) -> None:
    topic, count = new_topic(), 640
    async with asterism.connect(broker.address, name="quick") as quick, watched(broker) as most:
        slow = await node.subscribe(topic, name="slow")
        inbox = await quick.subscribe(topic, name="quick")
        for number in range(count):
            await quick.publish(topic, payload(number), mode="online", expect="sent")
            assert (await inbox.receive(WAIT_S)).payload == payload(number)
        first = (await slow.receive(WAIT_S)).payload
        assert first == payload(0), "what it had in its hands already is still its own"
    assert most[0] < MARGIN_BYTES + (256 << 20) + (64 << 20)
