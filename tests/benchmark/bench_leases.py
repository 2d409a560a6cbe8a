"""What leases cost: those of deliveries that are held, and those of a consumer that is quick.

    python -m tests.benchmark.bench_leases [--held N] [--messages N] [--rounds N] [--json FILE]

*Held*: one consumer holds so many deliveries and finishes none; the topic's deadlines are short, so
that its client renews all of them every second. The time that the worker and the client spend on it
is what their processes use, less what they use with nothing held; and by the deadlines that a topic
has by itself a renewal comes every 20 seconds.

*Quick*: publish, consume and process at full speed, with leases and with ``max_lease=0``, in turns.
"""

import argparse
import asyncio
import os
import statistics
import time

import asterism
from asterism.testing import Broker
from tests.benchmark.report import progress, write_report

SENT_TIMEOUT_S = 3.0  # renewed at a third of it
DEFAULT_RENEWAL_S = 20.0
WATCHED_S = 10.0
BATCH = 100
WAIT_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pids: list[int]) -> float:
    """Seconds of processor time that these have used."""
    used = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        used += int(fields[11]) + int(fields[12])
    return used / TICKS


async def shares(pids: list[int]) -> tuple[float, float]:
    """The parts of a core that the workers and this process use, for a while."""
    began, workers, own = time.monotonic(), cpu_s(pids), time.process_time()
    await asyncio.sleep(WATCHED_S)
    seconds = time.monotonic() - began
    return (cpu_s(pids) - workers) / seconds, (time.process_time() - own) / seconds


async def hold(node: asterism.Node, pids: list[int], count: int) -> dict[str, float]:
    await node.create_topic("held", sent_timeout=SENT_TIMEOUT_S, received_timeout=SENT_TIMEOUT_S)
    inbox = await node.subscribe("held", name="holder", credit=count)
    idle_worker, idle_client = await shares(pids)
    await node.publish_many("held", [b"x"] * count, max_receivers=1, receipt=False)
    taken: list[asterism.Delivery] = []
    while len(taken) < count:
        taken += await inbox.batch(count - len(taken), WAIT_S)
    worker, client = await shares(pids)
    assert not any(delivery.lost for delivery in taken), "a healthy consumer has lost a delivery"
    await inbox.processed(taken)
    await inbox.close()
    every_second = max(worker - idle_worker, 0.0)
    return {
        f"worker's time for {count:,} held, renewed every second, %": every_second * 100,
        "the same by the default deadlines, %": every_second * 100 / DEFAULT_RENEWAL_S,
        "client's time, renewed every second, %": max(client - idle_client, 0.0) * 100,
    }


async def pass_through(node: asterism.Node, max_lease: float, count: int) -> float:
    """Messages a second, published, taken and processed."""
    topic = f"quick-{max_lease}"
    inbox = await node.subscribe(topic, group="crew", credit=16_384, max_lease=max_lease)
    began = time.monotonic()
    sending = asyncio.create_task(send(node, topic, count))
    left = count
    while left:
        taken = await inbox.batch(1_000, WAIT_S)
        await inbox.processed(taken)
        left -= len(taken)
    await sending
    seconds = time.monotonic() - began
    await inbox.close()
    return count / seconds


async def send(node: asterism.Node, topic: str, count: int) -> None:
    for _ in range(count // BATCH):
        await node.send_many(topic, [b"x" * 128] * BATCH, max_receivers=1, receipt=False)


async def measure(address: str, pids: list[int], options: argparse.Namespace) -> dict[str, float]:
    async with asterism.connect(address, name="bench") as node:
        figures = await hold(node, pids, options.held)
        rates: dict[float, list[float]] = {3_600.0: [], 0.0: []}
        for turn in progress(range(options.rounds + 1), "quick"):
            for max_lease, found in rates.items():
                rate = await pass_through(node, max_lease, options.messages)
                if turn:  # the first is a warm-up
                    found.append(rate)
        kept, without = (statistics.median(found) for found in rates.values())
    return figures | {
        "messages/s with leases": kept,
        "messages/s without": without,
        "with / without": kept / without,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--held", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=100_000, help="of one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    with Broker(workers=1) as broker:
        figures = asyncio.run(measure(broker.address, broker.pids()["worker"], options))
    write_report("leases", figures, options.json)


if __name__ == "__main__":
    main()
