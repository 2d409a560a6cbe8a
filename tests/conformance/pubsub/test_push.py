"""Push: what is sent to an endpoint, which answers acknowledge, and what else becomes of it."""

import time
from datetime import datetime
from typing import Any

import pytest
from google.api_core.exceptions import FailedPrecondition, InvalidArgument
from google.protobuf.duration_pb2 import Duration
from google.pubsub_v1.types import PushConfig

from tests.conformance.pubsub.clients import Project, until
from tests.conformance.pubsub.endpoint import Endpoint

pytestmark = pytest.mark.process


def pushing(
    project: Project, endpoint: Endpoint, push: dict[str, Any] | None = None, **settings: Any
) -> tuple[str, str]:
    """A topic and a subscription that pushes."""
    return project.both(push_config={"push_endpoint": endpoint.url, **(push or {})}, **settings)


def beyond(url: str) -> Any:
    return pytest.param(url, marks=pytest.mark.beyond_reference("takes it"))


def stop(project: Project, subscription: str) -> None:
    """Has it pulled from now on."""
    project.subscriber.modify_push_config(subscription=subscription, push_config={})


# --- the envelope ---------------------------------------------------------------------------------


def test_a_message_comes_in_google_s_envelope(project: Project, endpoint: Endpoint) -> None:
    topic, subscription = pushing(project, endpoint)
    (sent,) = project.publish(topic, b"\x00data\xff", colour="blue")
    (request,) = endpoint.wait_for(1)
    envelope = request.message.envelope
    assert request.path == "/push"
    assert request.headers["content-type"].startswith("application/json")
    assert envelope["subscription"] == subscription
    message = envelope["message"]
    assert message["messageId"] == message["message_id"] == sent
    assert message["publishTime"] == message["publish_time"]
    assert datetime.fromisoformat(message["publishTime"]).tzinfo is not None
    assert request.message.data == b"\x00data\xff"
    assert message["attributes"] == {"colour": "blue"}


def test_a_message_without_data_is_pushed(project: Project, endpoint: Endpoint) -> None:
    topic, _ = pushing(project, endpoint)
    project.publish(topic, b"", colour="blue")
    message = endpoint.wait_for(1)[0].message
    assert (message.data, message.attributes) == (b"", {"colour": "blue"})


@pytest.mark.beyond_reference("leaves it out")
def test_an_ordering_key_is_pushed(project: Project, endpoint: Endpoint) -> None:
    topic, _ = pushing(project, endpoint, enable_message_ordering=True)
    project.publish(topic, b"x", ordering_key="a key")
    envelope = endpoint.wait_for(1)[0].message.envelope
    assert envelope["message"]["orderingKey"] == "a key"


@pytest.mark.beyond_reference("counts no attempts")
def test_the_attempt_is_pushed_where_dead_letters_are(project: Project, endpoint: Endpoint) -> None:
    policy = {"dead_letter_topic": project.topic("dead"), "max_delivery_attempts": 5}
    topic, _ = pushing(project, endpoint, dead_letter_policy=policy)
    endpoint.answers(500, 204)
    project.publish(topic, b"x")
    requests = endpoint.wait_for(2)
    assert [one.message.envelope["deliveryAttempt"] for one in requests] == [1, 2]


@pytest.mark.beyond_reference("wraps all the same")
def test_a_message_comes_unwrapped(project: Project, endpoint: Endpoint) -> None:
    topic, _ = pushing(project, endpoint, {"no_wrapper": PushConfig.NoWrapper()})
    project.publish(topic, b"as it is", colour="blue")
    (request,) = endpoint.wait_for(1)
    assert request.body == b"as it is"
    assert "colour" not in request.headers
    assert "x-goog-pubsub-message-id" not in request.headers


