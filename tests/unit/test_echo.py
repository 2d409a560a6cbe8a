"""SUBSCRIBE with ``echo`` false: online messages that a node itself publishes pass over a receiver
where that node has an endpoint without echo that wants them.

A door is such a node: it has served its own clients by itself. Others get each message, whichever
way it takes through the core, and durable and push messages come as they always do.
"""

from typing import Any

import pytest

from asterism import PeerError
from asterism import commands as ask
from tests.support.core import CoreBroker

DOOR, OTHER, ANOTHER = b"door", b"other", b"another"
ONLINE: dict[str, Any] = {"mode": "online", "expect": "sent"}
# Ways of an online message through the core. The second is known to be for everybody here only
# from its header; the others need rows, or more than one look at a message.
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "at a glance": ({}, {}),
    "with attributes": ({}, {"attributes": {"a": "b"}}),
    "with a wish": ({}, {"receipt": True}),
    "expecting more": ({}, {"expect": "processed"}),
    "with a history": ({"history": "full"}, {}),
    "with a key": ({}, {"ordering_key": "k"}),
}
every_way = pytest.mark.parametrize(("settings", "fields"), WAYS.values(), ids=WAYS.keys())
every_count = pytest.mark.parametrize("count", [1, 3])
Fields = dict[str, Any]


def say(broker: CoreBroker, count: int, node: bytes = DOOR, **fields: Any) -> list[bytes]:
    payloads = [b"%d" % number for number in range(count)]
    results = broker.publish_many(payloads, node=node, producer=node.ljust(16), **ONLINE | fields)
    assert all(type(result) is int for result in results)
    return payloads


@every_count
@every_way
def test_what_a_node_publishes_passes_over_its_own_receiver(
    settings: Fields, fields: Fields, count: int
) -> None:
    broker = CoreBroker(**settings)
    broker.subscribe(DOOR, echo=False)
    say(broker, count, **fields)
    assert broker.taken(DOOR) == []


@every_count
@every_way
def test_others_get_what_passes_over_its_publisher(
    settings: Fields, fields: Fields, count: int
) -> None:
    broker = CoreBroker(**settings)
    broker.subscribe(DOOR, echo=False)
    broker.subscribe(OTHER)
    broker.subscribe(ANOTHER, echo=False)
    payloads = say(broker, count, **fields)
    assert broker.taken(DOOR) == []
    assert broker.taken(OTHER) == broker.taken(ANOTHER) == payloads


@every_count
@every_way
def test_without_echo_it_gets_what_others_publish(
    settings: Fields, fields: Fields, count: int
) -> None:
    broker = CoreBroker(**settings)
    broker.subscribe(DOOR, echo=False)
    assert say(broker, count, OTHER, **fields) == broker.taken(DOOR)


@every_count
@every_way
def test_with_echo_it_gets_its_own(settings: Fields, fields: Fields, count: int) -> None:
    broker = CoreBroker(**settings)
    broker.subscribe(DOOR)
    assert say(broker, count, **fields) == broker.taken(DOOR)


@every_count
@every_way
def test_a_group_is_passed_over_whole_though_it_has_members_elsewhere(
    settings: Fields, fields: Fields, count: int
) -> None:
    """The door has given it to a member of its own: one member gets it, and no second one."""
    broker = CoreBroker(**settings)
    for node in (DOOR, OTHER):
        broker.subscribe(node, group="crew", durable=False, echo=False)
    broker.subscribe(ANOTHER)
    payloads = say(broker, count, **fields)
    assert broker.taken(DOOR) == broker.taken(OTHER) == []
    assert broker.taken(ANOTHER) == payloads


@every_way
def test_a_group_of_others_alone_gets_it(settings: Fields, fields: Fields) -> None:
    broker = CoreBroker(**settings)
    broker.subscribe(DOOR, echo=False)
    broker.subscribe(OTHER, group="crew", durable=False, echo=False)
    assert say(broker, 3, **fields) == broker.taken(OTHER)


