"""Over HTTP too: requests and their replies, receipts that are fetched later, keys, status."""

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from asterism import limits
from asterism.testing import Broker
from tests.conformance.http.conftest import PASSWORD, Door, doomed_name, new_name
from tests.conformance.http.test_v1 import Topic, events, until

pytestmark = pytest.mark.process

ONCE: dict[str, Any] = {"expect": "processed", "max_receivers": 1}


@pytest.fixture
def topic(http: httpx.Client) -> Topic:
    return Topic(http, new_name("asked"))


@pytest.fixture(scope="module")
def second(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A second door on the same broker."""
    with Door(tmp_path_factory.mktemp("second"), broker.address, PASSWORD) as door:
        yield door


# --- request and reply --------------------------------------------------------------------------


def answer_one(topic: Topic, is_ready: threading.Event, **sent: Any) -> dict[str, Any]:
    """Subscribes, and answers the first request that comes; the request."""
    with topic.http.stream("GET", f"{topic.path}/subscribe", params={"auto": "true"}) as stream:
        coming = events(stream)
        next(coming)
        is_ready.set()
        _, asked = next(coming)
        target = asked["reply_to"]
        answer = topic.http.post(
            f"/v1/topics/{target['topic']}/reply", params={"subject": target["subject"]}, **sent
        )
        assert answer.status_code == 204, answer.text
        return asked


def test_a_request_waits_for_the_answer_that_a_consumer_gives(topic: Topic) -> None:
    is_ready = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(answer_one, topic, is_ready, content=b"\xffpong")
        assert is_ready.wait(20)
        answer = topic.http.post(
            f"{topic.path}/request",
            content=b"ping",
            params={"timeout": 15, "subject": "a/b", "attribute": "k:v"},
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["payload_base64"] == "/3Bvbmc="
        asked = answering.result(20)
    assert (asked["payload"], asked["subjects"], asked["mode"]) == ("ping", ["a/b"], "push")
    assert asked["attributes"]["k"] == "v"


def test_a_request_and_its_answer_may_be_json_and_go_through_two_doors(
    topic: Topic, second: Door
) -> None:
    is_ready = threading.Event()
    with ThreadPoolExecutor(1) as pool, second.client() as other:
        sent = {"payload": "pong", "attributes": {"k": "v"}}
        answering = pool.submit(answer_one, topic, is_ready, json=sent)
        assert is_ready.wait(20)
        answer = other.post(f"{topic.path}/request", json={"payload": "ping", "subject": "x"})
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert (told["payload"], told["attributes"]) == ("pong", {"k": "v"})
        assert answering.result(20)["payload"] == "ping"


def test_a_request_that_nobody_takes_is_409_and_one_that_nobody_answers_504(topic: Topic) -> None:
    answer = topic.post("request", {"payload": "x"})
    assert (answer.status_code, answer.json()["code"]) == (409, "no_receiver")
    with topic.http.stream("GET", f"{topic.path}/subscribe") as stream:
        coming = events(stream)
        next(coming)
        answer = topic.post("request", {"payload": "x"}, timeout=0.2)
        assert (answer.status_code, answer.json()["code"]) == (504, "no_answer")
        target = next(coming)[1]["reply_to"]
    late = topic.http.post(
        f"/v1/topics/{target['topic']}/reply", params={"subject": target["subject"]}, content=b"x"
    )
    assert late.status_code == 204  # its door is there, though nobody waits any more
    gone = topic.http.post("/v1/topics/asterism.replies/reply?subject=reply/x/y", content=b"x")
    assert (gone.status_code, gone.json()["code"]) == (409, "no_receiver")


def test_a_message_that_asks_for_no_answer_has_no_reply_to(topic: Topic) -> None:
    topic.publish("1")
    (found,) = topic.pull(interests=["**"])
    assert "reply_to" not in found


@pytest.mark.parametrize(
    ("below", "query", "body"),
    [
        ("request", "timeout=x", {"payload": "x"}),
        ("request", "timeout=301", {"payload": "x"}),
        ("request", "mode=durable", {"payload": "x"}),
        ("request", "", {"payload": "x", "mode": "durable"}),
        ("request", "", {}),
        ("reply", "", {"payload": "x"}),
        ("reply", "timeout=1", {"payload": "x", "subject": "a"}),
    ],
)
def test_a_request_that_cannot_be_one_is_400(
    topic: Topic, below: str, query: str, body: object
) -> None:
    answer = topic.http.post(f"{topic.path}/{below}?{query}", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] == "bad_request"


# --- receipts -----------------------------------------------------------------------------------


def verdict(answer: httpx.Response) -> tuple[str, dict[str, str]]:
    assert answer.status_code == 200, answer.text
    return answer.json()["verdict"], answer.json()["statuses"]


def test_a_receipt_is_fetched_later_through_any_door(topic: Topic, second: Door) -> None:
    topic.pull(interests=["**"])
    (published,) = topic.publish("1", receipt=True, **ONCE)
    assert "verdict" not in published
    path = f"{topic.path}/receipts/{published['receipt']}"
    assert verdict(topic.http.get(path)) == ("pending", {})
    with second.client() as other, ThreadPoolExecutor(2) as pool:
        assert verdict(other.get(path)) == ("pending", {})
        waiting = [pool.submit(each.get, f"{path}?wait=15") for each in (topic.http, other)]
        (found,) = topic.pull(wait=5)
        topic.report(processed=[found["sequence"]])
        for future in waiting:
            assert verdict(future.result(20)) == ("ok", {"r": "processed"})
        assert verdict(other.get(path)) == ("ok", {"r": "processed"})


def test_a_receipt_outlives_the_door_that_gave_it(topic: Topic, broker: Broker) -> None:
    raw = topic.http.post(f"{topic.path}/messages", content=b"1", params={"receipt": "true"})
    (published,) = raw.json()["results"]
    broker.restart("http")
    path = f"{topic.path}/receipts/{published['receipt']}"
    until(lambda: answers(topic.http))
    assert verdict(topic.http.get(path)) == ("pending", {})
    topic.http.delete(f"{topic.path}/messages/{published['sequence']}")
    assert verdict(topic.http.get(path, params={"wait": 10})) == ("dropped", {})


def answers(http: httpx.Client) -> bool:
    try:
        return http.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def test_many_receipts_are_fetched_at_once_in_order(topic: Topic) -> None:
    topic.pull(interests=["**"])
    published = [topic.publish(str(number), receipt=True, **ONCE)[0] for number in range(3)]
    published += topic.publish("3", "4", receipt=True, **ONCE)
    topic.pull()
    topic.report(processed=[1, 5], failed=[3])
    receipts = [result["receipt"] for result in reversed(published)]
    unknown = "0" * 32 + "-1-1"
    answer = topic.post("receipts", {"receipts": [*receipts, unknown]})
    found = [(row["sequence"], row["verdict"]) for row in answer.json()["receipts"]]
    assert found == [
        *((5, "ok"), (4, "pending"), (3, "failed"), (2, "pending"), (1, "ok")),
        (1, "unknown"),
    ]
    assert [row["receipt"] for row in answer.json()["receipts"]] == [*receipts, unknown]


def test_a_publisher_that_waited_in_vain_has_a_receipt_to_ask_by(topic: Topic) -> None:
    answer = topic.post("messages", {"messages": [{"payload": "1", **ONCE}]}, resolved=0.1)
    (published,) = answer.json()["results"]
    assert published["verdict"] == "pending"
    (found,) = topic.pull(interests=["**"])
    topic.report(processed=[found["sequence"]])
    path = f"{topic.path}/receipts/{published['receipt']}"
    assert verdict(topic.http.get(path)) == ("ok", {"r": "processed"})


@pytest.mark.parametrize("receipt", ["x", "0" * 32, "0" * 32 + "-1-" + "9" * 19, "%FF"])
def test_a_receipt_that_cannot_be_one_is_400(topic: Topic, receipt: str) -> None:
    topic.publish("1")
    assert topic.http.get(f"{topic.path}/receipts/{receipt}").status_code == 400
    answer = topic.post("receipts", {"receipts": [receipt]})
    assert answer.status_code == 400


# --- keys ---------------------------------------------------------------------------------------


def keyed(http: httpx.Client, topic: Topic, key: str, body: object, **query: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key}
    return http.post(f"{topic.path}/messages", json=body, headers=headers, params=query)


def test_the_same_key_stores_once_through_any_door(topic: Topic, second: Door) -> None:
    body = {"messages": [{"payload": "1"}, {"payload": "2", "subject": "a/*"}, {"payload": "3"}]}
    first = keyed(topic.http, topic, "k", body)
    assert first.status_code == 207
    with second.client() as other, ThreadPoolExecutor(8) as pool:
        doors = [topic.http, other] * 8
        for again in pool.map(lambda door: keyed(door, topic, "k", body), doors):
            assert (again.status_code, again.json()) == (207, first.json())
    assert topic.http.get(topic.path).json()["held"] == 2
    stored = topic.http.get(f"{topic.path}/messages/1").json()
    assert stored["id"] == first.json()["results"][0]["id"]
    assert keyed(topic.http, topic, "another", body).json()["results"][0]["sequence"] == 3


def test_a_key_is_of_one_topic(topic: Topic) -> None:
    other = Topic(topic.http, new_name("topic"))
    body = {"messages": [{"payload": "1"}]}
    for each in (topic, other):
        (result,) = keyed(topic.http, each, "k", body).json()["results"]
        assert result["sequence"] == 1
        assert each.http.get(each.path).json()["held"] == 1


def test_the_same_key_stores_once_though_its_door_is_killed(
    topic: Topic, second: Door, tmp_path_factory: pytest.TempPathFactory, broker: Broker
) -> None:
    """Whatever the door that was killed had done: what is said again is stored once in all."""
    body = {"messages": [{"payload": "1"}]}
    keys = [f"key-{number}" for number in range(200)]
    with Door(tmp_path_factory.mktemp("killed"), broker.address, PASSWORD) as killed:
        done = threading.Semaphore(0)

        def publish(key: str) -> None:
            with killed.client() as http:
                try:
                    keyed(http, topic, key, body)
                    done.release()
                except httpx.TransportError:
                    return

        with ThreadPoolExecutor(8) as pool:
            running = [pool.submit(publish, key) for key in keys]
            for _ in range(20):
                assert done.acquire(timeout=20)
            killed.process.send_signal(signal.SIGKILL)
            for future in running:
                future.result(30)
    with second.client() as http:
        sequences = {keyed(http, topic, key, body).json()["results"][0]["sequence"] for key in keys}
    assert len(sequences) == len(keys)
    assert topic.http.get(topic.path).json()["held"] == len(keys)


def test_a_key_gives_the_verdicts_again(topic: Topic) -> None:
    body = {"messages": [{"payload": "1", **ONCE}]}
    (first,) = keyed(topic.http, topic, "k", body, resolved=0).json()["results"]
    assert first["verdict"] == "pending"
    topic.pull(interests=["**"])
    topic.report(processed=[1])
    (again,) = keyed(topic.http, topic, "k", body, resolved=5).json()["results"]
    assert (again["verdict"], again["receipt"]) == ("ok", first["receipt"])


def test_a_refusal_stays_with_its_key_and_says_so(topic: Topic) -> None:
    topic.make(overflow={"size": 1, "policy": "reject_new"})
    topic.publish("full")
    body = {"messages": [{"payload": "1"}]}
    for _ in range(2):
        answer = keyed(topic.http, topic, "k", body)
        assert (answer.status_code, answer.json()["code"]) == (409, "overflow")
        assert "try again with another" in answer.json()["message"]
        assert topic.manage("POST", "clear").is_success
    assert keyed(topic.http, topic, "k2", body).status_code == 200


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_a_key_that_cannot_be_one_is_400(topic: Topic, key: str) -> None:
    answer = keyed(topic.http, topic, key, {"messages": [{"payload": "1"}]})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


# --- a bound in bytes ---------------------------------------------------------------------------


def test_a_pull_answers_with_no_more_bytes_than_were_asked_for(topic: Topic) -> None:
    topic.make(max_payload=1_000)
    topic.publish(*["x" * 1_000] * 20, **ONCE)
    first = topic.pull(interests=["**"], max_bytes=3_500)
    assert [delivery["sequence"] for delivery in first] == [1, 2, 3, 4]  # the last goes past it
    assert [delivery["sequence"] for delivery in topic.pull(max_bytes=1)] == [5]
    assert topic.receivers()["r"]["in_flight"] == 5  # nothing was taken and not answered
    assert len(topic.pull(max_bytes=5_000, max=2)) == 2
    assert len(topic.pull()) == 13


def test_small_deliveries_are_pulled_up_to_the_number_though_they_might_be_large(
    topic: Topic,
) -> None:
    topic.publish(*map(str, range(300)), **ONCE)
    found = topic.pull(interests=["**"], max=250)
    assert [delivery["payload"] for delivery in found] == list(map(str, range(250)))
    assert len(topic.pull(max=250)) == 50


# --- status, names ------------------------------------------------------------------------------


def test_the_status_of_every_process_is_told(http: httpx.Client, broker: Broker) -> None:
    told = http.get("/v1/status").json()
    pids = broker.pids()
    assert [told["frontend"]["pid"]] == pids["frontend"]
    assert [told["interests"]["pid"]] == pids["interests"]
    assert [worker["pid"] for worker in told["workers"]] == pids["worker"]


@pytest.mark.parametrize("character", ["y", ".", "/", "%", "é", "月", "😀"])
def test_a_name_of_255_bytes_works_on_every_path_below_a_topic(
    http: httpx.Client, character: str
) -> None:
    room = limits.NAME_BYTES_MAX - 4
    filled = character * (room // len(character.encode()))
    name = doomed_name(filled + "x" * (room - len(filled.encode())))
    assert len(name.encode()) == limits.NAME_BYTES_MAX
    encoded = "".join(f"%{octet:02X}" for octet in name.encode())
    long = Topic(http, encoded)
    assert http.put(long.path, headers={"Authorization": f"Bearer {PASSWORD}"}).status_code == 201
    (published,) = long.publish("1", receipt=True, subject="s", **ONCE)
    (found,) = long.pull(encoded, interests=["**"])
    assert (found["topic"], found["receiver"]) == (name, name)
    assert long.report(encoded, processed=[found["sequence"]]) == []
    path = f"{long.path}/receipts/{published['receipt']}"
    assert verdict(http.get(path)) == ("ok", {name: "processed"})
    assert list(long.receivers()) == [name]
    with http.stream("GET", f"{long.path}/subscribe") as stream:
        assert next(events(stream))[1]["topic"] == name
    assert name in http.get("/v1/topics").json()["topics"]
    deleted = http.delete(long.path, headers={"Authorization": f"Bearer {PASSWORD}"})
    assert deleted.status_code == 204


def test_the_document_tells_of_the_key(http: httpx.Client) -> None:
    document = json.loads(http.get("/openapi.json").content)
    publish = document["paths"]["/v1/topics/{topic}/messages"]["post"]
    assert ("Idempotency-Key", "header") in [
        (held["name"], held["in"]) for held in publish["parameters"]
    ]