@pytest.mark.beyond_reference("wraps all the same")
def test_a_message_comes_unwrapped_with_its_metadata(project: Project, endpoint: Endpoint) -> None:
    unwrapped = {"no_wrapper": PushConfig.NoWrapper(write_metadata=True)}
    topic, subscription = pushing(project, endpoint, unwrapped, enable_message_ordering=True)
    (sent,) = project.publish(topic, b"as it is", ordering_key="a key", colour="blue")
    (request,) = endpoint.wait_for(1)
    assert request.body == b"as it is"
    assert request.headers["colour"] == "blue"
    assert request.headers["x-goog-pubsub-message-id"] == sent
    assert request.headers["x-goog-pubsub-subscription-name"] == subscription
    assert request.headers["x-goog-pubsub-ordering-key"] == "a key"
    assert datetime.fromisoformat(request.headers["x-goog-pubsub-publish-time"]).tzinfo


@pytest.mark.beyond_reference("wraps all the same")
@pytest.mark.parametrize(
    "attribute", ["evil: 1\r\nx", "a\nb", "content-length", "Host", "ü"], ids=ascii
)
def test_an_attribute_can_forge_no_header(
    project: Project, endpoint: Endpoint, attribute: str
) -> None:
    unwrapped = {"no_wrapper": PushConfig.NoWrapper(write_metadata=True)}
    topic, _ = pushing(project, endpoint, unwrapped)
    project.publish(topic, b"data", **{attribute: "7\r\nx-forged: 1"})
    project.publish(topic, b"next", harmless="1")
    requests = endpoint.wait_for(2)
    assert {one.body for one in requests} == {b"data", b"next"}
    assert all("x-forged" not in one.headers and "x" not in one.headers for one in requests)


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [102, 200, 201, 202, 204])
def test_an_answer_acknowledges(project: Project, endpoint: Endpoint, status: int) -> None:
    topic, subscription = pushing(project, endpoint)
    endpoint.answers(status)
    project.publish(topic, b"x")
    endpoint.wait_for(1)
    time.sleep(0.3)
    stop(project, subscription)
    project.nothing(subscription, 0.3)
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(203, marks=pytest.mark.beyond_reference("takes it")),
        301,
        400,
        404,
        429,
        500,
        503,
    ],
)
def test_an_answer_is_a_nack(project: Project, endpoint: Endpoint, status: int) -> None:
    topic, subscription = pushing(project, endpoint)
    endpoint.answers(status, 204)
    project.publish(topic, b"x")
    requests = endpoint.wait_for(2)
    assert requests[0].message.message_id == requests[1].message.message_id
    time.sleep(0.2)
    stop(project, subscription)
    project.nothing(subscription, 0.3)


def test_an_endpoint_that_nobody_listens_at_gets_its_messages_later(
    project: Project, endpoint: Endpoint
) -> None:
    topic = project.topic()
    nowhere = {"push_endpoint": "http://127.0.0.1:9/push"}
    subscription = project.subscription(topic, push_config=nowhere)
    project.publish(topic, b"x")
    time.sleep(0.3)
    project.subscriber.modify_push_config(
        subscription=subscription, push_config={"push_endpoint": endpoint.url}
    )
    assert endpoint.wait_for(1)[0].message.data == b"x"


@pytest.mark.beyond_reference("does not wait for the backoff")
def test_a_push_waits_for_the_backoff_of_its_policy(project: Project, endpoint: Endpoint) -> None:
    policy = {"minimum_backoff": Duration(seconds=1), "maximum_backoff": Duration(seconds=1)}
    topic, _ = pushing(project, endpoint, retry_policy=policy)
    endpoint.answers(500, 500, 204)
    project.publish(topic, b"x")
    at_s = [one.at_s for one in endpoint.wait_for(3)]
    assert at_s[1] - at_s[0] > 0.8
    assert at_s[2] - at_s[1] > 0.8


@pytest.mark.beyond_reference("forwards nothing")
def test_what_an_endpoint_never_takes_becomes_a_dead_letter(
    project: Project, endpoint: Endpoint
) -> None:
    dead = project.topic("dead")
    letters = project.subscription(dead, "letters")
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    topic, _ = pushing(project, endpoint, dead_letter_policy=policy)
    endpoint.answers(500)
    project.publish(topic, b"hopeless")
    assert project.pulled(letters) == [b"hopeless"]
    assert len(endpoint.requests) == 5


