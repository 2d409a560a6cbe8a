"""Request and reply, and what a request gets that nobody hears."""

import time

import pytest

from tests.conformance.nats.conftest import Connect
from tests.conformance.nats.raw_client import FULL, PLAIN, RawClient, hpub, message_of, pub, sub

pytestmark = pytest.mark.process

AT_ONCE_S = 1.0  # nobody waits for a timeout; a machine may be busy


def is_no_responders(command: bytes, inbox: str, sid: int, subject: str) -> bool:
    """Whether it is the status 503, byte by byte; releases before 2.11 named no subject in it."""
    bare = b"NATS/1.0 503\r\n\r\n"
    named = b"NATS/1.0 503\r\nNats-Subject: %s\r\n\r\n" % subject.encode()
    return command in (
        b"HMSG %s %d %d %d\r\n%s\r\n" % (inbox.encode(), sid, len(block), len(block), block)
        for block in (bare, named)
    )


def test_a_reply_goes_to_the_subject_that_the_request_names(connect: Connect, subject: str) -> None:
    service, asks = connect(), connect()
    service.until_pong(sub(subject))
    asks.until_pong(sub("_INBOX.mine.*", 2))
    asks.send(pub(subject, b"question", "_INBOX.mine.7"))
    question = service.read_message()
    assert (question.payload, question.reply) == (b"question", b"_INBOX.mine.7")
    service.send(pub(question.reply, b"answer"))
    answer = asks.read_message()
    assert (answer.subject, answer.sid, answer.payload) == (b"_INBOX.mine.7", b"2", b"answer")


def test_a_request_may_have_many_answers(connect: Connect, subject: str) -> None:
    services, asks = [connect() for _ in range(4)], connect()
    for service in services:
        service.until_pong(sub(subject))
    asks.until_pong(sub("_INBOX.many"))
    asks.send(pub(subject, b"?", "_INBOX.many"))
    for number, service in enumerate(services):
        service.send(pub(service.read_message().reply, b"%d" % number))
    assert sorted(one.payload for one in asks.read_messages(4)) == [b"0", b"1", b"2", b"3"]


def test_an_inbox_of_one_answer_ends_with_it(connect: Connect, subject: str) -> None:
    service, asks = connect(), connect()
    service.until_pong(sub(subject))
    asks.send(sub("_INBOX.once", 5) + b"UNSUB 5 1\r\n" + pub(subject, b"?", "_INBOX.once"))
    reply = service.read_message().reply
    service.until_pong(pub(reply, b"first") + pub(reply, b"second"))
    assert [one.payload for one in asks.messages_until_pong()] == [b"first"]


def test_a_request_that_nobody_hears_is_told_so_at_once(client: RawClient, subject: str) -> None:
    client.until_pong(sub("_INBOX.x.*", 7))
    began = time.monotonic()
    client.send(pub(subject, b"hi", "_INBOX.x.1"))
    assert is_no_responders(client.read_command(), "_INBOX.x.1", 7, subject)
    assert time.monotonic() - began < AT_ONCE_S


def test_the_news_comes_before_the_pong_behind_it(client: RawClient, subject: str) -> None:
    client.until_pong(sub("_INBOX.x.*", 7))
    for number in range(100):
        (command,) = client.commands_until_pong(pub(subject, b"", f"_INBOX.x.{number}"))
        assert is_no_responders(command, f"_INBOX.x.{number}", 7, subject)


def test_a_request_with_headers_is_told_too(client: RawClient, subject: str) -> None:
    said = sub("_INBOX.x", 7) + hpub(subject, b"NATS/1.0\r\nA: b\r\n\r\n", b"x", "_INBOX.x")
    assert is_no_responders(client.until_pong(said), "_INBOX.x", 7, subject)


def test_the_news_of_a_request_are_one_message(client: RawClient, subject: str) -> None:
    subscribed = sub("_INBOX.x.1", 7) + sub("_INBOX.x.*", 8)
    (command,) = client.commands_until_pong(subscribed + pub(subject, b"", "_INBOX.x.1"))
    assert message_of(command).headers.startswith(b"NATS/1.0 503\r\n")


@pytest.mark.parametrize(
    "options",
    [None, PLAIN, {**PLAIN, "headers": True}, {**FULL, "no_responders": False}],
    ids=["unconnected", "plain", "headers", "not-wanted"],
)
def test_who_did_not_ask_for_the_news_gets_none(
    connect: Connect, subject: str, options: dict[str, object] | None
) -> None:
    got = connect(options).until_pong(sub("_INBOX.x") + pub(subject, b"", "_INBOX.x"))
    assert got.replace(b"+OK\r\n", b"") == b""


def test_the_news_are_for_the_connection_that_asked(connect: Connect, subject: str) -> None:
    asks, owner = connect(), connect()
    owner.until_pong(sub("_INBOX.owner"))
    assert asks.until_pong(pub(subject, b"", "_INBOX.owner")) == b""
    assert owner.until_pong() == b""


def test_an_inbox_in_a_queue_gets_no_news(client: RawClient, subject: str) -> None:
    said = sub("_INBOX.q", 7, "q") + pub(subject, b"", "_INBOX.q")
    assert client.until_pong(said) == b""


