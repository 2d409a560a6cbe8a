"""Whether the processes of the broker answer: what ``/health`` and ``/ready`` say.

A process that is stopped keeps its sockets, and what is asked of it stays in them. So each has one
question at a time: who looks again while it is without an answer waits for that one. A look takes
less than a second, whoever does not answer, and those who look at the same time share it.
"""

import asyncio
import time
from typing import Any, Final

from asterism.errors import PeerError
from asterism.gateways.http.protocol import (
    RETRY_AFTER_S,
    RefusedError,
    Request,
    Response,
    json_of,
    text,
)
from asterism.sdk.aio import Node

ANSWER_S: Final = 0.6  # a process that needs longer does not answer
KEPT_S: Final = 0.25  # how long a look is good
QUESTION_S: Final = 10.0  # a question without an answer for so long is asked anew

Looked = dict[str, dict[str, Any] | None]


class Processes:
    """The front-end, the workers, and the processes of dedicated topics."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._asked: dict[str, asyncio.Task[dict[str, Any] | None]] = {}  # without an answer yet
        self._looking: asyncio.Task[Looked] | None = None
        self._looked_s = 0.0

    # --- what is told -----------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """The door is alive unless its client of the broker is closed, which is for good.

        A client whose front-end is away connects again by itself: to start the door anew would
        help nobody.
        """
        if self._node.is_closed:
            raise RefusedError(503, "the broker has turned this door away: start the door again")
        return text("OK")

    async def ready(self, request: Request) -> Response:
        told = {name: status is not None for name, status in (await self.look()).items()}
        silent = [name for name, answers in told.items() if not answers]
        if not silent:
            return json_of({"ready": True, "processes": told})
        return _not_ready(told, silent)

    # --- looking ----------------------------------------------------------------------------

    async def look(self) -> Looked:
        """What each process says of itself; ``None`` for one that does not answer."""
        looking = self._looking
        is_over = looking is not None and looking.done()
        if looking is None or (is_over and time.monotonic() - self._looked_s > KEPT_S):
            looking = self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(looking)  # others wait for it too

    async def _look(self) -> Looked:
        until_s = time.monotonic() + ANSWER_S
        first = ("frontend", *(f"worker-{number}" for number in range(self._node.workers)))
        told: Looked = {}
        await asyncio.gather(*(self._look_at(name, until_s, told) for name in first))
        self._looked_s = time.monotonic()
        return told

    async def _look_at(self, name: str, until_s: float, told: Looked) -> None:
        """Asks a process, and those of dedicated topics that it has started."""
        told[name] = None
        told[name] = status = await self.answer_of(name, until_s)
        started = (status or {}).get("dedicated", {}).values()
        own = [f"dedicated-{held['number']}" for held in started]
        await asyncio.gather(*(self._look_at(each, until_s, told) for each in own))

    async def answer_of(self, name: str, until_s: float) -> dict[str, Any] | None:
        """What a process says of itself until then, on the monotonic clock."""
        asked = self._asked.get(name)
        if asked is None:
            asked = self._asked[name] = asyncio.create_task(self._ask(name))
        await asyncio.wait((asked,), timeout=max(until_s - time.monotonic(), 0))
        return asked.result() if asked.done() and not asked.cancelled() else None

    async def _ask(self, name: str) -> dict[str, Any] | None:
        try:
            return await self._node.query_process(name, timeout=QUESTION_S)
        except (PeerError, TimeoutError, ConnectionError):
            return None
        finally:
            del self._asked[name]


def _not_ready(told: dict[str, bool], silent: list[str]) -> Response:
    *others, last = silent
    if others:
        message = (
            f"{', '.join(others)} and {last} do not answer: see whether they run, and their logs"
        )
    else:
        message = f"{last} does not answer: see whether it runs, and its log"
    body = {
        "statusCode": 503,
        "error": "Service Unavailable",
        "message": message,
        "ready": False,
        "processes": told,
        "silent": silent,
    }
    later = ((b"retry-after", b"%d" % RETRY_AFTER_S),)
    return json_of(body)._replace(status=503, headers=later)
