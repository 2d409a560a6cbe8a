"""What ``asterism status`` shows of the clients of our door."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asterism.gateways.nats.door import DOOR, PAGE, PAGE_BYTES_MAX
from tests.conformance.nats.conftest import Door
from tests.conformance.nats.raw_client import FULL, RawClient, pub, sub

pytestmark = pytest.mark.process

WAIT_S = 60.0
ANSWER_S = 1.0  # how long the command waits for a process that is stopped


@pytest.fixture
def own() -> Iterator[Door]:
    """A door that nobody else is connected to."""
    made = Door()
    try:
        made.start({})
        yield made
    finally:
        made.stop()


def status_of(door: Door, *options: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "asterism", "status", "--interval", "0.1", *options],
        env={**os.environ, "ASTERISM_DATA_DIR": str(door.broker.data_dir)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def told_by(door: Door, *options: str, code: int = 0) -> dict[str, Any]:
    found = json.loads(status_of(door, "--json", *options, code=code))["processes"]["nats"]
    assert isinstance(found, dict)
    return found


def named(door: Door, name: str) -> RawClient:
    return door.connect({**FULL, "name": name})


def test_status_names_the_clients_with_their_subscriptions_and_messages(own: Door) -> None:
    with named(own, "billing") as billing, named(own, "shop") as shop, own.connect() as nameless:
        billing.until_pong(sub("orders.*", 1) + sub("prices", 2))
        shop.until_pong(pub("orders.1", b"x") + pub("orders.2", b"y"))
        assert len(billing.messages_until_pong()) == 2
        nameless.until_pong()
        told = told_by(own)
        by_name = {each["name"]: each for each in told["clients"]}
        assert told["clients_total"] == 3
        assert set(by_name) == {"billing", "shop", ""}
        first = by_name["billing"]
        assert first["address"] == "{}:{}".format(*billing.socket.getsockname())
        assert (first["subscriptions"], first["messages_in"], first["messages_out"]) == (2, 0, 2)
        assert by_name["shop"]["messages_in"] == 2
        text = status_of(own)
        assert "clients of nats: 3" in text and "billing" in text and "shop" in text
    for _ in range(100):
        if told_by(own)["clients"] == []:
            return
        time.sleep(0.05)
    pytest.fail("clients that are gone are still shown")


def test_status_says_when_nobody_is_connected(own: Door) -> None:
    assert "clients of nats: none" in status_of(own)


def test_all_clients_are_told_page_by_page_and_no_more_than_are_asked_for(own: Door) -> None:
    said = own.broker.door("nats")
    count = PAGE + 10
    place = (own.url.rpartition("/")[2].rpartition(":")[0], int(own.url.rpartition(":")[2]))
    many = [socket.create_connection(place, WAIT_S) for _ in range(count)]
    try:
        for each in many:
            assert each.recv(5) == b"INFO "
        told = DOOR.clients(said, None, WAIT_S)
        assert told is not None
        assert told.total == count == len(set(told.listed))
        few = DOOR.clients(said, 100, WAIT_S)
        assert few is not None
        assert (few.total, few.listed) == (count, told.listed[:100])
    finally:
        for each in many:
            each.close()


def test_status_waits_no_longer_than_its_time_for_a_door_that_is_stopped(own: Door) -> None:
    own.signal(signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        told = told_by(own, "--timeout", str(ANSWER_S), code=1)
        took_s = time.monotonic() - began_s
        assert told["clients_problem"] == "it does not answer in time"
        assert ANSWER_S <= took_s < 20 * ANSWER_S
        assert "clients of nats: not known" in status_of(own, "--timeout", str(ANSWER_S), code=1)
    finally:
        own.signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "it answers"),
        (b"HTTP/1.0 500 Oops\r\n\r\n", "it answers"),
        (b'HTTP/1.0 200 OK\r\n\r\n{"total": ', "cut short"),
        (b"HTTP/1.0 200 OK\r\n\r\n[]", "not understood"),
        (b'HTTP/1.0 200 OK\r\n\r\n{"total": 1, "connections": [7]}', "not understood"),
        (b"x" * (PAGE_BYTES_MAX + 1), "no end"),
    ],
    ids=["nothing", "an error", "half", "a list", "no clients", "too much"],
)
def test_an_answer_that_is_none_is_told_as_a_problem(
    scratch: Path, answer: bytes, problem: str
) -> None:
    path = scratch / "odd.sock"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        answering = threading.Thread(target=_answer_once, args=(listening, answer))
        answering.start()
        with pytest.raises(OSError, match=problem):
            DOOR.clients({"monitor_socket": str(path)}, None, WAIT_S)
        answering.join(WAIT_S)
        assert not answering.is_alive()
    with pytest.raises(OSError, match="it does not listen"):
        DOOR.clients({"monitor_socket": str(path)}, None, WAIT_S)
    assert DOOR.clients({}, None, WAIT_S) is None


def _answer_once(listening: socket.socket, answer: bytes) -> None:
    asked, _ = listening.accept()
    with asked, contextlib.suppress(OSError):
        asked.recv(4_096)
        asked.sendall(answer)


def test_the_socket_is_for_the_user_alone_and_there_again_after_a_kill(own: Door) -> None:
    path = Path(own.broker.door("nats")["monitor_socket"])
    assert path.is_socket()
    assert path.stat().st_mode & 0o077 == 0 and path.parent.stat().st_mode & 0o077 == 0
    own.broker.restart("nats")
    assert told_by(own)["clients"] == []
