"""Clients that do harm by what they send, or do not send: others are served all the same."""

import contextlib
import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from asterism.gateways.http import guesses
from asterism.gateways.http.connections import RATE_MIN, Connections, Patience
from asterism.gateways.http.guesses import Guesses
from asterism.gateways.http.protocol import STALLED_S, VALUES_MAX
from asterism.gateways.http.transport import AHEAD_MAX, FRAGMENTS_MAX, HEADERS_MAX
from asterism.gateways.http.v1_streams import UNREAD_BYTES_MAX
from asterism.testing import Broker
from tests.conformance.http.conftest import PASSWORD, Door, Queue
from tests.conformance.http.test_transport import UPGRADE, Wire
from tests.conformance.http.test_v1 import Topic

pytestmark = pytest.mark.process

WITHIN_S = 20.0
REQUEST_S = 2  # that a request may take here to come
IDLE_S = 2
PLACES = 40


@pytest.fixture(scope="module")
def short() -> Iterator[Broker]:
    """A door that does not wait for long."""
    env = {"MQ_REQUEST_TIMEOUT": str(REQUEST_S), "MQ_IDLE_TIMEOUT": str(IDLE_S)}
    with Broker(workers=1, doors=("http",), env=env) as running:
        yield running


@pytest.fixture
def wire(short: Broker) -> Iterator[Wire]:
    with contextlib.closing(Wire(short.http_url)) as made:
        yield made


@pytest.fixture
def client(short: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=short.http_url, timeout=WITHIN_S) as made:
        yield made


def is_hung_up_on(wire: Wire) -> bool:
    try:
        return wire.rest() == b""
    except ConnectionResetError:
        return True


# --- half of something --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /heal",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Half: ",
        b"PUT /mq/half/messages/1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf",
        b"PUT /mq/a/messages/1 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5",
    ],
)
def test_half_a_request_is_told_that_its_time_is_over(wire: Wire, begun: bytes) -> None:
    began = time.monotonic()
    wire.send(begun)
    status, body = wire.answer()
    assert status == 408
    assert "time" in json.loads(body)["message"]
    assert is_hung_up_on(wire)
    assert REQUEST_S <= time.monotonic() - began < WITHIN_S


def drip(wire: Wire, data: bytes) -> bool:
    """Sends one byte after the other; is it hung up on?"""
    for octet in data:
        try:
            wire.send(bytes((octet,)))
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nX-Slow: ",
        b"PUT /mq/a/messages/1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",  # and then nothing that is a request
    ],
)
def test_a_byte_now_and_then_does_not_keep_a_connection(wire: Wire, head: bytes) -> None:
    wire.send(head)
    more = b"\r\n" if head.endswith(b"\r\n\r\n") and b"PUT" not in head else b"a"
    assert drip(wire, more * round(WITHIN_S / 0.05 / len(more)))


def test_a_client_that_says_nothing_is_hung_up_on(wire: Wire) -> None:
    assert is_hung_up_on(wire)


def test_a_client_that_has_been_answered_and_says_no_more_is_hung_up_on(wire: Wire) -> None:
    wire.say("GET /health HTTP/1.1")
    assert wire.answer() == (200, b"OK")
    assert is_hung_up_on(wire)


def test_a_body_that_nobody_wants_any_more_does_not_keep_a_connection(wire: Wire) -> None:
    wire.say("PUT /nowhere HTTP/1.1", "Content-Length: 1000")
    assert wire.answer()[0] == 404
    assert is_hung_up_on(wire)


# --- and what is none ---------------------------------------------------------------------------


def test_a_body_that_comes_slowly_but_comes_is_taken(wire: Wire, client: httpx.Client) -> None:
    queue = Queue(client, "slow-body")
    message = queue.draft()
    piece = b"x" * 2 * RATE_MIN
    path = f"{queue.base}/messages/{message}"
    wire.say(f"PUT {path} HTTP/1.1", f"Content-Length: {len(piece) * 6}")
    for _ in range(6):
        wire.send(piece)
        time.sleep(REQUEST_S / 4)
    assert wire.answer()[0] == 204
    assert len(queue.get(message).content) == len(piece) * 6


