"""What a subscription asks for, read once from its resource for every message that goes out."""

from typing import Any, Final, NamedTuple

from asterism.gateways.pubsub.filters import Filter, read_filter
from asterism.gateways.pubsub.messages import attributes_of, published_ms
from asterism.gateways.pubsub.rules import duration_ms
from asterism.sdk.aio import Delivery

DOUBLINGS_MAX: Final = 32  # of a backoff, which has its most long before


class Backoff(NamedTuple):
    """The pause before a message comes again: the least after one attempt, doubling to the most."""

    least_s: float
    most_s: float

    def pause_s(self, attempt: int) -> float:
        """The pause behind an attempt, counted from 1."""
        return min(self.most_s, self.least_s * float(1 << min(attempt - 1, DOUBLINGS_MAX)))


class Terms(NamedTuple):
    """The delivery options of a subscription."""

    deadline_s: int
    backoff: Backoff | None
    dead_letter: str  # the name of the topic; empty: none
    attempts_max: int
    matches: Filter | None  # None: every message does
    retention_ms: int
    is_ordered: bool
    is_exactly_once: bool

    def wants(self, delivery: Delivery, now_ms: int) -> bool:
        """Is a message for the subscription: does its filter match, and is it not too old?"""
        oldest_ms = now_ms - self.retention_ms
        # Nearly every id begins with a time, and few messages are old: look twice at those alone.
        may_be_old = delivery.id[:6] < max(oldest_ms, 0).to_bytes(6, "big")
        if may_be_old and published_ms(delivery, now_ms) < oldest_ms:
            return False
        return self.matches is None or self.matches(attributes_of(delivery))

    def is_dead(self, delivery: Delivery) -> bool:
        """Were there as many attempts as there may be?"""
        return bool(self.dead_letter) and delivery.attempt > self.attempts_max

    def pause_s(self, attempt: int) -> float:
        """How long behind its deadline, or a nack, a message waits before it comes again."""
        return 0.0 if self.backoff is None else self.backoff.pause_s(attempt)


def terms_of(subscription: Any) -> Terms:
    """The terms in a ``Subscription``, whose defaults are filled in."""
    backoff = None
    if subscription.HasField("retry_policy"):
        policy = subscription.retry_policy
        backoff = Backoff(
            duration_ms(policy.minimum_backoff) / 1_000, duration_ms(policy.maximum_backoff) / 1_000
        )
    letters = subscription.dead_letter_policy
    return Terms(
        deadline_s=subscription.ack_deadline_seconds,
        backoff=backoff,
        dead_letter=letters.dead_letter_topic,
        attempts_max=letters.max_delivery_attempts,
        matches=read_filter(subscription.filter) if subscription.filter else None,
        retention_ms=duration_ms(subscription.message_retention_duration),
        is_ordered=subscription.enable_message_ordering,
        is_exactly_once=subscription.enable_exactly_once_delivery,
    )
