"""The private part of the HTTP door: per-queue configuration, behind a password."""

import hmac
import math
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final, NamedTuple

from asterism import limits
from asterism.gateways.http.guesses import Guesses
from asterism.gateways.http.protocol import (
    NO_CONTENT,
    Handler,
    RefusedError,
    Request,
    Response,
    json_of,
)
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


class Key(NamedTuple):
    """A setting: its name in JSON, that of the topic's setting, its check, and its values."""

    shown: str
    name: str
    check: Callable[[object], object]
    schema: dict[str, Any]


_TIMEOUT: Final = {"type": "number", "minimum": 0.001, "maximum": TIMEOUT_MS_MAX / 1_000}
# By the last part of the path.
KEYS: Final[dict[str, Key]] = {
    "unique": Key("unique", "unique", _unique, {"type": "boolean"}),
    "drafting-timeout": Key("draftingTimeout", "draft_timeout", _seconds, _TIMEOUT),
    "ordered-timeout": Key("orderedTimeout", "sent_timeout", _seconds, _TIMEOUT),
    "active-timeout": Key("activeTimeout", "received_timeout", _seconds, _TIMEOUT),
    "concurrency": Key(
        "concurrency",
        "concurrency",
        _concurrency,
        {"type": "integer", "minimum": 1, "maximum": limits.SEQUENCE_MAX},
    ),
}


class Admin:
    """The private operations."""

    def __init__(self, node: Node, queues: Queues, password: str) -> None:
        self._node = node
        self._queues = queues
        self.has_password = bool(password)
        self._digest = sha256(password.encode()).digest()
        self._guesses = Guesses()

    def check(self, request: Request) -> None:
        """Lets nobody in without the password, and nobody at all where there is none."""
        scheme, _, given = request.header(b"authorization").partition(" ")
        given = given.strip()
        if not self.has_password or scheme.lower() != "bearer" or not given:
            raise _unauthorized()
        now_s = time.monotonic()
        wait_s = self._guesses.wait_s(request.peer, now_s)
        if wait_s > 0:
            raise RefusedError(
                429,
                "the password was wrong too often: wait, and send it again",
                ((b"retry-after", b"%d" % math.ceil(wait_s)),),
            )
        # Digests have one length: how long it takes to compare them tells nothing.
        if not hmac.compare_digest(sha256(given.encode("latin-1")).digest(), self._digest):
            self._guesses.wrong(request.peer, now_s)
            raise _unauthorized()
        self._guesses.right(request.peer)

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
        told = await if_there(self._node.query("describe", topic, timeout=TIMEOUT_S))
        told = told or {"overrides": [], "settings": {}}
        return {
            key.shown: told["settings"].get(key.name) if key.name in told["overrides"] else None
            for key in KEYS.values()
        }

    def setter(self, key: Key) -> Handler:
        async def put(request: Request) -> Response:
            topic = topic_of(request.names["namespace"])
            changes: dict[str, Any] = {key.name: key.check(request.json())}
            await self._node.configure(topic, timeout=TIMEOUT_S, **changes)
            return NO_CONTENT

        return put

    def remover(self, key: Key) -> Handler:
        async def delete(request: Request) -> Response:
            topic = topic_of(request.names["namespace"])
            await if_there(self._node.configure(topic, inherit=(key.name,), timeout=TIMEOUT_S))
            return NO_CONTENT

        return delete


def _unauthorized() -> RefusedError:
    return RefusedError(401, "send Authorization: Bearer and the password of MQ_ADMIN_PASSWORD")
