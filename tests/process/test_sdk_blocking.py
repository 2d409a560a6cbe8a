"""The blocking client against a real broker: the same verbs, from several threads."""

import asyncio
import gc
import itertools
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import asterism
from asterism.sdk.client import BlockingNode
from asterism.testing import Broker
from tests.support.batches import some_blocking

pytestmark = pytest.mark.process
WAIT_S = 20
_names = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def node(broker: Broker) -> Iterator[BlockingNode]:
    with asterism.connect_blocking(broker.address, name="test") as node:
        yield node


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_names)}"


def test_the_surface_works_without_await(node: BlockingNode, topic: str) -> None:
    node.create_topic(topic, overflow=asterism.DropOld(10_000))
    inbox = node.subscribe(topic, "order/*/paid", name="billing", credit=256)
    receipt = node.publish(
        topic, b"...", subject="order/17/paid", mode="durable", expect="processed", max_receivers=1
    )
    for delivery in inbox:
        with delivery:
            assert (delivery.subjects, delivery.payload) == (("order/17/paid",), b"...")
            assert delivery.attempt == 1
        break
    outcome = receipt.resolved(timeout=5)
    assert (outcome.verdict, outcome.statuses) == ("ok", {"billing": "processed"})


def test_many_are_published_received_and_finished_at_once(node: BlockingNode, topic: str) -> None:
    inbox = node.subscribe(topic, name="me", credit=500)
    payloads = [b"%d" % number for number in range(3_000)]
    receipt = node.publish_many(topic, payloads, expect="processed", max_receivers=1)
    taken: list[bytes] = []
    while len(taken) < 3_000:
        batch = inbox.batch(500, WAIT_S)
        assert batch
        inbox.processed(batch)
        taken += [delivery.payload for delivery in batch]
    assert taken == payloads
    assert {o.verdict for o in receipt.all_resolved(WAIT_S) if o} == {"ok"}
    assert [each.sequence for each in receipt] == receipt.sequences


def test_an_iteration_that_is_left_loses_nothing(node: BlockingNode, topic: str) -> None:
    inbox = node.subscribe(topic, name="me")
    node.publish_many(topic, [b"%d" % number for number in range(10)], expect="processed")
    seen = []
    for _ in range(5):
        for delivery in inbox:
            with delivery:
                seen.append(delivery.payload)
            break
    seen += [inbox.receive(WAIT_S).payload for _ in range(5)]
    assert seen == [b"%d" % number for number in range(10)]


def test_an_exception_fails_a_delivery(node: BlockingNode, topic: str) -> None:
    inbox = node.subscribe(topic, name="me")
    receipt = node.publish(topic, b"x", expect="processed", max_receivers=1)
    with pytest.raises(ValueError, match="broken"), inbox.receive(WAIT_S):
        raise ValueError("broken")
    assert receipt.resolved(WAIT_S).verdict == "failed"
    (parked,) = node.list_parked(topic)
    assert parked.reason == "ValueError: broken"
    node.renew(topic, receipt.sequence)
    delivery = inbox.receive(WAIT_S)
    delivery.extend(10)
    delivery.processed(confirm=True)
    assert delivery.is_finished
    assert list(node.list_parked(topic)) == []


def test_several_threads_may_use_one_client(node: BlockingNode, topic: str) -> None:
    inbox = node.subscribe(topic, name="me", credit=100)
    seen: list[bytes] = []
    lock = threading.Lock()

    def consume() -> None:
        while True:
            try:
                delivery = inbox.receive(1)
            except TimeoutError:
                return
            with delivery, lock:
                seen.append(delivery.payload)

    def publish(name: int) -> list[int]:
        wishes = {"expect": "processed", "receipt": False}
        return [
            node.publish(topic, b"%d-%d" % (name, n), max_receivers=1, **wishes).sequence  # type: ignore[arg-type]
            for n in range(50)
        ]

    with ThreadPoolExecutor(8) as pool:
        consumers = [pool.submit(consume) for _ in range(4)]
        sequences = [each for part in pool.map(publish, range(4)) for each in part]
        for consumer in consumers:
            consumer.result(WAIT_S)
    assert len(set(sequences)) == 200
    assert sorted(seen) == sorted(b"%d-%d" % (name, n) for name in range(4) for n in range(50))


def test_a_request_is_answered_from_another_thread(node: BlockingNode, topic: str) -> None:
    inbox = node.subscribe(topic, "upper")

    def serve() -> None:
        delivery = inbox.receive(WAIT_S)
        delivery.reply(delivery.payload.upper())

    server = threading.Thread(target=serve)
    server.start()
    assert node.request(topic, b"abc", subject="upper", timeout=WAIT_S).payload == b"ABC"
    server.join()


