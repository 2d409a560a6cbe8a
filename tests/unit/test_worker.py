"""A worker's own time: how long it may wait for something to do. Its turns are in tests/process."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asterism.actors.host import HEARTBEAT_MS, Worker
from asterism.config import Config

Make = Callable[[str], Worker]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Worker] = []

    def make(sync: str) -> Worker:
        config = Config(data_dir=str(tmp_path), workers=1, stores=1, sync=sync, lanes=False)
        worker = Worker(config, 0)
        made.append(worker)
        worker._open(worker._hosted[0])
        worker._beat()
        return worker

    yield make
    for worker in made:
        worker._socket.linger = 0
        worker._close()


def test_a_sync_that_is_put_off_is_not_forgotten_when_nothing_more_comes(make: Make) -> None:
    worker = make("30ms")
    (hosted,) = worker._hosted.values()
    assert 30 < worker._wait_ms() <= HEARTBEAT_MS
    hosted.unsynced, hosted.synced_ms = True, worker._clock.now_ms()
    assert worker._wait_ms() <= 30


def test_a_worker_that_syncs_at_once_waits_for_no_sync(make: Make) -> None:
    worker = make("always")
    assert 30 < worker._wait_ms() <= HEARTBEAT_MS
