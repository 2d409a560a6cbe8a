"""A worker process: ``python -m asterism.actors --worker N``.

A worker starts others like it for topics that are dedicated, each with ``--dedicated NUMBER``.
"""

import argparse
import sys

from asterism.actors import host
from asterism.config import Config
from asterism.process_host import run_process


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m asterism.actors", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--worker", type=int, metavar="N", help="its number, from 0")
    which.add_argument("--dedicated", type=int, metavar="N", help="the number of a topic's store")
    run_process(_name, _run, parser)


def _name(options: argparse.Namespace) -> str:
    if options.dedicated is not None:
        return f"dedicated-{options.dedicated}"
    return f"worker-{options.worker}"


def _run(config: Config, options: argparse.Namespace) -> None:
    if options.dedicated is not None:
        host.run_dedicated(config, options.dedicated)
        return
    if not 0 <= options.worker < config.workers:
        print(f"asterism: there is no worker {options.worker} of {config.workers}", file=sys.stderr)
        sys.exit(2)
    host.run(config, options.worker)


if __name__ == "__main__":
    main()
