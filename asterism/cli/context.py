"""What most commands begin with: the configuration, the broker's address, a connection."""

import argparse
import os
from pathlib import Path

import asterism
from asterism.config import Config, load
from asterism.process_host import is_ours, read_run_file
from asterism.running import FRONTEND


def configuration(options: argparse.Namespace) -> Config:
    return load(options.config, os.environ)


def data_folder(config: Config) -> Path:
    return Path(config.data_dir).absolute()


def address(options: argparse.Namespace) -> str:
    """The address given, or that of the broker of the configured data folder."""
    if options.address:
        return str(options.address)
    config = configuration(options)
    return address_of(data_folder(config), config.listen)


def address_of(data_dir: Path, listen: str) -> str:
    """Where the broker of a data folder listens: what it says itself, else its configuration."""
    said = read_run_file(data_dir / "run", FRONTEND)
    found = said.get("address") if is_ours(said.get("pid")) else None
    where = found if isinstance(found, str) else listen
    # Where it listens on every interface, this machine is one of those that reach it.
    return where.replace("tcp://*:", "tcp://127.0.0.1:").replace(
        "tcp://0.0.0.0:", "tcp://127.0.0.1:"
    )


def connect(options: argparse.Namespace) -> asterism.BlockingNode:
    """A connection to the broker, to be used in ``with``; unreachable is ``ConnectionError``."""
    return asterism.connect_blocking(address(options), name="asterism", timeout=options.timeout)
