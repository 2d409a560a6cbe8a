"""Each sentence of seed 002 about the public part, against the real door with a real client."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import asterism
from asterism.testing import Broker
from tests.conformance.http.conftest import Queue

SOON_S = 0.3


# --- draft --------------------------------------------------------------------------------------


def test_a_draft_returns_an_id_and_is_drafting(queue: Queue) -> None:
    assert queue.draft()
    assert queue.stats() == {"drafting": 1}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ('{"priority": null}', 200),
        ('{"priority": 0}', 200),
        ('{"priority": 7}', 200),
        ('{"priority": 7.0}', 200),
        ("{}", 400),
        ('{"priority": -1}', 400),
        ('{"priority": 1.5}', 400),
        ('{"priority": "1"}', 400),
        ('{"priority": true}', 400),
        ('{"priority": 99999999999}', 400),
        ('{"priority": NaN}', 400),
        ("[]", 400),
        ("null", 400),
        ("{", 400),
        ("", 400),
    ],
)
def test_a_draft_needs_a_priority_that_is_null_or_a_whole_number(
    queue: Queue, body: str, status: int
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = queue.http.post(f"{queue.base}/messages", content=body, headers=headers)
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["statusCode"] == 400
        assert answer.json()["message"]


@pytest.mark.parametrize("media", [None, "text/plain", "application/octet-stream"])
def test_a_draft_whose_body_is_not_said_to_be_json_is_415(queue: Queue, media: str | None) -> None:
    headers = {"Content-Type": media} if media else {}
    content = b'{"priority": null}'
    answer = queue.http.post(f"{queue.base}/messages", content=content, headers=headers)
    assert answer.status_code == 415


# --- set ----------------------------------------------------------------------------------------


def test_set_makes_a_draft_wait(queue: Queue) -> None:
    message = queue.draft()
    assert queue.set(message, b"payload") == 204
    assert queue.stats() == {"waiting": 1}


def test_set_replaces_the_payload_of_a_waiting_message_in_its_place(queue: Queue) -> None:
    first, _ = queue.make(b"1"), queue.make(b"2")
    assert queue.set(first, b"new") == 204
    assert queue.order() == first
    assert queue.get(first).content == b"new"


def test_set_of_no_message_is_404(queue: Queue) -> None:
    assert queue.set("99999") == 404
    assert queue.set("no-number") == 404


def test_set_of_an_ordered_active_or_failed_message_is_409(queue: Queue) -> None:
    message = queue.make()
    queue.order()
    assert queue.set(message) == 409
    queue.get(message)
    assert queue.set(message) == 409
    queue.patch(message, "fail")
    assert queue.set(message) == 409


def test_a_payload_and_its_type_come_back_byte_for_byte(queue: Queue) -> None:
    payload = bytes(range(256)) * 5
    message = queue.draft(3)
    assert queue.set(message, payload, Content_Type="image/png") == 204
    queue.order()
    answer = queue.get(message)
    assert answer.content == payload
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["x-mq-priority"] == "3"
    assert answer.headers["x-mq-state"] == "active"


def test_an_empty_payload_is_one(queue: Queue) -> None:
    message = queue.make(b"")
    queue.order()
    answer = queue.get(message)
    assert answer.content == b""
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-mq-priority"] == "null"


def test_broken_json_is_a_payload_like_any_other(queue: Queue) -> None:
    message = queue.draft()
    assert queue.set(message, b"{", Content_Type="application/json") == 204


# --- order --------------------------------------------------------------------------------------


def test_the_best_priority_is_ordered_first_and_the_earliest_of_equals(queue: Queue) -> None:
    last = queue.make(priority=None)
    second, third = queue.make(priority=10), queue.make(priority=10)
    first = queue.make(priority=2)
    assert [queue.order() for _ in range(4)] == [first, second, third, last]


def test_of_equals_the_one_that_was_set_first_comes_first(queue: Queue) -> None:
    first, second = queue.draft(), queue.draft()
    queue.set(second)
    queue.set(first)
    assert [queue.order(), queue.order()] == [second, first]


def test_an_ordered_message_is_ordered_and_a_read_one_active(queue: Queue) -> None:
    message = queue.make()
    queue.order()
    assert queue.stats() == {"ordered": 1}
    queue.get(message)
    assert queue.stats() == {"active": 1}


def test_order_waits_until_there_is_a_message(queue: Queue) -> None:
    with ThreadPoolExecutor(1) as pool:
        ordered = pool.submit(queue.order)
        with pytest.raises(TimeoutError):
            ordered.result(SOON_S)
        message = queue.make()
        assert ordered.result(10) == message


def test_a_renewed_message_wakes_an_order(queue: Queue) -> None:
    message = queue.park()
    with ThreadPoolExecutor(1) as pool:
        ordered = pool.submit(queue.order)
        assert queue.patch(message, "renew") == 204
        assert ordered.result(10) == message


def test_one_message_releases_one_order(queue: Queue) -> None:
    with ThreadPoolExecutor(3) as pool:
        ordered = [pool.submit(queue.order) for _ in range(3)]
        made = {queue.make(), queue.make()}
        deadline = time.monotonic() + 10
        while sum(future.done() for future in ordered) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(SOON_S)
        assert sum(future.done() for future in ordered) == 2
        made.add(queue.make())
        assert {future.result(10) for future in ordered} == made


def test_clear_ends_every_order_of_that_queue_with_404(queue: Queue, http: httpx.Client) -> None:
    other = Queue(http, f"{queue.namespace}-other")
    queue.draft()  # so that there is a queue
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(http.get, f"{queue.base}/messages") for _ in range(2)]
        elsewhere = pool.submit(other.order)
        with pytest.raises(TimeoutError):
            elsewhere.result(SOON_S)
        assert http.delete(queue.base).status_code == 204
        for future in waiting:
            answer = future.result(10)
            assert (answer.status_code, answer.content) == (404, b"")
            assert "content-type" not in answer.headers
        assert not elsewhere.done()
        message = other.make()
        assert elsewhere.result(10) == message


def test_a_client_that_hangs_up_takes_no_message(queue: Queue) -> None:
    with pytest.raises(httpx.ReadTimeout):
        queue.http.get(f"{queue.base}/messages", timeout=SOON_S)
    message = queue.make()
    time.sleep(SOON_S)
    assert queue.stats() == {"waiting": 1}
    assert queue.order() == message


def test_messages_for_clients_that_hang_up_as_they_come_wait_again(queue: Queue) -> None:
    """Whoever hangs up before its answer is sent takes none; after that, time brings it back."""
    queue.admin("PUT", "ordered-timeout", json=2)

    def impatient(number: int) -> str:
        try:
            with httpx.Client(base_url=str(queue.http.base_url)) as client:
                message = client.get(
                    f"{queue.base}/messages", timeout=0.01 + number % 10 / 200
                ).text
        except httpx.TimeoutException:
            return ""
        # At once: two seconds are short on a busy machine.
        assert queue.get(message).headers["x-mq-state"] == "active"
        return message

    with ThreadPoolExecutor(8) as pool:
        running = pool.map(impatient, range(40))
        made = {queue.make() for _ in range(20)}
        taken = {message for message in running if message}
    ordered = {queue.order() for _ in range(len(made) - len(taken))}
    assert ordered | taken == made


# --- get ----------------------------------------------------------------------------------------


def test_get_changes_nothing_but_ordered_to_active(queue: Queue) -> None:
    message = queue.make(b"1")
    assert queue.get(message).headers["x-mq-state"] == "waiting"
    assert queue.stats() == {"waiting": 1}
    queue.order()
    assert queue.get(message).headers["x-mq-state"] == "active"
    assert queue.get(message).headers["x-mq-state"] == "active"
    queue.patch(message, "fail")
    answer = queue.get(message)
    assert (answer.headers["x-mq-state"], answer.content) == ("failed", b"1")
    assert queue.stats() == {"failed": 1}


def test_get_of_a_draft_is_409_and_of_no_message_404(queue: Queue) -> None:
    message = queue.draft()
    assert queue.get(message).status_code == 409
    assert queue.get("99999").status_code == 404


# --- complete, fail, renew, abandon -------------------------------------------------------------


def test_a_completed_message_is_counted_and_gone(queue: Queue) -> None:
    message = queue.activate()
    assert queue.patch(message, "complete") == 204
    assert queue.stats() == {"completed": 1}
    assert queue.patch(message, "complete") == 404
    assert queue.stats() == {"completed": 1}
    assert queue.get(message).status_code == 404


def test_a_failed_message_stays_until_it_is_renewed(queue: Queue) -> None:
    message = queue.activate()
    assert queue.patch(message, "fail") == 204
    assert queue.stats() == {"failed": 1}
    assert queue.patch(message, "fail") == 409
    assert queue.patch(message, "renew") == 204
    assert queue.stats() == {"waiting": 1}
    assert queue.patch(message, "renew") == 409
    assert queue.order() == message


@pytest.mark.parametrize("what", ["complete", "fail"])
def test_only_an_active_message_is_completed_or_failed(queue: Queue, what: str) -> None:
    message = queue.draft()
    assert queue.patch(message, what) == 409
    queue.set(message)
    assert queue.patch(message, what) == 409
    queue.order()
    assert queue.patch(message, what) == 409
    assert queue.stats() == {"ordered": 1}


@pytest.mark.parametrize("what", ["complete", "fail", "renew"])
def test_of_no_message_it_is_404(queue: Queue, what: str) -> None:
    assert queue.patch("99999", what) == 404
    queue.draft()
    assert queue.patch("99999", what) == 404


def test_only_a_failed_message_is_renewed(queue: Queue) -> None:
    message = queue.make()
    assert queue.patch(message, "renew") == 409
    queue.order()
    assert queue.patch(message, "renew") == 409
    queue.get(message)
    assert queue.patch(message, "renew") == 409


@pytest.mark.parametrize("state", ["drafting", "waiting", "ordered", "active", "failed"])
def test_abandon_drops_a_message_in_any_state_and_counts_nothing(queue: Queue, state: str) -> None:
    message = queue.draft()
    if state != "drafting":
        queue.set(message)
    if state in ("ordered", "active", "failed"):
        queue.order()
    if state in ("active", "failed"):
        queue.get(message)
    if state == "failed":
        queue.patch(message, "fail")
    assert queue.stats() == {state: 1}
    assert queue.abandon(message) == 204
    assert queue.stats() == {}
    assert queue.abandon(message) == 404


# --- failed messages ----------------------------------------------------------------------------


def test_failed_messages_are_listed_oldest_failure_first(queue: Queue) -> None:
    assert queue.failed().json() == []
    first, second = queue.activate(b"1"), queue.activate(b"2")
    queue.patch(second, "fail")
    queue.patch(first, "fail")
    answer = queue.failed()
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.json() == [second, first]
    lines = queue.failed(Accept="application/x-ndjson")
    assert lines.headers["content-type"].startswith("application/x-ndjson")
    assert lines.text == f'"{second}"\n"{first}"'


def test_all_failed_messages_are_renewed_in_the_order_they_failed(queue: Queue) -> None:
    first, second = queue.activate(b"1"), queue.activate(b"2")
    queue.patch(second, "fail")
    queue.patch(first, "fail")
    assert queue.http.patch(f"{queue.base}/failed-messages/renew").status_code == 204
    assert queue.failed().json() == []
    assert [queue.order(), queue.order()] == [second, first]
    assert queue.http.patch(f"{queue.base}/failed-messages/renew").status_code == 204


def test_all_failed_messages_are_abandoned(queue: Queue) -> None:
    queue.park(b"1"), queue.park(b"2")
    kept = queue.make(b"3")
    assert queue.http.delete(f"{queue.base}/failed-messages").status_code == 204
    assert queue.stats() == {"waiting": 1}
    assert queue.order() == kept
    assert queue.http.delete(f"{queue.base}/failed-messages").status_code == 204


def test_failed_messages_of_a_queue_that_was_never_used(queue: Queue) -> None:
    assert queue.failed().json() == []
    assert queue.http.delete(f"{queue.base}/failed-messages").status_code == 204
    assert queue.http.patch(f"{queue.base}/failed-messages/renew").status_code == 204


# --- clear, stats, namespaces -------------------------------------------------------------------


def test_clear_drops_all_messages_and_counts(queue: Queue) -> None:
    queue.patch(queue.activate(b"1"), "complete")
    queue.park(b"2")
    queue.make(b"3")
    queue.draft()
    assert queue.http.delete(queue.base).status_code == 204
    assert queue.stats() == {}
    assert queue.namespace not in queue.http.get("/mq").json()
    assert queue.http.delete(queue.base).status_code == 204


def test_stats_of_a_queue_that_was_never_used_are_zero_and_make_none(queue: Queue) -> None:
    assert queue.stats() == {}
    assert queue.namespace not in queue.http.get("/mq").json()


def test_a_namespace_is_listed_from_its_first_draft_until_it_is_cleared(queue: Queue) -> None:
    message = queue.draft()
    assert queue.namespace in queue.http.get("/mq").json()
    queue.abandon(message)
    assert queue.namespace in queue.http.get("/mq").json()
    lines = queue.http.get("/mq", headers={"Accept": "application/x-ndjson"})
    assert f'"{queue.namespace}"' in lines.text.split("\n")
    assert queue.http.get("/mq/").status_code == 404


def test_the_empty_namespace_is_one(http: httpx.Client) -> None:
    empty = Queue(http, "")
    message = empty.make(b"1")
    assert empty.order() == message
    assert "" in http.get("/mq").json()
    assert http.delete("/mq/").status_code == 204
    assert empty.stats() == {}


# --- one broker ---------------------------------------------------------------------------------


def test_other_doors_see_the_same_queue(queue: Queue, broker: Broker) -> None:
    async def publish() -> None:
        async with asterism.connect(broker.address) as node:
            await node.publish(queue.namespace, b"from the sdk", max_receivers=1)
            assert (await node.stats(queue.namespace)).waiting == 1

    asyncio.run(publish())
    message = queue.order()
    assert queue.get(message).content == b"from the sdk"
    assert queue.patch(message, "complete") == 204

    async def take(made: str) -> None:
        async with asterism.connect(broker.address) as node:
            inbox = await node.subscribe(queue.namespace, name="sdk")
            delivery = await inbox.receive(10)
            assert (str(delivery.sequence), delivery.payload) == (made, b"from http")
            await delivery.processed(confirm=True)

    asyncio.run(take(queue.make(b"from http")))
    assert queue.stats() == {"completed": 2}


def test_a_queue_that_only_other_doors_use_is_listed_and_counted(
    queue: Queue, broker: Broker
) -> None:
    async def publish() -> None:
        async with asterism.connect(broker.address) as node:
            await node.publish(queue.namespace, b"from the sdk", max_receivers=1)

    asyncio.run(publish())
    label = f'asterism_messages{{namespace="{queue.namespace}",state="waiting"}}'
    assert queue.namespace in queue.http.get("/mq").json()
    assert f"{label} 1" in queue.http.get("/metrics").text.splitlines()
    message = queue.order()
    queue.get(message)
    assert queue.patch(message, "complete") == 204
    assert queue.namespace in queue.http.get("/mq").json()
    assert queue.http.delete(queue.base).status_code == 204
    assert queue.namespace not in queue.http.get("/mq").json()


@pytest.mark.parametrize(
    ("kept", "shown"),
    [
        ("text/plain", "text/plain"),
        ("text/plain\r\nX-Made-Up: 1", "application/octet-stream"),
        ("text/\0plain", "application/octet-stream"),
        ("文/本", "application/octet-stream"),
        ("", "application/octet-stream"),
    ],
)
def test_a_message_of_another_door_can_be_read_whatever_it_says_of_its_type(
    queue: Queue, broker: Broker, kept: str, shown: str
) -> None:
    async def publish() -> None:
        async with asterism.connect(broker.address) as node:
            attributes = {"content-type": kept}
            await node.publish(queue.namespace, b"any", max_receivers=1, attributes=attributes)

    asyncio.run(publish())
    answer = queue.get(queue.order())
    assert (answer.status_code, answer.content) == (200, b"any")
    assert answer.headers["content-type"] == shown
    assert "x-made-up" not in answer.headers


def test_many_clients_at_once_each_get_their_own_messages(queue: Queue) -> None:
    lock, seen = threading.Lock(), []

    def cycle(number: int) -> None:
        with httpx.Client(base_url=str(queue.http.base_url), timeout=20) as client:
            own = Queue(client, queue.namespace)
            own.make(str(number))
            message = own.order()
            payload = own.get(message).text
            assert own.patch(message, "complete") == 204
            with lock:
                seen.append(int(payload))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(cycle, range(60)))
    assert sorted(seen) == list(range(60))
    assert queue.stats() == {"completed": 60}
