"""How messages end: done, expired, dropped, abandoned. Receipts, history, and what ending frees."""

from hashlib import blake2b

from asterism.actors.counting import Counting
from asterism.actors.delivery import LOG_KIND, MEMORY_KIND, Delivery, Message
from asterism.actors.keyorder import ONLINE, PUSHED
from asterism.actors.leases import Page
from asterism.actors.log import Places
from asterism.actors.receivers import Endpoint, Receiver
from asterism.actors.runs import Run
from asterism.effects import Resolved
from asterism.message import NEVER_MS, Status
from asterism.storage.keys import COMMON, NONE_RANK, POOL, number_at_end, rank_of
from asterism.storage.records import (
    HAS_PRODUCER,
    FaredRow,
    decode_fared,
    encode_record,
    is_held,
    pack,
)

OK, FAILED, EXPIRED, DROPPED = "ok", "failed", "expired", "dropped"
_NAMES = {status: status.name.lower() for status in Status}
_ABANDONED = "abandoned"  # how one fared that failed for good, and has given its place up


def digest_of(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=16).digest()


class Endings(Counting):
    """Ends messages and deliveries."""

    # --- a delivery that was out ------------------------------------------------------------

    def end_plainly(self, receiver: Receiver, sequences: tuple[int, ...]) -> int:
        """Ends a run of processed deliveries of which nobody wants to know more; how many it was.

        This is what ``release``, ``done`` and ``end_pool`` come to for a durable message of the
        pool with no receipt, key, history or payload to free. It stops at the first other one.
        """
        settings = self.box.value
        if settings.history != "none" or settings.unique or settings.blocking:
            return 0
        held, pages, live = receiver.held, self.pages, self.pool.live
        rows, key_of, take = self.rows, self.keys.pool, self.pool_tally.take
        ended: dict[Endpoint, int] = {}
        count = 0
        for sequence in sequences:
            delivery = held.get(sequence)
            if delivery is None or not delivery.ends_plainly():
                break
            del held[sequence], live[sequence]
            page, endpoint = delivery.page, delivery.endpoint
            assert page is not None and endpoint is not None
            delivery.page = None
            del page.deliveries[sequence]
            if not page.deliveries:
                pages.close(page)
            rows.delete(key_of(sequence))
            take(delivery.message.header.subjects)
            ended[endpoint] = ended.get(endpoint, 0) + 1
            count += 1
        if count:
            self.count_processed(count)
            for endpoint, credit in ended.items():
                self.credit(endpoint, credit)
        return count

    def count_processed(self, count: int) -> None:
        """So many of the pool were out, and are processed."""
        self.pages.out -= count
        self.pool_held -= count
        self.completed += count
        self.totals["processed"] += count
        self.head_dirty = True

    def end_run(self, receiver: Receiver, sequences: tuple[int, ...], now_ms: int) -> int:
        """Ends what is out of runs and is processed; it stops at the first that is not."""
        if self.box.value.history != "none":
            return 0
        plain = self.pool.plain
        ended: dict[Page, int] = {}
        told: list[tuple[bytes, int]] = []  # whom, of which of his messages
        count = 0
        for sequence in sequences:
            page = plain.get(sequence)
            if page is None or page.receiver is not receiver:
                break
            del plain[sequence]
            ended[page] = ended.get(page, 0) + 1
            if page.subjects is None:
                self.pool_tally.take(self.subjects_in(page, sequence))
            if page.producer is not None:
                told.append((page.producer, page.told_first + sequence - page.first))
            count += 1
        if not count:
            return 0
        self.rows.write_all(dict.fromkeys(self.keys.pool_keys(sequences[:count])))
        self.count_processed(count)
        receiver.out_of_runs -= count
        for page, number in ended.items():
            self.take_from_page(page, number)
        if told:
            self.asked -= len(told)
            self.resolve_all(told, {receiver.name: _NAMES[Status.PROCESSED]}, now_ms)
        return count

    def take_from_page(self, page: Page, count: int) -> None:
        """So many of a part of a run are over."""
        page.left -= count
        if page.subjects is not None:
            self.pool_tally.take(page.subjects, count)
        if not page.left and not page.deliveries:
            self.pages.close(page)
        assert page.endpoint is not None
        self.credit(page.endpoint, count)

    def subjects_in(self, page: Page, sequence: int) -> tuple[str, ...]:
        """The subjects of a message that is out of a run."""
        return self.header_of(page.messages[sequence - page.first][1]).subjects

    def release(self, delivery: Delivery) -> None:
        """A delivery is out no longer: it leaves its holder, and its credit goes back."""
        receiver, endpoint = delivery.receiver, delivery.endpoint
        assert receiver is not None
        del receiver.held[delivery.sequence]
        self.pages.remove(delivery)
        delivery.endpoint = None
        if delivery.size and endpoint is not None:
            self.lighten(endpoint, delivery.size)
            delivery.size = 0
        if delivery.message.kind == LOG_KIND:
            self.oldest_log.note(delivery.sequence)  # it waits, if only for those who come later
        if endpoint is not None and delivery.returns_credit:
            self.credit(endpoint, 1)

    def credit(self, endpoint: Endpoint, amount: int) -> None:
        """Gives an endpoint credit; one that had none is looked at again."""
        receiver = endpoint.receiver
        if (endpoint.node, endpoint.number) in receiver.endpoints:
            if endpoint.owed:
                paid = min(endpoint.owed, amount)
                endpoint.owed -= paid
                amount -= paid
                if not amount:
                    return
            if endpoint.bytes_out and endpoint.is_laden:
                receiver.withhold(endpoint, amount)
                return
            if receiver.credit == 0:
                self.pool.wake(receiver)
                self.hungry[receiver] = None
            receiver.give(endpoint, amount)

    def load(self, endpoint: Endpoint, delivery: Delivery, size: int) -> None:
        """A large payload goes out: it counts until the delivery is over, or paid for by a grant.
        An endpoint that has enough of them gets no more for now."""
        if delivery.message.header.expect is not Status.SENT:
            delivery.size = size
        elif delivery.returns_credit:
            endpoint.unpaid.append((endpoint.passed, size))
        else:
            return  # a pull has asked for just that
        endpoint.bytes_out += size
        if endpoint.is_laden:
            credit, receiver = endpoint.credit, endpoint.receiver
            receiver.revoke(endpoint, credit)
            receiver.withhold(endpoint, credit)

    def lighten(self, endpoint: Endpoint, size: int) -> None:
        """A large payload is out no longer."""
        endpoint.bytes_out -= size
        if endpoint.withheld and not endpoint.is_laden:
            credit, endpoint.withheld = endpoint.withheld, 0
            self.credit(endpoint, credit)

    # --- the pool, and push -----------------------------------------------------------------

    def end_pool(
        self, delivery: Delivery, verdict: str, statuses: dict[str, str], now_ms: int
    ) -> None:
        """A message of the pool is over; it is not out any more."""
        sequence, message = delivery.sequence, delivery.message
        delivery.waits = False
        self.pool.live.pop(sequence, None)
        if delivery.counts:
            self.tally_of(message).take(message.header.subjects)
        self.free_payload(message)
        if self.settings.history != "none":
            self.keep_history(message, verdict, delivery, now_ms)
        if message.kind == MEMORY_KIND:
            self.forget_memory(message)
        else:
            self.rows.delete(self.keys.pool(sequence))
            if delivery.placed:
                self.rows.delete(self.keys.waiting(POOL, delivery.rank))
            self.forget_returned(POOL, sequence)
            self.pool_held -= 1
            self.head_dirty = True
            if message.flags & HAS_PRODUCER:
                self.asked -= 1
        if message.producer is not None:
            self.resolve(message, verdict, statuses, now_ms)
        self.leave_pool_key(delivery)
        self.resolved_current(sequence)

    def leave_pool_key(self, delivery: Delivery) -> None:
        """A message of the pool waits no more: it is out of the order of its key."""
        message = delivery.message
        key = message.header.ordering_key
        if key is not None:
            if message.kind != MEMORY_KIND:
                self.key_order.delete(POOL, key, delivery.rank)
            self.release_pool_key(delivery)

    def release_pool_key(self, delivery: Delivery) -> None:
        key = delivery.message.header.ordering_key
        if key is not None:
            for following in self.pool.locks.release(key, delivery.sequence):
                self.fed[self.pool.offer(following)] = None

    def forget_memory(self, message: Message) -> None:
        """A push or online message is over."""
        if self.memory.pop(message.sequence, None) is not None and self.memory_bytes:
            self.memory_bytes -= message.large_bytes
        key = message.header.ordering_key
        if key is not None:
            self.key_order.leave(list_of(message), key, message.sequence)

    def remember_payload(self, payload: bytes, sequence: int, kind: int) -> None:
        """A unique topic takes this payload from nobody else while its message lives."""
        digest = digest_of(payload)
        if kind == MEMORY_KIND:
            self.digests.setdefault(digest, set()).add(sequence)
        else:
            self.rows.put(self.keys.payload_digest(digest, sequence), b"")

    def free_payload(self, message: Message) -> None:
        """A unique topic may take this payload again. The message's row is still there."""
        if not self.settings.unique:
            return
        digest = digest_of(self.payload_of(message))
        if message.kind != MEMORY_KIND:
            self.rows.delete(self.keys.payload_digest(digest, message.sequence))
        elif digest in self.digests:
            self.digests[digest].discard(message.sequence)
            if not self.digests[digest]:
                del self.digests[digest]

    # --- the log ----------------------------------------------------------------------------

    def is_tracked(self, message: Message) -> bool:
        """Does anybody want to know how it fared with each receiver?"""
        return (
            message.producer is not None
            or message.header.max_receivers is not None
            or self.settings.history != "none"
        )

    def places_of(self, message: Message) -> Places:
        """Who has, or had, a message with ``max_receivers``."""
        places = self.places.get(message.sequence)
        if places is None:
            places = self.places[message.sequence] = Places()
            for key, row in self.rows.scan(*self.keys.fared_all(message.sequence)):
                number, status = number_at_end(key, 4), decode_fared(row).status
                if status == _NAMES[Status.FAILED]:
                    places.parked.add(number)
                elif status not in (_NAMES[Status.WAITING], _ABANDONED):
                    places.done.add(number)
        return places

    def note_fared(
        self, delivery: Delivery, receiver: Receiver, status: Status, now_ms: int
    ) -> None:
        value = pack(
            receiver.name,
            _NAMES[status],
            delivery.attempts,
            delivery.sent_ms,
            delivery.received_ms,
            now_ms,
        )
        self.rows.put(self.keys.fared(delivery.sequence, receiver.number), value)

    def note_abandoned(self, message: Message, number: int) -> None:
        """A parked delivery is given up: its place falls free, and the verdict remembers it."""
        key = self.keys.fared(message.sequence, number)
        row = self.rows.get(key)
        assert row is not None, "a parked delivery of the log that never fared"
        if self.is_tracked(message):
            self.rows.put(key, pack(*decode_fared(row)._replace(status=_ABANDONED)))
        else:
            self.rows.delete(key)

    def leave_log(self, delivery: Delivery, receiver: Receiver) -> None:
        """A receiver needs this log message no more, or not now; it is not out."""
        delivery.waits = False
        self.log.forget(delivery, receiver)
        self.owes_less(receiver, delivery.sequence)
        if delivery.placed:
            number, key = receiver.number, delivery.message.header.ordering_key
            self.rows.delete(self.keys.waiting(number, delivery.rank))
            self.rows.delete(self.keys.exception(number, delivery.sequence))
            if key is not None:
                self.key_order.delete(number, key, delivery.rank)
            delivery.placed = False
        self.forget_returned(receiver.number, delivery.sequence)

    def end_log_delivery(self, delivery: Delivery, status: Status, now_ms: int) -> None:
        """A receiver is done with a log message, well or (``FAILED``) for good and not parked."""
        receiver, message = delivery.receiver, delivery.message
        assert receiver is not None
        self.leave_log(delivery, receiver)
        receiver.done_now.add(delivery.sequence)
        self.unsettled[receiver] = None
        if self.is_tracked(message):
            self.note_fared(delivery, receiver, status, now_ms)
        self.note_through(message)
        self.release_receiver_key(delivery, receiver)
        self.current_done_by(message, receiver.number)
        self.take_place(message, receiver, status, now_ms)

    def take_place(self, message: Message, receiver: Receiver, status: Status, now_ms: int) -> None:
        wanted = message.header.max_receivers
        if wanted is None:
            return
        places = self.places_of(message)
        places.leave(receiver.number)  # it may have had it before
        (places.parked if status is Status.FAILED else places.done).add(receiver.number)
        if len(places.done) >= wanted:
            self.end_log(message, OK, now_ms)
        elif len(places.done) + len(places.parked) >= wanted and not self.has_parked(
            message.sequence
        ):
            self.end_log(message, FAILED, now_ms)  # the rest are dead letters: none to be renewed
        elif status is Status.FAILED:
            self.give_verdict(message, FAILED, now_ms)
            self.drop_producer_row(message)
            self.resolved_current(message.sequence)
            for number, held_back in places.held_back.items():
                self.release_receiver_key(held_back, self.receivers.by_number[number])
        self.forget_idle_places(message.sequence)

    def forget_idle_places(self, sequence: int) -> None:
        """Places that nobody fills or waits for now are read from their rows when needed again."""
        places = self.places.get(sequence)
        if places is not None and not places.out and not places.held_back:
            del self.places[sequence]

    def has_parked(self, sequence: int) -> bool:
        """Is a delivery of this log message parked, or renewed and not yet done?"""
        names = (_NAMES[Status.FAILED], _NAMES[Status.WAITING])
        for key, row in self.rows.scan(*self.keys.fared_all(sequence)):
            if decode_fared(row).status in names:
                number = number_at_end(key, 4)
                if self.rows.get(self.keys.exception(number, sequence)) is not None:
                    return True
        return False

    def renewed_by(self, sequence: int) -> list[int]:
        """The receivers that have this log message renewed, and have not done it."""
        numbers = []
        for key, row in self.rows.scan(*self.keys.fared_all(sequence)):
            number = number_at_end(key, 4)
            renewed = decode_fared(row).status == _NAMES[Status.WAITING]
            if renewed and self.rows.get(self.keys.exception(number, sequence)) is not None:
                numbers.append(number)
        return numbers

    def has_failed(self, sequence: int, number: int) -> bool:
        """Did this log message fail for good with a receiver? Not if it was renewed since."""
        row = self.rows.get(self.keys.fared(sequence, number))
        return row is not None and decode_fared(row).status == _NAMES[Status.FAILED]

    def free_place(self, message: Message, number: int) -> None:
        """A delivery with ``max_receivers`` came back, or was given up: others may have it."""
        if message.header.max_receivers is None:
            return
        places = self.places_of(message)
        places.out.discard(number)
        if number in places.parked and not self.has_failed(message.sequence, number):
            places.parked.discard(number)
        held_back, places.held_back = places.held_back, {}
        for held_number, delivery in held_back.items():
            other = self.receivers.by_number.get(held_number)
            if other is not None and delivery.sequence in other.known:
                other.window.push(delivery)
                # Before the one that gave it back, which may be hungry already.
                self.hungry = {other: None} | self.hungry
        self.forget_idle_places(message.sequence)

    def release_receiver_key(self, delivery: Delivery, receiver: Receiver) -> None:
        key = delivery.message.header.ordering_key
        if key is not None:
            self.reopen_key(key, delivery.sequence, receiver)

    def reopen_key(self, key: str, sequence: int, receiver: Receiver) -> None:
        """This one holds the key no more, or holds nobody up: those set aside wait again."""
        for following in receiver.locks.release(key, sequence):
            self.wait_for_turn(following, receiver)
            self.hungry[receiver] = None

    def wait_for_turn(self, delivery: Delivery, receiver: Receiver) -> None:
        """A delivery of this receiver alone that was set aside waits in order again."""
        if delivery.message.kind == LOG_KIND:
            self.log.put_back(delivery, receiver)
        else:
            self.wait_with_copies(delivery, receiver)

    def end_log(self, message: Message, verdict: str, now_ms: int) -> None:
        """A log message is over, for everybody."""
        sequence = message.sequence
        self.give_verdict(message, verdict, now_ms)
        self.unkeep(message)
        self.uncount_on_disk(message, [])
        self.withdraw_copies(message)
        self.free_payload(message)
        self.rows.delete(self.keys.log(sequence))
        if message.header.priority is not None:
            rank = rank_of(message.header.priority, sequence)
            self.rows.delete(self.keys.waiting(COMMON, rank))
        for key, _ in list(self.rows.scan(*self.keys.fared_all(sequence))):
            self.rows.delete(key)
        self.places.pop(sequence, None)
        self.leave_log_key(message, [])
        self.forget_returned_everywhere(sequence)
        self.log_held -= is_held(message.flags)
        self.head_dirty = True
        self.resolved_current(sequence)

    def leave_log_key(self, message: Message, kept_by: list[int]) -> None:
        """A log message is over, but for these: what is behind it in the order of its key may go,
        also with those who have it on disk alone."""
        key, sequence = message.header.ordering_key, message.sequence
        if key is None:
            return
        self.key_order.delete(COMMON, key, sequence)
        for number in self.receivers.audience(message.header.subjects):
            if number not in kept_by:
                self.reopen_key(key, sequence, self.receivers.by_number[number])

    def withdraw_copies(self, message: Message) -> None:
        """Nobody gets it any more; what is out comes back without a trace."""
        assert message.copies is not None
        for delivery in list(message.copies.values()):
            receiver = delivery.receiver
            assert receiver is not None
            if delivery.page is not None:
                self.release(delivery)
            self.leave_log(delivery, receiver)
            self.release_receiver_key(delivery, receiver)

    def give_verdict(self, message: Message, verdict: str, now_ms: int) -> None:
        """Answers the publisher and keeps history, once; a log message may live on after it."""
        if message.producer is not None:
            self.resolve(message, verdict, self.statuses_of(message.sequence), now_ms)
            message.producer = None
        if message.flags & HAS_PRODUCER:
            message.flags &= ~HAS_PRODUCER
            self.asked -= 1
            self.head_dirty = True
        if self.settings.history != "none":
            ladder = {name: rest for name, *rest in self.fared_of(message.sequence)}
            self.write_history(message, verdict, ladder, now_ms)

    def fared_of(self, sequence: int) -> list[FaredRow]:
        """How a log message fared: name, status, attempts and times of each receiver."""
        rows = [decode_fared(row) for _, row in self.rows.scan(*self.keys.fared_all(sequence))]
        failed = _NAMES[Status.FAILED]
        return [row._replace(status=failed) if row.status == _ABANDONED else row for row in rows]

    def statuses_of(self, sequence: int) -> dict[str, str]:
        return {fared.receiver: fared.status for fared in self.fared_of(sequence)}

    # --- online copies ----------------------------------------------------------------------

    def wait_with_copies(self, delivery: Delivery, receiver: Receiver) -> None:
        """A copy waits in order of its rank: what is in runs cannot come between."""
        if receiver.kept:
            self.unroll_copies()
        receiver.copies.push(delivery)

    def unroll_copies(self) -> None:
        """Gives every online copy that waits in a run its objects."""
        if not self.keepers:
            return
        shared: dict[int, list[tuple[Receiver, Run]]] = {}
        for receiver in self.keepers:
            for run in receiver.kept:
                shared.setdefault(run.first - run.taken, []).append((receiver, run))
            receiver.kept.clear()
            receiver.kept_count = 0
        self.keepers.clear()
        self.kept.clear()
        self.kept_messages = 0
        for begin in sorted(shared):
            self.unroll_shared(begin, shared[begin])
        self.pool.memory_in_order = False

    def unroll_shared(self, begin: int, waiting: list[tuple[Receiver, Run]]) -> None:
        """Messages that several receivers wait for, each from where it is."""
        _, whole = waiting[0]
        least = min(run.taken for _, run in waiting)
        for index, (message_id, encoded, payload) in enumerate(whole.messages[least:], least):
            sequence, header = begin + index, self.header_of(encoded)
            message = self.memory[sequence] = Message(
                sequence, message_id, header, payload, whole.accepted_ms, NEVER_MS, MEMORY_KIND
            )
            assert message.copies is not None
            for receiver, run in waiting:
                if run.taken <= index:
                    delivery = Delivery(message, NONE_RANK | sequence)
                    delivery.receiver = receiver
                    message.copies[receiver.number] = delivery
                    receiver.copies_count += 1
                    receiver.copies.push(delivery)

    def end_copy(self, delivery: Delivery, status: Status, now_ms: int) -> None:
        """One receiver's copy of an online message is final; it is not out."""
        receiver, message = delivery.receiver, delivery.message
        assert receiver is not None and message.copies is not None
        if delivery.waits:
            delivery.waits = False
            receiver.copies.head()  # lets go of it: nobody else may look there for long
        if message.copies.pop(receiver.number, None) is None:
            return
        receiver.copies_count -= 1
        if message.statuses is not None:
            message.statuses[receiver.name] = _NAMES[status]
            if self.settings.history != "none":
                times = [delivery.sent_ms, delivery.received_ms, now_ms]
                ladder = [_NAMES[status], delivery.attempts, *times]
                message.ladder = {**(message.ladder or {}), receiver.name: ladder}
        self.release_receiver_key(delivery, receiver)
        self.current_done_by(message, receiver.number)
        if not message.copies:
            self.end_online(message, now_ms)

    def end_online(self, message: Message, now_ms: int) -> None:
        self.forget_memory(message)
        statuses = message.statuses or {}
        bad = any(status in ("failed", "unreachable") for status in statuses.values())
        verdict = FAILED if bad else OK
        self.free_payload(message)
        if message.producer is not None:
            self.resolve(message, verdict, statuses, now_ms)
        if self.settings.history != "none":
            self.write_history(message, verdict, message.ladder or {}, now_ms)
        self.resolved_current(message.sequence)

    def drop_copies(self, message: Message, now_ms: int) -> None:
        """An online message is dropped, with every copy that is not final."""
        assert message.copies is not None
        for delivery in list(message.copies.values()):
            if delivery.page is not None:
                self.release(delivery)
            delivery.waits = False
            receiver = delivery.receiver
            assert receiver is not None
            receiver.copies_count -= 1
            receiver.copies.head()
            self.release_receiver_key(delivery, receiver)
        message.copies.clear()
        self.forget_memory(message)
        self.free_payload(message)
        if message.producer is not None:
            self.resolve(message, DROPPED, message.statuses or {}, now_ms)
        self.resolved_current(message.sequence)

    # --- receipts and history ---------------------------------------------------------------

    def resolve(
        self, message: Message, verdict: str, statuses: dict[str, str], now_ms: int
    ) -> None:
        """Tells the publisher how it ended and keeps the outcome for as long as it may ask."""
        producer = message.producer
        assert producer is not None
        self.outcomes.file(producer, message.number, verdict, statuses, now_ms)
        self.sweep_by(now_ms)
        node = self.producers.node_of(producer)
        self.effects.append(Resolved(node, producer, message.number, verdict, statuses))

    def resolve_all(
        self, told: list[tuple[bytes, int]], statuses: dict[str, str], now_ms: int
    ) -> None:
        """What ``resolve`` comes to for messages that ended well, and alike."""
        self.outcomes.file_all(told, OK, statuses, now_ms)
        self.sweep_by(now_ms)
        nodes = {producer: self.producers.node_of(producer) for producer, _ in told}
        self.effects += [
            Resolved(nodes[producer], producer, number, OK, statuses) for producer, number in told
        ]

    def drop_producer_row(self, message: Message) -> None:
        """The verdict is given and the message lives on: a restart must not give it again."""
        record = self.record_of("l", message.sequence)
        if record is not None:
            record.flags &= ~HAS_PRODUCER
            record.producer = None
            self.rows.put(self.keys.log(message.sequence), encode_record(record))

    def keep_history(self, message: Message, verdict: str, delivery: Delivery, now_ms: int) -> None:
        """History of a message that had one delivery."""
        ladder: dict[str, list[object]] = {}
        if delivery.receiver is not None:
            times = [delivery.sent_ms, delivery.received_ms, now_ms]
            ladder[delivery.receiver.name] = [_NAMES[delivery.status], delivery.attempts, *times]
        self.write_history(message, verdict, ladder, now_ms)

    def write_history(
        self, message: Message, verdict: str, ladder: dict[str, list[object]], now_ms: int
    ) -> None:
        payload = self.payload_of(message) if self.settings.history == "full" else None
        resolved_ms = max(now_ms, self.history_from_ms)
        value = pack(
            message.id,
            message.header.encoded,
            payload,
            message.accepted_ms,
            resolved_ms,
            verdict,
            ladder,
        )
        self.rows.put(self.keys.history(resolved_ms, message.sequence), value)
        self.sweep_by(now_ms)

    # --- a blocking topic -------------------------------------------------------------------

    def resolved_current(self, sequence: int) -> None:
        if self.current == sequence:
            self.current = None
            self.current_for.clear()
            self.nothing_under_way()

    def nothing_under_way(self) -> None:
        if self.under_way:
            self.under_way = 0
            self.head_dirty = True

    def current_done_by(self, message: Message, receiver: int) -> None:
        if self.current == message.sequence:
            self.current_for.discard(receiver)
            # With ``max_receivers`` it is resolved by its verdict, and not before.
            if not self.current_for and message.header.max_receivers is None:
                self.resolved_current(message.sequence)


def list_of(message: Message) -> int:
    """The list of the order of keys in which a message in memory is."""
    return PUSHED if message.copies is None else ONLINE


def status_name(status: Status) -> str:
    return _NAMES[status]
