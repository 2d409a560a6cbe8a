"""Cuts the power of a broker under load, again and again, and checks what its disk has left.

    python -m tests.fault.image_cuts --cuts 100 --seed 7 [--sync 20ms] [--json FILE]

The broker's data folder is an ext4 file system on a disk of ``tests.fault.volatile_disk``. At a
random moment, sometimes in the midst of a flush, the disk loses what it had not flushed, in part or
whole, and every process of the broker is killed. The file system is recovered by its own journal,
checked, mounted again, and a new broker opens the data folder at the old address, while the clients
go on: publishers send again what was not answered, consumers report what they took before the cut.
After some such lives all is read, and the records of the clients are judged by the promises:

P1  Every accepted message is delivered, whatever was cut: none is lost.
P2  A report ends only the message that it was made for: none is resolved with ``ok`` before a
    consumer began to report it.
P3  A sequence of a topic is given once, and a durable message has one sequence.
P4  The broker starts after every cut, and no store is refused: nothing is damaged but by the cut.
P5  No publisher is refused for what a cut took.

With ``--sync 20ms`` a message may be lost that was accepted so shortly before a cut, and no other.

The seed decides when a cut comes and what the disk loses. The rest is up to the machine: a seed
that failed is worth trying again, and may go well.
"""

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

import asterism
from asterism.running import StartError
from asterism.testing import Broker
from tests.fault.image_clients import FRESH, LEDGER, QUEUES, read_payload
from tests.fault.killing import Client, Judgement, Tell, told_on_a_terminal
from tests.fault.volatile_disk import VolatileDisk, unavailable
from tests.support.batches import some_blocking

ROOT: Final = Path(__file__).resolve().parents[2]
STORES: Final = 16  # the topic of push messages has one for itself: no other's sync helps it
WORKERS: Final = 2
CONSUMERS: Final = 2
LIVES: Final = 10  # of one disk; then another is made
LIFE_S: Final = (0.3, 2.0)  # from a broker that is ready to the next cut
DISK_BYTES: Final = 1 << 30
FLUSH_MS: Final = (0.0, 0.5, 2.0)  # what a flush takes, of one disk
AT_FLUSH_PART: Final = 0.5  # of the cuts come while a flush is under way
WRITTEN_BACK_PART: Final = 0.5  # before so many of the cuts the system writes some files back
READY_S: Final = 60.0
PATIENCE_S: Final = 60.0  # for all to be processed after the last cut
END_S: Final = 2.0  # for a client to say goodbye; there may be no broker
LOOK_S: Final = 0.02
SYNC_SLACK_S: Final = 0.5  # what a sync may take beyond its interval, on a busy machine
SHOWN_MAX: Final = 5


class Plan(NamedTuple):
    """What is run."""

    cuts: int = 100
    seed: int = 1
    sync: str = "always"
    lives: int = LIVES
    life_s: tuple[float, float] = LIFE_S
    dedicated: bool = True

    @property
    def window_s(self) -> float:
        """How long before a cut a message may have been accepted that is lost."""
        return 0.0 if self.sync == "always" else int(self.sync[:-2]) / 1_000 + SYNC_SLACK_S


@dataclass
class Seen:
    """What was written down about one disk; messages by topic and number."""

    cuts: list[float]  # moments of the system's monotonic clock
    unstarted: list[str]  # why a broker did not start
    accepted: dict[tuple[str, int], float] = field(default_factory=dict)  # when that was known
    sequences: dict[tuple[str, str, int], set[int]] = field(
        default_factory=lambda: defaultdict(set)
    )  # by topic, kind and number
    verdicts: dict[tuple[str, int], tuple[str, float]] = field(default_factory=dict)
    delivered: set[tuple[str, int]] = field(default_factory=set)
    reported: dict[tuple[str, int], float] = field(default_factory=dict)  # when it first was
    refused: list[str] = field(default_factory=list)
    snapshots: int = 0
    # When a durable message was first handed out, by its topic, number and sequence.
    handed: dict[tuple[str, int, int], float] = field(default_factory=dict)


# --- a broker in a process of its own -------------------------------------------------------------


def run_broker(config: dict[str, Any]) -> None:
    """Runs a broker until standard input ends; says that it is ready, or why it is not."""
    try:
        with Broker(workers=WORKERS, config=config):
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            sys.stdin.read()
    except StartError as error:
        sys.stdout.write(f"{error}\n")


