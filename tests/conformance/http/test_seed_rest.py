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
from asterism.gateways.http.door import DOOR
from asterism.gateways.process import listener
from asterism.testing import Broker
from asterism.wire import FRAME_BYTES_MAX
from tests.conformance.http.conftest import PASSWORD, Queue

LIMIT = 1_048_576  # of a body, unless it is told otherwise


def configured(folder: Path, **variables: str) -> Config:
    return load(None, {"ASTERISM_DATA_DIR": str(folder), **variables})


# --- where it listens ---------------------------------------------------------------------------


def test_it_listens_on_port_8080_of_localhost_unless_it_is_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = []
    monkeypatch.setattr(socket.socket, "bind", lambda _, address: bound.append(address))
    for environ in ({}, {"MQ_HOST": "127.0.0.2", "MQ_PORT": "81"}, {"MQ_HOST": "::1"}):
        listener(configured(tmp_path, **environ), DOOR).close()
    assert bound == [("127.0.0.1", 8080), ("127.0.0.2", 81), ("::1", 8080)]


@pytest.mark.parametrize(
    ("environ", "what"),
    [
        ({"MQ_PORT": "x"}, "MQ_PORT: http.listen must be a host and a port"),
        ({"MQ_PORT": "65536"}, "MQ_PORT: http.listen must be a host and a port"),
        (
            {"MQ_HOST": "0.0.0.0", "MQ_PORT": "0"},
            "http.listen is 0.0.0.0:0: others than this machine could connect",
        ),
    ],
)
def test_where_it_cannot_or_must_not_listen_is_said(
    tmp_path: Path, environ: dict[str, str], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        listener(configured(tmp_path, **environ), DOOR)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(ConfigError, match=port):
            listener(configured(tmp_path, MQ_PORT=port), DOOR)


def test_a_client_that_went_away_without_a_word_is_missed(tmp_path: Path) -> None:
    """By the system: nothing else can tell of a long poll whose client has no machine any more."""
    with listener(configured(tmp_path, MQ_PORT="0"), DOOR) as listening:
        listening.listen()
        with socket.create_connection(listening.getsockname()):
            taken, _ = listening.accept()
            with taken:
                assert taken.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


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


def test_the_limit_of_all_bodies_is_that_of_what_is_published_too(
    small: Broker, http: httpx.Client
) -> None:
    """Where nobody has said so, many messages may come in one body."""
    path = "/v1/topics/published/messages"
    with httpx.Client(base_url=small.http_url, timeout=20) as limited:
        refused = limited.post(path, content=bytes(101))
        assert refused.status_code == 413
        assert "MQ_PAYLOAD_LIMIT" in refused.json()["message"]
        assert limited.post(path, content=bytes(100)).status_code == 200
    many = {"messages": [{"payload": "x" * LIMIT}, {"payload": "x" * LIMIT}]}
    assert http.post(path, json=many).status_code == 200


@pytest.mark.parametrize("environ", [{"MQ_SET_PAYLOAD_LIMIT": "1" + "0" * 12}, {}])
def test_no_payload_may_be_larger_than_what_the_broker_can_take(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """It would cost the door its connection, and all who use it theirs to the broker."""
    settings = configured(tmp_path, **environ).door(DOOR)
    assert server.limits_of(settings).payload + LIMIT // 32 < FRAME_BYTES_MAX


@pytest.fixture(scope="module")
def large() -> Iterator[Broker]:
    env = {"MQ_SET_PAYLOAD_LIMIT": str(4 * LIMIT)}
    with Broker(workers=1, doors=("http",), env=env) as running:
        yield running


def test_a_larger_limit_holds_for_queues_that_have_none_of_their_own(large: Broker) -> None:
    with httpx.Client(base_url=large.http_url, timeout=20) as http:
        free, bound = Queue(http, "free"), Queue(http, "bound")
        assert free.set(free.draft(), bytes(4 * LIMIT)) == 204
        assert free.set(free.draft(), bytes(4 * LIMIT + 1)) == 413
        settings = {"settings": {"max_payload": 2 * LIMIT}}
        message = bound.draft()
        assert http.patch("/v1/topics/bound", json=settings).status_code == 204
        refused = http.put(f"/mq/bound/messages/{message}", content=bytes(2 * LIMIT + 1))
        assert refused.status_code == 413
        assert "max_payload" in refused.json()["message"]
        assert http.get("/v1/topics/bound").json()["settings"]["max_payload"] == 2 * LIMIT
        assert bound.stats() == {"drafting": 1}
        assert bound.set(message, bytes(2 * LIMIT)) == 204


@pytest.fixture(scope="module")
def strict() -> Iterator[Broker]:
    config = {"auto_create": False, "topic": {"max_payload": 1_000}}
    env = {"MQ_SET_PAYLOAD_LIMIT": "2000", "MQ_ADMIN_PASSWORD": PASSWORD}
    with Broker(workers=1, doors=("http",), config=config, env=env) as running:
        yield running


def test_the_limit_of_the_broker_itself_is_kept(strict: Broker) -> None:
    with httpx.Client(base_url=strict.http_url, timeout=20) as http:
        queue = Queue(http, "kept")
        password = {"Authorization": f"Bearer {PASSWORD}"}
        assert http.put("/v1/topics/kept", headers=password).status_code == 201
        message = queue.draft()
        assert queue.set(message, bytes(1_001)) == 413
        assert queue.set(message, bytes(1_000)) == 204


def test_where_queues_are_not_made_by_themselves_it_is_said(strict: Broker) -> None:
    with httpx.Client(base_url=strict.http_url, timeout=20) as http:
        queue = Queue(http, "missing")
        for answer in (
            http.post(f"{queue.base}/messages", json={"priority": None}),
            http.get(f"{queue.base}/messages"),
            queue.admin("PUT", "unique", json=True),
        ):
            assert answer.status_code == 404
            assert "/v1/topics" in answer.json()["message"]
        assert queue.get("1").content == b""
