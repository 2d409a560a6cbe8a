"""Ordering keys and priorities (spec section 3): a key keeps its order, whatever its priorities."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from asterism import limits
from asterism.rows import Rows
from asterism.settings import BackoffMs, DropOld
from asterism.storage.memory import MemoryRows
from tests.support.core import START_MS, CoreBroker
from tests.support.kinds import (
    ALL,
    ONE,
    TWO,
    Kind,
    across_restarts,
    come_back,
    durable_kinds,
    every_kind,
)

A, B = b"node-a", b"node-b"
SHARED = pytest.mark.parametrize("kinds", [("durable-one", "push"), ("durable-all", "online")])
FIELDS: dict[str, Kind] = {
    "durable-one": {"max_receivers": 1},
    "durable-all": {"max_receivers": None},
    "push": {"mode": "push"},
    "online": {"mode": "online"},
}


def publish(broker: CoreBroker, wishes: dict[str, int | None], **fields: Any) -> list[int]:
    """Publishes messages of these names and priorities; those that begin with k have that key."""
    return [
        broker.publish(
            name.encode(),
            priority=priority,
            ordering_key="k" if name.startswith("k") else None,
            **fields,
        )
        for name, priority in wishes.items()
    ]


def finish_all(broker: CoreBroker, node: bytes = b"consumer") -> str:
    """The names of what a receiver is sent until there is no more, when it processes it all."""
    finished = []
    while delivered := broker.take(node):
        for one in delivered:
            finished.append(one.payload.decode())
            broker.processed(one.sequence, node=node)
        broker.tick()
    return " ".join(finished)


def key_rows(broker: CoreBroker) -> list[bytes]:
    return [key for key, _ in broker.rows.scan(*broker.actor.keys.range_of("k"))]


# --- the order --------------------------------------------------------------------------------


@every_kind
@across_restarts
@pytest.mark.parametrize("requeue", ["back", "front"])
def test_priorities_do_not_turn_a_key_round(kind: Kind, restarts: bool, requeue: str) -> None:
    broker = CoreBroker(requeue=requeue)
    broker.subscribe(name="worker", credit=0)
    publish(broker, {"k1": None, "k2": 0, "k3": 5, "k4": 0}, **kind)
    come_back(broker, restarts, name="worker", credit=0)
    broker.grant(9)
    assert finish_all(broker) == "k1 k2 k3 k4"


@every_kind
@across_restarts
def test_the_next_of_a_key_competes_by_its_own_priority(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=0)
    wishes = {"k1": 1, "k2": 0, "k3": None, "k4": 2, "a": None, "b": 1, "c": 3}
    publish(broker, wishes, **kind)
    come_back(broker, restarts, name="worker", credit=0)
    broker.grant(1)
    assert finish_all(broker) == "k1 k2 b c k3 k4 a"


def test_orders_of_the_work_queue_keep_to_the_order_of_a_key() -> None:
    broker = CoreBroker()
    publish(broker, {"k1": None, "k2": 0, "a": 1})
    got = []
    for _ in range(3):
        sequence = broker.ordered(broker.order())
        assert isinstance(sequence, int)
        got.append(broker.fetch(sequence)["payload"])
        broker.complete(sequence)
    assert got == [b"a", b"k1", b"k2"]


@SHARED
def test_the_kinds_that_share_a_key_share_its_order(kinds: tuple[str, str]) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=0)
    for number, priority in enumerate((None, 0, 3, 0)):
        publish(broker, {f"k{number}": priority}, **FIELDS[kinds[number % 2]])
    broker.grant(9)
    assert finish_all(broker) == "k0 k1 k2 k3"


@every_kind
@pytest.mark.parametrize("how", ["processed", "failed"])
def test_a_blocking_topic_keeps_to_the_order_of_a_key(kind: Kind, how: str) -> None:
    broker = CoreBroker(blocking=True, max_attempts=2)
    broker.subscribe(name="worker", credit=0)
    broker.subscribe(B, name="other", credit=0)
    publish(broker, {"k1": None, "k2": 0, "a": 1, "k3": 0}, **kind)
    broker.grant(9)
    broker.grant(9, B)
    got: dict[bytes, list[bytes]] = {b"consumer": [], B: []}
    while any(broker.inbox.values()):
        for node, names in got.items():
            for one in broker.take(node):
                if how == "failed" and one.attempt == 1:
                    broker.failed(one.sequence, node=node)
                else:
                    names.append(one.payload)
                    broker.processed(one.sequence, node=node)
    for names in got.values():
        assert [name for name in names if name != b"a"] == sorted({*names} - {b"a"})
    assert {*got[b"consumer"], *got[B]} == {b"k1", b"k2", b"k3", b"a"}


@every_kind
@across_restarts
@pytest.mark.parametrize("how", ["deadline", "failure", "pause", "given up", "cut off"])
def test_one_that_comes_back_is_before_those_of_a_better_priority(
    kind: Kind, restarts: bool, how: str
) -> None:
    pause = BackoffMs(1_000, 1_000) if how == "pause" else None
    broker = CoreBroker(max_attempts=9, retry_backoff=pause)
    broker.subscribe(name="worker")
    broker.subscribe(b"stand-in", "nothing", name="worker", credit=0)
    publish(broker, {"k1": None, "k2": 0, "k3": 5}, **kind)
    for _ in range(2):
        (delivered,) = broker.take()
        assert delivered.payload == b"k1"
        if how == "deadline":
            broker.advance(60_000)
        elif how == "given up":
            broker.extend(0, delivered.sequence)
        elif how == "cut off":
            broker.detach()
            broker.subscribe(name="worker")
        else:
            broker.failed(delivered.sequence)
            broker.advance(1_000)
        come_back(broker, restarts, name="worker")
        broker.inbox[b"consumer", 1] = broker.inbox[b"consumer", 1][-1:]
    assert finish_all(broker) == "k1 k2 k3"


@every_kind
@pytest.mark.parametrize("credit", [1, 9])
def test_a_delayed_one_takes_its_place_when_it_is_due_and_holds_nobody_up_before(
    kind: Kind, credit: int
) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=credit)
    broker.publish(b"k1", ordering_key="k", deliver_ms=START_MS + 5_000, **kind)
    publish(broker, {"k2": 0, "k3": 0, "k4": 0}, **kind)
    (second,) = broker.take()
    assert second.payload == b"k2", "what is delayed holds nobody up"
    broker.advance(5_000)
    broker.processed(second.sequence)
    assert finish_all(broker) == "k1 k3 k4"


@durable_kinds
@across_restarts
def test_one_that_is_renewed_goes_to_the_end_of_its_key(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=2)
    wishes = {"held": None, "k1": 0, "k2": None, "k3": 5, "k4": None}
    _, first, *_ = publish(broker, wishes, **kind)
    broker.take()
    broker.failed(first)
    broker.renew(first)
    (second,) = broker.take()
    if restarts:
        come_back(broker, restarts, name="worker", credit=2)
        second = broker.take()[-1]
    assert second.payload == b"k2"
    broker.processed(second.sequence)
    assert finish_all(broker) == "k3 k4 k1", "one before it is held, so that its floor is low"


@durable_kinds
def test_dead_letters_let_the_next_go_and_keep_the_order_of_their_key(kind: Kind) -> None:
    broker = CoreBroker()
    broker.create_topic("orders", dead_letter="dead")
    broker.subscribe(name="worker", credit=0)
    publish(broker, {"k1": None, "k2": 0, "k3": 5}, **kind)
    broker.grant(9)
    for name in (b"k1", b"k2", b"k3"):
        (delivered,) = broker.take()
        assert delivered.payload == name
        broker.failed(delivered.sequence)
    with broker.on("dead"):
        broker.subscribe(B, name="undertaker")
        assert finish_all(broker, B) == "k1 k2 k3"


def test_a_receiver_that_is_moved_back_gets_a_key_in_order_again() -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    publish(broker, {"k1": None, "k2": 0, "k3": 5}, max_receivers=None)
    assert finish_all(broker) == "k1 k2 k3"
    broker.seek("worker", sequence=0)
    assert finish_all(broker) == "k1 k2 k3"


# --- who is held up by what -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ONE, ALL, TWO])
def test_what_a_receiver_does_not_want_holds_nothing_of_the_key_up(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(A, ("a", "b"), name="away", credit=0)
    broker.detach(A)
    broker.subscribe(B, "a", name="worker", credit=0)
    publish(broker, {"k1": None}, subject="b", **kind)
    publish(broker, {"k2": 0, "k3": 0}, subject="a", **kind)
    broker.grant(9, B)
    assert finish_all(broker, B) == "k2 k3"


def test_one_set_aside_for_a_receiver_that_goes_away_is_free_for_others() -> None:
    broker = CoreBroker()
    broker.subscribe(A, ("a", "b"), name="both", credit=0)
    publish(broker, {"k1": None}, subject="b")
    publish(broker, {"k2": 0}, subject="a")
    publish(broker, {"x": 1}, subject="b")
    broker.grant(1, A)  # k2 comes to the head and is set aside behind k1
    assert broker.taken(A) == [b"x"]
    broker.subscribe(B, "a", name="one")
    broker.detach(A)
    assert broker.taken(B) == [b"k2"]


@pytest.mark.parametrize("kind", [ONE, ALL, TWO])
@pytest.mark.parametrize("how", ["expires", "is dropped", "is wanted no more"])
def test_what_is_behind_one_that_ends_while_it_waits_may_go(kind: Kind, how: str) -> None:
    overflow = DropOld(3) if how == "is dropped" else None
    broker = CoreBroker(overflow=overflow)
    broker.subscribe(interests=("a", "b"), name="worker", credit=0)
    expires = {"expires_ms": START_MS + 1_000} if how == "expires" else {}
    publish(broker, {"k1": None}, subject="b", **kind, **expires)
    publish(broker, {"k2": 0, "x": 1}, subject="a", **kind)
    broker.grant(1)  # k2 comes to the head and is set aside behind k1
    (other,) = broker.take()
    assert other.payload == b"x"
    if how == "expires":
        broker.advance(2_000)
    elif how == "is dropped":
        broker.publish(b"y", "a", **kind)
    else:
        broker.set_interests("a")
    broker.processed(other.sequence)
    assert broker.taken()[0] == b"k2"


def test_what_is_behind_one_that_ends_on_disk_alone_may_go(small_limits: None) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=0)
    kind = {"max_receivers": None}
    (first,) = publish(broker, {"k1": None}, expires_ms=START_MS + 1_000, **kind)
    publish(broker, {"k2": 0, **{f"x{number}": 1 for number in range(9)}}, **kind)
    broker.grant(1)  # k2 comes to the head and is set aside
    (other,) = broker.take()
    assert other.payload == b"x0"
    assert first not in broker.actor.receivers.find("worker").known, "it is on disk alone"
    broker.advance(2_000)
    broker.processed(other.sequence)
    assert broker.taken() == [b"k2"]


def test_a_place_that_is_parked_does_not_hold_up_the_rest_of_a_key() -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.subscribe(B, name="b")
    (first,) = publish(broker, {"k1": None}, max_receivers=2)
    for node in (A, B):
        broker.take(node)
        broker.failed(first, node=node)
    broker.subscribe(name="c", credit=0)
    publish(broker, {"k2": 0}, max_receivers=None)
    broker.grant(5)
    assert broker.taken() == [b"k2"], "both places of k1 are parked, and may be so for ever"


# --- backlogs, bounds and rows ----------------------------------------------------------------


def random_wishes(rng: Random, count: int) -> Iterator[tuple[bytes, str | None, int | None]]:
    for number in range(count):
        key = rng.choice((None, "k", "l", "m"))
        yield b"%s %d" % ((key or "-").encode(), number), key, rng.choice((None, None, 0, 1, 2))


@every_kind
@across_restarts
@pytest.mark.parametrize("held_up", [1, 4_096])
def test_a_key_keeps_its_order_in_a_backlog_that_does_not_fit_in_memory(
    kind: Kind,
    restarts: bool,
    held_up: int,
    rows: Rows,
    small_limits: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PARKED_KEYS_MAX", held_up)
    broker = CoreBroker(rows)
    broker.subscribe(name="worker", credit=0)
    sent = list(random_wishes(Random(7), 60))
    for payload, key, priority in sent:
        broker.publish(payload, ordering_key=key, priority=priority, **kind)
    broker.grant(3)
    got: list[bytes] = []
    while delivered := broker.take():
        for one in delivered:
            got.append(one.payload)
            broker.processed(one.sequence)
        broker.advance(0)
        if restarts and len(got) in range(20, 23):
            broker.inbox.clear()  # what is out comes again
            come_back(broker, True, name="worker", credit=3)
            broker.advance(0)
    assert sorted(got) == sorted(payload for payload, _, _ in sent)
    for letter in (b"k", b"l", b"m"):
        numbers = [int(payload[2:]) for payload in got if payload.startswith(letter)]
        assert numbers == sorted(numbers)


class CountingRows(MemoryRows):
    """Rows that count those that are read by walks."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row in super().scan(low, high):
            self.read += 1
            yield row


