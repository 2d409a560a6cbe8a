"""What takes as long as a subscription's shortest deadline, ten seconds: all of it side by side."""

import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from google.api_core.exceptions import ResourceExhausted
from google.cloud.pubsub_v1.subscriber.message import Message
from google.protobuf.field_mask_pb2 import FieldMask
from google.pubsub_v1.types import Subscription

from tests.conformance.pubsub.clients import Pair, Project, data_of, until, wide_subscriber
from tests.conformance.pubsub.conftest import PubSubServer

pytestmark = pytest.mark.process

DEADLINE_S = 10
WORK_S = 12.0
LARGE = b"x" * 4_200_000  # more than a client takes that has only the variable
SMALL = b"small"


class Waited(NamedTuple):
    """A project in which deadlines have passed."""

    project: Project
    wide: Project
    came_s: dict[str, float]  # of a subscription: when its message came again
    worked: list[bytes]  # what a callback was given that took longer than the deadline
    refusal: Exception | None  # what the client said of a large message


@pytest.fixture(scope="module")
def waited(server: PubSubServer, pair: Pair) -> Iterator[Waited]:
    project = server.project(pair)
    subscriber = wide_subscriber(server.address)
    wide = Project(pair, project.id, subscriber)
    yield _waited(project, wide)
    subscriber.close()


def _waited(project: Project, wide: Project) -> Waited:
    topic, large = project.topic(), project.topic("large")
    made = project.subscription(topic, "made", ack_deadline_seconds=DEADLINE_S)
    changed = project.subscription(topic, "changed", ack_deadline_seconds=600)
    worked_on = project.subscription(topic, "worked-on", ack_deadline_seconds=DEADLINE_S)
    project.subscription(topic, "left", ack_deadline_seconds=DEADLINE_S)
    refused = project.subscription(large, "refused", ack_deadline_seconds=DEADLINE_S)
    project.subscriber.update_subscription(
        subscription=Subscription(name=changed, ack_deadline_seconds=DEADLINE_S),
        update_mask=FieldMask(paths=["ack_deadline_seconds"]),
    )
    project.publish(topic, SMALL)
    project.publish(large, LARGE)
    refusal: Exception | None = None
    try:
        project.subscriber.pull(subscription=refused, max_messages=1)
    except ResourceExhausted as error:
        refusal = error
    project.pull(made)
    project.pull(changed)
    began = time.monotonic()
    ends: list[float] = []

    def work(message: Message) -> None:
        time.sleep(WORK_S)
        message.ack()
        ends.append(time.monotonic())

    with project.collect(worked_on, work) as collected:
        came_s: dict[str, float] = {}
        for name, subscription in (("made", made), ("changed", changed)):
            assert project.pulled(subscription) == [SMALL]
            came_s[name] = time.monotonic() - began
        until(lambda: bool(ends))
    return Waited(project, wide, came_s, collected.data, refusal)


@pytest.mark.parametrize("name", ["made", "changed"])
def test_a_message_comes_again_after_the_deadline_of_its_subscription(
    waited: Waited, name: str
) -> None:
    """Be it what the subscription was made with, or what it was changed to."""
    assert DEADLINE_S - 2 < waited.came_s[name] < DEADLINE_S + 5


def test_the_client_extends_what_its_callback_works_on(waited: Waited) -> None:
    assert waited.worked == [SMALL], "once, though the work took longer than the deadline"
    waited.project.nothing(waited.project.subscription_path("worked-on"))


def test_what_nobody_took_waits_on(waited: Waited) -> None:
    assert waited.project.pulled(waited.project.subscription_path("left")) == [SMALL]


def test_a_message_too_large_for_one_client_is_there_for_another(waited: Waited) -> None:
    """The first one says so, and takes nothing from the other."""
    assert isinstance(waited.refusal, ResourceExhausted)
    got = waited.wide.pull(waited.wide.subscription_path("refused"))
    assert data_of(got) == [LARGE]
    waited.wide.acknowledge(waited.wide.subscription_path("refused"), got)
