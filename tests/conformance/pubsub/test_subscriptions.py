"""Subscriptions: made, read, listed, changed and deleted; and what their settings may be."""

from typing import Any

import pytest
from google.api_core.exceptions import (
    AlreadyExists,
    BadRequest,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
)
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.pubsub_v1.types import ExpirationPolicy, Subscription

from tests.conformance.pubsub.clients import Project

pytestmark = pytest.mark.process

DAY_S = 86_400
ENDPOINT = "http://127.0.0.1:9/push"


def update(project: Project, subscription: str, *paths: str, **fields: Any) -> Subscription:
    changed: Subscription = project.subscriber.update_subscription(
        subscription=Subscription(name=subscription, **fields),
        update_mask=FieldMask(paths=paths),
    )
    return changed


def got(project: Project, subscription: str) -> Subscription:
    found: Subscription = project.subscriber.get_subscription(subscription=subscription)
    return found


# --- made and read --------------------------------------------------------------------------------


def test_what_nothing_is_said_of_has_its_default(project: Project) -> None:
    topic, subscription = project.both()
    found = got(project, subscription)
    assert (found.name, found.topic) == (subscription, topic)
    assert found.ack_deadline_seconds == 10
    assert found.message_retention_duration.total_seconds() == 7 * DAY_S
    assert found.push_config.push_endpoint == ""
    assert not found.retain_acked_messages
    assert not found.enable_message_ordering
    assert not found.enable_exactly_once_delivery
    assert not found.detached
    assert found.filter == ""


@pytest.mark.beyond_reference("says neither")
def test_a_subscription_is_active_and_expires_after_a_month_by_default(project: Project) -> None:
    _, subscription = project.both()
    found = got(project, subscription)
    assert found.expiration_policy.ttl.total_seconds() == 31 * DAY_S
    assert found.state == Subscription.State.ACTIVE


def test_what_is_said_is_read_back(project: Project) -> None:
    topic, dead = project.topic(), project.topic("dead")
    said = Subscription(
        name=project.subscription_path("billing"),
        topic=topic,
        ack_deadline_seconds=600,
        retain_acked_messages=True,
        message_retention_duration=Duration(seconds=600),
        labels={"team": "sales"},
        enable_message_ordering=True,
        filter='attributes.a = "b"',
        dead_letter_policy={"dead_letter_topic": dead, "max_delivery_attempts": 7},
        retry_policy={
            "minimum_backoff": Duration(seconds=1),
            "maximum_backoff": Duration(seconds=600),
        },
        enable_exactly_once_delivery=True,
        expiration_policy=ExpirationPolicy(ttl=Duration(seconds=DAY_S)),
    )
    project.subscriber.create_subscription(request=said)
    found = got(project, said.name)
    for name in (
        "ack_deadline_seconds",
        "retain_acked_messages",
        "message_retention_duration",
        "labels",
        "enable_message_ordering",
        "filter",
        "dead_letter_policy",
        "retry_policy",
        "enable_exactly_once_delivery",
        "expiration_policy",
    ):
        assert getattr(found, name) == getattr(said, name), name


@pytest.mark.beyond_reference("leaves out the attempts")
def test_a_dead_letter_policy_has_five_attempts_by_default(project: Project) -> None:
    topic, dead = project.topic(), project.topic("dead")
    subscription = project.subscription(topic, dead_letter_policy={"dead_letter_topic": dead})
    assert got(project, subscription).dead_letter_policy.max_delivery_attempts == 5


@pytest.mark.beyond_reference("leaves them out")
def test_a_retry_policy_has_backoffs_by_default(project: Project) -> None:
    subscription = project.subscription(project.topic(), retry_policy={})
    policy = got(project, subscription).retry_policy
    assert policy.minimum_backoff.total_seconds() == 10
    assert policy.maximum_backoff.total_seconds() == 600


