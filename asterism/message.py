"""A message's header: what a publisher says of a message, encoded once and passed on unchanged.

The publisher encodes the header; the broker decodes it and never re-encodes it, stores it and
delivers it byte for byte. The payload is never looked at. A header is a MessagePack array in the
order of the fields below; fields at the end that have their default are left out, so the header
of a plain message is a few bytes:

    [mode, expect, subjects, attributes, max_receivers, expires_ms, priority, deliver_ms,
     ordering_key, receipt]
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import msgpack

from asterism import checks, limits
from asterism.errors import PeerError
from asterism.subjects import split_subject

NEVER_MS: Final = limits.TIME_MS_MAX  # expires_ms of a message that does not expire


class Mode(IntEnum):
    """Who gets a message: one receiver, all that are online, or all until it is over."""

    PUSH = 0
    ONLINE = 1
    DURABLE = 2


class Status(IntEnum):
    """A delivery's step on the ladder; up to PROCESSED a higher number is a later step."""

    DRAFTING = 0
    WAITING = 1
    SENT = 2
    RECEIVED = 3
    PROCESSED = 4
    FAILED = 5
    UNREACHABLE = 6


_FIELDS: Final = 10
_OPTIONAL: Final = (
    "attributes",
    "max_receivers",
    "expires_ms",
    "priority",
    "deliver_ms",
    "ordering_key",
    "receipt",
)
EXPECTATIONS: Final = (Status.SENT, Status.RECEIVED, Status.PROCESSED)


@dataclass(frozen=True, slots=True)
class Header:
    """A checked header. Build one with the fields; ``encoded`` is what travels and is stored."""

    mode: Mode
    expect: Status
    subjects: tuple[str, ...]
    attributes: dict[str, str] = field(default_factory=dict)
    max_receivers: int | None = None
    expires_ms: int | None = None
    priority: int | None = None
    deliver_ms: int | None = None
    ordering_key: str | None = None
    receipt: bool = False
    encoded: bytes = field(default=b"", compare=False)
    # Durable, for one receiver, with no other wish: what most messages of a work queue are.
    is_plain: bool = field(default=False, init=False, compare=False)

    def __post_init__(self) -> None:
        _check(self)
        if not self.encoded:
            object.__setattr__(self, "encoded", _encode(self))
        object.__setattr__(self, "is_plain", self.max_receivers == 1 and _has_no_wish(self))
        if len(self.encoded) > limits.HEADER_BYTES_MAX:
            raise PeerError("too_large", f"the header has {len(self.encoded)} bytes")


def decode_header(encoded: bytes) -> Header:
    """The header of these bytes; anything but a well-formed header is a ``PeerError``."""
    checks.octets("a header", encoded, 1, limits.HEADER_BYTES_MAX, "too_large")
    try:
        values = msgpack.unpackb(encoded, use_list=False, strict_map_key=False)
    except (ValueError, UnicodeDecodeError, msgpack.UnpackException, RecursionError) as error:
        raise PeerError("bad_request", f"a header is not MessagePack: {error}") from None
    if type(values) is not tuple or not 3 <= len(values) <= _FIELDS:
        raise PeerError("bad_request", f"a header is an array of 3 to {_FIELDS} fields")
    mode = checks.whole("mode", values[0], 0, len(Mode) - 1)
    expect = checks.whole("expect", values[1], Status.SENT, Status.PROCESSED)
    # _check, which the constructor calls, looks at the type of every other field.
    rest: Any = values[3:]
    named = dict(zip(_OPTIONAL, rest, strict=False))
    return Header(Mode(mode), Status(expect), values[2], **named, encoded=encoded)


def _encode(header: Header) -> bytes:
    values: list[object] = [
        int(header.mode),
        int(header.expect),
        header.subjects,
        header.attributes,
        header.max_receivers,
        header.expires_ms,
        header.priority,
        header.deliver_ms,
        header.ordering_key,
        header.receipt,
    ]
    # The array's defaults are None, False and the empty map; a priority of 0 is not one of them.
    while len(values) > 3 and (values[-1] is None or values[-1] is False or values[-1] == {}):
        values.pop()
    packed: bytes = msgpack.packb(values)
    return packed


def _has_no_wish(header: Header) -> bool:
    wishes = (header.expires_ms, header.priority, header.deliver_ms, header.ordering_key)
    return wishes == (None, None, None, None) and not header.receipt


def _check(header: Header) -> None:
    if type(header.mode) is not Mode:
        raise PeerError("bad_request", f"mode must be a Mode, not {header.mode!r}")
    if type(header.expect) is not Status or header.expect not in EXPECTATIONS:
        raise PeerError(
            "bad_request", f"expect must be sent, received or processed, not {header.expect!r}"
        )
    for subject in checks.tuple_of("subjects", header.subjects, limits.SUBJECTS_MAX, "bad_subject"):
        split_subject(subject)
    checks.string_map("attributes", header.attributes)
    checks.maybe_whole("priority", header.priority, 0, limits.PRIORITY_MAX)
    checks.maybe_whole("deliver_at", header.deliver_ms, 0, limits.TIME_MS_MAX)
    checks.maybe_text("ordering_key", header.ordering_key, limits.ORDERING_KEY_BYTES_MAX)
    checks.flag("receipt", header.receipt)
    _check_lifetime(header)


def _check_lifetime(header: Header) -> None:
    checks.maybe_whole("max_receivers", header.max_receivers, 1, limits.RECEIVERS_WANTED_MAX)
    checks.maybe_whole("expires_at", header.expires_ms, 0, NEVER_MS)
    if header.mode is not Mode.DURABLE:
        if header.max_receivers is not None:
            raise PeerError("bad_request", "max_receivers is for durable messages alone")
        if header.expires_ms is not None:
            raise PeerError("bad_request", "expires_at is for durable messages alone")
    if header.expires_ms == NEVER_MS and header.max_receivers is None:
        raise PeerError("bad_request", "a message that never expires needs max_receivers")
