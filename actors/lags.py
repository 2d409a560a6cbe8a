"""What is told of a topic and its receivers. Asking changes nothing: neither what is held nor how.

The *lag* of a receiver is how many messages it has still to do. That is what it has out, and what
waits for it: of the log, what it owes (``counting.py``); its copies of online messages; and of the
pool and of push messages, which one of all who are interested takes, everything that waits and it
is interested in. A delivery that pauses between two attempts, is set aside behind its ordering key,
or waits for a place of ``max_receivers`` is lag. What is parked is not, nor what waits for its time
(``deliver_at``).

Counts are kept as messages come and go. What is out is looked at one by one, and that is bounded by
credit; the age of the oldest is looked up within a bound of rows. Where a count goes on, or a bound
was met, ``counted`` is False and the numbers are near.
"""

from collections.abc import Iterable, Iterator
from heapq import nlargest
from itertools import islice
from typing import NamedTuple

from asterism import limits
from asterism.actors.delivery import MEMORY_KIND, Message
from asterism.actors.leases import Page
from asterism.actors.pool import without_work
from asterism.actors.publishing import Publishing
from asterism.actors.queue import Audience
from asterism.actors.receivers import Receiver
from asterism.actors.retry import counts_as_held
from asterism.actors.runs import Run
from asterism.actors.tallies import Subjects, Tally
from asterism.storage.keys import NONE_RANK, RANK_END, number_at_end
from asterism.storage.records import DELAYED, decode_record

_POSITION = (1 << 64) - 1
_EVERYTHING = "**"


class Lag(NamedTuple):
    """What a receiver has still to do."""

    lag: int
    out: int
    since_ms: int | None  # when the oldest of them was accepted
    counted: bool  # False: the numbers are near

    def told(self, now_ms: int) -> dict[str, object]:
        """As a client is told it."""
        age_ms = None if self.since_ms is None else max(now_ms - self.since_ms, 0)
        return {"lag": self.lag, "out": self.out, "oldest_ms": age_ms, "counted": self.counted}


class _Oldest:
    """The oldest of each receiver, as far as was looked."""

    def __init__(self) -> None:
        self.since_ms: dict[int, int] = {}
        self.near: set[int] = set()
        self.rows_left = limits.OLDEST_ROWS_MAX

    def see(self, number: int, since_ms: int) -> None:
        known = self.since_ms.get(number)
        if known is None or since_ms < known:
            self.since_ms[number] = since_ms


