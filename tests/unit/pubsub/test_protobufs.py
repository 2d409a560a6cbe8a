"""Protocol Buffer schemas that come compiled."""

import json
import resource
import time
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


FIXED64 = 6


def wide() -> bytes:
    """A message of a few bytes in whose list each has room for thousands of fields."""
    files: Any = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="wide.proto", syntax="proto3")
    each = file.message_type.add(name="Wide")
    for at in range(3_000):
        each.field.add(name=f"f{at}", number=at + 1, label=1, type=FIXED64)
    root = file.message_type.add(name="Root")
    root.field.add(name="w", number=1, label=3, type=MESSAGE, type_name=".Wide")
    return bytes(files.SerializeToString())


def test_a_message_with_many_in_it_takes_no_memory_in_binary() -> None:
    schema = read_compiled(wide(), "Root")
    before_bytes = peak_bytes()
    schema.check_binary(b"\x0a\x00" * 20_000)
    assert peak_bytes() - before_bytes < 50_000_000  # with the library it was 500 MB


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


def test_a_message_with_many_in_it_is_given_up_soon_in_json() -> None:
    schema = read_compiled(wide(), "Root")
    schema.check_json(b'{"w": [{}, {"f1": "2"}]}')
    began_s = time.monotonic()
    with pytest.raises(MismatchError, match="more messages in it than its size allows"):
        schema.check_json(b'{"w": [' + b"{}," * 100_000 + b"{}]}")
    assert time.monotonic() - began_s < 2
    with pytest.raises(MismatchError, match="extensions are not read"):
        schema.check_json(b'{"[a.b]": []}')


@pytest.mark.parametrize(
    "name", ["Timestamp", "Duration", "Struct", "Value", "FieldMask", "ListValue", "Any"]
)
def test_a_type_of_googles_that_is_not_as_it_has_it_is_refused(name: str) -> None:
    files: Any = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="own.proto", package="google.protobuf", syntax="proto3")
    file.message_type.add(name=name).field.add(name="x", number=1, label=1, type=STRING)
    kind = f".google.protobuf.{name}"
    root = file.message_type.add(name="Root")
    root.field.add(name="w", number=1, label=1, type=MESSAGE, type_name=kind)
    with pytest.raises(SchemaError, match=f"{name} is not as Google defines that"):
        read_compiled(files.SerializeToString(), "google.protobuf.Root")


def test_a_wrapper_that_google_has_not_is_refused() -> None:
    files: Any = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="google/protobuf/wrappers.proto", syntax="proto3")
    file.message_type.add(name="Mine")
    with pytest.raises(SchemaError, match="has a message 'Mine' of its own"):
        read_compiled(files.SerializeToString(), "Mine")


def test_half_a_character_is_refused_by_words_that_can_be_sent() -> None:
    for data in (b'{"\\ud800": 1}', b'{"id": "\\ud800"}'):
        with pytest.raises(MismatchError) as caught:
            read_compiled(compiled(), "shop.Order").check_json(data)
        assert str(caught.value).encode()
