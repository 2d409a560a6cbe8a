"""What is pushed to an endpoint for a message: the body and headers of an HTTP request. Pure.

    wrapped     {"message": {"data": "aGk=", "messageId": "7", ...}, "subscription": "projects/..."}
    unwrapped   the data itself; metadata and attributes in headers, where the endpoint wants them

The wrapped form has message id and publish time twice, as Google's service writes them.
"""

import base64
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

AGENT: Final = "asterism-pubsub"
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNFIT: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # what a header's value cannot have
# Headers that say how a request is framed, and to whom it goes: no attribute's to set.
_OURS: Final = frozenset(
    {
        *("connection", "content-length", "expect", "host", "keep-alive", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade", "user-agent"),
    }
)

Headers = list[tuple[bytes, bytes]]


class Posted(NamedTuple):
    """The headers and the body of a request; who sends it adds host and length."""

    headers: Headers
    body: bytes


def posted(received: Any, subscription: str, config: Any) -> Posted:
    """The request for a ``ReceivedMessage``, as a ``PushConfig`` has it."""
    if config.HasField("no_wrapper"):
        return _unwrapped(received.message, subscription, config.no_wrapper.write_metadata)
    return _wrapped(received, subscription)


def _wrapped(received: Any, subscription: str) -> Posted:
    message = received.message
    time = _time_of(message)
    inner: dict[str, Any] = {}
    if message.attributes:
        inner["attributes"] = dict(message.attributes)
    inner["data"] = base64.b64encode(message.data).decode()
    inner["messageId"] = inner["message_id"] = message.message_id
    if message.ordering_key:
        inner["orderingKey"] = message.ordering_key
    inner["publishTime"] = inner["publish_time"] = time
    body: dict[str, Any] = {"message": inner, "subscription": subscription}
    if received.delivery_attempt:
        body["deliveryAttempt"] = received.delivery_attempt
    return Posted(
        [(b"Content-Type", b"application/json"), (b"User-Agent", AGENT.encode())],
        json.dumps(body).encode(),
    )


def _unwrapped(message: Any, subscription: str, with_metadata: bool) -> Posted:
    headers: Headers = [(b"User-Agent", AGENT.encode())]
    named = {b"user-agent"}
    if with_metadata:
        metadata = {
            "x-goog-pubsub-subscription-name": subscription,
            "x-goog-pubsub-message-id": message.message_id,
            "x-goog-pubsub-publish-time": _time_of(message),
            "x-goog-pubsub-ordering-key": message.ordering_key,
            "x-goog-ordering-key": message.ordering_key,  # as Google's emulator has it
        }
        for name, value in [*metadata.items(), *_fit(message.attributes)]:
            key = name.lower().encode()
            if value and key not in named:
                named.add(key)
                headers.append((name.encode(), _value(value)))
    if b"content-type" not in named:
        headers.append((b"Content-Type", b"application/octet-stream"))
    return Posted(headers, message.data)


def _fit(attributes: Any) -> Iterator[tuple[str, str]]:
    """The attributes whose keys can be names of headers."""
    for key, value in attributes.items():
        if _TOKEN.fullmatch(key) and key.lower() not in _OURS:
            yield key, value


def _value(text: str) -> bytes:
    return _UNFIT.sub(" ", text).strip().encode()


def _time_of(message: Any) -> str:
    """When a message was published, to the millisecond."""
    time = message.publish_time
    moment = datetime.fromtimestamp(time.seconds, UTC).replace(microsecond=time.nanos // 1_000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
