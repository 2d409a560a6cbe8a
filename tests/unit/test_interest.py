"""The matcher, promise by promise: section 5 of the specification."""

import pytest

from asterism import limits
from asterism.errors import PeerError
from asterism.router.interest import InterestTrie, matches

MATCHING = [
    ("user/*", "user/a"),
    ("user/*", "user/b"),
    ("user/*/quit", "user/a/quit"),
    ("user/*/quit", "user/b/quit"),
    ("user/**", "user/a"),
    ("user/**", "user/a/quit"),
    ("user/**", "user/b/helloworld"),
    ("a/**/b", "a/x/b"),
    ("a/**/b", "a/x/y/b"),
    ("a/**/b", "a/b/b"),
    ("a/**/b", "a/b/b/b"),
    ("a/**/*", "a/b/c"),
    ("a/**/*", "a/b/c/d"),
    ("a/*/**", "a/b/c"),
    ("a/*/**", "a/b/c/d"),
    ("**", "a"),
    ("**", "a/b"),
    ("**", "user/b/helloworld"),
    ("*", "a"),
    ("**/quit", "user/quit"),
    ("**/quit", "user/a/quit"),
    ("**/quit", "quit/quit/quit"),
    ("**/**", "a/b"),
    ("**/**", "a/b/c"),
    ("**/a/**", "b/a/c"),
    ("**/a/**", "a/a/a"),
    ("**/a/**/a/**", "b/a/b/a/b"),
    ("**/*/b", "x/y/b"),
    ("**/*/b", "x/y/z/b"),
    ("*/**/*", "a/b/c"),
    ("*/*", "a/b"),
    ("user/a", "user/a"),
]

NOT_MATCHING = [
    ("user/*", "user"),
    ("user/*", "user/a/b"),
    ("user/*/quit", "user/quit"),
    ("user/*/quit", "user/a/b/quit"),
    ("user/**", "user"),
    ("user/**", "users/a"),
    ("a/**/b", "a/b"),
    ("a/**/b", "a/x/b/c"),
    ("a/**/b", "x/a/y/b"),
    ("a/**/*", "a/b"),
    ("a/**/*", "a"),
    ("a/*/**", "a/b"),
    ("*", "a/b"),
    ("**/quit", "quit"),
    ("**/quit", "user/quit/a"),
    ("**/**", "a"),
    ("**/a/**", "a/b"),
    ("**/a/**", "b/a"),
    ("**/a/**/a/**", "b/a/a/b"),
    ("**/*/b", "x/b"),
    ("*/**/*", "a/b"),
    ("*/*", "a"),
    ("user/a", "user"),
    ("user/a", "user/a/b"),
    ("user/a", "user/b"),
]


def trie_of(*pairs: tuple[str, int]) -> InterestTrie[int]:
    trie: InterestTrie[int] = InterestTrie()
    for interest, receiver in pairs:
        assert trie.add(interest, receiver)
    return trie


def agree(interest: str, subject: str) -> bool:
    """The answer of the single pair, after seeing that every way to ask gives the same."""
    trie = trie_of((interest, 1))
    answer = matches(interest, subject)
    assert (trie.match(subject) == {1}) is answer
    assert (trie.match_any([subject]) == {1}) is answer
    return answer


@pytest.mark.parametrize(("interest", "subject"), MATCHING)
def test_an_interest_matches(interest: str, subject: str) -> None:
    assert agree(interest, subject)


@pytest.mark.parametrize(("interest", "subject"), NOT_MATCHING)
def test_an_interest_does_not_match(interest: str, subject: str) -> None:
    assert not agree(interest, subject)


def test_the_tables_hold_when_all_interests_share_one_trie() -> None:
    interests = sorted({interest for interest, _ in MATCHING + NOT_MATCHING})
    trie: InterestTrie[str] = InterestTrie()
    for interest in interests:
        trie.add(interest, interest)
    for interest, subject in MATCHING:
        assert interest in trie.match(subject)
    for interest, subject in NOT_MATCHING:
        assert interest not in trie.match(subject)


@pytest.mark.parametrize(
    "segment", ["user-*", "*-user", "***", "a**", "**a", "*a*", "?", "[a]", "."]
)
def test_a_star_inside_a_segment_is_a_literal(segment: str) -> None:
    assert agree(f"x/{segment}", f"x/{segment}")
    assert not agree(f"x/{segment}", "x/user-a")
    assert not agree(f"x/{segment}", "x/a")
    assert not agree(f"x/{segment}", "x/a/b/c")
    assert agree("x/*", f"x/{segment}")
    assert agree("**", segment)


