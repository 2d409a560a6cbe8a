"""The work queue (spec section 7): drafts, orders and the verbs of those who hold no connection.

An order takes a message for the receiver that stands for all consumers of the work queue; whoever
knows the message's sequence may then act on it. What is ordered or active outlives restarts.
"""

from functools import lru_cache
from heapq import heappush

from asterism import limits
from asterism.actors.delivery import MEMORY_KIND, POOL_KIND, Delivery, Message
from asterism.actors.endings import DROPPED
from asterism.actors.pool import message_of
from asterism.actors.receivers import Wait
from asterism.actors.subscribing import Subscribing
from asterism.commands import (
    Abandon,
    AbandonAll,
    Complete,
    Draft,
    Fail,
    Fetch,
    ListParked,
    Order,
    Renew,
    RenewAll,
    SetDraft,
    Stats,
)
from asterism.effects import Reply
from asterism.errors import PeerError
from asterism.message import NEVER_MS, Header, Mode, Status, decode_header
from asterism.storage.keys import DUE_DRAFT, POOL, WORK, number_at_end, rank_of
from asterism.storage.records import (
    DRAFT,
    PARKED,
    Record,
    decode_exception,
    decode_fared,
    decode_parked,
)
from asterism.subjects import split_subject


# To check a header takes 5 us, and most drafts of a worker share a few.
@lru_cache(maxsize=limits.WORK_HEADERS_CACHED_MAX)
def _work_header(subject: str, priority: int | None) -> Header:
    return Header(Mode.DURABLE, Status.PROCESSED, (subject,), {}, 1, NEVER_MS, priority)


@lru_cache(maxsize=limits.WORK_HEADERS_CACHED_MAX)
def _header_with(encoded: bytes, attributes: tuple[tuple[str, str], ...]) -> Header:
    return decode_header(encoded).with_attributes(dict(attributes))


