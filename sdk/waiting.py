"""Those who wait on a connection: until when each of them does, and how they go on.

Most waits are over within a millisecond. A timer for each, and a turn of the loop from the answer
to whoever waits for it, would be the larger part of that: so one timer serves all, and where what
came is for one alone, he goes on in the very turn of the loop that brought it.
"""

import asyncio
import math
import time
from typing import Any, Final

GRAIN_S: Final = 0.01  # the timer looks at all who wait, and so at most this often

Waiter = asyncio.Future[Any]


def deadline_in(timeout: float | None) -> float:
    """When so many seconds are over, on the clock of ``Waiting``; ``None`` is for ever."""
    return math.inf if timeout is None else time.monotonic() + timeout


class Waiting:
    """The deadlines of futures, and those futures that have got their results in this turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._deadlines: dict[Waiter, float] = {}  # of time.monotonic
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._held: list[tuple[Waiter, object]] | None = None  # None: nothing is held back

    # --- deadlines --------------------------------------------------------------------------

    def begin(self, future: Waiter, deadline: float) -> None:
        """Gives a future until then; its result is a ``TimeoutError`` if it has no other."""
        self._deadlines[future] = deadline
        if deadline < self._timer_at:
            self._arm(deadline)

    def end(self, future: Waiter) -> None:
        """Nobody waits for it any more. The timer stays: the next wait most likely ends later."""
        self._deadlines.pop(future, None)

    def stop(self) -> None:
        """Ends the timer; no deadline passes any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_at = math.inf

    def _arm(self, at: float) -> None:
        self.stop()
        self._timer_at = at
        self._timer = self._loop.call_later(max(at - time.monotonic(), 0), self._look)

    def _look(self) -> None:
        """Ends the waits whose time is over, and looks again when the next one's will be."""
        self.stop()
        now = time.monotonic()
        for future in [late for late, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[future]
            if not future.done():
                future.set_exception(TimeoutError())
        first = min(self._deadlines.values(), default=math.inf)
        if first < math.inf:
            self._arm(max(first, now + GRAIN_S))

    # --- results ----------------------------------------------------------------------------

    def settle(self, future: Waiter, result: object) -> None:
        """Gives a future its result, an exception among others; late ones are dropped."""
        if self._held is None:
            _settle(future, result)
        else:
            self._held.append((future, result))

    def hold(self) -> None:
        """Holds results back until ``release``; for what the loop itself calls, not for a task."""
        self._held = []

    def release(self) -> None:
        """Gives the results; who is alone goes on at once, and not in the next turn."""
        held, self._held = self._held, None
        if not held:
            return
        if len(held) == 1:
            future, result = held[0]
            callbacks = getattr(future, "_callbacks", None)  # of any future of asyncio so far
            if callbacks is not None and len(callbacks) == 1 and not future.done():
                # What the loop would call in its next turn: the task takes its next step.
                callback, context = callbacks[0]
                is_ours = future.remove_done_callback(callback) == 1
                _settle(future, result)
                if is_ours:  # else it is called in the next turn, as ever
                    context.run(callback, future)
                return
        for future, result in held:
            _settle(future, result)


def _settle(future: Waiter, result: object) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
