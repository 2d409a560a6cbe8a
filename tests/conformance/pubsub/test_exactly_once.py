"""Exactly-once subscriptions: those acknowledgements that fail say so, and the others are final."""

import time

import pytest
from google.api_core.exceptions import GoogleAPICallError
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus
from google.cloud.pubsub_v1.subscriber.message import Message
from google.pubsub_v1.types import ReceivedMessage

from tests.conformance.pubsub.clients import Project

pytestmark = [pytest.mark.process, pytest.mark.beyond_reference("never says that one failed")]

INVALID = "PERMANENT_FAILURE_INVALID_ACK_ID"


def once(project: Project) -> tuple[str, str]:
    return project.both(enable_exactly_once_delivery=True)


def failures(error: GoogleAPICallError) -> dict[str, str]:
    """What the error says of each ack id, as the client reads it."""
    return dict(error.metadata or {})


def expired(project: Project, topic: str, subscription: str) -> list[ReceivedMessage]:
    """A message whose deadline has passed."""
    project.publish(topic, b"x")
    got = project.pull(subscription)
    project.extend(subscription, got, 1)
    time.sleep(1.5)
    return got


def test_an_acknowledgement_in_time_is_final(project: Project) -> None:
    topic, subscription = once(project)
    project.publish(topic, b"x")
    got = project.pull(subscription)
    project.acknowledge(subscription, got)
    project.nothing(subscription)


def test_an_ack_id_expires_with_its_deadline(project: Project) -> None:
    topic, subscription = once(project)
    got = expired(project, topic, subscription)
    with pytest.raises(GoogleAPICallError) as refused:
        project.acknowledge(subscription, got)
    assert failures(refused.value) == {got[0].ack_id: INVALID}
    assert project.pulled(subscription) == [b"x"], "what was refused comes again"


def test_an_expired_ack_id_cannot_be_extended(project: Project) -> None:
    topic, subscription = once(project)
    got = expired(project, topic, subscription)
    with pytest.raises(GoogleAPICallError) as refused:
        project.extend(subscription, got, 60)
    assert failures(refused.value) == {got[0].ack_id: INVALID}


def test_the_ack_id_of_an_older_attempt_is_invalid(project: Project) -> None:
    topic, subscription = once(project)
    project.publish(topic, b"x")
    old = project.pull(subscription)
    project.nack(subscription, old)
    new = project.pull(subscription)
    with pytest.raises(GoogleAPICallError) as refused:
        project.acknowledge(subscription, old)
    assert failures(refused.value) == {old[0].ack_id: INVALID}
    project.acknowledge(subscription, new)
    project.nothing(subscription)


def test_those_that_are_valid_count_beside_those_that_are_not(project: Project) -> None:
    topic, subscription = once(project)
    got = expired(project, topic, subscription)
    project.publish(topic, b"y")
    fresh = [one for one in project.pull(subscription, 2) if one.message.data == b"y"]
    with pytest.raises(GoogleAPICallError) as refused:
        project.acknowledge(subscription, [*got, *fresh])
    assert failures(refused.value) == {got[0].ack_id: INVALID}
    project.nothing(subscription)


def test_the_client_confirms_an_acknowledgement(project: Project) -> None:
    topic, subscription = once(project)
    outcomes: list[object] = []

    def take(message: Message) -> None:
        outcomes.append(message.ack_with_response().result(20))

    project.publish(topic, b"x")
    with project.collect(subscription, take) as collected:
        collected.wait_for(1)
        deadline = time.monotonic() + 10
        while not outcomes and time.monotonic() < deadline:
            time.sleep(0.01)
    assert outcomes == [AcknowledgeStatus.SUCCESS]
    project.nothing(subscription)


def test_the_client_learns_of_an_acknowledgement_that_failed(project: Project) -> None:
    topic, subscription = once(project)
    outcomes: list[object] = []

    def take(message: Message) -> None:
        if len(collected.messages) > 1:
            message.ack()
            return
        message.modify_ack_deadline(0)
        time.sleep(0.5)
        future = message.ack_with_response()
        outcomes.append(future.exception(20))

    with project.collect(subscription, take) as collected:
        project.publish(topic, b"x")
        collected.wait_for(2)
        deadline = time.monotonic() + 10
        while not outcomes and time.monotonic() < deadline:
            time.sleep(0.01)
    (error,) = outcomes
    assert isinstance(error, AcknowledgeError)
    assert error.error_code is AcknowledgeStatus.INVALID_ACK_ID


def test_many_messages_come_once_each(project: Project) -> None:
    topic, subscription = once(project)
    with project.collect(subscription) as collected:
        for at in range(5):
            project.publish(topic, *(b"%d" % (at * 100 + number) for number in range(100)))
        collected.wait_for(500)
        time.sleep(0.5)
        assert len(collected.data) == len(set(collected.data)) == 500
    project.nothing(subscription)


def test_an_ordinary_subscription_takes_a_late_acknowledgement(project: Project) -> None:
    topic, subscription = project.both()
    got = expired(project, topic, subscription)
    project.acknowledge(subscription, got)
    project.nothing(subscription)
