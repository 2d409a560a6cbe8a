"""Rows of a store by the column: message rows and headers as Arrow arrays. Imports no Spark.

Most of what reading costs in Python is a step taken for each row. So a block of rows is decoded
together: what is at a fixed place by one numpy view, what a header says once for each distinct
header, and a column that nobody asked for not at all.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asterism.errors import PeerError
from asterism.limits import HEADERS_CACHED_MAX
from asterism.message import NEVER_MS, Header, decode_header
from asterism.spark.schemas import columns_in
from asterism.storage.records import (
    DELAYED,
    DRAFT,
    HAS_PRODUCER,
    HAS_SPENT,
    PARKED,
    PLAIN_ID,
    PRODUCER_BYTES,
    RECORD_FIELDS,
    RENEWED,
    SPENT_BYTES,
)

Numbers = npt.NDArray[np.int64]

UTC_TIME: Final = pa.timestamp("us", "UTC")
# A block with more distinct headers than this has a table of its own: it will not be used again.
_SHARED_MAX: Final = 256
_ID_BYTES: Final = 16
_FIXED: Final = np.dtype([(name, f">{code}") for name, code in RECORD_FIELDS])
_BY_SEQUENCE: Final = np.dtype([("kind", "V6"), ("sequence", ">u8")])  # a key of kind m or l


def times(ms: Numbers, absent: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Milliseconds as timestamps."""
    return pa.array(ms * 1_000, mask=absent).view(UTC_TIME)


def maybe_times(ms: Sequence[int | None]) -> pa.Array:
    """Milliseconds, or none, as timestamps; 0 is the time of what never came."""
    return pa.array([at * 1_000 if at else None for at in ms], UTC_TIME)


def repeated(value: object, count: int, kind: pa.DataType) -> pa.Array:
    """A column of one value."""
    return pa.array([value], kind).take(pa.array(np.zeros(count, np.int32)))


# --- types ----------------------------------------------------------------------------------------

_TYPES: Final = {
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "TIMESTAMP": UTC_TIME,
}


def arrow_schema(text: str) -> pa.Schema:
    """The schema that this text stands for, as Spark too understands it."""
    return pa.schema([pa.field(name, _arrow_type(kind)) for name, kind in columns_in(text).items()])


def _arrow_type(kind: str) -> pa.DataType:
    outer, _, inner = kind.removesuffix(">").partition("<")
    if outer == "ARRAY":
        return pa.list_(pa.field("element", _arrow_type(inner)))
    if outer == "MAP":
        key, value = inner.split(", ")
        return pa.map_(_TYPES[key], _TYPES[value])
    if outer == "STRUCT":
        held = columns_in(inner.replace(": ", " "))
        return pa.struct([pa.field(name, _TYPES[of]) for name, of in held.items()])
    return _TYPES[kind]


# --- headers --------------------------------------------------------------------------------------

_OF_HEADER: Final[dict[str, Callable[[Header], Any]]] = {
    "mode": lambda header: header.mode.name.lower(),
    "expect": lambda header: header.expect.name.lower(),
    "subjects": lambda header: header.subjects,
    "attributes": lambda header: list(header.attributes.items()),
    "priority": lambda header: header.priority,
    "ordering_key": lambda header: header.ordering_key,
    "max_receivers": lambda header: header.max_receivers,
    "receipt": lambda header: header.receipt,
    "deliver_at": lambda header: None if header.deliver_ms is None else header.deliver_ms * 1_000,
}
HEADER_COLUMNS: Final = frozenset(_OF_HEADER)


