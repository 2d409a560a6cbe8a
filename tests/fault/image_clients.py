"""The clients of ``tests.fault.image_cuts``: they live on while the power of the broker is cut.

Each is a process that uses the SDK as anybody would. It writes down what it saw, a line of JSON
each, and is told on standard input what comes next: ``life N SECONDS`` when a broker is there,
``stop`` when no more is to be published.

A payload begins with its kind (``d`` durable, ``p`` push), its topic and its number there.
"""

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import asterism
from asterism.cli.snapshot import take
from tests.fault.killing import Notes

GROUP: Final = "crew"
ORDERS, BULK, LEDGER = "orders", "bulk", "ledger"
DEDICATED, CHANGING, MIXED = "dedicated", "changing", "mixed"
QUEUES: Final = (ORDERS, BULK, DEDICATED, CHANGING, MIXED)  # each message goes to one of the crew
FRESH: Final = "fresh-"  # with the life it was made in: dedicated, made shortly before a cut

SMALL_BYTES, BULK_BYTES = 100, 60_000
SMALL_BATCH_MAX, BULK_BATCH_MAX = 200, 20
SMALL_PAUSE_S, BULK_PAUSE_S = 0.02, 0.1
FIRST_DURABLE: Final = 30  # of the topic whose other messages are push, in each life
PUSH_PAUSE_S: Final = 0.005
FRESH_COUNT: Final = 5
FRESH_LIVES: Final = 2  # until a topic of its own is read and deleted: each has a process
HOLD_S: Final = (0.0, 1.0)  # how long a consumer keeps what it took ...
LATE_PART: Final = 0.5  # ... of which it keeps so much over the next cut first
CREDIT: Final = 512
TAKEN_MAX: Final = 50
SNAPSHOT_PART: Final = 0.3  # of the lives
ACT_S: Final = 5.0  # for a request that a cut may interrupt
READ_S: Final = 30.0


Act = Callable[[], Awaitable[None]]


class Told:
    """What the owner has said: which life it is, and whether to stop."""

    def __init__(self) -> None:
        self.life = 0
        self.life_s = 1.0
        self.is_stopped = False
        self._news = asyncio.Event()
        self._next_life: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hear(self, line: str) -> None:
        word, *rest = line.split()
        if word == "life":
            self.life, self.life_s = int(rest[0]), float(rest[1])
        else:
            self.is_stopped = True
        self._news.set()
        self._next_life.set_result(None)
        self._next_life = asyncio.get_running_loop().create_future()

    async def next_life(self) -> None:
        """Waits until there is another broker, or there will be none."""
        if not self.is_stopped:
            await asyncio.shield(self._next_life)

    async def news(self) -> None:
        await self._news.wait()
        self._news.clear()


def payload_of(kind: str, topic: str, number: int, size: int) -> bytes:
    return f"{kind} {topic} {number} ".encode().ljust(size, b".")


def read_payload(payload: bytes) -> tuple[str, int]:
    """The kind, and the number in its topic."""
    kind, _, number = payload[:64].split(b" ")[:3]
    return kind.decode(), int(number)


# --- publishers -----------------------------------------------------------------------------------