def test_a_subscription_may_never_expire(project: Project) -> None:
    subscription = project.subscription(project.topic(), expiration_policy=ExpirationPolicy())
    found = got(project, subscription)
    assert "expiration_policy" in found
    assert not found.expiration_policy.ttl


def test_a_subscription_that_is_there_is_not_made_again(project: Project) -> None:
    topic, subscription = project.both()
    other = project.topic("other")
    with pytest.raises(AlreadyExists):
        project.subscription(topic)
    with pytest.raises(AlreadyExists):
        project.subscription(other)
    assert got(project, subscription).topic == topic


def test_a_subscription_needs_a_topic(project: Project) -> None:
    with pytest.raises(NotFound):
        project.subscription(project.topic_path("nobody"))
    with pytest.raises(InvalidArgument):
        project.subscription("")
    with pytest.raises(InvalidArgument):
        project.subscription("orders")


def test_a_subscription_may_be_of_another_project_s_topic(project: Project) -> None:
    topic = project.topic()
    name = f"projects/{project.id}-other/subscriptions/billing"
    project.subscriber.create_subscription(name=name, topic=topic)
    project.publish(topic, b"over there")
    assert project.pulled(name) == [b"over there"]


@pytest.mark.parametrize("name", ["ab", "1abc", "a b c", "goog1", "a" * 256, "abc!", ""], ids=str)
def test_a_name_may_not_be(project: Project, name: str) -> None:
    topic = project.topic()
    with pytest.raises(InvalidArgument):
        project.subscription(topic, name)


BOUNDS: dict[str, dict[str, Any]] = {
    "deadline 601 s": {"ack_deadline_seconds": 601},
    "deadline below 0": {"ack_deadline_seconds": -1},
    "retention below 10 min": {"message_retention_duration": Duration(seconds=599)},
    "retention above 31 days": {"message_retention_duration": Duration(seconds=31 * DAY_S + 1)},
    "an endpoint that is none": {"push_config": {"push_endpoint": "nowhere"}},
}
BEYOND: dict[str, dict[str, Any]] = {
    "deadline 9 s": {"ack_deadline_seconds": 9},
    "expiration below 1 day": {"expiration_policy": {"ttl": Duration(seconds=DAY_S - 1)}},
    "backoff above 600 s": {"retry_policy": {"minimum_backoff": Duration(seconds=601)}},
    "backoffs crossed": {
        "retry_policy": {
            "minimum_backoff": Duration(seconds=20),
            "maximum_backoff": Duration(seconds=10),
        }
    },
    "a filter that is none": {"filter": "attributes.a ="},
    "a filter of 257 bytes": {"filter": f'attributes.a = "{"x" * 241}"'},
}


@pytest.mark.parametrize("settings", BOUNDS.values(), ids=list(BOUNDS))
def test_settings_have_bounds(project: Project, settings: dict[str, Any]) -> None:
    topic = project.topic()
    with pytest.raises(InvalidArgument):
        project.subscription(topic, **settings)
    with pytest.raises(NotFound):
        got(project, project.subscription_path("billing"))


@pytest.mark.beyond_reference("takes them")
@pytest.mark.parametrize("settings", BEYOND.values(), ids=list(BEYOND))
def test_settings_have_more_bounds(project: Project, settings: dict[str, Any]) -> None:
    topic = project.topic()
    with pytest.raises(InvalidArgument):
        project.subscription(topic, **settings)


@pytest.mark.parametrize("attempts", [4, 101, -1])
def test_a_dead_letter_policy_has_bounds(project: Project, attempts: int) -> None:
    topic, dead = project.topic(), project.topic("dead")
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": attempts}
    with pytest.raises(BadRequest):  # INVALID_ARGUMENT, or OUT_OF_RANGE
        project.subscription(topic, dead_letter_policy=policy)


def test_a_dead_letter_topic_has_to_be_there(project: Project) -> None:
    topic = project.topic()
    policy = {"dead_letter_topic": project.topic_path("nobody"), "max_delivery_attempts": 5}
    with pytest.raises((NotFound, InvalidArgument)):
        project.subscription(topic, dead_letter_policy=policy)


