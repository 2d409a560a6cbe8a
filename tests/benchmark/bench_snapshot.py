"""What a snapshot costs those who publish meanwhile, and how long it takes.

    python -m tests.benchmark.bench_snapshot [--messages N] [--snapshots N] [--json FILE]

A real broker with one worker and a backlog of 2,000,000 durable messages of 128 bytes in one topic.
One process publishes to another topic of the same store at full load: so many batches at a time,
each behind the answer to the one before. Another takes snapshots, with pauses between. The latency
of a batch is from publishing to its being accepted; it counts as *during* a snapshot if it was on
its way at any moment of one.

Figures: latencies outside and during, messages a second, seconds a snapshot takes, its size, and
what of that nobody shares with the live stores (``st_nlink`` is 1): no data is copied.
"""

import argparse
import asyncio
import multiprocessing
import os
import random
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

import asterism
from asterism.cli.snapshot import take
from asterism.router.placement import store_of
from asterism.storage.snapshot import sizes_of
from asterism.testing import Broker
from tests.benchmark.report import progress, write_report

NOISE = os.urandom(1 << 20)  # so that it does not get smaller on the disk
SIZE = 128
BACKLOG = "backlog"
BATCH = 100
AT_A_TIME = 8
FILL = 10_000
PAUSE_S = 2.0
STORES = 8
ANSWER_S = 300


def payloads(count: int) -> list[bytes]:
    places = [random.randrange(len(NOISE) - SIZE) for _ in range(count)]
    return [NOISE[place : place + SIZE] for place in places]


def neighbour_of(topic: str) -> str:
    """A topic in the same store as another."""
    store = store_of(topic, STORES)
    return next(name for n in range(1_000) if store_of(name := f"orders-{n}", STORES) == store)


def take_when_told(address: str, home: str, pipe: "Connection[object, object]") -> None:
    """In a process of its own: a snapshot for each word; when it began and ended, and its sizes."""
    with asterism.connect_blocking(address, name="snapshot") as node:
        while pipe.recv():
            began = time.monotonic()
            taken = take(node, Path(home))
            ended = time.monotonic()
            pipe.send((began, ended, *sizes_of(taken)))


async def publish(node: asterism.Node, topic: str, until: asyncio.Event) -> list[list[float]]:
    """Publishes batches, one behind the other; when each began and ended."""
    times = []
    while not until.is_set():
        began = time.monotonic()
        await node.publish_many(topic, payloads(BATCH), expect="processed", max_receivers=1)
        times.append([began, time.monotonic()])
    return times


async def snapshots(pipe: "Connection[object, object]", count: int) -> list[list[float]]:
    """Has snapshots taken, with pauses; what was told of each."""
    told = []
    for _ in progress(range(count), "snapshots"):
        await asyncio.sleep(PAUSE_S)
        pipe.send(True)
        told.append(list(await asyncio.to_thread(pipe.recv)))  # type: ignore[call-overload]
    await asyncio.sleep(PAUSE_S)
    return told


async def under_load(
    broker: Broker, pipe: "Connection[object, object]", options: argparse.Namespace
) -> tuple[list[list[float]], list[list[float]]]:
    """The times of all batches, and what was told of each snapshot."""
    async with asterism.connect(broker.address, "bench") as node:
        for _ in progress(range(0, options.messages, FILL), f"filling {options.messages:,}"):
            await node.publish_many(BACKLOG, payloads(FILL), expect="processed", max_receivers=1)
        until = asyncio.Event()
        topic = neighbour_of(BACKLOG)
        publishers = [
            asyncio.create_task(publish(node, topic, until)) for _ in range(options.at_a_time)
        ]
        told = await snapshots(pipe, options.snapshots)
        until.set()
        times = [each for publisher in publishers for each in await publisher]
    return times, told


def figures_of(times: list[list[float]], told: list[list[float]]) -> dict[str, float]:
    during = [
        (end - begin) * 1_000
        for begin, end in times
        if any(begin <= taken[1] and end >= taken[0] for taken in told)
    ]
    outside = [
        (end - begin) * 1_000
        for begin, end in times
        if not any(begin <= taken[1] and end >= taken[0] for taken in told)
    ]
    took = max(end for _, end in times) - min(begin for begin, _ in times)
    figures = {"messages published a second": len(times) * BATCH / took}
    for name, latencies in (("outside", outside), ("during", during)):
        parts = statistics.quantiles(latencies, n=100)
        figures[f"ms p50, {name} snapshots"] = parts[49]
        figures[f"ms p99, {name} snapshots"] = parts[98]
        figures[f"ms max, {name} snapshots"] = max(latencies)
        figures[f"batches {name} snapshots"] = len(latencies)
    seconds = [taken[1] - taken[0] for taken in told]
    figures["s a snapshot, median"] = statistics.median(seconds)
    figures["s a snapshot, max"] = max(seconds)
    figures["MB of the last snapshot"] = told[-1][2] / 1e6
    figures["MB of it that nobody shares"] = told[-1][3] / 1e6
    return figures


def measure(options: argparse.Namespace) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    with Broker(workers=1) as broker:
        arguments = (broker.address, str(broker.data_dir / "snapshots"), theirs)
        child = context.Process(target=take_when_told, args=arguments, daemon=True)
        child.start()
        times, told = asyncio.run(under_load(broker, mine, options))
        mine.send(False)
        child.join(ANSWER_S)
    return figures_of(times, told)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=2_000_000, help="backlog (%(default)s)")
    parser.add_argument("--snapshots", type=int, default=5, help="how many (%(default)s)")
    parser.add_argument(
        "--at-a-time", type=int, default=AT_A_TIME, help="batches under way (%(default)s)"
    )
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    write_report("snapshot", measure(options), options.json)


if __name__ == "__main__":
    main()
