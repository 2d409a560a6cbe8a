"""The order of a queue, and what happens when it is full, beside a list that is sorted when asked.

One consumer takes one message at a time, so that every next message is foretold: by priority, then
by position. Windows and walks are so small that a handful of messages spills to disk and is found
again. The promises, each with its line in the model:

    0 first, none last, ties by age; across windows, spills and restarts      Queue.best
    what comes back keeps its priority, and its place where it must           Queue.wait_again
    a key's messages go one at a time, in order, whatever their priorities    Queue.admits
    a blocking topic sends nothing before the message under way is resolved   Queue.best
    a delayed message does not go before its time, then by its age            Queue.pass_until
    a full topic refuses the new one, or drops its oldest waiting             Queue.make_room
"""

import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

from hypothesis import settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from asterism import commands as ask
from asterism.errors import PeerError
from asterism.settings import BackoffMs, DropOld, RejectNew
from tests.support.core import START_MS, CoreBroker
from tests.support.lags import check_lags

NO_PRIORITY = 2**40  # behind every other
SENT_TIMEOUT_MS = 50


@dataclass(eq=False)
class Item:
    """A message and where it is: delayed, waiting, out, paused, parked, done."""

    sequence: int
    kind: str
    payload: bytes
    number: int  # of its receipt
    priority: int
    position: int
    key: str | None
    expires_ms: int | None
    due_ms: int | None
    state: str = "waiting"
    attempts: int = 0
    spent: int = 0  # of them, those before it was renewed last
    resolved: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        return self.priority, self.position

    def __repr__(self) -> str:
        priority = "-" if self.priority == NO_PRIORITY else self.priority
        return f"<{self.kind} {self.sequence} {self.state} {priority}:{self.position} {self.key}>"


