"""How benchmarks show themselves: a progress bar, a table for people, JSON for machines."""

import json
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
_BAR = 30


def progress(items: Sequence[Item], label: str) -> Iterator[Item]:
    """The items, with a bar on a terminal while they are gone through."""
    shown = bool(label) and sys.stderr.isatty()
    for index, item in enumerate(items):
        if shown:
            filled = _BAR * index // len(items)
            sys.stderr.write(f"\r{label} [{'#' * filled:{_BAR}}] {100 * index // len(items):3}%")
        yield item
    if shown:
        sys.stderr.write("\r" + " " * (len(label) + _BAR + 10) + "\r")


def write_report(name: str, figures: dict[str, float], path: str | None) -> None:
    """Prints the figures and, with a path, writes them as JSON."""
    width = max(len(label) for label in figures)
    sys.stdout.write(f"{name} (Python {platform.python_version()}, {platform.machine()})\n")
    for label, figure in figures.items():
        shown = f"{figure:16,.0f}" if figure >= 100 else f"{figure:16,.3f}"
        sys.stdout.write(f"  {label:{width}} {shown}\n")
    if path is not None:
        Path(path).write_text(json.dumps({"benchmark": name, "figures": figures}, indent=2) + "\n")
