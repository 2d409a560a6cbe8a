"""The NATS door beside nats-server, in the same run: what a program would notice that moves.

    python -m tests.benchmark.bench_nats [--cases throughput,request] [--rounds 3] [--json FILE]

Both servers run for the whole of a case and are measured in turns, a round of each, by the same
clients in processes of their own: nats-py, but for ``connections`` and ``raw``, which are bare
sockets. Messages have 128 bytes. A case of which not every message arrives has failed; the others
go on. Clients share the cores with the servers: what a server takes of them is told beside.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import psutil

from asterism.cli import output
from asterism.cli.bench_cases import per_second
from asterism.cli.bench_clients import BenchError, Client, Role, answers, shared
from asterism.cli.bench_report import Bar, machine, memory_of, percentile
from asterism.cli.bench_servers import (
    NATS_PACKAGES,
    NATS_SERVER,
    Server,
    not_installed,
    program,
    version_of,
)
from asterism.testing import Broker, StartError
from tests.benchmark.nats_clients import SUBJECT, Member
from tests.benchmark.nats_links import Links

DOOR: Final = "asterism"
REFERENCE: Final = "nats-server"
IN_FLIGHT: Final = 64
FANS: Final = (1, 10, 100)  # connections that subscribe
RAW_FAN: Final = 100
SUBSCRIPTIONS: Final = 10  # of each of many connections
WANTING: Final = 1_000  # of many connections, those that subscribe to the same
WARM_UP: Final = 10  # a part of a round

# --- the servers ----------------------------------------------------------------------------------


class Side(NamedTuple):
    """One of the two servers, as it runs."""

    name: str
    port: int
    process: int  # the one that clients are connected to
    processes: tuple[int, ...]  # all of it

    def processor_s(self) -> tuple[float, float]:
        """Seconds of processor time that the one process has used, and all of it."""
        used = {}
        for pid in self.processes:
            times = psutil.Process(pid).cpu_times()
            used[pid] = times.user + times.system
        return used[self.process], sum(used.values())

    def memory(self) -> tuple[int, int]:
        """Bytes that the one process holds, and all of it."""
        return memory_of([self.process]), memory_of(self.processes)


@contextmanager
def door() -> Iterator[Side]:
    """A broker of ours with the door."""
    with Broker(doors=("nats",)) as broker:
        port = urlsplit(str(broker.nats_url)).port
        pids = broker.pids()
        assert port is not None
        every = tuple(pid for kind in pids.values() for pid in kind)
        yield Side(DOOR, port, pids["nats"][0], every)


@contextmanager
def reference() -> Iterator[Side]:
    """nats-server, as it is without a configuration."""
    server = Server(NATS_SERVER)
    try:
        file = Path(server.folder) / "pid"
        server.start("--addr", "127.0.0.1", "--port", str(server.port), "--pid", str(file))
        pid = int(file.read_text())
        yield Side(REFERENCE, server.port, pid, (pid,))
    finally:
        server.stop()


SIDES: Final[Mapping[str, Callable[[], AbstractContextManager[Side]]]] = {
    DOOR: door,
    REFERENCE: reference,
}


# --- cases ----------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """What a round has found of one server, by one measure."""

    what: str
    unit: str
    value: float
    wanted: str = ""  # of the ratio, ours to the reference


Round = Callable[[int], list[Reading]]
"""Measures one round of so many messages."""


class Case(NamedTuple):
    """What is measured, and how much of it."""

    open: Callable[[Side], AbstractContextManager[Round]]
    share: float = 1.0  # of --messages
    is_fresh: bool = False  # each round has servers of its own, and there is no warm-up


@contextmanager
def clients(side: Side, kind: Callable[..., Role] = Member) -> Iterator[tuple[Client, Client]]:
    """Two clients of a server: the one that publishes or asks, and the other."""
    held = shared()
    with (
        Client(f"{side.name} publisher", kind, side.port, held) as publisher,
        Client(f"{side.name} consumer", kind, side.port, held) as consumer,
    ):
        yield publisher, consumer


class Passage(NamedTuple):
    """Messages of one subject on their way from a publisher to a consumer."""

    side: Side
    publisher: Client
    consumer: Client
    what: str
    wanted: str = ""
    subject: str = SUBJECT
    copies: int = 1  # deliveries of each message

    def measure(self, count: int) -> list[Reading]:
        """Deliveries a second, from the first publish to the last callback, and what they cost."""
        deliveries = count * self.copies
        self.consumer.ask("expect", deliveries)
        before_s = self.side.processor_s()
        self.consumer.tell("consume")
        self.publisher.tell("publish", count, self.copies, self.subject)
        began, ended = answers(self.publisher, self.consumer)
        spent = cost(self.what, self.side, before_s, deliveries)
        self.consumer.ask("check")
        rate = per_second(deliveries, began, ended)
        return [Reading(self.what, "deliveries/s", rate, self.wanted), *spent]


def cost(what: str, side: Side, before_s: tuple[float, float], count: int) -> list[Reading]:
    """Processor time of a server since then, for each of some things that it did."""
    own, every = (
        (after - before) * 1e6 / count
        for before, after in zip(before_s, side.processor_s(), strict=True)
    )
    return [
        Reading(f"{what}: processor time, the process", "µs", own),
        Reading(f"{what}: processor time, all processes", "µs", every),
    ]


@contextmanager
def throughput(side: Side) -> Iterator[Round]:
    with clients(side) as (publisher, consumer):
        consumer.ask("subscribe")
        what = "one publisher, one subscriber"
        yield Passage(side, publisher, consumer, what, "at least 0.7").measure


@contextmanager
def request(side: Side) -> Iterator[Round]:
    with clients(side) as (asking, answering):
        answering.ask("answer")

        def measure(count: int) -> list[Reading]:
            before_s = side.processor_s()
            took = asking.ask("ask_each", count)
            spent = cost("one at a time", side, before_s, count)
            return [
                Reading("one at a time: p50", "µs", percentile(took, 0.5), "at most 2"),
                Reading("one at a time: p99", "µs", percentile(took, 0.99)),
                *spent,
            ]

        yield measure


@contextmanager
def request_64(side: Side) -> Iterator[Round]:
    with clients(side) as (asking, answering):
        answering.ask("answer")
        what = f"requests, {IN_FLIGHT} in flight"

        def measure(count: int) -> list[Reading]:
            before_s = side.processor_s()
            rate = count / asking.ask("ask_many", count, IN_FLIGHT)
            spent = cost(what, side, before_s, count)
            return [Reading(what, "requests/s", rate, "at least 0.6"), *spent]

        yield measure


@contextmanager
def fanout(side: Side) -> Iterator[Round]:
    """All who subscribe are connections of one process, and the publisher is another."""
    with clients(side) as (publisher, consumer):
        passages = {}
        for fan in FANS:
            subject = f"{SUBJECT}.{fan}"
            consumer.ask("subscribe", subject, fan)
            what = f"to {fan} connection{'s' if fan > 1 else ''}"
            passages[fan] = Passage(
                side, publisher, consumer, what, "at least 0.5", subject, copies=fan
            )

        def measure(count: int) -> list[Reading]:
            found = [passage.measure(max(count // fan, 1)) for fan, passage in passages.items()]
            return list(chain.from_iterable(found))

        yield measure


@contextmanager
def connections(side: Side, count: int) -> Iterator[Round]:
    """So many connections, of which some want the same, on a server that has just begun."""
    wanting = min(WANTING, count)
    with clients(side, Links) as (publisher, consumer):

        def measure(messages: int) -> list[Reading]:
            held, before_s = side.memory(), side.processor_s()
            took = consumer.ask("subscribe", SUBJECT, count, SUBSCRIPTIONS, wanting)
            spent = cost("a connection", side, before_s, count)
            own, every = (
                (after - before) / count / 1_024
                for before, after in zip(held, side.memory(), strict=True)
            )
            what = f"{wanting:,} of them want a subject"
            passage = Passage(side, publisher, consumer, what, copies=wanting)
            return [
                Reading(f"with {SUBSCRIPTIONS} subscriptions each", "connections/s", count / took),
                *spent,
                Reading("a connection: memory, the process", "KiB", own),
                Reading("a connection: memory, all processes", "KiB", every),
                *passage.measure(max(messages // wanting, 1)),
            ]

        yield measure


@contextmanager
def raw(side: Side) -> Iterator[Round]:
    """Bare sockets, so that it is the servers that differ."""
    with clients(side, Links) as one, clients(side, Links) as many:
        one[1].ask("subscribe")
        many[1].ask("subscribe", f"{SUBJECT}.many", RAW_FAN)
        single = Passage(side, *one, "one publisher, one subscriber")
        what = f"to {RAW_FAN} connections"
        fan = Passage(side, *many, what, subject=f"{SUBJECT}.many", copies=RAW_FAN)
        yield lambda count: single.measure(count) + fan.measure(max(count // RAW_FAN, 1))


def cases(count: int) -> dict[str, Case]:
    """All there are; ``count`` connections where there are to be many."""
    return {
        "throughput": Case(throughput),
        "request": Case(request, 0.05),
        "request-64": Case(request_64, 0.2),
        "fanout": Case(fanout),
        "connections": Case(partial(connections, count=count), is_fresh=True),
        "raw": Case(raw, 5.0),
    }


NAMES: Final = tuple(cases(1))

# --- a run ----------------------------------------------------------------------------------------


class Report:
    """What a run has found, in the order in which it was found."""

    def __init__(self) -> None:
        self.figures: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def add(self, case: str, found: Mapping[str, Sequence[list[Reading]]]) -> None:
        """Adds a case: of each server the readings of every round."""
        for index, first in enumerate(found[DOOR][0]):
            rounds = {
                name: [round(readings[index].value, 3) for readings in each]
                for name, each in found.items()
            }
            ours, theirs = (statistics.median(rounds[name]) for name in SIDES)
            self.figures.append(
                {
                    "case": case,
                    "what": first.what,
                    "unit": first.unit,
                    DOOR: ours,
                    REFERENCE: theirs,
                    "ratio": round(ours / theirs, 3) if theirs else None,
                    "wanted": first.wanted,
                    "rounds": rounds,
                }
            )

    def table(self) -> str:
        rows = []
        for figure in self.figures:
            ratio = "-" if figure["ratio"] is None else f"{figure['ratio']:.2f}"
            values = [_shown(figure[name]) for name in SIDES]
            what = f"{figure['what']}, {figure['unit']}"
            rows.append([figure["case"], what, *values, ratio, figure["wanted"]])
        return output.table(["case", "what", *SIDES, "ratio", "wanted"], rows)

    def as_json(self, **about: object) -> str:
        figures = {"benchmark": "nats", **about, "figures": self.figures, "notes": self.notes}
        return json.dumps(figures, indent=2, ensure_ascii=False) + "\n"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


Found = dict[str, list[list[Reading]]]
"""Of each server the readings of every round."""


def measured(case: Case, rounds: int, messages: int, bar: Bar) -> Found:
    """Measures in turns, a round of each server."""
    found: Found = {name: [] for name in SIDES}
    count = max(int(messages * case.share), 1)
    with ExitStack() as stack:
        running: dict[str, Round] = {}
        if not case.is_fresh:
            bar.tell("starting", 0)
            for name in SIDES:
                running[name] = stack.enter_context(opened(case, name))
            for measure in running.values():
                measure(max(count // WARM_UP, 1))
        for turn in range(rounds):
            for place, name in enumerate(SIDES):
                bar.tell(name, (turn + place / len(SIDES)) / rounds)
                if case.is_fresh:
                    with opened(case, name) as measure:
                        found[name].append(measure(count))
                else:
                    found[name].append(running[name](count))
    return found


@contextmanager
def opened(case: Case, name: str) -> Iterator[Round]:
    """A case on one of the two servers, which runs as long."""
    with SIDES[name]() as side, case.open(side) as measure:
        yield measure


def run(options: argparse.Namespace) -> Report:
    report = Report()
    every = cases(options.connections)
    bar = Bar(len(options.cases))
    for name in options.cases:
        bar.begin(name)
        try:
            report.add(name, measured(every[name], options.rounds, options.messages, bar))
        except (BenchError, StartError, psutil.Error) as error:
            report.notes.append(f"{name} failed: {error}")
        bar.end_case()
    bar.clear()
    return report


def _cases(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"there are the cases {', '.join(NAMES)}")
    return list(dict.fromkeys(names))


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("it must be at least 1")
    return count


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = ",".join(NAMES)
    parser.add_argument("--cases", type=_cases, default=list(NAMES), help=f"of {every} (all)")
    parser.add_argument("--rounds", type=_count, default=3, help="of each server (%(default)s)")
    parser.add_argument("--messages", type=_count, default=100_000, help="of a round (%(default)s)")
    parser.add_argument(
        "--connections", type=_count, default=5_000, help="where they are many (%(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")
    options = parser.parse_args(arguments)
    missing = not_installed(NATS_PACKAGES, NATS_SERVER)
    if missing:
        output.warn(f"bench_nats: {missing}")
        return output.REFUSED
    about: dict[str, Any] = {"machine": machine(os.curdir), "options": vars(options)}
    about[REFERENCE] = version_of(program(NATS_SERVER) or NATS_SERVER)
    report = run(options)
    output.say(report.table())
    for note in report.notes:
        output.say(note)
    if options.json:
        Path(options.json).write_text(report.as_json(**about), encoding="utf-8")
    return output.REFUSED if report.notes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
