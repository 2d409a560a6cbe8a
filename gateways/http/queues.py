"""The work queue over HTTP: each operation of a namespace, asked of its topic.

A namespace is a topic of the same name. The empty namespace is one too: it has the topic ``~``,
which no other namespace can have.
"""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, Final, TypeVar

from asterism import limits
from asterism.errors import NoSuchTopic, PeerError
from asterism.gateways.http.protocol import (
    NAME,
    NO_CONTENT,
    RefusedError,
    Request,
    Response,
    json_of,
    list_of,
    media_of,
    text,
)
from asterism.sdk.aio import Node
from asterism.settings import TopicSettings

EMPTY: Final = "~"  # the topic of the empty namespace
CONTENT_TYPE: Final = "content-type"  # the attribute that keeps it
TIMEOUT_S: Final = 30.0
AT_ONCE: Final = 64  # topics asked at a time for a list of them
STATES: Final = ("drafting", "waiting", "ordered", "active", "completed", "failed")
_STATE_OF: Final = {"waiting": "waiting", "sent": "ordered", "received": "active"}
_T = TypeVar("_T")


def topic_of(namespace: str) -> str:
    return namespace or EMPTY


def namespace_of(topic: str) -> str | None:
    """The namespace of a topic; ``None`` if it has a name that no namespace can have."""
    if topic == EMPTY:
        return ""
    return topic if NAME.fullmatch(topic) else None


