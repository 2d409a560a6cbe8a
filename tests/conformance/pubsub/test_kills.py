"""Processes of the broker are killed under the clients of the door, and the whole of it restarts.

What was published stays until it is acknowledged, and what was acknowledged stays away: of messages
whose acknowledgement was confirmed none comes again.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.cloud.pubsub_v1.subscriber.futures import Future as AcknowledgeFuture
from google.cloud.pubsub_v1.subscriber.message import Message
from google.pubsub_v1.types import PubsubMessage

from tests.conformance.pubsub.clients import Pair, Project, data_of, until
from tests.conformance.pubsub.conftest import Door
from tests.conformance.pubsub.endpoint import Endpoint

pytestmark = [pytest.mark.process, pytest.mark.fault]

BACK_S = 30.0
CLIENT_S = 90.0  # what the client drops, since it could not say that it has it, is its for 60 s
AROUND = 80  # messages on either side of a kill
PAUSE_S = 0.005


@pytest.fixture
def there(killed: Door) -> Iterator[Project]:
    """A project on a door of which every process runs."""
    killed.broker.wait_ready(BACK_S)
    pair = Pair(killed.address)
    yield killed.project(pair)
    pair.close()


class Publishing:
    """Publishes 0, 1, 2, … in a thread of its own, each until it is accepted.

    The client publishes again what was not answered, so that a number may be in two messages.
    """

    def __init__(self, project: Project, topic: str, keys: int = 0) -> None:
        self._project, self._topic, self._keys = project, topic, keys
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.accepted: list[int] = []
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(PAUSE_S):
            key = f"key-{number % self._keys}" if self._keys else ""
            message = PubsubMessage(data=b"%d" % number, ordering_key=key)
            with contextlib.suppress(GoogleAPICallError, RetryError):
                self._project.bare.publish(topic=self._topic, messages=[message], timeout=BACK_S)
                self.accepted.append(number)
            number += 1

    def wait_for_more(self, count: int) -> None:
        wanted = len(self.accepted) + count
        until(lambda: len(self.accepted) >= wanted, BACK_S)

    def stop(self) -> set[bytes]:
        """Publishes no more; what was accepted."""
        self._is_over.set()
        self._thread.join(BACK_S)
        assert not self._thread.is_alive()
        return {b"%d" % number for number in self.accepted}


class Confirming:
    """Takes from an exactly-once subscription, and notes what was confirmed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._confirmed_s: dict[str, float] = {}  # by message id
        self.confirmed: set[bytes] = set()
        self.again: list[bytes] = []

    def take(self, message: Message) -> None:
        now = time.monotonic()
        with self._lock:
            # One that was on its way before its acknowledgement was confirmed may come behind it.
            if self._confirmed_s.get(message.message_id, now) < now - 1:
                self.again.append(message.data)
        answer = message.ack_with_response()
        answer.add_done_callback(lambda answered: self._answered(message, answered))

    def _answered(self, message: Message, answered: AcknowledgeFuture) -> None:
        if answered.exception() is not None:
            return
        with self._lock:
            self._confirmed_s.setdefault(message.message_id, time.monotonic())
            self.confirmed = {*self.confirmed, message.data}


class Pulling:
    """Pulls and acknowledges in a thread of its own.

    A pull that begins when an acknowledgement was confirmed must not return that message.
    """

    def __init__(self, project: Project, subscription: str) -> None:
        self._project, self._subscription = project, subscription
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._confirmed_ids: set[str] = set()
        self.confirmed: set[bytes] = set()
        self.again: list[bytes] = []
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(GoogleAPICallError, RetryError):
                answer = self._project.subscriber.pull(
                    subscription=self._subscription, max_messages=20, timeout=2, retry=None
                )
                got = list(answer.received_messages)
                self.again += [
                    one.message.data for one in got if one.message.message_id in self._confirmed_ids
                ]
                if got:
                    self._project.acknowledge(self._subscription, got)
                    self._confirmed_ids.update(one.message.message_id for one in got)
                    self.confirmed = {*self.confirmed, *data_of(got)}

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(BACK_S)


class Survived(NamedTuple):
    """What clients saw of a kill: what was accepted, and what came to each of them."""

    accepted: set[bytes]
    streamed: set[bytes]
    confirming: Confirming
    pulling: Pulling
    pushed: set[bytes]
    accepted_in_order: set[bytes]
    ordered: list[Message]
    left: dict[str, list[bytes]]  # by subscription: what comes when all is acknowledged


