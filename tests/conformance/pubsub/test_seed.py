"""The API as its first description has it, paragraph by paragraph: messages are published to a
topic, stay with each of its subscriptions until they are acknowledged, and are pulled or pushed.
"""

import threading

import pytest
from google.api_core.exceptions import AlreadyExists, NotFound
from google.pubsub_v1.types import PubsubMessage

from tests.conformance.pubsub.clients import Project, data_of
from tests.conformance.pubsub.endpoint import Endpoint

pytestmark = pytest.mark.process

# --- data model -----------------------------------------------------------------------------------


def test_the_name_of_a_topic_is_unique(project: Project) -> None:
    topic = project.topic()
    with pytest.raises(AlreadyExists):
        project.topic()
    assert project.publisher.get_topic(topic=topic).name == topic


def test_a_subscription_keeps_what_still_has_to_be_acknowledged(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"one", b"two")
    got = project.pull(subscription, 2)
    project.acknowledge(subscription, got[:1])
    project.nack(subscription, got[1:])
    assert project.pulled(subscription) == data_of(got[1:])
    project.nothing(subscription)


def test_the_data_of_a_message_is_opaque(project: Project) -> None:
    topic, subscription = project.both()
    data = [bytes(range(256)), b"\x00", "très bien".encode(), b"{not json"]
    project.publish(topic, *data)
    assert sorted(project.pulled(subscription, len(data))) == sorted(data)


def test_attributes_are_delivered_unmodified_with_the_data(project: Project) -> None:
    topic, subscription = project.both()
    attributes = {
        "key1": "value1",
        "Κλειδί": "τιμή",
        "empty": "",
        "a b/c": " \t=;\n",
        "k" * 256: "v" * 1024,
    }
    project.bare.publish(topic=topic, messages=[PubsubMessage(data=b"....", attributes=attributes)])
    (got,) = project.pull(subscription)
    assert dict(got.message.attributes) == attributes
    assert got.message.data == b"...."


def test_a_message_may_have_attributes_alone(project: Project) -> None:
    topic, subscription = project.both()
    project.bare.publish(topic=topic, messages=[PubsubMessage(attributes={"key1": "value1"})])
    (got,) = project.pull(subscription)
    assert (got.message.data, dict(got.message.attributes)) == (b"", {"key1": "value1"})


# --- publisher flow -------------------------------------------------------------------------------


def test_a_publisher_publishes_a_message_with_an_attribute(project: Project) -> None:
    topic, subscription = project.both()
    message_id = project.publisher.publish(topic, b"....", key1="value1").result(20)
    (got,) = project.pull(subscription)
    assert got.message.message_id == message_id
    assert (got.message.data, dict(got.message.attributes)) == (b"....", {"key1": "value1"})


# --- subscriber flow: pull ------------------------------------------------------------------------


def test_a_subscriber_pulls_processes_and_acknowledges(project: Project) -> None:
    topic, subscription = project.both()
    sent = {b"message %d" % number for number in range(25)}
    project.publish(topic, *sent)
    processed: set[bytes] = set()
    while processed != sent:
        got = project.pull(subscription, most=10)
        assert len(got) <= 10
        processed |= set(data_of(got))
        project.acknowledge(subscription, got)
    project.nothing(subscription)


def test_each_message_of_a_pull_is_acknowledged_by_itself(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, *(b"%d" % number for number in range(4)))
    got = project.pull(subscription, 4)
    project.acknowledge(subscription, [one for one in got if one.message.data in (b"1", b"3")])
    project.nack(subscription, [one for one in got if one.message.data in (b"0", b"2")])
    assert sorted(project.pulled(subscription, 2)) == [b"0", b"2"]


def test_a_message_that_is_not_acknowledged_in_time_comes_again(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"again")
    (got,) = project.pull(subscription)
    project.extend(subscription, [got], 1)
    assert project.pulled(subscription) == [b"again"]
    project.nothing(subscription)


def test_the_deadline_of_one_message_can_be_moved(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"short", b"long")
    got = {one.message.data: one for one in project.pull(subscription, 2)}
    project.extend(subscription, list(got.values()), 1)
    project.extend(subscription, [got[b"long"]], 60)
    assert project.pulled(subscription) == [b"short"]
    project.nothing(subscription, 1.5)
    project.acknowledge(subscription, [got[b"long"]])


