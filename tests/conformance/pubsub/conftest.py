"""The two servers that every test runs on: Google's emulator, and our door.

``-k emulator`` runs a test on the first alone, ``-k door`` on the second. The emulator leaves out
much of what Google's documents say; a test of that is marked ``beyond_reference`` with what happens
there, and runs on the door alone.
"""

import contextlib
import itertools
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Final

import httpx
import pytest

from asterism.testing import Broker
from tests.conformance.pubsub.clients import PATIENCE_S, Pair, Project, wide_subscriber
from tests.conformance.pubsub.endpoint import Endpoint
from tests.support import pubsub_emulator

TEST_S: Final = 60.0
_names = itertools.count(1)


class PubSubServer(ABC):
    """A server that speaks google.pubsub.v1."""

    kind: ClassVar[str]
    address = ""
    rest_url = ""

    @abstractmethod
    def start(self, config: Mapping[str, Any]) -> None:
        """Starts it, and returns when it can be connected to."""

    @abstractmethod
    def stop(self) -> None:
        """Ends it, and everything that belongs to it."""

    def project(self, pair: Pair) -> Project:
        return Project(pair, f"test-{next(_names)}")


class Reference(PubSubServer):
    """Google's emulator."""

    kind = "emulator"

    def __init__(self) -> None:
        self._emulator = pubsub_emulator.Emulator()
        self.address = self._emulator.address
        self.rest_url = f"http://{self.address}"

    def start(self, config: Mapping[str, Any]) -> None:
        assert not config, "the emulator has no options"
        self._emulator.start()

    def stop(self) -> None:
        self._emulator.stop()


class Door(PubSubServer):
    """The Pub/Sub door of a broker of its own."""

    kind = "door"

    def __init__(self) -> None:
        self._running = contextlib.ExitStack()
        self.broker = Broker()

    def start(self, config: Mapping[str, Any]) -> None:
        table = {"rest_listen": "127.0.0.1:0", **config}
        self.broker = Broker(doors=("pubsub",), config={"pubsub": table})
        self._running.enter_context(self.broker)
        self.address = str(self.broker.pubsub_address)
        self.rest_url = str(self.broker.door("pubsub").get("rest_url", ""))

    def stop(self) -> None:
        self._running.close()


KINDS: dict[str, type[PubSubServer]] = {"emulator": Reference, "door": Door}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "beyond_reference(why): Google documents it, and its emulator does not do it"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out what the emulator cannot do, with the reason, before it is started for it."""
    missing = pubsub_emulator.missing()
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        is_here = Path(__file__).parent in item.path.parents
        if not is_here or parameters.get("kind") != Reference.kind:
            continue
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))
        elif (mark := item.get_closest_marker("beyond_reference")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"the emulator: {mark.args[0]}"))


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    """Ends a test that waits too long: the client tries some errors again for ten minutes."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"the test was not done within {TEST_S:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, TEST_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session", params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def server(kind: str) -> Iterator[PubSubServer]:
    """A server with the default configuration, for all tests that need no other."""
    made = KINDS[kind]()
    try:
        made.start({})
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def pair(server: PubSubServer) -> Iterator[Pair]:
    made = Pair(server.address)
    yield made
    made.close()


@pytest.fixture
def project(server: PubSubServer, pair: Pair) -> Project:
    """A project in which nobody has made anything."""
    return server.project(pair)


@pytest.fixture
def wide(server: PubSubServer, pair: Pair, project: Project) -> Iterator[Project]:
    """The same project, by a subscriber whose channel takes responses of any size."""
    subscriber = wide_subscriber(server.address)
    yield Project(pair, project.id, subscriber)
    subscriber.close()


@pytest.fixture(scope="session")
def rest(server: PubSubServer) -> Iterator[httpx.Client]:
    """A client of the REST API, with paths beneath ``/v1/``."""
    with httpx.Client(base_url=f"{server.rest_url}/v1/", timeout=PATIENCE_S) as client:
        yield client


# --- what our door alone has ----------------------------------------------------------------------


@pytest.fixture(scope="session")
def pubsub_door() -> Iterator[Door]:
    """Our door alone, for what no other server has."""
    made = Door()
    try:
        made.start({})
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def killed() -> Iterator[Door]:
    """A door whose processes the tests of a module kill."""
    made = Door()
    try:
        made.start({})
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Door]]:
    """Starts doors with settings; they end with the module."""
    with contextlib.ExitStack() as running:

        def one(**config: Any) -> Door:
            made = Door()
            running.callback(made.stop)
            made.start(config)
            return made

        yield one


Connect = Callable[[PubSubServer], Project]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connects clients of its own to a server; they are closed after the test."""
    with contextlib.ExitStack() as closing:

        def one(server: PubSubServer) -> Project:
            made = Pair(server.address)
            closing.callback(made.close)
            return server.project(made)

        yield one


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """An HTTP server that messages are pushed to."""
    with Endpoint() as listening:
        yield listening
