"""Which messages are of an Avro schema: held against the library that writes Avro."""

import io
import json
from typing import Any

import fastavro
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.gateways.pubsub.avro import MismatchError, read_schema

PRIMITIVES = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "bytes": st.binary(max_size=6),
    "string": st.text(max_size=6),
}
# Types without a name: what has one is named anew wherever it stands.
KINDS: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.sampled_from(sorted(PRIMITIVES)),
        st.tuples(st.just("enum"), st.integers(1, 3)),
        st.tuples(st.just("fixed"), st.integers(0, 4)),
    ),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["array", "map"]), inner),
        st.tuples(st.just("record"), st.lists(inner, max_size=3)),
        st.tuples(st.just("union"), inner),
    ),
    max_leaves=8,
)


def named(kind: Any, names: Any) -> Any:
    """A kind as a definition has it."""
    match kind:
        case str():
            return kind
        case ("enum", count):
            symbols = [f"S{at}" for at in range(count)]
            return {"type": "enum", "name": f"N{next(names)}", "symbols": symbols}
        case ("fixed", size):
            return {"type": "fixed", "name": f"N{next(names)}", "size": size}
        case ("array", inner):
            return {"type": "array", "items": named(inner, names)}
        case ("map", inner):
            return {"type": "map", "values": named(inner, names)}
        case ("record", inner):
            name = f"N{next(names)}"
            fields = [{"name": f"f{at}", "type": named(e, names)} for at, e in enumerate(inner)]
            return {"type": "record", "name": name, "fields": fields}
        case ("union", inner):
            # Two types at most, that nobody takes for each other.
            if inner == "null" or inner[0] == "union":
                return ["null"]
            return ["null", named(inner, names)]
    raise AssertionError(kind)


def values(definition: Any) -> st.SearchStrategy[Any]:
    """The values of a definition, as the library has them."""
    if isinstance(definition, str):
        return PRIMITIVES[definition]
    if isinstance(definition, list):
        return st.one_of(*(values(branch) for branch in definition))
    match definition["type"]:
        case "enum":
            return st.sampled_from(definition["symbols"])
        case "fixed":
            return st.binary(min_size=definition["size"], max_size=definition["size"])
        case "array":
            return st.lists(values(definition["items"]), max_size=3)
        case "map":
            return st.dictionaries(st.text(max_size=3), values(definition["values"]), max_size=3)
    fields = {field["name"]: values(field["type"]) for field in definition["fields"]}
    return st.fixed_dictionaries(fields)


DEFINITIONS = KINDS.map(lambda kind: named(("record", [kind]), iter(range(1_000))))
MESSAGES = DEFINITIONS.flatmap(lambda found: st.tuples(st.just(found), values(found)))


def encoded(definition: Any, value: Any) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, definition, value)
    return written.getvalue()


def is_of(definition: Any, data: bytes) -> bool:
    try:
        read_schema(json.dumps(definition)).check_binary(data)
    except MismatchError:
        return False
    return True


@given(MESSAGES)
def test_what_the_library_writes_as_binary_is_of_the_schema(message: tuple[Any, Any]) -> None:
    assert is_of(message[0], encoded(*message))


def as_json(definition: Any, value: Any) -> Any:
    """A value in the JSON encoding. The library's own loses empty records and empty keys."""
    if isinstance(definition, list):
        if value is None:
            return None
        (kind,) = definition[1:]
        name = kind if isinstance(kind, str) else kind.get("name", kind["type"])
        return {name: as_json(kind, value)}
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(definition, str):
        return value
    match definition["type"]:
        case "array":
            return [as_json(definition["items"], item) for item in value]
        case "map":
            return {key: as_json(definition["values"], item) for key, item in value.items()}
        case "record":
            fields = definition["fields"]
            return {each["name"]: as_json(each["type"], value[each["name"]]) for each in fields}
    return value


@given(MESSAGES)
def test_a_value_as_json_is_of_the_schema(message: tuple[Any, Any]) -> None:
    definition, value = message
    data = json.dumps(as_json(definition, value)).encode()
    read_schema(json.dumps(definition)).check_json(data)


@settings(max_examples=300)
@given(MESSAGES, st.data())
def test_what_is_taken_can_be_read_and_what_is_cut_short_is_not_taken(
    message: tuple[Any, Any], data: st.DataObject
) -> None:
    definition, value = message
    whole = encoded(definition, value)
    at = data.draw(st.integers(0, max(len(whole) - 1, 0)))
    changed = whole[:at] + data.draw(st.binary(max_size=2)) + whole[at + 1 :]
    for candidate in (changed, whole[:at]):
        if is_of(definition, candidate):
            read = io.BytesIO(candidate)
            fastavro.schemaless_reader(read, definition)
            assert read.tell() == len(candidate)


@given(DEFINITIONS, st.binary(max_size=30))
def test_any_bytes_are_taken_or_refused(definition: Any, data: bytes) -> None:
    is_of(definition, data)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["f0", "type", "name", "int", "x"]), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(DEFINITIONS, JSON)
def test_any_json_is_taken_or_refused(definition: Any, value: Any) -> None:
    try:
        read_schema(json.dumps(definition)).check_json(json.dumps(value).encode())
    except MismatchError as error:
        assert str(error)
