"""Avro schemas, and messages that are of one or are not."""

import json
import time
from typing import Any

import pytest

from asterism.gateways.pubsub.avro import DEPTH_MAX, MismatchError, Schema, SchemaError, read_schema

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "count", "type": "int", "default": 1},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "prices", "type": {"type": "map", "values": "double"}},
        {"name": "digest", "type": {"type": "fixed", "name": "Digest", "size": 2}},
        {"name": "next", "type": ["null", "Order"]},
    ],
}
GOOD = {
    "id": 7,
    "count": 2,
    "note": {"string": "x"},
    "state": "NEW",
    "tags": ["a", "b"],
    "prices": {"eur": 1.5},
    "digest": "\u00ff\u0000",
    "next": None,
}
GOOD_BYTES = (
    b"\x0e\x04\x02\x02x\x00\x04\x02a\x02b\x00"
    b"\x02\x06eur\x00\x00\x00\x00\x00\x00\xf8?\x00\xff\x00\x00"
)
BOXES = {
    "type": "record",
    "name": "Box",
    "fields": [{"name": "box", "type": ["null", "Box"]}],
}


def schema(definition: Any) -> Schema:
    return read_schema(json.dumps(definition))


def mismatch(definition: Any, message: Any) -> str:
    """Why a message is refused: bytes as binary, all else as JSON."""
    with pytest.raises(MismatchError) as caught:
        if isinstance(message, bytes):
            schema(definition).check_binary(message)
        else:
            schema(definition).check_json(json.dumps(message).encode())
    return str(caught.value)


def test_a_message_of_the_schema_passes() -> None:
    schema(ORDER).check_json(json.dumps(GOOD).encode())
    schema(ORDER).check_json(json.dumps(GOOD, indent=2).encode())
    schema(ORDER).check_json(json.dumps({**GOOD, "next": {"shop.Order": GOOD}}).encode())
    schema(ORDER).check_binary(GOOD_BYTES)


def test_fields_that_the_schema_does_not_have_are_passed_over() -> None:
    schema(ORDER).check_json(json.dumps({**GOOD, "colour": "red"}).encode())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"id": "7"}, 'id: it must be long, not "7"'),
        ({"id": True}, "id: it must be long, not true"),
        ({"id": 7.5}, "id: it must be long, not 7.5"),
        ({"id": 1 << 63}, "id: it must be long, not 9223372036854775808"),
        ({"count": 1 << 31}, "count: it must be int, not 2147483648"),
        ({"note": "x"}, 'note: it must be {"TYPE": VALUE} with a type of null, string, not "x"'),
        ({"note": {"int": 1}}, 'note: "int" is none of null, string'),
        ({"note": {"null": None}}, 'note: "null" is none of null, string'),
        ({"note": {"string": 1}}, "note: it must be string, not 1"),
        ({"note": {}}, "an object"),
        ({"state": "OLD"}, 'state: it must be a symbol of shop.State, not "OLD"'),
        ({"tags": {"a": 1}}, "tags: it must be an array, not an object"),
        ({"tags": ["a", 1]}, "tags[1]: it must be string, not 1"),
        ({"prices": {"eur": "1"}}, "prices['eur']: it must be double, not \"1\""),
        ({"prices": []}, "prices: it must be a map, not an array"),
        ({"digest": "abc"}, 'digest: it must be 2 bytes of shop.Digest, not "abc"'),
        ({"digest": "a\u0100"}, "digest: it must be 2 bytes"),
        ({"next": {"shop.Order": {}}}, "next.id: the field is missing"),
        ({"next": {"shop.Order": 5}}, "next: it must be the record shop.Order, not 5"),
    ],
)
def test_a_json_message_that_is_not_of_it_is_told_where(change: dict[str, Any], why: str) -> None:
    assert why in mismatch(ORDER, {**GOOD, **change})


@pytest.mark.parametrize("name", [name for name in GOOD])
def test_every_field_has_to_be_there(name: str) -> None:
    message = {key: value for key, value in GOOD.items() if key != name}
    assert mismatch(ORDER, message) == f"{name}: the field is missing"


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b"{} x", b"9" * 5_000])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(MismatchError, match="the message is not valid JSON"):
        schema(ORDER).check_json(data)


