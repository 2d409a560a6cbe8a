"""Plots as inline SVG, made of text. Pure.

No plot has a ``viewBox`` around its text: places across are percentages and heights are pixels, so
that a plot is as wide as its page and its letters are as large as those around it, on a telephone
too. Only the lines of a line plot are stretched, without their strokes.

Colours are classes (``c0`` to ``c5``, ``a0`` to ``a4``) that the page gives a colour in light and
in dark. No plot says something by colour alone: each value is written beside its mark, or the mark
has a form of its own, and the table beneath has all of it.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import count
from typing import Final, NamedTuple

ROW_PX: Final = 38
LINE_PX: Final = 200
COLOURS: Final = 6
TRACK: Final = 10_000  # the width of a bar's track, in hundredths of a percent
THINNEST: Final = 40  # of what is there


class Bar(NamedTuple):
    """A row of a plot of bars: parts are values with the class of their colour."""

    label: str
    parts: Sequence[tuple[float, str]]
    shown: str


class Range(NamedTuple):
    """A row of a plot of ranges: three marks on a common scale."""

    label: str
    low: float
    middle: float
    high: float
    shown: str


class Line(NamedTuple):
    """A line of a plot over time: a value for each place."""

    label: str
    values: Sequence[float]
    colour: str


_ids = count(1)


def _svg(title: str, description: str, height: int, body: Iterable[str]) -> str:
    number = next(_ids)
    return (
        f'<svg role="img" width="100%" height="{height}" '
        f'aria-labelledby="plot{number}t plot{number}d">'
        f'<title id="plot{number}t">{escape(title)}</title>'
        f'<desc id="plot{number}d">{escape(description)}</desc>'
        f"{''.join(body)}</svg>"
    )


def _percent(part: float) -> str:
    return f"{100 * part:.2f}%"


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Bars from left to right, one beneath the other, the label above each."""
    largest = max((sum(value for value, _ in row.parts) for row in rows), default=0) or 1
    body = []
    for at, row in enumerate(rows):
        top = at * ROW_PX
        body.append(_row_text(row.label, row.shown, top + 14))
        body.append(f'<rect class="track" x="0" y="{top + 20}" width="100%" height="9" rx="2"/>')
        begin = 0
        for width, colour in _widths(row, largest):
            body.append(
                f'<rect class="{colour}" x="{begin / 100:.2f}%" y="{top + 20}" '
                f'width="{width / 100:.2f}%" height="9" rx="2"/>'
            )
            begin += width
    said = "; ".join(f"{row.label}: {row.shown}" for row in rows[:10])
    return _svg(title, said, len(rows) * ROW_PX, body)


def _widths(row: Bar, largest: float) -> list[tuple[int, str]]:
    """How wide each part of a bar is, in hundredths of a percent of the track.

    What is there is seen, however little it is of the whole: a part that would be too thin is made
    wider. Where the parts are then wider than the track, the widest of them gives way.
    """
    widths = [
        (max(round(TRACK * value / largest), THINNEST), colour)
        for value, colour in row.parts
        if value > 0
    ]
    beyond = sum(width for width, _ in widths) - TRACK
    if beyond > 0:
        at = max(range(len(widths)), key=lambda part: widths[part][0])
        widths[at] = widths[at][0] - beyond, widths[at][1]
    return widths


def _row_text(label: str, shown: str, baseline: int) -> str:
    """A label to the left and what it comes to, to the right; a long label gives way."""
    cut = label if len(label) <= 44 else label[:43] + "…"
    return (
        f'<text x="0" y="{baseline}">{escape(cut)}<title>{escape(label)}</title></text>'
        f'<text class="value" x="100%" y="{baseline}" text-anchor="end">{escape(shown)}</text>'
    )


# --- ranges on a logarithmic scale ----------------------------------------------------------------