@pytest.mark.parametrize("kind", [ONE, ALL])
@pytest.mark.parametrize("before", ["unwanted", "behind"])
def test_what_a_key_costs_does_not_grow_with_its_backlog(kind: Kind, before: str) -> None:
    read = []
    for size in (100, 400):
        rows = CountingRows()
        broker = CoreBroker(rows)
        broker.subscribe(name="worker", interests="a", credit=0)
        if before == "unwanted":
            for number in range(size):
                publish(broker, {f"k{number}": None}, subject="b", **kind)
        else:
            for number in range(size):
                publish(broker, {f"k{number}": number % 3}, subject="a", **kind)
        publish(broker, {f"k{size + number}": 0 for number in range(10)}, subject="a", **kind)
        broker.grant(1)
        for _ in range(8):
            (delivered,) = broker.take()
            rows.read = 0
            broker.processed(delivered.sequence)
            read.append(rows.read)
    assert max(read) < 60, f"rows read for one message: {read}"


@durable_kinds
@pytest.mark.parametrize("end", ["processed", "failed", "abandoned", "cleared", "expired"])
def test_what_is_over_leaves_nothing_in_the_order_of_its_key(kind: Kind, end: str) -> None:
    broker = CoreBroker(default_ttl_ms=60_000, max_attempts=2)
    broker.subscribe(A, name="a")
    broker.subscribe(B, name="b")
    publish(broker, {"k1": None, "k2": 0, "k3": 5}, **kind)
    assert key_rows(broker)
    while any(broker.inbox.values()) and end not in ("cleared", "expired"):
        for node in (A, B):
            for one in broker.take(node):
                report = broker.processed if end == "processed" else broker.failed
                report(one.sequence, node=node)
    if end == "abandoned":
        broker.abandon_all()
    if end == "cleared":
        broker.clear()
    broker.advance(61_000)
    for name in ("a", "b"):
        broker.delete_receiver(name)
    assert key_rows(broker) == []


