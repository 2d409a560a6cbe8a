"""The time of a snapshot is a promise: what a topic files in its history later is not before it.

Whoever follows snapshots reads the history up to that time and never looks there again.
"""

import os
from pathlib import Path

from asterism.storage.moving import move_back, move_out
from asterism.storage.store import Store
from tests.support.core import START_MS, CoreBroker

HOUR_MS = 3_600_000


def finish_one(broker: CoreBroker) -> int:
    """One message from publishing to its end, which is filed."""
    sequence = broker.publish(b"x", producer=os.urandom(16))  # a topic made anew knows nobody
    broker.subscribe(name="reader")
    broker.processed(sequence)
    broker.unsubscribe()
    return sequence


def filed(broker: CoreBroker) -> dict[int, int]:
    """The history of the topic: of each sequence, under which time it is filed."""
    rows = broker.rows.scan(*broker.actor.keys.range_of("h"))
    return {int.from_bytes(key[-8:], "big"): int.from_bytes(key[-16:-8], "big") for key, _ in rows}


def snapshot(broker: CoreBroker) -> int:
    time_ms = broker.shard.note_snapshot(broker.now_ms)
    broker.end_turn()
    return time_ms


def test_a_snapshot_has_the_time_of_its_turn() -> None:
    broker = CoreBroker(history="headers")
    before = finish_one(broker)
    assert snapshot(broker) == START_MS
    assert filed(broker) == {before: START_MS}


def test_history_is_not_filed_before_a_snapshot_when_the_clock_was_set_back() -> None:
    broker = CoreBroker(history="headers")
    finish_one(broker)
    broker.advance(1_000)
    time_ms = snapshot(broker)
    broker.restart()
    broker.now_ms -= HOUR_MS
    sequence = finish_one(broker)
    assert filed(broker)[sequence] == time_ms
    assert snapshot(broker) == time_ms, "and the next snapshot's time does not go back either"


def test_nor_is_that_of_a_topic_that_is_made_anew() -> None:
    broker = CoreBroker(history="headers")
    finish_one(broker)
    time_ms = snapshot(broker)
    broker.delete_topic()
    broker.restart()
    broker.now_ms -= HOUR_MS
    sequence = finish_one(broker)
    assert filed(broker) == {sequence: time_ms}


def test_the_clock_counts_again_once_it_has_passed_the_snapshot() -> None:
    broker = CoreBroker(history="headers")
    finish_one(broker)
    snapshot(broker)
    broker.restart()
    broker.advance(5)
    sequence = finish_one(broker)
    assert filed(broker)[sequence] == START_MS + 5


def test_the_time_goes_with_a_topic_that_gets_a_store_of_its_own_and_back(tmp_path: Path) -> None:
    with Store(tmp_path / "shared") as store:
        broker = CoreBroker(store, history="headers")
        finish_one(broker)
        first_ms = snapshot(broker)
        held = move_out(store, "orders", tmp_path / "dedicated")
    with Store(held.store) as own:
        broker = CoreBroker(own, history="headers")
        broker.now_ms = first_ms - HOUR_MS
        sequence = finish_one(broker)
        assert filed(broker)[sequence] == first_ms
        broker.now_ms = first_ms + HOUR_MS
        second_ms = snapshot(broker)
        assert second_ms == first_ms + HOUR_MS
    with Store(tmp_path / "shared") as store:
        move_back(store, held)
        broker = CoreBroker(store, history="headers")
        sequence = finish_one(broker)
        assert filed(broker)[sequence] == second_ms
