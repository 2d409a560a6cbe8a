"""The door's side towards the broker: what its clients publish and want, told to the topic.

Messages between clients of this door go straight. The broker is told of each within ``TELL_S``, and
before any PONG: it delivers them to everybody else, and to nobody here (``echo=False``). So order
and speed among these clients do not depend on the broker, and they go on talking while it is away.
Where nobody else is on the topic, the broker is asked whether that is still so (``TELL_ALONE_S``);
if it is, nobody has missed what was published before the question, and nothing need be told.

I1  What clients publish is told in the order in which it was handed out here.
I2  Behind a barrier stands nothing that came before it: the broker has confirmed what was told and
    asked for until then, and what it sent until then has been handed out.
I3  What cannot be told waits within a bound, while no client is read; once the broker has been away
    for ``AWAY_S`` it is dropped, counted and logged, as a server drops what nobody takes.
"""

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack

from asterism import limits
from asterism.errors import PeerError
from asterism.gateways.nats.digest import Digest
from asterism.gateways.nats.headers import UntellableError, attributes_of
from asterism.gateways.nats.protocol import Publication
from asterism.gateways.nats.subjects import UnspeakableError, subject_of
from asterism.message import Header, Mode, Status, decode_header
from asterism.sdk.connection import Receipt
from asterism.sdk.deliveries import REPLY_SUBJECT, REPLY_TOPIC
from asterism.sdk.tickets import UNKNOWN, ClosedError, Outcome

if TYPE_CHECKING:
    from asterism.gateways.nats.server import Server
    from asterism.sdk.aio import Inbox, Node

CREDIT: Final = (
    8_192  # deliveries of the broker that are on their way to this door, for one receiver
)
BATCH: Final = 1_000  # that are handed out before clients get their turn
UNTOLD_BYTES_MAX: Final = 16 * 1_048_576  # that wait to be told; past it no client is read
# To wake a worker for each message would cost more than the message: this is how long one may wait
# for others. Whoever needs to know that it was told (a PONG, a question) has it told at once.
TELL_S: Final = 0.001
TELL_AT: Final = 64  # messages that do not wait for more
# Where nobody else was on the topic a moment ago, this much gathers before the broker is asked
# whether that is still so: a program that subscribes meanwhile gets it later by this long.
TELL_ALONE_S: Final = 0.02
TELL_ALONE_AT: Final = 2_048
TELL_ALONE_BYTES: Final = 1_048_576
ALONE_ASKED_S: Final = 0.25  # between questions whether others are still there
ALONE_S: Final = 1.0  # for so long an answer counts
AWAY_S: Final = 2.0  # the broker may be away before what waits for it is dropped
ROOM_PAUSE_S: Final = 0.05  # before it is tried again whether the broker takes anything
BARRIER_S: Final = 1.0  # a PONG waits for the broker at most
PAUSE_S: Final = 1.0  # before a delivery is given back that nobody here wants any more
PAUSE_MAX_S: Final = 30.0  # between questions that the broker refuses, each twice the one before
# Between two questions for what clients want there is a pause as long as the first took to be
# answered, or so long: however much they come and go, the broker is left half of the time.
ASK_PAUSE_S: Final = 0.05
ASKING_MAX: Final = 16  # queue groups of which the broker is told at a time; others wait
GROUPS_MAX: Final = 1_024  # queue groups that the broker knows of; others are of this door alone
QUESTIONS_MAX: Final = 10_000  # requests of which it is not known yet whether anybody is there;
# past it no client is read
QUESTION_S: Final = 1.0  # for the broker to say so; then somebody may be there
MESSAGE_BYTES: Final = 200  # that a message takes up while it waits, beside its own
PREFIXES_MAX: Final = 16_384  # subjects whose beginning of a header is remembered; then all go
SUBJECT_KEPT_BYTES_MAX: Final = 512  # longer ones are worked out each time
# What more a message has in its header is not told to others than clients of this door; a receipt
# takes a byte or two.
HEADER_BYTES_MAX: Final = limits.HEADER_BYTES_MAX - 16
NOBODY: Final = "~nobody"  # what a door asks for whose clients want nothing
_PLAIN_SUBJECT: Final = re.compile(rb"[\w$-]+(?:\.[\w$-]+){0,31}", re.ASCII)
PLAIN_BYTES_MAX: Final = 1_024
log = logging.getLogger("asterism.nats")
# One for all: each has a buffer of a megabyte, which takes longer to make than to fill.
_pack: Final = msgpack.Packer().pack


