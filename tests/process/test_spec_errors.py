"""Errors, end to end: the codes of section 9, and malformed frames, which are answered and end
nobody.
"""

import asyncio
import os
import socket
import struct
import time
from collections.abc import Callable

import pytest

import asterism
from asterism import wire
from asterism.errors import ERRORS
from asterism.message import Mode
from asterism.sdk.aio import Node
from asterism.testing import Broker
from asterism.wire import Verb
from tests.process.conftest import (
    WAIT_S,
    Answer,
    Raw,
    message,
    refused,
    take,
    with_a_client,
    worker_of_topic,
)

pytestmark = pytest.mark.process

# Nobody has to say who he is yet; and nothing that a client does makes a broker fail.
NOT_BY_A_CLIENT = {"unauthorized", "forbidden", "internal"}


# --- codes ----------------------------------------------------------------------------------------


def of_a_message(raw: Raw, topic: str, settings: dict[str, object], *payloads: bytes) -> str:
    """The code that the last of these messages is refused with."""
    raw.reply(Verb.CREATE_TOPIC, topic, settings)
    answers = raw.ask(Verb.PUBLISH, topic, [[message(each) for each in payloads]]).body
    assert all(isinstance(answer, int) for answer in answers[:-1])
    return str(answers[-1][0])


def bad_subject(raw: Raw, topic: str) -> str:
    entry = [bytes(16), b"\x93\x02\x02\x91\xa1*", b""]
    return str(raw.ask(Verb.PUBLISH, topic, [[entry]]).body[0][0])


def no_such_receiver(raw: Raw, topic: str) -> str:
    raw.reply(Verb.CREATE_TOPIC, topic)
    return raw.refusal(Verb.DELETE_RECEIVER, topic, ["r"])


def no_such_message(raw: Raw, topic: str) -> str:
    raw.reply(Verb.CREATE_TOPIC, topic)
    return raw.refusal(Verb.FETCH, topic, [17])


def wrong_state(raw: Raw, topic: str) -> str:
    raw.reply(Verb.SUBSCRIBE, topic, 1, ["a"])
    return raw.refusal(Verb.SUBSCRIBE, topic, [1, ["a"]])


def not_yours(raw: Raw, topic: str) -> str:
    raw.reply(Verb.SUBSCRIBE, topic, 1, ["**"], "a", None, None, 1)
    held = raw.publish(topic, message(max_receivers=1))
    raw.reply(Verb.SUBSCRIBE, topic, 2, ["**"], "b")
    return str(raw.reply(Verb.REPORT, topic, 2, 4, held)["refused"][0][1])


def topic_exists(raw: Raw, topic: str) -> str:
    raw.reply(Verb.CREATE_TOPIC, topic)
    return raw.refusal(Verb.CREATE_TOPIC, topic, [])


def no_receiver(raw: Raw, topic: str) -> str:
    return str(raw.ask(Verb.PUBLISH, topic, [[message(mode=Mode.PUSH)]]).body[0][0])


def topic_gone(raw: Raw, topic: str) -> str:
    order = raw.send(Verb.ORDER, topic, [None])
    raw.reply(Verb.DELETE_TOPIC, topic)
    (said,) = [each for each in raw.unasked if each.request == order]
    return str(said.body[0])


def busy(raw: Raw, topic: str) -> str:
    producer = os.urandom(16)
    raw.ask(Verb.PUBLISH, topic, [[message()], producer, 1, 0])
    return raw.refusal(Verb.PUBLISH, topic, [[message()], producer, 3, 0])


CASES: dict[str, Callable[[Raw, str], str]] = {
    "bad_request": lambda raw, topic: raw.refusal(77, topic, []),
    "bad_subject": bad_subject,
    "bad_interest": lambda raw, topic: raw.refusal(Verb.SUBSCRIBE, topic, [1, [""]]),
    "unsupported_version": lambda raw, _: raw.refusal(Verb.HELLO, "", {"versions": [2, 3]}),
    "no_such_topic": lambda raw, topic: raw.refusal(Verb.DESCRIBE, topic, []),
    "no_such_receiver": no_such_receiver,
    "no_such_message": no_such_message,
    "wrong_state": wrong_state,
    "not_yours": not_yours,
    "topic_exists": topic_exists,
    "no_receiver": no_receiver,
    "overflow": lambda raw, topic: of_a_message(raw, topic, {"overflow": {"size": 1}}, b"1", b"2"),
    "duplicate": lambda raw, topic: of_a_message(raw, topic, {"unique": True}, b"1", b"1"),
    "too_large": lambda raw, topic: of_a_message(raw, topic, {"max_payload": 1}, b"1", b"22"),
    "topic_gone": topic_gone,
    "busy": busy,
}


