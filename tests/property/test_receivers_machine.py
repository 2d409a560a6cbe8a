"""Many receivers, their credit and what each is owed, beside a model of plain sets.

Endpoints come, go, change their interests, grant credit and finish out of order; receivers are
named, shared, or pass with their connection; they are moved, deleted, and the worker restarts.
Which of several receivers gets a message first is the broker's choice; the rest is not:

    no endpoint is ever sent more than it gave credit for                     Seat.spend
    a receiver gets what it is owed once, unless its delivery came back       Room.send
    never more than max_receivers have it, had it, or have it parked          Letter.taken
    nobody with credit waits for what may go; nothing is lost                 Room.overdue
    first attempts come in the order of acceptance                            see_order
    a floor neither loses nor repeats, through restarts and seeks             Room.restart, seek

Where the promise leaves a choice (what an endpoint that widens its interests gets of what was
there before, what it still gets after narrowing them) the pair is a ``maybe``: it may go, once.
"""

import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from asterism import commands as ask
from asterism.effects import Deliver, EndpointGone
from asterism.errors import PeerError
from asterism.message import Status
from asterism.router.interest import matches
from asterism.settings import BackoffMs
from asterism.storage.keys import TopicKeys
from tests.support.core import START_MS, CoreBroker
from tests.support.delivered import deliveries_of
from tests.support.lags import check_lags

FINE: set[str | None] = {None}
NOT_YOURS: set[str | None] = {"not_yours"}
TTL_MS = 1_000_000
SENT_TIMEOUT_MS = 20

SLOTS: list[dict[str, Any]] = [
    {"name": "anna"},
    {"group": "crew"},
    {"group": "crew"},
    {"group": "band", "durable": False},
    {"group": "band", "durable": False},
    {},
]


@dataclass
class Seat:
    """An endpoint: its credit, what it wants, and what is left of a pull."""

    credit: int
    interests: tuple[str, ...]
    pulling: int = 0

    def spend(self) -> bool:
        """Takes a unit for one delivery; does finishing it give the unit back?"""
        if self.pulling:
            self.pulling -= 1
            return False
        assert self.credit > 0, "an endpoint was sent something without credit"
        self.credit -= 1
        return True


@dataclass(eq=False)
class Desk:
    """A receiver for as long as it lives."""

    name: str
    durable: bool
    seats: dict[int, Seat] = field(default_factory=dict)
    # What its endpoints want; one that leaves a durable receiver takes nothing away.
    wanted: tuple[str, ...] = ()

    def wants(self, subject: str) -> bool:
        return any(matches(interest, subject) for interest in self.wanted)

    @property
    def credit(self) -> int:
        return sum(seat.credit + seat.pulling for seat in self.seats.values())


@dataclass(eq=False)
class Pair:
    """One delivery: owed, maybe, out, paused, parked, or done."""

    state: str = "owed"
    attempts: int = 0
    spent: int = 0  # of them, those before it was renewed last
    fresh: bool = True  # its first attempt is still to come, in the order of acceptance
    counted: bool = True  # the attempts are known: not so after a seek
    desk: Desk | None = None  # who has it or had it last
    slot: int = -1
    returns_credit: bool = True
    deadline_ms: int = 0
    due_ms: int = 0

    @property
    def waits(self) -> bool:
        return self.state in ("owed", "maybe")

    @property
    def tries(self) -> int:
        return self.attempts - self.spent


@dataclass(eq=False)
class Letter:
    """A message: with a pair for each receiver, or a single one if one receiver takes it."""

    sequence: int
    kind: str
    subject: str
    payload: bytes
    expect: Status
    most: int | None
    number: int | None
    pairs: dict[Desk, Pair] = field(default_factory=dict)
    single: Pair | None = None
    done_by: set[Desk] = field(default_factory=set)
    went_wrong: bool = False
    given_up: bool = False  # a parked delivery of it was abandoned
    fuzzy: bool = False  # its verdict depends on a choice of the broker

    def all_pairs(self) -> list[Pair]:
        return list(self.pairs.values()) if self.single is None else [self.single]

    def has_room(self, desk: Desk, paused: bool = False) -> bool:
        """May this one have it? Whoever had it and was moved back has its place still."""
        states = ("out", "parked", "paused") if paused else ("out", "parked")
        taken = self.done_by | {of for of, pair in self.pairs.items() if pair.state in states}
        return self.most is None or desk in taken or len(taken) < self.most

    def __repr__(self) -> str:
        states = {desk.name: pair.state for desk, pair in self.pairs.items()}
        shown = states or (self.single.state if self.single else "")
        return f"<{self.kind} {self.sequence} {self.subject} of {self.most}: {shown}>"


