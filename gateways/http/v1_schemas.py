"""What ``/v1`` takes and answers, as JSON schemas for the OpenAPI document. Pure."""

from typing import Any, Final

from asterism import limits
from asterism.gateways.http.v1_deliveries import (
    PULL_BYTES_MAX,
    PULL_DEFAULT,
    PULL_MAX,
    WAIT_S_MAX,
)
from asterism.gateways.http.v1_publishing import KEY_BYTES_MAX, RECEIPTS_MAX, RESOLVED_S_MAX
from asterism.gateways.http.v1_requests import REQUEST_S, REQUEST_S_MAX
from asterism.gateways.http.v1_streams import CREDIT, CREDIT_MAX
from asterism.settings import RECEIPT_TTL_MS_MAX, TIMEOUT_MS_MAX, TTL_MS_MAX

Schema = dict[str, Any]


def whole(least: int, most: int, **more: Any) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most, **more}


def text(most: int, least: int = 1, **more: Any) -> Schema:
    return {"type": "string", "minLength": least, "maxLength": most, **more}


def seconds(most_ms: int, least_ms: int = 0) -> Schema:
    return {"type": "number", "minimum": least_ms / 1_000, "maximum": most_ms / 1_000}


def choice(*names: str) -> Schema:
    return {"type": "string", "enum": list(names)}


def many(items: Schema, most: int, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def fields(*required: str, **properties: Schema) -> Schema:
    told = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**told, "required": list(required)} if required else told


