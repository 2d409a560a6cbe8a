"""The ladder of one topic, lived through any history, beside a model of it in plain dictionaries.

Messages of which one receiver takes one copy (push, and durable with one receiver) go out to named,
grouped and passing consumers, who report well, badly, late, twice, or not at all; connections and
the worker itself end at any moment. All consumers want everything, so that the model knows which
messages go out in every turn; which of those with credit gets which one is the broker's choice.

The promises, each with its line in the model:
    a status only climbs while it is held, and only the holder may report     Ladder.report
    what is late or repeated changes nothing and is no error                  Ladder.late
    a deadline passes at its millisecond, not before                          Ladder.pass_until
    what comes back waits at its place or behind its equals                   Ladder.wait_again
    attempts are counted, bound by max_attempts and max_deliveries            Ladder.fail, going
    a restart puts back what was out, with its attempts                       Ladder.restart
    a receipt is resolved once, with the right verdict                        Ladder.verdicts
"""

import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from asterism import commands as ask
from asterism.effects import Deliver
from asterism.errors import PeerError
from asterism.message import Status
from asterism.settings import BackoffMs
from asterism.storage.keys import TopicKeys
from tests.support.core import START_MS, CoreBroker
from tests.support.delivered import deliveries_of
from tests.support.lags import check_lags

WAITING, SENT, RECEIVED = Status.WAITING, Status.SENT, Status.RECEIVED
PROCESSED, FAILED = Status.PROCESSED, Status.FAILED
NOWHERE = 2**40  # a sequence that no message has
TTL_MS = 1_000_000  # past any history
GRAVES = "graves"
ANYBODY = "anybody"


@dataclass(eq=False)
class Desk:
    """A receiver, for as long as it lives; ``seats`` are its endpoints with their credit."""

    name: str
    durable: bool
    timeouts: tuple[int | None, int | None]
    seats: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class Job:
    """A message and its one delivery."""

    sequence: int
    payload: bytes
    push: bool
    expect: Status
    number: int | None  # of its receipt
    rank: int
    status: Status = WAITING
    attempts: int = 0
    spent: int = 0  # of them, those before it was renewed last
    desk: Desk | None = None  # who has it, or had it last
    seat: int = -1
    started_ms: int = 0
    own_deadline_ms: int | None = None  # asked for by its holder
    step: tuple[int, int] = (0, 0)  # orders what began at the same time
    sent: int = 0
    due_ms: int | None = None  # pauses until then
    reason: str = ""

    @property
    def out(self) -> bool:
        return self.status in (SENT, RECEIVED)

    @property
    def tries(self) -> int:
        return self.attempts - self.spent

    def __repr__(self) -> str:
        held = f" by {self.desk.name}" if self.desk is not None else ""
        return f"<{self.sequence} {self.status.name} x{self.attempts}{held}>"


# Where consumers sit: (fields of their subscription). Two share a crew.
SLOTS: list[dict[str, Any]] = [
    {"name": "anna", "sent_timeout_ms": 15, "received_timeout_ms": 25},
    {"group": "crew"},
    {"group": "crew"},
    {"group": "band", "durable": False},
    {},
]


