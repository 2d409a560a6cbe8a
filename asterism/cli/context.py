"""What most commands begin with: the configuration, the broker's address, a connection."""

import argparse
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asterism
from asterism.addresses_host import address_in, checked_address
from asterism.cli import output
from asterism.config import Config, load
from asterism.process_host import is_ours, read_run_file
from asterism.running import FRONTEND
from asterism.variables import variable_of


def configuration(options: argparse.Namespace) -> Config:
    """The configuration that the command was told, by its options, a file or the environment."""
    environ = dict(os.environ)
    if options.data is not None:
        environ[variable_of("data_dir")] = options.data
    return load(options.config, environ)


def data_folder(config: Config) -> Path:
    return Path(config.data_dir).absolute()


def address(options: argparse.Namespace) -> str:
    """The address given; else that of the broker whose folder or configuration was given; else that
    of the environment; else that of the broker of the configured data folder.

    Where there is such a folder and no broker runs with it, none is asked: another one may listen
    at the configured address, with other data.
    """
    try:
        if options.address is not None:
            return checked_address("--address", options.address)
        if options.data is None and options.config is None:
            found = address_in(os.environ)
            if found is not None:
                return found
    except ValueError as error:
        raise output.CommandError(str(error), output.WRONG_USE) from None
    config = configuration(options)
    folder = data_folder(config)
    said = said_address(folder)
    if said is None and (options.data is not None or _was_used(folder)):
        start = "asterism up" if options.data is None else f"asterism up --data {options.data}"
        raise output.CommandError(
            f"no broker runs with the data folder {folder}: start it with `{start}`, or name one "
            "that runs, by --address or --data",
            output.UNREACHABLE,
        )
    return said or _reachable(config.addresses[0].text)


def _was_used(folder: Path) -> bool:
    """Did a broker run with this folder, as far as we may look?"""
    return os.access(folder, os.R_OK | os.X_OK) and (folder / "run").is_dir()


def address_of(data_dir: Path, config: Config) -> str:
    """Where the broker of a data folder listens: what it says itself, else its configuration."""
    return said_address(data_dir) or _reachable(config.addresses[0].text)


def said_address(data_dir: Path) -> str | None:
    """Where the broker that runs in a data folder says that it listens."""
    said = read_run_file(data_dir / "run", FRONTEND)
    found = said.get("address") if is_ours(said.get("pid")) else None
    return _reachable(found) if isinstance(found, str) else None


def _reachable(address: str) -> str:
    """Where it listens on every interface, this machine is one of those that reach it."""
    return address.replace("tcp://*:", "tcp://127.0.0.1:").replace(
        "tcp://0.0.0.0:", "tcp://127.0.0.1:"
    )


@contextmanager
def connect(options: argparse.Namespace) -> Iterator[asterism.BlockingNode]:
    """A connection to the broker; unreachable is ``ConnectionError``.

    What the client logs of its connection is for people while the command goes on. While it
    connects and while it ends, what went wrong is said by the one line of the error.
    """
    log = logging.getLogger("asterism")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        where = address(options)
        with asterism.connect_blocking(where, name="asterism", timeout=options.timeout) as node:
            log.setLevel(logging.WARNING)
            try:
                yield node
            finally:
                log.setLevel(logging.ERROR)
    finally:
        log.setLevel(level)
