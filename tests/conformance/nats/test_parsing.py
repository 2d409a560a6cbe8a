"""Commands however they are cut into packets, and however they are spelled."""

import pytest

from tests.conformance.nats.conftest import Connect
from tests.conformance.nats.raw_client import PLAIN, RawClient, error, hpub, pub, sub

pytestmark = pytest.mark.process

UNKNOWN = error("Unknown Protocol Operation")
# Every verb, payloads that look like commands, and an end of line within one.
ALL = (
    sub("cut.a", 1)
    + sub("cut.*", 2, "queue")
    + pub("cut.a", b"PING\r\nx")
    + hpub("cut.b", b"NATS/1.0\r\nA: b\r\n\r\n", b"MSG cut.a 1 1\r\n", "cut.reply")
    + b"UNSUB 1\r\n"
    + pub("cut.a", b"")
    + b"UNSUB 2\r\nPONG\r\n"
)
ANSWERED = sorted(
    [
        b"MSG cut.a 1 7\r\nPING\r\nx\r\n",
        b"MSG cut.a 2 7\r\nPING\r\nx\r\n",
        b"HMSG cut.b 2 cut.reply 18 33\r\nNATS/1.0\r\nA: b\r\n\r\nMSG cut.a 1 1\r\n\r\n",
        b"MSG cut.a 2 0\r\n\r\n",
    ]
)


def test_commands_may_come_in_one_packet(client: RawClient) -> None:
    assert sorted(client.commands_until_pong(ALL)) == ANSWERED


def test_commands_may_come_byte_by_byte(client: RawClient) -> None:
    for at in range(len(ALL)):
        client.send(ALL[at : at + 1])
    assert sorted(client.commands_until_pong()) == ANSWERED


def test_a_packet_may_end_at_any_byte(client: RawClient) -> None:
    """Each cut in turn; the PONG between them shows that nothing is left over."""
    for cut in range(1, len(ALL)):
        client.send(ALL[:cut])
        assert sorted(client.commands_until_pong(ALL[cut:])) == ANSWERED, cut


@pytest.mark.parametrize("size", [2, 3, 5, 7, 11, 64])
def test_packets_may_have_any_size(client: RawClient, size: int) -> None:
    data = ALL * 3
    for at in range(0, len(data), size):
        client.send(data[at : at + size])
    assert sorted(client.commands_until_pong()) == sorted(ANSWERED * 3)


def test_a_large_payload_comes_in_many_packets(client: RawClient, subject: str) -> None:
    payload = bytes(range(256)) * 2_000
    (message,) = client.messages_until_pong(sub(subject) + pub(subject, payload))
    assert message.payload == payload


def test_thousands_of_commands_in_a_packet_are_answered_in_order(
    client: RawClient, subject: str
) -> None:
    client.until_pong(sub(subject))
    got = client.messages_until_pong(b"".join(pub(subject, b"%d" % at) for at in range(5_000)))
    assert [int(message.payload) for message in got] == list(range(5_000))


@pytest.mark.parametrize(
    "spelled",
    [
        pytest.param(b"sub S 1\r\npub S 1\r\nx\r\n", id="lower"),
        pytest.param(b"Sub S 1\r\npUB S 1\r\nx\r\n", id="mixed"),
        pytest.param(b"SUB  S  1\r\nPUB   S  1\r\nx\r\n", id="blanks"),
        pytest.param(b"SUB\tS\t1\r\nPUB\tS \t1\r\nx\r\n", id="tabs"),
        pytest.param(b"SUB S 1  \r\nPUB S 1 \t\r\nx\r\n", id="blanks-at-the-end"),
        pytest.param(b"SUB S 1\nPUB S 1\nx\r\n", id="line-feeds"),
        pytest.param(b"PING\nSUB S 1\r\npong\r\nPONG \r\nPUB S 1\r\nx\r\n", id="ping-and-pong"),
        pytest.param(b"SUB S 1\r\nPING and more\r\nPUB S 1\r\nx\r\n", id="words-after-ping"),
        pytest.param(
            b"SUB S 1\r\n+OK\r\nINFO {}\r\nPUB S 1\r\nx\r\n", id="what-the-other-side-says"
        ),
    ],
)
def test_a_command_is_understood_however_it_is_spelled(
    client: RawClient, subject: str, spelled: bytes
) -> None:
    name = subject.encode()
    client.send(spelled.replace(b"S ", name + b" ").replace(b"S\t", name + b"\t"))
    while (command := client.read_command()) == b"PONG\r\n":
        pass
    assert command == b"MSG %s 1 1\r\nx\r\n" % name
    assert client.until_pong() == b""


