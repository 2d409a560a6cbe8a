"""Consumers with a handler: what they report, how many run at a time, and how they stop."""

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import asterism
from asterism import BlockingDelivery, Delivery, Node
from asterism.sdk.consuming import SubscribeOptions
from asterism.testing import Broker
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.process
WAIT_S = 30.0
WORK: dict[str, Any] = {"expect": "processed", "max_receivers": 1}


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    return f"consume-{abs(hash(request.node.nodeid))}"


def run(broker: Broker, scenario: Callable[[Node], Awaitable[None]]) -> None:
    async def begin() -> None:
        async with asterism.connect(broker.address, name="consumer") as node:
            await asyncio.wait_for(scenario(node), WAIT_S)

    asyncio.run(begin())


# --- asyncio --------------------------------------------------------------------------------------


def test_a_handler_is_called_for_each_delivery_and_its_return_is_processed(
    broker: Broker, topic: str
) -> None:
    async def scenario(node: Node) -> None:
        seen: set[bytes] = set()

        async def handle(delivery: Delivery) -> None:
            seen.add(delivery.payload)

        stop = asyncio.Event()
        consuming = asyncio.create_task(node.consume(topic, handle, "a", name="r", stop=stop))
        payloads = [b"%d" % number for number in range(50)]
        await until(lambda: bool(node._inboxes))
        receipts = await node.publish_many(topic, payloads, subject="a", **WORK)
        outcomes = await receipts.all_resolved(WAIT_S)
        assert {outcome.verdict for outcome in outcomes if outcome} == {"ok"}
        stop.set()
        await consuming
        assert seen == set(payloads)
        assert not node._inboxes, "it has left the topic"

    run(broker, scenario)


async def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def test_no_more_handlers_run_at_a_time_than_are_wanted(broker: Broker, topic: str) -> None:
    async def scenario(node: Node) -> None:
        running, most, done = 0, 0, 0
        stop = asyncio.Event()

        async def handle(delivery: Delivery) -> None:
            nonlocal running, most, done
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.005)
            running -= 1
            done += 1
            if done == 30:
                stop.set()

        await node.publish_many(topic, [b""] * 30, **WORK)
        await node.consume(topic, handle, name="r", concurrency=3, stop=stop)
        assert (most, done) == (3, 30)

    run(broker, scenario)


