"""Hostile clients for some seconds: ``tests.fault.hostile`` has them for longer, with figures."""

import random
import socket
import time
from pathlib import Path

import pytest

from tests.fault.hostile import BOUNDS_MB, Figures, Phase, phases_of, run, table
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


def test_a_wait_is_compared_with_that_while_no_hostile_client_is_there() -> None:
    memory = dict.fromkeys(BOUNDS_MB, 30)
    waits = (("alone", 2.0), ("bombs", 3.0), ("together", 20.0), ("after", 2.0))
    figures = [Figures(name, 10, 1.0, p99_ms, p99_ms, memory, 0) for name, p99_ms in waits]
    lines = table(figures).splitlines()[1:]
    ratios = [line[line.index("10     1.00") :].split()[3] for line in lines]
    assert ratios == ["1.0", "1.5", "10.0", "1.0"]
