"""Which way goes what is about a topic: on the lane of its worker, or through the front-end. Pure.

I1  While a worker has a lane, everything for it goes there, so that nothing overtakes anything; but
    for topics of which it said that they are elsewhere.
I2  What is about a topic that has answered from a process of its own goes through the front-end,
    for as long as that process has not restarted: its worker would refuse it, and what wants no
    answer, such as credit, would be gone.
"""

from typing import Final

from asterism.router.placement import store_of, worker_of
from asterism.wire import PROCESS

TOPICS_MAX: Final = 100_000  # whose way is remembered; past it all is found out anew
_FRONT: Final = -1  # the worker of what goes through the front-end


class Ways:
    """The parts that are to be sent, by the way that they take."""

    def __init__(self) -> None:
        self.front: list[bytes] = []
        self._front_taken = 0  # parts of this connection that have gone through the front-end
        self.folder = ""  # where the sockets of the lanes are; empty where there are none
        self._stores = 0
        self._workers = 0
        self.lanes: dict[int, list[bytes]] = {}
        self._homes: dict[bytes, int] = {}  # topic -> its worker, or the process of its own

    def begin(self, folder: str, stores: int, workers: int) -> None:
        """A broker has so many stores and workers; and lanes, where there is a folder."""
        self._front_taken = 0  # hello has been sent, and does not count
        self.folder = folder
        self._stores = stores
        self._workers = workers
        self._homes.clear()

    def clear(self) -> None:
        """The connection is gone, and the lanes with it."""
        self.front = []
        self.lanes.clear()

    def open(self, worker: int) -> None:
        """From here on, what is for this worker goes on its lane."""
        self.lanes[worker] = []

    def close(self, worker: int) -> bool:
        """From here on, it goes through the front-end; false if it did."""
        self._forget_homes(worker)
        return self.lanes.pop(worker, None) is not None

    def is_elsewhere(self, topic: bytes, process: int = _FRONT) -> None:
        """The worker of its lane says that a topic has another; or this process of its own does."""
        if process >= self._workers or self._homes.get(topic, _FRONT) < self._workers:
            self._homes[topic] = process

    def _forget_homes(self, restarted: int = _FRONT) -> None:
        """All but the topics that have a process of their own, other than this one."""
        self._homes = {
            topic: home
            for topic, home in self._homes.items()
            if home >= self._workers and home != restarted
        }

    def of(self, topic: bytes) -> list[bytes]:
        """The parts among which one about this topic goes."""
        lanes = self.lanes
        if not lanes:
            return self.front
        home = self._homes.get(topic)
        return lanes.get(self.home(topic) if home is None else home, self.front)

    def home(self, topic: bytes) -> int:
        """The worker whose store a topic is in, or its own process; -1: not known."""
        home = self._homes.get(topic)
        if home is not None:
            return home
        if len(self._homes) >= TOPICS_MAX:
            self._forget_homes()
        home = self._homes[topic] = self.worker_of_store(topic)
        return home

    def worker_of_store(self, topic: bytes) -> int:
        """The worker whose store a topic is in unless it has its own process; -1: not known."""
        if not topic.startswith(PROCESS):
            return worker_of(store_of(topic.decode(), self._stores), self._workers)
        return int(topic[2:]) if topic[2:].isdigit() else _FRONT

    def take_front(self) -> list[bytes]:
        """What is to go through the front-end now."""
        taken, self.front = self.front, []
        self._front_taken += len(taken)
        return taken

    @property
    def front_count(self) -> int:
        """Parts of this connection that go through the front-end, those to be sent included."""
        return self._front_taken + len(self.front)

    def take_lanes(self) -> dict[int, list[bytes]]:
        """What is to go on lanes now, by the worker."""
        taken = {}
        for worker, parts in self.lanes.items():
            if parts:
                taken[worker] = parts
        for worker in taken:
            self.lanes[worker] = []
        return taken
