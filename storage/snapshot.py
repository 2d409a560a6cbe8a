"""What a snapshot is: a folder of checkpoints, and a manifest that was written last.

    <home>/20260131T120000Z/
        store-0000/ …           RocksDB checkpoints: hard links, so they cost no copy
        manifest.json           without it, the folder is no snapshot

A topic lives in one store and a store is copied between two turns of its worker, so each topic is
consistent in itself; different topics are from moments a little apart.

The manifest:

    version             1
    written_by, time    for people; time_ms for machines: when the snapshot was begun
    store_count         how many shared stores the data folder has; each of them is in ``stores``
    stores              [{number, folder, files: {name: {bytes, digest?}}}]; from 32,768 on, the
                        number is that of a topic with a store of its own
    topics              {name: {store, number, first_sequence, next_sequence, history_until_ms,
                        held, parked, drafting, completed}}; what ends after the snapshot is filed
                        in the history at ``history_until_ms`` or after it, never before
    topic_defaults      the settings that hold for a topic that has not set its own, as a user
                        writes them; not in a manifest of before they were told

Sizes of files are noted when a snapshot is taken, digests when it is copied: reading all of it to
take it would cost what the hard links save.

I1  A folder that ``open_snapshot`` opens has had every store written and synced before.
I2  Whatever ends halfway (taking, copying, deleting) leaves a folder without a manifest, or one
    of a name that is no snapshot's.

It reads no clock: whoever calls says what time it is.
"""

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from asterism.files_host import FOLDER_MODE, make_folder, open_private, sync_folder
from asterism.storage.keys import TopicKeys, number_at_end
from asterism.storage.moving import FIRST_NUMBER
from asterism.storage.reading import ReadOnlyStore
from asterism.storage.store import StoreError

MANIFEST: Final = "manifest.json"
MANIFEST_VERSION: Final = 1
UNFINISHED: Final = ".tmp"  # how the name of a copy ends while it is made
NAMES_TRIED_MAX: Final = 1_000
ABANDONED_MS: Final = 3_600_000  # one that nobody has written to for so long is not being taken
_STORE_NAME: Final = re.compile(r"store-[0-9]{4,5}")
_TOPIC_FIELDS: Final = (
    *("store", "number", "first_sequence", "next_sequence", "history_until_ms"),
    *("held", "parked", "drafting", "completed"),
)


class SnapshotError(Exception):
    """What is wrong with a snapshot, and what to do."""