def test_a_long_poll_is_not_idle(wire: Wire, client: httpx.Client) -> None:
    queue = Queue(client, "long-poll")
    wire.say(f"GET {queue.base}/messages HTTP/1.1")
    time.sleep(REQUEST_S + IDLE_S + 1)
    message = queue.make()
    assert wire.answer() == (200, message.encode())
    wire.say("GET /health HTTP/1.1")
    assert wire.answer() == (200, b"OK")


def test_neither_is_a_subscription(short: Broker, client: httpx.Client) -> None:
    topic = Topic(client, "subscribed")
    url = f"{short.http_url}{topic.path}/subscribe"
    with (
        connect(f"ws{url[4:]}", proxy=None) as talk,
        client.stream("GET", url) as events,
    ):
        assert json.loads(talk.recv(WITHIN_S))["event"] == "subscribed"
        lines = events.iter_lines()
        assert next(lines) == "event: subscribed"
        time.sleep(REQUEST_S + IDLE_S + 1)
        httpx.post(f"{short.http_url}{topic.path}/messages", content=b"late").raise_for_status()
        assert json.loads(talk.recv(WITHIN_S))["payload"] == "late"
        assert next(line for line in lines if line == "event: message")


# --- many of them -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow() -> Iterator[Broker]:
    # The time for a request is for a loaded machine: nothing here is about its end.
    env = {"MQ_CONNECTIONS": str(PLACES), "MQ_REQUEST_TIMEOUT": "300"}
    with Broker(workers=1, doors=("http",), env=env) as running:
        yield running


def test_connections_that_do_nothing_make_room(narrow: Broker) -> None:
    with contextlib.ExitStack() as held:
        silent = [
            held.enter_context(contextlib.closing(Wire(narrow.http_url))) for _ in range(2 * PLACES)
        ]
        client = held.enter_context(httpx.Client(base_url=narrow.http_url, timeout=WITHIN_S))
        for _ in range(PLACES):
            assert client.get("/health").text == "OK"
        assert is_hung_up_on(silent[0])
        silent[-1].say("GET /health HTTP/1.1")  # the last to come have kept their places
        assert silent[-1].answer() == (200, b"OK")


def test_where_all_connections_are_at_work_the_next_is_told_to_come_later(narrow: Broker) -> None:
    with contextlib.ExitStack() as held:
        polls = [
            held.enter_context(contextlib.closing(Wire(narrow.http_url))) for _ in range(PLACES)
        ]
        for poll in polls:
            poll.say("GET /mq/full/messages HTTP/1.1")

        def is_refused() -> bool:
            try:
                answer = httpx.get(f"{narrow.http_url}/health", timeout=WITHIN_S)
            except httpx.TransportError:  # refused before it had been sent whole
                return True
            return answer.status_code == 503 and int(answer.headers["retry-after"]) > 0

        until(is_refused)
        polls.pop().close()
        until(lambda: not is_refused())


def test_a_thousand_silent_connections_lock_nobody_out(broker: Broker, tmp_path: Path) -> None:
    """Under the number of files that a process may usually have open."""
    with Door(tmp_path, broker.address, files=1_024) as door, contextlib.ExitStack() as held:
        for _ in range(1_100):
            held.enter_context(contextlib.closing(Wire(door.url)))
        for _ in range(20):
            assert httpx.get(f"{door.url}/health", timeout=WITHIN_S).text == "OK"
        assert httpx.get(f"{door.url}/mq", timeout=WITHIN_S).status_code == 200