class Publisher:
    """Publishes on every topic until it is stopped, then waits for all that it is owed."""

    def __init__(self, job: dict[str, Any], notes: Notes, told: Told) -> None:
        self._notes = notes
        self._told = told
        self._chance = random.Random(job["seed"])
        self._address = job["address"]
        self._is_dedicated = job["dedicated"]
        self._numbers: dict[str, int] = {}
        self._owed: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        async with (
            asterism.connect(self._address, name="publisher", timeout=60) as node,
            asterism.connect(self._address, name="pusher", timeout=60) as pusher,
        ):
            self._node, self._pusher = node, pusher
            await node.create_topic(DEDICATED, dedicated=self._is_dedicated, exist_ok=True)
            self._notes.add("ready")
            while not self._told.life:
                await self._told.news()
            await asyncio.gather(
                *(self._steadily(topic, SMALL_BYTES) for topic in (ORDERS, DEDICATED, CHANGING)),
                self._steadily(LEDGER, SMALL_BYTES, max_receivers=None),
                self._steadily(BULK, BULK_BYTES),
                self._push(),
            )
            await asyncio.gather(*self._owed)
            self._notes.add("settled")

    async def _steadily(self, topic: str, size: int, max_receivers: int | None = 1) -> None:
        is_bulk = size == BULK_BYTES
        batch_max = BULK_BATCH_MAX if is_bulk else SMALL_BATCH_MAX
        pause_s = BULK_PAUSE_S if is_bulk else SMALL_PAUSE_S
        while not self._told.is_stopped:
            count = self._chance.randint(1, batch_max)
            await self._durable(self._node, topic, count, size, max_receivers)
            await asyncio.sleep(self._chance.uniform(0, 2 * pause_s))

    async def _push(self) -> None:
        """After a cut durable messages come first, where push messages were before it."""
        life = 0
        while not self._told.is_stopped:
            if life != self._told.life:
                life = self._told.life
                for _ in range(FIRST_DURABLE):
                    # One of them lost answers to push messages with the power, the other did not.
                    node = self._chance.choice((self._node, self._pusher))
                    await self._durable(node, MIXED, 1, SMALL_BYTES, 1)
                    await asyncio.sleep(PUSH_PAUSE_S)
            number = self._next_numbers(MIXED, 1)[0]
            payload = payload_of("p", MIXED, number, SMALL_BYTES)
            receipt = await self._pusher.send(
                MIXED, payload, mode="push", expect="processed", receipt=False, timeout=None
            )
            self._owe(self._note_push(receipt, number))
            await asyncio.sleep(PUSH_PAUSE_S)

    def _next_numbers(self, topic: str, count: int) -> list[int]:
        first = self._numbers.get(topic, 0) + 1
        self._numbers[topic] = first + count - 1
        return list(range(first, first + count))

    def _owe(self, work: Any) -> None:
        self._owed.append(asyncio.create_task(work))

    async def _durable(
        self, node: Any, topic: str, count: int, size: int, max_receivers: int | None
    ) -> None:
        numbers = self._next_numbers(topic, count)
        payloads = [payload_of("d", topic, number, size) for number in numbers]
        receipt = await node.send_many(
            topic, payloads, expect="processed", max_receivers=max_receivers,
            receipt=max_receivers is not None, timeout=None,
        )  # fmt: skip
        self._owe(self._note_durable(receipt, topic, numbers, max_receivers is not None))

    async def _note_durable(
        self, receipt: Any, topic: str, numbers: list[int], is_resolved: bool
    ) -> None:
        with contextlib.suppress(asterism.PeerError):
            await receipt.accepted(None)
        at = time.monotonic()
        pairs = list(zip(numbers, receipt.results, strict=True))
        stored = [pair for pair in pairs if isinstance(pair[1], int)]
        self._notes.add("accepted", topic, at, stored)
        refused = [str(result) for _, result in pairs if not isinstance(result, int)]
        if refused:
            self._notes.add("refused", topic, at, len(refused), refused[0])
        if is_resolved:
            outcomes = await receipt.all_resolved(None)
            verdicts = [held.verdict if held else "none" for held in outcomes]
            pairs = list(zip(numbers, verdicts, strict=True))
            self._notes.add("resolved", topic, time.monotonic(), pairs)

    async def _note_push(self, receipt: Any, number: int) -> None:
        with contextlib.suppress(asterism.PeerError):  # nobody was there to take it
            await receipt.accepted(None)
            self._notes.add("pushed", MIXED, number, receipt.sequence)


# --- consumers ------------------------------------------------------------------------------------


class Consumer:
    """Takes what comes and reports it processed, some of it so late that a cut lies between."""

    def __init__(self, job: dict[str, Any], notes: Notes, told: Told) -> None:
        self._notes = notes
        self._told = told
        self._chance = random.Random(job["seed"])
        self._address = job["address"]
        self._reports: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        async with asterism.connect(self._address, name="consumer", timeout=60) as node:
            inboxes = [
                await node.subscribe(topic, group=GROUP, credit=CREDIT, timeout=60)
                for topic in QUEUES
            ]
            self._notes.add("ready")
            await asyncio.gather(*map(self._consume, inboxes))

    async def _consume(self, inbox: Any) -> None:
        while taken := await inbox.batch(self._chance.randint(1, TAKEN_MAX), None):
            note_delivered(self._notes, inbox.topic, taken)
            report = asyncio.create_task(self._report(inbox, taken))
            self._reports.add(report)
            report.add_done_callback(self._reports.discard)

    async def _report(self, inbox: Any, taken: list[Any]) -> None:
        if self._chance.random() < LATE_PART:
            await self._told.next_life()
        await asyncio.sleep(self._chance.uniform(*HOLD_S))
        note_reporting(self._notes, inbox.topic, taken)
        await inbox.processed(taken)


def note_delivered(notes: Notes, topic: str, taken: list[Any]) -> None:
    items = [[*read_payload(one.payload), one.sequence, one.attempt] for one in taken]
    notes.add("delivered", topic, time.monotonic(), items)


