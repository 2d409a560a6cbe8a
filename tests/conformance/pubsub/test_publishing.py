"""What Publish does with messages, how much it takes, and what it refuses."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.api_core.exceptions import InvalidArgument, NotFound
from google.cloud.pubsub_v1.types import BatchSettings
from google.pubsub_v1.types import PubsubMessage

from tests.conformance.pubsub.clients import Pair, Project, data_of
from tests.conformance.pubsub.conftest import PubSubServer

pytestmark = pytest.mark.process

MESSAGES_MAX = 1_000
ATTRIBUTES_MAX = 100
KEY_BYTES_MAX = 256
VALUE_BYTES_MAX = 1_024


def send(project: Project, topic: str, *messages: PubsubMessage) -> list[str]:
    return list(project.bare.publish(topic=topic, messages=list(messages)).message_ids)


# --- what becomes of a message --------------------------------------------------------------------


def test_every_message_has_an_id_of_its_own(project: Project) -> None:
    topic, subscription = project.both()
    ids = [one for _ in range(5) for one in project.publish(topic, *[b"the same"] * 20)]
    assert len(set(ids)) == 100
    assert all(ids)
    assert {one.message.message_id for one in project.pull(subscription, 100)} == set(ids)


def test_ids_are_in_the_order_of_the_messages(project: Project) -> None:
    topic, subscription = project.both()
    data = [b"%d" % number for number in range(50)]
    by_id = dict(zip(project.publish(topic, *data), data, strict=True))
    for one in project.pull(subscription, len(data)):
        assert by_id[one.message.message_id] == one.message.data


def test_a_message_says_when_it_was_published(project: Project) -> None:
    topic, subscription = project.both()
    before = datetime.now(UTC) - timedelta(seconds=1)
    project.publish(topic, b"now")
    after = datetime.now(UTC) + timedelta(seconds=1)
    (first,) = project.pull(subscription)
    assert before <= first.message.publish_time <= after
    project.nack(subscription, [first])
    (second,) = project.pull(subscription)
    assert second.message.publish_time == first.message.publish_time


def test_what_the_server_says_a_publisher_cannot(project: Project) -> None:
    topic, subscription = project.both()
    (given,) = send(project, topic, PubsubMessage(data=b"x", message_id="mine"))
    (got,) = project.pull(subscription)
    assert got.message.message_id == given != "mine"


def test_an_ordering_key_comes_with_its_message(project: Project) -> None:
    topic, subscription = project.both(enable_message_ordering=True)
    project.publish(topic, b"x", ordering_key="a key")
    (got,) = project.pull(subscription)
    assert got.message.ordering_key == "a key"


def test_a_message_without_subscriptions_is_accepted(project: Project) -> None:
    topic = project.topic()
    assert len(project.publish(topic, b"to nobody")) == 1
    project.nothing(project.subscription(topic))


def test_the_client_batches(server: PubSubServer) -> None:
    pair = Pair(server.address, batch_settings=BatchSettings(max_messages=100, max_latency=0.05))
    try:
        project = server.project(pair)
        topic, subscription = project.both()
        data = [b"%d" % number for number in range(500)]
        ids = [
            future.result(20) for future in [project.publisher.publish(topic, one) for one in data]
        ]
        assert len(set(ids)) == 500
        assert sorted(project.pulled(subscription, 500)) == sorted(data)
    finally:
        pair.close()


# --- limits ---------------------------------------------------------------------------------------


def test_a_request_of_nothing_is_refused(project: Project) -> None:
    topic = project.topic()
    with pytest.raises(InvalidArgument):
        send(project, topic)


@pytest.mark.parametrize("message", [PubsubMessage(), PubsubMessage(ordering_key="k")], ids=str)
def test_a_message_has_data_or_attributes(project: Project, message: PubsubMessage) -> None:
    topic, subscription = project.both()
    with pytest.raises(InvalidArgument):
        send(project, topic, PubsubMessage(data=b"fine"), message)
    project.nothing(subscription)


def test_a_request_has_a_thousand_messages_at_most(project: Project) -> None:
    topic, subscription = project.both()
    data = [b"%04d" % number for number in range(MESSAGES_MAX)]
    assert len(project.publish(topic, *data)) == MESSAGES_MAX
    with pytest.raises(InvalidArgument):
        project.publish(topic, *data, b"one more")
    assert sorted(project.pulled(subscription, MESSAGES_MAX)) == data
    project.nothing(subscription)


def attributes(count: int, key_bytes: int = 10, value_bytes: int = 10) -> dict[str, str]:
    return {f"{number}".zfill(key_bytes): "v" * value_bytes for number in range(count)}


def test_a_message_has_a_hundred_attributes_at_most(project: Project) -> None:
    topic, subscription = project.both()
    most = attributes(ATTRIBUTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX)
    send(project, topic, PubsubMessage(data=b"x", attributes=most))
    (got,) = project.pull(subscription)
    assert dict(got.message.attributes) == most


TOO_MUCH = {
    "attributes": {"attributes": attributes(ATTRIBUTES_MAX + 1)},
    "bytes of a key": {"attributes": attributes(1, KEY_BYTES_MAX + 1)},
    "bytes of a value": {"attributes": attributes(1, 1, VALUE_BYTES_MAX + 1)},
    "bytes of a key, not letters": {"attributes": {"ü" * (KEY_BYTES_MAX // 2 + 1): "v"}},
    "bytes of an ordering key": {"ordering_key": "k" * 1_025},
}


@pytest.mark.beyond_reference("takes them")
@pytest.mark.parametrize("fields", TOO_MUCH.values(), ids=list(TOO_MUCH))
def test_a_message_has_no_more(project: Project, fields: dict[str, Any]) -> None:
    topic, subscription = project.both()
    with pytest.raises(InvalidArgument):
        send(project, topic, PubsubMessage(data=b"x", **fields))
    project.nothing(subscription, 0.2)


@pytest.mark.beyond_reference("takes them")
def test_the_messages_of_a_request_have_one_ordering_key(project: Project) -> None:
    topic = project.topic()
    with pytest.raises(InvalidArgument):
        send(
            project,
            topic,
            PubsubMessage(data=b"x", ordering_key="a"),
            PubsubMessage(data=b"y", ordering_key="b"),
        )


# --- places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["orders", "projects/p/topics", "projects/p/subscriptions/orders"])
def test_a_topic_that_is_no_name_of_one_is_refused(project: Project, path: str) -> None:
    with pytest.raises((InvalidArgument, NotFound)):
        project.publish(path, b"nowhere")


def test_a_message_goes_to_its_own_topic_alone(project: Project) -> None:
    here, there = project.topic("here"), project.topic("there")
    near, far = project.subscription(here, "near"), project.subscription(there, "far")
    project.publish(here, b"for here")
    assert data_of(project.pull(near)) == [b"for here"]
    project.nothing(far)


def test_publishers_by_many_connections_lose_nothing(server: PubSubServer) -> None:
    pairs = [Pair(server.address) for _ in range(4)]
    try:
        first = server.project(pairs[0])
        topic, subscription = first.both()
        began = time.monotonic()
        futures = [
            pair.publisher.publish(topic, b"%d-%d" % (at, number))
            for number in range(50)
            for at, pair in enumerate(pairs)
        ]
        assert len({future.result(20) for future in futures}) == 200
        assert time.monotonic() - began < 20
        assert len(set(first.pulled(subscription, 200))) == 200
    finally:
        for pair in pairs:
            pair.close()
