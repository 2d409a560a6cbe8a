"""Processes killed between any two steps of a message's life: what was answered still holds."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import httpx
import pytest

from asterism.gateways.http.server import GRACE_S
from asterism.testing import Broker
from tests.conformance.http.conftest import PASSWORD, Queue

pytestmark = [pytest.mark.process, pytest.mark.fault]

AGAIN_S = 20.0  # until a door must answer again after a kill
LOOK_S = 0.01
WAITING_S = 0.3  # a request that is not answered within it waits for something
PAYLOAD = bytes(range(100))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker of its own: the others' must not be killed."""
    with Broker(doors=("http",), env={"MQ_ADMIN_PASSWORD": PASSWORD}) as running:
        yield running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + AGAIN_S
    while not reached():
        assert time.monotonic() < deadline, f"{what}: not within {AGAIN_S:g} s"
        time.sleep(LOOK_S)


def until_answers(queue: Queue) -> None:
    """Waits until the door answers, and the broker behind it."""

    def answers() -> bool:
        try:
            return queue.http.get(f"{queue.base}/stats", timeout=AGAIN_S).status_code == 200
        except httpx.TransportError:
            return False

    until(answers, "the door answers")


def restart(broker: Broker, queue: Queue, kind: str, number: int = signal.SIGKILL) -> None:
    broker.restart(kind, number=number)
    until_answers(queue)


def must_wait(future: "Future[httpx.Response]") -> None:
    with contextlib.suppress(TimeoutError):
        answer = future.result(WAITING_S)
        pytest.fail(f"answered with {answer.status_code}: {answer.text}")


# --- every step of the cycle --------------------------------------------------------------------


class Step(NamedTuple):
    """What is asked, and where the message is once that is answered."""

    name: str
    ask: Callable[[Queue, str], int]
    leaves: dict[str, int]


def _order(queue: Queue, message: str) -> int:
    assert queue.order() == message
    return 200


def _get(queue: Queue, message: str) -> int:
    answer = queue.get(message)
    assert answer.content == PAYLOAD
    assert answer.headers["x-mq-priority"] == "5"
    return answer.status_code


def _patch(what: str) -> Callable[[Queue, str], int]:
    return lambda queue, message: queue.patch(message, what)


CYCLE = (
    Step("set", lambda queue, message: queue.set(message, PAYLOAD), {"waiting": 1}),
    Step("order", _order, {"ordered": 1}),
    Step("get", _get, {"active": 1}),
    Step("fail", _patch("fail"), {"failed": 1}),
    Step("renew", _patch("renew"), {"waiting": 1}),
    Step("order again", _order, {"ordered": 1}),
    Step("get again", _get, {"active": 1}),
    Step("complete", _patch("complete"), {"completed": 1}),
)


def _walk(queue: Queue, before: Callable[[str], None], after: Callable[[str], None]) -> None:
    """One message through the whole cycle; its state is checked once each step is done."""
    before("draft")
    message = queue.draft(5)
    after("draft")
    assert queue.stats() == {"drafting": 1}
    for step in CYCLE:
        before(step.name)
        assert step.ask(queue, message) in (200, 204)
        after(step.name)
        assert queue.stats() == step.leaves, step.name
    assert queue.patch(message, "complete") == 404
    assert queue.stats() == {"completed": 1}


@pytest.mark.parametrize("step", ["draft", *(step.name for step in CYCLE)])
@pytest.mark.parametrize("kind", ["http", "worker"])
def test_a_kill_after_a_step_changes_nothing(
    broker: Broker, queue: Queue, kind: str, step: str
) -> None:
    def kill(done: str) -> None:
        if done == step:
            restart(broker, queue, kind)

    _walk(queue, before=lambda name: None, after=kill)


def test_a_step_asked_while_the_workers_are_away_is_answered_when_they_are_back(
    broker: Broker, queue: Queue
) -> None:
    assert queue.stats() == {}  # from then on the door knows whose queue it is

    def kill(coming: str) -> None:
        broker.wait_ready()
        assert broker.kill("worker")

    _walk(queue, before=kill, after=lambda name: None)
    broker.wait_ready()


@pytest.mark.parametrize("kind", ["http", "worker"])
def test_settings_and_failed_messages_outlive_a_kill(
    broker: Broker, queue: Queue, kind: str
) -> None:
    failed = [queue.park(payload) for payload in (b"1", b"2", b"3")]
    assert queue.admin("PUT", "unique", json=True).status_code == 204
    restart(broker, queue, kind)
    assert queue.failed().json() == failed
    assert queue.admin("GET").json()["unique"] is True
    assert queue.set(queue.draft(), b"2") == 409


