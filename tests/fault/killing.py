"""Kills a broker's processes under load, again and again, and checks that nothing came of it.

    python -m tests.fault.killing --messages 50000 --kills 40 --every 0.3 \\
        --publishers 2 --consumers 3 [--seed N] [--json FILE]

Publishers and consumers are processes of their own that use the SDK as anybody would. Every worker
has a topic; publishers spread numbered messages over the topics (durable, for one receiver, to be
processed), consumers share them as one group. All of it writes down what it saw, and ``audit``
judges the records afterwards, by the promises:

P1  Every message is accepted, and every accepted message is delivered and resolved with ``ok``.
P2  A message is stored once: one sequence a payload, one payload a sequence, and the topic counts
    as many processed as were accepted, and holds none.
P3  First attempts come to each consumer in the order of acceptance, which is, for each publisher,
    the order of publishing.
P4  An attempt is made once, and there is a second one only where the first was under way when the
    front-end or the topic's worker was killed. On lanes messages are under way, for the moment that
    it takes, until every client has heard that the front-end is another.
P5  Nobody is handed a message that another holds. A consumer holds a message from the moment that
    its application is handed it until the broker has answered its report. It is no holder any more
    where it could have come back for as long as the grace is, and has not: from so long on after
    the last process that was killed while it held it, and that it needs, was ready again.

The seed decides who is struck and when. The rest is up to the machine: a seed that failed is worth
trying again, and may go well.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

import asterism
from asterism.config import Config
from asterism.router.placement import store_of, worker_of
from asterism.testing import Broker

ROOT: Final = Path(__file__).resolve().parents[2]
GROUP: Final = "crew"
ALL: Final = "all"
STORES: Final = 8
PAYLOAD_BYTES: Final = 100
TICK_S: Final = 0.01  # between frames of a publisher, and between looks of the one who kills
WORK_S: Final = 0.002
TAKEN_MAX: Final = 20
CREDIT: Final = 64
CALM_S: Final = 1.0  # of traffic before the first stroke and after the last
PAUSE_S: Final = (0.1, 0.5)  # how long a process is stopped and then goes on
GRACE_S: Final = Config().restart_grace
LATE_S: Final = 1.0  # after a process is ready again, until every client has heard of it
PATIENCE_S: Final = 90.0  # for all to be processed after the last stroke
SHOWN_MAX: Final = 8

Tell = Callable[[str], None]


class Plan(NamedTuple):
    """What is run. ``targets`` are names of processes, or ``all``; none: any of these."""

    messages: int = 50_000
    kills: int = 40
    every_s: float = 0.3
    publishers: int = 2
    consumers: int = 3
    workers: int = 2
    seed: int = 1
    targets: tuple[str, ...] = ()
    pauses: bool = True
    lanes: bool = True
    work_s: float = WORK_S  # that a consumer has deliveries in hand for: some are, at every kill

    @property
    def names(self) -> tuple[str, ...]:
        """Every process that may be struck."""
        return ("frontend", "interests", *(f"worker-{number}" for number in range(self.workers)))

    @property
    def topics(self) -> tuple[str, ...]:
        """A topic for each worker: the n-th is of worker n."""
        found: dict[int, str] = {}
        number = 0
        while len(found) < self.workers:
            name = f"orders-{number}"
            found.setdefault(worker_of(store_of(name, STORES), self.workers), name)
            number += 1
        return tuple(found[worker] for worker in range(self.workers))

    @property
    def load_s(self) -> float:
        """How long messages are published for."""
        return 2 * CALM_S + self.kills * self.every_s


class Stroke(NamedTuple):
    """A signal to come: SIGKILL, or SIGSTOP with SIGCONT after ``pause_s``."""

    at_s: float
    target: str
    pause_s: float = 0.0


def strokes_of(plan: Plan) -> list[Stroke]:
    """What the seed decides: who is killed and who is paused, and when."""
    chance = random.Random(plan.seed)
    # Now and then all at once, and not so often that nothing would flow in between.
    targets = plan.targets or (*plan.names, *plan.names, ALL)
    strokes = []
    for number in range(plan.kills):
        at_s = CALM_S + number * plan.every_s
        strokes.append(Stroke(at_s, chance.choice(targets)))
        if plan.pauses and chance.random() < 0.5:
            paused_at_s = at_s + chance.uniform(0, plan.every_s)
            strokes.append(Stroke(paused_at_s, chance.choice(plan.names), chance.uniform(*PAUSE_S)))
    return sorted(strokes)


# --- what was seen --------------------------------------------------------------------------------


class Accepted(NamedTuple):
    """A message that its publisher knows to be stored."""

    topic: str
    publisher: int
    number: int
    sequence: int
    sent_at: float
    at: float


class Delivered(NamedTuple):
    """A message in the hands of a consumer."""

    topic: str
    publisher: int
    number: int
    sequence: int
    attempt: int
    consumer: int
    at: float
    until: float = 0.0  # its report was answered; 0: that was not noted


class Kill(NamedTuple):
    """A process that was killed; ``ready_at`` is when one in its place was ready."""

    target: str  # its name, or ``all``
    name: str
    pid: int
    at: float
    ready_at: float


class Seen(NamedTuple):
    """Everything that was written down in a run; moments are of the system's monotonic clock."""

    plan: Plan
    accepted: list[Accepted]
    refused: list[str]
    verdicts: dict[str, int]  # how many were resolved with which
    delivered: list[Delivered]
    kills: list[Kill]
    pauses: int
    described: list[dict[str, Any]]  # the topics, in the end
    seconds: float
    drained_s: float  # from the last stroke until the topics were empty


