"""Publishing from the client's side: numbers, frames, the window, and what is sent again. Pure.

A producer is one id on one topic. It numbers its messages from 1 without a gap and keeps every
frame until it is answered, so that the same messages under the same numbers can be sent again.

I1 What was published in this order is numbered, and sent, in this order.
I2 A frame is sent again only under the producer id and the numbers that it was first sent under,
   unless the broker has said that nothing of it was stored.
I3 ``Window`` counts exactly what is buffered or unanswered.
"""

from collections import deque
from collections.abc import Callable
from typing import Final
from weakref import ref

from asterism import limits
from asterism.errors import PeerError
from asterism.packing import pack_value
from asterism.sdk.tickets import Ticket
from asterism.wire import Verb, pack_body, pack_part

Incoming = tuple[bytes, bytes, bytes]

FRAME_BYTES_MAX: Final = 1_000_000  # a frame is closed at this size; one larger message goes alone
FRAMES_MAX: Final = 128  # unanswered frames of one topic; then messages gather in larger ones
MESSAGE_BYTES: Final = 32  # what a message costs beyond its header and payload
RETRY_MS_MIN: Final = 50
RETRY_MS_MAX: Final = 2_000
GAPS_MAX: Final = 8  # times that numbers are sent again from the first unanswered, in vain


def retry_pause_ms(error: PeerError, failures: int) -> int:
    """How long to wait before the same is asked again: what the broker says, or ever longer."""
    longer_ms = min(RETRY_MS_MIN << min(failures, 10), RETRY_MS_MAX)
    return longer_ms if error.retry_after_ms is None else error.retry_after_ms


class Window:
    """How much may be under way: beyond it a publisher waits."""

    __slots__ = ("bytes", "bytes_max", "messages", "messages_max")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.messages = 0
        self.bytes = 0

    def admits(self, count: int, size: int) -> bool:
        """Is there room? Whatever is larger than the whole window goes through alone."""
        if self.messages == 0:
            return True
        return self.messages + count <= self.messages_max and self.bytes + size <= self.bytes_max

    def add(self, count: int, size: int) -> None:
        self.messages += count
        self.bytes += size

    def remove(self, count: int, size: int) -> None:
        self.messages -= count
        self.bytes -= size
        assert self.messages >= 0 and self.bytes >= 0


Share = tuple[Ticket, int, int]
"""Neighbouring messages of one ticket in one frame: the ticket, their first position, how many."""


class Batch:
    """Messages of one frame, packed, until they are answered."""

    __slots__ = (
        "count",
        "first",
        "packed",
        "producer",
        "requests",
        "sends",
        "shares",
        "size",
        "unsure",
    )

    def __init__(
        self, producer: "Producer", packed: bytes, shares: list[Share], count: int, size: int
    ) -> None:
        self.producer = producer
        self.packed = packed
        self.shares = shares
        self.count = count
        self.size = size
        self.first = 0
        self.requests: list[int] = []  # under which this connection may still answer it
        self.sends = 0
        self.unsure = 0  # times it was sent without a definite answer


class Identity:
    """A producer's id, and the receipts that are still to come for its messages."""

    __slots__ = ("awaited", "id", "sweep_at", "topic")

    def __init__(self, topic: bytes, producer_id: bytes) -> None:
        self.topic = topic
        self.id = producer_id
        # number -> its ticket, held weakly (who drops a receipt awaits it no more), the position
        # in it, and the sequence.
        self.awaited: dict[int, tuple[ref[Ticket], int, int]] = {}
        self.sweep_at = 1_024

    def expect(self, first: int, share: Share, results: list[int | PeerError]) -> int:
        """Remembers that receipts will come; returns how many."""
        ticket, start, _ = share
        reference = ref(ticket)
        before = len(self.awaited)
        for index, result in enumerate(results):
            if type(result) is int:
                self.awaited[first + index] = (reference, start + index, result)
        added = len(self.awaited) - before
        if len(self.awaited) >= self.sweep_at:
            added -= self.forget_dropped()
            self.sweep_at = max(1_024, 2 * len(self.awaited))
        return added

    def forget_dropped(self) -> int:
        """Forgets receipts that nobody holds any more; returns how many."""
        dead = [number for number, entry in self.awaited.items() if entry[0]() is None]
        for number in dead:
            del self.awaited[number]
        return len(dead)