class Ladder:
    """What should be, by the rules of the ladder alone."""

    def __init__(self, chosen: dict[str, Any]) -> None:
        self.settings = chosen
        self.now_ms = START_MS
        self.jobs: dict[int, Job] = {}
        self.parked: list[Job] = []
        self.buried = 0
        self.verdicts: dict[int, tuple[str, dict[str, str]]] = {}
        self.desks: dict[str, Desk] = {}
        self.ticket = 0

    def next(self) -> int:
        self.ticket += 1
        return self.ticket

    # --- looking ------------------------------------------------------------------------------

    def desk_at(self, slot: int) -> Desk | None:
        return next((desk for desk in self.desks.values() if slot in desk.seats), None)

    def held(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.status is not FAILED]

    def out(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.out]

    def deadline_ms(self, job: Job) -> int:
        assert job.desk is not None
        if job.own_deadline_ms is not None:
            return job.own_deadline_ms
        own = job.desk.timeouts[job.status is RECEIVED]
        name = "received_timeout_ms" if job.status is RECEIVED else "sent_timeout_ms"
        return job.started_ms + (self.settings[name] if own is None else own)

    def going(self) -> list[Job]:
        """What goes out now, best first: as many as there is credit and room for.

        What has had all its deliveries (the last was lost in a restart, or the bound was lowered)
        fails when its turn comes.
        """
        most = self.settings["max_deliveries"]
        credit = sum(sum(desk.seats.values()) for desk in self.desks.values())
        limit, out = self.settings["concurrency"], len(self.out())
        chosen: list[Job] = []
        waiting = [job for job in self.held() if job.status is WAITING and job.due_ms is None]
        for job in sorted(waiting, key=lambda job: job.rank):
            if credit == 0 or (limit is not None and out >= limit):
                break
            if most is not None and job.tries >= most:
                self.fail_for_good(job, f"undelivered after {job.tries} attempts")
                continue
            credit -= 1
            out += job.expect is not SENT
            chosen.append(job)
        return chosen

    # --- things that happen -------------------------------------------------------------------

    def send(self, job: Job, slot: int, page: int) -> None:
        desk = self.desk_at(slot)
        assert desk is not None
        desk.seats[slot] -= 1
        job.attempts += 1
        job.desk, job.seat, job.status = desk, slot, SENT
        job.started_ms, job.own_deadline_ms = self.now_ms, None
        job.sent = self.next()
        job.step = (page, job.sent)
        if job.expect is SENT:
            self.end(job, "ok", SENT)

    def release(self, job: Job) -> None:
        if job.out and job.desk is not None and job.seat in job.desk.seats:
            job.desk.seats[job.seat] += 1

    def end(self, job: Job, verdict: str, status: Status | None = None) -> None:
        del self.jobs[job.sequence]
        self.resolve(job, verdict, status)

    def resolve(self, job: Job, verdict: str, status: Status | None) -> None:
        if job.number is not None:
            # A holder that is gone may be any of those who could have had it next.
            known = job.desk is not None and job.desk in self.desks.values()
            name = job.desk.name if known and job.desk is not None else ANYBODY
            statuses = {} if status is None else {name: status.name.lower()}
            self.verdicts[job.number] = (verdict, statuses)
            job.number = None

    def wait_again(self, job: Job) -> None:
        job.status, job.due_ms = WAITING, None
        if self.settings["requeue"] == "back":
            job.rank = self.next()

    def unreachable(self, job: Job) -> None:
        self.release(job)
        most = self.settings["max_deliveries"]
        if most is not None and job.tries >= most:
            self.fail_for_good(job, f"undelivered after {job.tries} attempts")
        else:
            self.wait_again(job)

    def fail(self, job: Job, reason: str) -> None:
        self.release(job)
        most = self.settings["max_deliveries"] or job.tries + 1
        backoff = self.settings["retry_backoff"]
        if job.tries >= min(self.settings["max_attempts"], most):
            self.fail_for_good(job, reason)
        elif backoff is None:
            self.wait_again(job)
        else:
            job.status = WAITING
            job.due_ms = self.now_ms + backoff.pause_ms(job.tries)

    def fail_for_good(self, job: Job, reason: str) -> None:
        if job.push or self.settings["dead_letter"]:
            self.buried += not job.push
            self.end(job, "failed", FAILED)
            return
        self.resolve(job, "failed", FAILED)
        job.status, job.reason = FAILED, reason
        self.parked.append(job)

    def report(self, desk: Desk, job: Job | None, status: Status, about: int | None) -> str | None:
        """The code that a report is refused with, or ``None``."""
        if job is None or not job.out or job.desk is not desk:
            return self.late(desk, job, status)
        if about not in (None, job.attempts) and status is not PROCESSED:
            return None  # it is about an attempt that is over
        if status is FAILED:
            self.fail(job, "no")
        elif status >= job.expect:
            self.release(job)
            self.end(job, "ok", status)
        elif job.status is SENT:
            job.status, job.started_ms, job.own_deadline_ms = RECEIVED, self.now_ms, None
            job.step = (self.next(), 0)
        return None

    def late(self, desk: Desk, job: Job | None, status: Status) -> str | None:
        if job is None or job.status is FAILED:
            return None
        last = job.desk
        if job.out or last is None or (last in self.desks.values() and last is not desk):
            return "not_yours"
        if status is PROCESSED:  # nobody holds it, and it was done after all
            job.desk = desk
            self.end(job, "ok", status)
        return None

    def extend(self, desk: Desk, job: Job | None, timeout_ms: int) -> str | None:
        if job is None or not job.out or job.desk is not desk:
            return self.late(desk, job, RECEIVED)
        if timeout_ms == 0:
            self.unreachable(job)
        else:
            job.own_deadline_ms = self.now_ms + timeout_ms
            job.step = (self.next(), 0)
        return None

    def leave(self, slot: int) -> None:
        desk = self.desk_at(slot)
        if desk is None:
            return
        del desk.seats[slot]
        for job in sorted(self.out(), key=lambda job: job.sent):
            if job.desk is desk and job.seat == slot:
                self.unreachable(job)
        if not desk.seats and not desk.durable:
            del self.desks[desk.name]

    def renew(self, job: Job) -> None:
        self.parked.remove(job)
        job.status, job.spent, job.desk = WAITING, job.attempts, None
        job.rank = self.next()

    def abandon(self, job: Job) -> None:
        if job.status is FAILED:
            self.parked.remove(job)
        self.release(job)
        self.end(job, "dropped")

    def restart(self) -> None:
        """What was out waits where it was; push messages and passing receivers are gone."""
        for job in list(self.jobs.values()):
            if job.push:
                del self.jobs[job.sequence]
            elif job.out:
                job.status = WAITING
        self.desks = {name: desk for name, desk in self.desks.items() if desk.durable}
        for desk in self.desks.values():
            desk.seats.clear()

    # --- time ---------------------------------------------------------------------------------

    def next_event_ms(self) -> int | None:
        times = [self.deadline_ms(job) for job in self.out()]
        times += [job.due_ms for job in self.jobs.values() if job.due_ms is not None]
        return min(times, default=None)

    def pass_until(self, now_ms: int) -> None:
        """Does what is due at this moment: deadlines first, in order, then pauses."""
        self.now_ms = now_ms
        late = [job for job in self.out() if self.deadline_ms(job) <= now_ms]
        for job in sorted(late, key=lambda job: (self.deadline_ms(job), job.step)):
            self.unreachable(job)
        rested = [job for job in self.held() if job.due_ms is not None and job.due_ms <= now_ms]
        # A push message pauses in memory, in the order it came there; a durable one by its row.
        for job in sorted(rested, key=_order_of_pauses):
            self.wait_again(job)


