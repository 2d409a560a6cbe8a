"""The cases of ``asterism bench``: what is published and consumed, and what is made of it.

One publisher and one consumer, each in a process of its own, serve all cases; some add another.
Whatever is compared is measured in turns, a round of each, so that what else the machine does
falls on all of them alike.
"""

import contextlib
import secrets
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from asterism.cli.bench_clients import BenchError, Client, Member, Plan, Shared, answers, shared
from asterism.cli.bench_report import Bar, Report, memory_of, percentile, slope
from asterism.testing import Broker

BATCH: Final = 100
ADAPTIVE: Final = -1  # credit that follows the consumer's pace, as it does unless one is given
# Of a publisher whose messages the broker keeps in memory alone. It is less than the credit, so
# that messages wait for the consumer on their way, and not in the topic.
AHEAD_MAX: Final = 8_192
WARM_PART: Final = 10  # a warm-up is this part of a round
SETTLE_S: Final = 1.0  # a broker that was just started is idle after that
SAMPLE_S: Final = 10.0  # of a soak
SKIPPED_S: Final = 60.0  # at its beginning, while caches fill
RATE: Final = "messages/s"
MB: Final = 1_000_000

# For one receiver, done when it has processed it, and nobody awaits the outcome.
QUEUE: Final = {"mode": "durable", "expect": "processed", "max_receivers": 1, "receipt": False}
LOG: Final = {"mode": "durable", "expect": "processed", "receipt": False}
PUSH: Final = {"mode": "push"}
ONLINE: Final = {"mode": "online"}


class PeerRun(NamedTuple):
    """How a peer does the work of one of our cases."""

    what: str
    run: Callable[[int], Any]  # with so many messages


class Peer(Protocol):
    """Another broker, that does the same work in the same run."""

    name: str

    def missing(self) -> str:
        """What is not installed that it needs; nothing if all is there."""
        ...

    def start(self, size: int) -> Mapping[str, PeerRun]:
        """Starts it, and its clients; what it can do, by the names of our cases."""
        ...

    def stop(self) -> None: ...


def per_second(count: int, began: int, ended: int) -> float:
    """How many a second, between two moments."""
    return count / (ended - began) * 1e9


@dataclass(frozen=True)
class Contestant:
    """One of several that are measured in turns."""

    what: str
    run: Callable[[int], Any]
    count: int
    peer: str = ""


@dataclass(frozen=True)
class Options:
    """What a run was asked to do."""

    messages: int = 100_000
    size: int = 128
    rounds: int = 3
    topics: int = 1_000
    endpoints: int = 10_000
    credit: int = 16_384
    workers: int = 2
    soak: float = 0.0  # minutes


