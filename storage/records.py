"""The values of rows: what a stored message and a page of deliveries look like in bytes.

A message's row keeps the publisher's header and payload byte for byte behind what the broker adds:

    state:u8 flags:u8 attempts:u16 accepted_ms:u64 expires_ms:u64
    holder:u32 header_size:u16 rank:(priority:u32 position:u64)       38 bytes
    [producer:16 number:u64]                                          where a receipt was asked for
    [spent:u16]                                                       where it was renewed
    id:16 header payload

What comes before the position is the same in all that are accepted together and are alike, so that
they are written and read by the batch.

A page, the deliveries that went out together:

    status:u8 receiver:u32 started_ms:u64 deadline_ms:u64 count:u32, sequence:u64 …, attempt:u16 …
    [size:u8 endpoint:u32 node]                  who holds them; not in rows of earlier versions,
                                                 nor in those of the work queue, which nobody holds

A receiver's exception, a log message that it had moved (its rank) or parked (its position):

    state:u8 place:(priority:u32 position:u64) attempts:u16 [spent:u16]

``spent`` is how many of the attempts were made before it was renewed last. It is not in rows of
what never was, nor in those of earlier versions, where attempts began anew.

Other values are MessagePack arrays; ``pack`` and ``unpack`` serve them. Those that are read in more
than one place have a name and a decoder here.
"""

import struct
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NamedTuple

import msgpack

from asterism.errors import PeerError
from asterism.packing import pack_value
from asterism.storage.keys import PRIORITY_NONE

# A message row's state.
NATURAL: Final = 0  # waits by its own key
PLACED: Final = 1  # waits by a w row, at ``rank``
PARKED: Final = 2  # failed for good; a p row names it
DRAFT: Final = 3  # not set yet
DELAYED: Final = 4  # not before a t row says so

# Its flags.
HAS_PRODUCER: Final = 1  # a receipt was asked for
HAS_DUE: Final = 2  # a t row ends it, not the walk in sequence order
ONLY_PARKED: Final = 4  # it expired, and stays for its parked deliveries alone
RENEWED: Final = 8  # with the former: one of them is renewed and not done, so that it is held again
HAS_SPENT: Final = 16  # it was renewed: in rows alone, a ``Record`` has the number

# The fixed beginning of a message's row, big-endian: who reads many at once reads by the column.
RECORD_FIELDS: Final = (
    ("state", "B"), ("flags", "B"), ("attempts", "H"), ("accepted_ms", "Q"), ("expires_ms", "Q"),
    ("holder", "I"), ("header_size", "H"), ("priority", "I"), ("position", "Q"),
)  # fmt: skip
_FIXED: Final = struct.Struct(">" + "".join(code for _, code in RECORD_FIELDS))
_PRODUCER: Final = struct.Struct(">16sQ")
_PAGE: Final = struct.Struct(">BIQQI")
_HOLDER: Final = struct.Struct(">BI")
_EXCEPTION: Final = struct.Struct(">BIQH")
_SPENT: Final = struct.Struct(">H")
SPENT_BYTES: Final = _SPENT.size
ATTEMPTS_MAX: Final = 0xFFFF  # a count that reaches it stays there
_LOW_64: Final = 2**64 - 1


def is_held(flags: int) -> bool:
    """Does a log message with these flags count as held?"""
    return flags & (ONLY_PARKED | RENEWED) != ONLY_PARKED


@dataclass(slots=True)
class Record:
    """A message row, decoded."""

    state: int
    flags: int
    attempts: int
    accepted_ms: int
    expires_ms: int
    rank: int
    holder: int
    producer: bytes | None
    number: int
    id: bytes
    header: bytes
    payload: bytes
    spent: int = 0


def encode_record(record: Record) -> bytes:
    """The row of a message."""
    return encode_fields(
        record.state, record.flags, record.attempts, record.accepted_ms, record.expires_ms,
        record.rank, record.holder, record.producer, record.number, record.id, record.header,
        record.payload, record.spent,
    )  # fmt: skip


