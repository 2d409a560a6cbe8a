"""``asterism snapshot``: takes, lists, verifies, deletes and copies snapshots.

What a snapshot is stands in ``storage/snapshot.py``; here is what people ask of it. A snapshot is
named by its folder in ``snapshots`` of the data folder, by a path to one elsewhere, or ``latest``.
"""

import argparse
import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import asterism
from asterism.cli import context, output
from asterism.storage import copying, verifying
from asterism.storage import snapshot as snapshots
from asterism.storage.snapshot import Snapshot, SnapshotError

LATEST: Final = "latest"  # names the newest of the data folder
TIMEOUT_S: Final = 300.0  # a worker writes what its stores hold in memory


def create(options: argparse.Namespace) -> int:
    home = _home(options)
    with _told(), context.connect(options) as node:
        taken = take(node, home, max(options.timeout, TIMEOUT_S))
    deleted = _retain(home, options)
    if options.json:
        told = {"folder": str(taken.folder), "manifest": taken.manifest, "deleted": deleted}
        output.say_json(told)
        return output.DONE
    output.say(f"{taken.folder}  ({len(taken.stores)} stores, {len(taken.topics)} topics)")
    for name in deleted:
        output.say(f"deleted {name}")
    return output.DONE


def take(node: asterism.BlockingNode, into: Path, timeout_s: float = TIMEOUT_S) -> Snapshot:
    """Takes a snapshot into a new folder there; what cannot be finished is removed again."""
    now_ms = _now_ms()
    folder = snapshots.begin_snapshot(into, now_ms)
    try:
        answers = node.snapshot(str(folder), timeout=timeout_s)
        written_by = f"asterism {asterism.__version__}"
        return snapshots.finish_snapshot(folder, answers, now_ms, written_by)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def list_all(options: argparse.Namespace) -> int:
    home = _home(options) if options.folder is None else Path(options.folder)
    with _told():
        found = snapshots.list_snapshots(home)
        unfinished = snapshots.unfinished_in(home)
    rows = [_told_of(snapshot) for snapshot in found]
    if options.json:
        output.say_json({"snapshots": rows, "unfinished": [path.name for path in unfinished]})
        return output.DONE
    head = ("name", "time", "topics", "messages", "size", "not shared")
    if rows:
        output.say(output.table(head, map(_shown, rows)))
    else:
        output.say(f"no snapshot in {home}")
    for path in unfinished:
        output.say(f"{path.name}  is not finished, or is being taken")
    return output.DONE


def _told_of(snapshot: Snapshot) -> dict[str, Any]:
    total, own = snapshots.sizes_of(snapshot)
    return {
        "name": snapshot.name,
        "folder": str(snapshot.folder),
        "time": snapshot.manifest["time"],
        "time_ms": snapshot.time_ms,
        "stores": len(snapshot.stores),
        "topics": len(snapshot.topics),
        "held": sum(topic["held"] for topic in snapshot.topics.values()),
        "bytes": total,
        "own_bytes": own,
    }


def _shown(row: dict[str, Any]) -> tuple[object, ...]:
    sizes = (output.shown_bytes(row["bytes"]), output.shown_bytes(row["own_bytes"]))
    return row["name"], row["time"], row["topics"], f"{row['held']:,}", *sizes


def verify(options: argparse.Namespace) -> int:
    """Ends with 1 if anything is wrong, and says what."""
    with _told():
        snapshot = _named(options, options.snapshot)
        progress = output.Progress("rows", not options.json)
        found = verifying.verify(snapshot, progress.tell)
        progress.end()
        if options.write and not found.problems:
            copying.add_digests(snapshot)
    if options.json:
        told = {"rows": found.rows, "files": found.files, "problems": found.problems}
        output.say_json({"folder": str(snapshot.folder), "good": not found.problems, **told})
    elif not found.problems:
        output.say(f"{snapshot.folder} is whole: {found.files} files, {found.rows:,} rows")
    else:
        for problem in found.problems:
            output.say(problem)
        count = len(found.problems)
        output.say(f"{snapshot.folder} is damaged: {count} found. Use another snapshot.")
    return output.REFUSED if found.problems else output.DONE


def delete(options: argparse.Namespace) -> int:
    named = options.snapshots
    by_age = options.keep is not None or options.older_than is not None
    if bool(named) == by_age:
        message = "name snapshots to delete, or say --keep or --older-than"
        raise output.CommandError(message, output.WRONG_USE)
    if by_age:
        deleted = _retain(_home(options), options)
    else:
        deleted = []
        for name in named:
            with _told():
                folder = _folder(options, name)
                if snapshots.is_unfinished(folder) and not options.unfinished:
                    raise SnapshotError(
                        f"{folder}: it has no manifest, so it may be a snapshot that is being "
                        "taken. If none is, delete it with --unfinished."
                    )
                snapshots.delete_snapshot(folder)
            deleted.append(folder.name)
    if options.json:
        output.say_json({"deleted": deleted})
    else:
        output.say("\n".join(f"deleted {name}" for name in deleted) or "nothing to delete")
    return output.DONE


def copy(options: argparse.Namespace) -> int:
    with _told():
        snapshot = _named(options, options.snapshot)
        progress = output.Progress("bytes", not options.json)
        try:
            copied = copying.copy(snapshot, Path(options.to), progress.tell)
        finally:
            progress.end()
    total, _ = snapshots.sizes_of(copied)
    if options.json:
        output.say_json({"folder": str(copied.folder), "bytes": total})
    else:
        output.say(f"{copied.folder}  ({output.shown_bytes(total)}, every file compared)")
    return output.DONE


# --- what they share ------------------------------------------------------------------------------


def _retain(home: Path, options: argparse.Namespace) -> list[str]:
    """Deletes what retention lets go; the names."""
    with _told():
        older_than_ms = None if options.older_than is None else round(options.older_than * 1_000)
        found = snapshots.list_snapshots(home)
        gone = snapshots.expired(found, _now_ms(), keep=options.keep, older_than_ms=older_than_ms)
        for snapshot in gone:
            snapshots.delete_snapshot(snapshot.folder)
    return [snapshot.name for snapshot in gone]


def _home(options: argparse.Namespace) -> Path:
    return context.data_folder(context.configuration(options)) / "snapshots"


def _folder(options: argparse.Namespace, name: str) -> Path:
    """The folder of a snapshot by its name, or by its path; or that of the newest."""
    if name == LATEST:
        found = snapshots.list_snapshots(_home(options))
        if not found:
            raise SnapshotError(f"{_home(options)}: there is no snapshot here. Take one.")
        return found[-1].folder
    here = _home(options) / name
    return here if snapshots.is_name(name) and here.is_dir() else Path(name)


def _named(options: argparse.Namespace, name: str) -> Snapshot:
    return snapshots.open_snapshot(_folder(options, name))


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except SnapshotError as error:
        raise output.CommandError(str(error)) from error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
