"""Ordering keys: messages of one key come in the order in which they were published."""

import threading

import pytest
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.message import Message
from google.cloud.pubsub_v1.types import FlowControl, PublisherOptions

from tests.conformance.pubsub.clients import Pair, Project, data_of
from tests.conformance.pubsub.conftest import PubSubServer

pytestmark = pytest.mark.process

KEYS = [f"key-{number}" for number in range(5)]


def by_key(messages: list[Message]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for message in messages:
        found.setdefault(message.ordering_key, []).append(int(message.data))
    return found


def test_messages_of_a_key_are_pulled_in_order(project: Project) -> None:
    topic, subscription = project.both(enable_message_ordering=True)
    for number in range(30):
        project.publish(topic, b"%d" % number, ordering_key="a")
    seen: list[int] = []
    while len(seen) < 30:
        got = project.pull(subscription, most=7)
        seen += map(int, data_of(got))
        project.acknowledge(subscription, got)
    assert seen == list(range(30))


def test_messages_of_many_keys_are_streamed_in_order(project: Project) -> None:
    topic, subscription = project.both(enable_message_ordering=True)
    for number in range(20):
        for key in KEYS:
            project.publish(topic, b"%d" % number, ordering_key=key)
    with project.collect(subscription) as collected:
        collected.wait_for(20 * len(KEYS))
    found = by_key(collected.messages)
    assert found == {key: list(range(20)) for key in KEYS}


def test_the_publisher_of_the_client_keeps_the_order(server: PubSubServer) -> None:
    pair = Pair(server.address, publisher_options=PublisherOptions(enable_message_ordering=True))
    try:
        project = server.project(pair)
        topic, subscription = project.both(enable_message_ordering=True)
        futures = [
            project.publisher.publish(topic, b"%d" % number, ordering_key=key)
            for number in range(50)
            for key in KEYS
        ]
        for future in futures:
            future.result(20)
        with project.collect(subscription) as collected:
            collected.wait_for(50 * len(KEYS))
        assert by_key(collected.messages) == {key: list(range(50)) for key in KEYS}
    finally:
        pair.close()


def test_two_subscribers_of_a_subscription_keep_the_order_together(project: Project) -> None:
    topic, subscription = project.both(enable_message_ordering=True)
    lock, seen = threading.Lock(), list[Message]()

    def take(message: Message) -> None:
        with lock:
            seen.append(message)
        message.ack()

    flow = FlowControl(max_messages=3)
    with (
        project.collect(subscription, take, flow_control=flow) as one,
        project.collect(subscription, take, flow_control=flow),
    ):
        for number in range(20):
            for key in KEYS:
                project.publish(topic, b"%d" % number, ordering_key=key)
        while len(seen) < 20 * len(KEYS):
            one.wait_for(1)
    first_times = {key: sorted(set(found), key=found.index) for key, found in by_key(seen).items()}
    assert first_times == {key: list(range(20)) for key in KEYS}


@pytest.mark.beyond_reference("lets those that it sent together overtake it")
def test_a_nacked_message_holds_back_its_key_and_no_other(project: Project) -> None:
    topic, subscription = project.both(enable_message_ordering=True)
    for key in ("a", "b"):
        for number in range(3):
            project.publish(topic, f"{key}{number}".encode(), ordering_key=key)
    order: list[bytes] = []
    nacks = [3]

    def take(message: Message) -> None:
        order.append(bytes(message.data))
        if message.data == b"a0" and nacks[0]:
            nacks[0] -= 1
            message.nack()
        else:
            message.ack()

    with project.collect(subscription, take) as collected:
        collected.wait_for(9)
    assert [one for one in order if one[:1] == b"b"] == [b"b0", b"b1", b"b2"]
    of_a = [one for one in order if one[:1] == b"a"]
    assert of_a[-3:] == [b"a0", b"a1", b"a2"]
    assert of_a.count(b"a0") == 4
    assert of_a.index(b"a1") > 0


def test_a_message_that_is_out_holds_back_the_rest_of_its_key(project: Project) -> None:
    """Whoever else pulls: only what was sent together may be out together."""
    topic, subscription = project.both(enable_message_ordering=True)
    project.publish(topic, b"first", ordering_key="a")
    got = project.pull(subscription)
    project.publish(topic, b"second", ordering_key="a")
    project.publish(topic, b"free", ordering_key="b")
    assert project.pulled(subscription) == [b"free"]
    project.nothing(subscription)
    project.acknowledge(subscription, got)
    assert project.pulled(subscription) == [b"second"]


def test_a_message_that_ran_out_of_time_comes_before_the_rest_of_its_key(project: Project) -> None:
    topic, subscription = project.both(enable_message_ordering=True)
    for number in range(3):
        project.publish(topic, b"%d" % number, ordering_key="a")
    got = project.pull(subscription, most=1)
    assert data_of(got) == [b"0"]
    project.extend(subscription, got, 1)
    seen: list[bytes] = []
    while len(seen) < 3:
        again = project.pull(subscription)
        seen += data_of(again)
        project.acknowledge(subscription, again)
    assert seen == [b"0", b"1", b"2"]


def test_messages_without_a_key_wait_for_nobody(project: Project) -> None:
    topic, subscription = project.both(enable_message_ordering=True)
    project.publish(topic, b"one", b"two", b"three")
    assert len(project.pull(subscription, 3)) == 3


def test_a_subscription_without_ordering_gets_the_keys_all_the_same(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"one", b"two", ordering_key="a")
    got = project.pull(subscription, 2)
    assert {one.message.ordering_key for one in got} == {"a"}
    assert sorted(data_of(got)) == [b"one", b"two"]


def test_a_failed_publish_holds_its_key_until_it_is_resumed(server: PubSubServer) -> None:
    """The client does this by itself; the door has only to refuse, and to take the next."""
    pair = Pair(server.address, publisher_options=PublisherOptions(enable_message_ordering=True))
    try:
        project = server.project(pair)
        topic = project.topic_path("orders")
        refused = project.publisher.publish(topic, b"too early", ordering_key="a")
        assert refused.exception(20) is not None
        project.topic()
        subscription = project.subscription(topic, enable_message_ordering=True)
        held = project.publisher.publish(topic, b"held", ordering_key="a")
        assert isinstance(
            held.exception(20),
            pubsub_v1.publisher.exceptions.PublishToPausedOrderingKeyException,
        )
        project.publisher.resume_publish(topic, "a")
        project.publisher.publish(topic, b"goes on", ordering_key="a").result(20)
        assert project.pulled(subscription) == [b"goes on"]
    finally:
        pair.close()
