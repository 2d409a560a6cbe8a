"""What a server lets nobody exceed: payloads, lines, subscriptions, connections."""

import time

import pytest

from tests.conformance.nats.conftest import Connect, NatsServer, Started
from tests.conformance.nats.raw_client import FULL, PLAIN, RawClient, error, hpub, pub, sub

pytestmark = pytest.mark.process

PAYLOAD = error("Maximum Payload Violation")
LINE = error("maximum control line exceeded")
SUBSCRIPTIONS = error("maximum subscriptions exceeded")
CONNECTIONS = error("maximum connections exceeded")
MEBIBYTE = 1 << 20
LINE_BYTES = 4_096
BLOCK = b"NATS/1.0\r\n\r\n"


# --- payloads -------------------------------------------------------------------------------------


def test_the_largest_payload_is_the_one_that_info_says(client: RawClient, subject: str) -> None:
    largest = int(client.info["max_payload"])
    assert largest == MEBIBYTE
    (message,) = client.messages_until_pong(sub(subject) + pub(subject, b"x" * largest))
    assert len(message.payload) == largest


def test_headers_count_as_payload(connect: Connect, subject: str) -> None:
    client = connect()
    published = hpub(subject, BLOCK, b"x" * (MEBIBYTE - len(BLOCK)))
    (message,) = client.messages_until_pong(sub(subject) + published)
    assert len(message.headers) + len(message.payload) == MEBIBYTE
    said = b"HPUB %s %d %d\r\n" % (subject.encode(), len(BLOCK), MEBIBYTE + 1)
    assert client.until_closed(said) == PAYLOAD


@pytest.mark.parametrize("size", [MEBIBYTE + 1, 2 * MEBIBYTE, 99_999_999, 999_999_999])
def test_a_larger_payload_is_refused_before_it_has_come(
    connect: Connect, subject: str, size: int
) -> None:
    assert connect().until_closed(b"PUB %s %d\r\n" % (subject.encode(), size)) == PAYLOAD


def test_a_larger_payload_that_has_come_reaches_nobody(connect: Connect, subject: str) -> None:
    other = connect()
    other.until_pong(sub(subject))
    said = connect().until_closed(pub(subject, b"x" * (MEBIBYTE + 1)) + pub(subject, b"y"))
    assert said == PAYLOAD
    assert other.until_pong() == b""


def test_a_smaller_largest_payload_can_be_configured(start: Started, subject: str) -> None:
    small = start(max_payload=100)
    with small.connect() as client:
        assert client.info["max_payload"] == 100
        (message,) = client.messages_until_pong(sub(subject) + pub(subject, b"x" * 100))
        assert len(message.payload) == 100
        assert client.until_closed(pub(subject, b"x" * 101)) == PAYLOAD
    with small.connect() as client:
        got = client.messages_until_pong(sub(subject) + hpub(subject, BLOCK, b"x" * 88))
        assert len(got) == 1
        assert client.until_closed(hpub(subject, BLOCK, b"x" * 89)) == PAYLOAD


# --- lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_cut", [False, True], ids=["one-packet", "two-packets"])
def test_the_longest_line_has_4096_bytes_of_arguments(connect: Connect, is_cut: bool) -> None:
    for count, expected in ((LINE_BYTES, b""), (LINE_BYTES + 1, LINE)):
        client = connect()
        line = b"SUB " + b"a" * (count - 2) + b" 1\r\n"
        if is_cut:
            client.send(line[:20])
            line = line[20:]
        if expected:
            assert client.until_closed(line + b"PING\r\n") == expected
        else:
            assert client.until_pong(line) == expected


@pytest.mark.parametrize(
    "said",
    [
        b"SUB " + b"a" * 5_000,
        b"PUB " + b"a" * 5_000,
        b"HPUB " + b"a" * 5_000,
        b"UNSUB " + b"1" * 5_000,
        b"CONNECT " + b"{" * 5_000,
        b"PUB " + b"a" * 5_000 + b" 1\r\nx\r\n",
        b"SUB " + b"a." * 100_000 + b"b 1\r\n",
    ],
    ids=lambda said: repr(said)[:12] + str(len(said)),
)
def test_a_longer_line_closes_whether_it_ends_or_not(connect: Connect, said: bytes) -> None:
    for options in (FULL, None):
        assert connect(options).until_closed(said) == LINE


def test_another_longest_line_can_be_configured(start: Started) -> None:
    short = start(max_control_line=200)
    with short.connect() as client:
        assert client.until_pong(b"SUB " + b"a" * 198 + b" 1\r\n") == b""
        assert client.until_closed(b"SUB " + b"a" * 199 + b" 2\r\n") == LINE
    with short.connect({**PLAIN, "name": "x" * 300}) as client:
        assert client.until_closed() == LINE
    long = start(max_control_line=100_000)
    with long.connect({**PLAIN, "name": "x" * 50_000}) as client:
        assert client.until_pong() == b""


# --- subscriptions and connections ----------------------------------------------------------------


def test_a_subscription_too_many_is_refused_and_the_connection_stays(
    start: Started, subject: str
) -> None:
    few = start(max_subscriptions=3)
    with few.connect() as client, few.connect() as other:
        for number in range(3):
            assert client.until_pong(sub(f"{subject}.{number}", number)) == b""
        assert client.until_pong(sub(subject, 4)) == SUBSCRIPTIONS
        assert client.until_pong(pub(subject, b"x")) == b"", "it was not made"
        assert len(client.messages_until_pong(pub(f"{subject}.0", b"x"))) == 1
        said = b"UNSUB 0\r\n" + sub(subject, 4) + pub(subject, b"x")
        assert [one.sid for one in client.messages_until_pong(said)] == [b"4"]
        assert other.until_pong(sub(subject)) == b"", "each connection has as many"


def test_a_connection_too_many_is_told_after_info(start: Started) -> None:
    few = start(max_connections=2)
    with few.connect() as one, few.connect() as two:
        one.until_pong()
        two.until_pong()
        with few.connect(None) as refused:
            assert refused.until_closed() == CONNECTIONS
        assert one.until_pong() == b""
    deadline = time.monotonic() + 20
    while not _is_served(few):  # until it has noticed that the others are gone
        assert time.monotonic() < deadline


def _is_served(server: NatsServer) -> bool:
    with server.connect(None) as client:
        try:
            return client.until_pong() == b""
        except ConnectionError:
            return False


def test_a_thousand_connections_that_come_and_go_leave_nothing(server: NatsServer) -> None:
    for number in range(1_000):
        with server.connect() as client:
            if number % 3 == 0:
                client.until_pong(sub(">", 1))
            elif number % 3 == 1:
                client.send(sub("a.b", 1, "q") + b"PUB a.b 10\r\nabc")
    with server.connect() as client:
        assert client.until_pong(pub("a.b", b"x")) == b""
    deadline = time.monotonic() + 20
    while server.varz()["connections"] > 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_hundreds_of_connections_at_once_are_all_served(connect: Connect, subject: str) -> None:
    clients = [connect() for _ in range(300)]
    for client in clients:
        client.send(sub(subject) + b"PING\r\n")
    for client in clients:
        assert client.read_command() == b"PONG\r\n"
    clients[0].send(pub(subject, b"x"))
    assert {client.read_message().payload for client in clients} == {b"x"}
