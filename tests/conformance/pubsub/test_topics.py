"""Topics: made, read, listed, changed and deleted; and what their names and settings may be."""

from typing import Any

import pytest
from google.api_core.exceptions import AlreadyExists, InvalidArgument, NotFound
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.pubsub_v1.types import Topic

from tests.conformance.pubsub.clients import Project

pytestmark = pytest.mark.process

DAY_S = 86_400


def update(project: Project, topic: str, *paths: str, **fields: Any) -> Topic:
    changed: Topic = project.publisher.update_topic(
        topic=Topic(name=topic, **fields), update_mask=FieldMask(paths=paths)
    )
    return changed


# --- made and read --------------------------------------------------------------------------------


def test_a_topic_is_made_and_read_back(project: Project) -> None:
    labels = {"team": "sales", "env": "", "naïve": "ünï"}
    topic = project.topic(labels=labels)
    found = project.publisher.get_topic(topic=topic)
    assert topic == f"projects/{project.id}/topics/orders"
    assert (found.name, dict(found.labels)) == (topic, labels)


@pytest.mark.parametrize(
    "name", ["abc", "a" * 255, "Orders-1_2.3~4+5%", "o" + "0" * 254], ids=lambda name: name[:20]
)
def test_a_name_may_be(project: Project, name: str) -> None:
    assert project.topic(name).endswith(f"/topics/{name}")


@pytest.mark.parametrize(
    "name",
    ["ab", "a" * 256, "1abc", "-abc", "a b c", "a/b/c", "goog", "google-like", "tür", "abc!", ""],
    ids=lambda name: name[:20] or "empty",
)
def test_a_name_may_not_be(project: Project, name: str) -> None:
    with pytest.raises(InvalidArgument):
        project.topic(name)


@pytest.mark.parametrize("path", ["orders", "topics/orders", "projects/p/subscriptions/orders", ""])
def test_a_name_has_its_project(project: Project, path: str) -> None:
    with pytest.raises(InvalidArgument):
        project.publisher.create_topic(name=path)
    with pytest.raises(InvalidArgument):
        project.publisher.get_topic(topic=path)


def test_a_topic_that_is_there_is_not_made_again(project: Project) -> None:
    project.topic(labels={"a": "1"})
    with pytest.raises(AlreadyExists):
        project.topic(labels={"a": "2"})
    assert dict(project.publisher.get_topic(topic=project.topic_path("orders")).labels) == {
        "a": "1"
    }


def test_what_is_not_there_is_not_found(project: Project) -> None:
    path = project.topic_path("nobody")
    with pytest.raises(NotFound):
        project.publisher.get_topic(topic=path)
    with pytest.raises(NotFound):
        project.publisher.delete_topic(topic=path)
    with pytest.raises(NotFound):
        project.publish(path, b"to nobody")


@pytest.mark.beyond_reference("lists nothing")
def test_nothing_is_listed_of_a_topic_that_is_not_there(project: Project) -> None:
    path = project.topic_path("nobody")
    with pytest.raises(NotFound):
        project.publisher.list_topic_subscriptions(topic=path)
    with pytest.raises(NotFound):
        project.publisher.list_topic_snapshots(topic=path)


@pytest.mark.beyond_reference("says INTERNAL, or keeps what it cannot change")
def test_a_topic_that_is_not_there_cannot_be_changed(project: Project) -> None:
    with pytest.raises(NotFound):
        update(project, project.topic_path("nobody"), "labels", labels={"a": "1"})


def test_a_topic_keeps_messages_as_long_as_it_says(project: Project) -> None:
    topic = project.topic(message_retention_duration=Duration(seconds=DAY_S))
    found = project.publisher.get_topic(topic=topic)
    assert found.message_retention_duration.total_seconds() == DAY_S


@pytest.mark.beyond_reference("does not say so")
def test_a_subscription_says_how_long_its_topic_keeps_messages(project: Project) -> None:
    topic = project.topic(message_retention_duration=Duration(seconds=DAY_S))
    subscription = project.subscription(topic)
    subscribed = project.subscriber.get_subscription(subscription=subscription)
    assert subscribed.topic_message_retention_duration.total_seconds() == DAY_S


@pytest.mark.parametrize("seconds", [599, 31 * DAY_S + 1, -1])
def test_a_topic_keeps_messages_within_bounds(project: Project, seconds: int) -> None:
    with pytest.raises(InvalidArgument):
        project.topic(message_retention_duration=Duration(seconds=seconds))


# --- changed --------------------------------------------------------------------------------------


