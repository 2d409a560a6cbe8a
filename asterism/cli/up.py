"""``asterism up``: a whole broker in the foreground."""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from asterism import __version__
from asterism.cli import output
from asterism.config import CONFIG_VARIABLE, load, variable_of
from asterism.files_host import keep_private
from asterism.running import DOORS, Processes, StartError, is_installed


def run(options: argparse.Namespace) -> int:
    keep_private()
    environ = dict(os.environ)
    for key, value in (
        (CONFIG_VARIABLE, options.config),
        (variable_of("data_dir"), options.data),
        (variable_of("listen"), options.listen),
        (variable_of("workers"), options.workers),
        ("MQ_HOST", options.http and options.http.host),
        ("MQ_PORT", options.http and options.http.port),
    ):
        if value is not None:
            environ[key] = str(value)
    config = load(None, environ)
    log_folder = None if options.logs else Path(config.data_dir).absolute() / "log"
    doors = _doors(options)
    try:
        _run(Processes(environ, doors, log_folder, output.warn, may_leave_out=True), options.json)
    except StartError as error:
        raise output.CommandError(str(error)) from None
    return output.DONE


def _doors(options: argparse.Namespace) -> tuple[str, ...]:
    """Every door that is installed, but for one that is not wanted; and one that is asked for,
    which is refused if it is not installed."""
    return tuple(
        door
        for door in DOORS
        if (door == "http" and options.http is not None)
        or (is_installed(door) and not (door == "http" and options.no_http))
    )


def _run(processes: Processes, as_json: bool) -> None:
    stopping = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            processes.hurry()  # asked twice: whatever has not ended is killed
        stopping.set()

    # Before anything starts: an interrupt while it starts must not leave half a broker.
    signal.signal(signal.SIGINT, on_signal)
    for number in output.ends():
        signal.signal(number, on_signal)
    processes.start(cancelled=stopping.is_set)
    try:
        if not stopping.is_set():
            _say_where(processes, as_json)
        # A wait without end cannot be interrupted everywhere, and the watching may end by itself.
        while not stopping.wait(1.0):
            if not processes.is_watching:
                raise StartError("the processes are no longer watched over; see the error above")
    finally:
        if sys.stdout.isatty() and not as_json:
            output.say("\nStopping; Ctrl-C again does not wait for anybody.")
        processes.stop()


def _say_where(processes: Processes, as_json: bool) -> None:
    where = {"ZeroMQ": processes.address}
    for door in processes.doors:
        said = processes.said(door)
        where |= {
            door if name in ("url", "address") else f"{door} {name}": value
            for name, value in said.items()
            if isinstance(value, str)
        }
    if as_json:
        output.say_json(
            {
                "version": __version__,
                "doors": where,
                "data_dir": str(processes.data_dir),
                "log_dir": str(processes.log_folder) if processes.log_folder else None,
                "pids": processes.pids(),
            }
        )
        return
    lines = where | {"data": str(processes.data_dir)}
    if processes.log_folder:
        lines["logs"] = str(processes.log_folder)
    width = max(map(len, lines))
    output.say(f"Asterism {__version__} is running; Ctrl-C stops it.")
    for name, value in lines.items():
        output.say(f"  {name:{width}}  {value}")
