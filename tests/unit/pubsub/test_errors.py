"""Refusals, as gRPC and as REST tell them."""

import pytest
from google.rpc import error_details_pb2, status_pb2

from asterism.errors import ERRORS, PeerError
from asterism.gateways.pubsub.errors import (
    HTTP_STATUS,
    INVALID_ACK_ID,
    Code,
    Refusal,
    invalid_ack_ids,
    json_body,
    refusal_of,
    status_details,
)


@pytest.mark.parametrize("code", ERRORS)
def test_every_code_of_the_broker_is_told(code: str) -> None:
    refusal = refusal_of(PeerError(code, "so it is"))
    assert refusal.detail.startswith("so it is")
    assert refusal.code in HTTP_STATUS


def test_every_code_has_a_status_of_http() -> None:
    assert set(HTTP_STATUS) == set(Code)


def test_rest_tells_code_message_and_status() -> None:
    assert json_body(Refusal(Code.NOT_FOUND, "No such thing.")) == {
        "error": {"code": 404, "message": "No such thing.", "status": "NOT_FOUND"}
    }


def test_ack_ids_that_failed_are_told_by_both() -> None:
    refusal = invalid_ack_ids(["a", "b"])
    status = status_pb2.Status.FromString(status_details(refusal))
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert status.code == Code.FAILED_PRECONDITION
    assert dict(info.metadata) == {"a": INVALID_ACK_ID, "b": INVALID_ACK_ID}
    (detail,) = json_body(refusal)["error"]["details"]
    assert detail["metadata"] == dict(info.metadata)
    assert detail["domain"] == info.domain == "pubsub.googleapis.com"
