"""Processes that tests start: they take signals, and no wait for one of them is without an end."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import AnyStr

LIFE_S = 120.0

# A shell has a command in its background ignore the first, and nohup the second.
_OF_TERMINALS = (signal.SIGINT, signal.SIGHUP)


def give_signals_back() -> None:
    """Has the processes that are started from now on take the signals of a terminal.

    A signal that is ignored is ignored by every process that is started, too; one that is handled
    is not. So this process handles them by doing nothing: it goes on, as whoever started it wanted.
    """
    for number in _OF_TERMINALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _take_no_notice)


def _take_no_notice(_number: int, _frame: FrameType | None) -> None:
    """What ignores a signal, and is not inherited."""


@contextmanager
def bounded(
    child: "subprocess.Popen[AnyStr]", life_s: float = LIFE_S
) -> "Iterator[subprocess.Popen[AnyStr]]":
    """A child that is killed with a test that fails, and when it is too old.

    ``Popen`` by itself waits for its child for ever, also when the test has failed since the child
    does not end. Reading what a child says has no time limit either, but ends when the child does.
    """
    late = threading.Timer(life_s, child.kill)
    late.daemon = True
    late.start()
    try:
        with child:
            try:
                yield child
            except BaseException:
                child.kill()
                raise
    finally:
        late.cancel()
