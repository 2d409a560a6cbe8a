"""A topic's sequences are never given twice, whatever was lost with the power.

A report names a sequence: if another message could have it, a late report would end that message.
"""

import random

import pytest

from asterism import commands as ask
from asterism import limits
from asterism.errors import PeerError
from tests.support.core import CoreBroker
from tests.support.power import PoweredBroker

OTHER = b"after-the-cut".ljust(16)  # a producer that lost no answer

SYNCS = pytest.mark.parametrize("always", [True, False], ids=["always", "20ms"])


def held_by_consumer(broker: CoreBroker) -> list[int]:
    return [delivered.sequence for delivered in broker.take()]


@SYNCS
def test_a_late_report_on_a_lost_push_message_does_not_end_a_durable_one(always: bool) -> None:
    broker = PoweredBroker(always)
    broker.subscribe(name="one")
    for _ in range(3):
        broker.publish(mode="push", expect="processed")
    lost = held_by_consumer(broker)
    broker.cut_power()
    broker.subscribe(name="one")
    kept = [broker.publish(producer=OTHER, receipt=True) for _ in range(3)]
    assert held_by_consumer(broker) == kept
    broker.processed(*lost)
    assert broker.actor.held == 3 and not broker.receipts
    broker.processed(*kept)
    assert broker.actor.held == 0 and len(broker.receipts) == 3


def test_a_late_report_on_a_durable_message_that_an_interval_lost_ends_no_other() -> None:
    broker = PoweredBroker(always=False)
    broker.subscribe(name="one")
    broker.publish()
    (lost,) = held_by_consumer(broker)
    broker.cut_power()
    broker.subscribe(name="one")
    broker.publish(producer=OTHER)
    broker.processed(lost)
    assert broker.actor.held == 1


def test_the_id_of_a_draft_that_an_interval_lost_is_not_given_to_another() -> None:
    broker = PoweredBroker(always=False)
    broker.subscribe()
    lost = broker.draft()
    broker.cut_power()
    assert broker.draft() != lost
    with pytest.raises(PeerError, match="no_such_message"):
        broker.set_draft(lost, b"for the other")


@SYNCS
def test_a_topic_that_is_deleted_and_made_again_goes_on_behind_what_it_gave(always: bool) -> None:
    broker = PoweredBroker(always)
    broker.subscribe()
    given = [broker.publish(mode="push") for _ in range(3)]
    broker.ask(ask.DeleteTopic(b"admin", broker.request()))
    broker.cut_power()
    assert broker.publish(producer=OTHER) > max(given)


@SYNCS
@pytest.mark.parametrize("seed", range(20))
def test_no_number_is_given_twice_over_many_power_cuts(
    always: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that it is often used up.
    monkeypatch.setattr(limits, "SEQUENCES_RESERVED", 5, raising=False)
    rng = random.Random(seed)
    broker = PoweredBroker(always)
    given: list[int] = []
    producers = 0
    for _ in range(200):
        match rng.choice(("push", "push", "durable", "log", "draft", "delete", "cut")):
            case "push":
                broker.detach()
                broker.subscribe()
                count = rng.randint(1, 8)
                producers += 1
                given += broker.publish_many(  # type: ignore[arg-type]
                    [b"x"] * count, mode="push", producer=producers.to_bytes(16, "big")
                )
            case "durable" | "log" as kind:
                producers += 1
                wanted = 1 if kind == "durable" else None
                producer = producers.to_bytes(16, "big")
                given.append(broker.publish(max_receivers=wanted, producer=producer))
            case "draft":
                given.append(broker.draft())
            case "delete" if broker.topic in broker.shard.topics:
                broker.ask(ask.DeleteTopic(b"admin", broker.request()))
            case "cut":
                broker.cut_power()
    assert len(given) > 100
    assert len(set(given)) == len(given)
    assert given == sorted(given)


def test_a_reserve_that_is_not_used_up_is_not_written_again() -> None:
    broker = PoweredBroker()
    broker.publish()
    reserve = broker.rows.get(broker.actor.keys.reserve)
    for _ in range(3):
        broker.publish()
        assert not broker.shard.must_sync
    assert broker.rows.get(broker.actor.keys.reserve) == reserve
    broker.cut_power()
    broker.cut_power()  # a start alone uses nothing up
    assert broker.rows.get(broker.actor.keys.reserve) == reserve


def test_a_topic_of_a_version_without_a_reserve_goes_on_far_behind_its_counter() -> None:
    broker = PoweredBroker()
    last = broker.publish()
    broker.rows.delete(broker.actor.keys.reserve)
    broker.restart()
    assert broker.rows.get(broker.actor.keys.reserve) is not None
    assert broker.publish() > last + limits.SEQUENCES_SKIPPED


def test_what_waits_and_who_has_done_it_is_found_over_the_gap_that_a_restart_leaves() -> None:
    broker = CoreBroker()
    broker.create_receiver("all")
    before = [broker.publish(b"%d" % n, max_receivers=None) for n in range(3)]
    broker.subscribe(name="all")
    broker.processed(before[0], before[2])
    broker.take()
    broker.restart()
    after = [broker.publish(b"%d" % n, max_receivers=None) for n in range(3, 5)]
    assert after[0] - before[2] > limits.SEQUENCES_RESERVED // 2
    broker.subscribe(name="all")
    assert broker.taken() == [b"1", b"3", b"4"]
    broker.processed(before[1], *after)
    broker.detach()
    assert broker.seek("all", sequence=before[1]) == before[1]
    broker.subscribe(name="all")
    assert broker.taken() == [b"1", b"2", b"3", b"4"]
