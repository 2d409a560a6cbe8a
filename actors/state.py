"""What a topic knows: its parts, its counters, and the rows that bring them back.

The lowest layer of the topic actor. Layers are built on one another, each in its own file, and call
downward only: state, endings (how messages end), retry (how deliveries come back), ordering (whose
turn it is within a key), dispatch (who gets what), then the handlers of commands; ``topic.py``
joins them.
"""

from collections import deque
from heapq import heappop, heappush
from itertools import count
from operator import attrgetter
from typing import Any

from asterism import limits
from asterism.actors.absences import Absences
from asterism.actors.delivery import Delivery, Message
from asterism.actors.keyorder import KeyOrder
from asterism.actors.leases import Pages
from asterism.actors.log import Log, Places
from asterism.actors.pool import Lane, Pool
from asterism.actors.producers import Producers
from asterism.actors.receipts import Outcomes
from asterism.actors.receivers import Endpoint, Matcher, Receiver, Receivers, SettingsBox, Wait
from asterism.actors.tallies import Tally
from asterism.effects import Effect
from asterism.message import EXPECTED, Header, Status, decode_header
from asterism.rows import Rows
from asterism.settings import DEFAULT_BOUNDS, Bounds, TopicSettings
from asterism.storage.keys import RANK_END, STORE_SNAPSHOT, TopicKeys, number_at_end
from asterism.storage.records import (
    PageRecord,
    Record,
    decode_record,
    encode_page,
    pack,
    unpack,
)

_HEAD_FIELDS = (
    "next_sequence", "pool_held", "log_held", "drafting", "parked", "completed", "asked",
    "next_outbox", "last_expiry_ms", "listed", "forward_generation", "indexed",
    "under_way", "forwarded",
)  # fmt: skip
_head_fields = attrgetter(*_HEAD_FIELDS)

SAMPLE_MS = 1_000
SAMPLES_MAX = 60  # a minute's worth: what rates are told of
SWEEP_MS = 60_000  # how often old outcomes, history and silent producers are looked for


class Oldest:
    """Sequences of one kind of message row from the oldest on, read ahead in blocks.

    What comes back to waiting is noted, so that the walk itself never goes back.
    """

    def __init__(self, rows: Rows, keys: TopicKeys, kind: str) -> None:
        self._rows = rows
        self._keys = keys
        self._kind = kind
        self._ahead: deque[int] = deque()
        self._noted: list[int] = []
        self._next = 0

    def first(self) -> int | None:
        """The oldest that may matter; ``drop`` it if it turns out not to."""
        if not self._ahead and not self._read():
            return self._noted[0] if self._noted else None
        if self._noted and self._noted[0] < self._ahead[0]:
            return self._noted[0]
        return self._ahead[0]

    def drop(self, sequence: int) -> None:
        """Takes the one that ``first`` returned off."""
        if self._noted and self._noted[0] == sequence:
            heappop(self._noted)
        else:
            self._ahead.popleft()

    def note(self, sequence: int) -> None:
        """This one waits again, or is new and older than what was read."""
        if sequence < self._next:
            heappush(self._noted, sequence)

    def _read(self) -> bool:
        low = self._keys.range_of(self._kind)[0] + self._next.to_bytes(8, "big")
        for key, _ in self._rows.scan(low, self._keys.range_of(self._kind)[1]):
            self._ahead.append(number_at_end(key))
            if len(self._ahead) >= limits.WINDOW_LOW:
                break
        if self._ahead:
            self._next = self._ahead[-1] + 1
        return bool(self._ahead)


