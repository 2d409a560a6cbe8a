"""Who of the clients of this door wants a subject. Pure.

I1  A subscription is in the trie from ``add`` to ``remove``, and in no route that is made later.
I2  A route is remembered only until a subscription comes or goes that it may concern.
I3  Of a queue group, whatever the patterns of its members, one member gets a message.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from asterism.router.interest import InterestTrie
from asterism.subjects import MANY, ONE

ROUTES_MAX: Final = 16_384  # subjects whose subscribers are remembered; then all are looked up anew
_LITERAL_STARS: Final = "\0**"  # a token that means nothing to NATS, and all to the trie


class Subscription:
    """One SUB of one connection."""

    __slots__ = ("client", "delivered", "is_over", "most", "pattern", "queue", "segments", "sid",
                 "sid_field")  # fmt: skip

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


class Route(NamedTuple):
    """The subscriptions that match a subject: each for itself, and by queue group."""

    plain: tuple[Subscription, ...]
    groups: tuple[tuple[Subscription, ...], ...]

    @property
    def is_empty(self) -> bool:
        return not self.plain and not self.groups


NOBODY: Final = Route((), ())


class Subscriptions:
    """All subscriptions of a door."""

    def __init__(self) -> None:
        self._trie: InterestTrie[Subscription] = InterestTrie()
        self._routes: dict[bytes, Route] = {}
        self.added = self.removed = self.looked_up = 0  # in all

    def __len__(self) -> int:
        return len(self._trie)

    @property
    def routes_known(self) -> int:
        return len(self._routes)

    def add(self, subscription: Subscription) -> None:
        self.added += 1
        self._trie.add_segments(subscription.segments, subscription)
        self._forget(subscription)

    def remove(self, subscription: Subscription) -> None:
        self.removed += 1
        self._trie.remove_segments(subscription.segments, subscription)
        self._forget(subscription)

    def _forget(self, subscription: Subscription) -> None:
        if ONE in subscription.segments or MANY in subscription.segments:
            self._routes.clear()
        else:
            self._routes.pop(subscription.pattern, None)

    def route(self, subject: bytes) -> Route:
        """Who wants a subject that somebody has published to."""
        route = self._routes.get(subject)
        if route is None:
            route = self._find(subject)
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[subject] = route
        return route

    def _find(self, subject: bytes) -> Route:
        self.looked_up += 1
        segments = _segments(subject)
        if "" in segments:  # a subject with an empty token may be published to, and reaches nobody
            return NOBODY
        return route_of(self._trie.match_segments(segments))


def route_of(found: Iterable[Subscription]) -> Route:
    """Subscriptions, apart from those that share messages."""
    plain: list[Subscription] = []
    groups: dict[bytes, list[Subscription]] = {}
    for subscription in found:
        if subscription.queue is None:
            plain.append(subscription)
        else:
            groups.setdefault(subscription.queue, []).append(subscription)
    return Route(tuple(plain), tuple(map(tuple, groups.values())))


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
