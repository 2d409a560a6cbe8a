"""Thousands of long polls that wait at once: whom a message wakes, whom a clear, what they cost."""

import asyncio
import resource
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

import asterism
from asterism.testing import Broker
from tests.conformance.http.conftest import Queue

pytestmark = [pytest.mark.process, pytest.mark.slow]

POLLS = 2_000
FILES = 3 * POLLS  # open at a time here, and in the gateway, which inherits the limit
AT_ONCE = 100  # connections that are opened at a time
WITHIN_S = 30.0
IDLE_S = 2.0  # over which the time of an idle gateway is taken
LOOK_S = 0.02

Polls = list[asyncio.Task[tuple[int, bytes]]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker of its own, whose memory nobody else uses, and that may open files enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    try:
        with Broker(workers=1, doors=("http",)) as running:
            yield running
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Watch:
    """Sees from outside what has reached the worker, and what the gateway needs."""

    def __init__(self, broker: Broker, node: asterism.Node) -> None:
        self._node = node
        (self._pid,) = broker.pids()["http"]
        self._gateway = psutil.Process(self._pid)
        self._looks = 0  # each of which is a command too

    async def commands(self) -> int:
        """What others have asked of the worker."""
        (worker,) = (await self._node.query_status())["workers"]
        assert worker is not None
        self._looks += 1
        return int(worker["totals"]["commands"]) - self._looks

    async def until_asked(self, commands: int) -> None:
        deadline = time.monotonic() + WITHIN_S
        while await self.commands() < commands:
            assert time.monotonic() < deadline, "not all that was asked has reached the worker"
            await asyncio.sleep(LOOK_S)

    def memory_mib(self) -> float:
        return float(self._gateway.memory_info().rss) / (1 << 20)

    async def idle_percent(self) -> float:
        """How much of a core it uses while nothing happens."""
        before, began = sum(self._gateway.cpu_times()[:2]), time.monotonic()
        await asyncio.sleep(IDLE_S)
        used = sum(self._gateway.cpu_times()[:2]) - before
        return 100 * float(used) / (time.monotonic() - began)


async def _poll(url: str, path: str, opening: asyncio.Semaphore) -> tuple[int, bytes]:
    """One long poll on a connection of its own: its status and its body."""
    where = urlsplit(url)
    async with opening:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        (size,) = (int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        return int(head.split(None, 2)[1]), await reader.readexactly(size)
    finally:
        writer.close()


async def _polls(url: str, queue: Queue, count: int, watch: Watch) -> Polls:
    """So many polls, once all of them wait at the broker."""
    asked = await watch.commands()
    opening = asyncio.Semaphore(AT_ONCE)
    tasks = [
        asyncio.create_task(_poll(url, f"{queue.base}/messages", opening)) for _ in range(count)
    ]
    await watch.until_asked(asked + count)
    assert not any(task.done() for task in tasks)
    return tasks


async def _until_answered(polls: Polls, count: int) -> list[tuple[int, bytes]]:
    """The answers of those that have one, once there are so many; never more."""
    deadline = time.monotonic() + WITHIN_S
    while (done := sum(task.done() for task in polls)) < count:
        assert time.monotonic() < deadline, f"{done} of {count} are answered"
        await asyncio.sleep(LOOK_S)
    answers = [task.result() for task in polls if task.done()]
    assert len(answers) == count
    return answers


def _run(broker: Broker, scenario: Callable[[Watch], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(4 * WITHIN_S), asterism.connect(broker.address) as node:
            await scenario(Watch(broker, node))

    asyncio.run(main())


def _say(line: str) -> None:
    sys.stdout.write(f"\n{line}\n")


def test_a_message_wakes_one_of_thousands_and_a_clear_wakes_all(
    broker: Broker, queue: Queue, http: httpx.Client
) -> None:
    other = Queue(http, f"{queue.namespace}-other")

    async def scenario(watch: Watch) -> None:
        before = watch.memory_mib()
        idle_before = await watch.idle_percent()
        elsewhere = await _polls(broker.http_url, other, 1, watch)
        polls = await _polls(broker.http_url, queue, POLLS, watch)
        meanwhile = watch.memory_mib()
        idle = await watch.idle_percent()
        await _wake_one_by_one(queue, polls)
        await _wake_the_rest(queue, polls)
        assert not elsewhere[0].done()
        assert other.make().encode() in (await _until_answered(elsewhere, 1))[0]
        _say(
            f"gateway: {before:.1f} MiB before {POLLS} long polls, {meanwhile:.1f} MiB with them "
            f"({1024 * (meanwhile - before) / POLLS:.1f} KiB each), "
            f"{watch.memory_mib():.1f} MiB after; while nothing happens it uses {idle:.1f} % of a "
            f"core with them, {idle_before:.1f} % without"
        )

    _run(broker, scenario)


async def _wake_one_by_one(queue: Queue, polls: Polls) -> None:
    made: set[bytes] = set()
    for count in (1, 2, 3):
        made.add(await asyncio.to_thread(lambda: queue.make().encode()))
        answers = await _until_answered(polls, count)
        assert {body for status, body in answers if status == 200} == made
        assert await asyncio.to_thread(queue.stats) == {"ordered": count}
    await asyncio.to_thread(queue.http.get, "/health")
    await _until_answered(polls, 3)


async def _wake_the_rest(queue: Queue, polls: Polls) -> None:
    waiting = [task for task in polls if not task.done()]
    cleared = await asyncio.to_thread(queue.http.delete, queue.base)
    assert cleared.status_code == 204
    assert set(await _until_answered(waiting, len(waiting))) == {(404, b"")}
    assert await asyncio.to_thread(queue.stats) == {}


def test_thousands_that_hang_up_at_once_take_no_message(broker: Broker, queue: Queue) -> None:
    async def scenario(watch: Watch) -> None:
        polls = await _polls(broker.http_url, queue, POLLS, watch)
        asked = await watch.commands()
        for task in polls:
            task.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        await watch.until_asked(asked + POLLS)  # each of them is called off
        message = await asyncio.to_thread(queue.make)
        assert await asyncio.to_thread(queue.stats) == {"waiting": 1}
        assert await asyncio.to_thread(queue.order) == message

    _run(broker, scenario)


def test_thousands_of_messages_reach_thousands_of_polls_one_each(
    broker: Broker, queue: Queue
) -> None:
    async def scenario(watch: Watch) -> None:
        polls = await _polls(broker.http_url, queue, POLLS, watch)
        async with asterism.connect(broker.address) as node:

            async def make() -> bytes:
                sequence = await node.draft(queue.namespace)
                await node.set(queue.namespace, sequence, b"x")
                return b"%d" % sequence

            made = set(await asyncio.gather(*(make() for _ in range(POLLS))))
        answers = await _until_answered(polls, POLLS)
        assert len(made) == POLLS
        assert {body for _, body in answers} == made
        assert await asyncio.to_thread(queue.stats) == {"ordered": POLLS}

    _run(broker, scenario)
