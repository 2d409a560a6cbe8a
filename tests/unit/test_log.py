"""The log of a store: what is found in it again, byte by byte, and what its files prove."""

import itertools
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.storage.log import ENTRIES_AT, LOG_NAMES, START_BYTES, STEP_BYTES, Batch, FileLog, Log
from asterism.storage.store import StoreError

STORE = bytes(range(16))
HEADER = struct.Struct(">8sI16s16sQI")
HEAD = struct.Struct(">16sQQII")
TURN_BYTES = 3_000
FULL = ENTRIES_AT + TURN_BYTES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    FileLog.create(tmp_path, STORE, 0)
    return tmp_path


def opened(folder: Path, after: int = 0, turn_bytes: int = TURN_BYTES) -> FileLog:
    """A log to which can be appended: all that was found in it is in tables."""
    log = FileLog(folder, STORE, turn_bytes)
    log.read(after)
    log.trim(log.last)
    return log


@pytest.fixture
def log(folder: Path) -> Iterator[FileLog]:
    made = opened(folder)
    yield made
    made.close()


def batch(number: int, size: int = 40) -> Batch:
    rows: dict[bytes, bytes | None] = {b"a%d" % number: bytes([number % 256]) * size, b"b": None}
    return Batch([b"c"], [b"d"], rows)


def append(log: Log, *numbers: int, size: int = 40) -> None:
    for number in numbers:
        log.append(number, batch(number, size))


def found(folder: Path, after: int = 0) -> tuple[list[int], int]:
    """The positions that are read, and what is claimed."""
    log = FileLog(folder, STORE)
    entries = list(log.read(after))
    log.close()  # which leaves the files as they are
    for entry in entries:
        value = entry.batch.rows[b"a%d" % entry.position] or b""
        assert entry.batch == batch(entry.position, len(value))
    assert log.last == after + len(entries)
    return [entry.position for entry in entries], log.claimed


def found_in_copy(folder: Path, name: str, content: bytes) -> tuple[list[int], int]:
    kept = (folder / name).read_bytes()
    (folder / name).write_bytes(content)
    try:
        return found(folder)
    finally:
        (folder / name).write_bytes(kept)


# --- what is appended ---------------------------------------------------------------------------


def test_a_new_log_is_small_and_empty(folder: Path) -> None:
    assert [(folder / name).stat().st_size for name in LOG_NAMES] == [ENTRIES_AT] * 2
    assert found(folder) == ([], 0)


def test_a_batch_is_found_again_before_it_is_synced(log: FileLog, folder: Path) -> None:
    append(log, 1, 2)
    assert found(folder) == ([1, 2], 0)
    assert log.last == 2


def test_what_does_not_follow_on_is_refused(log: FileLog, folder: Path) -> None:
    append(log, 1, 2)
    for position in (0, 1, 2, 4):
        with pytest.raises(ValueError, match=f"{position} does not follow on 2"):
            append(log, position)
    assert found(folder) == ([1, 2], 0)


def test_a_log_goes_on_behind_what_is_in_tables_already(folder: Path) -> None:
    log = opened(folder, after=7)
    assert log.last == 7
    append(log, 8)
    log.sync()
    assert found(folder, 7) == ([8], 7)
    log.close()


def test_the_layout_is_as_it_is_drawn(log: FileLog, folder: Path) -> None:
    append(log, 1)
    log.sync()
    append(log, 2)
    content = (folder / "log-0").read_bytes()
    magic, version, store, name, base, check = HEADER.unpack_from(content)
    assert (magic, version, store, base) == (b"astrmlog", 1, STORE, 0)
    assert check == zlib.crc32(content[: HEADER.size - 4])
    at = ENTRIES_AT
    for position, synced in ((1, 0), (2, 1)):
        *head, size, check = HEAD.unpack_from(content, at)
        assert head == [name, position, synced]
        rows = content[at + HEAD.size : at + HEAD.size + size]
        assert check == zlib.crc32(content[at : at + HEAD.size - 4] + rows)
        assert msgpack.unpackb(rows, strict_map_key=False) == list(batch(position))
        at += HEAD.size + size
    assert not any(content[at:])


