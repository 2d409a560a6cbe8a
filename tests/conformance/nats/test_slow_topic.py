"""What clients of the NATS door are promised while the worker of their topic does nothing."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import asterism
from asterism import BlockingInbox, BlockingNode
from asterism.config import Config
from asterism.router.placement import store_of, worker_of
from tests.conformance.nats.conftest import Door
from tests.conformance.nats.raw_client import RawClient, pub, sub

pytestmark = pytest.mark.process

TOPIC = "nats"
WAIT_S = 20.0
CREDIT = 1_000_000
FRAMES = 200  # more than a client of the broker has unanswered at a time
FRAME_S = 0.002_2  # between messages that leave in a frame each


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    door = Door()
    try:
        door.start({})
        yield door
    finally:
        door.stop()


@pytest.fixture(scope="module")
def sdk(door: Door) -> Iterator[BlockingNode]:
    with asterism.connect_blocking(door.broker.address, name="slow topic") as node:
        yield node


Stop = Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture
def stopped(door: Door) -> Stop:
    """The worker of the topic does nothing meanwhile."""
    worker = worker_of(store_of(TOPIC, Config().stores), len(door.broker.pids()["worker"]))

    @contextlib.contextmanager
    def stop() -> Iterator[None]:
        door.broker.kill("worker", worker, signal.SIGSTOP)
        try:
            yield
        finally:
            door.broker.kill("worker", worker, signal.SIGCONT)

    return stop


def payloads_until(inbox: BlockingInbox, last: bytes) -> list[bytes]:
    found = [inbox.receive(WAIT_S).payload]
    while found[-1] != last:
        found.append(inbox.receive(WAIT_S).payload)
    return found


def test_a_request_comes_behind_what_its_client_published_before(
    door: Door, sdk: BlockingNode, stopped: Stop
) -> None:
    """Also where that fills all the room there is; and nobody is told that nobody hears it."""
    with (
        sdk.subscribe(TOPIC, "t/**", credit=CREDIT) as inbox,
        door.connect() as one,
        contextlib.ExitStack() as leaving,
    ):
        others = [leaving.enter_context(door.connect()) for _ in range(8)]
        one.until_pong(sub("_A.>") + pub("t.w", b"w"))
        for other in others:
            other.until_pong(sub("_B.>"))
        with stopped():
            for number in range(18):
                one.send(pub("t.m", b"%d" % number) * 1_000)
            one.send(pub("t.q", b"?", reply="_A.1"))
            for other in others:
                other.send(pub("t.q", b"!", reply="_B.1") * 60)
            time.sleep(0.3)  # so that all of it is at the door, which waits for a second
        asked = [other.commands_until_pong() for other in others]
        assert asked == [[]] * len(others), "somebody hears them"
        got: list[bytes] = []
        while got.count(b"!") < 8 * 60 or b"?" not in got:
            got.append(inbox.receive(WAIT_S).payload)
        mine = [payload for payload in got if payload not in (b"!", b"w")]
        assert mine == [b"%d" % number for number in range(18) for _ in range(1_000)] + [b"?"]


def test_requests_stay_in_order_while_the_door_finds_out_that_it_is_not_alone(
    door: Door, sdk: BlockingNode, stopped: Stop
) -> None:
    with door.connect() as client:
        client.until_pong(sub("_I.>"))
        for _ in range(3):
            client.until_pong(pub("x.y", b"1"))
            client.until_pong(pub("x.y", b"1"))  # the answer says that the door is alone
            began = time.monotonic()
            with sdk.subscribe(TOPIC, "t/q", credit=CREDIT) as inbox:
                time.sleep(max(0.0, began + 0.93 - time.monotonic()))
                with stopped():
                    client.send(b"".join(_request(number) for number in range(5)))
                    time.sleep(max(0.0, began + 1.1 - time.monotonic()))  # it counts for a second
                    client.send(b"".join(_request(number) for number in range(5, 10)))
                    time.sleep(0.1)
                got = [int(inbox.receive(WAIT_S).payload) for _ in range(10)]
                assert got == list(range(10))


def _request(number: int) -> bytes:
    return pub("t.q", b"%d" % number, reply=f"_I.{number}")


def test_a_pong_comes_behind_what_waits_for_answers_to_earlier_frames(
    door: Door, sdk: BlockingNode, stopped: Stop
) -> None:
    with (
        sdk.subscribe(TOPIC, "t/**", credit=CREDIT) as inbox,
        asterism.connect_blocking(door.broker.address, name="other") as other,
        door.connect() as client,
    ):
        for number in range(3):
            client.until_pong(pub("t.w", b"w"))
            other.publish(TOPIC, b"before", subject="t/z", mode="online")
            payloads_until(inbox, b"before")
            with stopped():
                for at in range(FRAMES):
                    client.send(pub("t.m", b"%d" % at))
                    time.sleep(FRAME_S)
                client.send(b"".join(pub("t.m", b"%d" % at) for at in range(FRAMES, 10_000)))
                client.send(b"PING\r\n")
                time.sleep(0.1)
            assert client.read_command() == b"PONG\r\n"
            last = b"after %d" % number
            other.publish(TOPIC, last, subject="t/z", mode="online")
            got = [payload for payload in payloads_until(inbox, last) if payload != b"w"]
            assert got == [*(b"%d" % at for at in range(10_000)), last]


def test_clients_that_waited_are_read_again(door: Door, stopped: Stop) -> None:
    """Each waits for its PONG, or for the broker to take what one of them floods it with."""
    with contextlib.ExitStack() as leaving:
        clients = [leaving.enter_context(door.connect()) for _ in range(8)]
        for client in clients:
            client.until_pong()
        flooding = leaving.enter_context(_Flood(leaving.enter_context(door.connect())))
        flooding.began.wait(WAIT_S)
        with stopped():
            for _ in range(3):
                for client in clients:
                    client.send(b"PING\r\n")
                time.sleep(0.5)
        for client in clients:
            assert [client.read_command() for _ in range(3)] == [b"PONG\r\n"] * 3
            client.until_pong()


class _Flood:
    """A client that publishes without pause, in a thread of its own."""

    def __init__(self, client: RawClient) -> None:
        self.began = threading.Event()
        self._client = client
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "_Flood":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(WAIT_S)

    def _run(self) -> None:
        block = pub("x.y", b"x" * 8_000) * 16
        with contextlib.suppress(OSError):
            while not self._is_over.is_set():
                self._client.send(block)
                self.began.set()
