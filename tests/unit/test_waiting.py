"""Those who wait on a connection: their deadlines, and the turn of the loop they go on in."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from asterism.sdk.waiting import Waiting, deadline_in


def run(case: Callable[[asyncio.AbstractEventLoop, Waiting], Coroutine[Any, Any, None]]) -> None:
    async def on_a_loop() -> None:
        loop = asyncio.get_running_loop()
        waiting = Waiting(loop)
        await case(loop, waiting)
        waiting.stop()

    asyncio.run(on_a_loop())


async def lateness(waiting: Waiting, timeout: float) -> float:
    """How long after its time a wait ends."""
    began = time.monotonic()
    future = asyncio.get_running_loop().create_future()
    waiting.begin(future, deadline_in(timeout))
    with pytest.raises(TimeoutError):
        await future
    return time.monotonic() - began - timeout


def test_a_short_wait_ends_in_time_though_longer_ones_came_first() -> None:
    async def case(loop: asyncio.AbstractEventLoop, waiting: Waiting) -> None:
        waiting.begin(loop.create_future(), deadline_in(60))
        assert 0 <= await lateness(waiting, 0.01) < 1

    run(case)


def test_each_of_many_waits_ends_by_itself() -> None:
    async def case(loop: asyncio.AbstractEventLoop, waiting: Waiting) -> None:
        late = await asyncio.gather(*(lateness(waiting, at / 500) for at in range(20)))
        assert all(0 <= by < 1 for by in late)

    run(case)


def test_a_wait_that_ended_does_not_expire_and_the_next_one_does() -> None:
    async def case(loop: asyncio.AbstractEventLoop, waiting: Waiting) -> None:
        over = loop.create_future()
        waiting.begin(over, deadline_in(0.005))
        waiting.end(over)
        assert 0 <= await lateness(waiting, 0.02) < 1
        assert not over.done()

    run(case)


def test_who_waits_for_ever_needs_no_timer() -> None:
    async def case(loop: asyncio.AbstractEventLoop, waiting: Waiting) -> None:
        future = loop.create_future()
        waiting.begin(future, deadline_in(None))
        await asyncio.sleep(0.03)
        assert not future.done()
        assert waiting._timer is None

    run(case)


async def steps_of(waiting: Waiting, results: list[object]) -> list[str]:
    """What happens in which order when tasks that wait get these results held together."""
    loop = asyncio.get_running_loop()
    steps: list[str] = []
    futures = [loop.create_future() for _ in results]

    async def wait(name: str, future: "asyncio.Future[Any]") -> None:
        try:
            steps.append(f"{name} got {await future}")
        except ValueError as error:
            steps.append(f"{name} failed: {error}")

    def bring() -> None:
        waiting.hold()
        for future, result in zip(futures, results, strict=True):
            waiting.settle(future, result)
        steps.append("held")
        waiting.release()
        steps.append("released")

    tasks = [loop.create_task(wait(str(at), future)) for at, future in enumerate(futures)]
    await asyncio.sleep(0)
    loop.call_soon(bring)
    await asyncio.gather(*tasks)
    return steps


def test_one_who_is_alone_goes_on_in_the_same_turn() -> None:
    async def case(loop: asyncio.AbstractEventLoop, waiting: Waiting) -> None:
        assert await steps_of(waiting, [7]) == ["held", "0 got 7", "released"]
        failed = await steps_of(waiting, [ValueError("no")])
        assert failed == ["held", "0 failed: no", "released"]

    run(case)


def test_several_go_on_in_the_next_turn_in_order() -> None:
    async def case(loop: asyncio.AbstractEventLoop, waiting: Waiting) -> None:
        steps = await steps_of(waiting, [7, 8])
        assert steps == ["held", "released", "0 got 7", "1 got 8"]

    run(case)


def test_a_result_for_nobody_and_one_that_comes_too_late_are_no_harm() -> None:
    async def case(loop: asyncio.AbstractEventLoop, waiting: Waiting) -> None:
        alone, cancelled = loop.create_future(), loop.create_future()
        cancelled.cancel()
        for future in (alone, cancelled):
            waiting.hold()
            waiting.settle(future, 1)
            waiting.release()
        assert await alone == 1
        assert cancelled.cancelled()

    run(case)
