"""What goes in by the Pub/Sub door comes out by the SDK, and the other way round."""

from collections.abc import Callable, Iterator

import pytest
from google.api_core.exceptions import GoogleAPICallError

import asterism
from asterism import BlockingNode
from tests.conformance.pubsub.clients import PATIENCE_S, Project
from tests.conformance.pubsub.conftest import Door

pytestmark = pytest.mark.process


@pytest.fixture
def there(pubsub_door: Door, connect: Callable[[Door], Project]) -> Project:
    return connect(pubsub_door)


@pytest.fixture
def sdk(pubsub_door: Door) -> Iterator[BlockingNode]:
    with asterism.connect_blocking(pubsub_door.broker.address, name="between doors") as node:
        yield node


def test_a_program_receives_what_is_published(there: Project, sdk: BlockingNode) -> None:
    topic = there.topic()
    with sdk.subscribe(f"{there.id}/orders", name="audit") as inbox:
        there.publish(topic, b"42 EUR", colour="blue")
        delivery = inbox.receive(PATIENCE_S)
        assert (delivery.payload, delivery.attributes["colour"]) == (b"42 EUR", "blue")
        delivery.processed()


def test_a_subscription_gets_what_a_program_publishes(there: Project, sdk: BlockingNode) -> None:
    topic, subscription = there.both()
    sdk.publish(f"{there.id}/orders", b"50 EUR", attributes={"colour": "red"})
    (got,) = there.pull(subscription)
    assert (got.message.data, dict(got.message.attributes)) == (b"50 EUR", {"colour": "red"})
    there.acknowledge(subscription, [got])
    there.publish(topic, b"next")
    assert there.pulled(subscription) == [b"next"]


def test_a_program_s_topic_can_be_made_one_of_pubsub(there: Project, sdk: BlockingNode) -> None:
    """Its messages stay, and it stays when Pub/Sub deletes it."""
    name = f"{there.id}/orders"
    with sdk.subscribe(name, name="audit") as inbox:
        sdk.publish(name, b"before")
        topic, subscription = there.both()
        there.publish(topic, b"after")
        assert there.pulled(subscription) == [b"after"]
        assert [inbox.receive(PATIENCE_S).payload for _ in range(2)] == [b"before", b"after"]
        there.publisher.delete_topic(topic=topic)
        sdk.publish(name, b"still")
        assert inbox.receive(PATIENCE_S).payload == b"still"


def test_an_ordering_key_goes_between_doors(there: Project, sdk: BlockingNode) -> None:
    topic, subscription = there.both(enable_message_ordering=True)
    with sdk.subscribe(f"{there.id}/orders", name="audit") as inbox:
        there.publish(topic, b"x", ordering_key="a")
        with inbox.receive(PATIENCE_S) as delivery:
            assert delivery.header.ordering_key == "a"
    sdk.publish(f"{there.id}/orders", b"y", ordering_key="b")
    got = there.pull(subscription, 2)
    assert sorted(one.message.ordering_key for one in got) == ["a", "b"]


def test_a_topic_that_a_program_deletes_leaves_no_ruin(there: Project, sdk: BlockingNode) -> None:
    """Whatever its subscriptions answer then, the door serves on, and the name can be had again."""
    topic, subscription = there.both()
    there.publish(topic, b"lost")
    sdk.delete_topic(f"{there.id}/orders")
    with pytest.raises(GoogleAPICallError):
        there.subscriber.pull(subscription=subscription, max_messages=1, timeout=2, retry=None)
    there.subscriber.delete_subscription(subscription=subscription)
    there.publisher.delete_topic(topic=topic)
    again, fresh = there.both()
    there.publish(again, b"new")
    assert there.pulled(fresh) == [b"new"]