# --- the judgement --------------------------------------------------------------------------------


class Judgement(NamedTuple):
    """What came out: figures, and what broke a promise, which is nothing."""

    figures: dict[str, Any]
    wrong: list[str]


def audit(seen: Seen) -> Judgement:
    """Judges the records of a run by the promises above."""
    wrong = [*_kept(seen), *_stored_once(seen), *_in_order(seen), *_repeated_rightly(seen)]
    wrong += _listed("two holders at once", _two_holders(seen))
    return Judgement(figures_of(seen), wrong)


def _listed(what: str, which: list[Any]) -> list[str]:
    if not which:
        return []
    more = f", and {len(which) - SHOWN_MAX} more" if len(which) > SHOWN_MAX else ""
    return [f"{len(which)} {what}: {', '.join(map(str, which[:SHOWN_MAX]))}{more}"]


def _lost(seen: Seen) -> list[Accepted]:
    there = {(one.topic, one.publisher, one.number) for one in seen.delivered}
    return [one for one in seen.accepted if (one.topic, one.publisher, one.number) not in there]


def _kept(seen: Seen) -> list[str]:
    """P1."""
    wrong = _listed("accepted and never delivered", _lost(seen))
    wrong += _listed("refused", seen.refused)
    if len(seen.accepted) != seen.plan.messages:
        wrong.append(f"{len(seen.accepted)} accepted of {seen.plan.messages} published")
    if seen.verdicts != {"ok": seen.plan.messages}:
        wrong.append(f"not all receipts say ok: {seen.verdicts}")
    return wrong


def _stored_twice(seen: Seen) -> list[str]:
    sequences: dict[tuple[str, int, int], set[int]] = defaultdict(set)
    payloads: dict[tuple[str, int], set[tuple[int, int]]] = defaultdict(set)
    known: list[Accepted | Delivered] = [*seen.accepted, *seen.delivered]
    for one in known:
        sequences[one.topic, one.publisher, one.number].add(one.sequence)
        payloads[one.topic, one.sequence].add((one.publisher, one.number))
    twice = [f"{key} as {sorted(held)}" for key, held in sequences.items() if len(held) > 1]
    return twice + [f"{key} is {sorted(held)}" for key, held in payloads.items() if len(held) > 1]


