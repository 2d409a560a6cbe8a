"""Endpoints, the receivers they form, and credit. No rows, no clock.

I1 A receiver's credit is the sum of its endpoints' credit.
I2 ``ready`` holds exactly the endpoints that have credit, in the order they will be served.
I3 A delivery that is out is in ``held`` of exactly one receiver, under its sequence.
I4 An endpoint that is laden has no credit: what it has is withheld, and only then.
I5 ``quiet`` counts the endpoints without echo, by node: of the topic, and of each receiver.
"""

from collections import Counter, deque
from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from asterism import limits
from asterism.actors.delivery import Delivery
from asterism.actors.queue import KeyLocks, Window
from asterism.actors.runs import Run
from asterism.effects import Delivered
from asterism.errors import PeerError
from asterism.message import Status
from asterism.router.interest import InterestTrie, matches
from asterism.settings import TopicSettings
from asterism.storage.keys import (
    FIRST_PASSING,
    FIRST_RECEIVER,
    PASSING_NUMBERS,
    RANK_END,
    WORK,
    WORK_NAME,
)

if TYPE_CHECKING:
    from asterism.actors.pool import Lane

Holder = tuple[bytes, int]
"""A node, and the number of its endpoint."""


class Endpoint:
    """One endpoint of a node on this topic."""

    __slots__ = ("bytes_out", "credit", "echo", "interests", "node", "number", "outgoing", "owed",
                 "paid", "passed", "pull", "receiver", "unpaid", "withheld")  # fmt: skip

    def __init__(
        self,
        node: bytes,
        number: int,
        receiver: "Receiver",
        interests: tuple[str, ...],
        echo: bool = True,
    ) -> None:
        self.node = node
        self.number = number
        self.receiver = receiver
        self.interests = interests
        self.echo = echo  # does it get online messages that its own node publishes?
        self.credit = 0
        self.outgoing: list[Delivered] = []
        self.pull: Wait | None = None
        self.bytes_out = 0  # of large payloads that were sent and not given back
        self.withheld = 0  # credit that does not count while those are too many
        self.owed = 0  # credit that was taken back while deliveries had it: they give none back
        # Deliveries that are done once they are sent give their credit back by a grant: how many
        # there were, for how many of them one came, and which of the others are large.
        self.passed = 0
        self.paid = 0
        self.unpaid: deque[tuple[int, int]] = deque()  # the how manieth it was, its size

    @property
    def is_laden(self) -> bool:
        """Has it as many bytes in its hands as it may?"""
        return self.bytes_out >= limits.ENDPOINT_BYTES_MAX


class Wait:
    """A pull or an order that waits."""

    __slots__ = ("deadline_ms", "endpoint", "node", "over", "remaining", "request", "taken")

    def __init__(self, node: bytes, request: int, deadline_ms: int | None, remaining: int) -> None:
        self.node = node
        self.request = request
        self.deadline_ms = deadline_ms
        self.remaining = remaining
        self.taken = 0
        self.over = False
        self.endpoint: Endpoint | None = None  # None: an order of the work queue


def _segments_of(interest: str) -> int:
    return interest.count("/") + 1


def unnamed(node: bytes, endpoint: int) -> str:
    """The name of a receiver that has none of its own. It does not give its session away."""
    return f"~{blake2b(node, digest_size=8).hexdigest()}.{endpoint}"


