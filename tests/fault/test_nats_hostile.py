"""Hostile clients of the NATS door for some seconds; ``nats_hostile`` has them for longer."""

import random
import socket
import time
from pathlib import Path

import pytest

from tests.fault.hostile import Phase
from tests.fault.hostile_kinds import Target, Until
from tests.fault.nats_hostile import run
from tests.fault.nats_hostile_kinds import KINDS

pytestmark = [pytest.mark.fault, pytest.mark.slow]

# Each has filled the memory of a door that did not know of it, or held up everybody for seconds.
WORST = ("halves", "connects", "overlapping", "patterns", "many-subs", "groups", "headers")
IN_TURN_S = 1.5
TOGETHER_S = 5.0


def test_hostile_clients_end_no_door_fill_no_memory_and_leave_no_request_unanswered(
    tmp_path: Path,
) -> None:
    phases = [
        *(Phase(kind, (kind,), IN_TURN_S) for kind in WORST),
        Phase("together", tuple(KINDS), TOGETHER_S),
        Phase("after", (), IN_TURN_S),
    ]
    result = run(phases, 1, tmp_path)
    assert result.wrong == []
    assert result.figures[-1].published > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_client_ends_in_time_though_nobody_is_there(kind: str) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        began = time.monotonic()
        KINDS[kind](Target(port, port), random.Random(1), Until(0.1))
        assert time.monotonic() - began < 10
