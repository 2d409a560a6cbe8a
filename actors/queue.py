"""Waiting order in memory: a window over the head of a queue, and the keys that hold it up.

No rows, no clock. What does not fit a window stays on disk; whoever owns the window remembers
from which rank on.
"""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from asterism import limits
from asterism.actors.delivery import Delivery
from asterism.storage.keys import position_of

Audience = frozenset[int]  # the numbers of receivers
ONE: Audience = frozenset()  # where there is one receiver, whoever it is


class Window:
    """Waiting deliveries by rank.

    Most arrive in order and go to the end of a deque; the few that do not go to a heap. A
    delivery that no longer waits is dropped when it comes to the head: removal must be O(1).
    Both parts are open to the pool and the dispatcher, which look at them once a message.
    """

    __slots__ = ("early", "ordered")

    def __init__(self) -> None:
        self.ordered: deque[Delivery] = deque()
        self.early: list[tuple[int, int, Delivery]] = []

    def __len__(self) -> int:
        """How many are held, those that no longer wait included."""
        return len(self.ordered) + len(self.early)

    def push(self, delivery: Delivery) -> None:
        ordered = self.ordered
        if not ordered or ordered[-1].rank < delivery.rank:
            ordered.append(delivery)
        else:
            heappush(self.early, (delivery.rank, id(delivery), delivery))

    def head(self) -> Delivery | None:
        """The delivery of the least rank that still waits; it stays."""
        ordered, early = self.ordered, self.early
        while ordered and not ordered[0].waits:
            ordered.popleft()
        if not early:
            return ordered[0] if ordered else None
        while early and not early[0][2].waits:
            heappop(early)
        if early and (not ordered or early[0][0] < ordered[0].rank):
            return early[0][2]
        return ordered[0] if ordered else None

    def holds(self, delivery: Delivery) -> bool:
        """Does this one wait here?"""
        return (
            self.head() is delivery
            or delivery in self.ordered
            or any(entry[2] is delivery for entry in self.early)
        )

    def remove(self, delivery: Delivery) -> None:
        """Takes one that waits here: at once if it is the head, as it is but on blocking topics."""
        ordered, early = self.ordered, self.early
        if ordered and ordered[0] is delivery:
            ordered.popleft()
        elif early and early[0][2] is delivery:
            heappop(early)
        elif delivery in ordered:
            ordered.remove(delivery)
        else:
            early[:] = [entry for entry in early if entry[2] is not delivery]
            heapify(early)

    def pop(self) -> Delivery:
        """Takes the head; only after ``head`` has found one."""
        ordered, early = self.ordered, self.early
        if early and (not ordered or early[0][0] < ordered[0].rank):
            return heappop(early)[2]
        return ordered.popleft()

    def drain(self) -> list[Delivery]:
        """Takes all that still wait, in order."""
        kept = [delivery for delivery in self.ordered if delivery.waits]
        kept += [delivery for _, _, delivery in self.early if delivery.waits]
        kept.sort(key=_rank)
        self.ordered.clear()
        self.early.clear()
        return kept

    def cut(self, size: int) -> list[Delivery]:
        """Keeps the ``size`` that come first, takes the others."""
        waiting = self.drain()
        self.ordered.extend(waiting[:size])
        return waiting[size:]


def _rank(delivery: Delivery) -> int:
    return delivery.rank


class KeyLocks:
    """Ordering keys: one delivery of a key at a time; those behind it are set aside, in order.

    What waits holds no key, so that nobody is held up by what he does not want: those set aside
    are kept by audience, and when a key falls free the first of each audience waits again. Whoever
    wants several of them gets them in the order of their key: see ``ordering.py``.

    I1 A key is held by a delivery that is out, pauses, or waits for a place to fall free.
    I2 While a key is free, the first of each audience set aside under it waits in its window, or
       was looked at there and is behind an earlier one of the key that waits.
    """

    __slots__ = ("_aside", "_held", "_held_up")

    def __init__(self) -> None:
        self._held: dict[str, int] = {}  # key -> the sequence that holds it
        self._aside: dict[str, dict[Audience, list[tuple[int, int, Delivery]]]] = {}
        self._held_up = 0

    def is_open(self, key: str, sequence: int) -> bool:
        """Is the key free, or this one's own?"""
        return self._held.get(key, sequence) == sequence

    def admits(self, key: str, sequence: int) -> bool:
        """May this one go? Then the key is its own until ``release``."""
        return self._held.setdefault(key, sequence) == sequence

    def set_aside(self, key: str, delivery: Delivery, audience: Audience = ONE) -> bool:
        """Sets a delivery aside until its turn; False when there is no room for more."""
        if self._held_up >= limits.PARKED_KEYS_MAX:
            return False
        self._held_up += 1
        aside = self._aside.setdefault(key, {}).setdefault(audience, [])
        heappush(aside, (position_of(delivery.rank), id(delivery), delivery))
        return True

    def has_earlier(self, key: str, position: int, number: int | None) -> bool:
        """Is one set aside that comes before this place, and is for this receiver? (None: any.)"""
        for audience, aside in self._aside.get(key, {}).items():
            while aside and not aside[0][2].waits:
                heappop(aside)
                self._held_up -= 1
            if aside and aside[0][0] < position and (number is None or number in audience):
                return True
        return False

    def release(self, key: str, sequence: int) -> list[Delivery]:
        """This one does not hold the key, or no longer; returns those that wait again by it."""
        if self._held.get(key, sequence) != sequence:
            return []
        self._held.pop(key, None)
        following = []
        by_audience = self._aside.get(key, {})
        for audience, aside in list(by_audience.items()):
            while aside:
                _, _, delivery = heappop(aside)
                self._held_up -= 1
                if delivery.waits:
                    following.append(delivery)
                    break
            if not aside:
                del by_audience[audience]
        if not by_audience:
            self._aside.pop(key, None)
        return following

    def regroup(self, audience_of: Callable[[Delivery], Audience]) -> list[Delivery]:
        """Audiences changed: sorts those set aside anew; returns those that wait again by it."""
        for by_audience in self._aside.values():
            entries = [entry for aside in by_audience.values() for entry in aside]
            by_audience.clear()
            for entry in entries:
                heappush(by_audience.setdefault(audience_of(entry[2]), []), entry)
        return self.reopen()

    def reopen(self) -> list[Delivery]:
        """Those set aside may be behind nothing any more; returns those that wait again by it."""
        free = [key for key in self._aside if key not in self._held]
        return [delivery for key in free for delivery in self.release(key, 0)]

    def aside(self) -> list[Delivery]:
        """All that are set aside."""
        return [
            entry[2]
            for by_audience in self._aside.values()
            for aside in by_audience.values()
            for entry in aside
            if entry[2].waits
        ]

    def drain(self) -> list[Delivery]:
        """Takes all that were set aside and frees every key: for a receiver that ends."""
        waiting = self.aside()
        self.__init__()  # type: ignore[misc]
        return waiting
