"""Consumers that call a handler for each delivery, and stop without losing any.

The handlers that run when it stops come to their end, and what only waited in the inbox goes back
to the broker at once. What a handler raises is logged, and reported as ``on_error`` says.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from asterism.sdk import arguments
from asterism.sdk.tickets import ClosedError

if TYPE_CHECKING:
    from asterism.sdk.client import BlockingDelivery, BlockingInbox
    from asterism.sdk.connection import Delivery, Inbox

log = logging.getLogger("asterism")

CONCURRENCY: Final = 10
CONCURRENCY_MAX: Final = 10_000
LOOK_S: Final = 0.1  # how often a blocking consumer looks whether it is to stop

OnError = Literal["fail", "give_back"]
Handler = Callable[["Delivery"], Awaitable[object]]
BlockingHandler = Callable[["BlockingDelivery"], object]


class SubscribeOptions(TypedDict, total=False):
    """What ``consume`` hands on to ``subscribe``."""

    name: str | None
    group: str | None
    durable: bool | None
    credit: int | None
    sent_timeout: float | None
    received_timeout: float | None
    max_lease: float | None
    timeout: float | None


def check(handler: object, concurrency: int, on_error: str, stop: object) -> None:
    """Refuses arguments of the asyncio ``consume`` that are wrong, before anything is sent."""
    _check_all(handler, concurrency, on_error)
    # A lambda most often hands more arguments on to a coroutine function: it may be one.
    if not _is_async(handler) and getattr(handler, "__name__", "") != "<lambda>":
        raise TypeError(
            f"a handler of this client must be an async def, and {handler!r} is not: it would hold "
            "up the event loop. Call what blocks with asyncio.to_thread, or use connect_blocking"
        )
    if stop is not None and not isinstance(stop, asyncio.Event):
        raise TypeError(f"stop must be an asyncio.Event, not {type(stop).__name__}")


def check_blocking(handler: object, concurrency: int, on_error: str, stop: object) -> None:
    """The same of the blocking ``consume``."""
    _check_all(handler, concurrency, on_error)
    if _is_async(handler):
        raise TypeError(
            f"a handler of the blocking client must be a plain function, and {handler!r} is an "
            "async def, which nobody would await: use asterism.connect, or a plain function"
        )
    if stop is not None and not isinstance(stop, threading.Event):
        raise TypeError(f"stop must be a threading.Event, not {type(stop).__name__}")


def _check_all(handler: object, concurrency: int, on_error: str) -> None:
    if not callable(handler):
        raise TypeError(f"a handler is called with each delivery; {handler!r} cannot be")
    arguments.whole("concurrency", concurrency, 1, CONCURRENCY_MAX)
    arguments.one_of("on_error", on_error, ("fail", "give_back"))


def _is_async(handler: Any) -> bool:
    """Is it an ``async def``, or does it wrap one, or have one as its ``__call__``?"""
    while isinstance(handler, partial):
        handler = handler.func
    wrapped = inspect.unwrap(handler)
    is_async = inspect.iscoroutinefunction
    return is_async(handler) or is_async(wrapped) or is_async(type(handler).__call__)


def _tell(topic: str, delivery: "Delivery | BlockingDelivery", error: BaseException) -> None:
    log.error(
        "a handler failed at message %d of %s, attempt %d",
        *(delivery.sequence, topic, delivery.attempt),
        exc_info=error,
    )


class Consumer:
    """So many tasks, each of which takes a delivery, has it handled, and takes the next."""

    def __init__(self, inbox: "Inbox", handler: Handler, on_error: OnError) -> None:
        self._inbox = inbox
        self._handler = handler
        self._gives_back = on_error == "give_back"
        self._idle: set[asyncio.Task[None]] = set()  # those that wait for a delivery
        self._is_stopping = False
        self._error: BaseException | None = None  # what ended a worker

    async def run(self, concurrency: int, stop: asyncio.Event | None) -> None:
        """Until it is told to stop, is cancelled, or the inbox ends, which is raised."""
        workers = [asyncio.create_task(self._work()) for _ in range(concurrency)]
        ends = [*workers, *([asyncio.create_task(stop.wait())] if stop is not None else ())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends[concurrency:]:
                end.cancel()
            await self._drain(workers)
        if self._error is not None:
            raise self._error

    async def _drain(self, workers: list[asyncio.Task[None]]) -> None:
        """Lets the handlers that run come to their end; whoever cancels again ends them too."""
        self._is_stopping = True
        for worker in self._idle:
            worker.cancel()
        try:
            await asyncio.wait(workers)
        except asyncio.CancelledError:
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers)
            raise
        finally:
            for worker in workers:
                if worker.done() and not worker.cancelled():
                    self._error = worker.exception() or self._error
            if not self._inbox.is_closed:
                await self._inbox.close()

    async def _work(self) -> None:
        this = asyncio.current_task()
        assert this is not None
        while not self._is_stopping:
            self._idle.add(this)
            try:
                delivery = await self._inbox.receive(None)
            finally:
                self._idle.discard(this)
            await self._handle(delivery, this)

    async def _handle(self, delivery: "Delivery", this: "asyncio.Task[None]") -> None:
        await delivery.received()
        try:
            result: object = self._handler(delivery)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as error:
            if this.cancelling():
                raise  # with the inbox, which is about to be closed, it goes back
            await self._fail(delivery, error)  # something of the handler's own was cancelled
            return
        except Exception as error:
            await self._fail(delivery, error)
            return
        await delivery.processed()

    async def _fail(self, delivery: "Delivery", error: BaseException) -> None:
        _tell(self._inbox.topic, delivery, error)
        if self._gives_back:
            await delivery.give_back()
        else:
            await delivery.failed(f"{type(error).__name__}: {error}")


class BlockingConsumer:
    """A thread that takes deliveries, the caller's, and so many that handle them."""

    def __init__(
        self, inbox: "BlockingInbox", handler: BlockingHandler, on_error: OnError, concurrency: int
    ) -> None:
        self._taken: SimpleQueue[BlockingDelivery | None] = SimpleQueue()  # within ``_free``
        self._free = threading.Semaphore(concurrency)
        self._concurrency = concurrency
        self._inbox = inbox
        self._handler = handler
        self._gives_back = on_error == "give_back"
        self._fatal: BaseException | None = None  # what a handler raised to end the program

    def run(self, stop: threading.Event | None) -> None:
        """Until it is told to stop, is interrupted, or the inbox ends; the last two are raised."""
        name = f"asterism {self._inbox.topic}"
        threads = [
            threading.Thread(target=self._work, name=f"{name} {number}", daemon=True)
            for number in range(self._concurrency)
        ]
        try:
            # Before anything is taken: an interrupt meanwhile finds no handler that runs.
            for thread in threads:
                thread.start()
            while not (stop is not None and stop.is_set()) and self._fatal is None:
                for delivery in self._take():
                    self._taken.put(delivery)
        finally:
            self._end(threads)
        if self._fatal is not None:
            raise self._fatal

    def _end(self, threads: list[threading.Thread]) -> None:
        """Waits until the handlers that run have come to their end; who interrupts does not."""
        try:
            for _ in threads:
                self._taken.put(None)
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        finally:
            if not self._inbox.is_closed:
                self._inbox.close()

    def _take(self) -> "list[BlockingDelivery]":
        """As many deliveries as there are threads for, if some come soon."""
        free = self._free
        if not free.acquire(timeout=LOOK_S):
            return []
        wanted = 1
        while wanted < self._concurrency and free.acquire(blocking=False):
            wanted += 1
        taken: list[BlockingDelivery] = []
        try:
            taken = self._inbox.batch(wanted, LOOK_S)
        except TimeoutError:
            pass
        finally:
            for _ in range(wanted - len(taken)):
                free.release()
        return taken

    def _work(self) -> None:
        while (delivery := self._taken.get()) is not None:
            try:
                delivery.received()
                self._call(delivery)
            except ClosedError as error:  # the broker gives it to somebody else
                log.debug("message %d of %s: %s", delivery.sequence, self._inbox.topic, error)
            finally:
                self._free.release()

    def _call(self, delivery: "BlockingDelivery") -> None:
        try:
            result = self._handler(delivery)
            if inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()  # it has not begun, and nobody will begin it
                raise TypeError("the handler returned what has to be awaited: use asterism.connect")
        except Exception as error:
            _tell(self._inbox.topic, delivery, error)
            if self._gives_back:
                delivery.give_back()
            else:
                delivery.failed(f"{type(error).__name__}: {error}")
        except BaseException as error:
            self._fatal = error
            delivery.give_back()
        else:
            delivery.processed()
