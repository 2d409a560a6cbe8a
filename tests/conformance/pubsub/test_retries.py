"""Retry policies and dead letters."""

import time
from typing import Any

import pytest
from google.cloud.pubsub_v1.subscriber.message import Message
from google.protobuf.duration_pb2 import Duration

from tests.conformance.pubsub.clients import Project, data_of

pytestmark = pytest.mark.process

ATTEMPTS = 5


def backoff(minimum_s: float, maximum_s: float) -> dict[str, Any]:
    def duration(seconds: float) -> Duration:
        return Duration(seconds=int(seconds), nanos=round(seconds % 1 * 1e9))

    return {"minimum_backoff": duration(minimum_s), "maximum_backoff": duration(maximum_s)}


# --- the retry policy -----------------------------------------------------------------------------


@pytest.mark.beyond_reference("redelivers at once")
def test_a_nacked_message_waits_for_its_backoff(project: Project) -> None:
    """It doubles, up to the maximum: 0.5, 1, 1 seconds."""
    topic, subscription = project.both(retry_policy=backoff(0.5, 1))
    project.publish(topic, b"x")
    waits: list[float] = []
    for _ in range(3):
        got = project.pull(subscription)
        began = time.monotonic()
        project.nack(subscription, got)
        again = project.pull(subscription, s=8)
        waits.append(time.monotonic() - began)
        project.nack(subscription, again)
        break_s = waits[-1]
        assert break_s > 0.4
    project.pull(subscription, s=8)
    assert waits[0] < 3


@pytest.mark.beyond_reference("redelivers at once")
def test_others_do_not_wait_for_a_backoff(project: Project) -> None:
    topic, subscription = project.both(retry_policy=backoff(3, 3))
    project.publish(topic, b"bad")
    project.nack(subscription, project.pull(subscription))
    project.publish(topic, b"good")
    began = time.monotonic()
    assert project.pulled(subscription) == [b"good"]
    assert time.monotonic() - began < 2
    project.nothing(subscription, 0.5)
    assert project.pulled(subscription, s=10) == [b"bad"]


@pytest.mark.beyond_reference("redelivers at once")
def test_a_deadline_that_passes_counts_as_a_nack(project: Project) -> None:
    topic, subscription = project.both(retry_policy=backoff(2, 2))
    project.publish(topic, b"x")
    got = project.pull(subscription)
    began = time.monotonic()
    project.extend(subscription, got, 1)
    assert project.pulled(subscription, s=10) == [b"x"]
    assert time.monotonic() - began > 2.5


@pytest.mark.beyond_reference("redelivers at once")
def test_a_stream_waits_for_the_backoff_too(project: Project) -> None:
    topic, subscription = project.both(retry_policy=backoff(1, 1))
    moments: list[float] = []

    def take(message: Message) -> None:
        moments.append(time.monotonic())
        if len(moments) < 3:
            message.nack()
        else:
            message.ack()

    project.publish(topic, b"x")
    with project.collect(subscription, take) as collected:
        collected.wait_for(3)
    assert moments[1] - moments[0] > 0.8
    assert moments[2] - moments[1] > 0.8


def test_without_a_policy_a_message_comes_again_at_once(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"x")
    began = time.monotonic()
    for _ in range(5):
        project.nack(subscription, project.pull(subscription))
    assert time.monotonic() - began < 5


@pytest.mark.beyond_reference("redelivers at once")
def test_a_key_waits_with_its_message(project: Project) -> None:
    topic, subscription = project.both(enable_message_ordering=True, retry_policy=backoff(1, 1))
    project.publish(topic, b"a0", b"a1", ordering_key="a")
    project.nack(subscription, project.pull(subscription, most=1))
    seen: list[bytes] = []
    while len(seen) < 2:
        got = project.pull(subscription, most=1)
        seen += data_of(got)
        project.acknowledge(subscription, got)
    assert seen == [b"a0", b"a1"]


# --- dead letters ---------------------------------------------------------------------------------


def dying(project: Project, **settings: Any) -> tuple[str, str, str]:
    """A topic, a subscription that gives up a message after five attempts, and the letters'."""
    topic, dead = project.topic(), project.topic("dead")
    letters = project.subscription(dead, "letters")
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": ATTEMPTS}
    subscription = project.subscription(topic, dead_letter_policy=policy, **settings)
    return topic, subscription, letters


def give_up(project: Project, subscription: str, attempts: int = ATTEMPTS) -> list[int]:
    counted: list[int] = []
    for _ in range(attempts):
        got = project.pull(subscription)
        counted += [one.delivery_attempt for one in got]
        project.nack(subscription, got)
    return counted


@pytest.mark.beyond_reference("counts no attempts")
def test_with_a_dead_letter_policy_attempts_are_counted(project: Project) -> None:
    topic, subscription, _ = dying(project)
    project.publish(topic, b"x")
    assert give_up(project, subscription) == [1, 2, 3, 4, 5]


