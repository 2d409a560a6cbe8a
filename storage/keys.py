"""Every key of a store, drawn before any code. Numbers are big-endian, so keys sort as they count.

Store rows begin with 0x00, topic rows with 0x01 and the topic's number. A topic's number is never
given again, so a topic's rows are one range, and deleting the topic is deleting that range.

    00 "applied"                                   up to where it has the log (store.py)
    00 "format"                                    what wrote this store (store.py)
    00 "identity"                                  its random name (store.py)
    00 "next"                                      next topic number, next first sequence
    00 "snapshot"                                  time of the last snapshot, u64: see Shard
    00 "topic" name                                topic number u32

    01 topic:u32 kind:u8 …                         and by kind:
       c                                           head: counters and cursors
       n                                           reserve: a u64, see below
       s                                           the topic's own settings
       m  sequence:u64                             message of the pool (max_receivers = 1), draft
       l  sequence:u64                             message of the log (any other durable)
       w  list:u32 priority:u32 position:u64       waiting elsewhere than by its sequence
       k  list:u32 key:16 position:u64             live message of an ordering key, in key order
       d  receiver:u32 sequence:u64                this receiver's exception: moved or parked
       x  receiver:u32 sequence:u64                done out of order by this receiver
       r  receiver:u32                             durable receiver
       e  receiver:u32 endpoint:u32 node           endpoint of one that lives with its connections
       f  receiver:u32                             its floor: all before it is done; what it owes
       p  position:u64                             parked delivery, in order of failing
       g  page:u64                                 deliveries that went out together
       a  producer:16 first:u64                    answer to one publish of a producer
       o  bucket:u32 producer:16 number:u64        outcome of a receipt
       t  due_ms:u64 what:u8 list:u32 sequence:u64 something to do at a time
       u  digest:16 sequence:u64                   payload of a live message (unique topics)
       v  sequence:u64 receiver:u32                how a log message fared with a receiver
       b  number:u64                               message on its way to the dead-letter topic
       h  resolved_ms:u64 sequence:u64             history

A message of the pool waits by its row in ``m`` alone while it has no priority and was never moved
(*natural* order): publishing it is one row, finishing it one deletion. Otherwise its row says that
it is *placed*, and a ``w`` row of list 0 holds its place. A log message waits by its row in ``l``
for every receiver; one with a priority has a ``w`` row of list 1 besides, common to all, and what
one receiver alone has moved has a ``w`` row of that receiver's list.

A live message with an ordering key has a ``k`` row besides, under a digest of its key. Its value is
the sequence; its list is 0 in the pool, 1 in the log, and a receiver's own where that receiver has
moved it. A delayed or parked one has none. Those that earlier versions accepted have none either.

The head is often not synced, so a power cut may undo what it counts. The *reserve* is synced before
anything leaves the turn that wrote it: a topic has given no sequence at or above it, and a restart
goes on from it. So no sequence is ever given twice, whatever was lost with the power.
"""

import struct
from collections.abc import Sequence
from typing import Final

from asterism.errors import PeerError

POOL: Final = 0  # the w list of the pool
COMMON: Final = 1  # the w list of log messages with a priority
WORK: Final = 2  # the receiver that stands for the consumers of the work queue
WORK_NAME: Final = "work-queue"  # and its name
FIRST_RECEIVER: Final = 16  # receivers are numbered from here
FIRST_PASSING: Final = 2**31  # and those that live with their connections from here
PASSING_NUMBERS: Final = 2**31

PRIORITY_NONE: Final = 2**32 - 1  # sorts behind every priority
POSITION_BITS: Final = 64
_POSITION: Final = (1 << POSITION_BITS) - 1
FIRST_RANK: Final = 0  # before every message: no position is 0
NONE_RANK: Final = PRIORITY_NONE << POSITION_BITS  # the least rank without a priority
RANK_END: Final = (PRIORITY_NONE + 1) << POSITION_BITS  # above every rank

# What is due at a ``t`` row.
DUE_DRAFT: Final = 1
DUE_DELAY: Final = 2
DUE_RETRY: Final = 3
DUE_EXPIRE: Final = 4

STORE_APPLIED: Final = b"\x00applied"
STORE_FORMAT: Final = b"\x00format"
STORE_IDENTITY: Final = b"\x00identity"
STORE_NEXT: Final = b"\x00next"
STORE_SNAPSHOT: Final = b"\x00snapshot"
STORE_TOPIC: Final = b"\x00topic"

_KINDS: Final = b"abcdefghklmnoprstuvwx"


