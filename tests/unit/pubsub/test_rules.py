"""What is demanded of resources and requests, and the defaults that are filled in."""

from typing import Any

import pytest
from google.pubsub_v1.types import pubsub as types

from asterism.gateways.pubsub import rules
from asterism.gateways.pubsub.errors import Code
from tests.unit.pubsub.refusals import refused

NAME = "projects/p/subscriptions/sub"
TOPIC = "projects/p/topics/orders"
SCHEMA = "projects/p/schemas/order"


def pb(kind: str, /, **fields: Any) -> Any:
    return getattr(types, kind).pb()(**fields)


def subscription(**fields: Any) -> Any:
    return pb("Subscription", **{"name": NAME, "topic": TOPIC, **fields})


def topic(**fields: Any) -> Any:
    return pb("Topic", **{"name": TOPIC, **fields})


def message(**fields: Any) -> Any:
    return pb("PubsubMessage", **{"data": b"x", **fields})


def publish(*messages: Any) -> Any:
    return pb("PublishRequest", topic=TOPIC, messages=messages)


# --- topics ---------------------------------------------------------------------------------------


def test_a_topic_with_all_that_it_may_have_passes() -> None:
    rules.check_topic(
        topic(
            labels={"team": "shop-1", "größe": "", "a_b": "x" * 63},
            message_retention_duration={"seconds": 600},
            schema_settings={"schema": SCHEMA, "encoding": 1},
            kms_key_name="a/key",
            message_storage_policy={"allowed_persistence_regions": ["here"]},
        )
    )


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"name": "orders"}, "is not the name of a topic"),
        ({"message_retention_duration": {"seconds": 599}}, "from 600 to 2678400 seconds, not 599"),
        ({"message_retention_duration": {"seconds": 2678401}}, "not 2678401"),
        ({"schema_settings": {"schema": "order", "encoding": 1}}, "is not the name of a schema"),
        ({"schema_settings": {"schema": SCHEMA}}, "encoding must be JSON or BINARY"),
        ({"labels": {"Team": "x"}}, "'Team': 'x' is not valid"),
        ({"labels": {"1st": "x"}}, "is not valid"),
        ({"labels": {"": "x"}}, "is not valid"),
        ({"labels": {"a": "X"}}, "is not valid"),
        ({"labels": {"a": "x y"}}, "is not valid"),
        ({"labels": {"a" * 64: "x"}}, "is not valid"),
        ({"labels": {f"a{number}": "" for number in range(65)}}, "over 64"),
        ({"tags": {f"a{number}": "" for number in range(65)}}, "over 50"),
        ({"kms_key_name": "k" * 1_048_576}, "bytes: it may have 1048576"),
    ],
)
def test_a_topic_that_breaks_a_rule_is_refused(fields: dict[str, Any], part: str) -> None:
    with refused(part):
        rules.check_topic(topic(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"ingestion_data_source_settings": {"aws_kinesis": {}}},
        {"message_transforms": [{"javascript_udf": {"code": "x"}}]},
    ],
)
def test_what_this_door_cannot_do_for_a_topic_is_not_promised(fields: dict[str, Any]) -> None:
    with refused("is not supported", Code.UNIMPLEMENTED):
        rules.check_topic(topic(**fields))


def test_a_topic_whose_schema_was_deleted_may_be_updated() -> None:
    rules.check_topic(topic(schema_settings={"schema": "_deleted-schema_", "encoding": 1}))


# --- subscriptions --------------------------------------------------------------------------------


def test_a_subscription_with_all_that_it_may_have_passes() -> None:
    rules.check_subscription(
        subscription(
            ack_deadline_seconds=600,
            message_retention_duration={"seconds": 2_678_400},
            expiration_policy={"ttl": {"seconds": 86_400}},
            retry_policy={"minimum_backoff": {}, "maximum_backoff": {"seconds": 600}},
            dead_letter_policy={"dead_letter_topic": TOPIC, "max_delivery_attempts": 100},
            push_config={"push_endpoint": "https://example.com:8443/push?x=1"},
            filter='attributes.a = "b"',
        )
    )


