"""The OpenAPI document of a table of paths. Pure."""

from typing import Any, Final

from asterism import __version__
from asterism.gateways.http.protocol import Operation
from asterism.gateways.http.v1_schemas import NAME, TOPIC

# What a path names.
NAMED: Final[dict[str, dict[str, Any]]] = {
    "namespace": {"type": "string", "pattern": r"^[a-zA-Z0-9.\-_]{1,255}$"},
    "id": {"type": "string", "pattern": "^[0-9]{1,19}$"},
    "topic": TOPIC,
    "receiver": NAME,
    "sequence": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
    "receipt": {"type": "string", "pattern": "^[0-9a-f]{32}-[0-9]{1,18}-[0-9]{1,18}$"},
}
# Groups of paths, by what these begin with; the rest is the service itself.
_TAGS: Final = {
    "/mq": ("queue", "A work queue: draft, set, order, get, complete."),
    "/admin": ("admin", "Settings of queues, behind the password."),
    "/v1": ("core", "The whole broker, by the names of its SDK."),
    "": ("service", "What this service says of itself."),
}
_ERROR: Final = {
    "type": "object",
    "properties": {
        "statusCode": {"type": "integer"},
        "error": {"type": "string"},
        "code": {"type": "string", "description": "what went wrong, for programs"},
        "message": {"type": "string", "description": "what went wrong, and what to do"},
    },
    "required": ["message"],
}
_REFUSED: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
_EMPTY: Final = (404, 409)  # have no body on the paths of queues, but where JSON is sent


def document_of(paths: dict[str, dict[str, Operation]]) -> dict[str, Any]:
    """The OpenAPI document of a table of paths."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Asterism, the HTTP door", "version": __version__},
        "tags": [{"name": name, "description": told} for name, told in _TAGS.values()],
        "components": {
            "securitySchemes": {"password": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _ERROR},
        },
        "paths": {
            path: {
                **_parameters(path),
                **{method.lower(): _operation(path, held) for method, held in operations.items()},
            }
            for path, operations in paths.items()
        },
    }


def _tag_of(path: str) -> str:
    return next(name for start, (name, _) in _TAGS.items() if path.startswith(start))


def _parameters(path: str) -> dict[str, Any]:
    named = [name for name in NAMED if f"{{{name}}}" in path]
    if not named:
        return {}
    return {
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": NAMED[name]} for name in named
        ]
    }


def _operation(path: str, held: Operation) -> dict[str, Any]:
    failures = {
        503: "the broker is busy or away: try again",
        400: "a request that cannot be one",
        403: "a page of another origin asks, or the service is called by a name that it has not",
    }
    answers = {**failures, **held.answers}
    told: dict[str, Any] = {
        "tags": [_tag_of(path)],
        "summary": held.summary,
        "responses": {
            str(status): {"description": meaning, **_content(path, held, status)}
            for status, meaning in sorted(answers.items())
        },
    }
    asked = [("query", held.query or {}), ("header", held.sends or {})]
    parameters = [
        {"name": name, "in": where, "schema": schema}
        for where, schemas in asked
        for name, schema in schemas.items()
    ]
    if parameters:
        told["parameters"] = parameters
    if held.body is not None:
        told["requestBody"] = {"required": held.needs_body, "content": _bodies(held)}
    if held.private or held.guarded:
        told["security"] = [{"password": []}] if held.private else [{}, {"password": []}]
    return told


def _content(path: str, held: Operation, status: int) -> dict[str, Any]:
    if status >= 400:
        is_empty = status in _EMPTY and path.startswith("/mq") and held.schema is None
        return {} if is_empty else {"content": _REFUSED}
    if status not in (200, 207):
        return {}
    schema = {} if held.returned is None else {"schema": held.returned}
    return {"content": {media.partition(";")[0]: schema for media in held.returns}}


def _bodies(held: Operation) -> dict[str, Any]:
    assert held.body is not None
    json = {"schema": held.schema or {}} if held.body == "application/json" else {}
    return {held.body: json, **({"application/octet-stream": {}} if held.raw else {})}
