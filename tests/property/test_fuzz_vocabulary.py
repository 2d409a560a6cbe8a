"""Whatever a peer sends, the vocabulary answers with the value or with a code from the table.

The values are what a decoder may hand on: text with lone surrogates, integers too long to print,
floats that are no number, bytes, and all of these nested. Any other exception is a remote kill
switch.
"""

import tomllib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from asterism import DropOld, PeerError, RejectNew, checks, subjects
from asterism.config import (
    KEYS,
    MAY_BE_NONE,
    TABLES,
    Config,
    ConfigError,
    from_mapping,
    parse,
)
from asterism.errors import ERRORS
from asterism.options import topic_overrides, topic_settings_as_user
from asterism.settings import TIMEOUT_MS_MAX, TTL_MS_MAX, BackoffMs, TopicSettings
from asterism.variables import variable_of

# A loaded machine is not a failure.
quiet = settings(deadline=None, max_examples=200)

texts = st.text() | st.text(st.characters(categories=["Cs", "Cc", "Ll"]), max_size=8)
# Made by a function: hypothesis prints what it samples from, and the largest cannot be printed.
huge = st.sampled_from([53, 63, 64, 400, 20_000]).map(lambda bits: 2**bits)
scalars = st.none() | st.booleans() | st.integers() | huge | st.floats() | texts | st.binary()
keys = texts | st.integers() | huge | st.binary() | st.booleans() | st.none()
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)

FIELD_NAMES = [held.name for held in fields(TopicSettings)]
USER_NAMES = list(topic_settings_as_user(TopicSettings()))
PARTS = ["size", "policy", "min", "max", "reject_new", "drop_old", "back", "none", "full", "dead"]

near_values = (
    anything
    | st.sampled_from(PARTS)
    | st.integers(-2, 10)
    | st.dictionaries(st.sampled_from(PARTS), anything | st.integers(-2, 10), max_size=3)
    | st.builds(RejectNew, anything)
    | st.builds(DropOld, anything)
    | st.builds(BackoffMs, anything, anything)
)
field_maps = st.dictionaries(st.sampled_from(FIELD_NAMES) | keys, near_values, max_size=4)
user_maps = st.dictionaries(st.sampled_from(USER_NAMES) | keys, near_values, max_size=4)


def only_refusals(act: Callable[..., object], *arguments: object) -> None:
    """Calls it; the one thing it may raise is a refusal that a peer can be told."""
    try:
        act(*arguments)
    except PeerError as error:
        assert error.code in ERRORS
        # It goes over a wire as UTF-8, and into a log as a line.
        str(error).encode()
        assert "\n" not in error.detail
        assert len(error.detail) < 10_000


def only_config_errors(act: Callable[..., Config], *arguments: object) -> None:
    try:
        config = act(*arguments)
    except ConfigError as error:
        str(error).encode()
    else:
        assert type(config) is Config


@quiet
@given(field_maps)
def test_settings_take_or_refuse_anything(values: dict[Any, Any]) -> None:
    only_refusals(TopicSettings().changed, values)
    known = {name: value for name, value in values.items() if name in FIELD_NAMES}
    only_refusals(lambda: TopicSettings(**known))


@quiet
@given(anything)
def test_settings_are_changed_by_a_map_or_not_at_all(values: Any) -> None:
    only_refusals(TopicSettings().changed, values)
    only_refusals(topic_overrides, values)


@quiet
@given(user_maps)
def test_overrides_that_are_taken_are_good_settings(values: dict[Any, Any]) -> None:
    try:
        overrides = topic_overrides(values)
    except PeerError as error:
        assert error.code == "bad_request"
        str(error).encode()
    else:
        # No second refusal may wait behind the first check.
        held = TopicSettings().changed(overrides)
        assert TopicSettings().changed(topic_overrides(topic_settings_as_user(held))) == held


@quiet
@given(st.integers(1, TIMEOUT_MS_MAX), st.integers(1, TTL_MS_MAX))
def test_every_millisecond_survives_being_shown_in_seconds(timeout_ms: int, ttl_ms: int) -> None:
    held = TopicSettings(
        sent_timeout_ms=timeout_ms, default_ttl_ms=ttl_ms, retry_backoff=BackoffMs(0, timeout_ms)
    )
    assert TopicSettings().changed(topic_overrides(topic_settings_as_user(held))) == held


@quiet
@given(anything)
def test_every_check_takes_or_refuses_anything(value: object) -> None:
    acts: list[Callable[[], object]] = [
        lambda: checks.whole("it", value, 0, 10),
        lambda: checks.maybe_whole("it", value, 0, 10),
        lambda: checks.flag("it", value),
        lambda: checks.text("it", value, 10),
        lambda: checks.maybe_text("it", value, 10),
        lambda: checks.octets("it", value, 1, 10),
        lambda: checks.one_of("it", value, ("a", "b")),
        lambda: checks.string_map("it", value),
        lambda: checks.tuple_of("it", value, 2),
        lambda: checks.topic_name(value),
    ]
    for act in acts:
        only_refusals(act)
    assert len(checks.shown(value)) < 1_000
    checks.shown(value).encode()


