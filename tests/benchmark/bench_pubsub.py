"""The Pub/Sub door beside Google's emulator, in the same run: what a program would notice.

    python -m tests.benchmark.bench_pubsub [--cases publish,subscribe] [--rounds 3] [--json FILE]

Both servers run for the whole of a case and are measured in turns, a round of each, by the same
clients in processes of their own: google-cloud-pubsub as applications use it. Messages have 128
bytes. Our door confirms what is on disk; the emulator keeps everything in memory. Without the
emulator (a jar and Java) ours is measured alone. Clients share the cores with the servers: what
each of them uses is told beside, as the client is the bound of much of this.
"""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from asterism.cli import output
from asterism.cli.bench_cases import per_second
from asterism.cli.bench_clients import BenchError, Client, answers, shared
from asterism.cli.bench_report import machine, percentile
from asterism.testing import Broker
from tests.benchmark.pubsub_clients import ARRIVE_S, Member
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
    processor_s,
    run,
)
from tests.support import pubsub_emulator

DOOR: Final = "asterism"
REFERENCE: Final = "emulator"
BATCHES: Final = (100, 1_000)  # messages in one request: what the client does, and its most
SEVERAL: Final = 3  # processes
WAITING_IN: Final = 10  # of many subscriptions
LOOK_S: Final = 0.002
MEBIBYTE: Final = 1_048_576
PROJECT: Final = "projects/bench"
_numbers: Final = itertools.count(1)

# --- the servers ----------------------------------------------------------------------------------


@contextmanager
def door() -> Iterator[Side]:
    """A broker of ours with the door."""
    with Broker(doors=("pubsub",), config={"pubsub": {"rest_listen": ""}}) as broker:
        pids = broker.pids()
        every = tuple(pid for kind in pids.values() for pid in kind)
        yield Side(DOOR, str(broker.pubsub_address), pids["pubsub"][0], every)


@contextmanager
def reference() -> Iterator[Side]:
    """The emulator."""
    emulator = pubsub_emulator.Emulator()
    try:
        emulator.start()
        yield Side(REFERENCE, emulator.address, emulator.pid, (emulator.pid,))
    finally:
        emulator.stop()


def installed() -> Sides:
    """The servers that are here."""
    if pubsub_emulator.missing():
        return {DOOR: door}
    return {DOOR: door, REFERENCE: reference}


# --- what the cases have in common ----------------------------------------------------------------


class Bench:
    """A server, and clients of it."""

    def __init__(self, side: Side, stack: ExitStack, publishers: int, consumers: int) -> None:
        self.side = side
        self.shared = shared()
        self.maker = stack.enter_context(self._client("maker"))
        named = [f"publisher {number}" for number in range(publishers)]
        self.publishers = [stack.enter_context(self._client(name)) for name in named]
        slots = range(consumers)
        self.consumers = [
            stack.enter_context(self._client(f"consumer {slot}", slot)) for slot in slots
        ]

    def _client(self, what: str, slot: int = 0) -> Client:
        return Client(f"{self.side.name} {what}", Member, self.side.address, self.shared, slot)

    @contextmanager
    def topic(self, subscriptions: int = 1) -> Iterator[tuple[str, list[str]]]:
        """A topic with subscriptions, for a while."""
        number = next(_numbers)
        topic = f"{PROJECT}/topics/topic-{number}"
        names = [
            f"{PROJECT}/subscriptions/subscription-{number}-{each}" for each in range(subscriptions)
        ]
        self.maker.ask("make", topic, names)
        yield topic, names
        self.maker.ask("drop", topic, names)

    def publish(self, topic: str, count: int, batch: int, wanted: str = "") -> list[Reading]:
        """Messages a second that all publishers together have confirmed, and what they cost."""
        parts = _parts(count, len(self.publishers))
        spent = Cost(self.side, self.publishers)
        for publisher, part in zip(self.publishers, parts, strict=True):
            publisher.tell("publish", topic, part, batch)
        moments = answers(*self.publishers)
        began = min(moment[0] for moment in moments)
        ended = max(moment[1] for moment in moments)
        what = f"{batch} in a request"
        rate = per_second(count, began, ended)
        return [Reading(what, "messages/s", rate, wanted), *spent.readings(what, count)]

    def consume(self, subscription: str, count: int, is_all: bool, what: str) -> list[Reading]:
        """Messages a second that come to callbacks and are acknowledged, by all consumers."""
        counts = self.shared.counts
        for slot in range(len(self.consumers)):
            counts[slot] = 0
        used = Cost(self.side, self.consumers)
        for consumer in self.consumers:
            consumer.tell("consume", subscription)
        began = min(answers(*self.consumers))
        confirmed, ended = self._until_confirmed(count)
        spent = used.readings(what, confirmed)
        for consumer in self.consumers:
            consumer.tell("leave")
        arrived = sum(answers(*self.consumers))
        if is_all and arrived != count:
            raise BenchError(f"{arrived} messages came, and {count} were to come")
        rate = per_second(confirmed, began, ended)
        return [Reading(what, "messages/s", rate, "at least 1.5"), *spent]

    def _until_confirmed(self, count: int) -> tuple[int, int]:
        """Waits for so many acknowledgements; how many there were, and when."""
        deadline = time.monotonic() + ARRIVE_S
        while True:
            confirmed = sum(self.shared.counts)
            if confirmed >= count:
                return confirmed, time.monotonic_ns()
            if time.monotonic() > deadline:
                raise BenchError(f"{confirmed} of {count} acknowledgements were confirmed")
            time.sleep(LOOK_S)


