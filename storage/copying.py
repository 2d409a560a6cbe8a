"""A snapshot somewhere else: on another disk, or on a store that is mounted.

A copy is made under a name that is no snapshot's, file by file: each is written, synced, read back
from the disk and compared. The manifest is written behind all of them, with a digest of each file,
and only then the folder gets its name. Whatever ends it halfway leaves no snapshot; copying again
begins anew in the same place.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

from asterism.files_host import FOLDER_MODE, make_folder, open_private, sync_folder
from asterism.storage.snapshot import (
    UNFINISHED,
    Snapshot,
    SnapshotError,
    files_of,
    open_snapshot,
    write_manifest,
)

Tell = Callable[[int, float], None]  # how many bytes are done, and which part of all
CHUNK_BYTES: Final = 1 << 20
DIGEST_BYTES: Final = 32


def copy(snapshot: Snapshot, home: Path, tell: Tell = lambda done, part: None) -> Snapshot:
    """A copy in a folder for such, under the same name; ``SnapshotError`` unless it is the same."""
    target = home / snapshot.name
    if target.exists():
        raise SnapshotError(f"{target}: it is there already. Delete it, or copy to another folder.")
    draft = home / f".{snapshot.name}{UNFINISHED}"
    try:
        make_folder(home)
        draft.mkdir(FOLDER_MODE, exist_ok=True)
        with _alone_in(draft):
            _clear(draft)
            write_manifest(draft, _copy_files(snapshot, draft, tell))
            os.rename(draft, target)
            sync_folder(home)
    except OSError as error:
        raise SnapshotError(
            f"{home}: the snapshot could not be copied here: {error.strerror}. Check the space and "
            "the permissions there, and copy it again."
        ) from error
    return open_snapshot(target)


def add_digests(snapshot: Snapshot) -> None:
    """Notes the digest of every file in a snapshot's own manifest."""
    manifest = _twin(snapshot.manifest)
    for store in manifest["stores"]:
        for name, file in store["files"].items():
            file["digest"] = digest_of(snapshot.folder / store["folder"] / name)
    try:
        write_manifest(snapshot.folder, manifest)
    except OSError as error:
        raise SnapshotError(
            f"{snapshot.folder}: digests cannot be noted here: {error.strerror}. Run this as the "
            "user who owns it."
        ) from error


def digest_of(path: Path) -> str:
    """The digest of a file, read from the disk where the system lets us say so."""
    with open(path, "rb") as file:
        with suppress(AttributeError, OSError):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        digest = _new_digest()
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return str(digest.hexdigest())


def _new_digest() -> Any:
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


def _twin(manifest: dict[str, Any]) -> dict[str, Any]:
    twin: dict[str, Any] = json.loads(json.dumps(manifest))
    return twin


def _copy_files(snapshot: Snapshot, draft: Path, tell: Tell) -> dict[str, Any]:
    """Copies every file; the manifest of the copy."""
    manifest = _twin(snapshot.manifest)
    total = sum(file["bytes"] for _, _, file in files_of(snapshot))
    done = 0
    for store in manifest["stores"]:
        source, target = snapshot.folder / store["folder"], draft / store["folder"]
        target.mkdir(FOLDER_MODE)
        for name, file in store["files"].items():
            _copy_file(source / name, target / name, file)
            done += file["bytes"]
            tell(done, done / max(total, 1))
        sync_folder(target)
    return manifest


def _copy_file(source: Path, target: Path, file: dict[str, Any]) -> None:
    """Copies a file and compares; ``file`` is what the manifest says of it, and gets its digest."""
    try:
        with open(source, "rb") as original, open_private(target, "xb") as copied:
            size, digest = _pour(original, copied)
    except FileNotFoundError:
        raise SnapshotError(f"{source}: it is missing. Use another snapshot.") from None
    if size != file["bytes"] or digest != file.get("digest", digest):
        raise SnapshotError(
            f"{source}: it is not what its manifest says: it is damaged. Use another snapshot."
        )
    if digest_of(target) != digest:
        raise SnapshotError(
            f"{target}: what was read back is not what was written. Check the disk, or copy to "
            "another."
        )
    file["digest"] = digest


def _pour(original: BinaryIO, copied: IO[bytes]) -> tuple[int, str]:
    """Copies the content, synced; how much there was, and its digest."""
    size, digest = 0, _new_digest()
    while chunk := original.read(CHUNK_BYTES):
        copied.write(chunk)
        digest.update(chunk)
        size += len(chunk)
    copied.flush()
    os.fsync(copied.fileno())
    return size, str(digest.hexdigest())


@contextmanager
def _alone_in(draft: Path) -> Iterator[None]:
    """Two that copy the same to the same place: the second is told."""
    descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SnapshotError(f"{draft}: this snapshot is being copied here already.") from None
        except OSError:
            pass  # a mounted store without locks
        yield
    finally:
        os.close(descriptor)


def _clear(draft: Path) -> None:
    """Removes what a copy that was broken off has left; its manifest first."""
    with suppress(FileNotFoundError):
        (draft / "manifest.json").unlink()
    for path in draft.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
