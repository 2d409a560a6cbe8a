"""Schemas: made, read, listed and deleted; and what a topic with one takes."""

import io
import json
from typing import Any

import fastavro
import grpc
import pytest
from google.api_core.exceptions import AlreadyExists, InvalidArgument, NotFound
from google.pubsub_v1 import SchemaServiceClient
from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport
from google.pubsub_v1.types import Encoding, Schema, SchemaView

from tests.conformance.pubsub.clients import Project
from tests.conformance.pubsub.conftest import PubSubServer

pytestmark = pytest.mark.process

STATE = {
    "type": "record",
    "name": "State",
    "fields": [{"name": "name", "type": "string"}, {"name": "people", "type": "int"}],
}
AVRO = json.dumps(STATE)
PROTOBUF = 'syntax = "proto3"; message State { string name = 1; int32 people = 2; }'
GOOD = json.dumps({"name": "Alaska", "people": 733_000}).encode()
BAD = {
    "a field is missing": b'{"name": "Alaska"}',
    "a field is of another type": b'{"name": "Alaska", "people": "many"}',
    "no JSON": b"Alaska",
    "nothing": b"{}",
}


def binary(record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(STATE), record)
    return out.getvalue()


@pytest.fixture(scope="module")
def schemas(server: PubSubServer) -> SchemaServiceClient:
    channel = grpc.insecure_channel(server.address)
    return SchemaServiceClient(transport=SchemaServiceGrpcTransport(channel=channel))


def make(
    schemas: SchemaServiceClient, project: Project, definition: str = AVRO, type_: str = "AVRO"
) -> str:
    made = schemas.create_schema(
        parent=project.path,
        schema=Schema(type_=getattr(Schema.Type, type_), definition=definition),
        schema_id="state",
    )
    return str(made.name)


# --- as resources ---------------------------------------------------------------------------------


def test_a_schema_is_made_and_read_and_deleted(
    schemas: SchemaServiceClient, project: Project
) -> None:
    name = make(schemas, project)
    assert name == f"{project.path}/schemas/state"
    found = schemas.get_schema(name=name)
    assert (found.type_, found.definition) == (Schema.Type.AVRO, AVRO)
    schemas.delete_schema(name=name)
    with pytest.raises(NotFound):
        schemas.get_schema(name=name)


def test_a_schema_that_is_there_is_not_made_again(
    schemas: SchemaServiceClient, project: Project
) -> None:
    make(schemas, project)
    with pytest.raises(AlreadyExists):
        make(schemas, project)


def test_schemas_are_listed(schemas: SchemaServiceClient, project: Project) -> None:
    name = make(schemas, project)
    (listed,) = schemas.list_schemas(parent=project.path)
    assert listed.name == name
    request = {"parent": project.path, "view": SchemaView.FULL}
    assert [one.definition for one in schemas.list_schemas(request=request)] == [AVRO]


@pytest.mark.parametrize(
    ("type_", "definition"),
    [("AVRO", "nonsense"), ("AVRO", '{"type": "nothing"}'), ("AVRO", "")],
)
def test_what_is_no_schema_is_refused(
    schemas: SchemaServiceClient, project: Project, type_: str, definition: str
) -> None:
    with pytest.raises(InvalidArgument):
        make(schemas, project, definition, type_)
    with pytest.raises(InvalidArgument):
        schemas.validate_schema(
            parent=project.path,
            schema=Schema(type_=getattr(Schema.Type, type_), definition=definition),
        )


def test_a_schema_is_validated_without_being_made(
    schemas: SchemaServiceClient, project: Project
) -> None:
    schema = Schema(type_=Schema.Type.AVRO, definition=AVRO)
    schemas.validate_schema(parent=project.path, schema=schema)
    assert list(schemas.list_schemas(parent=project.path)) == []


def test_a_message_is_validated_without_being_published(
    schemas: SchemaServiceClient, project: Project
) -> None:
    request: dict[str, Any] = {
        "parent": project.path,
        "schema": Schema(type_=Schema.Type.AVRO, definition=AVRO),
        "encoding": Encoding.JSON,
    }
    schemas.validate_message(request={**request, "message": GOOD})
    with pytest.raises(InvalidArgument):
        schemas.validate_message(request={**request, "message": b"{}"})


