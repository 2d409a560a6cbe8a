"""The OpenAPI document of a table of paths. Pure."""

from typing import Any

from asterism import __version__
from asterism.gateways.http.protocol import Operation

_KEYS = ["unique", "drafting-timeout", "ordered-timeout", "active-timeout", "concurrency"]
_TEXT = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "description": "at most 255 bytes of UTF-8",
}
_NAMED: dict[str, dict[str, Any]] = {
    "namespace": {"type": "string", "pattern": r"^[a-zA-Z0-9.\-_]{1,255}$"},
    "id": {"type": "string", "pattern": "^[0-9]{1,19}$"},
    "key": {"type": "string", "enum": _KEYS},
    "topic": {**_TEXT, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"},
    "receiver": _TEXT,
    "sequence": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
}


def document_of(paths: dict[str, dict[str, Operation]]) -> dict[str, Any]:
    """The OpenAPI document of a table of paths."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Asterism, the HTTP door", "version": __version__},
        "components": {"securitySchemes": {"password": {"type": "http", "scheme": "bearer"}}},
        "paths": {
            path: {
                **_parameters(path),
                **{method.lower(): _operation(held) for method, held in operations.items()},
            }
            for path, operations in paths.items()
        },
    }


def _parameters(path: str) -> dict[str, Any]:
    named = [name for name in _NAMED if f"{{{name}}}" in path]
    if not named:
        return {}
    return {
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": _NAMED[name]} for name in named
        ]
    }


def _operation(held: Operation) -> dict[str, Any]:
    failures = {503: "the broker is busy or away: try again", 400: "a request that cannot be one"}
    answers = {**failures, **held.answers}
    told: dict[str, Any] = {
        "summary": held.summary,
        "responses": {
            str(status): {"description": meaning, **_content(held, status)}
            for status, meaning in sorted(answers.items())
        },
    }
    if held.query:
        told["parameters"] = [
            {"name": name, "in": "query", "schema": schema} for name, schema in held.query.items()
        ]
    if held.body is not None:
        told["requestBody"] = {"required": held.needs_body, "content": _bodies(held)}
    if held.private or held.guarded:
        told["security"] = [{"password": []}] if held.private else [{}, {"password": []}]
    return told


def _content(held: Operation, status: int) -> dict[str, Any]:
    if status not in (200, 207):
        return {}
    schema = {} if held.returned is None else {"schema": held.returned}
    return {"content": {media.partition(";")[0]: schema for media in held.returns}}


def _bodies(held: Operation) -> dict[str, Any]:
    assert held.body is not None
    json = {"schema": held.schema or {}} if held.body == "application/json" else {}
    return {held.body: json, **({"application/octet-stream": {}} if held.raw else {})}
