"""What a door asks the broker for, on behalf of all of its clients. Pure.

Clients of NATS may hold any number of patterns, and an endpoint of the broker has so many interests
at most, each of so many bytes. So what many patterns begin with alike is asked for as a whole: an
inbox of each client comes to one interest for all. Who gets a message here is decided by the
patterns themselves; asking for too much costs a message on its way, and loses none.
"""

from collections import Counter
from typing import Final

from asterism import limits
from asterism.subjects import MANY, ONE

ALIKE_MAX: Final = 64  # interests that begin with one segment; more are asked for as a whole
INBOX: Final = "_INBOX"  # clients make these by the thousand, and nobody else asks for one
EVERYTHING: Final = ("**",)
TEXT_BYTES_MAX: Final = 65_536  # of all interests; past it everything is asked for


class Digest:
    """Interests, each as often as it was added, and as few as can be asked for."""

    def __init__(self) -> None:
        self._by_first: dict[str, Counter[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_first)

    def add(self, interest: str) -> None:
        first = interest.partition("/")[0]
        self._by_first.setdefault(first, Counter())[interest] += 1

    def remove(self, interest: str) -> None:
        first = interest.partition("/")[0]
        counts = self._by_first[first]
        counts[interest] -= 1
        if not counts[interest]:
            del counts[interest]
            if not counts:
                del self._by_first[first]

    def interests(self) -> tuple[str, ...]:
        """What to ask for."""
        found: list[str] = []
        size = 0
        for first, counts in self._by_first.items():
            if first != INBOX and len(counts) <= ALIKE_MAX:
                asked = list(counts)
            elif first in (ONE, MANY):
                return EVERYTHING
            else:
                asked = [first, f"{first}/{MANY}"]
            found += asked
            size += sum(len(interest.encode()) for interest in asked)
            if len(found) > limits.INTERESTS_MAX or size > TEXT_BYTES_MAX:
                return EVERYTHING
            # What begins with a segment that fills an interest by itself, or nearly.
            if len(asked[-1].encode()) > limits.SUBJECT_BYTES_MAX:
                return EVERYTHING
        return tuple(found)
