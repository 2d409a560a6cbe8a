"""Three hundred seeds of the simulator; a failing one says how to replay it."""

import pytest

from tests.sim.__main__ import command_for, replay
from tests.sim.world import STEPS

SEEDS = 300
CHUNK = 10  # seeds in one test, so that tests can be spread over processes


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept_whatever_fails(first: int) -> None:
    for seed in range(first, first + CHUNK):
        wrong = replay(seed)
        assert wrong is None, (
            f"seed {seed} failed: {wrong}; replay with: {command_for(seed, STEPS)}"
        )


def test_a_seed_is_replayed_to_the_letter() -> None:
    first: list[str] = []
    again: list[str] = []
    assert replay(7, tell=first.append) is None
    assert replay(7, tell=again.append) is None
    assert first and first == again
