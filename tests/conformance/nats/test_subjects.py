"""Subjects and patterns: which are taken, which match, and that none is changed on its way."""

import pytest

from tests.conformance.nats.conftest import Connect
from tests.conformance.nats.raw_client import FULL, RawClient, error, hpub, pub, sub

pytestmark = pytest.mark.process

PEDANTIC = {**FULL, "pedantic": True}

PATTERNS = [
    *("a", "a.b", "a.b.c", "*", "*.*", "a.*", "*.b", "a.*.c", "*.*.*", "*.b.*", "a.b.*"),
    *(">", "a.>", "a.b.>", "*.>", "*.*.>", "a.*.>", "*.b.>", "a.b.c.>"),
    *("a*", "*a", "a*b", "a.b*", "a.*b", "**", "a.**", "**.b", ">>", "a>", ">a", "a.b>", "a.>b"),
]
SUBJECTS = [
    *("a", "b", "a.b", "a.c", "b.b", "a.b.c", "a.x.c", "x.b.y", "a.b.c.d", "a.b.c.d.e.f"),
    *("a*", "*a", "a*b", "a.b*", "a.*b", "**", "a.**", "**.b", ">>", "a>", ">a", "a.b>", "a.>b"),
    *("A", "A.b", "ab", "aa.b"),
]
# Tokens that a translation into another syntax could stumble over.
ODD = [
    *("a/b", "/", "//", "/a", "a/", "%2F", "%2f", "%", "%%", "%25", "a%2Fb", "~", "~1", "~0", "~/"),
    *(
        "\\",
        "\\/",
        "\\\\",
        "a\\b",
        "\\*",
        "\\>",
        "**",
        "***",
        "*a",
        "a*",
        ">>",
        ">a",
        "a>",
        "$",
        "$a",
    ),
    *(
        "#",
        "+",
        "?",
        "[a]",
        "{a}",
        "(a|b)",
        "^a$",
        "-",
        "_",
        ":",
        ";",
        ",",
        "'",
        '"',
        "`",
        "&",
        "=",
        "@",
    ),
    *(
        "0",
        "None",
        "nats",
        "_INBOX",
        "..."[:0] or "x" * 255,
        "é",
        "e\u0301",
        "日本語",
        "😀",
        "\u00a0",
        "\u2028",
    ),
    *("\x01", "\x7f", "A", "a", "ß", "SS", "ﬁ", "İ"),
]


def matches(pattern: str, subject: str) -> bool:
    """What the documentation of NATS says of patterns, token by token."""
    wanted, given = pattern.split("."), subject.split(".")
    for at, token in enumerate(wanted):
        if at == len(given):
            return False
        if token == ">" and at == len(wanted) - 1:
            return True
        if token not in ("*", given[at]):
            return False
    return len(wanted) == len(given)


def test_every_pattern_gets_the_subjects_that_it_matches_and_no_others(client: RawClient) -> None:
    client.until_pong(b"".join(sub(pattern, at) for at, pattern in enumerate(PATTERNS)))
    for subject in SUBJECTS:
        got = client.messages_until_pong(pub(subject, b"x"))
        found = sorted(PATTERNS[int(message.sid)] for message in got)
        assert found == sorted(name for name in PATTERNS if matches(name, subject)), subject
        assert {message.subject.decode() for message in got} <= {subject}


def test_each_pattern_alone_gets_the_same_as_among_others(client: RawClient) -> None:
    published = b"".join(pub(subject, b"x") for subject in SUBJECTS)
    for sid, pattern in enumerate(PATTERNS):
        got = client.messages_until_pong(sub(pattern, sid) + published + b"UNSUB %d\r\n" % sid)
        assert [message.subject.decode() for message in got] == [
            subject for subject in SUBJECTS if matches(pattern, subject)
        ], pattern


def test_an_odd_token_is_a_token_like_any_other(client: RawClient) -> None:
    """Each is told from all others, and comes back as it was written."""
    client.until_pong(b"".join(sub(f"odd.{token}.end", at) for at, token in enumerate(ODD)))
    for at, token in enumerate(ODD):
        got = client.messages_until_pong(pub(f"odd.{token}.end", b"x"))
        assert [(message.sid, message.subject) for message in got] == [
            (b"%d" % at, f"odd.{token}.end".encode())
        ], token


def test_stars_and_arrows_match_odd_tokens(client: RawClient) -> None:
    client.until_pong(sub("odd.*", 1) + sub("odd.>", 2) + sub("*.*", 3))
    for token in ODD:
        got = client.messages_until_pong(pub(f"odd.{token}", b"x"))
        assert sorted(message.sid for message in got) == [b"1", b"2", b"3"], token
        assert {message.subject for message in got} == {f"odd.{token}".encode()}


def test_an_odd_token_may_be_all_of_a_subject_a_queue_and_a_reply(connect: Connect) -> None:
    for token in ODD:
        client = connect()
        (message,) = client.messages_until_pong(sub(token, 7, token) + pub(token, b"x", token))
        assert (message.subject, message.reply) == (token.encode(), token.encode())
        client.close()


@pytest.mark.parametrize("token", [b"\xff", b"\xc3", b"a\x80b", b"\xed\xa0\x80", b"\0", b"a\0b"])
def test_a_subject_need_not_be_utf_8(client: RawClient, subject: str, token: bytes) -> None:
    name = subject.encode() + b"." + token
    for pattern in (name, subject.encode() + b".*", subject.encode() + b".>"):
        (message,) = client.messages_until_pong(
            sub(pattern) + pub(name, b"x", b"reply." + token) + b"UNSUB 1\r\n"
        )
        assert (message.subject, message.reply) == (name, b"reply." + token)


