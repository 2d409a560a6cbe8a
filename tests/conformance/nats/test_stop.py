"""How a server ends: at once, or as a lame duck that lets its clients go first."""

import signal
import time

import pytest

from tests.conformance.nats.conftest import NatsServer, Started
from tests.conformance.nats.raw_client import FULL, PLAIN, RawClient, pub, sub

pytestmark = pytest.mark.process

LAME_S = 0.5
PROTOCOL_1 = {**FULL, "protocol": 1}


@pytest.fixture
def lame(start: Started) -> NatsServer:
    return start(is_own=True, lame_duck=LAME_S)


def _until_lame(client: RawClient) -> None:
    while not client.infos[-1].get("ldm"):
        assert client.until_pong() == b""


def test_a_lame_duck_says_so_and_serves_on_until_it_closes(lame: NatsServer, subject: str) -> None:
    with lame.connect(PROTOCOL_1) as client, lame.connect({**PLAIN, "protocol": 0}) as old:
        client.until_pong(sub(subject))
        old.until_pong()
        lame.lame_duck()
        _until_lame(client)
        assert client.infos[-1]["server_id"] == client.info["server_id"]
        assert len(client.messages_until_pong(pub(subject, b"x"))) == 1
        assert client.commands_until_closed() == [], "no error"
        assert old.commands_until_closed() == []
        assert len(old.infos) == 1, "it did not say that it knows later ones"


def test_a_lame_duck_takes_nobody_new(start: Started) -> None:
    lame = start(is_own=True, lame_duck=2.0)
    with lame.connect(PROTOCOL_1) as client:
        client.until_pong()
        lame.lame_duck()
        _until_lame(client)
        with pytest.raises(ConnectionError):
            lame.connect().until_pong()
        assert client.until_pong() == b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stop_closes_every_connection_without_an_error(start: Started, number: int) -> None:
    ended = start(is_own=True)
    with ended.connect(PROTOCOL_1) as client, ended.connect(None) as unconnected:
        client.until_pong(sub(">"))
        began = time.monotonic()
        ended.signal(number)
        assert client.commands_until_closed() == []
        assert unconnected.until_closed() == b""
        assert time.monotonic() - began < 10


def test_a_stop_delivers_what_was_published_before_it(start: Started, subject: str) -> None:
    """To whoever reads: what a PONG has been given for."""
    ended = start(is_own=True)
    with ended.connect() as client, ended.connect() as publisher:
        client.until_pong(sub(subject))
        publisher.until_pong(b"".join(pub(subject, b"%d" % at) for at in range(100)))
        ended.signal(signal.SIGTERM)
        got = client.commands_until_closed()
        assert len(got) == 100