def test_backoffs_may_be_equal() -> None:
    backoff = {"seconds": 20}
    rules.check_subscription(
        subscription(retry_policy={"minimum_backoff": backoff, "maximum_backoff": backoff})
    )


def test_a_subscription_needs_no_more_than_a_topic() -> None:
    rules.check_subscription(pb("Subscription", topic=TOPIC))


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"labels": {"a": "x" * 1_048_576}}, "The Subscription has"),
        ({"name": "sub"}, "is not the name of a subscription"),
        ({"topic": ""}, "is not the name of a topic"),
        ({"ack_deadline_seconds": 9}, "from 10 to 600, not 9"),
        ({"ack_deadline_seconds": 601}, "not 601"),
        ({"ack_deadline_seconds": -1}, "not -1"),
        ({"message_retention_duration": {"seconds": 0}}, "message_retention_duration"),
        ({"message_retention_duration": {"seconds": 2_678_401}}, "message_retention_duration"),
        ({"expiration_policy": {"ttl": {"seconds": 86_399}}}, "at least 86400 seconds"),
        ({"retry_policy": {"minimum_backoff": {"seconds": 601}}}, "from 0 to 600 seconds, not 601"),
        ({"retry_policy": {"maximum_backoff": {"seconds": -1}}}, "from 0 to 600 seconds, not -1"),
        ({"retry_policy": {"maximum_backoff": {"seconds": 9}}}, "(10 s) must not be longer than"),
        ({"dead_letter_policy": {}}, "is not the name of a topic"),
        (
            {"dead_letter_policy": {"dead_letter_topic": TOPIC, "max_delivery_attempts": 4}},
            "from 5 to 100, not 4",
        ),
        (
            {"dead_letter_policy": {"dead_letter_topic": TOPIC, "max_delivery_attempts": 101}},
            "not 101",
        ),
        ({"filter": "bogus("}, "filter: "),
        ({"labels": {"A": "x"}}, "is not valid"),
        (
            {"push_config": {"push_endpoint": "http://h"}, "enable_exactly_once_delivery": True},
            "subscriptions that are pulled",
        ),
    ],
)
def test_a_subscription_that_breaks_a_rule_is_refused(fields: dict[str, Any], part: str) -> None:
    with refused(part):
        rules.check_subscription(subscription(**fields))


def test_a_subscription_outlives_its_topic_but_not_its_name() -> None:
    rules.check_subscription(subscription(topic="_deleted-topic_"), is_new=False)
    with refused("is not the name of a subscription"):
        rules.check_subscription(pb("Subscription", topic=TOPIC), is_new=False)


@pytest.mark.parametrize(
    "endpoint", ["example.com", "ftp://example.com", "http://", "http://h:99999", "http://h:0",
    "http://a..b/", f"http://{'h' * 70}/",
                 "http://a b", "http://h/\n", "http://é", "http://[", "http://h/" + "x" * 2_048]
)  # fmt: skip
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    with refused("push_endpoint must be a URL"):
        rules.check_push_config(pb("PushConfig", push_endpoint=endpoint))


def test_a_push_format_that_there_is_not_is_refused() -> None:
    config = {"push_endpoint": "http://h", "attributes": {"x-goog-version": "v1beta1"}}
    with refused("x-goog-version must be one of v1, v1beta2"):
        rules.check_push_config(pb("PushConfig", **config))


@pytest.mark.parametrize("field", ["bigquery_config", "cloud_storage_config", "bigtable_config"])
def test_deliveries_that_this_door_cannot_make_are_not_promised(field: str) -> None:
    with refused(field, Code.UNIMPLEMENTED):
        rules.check_subscription(subscription(**{field: {}}))


