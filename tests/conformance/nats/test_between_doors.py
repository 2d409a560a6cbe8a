"""What goes in by the NATS door comes out by the others, and the other way round."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import asterism
from asterism import BlockingInbox, BlockingNode
from asterism.config import Config
from asterism.router.placement import store_of, worker_of
from tests.conformance.nats.conftest import Door
from tests.conformance.nats.raw_client import (
    FULL,
    Message,
    RawClient,
    assert_spread,
    hpub,
    message_of,
    pub,
    sub,
)

pytestmark = pytest.mark.process

TOPIC = "nats"
WAIT_S = 20.0
NOTHING_S = 0.3  # for what must not come where nothing can be asked behind it


@pytest.fixture(scope="module")
def sdk(nats_door: Door) -> Iterator[BlockingNode]:
    with asterism.connect_blocking(nats_door.broker.address, name="between doors") as node:
        yield node


@pytest.fixture
def client(nats_door: Door) -> Iterator[RawClient]:
    with nats_door.connect() as connected:
        yield connected


@pytest.fixture
def other(nats_door: Door) -> Iterator[RawClient]:
    with nats_door.connect() as connected:
        yield connected


@pytest.fixture
def path(subject: str) -> str:
    """The subject of the test, as the broker spells it."""
    return subject.replace(".", "/")


def publish(node: BlockingNode, path: str, payload: bytes = b"", **attributes: str) -> None:
    """Online, as the door does; it returns when the topic has it."""
    node.publish(TOPIC, payload, subject=path, mode="online", attributes=attributes or None)


def received(inbox: BlockingInbox, count: int) -> list[bytes]:
    return [inbox.receive(WAIT_S).payload for _ in range(count)]


# --- subjects -------------------------------------------------------------------------------------


def test_what_a_client_publishes_reaches_a_program(
    sdk: BlockingNode, client: RawClient, subject: str, path: str
) -> None:
    with sdk.subscribe(TOPIC, f"{path}/a/b") as inbox:
        client.until_pong(pub(f"{subject}.a.b", b"payload") + pub(f"{subject}.a.c", b"no"))
        delivery = inbox.receive(WAIT_S)
        assert (delivery.subject, delivery.payload) == (f"{path}/a/b", b"payload")
        assert delivery.subjects == (f"{path}/a/b",)
        assert (delivery.mode, delivery.expect) == ("online", "sent")
        assert dict(delivery.attributes) == {}
        assert delivery.is_finished


def test_what_a_program_publishes_reaches_a_client(
    sdk: BlockingNode, client: RawClient, subject: str, path: str
) -> None:
    client.until_pong(sub(f"{subject}.a.b"))
    publish(sdk, f"{path}/a/b", b"payload")
    publish(sdk, f"{path}/a/c", b"no")
    assert client.until_pong() == b"MSG %s.a.b 1 7\r\npayload\r\n" % subject.encode()


@pytest.mark.parametrize("payload", [b"", b"\0", bytes(range(256)), b"x" * 1_000_000])
def test_a_payload_is_the_same_on_both_sides(
    sdk: BlockingNode, client: RawClient, subject: str, path: str, payload: bytes
) -> None:
    with sdk.subscribe(TOPIC, f"{path}/to-program") as inbox:
        client.until_pong(sub(f"{subject}.to-client") + pub(f"{subject}.to-program", payload))
        assert inbox.receive(WAIT_S).payload == payload
        publish(sdk, f"{path}/to-client", payload)
        assert client.read_message().payload == payload


@pytest.mark.parametrize(
    ("interest", "wanted"),
    [("{}/*", "{}.*"), ("{}/**", "{}.>"), ("{}/*/b", "{}.*.b"), ("{}/a/**", "{}.a.>")],
)
def test_patterns_match_alike_on_both_sides(
    sdk: BlockingNode, client: RawClient, subject: str, path: str, interest: str, wanted: str
) -> None:
    """The same messages by both doors; each side gets the same of them, in the same order."""
    names = ["a", "b", "a.b", "c.b", "a.b.c", "b.b.b", "a.b.c.d"]
    with sdk.subscribe(TOPIC, interest.format(path)) as inbox:
        client.until_pong(sub(wanted.format(subject)))
        for name in names:
            publish(sdk, f"{path}/{name.replace('.', '/')}", name.encode())
        theirs = [message.payload for message in client.messages_until_pong()]
        assert theirs
        assert received(inbox, len(theirs)) == theirs
        client.until_pong(b"".join(pub(f"{subject}.{name}", name.encode()) for name in names))
        assert received(inbox, len(theirs)) == theirs


def test_an_arrow_is_everything_on_the_topic(
    sdk: BlockingNode, client: RawClient, path: str
) -> None:
    with sdk.subscribe(TOPIC, "**") as inbox:
        client.until_pong(sub(">"))
        publish(sdk, f"{path}/from/program", b"1")
        client.until_pong(pub("from.client", b"2"))
        publish(sdk, "alone", b"3")
        assert received(inbox, 3) == [b"1", b"2", b"3"]
    client.until_pong(b"UNSUB 1\r\n")


ODD = [
    *("a/b", "/", "//", "/a", "a/", "%2F", "%2E", "%", "%25", "~", "~2F", "~7E2F", "~2A", "~"),
    *(
        "\\",
        "\\/",
        "**",
        "***",
        "*a",
        "a*",
        ">>",
        ">a",
        "é",
        "日本語",
        "😀",
        "$a",
        "\x01",
        " "[1:] or "-",
    ),
]


def test_an_odd_token_goes_to_a_program_and_comes_back_as_it_was(
    sdk: BlockingNode, client: RawClient, other: RawClient, subject: str, path: str
) -> None:
    with sdk.subscribe(TOPIC, f"{path}/there/**") as inbox:
        other.until_pong(sub(f"{subject}.back.>"))
        seen = set()
        for token in ODD:
            client.send(pub(f"{subject}.there.{token}.end", token.encode()))
            delivery = inbox.receive(WAIT_S)
            assert delivery.payload == token.encode()
            assert delivery.subject.split("/")[3:][-1] == "end"
            assert len(delivery.subject.split("/")) == 5, "a token is a segment"
            seen.add(delivery.subject)
            publish(sdk, delivery.subject.replace("/there/", "/back/"), delivery.payload)
            assert other.read_message().subject == f"{subject}.back.{token}.end".encode()
        assert len(seen) == len(set(ODD)), "no two are one"


@pytest.mark.parametrize(
    "segment", ["v1.2", ".", "..", "a b", " ", "\t", "\r\n", "%2E", "%", ">", "*a"]
)
def test_a_segment_that_nats_cannot_say_goes_to_a_client_and_comes_back_as_it_was(
    sdk: BlockingNode, client: RawClient, subject: str, path: str, segment: str
) -> None:
    client.until_pong(sub(f"{subject}.there.>"))
    publish(sdk, f"{path}/there/{segment}/end", b"x")
    (message,) = client.messages_until_pong()
    assert message.subject.endswith(b".end") and message.subject.count(b".") == 4
    with sdk.subscribe(TOPIC, f"{path}/back/**") as inbox:
        client.until_pong(pub(message.subject.replace(b".there.", b".back."), b"y"))
        assert inbox.receive(WAIT_S).subject == f"{path}/back/{segment}/end"


def test_a_star_that_was_published_reaches_a_program(
    sdk: BlockingNode, client: RawClient, subject: str, path: str
) -> None:
    """As a segment that is no wildcard, since the broker refuses subjects with one."""
    with sdk.subscribe(TOPIC, f"{path}/**") as inbox:
        for token in ("*", ">", "**"):
            client.until_pong(pub(f"{subject}.{token}", token.encode()))
            delivery = inbox.receive(WAIT_S)
            assert delivery.payload == token.encode()
            assert delivery.subject.rsplit("/", 1)[1] not in ("*", "**")


def test_what_the_broker_cannot_name_still_goes_from_client_to_client(
    client: RawClient, other: RawClient
) -> None:
    for name in (b"deep." + b"x." * 100 + b"end", b"long." + b"y" * 3_000, b"bytes.\xff"):
        client.until_pong(sub(name))
        other.until_pong(pub(name, b"x"))
        assert client.read_message().subject == name
        client.until_pong(b"UNSUB 1\r\n")
        assert other.until_pong() == b"", "its connection stays"


# --- headers --------------------------------------------------------------------------------------


def test_headers_are_attributes(
    sdk: BlockingNode, client: RawClient, subject: str, path: str
) -> None:
    block = "NATS/1.0\r\nTrace-Id: 1-2\r\nlower: très: bien\r\nEmpty: \r\n\r\n".encode()
    with sdk.subscribe(TOPIC, path) as inbox:
        client.until_pong(hpub(subject, block, b"x"))
        delivery = inbox.receive(WAIT_S)
        assert delivery.payload == b"x"
        assert dict(delivery.attributes) == {"Trace-Id": "1-2", "lower": "très: bien", "Empty": ""}


def lines_of(message: Message) -> list[bytes]:
    """The headers of a message in an order of their own, behind the version."""
    first, *lines = message.headers.split(b"\r\n")
    assert first.startswith(b"NATS/1.0") and lines[-2:] == [b"", b""]
    return sorted(line.replace(b": ", b":", 1) for line in lines[:-2])


def test_attributes_are_headers(
    sdk: BlockingNode, client: RawClient, nats_door: Door, subject: str, path: str
) -> None:
    with nats_door.connect({**FULL, "headers": False, "no_responders": False}) as plain:
        for one in (client, plain):
            one.until_pong(sub(subject))
        sdk.publish(
            TOPIC,
            b"x",
            subject=path,
            mode="online",
            attributes={"Trace-Id": "1-2", "lower": "très: bien"},
        )
        (message,) = client.messages_until_pong()
        assert lines_of(message) == [b"Trace-Id:1-2", "lower:très: bien".encode()]
        assert message.payload == b"x"
        assert plain.until_pong() == b"MSG %s 1 1\r\nx\r\n" % subject.encode()


def test_several_values_of_one_name_are_kept_there_and_back(
    sdk: BlockingNode, client: RawClient, subject: str, path: str
) -> None:
    block = b"NATS/1.0\r\nMany: one\r\nMany: two\r\nMany: one\r\nmany: other\r\nAlone: x\r\n\r\n"
    client.until_pong(sub(f"{subject}.back"))
    with sdk.subscribe(TOPIC, f"{path}/there") as inbox:
        client.until_pong(hpub(f"{subject}.there", block, b"x"))
        delivery = inbox.receive(WAIT_S)
        assert delivery.attributes["Alone"] == "x"
        assert delivery.attributes["many"] == "other"
        sdk.publish(
            TOPIC,
            delivery.payload,
            subject=f"{path}/back",
            mode="online",
            attributes=dict(delivery.attributes),
        )
    message = client.read_message()
    assert lines_of(message) == sorted(
        [b"Many:one", b"Many:two", b"Many:one", b"many:other", b"Alone:x"]
    )


@pytest.mark.parametrize("first", [b"NATS/1.0 503", b"NATS/1.0 100 Idle Heartbeat"])
def test_a_status_goes_there_and_back(
    sdk: BlockingNode, client: RawClient, subject: str, path: str, first: bytes
) -> None:
    client.until_pong(sub(f"{subject}.back"))
    with sdk.subscribe(TOPIC, f"{path}/there") as inbox:
        client.until_pong(hpub(f"{subject}.there", first + b"\r\n\r\n"))
        delivery = inbox.receive(WAIT_S)
        attributes = dict(delivery.attributes)
        sdk.publish(TOPIC, b"", subject=f"{path}/back", mode="online", attributes=attributes)
    assert client.read_message().headers == first + b"\r\n\r\n"


@pytest.mark.parametrize("attributes", [{"a b": "x"}, {"a:b": "x"}, {"": "x"}, {"a": "1\r\nB: 2"}])
def test_an_attribute_that_no_header_can_say_breaks_nothing(
    sdk: BlockingNode, client: RawClient, subject: str, path: str, attributes: dict[str, str]
) -> None:
    """It may not come; but the message does, and nothing pretends to be another header."""
    client.until_pong(sub(subject))
    sdk.publish(TOPIC, b"x", subject=path, mode="online", attributes={**attributes, "C": "d"})
    (message,) = client.messages_until_pong()
    assert message.payload == b"x"
    assert b"C:d" in lines_of(message)
    assert not {b"B:2", b"b:x"} & set(lines_of(message)) - {
        line for name, value in attributes.items() for line in _split(name, value)
    }


def _split(name: str, value: str) -> list[bytes]:
    """The lines that stand for values of the one name."""
    return [f"{name}:{part}".encode() for part in value.splitlines()]


# --- queues ---------------------------------------------------------------------------------------


def test_a_queue_and_a_group_of_one_name_are_one(
    sdk: BlockingNode, client: RawClient, other: RawClient, subject: str, path: str
) -> None:
    """Whoever publishes: one of them all gets each message."""
    count = 300
    client.until_pong(sub(f"{subject}.*", 1, "q"))
    with sdk.subscribe(TOPIC, f"{path}/**", group="q", durable=False, credit=count) as inbox:
        for number in range(count):
            publish(sdk, f"{path}/x", b"%d" % number)
        by_client = [int(one.payload) for one in client.messages_until_pong()]
        by_program = [int(one) for one in received(inbox, count - len(by_client))]
        assert sorted(by_client + by_program) == list(range(count))
        assert by_client and by_program
        # Of a client's messages the members at its own door may get more.
        other.until_pong(b"".join(pub(f"{subject}.x", b"%d" % at) for at in range(count)))
        by_client, by_program = [], []
        deadline = time.monotonic() + WAIT_S
        while len(by_client) + len(by_program) < count:
            assert time.monotonic() < deadline, (len(by_client), len(by_program))
            by_client += [int(one.payload) for one in client.messages_until_pong()]
            by_program += [int(one.payload) for one in _taken(inbox)]
        assert sorted(by_client + by_program) == list(range(count))


def _taken(inbox: BlockingInbox) -> list[asterism.BlockingDelivery]:
    """What is there."""
    try:
        return inbox.batch(1_000, timeout=0.05)
    except TimeoutError:
        return []


def test_members_by_both_doors_leave_and_the_rest_gets_everything(
    sdk: BlockingNode, client: RawClient, subject: str, path: str
) -> None:
    client.until_pong(sub(subject, 1, "q"))
    with sdk.subscribe(TOPIC, path, group="q", durable=False):
        pass
    for number in range(50):
        publish(sdk, path, b"%d" % number)
    assert len(client.messages_until_pong()) == 50
    with sdk.subscribe(TOPIC, path, group="q", durable=False) as inbox:
        client.until_pong(b"UNSUB 1\r\n")
        for number in range(50):
            publish(sdk, path, b"%d" % number)
        client.until_pong(b"".join(pub(subject, b"%d" % at) for at in range(50, 100)))
        assert received(inbox, 100) == [b"%d" % number for number in range(100)]
        assert client.until_pong() == b""


def test_each_queue_of_either_door_gets_a_copy(
    sdk: BlockingNode, client: RawClient, subject: str, path: str
) -> None:
    client.until_pong(sub(subject, 1, "q") + sub(subject, 2))
    with sdk.subscribe(TOPIC, path, group="r", durable=False) as inbox:
        for number in range(20):
            publish(sdk, path, b"%d" % number)
        got = client.messages_until_pong()
        assert sorted(one.sid for one in got) == [b"1"] * 20 + [b"2"] * 20
        assert len(received(inbox, 20)) == 20


# --- barriers -------------------------------------------------------------------------------------


def test_a_pong_comes_behind_all_that_was_accepted_before_its_ping(
    sdk: BlockingNode, client: RawClient, subject: str, path: str
) -> None:
    client.until_pong(sub(f"{subject}.>"))
    for number in range(300):
        publish(sdk, f"{path}/x", b"%d" % number)
        assert [int(one.payload) for one in client.messages_until_pong()] == [number]


def test_a_pong_comes_behind_many_that_were_accepted_before_its_ping(
    sdk: BlockingNode, client: RawClient, other: RawClient, subject: str, path: str
) -> None:
    for one in (client, other):
        one.until_pong(sub(f"{subject}.>"))
    for _ in range(10):
        many = [asterism.Message(b"%d" % at, subject=f"{path}/{at % 9}") for at in range(500)]
        sdk.publish_many(TOPIC, many, mode="online").accepted(WAIT_S)
        for one in (client, other):
            got = [int(message.payload) for message in one.messages_until_pong()]
            assert got == list(range(500))


def test_what_was_published_before_a_pong_reaches_a_program_in_order(
    sdk: BlockingNode, client: RawClient, subject: str, path: str
) -> None:
    with sdk.subscribe(TOPIC, f"{path}/**") as inbox:
        for start in range(0, 5_000, 500):
            packet = b"".join(pub(f"{subject}.x", b"%d" % at) for at in range(start, start + 500))
            client.until_pong(packet)
        assert [int(one) for one in received(inbox, 5_000)] == list(range(5_000))


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "with a program"])
def test_a_pong_waits_for_the_topic(
    sdk: BlockingNode,
    nats_door: Door,
    client: RawClient,
    subject: str,
    path: str,
    *,
    is_alone: bool,
) -> None:
    broker = nats_door.broker
    worker = worker_of(store_of(TOPIC, Config().stores), len(broker.pids()["worker"]))
    with contextlib.ExitStack() as leaving:
        if not is_alone:
            leaving.enter_context(sdk.subscribe(TOPIC, path))
        client.until_pong()
        broker.kill("worker", worker, signal.SIGSTOP)
        try:
            client.send(pub(subject, b"x") + b"PING\r\n")
            assert client.is_quiet()
        finally:
            broker.kill("worker", worker, signal.SIGCONT)
        assert client.read_command() == b"PONG\r\n"


def test_a_program_that_comes_among_messages_misses_none_that_follow(
    sdk: BlockingNode, client: RawClient, subject: str, path: str
) -> None:
    """Alone on the topic, the door tells the broker nothing, but asks whether it still is."""
    for start in range(0, 20_000, 1_000):
        client.until_pong()  # by now the door knows that it is alone
        client.send(b"".join(pub(f"{subject}.x", b"%d" % at) for at in range(start, start + 500)))
        with sdk.subscribe(TOPIC, f"{path}/**") as inbox:
            last = start + 999
            numbers = range(start + 500, last + 1)
            client.send(b"".join(pub(f"{subject}.x", b"%d" % at) for at in numbers))
            got = [int(inbox.receive(WAIT_S).payload)]
            while got[-1] != last:
                got.append(int(inbox.receive(WAIT_S).payload))
        assert start <= got[0] <= start + 500
        assert got == list(range(got[0], last + 1))


def test_a_subscription_stands_for_programs_when_its_pong_has_come(
    sdk: BlockingNode, client: RawClient, subject: str, path: str
) -> None:
    for number in range(100):
        client.until_pong(sub(f"{subject}.{number}", number))
        publish(sdk, f"{path}/{number}", b"x")
        assert [one.sid for one in client.messages_until_pong()] == [b"%d" % number]


def test_after_unsub_and_its_pong_a_program_s_messages_do_not_come(
    sdk: BlockingNode, client: RawClient, subject: str, path: str
) -> None:
    for number in range(50):
        client.until_pong(sub(subject, number))
        client.until_pong(b"UNSUB %d\r\n" % number)
        publish(sdk, path, b"x")
        assert client.until_pong() == b""


def test_without_echo_a_program_s_messages_come(
    sdk: BlockingNode, nats_door: Door, subject: str, path: str
) -> None:
    with nats_door.connect({**FULL, "echo": False}) as client:
        client.until_pong(sub(subject) + pub(subject, b"mine"))
        publish(sdk, path, b"theirs")
        assert [one.payload for one in client.messages_until_pong()] == [b"theirs"]


# --- requests -------------------------------------------------------------------------------------


def _is_no_responders(command: bytes) -> bool:
    return message_of(command).headers.startswith(b"NATS/1.0 503\r\n")


def test_a_program_answers_a_client_s_request(
    sdk: BlockingNode, client: RawClient, subject: str, path: str
) -> None:
    with sdk.subscribe(TOPIC, path) as inbox:
        client.until_pong(sub("_INBOX.mine.*", 9))
        for number in range(20):
            client.send(pub(subject, b"%d?" % number, f"_INBOX.mine.{number}"))
            inbox.receive(WAIT_S).reply(b"%d!" % number)
            answer = client.read_message()
            assert answer.subject == b"_INBOX.mine.%d" % number
            assert answer.payload == b"%d!" % number


def test_a_client_answers_a_program_that_waits_on_the_topic(
    sdk: BlockingNode, client: RawClient, subject: str, path: str
) -> None:
    """The attributes are those of the SDK's requests."""
    client.until_pong(sub(subject))
    with sdk.subscribe(TOPIC, f"{path}/answers/*") as inbox:
        sdk.publish(
            TOPIC,
            b"?",
            subject=path,
            mode="online",
            attributes={"reply-topic": TOPIC, "reply-subject": f"{path}/answers/7"},
        )
        question = client.read_message()
        assert question.reply == f"{subject}.answers.7".encode()
        client.send(pub(question.reply, b"!"))
        answer = inbox.receive(WAIT_S)
        assert (answer.subject, answer.payload) == (f"{path}/answers/7", b"!")


