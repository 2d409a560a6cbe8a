"""REST: the same methods as JSON over HTTP/1.1."""

import base64
from typing import Any

import httpx
import pytest
from google.api_core.exceptions import Conflict, NotFound
from google.auth.credentials import AnonymousCredentials
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherRestTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberRestTransport
from google.pubsub_v1.types import PubsubMessage

from tests.conformance.pubsub.clients import Project
from tests.conformance.pubsub.conftest import PubSubServer

pytestmark = pytest.mark.process


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def refused(answer: httpx.Response) -> tuple[int, str]:
    """The status of HTTP, and that in Google's error."""
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    assert error["message"]
    return answer.status_code, error["status"]


# --- a health check -------------------------------------------------------------------------------


def test_the_root_says_ok(server: PubSubServer) -> None:
    answer = httpx.get(server.rest_url + "/")
    assert (answer.status_code, answer.text.strip()) == (200, "Ok")


# --- topics and messages --------------------------------------------------------------------------


def test_a_program_goes_all_the_way(project: Project, rest: httpx.Client) -> None:
    topic, subscription = project.topic_path("orders"), project.subscription_path("billing")
    assert rest.put(topic).json()["name"] == topic
    made = rest.put(subscription, json={"topic": topic, "ackDeadlineSeconds": 20}).json()
    assert (made["name"], made["topic"], made["ackDeadlineSeconds"]) == (subscription, topic, 20)
    message = {"data": base64_of(b"\xff\x00"), "attributes": {"a": "b"}, "orderingKey": ""}
    (sent,) = rest.post(f"{topic}:publish", json={"messages": [message]}).json()["messageIds"]
    pulled = rest.post(f"{subscription}:pull", json={"maxMessages": 10}).json()
    (got,) = pulled["receivedMessages"]
    assert base64.b64decode(got["message"]["data"]) == b"\xff\x00"
    assert got["message"]["attributes"] == {"a": "b"}
    assert got["message"]["messageId"] == sent
    assert got["message"]["publishTime"].endswith("Z")
    again = {"ackIds": [got["ackId"]], "ackDeadlineSeconds": 0}
    assert rest.post(f"{subscription}:modifyAckDeadline", json=again).json() == {}
    (got,) = rest.post(f"{subscription}:pull", json={"maxMessages": 1}).json()["receivedMessages"]
    assert rest.post(f"{subscription}:acknowledge", json={"ackIds": [got["ackId"]]}).json() == {}
    empty = {"maxMessages": 1, "returnImmediately": True}
    assert rest.post(f"{subscription}:pull", json=empty).json() == {}
    assert rest.delete(subscription).json() == {}
    assert rest.delete(topic).json() == {}


def test_what_comes_by_rest_goes_out_by_grpc_and_back(project: Project, rest: httpx.Client) -> None:
    topic, subscription = project.both()
    body = {"messages": [{"data": base64_of(b"by rest")}]}
    rest.post(f"{topic}:publish", json=body).raise_for_status()
    assert project.pulled(subscription) == [b"by rest"]
    project.publish(topic, b"by grpc")
    (got,) = rest.post(f"{subscription}:pull", json={"maxMessages": 1}).json()["receivedMessages"]
    assert base64.b64decode(got["message"]["data"]) == b"by grpc"
    rest.post(f"{subscription}:acknowledge", json={"ackIds": [got["ackId"]]}).raise_for_status()
    project.nothing(subscription)


def test_lists_have_pages(project: Project, rest: httpx.Client) -> None:
    made = {project.topic(f"topic-{number}") for number in range(5)}
    names: list[str] = []
    token = ""
    for _ in range(3):
        page = rest.get(f"{project.path}/topics", params={"pageSize": 2, "pageToken": token}).json()
        names += [one["name"] for one in page["topics"]]
        token = page.get("nextPageToken", "")
    assert token == ""
    assert set(names) == made


def test_subscriptions_are_listed_and_changed(project: Project, rest: httpx.Client) -> None:
    topic, subscription = project.both()
    listed = rest.get(f"{project.path}/subscriptions").json()["subscriptions"]
    assert [one["name"] for one in listed] == [subscription]
    assert rest.get(f"{topic}/subscriptions").json() == {"subscriptions": [subscription]}
    change = {
        "subscription": {"ackDeadlineSeconds": 77, "name": subscription},
        "updateMask": "ackDeadlineSeconds",
    }
    assert rest.patch(subscription, json=change).json()["ackDeadlineSeconds"] == 77
    assert rest.get(subscription).json()["ackDeadlineSeconds"] == 77


def test_snapshots_and_seek(project: Project, rest: httpx.Client) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"x")
    snapshot = project.snapshot_path("snap")
    made = rest.put(snapshot, json={"subscription": subscription}).json()
    assert (made["name"], made["topic"]) == (snapshot, topic)
    project.pulled(subscription)
    assert rest.post(f"{subscription}:seek", json={"snapshot": snapshot}).json() == {}
    assert project.pulled(subscription) == [b"x"]
    assert rest.get(f"{topic}/snapshots").json() == {"snapshots": [snapshot]}
    assert len(rest.get(f"{project.path}/snapshots").json()["snapshots"]) == 1
    future = {"time": "2100-01-01T00:00:00Z"}
    assert rest.post(f"{subscription}:seek", json=future).json() == {}
    assert rest.delete(snapshot).json() == {}


