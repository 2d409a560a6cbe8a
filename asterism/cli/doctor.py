"""``asterism doctor``: what is wrong with a broker on this machine, and what to do about it.

It changes nothing, but for ``--accept-loss``, which is asked for by name. It opens a store only
while no process has it.
"""

import argparse
import contextlib
import errno
import os
import pwd
import resource
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import asterism
from asterism.cli import output
from asterism.cli.context import address_of
from asterism.cli.status import ask_all, doors_in
from asterism.config import Address, Config, ConfigError, load
from asterism.doors import Door
from asterism.doors_host import is_installed
from asterism.files_host import kept_private, room_of
from asterism.process_host import STORES_FILE, read_run_file, read_store_count
from asterism.running import all_doors, programs_of, running_names
from asterism.variables import variable_of

PART_FREE_MIN: Final = 0.05
BYTES_FREE_MIN: Final = 1 << 30
FILES_MIN: Final = 4_096
ANSWER_S: Final = 2.0

GOOD, NOTE, WRONG = "good", "note", "wrong"


class Finding(NamedTuple):
    """One thing that was looked at; what is wrong comes with what to do."""

    about: str
    state: str
    what: str
    to_do: str = ""


Findings = Iterator[Finding]


def run(options: argparse.Namespace) -> int:
    findings = list(examine(options.config, options.data, options.accept_loss))
    wrong = sum(finding.state == WRONG for finding in findings)
    if options.json:
        output.say_json({"wrong": wrong, "findings": [each._asdict() for each in findings]})
    else:
        marks = {GOOD: "ok  ", NOTE: "note", WRONG: "BAD "}
        for finding in findings:
            output.say(f"{marks[finding.state]}  {finding.about}: {finding.what}")
            if finding.to_do:
                output.say(f"      -> {finding.to_do}")
        output.say()
        output.say("Nothing is wrong." if not wrong else f"{wrong} of these must be put right.")
    return output.REFUSED if wrong else output.DONE


def examine(config_file: str | None, data: str | None, accept_loss: bool = False) -> Findings:
    """Everything, from what the rest rests on upwards."""
    yield from _installation()
    environ = dict(os.environ)
    if data is not None:
        environ[variable_of("data_dir")] = data
    try:
        config = load(config_file, environ)
    except ConfigError as error:
        yield Finding("configuration", WRONG, str(error), "Correct it; docs/configuration.md.")
        return
    yield Finding("configuration", GOOD, f"{config.workers} workers, listens on {config.listen}")
    folder = Path(config.data_dir).absolute()
    yield from _data_folder(folder, config)
    if not folder.is_dir():
        yield from _ports(config, {})
        return
    running = running_names(folder / "run")
    yield from _stores(folder, running, accept_loss)
    yield from _snapshots(folder)
    yield from _processes(config, folder, running)


def _installation() -> Findings:
    version = ".".join(map(str, sys.version_info[:3]))
    if not __debug__:
        to_do = "Start it without -O and without PYTHONOPTIMIZE."
        yield Finding("Python", WRONG, "strips the checks that the broker relies on", to_do)
    elif not is_optimised(sysconfig.get_config_var("CONFIG_ARGS")):
        what = f"{version}, built without optimisation: about a fifth slower than it could be"
        to_do = (
            "Use your distribution's, or build it with --enable-optimizations "
            "(pyenv: PYTHON_CONFIGURE_OPTS=--enable-optimizations pyenv install ...)."
        )
        yield Finding("Python", NOTE, what, to_do)
    else:
        yield Finding("Python", GOOD, version)
    for package, extra in (("zmq", ""), ("msgpack", ""), ("rocksdict", "[broker]")):
        if find_spec(package) is None:
            to_do = f"Install it: python -m pip install 'asterism{extra}'."
            yield Finding("packages", WRONG, f"{package} is not installed", to_do)
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < FILES_MIN:
        to_do = f"Raise it to {FILES_MIN} or more (ulimit -Hn): stores keep many files open."
        yield Finding("open files", WRONG, f"a process may have {files}", to_do)


def is_optimised(built_with: object) -> bool:
    """Was this Python built with a profile? One that does not say how may have been."""
    return not isinstance(built_with, str) or "--enable-optimizations" in built_with


# --- the data folder ------------------------------------------------------------------------------


def _data_folder(folder: Path, config: Config) -> Findings:
    there = folder
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        to_do = "Name a folder as data_dir, or move that file away."
        yield Finding("data folder", WRONG, f"{there} is not a folder", to_do)
        return
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        to_do = "Give the user that runs the broker this folder, or name another as data_dir."
        what = f"{there} cannot be written to: {error.strerror}"
        yield Finding("data folder", WRONG, what, to_do)
    else:
        new = "" if there == folder else " does not exist yet; the first start makes it"
        yield Finding("data folder", GOOD, f"{folder}{new}")
    yield _space(there, config.min_free)


