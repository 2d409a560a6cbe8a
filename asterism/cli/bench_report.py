"""How ``asterism bench`` shows itself: a bar while it runs, a table, JSON for machines."""

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from asterism import __version__
from asterism.cli import output

BAR: Final = 30
SYNCS: Final = 100  # appends that are synced to learn what a sync costs here
SYNC_BYTES: Final = 4_096


@dataclass(frozen=True)
class Figure:
    """Something that was measured: the median of its rounds, and how it compares."""

    case: str
    what: str
    value: float
    unit: str
    rounds: list[float] = field(default_factory=list)
    ratio: float | None = None
    of: str = ""  # what the ratio is of, as "asterism / redis"

    @property
    def shown(self) -> str:
        value = f"{self.value:,.0f}" if abs(self.value) >= 100 else f"{self.value:,.2f}"
        return f"{value} {self.unit}"

    @property
    def compared(self) -> str:
        return "" if self.ratio is None else f"{self.ratio:.2f} {self.of}"


class Report:
    """What a run has found so far."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self.notes: list[str] = []
        self.series: dict[str, list[dict[str, float]]] = {}

    def add(
        self,
        case: str,
        what: str,
        rounds: Sequence[float],
        unit: str,
        ratio: float | None = None,
        of: str = "",
    ) -> float:
        """Adds the median of some rounds, and returns it."""
        value = statistics.median(rounds)
        listed = [round(one, 3) for one in rounds]
        self.figures.append(Figure(case, what, round(value, 3), unit, listed, ratio, of))
        return value

    def note(self, line: str) -> None:
        self.notes.append(line)

    def table(self) -> str:
        rows = []
        last = ""
        width = max((len(figure.shown) for figure in self.figures), default=0)
        for figure in self.figures:
            case = "" if figure.case == last else figure.case
            rows.append([case, figure.what, figure.shown.rjust(width), figure.compared])
            last = figure.case
        return output.table(["case", "what", "figure", "ratio"], rows)

    def as_json(self, options: dict[str, Any], machine: dict[str, Any]) -> str:
        return json.dumps(
            {
                "benchmark": "asterism bench",
                "version": __version__,
                "machine": machine,
                "options": options,
                "figures": [asdict(figure) for figure in self.figures],
                "series": self.series,
                "notes": self.notes,
            },
            indent=2,
            ensure_ascii=False,
        )


class Bar:
    """A line on a terminal that says how far the run has come; nothing elsewhere."""

    def __init__(self, cases: int) -> None:
        self._cases = max(cases, 1)
        self._done = 0
        self._label = ""
        self._width = 0
        self._is_shown = sys.stderr.isatty()

    def begin(self, case: str) -> None:
        self._label = case
        self.tell("", 0)

    def end_case(self) -> None:
        self._done += 1

    def tell(self, what: str, part: float) -> None:
        """This part of the case is done, and what is being done now."""
        if not self._is_shown:
            return
        whole = (self._done + min(part, 1)) / self._cases
        label = f"{self._label}: {what}" if what else self._label
        line = f"[{'#' * int(BAR * whole):{BAR}}] {100 * whole:3.0f} %  {label}"
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def clear(self) -> None:
        if self._is_shown and self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0


# --- the machine ----------------------------------------------------------------------------------


def machine(folder: str) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "filesystem": filesystem(folder),
        "sync_us": round(sync_us(folder)),
    }


def filesystem(folder: str) -> str:
    """The kind of file system that holds a folder, as far as the system tells."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return "unknown"
    path = os.path.realpath(folder)
    found = ("", "unknown")
    for line in lines:
        _, mount, kind = line.split()[:3]
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(found[0]):
            found = (mount, kind)
    return found[1]


def sync_us(folder: str) -> float:
    """Microseconds that a small synced append takes here, the median of some."""
    spent = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            began = time.perf_counter_ns()
            file.write(b"x" * SYNC_BYTES)
            file.flush()
            os.fdatasync(file.fileno()) if hasattr(os, "fdatasync") else os.fsync(file.fileno())
            spent.append((time.perf_counter_ns() - began) / 1_000)
    return statistics.median(spent)


def memory_of(pids: Iterable[int]) -> int:
    """Bytes that processes hold together; what they share is counted for each."""
    try:
        process = import_module("psutil").Process
    except ModuleNotFoundError:
        return sum(map(_resident, pids))
    return sum(int(process(pid).memory_info().rss) for pid in pids)


def _resident(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def slope(points: Sequence[tuple[float, float]]) -> float:
    """How fast a value rises, of points of time and value: a straight line through all of them."""
    if len(points) < 2:
        return 0.0
    mean_x = statistics.fmean(x for x, _ in points)
    mean_y = statistics.fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def percentile(values: Sequence[float], part: float) -> float:
    """The value that this part of all lies at or below."""
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]
