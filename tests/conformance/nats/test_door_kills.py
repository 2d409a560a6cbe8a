"""Processes of the broker are killed under clients of the NATS door, while somebody publishes.

Online messages are lost while somebody is away; so what is lost is counted, and has to be of the
time of the kill. What may never be: a message twice, messages out of order, a client that does not
get what is published after everything runs again.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import nats
import pytest
from nats.aio.msg import Msg

import asterism
from asterism import BlockingNode
from tests.conformance.nats.conftest import Door
from tests.conformance.nats.raw_client import RawClient, pub, sub

pytestmark = [pytest.mark.process, pytest.mark.fault]

TOPIC = "nats"
BACK_S = 40.0
PAUSE_S = 0.002  # between the messages of a publisher that goes on
AROUND = 100  # messages that come before the kill
STEADY = 300  # that come without a gap, when everything runs again


@pytest.fixture(scope="module")
def killed() -> Iterator[Door]:
    door = Door()
    try:
        door.start({})
        yield door
    finally:
        door.stop()


@pytest.fixture
def sdk(killed: Door) -> Iterator[BlockingNode]:
    killed.broker.wait_ready(BACK_S)
    with asterism.connect_blocking(killed.broker.address, name="goes on") as node:
        yield node


class GoingOn:
    """Publishes 0, 1, 2, … in a thread of its own, whatever happens, until it is left.

    ``publish`` returns whether the number went out; one that did not is not published again.
    """

    def __init__(self, publish: Callable[[int], bool]) -> None:
        self._publish = publish
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.refused: list[int] = []
        self.next = 0

    def __enter__(self) -> "GoingOn":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Publishes no more; how many numbers there were."""
        self._is_over.set()
        self._thread.join(BACK_S)
        assert not self._thread.is_alive()
        return self.next

    def _run(self) -> None:
        while not self._is_over.wait(PAUSE_S):
            if not self._publish(self.next):
                self.refused.append(self.next)
            self.next += 1


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BACK_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def assert_once_and_in_order(numbers: Sequence[int]) -> None:
    assert list(numbers) == sorted(set(numbers))


def lost_of(numbers: Sequence[int], published: int) -> list[int]:
    return sorted(set(range(published)) - set(numbers))


class Collected:
    """What a connection receives, taken in a thread of its own, so that nothing piles up."""

    def __init__(self, take: Callable[[], int | None]) -> None:
        self.numbers: list[int] = []
        self._take = take
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Collected":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join(BACK_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_over:
            number = self._take()
            if number is not None:
                self.numbers.append(number)

    def wait_for(self, number: int) -> None:
        """Until this or a later one is there."""
        until(lambda: bool(self.numbers) and self.numbers[-1] >= number)


def by_client(client: RawClient) -> Callable[[], int | None]:
    def take() -> int | None:
        try:
            return int(client.read_message(0.1).payload)
        except AssertionError:  # nothing came
            return None

    return take


def by_program(inbox: asterism.BlockingInbox) -> Callable[[], int | None]:
    def take() -> int | None:
        try:
            return int(inbox.receive(0.1).payload)
        except TimeoutError:
            return None

    return take


def from_program(sdk: BlockingNode, path: str) -> Callable[[int], bool]:
    def publish(number: int) -> bool:
        try:
            sdk.publish(TOPIC, b"%d" % number, subject=path, mode="online", timeout=BACK_S)
        except asterism.BrokerError:
            return False
        return True

    return publish


def from_client(client: RawClient, subject: str) -> Callable[[int], bool]:
    def publish(number: int) -> bool:
        try:
            client.send(pub(subject, b"%d" % number))
        except OSError:
            return False
        return True

    return publish


