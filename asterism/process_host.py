"""What every process of the broker does alike: its log, its files, its signals, its clock.

The run folder, ``run`` in the data folder, tells others what runs here:

    frontend.json  worker-0.json  interests.json     written when the process is ready
    workers.sock  interests.sock  clients.sock       the sockets between the processes
    frontend.sock                                    from the front-end's gate to its ROUTER
    lane-0.sock  lane-1.sock                         where a worker takes lanes
    frontend.lock  worker-0.lock  interests.lock     held by the process of that name for life
"""

import argparse
import contextlib
import ctypes
import errno
import fcntl
import gc
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from types import FrameType
from typing import Any

from asterism.config import (
    CONFIG_VARIABLE,
    STORES_MAX,
    AddressTakenError,
    Config,
    ConfigError,
    load,
    warning_of,
)
from asterism.files_host import (
    FOLDER_MODE,
    create_durably,
    is_own_folder,
    keep_private,
    make_folder,
    narrow,
    open_lock,
    read_json,
    write_durably,
)

_ARENA_MAX = -8  # of mallopt: how many heaps there may be
_MMAP_THRESHOLD = -3  # of mallopt: from which size on a block is not of a heap
LARGE_BLOCK_BYTES = 256 << 10
SOCKET_PATH_MAX = 100  # bytes; the system allows 107
SOCKET_NAME_MAX = 16  # bytes of them: "/interests.sock"
STORES_FILE = "stores.json"
ADDRESS_TAKEN = 3  # how a process ends that cannot listen because another program does
LEAVING_S = 5.0  # for a process of the same name that is just ending
LOOK_S = 0.05  # between looks whether it has
# What a log shows of one value, one message and one traceback; the rest is cut off.
VALUE_SHOWN_MAX = 512
MESSAGE_SHOWN_MAX = 4_096
TRACEBACK_LINES_MAX = 200
log = logging.getLogger("asterism")


class TakenError(Exception):
    """Another process of this name runs in the data folder; the message says what to do."""