class Room:
    """What should be: every receiver, every message, and how they stand to each other."""

    def __init__(self, chosen: dict[str, Any]) -> None:
        self.settings = chosen
        self.now_ms = START_MS
        self.desks: dict[str, Desk] = {}
        self.letters: dict[int, Letter] = {}
        self.verdicts: dict[int, str] = {}
        self.unsure: set[int] = set()  # numbers of receipts whose verdict is the broker's choice

    # --- looking ------------------------------------------------------------------------------

    def desk_at(self, slot: int) -> Desk | None:
        return next((desk for desk in self.desks.values() if slot in desk.seats), None)

    def pair_of(self, letter: Letter, desk: Desk) -> Pair | None:
        return letter.single if letter.single is not None else letter.pairs.get(desk)

    def out(self) -> list[tuple[Letter, Pair]]:
        return [
            (letter, pair)
            for letter in self.letters.values()
            for pair in letter.all_pairs()
            if pair.state == "out"
        ]

    def parked(self) -> list[tuple[Letter, Pair]]:
        return [
            (letter, pair)
            for letter in self.letters.values()
            for pair in letter.all_pairs()
            if pair.state == "parked"
        ]

    def doomed(self) -> list[tuple[Letter, Pair]]:
        """What a restart put back after its last delivery."""
        most = self.settings["max_deliveries"]
        return [
            (letter, pair)
            for letter in self.letters.values()
            for pair in letter.all_pairs()
            if pair.waits and most is not None and pair.tries >= most
        ]

    def is_owed(self, letter: Letter, desk: Desk, certainly: bool = True) -> bool:
        """Must this receiver be sent it, or, with ``certainly`` false, may it be?"""
        pair = self.pair_of(letter, desk)
        if pair is None or not pair.waits:
            return False
        if letter.single is not None:
            return desk.wants(letter.subject)
        return letter.has_room(desk, certainly) and (pair.state == "owed" or not certainly)

    def lag(self, desk: Desk) -> tuple[int, int]:
        """How many messages a receiver has still to do, and how many more it may have."""
        surely = maybe = 0
        for letter in self.letters.values():
            pair = self.pair_of(letter, desk)
            if pair is None or (pair.state == "out" and pair.desk is not desk):
                continue
            if letter.single is not None and pair.state != "out" and not desk.wants(letter.subject):
                continue
            surely += pair.state in ("owed", "out", "paused")
            maybe += pair.state == "maybe"
        return surely, maybe

    def overdue(self) -> list[tuple[str, Letter]]:
        """Who waits with credit for what could go."""
        return [
            (desk.name, letter)
            for desk in self.desks.values()
            if desk.credit
            for letter in self.letters.values()
            if self.is_owed(letter, desk)
        ]

    # --- messages -----------------------------------------------------------------------------

    def publish(self, letter: Letter) -> None:
        self.letters[letter.sequence] = letter
        if letter.kind in ("pool", "push"):
            letter.single = Pair()
            return
        for desk in self.desks.values():
            if letter.kind == "log" or desk.seats:
                self.owe(letter, desk)
        self.end_if_over(letter)

    def owe(self, letter: Letter, desk: Desk, fresh: bool = True) -> None:
        if desk.wants(letter.subject):
            letter.pairs[desk] = Pair(fresh=fresh)

    def may_push(self, subject: str) -> bool:
        return any(desk.seats and desk.wants(subject) for desk in self.desks.values())

    def send(self, letter: Letter, desk: Desk, slot: int, attempt: int) -> None:
        pair = self.pair_of(letter, desk)
        told = f"{desk.name} was sent {letter}"
        assert pair is not None, f"{told}, which is not for it"
        assert pair.waits, f"{told}, which is {pair.state}"
        assert self.is_owed(letter, desk, certainly=False), f"{told}, which may not go to it"
        if pair.counted:
            assert attempt == pair.attempts + 1, f"{told} as attempt {attempt}"
        pair.attempts, pair.counted, pair.fresh = attempt, True, False
        pair.state, pair.desk, pair.slot = "out", desk, slot
        pair.returns_credit = desk.seats[slot].spend()
        pair.deadline_ms = self.now_ms + SENT_TIMEOUT_MS
        if letter.expect is Status.SENT:
            self.done(letter, pair, desk)

    def release(self, pair: Pair) -> None:
        desk = pair.desk
        if pair.state == "out" and desk is not None and pair.returns_credit:
            seat = desk.seats.get(pair.slot)
            if seat is not None:
                seat.credit += 1

    def done(self, letter: Letter, pair: Pair, desk: Desk) -> None:
        if letter.expect is not Status.SENT:
            self.release(pair)
        pair.state = "done"
        if letter.single is not None:
            self.end(letter, "ok")
            return
        letter.done_by.add(desk)
        self.end_if_over(letter)

    def end_if_over(self, letter: Letter) -> None:
        final = all(pair.state == "done" for pair in letter.pairs.values())
        if letter.kind == "online" and final:
            self.end(letter, "failed" if letter.went_wrong else "ok")
        elif letter.most is not None and letter.kind == "log":
            if len(letter.done_by) >= letter.most:
                self.end(letter, "ok")
            elif any(pair.state == "parked" for pair in letter.pairs.values()):
                # It keeps its place, so that without it there are too few.
                self.resolve(letter, "failed")

    def end(self, letter: Letter, verdict: str) -> None:
        for pair in letter.all_pairs():
            self.release(pair)
            pair.state = "done"
        del self.letters[letter.sequence]
        self.resolve(letter, verdict)

    def resolve(self, letter: Letter, verdict: str) -> None:
        if letter.number is not None:
            self.verdicts[letter.number] = verdict
            if letter.fuzzy:
                self.unsure.add(letter.number)
            letter.number = None

    # --- deliveries that come back --------------------------------------------------------------

    def unreachable(self, letter: Letter, pair: Pair) -> None:
        self.release(pair)
        most = self.settings["max_deliveries"]
        assert pair.desk is not None
        if most is not None and pair.tries >= most:
            self.fail_for_good(letter, pair)
        elif letter.kind == "online" and not pair.desk.seats:
            self.lose_copy(letter, pair)
        else:
            pair.state = "owed"
            self.doubt(letter, pair)

    def doubt(self, letter: Letter, pair: Pair) -> None:
        """A receiver that wants it no longer may get again what it had, or not."""
        gone = pair.desk is None or self.desks.get(pair.desk.name) is not pair.desk
        if letter.single is None and pair.desk is not None:
            if gone:
                pair.state = "done"
            elif not pair.desk.wants(letter.subject):
                pair.state, letter.fuzzy = "maybe", True

    def lose_copy(self, letter: Letter, pair: Pair) -> None:
        letter.went_wrong = True
        pair.state = "done"
        self.end_if_over(letter)

    def failed(self, letter: Letter, pair: Pair) -> None:
        self.release(pair)
        most = self.settings["max_deliveries"] or pair.tries + 1
        backoff = self.settings["retry_backoff"]
        if pair.tries >= min(most, self.settings["max_attempts"]):
            self.fail_for_good(letter, pair)
        elif backoff is None:
            pair.state = "owed"
            self.doubt(letter, pair)
        else:
            pair.state = "paused"
            pair.due_ms = self.now_ms + backoff.pause_ms(pair.tries)

    def fail_for_good(self, letter: Letter, pair: Pair) -> None:
        if letter.kind == "online":
            self.lose_copy(letter, pair)
        elif letter.kind == "push":
            pair.state = "done"
            self.end(letter, "failed")
        else:
            pair.state = "parked"
            if pair.desk is not None and letter.most is not None:
                letter.done_by.discard(pair.desk)  # it had done it, and was moved back
            if letter.kind == "pool":
                self.resolve(letter, "failed")
            self.end_if_over(letter)

    def report(self, letter: Letter | None, desk: Desk, status: Status) -> set[str | None]:
        """The codes that a report may be answered with; ``None`` stands for no refusal."""
        if letter is None:
            return FINE
        pair = self.pair_of(letter, desk)
        if pair is None:
            # It has passed this one by, or came too late for it; or never asked for it.
            return FINE if desk.wants(letter.subject) else NOT_YOURS
        if pair.state == "out" and pair.desk is desk:
            if status is Status.PROCESSED:
                self.done(letter, pair, desk)
            else:
                self.failed(letter, pair)
            return FINE
        return self.late(letter, pair, desk, status)

    def late(self, letter: Letter, pair: Pair, desk: Desk, status: Status) -> set[str | None]:
        if pair.state in ("parked", "done"):
            return FINE if letter.single or desk.wants(letter.subject) else FINE | NOT_YOURS
        last = pair.desk
        if letter.single is not None:
            if pair.state == "out" or last is None:
                return NOT_YOURS
            if last in self.desks.values() and last is not desk:
                return NOT_YOURS
        elif pair.tries == 0:
            # Of what passes with its connection it is not written down what was never sent.
            return NOT_YOURS if desk.durable else FINE | NOT_YOURS
        if status is not Status.PROCESSED:
            return FINE
        if not letter.has_room(desk):
            return NOT_YOURS
        pair.state = "owed"  # done after all, though it had come back
        self.done(letter, pair, desk)
        return FINE

    # --- receivers ----------------------------------------------------------------------------

    def sit(self, name: str, durable: bool, grouped: bool, slot: int, seat: Seat) -> None:
        desk = self.desks.get(name)
        fresh = desk is None
        if desk is None:
            desk = self.desks[name] = Desk(name, durable)
        joins = durable and (grouped or bool(desk.seats))
        kept = desk.wanted if joins else ()
        desk.seats[slot] = seat
        self.look_again(desk, kept)
        if fresh:
            for letter in self.letters.values():
                if letter.kind == "log":
                    self.owe(letter, desk)

    def look_again(self, desk: Desk, kept: tuple[str, ...] = ()) -> None:
        """Its endpoints want other things than before."""
        wanted = {name for seat in desk.seats.values() for name in seat.interests}
        desk.wanted = tuple(wanted.union(kept))
        for letter in self.letters.values():
            pair = letter.pairs.get(desk)
            if pair is None and letter.kind == "log" and desk.wants(letter.subject):
                letter.pairs[desk] = Pair("maybe", fresh=False)
                letter.fuzzy = True
            elif pair is not None and pair.state == "owed" and not desk.wants(letter.subject):
                pair.state, letter.fuzzy = "maybe", True

    def leave(self, slot: int) -> None:
        desk = self.desk_at(slot)
        if desk is None:
            return
        del desk.seats[slot]
        for letter, pair in self.out():
            if pair.desk is desk and pair.slot == slot:
                self.unreachable(letter, pair)
        if not desk.seats:
            self.lose_copies(desk)
            if not desk.durable:
                self.forget(desk)
        elif not desk.durable:
            self.look_again(desk)

    def lose_copies(self, desk: Desk) -> None:
        for letter in list(self.letters.values()):
            pair = letter.pairs.get(desk)
            if letter.kind == "online" and pair is not None and pair.state != "done":
                self.lose_copy(letter, pair)

    def forget(self, desk: Desk) -> None:
        """A receiver ends with all it was owed; what it has done stays done, and parked what is."""
        del self.desks[desk.name]
        for letter in list(self.letters.values()):
            self.forget_pair(letter, desk)

    def forget_pair(self, letter: Letter, desk: Desk) -> None:
        if desk in letter.pairs and letter.pairs[desk].state != "parked":
            del letter.pairs[desk]

    def delete(self, desk: Desk) -> None:
        for slot in list(desk.seats):
            self.leave(slot)
        if self.desks.get(desk.name) is desk:
            self.forget(desk)

    def seek(self, desk: Desk, target: int) -> None:
        for letter in self.letters.values():
            pair = letter.pairs.get(desk)
            if letter.kind != "log" or (pair is not None and pair.state == "parked"):
                continue
            if pair is not None:
                self.release(pair)
                del letter.pairs[desk]
            if letter.sequence < target:
                continue
            self.owe(letter, desk, fresh=False)
            if desk in letter.pairs:
                letter.pairs[desk].counted = False

    def restart(self) -> None:
        for letter in list(self.letters.values()):
            if letter.kind in ("push", "online"):
                del self.letters[letter.sequence]
                continue
            for desk in list(letter.pairs):
                if not desk.durable:
                    self.forget_pair(letter, desk)
            for pair in letter.all_pairs():
                if pair.state == "out":
                    pair.state = "owed"
                    self.doubt(letter, pair)
        self.desks = {name: desk for name, desk in self.desks.items() if desk.durable}
        for desk in self.desks.values():
            desk.seats.clear()

    # --- parked ---------------------------------------------------------------------------------

    def renew(self, letter: Letter, pair: Pair) -> None:
        pair.state, pair.spent, pair.fresh = "owed", pair.attempts, False
        self.doubt(letter, pair)
        pair.desk = None

    def abandon_parked(self, letter: Letter, pair: Pair) -> None:
        pair.state, letter.given_up = "done", True
        if letter.single is not None:
            del self.letters[letter.sequence]

    # --- time ---------------------------------------------------------------------------------

    def next_event_ms(self) -> int | None:
        times = [
            pair.deadline_ms if pair.state == "out" else pair.due_ms
            for letter in self.letters.values()
            for pair in letter.all_pairs()
            if pair.state in ("out", "paused")
        ]
        return min(times, default=None)

    def pass_until(self, now_ms: int) -> None:
        self.now_ms = now_ms
        for letter, pair in self.out():
            if pair.deadline_ms <= now_ms:
                self.unreachable(letter, pair)
        for letter in list(self.letters.values()):
            for pair in letter.all_pairs():
                if pair.state == "paused" and pair.due_ms <= now_ms:
                    pair.state = "owed"
                    self.doubt(letter, pair)

    def expire(self) -> None:
        """The time of every message is over; a push message has none, and waits for somebody."""
        for letter in list(self.letters.values()):
            if letter.kind == "push":
                continue
            done = letter.most is None and letter.done_by
            parked = any(pair.state == "parked" for pair in letter.all_pairs())
            failed = parked or letter.given_up
            self.end(letter, "ok" if done else "failed" if failed else "expired")


