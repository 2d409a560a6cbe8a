"""The pure parts of the NATS door, against definitions that share no code with them."""

from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asterism import limits
from asterism.gateways.nats import headers, subjects
from asterism.gateways.nats.digest import ALIKE_MAX, Digest
from asterism.gateways.nats.protocol import Lines, Parser, Publication, is_pattern
from asterism.gateways.nats.subscriptions import Subscription, Subscriptions
from asterism.router.interest import matches
from asterism.subjects import split_interest, split_subject

# --- the parser -----------------------------------------------------------------------------------

WORDS = st.sampled_from(
    [b"PUB", b"HPUB", b"SUB", b"UNSUB", b"CONNECT", b"PING", b"PONG", b"INFO", b"+OK", b"-ERR",
     b" ", b"\t", b"\r\n", b"\n", b"\r", b"0", b"1", b"12", b"-1", b"a.b", b"a.*", b">", b"{}",
     b'{"verbose":false}', b"[" * 2_000, b"x" * 5_000, b"NATS/1.0\r\n\r\n", b"\xff"]
)  # fmt: skip
LINES = st.sampled_from(
    [b"PING\r\n", b"PONG\n", b"SUB a.* 1\r\n", b"SUB a q 2\r\n", b"UNSUB 1 3\r\n",
     b"CONNECT {}\r\n", b"PUB a 0\r\n\r\n", b"PUB a b 3\r\nxyz\r\n",
     b"HPUB a 2 5\r\nhhxyz\r\n", b"INFO {}\r\n"]
)  # fmt: skip
GARBAGE = st.lists(st.one_of(WORDS, LINES, st.binary(max_size=20)), max_size=30).map(b"".join)
CUTS = st.lists(st.integers(0, 400), max_size=20)


def shown(operations: list[Any]) -> list[Any]:
    return [
        (one[0].subject, one[0].reply, one[0].header_size, one[0].size, one[1])
        if type(one) is tuple
        else (type(one), *one)
        for one in operations
    ]


def read(pieces: list[bytes], most: int) -> tuple[list[Any], str | None, int]:
    """What a parser makes of pieces: operations, its mistake, and the bytes that it holds."""
    parser = Parser(Lines(1_000))
    found: list[Any] = []
    for piece in pieces:
        found += parser.feed(piece, most)
    while parser.is_behind:
        found += parser.feed(b"", max(most, 1))
    sentence = None if parser.error is None else parser.error.sentence
    return shown(found), sentence, parser.held


@given(GARBAGE, CUTS, st.sampled_from([0, 1, 3, 1_000]))
@example(b"CONNECT " + b"[" * 4_000 + b"\r\n", [], 1)
@example(b"PUB a 3\r\nabcxy", [14], 1)
def test_no_input_raises_and_however_it_comes_it_is_the_same(
    data: bytes, cuts: list[int], most: int
) -> None:
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    pieces = [data[a:b] for a, b in pairwise(places)]
    bytewise = [data[at : at + 1] for at in range(len(data))]
    whole = read([data], 1_000)
    assert read(pieces, most) == read(bytewise, most) == whole


# --- subjects -------------------------------------------------------------------------------------

ODD = st.sampled_from(
    ["a", "%", "~", "2", "5", "7", "E", "F", "A", "3", "0", "9", "D", "2E", "2F", "7E", "25", "3E",
     "2A", "*", "**", ">", "/", ".", " ", "\t", "\r", "\n", "ü", "\0", "%2E", "~2F", "~3E", "~2A*"]
)  # fmt: skip
TEXT = st.one_of(st.lists(ODD, min_size=1, max_size=8).map("".join), st.text(min_size=1))
SEGMENTS = TEXT.map(lambda text: text.replace("/", "")).filter(
    lambda text: text not in ("", "*", "**") and text.isprintable() | True
)
TOKENS = TEXT.map(
    lambda text: "".join(char for char in text if char not in ". \t\r\n").encode()
).filter(bool)
EXAMPLES = {  # of the document
    b"a.b.c": "a/b/c", b"a/b": "a~2Fb", b"v1%2E2": "v1.2", b"*": "~2A", b"**": "~2A*", b">": "~3E",
    b"%252E": "%2E", b"%25252E": "%252E",
}  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs"), EXAMPLES.items())
def test_the_examples_are_so(ours: bytes, theirs: str) -> None:
    assert subjects.subject_of(ours) == theirs
    assert subjects.nats_subject_of(theirs) == ours


