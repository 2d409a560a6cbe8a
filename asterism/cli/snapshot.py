"""``asterism snapshot``: a copy of every store, at one moment for each, while the broker runs.

    <folder>/20260131T120000Z/
        store-0000/ …           RocksDB checkpoints: hard links, so they cost no copy
        manifest.json           written last, whole: without it, the folder is no snapshot

A topic lives in one store and a store is copied between two turns of its worker, so each topic is
consistent in itself; different topics are from moments a little apart.
"""

import argparse
import os
import shutil
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import asterism
from asterism.cli import context, output
from asterism.process_host import write_whole

MANIFEST: Final = "manifest.json"
MANIFEST_VERSION: Final = 1
TIMEOUT_S: Final = 300.0  # a worker flushes what its stores hold in memory
NAMES_TRIED_MAX: Final = 1_000


class Snapshot(NamedTuple):
    """A finished snapshot."""

    folder: Path
    manifest: dict[str, Any]


def run(options: argparse.Namespace) -> int:
    into = context.data_folder(context.configuration(options)) / "snapshots"
    with context.connect(options) as node:
        taken = take(node, into, max(options.timeout, TIMEOUT_S))
    if options.json:
        output.say_json({"folder": str(taken.folder), "manifest": taken.manifest})
    else:
        stores, topics = len(taken.manifest["stores"]), len(taken.manifest["topics"])
        output.say(f"{taken.folder}  ({stores} stores, {topics} topics)")
    return output.DONE


def take(node: asterism.BlockingNode, into: Path, timeout_s: float = TIMEOUT_S) -> Snapshot:
    """Takes a snapshot into a new folder there; what cannot be finished is removed again."""
    now_ms = time.time_ns() // 1_000_000
    folder = _new_folder(into, now_ms)
    try:
        answers = node.snapshot(str(folder), timeout=timeout_s)
        manifest = {
            "version": MANIFEST_VERSION,
            "written_by": f"asterism {asterism.__version__}",
            "time": _stamp(now_ms, "%Y-%m-%dT%H:%M:%S") + f".{now_ms % 1_000:03}Z",
            "time_ms": now_ms,
            **_copied(answers, folder),
        }
        write_whole(folder / MANIFEST, manifest)
        for changed in (folder, into):
            _sync_folder(changed)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Snapshot(folder, manifest)


def _copied(answers: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """What the manifest says of the stores that the workers have copied."""
    stores: list[dict[str, Any]] = []
    topics: dict[str, Any] = {}
    for store in (store for answer in answers for store in answer["stores"]):
        # Relative, so that a snapshot can be moved.
        inside = os.path.relpath(folder / store["folder"], folder)
        stores.append({"number": store["number"], "folder": inside})
        for topic in store["topics"]:
            topics[topic["name"]] = {"store": store["number"], **topic}
    stores.sort(key=lambda store: int(store["number"]))
    missing = [store["folder"] for store in stores if not (folder / store["folder"]).is_dir()]
    if missing or not stores:
        raise output.CommandError(
            f"{folder}: {', '.join(missing) or 'no store'} is not there after the workers copied. "
            "A snapshot is taken on the machine that the broker runs on, and by a user who can "
            "read its folder."
        )
    return {"stores": stores, "topics": dict(sorted(topics.items()))}


def _new_folder(into: Path, now_ms: int) -> Path:
    """A folder named by the time, and by a number where several are of one second."""
    name = _stamp(now_ms, "%Y%m%dT%H%M%SZ")
    try:
        into.mkdir(parents=True, exist_ok=True)
        for number in range(1, NAMES_TRIED_MAX):
            folder = into / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise output.CommandError(
            f"{into}: a snapshot cannot be made here: {error.strerror}. Run this as the broker's "
            "user, with its configuration."
        ) from None
    raise output.CommandError(f"{into}: there are {NAMES_TRIED_MAX} snapshots of this second")


def _stamp(now_ms: int, form: str) -> str:
    return time.strftime(form, time.gmtime(now_ms // 1_000))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
