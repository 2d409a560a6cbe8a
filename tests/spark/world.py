"""A broker that holds something of everything, a snapshot of it, and what was put into it."""

import random
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asterism
from asterism.sdk.client import BlockingDelivery, BlockingNode
from asterism.testing import Broker
from tests.support.batches import some_blocking

WAIT_S = 30.0
POOL, LOG, MIXED, WORK = "orders", "events", "größe/é 🜚", "work"
RETRIED, OWN, EMPTY, PASSING = "retried", "own", "empty", "passing"
HOUR_S = 3_600


@dataclass
class World:
    """What was published and reported, told by those who did it."""

    folder: Path  # of the snapshot
    began_ms: int = 0
    ended_ms: int = 0
    # By topic and sequence: what a row of ``messages`` must say, and of ``deliveries`` for whom.
    messages: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    deliveries: dict[tuple[str, int, str | None], tuple[str, int]] = field(default_factory=dict)
    reasons: dict[tuple[str, int], str] = field(default_factory=dict)
    ended: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    described: dict[str, dict[str, Any]] = field(default_factory=dict)
    receivers: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def add(self, topic: str, sequence: int, kind: str, **said: Any) -> None:
        self.messages[topic, sequence] = {"kind": kind, "status": "waiting", "attempts": 0, **said}

    def becomes(self, topic: str, sequence: int, status: str, attempts: int) -> None:
        self.messages[topic, sequence].update(status=status, attempts=attempts)

    def end(self, topic: str, sequence: int, verdict: str, **said: Any) -> None:
        self.ended[topic, sequence] = {
            **self.messages.pop((topic, sequence), {}), "verdict": verdict, **said,
        }  # fmt: skip


def make_world(folder: Path) -> World:
    """Fills a broker, and copies its snapshot, so that the broker need not stay."""
    world = World(folder / "snapshots" / "one", round(time.time_ns() / 1_000_000))
    with (
        Broker(workers=2, config={"stores": 4, "topic": {"sent_timeout": 45.5}}) as broker,
        ExitStack() as open_nodes,
    ):
        node = open_nodes.enter_context(asterism.connect_blocking(broker.address, name="world"))
        # Moving a topic to a store of its own reopens the store that it leaves: it comes first.
        for fill in (_own, _pool, _log, _mixed, _work, _retried, _passing):
            fill(world, node)
        node.create_topic(EMPTY, overflow=asterism.DropOld(17))
        for topic in (POOL, LOG, MIXED, WORK, RETRIED, OWN, PASSING, EMPTY):
            world.described[topic] = node.query("describe", topic)
            for told in node.query("list_receivers", topic, "")["receivers"]:
                world.receivers[topic, told["name"]] = told
        taken = broker.snapshot()  # while the receivers hold what they hold
        world.ended_ms = time.time_ns() // 1_000_000
        shutil.copytree(taken, world.folder)
    return world


def _publish(
    world: World, node: BlockingNode, topic: str, payload: bytes, kind: str, **wishes: Any
) -> int:
    """Publishes, and notes what must be found; ``header`` is what Spark is to say of it."""
    header = wishes.pop("header", {})
    wishes.setdefault("receipt", False)
    receipt = node.publish(topic, payload, **wishes)
    (sequence,) = receipt.results
    assert isinstance(sequence, int)
    said: dict[str, Any] = {"payload": payload, "id": receipt.id}
    said["subjects"] = [wishes.get("subject", topic)]
    for name in ("expect", "attributes", "priority", "ordering_key", "max_receivers", "receipt"):
        said[name] = wishes.get(name)
    said["expect"] = said["expect"] or "processed"
    said["attributes"] = said["attributes"] or {}
    world.add(topic, sequence, kind, **said, **header)
    return sequence


def _take(inbox: Any, count: int) -> list[BlockingDelivery]:
    """So many deliveries, in order of sequence."""
    taken: list[BlockingDelivery] = []
    until = time.monotonic() + WAIT_S
    while len(taken) < count:
        assert time.monotonic() < until, f"{len(taken)} of {count} deliveries came"
        taken += some_blocking(inbox, count - len(taken), 1)
    return sorted(taken, key=lambda delivery: delivery.sequence)