def test_a_binary_message_is_read_to_its_end_and_no_further() -> None:
    for end in range(len(GOOD_BYTES)):
        assert "ends too soon" in mismatch(ORDER, GOOD_BYTES[:end])
    assert mismatch(ORDER, GOOD_BYTES + b"ab") == "2 bytes follow behind the message"


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        ("boolean", b"\x02", "it is no boolean"),
        ("int", b"\x80\x80\x80\x80\x10", "a number is out of range"),
        ("long", b"\xff" * 10, "a number is out of range"),
        ("long", b"\xff" * 9 + b"\x02", "a number is out of range"),
        ("long", b"\xff" * 9, "the message ends too soon"),
        ("string", b"\x02\xff", "a text is not valid UTF-8"),
        ("string", b"\x01", "a length is negative"),
        ("bytes", b"\xfe\xff\xff\xff\x0f", "the message ends too soon"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "it is no symbol of E"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", "it is no symbol of E"),
        (["null", "int"], b"\x04", "it is none of null, int"),
        (["null", "int"], b"\x01", "it is none of null, int"),
        ({"type": "array", "items": "int"}, b"\x02\x02", "the message ends too soon"),
        ({"type": "map", "values": "int"}, b"\x02\x02a", "the message ends too soon"),
    ],
)
def test_a_binary_message_that_is_not_of_it_is_refused(kind: Any, data: bytes, why: str) -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
    assert mismatch(record, data) == f"f: {why}"
    assert mismatch(kind, data) == why


def test_blocks_may_say_how_long_they_are() -> None:
    schema({"type": "array", "items": "int"}).check_binary(b"\x03\x04\x02\x04\x00")
    schema({"type": "map", "values": "int"}).check_binary(b"\x02\x02a\x02\x01\x06\x02b\x02\x00")


def test_numbers_are_as_large_as_they_may_be() -> None:
    for number in ((1 << 63) - 1, -(1 << 63)):
        schema("long").check_json(str(number).encode())
        zigzag = (number << 1) ^ (number >> 63)
        data = bytes(zigzag >> shift & 0x7F | 0x80 for shift in range(0, 63, 7))
        schema("long").check_binary(data + bytes((zigzag >> 63 & 1,)))


