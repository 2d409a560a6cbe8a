"""Counts what each receiver has still to do as that changes, so that a query need not look for it.

Of the log, a receiver *owes* what it is interested in and has neither done nor parked. It may be
owed millions that are on disk alone: ``owed`` is counted up when one is accepted and down when it
is done, and is in its row with its floor. When its interests change, or it is moved, the count
begins anew by a walk over the log, a few rows at a time; everything below ``counted_to`` is
counted, and what changes there is counted as ever. Another walk counts what the log merely keeps:
messages that every receiver who is interested is through with.

I1 ``receiver.owed`` is how many log messages below ``receiver.counted_to`` it owes. One that waits
   for its time (``deliver_at``) is owed by nobody.
I2 ``log_kept`` is how many held log messages below ``log_kept_to`` somebody is interested in and
   nobody owes.
"""

from collections.abc import Callable

from asterism import limits
from asterism.actors.delivery import MEMORY_KIND, Message
from asterism.actors.queue import Audience
from asterism.actors.receivers import Receiver
from asterism.actors.state import TopicState
from asterism.actors.tallies import Tally
from asterism.storage.keys import RANK_END, WORK, number_at_end
from asterism.storage.records import DELAYED, ONLY_PARKED, PARKED, decode_exception, decode_record

COUNT_PAUSE_MS = 5  # between two parts of a walk: it must not keep a worker busy


