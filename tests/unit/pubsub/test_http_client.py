"""The client that posts to push endpoints, against a server on a loopback socket."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from asterism.gateways.pubsub.http_client import ANSWER_BYTES_MAX, Endpoint, PostError
from tests.unit.pubsub.endpoints import Answer, EndpointServer, status

HEADERS = [(b"Content-Type", b"text/x")]


def against(answer: Answer, use: Callable[[EndpointServer, Endpoint], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20), EndpointServer(answer) as server:
            endpoint = Endpoint(server.url)
            await use(server, endpoint)
            await endpoint.close()

    asyncio.run(run())


def always(response: bytes | None) -> Answer:
    async def answer(server: EndpointServer, body: bytes) -> bytes | None:
        return response

    return answer


@pytest.mark.parametrize("code", [200, 201, 204, 301, 404, 500])
def test_a_status_comes_back_and_the_connection_is_used_again(code: int) -> None:
    async def use(server: EndpointServer, endpoint: Endpoint) -> None:
        for body in (b"one", b"", b"x" * 1_000_000):
            assert await endpoint.post(HEADERS, body, 5) == code
        assert server.connections == 1
        assert server.bodies == [b"one", b"", b"x" * 1_000_000]
        assert server.heads[0].startswith(b"POST /push?token=x HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b"Content-Type: text/x\r\n" in server.heads[0]

    against(always(status(code)), use)


def test_102_is_an_answer() -> None:
    async def use(server: EndpointServer, endpoint: Endpoint) -> None:
        assert await endpoint.post(HEADERS, b"x", 5) == 102
        assert await endpoint.post(HEADERS, b"x", 5) == 102
        assert server.connections == 2  # more may follow behind a 102

    against(always(b"HTTP/1.1 102 Processing\r\n\r\n"), use)


def test_100_is_none() -> None:
    async def use(server: EndpointServer, endpoint: Endpoint) -> None:
        assert await endpoint.post(HEADERS, b"x", 5) == 200

    against(always(b"HTTP/1.1 100 Continue\r\n\r\n" + status(200)), use)


def test_a_connection_that_was_closed_meanwhile_is_no_failure() -> None:
    async def use(server: EndpointServer, endpoint: Endpoint) -> None:
        for _ in range(3):
            assert await endpoint.post(HEADERS, b"x", 5) == 200
            server.hang_up()
        assert server.connections == 3

    against(always(status(200)), use)


def test_one_that_closes_behind_its_answer_is_asked_anew() -> None:
    async def use(server: EndpointServer, endpoint: Endpoint) -> None:
        for _ in range(3):
            assert await endpoint.post(HEADERS, b"x", 5) == 200
        assert server.connections == 3

    against(always(status(200, "Connection: close")), use)


def test_many_requests_at_a_time_have_a_connection_each() -> None:
    async def use(server: EndpointServer, endpoint: Endpoint) -> None:
        found = await asyncio.gather(*(endpoint.post(HEADERS, b"x", 5) for _ in range(10)))
        assert found == [200] * 10 and server.connections == 10

    against(always(status(200)), use)


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (None, "no answer: the server closed the connection"),
        (b"garbage\r\n\r\n", "the answer is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000, "the answer is not HTTP"),
    ],
)
def test_an_answer_that_is_none_is_told(response: bytes | None, why: str) -> None:
    async def use(server: EndpointServer, endpoint: Endpoint) -> None:
        with pytest.raises(PostError, match=why):
            await endpoint.post(HEADERS, b"x", 5)

    against(always(response), use)


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever() -> None:
    async def answer(server: EndpointServer, body: bytes) -> bytes | None:
        await asyncio.Event().wait()
        return None

    async def use(server: EndpointServer, endpoint: Endpoint) -> None:
        with pytest.raises(PostError, match="no answer within"):
            await endpoint.post(HEADERS, b"x", 0.05)

    against(answer, use)


def test_an_answer_without_end_is_not_read_to_it() -> None:
    async def use(server: EndpointServer, endpoint: Endpoint) -> None:
        for _ in range(2):
            assert await endpoint.post(HEADERS, b"x", 5) == 200
        assert server.connections == 2

    body = b"x" * (ANSWER_BYTES_MAX + 1)
    against(always(status(200, body=body)), use)


def test_nobody_there_is_told() -> None:
    async def use(server: EndpointServer, endpoint: Endpoint) -> None:
        await server.__aexit__()
        with pytest.raises(PostError, match="no answer: "):
            await endpoint.post(HEADERS, b"x", 5)

    against(always(None), use)


def test_an_answer_may_come_before_all_is_sent() -> None:
    async def run() -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(status(413))
            await asyncio.Event().wait()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        endpoint = Endpoint(f"http://127.0.0.1:{port}/")
        with pytest.raises(PostError, match="no answer within"):
            await endpoint.post(HEADERS, b"x" * 50_000_000, 0.5)
        server.close()

    asyncio.run(run())


def test_a_connection_whose_answer_is_not_waited_for_is_closed() -> None:
    async def run() -> None:
        is_closed = asyncio.Event()

        async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read(-1)
            writer.close()
            is_closed.set()

        server = await asyncio.start_server(keep_silent, "127.0.0.1", 0)
        endpoint = Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        with pytest.raises(PostError):
            await endpoint.post(HEADERS, b"x", 0.05)
        async with asyncio.timeout(10):
            await is_closed.wait()
        server.close()

    asyncio.run(run())


@pytest.mark.parametrize("host", ["a..b", "h" * 70])
def test_a_host_that_is_no_name_is_told(host: str) -> None:
    async def use() -> None:
        with pytest.raises(PostError, match="no answer: "):
            await Endpoint(f"http://{host}/").post(HEADERS, b"x", 5)

    asyncio.run(use())