def test_what_is_left_out_gets_the_defaults_of_the_service() -> None:
    made = subscription(
        retry_policy={}, dead_letter_policy={"dead_letter_topic": TOPIC}, detached=True
    )
    rules.fill_subscription(made)
    assert made.HasField("push_config") and not made.detached
    assert made.ack_deadline_seconds == 10
    assert made.message_retention_duration.seconds == 7 * 86_400
    assert made.expiration_policy.ttl.seconds == 31 * 86_400
    assert made.dead_letter_policy.max_delivery_attempts == 5
    assert made.retry_policy.minimum_backoff.seconds == 10
    assert made.retry_policy.maximum_backoff.seconds == 600
    rules.check_subscription(made)


def test_what_is_given_stays() -> None:
    made = subscription(
        ack_deadline_seconds=20,
        expiration_policy={},
        retry_policy={"minimum_backoff": {}},
        push_config={"push_endpoint": "http://h"},
    )
    rules.fill_subscription(made)
    assert made.ack_deadline_seconds == 20
    assert not made.expiration_policy.HasField("ttl")  # it never expires
    assert made.retry_policy.minimum_backoff.seconds == 0
    assert dict(made.push_config.attributes) == {"x-goog-version": "v1"}


# --- publishing -----------------------------------------------------------------------------------


