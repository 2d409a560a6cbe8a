"""What ``/v1`` takes and answers, as JSON schemas for the OpenAPI document. Pure."""

from typing import Any, Final

from asterism import limits
from asterism.gateways.http.v1_deliveries import PULL_DEFAULT, PULL_MAX, WAIT_S_MAX
from asterism.gateways.http.v1_publishing import RESOLVED_S_MAX
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
NAME: Final = text(limits.NAME_BYTES_MAX, pattern=r"^[a-zA-Z0-9._\-]+$")
SUBJECT: Final = text(
    limits.SUBJECT_BYTES_MAX, pattern=r"^[a-zA-Z0-9_\-]+(/[a-zA-Z0-9_\-]+){0,15}$"
)
INTEREST: Final = text(
    limits.SUBJECT_BYTES_MAX, pattern=r"^([a-zA-Z0-9_\-]+|\*\*?)(/([a-zA-Z0-9_\-]+|\*\*?)){0,15}$"
)
INTERESTS: Final = many(INTEREST, limits.INTERESTS_MAX)
_TIMEOUT: Final = seconds(TIMEOUT_MS_MAX, 1)
# A point in time: seconds since 1970.
_MOMENT: Final = seconds(limits.TIME_MS_MAX)

SETTINGS: Final = fields(
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
    dead_letter=or_null(text(limits.TOPIC_BYTES_MAX, pattern=r"^[a-zA-Z0-9._\-]+$")),
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
    "expect": choice("sent", "received", "processed"),
    "max_receivers": whole(1, limits.RECEIVERS_WANTED_MAX),
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
    "receipt": {**FLAG, "description": "counts only where the query has resolved"},
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
            "attribute": many({"type": "string", "pattern": "^[a-z]+:.*$"}, limits.ATTRIBUTES_MAX),
            **_WISHES,
        }.items()
    },
}
PUBLISHED: Final = answer(results={"type": "array", "items": {"type": "object"}})

_ENTRY: Final = {"anyOf": [SEQUENCE, fields("sequence", sequence=SEQUENCE, attempt=COUNT)]}
_FAILED: Final = fields(
    "sequence", sequence=SEQUENCE, attempt=COUNT, reason=text(limits.REASON_BYTES_MAX, 0)
)
REPORTS: Final = fields(
    received=many(_ENTRY, limits.BATCH_MESSAGES_MAX),
    processed=many(_ENTRY, limits.BATCH_MESSAGES_MAX),
    failed=many({"anyOf": [SEQUENCE, _FAILED]}, limits.BATCH_MESSAGES_MAX),
)
REFUSED: Final = answer(refused={"type": "array", "items": {"type": "object"}})
EXTEND: Final = fields(
    "sequences",
    "seconds",
    sequences=many(SEQUENCE, limits.BATCH_MESSAGES_MAX, 1),
    seconds=seconds(TIMEOUT_MS_MAX),
)
PULL: Final = fields(
    max=whole(1, PULL_MAX, default=PULL_DEFAULT),
    wait=seconds(round(WAIT_S_MAX * 1_000)),
    interests=INTERESTS,
)
PULLED: Final = answer(deliveries={"type": "array", "items": {"type": "object"}})
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