def answer(**properties: Schema) -> Schema:
    """What is answered may have more fields one day."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


FLAG: Final[Schema] = {"type": "boolean"}
COUNT: Final = whole(1, limits.SEQUENCE_MAX)
SEQUENCE: Final = whole(1, limits.SEQUENCE_MAX)
# What can be said of a name by a pattern, and no more: its bytes are counted by the broker alone.
# Nothing is looked ahead for, since not every engine does that.
TOPIC: Final = text(
    limits.TOPIC_BYTES_MAX,
    pattern=r"^[^\u0000-\u001f\u007f-\u009f]+$",
    description="at most 255 bytes of UTF-8, without control characters",
)
NAME: Final = text(limits.NAME_BYTES_MAX, description="at most 255 bytes of UTF-8")
AFTER: Final = text(limits.NAME_BYTES_MAX, 0, description="those behind this name")
_SEGMENT: Final = r"[^/]+"
_PLAIN_SEGMENT: Final = r"([^*/][^/]*|\*[^*/][^/]*|\*\*[^/]+)"  # neither * nor **


def _segments(one: str) -> str:
    """Segments between slashes; slashes at the ends and doubled ones are dropped."""
    return f"^/*{one}(/+{one}){{0,{limits.SEGMENTS_MAX - 1}}}/*$"


SUBJECT: Final = text(
    limits.SUBJECT_BYTES_MAX,
    pattern=_segments(_PLAIN_SEGMENT),
    description="at most 1024 bytes of UTF-8, 1 to 32 segments between slashes, none a wildcard",
)
INTEREST: Final = text(
    limits.SUBJECT_BYTES_MAX,
    pattern=_segments(_SEGMENT),
    description="as a subject; the segment * stands for any one, ** for one or more",
)
INTERESTS: Final = many(INTEREST, limits.INTERESTS_MAX)
_TIMEOUT: Final = seconds(TIMEOUT_MS_MAX, 1)
# A point in time: seconds since 1970.
_MOMENT: Final = seconds(limits.TIME_MS_MAX)

_EXPECT: Final = choice("sent", "received", "processed")
_RECEIVERS_WANTED: Final = whole(1, limits.RECEIVERS_WANTED_MAX)

SETTINGS: Final = fields(
    expect=or_null(_EXPECT),
    max_receivers=or_null(_RECEIVERS_WANTED),
    blocking=FLAG,
    overflow=or_null(fields("size", size=COUNT, policy=choice("reject_new", "drop_old"))),
    concurrency=or_null(COUNT),
    unique=FLAG,
    draft_timeout=seconds(TIMEOUT_MS_MAX),
    sent_timeout=_TIMEOUT,
    received_timeout=_TIMEOUT,
    max_attempts=COUNT,
    max_deliveries=or_null(COUNT),
    retry_backoff=or_null(fields("min", "max", min=seconds(1_000), max=seconds(60_000, 1_000))),
    dead_letter=or_null(TOPIC),
    requeue=choice("back", "front"),
    default_ttl=seconds(TTL_MS_MAX, 1),
    max_payload=whole(0, 512 * 1_048_576),
    history=choice("none", "headers", "full"),
    history_ttl=seconds(TIMEOUT_MS_MAX),
    receipt_ttl=seconds(RECEIPT_TTL_MS_MAX),
    dedicated=FLAG,
)
CONFIGURATION: Final = fields(
    settings=SETTINGS,
    inherit=many(choice(*SETTINGS["properties"]), len(SETTINGS["properties"])),
)

_WISHES: Final[dict[str, Schema]] = {
    "mode": choice("durable", "push", "online"),
    "expect": _EXPECT,
    "max_receivers": {"anyOf": [_RECEIVERS_WANTED, {"const": "all"}]},
    "ttl": seconds(TTL_MS_MAX),
    "expires_at": {"anyOf": [_MOMENT, {"const": "never"}]},
    "priority": whole(0, limits.PRIORITY_MAX),
    "deliver_at": _MOMENT,
    "ordering_key": text(limits.ORDERING_KEY_BYTES_MAX),
}
_MESSAGE: Final[dict[str, Schema]] = {
    "subject": SUBJECT,
    "subjects": many(SUBJECT, limits.SUBJECTS_MAX, 1),
    **_WISHES,
    "attributes": {
        "type": "object",
        "maxProperties": limits.ATTRIBUTES_MAX,
        "additionalProperties": {"type": "string"},
    },
    "receipt": {**FLAG, "description": "answered with a receipt, to ask by how it ended"},
}
PUBLISH: Final = fields(
    "messages",
    messages=many(
        {
            "oneOf": [
                fields("payload", payload={"type": "string"}, **_MESSAGE),
                fields(
                    "payload_base64",
                    payload_base64={"type": "string", "contentEncoding": "base64"},
                    **_MESSAGE,
                ),
            ]
        },
        limits.BATCH_MESSAGES_MAX,
        1,
    ),
)
_RESOLVED: Final = {
    **seconds(round(RESOLVED_S_MAX * 1_000)),
    "description": "wait so many seconds for the verdicts",
}
PUBLISH_QUERY: Final[dict[str, Schema]] = {
    "resolved": _RESOLVED,
    **{
        name: {
            **schema,
            "description": "for all messages of the body; what one says itself goes first",
        }
        for name, schema in {
            "subject": many(SUBJECT, limits.SUBJECTS_MAX),
            "attribute": many({"type": "string", "pattern": "^[^:]*:"}, limits.ATTRIBUTES_MAX),
            **_WISHES,
            "receipt": _MESSAGE["receipt"],
        }.items()
    },
}
PUBLISH_HEADERS: Final[dict[str, Schema]] = {
    "Idempotency-Key": text(
        KEY_BYTES_MAX,
        pattern=r"^[!-~]{1,255}$",
        description="the same request under the same key is stored once, for 7 days",
    )
}
VERDICT: Final = choice("ok", "failed", "expired", "dropped", "pending", "unknown")
_STATUSES: Final = {"type": "object", "additionalProperties": {"type": "string"}}
_PUBLISHED: Final = {
    "type": "object",
    "properties": {
        "sequence": SEQUENCE,
        "id": {"type": "string"},
        "receipt": {"type": "string"},
        "verdict": VERDICT,
        "statuses": _STATUSES,
        "code": {"type": "string"},
        "message": {"type": "string"},
    },
}
PUBLISHED: Final = answer(results={"type": "array", "items": _PUBLISHED})
RECEIPT: Final = answer(
    receipt={"type": "string"}, sequence=SEQUENCE, verdict=VERDICT, statuses=_STATUSES
)
_RECEIPT: Final = {"type": "string", "pattern": "^[0-9a-f]{32}-[0-9]{1,18}-[0-9]{1,18}$"}
RECEIPTS: Final = fields(
    "receipts",
    receipts=many(_RECEIPT, RECEIPTS_MAX),
    wait=seconds(round(RESOLVED_S_MAX * 1_000)),
)
_PAYLOADS: Final[dict[str, Schema]] = {
    "payload": {"type": "string", "description": "where it is text"},
    "payload_base64": {"type": "string", "contentEncoding": "base64"},
}


def _content(required: Schema, **more: Schema) -> Schema:
    """What is answered about a message, with its payload."""
    return {
        "type": "object",
        "properties": {**required, **_PAYLOADS, **more},
        "required": [*required, "payload_base64"],
    }


_ATTRIBUTES: Final = {"type": "object", "additionalProperties": {"type": "string"}}
_REQUEST: Final = {
    name: schema
    for name, schema in _MESSAGE.items()
    if name in ("subject", "subjects", "expect", "attributes", "priority", "ordering_key")
}
REQUEST: Final[Schema] = {
    "oneOf": [
        fields("payload", payload={"type": "string"}, **_REQUEST),
        fields(
            "payload_base64",
            payload_base64={"type": "string", "contentEncoding": "base64"},
            **_REQUEST,
        ),
    ]
}
REPLY_QUERY: Final[dict[str, Schema]] = {
    name: PUBLISH_QUERY[name]
    for name in ("subject", "expect", "attribute", "priority", "ordering_key")
}
REQUEST_QUERY: Final[dict[str, Schema]] = {
    "timeout": {
        **seconds(round(REQUEST_S_MAX * 1_000), 1),
        "default": REQUEST_S,
        "description": "wait so many seconds for the answer",
    },
    **REPLY_QUERY,
}
REPLIED: Final = _content({"id": {"type": "string"}, "attributes": _ATTRIBUTES})

_ENTRY: Final = {"anyOf": [SEQUENCE, fields("sequence", sequence=SEQUENCE, attempt=COUNT)]}
_FAILED: Final = fields(
    "sequence", sequence=SEQUENCE, attempt=COUNT, reason=text(limits.HEADER_BYTES_MAX, 0)
)
REPORTS: Final = fields(
    received=many(_ENTRY, limits.BATCH_MESSAGES_MAX),
    processed=many(_ENTRY, limits.BATCH_MESSAGES_MAX),
    failed=many({"anyOf": [SEQUENCE, _FAILED]}, limits.BATCH_MESSAGES_MAX),
)
REFUSED: Final = answer(
    refused={
        "type": "array",
        "items": answer(sequence=whole(0, limits.SEQUENCE_MAX), code={"type": "string"}),
    }
)
EXTEND: Final = fields(
    "sequences",
    "seconds",
    sequences=many(SEQUENCE, limits.BATCH_MESSAGES_MAX, 1),
    seconds=seconds(TIMEOUT_MS_MAX),
)
PULL: Final = fields(
    max=whole(1, PULL_MAX, default=PULL_DEFAULT),
    max_bytes=whole(
        1,
        PULL_BYTES_MAX,
        default=PULL_BYTES_MAX,
        description="of payloads together; the last delivery may go past it",
    ),
    wait=seconds(round(WAIT_S_MAX * 1_000)),
    interests=INTERESTS,
)
_DELIVERY: Final = _content(
    {
        "sequence": SEQUENCE,
        "attempt": COUNT,
        "id": {"type": "string"},
        "topic": {"type": "string"},
        "receiver": {"type": "string"},
        "subjects": {"type": "array", "items": {"type": "string"}},
        "attributes": _ATTRIBUTES,
        "mode": _WISHES["mode"],
        "expect": _WISHES["expect"],
    },
    reply_to=answer(topic={"type": "string"}, subject={"type": "string"}),
)
PULLED: Final = answer(deliveries={"type": "array", "items": _DELIVERY})
HELD: Final = _content(
    {
        "sequence": SEQUENCE,
        "id": {"type": "string"},
        "status": choice("waiting", "sent", "received", "failed"),
        "attributes": _ATTRIBUTES,
        "priority": or_null(_WISHES["priority"]),
    }
)
_NUMBER: Final = whole(0, limits.SEQUENCE_MAX)
_LAG: Final[dict[str, Schema]] = {
    "lag": {**_NUMBER, "description": "messages that it has still to do"},
    "out": {**_NUMBER, "description": "of them, those that it holds"},
    "oldest_ms": or_null({**_NUMBER, "description": "the age of the oldest of them"}),
    "counted": {**FLAG, "description": "false: the numbers are near"},
}
DESCRIBED: Final = answer(
    topic={"type": "string"},
    settings={"type": "object"},
    overrides={"type": "array", "items": {"type": "string"}},
    held=_NUMBER,
    drafting=_NUMBER,
    waiting=_NUMBER,
    sent=_NUMBER,
    received=_NUMBER,
    parked=_NUMBER,
    completed=_NUMBER,
    receivers=_NUMBER,
    endpoints=_NUMBER,
    totals={"type": "object"},
    rates={"type": "object"},
    kept={**_NUMBER, "description": "held, and every receiver who is interested has done them"},
    counted={**FLAG, "description": "false: kept is being counted"},
    lags={"type": "object", "additionalProperties": answer(**_LAG)},
)
RECEIVERS: Final = answer(
    receivers={
        "type": "array",
        "items": answer(
            name={"type": "string"},
            durable=FLAG,
            online=FLAG,
            interests={"type": "array", "items": {"type": "string"}},
            in_flight=_NUMBER,
            parked=_NUMBER,
            **_LAG,
        ),
    }
)
PARKED: Final = answer(
    parked={
        "type": "array",
        "items": answer(
            sequence=SEQUENCE,
            position=_NUMBER,
            receiver={"type": "string"},
            reason={"type": "string"},
        ),
    }
)
_PROCESS: Final = or_null(answer(process={"type": "string"}, pid=COUNT, uptime_ms=_NUMBER))
STATUS: Final = answer(
    frontend=_PROCESS, interests=_PROCESS, workers={"type": "array", "items": _PROCESS}
)
RECEIVER: Final = fields(interests=INTERESTS, sent_timeout=_TIMEOUT, received_timeout=_TIMEOUT)
SEEK: Final = {
    "anyOf": [fields(), fields("sequence", sequence=SEQUENCE), fields("time", time=_MOMENT)]
}
SUBSCRIBE_QUERY: Final[dict[str, Schema]] = {
    "interest": INTERESTS,
    "name": NAME,
    "group": NAME,
    "durable": FLAG,
    "credit": whole(0, CREDIT_MAX, default=CREDIT),
    "auto": {**FLAG, "description": "what is written counts as processed"},
    "sent_timeout": _TIMEOUT,
    "received_timeout": _TIMEOUT,
}
