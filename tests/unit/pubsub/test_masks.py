"""Field masks."""

from typing import Any

import pytest
from google.pubsub_v1.types import pubsub as types

from asterism.gateways.pubsub.masks import SUBSCRIPTION_FIELDS, TOPIC_FIELDS, updated
from tests.unit.pubsub.refusals import refused

Subscription: Any = types.Subscription.pb()
Topic: Any = types.Topic.pb()


def current() -> Any:
    return Subscription(
        name="projects/p/subscriptions/sub",
        ack_deadline_seconds=20,
        labels={"a": "1", "b": "2"},
        push_config={"push_endpoint": "http://here", "attributes": {"x": "y"}},
        retry_policy={"minimum_backoff": {"seconds": 5}},
    )


def change(paths: list[str], **update: Any) -> Any:
    return updated(current(), Subscription(**update), paths, SUBSCRIPTION_FIELDS)


def test_only_what_is_named_changes() -> None:
    found = change(["ack_deadline_seconds"], ack_deadline_seconds=30, labels={"c": "3"})
    wanted = current()
    wanted.ack_deadline_seconds = 30
    assert found == wanted


def test_a_map_is_replaced_whole() -> None:
    assert dict(change(["labels"], labels={"c": "3"}).labels) == {"c": "3"}


def test_what_the_update_lacks_is_cleared() -> None:
    found = change(["retry_policy", "labels", "ack_deadline_seconds", "push_config"])
    assert found == Subscription(name=current().name)


def test_a_field_within_a_field_is_replaced_alone() -> None:
    found = change(["push_config.push_endpoint"], push_config={"push_endpoint": "http://there"})
    assert found.push_config.push_endpoint == "http://there"
    assert dict(found.push_config.attributes) == {"x": "y"}
    assert not change(["push_config.push_endpoint"]).push_config.push_endpoint


def test_clearing_within_a_field_that_is_not_there_makes_none() -> None:
    assert not change(["dead_letter_policy.max_delivery_attempts"]).HasField("dead_letter_policy")


def test_a_field_of_one_of_several_is_replaced() -> None:
    found = change(["push_config.no_wrapper"], push_config={"no_wrapper": {"write_metadata": True}})
    assert found.push_config.no_wrapper.write_metadata
    assert found.push_config.WhichOneof("wrapper") == "no_wrapper"


def test_the_resource_itself_stays_as_it_was() -> None:
    before = current()
    updated(before, Subscription(ack_deadline_seconds=60), ["labels"], SUBSCRIPTION_FIELDS)
    assert before == current()


@pytest.mark.parametrize(
    ("paths", "part"),
    [
        ([], "update_mask must name the fields of the Subscription"),
        (["colour"], "'colour'"),
        (["pushConfig"], "push_config, not as in pushConfig"),
        (["labels.a"], "'labels.a'"),
        (["push_config.colour"], "'push_config.colour'"),
        (["ack_deadline_seconds.x"], "'ack_deadline_seconds.x'"),
        ([""], "''"),
        (["*"], "'*'"),
        (["name"], "name, which cannot be changed"),
        (["filter"], "filter, which cannot be changed"),
        (["enable_message_ordering"], "cannot be changed in a Subscription"),
        (["topic", "labels"], "topic, which cannot be changed"),
        ([f"a{number}" for number in range(200)], "over 100"),
    ],
)
def test_a_mask_that_cannot_be_applied_is_refused(paths: list[str], part: str) -> None:
    with refused(part):
        change(paths)


def test_every_field_that_may_change_is_there() -> None:
    assert set(Subscription.DESCRIPTOR.fields_by_name) >= SUBSCRIPTION_FIELDS
    assert set(Topic.DESCRIPTOR.fields_by_name) >= TOPIC_FIELDS
