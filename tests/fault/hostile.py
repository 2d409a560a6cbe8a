"""Hostile clients at a broker, while an ordinary one goes on publishing.

    python -m tests.fault.hostile --minutes 10 --seed 7 [--kinds bombs,idle] [--json FILE]

The kinds of ``tests.fault.hostile_kinds`` come in turn, each a process of its own, and then all of
them together. Meanwhile an ordinary client publishes durable messages, one at a time, and consumes
them; with ``--no-lanes`` all through the front-end, as if it were on another machine. It is judged:

P1  No process of the broker dies.
P2  No process holds more memory than its bound.
P3  Every message that the ordinary client was told is accepted is delivered.

The time that a message takes to be accepted is reported beside the time that it takes with no
hostile client there, right before and right after: machines change their speed within a run. A last
line has all kinds in turn, as one hostile client that does one thing after the other. Times are not
judged: machines differ, too. A hostile client stands for one on another machine, which has cores of
its own: it runs at the lowest priority (``SCHED_IDLE``), so that others wait for the work that it
makes for the broker, and not for a core that it keeps busy itself. With ``--near`` it shares this
machine as any other program does.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import psutil

import asterism
from asterism.cli.bench_report import percentile
from asterism.running import StartError
from asterism.testing import Broker
from tests.fault.hostile_kinds import KINDS, Target
from tests.fault.killing import Client, Notes, Tell, told_on_a_terminal
from tests.support.batches import some_blocking

ROOT: Final = Path(__file__).resolve().parents[2]
TOPIC: Final = "ordinary"
WORKERS: Final = 2
SAMPLE_S: Final = 0.5
LATE_S: Final = 15.0  # for a hostile process to end after its time; then it is killed
DRAIN_S: Final = 60.0
READY_S: Final = 60.0
CALM_PART, TOGETHER_PART = 0.25, 0.2  # of the time: without anybody, and all kinds at once
ALONE, TOGETHER = "alone", "together"
BOUNDS_MB: Final = {"frontend": 600, "interests": 300, "worker": 600, "http": 500}
MEGABYTE: Final = 1 << 20


class Phase(NamedTuple):
    """A stretch of time, and who is busy in it."""

    name: str
    kinds: tuple[str, ...]
    seconds: float


class Measured(NamedTuple):
    """A phase as it went."""

    phase: Phase
    began: float
    ended: float
    memory_mb: dict[str, int]
    deaths: list[str]


class Figures(NamedTuple):
    """What was measured in a phase."""

    phase: str
    published: int
    p50_ms: float
    p99_ms: float
    calm_p99_ms: float  # before it and after it, when no hostile client was there
    longest_ms: float
    memory_mb: dict[str, int]  # by kind of process: the most that one of them held
    deaths: int


def phases_of(minutes: float, kinds: tuple[str, ...]) -> list[Phase]:
    """Each kind in turn and all of them, with nobody before and after each."""
    seconds = minutes * 60
    calm_s = seconds * CALM_PART / (len(kinds) + 2)
    in_turn_s = seconds * (1 - CALM_PART - TOGETHER_PART) / len(kinds)
    phases = [Phase(ALONE, (), calm_s)]
    for phase in (
        *(Phase(kind, (kind,), in_turn_s) for kind in kinds),
        Phase(TOGETHER, kinds, seconds * TOGETHER_PART),
    ):
        phases += [phase, Phase(ALONE, (), calm_s)]
    return phases


def calm_near(index: int, phases: Sequence[Phase], waits: Sequence[list[float]]) -> list[float]:
    """The waits of a phase in which nobody is there, or of those next to one in which somebody is;
    where a run has none of them, its own."""
    if not phases[index].kinds:
        return waits[index]
    near = [at for at in (index - 1, index + 1) if 0 <= at < len(phases) and not phases[at].kinds]
    return [wait for at in near for wait in waits[at]] or waits[index]


# --- the ordinary client --------------------------------------------------------------------------


async def publish(address: str, notes: Notes, lanes: bool) -> None:
    """Publishes one message after the other; how long each took to be accepted, and when."""
    without = patch("asterism.sdk.session.LANES_MAX", 0)  # then all goes through the front-end
    with nullcontext() if lanes else without:
        async with asterism.connect(address, name=TOPIC, timeout=READY_S) as node:
            inbox = await node.subscribe(TOPIC, group="crew", timeout=READY_S)
            consuming = asyncio.create_task(consume(inbox, notes))
            notes.add("ready")
            number = 0
            try:
                while True:
                    number += 1
                    began = time.monotonic()
                    await node.publish(
                        TOPIC, b"%d" % number, expect="processed", max_receivers=1, timeout=None
                    )
                    notes.add("published", number, began, time.monotonic() - began)
            finally:
                consuming.cancel()


async def consume(inbox: Any, notes: Notes) -> None:
    while taken := await inbox.batch(100, None):
        notes.add("delivered", [int(one.payload) for one in taken])
        await inbox.processed(taken)


async def run_ordinary(job: dict[str, Any]) -> None:
    """Publishes until its standard input says something, consumes until that ends."""
    loop = asyncio.get_running_loop()
    with open(job["notes"], "w") as file:
        task = asyncio.create_task(publish(job["address"], Notes(file), job["lanes"]))

        def on_input() -> None:
            os.read(0, 1)
            loop.remove_reader(0)
            task.cancel()

        loop.add_reader(0, on_input)
        with suppress(asyncio.CancelledError):
            await task


# --- what the broker's processes hold -------------------------------------------------------------


class Watch:
    """Looks at the broker's processes again and again: who they are, and what they hold."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._pids: dict[str, list[int]] = broker.pids()
        self._deaths: list[str] = []
        self._memory_mb: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def take(self) -> tuple[dict[str, int], list[str]]:
        """The most memory of a process of each kind since the last look, and who died."""
        self._look()
        with self._lock:
            taken = self._memory_mb, self._deaths
            self._memory_mb, self._deaths = {}, []
        return taken

    def _run(self) -> None:
        while not self._stopped.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        now = self._broker.pids()
        with self._lock:
            for kind, before in self._pids.items():
                gone = set(before) - set(now.get(kind, ()))
                self._deaths += [f"{kind} {pid}" for pid in gone]
            # One that is being started again is not there for a moment: its end was counted.
            self._pids = now
            for kind, pids in now.items():
                held = [self._memory(pid) for pid in pids]
                self._memory_mb[kind] = max([self._memory_mb.get(kind, 0), *held])

    @staticmethod
    def _memory(pid: int) -> int:
        with suppress(psutil.Error):
            return int(psutil.Process(pid).memory_info().rss) // MEGABYTE
        return 0