def note_reporting(notes: Notes, topic: str, taken: list[Any]) -> None:
    durable = [
        number for kind, number in (read_payload(one.payload) for one in taken) if kind == "d"
    ]
    notes.add("reporting", topic, time.monotonic(), durable)


# --- the one who changes topics -------------------------------------------------------------------


class Changer:
    """Makes topics with a process of their own, changes one back and forth, takes snapshots."""

    def __init__(self, job: dict[str, Any], notes: Notes, told: Told) -> None:
        self._notes = notes
        self._told = told
        self._chance = random.Random(job["seed"])
        self._address = job["address"]
        self._is_dedicated = job["dedicated"]
        self._snapshots = Path(job["snapshots"])
        self._fresh: dict[int, list[int]] = {}  # by life: the numbers that were accepted

    async def run(self) -> None:
        async with asterism.connect(self._address, name="changer", timeout=60) as node:
            self._node = node
            self._notes.add("ready")
            while not self._told.is_stopped:
                await self._told.news()
                if not self._told.is_stopped:
                    await asyncio.gather(*(self._try(act) for act in self._acts()))
            for life in list(self._fresh):
                await self._try(partial(self._read, life), READ_S)
            self._notes.add("settled")

    def _acts(self) -> list[Act]:
        life = self._told.life
        acts: list[Act] = [partial(self._make, life), self._change] if self._is_dedicated else []
        acts += [partial(self._read, old) for old in self._fresh if old <= life - FRESH_LIVES]
        if self._chance.random() < SNAPSHOT_PART:
            acts.append(self._take_snapshot)
        return acts

    async def _try(self, act: Act, seconds: float = ACT_S) -> None:
        """Does it, unless a cut comes between: then it is done, or it is not."""
        with contextlib.suppress(TimeoutError, OSError, asterism.PeerError):
            async with asyncio.timeout(seconds):
                await act()

    async def _some_time(self) -> None:
        await asyncio.sleep(self._chance.uniform(0, self._told.life_s))

    async def _make(self, life: int) -> None:
        topic = f"{FRESH}{life}"
        await self._some_time()
        await self._node.create_topic(topic, dedicated=True, exist_ok=True)
        for number in range(1, FRESH_COUNT + 1):
            payload = payload_of("d", topic, number, SMALL_BYTES)
            receipt = await self._node.publish(topic, payload, expect="processed", max_receivers=1)
            self._fresh.setdefault(life, []).append(number)
            self._notes.add("accepted", topic, time.monotonic(), [(number, receipt.sequence)])

    async def _change(self) -> None:
        await self._some_time()
        await self._node.configure(CHANGING, dedicated=self._chance.random() < 0.5)

    async def _read(self, life: int) -> None:
        """Reads what a topic of its own holds, and deletes it when all was there."""
        topic = f"{FRESH}{life}"
        wanted = set(self._fresh[life])
        inbox = await self._node.subscribe(topic, group=GROUP)
        while wanted:
            taken = await inbox.batch(TAKEN_MAX, None)
            note_delivered(self._notes, topic, taken)
            note_reporting(self._notes, topic, taken)
            await inbox.processed(taken)
            wanted -= {read_payload(one.payload)[1] for one in taken}
        await inbox.close()
        del self._fresh[life]
        await self._node.delete_topic(topic)

    async def _take_snapshot(self) -> None:
        await asyncio.to_thread(self._take_one)

    def _take_one(self) -> None:
        with (
            contextlib.suppress(Exception),  # a cut may come at any moment of it
            asterism.connect_blocking(self._address, name="snapshot", timeout=ACT_S) as node,
        ):
            take(node, self._snapshots, ACT_S)
            self._notes.add("snapshot")


PARTS: Final[dict[str, type[Publisher | Consumer | Changer]]] = {
    "publisher": Publisher,
    "consumer": Consumer,
    "changer": Changer,
}


async def run_client(job: dict[str, Any]) -> None:
    """Does its part until that is done, or until its standard input ends."""
    told = Told()
    loop = asyncio.get_running_loop()
    with open(job["notes"], "w") as file:
        part = PARTS[job["part"]](job, Notes(file), told)
        task = asyncio.create_task(part.run())

        def on_input() -> None:
            lines = os.read(0, 4_096).decode().splitlines()
            for line in lines:
                told.hear(line)
            if not lines:
                loop.remove_reader(0)
                task.cancel()

        loop.add_reader(0, on_input)
        with contextlib.suppress(asyncio.CancelledError):
            await task


if __name__ == "__main__":
    asyncio.run(run_client(json.loads(sys.argv[2])))