class Question(Receipt):
    """The receipt of a request: how it ends tells whether there was anybody to take it."""

    __slots__ = ("late_s", "told")

    told: Callable[[bool], None] | None
    late_s: float

    def settle(self, is_there: bool) -> None:
        """It is known now, or it takes too long; the first one counts."""
        told, self.told = self.told, None
        if told is not None:
            told(is_there)

    def answer(self, start: int, results: Sequence[int | PeerError], accepted: int) -> bool:
        is_whole = super().answer(start, results, accepted)
        if is_whole and not self.accepted_count:
            self.settle(False)  # it was refused, and nothing more will come of it
        return is_whole

    def resolve(self, position: int, outcome: Outcome) -> None:
        super().resolve(position, outcome)
        self.settle(bool(outcome.statuses) or outcome.verdict == UNKNOWN)


class Untold(NamedTuple):
    """A message that the broker was not told of yet; a request that nobody here takes is asked."""

    publication: Publication
    body: bytes
    question: Question | None

    @property
    def weight(self) -> int:
        return self.publication.weight + MESSAGE_BYTES


class Presence:
    """What the door is to the broker, for all clients or for those of one queue group."""

    def __init__(self, exchange: "Exchange", queue: bytes | None) -> None:
        self.digest = Digest()
        self.version = 0  # of what clients want
        self.confirmed = 0  # the version that the broker knows
        self.task: asyncio.Task[None] | None = None  # while the broker is being asked
        self._exchange = exchange
        self._queue = queue
        self._asked: tuple[str, ...] = ()
        # All queue groups of all clients share their turns, and have none of everybody's.
        self._turn = asyncio.Semaphore() if queue is None else exchange.turns
        self._answered = asyncio.Event()  # the broker has confirmed something
        self._inbox: Inbox | None = None
        self._reading: asyncio.Task[None] | None = None
        self.is_behind = False  # has it left something in its inbox?

    def change(self) -> None:
        """Clients have come or gone: the broker is asked anew, at the end of this turn."""
        self.version += 1
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._ask())

    async def until(self, version: int) -> None:
        """Returns when the broker knows what was wanted then."""
        while self.confirmed < version:
            await self._answered.wait()

    async def _ask(self) -> None:
        pause_s = PAUSE_S
        try:
            while self.confirmed < (version := self.version):
                began_s = self._exchange.server.now_s()
                try:
                    async with self._turn:
                        await self._ask_for(self._wanted())
                except ClosedError:
                    return
                except Exception as error:  # whatever it is, clients go on, and it is tried again
                    log.warning("the broker does not take what clients want: %r", error)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_MAX_S)
                    continue
                self.confirmed, pause_s = version, PAUSE_S
                self._answered.set()
                self._answered = asyncio.Event()
                took_s = self._exchange.server.now_s() - began_s
                await asyncio.sleep(min(took_s, ASK_PAUSE_S))
        finally:
            self.task = None
            if self._queue is not None and not self.digest and self._inbox is None:
                self._exchange.forget(self._queue)

    def _wanted(self) -> tuple[str, ...]:
        interests = self.digest.interests()
        return interests if interests or self._queue is not None else (NOBODY,)

    async def _ask_for(self, interests: tuple[str, ...]) -> None:
        if interests == self._asked:
            return
        exchange = self._exchange
        if not interests:
            await self.close()
        elif self._inbox is not None:
            await self._inbox.set_interests(*interests)
        else:
            group = None if self._queue is None else exchange.group_of(self._queue)
            self._inbox = await exchange.node.subscribe(
                exchange.topic,
                *interests,
                group=group,
                durable=None if group is None else False,
                credit=CREDIT,
                echo=False,
            )
            self._reading = asyncio.get_running_loop().create_task(self._read(self._inbox))
        self._asked = interests

    async def close(self) -> None:
        """Leaves the topic."""
        inbox, self._inbox = self._inbox, None
        self.is_behind = False
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if inbox is not None:
            await inbox.close()

    async def _read(self, inbox: "Inbox") -> None:
        """Hands out what the broker sends, until the inbox is over."""
        while True:
            try:
                await self._read_some(inbox)
            except (ClosedError, PeerError) as error:
                self.is_behind = False
                log.warning("off the topic %s: %s", self._exchange.topic, error)
                if self._inbox is inbox:
                    self._inbox, self._asked = None, ()
                    asyncio.get_running_loop().call_later(PAUSE_S, self.change)
                return
            except Exception:  # one message must not end all that come behind it
                log.exception("what the broker has sent was not handed out")
                await asyncio.sleep(PAUSE_S)

    async def _read_some(self, inbox: "Inbox") -> None:
        deliveries = await inbox.batch(BATCH, None)
        self.is_behind = True
        taken, unwanted = await self._exchange.server.hand_out(deliveries, self._queue)
        if taken:
            await inbox.processed(taken)
        for delivery in unwanted:
            asyncio.get_running_loop().call_later(PAUSE_S, self._give_back, delivery)
        self.is_behind = len(deliveries) == BATCH
        await asyncio.sleep(0)

    def _give_back(self, delivery: Any) -> None:
        self._exchange.keep(delivery.give_back())