def _stored_once(seen: Seen) -> list[str]:
    """P2."""
    wrong = _listed("stored twice", _stored_twice(seen))
    for topic in seen.described:
        name = topic["topic"]
        left = {key: topic[key] for key in ("held", "waiting", "sent", "received", "parked")}
        if any(left.values()):
            wrong.append(f"{name} is not empty: {left}")
        published = sum(one.topic == name for one in seen.accepted)
        if topic["completed"] != published:
            wrong.append(f"{name}: {published} were accepted, {topic['completed']} are done")
    return wrong


def _in_order(seen: Seen) -> list[str]:
    """P3."""
    wrong = []
    last: dict[tuple[Any, ...], Any] = {}
    for one in sorted(seen.accepted, key=lambda one: (one.topic, one.sequence)):
        before = last.get((one.topic, one.publisher), 0)
        if one.number <= before:
            wrong.append(f"{one.topic}: stored {one.number} of {one.publisher} after {before}")
        last[one.topic, one.publisher] = one.number
    last.clear()
    for got in seen.delivered:  # of one consumer, they are as they came
        if got.attempt > 1:
            continue
        before = last.get((got.topic, got.consumer), 0)
        if got.sequence <= before:
            wrong.append(f"{got.topic}: consumer {got.consumer} got {got.sequence} after {before}")
        last[got.topic, got.consumer] = got.sequence
    return _listed("out of order", wrong)


def _repeated_rightly(seen: Seen) -> list[str]:
    """P4."""
    sent_at = {(one.topic, one.sequence): one.sent_at for one in seen.accepted}
    attempts: dict[tuple[str, int], list[Delivered]] = defaultdict(list)
    for got in seen.delivered:
        attempts[got.topic, got.sequence].append(got)
    twice, unexplained = [], []
    for key, held in attempts.items():
        held.sort(key=lambda got: got.attempt)
        if len({got.attempt for got in held}) < len(held):
            twice.append(f"{key}: {[(got.attempt, got.consumer) for got in held]}")
        for index, got in enumerate(held):
            if got.attempt == 1:
                continue
            # Under way since it was sent, or, where the attempt before this one was seen, since a
            # moment before that: then only a kill whose end that delivery did not outlive counts.
            before = held[index - 1] if index else None
            seen_at = before.at if before is not None else None
            if not _was_struck(seen, got, sent_at.get(key, 0.0), seen_at):
                unexplained.append(f"{got} after {before}")
    wrong = _listed("attempts delivered twice", twice)
    return wrong + _listed("repeated though nobody was killed meanwhile", unexplained)


def _was_struck(seen: Seen, got: Delivered, sent_at: float, before_at: float | None) -> bool:
    holders = ("frontend", f"worker-{seen.plan.topics.index(got.topic)}")
    for kill in seen.kills:
        heard_at = kill.ready_at + LATE_S
        goes_on = seen.plan.lanes and kill.name == "frontend"
        if (
            kill.name in holders
            and sent_at <= (heard_at if goes_on else kill.at)
            and kill.at <= got.at
            and (before_at is None or before_at <= heard_at)
        ):
            return True
    return False


def _two_holders(seen: Seen) -> list[str]:
    """P5."""
    by_message: dict[tuple[str, int], list[Delivered]] = defaultdict(list)
    for got in seen.delivered:
        by_message[got.topic, got.sequence].append(got)
    return [
        f"{later} while {first}"
        for held in by_message.values()
        if len(held) > 1
        for first, later in permutations(held, 2)
        if first.consumer != later.consumer and first.at <= later.at < _holds_until(seen, first)
    ]


def _holds_until(seen: Seen, got: Delivered) -> float:
    needed = ("frontend", f"worker-{seen.plan.topics.index(got.topic)}")
    ready = [
        kill.ready_at
        for kill in seen.kills
        if kill.name in needed and got.at <= kill.ready_at and kill.at < got.until
    ]
    return min(got.until, max(ready) + GRACE_S) if ready else got.until


# --- figures --------------------------------------------------------------------------------------


