"""A subscription at work: hands its messages out to whoever asks for some.

Clients that pull, streams and the push loop are *takers*. What they have room for, together, is
pulled from the broker, one pull at a time, and handed out by turns. So the door has nothing that
nobody asked for, and what comes when nobody wants it any more goes back at once.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple

from asterism.errors import PeerError
from asterism.gateways.pubsub.acks import (
    FIRST_NUMBER,
    TAG_CHARACTERS,
    AckId,
    Gathered,
    ack_id_of,
    next_number,
    read_ack_id,
)
from asterism.gateways.pubsub.errors import Code, Refusal
from asterism.gateways.pubsub.holds import LEASE_S, Budget, Held, Holds
from asterism.gateways.pubsub.messages import size_of, write_message
from asterism.gateways.pubsub.terms import Terms
from asterism.sdk.aio import Delivery, Inbox, Node
from asterism.sdk.connection import clock_ms

PULL_MAX: Final = 1_000  # messages in one pull from the broker
WAIT_S: Final = 60.0  # that a pull from the broker waits for a message; then it is made anew
SIZE_FIRST: Final = 16_384  # bytes that a message is taken to have before one was seen
SIZE_LEAST: Final = 128
LARGE_BYTES: Final = 8_192  # a payload over this counts against what one endpoint may have out
LARGE_ALL_BYTES: Final = 24 * 1_048_576  # then the next endpoint is used
ACKNOWLEDGED_MAX: Final = 10_000  # messages of a subscription that are known to be done
SOURCES_MAX: Final = 16  # endpoints of one subscription
PAUSE_S: Final = (0.05, 1.0)  # before the broker is asked again that did not answer: first, most
_GONE: Final = ("no_such_receiver", "no_such_topic", "topic_gone")
log = logging.getLogger("asterism.pubsub")

Forward = Callable[["Feed", Delivery], Awaitable[bool]]
Mend = Callable[["Feed"], Awaitable[None]]


class Handed(NamedTuple):
    """A delivery that a taker has been given."""

    delivery: Delivery
    number: int
    size: int


class Taker:
    """Whoever takes messages of one subscription, as far as there is room for them."""

    def __init__(self, most: int, most_bytes: int, deadline_s: float) -> None:
        self.most = most
        self.most_bytes = most_bytes
        self.deadline_s = deadline_s
        self.out = 0
        self.out_bytes = 0
        self.feed: Feed | None = None

    def has_room_for(self, size: int) -> bool:
        """May it have another message of this size? One that holds nothing may have any."""
        return self.out < self.most and (not self.out or self.out_bytes + size <= self.most_bytes)

    def wanted(self, size: int) -> int:
        """How many messages of this size it would take now."""
        room = self.most - self.out
        if room <= 0:
            return 0
        fitting = (self.most_bytes - self.out_bytes) // size
        return min(room, max(fitting, 0 if self.out else 1))

    def freed(self, size: int) -> None:
        self.out -= 1
        self.out_bytes -= size
        if self.feed is not None:
            self.feed.wake()

    def give(self, handed: Handed) -> None:
        """It has a message."""
        raise NotImplementedError

    def settle(self, is_all: bool) -> None:
        """A pull from the broker is over; ``is_all``: there is nothing more just now."""
        raise NotImplementedError

    def fail(self, refusal: Refusal) -> None:
        """There will be no more messages."""
        raise NotImplementedError

    @property
    def is_impatient(self) -> bool:
        """Has it something already, so that it does not wait for more?"""
        return False


class Endpoint:
    """One endpoint of the subscription at the broker, and the large payloads it has out."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self._large_bytes = 0

    @property
    def is_laden(self) -> bool:
        """Has it so much out that the broker may send it no more?"""
        return self._large_bytes >= LARGE_ALL_BYTES

    def took(self, size: int) -> None:
        if size > LARGE_BYTES:
            self._large_bytes += size

    def freed(self, size: int) -> None:
        if size > LARGE_BYTES:
            self._large_bytes -= size


