"""How benchmarks show their figures: a table for people, JSON for machines."""

import json
import platform
from pathlib import Path


def write_report(name: str, figures: dict[str, float], path: str | None) -> None:
    """Prints the figures and, with a path, writes them as JSON."""
    width = max(len(label) for label in figures)
    print(f"{name} ({platform.python_version()}, {platform.machine()})")  # noqa: T201
    for label, figure in figures.items():
        shown = f"{figure:16,.0f}" if figure >= 100 else f"{figure:16,.3f}"
        print(f"  {label:{width}} {shown}")  # noqa: T201
    if path is not None:
        Path(path).write_text(json.dumps({"benchmark": name, "figures": figures}, indent=2) + "\n")
