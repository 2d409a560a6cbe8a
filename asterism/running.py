"""Starts the processes of a broker, watches over them, restarts what ends, and stops them in order.

What supervisord does for a deployment, this does for ``asterism up`` and for tests: one broker, for
as long as the process that started it lives. It knows the processes by what they leave in the run
folder, and looks into none of them.

I1  Every process is started by the watching thread, which outlives them all: the system ties a
    child's life to the thread that made it, not to its process (see ``asterism.attached``).
I2  A process is ended by its id only while it has not been reaped, so the id is still its own.
"""

import contextlib
import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from asterism import doors_host
from asterism.config import CONFIG_VARIABLE, Config, load, unknown_variables
from asterism.doors import Door
from asterism.doors_host import DoorError, is_installed
from asterism.files_host import make_folder, open_lock, open_private
from asterism.process_host import ADDRESS_TAKEN, is_ours, plain, read_run_file
from asterism.variables import variable_of

FRONTEND: Final = "frontend"
INTERESTS: Final = "interests"
WORKER: Final = "worker"
KINDS: Final = (FRONTEND, INTERESTS, WORKER)  # all others are doors

READY_S: Final = 30  # until a process must be ready; a worker may have much to recover
STOP_S: Final = 15  # for a process to end when it was asked to; then it is killed
LEAVING_S: Final = 3  # for the processes of a broker before this one that are just ending
PAUSE_S_MIN: Final = 0.1  # before a process that never got ready is tried again; it doubles
PAUSE_S_MAX: Final = 5.0
# Ends that are no fault of the process: somebody wanted it gone, and its next start may go well.
FROM_OUTSIDE: Final = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
LOOK_S: Final = 0.01  # between looks at the run folder while a process gets ready
POLL_S: Final = 0.05  # between looks at processes where the system cannot tell of their end
IDLE_S: Final = 30.0  # between looks at the size of the logs
LOG_BYTES_MAX: Final = 16 << 20  # of a log file; the one before it is kept as well
CANCEL_S: Final = 0.2  # between looks whether a start is still wanted
LINES_SHOWN: Final = 15
_EVENT: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T\S+ (warning|error) \S+ ")  # in a log


class StartError(Exception):
    """The broker did not start; the message says why, and what to do."""


class Program(NamedTuple):
    """A process that is to run, again and again."""

    kind: str
    name: str  # also of its file in the run folder, and of its log
    module: str
    arguments: tuple[str, ...] = ()


def programs_of(workers: int, doors: Iterable[Door[Any]] = ()) -> list[Program]:
    """Everything that runs in a broker with so many workers, and these doors."""
    return [
        Program(FRONTEND, FRONTEND, "asterism.router"),
        Program(INTERESTS, INTERESTS, "asterism.router.interests_host"),
        *(
            Program(WORKER, f"worker-{number}", "asterism.actors", ("--worker", str(number)))
            for number in range(workers)
        ),
        *(Program(door.name, door.name, door.module) for door in doors),
    ]


def checked_doors(names: Iterable[str]) -> list[Door[Any]]:
    """The doors of these names; refuses one that does not exist, or that is not installed."""
    known, found = all_doors(), []
    for name in names:
        if name not in known:
            raise StartError(f"there is no door {name!r}: the doors are {', '.join(known)}")
        if not is_installed(known[name]):
            raise StartError(
                f"the door {name!r} is not installed. Install what it needs, "
                f"{known[name].install}, or leave it out."
            )
        found.append(known[name])
    return found


def all_doors() -> Mapping[str, Door[Any]]:
    """Every door that there is, by its name."""
    try:
        return doors_host.doors()
    except DoorError as error:
        raise StartError(str(error)) from None


def check_installed() -> None:
    """Refuses to start a broker where only what a client needs is installed."""
    if find_spec("rocksdict") is None:
        raise StartError("a broker needs RocksDB: python -m pip install 'asterism[broker]'")


def running_names(run_folder: Path) -> dict[str, int]:
    """The processes that say in the run folder that they run, and do."""
    found = {}
    for path in sorted(run_folder.glob("*.json")):
        pid = read_run_file(run_folder, path.stem).get("pid")
        if is_ours(pid):
            found[path.stem] = int(str(pid))
    return found


