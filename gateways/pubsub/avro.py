"""Avro schemas, and whether a message is of one: by its binary encoding, or by its JSON. Pure.

A message is walked through and nothing is built of it. The libraries that decode Avro are not used
for it: they believe lengths and nesting that a publisher made up, and end the process over them.
Here a value may be nested so deep and no deeper, and a length is never more than what is there.
A schema can make a short message into endless work (records that double and take no bytes, unions
of which every type is tried), so there is a bound on the steps of each check as well.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Final

from asterism.gateways.pubsub.json_texts import read_json

DEPTH_MAX: Final = 100  # of a schema, and of a message
STEPS: Final = 1_000  # that a check of any message may take
STEPS_A_BYTE: Final = 8  # and besides, for each byte of it; values take one each but for null
DEFAULT_STEPS: Final = 50_000  # that all defaults of a definition may take together
NAME_CHARACTERS_MAX: Final = 1_024  # with its namespace
WHY_CHARACTERS_MAX: Final = 500
_SHOWN_MAX: Final = 10  # types of a union that a refusal lists
_INT: Final = (-(1 << 31), (1 << 31) - 1)
_LONG: Final = (-(1 << 63), (1 << 63) - 1)
_VARINT_BYTES_MAX: Final = 10
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SchemaError(ValueError):
    """A definition that is no Avro schema; it says why."""


class MismatchError(ValueError):
    """A message that is not of the schema; it says where and why."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.steps: list[str] = []  # to the value, the innermost first

    def __str__(self) -> str:
        where = "".join(reversed(self.steps)).lstrip(".")
        text = f"{_short(where)}: {_short(self.why)}" if where else _short(self.why)
        return text.encode(errors="backslashreplace").decode()  # it may hold half a character


def _short(text: str) -> str:
    return text if len(text) <= WHY_CHARACTERS_MAX else f"{text[:WHY_CHARACTERS_MAX]} and so on"


class _Steps:
    """What is left of the work that a check may be."""

    __slots__ = ("_left",)

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _TooMuchError("to check it takes more steps than its size allows")


class _TooMuchError(MismatchError):
    """No other type of a union is tried behind this."""


# --- binary ---------------------------------------------------------------------------------------


class _Data:
    """The bytes of a message, and how far they were read."""

    __slots__ = ("at", "data", "depth", "steps")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.depth = 0
        self.steps = _Steps(STEPS + STEPS_A_BYTE * len(data))

    def skip(self, count: int) -> None:
        if count > len(self.data) - self.at:
            raise MismatchError("the message ends too soon")
        self.at += count

    def whole(self, bounds: tuple[int, int] = _LONG) -> int:
        """A number, which Avro writes in groups of seven bits, the lowest first."""
        found = shift = 0
        for byte in self.data[self.at : self.at + _VARINT_BYTES_MAX]:
            self.at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        else:
            if shift < 7 * _VARINT_BYTES_MAX:
                raise MismatchError("the message ends too soon")
        number = (found >> 1) ^ -(found & 1)
        if not bounds[0] <= number <= bounds[1]:
            raise MismatchError("a number is out of range")
        return number

    def length(self) -> int:
        found = self.whole()
        if found < 0:
            raise MismatchError("a length is negative")
        return found

    def enter(self) -> None:
        self.steps.take()
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise MismatchError(f"the message is nested deeper than {DEPTH_MAX}")


# --- types ----------------------------------------------------------------------------------------


class Type:
    """A type of a schema."""

    name = ""  # by which a value of a union says which type it is of

    def skip(self, data: _Data) -> None:
        """Reads a value from its binary encoding."""
        raise NotImplementedError

    def check(self, value: Any, defaults: _Steps | None, depth: int) -> None:
        """Checks a value of the JSON encoding; or a default as a schema has it, by such steps."""
        raise NotImplementedError


class Primitive(Type):
    """A type without parts: how it is read, and which values of JSON it has."""

    def __init__(
        self, name: str, skip: Callable[[_Data], object], matches: Callable[[Any], bool]
    ) -> None:
        self.name = name
        self._skip = skip
        self._matches = matches

    def skip(self, data: _Data) -> None:
        self._skip(data)

    def check(self, value: Any, defaults: _Steps | None, depth: int) -> None:
        if not self._matches(value):
            raise _unlike(self.name, value)