# --- many -----------------------------------------------------------------------------------------


def test_many_messages_are_pushed_once_each(project: Project, endpoint: Endpoint) -> None:
    topic, _ = pushing(project, endpoint)
    for at in range(3):
        project.publish(topic, *(b"%d" % (at * 100 + number) for number in range(100)))
    data = [one.message.data for one in endpoint.wait_for(300)]
    assert sorted(map(int, data)) == list(range(300))


def test_ordered_messages_are_pushed_in_order(project: Project, endpoint: Endpoint) -> None:
    topic, _ = pushing(project, endpoint, enable_message_ordering=True)
    endpoint.answers(500, 204)
    for number in range(10):
        project.publish(topic, b"%d" % number, ordering_key="a")
    until(lambda: len({one.message.data for one in endpoint.requests}) == 10)
    data = [int(one.message.data) for one in endpoint.requests]
    assert sorted(set(data), key=data.index) == list(range(10))


@pytest.mark.beyond_reference("sends as many as there are")
def test_a_slow_endpoint_is_sent_a_bounded_number_at_a_time(
    project: Project, endpoint: Endpoint
) -> None:
    topic, _ = pushing(project, endpoint)
    endpoint.hold()
    project.publish(topic, *(b"%d" % number for number in range(1_000)))
    endpoint.wait_for(1)
    time.sleep(0.7)
    assert len(endpoint.requests) < 1_000
    endpoint.let_go()
    until(lambda: len({one.message.data for one in endpoint.requests}) == 1_000)


def test_a_slow_endpoint_holds_up_no_other(project: Project, endpoint: Endpoint) -> None:
    topic, _ = pushing(project, endpoint)
    other = project.subscription(topic, "other")
    endpoint.hold()
    project.publish(topic, *(b"%d" % number for number in range(50)))
    assert len(project.pulled(other, 50)) == 50


# --- changes --------------------------------------------------------------------------------------


def test_a_subscription_is_pulled_again(project: Project, endpoint: Endpoint) -> None:
    topic, subscription = pushing(project, endpoint)
    project.publish(topic, b"pushed")
    endpoint.wait_for(1)
    time.sleep(0.2)
    stop(project, subscription)
    project.publish(topic, b"pulled")
    assert project.pulled(subscription) == [b"pulled"]
    assert len(endpoint.requests) == 1


def test_an_endpoint_is_replaced(project: Project, endpoint: Endpoint) -> None:
    topic, subscription = pushing(project, endpoint)
    with Endpoint() as other:
        project.subscriber.modify_push_config(
            subscription=subscription, push_config={"push_endpoint": other.url}
        )
        project.publish(topic, b"x")
        assert other.wait_for(1)[0].message.data == b"x"
    assert endpoint.requests == []


def test_pushing_ends_with_the_subscription(project: Project, endpoint: Endpoint) -> None:
    topic, subscription = pushing(project, endpoint)
    project.subscriber.delete_subscription(subscription=subscription)
    project.publish(topic, b"x")
    time.sleep(0.5)
    assert endpoint.requests == []


@pytest.mark.beyond_reference("hands it out")
def test_what_is_pushed_cannot_be_pulled(project: Project, endpoint: Endpoint) -> None:
    topic, subscription = pushing(project, endpoint)
    with pytest.raises((FailedPrecondition, InvalidArgument)):
        project.subscriber.pull(subscription=subscription, max_messages=1, timeout=3, retry=None)
    project.publish(topic, b"x")
    endpoint.wait_for(1)


@pytest.mark.parametrize(
    "url", ["nowhere", "ftp://127.0.0.1/", *map(beyond, ("http://", "http://a b/"))]
)
def test_an_endpoint_is_an_address_of_http(project: Project, url: str) -> None:
    _, subscription = project.both()
    with pytest.raises(InvalidArgument):
        project.subscriber.modify_push_config(
            subscription=subscription, push_config={"push_endpoint": url}
        )