def topic_prefix(number: int) -> bytes:
    """The first bytes of every row of a topic."""
    return b"\x01" + number.to_bytes(4, "big")


def settings_key(number: int) -> bytes:
    """The row of a topic's own settings."""
    return topic_prefix(number) + b"s"


def after(prefix: bytes) -> bytes:
    """The least key above every key that begins with ``prefix``."""
    stripped = prefix.rstrip(b"\xff")
    assert stripped, "no key is above this prefix"
    return stripped[:-1] + bytes([stripped[-1] + 1])


# What may be lost to a power cut, though not to a killed process: the counters of a topic (what
# they count is in rows of its own), who has what, and answers whose messages are in memory alone.
# An answer to a durable message is in one batch with it. What the counters number may then be
# numbered again. Of sequences, drafts' ids and places of parked deliveries, which clients remember,
# the reserve sees that it does not happen. The numbers of receivers and pages are known to rows
# alone, and a row that has one is in one batch with the counter, or in a later one.
# So may the progress of receivers that live with their connections, which their numbers tell: to
# lose it is to deliver again. What they have parked is in one batch with a row that is synced.
_PASSING: Final = frozenset(b"cgae")
_PROGRESS: Final = frozenset(b"dfwx")
_PASSING_BYTE: Final = FIRST_PASSING >> 24  # the least first byte of their numbers


def is_passing(key: bytes) -> bool:
    """Need this row not be synced for its own sake?"""
    if len(key) <= 5 or key[0] != 1:
        return False
    return key[5] in _PASSING or (key[5] in _PROGRESS and key[6] >= _PASSING_BYTE)


def rank_of(priority: int | None, position: int) -> int:
    """One number by which waiting deliveries are ordered: priority first, then position."""
    return ((PRIORITY_NONE if priority is None else priority) << POSITION_BITS) | position


def position_of(rank: int) -> int:
    """A rank without its priority: the place in the order of its ordering key."""
    return rank & _POSITION


