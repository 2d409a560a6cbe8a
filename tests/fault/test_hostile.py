"""Hostile clients for some seconds: ``tests.fault.hostile`` has them for longer, with figures."""

import random
import socket
import time
from pathlib import Path

import pytest

from tests.fault.hostile import (
    BOUNDS_MB,
    Figures,
    Measured,
    Phase,
    calm_near,
    figures_of,
    percentile_over,
    phases_of,
    run,
    table,
)
from tests.fault.hostile_kinds import KINDS, Target, Until

pytestmark = [pytest.mark.fault, pytest.mark.slow]

# Each has ended a process, or filled the memory, of a broker that did not know of it.
WORST = ("identities", "endless-multipart", "bombs", "idle", "http-bombs")
IN_TURN_S = 2.0
TOGETHER_S = 5.0


def test_hostile_clients_end_no_process_fill_no_memory_and_lose_no_message(tmp_path: Path) -> None:
    phases = [
        *(Phase(kind, (kind,), IN_TURN_S) for kind in WORST),
        Phase("together", tuple(KINDS), TOGETHER_S),
        Phase("after", (), IN_TURN_S),
    ]
    result = run(phases, 1, tmp_path)
    assert result.wrong == []
    assert result.accepted > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_client_ends_in_time_though_nobody_is_there(kind: str, tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        began = time.monotonic()
        KINDS[kind](Target(port, port, str(tmp_path)), random.Random(1), Until(0.1))
        assert time.monotonic() - began < 10


def test_the_time_is_divided_among_all_phases() -> None:
    phases = phases_of(10, tuple(KINDS))
    assert sum(phase.seconds for phase in phases) == pytest.approx(600)
    assert {kind for phase in phases for kind in phase.kinds} == {*KINDS}


def test_all_kinds_in_turn_are_one_figure_in_which_each_counts_alike() -> None:
    slow, quick = [9.0] * 10, [1.0] * 990
    assert percentile_over([slow, quick], 0.5) == 1.0
    assert percentile_over([slow, quick], 0.6) == 9.0
    phases = phases_of(1, ("bombs", "idle"))
    measured = [Measured(one, at, at + 1, {"worker": at}, []) for at, one in enumerate(phases)]
    names = [one.name for one in phases]
    waits = [(at + 0.5, float(at)) for at in range(len(phases))]
    figures, wrong = figures_of(measured, waits, {"worker": 100})
    last = figures[-1]
    assert wrong == [] and [one.phase for one in figures[:-1]] == names
    assert last.phase == "each in turn" and last.published == 2
    assert last.p99_ms == max(names.index("bombs"), names.index("idle"))
    assert last.calm_p99_ms == len(phases) - 1
    assert last.memory_mb == {"worker": last.p99_ms}


def test_a_wait_is_compared_with_those_before_and_after_while_no_hostile_client_is_there() -> None:
    phases = phases_of(1, ("bombs",))
    names = [phase.name for phase in phases]
    assert names == ["alone", "bombs", "alone", "together", "alone"]
    waits = [[1.0], [8.0], [2.0], [9.0], [3.0]]
    near = [calm_near(index, phases, waits) for index in range(len(phases))]
    assert near == [[1.0], [1.0, 2.0], [2.0], [2.0, 3.0], [3.0]]
    assert calm_near(0, [Phase("bombs", ("bombs",), 1.0)], [[5.0]]) == [5.0]
    memory = dict.fromkeys(BOUNDS_MB, 30)
    figures = [
        Figures("alone", 10, 1.0, 2.0, 2.0, 5.0, memory, 0),
        Figures("bombs", 10, 1.0, 3.0, 2.0, 5.0, memory, 0),
    ]
    lines = table(figures).splitlines()[1:]
    ratios = [line[line.index("10     1.00") :].split()[4] for line in lines]
    assert ratios == ["1.0", "1.5"]
