"""Errors, end to end: the codes of section 9, and malformed messages, which are answered and end
nobody.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable

import pytest

import asterism
from asterism import wire
from asterism.errors import ADVICE, ERRORS
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
    assert str(raised.value).endswith(ADVICE["no_such_topic"])
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
            said = raw.next_within(0.02)
            if said is None or said.verb != Verb.REFUSE:
                continue
            if said.body[0] == "busy":
                hint_ms = said.body[2]
            else:  # answered by a worker: that was before the end, or it is back already
                broker.kill("worker", worker_of_topic(topic))
        assert raw.ask_again(Verb.CREATE_TOPIC, topic, []).verb == Verb.REPLY


# --- malformed parts ------------------------------------------------------------------------------

NUMBER = 7  # of the request in what is malformed


def publish(body: object, topic: bytes = b"topic") -> bytes:
    """A part that publishes, with this body."""
    return wire.pack_part(Verb.PUBLISH, NUMBER, topic, wire.pack_body(body))


def of_bytes(body: bytes) -> bytes:
    """A part that publishes, with these bytes for a body."""
    return wire.pack_part(Verb.PUBLISH, NUMBER, b"topic", body)


def of_verb(verb: int, topic: bytes = b"", body: bytes = wire.NIL) -> bytes:
    return wire.pack_part(verb, NUMBER, topic, body)


MALFORMED: dict[str, bytes] = {
    "a verb that is none": of_verb(127, b"topic"),
    "a verb of a session that is none": of_verb(5),
    "a verb of a process that is none": of_verb(15, b"\0w0"),
    "a verb of the broker": of_verb(Verb.DELIVER, b"topic"),
    "an empty body": of_bytes(b""),
    "a body of noise": of_bytes(b"\xc1\xff\x00\xc1"),
    "a body that is cut": of_bytes(b"\x94\x91"),
    "a body with something behind it": of_bytes(b"\x90\x90"),
    "a body that is no array": publish({"messages": []}),
    "a body that is nil": publish(None),
    "a body with too many fields": publish([[], None, 1, 0, 5, 6]),
    "a body of an extension": of_bytes(b"\x91\xd4\x01\x00"),
    "a body that is deep": of_bytes(b"\x91" * 5_000 + b"\xc0"),
    "a body that claims to be huge": of_bytes(b"\xdd\xff\xff\xff\xff"),
    "fields of the wrong type": publish(["messages", 5]),
    "a number that is a float": publish([[message()], bytes(16), 1.0, 0]),
    "a topic that is not UTF-8": publish([[message()]], b"\xff\xfe"),
    "a topic without a name": publish([[message()]], b""),
    "a topic with a control character": publish([[message()]], b"a\nb"),
    "a topic that is too long": publish([[message()]], b"a" * 256),
    "a topic of all bytes that a head has room for": publish([[message()]], b"a" * 65_535),
    "a process that is none": of_verb(Verb.STATUS, b"\0w99"),
    "a process by a wrong name": of_verb(Verb.STATUS, b"\0nobody"),
    "a topic's verb to a process": of_verb(Verb.DESCRIBE, b"\0w0"),
    "a status of a topic": of_verb(Verb.STATUS, b"topic"),
    "a listing after a number": of_verb(Verb.LIST_TOPICS, b"\0w0", b"\x91\x05"),
    "a snapshot into nothing": of_verb(Verb.SNAPSHOT, b"\0w0"),
    "a request that is too large": wire.pack_part(Verb.STATS, 2**64 - 1, b"t", b"\x90"),
}


def code_of(said: Answer) -> str:
    """The code of a refusal, or of the refusal of a message within an answer."""
    if said.verb == Verb.ACCEPTED:
        return str(said.body[0][0])
    assert said.verb == Verb.REFUSE, said
    return str(said.body[0])


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_part_is_answered_and_nobody_dies(broker: Broker, what: str) -> None:
    pids = broker.pids()
    with Raw(broker.address) as raw:
        raw.socket.send(MALFORMED[what])
        said = raw.next()
        assert raw.ask(Verb.PING, "", None).verb == Verb.PONG, "the sender keeps its connection"
        assert raw.ask(Verb.STATUS, f"\0w{worker_of_topic('topic')}", None).verb == Verb.REPLY
    assert code_of(said) in ("bad_request", "bad_subject")
    (part,) = wire.read_parts(MALFORMED[what])
    assert said.request == part.request, "whoever asked can tell which of his requests it was"
    assert broker.pids() == pids


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_part_costs_its_neighbours_nothing(broker: Broker, what: str) -> None:
    with Raw(broker.address) as raw:
        before, behind = (wire.pack_part(Verb.PING, number) for number in (1_001, 1_002))
        raw.socket.send(before + MALFORMED[what] + behind)
        answers = {said.request: said for said in (raw.next() for _ in range(3))}
        pongs = [answers.pop(number).verb for number in (1_001, 1_002)]
        assert pongs == [Verb.PONG, Verb.PONG]
        ((_, said),) = answers.items()
        assert code_of(said) in ("bad_request", "bad_subject")


# --- messages that are refused as a whole ---------------------------------------------------------

PING = wire.pack_part(Verb.PING, NUMBER)
HEAD = wire.HEAD.pack(wire.VERSION, Verb.PING, wire.ANY_WORKER, 0, NUMBER, 5, 5)
# What stands behind a good part, in its frame and in further ones; and the code.
REFUSED: dict[str, tuple[list[bytes], str]] = {
    "a second frame": ([b"", PING], "bad_request"),
    "a second frame that is empty": ([b"", b""], "bad_request"),
    "three frames": ([b"", b"topic", wire.NIL], "bad_request"),
    "very many frames": ([b"", *[PING] * 60], "bad_request"),
    "one byte": ([b"\x01"], "bad_request"),
    "a head that is cut": ([HEAD[:-1]], "bad_request"),
    "a head with nothing behind it": ([HEAD], "bad_request"),
    "a topic that is longer than the frame": ([HEAD + b"topi"], "bad_request"),
    "a body that is longer than the frame": ([HEAD + b"topicbody"], "bad_request"),
    "a body of four gigabytes": (
        [wire.HEAD.pack(1, Verb.PING, 0, 0, NUMBER, 0, 2**32 - 1) + wire.NIL],
        "bad_request",
    ),
    "a part too many": ([PING * wire.TOGETHER_MAX], "bad_request"),
    "very many parts": ([PING * 10_000], "bad_request"),
    "another version": ([b"\x02" + PING[1:]], "unsupported_version"),
    "no version": ([b"\0" + PING[1:]], "unsupported_version"),
    "noise": ([bytes(range(16, 48))], "unsupported_version"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_message_that_is_not_one_frame_of_whole_parts_is_refused_and_nothing_of_it_is_done(
    broker: Broker, topic: str, what: str
) -> None:
    (behind, *further), code = REFUSED[what]
    pids = broker.pids()
    with Raw(broker.address) as raw:
        good = wire.pack_part(Verb.CREATE_TOPIC, NUMBER, topic.encode(), b"\x90")
        raw.socket.send_multipart([good + behind, *further])
        said = raw.next()
        assert (said.verb, said.body[0]) == (Verb.REFUSE, code)
        assert (said.request, said.topic, said.worker) == (0, b"", wire.ANY_WORKER)
        assert raw.refusal(Verb.DESCRIBE, topic, []) == "no_such_topic"
        assert raw.unasked == [], "it has that one answer"
        raw.socket.send(good)
        assert raw.next()[:4] == (Verb.REPLY, worker_of_topic(topic), NUMBER, topic.encode())
    assert broker.pids() == pids


@pytest.mark.parametrize("frames", [[b""], [b"", b""], [b"", PING]], ids=["one", "two", "first"])
def test_an_empty_frame_is_refused(broker: Broker, frames: list[bytes]) -> None:
    with Raw(broker.address) as raw:
        raw.socket.send_multipart(frames)
        said = raw.next()
        assert (said.verb, said.body[0], said.request) == (Verb.REFUSE, "bad_request", 0)
        assert raw.ask(Verb.PING, "", None).verb == Verb.PONG
        assert raw.unasked == []


def test_as_many_parts_as_a_frame_may_have_are_all_answered(broker: Broker) -> None:
    numbers = range(1_001, 1_001 + wire.TOGETHER_MAX)
    with Raw(broker.address) as raw:
        raw.socket.send(b"".join(wire.pack_part(Verb.PING, number) for number in numbers))
        assert [raw.next()[::2] for _ in numbers] == [
            (Verb.PONG, number, None) for number in numbers
        ]


def test_what_is_refused_as_a_whole_is_refused_without_a_session_too(broker: Broker) -> None:
    with Raw(broker.address, hello=False) as raw:
        hello = wire.pack_part(Verb.HELLO, 1, b"", wire.pack_body({"versions": [1]}))
        for frames in ([hello, b""], [hello + b"\x01"], [b""], [hello * (wire.TOGETHER_MAX + 1)]):
            raw.socket.send_multipart(frames)
            said = raw.next()
            assert (said.verb, said.body[0], said.request) == (Verb.REFUSE, "bad_request", 0)
        said = raw.ask(Verb.PING, "", None)
        assert (said.verb, said.body[0]) == (Verb.CLOSED, "wrong_state")


def test_further_frames_of_a_message_are_not_taken_for_a_message_of_another_client(
    broker: Broker, topic: str
) -> None:
    """They could have his routing id, which is no secret, and say whatever in his name."""
    with Raw(broker.address, hello=False) as other, Raw(broker.address) as raw:
        welcome = other.ask(Verb.HELLO, "", {"versions": [1]}).body
        assert other.ask_again(Verb.SUBSCRIBE, topic, [1, ["**"], "r", None, None, 10]).body
        routing = welcome["session"][8:]
        goodbye = wire.pack_part(Verb.GOODBYE, NUMBER)
        for frames in ([PING, routing, goodbye], [routing, goodbye], [b"", routing, goodbye]):
            for _ in range(3):
                raw.socket.send_multipart(frames)
                assert raw.next().body[0] in ("bad_request", "unsupported_version")
        assert other.ask(Verb.PING, "", None).verb == Verb.PONG
        (sequence,) = raw.publish(topic, message(b"still there"))
        assert other.until(Verb.DELIVER).body[2][0][::4] == (sequence, b"still there")
        assert [said.verb for said in other.unasked] == []


@with_a_client
async def test_another_client_is_undisturbed_by_one_that_sends_messages_of_several_frames(
    node: Node, topic: str, broker: Broker
) -> None:
    pids = await asyncio.to_thread(broker.pids)
    inbox = await node.subscribe(topic, name="r")
    good = publish([[message(b"-")]], topic.encode())
    with Raw(broker.address) as raw:
        for count in range(2, 34):
            raw.socket.send_multipart([good] * count)
            await node.publish(topic, b"%d" % count, expect="processed")
            assert raw.next().body[0] == "bad_request"
            assert await take(inbox, 1) == [b"%d" % count], "and nothing that was refused"
        assert raw.ask(Verb.PING, "", None).verb == Verb.PONG
        assert raw.unasked == []
    assert await asyncio.to_thread(broker.pids) == pids


# --- what else is malformed -----------------------------------------------------------------------


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
        name = topic.encode()
        room = limit - wire.HEAD.size - len(name)
        raw.socket.send(wire.pack_part(Verb.PUBLISH, 98, name, bytes(room)))
        assert raw.answer(98).verb == Verb.REFUSE, "one byte less, and it is taken and answered"
        raw.socket.send(wire.pack_part(Verb.PUBLISH, 99, name, bytes(room + 1)))
        # ZeroMQ connects again by itself; what was sent meanwhile may be lost with the connection.
        deadline = time.monotonic() + WAIT_S
        while (said := raw.next_within(0.1)) is None:
            assert time.monotonic() < deadline
            raw.send(Verb.PING, "", None)
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
            raw.socket.send(wire.pack_part(verb, 0, topic.encode(), os.urandom(size)))
            raw.socket.send(os.urandom(size) + wire.pack_part(verb) + os.urandom(size % 7))
            raw.socket.send(wire.pack_part(verb) + os.urandom(size))
        assert raw.ask(Verb.HELLO, "", {"versions": [1]}).verb == Verb.WELCOME
        assert raw.ask(Verb.PUBLISH, topic, [[message()]]).verb == Verb.ACCEPTED
    assert broker.pids() == pids


@with_a_client
async def test_what_others_send_that_is_malformed_disturbs_no_client(
    node: Node, topic: str, broker: Broker
) -> None:
    pids = await asyncio.to_thread(broker.pids)
    inbox = await node.subscribe(topic, name="r")
    sent = [[part] for part in MALFORMED.values()] + [frames for frames, _ in REFUSED.values()]
    with Raw(broker.address) as raw:
        for number, frames in enumerate(sent):
            raw.socket.send_multipart(frames)
            await node.publish(topic, b"%d" % number, expect="processed")
    assert await take(inbox, len(sent)) == [b"%d" % n for n in range(len(sent))]
    assert await asyncio.to_thread(broker.pids) == pids


def test_several_parts_in_one_frame_are_taken_in_order_as_if_each_had_come_alone(
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
    parts = [
        wire.pack_part(verb, number, name.encode(), wire.pack_body(body))
        for number, (verb, name, body) in zip(numbers, asked, strict=True)
    ]
    answers: dict[int, Answer] = {}
    with Raw(broker.address) as raw:
        raw.socket.send(b"".join(parts))
        while len(answers) < len(asked):
            said = raw.next()
            if said.request in numbers:
                answers[said.request] = said
    first, _, pong, wrong, second, *statuses, stats = (answers[number] for number in numbers)
    assert first.verb == Verb.REPLY and pong.verb == Verb.PONG and wrong.verb == Verb.REFUSE
    assert second.verb == Verb.ACCEPTED
    assert [said.body["process"] for said in statuses] == ["interests"] * 2
    assert stats.body["waiting"] == 2