class HeaderTable:
    """Distinct headers by number, each decoded once, and what their columns are."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._headers: list[Header] = []
        self._columns: dict[str, pa.Array] = {}

    def __len__(self) -> int:
        return len(self._headers)

    def add(self, encoded: set[bytes]) -> None:
        missing = encoded.difference(self._numbers)
        if missing:
            self._columns.clear()
            for one in missing:
                self._numbers[one] = len(self._headers)
                self._headers.append(decode_header(one))

    def number(self, encoded: list[bytes]) -> npt.NDArray[np.int32]:
        """The number of each of these headers, all of which were added."""
        if encoded.count(encoded[0]) == len(encoded):  # most blocks
            return np.full(len(encoded), self._numbers[encoded[0]], np.int32)
        return np.fromiter(map(self._numbers.__getitem__, encoded), np.int32, len(encoded))

    def header(self, number: int) -> Header:
        return self._headers[number]

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        """What every header of the table says of one thing, by number."""
        found = self._columns.get(name)
        if found is None:
            said = [_OF_HEADER[name](header) for header in self._headers]
            found = self._columns[name] = pa.array(said, kind)
        return found

    def rows(self, name: str, kind: pa.DataType, numbers: npt.NDArray[np.int32]) -> pa.Array:
        """The same for rows whose headers have these numbers."""
        return self.column(name, kind).take(pa.array(numbers))


class Headers:
    """The headers of one block after another; most blocks have few, and the same ones."""

    def __init__(self) -> None:
        self._shared = HeaderTable()

    def table_for(self, encoded: list[bytes]) -> tuple[HeaderTable, npt.NDArray[np.int32]]:
        """A table with all of these, and the number of each of them there."""
        distinct = set(encoded)
        if len(distinct) > _SHARED_MAX:
            table = HeaderTable()
        else:
            if len(self._shared) + len(distinct) > HEADERS_CACHED_MAX:
                self._shared = HeaderTable()
            table = self._shared
        table.add(distinct)
        return table, table.number(encoded)


# --- message rows ---------------------------------------------------------------------------------


class MessageBlock:
    """Rows of kind ``m`` or ``l``, at least one, decoded together as far as is asked for."""

    def __init__(self, keys: list[bytes], values: list[bytes], headers: Headers) -> None:
        self._values = values
        self._headers = headers
        self.sequences: Numbers = np.frombuffer(b"".join(keys), _BY_SEQUENCE)["sequence"].astype(
            np.int64
        )
        begins = b"".join([value[:PLAIN_ID] for value in values])
        if len(begins) != PLAIN_ID * len(values):
            raise _damaged()
        self._fixed = np.frombuffer(begins, _FIXED)
        self._table: tuple[HeaderTable, npt.NDArray[np.int32]] | None = None
        self._places: tuple[Numbers, Numbers] | None = None
        self._lengths: Numbers | None = None
        if int(self.states.max()) > DELAYED:
            raise _damaged()

    def __len__(self) -> int:
        return len(self._values)

    def only(self, wanted: npt.NDArray[np.bool_]) -> "MessageBlock":
        """The rows of which the mask says so; nothing may have been asked of this block yet."""
        if wanted.all():
            return self
        kept = object.__new__(MessageBlock)
        kept._values = [self._values[at] for at in np.flatnonzero(wanted).tolist()]
        kept._headers = self._headers
        kept.sequences = self.sequences[wanted]
        kept._fixed = self._fixed[wanted]
        kept._table = kept._places = kept._lengths = None
        return kept

    # --- at fixed places ----------------------------------------------------------------------

    def _field(self, name: str) -> Numbers:
        return self._fixed[name].astype(np.int64)

    @property
    def states(self) -> npt.NDArray[np.uint8]:
        states: npt.NDArray[np.uint8] = self._fixed["state"]
        return states

    @property
    def held(self) -> npt.NDArray[np.bool_]:
        """Which of them wait or are out: neither drafts nor parked, unless renewed since."""
        renewed = (self._fixed["flags"] & RENEWED) != 0
        held: npt.NDArray[np.bool_] = (self.states != DRAFT) & ((self.states != PARKED) | renewed)
        return held

    @property
    def attempts(self) -> Numbers:
        return self._field("attempts")

    @property
    def accepted_ms(self) -> Numbers:
        return self._field("accepted_ms")

    def expires_at(self) -> pa.Array:
        expires = self._field("expires_ms")
        return times(expires, expires >= NEVER_MS)

    # --- behind them --------------------------------------------------------------------------

    def _bodies(self) -> tuple[Numbers, Numbers]:
        """Where each header begins, and where it ends and the payload begins."""
        if self._places is None:
            flags = self._field("flags")
            begin = np.full(len(self), PLAIN_ID + _ID_BYTES)
            begin[flags & HAS_PRODUCER != 0] += PRODUCER_BYTES
            begin[flags & HAS_SPENT != 0] += SPENT_BYTES
            end = begin + self._field("header_size")
            if (self._sizes() < end).any():
                raise _damaged()
            self._places = begin, end
        return self._places

    def _sizes(self) -> Numbers:
        if self._lengths is None:
            self._lengths = np.fromiter(map(len, self._values), np.int64, len(self._values))
        return self._lengths

    def _cut(self, begin: Numbers, end: Numbers) -> list[bytes]:
        first, last = int(begin[0]), int(end[0])
        if (begin == first).all() and (end == last).all():  # most blocks: a fifth of the time
            return [value[first:last] for value in self._values]
        places = zip(self._values, begin.tolist(), end.tolist(), strict=True)
        return [value[low:high] for value, low, high in places]

    def ids(self) -> pa.Array:
        begin = self._bodies()[0]
        return pa.array(self._cut(begin - _ID_BYTES, begin), pa.binary())

    def payload_bytes(self) -> pa.Array:
        return pa.array(self._sizes() - self._bodies()[1])

    def payloads(self) -> pa.Array:
        end = self._bodies()[1]
        first = int(end[0])
        if (end == first).all():
            return pa.array([value[first:] for value in self._values], pa.binary())
        places = zip(self._values, end.tolist(), strict=True)
        return pa.array([value[low:] for value, low in places], pa.binary())

    def headers(self) -> tuple[HeaderTable, npt.NDArray[np.int32]]:
        if self._table is None:
            self._table = self._headers.table_for(self._cut(*self._bodies()))
        return self._table

    def of_header(self, name: str, kind: pa.DataType) -> pa.Array:
        """A column that is in the header."""
        table, numbers = self.headers()
        return table.rows(name, kind, numbers)


def _damaged() -> PeerError:
    return PeerError("internal", "a message row is damaged: it is cut short")