class _Lines(logging.Formatter):
    """One line an event: time, level, process, then what happened with its fields."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = f"{stamp}.{int(record.msecs):03}Z {record.levelname.lower()} {self._process} "
        line += plain(record.getMessage())
        if record.exc_info:
            # Indented, so that no text within an error can look like an event of its own.
            lines = self.formatException(record.exc_info).splitlines()
            line += "".join(f"\n  {plain(each)}" for each in lines[-TRACEBACK_LINES_MAX:])
        return line


def plain(text: str, most: int = MESSAGE_SHOWN_MAX) -> str:
    """Text as a log or a terminal may show it: one line, no control characters, bounded.

    Peers choose names and subjects: what moves a cursor, ends a line, hides or reverses text is
    shown as an escape sequence of Python.
    """
    if len(text) > most:
        text = text[:most] + " and so on"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def fields_of(**fields: object) -> str:
    """Fields of a log line, as ``name=value``; text is quoted where it must be, and bounded."""
    shown = []
    for name, value in fields.items():
        text = str(value)
        if len(text) > VALUE_SHOWN_MAX:
            text = text[:VALUE_SHOWN_MAX] + " and so on"
        is_bare = text.isprintable() and not any(c in text for c in ' "=\\')
        quoted = text if text and is_bare else json.dumps(text)
        shown.append(f"{name}={quoted}")
    return " ".join(shown)


def begin_logging(process: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def run_process(
    name_of: Callable[[argparse.Namespace], str],
    run: Callable[[Config, argparse.Namespace], None],
    parser: argparse.ArgumentParser,
) -> None:
    """Reads the configuration, sets up the log, and runs; what ends it decides the exit code."""
    keep_private()
    parser.add_argument("--config", metavar="FILE", help="the configuration, a TOML file")
    options = parser.parse_args()
    name = name_of(options)
    if options.config:
        os.environ[CONFIG_VARIABLE] = os.path.abspath(options.config)  # for those it starts
    try:
        config = load(options.config, os.environ)
    except ConfigError as error:
        print(f"asterism: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    begin_logging(name, config.log_level)
    if warning := warning_of(os.environ):
        log.warning("%s", warning)
    share_heaps()
    if not __debug__:
        log.error("python -O strips the checks that this broker relies on: start it without -O")
        sys.exit(2)
    try:
        shut_others_out(config)
        take_name(config, name)
        run(config, options)
    except ConfigError as error:
        log.error("%s", error)
        sys.exit(ADDRESS_TAKEN if isinstance(error, AddressTakenError) else 2)
    except TakenError as error:
        log.error("%s", error)
        sys.exit(1)
    except Exception as error:
        # One line that says why for those who read logs by the line, then where, for us.
        log.error("ends by an error: %s", error, exc_info=True)
        sys.exit(1)


class Stopping:
    """Whether the process was asked to stop; a signal also ends a poll that waits."""

    def __init__(self) -> None:
        self.asked = False
        self.wakeup, write_end = os.pipe()
        os.set_blocking(self.wakeup, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


class Clock:
    """The wall clock in milliseconds. Where the system's is set back it goes on all the same: what
    is due after a while would not come otherwise, such as a sync or a heartbeat."""

    def __init__(self) -> None:
        self._ahead_ns = 0  # of the clock that nobody sets

    def now_ms(self) -> int:
        steady_ns = time.monotonic_ns()
        self._ahead_ns = max(self._ahead_ns, time.time_ns() - steady_ns)
        return (steady_ns + self._ahead_ns) // 1_000_000


def share_heaps() -> None:
    """Has threads share two heaps. By itself glibc gives each its own, and RocksDB's keep there for
    good what they have freed."""
    _tune_malloc(_ARENA_MAX, 2)


def return_large_blocks() -> None:
    """Has large blocks of memory go back to the system when they are freed.

    By itself, glibc takes ever larger ones from its heap once some have been freed. Where payloads
    of a megabyte come and go among small objects, that heap grew to six times what was in use.
    """
    _tune_malloc(_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def _tune_malloc(option: int, value: int) -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(option, value)


def settle_memory(young_max: int = 50_000) -> None:
    """What is there now stays: the collector need not look at it, nor look so often.

    After so many new objects it looks at those, and everybody waits: some 0.1 ms for a thousand.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(young_max, 50, 50)


def memory_bytes() -> int:
    """What the process holds in memory."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- files ------------------------------------------------------------------------------------


def shut_others_out(config: Config) -> None:
    """Makes the data folder one that only the broker's user can open, if it is not."""
    folder = Path(config.data_dir).absolute()
    try:
        make_folder(folder)
        if folder.is_dir() and narrow(folder):
            log.warning(
                "other users could look into the data folder: it is 0700 now %s",
                fields_of(folder=folder),
            )
    except OSError as error:  # of another owner, or read-only; whether it can be used is seen later
        log.warning("who can read the data folder cannot be changed: %s", error)


def run_folder(config: Config) -> Path:
    folder = Path(config.data_dir).absolute() / "run"
    make_folder(folder)
    if folder.is_symlink():
        raise ConfigError(f"{folder} is a link: put a folder in its place")
    return folder


def take_name(config: Config, name: str, wait_s: float = LEAVING_S) -> int:
    """Makes this process the one of its name in its data folder, until it ends.

    A second one would take the sockets of the first, and nobody would reach that any more. The lock
    is the system's, so it is gone with the process, however that ends; no program that this process
    starts has it. The file stays: to delete it would let in two who hold locks on two files. It
    holds the process id, for whoever is refused. Raises ``TakenError``.
    """
    path = run_folder(config) / f"{name}.lock"
    try:
        lock = open_lock(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be opened as a file to lock: {error.strerror}. If it is a link or a "
            "folder, remove it."
        ) from None
    deadline = time.monotonic() + wait_s
    while not _has_locked(lock):
        if time.monotonic() >= deadline:
            pid = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            os.close(lock)
            raise TakenError(
                f"{path.parent.parent}: {name} of this data folder runs already, as process "
                f"{pid or '(it has not said which)'}. Stop that broker first, or give this one a "
                "folder and an address of its own."
            )
        time.sleep(LOOK_S)
    with contextlib.suppress(OSError):  # a disk may be full
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return lock


