"""Is a snapshot what its manifest says? Every file, every row, every count.

RocksDB has a checksum in each block and checks it when the block is read, so reading all rows reads
all that holds rows. Beyond that, files are compared by size, and by digest where the manifest has
them (a copy's has), which covers every byte.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from asterism.storage.copying import digest_of
from asterism.storage.keys import STORE_TOPIC, number_at_end
from asterism.storage.moving import FIRST_NUMBER
from asterism.storage.reading import ReadOnlyStore
from asterism.storage.records import DRAFT, PARKED, is_held
from asterism.storage.snapshot import Snapshot
from asterism.storage.store import StoreError

Tell = Callable[[int, float], None]  # how many rows are read, and about which part of all
_TELL_ROWS: Final = 10_000
_EVERY_KEY: Final = (b"", b"\xff" * 64)
_TOPIC_ROW: Final = 1
_KIND_AT: Final = 5
_POOL, _LOG, _PARKED = b"mlp"


@dataclass
class Found:
    """What verifying has found."""

    files: int = 0
    rows: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class Counted:
    """What the rows of one topic come to."""

    held: int = 0
    drafting: int = 0
    parked: int = 0
    first_sequence: int | None = None
    last_sequence: int = 0

    def add_message(self, sequence: int) -> None:
        if self.first_sequence is None or sequence < self.first_sequence:
            self.first_sequence = sequence
        self.last_sequence = max(self.last_sequence, sequence)


def verify(snapshot: Snapshot, tell: Tell = lambda rows, part: None) -> Found:
    """Reads all of a snapshot; what does not fit."""
    found = Found()
    for store in snapshot.stores:
        problems = _check_files(snapshot.folder / store["folder"], store["files"], found)
        if not problems:
            problems = _check_rows(snapshot, store, found, tell)
        found.problems += [f"{store['folder']}: {problem}" for problem in problems]
    return found


def _check_files(folder: Path, files: dict[str, Any], found: Found) -> list[str]:
    problems = []
    for name, file in files.items():
        found.files += 1
        try:
            size = (folder / name).stat().st_size
            if size != file["bytes"]:
                problems.append(f"{name} has {size:,} bytes, not {file['bytes']:,}")
            elif "digest" in file and digest_of(folder / name) != file["digest"]:
                problems.append(f"{name} is not as it was: its digest is another")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
    return problems


def _check_rows(snapshot: Snapshot, entry: dict[str, Any], found: Found, tell: Tell) -> list[str]:
    number = entry["number"]
    wanted = {name: topic for name, topic in snapshot.topics.items() if topic["store"] == number}
    try:
        with ReadOnlyStore(snapshot.folder / entry["folder"]) as store:
            numbers, counted = _count(store, found, snapshot, tell)
            place = (store.number, store.count)
    except StoreError as error:
        return [str(error.__cause__ or error)]
    problems = []
    mine = (number, snapshot.manifest["store_count"]) if number < FIRST_NUMBER else (0, 1)
    if place != mine:
        problems.append(f"it is store {place[0]} of {place[1]}, not {mine[0]} of {mine[1]}")
    for name in sorted(wanted.keys() | numbers.keys()):
        if name not in numbers:
            problems.append(f"the topic {name!r} is missing")
        elif name not in wanted:
            problems.append(f"the topic {name!r} is not in the manifest")
        else:
            of_topic = counted.get(numbers[name], Counted())
            problems += _compare(name, wanted[name], numbers[name], of_topic)
    return problems


def _count(
    store: ReadOnlyStore, found: Found, snapshot: Snapshot, tell: Tell
) -> tuple[dict[str, int], dict[int, Counted]]:
    """Every row read: the topics that there are, with their numbers, and what each has."""
    numbers: dict[str, int] = {}
    counted: dict[int, Counted] = {}
    about = max(sum(topic["held"] for topic in snapshot.topics.values()), 1)
    for key, value in store.scan(*_EVERY_KEY):
        found.rows += 1
        if found.rows % _TELL_ROWS == 0:
            tell(found.rows, min(found.rows / about, 1.0))
        if key.startswith(STORE_TOPIC):
            name = key[len(STORE_TOPIC) :].decode(errors="replace")
            numbers[name] = int.from_bytes(value, "big")
        elif key[0] == _TOPIC_ROW:
            _count_row(key, value, counted)
    return numbers, counted


def _count_row(key: bytes, value: bytes, counted: dict[int, Counted]) -> None:
    kind = key[_KIND_AT]
    if kind not in (_POOL, _LOG, _PARKED):
        return
    topic = counted.setdefault(int.from_bytes(key[1:_KIND_AT], "big"), Counted())
    if kind == _PARKED:
        topic.parked += 1
        return
    topic.add_message(number_at_end(key))
    state, flags = value[0], value[1]
    if kind == _LOG:
        topic.held += is_held(flags)
    elif state == DRAFT:
        topic.drafting += 1
    elif state != PARKED:
        topic.held += 1


def _compare(name: str, said: dict[str, Any], number: int, counted: Counted) -> list[str]:
    first = counted.first_sequence
    pairs = {
        "number": (number, said["number"]),
        "held": (counted.held, said["held"]),
        "drafting": (counted.drafting, said["drafting"]),
        "parked": (counted.parked, said["parked"]),
        "first_sequence": (
            said["next_sequence"] if first is None else first,
            said["first_sequence"],
        ),
    }
    problems = [
        f"the topic {name!r} has {what} {is_so:,}, and its manifest says {should:,}"
        for what, (is_so, should) in pairs.items()
        if is_so != should
    ]
    if counted.last_sequence >= said["next_sequence"]:
        problems.append(
            f"the topic {name!r} has a message {counted.last_sequence:,}, and its manifest says "
            f"that {said['next_sequence']:,} is the next"
        )
    return problems
