"""A broker with an HTTP door, and a client that says what a queue is asked."""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import pytest

from asterism.config import Config
from asterism.router.placement import store_of
from asterism.testing import Broker

PASSWORD = "a-password-for-tests"
READY_S = 30.0
LOOK_S = 0.01
# A store never gives a sequence again that a deleted topic of it gave. Tests count from 1, so what
# is deleted has a store to itself.
STORE_OF_DELETED = 7
_names = itertools.count(1)


def new_name(kind: str, is_doomed: bool = False) -> str:
    """A name that nobody has used; ``is_doomed``: of a topic that the test deletes."""
    while True:
        name = f"{kind}-{next(_names)}"
        if (store_of(name, Config().stores) == STORE_OF_DELETED) is is_doomed:
            return name


def doomed_name(start: str) -> str:
    """A name of a topic that the test deletes: the start, and four digits."""
    names = (f"{start}{number:04}" for number in range(10_000))
    return next(name for name in names if store_of(name, Config().stores) == STORE_OF_DELETED)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(doors=("http",), env={"MQ_ADMIN_PASSWORD": PASSWORD}) as running:
        yield running


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, timeout=20) as client:
        yield client


@pytest.fixture
def queue(http: httpx.Client) -> "Queue":
    return Queue(http, new_name("queue"))


class Queue:
    """A namespace of its own."""

    def __init__(self, http: httpx.Client, namespace: str) -> None:
        self.http = http
        self.namespace = namespace
        self.base = f"/mq/{namespace}"

    def draft(self, priority: int | None = None) -> str:
        answer = self.http.post(f"{self.base}/messages", json={"priority": priority})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        return answer.text

    def set(self, message: str, payload: bytes | str = b"x", **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.put(
            f"{self.base}/messages/{message}", content=payload, headers=named
        ).status_code

    def make(self, payload: bytes | str = b"x", priority: int | None = None) -> str:
        """A message that waits."""
        message = self.draft(priority)
        assert self.set(message, payload) == 204
        return message

    def order(self) -> str:
        answer = self.http.get(f"{self.base}/messages")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        return answer.text

    def get(self, message: str) -> httpx.Response:
        return self.http.get(f"{self.base}/messages/{message}")

    def activate(self, payload: bytes | str = b"x") -> str:
        """A message that is active."""
        message = self.make(payload)
        assert self.order() == message
        assert self.get(message).status_code == 200
        return message

    def abandon(self, message: str) -> int:
        return self.http.delete(f"{self.base}/messages/{message}").status_code

    def patch(self, message: str, what: str) -> int:
        return self.http.patch(f"{self.base}/messages/{message}/{what}").status_code

    def park(self, payload: bytes | str = b"x") -> str:
        """A message that failed."""
        message = self.activate(payload)
        assert self.patch(message, "fail") == 204
        return message

    def failed(self, **headers: str) -> httpx.Response:
        return self.http.get(f"{self.base}/failed-messages", headers=headers)

    def stats(self) -> dict[str, int]:
        answer = self.http.get(f"{self.base}/stats")
        assert answer.status_code == 200
        counts = dict(answer.json())
        assert counts.pop("namespace") == self.namespace
        assert set(counts) == {"drafting", "waiting", "ordered", "active", "completed", "failed"}
        return {name: count for name, count in counts.items() if count}

    def admin(self, method: str, key: str = "", **fields: object) -> httpx.Response:
        path = f"/admin{self.base}/config" + (f"/{key}" if key else "")
        headers = {"Authorization": f"Bearer {PASSWORD}"}
        return self.http.request(method, path, headers=headers, **fields)  # type: ignore[arg-type]


class Door:
    """Another door on a broker, of which it knows the address; by default with a folder of its own.

    ``data_dir`` is that of a broker whose folder it shares; then it needs a name of its own too.
    """

    def __init__(
        self,
        folder: Path,
        address: str,
        password: str = "",
        name: str | None = None,
        data_dir: Path | None = None,
        files: int | None = None,
    ) -> None:
        kept = {
            known: text
            for known, text in os.environ.items()
            if not known.startswith(("ASTERISM_", "MQ_"))
        }
        data = data_dir or folder / "data"
        environ = {
            **kept,
            "ASTERISM_DATA_DIR": str(data),
            "ASTERISM_LISTEN": address,
            "MQ_PORT": "0",
            "MQ_ADMIN_PASSWORD": password,
        }
        command = [sys.executable, "-m", "asterism.gateways.http"]
        if files is not None:  # that it may have open, at most
            command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
        self._log = folder / "log"
        self._file = data / f"run/{name or 'http'}.json"
        with open(self._log, "wb") as log:
            arguments = [*command, "--name", name] if name else command
            self.process = subprocess.Popen(arguments, env=environ, stderr=log)

    def __enter__(self) -> Self:
        try:
            self.url = self._found()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20)

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def _found(self) -> str:
        """Where it listens, as soon as it answers there."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self._log.read_text()
            try:
                said = json.loads(self._file.read_text())
                if said["pid"] == self.process.pid:
                    httpx.get(f"{said['url']}/health", timeout=READY_S)
                    return str(said["url"])
            except (FileNotFoundError, httpx.TransportError):
                pass
            time.sleep(LOOK_S)
        raise AssertionError(self._log.read_text())