class _Part:
    """How much a walk may still do before it pauses. It looks at one row at least."""

    def __init__(self, walks: int) -> None:
        self.rows_left = max(limits.COUNT_ROWS_MAX // walks, 1)
        self.asks_left = max(limits.COUNT_ASKS_MAX // walks, 1)

    @property
    def is_over(self) -> bool:
        return self.rows_left <= 0 or self.asks_left <= 0


class Counting(TopicState):
    """Counts what receivers owe."""

    # --- counting anew ----------------------------------------------------------------------

    def recount(self, receiver: Receiver) -> None:
        """A receiver has other interests, or was moved."""
        number, audience = receiver.number, self.receivers.audience
        receiver.has_strays = any(
            number not in audience(delivery.message.header.subjects)
            for delivery in receiver.known.values()
        )
        receiver.owed = 0
        self.counting.pop(receiver, None)
        receiver.counted_to = RANK_END
        if self.log_held:
            # Before its floor it owes nothing but what was moved.
            receiver.counted_to = 0 if receiver.has_moved else receiver.floor
            self.counting[receiver] = None
        if receiver.stored:
            self.unsettled[receiver] = None
        self.recount_kept()

    def recount_kept(self) -> None:
        """Who has to do what of the log has changed for many messages."""
        self.log_kept = 0
        self.log_kept_to = 0 if self.log_held else RANK_END
        self.head_dirty = True

    @property
    def is_counting(self) -> bool:
        return bool(self.counting) or self.log_kept_to != RANK_END

    def count_on(self, now_ms: int) -> None:
        """Counts some more rows of the log.

        What is kept and what receivers owe are counted apart, each with its share: the one begins
        anew whenever somebody comes or goes, and the other must come to its end all the same.
        """
        by_number = self.receivers.by_number
        for receiver in list(self.counting):
            if by_number.get(receiver.number) is not receiver:
                del self.counting[receiver]
        walks = (self.log_kept_to != RANK_END) + bool(self.counting)
        if self.log_kept_to != RANK_END:
            self._count_kept(_Part(walks))
        if self.counting:
            self._count_owed(_Part(walks))
        self.next_count_ms = now_ms + COUNT_PAUSE_MS if self.is_counting else 0

    def _count_kept(self, part: _Part) -> None:
        owing = {
            number
            for number, receiver in self.receivers.by_number.items()
            if receiver.owed or receiver.counted_to != RANK_END
        }

        def look(sequence: int, row: bytes, audience: Audience) -> None:
            if not row[1] & ONLY_PARKED and sequence not in self.log.messages:
                self.log_kept += self._is_through(sequence, audience, owing, part)

        self.log_kept_to, _ = self._walk(self.log_kept_to, part, look)
        self.head_dirty = True

    def _is_through(self, sequence: int, audience: Audience, owing: set[int], part: _Part) -> bool:
        """Is somebody interested, and everybody through? Only those who owe anything are asked."""
        if len(audience) < 2 and not audience - {WORK}:
            return False
        fewer, more = (owing, audience) if len(owing) < len(audience) else (audience, owing)
        for number in fewer:
            part.asks_left -= 1
            receiver = self.receivers.by_number[number]
            if number in more and number != WORK and self.log.owes(receiver, sequence):
                return False
        return True

    def _count_owed(self, part: _Part) -> None:
        """Receivers take turns; those that are equally far are counted together."""
        by_position: dict[int, list[Receiver]] = {}
        for receiver in self.counting:
            by_position.setdefault(receiver.counted_to, []).append(receiver)
        for position, together in by_position.items():
            if part.is_over:
                break
            self._count_together(position, together[: limits.COUNT_ASKS_MAX], part)

    def _count_together(self, position: int, together: list[Receiver], part: _Part) -> None:
        def look(sequence: int, row: bytes, audience: Audience) -> None:
            part.asks_left -= len(together)
            for receiver in together:
                if self.owes_row(receiver, sequence, row, audience):
                    receiver.owed += 1

        stop, looked = self._walk(position, part, look)
        for receiver in together:
            receiver.counted_to = stop
            del self.counting[receiver]
            if stop != RANK_END:
                self.counting[receiver] = None  # behind the others
            elif looked and receiver.stored:  # else its row says as much
                self.unsettled[receiver] = None

    def _walk(
        self, start: int, part: _Part, look: Callable[[int, bytes, Audience], None]
    ) -> tuple[int, bool]:
        """Looks at rows of the log until a part is over; how far it came, and was there a row?"""
        looked = False
        for key, row in self.rows.scan(self.keys.log(start), self.keys.range_of("l")[1]):
            if part.is_over:
                return number_at_end(key), looked
            looked = True
            part.rows_left -= 1
            if row[0] == DELAYED:
                continue
            header = self.header_of(decode_record(row).header)
            look(number_at_end(key), row, self.receivers.audience(header.subjects))
        part.rows_left -= 1  # a walk that finds nothing is work too
        return RANK_END, looked

    def owes_row(self, receiver: Receiver, sequence: int, row: bytes, audience: Audience) -> bool:
        """Has a receiver still to do what this row of the log holds?"""
        if sequence in receiver.known:
            return True
        if receiver.number not in audience:
            return False
        if row[0] == PARKED:
            return self.log.has_renewed(receiver, row, sequence)
        return self.log.owes(receiver, sequence)

    # --- as it changes ----------------------------------------------------------------------

    def is_interested(self, receiver: Receiver, message: Message) -> bool:
        return receiver.number in self.receivers.audience(message.header.subjects)

    def tally_of(self, message: Message) -> Tally:
        """Where a message of the pool, or a push message, is counted."""
        return self.push_tally if message.kind == MEMORY_KIND else self.pool_tally

    def owes_less(self, receiver: Receiver, sequence: int) -> None:
        """A receiver owes a log message no more."""
        receiver.count(sequence, -1)
        if receiver.stored:
            self.unsettled[receiver] = None

    def is_kept(self, message: Message) -> bool:
        """Is it counted among those of the log that everybody is through with?"""
        return (
            message.sequence < self.log_kept_to
            and not message.flags & ONLY_PARKED
            and not message.copies
            and self._is_kept(message.sequence, self.receivers.audience(message.header.subjects))
            and not self._is_delayed(message)
        )

    def _is_kept(self, sequence: int, audience: Audience) -> bool:
        if sequence in self.log.messages:  # somebody has it, whether it is interested or not
            return False
        by_number, wanted = self.receivers.by_number, False
        for number in audience:
            if number != WORK:
                wanted = True
                if self.log.owes(by_number[number], sequence):
                    return False
        return wanted

    def _is_delayed(self, message: Message) -> bool:
        if message.header.deliver_ms is None:
            return False
        row = self.rows.get(self.keys.log(message.sequence))
        return row is not None and row[0] == DELAYED

    def note_through(self, message: Message) -> None:
        """A receiver is through with a log message; it may be the last."""
        if not message.copies and self.is_kept(message):
            self.log_kept += 1
            self.head_dirty = True

    def unkeep(self, message: Message) -> None:
        """A log message ends, or somebody has to do it again: it is not merely kept any more."""
        if self.is_kept(message):
            self.log_kept -= 1
            self.head_dirty = True

    def uncount_on_disk(self, message: Message, spared: list[int]) -> None:
        """Nobody owes a log message any more, but for those spared; what is in memory is counted
        when it is withdrawn."""
        if self._is_delayed(message):
            return
        sequence, copies = message.sequence, message.copies or {}
        row = self.rows.get(self.keys.log(sequence))
        assert row is not None, "a live message without its row"
        audience = self.receivers.audience(message.header.subjects)
        for number in audience:
            if number != WORK and number not in copies and number not in spared:
                receiver = self.receivers.by_number[number]
                if self.owes_row(receiver, sequence, row, audience):
                    self.owes_less(receiver, sequence)

    def uncount_moved(self, receiver: Receiver, message: Message) -> None:
        """The exception of a receiver is about to be deleted: it owes the message no more, unless
        it does by its floor."""
        sequence = message.sequence
        row = self.rows.get(self.keys.exception(receiver.number, sequence))
        owes = row is not None and decode_exception(row).state != PARKED
        if owes and self.is_interested(receiver, message):
            self.rows.delete(self.keys.exception(receiver.number, sequence))
            if message.flags & ONLY_PARKED or not self.log.owes(receiver, sequence):
                self.owes_less(receiver, sequence)
