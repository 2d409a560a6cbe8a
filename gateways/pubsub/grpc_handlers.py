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
from asterism.gateways.pubsub.rpcs import (
    STREAMING_PULL,
    SUBSCRIBER,
    Method,
    StreamingPullRequest,
)
from asterism.gateways.pubsub.service import PubSub
from asterism.sdk.aio import ClosedError

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


def _unary(method: Method) -> Any:
    call = method.call

    async def answer(request: Any, context: Any) -> Any:
        try:
            return await call(request)
        except Exception as error:
            await _abort(context, error)

    return grpc.unary_unary_rpc_method_handler(
        answer, method.request.FromString, method.reply.SerializeToString
    )


def _streaming(run: Callable[[AsyncIterator[Any], Any], Awaitable[None]]) -> Any:
    async def answer(requests: AsyncIterator[Any], context: Any) -> None:
        try:
            await run(requests, context.write)
        except Exception as error:
            await _abort(context, error)

    return grpc.stream_stream_rpc_method_handler(
        answer, StreamingPullRequest.FromString, lambda response: response.SerializeToString()
    )


def handlers_of(door: PubSub) -> list[Any]:
    """The handlers of every service."""
    services: dict[str, dict[str, Any]] = {}
    for name, method in door.methods.items():
        service, _, rpc = name.partition("/")
        services.setdefault(service, {})[rpc] = _unary(method)
    services[SUBSCRIBER][STREAMING_PULL] = _streaming(door.streams.streaming_pull)
    return [
        grpc.method_handlers_generic_handler(service, handlers)
        for service, handlers in services.items()
    ]
