"""What else can come to the ports: garbage, other protocols, connections that stall or go away."""

import contextlib
import random
import socket
from collections.abc import Callable

import grpc
import httpx
import pytest
from google.api_core.exceptions import GoogleAPICallError, ResourceExhausted

from tests.conformance.pubsub.clients import Pair, Project
from tests.conformance.pubsub.conftest import Door

pytestmark = [pytest.mark.process]

WAIT_S = 10.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TLS_HELLO = bytes.fromhex("160301005a010000560303") + bytes(80)
GARBAGE = {
    "nothing": b"",
    "zeros": bytes(100_000),
    "random": random.Random(7).randbytes(200_000),
    "a line without an end": b"A" * 300_000,
    "TLS": TLS_HELLO,
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n",
    "a preface alone": PREFACE,
    "a preface and garbage": PREFACE + random.Random(8).randbytes(50_000),
    "a frame of 16 MB": PREFACE
    + b"\0\0\0\4\0\0\0\0\0"
    + b"\xff\xff\xff\0\0\0\0\0\1"
    + bytes(70_000),
    "a head without an end": b"POST /v1/projects/p/topics/t:publish HTTP/1.1\r\n"
    + b"x: y\r\n" * 20_000,
    "a body that never comes": (
        b"POST /v1/projects/p/topics/t:publish HTTP/1.1\r\nHost: x\r\n"
        b"Content-Length: 99999999\r\n\r\n"
    ),
    "two lengths": (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx"
    ),
    "a chunk of nonsense": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n"
    ),
}


@pytest.fixture
def serves(pubsub_door: Door, connect: Callable[[Door], Project]) -> "Serves":
    return Serves(pubsub_door, connect(pubsub_door))


class Serves:
    """A door, and that it goes on serving, by the process that it had."""

    def __init__(self, door: Door, project: Project) -> None:
        self.door, self.project = door, project
        self._pids = door.broker.pids()["pubsub"]
        self.topic, self.subscription = project.both()

    def check(self) -> None:
        self.project.publish(self.topic, b"still here")
        assert self.project.pulled(self.subscription, s=WAIT_S) == [b"still here"]
        rest = httpx.get(f"{self.door.rest_url}/v1/{self.topic}", timeout=WAIT_S)
        assert rest.status_code == 200
        assert self.door.broker.pids()["pubsub"] == self._pids, "the same process"


def place(url_or_address: str) -> tuple[str, int]:
    host, _, port = url_or_address.removeprefix("http://").rpartition(":")
    return host, int(port)


def both_ports(door: Door) -> list[tuple[str, int]]:
    return [place(door.address), place(door.rest_url)]


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=list(GARBAGE))
def test_garbage_ends_its_own_connection_at_most(serves: Serves, garbage: bytes) -> None:
    for where in both_ports(serves.door):
        with socket.create_connection(where, WAIT_S) as connection:
            connection.settimeout(0.2)
            with contextlib.suppress(OSError):
                connection.sendall(garbage)
                connection.recv(65_536)
    serves.check()


def test_the_port_of_grpc_says_something_useful_to_http(serves: Serves) -> None:
    """It answers HTTP/2 alone; whoever asks it in HTTP/1.1 gets no silence."""
    with socket.create_connection(place(serves.door.address), WAIT_S) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.settimeout(WAIT_S)
        assert connection.recv(65_536), "it answers, or closes"


def test_connections_that_say_nothing_hold_up_nobody(serves: Serves) -> None:
    with contextlib.ExitStack() as open_ones:
        for where in both_ports(serves.door):
            for _ in range(100):
                connection = open_ones.enter_context(socket.create_connection(where, WAIT_S))
                connection.sendall(b"P")
        serves.check()
    serves.check()


def test_connections_that_come_and_go_leave_nothing(serves: Serves) -> None:
    for where in both_ports(serves.door):
        for _ in range(300):
            socket.create_connection(where, WAIT_S).close()
    serves.check()


@pytest.mark.parametrize("method", ["Nonsense", "CreateTopic2", "streamingpull"])
def test_a_method_that_is_none_is_unimplemented(serves: Serves, method: str) -> None:
    with grpc.insecure_channel(serves.door.address) as channel:
        call = channel.unary_unary(f"/google.pubsub.v1.Subscriber/{method}")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=WAIT_S)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "method", ["Publisher/Publish", "Subscriber/Pull", "Publisher/CreateTopic"]
)
def test_a_request_that_is_none_is_refused(serves: Serves, method: str) -> None:
    with grpc.insecure_channel(serves.door.address) as channel:
        call = channel.unary_unary(f"/google.pubsub.v1.{method}")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"\xff\xff\xff\xff", timeout=WAIT_S)
    assert refused.value.code() in (
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNKNOWN,
    )
    serves.check()


def test_a_stream_of_garbage_ends_alone(serves: Serves) -> None:
    with grpc.insecure_channel(serves.door.address) as channel:
        call = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")
        with pytest.raises(grpc.RpcError):
            next(call(iter([b"\xff\xff\xff"]), timeout=WAIT_S))
        with pytest.raises((grpc.RpcError, StopIteration)):
            next(call(iter([]), timeout=WAIT_S))
    serves.check()


def test_clients_that_are_killed_leave_nothing_behind(serves: Serves) -> None:
    """Their streams and pulls end with their connections, and what they had goes on."""
    for _ in range(5):
        pair = Pair(serves.door.address)
        gone = Project(pair, serves.project.id)
        gone.stream(serves.subscription)
        pair.close()
    serves.check()


def test_streams_beyond_the_limit_are_refused(
    start: Callable[..., Door], connect: Callable[[Door], Project]
) -> None:
    door = start(max_streams=3)
    project = connect(door)
    topic, subscription = project.both()
    with contextlib.ExitStack() as streams:
        for number in range(3):
            streams.enter_context(project.stream(subscription))
            project.publish(topic, b"%d" % number)
        with project.stream(subscription) as beyond:
            error = beyond.error()
            assert isinstance(error, ResourceExhausted), error
    with project.collect(subscription) as collected:
        project.publish(topic, b"room again")
        assert collected.wait_for(1)


def test_a_door_keeps_its_own_bound_on_what_a_stream_has(
    start: Callable[..., Door], connect: Callable[[Door], Project]
) -> None:
    door = start(max_outstanding_messages=50)
    project = connect(door)
    topic, subscription = project.both()
    project.publish(topic, *[b"x"] * 200)
    with project.stream(subscription) as stream:
        got = stream.take(50)
        stream.nothing(0.5)
        stream.acknowledge(got)
        assert len(stream.take(50)) == 50


def test_an_error_of_a_client_says_what_is_wrong(serves: Serves) -> None:
    with pytest.raises(GoogleAPICallError, match="9") as refused:
        serves.project.subscription(serves.topic, "short", ack_deadline_seconds=9)
    assert "ack_deadline" in str(refused.value)