class Producer:
    """Everything that this client publishes on one topic."""

    def __init__(
        self, topic: str, identity: Identity, next_number: int = 1, is_fixed: bool = False
    ) -> None:
        self.topic = topic
        self.identity = identity
        self.next_number = next_number
        # The id is the publisher's own, and so are the numbers: it is never exchanged for another.
        self.is_fixed = is_fixed
        self.batches: deque[Batch] = deque()
        self.sent = 0  # how many of the batches, from the first, are sent on this connection
        self.buffer: list[Incoming] = []
        self.shares: list[Share] = []
        self.buffer_bytes = 0
        self.resume_ms = 0  # nothing is sent before
        self.failures = 0  # refusals with busy since the last answer
        self.gaps = 0  # those of them that say that numbers before the first unanswered are missing
        self.draining = False  # a new id is due, once everything sent has been answered
        self.refused: PeerError | None = None  # why, where the id is fixed
        self.given_up: int | None = None  # the lowest number whose fate is not known, nor will be

    @property
    def is_idle(self) -> bool:
        return not self.batches and not self.buffer

    @property
    def has_unsent(self) -> bool:
        return bool(self.buffer) or self.sent < len(self.batches)

    def tickets(self) -> list[Ticket]:
        """Those of everything that is unanswered."""
        sent = [ticket for batch in self.batches for ticket, _, _ in batch.shares]
        return sent + [ticket for ticket, _, _ in self.shares]

    # --- in ---------------------------------------------------------------------------------

    def add(self, ticket: Ticket, start: int, messages: list[Incoming], size: int) -> None:
        self.buffer += messages
        self.shares.append((ticket, start, len(messages)))
        self.buffer_bytes += size

    # --- out --------------------------------------------------------------------------------

    def flush(self, now_ms: int, number_for: Callable[[Batch], int], out: list[bytes]) -> None:
        """Sends what may be sent: frames that are to be sent again first, then what is new."""
        if self.draining or now_ms < self.resume_ms:
            return
        self.resume_ms = 0
        while True:
            while self.sent < len(self.batches):
                out.append(self._part(self.batches[self.sent], number_for))
                self.sent += 1
            if not self.buffer or len(self.batches) >= FRAMES_MAX:
                return
            self._form()

    def _part(self, batch: Batch, number_for: Callable[[Batch], int]) -> bytes:
        number = number_for(batch)
        batch.requests.append(number)
        batch.sends += 1
        batch.unsure += 1
        lowest = self.batches[0].first
        settled = (lowest if self.given_up is None else min(lowest, self.given_up)) - 1
        tail = pack_body((self.identity.id, batch.first, settled))[1:]  # without the array's head
        # The array of the four fields, of which the first was packed when the batch was formed.
        body = b"".join((b"\x94", batch.packed, tail))
        return pack_part(Verb.PUBLISH, number, self.identity.topic, body)

    def _form(self) -> None:
        """Makes one frame of the front of the buffer."""
        messages, shares, size = self.buffer, self.shares, self.buffer_bytes
        if len(messages) > limits.BATCH_MESSAGES_MAX or size > FRAME_BYTES_MAX:
            messages, shares, size = self._cut()
        else:
            self.buffer, self.shares = [], []
        self.buffer_bytes -= size
        batch = Batch(self, pack_value(messages), shares, len(messages), size)
        batch.first = self.next_number
        self.next_number += batch.count
        self.batches.append(batch)

    def _cut(self) -> tuple[list[Incoming], list[Share], int]:
        """Takes off the buffer what makes one frame: messages, their shares, and their size."""
        count = size = 0
        for message in self.buffer[: limits.BATCH_MESSAGES_MAX]:
            more = size_of(message)
            if count and size + more > FRAME_BYTES_MAX:
                break
            count += 1
            size += more
        messages = self.buffer[:count]
        del self.buffer[:count]
        return messages, self._cut_shares(count), size

    def _cut_shares(self, count: int) -> list[Share]:
        taken: list[Share] = []
        while count:
            ticket, start, held = self.shares[0]
            if held <= count:
                taken.append(self.shares.pop(0))
                count -= held
            else:
                taken.append((ticket, start, count))
                self.shares[0] = (ticket, start + count, held - count)
                count = 0
        return taken

    # --- answers ----------------------------------------------------------------------------

    def settle(self, batch: Batch) -> None:
        """A batch was answered, and is kept no longer."""
        if self.batches[0] is batch:
            self.batches.popleft()
            self.sent -= self.sent > 0
        else:
            position = self.batches.index(batch)
            del self.batches[position]
            self.sent -= position < self.sent
        self.failures = self.gaps = 0

    def is_sent(self, batch: Batch) -> bool:
        """Is it sent on this connection, and not to be sent again?"""
        return self.sent > 0 and batch.first <= self.batches[self.sent - 1].first

    def send_again(self, resume_ms: int) -> None:
        """Everything unanswered is sent once more, in order, from ``resume_ms`` on."""
        self.sent = 0
        self.resume_ms = resume_ms

    def forget_connection(self) -> None:
        """What was sent will not be answered any more: the connection, or the worker, is gone."""
        for batch in self.batches:
            batch.requests.clear()
        self.send_again(0)
        self.failures = self.gaps = 0

    # --- a new id -----------------------------------------------------------------------------

    def is_drained(self) -> bool:
        return self.draining and not any(batch.requests for batch in self.batches)

    def begin_anew(self, identity: Identity) -> list[Batch]:
        """Numbers what was certainly not stored under a new id; returns what is uncertain."""
        uncertain = [batch for batch in self.batches if batch.unsure]
        kept = [batch for batch in self.batches if not batch.unsure]
        self.identity = identity
        self.next_number = 1
        self.batches = deque(kept)
        for batch in kept:
            batch.first = self.next_number
            self.next_number += batch.count
        self.sent = 0
        self.draining = False
        self.failures = self.gaps = 0
        return uncertain

    def give_up(self) -> list[Batch]:
        """Takes off everything unanswered of an id that is fixed.

        What follows begins where the first of it did, unless some of it may have been stored: then
        it leaves a gap, so that the broker refuses it rather than take it for that.
        """
        lost = list(self.batches)
        self.batches.clear()
        if lost and not any(batch.unsure for batch in lost):
            self.next_number = lost[0].first
        elif lost and self.given_up is None:
            self.given_up = lost[0].first
        self.sent = 0
        self.draining = False
        self.failures = self.gaps = 0
        return lost


def size_of(message: Incoming) -> int:
    return len(message[1]) + len(message[2]) + MESSAGE_BYTES