def _parts(count: int, parts: int) -> list[int]:
    """A number in about equal parts."""
    return [count // parts + (number < count % parts) for number in range(parts)]


class Cost:
    """Processor time of a server and of its clients, from now on."""

    def __init__(self, side: Side, clients: Sequence[Client]) -> None:
        self._side = side
        self._pids = [client.pid for client in clients]
        self._before_s = side.processor_s()
        self._clients_before_s = processor_s(self._pids)
        self._began_s = time.monotonic()

    def readings(self, what: str, count: int) -> list[Reading]:
        clients_s = processor_s(self._pids) - self._clients_before_s
        share = clients_s / len(self._pids) / (time.monotonic() - self._began_s)
        return [
            *cost(what, self._side, self._before_s, count),
            Reading(f"{what}: processor time, clients", "µs", clients_s * 1e6 / count),
            Reading(f"{what}: of a core, each client", "%", share * 100),
        ]


def memory(when: str, side: Side) -> list[Reading]:
    """What a server holds now."""
    own, every = (held / MEBIBYTE for held in side.memory())
    return [
        Reading(f"memory, {when}: the process", "MiB", own),
        Reading(f"memory, {when}: all processes", "MiB", every),
    ]


# --- cases ----------------------------------------------------------------------------------------


@contextmanager
def publish(side: Side, clients: int) -> Iterator[Round]:
    """What a subscription waits for is kept, so that the emulator has to keep it as well."""
    with ExitStack() as stack:
        bench = Bench(side, stack, publishers=clients, consumers=0)

        def measure(count: int) -> list[Reading]:
            found = []
            for batch in BATCHES:
                with bench.topic() as (topic, _):
                    found += bench.publish(topic, count, batch, "at least 1")
            return found

        yield measure


@contextmanager
def subscribe(side: Side, clients: int) -> Iterator[Round]:
    """What waits is taken: from the opening of streams to the last confirmed acknowledgement."""
    with ExitStack() as stack:
        bench = Bench(side, stack, publishers=1, consumers=clients)

        def measure(count: int) -> list[Reading]:
            with bench.topic() as (topic, (subscription,)):
                bench.publish(topic, count, BATCHES[-1])
                return bench.consume(subscription, count, True, "callback and ack")

        yield measure


@contextmanager
def latency(side: Side) -> Iterator[Round]:
    with ExitStack() as stack:
        bench = Bench(side, stack, publishers=1, consumers=1)
        publisher, consumer = bench.publishers[0], bench.consumers[0]

        def measure(count: int) -> list[Reading]:
            with bench.topic() as (topic, (subscription,)):
                took = publisher.ask("publish_each", topic, count)
            with bench.topic() as (topic, (subscription,)):
                consumer.ask("consume_heard", subscription)
                publisher.ask("publish_heard", topic, count)
                heard = consumer.ask("leave_heard")
            return [
                Reading("one publish: p50", "µs", percentile(took, 0.5)),
                Reading("one publish: p99", "µs", percentile(took, 0.99)),
                Reading("publish to callback: p50", "µs", percentile(heard, 0.5)),
                Reading("publish to callback: p99", "µs", percentile(heard, 0.99)),
            ]

        yield measure


@contextmanager
def crowd(side: Side, streams: int, subscriptions: int, waiting: int) -> Iterator[Round]:
    """Many streams, many subscriptions, and many messages that wait in some of them."""
    with ExitStack() as stack:
        bench = Bench(side, stack, publishers=1, consumers=1)
        idle = max(subscriptions - WAITING_IN, streams)

        def measure(count: int) -> list[Reading]:
            topic = f"{PROJECT}/topics/idle"
            names = [f"{PROJECT}/subscriptions/idle-{number}" for number in range(idle)]
            held = memory("empty", side)
            made_s = bench.maker.ask("make", topic, names)
            held += memory(f"{idle:,} subscriptions", side)
            bench.maker.ask("open_streams", names[:streams])
            with bench.topic(WAITING_IN) as (waited, (first, *_)):
                held += memory(f"{streams} streams open", side)
                published = bench.publish(waited, waiting, BATCHES[-1])
                held += memory(f"{waiting:,} messages waiting in {WAITING_IN}", side)
                consumed = bench.consume(first, min(count, waiting), False, "callback and ack")
                held += memory("afterwards", side)
                if bench.maker.ask("streams") != streams:
                    raise BenchError(f"not all of {streams} streams are open any more")
            made = Reading("one after the other", "subscriptions/s", idle / made_s)
            return [made, *held, *published, *consumed]

        yield measure


def cases(options: argparse.Namespace) -> dict[str, Case]:
    """All there are."""
    many = partial(
        crowd, streams=options.streams, subscriptions=options.subscriptions, waiting=options.waiting
    )
    return {
        "publish": Case(partial(publish, clients=1)),
        "publish-several": Case(partial(publish, clients=SEVERAL)),
        "subscribe": Case(partial(subscribe, clients=1)),
        "subscribe-several": Case(partial(subscribe, clients=SEVERAL)),
        "latency": Case(latency, 0.025),
        "crowd": Case(many, is_fresh=True),
    }


NAMES: Final = ("publish", "publish-several", "subscribe", "subscribe-several", "latency", "crowd")

# --- a run ----------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, many = parser.add_argument, "of many: "
    every = ",".join(NAMES)
    add("--cases", type=names_of(NAMES), default=list(NAMES), help=f"of {every} (all)")
    add("--rounds", type=count_of, default=3, help="of each server (%(default)s)")
    add("--messages", type=count_of, default=20_000, help="of a round (%(default)s)")
    add("--streams", type=count_of, default=200, help=f"{many}open ones (%(default)s)")
    add("--subscriptions", type=count_of, default=1_000, help=f"{many}all (%(default)s)")
    add("--waiting", type=count_of, default=100_000, help=f"{many}messages (%(default)s)")
    add("--json", metavar="FILE", help="write the figures to this file")
    return parser


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    sides = installed()
    about: dict[str, Any] = {"machine": machine(os.curdir), "options": vars(options)}
    report = Report("pubsub", list(sides))
    if REFERENCE in sides:
        about[REFERENCE] = pubsub_emulator.version()
    run(report, sides, cases(options), options)
    output.say(report.table())
    for note in report.notes:
        output.say(note)
    if REFERENCE not in sides:
        output.say(f"{DOOR} alone: {pubsub_emulator.missing()}")
    if options.json:
        Path(options.json).write_text(report.as_json(**about), encoding="utf-8")
    return output.REFUSED if report.notes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
