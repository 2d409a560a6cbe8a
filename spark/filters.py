"""Spark's filters as bounds and names; those that are not understood go back to Spark.

A filter that is taken is applied exactly: Spark does not look again. All columns that are filtered
here are never null, so that a comparison is true or false and never unknown.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from asterism.spark.planning import TIME_END, Filters
from asterism.spark.tables import SEQUENCE_END

# The columns of each table that a filter may be on, and what bounds or names they are.
_NAMES: Final = {"topic": "topics", "status": "statuses"}
_BOUNDS: Final = {
    "sequence": "sequences",
    "accepted_at": "accepted_ms",
    "resolved_at": "resolved_ms",
}
_ON: Final[dict[str, frozenset[str]]] = {
    "messages": frozenset({"topic", "status", "sequence", "accepted_at"}),
    "deliveries": frozenset({"topic", "status", "sequence", "accepted_at"}),
    "history": frozenset({"topic", "sequence", "accepted_at", "resolved_at"}),
    "receivers": frozenset({"topic"}),
    "topics": frozenset({"topic"}),
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# What is compared, as the least whole number from which on, and the one before which, it is true.
# A time is compared by the microsecond and kept by the millisecond: floor and ceiling.
_COMPARED: Final[dict[type[Filter], Callable[[int, int, int], tuple[int, int]]]] = {
    EqualTo: lambda floor, ceiling, end: (ceiling, floor + 1),
    EqualNullSafe: lambda floor, ceiling, end: (ceiling, floor + 1),
    GreaterThan: lambda floor, ceiling, end: (floor + 1, end),
    GreaterThanOrEqual: lambda floor, ceiling, end: (ceiling, end),
    LessThan: lambda floor, ceiling, end: (0, ceiling),
    LessThanOrEqual: lambda floor, ceiling, end: (0, floor + 1),
}


def understood(
    filters: Iterable[Filter], table: str, known: Filters
) -> tuple[Filters, list[Filter]]:
    """What is known with these filters, and those of them that Spark has to apply."""
    left: list[Filter] = []
    for one in filters:
        taken = _taken(one, table, known)
        if taken is None:
            left.append(one)
        else:
            known = taken
            if type(one) is In and one.attribute[0] in _BOUNDS:
                left.append(one)  # it lies between these; that it is one of them, Spark finds out
    return known, left


def _taken(one: Filter, table: str, known: Filters) -> Filters | None:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    if len(path) != 1 or path[0] not in _ON[table]:
        return None
    column, value = path[0], getattr(one, "value", None)
    if type(one) is IsNotNull:
        return known
    if value is None:
        return None
    if column in _NAMES:
        return _named(one, _NAMES[column], value, known)
    return _bounded(one, column, value, known)


def _named(one: Filter, names: str, value: Any, known: Filters) -> Filters | None:
    if type(one) in (EqualTo, EqualNullSafe):
        return known.among(names, [value])
    if type(one) is In:
        return known.among(names, [name for name in value if name is not None])
    return None


def _bounded(one: Filter, column: str, value: Any, known: Filters) -> Filters | None:
    end = SEQUENCE_END if column == "sequence" else TIME_END
    if type(one) is In:
        whole = [numbers for each in value if (numbers := _whole(each)) is not None]
        if not whole or len(whole) < len(value):
            return None
        low, high = min(floor for floor, _ in whole), max(ceiling for _, ceiling in whole)
        return known.narrowed(_BOUNDS[column], low, high + 1)
    compare, numbers = _COMPARED.get(type(one)), _whole(value)
    if compare is None or numbers is None:
        return None
    return known.narrowed(_BOUNDS[column], *compare(*numbers, end))


def _whole(value: object) -> tuple[int, int] | None:
    """A number, or the milliseconds of a time: rounded down, and rounded up."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        micro = (aware - _EPOCH) // timedelta(microseconds=1)
        return micro // 1_000, -(-micro // 1_000)
    if type(value) is int:
        return value, value
    return None