def test_pulling_and_the_work_queue(node: BlockingNode, topic: str) -> None:
    node.create_receiver(topic, "me")
    node.publish(topic, b"1", expect="processed")
    (delivery,) = node.pull(topic, "me", 5, wait=WAIT_S)
    delivery.processed(confirm=True)
    assert node.pull(topic, "me", 5, wait=0.05) == []
    sequence = node.draft(topic + "-work")
    node.set(topic + "-work", sequence, b"z")
    assert node.order(topic + "-work") == sequence
    assert node.fetch(topic + "-work", sequence).payload == b"z"
    node.complete(topic + "-work", sequence)
    assert node.stats(topic + "-work").completed == 1
    assert {topic, topic + "-work"} <= set(node.list_topics())


def test_a_pull_of_another_thread_can_be_ended(node: BlockingNode, topic: str) -> None:
    node.create_receiver(topic, "me")
    inbox = node.subscribe(topic, group="me", credit=0)
    with ThreadPoolExecutor() as pool:
        pull = pool.submit(inbox.pull, 1, WAIT_S)
        while not pull.done():
            inbox.end_pull()
    assert pull.result() == []


def test_a_killed_process_costs_nothing(broker: Broker, node: BlockingNode, topic: str) -> None:
    receipts = []
    for number in range(60):
        receipts.append(node.send_many(topic, [b"%d" % (number * 5 + n) for n in range(5)]))
        if number in (20, 40):
            broker.kill("frontend" if number == 20 else "worker")
    for receipt in receipts:
        receipt.accepted(WAIT_S)
    inbox = node.subscribe(topic, name="me")
    seen: list[bytes] = []
    while len(seen) < 300:
        seen += [delivery.payload for delivery in inbox.batch(300, WAIT_S)]
    assert seen == [b"%d" % number for number in range(300)]
    assert some_blocking(inbox, 1, 0.2) == []
    broker.wait_ready()


def test_a_client_that_is_closed_says_so(broker: Broker, topic: str) -> None:
    node = asterism.connect_blocking(broker.address)
    inbox = node.subscribe(topic)
    threads = threading.active_count()
    receipts = [node.send(topic, b"x") for _ in range(100)]
    node.close()
    node.close()
    assert all(isinstance(receipt.sequence, int) for receipt in receipts), "a close waits for them"
    assert threading.active_count() == threads - 1
    with pytest.raises(asterism.ClosedError, match="closed"):
        node.publish(topic, b"x")
    with pytest.raises(asterism.ClosedError, match="closed"):
        inbox.batch(1)


def test_without_a_broker_connecting_fails_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="no broker answered"):
        asterism.connect_blocking("tcp://127.0.0.1:1", timeout=0.2)
    assert time.monotonic() - began < WAIT_S


