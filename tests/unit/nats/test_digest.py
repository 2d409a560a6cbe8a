"""What the NATS door asks the broker for: never less than is wanted, nor too much."""

import pytest

from asterism import limits
from asterism.gateways.nats.digest import ALIKE_MAX, EVERYTHING, Digest
from asterism.subjects import split_interest


def digest_of(*interests: str) -> Digest:
    digest = Digest()
    for interest in interests:
        digest.add(interest)
    return digest


def test_few_interests_are_asked_for_as_they_are() -> None:
    digest = digest_of("a/b", "a/*", "c", "a/b")
    assert set(digest.interests()) == {"a/b", "a/*", "c"}
    digest.remove("a/b")
    assert set(digest.interests()) == {"a/b", "a/*", "c"}
    for interest in ("a/b", "a/*", "c"):
        digest.remove(interest)
    assert digest.interests() == () and not digest


def test_many_that_begin_alike_are_asked_for_as_one() -> None:
    digest = digest_of(*(f"a/{number}" for number in range(ALIKE_MAX + 1)), "b/c")
    assert set(digest.interests()) == {"a", "a/**", "b/c"}


def test_inboxes_are_asked_for_as_one_from_the_first_on() -> None:
    assert set(digest_of("_INBOX/x/*").interests()) == {"_INBOX", "_INBOX/**"}


@pytest.mark.parametrize("first", ["*", "**"])
def test_many_that_begin_with_a_star_are_everything(first: str) -> None:
    interests = [f"{first}/{number}" for number in range(ALIKE_MAX + 1)]
    assert digest_of(*interests).interests() == EVERYTHING


def test_many_that_begin_differently_are_everything() -> None:
    digest = digest_of(*(f"{number}/a" for number in range(limits.INTERESTS_MAX + 1)))
    assert digest.interests() == EVERYTHING


@pytest.mark.parametrize("size", range(limits.SUBJECT_BYTES_MAX - 5, limits.SUBJECT_BYTES_MAX - 1))
def test_what_is_asked_for_is_never_longer_than_an_interest_may_be(size: int) -> None:
    """One that is refused would be asked for for ever, and no client's interests be known any more:
    65 short subscriptions behind one long token were enough."""
    first = "a" * size
    interests = [f"{first}/{chr(0x100 + number)}"[: size + 2] for number in range(ALIKE_MAX + 1)]
    for interest in digest_of(*interests).interests():
        split_interest(interest)


def test_what_is_asked_for_at_a_time_is_bounded_in_bytes() -> None:
    digest = digest_of(*(f"{number}/{'a' * 1_000}" for number in range(1_000)))
    assert digest.interests() == EVERYTHING
