"""What each command should do to a topic, given that the broker did not refuse it."""

from collections.abc import Callable
from typing import Any

from asterism import commands as ask
from asterism.effects import Refusal
from asterism.message import NEVER_MS, Header, Mode, Status, decode_header
from asterism.settings import RejectNew
from tests.sim.ledger import DROPPED, Ledger
from tests.sim.model import (
    Endpoint,
    Kind,
    Message,
    Out,
    Receiver,
    Standing,
    State,
    kind_of,
)

EITHER = "either"  # a late report that changes nothing may be refused or not


class Applying(Ledger):
    """A ledger that follows commands."""

    def apply(self, command: Any, body: dict[str, Any], now_ms: int) -> None:
        """Follows a command that was carried out; ``body`` is that of its answer, if it has one."""
        follow = _FOLLOW.get(type(command))
        if follow is not None:
            follow(self, command, body, now_ms)

    # --- publishing -------------------------------------------------------------------------

    def accept_batch(
        self, command: ask.Publish, results: tuple[int | Refusal, ...], now_ms: int
    ) -> None:
        if len(results) != len(command.messages):
            raise self.fail("a batch and its answer differ in length")
        for index, result in enumerate(results):
            number = command.first + index
            producer = command.producer
            if producer is not None:
                known = self.answers.get((producer, number))
                if known is not None:
                    if known != result:
                        raise self.fail(f"number {number} was answered {known}, now {result}")
                    continue
                if number > 1 and (producer, number - 1) not in self.answers:
                    raise self.fail(f"number {number} was taken before {number - 1}")
                self.answers[producer, number] = result
            self.take_one(command.messages[index], producer, number, result, now_ms)

    def take_one(
        self,
        incoming: tuple[bytes, bytes, bytes],
        producer: bytes | None,
        number: int,
        result: int | Refusal,
        now_ms: int,
    ) -> None:
        message_id, encoded, payload = incoming
        header = decode_header(encoded)
        if isinstance(result, Refusal):
            self.check_refusal(header, payload, result, now_ms)
            return
        if producer is not None:
            self.sequences[producer, number] = result
        self.check_acceptable(header, payload, now_ms)
        self.accept(result, message_id, header, payload, producer, number, now_ms)

    def accept(
        self,
        sequence: int,
        message_id: bytes,
        header: Header,
        payload: bytes,
        producer: bytes | None,
        number: int,
        now_ms: int,
    ) -> None:
        self.take_sequence(sequence)
        self.make_room(now_ms)
        stamp = next(self.stamps)
        kind = kind_of(header)
        expires_ms = NEVER_MS if kind.in_memory else self.expires_ms(header.expires_ms, now_ms)
        message = Message(
            sequence, message_id, header, payload, now_ms, expires_ms, kind, stamp, stamp
        )
        if header.receipt and producer is not None:
            message.producer, message.number, message.asked = producer, number, True
        if header.deliver_ms is not None and header.deliver_ms > now_ms:
            message.delayed_until_ms = header.deliver_ms
        self.add(message, now_ms)

    def check_acceptable(self, header: Header, payload: bytes, now_ms: int) -> None:
        overflow = self.settings.overflow
        if isinstance(overflow, RejectNew) and self.least_held(now_ms) >= overflow.size:
            raise self.fail(f"a message was accepted over the overflow size {overflow.size}")
        if self.settings.unique and self.twin_of(payload) is not None:
            raise self.fail("a unique topic accepted a payload that it holds")
        if len(payload) > self.settings.max_payload:
            raise self.fail("a payload over the limit was accepted")

    def check_refusal(self, header: Header, payload: bytes, refusal: Refusal, now_ms: int) -> None:
        overflow = self.settings.overflow
        allowed = {
            "overflow": isinstance(overflow, RejectNew) and len(self.held()) >= overflow.size,
            "duplicate": self.settings.unique and self.twin_of(payload) is not None,
            "too_large": len(payload) > self.settings.max_payload,
            "no_receiver": header.mode is Mode.PUSH and not self.is_wanted(header.subjects),
        }
        if not allowed.get(refusal.code, False):
            raise self.fail(f"a message was refused without cause: {refusal}")

    def least_held(self, now_ms: int) -> int:
        """Held at the least: what has expired may be gone before the walk of time finds it."""
        doomed = {message.sequence for message, _, _ in self.doomed()}
        return sum(
            message.expires_ms > now_ms and message.sequence not in doomed
            for message in self.held()
        )

    def twin_of(self, payload: bytes, itself: int = 0) -> Message | None:
        """A live message with this payload."""
        for message in self.live.values():
            counts = message.state is not State.DRAFT and message.sequence != itself
            if counts and message.payload == payload:
                return message
        return None

    # --- subscribing ------------------------------------------------------------------------

    def subscribe(self, command: ask.Subscribe, body: dict[str, Any], now_ms: int) -> None:
        there = self.endpoint(command.node, command.endpoint)
        if there is not None:
            if command.holding is None:
                raise self.fail(f"endpoint {command.endpoint} is there, and was not refused")
            self.suspend(there, now_ms)
        name = command.group if command.group is not None else command.name
        durable = name is not None and command.durable is not False
        told = body["receiver"]
        if name is not None and told != name:
            raise self.fail(f"subscribed to {name!r}, and was told {told!r}")
        nodes = former_nodes(command)
        former = self.take_absences(command, nodes, told)
        receiver = self.receivers.get(told)
        if receiver is None:
            receiver = self.receivers[told] = Receiver(told, durable, next(self.stamps))
        joins = durable and (command.group is not None or bool(receiver.endpoints))
        kept = receiver.interests if joins else ()
        endpoint = Endpoint(command.node, command.endpoint, receiver, command.interests)
        receiver.endpoints[command.node, command.endpoint] = endpoint
        if command.sent_timeout_ms is not None:
            receiver.sent_timeout_ms = command.sent_timeout_ms
        if command.received_timeout_ms is not None:
            receiver.received_timeout_ms = command.received_timeout_ms
        if (command.sent_timeout_ms, command.received_timeout_ms) != (None, None):
            self.move_deadlines()
        self.join_interests(receiver, kept)
        endpoint.credit += command.credit
        self.come_back(endpoint, nodes, command, body, now_ms)
        for known in former:
            self.review(known, now_ms)

    def take_absences(
        self, command: ask.Subscribe, nodes: list[bytes], told: str
    ) -> dict[Receiver, None]:
        """An endpoint has come back; the receivers that waited for it. One without a name is that
        receiver again."""
        former: dict[Receiver, None] = {}
        for node in (*nodes, command.node):
            known = self.waits_for(node, command.endpoint)
            if known is not None:
                former[known] = None
                del known.away[node, command.endpoint]
        waits = [known.name for known in former if known.name.startswith("~")]
        if command.name is command.group is None and waits and told != waits[0]:
            raise self.fail(f"{command.node!r} came back to {waits[0]!r}, and was told {told!r}")
        return former

    def come_back(
        self,
        endpoint: Endpoint,
        nodes: list[bytes],
        command: ask.Subscribe,
        body: dict[str, Any],
        now_ms: int,
    ) -> None:
        """An endpoint has again what it says that it holds; the rest never reached it."""
        named = None
        if command.holding is not None:
            _, sequences, attempts = command.holding
            named = dict(zip(sequences, attempts, strict=True))
        for node in nodes:
            for out in self.kept_for(node, command.endpoint):
                receiver, sequence = out.receiver, out.message.sequence
                is_anothers = receiver is not endpoint.receiver
                if is_anothers and (receiver.durable or out.message.kind is Kind.LOG):
                    continue
                fate = out.message.fate(receiver)
                if named is None or named.get(sequence) == fate.attempts:
                    self.take_back(out, endpoint, now_ms)
                else:
                    self.unreachable(out, now_ms)
        mine = {key for key, out in endpoint.receiver.held.items() if out.endpoint is endpoint}
        lost = [sequence for sequence in named or () if sequence not in mine]
        if list(body.get("lost", [])) != lost:
            raise self.fail(f"{lost} are not {command.node!r}'s, and it was told {body}")

    def create_receiver(
        self, command: ask.CreateReceiver, body: dict[str, Any], now_ms: int
    ) -> None:
        receiver = Receiver(command.name, True, next(self.stamps))
        receiver.sent_timeout_ms = command.sent_timeout_ms
        receiver.received_timeout_ms = command.received_timeout_ms
        self.receivers[command.name] = receiver
        self.set_interests(receiver, command.interests)

    def replace_interests(
        self, command: ask.SetInterests, body: dict[str, Any], now_ms: int
    ) -> None:
        endpoint = self.found(command.node, command.endpoint)
        endpoint.interests = command.interests
        self.join_interests(endpoint.receiver)

    def found(self, node: bytes, number: int) -> Endpoint:
        endpoint = self.endpoint(node, number)
        if endpoint is None:
            raise self.fail(f"endpoint {number} is not there, and was not refused")
        return endpoint

    def unsubscribe(self, command: ask.Unsubscribe, body: dict[str, Any], now_ms: int) -> None:
        self.detach(self.found(command.node, command.endpoint), now_ms)

    def detach_node(self, command: ask.Detach, body: dict[str, Any], now_ms: int) -> None:
        for receiver in list(self.receivers.values()):
            for endpoint in list(receiver.endpoints.values()):
                if endpoint.node == command.node:
                    self.detach(endpoint, now_ms)
        for out in self.kept_for(command.node):
            self.unreachable(out, now_ms)
        for receiver in list(self.receivers.values()):
            for holder in [holder for holder in receiver.away if holder[0] == command.node]:
                self.end_absence(receiver, holder, now_ms)
        self.forget_orders(command.node)

    def suspend_node(self, command: ask.Suspend, body: dict[str, Any], now_ms: int) -> None:
        for receiver in list(self.receivers.values()):
            for endpoint in list(receiver.endpoints.values()):
                if endpoint.node == command.node and self.grace_ms:
                    self.suspend(endpoint, now_ms)
                elif endpoint.node == command.node:
                    self.detach(endpoint, now_ms)
        self.forget_orders(command.node)

    def forget_orders(self, node: bytes) -> None:
        for key in [key for key in self.orders if key[0] == node]:
            del self.orders[key]

    def grant(self, command: ask.Grant, body: dict[str, Any], now_ms: int) -> None:
        endpoint = self.endpoint(command.node, command.endpoint)
        if endpoint is not None:
            unused = min(endpoint.credit, command.less)
            endpoint.credit -= unused
            endpoint.owed += command.less - unused
            paid = min(endpoint.owed, command.credit)
            endpoint.owed -= paid
            endpoint.credit += command.credit - paid

    def pull(self, command: ask.Pull, body: dict[str, Any], now_ms: int) -> None:
        endpoint = self.found(command.node, command.endpoint)
        endpoint.pull = command.request
        endpoint.pull_left = command.count
        endpoint.pull_taken = 0
        endpoint.pull_deadline_ms = now_ms + command.wait_ms
        endpoint.credit += command.count

    def cancel_wait(self, command: ask.CancelWait, body: dict[str, Any], now_ms: int) -> None:
        self.orders.pop((command.node, command.waiting), None)
        for receiver in self.receivers.values():
            for endpoint in receiver.endpoints.values():
                if endpoint.node == command.node and endpoint.pull == command.waiting:
                    self.end_pull(endpoint)

    def delete_receiver(
        self, command: ask.DeleteReceiver, body: dict[str, Any], now_ms: int
    ) -> None:
        receiver = self.receivers[command.name]
        for endpoint in list(receiver.endpoints.values()):
            self.detach(endpoint, now_ms)
        if receiver.exists:
            self.remove(receiver, now_ms)

    def seek(self, command: ask.Seek, body: dict[str, Any], now_ms: int) -> None:
        receiver = self.receivers[command.name]
        receiver.moved_to = body["sequence"]
        for out in list(receiver.held.values()):
            if out.message.kind is Kind.LOG:
                self.back(out)
        for message in list(self.live.values()):
            fate = message.fates.get(receiver)
            if fate is None or message.kind is not Kind.LOG or fate.standing is Standing.PARKED:
                continue
            if message.state is State.KEPT:
                fate.standing = Standing.OVER
                self.end_if_kept_for_nothing(message, now_ms)
                continue
            if message.header.max_receivers is not None:
                fate.has_place |= fate.standing in (Standing.DONE, Standing.FAILED)
            fate.standing = Standing.OWED
            fate.attempts = fate.spent = 0
            fate.paused_until_ms = 0
            fate.renewed = False
            fate.moved = True
        receiver.forget_order()

    # --- reports ----------------------------------------------------------------------------

    def reporter(self, node: bytes, number: int, name: str | None) -> Receiver:
        if name is None:
            return self.found(node, number).receiver
        return self.receivers[name]

    def report(self, command: ask.Report, body: dict[str, Any], now_ms: int) -> None:
        receiver = self.reporter(command.node, command.endpoint, command.receiver)
        refused = []
        told = told_refused(body)
        for index, sequence in enumerate(command.sequences):
            out = receiver.held.get(sequence)
            attempt = None if command.attempts is None else command.attempts[index]
            if out is None:
                code = self.late(receiver, sequence, command.status, told, now_ms)
                if code is not None:
                    refused.append((sequence, code))
            elif command.status is Status.PROCESSED or attempt in (
                None,
                out.message.fate(receiver).attempts,
            ):
                self.report_one(out, command.status, command.reason, now_ms)
        self.check_refused(refused, body)

    def check_refused(self, refused: list[tuple[int, str]], body: dict[str, Any]) -> None:
        told = told_refused(body)
        unsure = [sequence for sequence, code in refused if code == EITHER]
        known = [pair for pair in refused if pair[0] not in unsure]
        if [pair for pair in told if pair[0] not in unsure] != known:
            raise self.fail(f"reports were refused as {told}, not {refused}")

    def report_one(self, out: Out, status: Status, reason: str, now_ms: int) -> None:
        message, receiver = out.message, out.receiver
        if status is Status.FAILED:
            self.failed(out, reason, now_ms)
        elif status >= message.header.expect:
            self.back(out)
            self.done(message, receiver, now_ms)
        elif status is Status.RECEIVED and out.status == "sent":
            self.climb(out, now_ms)

    def climb(self, out: Out, now_ms: int) -> None:
        out.status = "received"
        if out.absent is not None:
            return  # the grace goes on
        out.started_ms = now_ms
        out.extended = False
        out.deadline_ms = now_ms + self.timeout_ms(out.receiver, "received")

    def late(
        self,
        receiver: Receiver,
        sequence: int,
        status: Status,
        told: list[tuple[int, str]],
        now_ms: int,
    ) -> str | None:
        """A report on what the receiver does not hold."""
        message = self.live.get(sequence)
        if message is None:
            return None
        if message.kind.single:
            return self.late_single(message, receiver, status, now_ms)
        fate = message.fates.get(receiver)
        if fate is None or fate.standing is not Standing.OWED or fate.tries == 0:
            return EITHER
        if status is not Status.PROCESSED or not self.has_place(message, receiver):
            return EITHER
        always = all(receiver.wanted_since(message.stamp, message.header.subjects))
        # Whether it still counts where interests have changed since is the broker's to say.
        refused = any(refused == sequence for refused, _ in told)
        if not always and (refused or not self.was_counted(self.name, sequence, receiver.name)):
            return EITHER
        self.done(message, receiver, now_ms)
        return None

    def has_place(self, message: Message, receiver: Receiver) -> bool:
        """Whether this receiver may have a log message."""
        wanted = message.header.max_receivers
        if wanted is None:
            return True
        standings = (Standing.OUT, Standing.DONE, Standing.PARKED, Standing.FAILED)
        taken = [r for r, f in message.fates.items() if f.has_place or f.standing in standings]
        return receiver in taken or len(taken) < wanted

    def late_single(
        self, message: Message, receiver: Receiver, status: Status, now_ms: int
    ) -> str | None:
        fate = message.shared
        if fate.standing is Standing.OUT:
            return "not_yours"
        if message.state is State.PARKED:
            return None
        if fate.holder is not receiver:
            return "not_yours"
        if status is Status.PROCESSED:
            self.done(message, receiver, now_ms)
        return None

    def extend(self, command: ask.Extend, body: dict[str, Any], now_ms: int) -> None:
        receiver = self.reporter(command.node, command.endpoint, command.receiver)
        refused = []
        attempts = dict(zip(command.sequences, command.attempts or (), strict=False))
        for sequence in dict.fromkeys(command.sequences):
            out = receiver.held.get(sequence)
            if attempts and (out is None or attempt_of(out) != attempts[sequence]):
                refused.append((sequence, "not_yours"))
            elif out is None:
                code = self.late(receiver, sequence, Status.RECEIVED, [], now_ms)
                if code is not None:
                    refused.append((sequence, code))
            elif command.timeout_ms == 0:
                self.unreachable(out, now_ms)
            elif command.timeout_ms is None:
                self.renew_lease(out, now_ms)
            else:
                out.deadline_ms = now_ms + command.timeout_ms
                out.extended = True
        self.check_refused(refused, body)

    def renew_lease(self, out: Out, now_ms: int) -> None:
        """Its deadline begins anew; one that it asked for, and is later, stays."""
        deadline_ms = now_ms + self.timeout_ms(out.receiver, out.status)
        if not out.extended or out.deadline_ms < deadline_ms:
            out.deadline_ms = deadline_ms
            out.extended = False
        out.started_ms = now_ms

    # --- the topic --------------------------------------------------------------------------

    def configure(self, command: ask.Configure, body: dict[str, Any], now_ms: int) -> None:
        self.override(dict(command.changes), command.inherit)

    def override(self, changes: dict[str, Any], inherit: tuple[str, ...] = ()) -> None:
        merged = self.overrides | changes
        self.overrides = {name: value for name, value in merged.items() if name not in inherit}
        before, self.settings = self.settings, self.defaults.changed(self.overrides)
        self.block_epoch += before.blocking != self.settings.blocking
        self.move_deadlines()

    def move_deadlines(self) -> None:
        """Timeouts changed: they hold for what is out already, unless it asked for its own."""
        for out in self.out():
            if not out.extended:
                out.deadline_ms = out.started_ms + self.timeout_ms(out.receiver, out.status)

    def clear(self, command: ask.Clear, body: dict[str, Any], now_ms: int) -> None:
        for message in list(self.live.values()):
            self.end(message, DROPPED, now_ms)
        self.orders.clear()
        self.outbox.clear()
        self.completed = 0

    def renew_one(self, command: ask.Renew, body: dict[str, Any], now_ms: int) -> None:
        for message, receiver in self.parked_as(command.sequence, command.receiver):
            self.renew(message, receiver, now_ms)

    def parked_as(self, sequence: int, name: str | None) -> list[tuple[Message, Receiver]]:
        return [
            (message, receiver)
            for message, receiver in self.parked()
            if message.sequence == sequence
            and (name in (None, receiver.name) or message.kind is Kind.POOL)
        ]

    def renew_all(self, command: ask.RenewAll, body: dict[str, Any], now_ms: int) -> None:
        for message, receiver in self.parked():
            self.renew(message, receiver, now_ms)

    def abandon_all(self, command: ask.AbandonAll, body: dict[str, Any], now_ms: int) -> None:
        for message, receiver in self.parked():
            if message.state is not State.ENDED:
                self.abandon_parked(message, receiver, now_ms)

    def abandon(self, command: ask.Abandon, body: dict[str, Any], now_ms: int) -> None:
        message = self.live.get(command.sequence)
        if message is None:
            if command.receiver is None:
                raise self.fail("a message that is not there was abandoned")
            return
        if command.receiver is None:
            self.end(message, DROPPED, now_ms)
            return
        for parked, receiver in self.parked():
            named = receiver.name == command.receiver or message.kind is Kind.POOL
            if parked is message and named:
                self.abandon_parked(message, receiver, now_ms)

    # --- the work queue ---------------------------------------------------------------------

    def draft(self, command: ask.Draft, body: dict[str, Any], now_ms: int) -> None:
        sequence = body["sequence"]
        self.take_sequence(sequence)
        header = Header(
            Mode.DURABLE, Status.PROCESSED, (self.name,), {}, 1, NEVER_MS, command.priority
        )
        stamp = next(self.stamps)
        self.live[sequence] = Message(
            sequence,
            command.id,
            header,
            b"",
            now_ms,
            NEVER_MS,
            Kind.POOL,
            stamp,
            stamp,
            State.DRAFT,
        )

    def set_draft(self, command: ask.SetDraft, body: dict[str, Any], now_ms: int) -> None:
        message = self.live.get(command.sequence)
        if message is None or message.outs() or message.state is State.PARKED:
            raise self.fail("a message that is neither drafting nor waiting was set")
        twin = self.twin_of(command.payload, command.sequence)
        if self.settings.unique and twin is not None:
            raise self.fail("a draft got a payload that the unique topic holds")
        old = message.header
        message.header = Header(
            old.mode, old.expect, old.subjects, command.attributes, old.max_receivers,
            old.expires_ms, old.priority, old.deliver_ms, old.ordering_key, old.receipt,
        )  # fmt: skip
        if message.state is State.DRAFT:
            self.make_room(now_ms)
            message.state = State.HELD
            message.stamp = message.order = next(self.stamps)
            message.accepted_ms = now_ms
        message.payload = command.payload

    def order(self, command: ask.Order, body: dict[str, Any], now_ms: int) -> None:
        deadline_ms = None if command.wait_ms is None else now_ms + command.wait_ms
        self.orders[command.node, command.request] = deadline_ms

    def fetch(self, command: ask.Fetch, body: dict[str, Any], now_ms: int) -> None:
        message = self.live.get(command.sequence)
        if message is None or message.state is State.DRAFT:
            raise self.fail("a message that is not there was read")
        out = self.work.held.get(command.sequence)
        if out is not None and out.status == "sent":
            self.climb(out, now_ms)
        status = "failed" if message.state is State.PARKED else "waiting"
        for _, held in message.outs():
            status = held.status
        told = (body["status"], body["payload"], body["attributes"], body["id"])
        known = (status, message.payload, message.header.attributes, message.id)
        if told != known:
            raise self.fail(f"message {command.sequence} was read as {told}, not {known}")

    def active(self, sequence: int) -> Out:
        out = self.work.held.get(sequence)
        if out is None or out.status != "received":
            raise self.fail(f"message {sequence} is not active, and was ended")
        return out

    def complete(self, command: ask.Complete, body: dict[str, Any], now_ms: int) -> None:
        out = self.active(command.sequence)
        self.back(out)
        self.done(out.message, self.work, now_ms)

    def fail_order(self, command: ask.Fail, body: dict[str, Any], now_ms: int) -> None:
        self.failed(self.active(command.sequence), command.reason, now_ms)

    def may_refuse(self, command: Any, code: str, now_ms: int) -> bool:
        """Whether a refusal is right, for the commands of which that is known."""
        match command:
            case ask.Complete() | ask.Fail():
                out = self.work.held.get(command.sequence)
                return out is None or out.status != "received"
            case ask.Fetch():
                message = self.live.get(command.sequence)
                return message is None or message.state is State.DRAFT or not is_pool(message)
            case ask.SetDraft():
                return self.may_refuse_set(command, code)
            case ask.Renew():
                return not self.parked_as(command.sequence, command.receiver)
            case ask.Abandon():
                if command.receiver is not None:
                    return not self.parked_as(command.sequence, command.receiver)
                return command.sequence not in self.live
            case ask.Report() | ask.Extend() if command.receiver is not None:
                return command.receiver not in self.receivers
            case ask.Report() | ask.Extend() | ask.SetInterests() | ask.Unsubscribe():
                return self.endpoint(command.node, command.endpoint) is None
            case ask.Describe() | ask.Clear() | ask.Draft() | ask.RenewAll() | ask.AbandonAll():
                return False
            case _:
                return True

    def may_refuse_set(self, command: ask.SetDraft, code: str) -> bool:
        message = self.live.get(command.sequence)
        if message is None or not is_pool(message):
            return True
        overflow = self.settings.overflow
        if code == "overflow":
            full = isinstance(overflow, RejectNew) and len(self.held()) >= overflow.size
            return full and message.state is State.DRAFT
        if code == "duplicate":
            return self.twin_of(command.payload, command.sequence) is not None
        return bool(message.outs()) or message.state is State.PARKED


