"""What end-to-end tests share: a broker, topics of one's own, a client of bare frames, a consumer
that can be killed.

Nothing here sleeps in the hope that something has happened by then. That something has come is
waited for, with a deadline; that nothing has come is asked behind a barrier: what a command caused
leaves the broker before its answer (protocol, section 13), so after an answer it is here or not.
"""

import asyncio
import contextlib
import functools
import inspect
import itertools
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest
import zmq

import asterism
from asterism import wire
from asterism.config import Config
from asterism.message import Header, Mode, Status
from asterism.router.placement import store_of, worker_of
from asterism.sdk.aio import Delivery, Inbox, Node
from asterism.sdk.arguments import ARGUMENT_ERRORS
from asterism.testing import Broker
from asterism.wire import Verb
from tests.support.batches import some

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 20.0
WORKERS = 2
_names = itertools.count(1)


# --- brokers, topics, clients ---------------------------------------------------------------------


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """One broker for all modules that do not configure their own."""
    with Broker(workers=WORKERS) as running:
        yield running


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return new_topic()


def new_topic(worker: int | None = None) -> str:
    """A name that was never used; with a worker, one of a topic that lives there."""
    for number in _names:
        name = f"spec-{number}"
        if worker is None or worker_of_topic(name) == worker:
            return name
    raise AssertionError("there is always another number")


def worker_of_topic(topic: str) -> int:
    """The worker that a topic lives in."""
    return worker_of(store_of(topic, Config().stores), WORKERS)


