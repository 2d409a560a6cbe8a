"""A worker process: ``python -m asterism.actors --worker N``."""

import argparse
import sys

from asterism.actors import host
from asterism.config import Config
from asterism.process_host import run_process


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m asterism.actors", description=__doc__)
    parser.add_argument("--worker", type=int, required=True, metavar="N", help="its number, from 0")
    run_process("worker-{worker}", _run, parser)


def _run(config: Config, options: argparse.Namespace) -> None:
    if not 0 <= options.worker < config.workers:
        print(f"asterism: there is no worker {options.worker} of {config.workers}", file=sys.stderr)
        sys.exit(2)
    host.run(config, options.worker)


if __name__ == "__main__":
    main()
