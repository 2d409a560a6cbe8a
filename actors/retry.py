"""How deliveries come back: unreachable, failed, retried, parked, renewed, dead letters."""

from hashlib import blake2b
from heapq import heappush
from typing import Any

from asterism import limits
from asterism.actors.delivery import LOG_KIND, MEMORY_KIND, POOL_KIND, Delivery, Message
from asterism.actors.endings import DROPPED, FAILED, Endings, status_name
from asterism.actors.pool import message_of
from asterism.actors.receivers import Receiver
from asterism.commands import FORWARDER_TAG
from asterism.effects import Forward
from asterism.errors import PeerError
from asterism.message import NEVER_MS, Header, Mode, Status
from asterism.storage.keys import (
    COMMON,
    DUE_EXPIRE,
    DUE_RETRY,
    POOL,
    WORK,
    number_at_end,
    rank_of,
)
from asterism.storage.records import (
    ATTEMPTS_MAX,
    DELAYED,
    HAS_DUE,
    HAS_PRODUCER,
    NATURAL,
    ONLY_PARKED,
    PARKED,
    PLACED,
    RENEWED,
    ParkedRow,
    Record,
    decode_exception,
    decode_parked,
    decode_record,
    encode_exception,
    encode_fields,
    encode_record,
    is_held,
    pack,
    unpack,
)

FORWARD_RETRY_MS = 5_000  # after the dead-letter topic was too busy to take a message
FORWARDS_MAX = 256  # dead letters under way at once; the rest wait in their rows
_PASSING = ("busy", "overflow", "internal", "topic_gone")  # worth another try


