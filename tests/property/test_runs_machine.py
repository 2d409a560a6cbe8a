"""Runs are a shorter way to write down a state: with them and without, a topic does the same.

Two brokers live through one history. One handles plain messages by the run, the other was told that
no topic is simple, so that every message gets its objects at once. After each step both have caused
the same effects, in the same order, and after a restart both know the same.
"""

from itertools import count
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from asterism import commands as ask
from asterism.actors.publishing import Publishing
from asterism.message import Status
from tests.support.core import CoreBroker
from tests.support.lags import check_lags

NODES = [b"a", b"b", b"c"]
SEATS: list[dict[str, Any]] = [{"name": "anna"}, {"group": "crew"}, {"group": "crew"}]
SUBJECTS = ["a/1", "a/2", "b/1"]
INTERESTS = [("**",), ("a/*",), ("a/1", "b/*")]
KINDS: list[dict[str, Any]] = [{}, {}, {}, {}, {"expect": "received"}, {"priority": 1}]
KINDS += [{"receipt": True}, {"receipt": True}, {"receipt": True, "expect": "received"}]
KINDS += [{"mode": "online", "expect": "sent"}, {"mode": "push", "expect": "sent"}]
KINDS += [{"expect": "sent"}, {"max_receivers": None}, {"mode": "online"}, {"ordering_key": "k"}]

PASSING: list[dict[str, Any]] = [{"mode": "online", "expect": "sent"}] * 3
PASSING += [{"mode": "push", "expect": "sent"}] * 3
PASSING += [{}, {"mode": "online"}, {"mode": "push"}, {"max_receivers": None}]


# Beside those without, since a topic may have both.
ASKING: list[dict[str, Any]] = [{"receipt": True}] * 3
ASKING += [{"receipt": True, "expect": "received"}, {}, {"receipt": True, "priority": 1}]


