"""Checks on peers' values: what passes passes unchanged, what does not is refused with a code."""

from collections.abc import Callable

import pytest

from asterism import PeerError, checks, limits


def refusal(check: Callable[..., object], *arguments: object) -> PeerError:
    with pytest.raises(PeerError) as caught:
        check(*arguments)
    return caught.value


@pytest.mark.parametrize("value", [1, 5, 9])
def test_a_whole_number_within_its_bounds_passes(value: int) -> None:
    assert checks.whole("credit", value, 1, 9) == value


@pytest.mark.parametrize("value", [0, 10, -1, True, 1.0, "1", b"1", None, [1], float("nan")])
def test_anything_else_is_no_whole_number_within_its_bounds(value: object) -> None:
    error = refusal(checks.whole, "credit", value, 1, 9)
    assert error.code == "bad_request"
    assert error.detail.startswith("credit must be ")


def test_a_number_too_long_to_print_is_refused_like_any_other() -> None:
    error = refusal(checks.whole, "credit", 10**5_000, 1, 9)
    assert error.detail == "credit must be from 1 to 9, not an integer of 16610 bits"


def test_what_may_be_none_may_be_none() -> None:
    assert checks.maybe_whole("priority", None, 0, 9) is None
    assert checks.maybe_whole("priority", 3, 0, 9) == 3
    assert checks.maybe_text("name", None, 9) is None
    assert checks.maybe_text("name", "a", 9) == "a"


@pytest.mark.parametrize("value", [True, False])
def test_a_flag_passes(value: bool) -> None:
    assert checks.flag("unique", value) is value


@pytest.mark.parametrize("value", [0, 1, "true", None, []])
def test_only_a_flag_is_a_flag(value: object) -> None:
    assert refusal(checks.flag, "unique", value).code == "bad_request"


@pytest.mark.parametrize("value", ["a", "é", "abcd", "éé", "\x00"])
def test_text_passes_by_the_bytes_of_its_utf8(value: str) -> None:
    assert checks.text("name", value, 4) == value


@pytest.mark.parametrize("value", ["", "abcde", "ééa", "\ud800", b"a", 1, None])
def test_text_too_long_too_short_or_not_text_is_refused(value: object) -> None:
    assert refusal(checks.text, "name", value, 4, "bad_subject").code == "bad_subject"


def test_empty_text_passes_where_it_may_be_empty() -> None:
    assert checks.text("name", "", 4, least=0) == ""


def test_octets_pass_within_their_bounds() -> None:
    assert checks.octets("id", b"ab", 1, 2) == b"ab"
    for value in (b"", b"abc", "ab", bytearray(b"ab"), memoryview(b"ab"), None):
        error = refusal(checks.octets, "id", value, 1, 2)
        assert error.code == "bad_request"


def test_one_of_names_what_is_allowed() -> None:
    assert checks.one_of("requeue", "front", ("back", "front")) == "front"
    error = refusal(checks.one_of, "requeue", "side", ("back", "front"))
    assert error.detail == "requeue must be one of back, front; not 'side'"


def test_attributes_are_text_to_text() -> None:
    assert checks.string_map("attributes", {"a": "", "": "b"}) == {"a": "", "": "b"}
    full = {str(number): "" for number in range(limits.ATTRIBUTES_MAX)}
    assert checks.string_map("attributes", full) is full
    refused: list[object] = [
        {1: "a"},
        {"a": 1},
        {"a": "\ud800"},
        {"a" * (limits.ATTRIBUTE_BYTES_MAX + 1): ""},
        {"a": "b" * (limits.ATTRIBUTE_BYTES_MAX + 1)},
        {**full, "one more": ""},
        [("a", "b")],
        None,
    ]
    for value in refused:
        error = refusal(checks.string_map, "attributes", value)
        assert error.code == "bad_request"


def test_a_list_becomes_a_tuple_of_bounded_length() -> None:
    assert checks.tuple_of("subjects", ["a", 1], 2) == ("a", 1)
    assert checks.tuple_of("subjects", (), 2, least=0) == ()
    for value in ([], ["a"] * 3, "ab", {"a": 1}, None):
        error = refusal(checks.tuple_of, "subjects", value, 2, "bad_subject")
        assert error.code == "bad_subject"


@pytest.mark.parametrize(
    "name", ["a", "orders/eu", "a b", "Ω", "👩‍👩‍👧", "全\u3000角", "é" * 127 + "a"]
)
def test_a_topic_may_have_any_name_that_people_write(name: str) -> None:
    assert checks.topic_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "a\nb", "\x00", "a\x7f", "\x85", "é" * 128, "\udfff", b"a", 1]
)
def test_a_topics_name_is_bounded_and_has_no_control_characters(name: object) -> None:
    assert refusal(checks.topic_name, name).code == "bad_request"


def test_a_refused_name_is_called_what_the_peer_called_it() -> None:
    error = refusal(checks.topic_name, "a\nb", "dead_letter")
    assert error.detail == "dead_letter must have no control characters"


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\n", "'a\\n'"),
        ("a" * 81, repr("a" * 80) + " and so on"),
        (2**64 - 1, str(2**64 - 1)),
        (-(10**5_000), "an integer of 16610 bits"),
        (1.5, "1.5"),
        (None, "None"),
        (True, "True"),
        (b"abc", "a value of type bytes"),
        (nested(100_000), "a value of type list"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_value_can_be_shown_and_is_shown_short(value: object, shown: str) -> None:
    assert checks.shown(value) == shown