def test_an_empty_value_is_a_value_and_none_is_a_deletion(log: FileLog, folder: Path) -> None:
    log.append(1, Batch([], [], {b"empty": b"", b"gone": None}))
    other = FileLog(folder, STORE)
    (entry,) = other.read(0)
    assert entry.batch.rows == {b"empty": b"", b"gone": None}
    other.close()


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []

    def note(file: int) -> None:
        seen.append(file)

    monkeypatch.setattr(os, "fdatasync", note)
    monkeypatch.setattr(os, "fsync", note)
    return seen


def test_what_is_appended_is_synced_when_it_is_asked_for_and_once(
    log: FileLog, syncs: list[int]
) -> None:
    append(log, 1, 2)
    log.begin_sync()
    assert syncs == []
    log.sync()
    log.sync()
    assert len(syncs) == 1


def test_a_new_log_is_there_after_a_power_cut(tmp_path: Path, syncs: list[int]) -> None:
    FileLog.create(tmp_path, STORE, 0)
    assert len(syncs) == 3  # each file, and their names


# --- turning and trimming -----------------------------------------------------------------------


def test_a_full_segment_is_followed_by_the_other_once_that_is_trimmed(folder: Path) -> None:
    log = opened(folder)
    position = 0
    for _ in range(3):
        first = position + 1
        while log._current is None or log._current.end < FULL:
            position += 1
            append(log, position)
        append(log, position + 1)  # in the other one
        assert log._current.last == log._current.base + 1 == position + 1
        position += 1
        assert found(folder, first - 1)[0] == list(range(first, position + 1))
        log.trim(position - 1)
    log.close()


def test_a_segment_grows_while_the_other_is_not_trimmed(folder: Path) -> None:
    log = opened(folder)
    append(log, *range(1, 40), size=600)
    assert found(folder)[0] == list(range(1, 40))
    first, second = ((folder / name).stat().st_size for name in LOG_NAMES)
    assert FULL <= first <= 2 * FULL < 20_000 < second
    log.trim(39)
    append(log, 40)
    assert found(folder, 39)[0] == [40]
    assert log._current is log._segments[0]
    log.close()


def test_a_segment_that_has_grown_for_a_large_batch_gives_it_back(folder: Path) -> None:
    log = opened(folder)
    append(log, 1, size=3 << 20)
    assert log._current is not None
    grown = log._current
    append(log, 2)
    log.trim(2)
    append(log, *range(3, 60))
    log.trim(59)
    append(log, *range(60, 120))
    assert 60_000 < grown.size <= FULL + STEP_BYTES
    log.close()


def test_a_turn_syncs_what_it_claims(folder: Path, syncs: list[int]) -> None:
    log = opened(folder)
    for position in itertools.count(1):
        if log._current is not None and log._current.end >= FULL:
            break
        append(log, position)
    assert syncs == []
    append(log, position)
    assert syncs == [log._segments[0].file]
    assert found(folder) == (list(range(1, position + 1)), position - 1)
    log.close()


def test_a_segment_grows_by_steps_of_blocks_that_were_written(folder: Path) -> None:
    log = opened(folder, turn_bytes=8 << 20)
    append(log, 1)
    assert (folder / "log-0").stat().st_size == START_BYTES
    append(log, 2, size=START_BYTES)
    assert (folder / "log-0").stat().st_size == 2 * START_BYTES
    append(log, 3, size=4 * START_BYTES)  # more than a step
    append(log, 4)
    assert found(folder)[0] == [1, 2, 3, 4]
    log.close()


def test_a_log_that_is_trimmed_says_that_it_is_empty_and_keeps_nothing(folder: Path) -> None:
    log = opened(folder)
    append(log, *range(1, 50))
    log.trim(49)
    log.close()
    assert found(folder, 49) == ([], 49)
    assert [(folder / name).stat().st_size for name in LOG_NAMES] == [ENTRIES_AT] * 2


def test_a_log_that_is_not_trimmed_is_closed_as_it_is(folder: Path) -> None:
    log = opened(folder)
    append(log, *range(1, 50))
    log.trim(48)
    log.close()
    assert found(folder)[0] == list(range(1, 50))