def test_the_time_of_an_ordered_message_runs_out_across_a_kill(
    broker: Broker, queue: Queue
) -> None:
    queue.admin("PUT", "ordered-timeout", json=1)
    message = queue.make()
    assert queue.order() == message
    broker.restart("worker")
    assert queue.order() == message


# --- long polls ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["worker", "frontend", "interests"])
def test_a_long_poll_goes_on_waiting_while_the_broker_is_restarted(
    broker: Broker, queue: Queue, pool: ThreadPoolExecutor, kind: str
) -> None:
    with httpx.Client(base_url=broker.http_url, timeout=AGAIN_S) as own:
        ordered = pool.submit(own.get, f"{queue.base}/messages")
        must_wait(ordered)
        restart(broker, queue, kind)
        must_wait(ordered)
        message = queue.make()
        answer = ordered.result(AGAIN_S)
    assert (answer.status_code, answer.text) == (200, message)
    assert queue.stats() == {"ordered": 1}


@pytest.mark.parametrize("index", [0, 1])
def test_a_long_poll_does_not_mind_which_worker_is_restarted(
    broker: Broker, queue: Queue, pool: ThreadPoolExecutor, index: int
) -> None:
    """One of the two has nothing to do with the queue, which the door cannot know."""
    with httpx.Client(base_url=broker.http_url, timeout=AGAIN_S) as own:
        ordered = pool.submit(own.get, f"{queue.base}/messages")
        must_wait(ordered)
        broker.restart("worker", index)
        must_wait(ordered)
        made = {queue.make(), queue.make()}
        answer = ordered.result(AGAIN_S)
    assert answer.text in made
    assert queue.stats() == {"waiting": 1, "ordered": 1}


def test_a_long_poll_is_still_ended_by_clear_after_the_workers_were_killed(
    broker: Broker, queue: Queue, pool: ThreadPoolExecutor
) -> None:
    queue.draft()
    with httpx.Client(base_url=broker.http_url, timeout=AGAIN_S) as own:
        ordered = pool.submit(own.get, f"{queue.base}/messages")
        must_wait(ordered)
        restart(broker, queue, "worker")
        must_wait(ordered)
        assert queue.http.delete(queue.base).status_code == 204
        assert ordered.result(AGAIN_S).status_code == 404


def test_a_client_that_hangs_up_while_the_workers_are_away_takes_no_message(
    broker: Broker, queue: Queue
) -> None:
    broker.kill("worker")
    with pytest.raises(httpx.ReadTimeout):
        queue.http.get(f"{queue.base}/messages", timeout=0.1)
    broker.wait_ready()
    until_answers(queue)
    message = queue.make()
    with pytest.raises(httpx.ReadTimeout):  # by then, whoever was to get it has got it
        queue.http.get(f"{queue.base}-empty/messages", timeout=WAITING_S)
    assert queue.stats() == {"waiting": 1}
    assert queue.order() == message


def kill_with_a_long_poll(broker: Broker, queue: Queue, pool: ThreadPoolExecutor) -> None:
    """Kills the gateway while somebody waits there; when this returns, another is there."""
    with httpx.Client(base_url=broker.http_url, timeout=AGAIN_S) as own:
        ordered = pool.submit(own.get, f"{queue.base}/messages")
        must_wait(ordered)
        restart(broker, queue, "http")
        with pytest.raises(httpx.TransportError):
            ordered.result(AGAIN_S)


def test_whoever_waited_at_a_killed_gateway_takes_no_message(
    broker: Broker, queue: Queue, pool: ThreadPoolExecutor
) -> None:
    """On the machine of the broker its workers see at once that it is gone."""
    kill_with_a_long_poll(broker, queue, pool)
    message = queue.make()
    assert queue.stats() == {"waiting": 1}
    assert queue.order() == message


def test_a_message_for_a_long_poll_of_a_killed_gateway_comes_back_in_its_time(
    pool: ThreadPoolExecutor,
) -> None:
    """Until the broker misses a gateway elsewhere, whoever waited there may be given a message."""
    env = {"MQ_ADMIN_PASSWORD": PASSWORD}
    with (
        Broker(workers=1, doors=("http",), config={"lanes": False}, env=env) as broker,
        httpx.Client(base_url=broker.http_url, timeout=AGAIN_S) as http,
    ):
        queue = Queue(http, "elsewhere")
        queue.admin("PUT", "ordered-timeout", json=1)
        kill_with_a_long_poll(broker, queue, pool)
        message = queue.make()
        assert queue.order() == message
        assert queue.stats() == {"ordered": 1}