def _kill_within(killed: Door, kind: str, going: GoingOn, seen: Collected) -> tuple[int, int]:
    """Kills when some have come, and waits until some have come after it.

    The numbers between which it was: what is lost has to be of those.
    """
    seen.wait_for(AROUND)
    before = seen.numbers[-1]
    killed.broker.kill(kind)
    killed.broker.wait_ready(BACK_S)
    # Sessions end when the processes that are left hear of the new one, a moment after it is ready,
    # and are made anew: what is lost meanwhile is of the kill. From then on nothing is.
    first = going.next

    def is_steady() -> bool:
        last = seen.numbers[-STEADY:]
        return len(last) == STEADY and first <= last[0] == last[-1] - STEADY + 1

    until(is_steady)
    behind = seen.numbers[-STEADY]
    return before, behind


@pytest.mark.parametrize("kind", ["frontend", "worker"])
def test_a_client_goes_on_receiving_from_a_program(
    killed: Door, sdk: BlockingNode, subject: str, kind: str
) -> None:
    path = subject.replace(".", "/")
    with killed.connect() as client:
        client.until_pong(sub(subject))
        going = GoingOn(from_program(sdk, path))
        with Collected(by_client(client)) as seen, going:
            before, behind = _kill_within(killed, kind, going, seen)
            published = going.stop()
            seen.wait_for(published - 1)
        assert_once_and_in_order(seen.numbers)
        lost = lost_of(seen.numbers, published)
        assert all(before < number < behind for number in lost), (before, behind, lost)
        assert client.until_pong() == b"", "the same connection"


@pytest.mark.parametrize("kind", ["frontend", "worker"])
def test_a_program_goes_on_receiving_from_a_client(
    killed: Door, sdk: BlockingNode, subject: str, kind: str
) -> None:
    path = subject.replace(".", "/")
    with killed.connect() as client, sdk.subscribe(TOPIC, path) as inbox:
        client.until_pong()
        client.answers_pings = False  # it publishes, which says as much
        going = GoingOn(from_client(client, subject))
        with Collected(by_program(inbox)) as seen, going:
            before, behind = _kill_within(killed, kind, going, seen)
            published = going.stop()
            assert client.until_pong() == b"", "the same connection"
            seen.wait_for(published - 1)
        assert going.refused == []
        assert_once_and_in_order(seen.numbers)
        lost = lost_of(seen.numbers, published)
        assert all(before < number < behind for number in lost), (before, behind, lost)


@pytest.mark.parametrize("kind", ["frontend", "worker"])
def test_clients_go_on_among_themselves(killed: Door, subject: str, kind: str) -> None:
    killed.broker.wait_ready(BACK_S)
    with killed.connect() as client, killed.connect() as publisher:
        client.until_pong(sub(subject))
        publisher.until_pong()
        publisher.answers_pings = False
        going = GoingOn(from_client(publisher, subject))
        with Collected(by_client(client)) as seen, going:
            before, behind = _kill_within(killed, kind, going, seen)
            published = going.stop()
            assert publisher.until_pong() == b""
            seen.wait_for(published - 1)
        assert_once_and_in_order(seen.numbers)
        lost = lost_of(seen.numbers, published)
        assert all(before < number < behind for number in lost), (before, behind, lost)


def test_a_killed_door_closes_its_clients_and_takes_them_again(
    killed: Door, sdk: BlockingNode, subject: str
) -> None:
    path = subject.replace(".", "/")
    with killed.connect() as first, GoingOn(from_program(sdk, path)) as going:
        first.until_pong(sub(subject))
        numbers = [int(first.read_message().payload) for _ in range(AROUND)]
        killed.broker.kill("nats")
        numbers += [int(one.split(b"\r\n")[1]) for one in first.commands_until_closed()]
        killed.broker.wait_ready(BACK_S)
        with killed.connect() as second:  # at the same address
            early = second.messages_until_pong(sub(subject))
            mark = going.next
            published = going.stop()
            rest = [*early, *second.messages_until_pong()]
            numbers += [int(one.payload) for one in rest]
    assert_once_and_in_order(numbers)
    assert going.refused == [], "a program notices nothing"
    lost = lost_of(numbers, published)
    assert all(number < mark for number in lost), "none after it had subscribed again"


