"""Two servers measured in turns, a round of each, and the table of what was found."""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final, NamedTuple

import psutil

from asterism.cli import output
from asterism.cli.bench_clients import BenchError
from asterism.cli.bench_report import Bar, memory_of
from asterism.testing import StartError

WARM_UP: Final = 10  # a part of a round


class Side(NamedTuple):
    """One of the servers, as it runs."""

    name: str
    address: str  # or its URL
    process: int  # the one that clients are connected to
    processes: tuple[int, ...]  # all of it

    def processor_s(self) -> tuple[float, float]:
        """Seconds of processor time that the one process has used, and all of it."""
        return processor_s([self.process]), processor_s(self.processes)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def memory(self) -> tuple[int, int]:
        """Bytes that the one process holds, and all of it."""
        return memory_of([self.process]), memory_of(self.processes)


def processor_s(pids: Sequence[int]) -> float:
    """Seconds of processor time that processes have used."""
    spent = 0.0
    for pid in pids:
        times = psutil.Process(pid).cpu_times()
        spent += times.user + times.system
    return spent


class Reading(NamedTuple):
    """What a round has found of one server, by one measure."""

    what: str
    unit: str
    value: float
    wanted: str = ""  # of the ratio, ours to the reference


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


Round = Callable[[int], list[Reading]]
"""Measures one round of so many messages."""

Sides = Mapping[str, Callable[[], AbstractContextManager[Side]]]
"""The servers, ours first."""

Found = dict[str, list[list[Reading]]]
"""Of each server the readings of every round."""


class Case(NamedTuple):
    """What is measured, and how much of it."""

    open: Callable[[Side], AbstractContextManager[Round]]
    share: float = 1.0  # of --messages
    is_fresh: bool = False  # each round has servers of its own, and there is no warm-up


class Report:
    """What a run has found, in the order in which it was found."""

    def __init__(self, benchmark: str, names: Sequence[str]) -> None:
        self.benchmark = benchmark
        self.names = names  # of the servers, ours first
        self.figures: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def add(self, case: str, found: Found) -> None:
        """Adds a case."""
        for index, first in enumerate(found[self.names[0]][0]):
            rounds = {
                name: [round(readings[index].value, 3) for readings in each]
                for name, each in found.items()
            }
            medians = {name: statistics.median(values) for name, values in rounds.items()}
            ours, *others = medians.values()
            ratio = round(ours / others[0], 3) if others and others[0] else None
            figure = {"case": case, "what": first.what, "unit": first.unit, **medians}
            self.figures.append(
                {**figure, "ratio": ratio, "wanted": first.wanted, "rounds": rounds}
            )

    def table(self) -> str:
        rows = []
        for figure in self.figures:
            ratio = "-" if figure["ratio"] is None else f"{figure['ratio']:.2f}"
            values = [_shown(figure[name]) for name in self.names]
            what = f"{figure['what']}, {figure['unit']}"
            rows.append([figure["case"], what, *values, ratio, figure["wanted"]])
        return output.table(["case", "what", *self.names, "ratio", "wanted"], rows)

    def as_json(self, **about: object) -> str:
        held = {"benchmark": self.benchmark, **about, "figures": self.figures, "notes": self.notes}
        return json.dumps(held, indent=2, ensure_ascii=False) + "\n"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def measured(sides: Sides, case: Case, rounds: int, messages: int, bar: Bar) -> Found:
    """Measures in turns, a round of each server."""
    found: Found = {name: [] for name in sides}
    count = max(int(messages * case.share), 1)
    with ExitStack() as stack:
        running: dict[str, Round] = {}
        if not case.is_fresh:
            bar.tell("starting", 0)
            for name in sides:
                running[name] = stack.enter_context(_opened(sides, case, name))
            for measure in running.values():
                measure(max(count // WARM_UP, 1))
        for turn in range(rounds):
            for place, name in enumerate(sides):
                bar.tell(name, (turn + place / len(sides)) / rounds)
                if case.is_fresh:
                    with _opened(sides, case, name) as measure:
                        found[name].append(measure(count))
                else:
                    found[name].append(running[name](count))
    return found


@contextmanager
def _opened(sides: Sides, case: Case, name: str) -> Iterator[Round]:
    """A case on one of the servers, which runs as long."""
    with sides[name]() as side, case.open(side) as measure:
        yield measure


def run(
    report: Report, sides: Sides, cases: Mapping[str, Case], options: argparse.Namespace
) -> None:
    """Measures the cases that are asked for; one that fails takes no other with it."""
    bar = Bar(len(options.cases))
    for name in options.cases:
        bar.begin(name)
        try:
            report.add(name, measured(sides, cases[name], options.rounds, options.messages, bar))
        except (BenchError, StartError, psutil.Error) as error:
            report.notes.append(f"{name} failed: {error}")
        bar.end_case()
    bar.clear()


# --- the command line -----------------------------------------------------------------------------


def count_of(text: str) -> int:
    """A number that an option gives."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("it must be at least 1")
    return count


def names_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Reads a list of cases."""

    def read(text: str) -> list[str]:
        asked = [name for name in text.split(",") if name]
        if not asked or not set(asked) <= set(names):
            raise argparse.ArgumentTypeError(f"there are the cases {', '.join(names)}")
        return list(dict.fromkeys(asked))

    return read