class PoweredBroker:
    """A broker whose processes all end at one moment, or in order."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.image_cuts", "--job", json.dumps(config)],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> str:
        """Waits until it is ready; why it is not."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        if said == "ready":
            return ""
        said += self._process.stdout.read()
        return said.strip() or "it ended without a word"

    def kill(self) -> None:
        """Kills all of it. What waits for the disk ends as soon as it is answered."""
        self._process.send_signal(signal.SIGSTOP)  # it shall restart nobody
        children = psutil.Process(self._process.pid).children(recursive=True)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(READY_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()


# --- one disk and its lives -----------------------------------------------------------------------


class Era:
    """A disk, the brokers that live on it one after the other, and the clients of all of them."""

    def __init__(self, plan: Plan, seed: int, folder: Path, tell: Callable[[int], None]) -> None:
        self._plan = plan
        self._chance = random.Random(seed)
        self._folder = folder
        self._tell = tell
        self._clients: list[Client] = []
        self._cuts: list[float] = []
        self._unstarted: list[str] = []
        self._ledger: set[tuple[str, int]] = set()
        self._broker: PoweredBroker | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"

    def run(self, lives: int) -> Seen:
        """Lives and cuts, then everything is read; what was seen."""
        flush_ms = self._chance.choice(FLUSH_MS)
        with VolatileDisk(self._folder, DISK_BYTES, flush_ms) as self._disk:
            try:
                if self._start() and self._live(lives):
                    self._settle()
            finally:
                for client in self._clients:
                    client.end(END_S)
                if self._broker is not None:
                    self._broker.stop()
        return self._seen()

    @property
    def _data(self) -> Path:
        return self._disk.mounted / "data"

    def _start(self) -> bool:
        config = {
            "data_dir": str(self._data),
            "listen": self._address,
            "stores": STORES,
            "sync": self._plan.sync,
            "lanes": self._chance.random() < 0.5,
        }
        self._broker = PoweredBroker(config, self._folder)
        why_not = self._broker.ready()
        self._note(why_not or "the broker is ready")
        if why_not:
            self._unstarted.append(why_not)
        return not why_not

    def _live(self, lives: int) -> bool:
        """The lives, each ended by a cut; ``False`` if a broker did not start after one."""
        self._start_clients()
        for life in range(1, lives + 1):
            life_s = self._chance.uniform(*self._plan.life_s)
            for client in self._clients:
                client.tell(f"life {life} {life_s}")
            self._watch(life_s)
            self._cut()
            if not self._start():
                return False
            self._tell(len(self._cuts))
        return True

    def _cut(self) -> None:
        if self._chance.random() < WRITTEN_BACK_PART:
            self._write_back()
        assert self._broker is not None
        self._disk.cut(self._chance.getrandbits(32), self._chance.random() < AT_FLUSH_PART)
        fate = self._disk.cut_was()
        self._cuts.append(time.monotonic())
        self._broker.kill()
        self._broker = None
        self._disk.back()
        self._note(f"cut {len(self._cuts)}: {fate}")

    def _note(self, line: str) -> None:
        with open(self._folder / "diary", "a") as diary:
            diary.write(f"{time.monotonic():.3f} {line}\n")

    def _write_back(self) -> None:
        """Some files reach the disk before others, as the system is free to have them."""
        # Unlike rglob, walk goes on where the broker deletes a folder meanwhile.
        found = (Path(folder, name) for folder, _, names in os.walk(self._data) for name in names)
        files = sorted(path for path in found if path.is_file())
        for path in self._chance.sample(files, self._chance.randint(0, len(files) // 2)):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                os.fdatasync(file.fileno())

    def _start_clients(self) -> None:
        parts = ["publisher", "changer", *["consumer"] * CONSUMERS]
        for number, part in enumerate(parts):
            job = {
                "part": part,
                "name": f"{part} {number}",
                "number": number,
                "seed": self._chance.getrandbits(32),
                "address": self._address,
                "dedicated": self._plan.dedicated,
                "snapshots": str(self._data / "snapshots"),
                "notes": str(self._folder / f"{part}-{number}.notes"),
            }
            self._clients.append(Client(job, "tests.fault.image_clients"))
        self._await(lambda client: ["ready"] in client.lines, READY_S)

    def _watch(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for client in self._clients:
                client.check()
            time.sleep(min(LOOK_S, max(deadline - time.monotonic(), 0)))

    def _await(self, reached: Callable[[Client], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for client in self._clients:
                client.check()
                client.read()
            if all(map(reached, self._clients)):
                return True
            time.sleep(LOOK_S)
        return False

    def _settle(self) -> None:
        """Has all that was published processed, and reads what is kept."""
        for client in self._clients:
            client.tell("stop")
        are_settled = self._await(
            lambda client: client.part == "consumer" or ["settled"] in client.lines, PATIENCE_S
        )
        self._note("settled" if are_settled else "not settled")
        wanted = sum(
            len(line[3])
            for client in self._clients
            for line in client.lines
            if line[:2] == ["accepted", LEDGER]
        )
        with asterism.connect_blocking(self._address, name="reader", timeout=READY_S) as node:
            for topic in () if are_settled else QUEUES:
                self._note(f"{topic}: {node.describe(topic)} {list(node.list_receivers(topic))}")
            inbox = node.subscribe(LEDGER, name="reader", credit=10_000)
            while len(self._ledger) < wanted:
                taken = some_blocking(inbox, 1_000, timeout=10)
                if not taken:
                    break
                self._ledger |= {(LEDGER, read_payload(one.payload)[1]) for one in taken}
                inbox.processed(taken)
        self._note("read")

    def _seen(self) -> Seen:
        seen = Seen(self._cuts, self._unstarted)
        seen.delivered |= self._ledger
        for client in self._clients:
            for line in client.lines:
                _read_note(seen, line)
        return seen


def _read_note(seen: Seen, line: list[Any]) -> None:
    match line:
        case ["accepted", topic, at, pairs]:
            seen.accepted.update({(topic, number): at for number, _ in pairs})
            _note_sequences(seen, topic, [("d", *pair) for pair in pairs])
        case ["pushed", topic, number, sequence]:
            _note_sequences(seen, topic, [("p", number, sequence)])
        case ["delivered", topic, at, items]:
            _note_handed(seen, topic, at, items)
        case ["reporting", topic, at, numbers]:
            for number in numbers:
                seen.reported[topic, number] = min(at, seen.reported.get((topic, number), at))
        case ["resolved", topic, at, pairs]:
            seen.verdicts.update({(topic, number): (verdict, at) for number, verdict in pairs})
        case ["refused", topic, _, count, why]:
            seen.refused.append(f"{count} on {topic}: {why}")
        case ["snapshot"]:
            seen.snapshots += 1


def _note_handed(seen: Seen, topic: str, at: float, items: list[Any]) -> None:
    _note_sequences(seen, topic, [item[:3] for item in items])
    for kind, number, sequence, *_ in items:
        if kind == "d":
            seen.delivered.add((topic, number))
            seen.handed.setdefault((topic, number, sequence), at)


def _note_sequences(seen: Seen, topic: str, items: list[Any]) -> None:
    for kind, number, sequence in items:
        seen.sequences[topic, kind, number].add(sequence)


# --- the judgement --------------------------------------------------------------------------------


class Tally(NamedTuple):
    """What came of one disk, or of all of them."""

    cuts: int = 0
    accepted: int = 0
    excused: int = 0
    snapshots: int = 0
    lost: tuple[str, ...] = ()
    ended_by_another: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    sequences_twice: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    stores_refused: tuple[str, ...] = ()
    not_started: tuple[str, ...] = ()

    def plus(self, other: "Tally") -> "Tally":
        added: list[Any] = [a + b for a, b in zip(self, other, strict=True)]  # type: ignore[operator]
        return Tally(*added)


def judge(plan: Plan, seen: Seen) -> Tally:
    """Judges the records of one disk by the promises above."""
    refused = [why for why in seen.unstarted if "damage" in why or "store" in why.lower()]
    others = [why for why in seen.unstarted if why not in refused]
    tally = Tally(
        cuts=len(seen.cuts),
        accepted=len(seen.accepted),
        snapshots=seen.snapshots,
        sequences_twice=tuple(_given_twice(plan, seen)),
        refused=tuple(seen.refused),
        stores_refused=tuple(refused),
        not_started=tuple(others),
    )
    if seen.unstarted:
        return tally  # nobody could read what is there
    missing = sorted(key for key in seen.accepted if key not in seen.delivered)
    excused = [key for key in missing if _is_excused(plan, seen, seen.accepted[key])]
    another = [
        key
        for key, (verdict, at) in seen.verdicts.items()
        if verdict == "ok" and at < seen.reported.get(key, math.inf)
    ]
    return tally._replace(
        excused=len(excused),
        lost=tuple(
            f"{topic} {number}, before cut {_next_cut(seen, seen.accepted[topic, number])}"
            for topic, number in missing
            if (topic, number) not in excused
        ),
        ended_by_another=tuple(f"{topic} {number}" for topic, number in another),
        unresolved=tuple(_unresolved(plan, seen)),
    )


def _is_excused(plan: Plan, seen: Seen, at: float) -> bool:
    return any(at > cut_at - plan.window_s and at < cut_at + 1 for cut_at in seen.cuts) and bool(
        plan.window_s
    )


def _next_cut(seen: Seen, at: float) -> int:
    return sum(cut_at < at for cut_at in seen.cuts) + 1


def _unresolved(plan: Plan, seen: Seen) -> list[str]:
    """Queues whose messages have no verdict in the end, or another than ok."""
    if plan.window_s:
        return []
    counts: dict[str, int] = defaultdict(int)
    for topic, number in seen.accepted:
        verdict, _ = seen.verdicts.get((topic, number), ("none", 0))
        if topic in QUEUES and verdict != "ok":
            counts[f"{topic}: {verdict}"] += 1
    return [f"{count} of {what}" for what, count in counts.items()]


def _given_twice(plan: Plan, seen: Seen) -> list[str]:
    holders: dict[tuple[str, int], set[str]] = defaultdict(set)
    found = []
    for (topic, kind, number), sequences in seen.sequences.items():
        # What a cut took, and its answer with it, is sent again: push messages, which are nowhere
        # stored, and with a window durable ones that a consumer had before they were synced.
        kept = [
            sequence
            for sequence in sequences
            if not _is_excused(plan, seen, seen.handed.get((topic, number, sequence), -math.inf))
        ]
        if len(kept) > 1 and kind == "d":
            found.append(f"{topic} {kind}{number} has {sorted(sequences)}")
        for sequence in sequences:
            holders[topic, sequence].add(f"{kind}{number}")
    return found + [
        f"{topic} {sequence} is {', '.join(sorted(held))}"
        for (topic, sequence), held in holders.items()
        if len(held) > 1 and not topic.startswith(FRESH)
    ]


def show(plan: Plan, tally: Tally, seconds: float) -> Judgement:
    """The figures, and every promise that was broken."""
    figures: dict[str, Any] = {}
    wrong = []
    for name, value in tally._asdict().items():
        figures[name] = len(value) if isinstance(value, tuple) else value
        if isinstance(value, tuple) and value:
            more = f", and {len(value) - SHOWN_MAX} more" if len(value) > SHOWN_MAX else ""
            wrong.append(f"{name.replace('_', ' ')}: {'; '.join(value[:SHOWN_MAX])}{more}")
    figures |= {"seconds": round(seconds, 1), "seed": plan.seed, "sync": plan.sync}
    return Judgement(figures, wrong)


def run(plan: Plan, folder: Path, tell: Tell = lambda line: None) -> Judgement:
    """Runs a plan: as many disks as it takes for so many cuts."""
    chance = random.Random(plan.seed)
    began = time.monotonic()
    tally = Tally()
    era = 0
    while tally.cuts < plan.cuts:
        era += 1
        held = folder / str(era)
        held.mkdir(parents=True)
        done = tally

        def told(cuts: int, done: Tally = done) -> None:
            tell(
                f"{done.cuts + cuts} of {plan.cuts} cuts, {done.accepted:,} accepted on disks "
                f"before, {len(done.lost)} lost, {len(done.not_started)} not started"
            )

        told(0)
        seen = Era(plan, chance.getrandbits(32), held, told).run(
            min(plan.lives, plan.cuts - tally.cuts)
        )
        tally = tally.plus(judge(plan, seen))
    return show(plan, tally, time.monotonic() - began)


# --- the command ----------------------------------------------------------------------------------


def main() -> int:
    plan = Plan()
    parser = argparse.ArgumentParser(
        prog="python -m tests.fault.image_cuts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cuts", type=int, default=plan.cuts)
    parser.add_argument("--lives", type=int, default=plan.lives, help="of one disk, at most")
    parser.add_argument("--seed", type=int, default=None, help="by default another every time")
    parser.add_argument("--sync", default=plan.sync, help="as in the configuration: 20ms")
    parser.add_argument(
        "--no-dedicated", action="store_true", help="no topic has a process of its own"
    )
    parser.add_argument("--json", metavar="FILE", help="where the figures go as JSON")
    parser.add_argument("--keep", metavar="FOLDER", help="where notes and logs go")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        run_broker(json.loads(options.job))
        return 0
    missing = unavailable()
    if missing:
        parser.error(missing)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was made is taken away
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    plan = Plan(
        *(options.cuts, seed, options.sync, options.lives), dedicated=not options.no_dedicated
    )
    folder = Path(options.keep or tempfile.mkdtemp(prefix="cuts-"))
    with told_on_a_terminal() as tell:
        judged = run(plan, folder, tell)
    shown = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in judged.figures.items())
    sys.stdout.write("".join(f"WRONG: {line}\n" for line in judged.wrong) + shown + "\n")
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
