"""Power cuts, simulated: a worker's turns over a real store, and a disk that keeps what it must.

    python -m tests.fault.power_cuts --lives 2000 --seed 1

Each machine lives several lives on one folder. In each, clients publish durable and push messages,
and a consumer that runs elsewhere takes them and reports, also on what it got lives ago. Then the
power is cut, at any point of a turn, and the next life begins on what a disk may have kept:

- Of our own files (the segments of the log, the mark), each sector of 512 bytes that was written
  since the file was synced is old or new, in any mixture; so is the file's length. A file whose
  folder was not synced since it was made may be missing. What is synced is known by watching
  ``os.fsync`` and ``os.fdatasync``.
- RocksDB syncs its own files. ``strace`` of a flush shows the order: write and fdatasync of the
  table, fsync of the folder, write and fdatasync of MANIFEST. At its opening, MANIFEST is made anew
  and synced, then CURRENT is written and synced under another name and renamed, and the folder is
  synced. So while a flush is under way the last records of MANIFEST may be missing, cut or zeros,
  and a table that no record names may be missing, cut or zeros. rocksdict's configuration, which
  nobody syncs, and OPTIONS, which nobody needs, may be missing, empty or zeros at any time.

- The small files beside the stores (``stores.json``, ``topic.json``, the note that a store was
  made) have lives of their own, as ``tests/fault/small_files.py`` says.

Segments are small and flushes frequent, so that a life has many turns of the log. After every cut:

- What the store holds is exactly what the batches up to one of them made, and that one is not
  before the last that was confirmed.
- Every durable message that was accepted is there, unless somebody reported on that very message.
- The store opens: a power cut alone is no reason to refuse.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from asterism import commands as ask
from asterism.actors.shard import Shard
from asterism.effects import Accepted, Effect
from asterism.errors import PeerError
from asterism.storage.keys import STORE_APPLIED, is_passing
from asterism.storage.log import LOG_NAMES, Batch
from asterism.storage.records import decode_record
from asterism.storage.store import MARK_NAME, Budget, Store, StoreError
from tests.fault import small_files
from tests.fault.small_files import PowerCutError
from tests.support.core import CoreBroker

SECTOR_BYTES: Final = 512
OURS: Final = (*LOG_NAMES, MARK_NAME)
NOT_NEEDED: Final = ("OPTIONS-", "rocksdict-config")
LIVES_A_MACHINE: Final = 6
STEPS_MAX: Final = 80
EVERYTHING: Final = (b"\x00", b"\x02")
CONSUMER: Final = b"consumer"


class Disk:
    """Which bytes and names of a store's folder are synced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.contents: dict[str, bytes] = {}  # of our files, when they were last synced
        self.names: set[str] = set()
        self.manifest = b""  # what of MANIFEST is known to be synced
        self.tables: set[str] = set()

    def adopt(self) -> None:
        """After a cut, all that is there is on the disk."""
        self.names = set(os.listdir(self.folder)) if self.folder.exists() else set()
        self.contents = {name: self._read(name) for name in OURS if name in self.names}

    def on_sync(self, file: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        if path == self.folder:
            self.names = set(os.listdir(path))
        elif path.parent == self.folder and path.name in OURS:
            self.contents[path.name] = self._read(path.name)

    def note_rocksdb(self) -> None:
        """RocksDB is at rest: all that it wrote is synced."""
        self.manifest = self._manifest()[1]
        self.tables = {path.name for path in self.folder.glob("*.sst")}

    def _read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def _manifest(self) -> tuple[str, bytes]:
        name = self._read("CURRENT").decode().strip()
        return name, self._read(name)

    # --- the cut ----------------------------------------------------------------------------

    def cut(self, to: Path, chance: random.Random, is_flushing: bool) -> None:
        """The folder as it may be when the power is back."""
        name, manifest = self._copy_rocksdb(to)
        is_there = all((to / table).exists() for table in self.tables)
        if is_flushing and is_there and manifest.startswith(self.manifest):
            kept = self._torn(self.manifest, manifest, chance)
            (to / name).write_bytes(kept)
            if kept == self.manifest:
                self._tear_tables(to, chance)
        for path in list(to.iterdir()):
            if path.name.startswith(NOT_NEEDED) and chance.random() < 0.2:
                size = path.stat().st_size
                path.unlink()
                if chance.random() < 0.7:
                    path.write_bytes(bytes(chance.choice((0, size))))
        for ours in OURS:
            self._cut_ours(ours, to, chance)

    def _copy_rocksdb(self, to: Path) -> tuple[str, bytes]:
        """Copies RocksDB's files as they are at one moment, though it goes on writing."""
        while True:
            shutil.rmtree(to, ignore_errors=True)
            to.mkdir()
            name, manifest = self._manifest()
            with suppress(FileNotFoundError):
                for entry in os.listdir(self.folder):
                    if entry not in OURS and entry != name:
                        shutil.copy(self.folder / entry, to)
                (to / name).write_bytes(manifest)
                # Files go when MANIFEST does not name them any more, and not before.
                if self._manifest() == (name, manifest):
                    return name, manifest

    @staticmethod
    def _torn(old: bytes, new: bytes, chance: random.Random) -> bytes:
        # Where the file is longer, what it is longer by was written before, or is zeros as a whole:
        # no file system of ours shows half of it. RocksDB would refuse that.
        cut = chance.randint(len(old), len(new))
        return chance.choice((old, new, new[:cut], old.ljust(len(new), b"\0")))

    def _tear_tables(self, to: Path, chance: random.Random) -> None:
        for path in to.glob("*.sst"):
            if path.name not in self.tables:
                content = path.read_bytes()
                path.unlink()
                if chance.random() < 0.7:
                    cut = chance.randint(0, len(content))
                    path.write_bytes(content[:cut].ljust(chance.choice((cut, len(content))), b"\0"))

    def _cut_ours(self, name: str, to: Path, chance: random.Random) -> None:
        if name not in self.names and chance.random() < 0.5:
            return
        try:
            new = self._read(name)
        except FileNotFoundError:
            return
        old = self.contents.get(name, b"")
        size = chance.choice((len(old), len(new)))
        old, new = old.ljust(size, b"\0"), new.ljust(size, b"\0")
        share = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        parts = [
            (new if chance.random() < share else old)[at : at + SECTOR_BYTES]
            for at in range(0, size, SECTOR_BYTES)
        ]
        (to / name).write_bytes(b"".join(parts)[:size])


def note_flushes(store: Store, disk: Disk) -> None:
    """Lets a disk know of every flush that has ended: only then a store lets its log go.

    One write may find that a flush has ended and begin the next, with no moment between them at
    which nothing is being flushed.
    """
    trim = store._trim

    def noted(up_to: int) -> None:
        disk.note_rocksdb()
        trim(up_to)

    store._trim = noted  # type: ignore[method-assign]


@contextmanager
def watched(disk: Disk) -> Iterator[None]:
    """Lets a disk know of every sync that our own code makes."""
    real = {name: getattr(os, name) for name in ("fsync", "fdatasync")}

    def watch(sync: Callable[[int], None]) -> Callable[[int], None]:
        def synced(file: int) -> None:
            sync(file)
            disk.on_sync(file)

        return synced

    try:
        for name, sync in real.items():
            setattr(os, name, watch(sync))
        yield
    finally:
        for name, sync in real.items():
            setattr(os, name, sync)


class Machine(CoreBroker):
    """A worker's turns over a store, until the power is cut; and the clients, which live on."""

    def __init__(self, home: Path, disk: Disk, chance: random.Random, counts: Counter[str]) -> None:
        self.home = home
        self.disk = disk
        self.chance = chance
        self.counts = counts
        self.always = chance.random() < 0.6  # sync = "always", or else an interval
        self.budget = Budget(write_bytes=chance.choice((3_000, 10_000, 40_000)))
        self.life = 0
        self._model: dict[bytes, bytes] = {}
        self._batches: list[tuple[int, Batch]] = []
        self._confirmed = 0  # the position up to which all is durable
        self._asked: dict[int, list[bytes]] = {}  # durable payloads by their publish
        self._unsure: list[tuple[int, int, bytes]] = []  # accepted, and synced with a later turn
        self.accepted: dict[bytes, int] = {}  # durable payloads, and their sequences
        self.held: list[tuple[int, bytes]] = []  # what the consumer has, of any life
        self.reported: dict[int, set[bytes]] = {}  # by sequence, what reports were about
        self.ended: set[bytes] = set()
        self._unsynced = False
        self._cut_chance = 0.0
        super().__init__(self._open(), max_attempts=3, retry_backoff=None)
        self._begin()

    # --- opening ----------------------------------------------------------------------------

    def _open(self) -> Store:
        self.store = Store(self.disk.folder, budget=self.budget)
        self.disk.note_rocksdb()
        note_flushes(self.store, self.disk)
        self._check_rows()
        return self.store

    def _check_rows(self) -> None:
        found = dict(self.store.scan(*EVERYTHING))
        position = int.from_bytes(found.pop(STORE_APPLIED), "big")
        if not self._model:
            self._model = found
        for at, batch in self._batches:
            if at <= position:
                self._apply(batch)
        assert position >= self._confirmed, "a batch that was confirmed is lost"
        assert found == self._model, f"not what the batches up to {position} made"
        self._batches.clear()
        self._confirmed = position

    def _apply(self, batch: Batch) -> None:
        for low, high in zip(batch.lows, batch.highs, strict=True):
            for key in [key for key in self._model if low <= key < high]:
                del self._model[key]
        for key, value in batch.rows.items():
            if value is None:
                self._model.pop(key, None)
            else:
                self._model[key] = value

    def _begin(self) -> None:
        """What a worker does when it has opened its store; and the consumer comes back."""
        self.end_turn()
        self._sync()
        self.subscribe(CONSUMER, name="one", credit=20)
        self._check_messages()
        self._cut_chance = 0.01

    def _check_messages(self) -> None:
        rows = self.store.scan(*self.actor.keys.range_of("m"))
        there = {decode_record(value).payload for _, value in rows}
        for payload, sequence in list(self.accepted.items()):
            if payload in there or payload in self.ended:
                continue
            by_another = self.reported.get(sequence, set()) - {payload}
            self.counts["not theirs" if by_another else "lost"] += 1
            del self.accepted[payload]

    # --- turns ------------------------------------------------------------------------------

    def end_turn(self) -> list[Effect]:
        self.effects = [effect for _, effect in self.shard.end_turn()]
        store, must_sync = self.store, getattr(self.shard, "must_sync", False)
        is_due = must_sync or self.always or self.chance.random() < 0.2
        if store.pending_count:
            self._unsynced |= must_sync or store.has_pending_but(is_passing)
            lows, highs, rows = store._pending.batch()
            batch = Batch(list(lows), list(highs), dict(rows))
            self._batches.append((store._log.last + 1, batch))
            store.stage(begin_sync=self._unsynced and is_due)
        self._maybe_cut()
        if self._unsynced and is_due:
            self._sync()
        self._maybe_cut()
        for effect in self.effects:
            self._see(effect)
        self._maybe_cut()
        if not store.is_flushing:
            self.disk.note_rocksdb()
        store.write()
        self._maybe_cut()
        return self.effects

    def _sync(self) -> None:
        self.store.sync()
        self._unsynced = False
        self._confirmed = self.store._log.last
        for _, sequence, payload in self._unsure:
            self.accepted[payload] = sequence
        self._unsure.clear()

    def _maybe_cut(self) -> None:
        # More often while RocksDB writes a table: what is in the log alone is needed then.
        likely = 5 if self.store._flushing else 1
        if self.chance.random() < likely * self._cut_chance:
            raise PowerCutError

    def do(self, command: Any, topic: str | None = None) -> list[Effect]:
        if isinstance(command, ask.Publish):
            payloads = [body for _, _, body in command.messages]
            self._asked[command.request] = payloads if payloads[0].startswith(b"durable") else []
        return super().do(command, topic)

    def _see(self, effect: Effect) -> None:
        super()._see(effect)
        if isinstance(effect, Accepted):
            for payload, result in zip(
                self._asked.pop(effect.request), effect.results, strict=False
            ):
                assert isinstance(result, int)
                self.counts["accepted"] += 1
                self._unsure.append((self.store._log.last, result, payload))
            if not self._unsynced and self._confirmed >= self.store._log.last:
                self._sync()

    # --- clients ----------------------------------------------------------------------------

    def step(self) -> None:
        chance = self.chance
        roll = chance.random()
        if roll < 0.35:
            self._publish("durable", b"durable", max_receivers=1)
        elif roll < 0.55:
            self._publish("push", b"push")
        elif roll < 0.6:
            self._publish("online", b"online")
        elif roll < 0.9:
            self._report()
        else:
            self.advance(chance.choice((1, 50, 2_000)))
        self.held += [(each.sequence, each.payload) for each in self.take(CONSUMER)]

    def _publish(self, mode: str, kind: bytes, **fields: Any) -> None:
        chance = self.chance
        producer = b"life %d" % self.life
        payloads = []
        for _ in range(chance.randint(1, 3)):
            self.counts["published"] += 1
            size = chance.choice((0, 0, 50, 700, 5_000))
            payloads.append(b"%b %d " % (kind, self.counts["published"]) + chance.randbytes(size))
        with suppress(PeerError):
            self.publish_many(payloads, producer=producer.ljust(16), mode=mode, **fields)

    def _report(self) -> None:
        """On some of what the consumer holds; it does not know what the broker has forgotten."""
        chance = self.chance
        chance.shuffle(self.held)
        done, self.held = self.held[:3], self.held[3:]
        if not done:
            return
        self.ended.update(payload for _, payload in done)
        for sequence, payload in done:
            self.reported.setdefault(sequence, set()).add(payload)
        self.processed(*(sequence for sequence, _ in done), node=CONSUMER)

    # --- lives ------------------------------------------------------------------------------

    def live(self) -> None:
        """Until the power is cut, and until it is back."""
        try:
            for _ in range(self.chance.randint(1, STEPS_MAX)):
                self.step()
        except PowerCutError:
            pass
        self.counts["lives"] += 1
        self.life += 1
        before, to = self.disk.folder, self.home / f"{self.life}"
        self.disk.cut(to, self.chance, self.store.is_flushing)
        self.close()
        shutil.rmtree(before)
        self.disk.folder = to
        self.disk.adopt()
        self._cut_chance, self._unsynced = 0.0, False
        self._unsure.clear()
        self._asked.clear()
        self.inbox.clear()
        self.rows = self._open()
        self.shard = Shard(self.rows, self.defaults)
        self._begin()

    def close(self) -> None:
        if self.store.pending_count and not self.store._staged:
            self.store.discard()
        self.store.close()


def run_machine(home: Path, seed: str, lives: int, counts: Counter[str]) -> None:
    """One machine and its lives; ``counts`` tells what came of it."""
    home.mkdir(parents=True)
    disk = Disk(home / "0")
    machine: Machine | None = None
    try:
        with watched(disk):
            machine = Machine(home, disk, random.Random(seed), counts)
            for _ in range(lives):
                machine.live()
    except StoreError as error:
        counts["refused"] += 1
        counts[f"{seed}: {error}"] += 1
    except AssertionError as error:
        counts["wrong"] += 1
        counts[f"{seed}: {error}"] += 1
    finally:
        if machine is not None:
            machine.close()
        shutil.rmtree(home)
    small_files.run_folder(home, random.Random(seed), lives, counts)
    shutil.rmtree(home)


def summary(counts: Counter[str]) -> str:
    return (
        f"{counts['lives']:,} lives, {counts['accepted']:,} durable messages accepted: "
        f"{counts['lost']} lost, {counts['not theirs']} ended by a report that was not theirs, "
        f"{counts['refused']} refused openings, {counts['wrong']} silent openings of other rows; "
        f"{counts['file lives']:,} lives of small files: {counts['torn files']} torn or missing"
    )


FAULTS: Final = ("lost", "not theirs", "refused", "wrong", "torn files")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.power_cuts")
    parser.add_argument("--lives", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="asterism-cuts-", dir=place) as home:
        shown_s = time.monotonic()
        while max(counts["lives"], counts["machines"]) < asked.lives:
            seed = f"{asked.seed}.{counts['machines']}"
            counts["machines"] += 1
            lives = min(LIVES_A_MACHINE, asked.lives - counts["lives"])
            run_machine(Path(home) / seed, seed, lives, counts)
            if time.monotonic() - shown_s > 2:
                shown_s = time.monotonic()
                sys.stderr.write(f"{summary(counts)}\n")
    for found in counts:
        if found.startswith(f"{asked.seed}."):
            sys.stdout.write(f"{found}\n")
    sys.stdout.write(f"{summary(counts)}\n")
    return int(any(counts[fault] for fault in FAULTS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
