"""A topic as it should be: what is held, owed, out, parked and over, and how each step comes about.

Written from the specification. It decides nothing that the broker may choose (who gets what next);
it follows the broker's choices and knows which of them are allowed.
"""

from collections.abc import Callable, Iterator

from asterism.message import NEVER_MS, Header, Mode, decode_header
from asterism.settings import DropOld, TopicSettings
from tests.sim.model import (
    DeadLetter,
    Endpoint,
    Fate,
    Kind,
    Message,
    Out,
    Receiver,
    Standing,
    State,
    Violation,
)

WasCounted = Callable[[str, int, str], bool]
"""Whether the broker counts a receiver as done with a message: asked where it may choose."""
Survived = Callable[[str, str], bool]
"""Whether the broker has a receiver after a crash: asked of those that have nothing to lose."""

OK, FAILED, EXPIRED, DROPPED = "ok", "failed", "expired", "dropped"


class Ledger:
    """One topic."""

    def __init__(
        self,
        name: str,
        defaults: TopicSettings,
        stamps: Iterator[int],
        was_counted: WasCounted,
        survived: Survived,
    ) -> None:
        self.name = name
        self.defaults = defaults
        self.overrides: dict[str, object] = {}
        self.settings = defaults
        self.stamps = stamps
        self.was_counted = was_counted
        self.survived = survived
        self.receivers: dict[str, Receiver] = {}
        self.work = Receiver("work-queue", True, 0, ("**",), [(0, ("**",))])
        self.orders: dict[tuple[bytes, int], int | None] = {}
        self.live: dict[int, Message] = {}
        self.ended: dict[int, str] = {}
        self.answers: dict[tuple[bytes, int], object] = {}
        self.sequences: dict[tuple[bytes, int], int] = {}
        self.verdicts: dict[tuple[bytes, int], tuple[str, int]] = {}
        self.lost: set[tuple[bytes, int]] = set()  # in memory when the worker crashed
        self.expected: list[tuple[bytes, int, str]] = []  # receipts that this step owes
        self.outbox: list[DeadLetter] = []
        self.completed = 0
        self.last_sequence = 0
        self.block_epoch = 1  # another one whenever it begins or ceases to block
        self.step = 0
        # Earlier ones of a key that one went before in this step, to whom, and what to say of it.
        self.overtaken: list[tuple[Message, Receiver, str]] = []
        self.grace_ms = 0  # for which what was out with a node that is away is kept for it
        self.pulls_over: dict[tuple[bytes, int], int] = {}  # to be answered in this step

    # --- views ------------------------------------------------------------------------------

    def fail(self, what: str) -> Violation:
        return Violation(f"{self.name}: {what}")

    def held(self) -> list[Message]:
        return [
            message
            for message in self.live.values()
            if message.state is State.HELD
            or (message.state is State.KEPT and self.renewed_by(message))
        ]

    def is_wanted(self, subjects: tuple[str, ...]) -> bool:
        """Whether somebody who is online is interested."""
        return any(r.endpoints and r.wants(subjects) for r in self.receivers.values())

    def everybody(self) -> list[Receiver]:
        return [self.work, *self.receivers.values()]

    def out(self) -> list[Out]:
        return [out for receiver in self.everybody() for out in receiver.held.values()]

    def endpoint(self, node: bytes, number: int) -> Endpoint | None:
        for receiver in self.receivers.values():
            found = receiver.endpoints.get((node, number))
            if found is not None:
                return found
        return None

    def parked(self) -> list[tuple[Message, Receiver]]:
        found = []
        for message in self.live.values():
            if message.state is State.PARKED and message.parked_by is not None:
                found.append((message, message.parked_by))
            for receiver, fate in message.fates.items():
                if fate.standing is Standing.PARKED:
                    found.append((message, receiver))
        return found

    # --- out and back -----------------------------------------------------------------------

    def timeout_ms(self, receiver: Receiver, status: str) -> int:
        if status == "sent":
            own, default = receiver.sent_timeout_ms, self.settings.sent_timeout_ms
        else:
            own, default = receiver.received_timeout_ms, self.settings.received_timeout_ms
        return default if own is None else own

    def release(self, out: Out) -> None:
        """It is out no longer; its credit goes back to an endpoint that is still there."""
        del out.receiver.held[out.message.sequence]
        endpoint = out.endpoint
        if endpoint is not None and out.returns_credit:
            there = out.receiver.endpoints.get((endpoint.node, endpoint.number)) is endpoint
            is_paid = there and endpoint.owed > 0
            endpoint.owed -= is_paid
            endpoint.credit += there and not is_paid

    def back(self, out: Out) -> None:
        """It is out no longer, and owed again."""
        self.release(out)
        out.message.fate(out.receiver).standing = Standing.OWED

    def unreachable(self, out: Out, now_ms: int) -> None:
        self.back(out)
        message, receiver = out.message, out.receiver
        fate = message.fate(receiver)
        most = self.settings.max_deliveries
        if most is not None and fate.tries >= most:
            self.fail_for_good(message, receiver, "", now_ms)
        elif message.kind is Kind.ONLINE and not receiver.endpoints:
            self.end_copy(message, fate, Standing.FAILED, now_ms)

    def failed(self, out: Out, reason: str, now_ms: int) -> None:
        self.back(out)
        settings = self.settings
        fate = out.message.fate(out.receiver)
        most = settings.max_deliveries
        if fate.tries >= settings.max_attempts or (most is not None and fate.tries >= most):
            self.fail_for_good(out.message, out.receiver, reason, now_ms)
        elif settings.retry_backoff is not None:
            fate.paused_until_ms = now_ms + settings.retry_backoff.pause_ms(fate.tries)
            fate.pause_may_end = False

    def fail_for_good(self, message: Message, receiver: Receiver, reason: str, now_ms: int) -> None:
        fate = message.fate(receiver)
        if message.kind is Kind.ONLINE:
            self.end_copy(message, fate, Standing.FAILED, now_ms)
        elif message.kind is Kind.PUSH:
            self.end(message, FAILED, now_ms)
        elif self.settings.dead_letter is not None:
            self.outbox.append(DeadLetter(self.settings.dead_letter, message, receiver, reason))
            if message.kind is Kind.POOL:
                self.end(message, FAILED, now_ms)
            else:
                self.finish(message, fate, Standing.FAILED, now_ms)
        elif message.kind is Kind.POOL:
            self.give_verdict(message, FAILED, now_ms)
            message.state = State.PARKED
            message.parked_by = receiver
            fate.standing = Standing.PARKED
        else:
            self.finish(message, fate, Standing.PARKED, now_ms)

    def park_letter(
        self, sequence: int, moved: tuple[bytes, bytes, bytes], name: str, now_ms: int
    ) -> None:
        """A dead letter that its topic refused for good is parked here, as a new message."""
        message_id, encoded, payload = moved
        header = decode_header(encoded)
        single = Header(
            Mode.DURABLE, header.expect, header.subjects, header.attributes, 1,
            priority=header.priority,
        )  # fmt: skip
        stamp = next(self.stamps)
        message = Message(
            sequence, message_id, single, payload, now_ms, NEVER_MS, Kind.POOL, stamp, stamp
        )
        message.state = State.PARKED
        message.parked_by = self.receivers.get(name, self.work)
        message.shared.standing, message.shared.attempts = Standing.PARKED, 1
        self.take_sequence(sequence)
        self.live[sequence] = message

    # --- done -------------------------------------------------------------------------------

    def done(self, message: Message, receiver: Receiver, now_ms: int) -> None:
        """A delivery reached its expectation; it is not out."""
        fate = message.fate(receiver)
        fate.holder = receiver
        if message.kind.single:
            self.completed += message.kind is Kind.POOL
            self.end(message, OK, now_ms)
        elif message.kind is Kind.LOG:
            self.finish(message, fate, Standing.DONE, now_ms)
        else:
            self.end_copy(message, fate, Standing.DONE, now_ms)

    def finish(self, message: Message, fate: Fate, standing: Standing, now_ms: int) -> None:
        """A receiver's delivery of a log message is final, or parked."""
        fate.standing = standing
        fate.renewed = fate.has_place = False
        fate.record = OK if standing is Standing.DONE else FAILED
        wanted = message.header.max_receivers
        if wanted is not None:
            done = message.count_ended(OK, Standing.DONE)
            if done >= wanted:
                self.end(message, OK, now_ms)
                return
            bad = message.count_ended(FAILED, Standing.PARKED, Standing.FAILED)
            if done + bad >= wanted and not self.is_kept_for(message):
                self.end(message, FAILED, now_ms)  # nothing is left that could be renewed
                return
            if standing is not Standing.DONE:
                self.give_verdict(message, FAILED, now_ms)  # its place is taken until it is renewed
        self.end_if_kept_for_nothing(message, now_ms)

    def end_if_kept_for_nothing(self, message: Message, now_ms: int) -> None:
        if message.state is State.KEPT and not self.is_kept_for(message):
            self.end(message, DROPPED, now_ms)

    def is_kept_for(self, message: Message) -> list[Receiver]:
        """Those who have it parked, or renewed and not yet done."""
        return self.parked_by(message) + self.renewed_by(message)

    def parked_by(self, message: Message) -> list[Receiver]:
        """Of them, receivers that are gone: what is parked outlives them."""
        return [
            receiver for receiver, fate in message.fates.items() if fate.standing is Standing.PARKED
        ]

    def renewed_by(self, message: Message) -> list[Receiver]:
        """Those who have it renewed, and not done since."""
        return [
            receiver
            for receiver, fate in message.fates.items()
            if receiver.exists and fate.renewed and fate.standing in (Standing.OWED, Standing.OUT)
        ]

    def end_copy(self, message: Message, fate: Fate, standing: Standing, now_ms: int) -> None:
        fate.standing = standing
        if not message.count(Standing.OWED, Standing.OUT):
            self.end(message, FAILED if message.count(Standing.FAILED) else OK, now_ms)

    def give_verdict(self, message: Message, verdict: str, now_ms: int) -> None:
        if message.asked and message.producer is not None:
            message.asked = False
            self.expected.append((message.producer, message.number, verdict))
            self.verdicts[message.producer, message.number] = (verdict, now_ms)

    def end(self, message: Message, verdict: str, now_ms: int) -> None:
        """A message is over for everybody."""
        self.give_verdict(message, verdict, now_ms)
        for _, out in message.outs():
            self.release(out)
        message.state = State.ENDED
        del self.live[message.sequence]
        self.ended[message.sequence] = verdict

    # --- accepting --------------------------------------------------------------------------

    def add(self, message: Message, now_ms: int) -> None:
        """A message becomes held; one that is online finds out who is there."""
        self.live[message.sequence] = message
        if message.kind is Kind.ONLINE and message.delayed_until_ms <= now_ms:
            self.enter_online(message, now_ms)

    def enter_online(self, message: Message, now_ms: int) -> None:
        for receiver in self.receivers.values():
            if receiver.endpoints and receiver.wants(message.header.subjects):
                message.fates[receiver] = Fate()
        if not message.fates:
            self.end(message, OK, now_ms)

    def take_sequence(self, sequence: int) -> None:
        if sequence <= self.last_sequence:
            raise self.fail(f"sequence {sequence} was given after {self.last_sequence}")
        self.last_sequence = sequence

    def expires_ms(self, wanted_ms: int | None, now_ms: int) -> int:
        if wanted_ms is not None:
            return wanted_ms
        return min(now_ms + self.settings.default_ttl_ms, NEVER_MS - 1)

    def make_room(self, now_ms: int) -> None:
        """Before a message is accepted: what the overflow policy does."""
        overflow = self.settings.overflow
        if not isinstance(overflow, DropOld):
            return
        while len(held := self.held()) >= overflow.size:
            waiting = [message for message in held if not message.outs()]
            oldest = min(waiting or held, key=lambda message: message.sequence)
            self.withdraw(oldest, self.parked_by(oldest), DROPPED, now_ms)

    # --- time -------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """When something is to be done next, as far as promises go."""
        times = [out.deadline_ms for out in self.out()]
        times += [deadline_ms for deadline_ms in self.orders.values() if deadline_ms is not None]
        for message in self.live.values():
            if message.state is State.DRAFT:
                times.append(message.accepted_ms + self.settings.draft_timeout_ms)
            elif message.state is State.HELD:
                times.append(message.expires_ms)
            if message.delayed_until_ms:
                times.append(message.delayed_until_ms)
            for fate in [message.shared, *message.fates.values()]:
                if fate.standing is Standing.OWED and not fate.pause_may_end:
                    times.append(fate.paused_until_ms)
        for receiver in self.receivers.values():
            times += [until_ms for _, until_ms in receiver.away.values()]
            for endpoint in receiver.endpoints.values():
                if endpoint.pull is not None:
                    times.append(endpoint.pull_deadline_ms)
        return min((time for time in times if 0 < time < NEVER_MS), default=None)

    def tick(self, now_ms: int) -> None:
        for out in [out for out in self.out() if out.deadline_ms <= now_ms]:
            if out.message.sequence in out.receiver.held:
                self.unreachable(out, now_ms)
        for receiver in list(self.receivers.values()):
            for holder, (_, until_ms) in list(receiver.away.items()):
                if until_ms <= now_ms:
                    self.end_absence(receiver, holder, now_ms)
        self.end_late_pulls(now_ms)
        for message in list(self.live.values()):
            self.tick_message(message, now_ms)
        self.expire(now_ms)

    def tick_message(self, message: Message, now_ms: int) -> None:
        """Pauses, drafts and delays that are over."""
        for fate in [message.shared, *message.fates.values()]:
            if fate.paused_until_ms <= now_ms:
                fate.paused_until_ms = 0
        if message.state is State.DRAFT:
            if message.accepted_ms + self.settings.draft_timeout_ms <= now_ms:
                message.state = State.ENDED
                del self.live[message.sequence]
        elif 0 < message.delayed_until_ms <= now_ms:
            message.delayed_until_ms = 0
            if message.kind is Kind.ONLINE:
                self.enter_online(message, now_ms)
            elif message.kind is Kind.PUSH and not self.is_wanted(message.header.subjects):
                self.end(message, FAILED, now_ms)

    def end_late_pulls(self, now_ms: int) -> None:
        for receiver in self.receivers.values():
            for endpoint in receiver.endpoints.values():
                if endpoint.pull is not None and endpoint.pull_deadline_ms <= now_ms:
                    self.end_pull(endpoint)

    def end_pull(self, endpoint: Endpoint) -> None:
        """A pull is over: credit that it did not use goes back."""
        assert endpoint.pull is not None
        self.pulls_over[endpoint.node, endpoint.pull] = endpoint.pull_taken
        endpoint.credit -= min(endpoint.pull_left, endpoint.credit)
        endpoint.pull = None

    def is_doomed(self, fate: Fate) -> bool:
        """Its last delivery was lost in a crash: it will fail for good when its turn comes."""
        most = self.settings.max_deliveries
        return most is not None and fate.standing is Standing.OWED and fate.tries >= most

    def doomed(self) -> list[tuple[Message, Receiver | None, Fate]]:
        found: list[tuple[Message, Receiver | None, Fate]] = []
        for message in self.live.values():
            if message.kind is Kind.POOL and self.is_doomed(message.shared):
                found.append((message, None, message.shared))
            for receiver, fate in message.fates.items():
                if receiver.exists and self.is_doomed(fate):
                    found.append((message, receiver, fate))
        return found

    def give_up(self, sequence: int, name: str, now_ms: int) -> bool:
        """The broker gave up one that was doomed."""
        for message, receiver, _ in self.doomed():
            if message.sequence == sequence and (receiver is None or receiver.name == name):
                self.fail_for_good(message, receiver or self.named(name), "", now_ms)
                return True
        return False

    def named(self, name: str) -> Receiver:
        return self.work if name == self.work.name else self.receivers[name]

    def expire(self, now_ms: int) -> None:
        for message in list(self.live.values()):
            if message.state is State.HELD and message.expires_ms <= now_ms:
                self.expire_one(message, now_ms)

    def expire_one(self, message: Message, now_ms: int) -> None:
        if message.kind is Kind.POOL:
            self.end(message, EXPIRED, now_ms)
            return
        verdict = EXPIRED
        records = [fate.record for fate in message.fates.values()]
        if message.header.max_receivers is None and OK in records:
            verdict = OK
        elif FAILED in records:
            verdict = FAILED
        self.withdraw(message, self.is_kept_for(message), verdict, now_ms)

    def withdraw(self, message: Message, stays: list[Receiver], verdict: str, now_ms: int) -> None:
        """A message ends but for some of those who have it parked, or renewed."""
        if not stays:
            self.end(message, verdict, now_ms)
            return
        self.give_verdict(message, verdict, now_ms)
        message.state = State.KEPT
        message.expires_ms = NEVER_MS
        for receiver, fate in message.fates.items():
            if receiver not in stays and fate.standing in (Standing.OWED, Standing.OUT):
                if fate.standing is Standing.OUT:
                    self.release(receiver.held[message.sequence])
                fate.standing = Standing.OVER

    # --- receivers --------------------------------------------------------------------------

    def join_interests(self, receiver: Receiver, kept: tuple[str, ...] = ()) -> None:
        joined = [i for endpoint in receiver.endpoints.values() for i in endpoint.interests]
        joined += [i for interests, _ in receiver.away.values() for i in interests]
        self.set_interests(receiver, tuple(dict.fromkeys([*kept, *joined])))

    def set_interests(self, receiver: Receiver, interests: tuple[str, ...]) -> None:
        if set(interests) != set(receiver.interests):
            receiver.history.append((next(self.stamps), interests))
            receiver.forget_order()
        receiver.interests = interests

    def detach(self, endpoint: Endpoint, now_ms: int) -> None:
        """An endpoint ends: what it held fails over."""
        receiver = endpoint.receiver
        del receiver.endpoints[endpoint.node, endpoint.number]
        for out in [out for out in receiver.held.values() if out.endpoint is endpoint]:
            self.unreachable(out, now_ms)
        if not receiver.endpoints:
            for message in [m for m in self.live.values() if m.kind is Kind.ONLINE]:
                fate = message.fates.get(receiver)
                if fate is not None and fate.standing is Standing.OWED:
                    self.end_copy(message, fate, Standing.FAILED, now_ms)
        if not receiver.durable:
            self.review(receiver, now_ms)

    def review(self, receiver: Receiver, now_ms: int) -> None:
        """A receiver that lives with its connections has lost one, and may have lost the last."""
        if receiver.endpoints or receiver.away:
            self.join_interests(receiver)
        else:
            self.remove(receiver, now_ms)

    def end_absence(self, receiver: Receiver, holder: tuple[bytes, int], now_ms: int) -> None:
        """An endpoint that was away will not come back."""
        del receiver.away[holder]
        self.review(receiver, now_ms)

    def waits_for(self, node: bytes, endpoint: int) -> Receiver | None:
        """The receiver for which this endpoint is away."""
        for receiver in self.receivers.values():
            if (node, endpoint) in receiver.away:
                return receiver
        return None

    def suspend(self, endpoint: Endpoint, now_ms: int) -> None:
        """An endpoint ends, and may come back to what it held."""
        receiver = endpoint.receiver
        self.send_away(endpoint, now_ms)
        for out in [out for out in receiver.held.values() if out.endpoint is endpoint]:
            if out.message.kind is not Kind.ONLINE:
                self.keep(out, now_ms)
        self.detach(endpoint, now_ms)

    def send_away(self, endpoint: Endpoint, now_ms: int) -> None:
        receiver = endpoint.receiver
        if not receiver.durable:
            until_ms = now_ms + self.grace_ms
            receiver.away[endpoint.node, endpoint.number] = (endpoint.interests, until_ms)

    def keep(self, out: Out, now_ms: int) -> None:
        """Nobody but the endpoint that has it gets it before the grace is over."""
        if out.endpoint is not None:
            out.absent = (out.endpoint.node, out.endpoint.number)
        out.endpoint = None
        out.extended = True
        out.deadline_ms = now_ms + self.grace_ms

    def move(self, out: Out, receiver: Receiver) -> None:
        del out.receiver.held[out.message.sequence]
        receiver.held[out.message.sequence] = out
        out.receiver = receiver
        out.message.fate(receiver).holder = receiver

    def kept_for(self, node: bytes, endpoint: int | None = None) -> list[Out]:
        return [
            out
            for out in self.out()
            if out.absent is not None
            and out.absent[0] == node
            and endpoint in (None, out.absent[1])
        ]

    def take_back(self, out: Out, endpoint: Endpoint, now_ms: int) -> None:
        """What was kept for an endpoint is out with it again."""
        if out.receiver is not endpoint.receiver:
            self.move(out, endpoint.receiver)
        out.endpoint, out.absent, out.extended = endpoint, None, False
        out.started_ms = now_ms
        out.deadline_ms = now_ms + self.timeout_ms(out.receiver, out.status)
        out.returns_credit = endpoint.credit > 0
        endpoint.credit -= out.returns_credit

    def remove(self, receiver: Receiver, now_ms: int) -> None:
        """A receiver ends with all that was its own, but for what it has parked."""
        for out in list(receiver.held.values()):
            self.unreachable(out, now_ms)
        receiver.exists = False
        del self.receivers[receiver.name]
        for message in list(self.live.values()):
            fate = message.fates.get(receiver)
            if fate is not None and fate.standing is Standing.OWED:
                fate.standing = Standing.OVER
                self.end_if_kept_for_nothing(message, now_ms)

    # --- parked -----------------------------------------------------------------------------

    def renew(self, message: Message, receiver: Receiver, now_ms: int) -> None:
        fate = message.fate(receiver)
        assert fate.standing is Standing.PARKED
        if message.kind is Kind.LOG and not receiver.exists:
            self.renew_for_others(message, fate, now_ms)
            return
        fate.standing = Standing.OWED
        fate.spent = fate.attempts
        fate.renewed = True
        fate.record = ""
        fate.paused_until_ms = 0
        message.renewals += 1
        if message.kind is Kind.POOL:
            message.state = State.HELD
            message.parked_by = fate.holder = None
            if message.expires_ms <= now_ms:
                # It was renewed after its time: renewing would mean nothing if it expired at once.
                message.expires_ms = NEVER_MS

    def renew_for_others(self, message: Message, fate: Fate, now_ms: int) -> None:
        """Its receiver is gone: its place is for whoever is interested and has not had it."""
        fate.standing, fate.record = Standing.OVER, ""
        message.renewals += 1
        if message.state is not State.KEPT:
            return
        message.state = State.HELD
        message.expires_ms = self.expires_ms(None, now_ms)
        message.revived = next(self.stamps)
        counts = message.header.max_receivers is not None
        for other in message.fates.values():
            # Of what was withdrawn, it may be that the receiver has read past it.
            if other.standing is Standing.OVER and (other.record == "" or other.moved):
                other.unsure = not counts or other.moved
                other.standing = Standing.OWED
                other.attempts = other.spent = other.paused_until_ms = 0

    def abandon_parked(self, message: Message, receiver: Receiver, now_ms: int) -> None:
        if message.kind is Kind.POOL:
            self.end(message, DROPPED, now_ms)
        else:
            message.fates[receiver].standing = Standing.OVER
            self.end_if_kept_for_nothing(message, now_ms)

    # --- crashes ----------------------------------------------------------------------------

    def crash(self, now_ms: int) -> None:
        """The worker ended and came back: what was on disk is all there is."""
        self.orders.clear()
        for message in [m for m in self.live.values() if m.kind.in_memory]:
            if message.asked and message.producer is not None:
                self.lost.add((message.producer, message.number))
            message.asked = False
            self.end(message, "lost", now_ms)
        for message in self.live.values():
            for fate in [message.shared, *message.fates.values()]:
                fate.pause_may_end = True
        for receiver in list(self.receivers.values()):
            for out in list(receiver.held.values()):
                if self.grace_ms:
                    self.keep(out, now_ms)
                else:
                    self.back(out)
            if not receiver.durable:
                self.crash_passing(receiver, now_ms)
            receiver.endpoints.clear()
            if not (receiver.durable or receiver.away):
                self.remove(receiver, now_ms)
        assert not self.expected

    def crash_passing(self, receiver: Receiver, now_ms: int) -> None:
        """One that lives with its connections stays for those who may come back."""
        if self.grace_ms and self.survived(self.name, receiver.name):
            for endpoint in receiver.endpoints.values():
                self.send_away(endpoint, now_ms)
            until_ms = now_ms + self.grace_ms
            receiver.away = {who: (wants, until_ms) for who, (wants, _) in receiver.away.items()}
            return
        receiver.away.clear()
        fates = [message.fates.get(receiver) for message in self.live.values()]
        done = any(fate is not None and fate.standing is Standing.DONE for fate in fates)
        if self.grace_ms and (done or receiver.held):
            raise self.fail(f"{receiver.name!r} has lost what it did in a crash")