class Bench:
    """A run: the broker, the clients, and what was found."""

    def __init__(
        self, options: Options, address: str, broker: Broker | None, report: Report, bar: Bar
    ) -> None:
        self.options = options
        self.address = address
        self.report = report
        self.bar = bar
        self.peers: dict[str, Mapping[str, PeerRun]] = {}
        self.shared: Shared = shared()
        self._broker = broker
        self._token = secrets.token_hex(4)
        self.labels: list[str] = []  # of what the consumer is subscribed to, in this case
        self._topics: dict[str, None] = {}
        self._clients: dict[str, Client] = {}

    # --- clients and topics -----------------------------------------------------------------------

    def client(self, name: str) -> Client:
        """The client of that name; it is started when it is first wanted."""
        if name not in self._clients:
            arguments = (self.address, f"bench-{name}", self.options.size, self.shared)
            self._clients[name] = Client(name, Member, *arguments)
        return self._clients[name]

    @property
    def publisher(self) -> Client:
        return self.client("publisher")

    @property
    def consumer(self) -> Client:
        return self.client("consumer")

    def topic(self, name: str) -> str:
        """A topic of this run alone."""
        topic = f"bench-{self._token}-{name}"
        self._topics[topic] = None
        return topic

    def subscribe(
        self, label: str, topics: Sequence[str], names: Sequence[Any], credit: int | None = None
    ) -> None:
        """Subscribes the consumer, until the case ends."""
        self.labels.append(label)
        self.consumer.ask("subscribe", label, topics, names, credit or self.options.credit)

    def end_case(self) -> None:
        """Deletes what a case has made."""
        topics, self._topics = list(self._topics), {}
        while self.labels:
            self.consumer.ask("leave", self.labels.pop())
        for name in [name for name in self._clients if name not in ("publisher", "consumer")]:
            self._clients.pop(name).close()
        if topics:
            self.publisher.ask("delete_topics", topics)

    def drop_clients(self) -> None:
        """Ends all clients: after a mishap nobody knows what they are at."""
        self.labels.clear()
        while self._clients:
            self._clients.popitem()[1].close()

    def kill(self, name: str) -> None:
        """Ends a client at once."""
        self._clients.pop(name).kill()

    def close(self) -> None:
        with contextlib.suppress(BenchError):
            self.end_case()  # of a case that went wrong
        self.drop_clients()
        self.shared.heard.close()
        self.shared.told.close()

    def memory(self) -> float:
        """Megabytes that the processes of the broker hold together."""
        if self._broker is None:
            return int(self.publisher.ask("memory")) / MB
        return memory_of(pid for pids in self._broker.pids().values() for pid in pids) / MB

    # --- measuring --------------------------------------------------------------------------------

    def end_to_end(self, label: str, plan: Plan) -> float:
        """Messages a second, from the first that is published to the last that is processed."""
        self.shared.counts[0] = 0
        self.consumer.tell("consume", label, plan.count * plan.copies)
        self.publisher.tell("publish", plan)
        (began, _), ended = answers(self.publisher, self.consumer)
        return per_second(plan.count, began, ended)

    def race(self, contestants: Sequence[Contestant]) -> list[list[Any]]:
        """Measures in turns, after a warm-up of each; the rounds of each."""
        turns = self.options.rounds + 1
        found: list[list[Any]] = [[] for _ in contestants]
        for turn in range(turns):
            for at, one in enumerate(contestants):
                part = (turn * len(contestants) + at) / (turns * len(contestants))
                self.bar.tell(f"{one.what}, {f'round {turn}' if turn else 'warm-up'}", part)
                if not one.peer or one.peer in self.peers:
                    self._run_round(one, turn > 0, found[at])
        return found

    def _run_round(self, one: Contestant, is_counted: bool, rounds: list[Any]) -> None:
        """Runs a round, or a warm-up. A peer that fails is noted, and left out from then on."""
        count = one.count if is_counted else max(one.count // WARM_PART, 1)
        try:
            found = one.run(count)
        except BenchError as error:
            if not one.peer:
                raise
            self.report.note(f"{one.peer} failed: {error}")
            del self.peers[one.peer]
            return
        if is_counted:
            rounds.append(found)

    def compare(self, case: str, *ours: Contestant) -> float:
        """Measures a case of ours beside all peers that can do it; the rate of our first one."""
        peers = self.peers_of(case, ours[0].count)
        rounds = self.race([*ours, *peers])
        rate = self.report.add(case, ours[0].what, rounds[0], RATE)
        for one, held in zip(ours[1:], rounds[1:], strict=False):
            ratio = statistics.median(held) / rate
            self.report.add(case, one.what, held, RATE, ratio, "of the first line")
        for peer, held in zip(peers, rounds[len(ours) :], strict=True):
            if held:
                ratio = rate / statistics.median(held)
                self.report.add(case, peer.what, held, RATE, ratio, f"asterism / {peer.peer}")
        return rate

    def peers_of(self, case: str, count: int) -> list[Contestant]:
        return [
            Contestant(runs[case].what, runs[case].run, count, name)
            for name, runs in self.peers.items()
            if case in runs
        ]


# --- durable --------------------------------------------------------------------------------------


def publish(bench: Bench) -> None:
    """Accepted messages, with nobody there to consume them."""
    topic = bench.topic("publish")

    def run(count: int) -> float:
        plan = Plan([topic], count, BATCH, QUEUE)
        began, ended = bench.publisher.ask("publish", plan)
        return per_second(count, began, ended)

    contestant = Contestant("durable, accepted, batches of 100", run, bench.options.messages)
    bench.report.add("publish", contestant.what, bench.race([contestant])[0], RATE)


def _queue(bench: Bench, case: str, what: str, plan: Plan, name: Any, credit: int) -> Contestant:
    """One receiver on a topic of its own, and what it does end to end."""
    topic, label = bench.topic(f"{case}-{credit}"), f"{case}-{credit}"
    if label not in bench.labels:
        bench.subscribe(label, [topic], [name], credit)

    def run(count: int) -> float:
        return bench.end_to_end(label, replace(plan, topics=[topic], count=count))

    return Contestant(what, run, plan.count)


def durable(bench: Bench) -> float:
    """Published, consumed, processed: batches of 100."""
    credit, what = bench.options.credit, "asterism, durable, processed, batches of 100"
    plan = Plan([], bench.options.messages, BATCH, QUEUE)
    in_step = replace(plan, ahead_max=AHEAD_MAX)
    return bench.compare(
        "durable",
        _queue(bench, "durable", what, plan, "bench", credit),
        _queue(bench, "durable", f"same, at most {AHEAD_MAX:,} ahead", in_step, "bench", credit),
        _queue(bench, "durable", "same, credit that adapts", plan, "bench", ADAPTIVE),
    )


def _durable(bench: Bench, case: str, batch: int, part: int) -> None:
    plan = Plan([], max(bench.options.messages // part, 1), batch, QUEUE)
    what = f"asterism, durable, processed, batches of {batch}"
    bench.compare(case, _queue(bench, case, what, plan, "bench", bench.options.credit))


def durable_10(bench: Bench) -> None:
    """The same in batches of 10."""
    _durable(bench, "durable-10", 10, 2)


def durable_1(bench: Bench) -> None:
    """The same, one by one, without waiting for each."""
    _durable(bench, "durable-1", 1, 4)


def receipts(bench: Bench) -> None:
    """Durable in batches of 100, the publisher told how each message ended."""
    plan = Plan([], bench.options.messages, BATCH, {**QUEUE, "receipt": True})
    what = f"asterism, durable, processed, with receipts, batches of {BATCH}"
    bench.compare("receipts", _queue(bench, "receipts", what, plan, "bench", bench.options.credit))


def latency(bench: Bench) -> None:
    """One message in flight: publish to accepted, and to delivered."""
    case, topic = "latency", bench.topic("latency")
    bench.subscribe(case, [topic], ["bench"])

    def run(count: int) -> tuple[list[float], list[float]]:
        bench.consumer.tell("consume_each", case, count)
        bench.publisher.tell("publish_each", topic, count, QUEUE)
        published, delivered = answers(bench.publisher, bench.consumer)
        return latencies_us(published, delivered)

    ours = Contestant("asterism, durable", run, _one_by_one(bench))
    _race_latencies(bench, case, [ours], ("publish to delivered", "publish to accepted"))


def accept(bench: Bench) -> None:
    """One message in flight, and nobody who consumes: publish to accepted."""

    def run(verb: str, count: int) -> tuple[list[float]]:
        topic = bench.topic("accept")
        published = bench.publisher.ask(verb, topic, count, QUEUE)
        bench.publisher.ask("delete_topics", [topic])
        return (waits_us(published),)

    count = _one_by_one(bench)
    ours = [
        Contestant("asterism, durable", partial(run, "publish_alone"), count),
        Contestant("asterism, blocking client", partial(run, "publish_blocking"), count),
    ]
    _race_latencies(bench, "accept", ours, ("publish to accepted, nobody consumes",))


def _one_by_one(bench: Bench) -> int:
    """How many messages a round has where each is waited for."""
    return max(bench.options.messages // 50, 1)


def _race_latencies(
    bench: Bench, case: str, ours: Sequence[Contestant], steps: Sequence[str]
) -> None:
    """Measures beside the peers; what is measured has latencies of each of these steps."""
    others = [*ours[1:], *bench.peers_of(case, ours[0].count)]
    rounds = bench.race([ours[0], *others])
    base = _add_latencies(bench, case, steps, ours[0].what, rounds[0], {})
    for other, held in zip(others, rounds[1:], strict=True):
        if held:
            of = f"asterism / {other.peer}" if other.peer else "the first line / this"
            _add_latencies(bench, case, steps, other.what, held, base, of)


def waits_us(published: Sequence[tuple[int, int]]) -> list[float]:
    """Microseconds from publish to accepted."""
    return [(ended - began) / 1_000 for began, ended in published]


def latencies_us(
    published: Sequence[tuple[int, int]], delivered: Sequence[int]
) -> tuple[list[float], list[float]]:
    """Microseconds from publish to delivered, and from publish to accepted."""
    arrived = [
        (ended - began) / 1_000 for (began, _), ended in zip(published, delivered, strict=True)
    ]
    return arrived, waits_us(published)


def _add_latencies(
    bench: Bench,
    case: str,
    steps: Sequence[str],
    what: str,
    rounds: list[Sequence[list[float]]],
    base: Mapping[str, float],
    of: str = "",
) -> dict[str, float]:
    """Adds the percentiles of each round; the medians of them."""
    found = {}
    for at, step in enumerate(steps):
        for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            held = [percentile(values[at], part) for values in rounds]
            key = f"{step}, {name}"
            ratio = base[key] / statistics.median(held) if key in base else None
            found[key] = bench.report.add(
                case, f"{what}: {key}", held, "µs", ratio, of if key in base else ""
            )
    return found


# --- in memory ------------------------------------------------------------------------------------


def _passing(bench: Bench, case: str, wishes: dict[str, Any]) -> None:
    credit, what = bench.options.credit, f"asterism, {case}, batches of 100"
    plan = Plan([], bench.options.messages, BATCH, wishes, AHEAD_MAX)
    bench.compare(
        case,
        _queue(bench, case, what, plan, None, credit),
        _queue(bench, case, "same, credit that adapts", plan, None, ADAPTIVE),
    )


def push(bench: Bench) -> None:
    """Push messages, to one receiver."""
    _passing(bench, "push", PUSH)


def online(bench: Bench) -> None:
    """Online messages, to one receiver."""
    _passing(bench, "online", ONLINE)


# --- to many --------------------------------------------------------------------------------------


def _fan(
    bench: Bench, case: str, wishes: dict[str, Any], receivers: Sequence[int], named: bool
) -> None:
    """Every message to several receivers: deliveries a second, beside those to one."""
    contestants = []
    for many in receivers:
        label, topic = f"{case}-{many}", bench.topic(f"{case}-{many}")
        names = [f"bench-{n}" if named else None for n in range(many)]
        bench.subscribe(label, [topic], names)

        def run(count: int, topic: str = topic, label: str = label, many: int = many) -> float:
            ahead = None if named else AHEAD_MAX
            plan = Plan([topic], count, BATCH, wishes, ahead, copies=many)
            return many * bench.end_to_end(label, plan)

        count = max(bench.options.messages // many, 1)
        what = f"{wishes['mode']} to {many} receiver{'s' if many > 1 else ''}"
        contestants.append(Contestant(what, run, count))
    base = 0.0
    for one, held in zip(contestants, bench.race(contestants), strict=True):
        ratio = statistics.median(held) / base if base else None
        of = f"of that to {receivers[0]}" if base else ""
        rate = bench.report.add(case, one.what, held, "deliveries/s", ratio, of)
        base = base or rate


def fanout(bench: Bench) -> None:
    """One online message to 1, 10 and 100 receivers."""
    _fan(bench, "fanout", ONLINE, (1, 10, 100), named=False)


def log(bench: Bench) -> None:
    """One durable message to 1 and 4 durable receivers, kept for others."""
    _fan(bench, "log", LOG, (1, 4), named=True)


def topics(bench: Bench) -> None:
    """Traffic spread over many topics, beside one."""
    many = [bench.topic(f"many-{number}") for number in range(bench.options.topics)]
    sets = {"one topic": [bench.topic("one")], f"{len(many):,} topics": many}
    for label, names in sets.items():
        bench.subscribe(label, names, ["bench"])
    contestants = []
    for batch in (BATCH, 10):
        for label, names in sets.items():

            def run(
                count: int, label: str = label, names: list[str] = names, batch: int = batch
            ) -> float:
                return bench.end_to_end(label, Plan(names, count, batch, QUEUE))

            count = max(bench.options.messages * batch // BATCH, bench.options.messages // 2)
            contestants.append(Contestant(f"{label}, batches of {batch}", run, count))
    rounds = bench.race(contestants)
    for at in range(0, len(contestants), 2):
        base = bench.report.add("topics", contestants[at].what, rounds[at], RATE)
        ratio = statistics.median(rounds[at + 1]) / base
        bench.report.add(
            "topics", contestants[at + 1].what, rounds[at + 1], RATE, ratio, "of one topic"
        )


def endpoints(bench: Bench) -> None:
    """Many idle endpoints on the very topic, beside none: before, with, after."""
    case, topic = "endpoints", bench.topic("endpoints")
    many = bench.options.endpoints
    bench.subscribe(case, [topic], ["bench"])

    def run(count: int) -> float:
        return bench.end_to_end(case, Plan([topic], count, BATCH, QUEUE))

    def rates(what: str) -> list[float]:
        return bench.race([Contestant(what, run, bench.options.messages)])[0]

    without = rates("no idle endpoint")
    before = bench.memory()
    idle = bench.client("idle")
    began = time.monotonic()
    idle.ask("idle", "idle", topic, many)
    spent = time.monotonic() - began
    grown = bench.memory() - before
    among = rates(f"{many:,} idle endpoints")
    idle.ask("leave", "idle")
    without += rates("no idle endpoint, again")
    base = bench.report.add(case, "no idle endpoint", without, RATE)
    ratio = statistics.median(among) / base
    bench.report.add(case, f"{many:,} idle endpoints", among, RATE, ratio, "of none")
    bench.report.add(case, f"{many:,} subscribed", [many / spent], "endpoints/s")
    bench.report.add(case, "memory they take", [grown], "MB")


# --- one that stops reading -----------------------------------------------------------------------


def stalled(bench: Bench) -> None:
    """A consumer stops reading; another on the same topic goes on."""
    _stalled(bench, "durable", LOG, named=True)
    _stalled(bench, "online", ONLINE, named=False)


def _stalled(bench: Bench, mode: str, wishes: dict[str, Any], named: bool) -> None:
    topic, label = bench.topic(f"stalled-{mode}"), f"stalled-{mode}"
    count = max(bench.options.messages // 2, 1)
    other = bench.client("other")
    bench.subscribe(label, [topic], ["a" if named else None])
    ahead = None if named else AHEAD_MAX

    def alone(count: int) -> float:
        return bench.end_to_end(label, Plan([topic], count, BATCH, wishes, ahead))

    def both(count: int) -> float:
        # The other one is waited for, but its time does not count.
        bench.shared.counts[1] = 0
        other.tell("consume", label, count, 1)
        plan = Plan([topic], count, BATCH, wishes, ahead, slots=(0, 1))
        rate = bench.end_to_end(label, plan)
        other.answer()
        return rate

    def rates(what: str, run: Callable[[int], float]) -> list[float]:
        return bench.race([Contestant(f"{mode}, {what}", run, count)])[0]

    single = rates("one consumer", alone)
    other.ask("subscribe", label, [topic], ["b" if named else None], bench.options.credit)
    together = rates("both consumers read", both)
    before = bench.memory()
    stopped = rates("one has stopped reading", alone)
    after = bench.memory()
    other.freeze()  # its connection stays, and nobody reads from it
    frozen = rates("one process is stopped", alone)
    afterwards = bench.memory()
    bench.kill("other")
    bench.report.add("stalled", f"{mode}, one consumer", single, RATE)
    base = bench.report.add("stalled", f"{mode}, two consumers that read", together, RATE)
    for what, held in (("has stopped reading", stopped), ("is a stopped process", frozen)):
        ratio = statistics.median(held) / base
        of = "of while it read"
        bench.report.add("stalled", f"{mode}, one of them {what}", held, RATE, ratio, of)
    lone = [rate / statistics.median(single) for rate in stopped]
    bench.report.add("stalled", f"{mode}, one has stopped, beside one alone", lone, "of that")
    bench.report.add("stalled", f"{mode}, memory before", [before], "MB")
    for what, held in (("stopped reading", [after]), ("stopped process", [afterwards])):
        ratio = held[0] / before
        bench.report.add("stalled", f"{mode}, memory after: {what}", held, "MB", ratio, "of before")
    bench.end_case()


# --- the broker itself ----------------------------------------------------------------------------


def start(bench: Bench) -> None:
    """A broker of its own: from start to ready, to the first durable message; memory when idle."""
    ready, first, memory = [], [], []
    for turn in range(bench.options.rounds):
        bench.bar.tell(f"round {turn + 1}", turn / bench.options.rounds)
        began = time.monotonic()
        with Broker(workers=bench.options.workers) as broker:
            ready.append(time.monotonic() - began)
            time.sleep(SETTLE_S)  # what is measured is the rest after the start
            memory.append(memory_of(pid for pids in broker.pids().values() for pid in pids) / MB)
            first.append(_first_message_ms(broker.address))
    bench.report.add("start", "start to ready, all processes", ready, "s")
    bench.report.add("start", "first durable message, connecting included", first, "ms")
    bench.report.add("start", "memory when idle, all processes", memory, "MB")


def _first_message_ms(address: str) -> float:
    import asterism

    began = time.monotonic()
    with asterism.connect_blocking(address, name="bench-first") as node:
        node.publish("first", b"x")
        return (time.monotonic() - began) * 1_000


def soak(bench: Bench) -> None:
    """Half of the highest rate, for a while: does memory stay where it is?"""
    whole_s = bench.options.soak * 60
    rate = _highest_rate(bench) / 2
    topic = bench.topic("soak")
    bench.subscribe("soak", [topic], ["bench"])
    sample_s = min(SAMPLE_S, whole_s / 6)
    count = max(round(rate * sample_s / BATCH) * BATCH, BATCH)
    samples: list[dict[str, float]] = []
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < whole_s:
        bench.bar.tell(f"{elapsed / 60:.1f} of {bench.options.soak:g} minutes", elapsed / whole_s)
        reached = bench.end_to_end("soak", Plan([topic], count, BATCH, QUEUE, rate=rate))
        seconds = time.monotonic() - began
        samples.append({"s": round(seconds, 1), "rate": reached, "memory_mb": bench.memory()})
    bench.report.series["soak"] = samples
    _add_soak(bench, rate, samples)


def _highest_rate(bench: Bench) -> float:
    known = [figure.value for figure in bench.report.figures if figure.case == "durable"]
    if known:
        return known[0]
    peers, bench.peers = bench.peers, {}  # they are not what is asked for
    try:
        rate = durable(bench)
        bench.end_case()
        return rate
    finally:
        bench.peers = peers


def _add_soak(bench: Bench, rate: float, samples: list[dict[str, float]]) -> None:
    skipped_s = min(SKIPPED_S, samples[-1]["s"] / 3)
    kept = [sample for sample in samples if sample["s"] >= skipped_s] or samples
    memory = [sample["memory_mb"] for sample in kept]
    rising = slope([(sample["s"] / 60, sample["memory_mb"]) for sample in kept])
    add = bench.report.add
    add("soak", "rate asked for: half of the highest", [rate], RATE)
    reached = [sample["rate"] for sample in samples]
    add("soak", "rate reached", reached, RATE, statistics.median(reached) / rate, "of asked for")
    add("soak", f"memory after {skipped_s:.0f} s", [memory[0]], "MB")
    last = samples[-1]["s"]
    add("soak", f"memory after {last:.0f} s", [memory[-1]], "MB", memory[-1] / memory[0], "of that")
    add("soak", "most memory in between", [max(memory)], "MB")
    add("soak", "slope", [rising], "MB/min")


CASES: Final[dict[str, Callable[[Bench], object]]] = {
    "start": start,
    "publish": publish,
    "durable": durable,
    "durable-10": durable_10,
    "durable-1": durable_1,
    "receipts": receipts,
    "latency": latency,
    "accept": accept,
    "push": push,
    "online": online,
    "fanout": fanout,
    "log": log,
    "topics": topics,
    "endpoints": endpoints,
    "stalled": stalled,
}
OWN_BROKER: Final = frozenset({"start"})  # they start one, whatever the address