def encode_fields(
    state: int,
    flags: int,
    attempts: int,
    accepted_ms: int,
    expires_ms: int,
    rank: int,
    holder: int,
    producer: bytes | None,
    number: int,
    message_id: bytes,
    header: bytes,
    payload: bytes,
    spent: int = 0,
) -> bytes:
    """The row of a message from its fields: publishing builds no ``Record``."""
    if spent:
        message_id = _SPENT.pack(min(spent, ATTEMPTS_MAX)) + message_id
    fixed = _FIXED.pack(
        state,
        flags | HAS_SPENT if spent else flags,
        attempts,
        accepted_ms,
        expires_ms,
        holder,
        len(header),
        rank >> 64,
        rank & _LOW_64,
    )
    if producer is None:
        return b"".join((fixed, message_id, header, payload))
    return b"".join((fixed, _PRODUCER.pack(producer, number), message_id, header, payload))


_BEGIN: Final = struct.Struct(">BBHQQIHI")
PLAIN_BEGIN: Final = _BEGIN.size
PLAIN_ID: Final = _FIXED.size
PLAIN_HEADER: Final = PLAIN_ID + 16
PRODUCER_BYTES: Final = _PRODUCER.size  # between the beginning and the id, with HAS_PRODUCER


def plain_rows(
    accepted_ms: int,
    expires_ms: int,
    numbers: list[bytes],
    ids: tuple[bytes, ...],
    headers: tuple[bytes, ...],
    payloads: tuple[bytes, ...],
    producer: bytes | None = None,
    first: int = 0,
) -> list[bytes]:
    """The rows of natural messages that were never sent, by the column; ``numbers`` are their
    sequences. Most of them share a header. With a producer, they are its messages from number
    ``first`` on, and it has asked for receipts."""
    join = b"".join
    flags = 0 if producer is None else HAS_PRODUCER
    begins = {
        size: _BEGIN.pack(NATURAL, flags, 0, accepted_ms, expires_ms, 0, size, PRIORITY_NONE)
        for size in set(map(len, headers))
    }
    if producer is not None:
        # What tells the publisher stands between a message's sequence and its id.
        asked = count(first)
        ids = tuple([_PRODUCER.pack(producer, next(asked)) + message_id for message_id in ids])
    if headers.count(headers[0]) == len(headers):
        header, begin = headers[0], begins[len(headers[0])]
        return [
            join((begin, number, message_id, header, payload))
            for number, message_id, payload in zip(numbers, ids, payloads, strict=True)
        ]
    return [
        join((begins[len(header)], number, message_id, header, payload))
        for number, message_id, header, payload in zip(numbers, ids, headers, payloads, strict=True)
    ]


def plain_row(
    accepted_ms: int,
    expires_ms: int,
    sequence: int,
    message_id: bytes,
    header: bytes,
    payload: bytes,
    producer: bytes | None,
    number: int,
) -> bytes:
    """The row of one such message."""
    flags = 0 if producer is None else HAS_PRODUCER
    fixed = _FIXED.pack(
        NATURAL, flags, 0, accepted_ms, expires_ms, 0, len(header), PRIORITY_NONE, sequence
    )
    if producer is None:
        return b"".join((fixed, message_id, header, payload))
    return b"".join((fixed, _PRODUCER.pack(producer, number), message_id, header, payload))


class PlainBegin(NamedTuple):
    """What the rows of such messages have in common."""

    accepted_ms: int
    expires_ms: int
    header_size: int
    asks: bool  # for receipts, so that the producer and its number stand before the id


def read_plain_begin(begin: bytes) -> PlainBegin | None:
    """What such rows begin with; ``None`` for the beginning of another row."""
    state, flags, attempts, accepted_ms, expires_ms, holder, size, priority = _BEGIN.unpack(begin)
    if (state, attempts, holder, priority) != (NATURAL, 0, 0, PRIORITY_NONE):
        return None
    if flags not in (0, HAS_PRODUCER):
        return None
    return PlainBegin(accepted_ms, expires_ms, size, flags == HAS_PRODUCER)


def read_plain_producer(row: bytes) -> tuple[bytes, int]:
    """Who asked for the receipt of such a message, and which of its messages it is."""
    producer, number = _PRODUCER.unpack_from(row, PLAIN_ID)
    return producer, number


