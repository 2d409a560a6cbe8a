"""Runs: plain messages that are handled by the batch. Plain data; no decisions.

Most messages are alike: with no wish of their own but for a receipt, on a topic with no rule for
them. Such messages that were accepted together stay together: they wait as one *run*, go out as a
part of one, and end by their number alone, with no object for each. Whatever does something else
with one of them first *unrolls* it into a message and a delivery like any other, and from then on
it is one. So a run is a shorter way to write down the same state, and only accepting, sending,
finishing and reading back from disk know it.

A lane of the pool has runs of durable and of push messages, a receiver has runs of online copies
that wait for its credit; receivers who wait for the same share the messages.

I1 A run's messages are natural, were never sent, and have consecutive sequences; all of them are
   of one producer who asked for receipts, with consecutive numbers, or none is.
I2 In a lane, and of a receiver's copies, everything that waits outside the runs has a lower rank
   than the first run.
"""

from collections import deque
from collections.abc import Iterable

from asterism.commands import Incoming


class Run:
    """Messages that wait together."""

    __slots__ = ("accepted_ms", "expires_ms", "first", "in_memory", "messages", "number",
                 "producer", "subjects", "taken")  # fmt: skip

    def __init__(
        self,
        first: int,
        messages: tuple[Incoming, ...],
        accepted_ms: int,
        expires_ms: int,
        in_memory: bool = False,
        producer: bytes | None = None,
        number: int = 0,
        subjects: tuple[str, ...] | None = None,
    ) -> None:
        self.first = first  # the sequence of the first that was not taken
        self.messages = messages
        self.taken = 0  # how many have gone out, from the front
        self.accepted_ms = accepted_ms
        self.expires_ms = expires_ms
        self.in_memory = in_memory  # push or online, over once they are sent; else durable
        self.producer = producer  # who has asked for receipts, if somebody has
        self.number = number  # of its messages, the first that was not taken
        self.subjects = subjects  # of all its messages; None: of each its own

    def __len__(self) -> int:
        return len(self.messages) - self.taken

    def take(self, count: int) -> tuple[Incoming, ...]:
        """Takes so many from the front; the whole of them costs no copy."""
        begin = self.taken
        self.skip(count)
        return self.messages[begin : begin + count]

    def skip(self, count: int) -> None:
        """So many from the front are gone."""
        self.taken += count
        self.first += count
        self.number += count


class Runs(deque[Run]):
    """Runs one behind the other. ``total`` is how many messages they have: to add them up for each
    that is published would cost more the more wait."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def add(self, run: Run) -> None:
        self.append(run)
        self.total += len(run)

    def add_all(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self.add(run)

    def take(self, count: int) -> tuple[Incoming, ...]:
        """Takes so many off the first run, which has as many."""
        run = self[0]
        self.total -= count
        if count < len(run):
            return run.take(count)
        self.popleft()
        return run.take(count) if run.taken else run.messages

    def take_run(self) -> Run:
        """Takes the first run off."""
        run = self.popleft()
        self.total -= len(run)
        return run