class WorkQueue(Subscribing):
    """Serves the work queue."""

    # --- producing --------------------------------------------------------------------------

    def on_draft(self, command: Draft, now_ms: int) -> None:
        header = _work_header(self.work_subject(), command.priority)
        sequence = self.take_number()
        message = Message(sequence, command.id, header, b"", now_ms, NEVER_MS, POOL_KIND)
        self.write_pool_row(Delivery(message, 0), DRAFT, 0)
        self.add_due(now_ms + self.settings.draft_timeout_ms, DUE_DRAFT, POOL, sequence)
        self.drafting += 1
        self.listed = 1
        self.effects.append(Reply(command.node, command.request, {"sequence": sequence}))

    def work_subject(self) -> str:
        """The topic's name, which is the subject of what the work queue makes."""
        try:
            split_subject(self.name)
        except PeerError:
            return "work"
        return self.name

    def on_set_draft(self, command: SetDraft, now_ms: int) -> None:
        if len(command.payload) > self.settings.max_payload:
            raise PeerError("too_large", f"the payload has {len(command.payload)} bytes")
        record = self.stored(command.sequence)
        delivery = self.pool.live.get(command.sequence)
        out = delivery is not None and delivery.page is not None
        if out or record.state == PARKED:
            raise PeerError("wrong_state", "the message is neither drafting nor waiting")
        if self.settings.unique:
            self.check_unique(command.payload, command.sequence)
        header = _header_with(record.header, tuple(command.attributes.items()))
        if record.state == DRAFT:
            self.set_drafting(command, record, header, now_ms)
        else:
            self.set_waiting(command, record, header)
        self.effects.append(Reply(command.node, command.request))

    def set_drafting(self, command: SetDraft, record: Record, header: Header, now_ms: int) -> None:
        """A draft becomes a waiting message, behind those that wait already."""
        if self.settings.overflow is not None:
            self.make_room(now_ms)
        message = message_of(command.sequence, record, header, POOL_KIND)
        message.payload = command.payload
        message.accepted_ms = now_ms
        if self.settings.unique:
            self.remember_payload(command.payload, command.sequence, POOL_KIND)
        self.drafting -= 1
        self.pool_held += 1
        self.pool_tally.add(header.subjects)
        self.totals["published"] += 1
        rank = rank_of(header.priority, self.take_number())
        self.wait_in_pool(Delivery(message, rank), rank)
        if len(command.payload) > limits.WINDOW_RECORD_BYTES_MAX:
            message.payload = None

    def set_waiting(self, command: SetDraft, record: Record, header: Header) -> None:
        """Replaces the payload of a waiting message; it keeps its place."""
        delivery = self.pool_delivery(command.sequence)
        assert delivery is not None
        message = delivery.message
        if self.settings.unique:
            self.free_payload(message)
            self.remember_payload(command.payload, command.sequence, POOL_KIND)
        message.header = header
        message.payload = command.payload
        self.write_pool_row(delivery, record.state, record.rank)
        if len(command.payload) > limits.WINDOW_RECORD_BYTES_MAX:
            message.payload = None

    def stored(self, sequence: int) -> Record:
        """The row of a message of the pool, drafts included; refused if there is none."""
        record = self.record_of("m", sequence)
        if record is None:
            raise PeerError("no_such_message", f"the topic has no message {sequence}")
        return record

    # --- consuming --------------------------------------------------------------------------

    def on_order(self, command: Order, now_ms: int) -> None:
        work = self.receivers.work
        if len(work.orders) >= limits.PULLS_MAX:
            raise PeerError("busy", "as many orders wait as may", 100)
        if (command.node, command.request) in work.orders:
            raise PeerError("wrong_state", "an order with this number waits already")
        if not work.interests:
            self.receivers.set_interests(work, ("**",))
        deadline_ms = None if command.wait_ms is None else now_ms + command.wait_ms
        order = Wait(command.node, command.request, deadline_ms, 1)
        work.orders[command.node, command.request] = order
        if deadline_ms is not None:
            heappush(self.waits, (deadline_ms, next(self.ties), order))
        if work.credit == 0:
            self.pool.wake(work)
        work.credit += 1
        self.hungry[work] = None

    def on_fetch(self, command: Fetch, now_ms: int) -> None:
        delivery = self.pool.live.get(command.sequence)
        if delivery is not None and delivery.page is not None:
            if delivery.holder == WORK and delivery.status is Status.SENT:
                self.climb_to_received(delivery, now_ms)
            message, status = delivery.message, delivery.status
            header, payload, message_id = message.header, self.payload_of(message), message.id
        else:
            record = self.record_of("l", command.sequence) or self.stored(command.sequence)
            if record.state == DRAFT:
                raise PeerError("wrong_state", "the message is a draft: it has no payload yet")
            failed = self.parked and self.parked_positions(command.sequence, None)
            status = Status.FAILED if failed else Status.WAITING
            if command.sequence in self.pool.plain:
                status = Status.SENT
            header, payload, message_id = self.header_of(record.header), record.payload, record.id
        self.handed_bytes += len(payload)
        body = {
            "status": status.name.lower(),
            "payload": payload,
            "attributes": header.attributes,
            "priority": header.priority,
            "id": message_id,
        }
        self.effects.append(Reply(command.node, command.request, body))

    def active(self, sequence: int) -> Delivery:
        """The delivery of an active message."""
        delivery = self.receivers.work.held.get(sequence)
        if delivery is None or delivery.status is not Status.RECEIVED:
            self.stored(sequence)
            raise PeerError("wrong_state", "the message is not active")
        return delivery

    def on_complete(self, command: Complete, now_ms: int) -> None:
        delivery = self.active(command.sequence)
        self.release(delivery)
        self.done(delivery, Status.PROCESSED, now_ms)
        self.effects.append(Reply(command.node, command.request))

    def on_fail(self, command: Fail, now_ms: int) -> None:
        self.failed(self.active(command.sequence), command.reason, now_ms)
        self.effects.append(Reply(command.node, command.request))

    # --- any state --------------------------------------------------------------------------

    def on_abandon(self, command: Abandon, now_ms: int) -> None:
        sequence = command.sequence
        if command.receiver is not None:
            for position in self.parked_of(sequence, command.receiver):
                self.abandon_at(position, now_ms)
        elif self.rows.get(self.keys.pool(sequence)) is not None:
            self.abandon_pool(sequence, now_ms)
        elif sequence in self.memory:
            self.drop(sequence, now_ms)
        else:
            logged = self.log_message(sequence)
            if logged is None:
                raise PeerError("no_such_message", f"the topic has no message {sequence}")
            if self.parked:
                for position in self.parked_positions(sequence, None):
                    self.abandon_at(position, now_ms)
            if self.rows.get(self.keys.log(sequence)) is not None:
                self.end_log(logged, DROPPED, now_ms)
        self.effects.append(Reply(command.node, command.request))

    def abandon_pool(self, sequence: int, now_ms: int) -> None:
        record = self.stored(sequence)
        if record.state == PARKED:
            self.abandon_at(record.rank, now_ms)
        elif record.state == DRAFT:
            self.rows.delete(self.keys.pool(sequence))
            self.drafting -= 1
            self.head_dirty = True
        else:
            delivery = self.pool_delivery(sequence)
            assert delivery is not None and delivery.message.kind != MEMORY_KIND
            self.end_single(delivery, DROPPED, now_ms)

    def on_renew(self, command: Renew, now_ms: int) -> None:
        record = self.record_of("m", command.sequence)
        if record is not None:
            if record.state != PARKED:
                raise PeerError("wrong_state", "the message is not parked")
            self.renew_at(record.rank, now_ms)
        else:
            for position in self.parked_of(command.sequence, command.receiver):
                self.renew_at(position, now_ms)
        self.rewrite_pages()
        self.effects.append(Reply(command.node, command.request))

    def parked_of(self, sequence: int, name: str | None) -> list[int]:
        """The parked deliveries of a message; refused if there is none."""
        positions = self.parked_positions(sequence, name)
        if not positions:
            if self.record_of("l", sequence) is None:
                self.stored(sequence)
            raise PeerError("wrong_state", "no delivery of the message is parked")
        return positions

    def parked_positions(self, sequence: int, name: str | None) -> list[int]:
        """Where the deliveries of a message are parked: in the pool, or by receiver in the log."""
        record = self.record_of("m", sequence)
        if record is not None:
            return [record.rank] if record.state == PARKED else []
        positions = []
        for key, row in self.rows.scan(*self.keys.fared_all(sequence)):
            number = number_at_end(key, 4)
            exception = self.rows.get(self.keys.exception(number, sequence))
            if exception is not None and (name is None or decode_fared(row).receiver == name):
                moved = decode_exception(exception)
                if moved.state == PARKED:
                    positions.append(moved.place)
        return sorted(positions)

    # --- all parked -------------------------------------------------------------------------

    def on_list_parked(self, command: ListParked, now_ms: int) -> None:
        listed = []
        low, high = self.keys.parked(command.after + 1), self.keys.range_of("p")[1]
        for key, row in self.rows.scan(low, high):
            parked = decode_parked(row)
            listed.append(
                {
                    "position": number_at_end(key),
                    "sequence": parked.sequence,
                    "receiver": parked.receiver,
                    "reason": parked.reason,
                    "attempts": parked.attempts,
                    "failed_ms": parked.failed_ms,
                }
            )
            if len(listed) >= limits.LIST_MAX:
                break
        self.effects.append(Reply(command.node, command.request, {"parked": listed}))

    def on_renew_all(self, command: RenewAll, now_ms: int) -> None:
        for key, _ in list(self.rows.scan(*self.keys.range_of("p"))):
            self.renew_at(number_at_end(key), now_ms)
        self.rewrite_pages()
        self.effects.append(Reply(command.node, command.request))

    def on_abandon_all(self, command: AbandonAll, now_ms: int) -> None:
        for key, _ in list(self.rows.scan(*self.keys.range_of("p"))):
            self.abandon_at(number_at_end(key), now_ms)
        self.effects.append(Reply(command.node, command.request))

    def on_stats(self, command: Stats, now_ms: int) -> None:
        sent, received = self.pages.counts((POOL_KIND,))
        body = {
            "drafting": self.drafting,
            "waiting": self.pool_held - sent - received,
            "ordered": sent,
            "active": received,
            "completed": self.completed,
            "failed": self.parked,
            "listed": bool(self.listed),
        }
        self.effects.append(Reply(command.node, command.request, body))
