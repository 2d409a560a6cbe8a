"""Each sentence of seed 002 about the private part, timeouts, uniqueness and limits."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from asterism.testing import Broker
from tests.conformance.http.conftest import PASSWORD, Queue

NOTHING = {
    "unique": None,
    "draftingTimeout": None,
    "orderedTimeout": None,
    "activeTimeout": None,
    "concurrency": None,
}
KEYS = {
    "unique": ("unique", True),
    "drafting-timeout": ("draftingTimeout", 1.5),
    "ordered-timeout": ("orderedTimeout", 20),
    "active-timeout": ("activeTimeout", 30),
    "concurrency": ("concurrency", 4),
}


def until(queue: Queue, counts: dict[str, int], s: float = 10) -> None:
    deadline = time.monotonic() + s
    while queue.stats() != counts:
        assert time.monotonic() < deadline, queue.stats()
        time.sleep(0.02)


@pytest.mark.parametrize(
    "authorization",
    [None, "", PASSWORD, f"Basic {PASSWORD}", f"Bearer{PASSWORD}", "Bearer", "Bearer wrong"],
)
def test_without_the_password_nothing_private_is_done(
    http: httpx.Client, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    for method, path in (
        ("GET", "/admin/mq-with-config"),
        ("GET", "/admin/mq/a/config"),
        ("PUT", "/admin/mq/a/config/unique"),
        ("DELETE", "/admin/mq/a/config/unique"),
    ):
        answer = http.request(method, path, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["statusCode"] == 401


def test_with_no_password_set_everybody_is_refused() -> None:
    with Broker(workers=1, doors=("http",)) as broker, httpx.Client() as client:
        for authorization in ("Bearer undefined", "Bearer null", "Bearer"):
            answer = client.get(
                f"{broker.http_url}/admin/mq-with-config", headers={"Authorization": authorization}
            )
            assert answer.status_code == 401


def test_an_unknown_private_path_is_404_for_anybody(http: httpx.Client) -> None:
    assert http.get("/admin/nothing").status_code == 404


@pytest.mark.parametrize("key", KEYS)
def test_a_setting_is_set_shown_and_removed(queue: Queue, key: str) -> None:
    shown, value = KEYS[key]
    assert queue.admin("GET").json() == NOTHING
    assert queue.admin("PUT", key, json=value).status_code == 204
    assert queue.admin("GET").json() == {**NOTHING, shown: value}
    headers = {"Authorization": f"Bearer {PASSWORD}"}
    listed = queue.http.get("/admin/mq-with-config", headers=headers).json()
    assert queue.namespace in listed
    assert queue.namespace not in queue.http.get("/mq").json()
    assert queue.admin("DELETE", key).status_code == 204
    assert queue.admin("DELETE", key).status_code == 204
    assert queue.admin("GET").json() == NOTHING


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("body", ["null", '"text"', "[]", "{", "", "-1", "0", "{}"])
def test_a_value_that_cannot_be_one_is_400(queue: Queue, key: str, body: str) -> None:
    headers = {"Authorization": f"Bearer {PASSWORD}", "Content-Type": "application/json"}
    path = f"/admin{queue.base}/config/{key}"
    answer = queue.http.put(path, content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["message"]
    assert queue.admin("GET").json() == NOTHING


def test_a_setting_needs_json_and_a_name_that_there_is(queue: Queue) -> None:
    assert queue.admin("PUT", "unique", content=b"true").status_code == 415
    assert queue.admin("PUT", "nothing", json=True).status_code == 404
    assert queue.admin("DELETE", "nothing").status_code == 404


def test_clear_keeps_the_settings(queue: Queue) -> None:
    queue.admin("PUT", "unique", json=True)
    queue.draft()
    queue.http.delete(queue.base)
    assert queue.admin("GET").json()["unique"] is True


# --- timeouts -----------------------------------------------------------------------------------


def test_a_draft_that_is_not_set_in_time_is_deleted(queue: Queue) -> None:
    queue.admin("PUT", "drafting-timeout", json=0.2)
    message = queue.draft()
    until(queue, {})
    assert queue.set(message) == 404


def test_what_is_ordered_and_not_read_in_time_waits_again_behind_its_equals(queue: Queue) -> None:
    queue.admin("PUT", "ordered-timeout", json=0.2)
    first = queue.make(b"1", priority=5)
    second = queue.make(b"2", priority=5)
    assert queue.order() == first
    until(queue, {"waiting": 2})
    assert [queue.order(), queue.order()] == [second, first]


def test_what_is_active_for_too_long_waits_again_and_wakes_an_order(queue: Queue) -> None:
    queue.admin("PUT", "active-timeout", json=0.3)
    message = queue.activate()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(queue.order).result(10) == message
    assert queue.patch(message, "complete") == 409


def test_a_changed_timeout_holds_for_what_is_under_way(queue: Queue) -> None:
    queue.activate()
    queue.admin("PUT", "active-timeout", json=0.2)
    until(queue, {"waiting": 1})


def test_what_failed_or_waits_has_no_timeout(queue: Queue) -> None:
    for key in ("drafting-timeout", "ordered-timeout", "active-timeout"):
        queue.admin("PUT", key, json=5)
    queue.park(b"1")
    queue.make(b"2")
    for key in ("drafting-timeout", "ordered-timeout", "active-timeout"):
        queue.admin("PUT", key, json=0.1)
    time.sleep(0.5)
    assert queue.stats() == {"failed": 1, "waiting": 1}


# --- concurrency, uniqueness --------------------------------------------------------------------


@pytest.mark.parametrize("how", ["complete", "fail", "abandon"])
def test_order_waits_while_as_many_are_out_as_may_be(queue: Queue, how: str) -> None:
    queue.admin("PUT", "concurrency", json=1)
    first = queue.activate(b"1")
    second = queue.make(b"2")
    with ThreadPoolExecutor(1) as pool:
        ordered = pool.submit(queue.order)
        with pytest.raises(TimeoutError):
            ordered.result(0.3)
        assert (queue.abandon(first) if how == "abandon" else queue.patch(first, how)) == 204
        assert ordered.result(10) == second


def test_a_unique_queue_refuses_a_payload_that_it_has(queue: Queue) -> None:
    queue.admin("PUT", "unique", json=True)
    first = queue.make(b"same")
    other = queue.draft()
    assert queue.set(other, b"same") == 409
    assert queue.stats() == {"drafting": 1, "waiting": 1}
    assert queue.set(first, b"same") == 204
    assert queue.set(other, b"another") == 204
    assert queue.set(other, b"same") == 409
    queue.order(), queue.get(first)
    assert queue.set(queue.draft(), b"same") == 409
    queue.patch(first, "fail")
    assert queue.set(queue.draft(), b"same") == 409
    queue.patch(first, "renew")
    queue.abandon(first)
    assert queue.set(queue.draft(), b"same") == 204


# --- global settings and limits -----------------------------------------------------------------


@pytest.fixture(scope="module")
def told() -> Iterator[Broker]:
    env = {
        "MQ_UNIQUE": "true",
        "MQ_DRAFTING_TIMEOUT": "0.5",
        "MQ_ORDERED_TIMEOUT": "0.3",
        "MQ_ACTIVE_TIMEOUT": "0.3",
        "MQ_CONCURRENCY": "1",
        "MQ_PAYLOAD_LIMIT": "100",
        "MQ_SET_PAYLOAD_LIMIT": "2000000",
        "MQ_ADMIN_PASSWORD": PASSWORD,
    }
    with Broker(workers=1, doors=("http",), env=env) as running:
        yield running


def test_the_environment_gives_the_settings_that_are_inherited(told: Broker) -> None:
    with httpx.Client(base_url=told.http_url) as client:
        queue = Queue(client, "inherits")
        queue.draft()
        until(queue, {})
        first = queue.make(b"same")
        draft = queue.draft()
        assert queue.set(draft, b"same") == 409
        assert queue.order() == first
        until(queue, {"waiting": 1})
        assert queue.admin("GET").json() == NOTHING


def test_bodies_are_limited_and_those_of_set_by_a_limit_of_their_own(told: Broker) -> None:
    with httpx.Client(base_url=told.http_url) as client:
        queue = Queue(client, "limits")
        json = b'{"priority": null}'.ljust(100)
        headers = {"Content-Type": "application/json"}
        for body, status in ((json, 200), (json + b" ", 413)):
            answer = client.post(f"{queue.base}/messages", content=body, headers=headers)
            assert answer.status_code == status
            chunks = client.post(f"{queue.base}/messages", content=iter([body]), headers=headers)
            assert chunks.status_code == status
        assert queue.set(queue.draft(), b"x" * 2_000_001) == 413
        assert queue.set(queue.draft(), b"x" * 2_000_000) == 204
        assert queue.get(queue.order()).content == b"x" * 2_000_000
