"""The loop beneath a blocking client: whoever calls a verb drives it himself while he waits.

A change of threads costs more than all else that a verb does, so a verb has none: the thread that
calls it runs the loop until the verb is done. While no verb is under way the *keeper*, a thread
beneath, drives: signs of life go on, and what is delivered is taken.

I1  One drives at a time, the ``_driver``; only he touches the loop, others through
    ``call_soon_threadsafe``. Who is done, or has to stop, passes on under the lock.
I2  While somebody waits, somebody drives: a thread that waits for its verb, or the keeper.
"""

import asyncio
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final, Self, TypeVar

from asterism.sdk.tickets import ClosedError

try:
    # What the functions of ``signal`` call. They make members of enumerations besides, which takes
    # ten times as long as all else, twice in every verb.
    from _signal import getsignal as _handler_of  # type: ignore[import-not-found]
    from _signal import signal as _handle_by
except ImportError:
    from signal import getsignal as _handler_of
    from signal import signal as _handle_by

PAUSE_S: Final = 0.005  # after a verb the keeper waits so long: most often the next one follows
CLOSING_POLL_S: Final = 0.001

Value = TypeVar("Value")


class _Verb:
    """What a thread has the loop do, and waits for."""

    __slots__ = (
        "can_drive",
        "error",
        "is_done",
        "raised",
        "result",
        "task",
        "wake",
        "work",
    )

    def __init__(self, work: Coroutine[Any, Any, Any] | None) -> None:
        self.work = work
        # A thread that runs a loop already, as in a notebook, cannot run this one too.
        self.can_drive = asyncio._get_running_loop() is None
        self.task: asyncio.Task[None] | None = None
        self.wake: threading.Event | None = None  # of one who does not drive
        self.is_done = False
        self.raised: BaseException | None = None  # by the handler of a signal meanwhile
        self.result: Any = None
        self.error: BaseException | None = None

    def cancel(self) -> None:
        """On the loop: the thread waits no more."""
        if self.task is not None:
            _cancel(self.task)
        elif self.work is not None:
            self.work.close()  # a signal came before it was begun

    def outcome(self) -> Any:
        error, self.error = self.error, None
        if error is None:
            return self.result
        if isinstance(error, asyncio.CancelledError):
            error = ClosedError("this client is closed")
        try:
            raise error
        finally:
            del error  # else it would hold this frame, which holds it


