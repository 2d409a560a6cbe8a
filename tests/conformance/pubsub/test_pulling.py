"""Pull, Acknowledge and ModifyAckDeadline."""

import contextlib
import threading
import time

import grpc
import pytest
from google.api_core.exceptions import InvalidArgument, NotFound
from google.pubsub_v1.types import PullRequest, PullResponse

from tests.conformance.pubsub.clients import Project, data_of, until

pytestmark = pytest.mark.process


# --- pull -----------------------------------------------------------------------------------------


def test_a_pull_returns_as_many_as_it_asks_for_at_most(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, *(b"%d" % number for number in range(10)))
    seen: list[bytes] = []
    while len(seen) < 10:
        got = project.pull(subscription, most=3)
        assert 1 <= len(got) <= 3
        seen += data_of(got)
    assert len(set(seen)) == 10, "what is out does not come again"


@pytest.mark.parametrize(
    "count",
    [0, pytest.param(-1, marks=pytest.mark.beyond_reference("says UNKNOWN"))],
)
def test_a_pull_asks_for_one_at_least(project: Project, count: int) -> None:
    _, subscription = project.both()
    with pytest.raises(InvalidArgument):
        project.subscriber.pull(subscription=subscription, max_messages=count)


def test_a_pull_that_does_not_wait_returns_nothing_of_nothing(project: Project) -> None:
    _, subscription = project.both()
    began = time.monotonic()
    answer = project.subscriber.pull(
        subscription=subscription, max_messages=1, return_immediately=True
    )
    assert not answer.received_messages
    assert time.monotonic() - began < 5


def test_a_pull_that_does_not_wait_returns_what_is_there(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"here")

    def is_here() -> bool:
        answer = project.subscriber.pull(
            subscription=subscription, max_messages=1, return_immediately=True
        )
        return data_of(answer.received_messages) == [b"here"]

    until(is_here)


def test_a_pull_waits_for_a_message(project: Project) -> None:
    topic, subscription = project.both()
    got: list[bytes] = []
    pulling = threading.Thread(target=lambda: got.extend(project.pulled(subscription)))
    pulling.start()
    time.sleep(0.3)
    assert not got
    project.publish(topic, b"at last")
    pulling.join(20)
    assert got == [b"at last"]


def test_a_pull_that_its_client_gives_up_takes_nothing(project: Project) -> None:
    topic, subscription = project.both()
    for _ in range(3):
        project.nothing(subscription, 0.2)
    project.publish(topic, b"still here")
    assert project.pulled(subscription, s=5) == [b"still here"]


@pytest.mark.beyond_reference("lets one that is gone take what comes next")
def test_pulls_that_are_cancelled_while_messages_come_take_nothing(project: Project) -> None:
    """What a client does not get any more goes to the next, long before a deadline has passed."""
    topic, subscription = project.both(ack_deadline_seconds=600)
    call = project.subscriber.transport.grpc_channel.unary_unary(
        "/google.pubsub.v1.Subscriber/Pull",
        request_serializer=PullRequest.serialize,
        response_deserializer=PullResponse.deserialize,
    )
    for _ in range(5):
        waiting = call.future(PullRequest(subscription=subscription, max_messages=10))
        time.sleep(0.05)
        waiting.cancel()
        with pytest.raises(grpc.FutureCancelledError):
            waiting.result()
    project.publish(topic, b"mine")
    assert project.pulled(subscription, s=5) == [b"mine"]


def test_many_pulls_wait_at_a_time(project: Project) -> None:
    topic, subscription = project.both()
    got: list[bytes] = []
    pulls = [
        threading.Thread(target=lambda: got.extend(project.pulled(subscription))) for _ in range(20)
    ]
    for pull in pulls:
        pull.start()
    for number in range(20):
        project.publish(topic, b"%d" % number)
    for pull in pulls:
        pull.join(20)
    assert sorted(got) == sorted(b"%d" % number for number in range(20))


@pytest.mark.parametrize("path", ["", "billing", "projects/p/topics/billing"])
def test_a_subscription_that_is_no_name_of_one_is_refused(project: Project, path: str) -> None:
    with pytest.raises((InvalidArgument, NotFound)):
        project.subscriber.pull(subscription=path, max_messages=1, retry=None)


def test_without_a_dead_letter_policy_attempts_are_not_counted(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"x")
    for _ in range(3):
        got = project.pull(subscription)
        assert got[0].delivery_attempt == 0
        project.nack(subscription, got)


@pytest.mark.beyond_reference("lets it wait on")
def test_a_waiting_pull_ends_when_its_subscription_is_deleted(project: Project) -> None:
    _, subscription = project.both()
    ends: list[BaseException] = []

    def wait() -> None:
        try:
            project.subscriber.pull(subscription=subscription, max_messages=1, timeout=20)
        except Exception as error:
            ends.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    project.subscriber.delete_subscription(subscription=subscription)
    waiting.join(25)
    assert [type(end) for end in ends] == [NotFound]


# --- two subscriptions, two topics ----------------------------------------------------------------


def test_every_subscription_gets_every_message(project: Project) -> None:
    topic = project.topic()
    first, second = (project.subscription(topic, name) for name in ("first", "second"))
    sent = sorted(b"%02d" % number for number in range(20))
    project.publish(topic, *sent)
    assert sorted(project.pulled(first, 20)) == sent
    assert sorted(project.pulled(second, 20)) == sent, "what others acknowledge does not count"