def test_a_program_s_subscription_outlives_a_killed_door(
    killed: Door, sdk: BlockingNode, subject: str
) -> None:
    path = subject.replace(".", "/")
    with sdk.subscribe(TOPIC, path) as inbox:
        with killed.connect() as client:
            client.until_pong(b"".join(pub(subject, b"%d" % at) for at in range(100)))
            killed.broker.kill("nats")
            client.commands_until_closed()
        killed.broker.wait_ready(BACK_S)
        with killed.connect() as client:
            client.until_pong(b"".join(pub(subject, b"%d" % at) for at in range(100, 200)))
        numbers: list[int] = []
        while not numbers or numbers[-1] < 199:
            numbers.append(int(inbox.receive(BACK_S).payload))
        assert_once_and_in_order(numbers)
        assert set(range(100)) <= set(numbers), "a PONG was given for these"


def test_a_queue_goes_on_without_the_members_of_a_killed_door(
    killed: Door, sdk: BlockingNode, subject: str
) -> None:
    """The broker notices that they are gone, and gives everything to the others."""
    path = subject.replace(".", "/")
    with (
        sdk.subscribe(TOPIC, path, group="q", durable=False) as inbox,
        killed.connect() as client,
    ):
        client.until_pong(sub(subject, 1, "q"))
        killed.broker.kill("nats")
        client.commands_until_closed()
        killed.broker.wait_ready(BACK_S)
        deadline = time.monotonic() + BACK_S
        numbers: list[int] = []
        at = 0
        while True:  # until twenty in a row come
            start = at
            for _ in range(20):
                sdk.publish(TOPIC, b"%d" % at, subject=path, mode="online", timeout=BACK_S)
                at += 1
            got: list[int] = []
            with contextlib.suppress(TimeoutError):
                while len(got) < 20:
                    got.append(int(inbox.receive(0.5).payload))
            numbers += got
            if got == list(range(start, at)):
                break
            assert time.monotonic() < deadline
        assert len(numbers) == len(set(numbers))


def test_nats_py_comes_back_by_itself(killed: Door, sdk: BlockingNode, subject: str) -> None:
    path = subject.replace(".", "/")

    async def scene() -> list[int]:
        async with asyncio.timeout(2 * BACK_S):
            got: list[int] = []
            again = asyncio.Event()

            async def take(message: Msg) -> None:
                got.append(int(message.data))

            async def reconnected() -> None:
                again.set()

            client = await nats.connect(
                killed.url,
                reconnected_cb=reconnected,
                reconnect_time_wait=0.05,
                max_reconnect_attempts=-1,
            )
            await client.subscribe(subject, cb=take)
            await client.flush()
            await client.flush()
            with GoingOn(from_program(sdk, path)):
                while len(got) < AROUND:
                    await asyncio.sleep(0.01)
                killed.broker.kill("nats")
                await again.wait()
                count = len(got)
                while len(got) < count + AROUND:
                    await asyncio.sleep(0.01)
            await client.close()
            return got

    assert_once_and_in_order(asyncio.run(scene()))


def test_requests_are_answered_again_after_each_kill(
    killed: Door, sdk: BlockingNode, subject: str
) -> None:
    """While somebody is away a request may stay unanswered, or hear that nobody is there."""
    path = subject.replace(".", "/")
    with sdk.subscribe(TOPIC, path) as inbox, killed.connect() as client:
        client.until_pong(sub("_INBOX.x", 9))
        for kind in ("frontend", "worker", "interests"):
            killed.broker.kill(kind)
            killed.broker.wait_ready(BACK_S)
            asked = kind.encode()
            until(lambda asked=asked: _is_answered(client, inbox, subject, asked))  # type: ignore[misc]


def _is_answered(
    client: RawClient, inbox: asterism.BlockingInbox, subject: str, asked: bytes
) -> bool:
    client.send(pub(subject, asked, "_INBOX.x"))
    try:
        delivery = inbox.receive(0.5)
    except TimeoutError:
        client.messages_until_pong()
        return False
    delivery.reply(b"to " + delivery.payload)
    while (answer := client.read_message()).headers:
        pass
    return answer.payload == b"to " + asked