@dataclass(frozen=True)
class Snapshot:
    """A finished snapshot."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def time_ms(self) -> int:
        return int(self.manifest["time_ms"])

    @property
    def topics(self) -> dict[str, dict[str, Any]]:
        """By name: its store, its number there, its sequences and counts."""
        found: dict[str, dict[str, Any]] = self.manifest["topics"]
        return found

    @property
    def stores(self) -> list[dict[str, Any]]:
        """Each store: its number, its folder in the snapshot, its files."""
        found: list[dict[str, Any]] = self.manifest["stores"]
        return found

    def store_folder(self, number: int) -> Path:
        """Where a store of the snapshot is."""
        for store in self.stores:
            if store["number"] == number:
                return self.folder / str(store["folder"])
        raise SnapshotError(f"{self.folder}: store {number} is not in this snapshot")


# --- reading --------------------------------------------------------------------------------------


def open_snapshot(folder: str | os.PathLike[str]) -> Snapshot:
    """The snapshot in a folder; ``SnapshotError`` unless there is a whole one."""
    folder = Path(folder)
    snapshot = Snapshot(folder, _read_manifest(folder))
    for store in snapshot.stores:
        if not (folder / store["folder"] / "CURRENT").is_file():
            raise SnapshotError(
                f"{folder}: {store['folder']}, which its manifest names, is not there or is no "
                "store: something was deleted from it. Use another snapshot."
            )
    return snapshot


def list_snapshots(home: str | os.PathLike[str]) -> list[Snapshot]:
    """The snapshots in a folder, oldest first; what is none is passed over."""
    found: list[Snapshot] = []
    for folder in _folders_in(Path(home)):
        with contextlib.suppress(SnapshotError):
            found.append(open_snapshot(folder))
    return sorted(found, key=lambda snapshot: (snapshot.time_ms, snapshot.name))


def unfinished_in(home: str | os.PathLike[str]) -> list[Path]:
    """Folders that were to become snapshots, or were ones; some may still be written."""
    return [folder for folder in _folders_in(Path(home)) if is_unfinished(folder)]


def is_unfinished(folder: Path) -> bool:
    """Whether this is a snapshot that was not finished, or not wholly deleted."""
    if (folder / MANIFEST).exists() and not folder.name.endswith(UNFINISHED):
        return False
    is_named_so = folder.name.endswith(UNFINISHED) or _NAME.fullmatch(folder.name) is not None
    return is_named_so and all(map(_belongs, os.listdir(folder)))


_NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z(-[0-9]+)?")
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def is_name(name: str) -> bool:
    """May a snapshot be called so? Then it is no path, and nothing hidden or unfinished."""
    return _SAFE_NAME.fullmatch(name) is not None and not name.endswith(UNFINISHED)


def taken_in(home: Path) -> list[Path]:
    """Every folder that is a snapshot, or may become one."""
    return [folder for folder in _folders_in(home) if is_name(folder.name)]


def clear_abandoned(home: Path, now_ms: int) -> None:
    """Deletes what snapshots left that were never finished, and that nobody takes any more."""
    for folder in taken_in(home):
        with contextlib.suppress(OSError):
            names = os.listdir(folder)
            is_one = MANIFEST not in names and all(map(_belongs, names))
            paths = [folder, *(folder / name for name in names)]
            latest_s = max(path.lstat().st_mtime for path in paths)
            if is_one and now_ms - latest_s * 1_000 >= ABANDONED_MS:
                shutil.rmtree(folder)


def _belongs(name: str) -> bool:
    name = name.removesuffix(".tmp")  # RocksDB's name of a store that it has not finished
    return _STORE_NAME.fullmatch(name) is not None or name.startswith(MANIFEST)


def _folders_in(home: Path) -> list[Path]:
    try:
        return sorted(path for path in home.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SnapshotError(
            f"{home}: snapshots cannot be looked for here: {error.strerror}. Check the path, and "
            "that this user may read it."
        ) from error


def _read_manifest(folder: Path) -> dict[str, Any]:
    if folder.name.endswith(UNFINISHED):
        raise SnapshotError(f"{folder}: this is a copy that was not finished. Copy it again.")
    try:
        text = (folder / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if not folder.is_dir():
            raise SnapshotError(
                f"{folder}: there is no such folder. `asterism snapshot list` has them all."
            ) from None
        raise SnapshotError(
            f"{folder}: this is no snapshot: it has no {MANIFEST}, which is written last. If none "
            "is being taken, it was left half-written: delete it, and take another."
        ) from None
    except OSError as error:
        raise SnapshotError(
            f"{folder}: its {MANIFEST} cannot be read: {error.strerror}. Check that this user may."
        ) from error
    try:
        manifest = json.loads(text)
    except ValueError:
        raise SnapshotError(
            f"{folder}: its {MANIFEST} is damaged: it is no JSON. Use another snapshot."
        ) from None
    _check_version(folder, manifest)
    try:
        _check_fields(manifest)
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotError(
            f"{folder}: its {MANIFEST} is damaged: {_damage(error)}. Use another snapshot."
        ) from None
    return dict(manifest)


def _check_version(folder: Path, manifest: object) -> None:
    version = manifest.get("version") if isinstance(manifest, dict) else None
    if type(version) is not int:
        raise SnapshotError(f"{folder}: its {MANIFEST} is not one of a snapshot.")
    if version > MANIFEST_VERSION:
        raise SnapshotError(
            f"{folder}: this snapshot is of format {version}, and this version of Asterism reads "
            f"format {MANIFEST_VERSION}. Use the version that took it, or a later one."
        )
    if version < MANIFEST_VERSION:
        raise SnapshotError(
            f"{folder}: this snapshot is of format {version}, which this version of Asterism reads "
            "no longer. Use the version that took it."
        )


def _damage(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _check_fields(manifest: dict[str, Any]) -> None:
    """Raises ``KeyError``, ``TypeError`` or ``ValueError`` for what is not as it was written."""
    numbers = [_checked_store(store) for store in manifest["stores"]]
    count = manifest["store_count"]
    shared = sorted(number for number in numbers if number < FIRST_NUMBER)
    if shared != list(range(count)) or len(set(numbers)) != len(numbers):
        raise ValueError(f"it has stores {shared} of {count}")
    if type(manifest["time_ms"]) is not int:
        raise TypeError("its time is no number")
    for name, topic in manifest["topics"].items():
        if any(type(topic[field]) is not int for field in _TOPIC_FIELDS):
            raise TypeError(f"what it says of the topic {name!r} is no number")
        if topic["store"] not in numbers:
            raise ValueError(f"the topic {name!r} is in a store that it does not have")


def _checked_store(store: dict[str, Any]) -> int:
    # Of a manifest from elsewhere, nothing outside of its folder is opened or copied.
    if not _STORE_NAME.fullmatch(store["folder"]):
        raise ValueError(f"{store['folder']!r} is no folder of a store")
    for name, file in store["files"].items():
        if "/" in name or name in ("", ".", "..") or type(file["bytes"]) is not int:
            raise ValueError(f"{name!r} is no file of a store")
    if type(store["number"]) is not int or store["number"] < 0:
        raise TypeError("the number of a store is none")
    return int(store["number"])


# --- writing --------------------------------------------------------------------------------------


def begin_snapshot(home: Path, now_ms: int) -> Path:
    """A new folder, named by the time, and by a number where several are of one second."""
    name = _stamp(now_ms, "%Y%m%dT%H%M%SZ")
    try:
        make_folder(home)
        for number in range(1, NAMES_TRIED_MAX):
            folder = home / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir(FOLDER_MODE)
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise SnapshotError(
            f"{home}: a snapshot cannot be made here: {error.strerror}. Run this as the broker's "
            "user, with its configuration."
        ) from None
    raise SnapshotError(f"{home}: there are {NAMES_TRIED_MAX} snapshots of this second")


def finish_snapshot(
    folder: Path, answers: Iterable[dict[str, Any]], now_ms: int, written_by: str
) -> Snapshot:
    """Writes the manifest of what the workers have copied into a folder."""
    stores: list[dict[str, Any]] = []
    topics: dict[str, Any] = {}
    store_count = 0
    defaults: dict[str, Any] = {}
    for answer in answers:
        store_count = max(store_count, answer["store_count"])
        defaults |= answer.get("topic_defaults", {})
        for store in answer["stores"]:
            number, inside = store["number"], store["folder"]
            files = _files_of(folder, inside)
            stores.append({"number": number, "folder": inside, "files": files})
            topics |= _topics_of(folder / inside, store)
    manifest = {
        "version": MANIFEST_VERSION,
        "written_by": written_by,
        "time": _stamp(now_ms, "%Y-%m-%dT%H:%M:%S") + f".{now_ms % 1_000:03}Z",
        "time_ms": now_ms,
        "store_count": store_count,
        "stores": sorted(stores, key=lambda store: int(store["number"])),
        "topics": dict(sorted(topics.items())),
        "topic_defaults": defaults,
    }
    write_manifest(folder, manifest)
    sync_folder(folder.parent)
    return open_snapshot(folder)


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Writes a manifest so that a reader finds all of it, or none; and makes it durable."""
    _check_fields(manifest)
    draft = folder / f"{MANIFEST}{UNFINISHED}"
    with open_private(draft, "w") as file:
        json.dump(manifest, file, ensure_ascii=False, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, folder / MANIFEST)
    sync_folder(folder)


