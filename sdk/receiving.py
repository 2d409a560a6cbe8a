"""Receiving from the client's side: an endpoint, its credit, and reports on deliveries. Pure.

I1 The broker may send an endpoint at most its credit. It returns credit by itself when a delivery
   is finished; where nothing but ``sent`` is expected, the client does, once the application has
   taken the message. So ``buffer`` never holds more than ``credit``, and what a lost connection
   left there. Where no credit was given, ``credit`` follows the consumer's pace.
I2 A report waits here until the endpoint is on its topic, and is kept until it is answered.
I3 A delivery that the endpoint holds is in ``buffer``, in ``aside``, in ``taken`` or in a report.
   While the endpoint is off its topic nothing of it is handed out: by the time that it is back,
   others may have it. So too after a stall, until the broker has renewed what waits.
I4 What the broker says has gone is in none of these any more. So a delivery that was handed out,
   is not finished and not in ``taken`` is lost.
"""

from collections import deque
from collections.abc import Collection
from itertools import islice
from operator import itemgetter
from typing import Final

from asterism import limits
from asterism.message import Header, Mode, Status, decode_header
from asterism.sdk.credit import CREDIT_FIRST, AdaptiveCredit
from asterism.sdk.leases import MAX_LEASE_MS, Leases, Looked
from asterism.wire import Verb, pack_body, pack_part

Item = tuple[int, int, bytes, bytes, bytes]
"""A delivery as it came: sequence, attempt, id, header, payload."""

SENT: Final = int(Status.SENT)
RECEIVED: Final = int(Status.RECEIVED)
PROCESSED: Final = int(Status.PROCESSED)
FAILED: Final = int(Status.FAILED)
HEADERS_CACHED_MAX: Final = 4_096

_attempt_of: Final = itemgetter(1)

_headers: dict[bytes, Header] = {}


def header_of(encoded: bytes) -> Header:
    """The header of these bytes, which many messages share; remembered, within a bound."""
    header = _headers.get(encoded)
    if header is None:
        header = decode_header(encoded)
        if len(_headers) >= HEADERS_CACHED_MAX:
            _headers.clear()
        _headers[encoded] = header
    return header


class Report:
    """One REPORT: deliveries of one endpoint that came to the same."""

    __slots__ = ("attempts", "reason", "sequences", "status", "subscription", "tokens")

    def __init__(self, subscription: "Subscription", status: int, reason: str) -> None:
        self.subscription = subscription
        self.status = status
        self.reason = reason
        self.sequences: list[int] = []
        self.attempts: list[int] = []
        self.tokens: list[object] = []  # of those who want to know the answer

    def part(self, number: int) -> bytes:
        subscription = self.subscription
        body: list[object] = [subscription.endpoint, self.status, self.sequences]
        # Whoever is done is done; but a failure, or a first sign, is of one attempt.
        if self.status != PROCESSED:
            body += [self.reason, None, self.attempts]
        return pack_part(Verb.REPORT, number, subscription.topic_bytes, pack_body(body))


