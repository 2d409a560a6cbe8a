"""Power cuts while the small files are written that a recovery reads beside the stores.

These are ``stores.json``, ``topic.json`` of a topic with a store of its own, and the note that a
store was made. They are written by ``asterism.files_host`` alone, and so they are here. The power
is cut ahead of any call that changes or syncs something, and the next life begins on what a disk
may have kept:

- Of what was done to the names of a folder since that folder was synced, any part, in order.
- Of a file that was not synced, nothing, zeros, its beginning, or all of it.

After every cut a file is whole: it says what was confirmed last, or what was being written. One
that was confirmed is there.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from asterism.files_host import create_durably, read_json, write_durably

NAMES: Final = ("stores.json", "topic.json", "0000.made")
WATCHED: Final = ("fsync", "replace", "link", "unlink")
WRITES_MAX: Final = 6
CUT_CHANCE: Final = 0.15  # ahead of each call
NOTHING: Final = 0  # said by a file that is not there
TORN: Final = -1


class PowerCutError(Exception):
    """The power is cut, here and now."""


class Folder:
    """A folder of small files, and what of it is synced."""

    def __init__(self, place: Path, chance: random.Random) -> None:
        self.place = place
        self._chance = chance
        self._names: dict[str, int] = {}  # as synced: the number of each file
        self._changes: list[tuple[tuple[str, int | None], ...]] = []  # of names, since then
        self._synced: dict[int, bytes] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notes what is done, and cuts the power ahead of any of it."""
        real = {name: getattr(os, name) for name in WATCHED}
        noted: dict[str, Callable[..., None]] = {
            "fsync": self._on_sync,
            "replace": lambda old, new: self._change((new, self._number(old)), (old, None)),
            "link": lambda old, new: self._change((new, self._number(old))),
            "unlink": lambda name: self._change((name, None)),
        }

        def watch(name: str) -> Callable[..., None]:
            def call(*arguments: Any) -> None:
                if self._chance.random() < CUT_CHANCE:
                    raise PowerCutError
                if name == "link" and Path(arguments[1]).exists():
                    raise FileExistsError
                noted[name](*arguments)
                real[name](*arguments)

            return call

        try:
            for name in WATCHED:
                setattr(os, name, watch(name))
            yield
        finally:
            for name, call in real.items():
                setattr(os, name, call)

    def _on_sync(self, file: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        if path == self.place:
            self._names = {entry.name: entry.inode() for entry in os.scandir(path)}
            self._changes.clear()
        else:
            self._synced[os.fstat(file).st_ino] = path.read_bytes()

    def _change(self, *changed: tuple[str | Path, int | None]) -> None:
        self._changes.append(tuple((Path(name).name, number) for name, number in changed))

    @staticmethod
    def _number(path: str | Path) -> int:
        return os.stat(path).st_ino

    def cut(self) -> None:
        """Leaves what the disk has when the power is back."""
        chance = self._chance
        written = {os.stat(path).st_ino: path.read_bytes() for path in self.place.iterdir()}
        for entry in os.scandir(self.place):  # a name that nothing but its making is known of
            if entry.name not in self._names and chance.random() < 0.5:
                self._changes.insert(0, ((entry.name, entry.inode()),))
        names = dict(self._names)
        for change in self._changes:
            if chance.random() < 0.5:
                for name, number in change:
                    if number is None:
                        names.pop(name, None)
                    else:
                        names[name] = number
        kept = {name: self._kept(number, written) for name, number in names.items()}
        for path in self.place.iterdir():
            path.unlink()
        for name, content in kept.items():
            (self.place / name).write_bytes(content)
        self._names = {entry.name: entry.inode() for entry in os.scandir(self.place)}
        self._changes.clear()
        self._synced = {number: kept[name] for name, number in self._names.items()}

    def _kept(self, number: int, written: dict[int, bytes]) -> bytes:
        if number in self._synced:
            return self._synced[number]
        content, chance = written.get(number, b""), self._chance
        cut = chance.randint(0, len(content))
        return chance.choice((b"", bytes(len(content)), content[:cut], content))


def _said_in(path: Path) -> int:
    try:
        said: int = read_json(path)["said"]
    except FileNotFoundError:
        return NOTHING
    except ValueError:
        return TORN
    return said


def live(folder: Folder, said: dict[str, set[int]], chance: random.Random) -> None:
    """Writes until the power is cut; ``said`` is what each file may say afterwards."""
    for _ in range(WRITES_MAX):
        name, value = chance.choice(NAMES), chance.randrange(10**6)
        path = folder.place / name
        may_say = said[name]
        # stores.json and the note are made once and never changed.
        if name != "topic.json":
            if NOTHING in may_say:
                may_say.add(value)
            create_durably(path, {"said": value})
            said[name] = {_said_in(path)}
            continue
        may_say.add(value)
        write_durably(path, {"said": value})
        said[name] = {value}


def run_folder(place: Path, chance: random.Random, lives: int, counts: Counter[str]) -> None:
    """One folder and its lives; ``counts`` tells what came of it."""
    place.mkdir(parents=True)
    folder = Folder(place, chance)
    said = {name: {NOTHING} for name in NAMES}
    for _ in range(lives):
        try:
            with folder.watched():
                live(folder, said, chance)
        except PowerCutError:
            pass
        folder.cut()
        counts["file lives"] += 1
        for name in NAMES:
            found = _said_in(place / name)
            if found not in said[name] or found == TORN:
                counts["torn files"] += 1
            said[name] = {found}
