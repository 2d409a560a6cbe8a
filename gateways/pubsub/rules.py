"""What Google's service demands of resources and requests, and the defaults it fills in. Pure.

Each ``check_…`` returns nothing, or refuses with a sentence that names the field. Each ``fill_…``
writes into a resource the values that the service shows for what was left out. Sizes are
those of Google's quotas; what this door cannot do is refused here, so that nobody relies on it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from asterism import checks
from asterism.gateways.pubsub.errors import Code, Refusal, invalid
from asterism.gateways.pubsub.filters import read_filter
from asterism.gateways.pubsub.names import DELETED_SCHEMA, Kind, read_name

# --- publishing -----------------------------------------------------------------------------------
REQUEST_BYTES_MAX: Final = 10 * 1_048_576  # a request as it is encoded; clients stop at 10,000,000
MESSAGES_MAX: Final = 1_000  # of one Publish
ATTRIBUTES_MAX: Final = 100  # of one message
ATTRIBUTE_KEY_BYTES_MAX: Final = 256
ATTRIBUTE_VALUE_BYTES_MAX: Final = 1_024
ORDERING_KEY_BYTES_MAX: Final = 1_024

# --- subscribing ----------------------------------------------------------------------------------
ACK_REQUEST_BYTES_MAX: Final = 524_288  # of Acknowledge, ModifyAckDeadline and a stream's requests
PULL_MESSAGES_MAX: Final = 1_000  # of one response; more are asked for in vain
ACK_DEADLINE_SECONDS: Final = 10  # where a subscription does not say
ACK_DEADLINE_SECONDS_MIN: Final = 10
ACK_DEADLINE_SECONDS_MAX: Final = 600
CLIENT_ID_BYTES_MAX: Final = 1_024

# --- resources ------------------------------------------------------------------------------------
MINUTE_MS: Final = 60_000
DAY_MS: Final = 86_400_000
RETENTION_MS: Final = 7 * DAY_MS  # where a subscription does not say
RETENTION_MS_MIN: Final = 10 * MINUTE_MS
RETENTION_MS_MAX: Final = 31 * DAY_MS
EXPIRATION_MS: Final = 31 * DAY_MS  # where a subscription does not say
EXPIRATION_MS_MIN: Final = DAY_MS
BACKOFF_MS_MAX: Final = 10 * MINUTE_MS
BACKOFF_MIN_SECONDS: Final = 10  # where a retry policy does not say
BACKOFF_MAX_SECONDS: Final = 600
ATTEMPTS: Final = 5  # where a dead-letter policy does not say
ATTEMPTS_MIN: Final = 5
ATTEMPTS_MAX: Final = 100
RESOURCE_BYTES_MAX: Final = 1_048_576  # of a topic, subscription or snapshot, as it is encoded
LABELS_MAX: Final = 64
LABEL_CHARACTERS_MAX: Final = 63
TAGS_MAX: Final = 50
PUSH_ATTRIBUTES_MAX: Final = 100
ENDPOINT_CHARACTERS_MAX: Final = 2_048
PUSH_VERSION: Final = "x-goog-version"  # the attribute of a push configuration
PUSH_VERSIONS: Final = ("v1", "v1beta2")  # of one format

NANOS_MAX: Final = 999_999_999
MOMENT_SECONDS: Final = (-62_135_596_800, 253_402_300_799)  # of the years 1 to 9999
DURATION_SECONDS_MAX: Final = 315_576_000_000  # 10,000 years, either way
_LABEL_KEY: Final = re.compile(r"[^\W\d_][\w-]*")
_LABEL_VALUE: Final = re.compile(r"[\w-]*")


# --- values ---------------------------------------------------------------------------------------


def check_times(message: Any, path: str = "") -> None:
    """Refuses a moment or a duration, anywhere in a message, that JSON could not be made of."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else (value,):
            name = f"{path}{field.name}"
            is_well = _TIMES.get(field.message_type.full_name)
            if is_well is None:
                check_times(each, f"{name}.")
            elif not is_well(each.seconds, each.nanos):
                raise invalid(
                    f"{name} is out of range: {each.seconds} seconds and {each.nanos} nanos."
                )


