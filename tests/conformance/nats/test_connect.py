"""INFO, CONNECT and its options: verbose, pedantic, echo, and what is wrong in a CONNECT."""

import json
import re

import pytest

from asterism.cli.bench_servers import free_port
from tests.conformance.nats.conftest import Connect, NatsServer
from tests.conformance.nats.raw_client import FULL, PLAIN, RawClient, error, hpub, pub, sub

pytestmark = pytest.mark.process

VERBOSE = {**FULL, "verbose": True}
OK = b"+OK\r\n"


# --- INFO -----------------------------------------------------------------------------------------


def test_info_says_what_clients_read(server: NatsServer, client: RawClient) -> None:
    info = client.info
    assert re.fullmatch(r"\w{20,}", info["server_id"])
    assert info["server_name"]
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", info["version"]), "clients compare it"
    assert (info["proto"], info["headers"], info["max_payload"]) == (1, True, 1 << 20)
    assert f"nats://{info['host']}:{info['port']}" == server.url
    assert isinstance(info["client_id"], int)
    assert info["client_ip"] == "127.0.0.1"


def test_info_is_silent_about_what_is_not_so(client: RawClient) -> None:
    for name in (
        "auth_required",
        "tls_required",
        "tls_verify",
        "tls_available",
        "ldm",
        "jetstream",
    ):
        assert not client.info.get(name), name


def test_info_is_one_line_and_nothing_else_comes_unasked(connect: Connect) -> None:
    client = connect(None)
    assert client.first_line.startswith(b'INFO {"') and client.first_line.rstrip().endswith(b"}")
    assert client.is_quiet()


def test_each_connection_has_a_number_of_its_own(connect: Connect) -> None:
    infos = [connect().info for _ in range(5)]
    assert len({info["client_id"] for info in infos}) == 5
    assert len({info["server_id"] for info in infos}) == 1


def test_after_connect_and_ping_exactly_one_line_comes_before_all_others(connect: Connect) -> None:
    """nats-py reads one line there, and takes it for the PONG."""
    for protocol in (0, 1):
        client = connect({**FULL, "protocol": protocol, "lang": "python3", "version": "2.16.0"})
        client.send(b"PING\r\n")
        assert client.read_line() == b"PONG"
    client = connect({**VERBOSE, "protocol": 1})
    client.send(b"PING\r\n")
    assert (client.read_line(), client.read_line()) == (b"+OK", b"PONG")


# --- CONNECT --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"lang": "python3", "version": "2.16.0", "name": "somebody", "protocol": 1},
        {"name": ""},
        {"name": "é 日本語 \U0001f600"},
        {"name": "x" * 3_000},
        {"protocol": 0},
        {"unknown": 3, "nested": {"a": [1, None]}, "ssl_required": False},
        {"user": "anybody", "pass": "secret"},
        {"auth_token": "anything"},
        {"jwt": "x", "sig": "y", "nkey": "z"},
        {"tls_required": False},
        {"name": None, "lang": None, "protocol": None},
    ],
    ids=lambda said: json.dumps(said)[:40],
)
def test_connect_takes_every_option(
    connect: Connect, subject: str, said: dict[str, object]
) -> None:
    (message,) = connect({**PLAIN, **said}).messages_until_pong(sub(subject) + pub(subject, b"x"))
    assert message.payload == b"x"


@pytest.mark.parametrize(
    "said",
    [
        b'CONNECT   {"verbose":false}  \r\n',
        b'CONNECT\t{"verbose":false}\t\r\n',
        b'connect {"verbose":false}\r\n',
        b'CONNECT {"verbose":false}\n',
        b'CONNECT {"Verbose":false}\r\n',
        b'CONNECT {"verbose":true,"verbose":false}\r\n',
        b'CONNECT { "verbose" : false ,\t"name" : "a\\u00e9\\"b" }\r\n',
    ],
    ids=repr,
)
def test_connect_is_understood_however_it_is_spelled(connect: Connect, said: bytes) -> None:
    assert connect(None).until_pong(said) == b""


@pytest.mark.parametrize(
    "said",
    [
        *(b"", b"{", b"}", b"[]", b'"x"', b"1", b"true", b'{"verbose":1}', b'{"verbose":"x"}'),
        *(b'{"name":5}', b'{"verbose":false} x', b'{"verbose":false}{}', b"{verbose:false}"),
        *(b"{'verbose':false}", b'{"verbose":false,}', b"\xff", b"verbose"),
    ],
    ids=repr,
)
def test_a_connect_that_is_none_closes_without_a_word(connect: Connect, said: bytes) -> None:
    assert connect(None).until_closed(b"CONNECT " + said + b"\r\nPING\r\n") == b""


def test_a_protocol_that_nobody_knows_closes(connect: Connect) -> None:
    for protocol in (2, 7, -1):
        client = connect({**PLAIN, "protocol": protocol})
        assert client.until_closed() == error("invalid client protocol")


def test_news_of_missing_responders_need_headers(connect: Connect) -> None:
    client = connect({**PLAIN, "headers": False, "no_responders": True})
    assert client.until_closed() == error("no responders requires headers support")


