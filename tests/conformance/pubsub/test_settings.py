"""The door's settings: topics and subscriptions from the start, REST somewhere or nowhere."""

from collections.abc import Callable

import httpx
import pytest

from asterism.testing import Broker
from tests.conformance.pubsub.clients import Pair, Project
from tests.conformance.pubsub.conftest import Door

pytestmark = pytest.mark.process

TOPIC = "projects/shop/topics/orders"
SUBSCRIPTION = "projects/shop/subscriptions/billing"
LISTED = {"topics": [TOPIC], "subscriptions": {SUBSCRIPTION: TOPIC}}


def shop(door: Door) -> tuple[Pair, Project]:
    pair = Pair(door.address)
    return pair, Project(pair, "shop")


def test_what_is_listed_is_there_from_the_start(start: Callable[..., Door]) -> None:
    pair, project = shop(start(**LISTED))
    try:
        assert [one.name for one in project.publisher.list_topics(project=project.path)] == [TOPIC]
        found = project.subscriber.get_subscription(subscription=SUBSCRIPTION)
        assert (found.topic, found.ack_deadline_seconds) == (TOPIC, 10)
        project.publish(TOPIC, b"x")
        assert project.pulled(SUBSCRIPTION) == [b"x"]
    finally:
        pair.close()


def test_what_is_listed_stays_as_it_was_changed(start: Callable[..., Door]) -> None:
    door = start(**LISTED)
    pair, project = shop(door)
    try:
        project.subscriber.update_subscription(
            request={
                "subscription": {"name": SUBSCRIPTION, "ack_deadline_seconds": 99},
                "update_mask": {"paths": ["ack_deadline_seconds"]},
            }
        )
        project.publish(TOPIC, b"waits")
        door.broker.restart("pubsub")
        found = project.subscriber.get_subscription(subscription=SUBSCRIPTION)
        assert found.ack_deadline_seconds == 99
        assert project.pulled(SUBSCRIPTION) == [b"waits"]
    finally:
        pair.close()


def test_a_subscription_s_topic_need_not_be_listed(start: Callable[..., Door]) -> None:
    door = start(subscriptions={SUBSCRIPTION: TOPIC})
    pair, project = shop(door)
    try:
        project.publish(TOPIC, b"x")
        assert project.pulled(SUBSCRIPTION) == [b"x"]
    finally:
        pair.close()


def test_rest_may_be_nowhere(start: Callable[..., Door]) -> None:
    door = start(rest_listen="")
    assert "rest_url" not in door.broker.door("pubsub")
    pair, project = shop(door)
    try:
        project.topic("other")
    finally:
        pair.close()


def test_rest_is_on_the_next_port_by_default() -> None:
    with Broker(doors=("pubsub",)) as broker:
        port = int(str(broker.pubsub_address).rpartition(":")[2])
        assert broker.pubsub_rest_url == f"http://127.0.0.1:{port + 1}"
        assert httpx.get(broker.pubsub_rest_url).text.strip() == "Ok"
