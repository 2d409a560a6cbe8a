"""The HTTP door: ``python -m asterism.gateways.http``."""

import argparse
import re

from asterism.gateways.http import server
from asterism.process_host import run_process


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m asterism.gateways.http", description=__doc__)
    parser.add_argument(
        "--name",
        type=door_name,
        default="http",
        help="what this process is called, also its file in the run folder: http, or http-…",
    )
    run_process(
        lambda options: str(options.name),
        lambda config, options: server.run(config, options.name),
        parser,
    )


def door_name(text: str) -> str:
    """Names begin alike, so that none is that of another process of the broker."""
    if re.fullmatch(r"http(-[a-zA-Z0-9_.-]{1,64})?", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not http, or http- and letters or digits")
    return text


if __name__ == "__main__":
    main()