@pytest.fixture(scope="module", params=["pubsub", "worker", "frontend"])
def survived(killed: Door, request: pytest.FixtureRequest) -> Iterator[Survived]:
    """A process is killed while somebody publishes, and five subscriptions take it all."""
    killed.broker.wait_ready(BACK_S)
    pair = Pair(killed.address)
    there = killed.project(pair)
    with Endpoint() as endpoint:
        yield _killed_within(killed, str(request.param), there, endpoint)
    pair.close()


def _killed_within(killed: Door, kind: str, there: Project, endpoint: Endpoint) -> Survived:
    topic, keyed = there.topic(), there.topic("keyed")
    plain = there.subscription(topic, "plain")
    once = there.subscription(topic, "once", enable_exactly_once_delivery=True)
    pull = there.subscription(topic, "pull")
    push = there.subscription(topic, "push", push_config={"push_endpoint": endpoint.url})
    order = there.subscription(keyed, "order", enable_message_ordering=True)
    confirming, pulling = Confirming(), Pulling(there, pull)

    def pushed() -> set[bytes]:
        return {one.message.data for one in list(endpoint.requests)}

    with (
        there.collect(plain) as streamed,
        there.collect(once, confirming.take),
        there.collect(order) as ordered,
    ):
        publishing, keying = Publishing(there, topic), Publishing(there, keyed, keys=5)
        for seen in (streamed, ordered):
            until(lambda seen=seen: len(seen.data) >= AROUND, BACK_S)  # type: ignore[misc]
        killed.broker.kill(kind)
        killed.broker.wait_ready(BACK_S)
        for one in (publishing, keying):
            one.wait_for_more(AROUND)
        wanted, wanted_in_order = publishing.stop(), keying.stop()
        until(lambda: wanted <= set(streamed.data), BACK_S)
        until(lambda: wanted_in_order <= set(ordered.data), BACK_S)
        until(lambda: wanted <= confirming.confirmed, CLIENT_S)
        until(lambda: wanted <= pulling.confirmed, BACK_S)
        until(lambda: wanted <= pushed(), BACK_S)
        pulling.stop()
    there.subscriber.modify_push_config(subscription=push, push_config={})
    left = {
        name.rpartition("/")[2]: data_of(
            there.subscriber.pull(
                subscription=name, max_messages=100, return_immediately=True
            ).received_messages
        )
        for name in (plain, once, pull, push, order)
    }
    return Survived(
        wanted,
        set(streamed.data),
        confirming,
        pulling,
        pushed(),
        wanted_in_order,
        ordered.messages,
        left,
    )


# --- in the middle of everything ------------------------------------------------------------------


def test_a_streaming_pull_goes_on_after_a_kill(survived: Survived) -> None:
    """The client connects again by itself, and everything that was accepted comes to it."""
    assert survived.streamed >= survived.accepted
    assert survived.left["plain"] == []


def test_what_is_confirmed_does_not_come_again(survived: Survived) -> None:
    assert survived.confirming.confirmed >= survived.accepted
    assert survived.confirming.again == []
    assert survived.left["once"] == []


def test_pulls_go_on_after_a_kill(survived: Survived) -> None:
    assert survived.pulling.confirmed >= survived.accepted
    assert survived.pulling.again == []
    assert survived.left["pull"] == []


def test_pushing_goes_on_after_a_kill(survived: Survived) -> None:
    assert survived.pushed >= survived.accepted


def test_an_order_outlives_a_kill(survived: Survived) -> None:
    by_key: dict[str, list[int]] = {}
    for message in survived.ordered:
        by_key.setdefault(message.ordering_key, []).append(int(message.data))
    for seen in by_key.values():
        first_times = list(dict.fromkeys(seen))
        assert first_times == sorted(first_times)
    assert survived.left["order"] == []


# --- at a moment that the test chooses ------------------------------------------------------------


def test_what_is_out_when_the_door_is_killed_can_be_acknowledged_after_it(
    killed: Door, there: Project
) -> None:
    """An ack id outlives the process that gave it."""
    topic, subscription = there.both(ack_deadline_seconds=60)
    there.publish(topic, b"one", b"two", b"three")
    got = there.pull(subscription, 3)
    killed.broker.restart("pubsub")
    there.acknowledge(subscription, got[:1])
    there.nack(subscription, got[1:])
    assert sorted(there.pulled(subscription, 2)) == sorted(data_of(got[1:]))
    there.nothing(subscription)


def test_what_is_out_when_the_door_is_killed_and_not_acknowledged_comes_again(
    killed: Door, there: Project
) -> None:
    topic, subscription = there.both(ack_deadline_seconds=10)
    there.publish(topic, b"one", b"two")
    there.pull(subscription, 2)
    killed.broker.restart("pubsub")
    assert sorted(there.pulled(subscription, 2)) == [b"one", b"two"]
    there.nothing(subscription)