class TopicKeys:
    """The keys of one topic. Each method makes a key; its name is the row's noun."""

    __slots__ = (
        "_a",
        "_b",
        "_d",
        "_e",
        "_f",
        "_g",
        "_h",
        "_k",
        "_l",
        "_m",
        "_o",
        "_p",
        "_r",
        "_t",
        "_u",
        "_v",
        "_w",
        "_x",
        "all_rows",
        "head",
        "number",
        "pool_prefix",
        "prefix",
        "reserve",
        "settings",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.prefix = prefix = topic_prefix(number)
        self.all_rows = (prefix, after(prefix))
        self.head = prefix + b"c"
        self.reserve = prefix + b"n"
        self.settings = prefix + b"s"
        self._a = prefix + b"a"
        self._b = prefix + b"b"
        self._d = prefix + b"d"
        self._e = prefix + b"e"
        self._f = prefix + b"f"
        self._g = prefix + b"g"
        self._h = prefix + b"h"
        self._k = prefix + b"k"
        self._l = prefix + b"l"
        self._m = self.pool_prefix = prefix + b"m"
        self._o = prefix + b"o"
        self._p = prefix + b"p"
        self._r = prefix + b"r"
        self._t = prefix + b"t"
        self._u = prefix + b"u"
        self._v = prefix + b"v"
        self._w = prefix + b"w"
        self._x = prefix + b"x"

    def range_of(self, kind: str) -> tuple[bytes, bytes]:
        """All rows of one kind."""
        assert kind.encode() in _KINDS
        low = self.prefix + kind.encode()
        return low, after(low)

    def pool(self, sequence: int) -> bytes:
        return self._m + sequence.to_bytes(8, "big")

    def pool_keys(self, sequences: Sequence[int]) -> list[bytes]:
        """The keys of many messages of the pool."""
        prefix = self._m
        return [prefix + _as_number(sequence) for sequence in sequences]

    def pool_numbers(self, sequences: Sequence[int]) -> tuple[list[bytes], list[bytes]]:
        """Sequences of many messages of the pool as they stand in their keys, and the keys."""
        prefix, numbers = self._m, list(map(_as_number, sequences))
        return numbers, [prefix + number for number in numbers]

    def log(self, sequence: int) -> bytes:
        return self._l + sequence.to_bytes(8, "big")

    def waiting(self, list_number: int, rank: int) -> bytes:
        return self._w + list_number.to_bytes(4, "big") + rank.to_bytes(12, "big")

    def waiting_end(self, list_number: int) -> bytes:
        return self._w + (list_number + 1).to_bytes(4, "big")

    def keyed(self, list_number: int, digest: bytes, position: int) -> bytes:
        return self._k + list_number.to_bytes(4, "big") + digest + position.to_bytes(8, "big")

    def keyed_of(self, list_number: int) -> tuple[bytes, bytes]:
        low = self._k + list_number.to_bytes(4, "big")
        return low, after(low)

    def exception(self, receiver: int, sequence: int) -> bytes:
        return self._d + receiver.to_bytes(4, "big") + sequence.to_bytes(8, "big")

    def exceptions(self, receiver: int) -> tuple[bytes, bytes]:
        return self.exception(receiver, 0), self.exception(receiver + 1, 0)

    def done(self, receiver: int, sequence: int) -> bytes:
        return self._x + receiver.to_bytes(4, "big") + sequence.to_bytes(8, "big")

    def receiver(self, receiver: int) -> bytes:
        return self._r + receiver.to_bytes(4, "big")

    def endpoint(self, receiver: int, node: bytes, number: int) -> bytes:
        return self._e + receiver.to_bytes(4, "big") + number.to_bytes(4, "big") + node

    def floor(self, receiver: int) -> bytes:
        return self._f + receiver.to_bytes(4, "big")

    def parked(self, position: int) -> bytes:
        return self._p + position.to_bytes(8, "big")

    def page(self, number: int) -> bytes:
        return self._g + number.to_bytes(8, "big")

    def answer(self, producer: bytes, first: int) -> bytes:
        return self._a + producer + first.to_bytes(8, "big")

    def answers(self, producer: bytes) -> tuple[bytes, bytes]:
        low = self._a + producer
        return low, low + b"\xff" * 9

    def outcome(self, bucket: int, producer: bytes, number: int) -> bytes:
        return self._o + bucket.to_bytes(4, "big") + producer + number.to_bytes(8, "big")

    def outcomes_before(self, bucket: int) -> tuple[bytes, bytes]:
        return self._o, self._o + bucket.to_bytes(4, "big")

    def due(self, due_ms: int, what: int, list_number: int, sequence: int) -> bytes:
        return self._t + _DUE.pack(due_ms, what, list_number, sequence)

    def due_until(self, now_ms: int) -> tuple[bytes, bytes]:
        return self._t, self._t + (now_ms + 1).to_bytes(8, "big")

    def payload_digest(self, digest: bytes, sequence: int) -> bytes:
        return self._u + digest + sequence.to_bytes(8, "big")

    def payload_digests(self, digest: bytes) -> tuple[bytes, bytes]:
        low = self._u + digest
        return low, low + b"\xff" * 9

    def fared(self, sequence: int, receiver: int) -> bytes:
        return self._v + sequence.to_bytes(8, "big") + receiver.to_bytes(4, "big")

    def fared_all(self, sequence: int) -> tuple[bytes, bytes]:
        low = self._v + sequence.to_bytes(8, "big")
        return low, low + b"\xff" * 5

    def outbox(self, number: int) -> bytes:
        return self._b + number.to_bytes(8, "big")

    def history(self, resolved_ms: int, sequence: int) -> bytes:
        return self._h + resolved_ms.to_bytes(8, "big") + sequence.to_bytes(8, "big")

    def history_before(self, time_ms: int) -> tuple[bytes, bytes]:
        return self._h, self._h + max(time_ms, 0).to_bytes(8, "big")

    def of_receiver(self, receiver: int) -> list[tuple[bytes, bytes]]:
        """The ranges that hold one receiver's own rows."""
        number = receiver.to_bytes(4, "big")
        following = (receiver + 1).to_bytes(4, "big")
        return [
            (kind + number, kind + following)
            for kind in (self._d, self._x, self._w, self._k, self._f, self._r, self._e)
        ]


_DUE: Final = struct.Struct(">QBIQ")
_as_number: Final = struct.Struct(">Q").pack  # a sequence as it stands in a key


def number_at_end(key: bytes, size: int = 8) -> int:
    """The number in the last bytes of a key."""
    return int.from_bytes(key[-size:], "big")


def read_endpoint(key: bytes) -> tuple[int, bytes, int]:
    """The receiver, the node and the number of an ``e`` row."""
    return int.from_bytes(key[6:10], "big"), key[14:], int.from_bytes(key[10:14], "big")


def read_due(key: bytes) -> tuple[int, int, int, int]:
    """The time, what, list and sequence of a ``t`` row."""
    if len(key) != 6 + _DUE.size or key[5:6] != b"t":
        raise PeerError("internal", "not the key of a due row")
    due_ms, what, list_number, sequence = _DUE.unpack_from(key, 6)
    return due_ms, what, list_number, sequence