class TopicState:
    """The parts of one topic."""

    def __init__(
        self,
        name: str,
        number: int,
        rows: Rows,
        defaults: TopicSettings,
        first: int,
        matcher: Matcher | None = None,
        bounds: Bounds = DEFAULT_BOUNDS,
        grace_ms: int = 0,
    ) -> None:
        self.name = name
        self.grace_ms = grace_ms  # for holders that may come back; 0: what they held fails over
        self.rows = rows
        self.keys = TopicKeys(number)
        self.defaults = defaults
        self.overrides: dict[str, Any] = {}
        self.box = SettingsBox(defaults)
        self.receivers = Receivers(self.box, matcher, bounds.receivers)
        self.pages = Pages(rows, self.keys, self.write_receiver)
        self.absences = Absences()
        self.speaker = b""  # the node whose messages are being accepted
        self.memory: dict[int, Message] = {}  # push and online messages, but for those in runs
        self.pool = Pool(
            rows,
            self.keys,
            self.receivers,
            self.header_of,
            self.returned,
            self.has_returned,
            self.memory,
        )
        self.log = Log(rows, self.keys, self.receivers, self.header_of, self.returned)
        self.key_order = KeyOrder(rows, self.keys)
        self.producers = Producers(rows, self.keys, bounds.producers)
        self.outcomes = Outcomes(rows, self.keys)
        self.oldest_pool = Oldest(rows, self.keys, "m")
        self.oldest_log = Oldest(rows, self.keys, "l")
        self._headers: dict[bytes, Header] = {}  # as stored
        self.incoming: dict[bytes, Header] = {}  # as published -> as this topic takes them
        # Deliveries that a restart put back to waiting: (list, sequence) -> attempts, holder, page.
        self._returned: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._returned_pages: dict[int, int] = {}  # page -> how many of it are still in _returned
        self._begin_counters(first)
        self._begin_times()
        self._begin_command()

    def _begin_counters(self, first: int) -> None:
        """What the head row keeps."""
        self.next_sequence = first
        self.reserved = 0  # sequences below it may be given: the row of the reserve says so
        self.pool_held = 0  # live messages of the pool, neither drafts nor parked
        self.log_held = 0
        self.log_kept = 0  # of them, what everybody is through with, below ``log_kept_to``
        self.log_kept_to = RANK_END
        self.pool_tally = Tally()  # of the pool's, by subjects; none that waits for its time
        self.drafting = 0
        self.parked = 0  # parked deliveries
        self.completed = 0
        self.asked = 0  # live durable messages whose publisher asked for a receipt
        self.next_outbox = 1
        self.last_expiry_ms = 0  # of the messages that expire in sequence order
        self.listed = 0  # the work queue was used: 1 until it is cleared
        self.indexed = int(self.settings.unique)  # the payloads of live messages have their rows
        self.under_way = 0  # a blocking topic's message that went out and is not resolved; 0: none
        self.head_dirty = True
        self.cursors_at = 0  # the sequence at which the walks of expiry are told to begin later
        self.marks_at = 0  # the sequence at which the marks in the head are raised next

        # Messages on their way to the dead-letter topic: the first two are in the head row.
        self.forwarded: dict[str, int] = {}  # target -> the last number given there
        self.forward_generation = 0
        self.forwarding: dict[int, tuple[str, int]] = {}  # under way: to whom, under which number
        self.outbox_next = 1  # rows below it are under way or settled
        self.outbox_paused_ms = 0

    def _begin_times(self) -> None:
        """What time moves, and what is in memory alone."""
        self.push_tally = Tally()
        self.counting: dict[Receiver, None] = {}  # whose count of the log goes on
        self.next_count_ms = 0
        # Online copies that wait in runs: for whom, for how many each run, how many messages.
        self.keepers: dict[Receiver, None] = {}
        self.kept: dict[int, int] = {}
        self.kept_messages = 0
        self.memory_bytes = 0  # of large payloads in memory
        self.ties = count()  # of equal times in a heap, the first come goes first
        self.pausing: list[tuple[int, int, Delivery]] = []  # retries and delays kept in memory
        self.digests: dict[bytes, set[int]] = {}  # payloads of memory messages on a unique topic
        self.expiry_cursor = {"m": 0, "l": 0}
        self.next_expiry_ms: dict[str, int | None] = {"m": None, "l": None}
        self.next_due_row_ms: int | None = None
        self.producers_swept = 0  # the hour in which silent producers were looked for last
        self.next_sweep_ms: int | None = None  # None: nothing that is kept for a time only
        # Whoever follows snapshots takes the history before a snapshot's time for complete. This
        # process's clock never goes back, but it may have begun behind the one before it.
        self.history_from_ms = int.from_bytes(self.rows.get(STORE_SNAPSHOT) or b"", "big")
        self.waits: list[tuple[int, int, Wait]] = []  # pulls and orders with a deadline

        # A blocking topic's message under way, and for a log message who still has to finish it.
        self.current: int | None = None
        self.current_sent = False  # until then a better one may still come before it
        self.current_for: set[int] = set()
        self.places: dict[int, Places] = {}

    @property
    def has_handed_enough(self) -> bool:
        """Has this command sent as much as it may? The next turn goes on."""
        return self.handed_bytes >= limits.HANDED_BYTES_MAX

    def _begin_command(self) -> None:
        """What one command, or one turn, collects."""
        self.handed_bytes = 0  # payloads that this command has sent
        self.effects: list[Effect] = []
        self.touched: list[Endpoint] = []
        self.fed: dict[Lane, None] = {}
        self.fed_epoch = 0  # of the audiences by which ``fed`` was sorted
        self.hungry: dict[Receiver, None] = {}
        self.stalled: dict[Receiver, None] = {}
        self.unsettled: dict[Receiver, None] = {}  # receivers that finished log messages
        self.totals = {"published": 0, "delivered": 0, "processed": 0, "failed": 0, "expired": 0}
        self.samples: deque[tuple[int, dict[str, int]]] = deque(maxlen=SAMPLES_MAX)
        self.next_sample_ms = 0

    @property
    def settings(self) -> TopicSettings:
        return self.box.value

    @property
    def held(self) -> int:
        """Every held message: waiting and in flight, not parked, not drafts."""
        return self.pool_held + self.log_held + self.in_memory

    @property
    def in_memory(self) -> int:
        """How many push and online messages are held."""
        kept: dict[int, int] = {}  # receivers who wait for the same share its messages
        for receiver in self.keepers:
            for run in receiver.kept:
                begin = run.first - run.taken
                kept[begin] = max(kept.get(begin, 0), len(run))
        return len(self.memory) + self.pool.pushed_count + sum(kept.values())

    def header_of(self, encoded: bytes) -> Header:
        """A decoded header; most messages of a topic share a few."""
        header = self._headers.get(encoded)
        if header is None:
            if len(self._headers) >= limits.HEADERS_CACHED_MAX:
                self._headers.clear()
            header = self._headers[encoded] = decode_header(encoded)
        return header

    def incoming_header(self, encoded: bytes) -> Header:
        """The header of a message that is published, as this topic takes it."""
        header = self.incoming.get(encoded)
        if header is None:
            if len(self.incoming) >= limits.HEADERS_CACHED_MAX:
                self.incoming.clear()
            settings = self.box.value
            expect = None if settings.expect is None else EXPECTED[settings.expect]
            header = decode_header(encoded).settled(expect, settings.max_receivers)
            self.incoming[encoded] = header
        return header

    def take_number(self) -> int:
        """A new sequence or position: one counter serves both, so that they can be compared."""
        number = self.next_sequence
        self.next_sequence = number + 1
        self.head_dirty = True
        return number

    def record_of(self, kind: str, sequence: int) -> Record | None:
        key = self.keys.pool(sequence) if kind == "m" else self.keys.log(sequence)
        row = self.rows.get(key)
        return None if row is None else decode_record(row)

    def payload_of(self, message: Message) -> bytes:
        """The payload, from disk where it is not kept in memory."""
        if message.payload is not None:
            return message.payload
        record = self.record_of("l" if message.copies is not None else "m", message.sequence)
        assert record is not None, "a live message without its row"
        return record.payload

    # --- what a restart put back ------------------------------------------------------------

    def returned(self, list_number: int, sequence: int) -> tuple[int, int]:
        """Attempts and holder of a delivery that was out when the worker ended."""
        if not self._returned:
            return 0, 0
        attempts, holder, _ = self._returned.get((list_number, sequence), (0, 0, 0))
        return attempts, holder

    def has_returned(self, list_number: int, sequences: range) -> bool:
        """Was any of these out when the worker ended?"""
        return bool(self._returned) and any(
            (list_number, sequence) in self._returned for sequence in sequences
        )

    def add_returned(
        self, list_number: int, sequence: int, attempts: int, holder: int, page: int
    ) -> bool:
        """Notes it for when it is read again; False where another page says so already."""
        known = self._returned.get((list_number, sequence))
        if known is not None and known[0] >= attempts:
            return False
        self.forget_returned(list_number, sequence)
        self._returned[list_number, sequence] = (attempts, holder, page)
        self._returned_pages[page] = self._returned_pages.get(page, 0) + 1
        return True

    def forget_returned(self, list_number: int, sequence: int) -> None:
        """It went out again, or is over: once all of a page have, its row is of no use."""
        if not self._returned:
            return
        known = self._returned.pop((list_number, sequence), None)
        if known is not None:
            page = known[2]
            self._returned_pages[page] -= 1
            if self._returned_pages[page] == 0:
                del self._returned_pages[page]
                self.rows.delete(self.keys.page(page))

    def rewrite_pages(self) -> None:
        """Attempts are counted anew for some: a restart must not find their old count in a page."""
        self.pages.rewrite()
        pages: dict[int, PageRecord] = {}
        for (_, sequence), (attempts, holder, number) in self._returned.items():
            page = pages.setdefault(number, PageRecord(Status.SENT, holder, 0, 0, []))
            page.entries.append((sequence, attempts))
        for number, page in pages.items():
            self.rows.put(self.keys.page(number), encode_page(page))

    def forget_returned_of(self, list_number: int) -> None:
        """A receiver ends or is moved: what it had out before the restart counts no more."""
        for listed, sequence in [key for key in self._returned if key[0] == list_number]:
            self.forget_returned(listed, sequence)

    def forget_returned_everywhere(self, sequence: int) -> None:
        """A log message is over, also for receivers that have not read it again yet."""
        if self._returned:
            for number in self.receivers.by_number:
                self.forget_returned(number, sequence)

    # --- rows of the topic itself -----------------------------------------------------------

    def write_head(self) -> None:
        """Writes the counters; called at the end of a turn that changed them."""
        values = _head_fields(self)
        cursors = (self.expiry_cursor["m"], self.expiry_cursor["l"])
        low = (self.pool.low_sequence, self.log.low_sequence)
        numbers = (self.receivers.next_number, self.receivers.next_passing)
        if not self.pool_held:
            self.pool_tally.clear()
        kept = None if self.log_kept_to != RANK_END or self.receivers.has_passing else self.log_kept
        counts = (*self.pool_tally.stored(), kept)
        self.rows.put(self.keys.head, pack(values, cursors, low, numbers, counts))
        self.head_dirty = False

    def reserve(self) -> None:
        """Reserves the sequences that come next; their row must be synced before one is told."""
        self.reserved = self.next_sequence + limits.SEQUENCES_RESERVED
        self.rows.put(self.keys.reserve, self.reserved.to_bytes(8, "big"))

    def read_reserve(self) -> None:
        """Goes on behind all sequences that may have been given before."""
        row = self.rows.get(self.keys.reserve)
        if row is not None:
            self.next_sequence = self.reserved = int.from_bytes(row, "big")
        else:  # written by a version that had no reserve, and may have lost any number of them
            self.next_sequence += limits.SEQUENCES_SKIPPED

    def read_head(self, row: bytes) -> None:
        values, cursors, low, numbers, *counts = unpack(row, 5, 4)
        for name, value in zip(_HEAD_FIELDS, values, strict=True):
            setattr(self, name, value)
        self.expiry_cursor["m"], self.expiry_cursor["l"] = cursors
        self.pool.low_sequence, self.log.low_sequence = low
        self.receivers.next_number, *passing = numbers
        if passing:  # earlier versions had one count for all
            (self.receivers.next_passing,) = passing
        by_subjects, others, kept = counts[0] if counts else ((), self.pool_held, None)
        self.pool_tally.restore(by_subjects, others)
        if kept is not None:
            self.log_kept = kept
        elif self.log_held:  # it was not counted to the end, or by those who are gone
            self.log_kept_to = 0
        self.head_dirty = False

    def sample(self, now_ms: int) -> None:
        """Notes the totals, as is done once a second, so that rates can be told."""
        self.samples.append((now_ms, dict(self.totals)))
        self.next_sample_ms = now_ms + SAMPLE_MS

    def rates(self, now_ms: int) -> dict[str, float]:
        """Messages a second over the last minute in which something happened, at most."""
        recent = [kept for kept in self.samples if now_ms - kept[0] <= SAMPLES_MAX * SAMPLE_MS]
        if not recent:
            return dict.fromkeys(self.totals, 0.0)
        since_ms, before = recent[0]
        seconds = max(now_ms - since_ms, SAMPLE_MS) / 1_000
        return {name: (total - before[name]) / seconds for name, total in self.totals.items()}

    def sweep_by(self, now_ms: int) -> None:
        """Something was written that is kept for a time only."""
        if self.next_sweep_ms is None:
            self.next_sweep_ms = now_ms + SWEEP_MS

    def write_receiver(self, receiver: Receiver) -> None:
        """Has a restart find a receiver; one that lives with its connections by its endpoints."""
        number = receiver.number
        self.head_dirty = True  # the numbers of receivers are counted there
        if receiver.durable:
            self.rows.put(self.keys.receiver(number), _receiver_row(receiver, receiver.interests))
            return
        receiver.stored = True
        for (node, endpoint), interests in receiver.away.items():
            row = _receiver_row(receiver, interests)
            self.rows.put(self.keys.endpoint(number, node, endpoint), row)
        for there in receiver.endpoints.values():
            self.write_endpoint(there)

    def write_endpoint(self, endpoint: Endpoint) -> None:
        receiver = endpoint.receiver
        key = self.keys.endpoint(receiver.number, endpoint.node, endpoint.number)
        self.rows.put(key, _receiver_row(receiver, endpoint.interests))

    def delete_endpoint(self, receiver: Receiver, node: bytes, endpoint: int) -> None:
        """An endpoint of a receiver that lives with its connections is neither there nor away."""
        if receiver.stored and not receiver.durable:
            self.rows.delete(self.keys.endpoint(receiver.number, node, endpoint))

    # --- holders that are away --------------------------------------------------------------

    def absent_nodes(self) -> list[bytes]:
        """The nodes that are waited for."""
        return list(dict.fromkeys([*self.pages.absent_nodes(), *self.absences.nodes()]))

    def begin_grace(self, until_ms: int) -> None:
        """Holders can come back from now on: what a restart found is kept until then."""
        self.pages.begin_grace(until_ms)
        self.absences.begin_grace(until_ms)


def _receiver_row(receiver: Receiver, interests: tuple[str, ...]) -> bytes:
    timeouts = receiver.sent_timeout_ms, receiver.received_timeout_ms
    return pack(receiver.name, interests, *timeouts)
