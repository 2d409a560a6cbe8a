"""The pure parts of the Pub/Sub door, against definitions that share no code with them."""

import re
from contextlib import suppress
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st

from asterism import limits
from asterism.gateways.pubsub.errors import Refusal
from asterism.gateways.pubsub.filters import FILTER_BYTES_MAX, read_filter
from asterism.gateways.pubsub.names import Kind, Name, broker_name, read_name, resource_name
from asterism.gateways.pubsub.pages import page_of

# --- filters --------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b", "a-b_9", "x.y", 'q"\\', "é ü", ""])
VALUES = st.sampled_from(["", "a", "ab", "b", '"', "\\n", "\n", "é😀"])
ATTRIBUTES = st.dictionaries(KEYS, VALUES, max_size=4)
LEAVES = st.one_of(
    st.tuples(st.just("has"), KEYS),
    st.tuples(st.sampled_from(["=", "!=", "hasPrefix"]), KEYS, VALUES),
)
TREES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.just("NOT"), inner),
        st.tuples(st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=6,
)
STYLES = st.tuples(st.booleans(), st.booleans(), st.sampled_from(["", " ", "\n\t"]))
Style = tuple[bool, bool, str]


def quoted(text: str, escapes_all: bool) -> str:
    if escapes_all:
        return '"' + "".join(f"\\U{ord(char):08x}" for char in text) + '"'
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def key_text(key: str, style: Style) -> str:
    is_word = re.fullmatch(r"[A-Za-z0-9_-]+", key) is not None
    return key if is_word and not style[1] else quoted(key, style[0])


def text_of(tree: Any, style: Style) -> str:
    """A tree as a filter: every part of it in parentheses that needs them."""
    blank = style[2]
    match tree:
        case ("has", key):
            return f"attributes{blank}:{blank}{key_text(key, style)}"
        case ("hasPrefix", key, value):
            inner = f"attributes.{key_text(key, style)}{blank},{blank}{quoted(value, style[0])}"
            return f"hasPrefix{blank}({inner})"
        case (("=" | "!=") as sign, key, value):
            value = quoted(value, style[0])
            return f"attributes.{key_text(key, style)}{blank}{sign}{blank}{value}"
        case ("NOT", inner):
            return f"{'-' if style[1] else 'NOT '}{part_of(inner, style)}"
        case (operator, parts):
            return f" {operator} ".join(part_of(part, style) for part in parts)
    raise AssertionError(tree)


def part_of(tree: Any, style: Style) -> str:
    text = text_of(tree, style)
    return f"({text})" if tree[0] in ("AND", "OR") else text


def passes(tree: Any, attributes: dict[str, str]) -> bool:
    """What the tree says of a message, word by word."""
    match tree:
        case ("has", key):
            return key in attributes
        case ("=", key, value):
            return (key, value) in attributes.items()
        case ("!=", key, value):
            return (key, value) not in attributes.items()
        case ("hasPrefix", key, prefix):
            return any(k == key and v[: len(prefix)] == prefix for k, v in attributes.items())
        case ("NOT", inner):
            return not passes(inner, attributes)
        case ("AND", parts):
            return sum(passes(part, attributes) for part in parts) == len(parts)
        case ("OR", parts):
            return sum(passes(part, attributes) for part in parts) > 0
    raise AssertionError(tree)


@given(TREES, STYLES, st.lists(ATTRIBUTES, min_size=1, max_size=5))
def test_a_filter_takes_what_its_tree_says(
    tree: Any, style: Style, messages: list[dict[str, str]]
) -> None:
    text = text_of(tree, style)
    assume(len(text.encode()) <= FILTER_BYTES_MAX)
    found = read_filter(text)
    assert found is not None
    assert [found(each) for each in messages] == [passes(tree, each) for each in messages]


WORDS = st.sampled_from(
    ["attributes", "hasPrefix", "AND", "OR", "NOT", "-", ".", ":", "=", "!=", "(", ")", ",", '"',
     '"x"', "\\", " ", "k", "é", "\x00", "'", "\\U0011ffff"]
)  # fmt: skip


@given(st.lists(WORDS, max_size=40).map("".join))
@example('attributes.k="' + "\\" * 100)
def test_any_text_is_a_filter_or_is_refused(text: str) -> None:
    try:
        found = read_filter(text)
    except Refusal as refused:
        assert refused.detail.startswith("filter")
    else:
        assert found is None or isinstance(found({"k": "x"}), bool)


# --- names ----------------------------------------------------------------------------------------

ID_CHARACTERS = "abzAZ09-_.~+%"
PROJECTS = st.text("abZ09-._:", min_size=1, max_size=60)
IDS = st.builds(
    str.__add__, st.sampled_from("aZ"), st.text(ID_CHARACTERS, min_size=2, max_size=254)
)
NAMES = st.builds(Name, PROJECTS, st.sampled_from(Kind), IDS.filter(lambda id: id[:4] != "goog"))


@given(NAMES)
def test_a_name_comes_back_from_its_text(name: Name) -> None:
    assert read_name(str(name), name.kind) == name


@given(NAMES, NAMES)
def test_no_two_resources_of_a_kind_have_one_name_at_the_broker(one: Name, other: Name) -> None:
    names = [broker_name(name) for name in (one, other)]
    is_same = (one.project, one.id) == (other.project, other.id)
    assert (names[0] == names[1]) == is_same
    for name, stored in zip((one, other), names, strict=True):
        assert 0 < len(stored.encode()) <= limits.TOPIC_BYTES_MAX
        assert resource_name(stored, name.kind) in (name, None)
        is_short = len(name.project) + len(name.id) + 1 <= limits.TOPIC_BYTES_MAX
        assert is_short == (resource_name(stored, name.kind) is not None)


@given(st.text(max_size=40).map(lambda text: f"projects/{text}"), st.sampled_from(Kind))
def test_any_text_is_a_name_or_is_refused(text: str, kind: Kind) -> None:
    with suppress(Refusal):
        assert str(read_name(text, kind)) == text


@given(st.text(max_size=300))
def test_a_topic_that_has_a_name_here_is_found_by_it(stored: str) -> None:
    name = resource_name(stored, Kind.TOPIC)
    assert name is None or broker_name(name) == stored


# --- pages ----------------------------------------------------------------------------------------

WHOLE_LISTINGS = st.sets(st.text(min_size=1, max_size=6), max_size=40)


@given(WHOLE_LISTINGS, st.integers(1, 12))
def test_pages_make_up_the_whole_listing(names: set[str], size: int) -> None:
    found: list[str] = []
    token = ""
    while True:
        page = page_of(names, size, token)
        assert len(page.names) <= size
        found += page.names
        token = page.next_page_token
        if not token:
            break
        assert len(page.names) == size
    assert found == sorted(names)


@given(WHOLE_LISTINGS, WHOLE_LISTINGS, st.integers(1, 5))
def test_what_is_there_all_the_time_is_listed_once(
    first: set[str], second: set[str], size: int
) -> None:
    page = page_of(first, size, "")
    if page.next_page_token:
        rest = page_of(second, 1_000, page.next_page_token).names
        listed = page.names + rest
        assert all(listed.count(name) == 1 for name in first & second)
