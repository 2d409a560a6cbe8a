"""The service of schemas, over a catalogue in memory."""

import asyncio
import json
from collections.abc import Awaitable, Mapping
from typing import Any

import pytest
from google.pubsub_v1.types import pubsub as types
from google.pubsub_v1.types import schema as schema_types

from asterism.gateways.pubsub.catalogue import Record
from asterism.gateways.pubsub.errors import Code
from asterism.gateways.pubsub.schema_rpcs import THREAD_STEPS_MIN, Schemas, methods_of
from asterism.gateways.pubsub.schemas import DEFINITION_BYTES_MAX, REVISIONS_MAX, allowed
from tests.unit.pubsub.refusals import refused

PROJECT = "projects/p"
NAME = "projects/p/schemas/order"
AVRO, PROTOCOL_BUFFER = 2, 1
JSON, BINARY = 1, 2


def definition(*fields: str) -> str:
    named = [{"name": name, "type": "string"} for name in fields]
    return json.dumps({"type": "record", "name": "Order", "fields": named})


def avro(*fields: str) -> Any:
    return schema_types.Schema.pb()(type_=AVRO, definition=definition(*fields))


def pb(kind: str, /, **fields: Any) -> Any:
    return getattr(schema_types, kind).pb()(**fields)


class Catalogue:
    """One in memory, with the verbs of the real one."""

    def __init__(self) -> None:
        self.changing = asyncio.Lock()
        self.records: dict[str, dict[str, Record]] = {"schema": {}, "topic": {}}

    def find(self, kind: str, name: str) -> Record | None:
        return self.records[kind].get(name)

    def named(self, kind: str) -> Mapping[str, Record]:
        return self.records[kind]

    async def put(self, record: Record) -> None:
        assert self.changing.locked()
        self.records[record.kind][record.name] = record

    async def remove(self, record: Record) -> None:
        assert self.changing.locked()
        del self.records[record.kind][record.name]


class Door:
    """The service, asked by the names of its methods."""

    def __init__(self) -> None:
        self.catalogue = Catalogue()
        self.now_ms = 1_000_000
        self.schemas = Schemas(self.catalogue, lambda: self.now_ms)  # type: ignore[arg-type]
        self.methods = methods_of(self.schemas)

    def ask(self, method: str, **fields: Any) -> Any:
        request, reply, call = self.methods[f"google.pubsub.v1.SchemaService/{method}"]
        found = run(call(request(**fields)))
        assert isinstance(found, reply)
        return found

    def create(self, schema: Any = None, schema_id: str = "order") -> Any:
        return self.ask(
            "CreateSchema", parent=PROJECT, schema_id=schema_id, schema=schema or avro("a")
        )

    def commit(self, *fields: str) -> Any:
        return self.ask("CommitSchema", name=NAME, schema=avro(*fields))

    def revisions(self) -> list[str]:
        found = self.ask("ListSchemaRevisions", name=NAME).schemas
        return [each.revision_id for each in found]

    def publish(self, *data: bytes, **settings: Any) -> list[Any]:
        messages = [types.PubsubMessage.pb()(data=each) for each in data]
        given = {"schema": NAME, "encoding": JSON, **settings}
        run(self.schemas.enforce(types.SchemaSettings.pb()(**given), messages))
        return messages


