"""Files of the broker: private to its user, and whole on the disk before anybody relies on them.

I1  A small file that a recovery reads is never seen half: it is written beside its place, synced,
    and renamed into it; then its folder is synced, so that the name survives a power cut as well.
I2  What the broker writes is for its own user alone (files 0600, folders 0700), and it follows no
    link that somebody else may have laid in its way.
"""

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
_OTHERS: Final = 0o077  # the permissions of everybody else
_MARK_PART: Final = 4  # the low-water mark is at most a quarter of the disk: some are small


def keep_private() -> None:
    """Has this process write for its own user alone: in every process of the broker, at its start.

    RocksDB and ZeroMQ make files and sockets too, so no mode at a single call would be enough.
    """
    os.umask(_OTHERS)


@contextlib.contextmanager
def kept_private() -> Iterator[None]:
    """The same for a while, in a process that is not the broker's."""
    before = os.umask(_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- small files ----------------------------------------------------------------------------------


def write_durably(path: Path, value: object) -> None:
    """Writes a value as JSON. A reader finds all of it or what was there before, also after a power
    cut; once this has returned, all of it."""
    draft = _write_draft(path, value)
    try:
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
    sync_folder(path.parent)


def create_durably(path: Path, value: object) -> None:
    """The same, unless there is such a file already: then that one stays."""
    draft = _write_draft(path, value)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)
    sync_folder(path.parent)  # also for whoever came second, and relies on the first


def _write_draft(path: Path, value: object) -> str:
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(draft)
        raise
    return draft


def read_json(path: Path) -> Any:
    """The value in such a file; ``OSError`` if there is none, ``ValueError`` if it is damaged."""
    try:
        return json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


# --- folders and modes ----------------------------------------------------------------------------


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it, for this user alone; one that is there stays as it is."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(FOLDER_MODE, exist_ok=True)


def narrow(folder: Path) -> bool:
    """Shuts others out of a folder that they could look into; whether they could."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not mode & _OTHERS:
        return False
    folder.chmod(mode & ~_OTHERS)
    return True


def is_own_folder(folder: Path) -> bool:
    """Is this a folder, not a link to one, that this user alone can open?"""
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return is_ours and not stat.S_IMODE(found.st_mode) & _OTHERS


def open_lock(path: Path) -> int:
    """Opens a file to lock it; what is there under this name must be a file and no link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, FILE_MODE)


def open_private(path: Path, mode: str) -> IO[Any]:
    """Opens a file as ``open`` does; one that is made is for this user alone."""
    encoding = None if "b" in mode else "utf-8"
    return open(path, mode, encoding=encoding, opener=_opener)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, FILE_MODE)


# --- room -----------------------------------------------------------------------------------------


class Room(NamedTuple):
    """The room on the disk of a folder. With less than ``mark_bytes`` free, publishing is held."""

    free_bytes: int
    total_bytes: int
    mark_bytes: int


def room_of(folder: Path, min_free_bytes: int) -> Room:
    """What the system says of the disk of a folder, and the mark that a setting makes of it."""
    disk = os.statvfs(folder)
    free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    return Room(free, total, min(min_free_bytes, total // _MARK_PART))
