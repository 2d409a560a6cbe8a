"""Disks that are full and folders that cannot be written, and a publisher that sees every answer.

The SDK tries again what is refused as busy, as it should; ``BarePublisher`` shows what it is told.

Each way to fail a disk is a context manager that yields one, or skips where the machine does not
allow it. Whatever it did to the machine is undone at the end.
"""

import contextlib
import os
import resource
import secrets
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import pytest
import zmq

from asterism import wire
from asterism.message import Header, Mode, Status
from asterism.testing import Broker
from asterism.wire import Verb

Value = TypeVar("Value")

ANSWER_S: Final = 10.0
LOOK_S: Final = 0.002  # between looks for processes that were started on a disk that is full
SMALL_BYTES: Final = 64 << 20


# --- what a publisher is told ---------------------------------------------------------------------


class Refused(NamedTuple):
    """What the broker says when it takes nothing."""

    code: str
    detail: str
    retry_after_ms: int | None


class BarePublisher:
    """Publishes by the protocol alone, one part at a time, and hands on each answer as it is."""

    def __init__(self, address: str, topic: str) -> None:
        self._topic = topic.encode()
        self._header = Header(Mode.DURABLE, Status.PROCESSED, (topic,), {}, 1).encoded
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(address)
        self._request = 0
        self._producer = secrets.token_bytes(16)
        self._next_number = 1
        self._pending: tuple[tuple[bytes, bytes, bytes], ...] = ()

    def __enter__(self) -> Self:
        verb, _ = self._ask(Verb.HELLO, b"", {"versions": [wire.VERSION], "name": "bare"})
        assert verb == Verb.WELCOME
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()
        self._context.term()

    def _ask(self, verb: Verb, topic: bytes, body: object) -> tuple[int, Any]:
        self._request += 1
        asked = wire.pack_part(verb, self._request, topic, wire.pack_body(body))
        self._socket.send(asked)
        deadline = time.monotonic() + ANSWER_S
        while self._socket.poll(max(0, int((deadline - time.monotonic()) * 1_000))):
            said = self._socket.recv()
            for part in wire.read_parts(said):
                if part.verb == Verb.RESTARTED:
                    self._socket.send(asked)  # as the protocol asks of a client
                if part.request == self._request:
                    return part.verb, wire.read_body(said[part.body : part.end])
        raise TimeoutError(f"{verb.name} was not answered within {ANSWER_S:g} s")

    def publish(self, payloads: list[bytes]) -> Refused | list[int]:
        """Publishes messages; their sequences, or the refusal, after which ``again`` may follow."""
        self._pending = tuple((secrets.token_bytes(16), self._header, each) for each in payloads)
        return self.again()

    def again(self) -> Refused | list[int]:
        """Sends what was refused again, under the same numbers."""
        assert self._pending, "the last messages were accepted"
        fields = (self._pending, self._producer, self._next_number, self._next_number - 1)
        verb, body = self._ask(Verb.PUBLISH, self._topic, fields)
        if verb == Verb.REFUSE:
            return Refused(*body)
        assert verb == Verb.ACCEPTED
        self._next_number += len(self._pending)
        self._pending = ()
        return list(body)


def until(seconds: float, look: Callable[[], Value], reached: Callable[[Value], bool]) -> Value:
    """Looks until it is so; what was seen then."""
    deadline = time.monotonic() + seconds
    while not reached(value := look()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s; last seen: {value!r}"
        time.sleep(0.02)
    return value


# --- a full disk ----------------------------------------------------------------------------------


class Disk(ABC):
    """A folder for a broker's data, on a disk that can be filled and emptied again."""

    complaint = ""  # what a refusal says of it

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def fill(self, broker: Broker) -> None: ...

    @abstractmethod
    def empty(self) -> None: ...


class LimitedDisk(Disk):
    """No file may grow: the system refuses to a process what a full disk refuses to all.

    Processes that are started while it is full are found and limited before they come to write.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._stopped = threading.Event()
        self._limited: set[int] = set()
        self._thread: threading.Thread | None = None

    def fill(self, broker: Broker) -> None:
        self._stopped.clear()
        self._limit_new(broker)
        self._thread = threading.Thread(target=self._keep_full, args=(broker,))
        self._thread.start()

    def _keep_full(self, broker: Broker) -> None:
        with contextlib.suppress(RuntimeError):  # the broker was stopped
            while not self._stopped.wait(LOOK_S):
                self._limit_new(broker)

    def _limit_new(self, broker: Broker) -> None:
        for pid in {pid for pids in broker.pids().values() for pid in pids} - self._limited:
            self._limited.add(pid)
            _limit_files(pid, 0)

    def empty(self) -> None:
        if self._thread is not None:
            self._stopped.set()
            self._thread.join()
            self._thread = None
        for pid in self._limited:
            _limit_files(pid, resource.RLIM_INFINITY)
        self._limited.clear()


def _limit_files(pid: int, size: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        allowed = size if most == resource.RLIM_INFINITY else min(size, most) if size >= 0 else most
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (allowed, most))


class SmallDisk(Disk):
    """A file system of its own, small enough to be filled by a file beside the data."""

    complaint = "No space left"

    def fill(self, broker: Broker) -> None:
        with open(self.folder.parent / "filler", "wb", buffering=0) as file:
            size = 1 << 20
            while size:
                try:
                    file.write(bytes(size))
                except OSError:
                    size //= 2

    def empty(self) -> None:
        (self.folder.parent / "filler").unlink(missing_ok=True)


@contextlib.contextmanager
def limited_disk(folder: Path) -> Iterator[Disk]:
    if not hasattr(resource, "prlimit"):
        pytest.skip(f"{sys.platform} cannot limit the files of a process that runs")
    disk = LimitedDisk(folder / "data")
    try:
        yield disk
    finally:
        disk.empty()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    mounted = folder / "small"
    mounted.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={SMALL_BYTES}", "none", str(mounted))
    try:
        yield SmallDisk(mounted / "data")
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def _mount(*arguments: str) -> None:
    try:
        subprocess.run(["mount", *arguments], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("nothing can be mounted here: that takes root, and a container that allows it")


# --- a folder that cannot be written --------------------------------------------------------------


@contextlib.contextmanager
def file_in_its_place(folder: Path) -> Iterator[None]:
    """There is a file where the folder was."""
    aside = folder.with_name(folder.name + "-aside")
    folder.rename(aside)
    folder.write_text("")
    try:
        yield
    finally:
        folder.unlink()
        aside.rename(folder)


@contextlib.contextmanager
def no_permission(folder: Path) -> Iterator[None]:
    """The folder may be read and not written: by its permissions or, as root, by its mount."""
    if os.geteuid():
        folder.chmod(0o500)
        try:
            yield
        finally:
            folder.chmod(0o700)
        return
    _mount("--bind", str(folder), str(folder))
    try:
        _mount("-o", "remount,ro,bind", str(folder))
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