@pytest.mark.beyond_reference("forwards nothing")
def test_a_message_goes_to_the_dead_letter_topic_after_its_attempts(project: Project) -> None:
    topic, subscription, letters = dying(project)
    project.publish(topic, b"hopeless", colour="blue")
    give_up(project, subscription)
    project.nothing(subscription)
    (letter,) = project.pull(letters)
    assert letter.message.data == b"hopeless"
    attributes = dict(letter.message.attributes)
    assert attributes.pop("colour") == "blue"
    assert attributes.pop("CloudPubSubDeadLetterSourceSubscription") == "billing"
    assert attributes.pop("CloudPubSubDeadLetterSourceSubscriptionProject") == project.id
    assert attributes.pop("CloudPubSubDeadLetterSourceDeliveryCount") == str(ATTEMPTS)
    assert attributes.pop("CloudPubSubDeadLetterSourceTopicPublishTime")
    assert not attributes
    project.acknowledge(letters, [letter])
    project.nothing(letters)


@pytest.mark.beyond_reference("forwards nothing")
def test_other_subscriptions_keep_a_message_that_one_gave_up(project: Project) -> None:
    topic, subscription, letters = dying(project)
    other = project.subscription(topic, "other")
    project.publish(topic, b"hopeless")
    give_up(project, subscription)
    assert project.pulled(other) == [b"hopeless"]
    project.nothing(subscription)
    assert project.pulled(letters) == [b"hopeless"]


@pytest.mark.beyond_reference("forwards nothing")
def test_a_letter_keeps_its_ordering_key(project: Project) -> None:
    topic, subscription, letters = dying(project, enable_message_ordering=True)
    project.publish(topic, b"bad", b"good", ordering_key="a")
    for _ in range(ATTEMPTS):
        project.nack(subscription, project.pull(subscription, most=1))
    assert project.pulled(subscription) == [b"good"], "its key goes on without it"
    (letter,) = project.pull(letters)
    assert (letter.message.data, letter.message.ordering_key) == (b"bad", "a")


@pytest.mark.beyond_reference("counts no attempts")
def test_a_deadline_that_passes_counts_as_an_attempt(project: Project) -> None:
    topic, subscription, letters = dying(project)
    project.publish(topic, b"hopeless")
    for attempt in range(1, ATTEMPTS + 1):
        (got,) = project.pull(subscription)
        assert got.delivery_attempt == attempt
        if attempt == 1:
            project.extend(subscription, [got], 1)
        else:
            project.nack(subscription, [got])
    project.nothing(subscription)
    assert project.pulled(letters) == [b"hopeless"]


@pytest.mark.beyond_reference("counts no attempts")
def test_a_subscriber_learns_the_attempt(project: Project) -> None:
    topic, subscription, letters = dying(project)
    attempts: list[int | None] = []

    def take(message: Message) -> None:
        attempts.append(message.delivery_attempt)
        message.nack()

    project.publish(topic, b"hopeless")
    with project.collect(subscription, take) as collected:
        collected.wait_for(ATTEMPTS)
        (letter,) = project.pull(letters)
    assert attempts == [1, 2, 3, 4, 5]
    assert letter.message.data == b"hopeless"


@pytest.mark.beyond_reference("forwards nothing")
def test_many_hopeless_messages_become_letters_once_each(project: Project) -> None:
    topic, subscription, letters = dying(project)
    sent = sorted(b"%03d" % number for number in range(100))
    project.publish(topic, *sent)
    with project.collect(subscription, Message.nack) as collected:
        collected.wait_for(100 * ATTEMPTS)
        assert sorted(project.pulled(letters, 100)) == sent
    project.nothing(letters)


@pytest.mark.beyond_reference("forwards nothing")
def test_a_letter_nobody_can_take_stays_where_it_was(project: Project) -> None:
    """Its topic is gone: the message goes on coming rather than being lost."""
    topic, subscription, _ = dying(project)
    project.publish(topic, b"hopeless")
    project.publisher.delete_topic(topic=project.topic_path("dead"))
    give_up(project, subscription)
    assert data_of(project.pull(subscription)) == [b"hopeless"]


@pytest.mark.beyond_reference("forwards nothing")
def test_a_policy_that_comes_later_counts_the_attempts_before_it(project: Project) -> None:
    topic, subscription = project.both()
    dead = project.topic("dead")
    letters = project.subscription(dead, "letters")
    project.publish(topic, b"hopeless")
    give_up(project, subscription, 2)
    project.subscriber.update_subscription(
        request={
            "subscription": {
                "name": subscription,
                "dead_letter_policy": {"dead_letter_topic": dead, "max_delivery_attempts": 5},
            },
            "update_mask": {"paths": ["dead_letter_policy"]},
        }
    )
    assert give_up(project, subscription, 3)[0] in (1, 3)
    got = project.subscriber.pull(
        subscription=subscription, max_messages=1, return_immediately=True
    ).received_messages
    if got:  # the service counts from when the policy was there
        project.nack(subscription, list(got))
        give_up(project, subscription, 1)
    assert project.pulled(letters) == [b"hopeless"]