class Queues:
    """The public operations."""

    def __init__(self, node: Node, set_limit: int) -> None:
        self._node = node
        self._set_limit = set_limit

    # --- producing --------------------------------------------------------------------------

    async def draft(self, request: Request) -> Response:
        body = request.json()
        if type(body) is not dict or "priority" not in body:
            raise RefusedError(400, 'send {"priority": n}: a whole number from 0 on, or null')
        priority = _priority(body["priority"])
        return text(str(await self._node.draft(_topic(request), priority, timeout=TIMEOUT_S)))

    async def set(self, request: Request) -> Response:
        topic, sequence = _topic(request), _sequence(request)
        media = request.header(b"content-type")
        attributes = {CONTENT_TYPE: media} if media else {}
        if len(media.encode()) > limits.ATTRIBUTE_BYTES_MAX:
            raise RefusedError(400, "the Content-Type is too long")
        try:
            await self._node.set(topic, sequence, request.body, attributes, timeout=TIMEOUT_S)
        except PeerError as error:
            if error.code != "too_large":
                raise
            await self._allow(topic, len(request.body))
            await self._node.set(topic, sequence, request.body, attributes, timeout=TIMEOUT_S)
        return NO_CONTENT

    async def _allow(self, topic: str, size: int) -> None:
        """Has a topic take what this door may take, unless somebody has said otherwise of it."""
        told = await self._node.describe(topic, timeout=TIMEOUT_S)
        most = told.settings["max_payload"]
        if most == TopicSettings().max_payload and "max_payload" not in told.overrides:
            await self._node.configure(topic, max_payload=self._set_limit, timeout=TIMEOUT_S)
        elif size > most:
            raise RefusedError(
                413, f"this queue takes {most} bytes: send less, or raise its setting max_payload"
            )

    # --- consuming --------------------------------------------------------------------------

    async def order(self, request: Request) -> Response:
        """Waits for a message for as long as the client does."""
        sequence = await self._node.order(_topic(request), None, timeout=None)
        assert sequence is not None
        return text(str(sequence))

    async def get(self, request: Request) -> Response:
        held = await self._node.fetch(_topic(request), _sequence(request), timeout=TIMEOUT_S)
        priority = "null" if held.priority is None else str(held.priority)
        state = _STATE_OF.get(held.status, held.status)
        media = media_of(held.attributes.get(CONTENT_TYPE, ""))
        headers = ((b"x-mq-priority", priority.encode()), (b"x-mq-state", state.encode()))
        return Response(200, held.payload, media, headers)

    async def abandon(self, request: Request) -> Response:
        await self._node.abandon(_topic(request), _sequence(request), timeout=TIMEOUT_S)
        return NO_CONTENT

    async def complete(self, request: Request) -> Response:
        await self._node.complete(_topic(request), _sequence(request), timeout=TIMEOUT_S)
        return NO_CONTENT

    async def fail(self, request: Request) -> Response:
        await self._node.fail(_topic(request), _sequence(request), timeout=TIMEOUT_S)
        return NO_CONTENT

    async def renew(self, request: Request) -> Response:
        await self._node.renew(_topic(request), _sequence(request), timeout=TIMEOUT_S)
        return NO_CONTENT

    # --- those that failed ------------------------------------------------------------------

    async def list_failed(self, request: Request) -> Response:
        ids: dict[str, None] = {}
        try:
            async for parked in self._node.list_parked(_topic(request), timeout=TIMEOUT_S):
                ids[str(parked.sequence)] = None
        except NoSuchTopic:
            ids.clear()
        return list_of(list(ids), request.header(b"accept"))

    async def abandon_failed(self, request: Request) -> Response:
        await if_there(self._node.abandon_all(_topic(request), timeout=TIMEOUT_S))
        return NO_CONTENT

    async def renew_failed(self, request: Request) -> Response:
        await if_there(self._node.renew_all(_topic(request), timeout=TIMEOUT_S))
        return NO_CONTENT

    # --- whole queues -----------------------------------------------------------------------

    async def clear(self, request: Request) -> Response:
        await if_there(self._node.clear(_topic(request), timeout=TIMEOUT_S))
        return NO_CONTENT

    async def stats(self, request: Request) -> Response:
        namespace = request.names["namespace"]
        counts = await self.stats_of(topic_of(namespace))
        return json_of({"namespace": namespace, **{name: counts[name] for name in STATES}})

    async def stats_of(self, topic: str) -> dict[str, Any]:
        """The counts of a topic, all zero for one that there is not."""
        found = await if_there(self._node.query("stats", topic, timeout=TIMEOUT_S))
        return {**dict.fromkeys(STATES, 0), "listed": False, **(found or {})}

    async def namespaces(self, request: Request) -> Response:
        listed = [namespace for namespace, _ in await self.in_use()]
        return list_of(listed, request.header(b"accept"))

    async def in_use(self) -> list[tuple[str, dict[str, Any]]]:
        """Every namespace that was drafted in or that has a count, and its counts.

        What other doors publish is counted too, and they draft nothing.
        """
        held = []
        for topic, counts in await self.each_topic(self.stats_of):
            namespace = namespace_of(topic)
            is_used = counts["listed"] or any(counts[state] for state in STATES)
            if namespace is not None and is_used:
                held.append((namespace, counts))
        return sorted(held)

    async def each_topic(self, ask: Any) -> list[tuple[str, Any]]:
        """Asks something of every topic, some at a time."""
        topics = await self._node.list_topics(timeout=TIMEOUT_S)
        answers: list[tuple[str, Any]] = []
        for part in in_parts(topics, AT_ONCE):
            answers += zip(part, await asyncio.gather(*map(ask, part)), strict=True)
        return answers


async def if_there(asked: Awaitable[_T]) -> _T | None:
    """What is asked of a topic, or nothing where there is no such topic."""
    try:
        return await asked
    except PeerError as error:
        if error.code == "no_such_topic":
            return None
        raise


def _topic(request: Request) -> str:
    return topic_of(request.names["namespace"])


def _sequence(request: Request) -> int:
    """The message that a path names; what is no number is no message."""
    name = request.names["id"]
    if not name.isascii() or not name.isdigit() or not 0 < int(name) <= limits.SEQUENCE_MAX:
        raise PeerError("no_such_message", "a message's id is a number")
    return int(name)


def _priority(value: object) -> int | None:
    if value is None or (type(value) is int and 0 <= value <= limits.PRIORITY_MAX):
        return value
    raise RefusedError(
        400, f"priority must be null or a whole number from 0 to {limits.PRIORITY_MAX}"
    )


def in_parts(values: list[str], size: int) -> Iterable[list[str]]:
    return (values[at : at + size] for at in range(0, len(values), size))