# A message may say anything about itself: none of this may cost much, or end the process.
@pytest.mark.parametrize(
    ("definition", "data"),
    [
        (BOXES, b"\x02" * 1_000_000 + b"\x00"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02"),
        ({"type": "array", "items": "long"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ({"type": "map", "values": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ({"type": "fixed", "name": "F", "size": 1 << 62}, b"x"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    ],
)
def test_a_message_that_lies_about_its_size_is_refused_at_once(
    definition: Any, data: bytes
) -> None:
    begin_s = time.perf_counter()
    assert mismatch(definition, data)
    assert time.perf_counter() - begin_s < 1


def test_items_that_take_no_bytes_are_taken_however_many() -> None:
    schema({"type": "array", "items": "null"}).check_binary(b"\xfe\xff\xff\xff\xff\x01\x00")


def test_messages_are_nested_so_deep_and_no_deeper() -> None:
    schema(BOXES).check_binary(b"\x02" * 40 + b"\x00")
    message: Any = None
    for _ in range(40):
        message = {"box": message and {"Box": message}}
    schema(BOXES).check_json(json.dumps(message).encode())
    for _ in range(200):
        message = {"box": {"Box": message}}
    assert f"nested deeper than {DEPTH_MAX}" in mismatch(BOXES, message)
    assert f"nested deeper than {DEPTH_MAX}" in mismatch(BOXES, b"\x02" * 200 + b"\x00")


def test_messages_may_be_as_long_as_they_like() -> None:
    """Only what is within each other counts as nested, not what follows."""
    item = {"type": "record", "name": "I", "fields": [{"name": "f", "type": ["null", "int"]}]}
    lists = {"type": "array", "items": {"type": "array", "items": item}}
    count = 10 * DEPTH_MAX
    zigzag = bytes((count * 2 & 0x7F | 0x80, count * 2 >> 7))
    schema(lists).check_binary(zigzag + b"\x02\x02\x02\x00" * count + b"\x00")
    schema(lists).check_json(json.dumps([[{"f": None}]] * count).encode())


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ("nope", 'there is no type "nope"'),
        (3, "3 is no type"),
        (None, "null is no type"),
        ({}, "a type has no type"),
        ([], "at least one type"),
        ({"type": "record", "fields": []}, "has no name"),
        ({"type": "record", "name": "R"}, "has no fields"),
        ({"type": "record", "name": "R", "fields": {}}, "must be a list"),
        ({"type": "record", "name": "R", "fields": [1]}, "has no type"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, "a field of R has no type"),
        ({"type": "record", "name": "R", "fields": [{"type": "int"}]}, "null cannot be the name"),
        ({"type": "record", "name": "1R", "fields": []}, '"1R" cannot be the name of a type'),
        ({"type": "record", "name": 1, "fields": []}, "must be text"),
        ({"type": "record", "name": "int", "fields": []}, 'two types "int"'),
        ({"type": "enum", "name": "E"}, "has no symbols"),
        ({"type": "enum", "name": "E", "symbols": []}, "must be names"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "a symbol twice"),
        ({"type": "enum", "name": "E", "symbols": ["1"]}, "must be names"),
        ({"type": "fixed", "name": "F"}, "has no size"),
        ({"type": "fixed", "name": "F", "size": -1}, "must be a whole number"),
        ({"type": "array"}, "has no items"),
        ({"type": "map"}, "has no values"),
        (["int", "int"], "a type twice: int, int"),
        (["int", ["null", "string"]], "a union in it"),
        ([{"type": "array", "items": "int"}, {"type": "array", "items": "long"}], "a type twice"),
    ],
)
def test_a_definition_that_is_no_schema_is_refused(definition: Any, why: str) -> None:
    with pytest.raises(SchemaError) as caught:
        schema(definition)
    assert why in str(caught.value)


def fields(*kinds: Any) -> Any:
    named = [{"name": f"f{at}", **kind} for at, kind in enumerate(kinds)]
    return {"type": "record", "name": "R", "fields": named}


def test_a_field_is_there_once() -> None:
    twice = {"name": "a", "type": "int"}
    with pytest.raises(SchemaError, match='"a" cannot be the name of a field of R'):
        schema({"type": "record", "name": "R", "fields": [twice, twice]})


def test_a_default_is_of_its_type() -> None:
    schema(fields({"type": ["null", "string"], "default": "x"}))
    schema(fields({"type": fields({"type": "int", "default": 1}) | {"name": "S"}, "default": {}}))
    for wrong in (
        {"type": "int", "default": "x"},
        {"type": ["null", "string"], "default": 1},
        {"type": {"type": "array", "items": "int"}, "default": ["x"]},
    ):
        with pytest.raises(SchemaError, match=r"the default of R\.f0 is not of its type"):
            schema(fields(wrong))


def test_a_name_may_be_used_again_in_its_namespace() -> None:
    inner = {"type": "fixed", "name": "a.b.F", "size": 1}
    found = schema(fields({"type": inner}, {"type": ["null", "a.b.F"]}))
    found.check_json(b'{"f0": "x", "f1": {"a.b.F": "y"}}')
    with pytest.raises(SchemaError, match="there is no type"):
        schema(fields({"type": inner}, {"type": "F"}))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\ud800"])
def test_a_definition_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        read_schema(text)


def test_a_definition_is_nested_so_deep_and_no_deeper() -> None:
    definition: Any = "int"
    for _ in range(DEPTH_MAX + 1):
        definition = {"type": "array", "items": definition}
    with pytest.raises(SchemaError, match="nested deeper than"):
        schema(definition)


def doubling(count: int) -> Any:
    """Records of which each has the one before twice, and the first has nothing."""
    found: Any = {"type": "record", "name": "R0", "fields": []}
    for at in range(1, count + 1):
        twice = [{"name": "a", "type": found}, {"name": "b", "type": f"R{at - 1}"}]
        found = {"type": "record", "name": f"R{at}", "fields": twice}
    return found


def test_records_that_double_and_take_no_bytes_are_given_up_soon() -> None:
    schema(doubling(5)).check_binary(b"")
    began_s = time.monotonic()
    assert "more steps than its size allows" in mismatch(doubling(30), b"")
    items = {"type": "array", "items": {"type": "map", "values": doubling(30)}}
    assert "more steps than its size allows" in mismatch(items, b"\x02\x02\x02a")
    assert time.monotonic() - began_s < 1


def test_a_message_of_many_small_values_is_within_its_steps() -> None:
    lists = {"type": "array", "items": ["null", {"type": "array", "items": "int"}]}
    schema(lists).check_binary(b"\xa0\x8d\x06" + b"\x02\x04\x02\x04\x00" * 50_000 + b"\x00")


def test_a_default_that_every_type_of_unions_is_tried_for_is_given_up_soon() -> None:
    default: Any = {}
    for _ in range(40):
        default = {"n": default}
    second = {"type": "record", "name": "B", "fields": [{"name": "n", "type": ["A", "B"]}]}
    first = {"type": "record", "name": "A", "fields": [{"name": "n", "type": ["A", second]}]}
    began_s = time.monotonic()
    with pytest.raises(SchemaError, match="more steps than its size allows"):
        schema(fields({"type": [first, "B"], "default": default}))
    assert time.monotonic() - began_s < 1


def test_a_refusal_is_short_and_can_be_sent() -> None:
    numbers = {"type": "map", "values": "int"}
    assert mismatch("string", "\ud800") == "the message is not valid JSON"
    assert len(mismatch(numbers, {"k" * 100_000: "x" * 100_000})) < 1_200
    many = [{"type": "fixed", "name": f"F{at}", "size": 1} for at in range(1_000)]
    assert len(mismatch(many, 1)) < 1_200


def test_a_name_has_a_bound() -> None:
    with pytest.raises(SchemaError, match="cannot be the name of a type"):
        schema({"type": "fixed", "name": "F", "namespace": "n" * 2_000, "size": 1})