class Fixed(Type):
    """So many bytes."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self._size = size

    def skip(self, data: _Data) -> None:
        data.skip(self._size)

    def check(self, value: Any, defaults: _Steps | None, depth: int) -> None:
        if not isinstance(value, str) or len(value) != self._size or not _is_octets(value):
            raise _unlike(f"{self._size} bytes of {self.name}", value)


class Enumeration(Type):
    """One of some symbols."""

    def __init__(self, name: str, symbols: list[str]) -> None:
        self.name = name
        self._symbols = frozenset(symbols)

    def skip(self, data: _Data) -> None:
        if not 0 <= data.whole() < len(self._symbols):
            raise MismatchError(f"it is no symbol of {self.name}")

    def check(self, value: Any, defaults: _Steps | None, depth: int) -> None:
        if not isinstance(value, str) or value not in self._symbols:
            raise _unlike(f"a symbol of {self.name}", value)


class Record(Type):
    """Fields, each with a name and a type. They are filled in behind, as they may name it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: dict[str, Type] = {}
        self.defaults: set[str] = set()  # fields that have one

    def skip(self, data: _Data) -> None:
        data.enter()
        for name, kind in self.fields.items():
            data.steps.take()
            try:
                kind.skip(data)
            except MismatchError as error:
                raise _within(error, f".{name}") from None
        data.depth -= 1

    def check(self, value: Any, defaults: _Steps | None, depth: int) -> None:
        _check_depth(depth, defaults)
        if not isinstance(value, dict):
            raise _unlike(f"the record {self.name}", value)
        for name, kind in self.fields.items():
            if name not in value:
                if defaults is not None and name in self.defaults:
                    continue
                raise _within(MismatchError("the field is missing"), f".{name}")
            try:
                kind.check(value[name], defaults, depth + 1)
            except MismatchError as error:
                raise _within(error, f".{name}") from None


class Array(Type):
    """Any number of items; as a map, each of them with a key."""

    def __init__(self, items: Type, is_map: bool) -> None:
        self.name = "map" if is_map else "array"
        self._items = items
        self._is_map = is_map

    def skip(self, data: _Data) -> None:
        data.enter()
        while count := data.whole():
            if count < 0:  # then the block's size in bytes follows
                count = -count
                data.length()
            self._skip_block(data, count)
        data.depth -= 1

    def _skip_block(self, data: _Data, count: int) -> None:
        for _ in range(count):
            before = data.at
            data.steps.take()
            if self._is_map:
                _skip_text(data)
            self._items.skip(data)
            if data.at == before:
                return  # items that take no bytes, however many there are said to be

    def check(self, value: Any, defaults: _Steps | None, depth: int) -> None:
        _check_depth(depth, defaults)
        if not isinstance(value, dict if self._is_map else list):
            raise _unlike(f"a {self.name}" if self._is_map else f"an {self.name}", value)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for at, item in items:
            try:
                self._items.check(item, defaults, depth + 1)
            except MismatchError as error:
                raise _within(error, f"[{at!r}]") from None


class Union(Type):
    """A value of one of some types; JSON names the type, but for null."""

    name = "union"

    def __init__(self, branches: list[Type]) -> None:
        self._branches = branches
        self._named = {branch.name: branch for branch in branches}

    @property
    def _names(self) -> str:
        rest = ["and so on"] if len(self._branches) > _SHOWN_MAX else []
        return ", ".join([*(branch.name for branch in self._branches[:_SHOWN_MAX]), *rest])

    def skip(self, data: _Data) -> None:
        data.enter()
        chosen = data.whole()
        if not 0 <= chosen < len(self._branches):
            raise MismatchError(f"it is none of {self._names}")
        self._branches[chosen].skip(data)
        data.depth -= 1

    def check(self, value: Any, defaults: _Steps | None, depth: int) -> None:
        _check_depth(depth, defaults)
        if defaults is not None:
            self._check_default(value, defaults, depth)
        elif value is None and "null" in self._named:
            return
        elif not isinstance(value, dict) or len(value) != 1:
            raise MismatchError(
                f'it must be {{"TYPE": VALUE}} with a type of {self._names}, not {_shown(value)}'
            )
        else:
            name, inner = next(iter(value.items()))
            if name not in self._named or name == "null":
                raise MismatchError(f"{_shown(name)} is none of {self._names}")
            self._named[name].check(inner, None, depth + 1)

    def _check_default(self, value: Any, steps: _Steps, depth: int) -> None:
        for branch in self._branches:
            steps.take()
            try:
                return branch.check(value, steps, depth + 1)
            except _TooMuchError:
                raise
            except MismatchError:
                continue
        raise MismatchError(f"it is none of {self._names}")