class Receiver:
    """What a copy of a message is addressed to: an endpoint by itself, or a group of them."""

    __slots__ = (
        "away",
        "copies",
        "copies_count",
        "counted_to",
        "credit",
        "done_now",
        "durable",
        "endpoints",
        "floor",
        "floor_row",
        "has_moved",
        "has_rows",
        "has_strays",
        "held",
        "horizon",
        "interests",
        "kept",
        "kept_count",
        "known",
        "lanes",
        "locks",
        "marks",
        "name",
        "number",
        "orders",
        "out_of_runs",
        "owed",
        "parked",
        "quiet",
        "ready",
        "received_timeout_ms",
        "sent_timeout_ms",
        "settings",
        "stored",
        "window",
    )

    def __init__(self, number: int, name: str, durable: bool, settings: "SettingsBox") -> None:
        self.number = number
        self.name = name
        self.durable = durable
        self.settings = settings
        self.sent_timeout_ms: int | None = None
        self.received_timeout_ms: int | None = None
        self.quiet: Counter[bytes] = Counter()
        self.interests: tuple[str, ...] = ()  # those in the trie
        self.endpoints: dict[Holder, Endpoint] = {}
        # Endpoints that may come back, and what they want: of one that lives with its connections.
        self.away: dict[Holder, tuple[str, ...]] = {}
        self.stored = durable  # a restart finds it; the others have nothing to lose until they are
        self.ready: dict[Endpoint, None] = {}
        self.credit = 0
        self.held: dict[int, Delivery] = {}
        self.out_of_runs = 0  # what it has besides: deliveries without an object
        self.lanes: dict[Lane, None] = {}  # of the pool
        self.orders: dict[tuple[bytes, int], Wait] = {}  # the work queue's waiting orders
        # What is of this receiver alone: log messages and online copies.
        self.window = Window()  # log
        self.copies = Window()  # online
        self.copies_count = 0
        self.kept: deque[Run] = deque()  # online copies behind all of those, by the run
        self.kept_count = 0
        self.known: dict[int, Delivery] = {}  # log deliveries in memory: waiting, aside or out
        self.horizon = RANK_END  # log messages from here on are on disk only
        self.floor = 0  # log messages before it are done, moved or parked
        self.floor_row = b""  # as it is stored, if it is
        self.done_now: set[int] = set()  # log messages finished in this turn
        self.marks: set[int] | None = set()  # done above the floor, in x rows; None: too many
        self.has_rows = durable  # of its own: retries, marks; deleted with it
        self.has_moved = False  # False: it has no d row
        # Log messages that it has still to do, of those below ``counted_to``; see ``counting.py``.
        self.owed = 0
        self.counted_to = RANK_END
        self.has_strays = False  # some of those are not among its interests any more
        self.locks = KeyLocks()
        self.parked = 0

    def timeout_ms(self, status: Status) -> int:
        """How long a delivery may stay on a step."""
        if status is Status.SENT:
            own, default = self.sent_timeout_ms, self.settings.value.sent_timeout_ms
        else:
            own, default = self.received_timeout_ms, self.settings.value.received_timeout_ms
        return default if own is None else own

    def has_own(self) -> bool:
        """May there be something of the log, or an online copy, for this receiver?"""
        window = self.window
        return bool(
            self.copies_count
            or self.kept
            or window.ordered
            or window.early
            or self.horizon != RANK_END
        )

    @property
    def online(self) -> bool:
        return bool(self.endpoints)

    @property
    def is_over(self) -> bool:
        """Has one that lives with its connections lost the last of them?"""
        return not (self.durable or self.endpoints or self.away)

    @property
    def out(self) -> int:
        """How many deliveries it has."""
        return len(self.held) + self.out_of_runs

    def count(self, sequence: int, change: int) -> None:
        """A log message is, or is no longer, among those that it has still to do."""
        if sequence < self.counted_to:
            self.owed += change

    def give(self, endpoint: Endpoint, credit: int) -> None:
        """Adds to an endpoint's credit."""
        credit = min(credit, limits.CREDIT_MAX - endpoint.credit)
        if credit > 0:
            endpoint.credit += credit
            self.credit += credit
            self.ready[endpoint] = None

    def revoke(self, endpoint: Endpoint, credit: int) -> None:
        """Takes unused credit back."""
        counting = min(credit, endpoint.credit)
        endpoint.credit -= counting
        self.credit -= counting
        endpoint.withheld -= min(credit - counting, endpoint.withheld)
        if endpoint.credit == 0:
            self.ready.pop(endpoint, None)

    def withhold(self, endpoint: Endpoint, credit: int) -> None:
        """Keeps credit for an endpoint until it has given bytes back."""
        endpoint.withheld += min(credit, limits.CREDIT_MAX - endpoint.withheld)

    def spend(self, endpoint: Endpoint, count: int) -> None:
        """The endpoint whose turn it is gets so many at once."""
        ready = self.ready
        endpoint.credit -= count
        self.credit -= count
        del ready[endpoint]
        if endpoint.credit:
            ready[endpoint] = None

    def next_endpoint(self) -> Endpoint:
        """The endpoint whose turn it is; one unit of its credit is spent."""
        ready = self.ready
        endpoint = next(iter(ready))
        endpoint.credit -= 1
        self.credit -= 1
        if endpoint.credit == 0:
            del ready[endpoint]
        elif len(ready) > 1:
            del ready[endpoint]
            ready[endpoint] = None
        return endpoint


