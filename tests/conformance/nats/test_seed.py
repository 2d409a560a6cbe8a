"""The seed sentence by sentence: PUB, SUB with an optional queue, MSG, ``*`` and ``>``."""

import pytest

from tests.conformance.nats.conftest import Connect
from tests.conformance.nats.raw_client import RawClient, assert_spread, pub, sub

pytestmark = pytest.mark.process


def test_who_subscribed_gets_what_is_published_on_the_subject(client: RawClient) -> None:
    assert client.until_pong(b"SUB top.stevenbai.blog 3\r\n") == b""
    published = b"PUB top.stevenbai.blog 5\r\nfirst\r\n"
    assert client.until_pong(published) == b"MSG top.stevenbai.blog 3 5\r\nfirst\r\n"


def test_a_publisher_and_a_subscriber_need_not_be_one_connection(connect: Connect) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.until_pong(b"SUB top.stevenbai.blog 3\r\n")
    publisher.send(b"PUB top.stevenbai.blog 5\r\nfirst\r\n")
    assert subscriber.read_command() == b"MSG top.stevenbai.blog 3 5\r\nfirst\r\n"
    assert publisher.until_pong() == b""


def test_who_only_publishes_needs_no_subscription(client: RawClient, subject: str) -> None:
    assert client.until_pong(pub(subject, b"one") + pub(f"{subject}.x", b"two")) == b""


@pytest.mark.parametrize(
    "payload", [b"text", "文本".encode(), bytes(range(256)), b"\r\n\r\n", b"\0"]
)
def test_a_payload_is_text_or_any_bytes(client: RawClient, subject: str, payload: bytes) -> None:
    (message,) = client.messages_until_pong(sub(subject) + pub(subject, payload))
    assert message.payload == payload


@pytest.mark.parametrize(
    ("pattern", "is_match", "is_none"),
    [
        ("top.*.blog", ["top.stevenbai.blog", "top.steven.blog"], ["top.blog", "top.a.b.blog"]),
        ("top.*", ["top.stevenbai", "top.steven"], ["top.stevenbai.blog", "top"]),
        ("top.>", ["top.stevenbai", "top.stevenbai.blog", "top.steven.blog"], ["top", "tops.a"]),
        (">", ["top", "top.stevenbai.blog", "a.b.c.d.e"], []),
    ],
)
def test_a_star_is_one_field_and_an_arrow_is_all_that_follow(
    client: RawClient, pattern: str, is_match: list[str], is_none: list[str]
) -> None:
    client.until_pong(sub(pattern, 9))
    published = b"".join(pub(name, b"x") for name in [*is_match, *is_none])
    got = client.messages_until_pong(published)
    assert [(message.subject.decode(), message.sid) for message in got] == [
        (name, b"9") for name in is_match
    ]


def test_a_connection_has_many_subscriptions_told_apart_by_their_number(
    client: RawClient, subject: str, pattern: str
) -> None:
    subscribed = sub(subject, 1) + sub(pattern, 2) + sub(f"{subject}.x", 3) + sub(subject, 40)
    got = client.messages_until_pong(subscribed + pub(subject, b"x"))
    assert sorted(int(message.sid) for message in got) == [1, 2, 40]
    assert {message.subject.decode() for message in got} == {subject}


def test_the_numbers_of_two_connections_have_nothing_to_do_with_each_other(
    connect: Connect, subject: str
) -> None:
    first, second = connect(), connect()
    first.until_pong(sub(f"{subject}.a", 3))
    second.until_pong(sub(f"{subject}.b", 3))
    first.send(pub(f"{subject}.b", b"x") + pub(f"{subject}.a", b"y"))
    assert (first.read_message().payload, second.read_message().payload) == (b"y", b"x")


def test_the_members_of_a_queue_share_what_is_published(connect: Connect, subject: str) -> None:
    members = [connect(), connect()]
    for number, member in enumerate(members, 3):
        member.until_pong(sub(subject, number, "workers"))
    count = 400
    connect().until_pong(b"".join(pub(subject, b"%d" % at) for at in range(count)))
    got = [member.messages_until_pong() for member in members]
    payloads = [[int(message.payload) for message in messages] for messages in got]
    assert sorted(payloads[0] + payloads[1]) == list(range(count))
    assert_spread([len(messages) for messages in got])
    assert all(messages == sorted(messages) for messages in payloads), "each in order"


def test_many_publish_and_many_receive(connect: Connect, subject: str) -> None:
    subscribers = [connect() for _ in range(4)]
    publishers = [connect() for _ in range(4)]
    for subscriber in subscribers:
        subscriber.until_pong(sub(subject))
    for name, publisher in zip(b"abcd", publishers, strict=True):
        publisher.send(b"".join(pub(subject, b"%c%d" % (name, at)) for at in range(50)))
    for subscriber in subscribers:
        got = [message.payload for message in subscriber.read_messages(200)]
        for name in b"abcd":
            assert [one for one in got if one[0] == name] == [
                b"%c%d" % (name, at) for at in range(50)
            ]


def test_a_connection_that_is_closed_has_no_subscriptions_any_more(
    connect: Connect, subject: str
) -> None:
    left, stays = connect(), connect()
    left.until_pong(sub(subject, 1, "workers"))
    stays.until_pong(sub(subject, 1, "workers"))
    left.close()
    # Until the other end has noticed, the one that left may still be chosen.
    while not stays.messages_until_pong(pub(subject, b"x")):
        pass
    assert len(_steady(stays, subject)) == 20


def _steady(member: RawClient, subject: str) -> list[object]:
    """What a member gets of 20, as soon as it gets all of them."""
    for _ in range(100):
        got = member.messages_until_pong(pub(subject, b"x") * 20)
        if len(got) == 20:
            return list(got)
    return []
