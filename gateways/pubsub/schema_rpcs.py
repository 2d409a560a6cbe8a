"""The service of schemas: created, revised, rolled back, listed, deleted, and messages checked.

A schema is one resource of the catalogue: its last revision, and all of them in its facts, the last
one first. So every change of it is one entry, on disk whole or not at all.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from google.protobuf import empty_pb2
from google.pubsub_v1.types import schema as types

from asterism.gateways.pubsub.avro import STEPS, STEPS_A_BYTE, MismatchError
from asterism.gateways.pubsub.catalogue import Catalogue, Record
from asterism.gateways.pubsub.errors import Code, Refusal, already_exists, invalid, not_found
from asterism.gateways.pubsub.names import (
    DELETED_SCHEMA,
    Kind,
    Name,
    name_of,
    read_name,
    read_project,
)
from asterism.gateways.pubsub.pages import Page, page_of
from asterism.gateways.pubsub.schemas import (
    CHECKERS_MAX,
    REVISIONS_MAX,
    SCHEMAS_MAX,
    Checker,
    Checkers,
    check_encoding,
    check_message,
    checker_of,
    mark,
    matching,
)

KIND: Final = "schema"
SERVICE: Final = "google.pubsub.v1.SchemaService"
REVISIONS: Final = "revisions"  # the fact: each as its protobuf, the last one first
REVISION_ID_BYTES: Final = 4
THREAD_STEPS_MIN: Final = 50_000  # what may take more is checked beside the loop
Schema: Final[Any] = types.Schema.pb()
ListSchemasResponse: Final[Any] = types.ListSchemasResponse.pb()
ListSchemaRevisionsResponse: Final[Any] = types.ListSchemaRevisionsResponse.pb()
ValidateSchemaResponse: Final[Any] = types.ValidateSchemaResponse.pb()
ValidateMessageResponse: Final[Any] = types.ValidateMessageResponse.pb()
_FULL: Final = int(types.SchemaView.FULL)
_BASIC: Final = int(types.SchemaView.BASIC)


class Schemas:
    """All schemas; ``now_ms`` reads the clock."""

    def __init__(self, catalogue: Catalogue, now_ms: Callable[[], int]) -> None:
        self._catalogue = catalogue
        self._now_ms = now_ms
        self._checkers = Checkers()
        # The revisions of each schema that topics use, with the fact that they were read from.
        self._read: dict[str, tuple[list[bytes], list[Any]]] = {}

    # --- for the rest of the door -------------------------------------------------------------

    async def enforce(self, settings: Any, messages: Any) -> None:
        """Refuses messages that are not of a topic's schema, and marks those that are.

        ``settings`` are the topic's ``SchemaSettings``; every message is looked at before any goes
        out.
        """
        record = self._catalogue.find(KIND, settings.schema)
        if record is None:
            raise Refusal(Code.NOT_FOUND, "The schema of the topic was deleted.")
        revisions = self._revisions(record)
        found = await self._match(revisions, settings, [each.data for each in messages])
        for message, revision_id in zip(messages, found, strict=True):
            mark(message, settings, revision_id)

    def _revisions(self, record: Record) -> list[Any]:
        held = self._read.get(record.name)
        if held is None or held[0] is not record.facts[REVISIONS]:
            if len(self._read) >= CHECKERS_MAX:
                self._read.clear()
            held = self._read[record.name] = (record.facts[REVISIONS], _revisions_of(record))
        return held[1]

    async def _match(self, revisions: list[Any], settings: Any, found: list[bytes]) -> list[str]:
        """The revision that each message is of."""

        def match() -> list[str]:
            return [matching(revisions, settings, data, self._checkers.of) for data in found]

        steps = sum(STEPS + STEPS_A_BYTE * len(data) for data in found) * len(revisions)
        return match() if steps < THREAD_STEPS_MIN else await asyncio.to_thread(match)

    # --- what clients ask ---------------------------------------------------------------------

    async def create(self, request: Any) -> Any:
        """Makes a schema, with its first revision."""
        project = read_project(request.parent)
        name = str(name_of(project, Kind.SCHEMA, request.schema_id))
        checker_of(request.schema)
        async with self._catalogue.changing:
            if self._catalogue.find(KIND, name) is not None:
                raise already_exists(name)
            if len(self._names(project)) >= SCHEMAS_MAX:
                raise Refusal(Code.RESOURCE_EXHAUSTED, f"A project may have {SCHEMAS_MAX} schemas.")
            first = self._revision(name, request.schema)
            await self._catalogue.put(Record(KIND, name, first, _facts_of([first])))
            return first

    async def commit(self, request: Any) -> Any:
        """Adds a revision."""
        async with self._catalogue.changing:
            record = self._get(request.name)
            if request.schema.name not in ("", record.name):
                raise invalid(f"schema.name must be {record.name}, or be left out.")
            if request.schema.type_ != record.resource.type_:
                raise invalid("schema.type must be that of the revisions before.")
            checker_of(request.schema)
            return await self._add(record, request.schema)

    async def rollback(self, request: Any) -> Any:
        """Adds a revision that is as an earlier one."""
        async with self._catalogue.changing:
            record = self._get(request.name)
            return await self._add(record, _find(record, request.revision_id))

    async def delete_revision(self, request: Any) -> Any:
        """Deletes a revision; the only one of a schema stays."""
        name, revision_id = _with_revision(request.name)
        revision_id = revision_id or request.revision_id
        if not revision_id:
            raise invalid("name must have a revision, as projects/P/schemas/S@REVISION.")
        async with self._catalogue.changing:
            record = self._get(str(name))
            deleted = _find(record, revision_id)
            kept = [each for each in _revisions_of(record) if each.revision_id != revision_id]
            if not kept:
                raise Refusal(
                    Code.FAILED_PRECONDITION,
                    "The only revision of a schema cannot be deleted: delete the schema.",
                )
            await self._catalogue.put(record.changed(kept[0], **_facts_of(kept)))
            return deleted

    async def delete(self, request: Any) -> Any:
        """Deletes a schema; its topics take no messages until they have another."""
        async with self._catalogue.changing:
            record = self._get(request.name)
            for topic in list(self._catalogue.named("topic").values()):
                if topic.resource.schema_settings.schema == record.name:
                    changed = type(topic.resource)()
                    changed.CopyFrom(topic.resource)
                    changed.schema_settings.schema = DELETED_SCHEMA
                    await self._catalogue.put(topic.changed(changed))
            await self._catalogue.remove(record)
        return empty_pb2.Empty()

    async def get(self, request: Any) -> Any:
        """A schema as its last revision has it, or a revision that the name has behind an @."""
        name, revision_id = _with_revision(request.name)
        record = self._get(str(name))
        found = _find(record, revision_id) if revision_id else record.resource
        return _viewed(found, request.view != _BASIC)

    async def list_schemas(self, request: Any) -> Any:
        """The schemas of a project, each as its last revision has it."""
        named = self._catalogue.named(KIND)
        names = self._names(read_project(request.parent))
        shown = {name: _viewed(named[name].resource, request.view == _FULL) for name in names}
        page = _page_of(shown, request)
        return ListSchemasResponse(
            schemas=[shown[name] for name in page.names], next_page_token=page.next_page_token
        )

    async def list_revisions(self, request: Any) -> Any:
        """The revisions of a schema, the last one first."""
        revisions = _revisions_of(self._get(request.name))
        # In the order of names, by which pages go, the last one comes first.
        is_full = request.view == _FULL
        shown = {
            f"{at:04}/{each.revision_id}": _viewed(each, is_full)
            for at, each in enumerate(revisions)
        }
        page = _page_of(shown, request)
        return ListSchemaRevisionsResponse(
            schemas=[shown[key] for key in page.names], next_page_token=page.next_page_token
        )

    async def validate_schema(self, request: Any) -> Any:
        """Says whether a definition is one."""
        read_project(request.parent)
        if checker_of(request.schema) is None:
            raise _unread()
        return ValidateSchemaResponse()

    async def validate_message(self, request: Any) -> Any:
        """Says whether a message is of a schema, of one that exists or of one in the request."""
        project = read_project(request.parent)
        check_encoding(request.encoding)
        checker = self._checker_for(request, project)
        if checker is None:
            raise _unread()
        try:
            await asyncio.to_thread(check_message, checker, request.encoding, request.message)
        except MismatchError as error:
            raise invalid(f"The message is not of the schema: {error}.") from None
        return ValidateMessageResponse()

    def _checker_for(self, request: Any, project: str) -> Checker | None:
        if request.HasField("schema"):
            return checker_of(request.schema)
        if not request.name:
            raise invalid("The request must have name or schema.")
        name, revision_id = _with_revision(request.name)
        record = self._get(str(name))
        return self._checkers.of(_find(record, revision_id) if revision_id else record.resource)

    # --- parts --------------------------------------------------------------------------------

    def _get(self, name: str) -> Record:
        read_name(name, Kind.SCHEMA)
        record = self._catalogue.find(KIND, name)
        if record is None:
            raise not_found(name)
        return record

    def _names(self, project: str) -> list[str]:
        prefix = f"projects/{project}/"
        return [name for name in self._catalogue.named(KIND) if name.startswith(prefix)]

    async def _add(self, record: Record, schema: Any) -> Any:
        revisions = _revisions_of(record)
        if len(revisions) >= REVISIONS_MAX:
            raise Refusal(
                Code.FAILED_PRECONDITION,
                f"A schema may have {REVISIONS_MAX} revisions: delete one first.",
            )
        added = self._revision(record.name, schema)
        await self._catalogue.put(record.changed(added, **_facts_of([added, *revisions])))
        return added

    def _revision(self, name: str, schema: Any) -> Any:
        """A revision as a request has it, with an id and a time of its own."""
        made = Schema()
        made.CopyFrom(schema)
        made.name = name
        made.revision_id = secrets.token_hex(REVISION_ID_BYTES)
        made.revision_create_time.FromMilliseconds(self._now_ms())
        return made


def _facts_of(revisions: list[Any]) -> dict[str, Any]:
    return {REVISIONS: [each.SerializeToString() for each in revisions]}


def _revisions_of(record: Record) -> list[Any]:
    return [Schema.FromString(each) for each in record.facts[REVISIONS]]


def _find(record: Record, revision_id: str) -> Any:
    for revision in _revisions_of(record):
        if revision.revision_id == revision_id:
            return revision
    raise not_found(f"{record.name}@{revision_id}")


def _with_revision(text: str) -> tuple[Name, str]:
    """A schema's name, and the revision that stands behind it."""
    name, _, revision_id = text.partition("@")
    return read_name(name, Kind.SCHEMA), revision_id