def _space(folder: Path, min_free: int) -> Finding:
    free, total, mark = room_of(folder, min_free)
    what = f"{output.shown_bytes(free)} free of {output.shown_bytes(total)}"
    if free < mark or free < min(BYTES_FREE_MIN, total * PART_FREE_MIN):
        to_do = (
            "Make room: consume or clear what is waiting, delete old snapshots, logs, other files. "
            f"With less than {output.shown_bytes(mark)} free (min_free), publishers are refused as "
            "busy; nothing that was accepted is lost."
        )
        return Finding("disk space", WRONG, what, to_do)
    if free < max(BYTES_FREE_MIN, total * PART_FREE_MIN):
        return Finding("disk space", NOTE, what, "It will not last for long; plan for more.")
    return Finding("disk space", GOOD, what)


def _stores(folder: Path, running: dict[str, int], accept_loss: bool) -> Findings:
    path = folder / STORES_FILE
    try:
        count = read_store_count(folder)
    except FileNotFoundError:
        yield Finding("stores", GOOD, "none yet; the first start makes them")
        return
    except ConfigError as error:
        what, _, to_do = str(error).partition(". ")
        yield Finding("stores", WRONG, what, to_do)
        return
    if running:
        yield from _unnamed(folder, is_running=True)
        listed = ", ".join(running)
        if accept_loss:
            to_do = "Stop the broker first, then run this again."
            yield Finding("stores", WRONG, f"they are in use by {listed}", to_do)
        else:
            yield Finding("stores", GOOD, f"{count} of them, in use by the processes that run")
        return
    if find_spec("rocksdict") is None:
        return
    owner = path.stat().st_uid
    if owner != os.geteuid():
        to_do = f"Run this as the user that runs the broker: {_user(owner)}."
        what = "not opened: what this user writes there, that of the broker could not"
        yield Finding("stores", NOTE, what, to_do)
        return
    with kept_private():
        yield from list(_open_stores(folder, count, accept_loss))


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _open_stores(folder: Path, count: int, accept_loss: bool) -> Findings:
    """Opens each store that is there, as its worker would, and closes it again."""
    from asterism.storage.folder import made_note
    from asterism.storage.moving import dedicated_in

    places = [
        Place(f"store {number}", folder / "stores" / f"{number:04}", number, count)
        for number in range(count)
    ]
    problems = list(_unnamed(folder, is_running=False))
    for held in dedicated_in(folder / "dedicated"):
        places.append(Place(f"store of {held.topic}", held.store, 0, 1))
    found = [place for place in places if place.path.is_dir() or made_note(place.path).exists()]
    for place in found:
        problems += _open_store(place, accept_loss)
    yield from problems
    if not problems:
        yield Finding("stores", GOOD, f"all {len(found)} are whole")


def _unnamed(folder: Path, is_running: bool) -> Findings:
    """Folders of dedicated topics that do not say whose they are: those topics alone are away."""
    from asterism.storage.moving import MoveError, name_in_store, unnamed_in
    from asterism.storage.store import StoreError

    for path in unnamed_in(folder / "dedicated"):
        what = f"{path}: its topic.json is missing, empty or damaged"
        if not is_running:
            try:
                topic = name_in_store(path)
            except (MoveError, StoreError) as error:
                what += f", and its store does not say which topic it is of: {error}"
            else:
                to_do = "The next start writes topic.json anew."
                yield Finding("stores", NOTE, f"{what}; its store is that of {topic!r}", to_do)
                continue
        to_do = (
            'Write {"topic": "name"} into topic.json, and restart the broker; or restore the '
            "folder. Until then that topic alone is refused, as busy."
        )
        yield Finding("stores", WRONG, what, to_do)


class Place(NamedTuple):
    """Where a store is."""

    about: str
    path: Path
    number: int
    stores: int


def _open_store(place: Place, accept_loss: bool) -> Findings:
    from asterism.storage.folder import check_made
    from asterism.storage.store import Store, StoreError

    about, path, number, stores = place
    try:
        check_made(path)
        Store(path, number=number, count=stores).close()
        return
    except StoreError as error:
        before = str(error)
    if accept_loss:
        try:
            Store(path, number=number, count=stores, accept_loss=True).close()
            what = f"goes on without what is missing: {before.partition('. ')[0]}"
            yield Finding(about, NOTE, what)
            return
        except StoreError as error:
            before = str(error)
    what, _, to_do = before.partition(". ")
    yield Finding(about, WRONG, what, to_do)


def _snapshots(folder: Path) -> Findings:
    snapshots = folder / "snapshots"
    if not snapshots.is_dir():
        return
    unfinished = [path for path in snapshots.iterdir() if not (path / "manifest.json").exists()]
    for path in unfinished:
        to_do = (
            "If no snapshot is being taken, delete it, for it holds disk space: "
            f"`asterism snapshot delete --unfinished {path.name}`."
        )
        yield Finding("snapshots", NOTE, f"{path} has no manifest, so it is none", to_do)


# --- the processes --------------------------------------------------------------------------------


