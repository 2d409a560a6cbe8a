"""How the command line speaks: tables for people, JSON for machines, errors on one line."""

import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from asterism.errors import told

DONE: Final = 0
REFUSED: Final = 1  # the broker said no, or something failed
WRONG_USE: Final = 2  # of the command line, or of the configuration
UNREACHABLE: Final = 3  # no broker answers
INTERRUPTED: Final = 130


_UNITS: Final = ("B", "KB", "MB", "GB", "TB")
_PROGRESS_S: Final = 0.2
# What would move the cursor, or end the line, of whoever reads it: control characters, and the
# separators of lines that only some programs know.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class CommandError(Exception):
    """A command cannot be done: what is wrong and what to do, in one line, and the exit code."""

    def __init__(self, message: str, code: int = REFUSED) -> None:
        super().__init__(message)
        self.code = code


class ReaderGone(Exception):  # noqa: N818
    """Whoever read the output has seen enough, which is no error."""


def prepare() -> None:
    """Makes the standard streams such that whatever a command does with them can be done."""
    # In this order: each that is closed is the first free descriptor, so it is opened as itself.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def ends() -> list[signal.Signals]:
    """The signals that end a command, besides an interrupt; who was told to ignore one does."""
    found = (signal.SIGTERM, signal.SIGHUP)  # nohup has the second ignored
    return [number for number in found if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def writing() -> Iterator[None]:
    """Standard output is written to: where that fails, it ends the command with a sentence."""
    try:
        yield
    except OSError as error:
        # What is still buffered must not be tried again when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from error
        raise CommandError(f"the output cannot be written: {error.strerror}") from error


def say(line: str = "") -> None:
    with writing():
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def say_bytes(line: bytes) -> None:
    with writing():
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()


def warn(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def say_json(value: Any) -> None:
    # Escapes are for those whose letters are few: what Python would write instead is no JSON.
    is_utf8 = str(sys.stdout.encoding).lower().replace("-", "") == "utf8"
    say(json.dumps(value, ensure_ascii=not is_utf8, default=_plain))


def _plain(value: Any) -> Any:
    """What JSON has no form for: bytes become hexadecimal digits."""
    return value.hex() if isinstance(value, bytes) else str(value)


def shown_text(text: str) -> str:
    """Text of others on one line of a terminal, on which it has no power."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def refusal(code: str, detail: str) -> str:
    """What the broker refused, and what to do, on one line."""
    return f"{code}: {told(code, ' '.join(detail.split()))}"


def late(error: TimeoutError, more: str = "") -> str:
    """What a broker that is there did not do in time, and what to do."""
    return f"{error}.{more} `asterism doctor` looks closer; --timeout waits longer."


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows under a head, in columns; a column of numbers stands to the right."""
    cells = [["-" if cell is None else shown_text(str(cell)) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in [list(head), *cells]) for at in range(len(head))]
    right = [
        bool(cells) and all(row[at][:1].isdigit() or row[at] == "-" for row in cells)
        for at in range(len(head))
    ]
    lines = []
    for row in [list(head), *cells]:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def shown_bytes(count: float) -> str:
    unit = 0
    while count >= 1_000 and unit < len(_UNITS) - 1:
        count /= 1_000
        unit += 1
    return f"{count:.0f} {_UNITS[unit]}" if unit < 2 else f"{count:.1f} {_UNITS[unit]}"


def shown_duration(milliseconds: float) -> str:
    seconds = int(milliseconds // 1_000)
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def shown_rate(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 or rate == 0 else f"{rate:.1f}/s"


class Progress:
    """A line on a terminal that tells how far a long command has come; nothing elsewhere."""

    def __init__(self, what: str, is_wanted: bool = True) -> None:
        self._what = what
        self._is_shown = is_wanted and sys.stderr.isatty()
        self._began = self._next = time.monotonic()
        self._width = 0

    def tell(self, count: int, part: float | None = None) -> None:
        """So many are done, which is this part of all, where that is known."""
        now = time.monotonic()
        if not self._is_shown or now < self._next:
            return
        self._next = now + _PROGRESS_S
        rate = count / max(now - self._began, 0.001)
        bar = ""
        if part is not None:
            bar = f"[{'#' * int(30 * part):30}] {100 * part:3.0f} %  "
        line = f"{bar}{count:,} {self._what}  {rate:,.0f}/s"
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def end(self) -> None:
        if self._is_shown and self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
