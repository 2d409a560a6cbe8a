"""Who of the clients of this door wants a subject. Pure.

I1  A subscription is in the trie from ``add`` to ``remove``, and in no route that is made later.
I2  A route is remembered only until a subscription comes or goes that it may concern.
I3  Of a queue group, whatever the patterns of its members, one member gets a message.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from asterism.router.interest import InterestTrie
from asterism.subjects import MANY, ONE

ROUTES_MAX: Final = 16_384  # subjects whose subscribers are remembered; then all are looked up anew
ROUTED_MAX: Final = 1_000_000  # subscribers in all that are remembered; the same
SUBJECT_KEPT_BYTES_MAX: Final = 512  # longer ones are looked up each time
# What a subscription is taken to hold: measured, with what the door keeps of it elsewhere.
SUBSCRIPTION_BYTES: Final = 1_000
SEGMENT_BYTES: Final = 300
TEXTS: Final = 4  # of its pattern, its queue and its sid: as they came, and as they are used
_LITERAL_STARS: Final = "\0**"  # a token that means nothing to NATS, and all to the trie


class Subscription:
    """One SUB of one connection."""

    __slots__ = ("asked", "client", "delivered", "is_over", "most", "pattern", "queue", "segments",
                 "sid", "sid_field", "weight")  # fmt: skip

    def __init__(self, client: Any, pattern: bytes, queue: bytes | None, sid: bytes) -> None:
        self.client = client
        self.pattern = pattern
        self.queue = queue
        self.sid = sid
        self.sid_field = sid + b" "
        self.segments = _segments_of_pattern(pattern)
        self.delivered = 0
        self.most = 0  # deliveries, after which it ends; 0: none
        self.is_over = False
        self.asked: Any = None  # by what the broker was asked for it, if it was
        text = len(pattern) + len(sid) + len(queue or b"")
        self.weight = SUBSCRIPTION_BYTES + SEGMENT_BYTES * len(self.segments) + TEXTS * text

    @property
    def is_there(self) -> bool:
        """Can it be given anything?"""
        return not self.is_over and not self.client.is_closed


class Route:
    """The subscriptions that match a subject: each for itself, and by queue group.

    ``everybody`` has them all, groups as a whole, to be gone through in parts. Who has fewest of
    them comes first there: one that subscribes a thousand times holds nobody up but itself.
    """

    __slots__ = ("by_queue", "everybody", "groups", "plain")

    def __init__(
        self, plain: tuple[Subscription, ...], by_queue: dict[bytes, tuple[Subscription, ...]]
    ) -> None:
        self.plain = plain
        self.by_queue = by_queue
        self.groups = tuple(by_queue.values())
        self.everybody: tuple[Subscription | tuple[Subscription, ...], ...] = plain
        if self.groups:
            self.everybody = (*self.groups, *plain)

    @property
    def is_empty(self) -> bool:
        return not self.everybody


NOBODY: Final = Route((), {})


class _Wanted:
    """The subscriptions of one pattern, sorted already: a route is made at once of thousands."""

    __slots__ = ("by_queue", "plain")

    def __init__(self) -> None:
        self.plain: dict[Subscription, None] = {}
        self.by_queue: dict[bytes, tuple[Subscription, ...]] = {}

    def add(self, subscription: Subscription) -> None:
        queue = subscription.queue
        if queue is None:
            self.plain[subscription] = None
        else:
            self.by_queue[queue] = (*self.by_queue.get(queue, ()), subscription)

    def remove(self, subscription: Subscription) -> bool:
        """Takes one away; is none left?"""
        queue = subscription.queue
        if queue is None:
            del self.plain[subscription]
        else:
            group = self.by_queue[queue]
            at = group.index(subscription)
            if len(group) > 1:
                self.by_queue[queue] = group[:at] + group[at + 1 :]
            else:
                del self.by_queue[queue]
        return not self.plain and not self.by_queue


class Subscriptions:
    """All subscriptions of a door."""

    def __init__(self) -> None:
        self._trie: InterestTrie[_Wanted] = InterestTrie()
        self._by_pattern: dict[tuple[str, ...], _Wanted] = {}  # all that is in the trie
        self._count = 0
        self._routes: dict[bytes, Route] = {}
        self._routed = 0  # subscribers in these, in all
        self.weight = 0  # bytes that all of them are taken to hold
        self.added = self.removed = self.looked_up = 0  # in all

    def __len__(self) -> int:
        return self._count

    @property
    def routes_known(self) -> int:
        return len(self._routes)

    def add(self, subscription: Subscription) -> None:
        self.added += 1
        self.weight += subscription.weight
        self._count += 1
        wanted = self._by_pattern.get(subscription.segments)
        if wanted is None:
            wanted = self._by_pattern[subscription.segments] = _Wanted()
            self._trie.add_segments(subscription.segments, wanted)
        wanted.add(subscription)
        self._forget(subscription)

    def remove(self, subscription: Subscription) -> None:
        self.removed += 1
        self.weight -= subscription.weight
        self._count -= 1
        wanted = self._by_pattern[subscription.segments]
        if wanted.remove(subscription):
            del self._by_pattern[subscription.segments]
            self._trie.remove_segments(subscription.segments, wanted)
        self._forget(subscription)

    def _forget(self, subscription: Subscription) -> None:
        if ONE in subscription.segments or MANY in subscription.segments:
            self._forget_all()
        elif route := self._routes.pop(subscription.pattern, None):
            self._routed -= len(route.everybody)

    def _forget_all(self) -> None:
        self._routes.clear()
        self._routed = 0

    def route(self, subject: bytes) -> Route:
        """Who wants a subject that somebody has published to."""
        route = self._routes.get(subject)
        if route is None:
            route = self._find(subject)
            if len(subject) <= SUBJECT_KEPT_BYTES_MAX:
                self._keep(subject, route)
        return route

    def _keep(self, subject: bytes, route: Route) -> None:
        size = len(route.everybody)
        if len(self._routes) >= ROUTES_MAX or self._routed + size > ROUTED_MAX:
            self._forget_all()
        self._routes[subject] = route
        self._routed += size

    def _find(self, subject: bytes) -> Route:
        self.looked_up += 1
        segments = _segments(subject)
        if "" in segments:  # a subject with an empty token may be published to, and reaches nobody
            return NOBODY
        return _route_of(self._trie.match_segments(segments))


def _route_of(found: Iterable[_Wanted]) -> Route:
    """The subscriptions of these patterns, apart from those that share messages."""
    plain: list[Subscription] = []
    groups: dict[bytes, tuple[Subscription, ...]] = {}
    for wanted in found:
        plain += wanted.plain
        more = wanted.by_queue
        both = groups.keys() & more.keys()
        shared = {queue: groups[queue] + more[queue] for queue in both}
        groups = groups | more | shared if groups else more.copy()
    if len(plain) > 1:
        counts = Counter(id(subscription.client) for subscription in plain)
        if len(counts) < len(plain):
            plain.sort(key=lambda subscription: counts[id(subscription.client)])
    return Route(tuple(plain), groups)


def _segments(subject: bytes) -> tuple[str, ...]:
    # Any bytes are a subject; in this encoding each is a character.
    text = subject.decode("latin-1")
    segments = tuple(text.split("."))
    if MANY in segments:
        return tuple([_LITERAL_STARS if segment == MANY else segment for segment in segments])
    return segments


def _segments_of_pattern(pattern: bytes) -> tuple[str, ...]:
    segments = _segments(pattern)
    return (*segments[:-1], MANY) if segments[-1] == ">" else segments
