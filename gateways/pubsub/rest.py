"""REST as Google's API has it: paths and JSON made into requests, and replies into JSON. Pure.

Each rpc has a method and a path. What stands in the path is a field of the request; the body is
the whole request, or one field of it; what is left comes by the query.

    POST /v1/projects/p/topics/t:publish   {"messages": [{"data": "aGk="}]}
    GET  /v1/projects/p/topics?pageSize=2
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from google.protobuf import json_format

from asterism.checks import shown
from asterism.gateways.pubsub.errors import Code, Refusal, invalid
from asterism.gateways.pubsub.json_texts import read_json

VERSION: Final = "v1"
_PUBLISHER: Final = "google.pubsub.v1.Publisher"
_SUBSCRIBER: Final = "google.pubsub.v1.Subscriber"
_SCHEMA_SERVICE: Final = "google.pubsub.v1.SchemaService"
PATH_CHARACTERS_MAX: Final = 4_096
PARAMETERS_MAX: Final = 100
VALUES_MAX: Final = 250_000  # of a body: 1,000 messages of 100 attributes have 106,000
WHOLE: Final = "*"  # the body is the request itself
# Parameters that every path of Google's takes. They say how to answer, or who asks.
_COMMON: Final = frozenset(
    {
        *("alt", "$alt", "access_token", "callback", "fields", "key", "oauth_token"),
        *("prettyPrint", "quotaUser", "uploadType", "upload_protocol", "$.xgafv", "xgafv"),
    }
)


class Route(NamedTuple):
    """How an rpc is called by REST."""

    method: str
    pattern: str  # of the path: a star is any segment, a word behind a colon is the verb
    rpc: str  # as google.pubsub.v1.Publisher/Publish
    field: str  # of the request, that the path is the value of
    body: str = ""  # WHOLE, or a field of the request; empty: none


class Call(NamedTuple):
    """A request that was found to be for an rpc."""

    route: Route
    name: str  # that stands in the path
    parameters: tuple[tuple[str, str], ...]
    is_pretty: bool  # is the answer indented?


def _resource(kind: str, noun: str, service: str) -> tuple[Route, ...]:
    """The routes that topics, subscriptions and snapshots have alike."""
    one, field = f"projects/*/{kind}/*", noun.lower()
    return (
        Route("GET", one, f"{service}/Get{noun}", field),
        Route("GET", f"projects/*/{kind}", f"{service}/List{noun}s", "project"),
        Route("DELETE", one, f"{service}/Delete{noun}", field),
        Route("PUT", one, f"{service}/Create{noun}", "name", WHOLE),
        Route("PATCH", one, f"{service}/Update{noun}", f"{field}.name", WHOLE),
    )


def _topic(method: str, rest: str, rpc: str, body: str = "") -> Route:
    return Route(method, f"projects/*/topics/*{rest}", f"{_PUBLISHER}/{rpc}", "topic", body)


def _subscription(verb: str, rpc: str, service: str = _SUBSCRIBER) -> Route:
    pattern = f"projects/*/subscriptions/*:{verb}"
    return Route("POST", pattern, f"{service}/{rpc}", "subscription", WHOLE)


def _schemas(method: str, verb: str, rpc: str, body: str = "") -> Route:
    return Route(method, f"projects/*/schemas{verb}", f"{_SCHEMA_SERVICE}/{rpc}", "parent", body)


def _schema(method: str, verb: str, rpc: str, body: str = "") -> Route:
    return Route(method, f"projects/*/schemas/*{verb}", f"{_SCHEMA_SERVICE}/{rpc}", "name", body)


ROUTES: Final[tuple[Route, ...]] = (
    *_resource("topics", "Topic", _PUBLISHER),
    _topic("POST", ":publish", "Publish", WHOLE),
    _topic("GET", "/subscriptions", "ListTopicSubscriptions"),
    _topic("GET", "/snapshots", "ListTopicSnapshots"),
    *_resource("subscriptions", "Subscription", _SUBSCRIBER),
    _subscription("pull", "Pull"),
    _subscription("acknowledge", "Acknowledge"),
    _subscription("modifyAckDeadline", "ModifyAckDeadline"),
    _subscription("modifyPushConfig", "ModifyPushConfig"),
    _subscription("seek", "Seek"),
    _subscription("detach", "DetachSubscription", _PUBLISHER),
    *_resource("snapshots", "Snapshot", _SUBSCRIBER),
    _schemas("POST", "", "CreateSchema", "schema"),
    _schemas("GET", "", "ListSchemas"),
    _schemas("POST", ":validate", "ValidateSchema", WHOLE),
    _schemas("POST", ":validateMessage", "ValidateMessage", WHOLE),
    _schema("GET", "", "GetSchema"),
    _schema("DELETE", "", "DeleteSchema"),
    _schema("GET", ":listRevisions", "ListSchemaRevisions"),
    _schema("POST", ":commit", "CommitSchema", WHOLE),
    _schema("POST", ":rollback", "RollbackSchema", WHOLE),
    _schema("DELETE", ":deleteRevision", "DeleteSchemaRevision"),
)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_FOUND: Final = {(route.method, route.pattern): route for route in ROUTES}
_METHODS: Final = ("GET", "PUT", "POST", "PATCH", "DELETE")


def find_call(method: str, target: str) -> Call:
    """The rpc that a request is for; refuses a path that is none, and a method that it lacks."""
    path, _, query = target.partition("?")
    if len(path) > PATH_CHARACTERS_MAX:
        raise invalid(f"The path has {len(path)} characters, over {PATH_CHARACTERS_MAX}.")
    pattern, name = _pattern_of(path)
    route = _FOUND.get((method, pattern))
    if route is None:
        allowed = [each for each in _METHODS if (each, pattern) in _FOUND]
        takes = f"this path takes {', '.join(allowed)}" if allowed else "there is no such path"
        raise Refusal(Code.NOT_FOUND, f"Nothing answers {method} {path}: {takes}.")
    try:
        parameters = parse_qsl(query, True, errors="strict", max_num_fields=PARAMETERS_MAX)
    except ValueError:
        raise invalid("The query is not valid.") from None
    is_pretty = ("prettyPrint", "false") not in parameters
    own = tuple(pair for pair in parameters if pair[0] not in _COMMON)
    return Call(route, name, own, is_pretty)


def _pattern_of(path: str) -> tuple[str, str]:
    """The pattern that a path has, and the name of the resource in it."""
    start, _, rest = path.lstrip("/").partition("/")
    if start != VERSION:
        return "", ""
    *segments, last = rest.split("/")
    last, colon, verb = last.partition(":")
    segments.append(last)
    # Every second segment is somebody's own; a listing ends in a kind that is not in the name.
    pattern = [each if at % 2 == 0 else "*" for at, each in enumerate(segments)]
    named = segments if len(segments) % 2 == 0 else segments[:-1]
    try:
        name = "/".join(unquote(each, errors="strict") for each in named)
    except UnicodeDecodeError:
        raise invalid("The path is not valid UTF-8.") from None
    return "/".join(pattern) + colon + verb, name


def request_of(call: Call, request_type: Any, body: bytes) -> Any:
    """The request of an rpc, as a protobuf message; refuses what does not fit its type."""
    route = call.route
    fields = _fields_of(call.parameters, request_type.DESCRIPTOR)
    if route.body and body.strip():
        read = _read_json(body)
        if route.body == WHOLE:
            fields = {**fields, **read}
        else:
            fields[route.body] = read
    request = request_type()
    try:
        _check_octets(fields, request_type.DESCRIPTOR)
        json_format.ParseDict(fields, request)
    except json_format.ParseError as error:
        why = str(error).partition("\n")[0].rstrip(".")
        raise invalid(f"The request is not valid JSON of its type: {why}.") from None
    except (ValueError, RecursionError):
        raise invalid("The request is not valid JSON of its type.") from None
    *outer, field = route.field.split(".")
    target = request
    for name in outer:
        target = getattr(target, name)
    setattr(target, field, call.name)
    return request


def _read_json(body: bytes) -> dict[str, Any]:
    try:
        read = read_json(body)
    except (ValueError, RecursionError):
        raise invalid("The body is not valid JSON.") from None
    if not isinstance(read, dict):
        raise invalid("The body must be a JSON object.")
    _check_count(read)
    return read


def _check_count(body: dict[str, Any]) -> None:
    """Refuses what has too many values in it: few bytes of JSON can be many large objects."""
    waiting: list[Any] = [body]
    left = VALUES_MAX
    while waiting:
        value = waiting.pop()
        left -= len(value)
        if left < 0:
            raise invalid(f"The body has over {VALUES_MAX} values in it.")
        parts = value.values() if isinstance(value, dict) else value
        waiting += [each for each in parts if isinstance(each, dict | list)]


def _fields_of(parameters: Iterable[tuple[str, str]], descriptor: Any) -> dict[str, Any]:
    """The fields that a query names, as their JSON would be."""
    fields: dict[str, Any] = {}
    for name, value in parameters:
        field = descriptor.fields_by_camelcase_name.get(name) or descriptor.fields_by_name.get(name)
        if field is None or field.message_type is not None or field.is_repeated:
            raise invalid(f"There is no parameter {shown(name)} here.")
        is_flag = field.type == field.TYPE_BOOL and value in ("true", "false")
        fields[field.name] = value == "true" if is_flag else value
    return fields


def _check_octets(value: Any, descriptor: Any) -> None:
    """Refuses bytes that are not base64: the library would pass over what it cannot read."""
    if not isinstance(value, dict):
        return
    for field in descriptor.fields:
        if field.type not in (field.TYPE_BYTES, field.TYPE_MESSAGE):
            continue
        held = value.get(field.json_name, value.get(field.name))
        for each in held if isinstance(held, list) else (held,):
            if field.type == field.TYPE_MESSAGE:
                _check_octets(each, field.message_type)
            elif isinstance(each, str) and not _BASE64.fullmatch(each):
                raise invalid(f"{field.json_name} must be base64, not {shown(each)}.")


def json_of(reply: Any, is_pretty: bool) -> bytes:
    """The JSON of a reply."""
    return json_bytes(json_format.MessageToDict(reply), is_pretty)


def json_bytes(value: Mapping[str, Any], is_pretty: bool) -> bytes:
    """A JSON object, with a line end."""
    return json.dumps(value, indent=2 if is_pretty else None).encode() + b"\n"
