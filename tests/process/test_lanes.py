"""Lanes of real processes: who has them, what goes on them, and what becomes of it when they end.

The broker of these tests waits minutes for a silent client, and clients for a silent broker: so a
front-end may be stopped, and what happens meanwhile happens on lanes.
"""

import asyncio
import contextlib
import hashlib
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgpack
import pytest
import zmq

import asterism
from asterism.sdk.aio import Inbox, Node
from asterism.testing import Broker
from tests.process.conftest import (
    WAIT_S,
    WORKERS,
    consumer,
    message,
    new_topic,
    receive,
    take,
    until,
    with_a_client,
    worker_of_topic,
)
from tests.support.batches import some

pytestmark = pytest.mark.process
HEARTBEAT_S = 60


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(workers=WORKERS, config={"heartbeat": HEARTBEAT_S}) as running:
        yield running


async def lanes_of(node: Node) -> list[int]:
    """How many lanes each worker has."""
    return [worker.get("lanes", -1) for worker in (await node.query_status())["workers"]]


async def until_lanes(node: Node, clients: int) -> None:
    """Waits until so many clients have a lane to every worker."""

    async def have() -> bool:
        return await lanes_of(node) == [clients] * WORKERS

    await until(have, f"{clients} lanes to each worker")


@contextlib.contextmanager
def stopped(broker: Broker, kind: str, index: int = 0) -> Iterator[None]:
    """A process that does nothing meanwhile."""
    broker.kill(kind, index, signal.SIGSTOP)
    try:
        yield
    finally:
        broker.kill(kind, index, signal.SIGCONT)


# --- who has them -------------------------------------------------------------------------------


@with_a_client
async def test_a_client_of_this_machine_has_a_lane_to_every_worker_until_it_leaves(
    node: Node, broker: Broker
) -> None:
    await until_lanes(node, 1)
    async with asterism.connect(broker.address) as other:
        await until_lanes(other, 2)
    await until_lanes(node, 1)


@with_a_client
async def test_messages_and_reports_need_no_front_end(node: Node, broker: Broker) -> None:
    await until_lanes(node, 1)
    topics = [new_topic(worker) for worker in range(WORKERS)]
    with stopped(broker, "frontend"):
        for topic in topics:
            inbox = await node.subscribe(topic, name="reader")
            for number in range(20):
                receipt = await node.publish(
                    topic, b"%d" % number, expect="processed", max_receivers=1
                )
                assert await take(inbox, 1) == [b"%d" % number]
                assert (await receipt.resolved(WAIT_S)).statuses == {"reader": "processed"}
            assert (await node.describe(topic)).completed == 20
    await node.query_status()


def test_the_blocking_client_has_lanes_too(broker: Broker, topic: str) -> None:
    with asterism.connect_blocking(broker.address) as node:
        inbox = node.subscribe(topic, name="reader")
        until_so(
            lambda: [worker["lanes"] for worker in node.query_status()["workers"]] == [1] * WORKERS
        )
        with stopped(broker, "frontend"):
            receipts = [
                node.publish(topic, b"%d" % number, expect="processed", max_receivers=1)
                for number in range(20)
            ]
            for number, receipt in enumerate(receipts):
                delivery = inbox.receive(WAIT_S)
                assert delivery.payload == b"%d" % number
                delivery.processed(confirm=True)
                assert receipt.resolved(WAIT_S).verdict == "ok"


