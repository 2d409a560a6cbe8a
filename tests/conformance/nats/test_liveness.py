"""PING and PONG: the barrier that clients build on, and peers that fell silent."""

import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from tests.conformance.nats.conftest import Connect, NatsServer, Started
from tests.conformance.nats.raw_client import FULL, PLAIN, RawClient, error, hpub, pub, sub

pytestmark = pytest.mark.process

STALE = error("Stale Connection")
INTERVAL_S = 0.3
PINGS = 2
CUT_S = INTERVAL_S * (PINGS + 1)


# --- a PONG is a barrier --------------------------------------------------------------------------


def test_one_s_own_messages_come_before_the_pong_behind_them(
    client: RawClient, subject: str, pattern: str
) -> None:
    client.until_pong(sub(subject, 1) + sub(pattern, 2))
    for number in range(1_000):
        got = client.messages_until_pong(pub(subject, b"%d" % number))
        assert [int(one.payload) for one in got] == [number] * 2


@pytest.mark.parametrize("count", [10, 100, 1_000])
def test_all_of_a_packet_s_messages_come_before_its_pong(
    client: RawClient, subject: str, count: int
) -> None:
    client.until_pong(sub(f"{subject}.*"))
    for start in range(0, 5_000, count):
        packet = b"".join(pub(f"{subject}.{at}", b"%d" % at) for at in range(start, start + count))
        got = client.messages_until_pong(packet)
        assert [int(one.payload) for one in got] == list(range(start, start + count))


def test_the_pong_of_a_publisher_says_that_others_have_it_before_their_next_pong(
    connect: Connect, subject: str
) -> None:
    """It has been handed to every subscription, so it is before the answer to whatever they ask."""
    publisher = connect()
    subscribers = [connect() for _ in range(5)]
    for subscriber in subscribers:
        subscriber.until_pong(sub(subject))
    for start in range(0, 2_000, 20):
        packet = b"".join(pub(subject, b"%d" % at) for at in range(start, start + 20))
        assert publisher.until_pong(packet) == b""
        for subscriber in subscribers:
            got = [int(one.payload) for one in subscriber.messages_until_pong()]
            assert got == list(range(start, start + 20))


def test_it_is_a_barrier_while_others_publish_as_fast_as_they_can(
    connect: Connect, subject: str
) -> None:
    client = connect()
    others = [connect() for _ in range(3)]
    client.until_pong(sub(f"{subject}.>"))
    noise = pub(f"{subject}.noise", b"n" * 128) * 200
    for number in range(100):
        for other in others:
            other.send(noise)
        packet = b"".join(pub(f"{subject}.mine", b"%d" % at) for at in range(20))
        got = client.messages_until_pong(packet)
        mine = [int(one.payload) for one in got if one.subject.endswith(b".mine")]
        assert mine == list(range(20)), number
    for other in others:
        assert other.until_pong() == b""


def test_it_is_a_barrier_for_large_messages(client: RawClient, subject: str) -> None:
    client.until_pong(sub(subject))
    for _ in range(10):
        got = client.messages_until_pong(pub(subject, b"x" * 1_000_000) * 3)
        assert [len(one.payload) for one in got] == [1_000_000] * 3


def test_it_is_a_barrier_for_queues_headers_and_replies(connect: Connect, subject: str) -> None:
    client, other = connect(), connect()
    client.until_pong(sub(subject, 1, "q") + sub(subject, 2, "r") + sub("_INBOX.x.>", 3))
    other.until_pong(sub(subject, 1, "q"))
    shared = 0
    for number in range(200):
        reply = f"_INBOX.x.{number}"
        packet = hpub(subject, b"NATS/1.0\r\nA: b\r\n\r\n", b"x", reply)
        packet += pub(f"{subject}.none", b"", reply)
        got = sorted(int(one.sid) for one in client.messages_until_pong(packet))
        shared += got.count(1) + len(other.messages_until_pong())
        assert [sid for sid in got if sid != 1] == [2, 3], "its queue, and no responders"
        assert shared == number + 1


def test_pings_within_a_packet_are_barriers_each(client: RawClient, subject: str) -> None:
    client.until_pong(sub(subject))
    client.send(b"".join(pub(subject, b"%d" % at) + b"PING\r\n" for at in range(500)))
    for number in range(500):
        assert client.read_message().payload == b"%d" % number
        assert client.read_command() == b"PONG\r\n"


# --- silent peers ---------------------------------------------------------------------------------


@pytest.fixture
def asking(start: Started) -> NatsServer:
    return start(ping_interval=INTERVAL_S, max_pings=PINGS)


@pytest.mark.parametrize("options", [FULL, None], ids=["connected", "unconnected"])
def test_a_silent_peer_is_asked_and_then_cut(
    asking: NatsServer, options: dict[str, object] | None
) -> None:
    began = time.monotonic()
    with asking.connect(options) as client:
        assert client.until_closed() == b"PING\r\n" * PINGS + STALE
    assert time.monotonic() - began >= CUT_S - INTERVAL_S


def test_who_answers_stays(asking: NatsServer, subject: str) -> None:
    with asking.connect() as client, asking.connect(None) as silent:
        client.until_pong(sub(subject))
        while client.pings < 8:  # longer than a silent one has
            _read_pings(client)
        silent.until_closed()
        assert len(client.messages_until_pong(pub(subject))) == 1


def _read_pings(client: RawClient) -> None:
    """Reads, and so answers, until a PING has come."""
    before = client.pings
    while client.pings == before:
        assert client.read_line() == b"PING"
        client.pings += 1
        client.send(b"PONG\r\n")


def test_who_publishes_need_not_answer(asking: NatsServer, subject: str) -> None:
    with asking.connect(PLAIN) as client:
        client.answers_pings = False
        end = time.monotonic() + 2 * CUT_S
        while time.monotonic() < end:
            client.until_pong(pub(subject, b"x"))
            time.sleep(INTERVAL_S / 10)
        assert client.until_pong() == b""


def test_who_only_receives_is_cut_all_the_same(asking: NatsServer, subject: str) -> None:
    with asking.connect() as deaf, asking.connect() as other, ThreadPoolExecutor(1) as thread:
        deaf.until_pong(sub(subject))
        closed = thread.submit(deaf.until_closed)
        while not closed.done():
            other.until_pong(pub(subject, b"x"))
            wait([closed], INTERVAL_S / 10)
        said = closed.result()
        assert said.startswith(b"MSG ") and said.endswith(STALE)


def test_a_cut_is_counted(asking: NatsServer) -> None:
    with asking.connect(None) as client:
        client.until_closed()
    assert asking.varz()["stale_connections"] >= 1