@pytest.mark.parametrize("on_error", ["fail", "give_back"])
def test_what_a_handler_raises_is_logged_and_reported_as_it_is_told(
    broker: Broker, topic: str, on_error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(node: Node) -> None:
        attempts: list[int] = []

        async def handle(delivery: Delivery) -> None:
            attempts.append(delivery.attempt)
            if delivery.attempt == 1:
                raise KeyError("no stock")

        stop = asyncio.Event()
        receipt = await node.publish(topic, b"", **WORK)
        task = asyncio.create_task(
            node.consume(topic, handle, name="r", on_error=on_error, stop=stop)
        )
        outcome = await receipt.resolved(WAIT_S)
        parked = await node.list_parked(topic)
        if on_error == "fail":
            assert (outcome.verdict, attempts) == ("failed", [1])
            assert [each.reason for each in parked] == ["KeyError: 'no stock'"]
        else:
            assert (outcome.verdict, attempts, parked) == ("ok", [1, 2], [])
        stop.set()
        await task

    with caplog.at_level(logging.ERROR, "asterism"):
        run(broker, scenario)
    assert_told(caplog)


def test_what_a_handler_reports_itself_stands(broker: Broker, topic: str) -> None:
    async def scenario(node: Node) -> None:
        stop = asyncio.Event()

        async def handle(delivery: Delivery) -> None:
            await delivery.nack("as I say")
            stop.set()

        receipt = await node.publish(topic, b"", **WORK)
        await node.consume(topic, handle, name="r", stop=stop)
        assert (await receipt.resolved(WAIT_S)).verdict == "failed"

    run(broker, scenario)


@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_a_stop_lets_handlers_end_and_gives_the_rest_back(
    broker: Broker, topic: str, how: str
) -> None:
    async def scenario(node: Node) -> None:
        begun, ended = [], []
        stop, go_on = asyncio.Event(), asyncio.Event()

        async def handle(delivery: Delivery) -> None:
            begun.append(delivery.sequence)
            await go_on.wait()
            ended.append(delivery.sequence)

        await node.publish_many(topic, [b""] * 20, **WORK)
        task = asyncio.create_task(
            node.consume(topic, handle, name="r", concurrency=4, stop=stop, credit=20)
        )
        await until(lambda: len(begun) == 4)
        if how == "stop":
            stop.set()
        else:
            task.cancel()
        await asyncio.sleep(0.02)
        assert not task.done() and ended == [], "it waits for those that run"
        go_on.set()
        if how == "stop":
            await task
        else:
            with pytest.raises(asyncio.CancelledError):
                await task
        assert sorted(ended) == sorted(begun) and len(begun) == 4, "no other has begun"
        # The rest is nobody's by now: another receiver has it at once, and none of the four.
        inbox = await node.subscribe(topic, name="other")
        others = [await inbox.receive(WAIT_S) for _ in range(16)]
        assert {each.sequence for each in others}.isdisjoint(ended)
        assert (await node.describe(topic)).completed == 4

    run(broker, scenario)


def test_who_cancels_again_ends_the_handlers_and_their_deliveries_go_back(
    broker: Broker, topic: str
) -> None:
    async def scenario(node: Node) -> None:
        begun = asyncio.Event()

        async def handle(delivery: Delivery) -> None:
            begun.set()
            await asyncio.Event().wait()

        await node.publish(topic, b"", **WORK)
        task = asyncio.create_task(node.consume(topic, handle, name="r"))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        inbox = await node.subscribe(topic, name="other")
        assert (await inbox.receive(WAIT_S)).attempt == 2

    run(broker, scenario)


def test_a_consumer_ends_with_its_topic_and_says_so(broker: Broker, topic: str) -> None:
    async def scenario(node: Node) -> None:
        async def handle(delivery: Delivery) -> None: ...

        await node.create_topic(topic)
        task = asyncio.create_task(node.consume(topic, handle, name="r"))
        await until(lambda: any(inbox.receiver for inbox in node._inboxes.values()))
        await node.delete_topic(topic)
        with pytest.raises(asterism.TopicGone):
            await task

    run(broker, scenario)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [({"concurrency": 0}, ValueError), ({"on_error": "ignore"}, ValueError), ({}, TypeError)],
)
def test_a_consumer_refuses_what_it_cannot_do(
    broker: Broker, topic: str, wrong: dict[str, Any], kind: type[Exception]
) -> None:
    handler: Any = print if wrong else "no function"

    async def scenario(node: Node) -> None:
        with pytest.raises(kind):
            await node.consume(topic, handler, **wrong)

    run(broker, scenario)
    with asterism.connect_blocking(broker.address) as node, pytest.raises(kind):
        node.consume(topic, handler, **wrong)


def test_every_option_of_a_consumer_is_one_of_subscribe() -> None:
    for node in (asterism.Node, asterism.BlockingNode):
        assert SubscribeOptions.__annotations__.keys() <= set(
            inspect.signature(node.subscribe).parameters
        )


# --- blocking -------------------------------------------------------------------------------------


def test_a_blocking_consumer_handles_in_threads_and_stops_by_its_event(
    broker: Broker, topic: str
) -> None:
    stop, seen, threads = threading.Event(), set(), set()
    both = threading.Barrier(2)

    def handle(delivery: BlockingDelivery) -> None:
        seen.add(delivery.payload)
        threads.add(threading.get_ident())
        if len(seen) <= 2:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(WAIT_S)  # there are two at a time
        if len(seen) == 40:
            stop.set()

    with asterism.connect_blocking(broker.address) as node:
        receipts = node.publish_many(topic, [b"%d" % number for number in range(40)], **WORK)
        node.consume(topic, handle, name="r", concurrency=2, stop=stop)
        assert len(seen) == 40 and len(threads) == 2 and not both.broken
        outcomes = receipts.all_resolved(WAIT_S)
        assert {outcome.verdict for outcome in outcomes if outcome} == {"ok"}


