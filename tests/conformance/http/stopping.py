"""Processes of a broker that are stopped or dead for a while, and a door that answers in time."""

import contextlib
import fcntl
import signal
import time
from collections.abc import Callable, Iterator

import httpx

from asterism.testing import Broker

WITHIN_S = 1.0  # whatever is stopped
AGAIN_S = 20.0  # until everything answers again
LOOK_S = 0.01
TRIES = 3


def until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + AGAIN_S
    while not reached():
        assert time.monotonic() < deadline, f"{what}: not within {AGAIN_S:g} s"
        time.sleep(LOOK_S)


@contextlib.contextmanager
def stopped(broker: Broker, kind: str, index: int | None = None) -> Iterator[None]:
    """A process, or all of a kind, that do nothing meanwhile."""
    broker.kill(kind, index, signal.SIGSTOP)
    try:
        yield
    finally:
        broker.kill(kind, index, signal.SIGCONT)


@contextlib.contextmanager
def dead(broker: Broker, index: int) -> Iterator[None]:
    """A worker that was killed; those that are started in its place find its name taken."""
    with open(broker.data_dir / f"run/worker-{index}.lock", "r+b") as lock:
        while True:
            broker.kill("worker", index)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOOK_S)
        yield
    broker.wait_ready()


def timed(http: httpx.Client, path: str) -> httpx.Response:
    """The answer, which must come in time; a machine that is busy may be late, but not always."""
    took_s = []
    for _ in range(TRIES):
        began = time.monotonic()
        answer = http.get(path)
        took_s.append(time.monotonic() - began)
        if took_s[-1] < WITHIN_S:
            return answer
    raise AssertionError(f"{path} took {took_s} seconds")
