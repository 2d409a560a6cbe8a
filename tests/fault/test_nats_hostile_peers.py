"""Single hostile deeds against the NATS door, each of which once cost others their messages.

A broker of its own runs through all of them: what one leaves behind, the next would find.
"""

import socket
import string
import time
from collections.abc import Iterator

import psutil
import pytest

import asterism
from asterism import limits
from asterism.gateways.nats.digest import ALIKE_MAX
from asterism.gateways.nats.exchange import GROUPS_MAX
from asterism.testing import Broker
from tests.conformance.nats.raw_client import FULL, RawClient

pytestmark = [pytest.mark.fault, pytest.mark.slow]

WAIT_S = 20.0
SOON_S = 5.0  # for others, whatever somebody does; it took minutes


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(doors=("nats",)) as running:
        pids = running.pids()
        yield running
        assert running.pids() == pids, "a process has died"


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(str(broker.nats_url), FULL) as one:
        one.until_pong()
        yield one


def soon(client: RawClient) -> None:
    """Another one is answered in time."""
    began = time.monotonic()
    client.until_pong()
    assert time.monotonic() - began < SOON_S


def told_at_the_door(broker: Broker, client: RawClient, subject: str) -> None:
    """What others publish comes to a client of the door that has just asked for it."""
    client.until_pong(f"SUB {subject} told\r\n".encode())
    with asterism.connect_blocking(broker.address, name="other") as node:
        node.publish("nats", b"news", subject=subject.replace(".", "/"), mode="online")
        assert client.read_message().payload == b"news"


def test_a_ping_is_answered_at_once(client: RawClient) -> None:
    """It was answered when the door next looked at who is silent, up to 50 ms later."""
    began = time.monotonic()
    for _ in range(40):
        client.until_pong()
    assert time.monotonic() - began < 1


def test_queue_groups_by_the_thousand_are_no_hindrance_to_others(
    broker: Broker, client: RawClient
) -> None:
    """More than the broker is told of: what was not told must not be taken back."""
    count = GROUPS_MAX + 500
    with RawClient(str(broker.nats_url), FULL) as hostile:
        subs = b"".join(b"SUB g q%d %d\r\n" % (number, number) for number in range(count))
        hostile.until_pong(subs)
        hostile.until_pong(b"".join(b"UNSUB %d\r\n" % number for number in range(500)))
        again = b"".join(b"SUB g q%d %d\r\n" % (number, number) for number in range(500))
        hostile.until_pong(again + b"SUB g q%d more\r\n" % (count - 1))
        hostile.until_pong(b"UNSUB %d\r\n" % (count - 1) + b"UNSUB more\r\n")
        assert len(hostile.messages_until_pong(b"PUB g 0\r\n\r\n")) == count - 1
        soon(client)
        told_at_the_door(broker, client, "behind.groups")
    soon(client)


def test_short_subscriptions_behind_a_long_token_do_not_make_the_door_deaf(
    broker: Broker, client: RawClient
) -> None:
    first = "t" * (limits.SUBJECT_BYTES_MAX - 2)
    with RawClient(str(broker.nats_url), FULL) as hostile:
        letters = (string.ascii_letters + string.digits + "!#$&+,-")[: ALIKE_MAX + 1]
        hostile.until_pong("".join(f"SUB {first}.{one} {one}\r\n" for one in letters).encode())
        told_at_the_door(broker, client, "behind.tokens")


def test_a_hundred_thousand_headers_hold_up_nobody(broker: Broker, client: RawClient) -> None:
    block = b"NATS/1.0\r\n" + b"a:bcdef\r\n" * 100_000 + b"\r\n"
    with RawClient(str(broker.nats_url), FULL) as hostile:
        hostile.send(b"SUB h 1\r\n" + b"HPUB h %d %d\r\n%b\r\n" % (len(block), len(block), block))
        soon(client)
        assert hostile.read_message().headers == block, "who is at this door gets them all the same"


def test_what_is_too_large_for_the_broker_costs_no_other_message(
    broker: Broker, client: RawClient
) -> None:
    """It would be refused with all that is told in the same frame."""
    large = (
        b"NATS/1.0\r\n" + b"".join(b"a%d:%b\r\n" % (n, b"v" * 4_000) for n in range(14)) + b"\r\n"
    )
    larger = large[:-2] + b"b:" + b"v" * 4_000 + b"\r\n\r\n"
    with asterism.connect_blocking(broker.address, name="other") as node:
        inbox = node.subscribe("nats", "large/*")
        for block in (large, larger):
            said = b"HPUB large.a %d %d\r\n%b\r\n" % (len(block), len(block), block)
            client.until_pong(said + b"PUB large.b 1\r\nx\r\n")
        payloads = [inbox.receive(WAIT_S).payload for _ in range(3)]
    assert sorted(payloads) == [b"", b"x", b"x"]


def test_a_request_that_the_broker_refuses_holds_its_client_up_for_a_moment_only(
    broker: Broker,
) -> None:
    """It was waited for for ever: a refusal is an answer too."""
    with asterism.connect_blocking(broker.address, name="other") as node:
        node.configure("nats", max_payload=1_000)
        try:
            with RawClient(str(broker.nats_url), FULL) as one:
                one.send(b"SUB in.* 1\r\nPUB nobody in.1 2000\r\n" + bytes(2_000) + b"\r\n")
                one.until_pong()
                soon(one)
        finally:
            node.configure("nats", max_payload=16_777_216)


def test_a_half_close_is_answered_with_all_that_was_asked(broker: Broker) -> None:
    with RawClient(str(broker.nats_url), FULL) as one:
        one.until_pong(b"SUB half 1\r\n")
        one.send(b"PUB half 0\r\n\r\n" * 20_000)
        one.socket.shutdown(socket.SHUT_WR)
        said = b""
        one.socket.settimeout(WAIT_S)
        while more := one.socket.recv(1 << 18):
            said += more
    assert said.count(b"MSG half 1 0\r\n\r\n") >= 19_990


def test_connections_that_end_by_a_mistake_are_gone_though_nobody_reads(broker: Broker) -> None:
    """Each stayed for ever with all that was on its way, and no bound counted it."""
    (pid,) = broker.pids()["nats"]
    door = psutil.Process(pid)
    before = door.num_fds()
    held: list[RawClient] = []
    for _ in range(20):
        one = RawClient(str(broker.nats_url), FULL)
        one.until_pong(b"SUB deaf.%d 1\r\n" % len(held))
        flood = b"PUB deaf.%d 60000\r\n" % len(held) + bytes(60_000) + b"\r\n"
        one.socket.settimeout(WAIT_S)
        one.socket.sendall(flood * 300 + b"FOO\r\n")
        held.append(one)
    deadline = time.monotonic() + WAIT_S
    while door.num_fds() > before + 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert door.num_fds() <= before + 2
    for one in held:
        one.close()
