"""The log: durable messages that every interested receiver gets a copy of.

Nothing is written per receiver when a message is accepted. Each receiver reads the log at its own
pace: what is near its head is in its window, the rest it finds by a walk over the rows. What it
has done is one number, its *floor*, and an ``x`` row for each message done out of order; what it
failed or had moved has a ``d`` row (and a ``w`` row where it waits again).

I1 Every log message of rank below a receiver's ``horizon`` that it is owed is in ``known``.
I2 A log message before the floor is done, or has a ``d`` row, or is not for this receiver.
I3 A message with ``max_receivers`` is out with, done or parked by at most that many receivers;
   others who want it have it in ``held_back``, so that it goes on to them when a place falls free.
"""

from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice

from asterism import limits
from asterism.actors.delivery import LOG_KIND, Delivery, Message
from asterism.actors.pool import message_of
from asterism.actors.receivers import Receiver, Receivers
from asterism.message import Header, Status
from asterism.rows import Rows
from asterism.storage.keys import (
    COMMON,
    NONE_RANK,
    RANK_END,
    TopicKeys,
    number_at_end,
    position_of,
)
from asterism.storage.records import (
    NATURAL,
    ONLY_PARKED,
    PARKED,
    PLACED,
    ExceptionRow,
    Record,
    decode_exception,
    decode_fared,
    decode_record,
    encode_floor,
)

_POSITION = (1 << 64) - 1
RENEWED_STATUS = Status.WAITING.name.lower()  # how one fared that is renewed and not done
# Rank, sequence, what waits (None: passed over), the row of one that this receiver had moved.
_Step = tuple[int, int, Record | None, ExceptionRow | None]


class Places:
    """The deliveries of one message with ``max_receivers``, by receiver."""

    __slots__ = ("done", "held_back", "out", "parked")

    def __init__(self) -> None:
        self.out: set[int] = set()
        self.done: set[int] = set()
        self.parked: set[int] = set()
        self.held_back: dict[int, Delivery] = {}

    def leave(self, receiver: int) -> None:
        for taken in (self.out, self.done, self.parked):
            taken.discard(receiver)

    def has_room_for(self, receiver: int, wanted: int) -> bool:
        """May this receiver have it? One that had it and was moved back has its place still."""
        taken = self.out | self.done | self.parked
        return receiver in taken or len(taken) < wanted