def test_messages_at_their_limits_pass() -> None:
    attributes = {f"{number:03}".ljust(256, "k"): "v" * 1_024 for number in range(100)}
    rules.check_publish(publish(message(attributes=attributes, ordering_key="o" * 1_024)))
    rules.check_publish(publish(*(message() for _ in range(1_000))))
    rules.check_publish(publish(message(data=b"x" * 10_000_000)))
    rules.check_publish(publish(message(data=b"", attributes={"k": ""})))


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (publish(), "at least one message"),
        (publish(*(message() for _ in range(1_001))), "1001 entries"),
        (publish(message(data=b"x" * 10_485_760)), "bytes: it may have 10485760"),
        (publish(message(), message(data=b"")), "data or at least one attribute"),
        (publish(message(attributes={f"{n}": "" for n in range(101)})), "101 attributes"),
        (publish(message(attributes={"": "v"})), "has an empty key"),
        (publish(message(ordering_key="a"), message(ordering_key="b")), "the same ordering_key"),
        (publish(message(), message(ordering_key="b")), "the same ordering_key"),
        (publish(message(attributes={"k" * 257: ""})), "257 bytes, over 256"),
        (publish(message(attributes={"é" * 129: ""})), "258 bytes, over 256"),
        (publish(message(attributes={"k": "v" * 1_025})), "1025 bytes, over 1024"),
        (publish(message(ordering_key="o" * 1_025)), "1025 bytes, over 1024"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_publish_that_breaks_a_rule_is_refused(request_: Any, part: str) -> None:
    with refused(part):
        rules.check_publish(request_)


# --- subscribing ----------------------------------------------------------------------------------


def test_a_pull_says_how_many() -> None:
    assert rules.pull_count(pb("PullRequest", subscription=NAME, max_messages=7)) == 7
    assert rules.pull_count(pb("PullRequest", subscription=NAME, max_messages=10**6)) == 1_000
    with refused("max_messages must be at least 1, not 0"):
        rules.pull_count(pb("PullRequest", subscription=NAME))


def test_acknowledgements_are_of_something() -> None:
    rules.check_acknowledge(pb("AcknowledgeRequest", subscription=NAME, ack_ids=["a"]))
    with refused("at least one ack id"):
        rules.check_acknowledge(pb("AcknowledgeRequest", subscription=NAME))
    with refused("Send fewer ack ids"):
        ack_ids = ["a" * 1_000] * 600
        rules.check_acknowledge(pb("AcknowledgeRequest", subscription=NAME, ack_ids=ack_ids))


@pytest.mark.parametrize(("seconds", "passes"), [(0, True), (600, True), (-1, False), (601, False)])
def test_a_deadline_may_be_moved_by_ten_minutes_at_most(seconds: int, passes: bool) -> None:
    request = pb(
        "ModifyAckDeadlineRequest", subscription=NAME, ack_ids=["a"], ack_deadline_seconds=seconds
    )
    if passes:
        rules.check_modify_ack_deadline(request)
    else:
        with refused("from 0 to 600"):
            rules.check_modify_ack_deadline(request)


def test_a_stream_begins_with_subscription_and_deadline() -> None:
    start = {"subscription": NAME, "stream_ack_deadline_seconds": 10, "client_id": "c"}
    rules.check_stream_start(pb("StreamingPullRequest", **start, max_outstanding_messages=5))
    for wrong, part in (
        ({"subscription": ""}, "is not the name of a subscription"),
        ({"stream_ack_deadline_seconds": 0}, "from 10 to 600, not 0"),
        ({"client_id": "c" * 2_000}, "client_id has over"),
        ({"modify_deadline_ack_ids": ["a"]}, "as many entries"),
    ):
        with refused(part):
            rules.check_stream_start(pb("StreamingPullRequest", **{**start, **wrong}))


def test_a_stream_goes_on_with_acknowledgements_and_deadlines() -> None:
    for request in (
        {},
        {"ack_ids": ["a"], "stream_ack_deadline_seconds": 60},
        {"modify_deadline_ack_ids": ["a"], "modify_deadline_seconds": [0]},
    ):
        rules.check_stream_next(pb("StreamingPullRequest", **request))
    for wrong, part in (
        ({"subscription": NAME}, "subscription may be set in the first request"),
        ({"max_outstanding_messages": 1}, "max_outstanding_messages may be set"),
        ({"stream_ack_deadline_seconds": 9}, "from 10 to 600"),
        ({"modify_deadline_ack_ids": ["a"], "modify_deadline_seconds": [601]}, "from 0 to 600"),
    ):
        with refused(part):
            rules.check_stream_next(pb("StreamingPullRequest", **wrong))


def test_a_snapshot_names_its_subscription() -> None:
    rules.check_snapshot(pb("CreateSnapshotRequest", subscription=NAME))
    rules.check_snapshot(
        pb("CreateSnapshotRequest", name="projects/p/snapshots/snap", subscription=NAME)
    )
    with refused("is not the name of a snapshot"):
        rules.check_snapshot(pb("CreateSnapshotRequest", name=NAME, subscription=NAME))
    with refused("is not valid"):
        rules.check_snapshot_update(
            pb("Snapshot", name="projects/p/snapshots/snap", labels={"A": "x"})
        )


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [(1 << 62, 0), (-(1 << 62), 0), (315_576_000_001, 0), (100_000, -1), (100_000, 1 << 30)],
)
def test_a_duration_that_json_has_not_is_refused(seconds: int, nanos: int) -> None:
    held = {"seconds": seconds, "nanos": nanos}
    with refused("expiration_policy.ttl is out of range"):
        rules.check_subscription(subscription(expiration_policy={"ttl": held}))
    with refused("retry_policy.minimum_backoff is out of range"):
        rules.check_subscription(subscription(retry_policy={"minimum_backoff": held}))
    with refused("topic_message_retention_duration is out of range"):
        rules.check_subscription(subscription(topic_message_retention_duration=held))
    with refused("message_retention_duration is out of range"):
        rules.check_topic(topic(message_retention_duration=held))


@pytest.mark.parametrize(
    ("seconds", "nanos"), [(1 << 62, 0), (-62_135_596_801, 0), (253_402_300_800, 0), (1, -1)]
)
def test_a_moment_that_json_has_not_is_refused(seconds: int, nanos: int) -> None:
    snapshot = pb("Snapshot", name="projects/p/snapshots/one")
    snapshot.expire_time.seconds = seconds
    snapshot.expire_time.nanos = nanos
    with refused("expire_time is out of range"):
        rules.check_snapshot_update(snapshot)


def test_times_within_bounds_pass() -> None:
    for seconds in (-62_135_596_800, 0, 253_402_300_799):
        snapshot = pb("Snapshot", name="projects/p/snapshots/one", labels={"a": "b"})
        snapshot.expire_time.seconds = seconds
        rules.check_snapshot_update(snapshot)
    ttl = {"seconds": 315_576_000_000, "nanos": 999_999_999}
    rules.check_subscription(subscription(expiration_policy={"ttl": ttl}))
