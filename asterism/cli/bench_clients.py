"""The clients that ``asterism bench`` measures with: each is a process of its own.

A ``Client`` is the benchmark's end of such a process; what runs in it is a *role*, an object whose
methods are asked for by name, one at a time. ``Member`` is the role of our own broker, over the
asyncio SDK as anybody would use it; peers bring roles with the same verbs.

Moments are nanoseconds of the monotonic clock, which all processes of a machine share.
"""

import asyncio
import itertools
import multiprocessing
import os
import signal
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import RawArray
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

import asterism
from asterism.attached import attach
from asterism.sdk.aio import Delivery, Inbox, Node

TIMEOUT_S: Final = 300.0  # for whatever a client is asked to do
OPEN_S: Final = 60.0
CONNECT_S: Final = 5.0
CLOSE_S: Final = 10.0
PAUSE_S: Final = 0.000_5  # of a publisher that is too far ahead of the consumer
SLOTS: Final = 4  # counters that all clients of a run see
TAKEN_MAX: Final = 1_000  # deliveries that a consumer takes at a time
ASKED_MAX: Final = 500  # requests of one kind that a client has open at a time
UNSEEN_MAX: Final = 400  # receipts that a publisher has not looked at yet
STAMP: Final = struct.Struct(">Q")

Item = TypeVar("Item")


class BenchError(Exception):
    """A measurement did not come about; the message says why."""


class Shared(NamedTuple):
    """What the clients of a run share: counters, and a line from consumer to publisher."""

    counts: Any  # an array of whole numbers in shared memory; one client writes a slot
    heard: "Connection[Any, Any]"  # the publisher waits here
    told: "Connection[Any, Any]"  # for what the consumer says here


def shared() -> Shared:
    heard, told = multiprocessing.get_context("spawn").Pipe(duplex=False)
    return Shared(RawArray("Q", SLOTS), heard, told)


class Role(Protocol):
    """What runs in a client's process."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...


# --- the benchmark's end --------------------------------------------------------------------------


class Client:
    """A process in which one role runs, as the benchmark holds it."""

    def __init__(self, name: str, role: Callable[..., Role], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self.connection, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, os.getpid(), role, arguments), name=name, daemon=True
        )
        self._process.start()
        theirs.close()
        try:
            self.answer(OPEN_S)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def ask(self, method: str, *arguments: object, seconds: float = TIMEOUT_S) -> Any:
        """Has the role do something; what came of it."""
        self.tell(method, *arguments)
        return self.answer(seconds)

    def tell(self, method: str, *arguments: object) -> None:
        """Has the role begin with something; ``answer`` waits for what comes of it."""
        try:
            self.connection.send((method, arguments))
        except OSError:
            raise BenchError(f"{self.name} has ended") from None

    def answer(self, seconds: float = TIMEOUT_S) -> Any:
        """Waits for the answer."""
        if not self.connection.poll(seconds):
            raise BenchError(f"{self.name} was not done within {seconds:g} s")
        try:
            error, value = self.connection.recv()
        except (EOFError, OSError):
            raise BenchError(f"{self.name} has ended") from None
        if error:
            raise BenchError(f"{self.name}: {error}")
        return value

    def close(self) -> None:
        """Has the process end, however it is."""
        try:
            self.connection.send(None)
            self._process.join(CLOSE_S)
        except OSError:
            pass
        self.kill()

    def kill(self) -> None:
        """Ends the process at once."""
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.connection.close()

    def freeze(self) -> None:
        """Stops the process where it is; it does not go on any more, and can only be killed."""
        os.kill(self.pid, signal.SIGSTOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def answers(*clients: Client, seconds: float = TIMEOUT_S) -> list[Any]:
    """The answers of clients that do something together.

    If one of them fails it says so at once: the others may wait for it in vain.
    """
    deadline = time.monotonic() + seconds
    found: dict[Client, Any] = {}
    while len(found) < len(clients):
        waiting = [client for client in clients if client not in found]
        left = deadline - time.monotonic()
        if left <= 0:
            late = ", ".join(client.name for client in waiting)
            raise BenchError(f"{late} not done within {seconds:g} s")
        wait([client.connection for client in waiting], left)
        found |= {client: client.answer() for client in waiting if client.connection.poll()}
    return [found[client] for client in clients]


# --- in the process -------------------------------------------------------------------------------


def serve(
    connection: "Connection[Any, Any]",
    parent: int,
    role: Callable[..., Role],
    arguments: tuple[object, ...],
) -> None:
    """Does what the benchmark asks, until it asks no more."""
    attach(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from the keyboard: for the benchmark alone
    asyncio.run(_serve(connection, role(*arguments)))


async def _serve(connection: "Connection[Any, Any]", role: Role) -> None:
    connection.send(await _outcome(role.open()))
    try:
        while True:
            await readable(connection)
            asked = connection.recv()
            if asked is None:
                break
            method, arguments = asked
            connection.send(await _outcome(getattr(role, method)(*arguments)))
    except EOFError:
        pass
    await role.close()


async def _outcome(work: Any) -> tuple[str, Any]:
    """What went wrong, or nothing; and what came of it."""
    try:
        return "", await work
    except Exception as error:
        return f"{type(error).__name__}: {error}", None


async def readable(connection: "Connection[Any, Any]") -> None:
    """Waits until somebody has said something there."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection.fileno())


