"""What could break where answers are gathered before they are written: all of it arrives, in order.

And whoever waits is told at once that its client has hung up, or that the door is being stopped,
whatever else happens in that moment.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import asterism
from asterism.gateways.http import server
from asterism.gateways.http.protocol import Operation, Request, Response
from asterism.gateways.http.server import Application, Limits
from asterism.gateways.http.transport import CONNECTION, HEAD_BYTES_MAX
from asterism.sdk.aio import Node
from asterism.testing import Broker
from tests.conformance.http.conftest import PASSWORD, Queue
from tests.conformance.http.test_v1 import Topic, heard
from tests.conformance.http.test_v1 import socket as websocket

pytestmark = pytest.mark.process

WITHIN_S = 20.0
LARGE = 5_000_000


class Wire:
    """A connection on which a client may say what it likes."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self.host = where.netloc
        self._socket = socket.create_connection((where.hostname, where.port or 80), WITHIN_S)
        self._file = self._socket.makefile("rb")

    def say(self, *lines: str, body: bytes = b"") -> None:
        head = "\r\n".join([lines[0], f"Host: {self.host}", *lines[1:], "", ""])
        self._socket.sendall(head.encode() + body)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def status(self) -> tuple[int, dict[str, str]]:
        status = int(self._file.readline().split()[1])
        headers = {}
        while line := self._file.readline().decode().strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return status, headers

    def answer(self) -> tuple[int, bytes]:
        status, headers = self.status()
        return status, self._file.read(int(headers.get("content-length", 0)))

    def limit_reading(self) -> None:
        """Has the system keep little of what comes, so that a client that reads nothing shows."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)

    def rest(self) -> bytes:
        return self._file.read()

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    made = Wire(broker.http_url)
    with contextlib.closing(made):
        yield made


# --- what is written arrives --------------------------------------------------------------------


@pytest.fixture(scope="module")
def large() -> Iterator[Broker]:
    env = {"MQ_SET_PAYLOAD_LIMIT": str(LARGE), "MQ_ADMIN_PASSWORD": PASSWORD}
    with Broker(workers=1, doors=("http",), env=env) as running:
        yield running


def test_a_large_body_arrives_whole_both_ways(large: Broker) -> None:
    payload = os.urandom(LARGE)
    with httpx.Client(base_url=large.http_url, timeout=60) as http:
        queue = Queue(http, "large")
        message = queue.make(payload)
        assert queue.order() == message
        assert queue.get(message).content == payload


def test_a_large_answer_arrives_whole_at_a_client_that_reads_slowly(large: Broker) -> None:
    payload = os.urandom(LARGE)
    with httpx.Client(base_url=large.http_url, timeout=60) as http:
        message = Queue(http, "slow").make(payload)
        plain = {"Accept-Encoding": "identity"}
        with http.stream("GET", f"/mq/slow/messages/{message}", headers=plain) as answer:
            assert http.get("/health").text == "OK"  # meanwhile others are served
            assert b"".join(answer.iter_raw(65_536)) == payload


def test_requests_in_one_write_are_answered_in_order(wire: Wire, queue: Queue) -> None:
    first, second = queue.make(b"first"), queue.make(b"second")
    requests = [
        f"GET {queue.base}/messages/{message} HTTP/1.1\r\nHost: {wire.host}\r\n\r\n"
        for message in (first, second, first)
    ]
    wire.send("".join(requests).encode())
    assert [wire.answer() for _ in requests] == [(200, b"first"), (200, b"second"), (200, b"first")]


def test_what_is_sent_behind_a_long_poll_is_answered_after_it(wire: Wire, queue: Queue) -> None:
    health = f"GET /health HTTP/1.1\r\nHost: {wire.host}\r\n\r\n"
    wire.send(f"GET {queue.base}/messages HTTP/1.1\r\nHost: {wire.host}\r\n\r\n{health}".encode())
    message = queue.make()
    assert [wire.answer(), wire.answer()] == [(200, message.encode()), (200, b"OK")]


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_an_answer_arrives_whole_before_the_connection_is_closed(
    wire: Wire, queue: Queue, version: str
) -> None:
    payload = os.urandom(1_000_000)
    message = queue.make(payload)
    wire.say(f"GET {queue.base}/messages/{message} HTTP/{version}", "Connection: close")
    assert wire.answer() == (200, payload)
    assert wire.rest() == b""


def test_a_websocket_is_still_one(http: httpx.Client) -> None:
    topic = Topic(http, "gathered")
    with websocket(topic, "auto=true") as talk:
        assert heard(talk)["event"] == "subscribed"
        topic.publish(*("x" * 100_000 for _ in range(5)))
        assert [len(heard(talk)["payload"]) for _ in range(5)] == [100_000] * 5


def test_a_client_is_told_to_go_on_before_it_sends_its_body(wire: Wire, queue: Queue) -> None:
    message = queue.draft()
    path = f"{queue.base}/messages/{message}"
    wire.say(f"PUT {path} HTTP/1.1", "Expect: 100-continue", "Content-Length: 4")
    assert wire.status()[0] == 100
    wire.send(b"body")
    assert wire.answer()[0] == 204
    assert queue.get(message).content == b"body"


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(wire: Wire, queue: Queue) -> None:
    path = f"{queue.base}/messages/{queue.draft()}"
    wire.say(f"PUT {path} HTTP/1.1", "Expect: 100-continue", "Content-Length: 99999999")
    assert wire.answer()[0] == 413


def test_what_is_not_http_is_answered_and_hung_up_on(wire: Wire) -> None:
    wire.send(b"what is this?\r\n\r\n")
    status, body = wire.answer()
    assert status == 400
    assert "HTTP/1.1" in json.loads(body)["message"]
    assert wire.rest() == b""


@pytest.mark.parametrize("begun", [b"GET /health HTTP/1.1\r\nX-Long: ", b"GET /"])
def test_a_head_that_does_not_end_is_refused(wire: Wire, begun: bytes) -> None:
    wire.send(begun)
    wire.send(b"a" * HEAD_BYTES_MAX)
    status, body = wire.answer()
    assert status == 431
    assert str(HEAD_BYTES_MAX) in json.loads(body)["message"]
    assert wire.rest() == b""


def test_a_head_of_many_pieces_is_one(wire: Wire) -> None:
    for _ in range(3):  # on one connection, each with bytes of its own
        wire.send(f"GET /health HTTP/1.1\r\nHost: {wire.host}\r\n".encode())
        for number in range(10):
            wire.send(f"X-{number}: {'a' * 3_000}\r\n".encode())
        wire.send(b"\r\n")
        assert wire.answer() == (200, b"OK")


UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


@pytest.mark.parametrize(
    ("method", "more", "body"),
    [
        ("GET", f"Cookie: {'a' * 9_000}", b""),
        ("POST", "Content-Length: 14", b'{"priority":1}'),
    ],
)
def test_what_cannot_begin_a_websocket_is_answered(
    wire: Wire, method: str, more: str, body: bytes
) -> None:
    wire.say(f"{method} /v1/topics/any/subscribe HTTP/1.1", *UPGRADE, more, body=body)
    status, why = wire.answer()
    assert status in (400, 431)  # by the version of the library that reads it
    assert b"WebSocket" in why
    assert wire.rest() == b""


# --- whoever waits ------------------------------------------------------------------------------


class Client:
    """The connection of a request, as the door sees it."""

    def __init__(self) -> None:
        self.is_lost = False
        self.on_lost: Callable[[], object] | None = None

    def hang_up(self) -> None:
        self.is_lost = True
        if self.on_lost is not None:
            self.on_lost()


async def ask(application: Application, path: str, client: Client) -> int | None:
    """A request that the door gets; the status that it answers with, if it does."""
    told: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: dict[str, Any]) -> None:
        if event["type"] == "http.response.start":
            told.append(event["status"])

    scope = {
        **{"type": "http", "method": "GET", "headers": [], "query_string": b""},
        **{"raw_path": path.encode(), CONNECTION: client},
    }
    await application(scope, receive, send)
    return told[0] if told else None


def play(broker: Broker, scenario: Callable[[Node, Application], Awaitable[None]]) -> None:
    """Plays with a door in this process, so that what happens in one moment can be decided."""

    async def main() -> None:
        async with asyncio.timeout(60), asterism.connect(broker.address) as node:
            await scenario(node, Application(node, Limits(), ""))

    asyncio.run(main())


async def ordering(node: Node) -> "asyncio.Future[Any]":
    """Waits until an order is on its way; the answer that it waits for."""
    while not node._answers:
        await asyncio.sleep(0)
    (asked,) = node._answers.values()
    return asked


@pytest.mark.parametrize("moment", ["as it is told", "a turn later"])
def test_a_message_of_a_client_that_hangs_up_in_that_very_moment_waits_again(
    broker: Broker, queue: Queue, moment: str
) -> None:
    async def scenario(node: Node, application: Application) -> None:
        client = Client()
        order = asyncio.create_task(ask(application, f"{queue.base}/messages", client))
        asked = await ordering(node)
        settle = node._settle

        def settled(future: Any, value: object) -> None:
            settle(future, value)
            if future is asked:
                client.hang_up()

        if moment == "as it is told":
            node._settle = settled  # type: ignore[method-assign]
        else:
            asked.add_done_callback(lambda _: client.hang_up())
        message = await asyncio.to_thread(queue.make)
        assert await order is None
        assert client.on_lost is None
        while node._tasks:
            await asyncio.sleep(0.01)
        assert await asyncio.to_thread(queue.stats) == {"waiting": 1}
        assert await asyncio.to_thread(queue.order) == message

    play(broker, scenario)


def test_a_client_that_hung_up_before_it_waits_takes_nothing(broker: Broker, queue: Queue) -> None:
    async def scenario(node: Node, application: Application) -> None:
        client = Client()
        client.hang_up()
        assert await ask(application, f"{queue.base}/messages", client) is None
        assert not node._answers

    play(broker, scenario)


def test_a_client_that_hangs_up_while_it_waits_is_gone_at_once(
    broker: Broker, queue: Queue
) -> None:
    async def scenario(node: Node, application: Application) -> None:
        client = Client()
        order = asyncio.create_task(ask(application, f"{queue.base}/messages", client))
        await ordering(node)
        client.hang_up()
        assert (await asyncio.wait((order,), timeout=WITHIN_S))[1] == set()
        assert order.result() is None
        while node._tasks:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(queue.make)
        assert await asyncio.to_thread(queue.stats) == {"waiting": 1}

    play(broker, scenario)


def test_however_many_wait_others_are_answered(
    broker: Broker, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "POLLS_MAX", 2)

    async def scenario(node: Node, application: Application) -> None:
        path = f"{queue.base}/messages"
        orders = [asyncio.create_task(ask(application, path, Client())) for _ in range(2)]
        while len(node._answers) < 2:
            await asyncio.sleep(0)
        assert await ask(application, path, Client()) == 503
        assert await ask(application, f"{queue.base}/stats", Client()) == 200
        await asyncio.to_thread(queue.make)
        await asyncio.wait(orders, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(queue.make)
        assert [await order for order in orders] == [200, 200]
        await asyncio.to_thread(queue.make)
        assert await ask(application, path, Client()) == 200

    play(broker, scenario)


def test_a_client_that_hangs_up_after_its_answer_has_been_answered(
    broker: Broker, queue: Queue
) -> None:
    async def scenario(node: Node, application: Application) -> None:
        client = Client()
        await asyncio.to_thread(queue.make)
        assert await ask(application, f"{queue.base}/messages", client) == 200
        assert client.on_lost is None
        client.hang_up()
        assert await asyncio.to_thread(queue.stats) == {"ordered": 1}

    play(broker, scenario)


def test_whoever_waits_when_the_door_is_stopped_gets_503(broker: Broker, queue: Queue) -> None:
    async def scenario(node: Node, application: Application) -> None:
        client = Client()
        order = asyncio.create_task(ask(application, f"{queue.base}/messages", client))
        asked = await ordering(node)
        application.stop()
        assert (await asyncio.wait((order,), timeout=WITHIN_S))[1] == set()
        assert order.result() == 503
        assert await ask(application, f"{queue.base}/messages", client) == 503
        assert not asked.done()
        while node._tasks:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(queue.make)
        assert await asyncio.to_thread(queue.stats) == {"waiting": 1}  # nobody waits there

    play(broker, scenario)


def test_a_message_that_comes_in_the_moment_of_the_stop_waits_again(
    broker: Broker, queue: Queue
) -> None:
    async def scenario(node: Node, application: Application) -> None:
        order = asyncio.create_task(ask(application, f"{queue.base}/messages", Client()))
        asked = await ordering(node)
        asked.add_done_callback(lambda _: application.stop())
        await asyncio.to_thread(queue.make)
        assert await order == 503
        while node._tasks:
            await asyncio.sleep(0.01)
        assert await asyncio.to_thread(queue.stats) == {"waiting": 1}

    play(broker, scenario)


def test_a_stop_and_a_hang_up_at_once_answer_nobody(broker: Broker) -> None:
    """Both cancel the one that waits; it is told of one end only, and its task goes on."""

    async def scenario(node: Node, application: Application) -> None:
        client, begun = Client(), asyncio.Event()

        async def run(request: Request) -> Response:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

        application._paths["/health"] = {"GET": Operation(run, "", {}, waits=True)}
        waiting = asyncio.create_task(ask(application, "/health", client))
        await begun.wait()
        application.stop()
        client.hang_up()
        assert await waiting is None
        assert not waiting.cancelled()

    play(broker, scenario)


def test_pulls_of_a_client_that_hangs_up_between_them_are_given_back(
    broker: Broker, http: httpx.Client
) -> None:
    """An answer that is bound in bytes is put together of several pulls."""
    topic = Topic(http, "hung-up").make(max_payload=1_000)
    topic.publish(*["x" * 1_000] * 6, expect="processed", max_receivers=1)
    topic.pull(max=1, interests=["**"])

    async def scenario(node: Node, application: Application) -> None:
        client, pull = Client(), node.pull

        calls = []

        async def pulled(*arguments: Any, **named: Any) -> Any:
            calls.append(arguments)
            if len(calls) == 2:
                client.hang_up()
                await asyncio.sleep(0)  # it is cancelled here
            return await pull(*arguments, **named)

        node.pull = pulled  # type: ignore[method-assign]
        operation = application._paths["/v1/topics/{topic}/receivers/{receiver}/pull"]["POST"]
        request = Request("POST", (), {b"content-type": b"application/json"})
        request.body = b'{"max_bytes": 2500, "max": 5}'
        request.names = {"topic": topic.name, "receiver": "r"}
        waiting = asyncio.ensure_future(operation.run(request))
        client.on_lost = waiting.cancel
        await asyncio.wait((waiting,), timeout=WITHIN_S)
        assert waiting.cancelled()
        assert len(calls) == 2
        while (await node.list_receivers(topic.name))[0].in_flight > 1:
            await asyncio.sleep(0.01)

    play(broker, scenario)