# --- stopping, and starting again ---------------------------------------------------------------


def test_a_gateway_told_to_stop_answers_its_long_polls_and_ends(
    broker: Broker, queue: Queue, pool: ThreadPoolExecutor
) -> None:
    url = broker.http_url
    (pid,) = broker.pids()["http"]
    with httpx.Client(base_url=url, timeout=AGAIN_S) as own:
        ordered = [pool.submit(own.get, f"{queue.base}/messages") for _ in range(3)]
        for future in ordered:
            must_wait(future)
        told = time.monotonic()
        broker.kill("http", number=signal.SIGTERM)
        for future in ordered:
            answer = future.result(AGAIN_S)
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) > 0
            assert answer.json()["statusCode"] == 503
    until(lambda: broker.pids()["http"] != [pid], "the process has ended")
    assert time.monotonic() - told < GRACE_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        pytest.fail("the process of before is still there")
    broker.wait_ready()
    assert broker.http_url == url
    until_answers(queue)
    message = queue.make()  # and nobody who waited before takes it
    assert queue.order() == message


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_gateway_that_is_started_again_has_the_same_port(
    broker: Broker, queue: Queue, number: int
) -> None:
    url = broker.http_url
    (pid,) = broker.pids()["http"]
    # With a connection open at both ends, whose remains keep the port busy for a while.
    assert queue.stats() == {}
    for _ in range(2):
        restart(broker, queue, "http", number)
        assert broker.http_url == url
        assert broker.pids()["http"] not in ([], [pid])


# --- under load ---------------------------------------------------------------------------------


class Told:
    """What clients were told, and what they asked for without being told."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: set[str] = set()  # set, and answered
        self.completed: set[str] = set()  # completed, and answered
        self.perhaps: set[str] = set()  # completed, but the answer was lost

    def has_completed(self, count: int) -> bool:
        return len(self.completed) > count


def _produce(url: str, base: str, told: Told, ends: threading.Event) -> None:
    with httpx.Client(base_url=url, timeout=AGAIN_S) as http:
        while not ends.is_set():
            try:
                message = http.post(f"{base}/messages", json={"priority": None})
                if message.status_code != 200:
                    continue
                if http.put(f"{base}/messages/{message.text}", content=b"x").status_code == 204:
                    told.waiting.add(message.text)
            except httpx.TransportError:
                ends.wait(LOOK_S)


def _consume(url: str, base: str, told: Told, ends: threading.Event) -> None:
    with httpx.Client(base_url=url, timeout=httpx.Timeout(AGAIN_S, read=2)) as http:
        while not ends.is_set():
            message = ""
            try:
                ordered = http.get(f"{base}/messages")
                if ordered.status_code != 200:
                    continue
                if http.get(f"{base}/messages/{ordered.text}").status_code != 200:
                    continue
                message = ordered.text
                if http.patch(f"{base}/messages/{message}/complete").status_code == 204:
                    with told.lock:
                        assert message not in told.completed, "completed twice"
                        told.completed.add(message)
                else:
                    told.perhaps.add(message)
            except httpx.TransportError:
                if message:
                    told.perhaps.add(message)
                ends.wait(LOOK_S)


@pytest.mark.slow
def test_kills_under_load_lose_nothing_and_complete_nothing_twice(
    broker: Broker, queue: Queue, pool: ThreadPoolExecutor
) -> None:
    told, ends = Told(), threading.Event()
    work = (_produce, _produce, _consume, _consume)
    running = [pool.submit(run, broker.http_url, queue.base, told, ends) for run in work]
    try:
        for kind in ("worker", "http", "worker", "frontend", "http"):
            before = len(told.completed)
            until(partial(told.has_completed, before + 20), "work goes on")
            restart(broker, queue, kind)
    finally:
        ends.set()
    for future in running:
        future.result(AGAIN_S)
    sure = told.completed
    unsure = told.perhaps - sure
    completed = queue.stats()["completed"]
    assert len(sure) <= completed <= len(sure | unsure)
    for message in told.waiting - sure - unsure:
        assert queue.get(message).status_code == 200, f"{message} is lost"
    for message in sure:
        assert queue.get(message).status_code == 404