@pytest.mark.beyond_reference("does not know it")
def test_a_subscription_is_detached(project: Project, rest: httpx.Client) -> None:
    _, subscription = project.both()
    assert rest.post(f"{subscription}:detach").json() == {}
    assert rest.get(subscription).json()["detached"] is True


def test_a_push_endpoint_is_set(project: Project, rest: httpx.Client) -> None:
    _, subscription = project.both()
    config = {"pushConfig": {"pushEndpoint": "http://127.0.0.1:9/push"}}
    assert rest.post(f"{subscription}:modifyPushConfig", json=config).json() == {}
    assert rest.get(subscription).json()["pushConfig"]["pushEndpoint"] == "http://127.0.0.1:9/push"
    assert rest.post(f"{subscription}:modifyPushConfig", json={"pushConfig": {}}).json() == {}


# --- refusals -------------------------------------------------------------------------------------


def test_what_is_not_there_is_404(project: Project, rest: httpx.Client) -> None:
    topic = project.topic_path("nobody")
    assert refused(rest.get(topic)) == (404, "NOT_FOUND")
    assert refused(rest.delete(topic)) == (404, "NOT_FOUND")
    body = {"messages": [{"data": base64_of(b"x")}]}
    assert refused(rest.post(f"{topic}:publish", json=body)) == (404, "NOT_FOUND")
    pull = rest.post(f"{project.subscription_path('nobody')}:pull", json={"maxMessages": 1})
    assert refused(pull) == (404, "NOT_FOUND")


def test_what_is_there_is_409(project: Project, rest: httpx.Client) -> None:
    assert refused(rest.put(project.topic())) == (409, "ALREADY_EXISTS")


def test_what_is_wrong_is_400(project: Project, rest: httpx.Client) -> None:
    topic, subscription = project.both()
    assert refused(rest.put(project.topic_path("1"))) == (400, "INVALID_ARGUMENT")
    nothing: dict[str, Any] = {"messages": [{}]}
    assert refused(rest.post(f"{topic}:publish", json=nothing)) == (400, "INVALID_ARGUMENT")
    none = rest.post(f"{subscription}:pull", json={"maxMessages": 0})
    assert refused(none) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'"x"', b"\xff\xfe", b'{"messages": 7}', b'{"nonsense": 1}', b"{" * 5_000]
)
def test_a_body_that_is_no_request_is_400(
    project: Project, rest: httpx.Client, body: bytes
) -> None:
    topic = project.topic()
    headers = {"content-type": "application/json"}
    answer = rest.post(f"{topic}:publish", content=body, headers=headers)
    assert answer.status_code == 400


def test_a_path_that_leads_nowhere_is_refused(server: PubSubServer, rest: httpx.Client) -> None:
    for path in ("nonsense", "projects/p/nonsense", "projects/p/topics/orders:nonsense"):
        assert rest.get(path).status_code in (400, 404, 405)
    assert httpx.get(server.rest_url + "/v2/projects/p/topics").status_code == 404


def test_a_connection_is_kept(project: Project, server: PubSubServer) -> None:
    topic = project.topic()
    with httpx.Client(base_url=f"{server.rest_url}/v1/") as client:
        for _ in range(20):
            assert client.get(topic).status_code == 200
            assert client.get(project.topic_path("nobody")).status_code == 404


# --- the client library by REST -------------------------------------------------------------------


def test_the_client_library_speaks_rest(project: Project, server: PubSubServer) -> None:
    options: dict[str, Any] = {
        "host": server.rest_url.removeprefix("http://"),
        "credentials": AnonymousCredentials(),  # type: ignore[no-untyped-call]
        "url_scheme": "http",
    }
    publisher = PublisherClient(transport=PublisherRestTransport(**options))
    subscriber = SubscriberClient(transport=SubscriberRestTransport(**options))
    topic, subscription = project.topic_path("orders"), project.subscription_path("billing")
    publisher.create_topic(name=topic)
    with pytest.raises(Conflict):
        publisher.create_topic(name=topic)
    subscriber.create_subscription(name=subscription, topic=topic, ack_deadline_seconds=30)
    publisher.publish(topic=topic, messages=[PubsubMessage(data=b"x", attributes={"a": "b"})])
    (got,) = subscriber.pull(subscription=subscription, max_messages=5).received_messages
    assert (got.message.data, dict(got.message.attributes)) == (b"x", {"a": "b"})
    subscriber.acknowledge(subscription=subscription, ack_ids=[got.ack_id])
    assert [one.name for one in publisher.list_topics(project=project.path)] == [topic]
    subscriber.delete_subscription(subscription=subscription)
    with pytest.raises(NotFound):
        subscriber.get_subscription(subscription=subscription)
