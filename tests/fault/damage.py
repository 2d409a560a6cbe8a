"""Damage to a store's files: what comes back is whole, or it is refused with what to do.

    python -m tests.fault.damage --times 1000 --seed 1

A store with traffic is closed, or killed; a bit of one of its files is flipped, or the file is cut
short, emptied or deleted. Then it is opened, and everything is read. Each time

- it holds exactly what it held (*whole*), or
- a ``StoreError`` says what to do: restore it from a snapshot, or accept the loss (*refused*).

Anything else is *silent*, and none may be. One damage at a time: the mark and the log are witnesses
of each other, and who damages both can hide what they say.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from asterism.storage.store import Budget, Store, StoreError

LOW, HIGH = b"\x01", b"\x02"
STORES: Final = 12  # that are made, and damaged over and over again
TURNS: Final = 60
WORKING: Final = (
    "rocksdb.num-immutable-mem-table",
    "rocksdb.compaction-pending",
    "rocksdb.num-running-compactions",
)
ADVICE: Final = ("snapshot", "accept_loss", "Use the version", "another folder", "not store")


class Made(NamedTuple):
    """A store before it is damaged, and what it holds."""

    folder: Path
    rows: dict[bytes, bytes]


def make(folder: Path, chance: random.Random) -> Made:
    """A store with traffic: batches synced at once and later, tables, turns of its log."""
    state: dict[bytes, bytes] = {}
    budget = Budget(write_bytes=chance.choice((20_000, 200_000, 64 << 20)))
    with Store(folder / "live", budget=budget) as store:
        for turn in range(chance.randint(5, TURNS)):
            for _ in range(chance.randint(1, 4)):
                key = LOW + b"%d" % chance.randrange(200)
                state[key] = chance.randbytes(chance.choice((20, 300, 2_000)))
                store.put(key, state[key])
            if turn % 7 == 3:
                low, high = sorted(LOW + b"%d" % chance.randrange(200) for _ in range(2))
                store.delete_range(low, high)
                state = {key: value for key, value in state.items() if not low <= key < high}
            store.commit(sync=chance.random() < 0.7)
            if chance.random() < 0.05:
                store.flush()
        store.sync()
        while any(map(store._rocksdb.property_int_value, WORKING)):
            time.sleep(0.001)  # its files go while they are copied
        if chance.random() < 0.5:
            shutil.copytree(folder / "live", folder / "killed")
            return Made(folder / "killed", state)
    return Made(folder / "live", state)


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def delete(path: Path, chance: random.Random) -> None:
    path.unlink()


Damage = Callable[[Path, random.Random], None]
DAMAGES: Final[tuple[Damage, ...]] = (flip, flip, flip, cut, empty, delete)


def try_once(made: Made, folder: Path, chance: random.Random) -> tuple[str, str]:
    """What came of one damage: a word, and what was done to which file."""
    shutil.copytree(made.folder, folder)
    files = sorted(path for path in folder.iterdir() if path.stat().st_size)
    path, damage = chance.choice(files), chance.choice(DAMAGES)
    damage(path, chance)
    about = f"{damage.__name__} of {path.name} in a {made.folder.name} store"
    try:
        with Store(folder) as store:
            found = dict(store.scan(LOW, HIGH))
            store.put(LOW + b"new", b"1")  # whatever opens can be written to
            store.commit()
    except StoreError as error:
        said = str(error)
        return ("refused" if any(word in said for word in ADVICE) else "without advice"), about
    return ("whole" if found == made.rows else "silent"), about


def run(times: int, seed: int, home: Path, tell: Callable[[Counter[str]], None]) -> Counter[str]:
    """Damages stores so often; counts what came of it, and of what if it was wrong."""
    chance = random.Random(seed)
    counts: Counter[str] = Counter()
    stores = [make(home / f"store-{number}", chance) for number in range(min(STORES, times))]
    for number in range(times):
        folder = home / "damaged"
        word, about = try_once(stores[number % len(stores)], folder, chance)
        shutil.rmtree(folder)
        counts[word] += 1
        if word not in ("whole", "refused"):
            counts[f"{word}: {about}"] += 1
        tell(counts)
    return counts


def summary(counts: Counter[str]) -> str:
    times = counts["whole"] + counts["refused"] + counts["silent"] + counts["without advice"]
    return (
        f"{times:,} damages: {counts['whole']} opened whole, {counts['refused']} refused, "
        f"{counts['without advice']} refused without advice, {counts['silent']} silent losses"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.damage")
    parser.add_argument("--times", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    shown_s = time.monotonic()

    def tell(counts: Counter[str]) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s > 2:
            shown_s = time.monotonic()
            sys.stderr.write(f"{summary(counts)}\n")

    memory = Path("/dev/shm")
    place = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="asterism-damage-", dir=place) as home:
        counts = run(asked.times, asked.seed, Path(home), tell)
    for found, times in sorted(counts.items()):
        if ": " in found:
            sys.stdout.write(f"{times} {found}\n")
    sys.stdout.write(f"{summary(counts)}\n")
    return int(bool(counts["silent"] or counts["without advice"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