def run(awaited: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await awaited

    return asyncio.run(wait())


@pytest.fixture
def door() -> Door:
    return Door()


# --- making and changing --------------------------------------------------------------------------


def test_a_schema_is_made_and_found(door: Door) -> None:
    made = door.create()
    assert (made.name, made.type_, made.definition) == (NAME, AVRO, definition("a"))
    assert len(made.revision_id) == 8
    assert made.revision_create_time.ToMilliseconds() == door.now_ms
    assert door.ask("GetSchema", name=NAME) == made
    assert door.ask("GetSchema", name=f"{NAME}@{made.revision_id}") == made
    brief = door.ask("GetSchema", name=NAME, view=1)
    assert brief.name == NAME and brief.type_ == AVRO and not brief.definition


def test_the_name_in_the_schema_does_not_count(door: Door) -> None:
    schema = avro("a")
    schema.name = "projects/q/schemas/other"
    schema.revision_id = "mine"
    made = door.create(schema)
    assert made.name == NAME and made.revision_id != "mine"


def test_schemas_are_listed_by_page(door: Door) -> None:
    for schema_id in ("ccc", "aaa", "bbb"):
        door.create(schema_id=schema_id)
    first = door.ask("ListSchemas", parent=PROJECT, page_size=2)
    assert [each.name[-3:] for each in first.schemas] == ["aaa", "bbb"]
    assert not first.schemas[0].definition
    rest = door.ask(
        "ListSchemas", parent=PROJECT, page_size=2, page_token=first.next_page_token, view=2
    )
    assert [each.name[-3:] for each in rest.schemas] == ["ccc"] and rest.schemas[0].definition
    assert not rest.next_page_token
    assert not door.ask("ListSchemas", parent="projects/other").schemas


def test_revisions_come_the_last_one_first(door: Door) -> None:
    ids = [door.create().revision_id]
    ids += [door.commit("a", f"b{number}").revision_id for number in range(3)]
    assert door.revisions() == ids[::-1]
    assert door.ask("GetSchema", name=NAME).revision_id == ids[-1]
    first = door.ask("ListSchemaRevisions", name=NAME, page_size=3, view=2)
    assert first.schemas[0].definition == definition("a", "b2")
    token = first.next_page_token
    rest = door.ask("ListSchemaRevisions", name=NAME, page_size=3, page_token=token)
    assert [each.revision_id for each in rest.schemas] == ids[:1]


def test_a_rollback_is_a_new_revision(door: Door) -> None:
    first = door.create()
    door.commit("b")
    found = door.ask("RollbackSchema", name=NAME, revision_id=first.revision_id)
    assert found.definition == first.definition and found.revision_id != first.revision_id
    assert len(door.revisions()) == 3
    with refused("not found", Code.NOT_FOUND):
        door.ask("RollbackSchema", name=NAME, revision_id="nope")


def test_a_revision_is_deleted(door: Door) -> None:
    first, second = door.create(), door.commit("b")
    deleted = door.ask("DeleteSchemaRevision", name=f"{NAME}@{second.revision_id}")
    assert deleted == second
    assert door.ask("GetSchema", name=NAME) == first
    for name in (f"{NAME}@{second.revision_id}", f"{NAME}@nope"):
        with refused("not found", Code.NOT_FOUND):
            door.ask("DeleteSchemaRevision", name=name)
    with refused("The only revision", Code.FAILED_PRECONDITION):
        door.ask("DeleteSchemaRevision", name=NAME, revision_id=first.revision_id)
    with refused("name must have a revision"):
        door.ask("DeleteSchemaRevision", name=NAME)


def test_a_schema_is_deleted_and_its_topics_say_so(door: Door) -> None:
    door.create()
    settings = {"schema": NAME, "encoding": JSON}
    topic = types.Topic.pb()(name="projects/p/topics/orders", schema_settings=settings)
    door.catalogue.records["topic"][topic.name] = Record("topic", topic.name, topic)
    door.ask("DeleteSchema", name=NAME)
    found = door.catalogue.records["topic"][topic.name].resource
    assert found.schema_settings.schema == "_deleted-schema_"
    with refused("The schema of the topic was deleted", Code.NOT_FOUND):
        door.publish(b"{}", schema="_deleted-schema_")
    with refused("not found", Code.NOT_FOUND):
        door.ask("GetSchema", name=NAME)
    door.create()  # is another one


def test_what_cannot_be_made_is_refused(door: Door) -> None:
    with refused("an id has 3 to 255"):
        door.create(schema_id="")
    with refused("must be AVRO or PROTOCOL_BUFFER"):
        door.create(pb("Schema", definition=definition("a")))
    with refused("schema is not valid: the definition is not valid JSON"):
        door.create(pb("Schema", type_=AVRO, definition="{"))
    with refused("must not be empty"):
        door.create(pb("Schema", type_=PROTOCOL_BUFFER, definition=" "))
    with refused(f"over {DEFINITION_BYTES_MAX}"):
        door.create(pb("Schema", type_=AVRO, definition=" " * (DEFINITION_BYTES_MAX + 1)))
    with refused("is for schemas of type PROTOCOL_BUFFER"):
        compiled = {"root_message": "A"}
        door.create(pb("Schema", type_=AVRO, definition="x", compiled_proto_schema=compiled))
    with refused("schema is not valid: compiled_bytes has no message"):
        door.create(pb("Schema", type_=PROTOCOL_BUFFER, compiled_proto_schema={}))
    assert not door.catalogue.records["schema"]


def test_what_is_there_is_not_made_again(door: Door) -> None:
    door.create()
    with refused("exists", Code.ALREADY_EXISTS):
        door.create()


def test_a_revision_is_of_the_same_type_and_name(door: Door) -> None:
    with refused("not found", Code.NOT_FOUND):
        door.commit("a")
    door.create()
    with refused("must be that of the revisions before"):
        wrong = pb("Schema", type_=PROTOCOL_BUFFER, definition="x")
        door.ask("CommitSchema", name=NAME, schema=wrong)
    with refused("schema.name must be"):
        wrong = avro("b")
        wrong.name = "projects/p/schemas/other"
        door.ask("CommitSchema", name=NAME, schema=wrong)
    with refused("schema is not valid"):
        door.ask("CommitSchema", name=NAME, schema=pb("Schema", type_=AVRO, definition="{"))
    assert len(door.revisions()) == 1


def test_a_schema_has_so_many_revisions_and_no_more(door: Door) -> None:
    door.create()
    for _ in range(REVISIONS_MAX - 1):
        door.commit("a")
    with refused("delete one first", Code.FAILED_PRECONDITION):
        door.commit("a")
    door.ask("DeleteSchemaRevision", name=f"{NAME}@{door.revisions()[-1]}")
    door.commit("a")


def test_revisions_that_are_large_come_in_several_pages(door: Door) -> None:
    large = pb("Schema", type_=AVRO, definition=definition("a") + " " * 290_000)
    door.create(large)
    for _ in range(REVISIONS_MAX - 1):
        door.ask("CommitSchema", name=NAME, schema=large)
    found: list[str] = []
    token = ""
    while not found or token:
        page = door.ask("ListSchemaRevisions", name=NAME, view=2, page_token=token)
        assert page.ByteSize() < 4_000_000
        found += [each.revision_id for each in page.schemas]
        token = page.next_page_token
    assert found == door.revisions() and len(found) == REVISIONS_MAX


# --- messages -------------------------------------------------------------------------------------


def test_messages_are_marked_with_schema_revision_and_encoding(door: Door) -> None:
    made = door.create()
    for message in (
        *door.publish(b'{"a": "x"}', b'{"a": "y"}'),
        *door.publish(b"\x02x", encoding=BINARY),
    ):
        encoding = "BINARY" if message.data == b"\x02x" else "JSON"
        assert dict(message.attributes) == {
            "googclient_schemaencoding": encoding,
            "googclient_schemaname": NAME,
            "googclient_schemarevisionid": made.revision_id,
        }


def test_a_message_that_is_of_no_revision_is_refused_and_none_is_marked(door: Door) -> None:
    door.create()
    messages = [types.PubsubMessage.pb()(data=data) for data in (b'{"a": "x"}', b'{"a": 1}')]
    settings = types.SchemaSettings.pb()(schema=NAME, encoding=JSON)
    with refused("as JSON: a: it must be string, not 1"):
        run(door.schemas.enforce(settings, messages))
    assert not any(message.attributes for message in messages)


def test_a_large_message_is_checked_as_well(door: Door) -> None:
    door.create()
    large = "x" * THREAD_STEPS_MIN
    door.publish(json.dumps({"a": large}).encode())
    with refused("it must be string"):
        door.publish(json.dumps({"a": [large]}).encode())


def test_the_last_revision_is_tried_first_and_the_others_behind_it(door: Door) -> None:
    ids = [door.create().revision_id, *(door.commit(*"abc"[:n]).revision_id for n in (2, 3))]
    messages = door.publish(b'{"a": "", "b": "", "c": ""}', b'{"a": "", "b": ""}', b'{"a": ""}')
    found = [each.attributes["googclient_schemarevisionid"] for each in messages]
    assert found == ids[::-1]


def test_a_topic_may_allow_some_revisions_alone(door: Door) -> None:
    ids = [door.create().revision_id, *(door.commit(*"abc"[:n]).revision_id for n in (2, 3))]
    with refused("c: the field is missing"):
        door.publish(b'{"a": "", "b": ""}', first_revision_id=ids[2])
    (message,) = door.publish(b'{"a": "", "b": "", "c": ""}', last_revision_id=ids[0])
    assert message.attributes["googclient_schemarevisionid"] == ids[0]


def test_revisions_are_allowed_from_the_first_to_the_last() -> None:
    revisions = [pb("Schema", revision_id=each) for each in "dcba"]

    def ids(first: str, last: str) -> str:
        return "".join(each.revision_id for each in allowed(revisions, first, last))

    assert ids("", "") == "dcba"
    assert ids("b", "c") == "cb"
    assert ids("c", "c") == "c"
    assert ids("c", "") == "dc"
    assert ids("", "b") == "ba"
    assert ids("gone", "gone") == "dcba"
    assert ids("c", "b") == ""


def test_a_schema_that_was_made_anew_counts_at_once(door: Door) -> None:
    door.create()
    door.publish(b'{"a": "x"}')
    door.ask("DeleteSchema", name=NAME)
    door.create(avro("b"))
    with refused("b: the field is missing"):
        door.publish(b'{"a": "x"}')


def test_a_definition_that_nobody_reads_takes_every_message(door: Door) -> None:
    text = 'syntax = "proto3"; message Order { string a = 1; }'
    made = door.create(pb("Schema", type_=PROTOCOL_BUFFER, definition=text))
    (message,) = door.publish(b"anything")
    assert message.attributes["googclient_schemarevisionid"] == made.revision_id
    with refused("does not read definitions in the language of protobuf", Code.UNIMPLEMENTED):
        door.ask("ValidateSchema", parent=PROJECT, schema=made)
    with refused("does not read definitions", Code.UNIMPLEMENTED):
        door.ask("ValidateMessage", parent=PROJECT, name=NAME, message=b"x", encoding=JSON)


# --- validation -----------------------------------------------------------------------------------


def test_definitions_are_validated(door: Door) -> None:
    door.ask("ValidateSchema", parent=PROJECT, schema=avro("a"))
    with refused("schema is not valid"):
        door.ask("ValidateSchema", parent=PROJECT, schema=pb("Schema", type_=AVRO))
    with refused("is not the name of a project"):
        door.ask("ValidateSchema", parent="p", schema=avro("a"))


def test_messages_are_validated(door: Door) -> None:
    first = door.create()
    door.commit("b")

    def validate(message: bytes, **spec: Any) -> None:
        door.ask("ValidateMessage", parent=PROJECT, message=message, **{"encoding": JSON, **spec})

    validate(b'{"b": "x"}', name=NAME)
    validate(b'{"a": "x"}', name=f"{NAME}@{first.revision_id}")
    validate(b"\x02x", name=NAME, encoding=BINARY)
    validate(b'{"c": "x"}', schema=avro("c"))
    for message, spec in (
        (b'{"a": "x"}', {"name": NAME}),
        (b"\x02", {"name": NAME, "encoding": BINARY}),
        (b"{}", {"schema": avro("c")}),
    ):
        with refused("The message is not of the schema: "):
            validate(message, **spec)
    with refused("encoding must be"):
        validate(b"{}", name=NAME, encoding=0)
    with refused("must have name or schema"):
        validate(b"{}")
    with refused("not found", Code.NOT_FOUND):
        validate(b"{}", name="projects/p/schemas/none")