@pytest.mark.parametrize("on_error", ["fail", "give_back"])
def test_what_a_blocking_handler_raises_is_logged_and_reported_as_it_is_told(
    broker: Broker, topic: str, on_error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stop, attempts = threading.Event(), []

    def handle(delivery: BlockingDelivery) -> None:
        attempts.append(delivery.attempt)
        if on_error == "fail" or delivery.attempt == 2:
            stop.set()
        if delivery.attempt == 1:
            raise KeyError("no stock")

    with asterism.connect_blocking(broker.address) as node:
        receipt = node.publish(topic, b"", **WORK)
        node.consume(topic, handle, name="r", on_error=on_error, stop=stop)
        verdict = receipt.resolved(WAIT_S).verdict
    expected = ("failed", [1]) if on_error == "fail" else ("ok", [1, 2])
    assert (verdict, attempts) == expected
    assert_told(caplog)


def test_a_blocking_stop_lets_handlers_end_and_gives_the_rest_back(
    broker: Broker, topic: str
) -> None:
    stop, go_on, begun, ended = threading.Event(), threading.Event(), [], []

    def handle(delivery: BlockingDelivery) -> None:
        begun.append(delivery.sequence)
        if len(begun) == 3:
            stop.set()
            threading.Timer(0.3, go_on.set).start()
        go_on.wait(WAIT_S)
        ended.append(delivery.sequence)

    with asterism.connect_blocking(broker.address) as node:
        node.publish_many(topic, [b""] * 20, **WORK)
        node.consume(topic, handle, name="r", concurrency=3, stop=stop)
        assert sorted(ended) == sorted(begun) and len(begun) == 3
        inbox = node.subscribe(topic, name="other")
        others = {inbox.receive(WAIT_S).sequence for _ in range(17)}
        assert others.isdisjoint(ended)


def test_what_a_handler_raises_to_end_the_program_is_raised_by_consume(
    broker: Broker, topic: str
) -> None:
    def handle(delivery: BlockingDelivery) -> None:
        raise SystemExit(3)

    with asterism.connect_blocking(broker.address) as node:
        node.publish(topic, b"", **WORK)
        with pytest.raises(SystemExit):
            node.consume(topic, handle, name="r")
        assert node.subscribe(topic, name="other").receive(WAIT_S).payload == b""


PROGRAM = """
import sys, time
import asterism

def handle(delivery):
    print("begun", flush=True)
    time.sleep(0.5)
    print("ended", flush=True)

with asterism.connect_blocking(sys.argv[1]) as node:
    try:
        node.consume(sys.argv[2], handle, name="r", concurrency=1)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_ctrl_c_lets_the_handler_that_runs_come_to_its_end(broker: Broker, topic: str) -> None:
    with asterism.connect_blocking(broker.address) as node:
        receipts = node.publish_many(topic, [b"", b""], **WORK)
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, broker.address, topic],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "begun\n"
            child.send_signal(signal.SIGINT)
            assert child.stdout.read() == "ended\ninterrupted\n"
            assert child.wait(WAIT_S) == 0
        finally:
            child.kill()
            child.stdout.close()
        assert receipts[0].resolved(WAIT_S).verdict == "ok"
        assert node.subscribe(topic, name="other").receive(WAIT_S).sequence == receipts[1].sequence


def assert_told(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is in the log, with the handler's exception."""
    told = [one for one in caplog.records if "a handler failed at message" in one.getMessage()]
    assert told and all(one.exc_info and isinstance(one.exc_info[1], KeyError) for one in told)
