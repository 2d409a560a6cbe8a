"""StreamingPull: by the subscriber of the client library, and request by request."""

import threading
import time

import pytest
from google.api_core.exceptions import InvalidArgument, NotFound
from google.cloud.pubsub_v1.subscriber.message import Message
from google.cloud.pubsub_v1.types import FlowControl
from google.pubsub_v1.types import Subscription

from tests.conformance.pubsub.clients import Project, data_of, until

pytestmark = pytest.mark.process


# --- by the client library ------------------------------------------------------------------------


def test_a_subscriber_gets_what_was_there_and_what_comes(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"before")
    with project.collect(subscription) as collected:
        collected.wait_for(1)
        project.publish(topic, b"after")
        assert collected.wait_for(2) == [b"before", b"after"]
    project.nothing(subscription)


def test_a_callback_has_all_of_a_message(project: Project) -> None:
    topic, subscription = project.both(enable_message_ordering=True)
    (sent,) = project.publish(topic, b"data", ordering_key="key", colour="blue")
    with project.collect(subscription) as collected:
        collected.wait_for(1)
        (message,) = collected.messages
    assert (message.data, dict(message.attributes)) == (b"data", {"colour": "blue"})
    assert (message.message_id, message.ordering_key) == (sent, "key")
    assert message.delivery_attempt is None


def test_a_thousand_messages_come_once_each(project: Project) -> None:
    topic, subscription = project.both()
    with project.collect(subscription) as collected:
        for at in range(10):
            project.publish(topic, *(b"%d" % (at * 100 + number) for number in range(100)))
        data = collected.wait_for(1_000)
    assert sorted(map(int, data)) == list(range(1_000))
    project.nothing(subscription)


def test_what_a_callback_nacks_comes_again(project: Project) -> None:
    topic, subscription = project.both()
    seen: list[str] = []

    def take(message: Message) -> None:
        seen.append(message.message_id)
        if len(seen) < 3:
            message.nack()
        else:
            message.ack()

    project.publish(topic, b"thrice")
    with project.collect(subscription, take) as collected:
        collected.wait_for(3)
    assert len(set(seen)) == 1
    project.nothing(subscription)


def test_two_subscribers_of_a_subscription_split_its_messages(project: Project) -> None:
    topic, subscription = project.both()
    flow = FlowControl(max_messages=5)
    pause = threading.Event()

    def take(message: Message) -> None:
        pause.wait(0.005)
        message.ack()

    with (
        project.collect(subscription, take, flow_control=flow) as one,
        project.collect(subscription, take, flow_control=flow) as other,
    ):
        sent = [b"%d" % number for number in range(200)]
        project.publish(topic, *sent)
        until(lambda: len(one.data) + len(other.data) >= 200)
        assert sorted(one.data + other.data) == sorted(sent)
        assert one.data, "both get some"
        assert other.data, "both get some"


def test_two_subscriptions_get_everything_each(project: Project) -> None:
    topic = project.topic()
    first, second = (project.subscription(topic, name) for name in ("first", "second"))
    with project.collect(first) as one, project.collect(second) as other:
        sent = [b"%d" % number for number in range(100)]
        project.publish(topic, *sent)
        assert sorted(one.wait_for(100)) == sorted(other.wait_for(100)) == sorted(sent)


def test_a_subscriber_of_nothing_is_told(project: Project) -> None:
    collected = project.collect(project.subscription_path("nobody"))
    with pytest.raises(NotFound):
        collected.future.result(20)


def test_a_subscriber_ends_when_its_subscription_is_deleted(project: Project) -> None:
    topic, subscription = project.both()
    collected = project.collect(subscription)
    project.publish(topic, b"x")
    collected.wait_for(1)
    project.subscriber.delete_subscription(subscription=subscription)
    with pytest.raises(NotFound):
        collected.future.result(20)


# --- request by request ---------------------------------------------------------------------------


def test_acknowledgements_on_the_stream_count(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"one", b"two")
    with project.stream(subscription) as stream:
        got = stream.take(2)
        stream.acknowledge(got[:1])
        stream.extend(got[1:], 0)
        again = stream.take(1)
        assert data_of(again) == data_of(got[1:])
        stream.acknowledge(again)
        stream.nothing()
    project.nothing(subscription)


def test_unary_acknowledgements_count_for_a_stream(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"one", b"two")
    with project.stream(subscription) as stream:
        got = stream.take(2)
        project.acknowledge(subscription, got[:1])
        project.nack(subscription, got[1:])
        again = stream.take(1)
        assert data_of(again) == data_of(got[1:])
        project.acknowledge(subscription, again)
        stream.nothing()