# --- changed --------------------------------------------------------------------------------------

CHANGES: dict[str, Any] = {
    "ack_deadline_seconds": 33,
    "message_retention_duration": Duration(seconds=DAY_S),
    "retain_acked_messages": True,
    "expiration_policy": ExpirationPolicy(ttl=Duration(seconds=2 * DAY_S)),
    "retry_policy": {
        "minimum_backoff": Duration(seconds=2),
        "maximum_backoff": Duration(seconds=20),
    },
    "push_config": {"push_endpoint": ENDPOINT},
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.beyond_reference("refuses it"))
        if name == "expiration_policy"
        else name
        for name in CHANGES
    ],
)
def test_a_setting_can_be_changed(project: Project, name: str) -> None:
    _, subscription = project.both()
    before = got(project, subscription)
    changed = update(project, subscription, name, **{name: CHANGES[name]})
    expected = Subscription(**{name: CHANGES[name]})
    found = got(project, subscription)
    if name == "push_config":
        assert found.push_config.push_endpoint == changed.push_config.push_endpoint == ENDPOINT
    else:
        assert getattr(found, name) == getattr(changed, name) == getattr(expected, name)
    for other in set(CHANGES) - {name, "push_config", "expiration_policy"}:
        assert getattr(found, other) == getattr(before, other), other


@pytest.mark.beyond_reference("changes no labels")
def test_labels_are_changed_whole(project: Project) -> None:
    subscription = project.subscription(project.topic(), labels={"a": "1", "b": "2"})
    assert dict(update(project, subscription, "labels", labels={"c": "3"}).labels) == {"c": "3"}
    assert dict(got(project, subscription).labels) == {"c": "3"}
    update(project, subscription, "labels")
    assert dict(got(project, subscription).labels) == {}


@pytest.mark.beyond_reference("does not change it")
def test_exactly_once_is_switched_on_and_off(project: Project) -> None:
    _, subscription = project.both()
    for is_on in (True, False):
        update(
            project,
            subscription,
            "enable_exactly_once_delivery",
            enable_exactly_once_delivery=is_on,
        )
        assert got(project, subscription).enable_exactly_once_delivery is is_on


def test_a_dead_letter_policy_comes_and_goes(project: Project) -> None:
    _, subscription = project.both()
    policy = {"dead_letter_topic": project.topic("dead"), "max_delivery_attempts": 5}
    update(project, subscription, "dead_letter_policy", dead_letter_policy=policy)
    assert got(project, subscription).dead_letter_policy.max_delivery_attempts == 5
    update(project, subscription, "dead_letter_policy")
    assert "dead_letter_policy" not in got(project, subscription)


@pytest.mark.beyond_reference("refuses it")
def test_a_mask_may_go_deeper(project: Project) -> None:
    _, subscription = project.both()
    policy = {"dead_letter_topic": project.topic("dead"), "max_delivery_attempts": 5}
    update(project, subscription, "dead_letter_policy", dead_letter_policy=policy)
    update(
        project,
        subscription,
        "dead_letter_policy.max_delivery_attempts",
        dead_letter_policy={"max_delivery_attempts": 9},
    )
    found = got(project, subscription).dead_letter_policy
    assert (found.dead_letter_topic, found.max_delivery_attempts) == (project.topic_path("dead"), 9)


@pytest.mark.beyond_reference("changes one of them")
def test_several_settings_are_changed_at_once_or_none(project: Project) -> None:
    _, subscription = project.both()
    with pytest.raises(InvalidArgument):
        update(
            project,
            subscription,
            "ack_deadline_seconds",
            "message_retention_duration",
            ack_deadline_seconds=20,
            message_retention_duration=Duration(seconds=1),
        )
    assert got(project, subscription).ack_deadline_seconds == 10
    update(
        project,
        subscription,
        "ack_deadline_seconds",
        "retain_acked_messages",
        ack_deadline_seconds=20,
        retain_acked_messages=True,
    )
    found = got(project, subscription)
    assert (found.ack_deadline_seconds, found.retain_acked_messages) == (20, True)