class Retry(Endings):
    """Puts deliveries back, sets them aside, gives them up."""

    # --- back to waiting --------------------------------------------------------------------

    def unreachable(self, delivery: Delivery, now_ms: int) -> None:
        """A delivery missed its expectation: its deadline passed, or its connection is gone."""
        receiver = delivery.receiver
        assert receiver is not None
        delivery.status = Status.UNREACHABLE
        self.release(delivery)
        most = self.settings.max_deliveries
        if most is not None and delivery.tries >= most:
            self.give_up(delivery, now_ms)
        elif delivery.message.kind == MEMORY_KIND and delivery.message.header.mode is Mode.ONLINE:
            if receiver.online:
                self.wait_again(delivery, receiver)
            else:
                self.end_copy(delivery, Status.UNREACHABLE, now_ms)
        else:
            self.wait_again(delivery, receiver)

    def wait_again(self, delivery: Delivery, receiver: Receiver) -> None:
        """Back to waiting with its priority, behind its equals unless it keeps its place."""
        header = delivery.message.header
        keeps = (
            self.settings.requeue == "front"
            or self.settings.blocking
            or header.ordering_key is not None
        )
        rank = delivery.rank if keeps else rank_of(header.priority, self.take_number())
        delivery.status = Status.WAITING
        delivery.waits = True
        delivery.holder = receiver.number
        if delivery.message.copies is None:
            self.wait_in_pool(delivery, rank)
            self.release_pool_key(delivery)
            return
        if delivery.message.kind == LOG_KIND:
            self.wait_in_log(delivery, receiver, rank)
        else:
            delivery.rank = rank
            self.wait_with_copies(delivery, receiver)
            self.hungry[receiver] = None
        self.release_receiver_key(delivery, receiver)

    def wait_in_pool(self, delivery: Delivery, rank: int) -> None:
        """A message of the pool waits at a rank."""
        if delivery.message.kind != MEMORY_KIND:
            self.store_place(delivery, rank)
            self.oldest_pool.note(delivery.sequence)
        delivery.rank = rank
        delivery.receiver = None
        self.fed[self.pool.offer(delivery)] = None

    def store_place(self, delivery: Delivery, rank: int) -> None:
        """Writes down where a message of the pool waits, and how often it went out."""
        if delivery.placed:
            self.rows.delete(self.keys.waiting(POOL, delivery.rank))
        self.write_pool_row(delivery, PLACED, rank)
        self.rows.put(self.keys.waiting(POOL, rank), delivery.sequence.to_bytes(8, "big"))
        delivery.placed = True
        self.forget_returned(POOL, delivery.sequence)
        key = delivery.message.header.ordering_key
        if key is not None:
            self.key_order.move(POOL, key, delivery.rank, rank, delivery.sequence)

    def write_pool_row(self, delivery: Delivery, state: int, rank: int) -> None:
        message = delivery.message
        row = encode_fields(
            state, message.flags, min(delivery.attempts, ATTEMPTS_MAX), message.accepted_ms,
            message.expires_ms, rank, delivery.holder, message.producer, message.number, message.id,
            message.header.encoded, self.payload_of(message), delivery.spent,
        )  # fmt: skip
        self.rows.put(self.keys.pool(delivery.sequence), row)

    def wait_in_log(self, delivery: Delivery, receiver: Receiver, rank: int) -> None:
        """A log message waits for one receiver at a rank of its own."""
        self.free_place(delivery.message, receiver.number)
        self.place_in_log(delivery, receiver, rank)
        delivery.rank = rank
        self.log.put_back(delivery, receiver)
        self.hungry[receiver] = None

    def place_in_log(self, delivery: Delivery, receiver: Receiver, rank: int) -> None:
        number, sequence = receiver.number, delivery.sequence
        key = delivery.message.header.ordering_key
        if delivery.placed:
            self.rows.delete(self.keys.waiting(number, delivery.rank))
        if key is not None:
            before = delivery.rank if delivery.placed else rank
            self.key_order.move(number, key, before, rank, sequence)
        self.rows.put(self.keys.waiting(number, rank), sequence.to_bytes(8, "big"))
        self.rows.put(
            self.keys.exception(number, sequence),
            encode_exception(PLACED, rank, delivery.attempts, delivery.spent),
        )
        delivery.placed = receiver.has_rows = receiver.has_moved = True
        self.forget_returned(number, sequence)
        self.unsettled[receiver] = None

    # --- failed -----------------------------------------------------------------------------

    def failed(self, delivery: Delivery, reason: str, now_ms: int) -> None:
        """The receiver said that it failed: retry, or the end."""
        settings, receiver = self.settings, delivery.receiver
        assert receiver is not None
        delivery.status = Status.FAILED
        self.release(delivery)
        self.totals["failed"] += 1
        most = settings.max_deliveries
        if delivery.tries >= settings.max_attempts or (most is not None and delivery.tries >= most):
            self.fail_for_good(delivery, reason, now_ms)
            return
        backoff = settings.retry_backoff
        pause_ms = 0 if backoff is None else backoff.pause_ms(delivery.tries)
        if pause_ms == 0:
            self.wait_again(delivery, receiver)
        else:
            self.pause(delivery, receiver, now_ms + pause_ms)

    def pause(self, delivery: Delivery, receiver: Receiver, due_ms: int) -> None:
        """Keeps a delivery back until a time, then it waits again."""
        message = delivery.message
        delivery.holder = receiver.number
        ordered = message.header.ordering_key is not None or self.settings.blocking
        if (
            message.kind == MEMORY_KIND
            or ordered
            or (message.kind == LOG_KIND and not receiver.durable)
        ):
            # Those that hold up others stay in memory; a restart only shortens their pause.
            if message.kind == POOL_KIND:
                self.write_pool_row(delivery, PLACED if delivery.placed else NATURAL, delivery.rank)
                self.oldest_pool.note(delivery.sequence)
            elif message.kind == LOG_KIND:
                self.free_place(message, receiver.number)
                self.place_in_log(delivery, receiver, delivery.rank)
            heappush(self.pausing, (due_ms, next(self.ties), delivery))
        elif message.kind == POOL_KIND:
            self.pause_on_disk(delivery, due_ms)
        else:
            self.pause_log_on_disk(delivery, receiver, due_ms)

    def pause_on_disk(self, delivery: Delivery, due_ms: int) -> None:
        if delivery.placed:
            self.rows.delete(self.keys.waiting(POOL, delivery.rank))
            delivery.placed = False
        self.write_pool_row(delivery, DELAYED, delivery.rank)
        self.forget_returned(POOL, delivery.sequence)
        self.pool.live.pop(delivery.sequence, None)
        self.add_due(due_ms, DUE_RETRY, POOL, delivery.sequence)
        self.oldest_pool.note(delivery.sequence)

    def pause_log_on_disk(self, delivery: Delivery, receiver: Receiver, due_ms: int) -> None:
        number, sequence = receiver.number, delivery.sequence
        self.free_place(delivery.message, number)
        self.leave_log(delivery, receiver)
        if self.is_interested(receiver, delivery.message):
            receiver.count(sequence, 1)  # it has it still to do
        self.rows.put(
            self.keys.exception(number, sequence),
            encode_exception(DELAYED, delivery.rank, delivery.attempts, delivery.spent),
        )
        receiver.has_moved = True
        self.unsettled[receiver] = None
        self.add_due(due_ms, DUE_RETRY, number, sequence)

    def add_due(self, due_ms: int, what: int, list_number: int, sequence: int) -> None:
        """Something is to be done at a time, also after a restart."""
        self.rows.put(self.keys.due(due_ms, what, list_number, sequence), b"")
        if self.next_due_row_ms is None or due_ms < self.next_due_row_ms:
            self.next_due_row_ms = due_ms

    # --- for good ---------------------------------------------------------------------------

    def give_up(self, delivery: Delivery, now_ms: int) -> None:
        """It went out as often as it may and was not done."""
        self.fail_for_good(delivery, f"undelivered after {delivery.tries} attempts", now_ms)

    def fail_for_good(self, delivery: Delivery, reason: str, now_ms: int) -> None:
        """No more attempts: parked, moved to the dead-letter topic, or dropped."""
        message, receiver = delivery.message, delivery.receiver
        assert receiver is not None
        delivery.status = Status.FAILED
        statuses = {receiver.name: status_name(Status.FAILED)}
        if message.kind == MEMORY_KIND:
            if message.header.mode is Mode.ONLINE:
                self.end_copy(delivery, Status.FAILED, now_ms)
            else:
                self.end_pool(delivery, FAILED, statuses, now_ms)
            return
        target = self.settings.dead_letter
        if target is not None:
            no_room = self.forward(message, receiver, reason, target)
            if no_room is None:
                self.end_moved(delivery, statuses, now_ms)
                return
            reason = _with_second(reason, no_room)
        if message.kind == POOL_KIND:
            self.park_pool(delivery, receiver, reason, now_ms)
        else:
            self.park_log(delivery, receiver, reason, now_ms)

    def end_moved(self, delivery: Delivery, statuses: dict[str, str], now_ms: int) -> None:
        """A delivery that failed for good goes on as a dead letter, and is over here."""
        if delivery.message.kind == POOL_KIND:
            self.end_pool(delivery, FAILED, statuses, now_ms)
        else:
            self.end_log_delivery(delivery, Status.FAILED, now_ms)
            self.review_only_parked(delivery.message, now_ms)

    def park_pool(self, delivery: Delivery, receiver: Receiver, reason: str, now_ms: int) -> None:
        message, sequence = delivery.message, delivery.sequence
        if message.producer is not None:
            self.resolve(message, FAILED, {receiver.name: status_name(Status.FAILED)}, now_ms)
        if message.flags & HAS_PRODUCER:
            self.asked -= 1
        message.flags &= ~HAS_PRODUCER
        message.producer = None
        if self.settings.history != "none":
            self.keep_history(message, FAILED, delivery, now_ms)
        if delivery.placed:
            self.rows.delete(self.keys.waiting(POOL, delivery.rank))
        position = self.write_parked(POOL, delivery, receiver, reason, now_ms)
        self.write_pool_row(delivery, PARKED, position)
        self.forget_returned(POOL, sequence)
        delivery.waits = False
        self.pool.live.pop(sequence, None)
        if delivery.counts:
            self.pool_tally.take(message.header.subjects)
        self.pool_held -= 1
        self.leave_pool_key(delivery)
        self.resolved_current(sequence)

    def park_log(self, delivery: Delivery, receiver: Receiver, reason: str, now_ms: int) -> None:
        message, sequence, number = delivery.message, delivery.sequence, receiver.number
        self.leave_log(delivery, receiver)
        position = self.write_parked(number, delivery, receiver, reason, now_ms)
        receiver.parked += 1
        self.rows.put(
            self.keys.exception(number, sequence),
            encode_exception(PARKED, position, delivery.attempts),
        )
        receiver.has_rows = receiver.has_moved = True
        self.note_through(message)
        self.note_fared(delivery, receiver, Status.FAILED, now_ms)
        self.unsettled[receiver] = None
        self.release_receiver_key(delivery, receiver)
        self.current_done_by(message, number)
        self.take_place(message, receiver, Status.FAILED, now_ms)
        self.review_only_parked(message, now_ms)

    def write_parked(
        self, list_number: int, delivery: Delivery, receiver: Receiver, reason: str, now_ms: int
    ) -> int:
        position = self.take_number()
        kept = _cut(reason)
        value = pack(list_number, delivery.sequence, receiver.name, kept, delivery.attempts, now_ms)
        self.rows.put(self.keys.parked(position), value)
        self.parked += 1
        return position

    # --- parked: renewed or abandoned -------------------------------------------------------

    def take_parked(self, position: int) -> ParkedRow:
        """Takes a delivery off the parked ones."""
        row = self.rows.get(self.keys.parked(position))
        assert row is not None
        self.rows.delete(self.keys.parked(position))
        self.parked -= 1
        self.head_dirty = True
        return decode_parked(row)

    def renew_at(self, position: int, now_ms: int) -> None:
        """Puts a parked delivery back to waiting. Its attempts go on, so that a late report of an
        old one is known as such; their bounds count from here."""
        parked = self.take_parked(position)
        list_number, sequence = parked.list_number, parked.sequence
        record = self.record_of("m" if list_number == POOL else "l", sequence)
        assert record is not None, "a parked delivery without its message"
        header = self.header_of(record.header)
        rank = rank_of(header.priority, self.take_number())
        if list_number == POOL:
            message = message_of(sequence, record, header, POOL_KIND)
            delivery = Delivery(message, rank, parked.attempts)
            delivery.spent = parked.attempts
            self.expire_anew(delivery.message, now_ms)
            self.pool_held += 1
            self.pool_tally.add(header.subjects)
            self.wait_in_pool(delivery, rank)
        else:
            self.renew_in_log(parked, record, header, rank, now_ms)

    def expire_anew(self, message: Message, now_ms: int) -> None:
        """A renewed message: the walk of expiry has passed it, and past its time it has none."""
        if message.expires_ms <= now_ms:
            message.expires_ms = NEVER_MS
        elif message.expires_ms < NEVER_MS and not message.flags & HAS_DUE:
            message.flags |= HAS_DUE
            self.add_due(message.expires_ms, DUE_EXPIRE, POOL, message.sequence)

    def renew_in_log(
        self, parked: ParkedRow, record: Record, header: Header, rank: int, now_ms: int
    ) -> None:
        sequence = parked.sequence
        message = self.log.messages.get(sequence) or message_of(sequence, record, header, LOG_KIND)
        receiver = self.receivers.by_number.get(parked.list_number)
        if receiver is None:
            self.renew_for_others(parked.list_number, message, record, now_ms)
            return
        receiver.parked -= 1
        delivery = Delivery(message, rank, parked.attempts)
        delivery.receiver, delivery.spent = receiver, parked.attempts
        self.unkeep(message)
        receiver.count(sequence, 1)
        receiver.has_strays |= not self.is_interested(receiver, message)
        self.note_fared(delivery, receiver, Status.WAITING, now_ms)
        self.wait_in_log(delivery, receiver, rank)
        self.review_only_parked(message, now_ms)
        self.oldest_log.note(sequence)

    def renew_for_others(self, number: int, message: Message, record: Record, now_ms: int) -> None:
        """The receiver of a parked delivery is gone: its place is for whoever has not had it."""
        sequence = message.sequence
        self.rows.delete(self.keys.exception(number, sequence))
        self.rows.delete(self.keys.fared(sequence, number))
        if record.flags & ONLY_PARKED:
            self.revive(message, record, now_ms)
        self.free_place(message, number)
        self.oldest_log.note(sequence)

    def revive(self, message: Message, record: Record, now_ms: int) -> None:
        """An expired log message is for everybody again, for as long as a new one would be."""
        sequence, header = message.sequence, message.header
        rank = rank_of(header.priority, sequence)
        self.log_held += not is_held(record.flags)
        record.flags = record.flags & ~(ONLY_PARKED | RENEWED) | HAS_DUE
        record.expires_ms = min(now_ms + self.settings.default_ttl_ms, NEVER_MS - 1)
        record.state = NATURAL if header.priority is None else PLACED
        message.flags, message.expires_ms = record.flags, record.expires_ms
        self.rows.put(self.keys.log(sequence), encode_record(record))
        if record.state == PLACED:
            self.rows.put(self.keys.waiting(COMMON, rank), sequence.to_bytes(8, "big"))
        self.add_due(record.expires_ms, DUE_EXPIRE, COMMON, sequence)
        self.head_dirty = True
        self.owe_anew(message, rank)

    def owe_anew(self, message: Message, rank: int) -> None:
        """A revived message is owed by those who have not had it, and those who were moved back."""
        sequence = message.sequence
        renewed = self.renewed_by(sequence)  # they have it still to do, and are counted
        for number in self.receivers.audience(message.header.subjects):
            if number == WORK:
                continue
            receiver = self.receivers.by_number[number]
            if self.has_not_had(receiver, message):
                delivery = Delivery(message, rank)
                delivery.receiver = receiver
                receiver.count(sequence, 1)
                self.wait_in_log(delivery, receiver, rank)
            elif number not in renewed and self.log.owes(receiver, sequence):
                # It has done it and was moved back since: it finds it in the log, as all the rest.
                receiver.count(sequence, 1)
                self.log.offer(message, receiver, rank)
                self.hungry[receiver] = self.unsettled[receiver] = None
        self.note_through(message)

    def has_not_had(self, receiver: Receiver, message: Message) -> bool:
        """Did a receiver neither finish nor fail a message that is revived, nor has it renewed?

        Where nobody counts, one that has read past it is not asked: it may have done it.
        """
        sequence = message.sequence
        if self.rows.get(self.keys.fared(sequence, receiver.number)) is not None:
            return False
        counts = message.header.max_receivers is not None
        return sequence not in receiver.known and (counts or self.log.is_owed(receiver, sequence))

    def abandon_at(self, position: int, now_ms: int) -> None:
        """Drops a parked delivery."""
        list_number, sequence, *_ = self.take_parked(position)
        if list_number == POOL:
            record = self.record_of("m", sequence)
            assert record is not None, "a parked delivery without its message"
            self.free_payload(
                message_of(sequence, record, self.header_of(record.header), POOL_KIND)
            )
            self.rows.delete(self.keys.pool(sequence))
        else:
            self.abandon_in_log(list_number, sequence, now_ms)

    def abandon_in_log(self, number: int, sequence: int, now_ms: int) -> None:
        """A receiver will not have this log message again."""
        self.rows.delete(self.keys.exception(number, sequence))
        receiver = self.receivers.by_number.get(number)
        if receiver is not None:
            receiver.parked -= 1
            receiver.done_now.add(sequence)
            self.unsettled[receiver] = None
        message = self.log_message(sequence)
        if message is not None:
            self.note_abandoned(message, number)
            self.free_place(message, number)
            self.review_only_parked(message, now_ms)

    def pool_delivery(self, sequence: int) -> Delivery | None:
        """The delivery of a durable message of the pool, from memory or from its row."""
        delivery = self.pool.live.get(sequence)
        if delivery is None:
            record = self.record_of("m", sequence)
            if record is not None:
                header = self.header_of(record.header)
                message = message_of(sequence, record, header, POOL_KIND)
                delivery = Delivery(message, record.rank, record.attempts)
                delivery.placed = record.state == PLACED
                delivery.counts = counts_as_held(record)
                delivery.holder, delivery.spent = record.holder, record.spent
        elif delivery.message.kind == MEMORY_KIND:
            return None
        return delivery

    def log_message(self, sequence: int) -> Message | None:
        """A log message, from memory or from its row."""
        message = self.log.messages.get(sequence)
        if message is None:
            record = self.record_of("l", sequence)
            if record is not None:
                message = message_of(sequence, record, self.header_of(record.header), LOG_KIND)
        return message

    # --- log messages that expired while a delivery was parked --------------------------------

    def keep_for_parked(self, message: Message, verdict: str, now_ms: int) -> None:
        """An expired log message stays for those who have it parked, and for nobody else."""
        self.give_verdict(message, verdict, now_ms)
        self.unkeep(message)
        renewed = self.renewed_by(message.sequence)
        self.uncount_on_disk(message, renewed)
        if self._returned:  # those who have not read it again since a restart are through, too
            for number in self.receivers.by_number.keys() - renewed:
                self.forget_returned(number, message.sequence)
        row = self.rows.get(self.keys.log(message.sequence))
        assert row is not None
        record = decode_record(row)
        record.state, record.expires_ms, record.producer = PARKED, NEVER_MS, None
        record.flags = record.flags & ~HAS_PRODUCER | ONLY_PARKED
        if renewed:
            record.flags |= RENEWED
        self.log_held -= not is_held(record.flags)
        message.flags = record.flags
        self.rows.put(self.keys.log(message.sequence), encode_record(record))
        if message.header.priority is not None:
            rank = rank_of(message.header.priority, message.sequence)
            self.rows.delete(self.keys.waiting(COMMON, rank))
        self.withdraw_unparked(message)
        message.expires_ms = NEVER_MS
        self.head_dirty = True
        self.resolved_current(message.sequence)

    def stays_for_parked(self, message: Message) -> bool:
        """Is a delivery parked, or renewed for a receiver that will find it?

        What waits on disk alone is found only by a receiver that is interested in it. For any other
        it would stay for ever, and is given up.
        """
        sequence = message.sequence
        for number in self.renewed_by(sequence):
            receiver = self.receivers.by_number[number]
            if sequence not in receiver.known and not self.is_interested(receiver, message):
                self.forget_renewed(receiver, message)
        return self.has_parked(sequence)

    def forget_renewed(self, receiver: Receiver, message: Message) -> None:
        """Gives up a renewed delivery that waits on disk alone; one that pauses comes back."""
        number, sequence, key = receiver.number, message.sequence, message.header.ordering_key
        row = self.rows.get(self.keys.exception(number, sequence))
        assert row is not None, "a renewed delivery without its row"
        state, rank, *_ = decode_exception(row)
        if state != PLACED:
            return
        self.rows.delete(self.keys.exception(number, sequence))
        self.rows.delete(self.keys.waiting(number, rank))
        if key is not None:
            self.key_order.delete(number, key, rank)
            self.reopen_key(key, sequence, receiver)

    def end_unwanted(self, now_ms: int) -> None:
        """Ends expired messages that stayed only for receivers that want them no more."""
        unwanted, self.log.unwanted = self.log.unwanted, []
        for sequence in unwanted:
            message = self.log_message(sequence)
            if message is not None:
                self.stays_for_parked(message)
                self.review_only_parked(message, now_ms)
        # Others of its key may go now, and this turn has sent what it sends.
        self.log.unfinished |= bool(unwanted and self.hungry)

    def withdraw_unparked(self, message: Message) -> None:
        assert message.copies is not None
        places = self.places.get(message.sequence)
        renewed = self.renewed_by(message.sequence)
        for delivery in list(message.copies.values()):
            receiver = delivery.receiver
            assert receiver is not None
            if receiver.number not in renewed:
                if delivery.page is not None:
                    self.release(delivery)
                if places is not None:  # its place is for those who have it renewed
                    places.out.discard(receiver.number)
                    places.held_back.pop(receiver.number, None)
                self.leave_log(delivery, receiver)
                self.release_receiver_key(delivery, receiver)
        self.leave_log_key(message, renewed)

    def forget_renewals(self, message: Message) -> None:
        """A log message is dropped: what is renewed of it is not told from what waits any more."""
        assert message.copies is not None
        for number in self.renewed_by(message.sequence):
            self.rows.delete(self.keys.fared(message.sequence, number))
            if number not in message.copies:  # it waits on disk alone
                receiver = self.receivers.by_number.get(number)
                if receiver is not None:
                    self.uncount_moved(receiver, message)
                self.rows.delete(self.keys.exception(number, message.sequence))

    def review_only_parked(self, message: Message, now_ms: int) -> None:
        """Of a log message that stays for its parked deliveries: it is over once there is none
        left, and held while one of them is renewed and not done."""
        sequence = message.sequence
        row = self.rows.get(self.keys.log(sequence)) if message.flags & ONLY_PARKED else None
        if row is None:
            return
        record = decode_record(row)
        before = message.flags = record.flags
        if not self.has_parked(sequence):
            self.end_log(message, DROPPED, now_ms)
            return
        record.flags = ONLY_PARKED | before & ~RENEWED
        if self.renewed_by(sequence):
            record.flags |= RENEWED
        if record.flags != before:
            message.flags = record.flags
            self.rows.put(self.keys.log(sequence), encode_record(record))
            self.log_held += is_held(record.flags) - is_held(before)
            self.head_dirty = True

    def end_kept_for_nobody(self, sequences: list[int], now_ms: int) -> None:
        """A receiver that had these moved or parked is gone, and their exceptions with it."""
        for sequence in sequences:
            message = self.log_message(sequence)
            if message is not None:
                self.review_only_parked(message, now_ms)

    # --- dead letters -----------------------------------------------------------------------

    def forward(self, message: Message, receiver: Receiver, reason: str, target: str) -> str | None:
        """Sends a message on to the dead-letter topic; it is here until that topic has it.

        A message without room for the attributes of a dead letter is not sent: the text says why.
        """
        header = message.header
        why = _cut(reason)
        added = {
            "dead-letter-topic": self.name,
            "dead-letter-receiver": receiver.name,
            "dead-letter-reason": why,
        }
        try:
            moved = Header(
                Mode.DURABLE, header.expect, header.subjects, header.attributes | added,
                header.max_receivers, priority=header.priority, ordering_key=header.ordering_key,
            )  # fmt: skip
        except PeerError as error:
            return f" (and it has no room for what {target!r} is told: {error.detail})"
        number = self.next_outbox
        self.next_outbox += 1
        self.head_dirty = True
        self.write_outbox(
            number, target, message.id, moved.encoded, self.payload_of(message), receiver.name, why
        )
        return None

    def write_outbox(self, number: int, target: str, *rest: object) -> None:
        """Keeps a message for another topic, under the next number of that topic's producer."""
        count = self.forwarded.get(target, 0) + 1
        self.forwarded[target] = count
        self.rows.put(self.keys.outbox(number), pack(target, count, *rest))
        self.head_dirty = True

    def forwarder_id(self, target: str) -> bytes:
        """The producer as which this topic publishes to its dead-letter topic.

        It is another one whenever the count behind it begins anew, so that no number is ever taken
        for one that was used before.
        """
        identity = f"{self.keys.number}/{self.forward_generation}/{target}/{self.name}"
        size = limits.PRODUCER_ID_BYTES - len(FORWARDER_TAG)
        return FORWARDER_TAG + blake2b(identity.encode(), digest_size=size).digest()

    def send_outbox(self, now_ms: int) -> None:
        """Sends what waits for other topics, in order, a bounded number at a time."""
        if self.outbox_next >= self.next_outbox or now_ms < self.outbox_paused_ms:
            return
        if len(self.forwarding) >= FORWARDS_MAX:
            return
        low, high = self.keys.outbox(self.outbox_next), self.keys.range_of("b")[1]
        for key, row in self.rows.scan(low, high):
            if len(self.forwarding) >= FORWARDS_MAX or self.has_handed_enough:
                return
            number = number_at_end(key)
            self.outbox_next = number + 1
            if number not in self.forwarding:
                target, count, message_id, encoded, payload, _, _ = unpack(row, 7)
                self.forwarding[number] = (target, count)
                open_counts = [known for to, known in self.forwarding.values() if to == target]
                settled = min(open_counts) - 1
                producer = self.forwarder_id(target)
                message = (message_id, encoded, payload)
                self.handed_bytes += len(payload)
                self.effects.append(Forward(number, target, producer, count, settled, message))
        self.outbox_next = self.next_outbox

    def forward_settled(
        self, number: int, code: str | None, detail: str, counted: bool, now_ms: int
    ) -> None:
        """The other topic has answered; ``counted``: it will answer this number so for ever."""
        row = self.rows.get(self.keys.outbox(number))
        self.forwarding.pop(number, None)
        if row is None:
            return
        target, _, *rest = unpack(row, 7)
        if code is None:
            self.rows.delete(self.keys.outbox(number))
        elif code == "wrong_state":
            self.renumber_outbox()
        elif code in _PASSING:
            if counted:
                # Behind all others: rows are sent in order, so that what comes first has the lowest
                # count of all that have no answer yet, and what is before it is settled.
                self.rows.delete(self.keys.outbox(number))
                number = self.next_outbox
                self.next_outbox += 1
                self.write_outbox(number, target, *rest)
            self.outbox_paused_ms = now_ms + FORWARD_RETRY_MS
            self.outbox_next = min(self.outbox_next, number)
        else:
            self.rows.delete(self.keys.outbox(number))
            self.park_unforwarded(target, rest, f"{code} {detail}", now_ms)

    def renumber_outbox(self) -> None:
        """The other topic does not know this producer, or forgot it: begin again as a new one."""
        self.forward_generation += 1
        self.forwarded.clear()
        self.forwarding.clear()
        self.outbox_next = 0
        for key, row in list(self.rows.scan(*self.keys.range_of("b"))):
            target, _, *rest = unpack(row, 7)
            self.write_outbox(number_at_end(key), target, *rest)

    def park_unforwarded(self, target: str, rest: list[Any], refusal: str, now_ms: int) -> None:
        """The dead-letter topic will never take it: park it here, so that it is not lost."""
        message_id, encoded, payload, receiver_name, reason = rest
        header = self.header_of(encoded)
        single = Header(
            Mode.DURABLE,
            header.expect,
            header.subjects,
            header.attributes,
            1,
            priority=header.priority,
        )
        message = Message(
            self.take_number(), message_id, single, payload, now_ms, NEVER_MS, POOL_KIND
        )
        receiver = self.receivers.by_name.get(receiver_name) or self.receivers.work
        if self.settings.unique:
            self.remember_payload(payload, message.sequence, POOL_KIND)
        self.pool_held += 1  # park_pool takes it off again
        self.pool_tally.add(single.subjects)
        why = _with_second(reason, f" (and {target!r} refused it: {refusal})")
        self.park_pool(Delivery(message, 0, 1), receiver, why, now_ms)


def counts_as_held(record: Record) -> bool:
    """Is a message of the pool in the tally? Not while it waits for its time, nor parked."""
    if record.state == DELAYED:
        return record.attempts > 0  # it pauses between two attempts
    return record.state in (NATURAL, PLACED)


def _cut(reason: str, most: int = limits.REASON_BYTES_MAX) -> str:
    return reason.encode()[:most].decode(errors="ignore")


def _with_second(reason: str, second: str) -> str:
    """Both reasons: a long first one leaves the second its room."""
    room = limits.REASON_BYTES_MAX - len(second.encode())
    return _cut(reason, max(room, limits.REASON_BYTES_MAX // 2)) + second
