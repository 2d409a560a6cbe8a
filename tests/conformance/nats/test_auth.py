"""Who may connect: with a user and password, with a token, with nothing."""

import time
from collections.abc import Mapping

import pytest

from tests.conformance.nats.conftest import NatsServer, Started
from tests.conformance.nats.raw_client import PLAIN, VIOLATION, RawClient, error, pub, sub

pytestmark = pytest.mark.process

TIMEOUT_S = 1.0
USER = {"user": "tester", "password": 'a "pass" word'}
TOKEN = {"token": "t0ken/with+odd=signs"}
RIGHT: dict[str, dict[str, object]] = {
    "user": {"user": USER["user"], "pass": USER["password"]},
    "token": {"auth_token": TOKEN["token"]},
}
WRONG: list[dict[str, object]] = [
    {},
    {"user": "tester"},
    {"user": "tester", "pass": ""},
    {"user": "tester", "pass": "wrong"},
    {"user": "Tester", "pass": USER["password"]},
    {"pass": USER["password"]},
    {"user": "", "pass": ""},
    {"auth_token": ""},
    {"auth_token": "wrong"},
    {"auth_token": TOKEN["token"] + "x"},
    {"user": TOKEN["token"]},
    {"user": "tester", "pass": USER["password"] + "x"},
    {"jwt": "x", "sig": "y", "nkey": "z"},
]


@pytest.fixture(params=["user", "token"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def guarded(start: Started, way: str) -> NatsServer:
    return start(auth_timeout=TIMEOUT_S, **(USER if way == "user" else TOKEN))


def opened(guarded: NatsServer, said: Mapping[str, object] | None) -> RawClient:
    return guarded.connect(None if said is None else {**PLAIN, **said})


def test_info_says_that_one_has_to_say_who_one_is(guarded: NatsServer, way: str) -> None:
    with opened(guarded, RIGHT[way]) as client:
        assert client.info["auth_required"] is True


def test_who_says_the_right_thing_is_served(guarded: NatsServer, way: str, subject: str) -> None:
    with opened(guarded, RIGHT[way]) as client:
        (message,) = client.messages_until_pong(sub(subject) + pub(subject, b"x"))
        assert message.payload == b"x"


def test_more_than_is_asked_for_does_no_harm(guarded: NatsServer, way: str) -> None:
    with opened(guarded, {**RIGHT["user"], **RIGHT["token"]}) as client:
        assert client.until_pong() == b""
    with opened(guarded, {**RIGHT[way], "jwt": "x", "nkey": "y"}) as client:
        assert client.until_pong() == b""


@pytest.mark.parametrize("said", WRONG, ids=repr)
def test_who_says_something_else_is_closed(
    guarded: NatsServer, way: str, said: dict[str, object]
) -> None:
    with opened(guarded, said) as client:
        assert client.until_closed(b"PING\r\n") == VIOLATION


def test_what_is_right_elsewhere_is_wrong_here(guarded: NatsServer, way: str) -> None:
    with opened(guarded, RIGHT["token" if way == "user" else "user"]) as client:
        assert client.until_closed() == VIOLATION


def test_there_is_no_ok_before_the_refusal(guarded: NatsServer) -> None:
    with opened(guarded, {"verbose": True, "user": "x"}) as client:
        assert client.until_closed(b"PING\r\n") == VIOLATION


def test_the_verbose_are_told_ok_when_it_is_right(guarded: NatsServer, way: str) -> None:
    with opened(guarded, {**RIGHT[way], "verbose": True}) as client:
        assert client.until_pong() == b"+OK\r\n"


@pytest.mark.parametrize(
    "said",
    [b"PING\r\n", b"PONG\r\n", b"SUB > 1\r\n", b"PUB a 1\r\nx\r\n", b"+OK\r\n", b"FOO\r\n", b"P"],
    ids=repr,
)
def test_nothing_may_come_before_it(guarded: NatsServer, said: bytes) -> None:
    with opened(guarded, None) as client:
        assert client.until_closed(said) == VIOLATION


def test_nothing_behind_a_refusal_is_carried_out(
    guarded: NatsServer, way: str, subject: str
) -> None:
    with opened(guarded, RIGHT[way]) as witness, opened(guarded, {"user": "x"}) as refused:
        witness.until_pong(sub(subject))
        assert refused.until_closed(pub(subject, b"x")) == VIOLATION
        assert witness.until_pong() == b""


def test_a_second_connect_is_looked_at_too(guarded: NatsServer, way: str) -> None:
    with opened(guarded, RIGHT[way]) as client:
        assert client.until_pong() == b""
        again = b'CONNECT {"verbose":false,"user":"x","pass":"y","auth_token":"z"}\r\n'
        assert client.until_closed(again) == VIOLATION


def test_who_says_nothing_is_closed_in_time(guarded: NatsServer) -> None:
    began = time.monotonic()
    with opened(guarded, None) as client:
        assert client.until_closed() == error("Authentication Timeout")
    assert time.monotonic() - began >= TIMEOUT_S - 0.1


def test_who_says_half_of_it_is_closed_in_time(guarded: NatsServer) -> None:
    with opened(guarded, None) as client:
        assert client.until_closed(b'CONNECT {"user":"tes') == error("Authentication Timeout")


def test_who_said_it_has_all_the_time_there_is(guarded: NatsServer, way: str) -> None:
    """Longer than the other ones are given."""
    with opened(guarded, RIGHT[way]) as client, opened(guarded, None) as late:
        client.until_pong()
        late.until_closed()
        assert client.until_pong() == b""


def test_a_connection_that_is_refused_has_no_effect_on_others(
    guarded: NatsServer, way: str, subject: str
) -> None:
    with opened(guarded, RIGHT[way]) as client:
        client.until_pong(sub(subject))
        for _ in range(20):
            with opened(guarded, {"user": "x"}) as refused:
                assert refused.until_closed() == VIOLATION
        assert len(client.messages_until_pong(pub(subject))) == 1
