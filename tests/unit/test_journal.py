"""The journal of a store: what is found in it again, byte by byte."""

import os
import zlib
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import msgpack
import pytest

from asterism.storage.journal import (
    ENTRY_BYTES_MAX,
    ENTRY_ROWS_MAX,
    JOURNAL_BYTES,
    JOURNAL_NAME,
    Batch,
    Entry,
    Journal,
)

IDENTITY = b"a database of the tests"
HEAD_BYTES = 28


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "IDENTITY").write_bytes(IDENTITY)
    return tmp_path


@pytest.fixture
def journal(folder: Path) -> Iterator[Journal]:
    opened = Journal(folder)
    opened.begin_round()
    yield opened
    opened.close()


def batch(number: int, size: int = 40) -> Batch:
    """Two rows and a range: three writes."""
    rows = {b"key %d" % number: bytes([number % 256]) * size, b"other": None}
    return Batch([b"low %d" % number], [b"low %d!" % number], rows)


def append(journal: Journal, first: int, number: int, size: int = 40) -> bool:
    """Appends a batch, and has it written."""
    if not journal.append(first, 3, batch(number, size)):
        return False
    journal.begin_sync()
    return True


def entry(first: int, number: int) -> Entry:
    return Entry(first, first + 2, batch(number))


def read_again(folder: Path) -> list[Entry]:
    journal = Journal(folder)
    entries = list(journal.read())
    journal.close()
    return entries


def content(folder: Path) -> bytearray:
    return bytearray((folder / JOURNAL_NAME).read_bytes())


# --- what is there --------------------------------------------------------------------------------


def test_a_new_journal_has_its_size_and_nothing_in_it(folder: Path) -> None:
    journal = Journal(folder)
    assert content(folder) == bytes(JOURNAL_BYTES)
    assert journal.is_empty()
    assert list(journal.read()) == []
    journal.close()


def test_nothing_is_appended_before_a_round_has_begun(folder: Path) -> None:
    journal = Journal(folder)
    assert not append(journal, 1, 1)
    journal.close()
    assert content(folder) == bytes(JOURNAL_BYTES)


def test_entries_are_found_again_in_order_and_whole(journal: Journal, folder: Path) -> None:
    for number in range(5):
        assert journal.append(10 + 3 * number, 3, batch(number))
        if number in (0, 3):
            journal.begin_sync()
    assert len(read_again(folder)) == 4
    journal.sync()
    assert not journal.is_empty()
    assert journal.last == 24
    assert read_again(folder) == [entry(10 + 3 * number, number) for number in range(5)]


def test_the_layout_is_as_it_is_drawn(journal: Journal, folder: Path) -> None:
    assert append(journal, 7, 1)
    rows = msgpack.packb([[b"low 1"], [b"low 1!"], {b"key 1": b"\x01" * 40, b"other": None}])
    name = blake2b((7).to_bytes(8, "big") + IDENTITY, digest_size=8).digest()
    head = name + (7).to_bytes(8, "big") + (3).to_bytes(4, "big") + len(rows).to_bytes(4, "big")
    check = zlib.crc32(head + rows).to_bytes(4, "big")
    wanted = head + check + rows
    assert len(head + check) == HEAD_BYTES
    assert content(folder)[: len(wanted)] == wanted
    assert not any(content(folder)[len(wanted) :])


