"""Two HTTP doors on one broker behave as one: neither keeps anything that the other would miss."""

import contextlib
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from asterism.testing import Broker
from tests.conformance.http.conftest import PASSWORD, Door, Queue

pytestmark = pytest.mark.process

READY_S = 30.0
LOOK_S = 0.01
WAITING_S = 0.3


@pytest.fixture(scope="module")
def second_url(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A second door, as on another machine: of the broker it knows the address, and no folder."""
    with Door(tmp_path_factory.mktemp("second"), broker.address, PASSWORD) as door:
        yield door.url


@pytest.fixture
def other(second_url: str, queue: Queue) -> Iterator[Queue]:
    """The same queue, through the second door."""
    with httpx.Client(base_url=second_url, timeout=20) as client:
        assert client.base_url != queue.http.base_url
        yield Queue(client, queue.namespace)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def _poll(queue: Queue) -> httpx.Response:
    return queue.http.get(f"{queue.base}/messages")


def _must_wait(futures: "list[Future[httpx.Response]]") -> None:
    for future in futures:
        with pytest.raises(TimeoutError):
            future.result(WAITING_S)


def test_each_step_may_be_asked_at_another_door(queue: Queue, other: Queue) -> None:
    message = queue.draft(3)
    assert other.stats() == {"drafting": 1}
    assert other.set(message, b"payload", Content_Type="image/png") == 204
    assert queue.order() == message
    assert other.stats() == {"ordered": 1}
    answer = other.get(message)
    assert (answer.content, answer.headers["content-type"]) == (b"payload", "image/png")
    assert queue.patch(message, "fail") == 204
    assert other.failed().json() == [message]
    assert other.patch(message, "renew") == 204
    assert other.order() == message
    assert queue.get(message).headers["x-mq-state"] == "active"
    assert other.patch(message, "complete") == 204
    assert queue.patch(message, "complete") == 404
    assert queue.stats() == other.stats() == {"completed": 1}
    assert queue.namespace in other.http.get("/mq").json()


def test_drafts_of_two_doors_never_have_the_same_id(queue: Queue, other: Queue) -> None:
    made = [door.draft() for _ in range(50) for door in (queue, other)]
    assert len(set(made)) == len(made)
    assert queue.stats() == {"drafting": 100}


def test_one_message_releases_one_order_at_either_door(
    queue: Queue, other: Queue, pool: ThreadPoolExecutor
) -> None:
    waiting = [pool.submit(_poll, door) for door in (queue, other, queue, other)]
    _must_wait(waiting)
    made = []
    for count, door in enumerate((queue, other, other, queue), 1):
        made.append(door.make())
        _until_done(waiting, count)
        assert door.stats() == {"ordered": count}
    assert sorted(future.result().text for future in waiting) == sorted(made)


def _until_done(futures: "list[Future[httpx.Response]]", count: int) -> None:
    deadline = time.monotonic() + READY_S
    while sum(future.done() for future in futures) < count:
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)
    assert sum(future.done() for future in futures) == count


def test_orders_at_both_doors_never_get_the_same_message(
    queue: Queue, other: Queue, pool: ThreadPoolExecutor
) -> None:
    waiting = [pool.submit(_poll, door) for _ in range(4) for door in (queue, other)]
    made = {door.make() for _ in range(4) for door in (queue, other)}
    assert {future.result(READY_S).text for future in waiting} == made


def test_a_clear_at_one_door_ends_the_long_polls_at_both(
    queue: Queue, other: Queue, pool: ThreadPoolExecutor
) -> None:
    queue.draft()
    waiting = [pool.submit(_poll, door) for door in (queue, other, other)]
    _must_wait(waiting)
    assert other.http.delete(other.base).status_code == 204
    for future in waiting:
        answer = future.result(READY_S)
        assert (answer.status_code, answer.content) == (404, b"")
    assert queue.stats() == {}


def test_a_setting_made_at_one_door_holds_at_the_other(
    queue: Queue, other: Queue, pool: ThreadPoolExecutor
) -> None:
    for key, value in (("unique", True), ("concurrency", 1)):
        assert queue.admin("PUT", key, json=value).status_code == 204
    shown = other.admin("GET").json()
    assert (shown["unique"], shown["concurrency"]) == (True, 1)
    first = other.make(b"same")
    assert other.set(other.draft(), b"same") == 409
    second = other.make(b"another")
    assert other.order() == first
    waiting = pool.submit(_poll, other)
    _must_wait([waiting])
    assert other.admin("DELETE", "concurrency").status_code == 204
    assert waiting.result(READY_S).text == second
    assert queue.admin("GET").json()["concurrency"] is None


# --- in one data folder -------------------------------------------------------------------------


def test_doors_of_one_data_folder_have_names_and_files_of_their_own(
    broker: Broker, queue: Queue, tmp_path: Path
) -> None:
    run = broker.data_dir / "run"
    before = json.loads((run / "http.json").read_text())
    with Door(tmp_path, broker.address, name="http-2", data_dir=broker.data_dir) as door:
        assert door.url != before["url"]
        assert json.loads((run / "http.json").read_text()) == before
        with door.client() as client:
            Queue(client, queue.namespace).make()
        assert queue.stats() == {"waiting": 1}
        assert " http-2 listens " in (tmp_path / "log").read_text()


def test_a_door_that_is_stopped_says_goodbye(queue: Queue, broker: Broker, tmp_path: Path) -> None:
    """The broker need not miss it: what it had waiting is over at once."""
    with Door(tmp_path, broker.address) as door:
        with_it = _sessions(queue)
        door.process.terminate()
        assert door.process.wait(READY_S) == 0
        assert _sessions(queue) == with_it - 1


def _sessions(queue: Queue) -> int:
    return int(queue.http.get("/v1/status").json()["frontend"]["sessions"])


def test_a_door_takes_as_many_connections_as_the_system_lets_it(
    broker: Broker, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        door = Door(tmp_path, broker.address)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with door, contextlib.ExitStack() as clients:
        where = urlsplit(door.url)
        for _ in range(300):
            clients.enter_context(socket.create_connection((where.hostname, where.port)))
        assert httpx.get(f"{door.url}/health", timeout=READY_S).text == "OK"


@pytest.mark.parametrize("name", ["worker-0", "http/../x", "http-", "", "nats"])
def test_a_door_cannot_have_the_name_of_another_process(name: str) -> None:
    command = [sys.executable, "-m", "asterism.gateways.http", "--name", name]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=READY_S)
    assert ended.returncode == 2
    assert "--name" in ended.stderr