def quantities(count: int, batch: int) -> Iterator[int]:
    """The sizes of the batches that so many messages make."""
    whole, rest = divmod(count, batch)
    yield from itertools.repeat(batch, whole)
    if rest:
        yield rest


def parts(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """The items, so many at a time as a client asks at once."""
    for start in range(0, len(items), ASKED_MAX):
        yield items[start : start + ASKED_MAX]


def stamped(size: int) -> bytes:
    """A payload that begins with this moment."""
    return STAMP.pack(time.monotonic_ns()).ljust(size, b"x")


def stamp_of(payload: bytes) -> int:
    moment: int = STAMP.unpack_from(payload)[0]
    return moment


# --- clients of our broker ------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What a publisher is to publish, and how."""

    topics: Sequence[str]  # one batch each, in turn
    count: int
    batch: int
    wishes: dict[str, Any]
    ahead_max: int | None = None  # how far it may be ahead of what has been delivered
    copies: int = 1  # deliveries that each message makes
    slots: tuple[int, ...] = (0,)  # the counters of those who consume
    rate: float | None = None  # messages a second; as fast as can be, where none


class Member:
    """A publisher or a consumer, on a connection of its own."""

    def __init__(self, address: str, name: str, size: int, shared: Shared) -> None:
        self._node: Node = asterism.connect(address, name=name, timeout=CONNECT_S)
        self._address = address
        self._size = size
        self._counts = shared.counts
        self._shared = shared
        self._inboxes: dict[str, list[Inbox]] = {}

    async def open(self) -> None:
        await self._node.open()

    async def close(self) -> None:
        await self._node.close()

    # --- publishing -----------------------------------------------------------------------------

    async def publish(self, plan: Plan) -> tuple[int, int]:
        """Publishes; when it began, and when all was accepted."""
        payloads = [b"x" * self._size] * plan.batch
        topics = itertools.cycle(plan.topics)
        unseen: deque[asterism.Receipt] = deque()
        sent = 0
        began = time.monotonic_ns()
        for quantity in quantities(plan.count, plan.batch):
            await self._hold_back(plan, sent, began)
            topic = next(topics)
            if plan.batch == 1:
                unseen.append(await self._node.send(topic, payloads[0], **plan.wishes))
            else:
                part = payloads if quantity == plan.batch else payloads[:quantity]
                unseen.append(await self._node.send_many(topic, part, **plan.wishes))
            sent += quantity
            if len(unseen) > UNSEEN_MAX:
                await unseen.popleft().accepted()
        for receipt in unseen:
            await receipt.accepted()
        return began, time.monotonic_ns()

    async def _hold_back(self, plan: Plan, sent: int, began: int) -> None:
        """Waits while it is too far ahead of the consumer, or of the rate."""
        if plan.ahead_max is not None:
            while sent - self._delivered(plan) >= plan.ahead_max:
                await asyncio.sleep(PAUSE_S)
        if plan.rate is not None:
            ahead_s = sent / plan.rate - (time.monotonic_ns() - began) / 1e9
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)

    def _delivered(self, plan: Plan) -> int:
        """How many messages every consumer has got."""
        return int(min(self._counts[slot] for slot in plan.slots)) // plan.copies

    async def publish_each(
        self, topic: str, count: int, wishes: dict[str, Any]
    ) -> list[tuple[int, int]]:
        """Publishes one after the other, each when the one before is processed.

        When each was published, and when it was accepted.
        """
        moments = []
        for _ in range(count):
            payload = stamped(self._size)
            await self._node.publish(topic, payload, **wishes)
            moments.append((stamp_of(payload), time.monotonic_ns()))
            await readable(self._shared.heard)
            self._shared.heard.recv_bytes()
        return moments

    async def publish_alone(
        self, topic: str, count: int, wishes: dict[str, Any]
    ) -> list[tuple[int, int]]:
        """Publishes one after the other, each when the one before is accepted; as above."""
        moments = []
        for _ in range(count):
            payload = stamped(self._size)
            await self._node.publish(topic, payload, **wishes)
            moments.append((stamp_of(payload), time.monotonic_ns()))
        return moments

    async def publish_blocking(
        self, topic: str, count: int, wishes: dict[str, Any]
    ) -> list[tuple[int, int]]:
        """The same by the blocking client."""

        def publish() -> list[tuple[int, int]]:
            moments = []
            with asterism.connect_blocking(self._address, name="blocking") as node:
                for _ in range(count):
                    payload = stamped(self._size)
                    node.publish(topic, payload, **wishes)
                    moments.append((stamp_of(payload), time.monotonic_ns()))
            return moments

        return await asyncio.to_thread(publish)  # where no loop runs, as with any who uses it

    # --- receiving ------------------------------------------------------------------------------

    async def subscribe(
        self, label: str, topics: Sequence[str], names: Sequence[Any], credit: int
    ) -> None:
        """Subscribes to every topic under every name; one without a name is not durable."""
        pairs = [(topic, name) for topic in topics for name in names]
        inboxes = self._inboxes.setdefault(label, [])
        fixed = credit if credit > 0 else None  # None: it adapts
        for part in parts(pairs):
            inboxes += await asyncio.gather(
                *(
                    self._node.subscribe(topic, group=name, credit=fixed, timeout=TIMEOUT_S)
                    for topic, name in part
                )
            )

    async def idle(self, label: str, topic: str, count: int) -> None:
        """Makes so many endpoints that want something else than is published."""
        inboxes = self._inboxes.setdefault(label, [])
        for part in parts(range(count)):
            inboxes += await asyncio.gather(
                *(
                    self._node.subscribe(topic, f"idle/{number}", timeout=TIMEOUT_S)
                    for number in part
                )
            )

    async def leave(self, label: str) -> None:
        """Closes its inboxes; durable receivers stay."""
        for part in parts(self._inboxes.pop(label)):
            await asyncio.gather(*(inbox.close(TIMEOUT_S) for inbox in part))

    async def consume(self, label: str, count: int, slot: int = 0) -> int:
        """Takes and processes so many deliveries; when the broker knew that the last one was."""
        left = [count]
        done = asyncio.get_running_loop().create_future()
        tasks = [
            asyncio.create_task(self._consume(inbox, left, count, slot, done))
            for inbox in self._inboxes[label]
        ]
        try:
            async with asyncio.timeout(TIMEOUT_S):
                ended: int = await done
                return ended
        except TimeoutError:
            raise BenchError(f"{left[0]} of {count} deliveries did not come") from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _consume(
        self,
        inbox: Inbox,
        left: list[int],
        count: int,
        slot: int,
        done: "asyncio.Future[int]",
    ) -> None:
        try:
            while left[0] > 0:
                taken = await inbox.batch(TAKEN_MAX, None)
                left[0] -= len(taken)
                self._counts[slot] = count - left[0]
                await self._process(inbox, taken, left[0] <= 0)
            if not done.done():
                done.set_result(time.monotonic_ns())
        except Exception as error:
            if not done.done():
                done.set_exception(error)

    async def _process(self, inbox: Inbox, taken: list[Delivery], is_last: bool) -> None:
        if is_last:
            await inbox.processed(taken[:-1])
            await taken[-1].processed(confirm=True)
        else:
            await inbox.processed(taken)

    async def consume_each(self, label: str, count: int) -> list[int]:
        """Takes one after the other, and lets the publisher know when each is processed.

        When each was in the hands of the application.
        """
        moments = []
        (inbox,) = self._inboxes[label]
        for _ in range(count):
            delivery = await inbox.receive(TIMEOUT_S)
            moments.append(time.monotonic_ns())
            await delivery.processed(confirm=True)
            self._shared.told.send_bytes(b"1")
        return moments

    # --- the broker -----------------------------------------------------------------------------

    async def delete_topics(self, topics: Sequence[str]) -> None:
        for part in parts(topics):
            await asyncio.gather(*map(self._delete_topic, part))

    async def _delete_topic(self, topic: str) -> None:
        try:
            await self._node.delete_topic(topic, timeout=TIMEOUT_S)
        except asterism.PeerError as error:
            if error.code != "no_such_topic":
                raise

    async def memory(self) -> int:
        """Bytes that the processes of the broker hold, as they say themselves."""
        told = await self._node.status()
        processes = [told["frontend"], told["interests"], *told["workers"]]
        return sum(status["memory_bytes"] for status in processes if status)