def test_every_code_that_a_client_can_cause_is_here() -> None:
    assert set(CASES) | NOT_BY_A_CLIENT == set(ERRORS)


@pytest.mark.parametrize("code", CASES)
def test_a_mistake_is_answered_with_its_code(broker: Broker, topic: str, code: str) -> None:
    with Raw(broker.address) as raw:
        assert CASES[code](raw, topic) == code


@with_a_client
async def test_a_refusal_is_an_exception_that_says_what_to_do(node: Node, topic: str) -> None:
    async with refused("no_such_topic") as raised:
        await node.describe(topic)
    assert ERRORS["no_such_topic"] in str(raised.value)
    assert topic in raised.value.detail


def test_busy_says_when_to_try_again(broker: Broker, topic: str) -> None:
    """A worker that is gone and not back yet."""
    with Raw(broker.address) as raw:
        broker.kill("worker", worker_of_topic(topic))
        deadline = time.monotonic() + WAIT_S
        hint_ms = 0
        while not hint_ms:
            assert time.monotonic() < deadline
            raw.send(Verb.DESCRIBE, topic, [])
            # What was sent to the worker just before its end is never answered.
            said = raw.next() if raw.socket.poll(20) else None
            if said is not None and said.verb == Verb.REFUSE and said.body[0] == "busy":
                hint_ms = said.body[2]
        assert raw.ask_again(Verb.CREATE_TOPIC, topic, []).verb == Verb.REPLY


# --- malformed frames -----------------------------------------------------------------------------

HEAD = wire.pack_head(Verb.PUBLISH, 0, 7)
NIL = wire.pack_body(None)

MALFORMED: dict[str, list[bytes]] = {
    "no frame but an empty one": [b""],
    "one frame": [HEAD],
    "two frames": [HEAD, b"topic"],
    "four frames": [HEAD, b"topic", NIL, NIL],
    "an empty head": [b"", b"topic", NIL],
    "a short head": [HEAD[:-1], b"topic", NIL],
    "a long head": [HEAD + b"\0", b"topic", NIL],
    "a head of noise": [bytes(range(16, 48)), b"topic", NIL],
    "a verb that is none": [wire.pack_head(127, 0, 7), b"topic", NIL],
    "a verb of a session that is none": [wire.pack_head(5, 0, 7), b"", NIL],
    "a verb of a process that is none": [wire.pack_head(15, 0, 7), b"\0w0", NIL],
    "a verb of the broker": [wire.pack_head(Verb.DELIVER, 0, 7), b"topic", NIL],
    "an empty body": [HEAD, b"topic", b""],
    "a body of noise": [HEAD, b"topic", b"\xc1\xff\x00\xc1"],
    "a body that is cut": [HEAD, b"topic", b"\x94\x91"],
    "a body with something behind it": [HEAD, b"topic", b"\x90\x90"],
    "a body that is no array": [HEAD, b"topic", wire.pack_body({"messages": []})],
    "a body that is nil": [HEAD, b"topic", NIL],
    "a body with too many fields": [HEAD, b"topic", wire.pack_body([[], None, 1, 0, 5, 6])],
    "a body of an extension": [HEAD, b"topic", b"\x91\xd4\x01\x00"],
    "a body that is deep": [HEAD, b"topic", b"\x91" * 5_000 + b"\xc0"],
    "a body that claims to be huge": [HEAD, b"topic", b"\xdd\xff\xff\xff\xff"],
    "fields of the wrong type": [HEAD, b"topic", wire.pack_body(["messages", 5])],
    "a number that is a float": [HEAD, b"topic", wire.pack_body([[message()], bytes(16), 1.0, 0])],
    "a topic that is not UTF-8": [HEAD, b"\xff\xfe", wire.pack_body([[message()]])],
    "a topic without a name": [HEAD, b"", wire.pack_body([[message()]])],
    "a topic with a control character": [HEAD, b"a\nb", wire.pack_body([[message()]])],
    "a topic that is too long": [HEAD, b"a" * 256, wire.pack_body([[message()]])],
    "a process that is none": [wire.pack_head(Verb.STATUS, 0, 7), b"\0w99", NIL],
    "a process by a wrong name": [wire.pack_head(Verb.STATUS, 0, 7), b"\0nobody", NIL],
    "a topic's verb to a process": [wire.pack_head(Verb.DESCRIBE, 0, 7), b"\0w0", NIL],
    "a status of a topic": [wire.pack_head(Verb.STATUS, 0, 7), b"topic", NIL],
    "a listing after a number": [wire.pack_head(Verb.LIST_TOPICS, 0, 7), b"\0w0", b"\x91\x05"],
    "a snapshot into nothing": [wire.pack_head(Verb.SNAPSHOT, 0, 7), b"\0w0", NIL],
    "a request that is too large": [
        struct.pack(">BBHIQ", 1, Verb.STATS, 0, 0, 2**64 - 1),
        b"t",
        b"\x90",
    ],
}


