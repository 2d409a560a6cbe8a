"""What a client of the Pub/Sub door can be refused with, as gRPC and as REST show it. Pure.

A refusal has one of Google's canonical codes, a sentence that says what to do, and, where client
libraries look for one, a machine-readable reason with metadata (``google.rpc.ErrorInfo``).
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from asterism.errors import PeerError, told

DOMAIN: Final = "pubsub.googleapis.com"
STATUS_DETAILS: Final = "grpc-status-details-bin"
INVALID_ACK_ID: Final = "PERMANENT_FAILURE_INVALID_ACK_ID"
_ERROR_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"


class Code(IntEnum):
    """The canonical codes, by the numbers that gRPC has for them."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


HTTP_STATUS: Final[Mapping[Code, int]] = {
    Code.CANCELLED: 499,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}


class Refusal(Exception):  # noqa: N818 (it says what happens, not that something broke)
    """A client is refused: ``code`` and ``detail`` are what it is told.

    ``reason`` and ``metadata`` become an ``ErrorInfo``, which client libraries read: failed
    acknowledgements of exactly-once delivery are told by metadata from ack id to reason.
    """

    def __init__(
        self,
        code: Code,
        detail: str,
        reason: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.reason = reason
        self.metadata = dict(metadata or {})

    @property
    def has_info(self) -> bool:
        """Is there more to tell than code and detail?"""
        return self.reason is not None or bool(self.metadata)

    def __str__(self) -> str:
        return f"{self.code.name}: {self.detail}"


def invalid(detail: str) -> Refusal:
    """The refusal of a request that can never succeed as it stands."""
    return Refusal(Code.INVALID_ARGUMENT, detail)


def not_found(name: str) -> Refusal:
    """The refusal of a request for a resource that does not exist."""
    return Refusal(Code.NOT_FOUND, f"Resource not found (resource={name}).")


def already_exists(name: str) -> Refusal:
    """The refusal to create what exists."""
    return Refusal(Code.ALREADY_EXISTS, f"Resource already exists (resource={name}).")


def invalid_ack_ids(ack_ids: Mapping[str, str] | list[str]) -> Refusal:
    """The refusal of ack ids that can no longer be acknowledged, with exactly-once delivery."""
    if not isinstance(ack_ids, Mapping):
        ack_ids = dict.fromkeys(ack_ids, INVALID_ACK_ID)
    return Refusal(
        Code.FAILED_PRECONDITION,
        "Some acknowledgement ids in the request were invalid. This could be because the "
        "acknowledgement ids have expired or the acknowledgement ids were malformed.",
        INVALID_ACK_ID,
        ack_ids,
    )


# What the broker refuses, by its own codes. Client libraries try again on UNAVAILABLE, ABORTED,
# INTERNAL and RESOURCE_EXHAUSTED, and on nothing else that stands here.
_BROKER_CODES: Final[Mapping[str, Code]] = {
    "bad_request": Code.INVALID_ARGUMENT,
    "bad_subject": Code.INVALID_ARGUMENT,
    "bad_interest": Code.INVALID_ARGUMENT,
    "unsupported_version": Code.FAILED_PRECONDITION,
    "unauthorized": Code.UNAUTHENTICATED,
    "forbidden": Code.PERMISSION_DENIED,
    "no_such_topic": Code.NOT_FOUND,
    "no_such_receiver": Code.NOT_FOUND,
    "no_such_message": Code.NOT_FOUND,
    "wrong_state": Code.FAILED_PRECONDITION,
    "not_yours": Code.FAILED_PRECONDITION,
    "topic_exists": Code.ALREADY_EXISTS,
    "no_receiver": Code.FAILED_PRECONDITION,
    "overflow": Code.RESOURCE_EXHAUSTED,
    "duplicate": Code.ALREADY_EXISTS,
    "too_large": Code.INVALID_ARGUMENT,
    "topic_gone": Code.NOT_FOUND,
    "busy": Code.UNAVAILABLE,
    "internal": Code.INTERNAL,
}


def refusal_of(error: PeerError) -> Refusal:
    """The refusal for what the broker refused."""
    return Refusal(_BROKER_CODES[error.code], told(error.code, error.detail))


def status_details(refusal: Refusal) -> bytes:
    """The trailer ``STATUS_DETAILS`` of a refusal, for clients that read more than its code."""
    status = status_pb2.Status(code=int(refusal.code), message=refusal.detail)
    if refusal.has_info:
        info = error_details_pb2.ErrorInfo(
            reason=refusal.reason or "", domain=DOMAIN, metadata=refusal.metadata
        )
        packed = any_pb2.Any()
        packed.Pack(info)
        status.details.append(packed)
    return bytes(status.SerializeToString())


def json_body(refusal: Refusal) -> dict[str, Any]:
    """The body of a REST response that refuses."""
    error: dict[str, Any] = {
        "code": HTTP_STATUS[refusal.code],
        "message": refusal.detail,
        "status": refusal.code.name,
    }
    if refusal.has_info:
        info = {"@type": _ERROR_INFO, "reason": refusal.reason or "", "domain": DOMAIN}
        error["details"] = [info | {"metadata": refusal.metadata}]
    return {"error": error}
