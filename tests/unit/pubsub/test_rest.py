"""REST made into requests, and replies made into JSON."""

import json
from typing import Any

import pytest
from google.protobuf import empty_pb2
from google.pubsub_v1.types import pubsub as types
from google.pubsub_v1.types import schema as schema_types

from asterism.gateways.pubsub.errors import Code
from asterism.gateways.pubsub.origins import check_page
from asterism.gateways.pubsub.rest import ROUTES, find_call, json_of, request_of
from tests.unit.pubsub.refusals import refused

TOPIC = "projects/p/topics/orders"
SUBSCRIPTION = "projects/p/subscriptions/billing"
SCHEMA = "projects/p/schemas/order"


def request_type(rpc: str) -> Any:
    """The class of an rpc's request."""
    name = rpc.rpartition("/")[2]
    name = {"CreateTopic": "Topic", "CreateSubscription": "Subscription"}.get(
        name, f"{name}Request"
    )
    found = getattr(types, name, None) or getattr(schema_types, name)
    return found.pb()


def read(method: str, target: str, body: Any = None) -> tuple[str, Any]:
    """The rpc and the request of a call."""
    call = find_call(method, target)
    data = b"" if body is None else json.dumps(body).encode()
    return call.route.rpc.rpartition(".")[2], request_of(call, request_type(call.route.rpc), data)


@pytest.mark.parametrize(
    ("method", "target", "body", "rpc", "wanted"),
    [
        ("PUT", f"/v1/{TOPIC}", {"labels": {"a": "b"}}, "Publisher/CreateTopic",
         {"name": TOPIC, "labels": {"a": "b"}}),
        ("PUT", f"/v1/{TOPIC}", None, "Publisher/CreateTopic", {"name": TOPIC}),
        ("PATCH", f"/v1/{TOPIC}", {"topic": {"labels": {"a": "b"}}, "updateMask": "labels"},
         "Publisher/UpdateTopic",
         {"topic": {"name": TOPIC, "labels": {"a": "b"}}, "update_mask": {"paths": ["labels"]}}),
        ("POST", f"/v1/{TOPIC}:publish",
         {"messages": [{"data": "aGk=", "attributes": {"a": "b"}, "orderingKey": "k"}]},
         "Publisher/Publish",
         {"topic": TOPIC,
          "messages": [{"data": b"hi", "attributes": {"a": "b"}, "ordering_key": "k"}]}),
        ("GET", f"/v1/{TOPIC}", None, "Publisher/GetTopic", {"topic": TOPIC}),
        ("GET", "/v1/projects/p/topics?pageSize=2&pageToken=a%2Bb", None, "Publisher/ListTopics",
         {"project": "projects/p", "page_size": 2, "page_token": "a+b"}),
        ("GET", f"/v1/{TOPIC}/subscriptions?page_size=2", None,
         "Publisher/ListTopicSubscriptions", {"topic": TOPIC, "page_size": 2}),
        ("GET", f"/v1/{TOPIC}/snapshots", None, "Publisher/ListTopicSnapshots", {"topic": TOPIC}),
        ("DELETE", f"/v1/{TOPIC}", None, "Publisher/DeleteTopic", {"topic": TOPIC}),
        ("POST", f"/v1/{SUBSCRIPTION}:detach", {}, "Publisher/DetachSubscription",
         {"subscription": SUBSCRIPTION}),
        ("PUT", f"/v1/{SUBSCRIPTION}",
         {"topic": TOPIC, "ackDeadlineSeconds": 20, "messageRetentionDuration": "1200s",
          "expirationPolicy": {}, "retryPolicy": {"minimumBackoff": "1.5s"}},
         "Subscriber/CreateSubscription",
         {"name": SUBSCRIPTION, "topic": TOPIC, "ack_deadline_seconds": 20,
          "message_retention_duration": {"seconds": 1200}, "expiration_policy": {},
          "retry_policy": {"minimum_backoff": {"seconds": 1, "nanos": 500_000_000}}}),
        ("POST", f"/v1/{SUBSCRIPTION}:pull", {"maxMessages": 3, "returnImmediately": True},
         "Subscriber/Pull",
         {"subscription": SUBSCRIPTION, "max_messages": 3, "return_immediately": True}),
        ("POST", f"/v1/{SUBSCRIPTION}:acknowledge", {"ackIds": ["a"]}, "Subscriber/Acknowledge",
         {"subscription": SUBSCRIPTION, "ack_ids": ["a"]}),
        ("POST", f"/v1/{SUBSCRIPTION}:modifyAckDeadline",
         {"ackIds": ["a"], "ackDeadlineSeconds": 0}, "Subscriber/ModifyAckDeadline",
         {"subscription": SUBSCRIPTION, "ack_ids": ["a"]}),
        ("POST", f"/v1/{SUBSCRIPTION}:modifyPushConfig",
         {"pushConfig": {"pushEndpoint": "http://h"}}, "Subscriber/ModifyPushConfig",
         {"subscription": SUBSCRIPTION, "push_config": {"push_endpoint": "http://h"}}),
        ("POST", f"/v1/{SUBSCRIPTION}:seek", {"time": "2026-01-01T00:00:00Z"}, "Subscriber/Seek",
         {"subscription": SUBSCRIPTION, "time": {"seconds": 1_767_225_600}}),
        ("PUT", "/v1/projects/p/snapshots/snap", {"subscription": SUBSCRIPTION},
         "Subscriber/CreateSnapshot",
         {"name": "projects/p/snapshots/snap", "subscription": SUBSCRIPTION}),
        ("GET", "/v1/projects/p/snapshots", None, "Subscriber/ListSnapshots",
         {"project": "projects/p"}),
        ("POST", "/v1/projects/p/schemas?schemaId=order", {"type": "AVRO", "definition": "x"},
         "SchemaService/CreateSchema",
         {"parent": "projects/p", "schema_id": "order",
          "schema": {"type_": 2, "definition": "x"}}),
        ("GET", "/v1/projects/p/schemas?view=FULL", None, "SchemaService/ListSchemas",
         {"parent": "projects/p", "view": 2}),
        ("POST", "/v1/projects/p/schemas:validateMessage",
         {"name": SCHEMA, "message": "aGk=", "encoding": "JSON"}, "SchemaService/ValidateMessage",
         {"parent": "projects/p", "name": SCHEMA, "message": b"hi", "encoding": 1}),
        ("GET", f"/v1/{SCHEMA}@abc", None, "SchemaService/GetSchema", {"name": f"{SCHEMA}@abc"}),
        ("GET", f"/v1/{SCHEMA}:listRevisions", None, "SchemaService/ListSchemaRevisions",
         {"name": SCHEMA}),
        ("POST", f"/v1/{SCHEMA}:commit", {"schema": {"type": "AVRO"}},
         "SchemaService/CommitSchema", {"name": SCHEMA, "schema": {"type_": 2}}),
        ("DELETE", f"/v1/{SCHEMA}@abc:deleteRevision?revisionId=abc", None,
         "SchemaService/DeleteSchemaRevision", {"name": f"{SCHEMA}@abc", "revision_id": "abc"}),
    ],
    ids=lambda value: value if isinstance(value, str) and "/" in value else "",
)  # fmt: skip
def test_a_call_is_a_request(
    method: str, target: str, body: Any, rpc: str, wanted: dict[str, Any]
) -> None:
    found, request = read(method, target, body)
    assert found == rpc
    assert request == type(request)(**wanted)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.rpc)