def test_hpub_and_unsub_and_ping_take_any_case(client: RawClient, subject: str) -> None:
    spelled = sub(subject) + hpub(subject, b"NATS/1.0\r\n\r\n", b"x").replace(b"HPUB", b"hPub")
    assert client.until_pong(spelled + b"unsub  1\t\r\n" + pub(subject, b"y")) == (
        b"HMSG %s 1 12 13\r\nNATS/1.0\r\n\r\nx\r\n" % subject.encode()
    )
    client.send(b"ping\r\n")
    assert client.read_command() == b"PONG\r\n"


def test_an_empty_payload_is_a_message(client: RawClient, subject: str) -> None:
    got = client.until_pong(sub(subject) + pub(subject))
    assert got == b"MSG %s 1 0\r\n\r\n" % subject.encode()


@pytest.mark.parametrize(
    "published",
    [
        pytest.param(b"PUB S 1\r\nxyz\r\n", id="longer"),
        pytest.param(b"PUB S 1\r\nxy\r\n", id="longer-by-one"),
        pytest.param(b"PUB S 3\r\nxy\r\nPING\r\n", id="shorter"),
        pytest.param(b"PUB S 4\r\nxy\r\nPING\r\n", id="end-of-line-within"),
        pytest.param(b"PUB S 1\r\nx\nPING\r\n", id="line-feed-alone"),
        pytest.param(b"PUB S 1\r\nx\r\r\n", id="two-returns"),
        pytest.param(b"HPUB S 12 13\r\nNATS/1.0\r\n\r\nxyz\r\n", id="longer-with-headers"),
    ],
)
def test_a_payload_of_another_size_than_was_said_closes_and_reaches_nobody(
    connect: Connect, subject: str, published: bytes
) -> None:
    other = connect()
    other.until_pong(sub(subject))
    assert connect().until_closed(published.replace(b"S ", subject.encode() + b" ")) == UNKNOWN
    assert other.until_pong() == b""


@pytest.mark.parametrize(
    "said",
    [
        b"FOO\r\n",
        b"FOO bar\r\n",
        b"SU\r\n",
        b"SUBS a 1\r\n",
        b"PUBLISH a 1\r\nx\r\n",
        b" PING\r\n",
        b"\r\n",
        b"\n",
        b"\0\1\2",
        b"\xff\xfe",
        b"GET / HTTP/1.1\r\n\r\n",
        b"MSG a 1 1\r\nx\r\n",
        b"HMSG a 1 12 12\r\nNATS/1.0\r\n\r\n\r\n",
        b"RS+ a\r\n",
        b"SUB\r\n",
        b"PUB\r\n",
        b"HPUB\r\n",
        b"UNSUB\r\n",
        b"-ERR\r\n",
    ],
    ids=repr,
)
def test_an_unknown_command_closes(client: RawClient, subject: str, said: bytes) -> None:
    client.until_pong(sub(subject))
    assert client.until_closed(said + b"PING\r\n" + pub(subject, b"x")) == UNKNOWN


def test_what_cannot_become_a_command_closes_before_its_line_ends(client: RawClient) -> None:
    assert client.until_closed(b"X") == UNKNOWN