def _files_of(folder: Path, inside: str) -> dict[str, Any]:
    try:
        with os.scandir(folder / inside) as entries:
            return {entry.name: {"bytes": entry.stat().st_size} for entry in entries}
    except OSError:
        raise SnapshotError(
            f"{folder}: {inside} cannot be read after the workers copied. A snapshot is taken on "
            "the machine that the broker runs on, and by a user who can read its folder."
        ) from None


def _topics_of(folder: Path, told: dict[str, Any]) -> dict[str, Any]:
    """What the manifest says of the topics of a store: what its worker told, and what is there."""
    topics = {}
    try:
        with ReadOnlyStore(folder) as store:
            for topic in told["topics"]:
                first = _first_sequence(store, TopicKeys(topic["number"]))
                found = {**topic, "store": told["number"], "first_sequence": first}
                if first is None:
                    found["first_sequence"] = topic["next_sequence"]
                topics[topic["name"]] = {field: found[field] for field in _TOPIC_FIELDS}
    except StoreError as error:
        raise SnapshotError(str(error)) from error
    return topics


def _first_sequence(store: ReadOnlyStore, keys: TopicKeys) -> int | None:
    """The first message of a topic: of the pool or of the log."""
    firsts = [next(iter(store.scan(*keys.range_of(kind))), None) for kind in "ml"]
    return min((number_at_end(row[0]) for row in firsts if row is not None), default=None)


