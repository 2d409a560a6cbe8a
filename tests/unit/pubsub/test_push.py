"""The delivery loop of push, with a backlog in memory and an endpoint on a loopback socket."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from google.pubsub_v1.types import pubsub as types

from asterism.gateways.pubsub.http_client import Endpoint
from asterism.gateways.pubsub.push import PAUSE_MAX_S, PAUSE_MIN_S, Pusher, Window
from tests.unit.pubsub.endpoints import Answer, EndpointServer, status

SUBSCRIPTION = "projects/p/subscriptions/sub"


class Backlog:
    """Messages in memory: what is nacked comes again at once."""

    def __init__(self, count: int = 0) -> None:
        self.waiting: list[Any] = []
        self.out: dict[str, Any] = {}
        self.done: list[str] = []
        self.nacked: list[str] = []
        self.pulls: list[int] = []
        self._changed = asyncio.Event()
        for number in range(count):
            self.put(str(number))

    def put(self, ack_id: str) -> None:
        message = {"message_id": ack_id, "data": ack_id.encode()}
        self.waiting.append(types.ReceivedMessage.pb()(ack_id=ack_id, message=message))
        self._change()

    async def pull(self, count: int) -> Sequence[Any]:
        self.pulls.append(count)
        while not self.waiting:
            await self._next_change()
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        self.out |= {each.ack_id: each for each in taken}
        self._change()
        return taken

    async def acknowledge(self, ack_ids: Sequence[str]) -> None:
        for ack_id in ack_ids:
            del self.out[ack_id]
            self.done.append(ack_id)
        self._change()

    async def nack(self, ack_ids: Sequence[str]) -> None:
        for _ in range(10):  # the broker takes a while
            await asyncio.sleep(0)
        for ack_id in ack_ids:
            self.waiting.append(self.out.pop(ack_id))
            self.nacked.append(ack_id)
        self._change()

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._next_change()

    def _change(self) -> None:
        self._changed.set()

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


Use = Callable[[EndpointServer, Backlog], Awaitable[None]]


def push(
    answer: Answer, use: Use, count: int = 0, deadline_s: float = 10, most: int = 8
) -> Backlog:
    async def run() -> Backlog:
        backlog = Backlog(count)
        async with asyncio.timeout(20), EndpointServer(answer) as server:
            config = types.PushConfig.pb()(push_endpoint=server.url)
            pusher = Pusher(SUBSCRIPTION, config, deadline_s, backlog, most)
            running = asyncio.ensure_future(pusher.run())
            await use(server, backlog)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert not backlog.out  # all that was under way was given back
        return backlog

    return asyncio.run(run())


def codes(*first: int, then: int = 200) -> Answer:
    left = list(first)

    async def answer(server: EndpointServer, body: bytes) -> bytes | None:
        code = left.pop(0) if left else then
        return b"HTTP/1.1 102 X\r\n\r\n" if code == 102 else status(code)

    return answer


@pytest.mark.parametrize("code", [102, 200, 201, 202, 204])
def test_an_answer_acknowledges(code: int) -> None:
    async def use(server: EndpointServer, backlog: Backlog) -> None:
        await backlog.until(lambda: len(backlog.done) == 5)
        assert {json.loads(body)["subscription"] for body in server.bodies} == {SUBSCRIPTION}

    assert not push(codes(then=code), use, 5).nacked


@pytest.mark.parametrize("code", [101, 203, 206, 301, 400, 404, 429, 500, 503])
def test_another_answer_gives_the_message_back(code: int) -> None:
    async def use(server: EndpointServer, backlog: Backlog) -> None:
        await backlog.until(lambda: len(backlog.done) == 1)
        assert len(server.bodies) == 2

    assert push(codes(code), use, 1).nacked == ["0"]


def test_no_answer_within_the_deadline_gives_the_message_back() -> None:
    async def answer(server: EndpointServer, body: bytes) -> bytes | None:
        if len(server.bodies) == 1:
            await asyncio.Event().wait()
        return status(200)

    async def use(server: EndpointServer, backlog: Backlog) -> None:
        await backlog.until(lambda: len(backlog.done) == 1)

    assert push(answer, use, 1, deadline_s=0.05).nacked == ["0"]


def test_an_endpoint_that_is_not_there_is_asked_again_until_it_is() -> None:
    async def use(server: EndpointServer, backlog: Backlog) -> None:
        await backlog.until(lambda: len(backlog.done) == 3)

    async def answer(server: EndpointServer, body: bytes) -> bytes | None:
        return status(200) if len(server.bodies) > 2 else None

    assert len(push(answer, use, 3).nacked) == 2


def test_an_endpoint_is_approached_slowly_and_bounded() -> None:
    under_way, most = 0, 0

    async def answer(server: EndpointServer, body: bytes) -> bytes | None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.001)
        under_way -= 1
        return status(200)

    async def use(server: EndpointServer, backlog: Backlog) -> None:
        await backlog.until(lambda: len(backlog.done) == 100)

    backlog = push(answer, use, 100, most=8)
    assert backlog.pulls[0] == 1
    assert 1 < most <= 8
    assert sorted(backlog.done, key=int) == [str(number) for number in range(100)]


def test_a_message_that_no_endpoint_takes_holds_up_no_other() -> None:
    async def answer(server: EndpointServer, body: bytes) -> bytes | None:
        return status(500 if json.loads(body)["message"]["messageId"] == "1" else 200)

    async def use(server: EndpointServer, backlog: Backlog) -> None:
        await backlog.until(lambda: len(backlog.done) == 4)

    assert sorted(push(answer, use, 5).done) == ["0", "2", "3", "4"]


def test_what_is_under_way_is_given_back_at_the_end() -> None:
    async def answer(server: EndpointServer, body: bytes) -> bytes | None:
        await asyncio.Event().wait()
        return None

    async def use(server: EndpointServer, backlog: Backlog) -> None:
        await backlog.until(lambda: bool(backlog.out))

    assert push(answer, use, 1).nacked == ["0"]


@pytest.mark.parametrize("error", [UnicodeError("label too long"), RuntimeError("of ours")])
def test_whatever_fails_is_not_tried_again_without_a_pause(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def post(*_: object) -> int:
        raise error

    async def answer(server: EndpointServer, body: bytes) -> bytes | None:
        return status(200)

    async def use(server: EndpointServer, backlog: Backlog) -> None:
        await asyncio.sleep(0.5)

    monkeypatch.setattr(Endpoint, "post", post)
    assert 1 <= len(push(answer, use, 1).nacked) <= 4


def test_a_window_grows_by_success_and_halves_by_failure() -> None:
    window = Window(10)
    sizes = []
    for _ in range(12):
        window.succeeded()
        sizes.append(window.size)
    assert sizes == [*range(2, 11), 10, 10, 10]
    window.failed(0.0)
    assert window.size == 5
    for now_s in (0.0, 0.05, 0.09):  # these went out before the first of them failed
        window.failed(now_s)
    assert window.size == 1 and window.asked_again_s == PAUSE_MIN_S


def test_a_window_that_only_fails_is_opened_later_and_later() -> None:
    window = Window()
    now_s = 0.0
    pauses = []
    for _ in range(14):
        window.failed(now_s)
        pauses.append(round(window.asked_again_s - now_s, 6))
        now_s = window.asked_again_s
    assert pauses == [min(PAUSE_MIN_S * 2**power, PAUSE_MAX_S) for power in range(14)]
    window.succeeded()
    assert window.asked_again_s == 0.0