def test_nobody_is_there_only_when_nobody_is_at_any_door(
    sdk: BlockingNode, client: RawClient, other: RawClient, subject: str, path: str
) -> None:
    client.until_pong(sub("_INBOX.x", 9))
    asked = pub(subject, b"?", "_INBOX.x")
    client.send(asked)
    assert _is_no_responders(client.read_command())
    with sdk.subscribe(TOPIC, f"{path}/**", path) as inbox:
        client.until_pong(asked)
        assert inbox.receive(WAIT_S).payload == b"?"
        assert client.is_quiet(NOTHING_S)
    client.send(asked)
    assert _is_no_responders(client.read_command())
    with sdk.subscribe(TOPIC, path, group="q", durable=False) as inbox:
        client.until_pong(asked)
        assert inbox.receive(WAIT_S).payload == b"?"
        assert client.is_quiet(NOTHING_S)
    other.until_pong(sub(subject))
    assert client.until_pong(asked) == b""
    assert other.read_message().payload == b"?"
    assert client.is_quiet(NOTHING_S)


# --- two NATS doors -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def second_url(nats_door: Door, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A second NATS door, as on another machine: of the broker it knows the address alone."""
    folder = tmp_path_factory.mktemp("second")
    kept = {name: text for name, text in os.environ.items() if not name.startswith("ASTERISM_")}
    environ = {
        **kept,
        "ASTERISM_DATA_DIR": str(folder / "data"),
        "ASTERISM_LISTEN": nats_door.broker.address,
        "ASTERISM_NATS__LISTEN": "127.0.0.1:0",
    }
    file = folder / "data/run/nats.json"
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "asterism.gateways.nats"], env=environ, stderr=log
        )
    try:
        yield _url_in(file, process, folder / "log")
    finally:
        process.terminate()
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _url_in(file: Path, process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + 2 * WAIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return str(json.loads(file.read_text())["url"])
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.01)
    raise AssertionError(log.read_text())