def unprintable() -> list[Any]:
    """What hypothesis cannot show in a report, and so cannot be given as an example."""
    deep_list: object = 0
    deep_map: object = 0
    for _ in range(100_000):
        deep_list = [deep_list]
        deep_map = {"topic": deep_map}
    return [deep_list, deep_map, 10**5_000, -(10**5_000), float("nan"), float("inf"), "\ud800"]


def test_what_cannot_even_be_printed_is_refused_like_the_rest() -> None:
    for value in unprintable():
        for name in FIELD_NAMES:
            only_refusals(TopicSettings().changed, {name: value})
        for name in USER_NAMES:
            only_refusals(topic_overrides, {name: value})
            only_config_errors(from_mapping, {"topic": {name: value}})
        for key in PARTS:
            only_refusals(topic_overrides, {"overflow": {"size": 1, key: value}})
            only_refusals(topic_overrides, {"retry_backoff": {"min": 1, key: value}})
        for name in ("data_dir", "stores", "workers", "sync", "auto_create", "topic"):
            only_config_errors(from_mapping, {name: value})
        only_refusals(subjects.split_subject, value)
        only_refusals(checks.string_map, "it", {"a": value})
        only_refusals(checks.one_of, "it", value, ("a", "b"))
        only_refusals(checks.whole, "it", value, 0, 10)


@quiet
@given(st.dictionaries(texts, texts, max_size=4))
def test_attributes_take_or_refuse_any_text(value: dict[str, str]) -> None:
    only_refusals(checks.string_map, "attributes", value)


@quiet
@given(anything | st.text(st.sampled_from("/*a\ud800 "), max_size=80))
@example("/".join("a" * 33))
def test_a_subject_or_interest_is_split_or_refused(value: object) -> None:
    for split in (subjects.split_subject, subjects.split_interest):
        only_refusals(split, value)


@quiet
@given(
    st.dictionaries(
        st.sampled_from(["data_dir", "stores", "workers", "sync", "auto_create", "topic"]) | keys,
        near_values | user_maps,
        max_size=3,
    )
)
@example({"sync": "9ms\n"})
def test_a_configuration_is_loaded_from_a_map_or_refused(values: dict[Any, Any]) -> None:
    only_config_errors(from_mapping, values)


@quiet
@given(anything)
def test_a_configuration_is_a_map_or_refused(values: Any) -> None:
    only_config_errors(from_mapping, values)


variables = st.sampled_from([variable_of(key) for key in (*KEYS, *MAY_BE_NONE, *TABLES)])
# What an environment can hold: no zero byte, and bytes that are not UTF-8 as lone surrogates.
variable_texts = (
    texts
    | st.from_regex(r"-?[0-9]{1,30}(\.[0-9]{1,30})?")
    | st.sampled_from([*PARTS, "true", "false", "", "9" * 5_000, "always", "5ms"])
)


@quiet
@given(st.dictionaries(variables | texts.map("ASTERISM_".__add__), variable_texts, max_size=4))
def test_a_configuration_is_loaded_from_the_environment_or_refused(environ: dict[str, str]) -> None:
    only_config_errors(from_mapping, {}, environ)


lines = st.lists(
    st.sampled_from(["[topic]", "[topic.overflow]", "topic.overflow.size = 1", "#", "[[topic]]"])
    | st.tuples(
        st.sampled_from([key.split(".")[-1] for key in KEYS]) | st.text(max_size=5),
        st.sampled_from(
            ["1", "0.5", "true", '"back"', "{}", "[]", "1979-05-27", "inf", "nan", "'"]
        ),
    ).map(" = ".join),
    max_size=6,
)


@quiet
@given(st.binary() | lines.map(lambda held: "\n".join(held).encode(errors="surrogatepass")))
@example(b"stores = " + b"[" * 100_000)
@example(b"a" + b".a" * 500 + b" = 1")
@example(b"stores = " + b"1" * 5_000)
@example(b"stores = 0x" + b"f" * 5_000)
@example(b"stores = " + b"{a=" * 10_000)
def test_a_configuration_is_loaded_from_bytes_or_refused(data: bytes) -> None:
    only_config_errors(parse, data)


@quiet
@given(lines)
def test_a_file_and_its_map_say_the_same(held: list[str]) -> None:
    text = "\n".join(held)
    try:
        expected = from_mapping(tomllib.loads(text))
    except (ConfigError, ValueError):
        return
    assert parse(text.encode()) == expected