@given(TOKENS)
@example(b"~2A")
@example(b"~7E2A*")
@example(b"%3E")
@example(b"%253E")
@example(b"%252E%2E")
def test_a_token_of_nats_comes_back_as_it_was(token: bytes) -> None:
    segment = subjects.segment_of(token)
    assert "/" not in segment and segment not in ("", "*", "**")
    assert subjects.token_of(segment) == token


@given(SEGMENTS)
@example("~2A")
@example("%3E")
@example(">")
@example("~7E2F/".replace("/", ""))
def test_a_segment_of_the_broker_comes_back_as_it_was(segment: str) -> None:
    token = subjects.token_of(segment)
    assert token not in (b"", b"*", b">") or segment in ("~2A", "~3E")
    assert not set(token) & set(b". \t\r\n")
    assert subjects.segment_of(token) == segment


@given(st.binary(min_size=1, max_size=1_100), st.binary(max_size=20))
def test_any_subject_has_a_name_at_the_broker_or_is_told_to_have_none(
    first: bytes, rest: bytes
) -> None:
    subject = b".".join(filter(None, [*first.split(b"."), rest]))
    subject = b".".join(filter(None, subject.translate(None, b"\t\r\n ").split(b".")))
    if not subject:
        return
    for name, split in (
        (subjects.subject_of, split_subject),
        (subjects.interest_of, split_interest),
    ):
        try:
            found = name(subject)
        except subjects.UnspeakableError:
            continue
        assert "/".join(split(found)) == found
    if is_pattern(subject) and b"*" not in subject and b">" not in subject:
        with suppress(subjects.UnspeakableError):
            assert subjects.nats_subject_of(subjects.subject_of(subject)) == subject


# --- subscriptions --------------------------------------------------------------------------------

PATTERNS = st.lists(
    st.sampled_from([b"a", b"b", b"*", b"**", b"a*"]), min_size=1, max_size=4
).flatmap(lambda tokens: st.sampled_from([b".".join(tokens), b".".join([*tokens, b">"]), b">"]))
SUBJECTS = st.lists(
    st.sampled_from([b"a", b"b", b"*", b"**", b"a*", b">", b""]), min_size=1, max_size=5
).map(b".".join)


def wants(pattern: list[bytes], subject: list[bytes]) -> bool:
    """The definition."""
    if b"" in subject:
        return False
    if pattern[-1] == b">":
        pattern, more = pattern[:-1], len(subject) - len(pattern) + 1
        if more < 1:
            return False
        subject = subject[:-more]
    return len(pattern) == len(subject) and all(
        one in (b"*", other) for one, other in zip(pattern, subject, strict=True)
    )


class Client:
    is_closed = False


class SubscriptionsMachine(RuleBasedStateMachine):
    """Subscriptions come and go; what is remembered of routes is never out of date."""

    def __init__(self) -> None:
        super().__init__()
        self.held = Subscriptions()
        self.there: list[Subscription] = []
        self.asked: set[bytes] = {b"a.b"}

    @rule(pattern=PATTERNS, queue=st.sampled_from([None, None, b"q", b"r"]))
    def add(self, pattern: bytes, queue: bytes | None) -> None:
        one = Subscription(Client(), pattern, queue, b"1")
        self.held.add(one)
        self.there.append(one)

    @rule(number=st.integers(0, 100))
    def remove(self, number: int) -> None:
        if self.there:
            self.held.remove(self.there.pop(number % len(self.there)))

    @rule(subject=SUBJECTS)
    def ask(self, subject: bytes) -> None:
        self.asked.add(subject)

    @invariant()
    def routes_are_as_defined(self) -> None:
        for subject in self.asked:
            expected = [
                one for one in self.there if wants(one.pattern.split(b"."), subject.split(b"."))
            ]
            route = self.held.route(subject)
            found = [*route.plain, *(member for group in route.groups for member in group)]
            assert len(found) == len(expected) and set(found) == set(expected)
            assert all(one.queue is None for one in route.plain)
            for queue, group in route.by_queue.items():
                assert {member.queue for member in group} == {queue}
            assert len(route.everybody) == len(route.plain) + len(route.groups)

    @invariant()
    def what_is_held_is_counted(self) -> None:
        assert len(self.held) == len(self.there)
        assert self.held.weight == sum(one.weight for one in self.there)