def with_a_client(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes a test of a scenario: its first argument is a client, the others are fixtures."""
    wanted = list(inspect.signature(scenario).parameters.values())[1:]
    if "broker" not in [parameter.name for parameter in wanted]:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        fixtures = [inspect.Parameter("broker", kind), *wanted]
    else:
        fixtures = wanted
    names = {parameter.name for parameter in wanted}

    @functools.wraps(scenario)
    def test(**given: Any) -> None:
        asyncio.run(_play(scenario, given["broker"], {n: given[n] for n in names}))

    test.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
    return test


async def _play(
    scenario: Callable[..., Coroutine[Any, Any, None]], broker: Broker, given: dict[str, Any]
) -> None:
    async with asyncio.timeout(3 * WAIT_S), asterism.connect(broker.address, "test") as node:
        await scenario(node, **given)


# --- waiting, and not -----------------------------------------------------------------------------


async def until(is_so: Callable[[], Awaitable[bool]], what: str) -> None:
    """Waits for a condition, with a deadline."""
    deadline = time.monotonic() + WAIT_S
    while not await is_so():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        await asyncio.sleep(0.01)


async def has_receivers(node: Node, topic: str, count: int) -> bool:
    """Whether a topic has this many receivers."""
    return len(await node.list_receivers(topic)) == count


async def receive(inbox: Inbox, count: int) -> list[Delivery]:
    """So many deliveries, and not one of them reported on."""
    taken: list[Delivery] = []
    while len(taken) < count:
        more = await inbox.batch(count - len(taken), WAIT_S)
        assert more, f"only {len(taken)} of {count} came"
        taken += more
    return taken


async def take(inbox: Inbox, count: int) -> list[bytes]:
    """The payloads of so many deliveries, each of them processed before the next is taken."""
    payloads = []
    for _ in range(count):
        (delivery,) = await receive(inbox, 1)
        await delivery.processed(confirm=True)
        payloads.append(delivery.payload)
    return payloads


async def is_empty(node: Node, inbox: Inbox) -> bool:
    """Whether nothing has come to an inbox of this client that was sent before now."""
    await node.describe(inbox.topic)
    return await some(inbox, 1, 0) == []


async def counts(node: Node, topic: str, *names: str) -> tuple[int, ...]:
    """Counts of a topic, as it describes itself."""
    described = await node.describe(topic)
    return tuple(getattr(described, name) for name in names)


def moment(seconds: float = 0.0) -> float:
    """So many seconds from now, as publishers give a time."""
    return time.time_ns() / 1e9 + seconds


@contextlib.asynccontextmanager
async def refused(code: str) -> AsyncIterator[pytest.ExceptionInfo[asterism.BrokerError]]:
    """What happens within is refused with this code."""
    with pytest.raises(asterism.BrokerError) as raised:
        yield raised
    assert raised.value.code == code


@contextlib.asynccontextmanager
async def wrong(code: str) -> AsyncIterator[None]:
    """What is asked within never leaves the client; the broker would refuse it with this code."""
    with pytest.raises(ARGUMENT_ERRORS) as raised:
        yield
    error = raised.value
    assert isinstance(error, ARGUMENT_ERRORS) and error.refusal.code == code


# --- bare frames ----------------------------------------------------------------------------------


class Answer(NamedTuple):
    """One part of what the broker says."""

    verb: int
    worker: int
    request: int
    topic: bytes
    body: Any


def message(payload: bytes = b"", number: int = 1, **header: Any) -> tuple[bytes, bytes, bytes]:
    """A message as it travels: by default durable and expected to be processed."""
    header = {"mode": Mode.DURABLE, "expect": Status.PROCESSED, "subjects": ("a",), **header}
    return number.to_bytes(16, "big"), Header(**header).encoded, payload


class Raw:
    """A client of bare frames, for what the SDK would never say."""

    def __init__(self, address: str, hello: bool = True) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(address)
        self.unasked: list[Answer] = []
        self._said: deque[Answer] = deque()  # parts of a frame that were not taken yet
        self._numbers = itertools.count(1)
        if hello:
            said = self.ask(Verb.HELLO, "", {"versions": [1], "name": "raw"})
            assert said.verb == Verb.WELCOME
            for worker in range(said.body["workers"]):  # one may just have been killed
                self.ask_again(Verb.STATUS, f"\0w{worker}", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, verb: int, topic: str, body: object) -> int:
        """Sends a request; its number."""
        number = next(self._numbers)
        self.socket.send(wire.pack_part(verb, number, topic.encode(), wire.pack_body(body)))
        return number

    def next(self) -> Answer:
        """The next part of what the broker says, but for its looking who is still there."""
        said = self.next_within(WAIT_S)
        assert said is not None, "the broker says nothing"
        return said

    def next_within(self, seconds: float) -> Answer | None:
        """The same, or nothing where none comes for so long."""
        deadline = time.monotonic() + seconds
        while not self._said:
            if not self.socket.poll(max(0, int((deadline - time.monotonic()) * 1_000))):
                return None
            (frame,) = self.socket.recv_multipart()
            for part in wire.read_parts(frame):
                if part.verb == Verb.PONG and not part.request:
                    continue
                body = wire.read_body(frame[part.body : part.end])
                self._said.append(Answer(part.verb, part.worker, part.request, part.topic, body))
        return self._said.popleft()

    def answer(self, number: int) -> Answer:
        """The answer to a request; what comes before it is put aside."""
        while (said := self.next()).request != number:
            self.unasked.append(said)
        return said

    def ask(self, verb: int, topic: str, body: object) -> Answer:
        return self.answer(self.send(verb, topic, body))

    def ask_again(self, verb: int, topic: str, body: object) -> Answer:
        """Asks until the broker is not busy any more, as it hints."""
        deadline = time.monotonic() + WAIT_S
        while (said := self.ask(verb, topic, body)).verb == Verb.REFUSE and said.body[0] == "busy":
            assert time.monotonic() < deadline, said
            time.sleep(said.body[2] / 1_000)
        return said

    def reply(self, verb: int, topic: str, *fields: object) -> dict[str, Any]:
        """Asks what is not refused; what it is answered with."""
        said = self.ask(verb, topic, fields)
        assert said.verb == Verb.REPLY, said
        found: dict[str, Any] = said.body
        return found

    def publish(self, topic: str, *entries: Sequence[bytes]) -> list[int]:
        """Publishes messages that are accepted; their sequences."""
        said = self.ask(Verb.PUBLISH, topic, [entries])
        assert said.verb == Verb.ACCEPTED and set(map(type, said.body)) == {int}, said
        return list(said.body)

    def refusal(self, verb: int, topic: str, body: object) -> str:
        """Asks what is refused; the code."""
        said = self.ask(verb, topic, body)
        assert said.verb == Verb.REFUSE, said
        return str(said.body[0])

    def until(self, verb: int) -> Answer:
        """The next part of a verb that came unasked, or comes."""
        while True:
            for position, said in enumerate(self.unasked):
                if said.verb == verb:
                    return self.unasked.pop(position)
            self.unasked.append(self.next())


# --- a consumer in a process of its own -----------------------------------------------------------

CONSUMER = """
import sys
import asterism

address, topic, credit, *group = sys.argv[1:]
with asterism.connect_blocking(address, name="consumer") as node:
    inbox = node.subscribe(topic, group=group[0] if group else None, credit=int(credit))
    print("ready", flush=True)
    for delivery in inbox:
        print(delivery.payload.decode(), delivery.attempt, flush=True)
"""


class Consumer:
    """A process that takes what it is sent, says so, and never reports on it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        """What it says next: payload and attempt of a delivery."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            return (await self.process.stdout.readline()).decode().strip()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        """Kills it, as nobody can prepare for."""
        self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def consumer(
    address: str, topic: str, group: str | None = None, credit: int = 256
) -> AsyncIterator[Consumer]:
    """Runs a consumer, from when it has subscribed."""
    arguments = [address, topic, str(credit), *([group] if group else [])]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CONSUMER, *arguments),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    running = Consumer(process)
    try:
        assert await running.line() == "ready"
        yield running
    finally:
        if process.returncode is None:
            await running.kill()
