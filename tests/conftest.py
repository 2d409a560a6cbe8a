"""How long properties are tried, and with windows small enough that a few messages fill them.

The plain profile is derandomised: a change is judged by the same histories every time, so that a
red run is that change's doing. New histories are for the night, where a failure is news and
nobody waits: HYPOTHESIS_PROFILE=night. Either prints the blob that brings a failure back.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings

from asterism import limits
from tests.support.children import give_signals_back

# A loaded machine is not a failure.
PATIENT = (HealthCheck.too_slow, HealthCheck.data_too_large)
# One failure, shrunk, is what a person reads; explaining it costs more than finding it did.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)

settings.register_profile(
    "plain",
    derandomize=True,
    deadline=None,
    print_blob=True,
    max_examples=100,
    stateful_step_count=40,
    suppress_health_check=PATIENT,
    phases=PHASES,
    report_multiple_bugs=False,
)
settings.register_profile(
    "night",
    derandomize=False,
    deadline=None,
    print_blob=True,
    max_examples=3_000,
    stateful_step_count=80,
    suppress_health_check=PATIENT,
    phases=PHASES,
    report_multiple_bugs=False,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "plain"))

SMALL_LIMITS = {
    "WINDOW_MAX": 4,
    "WINDOW_LOW": 2,
    "SCAN_ROWS_MAX": 6,
    "LANES_MAX": 3,
    "EXPIRE_ROWS_MAX": 3,
    "WINDOW_RECORD_BYTES_MAX": 4,
    "HEADERS_CACHED_MAX": 4,
    "COUNT_ROWS_MAX": 3,
    "COUNT_ASKS_MAX": 3,
    "SUBJECTS_COUNTED_MAX": 2,
    "SUBJECTS_STORED_MAX": 1,
}


@pytest.fixture(scope="session", autouse=True)
def signals_for_children() -> None:
    """Tests interrupt what they start, also where they run in the background or under nohup."""
    give_signals_back()


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, walks and caches so small that a handful of messages spills out of them."""
    for name, value in SMALL_LIMITS.items():
        monkeypatch.setattr(limits, name, value)