def _viewed(schema: Any, is_full: bool) -> Any:
    if is_full:
        return schema
    brief = Schema()
    brief.CopyFrom(schema)
    brief.ClearField("definition")
    brief.ClearField("compiled_proto_schema")
    return brief


def _page_of(shown: Mapping[str, Any], request: Any) -> Page:
    return page_of(
        shown, request.page_size, request.page_token, lambda name: int(shown[name].ByteSize())
    )


def _unread() -> Refusal:
    return Refusal(
        Code.UNIMPLEMENTED,
        "This server does not read definitions in the language of protobuf: give the schema as "
        "compiled_proto_schema, or check it elsewhere.",
    )


def methods_of(schemas: Schemas) -> dict[str, tuple[Any, Any, Callable[[Any], Awaitable[Any]]]]:
    """The methods of the service, by ``SERVICE/METHOD``: types of request and reply, coroutine."""
    empty = empty_pb2.Empty
    methods: dict[str, tuple[Any, Any, Callable[[Any], Awaitable[Any]]]] = {
        "CreateSchema": (types.CreateSchemaRequest.pb(), Schema, schemas.create),
        "GetSchema": (types.GetSchemaRequest.pb(), Schema, schemas.get),
        "ListSchemas": (types.ListSchemasRequest.pb(), ListSchemasResponse, schemas.list_schemas),
        "ListSchemaRevisions": (
            types.ListSchemaRevisionsRequest.pb(),
            ListSchemaRevisionsResponse,
            schemas.list_revisions,
        ),
        "CommitSchema": (types.CommitSchemaRequest.pb(), Schema, schemas.commit),
        "RollbackSchema": (types.RollbackSchemaRequest.pb(), Schema, schemas.rollback),
        "DeleteSchemaRevision": (
            types.DeleteSchemaRevisionRequest.pb(),
            Schema,
            schemas.delete_revision,
        ),
        "DeleteSchema": (types.DeleteSchemaRequest.pb(), empty, schemas.delete),
        "ValidateSchema": (
            types.ValidateSchemaRequest.pb(),
            ValidateSchemaResponse,
            schemas.validate_schema,
        ),
        "ValidateMessage": (
            types.ValidateMessageRequest.pb(),
            ValidateMessageResponse,
            schemas.validate_message,
        ),
    }
    return {f"{SERVICE}/{name}": method for name, method in methods.items()}