TestSubscriptions = SubscriptionsMachine.TestCase


# --- what is asked for ----------------------------------------------------------------------------

LONG = "l" * (limits.SUBJECT_BYTES_MAX - 3)
FIRSTS = st.sampled_from(["a", "b", "_INBOX", "*", "**", LONG, *map(str, range(20))])
INTERESTS = st.builds(
    lambda first, rest: f"{first}/{rest}" if rest else first,
    FIRSTS,
    st.one_of(st.just(""), st.integers(0, 9).map(str), st.sampled_from(["*", "**", "x"])),
).filter(lambda interest: len(interest) <= limits.SUBJECT_BYTES_MAX)


@given(st.lists(INTERESTS, max_size=40), st.integers(0, ALIKE_MAX * 2), st.data())
def test_what_is_asked_for_covers_what_is_wanted_within_bounds(
    interests: list[str], alike: int, data: st.DataObject
) -> None:
    interests += [f"a/{number}" for number in range(alike)]
    digest = Digest()
    for interest in interests:
        digest.add(interest)
    if interests:
        gone = data.draw(st.lists(st.sampled_from(range(len(interests))), unique=True))
        for number in gone:
            digest.remove(interests[number])
        interests = [one for at, one in enumerate(interests) if at not in gone]
    asked = digest.interests()
    assert len(asked) <= limits.INTERESTS_MAX and len(set(asked)) == len(asked)
    assert bool(digest) == bool(interests) == bool(asked)
    for interest in asked:
        split_interest(interest)
    for interest in interests:
        for subject in (
            interest.replace("**", "y/z").replace("*", "y"),
            interest.replace("**", "y").replace("*", "y"),
        ):
            if len(subject) <= limits.SUBJECT_BYTES_MAX:  # else it is none
                assert any(matches(one, subject) for one in asked)


# --- headers --------------------------------------------------------------------------------------

NAMES = st.text(
    st.characters(codec="ascii", min_codepoint=33, max_codepoint=126, exclude_characters=":"),
    min_size=1,
    max_size=8,
)
VALUES = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=20).map(
    lambda text: text.strip(" \t")
)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=20))
def test_headers_come_back_as_they_were(pairs: list[tuple[str, str]]) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    found = headers.attributes_of(f"NATS/1.0\r\n{lines}\r\n".encode())
    expected: dict[str, list[str]] = {}
    for name, value in pairs:
        expected.setdefault(name, []).append(value)
    assert found == {name: "\n".join(values) for name, values in expected.items()}
    if pairs:
        assert headers.attributes_of(headers.block_of(found)) == found


@given(st.binary(max_size=200))
def test_any_block_is_told_or_refused_and_an_opaque_one_comes_back(block: bytes) -> None:
    found = headers.attributes_of(block)
    if headers.OPAQUE in found:
        assert headers.block_of(found) == block


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=30), max_size=8))
def test_any_attributes_make_a_block_that_is_a_list_of_headers(attributes: dict[str, str]) -> None:
    attributes.pop(headers.OPAQUE, None)
    block = headers.block_of(attributes)
    assert bool(block) == bool(attributes)
    if block:
        assert block.startswith(b"NATS/1.0") and block.endswith(b"\r\n\r\n")
        assert headers.OPAQUE not in headers.attributes_of(block)


@given(st.binary(max_size=60), st.integers(0, 60))
def test_what_is_sent_has_the_size_that_it_says(body: bytes, header_size: int) -> None:
    header_size = min(header_size, len(body))
    one = Publication(b"a.b", None, header_size, len(body), header_size > 0)
    *_, size = one.tail.split()
    assert int(size) == len(body)
    assert int(one.without_headers().tail) == len(body) - header_size