def test_several_pullers_split_the_messages_of_a_subscription(project: Project) -> None:
    topic, subscription = project.both()
    sent = sorted(b"%02d" % number for number in range(40))
    project.publish(topic, *sent)
    parts: list[list[bytes]] = [[], []]

    def work(part: list[bytes]) -> None:
        while sum(map(len, parts)) < len(sent):
            answer = project.subscriber.pull(
                subscription=subscription, max_messages=4, return_immediately=True
            )
            project_got = answer.received_messages
            if project_got:
                part += data_of(project_got)
                project.acknowledge(subscription, project_got)

    threads = [threading.Thread(target=work, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(parts[0] + parts[1]) == sent, "each once"


# --- subscriber flow: push ------------------------------------------------------------------------


def test_a_subscription_with_an_endpoint_pushes(project: Project, endpoint: Endpoint) -> None:
    topic = project.topic()
    project.subscription(topic, push_config={"push_endpoint": endpoint.url})
    project.publish(topic, b"....", key1="value1")
    pushed = endpoint.wait_for(1)[0].message
    assert (pushed.data, pushed.attributes) == (b"....", {"key1": "value1"})


def test_a_subscription_is_made_to_push_later(project: Project, endpoint: Endpoint) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"before")
    project.subscriber.modify_push_config(
        subscription=subscription, push_config={"push_endpoint": endpoint.url}
    )
    project.publish(topic, b"after")
    assert {one.message.data for one in endpoint.wait_for(2)} == {b"before", b"after"}


def test_a_push_is_acknowledged_or_comes_again(project: Project, endpoint: Endpoint) -> None:
    topic = project.topic()
    endpoint.answers(500, 204)
    subscription = project.subscription(topic, push_config={"push_endpoint": endpoint.url})
    project.publish(topic, b"twice")
    assert [one.message.data for one in endpoint.wait_for(2)] == [b"twice", b"twice"]
    project.subscriber.modify_push_config(subscription=subscription, push_config={})
    project.nothing(subscription)


# --- reliability ----------------------------------------------------------------------------------


def test_everything_after_the_subscription_point_is_delivered(project: Project) -> None:
    """At the latest when CreateSubscription returns: whoever publishes then, by any connection."""
    topic = project.topic()
    for number in range(5):
        subscription = project.subscription(topic, f"late-{number}")
        project.publish(topic, b"%d" % number)
        assert b"%d" % number in data_of(project.pull(subscription))


def test_a_subscription_that_was_there_gets_what_comes_in_meanwhile(project: Project) -> None:
    """Messages need no subscriber at that moment."""
    topic, subscription = project.both()
    ids = [project.publish(topic, b"%d" % number)[0] for number in range(10)]
    assert len(set(ids)) == 10
    assert sorted(project.pulled(subscription, 10)) == [b"%d" % number for number in range(10)]


def test_a_message_is_delivered_until_it_is_acknowledged(project: Project) -> None:
    topic, subscription = project.both()
    (sent,) = project.publish(topic, b"at least once")
    for _ in range(5):
        (got,) = project.pull(subscription)
        assert got.message.message_id == sent
        project.nack(subscription, [got])
    project.acknowledge(subscription, project.pull(subscription))
    project.nothing(subscription)


# --- deletion -------------------------------------------------------------------------------------


def test_a_deleted_topic_is_gone(project: Project) -> None:
    topic = project.topic()
    project.publisher.delete_topic(topic=topic)
    with pytest.raises(NotFound):
        project.publish(topic, b"too late")
    with pytest.raises(NotFound):
        project.publisher.get_topic(topic=topic)
    with pytest.raises(NotFound):
        project.publisher.delete_topic(topic=topic)


def test_a_deleted_subscription_drops_its_messages(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"dropped")
    project.subscriber.delete_subscription(subscription=subscription)
    assert project.subscription(topic) == subscription
    project.nothing(subscription)
    project.publish(topic, b"new")
    assert project.pulled(subscription) == [b"new"]


def test_a_pull_on_a_deleted_subscription_finds_nothing(project: Project) -> None:
    _, subscription = project.both()
    project.subscriber.delete_subscription(subscription=subscription)
    with pytest.raises(NotFound):
        project.subscriber.pull(subscription=subscription, max_messages=1)
    with pytest.raises(NotFound):
        project.subscriber.delete_subscription(subscription=subscription)