def told_refused(body: dict[str, Any]) -> list[tuple[int, str]]:
    return [(sequence, code) for sequence, code in body.get("refused", [])]


def former_nodes(command: ask.Subscribe) -> list[bytes]:
    """As which nodes an endpoint may have been there before."""
    if command.holding is None:
        return [command.node]
    sessions = command.holding[0]
    return list(dict.fromkeys(session + command.node[len(session) :] for session in sessions))


def is_pool(message: Message) -> bool:
    return message.kind is Kind.POOL


_Follow = Callable[[Any, Any, dict[str, Any], int], None]
_FOLLOW: dict[type, _Follow] = {
    ask.Subscribe: Applying.subscribe,
    ask.CreateReceiver: Applying.create_receiver,
    ask.SetInterests: Applying.replace_interests,
    ask.Unsubscribe: Applying.unsubscribe,
    ask.Detach: Applying.detach_node,
    ask.Suspend: Applying.suspend_node,
    ask.Grant: Applying.grant,
    ask.Pull: Applying.pull,
    ask.CancelWait: Applying.cancel_wait,
    ask.DeleteReceiver: Applying.delete_receiver,
    ask.Seek: Applying.seek,
    ask.Report: Applying.report,
    ask.Extend: Applying.extend,
    ask.Configure: Applying.configure,
    ask.Clear: Applying.clear,
    ask.Renew: Applying.renew_one,
    ask.RenewAll: Applying.renew_all,
    ask.Abandon: Applying.abandon,
    ask.AbandonAll: Applying.abandon_all,
    ask.Draft: Applying.draft,
    ask.SetDraft: Applying.set_draft,
    ask.Order: Applying.order,
    ask.Fetch: Applying.fetch,
    ask.Complete: Applying.complete,
    ask.Fail: Applying.fail_order,
}


def attempt_of(out: Out) -> int:
    return out.message.fate(out.receiver).attempts
