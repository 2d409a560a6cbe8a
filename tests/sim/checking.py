"""Whether what the broker sends is allowed: each effect is held against the ledger."""

from typing import Any

from asterism import commands as ask
from asterism.effects import Deliver, EndpointGone, Reply, Resolved
from asterism.message import Status
from asterism.storage.keys import PRIORITY_NONE
from tests.sim.applying import Applying
from tests.sim.ledger import EXPIRED, FAILED, OK
from tests.sim.model import Endpoint, Fate, Kind, Message, Out, Receiver, Standing, State
from tests.support.delivered import Delivered, deliveries_of


class Checking(Applying):
    """A ledger that follows commands and judges effects."""

    # --- deliveries -------------------------------------------------------------------------

    def check_deliver(self, effect: Deliver, now_ms: int) -> None:
        receiver = self.receivers.get(effect.receiver)
        if receiver is None:
            raise self.fail(f"a delivery to {effect.receiver!r}, which is not there")
        endpoint = receiver.endpoints.get((effect.node, effect.endpoint))
        if endpoint is None:
            raise self.fail(f"a delivery to an endpoint of {effect.receiver!r} that is gone")
        for delivered in deliveries_of(effect):
            self.check_delivered(delivered, receiver, endpoint, now_ms)

    def check_delivered(
        self, delivered: Delivered, receiver: Receiver, endpoint: Endpoint, now_ms: int
    ) -> None:
        message = self.live.get(delivered.sequence)
        if message is None or message.state not in (State.HELD, State.KEPT):
            how = self.ended.get(delivered.sequence, "never accepted, or parked")
            raise self.fail(f"message {delivered.sequence} was delivered, but is over: {how}")
        told = (delivered.id, delivered.header, delivered.payload)
        if told != (message.id, message.header.encoded, message.payload):
            raise self.fail(f"message {message.sequence} was delivered altered: {told}")
        if endpoint.credit <= 0:
            raise self.fail(f"{receiver.name!r} was sent {message.sequence} without credit")
        if message.kind is Kind.ONLINE and receiver not in message.fates:
            raise self.fail(f"online message {message.sequence} went to one that came later")
        if delivered.attempt == 1:
            self.check_order(message, endpoint)
        fate = message.fate(receiver)
        self.check_wanted(message, receiver)
        self.check_may_go(message, fate, receiver, delivered.attempt, now_ms)
        endpoint.credit -= 1
        out = Out(
            message, receiver, endpoint, "sent", now_ms, now_ms + self.timeout_ms(receiver, "sent")
        )
        if endpoint.pull is not None and endpoint.pull_left > 0:
            endpoint.pull_left -= 1
            out.returns_credit = False
        endpoint.pull_taken += endpoint.pull is not None
        self.hand_out(out, fate, delivered.attempt)
        if message.header.expect is Status.SENT:
            del receiver.held[message.sequence]
            fate.standing = Standing.OWED
            self.done(message, receiver, now_ms)

    def hand_out(self, out: Out, fate: Fate, attempt: int) -> None:
        fate.standing = Standing.OUT
        fate.attempts = attempt
        fate.holder = out.receiver
        fate.paused_until_ms = 0
        out.step = self.step
        out.receiver.held[out.message.sequence] = out

    def check_wanted(self, message: Message, receiver: Receiver) -> None:
        subjects = message.header.subjects
        if message.kind.single:
            wanted = receiver.wants(subjects)
        else:
            wanted = any(receiver.wanted_since(message.stamp, subjects))
        if not wanted:
            raise self.fail(f"{receiver.name!r} wants {receiver.interests}, got {subjects}")

    def check_may_go(
        self, message: Message, fate: Fate, receiver: Receiver, attempt: int, now_ms: int
    ) -> None:
        what = f"message {message.sequence} to {receiver.name!r}"
        if fate.standing is not Standing.OWED:
            raise self.fail(f"{what}: it is {fate.standing.value} there")
        if attempt != fate.attempts + 1 and not self.is_count_unsure(message, receiver):
            raise self.fail(f"{what}: attempt {attempt} after {fate.attempts}")
        most = self.settings.max_deliveries
        if most is not None and attempt - fate.spent > most:
            raise self.fail(f"{what}: attempt {attempt - fate.spent} of {most}")
        if message.delayed_until_ms > now_ms:
            raise self.fail(f"{what}: before its time")
        if message.expires_ms <= now_ms and message.state is State.HELD:
            raise self.fail(f"{what}: after its time")
        if fate.paused_until_ms > now_ms and not fate.pause_may_end:
            raise self.fail(f"{what}: before its pause is over")
        if message.kind is Kind.LOG:
            self.check_place(message, receiver, what)
        self.check_key(message, receiver, what, now_ms)
        self.check_limits(message, what)

    def is_count_unsure(self, message: Message, receiver: Receiver) -> bool:
        """For one who did not want it for a while, its attempts may be forgotten."""
        wanted = receiver.wanted_since(message.stamp, message.header.subjects)
        return message.kind is Kind.LOG and not all(wanted)

    def check_place(self, message: Message, receiver: Receiver, what: str) -> None:
        if not self.has_place(message, receiver):
            raise self.fail(f"{what}: as many receivers as it wants have it, or had it")

    def check_limits(self, message: Message, what: str) -> None:
        out = self.out()
        limit = self.settings.concurrency
        if limit is not None and len(out) >= limit and message.header.expect is not Status.SENT:
            raise self.fail(f"{what}: {len(out)} are out, of {limit}")
        if self.settings.blocking:
            self.check_nothing_is_under_way(message, what)
            message.sent_in_epoch = self.block_epoch
            others = {
                held.message.sequence for held in out if not self.went_after(held, message)
            } - {message.sequence}
            if others:
                raise self.fail(f"{what}: the topic is blocked by {sorted(others)}")

    def check_nothing_is_under_way(self, message: Message, what: str) -> None:
        """What a blocking topic has sent is resolved before anything else goes."""
        for other in self.live.values():
            if other is not message and other.sent_in_epoch == self.block_epoch:
                fate = other.shared
                tried = fate.standing is Standing.OWED and fate.tries > 0
                if other.kind.single and tried and not self.is_doomed(fate):
                    raise self.fail(f"{what}: {other.sequence} is to be tried again before")

    def check_key(self, message: Message, receiver: Receiver, what: str, now_ms: int) -> None:
        """One of a key at a time, and none past an earlier one, whatever their priorities."""
        key = message.header.ordering_key
        if key is None:
            return
        # What a blocking topic has under way goes to whoever comes, or nothing would go on.
        under_way = self.settings.blocking and message.sent_in_epoch == self.block_epoch
        for other in self.live.values():
            if other is message or other.header.ordering_key != key:
                continue
            if message.kind.single != other.kind.single:
                continue
            fate = other.shared if other.kind.single else other.fates.get(receiver, Fate())
            out = None if fate.holder is None else fate.holder.held.get(other.sequence)
            if out is not None and not self.went_after(out, message):
                raise self.fail(f"{what}: {other.sequence} of key {key!r} is out")
            # An order never gets a push message, so one that waits holds up no order.
            for_others = receiver is self.work and other.kind is Kind.PUSH
            if for_others or under_way:
                continue
            if self.goes_before(other, fate, message, receiver, now_ms):
                wrong = f"{what}: {other.sequence} of key {key!r} goes before"
                if other.header.expect is not Status.SENT:
                    raise self.fail(wrong)
                self.overtaken.append((other, receiver, wrong))

    def check_overtaken(self) -> None:
        """The step is over: those that were done at once have gone by now, perhaps to another."""
        for other, receiver, wrong in self.overtaken:
            fate = other.shared if other.kind.single else other.fates.get(receiver, Fate())
            if other.sequence in self.live and fate.standing is Standing.OWED:
                raise self.fail(wrong)
        self.overtaken.clear()

    def went_after(self, other: Out, message: Message) -> bool:
        """A step tells its deliveries by endpoint, so one that was done at once may come last."""
        return other.step == self.step and message.header.expect is Status.SENT

    def goes_before(
        self, other: Message, fate: Fate, message: Message, receiver: Receiver, now_ms: int
    ) -> bool:
        """Is another one of the key certainly this receiver's, and earlier?"""
        return (
            fate.standing is Standing.OWED
            and not self.is_doomed(fate)
            and self.is_owed(other, receiver)
            and other.state is State.HELD
            and other.order < message.order
            and other.expires_ms > now_ms
            and other.delayed_until_ms == 0
            and all(receiver.wanted_since(other.stamp, other.header.subjects))
            and not fate.renewed
            and other.renewals == 0
        )

    def check_order(self, message: Message, endpoint: Endpoint) -> None:
        """First attempts come in the order of acceptance, for one receiver and one priority."""
        header = message.header
        fate = message.fate(endpoint.receiver)
        exempt = (
            header.ordering_key is not None
            or header.deliver_ms is not None
            or message.renewals > 0
            or fate.moved
            or header.max_receivers not in (None, 1)
            # What a blocking topic has under way goes first, also to one who came after it.
            or (self.settings.blocking and message.sent_in_epoch == self.block_epoch)
            or not all(endpoint.receiver.wanted_since(message.stamp, header.subjects))
        )
        if exempt:
            return
        priority = PRIORITY_NONE if header.priority is None else header.priority
        # Within a step only the deliveries of one endpoint are told in order.
        receiver = endpoint.receiver
        if receiver.step != self.step:
            receiver.step = self.step
            receiver.last_first |= receiver.first_now
        last = max(endpoint.last_first.get(priority, 0), receiver.last_first.get(priority, 0))
        if message.order < last:
            raise self.fail(
                f"message {message.sequence} came to {endpoint.receiver.name!r} out of order"
            )
        endpoint.last_first[priority] = message.order
        receiver.first_now[priority] = max(message.order, receiver.first_now.get(priority, 0))

    # --- answers ----------------------------------------------------------------------------

    def check_reply(self, effect: Reply, ticking: bool, now_ms: int) -> bool:
        """Judges an answer that was waited for; False if it is not one."""
        key = (effect.node, effect.request)
        if key in self.orders:
            self.check_ordered(key, effect.body, ticking, now_ms)
            return True
        for receiver in self.receivers.values():
            for endpoint in receiver.endpoints.values():
                if endpoint.node == effect.node and endpoint.pull == effect.request:
                    if not endpoint.pull_taken:
                        raise self.fail("a pull was given up before its time")
                    self.end_pull(endpoint)
        taken = self.pulls_over.pop(key, None)
        if taken is not None and effect.body["count"] != taken:
            raise self.fail(f"a pull was told {effect.body}, and got {taken}")
        return taken is not None

    def check_ordered(
        self, key: tuple[bytes, int], body: dict[str, Any], ticking: bool, now_ms: int
    ) -> None:
        deadline_ms = self.orders.pop(key)
        sequence = body["sequence"]
        if sequence is None:
            if deadline_ms is None or deadline_ms > now_ms:
                raise self.fail("an order was given up before its time")
            return
        message = self.live.get(sequence)
        if message is None or message.kind is not Kind.POOL or message.state is not State.HELD:
            raise self.fail(f"message {sequence} was ordered, but is not waiting")
        fate = message.shared
        self.check_may_go(message, fate, self.work, fate.attempts + 1, now_ms)
        deadline = now_ms + self.timeout_ms(self.work, "sent")
        out = Out(message, self.work, None, "sent", now_ms, deadline)
        self.hand_out(out, fate, fate.attempts + 1)

    def check_resolved(self, effect: Resolved, now_ms: int) -> None:
        receipt = (effect.producer, effect.number, effect.verdict)
        if receipt in self.expected:
            self.expected.remove(receipt)
            return
        if effect.verdict == FAILED:
            sequence = self.sequences.get((effect.producer, effect.number), 0)
            for name, status in effect.statuses.items():
                if status == FAILED:
                    self.give_up(sequence, name, now_ms)
            if receipt in self.expected:
                self.expected.remove(receipt)
                return
        # An expired message may come to the head of a queue before the walk of time finds it.
        for message in self.live.values():
            same = (message.producer, message.number) == (effect.producer, effect.number)
            if same and message.asked and message.expires_ms <= now_ms:
                self.expire_one(message, now_ms)
                if receipt in self.expected:
                    self.expected.remove(receipt)
                    return
                break
        raise self.fail(f"receipt {effect.number} {effect.verdict}: expected {self.expected}")

    def check_gone(self, effect: EndpointGone) -> None:
        if self.endpoint(effect.node, effect.endpoint) is not None:
            raise self.fail("an endpoint was told that it is gone, and is not")

    def check_outcomes(self, command: ask.AwaitReceipts, body: dict[str, Any], now_ms: int) -> None:
        """The answer to a publisher that asks for its receipts again."""
        producer = command.producer
        for number, told, _ in body["outcomes"]:
            known = self.verdicts.get((producer, number))
            if known is not None and known[1] + self.settings.receipt_ttl_ms > now_ms:
                right = told == known[0]
            elif told in (OK, FAILED, EXPIRED, "dropped"):
                right = known is not None and told == known[0]
            else:
                sequence = self.sequences.get((producer, number))
                right = told == ("pending" if sequence in self.live else "unknown")
            if not right:
                raise self.fail(f"receipt {number} is {known}, and was told as {told}")

    # --- probes -----------------------------------------------------------------------------

    def check_described(self, body: dict[str, Any], now_ms: int) -> None:
        out = self.out()
        # What has expired may be gone before the walk of time finds it.
        most, least = len(self.held()), sum(m.expires_ms > now_ms for m in self.held())
        known = {
            "held": max(least, min(body["held"], most)),
            "drafting": sum(m.state is State.DRAFT for m in self.live.values()),
            "sent": sum(held.status == "sent" for held in out),
            "received": sum(held.status == "received" for held in out),
            "parked": len(self.parked()),
            "completed": self.completed,
            "receivers": len(self.receivers),
            "endpoints": sum(len(r.endpoints) for r in self.receivers.values()),
        }
        told = {name: body[name] for name in known}
        if told != known:
            raise self.fail(f"it describes itself as {told}, and should be {known}")

    def check_stats(self, body: dict[str, Any], now_ms: int) -> None:
        out = [held for held in self.out() if held.message.kind is Kind.POOL]
        pool = [message for message in self.held() if message.kind is Kind.POOL]
        least = sum(message.expires_ms > now_ms for message in pool) - len(out)
        known = {
            "drafting": sum(m.state is State.DRAFT for m in self.live.values()),
            "waiting": max(least, min(body["waiting"], len(pool) - len(out))),
            "ordered": sum(held.status == "sent" for held in out),
            "active": sum(held.status == "received" for held in out),
            "completed": self.completed,
            "failed": len(self.parked()),
        }
        told = {name: body[name] for name in known}
        if told != known:
            raise self.fail(f"its statistics are {told}, and should be {known}")

    def check_receivers(self, body: dict[str, Any]) -> None:
        told = {
            row["name"]: (row["credit"], row["in_flight"], row["parked"], row["endpoints"])
            for row in body["receivers"]
        }
        parked = [receiver for message, receiver in self.parked() if message.kind is Kind.LOG]
        known = {
            name: (
                receiver.credit,
                len(receiver.held),
                sum(holder is receiver for holder in parked),
                len(receiver.endpoints),
            )
            for name, receiver in sorted(self.receivers.items())
        }
        if told != known:
            raise self.fail(f"its receivers are {told}, and should be {known}")

    def check_listed(self, body: dict[str, Any]) -> None:
        told = sorted((row["sequence"], row["receiver"], row["attempts"]) for row in body["parked"])
        known = sorted(
            (message.sequence, receiver.name, message.fate(receiver).attempts)
            for message, receiver in self.parked()
        )
        if told != known:
            raise self.fail(f"it lists as parked {told}, and should {known}")

    def check_nobody_idles(self, now_ms: int) -> None:
        """Nobody has credit while something that may go waits for them."""
        limit = self.settings.concurrency
        if self.settings.blocking or (limit is not None and len(self.out()) >= limit):
            return
        for message in self.live.values():
            if message.header.ordering_key is not None or message.delayed_until_ms > 0:
                continue
            if message.state is State.HELD and message.expires_ms > now_ms:
                self.check_nobody_waits_for(message, now_ms)

    def check_nobody_waits_for(self, message: Message, now_ms: int) -> None:
        if message.kind is Kind.POOL and self.orders and self.goes_now(message.shared, now_ms):
            raise self.fail(f"message {message.sequence} waits, and so does an order")
        for receiver in self.receivers.values():
            claims = receiver.credit > 0 and self.is_owed(message, receiver)
            if claims and self.goes_now(message.fate(receiver), now_ms):
                raise self.fail(
                    f"message {message.sequence} waits, and {receiver.name!r} has credit"
                )

    def goes_now(self, fate: Fate, now_ms: int) -> bool:
        waits = fate.standing is Standing.OWED and fate.paused_until_ms <= now_ms
        return waits and not self.is_doomed(fate)

    def is_owed(self, message: Message, receiver: Receiver) -> bool:
        """Whether this receiver certainly has a claim to a message that is held."""
        subjects = message.header.subjects
        if message.kind.single:
            return receiver.wants(subjects)
        if message.kind is Kind.ONLINE:
            return receiver in message.fates
        fate = message.fates.get(receiver)
        if fate is not None and fate.unsure:
            return False
        if message.header.max_receivers is None and receiver.born < message.revived:
            return False  # it may have read past it
        return (
            message.sequence >= receiver.moved_to
            and all(receiver.wanted_since(max(message.stamp, receiver.born), subjects))
            and self.has_place(message, receiver)
        )
