"""Consumers with a handler, as far as that needs no broker."""

import asyncio
import threading
from functools import partial, wraps
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from asterism.sdk.client import BlockingDelivery, BlockingInbox
from asterism.sdk.consuming import BlockingConsumer, check, check_blocking


async def a_coroutine(delivery: object) -> None:
    pass


def a_function(delivery: object) -> None:
    pass


class Asynchronous:
    async def __call__(self, delivery: object) -> None:
        pass

    async def method(self, delivery: object) -> None:
        pass


@wraps(a_coroutine)
def wrapper(delivery: object) -> object:
    return a_coroutine(delivery)


ASYNC: list[Any] = [
    *(a_coroutine, partial(a_coroutine), Asynchronous(), Asynchronous().method),
    *(partial(Asynchronous()), wrapper, AsyncMock()),
]


@pytest.mark.parametrize("handler", ASYNC)
def test_a_blocking_consumer_refuses_a_handler_that_it_could_not_await(handler: Any) -> None:
    with pytest.raises(TypeError, match=r"asterism\.connect, or a plain function"):
        check_blocking(handler, 1, "fail", None)
    check(handler, 1, "fail", None)


@pytest.mark.parametrize("handler", [a_function, partial(a_function), print, threading.Event().set])
def test_an_asyncio_consumer_refuses_a_handler_that_would_hold_up_the_loop(handler: Any) -> None:
    with pytest.raises(TypeError, match=r"async def.*asyncio\.to_thread"):
        check(handler, 1, "fail", None)
    check_blocking(handler, 1, "fail", None)


def test_a_lambda_may_hand_on_to_an_async_def() -> None:
    check(lambda delivery: a_coroutine(delivery), 1, "fail", None)


@pytest.mark.parametrize("stop", [asyncio.Event(), threading.Event(), True, lambda: True])
def test_a_consumer_takes_the_event_of_its_own_kind_alone(stop: object) -> None:
    if isinstance(stop, asyncio.Event):
        check(a_coroutine, 1, "fail", stop)
    else:
        with pytest.raises(TypeError, match=r"stop must be an asyncio\.Event"):
            check(a_coroutine, 1, "fail", stop)
    if isinstance(stop, threading.Event):
        check_blocking(a_function, 1, "fail", stop)
    else:
        with pytest.raises(TypeError, match=r"stop must be a threading\.Event"):
            check_blocking(a_function, 1, "fail", stop)


class Reported:
    """A delivery that notes what is reported on it."""

    sequence = attempt = 1

    def __init__(self) -> None:
        self.said: list[str] = []

    def processed(self) -> None:
        self.said.append("processed")

    def failed(self, reason: str) -> None:
        self.said.append(f"failed: {reason}")

    def give_back(self) -> None:
        self.said.append("given back")


class Topic:
    topic = "t"


@pytest.mark.parametrize(("on_error", "said"), [("fail", "failed: Type"), ("give_back", "given")])
def test_a_delivery_whose_handler_was_not_awaited_is_never_processed(
    on_error: Any, said: str
) -> None:
    delivery = Reported()
    consumer = BlockingConsumer(cast(BlockingInbox, Topic()), lambda d: a_coroutine(d), on_error, 1)
    consumer._call(cast(BlockingDelivery, delivery))
    assert len(delivery.said) == 1 and delivery.said[0].startswith(said)
