"""Topics, receivers and parked deliveries under ``/v1``: each operation, asked of the broker."""

from typing import Any, Final

from asterism import checks, limits
from asterism.errors import PeerError
from asterism.gateways.http.protocol import NO_CONTENT, Request, Response, json_of
from asterism.gateways.http.queues import TIMEOUT_S
from asterism.gateways.http.v1_deliveries import contents_of
from asterism.gateways.http.v1_input import Query, body_of, sequence_of, texts
from asterism.options import TOPIC_NAMES, topic_overrides, unknown
from asterism.sdk.aio import Node

CREATED: Final = Response(201)


class Core:
    """What is asked of topics and receivers."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def status(self, request: Request) -> Response:
        return json_of(await self._node.query_status())

    # --- topics -----------------------------------------------------------------------------

    async def list_topics(self, request: Request) -> Response:
        Query(request)
        return json_of({"topics": await self._node.list_topics(timeout=TIMEOUT_S)})

    async def create_topic(self, request: Request) -> Response:
        settings = _settings(body_of(request, *TOPIC_NAMES))
        await self._node.create_topic(request.names["topic"], timeout=TIMEOUT_S, **settings)
        return CREATED

    async def describe(self, request: Request) -> Response:
        return json_of(
            await self._node.query("describe", request.names["topic"], timeout=TIMEOUT_S)
        )

    async def configure(self, request: Request) -> Response:
        body = body_of(request, "settings", "inherit")
        settings = _settings(body.get("settings", {}))
        inherit = texts("inherit", body.get("inherit", ()), len(TOPIC_NAMES))
        for name in inherit:
            if name not in TOPIC_NAMES:
                raise PeerError("bad_request", unknown("topic setting", name, TOPIC_NAMES))
        topic = request.names["topic"]
        await self._node.configure(topic, inherit=inherit, timeout=TIMEOUT_S, **settings)
        return NO_CONTENT

    async def delete_topic(self, request: Request) -> Response:
        await self._node.delete_topic(request.names["topic"], timeout=TIMEOUT_S)
        return NO_CONTENT

    async def clear(self, request: Request) -> Response:
        await self._node.clear(request.names["topic"], timeout=TIMEOUT_S)
        return NO_CONTENT

    # --- receivers --------------------------------------------------------------------------

    async def list_receivers(self, request: Request) -> Response:
        after = Query(request, "after").text("after") or ""
        checks.text("after", after, limits.NAME_BYTES_MAX, least=0)
        topic = request.names["topic"]
        rows: list[dict[str, Any]] = []
        while True:
            told = await self._node.query("list_receivers", topic, after, timeout=TIMEOUT_S)
            page = told.get("receivers", ())
            rows += page
            if len(page) < limits.LIST_MAX:
                return json_of({"receivers": rows})
            after = page[-1]["name"]

    async def create_receiver(self, request: Request) -> Response:
        body = body_of(request, "interests", "sent_timeout", "received_timeout")
        interests = texts("interests", body.get("interests", ()), limits.INTERESTS_MAX)
        await self._node.create_receiver(
            request.names["topic"],
            receiver_of(request),
            *interests,
            sent_timeout=body.get("sent_timeout"),
            received_timeout=body.get("received_timeout"),
            timeout=TIMEOUT_S,
        )
        return CREATED

    async def delete_receiver(self, request: Request) -> Response:
        topic, receiver = request.names["topic"], receiver_of(request)
        await self._node.delete_receiver(topic, receiver, timeout=TIMEOUT_S)
        return NO_CONTENT

    async def seek(self, request: Request) -> Response:
        body = body_of(request, "sequence", "time")
        sequence = checks.maybe_whole("sequence", body.get("sequence"), 0, limits.SEQUENCE_MAX)
        reached = await self._node.seek(
            request.names["topic"],
            receiver_of(request),
            sequence=sequence,
            time=body.get("time"),
            timeout=TIMEOUT_S,
        )
        return json_of({"sequence": reached})

    # --- messages, parked deliveries --------------------------------------------------------

    async def fetch(self, request: Request) -> Response:
        sequence = sequence_of(request)
        held = await self._node.query("fetch", request.names["topic"], sequence, timeout=TIMEOUT_S)
        held.update(contents_of(held.pop("payload")), id=held["id"].hex())
        return json_of({"sequence": sequence, **held})

    async def abandon(self, request: Request) -> Response:
        receiver = Query(request, "receiver").text("receiver")
        checks.maybe_text("receiver", receiver, limits.NAME_BYTES_MAX)
        topic, sequence = request.names["topic"], sequence_of(request)
        await self._node.abandon(topic, sequence, receiver, timeout=TIMEOUT_S)
        return NO_CONTENT

    async def renew(self, request: Request) -> Response:
        receiver = Query(request, "receiver").text("receiver")
        checks.maybe_text("receiver", receiver, limits.NAME_BYTES_MAX)
        topic, sequence = request.names["topic"], sequence_of(request)
        await self._node.renew(topic, sequence, receiver, timeout=TIMEOUT_S)
        return NO_CONTENT

    async def list_parked(self, request: Request) -> Response:
        after = Query(request, "after").whole("after") or 0
        checks.whole("after", after, 0, limits.SEQUENCE_MAX)
        topic = request.names["topic"]
        told = await self._node.query("list_parked", topic, after, timeout=TIMEOUT_S)
        return json_of({"parked": told.get("parked", ())})

    async def renew_all(self, request: Request) -> Response:
        await self._node.renew_all(request.names["topic"], timeout=TIMEOUT_S)
        return NO_CONTENT

    async def abandon_all(self, request: Request) -> Response:
        await self._node.abandon_all(request.names["topic"], timeout=TIMEOUT_S)
        return NO_CONTENT


def receiver_of(request: Request) -> str:
    return checks.text("receiver", request.names["receiver"], limits.NAME_BYTES_MAX)


def _settings(given: object) -> dict[str, Any]:
    """Settings of a topic, checked here: the broker's answer is then about the topic alone."""
    if type(given) is not dict:
        raise PeerError("bad_request", "settings must be an object")
    topic_overrides(given)
    return given
