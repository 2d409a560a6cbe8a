"""Stores of format 1, read for the last time: RocksDB with a log of its own, and a journal.

Small batches were synced in the journal, a file that was overwritten from its start each time that
everything in it was synced in RocksDB's log. The mark of such a store is a sequence number of
RocksDB, which counts one for every put, delete and range of a batch.

    entry   round:8  first:u64  count:u32  size:u32  check:u32    big-endian, 28 bytes
            rows     size bytes: MessagePack, an array of lows, highs, {key: value or nil}

``first`` is the sequence number of the first of ``count`` writes. The name of a round is a digest
of RocksDB's identity and the ``first`` of its first entry.

What RocksDB has recovered may have a hole: where it began a second log and a power cut took the end
of the first one, it goes on with the second. The journal has everything since RocksDB's log was
synced, in order. So all of it is written again, not only what is behind the last number, and that
closes a hole too.
"""

import struct
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

import msgpack

from asterism.storage.folder import RESTORE, StoreError
from asterism.storage.log import Batch

JOURNAL_NAME: Final = "journal"
_HEAD: Final = struct.Struct(">8sQII")
_CHECK: Final = struct.Struct(">I")
_HEAD_BYTES: Final = _HEAD.size + _CHECK.size
_ROUND_BYTES: Final = 8


class _Noted(NamedTuple):
    """A batch, and the sequence numbers of its writes."""

    first: int
    last: int
    batch: Batch


def batches_to_repeat(folder: Path, sequence: int) -> tuple[int, list[Batch]]:
    """What has to be written to a RocksDB that has recovered up to ``sequence``; and the sequence
    number up to which all writes are there then."""
    noted: list[_Noted] = []
    for entry in _read_journal(folder):
        if noted and entry.first != noted[-1].last + 1:
            # A batch that was too large for the journal: RocksDB's log was synced behind it.
            noted.clear()
        noted.append(entry)
    if not noted or noted[-1].last < sequence:
        return sequence, []  # RocksDB's log was synced behind all that is in the journal
    first = noted[0].first
    if first > sequence + 1:
        raise StoreError(
            f"{folder}: {first - 1 - sequence} synced writes are missing: the journal goes on "
            f"behind write {first - 1}, and RocksDB's log ends at {sequence}. {RESTORE}"
        )
    return noted[-1].last, [entry.batch for entry in noted]


def _read_journal(folder: Path) -> Iterator[_Noted]:
    """The entries of the last round, up to the first that is not whole."""
    try:
        content = (folder / JOURNAL_NAME).read_bytes()
        identity = (folder / "IDENTITY").read_bytes()
    except FileNotFoundError:
        return  # of before there was a journal; RocksDB makes the other one
    at, name, expected = 0, b"", 0
    while at + _HEAD_BYTES <= len(content):
        round_, first, count, size = _HEAD.unpack_from(content, at)
        (check,) = _CHECK.unpack_from(content, at + _HEAD.size)
        if not at:
            named = first.to_bytes(8, "big") + identity
            name, expected = blake2b(named, digest_size=_ROUND_BYTES).digest(), first
        rows = content[at + _HEAD_BYTES : at + _HEAD_BYTES + size]
        is_next = round_ == name and first >= expected and count and len(rows) == size
        if not is_next or check != zlib.crc32(rows, zlib.crc32(content[at : at + _HEAD.size])):
            return
        expected = first + count
        yield _Noted(first, expected - 1, Batch(*msgpack.unpackb(rows, strict_map_key=False)))
        at += _HEAD_BYTES + size
