"""Whether bytes are the binary encoding of a protobuf message: walked, and nothing is built. Pure.

The protobuf library makes an object of every message in a message, with room for all its fields:
two bytes can become as large as the schema likes. A walk needs no more memory than the bytes have.
What it takes and refuses is what the library does, extensions aside: those are passed over, as
fields that nobody knows.
"""

from functools import cached_property
from typing import Any, Final

from google.protobuf import message, message_factory
from google.protobuf.descriptor import FieldDescriptor

DEPTH_MAX: Final = 100  # of messages in messages, as the library has it
_VARINT, _FIXED64, _LENGTH, _START, _END, _FIXED32 = range(6)
_VARINT_BYTES_MAX: Final = 10
_TAG_BYTES_MAX: Final = 5
_TAG_MAX: Final = (1 << 32) - 1
_NOT_UTF8: Final = b"\x01\xff"  # a text of one byte
# How the values of a list stand in one piece: by the size of each, which varies where it is 0.
_PACKED_BYTES: Final = {
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
}
_WHOLE: Final = frozenset({FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES})


class WireError(ValueError):
    """Bytes that are not of the message; it says why."""


class Shape:
    """What a walk has to know of a type of message; each of its fields once it is met."""

    def __init__(self, descriptor: Any, shapes: "dict[str, Shape]") -> None:
        self._descriptor = descriptor
        self._shapes = shapes
        self._fields: dict[int, Field] = {}

    def field(self, number: int) -> "Field | None":
        """The field of a number, if there is one."""
        found = self._fields.get(number)
        if found is None:
            descriptor = self._descriptor.fields_by_number.get(number)
            if descriptor is None:
                return None
            found = self._fields[number] = Field(descriptor, self._shapes)
        return found


class Field:
    """A field of a message."""

    def __init__(self, descriptor: Any, shapes: dict[str, Shape]) -> None:
        self._descriptor = descriptor
        inner = descriptor.message_type
        self.shape: Shape | None = None
        if inner is not None:
            self.shape = shapes.get(inner.full_name)
            if self.shape is None:
                self.shape = shapes[inner.full_name] = Shape(inner, shapes)
        self.is_group = descriptor.type == FieldDescriptor.TYPE_GROUP
        self.is_text = descriptor.type == FieldDescriptor.TYPE_STRING
        self.is_list = descriptor.is_repeated and inner is None and descriptor.type not in _WHOLE
        self.packed_bytes = _PACKED_BYTES.get(descriptor.type, 0)

    @cached_property
    def must_be_utf8(self) -> bool:
        """Does the library refuse other text? That is as the syntax of the schema has it."""
        made = message_factory.GetMessageClass(self._descriptor.containing_type)
        try:
            made.FromString(_varint(self._descriptor.number << 3 | _LENGTH) + _NOT_UTF8)
        except message.DecodeError:
            return True
        return False


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def shape_of(descriptor: Any) -> Shape:
    """The shape of a type of message."""
    shapes: dict[str, Shape] = {}
    shapes[descriptor.full_name] = found = Shape(descriptor, shapes)
    return found


def check(shape: Shape, data: bytes) -> None:
    """Refuses, by ``WireError``, bytes that are not of a message."""
    _Walk(data).message(shape, len(data), 0, 0)


class _Walk:
    """The bytes, and how far they were walked through."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def message(self, shape: Shape | None, end: int, group: int, depth: int) -> None:
        """A message up to its end; or a group, up to the tag that ends the one of this number."""
        if depth > DEPTH_MAX:
            raise WireError(f"it is nested deeper than {DEPTH_MAX}")
        while self._at < end:
            tag = self._number(end, _TAG_BYTES_MAX)
            number, kind = tag >> 3, tag & 7
            if not number or tag > _TAG_MAX:
                raise WireError("a field has no valid number")
            if kind == _END:
                if number != group:
                    raise WireError("a group ends that has not begun")
                return
            self._value(shape.field(number) if shape else None, number, kind, end, depth)
        if group:
            raise WireError("a group has no end")

    def _value(self, field: Field | None, number: int, kind: int, end: int, depth: int) -> None:
        if kind == _VARINT:
            self._number(end, _VARINT_BYTES_MAX)
        elif kind == _LENGTH:
            size = self._number(end, _TAG_BYTES_MAX)
            if size > end - self._at:
                raise WireError("it ends too soon")
            if field is None:
                self._at += size
            else:
                self._piece(field, self._at + size, depth)
        elif kind == _START:
            is_known = field is not None and field.is_group
            self.message(field.shape if field and is_known else None, end, number, depth + 1)
        elif kind in (_FIXED64, _FIXED32):
            self._at += 8 if kind == _FIXED64 else 4
            if self._at > end:
                raise WireError("it ends too soon")
        else:
            raise WireError("a field is of no type that there is")

    def _piece(self, field: Field, end: int, depth: int) -> None:
        """What a length stands before: a message, a text, bytes, or the values of a list."""
        if field.shape is not None and not field.is_group:
            self.message(field.shape, end, 0, depth + 1)
        elif field.is_list and field.packed_bytes:
            if (end - self._at) % field.packed_bytes:
                raise WireError("a list ends within a value")
        elif field.is_list:
            while self._at < end:
                self._number(end, _VARINT_BYTES_MAX)
        elif field.is_text:
            self._text(field, end)
        self._at = end

    def _text(self, field: Field, end: int) -> None:
        try:
            self._data[self._at : end].decode()
        except UnicodeDecodeError:
            if field.must_be_utf8:
                raise WireError("a text is not valid UTF-8") from None

    def _number(self, end: int, most: int) -> int:
        """A number, which stands in groups of seven bits, the lowest first."""
        found = shift = 0
        for byte in self._data[self._at : min(end, self._at + most)]:
            self._at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7
        raise WireError("a number has no end")
