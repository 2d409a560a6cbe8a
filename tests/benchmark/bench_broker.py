"""The whole broker, beside every peer, in one run: ``asterism bench`` and the bare path.

    python -m tests.benchmark.bench_broker [ARGUMENT...]

takes the arguments of ``asterism bench``, knows two more peers, ``bare`` and ``direct``, and
measures beside all peers unless ``--peers`` names some.
"""

import sys
from collections.abc import Sequence

from asterism.cli import bench, output
from tests.benchmark.peers import BarePath, DirectPath


def main(arguments: Sequence[str]) -> int:
    peers = {"bare": BarePath, "direct": DirectPath}
    try:
        return bench.main(["--peers", ",".join([*bench.PEERS, *peers]), *arguments], peers)
    except output.CommandError as error:
        output.warn(f"bench_broker: {error}")
        return error.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