def _processes(config: Config, folder: Path, running: dict[str, int]) -> Findings:
    if not running:
        to_do = "Start it with `asterism up`, or `supervisord -c supervisor.conf`."
        yield Finding("processes", NOTE, "no broker runs with this data folder", to_do)
        yield from _ports(config, running)
        return
    wanted = [program.name for program in programs_of(config.workers)]
    missing = [name for name in wanted if name not in running]
    if missing:
        to_do = (
            "Look into their logs; workers are ready once the front-end is. Under supervisord: "
            "`supervisorctl status`; the number of workers there (numprocs) must be that of the "
            "configuration."
        )
        what = f"{', '.join(missing)} do not run, or are not ready"
        yield Finding("processes", WRONG, what, to_do)
    else:
        listed = ", ".join(f"{name} ({running[name]})" for name in wanted)
        yield Finding("processes", GOOD, listed)
    surplus = [name for name in running if name.startswith("worker-") and name not in wanted]
    if surplus:
        to_do = "Stop everything, then start as many workers as are configured."
        yield Finding("processes", WRONG, f"{', '.join(surplus)} are more than configured", to_do)
    yield from _doors(folder, running)
    if "frontend" in running:
        yield from _answers(address_of(folder, config))


def _doors(folder: Path, running: dict[str, int]) -> Findings:
    """Which doors are open, and well; one that is not open may have been left out."""
    for door in filter(is_installed, all_doors().values()):
        names = doors_in(running, door.name)
        for name in names:
            said = read_run_file(folder / "run", name)
            what = f"{said.get(door.shows, '')} ({running[name]})"
            problem = _problem(door, said)
            if problem is None:
                yield Finding(f"door {name}", GOOD, what)
            else:
                to_do = "Look into its log; restart it if that says nothing."
                yield Finding(f"door {name}", WRONG, f"{what}: {problem}", to_do)
        if not names:
            to_do = "If it was not left out, look into its log."
            yield Finding(f"door {door.name}", NOTE, "does not run", to_do)


def _problem(door: Door[Any], said: dict[str, Any]) -> str | None:
    try:
        return door.health(said, ANSWER_S)
    except Exception as error:  # the door may be of others; what else was found is still told
        return f"its health check ends by {error!r}"


def _answers(address: str) -> Findings:
    """Whether a broker that runs also answers, and reaches its own processes."""
    try:
        with asterism.connect_blocking(address, name="doctor", timeout=ANSWER_S) as node:
            told = ask_all(node, ANSWER_S)
    except ConnectionError:
        to_do = "Look into the front-end's log; restart it if that says nothing."
        yield Finding("address", WRONG, f"{address} does not answer", to_do)
        return
    silent = [name for name, status in told.items() if "problem" in status]
    for name in silent:
        to_do = "Look into its log: it is being restarted, or it cannot reach the front-end."
        yield Finding(name, WRONG, "does not answer", to_do)
    for status in told.values():
        yield from _closed_stores(status)
    if silent:
        return
    yield Finding("address", GOOD, f"{address} answers, and so do all processes behind it")


def _closed_stores(status: dict[str, Any]) -> Findings:
    """Which stores of a process are not open, by what it says."""
    for number, state in status.get("stores", {}).items():
        if state != "open":
            # A topic's own is number 0 of one, and must not be taken for the shared one.
            about = f"store of {status['topic']}" if "topic" in status else f"store {number}"
            to_do = (
                "If nothing else here explains it, look into the log of its worker; or stop the "
                "broker and run this again, which then opens every store and says what to do."
            )
            yield Finding(about, WRONG, state, to_do)


def _ports(config: Config, running: dict[str, int]) -> Findings:
    """Whether a broker could listen where it is told to."""
    yield from _port(config)
    from asterism.gateways.process import listener

    for door in filter(is_installed, all_doors().values()):
        if doors_in(running, door.name):
            continue
        try:
            listener(config, door).close()
        except ConfigError as error:
            what, _, to_do = str(error).partition(". ")
            to_do = to_do or "Correct it; docs/configuration.md."
            yield Finding(f"door {door.name}", WRONG, what, to_do)


def _port(config: Config) -> Findings:
    for address in config.endpoints():
        try:
            _try_address(address)
        except OSError as error:
            to_do = "End whatever listens there, or set another address as listen."
            what = f"{address.text} cannot be listened on: {error.strerror or error}"
            yield Finding("address", WRONG, what, to_do)
        else:
            yield Finding("address", GOOD, f"{address.text} is free")


def _try_address(address: Address) -> None:
    """``OSError`` where nobody could listen at an address."""
    if address.path:
        with (
            contextlib.suppress(FileNotFoundError, ConnectionRefusedError),
            socket.socket(socket.AF_UNIX) as probe,
        ):
            probe.connect(address.path)
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return
    host = "0.0.0.0" if address.host == "*" else address.host.strip("[]")
    found = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)[0]
    with socket.socket(found[0], found[1]) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(found[4])