def test_a_subject_is_case_sensitive(client: RawClient) -> None:
    client.until_pong(sub("Case.a", 1) + sub("case.a", 2))
    assert [one.sid for one in client.messages_until_pong(pub("case.a"))] == [b"2"]


@pytest.mark.parametrize("name", ["t" * 4_000, "a." * 1_000 + "b", "x." * 2_000 + "y"])
def test_a_subject_may_be_nearly_as_long_as_a_line(client: RawClient, name: str) -> None:
    first = name.split(".")[0]
    subscribed = sub(name, 1) + sub(">", 2) + sub(f"{first}.>", 3)
    got = client.messages_until_pong(subscribed + pub(name, b"x"))
    assert {message.subject.decode() for message in got} == {name}
    assert sorted(message.sid for message in got) == [b"1", b"2", b"3"][: 3 if "." in name else 2]


def test_subscriptions_with_many_stars_are_told_apart(client: RawClient) -> None:
    names = ["a.b.c.d", "*.b.c.d", "a.*.c.d", "a.b.*.d", "a.b.c.*", "*.*.*.*", "*.*.c.>", "a.*.*.>"]
    client.until_pong(b"".join(sub(name, at) for at, name in enumerate(names)))
    for subject in ("a.b.c.d", "x.b.c.d", "a.x.c.d", "a.b.x.d", "a.b.c.x", "x.x.x.x", "a.x.x.x.x"):
        got = client.messages_until_pong(pub(subject))
        found = sorted(names[int(message.sid)] for message in got)
        assert found == sorted(name for name in names if matches(name, subject))


BAD = ["a..b", ".a", "a.", ".", "..", "a.>.b", ">.a", "a.b.", ">.>", "*.>.*"]


@pytest.mark.parametrize("pattern", BAD)
def test_a_bad_pattern_is_refused_and_the_connection_stays(
    client: RawClient, subject: str, pattern: str
) -> None:
    assert client.until_pong(sub(pattern)) == error("Invalid Subject")
    (message,) = client.messages_until_pong(sub(subject, 1) + pub(subject, b"x"))
    assert message.sid == b"1", "the number is free"


@pytest.mark.parametrize("pattern", BAD)
def test_a_bad_pattern_of_a_queue_is_refused_too(client: RawClient, pattern: str) -> None:
    assert client.until_pong(sub(pattern, 1, "queue")) == error("Invalid Subject")


@pytest.mark.parametrize("name", ["a..b", ".a", "a.", ".", ".."])
@pytest.mark.parametrize("options", [FULL, PEDANTIC], ids=["plain", "pedantic"])
def test_what_is_published_with_an_empty_token_reaches_nobody(
    connect: Connect, name: str, options: dict[str, object]
) -> None:
    client = connect(options)
    got = client.until_pong(sub(">") + pub(name, b"x") + hpub(name, b"NATS/1.0\r\n\r\n", b"y"))
    refused = error("Invalid Publish Subject") * 2
    assert got == (refused if options is PEDANTIC else b"")


WILD = ["*", ">", "a.*", "a.>", "*.b", "a.>.b", ">.a"]


@pytest.mark.parametrize("name", WILD)
def test_a_star_that_is_published_is_a_token_like_any_other(connect: Connect, name: str) -> None:
    client = connect()
    literal = name.replace("*", "x").replace(">", "y")
    got = client.messages_until_pong(sub(">", 1) + sub(literal, 2) + pub(name, b"x"))
    assert [(message.sid, message.subject) for message in got] == [(b"1", name.encode())]


@pytest.mark.parametrize("name", WILD)
def test_who_is_pedantic_is_told_of_a_star_that_is_published(connect: Connect, name: str) -> None:
    """nats-server delivers it all the same; that much is not promised."""
    got = connect(PEDANTIC).commands_until_pong(sub("never.mind") + pub(name, b"x"))
    assert got == [error("Invalid Publish Subject")]


@pytest.mark.parametrize("name", ["a.b", "a*b", "a.**", "a/b", ">>", "é"])
def test_who_is_pedantic_may_publish_on_every_good_subject(connect: Connect, name: str) -> None:
    (message,) = connect(PEDANTIC).messages_until_pong(sub(name) + pub(name, b"x"))
    assert message.subject == name.encode()


@pytest.mark.parametrize("reply", ["a..b", "*", "a.>", ".", ">.a", "a/b", "%2F", "~"])
def test_a_reply_is_handed_on_as_it_is(connect: Connect, subject: str, reply: str) -> None:
    for options in (FULL, PEDANTIC):
        client = connect(options)
        published = pub(subject, b"x", reply) + hpub(subject, b"NATS/1.0\r\n\r\n", b"y", reply)
        got = client.messages_until_pong(sub(subject) + published)
        assert [message.reply for message in got] == [reply.encode()] * 2


def test_an_arrow_sees_inboxes_and_dollars_too(client: RawClient) -> None:
    names = ["_INBOX.a.b", "$x.y", "$JS.x", "$SYS.x", "$SRV.PING"]
    published = b"".join(pub(name, b"x") for name in names)
    got = client.messages_until_pong(sub(">") + published)
    assert [message.subject.decode() for message in got] == names
