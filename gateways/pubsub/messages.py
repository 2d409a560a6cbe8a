"""A message of Pub/Sub as the broker has it, and the way back. Pure.

The data is the payload, the attributes are the attributes, the subject is the topic's name, and the
message id is the sequence. The ordering key is the broker's own where a subscription of the topic
promises order: then each receiver gets the messages of a key one at a time. Elsewhere the broker
would hold up subscriptions that never asked for order, so the key goes by an attribute.
"""

from collections.abc import Mapping
from typing import Any, Final

from asterism.message import Mode, Status
from asterism.packing import pack_value
from asterism.sdk.aio import Delivery

KEY: Final = "goog-asterism-ordering-key"  # what begins with goog is not a client's to use
MESSAGE_BYTES: Final = 96  # of a message in an answer, beside its payload and its header
YEAR_2000_MS: Final = 946_684_800_000
YEAR_2200_MS: Final = 7_258_118_400_000
_UUID7: Final = 7  # the version in the id of a message whose id says when it was made


def header_of(subject: str, attributes: Mapping[str, str], key: str, is_ordered: bool) -> bytes:
    """The header of a message, as the broker has it: durable, and over once it is processed."""
    given = dict(attributes)
    if key and not is_ordered:
        given[KEY] = key
    fields: list[object] = [int(Mode.DURABLE), int(Status.PROCESSED), [subject]]
    if key and is_ordered:
        fields += [given, None, None, None, None, key]
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
    if KEY in attributes:
        attributes = {name: value for name, value in attributes.items() if name != KEY}
    return attributes


def write_message(message: Any, delivery: Delivery, now_ms: int) -> None:
    """Writes a delivery into a ``PubsubMessage``."""
    header = delivery.header
    attributes = header.attributes
    key = header.ordering_key
    message.data = delivery.payload
    message.message_id = str(delivery.sequence)
    if attributes:
        if key is None and KEY in attributes:
            key = attributes[KEY]
            attributes = attributes_of(delivery)
        message.attributes.update(attributes)
    if key:
        message.ordering_key = key
    seconds, rest_ms = divmod(published_ms(delivery, now_ms), 1_000)
    message.publish_time.seconds = seconds
    message.publish_time.nanos = rest_ms * 1_000_000
