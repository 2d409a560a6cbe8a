"""``asterism up``: a whole broker in the foreground."""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from asterism import __version__
from asterism.cli import output
from asterism.config import CONFIG_VARIABLE, ConfigError, load
from asterism.doors import Door, listen_text, read_listen
from asterism.doors_host import is_installed
from asterism.files_host import keep_private
from asterism.running import Processes, StartError, all_doors
from asterism.variables import variable_of


def run(options: argparse.Namespace) -> int:
    keep_private()
    environ = dict(os.environ)
    for key, value in (
        (CONFIG_VARIABLE, options.config),
        (variable_of("data_dir"), options.data),
        (variable_of("listen"), options.listen),
        (variable_of("workers"), options.workers),
    ):
        if value is not None:
            environ[key] = str(value)
    try:
        config = load(None, environ)
    except ConfigError as error:
        raise ConfigError(_by_options(str(error), options)) from None
    for door in all_doors().values():
        if (place := getattr(options, door.name)) is not None:
            host = place.host or read_listen(config.door(door).listen).host
            environ[variable_of(door.listen_key)] = listen_text(host, place.port)
    log_folder = None if options.logs else Path(config.data_dir).absolute() / "log"
    doors = _doors(options)
    try:
        _run(Processes(environ, doors, log_folder, output.warn, may_leave_out=True), options.json)
    except StartError as error:
        raise output.CommandError(str(error)) from None
    return output.DONE


def _by_options(told: str, options: argparse.Namespace) -> str:
    """What was wrong, in the names by which it was given: variables stand for options here."""
    for name in ("listen", "workers"):
        if getattr(options, name) is not None:
            told = told.replace(variable_of(name), f"--{name}")
    return told


def _doors(options: argparse.Namespace) -> tuple[str, ...]:
    """Every door that is installed, but for those that are not wanted; and those that are asked
    for, which are refused if they are not installed."""

    def is_wanted(door: Door[Any]) -> bool:
        if getattr(options, door.name) is not None:
            return True
        return is_installed(door) and not getattr(options, f"no_{door.name}")

    return tuple(door.name for door in filter(is_wanted, all_doors().values()))


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
        where[door.name] = str(processes.said(door.name).get(door.shows, ""))
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
