"""Processes of the broker are killed under the clients of the door, and the whole of it restarts.

What was published stays until it is acknowledged, and what was acknowledged stays away: of messages
whose acknowledgement was confirmed none comes again.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError
from google.cloud.pubsub_v1.subscriber.message import Message

from tests.conformance.pubsub.clients import Pair, Project, data_of, until
from tests.conformance.pubsub.conftest import Door
from tests.conformance.pubsub.endpoint import Endpoint

pytestmark = [pytest.mark.process, pytest.mark.fault]

BACK_S = 30.0
AROUND = 150  # messages on either side of a kill
PAUSE_S = 0.002
KINDS = ["pubsub", "worker", "frontend"]


@pytest.fixture
def there(killed: Door) -> Iterator[Project]:
    """A project on a door of which every process runs."""
    killed.broker.wait_ready(BACK_S)
    pair = Pair(killed.address)
    yield killed.project(pair)
    pair.close()


class Publishing:
    """Publishes 0, 1, 2, … until it is left; each until it is accepted."""

    def __init__(self, project: Project, topic: str) -> None:
        self._project, self._topic = project, topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.accepted: list[int] = []

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(PAUSE_S):
            with contextlib.suppress(GoogleAPICallError, RetryError):
                self._project.publisher.publish(self._topic, b"%d" % number).result(BACK_S)
                self.accepted.append(number)
            number += 1

    def wait_for(self, count: int) -> None:
        until(lambda: len(self.accepted) >= count, BACK_S)

    def __enter__(self) -> "Publishing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(BACK_S)
        assert not self._thread.is_alive()


def kill_within(killed: Door, kind: str, publishing: Publishing, seen: Callable[[], int]) -> None:
    """Kills when some have come, and goes on until more have come after it."""
    until(lambda: seen() >= AROUND, BACK_S)
    killed.broker.kill(kind)
    killed.broker.wait_ready(BACK_S)
    publishing.wait_for(len(publishing.accepted) + AROUND)


# --- in the middle of streams ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_streaming_pull_goes_on_after_a_kill(killed: Door, there: Project, kind: str) -> None:
    """Everything that was accepted comes to the callback; the client connects again by itself."""
    topic, subscription = there.both()
    with there.collect(subscription) as collected, Publishing(there, topic) as publishing:
        kill_within(killed, kind, publishing, lambda: len(collected.data))
        publishing.__exit__()
        wanted = {b"%d" % number for number in publishing.accepted}
        until(lambda: wanted <= set(collected.data), BACK_S)
    there.nothing(subscription)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_confirmed_does_not_come_again(killed: Door, there: Project, kind: str) -> None:
    """The client confirms each acknowledgement of an exactly-once subscription."""
    topic, subscription = there.both(enable_exactly_once_delivery=True, ack_deadline_seconds=30)
    lock = threading.Lock()
    confirmed: dict[bytes, float] = {}
    late: list[bytes] = []

    def take(message: Message) -> None:
        now = time.monotonic()
        with lock:
            if confirmed.get(message.data, now) < now - 1:  # that was on its way before may come
                late.append(message.data)
        try:
            message.ack_with_response().result(BACK_S)
        except (AcknowledgeError, TimeoutError):
            return
        with lock:
            confirmed.setdefault(message.data, time.monotonic())

    with there.collect(subscription, take) as collected, Publishing(there, topic) as publishing:
        kill_within(killed, kind, publishing, lambda: len(confirmed))
        publishing.__exit__()
        wanted = {b"%d" % number for number in publishing.accepted}
        until(lambda: wanted <= set(collected.data), BACK_S)
        until(lambda: wanted <= set(confirmed), BACK_S)
    assert late == []
    there.nothing(subscription)


@pytest.mark.parametrize("kind", KINDS)
def test_pulls_go_on_after_a_kill(killed: Door, there: Project, kind: str) -> None:
    """A pull that begins when an acknowledgement was confirmed never returns that message."""
    topic, subscription = there.both(ack_deadline_seconds=10)
    confirmed: set[bytes] = set()
    is_over = threading.Event()
    again: list[bytes] = []

    def pull() -> None:
        while not is_over.is_set():
            with contextlib.suppress(GoogleAPICallError, RetryError):
                before = set(confirmed)
                answer = there.subscriber.pull(
                    subscription=subscription, max_messages=20, timeout=2, retry=None
                )
                got = list(answer.received_messages)
                again.extend(set(data_of(got)) & before)
                if got:
                    there.acknowledge(subscription, got)
                    confirmed.update(data_of(got))

    pulling = threading.Thread(target=pull, daemon=True)
    pulling.start()
    with Publishing(there, topic) as publishing:
        kill_within(killed, kind, publishing, lambda: len(confirmed))
    wanted = {b"%d" % number for number in publishing.accepted}
    until(lambda: wanted <= confirmed, BACK_S)
    is_over.set()
    pulling.join(BACK_S)
    assert again == []
    there.nothing(subscription)


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


def test_an_order_outlives_kills(killed: Door, there: Project) -> None:
    topic, subscription = there.both(enable_message_ordering=True)
    for number in range(60):
        there.publish(topic, b"%d" % number, ordering_key="a")
    seen: list[int] = []

    def take(message: Message) -> None:
        seen.append(int(message.data))
        time.sleep(0.01)
        message.ack()

    with there.collect(subscription, take):
        until(lambda: len(seen) > 10, BACK_S)
        killed.broker.kill("pubsub")
        killed.broker.wait_ready(BACK_S)
        until(lambda: len(seen) > 30, BACK_S)
        killed.broker.kill("worker")
        killed.broker.wait_ready(BACK_S)
        until(lambda: 59 in seen, BACK_S)
    first_times = sorted(set(seen), key=seen.index)
    assert first_times == list(range(60))


def test_dead_letters_outlive_a_kill_once_each(killed: Door, there: Project) -> None:
    topic, dead = there.topic(), there.topic("dead")
    letters = there.subscription(dead, "letters")
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    subscription = there.subscription(topic, dead_letter_policy=policy)
    sent = sorted(b"%03d" % number for number in range(200))
    there.publish(topic, *sent)
    with there.collect(subscription, Message.nack) as collected:
        until(lambda: len(collected.data) > 900, BACK_S)
        killed.broker.kill("pubsub")
        killed.broker.wait_ready(BACK_S)
        got: list[bytes] = []
        until(lambda: bool(got.extend(there.pulled(letters))) or len(set(got)) == 200, BACK_S)
    there.nothing(letters)
    assert sorted(got) == sent, "once each"


# --- a restart of everything ----------------------------------------------------------------------


def test_everything_outlives_a_restart_of_the_whole_broker(killed: Door, there: Project) -> None:
    topic, dead = there.topic(labels={"a": "1"}), there.topic("dead")
    settings = {
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


@pytest.mark.parametrize("kind", ["pubsub", "worker"])
def test_pushing_goes_on_after_a_kill(
    killed: Door, there: Project, endpoint: Endpoint, kind: str
) -> None:
    topic, _ = there.both(push_config={"push_endpoint": endpoint.url})
    with Publishing(there, topic) as publishing:
        kill_within(killed, kind, publishing, lambda: len(endpoint.requests))
    wanted = {b"%d" % number for number in publishing.accepted}
    until(lambda: wanted <= {one.message.data for one in list(endpoint.requests)}, BACK_S)
