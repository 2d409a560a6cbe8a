"""Protocol Buffer schemas: which messages are of one, where the schema comes compiled. Pure.

A ``FileDescriptorSet`` says all of a schema that the protobuf library needs. A definition as text
would have to be compiled, and the library does not do that: such a schema is kept, and messages
are not held against it.
"""

import json
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory

from asterism.gateways.pubsub.avro import MismatchError, SchemaError


class ProtobufSchema:
    """A schema that came compiled."""

    def __init__(self, pool: Any, message_type: Any) -> None:
        self._pool = pool
        self._type = message_type

    def check_binary(self, data: bytes) -> None:
        """Refuses what is not the binary encoding of a message, by ``MismatchError``."""
        try:
            self._type.FromString(data)
        except message.DecodeError as error:
            raise MismatchError(f"it is no {self._type.DESCRIPTOR.full_name}: {error}") from None

    def check_json(self, data: bytes) -> None:
        """Refuses what is not the JSON of a message, by ``MismatchError``."""
        try:
            value = json.loads(data)
            if not isinstance(value, dict):
                raise ValueError("it is no object")
            json_format.ParseDict(value, self._type(), descriptor_pool=self._pool)
        except (json_format.ParseError, ValueError, RecursionError) as error:
            raise MismatchError(f"it is no {self._type.DESCRIPTOR.full_name}: {error}") from None


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
    return ProtobufSchema(pool, message_factory.GetMessageClass(found))