@pytest.mark.parametrize("end", ["detach", "delete"])
def test_a_receiver_that_ends_leaves_nothing_in_the_order_of_a_key(end: str) -> None:
    broker = CoreBroker()
    broker.subscribe(name=None if end == "detach" else "worker")
    broker.publish(max_receivers=None, ordering_key="k")
    before = len(key_rows(broker))
    broker.extend(0, broker.take()[0].sequence)  # it waits at a place of this receiver's own
    assert len(key_rows(broker)) > before
    if end == "detach":
        broker.detach()
    else:
        broker.delete_receiver("worker")
    assert len(key_rows(broker)) == before


def test_what_an_earlier_version_accepted_is_delivered() -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=0)
    publish(broker, {"k1": None, "k2": 0})
    for key in key_rows(broker):
        broker.rows.delete(key)
    broker.restart()
    broker.subscribe(name="worker")
    publish(broker, {"k3": 1, "k4": 0})
    finished = finish_all(broker).split()
    assert sorted(finished) == ["k1", "k2", "k3", "k4"]
    assert finished.index("k3") < finished.index("k4"), "the new ones are in order"


@pytest.mark.parametrize("kind", [ONE, ALL])
def test_the_order_of_a_key_is_not_held_up_by_a_row_without_its_message(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=0)
    first, _ = publish(broker, {"k1": None, "k2": 0}, **kind)
    keys = broker.actor.keys
    broker.rows.delete(keys.pool(first))  # as a version would that knows nothing of key rows
    broker.rows.delete(keys.log(first))
    broker.restart()
    broker.subscribe(name="worker")
    assert finish_all(broker) == "k2"