class Log:
    """Reads the log for every receiver of a topic."""

    def __init__(
        self,
        rows: Rows,
        keys: TopicKeys,
        receivers: Receivers,
        header_of: Callable[[bytes], Header],
        returned: Callable[[int, int], tuple[int, int]],
    ) -> None:
        self._rows = rows
        self._keys = keys
        self._receivers = receivers
        self._header_of = header_of
        self._returned = returned
        self.messages: dict[int, Message] = {}  # those some receiver has a delivery of in memory
        self.low_sequence = 0
        self.unfinished = False
        self.has_left_strays = False  # what somebody had may be merely kept now
        self.unwanted: list[int] = []  # expired messages that may have stayed only for such

    def offer(
        self, message: Message, receiver: Receiver, rank: int, attempts: int = 0
    ) -> Delivery | None:
        """A receiver is owed a message: in memory if it is near its head, else on disk alone."""
        if rank >= receiver.horizon:
            return None
        delivery = Delivery(message, rank, attempts)
        self._keep(delivery, receiver)
        return delivery

    def put_back(self, delivery: Delivery, receiver: Receiver) -> None:
        """A delivery that was out, or set aside, waits again."""
        self.forget(delivery, receiver)
        if delivery.rank < receiver.horizon:
            self._keep(delivery, receiver)
        else:
            self._leave_strays(delivery, receiver)

    def _leave_strays(self, delivery: Delivery, receiver: Receiver) -> None:
        """What waits on disk alone is found again only by one who is interested in it."""
        if receiver.has_strays and receiver.number not in self._receivers.audience(
            delivery.message.header.subjects
        ):
            receiver.count(delivery.sequence, -1)
            self.has_left_strays = True
            self.leave(delivery.sequence, delivery.message.flags)

    def leave(self, sequence: int, flags: int) -> None:
        """A receiver does not want a message any more: an expired one may have stayed for it."""
        if flags & ONLY_PARKED:
            self.unwanted.append(sequence)
            self.has_left_strays = True

    def _keep(self, delivery: Delivery, receiver: Receiver) -> None:
        message = delivery.message
        assert message.copies is not None
        delivery.receiver = receiver
        message.copies[receiver.number] = receiver.known[delivery.sequence] = delivery
        self.messages[delivery.sequence] = message
        receiver.window.push(delivery)
        window_max = self._receivers.window_max
        if len(receiver.window) > window_max:
            cut = receiver.window.cut(max(window_max // 2, 1))
            if cut:
                receiver.horizon = cut[0].rank
            for dropped in cut:
                self.forget(dropped, receiver)
                self._leave_strays(dropped, receiver)

    def forget(self, delivery: Delivery, receiver: Receiver) -> None:
        """A delivery is no longer in memory."""
        message = delivery.message
        assert message.copies is not None
        if receiver.known.pop(delivery.sequence, None) is not None:
            del message.copies[receiver.number]
            if not message.copies:
                self.messages.pop(delivery.sequence, None)

    def head(self, receiver: Receiver) -> Delivery | None:
        """The receiver's next of the log, read from disk if it must be."""
        head = receiver.window.head()
        if head is None and receiver.horizon != RANK_END:
            self._fill(receiver)
            head = receiver.window.head()
        return head

    # --- walking --------------------------------------------------------------------------

    def _fill(self, receiver: Receiver) -> None:
        start, receiver.horizon = receiver.horizon, RANK_END
        budget, added = limits.SCAN_ROWS_MAX, 0
        # What it finished in this turn has no mark on disk yet.
        passed = receiver.known.keys() | receiver.done_now
        for rank, sequence, record, moved in self._walk(receiver, start):
            if added >= self._receivers.window_max or budget <= 0:
                receiver.horizon = rank
                self.unfinished |= not added
                return
            budget -= 1
            if record is not None and sequence not in passed:
                header = self._header_of(record.header)
                if receiver.number in self._receivers.audience(header.subjects):
                    self._add(receiver, rank, sequence, record, moved)
                    added += 1
                elif moved is not None:
                    self.leave(sequence, record.flags)

    def _add(
        self,
        receiver: Receiver,
        rank: int,
        sequence: int,
        record: Record,
        moved: ExceptionRow | None,
    ) -> None:
        message = self.messages.get(sequence)
        if message is None:
            message = message_of(sequence, record, self._header_of(record.header), LOG_KIND)
        back, holder = self._returned(receiver.number, sequence)
        delivery = Delivery(message, rank, back)
        if moved is not None:
            delivery.placed = True
            delivery.attempts, delivery.spent = max(moved.attempts, back), moved.spent
        delivery.holder = holder
        delivery.receiver = receiver
        assert message.copies is not None
        message.copies[receiver.number] = receiver.known[sequence] = delivery
        self.messages[sequence] = message
        receiver.window.push(delivery)

    def _walk(self, receiver: Receiver, start: int) -> Iterator[_Step]:
        yield from merge(
            self._own_rows(receiver, start),
            self._common_rows(receiver, start),
            self._natural_rows(receiver, start),
            key=_rank_of_step,
        )

    def _own_rows(self, receiver: Receiver, start: int) -> Iterator[_Step]:
        """What this receiver alone had moved."""
        if not receiver.has_rows:
            return
        keys, rows, number = self._keys, self._rows, receiver.number
        for key, value in rows.scan(keys.waiting(number, start), keys.waiting_end(number)):
            rank, sequence = number_at_end(key, 12), int.from_bytes(value, "big")
            row = rows.get(keys.log(sequence))
            exception = rows.get(keys.exception(number, sequence))
            if row is None or exception is None or self._is_withdrawn(row, number, sequence):
                # Its message ended while its place was on disk alone, and nobody looked there.
                rows.delete(key)
                rows.delete(keys.exception(number, sequence))
                self._leave_key_order(number, rank)
                yield rank, sequence, None, None
                continue
            yield rank, sequence, decode_record(row), decode_exception(exception)

    def _leave_key_order(self, number: int, rank: int) -> None:
        """Of a message that is gone, the ordering key is not known: few are moved at a time."""
        for key, _ in list(self._rows.scan(*self._keys.keyed_of(number))):
            if number_at_end(key) == position_of(rank):
                self._rows.delete(key)

    def _is_withdrawn(self, row: bytes, number: int, sequence: int) -> bool:
        """Is it there for those alone who have it parked or renewed, and this one has neither?"""
        if row[0] != PARKED:
            return False
        fared = self._rows.get(self._keys.fared(sequence, number))
        return fared is None or decode_fared(fared).status != RENEWED_STATUS

    def _common_rows(self, receiver: Receiver, start: int) -> Iterator[_Step]:
        """Messages with a priority."""
        keys, rows = self._keys, self._rows
        for key, value in rows.scan(keys.waiting(COMMON, start), keys.waiting_end(COMMON)):
            rank, sequence = number_at_end(key, 12), int.from_bytes(value, "big")
            if sequence < receiver.floor or self._is_excepted(receiver, sequence):
                yield rank, sequence, None, None
                continue
            row = rows.get(keys.log(sequence))
            assert row is not None, "a place in the log without its message"
            yield rank, sequence, decode_record(row), None

    def _natural_rows(self, receiver: Receiver, start: int) -> Iterator[_Step]:
        first = max(
            self.low_sequence, receiver.floor, start & _POSITION if start >= NONE_RANK else 0
        )
        excepted = self._exceptions(receiver, first)
        exception = next(excepted, RANK_END)
        for key, row in self._rows.scan(self._keys.log(first), self._keys.range_of("l")[1]):
            sequence = number_at_end(key)
            while exception < sequence:
                exception = next(excepted, RANK_END)
            passed = row[0] != NATURAL or exception == sequence
            yield NONE_RANK | sequence, sequence, None if passed else decode_record(row), None

    def _exceptions(self, receiver: Receiver, first: int) -> Iterator[int]:
        """The sequences from ``first`` on that this receiver has done, moved or parked."""
        keys, rows, number = self._keys, self._rows, receiver.number
        moved = rows.scan(keys.exception(number, first), keys.exception(number + 1, 0))
        if self._marks_in_memory(receiver):
            done = iter(sorted(receiver.marks or ()))
        else:
            marks = rows.scan(keys.done(number, first), keys.done(number + 1, 0))
            done = (number_at_end(key) for key, _ in marks)
        yield from merge((number_at_end(key) for key, _ in moved), done)

    def _is_excepted(self, receiver: Receiver, sequence: int) -> bool:
        keys, rows, number = self._keys, self._rows, receiver.number
        if rows.get(keys.exception(number, sequence)) is not None:
            return True
        if self._marks_in_memory(receiver):
            return sequence in (receiver.marks or ())
        return rows.get(keys.done(number, sequence)) is not None

    def _marks_in_memory(self, receiver: Receiver) -> bool:
        """Those of receivers that live with their connections, of which there may be many, are
        not read from their rows."""
        return not receiver.durable and receiver.marks is not None

    # --- what a receiver has done -----------------------------------------------------------

    def owes(self, receiver: Receiver, sequence: int) -> bool:
        """Has a receiver still to do a live log message that it is interested in?"""
        if sequence in receiver.known:
            return True
        if sequence in receiver.done_now:
            return False
        if receiver.has_moved:
            exception = self._rows.get(self._keys.exception(receiver.number, sequence))
            if exception is not None:
                return decode_exception(exception).state != PARKED
        if sequence < receiver.floor:
            return False
        if receiver.marks is not None:
            return sequence not in receiver.marks
        return self._rows.get(self._keys.done(receiver.number, sequence)) is None

    def has_renewed(self, receiver: Receiver, row: bytes, sequence: int) -> bool:
        """The same of one that is there for those alone who have it parked or renewed."""
        exception = self._rows.get(self._keys.exception(receiver.number, sequence))
        return (
            exception is not None
            and decode_exception(exception).state != PARKED
            and not self._is_withdrawn(row, receiver.number, sequence)
        )

    def has_done(self, receiver: Receiver, sequence: int) -> bool:
        """Has a receiver finished a log message that it is interested in?"""
        return (
            sequence < receiver.floor
            or sequence in receiver.done_now
            or self._rows.get(self._keys.done(receiver.number, sequence)) is not None
        )

    def is_owed(self, receiver: Receiver, sequence: int) -> bool:
        """Does a log message wait for a receiver, by what is written down?"""
        keys, rows, number = self._keys, self._rows, receiver.number
        row = rows.get(keys.log(sequence))
        if row is None or sequence in receiver.done_now:
            return False
        if self._is_withdrawn(row, number, sequence):
            return False
        exception = rows.get(keys.exception(number, sequence))
        if exception is not None:
            return decode_exception(exception)[0] == PLACED
        return sequence >= receiver.floor and not self._is_excepted(receiver, sequence)

    def waits_for(self, receiver: Receiver, sequence: int) -> bool:
        """Does a log message that this receiver has not moved wait for it, or is it out?"""
        delivery = receiver.known.get(sequence)
        if delivery is not None:
            return not delivery.placed
        return (
            sequence >= receiver.floor
            and not self._is_excepted(receiver, sequence)
            and sequence not in receiver.done_now
        )

    def settle(self, receiver: Receiver, next_sequence: int) -> None:
        """Writes down what a receiver finished in this turn."""
        rows, keys, number = self._rows, self._keys, receiver.number
        floor = self._floor(receiver, next_sequence)
        if floor > receiver.floor:
            self._forget_marks(receiver, floor)
            receiver.floor = floor
        for sequence in receiver.done_now:
            if sequence >= receiver.floor:
                rows.put(keys.done(number, sequence), b"")
                receiver.has_rows = True
                if receiver.marks is not None:
                    receiver.marks.add(sequence)
        if receiver.marks is not None and len(receiver.marks) > limits.MARKS_MAX:
            receiver.marks = None
        receiver.done_now.clear()
        # Strays are counted and may not be found again: a restart counts anew.
        owed = None if receiver.has_strays else receiver.owed
        counted_to = min(receiver.counted_to, next_sequence)
        row = encode_floor(receiver.floor, owed, counted_to)
        if receiver.floor_row != row:
            receiver.floor_row = row
            rows.put(keys.floor(number), row)

    def _forget_marks(self, receiver: Receiver, floor: int) -> None:
        """The floor passes what was done out of order: those rows say nothing any more.

        Few are deleted one by one; a range would slow every later read a little.
        """
        rows, keys, number = self._rows, self._keys, receiver.number
        if receiver.marks is None:
            rows.delete_range(keys.done(number, receiver.floor), keys.done(number, floor))
            left = rows.scan(keys.done(number, floor), keys.done(number + 1, 0))
            kept = [number_at_end(key) for key, _ in islice(left, limits.MARKS_MAX + 1)]
            receiver.marks = set(kept) if len(kept) <= limits.MARKS_MAX else None
            return
        for sequence in [known for known in receiver.marks if known < floor]:
            rows.delete(keys.done(number, sequence))
            receiver.marks.discard(sequence)

    def _floor(self, receiver: Receiver, next_sequence: int) -> int:
        """All log messages before it are done by this receiver, or have a row of their own."""
        horizon = receiver.horizon
        if horizon < NONE_RANK:
            return receiver.floor
        floor = next_sequence if horizon == RANK_END else horizon & _POSITION
        for sequence, delivery in receiver.known.items():
            if sequence < floor and not delivery.placed:
                floor = sequence
        return floor

    def read_anew(self, receiver: Receiver) -> None:
        """A receiver has new interests: it may be owed more than was read for it."""
        for delivery in receiver.window.drain():
            self.forget(delivery, receiver)
        receiver.horizon = 0

    def forget_receiver(self, receiver: Receiver) -> None:
        """A receiver ends, begins anew or is moved: nothing of the log is in memory for it."""
        for delivery in list(receiver.known.values()):
            delivery.waits = False
            self.forget(delivery, receiver)
        receiver.window.drain()
        for aside in receiver.locks.drain():
            if aside.message.kind != LOG_KIND:
                receiver.copies.push(aside)
        for held in receiver.held.values():  # online copies that are out keep their key
            key = held.message.header.ordering_key
            if key is not None and held.message.copies is not None:
                receiver.locks.admits(key, held.sequence)


def _rank_of_step(step: _Step) -> int:
    return step[0]
