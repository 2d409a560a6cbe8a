"""Queue groups: one member of each gets a message, whichever pattern it came by."""

from collections import Counter

import pytest

from tests.conformance.nats.conftest import Connect
from tests.conformance.nats.raw_client import FULL, RawClient, assert_spread, pub, sub

pytestmark = pytest.mark.process

COUNT = 600


def published(subject: str, count: int = COUNT) -> bytes:
    return b"".join(pub(subject, b"%d" % at) for at in range(count))


def delivered(members: list[RawClient], publisher: RawClient, data: bytes) -> list[Counter[str]]:
    """How many messages each member got on each of its subscriptions."""
    publisher.until_pong(data)
    return [Counter(one.sid.decode() for one in member.messages_until_pong()) for member in members]


def test_members_on_several_connections_share_evenly(connect: Connect, subject: str) -> None:
    members = [connect() for _ in range(4)]
    for member in members:
        member.until_pong(sub(subject, 1, "q"))
    got = delivered(members, connect(), published(subject, 2_000))
    assert_spread([counts["1"] for counts in got])
    assert sum(counts["1"] for counts in got) == 2_000


def test_each_message_goes_to_one_member(connect: Connect, subject: str) -> None:
    members = [connect() for _ in range(3)]
    for member in members:
        member.until_pong(sub(subject, 1, "q"))
    connect().until_pong(published(subject))
    got = [int(one.payload) for member in members for one in member.messages_until_pong()]
    assert sorted(got) == list(range(COUNT))


def test_each_queue_gets_a_copy_and_so_does_who_is_in_none(connect: Connect, subject: str) -> None:
    members = [connect() for _ in range(5)]
    for member, queue in zip(members, ["q", "q", "r", "r", ""], strict=True):
        member.until_pong(sub(subject, 1, queue))
    q1, q2, r1, r2, alone = (
        counts["1"] for counts in delivered(members, connect(), published(subject))
    )
    assert (q1 + q2, r1 + r2, alone) == (COUNT, COUNT, COUNT)
    assert_spread([q1, q2])
    assert_spread([r1, r2])


def test_members_with_different_patterns_are_one_group(connect: Connect, subject: str) -> None:
    members = [connect() for _ in range(3)]
    patterns = [f"{subject}.x", f"{subject}.*", f"{subject}.>"]
    for member, pattern in zip(members, patterns, strict=True):
        member.until_pong(sub(pattern, 1, "q"))
    got = [counts["1"] for counts in delivered(members, connect(), published(f"{subject}.x"))]
    assert sum(got) == COUNT
    assert_spread(got)


def test_only_members_whose_pattern_matches_are_chosen(connect: Connect, subject: str) -> None:
    members = [connect() for _ in range(3)]
    patterns = [f"{subject}.x", f"{subject}.*", f"{subject}.y"]
    for member, pattern in zip(members, patterns, strict=True):
        member.until_pong(sub(pattern, 1, "q"))
    x, star, y = (
        counts["1"] for counts in delivered(members, connect(), published(f"{subject}.x"))
    )
    assert (x + star, y) == (COUNT, 0)
    assert_spread([x, star])


def test_a_connection_may_be_several_members(connect: Connect, subject: str, pattern: str) -> None:
    """Each of its subscriptions has the chance of one."""
    double, single = connect(), connect()
    double.until_pong(sub(subject, 1, "q") + sub(pattern, 2, "q"))
    single.until_pong(sub(subject, 3, "q"))
    two, one = delivered([double, single], connect(), published(subject))
    assert two.total() + one.total() == COUNT
    assert_spread([two["1"], two["2"], one["3"]])


def test_a_connection_may_be_in_a_queue_and_out_of_it(client: RawClient, subject: str) -> None:
    said = sub(subject, 1) + sub(subject, 2, "q") + sub(subject, 3, "r") + pub(subject, b"x")
    assert sorted(one.sid for one in client.messages_until_pong(said)) == [b"1", b"2", b"3"]


def test_queues_of_one_name_for_other_subjects_have_nothing_in_common(
    connect: Connect, subject: str
) -> None:
    one, other = connect(), connect()
    one.until_pong(sub(f"{subject}.a", 1, "q"))
    other.until_pong(sub(f"{subject}.b", 1, "q"))
    publisher = connect()
    assert delivered([one, other], publisher, published(f"{subject}.a", 50)) == [{"1": 50}, {}]
    assert delivered([one, other], publisher, published(f"{subject}.b", 50)) == [{}, {"1": 50}]


@pytest.mark.parametrize(
    "queue", ["q.r", "q.*", ">", "*", "q..r", "a/b", "%2F", "~", "\\", "é", "1"]
)
def test_a_queue_has_any_word_as_its_name(connect: Connect, subject: str, queue: str) -> None:
    client = connect()
    said = sub(subject, 1, queue) + sub(subject, 2, queue) + sub(subject, 3, f"{queue}x")
    got = Counter(one.sid for one in client.messages_until_pong(said + published(subject, 40)))
    assert (got[b"1"] + got[b"2"], got[b"3"]) == (40, 40)


def test_a_member_that_leaves_loses_nothing_for_the_others(connect: Connect, subject: str) -> None:
    leaves, stays, publisher = connect(), connect(), connect()
    leaves.until_pong(sub(subject, 1, "q"))
    stays.until_pong(sub(subject, 1, "q"))
    got = delivered([leaves, stays], publisher, published(subject, 100))
    assert got[0]["1"] + got[1]["1"] == 100
    assert leaves.until_pong(b"UNSUB 1\r\n") == b""
    assert delivered([leaves, stays], publisher, published(subject, 100)) == [{}, {"1": 100}]
    leaves.until_pong(sub(subject, 2, "q"))
    back, still = delivered([leaves, stays], publisher, published(subject))
    assert_spread([back["2"], still["1"]])


def test_a_member_with_a_maximum_leaves_the_rest_to_the_others(
    connect: Connect, subject: str
) -> None:
    few, rest = connect(), connect()
    few.until_pong(sub(subject, 1, "q") + b"UNSUB 1 3\r\n")
    rest.until_pong(sub(subject, 1, "q"))
    got = delivered([few, rest], connect(), published(subject, 100))
    assert got == [{"1": 3}, {"1": 97}]


def test_a_member_that_wants_no_echo_leaves_its_own_to_the_others(
    connect: Connect, subject: str
) -> None:
    deaf, other = connect({**FULL, "echo": False}), connect()
    deaf.until_pong(sub(subject, 1, "q"))
    other.until_pong(sub(subject, 1, "q"))
    assert delivered([deaf, other], deaf, published(subject, 100)) == [{}, {"1": 100}]


def test_a_queue_may_have_many_members(connect: Connect, subject: str) -> None:
    members = [connect() for _ in range(50)]
    for member in members:
        member.until_pong(sub(subject, 1, "q"))
    got = delivered(members, connect(), published(subject, 5_000))
    assert sum(counts["1"] for counts in got) == 5_000
    assert_spread([counts["1"] for counts in got])


def test_a_queue_keeps_the_order_for_each_of_its_members(connect: Connect, subject: str) -> None:
    members = [connect() for _ in range(3)]
    for member in members:
        member.until_pong(sub(subject, 1, "q"))
    connect().until_pong(published(subject, 3_000))
    for member in members:
        got = [int(one.payload) for one in member.messages_until_pong()]
        assert got == sorted(got)