def test_every_route_leads_to_its_rpc(route: Any) -> None:
    kinds = {"topics": "abc", "subscriptions": "abc", "snapshots": "abc", "schemas": "abc"}
    target = "/v1/" + route.pattern.replace("*", "abc")
    assert find_call(route.method, target).route == route
    kind = request_type(route.rpc)
    request = request_of(find_call(route.method, target), kind, b"")
    value = request
    for part in route.field.split("."):
        value = getattr(value, part)
    assert value.startswith("projects/abc")
    assert ":" not in value and (value.count("/") == 1 or value.split("/")[2] in kinds)


def test_names_in_paths_are_unquoted() -> None:
    _, request = read("GET", "/v1/projects/example.com%3Ap/topics/a%2Bb%25c~d")
    assert request.topic == "projects/example.com:p/topics/a+b%c~d"


def test_the_path_decides_the_name() -> None:
    _, request = read("PUT", f"/v1/{TOPIC}", {"name": "projects/q/topics/other"})
    assert request.name == TOPIC


def test_parameters_that_every_path_takes_are_no_fields() -> None:
    target = f"/v1/{TOPIC}?alt=json&prettyPrint=false&key=k&%24alt=json&fields=name"
    assert read("GET", target) == ("Publisher/GetTopic", types.GetTopicRequest.pb()(topic=TOPIC))
    assert not find_call("GET", target).is_pretty
    assert find_call("GET", f"/v1/{TOPIC}").is_pretty