def test_an_empty_value_is_a_value_and_none_is_a_deletion(journal: Journal, folder: Path) -> None:
    assert journal.append(1, 2, Batch([], [], {b"empty": b"", b"gone": None}))
    journal.sync()
    assert read_again(folder) == [Entry(1, 2, Batch([], [], {b"empty": b"", b"gone": None}))]


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The files that were synced, in order."""
    synced: list[int] = []

    def noted(call: Callable[[int], None]) -> Callable[[int], None]:
        def sync(file: int) -> None:
            synced.append(file)
            call(file)

        return sync

    monkeypatch.setattr(os, "fsync", noted(os.fsync))
    monkeypatch.setattr(os, "fdatasync", noted(os.fdatasync))
    return synced


def test_a_journal_is_synced_when_it_is_made_and_when_it_is_asked_for(
    syncs: list[int], folder: Path
) -> None:
    journal = Journal(folder)
    assert syncs == [journal._file]
    journal.begin_round()
    assert append(journal, 1, 1)
    assert append(journal, 4, 2)
    assert len(syncs) == 1
    journal.sync()
    assert syncs == [journal._file] * 2
    journal.erase()
    assert syncs == [journal._file] * 3
    journal.close()


# --- bounds ---------------------------------------------------------------------------------------


def test_a_batch_that_is_too_large_is_not_taken(journal: Journal) -> None:
    assert append(journal, 1, 1, ENTRY_BYTES_MAX)
    assert not append(journal, 4, 2, ENTRY_BYTES_MAX + 1)
    rows: dict[bytes, bytes | None] = {b"%d" % number: b"" for number in range(ENTRY_ROWS_MAX)}
    assert journal.append(4, len(rows), Batch([], [], rows))
    rows[b"one more"] = None
    assert not journal.append(4 + ENTRY_ROWS_MAX, len(rows), Batch([], [], rows))
    assert journal.last == 3 + ENTRY_ROWS_MAX


def test_a_journal_that_is_full_takes_no_more_until_a_round_begins(folder: Path) -> None:
    journal = Journal(folder, 1_000)
    journal.begin_round()
    first = 1
    while append(journal, first, first):
        first += 3
    assert len(content(folder)) == 1_000
    assert journal.last == first - 1 > 3
    assert not append(journal, first, first)
    journal.begin_round()
    assert journal.last == 0
    assert append(journal, first, first)
    assert read_again(folder) == [entry(first, first)]
    journal.close()


def test_a_journal_of_another_size_is_used_as_it_is_or_grows(folder: Path) -> None:
    journal = Journal(folder, 1_000)
    journal.begin_round()
    assert append(journal, 1, 1)
    journal.close()
    assert len(content(folder)) == 1_000
    assert read_again(folder) == [entry(1, 1)]
    assert len(content(folder)) == JOURNAL_BYTES
    Journal(folder, 1_000).close()
    assert len(content(folder)) == JOURNAL_BYTES


# --- what is not of this round --------------------------------------------------------------------


def test_what_is_left_of_the_round_before_is_not_read(journal: Journal, folder: Path) -> None:
    for number in range(5):
        assert append(journal, 1 + 3 * number, number)
    assert journal.append(16, 3, batch(5))  # and is not written
    journal.begin_round()
    assert append(journal, 16, 5)
    # Of the same size as the one that it has replaced: the next old entry begins right behind it.
    assert read_again(folder) == [entry(16, 5)]


def test_what_another_database_wrote_is_not_read(journal: Journal, folder: Path) -> None:
    assert append(journal, 1, 1)
    (folder / "IDENTITY").write_bytes(b"another")
    assert read_again(folder) == []
    (folder / "IDENTITY").unlink()
    assert read_again(folder) == []
    (folder / "IDENTITY").write_bytes(IDENTITY)
    assert read_again(folder) == [entry(1, 1)]


def test_an_erased_journal_is_empty_for_good(journal: Journal, folder: Path) -> None:
    for number in range(3):
        assert append(journal, 1 + 3 * number, number)
    journal.erase()
    assert journal.is_empty()
    assert read_again(folder) == []


# --- damage ---------------------------------------------------------------------------------------


def test_an_entry_torn_at_any_byte_is_none_and_those_before_it_stay(
    journal: Journal, folder: Path
) -> None:
    assert append(journal, 1, 1)
    begin = journal._at
    before = content(folder)
    assert append(journal, 4, 2)
    after = content(folder)
    for torn in range(begin, journal._at):
        (folder / JOURNAL_NAME).write_bytes(after[:torn] + before[torn:])
        assert read_again(folder) == [entry(1, 1)]
    (folder / JOURNAL_NAME).write_bytes(after)
    assert read_again(folder) == [entry(1, 1), entry(4, 2)]


def test_a_flipped_bit_ends_what_is_read_there(journal: Journal, folder: Path) -> None:
    ends = [0]
    for number in range(3):
        assert append(journal, 1 + 3 * number, number)
        ends.append(journal._at)
    whole = content(folder)
    for position in range(ends[-1]):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        (folder / JOURNAL_NAME).write_bytes(damaged)
        kept = sum(end <= position for end in ends[1:])
        assert read_again(folder) == [entry(1 + 3 * number, number) for number in range(kept)]


def test_any_bytes_at_all_are_read_without_an_error(folder: Path) -> None:
    for size in (0, 1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 1, 5_000):
        (folder / JOURNAL_NAME).write_bytes(os.urandom(size))
        assert read_again(folder) == []
