"""Publishing under ``/v1``: one message or many, and what became of each."""

import asyncio
from typing import Any, Final

from asterism import checks, limits
from asterism.errors import PeerError
from asterism.gateways.http.protocol import RefusedError, Request, Response, json_of, refusal_of
from asterism.gateways.http.queues import CONTENT_TYPE, TIMEOUT_S
from asterism.gateways.http.v1_input import (
    Query,
    body_of,
    fields_of,
    octets_of,
    seconds_within,
    texts,
)
from asterism.sdk.aio import Node, Receipt
from asterism.sdk.composing import Wishes

BODY_BYTES_MAX: Final = 16 * 1_048_576  # many messages in one body, or a large one in base64
RESOLVED_S_MAX: Final = 300.0
PENDING: Final = "pending"  # the verdict on a message that was not resolved in time
WISHES: Final = (
    *("subject", "subjects", "mode", "expect", "attributes", "max_receivers", "ttl"),
    *("expires_at", "priority", "deliver_at", "ordering_key", "receipt"),
)
QUERY_WISHES: Final = (
    *("subject", "mode", "expect", "attribute", "max_receivers", "ttl"),
    *("expires_at", "priority", "deliver_at", "ordering_key"),
)
Message = tuple[bytes, Wishes]
Fate = Receipt | PeerError


class Publishing:
    """What publishers ask."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def publish(self, request: Request) -> Response:
        query = Query(request, "resolved", *QUERY_WISHES)
        common = _common(query)
        if request.media == "application/json":
            messages = _listed(body_of(request, "messages"), common)
        else:
            messages = [_raw(request, common)]
        wait = query.number("resolved")
        if wait is not None:
            seconds_within("resolved", wait, RESOLVED_S_MAX)
        for _, wishes in messages:
            # Nobody could ask for a receipt later: it is for those who wait.
            wishes["receipt"] = wait is not None and wishes.get("receipt") is not False
        fates = await self._publish(request.names["topic"], messages)
        if wait is not None:
            await _resolve(fates, wait)
        return _answer(fates)

    async def _publish(self, topic: str, messages: list[Message]) -> list[Fate]:
        """Sends all of them, and waits until each is accepted or refused."""
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        sent = [await self._send(topic, payload, wishes) for payload, wishes in messages]
        return [await _accepted(fate, deadline) for fate in sent]

    async def _send(self, topic: str, payload: bytes, wishes: Wishes) -> Fate:
        try:
            return await self._node.send(topic, payload, timeout=TIMEOUT_S, **wishes)
        except PeerError as error:
            return error


async def _accepted(fate: Fate, deadline: float) -> Fate:
    if isinstance(fate, PeerError):
        return fate
    try:
        left_s = max(deadline - asyncio.get_running_loop().time(), 0)
        return await fate.accepted(left_s)
    except PeerError as error:
        return error
    except TimeoutError as error:
        return PeerError("busy", str(error))


async def _resolve(fates: list[Fate], wait: float) -> None:
    """Waits for the verdicts, all together so long; each says by itself whether it has one."""
    try:
        async with asyncio.timeout(wait):
            for fate in fates:
                if isinstance(fate, Receipt) and fate.receipt:
                    await fate.resolved(None)
    except TimeoutError:
        return


# --- what is sent -------------------------------------------------------------------------------


def _listed(body: dict[str, Any], common: Wishes) -> list[Message]:
    entries = checks.tuple_of("messages", body.get("messages"), limits.BATCH_MESSAGES_MAX)
    return [(payload, _joined(common, own)) for payload, own in map(_message, entries)]


def _joined(common: Wishes, own: Wishes) -> Wishes:
    """What is wished for all, and for one; its own go first, whichever way they are said."""
    joined: Wishes = {**common, **own}
    for one, other in (("subject", "subjects"), ("ttl", "expires_at"), ("expires_at", "ttl")):
        if one in own and other not in own:
            joined.pop(other, None)  # type: ignore[misc]
    if "attributes" in common and "attributes" in own:
        joined["attributes"] = {**(common["attributes"] or {}), **(own["attributes"] or {})}
    return joined


def _message(entry: object) -> Message:
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


def _raw(request: Request, common: Wishes) -> Message:
    """A body as it is: one message, which keeps its type as an attribute."""
    media = request.header(b"content-type")
    own: Wishes = {"attributes": {CONTENT_TYPE: media}} if media else {}
    return request.body, _joined(own, common)


def _common(query: Query) -> Wishes:
    """The wishes in a query, for all messages of its body."""
    is_endless = query.text("expires_at") == "never"
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
        "max_receivers": query.whole("max_receivers"),
        "ttl": query.number("ttl"),
        "expires_at": "never" if is_endless else query.number("expires_at"),
        "priority": query.whole("priority"),
        "deliver_at": query.number("deliver_at"),
        "ordering_key": query.text("ordering_key"),
    }
    return {name: value for name, value in given.items() if value is not None}  # type: ignore[return-value]


# --- what is answered ---------------------------------------------------------------------------


def _answer(fates: list[Fate]) -> Response:
    """200 if all were accepted, 207 if some, else the status of the first refusal."""
    refused = [fate for fate in fates if isinstance(fate, PeerError)]
    told: dict[str, Any] = {"results": [_result(fate) for fate in fates]}
    if not refused:
        return json_of(told)
    if len(refused) < len(fates):
        return json_of(told)._replace(status=207)
    first = refusal_of(refused[0])
    body = {"code": first.code, "message": first.message, **told}
    return json_of(body)._replace(status=first.status, headers=first.headers)


def _result(fate: Fate) -> dict[str, Any]:
    if isinstance(fate, PeerError):
        return {"code": fate.code, "message": refusal_of(fate).message}
    told: dict[str, Any] = {"sequence": fate.sequence, "id": fate.id.hex()}
    if fate.receipt:
        outcome = fate.outcomes.get(0)
        told["verdict"] = PENDING if outcome is None else outcome.verdict
        told["statuses"] = {} if outcome is None else outcome.statuses
    return told
