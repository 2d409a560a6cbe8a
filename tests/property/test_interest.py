"""The trie against a definition of matching that shares no code with it.

The alphabet is two letters and two wildcards, so that random interests and subjects often match,
and random interests are often prefixes of each other.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asterism.router import interest as interest_module
from asterism.router.interest import InterestTrie, matches

Segments = tuple[str, ...]

LETTERS = ("a", "b")
WILDCARDS = ("*", "**")
RECEIVERS = st.integers(min_value=0, max_value=3)


def wants(interest: Segments, subject: Segments) -> bool:
    """The definition, as slow as it is plain."""
    if not interest or not subject:
        return not interest and not subject
    first, rest = interest[0], interest[1:]
    if first == "**":
        return any(wants(rest, subject[taken:]) for taken in range(1, len(subject) + 1))
    return first in ("*", subject[0]) and wants(rest, subject[1:])


def segments_of(alphabet: Segments, most: int) -> st.SearchStrategy[Segments]:
    return st.lists(st.sampled_from(alphabet), min_size=1, max_size=most).map(tuple)


INTERESTS = segments_of(LETTERS + WILDCARDS, 5)
SUBJECTS = segments_of(LETTERS, 6)
SLASHES = st.sampled_from(["/", "/", "//", "///"])
EDGES = st.sampled_from(["", "", "/", "//"])


@st.composite
def spelled(draw: st.DrawFn, segments: st.SearchStrategy[Segments]) -> tuple[str, Segments]:
    """Segments with one of their spellings."""
    chosen = draw(segments)
    text = draw(EDGES) + chosen[0]
    for segment in chosen[1:]:
        text += draw(SLASHES) + segment
    return text + draw(EDGES), chosen


def test_the_definition_says_what_the_specification_says() -> None:
    table = {
        "user/*": ("user/a user/b", "user user/a/b"),
        "user/*/quit": ("user/a/quit user/b/quit", "user/quit"),
        "user/**": ("user/a user/a/quit user/b/helloworld", "user"),
        "a/**/b": ("a/x/b a/x/y/b", "a/b"),
        "a/**/*": ("a/b/c a/b/c/d", "a/b"),
        "**": ("a a/b a/b/c", ""),
    }
    for glob, (matching, others) in table.items():
        for subject in matching.split():
            assert wants(tuple(glob.split("/")), tuple(subject.split("/")))
        for subject in others.split():
            assert not wants(tuple(glob.split("/")), tuple(subject.split("/")))


def test_every_short_interest_and_subject_agree_with_the_definition() -> None:
    """Exhaustive where it can be: all interests of up to four segments share one trie."""
    globs = [glob for size in range(1, 5) for glob in product(LETTERS + WILDCARDS, repeat=size)]
    trie: InterestTrie[Segments] = InterestTrie()
    for glob in globs:
        assert trie.add("/".join(glob), glob)
    assert trie.node_count() == len(globs)
    for size in range(1, 6):
        for subject in product(LETTERS, repeat=size):
            expected = {glob for glob in globs if wants(glob, subject)}
            assert trie.match_segments(subject) == expected


@given(spelled(INTERESTS), spelled(SUBJECTS))
def test_a_single_pair_agrees_with_the_definition(
    interest: tuple[str, Segments], subject: tuple[str, Segments]
) -> None:
    assert matches(interest[0], subject[0]) is wants(interest[1], subject[1])


@given(st.lists(st.tuples(INTERESTS, RECEIVERS), max_size=30), st.lists(SUBJECTS, max_size=5))
def test_a_trie_agrees_with_its_interests_taken_one_by_one(
    pairs: list[tuple[Segments, int]], subjects: list[Segments]
) -> None:
    trie: InterestTrie[int] = InterestTrie()
    for interest, receiver in pairs:
        trie.add("/".join(interest), receiver)
    everyone: set[int] = set()
    for subject in map("/".join, subjects):
        expected = {receiver for glob, receiver in pairs if matches("/".join(glob), subject)}
        assert trie.match(subject) == expected
        everyone |= expected
    assert trie.match_any(map("/".join, subjects)) == everyone


class TrieHistory(RuleBasedStateMachine):
    """Any history of adds and removes; the model is the set of pairs that are held."""

    def __init__(self) -> None:
        super().__init__()
        self.trie: InterestTrie[int] = InterestTrie()
        self.held: set[tuple[Segments, int]] = set()

    @rule(interest=spelled(INTERESTS), receiver=RECEIVERS)
    def add(self, interest: tuple[str, Segments], receiver: int) -> None:
        text, segments = interest
        assert self.trie.add(text, receiver) is ((segments, receiver) not in self.held)
        self.held.add((segments, receiver))

    @rule(interest=spelled(INTERESTS), receiver=RECEIVERS)
    def remove_anything(self, interest: tuple[str, Segments], receiver: int) -> None:
        text, segments = interest
        assert self.trie.remove(text, receiver) is ((segments, receiver) in self.held)
        self.held.discard((segments, receiver))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def remove_what_is_held(self, data: st.DataObject) -> None:
        segments, receiver = data.draw(st.sampled_from(sorted(self.held)))
        assert self.trie.remove("/".join(segments), receiver)
        self.held.remove((segments, receiver))

    @rule(subject=spelled(SUBJECTS))
    def match(self, subject: tuple[str, Segments]) -> None:
        text, segments = subject
        assert self.trie.match(text) == self.expected(segments)
        assert self.trie.match_segments(segments) == self.expected(segments)

    @rule(subjects=st.lists(SUBJECTS, max_size=4))
    def match_any(self, subjects: list[Segments]) -> None:
        expected: set[int] = set().union(*map(self.expected, subjects))
        assert self.trie.match_any(map("/".join, subjects)) == expected

    def expected(self, subject: Segments) -> set[int]:
        return {receiver for interest, receiver in self.held if wants(interest, subject)}

    @invariant()
    def pairs_are_counted(self) -> None:
        assert len(self.trie) == len(self.held)

    @invariant()
    def there_is_a_node_for_each_prefix_that_is_held_and_no_other(self) -> None:
        prefixes = {
            interest[:size] for interest, _ in self.held for size in range(1, len(interest) + 1)
        }
        assert self.trie.node_count() == len(prefixes)

    # A rule and not the teardown: that runs after a failure too, and hides it behind a second one.
    @rule()
    def remove_everything(self) -> None:
        for interest, receiver in self.held:
            assert self.trie.remove("/".join(interest), receiver)
        self.held.clear()
        assert (len(self.trie), self.trie.node_count()) == (0, 0)


TestTrieHistory = TrieHistory.TestCase
# One broken promise shows in many places; making each of them small takes minutes.
TestTrieHistory.settings = settings(report_multiple_bugs=False)


# --- the cost of many wildcards, in lines executed: the same on every machine --------------------


OnEvent = Callable[[FrameType, str, object], Any]


class Steps:
    """How many lines of the matcher have run; past ``most`` it is stopped: it may never end."""

    def __init__(self, most: int) -> None:
        self.count = 0
        self.most = most

    def on_event(self, frame: FrameType, event: str, _: object) -> OnEvent | None:
        if frame.f_code.co_filename != interest_module.__file__:
            return None
        self.count += event == "line"
        assert self.count <= self.most, f"more than {self.most} steps"
        return self.on_event


@contextmanager
def counted_steps(most: int) -> Iterator[Steps]:
    steps = Steps(most)
    # What was there before is given back: a coverage run uses the same hook.
    before = sys.gettrace()
    sys.settrace(steps.on_event)
    try:
        yield steps
    finally:
        sys.settrace(before)


# More lines than one node costs at one segment: the seven of the loop, and entering a ``**``.
STEPS_PER_NODE = 14


def steps_allowed(trie: InterestTrie[int], subject: Segments) -> int:
    return STEPS_PER_NODE * (trie.node_count() + 1) * len(subject)


PATHOLOGICAL = [
    ["**"] * 32,
    ["**"] * 16,
    ["**", "a"] * 16,
    ["**", "a"] * 8 + ["b"],
    ["**", "*"] * 16,
    ["*", "**"] * 8 + ["b"],
    ["**", "**", "a"] * 10 + ["b"],
    ["a", "**"] * 16,
]


@pytest.mark.parametrize("glob", PATHOLOGICAL, ids="/".join)
def test_many_wildcards_cost_at_most_nodes_times_segments(glob: list[str]) -> None:
    trie: InterestTrie[int] = InterestTrie()
    trie.add("/".join(glob), 1)
    subject = ("a",) * 32
    with counted_steps(steps_allowed(trie, subject)) as steps:
        trie.match_segments(subject)
    assert steps.count > 0


def test_many_interests_of_many_wildcards_cost_at_most_nodes_times_segments() -> None:
    """Every combination of three edges at each of seven places: all nodes are reached at once."""
    trie: InterestTrie[int] = InterestTrie()
    for receiver, glob in enumerate(product(("a", "*", "**"), repeat=7)):
        trie.add("/".join(glob), receiver)
    subject = ("a",) * 32
    with counted_steps(steps_allowed(trie, subject)) as steps:
        found = trie.match_segments(subject)
    assert steps.count > 0
    assert found == {i for i, glob in enumerate(product("a*+", repeat=7)) if "+" in glob}


def test_interests_that_do_not_match_cost_a_subject_nothing() -> None:
    subject = ("user", "17", "quit")
    counts = []
    trie: InterestTrie[int] = InterestTrie()
    for size in (10, 10_000):
        for i in range(len(trie) // 3, size):
            trie.add(f"user/{i + 100}/*", i)
            trie.add(f"order/{i}/**", i)
            trie.add(f"**/event-{i}", i)
        trie.add("user/17/*", -1)
        trie.add("**/quit", -2)
        with counted_steps(steps_allowed(trie, subject)) as steps:
            assert trie.match_segments(subject) == {-1, -2}
        counts.append(steps.count)
    assert counts[0] == counts[1]