class Lags(Publishing):
    """Tells what waits, and for whom."""

    def lags(self, receivers: Iterable[Receiver]) -> dict[str, Lag]:
        """The lag of each of these, by name."""
        asked = {receiver.number: receiver for receiver in receivers}
        waiting = self.waiting_in_pool()
        shared, others = self.shared_by(waiting)
        oldest = _Oldest()
        for receiver in asked.values():
            self.see_own(receiver, oldest)
        self.see_out(asked, oldest)
        self.see_memory(asked, oldest)
        if self.pool_held:
            wanting = {number: shared.get(number, 0) + others for number in asked}
            self.see_pool({number for number, count in wanting.items() if count}, oldest)
        told = {}
        for number, receiver in asked.items():
            own = receiver.owed + receiver.copies_count + receiver.kept_count
            out_of_pool = receiver.out - self.out_of_own(receiver)
            lag = own + shared.get(number, 0) + others + out_of_pool
            surely = not others or _EVERYTHING in receiver.interests
            counted = surely and receiver.counted_to == RANK_END and number not in oldest.near
            since_ms = oldest.since_ms.get(number) if lag else None
            told[receiver.name] = Lag(lag, receiver.out, since_ms, counted)
        return told

    def out_of_own(self, receiver: Receiver) -> int:
        """How many of its log messages and online copies a receiver has out."""
        return sum(delivery.message.copies is not None for delivery in receiver.held.values())

    def largest_lags(self) -> list[tuple[str, Lag]]:
        """The receivers with the most to do, and how much; some of them, where they are many."""
        lags = self.lags(self.receivers.by_name.values())
        most = nlargest(limits.LAGS_MAX, lags.items(), key=lambda entry: entry[1].lag)
        return sorted(most)

    def waiting_now(self) -> tuple[int, int | None]:
        """How many messages wait that nobody has, and since when the oldest does. What everybody is
        through with, and the log merely keeps, waits for nobody."""
        waiting = max(self.held - self.log_kept - self.pages.messages_out(), 0)
        return waiting, self.oldest_waiting_ms() if waiting else None

    def oldest_waiting_ms(self) -> int | None:
        """When the oldest waiting message was accepted."""
        times = [run.accepted_ms for run in self.waiting_runs()]
        for kind, sequence in (("m", self.oldest_waiting_pool()), ("l", self.oldest_owed())):
            record = None if sequence is None else self.record_of(kind, sequence)
            if record is not None:
                times.append(record.accepted_ms)
        oldest = self.oldest_memory()
        if oldest is not None:
            times.append(self.memory[oldest].accepted_ms)
        return min(times, default=None)

    def waiting_runs(self) -> Iterator[Run]:
        """The first run of each that waits for credit in memory alone."""
        for lane in self.pool.lanes():
            if lane.runs and lane.runs[0].in_memory:
                yield lane.runs[0]
        for receiver in self.keepers:
            yield receiver.kept[0]

    def oldest_owed(self) -> int | None:
        """The oldest log message that waits, and is not merely kept."""
        first = self.oldest_waiting_log()
        if first is None or not self.log_kept:
            return first
        oldest = _Oldest()
        return min(
            (
                sequence
                for receiver in self.receivers.by_name.values()
                for sequence in self.oldest_owed_by(receiver, oldest)
            ),
            default=None,
        )

    def oldest_owed_by(self, receiver: Receiver, oldest: _Oldest) -> Iterator[int]:
        waiting = (seq for seq, delivery in receiver.known.items() if delivery.page is None)
        first = min(waiting, default=None)
        if first is not None:
            yield first
        yield from self.oldest_on_disk(receiver, min(receiver.known, default=None), oldest)

    # --- what waits in the pool --------------------------------------------------------------

    def waiting_in_pool(self) -> tuple[Tally, Tally]:
        """Of the pool and of push messages, how many are held and not out, by subjects."""
        tallies = []
        for held in (self.pool_tally, self.push_tally):
            tally = Tally()
            tally.by_subjects, tally.others = dict(held.by_subjects), held.others
            tallies.append(tally)
        pool, push = tallies
        for page in self.pages.all():
            for subjects, count in self.out_of_run(page):
                pool.take(subjects, count)
            for delivery in page.deliveries.values():
                message = delivery.message
                if message.copies is None:
                    tally = push if message.kind == MEMORY_KIND else pool
                    tally.take(message.header.subjects)
        return pool, push

    def out_of_run(self, page: Page) -> Iterator[tuple[Subjects, int]]:
        """The subjects of what is out of a run, and how many are of each."""
        if page.left and page.subjects is not None:
            yield page.subjects, page.left
        elif page.left:
            for sequence in range(page.first, page.first + len(page.messages)):
                if self.pool.plain.get(sequence) is page:
                    yield self.subjects_in(page, sequence), 1

    def shared_by(self, waiting: tuple[Tally, Tally]) -> tuple[dict[int, int], int]:
        """How many of those each receiver is interested in; and how many nobody knows whose."""
        by_audience: dict[Audience, int] = {}
        for tally in waiting:
            for subjects, count in tally.by_subjects.items():
                audience = self.receivers.audience(subjects)
                by_audience[audience] = by_audience.get(audience, 0) + count
        shared: dict[int, int] = {}
        for audience, count in by_audience.items():
            for number in audience:
                shared[number] = shared.get(number, 0) + count
        return shared, sum(tally.others for tally in waiting)

    # --- how old the oldest is ---------------------------------------------------------------

    def see_out(self, asked: dict[int, Receiver], oldest: _Oldest) -> None:
        """What is out with a receiver is its lag too."""
        for page in self.pages.all():
            number = page.receiver.number
            if asked.get(number) is page.receiver:
                if page.left:
                    oldest.see(number, page.accepted_ms)
                for delivery in page.deliveries.values():
                    oldest.see(number, delivery.message.accepted_ms)

    def see_own(self, receiver: Receiver, oldest: _Oldest) -> None:
        """What is of a receiver alone: the log, and online copies that wait in runs."""
        number = receiver.number
        if receiver.kept:
            oldest.see(number, receiver.kept[0].accepted_ms)
        first = min(receiver.known, default=None)
        if first is not None:
            oldest.see(number, receiver.known[first].message.accepted_ms)
        if receiver.owed <= len(receiver.known) and receiver.counted_to == RANK_END:
            return
        for sequence in self.oldest_on_disk(receiver, first, oldest):
            record = self.record_of("l", sequence)
            if record is not None:
                oldest.see(number, record.accepted_ms)

    def oldest_on_disk(
        self, receiver: Receiver, first: int | None, oldest: _Oldest
    ) -> Iterator[int]:
        """The oldest log messages that a receiver owes and has on disk alone: what was moved, and
        what was not; or where the search for it ended."""
        if receiver.has_moved:
            low, high = self.keys.exceptions(receiver.number)
            for key, _ in self.looked_at(low, high, receiver, oldest):
                sequence = number_at_end(key)
                message = self.rows.get(self.keys.log(sequence))
                if message is not None and self.waits_on_disk(receiver, sequence, message):
                    yield sequence
                    break
        horizon = receiver.horizon
        start = max(receiver.floor, horizon & _POSITION if horizon >= NONE_RANK else 0)
        if horizon == RANK_END or (first is not None and first < start):
            return
        low, high = self.keys.log(start), self.keys.range_of("l")[1]
        for key, row in self.looked_at(low, high, receiver, oldest):
            sequence = number_at_end(key)
            if self.waits_on_disk(receiver, sequence, row):
                yield sequence
                break

    def waits_on_disk(self, receiver: Receiver, sequence: int, row: bytes) -> bool:
        """Does a receiver owe a log message that it has not in memory?"""
        if row[0] == DELAYED or sequence in receiver.known:
            return False
        audience = self.receivers.audience(self.header_of(decode_record(row).header).subjects)
        return self.owes_row(receiver, sequence, row, audience)

    def looked_at(
        self, low: bytes, high: bytes, receiver: Receiver, oldest: _Oldest
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows, as many as one question may look at."""
        for entry in self.rows.scan(low, high):
            if oldest.rows_left == 0:
                oldest.near.add(receiver.number)
                return
            oldest.rows_left -= 1
            yield entry

    def see_memory(self, asked: dict[int, Receiver], oldest: _Oldest) -> None:
        """Push and online messages that wait."""
        for lane in self.pool.lanes():
            if lane.runs and lane.runs[0].in_memory:
                for number in lane.audience:
                    oldest.see(number, lane.runs[0].accepted_ms)
        for message in islice(self.memory.values(), limits.OLDEST_ROWS_MAX):
            for number in self.waited_for_by(message):
                oldest.see(number, message.accepted_ms)
        if len(self.memory) > limits.OLDEST_ROWS_MAX:
            oldest.near.update(asked.keys() - oldest.since_ms.keys())

    def waited_for_by(self, message: Message) -> Iterable[int]:
        """Who has a push or online message still to do."""
        if message.copies is not None:
            return message.copies
        live = self.pool.live.get(message.sequence)
        if live is None or live.page is not None:
            return ()  # its time has not come, or somebody has it
        return without_work(self.receivers.audience(message.header.subjects))

    def see_pool(self, wanting: set[int], oldest: _Oldest) -> None:
        """The oldest that waits in the pool, of each that has one there."""
        first, since = self.oldest_waiting_pool(), None
        if first is None:
            return
        low, high = self.keys.pool(first), self.keys.range_of("m")[1]
        for key, row in self.rows.scan(low, high):
            if not wanting or oldest.rows_left == 0:
                break
            oldest.rows_left -= 1
            record = decode_record(row)
            if not self.waits_in_pool(number_at_end(key), row):
                continue
            if not counts_as_held(record):
                continue
            since = record.accepted_ms
            header = self.header_of(record.header)
            for number in self.receivers.audience(header.subjects) & wanting:
                oldest.see(number, since)
                wanting.discard(number)
        for number in wanting:
            oldest.near.add(number)
            if since is not None:
                oldest.see(number, since)
