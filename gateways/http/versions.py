"""Ranges of versions as clients of the service ask for them in ``Accept-Version``. Pure.

They are those of npm: ``^0.6.0``, ``~0.6``, ``0.6.x``, ``>=0.5.0 <0.7.0``, ``0.5 - 0.6``, and
several with ``||`` between them. Of versions that are not released yet nothing is known here.
"""

import re
from itertools import takewhile
from typing import Final

Version = tuple[int, int, int]

_PART: Final = r"(?:[0-9]+|[xX*])"
_COMPARATOR: Final = re.compile(rf"(\^|~>?|>=?|<=?|=|)v?({_PART}(?:\.{_PART}){{0,2}})")
_ANY: Final = ("x", "X", "*")
RANGE_MAX: Final = 256  # characters of a range; no client says more
_LEAST: Final = (0, 0, 0)
_MOST: Final = (1 << 1_000, 0, 0)  # beyond all that can be written in a range


def is_within(version: Version, wanted: str) -> bool:
    """Is a version in a range? Never, where it is none."""
    if len(wanted) > RANGE_MAX:
        return False
    return any(_is_within(version, choice) for choice in wanted.split("||"))


def _is_within(version: Version, wanted: str) -> bool:
    wanted = re.sub(r"(\S+)\s+-\s+(\S+)", r">=\1 <=\2", wanted.strip())
    wanted = re.sub(r"([<>=~^])\s+", r"\1", wanted)
    for text in wanted.split():
        comparator = _COMPARATOR.fullmatch(text)
        if comparator is None:
            return False
        first, end = _bounds(comparator[1], comparator[2].split("."))
        if not first <= version < end:
            return False
    return True


def _bounds(operator: str, parts: list[str]) -> tuple[Version, Version]:
    """The first version that a comparator takes, and the first beyond."""
    known = [int(part) for part in takewhile(str.isdigit, parts)]
    if any(part not in _ANY for part in parts[len(known) :]):
        return _MOST, _LEAST  # a number behind one that may be any: nothing is so
    if not known:
        return (_MOST, _LEAST) if operator in ("<", ">") else (_LEAST, _MOST)
    last = len(known) - 1
    least, after = _filled(known), _after(known, last)
    match operator:
        case "^":  # what is left of the first that is not 0 may not change
            significant = next((at for at, number in enumerate(known) if number), last)
            return least, _after(known, significant)
        case "~" | "~>":
            return least, _after(known, min(last, 1))
        case ">=":
            return least, _MOST
        case ">":
            return after, _MOST
        case "<":
            return _LEAST, least
        case "<=":
            return _LEAST, after
        case _:
            return least, after


def _after(known: list[int], at: int) -> Version:
    return _filled([*known[:at], known[at] + 1])


def _filled(known: list[int]) -> Version:
    major, minor, patch = [*known, 0, 0][:3]
    return major, minor, patch