def _with_this_package(environ: Mapping[str, str]) -> dict[str, str]:
    """The processes run the very code that starts them, also where that is not installed."""
    root = str(Path(__file__).resolve().parents[1])
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(environ)
    known = environ.get("PYTHONPATH")
    return {**environ, "PYTHONPATH": os.pathsep.join([root, known]) if known else root}


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


# --- one process ----------------------------------------------------------------------------------


class _Child:
    """A program, and its process of the moment; the watching thread alone changes it."""

    def __init__(self, program: Program, run_folder: Path, log: Path | None) -> None:
        self.program = program
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.killed_pid: int | None = None  # of the one that was killed last, noticed or not
        self.is_ready = False
        self.was_ready = False
        self.is_left_out = False  # its address is taken, and the others go on without it
        self.failures = 0  # in a row, before it was ready
        self.start_at = 0.0
        self.code: int | None = None  # how its process before this one ended
        self._run_folder = run_folder
        self._log_from = 0
        self._ended: int | None = None  # a descriptor that becomes readable when it ends

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    @property
    def ended(self) -> int | None:
        return self._ended

    def start(self, environ: Mapping[str, str]) -> None:
        program = self.program
        command = [sys.executable, "-m", "asterism.attached", str(os.getpid())]
        self.is_ready = False
        with contextlib.ExitStack() as closed:
            output = None
            if self.log is not None:
                trim_log(self.log)
                output = closed.enter_context(open_private(self.log, "ab"))
                self._log_from = output.tell()
            self.process = subprocess.Popen(
                [*command, program.module, *program.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environ),
                process_group=0,  # an interrupt from the keyboard is for whoever watches, alone
            )
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # a sandbox may forbid it; then it is asked for
                self._ended = os.pidfd_open(self.process.pid)

    def has_ended(self) -> bool:
        """Whether its process has ended just now; then it is reaped."""
        if self.process is None or self.process.poll() is None:
            return False
        self.code = self.process.returncode
        self.process = None
        if self._ended is not None:
            os.close(self._ended)
            self._ended = None
        return True

    def look(self) -> bool:
        """Whether it has become ready just now."""
        if self.is_ready or self.process is None:
            return False
        self.is_ready = self.said().get("pid") == self.process.pid
        if self.is_ready:
            self.was_ready = True
            self.failures = 0
        return self.is_ready

    def said(self) -> dict[str, Any]:
        return read_run_file(self._run_folder, self.program.name)

    def signal(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def last_lines(self) -> str:
        """The end of what its latest process has logged."""
        if self.log is None:
            return ""
        try:
            with open(self.log, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_from if self._log_from <= size else 0, size - 8_192))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        # Where we made the mistake is in the log; what went wrong is for people.
        told = [line for line in lines if _EVENT.match(line)]
        return "\n".join(map(plain, (told or lines)[-LINES_SHOWN:]))


def trim_log(path: Path) -> None:
    """Sets a log aside that has grown large; processes that write to it go on doing so."""
    # Not there yet, or no room for the copy: no reason to end a broker.
    with contextlib.suppress(OSError):
        if path.stat().st_size > LOG_BYTES_MAX:
            # They have it open for appending: a renamed file would only go on growing.
            older = path.with_name(path.name + ".1")
            with open(path, "rb") as source, open_private(older, "wb") as copied:
                shutil.copyfileobj(source, copied)
            os.truncate(path, 0)


# --- all of them ----------------------------------------------------------------------------------


