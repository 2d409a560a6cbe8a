"""Runs a process of the broker so that it does not outlive whoever started it.

    python -m asterism.attached PARENT MODULE [ARGUMENT...]

is ``python -m MODULE [ARGUMENT...]``, but when process PARENT is gone, however it went, this one
is killed: nobody is left to restart it, to stop it, or to let go of its stores.
"""

import contextlib
import os
import resource
import runpy
import signal
import sys
import threading
import time
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LOOK_S: Final = 0.5
_FILES_WANTED: Final = 65_536  # stores keep many files open


def attach(parent: int) -> None:
    """Has this process killed when its parent is gone."""
    if sys.platform == "linux":
        import ctypes

        nothing = ctypes.c_ulong(0)
        number = ctypes.c_ulong(signal.SIGKILL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, nothing, nothing, nothing)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    # It may have gone before it could be asked for.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, _FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    parent, module = int(sys.argv[1]), sys.argv[2]
    attach(parent)
    _allow_many_files()
    sys.argv[:] = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