@pytest.mark.parametrize("said", [b"-ERR 'mine'\r\n", b"INFO x\r\n", b"INFO\r\n"], ids=repr)
def test_what_only_the_other_side_says_may_close_without_a_word(
    client: RawClient, said: bytes
) -> None:
    assert client.until_closed(said + b"PING\r\n") == b""


@pytest.mark.parametrize(
    "said",
    [
        b"SUB \r\n",
        b"SUB a\r\n",
        b"SUB a b c d\r\n",
        b"PUB \r\n",
        b"PUB a\r\n",
        b"PUB a b c 1\r\nx\r\n",
        b"UNSUB \r\n",
        b"UNSUB 1 2 3\r\n",
        b"HPUB a\r\n",
        b"HPUB a 1\r\n",
        b"HPUB a b c 12 12\r\nNATS/1.0\r\n\r\n\r\n",
        b"HPUB a x 3\r\n",
        b"HPUB a 12 x\r\n",
        b"HPUB a 5 3\r\n",
        b"HPUB a -1 3\r\n",
    ],
    ids=repr,
)
def test_arguments_that_are_none_close_without_a_word(client: RawClient, said: bytes) -> None:
    assert client.until_closed(said + b"PING\r\n") == b""


@pytest.mark.parametrize(
    "size",
    [
        *(b"-1", b"-0", b"+1", b"1.0", b"0x1", b"1e0", b"x", b"1_0", b"\xd9\xa1", b"\0"),
        *(b"1000000000", b"2147483648", b"4294967297", b"9223372036854775808"),
        *(b"18446744073709551617", b"99999999999999999999", b"9" * 400, b"0" * 19 + b"1"),
    ],
    ids=repr,
)
def test_a_size_that_is_none_closes_without_a_word(
    client: RawClient, subject: str, size: bytes
) -> None:
    client.until_pong(sub(subject))
    published = b"PUB %s %s\r\nx\r\n" % (subject.encode(), size)
    assert client.until_closed(published + b"PING\r\n") == b""


@pytest.mark.parametrize("size", [b"01", b"0001", b"000000001"])
def test_a_size_may_begin_with_zeros(client: RawClient, subject: str, size: bytes) -> None:
    """Whether they are handed on is not promised."""
    published = b"PUB %s %s\r\nx\r\n" % (subject.encode(), size)
    (message,) = client.messages_until_pong(sub(subject) + published)
    assert message.payload == b"x"


def test_commands_before_an_error_are_carried_out_and_those_behind_it_are_not(
    connect: Connect, subject: str
) -> None:
    other = connect()
    other.until_pong(sub(subject))
    said = connect().until_closed(pub(subject, b"before") + b"FOO\r\n" + pub(subject, b"behind"))
    assert said == UNKNOWN
    assert other.read_message().payload == b"before"
    assert other.until_pong() == b""


def test_who_sends_no_more_is_answered_and_then_closed(connect: Connect, subject: str) -> None:
    client = connect(PLAIN)
    client.send(sub(subject) + pub(subject, b"x") + b"PING\r\n")
    client.shut()
    assert client.until_closed() == b"MSG %s 1 1\r\nx\r\nPONG\r\n" % subject.encode()


@pytest.mark.parametrize(
    "cut", [b"SUB cu", b"PUB cut.end 10\r\nabc", b"PUB cut.end 3\r\nabc\r", b"P"]
)
def test_a_connection_that_ends_within_a_command_harms_nobody(
    connect: Connect, client: RawClient, cut: bytes
) -> None:
    client.until_pong(sub("cut.end"))
    gone = connect()
    gone.until_pong()
    gone.send(cut)
    gone.shut()
    assert gone.until_closed() in (b"", UNKNOWN)
    assert client.until_pong() == b""


def test_hundreds_of_pings_have_as_many_pongs(client: RawClient) -> None:
    client.send(b"PING\r\n" * 1_000)
    assert client.read_commands(1_000) == [b"PONG\r\n"] * 1_000


def test_pongs_that_nobody_asked_for_are_ignored(client: RawClient) -> None:
    assert client.until_pong(b"PONG\r\n" * 1_000) == b""