@every_way
def test_a_group_is_not_passed_over_for_a_member_that_wants_something_else(
    settings: Fields, fields: Fields
) -> None:
    broker = CoreBroker(**settings)
    broker.subscribe(DOOR, "c", group="crew", durable=False, echo=False, credit=0)
    broker.subscribe(OTHER, "a/*", group="crew", durable=False, echo=False)
    assert say(broker, 3, **fields) == broker.taken(OTHER)


def test_a_member_with_echo_of_the_same_node_changes_nothing_for_the_group() -> None:
    broker = CoreBroker()
    broker.subscribe(DOOR, group="crew", durable=False, echo=False)
    broker.subscribe(DOOR, group="crew", durable=False, endpoint=2)
    say(broker, 3)
    assert broker.taken(DOOR) == broker.taken(DOOR, 2) == []


@pytest.mark.parametrize("fields", [{"mode": "durable"}, {"mode": "push"}])
def test_durable_and_push_messages_come_to_their_publisher_all_the_same(fields: Fields) -> None:
    broker = CoreBroker()
    broker.subscribe(DOOR, echo=False)
    assert say(broker, 3, **fields, expect="processed") == broker.taken(DOOR)


def test_it_gets_its_own_again_once_the_endpoint_without_echo_is_gone() -> None:
    broker = CoreBroker()
    broker.subscribe(DOOR, echo=False)
    broker.unsubscribe(DOOR)
    broker.subscribe(DOOR, endpoint=2)
    assert say(broker, 1) == broker.taken(DOOR, 2)
    broker.subscribe(DOOR, endpoint=3, echo=False)
    broker.detach(DOOR)
    broker.subscribe(DOOR)
    assert say(broker, 1) == broker.taken(DOOR)


def test_echo_is_said_anew_by_an_endpoint_that_comes_back() -> None:
    broker = CoreBroker(grace_ms=5_000)
    for echo in (False, True):
        broker.ask(
            ask.Subscribe(
                DOOR, broker.request(), 1, ("**",), credit=100, echo=echo, holding=((DOOR,), (), ())
            )
        )
        payloads = say(broker, 1)
        assert broker.taken(DOOR) == (payloads if echo else [])
    broker.restart()
    broker.ask(
        ask.Subscribe(
            DOOR, broker.request(), 1, ("**",), credit=100, echo=False, holding=((DOOR,), (), ())
        )
    )
    say(broker, 2)
    assert broker.taken(DOOR) == []


def test_what_nobody_hears_has_a_number_and_is_over() -> None:
    broker = CoreBroker()
    broker.subscribe(DOOR, echo=False)
    say(broker, 3)
    say(broker, 2, attributes={"a": "b"})
    broker.subscribe(OTHER)
    say(broker, 1)
    (delivered,) = broker.take(OTHER)
    assert delivered.sequence == 6
    assert not broker.actor.memory


def test_its_receipt_says_that_it_reached_nobody() -> None:
    broker = CoreBroker()
    broker.subscribe(DOOR, echo=False)
    say(broker, 1, receipt=True)
    (outcome,) = broker.resolved.values()
    assert outcome.statuses == {}


@pytest.mark.parametrize("echo", [0, None, "no"])
def test_echo_is_true_or_false(echo: object) -> None:
    broker = CoreBroker()
    with pytest.raises(PeerError) as caught:
        broker.subscribe(DOOR, echo=echo)
    assert caught.value.code == "bad_request"


@pytest.mark.parametrize("payload_max", [2])
def test_a_payload_that_is_too_large_is_refused_though_nobody_hears_it(payload_max: int) -> None:
    broker = CoreBroker(max_payload=payload_max)
    broker.subscribe(DOOR, echo=False)
    results = broker.publish_many([b"x", b"xxx"], node=DOOR, **ONLINE)
    assert type(results[0]) is int and type(results[1]) is not int