class Matcher(Protocol):
    """Who is interested in what: a trie here, or a process that is asked."""

    def add(self, interest: str, receiver: int) -> bool: ...

    def remove(self, interest: str, receiver: int) -> bool: ...

    def match_any(self, subjects: tuple[str, ...]) -> frozenset[int]: ...


class SettingsBox:
    """The settings in force: one place that everybody of a topic looks at."""

    __slots__ = ("value",)

    def __init__(self, value: TopicSettings) -> None:
        self.value = value


class Receivers:
    """All receivers and endpoints of a topic, and who is interested in what."""

    def __init__(
        self, settings: SettingsBox, matcher: Matcher | None = None, durable_max: int = 0
    ) -> None:
        self._settings = settings
        self._durable_max = durable_max
        self._durable_count = 0
        self.by_name: dict[str, Receiver] = {}
        self.by_number: dict[int, Receiver] = {}
        self.endpoints: dict[Holder, Endpoint] = {}
        self.nodes: dict[bytes, set[int]] = {}  # node -> its endpoints
        self._matcher: Matcher = InterestTrie[int]() if matcher is None else matcher
        self._audiences: dict[tuple[str, ...], frozenset[int]] = {}
        self.next_number = FIRST_RECEIVER
        self.next_passing = FIRST_PASSING
        self.window_max = limits.window_of(0)  # log deliveries one receiver has in memory
        self.epoch = 0  # rises whenever an audience may have changed
        self.quiet: Counter[bytes] = Counter()
        self._segments = 0  # of all interests
        self.work = Receiver(WORK, WORK_NAME, True, settings)
        self.by_number[WORK] = self.work

    def audience(self, subjects: tuple[str, ...]) -> frozenset[int]:
        """The numbers of the receivers that are interested."""
        found = self._audiences.get(subjects)
        if found is None:
            if len(self._audiences) >= limits.HEADERS_CACHED_MAX:
                self._audiences.clear()
            found = self._audiences[subjects] = self._matcher.match_any(subjects)
        return found

    def hears(self, receiver: Receiver, node: bytes, subjects: tuple[str, ...]) -> bool:
        """Does a receiver get what this node publishes online? Not where the node has an endpoint
        without echo there that wants it: the node has served that by itself."""
        quiet = receiver.quiet.get(node, 0)
        if not quiet:
            return True
        if quiet == len(receiver.endpoints):
            return False
        return not any(
            matches(interest, subject)
            for number in self.nodes[node]
            if (own := receiver.endpoints.get((node, number))) is not None and not own.echo
            for interest in own.interests
            for subject in subjects
        )

    def is_alone(self, node: bytes) -> bool:
        """Are all endpoints of the topic this node's, and without echo?"""
        return self.quiet.get(node, 0) == len(self.endpoints) > 0

    def is_known(self, subjects: tuple[str, ...]) -> bool:
        """Would ``audience`` answer without asking anybody?"""
        return subjects in self._audiences

    @property
    def has_passing(self) -> bool:
        """Is there one that lives as long as its connection?"""
        return len(self.by_name) > self._durable_count

    def find(self, name: str) -> Receiver:
        receiver = self.by_name.get(name)
        if receiver is None:
            raise PeerError("no_such_receiver", f"{name!r} is not a receiver of this topic")
        return receiver

    def endpoint(self, node: bytes, number: int) -> Endpoint:
        found = self.endpoints.get((node, number))
        if found is None:
            raise PeerError("no_such_receiver", f"endpoint {number} is not on this topic")
        return found

    def create(self, name: str, durable: bool, number: int | None = None) -> Receiver:
        """Makes a receiver; it has no interests yet."""
        if number is None:
            self.check_one_more(durable)
            number = self._next_number(durable)
        receiver = Receiver(number, name, durable, self._settings)
        self.by_name[name] = self.by_number[number] = receiver
        self._durable_count += durable
        self.window_max = limits.window_of(len(self.by_name))
        return receiver

    def check_one_more(self, durable: bool) -> None:
        """``busy`` where a topic has as many durable receivers as it may."""
        if durable and self._durable_count >= self._durable_max:
            detail = (
                f"the topic has {self._durable_count} durable receivers, as many as it may: "
                "delete some, or raise max_receivers_per_topic"
            )
            raise PeerError("busy", detail, limits.FULL_RETRY_MS)

    def _next_number(self, durable: bool) -> int:
        if durable:
            self.next_number += 1
            return self.next_number - 1
        while True:  # these come and go: after two thousand million of them the first come again
            number = self.next_passing
            self.next_passing = FIRST_PASSING + (number + 1 - FIRST_PASSING) % PASSING_NUMBERS
            if number not in self.by_number:
                return number

    def remove(self, receiver: Receiver) -> None:
        """Forgets a receiver that has no endpoints any more."""
        assert not receiver.endpoints
        self.set_interests(receiver, ())
        self._durable_count -= receiver.durable
        del self.by_name[receiver.name]
        del self.by_number[receiver.number]
        self.window_max = limits.window_of(len(self.by_name))

    def attach(
        self,
        node: bytes,
        number: int,
        receiver: Receiver,
        interests: tuple[str, ...],
        echo: bool = True,
    ) -> Endpoint:
        """Puts an endpoint on a receiver."""
        endpoint = Endpoint(node, number, receiver, interests, echo)
        if not echo:
            self.quiet[node] += 1
            receiver.quiet[node] += 1
        self.endpoints[node, number] = receiver.endpoints[node, number] = endpoint
        self.nodes.setdefault(node, set()).add(number)
        return endpoint

    def detach(self, endpoint: Endpoint) -> None:
        """Takes an endpoint off; its receiver stays."""
        key = (endpoint.node, endpoint.number)
        receiver = endpoint.receiver
        receiver.revoke(endpoint, endpoint.credit)
        del self.endpoints[key], receiver.endpoints[key]
        if not endpoint.echo:
            for quiet in (self.quiet, receiver.quiet):
                quiet[endpoint.node] -= 1
                quiet += Counter()  # forgets those of which none is left
        numbers = self.nodes[endpoint.node]
        numbers.discard(endpoint.number)
        if not numbers:
            del self.nodes[endpoint.node]

    def check_room(self, interests: Iterable[str]) -> None:
        """``busy`` where a topic has no room for more interests: each segment takes memory."""
        if self._segments + sum(map(_segments_of, interests)) > limits.TOPIC_SEGMENTS_MAX:
            raise PeerError("busy", "the topic has as many interests as it may", 1_000)

    def set_interests(self, receiver: Receiver, interests: Iterable[str]) -> bool:
        """Makes these the receiver's interests; was there a change?"""
        wanted = tuple(dict.fromkeys(interests))
        kept, before = set(wanted), set(receiver.interests)
        if kept == before:
            return False
        for interest in receiver.interests:
            if interest not in kept:
                self._segments -= _segments_of(interest)
                self._matcher.remove(interest, receiver.number)
        for interest in wanted:
            if interest not in before:
                self._segments += _segments_of(interest)
                self._matcher.add(interest, receiver.number)
        receiver.interests = wanted
        self._audiences.clear()
        self.epoch += 1
        return True