class Queue:
    """What should be: every message in one list."""

    def __init__(self, chosen: dict[str, Any]) -> None:
        self.settings = chosen
        self.now_ms = START_MS
        self.items: list[Item] = []
        self.online = False
        self.out: Item | None = None
        self.out_until_ms = 0
        self.current: Item | None = None  # of a blocking topic
        self.keys: dict[str, Item] = {}  # who holds an ordering key
        self.parked: list[Item] = []
        self.verdicts: dict[int, str] = {}
        self.ticket = 0

    def next(self) -> int:
        self.ticket += 1
        return self.ticket

    def held(self) -> list[Item]:
        return [item for item in self.items if item.state != "parked"]

    # --- order --------------------------------------------------------------------------------

    def waiting(self) -> list[Item]:
        return sorted(
            (item for item in self.items if item.state == "waiting"), key=lambda item: item.rank
        )

    def admits(self, item: Item) -> bool:
        if item.key is None:
            return True
        before = [other for other in self.waiting() if other.key == item.key]
        first = min(before, key=lambda other: other.position)
        return item is first and self.keys.get(item.key, item) is item

    def best(self) -> Item | None:
        """What must go out now."""
        ready = self.online and self.out is None
        if self.current is not None:
            return self.current if ready and self.current.state == "waiting" else None
        allowed = (item for item in self.waiting() if self.admits(item))
        return next(allowed, None) if ready else None

    # --- things that happen -------------------------------------------------------------------

    def make_room(self) -> str | None:
        overflow = self.settings["overflow"]
        if overflow is None:
            return None
        while len(self.held()) >= overflow.size:
            if isinstance(overflow, RejectNew):
                return "overflow"
            waiting = [item for item in self.held() if item is not self.out]
            self.end(min(waiting or self.held(), key=lambda item: item.sequence), "dropped")
        return None

    def send(self, item: Item) -> None:
        item.state = "out"
        item.attempts += 1
        self.out, self.out_until_ms = item, self.now_ms + SENT_TIMEOUT_MS
        if self.settings["blocking"]:
            self.current = item
        if item.key is not None:
            self.keys[item.key] = item

    def leave(self, item: Item, state: str) -> None:
        """An item is no longer out, or no longer to be sent."""
        item.state = state
        item.due_ms = None
        if self.out is item:
            self.out = None
        if state == "paused":
            return
        if item.key is not None and self.keys.get(item.key) is item:
            del self.keys[item.key]
        if self.current is item and state != "waiting":
            self.current = None

    def end(self, item: Item, verdict: str) -> None:
        if item in self.parked:
            self.parked.remove(item)
        self.leave(item, "over")
        self.items.remove(item)
        self.resolve(item, verdict)

    def resolve(self, item: Item, verdict: str) -> None:
        if not item.resolved:
            self.verdicts[item.number] = verdict
            item.resolved = True

    def processed(self, item: Item) -> None:
        if item.kind == "log":
            self.leave(item, "done")  # others may come who want it
        else:
            self.end(item, "ok")

    def failed(self, item: Item) -> None:
        backoff = self.settings["retry_backoff"]
        if item.attempts - item.spent >= self.settings["max_attempts"]:
            if item.kind == "push":
                self.end(item, "failed")
                return
            self.leave(item, "parked" if item.kind == "pool" else "set aside")
            self.parked.append(item)
            if item.kind == "pool":
                self.resolve(item, "failed")
        elif backoff is None:
            self.wait_again(item)
        else:
            self.leave(item, "paused")
            item.due_ms = self.now_ms + backoff.pause_ms(item.attempts - item.spent)

    def wait_again(self, item: Item) -> None:
        self.leave(item, "waiting")
        keeps = self.settings["requeue"] == "front" or self.settings["blocking"] or item.key
        if not keeps:
            item.position = self.next()

    def renew(self, item: Item) -> None:
        self.parked.remove(item)
        self.leave(item, "waiting")
        item.spent, item.position = item.attempts, self.next()
        if item.expires_ms is not None and item.expires_ms <= self.now_ms:
            item.expires_ms = None  # or renewing it would be in vain

    def restart(self) -> None:
        """What was out waits where it was, and on a blocking topic it is still under way."""
        self.online = False
        if self.current is not None and self.current.kind == "push":
            self.current = None
        self.keys.clear()
        self.items = [item for item in self.items if item.kind != "push"]
        if self.out is not None:
            self.leave(self.out, "waiting")
        for item in self.items:
            # A pause that holds up others is in memory, and a restart ends it.
            if item.state == "paused" and (item.key or self.settings["blocking"]):
                self.leave(item, "waiting")

    # --- time ---------------------------------------------------------------------------------

    def next_event_ms(self) -> int | None:
        times = [item.due_ms for item in self.items]
        times += [self.expiry_ms(item) for item in self.items]
        if self.out is not None:
            times.append(self.out_until_ms)
        return min((time for time in times if time is not None), default=None)

    def expiry_ms(self, item: Item) -> int | None:
        """When it ends if nothing happens; what is parked does not."""
        return None if item.state == "parked" else item.expires_ms

    def pass_until(self, now_ms: int) -> None:
        """Does what is due at this moment: the deadline, then pauses and delays, then expiry."""
        expiries = [(self.expiry_ms(item), item) for item in self.items]
        over = [item for time, item in expiries if time is not None and time <= now_ms]
        self.now_ms = now_ms
        if self.out is not None and self.out_until_ms <= now_ms:
            self.wait_again(self.out)
        due = [item for item in self.items if item.due_ms is not None and item.due_ms <= now_ms]
        for item in sorted(due, key=self.order_of_dues):
            if item.state == "paused":
                self.wait_again(item)
            elif item.kind == "push" and not self.online:
                self.end(item, "failed")  # nobody is there to take it
            else:
                self.leave(item, "waiting")
        for item in over:
            self.end(item, "expired")

    def order_of_dues(self, item: Item) -> tuple[int, int, int]:
        """What pauses in memory comes first; the rest has rows, the pool's before a receiver's."""
        assert item.due_ms is not None
        in_memory = item.kind == "push" or item.key or self.settings["blocking"]
        place = 0 if in_memory else 1 if item.kind == "pool" else 2
        return place, item.due_ms, item.sequence


class Wish(NamedTuple):
    """A message as somebody wants to publish it."""

    kind: str
    priority: int | None = None
    key: str | None = None
    delay_ms: int = 0
    ttl_ms: int | None = None
    big: bool = False