@pytest.mark.parametrize("spelling", ["a/b", "/a/b", "a/b/", "a//b", "///a////b//"])
def test_slashes_are_normalised_on_both_sides_alike(spelling: str) -> None:
    assert agree(spelling, "a/b")
    assert agree("a/b", spelling)
    assert agree(spelling, spelling)
    assert agree("a/*", spelling)
    assert not agree("a/*/**", spelling)
    assert not agree("*/**/b", spelling)


def test_two_spellings_of_one_interest_are_one_interest() -> None:
    trie = trie_of(("a/*", 1))
    assert not trie.add("//a//*/", 1)
    assert len(trie) == 1
    assert trie.remove("/a/*", 1)
    assert len(trie) == 0


def test_interests_that_mean_the_same_are_held_apart() -> None:
    trie = trie_of(("a/**/*", 1), ("a/*/**", 1))
    assert len(trie) == 2
    assert trie.remove("a/**/*", 1)
    assert trie.match("a/b/c") == {1}


def test_case_counts() -> None:
    assert not agree("User/a", "user/a")
    assert not agree("user/*", "USER/a")
    assert agree("User/a", "User/a")


def test_any_unicode_may_be_a_segment_and_is_not_normalised() -> None:
    assert agree("größe/*/✓", "größe/ñandú/✓")
    assert agree("*/🜨", "a b/🜨")
    assert not agree("caf\u00e9", "cafe\u0301")
    assert not agree("\uff0a", "a"), "only the ASCII star is a wildcard"
    assert agree("a\u2215b", "a\u2215b"), "only the ASCII slash separates"


def test_a_wildcard_is_never_taken_for_a_literal_of_the_same_name() -> None:
    trie = trie_of(("*", 1), ("**", 2), ("a", 3))
    assert trie.match("a") == {1, 2, 3}
    assert trie.match("b") == {1, 2}
    assert trie.match("b/c") == {2}


