"""What seed 002 and the notes on it say in passing: where it listens, who comes first, and when."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from asterism.config import Config, ConfigError, load
from asterism.gateways.http import server
from asterism.testing import Broker
from tests.conformance.http.conftest import Queue

LIMIT = 1_048_576  # of a body, unless it is told otherwise


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load(None, {"ASTERISM_DATA_DIR": str(tmp_path)})


# --- where it listens ---------------------------------------------------------------------------


def test_it_listens_on_port_8080_of_localhost_unless_it_is_told_otherwise(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = []
    monkeypatch.setattr(socket.socket, "bind", lambda _, address: bound.append(address))
    for environ in ({}, {"MQ_HOST": "127.0.0.2", "MQ_PORT": "81"}):
        server.listener(config, environ).close()
    assert bound == [("127.0.0.1", 8080), ("127.0.0.2", 81)]


@pytest.mark.parametrize(
    "environ", [{"MQ_PORT": "x"}, {"MQ_PORT": "65536"}, {"MQ_HOST": "0.0.0.0", "MQ_PORT": "0"}]
)
def test_where_it_cannot_or_must_not_listen_is_said(
    config: Config, environ: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match="MQ_"):
        server.listener(config, environ)


def test_a_port_that_is_taken_is_named(config: Config) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(ConfigError, match=port):
            server.listener(config, {"MQ_PORT": port})


# --- order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["ordered", "active"])
def test_what_comes_back_in_its_time_keeps_its_priority(queue: Queue, state: str) -> None:
    queue.admin("PUT", f"{state}-timeout", json=0.3)
    first, last = queue.make(b"1", priority=1), queue.make(b"2", priority=2)
    assert queue.order() == first
    if state == "active":
        queue.get(first)
    deadline = time.monotonic() + 10
    while queue.stats() != {"waiting": 2}:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [queue.order(), queue.order()] == [first, last]
    assert queue.get(first).headers["x-mq-priority"] == "1"


def test_reading_an_active_message_again_gives_it_no_more_time(queue: Queue) -> None:
    queue.admin("PUT", "active-timeout", json=1)
    message, began = queue.activate(), time.monotonic()
    while queue.get(message).headers["x-mq-state"] == "active":
        assert time.monotonic() - began < 10
        time.sleep(0.05)
    assert queue.stats() == {"waiting": 1}


def test_an_order_is_woken_by_what_comes_back_in_its_time(queue: Queue) -> None:
    queue.admin("PUT", "ordered-timeout", json=0.3)
    message = queue.make()
    assert queue.order() == message
    assert queue.order() == message


def test_an_order_is_woken_by_the_renewal_of_all(queue: Queue) -> None:
    message = queue.park()
    with ThreadPoolExecutor(1) as pool:
        ordered = pool.submit(queue.order)
        with pytest.raises(TimeoutError):
            ordered.result(0.2)
        assert queue.http.patch(f"{queue.base}/failed-messages/renew").status_code == 204
        assert ordered.result(10) == message


def test_zero_is_the_best_priority_and_numbers_are_compared_as_numbers(queue: Queue) -> None:
    made = {priority: queue.make(priority=priority) for priority in (None, 10, 9, 100, 0)}
    assert [queue.order() for _ in made] == [made[key] for key in (0, 9, 10, 100, None)]


def test_a_queue_that_was_never_used_may_be_waited_on(queue: Queue) -> None:
    with ThreadPoolExecutor(1) as pool:
        ordered = pool.submit(queue.order)
        with pytest.raises(TimeoutError):
            ordered.result(0.2)
        message = queue.make()
        assert ordered.result(10) == message


# --- concurrency, uniqueness --------------------------------------------------------------------


def test_fewer_at_a_time_takes_nothing_back(queue: Queue) -> None:
    first, second = queue.activate(b"1"), queue.activate(b"2")
    assert queue.admin("PUT", "concurrency", json=1).status_code == 204
    assert queue.stats() == {"active": 2}
    assert queue.patch(first, "complete") == queue.patch(second, "complete") == 204


def test_a_place_is_free_again_when_a_message_comes_back_in_its_time(queue: Queue) -> None:
    queue.admin("PUT", "concurrency", json=1)
    queue.admin("PUT", "ordered-timeout", json=0.3)
    first, second = queue.make(b"1"), queue.make(b"2")
    assert queue.order() == first
    assert queue.order() == second


def test_duplicates_of_before_a_queue_was_unique_stay(queue: Queue) -> None:
    made = [queue.make(b"same"), queue.make(b"same")]
    queue.admin("PUT", "unique", json=True)
    assert queue.set(queue.draft(), b"same") == 409
    assert [queue.order(), queue.order()] == made
    for message in made:
        queue.get(message)
        queue.patch(message, "fail")
        assert queue.patch(message, "renew") == 204  # which nothing is compared for


def test_a_payload_is_compared_without_its_type_and_within_one_queue(queue: Queue) -> None:
    queue.admin("PUT", "unique", json=True)
    first = queue.draft()
    assert queue.set(first, b"same", Content_Type="text/plain") == 204
    assert queue.set(queue.draft(), b"same", Content_Type="image/png") == 409
    other = Queue(queue.http, f"{queue.namespace}-other")
    other.admin("PUT", "unique", json=True)
    assert other.set(other.draft(), b"same") == 204
    queue.order(), queue.get(first), queue.patch(first, "complete")
    assert queue.set(queue.draft(), b"same") == 204  # it is gone


# --- answers ------------------------------------------------------------------------------------


def test_what_is_done_or_not_there_has_no_body_and_no_type(queue: Queue) -> None:
    draft, active = queue.draft(), queue.activate()
    path = f"{queue.base}/messages"
    asked = [
        (204, "PUT", f"{path}/{draft}"),
        (204, "PATCH", f"{path}/{active}/complete"),
        (404, "PATCH", f"{path}/{active}/complete"),
        (404, "PUT", f"{path}/99999"),
        (404, "GET", f"{path}/99999"),
        (404, "DELETE", f"{path}/99999"),
        (409, "PATCH", f"{path}/{draft}/fail"),
        (409, "PATCH", f"{path}/{draft}/renew"),
        (204, "DELETE", f"{path}/{draft}"),
        (204, "DELETE", f"{queue.base}/failed-messages"),
        (204, "PATCH", f"{queue.base}/failed-messages/renew"),
        (204, "DELETE", queue.base),
    ]
    for status, method, where in asked:
        answer = queue.http.request(method, where)
        assert (answer.status_code, answer.content) == (status, b""), where
        assert "content-type" not in answer.headers


def test_no_lines_are_no_body(queue: Queue) -> None:
    answer = queue.failed(Accept="application/x-ndjson")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("application/x-ndjson")


def test_completed_only_grows_until_the_queue_is_cleared(queue: Queue) -> None:
    for number in range(1, 4):
        queue.patch(queue.activate(b"x"), "complete")
        queue.abandon(queue.make(b"y"))
        assert queue.stats() == {"completed": number}
    queue.http.delete(queue.base)
    assert queue.stats() == {}


def test_a_payload_has_a_megabyte_at_most_unless_it_is_told_otherwise(queue: Queue) -> None:
    message = queue.draft()
    assert queue.set(message, bytes(LIMIT + 1)) == 413
    assert queue.stats() == {"drafting": 1}
    assert queue.set(message, bytes(LIMIT)) == 204
    assert queue.get(message).content == bytes(LIMIT)


@pytest.fixture(scope="module")
def small() -> Iterator[Broker]:
    with Broker(workers=1, doors=("http",), env={"MQ_PAYLOAD_LIMIT": "100"}) as running:
        yield running


def test_the_limit_of_set_is_that_of_all_bodies_unless_it_has_its_own(small: Broker) -> None:
    with httpx.Client(base_url=small.http_url, timeout=20) as http:
        queue = Queue(http, "small")
        assert queue.set(queue.draft(), bytes(101)) == 413
        assert queue.set(queue.draft(), bytes(100)) == 204