class Subscription:
    """One endpoint on a topic, as it is to be made again on every new connection."""

    def __init__(
        self,
        topic: str,
        endpoint: int,
        interests: tuple[str, ...],
        *,
        name: str | None = None,
        group: str | None = None,
        durable: bool | None = None,
        credit: int | None = 0,
        sent_timeout_ms: int | None = None,
        received_timeout_ms: int | None = None,
        max_lease_ms: int | None = MAX_LEASE_MS,
        echo: bool = True,
    ) -> None:
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.endpoint = endpoint
        self.interests = interests
        self.name = name
        self.group = group
        self.durable = durable
        self.echo = echo
        self.adaptive = AdaptiveCredit() if credit is None else None
        self.credit = CREDIT_FIRST if credit is None else credit
        self.leases = Leases(max_lease_ms)
        self.timeouts = (sent_timeout_ms, received_timeout_ms)
        self.receiver = ""  # its name, as the broker says
        self.is_ready = False  # on the topic, on this connection
        self.early = 0  # refusals of what came to the topic before it
        self.was_ready = False
        self.is_over = False
        self.sessions: list[bytes] = []  # those under which it may have been given what it holds
        self.buffer: deque[Item] = deque()
        self.aside: list[Item] = []  # of the buffer, until the broker says whose they are
        # Those of which an attempt above the first came, since nothing waited here; or more.
        self.again: set[int] = set()
        self.is_doubting = False  # may what comes have waited in the socket for as long?
        self.doubts = 0  # how often what waited was put aside since nobody had looked for long
        self.taken: dict[int, int] = {}  # sequence -> attempt: handed out, and not finished
        self.named: dict[int, int] = {}  # the same of all that it said it holds when it came back
        self.arrived = 0  # deliveries that came, in all
        self.returned = 0  # credit that is to be given back
        self.lowered = 0  # credit that is to be taken back
        self.is_paused = False  # all of it, until the consumer asks for something
        self.is_awaited = False  # has the consumer waited since deliveries came last?
        self.reports: dict[tuple[int, str], Report] = {}
        self.resume_ms = 0
        self.failures = 0

    def subscribe_body(self, session: bytes) -> tuple[bytes, int]:
        """What subscribes it, as this session; and the credit to be granted once it is there."""
        fields = (self.endpoint, self.interests, self.name, self.group, self.durable)
        holding: tuple[object, ...] = ()
        self.named = {}
        # A broker that does not know of it is not told what it does by itself.
        echo = () if self.echo else (False,)
        if self.sessions:
            self.named = self._holding()
            holding = ((tuple(self.sessions), list(self.named), list(self.named.values())),)
        credit, later = self.credit, 0
        if self.was_ready:
            # What has been reported comes before credit: it need not be delivered again.
            credit = min(len(self.named), self.credit)
            later = self._credit_for_return() - credit
        self._note_session(session)
        if echo and not holding:
            holding = (None,)
        return pack_body((*fields, credit, *self.timeouts, *holding, *echo)), max(later, 0)

    def _holding(self) -> dict[int, int]:
        """All that it holds and has not finished, as far as the broker knows; the newest of it."""
        held = {item[0]: item[1] for item in self.aside}
        for report in self.reports.values():
            held.update(zip(report.sequences, report.attempts, strict=True))
        held.update(self.taken)
        if len(held) > limits.HOLDING_MAX:
            return dict(list(held.items())[-limits.HOLDING_MAX :])
        return held

    def _note_session(self, session: bytes) -> None:
        if session and session not in self.sessions:
            self.sessions.append(session)
            del self.sessions[: -limits.HOLDING_SESSIONS_MAX]

    def came_back(self, session: bytes, lost: Collection[int]) -> bool:
        """It is on its topic: what it held is its own again, but for these; was anything aside?"""
        self.sessions = [session] if session else []
        for sequence in lost:
            if sequence in self.named and self.taken.get(sequence) == self.named[sequence]:
                del self.taken[sequence]
        gone = set(lost)
        self.buffer.extendleft(item for item in reversed(self.aside) if item[0] not in gone)
        was_aside, self.aside, self.named = bool(self.aside), [], {}
        return was_aside

    # --- deliveries -------------------------------------------------------------------------

    def arrive(self, items: Collection[Item], now_ms: int) -> bool:
        """Deliveries came; is there credit to take back, since they wait for too long?"""
        if self.again and not self.buffer and not self.aside:
            self.again.clear()
        self.buffer += items
        if self.is_doubting:
            self.put_aside()
        if max(map(_attempt_of, items), default=1) > 1:
            self.again.update(item[0] for item in items if item[1] > 1)
            if len(self.again) > limits.HOLDING_MAX:  # of most, nothing waits any more
                waiting = (*self.buffer, *self.aside)
                self.again = {item[0] for item in waiting if item[1] > 1}
        self.arrived += len(items)
        self.is_awaited = False
        if self.adaptive is None or self.is_paused:
            return False
        less = self.adaptive.less(self.credit, self.arrived, len(self.buffer), now_ms)
        self.credit -= less
        self.lowered += less
        return less > 0

    def want_more(self, wanted: int, now_ms: int) -> bool:
        """The consumer would take so many, and has all there is; is there credit to give?"""
        more = 0
        if self.is_paused:
            self.is_paused = False
            self.returned += self.credit
            return True
        if self.adaptive is not None:
            more = self.adaptive.more(self.credit, self.arrived, len(self.taken), wanted, now_ms)
            self.credit += more
            self.returned += more
        return more > 0

    def look(self, now_ms: int, *, all_: bool = False) -> Looked:
        """What is held is renewed, or given up after too long; that is held no longer."""
        waiting = {item[0]: item[1] for item in self.aside}
        waiting.update(
            (item[0], item[1]) for item in self.buffer if header_of(item[3]).expect != SENT
        )
        looked = self.leases.look(waiting, self.taken, now_ms, all_=all_)
        if looked.given_up:
            self.lose(looked.given_up)
            is_left = not looked.given_up.keys().isdisjoint(waiting)
            if not self.is_paused and (is_left or not (self.taken or self.is_awaited)):
                # Its consumer does not even look: what is given up would only come again.
                self.is_paused = True
                self.lowered += self.credit
        return looked

    def lose(self, gone: dict[int, int]) -> None:
        """Deliveries, by sequence and attempt, are not its own any more: nobody gets them here."""
        for sequence, attempt in gone.items():
            if self.taken.get(sequence) == attempt:
                del self.taken[sequence]
        if any(gone.get(item[0]) == item[1] for item in self.buffer):
            self.buffer = deque(item for item in self.buffer if gone.get(item[0]) != item[1])
        if self.aside:
            self.aside = [item for item in self.aside if gone.get(item[0]) != item[1]]

    def doubt(self) -> None:
        """Others may have what waits: it is handed out once the broker has renewed it."""
        self.doubts += 1
        self.is_doubting = True
        self.put_aside()

    def put_aside(self) -> None:
        """All that waits, but what needs no report."""
        kept: deque[Item] = deque()
        for item in self.buffer:
            (kept if header_of(item[3]).expect == SENT else self.aside).append(item)
        self.buffer = kept

    def trust(self, renewed: dict[int, int]) -> bool:
        """The broker has renewed these, by sequence and attempt; does one of them wait again?"""
        self.is_doubting = False
        sure = [item for item in self.aside if renewed.get(item[0]) == item[1]]
        self.aside = [item for item in self.aside if renewed.get(item[0]) != item[1]]
        self.buffer.extendleft(reversed(sure))
        return bool(sure)

    def take_one(self) -> tuple[Item, bool]:
        """Hands out the next delivery, with whether it needs no report."""
        item = self.buffer.popleft()
        is_free = (_headers.get(item[3]) or header_of(item[3])).expect == SENT
        if not is_free:
            self.taken[item[0]] = item[1]
            if len(self.taken) > limits.HOLDING_MAX:
                self._forget_oldest()
        elif self.credit:
            self.returned += 1
        return item, is_free

    def take(self, count: int) -> list[tuple[Item, bool]]:
        """Hands out up to ``count`` deliveries, each with whether it needs no report."""
        buffer = self.buffer
        if count >= len(buffer):
            items: Collection[Item] = buffer
            self.buffer = deque()
        else:
            items = [buffer.popleft() for _ in range(count)]
        headers = {item[3] for item in items}  # few, even of many deliveries
        free = {header for header in headers if header_of(header).expect == SENT}
        held = [item for item in items if item[3] not in free] if len(free) < len(headers) else []
        self.taken.update((item[0], item[1]) for item in held)
        if len(self.taken) > limits.HOLDING_MAX:
            self._forget_oldest()
        if self.credit:
            self.returned += len(items) - len(held)
        return [(item, item[3] in free) for item in items]

    def _forget_oldest(self) -> None:
        """An application that never reports holds no more than can be named."""
        excess = len(self.taken) - limits.HOLDING_MAX
        self.drop(list(islice(self.taken, excess)))

    def drop(self, sequences: Collection[int]) -> None:
        """These are held no longer: finished, or given up."""
        pop = self.taken.pop
        for sequence in sequences:
            pop(sequence, None)

    def _drop_waiting(self, done: set[int]) -> None:
        """Nobody is to do again what is done; the broker returns the credit by itself."""
        self.again -= done
        self.buffer = deque(item for item in self.buffer if item[0] not in done)
        self.aside = [item for item in self.aside if item[0] not in done]

    @property
    def owes_credit(self) -> bool:
        """Is there enough to give back, or nothing else to come?"""
        is_enough = self.returned * 4 >= self.credit or not self.buffer
        return self.lowered > 0 or (self.returned > 0 and is_enough)

    def grant_part(self) -> bytes:
        credit, self.returned = self.returned, 0
        less, self.lowered = self.lowered, 0
        fields = (self.endpoint, min(credit, limits.CREDIT_MAX), less)
        return pack_part(Verb.GRANT, 0, self.topic_bytes, pack_body(fields if less else fields[:2]))

    # --- reports ----------------------------------------------------------------------------

    def report(
        self,
        status: int,
        sequences: Collection[int],
        attempts: Collection[int],
        reason: str = "",
        token: object = None,
        *,
        is_last: bool = True,
    ) -> None:
        """Notes a report; it goes out with the next flush, together with others like it."""
        if status == PROCESSED:
            self.drop(sequences)  # the broker asks for no attempt: all of them are over
            if self.again and not self.again.isdisjoint(sequences):
                self._drop_waiting(self.again.intersection(sequences))
        elif is_last:
            # A newer attempt that has come meanwhile goes on.
            for sequence, attempt in zip(sequences, attempts, strict=True):
                if self.taken.get(sequence) == attempt:
                    del self.taken[sequence]
        report = self.reports.get((status, reason))
        if report is None:
            report = self.reports[status, reason] = Report(self, status, reason)
        report.sequences += sequences
        report.attempts += attempts
        if token is not None:
            report.tokens.append(token)

    def take_reports(self) -> list[Report]:
        """The reports to send now, of at most as many sequences as a frame may have."""
        if len(self.reports) > 1:
            self._drop_outrun()
        taken = []
        for report in self.reports.values():
            while len(report.sequences) > limits.BATCH_MESSAGES_MAX:
                part = Report(self, report.status, report.reason)
                part.sequences = report.sequences[: limits.BATCH_MESSAGES_MAX]
                part.attempts = report.attempts[: limits.BATCH_MESSAGES_MAX]
                del report.sequences[: limits.BATCH_MESSAGES_MAX]
                del report.attempts[: limits.BATCH_MESSAGES_MAX]
                taken.append(part)
            if report.sequences:
                taken.append(report)
        self.reports = {}
        return taken

    def _drop_outrun(self) -> None:
        """Nobody needs to hear that a delivery was received that is processed by now."""
        received = self.reports.get((RECEIVED, ""))
        processed = self.reports.get((PROCESSED, ""))
        if received is None or processed is None:
            return
        outrun = set(processed.sequences)
        kept = [
            pair
            for pair in zip(received.sequences, received.attempts, strict=True)
            if pair[0] not in outrun
        ]
        processed.tokens += received.tokens
        received.sequences = [sequence for sequence, _ in kept]
        received.attempts = [attempt for _, attempt in kept]
        received.tokens = []

    def put_back(self, report: Report) -> None:
        """A report that was not answered is to be sent again."""
        if self.is_over:
            return
        held = self.reports.get((report.status, report.reason))
        if held is None:
            self.reports[report.status, report.reason] = report
        else:
            held.sequences[:0] = report.sequences
            held.attempts[:0] = report.attempts
            held.tokens[:0] = report.tokens

    # --- a lost connection ------------------------------------------------------------------

    def forget_connection(self) -> None:
        """The endpoint is gone. What waits here is kept for it, for a while, until it is back.

        But not what a pull asked for: that will ask again, and count what it gets.
        """
        self.is_ready = self.is_paused = self.is_doubting = False
        self.returned = self.lowered = 0
        self.resume_ms = 0
        kept: deque[Item] = deque()
        for item in self.buffer:
            if _is_last_chance(header_of(item[3])):
                kept.append(item)
            elif self.credit:
                self.aside.append(item)
        self.buffer = kept

    def _credit_for_return(self) -> int:
        """The credit to begin with anew: what is still here gives its own back when taken."""
        self.returned = 0
        kept = sum(header_of(item[3]).expect is Status.SENT for item in self.buffer)
        return max(self.credit - kept, 0)


def _is_last_chance(header: Header) -> bool:
    """Is a delivery one that the broker will not make again after its connection was lost?"""
    return header.expect is Status.SENT or header.mode is Mode.ONLINE