def test_a_message_without_a_reply_brings_no_news(client: RawClient, subject: str) -> None:
    assert client.until_pong(sub("_INBOX.x.*") + pub(subject, b"x")) == b""


@pytest.mark.parametrize("heard", ["{0}.it", "{0}.*", "{0}.>", "*.*", ">"])
@pytest.mark.parametrize("queue", ["", "q"])
def test_whoever_hears_it_is_a_responder(
    connect: Connect, subject: str, heard: str, queue: str
) -> None:
    service, asks = connect(), connect()
    service.until_pong(sub(heard.format(subject.split(".")[0]), 1, queue))
    asks.until_pong(sub("_INBOX.x"))
    assert asks.until_pong(pub(subject, b"x", "_INBOX.x")) == b""
    assert service.read_message().reply == b"_INBOX.x"
    # Otherwise it could be one for the next test too, until its end has been noticed.
    service.until_pong(b"UNSUB 1\r\n")


def test_one_s_own_subscription_is_a_responder(client: RawClient, subject: str) -> None:
    said = sub("_INBOX.x", 1) + sub(subject, 2) + pub(subject, b"x", "_INBOX.x")
    assert [one.sid for one in client.messages_until_pong(said)] == [b"2"]


def test_one_s_own_subscription_is_none_without_echo(connect: Connect, subject: str) -> None:
    client = connect({**FULL, "echo": False})
    said = sub("_INBOX.x", 1) + sub(subject, 2) + pub(subject, b"x", "_INBOX.x")
    assert is_no_responders(client.until_pong(said), "_INBOX.x", 1, subject)


def test_a_responder_that_left_is_none_any_more(connect: Connect, subject: str) -> None:
    service, asks = connect(), connect()
    asks.until_pong(sub("_INBOX.x", 7))
    service.until_pong(sub(subject))
    assert asks.until_pong(pub(subject, b"", "_INBOX.x")) == b""
    service.until_pong(b"UNSUB 1\r\n")
    assert is_no_responders(asks.until_pong(pub(subject, b"", "_INBOX.x")), "_INBOX.x", 7, subject)


def test_a_responder_that_had_all_it_wanted_is_none_any_more(
    connect: Connect, subject: str
) -> None:
    service, asks = connect(), connect()
    asks.until_pong(sub("_INBOX.x", 7))
    service.until_pong(sub(subject) + b"UNSUB 1 1\r\n")
    assert asks.until_pong(pub(subject, b"", "_INBOX.x")) == b""
    assert is_no_responders(asks.until_pong(pub(subject, b"", "_INBOX.x")), "_INBOX.x", 7, subject)


def test_the_news_use_up_no_maximum(client: RawClient, subject: str) -> None:
    asked = sub("_INBOX.x", 7) + b"UNSUB 7 1\r\n" + pub(subject, b"", "_INBOX.x") * 2
    *news, answer = client.commands_until_pong(asked + pub("_INBOX.x", b"answer"))
    assert [is_no_responders(one, "_INBOX.x", 7, subject) for one in news] == [True, True]
    assert message_of(answer).payload == b"answer"


@pytest.mark.parametrize(
    "asked",
    [
        *("$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.CREATE.x", "$JS.ACK.x"),
        *("$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.VARZ", "$SYS.REQ.ACCOUNT.PING"),
        *("$SRV.PING", "$SRV.INFO", "$KV.bucket.key", "$O.bucket.C.x"),
    ],
    ids=lambda asked: asked.replace("SERVER", "S"),  # or it would be chosen by -k server
)
def test_a_service_that_is_not_there_is_told_at_once(client: RawClient, asked: str) -> None:
    began = time.monotonic()
    client.send(sub("_INBOX.x", 7) + pub(asked, b"", "_INBOX.x"))
    assert is_no_responders(client.read_command(), "_INBOX.x", 7, asked)
    assert time.monotonic() - began < AT_ONCE_S


def test_services_of_clients_are_found(connect: Connect) -> None:
    """The discovery of micro services is made of ordinary subjects."""
    services, asks = [connect(), connect()], connect()
    for service in services:
        service.until_pong(sub("$SRV.PING", 1) + sub("$SRV.PING.echo", 2))
    asks.until_pong(sub("_INBOX.x"))
    asks.send(pub("$SRV.PING", b"", "_INBOX.x"))
    for number, service in enumerate(services):
        service.send(pub(service.read_message().reply, b"%d" % number))
    assert sorted(one.payload for one in asks.read_messages(2)) == [b"0", b"1"]


def test_thousands_of_requests_have_as_many_answers(connect: Connect, subject: str) -> None:
    service, asks = connect(), connect()
    service.until_pong(sub(subject, 1, "q"))
    asks.until_pong(sub("_INBOX.x.*"))
    count = 3_000
    asks.send(b"".join(pub(subject, b"%d" % at, f"_INBOX.x.{at}") for at in range(count)))
    questions = service.read_messages(count)
    service.send(b"".join(pub(one.reply, one.payload) for one in questions))
    answers = asks.read_messages(count)
    assert [one.subject for one in answers] == [b"_INBOX.x.%d" % at for at in range(count)]
    assert [int(one.payload) for one in answers] == list(range(count))