def answered(broker: Broker, frames: list[bytes]) -> str:
    """The code that malformed frames are answered with; the session goes on behind them."""
    with Raw(broker.address) as raw:
        raw.socket.send_multipart(frames)
        said = raw.next()
        assert raw.ask(Verb.PING, "", None).verb == Verb.PONG, "the sender keeps its connection"
        assert raw.ask(Verb.STATUS, f"\0w{worker_of_topic('topic')}", None).verb == Verb.REPLY
    if said.verb == Verb.ACCEPTED:
        return str(said.body[0][0])
    assert said.verb == Verb.REFUSE, said
    return str(said.body[0])


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_frame_is_answered_and_nobody_dies(broker: Broker, what: str) -> None:
    pids = broker.pids()
    assert answered(broker, MALFORMED[what]) in (
        "bad_request",
        "bad_subject",
        "unsupported_version",
    )
    assert broker.pids() == pids


@pytest.mark.parametrize(
    "entry",
    [b"", [], [b""], [b"", b""], [bytes(15), b"\x93\x02\x02\x91\xa1a", b""], [1, 2, 3], None,
     [bytes(16), b"", b""], [bytes(16), b"\xc1", b""], [bytes(16), b"\x90", b""],
     [bytes(16), b"\x93\x09\x02\x91\xa1a", b""], [bytes(16), b"\x93\x02\x02\x91\xa1a", "text"]],
    ids=repr,
)  # fmt: skip
def test_a_malformed_message_of_a_batch_is_refused_and_its_neighbours_are_not(
    broker: Broker, topic: str, entry: object
) -> None:
    with Raw(broker.address) as raw:
        said = raw.ask(Verb.PUBLISH, topic, [[message(b"1"), entry, message(b"3")]])
        if said.verb == Verb.REFUSE:  # one that is no message at all may cost the batch
            assert said.body[0] == "bad_request"
            return
        first, refusal, third = said.body
        assert isinstance(first, int) and isinstance(third, int)
        assert refusal[0] in ("bad_request", "too_large")


def test_a_frame_over_the_limit_costs_its_sender_the_connection(broker: Broker, topic: str) -> None:
    with Raw(broker.address, hello=False) as raw:
        limit = raw.ask(Verb.HELLO, "", {"versions": [1]}).body["frame_bytes_max"]
        assert raw.ask(Verb.PING, "", None).verb == Verb.PONG
        head = wire.pack_head(Verb.PUBLISH, 0, 99)
        raw.socket.send_multipart([head, topic.encode(), bytes(limit + 1)])
        # ZeroMQ connects again by itself; what was sent meanwhile may be lost with the connection.
        deadline = time.monotonic() + WAIT_S
        while not raw.socket.poll(100):
            assert time.monotonic() < deadline
            raw.send(Verb.PING, "", None)
        said = raw.next()
        assert said.verb == Verb.CLOSED
        assert said.body[0] == "wrong_state", "there is no such session any more"


def test_a_client_does_not_send_a_frame_over_the_limit(broker: Broker, topic: str) -> None:
    with asterism.connect_blocking(broker.address) as node:
        with pytest.raises(asterism.PeerError) as refused:
            node.publish(topic, bytes(65 << 20))
        assert refused.value.code == "too_large"
        node.publish(topic, b"and goes on")