def test_a_message_has_one_id_for_all_subscriptions(project: Project) -> None:
    topic = project.topic()
    first, second = (project.subscription(topic, name) for name in ("first", "second"))
    project.publish(topic, b"x")
    (one,), (other,) = project.pull(first), project.pull(second)
    assert one.message == other.message


# --- acknowledge ----------------------------------------------------------------------------------


def test_what_is_acknowledged_does_not_come_again(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"once")
    got = project.pull(subscription)
    project.extend(subscription, got, 1)
    project.acknowledge(subscription, got)
    project.nothing(subscription, 1.5)


def test_an_acknowledgement_that_is_repeated_does_no_harm(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"once")
    got = project.pull(subscription)
    for _ in range(3):
        project.acknowledge(subscription, got)
    project.nack(subscription, got)
    project.nothing(subscription)


def test_a_late_acknowledgement_counts_if_nobody_else_has_the_message(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"late")
    got = project.pull(subscription)
    project.extend(subscription, got, 1)
    time.sleep(1.3)
    project.acknowledge(subscription, got)
    project.nothing(subscription)


def test_a_thousand_are_acknowledged_at_once(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, *[b"x"] * 1_000)
    got = project.pull(subscription, 1_000)
    project.acknowledge(subscription, got)
    project.nack(subscription, got)
    project.nothing(subscription)


def test_an_acknowledgement_is_of_its_subscription(project: Project) -> None:
    topic = project.topic()
    first, second = (project.subscription(topic, name) for name in ("first", "second"))
    project.publish(topic, b"x")
    got = project.pull(first)
    project.acknowledge(first, got)
    assert project.pulled(second) == [b"x"]


def test_nothing_to_acknowledge_is_refused(project: Project) -> None:
    _, subscription = project.both()
    with pytest.raises(InvalidArgument):
        project.subscriber.acknowledge(subscription=subscription, ack_ids=[])
    with pytest.raises(InvalidArgument):
        project.subscriber.modify_ack_deadline(
            subscription=subscription, ack_ids=[], ack_deadline_seconds=10
        )


@pytest.mark.parametrize("ack_id", ["", "nonsense", "ü" * 50, "1:2:3:4", "x" * 5_000], ids=ascii)
def test_an_ack_id_that_nobody_gave_is_refused_or_ignored(project: Project, ack_id: str) -> None:
    """The service says INVALID_ARGUMENT; what counts is that nothing else happens."""
    topic, subscription = project.both()
    project.publish(topic, b"x")
    for _ in range(2):
        with contextlib.suppress(InvalidArgument):
            project.subscriber.acknowledge(subscription=subscription, ack_ids=[ack_id])
    assert project.pulled(subscription) == [b"x"]


def test_what_is_not_there_cannot_be_acknowledged(project: Project) -> None:
    path = project.subscription_path("nobody")
    with pytest.raises(NotFound):
        project.subscriber.acknowledge(subscription=path, ack_ids=["x"])
    with pytest.raises(NotFound):
        project.subscriber.modify_ack_deadline(
            subscription=path, ack_ids=["x"], ack_deadline_seconds=10
        )


# --- deadlines ------------------------------------------------------------------------------------


def test_a_deadline_is_moved_any_number_of_times(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"long")
    got = project.pull(subscription)
    for _ in range(3):
        project.extend(subscription, got, 2)
        project.nothing(subscription, 1.0)
    assert project.pulled(subscription) == [b"long"]


def test_a_nack_brings_a_message_at_once(project: Project) -> None:
    topic, subscription = project.both(ack_deadline_seconds=600)
    project.publish(topic, b"again")
    for _ in range(3):
        began = time.monotonic()
        project.nack(subscription, project.pull(subscription))
        got = project.pull(subscription)
        assert time.monotonic() - began < 5
        project.nack(subscription, got)


def test_a_nacked_message_can_go_to_another(project: Project) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"x")
    got = project.pull(subscription)
    other: list[bytes] = []
    waiting = threading.Thread(target=lambda: other.extend(project.pulled(subscription)))
    waiting.start()
    project.nack(subscription, got)
    waiting.join(20)
    assert other == [b"x"]


@pytest.mark.parametrize(
    "seconds", [-1, pytest.param(601, marks=pytest.mark.beyond_reference("takes it"))]
)
def test_a_deadline_has_bounds(project: Project, seconds: int) -> None:
    topic, subscription = project.both()
    project.publish(topic, b"x")
    got = project.pull(subscription)
    with pytest.raises(InvalidArgument):
        project.extend(subscription, got, seconds)
    project.acknowledge(subscription, got)


def test_an_older_attempt_does_not_end_a_newer_one(project: Project) -> None:
    """A late report of an ack id must not take the message from who has it now."""
    topic, subscription = project.both()
    project.publish(topic, b"x")
    old = project.pull(subscription)
    project.nack(subscription, old)
    new = project.pull(subscription)
    project.nack(subscription, old)
    project.nothing(subscription)
    project.acknowledge(subscription, new)
    project.nothing(subscription)


@pytest.mark.beyond_reference("has it come again")
def test_an_acknowledgement_of_an_older_attempt_counts(project: Project) -> None:
    """Whoever processed the message has processed it, though another has been given it since."""
    topic, subscription = project.both()
    project.publish(topic, b"x")
    old = project.pull(subscription)
    project.nack(subscription, old)
    new = project.pull(subscription)
    project.acknowledge(subscription, old)
    project.nack(subscription, new)
    project.nothing(subscription)