def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancels a task behind its first step: before, it would end without a word to who waits."""
    task.get_loop().call_soon(task.cancel)


_KEEPER: Final = _Verb(None)

# Those that programs have handlers for; Ctrl-C always has one.
_SIGNALS: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGALRM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


class Loop:
    """An asyncio loop that is driven by the threads that wait for what it does."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._driver: _Verb | None = None
        self._queue: list[_Verb] = []  # those that wait while others drive
        self._within: set[int] = set()  # threads that are within a verb
        self._changes = 0  # verbs that began or ended
        self._is_watched = False  # does the keeper want to know when the verb under way ends?
        self._is_over = False  # are no more verbs taken?
        self._is_ended = False  # is the keeper to end?
        self._kick = threading.Event()  # of the keeper
        self._thread = threading.Thread(target=self._keep, name=f"asterism {name}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Is it closed, or of the process that this one was forked from?"""
        return self._is_over or os.getpid() != self._process

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Does this on the loop, and returns when it is done."""
        if self.is_over:
            work.close()
            raise ClosedError("this client is closed")
        return self._run(work)

    def hand_over(self, call: Any, *arguments: object) -> None:
        """Has whoever drives next call this."""
        if self.is_over:
            raise ClosedError("this client is closed")
        self._loop.call_soon_threadsafe(call, *arguments)

    def end(self) -> None:
        """Lets what is under way come to its end, and takes nothing more."""
        if self.is_over:
            return
        self._is_over = True
        self._run(self._cancel_all())
        with self._lock:
            self._is_ended = True
            self._kick.set()
            if self._driver is _KEEPER:
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        while self._driver is not None or self._queue:  # others are about to leave
            self._kick.wait(CLOSING_POLL_S)
            self._kick.clear()
        self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            _cancel(task)
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- verbs ------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        thread = threading.get_ident()
        if thread in self._within:
            # What the handler of a signal has interrupted would have to go on for this to end.
            work.close()
            raise RuntimeError("this thread is within a verb: a signal handler may not call one")
        verb = _Verb(work)
        with _Signals(self._loop, verb) as signals:
            try:
                self._within.add(thread)
                wake = self._queue_up(verb)
                if wake is None:
                    self._begin(verb)
                else:
                    self._loop.call_soon_threadsafe(self._begin, verb)
                    signals.wait_for(wake)  # it is done, or this thread is to drive
                while not verb.is_done:  # the loop may also stop for a keeper that drives no more
                    self._loop.run_forever()
            finally:
                self._leave(verb)
                self._within.discard(thread)
        if verb.raised is not None:
            raise verb.raised
        value: Value = verb.outcome()
        return value

    def _queue_up(self, verb: _Verb) -> threading.Event | None:
        """``None`` where this verb's thread is to drive. Else somebody does, and it waits."""
        with self._lock:
            self._changes += 1
            if self._driver is None and verb.can_drive:
                self._driver = verb
                return None
            verb.wake = threading.Event()
            self._queue.append(verb)
            if self._driver is None:
                self._kick.set()
            elif self._driver is _KEEPER and verb.can_drive:
                self._loop.call_soon_threadsafe(self._loop.stop)
            return verb.wake

    def _begin(self, verb: _Verb) -> None:
        verb.task = self._loop.create_task(self._perform(verb))

    async def _perform(self, verb: _Verb) -> None:
        assert verb.work is not None
        try:
            verb.result = await verb.work
        except BaseException as error:  # for its thread to raise, whatever it is
            verb.error = error
        verb.is_done = True
        if self._driver is verb:
            self._loop.stop()
        elif verb.wake is not None:  # else its thread drove, and has left in the midst of it
            verb.wake.set()

    def _leave(self, verb: _Verb) -> None:
        """A thread waits no more: its verb is done, or an exception has come from outside."""
        if not verb.is_done:
            self._loop.call_soon_threadsafe(verb.cancel)
        with self._lock:
            if verb in self._queue:
                self._queue.remove(verb)
                self._changes += 1
        if self._driver is verb:
            self._pass_on()

    def _pass_on(self) -> None:
        """Who drove does so no more: another who waits does, or the keeper, or nobody needs to."""
        with self._lock:
            self._changes += 1
            self._driver = None
            for verb in self._queue:
                if verb.can_drive and not verb.is_done:
                    self._driver = verb
                    self._queue.remove(verb)
                    assert verb.wake is not None
                    verb.wake.set()
                    return
            if self._queue or self._is_watched:
                self._kick.set()

    # --- the keeper -------------------------------------------------------------------------

    def _keep(self) -> None:
        """Drives whenever no verb has been under way for a while, until one is."""
        seen = -1
        pause: float | None = PAUSE_S
        while True:
            self._kick.wait(pause)
            self._kick.clear()
            with self._lock:
                if self._is_ended:
                    return
                is_quiet, seen = seen == self._changes, self._changes
                # A verb that takes long is not looked at again and again: its end is a kick.
                self._is_watched = is_quiet and self._driver is not None
                pause = None if self._is_watched else PAUSE_S
                if self._driver is not None or not (is_quiet or self._queue):
                    continue
                self._driver = _KEEPER
            self._loop.run_forever()
            self._pass_on()


class _Signals:
    """While the main thread drives, handlers of signals run between two steps of the loop.

    What a handler raises, as that of Ctrl-C does, cancels the verb, and is raised when that has
    ended. Raised from just anywhere it would leave the session half changed, or be lost.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, verb: _Verb) -> None:
        self._loop = loop
        self._verb = verb
        self._is_waiting = False  # does this thread touch nothing of the loop?
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._replaced: list[int] = []  # the signals whose handlers are ours now
        self._pending: deque[tuple[int, FrameType | None]] = deque()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            try:
                self._replace()
            except BaseException:  # a handler that is not replaced yet has raised
                self.__exit__()
                self._verb.cancel()
                raise
        return self

    def _replace(self) -> None:
        for number in _SIGNALS:
            handler = _handler_of(number)
            if callable(handler):
                self._handlers[number] = handler
                self._replaced.append(number)
                _handle_by(number, self._on_signal)

    def __exit__(self, *_: object) -> None:
        try:
            while self._replaced:
                _handle_by(self._replaced[-1], self._handlers[self._replaced[-1]])
                self._replaced.pop()
            self._handle_all()
        except BaseException:
            self.__exit__()  # what one handler raises keeps no other from coming back
            raise

    def wait_for(self, wake: threading.Event) -> None:
        """Waits, and meanwhile lets handlers run as signals come."""
        self._is_waiting = True
        try:
            self._handle_all()
            wake.wait()
        finally:
            self._is_waiting = False

    def _handle_all(self) -> None:
        while self._pending:
            self._handle(*self._pending.popleft())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._handlers[number](number, frame)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_waiting or self._verb.raised is not None:
            # It may raise where it is; or it is the second time, and he will not wait any longer.
            self._handle(number, frame)
            return
        self._pending.append((number, frame))
        self._loop.call_soon_threadsafe(self._handle_pending)

    def _handle_pending(self) -> None:
        """On the loop; where another thread drives by now, the verb is over, and so is this."""
        if threading.current_thread() is not threading.main_thread():
            return
        while self._pending:
            try:
                self._handle_all()
            except BaseException as error:  # for the thread to raise, whatever it is
                self._verb.raised = error
                self._verb.cancel()
