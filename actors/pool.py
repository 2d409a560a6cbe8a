"""The pool: messages of which one receiver takes one copy (push, and durable with one receiver).

Waiting messages with the same audience form a *lane*; a receiver takes from every lane whose
audience it is in, so that a message nobody here wants holds up only its own lane. A lane keeps a
window of its head in memory; what lies behind is found again by a walk over the rows.

I1 Every waiting durable message of rank below ``frontier`` has been seen, and is in its lane's
   window unless its rank is at or above that lane's ``spill``. What has not been seen is on disk.
I2 ``live`` holds every delivery of the pool that is in memory, under its sequence: waiting, set
   aside behind an ordering key, or out. A walk skips what is there.
I3 No natural row below ``low_sequence`` waits or is out: a walk never starts before it, so that it
   does not read the remains of what was consumed long ago.
I4 ``plain`` holds what is out of runs (see ``runs.py``); a walk skips that too.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import groupby, islice
from typing import TYPE_CHECKING

from asterism import limits
from asterism.actors.delivery import MEMORY_KIND, POOL_KIND, Delivery, Message
from asterism.actors.queue import Audience, KeyLocks, Window
from asterism.actors.receivers import Receiver, Receivers
from asterism.actors.runs import Run, Runs
from asterism.commands import Incoming
from asterism.message import Header, Status
from asterism.rows import Rows
from asterism.storage.keys import (
    NONE_RANK,
    POOL,
    RANK_END,
    WORK,
    TopicKeys,
    number_at_end,
)
from asterism.storage.records import (
    HAS_PRODUCER,
    NATURAL,
    PLACED,
    PLAIN_BEGIN,
    PLAIN_HEADER,
    PRODUCER_BYTES,
    PlainBegin,
    Record,
    decode_record,
    read_plain_begin,
    read_plain_producer,
)

if TYPE_CHECKING:
    from asterism.actors.leases import Page

_POSITION = (1 << 64) - 1


class Lane:
    """Waiting messages of one audience."""

    __slots__ = ("audience", "memory", "ready", "runs", "spill", "window")

    def __init__(self, audience: Audience) -> None:
        self.audience = audience
        self.window = Window()  # durable
        self.memory = Window()  # push
        self.runs = Runs()  # those behind all in the windows
        self.spill: int | None = None  # durable ones from this rank on are on disk only
        self.ready: dict[Receiver, None] = {}  # of the audience, those that had credit when asked

    def head(self, frontier: int) -> Delivery | None:
        """The next to go, unless one that is not in memory comes before it."""
        window, memory = self.window, self.memory
        first = window.head() if window.ordered or window.early else None
        if memory.ordered or memory.early:
            pushed = memory.head()
            if pushed is not None and (first is None or pushed.rank < first.rank):
                first = pushed
        if first is None or first.rank >= (frontier if self.spill is None else self.spill):
            return None
        return first

    def window_of(self, delivery: Delivery) -> Window:
        return self.memory if delivery.message.kind == MEMORY_KIND else self.window

    def take(self, delivery: Delivery) -> None:
        """Takes one that waits here: what ``head`` returned, or what a blocking topic must send."""
        self.window_of(delivery).remove(delivery)

    def next_ready(self, last_holder: int = 0) -> Receiver | None:
        """The receiver whose turn it is among those with credit; another than the last holder of
        what goes out again, if there is one."""
        ready = self.ready
        if last_holder and len(ready) > 1:
            for receiver in ready:
                if receiver.credit > 0 and receiver.number != last_holder:
                    del ready[receiver]
                    ready[receiver] = None
                    return receiver
        while ready:
            receiver = next(iter(ready))
            if len(ready) == 1 and receiver.credit > 0:
                return receiver
            del ready[receiver]
            if receiver.credit > 0:
                ready[receiver] = None
                return receiver
        return None


class Pool:
    """All lanes of a topic."""

    def __init__(
        self,
        rows: Rows,
        keys: TopicKeys,
        receivers: Receivers,
        header_of: Callable[[bytes], Header],
        returned: Callable[[int, int], tuple[int, int]],
        has_returned: Callable[[int, range], bool],
        memory: dict[int, Message],
    ) -> None:
        self._rows = rows
        self._keys = keys
        self._receivers = receivers
        self.header_of = header_of
        self._returned = returned
        self._has_returned = has_returned
        self._memory = memory  # push and online messages that have their objects
        self.memory_in_order = True  # False once a run was unrolled behind later ones
        self.pushed_count = 0  # push messages in runs
        self._lanes: dict[Audience, Lane] = {}
        self._epoch = 0
        self._window_max = limits.window_of(0)
        self.live: dict[int, Delivery] = {}
        self.plain: dict[int, Page] = {}  # what is out of runs, by sequence
        self.locks = KeyLocks()
        self.frontier = RANK_END
        self.low_sequence = 0
        self.unfinished = False  # a walk stopped for this turn and wants another

    # --- lanes ----------------------------------------------------------------------------

    def lane_of(self, header: Header, pushed: bool) -> Lane:
        if self._epoch != self._receivers.epoch:
            self._regroup()
        audience = self._receivers.audience(header.subjects)
        if pushed:
            audience = without_work(audience)
        lane = self._lanes.get(audience)
        return self._new_lane(audience) if lane is None else lane

    def _new_lane(self, audience: Audience) -> Lane:
        if len(self._lanes) >= limits.LANES_MAX:
            self._forget_empty_lanes()
        lane = self._lanes[audience] = Lane(audience)
        self._window_max = limits.window_of(len(self._lanes))
        for number in audience:
            receiver = self._receivers.by_number[number]
            receiver.lanes[lane] = None
            if receiver.credit:
                lane.ready[receiver] = None
        return lane

    def _forget_empty_lanes(self) -> None:
        for lane in list(self._lanes.values()):
            if lane.spill is None and not lane.window and not lane.memory and not lane.runs:
                self._forget_lane(lane)

    def _forget_lane(self, lane: Lane) -> None:
        del self._lanes[lane.audience]
        self._window_max = limits.window_of(len(self._lanes))
        for number in lane.audience:
            receiver = self._receivers.by_number.get(number)
            if receiver is not None:
                receiver.lanes.pop(lane, None)

    def _regroup(self) -> None:
        """Audiences changed: sorts what waits in memory into lanes anew."""
        self._epoch = self._receivers.epoch
        lanes = list(self._lanes.values())
        for lane in lanes:
            self.unroll(lane)
        complete = self.frontier == RANK_END and all(lane.spill is None for lane in lanes)
        low = self._low_rank()
        for lane in lanes:
            self._forget_lane(lane)
        for lane in lanes:
            for delivery in lane.memory.drain():
                self.lane_of(delivery.message.header, True).memory.push(delivery)
            waiting = lane.window.drain()
            if complete:
                for delivery in waiting:
                    self.keep(delivery, self.lane_of(delivery.message.header, False))
            else:
                for delivery in waiting:
                    del self.live[delivery.sequence]
        if not complete:
            self.frontier = low
        for delivery in self.locks.regroup(self._audience_of):
            self.offer(delivery)

    def _audience_of(self, delivery: Delivery) -> Audience:
        message = delivery.message
        audience = self._receivers.audience(message.header.subjects)
        return without_work(audience) if message.kind == MEMORY_KIND else audience

    def lanes_in_use(self) -> dict[Lane, None]:
        """The lanes in which something waits, by the audiences of now."""
        if self._epoch != self._receivers.epoch:
            self._regroup()
        return {
            lane: None
            for lane in self._lanes.values()
            if lane.window or lane.memory or lane.runs or lane.spill is not None
        }

    def lanes(self) -> Iterable[Lane]:
        return self._lanes.values()

    def _low_rank(self) -> int:
        """Below this rank nothing waits on disk that is not in ``live`` or set aside."""
        low = self.frontier
        for lane in self._lanes.values():
            head = lane.window.head()
            if head is not None:
                low = min(low, head.rank)
            elif lane.runs:
                low = min(low, NONE_RANK | lane.runs[0].first)
            if lane.spill is not None:
                low = min(low, lane.spill)
        return low

    # --- runs -----------------------------------------------------------------------------

    def add_run(self, run: Run, lane: Lane) -> None:
        """Messages were accepted together: they wait in memory as far as there is room."""
        if lane.spill is not None or self.frontier != RANK_END:
            return  # behind what is on disk alone
        window = lane.window
        room = self._window_max - len(window.ordered) - len(window.early) - lane.runs.total
        if room < len(run.messages):
            lane.spill = NONE_RANK | (run.first + max(room, 0))
            if room <= 0:
                return
            run.messages = run.messages[:room]
        lane.runs.add(run)

    def add_pushed_run(self, run: Run, lane: Lane) -> bool:
        """Push messages were accepted together: they wait; False where others are between."""
        if lane.spill is not None or self.frontier != RANK_END:
            return False
        lane.runs.add(run)
        self.pushed_count += len(run)
        return True

    def refill_runs(self, lane: Lane) -> bool:
        """Reads on for a lane, from where it goes on on disk, as runs, as far as the messages are
        plain; were there any?"""
        # Where nobody has read yet, what is for others must not be passed over.
        unseen = lane.spill is None
        start = self.frontier if lane.spill is None else lane.spill
        if start == RANK_END or (unseen and len(self._lanes) > 1):
            return False
        if not unseen and self.frontier != RANK_END:
            return False
        keys, rows = self._keys, self._rows
        if any(True for _ in rows.scan(keys.waiting(POOL, start), keys.waiting_end(POOL))):
            return False  # what was placed there comes between
        position = start & _POSITION if start >= NONE_RANK else 0
        first, end = keys.pool(max(self.low_sequence, position)), keys.range_of("m")[1]
        read = _RunReader(self, lane, unseen)
        stopped = read.through(rows.scan(first, end), min(limits.SCAN_ROWS_MAX, self._window_max))
        if unseen:
            self.frontier = stopped
        else:
            lane.spill = None if stopped == RANK_END else stopped
        lane.runs.add_all(read.runs)
        return bool(read.runs)

    def may_go_in_runs(self, sequences: range) -> bool:
        """Is none of these in somebody's hands, nor was before a restart?"""
        return (
            self.plain.keys().isdisjoint(sequences)
            and self.live.keys().isdisjoint(sequences)
            and not self._has_returned(POOL, sequences)
        )

    def unroll(self, lane: Lane) -> None:
        """Gives every message of a lane's runs its objects."""
        while lane.runs:
            run = lane.runs.take_run()
            kind, window = (MEMORY_KIND, lane.memory) if run.in_memory else (POOL_KIND, lane.window)
            for sequence, incoming in enumerate(run.messages[run.taken :], run.first):
                delivery = self._unrolled(sequence, incoming, run.accepted_ms, run.expires_ms, kind)
                if run.producer is not None:
                    _ask_for_receipt(delivery, run.producer, run.number + sequence - run.first)
                self.live[sequence] = delivery
                window.push(delivery)
                if run.in_memory:
                    self._memory[sequence] = delivery.message
            if run.in_memory:
                self.pushed_count -= len(run)
                self.memory_in_order = False

    def _unrolled(
        self, sequence: int, incoming: Incoming, accepted_ms: int, expires_ms: int, kind: int
    ) -> Delivery:
        message_id, encoded, payload = incoming
        header = self.header_of(encoded)
        message = Message(sequence, message_id, header, payload, accepted_ms, expires_ms, kind)
        return Delivery(message, NONE_RANK | sequence)

    def unroll_all(self) -> None:
        """Gives everything that is in runs, waiting or out, its objects."""
        for lane in self._lanes.values():
            self.unroll(lane)
        for sequence, page in self.plain.items():
            incoming = page.messages[sequence - page.first]
            page.left = 0
            delivery = self._unrolled(
                sequence, incoming, page.accepted_ms, page.expires_ms, POOL_KIND
            )
            if page.producer is not None:
                _ask_for_receipt(delivery, page.producer, page.told_first + sequence - page.first)
            delivery.waits = False
            delivery.attempts = 1
            delivery.receiver = receiver = page.receiver
            delivery.holder = receiver.number
            delivery.sent_ms = page.started_ms
            delivery.status = Status.SENT
            delivery.endpoint = page.endpoint
            delivery.page = page
            page.deliveries[sequence] = receiver.held[sequence] = delivery
            receiver.out_of_runs -= 1
            self.live[sequence] = delivery
        self.plain.clear()

    def wake(self, receiver: Receiver) -> None:
        """A receiver has credit again."""
        for lane in receiver.lanes:
            lane.ready[receiver] = None

    # --- waiting --------------------------------------------------------------------------

    def offer(self, delivery: Delivery, lane: Lane | None = None) -> Lane:
        """A delivery waits: in memory if it is near enough to the head, else on disk alone."""
        message = delivery.message
        pushed = message.kind == MEMORY_KIND
        if lane is None:
            lane = self.lane_of(message.header, pushed)
        if pushed:
            self._make_way(delivery, lane)
            self.live[delivery.sequence] = delivery
            lane.memory.push(delivery)
        elif delivery.rank < (self.frontier if lane.spill is None else lane.spill):
            self.keep(delivery, lane)
        else:
            self.live.pop(delivery.sequence, None)
        return lane

    def keep(self, delivery: Delivery, lane: Lane) -> None:
        """A durable delivery waits in its lane's window; what is too far behind goes to disk."""
        if lane.spill is not None and delivery.rank >= lane.spill:
            self.live.pop(delivery.sequence, None)
            return
        self._make_way(delivery, lane)
        self.live[delivery.sequence] = delivery
        window = lane.window
        window.push(delivery)
        if len(window.ordered) + len(window.early) > self._window_max:
            cut = lane.window.cut(max(self._window_max // 2, 1))
            if cut:
                lane.spill = cut[0].rank
            for dropped in cut:
                del self.live[dropped.sequence]

    def _make_way(self, delivery: Delivery, lane: Lane) -> None:
        """What waits outside a lane's runs waits before them: see ``runs.py``."""
        if lane.runs and delivery.rank > (NONE_RANK | lane.runs[0].first):
            self.unroll(lane)

    def best_for(self, receiver: Receiver) -> tuple[Lane, Delivery] | None:
        """The delivery of least rank that this receiver may take, walking the rows if it must."""
        if self._epoch != self._receivers.epoch:
            self._regroup()
        best = self._best_in_memory(receiver)
        if best is None and self._goes_on(receiver):
            # Even a walk that finds nothing may show that what is in memory comes first.
            self.fill_for(receiver)
            best = self._best_in_memory(receiver)
            # What was read may all be for others: what is for this one comes later.
            self.unfinished |= best is None and self._goes_on(receiver)
        return best

    def _goes_on(self, receiver: Receiver) -> bool:
        """Is there more on disk than this receiver has seen?"""
        return self.frontier != RANK_END or any(lane.spill is not None for lane in receiver.lanes)

    def goes_on(self, lane: Lane) -> bool:
        """May there be more of this lane on disk?"""
        return lane.spill is not None or self.frontier != RANK_END

    def _best_in_memory(self, receiver: Receiver) -> tuple[Lane, Delivery] | None:
        best: tuple[Lane, Delivery] | None = None
        for lane in receiver.lanes:
            if lane.runs:
                self.unroll(lane)
            head = lane.head(self.frontier)
            if head is not None and (best is None or head.rank < best[1].rank):
                best = (lane, head)
        # What lies behind a spill of another of its lanes may come first.
        if best is not None and len(receiver.lanes) > 1:
            rank = best[1].rank
            for lane in receiver.lanes:
                if lane.spill is not None and lane.spill <= rank:
                    return None
        return best

    def first(self) -> Delivery | None:
        """The delivery of least rank, whether or not anybody could take it."""
        if self._epoch != self._receivers.epoch:
            self._regroup()
        while True:
            lanes = list(self._lanes.values())
            for lane in lanes:
                self.unroll(lane)
            heads = [head for lane in lanes if (head := lane.head(self.frontier)) is not None]
            best = min(heads, key=rank_of_delivery, default=None)
            behind = [
                lane
                for lane in lanes
                if lane.spill is not None and (best is None or lane.spill <= best.rank)
            ]
            if not behind and (best is not None or self.frontier == RANK_END):
                return best
            budget, found = limits.SCAN_ROWS_MAX, False
            for lane in behind:
                budget, added = self._refill(lane, budget)
                found |= added
            if not behind:
                found = self._advance(budget)
            if not found and self.unfinished:
                return None

    def fill_for(self, receiver: Receiver) -> None:
        """Reads on from disk for a receiver that found nothing."""
        budget = limits.SCAN_ROWS_MAX
        filled = False
        for lane in list(receiver.lanes):
            if lane.spill is not None and len(lane.window) < limits.WINDOW_LOW:
                budget, found = self._refill(lane, budget)
                filled |= found
        if self.frontier != RANK_END and not filled:
            self._advance(budget)

    # --- walking --------------------------------------------------------------------------

    def _refill(self, lane: Lane, budget: int) -> tuple[int, bool]:
        """Reads a lane's messages from its spill on."""
        assert lane.spill is not None
        start, lane.spill = lane.spill, None
        added, last = 0, -1
        for rank, sequence, record in self._walk(start):
            if rank >= self.frontier:
                break
            if added >= self._window_max or budget <= 0:
                # A place taken at the message's own sequence comes twice, and counts once.
                lane.spill = max(rank, last + 1)
                self.unfinished |= not added
                break
            budget -= 1
            if record is not None and sequence not in self.live:
                delivery = self._delivery(rank, sequence, record)
                if self.lane_of(delivery.message.header, False) is lane:
                    self.live[sequence] = delivery
                    lane.window.push(delivery)
                    added, last = added + 1, rank
        return budget, added > 0

    def _advance(self, budget: int) -> bool:
        """Moves the frontier: reads what nobody has seen yet into its lanes."""
        start, self.frontier = self.frontier, RANK_END
        added, last = 0, -1
        for rank, sequence, record in self._walk(start):
            if added >= self._window_max or budget <= 0:
                self.frontier = max(rank, last + 1)
                self.unfinished |= not added
                break
            budget -= 1
            if record is not None and sequence not in self.live:
                delivery = self._delivery(rank, sequence, record)
                lane = self.lane_of(delivery.message.header, False)
                if lane.spill is None and len(lane.window) >= self._window_max:
                    lane.spill = rank
                if lane.spill is None:
                    self.live[sequence] = delivery
                    lane.window.push(delivery)
                    added, last = added + 1, rank
        return added > 0

    def _walk(self, start: int) -> Iterator[tuple[int, int, Record | None]]:
        """The waiting messages on disk from a rank on, in order; ``None`` for a row passed over."""
        yield from merge(self._placed_rows(start), self._natural_rows(start), key=_rank_of_row)

    def _placed_rows(self, start: int) -> Iterator[tuple[int, int, Record | None]]:
        keys, rows = self._keys, self._rows
        for key, value in rows.scan(keys.waiting(POOL, start), keys.waiting_end(POOL)):
            rank, sequence = number_at_end(key, 12), int.from_bytes(value, "big")
            if sequence in self.live:  # none of what is out of runs was ever placed
                yield rank, sequence, None
                continue
            row = rows.get(keys.pool(sequence))
            assert row is not None and row[0] == PLACED, "a place in the pool without its message"
            yield rank, sequence, decode_record(row)

    def _natural_rows(self, start: int) -> Iterator[tuple[int, int, Record | None]]:
        first = max(self.low_sequence, start & _POSITION if start >= NONE_RANK else 0)
        for key, row in self._rows.scan(self._keys.pool(first), self._keys.range_of("m")[1]):
            sequence = number_at_end(key)
            passed = row[0] != NATURAL or sequence in self.live or sequence in self.plain
            yield NONE_RANK | sequence, sequence, None if passed else decode_record(row)

    def _delivery(self, rank: int, sequence: int, record: Record) -> Delivery:
        message = message_of(sequence, record, self.header_of(record.header), POOL_KIND)
        attempts, holder = self._returned(POOL, sequence)
        delivery = Delivery(message, rank, max(record.attempts, attempts))
        delivery.spent = record.spent
        delivery.placed = record.state == PLACED
        delivery.holder = holder or record.holder
        return delivery

    def raise_low_sequence(self, next_sequence: int) -> None:
        """Finds anew from where on natural rows may still matter."""
        low = self._low_rank()
        if low >= NONE_RANK:
            unseen = low & _POSITION if low < RANK_END else next_sequence
            known = min(unseen, *self.live, *self.plain, next_sequence)
            self.low_sequence = max(self.low_sequence, known)

    def forget_all(self) -> None:
        """The topic was cleared."""
        for delivery in self.live.values():
            delivery.waits = False
        for lane in list(self._lanes.values()):
            self._forget_lane(lane)
        self.live.clear()
        self.plain.clear()
        self.pushed_count = 0
        self.locks = KeyLocks()
        self.frontier = RANK_END
        self.unfinished = False


def without_work(audience: Audience) -> Audience:
    """Who may take a push message: the work queue takes none."""
    return audience - {WORK} if WORK in audience else audience


def rank_of_delivery(delivery: Delivery) -> int:
    return delivery.rank


def _rank_of_row(row: tuple[int, int, Record | None]) -> int:
    return row[0]


def _ask_for_receipt(delivery: Delivery, producer: bytes, number: int) -> None:
    """Gives the message of a delivery the publisher who is told how it ended."""
    message = delivery.message
    message.producer = producer
    message.number = number
    message.flags = HAS_PRODUCER


def message_of(sequence: int, record: Record, header: Header, kind: int) -> Message:
    """The message of a row; a large payload is left on disk until it is sent."""
    payload = record.payload if len(record.payload) <= limits.WINDOW_RECORD_BYTES_MAX else None
    message = Message(
        sequence, record.id, header, payload, record.accepted_ms, record.expires_ms, kind
    )
    message.flags = record.flags
    message.producer = record.producer
    message.number = record.number
    return message


class _RunReader:
    """Puts rows of plain messages together to runs again, by the column, as they were written."""

    def __init__(self, pool: Pool, lane: Lane, all_ours: bool) -> None:
        self._pool = pool
        self._lane = lane
        self._all_ours = all_ours  # stop at the first of another lane
        self.runs: list[Run] = []

    def through(self, rows: Iterator[tuple[bytes, bytes]], most: int) -> int:
        """Reads so many rows, or up to one that wants to be looked at by itself; the rank at which
        it stopped."""
        read = list(islice(rows, most + 1))
        begins = [row[:PLAIN_BEGIN] for _, row in read[:most]]
        at = 0
        for begin, alike in groupby(begins):
            count = len(list(alike))
            done = self._take(read[at : at + count], begin)
            at += done
            if done < count:
                break
        return NONE_RANK | number_at_end(read[at][0]) if at < len(read) else RANK_END

    def _take(self, rows: list[tuple[bytes, bytes]], begin: bytes) -> int:
        """Takes rows that begin alike, or passes them over; how many, up to one to be looked at by
        itself."""
        fields = read_plain_begin(begin)
        if fields is None:
            return 0 if begin[0] == NATURAL else len(rows)
        head = PLAIN_HEADER + (PRODUCER_BYTES if fields.asks else 0)
        body = head + fields.header_size
        headers = [row[head:body] for _, row in rows]
        at = 0
        for encoded, alike in groupby(headers):
            end = at + len(list(alike))
            header = self._pool.header_of(encoded)
            if not header.goes_in_runs:
                return at
            if self._pool.lane_of(header, False) is self._lane:
                for first, last in _stretches(rows, at, end):
                    part = rows[at : at + last - first + 1]
                    if not self._may_take(range(first, last + 1), part, body):
                        return at
                    self._keep(part, encoded, body, fields, header.subjects)
                    at += len(part)
            elif self._all_ours:
                return at
            at = end
        return at

    def _keep(
        self,
        rows: list[tuple[bytes, bytes]],
        encoded: bytes,
        body: int,
        fields: PlainBegin,
        subjects: tuple[str, ...],
    ) -> None:
        """Makes runs of rows that share a header and have nothing missing between."""
        until = body - len(encoded)
        begin = until - limits.MESSAGE_ID_BYTES
        times = fields.accepted_ms, fields.expires_ms
        for producer, number, some in _by_producer(rows, fields.asks):
            messages = tuple([(row[begin:until], encoded, row[body:]) for _, row in some])
            first = number_at_end(some[0][0])
            self.runs.append(Run(first, messages, *times, False, producer, number, subjects))

    def _may_take(self, sequences: range, rows: list[tuple[bytes, bytes]], body: int) -> bool:
        longest = max([len(row) for _, row in rows])
        return longest - body <= limits.WINDOW_RECORD_BYTES_MAX and self._pool.may_go_in_runs(
            sequences
        )


def _by_producer(
    rows: list[tuple[bytes, bytes]], asks: bool
) -> Iterator[tuple[bytes | None, int, list[tuple[bytes, bytes]]]]:
    """Rows with nothing missing between, put apart by who asked for their receipts, with his number
    of the first: those of a part have consecutive numbers."""
    if not asks:
        yield None, 0, rows
        return

    def asked(entry: tuple[bytes, bytes]) -> tuple[bytes, int]:
        producer, number = read_plain_producer(entry[1])
        return producer, number - number_at_end(entry[0])

    for (producer, ahead), alike in groupby(rows, asked):
        some = list(alike)
        yield producer, number_at_end(some[0][0]) + ahead, some


def _stretches(rows: list[tuple[bytes, bytes]], at: int, end: int) -> Iterator[tuple[int, int]]:
    """The first and the last sequence of each stretch of rows with nothing missing between."""
    first, last = number_at_end(rows[at][0]), number_at_end(rows[end - 1][0])
    if last - first == end - at - 1:
        yield first, last
        return
    last = first
    for key, _ in rows[at + 1 : end]:
        sequence = number_at_end(key)
        if sequence != last + 1:
            yield first, last
            first = sequence
        last = sequence
    yield first, last
