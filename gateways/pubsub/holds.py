"""Who holds which message, and until when. Pure: time is an argument, in seconds.

The broker has every message that is held out with the door, on a lease of its own that the door
renews. The deadlines of clients are kept here: they change with every message, and so cost the
broker nothing. When the door is killed, what it had out comes again.

I1 What a taker holds counts there from the moment it is handed out until it is acknowledged, given
   back, handed out anew, or its deadline has passed.
I2 An ack id whose number is not the one that is held is of a delivery that is over.
I3 The lease of a message that is held does not run out before its deadline.
"""

from typing import Final, NamedTuple, Protocol

SLOTS: Final = 4  # of a second: so exact are deadlines
LEASE_S: Final = 60.0  # for so long the broker has a message out, unless it is told otherwise
RENEW_S: Final = LEASE_S / 2  # after which a lease is renewed


class Taker(Protocol):
    """Whoever takes messages: it is told what it holds no longer."""

    def freed(self, size: int) -> None: ...


class Source(Protocol):
    """Where messages come from: it is told what is out no longer."""

    def freed(self, size: int) -> None: ...


class Held:
    """A delivery that somebody holds."""

    __slots__ = ("attempt", "number", "renew_s", "size", "slot", "source", "taker", "until_s")

    def __init__(
        self, number: int, attempt: int, size: int, taker: Taker, source: Source, until_s: float
    ) -> None:
        self.number = number
        self.attempt = attempt
        self.size = size
        self.taker = taker
        self.source = source
        self.until_s = until_s
        self.renew_s = 0.0
        self.slot = 0  # in which it is looked at


class Budget:
    """How many messages all subscriptions together may have out."""

    def __init__(self, most: int) -> None:
        self.left = most


class Swept(NamedTuple):
    """What a look at the clock found."""

    expired: list[tuple[int, int]]  # sequences and attempts: nobody holds them any more
    to_renew: list[int]  # sequences that are held, and whose leases would run out


class Holds:
    """What is held of one subscription, by sequence."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held: dict[int, Held] = {}
        self._due: dict[int, set[int]] = {}  # sequences by the slot in which to look at them
        self._swept = 0  # the last slot that was looked at

    def __len__(self) -> int:
        return len(self._held)

    def get(self, sequence: int) -> Held | None:
        return self._held.get(sequence)

    def is_held(self, sequence: int, number: int) -> bool:
        """Is this the delivery of the message that somebody holds?"""
        held = self._held.get(sequence)
        return held is not None and held.number == number

    def add(self, sequence: int, held: Held, now_s: float) -> None:
        """Somebody has a delivery; whoever had an earlier one of the message has it no more."""
        if sequence in self._held:
            self.release(sequence)
        self._held[sequence] = held
        self._budget.left -= 1
        held.renew_s = now_s + RENEW_S
        self._look_at(sequence, held)

    def extend(self, sequence: int, held: Held, until_s: float) -> None:
        """Moves the deadline of what is held."""
        is_earlier = until_s < held.until_s
        held.until_s = until_s
        if is_earlier:  # else it is looked at in time
            self._forget_slot(sequence, held)
            self._look_at(sequence, held)

    def release(self, sequence: int) -> Held | None:
        """Nobody holds it any more; what was held."""
        held = self._held.pop(sequence, None)
        if held is not None:
            self._forget_slot(sequence, held)
            self._budget.left += 1
            held.taker.freed(held.size)
            held.source.freed(held.size)
        return held

    def release_all(self) -> None:
        for sequence in list(self._held):
            self.release(sequence)

    def _look_at(self, sequence: int, held: Held) -> None:
        slot = max(int(min(held.until_s, held.renew_s) * SLOTS) + 1, self._swept + 1)
        held.slot = slot
        due = self._due.get(slot)
        if due is None:
            due = self._due[slot] = set()
        due.add(sequence)

    def _forget_slot(self, sequence: int, held: Held) -> None:
        due = self._due.get(held.slot)
        if due is not None:
            due.discard(sequence)
            if not due:
                del self._due[held.slot]

    def sweep(self, now_s: float) -> Swept:
        """Takes from everybody what has passed its deadline, and says what to renew."""
        expired: list[tuple[int, int]] = []
        to_renew: list[int] = []
        self._swept = int(now_s * SLOTS)
        for slot in [slot for slot in self._due if slot <= self._swept]:
            for sequence in sorted(self._due.get(slot, ())):
                held = self._held[sequence]
                if held.until_s <= now_s:
                    expired.append((sequence, held.attempt))
                    self.release(sequence)
                    continue
                if held.renew_s <= now_s:
                    held.renew_s = now_s + RENEW_S
                    to_renew.append(sequence)
                self._forget_slot(sequence, held)
                self._look_at(sequence, held)
        return Swept(expired, to_renew)
