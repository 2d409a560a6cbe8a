"""Publishing: what is accepted, what is refused, where an accepted message waits."""

from collections import Counter
from collections.abc import Sequence
from heapq import heappush

from asterism import limits
from asterism.actors.delivery import MEMORY_KIND, POOL_KIND, Delivery, Message, kind_of
from asterism.actors.endings import DROPPED, digest_of, list_of
from asterism.actors.passing import Passing, columns_of
from asterism.actors.pool import Lane
from asterism.actors.producers import Producer, Result
from asterism.actors.receivers import Receiver
from asterism.actors.runs import Run
from asterism.commands import AwaitReceipts, Incoming, Publish
from asterism.effects import Accepted, Refusal, Reply
from asterism.errors import PeerError
from asterism.message import NEVER_MS, Header, Mode
from asterism.settings import DropOld
from asterism.storage.keys import (
    COMMON,
    DUE_DELAY,
    DUE_EXPIRE,
    NONE_RANK,
    POOL,
    WORK,
    number_at_end,
    rank_of,
)
from asterism.storage.records import (
    DELAYED,
    HAS_DUE,
    HAS_PRODUCER,
    NATURAL,
    ONLY_PARKED,
    PLACED,
    encode_fields,
    is_held,
    plain_row,
    plain_rows,
)