class Way:
    """A way out with so much on it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_cut = False

    def get_write_buffer_size(self) -> int:
        return self.size

    def abort(self) -> None:
        self.is_cut = True


def test_a_client_that_reads_nothing_of_its_answer_is_cut_in_time() -> None:
    every = Connections(Patience())
    stuck, slow, gone = Way(1_000_000), Way(1_000_000), Way(1_000_000)
    for way in (stuck, slow, gone):
        every.clogs(way, 0.0)
    every.flows(gone)
    every.look(STALLED_S)
    assert not stuck.is_cut
    slow.size -= round(STALLED_S) * RATE_MIN
    every.look(STALLED_S + 1)
    assert (stuck.is_cut, slow.is_cut, gone.is_cut) == (True, False, False)
    slow.size -= round(STALLED_S) * RATE_MIN - 1
    every.look(2 * STALLED_S + 2)
    assert slow.is_cut


# --- too much of something ----------------------------------------------------------------------


@pytest.mark.parametrize("where", ["before its body", "behind its body"])
def test_a_request_has_so_many_headers(wire: Wire, where: str) -> None:
    many = [f"X-{number}: a" for number in range(HEADERS_MAX + 1)]
    if where == "before its body":
        wire.say("GET /health HTTP/1.1", *many)
    else:
        head = ("Content-Type: application/json", "Transfer-Encoding: chunked")
        trailers = "\r\n".join(("0", *many, "", "")).encode()
        wire.say(
            "POST /mq/a/messages HTTP/1.1", *head, body=b'12\r\n{"priority": null}\r\n' + trailers
        )
    status, why = wire.answer()
    assert status == 431
    assert str(HEADERS_MAX) in json.loads(why)["message"]
    assert is_hung_up_on(wire)


def test_only_so_many_requests_are_taken_ahead_of_their_answers(wire: Wire) -> None:
    one = f"GET /mq/ahead/messages HTTP/1.1\r\nHost: {wire.host}\r\n\r\n".encode()
    wire.send(one * (AHEAD_MAX + 2))
    status, body = wire.answer()
    assert status == 429
    assert str(AHEAD_MAX) in json.loads(body)["message"]


JSONS = {
    "objects": b'{"messages":[' + b",".join([b"{}"] * 5_000_000) + b"]}",
    "lists": b'{"messages":[' + b",".join([b"[]"] * 5_000_000) + b"]}",
    "texts": b'{"messages":[' + b",".join([b'"ab"'] * 3_000_000) + b"]}",
    "names": b'{"messages":[{' + b",".join(b'"%06x":0' % at for at in range(1_500_000)) + b"}]}",
    "escaped": b'{"messages":["\\\\' + b'",' + b",".join([b'"\\"a"'] * 2_500_000) + b"]}",
    "depth": b"[" * 16_000_000,
}


@pytest.mark.parametrize("body", JSONS.values(), ids=JSONS)
def test_a_body_of_countless_values_is_refused_before_they_are_made(
    short: Broker, client: httpx.Client, body: bytes
) -> None:
    (pid,) = short.pids()["http"]
    client.get("/health")
    _forget_peak(pid)
    before = _peak(pid)
    answer = client.post(
        "/v1/topics/huge/messages", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 413
    assert str(VALUES_MAX) in answer.json()["message"]
    assert _peak(pid) - before < 5 * len(body)


def test_large_bodies_that_are_not_whole_take_so_much_memory_and_no_more(
    narrow: Broker,
) -> None:
    size = 16 * 1_048_576
    body = b"x" * (size - 1)
    with contextlib.ExitStack() as held:
        wires = [held.enter_context(contextlib.closing(Wire(narrow.http_url))) for _ in range(20)]
        for wire in wires:
            wire.say("POST /v1/topics/huge/messages HTTP/1.1", f"Content-Length: {size}")
            with contextlib.suppress(OSError):
                wire.send(body)
        status, why = wires[-1].answer()
        assert status == 503
        assert b"bodies" in why
        topic = Topic(
            held.enter_context(httpx.Client(base_url=narrow.http_url, timeout=WITHIN_S)), "small"
        )
        topic.publish("small")
    topic = Topic(httpx.Client(base_url=narrow.http_url, timeout=WITHIN_S), "large")
    until(lambda: topic.http.post(f"{topic.path}/messages", content=body[:1_000_000]).is_success)
    topic.http.close()


def test_streams_that_nobody_reads_take_so_much_memory_and_no_more() -> None:
    """Each could hold 32 MiB. Whoever reads goes on reading."""
    lines = ("event: message", "data: ")
    with contextlib.ExitStack() as held:
        broker = held.enter_context(Broker(workers=1, doors=("http",)))
        (pid,) = broker.pids()["http"]
        client = held.enter_context(httpx.Client(base_url=broker.http_url, timeout=WITHIN_S))
        wires = [held.enter_context(contextlib.closing(Wire(broker.http_url))) for _ in range(24)]
        for number, wire in enumerate(wires):
            upgrade = UPGRADE if number % 2 else ("Accept: text/event-stream",)
            wire.say("GET /v1/topics/wide/subscribe HTTP/1.1", *upgrade)
            assert wire.status()[0] in (101, 200)
        reading = held.enter_context(client.stream("GET", "/v1/topics/wide/subscribe?auto=true"))
        read = (line for line in reading.iter_lines() if line.startswith(lines))
        assert next(read).startswith("data: "), "it is subscribed"
        _forget_peak(pid)
        before = _peak(pid)
        payload = b"x" * 1_000_000
        for _ in range(60):
            assert client.post("/v1/topics/wide/messages", content=payload).is_success
            assert next(read) == "event: message"
            assert len(next(read)) > len(payload)
        # 2 of them hold as much as all may, and the one who reads is there.
        until(lambda: client.get("/v1/topics/wide").json()["endpoints"] <= 4)
        # The bound is on payloads, and looked at now and then. Beside them lie buffers, and a text
        # for each stream. Without a bound it is more than 800 MiB.
        assert _peak(pid) - before < 8 * UNREAD_BYTES_MAX, f"{(_peak(pid) - before) >> 20} MiB"


def test_a_large_body_of_few_values_is_taken(client: httpx.Client) -> None:
    payload = '{"a": ["b,c", {}], "d": "\\\\"}' * 20_000
    answer = client.post(
        "/v1/topics/large/messages", json={"messages": [{"payload": payload}] * 10}
    )
    assert answer.status_code == 200, answer.text


def _forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _peak(pid: int) -> int:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1_024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


# --- WebSockets ---------------------------------------------------------------------------------


def frame(opcode: int, data: bytes = b"", final: bool = True) -> bytes:
    """One frame of a client; masked with zeros, which change nothing."""
    return struct.pack("!BB4x", (0x80 if final else 0) | opcode, 0x80 | len(data)) + data


@pytest.fixture
def talk(wire: Wire) -> Wire:
    wire.say("GET /v1/topics/frames/subscribe HTTP/1.1", *UPGRADE)
    assert wire.status()[0] == 101
    return wire


def is_cut(wire: Wire, piece: bytes, most: int) -> bool:
    """Is a client hung up on that sends this, again and again, and reads nothing?"""
    try:
        for _ in range(most // len(piece)):
            wire.send(piece)
        wire.rest()
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_a_message_of_endless_fragments_ends_its_websocket(talk: Wire) -> None:
    talk.send(frame(1, b"{", final=False))
    assert is_cut(talk, frame(0, final=False) * FRAGMENTS_MAX, 3_000_000)


def test_pings_of_a_client_that_reads_no_answers_end_its_websocket(talk: Wire) -> None:
    talk.limit_reading()
    assert is_cut(talk, frame(9, b"x" * 125) * 500, 64_000_000)


# --- guesses ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    """A door of its own: whoever guesses there waits."""
    env = {"MQ_ADMIN_PASSWORD": PASSWORD}
    with Broker(workers=1, doors=("http",), env=env) as running:
        yield running


def asks(http: httpx.Client, password: str | None, path: str = "/admin/mq/a/config") -> int:
    headers = {} if password is None else {"Authorization": f"Bearer {password}"}
    return http.get(path, headers=headers).status_code


def test_guesses_of_the_password_are_slowed_and_the_owner_is_let_in_soon(guarded: Broker) -> None:
    elsewhere = httpx.HTTPTransport(local_address="127.0.0.2")
    with (
        httpx.Client(base_url=guarded.http_url) as http,
        httpx.Client(base_url=guarded.http_url, transport=elsewhere) as other,
    ):
        for _ in range(2 * guesses.AT_ONCE):
            assert asks(http, None) == 401  # this is no guess
        guessed = [asks(http, f"guess {number}") for number in range(guesses.AT_ONCE)]
        assert guessed == [401] * guesses.AT_ONCE
        clear = http.post("/v1/topics/a/clear", headers={"Authorization": "Bearer again"})
        assert (clear.status_code, clear.json()["code"]) == (429, "busy")
        assert 0 < int(clear.headers["retry-after"]) <= guesses.EVERY_S
        assert asks(http, PASSWORD) == 429
        assert asks(other, PASSWORD) == 200
        assert http.get("/mq").status_code == 200  # what asks for none is done
        until(lambda: asks(http, PASSWORD) == 200, 2 * guesses.EVERY_S)


def test_many_addresses_guess_no_faster_and_do_not_keep_out_who_has_proven_itself() -> None:
    held = Guesses()
    held.right("10.0.0.1")
    for number in range(10 * guesses.PEERS_MAX):
        held.wrong(f"2001:db8:{number:x}::1" if number < 65_536 else f"::{number}", 100.0)
    assert held.wait_s("10.0.0.2", 100.0) > 0
    assert held.wait_s("10.0.0.1", 100.0) == 0
    assert len(held._over_s) <= guesses.PEERS_MAX


def test_a_network_of_addresses_is_one_that_guesses() -> None:
    held = Guesses()
    for number in range(guesses.AT_ONCE):
        assert held.wait_s("2001:db8::1", 0.0) == 0
        held.wrong(f"2001:db8::{number}", 0.0)
    assert 0 < held.wait_s("2001:db8::1", 0.0) <= guesses.EVERY_S
    assert held.wait_s("2001:db8:1::1", 0.0) == 0
    assert held.wait_s("2001:db8::1", guesses.EVERY_S) == 0


# --- what comes back ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *("/health", "/metrics", "/openapi.json", "/mq", "/nowhere<script>", "/mq/a%3Cb/stats"),
        *("/v1/topics", "/v1/topics/%3Cscript%3E", "/v1/topics/a?<script>=1", "/admin/mq/a/config"),
    ],
)
def test_no_answer_is_taken_for_a_page(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert "html" not in answer.headers["content-type"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]


def test_the_page_runs_its_own_script_alone_and_is_framed_by_nobody(http: httpx.Client) -> None:
    answer = http.get("/docs")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_what_is_no_request_is_answered_as_carefully(wire: Wire) -> None:
    wire.send(b"<script>\r\n\r\n")
    status, headers = wire.status()
    assert status == 400
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("media", ["text/plain\r\nX-Bad: 1", "a\x00b", "a\nb"])
def test_the_type_of_a_message_puts_no_header_into_an_answer(
    broker: Broker, http: httpx.Client, media: str
) -> None:
    topic = Topic(http, "injected")
    (done,) = topic.publish("x", max_receivers=1, attributes={"content-type": media})
    answer = http.get(f"/mq/injected/messages/{done['sequence']}")
    assert answer.status_code == 200
    assert "x-bad" not in answer.headers
    assert answer.headers["content-type"] == "application/octet-stream"


def until(holds: Callable[[], bool], s: float = WITHIN_S) -> None:
    deadline = time.monotonic() + s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
