"""Push delivery: messages of a subscription are posted to its endpoint, and its answers taken.

An answer of 102, 200, 201, 202 or 204 acknowledges; any other, and none within the ack deadline,
gives the message back. An endpoint is approached slowly: one request at a time, one more for each
that succeeds, half as many when one fails. An endpoint that only fails is left alone for
longer and longer, and is asked again then with one message.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol

from asterism.gateways.pubsub.envelope import posted
from asterism.gateways.pubsub.http_client import Endpoint, PostError

ACKNOWLEDGES: Final = frozenset({102, 200, 201, 202, 204})
WINDOW_MAX: Final = 256  # requests under way to one endpoint
PAUSE_MIN_S: Final = 0.1  # before an endpoint that fails is asked again
PAUSE_MAX_S: Final = 60.0
log = logging.getLogger("asterism.pubsub")


class Backlog(Protocol):
    """The messages that one subscription has to deliver."""

    async def pull(self, count: int) -> Sequence[Any]:
        """Up to so many ``ReceivedMessage``; waits for the first. Cancelling it takes none."""

    async def acknowledge(self, ack_ids: Sequence[str]) -> None:
        """The messages are done."""

    async def nack(self, ack_ids: Sequence[str]) -> None:
        """The messages are to come again, when the subscription's retry policy says."""


class Window:
    """How many requests may be under way to an endpoint, and when it is asked again. Pure."""

    def __init__(self, most: int = WINDOW_MAX) -> None:
        self.size = 1
        self.under_way = 0
        self.asked_again_s = 0.0  # not before this time
        self._most = most
        self._pause_s = 0.0

    @property
    def room(self) -> int:
        """How many more requests may go out."""
        return max(0, self.size - self.under_way)

    def succeeded(self) -> None:
        self.size = min(self.size + 1, self._most)
        self._pause_s = 0.0
        self.asked_again_s = 0.0

    def failed(self, now_s: float) -> None:
        """A request failed; those that went out with it tell nothing more."""
        self.size = max(1, self.size // 2)
        if now_s < self.asked_again_s:
            return
        self._pause_s = min(max(2 * self._pause_s, PAUSE_MIN_S), PAUSE_MAX_S)
        self.asked_again_s = now_s + self._pause_s


class Pusher:
    """Delivers one subscription's messages to the endpoint of its ``PushConfig``."""

    def __init__(
        self,
        subscription: str,
        config: Any,
        deadline_s: float,
        backlog: Backlog,
        window_max: int = WINDOW_MAX,
    ) -> None:
        self._subscription = subscription
        self._config = config
        self._deadline_s = deadline_s
        self._backlog = backlog
        self._endpoint = Endpoint(config.push_endpoint)
        self._window = Window(window_max)
        self._tasks: set[asyncio.Task[None]] = set()  # one for each message
        self._posting: set[asyncio.Task[bool]] = set()  # those that wait for the endpoint
        self._is_ending = False
        self._changed = asyncio.Event()  # a request ended
        self._was_failing = False

    async def run(self) -> None:
        """Delivers until it is cancelled; then what is under way is given back."""
        try:
            while True:
                for received in await self._backlog.pull(await self._room()):
                    self._window.under_way += 1
                    task = asyncio.ensure_future(self._deliver(received))
                    self._tasks.add(task)
                    task.add_done_callback(self._ended)
        finally:
            # What has its answer is settled still: only waiting for the endpoint is given up.
            self._is_ending = True
            for posting in self._posting:
                posting.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._endpoint.close()

    async def _room(self) -> int:
        """How many messages may go out now, once it is one at least."""
        while True:
            pause_s = self._window.asked_again_s - self._now_s()
            if pause_s <= 0 and self._window.room:
                return self._window.room
            self._changed.clear()
            try:
                async with asyncio.timeout(pause_s if pause_s > 0 else None):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _deliver(self, received: Any) -> None:
        is_done = False
        try:
            if not self._is_ending:
                is_done = await self._unless_ending(received)
        finally:
            ack_ids = [received.ack_id]
            await (self._backlog.acknowledge if is_done else self._backlog.nack)(ack_ids)

    async def _unless_ending(self, received: Any) -> bool:
        posting = asyncio.ensure_future(self._post(received))
        self._posting.add(posting)
        try:
            return await posting
        except asyncio.CancelledError:
            return False
        finally:
            self._posting.discard(posting)

    async def _post(self, received: Any) -> bool:
        """Posts one message; did its endpoint take it?"""
        try:
            headers, body = posted(received, self._subscription, self._config)
            status = await self._endpoint.post(headers, body, self._deadline_s)
            why = f"it answers {status}"
        except PostError as error:
            status, why = 0, str(error)
        except Exception as error:  # an error of ours must not be tried again without a pause
            log.exception("%s: a message cannot be posted", self._subscription)
            status, why = 0, repr(error)
        if status in ACKNOWLEDGES:
            self._window.succeeded()
            self._tell(False, "")
            return True
        self._window.failed(self._now_s())
        self._tell(True, why)
        return False

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._window.under_way -= 1
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s: a pushed message comes again: %s", self._subscription, error)

    def _tell(self, is_failing: bool, why: str) -> None:
        """Logs when an endpoint begins to fail, and when it works again."""
        if is_failing != self._was_failing:
            self._was_failing = is_failing
            what = f"does not take messages: {why}" if is_failing else "takes messages again"
            log.warning("%s: %s %s", self._subscription, self._config.push_endpoint, what)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