def test_an_interrupt_while_it_connects_leaves_nothing_open() -> None:
    """Nobody listens there, so that it would try for long."""
    code = (
        "import os, signal, threading, asterism\n"
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "asterism.connect_blocking('tcp://127.0.0.1:9', timeout=60).__enter__()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.rstrip().endswith("KeyboardInterrupt")
    assert "Task was destroyed" not in ended.stderr


# --- who drives the loop --------------------------------------------------------------------------


def test_a_long_wait_in_one_thread_holds_up_no_other(node: BlockingNode, topic: str) -> None:
    inbox = node.subscribe(topic, name="me")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(inbox.receive, WAIT_S)
        time.sleep(0.05)  # by now it drives
        began = time.monotonic()
        for number in range(20):
            node.publish(f"{topic}-other", b"%d" % number)
        assert time.monotonic() - began < WAIT_S / 2
        assert not waiting.done()
        node.publish(topic, b"x", expect="processed")
        assert waiting.result(WAIT_S).payload == b"x"


def test_who_waits_is_served_when_the_one_who_drove_is_done(node: BlockingNode, topic: str) -> None:
    """The first to wait drives, and is done first: the others wait on, and each in turn drives."""
    inboxes = [node.subscribe(f"{topic}-{number}", name="me") for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        waiting = []
        for inbox in inboxes:
            waiting.append(pool.submit(inbox.receive, WAIT_S))
            time.sleep(0.02)
        for number, delivery in enumerate(waiting):
            with asterism.connect_blocking(node.address) as other:
                other.publish(f"{topic}-{number}", b"%d" % number)
            assert delivery.result(WAIT_S).payload == b"%d" % number


def test_two_threads_publish_at_once(node: BlockingNode, topic: str) -> None:
    def publish(_: int) -> list[int]:
        return [node.publish(topic, b"x").sequence for _ in range(300)]

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(publish, range(2))
    assert sorted(one + other) == list(range(1, 601))


def test_while_nobody_calls_signs_of_life_go_on_and_deliveries_are_taken(
    caplog: pytest.LogCaptureFixture, topic: str
) -> None:
    heartbeat_s = 0.2
    with (
        Broker(config={"heartbeat": heartbeat_s}) as broker,
        asterism.connect_blocking(broker.address) as node,
        caplog.at_level(logging.WARNING, logger="asterism"),
    ):
        inbox = node.subscribe(topic, name="me")
        receipt = node.send(topic, b"x", expect="processed")
        time.sleep(10 * heartbeat_s)
        assert len(inbox._inbox._subscription.buffer) == 1
        assert receipt.sequence == 1
        assert not caplog.records, "the connection was not lost"
        inbox.receive(WAIT_S).processed(confirm=True)


def test_an_interrupt_cancels_a_verb_and_no_more(broker: Broker, topic: str) -> None:
    code = (
        "import os, signal, sys, threading, time, asterism\n"
        "node = asterism.connect_blocking(sys.argv[1])\n"
        "inbox = node.subscribe(sys.argv[2], name='me')\n"
        "for pause in (0.2, 0.21, 0.2):\n"
        "    threading.Timer(pause, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "    began = time.monotonic()\n"
        "    try:\n"
        "        inbox.receive(60)\n"
        "    except KeyboardInterrupt:\n"
        "        assert time.monotonic() - began < 10\n"
        "        print('interrupted')\n"
        "node.publish(sys.argv[2], b'x')\n"
        "assert inbox.receive(10).payload == b'x'\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "node.close()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, broker.address, topic],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["interrupted"] * 3), ended.stderr
    assert not ended.stderr


def test_a_handler_of_the_application_may_raise_from_a_wait(
    node: BlockingNode, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    class AlarmError(Exception):
        pass

    def ring(number: int, frame: object) -> None:
        with pytest.raises(RuntimeError, match="signal handler"):
            node.publish(topic, b"from within a verb")
        raise AlarmError

    before = signal.signal(signal.SIGALRM, ring)
    try:
        inbox = node.subscribe(topic, name="me")
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(AlarmError):
            inbox.receive(WAIT_S)
        node.publish(topic, b"x")
        assert inbox.receive(WAIT_S).payload == b"x"
    finally:
        signal.signal(signal.SIGALRM, before)
    gc.collect()
    assert not caplog.records, "no task has failed unseen"


# A handler may also raise between the making of a verb and its start, or where nobody can catch it.
@pytest.mark.filterwarnings("ignore:coroutine 'Node.publish' was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_handlers_that_raise_at_any_moment_leave_the_client_whole(
    node: BlockingNode, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    class AlarmError(BaseException):
        """Not an exception that anybody on the way may take for one of his own."""

    def ring(number: int, frame: object) -> None:
        raise AlarmError

    chance, accepted, rung = random.Random(7), 0, 0
    inbox = node.subscribe(topic, name="me", credit=1_000)
    # The alarm rings from before the verb has begun to behind its end. How long a verb takes is up
    # to the machine: the range widens with each alarm, and narrows with each verb without one.
    longest_s = 0.001
    before = signal.signal(signal.SIGALRM, ring)
    handlers = list(map(signal.getsignal, signal.valid_signals()))
    try:
        for number in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.000_02, longest_s))
                node.publish(topic, b"%d" % number, max_receivers=1)
                accepted += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
                longest_s *= 0.95
            except AlarmError:
                rung += 1
                longest_s *= 1.05
            assert list(map(signal.getsignal, signal.valid_signals())) == handlers
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rung > 50 and accepted > 0
    node.publish(topic, b"the last", max_receivers=1)
    payloads = [inbox.receive(WAIT_S).payload]
    while payloads[-1] != b"the last":
        payloads.append(inbox.receive(WAIT_S).payload)
    assert len(payloads) == len(set(payloads)) > accepted
    gc.collect()
    assert not caplog.records, "no task has failed unseen, and no connection was lost"


def test_a_close_ends_the_wait_of_another_thread(broker: Broker, topic: str) -> None:
    node = asterism.connect_blocking(broker.address)
    inbox = node.subscribe(topic)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(inbox.receive, WAIT_S)
        time.sleep(0.05)
        node.close()
        with pytest.raises(asterism.ClosedError):
            waiting.result(WAIT_S)


def test_verbs_work_within_a_running_loop_too(node: BlockingNode, topic: str) -> None:
    """As in a notebook: that thread cannot drive, so that the keeper does."""

    async def cell() -> int:
        return sum(node.publish(topic, b"x").sequence for _ in range(5))

    assert asyncio.run(cell()) == 15
    assert node.publish(topic, b"x").sequence == 6


def test_a_forked_process_leaves_the_client_alone(node: BlockingNode, topic: str) -> None:
    node.publish(topic, b"x")
    child = os.fork()
    if child == 0:
        try:
            node.close()
            node.publish(topic, b"y")
        except asterism.ClosedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert node.publish(topic, b"z").sequence == 2


def test_a_process_is_asked_by_its_name(node: BlockingNode) -> None:
    workers = [f"worker-{number}" for number in range(node.workers)]
    assert workers == ["worker-0", "worker-1"]
    for name in ("frontend", "interests", *workers):
        assert node.status_of(name).name == name
    for name in ("worker-", "worker-x", "door", ""):
        with pytest.raises(ValueError, match="there is no process"):
            node.status_of(name)
    with pytest.raises(asterism.BadRequest):  # which the broker alone can know
        node.status_of("worker-2")