class Processes:
    """The processes of one broker, from ``start`` to ``stop``.

    They are configured by ``environ`` alone, their variables and the file that it names. With
    ``log_folder`` each logs into a file of its own there; without, where this process does. A door
    whose address is taken ends the start; where ``may_leave_out`` is so, it is left out.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        doors: tuple[str, ...] = (),
        log_folder: Path | None = None,
        report: Callable[[str], None] = lambda line: None,
        may_leave_out: bool = False,
    ) -> None:
        check_installed()
        self._records = {door.name: door for door in checked_doors(doors)}
        self.config: Config = load(None, environ)
        self.data_dir = Path(self.config.data_dir).absolute()
        self.run_folder = self.data_dir / "run"
        self.log_folder = log_folder
        self._environ = {**_with_this_package(environ), variable_of("data_dir"): str(self.data_dir)}
        for name in unknown_variables(environ):
            del self._environ[name]  # whoever starts a broker says so, once
        if environ.get(CONFIG_VARIABLE):
            self._environ[CONFIG_VARIABLE] = os.path.abspath(environ[CONFIG_VARIABLE])
        self._say = report
        self._may_leave_out = may_leave_out
        self._children = [
            _Child(program, self.run_folder, log_folder and log_folder / f"{program.name}.log")
            for program in programs_of(self.config.workers, self._records.values())
        ]
        self._changed = threading.Condition()
        self._stopping = False
        self._stop_s = float(STOP_S)
        self._thread: threading.Thread | None = None
        self._wake_read, self._wake_write = os.pipe()
        self._lock: int | None = None
        self.address = ""

    # --- for the owner ------------------------------------------------------------------------

    def start(
        self, ready_s: float = READY_S, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Starts everything at once; returns when all of it is ready, or when it is cancelled."""
        self._prepare_folders()
        try:
            self._take_lock()
            self._check_alone()
            self._thread = threading.Thread(target=self._watch, name="asterism", daemon=True)
            self._thread.start()
            self._await(ready_s, self._children, {}, cancelled)
        except BaseException:
            self.stop(5)
            raise
        self.address = str(self.said(FRONTEND).get("address", ""))

    def pids(self) -> dict[str, list[int]]:
        """The processes of the moment, by kind; one that is being started again is not there."""
        with self._changed:
            found: dict[str, list[int]] = {child.program.kind: [] for child in self._children}
            for child in self._children:
                if child.pid is not None:
                    found[child.program.kind].append(child.pid)
            return found

    @property
    def doors(self) -> tuple[Door[Any], ...]:
        """The doors that were not left out."""
        return tuple(
            self._records[child.program.name]
            for child in self._children
            if child.program.kind not in KINDS and not child.is_left_out
        )

    @property
    def is_watching(self) -> bool:
        """Whether what ends is started again: from start to stop, unless we made a mistake."""
        return self._thread is not None and self._thread.is_alive() and not self._stopping

    def said(self, name: str) -> dict[str, Any]:
        """What a process wrote into the run folder when it was ready."""
        return read_run_file(self.run_folder, name)

    def send_signal(self, kind: str, number: int, index: int | None = None) -> list[int]:
        """Signals every process of a kind, or one of them; which they were."""
        with self._changed:
            return self._signal(self._of_kind(kind, index), number)

    def restart(
        self, kind: str, index: int | None = None, number: int = signal.SIGKILL, s: float = READY_S
    ) -> None:
        """Ends every process of a kind, or one of them, and waits until others are ready."""
        with self._changed:
            children = self._of_kind(kind, index)
            before = {child.program.name: child.pid for child in children}
            self._signal(children, number)
        self._await(s, children, before)

    def wait_ready(self, s: float = READY_S) -> None:
        """Returns when every process runs and is ready."""
        self._await(s, self._children, {})

    def stop(self, stop_s: float = STOP_S) -> None:
        """Ends everything: doors, front-end, workers, interests, each given so long to end."""
        with self._changed:
            self._stop_s = min(self._stop_s, stop_s)
            self._stopping = True
            self._changed.notify_all()
        thread = self._thread
        if thread is not None:
            self._wake()
            thread.join()
            self._thread = None
        self._close()

    def hurry(self) -> None:
        """While it stops: waits for nobody any longer. May be called by a signal handler."""
        self._stop_s = 0
        self._wake()

    def _report(self, line: str) -> None:
        # Whoever read this may be gone; the broker goes on.
        with contextlib.suppress(OSError):
            self._say(line)

    # --- folders ------------------------------------------------------------------------------

    def _prepare_folders(self) -> None:
        folders = [self.run_folder, *([self.log_folder] if self.log_folder else [])]
        for folder in folders:
            try:
                make_folder(folder)
            except OSError as error:
                raise StartError(
                    f"{folder}: cannot be made: {error.strerror}. Name a data folder that this "
                    "user can write to."
                ) from None

    def _take_lock(self) -> None:
        """One watcher for one data folder."""
        try:
            self._lock = open_lock(self.run_folder / "lock")
        except OSError as error:
            raise StartError(
                f"{self.run_folder}: cannot be written to: {error.strerror}. Name a data folder "
                "that this user can write to."
            ) from None
        deadline = time.monotonic() + LEAVING_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise StartError(
                        f"{self.data_dir}: another broker runs with this data folder. Stop that "
                        "one first, or give this one a folder and an address of its own."
                    ) from None
            time.sleep(LOOK_S)

    def _check_alone(self) -> None:
        """Under supervisord a broker may run that takes no such lock."""
        deadline = time.monotonic() + LEAVING_S
        while running := running_names(self.run_folder):
            if time.monotonic() > deadline:
                listed = ", ".join(f"{name} ({pid})" for name, pid in running.items())
                raise StartError(
                    f"{self.data_dir}: a broker runs with this data folder already: {listed}. Stop "
                    "it first, or give this one a folder and an address of its own."
                )
            time.sleep(LOOK_S)

    # --- waiting ------------------------------------------------------------------------------

    def _of_kind(self, kind: str, index: int | None) -> list[_Child]:
        children = [child for child in self._children if child.program.kind == kind]
        if not children:
            known = ", ".join(dict.fromkeys(child.program.kind for child in self._children))
            raise ValueError(f"there is no process of kind {kind!r}; there are {known}")
        if index is None:
            return children
        if not 0 <= index < len(children):
            raise ValueError(f"there is no {kind} {index}; they are 0 to {len(children) - 1}")
        return [children[index]]

    def _signal(self, children: list[_Child], number: int) -> list[int]:
        pids = []
        for child in children:
            if child.pid is not None:
                pids.append(child.pid)
                child.signal(number)
                if number == signal.SIGKILL:
                    child.killed_pid = child.pid
        return pids

    def _await(
        self,
        seconds: float,
        children: list[_Child],
        before: Mapping[str, int | None],
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Returns when these are ready, in processes other than those before."""

        def is_there(child: _Child) -> bool:
            others = (before.get(child.program.name, 0), child.killed_pid)
            return child.is_left_out or (child.is_ready and child.pid not in others)

        deadline = time.monotonic() + seconds
        with self._changed:
            while not all(map(is_there, children)) and not cancelled():
                self._check_failed(children)
                left = deadline - time.monotonic()
                if left <= 0:
                    late = next(child for child in children if not is_there(child))
                    raise StartError(_with_lines(f"not ready within {seconds:g} s", late))
                self._changed.wait(min(left, CANCEL_S))

    def _check_failed(self, children: list[_Child]) -> None:
        """A process that ends before it was ever ready will do so again: it is not waited for."""
        if self._stopping:
            raise StartError("the broker is being stopped")
        for child in children:
            if child.code is not None and not child.was_ready and not child.is_left_out:
                raise StartError(_with_lines(how_it_ended(child.code) + " at its start", child))

    # --- watching: all of it in the one thread ------------------------------------------------

    def _watch(self) -> None:
        try:
            while not self._stopping:
                with self._changed:
                    now = time.monotonic()
                    for child in self._children:
                        self._look_after(child, now)
                    pause = self._pause(now)
                self._wait(pause)
        finally:
            with self._changed:
                self._stopping = True  # also where a mistake of ours ends the watching
                self._changed.notify_all()
            self._stop_all()

    def _look_after(self, child: _Child, now: float) -> None:
        if child.has_ended():
            self._on_end(child, now)
        if child.process is None and now >= child.start_at and not child.is_left_out:
            try:
                child.start(self._environ_of(child))
            except OSError as error:
                self._report(f"{child.program.name} cannot be started: {error}")
                child.start_at = now + PAUSE_S_MAX
        if child.look():
            self._changed.notify_all()
            if child.code is not None:
                self._report(f"{child.program.name} is ready again")

    def _on_end(self, child: _Child, now: float) -> None:
        assert child.code is not None
        if self._may_leave_out and child.code == ADDRESS_TAKEN and not child.was_ready:
            child.is_left_out = True
            self._report(f"{_why_taken(child)} The broker runs without this door.")
        if child.is_ready:
            child.start_at = now
        elif child.code in FROM_OUTSIDE:
            child.start_at = now + PAUSE_S_MIN
        else:
            pause = min(PAUSE_S_MAX, PAUSE_S_MIN * 2 ** min(child.failures, 16))
            child.start_at = now + pause
            child.failures += 1
        child.is_ready = False
        self._changed.notify_all()
        if child.was_ready:
            where = f"; its log is {child.log}" if child.log is not None and child.code > 0 else ""
            self._report(f"{child.program.name} {how_it_ended(child.code)}: starting it{where}")

    def _environ_of(self, child: _Child) -> dict[str, str]:
        """Who took a free port takes the same again: its clients look for it there."""
        listen = child.said().get("listen") if child.was_ready else None
        if not isinstance(listen, str):
            return self._environ
        door = self._records.get(child.program.kind)
        key = door.listen_key if door is not None else "listen"
        return {**self._environ, variable_of(key): listen}

    def _pause(self, now: float) -> float:
        """How long nothing needs to be done, as long as nothing ends."""
        pause = IDLE_S
        for child in self._children:
            if child.process is None:
                if not child.is_left_out:
                    pause = min(pause, max(0.0, child.start_at - now))
            else:
                if not child.is_ready:
                    pause = min(pause, LOOK_S)
                if child.ended is None:
                    pause = min(pause, POLL_S)
        return pause

    def _wait(self, pause: float) -> None:
        watched = [child.ended for child in self._children if child.ended is not None]
        poller = select.poll()
        for descriptor in [self._wake_read, *watched]:
            poller.register(descriptor, select.POLLIN)
        events = poller.poll(pause * 1_000)
        if any(descriptor == self._wake_read for descriptor, _ in events):
            os.read(self._wake_read, 4_096)
        if not events and pause >= IDLE_S:
            for child in self._children:
                if child.log is not None:
                    trim_log(child.log)

    def _wake(self) -> None:
        if self._wake_write >= 0:
            os.write(self._wake_write, b"\0")

    # --- stopping -----------------------------------------------------------------------------

    def _stop_all(self) -> None:
        """First those who let others in, then those who keep, last those whom they ask."""
        doors = [child for child in self._children if child.program.kind not in KINDS]
        stages = [doors]
        for kind in (FRONTEND, WORKER, INTERESTS):
            stages.append([child for child in self._children if child.program.kind == kind])
        for stage in stages:
            self._stop_stage(stage)

    def _stop_stage(self, children: list[_Child]) -> None:
        began = time.monotonic()
        with self._changed:
            self._signal(children, signal.SIGTERM)
            self._signal(children, signal.SIGCONT)  # one that is paused would not hear the first
        killed = False
        while True:
            with self._changed:
                for child in children:
                    child.has_ended()
                if all(child.process is None for child in children):
                    return
                if not killed and time.monotonic() - began >= self._stop_s:
                    killed = True
                    for pid in self._signal(children, signal.SIGKILL):
                        self._report(f"process {pid} did not end when asked: killed")
            self._wait(POLL_S)

    def _close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._wake_write >= 0:
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_read = self._wake_write = -1


def _why_taken(child: _Child) -> str:
    """What a door says of an address that is taken, and what to do."""
    last = child.last_lines().rpartition("\n")[2]
    said = _EVENT.sub("", last) or "its address is taken; its log above says which."
    return f"{child.program.name}: {said}"


def _with_lines(what: str, child: _Child) -> str:
    if child.log is None:
        return f"{child.program.name}: {what}. Its log above says why."
    lines = child.last_lines()
    if not lines:
        return f"{child.program.name}: {what}; {child.log} is empty, as on a disk that is full"
    said = f"{child.program.name}: {what}; the last lines of {child.log}:\n{lines}"
    if child.program.kind == FRONTEND and "Address already in use" in lines:
        said += (
            "\nAnother program listens there, perhaps another broker: stop that one, or have this "
            "one listen elsewhere, by `listen` in its configuration or `asterism up --listen`."
        )
    return said
