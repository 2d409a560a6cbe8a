"""What ``/metrics`` says, for Prometheus: every topic of every process that answers.

A scrape ends when everything was answered, or, after most of a second, once nothing comes any more.
``asterism_up`` tells whose topics are missing then. Scrapes at the same time share one answer.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from heapq import nlargest
from operator import itemgetter
from typing import Any, Final

from asterism.errors import PeerError
from asterism.gateways.http.processes import ANSWER_S, Processes
from asterism.gateways.http.protocol import Request, Response
from asterism.gateways.http.queues import AT_ONCE, EMPTY, TIMEOUT_S, in_parts
from asterism.sdk.aio import Node

ENOUGH_S: Final = 0.7  # after it, nobody is waited for of whom nothing is heard
QUIET_S: Final = 0.15
MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"
# A state as the work queue calls it, and as the description of a topic does.
_STATES: Final = {
    "drafting": "drafting",
    "waiting": "waiting",
    "ordered": "sent",
    "active": "received",
    "completed": "completed",
    "failed": "parked",
}
_UP: Final = (
    "# HELP asterism_up 1 for a process that answered, 0 for one whose topics may be missing.",
    "# TYPE asterism_up gauge",
)
_MESSAGES: Final = (
    "# HELP asterism_messages Messages of a topic by state; completed is a counter.",
    "# TYPE asterism_messages gauge",
)
RECEIVERS_MAX: Final = 1_000  # whose lag one scrape tells, the largest: three series each
_KEPT: Final = (
    "# HELP asterism_messages_kept Messages that every receiver has done and the topic keeps.",
    "# TYPE asterism_messages_kept gauge",
)
_LAGS: Final = (
    "# HELP asterism_receiver_lag Messages that a named receiver has still to do.",
    "# TYPE asterism_receiver_lag gauge",
    "# HELP asterism_receiver_out Of them, those that it holds.",
    "# TYPE asterism_receiver_out gauge",
    "# HELP asterism_receiver_oldest_seconds The age of the oldest of them; 0 without any.",
    "# TYPE asterism_receiver_oldest_seconds gauge",
)
_EVENTS: Final = (
    "# HELP asterism_message_events_total What happened on a topic since its worker started.",
    "# TYPE asterism_message_events_total counter",
)
_DISK: Final = (
    "# HELP asterism_disk_free_bytes Free on the disk of the data folder.",
    "# TYPE asterism_disk_free_bytes gauge",
    "# HELP asterism_publishing_held 1 while less than min_free is free there.",
    "# TYPE asterism_publishing_held gauge",
)


class Scrape:
    """What has been heard so far, and when something was."""

    def __init__(self) -> None:
        self.began_s = self.heard_s = time.monotonic()
        self.up: dict[str, bool] = {}
        self.disks: list[str] = []
        self.counts: list[str] = []
        self.events: list[str] = []
        self.kept: list[str] = []
        self.lags: list[tuple[int, str, dict[str, Any]]] = []  # lag, labels, all of it

    def left_s(self) -> float:
        """How long it is worth to wait for more."""
        return max(self.began_s + ENOUGH_S, self.heard_s + QUIET_S) - time.monotonic()

    def hear(self) -> None:
        self.heard_s = time.monotonic()

    def hear_topic(self, topic: str, told: dict[str, Any]) -> None:
        name = _label("" if topic == EMPTY else topic)
        for state, described in _STATES.items():
            labels = f'namespace="{name}",state="{state}"'
            self.counts.append(f"asterism_messages{{{labels}}} {told[described]}")
        for event, total in told["totals"].items():
            labels = f'namespace="{name}",event="{event}"'
            self.events.append(f"asterism_message_events_total{{{labels}}} {total}")
        self.kept.append(f'asterism_messages_kept{{namespace="{name}"}} {told["kept"]}')
        for receiver, lag in told["lags"].items():
            if not receiver.startswith("~"):  # one without a name is another at each connection
                labels = f'namespace="{name}",receiver="{_label(receiver)}"'
                self.lags.append((lag["lag"], labels, lag))

    def hear_disk(self, process: str, disk: dict[str, Any]) -> None:
        labels = f'process="{process}"'
        self.disks.append(f"asterism_disk_free_bytes{{{labels}}} {disk['free_bytes']}")
        self.disks.append(f"asterism_publishing_held{{{labels}}} {int(disk['publishing_held'])}")

    def text(self) -> str:
        ups = [f'asterism_up{{process="{name}"}} {int(is_up)}' for name, is_up in self.up.items()]
        lines = (*_UP, *ups, *_MESSAGES, *sorted(self.counts), *_EVENTS, *sorted(self.events))
        lines += (*_KEPT, *sorted(self.kept), *_LAGS, *sorted(self.lag_lines()))
        return "\n".join((*lines, *_DISK, *sorted(self.disks))) + "\n"

    def lag_lines(self) -> Iterator[str]:
        """The largest lags: there may be more receivers than a scrape should tell of."""
        for _, labels, told in nlargest(RECEIVERS_MAX, self.lags, key=itemgetter(0)):
            oldest_s = (told["oldest_ms"] or 0) / 1_000
            yield f"asterism_receiver_lag{{{labels}}} {told['lag']}"
            yield f"asterism_receiver_out{{{labels}}} {told['out']}"
            yield f"asterism_receiver_oldest_seconds{{{labels}}} {oldest_s:g}"


class Metrics:
    """Asks every process of its topics, for all who want to know at the time."""

    def __init__(self, node: Node, processes: Processes) -> None:
        self._node = node
        self._processes = processes
        self._scraping: asyncio.Task[bytes] | None = None

    async def metrics(self, request: Request) -> Response:
        if self._scraping is None or self._scraping.done():
            self._scraping = asyncio.create_task(self._scrape())
        return Response(200, await asyncio.shield(self._scraping), MEDIA)

    async def _scrape(self) -> bytes:
        scrape = Scrape()
        asking = [self._of_front_end(scrape)]
        asking += [self._of_worker(number, scrape) for number in range(self._node.workers)]
        pending = set(map(asyncio.ensure_future, asking))
        while pending and (left_s := scrape.left_s()) > 0:
            done, pending = await asyncio.wait(pending, timeout=left_s)
            for each in done:
                each.result()  # a mistake of ours is not hidden
        for late in pending:
            late.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return scrape.text().encode()

    async def _of_front_end(self, scrape: Scrape) -> None:
        scrape.up["frontend"] = False
        status = await self._processes.answer_of("frontend", scrape.began_s + ANSWER_S)
        scrape.up["frontend"] = status is not None

    async def _of_worker(self, number: int, scrape: Scrape) -> None:
        """Asks a worker of its topics, once it is known to answer at all."""
        name = f"worker-{number}"
        scrape.up[name] = False
        status = await self._processes.answer_of(name, scrape.began_s + ANSWER_S)
        if status is None:
            return
        scrape.hear()
        scrape.hear_disk(name, status["disk"])
        dedicated = {
            topic: f"dedicated-{held['number']}" for topic, held in status["dedicated"].items()
        }
        # Other processes have these topics: one that is stopped holds up nobody else.
        apart = [
            self._of_process(process, (topic,), scrape) for topic, process in dedicated.items()
        ]
        try:
            await asyncio.gather(self._of_own(number, dedicated, scrape), *apart)
        except (PeerError, ConnectionError):
            return  # refused, or this client is being closed: what is not up stays so

    async def _of_own(self, number: int, others: Iterable[str], scrape: Scrape) -> None:
        topics = await self._node.list_topics(worker=number, timeout=TIMEOUT_S)
        scrape.hear()
        own = [topic for topic in topics if topic not in others]
        await self._of_process(f"worker-{number}", own, scrape)

    async def _of_process(self, process: str, topics: Iterable[str], scrape: Scrape) -> None:
        """Asks of topics, some at a time; the process is up if all of that was answered."""
        scrape.up[process] = False
        for part in in_parts(list(topics), AT_ONCE):
            await asyncio.gather(*(self._of_topic(topic, scrape) for topic in part))
        scrape.up[process] = True

    async def _of_topic(self, topic: str, scrape: Scrape) -> None:
        try:
            told = await self._node.query("describe", topic, timeout=TIMEOUT_S)
        except PeerError:
            return  # it was deleted meanwhile, say
        scrape.hear()
        scrape.hear_topic(topic, told)


def _label(value: str) -> str:
    """A value of a label."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