def _within(error: MismatchError, step: str) -> MismatchError:
    error.steps.append(step)
    return error


def _unlike(wanted: str, value: Any) -> MismatchError:
    return MismatchError(f"it must be {wanted}, not {_shown(value)}")


def _check_depth(depth: int, defaults: _Steps | None) -> None:
    if defaults is not None:
        defaults.take()
    if depth > DEPTH_MAX:
        raise MismatchError(f"the message is nested deeper than {DEPTH_MAX}")


def _shown(value: Any) -> str:
    """A value of JSON as a sentence may have it: short."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    text = json.dumps(value[:61] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:60] + " and so on"


# --- primitive types ------------------------------------------------------------------------------


def _skip_boolean(data: _Data) -> None:
    data.skip(1)
    if data.data[data.at - 1] > 1:
        raise MismatchError("it is no boolean")


def _skip_octets(data: _Data) -> None:
    data.skip(data.length())


def _skip_text(data: _Data) -> None:
    size = data.length()
    data.skip(size)
    try:
        data.data[data.at - size : data.at].decode()
    except UnicodeDecodeError:
        raise MismatchError("a text is not valid UTF-8") from None


def _is_whole(value: Any, bounds: tuple[int, int]) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    is_whole = isinstance(value, int) or value.is_integer()
    return is_whole and bounds[0] <= value <= bounds[1]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_octets(value: Any) -> bool:
    """Bytes are text in JSON, each a character of Latin 1."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


_PRIMITIVES: Final = {
    kind.name: kind
    for kind in (
        Primitive("null", lambda data: None, lambda value: value is None),
        Primitive("boolean", _skip_boolean, lambda value: isinstance(value, bool)),
        Primitive("int", lambda data: data.whole(_INT), lambda value: _is_whole(value, _INT)),
        Primitive("long", lambda data: data.whole(), lambda value: _is_whole(value, _LONG)),
        Primitive("float", lambda data: data.skip(4), _is_number),
        Primitive("double", lambda data: data.skip(8), _is_number),
        Primitive("bytes", _skip_octets, _is_octets),
        Primitive("string", _skip_text, lambda value: isinstance(value, str)),
    )
}


# --- definitions ----------------------------------------------------------------------------------


class Schema:
    """A schema that was read from its definition."""

    def __init__(self, root: Type) -> None:
        self._root = root

    def check_binary(self, data: bytes) -> None:
        """Refuses what is not the binary encoding of one value, by ``MismatchError``."""
        reading = _Data(data)
        self._root.skip(reading)
        if reading.at != len(data):
            raise MismatchError(f"{len(data) - reading.at} bytes follow behind the message")

    def check_json(self, data: bytes) -> None:
        """Refuses what is not the JSON encoding of one value, by ``MismatchError``.

        Fields that a record does not have are passed over, as Google's service does.
        """
        try:
            value = read_json(data)
        except (ValueError, RecursionError):
            raise MismatchError("the message is not valid JSON") from None
        self._root.check(value, None, 0)


def read_schema(definition: str) -> Schema:
    """The schema of a definition; ``SchemaError`` where it is none."""
    try:
        found = json.loads(definition)
    except (ValueError, RecursionError):
        raise SchemaError("the definition is not valid JSON") from None
    reader = _Reader()
    root = reader.read(found, "", 0)
    reader.check_defaults()
    return Schema(root)


