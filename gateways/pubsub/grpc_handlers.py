"""What gRPC calls when a client asks something, and how it tells a client of a failure."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc

from asterism.errors import PeerError
from asterism.gateways.pubsub.errors import (
    STATUS_DETAILS,
    Code,
    Refusal,
    refusal_of,
    status_details,
)
from asterism.gateways.pubsub.raw_requests import read_request
from asterism.gateways.pubsub.rpcs import (
    REQUEST_BYTES_MAX,
    STREAMING_PULL,
    SUBSCRIBER,
    Method,
    StreamingPullRequest,
)
from asterism.gateways.pubsub.service import PubSub
from asterism.sdk.aio import ClosedError

UNREAD_BYTES_MAX: Final = 128 * 1_048_576  # of answers that wait for clients to read them
LARGE_BYTES: Final = 65_536  # a smaller answer does not count
_CODES: Final = {int(code.value[0]): code for code in grpc.StatusCode}
log = logging.getLogger("asterism.pubsub")


def refusal_for(error: Exception) -> Refusal | None:
    """What a client is told of a failure; none of an error of ours."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ClosedError):
        return Refusal(Code.UNAVAILABLE, "The door is closing: try again.")
    if isinstance(error, PeerError):
        return refusal_of(error)
    if isinstance(error, TimeoutError | ConnectionError):
        return Refusal(Code.UNAVAILABLE, f"The broker does not answer: {error}")
    return None


async def _abort(context: Any, error: Exception) -> None:
    refusal = refusal_for(error)
    if refusal is None:
        log.error("a request has failed by an error of ours", exc_info=error)
        refusal = Refusal(Code.INTERNAL, "Internal error: the log of the door says more.")
    trailer = ((STATUS_DETAILS, status_details(refusal)),) if refusal.has_info else ()
    await context.abort(_CODES[int(refusal.code)], refusal.detail, trailer)


class Unread:
    """The bytes of large answers that clients have not read yet, and the most there may be."""

    def __init__(self) -> None:
        self._bytes = 0

    def check(self) -> None:
        """Refuses to make another answer where clients read none."""
        if self._bytes > UNREAD_BYTES_MAX:
            raise Refusal(Code.UNAVAILABLE, "Clients do not read their answers: try again.")

    def note(self, reply: Any, context: Any) -> None:
        size = reply.ByteSize()
        if size > LARGE_BYTES:
            self._bytes += size
            context.add_done_callback(lambda _: self._forget(size))

    def _forget(self, size: int) -> None:
        self._bytes -= size


def _unary(method: Method, unread: Unread) -> Any:
    kind, _, call, most_bytes = method

    async def answer(raw: bytes, context: Any) -> Any:
        try:
            unread.check()
            reply = await call(read_request(kind, raw, most_bytes))
            unread.note(reply, context)
            return reply
        except Exception as error:
            await _abort(context, error)

    return grpc.unary_unary_rpc_method_handler(
        answer, response_serializer=method.reply.SerializeToString
    )


def _streaming(run: Callable[[AsyncIterator[Any], Any], Awaitable[None]]) -> Any:
    async def read(raws: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for raw in raws:
            yield read_request(StreamingPullRequest, raw, REQUEST_BYTES_MAX)

    async def answer(raws: AsyncIterator[bytes], context: Any) -> None:
        try:
            await run(read(raws), context.write)
        except Exception as error:
            await _abort(context, error)

    return grpc.stream_stream_rpc_method_handler(
        answer, response_serializer=lambda response: response.SerializeToString()
    )


def handlers_of(door: PubSub) -> list[Any]:
    """The handlers of every service."""
    services: dict[str, dict[str, Any]] = {}
    unread = Unread()
    for name, method in door.methods.items():
        service, _, rpc = name.partition("/")
        services.setdefault(service, {})[rpc] = _unary(method, unread)
    services[SUBSCRIBER][STREAMING_PULL] = _streaming(door.streams.streaming_pull)
    return [
        grpc.method_handlers_generic_handler(service, handlers)
        for service, handlers in services.items()
    ]
