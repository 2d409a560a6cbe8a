"""The whole core over HTTP: topics, publishing, pulling, reporting, and streams."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from asterism.testing import Broker
from tests.conformance.http.conftest import PASSWORD, new_name

ADMIN = {"Authorization": f"Bearer {PASSWORD}"}


class Topic:
    """A topic of its own."""

    def __init__(self, http: httpx.Client, name: str) -> None:
        self.http = http
        self.name = name
        self.path = f"/v1/topics/{name}"

    def post(self, below: str, body: object = None, **query: Any) -> httpx.Response:
        return self.http.post(f"{self.path}/{below}", json=body or {}, params=query)

    def manage(self, method: str, below: str, body: object = None) -> httpx.Response:
        """Asks what needs the password."""
        return self.http.request(method, f"{self.path}/{below}", json=body or {}, headers=ADMIN)

    def publish(self, *payloads: str, **wishes: Any) -> list[dict[str, Any]]:
        messages = [{"payload": payload, **wishes} for payload in payloads]
        answer = self.post("messages", {"messages": messages})
        assert answer.status_code == 200, answer.text
        return list(answer.json()["results"])

    def pull(self, receiver: str = "r", **fields: Any) -> list[dict[str, Any]]:
        answer = self.post(f"receivers/{receiver}/pull", fields)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["deliveries"])

    def report(self, receiver: str = "r", **fields: Any) -> list[dict[str, Any]]:
        answer = self.post(f"receivers/{receiver}/reports", fields)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["refused"])

    def receivers(self) -> dict[str, dict[str, Any]]:
        rows = self.http.get(f"{self.path}/receivers").json()["receivers"]
        return {row["name"]: row for row in rows}

    def make(self, **settings: Any) -> "Topic":
        assert self.http.put(self.path, json=settings, headers=ADMIN).status_code == 201
        return self


@pytest.fixture
def topic(http: httpx.Client) -> Topic:
    return Topic(http, new_name("topic"))


@pytest.fixture
def doomed_topic(http: httpx.Client) -> Topic:
    return Topic(http, new_name("topic", is_doomed=True))


def until(holds: Callable[[], bool], s: float = 10) -> None:
    deadline = time.monotonic() + s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- topics -------------------------------------------------------------------------------------


def test_a_topic_is_made_listed_described_configured_cleared_and_deleted(
    doomed_topic: Topic,
) -> None:
    http = doomed_topic.http
    doomed_topic.make(max_attempts=3, overflow={"size": 2, "policy": "reject_new"})
    assert doomed_topic.name in http.get("/v1/topics").json()["topics"]
    told = http.get(doomed_topic.path).json()
    assert told["settings"]["max_attempts"] == 3
    assert set(told["overrides"]) == {"max_attempts", "overflow"}
    changes = {"settings": {"sent_timeout": 2.5}, "inherit": ["max_attempts"]}
    assert http.patch(doomed_topic.path, json=changes, headers=ADMIN).status_code == 204
    told = http.get(doomed_topic.path).json()
    assert (told["settings"]["sent_timeout"], told["settings"]["max_attempts"]) == (2.5, 1)
    doomed_topic.publish("1", "2")
    assert http.get(doomed_topic.path).json()["held"] == 2
    assert doomed_topic.manage("POST", "clear").status_code == 204
    assert http.get(doomed_topic.path).json()["held"] == 0
    assert http.delete(doomed_topic.path, headers=ADMIN).status_code == 204
    assert http.get(doomed_topic.path).status_code == 404


def test_a_topic_that_exists_or_does_not_is_said_with_its_code(topic: Topic) -> None:
    answer = topic.http.get(topic.path)
    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_topic")
    assert answer.json()["message"]
    topic.make()
    answer = topic.http.put(topic.path, headers=ADMIN)
    assert (answer.status_code, answer.json()["code"]) == (409, "topic_exists")


@pytest.mark.parametrize(
    ("method", "below"),
    [
        *(("PUT", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/clear"), ("DELETE", "/parked")),
        *(("DELETE", "/receivers/r"), ("POST", "/receivers/r/seek")),
    ],
)
def test_where_there_is_a_password_what_destroys_or_reconfigures_needs_it(
    doomed_topic: Topic, method: str, below: str
) -> None:
    doomed_topic.publish("1")
    assert doomed_topic.http.put(
        f"{doomed_topic.path}/receivers/r", json={"interests": ["**"]}
    ).is_success
    answer = doomed_topic.http.request(method, doomed_topic.path + below, json={})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert doomed_topic.http.get(doomed_topic.path).json()["held"] == 1
    assert "r" in doomed_topic.receivers()
    if (method, below) != ("PUT", ""):  # it exists
        assert doomed_topic.http.request(
            method, doomed_topic.path + below, json={}, headers=ADMIN
        ).is_success


def test_where_there_is_no_password_anybody_may_change_topics() -> None:
    with Broker(workers=1, doors=("http",)) as broker, httpx.Client() as client:
        path = f"{broker.http_url}/v1/topics/open"
        assert client.put(path).status_code == 201
        assert client.delete(path).status_code == 204


@pytest.mark.parametrize("name", ["a b", "ä/ö", "日" * 85, "a?b#c%d", "~"])
def test_a_topic_has_any_name_percent_encoded(http: httpx.Client, name: str) -> None:
    path = "/v1/topics/" + "".join(f"%{octet:02X}" for octet in name.encode())
    assert http.post(f"{path}/messages", content=b"1").status_code == 200
    assert http.get(path).json()["topic"] == name


@pytest.mark.parametrize("name", ["", "%00", "x" * 256, "%FF"])
def test_a_name_that_cannot_be_one_is_400(http: httpx.Client, name: str) -> None:
    answer = http.get(f"/v1/topics/{name}")
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


# --- publishing ---------------------------------------------------------------------------------


def test_many_messages_are_published_at_once_with_wishes_of_their_own(topic: Topic) -> None:
    topic.publish("before")
    raw = base64.b64encode(b"\xff\x00").decode()
    messages = [
        {"payload": "ä", "subject": "a/b", "attributes": {"k": "v"}, "priority": 1},
        {"payload_base64": raw, "subjects": ["a/c", "a/d"], "expect": "processed", "ttl": 60},
    ]
    answer = topic.post("messages", {"messages": messages})
    assert answer.status_code == 200
    assert [result["sequence"] for result in answer.json()["results"]] == [2, 3]
    first, second = topic.pull(interests=["a/**"])
    assert (first["payload"], first["subjects"], first["attributes"]) == ("ä", ["a/b"], {"k": "v"})
    assert (second["payload_base64"], second["subjects"]) == (raw, ["a/c", "a/d"])
    assert "payload" not in second
    assert (second["attempt"], second["expect"], second["receiver"]) == (1, "processed", "r")


def test_a_raw_body_is_one_message_with_its_wishes_in_the_query(topic: Topic) -> None:
    query: dict[str, Any] = {
        "subject": ["x/1", "x/2"],
        "attribute": ["a:b:c"],
        "expect": "received",
        "priority": 3,
    }
    answer = topic.http.post(
        f"{topic.path}/messages", content=b"\x00raw", params=query, headers={"Content-Type": "x/y"}
    )
    assert answer.status_code == 200
    (found,) = topic.pull(interests=["**"])
    assert base64.b64decode(found["payload_base64"]) == b"\x00raw"
    assert found["subjects"] == ["x/1", "x/2"]
    assert found["attributes"] == {"a": "b:c", "content-type": "x/y"}
    assert found["expect"] == "received"


def test_what_a_message_leaves_open_is_as_its_topic_says(topic: Topic) -> None:
    topic.make(expect="received", max_receivers=1)
    topic.publish("1")
    topic.publish("2", expect="processed", max_receivers="all")
    first, second = topic.pull("r", max=2, interests=["**"])
    assert (first["expect"], second["expect"]) == ("received", "processed")
    assert topic.post("messages", {"messages": [{"payload": "3"}]}, max_receivers="all").is_success
    other = topic.pull("other", max=9, interests=["**"])
    assert [one["payload"] for one in other] == ["2", "3"]


def test_wishes_in_the_query_are_for_all_messages_unless_one_says_otherwise(topic: Topic) -> None:
    messages = [
        {"payload": "1", "priority": 1.0},
        {"payload": "2", "subject": "own", "expect": "sent", "attributes": {"b": "2"}},
    ]
    query = {"subject": "all", "expect": "processed", "attribute": "a:1"}
    assert topic.post("messages", {"messages": messages}, **query).status_code == 200
    first, second = topic.pull(interests=["**"])
    assert (first["subjects"], first["expect"]) == (["all"], "processed")
    assert (second["subjects"], second["expect"]) == (["own"], "sent")
    assert (first["attributes"], second["attributes"]) == ({"a": "1"}, {"a": "1", "b": "2"})


def test_some_refused_is_207_and_all_refused_is_the_first_refusal(topic: Topic) -> None:
    messages = [{"payload": "1"}, {"payload": "2", "subject": "a/*"}]
    answer = topic.post("messages", {"messages": messages})
    assert answer.status_code == 207
    good, bad = answer.json()["results"]
    assert (good["sequence"], bad["code"]) == (1, "bad_subject")
    answer = topic.post("messages", {"messages": messages[1:]})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_subject")
    answer = topic.post("messages", {"messages": [{"payload": "x", "mode": "push"}]})
    assert (answer.status_code, answer.json()["code"]) == (409, "no_receiver")
    large = topic.http.post(f"{topic.path}/messages", content=b"x" * 1_048_577)
    assert (large.status_code, large.json()["code"]) == (413, "too_large")


def test_a_publisher_may_wait_for_the_verdicts(topic: Topic) -> None:
    topic.post("receivers/x/pull", {"interests": ["**"]})
    with ThreadPoolExecutor(1) as pool:
        once = {"payload": "1", "expect": "processed", "max_receivers": 1}
        messages: list[dict[str, Any]] = [once, {**once, "receipt": False}]
        waiting = pool.submit(topic.post, "messages", {"messages": messages}, resolved=10)
        pulled = topic.pull("x", wait=5)
        topic.report("x", processed=[delivery["sequence"] for delivery in pulled])
        first, second = waiting.result(15).json()["results"]
    assert (first["verdict"], first["statuses"]) == ("ok", {"x": "processed"})
    assert "verdict" not in second
    answer = topic.post("messages", {"messages": messages[:1]}, resolved=0.1)
    assert answer.json()["results"][0]["verdict"] == "pending"


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        "{",
        "null",
        "{}",
        '{"messages": []}',
        '{"messages": [1]}',
        '{"messages": [{}]}',
        '{"messages": [{"payload": 1}]}',
        '{"messages": [{"payload": "1", "payload_base64": ""}]}',
        '{"messages": [{"payload_base64": "*"}]}',
        '{"messages": [{"payload_base64": "\\u00e4"}]}',
        '{"messages": [{"payload": "\\ud800"}]}',
        '{"messages": [{"payload": "1", "subjects": "a"}]}',
        '{"messages": [{"payload": "1", "subjects": [1]}]}',
        '{"messages": [{"payload": "1", "subjects": []}]}',
        '{"messages": [{"payload": "1", "subject": {}}]}',
        '{"messages": [{"payload": "1", "attributes": []}]}',
        '{"messages": [{"payload": "1", "attributes": {"a": 1}}]}',
        '{"messages": [{"payload": "1", "mode": []}]}',
        '{"messages": [{"payload": "1", "ttl": 1e400}]}',
        '{"messages": [{"payload": "1", "priority": 1.5}]}',
        '{"messages": [{"payload": "1", "priority": -1}]}',
        '{"messages": [{"payload": "1", "max_receivers": 1' + "0" * 30 + "}]}",
        '{"messages": [{"payload": "1", "expires_at": "soon"}]}',
        '{"messages": [{"payload": "1", "ordering_key": 7}]}',
        '{"messages": [{"payload": "1", "receipt": 1}]}',
        '{"messages": [{"payload": "1", "unknown": 1}]}',
        '{"messages": [{"payload": "1"}], "more": 1}',
        "[" * 100_000,
    ],
)
def test_a_body_that_cannot_be_one_is_400_and_says_why(topic: Topic, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = topic.http.post(f"{topic.path}/messages", content=body, headers=headers)
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] in ("bad_request", "bad_subject")
    assert answer.json()["message"]


@pytest.mark.parametrize(
    "query",
    [
        *("resolved=x", "resolved=-1", "resolved=9999", "a=1", "priority=1&priority=2"),
        *("subject=%FF", "attribute=x", "ttl=nan", "expires_at=x", "max_receivers=1.5"),
        *("mode=x", "subject=a/*"),
    ],
)
def test_a_query_that_cannot_be_one_is_400(topic: Topic, query: str) -> None:
    answer = topic.http.post(f"{topic.path}/messages?{query}", content=b"x")
    assert answer.status_code == 400, answer.text


# --- receivers, pulling, reporting --------------------------------------------------------------


def test_a_receiver_is_made_listed_moved_and_deleted(topic: Topic) -> None:
    topic.make(history="full")
    path = f"{topic.path}/receivers/r"
    assert topic.http.put(path, json={"interests": ["a/*"]}).status_code == 201
    assert topic.http.put(path, json={"interests": ["a/*"]}).status_code == 409
    assert topic.receivers()["r"]["interests"] == ["a/*"]
    topic.publish("1", subject="a/1", expect="processed")
    topic.publish("2", subject="b/1", expect="processed")
    (found,) = topic.pull()
    topic.report(processed=[found["sequence"]])
    assert topic.manage("POST", "receivers/r/seek").json()["sequence"] == 3
    assert topic.manage("POST", "receivers/r/seek", {"sequence": 1}).status_code == 200
    assert topic.http.delete(path, headers=ADMIN).status_code == 204
    answer = topic.http.delete(path, headers=ADMIN)
    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_receiver")


def test_a_receiver_tells_its_lag(topic: Topic) -> None:
    topic.pull(interests=["**"])
    topic.publish("1", "2", "3", expect="processed")
    topic.pull(max=2)
    told = topic.receivers()["r"]
    assert (told["lag"], told["out"], told["counted"]) == (3, 2, True)
    assert told["oldest_ms"] >= 0
    assert topic.report(processed=[1, 2, 3]) != []  # the third was never its own
    described = topic.http.get(f"/v1/topics/{topic.name}", headers=ADMIN).json()
    assert described["lags"]["r"]["lag"] == 1
    assert (described["kept"], described["waiting"]) == (2, 1)


def test_what_was_pulled_stays_out_until_it_is_reported(topic: Topic) -> None:
    topic.publish("1", "2", "3", expect="processed", max_receivers=1)
    pulled = topic.pull(interests=["**"], max=2)
    assert [delivery["payload"] for delivery in pulled] == ["1", "2"]
    assert [delivery["payload"] for delivery in topic.pull()] == ["3"]
    assert topic.pull() == []
    assert topic.receivers()["r"]["in_flight"] == 3
    with httpx.Client(base_url=topic.http.base_url) as another:
        assert Topic(another, topic.name).report(processed=[1, 2], received=[3]) == []
    assert topic.receivers()["r"]["in_flight"] == 1
    assert topic.report(processed=[{"sequence": 3, "attempt": 1}]) == []
    refused = topic.report(processed=[99])
    assert refused == [{"sequence": 99, "status": "processed", "code": "no_such_message"}]
    assert topic.http.get(topic.path).json()["held"] == 0


def test_a_delivery_that_is_given_up_comes_again(topic: Topic) -> None:
    topic.publish("1", expect="processed")
    (first,) = topic.pull(interests=["**"])
    answer = topic.post("receivers/r/extend", {"sequences": [1], "seconds": 60})
    assert answer.json() == {"refused": []}
    topic.post("receivers/r/extend", {"sequences": [1], "seconds": 0})
    (second,) = topic.pull(wait=5)
    assert (first["attempt"], second["attempt"]) == (1, 2)


def test_a_pull_waits_and_one_that_is_hung_up_on_takes_nothing(topic: Topic) -> None:
    assert topic.pull(interests=["**"]) == []
    with pytest.raises(httpx.ReadTimeout):
        topic.http.post(f"{topic.path}/receivers/r/pull", json={"wait": 60}, timeout=0.3)
    topic.publish("1", expect="processed")
    (found,) = topic.pull(wait=5)
    assert found["payload"] == "1"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(topic.pull, wait=10)
        topic.publish("2")
        assert [delivery["payload"] for delivery in waiting.result(10)] == ["2"]


def test_a_receiver_that_was_deleted_and_made_again_can_be_pulled_from(topic: Topic) -> None:
    assert topic.pull(interests=["**"]) == []
    topic.manage("DELETE", "receivers/r")
    assert topic.post("receivers/r/pull").status_code == 404
    topic.publish("1")
    assert [delivery["payload"] for delivery in topic.pull(interests=["**"], wait=5)] == ["1"]


def test_what_failed_is_parked_and_renewed_or_abandoned(topic: Topic) -> None:
    topic.publish("1", "2", "3", expect="processed", max_receivers=1)
    topic.pull(interests=["**"])
    failed = [{"sequence": 1, "reason": "why"}, {"sequence": 2, "attempt": 1}, 3]
    assert topic.report(failed=failed) == []
    rows = topic.http.get(f"{topic.path}/parked").json()["parked"]
    assert [(row["sequence"], row["reason"]) for row in rows] == [(1, "why"), (2, ""), (3, "")]
    assert topic.http.get(f"{topic.path}/messages/1").json()["payload"] == "1"
    after = topic.http.get(f"{topic.path}/parked", params={"after": rows[1]["position"]})
    assert [row["sequence"] for row in after.json()["parked"]] == [3]
    assert topic.post("messages/1/renew").status_code == 204
    assert topic.post("messages/1/renew").status_code == 409
    assert [delivery["sequence"] for delivery in topic.pull(wait=5)] == [1]
    assert topic.http.delete(f"{topic.path}/messages/2").status_code == 204
    assert topic.http.delete(f"{topic.path}/messages/2").status_code == 404
    assert topic.post("parked/renew").status_code == 204
    assert [delivery["sequence"] for delivery in topic.pull(wait=5)] == [3]
    topic.report(failed=[3])
    assert topic.manage("DELETE", "parked").status_code == 204
    assert topic.http.get(f"{topic.path}/parked").json()["parked"] == []


@pytest.mark.parametrize(
    ("below", "body"),
    [
        ("receivers/r/pull", {"max": 0}),
        ("receivers/r/pull", {"max": 1_001}),
        ("receivers/r/pull", {"wait": -1}),
        ("receivers/r/pull", {"wait": "1"}),
        ("receivers/r/pull", {"interests": "a"}),
        ("receivers/r/pull", {"interests": ["//"]}),
        ("receivers/~r/pull", {"interests": ["a"]}),
        ("receivers/r/reports", {"processed": 1}),
        ("receivers/r/reports", {"processed": [10**30]}),
        ("receivers/r/reports", {"processed": [True]}),
        ("receivers/r/reports", {"processed": [{"sequence": 1, "reason": "x"}]}),
        ("receivers/r/reports", {"failed": [{"reason": "x"}]}),
        ("receivers/r/extend", {"sequences": [], "seconds": 1}),
        ("receivers/r/extend", {"sequences": [1], "seconds": 10**30}),
        ("receivers/r/seek", {"sequence": 1, "time": 1}),
        ("receivers/r/seek", {"time": "now"}),
        ("messages/x/renew", {}),
        ("messages/0/renew", {}),
    ],
)
def test_what_cannot_be_asked_is_400(topic: Topic, below: str, body: object) -> None:
    topic.publish("1")
    answer = topic.http.post(f"{topic.path}/{below}", json=body, headers=ADMIN)
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] in ("bad_request", "bad_interest")


def test_a_setting_that_cannot_be_one_is_400(topic: Topic) -> None:
    for settings in ({"max_attempts": 10**30}, {"no": 1}, {"sent_timeout": 0}, {"overflow": 1}):
        answer = topic.http.put(topic.path, json=settings, headers=ADMIN)
        assert answer.status_code == 400
    bodies: list[Any] = [{"settings": []}, {"inherit": ["no"]}, {"inherit": "unique"}, {"a": 1}]
    for body in bodies:
        assert topic.http.patch(topic.path, json=body, headers=ADMIN).status_code == 400
    assert topic.http.put(topic.path, content=b"{}", headers=ADMIN).status_code == 415


def test_a_path_or_method_that_there_is_not_has_a_code_too(topic: Topic) -> None:
    answer = topic.http.get(f"{topic.path}/nothing")
    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_path")
    answer = topic.http.get(f"{topic.path}/clear")
    assert (answer.status_code, answer.json()["code"]) == (405, "no_such_method")


# --- server-sent events -------------------------------------------------------------------------


Event = tuple[str, dict[str, Any]]


def events(answer: httpx.Response) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            told = json.loads(fields["data"])
            assert fields.get("id", "") == str(told.get("sequence", ""))
            yield fields["event"], told
            fields = {}


def test_deliveries_come_as_events_until_the_client_hangs_up(topic: Topic) -> None:
    query: dict[str, Any] = {"interest": ["a/*", "b"], "name": "s"}
    with topic.http.stream("GET", f"{topic.path}/subscribe", params=query) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        coming = events(answer)
        assert next(coming) == ("subscribed", {"topic": topic.name, "receiver": "s"})
        assert topic.receivers()["s"]["online"]
        topic.publish("1", subject="a/1", expect="processed")
        topic.publish("not for it", subject="c")
        topic.publish("2", subject="b", expect="sent")
        first, second = next(coming), next(coming)
        assert [kind for kind, _ in (first, second)] == ["message", "message"]
        assert (first[1]["payload"], second[1]["payload"]) == ("1", "2")
        assert topic.receivers()["s"]["in_flight"] == 1
        assert topic.report("s", processed=[first[1]["sequence"]]) == []
        assert topic.receivers()["s"]["in_flight"] == 0
        topic.publish("3", subject="a/1", expect="processed")
        next(coming)
    until(lambda: not topic.receivers()["s"]["online"])
    (again,) = topic.pull("s", wait=5)
    assert (again["payload"], again["attempt"]) == ("3", 2)


def test_a_stream_may_count_what_is_written_as_processed(topic: Topic) -> None:
    query: dict[str, Any] = {"auto": "true", "credit": 1}
    with topic.http.stream("GET", f"{topic.path}/subscribe", params=query) as answer:
        coming = events(answer)
        name = next(coming)[1]["receiver"]
        assert name.startswith("~")
        topic.publish(*map(str, range(10)), expect="processed", max_receivers=1)
        assert [next(coming)[1]["payload"] for _ in range(10)] == list(map(str, range(10)))
        until(lambda: topic.http.get(topic.path).json()["held"] == 0)
    until(lambda: name not in topic.receivers())


def test_credit_bounds_what_is_out_and_a_report_by_name_gives_it_back(topic: Topic) -> None:
    with topic.http.stream("GET", f"{topic.path}/subscribe", params={"credit": 2}) as answer:
        coming = events(answer)
        name = next(coming)[1]["receiver"]
        topic.publish(*map(str, range(5)), expect="processed")
        next(coming), next(coming)
        assert topic.receivers()[name]["in_flight"] == 2
        assert topic.report(name, processed=[1], failed=[2]) == []
        assert [next(coming)[1]["sequence"] for _ in range(2)] == [3, 4]


def test_a_stream_ends_with_the_topic(doomed_topic: Topic) -> None:
    doomed_topic.make()
    with doomed_topic.http.stream("GET", f"{doomed_topic.path}/subscribe") as answer:
        coming = events(answer)
        next(coming)
        doomed_topic.http.delete(doomed_topic.path, headers=ADMIN)
        kind, told = next(coming)
        assert (kind, told["code"]) == ("error", "topic_gone")
        assert list(coming) == []


@pytest.mark.parametrize(
    "query",
    [
        *("credit=x", "credit=-1", "credit=10001", "auto=1", "interest=//", "durable=true"),
        *("no=1", "name=" + "x" * 256, "sent_timeout=0", "name=a&name=b", "name=~a"),
        "name=a&group=b",
    ],
)
def test_a_subscription_that_cannot_be_one_is_400(topic: Topic, query: str) -> None:
    answer = topic.http.get(f"{topic.path}/subscribe?{query}")
    assert answer.status_code == 400, answer.text
    with pytest.raises(InvalidStatus) as refused:
        socket(topic, query)
    assert refused.value.response.status_code == 400
    assert json.loads(refused.value.response.body or b"")["code"] in ("bad_request", "bad_interest")


# --- WebSockets ---------------------------------------------------------------------------------


def socket(topic: Topic, query: str = "") -> ClientConnection:
    base = str(topic.http.base_url).rstrip("/").replace("http://", "ws://")
    return connect(f"{base}{topic.path}/subscribe?{query}", proxy=None)


def heard(connection: ClientConnection) -> dict[str, Any]:
    return dict(json.loads(connection.recv(10)))


def test_a_websocket_takes_reports_and_credit(topic: Topic) -> None:
    with socket(topic, "name=w&credit=1") as talk:
        assert heard(talk) == {"event": "subscribed", "topic": topic.name, "receiver": "w"}
        topic.publish(*map(str, range(6)), expect="processed")
        first = heard(talk)
        assert first["payload"] == "0"
        with pytest.raises(TimeoutError):
            talk.recv(0.2)
        talk.send(json.dumps({"credit": 2}))
        second, third = heard(talk), heard(talk)
        assert (second["payload"], third["payload"]) == ("1", "2")
        failed = {"sequence": second["sequence"], "reason": "x"}
        talk.send(json.dumps({"processed": [first["sequence"]], "failed": [failed]}))
        told: list[dict[str, Any]] = []
        while len(told) < 3:
            told.append(heard(talk))
            assert told[-1].get("refused", []) == []
        kinds = sorted(frame["event"] for frame in told)
        assert kinds == ["message", "message", "reported"]
        talk.send(json.dumps({"processed": [77]}))
        assert heard(talk)["refused"][0]["code"] == "no_such_message"
    until(lambda: not topic.receivers()["w"]["online"])
    assert {delivery["payload"] for delivery in topic.pull("w", wait=5)} >= {"2", "3", "4"}


def test_a_websocket_keeps_what_it_was_sent_for_as_long_as_it_lives(topic: Topic) -> None:
    with socket(topic, "name=w&sent_timeout=0.3&received_timeout=0.3") as talk:
        heard(talk)
        topic.publish("1", expect="processed")
        first = heard(talk)
        with pytest.raises(TimeoutError):
            talk.recv(1.5)  # five times its deadline
        talk.send(json.dumps({"processed": [first["sequence"]]}))
        told = heard(talk)
        assert (told["event"], told["refused"]) == ("reported", [])


def test_what_was_pulled_has_its_deadline_and_comes_again(topic: Topic) -> None:
    topic.publish("1", expect="processed")
    answer = topic.http.put(
        f"{topic.path}/receivers/r", json={"interests": ["**"], "sent_timeout": 0.3}
    )
    assert answer.status_code < 300, answer.text
    assert [held["attempt"] for held in topic.pull("r", wait=5)] == [1]
    assert [held["attempt"] for held in topic.pull("r", wait=10)] == [2]


def test_a_bad_frame_is_told_and_the_conversation_goes_on(topic: Topic) -> None:
    with socket(topic) as talk:
        heard(talk)
        for bad in ("", "{", "[]", '{"no": 1}', '{"credit": 0}', '{"processed": ["x"]}', b"\xff"):
            talk.send(bad)
            told = heard(talk)
            assert (told["event"], told["code"]) == ("error", "bad_request")
        topic.publish("1")
        assert heard(talk)["payload"] == "1"


def test_a_websocket_is_closed_when_the_topic_is_gone(doomed_topic: Topic) -> None:
    doomed_topic.make()
    with socket(doomed_topic, "auto=true") as talk:
        heard(talk)
        doomed_topic.http.delete(doomed_topic.path, headers=ADMIN)
        assert heard(talk)["code"] == "topic_gone"
        with pytest.raises(ConnectionClosed):
            talk.recv(10)


def test_there_is_no_websocket_elsewhere(topic: Topic) -> None:
    base = str(topic.http.base_url).rstrip("/").replace("http://", "ws://")
    with pytest.raises(InvalidStatus) as refused:
        connect(f"{base}/mq/a/messages", proxy=None)
    assert refused.value.response.status_code == 404


def test_streams_end_when_the_process_is_stopped() -> None:
    with Broker(workers=1, doors=("http",)) as broker:
        client = httpx.Client(base_url=broker.http_url, timeout=20)
        topic = Topic(client, "t")
        with client.stream("GET", f"{topic.path}/subscribe") as answer, socket(topic) as talk:
            coming = events(answer)
            next(coming), heard(talk)
            begun = time.monotonic()
            broker.stop()
            assert list(coming) == []
            with pytest.raises(ConnectionClosed):
                talk.recv(10)
            assert time.monotonic() - begun < 10
        client.close()


# --- the document -------------------------------------------------------------------------------


def test_every_path_is_described_with_its_bodies(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    publish = paths["/v1/topics/{topic}/messages"]["post"]
    assert set(publish["requestBody"]["content"]) == {
        "application/json",
        "application/octet-stream",
    }
    for path, methods in paths.items():
        for method in ("post", "put", "patch"):
            sent = methods.get(method, {}).get("requestBody")
            if sent is not None and path.startswith("/v1"):
                assert sent["content"]["application/json"]["schema"], path
