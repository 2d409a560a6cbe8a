"""What is pushed for a message."""

import json
from typing import Any

from google.pubsub_v1.types import pubsub as types

from asterism.gateways.pubsub.envelope import posted

SUBSCRIPTION = "projects/p/subscriptions/sub"


def received(attempt: int = 0, **fields: Any) -> Any:
    message = {"message_id": "7", "publish_time": {"seconds": 1_767_225_600, "nanos": 5_000_000}}
    return types.ReceivedMessage.pb()(
        ack_id="a", delivery_attempt=attempt, message={**message, **fields}
    )


def config(**fields: Any) -> Any:
    return types.PushConfig.pb()(push_endpoint="http://h", **fields)


def headers_of(message: Any, with_metadata: bool) -> dict[str, str]:
    wrapper = config(no_wrapper={"write_metadata": with_metadata})
    headers = posted(message, SUBSCRIPTION, wrapper).headers
    assert len({name.lower() for name, _ in headers}) == len(headers)
    return {name.decode().lower(): value.decode() for name, value in headers}


def test_a_message_is_wrapped_as_google_does() -> None:
    message = received(3, data=b"hi", attributes={"a": "é"}, ordering_key="k")
    headers, body = posted(message, SUBSCRIPTION, config())
    assert dict(headers)[b"Content-Type"] == b"application/json"
    time = "2026-01-01T00:00:00.005Z"
    assert json.loads(body) == {
        "message": {
            "attributes": {"a": "é"},
            "data": "aGk=",
            "messageId": "7",
            "message_id": "7",
            "orderingKey": "k",
            "publishTime": time,
            "publish_time": time,
        },
        "subscription": SUBSCRIPTION,
        "deliveryAttempt": 3,
    }


def test_what_a_message_has_not_is_left_out() -> None:
    body = json.loads(posted(received(), SUBSCRIPTION, config(pubsub_wrapper={})).body)
    assert set(body) == {"message", "subscription"}
    assert body["message"]["data"] == ""
    assert not {"attributes", "orderingKey"} & set(body["message"])


def test_unwrapped_the_data_is_the_body() -> None:
    message = received(data=b"\x00hi", attributes={"a": "b"})
    assert posted(message, SUBSCRIPTION, config(no_wrapper={})).body == b"\x00hi"
    assert set(headers_of(message, False)) == {"user-agent", "content-type"}


def test_metadata_and_attributes_are_headers_where_they_are_wanted() -> None:
    message = received(attributes={"a": "b", "Content-Type": "text/x"}, ordering_key="k")
    headers = headers_of(message, True)
    del headers["user-agent"]
    assert headers == {
        "x-goog-pubsub-subscription-name": SUBSCRIPTION,
        "x-goog-pubsub-message-id": "7",
        "x-goog-pubsub-publish-time": "2026-01-01T00:00:00.005Z",
        "x-goog-pubsub-ordering-key": "k",
        "x-goog-ordering-key": "k",
        "a": "b",
        "content-type": "text/x",
    }


def test_no_attribute_changes_how_a_request_is_read() -> None:
    attributes = {
        **{"Content-Length": "0", "transfer-encoding": "chunked", "HOST": "evil", "a b": "c"},
        **{"x\r\ny": "z", "": "e", "é": "f", "A": "1", "a": "2"},
        **{"line": "one\r\nHost: evil\x00", "tab": "\tx é\n", "empty": " ", "User-Agent": "me"},
        "x-goog-pubsub-message-id": "8",
    }
    headers = headers_of(received(attributes=attributes), True)
    assert not {"content-length", "transfer-encoding", "host", "", "a b"} & set(headers)
    assert headers["line"] == "one  Host: evil"
    assert headers["tab"] == "x é"
    assert headers["x-goog-pubsub-message-id"] == "7"
    assert headers["a"] in ("1", "2")
    assert headers["user-agent"] == "asterism-pubsub"