def test_a_connect_too_large_closes(connect: Connect) -> None:
    client = connect({**PLAIN, "name": "x" * 5_000})
    assert client.until_closed() == error("maximum control line exceeded")
    client = connect(None)
    assert client.until_closed(b"CONNECT " + b"x" * 4_097) == error("maximum control line exceeded")


def test_a_second_connect_changes_what_it_names_and_nothing_else(
    connect: Connect, subject: str
) -> None:
    """Subscriptions are made after it: nats-server forgets the earlier ones."""
    client = connect({**FULL, "echo": False})
    assert client.until_pong(b'CONNECT {"verbose":true}\r\n') == OK
    said = sub(subject) + hpub(subject, b"NATS/1.0\r\n\r\n")
    assert client.until_pong(said) == OK * 2, "still without an echo"
    assert client.until_pong(b'CONNECT {"verbose":false,"echo":true}\r\n') == b""
    (message,) = client.messages_until_pong(b"UNSUB 1\r\n" + said)
    assert message.headers, "still with headers"


def test_who_never_connects_is_served_all_the_same(connect: Connect, subject: str) -> None:
    got = connect(None).until_pong(sub(subject) + pub(subject, b"x"))
    assert got == OK + OK + b"MSG %s 1 1\r\nx\r\n" % subject.encode()


# --- verbose --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "answers"),
    [
        (b"SUB v 1\r\n", 1),
        (b"SUB v q 1\r\n", 1),
        (b"PUB v 1\r\nx\r\n", 1),
        (b"PUB v r 1\r\nx\r\n", 1),
        (b"HPUB v 12 12\r\nNATS/1.0\r\n\r\n\r\n", 1),
        (b"UNSUB 1\r\n", 1),
        (b"UNSUB 99 5\r\n", 1),
        (b"CONNECT {}\r\n", 1),
        (b"PONG\r\n", 0),
        (b"+OK\r\n", 0),
        (b"SUB v 1\r\nSUB v 1\r\n", 2),
    ],
    ids=lambda said: repr(said)[:30],
)
def test_who_is_verbose_is_told_ok(connect: Connect, said: bytes, answers: int) -> None:
    client = connect(VERBOSE)
    assert client.until_pong() == OK
    assert client.until_pong(said) == OK * answers


def test_a_ping_of_the_verbose_has_a_pong_and_no_ok(connect: Connect) -> None:
    client = connect(VERBOSE)
    client.send(b"PING\r\n" * 3)
    assert client.read_commands(4) == [OK, b"PONG\r\n", b"PONG\r\n", b"PONG\r\n"]
    assert client.until_pong() == b""


def test_the_ok_comes_before_what_the_command_brings(connect: Connect, subject: str) -> None:
    client = connect(VERBOSE)
    client.until_pong(sub(subject) + sub("_INBOX.x", 2))
    assert client.until_pong(pub(subject, b"x")) == OK + b"MSG %s 1 1\r\nx\r\n" % subject.encode()
    asked = client.commands_until_pong(pub(f"{subject}.none", b"", "_INBOX.x"))
    assert asked[0] == OK and asked[1].startswith(b"HMSG _INBOX.x 2 ")


def test_verbose_is_what_a_connect_without_it_means(connect: Connect) -> None:
    assert connect({}).until_pong() == OK


def test_errors_take_the_place_of_ok_or_come_before_it(connect: Connect) -> None:
    client = connect({**VERBOSE, "pedantic": True})
    client.until_pong()
    assert client.until_pong(sub("a..b")) == error("Invalid Subject")
    assert client.until_pong(pub("a..b", b"x")) == error("Invalid Publish Subject") + OK


# --- pedantic, echo -------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [None, {}, {"verbose": False}], ids=repr)
def test_pedantic_is_what_a_connect_without_it_means(
    connect: Connect, said: dict[str, object] | None
) -> None:
    got = connect(said).until_pong(pub("a..b", b"x")).replace(OK, b"")
    assert got == error("Invalid Publish Subject")


def test_without_echo_one_gets_only_what_others_publish(connect: Connect, subject: str) -> None:
    client, other = connect({**FULL, "echo": False}), connect()
    assert client.until_pong(sub(subject) + pub(subject, b"mine")) == b""
    other.until_pong(pub(subject, b"theirs"))
    assert [one.payload for one in client.messages_until_pong()] == [b"theirs"]
    other.until_pong(sub(subject))
    client.until_pong(pub(subject, b"mine"))
    assert [one.payload for one in other.messages_until_pong()] == [b"mine"]


def test_with_echo_one_gets_one_s_own(connect: Connect, subject: str) -> None:
    for options in (FULL, {**FULL, "echo": True}, {**FULL, "echo": None}):
        got = connect(options).messages_until_pong(sub(subject) + pub(subject, b"x"))
        assert [one.payload for one in got] == [b"x"]


def test_a_port_that_nobody_listens_on_is_none_of_ours(server: NatsServer) -> None:
    with pytest.raises(ConnectionRefusedError):
        RawClient(f"nats://127.0.0.1:{free_port()}")
    server.connect().close()
