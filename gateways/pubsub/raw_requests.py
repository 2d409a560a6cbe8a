"""Requests before they are read: what would take much more memory than it has bytes is refused.

Two bytes can stand for a whole message, so that a request of ten megabytes would come to hundreds.
"""

from typing import Any, Final

from google.protobuf.message import DecodeError

from asterism.gateways.pubsub.errors import invalid

FIELDS_MAX: Final = 20_000  # of a request itself: ten times what any may have that is right
LOOKED_AT_BYTES: Final = 65_536  # a smaller one cannot have too many
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_request(kind: Any, raw: bytes, most_bytes: int) -> Any:
    """The request that these bytes are; refuses what is too large, or none."""
    if len(raw) > most_bytes:
        raise invalid(f"The request has {len(raw)} bytes: it may have {most_bytes}.")
    try:
        if len(raw) > LOOKED_AT_BYTES and _has_too_many_fields(raw):
            raise invalid(f"The request has over {FIELDS_MAX} entries.")
        return kind.FromString(raw)
    except (DecodeError, IndexError, UnicodeDecodeError) as error:
        raise invalid(f"The request is not a {kind.DESCRIPTOR.name}: {error}.") from None


def _has_too_many_fields(raw: bytes) -> bool:
    at = count = 0
    while at < len(raw):
        count += 1
        if count > FIELDS_MAX:
            return True
        tag, at = _varint(raw, at)
        kind = tag & 7
        if kind == _BYTES:
            size, at = _varint(raw, at)
            at += size
        elif kind == _VARINT:
            _, at = _varint(raw, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise DecodeError("it has a group")
    return False


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A number, and where what follows it begins."""
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise DecodeError("a number has more than 64 bits")