def figures_of(seen: Seen) -> dict[str, Any]:
    unlike = {(got.topic, got.sequence) for got in seen.delivered}
    struck: dict[str, int] = defaultdict(int)
    for kill in seen.kills:
        struck[kill.name] += 1
    return {
        "messages": seen.plan.messages,
        "accepted": len(seen.accepted),
        "refused": len(seen.refused),
        "processed": len(unlike),
        "accepted_between_kills": _accepted_between_kills(seen),
        "lost": len(_lost(seen)),
        "stored_twice": len(_stored_twice(seen)),
        "delivered_again": sum(got.attempt > 1 for got in seen.delivered),
        "duplicates": len(seen.delivered) - len(unlike),
        "two_holders": len(_two_holders(seen)),
        "strokes": seen.plan.kills,
        "processes_killed": dict(sorted(struck.items())),
        "pauses": seen.pauses,
        "seconds": round(seen.seconds, 2),
        "drained_s": round(seen.drained_s, 2),
        "longest_silence_s": round(_longest_silence(seen), 3),
        "load_average": round(os.getloadavg()[0], 1),  # what others do here slows every start
        "recovery": recovery_of(seen),
        "seed": seen.plan.seed,
    }


def _accepted_between_kills(seen: Seen) -> int:
    if not seen.kills:
        return 0
    first, last = seen.kills[0].at, seen.kills[-1].at
    return sum(first < one.at < last for one in seen.accepted)


def _longest_silence(seen: Seen) -> float:
    moments = sorted({one.at for one in seen.accepted})
    return max((b - a for a, b in pairwise(moments)), default=0.0)


def recovery_of(seen: Seen) -> dict[str, dict[str, float]]:
    """By kind of process: how long after a kill another is ready, and traffic flows again.

    The latter is where the longest silence ended; of the interest router, which nothing waits for,
    it is any. Left out are kills that another overtook: of the same process before it was ready, of
    any before traffic flowed. So kills that come fast leave only the quick ones: see ``--every 4``.
    """
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    moments = {
        (what, topic): sorted({one.at for one in records if one.topic == topic})
        for what, records in (("accepted_s", seen.accepted), ("delivered_s", seen.delivered))
        for topic in seen.plan.topics
    }
    for kill in seen.kills:
        kind = kill.target.partition("-")[0]
        again = (
            other.name == kill.name and kill.at < other.at < kill.ready_at for other in seen.kills
        )
        if not any(again):
            found[kind]["ready_s"].append(kill.ready_at - kill.at)
        until = min((other.at for other in seen.kills if other.at > kill.at), default=kill.at + 5)
        for (what, topic), known in moments.items():
            if kind == "worker" and topic != seen.plan.topics[int(kill.name[7:])]:
                continue
            flows_at = _end_of_silence(known, kill.at, until)
            if flows_at is not None:
                found[kind][what].append(flows_at - kill.at)
    return {
        kind: {
            f"{what}_{name}": round(figure, 3)
            for what, values in sorted(kinds.items())
            for name, figure in (
                ("median", statistics.median(values)),
                ("max", max(values)),
                ("count", len(values)),
            )
        }
        for kind, kinds in sorted(found.items())
    }


def _end_of_silence(moments: list[float], since: float, until: float) -> float | None:
    """When the longest silence between two moments ended; ``None`` if it had not."""
    known = moments[bisect_right(moments, since) : bisect_right(moments, until)]
    gaps = [(b - a, b) for a, b in pairwise([since, *known, until])]
    ended_at = max(gaps)[1]
    return ended_at if ended_at < until else None


# --- clients: each a process of its own -----------------------------------------------------------


