"""Messages as publishers send them to ``/v1``: in JSON, or a body as it is. Pure."""

from typing import Any, Final

from asterism import checks, limits
from asterism.gateways.http.protocol import RefusedError, Request
from asterism.gateways.http.queues import CONTENT_TYPE
from asterism.gateways.http.v1_input import Query, fields_of, octets_of, texts
from asterism.sdk.composing import ALL, Wishes

WISHES: Final = (
    *("subject", "subjects", "mode", "expect", "attributes", "max_receivers", "ttl"),
    *("expires_at", "priority", "deliver_at", "ordering_key", "receipt"),
)
QUERY_WISHES: Final = (
    *("subject", "mode", "expect", "attribute", "max_receivers", "ttl"),
    *("expires_at", "priority", "deliver_at", "ordering_key", "receipt"),
)
Sent = tuple[bytes, Wishes]


def listed(body: dict[str, Any], common: Wishes) -> list[Sent]:
    entries = checks.tuple_of("messages", body.get("messages"), limits.BATCH_MESSAGES_MAX)
    return [(payload, joined(common, own)) for payload, own in map(message_of, entries)]


def joined(common: Wishes, own: Wishes) -> Wishes:
    """What is wished for all, and for one; its own go first, whichever way they are said."""
    joined: Wishes = {**common, **own}
    for one, other in (("subject", "subjects"), ("ttl", "expires_at"), ("expires_at", "ttl")):
        if one in own and other not in own:
            joined.pop(other, None)  # type: ignore[misc]
    if "attributes" in common and "attributes" in own:
        joined["attributes"] = {**(common["attributes"] or {}), **(own["attributes"] or {})}
    return joined


def message_of(entry: object) -> Sent:
    fields = dict(fields_of("a message", entry, ("payload", "payload_base64", *WISHES)))
    if ("payload" in fields) == ("payload_base64" in fields):
        raise RefusedError(400, "a message has payload, which is text, or payload_base64")
    if "payload" in fields:
        text = fields.pop("payload")
        if type(text) is not str:
            raise RefusedError(400, "payload must be text; for other bytes there is payload_base64")
        payload = text.encode()
    else:
        payload = octets_of(fields.pop("payload_base64"))
    if "subjects" in fields:
        fields["subjects"] = texts("subjects", fields["subjects"], limits.SUBJECTS_MAX)
    if fields.get("attributes") is not None:
        checks.string_map("attributes", fields["attributes"])
    if fields.get("receipt") is not None:
        checks.flag("receipt", fields["receipt"])
    wishes: Wishes = {name: value for name, value in fields.items() if value is not None}  # type: ignore[assignment]
    return payload, wishes


def raw_message(request: Request, common: Wishes) -> Sent:
    """A body as it is: one message, which keeps its type as an attribute."""
    media = request.header(b"content-type")
    own: Wishes = {"attributes": {CONTENT_TYPE: media}} if media else {}
    return request.body, joined(own, common)


def common_wishes(query: Query) -> Wishes:
    """The wishes in a query, for all messages of its body."""
    is_endless = query.text("expires_at") == "never"
    is_for_all = query.text("max_receivers") == ALL
    attributes = {}
    for pair in query.many("attribute"):
        name, colon, value = pair.partition(":")
        if not colon:
            raise RefusedError(400, "an attribute is name:value")
        attributes[name] = value
    given: dict[str, Any] = {
        "subjects": query.many("subject") or None,
        "mode": query.text("mode"),
        "expect": query.text("expect"),
        "attributes": attributes or None,
        "max_receivers": ALL if is_for_all else query.whole("max_receivers"),
        "ttl": query.number("ttl"),
        "expires_at": "never" if is_endless else query.number("expires_at"),
        "priority": query.whole("priority"),
        "deliver_at": query.number("deliver_at"),
        "ordering_key": query.text("ordering_key"),
        "receipt": query.flag("receipt"),
    }
    return {name: value for name, value in given.items() if value is not None}  # type: ignore[return-value]
