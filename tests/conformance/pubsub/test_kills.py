"""Processes are killed in the middle of a streaming pull, while somebody publishes.

What was published is delivered until it is acknowledged; what was acknowledged, and confirmed, never
comes again. Messages that were out may come twice.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from google.api_core.exceptions import GoogleAPICallError
from google.pubsub_v1.types import ReceivedMessage

from tests.conformance.pubsub.clients import Project, Stream, until
from tests.conformance.pubsub.conftest import Connect, Door

pytestmark = [pytest.mark.process, pytest.mark.fault]

BACK_S: Final = 40.0
PAUSE_S: Final = 0.002  # between the messages of a publisher that goes on
LOOK_S: Final = 0.5  # for a response, before a look whether it is over
UNDER_WAY_S: Final = 1.0  # that a response may be under way when its message is acknowledged
AROUND: Final = 200  # messages that are acknowledged before the kill, and after it


@pytest.fixture
def project(killed: Door, connect: Connect) -> Iterator[Project]:
    killed.broker.wait_ready(BACK_S)
    yield connect(killed)


class Publishing:
    """Publishes 0, 1, 2, … in a thread of its own; ``accepted`` has those that were confirmed."""

    def __init__(self, project: Project, topic: str) -> None:
        self._project = project
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.accepted: set[bytes] = set()

    def __enter__(self) -> "Publishing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(BACK_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(PAUSE_S):
            data = b"%d" % number
            try:
                self._project.publish(self._topic, data)
            except GoogleAPICallError:
                continue
            self.accepted.add(data)
            number += 1


class Consuming:
    """Pulls by a stream and acknowledges by calls, over and over, whatever happens."""

    def __init__(self, project: Project, subscription: str) -> None:
        self._project = project
        self._subscription = subscription
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.confirmed: dict[bytes, float] = {}  # and when that was
        self.after_confirmed: list[bytes] = []  # what came though it was acknowledged
        self.streams = 0

    def __enter__(self) -> "Consuming":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(BACK_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                with self._project.stream(self._subscription) as stream:
                    self.streams += 1
                    self._consume(stream)
            except (GoogleAPICallError, AssertionError):
                continue  # it is killed, or was: a new stream is opened

    def _consume(self, stream: Stream) -> None:
        while not self._is_over.is_set():
            try:
                got = stream.next(LOOK_S).received_messages
            except queue.Empty:
                continue
            if not got:
                continue
            for one in got:
                self._note(one)
            self._project.acknowledge(self._subscription, got)
            now_s = time.monotonic()
            for one in got:
                self.confirmed.setdefault(bytes(one.message.data), now_s)

    def _note(self, one: ReceivedMessage) -> None:
        data = bytes(one.message.data)
        confirmed_s = self.confirmed.get(data)
        if confirmed_s is not None and time.monotonic() - confirmed_s > UNDER_WAY_S:
            self.after_confirmed.append(data)


def kill_all(door: Door) -> None:
    for kind in ("pubsub", "worker", "frontend", "interests"):
        door.broker.kill(kind)


KILLS: Final[dict[str, Callable[[Door], object]]] = {
    "the door": lambda door: door.broker.kill("pubsub"),
    "the workers": lambda door: door.broker.kill("worker"),
    "the front-end": lambda door: door.broker.kill("frontend"),
    "all": kill_all,
}


@pytest.mark.parametrize("kill", KILLS.values(), ids=list(KILLS))
def test_nothing_is_lost_and_nothing_acknowledged_comes_again(
    project: Project, killed: Door, kill: Callable[[Door], object]
) -> None:
    topic, subscription = project.both()
    with Consuming(project, subscription) as consuming:
        with Publishing(project, topic) as publishing:
            until(lambda: len(consuming.confirmed) >= AROUND, BACK_S)
            kill(killed)
            killed.broker.wait_ready(BACK_S)
            before = len(consuming.confirmed)
            until(lambda: len(consuming.confirmed) >= before + AROUND, BACK_S)
        until(lambda: publishing.accepted <= set(consuming.confirmed), BACK_S)
    assert consuming.after_confirmed == []
    project.nothing(subscription)


@pytest.mark.parametrize("kill", KILLS.values(), ids=list(KILLS))
def test_what_was_not_acknowledged_comes_again(
    project: Project, killed: Door, kill: Callable[[Door], object]
) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"done", b"open")
    got = {bytes(one.message.data): one for one in project.pull(subscription, 2)}
    project.acknowledge(subscription, [got[b"done"]])
    kill(killed)
    killed.broker.wait_ready(BACK_S)
    assert project.pulled(subscription, 1, BACK_S) == [b"open"]
    project.nothing(subscription)


@pytest.mark.parametrize("kill", KILLS.values(), ids=list(KILLS))
def test_an_acknowledgement_of_before_the_kill_counts_after_it(
    project: Project, killed: Door, kill: Callable[[Door], object]
) -> None:
    topic, subscription = project.both(ack_deadline_seconds=60)
    project.publish(topic, b"slow work")
    got = project.pull(subscription)
    kill(killed)
    killed.broker.wait_ready(BACK_S)
    project.acknowledge(subscription, got)
    project.nothing(subscription)


def test_everything_is_there_again_after_a_restart(project: Project, killed: Door) -> None:
    topic, subscription = project.both(labels={"team": "blue"}, ack_deadline_seconds=33)
    project.subscriber.create_snapshot(
        name=project.snapshot_path("then"), subscription=subscription
    )
    project.subscription(topic, "gone")
    project.subscriber.delete_subscription(subscription=project.subscription_path("gone"))
    kill_all(killed)
    killed.broker.wait_ready(BACK_S)
    shown = project.subscriber.get_subscription(subscription=subscription)
    assert (shown.topic, dict(shown.labels), shown.ack_deadline_seconds) == (
        topic,
        {"team": "blue"},
        33,
    )
    assert list(project.publisher.list_topic_subscriptions(topic=topic)) == [subscription]
    assert list(project.publisher.list_topic_snapshots(topic=topic)) == [
        project.snapshot_path("then")
    ]