@pytest.mark.beyond_reference("changes no labels")
def test_labels_are_changed_whole(project: Project) -> None:
    topic = project.topic(labels={"a": "1", "b": "2"})
    changed = update(project, topic, "labels", labels={"b": "3"})
    assert dict(changed.labels) == {"b": "3"}
    assert dict(project.publisher.get_topic(topic=topic).labels) == {"b": "3"}
    assert dict(update(project, topic, "labels").labels) == {}


def test_only_what_the_mask_names_is_changed(project: Project) -> None:
    topic = project.topic(labels={"a": "1"}, message_retention_duration=Duration(seconds=DAY_S))
    changed = update(
        project,
        topic,
        "message_retention_duration",
        labels={"other": "2"},
        message_retention_duration=Duration(seconds=2 * DAY_S),
    )
    assert dict(changed.labels) == {"a": "1"}
    assert changed.message_retention_duration.total_seconds() == 2 * DAY_S


@pytest.mark.parametrize("paths", [[], ["nonsense"], ["name"]], ids=str)
def test_a_mask_names_what_can_be_changed(project: Project, paths: list[str]) -> None:
    topic = project.topic()
    with pytest.raises(InvalidArgument):
        update(project, topic, *paths, labels={"a": "1"})


# --- listed ---------------------------------------------------------------------------------------


def test_the_topics_of_a_project_are_listed(project: Project) -> None:
    made = {project.topic(f"topic-{number}") for number in range(3)}
    assert {one.name for one in project.publisher.list_topics(project=project.path)} == made


def test_a_project_without_topics_has_an_empty_list(project: Project) -> None:
    assert list(project.publisher.list_topics(project=project.path)) == []


def test_topics_are_listed_by_pages(project: Project) -> None:
    made = {project.topic(f"topic-{number}") for number in range(7)}
    pages = list(
        project.publisher.list_topics(request={"project": project.path, "page_size": 3}).pages
    )
    assert [len(page.topics) for page in pages] == [3, 3, 1]
    assert {one.name for page in pages for one in page.topics} == made
    assert pages[-1].next_page_token == ""


@pytest.mark.beyond_reference("begins at the first page")
def test_a_page_that_nobody_gave_is_refused(project: Project) -> None:
    project.topic()
    with pytest.raises(InvalidArgument):
        project.publisher.list_topics(request={"project": project.path, "page_token": "no token"})


@pytest.mark.beyond_reference("says UNKNOWN, or lists nothing")
@pytest.mark.parametrize("path", ["", "nothing", "projects", "projects/p/topics"])
def test_topics_are_those_of_a_project(project: Project, path: str) -> None:
    with pytest.raises(InvalidArgument):
        project.publisher.list_topics(project=path)


def test_the_subscriptions_of_a_topic_are_listed(project: Project) -> None:
    topic, other = project.topic(), project.topic("other")
    made = {project.subscription(topic, f"sub-{number}") for number in range(5)}
    project.subscription(other, "elsewhere")
    assert set(project.publisher.list_topic_subscriptions(topic=topic)) == made
    pages = list(
        project.publisher.list_topic_subscriptions(request={"topic": topic, "page_size": 2}).pages
    )
    assert [len(page.subscriptions) for page in pages] == [2, 2, 1]


def test_the_snapshots_of_a_topic_are_listed(project: Project) -> None:
    topic, subscription = project.both()
    made = {
        project.subscriber.create_snapshot(
            name=project.snapshot_path(f"snap-{number}"), subscription=subscription
        ).name
        for number in range(2)
    }
    assert set(project.publisher.list_topic_snapshots(topic=topic)) == made
    assert {one.name for one in project.subscriber.list_snapshots(project=project.path)} == made


# --- deleted --------------------------------------------------------------------------------------


def test_the_subscriptions_of_a_deleted_topic_say_so(project: Project) -> None:
    topic, subscription = project.both()
    project.publisher.delete_topic(topic=topic)
    assert project.subscriber.get_subscription(subscription=subscription).topic == "_deleted-topic_"
    (listed,) = project.subscriber.list_subscriptions(project=project.path)
    assert listed.topic == "_deleted-topic_"


def test_a_deleted_topic_s_name_is_free_for_another(project: Project) -> None:
    """The old subscriptions stay with the topic that was deleted."""
    topic, old = project.both()
    project.publisher.delete_topic(topic=topic)
    assert project.topic() == topic
    new = project.subscription(topic, "new")
    project.publish(topic, b"new")
    assert project.pulled(new) == [b"new"]
    project.nothing(old)
    assert list(project.publisher.list_topic_subscriptions(topic=topic)) == [new]


def test_a_subscription_keeps_its_backlog_when_its_topic_is_deleted(project: Project) -> None:
    """The service delivers what was published before."""
    topic, subscription = project.both()
    project.publish(topic, b"before")
    project.publisher.delete_topic(topic=topic)
    assert project.pulled(subscription) == [b"before"]
