"""SUB and UNSUB: many of them, their numbers, their ends."""

import pytest

from tests.conformance.nats.conftest import Connect
from tests.conformance.nats.raw_client import FULL, RawClient, pub, sub

pytestmark = pytest.mark.process

MANY = 10_000
VERBOSE = {**FULL, "verbose": True}


def payloads(client: RawClient, data: bytes) -> list[bytes]:
    return [message.payload for message in client.messages_until_pong(data)]


def test_a_connection_has_ten_thousand_subscriptions(connect: Connect, subject: str) -> None:
    client, other = connect(), connect()
    client.until_pong(b"".join(sub(f"{subject}.{at}", at) for at in range(MANY)))
    published = b"".join(pub(f"{subject}.{at}", b"%d" % at) for at in range(MANY))
    other.until_pong(published)
    got = client.messages_until_pong()
    assert [(int(one.sid), int(one.payload)) for one in got] == [(at, at) for at in range(MANY)]
    assert client.until_pong(b"".join(b"UNSUB %d\r\n" % at for at in range(0, MANY, 2))) == b""
    other.until_pong(published)
    assert [int(one.sid) for one in client.messages_until_pong()] == list(range(1, MANY, 2))


def test_a_thousand_subscriptions_match_one_message(client: RawClient, subject: str) -> None:
    client.until_pong(b"".join(sub(subject, at) for at in range(1_000)))
    got = client.messages_until_pong(pub(subject, b"x"))
    assert sorted(int(message.sid) for message in got) == list(range(1_000))


def test_unsub_ends_at_once(client: RawClient, subject: str) -> None:
    said = sub(subject) + pub(subject, b"1") + b"UNSUB 1\r\n" + pub(subject, b"2")
    assert payloads(client, said) == [b"1"]


def test_unsub_ends_one_of_several(client: RawClient, subject: str) -> None:
    said = sub(subject, 1) + sub(subject, 2) + b"UNSUB 1\r\n" + pub(subject, b"x")
    assert [message.sid for message in client.messages_until_pong(said)] == [b"2"]


def test_unsub_of_a_number_that_nobody_has_is_nothing(client: RawClient, subject: str) -> None:
    said = b"UNSUB 99\r\nUNSUB 99 5\r\nUNSUB none\r\n" + sub(subject) + pub(subject, b"x")
    assert payloads(client, said) == [b"x"]


def test_unsub_of_another_connection_s_number_ends_nothing(connect: Connect, subject: str) -> None:
    one, other = connect(), connect()
    one.until_pong(sub(subject, 5))
    assert other.until_pong(b"UNSUB 5\r\n" + pub(subject, b"x")) == b""
    assert one.read_message().payload == b"x"


def numbered(subject: str, count: int, start: int = 0) -> bytes:
    return b"".join(pub(subject, b"%d" % at) for at in range(start, start + count))


@pytest.mark.parametrize(
    ("before", "most", "behind", "expected"),
    [
        (0, 2, 4, 2),
        (2, 3, 4, 3),
        (2, 2, 4, 2),
        (3, 2, 4, 3),
        (0, 1, 1, 1),
        (5, 1, 1, 5),
        (0, 100, 4, 4),
    ],
)
def test_unsub_with_a_maximum_counts_what_came_before_it(
    client: RawClient, subject: str, before: int, most: int, behind: int, expected: int
) -> None:
    said = sub(subject) + numbered(subject, before) + b"UNSUB 1 %d\r\n" % most
    got = payloads(client, said + numbered(subject, behind, before))
    assert [int(one) for one in got] == list(range(expected))


def test_a_maximum_counts_over_packets_and_publishers(connect: Connect, subject: str) -> None:
    client, other = connect(), connect()
    client.until_pong(sub(subject) + b"UNSUB 1 3\r\n")
    for number in range(5):
        other.until_pong(pub(subject, b"%d" % number))
    assert payloads(client, b"") == [b"0", b"1", b"2"]


def test_a_later_maximum_takes_the_place_of_the_first(client: RawClient, subject: str) -> None:
    said = sub(subject) + b"UNSUB 1 1\r\nUNSUB 1 3\r\n" + numbered(subject, 5)
    assert len(payloads(client, said)) == 3
    said = sub(subject) + b"UNSUB 1 3\r\n" + numbered(subject, 1) + b"UNSUB 1\r\n"
    assert len(payloads(client, said + numbered(subject, 5))) == 1


@pytest.mark.parametrize("most", [b"0", b"-1", b"x", b"9" * 20, b"1.5"])
def test_a_maximum_that_is_none_ends_at_once(client: RawClient, subject: str, most: bytes) -> None:
    said = sub(subject) + b"UNSUB 1 " + most + b"\r\n" + pub(subject, b"x")
    assert payloads(client, said) == []


