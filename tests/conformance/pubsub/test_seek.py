"""Seek and snapshots: messages come again, or are done with, all at once."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from google.api_core.exceptions import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from google.pubsub_v1.types import Snapshot

from tests.conformance.pubsub.clients import Project

pytestmark = pytest.mark.process

HOUR = timedelta(hours=1)


def seek(project: Project, subscription: str, moment: datetime) -> None:
    project.subscriber.seek(request={"subscription": subscription, "time": moment})


def seek_snapshot(project: Project, subscription: str, snapshot: str) -> None:
    project.subscriber.seek(request={"subscription": subscription, "snapshot": snapshot})


def snapshot_of(project: Project, subscription: str, name: str = "snap") -> str:
    made: Snapshot = project.subscriber.create_snapshot(
        name=project.snapshot_path(name), subscription=subscription
    )
    return str(made.name)


# --- to a time ------------------------------------------------------------------------------------


def test_a_seek_back_replays_what_was_acknowledged(project: Project) -> None:
    topic, subscription = project.both(retain_acked_messages=True)
    project.publish(topic, b"one", b"two")
    project.pulled(subscription, 2)
    project.nothing(subscription, 0.2)
    seek(project, subscription, datetime.now(UTC) - HOUR)
    assert sorted(project.pulled(subscription, 2)) == [b"one", b"two"]


def test_a_seek_back_replays_what_came_after_its_time(project: Project) -> None:
    topic, subscription = project.both(retain_acked_messages=True)
    project.publish(topic, b"before")
    time.sleep(0.3)
    between = datetime.now(UTC)
    time.sleep(0.3)
    project.publish(topic, b"after")
    project.pulled(subscription, 2)
    seek(project, subscription, between)
    assert project.pulled(subscription) == [b"after"]
    project.nothing(subscription)


def test_a_seek_forward_is_done_with_all(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"one", b"two")
    project.pull(subscription, most=1)
    seek(project, subscription, datetime.now(UTC) + HOUR)
    project.nothing(subscription)


def test_what_is_published_after_a_seek_to_now_comes(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"old")
    time.sleep(0.2)
    seek(project, subscription, datetime.now(UTC))
    time.sleep(0.1)
    project.publish(topic, b"new")
    assert project.pulled(subscription) == [b"new"]


def test_without_retention_only_what_is_unacknowledged_comes_again(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"acknowledged")
    project.pulled(subscription)
    project.publish(topic, b"left")
    seek(project, subscription, datetime.now(UTC) - HOUR)
    assert project.pulled(subscription) == [b"left"]
    project.nothing(subscription)


def test_a_seek_is_of_one_subscription(project: Project) -> None:
    topic = project.topic()
    first, second = (
        project.subscription(topic, name, retain_acked_messages=True)
        for name in ("first", "second")
    )
    project.publish(topic, b"x")
    project.pulled(first)
    project.pulled(second)
    seek(project, first, datetime.now(UTC) - HOUR)
    assert project.pulled(first) == [b"x"]
    project.nothing(second)


def test_a_stream_is_sent_what_a_seek_brings_back(project: Project) -> None:
    topic, subscription = project.both(retain_acked_messages=True)
    with project.collect(subscription) as collected:
        project.publish(topic, b"x")
        collected.wait_for(1)
        time.sleep(0.3)
        seek(project, subscription, datetime.now(UTC) - HOUR)
        assert collected.wait_for(2) == [b"x", b"x"]


def test_a_seek_does_not_bring_back_what_was_before_the_subscription(project: Project) -> None:
    topic = project.topic()
    project.publish(topic, b"too early")
    subscription = project.subscription(topic, retain_acked_messages=True)
    project.publish(topic, b"x")
    project.pulled(subscription)
    seek(project, subscription, datetime.now(UTC) - HOUR)
    assert project.pulled(subscription) == [b"x"]
    project.nothing(subscription)


# --- to a snapshot --------------------------------------------------------------------------------


def test_a_snapshot_brings_back_what_was_unacknowledged(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"one", b"two")
    snapshot = snapshot_of(project, subscription)
    project.pulled(subscription, 2)
    project.publish(topic, b"three")
    project.pulled(subscription)
    seek_snapshot(project, subscription, snapshot)
    assert sorted(project.pulled(subscription, 3)) == [b"one", b"three", b"two"]
    project.nothing(subscription)


def test_a_snapshot_brings_back_none_that_was_acknowledged_before_all_in_it(
    project: Project,
) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"done")
    project.pulled(subscription)
    project.publish(topic, b"open")
    snapshot = snapshot_of(project, subscription)
    project.pulled(subscription)
    seek_snapshot(project, subscription, snapshot)
    assert project.pulled(subscription) == [b"open"]
    project.nothing(subscription)


def test_a_snapshot_brings_a_subscription_forward(project: Project) -> None:
    """To where another one was."""
    topic = project.topic()
    ahead, behind = (project.subscription(topic, name) for name in ("ahead", "behind"))
    project.publish(topic, b"done")
    project.pulled(ahead)
    snapshot = snapshot_of(project, ahead)
    project.publish(topic, b"new")
    seek_snapshot(project, behind, snapshot)
    assert project.pulled(behind) == [b"new"]
    project.nothing(behind)


@pytest.mark.beyond_reference("keeps nothing for those that come later")
def test_a_snapshot_serves_a_subscription_that_came_later(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"one")
    snapshot = snapshot_of(project, subscription)
    project.pulled(subscription)
    late = project.subscription(topic, "late")
    seek_snapshot(project, late, snapshot)
    assert project.pulled(late) == [b"one"]


@pytest.mark.beyond_reference("keeps nothing for those that come later")
def test_a_snapshot_outlives_its_subscription(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"one")
    snapshot = snapshot_of(project, subscription)
    project.subscriber.delete_subscription(subscription=subscription)
    other = project.subscription(topic, "other")
    seek_snapshot(project, other, snapshot)
    assert project.pulled(other) == [b"one"]


def test_a_snapshot_is_of_its_topic(project: Project) -> None:
    _, subscription = project.both()
    snapshot = snapshot_of(project, subscription)
    elsewhere = project.subscription(project.topic("other"), "elsewhere")
    with pytest.raises((InvalidArgument, FailedPrecondition)):
        seek_snapshot(project, elsewhere, snapshot)


# --- snapshots as resources -----------------------------------------------------------------------


def test_a_snapshot_is_made_and_listed_and_deleted(project: Project) -> None:
    topic, subscription = project.both()
    made = project.subscriber.create_snapshot(
        request={
            "name": project.snapshot_path("snap"),
            "subscription": subscription,
            "labels": {"team": "sales"},
        }
    )
    assert made.topic == topic
    assert timedelta(days=6, hours=23) < made.expire_time - datetime.now(UTC) <= timedelta(days=7)
    assert [one.name for one in project.subscriber.list_snapshots(project=project.path)] == [
        made.name
    ]
    project.subscriber.delete_snapshot(snapshot=made.name)
    assert list(project.subscriber.list_snapshots(project=project.path)) == []
    with pytest.raises(NotFound):
        project.subscriber.delete_snapshot(snapshot=made.name)
    with pytest.raises(NotFound):
        seek_snapshot(project, subscription, made.name)


@pytest.mark.beyond_reference("does not know the method")
def test_a_snapshot_is_read_back(project: Project) -> None:
    topic, subscription = project.both()
    name = snapshot_of(project, subscription)
    found = project.subscriber.get_snapshot(snapshot=name)
    assert (found.name, found.topic) == (name, topic)


@pytest.mark.beyond_reference("changes no labels")
def test_a_snapshot_s_labels_are_changed(project: Project) -> None:
    _, subscription = project.both()
    name = snapshot_of(project, subscription)
    project.subscriber.update_snapshot(
        request={
            "snapshot": Snapshot(name=name, labels={"a": "1"}),
            "update_mask": {"paths": ["labels"]},
        }
    )
    (found,) = project.subscriber.list_snapshots(project=project.path)
    assert dict(found.labels) == {"a": "1"}


def test_a_snapshot_that_is_there_is_not_made_again(project: Project) -> None:
    _, subscription = project.both()
    snapshot_of(project, subscription)
    with pytest.raises(AlreadyExists):
        snapshot_of(project, subscription)


def test_a_snapshot_needs_a_subscription(project: Project) -> None:
    with pytest.raises(NotFound):
        snapshot_of(project, project.subscription_path("nobody"))


@pytest.mark.beyond_reference("takes it")
def test_a_snapshot_has_a_name_as_all_have(project: Project) -> None:
    _, subscription = project.both()
    with pytest.raises(InvalidArgument):
        snapshot_of(project, subscription, "1 2")


def test_what_is_not_there_cannot_be_sought(project: Project) -> None:
    _, subscription = project.both()
    with pytest.raises(NotFound):
        seek(project, project.subscription_path("nobody"), datetime.now(UTC))
    with pytest.raises(NotFound):
        seek_snapshot(project, subscription, project.snapshot_path("nobody"))


@pytest.mark.beyond_reference("says UNKNOWN")
def test_a_seek_says_where_to(project: Project) -> None:
    _, subscription = project.both()
    with pytest.raises(InvalidArgument):
        project.subscriber.seek(request={"subscription": subscription})


@pytest.mark.beyond_reference("seeks nothing that is ordered")
def test_a_replay_keeps_the_order_of_a_key(project: Project) -> None:
    topic, subscription = project.both(enable_message_ordering=True, retain_acked_messages=True)
    for number in range(10):
        project.publish(topic, b"%d" % number, ordering_key="a")
    with project.collect(subscription) as collected:
        collected.wait_for(10)
    seek(project, subscription, datetime.now(UTC) - HOUR)
    with project.collect(subscription) as collected:
        assert [int(one) for one in collected.wait_for(10)] == list(range(10))
