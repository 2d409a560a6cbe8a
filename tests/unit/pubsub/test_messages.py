"""A message of Pub/Sub as the broker has it, and the way back."""

from types import SimpleNamespace
from typing import Any

import pytest
from google.pubsub_v1.types import pubsub as types

from asterism import limits
from asterism.gateways.pubsub.messages import (
    attributes_of,
    data_of,
    encoded,
    key_of,
    published_ms,
    write_message,
)
from asterism.message import Mode, Status, decode_header
from asterism.sdk.composing import Ids

NOW_MS = 1_800_000_000_000
LARGE = {f"{number}".zfill(256): "v" * 1_024 for number in range(100)}


def delivery(header: bytes, payload: bytes, id: bytes = b"\0" * 16) -> Any:
    """What the SDK hands out of a message that was published so."""
    read = decode_header(header)
    return SimpleNamespace(
        header=read, attributes=read.attributes, payload=payload, sequence=7, attempt=1, id=id
    )


def back(attributes: dict[str, str], key: str, is_ordered: bool, data: bytes) -> Any:
    """The message that comes of one, as a client has it."""
    message = types.PubsubMessage.pb()()
    write_message(message, delivery(*encoded("p/t", attributes, key, is_ordered, data)), NOW_MS)
    return message


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("key", ["", "customer-7"])
@pytest.mark.parametrize(
    "attributes", [{}, {"a": "b", "": "c"}, LARGE], ids=["none", "two", "many"]
)
def test_a_message_comes_back_as_it_was(
    attributes: dict[str, str], key: str, is_ordered: bool
) -> None:
    message = back(attributes, key, is_ordered, b"data")
    assert (message.data, dict(message.attributes)) == (b"data", attributes)
    assert (message.ordering_key, message.message_id) == (key, "7")


@pytest.mark.parametrize("attributes", [{"a": "b"}, LARGE], ids=["one", "many"])
def test_what_looks_at_a_message_sees_what_its_publisher_gave(attributes: dict[str, str]) -> None:
    for is_ordered in (False, True):
        got = delivery(*encoded("p/t", attributes, "k", is_ordered, b"data"))
        assert (attributes_of(got), data_of(got), key_of(got)) == (attributes, b"data", "k")


def test_a_message_is_durable_and_over_when_it_is_processed() -> None:
    header, payload = encoded("p/t", {"a": "b"}, "", False, b"data")
    read = decode_header(header)
    assert (read.mode, read.expect, read.subjects) == (Mode.DURABLE, Status.PROCESSED, ("p/t",))
    assert (read.max_receivers, read.attributes, payload) == (None, {"a": "b"}, b"data")


def test_a_key_is_the_brokers_own_only_where_order_is_promised() -> None:
    assert decode_header(encoded("p/t", {}, "k", True, b"")[0]).ordering_key == "k"
    assert decode_header(encoded("p/t", {}, "k", False, b"")[0]).ordering_key is None


def test_a_header_is_never_larger_than_the_broker_takes() -> None:
    header, payload = encoded("p/t", LARGE, "k", False, b"data")
    assert len(header) < limits.HEADER_BYTES_MAX < len(payload)


@pytest.mark.parametrize("count", ["x", "-5", "999999"])
def test_an_attribute_that_only_looks_like_the_doors_own_breaks_nothing(count: str) -> None:
    attributes = {"goog-asterism-attribute-bytes": count}
    message = back(attributes, "", False, b"data")
    assert (message.data, dict(message.attributes)) == (b"data", attributes)


def test_the_publish_time_is_that_of_the_id() -> None:
    made = Ids(lambda size: bytes(size)).take_one(NOW_MS - 5_000)
    got = delivery(*encoded("p/t", {}, "", False, b""), id=made)
    assert published_ms(got, NOW_MS) == NOW_MS - 5_000
    got.id = b"\xff" * 16  # of somebody whose ids do not say it
    assert published_ms(got, NOW_MS) == NOW_MS