LONGER = settings(max_examples=2 * settings().max_examples)

kinds = st.sampled_from(["pool", "pool", "push", "log"])
priorities = st.sampled_from([None, None, None, 0, 1, 2])
keys = st.sampled_from([None, None, "k", "q"])
wishes = st.builds(
    Wish,
    kind=kinds,
    priority=priorities,
    key=keys,
    delay_ms=st.sampled_from([0, 0, 0, 5, 20]),
    ttl_ms=st.sampled_from([None, None, None, 15, 60]),
    big=st.booleans(),
)
tempers = {
    "blocking": st.sampled_from([False, False, False, True]),
    "overflow": st.one_of(
        st.none(), st.builds(RejectNew, st.integers(1, 6)), st.builds(DropOld, st.integers(1, 6))
    ),
    "max_attempts": st.integers(1, 3),
    "retry_backoff": st.sampled_from([None, BackoffMs(10, 20)]),
    "requeue": st.sampled_from(["back", "front"]),
}


class QueueMachine(stateful.RuleBasedStateMachine):
    """One consumer with credit for one message, and whoever fills its queue."""

    def __init__(self) -> None:
        super().__init__()
        self.broker: CoreBroker
        self.model: Queue

    @initialize(chosen=st.fixed_dictionaries(tempers))
    def begin(self, chosen: dict[str, Any]) -> None:
        self.model = Queue(chosen)
        self.broker = CoreBroker(**chosen, sent_timeout_ms=SENT_TIMEOUT_MS)
        self.connect()

    def see(self) -> None:
        """Exactly the next message went out, or none if none may go."""
        expected = self.model.best()
        self.broker.advance(0)  # walks that stopped for a turn go on
        got = [delivered.sequence for delivered in self.broker.inbox[b"consumer", 1]]
        assert got == ([] if expected is None else [expected.sequence]), (
            f"sent {got}, should have sent {expected} of {self.model.items}"
        )
        for delivered in self.broker.take():
            assert expected is not None
            self.model.send(expected)
            assert delivered.attempt == expected.attempts
            assert delivered.payload == expected.payload

    # --- publishers ---------------------------------------------------------------------------

    @rule(wished=st.lists(wishes, min_size=1, max_size=5))
    def publish(self, wished: list[Wish]) -> None:
        for wish in wished:
            self.publish_one(*wish)

    def publish_one(
        self,
        kind: str,
        priority: int | None,
        key: str | None,
        delay_ms: int,
        ttl_ms: int | None,
        big: bool,
    ) -> None:
        model = self.model
        if kind == "log" and model.settings["overflow"] is not None:
            kind = "pool"  # one that is done still counts, and would fill the queue for good
        # The pool and the log hold keys apart.
        name = None if key is None else f"{kind == 'log'}-{key}"
        expires_ms = model.now_ms + ttl_ms if ttl_ms is not None and kind == "pool" else None
        payload = b"%d" % model.next() * (9 if big else 1)
        fields: dict[str, Any] = {"mode": "push" if kind == "push" else "durable"}
        if kind == "log":
            fields["max_receivers"] = None
        try:
            sequence = self.broker.publish(
                payload,
                priority=priority,
                ordering_key=name,
                deliver_ms=model.now_ms + delay_ms,
                expires_ms=expires_ms,
                receipt=True,
                **fields,
            )
        except PeerError as error:
            alone = kind == "push" and not delay_ms and not model.online
            assert error.code == ("no_receiver" if alone else model.make_room())
        else:
            refusal = model.make_room()
            assert refusal is None, f"accepted, should have been refused: {refusal}"
            item = Item(
                sequence, kind, payload, self.broker.last_number(),
                NO_PRIORITY if priority is None else priority, model.next(), name, expires_ms,
                model.now_ms + delay_ms if delay_ms else None,
                "delayed" if delay_ms else "waiting",
            )  # fmt: skip
            model.items.append(item)
        self.see()

    # --- the consumer -------------------------------------------------------------------------

    def connect(self) -> None:
        self.broker.subscribe(name="worker", credit=1)
        self.model.online = True
        self.see()

    @precondition(lambda self: not self.model.online)
    @rule()
    def comes_back(self) -> None:
        self.connect()

    @precondition(lambda self: self.model.items)
    @rule()
    def is_cut_off(self) -> None:
        self.broker.detach()
        self.model.online = False
        if self.model.out is not None:
            self.model.wait_again(self.model.out)
        self.see()

    @precondition(lambda self: self.model.out is not None)
    @rule(how=st.sampled_from(["processed", "processed", "failed", "gives up"]))
    def finishes(self, how: str) -> None:
        item = self.model.out
        assert item is not None
        if how == "processed":
            self.broker.processed(item.sequence)
            self.model.processed(item)
        elif how == "failed":
            self.broker.failed(item.sequence)
            self.model.failed(item)
        else:
            request = self.broker.request()
            self.broker.ask(ask.Extend(b"consumer", request, 1, (item.sequence,), 0))
            self.model.wait_again(item)
        self.see()

    # --- the rest of the world ----------------------------------------------------------------

    @precondition(lambda self: self.model.items)
    @rule(ms=st.sampled_from([1, 4, 5, 10, 20, 50]))
    def time_passes(self, ms: int) -> None:
        until = self.model.now_ms + ms
        while (due_ms := self.model.next_event_ms()) is not None and due_ms <= until:
            self.broker.advance(due_ms - self.broker.now_ms)
            self.model.pass_until(due_ms)
            self.see()
        self.broker.advance(until - self.broker.now_ms)
        self.model.now_ms = until
        self.see()

    @precondition(lambda self: self.model.items)
    @rule()
    def restart(self) -> None:
        self.broker.restart()
        self.model.restart()
        self.see()

    @precondition(lambda self: self.model.parked)
    @rule(index=st.integers(0, 5))
    def renew(self, index: int) -> None:
        item = self.model.parked[index % len(self.model.parked)]
        self.broker.ask(ask.Renew(b"admin", self.broker.request(), item.sequence))
        self.model.renew(item)
        self.see()

    @precondition(lambda self: self.model.parked)
    @rule()
    def renew_all(self) -> None:
        self.broker.ask(ask.RenewAll(b"admin", self.broker.request()))
        for item in list(self.model.parked):
            self.model.renew(item)
        self.see()

    @precondition(lambda self: self.model.items)
    @rule(index=st.integers(0, 20))
    def abandon(self, index: int) -> None:
        item = self.model.items[index % len(self.model.items)]
        self.broker.ask(ask.Abandon(b"admin", self.broker.request(), item.sequence))
        self.model.end(item, "dropped")
        self.see()

    # --- what is always true ------------------------------------------------------------------

    @invariant()
    def all_agrees(self) -> None:
        check_lags(self.broker.actor)
        self.counts_agree()
        self.receipts_agree()

    def counts_agree(self) -> None:
        told = self.broker.describe()
        assert told["held"] == len(self.model.held()), f"{self.model.items}"
        assert told["parked"] == len(self.model.parked)
        assert told["sent"] == (self.model.out is not None)

    def receipts_agree(self) -> None:
        told = {number: receipt.verdict for number, receipt in self.broker.receipts.items()}
        assert told == self.model.verdicts

    # --- liveness -----------------------------------------------------------------------------

    def teardown(self) -> None:
        """Faults stop and the consumer works on: every message comes, in order, and the last."""
        if sys.exc_info()[0] is not None:
            return  # a rule failed, and that is the news
        if not self.model.online:
            self.connect()
        if self.model.parked:
            self.renew_all()
        self.time_passes(50)
        while self.model.out is not None:
            self.finishes("processed")
            self.time_passes(20)
        late = [item for item in self.model.items if item.state != "done"]
        assert not late, f"{late} wait for ever"
        self.all_agrees()


def test_a_queue_keeps_its_order_and_its_size_with_small_windows(small_limits: None) -> None:
    stateful.run_state_machine_as_test(QueueMachine, settings=LONGER)


def test_a_queue_keeps_its_order_and_its_size() -> None:
    stateful.run_state_machine_as_test(QueueMachine, settings=LONGER)
