"""Large requests and responses: ten megabytes at most one way, and four MiB the other.

With ``PUBSUB_EMULATOR_HOST`` the Python client takes no response above gRPC's default, 4 MiB; it
publishes what it likes.
"""

import httpx
import pytest
from google.api_core.exceptions import InvalidArgument, ResourceExhausted
from google.pubsub_v1.types import PubsubMessage

from tests.conformance.pubsub.clients import Project, data_of

pytestmark = pytest.mark.process

RESPONSE_BYTES_MAX = 4_194_304
REQUEST_BYTES_MAX = 10_485_760
OVERHEAD = 200  # bytes that a request has beside the data
LARGE = 1_900_000


def test_a_message_may_have_nearly_ten_megabytes(project: Project, wide: Project) -> None:
    topic, subscription = project.both()
    data = bytes(range(256)) * ((REQUEST_BYTES_MAX - OVERHEAD) // 256)
    project.publish(topic, data)
    assert wide.pulled(subscription) == [data]


@pytest.mark.beyond_reference("has another limit, and says UNKNOWN")
@pytest.mark.parametrize("size", [REQUEST_BYTES_MAX + 1, 12_000_000])
def test_a_request_beyond_ten_megabytes_is_refused(project: Project, size: int) -> None:
    """Nothing is lost by it: what is published next comes."""
    topic, subscription = project.both()
    with pytest.raises(InvalidArgument):
        project.publish(topic, b"x" * size)
    project.publish(topic, b"small")
    assert project.pulled(subscription) == [b"small"]


@pytest.mark.beyond_reference("closes the connection")
def test_a_request_of_any_size_is_answered(project: Project) -> None:
    topic, subscription = project.both()
    with pytest.raises((InvalidArgument, ResourceExhausted)):
        project.bare.publish(
            topic=topic, messages=[PubsubMessage(data=b"x" * 64_000_000)], retry=None, timeout=20
        )
    project.publish(topic, b"small")
    assert project.pulled(subscription) == [b"small"]


@pytest.mark.beyond_reference("puts them into one response, which the client refuses")
def test_a_pull_takes_as_many_as_fit_into_a_response(project: Project) -> None:
    topic, subscription = project.both()
    data = [b"%d" % number * LARGE for number in range(5)]
    project.publish(topic, *data)
    got: list[bytes] = []
    while len(got) < len(data):
        part = project.pull(subscription, most=5)
        assert sum(map(len, data_of(part))) < RESPONSE_BYTES_MAX
        project.acknowledge(subscription, part)
        got += data_of(part)
    assert sorted(got) == sorted(data)


@pytest.mark.beyond_reference("puts them into one response, which the client refuses")
def test_a_stream_is_sent_as_many_as_fit_into_a_response(project: Project) -> None:
    topic, subscription = project.both()
    data = [b"%d" % number * LARGE for number in range(5)]
    project.publish(topic, *data)
    with project.collect(subscription) as collected:
        assert sorted(collected.wait_for(len(data))) == sorted(data)
    project.nothing(subscription)


@pytest.mark.beyond_reference("puts them into one response, which the client refuses")
def test_many_small_messages_with_many_attributes_fit_too(project: Project) -> None:
    """What counts is the response, and not the data."""
    topic, subscription = project.both()
    attributes = {f"{number:03}": "v" * 1_000 for number in range(90)}
    for _ in range(2):
        project.publish(topic, *[b"x"] * 50, **attributes)
    with project.collect(subscription) as collected:
        assert len(collected.wait_for(100)) == 100


def test_a_large_message_goes_by_rest(project: Project, rest: httpx.Client) -> None:
    topic, subscription = project.both()
    data = b"y" * 5_000_000
    project.publish(topic, data)
    answer = rest.post(f"{subscription}:pull", json={"maxMessages": 1})
    (got,) = answer.json()["receivedMessages"]
    assert len(got["message"]["data"]) > len(data)
    rest.post(f"{subscription}:acknowledge", json={"ackIds": [got["ackId"]]}).raise_for_status()
    project.nothing(subscription)
