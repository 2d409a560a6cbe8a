"""Whose turn it is within an ordering key.

Of a key, a receiver gets the messages one at a time, in the order in which they were accepted,
whatever their priorities: one whose priority brings it to the head too early is set aside until
those before it are over, and then competes by its own priority again. What the receiver does not
want holds nothing up, nor does what is delayed, parked, or kept back because a place that it needs
is parked.

Waiting deliveries are found by rank, so only one with a priority can come to the head before an
earlier one of its key: only for such a one is the order of the key looked up.
"""

from asterism import limits
from asterism.actors.delivery import LOG_KIND, MEMORY_KIND, Delivery, Message
from asterism.actors.keyorder import ONLINE, PUSHED
from asterism.actors.pool import Lane
from asterism.actors.queue import ONE
from asterism.actors.receivers import Receiver
from asterism.actors.retry import Retry
from asterism.storage.keys import COMMON, NONE_RANK, POOL, WORK, position_of, rank_of
from asterism.storage.records import NATURAL, ONLY_PARKED, PLACED, decode_exception

_ANYBODY = 0  # no receiver has this number


class Ordering(Retry):
    """Lets a message with an ordering key go, or keeps it back."""

    def is_its_turn(
        self, delivery: Delivery, key: str, lane: Lane | None, receiver: Receiver
    ) -> bool:
        """May this head go, as to its key? Then the key is its own; if not, it is set aside."""
        locks = receiver.locks if lane is None else self.pool.locks
        if not locks.is_open(key, delivery.sequence):
            if locks.set_aside(key, delivery, ONE if lane is None else lane.audience):
                self.take_off(delivery, lane, receiver)
            return False
        behind = self.is_behind(delivery, key, receiver)
        if behind:
            self.set_behind(delivery, key, lane, receiver)
        if behind is None:
            self.pool.unfinished = True  # the look goes on in the next turn
        return behind is False and locks.admits(key, delivery.sequence)

    def may_be_chosen(self, head: Delivery) -> bool | None:
        """May a blocking topic send this one next, as to its key? If not, it is set aside.

        ``None`` if nothing may be chosen for now.
        """
        message = head.message
        key = message.header.ordering_key
        if key is None:
            return True
        behind = self.is_behind(head, key, head.receiver)
        if behind is False:
            behind = self._is_behind_elsewhere(head, key)
        if behind is None:
            self.pool.unfinished = True
            return None
        lane = None
        if message.copies is None:
            lane = self.pool.lane_of(message.header, message.kind == MEMORY_KIND)
        if behind and not self.set_behind(head, key, lane, head.receiver):
            return None
        if not behind:  # with others it may have been set aside before
            for number in list(message.copies or ()):
                self.reopen_key(key, head.sequence, self.receivers.by_number[number])
        return not behind

    def _is_behind_elsewhere(self, head: Delivery, key: str) -> bool | None:
        """A blocking topic sends a message to all who want it: is it behind with another of them?

        Not if that one has moved it: then two messages could wait for one another.
        """
        message, sequence = head.message, head.sequence
        if message.copies is None:
            return False
        numbers = set(message.copies)
        if message.kind == LOG_KIND:
            numbers |= self.receivers.audience(message.header.subjects) - {WORK}
        for number in numbers:
            receiver = self.receivers.by_number[number]
            own = message.copies.get(number)
            if own is None and not self.log.waits_for(receiver, sequence):
                continue
            own = own or Delivery(message, rank_of(message.header.priority, sequence))
            if position_of(own.rank) == sequence:
                behind = self.is_behind(own, key, receiver)
                if behind is not False:
                    return behind
        return False

    def set_behind(
        self, delivery: Delivery, key: str, lane: Lane | None, receiver: Receiver | None
    ) -> bool:
        """Sets a head aside that is behind an earlier one of its key, which waits; is it off?

        The earlier one may be far behind it, and must be reached: where there is no room, this one
        goes on without its priority, behind all of its key that are before it.
        """
        if lane is not None:
            aside = self.pool.locks.set_aside(key, delivery, lane.audience)
        else:
            assert receiver is not None
            aside = receiver.locks.set_aside(key, delivery)
        rank = NONE_RANK | position_of(delivery.rank)
        if not aside and rank == delivery.rank:
            return False
        self.take_off(delivery, lane, receiver)
        if not aside:
            self._wait_at(rank, delivery, lane, receiver)
        return True

    def _wait_at(
        self, rank: int, delivery: Delivery, lane: Lane | None, receiver: Receiver | None
    ) -> None:
        if lane is not None:
            self.wait_in_pool(delivery, rank)
            return
        assert receiver is not None
        if delivery.message.kind == LOG_KIND:
            self.place_in_log(delivery, receiver, rank)
        delivery.rank = rank
        self.wait_for_turn(delivery, receiver)

    def take_off(self, delivery: Delivery, lane: Lane | None, receiver: Receiver | None) -> None:
        """Takes a delivery off the window in which it waits."""
        if lane is not None:
            lane.take(delivery)
            return
        assert receiver is not None
        if delivery.message.kind == LOG_KIND:
            receiver.window.remove(delivery)
        else:
            receiver.copies.remove(delivery)

    def is_behind(self, delivery: Delivery, key: str, receiver: Receiver | None) -> bool | None:
        """Does an earlier one of its key wait, which this receiver wants? (No receiver: anybody.)

        ``None`` if that is not known yet.
        """
        if delivery.sequence == self.current:
            return False  # what a blocking topic has under way goes on
        position, one = position_of(delivery.rank), delivery.message.copies is None
        if one:
            number = None if receiver is None else receiver.number
            aside = self.pool.locks.has_earlier(key, position, number)
        else:
            assert receiver is not None
            aside = receiver.locks.has_earlier(key, position, None)
        if aside or delivery.rank >= NONE_RANK:
            return aside
        lists = [POOL, PUSHED] if one else [COMMON, ONLINE]
        if receiver is not None and not one and receiver.has_rows:
            lists.append(receiver.number)
        for list_number in lists:
            found = self._has_before(list_number, key, position, receiver)
            if found is not False:
                return found
        return False

    def _has_before(
        self, list_number: int, key: str, position: int, receiver: Receiver | None
    ) -> bool | None:
        """Is there one in a list that counts? ``None``: not among those that may be looked at."""
        order, number = self.key_order, _ANYBODY if receiver is None else receiver.number
        start = order.passed(key, list_number, number, self.receivers.epoch)
        if list_number == COMMON and receiver is not None:
            start = max(start, receiver.floor)
        if start >= position:
            return False
        reached, found = position, False  # up to ``reached`` nothing counts, for good
        for looked, (place, sequence) in enumerate(order.before(list_number, key, start, position)):
            counts = self._counts(list_number, key, place, sequence, receiver)
            if counts is not False:
                reached = min(reached, place)
            if counts:
                found = True
                break
            if looked >= limits.SCAN_ROWS_MAX and reached == position:
                order.note_passed(key, list_number, number, place + 1)
                return None
        order.note_passed(key, list_number, number, reached)
        return found

    def _counts(
        self, list_number: int, key: str, place: int, sequence: int, receiver: Receiver | None
    ) -> bool | None:
        """Does one of a list hold up those behind it? ``None``: not now, but it may later."""
        if list_number == POOL:
            return self._counts_in_pool(key, place, sequence, receiver)
        if list_number == PUSHED:
            wanted = self._is_wanted_by(self.memory[sequence], receiver)
            return wanted and (receiver is None or receiver.number != WORK)
        assert receiver is not None
        if list_number == ONLINE:
            return receiver.number in (self.memory[sequence].copies or ())
        if list_number == COMMON:
            if not self.log.waits_for(receiver, sequence):
                return False
        elif not self._is_moved_to(place, sequence, receiver):
            self.key_order.delete(list_number, key, place)
            return False
        return self._counts_in_log(list_number, key, place, sequence, receiver)

    def _is_wanted_by(self, message: Message, receiver: Receiver | None) -> bool:
        return receiver is None or self.is_interested(receiver, message)

    def _counts_in_pool(
        self, key: str, place: int, sequence: int, receiver: Receiver | None
    ) -> bool:
        delivery = self.pool.live.get(sequence)
        if delivery is None:
            row = self.rows.get(self.keys.pool(sequence))
            if row is not None and row[0] in (NATURAL, PLACED):
                delivery = self.pool_delivery(sequence)
        if (
            delivery is None
            or position_of(delivery.rank) != place
            or delivery.message.header.ordering_key != key
        ):
            self.key_order.delete(POOL, key, place)
            return False
        return self._is_wanted_by(delivery.message, receiver)

    def _is_moved_to(self, place: int, sequence: int, receiver: Receiver) -> bool:
        """Does a log message wait at this place for one receiver, which has moved it there?"""
        exception = self.rows.get(self.keys.exception(receiver.number, sequence))
        if exception is None:
            return False
        moved = decode_exception(exception)
        return moved.state == PLACED and position_of(moved.place) == place

    def _counts_in_log(
        self, list_number: int, key: str, place: int, sequence: int, receiver: Receiver
    ) -> bool | None:
        message = self.log_message(sequence)
        if (
            message is None
            or message.header.ordering_key != key
            or (message.flags & ONLY_PARKED and receiver.number not in self.renewed_by(sequence))
        ):
            self.key_order.delete(list_number, key, place)
            return False
        if not self.is_interested(receiver, message):
            return False
        places = self.places.get(sequence)
        if places is not None and places.parked and receiver.number in places.held_back:
            return None  # a place may never fall free
        return True
