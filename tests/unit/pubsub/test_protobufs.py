"""Protocol Buffer schemas that come compiled."""

import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from asterism.gateways.pubsub.avro import MismatchError, SchemaError
from asterism.gateways.pubsub.protobufs import read_compiled

STRING, INT32, MESSAGE = 9, 5, 11


def compiled() -> bytes:
    """What protoc makes of a message with a text, a number and a moment."""
    files: Any = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=STRING, label=1)
    order.field.add(name="count", number=2, type=INT32, label=1)
    order.field.add(
        name="at",
        number=3,
        type=MESSAGE,
        label=1,
        type_name=".google.protobuf.Timestamp",
    )
    return bytes(files.SerializeToString())


GOOD: Any = {"id": "a", "count": 2, "at": "2026-01-01T00:00:00Z"}


def test_messages_of_the_schema_pass() -> None:
    schema = read_compiled(compiled(), "shop.Order")
    schema.check_json(json.dumps(GOOD).encode())
    schema.check_json(b"{}")
    schema.check_binary(b"\x0a\x01a\x10\x02")
    schema.check_binary(b"")


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff", b"[]", b'{"id": 1}', b'{"colour": 1}', b'{"at": "x"}', b"[" * 10_000],
)
def test_json_that_is_not_of_it_is_refused(data: bytes) -> None:
    with pytest.raises(MismatchError, match=r"it is no shop\.Order"):
        read_compiled(compiled(), "shop.Order").check_json(data)


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05a", b"\x0a\x01\xff"])
def test_bytes_that_are_not_of_it_are_refused(data: bytes) -> None:
    with pytest.raises(MismatchError, match=r"it is no shop\.Order"):
        read_compiled(compiled(), "shop.Order").check_binary(data)


def test_what_is_not_compiled_is_refused() -> None:
    with pytest.raises(SchemaError, match="is no FileDescriptorSet"):
        read_compiled(b"\xff", "shop.Order")
    with pytest.raises(SchemaError, match=r"has no message 'shop\.Nope'"):
        read_compiled(compiled(), "shop.Nope")
    with pytest.raises(SchemaError, match="has no message"):
        read_compiled(b"", "")
    files = descriptor_pb2.FileDescriptorSet.FromString(compiled())
    del files.file[0]  # what it depends on
    with pytest.raises(SchemaError, match="cannot be used"):
        read_compiled(files.SerializeToString(), "shop.Order")
