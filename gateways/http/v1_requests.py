"""Request and reply under ``/v1``: a request waits for its answer; any consumer may give one."""

import asyncio
from typing import Final

from asterism.gateways.http.protocol import NO_CONTENT, RefusedError, Request, Response, json_of
from asterism.gateways.http.queues import TIMEOUT_S
from asterism.gateways.http.v1_deliveries import contents_of
from asterism.gateways.http.v1_input import Query, body_of, seconds_within
from asterism.gateways.http.v1_messages import (
    Sent,
    common_wishes,
    joined,
    message_of,
    raw_message,
)
from asterism.sdk.aio import Node

REQUEST_S_MAX: Final = 300.0
REQUEST_S: Final = 30.0
# What a message that is handed over at once, and kept nowhere, can be wished to be.
WISHES: Final = ("subject", "subjects", "expect", "attributes", "priority", "ordering_key")
QUERY_WISHES: Final = ("subject", "expect", "attribute", "priority", "ordering_key")


class Requests:
    """What is asked of whoever is subscribed, and what they answer."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def request(self, request: Request) -> Response:
        query = Query(request, "timeout", *QUERY_WISHES)
        given = query.number("timeout")
        wait = seconds_within("timeout", REQUEST_S if given is None else given, REQUEST_S_MAX)
        payload, wishes = _message(request, query)
        topic = request.names["topic"]
        try:
            async with asyncio.timeout(wait):
                answer = await self._node.request(topic, payload, timeout=TIMEOUT_S, **wishes)
        except TimeoutError:
            raise RefusedError(
                504, f"there is no answer within {wait:g} s; one may still be made", (), "no_answer"
            ) from None
        told = {"id": answer.id.hex(), "attributes": answer.attributes}
        return json_of({**told, **contents_of(answer.payload)})

    async def reply(self, request: Request) -> Response:
        payload, wishes = _message(request, Query(request, *QUERY_WISHES))
        if "subject" not in wishes and "subjects" not in wishes:
            raise RefusedError(400, "a reply has the topic and the subject of a reply_to")
        wishes["mode"] = "push"
        await self._node.publish(request.names["topic"], payload, timeout=TIMEOUT_S, **wishes)
        return NO_CONTENT


def _message(request: Request, query: Query) -> Sent:
    common = common_wishes(query)
    if request.media == "application/json":
        payload, own = message_of(body_of(request, "payload", "payload_base64", *WISHES))
        return payload, joined(common, own)
    return raw_message(request, common)
