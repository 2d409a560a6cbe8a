"""An argument that is wrong never leaves the client: a TypeError or a ValueError, in both alike."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

import asterism
from asterism.testing import Broker

pytestmark = pytest.mark.process

Call = Callable[[Any], Any]

# What is asked, of either client; the exception; and a part of its sentence.
WRONG: dict[str, tuple[Call, type[Exception], str]] = {
    "a topic that is no text": (lambda n: n.publish(5, b""), TypeError, "topic must be text"),
    "an empty topic": (lambda n: n.publish("", b""), ValueError, "topic must have 1 to 255 bytes"),
    "the empty topic of another verb": (lambda n: n.describe(""), ValueError, "topic must have"),
    "a payload that is text": (lambda n: n.publish("t", "x"), TypeError, "a payload is bytes"),
    "a wildcard subject": (lambda n: n.publish("t", b"", subject="a/*"), ValueError, "wildcard"),
    "a subject that is a number": (lambda n: n.publish("t", b"", subject=5), TypeError, "subject"),
    "one text for subjects": (lambda n: n.publish("t", b"", subjects="a"), TypeError, "a list"),
    "subject and subjects": (
        lambda n: n.publish("t", b"", subject="a", subjects=["b"]),
        ValueError,
        "not both",
    ),
    "a mode that there is not": (
        lambda n: n.send("t", b"", mode="loud"),
        ValueError,
        "mode must be one of push, online, durable",
    ),
    "a mode that is a number": (lambda n: n.send("t", b"", mode=2), TypeError, "mode must be"),
    "attributes that are a list": (
        lambda n: n.publish("t", b"", attributes=["a"]),
        TypeError,
        "attributes must be a map",
    ),
    "a priority below nothing": (
        lambda n: n.publish_many("t", [b""], priority=-1),
        ValueError,
        "priority must be from 0",
    ),
    "a time without a zone": (
        lambda n: n.publish("t", b"", deliver_at="tomorrow"),
        TypeError,
        "deliver_at must be a number of seconds",
    ),
    "a wish that there is not": (lambda n: n.publish("t", b"", expct=1), TypeError, "'expct'"),
    "no messages": (lambda n: n.publish_many("t", []), ValueError, "no messages"),
    "an empty interest": (lambda n: n.subscribe("t", ""), ValueError, "an interest"),
    "an interest that is a number": (lambda n: n.subscribe("t", 5), TypeError, "an interest"),
    "credit that is text": (lambda n: n.subscribe("t", credit="9"), TypeError, "credit must be"),
    "a timeout of nothing": (
        lambda n: n.subscribe("t", sent_timeout=0),
        ValueError,
        "sent_timeout must be from 0.001",
    ),
    "a pull of none": (lambda n: n.pull("t", "r", max=0), ValueError, "max must be from 1"),
    "a pull by nobody": (lambda n: n.pull("t", ""), ValueError, "receiver must have"),
    "a report of nothing known": (
        lambda n: n.report("t", "r", "done", [1]),
        ValueError,
        "status must be one of",
    ),
    "a setting that there is not": (
        lambda n: n.create_topic("t", max_atempts=1),
        TypeError,
        "there is no topic setting 'max_atempts'",
    ),
    "a setting of the wrong type": (
        lambda n: n.create_topic("t", max_attempts="3"),
        TypeError,
        "max_attempts must be an integer",
    ),
    "a setting out of range": (
        lambda n: n.configure("t", max_attempts=0),
        ValueError,
        "max_attempts must be from 1",
    ),
    "a name to inherit that is none": (
        lambda n: n.configure("t", inherit=["max_atempts"]),
        ValueError,
        "did you mean max_attempts?",
    ),
    "a sequence below nothing": (lambda n: n.fetch("t", -1), ValueError, "sequence must be"),
    "a sequence that is text": (lambda n: n.complete("t", "1"), TypeError, "sequence must be"),
    "a process that there is not": (lambda n: n.status_of("door"), ValueError, "no process"),
    "a producer of 3 bytes": (
        lambda n: n.publish_once("t", b"abc", []),
        ValueError,
        "producer must have 16 to 16 bytes",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_a_type_error_or_a_value_error_in_both_clients(
    broker: Broker, case: str
) -> None:
    call, kind, sentence = WRONG[case]

    async def ask() -> None:
        async with asterism.connect(broker.address) as node:
            await call(node)

    attempts: list[Callable[[], None]] = [
        lambda: asyncio.run(ask()),
        lambda: blocking(broker, call),
    ]
    for attempt in attempts:
        with pytest.raises(kind, match=re.escape(sentence)) as raised:
            attempt()
        assert not isinstance(raised.value, asterism.BrokerError)


def blocking(broker: Broker, call: Call) -> None:
    with asterism.connect_blocking(broker.address) as node:
        call(node)


def test_what_the_broker_alone_can_know_is_its_refusal(broker: Broker) -> None:
    with asterism.connect_blocking(broker.address) as node, pytest.raises(asterism.NoSuchTopic):
        node.describe("there is none")
