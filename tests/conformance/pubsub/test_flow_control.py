"""Flow control of streams: nobody is sent more than it has said, and nobody waits for another."""

import threading
import time

import pytest
from google.cloud.pubsub_v1.subscriber.message import Message
from google.cloud.pubsub_v1.types import FlowControl

from tests.conformance.pubsub.clients import Project, data_of, until

pytestmark = [
    pytest.mark.process,
    pytest.mark.beyond_reference("sends more than its clients allow"),
]


def test_a_stream_has_as_many_messages_as_it_allows(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, *(b"%d" % number for number in range(20)))
    with project.stream(subscription, max_outstanding_messages=3) as stream:
        seen: list[bytes] = []
        got = stream.take(3)
        while len(seen) < 20:
            stream.nothing(0.1)
            seen += data_of(got)
            stream.acknowledge(got)
            got = stream.take(min(3, 20 - len(seen)))
        assert len(set(seen)) == 20


def test_one_acknowledgement_makes_room_for_one(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, *(b"%d" % number for number in range(10)))
    with project.stream(subscription, max_outstanding_messages=4) as stream:
        held = stream.take(4)
        for _ in range(3):
            stream.acknowledge([held.pop(0)])
            held += stream.take(1)
            stream.nothing(0.1)


def test_unary_acknowledgements_make_room_too(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, *(b"%d" % number for number in range(4)))
    with project.stream(subscription, max_outstanding_messages=2) as stream:
        project.acknowledge(subscription, stream.take(2))
        project.acknowledge(subscription, stream.take(2))
    project.nothing(subscription)


def test_a_nack_makes_room(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"one", b"two")
    with project.stream(subscription, max_outstanding_messages=1) as stream:
        for _ in range(6):
            got = stream.take(1)
            stream.extend(got, 0)


def test_a_deadline_that_passes_makes_room(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"one", b"two")
    with project.stream(subscription, max_outstanding_messages=1) as stream:
        first = stream.take(1)
        stream.extend(first, 1)
        assert len(stream.take(1, 8)) == 1


def test_a_stream_has_as_many_bytes_as_it_allows(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, *[b"x" * 1_000] * 10)
    with project.stream(subscription, max_outstanding_bytes=3_500) as stream:
        time.sleep(0.5)
        got = stream.waiting()
        assert 1 <= len(got) <= 4, "no more than begin within the bytes"
        while len(got) < 10:
            stream.acknowledge(got[-1:])
            got += stream.take(1)


def test_a_message_larger_than_the_bytes_comes_alone(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"x" * 5_000, b"y" * 5_000)
    with project.stream(subscription, max_outstanding_bytes=100) as stream:
        got = stream.take(1)
        stream.nothing(0.3)
        stream.acknowledge(got)
        stream.acknowledge(stream.take(1))


def test_without_a_limit_of_its_own_a_stream_gets_what_there_is(project: Project) -> None:
    topic, subscription = project.both()
    for _ in range(3):
        project.publish(topic, *[b"x"] * 1_000)
    with project.stream(subscription) as stream:
        assert len(stream.take(3_000)) == 3_000


def test_a_subscriber_that_stalls_hoards_no_more_than_it_allows(project: Project) -> None:
    """The others of its subscription go on with the rest."""
    topic, subscription = project.both()
    going = threading.Event()
    flow = FlowControl(max_messages=10)

    def stall(message: Message) -> None:
        going.wait(20)
        message.nack()

    with project.collect(subscription, stall, flow_control=flow) as stalled:
        project.publish(topic, *(b"%d" % number for number in range(10)))
        until(lambda: len(stalled.data) == 10)
        with project.collect(subscription, flow_control=flow) as brisk:
            project.publish(topic, *(b"more-%d" % number for number in range(300)))
            assert len(brisk.wait_for(300)) == 300
            assert len(stalled.data) == 10
            going.set()
            assert len(set(brisk.wait_for(310, 20)) | set(stalled.data)) >= 310


def test_a_subscriber_that_reads_nothing_holds_nobody_up(project: Project) -> None:
    """Its stream is open, and it never takes a response from it."""
    topic = project.topic()
    lazy, busy = (project.subscription(topic, name) for name in ("lazy", "busy"))
    with project.unread(lazy), project.collect(busy) as collected:
        for _ in range(10):
            project.publish(topic, *[b"x" * 10_000] * 100)
        assert len(collected.wait_for(1_000)) == 1_000


def test_a_subscriber_that_stalls_does_not_slow_another_subscription(project: Project) -> None:
    topic = project.topic()
    first, second = (project.subscription(topic, name) for name in ("first", "second"))
    with project.stream(first, max_outstanding_messages=1), project.collect(second) as collected:
        project.publish(topic, *(b"%d" % number for number in range(500)))
        assert len(collected.wait_for(500)) == 500