def _wait_until(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < until, f"not in time: {what}"
        time.sleep(0.01)


def _pool(world: World, node: BlockingNode) -> None:
    """One receiver each: waiting, sent, received, parked with a reason, done."""
    node.create_topic(POOL, history="full")
    chance = random.Random(7)
    sequences = [
        _publish(
            world, node, POOL, chance.randbytes(number * 7), "pool", subject=f"order/{number % 3}",
            max_receivers=1, expect="processed", receipt=number % 2 == 0,
            attributes={"n": str(number), "größe": "ä"} if number % 4 else {},
        )
        for number in range(30)
    ]  # fmt: skip
    inbox = node.subscribe(POOL, name="billing", durable=True, credit=10)
    taken = _take(inbox, 10)
    assert [delivery.sequence for delivery in taken] == sequences[:10]
    for sequence in sequences:
        world.deliveries[POOL, sequence, None] = ("waiting", 0)
    for delivery in taken[:3]:  # their credit brings three more
        del world.deliveries[POOL, delivery.sequence, None]
        world.end(POOL, delivery.sequence, "ok", ladder=[("billing", "processed", 1)])
        delivery.processed(confirm=True)
    taken[3].failed("no such customer: é", confirm=True)
    taken += _take(inbox, 4)
    for delivery in taken[4:7]:
        delivery.received(confirm=True)
    _note_out(world, POOL, "billing", taken[4:7], taken[7:])
    failed = taken[3].sequence
    del world.deliveries[POOL, failed, None]
    world.becomes(POOL, failed, "failed", 1)
    world.messages[POOL, failed]["receipt"] = world.messages[POOL, failed]["receipt"]
    world.deliveries[POOL, failed, "billing"] = ("failed", 1)
    world.reasons[POOL, failed] = "no such customer: é"
    world.ended[POOL, failed] = {
        **world.messages[POOL, failed], "verdict": "failed", "ladder": [("billing", "failed", 1)],
    }  # fmt: skip


def _note_out(
    world: World,
    topic: str,
    name: str | None,
    received: list[BlockingDelivery],
    sent: list[BlockingDelivery],
) -> None:
    """Of the pool: these are with a receiver."""
    for status, deliveries in (("received", received), ("sent", sent)):
        for delivery in deliveries:
            world.becomes(topic, delivery.sequence, status, 1)
            del world.deliveries[topic, delivery.sequence, None]
            world.deliveries[topic, delivery.sequence, name] = (status, 1)


def _log(world: World, node: BlockingNode) -> None:
    """Several receivers with globs, each somewhere else."""
    node.create_topic(LOG, history="headers")
    node.create_receiver(LOG, "eu", "eu/*")
    node.create_receiver(LOG, "us", "us/**", "eu/0")
    inbox = node.subscribe(LOG, "**", name="audit", durable=True, credit=8)
    subjects = ["eu/0", "eu/1", "us/0/x", "apac/0"]
    sequences = []
    for number in range(24):
        subject = subjects[number % 4]
        wishes: dict[str, Any] = {"priority": 5} if number == 20 else {}
        sequence = _publish(
            world, node, LOG, b"event %d" % number, "log", subject=subject, expect="processed",
            **wishes,
        )  # fmt: skip
        sequences.append(sequence)
        for name, wants in (
            ("eu", ("eu/0", "eu/1")), ("us", ("eu/0", "us/0/x")), ("audit", subjects),
        ):  # fmt: skip
            if subject in wants:
                world.deliveries[LOG, sequence, name] = ("waiting", 0)
    taken = _take(inbox, 8)
    # Two in order, one out of order, one failed; the credit of these brings four more.
    for at in (0, 1, 5):
        taken[at].processed(confirm=True)
        del world.deliveries[LOG, taken[at].sequence, "audit"]
    taken[3].failed("cannot audit this", confirm=True)
    world.deliveries[LOG, taken[3].sequence, "audit"] = ("failed", 1)
    world.reasons[LOG, taken[3].sequence] = "cannot audit this"
    taken[4].received(confirm=True)
    world.deliveries[LOG, taken[4].sequence, "audit"] = ("received", 1)
    for delivery in [taken[2], *taken[6:], *_take(inbox, 4)]:
        world.deliveries[LOG, delivery.sequence, "audit"] = ("sent", 1)


def _mixed(world: World, node: BlockingNode) -> None:
    """Every wish that a message can have, under a name that is no ASCII."""
    node.create_topic(MIXED)
    now = time.time_ns() / 1e9
    soon, later = round(now + HOUR_S, 3), round(now + 2 * HOUR_S, 3)
    wishes: list[dict[str, Any]] = [
        {"max_receivers": 1, "priority": 0},
        {"max_receivers": 1, "priority": 2**31 - 1, "attributes": {"": "", "é": "🜚"}},
        {"max_receivers": 1, "ordering_key": "schlüssel"},
        {"max_receivers": 1, "deliver_at": later},
        {"max_receivers": 1, "expires_at": soon},
        {"max_receivers": 1, "expires_at": "never"},
        {"max_receivers": 3, "expires_at": soon, "deliver_at": later},
    ]
    for number, wish in enumerate(wishes):
        kind = "pool" if wish["max_receivers"] == 1 else "log"
        header = {"deliver_at": wish.get("deliver_at"), "expires_at": wish.get("expires_at")}
        sequence = _publish(
            world, node, MIXED, bytes([number, 0, 255]), kind, subject="ä/ö", header=header, **wish
        )
        if kind == "pool":
            world.deliveries[MIXED, sequence, None] = ("waiting", 0)


def _work(world: World, node: BlockingNode) -> None:
    """The work queue: drafted, ordered, active, failed, completed."""
    node.create_topic(WORK, history="headers", draft_timeout=HOUR_S)
    drafted = [node.draft(WORK, number if number else None) for number in range(7)]
    for number, sequence in enumerate(drafted):
        world.add(
            WORK, sequence, "pool", status="drafting", payload=b"", max_receivers=1,
            priority=number if number else None, subjects=[WORK], attributes={},
        )  # fmt: skip
    for number, sequence in enumerate(drafted[2:], 2):
        node.set(WORK, sequence, b"task %d" % number, {"a": "b"})
        said = world.messages[WORK, sequence]
        said.update(status="waiting", payload=b"task %d" % number, attributes={"a": "b"})
        world.deliveries[WORK, sequence, None] = ("waiting", 0)
    assert [node.order(WORK) for _ in range(4)] == drafted[2:6]
    ordered = drafted[2:6]
    for sequence in ordered[1:]:
        node.fetch(WORK, sequence)
    node.fail(WORK, ordered[2], "broken tool")
    node.complete(WORK, ordered[3])
    fates = (("sent", "sent"), ("received", "received"), ("failed", "failed"))
    for sequence, (status, delivered) in zip(ordered, fates, strict=False):
        world.becomes(WORK, sequence, status, 1)
        del world.deliveries[WORK, sequence, None]
        world.deliveries[WORK, sequence, "work-queue"] = (delivered, 1)
    world.reasons[WORK, ordered[2]] = "broken tool"
    said = {**world.messages[WORK, ordered[2]], "payload": None}
    world.ended[WORK, ordered[2]] = {
        **said, "verdict": "failed", "ladder": [("work-queue", "failed", 1)],
    }  # fmt: skip
    del world.deliveries[WORK, ordered[3], None]
    world.end(WORK, ordered[3], "ok", ladder=[("work-queue", "processed", 1)], payload=None)


def _retried(world: World, node: BlockingNode) -> None:
    """Failed once, and kept back until its next attempt; of the pool, and of the log."""
    backoff = asterism.Backoff(HOUR_S, HOUR_S)
    node.create_topic(RETRIED, max_attempts=3, retry_backoff=backoff)
    inbox = node.subscribe(RETRIED, name="tries", durable=True)
    for payload, kind in ((b"once", "pool"), (b"twice", "log")):
        wishes = {"max_receivers": 1} if kind == "pool" else {}
        sequence = _publish(world, node, RETRIED, payload, kind, expect="processed", **wishes)
        inbox.receive(timeout=WAIT_S).failed("later", confirm=True)
        if kind == "pool":
            world.becomes(RETRIED, sequence, "waiting", 1)
        name = None if kind == "pool" else "tries"
        world.deliveries[RETRIED, sequence, name] = ("waiting", 1)


def _own(world: World, node: BlockingNode) -> None:
    """A topic with a store and a process of its own."""
    node.create_topic(OWN)
    for number in range(5):
        sequence = _publish(world, node, OWN, b"own %d" % number, "pool", max_receivers=1)
        world.deliveries[OWN, sequence, None] = ("waiting", 0)
    node.configure(OWN, dedicated=True)
    _wait_until(
        lambda: any(
            OWN in (worker or {})["dedicated"] for worker in node.query_status()["workers"]
        ),
        "a process of its own",
    )


def _passing(world: World, node: BlockingNode) -> None:
    """A receiver that lives with its connection has a message of the pool."""
    node.create_topic(PASSING)
    inbox = node.subscribe(PASSING, credit=1)
    sequences = [
        _publish(world, node, PASSING, b"%d" % at, "pool", max_receivers=1, expect="received")
        for at in range(2)
    ]
    inbox.receive(timeout=WAIT_S)
    world.becomes(PASSING, sequences[0], "sent", 1)
    world.deliveries[PASSING, sequences[0], None] = ("sent", 1)
    world.deliveries[PASSING, sequences[1], None] = ("waiting", 0)