# --- on a topic -----------------------------------------------------------------------------------


def topic_with(project: Project, schema: str, encoding: int) -> str:
    return project.topic(schema_settings={"schema": schema, "encoding": encoding})


def test_a_topic_says_its_schema(schemas: SchemaServiceClient, project: Project) -> None:
    schema = make(schemas, project)
    topic = topic_with(project, schema, Encoding.JSON)
    settings = project.publisher.get_topic(topic=topic).schema_settings
    assert (settings.schema, settings.encoding) == (schema, Encoding.JSON)


def test_a_topic_s_schema_has_to_be_there(project: Project) -> None:
    with pytest.raises(NotFound):
        topic_with(project, f"{project.path}/schemas/nobody", Encoding.JSON)


def test_a_topic_takes_what_its_schema_describes(
    schemas: SchemaServiceClient, project: Project
) -> None:
    topic = topic_with(project, make(schemas, project), Encoding.JSON)
    subscription = project.subscription(topic)
    project.publish(topic, GOOD)
    (got,) = project.pull(subscription)
    assert got.message.data == GOOD


@pytest.mark.parametrize("data", BAD.values(), ids=list(BAD))
def test_a_topic_refuses_what_its_schema_does_not_describe(
    schemas: SchemaServiceClient, project: Project, data: bytes
) -> None:
    topic = topic_with(project, make(schemas, project), Encoding.JSON)
    subscription = project.subscription(topic)
    with pytest.raises(InvalidArgument):
        project.publish(topic, GOOD, data)
    project.nothing(subscription, 0.2)


def test_a_topic_takes_the_binary_encoding(schemas: SchemaServiceClient, project: Project) -> None:
    topic = topic_with(project, make(schemas, project), Encoding.BINARY)
    subscription = project.subscription(topic)
    good = binary({"name": "Alaska", "people": 733_000})
    project.publish(topic, good)
    (got,) = project.pull(subscription)
    assert got.message.data == good
    with pytest.raises(InvalidArgument):
        project.publish(topic, good[:-1])


@pytest.mark.beyond_reference("takes it")
def test_a_topic_refuses_what_goes_on_behind_a_record(
    schemas: SchemaServiceClient, project: Project
) -> None:
    topic = topic_with(project, make(schemas, project), Encoding.BINARY)
    with pytest.raises(InvalidArgument):
        project.publish(topic, binary({"name": "Alaska", "people": 1}) + b"\0")


def test_a_topic_whose_schema_is_deleted_says_so(
    schemas: SchemaServiceClient, project: Project
) -> None:
    schema = make(schemas, project)
    topic = topic_with(project, schema, Encoding.JSON)
    schemas.delete_schema(name=schema)
    found = project.publisher.get_topic(topic=topic)
    assert found.schema_settings.schema == "_deleted-schema_"


# --- protobuf -------------------------------------------------------------------------------------


@pytest.mark.beyond_reference("does not know them")
def test_a_protobuf_schema_is_made(schemas: SchemaServiceClient, project: Project) -> None:
    name = make(schemas, project, PROTOBUF, "PROTOCOL_BUFFER")
    assert schemas.get_schema(name=name).definition == PROTOBUF


# --- revisions ------------------------------------------------------------------------------------


@pytest.mark.beyond_reference("does not know them")
def test_a_schema_has_revisions(schemas: SchemaServiceClient, project: Project) -> None:
    name = make(schemas, project)
    first = schemas.get_schema(name=name).revision_id
    assert first
    wider = {**STATE, "fields": [*STATE["fields"], {"name": "size", "type": "int", "default": 0}]}
    definition = json.dumps(wider)
    committed = schemas.commit_schema(
        name=name, schema=Schema(name=name, type_=Schema.Type.AVRO, definition=definition)
    )
    assert committed.revision_id != first
    assert schemas.get_schema(name=name).definition == definition
    assert schemas.get_schema(name=f"{name}@{first}").definition == AVRO
    revisions = list(schemas.list_schema_revisions(name=name))
    assert len(revisions) == 2
    rolled = schemas.rollback_schema(name=name, revision_id=first)
    assert rolled.definition == AVRO
    assert schemas.get_schema(name=name).definition == AVRO