def _order_of_pauses(job: Job) -> tuple[bool, int, int]:
    assert job.due_ms is not None
    return not job.push, job.due_ms, job.sequence


def node_of(slot: int) -> bytes:
    return b"consumer-%d" % slot


slots = st.integers(0, len(SLOTS) - 1)
picks = st.integers(0, 20)
expectations = st.sampled_from([PROCESSED, PROCESSED, RECEIVED, SENT])
reports = st.sampled_from([RECEIVED, PROCESSED, FAILED, FAILED])
LONGER = settings(max_examples=2 * settings().max_examples)
stales = st.sampled_from([None, 0, 1])
tempers = {
    "max_attempts": st.integers(1, 3),
    "max_deliveries": st.sampled_from([None, None, 1, 2, 4]),
    "retry_backoff": st.sampled_from([None, BackoffMs(10, 20)]),
    "requeue": st.sampled_from(["back", "front"]),
    "sent_timeout_ms": st.sampled_from([10, 20]),
    "received_timeout_ms": st.sampled_from([10, 30]),
    "concurrency": st.sampled_from([None, None, 1, 2]),
}


class LadderMachine(stateful.RuleBasedStateMachine):
    """The world around one topic, and the auditor of what comes out of it."""

    def __init__(self) -> None:
        super().__init__()
        self.broker: CoreBroker
        self.model: Ladder
        self.sequences: list[int] = [NOWHERE]

    @initialize(
        chosen=st.fixed_dictionaries(tempers),
        dead_letter=st.sampled_from([None, None, GRAVES]),
        seated=st.dictionaries(slots, st.integers(0, 3), max_size=3),
    )
    def begin(
        self, chosen: dict[str, Any], dead_letter: str | None, seated: dict[int, int]
    ) -> None:
        self.model = Ladder({**chosen, "dead_letter": dead_letter})
        self.broker = CoreBroker(**self.model.settings, default_ttl_ms=TTL_MS)
        self.broker.ask(ask.CreateTopic(b"admin", self.broker.request()))
        for slot, credit in seated.items():
            self.subscribe(slot, credit)

    # --- the auditor --------------------------------------------------------------------------

    def see(self) -> None:
        """What went out in this turn is what the model says, to those who have credit for it."""
        expected = self.model.going()
        places: dict[int, int] = {}
        for effect in self.broker.effects:
            if isinstance(effect, Deliver):
                places |= self.see_deliver(effect)
        assert sorted(places) == sorted(job.sequence for job in expected), (
            f"sent {sorted(places)}, should have sent {expected}"
        )
        # What goes to one endpoint in one turn comes back together, push and durable apart.
        pages: dict[tuple[int, bool], int] = {}
        for job in expected:
            slot = places[job.sequence]
            page = pages.setdefault((slot, job.push), self.model.next())
            self.model.send(job, slot, page)
        self.broker.inbox.clear()

    def see_deliver(self, effect: Deliver) -> dict[int, int]:
        """Where each message of an effect went, after a look at whether it may."""
        slot = next(slot for slot in range(len(SLOTS)) if node_of(slot) == effect.node)
        desk = self.model.desk_at(slot)
        assert desk is not None, f"sent to {effect.node!r}, which is gone"
        assert effect.receiver == desk.name
        ranks = []
        count = len(effect.deliveries)
        assert count <= desk.seats[slot], f"{effect.node!r} was sent {count} without the credit"
        for delivered in deliveries_of(effect):
            job = self.model.jobs.get(delivered.sequence)
            assert job is not None, f"sent {delivered.sequence}, which is over"
            assert job.status is WAITING, f"sent {job}, which is held or parked"
            assert (delivered.attempt, delivered.payload) == (job.attempts + 1, job.payload)
            ranks.append(job.rank)
        assert ranks == sorted(ranks), f"{effect.node!r} was sent messages out of order"
        return {delivered.sequence: slot for delivered in deliveries_of(effect)}

    def pick(self, index: int) -> tuple[int, Job | None]:
        sequence = self.sequences[-1 - index % len(self.sequences)]
        return sequence, self.model.jobs.get(sequence)

    def refusal_of(self, command: Any) -> str | None:
        """Asks, and returns the code of the refusal of all, or of the one sequence in it."""
        try:
            refused = self.broker.ask(command).get("refused", ())
        except PeerError as error:
            return error.code
        return refused[0][1] if refused else None

    # --- publishers ---------------------------------------------------------------------------

    @rule(push=st.booleans(), expect=expectations, receipt=st.booleans(), count=st.integers(1, 3))
    def publish(self, push: bool, expect: Status, receipt: bool, count: int) -> None:
        mode = "push" if push else "durable"
        payloads = [b"%d" % (len(self.sequences) + index) for index in range(count)]
        results = self.broker.publish_many(
            payloads, mode=mode, expect=expect.name.lower(), receipt=receipt
        )
        first = self.broker.last_number() - count + 1
        online = any(desk.seats for desk in self.model.desks.values())
        for index, (payload, result) in enumerate(zip(payloads, results, strict=True)):
            if push and not online:
                assert not isinstance(result, int) and result.code == "no_receiver"
                continue
            assert isinstance(result, int) and result > self.sequences[-1] % NOWHERE
            number = first + index if receipt else None
            rank = self.model.next()
            self.model.jobs[result] = Job(result, payload, push, expect, number, rank)
            self.sequences.append(result)
        self.see()

    # --- consumers ----------------------------------------------------------------------------

    @rule(slot=slots, credit=st.integers(0, 3))
    def subscribe(self, slot: int, credit: int) -> None:
        fields = SLOTS[slot]
        if self.model.desk_at(slot) is not None:
            with pytest.raises(PeerError, match="wrong_state"):
                self.broker.subscribe(node_of(slot), credit=credit, **fields)
            return
        name = self.broker.subscribe(node_of(slot), credit=credit, **fields)
        wanted = fields.get("group") or fields.get("name")
        assert wanted in (None, name)
        durable = wanted is not None and fields.get("durable") is not False
        timeouts = (fields.get("sent_timeout_ms"), fields.get("received_timeout_ms"))
        desk = self.model.desks.setdefault(name, Desk(name, durable, timeouts))
        desk.seats[slot] = credit
        self.see()

    @precondition(lambda self: self.model.desks and self.model.jobs)
    @rule(slot=slots, politely=st.booleans())
    def leave(self, slot: int, politely: bool) -> None:
        if politely and self.model.desk_at(slot) is not None:
            self.broker.ask(ask.Unsubscribe(node_of(slot), self.broker.request(), 1))
        else:
            self.broker.detach(node_of(slot))
        self.model.leave(slot)
        self.see()

    @precondition(lambda self: self.model.desks)
    @rule(slot=slots, credit=st.integers(1, 3))
    def grant(self, slot: int, credit: int) -> None:
        self.broker.grant(credit, node_of(slot))
        desk = self.model.desk_at(slot)
        if desk is not None:
            desk.seats[slot] += credit
        self.see()

    def report(self, slot: int, sequence: int, status: Status, about: int | None) -> None:
        desk, job = self.model.desk_at(slot), self.model.jobs.get(sequence)
        command = ask.Report(
            node_of(slot), self.broker.request(), 1, status, (sequence,),
            "no", attempts=None if about is None else (about,),
        )  # fmt: skip
        code = self.refusal_of(command)
        if desk is None:
            assert code == "no_such_receiver"
        elif sequence == NOWHERE:
            assert code == "no_such_message"
        else:
            was = str(job)
            expected = self.model.report(desk, job, status, about)
            assert code == expected, f"{status.name} on {was}: {code}, not {expected}"
        self.see()

    @precondition(lambda self: self.model.out())
    @rule(
        told=st.lists(st.tuples(picks, st.integers(0, 1), reports, stales), min_size=1, max_size=4)
    )
    def holders_report(self, told: list[tuple[int, int, Status, int | None]]) -> None:
        for index, member, status, stale in told:
            if out := self.model.out():
                self.holder_reports(out[index % len(out)], member, status, stale)

    @precondition(lambda self: any(job.status is RECEIVED for job in self.model.out()))
    @rule(index=picks, ms=st.sampled_from([1, 4, 9]))
    def holder_repeats_itself(self, index: int, ms: int) -> None:
        """A step that is told again later moves no deadline."""
        received = [job for job in self.model.out() if job.status is RECEIVED]
        job = received[index % len(received)]
        self.time_passes(ms)
        if job.status is RECEIVED:
            self.report(job.seat, job.sequence, RECEIVED, None)

    def holder_reports(self, job: Job, member: int, status: Status, stale: int | None) -> None:
        """Whoever sits at the holder's desk may report, about this attempt or an earlier one."""
        assert job.desk is not None
        seats = list(job.desk.seats)
        about = None if stale is None else job.attempts - stale
        self.report(seats[member % len(seats)], job.sequence, status, about)

    @precondition(lambda self: self.model.desks and self.model.jobs)
    @rule(slot=slots, index=picks, status=reports)
    def somebody_reports(self, slot: int, index: int, status: Status) -> None:
        self.report(slot, self.pick(index)[0], status, None)

    @precondition(lambda self: self.model.desks and self.model.jobs)
    @rule(slot=slots, index=picks, timeout_ms=st.sampled_from([0, 5, 10, 40]), mine=st.booleans())
    def extend(self, slot: int, index: int, timeout_ms: int, mine: bool) -> None:
        sequence, job = self.pick(index)
        if mine and (out := self.model.out()):
            job = out[index % len(out)]
            sequence, slot = job.sequence, job.seat
        desk = self.model.desk_at(slot)
        code = self.refusal_of(
            ask.Extend(node_of(slot), self.broker.request(), 1, (sequence,), timeout_ms)
        )
        if desk is None:
            assert code == "no_such_receiver"
        elif sequence == NOWHERE:
            assert code == "no_such_message"
        else:
            assert code == self.model.extend(desk, job, timeout_ms)
        self.see()

    # --- the rest of the world ----------------------------------------------------------------

    @precondition(lambda self: self.model.jobs)
    @rule(ms=st.sampled_from([0, 1, 4, 5, 9, 10, 11, 20, 60]))
    def time_passes(self, ms: int) -> None:
        until = self.model.now_ms + ms
        while (due_ms := self.model.next_event_ms()) is not None and due_ms <= until:
            due_ms = max(due_ms, self.model.now_ms)
            if due_ms > self.broker.now_ms:
                self.broker.effects = []
                self.broker.advance(due_ms - self.broker.now_ms - 1)
                assert not self.delivered(), "something went out before its time"
            self.broker.effects = []
            self.broker.advance(due_ms - self.broker.now_ms)
            self.model.pass_until(due_ms)
            self.see()
        self.broker.effects = []
        self.broker.advance(until - self.broker.now_ms)
        self.model.now_ms = until
        self.see()

    def delivered(self) -> bool:
        return any(isinstance(effect, Deliver) for effect in self.broker.effects)

    @precondition(lambda self: self.model.jobs)
    @rule()
    def restart(self) -> None:
        self.broker.restart()
        self.model.restart()
        self.see()

    @precondition(lambda self: self.model.jobs)
    @rule(changes=st.fixed_dictionaries({}, optional=tempers))
    def configure(self, changes: dict[str, Any]) -> None:
        self.broker.configure(**changes)
        self.model.settings.update(changes)
        self.see()
        self.time_passes(0)

    @precondition(lambda self: self.model.jobs)
    @rule(index=picks)
    def renew(self, index: int) -> None:
        sequence, job = self.pick(index)
        if self.model.parked and index % 2:
            job = self.model.parked[index % len(self.model.parked)]
            sequence = job.sequence
        code = self.refusal_of(ask.Renew(b"admin", self.broker.request(), sequence))
        if job is None or job.push:
            assert code == "no_such_message"
        elif job.status is not FAILED:
            assert code == "wrong_state"
        else:
            assert code is None
            self.model.renew(job)
        self.see()

    @precondition(lambda self: self.model.jobs)
    @rule(index=picks)
    def abandon(self, index: int) -> None:
        sequence, job = self.pick(index)
        code = self.refusal_of(ask.Abandon(b"admin", self.broker.request(), sequence))
        assert code == ("no_such_message" if job is None else None)
        if job is not None:
            self.model.abandon(job)
        self.see()

    @precondition(lambda self: self.model.parked)
    @rule(renewed=st.booleans())
    def end_all_parked(self, renewed: bool) -> None:
        command = ask.RenewAll if renewed else ask.AbandonAll
        self.broker.ask(command(b"admin", self.broker.request()))
        for job in list(self.model.parked):
            (self.model.renew if renewed else self.model.abandon)(job)
        self.see()

    # --- what is always true ------------------------------------------------------------------

    @invariant()
    def all_agrees(self) -> None:
        check_lags(self.broker.actor)
        self.counts_agree()
        self.parked_agree()
        self.credit_agrees()
        self.receipts_agree()

    def counts_agree(self) -> None:
        told = self.broker.describe()
        held = self.model.held()
        statuses = [job.status for job in held]
        assert {name: told[name] for name in ("held", "sent", "received", "parked")} == {
            "held": len(held),
            "sent": statuses.count(SENT),
            "received": statuses.count(RECEIVED),
            "parked": len(self.model.parked),
        }

    def parked_agree(self) -> None:
        listed = self.broker.ask(ask.ListParked(b"admin", self.broker.request()))["parked"]
        told = [(row["sequence"], row["attempts"], row["reason"]) for row in listed]
        assert told == [(job.sequence, job.attempts, job.reason) for job in self.model.parked]

    def credit_agrees(self) -> None:
        listed = self.broker.ask(ask.ListReceivers(b"admin", self.broker.request()))["receivers"]
        told = {row["name"]: (row["credit"], row["in_flight"]) for row in listed}
        out = self.model.out()
        assert told == {
            desk.name: (sum(desk.seats.values()), sum(job.desk is desk for job in out))
            for desk in self.model.desks.values()
        }

    def receipts_agree(self) -> None:
        told, expected = self.broker.receipts, self.model.verdicts
        assert told.keys() == expected.keys()
        for number, (verdict, statuses) in expected.items():
            assert told[number].verdict == verdict
            if ANYBODY in statuses:
                assert list(told[number].statuses.values()) == list(statuses.values())
            else:
                assert told[number].statuses == statuses

    # --- liveness -----------------------------------------------------------------------------

    def teardown(self) -> None:
        """Faults stop, there is credit, all is processed: then everything owed has arrived."""
        if sys.exc_info()[0] is not None:
            return  # a rule failed, and that is the news
        self.configure({"max_attempts": 9, "max_deliveries": None, "retry_backoff": None})
        self.end_all_parked(renewed=True)
        if not any(desk.seats for desk in self.model.desks.values()):
            self.subscribe(0, 1)
        self.time_passes(60)
        slot = next(slot for desk in self.model.desks.values() for slot in desk.seats)
        while self.model.jobs:
            before = list(self.model.jobs.values())
            self.grant(slot, 3)
            out = self.model.out()
            assert out or len(self.model.jobs) < len(before), f"{before} wait for ever"
            for job in out:
                self.report(job.seat, job.sequence, PROCESSED, None)
        graves = self.broker.shard.topics.get(GRAVES)
        assert (0 if graves is None else graves.held) == self.model.buried
        self.broker.advance(TTL_MS)
        self.all_agrees()
        self.nothing_is_left()

    def nothing_is_left(self) -> None:
        keys = TopicKeys(self.broker.actor.keys.number)
        for kind in "mlwdxpgtuvb":
            left = list(self.broker.rows.scan(*keys.range_of(kind)))
            assert not left, f"rows of kind {kind} outlive their messages: {left}"


def test_any_history_climbs_the_ladder_by_its_rules() -> None:
    stateful.run_state_machine_as_test(LadderMachine, settings=LONGER)


def test_any_history_climbs_the_ladder_with_small_windows(small_limits: None) -> None:
    stateful.run_state_machine_as_test(LadderMachine, settings=LONGER)