def decode_record(row: bytes) -> Record:
    """A message from its row; ``internal`` if the row is not one."""
    try:
        state, flags, attempts, accepted_ms, expires_ms, holder, size, priority, position = (
            _FIXED.unpack_from(row)
        )
        start, producer, number, spent = _FIXED.size, None, 0, 0
        if flags & HAS_PRODUCER:
            producer, number = _PRODUCER.unpack_from(row, start)
            start += _PRODUCER.size
        if flags & HAS_SPENT:
            (spent,) = _SPENT.unpack_from(row, start)
            start += _SPENT.size
    except struct.error as error:
        raise PeerError("internal", f"a message row is damaged: {error}") from None
    body = start + 16
    if len(row) < body + size or state > DELAYED:
        raise PeerError("internal", "a message row is damaged: it is cut short")
    return Record(
        state, flags & ~HAS_SPENT, attempts, accepted_ms, expires_ms, priority << 64 | position,
        holder, producer, number, row[start:body], row[body : body + size], row[body + size :],
        spent,
    )  # fmt: skip


@dataclass(slots=True)
class PageRecord:
    """A page row, decoded."""

    status: int
    receiver: int
    started_ms: int
    deadline_ms: int
    entries: list[tuple[int, int]]  # sequence, attempt
    holder: tuple[bytes, int] | None = None  # a node, and its endpoint


def encode_holder(node: bytes, endpoint: int) -> bytes:
    return _HOLDER.pack(len(node), endpoint) + node


def encode_page(record: PageRecord) -> bytes:
    entries = record.entries
    head = _PAGE.pack(
        record.status, record.receiver, record.started_ms, record.deadline_ms, len(entries)
    )
    sequences = struct.pack(f">{len(entries)}Q", *[sequence for sequence, _ in entries])
    attempts = struct.pack(
        f">{len(entries)}H", *[min(attempt, ATTEMPTS_MAX) for _, attempt in entries]
    )
    held = b"" if record.holder is None else encode_holder(*record.holder)
    return b"".join((head, sequences, attempts, held))


def encode_first_page(
    status: int,
    receiver: int,
    started_ms: int,
    deadline_ms: int,
    first: int,
    count: int,
    holder: tuple[bytes, int],
) -> bytes:
    """The row of a page with so many messages from one on, each sent for the first time."""
    head = _PAGE.pack(status, receiver, started_ms, deadline_ms, count)
    held = encode_holder(*holder)
    if count == 1:
        return b"".join((head, first.to_bytes(8, "big"), b"\0\1", held))
    sequences = struct.pack(f">{count}Q", *range(first, first + count))
    return b"".join((head, sequences, b"\0\1" * count, held))


def decode_page(row: bytes) -> PageRecord:
    try:
        status, receiver, started_ms, deadline_ms, count = _PAGE.unpack_from(row)
        sequences = struct.unpack_from(f">{count}Q", row, _PAGE.size)
        attempts = struct.unpack_from(f">{count}H", row, _PAGE.size + 8 * count)
        holder = _decode_holder(row[_PAGE.size + 10 * count :])
    except (struct.error, MemoryError) as error:
        raise PeerError("internal", f"a page row is damaged: {error}") from None
    entries = list(zip(sequences, attempts, strict=True))
    return PageRecord(status, receiver, started_ms, deadline_ms, entries, holder)


def _decode_holder(held: bytes) -> tuple[bytes, int] | None:
    if not held:
        return None
    size, endpoint = _HOLDER.unpack_from(held)
    node = held[_HOLDER.size :]
    if len(node) != size:
        raise struct.error(f"its holder has {len(node)} bytes, not {size}")
    return node, endpoint


class ExceptionRow(NamedTuple):
    """A ``d`` row: a log message that a receiver had moved or parked."""

    state: int
    place: int
    attempts: int
    spent: int


def encode_exception(state: int, place: int, attempts: int, spent: int = 0) -> bytes:
    row = _EXCEPTION.pack(state, place >> 64, place & _LOW_64, min(attempts, ATTEMPTS_MAX))
    return row + _SPENT.pack(min(spent, ATTEMPTS_MAX)) if spent else row