def _stamp(now_ms: int, form: str) -> str:
    return time.strftime(form, time.gmtime(now_ms // 1_000))


# --- deleting -------------------------------------------------------------------------------------


def delete_snapshot(folder: Path) -> None:
    """Deletes a snapshot, or what is left of one; ``SnapshotError`` for any other folder."""
    if not is_unfinished(folder):
        _check_is_one(folder)
    try:
        # First, so that what is half deleted is no snapshot any more.
        (folder / MANIFEST).unlink(missing_ok=True)
        sync_folder(folder)
        shutil.rmtree(folder)
    except OSError as error:
        raise SnapshotError(
            f"{folder}: it cannot be deleted: {error.strerror}. Run this as the user who owns it."
        ) from error


def _check_is_one(folder: Path) -> None:
    """Nothing but a snapshot is deleted; one that is damaged, or of another version, is one too."""
    try:
        _read_manifest(folder)
    except SnapshotError:
        if not (folder / MANIFEST).is_file() or not all(map(_belongs, os.listdir(folder))):
            raise


def expired(
    snapshots: Sequence[Snapshot],
    now_ms: int,
    *,
    keep: int | None = None,
    older_than_ms: int | None = None,
) -> list[Snapshot]:
    """Those that retention lets go: not of the ``keep`` newest, and older than that.

    Whatever is not given does not protect any; with neither given, none goes. The newest stays.
    """
    if keep is None and older_than_ms is None:
        return []
    by_age = sorted(snapshots, key=lambda snapshot: (snapshot.time_ms, snapshot.name))
    beyond = by_age[: max(len(by_age) - max(keep or 0, 1), 0)]
    if older_than_ms is None:
        return beyond
    return [snapshot for snapshot in beyond if now_ms - snapshot.time_ms >= older_than_ms]


# --- sizes ----------------------------------------------------------------------------------------


def files_of(snapshot: Snapshot) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Every file that the manifest names: its store, its name, what is known of it."""
    for store in snapshot.stores:
        for name, file in store["files"].items():
            yield store, name, file


def sizes_of(snapshot: Snapshot) -> tuple[int, int]:
    """Its bytes, and those of them that nobody shares: what deleting it would free."""
    total = own = 0
    for store, name, file in files_of(snapshot):
        total += file["bytes"]
        with contextlib.suppress(OSError):
            found = os.stat(snapshot.folder / store["folder"] / name)
            own += found.st_size if found.st_nlink == 1 else 0
    return total, own