# --- torn, or damaged ---------------------------------------------------------------------------


def test_an_entry_torn_at_any_byte_is_none_and_those_before_it_stay(
    log: FileLog, folder: Path
) -> None:
    append(log, 1)
    assert log._current is not None
    begin, old = log._current.end, (folder / "log-0").read_bytes()
    append(log, 2)
    new = (folder / "log-0").read_bytes()
    for torn in range(begin, log._current.end - 1):
        assert found_in_copy(folder, "log-0", new[:torn]) == ([1], 0)
        # What was not written is zeros, and so are some bytes of an entry: then nothing is torn.
        for half in (new[:torn] + old[torn:], old[:torn] + new[torn:]):
            if half != new:
                assert found_in_copy(folder, "log-0", half) == ([1], 0)


def test_what_follows_on_a_bad_entry_tells_what_had_been_synced(log: FileLog, folder: Path) -> None:
    ends = [ENTRIES_AT]
    for position in range(1, 6):
        append(log, position)
        assert log._current is not None
        ends.append(log._current.end)
        if position != 4:
            log.sync()
    content = (folder / "log-0").read_bytes()
    # The last one was written when the third was the last that was synced.
    for bad, claimed in ((1, 3), (2, 3), (3, 3), (4, 3), (5, 3)):
        flipped = bytearray(content)
        flipped[(ends[bad - 1] + ends[bad]) // 2] ^= 1
        assert found_in_copy(folder, "log-0", bytes(flipped)) == (list(range(1, bad)), claimed)
    cut = content[: ends[1]] + bytes(ends[2] - ends[1]) + content[ends[2] :]
    assert found_in_copy(folder, "log-0", cut) == ([1], 3)


def test_what_is_left_of_an_earlier_round_is_not_read(folder: Path) -> None:
    log = opened(folder)
    append(log, 1)
    assert log._current is not None
    end = log._current.end
    append(log, 2)
    log.close()
    content = (folder / "log-0").read_bytes()
    # A power cut undoes the first, and leaves the second.
    (folder / "log-0").write_bytes(content[:ENTRIES_AT] + bytes(end - ENTRIES_AT) + content[end:])
    log = opened(folder)
    assert log.last == 0
    log._segments.sort(key=lambda segment: segment.path)  # the same place, another round
    append(log, 1)
    assert log._current is not None
    assert (log._current.path.name, log._current.end) == ("log-0", end)
    assert found(folder) == ([1], 0)
    log.close()


def test_a_header_that_is_damaged_or_of_another_store_is_refused(folder: Path) -> None:
    for name in LOG_NAMES:
        content = (folder / name).read_bytes()
        for at in range(HEADER.size):
            flipped = bytearray(content)
            flipped[at] ^= 1
            with pytest.raises(StoreError, match=rf"{name}' cannot be used: .*accept_loss"):
                found_in_copy(folder, name, bytes(flipped))
        with pytest.raises(StoreError, match="its header is missing"):
            found_in_copy(folder, name, content[:20])
    with pytest.raises(StoreError, match="it belongs to another store"):
        FileLog(folder, bytes(16))


@pytest.mark.parametrize("name", LOG_NAMES)
def test_a_file_that_is_missing_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(StoreError, match=rf"its log '{name}' is missing.*accept_loss"):
        FileLog(folder, STORE)
    assert not (folder / name).exists()


@given(rest=st.binary(max_size=400), at=st.integers(ENTRIES_AT, ENTRIES_AT + 500))
def test_any_bytes_at_all_are_read_without_an_error(
    tmp_path_factory: pytest.TempPathFactory, rest: bytes, at: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    FileLog.create(folder, STORE, 0)
    log = opened(folder)
    append(log, 1, 2, 3)
    content = (folder / "log-0").read_bytes()
    positions, claimed = found_in_copy(
        folder, "log-0", content[:at] + rest + content[at + len(rest) :]
    )
    assert positions == list(range(1, len(positions) + 1))
    assert claimed == 0
    log.close()