# --- a run ----------------------------------------------------------------------------------------


@contextmanager
def busy(
    phase: Phase,
    target: Target,
    chance: random.Random,
    near: bool,
    module: str = "tests.fault.hostile_kinds",
) -> Iterator[None]:
    """The clients of a phase, which end by themselves when its time is over."""
    started = []
    try:
        for kind in phase.kinds:
            job = {"kind": kind, "target": target, "seconds": phase.seconds, "near": near}
            job["seed"] = chance.getrandbits(32)
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, "--job", json.dumps(job)],
                    cwd=ROOT,
                    stdout=subprocess.DEVNULL,
                )
            )
        yield
        deadline = time.monotonic() + LATE_S
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for process in started:
            process.kill()
            process.wait()


class Result(NamedTuple):
    """What came out: figures by phase, and what broke a promise, which is nothing."""

    figures: list[Figures]
    accepted: int
    wrong: list[str]


def run(
    phases: list[Phase],
    seed: int,
    folder: Path,
    bounds_mb: Mapping[str, int] = BOUNDS_MB,
    tell: Tell = lambda line: None,
    lanes: bool = True,
    near: bool = False,
) -> Result:
    """Runs the phases against a broker of its own."""
    chance = random.Random(seed)
    measured: list[Measured] = []
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(workers=WORKERS, doors=("http",)))
        stack.callback(lambda: (folder / "broker.log").write_text(broker.logs()))
        port = int(broker.address.rpartition(":")[2])
        http_port = int(broker.http_url.rpartition(":")[2].rstrip("/"))
        target = Target(port, http_port, str(broker.data_dir / "run"))
        job: dict[str, Any] = {"part": TOPIC, "name": TOPIC, "number": 1, "address": broker.address}
        job |= {"notes": str(folder / "ordinary.notes"), "lanes": lanes}
        client = Client(job, "tests.fault.hostile")
        stack.callback(client.end)
        await_ready(client)
        watch = stack.enter_context(Watch(broker))
        for phase in phases:
            tell(f"{phase.name}: {phase.seconds:.0f} s, {len(client.lines):,} notes")
            began = time.monotonic()
            with busy(phase, target, chance, near):
                wait(client, phase.seconds)
                ended = time.monotonic()
            measured.append(Measured(phase, began, ended, *watch.take()))
        client.end()
        try:
            missing, wrong = _read_rest(broker, client), []
        except (TimeoutError, asterism.PeerError, StartError) as error:
            missing, wrong = set(), [f"the broker does not recover: {error}"]
    judged = _judge(measured, client, missing, bounds_mb)
    return judged._replace(wrong=judged.wrong + wrong)