class Publishing(Passing):
    """Accepts messages."""

    def on_publish(self, command: Publish, now_ms: int) -> None:
        producer = None
        known: list[Result] = []
        first, messages = command.first, command.messages
        if command.producer is not None:
            producer = self.producers.get(command.producer)
            producer.node = command.node
            if first != producer.high + 1:
                known = self.producers.answered(producer, first, len(messages), command.settled)
            elif first == 1:
                self.producers.admit(now_ms)
        answer_at = len(self.effects)  # ahead of what is resolved at once: first accepted
        fresh: Sequence[Result] | None = None
        self.speaker = command.node
        if not known and self.is_simple():
            if self.receivers.quiet:
                fresh = self.pass_unheard(command)
            accept = self.accept_run if len(messages) > 1 else self.accept_one
            if fresh is None:
                fresh = accept(command, now_ms)
        if fresh is None:
            fresh = self.accept_all(command, len(known), now_ms)
        self.speaker = b""
        accepted_now = len(fresh) if type(fresh) is range else [*map(type, fresh)].count(int)
        self.totals["published"] += accepted_now
        self.head_dirty = True
        if command.producer is not None:
            assert producer is not None
            self.producers.record(command.producer, producer, fresh, command.settled, now_ms)
            if self.next_sweep_ms is None:
                self.sweep_by(now_ms)
        accepted = Accepted(command.node, command.request, (*known, *fresh))
        self.effects.insert(answer_at, accepted)

    def is_simple(self) -> bool:
        """Has the topic no rule that looks at a message, or counts it, when it comes?"""
        settings = self.box.value
        return not (settings.unique or settings.blocking) and settings.overflow is None

    def accept_run(self, command: Publish, now_ms: int) -> range | None:
        """Accepts messages that are all plain, together; ``None``, with nothing done, if not so.
        They are plain if they ask for receipts too, all of them.

        What ``accept`` and ``store`` come to for each of them, but with no object made: columns
        are looked at whole, which costs a fraction of looking at each.
        """
        settings, messages = self.box.value, command.messages
        expires_ms = now_ms + settings.default_ttl_ms
        columns = columns_of(messages)
        if columns is None:
            return None
        ids, published, payloads = columns
        headers = self.settled_headers(published)
        if headers is None:
            return None
        if headers is not published:
            messages = tuple(zip(ids, headers, payloads, strict=True))
        longest = max(map(len, payloads))
        passing = self.passing_header(headers)
        if longest > min(settings.max_payload, limits.WINDOW_RECORD_BYTES_MAX):
            return None
        if passing is not None:
            return self.pass_on(messages, passing, command.node, now_ms)
        if expires_ms < self.last_expiry_ms:
            return None
        lanes = self.lanes_of_run(headers)
        if lanes is None:
            return None
        kinds = set(headers)
        asking = {self.header_of(encoded).receipt for encoded in kinds}
        producer = command.producer if asking == {True} else None
        if asking != {False} and producer is None:
            return None
        count, start = len(messages), self.next_sequence
        sequences = range(start, start + count)
        numbers, keys = self.keys.pool_numbers(sequences)
        number = command.first
        rows = plain_rows(now_ms, expires_ms, numbers, ids, headers, payloads, producer, number)
        self.rows.write_all(dict(zip(keys, rows, strict=True)))
        self.count_stored(count, producer is not None, expires_ms)
        subjects = self.header_of(headers[0]).subjects if len(kinds) == 1 else None
        self.tally_run(headers, subjects)
        for (lane, at), until in zip(lanes, (*(at for _, at in lanes[1:]), count), strict=True):
            part = messages[at:until]
            run = Run(start + at, part, now_ms, expires_ms, False, producer, number + at, subjects)
            self.pool.add_run(run, lane)
            self.fed[lane] = None
        return sequences

    def accept_one(self, command: Publish, now_ms: int) -> range | None:
        """What ``accept_run`` comes to for one message, with no columns made of it."""
        (incoming,) = command.messages
        if not _is_message(incoming):
            return None
        message_id, published, payload = incoming
        header = self.incoming.get(published) or self.taken_header(published)
        settings, size = self.box.value, len(payload)
        if header is None or size > settings.max_payload or size > limits.WINDOW_RECORD_BYTES_MAX:
            return None
        encoded = header.encoded
        messages = ((message_id, encoded, payload),)
        if header.receipt and command.producer is None:
            return None
        if header.passes:
            return self.pass_on(messages, header, command.node, now_ms)
        expires_ms = now_ms + settings.default_ttl_ms
        if not header.goes_in_runs or expires_ms < self.last_expiry_ms:
            return None
        producer = command.producer if header.receipt else None
        sequence, number = self.next_sequence, command.first
        row = plain_row(
            now_ms, expires_ms, sequence, message_id, encoded, payload, producer, number
        )
        self.rows.put(self.keys.pool(sequence), row)
        self.count_stored(1, header.receipt, expires_ms)
        lane = self.pool.lane_of(header, False)
        self.pool_tally.add(header.subjects)
        run = Run(sequence, messages, now_ms, expires_ms, False, producer, number, header.subjects)
        self.pool.add_run(run, lane)
        self.fed[lane] = None
        return range(sequence, sequence + 1)

    def count_stored(self, count: int, asking: bool, expires_ms: int) -> None:
        """So many plain messages have their rows, by which they wait."""
        self.next_sequence += count
        self.pool_held += count
        if asking:
            self.asked += count
        self.last_expiry_ms = expires_ms
        if self.next_expiry_ms["m"] is None:
            self.next_expiry_ms["m"] = expires_ms

    def settled_headers(self, published: tuple[bytes, ...]) -> tuple[bytes, ...] | None:
        """The headers of messages as this topic takes them, mostly as they are; ``None`` if one
        of them is none."""
        first = published[0]
        if published.count(first) == len(published):
            header = self.taken_header(first)
            if header is None or header.encoded == first:
                return None if header is None else published
            return (header.encoded,) * len(published)
        taken = {encoded: self.taken_header(encoded) for encoded in set(published)}
        if None in taken.values():
            return None
        return tuple([taken[encoded].encoded for encoded in published])  # type: ignore[union-attr]

    def taken_header(self, published: bytes) -> Header | None:
        """The header of a message as this topic takes it; ``None`` if it is none."""
        try:
            return self.incoming_header(published)
        except PeerError:
            return None

    def tally_run(self, headers: tuple[bytes, ...], subjects: tuple[str, ...] | None) -> None:
        """Counts plain messages by their subjects, which all of them may share."""
        if subjects is not None:
            self.pool_tally.add(subjects, len(headers))
            return
        for encoded, count in Counter(headers).items():
            self.pool_tally.add(self.header_of(encoded).subjects, count)

    def passing_header(self, headers: tuple[bytes, ...]) -> Header | None:
        """The header of messages that are done once they are sent, if it is one for all."""
        header = self.header_of(headers[0])
        if not header.passes or headers.count(headers[0]) < len(headers):
            return None
        return header

    def lanes_of_run(self, headers: tuple[bytes, ...]) -> list[tuple[Lane, int]] | None:
        """The lanes of messages one after another, each with where it begins; ``None`` if one of
        these headers is not of a plain message."""
        if headers.count(headers[0]) == len(headers):
            header = self.plain_header(headers[0])
            return None if header is None else [(self.pool.lane_of(header, False), 0)]
        lanes: list[tuple[Lane, int]] = []
        last: bytes | None = None
        for index, encoded in enumerate(headers):
            if encoded == last:
                continue
            header = self.plain_header(encoded)
            if header is None:
                return None
            last, lane = encoded, self.pool.lane_of(header, False)
            if not lanes or lanes[-1][0] is not lane:
                lanes.append((lane, index))
        return lanes

    def plain_header(self, encoded: bytes) -> Header | None:
        """The header of a message that may go in a run; ``None`` of any other."""
        header = self.header_of(encoded)
        return header if header.goes_in_runs else None

    def accept_all(self, command: Publish, skip: int, now_ms: int) -> list[Result]:
        results: list[Result] = []
        number = command.first + skip
        accept, producer = self.accept, command.producer
        for incoming in command.messages[skip:]:
            try:
                results.append(accept(incoming, producer, number, now_ms))
            except PeerError as error:
                results.append(Refusal(error.code, error.detail))
            number += 1
        return results

    def accept(self, incoming: object, producer: bytes | None, number: int, now_ms: int) -> int:
        """Takes one message, or refuses it with nothing done; returns its sequence."""
        if type(incoming) is not tuple or len(incoming) != 3:
            raise PeerError("bad_request", "a message is its id, header and payload")
        message_id, encoded, payload = incoming
        if type(message_id) is not bytes or len(message_id) != limits.MESSAGE_ID_BYTES:
            raise PeerError("bad_request", f"a message's id has {limits.MESSAGE_ID_BYTES} bytes")
        if type(payload) is not bytes or type(encoded) is not bytes:
            raise PeerError("bad_request", "a header and a payload are bytes")
        header = self.incoming_header(encoded)
        settings = self.box.value
        if len(payload) > settings.max_payload:
            raise PeerError(
                "too_large", f"the payload has {len(payload)} bytes, over {settings.max_payload}"
            )
        if not header.is_plain:
            self.check_wishes(header, producer, len(payload), now_ms)
        if settings.unique:
            self.check_unique(payload, None)
        if settings.overflow is not None:
            self.make_room(now_ms)
        return self.store(message_id, header, payload, producer, number, now_ms)

    def check_wishes(self, header: Header, producer: bytes | None, size: int, now_ms: int) -> None:
        """Refuses what only some messages can ask for and what cannot be had now."""
        if header.receipt and producer is None:
            raise PeerError("bad_request", "a receipt needs a producer to address it to")
        if header.mode is Mode.DURABLE:
            return
        is_large = size > limits.WINDOW_RECORD_BYTES_MAX
        if self.is_memory_full(1) or (is_large and not self.has_memory_for(size, now_ms)):
            raise PeerError("busy", "the topic holds as many messages in memory as it may", 1_000)
        if header.mode is Mode.PUSH and (header.deliver_ms is None or header.deliver_ms <= now_ms):
            self.check_receiver(header)

    def check_receiver(self, header: Header) -> None:
        numbers = self.receivers.by_number
        for number in self.receivers.audience(header.subjects):
            if number != WORK and numbers[number].endpoints:
                return
        raise PeerError(
            "no_receiver", f"nobody online is interested in {', '.join(header.subjects)}"
        )

    def check_unique(self, payload: bytes, itself: int | None) -> None:
        digest = digest_of(payload)
        stored = self.rows.scan(*self.keys.payload_digests(digest))
        if digest in self.digests or any(number_at_end(key) != itself for key, _ in stored):
            raise PeerError("duplicate", "a live message has this payload")

    def make_room(self, now_ms: int) -> None:
        """Keeps to the overflow size: refuses the new message, or drops the oldest."""
        overflow = self.settings.overflow
        assert overflow is not None
        while self.held >= overflow.size:
            if not isinstance(overflow, DropOld):
                raise PeerError("overflow", f"the topic holds {self.held} messages")
            self.drop_oldest(now_ms)

    # --- storing ----------------------------------------------------------------------------

    def store(
        self,
        message_id: bytes,
        header: Header,
        payload: bytes,
        producer: bytes | None,
        number: int,
        now_ms: int,
    ) -> int:
        """Gives an acceptable message its sequence, its row and its place."""
        settings = self.box.value
        if (
            header.is_plain
            and not settings.unique
            and len(payload) <= limits.WINDOW_RECORD_BYTES_MAX
            and now_ms + settings.default_ttl_ms >= self.last_expiry_ms
        ):
            expires_ms = now_ms + settings.default_ttl_ms
            return self.store_plainly(message_id, header, payload, now_ms, expires_ms)
        sequence = self.take_number()
        kind = kind_of(header)
        kept = (
            payload
            if kind == MEMORY_KIND or len(payload) <= limits.WINDOW_RECORD_BYTES_MAX
            else None
        )
        message = Message(sequence, message_id, header, kept, now_ms, NEVER_MS, kind)
        if header.receipt and producer is not None:
            message.producer = producer
            message.number = number
            message.flags = HAS_PRODUCER
            self.asked += kind != MEMORY_KIND
        if self.box.value.unique:
            self.remember_payload(payload, sequence, kind)
        if kind == MEMORY_KIND:
            self.place_memory(message, now_ms)
        else:
            self.place_durable(message, payload, now_ms)
        return sequence

    def store_plainly(
        self, message_id: bytes, header: Header, payload: bytes, now_ms: int, expires_ms: int
    ) -> int:
        """What ``store`` comes to for the most common message: of the pool, with all defaults."""
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        rank = NONE_RANK | sequence
        encoded = header.encoded
        row = encode_fields(
            NATURAL, 0, 0, now_ms, expires_ms, rank, 0, None, 0, message_id, encoded, payload
        )
        self.rows.put(self.keys.pool(sequence), row)
        self.pool_held += 1
        self.pool_tally.add(header.subjects)
        self.last_expiry_ms = expires_ms
        if self.next_expiry_ms["m"] is None:
            self.next_expiry_ms["m"] = expires_ms
        pool = self.pool
        lane = pool.lane_of(header, False)
        if rank < (pool.frontier if lane.spill is None else lane.spill):
            message = Message(sequence, message_id, header, payload, now_ms, expires_ms, POOL_KIND)
            pool.keep(Delivery(message, rank), lane)
            self.fed[lane] = None
        return sequence

    def place_durable(self, message: Message, payload: bytes, now_ms: int) -> None:
        header, sequence = message.header, message.sequence
        in_pool = message.kind == POOL_KIND
        self.set_expiry(message, now_ms)
        rank = rank_of(header.priority, sequence)
        delayed = header.deliver_ms is not None and header.deliver_ms > now_ms
        # One with a priority is found by its w row and by nothing else: its own is not natural.
        state = DELAYED if delayed else NATURAL if header.priority is None else PLACED
        row = encode_fields(
            state, message.flags, 0, now_ms, message.expires_ms, rank, 0, message.producer,
            message.number, message.id, header.encoded, payload,
        )  # fmt: skip
        if in_pool:
            self.rows.put(self.keys.pool(sequence), row)
            self.pool_held += 1
        else:
            self.rows.put(self.keys.log(sequence), row)
            self.log_held += 1
        if delayed:
            assert header.deliver_ms is not None
            self.add_due(header.deliver_ms, DUE_DELAY, POOL if in_pool else COMMON, sequence)
            return
        list_number = POOL if in_pool else COMMON
        if header.ordering_key is not None:
            self.key_order.put(list_number, header.ordering_key, rank, sequence)
        if state == PLACED:
            self.rows.put(self.keys.waiting(list_number, rank), sequence.to_bytes(8, "big"))
        if in_pool:
            self.pool_tally.add(header.subjects)
            self.enter_pool(message, rank, state == PLACED)
        else:
            self.enter_log(message, rank)

    def set_expiry(self, message: Message, now_ms: int) -> None:
        """When the message ends, and who sees to it: the walk in sequence order, or a row."""
        expires_ms = message.header.expires_ms
        kind = "m" if message.kind == POOL_KIND else "l"
        if expires_ms == NEVER_MS:
            return
        if expires_ms is None:
            expires_ms = message.expires_ms = min(
                now_ms + self.settings.default_ttl_ms, NEVER_MS - 1
            )
            if expires_ms >= self.last_expiry_ms:
                self.last_expiry_ms = expires_ms
                if self.next_expiry_ms[kind] is None:
                    self.next_expiry_ms[kind] = expires_ms
                return
        message.expires_ms = expires_ms
        message.flags |= HAS_DUE
        self.add_due(expires_ms, DUE_EXPIRE, POOL if kind == "m" else COMMON, message.sequence)

    def enter_pool(self, message: Message, rank: int, placed: bool) -> None:
        delivery = Delivery(message, rank)
        delivery.placed = placed
        self.fed[self.pool.offer(delivery)] = None

    def enter_log(self, message: Message, rank: int) -> None:
        """Every interested receiver is owed it: those whose head is near have it in memory."""
        by_number, hungry = self.receivers.by_number, self.hungry
        for number in self.receivers.audience(message.header.subjects):
            if number != WORK:
                receiver = by_number[number]
                receiver.count(message.sequence, 1)
                if self.log.offer(message, receiver, rank) is not None and receiver.credit:
                    hungry[receiver] = None

    def place_memory(self, message: Message, now_ms: int) -> None:
        header = message.header
        self.memory[message.sequence] = message
        if message.payload and len(message.payload) > limits.WINDOW_RECORD_BYTES_MAX:
            self.memory_bytes += len(message.payload)
        if header.deliver_ms is not None and header.deliver_ms > now_ms:
            delivery = Delivery(message, rank_of(header.priority, message.sequence))
            delivery.waits = False
            heappush(self.pausing, (header.deliver_ms, next(self.ties), delivery))
        else:
            self.enter_memory(message, now_ms)

    def enter_memory(self, message: Message, now_ms: int) -> None:
        rank = rank_of(message.header.priority, message.sequence)
        key = message.header.ordering_key
        if key is not None:
            self.key_order.enter(list_of(message), key, message.sequence)
        if message.copies is None:
            self.push_tally.add(message.header.subjects)
            self.fed[self.pool.offer(Delivery(message, rank))] = None
            return
        if message.producer is not None or self.settings.history != "none":
            message.statuses = {}
        copies: list[Delivery] = []
        for number in self.receivers.audience(message.header.subjects):
            receiver = self.receivers.by_number[number]
            if receiver.endpoints and number != WORK and self.hears(receiver, message):
                delivery = Delivery(message, rank)
                delivery.receiver = receiver
                message.copies[number] = delivery
                copies.append(delivery)
        for delivery in copies:
            self.queue_copy(delivery, now_ms)
        if not copies:
            self.end_online(message, now_ms)

    def hears(self, receiver: Receiver, message: Message) -> bool:
        """Does a receiver get this online message, of the node whose command this is?"""
        if not self.receivers.quiet:
            return True
        return self.receivers.hears(receiver, self.speaker, message.header.subjects)

    # --- overflow ---------------------------------------------------------------------------

    def drop_oldest(self, now_ms: int) -> None:
        """Drops the oldest waiting message; the oldest in flight only when none waits."""
        self.unroll_all()
        oldest = (self.oldest_waiting_pool(), self.oldest_waiting_log(), self.oldest_memory())
        waiting = [sequence for sequence in oldest if sequence is not None]
        if waiting:
            self.drop(min(waiting), now_ms)
        else:
            held = [
                delivery
                for receiver in self.receivers.by_number.values()
                for delivery in receiver.held.values()
            ]
            out = [each.sequence for each in held if is_held(each.message.flags)]
            assert out, "a topic that holds messages has one that waits or is out"
            self.drop(min(out), now_ms)

    def oldest_waiting_pool(self) -> int | None:
        while (sequence := self.oldest_pool.first()) is not None:
            row = self.rows.get(self.keys.pool(sequence))
            if row is not None and self.waits_in_pool(sequence, row):
                return sequence
            self.oldest_pool.drop(sequence)
        return None

    def waits_in_pool(self, sequence: int, row: bytes) -> bool:
        """Is a message of the pool neither out, nor a draft, nor parked?"""
        delivery = self.pool.live.get(sequence)
        return (
            row[0] in (NATURAL, PLACED, DELAYED)
            and (delivery is None or delivery.page is None)
            and sequence not in self.pool.plain
        )

    def oldest_waiting_log(self) -> int | None:
        """The oldest log message that nobody holds at the moment."""
        while (sequence := self.oldest_log.first()) is not None:
            message = self.log.messages.get(sequence)
            copies = () if message is None or message.copies is None else message.copies.values()
            row = self.rows.get(self.keys.log(sequence))
            live = row is not None and is_held(row[1])
            if live and not any(delivery.page is not None for delivery in copies):
                return sequence
            self.oldest_log.drop(sequence)
        return None

    def oldest_memory(self) -> int | None:
        if not self.pool.memory_in_order:
            in_order = sorted(self.memory.items())
            self.memory.clear()
            self.memory.update(in_order)
            self.pool.memory_in_order = True
        for sequence, message in self.memory.items():
            copies = message.copies
            delivery = self.pool.live.get(sequence)
            if copies is None and (delivery is None or delivery.page is None):
                return sequence
            if copies is not None and all(copy.page is None for copy in copies.values()):
                return sequence
        return None

    def drop(self, sequence: int, now_ms: int) -> None:
        """Drops a message of any kind, wherever it is; its publisher's verdict is ``dropped``."""
        message = self.memory.get(sequence)
        if message is not None:
            if message.copies is not None:
                self.drop_copies(message, now_ms)
                return
            self.end_single(self.pool.live.get(sequence) or early(message), DROPPED, now_ms)
            return
        logged = self.log_message(sequence)
        if logged is not None:
            self.drop_logged(logged, now_ms)
            return
        delivery = self.pool_delivery(sequence)
        assert delivery is not None
        self.end_single(delivery, DROPPED, now_ms)

    def drop_logged(self, message: Message, now_ms: int) -> None:
        """Drops a log message, but for those who have it parked."""
        self.forget_renewals(message)
        if not self.has_parked(message.sequence):
            self.end_log(message, DROPPED, now_ms)
        elif message.flags & ONLY_PARKED:
            self.withdraw_unparked(message)
            self.review_only_parked(message, now_ms)
        else:
            self.keep_for_parked(message, DROPPED, now_ms)

    def end_single(self, delivery: Delivery, verdict: str, now_ms: int) -> None:
        """Ends a message that has one delivery, in whatever state it is."""
        if delivery.page is not None:
            self.release(delivery)
        self.end_pool(delivery, verdict, {}, now_ms)

    # --- receipts asked for again -----------------------------------------------------------

    def on_await_receipts(self, command: AwaitReceipts, now_ms: int) -> None:
        """Says what has become of messages, and sends the receipts of the others here."""
        producer: Producer = self.producers.get(command.producer)
        producer.node = command.node
        outcomes: list[object] = []
        for index, number in enumerate(command.numbers):
            sequence = command.sequences[index] if command.sequences else 0
            found = self.outcomes.find(
                command.producer, number, self.settings.receipt_ttl_ms, now_ms
            )
            if found is not None:
                outcomes.append([number, *found])
            else:
                pending = self.is_pending(producer, number, sequence)
                outcomes.append([number, "pending" if pending else "unknown", {}])
        self.effects.append(Reply(command.node, command.request, {"outcomes": outcomes}))

    def is_pending(self, producer: Producer, number: int, sequence: int) -> bool:
        for first, results in producer.answers.items():
            if first <= number < first + len(results):
                result = results[number - first]
                return isinstance(result, int) and self.is_live(result)
        # Its answer was settled and forgotten: only the publisher can know its sequence now.
        return 0 < number <= producer.high and (sequence == 0 or self.is_live(sequence))

    def is_live(self, sequence: int) -> bool:
        """Is there a message of this sequence, of whatever kind and in whatever state?"""
        return (
            sequence in self.memory
            or self.rows.get(self.keys.pool(sequence)) is not None
            or self.rows.get(self.keys.log(sequence)) is not None
        )


def early(message: Message) -> Delivery:
    """The delivery of a push message whose time has not come: nobody has counted it."""
    delivery = Delivery(message, 0)
    delivery.counts = False
    return delivery


def _is_message(incoming: Incoming) -> bool:
    """Is this a message by type and size? ``columns_of`` asks the same of many."""
    return (
        type(incoming) is tuple
        and len(incoming) == 3
        and type(incoming[0]) is bytes
        and len(incoming[0]) == limits.MESSAGE_ID_BYTES
        and type(incoming[1]) is bytes
        and type(incoming[2]) is bytes
    )