# Its histories are the most varied.
LONGER = settings(max_examples=3 * settings().max_examples)


def node_of(slot: int) -> bytes:
    return b"consumer-%d" % slot


slots = st.integers(0, len(SLOTS) - 1)
picks = st.integers(0, 20)
subjects = st.sampled_from(["a/x", "a/y", "b/x"])
interests = st.sampled_from([("**",), ("**",), ("a/*",), ("*/x",), ("b/**", "a/y")])
kinds = st.sampled_from([("log", None), ("log", 2), ("log", 3), ("pool", 1), "online", "push"])
endings = st.sampled_from(["processed", "failed"])
sent_only = st.sampled_from([False, False, True])
tempers = {
    "max_attempts": st.integers(1, 2),
    "max_deliveries": st.sampled_from([None, None, 2]),
    "retry_backoff": st.sampled_from([None, BackoffMs(10, 20)]),
    "requeue": st.sampled_from(["back", "front"]),
}


class ReceiversMachine(stateful.RuleBasedStateMachine):
    """Consumers of every sort on one topic, and the auditor of what they are sent."""

    def __init__(self) -> None:
        super().__init__()
        self.broker: CoreBroker
        self.model: Room
        self.sequences: list[int] = []

    @initialize(
        chosen=st.fixed_dictionaries(tempers),
        seated=st.dictionaries(slots, st.tuples(st.integers(0, 3), interests), max_size=4),
    )
    def begin(self, chosen: dict[str, Any], seated: dict[int, Any]) -> None:
        self.model = Room(chosen)
        self.broker = CoreBroker(**chosen, default_ttl_ms=TTL_MS, sent_timeout_ms=SENT_TIMEOUT_MS)
        self.broker.ask(ask.CreateTopic(b"admin", self.broker.request()))
        for slot, (credit, wanted) in seated.items():
            self.subscribe(slot, credit, wanted)

    # --- the auditor --------------------------------------------------------------------------

    def see(self) -> None:
        self.see_turn()
        # Walks that stopped for the turn go on with the next.
        while (due_ms := self.broker.shard.next_due_ms()) is not None:
            if due_ms > self.broker.now_ms:
                break
            self.broker.shard.tick(self.broker.now_ms)
            self.broker.end_turn()
            self.see_turn()
        self.see_doomed()
        overdue = self.model.overdue()
        assert not overdue, f"these wait although there is credit: {overdue}"

    def see_doomed(self) -> None:
        """What has had all its deliveries is parked when its turn comes, and not sent again."""
        doomed = self.model.doomed()
        if doomed:
            listed = self.broker.ask(ask.ListParked(b"admin", self.request()))["parked"]
            parked = {(row["sequence"], row["receiver"]) for row in listed}
            sequences = {row["sequence"] for row in listed}
            for letter, pair in doomed:
                name = "" if pair.desk is None else pair.desk.name
                alone = letter.single is not None and letter.sequence in sequences
                if alone or (letter.sequence, name) in parked:
                    self.model.fail_for_good(letter, pair)

    def see_turn(self) -> None:
        sent: list[tuple[Desk, Letter]] = []
        for effect in self.broker.effects:
            if isinstance(effect, Deliver):
                sent += self.see_deliver(effect)
        self.broker.effects = []
        self.broker.inbox.clear()
        self.see_order(sent)

    def see_deliver(self, effect: Deliver) -> list[tuple[Desk, Letter]]:
        """Applies what an endpoint was sent; returns the first attempts among it."""
        slot = next(slot for slot in range(len(SLOTS)) if node_of(slot) == effect.node)
        desk = self.model.desk_at(slot)
        assert desk is not None, f"sent to {effect.node!r}, which is gone"
        assert effect.receiver == desk.name
        first: list[tuple[Desk, Letter]] = []
        for delivered in deliveries_of(effect):
            letter = self.model.letters.get(delivered.sequence)
            assert letter is not None, f"{desk.name} was sent {delivered.sequence}, which is over"
            assert delivered.payload == letter.payload
            pair = self.model.pair_of(letter, desk)
            if pair is not None and pair.fresh and letter.most in (None, 1):
                first.append((desk, letter))
            self.model.send(letter, desk, slot, delivered.attempt)
        ranks = [letter.sequence for _, letter in first]
        assert ranks == sorted(ranks), f"{effect.node!r} was sent messages out of order"
        return first

    def see_order(self, sent: list[tuple[Desk, Letter]]) -> None:
        """Nobody was sent a newer message while an older one that it may have still waits."""
        for desk, letter in sent:
            for older in self.model.letters.values():
                pair = self.model.pair_of(older, desk)
                if older.sequence < letter.sequence and older.most in (None, 1):
                    late = pair is not None and pair.fresh and self.model.is_owed(older, desk)
                    assert not late, f"{desk.name} was sent {letter} before {older}"

    def pick(self, index: int) -> tuple[int, Letter | None]:
        sequence = self.sequences[-1 - index % len(self.sequences)]
        return sequence, self.model.letters.get(sequence)

    def request(self) -> int:
        return self.broker.request()

    # --- publishers ---------------------------------------------------------------------------

    @rule(wished=st.lists(st.tuples(kinds, subjects, sent_only), min_size=1, max_size=4))
    def publish(self, wished: list[tuple[Any, str, bool]]) -> None:
        for wish in wished:
            self.publish_one(*wish)

    def publish_one(self, kind: Any, subject: str, sent: bool) -> None:
        kind, most = kind if isinstance(kind, tuple) else (kind, None)
        expect = Status.SENT if sent else Status.PROCESSED
        fields: dict[str, Any] = {"mode": "durable", "max_receivers": most}
        if kind in ("online", "push"):
            fields = {"mode": kind}
        payload = b"number %d" % len(self.sequences)
        allowed = self.model.may_push(subject) if kind == "push" else True
        try:
            sequence = self.broker.publish(
                payload, subject, expect=expect.name.lower(), receipt=True, **fields
            )
        except PeerError as error:
            assert error.code == "no_receiver" and not allowed, f"{error}"
        else:
            assert allowed, "nobody could take it"
            self.sequences.append(sequence)
            number = self.broker.last_number()
            self.model.publish(Letter(sequence, kind, subject, payload, expect, most, number))
        self.see()

    # --- consumers ----------------------------------------------------------------------------

    @rule(slot=slots, credit=st.integers(0, 3), wanted=interests)
    def subscribe(self, slot: int, credit: int, wanted: tuple[str, ...]) -> None:
        if self.model.desk_at(slot) is None:
            fields = SLOTS[slot]
            name = self.broker.subscribe(node_of(slot), wanted, credit=credit, **fields)
            durable = bool(fields) and fields.get("durable") is not False
            self.model.sit(name, durable, "group" in fields, slot, Seat(credit, wanted))
            self.see()

    @precondition(lambda self: self.model.desks)
    @rule(slot=slots, wanted=interests)
    def change_interests(self, slot: int, wanted: tuple[str, ...]) -> None:
        desk = self.model.desk_at(slot)
        if desk is not None:
            self.broker.ask(ask.SetInterests(node_of(slot), self.request(), 1, wanted))
            desk.seats[slot].interests = wanted
            self.model.look_again(desk)
            self.see()

    @precondition(lambda self: self.model.desks and self.model.letters)
    @rule(slot=slots, politely=st.booleans())
    def leave(self, slot: int, politely: bool) -> None:
        if politely and self.model.desk_at(slot) is not None:
            self.broker.ask(ask.Unsubscribe(node_of(slot), self.request(), 1))
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
            desk.seats[slot].credit += credit
        self.see()

    @precondition(lambda self: self.model.desks)
    @rule(slot=slots, count=st.integers(1, 3))
    def pull(self, slot: int, count: int) -> None:
        """Takes what is there now; what it did not use of its credit is not kept."""
        desk = self.model.desk_at(slot)
        command = ask.Pull(node_of(slot), self.request(), 1, count)
        self.broker.do(command)
        if desk is not None:
            desk.seats[slot].pulling = count
            before = desk.seats[slot].credit
            self.see_turn()
            left = desk.seats[slot].pulling
            sent = count - left + before - desk.seats[slot].credit
            desk.seats[slot].pulling = 0
            self.broker.advance(0)
            body: Any = self.broker.answers[command.node, command.request]
            assert body.body == {"count": sent}
        self.see()

    @precondition(lambda self: self.model.out())
    @rule(told=st.lists(st.tuples(picks, picks, endings), min_size=1, max_size=4))
    def finish(self, told: list[tuple[int, int, str]]) -> None:
        """Holders report, in any order; whoever sits at the desk may."""
        for index, member, status in told:
            if out := self.model.out():
                letter, pair = out[index % len(out)]
                assert pair.desk is not None
                seats = list(pair.desk.seats)
                self.report(seats[member % len(seats)], letter.sequence, Status[status.upper()])

    @precondition(lambda self: self.model.desks and self.sequences)
    @rule(slot=slots, index=picks, status=st.sampled_from(["processed", "failed"]))
    def somebody_reports(self, slot: int, index: int, status: str) -> None:
        desk, (sequence, letter) = self.model.desk_at(slot), self.pick(index)
        if desk is not None and not (letter and letter.pairs.get(desk, Pair()).state == "maybe"):
            self.report(slot, sequence, Status[status.upper()])

    def report(self, slot: int, sequence: int, status: Status) -> None:
        desk, letter = self.model.desk_at(slot), self.model.letters.get(sequence)
        assert desk is not None
        was = f"{status.name} by {desk.name} on {letter}"
        refused = self.broker.report(status.name, sequence, node=node_of(slot))
        allowed = self.model.report(letter, desk, status)
        assert refused.get(sequence) in allowed, f"{was}: {refused}, not {allowed}"
        self.see()

    # --- receivers ----------------------------------------------------------------------------

    @precondition(lambda self: self.model.desks and self.model.letters)
    @rule(name=st.sampled_from(["anna", "crew", "band"]))
    def delete(self, name: str) -> None:
        desk = self.model.desks.get(name)
        command = ask.DeleteReceiver(b"admin", self.request(), name)
        if desk is None:
            with pytest.raises(PeerError, match="no_such_receiver"):
                self.broker.ask(command)
            return
        self.broker.ask(command)
        told = {effect.node for effect in self.broker.effects if isinstance(effect, EndpointGone)}
        assert told == {node_of(slot) for slot in desk.seats}
        self.model.delete(desk)
        self.see()

    @precondition(lambda self: self.model.desks and self.sequences)
    @rule(name=st.sampled_from(["anna", "crew"]), index=st.none() | picks)
    def seek(self, name: str, index: int | None) -> None:
        """To a message, or, without one, to now."""
        desk = self.model.desks.get(name)
        sequence = None if index is None else self.pick(index)[0]
        command = ask.Seek(b"admin", self.request(), name, sequence)
        if desk is None:
            with pytest.raises(PeerError, match="no_such_receiver"):
                self.broker.ask(command)
            return
        self.broker.ask(command)
        self.model.seek(desk, 2**62 if sequence is None else sequence)
        self.see()

    # --- the rest of the world ----------------------------------------------------------------

    @precondition(lambda self: self.model.letters)
    @rule(ms=st.sampled_from([1, 9, 10, 20, 60]))
    def time_passes(self, ms: int) -> None:
        until = self.model.now_ms + ms
        while (due_ms := self.model.next_event_ms()) is not None and due_ms <= until:
            self.broker.advance(due_ms - 1 - self.broker.now_ms)
            self.see_turn()
            self.model.now_ms = due_ms
            self.broker.now_ms = due_ms
            self.broker.shard.tick(due_ms)
            self.broker.end_turn()
            self.model.pass_until(due_ms)
            self.see()
        self.broker.advance(until - self.broker.now_ms)
        self.model.now_ms = until
        self.see()

    @precondition(lambda self: self.model.letters)
    @rule()
    def restart(self) -> None:
        self.broker.restart()
        self.model.restart()
        self.see()

    @precondition(lambda self: self.model.parked())
    @rule(index=picks, renewed=st.booleans(), alone=st.booleans())
    def end_parked(self, index: int, renewed: bool, alone: bool) -> None:
        """One receiver's parked delivery, or every one of its message, is renewed or given up."""
        parked = self.model.parked()
        letter, pair = parked[index % len(parked)]
        alone &= letter.single is None
        name = pair.desk.name if alone and pair.desk is not None else None
        if not renewed and name is None:
            self.abandon(letter)
            return
        command = ask.Renew if renewed else ask.Abandon
        self.broker.ask(command(b"admin", self.request(), letter.sequence, name))
        for other in letter.all_pairs():
            of_name = other.desk is not None and other.desk.name == name
            if other.state == "parked" and (of_name or not alone):
                (self.model.renew if renewed else self.model.abandon_parked)(letter, other)
        self.see()

    @precondition(lambda self: self.model.letters)
    @rule(index=picks)
    def abandon_one(self, index: int) -> None:
        letters = list(self.model.letters.values())
        self.abandon(letters[index % len(letters)])

    def abandon(self, letter: Letter) -> None:
        self.broker.ask(ask.Abandon(b"admin", self.request(), letter.sequence))
        self.model.end(letter, "dropped")
        self.see()

    # --- what is always true ------------------------------------------------------------------

    @invariant()
    def all_agrees(self) -> None:
        check_lags(self.broker.actor)
        self.counts_agree()
        self.receivers_agree()
        self.receipts_agree()

    def counts_agree(self) -> None:
        told = self.broker.describe()
        letters = self.model.letters.values()
        singles = [letter.single for letter in letters if letter.single is not None]
        held = len(letters) - sum(pair.state == "parked" for pair in singles)
        assert told["held"] == held, f"{list(letters)}"
        assert told["parked"] == len(self.model.parked()), f"{list(letters)}"
        assert told["sent"] + told["received"] == len(self.model.out())

    def receivers_agree(self) -> None:
        listed = self.broker.ask(ask.ListReceivers(b"admin", self.request()))["receivers"]
        told = {row["name"]: (row["credit"], row["in_flight"], row["parked"]) for row in listed}
        out, parked = self.model.out(), self.model.parked()
        assert told == {
            desk.name: (
                desk.credit,
                sum(pair.desk is desk for _, pair in out),
                sum(letter.single is None and pair.desk is desk for letter, pair in parked),
            )
            for desk in self.model.desks.values()
        }
        self.lags_agree(listed)

    def lags_agree(self, listed: list[dict[str, Any]]) -> None:
        """Lag is what is owed, out or paused; what the promise leaves open is within it or not."""
        for row in listed:
            desk = self.model.desks[row["name"]]
            surely, maybe = self.model.lag(desk)
            if row["counted"]:
                assert surely <= row["lag"] <= surely + maybe, f"{list(self.model.letters)}"

    def receipts_agree(self) -> None:
        told = {number: receipt.verdict for number, receipt in self.broker.receipts.items()}
        unsure = self.model.unsure | {
            letter.number
            for letter in self.model.letters.values()
            if letter.fuzzy and letter.number is not None
        }
        verdicts = self.model.verdicts
        for number in told.keys() | verdicts.keys():
            if number not in unsure:
                assert told.get(number) == verdicts.get(number), f"of number {number}"

    # --- liveness -----------------------------------------------------------------------------

    def teardown(self) -> None:
        """Faults stop, everybody has credit and processes all: what is owed arrives, all ends."""
        if sys.exc_info()[0] is not None:
            return  # a rule failed, and that is the news
        patient = {"max_attempts": 9, "max_deliveries": None, "retry_backoff": None}
        self.broker.configure(**patient)
        self.model.settings.update(patient)
        self.see()
        for slot, name in ((0, "anna"), (1, "crew")):
            desk = self.model.desks.get(name)
            if desk is not None and not desk.seats:
                self.subscribe(slot, 1, tuple(sorted(desk.wanted)))
        while self.model.parked():
            self.end_parked(0, renewed=True, alone=False)
        self.time_passes(60)
        self.process_all()
        for letter, desk in self.owed():
            raise AssertionError(f"{desk.name} never got {letter}")
        self.broker.advance(TTL_MS)
        self.model.now_ms += TTL_MS
        self.model.expire()
        self.all_agrees()
        self.nothing_is_left()

    def owed(self) -> list[tuple[Letter, Desk]]:
        return [
            (letter, desk)
            for letter in self.model.letters.values()
            for desk in self.model.desks.values()
            if self.model.is_owed(letter, desk)
        ]

    def process_all(self) -> None:
        while True:
            before = self.owed()
            for desk in list(self.model.desks.values()):
                for slot in list(desk.seats):
                    self.grant(slot, 3)
            out = self.model.out()
            if not out and self.owed() == before:  # what is done by being sent is never out
                return
            for letter, pair in out:
                if pair.state == "out":
                    self.report(pair.slot, letter.sequence, Status.PROCESSED)

    def nothing_is_left(self) -> None:
        # What is only on disk is not looked for when its message ends; a restart sweeps it out.
        self.broker.restart()
        keys = TopicKeys(self.broker.actor.keys.number)
        for kind in "mlwdpgtuvb":
            left = list(self.broker.rows.scan(*keys.range_of(kind)))
            assert not left, f"rows of kind {kind} outlive their messages: {left}"


def test_every_receiver_gets_what_it_is_owed_with_small_windows(small_limits: None) -> None:
    stateful.run_state_machine_as_test(ReceiversMachine, settings=LONGER)


def test_every_receiver_gets_what_it_is_owed() -> None:
    stateful.run_state_machine_as_test(ReceiversMachine, settings=LONGER)


def test_what_a_receiver_wants_no_more_leaves_no_rows_when_it_is_over() -> None:
    """It was moved by a restart, is on disk alone, and nobody looks there when its message ends."""
    machine = ReceiversMachine()
    chosen = {"max_attempts": 1, "max_deliveries": None, "retry_backoff": None, "requeue": "back"}
    machine.begin(chosen=chosen, seated={})
    machine.subscribe(slot=0, credit=1, wanted=("**",))
    machine.publish(wished=[(("log", None), "a/x", False)])
    machine.time_passes(ms=20)
    machine.restart()
    machine.subscribe(slot=0, credit=0, wanted=("b/**", "a/y"))
    machine.teardown()
