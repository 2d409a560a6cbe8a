"""A worker's own time: how long it may wait for something to do, and what it syncs before it sends.
The rest of its turns are in tests/process.
"""

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from asterism import commands as ask
from asterism import limits, wire
from asterism.actors.host import HEARTBEAT_MS, Worker
from asterism.actors.topic import TopicActor
from asterism.config import Config
from asterism.message import Status
from asterism.settings import TopicSettings
from tests.support.core import header

Make = Callable[..., Worker]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Worker] = []

    def make(sync: str, home: str = "data", **fields: Any) -> Worker:
        folder = str(tmp_path / home)
        config = Config(data_dir=folder, workers=1, stores=1, sync=sync, lanes=False, **fields)
        worker = Worker(config, 0)
        made.append(worker)
        worker._open(worker._hosted[0])
        worker._now_ms = worker._clock.now_ms()  # to open a store may have taken long
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


def test_one_dedicated_topic_too_many_is_busy(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make("always", max_dedicated=2)
    told: list[Any] = []
    monkeypatch.setattr(worker, "_send", told.extend)
    changes = wire.pack_body([{"dedicated": True}, []])
    plain = wire.pack_body([{"max_attempts": 2}, []])
    for number, (topic, body) in enumerate(
        [(b"a", changes), (b"b", changes), (b"c", changes), (b"d", plain)]
    ):
        frame = wire.pack_part(wire.Verb.CONFIGURE, number + 1, topic, body)
        (part,) = wire.read_parts(frame)
        worker._take(NODE[: wire.SESSION_BYTES], part, body)
    ((topic, refusal),) = told
    assert (topic, refusal.code) == ("c", "busy")
    assert "max_dedicated" in refusal.detail and refusal.retry_after_ms
    worker._moving.clear()  # no processes for those that are


@pytest.mark.parametrize("session", [b"c" * wire.SESSION_BYTES, wire.session_of_worker(1)])
def test_the_producers_of_dead_letters_are_not_for_clients(
    make: Make, monkeypatch: pytest.MonkeyPatch, session: bytes
) -> None:
    worker = make("always")
    told: list[Any] = []
    monkeypatch.setattr(worker, "_send", told.extend)
    message = (bytes(16), header("a").encoded, b"")
    body = wire.pack_body(((message,), ask.FORWARDER_TAG.ljust(16, b"x"), 1, 0))
    (part,) = wire.read_parts(wire.pack_part(wire.Verb.PUBLISH, 1, b"t", body))
    worker._take(session, part, body)
    refused = [effect.code for _, effect in told]
    assert refused == ([] if session.startswith(wire.OF_WORKER) else ["bad_request"])


def test_a_store_that_was_there_is_not_made_anew(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("always")._hosted[0].store.close()  # type: ignore[union-attr]
    shutil.rmtree(tmp_path / "data" / "stores" / "0000")
    (hosted,) = make("always")._hosted.values()
    assert hosted.shard is None and "the store is missing" in hosted.failure


class Powered:
    """A worker over a real store, with the folder as it was when it was last synced.

    ``events`` are its syncs and sends in order: ``synced``, or the bytes that left.
    """

    def __init__(self, worker: Worker, synced: Path, patch: pytest.MonkeyPatch) -> None:
        self._worker = worker
        (self._hosted,) = worker._hosted.values()
        self._synced = synced
        self._requests, self._numbers = count(1), count(1)
        self.events: list[str | bytes] = []
        assert self._hosted.store is not None
        self._real_sync = self._hosted.store.sync
        self._keep()
        patch.setattr(self._hosted.store, "sync", self._sync)
        patch.setattr(worker, "_post", lambda session, frame: self.events.append(frame))

    def _keep(self) -> None:
        shutil.rmtree(self._synced, ignore_errors=True)
        shutil.copytree(self._hosted.folder, self._synced)

    def _sync(self) -> None:
        self._real_sync()
        self._keep()
        self.events.append("synced")

    @property
    def actor(self) -> TopicActor:
        assert self._hosted.shard is not None
        return self._hosted.shard.topics["orders"]

    def do(self, command: Any) -> None:
        """One turn with one command."""
        assert self._hosted.shard is not None
        self.events.clear()
        self._hosted.shard.handle("orders", command, self._worker._clock.now_ms())
        self._worker._turn()
        assert self._hosted.shard is not None, self._hosted.failure

    def subscribe(self) -> None:
        self.do(ask.Subscribe(NODE, next(self._requests), 1, ("**",), name="one", credit=1_000))

    def publish(self, messages: int = 1, producer: bytes = b"p" * 16, **fields: Any) -> int:
        """Publishes; the sequence of the first."""
        first = self.actor.next_sequence
        numbers = [next(self._numbers) for _ in range(messages)]
        encoded = header(**fields).encoded
        batch = tuple((number.to_bytes(16, "big"), encoded, b"x") for number in numbers)
        self.do(ask.Publish(NODE, next(self._requests), batch, producer, numbers[0]))
        return first

    def processed(self, sequence: int) -> None:
        self.do(ask.Report(NODE, next(self._requests), 1, Status.PROCESSED, (sequence,)))


NODE = b"n" * 24


@pytest.mark.parametrize(
    ("sync", "mode"), [("always", "push"), ("60000ms", "push"), ("60000ms", "durable")]
)
def test_a_late_report_on_what_a_power_cut_took_ends_nothing_else(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, mode: str
) -> None:
    before = Powered(make(sync), tmp_path / "after" / "stores" / "0000", monkeypatch)
    before.subscribe()
    lost = [before.publish(mode=mode) for _ in range(2)]
    assert before.actor.held == 2  # the consumer has both
    (tmp_path / "after" / "stores.json").write_text('{"stores": 1}')
    after = Powered(make(sync, "after"), tmp_path / "again", monkeypatch)
    after.subscribe()
    kept = [after.publish(producer=b"q" * 16) for _ in range(2)]
    for sequence in lost:
        after.processed(sequence)
    assert after.actor.held == 2
    for sequence in kept:
        after.processed(sequence)
    assert after.actor.held == 0


@pytest.mark.parametrize("sync", ["always", "60000ms"])
def test_a_turn_that_uses_its_reserve_up_is_synced_before_anything_of_it_leaves(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    monkeypatch.setattr(limits, "SEQUENCES_RESERVED", 10, raising=False)
    powered = Powered(make(sync), tmp_path / "synced", monkeypatch)
    powered.subscribe()
    powered.publish(mode="push")
    syncs = 0
    for _ in range(40):
        powered.publish(mode="push")
        assert len(powered.events) > 0
        assert "synced" not in powered.events[1:]
        syncs += "synced" in powered.events
    assert 3 <= syncs <= 4


def test_a_dead_letter_for_another_store_is_synced_before_it_leaves(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That store remembers its number: after a power cut no other dead letter may have it."""
    worker = make("60000ms", topic=TopicSettings(dead_letter="dead"))
    powered = Powered(worker, tmp_path / "synced", monkeypatch)
    shard = worker._hosted[0].shard
    assert shard is not None
    monkeypatch.setattr(shard, "_owns", lambda topic: topic != "dead")
    monkeypatch.setattr(worker, "_forward", lambda *_: powered.events.append("forwarded"))
    powered.subscribe()
    sequence = powered.publish()
    assert "synced" in powered.events, "its producer is new"
    sequence = powered.publish()
    assert "synced" not in powered.events
    powered.do(ask.Report(NODE, 99, 1, Status.FAILED, (sequence,)))
    assert powered.events[:2] == ["synced", "forwarded"]
