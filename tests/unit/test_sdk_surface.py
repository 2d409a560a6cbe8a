"""What users of the SDK see and write, as far as that needs no broker."""

from typing import Any

import pytest

import asterism
from asterism.options import topic_overrides, topic_settings_as_user
from asterism.settings import BackoffMs, TopicSettings

# --- units ----------------------------------------------------------------------------------------


def test_a_backoff_is_in_seconds() -> None:
    overrides: dict[str, Any] = topic_overrides({"retry_backoff": asterism.Backoff(0.5, 8)})
    assert overrides == {"retry_backoff": BackoffMs(500, 8_000)}
    assert asterism.Backoff(min=0.5, max=8) == asterism.Backoff(0.5, 8)
    shown = topic_settings_as_user(TopicSettings().changed(overrides))
    assert shown["retry_backoff"] == {"min": 0.5, "max": 8}


@pytest.mark.parametrize("pair", [(8, 0.5), (-1, 8), (0, 1e9), (float("nan"), 8)])
def test_a_backoff_that_cannot_be_is_a_value_error(pair: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"retry_backoff\.m"):
        asterism.Backoff(*pair)


def test_a_backoff_of_anything_but_numbers_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="number of seconds"):
        asterism.Backoff("0.5", 8)  # type: ignore[arg-type]
