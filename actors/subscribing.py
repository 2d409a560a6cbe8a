"""Receiving: subscriptions, credit, pulls, reports, and what a lost connection does."""

from collections.abc import Iterable
from heapq import heapify, heappush
from itertools import islice

from asterism import limits
from asterism.actors.delivery import LOG_KIND, Delivery, Message
from asterism.actors.lags import Lag, Lags
from asterism.actors.leases import Page
from asterism.actors.pool import rank_of_delivery
from asterism.actors.receivers import Endpoint, Receiver, Wait, unnamed
from asterism.commands import (
    CancelWait,
    CreateReceiver,
    DeleteReceiver,
    Detach,
    Extend,
    Grant,
    ListReceivers,
    Pull,
    Report,
    Seek,
    SetInterests,
    Subscribe,
    Suspend,
    Unsubscribe,
)
from asterism.effects import EndpointGone, Refuse, Reply
from asterism.errors import PeerError
from asterism.message import Mode, Status
from asterism.storage.keys import NONE_RANK, POOL, WORK_NAME, number_at_end
from asterism.storage.records import NATURAL, ONLY_PARKED, PARKED, decode_exception, decode_record
from asterism.subjects import split_interest


class Subscribing(Lags):
    """Serves those who receive."""

    # --- subscriptions ----------------------------------------------------------------------

    def on_subscribe(self, command: Subscribe, now_ms: int) -> None:
        if len(self.receivers.endpoints) >= limits.ENDPOINTS_MAX:
            raise PeerError("busy", "the topic has as many endpoints as it may", 1_000)
        there = self.receivers.endpoints.get((command.node, command.endpoint))
        if there is not None and command.holding is None:
            raise PeerError("wrong_state", f"endpoint {command.endpoint} is on this topic already")
        interests = normalised(command.interests)
        self.receivers.check_room(interests)
        self.check_group(command, interests)
        self.check_receiver_of(command)
        if there is not None:  # its client was told that it is gone, and says what it has of it
            self.suspend_endpoint(there, now_ms)
        nodes = former_nodes(command)
        receiver = self.receiver_for(command, nodes)
        # Another member of a group may be on its way back: what it wants is kept for it. A name
        # is one consumer's, who says anew what he wants.
        joins = receiver.durable and (command.group is not None or receiver.online)
        kept = receiver.interests if joins else ()
        self.set_timeouts(receiver, command.sent_timeout_ms, command.received_timeout_ms)
        endpoint = self.receivers.attach(
            command.node, command.endpoint, receiver, interests, command.echo
        )
        former = self.take_absences([*nodes, command.node], command.endpoint)
        if receiver.stored and not receiver.durable:
            self.write_endpoint(endpoint)
        self.renew_interests(receiver, kept)
        self.credit(endpoint, command.credit)
        lost = self.give_back(endpoint, nodes, command, now_ms)
        for other in dict.fromkeys(former):
            self.review_passing(other, now_ms)
        told: dict[str, object] = {"receiver": receiver.name, **timeouts_of(receiver)}
        if lost:
            told["lost"] = lost
        self.effects.append(Reply(command.node, command.request, told))

    def check_group(self, command: Subscribe, interests: tuple[str, ...]) -> None:
        """A group keeps the interests of all who ever joined it, within a bound."""
        group = self.receivers.by_name.get(command.group or "")
        kept = () if group is None else group.interests
        if len({*kept, *interests}) > limits.RECEIVER_INTERESTS_MAX:
            raise PeerError("too_large", f"the group {command.group!r} has too many interests")

    def check_receiver_of(self, command: Subscribe) -> None:
        """Refuses a receiver that ``receiver_for`` may not give, before anything has changed."""
        named = command.group if command.group is not None else command.name
        if named is None:
            return
        if named.startswith("~"):
            raise PeerError("bad_request", "a receiver's name does not begin with ~")
        durable = command.durable is not False
        receiver = self.receivers.by_name.get(named)
        if receiver is None:
            check_not_work(named)
            self.receivers.check_one_more(durable)
        elif receiver.durable != durable:
            kind = "durable" if receiver.durable else "not durable"
            raise PeerError("wrong_state", f"the receiver {named!r} exists and is {kind}")

    def receiver_for(self, command: Subscribe, nodes: list[bytes]) -> Receiver:
        """The receiver that an endpoint is of; a new one where there is none."""
        named = command.group if command.group is not None else command.name
        if named is None:
            for node in (*nodes, command.node):
                waits = self.absences.find(node, command.endpoint)
                if waits is not None and waits.name.startswith("~"):
                    return waits
            named = unnamed(command.node, command.endpoint)
        durable = command.durable is not False and not named.startswith("~")
        return self.receivers.by_name.get(named) or self.create_receiver(named, durable)

    def create_receiver(self, name: str, durable: bool) -> Receiver:
        """A new receiver: it is owed every live log message that it is interested in."""
        receiver = self.receivers.create(name, durable)
        if self.log_held:
            receiver.horizon = 0
        if durable:
            self.write_receiver(receiver)
        self.head_dirty = True
        return receiver

    def set_timeouts(
        self, receiver: Receiver, sent_ms: int | None, received_ms: int | None
    ) -> None:
        """Takes over the timeouts that were given; they hold for what is out already, too."""
        if sent_ms is None and received_ms is None:
            return
        before = timeouts_of(receiver)
        own = receiver.sent_timeout_ms, receiver.received_timeout_ms
        if sent_ms is not None:
            receiver.sent_timeout_ms = sent_ms
        if received_ms is not None:
            receiver.received_timeout_ms = received_ms
        if receiver.stored and own != (receiver.sent_timeout_ms, receiver.received_timeout_ms):
            self.write_receiver(receiver)
        self.pages.settings_changed()
        if timeouts_of(receiver) != before:
            self.tell_timeouts(receiver)

    def tell_timeouts(self, receiver: Receiver) -> None:
        """Those who hold deliveries extend them in time, and so must know what time they have."""
        for endpoint in receiver.endpoints.values():
            told = {"endpoint": endpoint.number, **timeouts_of(receiver)}
            self.effects.append(Reply(endpoint.node, 0, told))

    def renew_interests(self, receiver: Receiver, kept: tuple[str, ...] = ()) -> None:
        """A receiver is interested in whatever one of its endpoints is."""
        before = receiver.interests
        union = [
            interest for endpoint in receiver.endpoints.values() for interest in endpoint.interests
        ]
        for away in receiver.away.values():
            union += away
        if self.receivers.set_interests(receiver, (*kept, *union)):
            self.drop_unwanted(receiver)
            self.reopen_keys(receiver)
            if self.log_held and not set(before) >= set(receiver.interests):
                self.log.read_anew(receiver)
            self.recount(receiver)
            if receiver.durable:
                self.write_receiver(receiver)
        if receiver.credit:
            self.hungry[receiver] = None

    def drop_unwanted(self, receiver: Receiver) -> None:
        """Interests changed: log messages that wait and match no longer are not sent."""
        number = receiver.number
        for delivery in list(receiver.known.values()):
            message = delivery.message
            if delivery.waits and number not in self.receivers.audience(message.header.subjects):
                self.leave_log(delivery, receiver)
                self.release_receiver_key(delivery, receiver)
                self.log.leave(delivery.sequence, message.flags)

    def reopen_keys(self, receiver: Receiver) -> None:
        """What held others of its key up may do so no longer: they are looked at again."""
        for following in receiver.locks.reopen():
            self.wait_for_turn(following, receiver)

    def on_create_receiver(self, command: CreateReceiver, now_ms: int) -> None:
        if command.name in self.receivers.by_name:
            raise PeerError("wrong_state", f"the receiver {command.name!r} exists already")
        if command.name.startswith("~"):
            raise PeerError("bad_request", "a durable receiver's name does not begin with ~")
        check_not_work(command.name)
        interests = normalised(command.interests)
        self.receivers.check_room(interests)
        receiver = self.create_receiver(command.name, True)
        receiver.sent_timeout_ms = command.sent_timeout_ms
        receiver.received_timeout_ms = command.received_timeout_ms
        self.receivers.set_interests(receiver, interests)
        self.recount(receiver)
        self.write_receiver(receiver)
        self.effects.append(Reply(command.node, command.request, {"receiver": receiver.name}))

    def on_set_interests(self, command: SetInterests, now_ms: int) -> None:
        endpoint = self.receivers.endpoint(command.node, command.endpoint)
        interests = normalised(command.interests)
        self.receivers.check_room(interests)
        endpoint.interests = interests
        if endpoint.receiver.stored and not endpoint.receiver.durable:
            self.write_endpoint(endpoint)
        self.renew_interests(endpoint.receiver)
        self.effects.append(Reply(command.node, command.request))

    def on_unsubscribe(self, command: Unsubscribe, now_ms: int) -> None:
        endpoint = self.receivers.endpoint(command.node, command.endpoint)
        if endpoint.pull is not None:
            self.end_pull(endpoint)
        self.detach_endpoint(endpoint, now_ms)
        self.effects.append(Reply(command.node, command.request))

    def on_detach(self, command: Detach, now_ms: int) -> None:
        for number in list(self.receivers.nodes.get(command.node, ())):
            self.detach_endpoint(self.receivers.endpoint(command.node, number), now_ms)
        self.fail_over(self.pages.absent_of(command.node), now_ms)
        for number in self.absences.of(command.node):
            self.end_absence(command.node, number, now_ms)
        self.end_orders_of(command.node)

    def end_orders_of(self, node: bytes) -> None:
        work = self.receivers.work
        for key in [key for key in work.orders if key[0] == node]:
            self.end_order(work.orders[key])

    def detach_endpoint(self, endpoint: Endpoint, now_ms: int) -> None:
        """An endpoint ends: what it held fails over at once."""
        receiver = endpoint.receiver
        if endpoint.pull is not None:
            endpoint.pull.over = True
            endpoint.pull = None
        self.receivers.detach(endpoint)
        self.fail_over(self.held_by(endpoint), now_ms)
        if (endpoint.node, endpoint.number) not in receiver.away:
            self.delete_endpoint(receiver, endpoint.node, endpoint.number)
        if not receiver.endpoints:
            self.drop_waiting_copies(receiver, now_ms)
            # What is behind one that only this receiver wants need not wait for it to come back.
            for following in self.pool.locks.reopen():
                self.fed[self.pool.offer(following)] = None
        if not receiver.durable:
            self.review_passing(receiver, now_ms)

    def review_passing(self, receiver: Receiver, now_ms: int) -> None:
        """A receiver that lives with its connections has lost one, and may have lost the last."""
        if receiver.is_over:
            self.remove_receiver(receiver, now_ms)
        else:
            self.renew_interests(receiver)

    def held_by(self, endpoint: Endpoint) -> list[Delivery]:
        held = endpoint.receiver.held.values()
        return [delivery for delivery in held if delivery.endpoint is endpoint]

    def fail_over(self, deliveries: list[Delivery], now_ms: int) -> None:
        """Their holder is gone, or never got them."""
        for delivery in sorted(deliveries, key=rank_of_delivery):
            self.unreachable(delivery, now_ms)

    # --- holders that are away, and come back -----------------------------------------------

    def on_suspend(self, command: Suspend, now_ms: int) -> None:
        for number in list(self.receivers.nodes.get(command.node, ())):
            endpoint = self.receivers.endpoint(command.node, number)
            if self.grace_ms:
                self.suspend_endpoint(endpoint, now_ms)
            else:
                self.detach_endpoint(endpoint, now_ms)
        self.end_orders_of(command.node)

    def suspend_endpoint(self, endpoint: Endpoint, now_ms: int) -> None:
        """An endpoint ends and may come back: what it held stays out, for it alone."""
        receiver, until_ms = endpoint.receiver, now_ms + self.grace_ms
        if not receiver.durable:
            if self.absences.count >= limits.ENDPOINTS_MAX:
                self.detach_endpoint(endpoint, now_ms)
                return
            self.absences.add(
                receiver, endpoint.node, endpoint.number, endpoint.interests, until_ms
            )
        for delivery in self.held_by(endpoint):
            message, page = delivery.message, delivery.page
            if message.header.mode is Mode.ONLINE:
                continue  # it ends with being online
            assert page is not None
            delivery.endpoint, delivery.size = None, 0
            if not page.is_absent:
                self.pages.keep(page, until_ms)
        self.detach_endpoint(endpoint, now_ms)

    def take_absences(self, nodes: list[bytes], endpoint: int) -> list[Receiver]:
        """An endpoint has come back under one of these names; the receivers that waited for it."""
        former = []
        for node in nodes:
            if self.absences.find(node, endpoint) is not None:
                former.append(self.absences.take(node, endpoint))
                self.delete_endpoint(former[-1], node, endpoint)
        return former

    def end_absence(self, node: bytes, endpoint: int, now_ms: int) -> None:
        """An endpoint that was away is gone, or its grace is over."""
        (receiver,) = self.take_absences([node], endpoint)
        self.review_passing(receiver, now_ms)

    def move_held(self, delivery: Delivery, receiver: Receiver) -> None:
        """Hands a delivery that is out to another receiver; the caller changes its page."""
        before = delivery.receiver
        assert before is not None
        del before.held[delivery.sequence]
        receiver.held[delivery.sequence] = delivery
        delivery.receiver, delivery.holder = receiver, receiver.number

    def give_back(
        self, endpoint: Endpoint, nodes: list[bytes], command: Subscribe, now_ms: int
    ) -> list[int]:
        """Gives an endpoint that comes back what it still holds; those that it names in vain.

        What was kept for it and it does not name was lost on its way, and fails over.
        """
        named = None
        if command.holding is not None:
            _, sequences, attempts = command.holding
            named = dict(zip(sequences, attempts, strict=True))
        missed: list[Delivery] = []
        for node in nodes:
            for delivery in self.pages.absent_of(node, command.endpoint):
                receiver = delivery.receiver
                assert receiver is not None
                is_anothers = receiver is not endpoint.receiver
                if is_anothers and (receiver.durable or delivery.message.kind == LOG_KIND):
                    continue
                if named is None or named.get(delivery.sequence) == delivery.attempts:
                    self.take_back(delivery, endpoint, now_ms)
                else:
                    missed.append(delivery)
        self.fail_over(missed, now_ms)
        held = endpoint.receiver.held
        return [
            sequence
            for sequence in named or ()
            if sequence not in held or held[sequence].endpoint is not endpoint
        ]

    def take_back(self, delivery: Delivery, endpoint: Endpoint, now_ms: int) -> None:
        """A delivery is out with its holder again: the same attempt, with a new deadline."""
        receiver = endpoint.receiver
        self.pages.remove(delivery)
        self.move_held(delivery, receiver)
        delivery.endpoint = endpoint
        # It takes credit as when it was sent; what there is no credit for gives none back.
        delivery.returns_credit = endpoint.credit + endpoint.withheld > 0
        if delivery.returns_credit:
            receiver.revoke(endpoint, 1)
        if delivery.message.payload is None:
            self.load(endpoint, delivery, len(self.payload_of(delivery.message)))
        self.pages.add(delivery, receiver, endpoint, now_ms)

    def drop_waiting_copies(self, receiver: Receiver, now_ms: int) -> None:
        """Online messages are for those who are online: waiting copies are lost with the last."""
        pausing = [entry[2] for entry in self.pausing if entry[2].receiver is receiver]
        for delivery in receiver.locks.aside() + receiver.copies.drain() + pausing:
            if delivery.message.header.mode is Mode.ONLINE:
                self.end_copy(delivery, Status.UNREACHABLE, now_ms)

    def remove_receiver(self, receiver: Receiver, now_ms: int) -> None:
        """A receiver ends with all that was its own."""
        self.fail_over(list(receiver.held.values()), now_ms)
        messages = [delivery.message for delivery in receiver.known.values()]
        self.log.forget_receiver(receiver)
        self.forget_returned_of(receiver.number)
        for node, endpoint in list(receiver.away):
            self.take_absences([node], endpoint)
        self.receivers.remove(receiver)
        self.delete_rows_of(receiver, now_ms)
        for message in messages:
            self.free_place(message, receiver.number)
        self.current_left_by(receiver)
        self.recount_kept()
        self.unsettled.pop(receiver, None)
        self.hungry.pop(receiver, None)
        self.stalled.pop(receiver, None)

    def delete_rows_of(self, receiver: Receiver, now_ms: int) -> None:
        """Deletes a receiver's own rows, but for those of what it has parked: that outlives it.

        Few are deleted one by one, as those of receivers that come and go: a range would have to be
        synced, and would slow every later read a little.
        """
        rows, keys, number = self.rows, self.keys, receiver.number
        if receiver.stored:
            rows.delete(keys.floor(number))
        if receiver.durable:
            rows.delete(keys.receiver(number))
        if not receiver.has_rows:
            return
        moved = []
        for key, value in list(rows.scan(*keys.exceptions(number))):
            if decode_exception(value).state != PARKED:
                rows.delete(key)
                moved.append(number_at_end(key))
        waiting = keys.waiting(number, 0), keys.waiting_end(number)
        done = keys.done(number, 0), keys.done(number + 1, 0)
        for low, high in (waiting, done, keys.keyed_of(number)):
            found = [key for key, _ in islice(rows.scan(low, high), limits.MARKS_MAX + 1)]
            if len(found) > limits.MARKS_MAX:
                rows.delete_range(low, high)
                continue
            for key in found:
                rows.delete(key)
        self.end_kept_for_nobody(moved, now_ms)

    def on_list_receivers(self, command: ListReceivers, now_ms: int) -> None:
        names = sorted(name for name in self.receivers.by_name if name > command.after)
        found = [self.receivers.by_name[name] for name in names[: limits.LIST_MAX]]
        lags = self.lags(found)
        listed = [
            self.describe_receiver(receiver, lags[receiver.name], now_ms) for receiver in found
        ]
        self.effects.append(Reply(command.node, command.request, {"receivers": listed}))

    def describe_receiver(self, receiver: Receiver, lag: Lag, now_ms: int) -> dict[str, object]:
        return {
            "name": receiver.name,
            "durable": receiver.durable,
            "online": receiver.online,
            "endpoints": len(receiver.endpoints),
            "interests": list(receiver.interests),
            "credit": receiver.credit,
            "in_flight": lag.out,
            "parked": receiver.parked,
            "floor": receiver.floor,
            **timeouts_of(receiver),
            **lag.told(now_ms),
        }

    def on_delete_receiver(self, command: DeleteReceiver, now_ms: int) -> None:
        receiver = self.receivers.find(command.name)
        for endpoint in list(receiver.endpoints.values()):
            pull = endpoint.pull
            if pull is not None:
                refusal = Refuse(pull.node, pull.request, "no_such_receiver", "it was deleted")
                self.effects.append(refusal)
            self.effects.append(EndpointGone(endpoint.node, endpoint.number, "no_such_receiver"))
            self.detach_endpoint(endpoint, now_ms)
        if receiver.name in self.receivers.by_name:
            self.remove_receiver(receiver, now_ms)
        self.effects.append(Reply(command.node, command.request))

    def on_seek(self, command: Seek, now_ms: int) -> None:
        """Moves a receiver in the log: what it holds or has parked comes back to it as it is."""
        receiver = self.receivers.find(command.name)
        if not receiver.durable:
            raise PeerError("wrong_state", "only a durable receiver can be moved")
        target = self.seek_target(command)
        for delivery in list(receiver.held.values()):
            if delivery.message.copies is not None and delivery.message.header.mode is Mode.DURABLE:
                self.release(delivery)
        messages = [delivery.message for delivery in receiver.known.values()]
        self.log.forget_receiver(receiver)
        self.forget_returned_of(receiver.number)
        self.rewrite_pages()
        for message in messages:
            self.free_place(message, receiver.number)
        self.current_left_by(receiver)
        self.forget_waiting_rows(receiver, target, now_ms)
        receiver.done_now.clear()
        receiver.marks = set()
        receiver.floor = target
        receiver.horizon = 0
        self.unsettled[receiver] = None
        self.recount(receiver)
        if receiver.credit:
            self.hungry[receiver] = None
        self.effects.append(Reply(command.node, command.request, {"sequence": target}))

    def seek_target(self, command: Seek) -> int:
        if command.sequence is not None:
            return min(command.sequence, self.next_sequence)
        if command.time_ms is None:
            return self.next_sequence
        for key, row in self.rows.scan(*self.keys.range_of("l")):
            if decode_record(row).accepted_ms >= command.time_ms:
                return number_at_end(key)
        return self.next_sequence

    def forget_waiting_rows(self, receiver: Receiver, target: int, now_ms: int) -> None:
        """What was done, or moved, counts no more; what is parked stays parked."""
        number = receiver.number
        self.rows.delete_range(self.keys.done(number, 0), self.keys.done(number + 1, 0))
        self.rows.delete_range(self.keys.waiting(number, 0), self.keys.waiting_end(number))
        self.rows.delete_range(*self.keys.keyed_of(number))
        self.key_order.forget_passed()
        forgotten = []
        for key, value in list(self.rows.scan(*self.keys.exceptions(number))):
            if decode_exception(value).state != PARKED:
                forgotten.append(number_at_end(key))
                if number in self.renewed_by(forgotten[-1]):
                    self.rows.delete(self.keys.fared(forgotten[-1], number))
                self.rows.delete(key)
        self.end_kept_for_nobody(forgotten, now_ms)

    # --- credit and pulls -------------------------------------------------------------------

    def on_grant(self, command: Grant, now_ms: int) -> None:
        endpoint = self.receivers.endpoint(command.node, command.endpoint)
        # It pays for what was sent first; what was granted ahead pays for nothing.
        endpoint.paid = min(endpoint.paid + command.credit, endpoint.passed)
        while endpoint.unpaid and endpoint.unpaid[0][0] <= endpoint.paid:
            self.lighten(endpoint, endpoint.unpaid.popleft()[1])
        if command.less:
            self.take_credit(endpoint, command.less)
        if command.credit:
            self.credit(endpoint, command.credit)

    def take_credit(self, endpoint: Endpoint, amount: int) -> None:
        """An endpoint wants less: unused credit goes at once, the rest as it comes back."""
        unused = min(endpoint.credit + endpoint.withheld, amount)
        endpoint.receiver.revoke(endpoint, unused)
        endpoint.owed = min(endpoint.owed + amount - unused, limits.CREDIT_MAX)

    def on_pull(self, command: Pull, now_ms: int) -> None:
        endpoint = self.receivers.endpoint(command.node, command.endpoint)
        if endpoint.pull is not None:
            raise PeerError("wrong_state", "the endpoint has a pull that waits")
        deadline_ms = now_ms + command.wait_ms
        pull = Wait(command.node, command.request, deadline_ms, command.count)
        pull.endpoint = endpoint
        endpoint.pull = pull
        if len(self.waits) >= limits.PULLS_MAX:  # also those that were answered long before
            self.waits = [entry for entry in self.waits if not entry[2].over]
            heapify(self.waits)
        if len(self.waits) >= limits.PULLS_MAX:
            endpoint.pull = None
            raise PeerError("busy", "as many pulls and orders wait as may", 100)
        heappush(self.waits, (deadline_ms, next(self.ties), pull))
        self.credit(endpoint, command.count)
        self.hungry[endpoint.receiver] = None

    def on_cancel_wait(self, command: CancelWait, now_ms: int) -> None:
        order = self.receivers.work.orders.get((command.node, command.waiting))
        if order is not None:
            self.end_order(order)
        for number in self.receivers.nodes.get(command.node, ()):
            endpoint = self.receivers.endpoint(command.node, number)
            if endpoint.pull is not None and endpoint.pull.request == command.waiting:
                self.end_pull(endpoint)
        alone = {"alone": True} if self.is_unheard(command.node) else {}
        self.effects.append(Reply(command.node, command.request, alone))

    def end_order(self, order: Wait) -> None:
        work = self.receivers.work
        del work.orders[order.node, order.request]
        order.over = True
        work.credit -= 1

    # --- reports ----------------------------------------------------------------------------

    def reporter(self, node: bytes, endpoint: int, name: str | None) -> Receiver:
        if name is not None:
            return self.receivers.find(name)
        return self.receivers.endpoint(node, endpoint).receiver

    def on_report(self, command: Report, now_ms: int) -> None:
        receiver = self.reporter(command.node, command.endpoint, command.receiver)
        held = receiver.held
        refused: list[tuple[int, str]] = []
        attempts, sequences = command.attempts, command.sequences
        start = 0
        if command.status is Status.PROCESSED:
            if self.pool.plain:
                start = self.end_run(receiver, sequences, now_ms)
            if start < len(sequences):
                start += self.end_plainly(receiver, sequences[start:] if start else sequences)
        if start < len(sequences) and (
            self.pool.plain or any(sequence not in held for sequence in sequences[start:])
        ):
            self.unroll_all()
        for index in range(start, len(sequences)):
            sequence = sequences[index]
            delivery = held.get(sequence)
            if delivery is None:
                code = self.late_report(receiver, sequence, command.status, now_ms)
                if code is not None:
                    refused.append((sequence, code))
            elif (
                attempts is None
                or attempts[index] == delivery.attempts
                or command.status is Status.PROCESSED
            ):
                self.apply_report(delivery, command.status, command.reason, now_ms)
        self.effects.append(
            Reply(command.node, command.request, {"refused": refused} if refused else {})
        )

    def apply_report(self, delivery: Delivery, status: Status, reason: str, now_ms: int) -> None:
        """The holder reports; a step that is not above the present one changes nothing."""
        if status is Status.FAILED:
            self.failed(delivery, reason, now_ms)
        elif status >= delivery.message.header.expect:
            if status is Status.RECEIVED:
                delivery.received_ms = now_ms
            self.release(delivery)
            self.done(delivery, status, now_ms)
        elif status > delivery.status:
            self.climb_to_received(delivery, now_ms)

    def climb_to_received(self, delivery: Delivery, now_ms: int) -> None:
        receiver, page = delivery.receiver, delivery.page
        assert receiver is not None and page is not None
        delivery.received_ms = now_ms
        delivery.status = Status.RECEIVED
        if page.is_absent:  # its holder has yet to come back: the grace goes on
            self.pages.extend([delivery], page.deadline_ms, now_ms)
            return
        self.pages.remove(delivery)
        self.pages.add(delivery, receiver, delivery.endpoint, now_ms)

    def late_report(
        self, receiver: Receiver, sequence: int, status: Status, now_ms: int
    ) -> str | None:
        """A report on what this receiver does not hold: late, repeated, or not its business."""
        if sequence >= self.next_sequence:
            return "no_such_message"
        own = receiver.known.get(sequence)
        if own is not None:
            return self.late_copy(own, status, now_ms)
        message = self.memory.get(sequence)
        if message is None or message.copies is None:
            return self.late_pool_report(receiver, sequence, status, now_ms)
        copy = message.copies.get(receiver.number)
        if copy is not None:
            return self.late_copy(copy, status, now_ms)
        return None if self.is_interested(receiver, message) else "not_yours"

    def late_copy(self, delivery: Delivery, status: Status, now_ms: int) -> str | None:
        """A report on a copy that waits: it counts if it was out before, and may go out again."""
        if not delivery.tries:
            return "not_yours"
        if status is Status.PROCESSED:
            assert delivery.receiver is not None
            if not self.has_place(delivery.message, delivery.receiver):
                return "not_yours"
            self.done(delivery, status, now_ms)
        return None

    def has_place(self, message: Message, receiver: Receiver) -> bool:
        """May this receiver be done with this message?"""
        wanted = message.header.max_receivers
        return wanted is None or self.places_of(message).has_room_for(receiver.number, wanted)

    def late_pool_report(
        self, receiver: Receiver, sequence: int, status: Status, now_ms: int
    ) -> str | None:
        delivery = self.pool.live.get(sequence) or self.pool_delivery(sequence)
        if delivery is None:
            return self.late_log_report(receiver, sequence, status, now_ms)
        if delivery.page is not None:
            return "not_yours"
        row = self.rows.get(self.keys.pool(sequence))
        if row is not None and row[0] == PARKED:
            return None
        _, back = self.returned(POOL, sequence)
        # Also where the receiver that had it is gone: nobody else did the work.
        if (back or delivery.holder) != receiver.number:
            return "not_yours"
        if status is Status.PROCESSED:
            delivery.receiver = receiver
            delivery.attempts = max(delivery.attempts, 1)
            self.done(delivery, status, now_ms)
        return None

    def late_log_report(
        self, receiver: Receiver, sequence: int, status: Status, now_ms: int
    ) -> str | None:
        """A log message that waits on disk alone for this receiver, after a restart or a retry."""
        message = self.log_message(sequence)
        if message is None:
            return None
        if not self.is_interested(receiver, message):
            return "not_yours"
        number = receiver.number
        attempts, _ = self.returned(number, sequence)
        exception = self.rows.get(self.keys.exception(number, sequence))
        if exception is None and not attempts:
            return None if self.log.has_done(receiver, sequence) else "not_yours"
        state, rank, counted, spent = (
            (NATURAL, 0, 0, 0) if exception is None else decode_exception(exception)
        )
        if state == PARKED:
            return None
        if max(attempts, counted) == spent:
            return "not_yours"  # renewed or delayed, and not sent since
        if message.flags & ONLY_PARKED and number not in self.renewed_by(sequence):
            return "not_yours"  # it expired, and stays for others
        if status is not Status.PROCESSED:
            return None
        if not self.has_place(message, receiver):
            return "not_yours"
        delivery = Delivery(message, rank or NONE_RANK | sequence, max(attempts, counted))
        delivery.placed = exception is not None
        delivery.receiver = receiver
        assert message.copies is not None and number not in message.copies
        message.copies[number] = receiver.known[sequence] = delivery
        self.done(delivery, status, now_ms)
        return None

    def holder(self, command: Extend) -> Receiver:
        """Whose deliveries are meant: of a receiver, or what was ordered of the work queue."""
        work = self.receivers.work
        if command.receiver == work.name and work.name not in self.receivers.by_name:
            return work
        return self.reporter(command.node, command.endpoint, command.receiver)

    def on_extend(self, command: Extend, now_ms: int) -> None:
        """Gives held deliveries a new deadline, or, with 0, gives them up at once."""
        receiver, timeout_ms = self.holder(command), command.timeout_ms
        refused: list[tuple[int, str]] = []
        sequences: Iterable[int] = dict.fromkeys(command.sequences)
        if command.attempts is not None:
            wanted = dict(zip(command.sequences, command.attempts, strict=True))
            sequences = self.renew_leases(receiver, wanted, timeout_ms is None, refused, now_ms)
        if sequences:
            self.unroll_all()
        extended: list[Delivery] = []
        for sequence in sequences:
            delivery = receiver.held.get(sequence)
            if delivery is None:
                code = self.late_report(receiver, sequence, Status.RECEIVED, now_ms)
                if code is not None:
                    refused.append((sequence, code))
            elif timeout_ms == 0:
                self.unreachable(delivery, now_ms)
            else:
                extended.append(delivery)
        wanted_ms = None if timeout_ms is None else now_ms + timeout_ms
        self.pages.extend(extended, wanted_ms, now_ms)
        self.effects.append(
            Reply(command.node, command.request, {"refused": refused} if refused else {})
        )

    def renew_leases(
        self,
        receiver: Receiver,
        wanted: dict[int, int],
        whole: bool,
        refused: list[tuple[int, str]],
        now_ms: int,
    ) -> list[int]:
        """Finds what is out under these attempts, and, where ``whole`` pages of it are named, has
        their deadlines begin anew; the sequences that are left to do one by one.

        A client that lives names all that it holds, again and again: for whole pages that takes
        no objects, no rows, and one step a page.
        """
        plain, held = self.pool.plain, receiver.held
        named: dict[Page, list[int]] = {}
        for sequence, attempt in wanted.items():
            page = plain.get(sequence)
            if page is None:
                delivery = held.get(sequence)
                if delivery is not None and delivery.attempts == attempt:
                    page = delivery.page
            elif page.receiver is not receiver or attempt != 1:
                page = None
            if page is not None:
                named.setdefault(page, []).append(sequence)
            else:
                known = sequence < self.next_sequence
                refused.append((sequence, "not_yours" if known else "no_such_message"))
        left: list[int] = []
        for page, sequences in named.items():
            is_whole = len(sequences) == len(page.deliveries) + page.left
            if whole and is_whole and page.holder is not None and not page.is_absent:
                self.pages.renew(page, now_ms)
            else:
                left += sequences
        return left


def check_not_work(name: str) -> None:
    """A receiver of this name would hide what is ordered; one that was made before it was refused
    is opened."""
    if name == WORK_NAME:
        raise PeerError("bad_request", f"{name!r} is the name of the work queue's own receiver")


def former_nodes(command: Subscribe) -> list[bytes]:
    """As which nodes an endpoint may have been given what it holds."""
    if command.holding is None:
        return [command.node]
    sessions, _, _ = command.holding
    nodes = [session + command.node[len(session) :] for session in sessions]
    return list(dict.fromkeys(nodes))


def timeouts_of(receiver: Receiver) -> dict[str, object]:
    """The deadlines of a receiver, as they are in force."""
    return {
        "sent_timeout_ms": receiver.timeout_ms(Status.SENT),
        "received_timeout_ms": receiver.timeout_ms(Status.RECEIVED),
    }


def normalised(interests: tuple[str, ...]) -> tuple[str, ...]:
    """Interests in one spelling, so that equal ones are equal text."""
    return tuple("/".join(split_interest(interest)) for interest in interests)