def test_dead_letters_outlive_a_kill_once_each(killed: Door, there: Project) -> None:
    topic, dead = there.topic(), there.topic("dead")
    letters = there.subscription(dead, "letters")
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    subscription = there.subscription(topic, dead_letter_policy=policy)
    sent = sorted(b"%03d" % number for number in range(100))
    there.publish(topic, *sent)
    for _ in range(5):
        there.nack(subscription, there.pull(subscription, len(sent)))
    with there.collect(subscription):
        killed.broker.kill("pubsub")
        killed.broker.wait_ready(BACK_S)
        assert sorted(there.pulled(letters, len(sent))) == sent, "once each"
    there.nothing(letters)


# --- a restart of everything ----------------------------------------------------------------------


def test_everything_outlives_a_restart_of_the_whole_broker(killed: Door, there: Project) -> None:
    topic, dead = there.topic(labels={"a": "1"}), there.topic("dead")
    settings: dict[str, Any] = {
        "ack_deadline_seconds": 33,
        "labels": {"b": "2"},
        "filter": "attributes:wanted",
        "enable_message_ordering": True,
        "retain_acked_messages": True,
        "dead_letter_policy": {"dead_letter_topic": dead, "max_delivery_attempts": 7},
    }
    subscription = there.subscription(topic, **settings)
    detached = there.subscription(topic, "detached")
    there.publisher.detach_subscription(request={"subscription": detached})
    gone = there.topic("gone")
    orphan = there.subscription(gone, "orphan")
    there.publisher.delete_topic(topic=gone)
    there.publish(topic, b"waits", wanted="1")
    snapshot = there.subscriber.create_snapshot(
        name=there.snapshot_path("snap"), subscription=subscription
    )
    there.pulled(subscription)
    before = there.subscriber.get_subscription(subscription=subscription)

    for kind in ("pubsub", "worker", "frontend", "interests"):
        killed.broker.kill(kind)
    killed.broker.wait_ready(BACK_S)

    assert there.subscriber.get_subscription(subscription=subscription) == before
    assert dict(there.publisher.get_topic(topic=topic).labels) == {"a": "1"}
    assert {one.name for one in there.publisher.list_topics(project=there.path)} == {topic, dead}
    assert there.subscriber.get_subscription(subscription=detached).detached
    assert there.subscriber.get_subscription(subscription=orphan).topic == "_deleted-topic_"
    (kept,) = there.subscriber.list_snapshots(project=there.path)
    assert kept == snapshot
    there.nothing(subscription)
    there.subscriber.seek(request={"subscription": subscription, "snapshot": snapshot.name})
    assert there.pulled(subscription) == [b"waits"]
    there.publish(topic, b"unwanted")
    there.publish(topic, b"new", wanted="1")
    assert there.pulled(subscription) == [b"new"]
    with contextlib.suppress(GoogleAPICallError):
        there.topic("after")
    assert len(list(there.publisher.list_topics(project=there.path))) == 3


def test_ids_go_on_behind_a_restart(killed: Door, there: Project) -> None:
    topic, subscription = there.both(retain_acked_messages=True)
    ids = there.publish(topic, b"a", b"b")
    there.pulled(subscription, 2)
    killed.broker.restart("worker")
    killed.broker.restart("pubsub")
    ids += there.publish(topic, b"c")
    assert len(set(ids)) == 3
    there.pulled(subscription)
    back = {"subscription": subscription, "time": datetime.now(UTC) - timedelta(hours=1)}
    there.subscriber.seek(request=back)
    assert {one.message.message_id for one in there.pull(subscription, 3)} == set(ids)


def test_resources_that_are_made_while_the_door_is_killed_are_whole_or_not_there(
    killed: Door, there: Project
) -> None:
    """What CreateSubscription confirmed is there; what it did not can be made again."""
    topic = there.topic()
    made: list[str] = []
    is_over = threading.Event()

    def make() -> None:
        number = 0
        while not is_over.is_set():
            with contextlib.suppress(GoogleAPICallError, RetryError):
                made.append(there.subscription(topic, f"sub-{number}"))
            number += 1

    making = threading.Thread(target=make, daemon=True)
    making.start()
    for _ in range(2):
        count = len(made)
        until(lambda count=count: len(made) > count + 3, BACK_S)  # type: ignore[misc]
        killed.broker.kill("pubsub")
        killed.broker.wait_ready(BACK_S)
    is_over.set()
    making.join(BACK_S)
    listed = set(there.publisher.list_topic_subscriptions(topic=topic))
    assert set(made) <= listed
    there.publish(topic, b"for all")
    for subscription in listed:
        assert there.pulled(subscription) == [b"for all"]
