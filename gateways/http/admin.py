"""The private part of the HTTP door: per-queue configuration, behind a password."""

import hmac
from collections.abc import Callable
from typing import Any, Final

from asterism import limits
from asterism.gateways.http.protocol import NO_CONTENT, RefusedError, Request, Response, json_of
from asterism.gateways.http.queues import TIMEOUT_S, Queues, if_there, namespace_of, topic_of
from asterism.sdk.aio import Node
from asterism.settings import TIMEOUT_MS_MAX


def _unique(value: object) -> object:
    if type(value) is not bool:
        raise RefusedError(400, "unique is true or false; DELETE it to inherit")
    return value


def _seconds(value: object) -> object:
    if type(value) not in (int, float) or not 0.001 <= value <= TIMEOUT_MS_MAX / 1_000:  # type: ignore[operator]
        raise RefusedError(
            400, "a timeout is a number of seconds, from 0.001 on; DELETE it to inherit"
        )
    return value


def _concurrency(value: object) -> object:
    if type(value) is not int or not 1 <= value <= limits.SEQUENCE_MAX:
        raise RefusedError(400, "concurrency is a whole number from 1 on; DELETE it to inherit")
    return value


# By the last part of the path: its name in JSON, that of the topic's setting, and its check.
_KEYS: Final[dict[str, tuple[str, str, Callable[[object], object]]]] = {
    "unique": ("unique", "unique", _unique),
    "drafting-timeout": ("draftingTimeout", "draft_timeout", _seconds),
    "ordered-timeout": ("orderedTimeout", "sent_timeout", _seconds),
    "active-timeout": ("activeTimeout", "received_timeout", _seconds),
    "concurrency": ("concurrency", "concurrency", _concurrency),
}


class Admin:
    """The private operations."""

    def __init__(self, node: Node, queues: Queues, password: str) -> None:
        self._node = node
        self._queues = queues
        self._password = password.encode()

    @property
    def has_password(self) -> bool:
        return bool(self._password)

    def check(self, request: Request) -> None:
        """Lets nobody in without the password, and nobody at all where there is none."""
        scheme, _, given = request.header(b"authorization").partition(" ")
        # Compared in full even where nothing can match: how long it takes tells nothing.
        is_same = hmac.compare_digest(given.strip().encode("latin-1"), self._password)
        if not self._password or scheme.lower() != "bearer" or not is_same:
            raise RefusedError(
                401, "send Authorization: Bearer and the password of MQ_ADMIN_PASSWORD"
            )

    async def with_config(self, request: Request) -> Response:
        held = []
        for topic, config in await self._queues.each_topic(self._config_of):
            namespace = namespace_of(topic)
            if namespace is not None and any(value is not None for value in config.values()):
                held.append(namespace)
        return json_of(sorted(held))

    async def config(self, request: Request) -> Response:
        return json_of(await self._config_of(topic_of(request.names["namespace"])))

    async def _config_of(self, topic: str) -> dict[str, Any]:
        told = await if_there(self._node.describe(topic, timeout=TIMEOUT_S))
        told = told or {"overrides": [], "settings": {}}
        return {
            shown: told["settings"].get(name) if name in told["overrides"] else None
            for shown, name, _ in _KEYS.values()
        }

    async def put(self, request: Request) -> Response:
        key = _key(request)
        value = request.json()
        _, name, check = key
        topic = topic_of(request.names["namespace"])
        changes: dict[str, Any] = {name: check(value)}
        await self._node.configure(topic, timeout=TIMEOUT_S, **changes)
        return NO_CONTENT

    async def delete(self, request: Request) -> Response:
        _, name, _ = _key(request)
        topic = topic_of(request.names["namespace"])
        await if_there(self._node.configure(topic, inherit=(name,), timeout=TIMEOUT_S))
        return NO_CONTENT


def _key(request: Request) -> tuple[str, str, Callable[[object], object]]:
    key = _KEYS.get(request.names["key"])
    if key is None:
        raise RefusedError(404, f"there is no such setting; there are {', '.join(_KEYS)}")
    return key