def _has_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def socket_folder(config: Config) -> Path:
    """Where the sockets between the processes of one data folder are."""
    folder = run_folder(config)
    if len(os.fsencode(folder)) + SOCKET_NAME_MAX > SOCKET_PATH_MAX:
        return _short_folder(folder)
    return folder


def socket_address(config: Config, name: str) -> str:
    """The address of a socket between the processes of one data folder."""
    return f"ipc://{socket_folder(config) / f'{name}.sock'}"


def _short_folder(folder: Path) -> Path:
    """A folder for sockets where the path of their own is longer than the system allows."""
    digest = blake2b(os.fsencode(folder), digest_size=8).hexdigest()
    name = f"asterism-{os.getuid()}-{digest}"
    for home in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        short = Path(home) / name
        if len(os.fsencode(short)) + SOCKET_NAME_MAX <= SOCKET_PATH_MAX and Path(home).is_dir():
            with contextlib.suppress(FileExistsError):
                short.mkdir(FOLDER_MODE)
            # Anybody may make something of this name there, and would then own the sockets.
            if not is_own_folder(short):
                raise ConfigError(
                    f"{short} is not a folder that belongs to this user alone (0700): remove it"
                )
            return short
    raise ConfigError(f"{folder} is too long a path for sockets: use a data folder nearer the root")


def say_ready(config: Config, name: str, **fields: Any) -> None:
    """Tells those who look into the run folder that this process does its work."""
    write_durably(run_folder(config) / f"{name}.json", {"pid": os.getpid(), **fields})


def read_run_file(folder: Path, name: str) -> dict[str, Any]:
    """What a process wrote when it was ready; nothing if it never was."""
    try:
        with open(folder / f"{name}.json", "rb") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def is_ours(pid: object) -> bool:
    """Whether a process of that id runs, and is one of a broker as far as can be told."""
    if type(pid) is not int or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        # No such file system, or gone just now: the first must count, the second does no harm.
        return not Path("/proc/self").exists()
    return b"asterism" in command


def store_count(config: Config) -> int:
    """How many stores the data folder has; a new one gets as many as the configuration says.

    Whoever comes first writes it down; the others read it, whatever they were told.
    """
    folder = Path(config.data_dir).absolute()
    path = folder / STORES_FILE
    if not path.exists() and not _stores_in(folder):
        make_folder(folder)
        create_durably(path, {"stores": config.stores})
    return read_store_count(folder)


def _stores_in(folder: Path) -> int:
    """How many stores there are, by their folders."""
    # Beside each is a note that it was made, and its name has more than digits.
    return sum(place.name.isdecimal() for place in (folder / "stores").glob("*"))


def read_store_count(folder: Path) -> int:
    """How many stores a data folder has, by its file; ``ConfigError`` where that is damaged, or
    missing though there are stores."""
    path = folder / STORES_FILE
    found = _stores_in(folder)
    try:
        said = read_json(path)
    except FileNotFoundError:
        if not found:
            raise
        wrong = "is missing"
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}. Let the broker's user read it."
        ) from None
    except ValueError:
        wrong = "is damaged: it is not JSON" if path.stat().st_size else "is empty"
    else:
        count = said.get("stores") if isinstance(said, dict) else None
        if type(count) is int and 0 < count <= STORES_MAX:
            return count
        wrong = "is damaged: it does not say how many stores there are"
    to_do = (
        f'The folder stores has {found} of them: write {{"stores": {found}}} into the file. A '
        "store that is opened with a wrong number refuses, and nothing is harmed."
        if found
        else "There are no stores yet: delete the file, and the next start makes another."
    )
    raise ConfigError(f"{path}: {wrong}. {to_do}")