class Notes:
    """What a client writes down, a line of JSON each, for whoever reads along."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def add(self, *values: Any) -> None:
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()


def payload_of(publisher: int, number: int) -> bytes:
    return f"{publisher} {number} ".encode().ljust(PAYLOAD_BYTES, b".")


async def publish_all(job: dict[str, Any], notes: Notes) -> None:
    """Publishes its share, spread over the time of the load, and waits for all that is owed."""
    async with asterism.connect(job["address"], name=job["name"], timeout=60) as node:
        sent: dict[str, list[tuple[Any, list[int], float]]] = {name: [] for name in job["topics"]}
        queues: dict[str, asyncio.Queue[Any]] = {name: asyncio.Queue() for name in job["topics"]}
        collecting = [
            asyncio.create_task(collect(topic, queue, notes)) for topic, queue in queues.items()
        ]
        notes.add("ready")
        began, done, turn = time.monotonic(), 0, 0
        while done < job["messages"]:
            share = min(1.0, (time.monotonic() - began) / job["load_s"])
            due = max(int(job["messages"] * share), done)
            numbers = list(range(done + 1, due + 1))
            if numbers:
                topic = job["topics"][turn % len(queues)]
                payloads = [payload_of(job["number"], number) for number in numbers]
                sent_at = time.monotonic()
                receipt = await node.send_many(
                    topic, payloads, expect="processed", max_receivers=1, timeout=None
                )
                entry = (receipt, numbers, sent_at)
                sent[topic].append(entry)
                queues[topic].put_nowait(entry)
                done, turn = due, turn + 1
            await asyncio.sleep(TICK_S)
        for queue in queues.values():
            queue.put_nowait(None)
        await asyncio.gather(*collecting)
        notes.add("all accepted", time.monotonic())
        for topic, entries in sent.items():
            for receipt, numbers, _ in entries:
                outcomes = await receipt.all_resolved(None)
                verdicts = [held.verdict if held else "none" for held in outcomes]
                notes.add("resolved", topic, list(zip(numbers, verdicts, strict=True)))


async def collect(topic: str, queue: "asyncio.Queue[Any]", notes: Notes) -> None:
    """Writes down what was accepted on a topic, when it is."""
    while (entry := await queue.get()) is not None:
        receipt, numbers, sent_at = entry
        with contextlib.suppress(asterism.PeerError):
            await receipt.accepted(None)
        at = time.monotonic()
        pairs = list(zip(numbers, receipt.results, strict=True))
        stored = [pair for pair in pairs if isinstance(pair[1], int)]
        notes.add("accepted", topic, sent_at, at, stored)
        for number, error in pairs:
            if not isinstance(error, int):
                notes.add("refused", topic, at, number, str(error))


async def consume_all(job: dict[str, Any], notes: Notes) -> None:
    """Processes whatever comes, until it is told to end."""
    async with asterism.connect(job["address"], name=job["name"], timeout=60) as node:
        inboxes = [
            await node.subscribe(topic, group=GROUP, credit=CREDIT, timeout=60)
            for topic in job["topics"]
        ]
        notes.add("ready")
        await asyncio.gather(*(consume(inbox, notes, job["work_s"]) for inbox in inboxes))


async def consume(inbox: Any, notes: Notes, work_s: float) -> None:
    while True:
        try:
            taken = await inbox.batch(TAKEN_MAX, None)
        except asterism.ClosedError:
            return
        items = [
            [*map(int, one.payload.split(b" ")[:2]), one.sequence, one.attempt] for one in taken
        ]
        notes.add("delivered", inbox.topic, time.monotonic(), items)
        await asyncio.sleep(work_s)
        await inbox.processed(taken[:-1])
        with contextlib.suppress(asterism.PeerError):  # which is an answer, too
            await taken[-1].processed(confirm=True)  # in one report with the others
        finished = [[one.sequence, one.attempt] for one in taken]
        notes.add("finished", inbox.topic, time.monotonic(), finished)


async def run_client(job: dict[str, Any]) -> None:
    """Does its part until that is done, or until its standard input ends."""
    logging.basicConfig(level="INFO", format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%T")
    with open(job["notes"], "w") as file:
        part = publish_all if job["part"] == "publisher" else consume_all
        task = asyncio.create_task(part(job, Notes(file)))
        loop = asyncio.get_running_loop()

        def on_input() -> None:
            if not os.read(0, 1):
                loop.remove_reader(0)
                task.cancel()

        loop.add_reader(0, on_input)
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Client:
    """A client's process, seen from outside."""

    def __init__(self, job: dict[str, Any], module: str = "tests.fault.killing") -> None:
        self.number: int = job["number"]
        self.part: str = job["part"]
        self.name: str = job["name"]
        self._notes = Path(job["notes"])
        self._read = 0
        self.lines: list[list[Any]] = []
        self.counts = {"accepted": 0, "delivered": 0}
        self._notes.unlink(missing_ok=True)
        with open(self._notes.with_suffix(".log"), "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, "--job", json.dumps(job)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def read(self) -> None:
        """Reads what it has written down since."""
        if not self._notes.exists():
            return
        with open(self._notes, "rb") as file:
            file.seek(self._read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        fresh = [json.loads(line) for line in whole.splitlines()]
        self.lines += fresh
        for line in fresh:
            if line[0] in self.counts:
                self.counts[line[0]] += len(line[-1])

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # ``check`` says how it ended
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def end(self, seconds: float = 20) -> None:
        """Tells it to end, and waits for that; in the end it is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.read()

    def check(self) -> None:
        """A client that ended by an error has found a bug, or has one."""
        if self._process.poll():
            log = self._notes.with_suffix(".log").read_text(errors="replace")
            raise RuntimeError(f"{self.name} ended with {self._process.returncode}:\n{log[-3000:]}")


# --- the one who kills ----------------------------------------------------------------------------


class Striker:
    """Strikes as planned, and notes whom, when, and when another stood in that place."""

    def __init__(self, broker: Broker, plan: Plan, strokes: list[Stroke]) -> None:
        self._broker = broker
        self._plan = plan
        self._strokes = list(strokes)
        self._resumes: list[tuple[float, str]] = []
        self._struck: list[tuple[str, str, int, float]] = []
        self._ready: list[tuple[str, int, float]] = []
        self._pids: dict[str, int] = {}
        self._began = time.monotonic()
        self.pauses = 0
        self.killed = 0
        self._look()

    @property
    def is_done(self) -> bool:
        return not self._strokes and not self._resumes

    def turn(self) -> None:
        """Does what is due, and looks who is ready."""
        now = time.monotonic()
        while self._resumes and self._resumes[0][0] <= now:
            self._signal(self._resumes.pop(0)[1], signal.SIGCONT)
        while self._strokes and self._began + self._strokes[0].at_s <= now:
            if not self._strike(self._strokes[0], now):
                break  # nobody is there to be struck: a moment later
            self._strokes.pop(0)
        self._look()

    def _strike(self, stroke: Stroke, now: float) -> bool:
        if stroke.pause_s:
            if self._signal(stroke.target, signal.SIGSTOP):
                self.pauses += 1
                self._resumes.append((now + stroke.pause_s, stroke.target))
                self._resumes.sort()
            return True
        names = self._plan.names if stroke.target == ALL else (stroke.target,)
        hit = [
            (stroke.target, name, pid, now)
            for name in names
            for pid in self._signal(name, signal.SIGKILL)
        ]
        self._struck += hit
        self.killed += bool(hit)
        return bool(hit)

    def _signal(self, name: str, number: int) -> list[int]:
        kind, _, index = name.partition("-")
        return self._broker.kill(kind, int(index or 0), number)

    def _look(self) -> None:
        for name in self._plan.names:
            try:
                said = json.loads((self._broker.data_dir / "run" / f"{name}.json").read_bytes())
            except (OSError, ValueError):
                continue
            if self._pids.get(name) != said["pid"]:
                self._pids[name] = said["pid"]
                self._ready.append((name, said["pid"], time.monotonic()))

    def kills(self) -> list[Kill]:
        """All kills, each with when a process that was started after it was ready."""
        found = []
        for target, name, pid, at in self._struck:
            ready = (
                moment
                for other, its, moment in self._ready
                if other == name and moment > at and its != pid
            )
            found.append(Kill(target, name, pid, at, next(ready, float("inf"))))
        return found


# --- a run ----------------------------------------------------------------------------------------


class Run:
    """One run in a folder, which keeps the notes and, where something went wrong, the logs."""

    def __init__(self, plan: Plan, folder: Path, tell: Tell = lambda line: None) -> None:
        self._plan = plan
        self._folder = folder
        self._tell = tell
        self._clients: list[Client] = []

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.end()

    def go(self, broker: Broker, strokes: list[Stroke]) -> Seen:
        """Strikes, waits until all is processed, and returns what was seen."""
        plan = self._plan
        began = time.monotonic()
        self._start("consumer", plan.consumers, broker.address)
        self._until(self._clients_are_ready, 30)
        self._start("publisher", plan.publishers, broker.address)
        self._until(self._clients_are_ready, 30)
        striker = Striker(broker, plan, strokes)
        self._until(lambda: self._turn(striker), plan.load_s + 30)
        struck_at = time.monotonic()
        publishers = [client for client in self._clients if client.part == "publisher"]
        self._until(
            lambda: self._turn(striker) and all(client.has_ended for client in publishers),
            plan.load_s + PATIENCE_S,
        )
        described = self._describe(broker)
        drained_at = time.monotonic()
        for client in self._clients:
            client.end()
        return self._seen(striker, described, drained_at - began, drained_at - struck_at)

    def _start(self, part: str, count: int, address: str) -> None:
        plan = self._plan
        for number in range(count):
            share = plan.messages // count + (number < plan.messages % count)
            job = {
                "part": part,
                "number": number,
                "name": f"{part}-{number}",
                "address": address,
                "topics": plan.topics,
                "messages": share,
                "load_s": plan.load_s,
                "work_s": plan.work_s,
                "notes": str(self._folder / f"{part}-{number}.notes"),
            }
            self._clients.append(Client(job))

    def _until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Whether it was reached in time."""
        deadline = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > deadline:
                return False
            for client in self._clients:
                client.check()
            time.sleep(TICK_S)
        return True

    def _clients_are_ready(self) -> bool:
        for client in self._clients:
            client.read()
        return all(client.lines for client in self._clients)

    def _turn(self, striker: Striker) -> bool:
        striker.turn()
        for client in self._clients:
            client.read()
        self._tell(
            f"{striker.killed} of {self._plan.kills} kills, {self._count('accepted'):,} of "
            f"{self._plan.messages:,} accepted, {self._count('delivered'):,} delivered"
        )
        return striker.is_done

    def _count(self, what: str) -> int:
        return sum(client.counts[what] for client in self._clients)

    def _describe(self, broker: Broker) -> list[dict[str, Any]]:
        """The topics as they are in the end: a receipt comes once that end is stored."""
        broker.wait_ready()
        with asterism.connect_blocking(broker.address, name="auditor") as node:
            return [node.query("describe", topic) for topic in self._plan.topics]

    def _seen(
        self, striker: Striker, described: list[dict[str, Any]], seconds: float, drained_s: float
    ) -> Seen:
        kills, pauses = striker.kills(), striker.pauses
        seen = Seen(self._plan, [], [], {}, [], kills, pauses, described, seconds, drained_s)
        for client in self._clients:
            for what, *rest in client.lines:
                if what == "accepted":
                    topic, sent_at, at, pairs = rest
                    seen.accepted.extend(
                        Accepted(topic, client.number, number, sequence, sent_at, at)
                        for number, sequence in pairs
                    )
                elif what == "refused":
                    seen.refused.append(f"{client.name} {rest}")
                elif what == "resolved":
                    for _, verdict in rest[1]:
                        seen.verdicts[verdict] = seen.verdicts.get(verdict, 0) + 1
                elif what == "delivered":
                    topic, at, items = rest
                    seen.delivered.extend(
                        Delivered(topic, publisher, number, sequence, attempt, client.number, at)
                        for publisher, number, sequence, attempt in items
                    )
        until = self._answered()
        seen.delivered[:] = [
            got._replace(until=until.get((got.consumer, got.topic, got.sequence, got.attempt), 0.0))
            for got in seen.delivered
        ]
        return seen

    def _answered(self) -> dict[tuple[int, str, int, int], float]:
        """When the reports of consumers were answered."""
        return {
            (client.number, line[1], sequence, attempt): line[2]
            for client in self._clients
            for line in client.lines
            if line[0] == "finished"
            for sequence, attempt in line[3]
        }


def run(
    plan: Plan,
    folder: Path,
    tell: Tell = lambda line: None,
    strokes: list[Stroke] | None = None,
) -> Judgement:
    """Runs a plan, with these strokes or those of its seed; what is left in the folder tells."""
    config = {"stores": STORES, "lanes": plan.lanes}
    with Broker(workers=plan.workers, config=config) as broker, Run(plan, folder, tell) as going:
        try:
            seen = going.go(broker, strokes_of(plan) if strokes is None else strokes)
            judged = audit(seen)
        finally:
            (folder / "broker.log").write_text(broker.logs())
    (folder / "kills.json").write_text(json.dumps([kill._asdict() for kill in seen.kills]))
    return judged


# --- the command ----------------------------------------------------------------------------------


@contextlib.contextmanager
def told_on_a_terminal() -> Iterator[Tell]:
    """A line that is written over and over."""
    if not sys.stderr.isatty():
        yield lambda line: None
        return

    def tell(line: str) -> None:
        sys.stderr.write(f"\r{line:<78}")

    yield tell
    sys.stderr.write("\r" + " " * 78 + "\r")


def show(judged: Judgement) -> None:
    width = max(map(len, judged.figures))
    for name, figure in judged.figures.items():
        shown = f"{figure:,}" if isinstance(figure, int | float) else figure
        if name == "recovery":
            continue
        sys.stdout.write(f"{name.replace('_', ' '):{width}}  {shown}\n")
    for kind, times in judged.figures["recovery"].items():
        listed = ", ".join(f"{name.replace('_', ' ')} {figure:g}" for name, figure in times.items())
        sys.stdout.write(f"recovery of {kind}: {listed}\n")
    for line in judged.wrong:
        sys.stdout.write(f"WRONG: {line}\n")


def main() -> int:
    plan = Plan()
    parser = argparse.ArgumentParser(
        prog="python -m tests.fault.killing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name in ("messages", "kills", "publishers", "consumers", "workers"):
        parser.add_argument(f"--{name}", type=int, default=getattr(plan, name))
    parser.add_argument("--every", type=float, default=plan.every_s, help="seconds between kills")
    parser.add_argument("--work", type=float, default=plan.work_s, help="seconds a batch is held")
    parser.add_argument("--seed", type=int, default=None, help="by default another every time")
    parser.add_argument("--target", action="append", default=[], help="who is killed; or anyone")
    parser.add_argument("--no-pauses", action="store_true")
    parser.add_argument("--no-lanes", action="store_true", help="all goes through the front-end")
    parser.add_argument("--json", metavar="FILE", help="where the figures go as JSON")
    parser.add_argument("--keep", metavar="FOLDER", help="where notes and logs go")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        asyncio.run(run_client(json.loads(options.job)))
        return 0
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    plan = Plan(
        *(options.messages, options.kills, options.every, options.publishers, options.consumers),
        *(options.workers, seed, tuple(options.target), not options.no_pauses),
        lanes=not options.no_lanes,
        work_s=options.work,
    )
    folder = Path(options.keep or tempfile.mkdtemp(prefix="asterism-killing-"))
    folder.mkdir(parents=True, exist_ok=True)
    with told_on_a_terminal() as tell:
        judged = run(plan, folder, tell)
    show(judged)
    if options.json:
        report = {**judged.figures, "wrong": judged.wrong}
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n")
    if judged.wrong:
        sys.stdout.write(f"what was seen is in {folder}\n")
    elif not options.keep:
        shutil.rmtree(folder)
    return 1 if judged.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
