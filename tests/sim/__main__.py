"""Runs the simulator: one seed with its history, or many with a summary.

python -m tests.sim --seed 17 --verbose        replays one seed
python -m tests.sim --seeds 0..1000 --jobs 2   runs many
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.sim.world import STEPS, World


def replay(seed: int, steps: int = STEPS, tell: Callable[[str], None] | None = None) -> str | None:
    """Runs one seed, and tells its history; what went wrong, or ``None``."""
    try:
        World(seed, steps, tell).run()
    except Exception as error:
        if tell is not None:
            tell(traceback.format_exc())
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({where.filename.split('/')[-1]}:{where.lineno})"
    return None


def command_for(seed: int, steps: int) -> str:
    more = "" if steps == STEPS else f" --steps {steps}"
    return f"python -m tests.sim --seed {seed}{more}"


def run_one(seed: int, steps: int, verbose: bool) -> int:
    wrong = replay(seed, steps, print if verbose else None)
    if wrong is not None:
        print(f"seed {seed} failed: {wrong}\nreplay with: {command_for(seed, steps)}")
        return 1
    print(f"seed {seed} is well")
    return 0


def run_many(seeds: range, steps: int, jobs: int) -> int:
    begun = time.monotonic()
    failed = 0
    with ProcessPoolExecutor(jobs) as pool:
        for done, (seed, wrong) in enumerate(
            zip(seeds, pool.map(partial(replay, steps=steps), seeds, chunksize=5), strict=True), 1
        ):
            if wrong is not None:
                failed += 1
                print(f"\rseed {seed} failed: {wrong}; replay with: {command_for(seed, steps)}")
            if done % 10 == 0 and sys.stderr.isatty():
                print(f"\r{done} of {len(seeds)} seeds, {failed} failed ", end="", file=sys.stderr)
    took = time.monotonic() - begun
    print(f"{len(seeds)} seeds, {failed} failed, {took:.1f} s")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--seeds", default="0..100", help="run these: from..to, to not included")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps before faults stop")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--verbose", action="store_true", help="print the history of the seed")
    options = parser.parse_args()
    if options.seed is not None:
        return run_one(options.seed, options.steps, options.verbose)
    first, _, end = options.seeds.partition("..")
    return run_many(range(int(first), int(end)), options.steps, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
