"""Schemas and their revisions, and the messages that are held against them. Pure.

A schema has the revisions that were committed to it, each with an id, the last one first. What a
topic takes is a message of any of the revisions that it allows; the last one is tried first. A
message that is taken gets attributes that name its schema, revision and encoding, as with Google's
service: subscribers decode it by them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from google.pubsub_v1.types import schema as types

from asterism.checks import shown
from asterism.gateways.pubsub.avro import MismatchError, SchemaError, read_schema
from asterism.gateways.pubsub.errors import Code, Refusal, invalid
from asterism.gateways.pubsub.protobufs import read_compiled

DEFINITION_BYTES_MAX: Final = 300 * 1_024
REVISIONS_MAX: Final = 20  # of one schema
SCHEMAS_MAX: Final = 10_000  # of one project
CHECKERS_MAX: Final = 1_024  # definitions that are kept read; past it all are read anew
ENCODING_ATTRIBUTE: Final = "googclient_schemaencoding"
NAME_ATTRIBUTE: Final = "googclient_schemaname"
REVISION_ATTRIBUTE: Final = "googclient_schemarevisionid"

PROTOCOL_BUFFER: Final = int(types.Schema.Type.PROTOCOL_BUFFER)
AVRO: Final = int(types.Schema.Type.AVRO)
JSON: Final = int(types.Encoding.JSON)
BINARY: Final = int(types.Encoding.BINARY)
_ENCODINGS: Final[Mapping[int, str]] = {JSON: "JSON", BINARY: "BINARY"}
_TYPES: Final[Mapping[int, str]] = {PROTOCOL_BUFFER: "PROTOCOL_BUFFER", AVRO: "AVRO"}


class Checker(Protocol):
    """What a message is held against; both raise ``MismatchError``."""

    def check_binary(self, data: bytes) -> None: ...

    def check_json(self, data: bytes) -> None: ...


def checker_of(schema: Any) -> Checker | None:
    """What messages of a ``Schema`` are held against; refuses a definition that is none.

    None: messages cannot be held against it, as it is a definition in the language of protobuf.
    """
    if schema.type_ not in _TYPES:
        raise invalid("schema.type must be AVRO or PROTOCOL_BUFFER.")
    compiled = schema.compiled_proto_schema
    size = max(len(schema.definition.encode()), len(compiled.compiled_bytes))
    if size > DEFINITION_BYTES_MAX:
        raise invalid(f"schema.definition has {size} bytes, over {DEFINITION_BYTES_MAX}.")
    is_compiled = schema.HasField("compiled_proto_schema")
    if is_compiled and schema.type_ != PROTOCOL_BUFFER:
        raise invalid("schema.compiled_proto_schema is for schemas of type PROTOCOL_BUFFER.")
    try:
        if schema.type_ == AVRO:
            return read_schema(schema.definition)
        if is_compiled:
            return read_compiled(compiled.compiled_bytes, compiled.root_message)
    except SchemaError as error:
        raise invalid(f"schema is not valid: {error}.") from None
    if not schema.definition.strip():
        raise invalid("schema.definition must not be empty.")
    return None


def check_message(checker: Checker, encoding: int, data: bytes) -> None:
    """Refuses, by ``MismatchError``, data that is not of a schema in this encoding."""
    (checker.check_json if encoding == JSON else checker.check_binary)(data)


class Checkers:
    """What messages are held against, by revision: read when it is first needed."""

    def __init__(self) -> None:
        self._read: dict[str, Checker | None] = {}

    def of(self, schema: Any) -> Checker | None:
        """What messages of this revision are held against."""
        key = f"{schema.name}@{schema.revision_id}"
        try:
            return self._read[key]
        except KeyError:
            if len(self._read) >= CHECKERS_MAX:
                self._read.clear()
        # More than one thread may be here: what they read is alike.
        found = self._read[key] = checker_of(schema)
        return found


def allowed(revisions: Sequence[Any], first: str, last: str) -> list[Any]:
    """The revisions that a topic allows, the last one first, as ``revisions`` are.

    One that was named and is deleted is no bound any more.
    """
    ids = [each.revision_id for each in revisions]
    begin = ids.index(last) if last in ids else 0
    end = ids.index(first) + 1 if first in ids else len(ids)
    return list(revisions[begin:end])


def matching(
    revisions: Sequence[Any],
    settings: Any,
    data: bytes,
    checker_for: Callable[[Any], Checker | None],
) -> str:
    """The id of the revision that a message is of; refuses one that is of none."""
    why = "no revision of it is allowed"
    for revision in allowed(revisions, settings.first_revision_id, settings.last_revision_id):
        checker = checker_for(revision)
        if checker is None:
            return str(revision.revision_id)
        try:
            check_message(checker, settings.encoding, data)
            return str(revision.revision_id)
        except MismatchError as error:
            why = str(error)
    raise Refusal(
        Code.INVALID_ARGUMENT,
        f"A message is not of the schema {shown(settings.schema)} as "
        f"{_ENCODINGS[settings.encoding]}: {why}.",
    )


def mark(message: Any, settings: Any, revision_id: str) -> None:
    """Writes into a message which schema it is of."""
    message.attributes[ENCODING_ATTRIBUTE] = _ENCODINGS[settings.encoding]
    message.attributes[NAME_ATTRIBUTE] = settings.schema
    message.attributes[REVISION_ATTRIBUTE] = revision_id


def check_encoding(encoding: int) -> None:
    """Refuses what is no encoding of messages."""
    if encoding not in _ENCODINGS:
        raise invalid("encoding must be JSON or BINARY.")