def test_without_a_hello_every_request_is_told_that_there_is_no_session(broker: Broker) -> None:
    with Raw(broker.address, hello=False) as raw:
        for verb in (Verb.PING, Verb.PUBLISH, Verb.STATUS, Verb.GOODBYE, 77):
            said = raw.ask(verb, "topic", None)
            assert (said.verb, said.body[0]) == (Verb.CLOSED, "wrong_state")
        bodies: list[object] = [None, [], {}, {"versions": 1}, {"versions": []}]
        for body in [*bodies, {"versions": [1], "name": 5}]:
            assert raw.refusal(Verb.HELLO, "", body) in ("bad_request", "unsupported_version")
        assert raw.ask(Verb.HELLO, "", {"versions": [1]}).verb == Verb.WELCOME


def test_noise_of_any_kind_ends_nobody(broker: Broker, topic: str) -> None:
    """Frames of chance, and bytes that are not even of ZeroMQ."""
    pids = broker.pids()
    host, port = broker.address.removeprefix("tcp://").split(":")
    for noise in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(4_096), b"\xff" * 100, b""):
        with socket.create_connection((host, int(port)), WAIT_S) as connection:
            connection.sendall(noise)
    with Raw(broker.address) as raw:
        for size in range(60):
            raw.socket.send_multipart([os.urandom(size) for _ in range(size % 5 + 1)])
            verb = size * 4 % 256
            raw.socket.send_multipart(
                [wire.pack_head(verb, 0, 0), topic.encode(), os.urandom(size)]
            )
        assert raw.ask(Verb.HELLO, "", {"versions": [1]}).verb == Verb.WELCOME
        assert raw.ask(Verb.PUBLISH, topic, [[message()]]).verb == Verb.ACCEPTED
    assert broker.pids() == pids


@with_a_client
async def test_what_others_send_that_is_malformed_disturbs_no_client(
    node: Node, topic: str, broker: Broker
) -> None:
    inbox = await node.subscribe(topic, name="r")
    with Raw(broker.address) as raw:
        for number, frames in enumerate(MALFORMED.values()):
            raw.socket.send_multipart(frames)
            await node.publish(topic, b"%d" % number, expect="processed")
    assert await take(inbox, len(MALFORMED)) == [b"%d" % n for n in range(len(MALFORMED))]
    assert await asyncio.to_thread(broker.pids) == broker.pids()


def test_several_commands_in_one_message_are_taken_in_order_as_if_each_had_come_alone(
    broker: Broker, topic: str
) -> None:
    """Some for the front-end, some for a worker, one that is wrong: each has its own answer."""
    asked = [
        (Verb.CREATE_TOPIC, topic, [{}]),
        (Verb.PUBLISH, topic, [[message(max_receivers=1)]]),
        (Verb.PING, "", None),
        (Verb.PUBLISH, topic, ["wrong"]),
        (Verb.PUBLISH, topic, [[message(max_receivers=1)]]),
        (Verb.STATUS, "\0i", None),
        (Verb.STATUS, "\0i", None),
        (Verb.STATS, topic, []),
    ]
    numbers = range(1_000, 1_000 + len(asked))
    frames: list[bytes] = []
    for number, (verb, name, body) in zip(numbers, asked, strict=True):
        frames += [wire.pack_head(verb, 0, number), name.encode(), wire.pack_body(body)]
    answers: dict[int, Answer] = {}
    with Raw(broker.address) as raw:
        raw.socket.send_multipart(frames)
        while len(answers) < len(asked):
            said = raw.next()
            if said.request in numbers:
                answers[said.request] = said
    first, _, pong, wrong, second, *statuses, stats = (answers[number] for number in numbers)
    assert first.verb == Verb.REPLY and pong.verb == Verb.PONG and wrong.verb == Verb.REFUSE
    assert second.verb == Verb.ACCEPTED
    assert [said.body["process"] for said in statuses] == ["interests"] * 2
    assert stats.body["waiting"] == 2


def test_a_message_of_frames_that_are_not_threes_is_refused(broker: Broker) -> None:
    head = wire.pack_head(Verb.PING, 0, 7)
    with Raw(broker.address) as raw:
        for count in (1, 2, 4, 3 * (wire.TOGETHER_MAX + 1)):
            raw.socket.send_multipart([head] * count)
            assert raw.next().verb == Verb.REFUSE
        assert raw.ask(Verb.PING, "", None).verb == Verb.PONG
