"""What a publisher holds of what it published: a ticket. Pure.

A ticket stands for messages that were published together, one or many. It is answered once for
each of them (accepted under a sequence, or refused), and, where a receipt was asked for, resolved
once for each that was accepted.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from asterism.errors import ERRORS, PeerError

UNKNOWN: Final = "unknown"  # a verdict: the broker no longer keeps what became of the message


class Outcome(NamedTuple):
    """How a message ended.

    ``verdict`` is ``ok``, ``failed``, ``expired`` or ``dropped``; ``unknown`` where the broker no
    longer keeps it. ``statuses`` has the last status of the message for each receiver.
    """

    verdict: str
    statuses: dict[str, str]


class ClosedError(ConnectionError):
    """The client is closed, or the broker has turned it away for good."""


def error_of(code: object, detail: object = "", retry_after_ms: object = None) -> PeerError:
    """The exception of a refusal; a code that this version does not know is kept as text."""
    text = detail if type(detail) is str else ""
    after_ms = retry_after_ms if type(retry_after_ms) is int and retry_after_ms >= 0 else None
    if type(code) is str and code in ERRORS:
        return PeerError(code, text, after_ms)
    return PeerError("internal", f"{code!s:.80}: {text}", after_ms)


class Ticket:
    """Messages published together on one topic; ``results`` and ``outcomes`` go by position."""

    __slots__ = (
        "__weakref__",
        "accepted_count",
        "count",
        "missing",
        "outcomes",
        "receipt",
        "results",
        "topic",
    )

    def __init__(self, topic: str, count: int, receipt: bool) -> None:
        self.topic = topic
        self.count = count
        self.receipt = receipt
        self.missing = count  # answers
        self.accepted_count = 0
        self.results: list[int | PeerError] = []
        self.outcomes: dict[int, Outcome] = {}

    def answer(self, start: int, results: Sequence[int | PeerError], accepted: int) -> bool:
        """Takes answers from position ``start`` on, ``accepted`` of them good; true at the last."""
        self.accepted_count += accepted
        self.missing -= len(results)
        if len(results) == self.count:
            self.results = list(results)
            return True
        if not self.results:
            self.results = [0] * self.count
        self.results[start : start + len(results)] = results
        return self.missing == 0

    def first_error(self) -> PeerError | None:
        """Why the first of the messages that were refused was refused."""
        if self.accepted_count == self.count:
            return None
        return next((result for result in self.results if isinstance(result, PeerError)), None)

    def resolve(self, position: int, outcome: Outcome) -> None:
        """Takes an outcome; the first one counts."""
        self.outcomes.setdefault(position, outcome)

    @property
    def is_resolved(self) -> bool:
        """Has every message that was accepted its outcome?"""
        return not self.missing and len(self.outcomes) == self.accepted_count