def test_a_deadline_is_moved_on_the_stream(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"x")
    with project.stream(subscription) as stream:
        got = stream.take(1)
        stream.extend(got, 1)
        again = stream.take(1, 8)
        assert data_of(again) == [b"x"]
        stream.acknowledge(again)


def test_empty_requests_keep_a_stream_open(project: Project) -> None:
    topic, subscription = project.both()
    with project.stream(subscription) as stream:
        for number in range(3):
            stream.send()
            project.publish(topic, b"%d" % number)
            got = stream.take(1)
            assert data_of(got) == [b"%d" % number]
            stream.acknowledge(got)


def test_a_stream_waits_as_long_as_it_likes(project: Project) -> None:
    topic, subscription = project.both()
    with project.stream(subscription) as stream:
        stream.nothing(1.0)
        project.publish(topic, b"late")
        assert data_of(stream.take(1)) == [b"late"]


def test_a_client_that_says_no_more_has_said_all(project: Project) -> None:
    """Half-closing ends the stream in order; acknowledgements that came before it count."""
    topic, subscription = project.both()
    project.publish(topic, b"x")
    with project.stream(subscription) as stream:
        stream.acknowledge(stream.take(1))
        stream.finish()
        time.sleep(0.3)
    project.nothing(subscription)


@pytest.mark.parametrize("seconds", [9, 601, 0])
@pytest.mark.beyond_reference("takes them")
def test_a_stream_s_deadline_has_bounds(project: Project, seconds: int) -> None:
    _, subscription = project.both()
    with project.stream(subscription, stream_ack_deadline_seconds=seconds) as stream:
        assert isinstance(stream.error(), InvalidArgument)


def test_a_stream_begins_with_its_subscription(project: Project) -> None:
    with project.stream("") as stream:
        assert isinstance(stream.error(), InvalidArgument)
    with project.stream("billing") as stream:
        assert isinstance(stream.error(), InvalidArgument)
    with project.stream(project.subscription_path("nobody")) as stream:
        assert isinstance(stream.error(), NotFound)


@pytest.mark.parametrize(
    "later",
    [
        {"subscription": "projects/p/subscriptions/other"},
        {"max_outstanding_messages": 7},
        {"max_outstanding_bytes": 7},
        {"modify_deadline_ack_ids": ["a", "b"], "modify_deadline_seconds": [10]},
        {"modify_deadline_ack_ids": ["a"], "modify_deadline_seconds": [-1]},
    ],
    ids=lambda later: next(iter(later)),
)
@pytest.mark.beyond_reference("takes some of them")
def test_a_later_request_says_only_what_may_change(
    project: Project, later: dict[str, object]
) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"x")
    with project.stream(subscription) as stream:
        stream.take(1)
        stream.send(**later)
        assert isinstance(stream.error(), InvalidArgument)


@pytest.mark.beyond_reference("says nothing of it, see nodejs-pubsub #1646")
@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("ordering", [False, True])
def test_every_response_says_what_the_subscription_promises(
    project: Project, exactly_once: bool, ordering: bool
) -> None:
    topic, subscription = project.both(
        enable_exactly_once_delivery=exactly_once, enable_message_ordering=ordering
    )
    with project.stream(subscription) as stream:
        for _ in range(2):
            project.publish(topic, b"x")
            while not (response := stream.next()).received_messages:
                pass
            said = response.subscription_properties
            assert said.exactly_once_delivery_enabled is exactly_once
            assert said.message_ordering_enabled is ordering
            stream.acknowledge(list(response.received_messages))


@pytest.mark.beyond_reference("does not change it")
def test_a_stream_hears_of_a_change(project: Project) -> None:
    topic, subscription = project.both()
    with project.stream(subscription) as stream:
        project.subscriber.update_subscription(
            request={
                "subscription": Subscription(name=subscription, enable_exactly_once_delivery=True),
                "update_mask": {"paths": ["enable_exactly_once_delivery"]},
            }
        )
        project.publish(topic, b"x")
        while not (response := stream.next()).received_messages:
            pass
        assert response.subscription_properties.exactly_once_delivery_enabled


def test_a_hundred_streams_share_a_subscription(project: Project) -> None:
    topic, subscription = project.both()
    streams = [project.stream(subscription, max_outstanding_messages=2) for _ in range(100)]
    try:
        project.publish(topic, *(b"%d" % number for number in range(300)))
        seen: set[bytes] = set()
        deadline = time.monotonic() + 20
        while len(seen) < 300 and time.monotonic() < deadline:
            for stream in streams:
                for got in stream.waiting():
                    seen.add(got.message.data)
                    stream.acknowledge([got])
            time.sleep(0.01)
        assert len(seen) == 300
    finally:
        for stream in streams:
            stream.close()
