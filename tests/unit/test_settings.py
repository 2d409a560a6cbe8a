"""A topic's settings: the defaults of the specification, and what each setting may be."""

from dataclasses import fields
from typing import Any

import pytest

from asterism import DropOld, PeerError, RejectNew
from asterism.limits import RECEIVERS_WANTED_MAX, SEQUENCE_MAX
from asterism.settings import (
    DAY_MS,
    RECEIPT_TTL_MS_MAX,
    TIMEOUT_MS_MAX,
    TTL_MS_MAX,
    BackoffMs,
    TopicSettings,
)


def test_the_defaults_are_those_of_the_specification() -> None:
    settings = TopicSettings()
    assert {held.name: getattr(settings, held.name) for held in fields(settings)} == {
        "expect": None,
        "max_receivers": None,
        "blocking": False,
        "overflow": None,
        "concurrency": None,
        "unique": False,
        "draft_timeout_ms": 60_000,
        "sent_timeout_ms": 60_000,
        "received_timeout_ms": 300_000,
        "max_attempts": 1,
        "max_deliveries": None,
        "retry_backoff": None,
        "dead_letter": None,
        "requeue": "back",
        "default_ttl_ms": 7 * 24 * 3_600_000,
        "max_payload": 1_048_576,
        "history": "none",
        "history_ttl_ms": DAY_MS,
        "receipt_ttl_ms": 3_600_000,
        "dedicated": False,
    }


GOOD: dict[str, list[object]] = {
    "expect": [None, "sent", "received", "processed"],
    "max_receivers": [None, 1, RECEIVERS_WANTED_MAX],
    "blocking": [True, False],
    "overflow": [None, RejectNew(1), DropOld(1), DropOld(SEQUENCE_MAX)],
    "concurrency": [None, 1, SEQUENCE_MAX],
    "unique": [True, False],
    "draft_timeout_ms": [0, TIMEOUT_MS_MAX],
    "sent_timeout_ms": [1, TIMEOUT_MS_MAX],
    "received_timeout_ms": [1, TIMEOUT_MS_MAX],
    "max_attempts": [1, SEQUENCE_MAX],
    "max_deliveries": [None, 1, SEQUENCE_MAX],
    "retry_backoff": [None, BackoffMs(0, 0), BackoffMs(1, TIMEOUT_MS_MAX)],
    "dead_letter": [None, "dead", "a/b"],
    "requeue": ["back", "front"],
    "default_ttl_ms": [1, TTL_MS_MAX],
    "max_payload": [0, 512 * 1_048_576],
    "history": ["none", "headers", "full"],
    "history_ttl_ms": [0, TIMEOUT_MS_MAX],
    "receipt_ttl_ms": [0, RECEIPT_TTL_MS_MAX],
    "dedicated": [True, False],
}
BAD: dict[str, list[object]] = {
    "expect": ["waiting", "failed", "", 2],
    "max_receivers": [0, RECEIVERS_WANTED_MAX + 1, "all", True],
    "blocking": [None, 0, "true"],
    "overflow": [5, {"size": 5}, RejectNew(0), DropOld(SEQUENCE_MAX + 1), RejectNew],
    "concurrency": [0, -1, 1.0, SEQUENCE_MAX + 1, "1"],
    "unique": [None, 1],
    "draft_timeout_ms": [None, -1, 1.5, TIMEOUT_MS_MAX + 1],
    "sent_timeout_ms": [None, 0, -1, True, TIMEOUT_MS_MAX + 1],
    "received_timeout_ms": [None, 0, -1, "60", TIMEOUT_MS_MAX + 1],
    "max_attempts": [None, 0, SEQUENCE_MAX + 1],
    "max_deliveries": [0, SEQUENCE_MAX + 1],
    "retry_backoff": [5, BackoffMs(-1, 5), BackoffMs(5, 4), BackoffMs(0, TIMEOUT_MS_MAX + 1)],
    "dead_letter": ["", "a\nb", 5, "a" * 256],
    "requeue": [None, "side", "BACK", 1],
    "default_ttl_ms": [None, 0, TTL_MS_MAX + 1],
    "max_payload": [None, -1, 512 * 1_048_576 + 1],
    "history": [None, "all", False],
    "history_ttl_ms": [None, -1, TIMEOUT_MS_MAX + 1],
    "receipt_ttl_ms": [None, -1, RECEIPT_TTL_MS_MAX + 1],
    "dedicated": [None, "no"],
}


def test_the_tables_below_speak_of_every_setting() -> None:
    names = [held.name for held in fields(TopicSettings)]
    assert list(GOOD) == names
    assert list(BAD) == names


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, held in GOOD.items() for v in held])
def test_a_good_setting_is_taken_as_it_is(name: str, value: Any) -> None:
    settings = TopicSettings().changed({name: value})
    assert getattr(settings, name) == value
    assert settings == TopicSettings(**{name: value})


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, held in BAD.items() for v in held])
def test_a_bad_setting_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(PeerError) as caught:
        TopicSettings().changed({name: value})
    assert caught.value.code == "bad_request"
    assert caught.value.detail.startswith(name)
    with pytest.raises(PeerError):
        TopicSettings(**{name: value})


def test_a_change_keeps_what_it_does_not_name() -> None:
    before = TopicSettings(unique=True, concurrency=5)
    after = before.changed({"concurrency": None})
    assert (after.unique, after.concurrency) == (True, None)
    assert before.concurrency == 5


@pytest.mark.parametrize("overrides", [{"colour": "red"}, {1: 2}, {"__class__": 1}, {10**5_000: 1}])
def test_an_unknown_setting_is_refused(overrides: dict[str, object]) -> None:
    with pytest.raises(PeerError, match="there is no topic setting"):
        TopicSettings().changed(overrides)


@pytest.mark.parametrize("overrides", [None, 5, "blocking", ["blocking"], [["blocking"]]])
def test_settings_are_a_map(overrides: Any) -> None:
    with pytest.raises(PeerError, match="must be a map"):
        TopicSettings().changed(overrides)


def test_a_backoff_doubles_from_its_least_to_its_most() -> None:
    backoff = BackoffMs(100, 1_000)
    assert [backoff.pause_ms(failures) for failures in range(1, 7)] == [
        100,
        200,
        400,
        800,
        1_000,
        1_000,
    ]


def test_a_backoff_of_nothing_stays_nothing() -> None:
    assert BackoffMs(0, 0).pause_ms(1) == 0
    assert BackoffMs(0, 1_000).pause_ms(1_000_000) == 0


def test_a_backoff_stands_at_its_most_however_often_a_message_failed() -> None:
    assert BackoffMs(1, TIMEOUT_MS_MAX).pause_ms(10**9) == TIMEOUT_MS_MAX
