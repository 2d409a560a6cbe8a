"""The filter language of subscriptions."""

import time

import pytest

from asterism.gateways.pubsub.filters import FILTER_BYTES_MAX, read_filter
from tests.unit.pubsub.refusals import refused

COM = {"domain": "com"}
NET = {"domain": "net", "iana.org/tag": "en"}
NONE: dict[str, str] = {}


def passes(text: str, *messages: dict[str, str]) -> list[bool]:
    found = read_filter(text)
    assert found is not None
    return [found(attributes) for attributes in messages]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("attributes:domain", [True, True, False]),
        ('attributes:"domain"', [True, True, False]),
        ('attributes:"iana.org/tag"', [False, True, False]),
        ('attributes.domain = "com"', [True, False, False]),
        ('attributes.domain="com"', [True, False, False]),
        ('attributes."iana.org/tag" = "en"', [False, True, False]),
        ('attributes.domain != "com"', [False, True, True]),
        ('hasPrefix(attributes.domain, "c")', [True, False, False]),
        ('hasPrefix(attributes.domain, "")', [True, True, False]),
        ('hasPrefix ( attributes . "domain" , "ne" )', [False, True, False]),
        ("NOT attributes:domain", [False, False, True]),
        ("NOT NOT attributes:domain", [True, True, False]),
        ("-attributes:domain", [False, False, True]),
        ("- -NOT --attributes:domain", [False, False, True]),
        ('-hasPrefix(attributes.domain, "c") AND -(attributes:x)', [False, True, True]),
        ('attributes:domain AND -attributes:"iana.org/tag"', [True, False, False]),
        ('attributes:domain AND NOT attributes.domain = "com"', [False, True, False]),
        ('attributes.domain = "com" OR attributes.domain = "net"', [True, True, False]),
        ('attributes.domain = "com" OR NOT attributes:domain', [True, False, True]),
        ('(attributes.domain = "com") OR (NOT (attributes:domain))', [True, False, True]),
        (
            'attributes:domain AND (attributes:"iana.org/tag" OR attributes.domain = "com")',
            [True, True, False],
        ),
        ("attributes:domain\n AND\tattributes:domain AND attributes:domain", [True, True, False]),
    ],
)
def test_each_operator_decides(text: str, wanted: list[bool]) -> None:
    assert passes(text, COM, NET, NONE) == wanted


def test_no_filter_takes_every_message() -> None:
    assert read_filter("") is None
    assert read_filter(" \n") is None


@pytest.mark.parametrize("key", ["AND", "NOT", "attributes", "hasPrefix", "a-b_C9", "9", "-", "é"])
def test_any_word_is_a_key(key: str) -> None:
    assert passes(f"attributes:{key}", {key: ""}, {}) == [True, False]
    assert passes(f'attributes.{key} = "x" AND attributes:{key}', {key: "x"}) == [True]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (r'"\"\\"', '"\\'),
        (r'"\n\t\r\a\b\f\v\?\'\`"', "\n\t\r\a\b\f\v?'`"),
        (r'"\x41\101\u0041\U00000041"', "AAAA"),
        (r'"\U0001F600\u00e9"', "😀é"),
        ('"a\nb é"', "a\nb é"),
        ('"AND"', "AND"),
    ],
)
def test_texts_have_escapes(text: str, meant: str) -> None:
    assert passes(f"attributes.k = {text}", {"k": meant}, {"k": meant + "x"}) == [True, False]
    assert passes(f"attributes:{text}", {meant: ""}) == [True]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("bogus", "expected attributes, hasPrefix, NOT or an opening parenthesis at character 1"),
        ("attributes", "expected a colon or a dot at character 11, where the end stands"),
        ("attributes.", "expected the key of an attribute"),
        ("attributes:", "expected the key of an attribute"),
        ("attributes:=", "expected the key of an attribute"),
        ("attributes.k", "expected = or !="),
        ("attributes.k : x", "expected = or !="),
        ("attributes.k = x", "expected a text in double quotes at character 16, where 'x' stands"),
        ("attributes.k = 'x'", '"\'" at character 16 means nothing here'),
        ('attributes.k = "x', "the text at character 16 has no closing quote"),
        ('attributes.k = "x\\"', "the text at character 16 has no closing quote"),
        ('attributes.k > "x"', "'>' at character 14 means nothing here"),
        (r'attributes.k = "\q"', "an escape sequence that there is not"),
        (r'attributes.k = "\x4"', "an escape sequence that there is not"),
        (r'attributes.k = "\ud800"', "an escape sequence that there is not"),
        (r'attributes.k = "\U00110000"', "an escape sequence that there is not"),
        ("attributes:a attributes:b", "expected AND, OR or the end at character 14"),
        ("attributes:a and attributes:b", "expected AND, OR or the end"),
        ("attributes:a AND", "expected attributes, hasPrefix, NOT"),
        ("NOT", "expected attributes, hasPrefix, NOT"),
        ("-", "expected attributes, hasPrefix, NOT"),
        ("attributes:a -attributes:b", "expected AND, OR or the end"),
        ("attributes-:a", "where 'attributes-' stands"),
        ("(attributes:a", "a closing parenthesis at character 14, where the end stands"),
        ("attributes:a)", "expected AND, OR or the end"),
        ("()", "expected attributes"),
        (
            "attributes:a AND attributes:b OR attributes:c",
            "AND and OR cannot be mixed without parentheses at character 31",
        ),
        ("hasPrefix(attributes.k)", "expected a comma"),
        ('hasPrefix(attributes:k, "x")', "expected a dot"),
        ('hasPrefix(attributes.k, "x"', "expected a closing parenthesis"),
        ('hasSuffix(attributes.k, "x")', "where 'hasSuffix' stands"),
        ('data = "x"', "where 'data' stands"),
    ],
)
def test_a_filter_that_is_none_is_refused_where_it_goes_wrong(text: str, part: str) -> None:
    with refused(part):
        read_filter(text)


def test_a_filter_has_256_bytes_at_most() -> None:
    text = 'attributes.k = "{}"'
    room = FILTER_BYTES_MAX - len(text) + 2
    assert passes(text.format("x" * room), {"k": "x" * room}) == [True]
    with refused("filter has 257 bytes, over 256"):
        read_filter(text.format("x" * (room + 1)))
    with refused("over 256"):
        read_filter(text.format("é" * room))


@pytest.mark.parametrize(
    "text", ["(" * 256, "NOT " * 64, "-" * 256, '"\\' * 128, "attributes." * 23]
)
def test_a_filter_that_goes_on_and_on_is_refused_at_once(text: str) -> None:
    begin_s = time.perf_counter()
    with refused():
        read_filter(text)
    assert time.perf_counter() - begin_s < 1


def test_parentheses_nest_as_deep_as_there_is_room() -> None:
    text = "(" * 120 + "attributes:k" + ")" * 120
    assert passes(text, {"k": ""}, {}) == [True, False]
