"""The NATS door beside nats-server, in the same run: what a program would notice that moves.

    python -m tests.benchmark.bench_nats [--cases throughput,request] [--rounds 3] [--json FILE]

Both servers run for the whole of a case and are measured in turns, a round of each, by the same
clients in processes of their own: nats-py, but for ``connections`` and ``raw``, which are bare
sockets. Messages have 128 bytes. A case of which not every message arrives has failed; the others
go on. Clients share the cores with the servers: what a server takes of them is told beside.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from asterism.cli import output
from asterism.cli.bench_cases import per_second
from asterism.cli.bench_clients import Client, Role, answers, shared
from asterism.cli.bench_report import machine, percentile
from asterism.cli.bench_servers import (
    NATS_PACKAGES,
    NATS_SERVER,
    Server,
    not_installed,
    program,
    version_of,
)
from asterism.testing import Broker
from tests.benchmark.nats_clients import SUBJECT, Member
from tests.benchmark.nats_links import Links
from tests.benchmark.turns import (
    Case,
    Reading,
    Report,
    Round,
    Side,
    Sides,
    cost,
    count_of,
    names_of,
    run,
)

DOOR: Final = "asterism"
REFERENCE: Final = "nats-server"
IN_FLIGHT: Final = 64
FANS: Final = (1, 10, 100)  # connections that subscribe
RAW_FAN: Final = 100
SUBSCRIPTIONS: Final = 10  # of each of many connections
WANTING: Final = 1_000  # of many connections, those that subscribe to the same

# --- the servers ----------------------------------------------------------------------------------


@contextmanager
def door() -> Iterator[Side]:
    """A broker of ours with the door."""
    with Broker(doors=("nats",)) as broker:
        pids = broker.pids()
        every = tuple(pid for kind in pids.values() for pid in kind)
        yield Side(DOOR, str(broker.nats_url), pids["nats"][0], every)


@contextmanager
def reference() -> Iterator[Side]:
    """nats-server, as it is without a configuration."""
    server = Server(NATS_SERVER)
    try:
        file = Path(server.folder) / "pid"
        server.start("--addr", "127.0.0.1", "--port", str(server.port), "--pid", str(file))
        pid = int(file.read_text())
        yield Side(REFERENCE, f"127.0.0.1:{server.port}", pid, (pid,))
    finally:
        server.stop()


SIDES: Final[Sides] = {
    DOOR: door,
    REFERENCE: reference,
}


# --- cases ----------------------------------------------------------------------------------------


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


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = ",".join(NAMES)
    parser.add_argument(
        "--cases", type=names_of(NAMES), default=list(NAMES), help=f"of {every} (all)"
    )
    parser.add_argument("--rounds", type=count_of, default=3, help="of each server (%(default)s)")
    parser.add_argument(
        "--messages", type=count_of, default=100_000, help="of a round (%(default)s)"
    )
    parser.add_argument(
        "--connections", type=count_of, default=5_000, help="where they are many (%(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")
    options = parser.parse_args(arguments)
    missing = not_installed(NATS_PACKAGES, NATS_SERVER)
    if missing:
        output.warn(f"bench_nats: {missing}")
        return output.REFUSED
    about: dict[str, Any] = {"machine": machine(os.curdir), "options": vars(options)}
    about[REFERENCE] = version_of(program(NATS_SERVER) or NATS_SERVER)
    report = Report("nats", list(SIDES))
    run(report, SIDES, cases(options.connections), options)
    output.say(report.table())
    for note in report.notes:
        output.say(note)
    if options.json:
        Path(options.json).write_text(report.as_json(**about), encoding="utf-8")
    return output.REFUSED if report.notes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
