"""Pages of listings."""

import pytest

from asterism.gateways.pubsub.pages import PAGE_BYTES_MAX, PAGE_SIZE, PAGE_SIZE_MAX, page_of
from tests.unit.pubsub.refusals import refused

NAMES = [f"projects/p/topics/t{number:04}" for number in range(1_500)]


def test_pages_go_by_names() -> None:
    first = page_of(reversed(NAMES), 2, "")
    assert first.names == NAMES[:2]
    assert page_of(NAMES, 2, first.next_page_token).names == NAMES[2:4]


def test_the_last_page_has_no_token() -> None:
    assert page_of(NAMES[:2], 2, "") == (NAMES[:2], "")
    assert page_of([], 2, "") == ([], "")


def test_a_page_that_does_not_say_is_of_the_usual_size() -> None:
    assert len(page_of(NAMES, 0, "").names) == PAGE_SIZE
    assert len(page_of(NAMES, 100_000, "").names) == PAGE_SIZE_MAX


def test_what_comes_and_goes_between_pages_moves_nothing_else() -> None:
    token = page_of(NAMES[:6], 3, "").next_page_token
    changed = [NAMES[0] + "x", *NAMES[3:6]]
    assert page_of(changed, 3, token).names == NAMES[3:6]


@pytest.mark.parametrize("token", ["x", "!!!!", "é", "A" * 2_000, "_w=="])
def test_a_token_that_no_listing_returned_is_refused(token: str) -> None:
    with refused("page_token"):
        page_of(NAMES, 2, token)


def test_a_negative_size_is_refused() -> None:
    with refused("page_size"):
        page_of(NAMES, -1, "")


def test_a_page_is_no_larger_than_a_client_takes() -> None:
    first = page_of(NAMES[:8], 0, "", lambda name: PAGE_BYTES_MAX // 3)
    assert first.names == NAMES[:3]
    rest = page_of(NAMES[:8], 0, first.next_page_token, lambda name: 1)
    assert rest == (NAMES[3:8], "")


def test_what_is_larger_by_itself_is_a_page_of_its_own() -> None:
    names, token = NAMES[:3], ""
    for name in names:
        page = page_of(names, 0, token, lambda name: PAGE_BYTES_MAX + 1)
        assert page.names == [name]
        token = page.next_page_token
    assert not token