def test_a_number_is_free_again_after_unsub(client: RawClient, subject: str) -> None:
    said = sub(f"{subject}.a") + b"UNSUB 1\r\n" + sub(f"{subject}.b")
    published = pub(f"{subject}.a", b"a") + pub(f"{subject}.b", b"b")
    assert payloads(client, said + published) == [b"b"]


def test_a_number_is_free_again_after_its_maximum_and_counts_from_the_start(
    client: RawClient, subject: str
) -> None:
    said = sub(subject) + b"UNSUB 1 2\r\n" + numbered(subject, 3)
    assert len(payloads(client, said)) == 2
    assert len(payloads(client, sub(subject) + numbered(subject, 3))) == 3
    assert len(payloads(client, b"UNSUB 1 5\r\n" + numbered(subject, 3))) == 2


def test_a_number_in_use_keeps_its_first_subject(client: RawClient, subject: str) -> None:
    said = sub(f"{subject}.a") + sub(f"{subject}.b") + sub(f"{subject}.a")
    published = pub(f"{subject}.a", b"a") + pub(f"{subject}.b", b"b")
    assert payloads(client, said + published) == [b"a"]
    assert payloads(client, b"UNSUB 1\r\n" + published) == []


@pytest.mark.parametrize("sid", ["0", "007", "abc", "a.b", "-1", "é", "*", "9" * 200, "%2F"])
def test_a_number_is_any_word(client: RawClient, subject: str, sid: str) -> None:
    said = sub(subject, sid) + pub(subject, b"x") + b"UNSUB " + sid.encode() + b"\r\n"
    (message,) = client.messages_until_pong(said + pub(subject, b"y"))
    assert (message.sid, message.payload) == (sid.encode(), b"x")


def test_007_and_7_are_two_numbers(client: RawClient, subject: str) -> None:
    said = sub(subject, "007") + sub(subject, "7") + b"UNSUB 7\r\n" + pub(subject, b"x")
    assert [message.sid for message in client.messages_until_pong(said)] == [b"007"]


def test_a_subscription_sees_nothing_from_before_it(connect: Connect, subject: str) -> None:
    other = connect()
    other.until_pong(pub(subject, b"before"))
    client = connect()
    client.until_pong(sub(subject))
    other.send(pub(subject, b"behind"))
    assert client.read_message().payload == b"behind"


def test_who_has_subscribed_gets_what_others_publish_after_its_pong(
    connect: Connect, subject: str
) -> None:
    """The PONG says that the subscription stands, for publishers everywhere."""
    client, other = connect(), connect()
    for number in range(200):
        client.until_pong(sub(f"{subject}.{number}", number))
        other.send(pub(f"{subject}.{number}", b"x"))
        assert client.read_message().sid == b"%d" % number


def test_who_has_unsubscribed_gets_nothing_that_others_publish_after_its_pong(
    connect: Connect, subject: str
) -> None:
    client, other = connect(), connect()
    for number in range(100):
        client.until_pong(sub(subject, number))
        client.until_pong(b"UNSUB %d\r\n" % number)
        other.until_pong(pub(subject, b"x"))
        assert client.until_pong() == b""


def test_subscribing_and_unsubscribing_for_long_leaves_nothing(
    client: RawClient, subject: str, pattern: str
) -> None:
    for number in range(0, 3_000, 30):
        many = b"".join(
            sub(subject, at) + sub(pattern, f"w{at}", "q") + b"UNSUB %d\r\nUNSUB w%d\r\n" % (at, at)
            for at in range(number, number + 30)
        )
        assert client.until_pong(many) == b""
    assert client.until_pong(pub(subject, b"x")) == b""


def test_one_publisher_s_messages_come_in_order_on_each_subscription(
    connect: Connect, subject: str, pattern: str
) -> None:
    client, other = connect(), connect()
    client.until_pong(sub(subject, 1) + sub(pattern, 2) + sub(">", 3))
    for start in range(0, 3_000, 500):
        other.send(numbered(subject, 500, start))
    got = client.read_messages(9_000)
    for sid in (b"1", b"2", b"3"):
        assert [int(one.payload) for one in got if one.sid == sid] == list(range(3_000))


def test_its_messages_come_in_order_on_a_subscription_over_several_subjects(
    connect: Connect, subject: str
) -> None:
    client, other = connect(), connect()
    client.until_pong(sub(f"{subject}.*"))
    other.send(b"".join(pub(f"{subject}.{at % 7}", b"%d" % at) for at in range(2_000)))
    assert [int(one.payload) for one in client.read_messages(2_000)] == list(range(2_000))