class RunsMachine(RuleBasedStateMachine):
    """Asks both brokers the same, and compares."""

    kinds = KINDS

    def __init__(self) -> None:
        super().__init__()
        self.by_run = CoreBroker(default_ttl_ms=3_600_000)
        self.one_by_one = CoreBroker(default_ttl_ms=3_600_000)
        self.sequences: list[int] = []
        self.requests = count(1_000_000)

    @initialize(changes=st.sampled_from([{}, {}, {"max_attempts": 3}, {"requeue": "front"}]))
    def begin(self, changes: dict[str, Any]) -> None:
        self.ask(ask.Configure(b"admin", 1, changes))

    def both(self, act: Any) -> None:
        act(self.by_run)
        with patch.object(Publishing, "is_simple", return_value=False):
            act(self.one_by_one)
        assert self.by_run.effects == self.one_by_one.effects

    def ask(self, command: Any) -> None:
        self.both(lambda broker: broker.do(command))

    def request(self) -> int:
        return next(self.requests)

    @rule(
        batch=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=15),
        chosen=st.integers(0, 99),
    )
    def publish(self, batch: list[str], chosen: int) -> None:
        kind = self.kinds[chosen % len(self.kinds)]
        for subject in dict.fromkeys(batch):
            payloads = [subject.encode()] * batch.count(subject)
            self.both(lambda broker, s=subject, p=payloads: broker.publish_many(p, s, **kind))
        self.sequences = list(range(1, self.by_run.actor.next_sequence))

    @rule(
        node=st.sampled_from(range(3)),
        wanted=st.sampled_from(INTERESTS),
        credit=st.sampled_from([0, 0, 0, 1, 5, 20]),
    )
    def subscribe(self, node: int, wanted: tuple[str, ...], credit: int) -> None:
        name = NODES[node]
        if (name, 1) not in self.by_run.actor.receivers.endpoints:
            self.ask(ask.Subscribe(name, self.request(), 1, wanted, credit=credit, **SEATS[node]))

    @rule(node=st.sampled_from(NODES), credit=st.integers(1, 20))
    def grant(self, node: bytes, credit: int) -> None:
        self.ask(ask.Grant(node, 0, 1, credit))

    @rule(node=st.sampled_from(NODES), most=st.integers(1, 9), wait_ms=st.sampled_from([0, 500]))
    def pull(self, node: bytes, most: int, wait_ms: int) -> None:
        self.ask(ask.Pull(node, self.request(), 1, most, wait_ms))

    @rule(
        node=st.sampled_from(NODES),
        status=st.sampled_from([Status.PROCESSED] * 4 + [Status.RECEIVED, Status.FAILED]),
        at=st.integers(0, 40),
        number=st.integers(1, 15),
        backwards=st.booleans(),
    )
    def report(self, node: bytes, status: Status, at: int, number: int, backwards: bool) -> None:
        sequences = tuple(self.sequences[-1 - at :][:number])
        if sequences:
            sequences = sequences[::-1] if backwards else sequences
            self.ask(ask.Report(node, self.request(), 1, status, sequences))

    @rule(node=st.sampled_from(NODES), timeout_ms=st.sampled_from([0, 1_000]), at=st.integers(0, 9))
    def extend(self, node: bytes, timeout_ms: int, at: int) -> None:
        if self.sequences[-1 - at :]:
            sequences = tuple(self.sequences[-1 - at :])
            self.ask(ask.Extend(node, self.request(), 1, sequences, timeout_ms))

    @rule(node=st.sampled_from(NODES))
    def detach(self, node: bytes) -> None:
        self.both(lambda broker: broker.detach(node))

    @rule(ms=st.sampled_from([10, 1_000, 61_000, 7_200_000]))
    def time_passes(self, ms: int) -> None:
        self.both(lambda broker: broker.advance(ms))

    @rule()
    def order(self) -> None:
        self.ask(ask.Order(b"worker", self.request(), 0))

    @rule(at=st.integers(0, 9))
    def abandon(self, at: int) -> None:
        if self.sequences[-1 - at :]:
            self.ask(ask.Abandon(b"admin", self.request(), self.sequences[-1 - at :][0]))

    @rule(changes=st.sampled_from([{"concurrency": 2}, {"concurrency": None}, {"blocking": True}]))
    def configure(self, changes: dict[str, Any]) -> None:
        self.ask(ask.Configure(b"admin", self.request(), changes))

    @rule()
    def restart(self) -> None:
        self.both(lambda broker: broker.restart())

    @rule()
    def describe(self) -> None:
        self.ask(ask.Describe(b"admin", self.request()))

    @invariant()
    def both_hold_the_same(self) -> None:
        with_runs, without = self.by_run.actor, self.one_by_one.actor
        assert with_runs.held == without.held
        assert with_runs.pages.out == without.pages.out
        assert with_runs.next_due_ms() == without.next_due_ms()
        for lane in with_runs.pool._lanes.values():
            assert lane.runs.total == sum(map(len, lane.runs))
        check_lags(with_runs)
        check_lags(without)
        everybody = with_runs.receivers.by_name.values()
        assert with_runs.lags(everybody) == without.lags(without.receivers.by_name.values())


class PassingMachine(RunsMachine):
    """Most is push and online, somebody is there, and credit is short: runs wait in memory."""

    @initialize(
        kinds=st.sampled_from([PASSING, PASSING[:1], PASSING[3:4], PASSING[:6]]),
        wanted=st.tuples(*[st.sampled_from(INTERESTS)] * 3),
        credits=st.tuples(*[st.sampled_from([0, 33, 40])] * 3),
    )
    def come(
        self,
        kinds: list[dict[str, Any]],
        wanted: tuple[tuple[str, ...], ...],
        credits: tuple[int, ...],
    ) -> None:
        self.kinds = kinds
        for node, (interests, credit) in enumerate(zip(wanted, credits, strict=True)):
            seat, request = SEATS[node], self.request()
            self.ask(ask.Subscribe(NODES[node], request, 1, interests, credit=credit, **seat))
        for kind in self.kinds:  # a header is looked at closely when it comes for the first time
            for subject in SUBJECTS:
                self.both(lambda b, s=subject, k=kind: b.publish_many([b"first"], s, **k))


class AskingMachine(RunsMachine):
    """The same where publishers ask for receipts."""

    kinds = ASKING


AskingMachine.TestCase.settings = settings(stateful_step_count=30)
TestAsking = AskingMachine.TestCase
RunsMachine.TestCase.settings = settings(stateful_step_count=30)
TestRuns = RunsMachine.TestCase
PassingMachine.TestCase.settings = settings(stateful_step_count=30)
TestPassing = PassingMachine.TestCase