def until_so(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_a_broker_without_lanes_has_none_and_does_all_the_same(topic: str) -> None:
    async def play(address: str) -> None:
        async with asyncio.timeout(3 * WAIT_S), asterism.connect(address) as node:
            inbox = await node.subscribe(topic, name="reader")
            receipt = await node.publish_many(
                topic, [b"%d" % number for number in range(100)], max_receivers=1
            )
            assert await lanes_of(node) == [0] * WORKERS
            await inbox.processed(await receive(inbox, 100))
            assert {held.verdict for held in await receipt.all_resolved(WAIT_S) if held} == {"ok"}

    with Broker(workers=WORKERS, config={"lanes": False}) as broker:
        with Hand(broker.address) as hand:
            assert "lanes" not in hand.welcome
        asyncio.run(play(broker.address))
        assert not list((broker.data_dir / "run").glob("lane-*"))


# --- much, and large ----------------------------------------------------------------------------


@with_a_client
async def test_a_message_as_large_as_can_be_goes_both_ways(node: Node, topic: str) -> None:
    await until_lanes(node, 1)
    await node.create_topic(topic, max_payload=64 << 20)
    payload = bytes(range(256)) * (1 << 18)
    payload = payload[: -2 * 1_024]  # what is around it has to fit a part as well
    inbox = await node.subscribe(topic, name="reader")
    await node.publish(topic, payload, expect="processed", max_receivers=1, receipt=False)
    (delivery,) = await receive(inbox, 1)
    assert delivery.payload == payload and delivery.attempt == 1
    await delivery.processed(confirm=True)
    assert await lanes_of(node) == [1] * WORKERS


@with_a_client
async def test_more_than_a_lane_may_hold_comes_to_who_reads_it(node: Node, topic: str) -> None:
    """All of it is sent in one turn; a message that is sent and not read would be lost."""
    await until_lanes(node, 1)
    large = bytes(1 << 20)
    for _ in range(5):
        await node.publish_many(topic, [large] * 16, expect="sent", max_receivers=1)
    inbox = await node.subscribe(topic, name="reader", credit=100)
    taken = await receive(inbox, 80)
    assert [delivery.sequence for delivery in taken] == list(range(1, 81))
    assert {delivery.attempt for delivery in taken} == {1}
    assert {len(delivery.payload) for delivery in taken} == {1 << 20}
    assert await lanes_of(node) == [1] * WORKERS


@with_a_client
async def test_many_messages_come_in_order_to_a_reader_that_takes_few_at_a_time(
    node: Node, topic: str
) -> None:
    numbers = [b"%d" % number for number in range(5_000)]
    inbox = await node.subscribe(topic, name="reader", credit=16)
    sending = asyncio.create_task(
        node.publish_many(topic, numbers, expect="processed", max_receivers=1)
    )
    got: list[bytes] = []
    while len(got) < len(numbers):
        taken = await inbox.batch(7, WAIT_S)
        assert taken, f"only {len(got)} came"
        got += [delivery.payload for delivery in taken]
        await inbox.processed(taken)
    assert got == numbers
    receipt = await sending
    outcomes = await receipt.all_resolved(WAIT_S)
    assert {outcome.verdict for outcome in outcomes if outcome} == {"ok"}


# --- ends ---------------------------------------------------------------------------------------


class Reading:
    """Processes what comes, and remembers in which order it came first."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.payloads: dict[bytes, None] = {}
        self.sequences: set[int] = set()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for delivery in self.inbox:
            self.payloads.setdefault(delivery.payload)
            self.sequences.add(delivery.sequence)
            await delivery.processed()

    async def until(self, *payloads: bytes) -> None:
        """Waits until these have come, and nothing but these."""

        async def have_come() -> bool:
            if self._task.done():
                self._task.result()
            return len(self.payloads) >= len(payloads)

        await until(have_come, f"{len(payloads)} messages")
        assert list(self.payloads) == list(payloads)

    async def end(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@with_a_client
async def test_a_killed_worker_loses_nothing_stores_nothing_twice_and_has_lanes_again(
    node: Node, broker: Broker, topic: str
) -> None:
    await until_lanes(node, 1)
    reading = Reading(await node.subscribe(topic, name="reader", credit=1_024))
    payloads = [b"%d" % number for number in range(600)]
    receipts = []
    for number, payload in enumerate(payloads):
        receipts.append(await node.send(topic, payload, expect="processed", max_receivers=1))
        if number % 50 == 49:
            await asyncio.sleep(0)  # a frame of its own
        if number == 300:
            await receipts[100].accepted(WAIT_S)
            broker.kill("worker", worker_of_topic(topic))
    for receipt in receipts:
        await receipt.accepted(WAIT_S)
        assert (await receipt.resolved(WAIT_S)).verdict == "ok"
    await reading.until(*payloads)
    stored = [receipt.sequence for receipt in receipts]
    assert stored == sorted(set(stored)), "each once, and in order"
    assert reading.sequences == set(stored)
    described = await node.describe(topic)
    assert (described.completed, described.held) == (600, 0)
    await until_lanes(node, 1)
    await reading.end()


@with_a_client
async def test_after_the_front_end_was_killed_subscriptions_and_lanes_are_there_again(
    node: Node, broker: Broker
) -> None:
    plain, own = new_topic(0), new_topic(0)
    await node.create_topic(own, dedicated=True)
    inboxes = [await node.subscribe(topic, name="reader", credit=1) for topic in (plain, own)]
    broker.restart("frontend")
    for inbox in inboxes:
        # What is done once it is sent may be lost in between, and gives its credit back by a part
        # that wants no answer: where that is lost, nothing comes any more.
        deadline, came = time.monotonic() + WAIT_S, 0
        while came < 4:
            assert time.monotonic() < deadline, f"only {came} came"
            await node.publish(inbox.topic, b"x", expect="sent")
            came += len(await some(inbox, 1, 0.5))
    await until_lanes(node, 1)


@with_a_client
async def test_a_topic_that_is_made_dedicated_and_back_in_use_loses_nothing_and_keeps_the_order(
    node: Node, broker: Broker
) -> None:
    """Also not what is on other topics of its store, which is closed and opened for it."""
    await until_lanes(node, 1)
    moved, beside = new_topic(0), new_topic(0)
    readings = {
        topic: Reading(await node.subscribe(topic, name="reader", credit=8))
        for topic in (moved, beside)
    }
    numbers = (b"%d" % number for number in count())
    sent: list[bytes] = []
    ended = asyncio.Event()

    async def publish() -> None:
        while not ended.is_set():
            payload = next(numbers)
            sent.append(payload)
            for topic in readings:
                await node.publish(topic, payload, expect="processed", max_receivers=1)

    publishing = asyncio.create_task(publish())
    for dedicated in (True, False, True):  # the second time, its worker had it already once
        before = len(sent)
        await node.configure(moved, dedicated=dedicated)

        async def is_moved(wanted: bool = dedicated) -> bool:
            workers = (await node.query_status())["workers"]
            return any(moved in worker.get("dedicated", {}) for worker in workers) == wanted

        await until(is_moved, "the topic has moved")

        async def goes_on(before: int = before) -> bool:
            return len(sent) > before + 20

        await until(goes_on, "messages flow")
    ended.set()
    await publishing
    for reading in readings.values():
        await reading.until(*sent)
        await reading.end()
    for topic in readings:
        described = await node.describe(topic)
        assert (described.completed, described.held) == (len(sent), 0)
    await until_lanes(node, 1)


@with_a_client
async def test_what_a_killed_client_had_fails_over_at_once(
    node: Node, broker: Broker, topic: str
) -> None:
    """Nobody is told of it by the front-end, nor by the deadline of the delivery, a minute."""
    async with consumer(broker.address, topic, "crew") as other:
        await until_lanes(node, 2)
        await node.publish(topic, b"job", expect="processed", max_receivers=1, receipt=False)
        assert await other.line() == "job 1"
        inbox = await node.subscribe(topic, group="crew")
        with stopped(broker, "frontend"):
            await other.kill()
            (delivery,) = await receive(inbox, 1)
            assert (delivery.payload, delivery.attempt) == (b"job", 2)
            await delivery.processed(confirm=True)
    await until_lanes(node, 1)


@with_a_client
async def test_a_client_whose_lane_is_cut_goes_on_through_the_front_end(node: Node) -> None:
    await until_lanes(node, 1)
    topic = new_topic(0)
    inbox = await node.subscribe(topic, name="reader", credit=2)
    node._lanes[0].send([b"\xff" * HEAD.size])
    for number in range(20):
        receipt = await node.publish(topic, b"%d" % number, expect="processed", max_receivers=1)
        assert await take(inbox, 1) == [b"%d" % number]
        assert (await receipt.resolved(WAIT_S)).verdict == "ok"
    assert await lanes_of(node) == [0, 1], "that of the other worker is as it was"


@with_a_client
async def test_a_client_that_connects_anew_leaves_no_lanes_behind(node: Node, topic: str) -> None:
    """Nor does it leave what it holds."""
    await until_lanes(node, 1)
    inbox = await node.subscribe(topic, group="crew", credit=1)
    await node.publish(topic, b"job", expect="processed", max_receivers=1, receipt=False)
    (held,) = await receive(inbox, 1)
    node._lose("this is a test")
    assert not node._lanes
    await held.processed(confirm=True)
    described = await node.describe(topic)
    assert (described.held, described.endpoints, described.completed) == (0, 1, 1)
    await until_lanes(node, 1)


# --- a client by hand, from docs/protocol.md ----------------------------------------------------

HEAD = struct.Struct(">BBHIQHI")  # version, verb, worker, node, request, bytes of topic and of body
HELLO, PING, GOODBYE, STATUS, LANE = 1, 2, 3, 8, 11
PUBLISH, SUBSCRIBE, GRANT, DESCRIBE = 16, 18, 22, 31
WELCOME, PONG, CLOSED, RESTARTED, ELSEWHERE = 128, 129, 130, 131, 132
ACCEPTED, REPLY, REFUSE, DELIVER = 144, 145, 146, 147


class Said(NamedTuple):
    """A part of what the broker says."""

    verb: int
    worker: int
    request: int
    topic: str
    body: Any


def packed(verb: int, request: int, topic: str, body: object) -> bytes:
    name = topic.encode()
    value: bytes = msgpack.packb(body)
    return HEAD.pack(1, verb, 0xFFFF, 0, request, len(name), len(value)) + name + value


def unpacked(data: bytes) -> tuple[Said, bytes]:
    """The first part of it, and what is behind."""
    _, verb, worker, _, request, topic_bytes, body_bytes = HEAD.unpack_from(data)
    body = HEAD.size + topic_bytes
    end = body + body_bytes
    assert len(data) >= end
    said = Said(verb, worker, request, data[HEAD.size : body].decode(), data[body:end])
    return said._replace(body=msgpack.unpackb(said.body)), data[end:]


class Hand:
    """A DEALER to the front-end."""

    def __init__(self, address: str) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(address)
        self._said: list[Said] = []
        self._lanes: list[HandLane] = []
        self.send(HELLO, 1, "", {"versions": [1]})
        said = self.hear()
        assert said.verb == WELCOME
        self.welcome: dict[str, Any] = said.body
        for worker in range(self.welcome["workers"]):
            self._until_known(worker)

    def _until_known(self, worker: int) -> None:
        """Asks a worker until the front-end knows it, which may just have begun."""

        def answers() -> bool:
            self.send(STATUS, 1, f"\0w{worker}", None)
            while (said := self.hear()).request != 1:
                pass  # that a worker has restarted is no news
            return said.verb == REPLY

        until_so(answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for lane in self._lanes:
            lane.close()
        self._socket.close()

    def send(self, verb: int, request: int, topic: str, body: object) -> None:
        self._socket.send(packed(verb, request, topic, body))

    def hear(self) -> Said:
        """The next part that comes through the front-end, but for a look whether we live."""
        while not self._said:
            assert self._socket.poll(int(WAIT_S * 1_000)), "the front-end says nothing"
            (data,) = self._socket.recv_multipart()
            while data:
                said, data = unpacked(data)
                if (said.verb, said.request) != (PONG, 0):
                    self._said.append(said)
        return self._said.pop(0)

    def worker_of(self, topic: str) -> int:
        digest = hashlib.blake2b(topic.encode(), digest_size=8).digest()
        store = int.from_bytes(digest, "big") % int(self.welcome["stores"])
        return store % int(self.welcome["workers"])

    def lane(self, worker: int, request: int) -> "HandLane":
        """A lane that is claimed, and not answered yet."""
        token = os.urandom(16)
        lane = HandLane(Path(self.welcome["lanes"]) / f"lane-{worker}.sock", token)
        self._lanes.append(lane)
        self.send(LANE, request, f"\0w{worker}", [token])
        return lane


class HandLane:
    """A socket to a worker."""

    def __init__(self, path: Path, token: bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(WAIT_S)
        self._socket.connect(str(path))
        self.write = self._socket.sendall
        self.close = self._socket.close
        self.write(token)

    def send(self, verb: int, request: int, topic: str, body: object) -> None:
        self.write(packed(verb, request, topic, body))

    def hear(self) -> Said:
        """The next part that comes on the lane."""
        head = self._exactly(HEAD.size)
        topic_bytes, body_bytes = HEAD.unpack(head)[5:]
        said, rest = unpacked(head + self._exactly(topic_bytes + body_bytes))
        assert not rest
        return said

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more: bytes = self._socket.recv(size - len(data))
            assert more, "the worker has closed the lane"
            data += more
        return data

    @property
    def is_closed(self) -> bool:
        return not self._socket.recv(1)


@pytest.fixture
def hand(broker: Broker) -> Iterator[Hand]:
    with Hand(broker.address) as hand:
        yield hand


def test_a_client_that_is_written_by_hand_has_a_lane(hand: Hand, topic: str) -> None:
    worker = hand.worker_of(topic)
    hand.send(SUBSCRIBE, 2, topic, [1, ["**"], "reader", None, None, 100])
    assert hand.hear()[:4] == (REPLY, worker, 2, topic)
    lane = hand.lane(worker, 3)
    lane.send(PUBLISH, 4, topic, [[message(b"by lane")]])
    assert hand.hear() == (REPLY, worker, 3, f"\0w{worker}", {})
    delivered, accepted = lane.hear(), lane.hear()
    assert delivered[:4] == (DELIVER, worker, 0, topic)
    assert [entry[4] for entry in delivered.body[2]] == [b"by lane"]
    assert accepted == (ACCEPTED, worker, 4, topic, [1])
    lane.send(STATUS, 5, f"\0w{worker}", None)
    assert lane.hear().body["lanes"] == 1
    hand.send(PING, 6, "", None)
    assert hand.hear()[:3] == (PONG, 0xFFFF, 6), "nothing else came through the front-end"


def test_a_topic_that_is_not_the_workers_is_elsewhere(hand: Hand) -> None:
    mine, others = new_topic(0), new_topic(1)
    lane = hand.lane(0, 2)
    assert hand.hear().verb == REPLY
    lane.send(PUBLISH, 3, others, [[message()]])
    lane.send(PUBLISH, 0, others, [[message()]])
    lane.send(PUBLISH, 4, mine, [[message()]])
    assert lane.hear() == (ELSEWHERE, 0, 0, others, None)
    refused = lane.hear()
    assert refused[:4] == (REFUSE, 0, 3, others) and refused.body[0] == "busy"
    assert lane.hear().verb == ELSEWHERE, "also where no answer is wanted"
    assert lane.hear().verb == ACCEPTED


@pytest.mark.parametrize(
    ("body", "code"),
    [([bytes(16)], "wrong_state"), ([b"short"], "bad_request"), (None, "bad_request")],
)
def test_a_claim_of_what_is_not_there_is_refused(hand: Hand, body: object, code: str) -> None:
    hand.send(LANE, 2, "\0w0", body)
    said = hand.hear()
    assert (said.verb, said.request, said.body[0]) == (REFUSE, 2, code)


def test_a_session_that_ends_ends_its_lanes(hand: Hand) -> None:
    first, second = hand.lane(0, 2), hand.lane(1, 3)
    assert [hand.hear().verb, hand.hear().verb] == [REPLY, REPLY]
    hand.send(GOODBYE, 4, "", None)
    assert hand.hear().verb == CLOSED
    assert first.is_closed and second.is_closed


def test_a_front_end_that_comes_back_ends_the_lanes_of_the_one_before(
    hand: Hand, broker: Broker
) -> None:
    lane = hand.lane(0, 2)
    assert hand.hear().verb == REPLY
    broker.restart("frontend")
    assert lane.is_closed


@with_a_client
async def test_who_uses_a_topic_with_a_process_of_its_own_is_told_which_topic_restarted(
    node: Node, broker: Broker
) -> None:
    own = new_topic(0)
    await node.create_topic(own, dedicated=True)
    await node.publish(own, b"", expect="processed", max_receivers=1)
    (process,) = [
        worker["dedicated"][own]["pid"]
        for worker in (await node.query_status())["workers"]
        if own in worker.get("dedicated", {})
    ]
    with Hand(broker.address) as hand:
        hand.send(DESCRIBE, 2, own, [])
        while (said := hand.hear()).verb == REFUSE:
            hand.send(DESCRIBE, 2, own, [])
        assert said.verb == REPLY
        os.kill(process, signal.SIGKILL)
        told = hand.hear()
        assert (told.verb, told.topic, told.worker) == (RESTARTED, own, said.worker)


def test_garbage_costs_a_client_its_lane_and_nothing_else(hand: Hand, topic: str) -> None:
    worker = hand.worker_of(topic)
    lane = hand.lane(worker, 2)
    assert hand.hear().verb == REPLY
    lane.send(SUBSCRIBE, 3, topic, [1, ["**"], "reader", None, None, 100])
    assert lane.hear().verb == REPLY
    lane.write(b"what?" * 10)
    assert lane.is_closed
    hand.send(DESCRIBE, 4, topic, [])
    assert hand.hear().body["endpoints"] == 0, "with the lane goes what it had there"


def test_a_lane_that_its_client_closed_ends_before_what_was_sent_behind_it(
    hand: Hand, broker: Broker
) -> None:
    """Or the subscription would be taken off again, and nobody would know."""
    for request in (10, 20):
        topic = new_topic(0)
        subscription = [1, ["**"], "reader", None, None, 100]
        lane = hand.lane(0, request)
        assert hand.hear().verb == REPLY
        lane.send(SUBSCRIBE, request + 1, topic, subscription)
        assert lane.hear().verb == REPLY
        with stopped(broker, "worker", 0):
            # So much that the worker has not come to its end when it takes what is behind it.
            lane.write(packed(GRANT, 0, topic, [1, 1]) * 3_000)
            lane.close()
            hand.send(SUBSCRIBE, request + 2, topic, subscription)
            hand.send(STATUS, request + 3, "\0f", None)
            assert hand.hear().request == request + 3, "all before it is with the worker now"
        assert hand.hear()[:4] == (REPLY, 0, request + 2, topic)
        hand.send(PUBLISH, request + 4, topic, [[message(b"still there")]])
        delivered, accepted = hand.hear(), hand.hear()
        assert (delivered.verb, accepted.verb) == (DELIVER, ACCEPTED)