@pytest.mark.parametrize(
    ("method", "target", "part"),
    [
        ("GET", "/nope", "there is no such path"),
        ("GET", "/v2/projects/p/topics", "there is no such path"),
        ("GET", "/v1", "there is no such path"),
        ("GET", "/v1/projects/p", "there is no such path"),
        ("GET", "/v1/projects/p/topics/a/b/c", "there is no such path"),
        ("POST", f"/v1/{TOPIC}", "this path takes GET, PUT, PATCH, DELETE"),
        ("GET", f"/v1/{TOPIC}:publish", "this path takes POST"),
        ("POST", f"/v1/{TOPIC}:nope", "there is no such path"),
        ("get", f"/v1/{TOPIC}", "this path takes GET"),
    ],
)
def test_a_call_of_nothing_is_not_found(method: str, target: str, part: str) -> None:
    with refused(part, Code.NOT_FOUND):
        find_call(method, target)


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("/v1/projects/p/topics?colour=red", "There is no parameter 'colour'"),
        ("/v1/projects/p/topics?pageSize=x", "not valid JSON of its type"),
        ("/v1/projects/p/topics?pageSize=99999999999", "not valid JSON of its type"),
        ("/v1/projects/p/topics?a=%ff", "The query is not valid"),
        ("/v1/projects/p/topics?" + "a=1&" * 200, "The query is not valid"),
        ("/v1/projects/%ff/topics", "not valid UTF-8"),
        ("/v1/projects/" + "p" * 5_000, "The path has 5013 characters"),
    ],
)
def test_a_path_that_makes_no_sense_is_refused(target: str, part: str) -> None:
    with refused(part):
        read("GET", target)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"{", "The body is not valid JSON"),
        (b"[]", "The body must be a JSON object"),
        (b"\xff", "The body is not valid JSON"),
        (b'{"\\ud800": 1}', "The body is not valid JSON"),
        (b'{"messages": [' + b"{}," * 300_000 + b"{}]}", "The body has over 250000 values"),
        (b'{"colour": 1}', "colour"),
        (b'{"messages": 1}', "messages"),
        (b'{"messages": [{"data": "!"}]}', "data"),
        (b'{"messages": [{"attributes": {"a": 1}}]}', "attributes"),
        (b'{"messages":' + b"[" * 100_000, "The body is not valid JSON"),
        (b'{"messages": [{"data": 9' + b"9" * 5_000 + b"}]}", "The body is not valid JSON"),
    ],
)
def test_a_body_that_is_no_request_is_refused(body: bytes, part: str) -> None:
    call = find_call("POST", f"/v1/{TOPIC}:publish")
    with refused(part):
        request_of(call, types.PublishRequest.pb(), body)


def test_a_reply_is_json_as_google_writes_it() -> None:
    reply = types.PullResponse.pb()()
    received = reply.received_messages.add(ack_id="a", delivery_attempt=2)
    received.message.data = b"hi"
    received.message.message_id = "7"
    received.message.publish_time.seconds = 1_767_225_600
    assert json.loads(json_of(reply, True)) == {
        "receivedMessages": [
            {
                "ackId": "a",
                "deliveryAttempt": 2,
                "message": {
                    "data": "aGk=",
                    "messageId": "7",
                    "publishTime": "2026-01-01T00:00:00Z",
                },
            }
        ]
    }
    assert json_of(empty_pb2.Empty(), True) == b"{}\n"
    schema = schema_types.Schema.pb()(type_=2)
    assert json_of(schema, False) == b'{"type": "AVRO"}\n'


@pytest.mark.parametrize(
    ("headers", "is_local", "passes"),
    [
        ({}, True, True),
        ({b"host": b"127.0.0.1:8086"}, True, True),
        ({b"host": b"localhost"}, True, True),
        ({b"host": b"[::1]:8086"}, True, True),
        ({b"host": b"evil.example:8086"}, True, False),
        ({b"host": b"localhost.evil.example"}, True, False),
        ({b"host": b"["}, True, False),
        ({b"host": b"pubsub:8086"}, False, True),
        ({b"origin": b"http://localhost:3000"}, True, True),
        ({b"origin": b"http://127.0.0.1"}, False, True),
        ({b"origin": b"https://evil.example"}, True, False),
        ({b"origin": b"https://evil.example"}, False, False),
        ({b"origin": b"null"}, True, False),
        ({b"origin": b""}, True, False),
    ],
)
def test_pages_of_elsewhere_may_not_use_rest(
    headers: dict[bytes, bytes], is_local: bool, passes: bool
) -> None:
    if passes:
        check_page(headers, is_local)
    else:
        with refused(code=Code.PERMISSION_DENIED):
            check_page(headers, is_local)
