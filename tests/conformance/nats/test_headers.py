"""Headers: HPUB and HMSG, whatever is in the block, and peers that never asked for any."""

import pytest

from tests.conformance.nats.conftest import Connect
from tests.conformance.nats.raw_client import PLAIN, RawClient, hpub, pub, sub

pytestmark = pytest.mark.process

BLOCK = b"NATS/1.0\r\nA: b\r\n\r\n"
BLOCKS = [
    b"NATS/1.0\r\n\r\n",
    BLOCK,
    b"NATS/1.0\r\nA: b\r\nA: c\r\na: d\r\nA: b\r\n\r\n",
    b"NATS/1.0\r\nA:b\r\nB:  c \r\nC:\r\nD: x: y\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\n\r\n",
    b"NATS/1.0 404 No Messages\r\n\r\n",
    b"NATS/1.0\r\nStatus: 5\r\nDescription: mine\r\n\r\n",
    "NATS/1.0\r\nÉtat: très bien\r\n名前: 値\r\n\r\n".encode(),
    b"NATS/1.0\r\nA: \xff\xfe\r\n\r\n",
    b"NATS/1.0\r\nA: b\r\n folded\r\n\r\n",
    b"NATS/1.0\r\nA: b\r\n\r\nC: d\r\n\r\n",
    b"NATS/1.0\r\nZ: 1\r\nA: 2\r\nM: 3\r\n\r\n",
    b"NATS/1.0\r\n" + b"".join(b"Name-%d: %s\r\n" % (at, b"v" * 50) for at in range(200)) + b"\r\n",
]
# What no client writes. nats-server looks into no block.
STRANGE = [
    b"NATS/1.0\r\n",
    b"NATS/1.0\r\nnocolon\r\n\r\n",
    b"NATS/1.0\r\n: b\r\n\r\n",
    b"NATS/1.0\r\nA: b\n\n",
    b"NATS/2.0\r\nA: b\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n",
    b"garbage",
    b"\0",
]


@pytest.mark.parametrize("block", [*BLOCKS, *STRANGE], ids=lambda block: repr(block)[:40])
@pytest.mark.parametrize("payload", [b"", b"payload"], ids=["empty", "full"])
def test_a_header_block_comes_as_it_was_sent(
    client: RawClient, subject: str, block: bytes, payload: bytes
) -> None:
    got = client.until_pong(sub(subject) + hpub(subject, block, payload))
    sizes = b"%d %d" % (len(block), len(block) + len(payload))
    name = subject.encode()
    assert got == b"HMSG " + name + b" 1 " + sizes + b"\r\n" + block + payload + b"\r\n"


def test_a_header_block_and_a_reply_come_together(client: RawClient, subject: str) -> None:
    (message,) = client.messages_until_pong(sub(subject) + hpub(subject, BLOCK, b"x", "re.ply"))
    assert (message.reply, message.headers, message.payload) == (b"re.ply", BLOCK, b"x")


def test_no_header_bytes_make_a_message_without_headers(client: RawClient, subject: str) -> None:
    got = client.until_pong(sub(subject) + hpub(subject, b"", b"x"))
    assert got == b"MSG %s 1 1\r\nx\r\n" % subject.encode()


def test_without_headers_it_is_msg_for_everybody(client: RawClient, subject: str) -> None:
    got = client.until_pong(sub(subject) + pub(subject, b"x", "re.ply"))
    assert got == b"MSG %s 1 re.ply 1\r\nx\r\n" % subject.encode()


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: repr(block)[:40])
def test_who_asked_for_no_headers_gets_the_message_without_them(
    connect: Connect, subject: str, block: bytes
) -> None:
    plain, full, publisher = connect(PLAIN), connect(), connect()
    plain.until_pong(sub(subject))
    full.until_pong(sub(subject))
    name = subject.encode()
    published = (
        hpub(subject, block, b"body") + hpub(subject, block) + hpub(subject, block, b"y", "r")
    )
    publisher.until_pong(published)
    assert plain.until_pong() == (
        b"MSG %s 1 4\r\nbody\r\nMSG %s 1 0\r\n\r\nMSG %s 1 r 1\r\ny\r\n" % (name, name, name)
    )
    got = full.messages_until_pong()
    assert [one.headers for one in got] == [block] * 3
    assert [one.payload for one in got] == [b"body", b"", b"y"]


@pytest.mark.parametrize("options", [None, PLAIN, {**PLAIN, "headers": False}], ids=repr)
def test_who_asked_for_no_headers_may_send_none(
    connect: Connect, subject: str, options: dict[str, object] | None
) -> None:
    other = connect()
    other.until_pong(sub(subject))
    assert connect(options).until_closed(hpub(subject, BLOCK, b"x") + b"PING\r\n") == b""
    assert other.until_pong() == b""


def test_the_members_of_a_queue_differ_in_wanting_headers(connect: Connect, subject: str) -> None:
    plain, full = connect(PLAIN), connect()
    plain.until_pong(sub(subject, 1, "q"))
    full.until_pong(sub(subject, 1, "q"))
    connect().until_pong(hpub(subject, BLOCK, b"x") * 60)
    without, with_them = plain.messages_until_pong(), full.messages_until_pong()
    assert len(without) + len(with_them) == 60
    assert without and {one.headers for one in without} == {b""}
    assert with_them and {one.headers for one in with_them} == {BLOCK}


def test_the_sizes_of_a_header_block_may_begin_with_zeros(client: RawClient, subject: str) -> None:
    published = b"HPUB %s 012 013\r\nNATS/1.0\r\n\r\nx\r\n" % subject.encode()
    (message,) = client.messages_until_pong(sub(subject) + published)
    assert (message.headers, message.payload) == (b"NATS/1.0\r\n\r\n", b"x")


def test_ends_of_line_in_the_payload_are_not_those_of_the_block(
    client: RawClient, subject: str
) -> None:
    payload = b"\r\n\r\nB: c\r\n\r\n"
    (message,) = client.messages_until_pong(sub(subject) + hpub(subject, BLOCK, payload))
    assert (message.headers, message.payload) == (BLOCK, payload)


def test_a_second_connect_can_ask_for_headers(connect: Connect, subject: str) -> None:
    client = connect(PLAIN)
    wanted = b'CONNECT {"headers": true}\r\n' + sub(subject)
    (message,) = client.messages_until_pong(wanted + hpub(subject, BLOCK, b"x"))
    assert message.headers == BLOCK
    assert client.until_closed(b'CONNECT {"headers": false}\r\n' + hpub(subject, BLOCK)) == b""
