"""What a backlog costs: time per message, memory, and opening the store again.

    python -m tests.benchmark.bench_backlog [--large N] [--memory N] [--json FILE]

Real RocksDB in a temporary folder, one topic, durable 128-byte messages for one receiver.

- *cost*: with a backlog of 1,000 and of 1,000,000 messages, in interleaved rounds, batches are
  published and as many consumed, so that the backlog keeps its length; each turn is committed and
  synced. The ratio is of the processor time per message.
- *opening*: the store with the large backlog is closed and opened again, up to the first delivery.
- *memory*: a process of its own fills a topic with 5,000,000 waiting messages and consumes some;
  its peak resident size is compared with that of one with an empty store.
"""

import argparse
import itertools
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from asterism import commands as ask
from asterism.actors.shard import Shard
from asterism.effects import Deliver
from asterism.message import Header, Mode, Status
from asterism.settings import TopicSettings
from asterism.storage.store import Store
from tests.benchmark.report import progress, write_report
from tests.support.delivered import deliveries_of

PAYLOAD = b"x" * 128
TOPIC = "orders"
NOW_MS = 1_700_000_000_000
ENCODED = Header(Mode.DURABLE, Status.PROCESSED, ("order/1/paid",), {}, 1).encoded
BATCH = 100


class Queue:
    """A topic over a store, driven turn by turn."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.shard = Shard(self.store, TopicSettings())
        self._number = itertools.count(1)
        self._held: list[int] = []

    def turn(self, sync: bool = True) -> int:
        """Ends a turn; how many deliveries it brought."""
        brought = 0
        effects = self.shard.end_turn()
        self.store.commit(sync)
        for _, effect in effects:
            if isinstance(effect, Deliver):
                self._held.extend(delivered.sequence for delivered in deliveries_of(effect))
                brought += len(effect.deliveries)
        return brought

    def publish(self, count: int) -> None:
        messages = tuple(
            (next(self._number).to_bytes(16, "big"), ENCODED, PAYLOAD) for _ in range(count)
        )
        self.shard.handle(TOPIC, ask.Publish(b"p", 0, messages), NOW_MS)

    def fill(self, count: int, label: str = "") -> None:
        for done in progress(range(0, count, 1_000), label):
            self.publish(min(1_000, count - done))
            self.turn(sync=False)

    def subscribe(self, credit: int) -> int:
        command = ask.Subscribe(b"c", 1, 1, ("order/*/paid",), name="w", credit=credit)
        self.shard.handle(TOPIC, command, NOW_MS)
        return self.turn()

    def step(self) -> None:
        """Publishes a batch and finishes as many of those that are held."""
        self.publish(BATCH)
        done, self._held = tuple(self._held[:BATCH]), self._held[BATCH:]
        assert len(done) == BATCH
        self.shard.handle(TOPIC, ask.Report(b"c", 2, 1, Status.PROCESSED, done), NOW_MS)
        self.turn()

    def close(self) -> None:
        self.store.close()


def measure_cost(small: int, large: int, folder: Path) -> dict[str, float]:
    """Microseconds per message at two backlogs, in interleaved rounds."""
    queues: dict[int, Queue] = {}
    for size in (small, large):
        queue = queues[size] = Queue(folder / str(size))
        queue.fill(size + 2 * BATCH, f"filling {size:,}")
        queue.subscribe(2 * BATCH)
    spent: dict[int, list[float]] = {small: [], large: []}
    for _ in range(40):  # in the first of them, RocksDB still sorts what was filled in
        for size, queue in queues.items():
            started = time.process_time()
            for _ in range(100):
                queue.step()
            spent[size].append((time.process_time() - started) / (100 * BATCH) * 1e6)
    for queue in queues.values():
        queue.close()
    low, high = statistics.median(spent[small]), statistics.median(spent[large])
    return {
        f"us per message, backlog {small:,}": low,
        f"us per message, backlog {large:,}": high,
        "ratio of the two": high / low,
    }


def measure_opening(size: int, folder: Path) -> dict[str, float]:
    """Seconds from opening the folder to the first delivery."""
    started = time.perf_counter()
    queue = Queue(folder)
    opened = time.perf_counter() - started
    assert queue.subscribe(BATCH) == BATCH
    delivered = time.perf_counter() - started
    queue.close()
    return {
        f"s to open {size:,} waiting": opened,
        f"s to first delivery of {size:,} waiting": delivered,
    }


def _memory_child(folder: str, size: int, answer: "multiprocessing.Queue[int]") -> None:
    queue = Queue(Path(folder))
    queue.fill(size, f"filling {size:,}" if size else "")
    if size:
        queue.subscribe(2 * BATCH)
        for _ in range(200):
            queue.step()
    queue.close()
    answer.put(_peak_kilobytes())


def _peak_kilobytes() -> int:
    """The peak resident size of this process; ``ru_maxrss`` would count its parent's too."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise RuntimeError("this system does not tell a process's peak memory in /proc")


def measure_memory(size: int, folder: Path) -> dict[str, float]:
    """MB of peak resident size with a backlog, above a process with none."""
    context = multiprocessing.get_context("spawn")
    peaks: list[int] = []
    for count in (0, size):
        answer: multiprocessing.Queue[int] = context.Queue()
        child = context.Process(
            target=_memory_child, args=(str(folder / f"m{count}"), count, answer)
        )
        child.start()
        peaks.append(answer.get(timeout=1_200))
        child.join()
    empty, full = peaks
    return {
        "MB of an empty process": empty / 1024,
        f"MB with {size:,} waiting": full / 1024,
        "MB above the empty process": (full - empty) / 1024,
    }


def sections(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, float]]:
    yield measure_cost(1_000, options.large, folder)
    yield measure_opening(options.large, folder / str(options.large))
    yield measure_memory(options.memory, folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--large", type=int, default=1_000_000, help="the large backlog (%(default)s)"
    )
    parser.add_argument(
        "--memory", type=int, default=5_000_000, help="waiting messages (%(default)s)"
    )
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for section in sections(options, Path(folder)):
            figures |= section
    write_report("backlog", figures, options.json)


if __name__ == "__main__":
    main()
