"""What every process of the broker does alike: its log, its files, its signals, its clock.

The run folder, ``run`` in the data folder, tells others what runs here:

    frontend.json  worker-0.json  interests.json     written when the process is ready
    workers.sock  interests.sock  clients.sock       the sockets between the processes
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

from asterism.config import CONFIG_VARIABLE, Config, ConfigError, load

_ARENA_MAX = -8  # of mallopt: how many heaps there may be
SOCKET_PATH_MAX = 100  # bytes; the system allows 107
SOCKET_NAME_MAX = 16  # bytes of them: "/interests.sock"
STORES_FILE = "stores.json"
LEAVING_S = 5.0  # for a process of the same name that is just ending
LOOK_S = 0.05  # between looks whether it has
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
        line += record.getMessage()
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def fields_of(**fields: object) -> str:
    """Fields of a log line, as ``name=value``; text is quoted where it must be."""
    shown = []
    for name, value in fields.items():
        text = str(value)
        quoted = json.dumps(text) if not text or any(c in text for c in ' "=\n') else text
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
    share_heaps()
    if not __debug__:
        log.error("python -O strips the checks that this broker relies on: start it without -O")
        sys.exit(2)
    try:
        take_name(config, name)
        run(config, options)
    except ConfigError as error:
        log.error("%s", error)
        sys.exit(2)
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
    """The wall clock in milliseconds; it never goes back, whatever the system's does."""

    def __init__(self) -> None:
        self._last_ms = 0

    def now_ms(self) -> int:
        self._last_ms = max(self._last_ms, time.time_ns() // 1_000_000)
        return self._last_ms


def share_heaps() -> None:
    """Has threads share two heaps. By itself glibc gives each its own, and RocksDB's keep there for
    good what they have freed."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_ARENA_MAX, 2)


def settle_memory() -> None:
    """What is there now stays: the collector need not look at it, nor look so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)


def memory_bytes() -> int:
    """What the process holds in memory."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- files ------------------------------------------------------------------------------------


def run_folder(config: Config) -> Path:
    folder = Path(config.data_dir).absolute() / "run"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def take_name(config: Config, name: str, wait_s: float = LEAVING_S) -> int:
    """Makes this process the one of its name in its data folder, until it ends.

    A second one would take the sockets of the first, and nobody would reach that any more. The lock
    is the system's, so it is gone with the process, however that ends; no program that this process
    starts has it. The file stays: to delete it would let in two who hold locks on two files. It
    holds the process id, for whoever is refused. Raises ``TakenError``.
    """
    path = run_folder(config) / f"{name}.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
            short.mkdir(mode=0o700, exist_ok=True)
            if short.stat().st_uid != os.getuid():
                raise ConfigError(f"{short} belongs to another user: remove it")
            return short
    raise ConfigError(f"{folder} is too long a path for sockets: use a data folder nearer the root")


def say_ready(config: Config, name: str, **fields: Any) -> None:
    """Tells those who look into the run folder that this process does its work."""
    write_whole(run_folder(config) / f"{name}.json", {"pid": os.getpid(), **fields})


def write_whole(path: Path, value: object) -> None:
    """Writes a small file so that a reader finds all of it, or what was there before."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


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
    path = Path(config.data_dir).absolute() / STORES_FILE
    try:
        return _read_count(path)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"stores": config.stores}, file)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(name, path)  # fails where another was first: then theirs holds
    except FileExistsError:
        pass
    finally:
        os.unlink(name)
    return _read_count(path)


def _read_count(path: Path) -> int:
    with open(path) as file:
        count = json.load(file)["stores"]
    assert type(count) is int and count > 0, f"{path} does not say how many stores there are"
    return count
