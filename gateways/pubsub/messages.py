"""A message of Pub/Sub as the broker has it, and the way back. Pure.

The data is the payload, the attributes are the attributes, the subject is the topic's name, and the
message id is the sequence. The ordering key is the broker's own where a subscription of the topic
promises order: then each receiver gets the messages of a key one at a time. Elsewhere the broker
would hold up subscriptions that never asked for order, so the key goes by an attribute.

Attributes that are too large for a header of the broker are in the payload, ahead of the data, and
an attribute of the door's own says how many bytes of it they are.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgpack

from asterism import checks, limits
from asterism.errors import PeerError
from asterism.message import Mode, Status
from asterism.packing import pack_value
from asterism.sdk.aio import Delivery

# Attributes of the door's own; those that begin with goog are not a client's to use.
KEY: Final = "goog-asterism-ordering-key"
SPILLED: Final = "goog-asterism-attribute-bytes"
MESSAGE_BYTES: Final = 96  # of a message in an answer, beside its payload and its header
YEAR_2000_MS: Final = 946_684_800_000
YEAR_2200_MS: Final = 7_258_118_400_000
_UUID7: Final = 7  # the version in the id of a message whose id says when it was made


def encoded(
    subject: str, attributes: Mapping[str, str], key: str, is_ordered: bool, data: bytes
) -> tuple[bytes, bytes]:
    """Header and payload of a message: durable, and over once it is processed."""
    given = dict(attributes)
    header = _header_of(subject, given, key, is_ordered)
    if len(header) <= limits.HEADER_BYTES_MAX:
        return header, data
    spilled = pack_value(given)
    own = {SPILLED: str(len(spilled))}
    return _header_of(subject, own, key, is_ordered), spilled + data


def _header_of(subject: str, given: dict[str, str], key: str, is_ordered: bool) -> bytes:
    fields: list[object] = [int(Mode.DURABLE), int(Status.PROCESSED), [subject]]
    if key and is_ordered:
        fields += [given, None, None, None, None, key]
    elif key:
        fields.append({**given, KEY: key})
    elif given:
        fields.append(given)
    return pack_value(fields)


def size_of(delivery: Delivery) -> int:
    """About how many bytes a delivery takes in an answer."""
    return len(delivery.payload) + len(delivery.header.encoded) + MESSAGE_BYTES


def published_ms(delivery: Delivery, now_ms: int) -> int:
    """When a message was published, as its id says; now, where it says nothing."""
    message_id = delivery.id
    time_ms = int.from_bytes(message_id[:6], "big")
    if message_id[6] >> 4 == _UUID7 and YEAR_2000_MS <= time_ms <= YEAR_2200_MS:
        return time_ms
    return now_ms


def attributes_of(delivery: Delivery) -> dict[str, str]:
    """The attributes that a publisher gave a message."""
    attributes = delivery.attributes
    if SPILLED in attributes:
        return _unspilled(delivery)[0]
    if KEY in attributes:
        return {name: value for name, value in attributes.items() if name != KEY}
    return attributes


def data_of(delivery: Delivery) -> bytes:
    """The data that a publisher gave a message."""
    return _unspilled(delivery)[1] if SPILLED in delivery.attributes else delivery.payload


def key_of(delivery: Delivery) -> str:
    """The ordering key that a publisher gave a message; empty: none."""
    header = delivery.header
    return header.ordering_key or header.attributes.get(KEY, "")


def _unspilled(delivery: Delivery) -> tuple[dict[str, str], bytes]:
    """Attributes and data of a message whose attributes are in its payload."""
    payload = delivery.payload
    try:
        count = int(delivery.attributes[SPILLED])
        return checks.string_map("attributes", msgpack.unpackb(payload[:count])), payload[count:]
    except (ValueError, TypeError, PeerError, msgpack.UnpackException):  # somebody else's attribute
        return delivery.attributes, payload


def write_message(message: Any, delivery: Delivery, now_ms: int) -> None:
    """Writes a delivery into a ``PubsubMessage``."""
    attributes = delivery.header.attributes
    if SPILLED in attributes:
        attributes, message.data = _unspilled(delivery)
    else:
        message.data = delivery.payload
    key = delivery.header.ordering_key
    message.message_id = str(delivery.sequence)
    if attributes:
        if KEY in delivery.header.attributes:
            key = key_of(delivery)
            attributes = attributes_of(delivery)
        message.attributes.update(attributes)
    if key:
        message.ordering_key = key
    seconds, rest_ms = divmod(published_ms(delivery, now_ms), 1_000)
    publish_time = message.publish_time
    publish_time.seconds = seconds
    publish_time.nanos = rest_ms * 1_000_000