@pytest.fixture
def far(second_url: str) -> Iterator[RawClient]:
    with RawClient(second_url) as connected:
        yield connected


def test_clients_of_two_doors_reach_each_other(
    client: RawClient, far: RawClient, subject: str
) -> None:
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    for one, two in ((client, far), (far, client)):
        two.until_pong(sub(f"{subject}.*"))
        one.until_pong(
            b"".join(hpub(f"{subject}.x", block, b"%d" % at, f"reply.{at}") for at in range(500))
        )
        got = two.read_messages(500)
        assert [int(message.payload) for message in got] == list(range(500))
        assert [message.reply for message in got] == [b"reply.%d" % at for at in range(500)]
        assert lines_of(got[0]) == [b"A:b"]
        two.until_pong(b"UNSUB 1\r\n")


def test_a_queue_over_two_doors_is_one(
    client: RawClient, far: RawClient, sdk: BlockingNode, subject: str, path: str
) -> None:
    count = 400
    for one in (client, far):
        one.until_pong(sub(subject, 1, "q"))
    for number in range(count):
        publish(sdk, path, b"%d" % number)
    got = [[int(one.payload) for one in each.messages_until_pong()] for each in (client, far)]
    assert sorted(got[0] + got[1]) == list(range(count))
    assert_spread([len(part) for part in got])


def test_a_client_of_the_other_door_is_a_responder(
    client: RawClient, far: RawClient, subject: str
) -> None:
    client.until_pong(sub("_INBOX.x", 9))
    far.until_pong(sub(subject))
    for number in range(50):
        client.send(pub(subject, b"%d" % number, "_INBOX.x"))
        question = far.read_message()
        assert int(question.payload) == number
        far.send(pub(question.reply, b"!"))
        assert client.read_message().payload == b"!"
    far.until_pong(b"UNSUB 1\r\n")
    client.send(pub(subject, b"?", "_INBOX.x"))
    assert _is_no_responders(client.read_command())