class _Reader:
    """Reads one definition, with the names that it gives to types."""

    def __init__(self) -> None:
        self._named: dict[str, Type] = {}
        self._defaults: list[tuple[str, Type, Any]] = []  # looked at when every type is complete

    def read(self, found: Any, namespace: str, depth: int) -> Type:
        if depth > DEPTH_MAX:
            raise SchemaError(f"the definition is nested deeper than {DEPTH_MAX}")
        if isinstance(found, str):
            return self._find(found, namespace)
        if isinstance(found, list):
            return self._read_union(found, namespace, depth)
        if not isinstance(found, dict):
            raise SchemaError(f"{_shown(found)} is no type")
        kind = found.get("type")
        if kind == "record":
            return self._read_record(found, namespace, depth)
        if kind in ("array", "map"):
            items = self._part(found, "items" if kind == "array" else "values")
            return Array(self.read(items, namespace, depth + 1), kind == "map")
        if kind in ("enum", "fixed"):
            return self._read_small(kind, found, namespace)
        if kind is None:
            raise SchemaError("a type has no type")
        return self.read(kind, namespace, depth + 1)

    def check_defaults(self) -> None:
        steps = _Steps(DEFAULT_STEPS)
        for name, kind, value in self._defaults:
            try:
                kind.check(value, steps, 0)
            except MismatchError as error:
                raise SchemaError(f"the default of {name} is not of its type: {error}") from None

    def _find(self, name: str, namespace: str) -> Type:
        whole = f"{namespace}.{name}" if namespace and "." not in name else name
        found = _PRIMITIVES.get(name) or self._named.get(whole) or self._named.get(name)
        if found is None:
            raise SchemaError(f"there is no type {_shown(name)}")
        return found

    def _part(self, found: dict[str, Any], key: str) -> Any:
        if key not in found:
            raise SchemaError(f"the {_shown(found['type'])} has no {key}")
        return found[key]

    def _name(self, found: dict[str, Any], namespace: str) -> tuple[str, str]:
        """The whole name of a type, and the namespace of what is in it."""
        name, own = self._part(found, "name"), found.get("namespace", namespace)
        if not isinstance(name, str) or not isinstance(own, str):
            raise SchemaError("name and namespace of a type must be text")
        whole = name if "." in name or not own else f"{own}.{name}"
        is_short = len(whole) <= NAME_CHARACTERS_MAX
        if not is_short or not all(_NAME.fullmatch(part) for part in whole.split(".")):
            raise SchemaError(f"{_shown(whole)} cannot be the name of a type")
        if whole in self._named or whole in _PRIMITIVES:
            raise SchemaError(f"there are two types {_shown(whole)}")
        return whole, whole.rpartition(".")[0]

    def _read_record(self, found: dict[str, Any], namespace: str, depth: int) -> Type:
        name, inner = self._name(found, namespace)
        self._named[name] = record = Record(name)
        fields = self._part(found, "fields")
        if not isinstance(fields, list):
            raise SchemaError(f"the fields of {name} must be a list")
        for field in fields:
            if not isinstance(field, dict) or "type" not in field:
                raise SchemaError(f"a field of {name} has no type")
            own = field.get("name")
            if not isinstance(own, str) or not _NAME.fullmatch(own) or own in record.fields:
                raise SchemaError(f"{_shown(own)} cannot be the name of a field of {name}")
            record.fields[own] = kind = self.read(field["type"], inner, depth + 1)
            if "default" in field:
                record.defaults.add(own)
                self._defaults.append((f"{name}.{own}", kind, field["default"]))
        return record

    def _read_small(self, kind: str, found: dict[str, Any], namespace: str) -> Type:
        name, _ = self._name(found, namespace)
        if kind == "fixed":
            size = self._part(found, "size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise SchemaError(f"the size of {name} must be a whole number")
            self._named[name] = fixed = Fixed(name, size)
            return fixed
        symbols = self._part(found, "symbols")
        is_list = isinstance(symbols, list) and bool(symbols)
        if not is_list or not all(
            isinstance(each, str) and _NAME.fullmatch(each) for each in symbols
        ):
            raise SchemaError(f"the symbols of {name} must be names")
        if len(set(symbols)) != len(symbols):
            raise SchemaError(f"{name} has a symbol twice")
        self._named[name] = enumeration = Enumeration(name, symbols)
        return enumeration

    def _read_union(self, found: list[Any], namespace: str, depth: int) -> Type:
        if not found:
            raise SchemaError("a union needs at least one type")
        branches = [self.read(each, namespace, depth + 1) for each in found]
        names = [branch.name for branch in branches]
        if "union" in names:
            raise SchemaError("a union cannot have a union in it")
        if len(set(names)) != len(names):
            raise SchemaError(f"a union has a type twice: {_short(', '.join(names))}")
        return Union(branches)