FIXED: dict[str, Any] = {"topic": "projects/p/topics/other", "enable_message_ordering": True}


@pytest.mark.parametrize("name", FIXED)
def test_a_setting_that_is_fixed_cannot_be_changed(project: Project, name: str) -> None:
    _, subscription = project.both()
    with pytest.raises(InvalidArgument):
        update(project, subscription, name, **{name: FIXED[name]})


@pytest.mark.beyond_reference("changes it")
def test_a_filter_cannot_be_changed(project: Project) -> None:
    _, subscription = project.both()
    with pytest.raises(InvalidArgument):
        update(project, subscription, "filter", filter="attributes:a")
    assert got(project, subscription).filter == ""


@pytest.mark.parametrize("paths", [[], ["nonsense"], ["name"]], ids=str)
def test_a_mask_names_what_can_be_changed(project: Project, paths: list[str]) -> None:
    _, subscription = project.both()
    with pytest.raises(InvalidArgument):
        update(project, subscription, *paths, ack_deadline_seconds=20)


def test_a_subscription_that_is_not_there_cannot_be_changed(project: Project) -> None:
    with pytest.raises(NotFound):
        update(
            project,
            project.subscription_path("nobody"),
            "ack_deadline_seconds",
            ack_deadline_seconds=20,
        )


# --- listed ---------------------------------------------------------------------------------------


def test_the_subscriptions_of_a_project_are_listed_by_pages(project: Project) -> None:
    topic = project.topic()
    made = {project.subscription(topic, f"sub-{number}") for number in range(5)}
    listed = project.subscriber.list_subscriptions
    assert {one.name for one in listed(project=project.path)} == made
    pages = list(listed(request={"project": project.path, "page_size": 2}).pages)
    assert [len(page.subscriptions) for page in pages] == [2, 2, 1]
    assert {one.name for page in pages for one in page.subscriptions} == made
    assert all(one.topic == topic for one in pages[0].subscriptions)


def test_a_project_without_subscriptions_has_an_empty_list(project: Project) -> None:
    assert list(project.subscriber.list_subscriptions(project=project.path)) == []


# --- detached -------------------------------------------------------------------------------------


@pytest.mark.beyond_reference("does not know the method")
def test_a_detached_subscription_gets_nothing_and_says_so(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"dropped")
    project.publisher.detach_subscription(request={"subscription": subscription})
    found = got(project, subscription)
    assert (found.detached, found.topic) == (True, topic)
    with pytest.raises(FailedPrecondition):
        project.subscriber.pull(subscription=subscription, max_messages=1)
    with project.stream(subscription) as stream:
        assert isinstance(stream.error(), FailedPrecondition)
    project.publish(topic, b"not for it")
    assert list(project.publisher.list_topic_subscriptions(topic=topic)) == []


@pytest.mark.beyond_reference("does not know the method")
def test_a_stream_ends_when_its_subscription_is_detached(project: Project) -> None:
    topic, subscription = project.both()
    with project.stream(subscription) as stream:
        project.publish(topic, b"one")
        stream.take(1)
        project.publisher.detach_subscription(request={"subscription": subscription})
        assert isinstance(stream.error(), FailedPrecondition)


@pytest.mark.beyond_reference("does not know the method")
def test_a_detached_subscription_is_deleted_as_any(project: Project) -> None:
    _, subscription = project.both()
    project.publisher.detach_subscription(request={"subscription": subscription})
    project.subscriber.delete_subscription(subscription=subscription)
    with pytest.raises(NotFound):
        got(project, subscription)


@pytest.mark.beyond_reference("does not know the method")
def test_what_is_not_there_cannot_be_detached(project: Project) -> None:
    with pytest.raises(NotFound):
        project.publisher.detach_subscription(
            request={"subscription": project.subscription_path("nobody")}
        )
