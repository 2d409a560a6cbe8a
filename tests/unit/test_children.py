"""What tests start takes signals, and is not waited for without an end."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.children import bounded
from tests.tidy.tree import ROOT

WAIT_S = 60
IGNORING = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
SLEEPING = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_child_takes_the_signals_of_a_terminal(number: signal.Signals) -> None:
    with bounded(
        subprocess.Popen(SLEEPING, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"here\n"
        child.send_signal(number)
        assert child.wait(WAIT_S) == -number


def test_also_where_the_tests_run_in_the_background_or_under_nohup() -> None:
    name = f"{__file__}::{test_a_child_takes_the_signals_of_a_terminal.__name__}"
    done = subprocess.run(
        [sys.executable, "-c", IGNORING, "-m", "pytest", "-q", "-p", "no:cacheprovider", name],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=4 * WAIT_S,
    )
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout


def test_a_child_ends_with_a_test_that_fails() -> None:
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError), bounded(subprocess.Popen(SLEEPING)) as child:
        _ = 1 / 0
    assert child.returncode == -signal.SIGKILL
    assert time.monotonic() - began < WAIT_S


def test_a_child_that_says_nothing_is_not_waited_for_without_an_end() -> None:
    silent = subprocess.Popen(
        [*SLEEPING[:2], "import time; time.sleep(600)"], stdout=subprocess.PIPE
    )
    with bounded(silent, life_s=0.2) as child:
        assert child.stdout is not None
        assert child.stdout.read() == b""
    assert child.returncode == -signal.SIGKILL