def decode_exception(row: bytes) -> ExceptionRow:
    """An exception from its row; ``internal`` if the row is not one."""
    begin, rest = row[: _EXCEPTION.size], row[_EXCEPTION.size :]
    try:
        state, priority, position, attempts = _EXCEPTION.unpack(begin)
        (spent,) = _SPENT.unpack(rest) if rest else (0,)
    except struct.error as error:
        raise PeerError("internal", f"an exception row is damaged: {error}") from None
    return ExceptionRow(state, priority << 64 | position, attempts, spent)


def pack(*values: object) -> bytes:
    """A row of several values."""
    return pack_value(values)


def unpack(row: bytes, count: int, least: int | None = None) -> Any:
    """The values of a row; ``internal`` unless there are ``count``, or, of one that an earlier
    version may have written, ``least``."""
    try:
        values = msgpack.unpackb(row, use_list=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise PeerError("internal", f"a row is damaged: {error}") from None
    if type(values) is not tuple or len(values) not in (count, least):
        raise PeerError("internal", f"a row is damaged: it does not hold {count} values")
    return values


# --- rows of several values, by name --------------------------------------------------------------


class ReceiverRow(NamedTuple):
    """An ``r`` row: a durable receiver. A timeout that is none is the topic's.

    An ``e`` row has the same of a receiver that lives with its connections, and the interests of
    one endpoint.
    """

    name: str
    interests: tuple[str, ...]
    sent_timeout_ms: int | None
    received_timeout_ms: int | None


class ParkedRow(NamedTuple):
    """A ``p`` row: a parked delivery. Its list is the pool's, or the number of a receiver."""

    list_number: int
    sequence: int
    receiver: str
    reason: str
    attempts: int
    failed_ms: int


class FaredRow(NamedTuple):
    """A ``v`` row: how a log message fared with a receiver. A time that never came is 0."""

    receiver: str
    status: str
    attempts: int
    sent_ms: int
    received_ms: int
    ended_ms: int


class HistoryRow(NamedTuple):
    """An ``h`` row: how a message ended. ``ladder`` has by receiver what a ``FaredRow`` says."""

    id: bytes
    header: bytes
    payload: bytes | None
    accepted_ms: int
    resolved_ms: int
    verdict: str
    ladder: dict[str, tuple[str, int, int, int, int]]


def decode_receiver(row: bytes) -> ReceiverRow:
    return ReceiverRow._make(unpack(row, 4))


def decode_parked(row: bytes) -> ParkedRow:
    return ParkedRow._make(unpack(row, 6))


def decode_fared(row: bytes) -> FaredRow:
    return FaredRow._make(unpack(row, 6))


def decode_history(row: bytes) -> HistoryRow:
    return HistoryRow._make(unpack(row, 7))


def decode_settings(row: bytes) -> dict[str, Any]:
    """An ``s`` row: what was set on the topic itself, as ``settings.plain_overrides`` gives it."""
    return dict(unpack(row, 1)[0])


class FloorRow(NamedTuple):
    """An ``f`` row: all before the floor is done by its receiver, and of those below
    ``counted_to`` it owes so many; ``None`` where nobody has counted."""

    floor: int
    owed: int | None
    counted_to: int


_FLOOR: Final = struct.Struct(">QQQ")
_UNCOUNTED: Final = 2**64 - 1


def encode_floor(floor: int, owed: int | None, counted_to: int) -> bytes:
    return _FLOOR.pack(floor, _UNCOUNTED if owed is None else owed, counted_to)


def decode_floor(row: bytes) -> FloorRow:
    """An ``f`` row; one of an earlier version has the floor alone."""
    if len(row) == 8:
        return FloorRow(int.from_bytes(row, "big"), None, 0)
    try:
        floor, owed, counted_to = _FLOOR.unpack(row)
    except struct.error as error:
        raise PeerError("internal", f"a row is damaged: {error}") from None
    return FloorRow(floor, None if owed == _UNCOUNTED else owed, counted_to)