class Feed:
    """Hands out the messages of one subscription."""

    def __init__(
        self, node: Node, name: str, topic: str, receiver: str, uid: str, generation: int,
        terms: Terms, budget: Budget, forward: Forward, mend: Mend,
    ) -> None:  # fmt: skip
        self.name = name
        self.topic = topic  # as the broker calls it
        self.receiver = receiver
        self.uid = uid
        self.terms = terms
        self.holds = Holds(budget)
        self.generation = generation  # how often it was moved by a seek
        self.used_ms = clock_ms()  # when a client last did something with it
        self._tag = uid[:TAG_CHARACTERS]
        self._node = node
        self._budget = budget
        self._forward = forward
        self._mend = mend
        self._takers: list[Taker] = []
        self._turn = 0
        self._endpoints: list[Endpoint] = []
        self._pulling: tuple[Endpoint, int] | None = None  # by which, and for how many
        self.size = SIZE_FIRST  # bytes that a message is taken to have
        self._confirmed: dict[int, None] = {}  # the numbers of what was acknowledged last
        self._acknowledged: set[int] = set()  # since the pull began that is under way
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._acks = Gathered(self._report)
        self._extensions: dict[float, Gathered] = {}
        self._refusal: Refusal | None = None  # why there will be no more messages
        self._ending: set[asyncio.Task[None]] = set()  # what ends pulls

    # --- takers -----------------------------------------------------------------------------

    def join(self, taker: Taker) -> None:
        """Somebody takes messages from now on."""
        self._check_open()
        taker.feed = self
        self._takers.append(taker)
        self.wake()
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        elif taker.is_impatient:
            self._end_pulling()  # nothing is there, it seems; the next pull is sure of it

    def leave(self, taker: Taker) -> None:
        """Somebody takes no more; what he holds stays his."""
        taker.feed = None
        if taker in self._takers:
            self._takers.remove(taker)
            self._shrink()

    def wake(self) -> None:
        """There may be room that was not there before."""
        self._changed.set()

    def change(self, terms: Terms) -> None:
        """The subscription was updated."""
        self.terms = terms
        for taker in self._takers:
            taker.settle(is_all=False)

    def end(self, refusal: Refusal) -> None:
        """There will be no more messages: the subscription is deleted, or detached."""
        self._refusal = refusal
        takers, self._takers = self._takers, []
        for taker in takers:
            taker.feed = None
            taker.fail(refusal)
        self.holds.release_all()
        self._shrink()

    def will_move(self, generation: int) -> None:
        """A seek comes: what is held is nobody's, and what was acknowledged may come again."""
        self.generation = generation
        self._acknowledged.clear()
        self._confirmed.clear()
        self.holds.release_all()

    @property
    def is_in_use(self) -> bool:
        """Does anybody take messages?"""
        return bool(self._takers)

    def _wanted(self) -> int:
        """How many messages to ask the broker for."""
        wanted = sum(taker.wanted(self.size) for taker in self._takers)
        return min(wanted, PULL_MAX, self._budget.left)

    def _shrink(self) -> None:
        """Less is wanted: a pull for more than that ends."""
        if self._pulling is not None and self._pulling[1] > self._wanted():
            self._end_pulling()

    def _end_pulling(self) -> None:
        if self._pulling is not None:
            task = asyncio.ensure_future(self._end_pull(self._pulling[0]))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end_pull(self, endpoint: Endpoint) -> None:
        with contextlib.suppress(PeerError, TimeoutError, ConnectionError):
            await endpoint.inbox.end_pull()
        self.wake()

    # --- from the broker to the takers --------------------------------------------------------

    async def _run(self) -> None:
        pause_s, pause_max_s = PAUSE_S
        try:
            while self._takers:
                self._changed.clear()
                wanted = self._wanted()
                if wanted <= 0:
                    await self._wait_for_room()
                    continue
                try:
                    await self._serve(wanted)
                    pause_s, _ = PAUSE_S
                except (PeerError, TimeoutError, ConnectionError) as error:
                    log.warning("%s: %s", self.name, error)
                    if isinstance(error, PeerError) and error.code in _GONE:
                        await self._make_anew()
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, pause_max_s)
        except Exception:
            log.exception("%s: an error of ours ends those who take messages", self.name)
            takers, self._takers = self._takers, []
            for taker in takers:
                taker.feed = None
                taker.fail(Refusal(Code.INTERNAL, "Internal error: the log of the door says more."))
        finally:
            self._task = None

    async def _make_anew(self) -> None:
        """The receiver is gone: the subscription was deleted, or somebody else has deleted it."""
        self._endpoints.clear()
        self.holds.release_all()
        try:
            await self._mend(self)
        except Refusal as refusal:
            self.end(refusal)
        except (PeerError, TimeoutError, ConnectionError) as error:
            log.warning("%s: %s", self.name, error)

    async def _wait_for_room(self) -> None:
        for taker in self._takers:
            taker.settle(is_all=True)
        # Another subscription may give back what all together may have, and tells nobody.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if self._budget.left > 0 else PAUSE_S[1]):
                await self._changed.wait()

    async def _serve(self, wanted: int) -> None:
        """One pull from the broker, handed out."""
        endpoint = await self._endpoint()
        if endpoint is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S[1]):
                    await self._changed.wait()
            return
        is_impatient = any(taker.is_impatient for taker in self._takers)
        self._pulling = (endpoint, wanted)
        self._acknowledged.clear()
        try:
            pulled = await endpoint.inbox.pull(wanted, 0 if is_impatient else WAIT_S)
        finally:
            self._pulling = None
        for delivery in pulled:
            endpoint.took(size_of(delivery))
        self._hand_out(endpoint, await self._sifted(endpoint, pulled))
        for taker in list(self._takers):
            taker.settle(is_all=len(pulled) < wanted)

    async def _endpoint(self) -> Endpoint | None:
        """An endpoint that the broker may send more to; none where all are laden."""
        self._endpoints = [held for held in self._endpoints if not held.inbox.is_closed]
        for endpoint in self._endpoints:
            if not endpoint.is_laden:
                return endpoint
        if len(self._endpoints) >= SOURCES_MAX:
            return None
        inbox = await self._node.subscribe(self.topic, group=self.receiver, credit=0)
        self._endpoints.append(Endpoint(inbox))
        return self._endpoints[-1]

    async def _sifted(self, endpoint: Endpoint, pulled: list[Delivery]) -> list[Delivery]:
        """What of the pulled messages is for takers; the rest is acknowledged, or a dead letter."""
        terms, now_ms = self.terms, clock_ms()
        left, over, dead = [], [], []
        for delivery in pulled:
            if not terms.wants(delivery, now_ms):
                over.append(delivery)
            elif terms.is_dead(delivery):
                dead.append(delivery)
            else:
                left.append(delivery)
        if dead:
            moved = await asyncio.gather(*(self._forward(self, delivery) for delivery in dead))
            for delivery, is_moved in zip(dead, moved, strict=True):
                (over if is_moved else left).append(delivery)
        if over:
            for delivery in over:
                endpoint.freed(size_of(delivery))
            self._acks.add(delivery.sequence for delivery in over)
        return left

    def _hand_out(self, endpoint: Endpoint, deliveries: list[Delivery]) -> None:
        """Gives each taker its turn, one message at a time; what nobody has room for goes back."""
        now_s = time.monotonic()
        back, largest = [], 0
        for delivery in deliveries:
            size = size_of(delivery)
            if (
                delivery.sequence in self._acknowledged
            ):  # under an older id, while it was on its way
                endpoint.freed(size)
                continue
            largest = max(largest, size)
            taker = self._next_taker(size)
            if taker is None:
                back.append(delivery.sequence)
                endpoint.freed(size)
                continue
            number = next_number()
            until_s = now_s + taker.deadline_s
            held = Held(number, delivery.attempt, size, taker, endpoint, until_s)
            taker.out += 1
            taker.out_bytes += size
            self.holds.add(delivery.sequence, held, now_s)
            taker.give(Handed(delivery, number, size))
        if deliveries:
            self.size = max(largest, self.size // 2, SIZE_LEAST)
        if back:
            self._extension(0.0).add(back)

    def _next_taker(self, size: int) -> Taker | None:
        takers = self._takers
        for _ in takers:
            self._turn = (self._turn + 1) % len(takers)
            taker = takers[self._turn]
            if taker.has_room_for(size):
                return taker
        return None

    # --- what takers say ----------------------------------------------------------------------

    def write(self, received: Any, handed: Handed, now_ms: int) -> None:
        """Writes a message into a ``ReceivedMessage``."""
        delivery = handed.delivery
        attempt = delivery.attempt
        received.ack_id = ack_id_of(self._tag, delivery.sequence, attempt, handed.number)
        if self.terms.dead_letter:
            received.delivery_attempt = attempt
        write_message(received.message, delivery, now_ms)

    def is_held(self, handed: Handed) -> bool:
        """Is it still its taker's?"""
        return self.holds.is_held(handed.delivery.sequence, handed.number)

    async def acknowledge(self, ack_ids: Iterable[str]) -> list[str]:
        """Acknowledges messages; on disk when it returns. Those whose ack ids are good no more."""
        self._check_open()
        good: dict[int, AckId] = {}
        invalid = []
        for text in dict.fromkeys(ack_ids):
            found = read_ack_id(self._tag, text)
            if found is None or not self._is_good(found):
                invalid.append(text)
            elif found.number not in self._confirmed:  # else it was acknowledged before
                good[found.sequence] = found
        if good:
            refused = await self._acks.confirmed(good)
            # Not before: where the broker does not answer, it may be acknowledged once more.
            for sequence in good:
                self.holds.release(sequence)
            self._note_confirmed(found for found in good.values() if found.sequence not in refused)
        return invalid

    def _is_good(self, found: AckId) -> bool:
        """May this ack id acknowledge? With exactly-once delivery, that of what is held may, of
        what was acknowledged already, and one of a door before this if nobody has the message now.
        """
        if not self.terms.is_exactly_once or found.number in self._confirmed:
            return True
        held = self.holds.get(found.sequence)
        return found.number < FIRST_NUMBER if held is None else held.number == found.number

    def _note_confirmed(self, done: Iterable[AckId]) -> None:
        for found in done:
            if self._pulling is not None and len(self._acknowledged) < ACKNOWLEDGED_MAX:
                self._acknowledged.add(found.sequence)
            if self.terms.is_exactly_once:
                self._confirmed[found.number] = None
        while len(self._confirmed) > ACKNOWLEDGED_MAX:
            del self._confirmed[next(iter(self._confirmed))]

    def count_invalid(self, ack_ids: Iterable[str]) -> int:
        """How many ack ids can acknowledge nothing any more."""
        found = (read_ack_id(self._tag, text) for text in ack_ids)
        return sum(each is None or not self._is_good(each) for each in found)

    async def modify(self, ack_ids: Iterable[str], seconds: int) -> list[str]:
        """Moves deadlines; 0 gives messages back. Those whose ack ids are good no more."""
        self._check_open()
        now_s = time.monotonic()
        invalid: list[str] = []
        back: dict[float, list[AckId]] = {}
        for text in dict.fromkeys(ack_ids):
            found = read_ack_id(self._tag, text)
            held = None if found is None else self.holds.get(found.sequence)
            if found is None or held is None or held.number != found.number:
                invalid.append(text)
            elif seconds:
                self.holds.extend(found.sequence, held, now_s + seconds)
            else:
                back.setdefault(self.terms.pause_s(found.attempt), []).append(found)
        for pause_s, nacked in back.items():
            await self._extension(pause_s).confirmed(each.sequence for each in nacked)
            for each in nacked:
                if self.holds.is_held(each.sequence, each.number):  # and not out anew by now
                    self.holds.release(each.sequence)
        return invalid

    def give_back(self, handed: Iterable[Handed]) -> None:
        """Returns what no client has seen: it goes to others at once."""
        sequences = [each.delivery.sequence for each in handed if self.is_held(each)]
        for sequence in sequences:
            self.holds.release(sequence)
        if sequences:
            self._extension(0.0).add(sequences)

    def _check_open(self) -> None:
        self.used_ms = clock_ms()
        if self._refusal is not None:
            raise self._refusal

    def sweep(self, now_s: float) -> None:
        """Gives back what has passed its deadline, and renews the leases of the rest."""
        if not len(self.holds):
            return
        expired, to_renew = self.holds.sweep(now_s)
        back: dict[float, list[int]] = {}
        for sequence, attempt in expired:
            back.setdefault(self.terms.pause_s(attempt), []).append(sequence)
        for pause_s, sequences in back.items():
            self._extension(pause_s).add(sequences)
        if to_renew:
            self._extension(LEASE_S).add(to_renew)

    # --- to the broker ------------------------------------------------------------------------

    async def _report(self, sequences: list[int]) -> dict[int, str]:
        refused = await self._node.report(self.topic, self.receiver, "processed", sequences)
        self._let_go(sequences)
        return refused

    def _extension(self, seconds: float) -> Gathered:
        """Moves what is out to so many seconds from now; 0 gives it back."""
        found = self._extensions.get(seconds)
        if found is None:

            async def send(sequences: list[int]) -> dict[int, str]:
                refused = await self._node.extend(self.topic, self.receiver, sequences, seconds)
                if seconds < LEASE_S:
                    self._let_go(sequences)
                return refused

            for other in [each for each, held in self._extensions.items() if held.is_idle]:
                del self._extensions[other]
            found = self._extensions[seconds] = Gathered(send)
        return found

    def _let_go(self, sequences: list[int]) -> None:
        for endpoint in self._endpoints:
            endpoint.inbox.let_go(sequences)
