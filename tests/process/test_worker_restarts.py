"""A worker that has just begun, as the front-end sees it: this test is the front-end."""

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from asterism import wire
from asterism.config import load
from asterism.process_host import read_run_file, socket_address
from asterism.wire import Verb
from tests.process.conftest import WAIT_S

SESSION = bytes(range(1, 1 + wire.SESSION_BYTES))
TOPIC = b"orders"


class FrontEnd:
    """The socket that workers connect to."""

    def __init__(self, data_dir: Path) -> None:
        self._environ = {"ASTERISM_DATA_DIR": str(data_dir), "ASTERISM_WORKERS": "1"}
        self._run_folder = data_dir / "run"
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(socket_address(load(None, self._environ), "workers"))
        self._command = [sys.executable, "-m", "asterism.actors", "--worker", "0"]
        self._answers: deque[tuple[int, dict[str, int]]] = deque()
        self._worker = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, env={**os.environ, **self._environ})

    def restart(self) -> None:
        self.kill()
        while self._socket.poll(0):
            self._socket.recv_multipart()
        self._worker = self._start()

    def kill(self) -> None:
        self._worker.kill()
        self._worker.wait()

    def close(self) -> None:
        self.kill()
        self._socket.close()

    def hear(self) -> list[bytes]:
        """What the worker says next, without its name."""
        assert self._socket.poll(int(WAIT_S * 1_000)), "the worker says nothing"
        return self._socket.recv_multipart()[1:]

    def epoch(self) -> bytes:
        """The epoch that the worker says next."""
        while (said := self.hear())[:2] != [b"", b"ready"]:
            pass
        return said[2]

    def has_ready_worker(self) -> bool:
        """Whether the worker says that it is ready, to whoever looks into the run folder."""
        return read_run_file(self._run_folder, "worker-0").get("pid") == self._worker.pid

    def know(self, epoch: bytes) -> None:
        self._socket.send_multipart([b"w0", b"", b"epoch", b"frontend" + epoch])

    def ask(self, verb: Verb, request: int, *fields: object) -> None:
        part = wire.pack_part(verb, request, TOPIC, wire.pack_body(fields))
        self._socket.send_multipart([b"w0", SESSION, part])

    def answer(self) -> tuple[int, dict[str, int]]:
        """The number of the next answer, and its body."""
        while not self._answers:
            session, frame, *_ = self.hear()
            if session:
                for part in wire.read_parts(frame):
                    body = wire.read_body(frame[part.body : part.end])
                    self._answers.append((part.request, body))
        return self._answers.popleft()


@pytest.fixture
def frontend(tmp_path: Path) -> Iterator[FrontEnd]:
    frontend = FrontEnd(tmp_path / "data")
    yield frontend
    frontend.close()


def test_what_was_sent_to_the_worker_before_is_not_done_by_the_new_one(frontend: FrontEnd) -> None:
    """Whoever asked is told that the worker is new, and asks again: it would be done twice."""
    frontend.know(frontend.epoch())
    frontend.ask(Verb.DRAFT, 1, bytes(16))
    assert frontend.answer() == (1, {"sequence": 1})
    frontend.restart()
    epoch = frontend.epoch()
    frontend.ask(Verb.DRAFT, 2, bytes(16))  # before the front-end has heard of the new one
    frontend.know(b"another!")
    frontend.ask(Verb.DRAFT, 3, bytes(16))
    frontend.know(epoch)
    frontend.ask(Verb.DRAFT, 4, bytes(16))
    frontend.ask(Verb.STATS, 5)
    assert frontend.answer()[0] == 4
    number, stats = frontend.answer()
    assert (number, stats["drafting"]) == (5, 2)


def test_a_worker_is_ready_once_the_front_end_knows_it(frontend: FrontEnd) -> None:
    """Who waits for a broker to be ready, and then asks, is not told that a worker is away."""
    for start in range(2):
        if start:
            frontend.restart()
        # The first at its beginning, the second when its stores are open, the third in its turns.
        epoch = {frontend.epoch() for _ in range(3)}.pop()
        frontend.know(b"another!")
        frontend.epoch()
        assert not frontend.has_ready_worker()
        frontend.know(epoch)
        deadline = time.monotonic() + WAIT_S
        while not frontend.has_ready_worker():
            assert time.monotonic() < deadline, "it is known and never gets ready"
            time.sleep(0.01)