class Exchange:
    """The broker, as this door uses it."""

    def __init__(self, server: "Server", node: "Node", topic: str) -> None:
        self.server = server
        self.node = node
        self.topic = topic
        self.untold = 0  # messages that others than clients of this door were not told of
        self.turns = asyncio.Semaphore(ASKING_MAX)
        self._everybody = Presence(self, None)
        self._groups: dict[bytes, Presence] = {}
        self._untold: list[Untold] = []  # to be told, in this order, if there is anybody
        self._untold_bytes = 0
        self._taken = 0  # how many have ever been told, or need not be
        # While the broker is asked whether there is anybody, so many of them hang on its answer.
        self._in_doubt = 0
        self._doubt: asyncio.Task[None] | None = None
        self._is_flushing = False  # at the end of this turn
        self._timer: asyncio.TimerHandle | None = None  # until when it is told at the latest
        self._asked: deque[Question] = deque()  # the oldest first, settled ones among them
        self._unsettled = 0
        self._barrier: list[Callable[[], None]] = []
        self._barring: asyncio.Task[None] | None = None
        self._is_awaiting_room = False
        self._is_crowded = False  # are there more queue groups than the broker is told of?
        self._tasks: set[asyncio.Task[None]] = set()
        self._stuck_s = 0.0  # since when the broker takes nothing; 0: it does
        self._is_away = False
        self._alone_until_s = 0.0  # for so long nobody else is taken to be on the topic
        self._ask_alone_at_s = 0.0
        self._prefixes: dict[bytes, bytes | None] = {}
        self._plain = Header(Mode.ONLINE, Status.SENT, ("a",))
        self._asking = Header(Mode.ONLINE, Status.SENT, ("a",), receipt=True)
        self._reply_topic = _pack(REPLY_TOPIC) + _pack(topic)
        self._reply_subject = _pack(REPLY_SUBJECT)

    async def begin(self) -> None:
        """Is on the topic when it returns."""
        self._everybody.change()
        assert self._everybody.task is not None
        await self._everybody.task

    async def end(self) -> None:
        for presence in (self._everybody, *self._groups.values()):
            if presence.task is not None:
                presence.task.cancel()
        for task in self._tasks:
            task.cancel()

    def keep(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Does something beside all else; a task that nobody holds may be forgotten midway."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._drop_task)
        return task

    def _drop_task(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("beside all else: %r", error)

    # --- what clients want ------------------------------------------------------------------

    def want(self, interest: str, queue: bytes | None) -> Presence | None:
        """Asks the broker for what somebody wants; by what it was asked, or nothing if it was not:
        then it is for clients of this door alone."""
        presence = self._presence(queue)
        if presence is not None:
            presence.digest.add(interest)
            presence.change()
        return presence

    @staticmethod
    def want_no_more(interest: str, presence: Presence) -> None:
        presence.digest.remove(interest)
        presence.change()

    def _presence(self, queue: bytes | None) -> Presence | None:
        if queue is None:
            return self._everybody
        presence = self._groups.get(queue)
        if presence is None and self.group_of(queue) is not None:
            if len(self._groups) >= GROUPS_MAX:
                if not self._is_crowded:
                    self._is_crowded = True
                    log.warning("more than %d queue groups: new ones are of this door", GROUPS_MAX)
                return None
            self._is_crowded = False
            presence = self._groups[queue] = Presence(self, queue)
        return presence

    def forget(self, queue: bytes) -> None:
        """A queue group has no members here any more."""
        self._groups.pop(queue, None)

    @staticmethod
    def group_of(queue: bytes) -> str | None:
        """The name of a queue group at the broker, if it can have one there."""
        try:
            name = queue.decode()
        except UnicodeDecodeError:
            return None
        is_usable = len(queue) <= 255 and not name.startswith("~") and name != "work-queue"
        return name if is_usable else None

    # --- what clients publish ---------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Does too much wait to be told, or to be answered?"""
        return self._untold_bytes > UNTOLD_BYTES_MAX or self._unsettled >= QUESTIONS_MAX

    def tell(self, publication: Publication, body: bytes) -> None:
        """Has everybody else told of a message, with the next ``flush``."""
        self._add(Untold(publication, body, None))
        if self._timer is None:
            wait_s = TELL_ALONE_S if self._is_alone() else TELL_S
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.flush)

    def end_turn(self) -> None:
        """Tells what has gathered, if it is much: a little may wait for more."""
        if len(self._untold) < TELL_AT and self._untold_bytes < TELL_ALONE_BYTES:
            return
        is_much = len(self._untold) >= TELL_ALONE_AT or self._untold_bytes >= TELL_ALONE_BYTES
        if is_much or not self._is_alone():
            self.flush()

    def _is_alone(self) -> bool:
        """Was nobody else on the topic a moment ago?"""
        return self.server.now_s() < self._alone_until_s

    def _find_out_alone(self, now_s: float) -> None:
        """Asks now and then, while it tells something, whether anybody else is on the topic."""
        if now_s >= self._ask_alone_at_s:
            self._ask_alone_at_s = now_s + ALONE_ASKED_S
            self.keep(self._ask_alone())

    async def _ask_alone(self) -> None:
        with contextlib.suppress(TimeoutError, PeerError, ClosedError):
            await self._pass_through(BARRIER_S)

    async def _pass_through(self, timeout_s: float) -> None:
        """Returns when the broker has handled what it was told until now."""
        is_alone = await self.node.pass_through(self.topic, timeout=timeout_s)
        self._alone_until_s = self.server.now_s() + ALONE_S if is_alone else 0.0

    def ask(self, publication: Publication, body: bytes, answer: Callable[[bool], None]) -> None:
        """Tells of a request, and says whether there was anybody to take it.

        Its client says nothing more but requests until it knows.
        """
        question = Question(self.node, self.topic, self._asking, 1, b"")
        question.late_s = self.server.now_s() + QUESTION_S
        self._unsettled += 1

        def settle(is_there: bool) -> None:
            self._unsettled -= 1
            answer(is_there)
            self.server.schedule()

        question.told = settle
        self._asked.append(question)
        self._add(Untold(publication, body, question))
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def _add(self, untold: Untold) -> None:
        self._untold.append(untold)
        self._untold_bytes += untold.weight

    def look(self) -> None:
        """Gives up questions that take too long: whoever asked has waited for them."""
        asked, now_s = self._asked, self.server.now_s()
        while asked and (asked[0].told is None or asked[0].late_s <= now_s):
            asked.popleft().settle(True)

    def _header(self, publication: Publication, body: bytes) -> bytes | None:
        """The header of a message at the broker; ``None`` where it cannot be told there."""
        prefix = self._prefix(publication.subject)
        if prefix is None:
            return None
        if not publication.header_size and publication.reply is None:
            publication.header = b"\x93" + prefix
            return publication.header
        try:
            attributes = b""
            count = 0
            if publication.header_size:
                found = attributes_of(body[: publication.header_size])
                count = len(found)
                attributes = b"".join(_pack(name) + _pack(value) for name, value in found.items())
            if publication.reply is not None:
                reply = _pack(_subject_of(publication.reply))
                attributes += self._reply_topic + self._reply_subject + reply
                count += 2
        except (UntellableError, UnspeakableError):
            return None
        size = bytes((0x80 + count,)) if count < 16 else b"\xde" + count.to_bytes(2, "big")
        header = b"\x94" + prefix + size + attributes
        fits = count <= limits.ATTRIBUTES_MAX and len(header) <= HEADER_BYTES_MAX
        return header if fits else None

    def _prefix(self, subject: bytes) -> bytes | None:
        """What headers of this subject begin with, behind the number of their fields."""
        if subject in self._prefixes:
            return self._prefixes[subject]
        try:
            packed = _pack([_subject_of(subject)])
            prefix: bytes | None = bytes((Mode.ONLINE, Status.SENT)) + packed
        except UnspeakableError:
            prefix = None
        if len(subject) <= SUBJECT_KEPT_BYTES_MAX:
            if len(self._prefixes) >= PREFIXES_MAX:
                self._prefixes.clear()
            self._prefixes[subject] = prefix
        return prefix

    def flush(self) -> None:
        """Tells what has gathered; or asks, where there seems to be nobody to be told."""
        self._is_flushing = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._untold or self._doubt is not None:
            return  # what has gathered is flushed when the answer comes that is under way
        if self._is_alone() and not self._is_away:
            self._in_doubt = len(self._untold)
            self._doubt = self.keep(self._settle_doubt())
        else:
            self._tell_all()

    async def _settle_doubt(self) -> None:
        try:
            await self._pass_through(BARRIER_S)
        except (TimeoutError, PeerError, ClosedError) as error:
            self._alone_until_s = 0.0
            log.debug("it is not known whether there is anybody to be told: %s", error)
        finally:
            self._doubt = None
        if self._is_alone():
            self._stuck_s = 0.0
            for question in self._take_off(self._in_doubt):
                question.settle(False)
            self.server.schedule()
        else:
            self._in_doubt = 0
            self._tell_all()
        if self._timer is None:
            self.flush()

    def _take_off(self, count: int) -> list[Question]:
        """Takes off the first of what is to be told; the requests among them."""
        taken = self._untold[:count]
        self._taken += len(taken)
        del self._untold[:count]
        self._in_doubt = max(0, self._in_doubt - count)
        self._untold_bytes -= sum(untold.weight for untold in taken)
        return [untold.question for untold in taken if untold.question is not None]

    def _tell_all(self) -> None:
        """Tells all that there is, in order, as far as the broker takes it."""
        while self._untold and not self._is_away:
            question = self._untold[0].question
            if question is None:
                count = next(
                    (at for at, one in enumerate(self._untold) if one.question is not None),
                    len(self._untold),
                )
                is_told = self._tell(self._untold[:count])
            else:
                count = 1
                is_told = self._ask(self._untold[0], question)
            if not is_told:
                break
            self._take_off(count)
        now_s = self.server.now_s()
        if not self._untold:
            self._stuck_s = 0.0
            self._find_out_alone(now_s)
            return
        self._stuck_s = self._stuck_s or now_s
        if self._is_away or now_s - self._stuck_s > AWAY_S:
            self._drop()
        elif not self._is_awaiting_room:
            self._is_awaiting_room = True
            self.keep(self._await_room())

    def _tell(self, some: list[Untold]) -> bool:
        """Tells of messages, if the broker takes them all."""
        messages = self._encoded(some)
        receipt = Receipt(self.node, self.topic, self._plain, len(messages), b"")
        if messages and not self._forward(receipt, messages):
            return False
        self.untold += len(some) - len(messages)
        return True

    def _ask(self, untold: Untold, question: Question) -> bool:
        """Tells of a request, if the broker takes it; its answer says whether anybody does."""
        publication, body, _ = untold
        header = self._header(publication, body)
        if header is None:
            self.untold += 1
            # Not from within: its client goes on at once, and may have more to tell.
            asyncio.get_running_loop().call_soon(question.settle, False)
            return True
        # Read and written anew, since only now it asks for a receipt.
        read = decode_header(header)
        whole = Header(read.mode, read.expect, read.subjects, read.attributes, receipt=True)
        return self._forward(question, [(whole.encoded, body[publication.header_size : -2])])

    def _forward(self, receipt: Receipt, messages: list[tuple[bytes, bytes]]) -> bool:
        size = sum(len(header) + len(payload) for header, payload in messages)
        try:
            return self.node.forward(receipt, messages, size)
        except ClosedError:
            return False

    def _encoded(self, untold: Iterable[Untold]) -> list[tuple[bytes, bytes]]:
        """Headers and payloads, as the broker has them, of what can be told there."""
        messages = []
        for publication, body, _ in untold:
            header = publication.header or self._header(publication, body)
            if header is not None:
                messages.append((header, body[publication.header_size : -2]))
        return messages

    async def _await_room(self) -> None:
        """Goes on telling once the broker has handled what it was told before."""
        try:
            await self._pass_through(AWAY_S)
        except (TimeoutError, PeerError, ClosedError):
            await asyncio.sleep(ROOM_PAUSE_S)
        finally:
            self._is_awaiting_room = False
        self.flush()
        self.server.schedule()

    def _drop(self) -> None:
        if not self._is_away:
            self._is_away = True
            log.warning(
                "the broker is away: what clients publish reaches this door's clients alone"
            )
            self.keep(self._until_back())
        self.untold += len(self._untold)
        for question in self._take_off(len(self._untold)):
            question.settle(False)

    async def _until_back(self) -> None:
        while self._is_away:
            try:
                await self._pass_through(AWAY_S)
                self._is_away = False
                self._stuck_s = 0.0
                log.info("the broker is back; %d messages were not told to others", self.untold)
            except (TimeoutError, PeerError):
                await asyncio.sleep(BARRIER_S)
            except ClosedError:
                return

    # --- barriers ---------------------------------------------------------------------------

    def after_barrier(
        self, reached: Callable[[], None], wanted: Iterable[tuple[Presence, int]] = ()
    ) -> None:
        """Calls back when everything that came before this has been handed on, both ways.

        ``wanted`` has what was asked for before, by whom and which version. What others ask for is
        not waited for: it may take as long as they like.
        """
        late = [(presence, version) for presence, version in wanted if presence.confirmed < version]
        if late:
            self.keep(self._bar_behind(late, reached))
        else:
            self._bar_with_others(reached)

    async def _bar_behind(
        self, late: list[tuple[Presence, int]], reached: Callable[[], None]
    ) -> None:
        try:
            async with asyncio.timeout(BARRIER_S):
                for presence, version in late:
                    await presence.until(version)
        except TimeoutError:
            log.debug("the broker has not confirmed yet what a client wants")
        self._bar_with_others(reached)

    def _bar_with_others(self, reached: Callable[[], None]) -> None:
        self._barrier.append(reached)
        if self._barring is None:
            self._barring = self.keep(self._bar())

    async def _bar(self) -> None:
        try:
            while self._barrier:
                reached, self._barrier = self._barrier, []
                try:
                    if not self._is_away:
                        async with asyncio.timeout(BARRIER_S):
                            await self._tell_through()
                            await self._hand_out_all()
                except (TimeoutError, PeerError, ClosedError) as error:
                    log.debug("a barrier was not confirmed: %s", error)
                for each in reached:
                    each()
        finally:
            self._barring = None

    async def _tell_through(self) -> None:
        """Returns when the broker has handled all that was published until now, or has said that
        there is nobody to be told of it."""
        behind = self._taken + len(self._untold)
        before = self._doubt
        self.flush()
        doubt = self._doubt
        if doubt is not None:
            await asyncio.wait([doubt])  # it gives up by itself
            if doubt is not before and self._is_alone():
                return  # its answer came behind all that
        is_told = False
        while not is_told and not self._is_away:
            self._tell_all()  # as much as there is room for
            is_told = self._taken >= behind
            await self._pass_through(BARRIER_S)

    async def _hand_out_all(self) -> None:
        """Has whoever reads the inboxes hand out what is in them."""
        await asyncio.sleep(0)
        while any(each.is_behind for each in (self._everybody, *self._groups.values())):
            await asyncio.sleep(0)


def _subject_of(subject: bytes) -> str:
    if len(subject) <= PLAIN_BYTES_MAX and _PLAIN_SUBJECT.fullmatch(subject):
        return subject.decode().replace(".", "/")
    return subject_of(subject)
