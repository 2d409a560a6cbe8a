"""Bytes that are walked as protobuf, held against what the protobuf library says of them."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from hypothesis import example, given
from hypothesis import strategies as st

from asterism.gateways.pubsub import wire

DOUBLE, INT64, FIXED32, BOOL, STRING, GROUP, MESSAGE, BYTES = 1, 3, 7, 8, 9, 10, 11, 12
OPTIONAL, REPEATED = 1, 3


def _made(syntax: str) -> Any:
    """A message that has one of everything, itself included."""
    file: Any = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax=syntax)
    node = file.message_type.add(name="Node")
    kinds = (DOUBLE, INT64, FIXED32, BOOL, STRING, BYTES)
    for at, kind in enumerate(kinds):
        node.field.add(name=f"one{at}", number=1 + at, label=OPTIONAL, type=kind)
        node.field.add(name=f"many{at}", number=8 + at, label=REPEATED, type=kind)
    node.field.add(name="node", number=15, label=OPTIONAL, type=MESSAGE, type_name=".Node")
    entry = node.nested_type.add(name="NamedEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=OPTIONAL, type=STRING)
    entry.field.add(name="value", number=2, label=OPTIONAL, type=MESSAGE, type_name=".Node")
    name = ".Node.NamedEntry"
    node.field.add(name="named", number=14, label=REPEATED, type=MESSAGE, type_name=name)
    if syntax == "proto2":
        node.field.add(name="group", number=7, label=OPTIONAL, type=GROUP, type_name=".Node")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Node"))


MADE = {syntax: _made(syntax) for syntax in ("proto2", "proto3")}
SHAPES = {syntax: wire.shape_of(made.DESCRIPTOR) for syntax, made in MADE.items()}


def _sized(inner: bytes) -> bytes:
    return bytes((len(inner),)) + inner


def _tagged(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Fields of any number and type with what often fits behind, and often does not."""
    values = st.one_of(inner, inner.filter(lambda data: len(data) < 128).map(_sized))
    tags = st.integers(0, 127).map(lambda tag: bytes((tag,)))
    return st.lists(st.tuples(tags, values).map(b"".join), max_size=4).map(b"".join)


DATA = st.recursive(
    st.one_of(
        st.binary(max_size=12),
        st.sampled_from([b"", b"\xff", b"a", b"\x80" * 9 + b"\x01", b"\x00" * 8, b"\x3c"]),
    ),
    _tagged,
    max_leaves=12,
)


@given(DATA)
@example(b"\x7a\x00" * 200)
@example(b"\x7b" * 100 + b"\x7c" * 100)
@example(b"\x7b" * 101 + b"\x7c" * 101)
@example(b"\x3b\x2a\x01\xff\x3c")
@example(b"\x72\x03\x0a\x01\xff")
@example(b"\x2a\x01\xff")
def test_a_walk_says_what_the_library_says(data: bytes) -> None:
    for syntax, made in MADE.items():
        try:
            made.FromString(data)
            is_well = True
        except message.DecodeError:
            is_well = False
        try:
            wire.check(SHAPES[syntax], data)
            is_walked = True
        except wire.WireError:
            is_walked = False
        assert is_walked == is_well, (syntax, data)


@given(st.integers(95, 105))
def test_messages_are_nested_as_deep_as_in_the_library(depth: int) -> None:
    data = b""
    for _ in range(depth):
        size = len(data)
        sized = bytes((size & 127 | 128, size >> 7)) if size > 127 else bytes((size,))
        data = b"\x7a" + sized + data
    test_a_walk_says_what_the_library_says.hypothesis.inner_test(data)  # type: ignore[attr-defined]