LONG = "a" * limits.SUBJECT_BYTES_MAX
DEEP = "/".join("a" * limits.SEGMENTS_MAX)
REFUSED = [
    "",
    "/",
    "///",
    LONG + "a",
    "é" * (limits.SUBJECT_BYTES_MAX // 2) + "a",
    DEEP + "/a",
    "\ud800",
]


@pytest.mark.parametrize("subject", [*REFUSED, "*", "**", "a/*", "*/a", "a/**/b", "//a//**//"])
def test_a_bad_subject_is_refused_whoever_asks(subject: str) -> None:
    trie = trie_of(("**", 1))
    with pytest.raises(PeerError) as refusal:
        trie.match(subject)
    assert refusal.value.code == "bad_subject"
    with pytest.raises(PeerError) as refusal:
        trie.match_any(["a", subject])
    assert refusal.value.code == "bad_subject"
    with pytest.raises(PeerError) as refusal:
        matches("**", subject)
    assert refusal.value.code == "bad_subject"


@pytest.mark.parametrize("interest", REFUSED)
def test_a_bad_interest_is_refused_and_changes_nothing(interest: str) -> None:
    trie = trie_of(("a", 1))
    with pytest.raises(PeerError) as refusal:
        trie.add(interest, 2)
    assert refusal.value.code == "bad_interest"
    with pytest.raises(PeerError) as refusal:
        trie.remove(interest, 1)
    assert refusal.value.code == "bad_interest"
    with pytest.raises(PeerError) as refusal:
        matches(interest, "a")
    assert refusal.value.code == "bad_interest"
    assert (len(trie), trie.node_count()) == (1, 1)


@pytest.mark.parametrize("largest", [LONG, DEEP])
def test_the_largest_subject_and_interest_are_not_refused(largest: str) -> None:
    assert agree(largest, largest)
    assert agree("**", largest)


def test_a_subject_as_bytes_is_refused_not_guessed_at() -> None:
    with pytest.raises(PeerError):
        trie_of(("**", 1)).match(b"a")  # type: ignore[arg-type]


def test_a_receiver_is_found_once_however_many_interests_and_subjects_match() -> None:
    trie = trie_of(("a/*", 1), ("a/**", 1), ("**", 1), ("a/b", 1), ("c", 2), ("d", 3))
    assert trie.match("a/b") == {1}
    assert trie.match_any(["a/b", "c", "a/x", "c"]) == frozenset({1, 2})
    assert isinstance(trie.match_any(["a/b"]), frozenset)


def test_no_subjects_match_nobody() -> None:
    assert trie_of(("**", 1)).match_any([]) == frozenset()


def test_subjects_may_come_from_an_iterator() -> None:
    assert trie_of(("a", 1), ("b", 2)).match_any(iter(["a", "b"])) == {1, 2}


def test_one_subject_in_place_of_several_is_our_mistake() -> None:
    with pytest.raises(AssertionError):
        trie_of(("**", 1)).match_any("ab")


def test_segments_that_were_split_before_match_like_the_subject() -> None:
    trie = trie_of(("a/*/c", 1), ("a/**", 2), ("a/b", 3))
    assert trie.match_segments(("a", "b", "c")) == trie.match("a/b/c") == {1, 2}


def test_an_empty_trie_matches_nothing() -> None:
    trie = trie_of()
    assert trie.match("a/b") == set()
    assert (len(trie), trie.node_count()) == (0, 0)


def test_the_set_returned_is_the_callers_own() -> None:
    trie = trie_of(("a", 1))
    trie.match("a").clear()
    assert trie.match("a") == {1}


def test_a_pair_that_is_there_is_not_added_again() -> None:
    trie = trie_of(("a/*", 1))
    assert not trie.add("a/*", 1)
    assert trie.add("a/*", 2)
    assert len(trie) == 2
    assert trie.match("a/b") == {1, 2}


@pytest.mark.parametrize("interest", ["a", "a/b/c", "a/*", "*/b", "a/**", "**", "x/b"])
def test_removing_what_is_not_there_changes_nothing(interest: str) -> None:
    trie = trie_of(("a/b", 1))
    assert not trie.remove(interest, 1)
    assert (len(trie), trie.node_count()) == (1, 2)
    assert trie.match("a/b") == {1}


def test_removing_another_receivers_interest_changes_nothing() -> None:
    trie = trie_of(("a/b", 1))
    assert not trie.remove("a/b", 2)
    assert trie.remove("a/b", 1)
    assert not trie.remove("a/b", 1)
    assert len(trie) == 0


def test_removing_one_receiver_leaves_the_others() -> None:
    trie = trie_of(("a/**", 1), ("a/**", 2))
    assert trie.remove("a/**", 1)
    assert trie.match("a/b/c") == {2}


def test_pruning_stops_at_what_others_hold() -> None:
    trie = trie_of(("a", 1), ("a/b/c/d", 2), ("a/b/*", 3))
    assert trie.node_count() == 5
    assert trie.remove("a/b/c/d", 2)
    assert trie.node_count() == 3
    assert trie.match("a/b/c") == {3}
    assert trie.remove("a", 1)
    assert trie.node_count() == 3
    assert trie.remove("a/b/*", 3)
    assert trie.node_count() == 0


@pytest.mark.parametrize("child", ["b", "*", "**"])
def test_an_interest_removed_from_the_end_keeps_the_one_it_goes_on_from(child: str) -> None:
    for middle in ("a", "*", "**"):
        trie = trie_of((middle, 1), (f"{middle}/{child}", 2))
        assert trie.remove(f"{middle}/{child}", 2)
        assert trie.node_count() == 1
        assert trie.match("a") == {1}


@pytest.mark.parametrize("child", ["b", "*", "**"])
def test_an_interest_removed_from_the_middle_keeps_those_behind_it(child: str) -> None:
    for middle in ("a", "*", "**"):
        trie = trie_of((middle, 1), (f"{middle}/{child}", 2))
        assert trie.remove(middle, 1)
        assert trie.node_count() == 2
        assert trie.match("a/b") == {2}
        assert trie.match("a") == set()


def test_memory_goes_back_when_all_is_removed() -> None:
    shapes = ("user/{}/*", "order/{}/paid", "device-{}/**", "**/event-{}")
    interests = [shapes[i % len(shapes)].format(i) for i in range(10_000)]
    trie = trie_of(*((interest, receiver) for receiver, interest in enumerate(interests)))
    assert len(trie) == 10_000
    assert trie.node_count() > 10_000
    assert trie.match("user/4/x") == {4}
    for receiver, interest in enumerate(interests):
        assert trie.remove(interest, receiver)
    assert (len(trie), trie.node_count()) == (0, 0)
    assert trie.match("user/4/x") == set()
