"""Plants each bug in a copy of the tree and runs the tests that must catch it.

    python -m tests.mutation [--only WORDS] [--jobs N] [--list] [--markdown]

Every bug of ``planted.py`` must make a test fail; one that does not is a promise that nothing
holds, and makes this command fail. The tree itself is never changed.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutation.planted import PLANTED, Planted

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300


def plant(bug: Planted, tree: Path) -> None:
    """Puts the bug into a copy of the tree."""
    file = tree / bug.file
    source = file.read_text()
    if source.count(bug.before) != 1:
        raise SystemExit(f"{bug.promise}: its place in {bug.file} is not there exactly once")
    file.write_text(source.replace(bug.before, bug.after))


def copy_tree(to: Path) -> None:
    ignored = shutil.ignore_patterns(".git", ".venv", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, to, symlinks=True, ignore=ignored)


def caught_by(bug: Planted) -> str | None:
    """The first test that fails with the bug in place, or ``None``."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        copy_tree(tree)
        plant(bug, tree)
        command = [
            sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", "0",
            "--no-header", "--tb=no", "-rfE", *bug.tests.split(),
        ]  # fmt: skip
        try:
            run = subprocess.run(
                command, cwd=tree, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return "a test that does not end"
    for line in run.stdout.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split()[1]
    return None


def run_all(bugs: list[Planted], jobs: int) -> Iterator[tuple[Planted, str | None]]:
    with ThreadPoolExecutor(jobs) as pool:
        yield from zip(bugs, pool.map(caught_by, bugs), strict=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--only", default="", help="only bugs whose promise has these words")
    parser.add_argument("--jobs", type=int, default=2, help="at once (default %(default)s)")
    parser.add_argument("--list", action="store_true", help="name the bugs, and run nothing")
    parser.add_argument("--markdown", action="store_true", help="print the table of promises.md")
    options = parser.parse_args()
    bugs = [bug for bug in PLANTED if options.only in bug.promise]
    if options.list:
        for bug in bugs:
            print(f"{bug.file:24} {bug.promise}")
        return 0
    missed = 0
    started = time.monotonic()
    for number, (bug, test) in enumerate(run_all(bugs, options.jobs), 1):
        missed += test is None
        if options.markdown:
            print(f"| {bug.promise} | `{bug.file}` | `{(test or 'nothing').split('[')[0]}` |")
        else:
            print(f"{number:3}/{len(bugs)} {bug.promise}: {test or 'NOT CAUGHT'}", flush=True)
    print(f"{len(bugs) - missed} passed, {missed} failed", file=sys.stderr)
    print(f"in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