def ranges(title: str, rows: Sequence[Range], shown_at: dict[float, str]) -> str:
    """A line from the low mark to the high one for each row, on a scale of powers of ten.

    ``shown_at`` are the places of the scale that get a line and a word; rows lie between the first
    and the last of them.
    """
    least, most = math.log10(min(shown_at)), math.log10(max(shown_at))

    def place(value: float) -> str:
        part = (math.log10(max(value, 10**least)) - least) / ((most - least) or 1)
        return _percent(0.01 + 0.98 * min(part, 1))

    bottom = len(rows) * ROW_PX + 4
    body = []
    marks = list(shown_at.items())
    for at, (value, word) in enumerate(marks):
        anchor = "start" if at == 0 else "end" if at == len(marks) - 1 else "middle"
        across = place(value)
        body.append(f'<line class="grid" x1="{across}" x2="{across}" y1="0" y2="{bottom}"/>')
        body.append(
            f'<text class="axis" x="{across}" y="{bottom + 15}" text-anchor="{anchor}">'
            f"{escape(word)}</text>"
        )
    for at, row in enumerate(rows):
        top = at * ROW_PX
        y = top + 25
        low, middle, high = place(row.low), place(row.middle), place(row.high)
        body.append(_row_text(row.label, row.shown, top + 14))
        body.append(f'<line class="span" x1="{low}" x2="{high}" y1="{y}" y2="{y}"/>')
        body.append(f'<circle class="c0" cx="{low}" cy="{y}" r="5"/>')
        body.append(f'<circle class="ring" cx="{middle}" cy="{y}" r="4.5"/>')
        body.append(f'<line class="end" x1="{high}" x2="{high}" y1="{y - 6}" y2="{y + 6}"/>')
    said = "; ".join(f"{row.label}: {row.shown}" for row in rows[:10])
    return _svg(title, said, bottom + 22, body)


# --- lines over time ------------------------------------------------------------------------------


def lines(title: str, across: Sequence[str], plotted: Sequence[Line], unit: str) -> str:
    """Lines over the same places; ``across`` are words for the first, the middle, the last."""
    most = nice(max((max(line.values, default=0) for line in plotted), default=0))
    places = max((len(line.values) for line in plotted), default=0)
    left, top, bottom = 0.0, 22, LINE_PX
    body = [f'<text class="axis" x="0" y="12">{escape(unit)}</text>']
    for part in (0, 0.5, 1):
        y = bottom - (bottom - top) * part
        body.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.0f}" y2="{y:.0f}"/>')
        if part:
            body.append(
                f'<text class="axis" x="100%" y="{y - 4:.0f}" text-anchor="end">'
                f"{escape(number(most * part))}</text>"
            )
    stretched = [_stretched(line, most, places) for line in plotted]
    body.append(
        f'<svg x="{left}" y="{top}" width="100%" height="{bottom - top}" '
        f'viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(stretched)}</svg>"
    )
    if places == 1:  # one place makes no line
        for line in plotted:
            y = bottom - (bottom - top) * line.values[0] / most
            body.append(f'<circle class="{line.colour}" cx="50%" cy="{y:.0f}" r="4"/>')
    anchors = ("start", "middle", "end")
    for word, at, anchor in zip(across, ("0", "50%", "100%"), anchors, strict=True):
        body.append(
            f'<text class="axis" x="{at}" y="{bottom + 16}" text-anchor="{anchor}">'
            f"{escape(word)}</text>"
        )
    peaks = "; ".join(f"{line.label}: at most {number(max(line.values))}" for line in plotted)
    return _svg(title, f"{unit}. {peaks}", bottom + 24, body)


def _stretched(line: Line, most: float, places: int) -> str:
    step = 1_000 / max(places - 1, 1)
    points = " ".join(
        f"{at * step:.1f},{100 - 100 * value / most:.2f}" for at, value in enumerate(line.values)
    )
    return f'<polyline class="line l{line.colour[1:]}" points="{points}"/>'


def nice(value: float) -> float:
    """The next number above that is good to read on a scale."""
    if value <= 0:
        return 1
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 10) if step * power >= value * 0.999)


def number(value: float) -> str:
    """A count, short."""
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= bound:
            scaled = value / (1e3 if unit == "k" else bound)
            return f"{scaled:,.1f}".removesuffix(".0") + f" {unit}"
    return f"{value:,.1f}".removesuffix(".0")


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """What the colours or the marks of a plot mean."""
    items = "".join(
        f'<li><svg width="14" height="14" aria-hidden="true">{mark}</svg>{escape(label)}</li>'
        for mark, label in entries
    )
    return f'<ul class="legend">{items}</ul>'


def swatch(colour: str) -> str:
    return f'<rect class="{colour}" width="12" height="12" y="1" rx="2"/>'
