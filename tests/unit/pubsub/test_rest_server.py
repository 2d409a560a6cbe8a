"""The server of REST, on a loopback socket."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from google.pubsub_v1.types import pubsub as types

from asterism.errors import PeerError
from asterism.gateways.pubsub import rest_server
from asterism.gateways.pubsub.errors import Refusal, not_found, refusal_of
from asterism.gateways.pubsub.rest_server import BODY_BYTES_MAX, RestServer

PUBLISH = b"POST /v1/projects/p/topics/orders:publish HTTP/1.1\r\nHost: localhost\r\n"
PULL = (
    b"POST /v1/projects/p/subscriptions/sub:pull HTTP/1.1\r\nHost: localhost\r\n"
    b'Content-Length: 18\r\n\r\n{"maxMessages": 1}'
)
HEALTH = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Broker:
    """Rpcs that tests ask."""

    def __init__(self) -> None:
        self.pulling = asyncio.Event()
        self.given_up = asyncio.Event()

    async def publish(self, request: Any) -> Any:
        size = str(sum(len(message.data) for message in request.messages))
        return types.PublishResponse.pb()(message_ids=[size])

    async def get_topic(self, request: Any) -> Any:
        if request.topic.endswith("broken"):
            raise RuntimeError("an error of ours")
        if request.topic.endswith("busy"):
            raise PeerError("busy", "later")
        raise not_found(request.topic)

    async def pull(self, request: Any) -> Any:
        self.pulling.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise


def refusal_for(error: Exception) -> Refusal | None:
    if isinstance(error, PeerError):
        return refusal_of(error)
    return error if isinstance(error, Refusal) else None


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        self.writer.write(data)
        return await self.answer(data.startswith(b"HEAD"))

    async def answer(self, is_head: bool = False) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        size = 0 if is_head else int(headers.get("content-length", 0))
        return int(head[0].split()[1]), headers, await self.reader.readexactly(size)

    async def is_hung_up(self) -> bool:
        return await self.reader.read() == b""


Talk = Callable[["Broker", Callable[[], Awaitable[Client]]], Awaitable[None]]


def serve(talk: Talk, connections_max: int = 100) -> None:
    """Runs a server, and what a test does with it."""

    async def run() -> None:
        broker = Broker()
        prefix = "google.pubsub.v1."
        server = RestServer(
            {
                f"{prefix}Publisher/Publish": SimpleNamespace(
                    request=types.PublishRequest.pb(), call=broker.publish
                ),
                f"{prefix}Publisher/GetTopic": SimpleNamespace(
                    request=types.GetTopicRequest.pb(), call=broker.get_topic
                ),
                f"{prefix}Subscriber/Pull": SimpleNamespace(
                    request=types.PullRequest.pb(), call=broker.pull
                ),
            },
            refusal_for,
            connections_max=connections_max,
        )
        listening = socket.create_server(("127.0.0.1", 0))
        await server.start(listening)
        clients = []

        async def connect() -> Client:
            clients.append(Client(*await asyncio.open_connection(*listening.getsockname())))
            return clients[-1]

        try:
            async with asyncio.timeout(20):
                await talk(broker, connect)
        finally:
            for client in clients:
                client.writer.close()
            await server.close()

    asyncio.run(run())


def with_body(head: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return head + lines + b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_requests_follow_each_other_on_a_connection() -> None:
    async def talk(broker: Broker, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        for data, size in ((b"aGk=", "2"), (b"", "0"), (b"eHh4", "3")):
            body = b'{"messages": [{"data": "%s"}]}' % data
            status, headers, answer = await client.ask(with_body(PUBLISH, body))
            assert (status, json.loads(answer)) == (200, {"messageIds": [size]})
            assert headers["content-type"] == "application/json; charset=utf-8"
        assert await client.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") == (
            200,
            {"content-type": "text/plain; charset=utf-8", "content-length": "3"},
            b"Ok\n",
        )
        assert (await client.ask(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n"))[0] == 200
        assert (await client.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))[2] == b"Ok\n"

    serve(talk)


def test_requests_may_come_together_and_in_pieces() -> None:
    async def talk(broker: Broker, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        whole = with_body(PUBLISH, b'{"messages": [{"data": "aGk="}]}')
        client.writer.write(whole * 3)
        for _ in range(3):
            assert (await client.answer())[0] == 200
        for byte in whole:
            client.writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        assert (await client.answer())[0] == 200

    serve(talk)


def test_a_chunked_body_and_one_that_waits_for_a_word_are_taken() -> None:
    async def talk(broker: Broker, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        chunks = b'1\r\n{\r\ne\r\n"messages": []\r\n1\r\n}\r\n0\r\n\r\n'
        head = PUBLISH + b"Transfer-Encoding: chunked\r\n\r\n"
        assert (await client.ask(head + chunks))[0] == 200
        head = PUBLISH + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        assert (await client.ask(head))[0] == 100
        assert (await client.ask(b"{}"))[0] == 200

    serve(talk)


@pytest.mark.parametrize(
    ("path", "status", "name"),
    [
        ("/v1/projects/p/topics/none", 404, "NOT_FOUND"),
        ("/v1/projects/p/topics/busy", 503, "UNAVAILABLE"),
        ("/v1/projects/p/topics/broken", 500, "INTERNAL"),
        ("/nope", 404, "NOT_FOUND"),
        ("/v1/projects/p/topics?pageSize=x", 501, "UNIMPLEMENTED"),
        ("/v1/projects/p/topics/none?colour=red", 400, "INVALID_ARGUMENT"),
    ],
)
def test_what_is_refused_is_told_as_google_does(path: str, status: int, name: str) -> None:
    async def talk(broker: Broker, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        for _ in range(2):  # the connection goes on
            found, _, body = await client.ask(request)
            error = json.loads(body)["error"]
            assert (found, error["code"], error["status"]) == (status, status, name)
            assert "an error of ours" not in error["message"]

    serve(talk)


def test_a_page_of_elsewhere_is_refused() -> None:
    async def talk(broker: Broker, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        request = with_body(PUBLISH, b"{}", b"Origin: https://evil.example")
        assert (await client.ask(request))[0] == 403

    serve(talk)


def test_a_pull_is_given_up_when_its_client_hangs_up() -> None:
    async def talk(broker: Broker, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        client.writer.write(PULL)
        await broker.pulling.wait()
        client.writer.close()
        await broker.given_up.wait()

    serve(talk)


def test_a_pull_goes_on_while_the_next_request_is_there_already() -> None:
    async def talk(broker: Broker, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        client.writer.write(PULL * 2)
        await broker.pulling.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert not broker.given_up.is_set()

    serve(talk)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"garbage\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # without a host
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 70_000, 431),
        (PUBLISH + b"Content-Length: x\r\n\r\n", 400),
        (PUBLISH + b"Content-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1), 413),
        (PUBLISH + b"Transfer-Encoding: chunked\r\n\r\nnope\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_ends(data: bytes, status: int) -> None:
    async def talk(broker: Broker, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        found, _, body = await client.ask(data)
        assert found == json.loads(body)["error"]["code"] == status
        assert await client.is_hung_up()
        other = await connect()
        assert (await other.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))[0] == 200

    serve(talk)


def test_a_body_that_grows_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_server, "BODY_BYTES_MAX", 1_000)

    async def talk(broker: Broker, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        chunk = b"%x\r\n%s\r\n" % (600, b" " * 600)
        head = PUBLISH + b"Transfer-Encoding: chunked\r\n\r\n"
        assert (await client.ask(head + chunk * 2))[0] == 413

    serve(talk)


def test_bodies_of_all_requests_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_server, "BODIES_BYTES_MAX", 1_000)

    async def talk(broker: Broker, connect: Callable[[], Awaitable[Client]]) -> None:
        first, second = await connect(), await connect()
        first.writer.write(PUBLISH + b"Content-Length: 900\r\n\r\n" + b" " * 800)
        await first.writer.drain()
        body = b"{" + b" " * 500 + b"}"
        while (await second.ask(with_body(PUBLISH, body)))[0] == 200:
            await asyncio.sleep(0)  # the first one's has not come yet
        first.writer.write(b"{}" + b" " * 98)
        assert (await first.answer())[0] == 200
        assert (await (await connect()).ask(with_body(PUBLISH, body)))[0] == 200

    serve(talk)


def test_a_client_that_never_ends_its_request_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rest_server, "HEAD_S", 0.05)
    monkeypatch.setattr(rest_server, "BODY_S", 0.05)

    async def talk(broker: Broker, connect: Callable[[], Awaitable[Client]]) -> None:
        for data in (b"GET / HT", PUBLISH + b"Content-Length: 5\r\n\r\n"):
            client = await connect()
            client.writer.write(data)
            assert await client.is_hung_up()

    serve(talk)


def test_a_silent_client_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_server, "IDLE_S", 0.05)

    async def talk(broker: Broker, connect: Callable[[], Awaitable[Client]]) -> None:
        assert await (await connect()).is_hung_up()

    serve(talk)


def test_there_are_so_many_connections_and_no_more() -> None:
    async def talk(broker: Broker, connect: Callable[[], Awaitable[Client]]) -> None:
        first = await connect()
        first.writer.write(PULL)
        await broker.pulling.wait()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await (await connect()).ask(HEALTH)
        first.writer.close()
        await broker.given_up.wait()
        while True:
            try:
                again = await connect()
                status, _, _ = await again.ask(HEALTH)
                break
            except (ConnectionError, asyncio.IncompleteReadError):
                continue  # the first one's end has not come yet
        assert status == 200

    serve(talk, connections_max=1)


def test_slow_clients_make_room_for_others_the_oldest_first() -> None:
    async def talk(broker: Broker, connect: Callable[[], Awaitable[Client]]) -> None:
        pulling = await connect()
        pulling.writer.write(PULL)
        await broker.pulling.wait()
        slow = []
        for data in (b"GET / HTTP/1.1\r\nHost: loc", PUBLISH + b"Content-Length: 5\r\n\r\nab"):
            slow.append(await connect())
            slow[-1].writer.write(data)
            await slow[-1].writer.drain()
        for client in slow:
            assert (await (await connect()).ask(HEALTH))[0] == 200
            with contextlib.suppress(ConnectionError):
                assert await client.is_hung_up()
        assert not broker.given_up.is_set()

    serve(talk, connections_max=3)
