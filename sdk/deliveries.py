"""A message as an application gets it: what both clients share of it. Pure."""

from collections.abc import Sequence
from typing import Final

from asterism.message import Header
from asterism.sdk.receiving import FAILED, PROCESSED, RECEIVED, SENT, Item, Subscription, header_of

REPLY_TOPIC: Final = "reply-topic"  # attributes of a request: where its answer is to go
REPLY_SUBJECT: Final = "reply-subject"


class Received:
    """One delivery of a message."""

    __slots__ = ("_item", "_step", "_subscription")

    def __init__(self, subscription: Subscription, item: Item, is_free: bool) -> None:
        self._subscription = subscription
        self._item = item
        # How far it has been reported. Where no more than ``sent`` is expected it is done already.
        self._step = PROCESSED if is_free else SENT

    @property
    def topic(self) -> str:
        return self._subscription.topic

    @property
    def receiver(self) -> str:
        """The name of the receiver that this was delivered to."""
        return self._subscription.receiver

    @property
    def sequence(self) -> int:
        """The number that the topic gave the message."""
        return self._item[0]

    @property
    def attempt(self) -> int:
        """1 for the first delivery to this receiver."""
        return self._item[1]

    @property
    def id(self) -> bytes:
        return self._item[2]

    @property
    def header(self) -> Header:
        return header_of(self._item[3])

    @property
    def payload(self) -> bytes:
        return self._item[4]

    @property
    def subjects(self) -> tuple[str, ...]:
        return self.header.subjects

    @property
    def subject(self) -> str:
        """The first of the subjects."""
        return self.header.subjects[0]

    @property
    def attributes(self) -> dict[str, str]:
        return self.header.attributes

    @property
    def mode(self) -> str:
        return self.header.mode.name.lower()

    @property
    def expect(self) -> str:
        return self.header.expect.name.lower()

    @property
    def is_finished(self) -> bool:
        """Is nothing more to be reported on it?"""
        return self._step >= PROCESSED

    @property
    def lost(self) -> bool:
        """Has it gone to another, or will it, though it is not finished? Then stop working on it.

        A ``processed`` that is reported all the same counts if nobody has it by then.
        """
        if self._step >= PROCESSED:
            return False
        held = self._subscription
        return held.is_over or held.taken.get(self._item[0]) != self._item[1]

    @property
    def reply_to(self) -> tuple[str, str] | None:
        """Topic and subject that an answer to this request goes to."""
        attributes = self.attributes
        if REPLY_TOPIC in attributes and REPLY_SUBJECT in attributes:
            return attributes[REPLY_TOPIC], attributes[REPLY_SUBJECT]
        return None

    def _climb(self, status: int, reason: str = "", token: object = None) -> bool:
        """Notes a report, if it says anything new; whether it does."""
        step = status if status < PROCESSED else PROCESSED
        if self._step >= step:
            return False
        if status == RECEIVED and self.header.expect == RECEIVED:
            step = PROCESSED  # that was all that is expected
        self._step = step
        item = self._item
        is_last = step == PROCESSED
        self._subscription.report(status, item[:1], item[1:2], reason, token, is_last=is_last)
        return True

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.sequence} of {self.topic!r}, attempt {self.attempt}, "
            f"{len(self.payload)} bytes>"
        )


def finish(deliveries: Sequence[Received], status: int, reason: str = "") -> list[Subscription]:
    """Notes one report on many deliveries; the subscriptions that have something to send."""
    by_subscription: dict[Subscription, tuple[list[int], list[int]]] = {}
    last: Subscription | None = None
    sequences: list[int] = []
    attempts: list[int] = []
    for delivery in deliveries:
        if delivery._step >= PROCESSED:
            continue
        delivery._step = PROCESSED
        if delivery._subscription is not last:
            last = delivery._subscription
            sequences, attempts = by_subscription.setdefault(last, ([], []))
        item = delivery._item
        sequences.append(item[0])
        attempts.append(item[1])
    for subscription, (numbers, tries) in by_subscription.items():
        subscription.report(status, numbers, tries, reason)
    return list(by_subscription)


__all__ = ["FAILED", "PROCESSED", "RECEIVED", "REPLY_SUBJECT", "REPLY_TOPIC", "Received", "finish"]