def _is_moment(seconds: int, nanos: int) -> bool:
    return MOMENT_SECONDS[0] <= seconds <= MOMENT_SECONDS[1] and 0 <= nanos <= NANOS_MAX


def _is_duration(seconds: int, nanos: int) -> bool:
    is_one_way = not seconds or not nanos or (seconds < 0) == (nanos < 0)
    return is_one_way and abs(seconds) <= DURATION_SECONDS_MAX and abs(nanos) <= NANOS_MAX


_TIMES: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "google.protobuf.Timestamp": _is_moment,
    "google.protobuf.Duration": _is_duration,
}


def duration_ms(duration: Any) -> int:
    """A ``google.protobuf.Duration`` in milliseconds; a part of one counts as none."""
    return int(duration.seconds * 1_000 + duration.nanos // 1_000_000)


def _check_duration(field: str, duration: Any, least_ms: int, most_ms: int | None) -> None:
    held_ms = duration_ms(duration)
    if held_ms < least_ms or (most_ms is not None and held_ms > most_ms):
        bound = "at least" if most_ms is None else "from"
        rest = "" if most_ms is None else f" to {most_ms // 1_000}"
        raise invalid(
            f"{field} must be {bound} {least_ms // 1_000}{rest} seconds, not {_seconds(held_ms)}."
        )


def _seconds(ms: int) -> str:
    return f"{ms / 1_000:.3f}".rstrip("0").rstrip(".")


def _check_whole(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise invalid(f"{field} must be from {least} to {most}, not {value}.")


def _check_labels(labels: Mapping[str, str]) -> None:
    if len(labels) > LABELS_MAX:
        raise invalid(f"labels has {len(labels)} entries, over {LABELS_MAX}.")
    for key, value in labels.items():
        is_well = (
            len(key) <= LABEL_CHARACTERS_MAX
            and len(value) <= LABEL_CHARACTERS_MAX
            and _LABEL_KEY.fullmatch(key)
            and _LABEL_VALUE.fullmatch(value)
            and key == key.lower()
            and value == value.lower()
        )
        if not is_well:
            raise invalid(
                f"The label {checks.shown(key)}: {checks.shown(value)} is not valid: keys begin "
                f"with a lowercase letter, keys and values have at most {LABEL_CHARACTERS_MAX} "
                "lowercase letters, digits, _ and -."
            )


def _check_size(resource: Any) -> None:
    size = resource.ByteSize()
    if size > RESOURCE_BYTES_MAX:
        kind = resource.DESCRIPTOR.name
        raise invalid(f"The {kind} has {size} bytes: it may have {RESOURCE_BYTES_MAX}.")


def _check_tags(tags: Mapping[str, str]) -> None:
    if len(tags) > TAGS_MAX:
        raise invalid(f"tags has {len(tags)} entries, over {TAGS_MAX}.")


def _unimplemented(field: str) -> Refusal:
    return Refusal(
        Code.UNIMPLEMENTED, f"{field} is not supported by this server: leave it out of the request."
    )


# --- topics and snapshots -------------------------------------------------------------------------


def check_topic(topic: Any) -> None:
    """A topic that is to be created, or as an update makes it."""
    read_name(topic.name, Kind.TOPIC)
    _check_size(topic)
    check_times(topic)
    _check_labels(topic.labels)
    _check_tags(topic.tags)
    if topic.HasField("message_retention_duration"):
        _check_duration(
            "message_retention_duration",
            topic.message_retention_duration,
            RETENTION_MS_MIN,
            RETENTION_MS_MAX,
        )
    if topic.HasField("schema_settings"):
        _check_schema_settings(topic.schema_settings)
    if topic.HasField("ingestion_data_source_settings"):
        raise _unimplemented("ingestion_data_source_settings")
    if topic.message_transforms:
        raise _unimplemented("message_transforms")


def _check_schema_settings(settings: Any) -> None:
    if settings.schema != DELETED_SCHEMA:  # an update may leave that as it is
        read_name(settings.schema, Kind.SCHEMA)
    if not settings.encoding:
        raise invalid("schema_settings.encoding must be JSON or BINARY.")


def fill_topic(topic: Any) -> None:
    """Writes what the service sets itself, whatever the client sent."""
    topic.state = 1  # ACTIVE
    topic.satisfies_pzs = False


def check_snapshot(request: Any) -> None:
    """A ``CreateSnapshotRequest``; its name may be left out."""
    _check_size(request)
    if request.name:
        read_name(request.name, Kind.SNAPSHOT)
    read_name(request.subscription, Kind.SUBSCRIPTION)
    _check_labels(request.labels)
    _check_tags(request.tags)


def check_snapshot_update(snapshot: Any) -> None:
    """A snapshot as an update makes it."""
    read_name(snapshot.name, Kind.SNAPSHOT)
    _check_size(snapshot)
    check_times(snapshot)
    _check_labels(snapshot.labels)


# --- subscriptions --------------------------------------------------------------------------------


def check_subscription(subscription: Any, is_new: bool = True) -> None:
    """A subscription that is to be created (its name may be left out), or as an update makes it."""
    _check_size(subscription)
    check_times(subscription)
    if subscription.name or not is_new:
        read_name(subscription.name, Kind.SUBSCRIPTION)
    if is_new:  # that of an old one may have been deleted
        read_name(subscription.topic, Kind.TOPIC)
    if subscription.ack_deadline_seconds:
        _check_whole(
            "ack_deadline_seconds",
            subscription.ack_deadline_seconds,
            ACK_DEADLINE_SECONDS_MIN,
            ACK_DEADLINE_SECONDS_MAX,
        )
    _check_labels(subscription.labels)
    _check_tags(subscription.tags)
    _check_lifetimes(subscription)
    _check_policies(subscription)
    _check_delivery(subscription)
    read_filter(subscription.filter)


def _check_lifetimes(subscription: Any) -> None:
    if subscription.HasField("message_retention_duration"):
        _check_duration(
            "message_retention_duration",
            subscription.message_retention_duration,
            RETENTION_MS_MIN,
            RETENTION_MS_MAX,
        )
    policy = subscription.expiration_policy
    if policy.HasField("ttl"):
        _check_duration("expiration_policy.ttl", policy.ttl, EXPIRATION_MS_MIN, None)


def _check_policies(subscription: Any) -> None:
    if subscription.HasField("retry_policy"):
        policy = subscription.retry_policy
        least = 1_000 * BACKOFF_MIN_SECONDS
        most = 1_000 * BACKOFF_MAX_SECONDS
        if policy.HasField("minimum_backoff"):
            least = duration_ms(policy.minimum_backoff)
            _check_duration("minimum_backoff", policy.minimum_backoff, 0, BACKOFF_MS_MAX)
        if policy.HasField("maximum_backoff"):
            most = duration_ms(policy.maximum_backoff)
            _check_duration("maximum_backoff", policy.maximum_backoff, 0, BACKOFF_MS_MAX)
        if least > most:
            raise invalid(
                f"retry_policy: minimum_backoff ({_seconds(least)} s) must not be longer than "
                f"maximum_backoff ({_seconds(most)} s)."
            )
    if subscription.HasField("dead_letter_policy"):
        letters = subscription.dead_letter_policy
        read_name(letters.dead_letter_topic, Kind.TOPIC)
        if letters.max_delivery_attempts:
            _check_whole(
                "max_delivery_attempts", letters.max_delivery_attempts, ATTEMPTS_MIN, ATTEMPTS_MAX
            )


def _check_delivery(subscription: Any) -> None:
    for field in ("bigquery_config", "cloud_storage_config", "bigtable_config"):
        if subscription.HasField(field):
            raise _unimplemented(field)
    if subscription.message_transforms:
        raise _unimplemented("message_transforms")
    check_push_config(subscription.push_config)
    if subscription.push_config.push_endpoint and subscription.enable_exactly_once_delivery:
        raise invalid(
            "enable_exactly_once_delivery is for subscriptions that are pulled: a push endpoint "
            "cannot have it."
        )


def check_push_config(config: Any) -> None:
    """A ``PushConfig``; one without an endpoint means that the subscription is pulled."""
    endpoint = config.push_endpoint
    if not endpoint:
        return
    try:
        place = urlsplit(endpoint)
        is_well = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
        (place.hostname or "").encode("idna")  # a name that nobody can look up is a ValueError
    except ValueError:
        is_well = False
    if not is_well or len(endpoint) > ENDPOINT_CHARACTERS_MAX or not _is_printable(endpoint):
        raise invalid(
            f"push_endpoint must be a URL such as https://example.com/push, not "
            f"{checks.shown(endpoint)}."
        )
    if len(config.attributes) > PUSH_ATTRIBUTES_MAX:
        raise invalid(
            f"push_config.attributes has {len(config.attributes)} entries, over "
            f"{PUSH_ATTRIBUTES_MAX}."
        )
    version = config.attributes.get(PUSH_VERSION, PUSH_VERSIONS[0])
    if version not in PUSH_VERSIONS:
        raise invalid(
            f"push_config.attributes: {PUSH_VERSION} must be one of "
            f"{', '.join(PUSH_VERSIONS)}, not {checks.shown(version)}."
        )


def _is_printable(text: str) -> bool:
    return all(" " < char <= "~" for char in text)


def fill_subscription(subscription: Any) -> None:
    """Writes the service's defaults for what was left out, and what it sets itself."""
    subscription.push_config.SetInParent()
    if subscription.push_config.push_endpoint:
        subscription.push_config.attributes.setdefault(PUSH_VERSION, PUSH_VERSIONS[0])
    if not subscription.ack_deadline_seconds:
        subscription.ack_deadline_seconds = ACK_DEADLINE_SECONDS
    if not subscription.HasField("message_retention_duration"):
        subscription.message_retention_duration.seconds = RETENTION_MS // 1_000
    if not subscription.HasField("expiration_policy"):
        subscription.expiration_policy.ttl.seconds = EXPIRATION_MS // 1_000
    if subscription.HasField("dead_letter_policy"):
        letters = subscription.dead_letter_policy
        letters.max_delivery_attempts = letters.max_delivery_attempts or ATTEMPTS
    if subscription.HasField("retry_policy"):
        policy = subscription.retry_policy
        if not policy.HasField("minimum_backoff"):
            policy.minimum_backoff.seconds = BACKOFF_MIN_SECONDS
        if not policy.HasField("maximum_backoff"):
            policy.maximum_backoff.seconds = BACKOFF_MAX_SECONDS
    subscription.state = 1  # ACTIVE
    for field in ("detached", "analytics_hub_subscription_info"):
        subscription.ClearField(field)


# --- requests -------------------------------------------------------------------------------------


def check_publish(request: Any) -> None:
    """A ``PublishRequest``, but for its topic's existence and schema."""
    read_name(request.topic, Kind.TOPIC)
    count = len(request.messages)
    if not count:
        raise invalid("messages must have at least one message.")
    if count > MESSAGES_MAX:
        raise invalid(f"messages has {count} entries: a request may publish {MESSAGES_MAX}.")
    size = request.ByteSize()
    if size > REQUEST_BYTES_MAX:
        raise invalid(f"The request has {size} bytes: it may have {REQUEST_BYTES_MAX}.")
    key = request.messages[0].ordering_key
    for message in request.messages:
        check_message(message)
        if message.ordering_key != key:
            raise invalid(
                "All messages of a request must have the same ordering_key, or none of them one."
            )


def check_message(message: Any) -> None:
    """A ``PubsubMessage`` that is to be published."""
    attributes = message.attributes
    if not message.data and not attributes:
        raise invalid("A message must have data or at least one attribute.")
    if len(attributes) > ATTRIBUTES_MAX:
        raise invalid(f"A message has {len(attributes)} attributes, over {ATTRIBUTES_MAX}.")
    for key, value in attributes.items():
        if not key:
            raise invalid("An attribute of a message has an empty key.")
        if _size(key) > ATTRIBUTE_KEY_BYTES_MAX:
            raise invalid(
                f"The attribute key {checks.shown(key)} has {_size(key)} bytes, over "
                f"{ATTRIBUTE_KEY_BYTES_MAX}."
            )
        if _size(value) > ATTRIBUTE_VALUE_BYTES_MAX:
            raise invalid(
                f"The value of the attribute {checks.shown(key)} has {_size(value)} bytes, over "
                f"{ATTRIBUTE_VALUE_BYTES_MAX}."
            )
    if message.ordering_key and _size(message.ordering_key) > ORDERING_KEY_BYTES_MAX:
        raise invalid(
            f"An ordering_key has {_size(message.ordering_key)} bytes, over "
            f"{ORDERING_KEY_BYTES_MAX}."
        )


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def pull_count(request: Any) -> int:
    """How many messages a ``PullRequest`` may be answered with."""
    read_name(request.subscription, Kind.SUBSCRIPTION)
    if request.max_messages < 1:
        raise invalid(f"max_messages must be at least 1, not {request.max_messages}.")
    return min(int(request.max_messages), PULL_MESSAGES_MAX)


def check_acknowledge(request: Any) -> None:
    """An ``AcknowledgeRequest``."""
    read_name(request.subscription, Kind.SUBSCRIPTION)
    _check_ack_ids(request)


def check_modify_ack_deadline(request: Any) -> None:
    """A ``ModifyAckDeadlineRequest``; a deadline of 0 gives the messages back."""
    read_name(request.subscription, Kind.SUBSCRIPTION)
    _check_ack_ids(request)
    _check_whole("ack_deadline_seconds", request.ack_deadline_seconds, 0, ACK_DEADLINE_SECONDS_MAX)


def _check_ack_ids(request: Any) -> None:
    if not request.ack_ids:
        raise invalid("ack_ids must have at least one ack id.")
    _check_ack_bytes(request)


def _check_ack_bytes(request: Any) -> None:
    size = request.ByteSize()
    if size > ACK_REQUEST_BYTES_MAX:
        raise invalid(
            f"The request has {size} bytes: it may have {ACK_REQUEST_BYTES_MAX}. Send fewer ack "
            "ids at a time."
        )


def check_stream_start(request: Any) -> None:
    """The first ``StreamingPullRequest`` of a stream."""
    read_name(request.subscription, Kind.SUBSCRIPTION)
    _check_whole(
        "stream_ack_deadline_seconds",
        request.stream_ack_deadline_seconds,
        ACK_DEADLINE_SECONDS_MIN,
        ACK_DEADLINE_SECONDS_MAX,
    )
    if _size(request.client_id) > CLIENT_ID_BYTES_MAX:
        raise invalid(f"client_id has over {CLIENT_ID_BYTES_MAX} bytes.")
    _check_stream_acks(request)


def check_stream_next(request: Any) -> None:
    """A later ``StreamingPullRequest``: it says nothing that only the first may say."""
    for field in ("subscription", "client_id", "max_outstanding_messages", "max_outstanding_bytes"):
        if getattr(request, field):
            raise invalid(f"{field} may be set in the first request of a stream alone.")
    if request.stream_ack_deadline_seconds:
        _check_whole(
            "stream_ack_deadline_seconds",
            request.stream_ack_deadline_seconds,
            ACK_DEADLINE_SECONDS_MIN,
            ACK_DEADLINE_SECONDS_MAX,
        )
    _check_stream_acks(request)


def _check_stream_acks(request: Any) -> None:
    _check_ack_bytes(request)
    if len(request.modify_deadline_seconds) != len(request.modify_deadline_ack_ids):
        raise invalid(
            "modify_deadline_seconds and modify_deadline_ack_ids must have as many entries."
        )
    for seconds in request.modify_deadline_seconds:
        _check_whole("modify_deadline_seconds", seconds, 0, ACK_DEADLINE_SECONDS_MAX)
