"""Protocol Buffer schemas: which messages are of one, where the schema comes compiled. Pure.

A ``FileDescriptorSet`` says all of a schema that the protobuf library needs. A definition as text
would have to be compiled, and the library does not do that: such a schema is kept, and messages
are not held against it.

JSON is read by the library, that makes an object of every message in it and looks at all fields of
its type each time: how often it may is bounded by the size of the message.
"""

from typing import Any, Final

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    field_mask_pb2,
    json_format,
    message,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

from asterism.gateways.pubsub import wire
from asterism.gateways.pubsub.avro import MismatchError, SchemaError
from asterism.gateways.pubsub.json_texts import read_json

LOOKS: Final = 20_000  # at fields, that reading any JSON may take
LOOKS_A_BYTE: Final = 8  # and besides, for each byte of it
LOOKS_MAX: Final = 4_000_000  # whatever its size: each takes some 16 bytes of memory
_VALUE_LOOKS: Final = 8  # what a value takes that is none of the schema's messages
_ANY: Final = any_pb2.Any.DESCRIPTOR.full_name
_WRAPPERS: Final = wrappers_pb2.DESCRIPTOR.name
# Types that the library reads in a way of their own, and takes to be as it has them.
_OWN: Final = {
    descriptor.full_name: descriptor
    for file in (any_pb2, duration_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
    for descriptor in file.DESCRIPTOR.message_types_by_name.values()
}


class ProtobufSchema:
    """A schema that came compiled."""

    def __init__(self, pool: Any, message_type: Any) -> None:
        self._pool = pool
        self._type = message_type
        self._shape = wire.shape_of(message_type.DESCRIPTOR)

    def check_binary(self, data: bytes) -> None:
        """Refuses what is not the binary encoding of a message, by ``MismatchError``."""
        try:
            wire.check(self._shape, data)
        except wire.WireError as error:
            raise MismatchError(f"it is no {self._type.DESCRIPTOR.full_name}: {error}") from None

    def check_json(self, data: bytes) -> None:
        """Refuses what is not the JSON of a message, by ``MismatchError``."""
        try:
            value = read_json(data)
            if not isinstance(value, dict):
                raise ValueError("it is no object")
            _Looks(self._pool, len(data)).take(value, self._type.DESCRIPTOR)
            json_format.ParseDict(value, self._type(), descriptor_pool=self._pool)
        except _UNREADABLE as error:
            raise MismatchError(f"it is no {self._type.DESCRIPTOR.full_name}: {error}") from None


# What the library raises over JSON: not all of it is said to be raised.
_UNREADABLE: Final = (
    json_format.ParseError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class _Looks:
    """How often fields may be looked at still, while a message is read."""

    def __init__(self, pool: Any, size: int) -> None:
        self._pool = pool
        self._left = min(LOOKS + LOOKS_A_BYTE * size, LOOKS_MAX)
        self._parts: dict[str, dict[str, Any]] = {}  # by the name of a type

    def take(self, value: Any, descriptor: Any) -> None:
        """Counts a value and all in it; ``ValueError`` where that is too much.

        No descriptor: what is read there has no message of the schema in it.
        """
        waiting = [(value, descriptor)]
        while waiting:
            value, descriptor = waiting.pop()
            if descriptor is not None and descriptor.full_name == _ANY:
                descriptor = self._named(value)
            self._left -= _VALUE_LOOKS + (0 if descriptor is None else len(descriptor.fields))
            if self._left < 0:
                raise ValueError("it has more messages in it than its size allows")
            if isinstance(value, dict):
                parts = self._parts_of(value, descriptor)
                waiting += [(each, parts.get(name)) for name, each in value.items()]
            elif isinstance(value, list):
                waiting += [(each, descriptor) for each in value]

    def _named(self, value: Any) -> Any:
        """The type that an ``Any`` says it has."""
        name = value.get("@type") if isinstance(value, dict) else None
        try:
            return self._pool.FindMessageTypeByName(str(name).rpartition("/")[2])
        except KeyError:
            return None

    def _parts_of(self, value: dict[str, Any], descriptor: Any) -> dict[str, Any]:
        """The types of the messages that stand in an object, by the names that it has for them."""
        if descriptor is None:
            return {}
        if descriptor.full_name in _OWN:
            return {"value": descriptor} if descriptor.full_name == _ANY else {}
        if descriptor.GetOptions().map_entry:
            return dict.fromkeys(value, descriptor.fields_by_name["value"].message_type)
        if any(name.startswith("[") for name in value):
            raise ValueError("extensions are not read from JSON here")
        found = self._parts.get(descriptor.full_name)
        if found is None:
            found = self._parts[descriptor.full_name] = {}
            for field in descriptor.fields:
                found[field.json_name] = found[field.name] = field.message_type
        return found


def read_compiled(compiled: bytes, root: str) -> ProtobufSchema:
    """The schema of a ``FileDescriptorSet`` and a message in it; ``SchemaError`` if it is none."""
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(compiled)
        for file in files.file:
            pool.Add(file)
        found = pool.FindMessageTypeByName(root)
    except message.DecodeError:
        raise SchemaError("compiled_bytes is no FileDescriptorSet") from None
    except KeyError:
        raise SchemaError(f"compiled_bytes has no message {root[:100]!r}") from None
    except TypeError as error:
        raise SchemaError(f"compiled_bytes cannot be used: {error}") from None
    _check_own(pool)
    return ProtobufSchema(pool, message_factory.GetMessageClass(found))


def _check_own(pool: Any) -> None:
    """Refuses types that have the name of one of the library's, and are not as it has them."""
    for name, own in _OWN.items():
        try:
            found = pool.FindMessageTypeByName(name)
        except KeyError:
            continue
        if _fields_in(found) != _fields_in(own):
            raise SchemaError(f"its {name} is not as Google defines that")
    try:
        wrappers = pool.FindFileByName(_WRAPPERS)
    except KeyError:
        return
    for name, found in wrappers.message_types_by_name.items():
        if found.full_name not in _OWN or found.nested_types:
            raise SchemaError(f"its {_WRAPPERS} has a message {name[:100]!r} of its own")


def _fields_in(descriptor: Any) -> set[tuple[object, ...]]:
    return {
        (field.name, field.number, field.type, field.is_repeated) for field in descriptor.fields
    }