def await_ready(client: Client) -> None:
    deadline = time.monotonic() + READY_S
    while ["ready"] not in client.lines:
        client.check()
        client.read()
        if time.monotonic() > deadline:
            raise TimeoutError("the ordinary client is not ready")
        time.sleep(0.02)


def wait(client: Client, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        client.check()
        client.read()
        time.sleep(min(0.1, max(0.0, deadline - time.monotonic())))


def _read_rest(broker: Broker, client: Client) -> set[int]:
    """Reads what the ordinary client had not got yet; what was accepted and is not there."""
    missing = {line[1] for line in client.lines if line[0] == "published"}
    for line in client.lines:
        if line[0] == "delivered":
            missing.difference_update(line[1])
    broker.wait_ready()
    deadline = time.monotonic() + DRAIN_S
    with asterism.connect_blocking(broker.address, name="reader", timeout=READY_S) as node:
        inbox = node.subscribe(TOPIC, group="crew", timeout=READY_S)
        while missing and time.monotonic() < deadline:
            taken = some_blocking(inbox, 1_000, timeout=1)
            missing.difference_update(int(one.payload) for one in taken)
            inbox.processed(taken)
    return missing


def _judge(
    measured: Sequence[Measured], client: Client, missing: set[int], bounds_mb: Mapping[str, int]
) -> Result:
    waits = [(line[2], line[3] * 1_000) for line in client.lines if line[0] == "published"]
    figures, wrong = figures_of(measured, waits, bounds_mb)
    if missing:
        wrong.append(f"{len(missing)} accepted and not delivered: {sorted(missing)[:8]}")
    return Result(figures, len(waits), wrong)


def figures_of(
    measured: Sequence[Measured],
    waits: Sequence[tuple[float, float]],
    bounds_mb: Mapping[str, int],
) -> tuple[list[Figures], list[str]]:
    """The figures of each phase, from when each wait began and how many milliseconds it took; and
    what was wrong."""
    by_phase = [
        [took for at, took in waits if one.began <= at < one.ended]
        or [(one.ended - one.began) * 1_000]
        for one in measured
    ]
    phases = [one.phase for one in measured]
    figures, wrong = [], []
    for index, (phase, _, _, memory_mb, deaths) in enumerate(measured):
        took = by_phase[index]
        p50, p99 = (round(percentile(took, part), 2) for part in (0.5, 0.99))
        calm = round(percentile(calm_near(index, phases, by_phase), 0.99), 2)
        longest = round(max(took), 1)
        counts = len(took), p50, p99, calm, longest
        figures.append(Figures(phase.name, *counts, memory_mb, len(deaths)))
        if deaths:
            wrong.append(f"{phase.name}: died: {', '.join(deaths)}")
        wrong += [
            f"{phase.name}: {kind} held {held} MB, of {bounds_mb[kind]} that it may"
            for kind, held in memory_mb.items()
            if held > bounds_mb.get(kind, held)
        ]
    return figures + _in_turn(measured, by_phase), wrong


def _in_turn(measured: Sequence[Measured], by_phase: list[list[float]]) -> list[Figures]:
    """All phases with one hostile client as if they were one, beside all with none."""
    paired = list(zip(measured, by_phase, strict=True))
    busy_ones = [(one, waits) for one, waits in paired if len(one.phase.kinds) == 1]
    calm = [waits for one, waits in paired if not one.phase.kinds]
    if len(busy_ones) < 2 or not calm:
        return []
    waits = [waits for _, waits in busy_ones]
    memory_mb = {
        kind: max(one.memory_mb.get(kind, 0) for one, _ in busy_ones)
        for kind in measured[0].memory_mb
    }
    p50, p99, calm_p99 = (
        round(percentile_over(among, part), 2)
        for among, part in ((waits, 0.5), (waits, 0.99), (calm, 0.99))
    )
    longest = round(max(map(max, waits)), 1)
    deaths = sum(len(one.deaths) for one, _ in busy_ones)
    count = sum(map(len, waits))
    return [Figures("each in turn", count, p50, p99, calm_p99, longest, memory_mb, deaths)]


def percentile_over(phases: Sequence[Sequence[float]], part: float) -> float:
    """Of the waits of several phases, each of which counts as much as the others: in one that is
    slow there are fewer of them."""
    weighed = sorted((wait, 1 / len(waits) / len(phases)) for waits in phases for wait in waits)
    below = 0.0
    for wait, weight in weighed:
        below += weight
        if below >= part:
            return wait
    return weighed[-1][0]


# --- the command ----------------------------------------------------------------------------------


def table(figures: list[Figures]) -> str:
    """A line for each phase; p99 beside that of the moments before and after, with nobody there."""
    processes = list(figures[0].memory_mb)
    lines = [
        f"{'phase':18} {'published':>9} {'p50 ms':>8} {'p99 ms':>8} {'calm':>8} {'ratio':>6} "
        f"{'longest':>9} {'deaths':>6}  most MB: {', '.join(processes)}"
    ]
    for one in figures:
        ratio = f"{one.p99_ms / one.calm_p99_ms:.1f}" if one.calm_p99_ms else ""
        held = ", ".join(str(one.memory_mb.get(kind, 0)) for kind in processes)
        lines.append(
            f"{one.phase:18} {one.published:9,} {one.p50_ms:8.2f} {one.p99_ms:8.2f} "
            f"{one.calm_p99_ms:8.2f} {ratio:>6} {one.longest_ms:9.1f} {one.deaths:6}  {held}"
        )
    return "\n".join(lines)


def _kinds(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    for kind in chosen:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"there is no {kind!r}: {', '.join(KINDS)}")
    return chosen


def _bound(text: str) -> tuple[str, int]:
    kind, _, most = text.partition("=")
    if kind not in BOUNDS_MB or not most.isdigit():
        raise argparse.ArgumentTypeError(f"as frontend=600; of {', '.join(BOUNDS_MB)}")
    return kind, int(most)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fault.hostile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="by default another every time")
    parser.add_argument("--kinds", type=_kinds, default=tuple(KINDS), help=", ".join(KINDS))
    parser.add_argument(
        "--memory-mb", type=_bound, action="append", default=[], metavar="PROCESS=MB",
        help=", ".join(f"{kind}={most}" for kind, most in BOUNDS_MB.items()),
    )  # fmt: skip
    parser.add_argument(
        "--no-lanes", action="store_true", help="the ordinary client is one of another machine"
    )
    parser.add_argument(
        "--near", action="store_true", help="hostile clients take their share of this machine"
    )
    parser.add_argument("--json", metavar="FILE", help="where the figures go as JSON")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        asyncio.run(run_ordinary(json.loads(options.job)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no hostile client is left behind
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    folder = Path(tempfile.mkdtemp(prefix="asterism-hostile-"))
    phases = phases_of(options.minutes, options.kinds)
    with told_on_a_terminal() as tell:
        bounds_mb = BOUNDS_MB | dict(options.memory_mb)
        lanes = not options.no_lanes
        result = run(phases, seed, folder, bounds_mb, tell, lanes, options.near)
    sys.stdout.write(f"{table(result.figures)}\n")
    sys.stdout.write("".join(f"WRONG: {line}\n" for line in result.wrong))
    sys.stdout.write(f"{result.accepted:,} accepted, seed {seed}; notes and logs are in {folder}\n")
    if options.json:
        report = [one._asdict() for one in result.figures]
        content = {"figures": report, "wrong": result.wrong, "seed": seed}
        Path(options.json).write_text(json.dumps(content, indent=2) + "\n")
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
