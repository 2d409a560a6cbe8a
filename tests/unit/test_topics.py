"""A topic's own promises (spec section 4): blocking, overflow, concurrency, unique, settings,
describe, clear, delete, history. The clock is the test's; the rows are memory or a real store.
"""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from asterism import DropOld, PeerError, RejectNew, limits
from asterism import commands as ask
from asterism.actors.shard import OUTDATED_MAX, Shard
from asterism.message import NEVER_MS, Status
from asterism.rows import Rows
from asterism.settings import DAY_MS, BackoffMs, TopicSettings
from asterism.storage.keys import STORE_NEXT, STORE_TOPIC, after, topic_prefix
from asterism.storage.records import unpack
from asterism.storage.store import Store
from tests.support.core import CoreBroker, header
from tests.support.kinds import across_restarts, code_of, come_back

PUSH: dict[str, Any] = {"mode": "push"}
ONLINE: dict[str, Any] = {"mode": "online"}
ONE: dict[str, Any] = {"max_receivers": 1}
EVERY: dict[str, Any] = {"max_receivers": None}
KINDS = {"push": PUSH, "online": ONLINE, "one": ONE, "every": EVERY}
DURABLE = {"one": ONE, "every": EVERY}

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
durable_kind = pytest.mark.parametrize("kind", DURABLE.values(), ids=DURABLE.keys())


# --- blocking ---------------------------------------------------------------------------------


@every_kind
def test_a_blocking_topic_sends_the_next_only_when_the_previous_is_resolved(
    rows: Rows, kind: dict[str, Any]
) -> None:
    broker = CoreBroker(rows, blocking=True)
    broker.subscribe()
    first = broker.publish(b"1", **kind)
    broker.publish(b"2", **kind)
    assert broker.taken() == [b"1"]
    broker.received(first)
    assert broker.taken() == []
    broker.processed(first)
    assert broker.taken() == [b"2"]


def test_a_topic_that_does_not_block_sends_what_there_is_credit_for() -> None:
    broker = CoreBroker()
    broker.subscribe()
    broker.publish_many([b"1", b"2", b"3"])
    assert broker.taken() == [b"1", b"2", b"3"]


def test_blocking_holds_across_kinds_of_messages() -> None:
    broker = CoreBroker(blocking=True)
    broker.subscribe()
    sequences = [
        broker.publish(name.encode(), **kind) for name, kind in [*KINDS.items(), ("last", ONE)]
    ]
    seen = []
    for sequence in sequences:
        seen += broker.taken()
        broker.processed(sequence)
    assert seen == [b"push", b"online", b"one", b"every", b"last"]


def test_blocking_holds_across_receivers() -> None:
    broker = CoreBroker(blocking=True)
    broker.subscribe(b"x", "x")
    broker.subscribe(b"y", "y")
    first = broker.publish(b"1", "x")
    broker.publish(b"2", "y")
    assert broker.taken(b"x") == [b"1"]
    assert broker.taken(b"y") == []
    broker.processed(first, node=b"x")
    assert broker.taken(b"y") == [b"2"]


@every_kind
def test_on_a_blocking_topic_what_is_done_when_sent_holds_nothing_up(kind: dict[str, Any]) -> None:
    broker = CoreBroker(blocking=True)
    broker.subscribe()
    broker.publish_many([b"1", b"2", b"3"], expect="sent", **kind)
    assert broker.taken() == [b"1", b"2", b"3"]


@every_kind
def test_a_final_failure_lets_a_blocking_topic_go_on(rows: Rows, kind: dict[str, Any]) -> None:
    broker = CoreBroker(rows, blocking=True)
    broker.subscribe()
    first = broker.publish(b"1", **kind)
    broker.publish(b"2", **kind)
    broker.take()
    broker.failed(first)
    assert broker.taken() == [b"2"]


@every_kind
def test_a_retry_with_backoff_blocks_until_it_is_resolved(kind: dict[str, Any]) -> None:
    broker = CoreBroker(blocking=True, max_attempts=2, retry_backoff=BackoffMs(5_000, 5_000))
    broker.subscribe()
    first = broker.publish(b"1", **kind)
    broker.publish(b"2", **kind)
    broker.take()
    broker.failed(first)
    broker.advance(4_999)
    assert broker.taken() == []
    broker.advance(1)
    assert broker.taken() == [b"1"]
    broker.processed(first)
    assert broker.taken() == [b"2"]


@every_kind
def test_a_blocking_topic_keeps_the_place_of_what_comes_back(kind: dict[str, Any]) -> None:
    broker = CoreBroker(blocking=True)
    broker.subscribe(group="crew", durable=True)
    broker.subscribe(b"other", group="crew", credit=1)
    first = broker.publish(b"1", **kind)
    broker.publish(b"2", **kind)
    holder = b"consumer" if broker.taken() == [b"1"] else b"other"
    broker.detach(holder)
    heir = b"other" if holder == b"consumer" else b"consumer"
    assert broker.taken(heir) == [b"1"]
    broker.processed(first, node=heir)
    assert broker.taken(heir) == [b"2"]


def test_blocking_waits_for_every_receiver_that_was_interested() -> None:
    broker = CoreBroker(blocking=True)
    broker.subscribe(b"a")
    broker.subscribe(b"b")
    first = broker.publish(b"1", **EVERY)
    broker.publish(b"2", **EVERY)
    broker.processed(first, node=b"a")
    assert broker.taken(b"a") == [b"1"]
    broker.processed(first, node=b"b")
    assert broker.taken(b"a") == [b"2"]
    assert broker.taken(b"b") == [b"1", b"2"]


def test_a_receiver_that_comes_later_is_not_waited_for() -> None:
    broker = CoreBroker(blocking=True)
    broker.subscribe(b"a")
    first = broker.publish(b"1", **EVERY)
    broker.publish(b"2", **EVERY)
    broker.subscribe(b"late", credit=0)
    broker.take(b"a")
    broker.processed(first, node=b"a")
    broker.detach(b"late")
    assert broker.taken(b"a") == [b"2"]


@pytest.mark.parametrize("leaves", ["detaches", "seeks", "narrows"])
def test_a_receiver_that_leaves_the_message_under_way_is_not_waited_for(leaves: str) -> None:
    """New interests make a receiver read anew: what comes back to it then is on disk alone."""
    broker = CoreBroker(blocking=True, received_timeout_ms=1000)
    name = "a" if leaves == "seeks" else None
    broker.subscribe(b"a", "**", name=name, credit=1)
    broker.publish(b"1", "x", **EVERY)
    broker.publish(b"2", "y", **EVERY)
    broker.set_interests("y", node=b"a")
    assert broker.taken(b"a") == [b"1"]
    if leaves == "detaches":
        broker.detach(b"a")
    elif leaves == "seeks":
        broker.seek("a")
    else:
        broker.advance(60_000)
        assert broker.taken(b"a") == [b"2"]
    broker.subscribe(b"b", "y")
    assert broker.taken(b"b") == ([] if leaves == "narrows" else [b"2"])


@pytest.mark.parametrize("restarts", [False, True])
def test_a_blocking_topic_sends_what_is_renewed_to_who_has_other_interests_by_now(
    restarts: bool,
) -> None:
    broker = CoreBroker(blocking=True)
    broker.subscribe(b"a", name="a")
    sequence = broker.publish(b"first", max_receivers=2)
    broker.failed(sequence, node=b"a")
    assert broker.taken(b"a") == [b"first"]
    broker.subscribe(b"b", name="b")
    broker.processed(sequence, node=b"b")
    broker.set_interests("other/**", node=b"a")
    if restarts:
        broker.restart()
        broker.subscribe(b"a", "other/**", name="a")
        broker.subscribe(b"b", name="b")
    broker.renew(sequence, "a")
    broker.publish(b"second")
    assert broker.taken(b"a") == [b"first"]
    assert broker.processed(sequence, node=b"a") == {}
    assert broker.taken(b"b") == [b"first", b"second"]


def test_with_max_receivers_blocking_waits_until_so_many_are_done() -> None:
    broker = CoreBroker(blocking=True)
    broker.subscribe(b"a")
    first = broker.publish(b"1", max_receivers=2)
    broker.publish(b"2", max_receivers=2)
    broker.processed(first, node=b"a")
    assert broker.taken(b"a") == [b"1"]
    broker.subscribe(b"b")
    assert broker.taken(b"b") == [b"1"]
    assert broker.taken(b"a") == []
    broker.processed(first, node=b"b")
    assert broker.taken(b"a") == broker.taken(b"b") == [b"2"]


@every_kind
def test_a_message_that_outranks_the_one_under_way_waits_for_it(kind: dict[str, Any]) -> None:
    broker = CoreBroker(blocking=True, max_attempts=2)
    broker.subscribe(credit=1)
    first = broker.publish(b"1", **kind)
    broker.publish(b"urgent", priority=0, **kind)
    broker.failed(first)  # it is tried again, and is not resolved before that
    assert broker.taken() == [b"1", b"1"]
    broker.processed(first)
    assert broker.taken() == [b"urgent"]


@durable_kind
def test_the_message_under_way_comes_first_again_when_it_waits_on_disk_alone(
    small_limits: None, kind: dict[str, Any]
) -> None:
    broker = CoreBroker(blocking=True, sent_timeout_ms=1_000)
    broker.subscribe(credit=1)
    broker.publish(b"1", **kind)
    for _ in range(limits.WINDOW_MAX + 1):
        broker.publish(b"urgent", priority=0, **kind)
    broker.advance(1_001)
    assert broker.taken() == [b"1", b"1"]


@every_kind
def test_what_nobody_was_sent_yet_may_be_outranked_on_a_blocking_topic(
    kind: dict[str, Any],
) -> None:
    broker = CoreBroker(blocking=True)
    broker.subscribe(credit=0)
    broker.publish(b"1", **kind)
    urgent = broker.publish(b"urgent", priority=0, **kind)
    broker.grant(1)
    assert broker.taken() == [b"urgent"]
    broker.processed(urgent)
    assert broker.taken() == [b"1"]


@every_kind
def test_a_receiver_without_credit_gets_the_one_under_way_before_what_outranks_it(
    kind: dict[str, Any],
) -> None:
    broker = CoreBroker(blocking=True)
    broker.subscribe(b"a", credit=5)
    broker.subscribe(b"b", credit=0)
    first = broker.publish(b"1", **kind)
    urgent = broker.publish(b"urgent", priority=0, **kind)
    broker.grant(5, b"b")
    broker.processed(first, node=b"a")
    broker.processed(first, node=b"b")
    broker.processed(urgent, node=b"a")
    broker.processed(urgent, node=b"b")
    for node in (b"a", b"b"):
        seen = broker.taken(node)
        assert seen in ([b"1", b"urgent"], [b"1"], [b"urgent"], [])
        if kind in (ONLINE, EVERY):
            assert seen == [b"1", b"urgent"]


@durable_kind
def test_after_a_restart_a_blocking_topic_begins_with_what_was_out(
    rows: Rows, kind: dict[str, Any]
) -> None:
    broker = CoreBroker(rows, blocking=True)
    broker.subscribe(name="durable")
    first = broker.publish(b"1", **kind)
    broker.publish(b"2", **kind)
    assert broker.taken() == [b"1"]
    broker.restart()
    broker.subscribe(name="durable")
    assert broker.taken() == [b"1"]
    broker.processed(first)
    assert broker.taken() == [b"2"]


def test_after_a_restart_a_blocking_topic_waits_for_what_is_ordered(rows: Rows) -> None:
    broker = CoreBroker(rows, blocking=True)
    first, second = broker.make(), broker.make()
    assert broker.ordered(broker.order()) == first
    broker.restart()
    waiting = broker.order()
    assert broker.ordered(waiting) is None
    broker.fetch(first)
    broker.complete(first)
    assert broker.ordered(waiting) == second


@durable_kind
def test_a_blocking_topic_passes_over_a_whole_backlog_that_expired(kind: dict[str, Any]) -> None:
    broker = CoreBroker(blocking=True)
    broker.publish_many([b"old"] * 3_000, **kind)
    broker.now_ms += 7 * DAY_MS  # nobody ticked meanwhile, as after a long stop
    broker.restart()
    broker.subscribe()
    broker.publish(b"new", **kind)
    broker.tick()
    assert broker.taken() == [b"new"]


def test_blocking_switched_on_waits_for_what_is_out_already() -> None:
    broker = CoreBroker()
    broker.subscribe()
    out = broker.publish_many([b"1", b"2"])
    broker.configure(blocking=True)
    broker.publish(b"3")
    assert broker.taken() == [b"1", b"2"]
    broker.processed(*[sequence for sequence in out if isinstance(sequence, int)])
    assert broker.taken() == [b"3"]


def test_blocking_switched_off_sends_what_was_held_up() -> None:
    broker = CoreBroker(blocking=True)
    broker.subscribe()
    broker.publish_many([b"1", b"2", b"3"])
    assert broker.taken() == [b"1"]
    broker.configure(blocking=False)
    assert broker.taken() == [b"2", b"3"]


def test_an_abandoned_message_holds_a_blocking_topic_up_no_longer() -> None:
    broker = CoreBroker(blocking=True)
    broker.subscribe()
    first = broker.publish(b"1")
    broker.publish(b"2")
    broker.abandon(first)
    assert broker.taken() == [b"1", b"2"]


def test_a_passed_deadline_sends_the_same_message_again_on_a_blocking_topic() -> None:
    broker = CoreBroker(blocking=True, sent_timeout_ms=1_000)
    broker.subscribe()
    broker.publish_many([b"1", b"2"])
    assert broker.taken() == [b"1"]
    broker.advance(1_000)
    assert broker.taken() == [b"1"]


# --- overflow ---------------------------------------------------------------------------------


@durable_kind
def test_reject_new_refuses_what_would_be_one_too_many(rows: Rows, kind: dict[str, Any]) -> None:
    broker = CoreBroker(rows, overflow=RejectNew(2))
    broker.publish(b"1", **kind)
    broker.publish(b"2", **kind)
    for _ in range(2):
        with pytest.raises(PeerError) as refusal:
            broker.publish(b"3", **kind)
        assert code_of(refusal) == "overflow"
        broker.restart()
    assert broker.describe()["held"] == 2


def test_reject_new_refuses_only_what_is_over_within_a_batch() -> None:
    broker = CoreBroker(overflow=RejectNew(2))
    results = broker.publish_many([b"1", b"2", b"3"])
    assert [isinstance(result, int) for result in results] == [True, True, False]


@every_kind
def test_overflow_counts_what_is_in_flight(kind: dict[str, Any]) -> None:
    broker = CoreBroker(overflow=RejectNew(1))
    broker.subscribe()
    first = broker.publish(b"1", **kind)
    with pytest.raises(PeerError) as refusal:
        broker.publish(b"2", **kind)
    assert code_of(refusal) == "overflow"
    if kind is not EVERY:  # that one stays for those who come later
        broker.processed(first)
        broker.publish(b"2", **kind)


def test_overflow_counts_neither_parked_messages_nor_drafts(rows: Rows) -> None:
    broker = CoreBroker(rows, overflow=RejectNew(1))
    broker.draft()
    broker.subscribe()
    broker.failed(broker.publish(b"parked"))
    broker.restart()
    broker.publish(b"1")
    assert (broker.describe()["parked"], broker.describe()["drafting"]) == (1, 1)
    with pytest.raises(PeerError):
        broker.publish(b"2")


def test_a_draft_that_is_set_counts_and_may_be_refused() -> None:
    broker = CoreBroker(overflow=RejectNew(1))
    draft = broker.draft()
    broker.publish(b"1")
    with pytest.raises(PeerError) as refusal:
        broker.set_draft(draft)
    assert code_of(refusal) == "overflow"
    assert broker.stats()["drafting"] == 1


@durable_kind
def test_drop_old_drops_the_oldest_waiting_message(rows: Rows, kind: dict[str, Any]) -> None:
    broker = CoreBroker(rows, overflow=DropOld(2))
    for payload in (b"1", b"2", b"3"):
        broker.publish(payload, receipt=True, **kind)
    assert broker.receipts[1].verdict == "dropped"
    broker.restart()
    broker.publish(b"4", receipt=True, **kind)
    assert broker.receipts[2].verdict == "dropped"
    broker.subscribe()
    assert broker.taken() == [b"3", b"4"]


@pytest.mark.parametrize("kind", [PUSH, ONE, EVERY], ids=["push", "one", "every"])
def test_drop_old_spares_what_is_in_flight_while_something_waits(kind: dict[str, Any]) -> None:
    broker = CoreBroker(overflow=DropOld(2))
    broker.subscribe(credit=1)
    first = broker.publish(b"1", **kind)
    broker.publish_many([b"2", b"3"], **kind)
    assert broker.processed(first) == {}
    assert broker.taken() == [b"1", b"3"]


@every_kind
def test_drop_old_drops_the_oldest_in_flight_when_none_waits(kind: dict[str, Any]) -> None:
    broker = CoreBroker(overflow=DropOld(2))
    broker.subscribe()
    for payload in (b"1", b"2", b"3"):
        broker.publish(payload, receipt=True, **kind)
    assert {number: receipt.verdict for number, receipt in broker.receipts.items()} == {
        1: "dropped"
    }
    assert broker.describe()["held"] == 2
    assert broker.taken() == [b"1", b"2", b"3"]


def test_what_was_dropped_in_flight_gives_its_credit_back() -> None:
    broker = CoreBroker(overflow=DropOld(1))
    broker.subscribe(credit=1)
    for payload in (b"1", b"2", b"3"):
        broker.publish(payload)
    assert broker.taken() == [b"1", b"2", b"3"]


def test_drop_old_goes_by_age_across_kinds_of_messages() -> None:
    broker = CoreBroker(overflow=DropOld(3))
    broker.subscribe(credit=0)
    for payload, kind in [(b"1", EVERY), (b"2", PUSH), (b"3", ONE), (b"4", ONLINE)]:
        broker.publish(payload, receipt=True, **kind)
    assert list(broker.receipts) == [1]
    for number in (2, 3, 4):
        broker.publish(b"more", receipt=True)
        assert list(broker.receipts)[-1] == number


@durable_kind
def test_drop_old_finds_what_came_back_to_waiting(kind: dict[str, Any]) -> None:
    broker = CoreBroker(overflow=DropOld(2))
    broker.subscribe(name="durable")
    for payload in (b"1", b"2", b"3"):  # the third passes over both that are in flight
        broker.publish(payload, receipt=True, **kind)
    broker.detach()
    broker.publish(b"4", receipt=True, **kind)
    assert list(broker.receipts) == [1, 2]


def test_drop_old_finds_what_every_receiver_has_done() -> None:
    broker = CoreBroker(overflow=DropOld(1))
    broker.subscribe()
    for _ in range(3):
        sequence = broker.publish(**EVERY)
        broker.describe()
        broker.processed(sequence)
    assert broker.describe()["held"] == 1


@durable_kind
def test_drop_old_finds_what_pauses_behind_an_ordering_key(kind: dict[str, Any]) -> None:
    broker = CoreBroker(
        overflow=DropOld(1), max_attempts=2, retry_backoff=BackoffMs(60_000, 60_000)
    )
    broker.subscribe(name="durable")
    first = broker.publish(b"1", ordering_key="k", **kind)
    broker.describe()  # walks over the message while it is out
    broker.failed(first)
    broker.publish(b"2", **kind)
    assert broker.taken() == [b"1", b"2"]
    assert broker.describe()["held"] == 1


def test_a_parked_delivery_outlives_the_drop_of_its_message() -> None:
    broker = CoreBroker(overflow=DropOld(1))
    broker.subscribe(name="durable")
    first = broker.publish(b"1", receipt=True, **EVERY)
    broker.failed(first)
    broker.publish(b"2", **EVERY)
    assert broker.receipts[1].verdict == "dropped"
    assert [parked["sequence"] for parked in broker.parked()] == [first]
    broker.take()
    broker.renew(first)
    assert broker.taken() == [b"1"]


def refusal_of(asked: Callable[[], object]) -> str:
    with pytest.raises(PeerError) as refusal:
        asked()
    return code_of(refusal)


def renewed_after_its_time(
    broker: CoreBroker, expired_first: bool = True, credit: int = 100, **fields: Any
) -> int:
    """A message for every receiver that is over but for one delivery, which is renewed."""
    broker.subscribe(name="durable", credit=1)
    fields.setdefault("max_receivers", None)
    sequence = broker.publish(b"1", expires_ms=broker.now_ms + 1_000, **fields)
    broker.failed(sequence)
    if expired_first:
        broker.advance(1_000)
        assert broker.describe()["held"] == 0
    if not credit:
        broker.detach()
        broker.subscribe(name="durable", credit=0)
    broker.take()
    broker.renew(sequence)
    broker.advance(1_000)
    return sequence


@across_restarts
@pytest.mark.parametrize("expired_first", [True, False], ids=["expired first", "renewed first"])
@pytest.mark.parametrize("wanted", [None, 2])
@pytest.mark.parametrize("credit", [0, 1], ids=["waiting", "sent"])
def test_what_is_renewed_of_an_expired_message_is_held(
    restarts: bool, expired_first: bool, wanted: int | None, credit: int
) -> None:
    broker = CoreBroker(overflow=RejectNew(1))
    sequence = renewed_after_its_time(broker, expired_first, credit, max_receivers=wanted)
    come_back(broker, restarts, name="durable", credit=credit)
    described = broker.describe()
    assert (described["held"], described["waiting"], described["sent"]) == (1, 1 - credit, credit)
    assert refusal_of(lambda: broker.publish(b"2")) == "overflow"
    broker.grant(1)
    broker.processed(sequence)
    assert broker.describe()["held"] == 0
    broker.publish(b"2")


def fails_again(broker: CoreBroker, sequence: int) -> None:
    broker.failed(sequence)


def moves_on(broker: CoreBroker, sequence: int) -> None:
    broker.seek("durable", sequence=sequence + 10)


def is_a_dead_letter(broker: CoreBroker, sequence: int) -> None:
    broker.configure(dead_letter="dead")
    broker.failed(sequence)


@across_restarts
@pytest.mark.parametrize(
    "ends",
    [
        fails_again,
        moves_on,
        is_a_dead_letter,
        lambda broker, sequence: broker.abandon(sequence),
        lambda broker, _: broker.delete_receiver("durable"),
    ],
    ids=["fails again", "moves on", "dead letter", "abandoned", "receiver deleted"],
)
def test_what_was_renewed_of_an_expired_message_and_is_over_is_held_no_more(
    restarts: bool, ends: Callable[[CoreBroker, int], None]
) -> None:
    broker = CoreBroker()
    sequence = renewed_after_its_time(broker)
    ends(broker, sequence)
    come_back(broker, restarts, name="durable")
    assert broker.describe()["held"] == 0
    assert len(broker.parked()) == (ends is fails_again)
    if not broker.parked():
        assert refusal_of(lambda: broker.fetch(sequence)) == "no_such_message"


@pytest.mark.parametrize("expired_first", [True, False], ids=["expired first", "renewed first"])
@pytest.mark.parametrize("credit", [0, 1], ids=["waiting", "sent"])
def test_what_is_renewed_of_an_expired_message_is_dropped_for_a_new_one(
    expired_first: bool, credit: int
) -> None:
    broker = CoreBroker(overflow=DropOld(1))
    broker.subscribe(b"other", name="other")
    sequence = renewed_after_its_time(broker, expired_first, credit)
    broker.publish(b"2", **EVERY)
    broker.grant(1)
    assert broker.taken()[-1:] == [b"2"]
    assert broker.describe()["held"] == 1
    assert refusal_of(lambda: broker.fetch(sequence)) == "no_such_message"


def test_a_renewed_message_that_is_dropped_stays_for_those_who_have_it_parked() -> None:
    broker = CoreBroker(overflow=DropOld(1))
    for name in ("a", "b"):
        broker.subscribe(name.encode(), name=name)
    sequence = broker.publish(b"1", **EVERY)
    for name in ("a", "b"):
        broker.failed(sequence, node=name.encode())
    broker.renew(sequence, "a")
    broker.publish(b"2", **EVERY)
    assert [entry["receiver"] for entry in broker.parked()] == ["b"]
    assert broker.describe()["held"] == 1
    assert broker.processed(sequence, node=b"a") == {}
    broker.renew(sequence, "b")
    assert broker.describe()["held"] == 2


def test_the_overflow_size_can_be_changed_while_running() -> None:
    broker = CoreBroker(overflow=RejectNew(1))
    broker.publish(b"1")
    broker.configure(overflow=RejectNew(2))
    broker.publish(b"2")
    broker.configure(overflow=DropOld(1))
    broker.publish(b"3")
    assert broker.describe()["held"] == 1
    broker.configure(overflow=None)
    broker.publish_many([b"4"] * 5)
    assert broker.describe()["held"] == 6


# --- concurrency ------------------------------------------------------------------------------


@every_kind
def test_no_more_deliveries_are_in_flight_than_concurrency_allows(
    rows: Rows, kind: dict[str, Any]
) -> None:
    broker = CoreBroker(rows, concurrency=2)
    broker.subscribe()
    broker.publish_many([b"1", b"2", b"3", b"4"], **kind)
    held = broker.take()
    assert [delivered.payload for delivered in held] == [b"1", b"2"]
    broker.processed(held[0].sequence)
    assert broker.taken() == [b"3"]


def test_concurrency_counts_across_receivers_and_kinds() -> None:
    broker = CoreBroker(concurrency=3)
    broker.subscribe(b"a")
    broker.subscribe(b"b")
    for kind in KINDS.values():
        broker.publish(b"x", **kind)
    sent = len(broker.take(b"a")) + len(broker.take(b"b"))
    assert sent == broker.describe()["sent"] == 3


ENDS = {
    "processed": lambda broker, sequence: broker.processed(sequence),
    "failed": lambda broker, sequence: broker.failed(sequence),
    "timeout": lambda broker, sequence: broker.advance(60_000),
    "abandoned": lambda broker, sequence: broker.abandon(sequence),
    "given up": lambda broker, sequence: broker.extend(0, sequence),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
@durable_kind
def test_a_place_of_concurrency_is_freed_however_a_delivery_ends(
    kind: dict[str, Any], end: Any
) -> None:
    broker = CoreBroker(concurrency=1)
    broker.subscribe()
    first = broker.publish(b"1", **kind)
    broker.publish(b"2", **kind)
    broker.take()
    end(broker, first)
    assert broker.taken() == [b"2"]


def test_a_lost_connection_frees_its_places_of_concurrency() -> None:
    broker = CoreBroker(concurrency=1)
    broker.subscribe(b"a")
    broker.publish_many([b"1", b"2"])
    broker.subscribe(b"b")
    broker.detach(b"a")
    assert broker.describe()["sent"] == len(broker.take(b"b")) == 1


def test_a_raised_concurrency_sends_more_at_once() -> None:
    broker = CoreBroker(concurrency=1)
    broker.subscribe()
    broker.publish_many([b"1", b"2", b"3"])
    broker.take()
    broker.configure(concurrency=2)
    assert broker.taken() == [b"2"]
    broker.configure(concurrency=None)
    assert broker.taken() == [b"3"]


def test_a_lowered_concurrency_recalls_nothing_and_holds_from_then_on() -> None:
    broker = CoreBroker()
    broker.subscribe()
    broker.publish_many([b"1", b"2"])
    held = [delivered.sequence for delivered in broker.take()]
    broker.configure(concurrency=1)
    assert broker.describe()["sent"] == 2
    broker.publish(b"3")
    broker.processed(held[0])
    assert broker.taken() == []
    broker.processed(held[1])
    assert broker.taken() == [b"3"]


def test_what_waits_for_concurrency_is_not_forgotten_when_audiences_change() -> None:
    broker = CoreBroker(concurrency=1)
    broker.subscribe(b"a", "a")
    broker.subscribe(b"b", "b")
    broker.publish_many([b"1", b"2", b"3"], "a")
    broker.publish(b"4", "b")
    broker.subscribe(b"new", "c", credit=0)
    seen: list[bytes] = []
    for _ in range(5):
        for node in (b"a", b"b"):
            for delivered in broker.take(node):
                seen.append(delivered.payload)
                broker.processed(delivered.sequence, node=node)
    assert sorted(seen) == [b"1", b"2", b"3", b"4"]


def test_concurrency_holds_for_orders_after_a_restart(rows: Rows) -> None:
    broker = CoreBroker(rows, concurrency=1)
    first, second = broker.make(b"1"), broker.make(b"2")
    assert broker.ordered(broker.order()) == first
    broker.restart()
    waiting = broker.order()
    assert broker.ordered(waiting) is None
    broker.abandon(first)
    assert broker.ordered(waiting) == second


# --- unique -----------------------------------------------------------------------------------


def assert_duplicate(broker: CoreBroker, payload: bytes = b"same", **kind: Any) -> None:
    with pytest.raises(PeerError) as refusal:
        broker.publish(payload, **kind)
    assert code_of(refusal) == "duplicate"


@every_kind
def test_a_unique_topic_refuses_the_payload_of_a_live_message(
    rows: Rows, kind: dict[str, Any]
) -> None:
    broker = CoreBroker(rows, unique=True)
    broker.subscribe()
    sequence = broker.publish(b"same", **kind)
    for other in KINDS.values():
        assert_duplicate(broker, **other)
    broker.publish(b"different", **kind)
    broker.received(sequence)
    assert_duplicate(broker, **kind)


def test_a_payload_is_taken_while_its_message_waits_is_out_or_is_parked(rows: Rows) -> None:
    broker = CoreBroker(rows, unique=True)
    sequence = broker.publish(b"same")
    assert_duplicate(broker)  # waiting
    broker.subscribe()
    assert_duplicate(broker)  # sent
    broker.failed(sequence)
    assert_duplicate(broker)  # parked
    broker.restart()
    assert_duplicate(broker)
    broker.renew(sequence)
    assert_duplicate(broker)  # waiting again


def test_drafts_have_no_payload_to_be_equal_to() -> None:
    broker = CoreBroker(unique=True)
    first, second = broker.draft(), broker.draft()
    broker.publish(b"")
    broker.set_draft(first, b"same")
    with pytest.raises(PeerError) as refusal:
        broker.set_draft(second, b"same")
    assert code_of(refusal) == "duplicate"
    assert broker.stats()["drafting"] == 1
    broker.set_draft(second, b"other")


def test_a_replaced_payload_is_free_and_the_new_one_is_taken(rows: Rows) -> None:
    broker = CoreBroker(rows, unique=True)
    sequence = broker.make(b"old")
    broker.set_draft(sequence, b"old")  # equal to itself
    broker.set_draft(sequence, b"new")
    assert_duplicate(broker, b"new")
    other = broker.publish(b"old")
    with pytest.raises(PeerError) as refusal:
        broker.set_draft(sequence, b"old")
    assert code_of(refusal) == "duplicate"
    assert broker.fetch(sequence)["payload"] == b"new"
    broker.abandon(other)
    broker.set_draft(sequence, b"old")


@every_kind
def test_unique_switched_on_later_sees_what_is_there(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    broker.subscribe()
    broker.publish(b"same", **kind)
    broker.publish(b"same", **kind)
    broker.configure(unique=True)
    assert_duplicate(broker, **kind)
    assert broker.describe()["held"] == 2
    broker.configure(unique=False)
    broker.publish(b"same", **kind)


def test_unique_switched_on_later_sees_what_is_parked() -> None:
    broker = CoreBroker()
    broker.subscribe()
    broker.failed(broker.publish(b"same"))
    broker.configure(unique=True)
    assert_duplicate(broker)


FREED = {
    "processed": lambda broker, sequence: broker.processed(sequence),
    "abandoned": lambda broker, sequence: broker.abandon(sequence),
    "expired": lambda broker, sequence: broker.advance(7 * DAY_MS),
    "cleared": lambda broker, sequence: broker.clear(),
}


@pytest.mark.parametrize("end", FREED.values(), ids=FREED.keys())
@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarted"])
def test_a_payload_is_free_once_its_message_is_over(end: Any, restarts: bool) -> None:
    broker = CoreBroker(unique=True)
    broker.subscribe(name="durable")
    sequence = broker.publish(b"same")
    if restarts:
        broker.restart()
        broker.subscribe(name="durable")
    end(broker, sequence)
    broker.publish(b"same")


@pytest.mark.parametrize("kind", [PUSH, ONLINE], ids=["push", "online"])
def test_a_payload_of_a_memory_message_is_free_once_it_is_over(kind: dict[str, Any]) -> None:
    broker = CoreBroker(unique=True)
    broker.subscribe()
    for end in (broker.processed, broker.failed, broker.abandon):
        end(broker.publish(b"same", **kind))


def test_the_payload_of_an_abandoned_parked_message_is_free() -> None:
    broker = CoreBroker(unique=True)
    broker.subscribe()
    for end in (broker.abandon, lambda _: broker.abandon_all()):
        sequence = broker.publish(b"same")
        broker.failed(sequence)
        end(sequence)
    broker.publish(b"same")


def test_a_dropped_message_frees_its_payload_for_the_next() -> None:
    broker = CoreBroker(unique=True, overflow=DropOld(1))
    broker.publish(b"same")
    broker.publish(b"other")
    broker.publish(b"same")


def test_a_message_that_never_expires_does_not_keep_others_from_it(rows: Rows) -> None:
    broker = CoreBroker(rows, unique=True)
    broker.publish(b"for ever", expires_ms=NEVER_MS)
    broker.publish(b"same", receipt=True)
    broker.advance(7 * DAY_MS)
    assert broker.receipts[2].verdict == "expired"
    broker.publish(b"same")
    assert_duplicate(broker, b"for ever")


# --- settings ---------------------------------------------------------------------------------

OTHER: dict[str, Any] = {
    "expect": "received",
    "max_receivers": 2,
    "blocking": True,
    "overflow": DropOld(7),
    "concurrency": 3,
    "unique": True,
    "draft_timeout_ms": 1,
    "sent_timeout_ms": 2,
    "received_timeout_ms": 3,
    "max_attempts": 4,
    "max_deliveries": 5,
    "retry_backoff": BackoffMs(1, 2),
    "dead_letter": "dead",
    "requeue": "front",
    "default_ttl_ms": 6,
    "max_payload": 7,
    "history": "full",
    "history_ttl_ms": 8,
    "receipt_ttl_ms": 9,
    "dedicated": True,
}


def test_the_table_of_settings_here_is_complete() -> None:
    assert list(OTHER) == [field.name for field in fields(TopicSettings)]


@pytest.mark.parametrize("name", OTHER)
def test_a_setting_can_be_given_at_creation_changed_read_back_and_inherited_again(
    name: str,
) -> None:
    broker = CoreBroker()
    default = getattr(broker.defaults, name)
    broker.create_topic("orders", **{name: OTHER[name]})
    for _ in range(2):
        described = broker.describe()
        assert getattr(described["settings"], name) == OTHER[name]
        assert described["overrides"] == [name]
        broker.restart()
    broker.inherit(name)
    broker.restart()
    assert broker.describe()["settings"] == broker.defaults
    broker.configure(**{name: OTHER[name]})
    broker.restart()
    assert getattr(broker.describe()["settings"], name) == OTHER[name]
    broker.configure(**{name: default})  # a choice of its own that equals the default
    assert broker.describe()["overrides"] == [name]


def test_every_setting_together_survives_a_restart(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.create_topic("orders", **OTHER)
    broker.restart()
    assert broker.describe()["settings"] == TopicSettings(**OTHER)


@pytest.mark.parametrize("name", OTHER)
def test_a_bad_value_is_refused_with_the_setting_named_and_nothing_changed(name: str) -> None:
    broker = CoreBroker()
    broker.publish()
    with pytest.raises(PeerError, match=name) as refusal:
        broker.configure(max_payload=5, **{name: object()} if name != "max_payload" else {})
        broker.configure(max_payload=-1)
    assert code_of(refusal) == "bad_request"
    if name != "max_payload":
        assert broker.describe()["settings"] == broker.defaults


def test_an_unknown_setting_is_refused_by_name() -> None:
    broker = CoreBroker()
    colour: dict[str, Any] = {"colour": "red"}
    uses: list[Callable[[], None]] = [
        lambda: broker.create_topic("orders", **colour),
        lambda: broker.configure(**colour),
        lambda: broker.inherit("colour"),
    ]
    for use in uses:
        with pytest.raises(PeerError, match="colour") as refusal:
            use()
        assert code_of(refusal) == "bad_request"


def test_a_refused_creation_makes_nothing() -> None:
    broker = CoreBroker()
    for changes in ({"colour": "red"}, {"max_attempts": 0}, {"dead_letter": "orders"}):
        with pytest.raises(PeerError):
            broker.create_topic("orders", **changes)
    assert "orders" not in broker.shard.topics
    broker.create_topic("orders")


def test_a_topic_that_exists_is_not_created_again() -> None:
    broker = CoreBroker()
    broker.create_topic("orders", max_attempts=3)
    with pytest.raises(PeerError) as refusal:
        broker.create_topic("orders")
    assert code_of(refusal) == "topic_exists"
    assert broker.describe()["settings"].max_attempts == 3


def test_a_topic_follows_the_defaults_in_what_it_did_not_choose(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.create_topic("orders", max_attempts=3)
    broker.defaults = TopicSettings(max_attempts=9, concurrency=5)
    broker.restart()
    settings = broker.describe()["settings"]
    assert (settings.max_attempts, settings.concurrency) == (3, 5)


def test_changed_timeouts_hold_for_what_is_out_already() -> None:
    broker = CoreBroker()
    broker.subscribe()
    broker.publish(b"1")
    broker.take()
    broker.advance(1_000)
    broker.configure(sent_timeout_ms=1_500)
    broker.advance(499)
    assert broker.taken() == []
    broker.advance(1)
    assert broker.taken() == [b"1"]


def test_the_largest_payload_is_inclusive_and_can_be_changed() -> None:
    broker = CoreBroker(max_payload=3)
    broker.publish(b"123")
    with pytest.raises(PeerError) as refusal:
        broker.publish(b"1234")
    assert code_of(refusal) == "too_large"
    broker.configure(max_payload=4)
    broker.publish(b"1234")


# --- making topics ----------------------------------------------------------------------------

MAKES = {
    "publish": lambda broker: broker.publish(producer=broker.request().to_bytes(16, "big")),
    "subscribe": lambda broker: broker.subscribe(),
    "create receiver": lambda broker: broker.create_receiver("r"),
    "draft": lambda broker: broker.draft(),
    "order": lambda broker: broker.order(),
    "configure": lambda broker: broker.configure(max_attempts=2),
}
NEEDS = {
    "describe": lambda broker: broker.describe(),
    "stats": lambda broker: broker.stats(),
    "clear": lambda broker: broker.clear(),
    "delete": lambda broker: broker.delete_topic(),
    "receivers": lambda broker: broker.receivers(),
    "pull": lambda broker: broker.ask(ask.Pull(b"n", broker.request(), 1, 1)),
}


@pytest.mark.parametrize("use", MAKES.values(), ids=MAKES.keys())
def test_a_topic_is_made_by_its_first_use(rows: Rows, use: Any) -> None:
    broker = CoreBroker(rows)
    use(broker)
    broker.restart()
    assert broker.describe()["settings"] is not None


@pytest.mark.parametrize("use", MAKES.values(), ids=MAKES.keys())
def test_without_auto_create_a_topic_must_exist(use: Any) -> None:
    broker = CoreBroker()
    broker.shard = Shard(broker.rows, broker.defaults, auto_create=False)
    if use is MAKES["order"]:
        assert broker.ordered(broker.order()) == "no_such_topic"
    else:
        with pytest.raises(PeerError) as refusal:
            use(broker)
        assert code_of(refusal) == "no_such_topic"
    broker.create_topic("orders")
    use(broker)


@pytest.mark.parametrize("use", NEEDS.values(), ids=NEEDS.keys())
def test_asking_about_a_topic_does_not_make_it(use: Any) -> None:
    broker = CoreBroker()
    with pytest.raises(PeerError) as refusal:
        use(broker)
    assert code_of(refusal) == "no_such_topic"
    assert broker.shard.topics == {}


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x00b", "a\nb"])
def test_a_bad_name_makes_no_topic(name: str) -> None:
    broker = CoreBroker()
    with pytest.raises(PeerError) as refusal:
        broker.do(ask.CreateTopic(b"admin", 1))
        broker.shard.handle(name, ask.CreateTopic(b"admin", 2), broker.now_ms)
        broker.end_turn()
        code = broker.answer(2, b"admin")
        assert isinstance(code, str)
        raise PeerError(code)
    assert code_of(refusal) == "bad_request"


def test_topics_do_not_see_one_another(rows: Rows) -> None:
    broker = CoreBroker(rows, unique=True)
    broker.publish(b"same")
    with broker.on("other"):
        broker.publish_many([b"same"], producer=b"another-producer")
        broker.subscribe(b"there")
        assert broker.taken(b"there") == [b"same"]
        broker.clear()
    broker.restart()
    broker.subscribe()
    assert broker.taken() == [b"same"]


# --- describe ---------------------------------------------------------------------------------


def test_describe_counts_messages_by_status(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.draft()
    broker.subscribe(name="durable", credit=4)
    sequences = [broker.publish(bytes([number])) for number in range(6)]
    broker.failed(sequences[0])
    broker.processed(sequences[1])
    broker.received(sequences[2])
    described = broker.describe()
    counts = ("drafting", "waiting", "sent", "received", "parked", "completed", "held")
    assert [described[name] for name in counts] == [1, 0, 3, 1, 1, 1, 4]
    broker.restart()
    described = broker.describe()
    assert [described[name] for name in counts] == [1, 4, 0, 0, 1, 1, 4]


def test_describe_counts_receivers_and_endpoints() -> None:
    broker = CoreBroker()
    broker.subscribe(b"a")
    broker.subscribe(b"b", group="crew")
    broker.subscribe(b"c", group="crew")
    broker.create_receiver("lonely")
    described = broker.describe()
    assert (described["receivers"], described["endpoints"]) == (3, 3)


@every_kind
def test_describe_tells_the_age_of_the_oldest_waiting_message(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0)
    assert broker.describe()["oldest_waiting_ms"] is None
    first = broker.publish(b"1", **kind)
    broker.advance(1_000)
    broker.publish(b"2", **kind)
    broker.advance(500)
    assert broker.describe()["oldest_waiting_ms"] == 1_500
    broker.grant(1)
    assert broker.describe()["oldest_waiting_ms"] == 500
    broker.abandon(first)
    assert broker.describe()["oldest_waiting_ms"] in (500, None)


def test_describe_tells_the_age_of_what_waits_after_a_restart(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.subscribe()
    broker.publish()
    broker.advance(700)
    assert broker.describe()["oldest_waiting_ms"] is None
    broker.restart()
    assert broker.describe()["oldest_waiting_ms"] == 700


def test_describe_counts_what_has_passed_through() -> None:
    broker = CoreBroker(max_payload=1)
    broker.subscribe()
    sequences = [broker.publish() for _ in range(4)]
    with pytest.raises(PeerError):
        broker.publish(b"too large")
    broker.processed(sequences[0])
    broker.failed(sequences[1])
    broker.advance(7 * DAY_MS)
    totals = broker.describe()["totals"]
    assert (totals["published"], totals["processed"], totals["failed"]) == (4, 1, 1)
    assert totals["expired"] == 2
    assert totals["delivered"] >= 4


def test_describe_tells_rates_per_second() -> None:
    broker = CoreBroker()
    broker.subscribe()
    for _ in range(10):
        for _ in range(4):
            broker.processed(broker.publish())
        broker.advance(1_000)
    rates = broker.describe()["rates"]
    assert rates.keys() == broker.describe()["totals"].keys()
    assert rates["published"] == pytest.approx(4, rel=0.2)
    assert rates["processed"] == pytest.approx(4, rel=0.2)
    assert rates["failed"] == 0


# --- clear ------------------------------------------------------------------------------------


def fill(broker: CoreBroker) -> dict[str, int]:
    """A topic with a message in every state and of every kind."""
    broker.subscribe(name="durable", credit=5)
    made = {
        name: broker.publish(name.encode(), receipt=True, **kind) for name, kind in KINDS.items()
    }
    made["parked"] = broker.publish(b"parked", receipt=True)
    broker.failed(made["parked"])
    made["completed"] = broker.publish(b"completed")
    broker.processed(made["completed"])
    made["draft"] = broker.draft()
    made["waiting"] = broker.make(b"waiting")
    made["delayed"] = broker.publish(b"delayed", deliver_ms=broker.now_ms + 1_000, receipt=True)
    return made


def test_clear_drops_messages_and_counts(rows: Rows) -> None:
    broker = CoreBroker(rows)
    made = fill(broker)
    broker.clear()
    broker.take()
    for _ in range(2):
        described = broker.describe()
        counts = ("drafting", "waiting", "sent", "received", "parked", "completed", "held")
        assert [described[name] for name in counts] == [0] * 7
        assert broker.stats()["completed"] == 0
        assert broker.parked() == []
        for sequence in made.values():
            with pytest.raises(PeerError) as refusal:
                broker.fetch(sequence)
            assert code_of(refusal) == "no_such_message"
        broker.advance(10_000)
        broker.subscribe(b"late")
        assert broker.taken() == broker.taken(b"late") == []
        broker.restart()


def test_clear_tells_publishers_that_their_messages_were_dropped(rows: Rows) -> None:
    broker = CoreBroker(rows)
    fill(broker)
    broker.clear()
    verdicts = {number: receipt.verdict for number, receipt in broker.receipts.items()}
    assert verdicts == {
        1: "dropped",
        2: "dropped",
        3: "dropped",
        4: "dropped",
        5: "failed",
        7: "dropped",
    }
    broker.restart()
    assert broker.await_receipts(3)[3][0] == "dropped"


def test_clear_wakes_every_order_that_waits() -> None:
    broker = CoreBroker()
    waiting = [broker.order(), broker.order(5_000), broker.order(node=b"other")]
    broker.clear()
    assert broker.ordered(waiting[0]) == broker.ordered(waiting[1]) == "topic_gone"
    assert broker.ordered(waiting[2], b"other") == "topic_gone"
    broker.make()
    assert broker.stats()["waiting"] == 1


def test_clear_keeps_the_configuration_and_the_receivers(rows: Rows) -> None:
    broker = CoreBroker(rows)
    fill(broker)
    broker.configure(max_attempts=4)
    broker.clear()
    broker.take()
    broker.publish(b"after", **EVERY)
    assert broker.taken() == [b"after"]
    broker.restart()
    assert broker.describe()["settings"].max_attempts == 4
    assert [receiver["name"] for receiver in broker.receivers()] == ["durable"]
    broker.subscribe(name="durable")
    assert broker.taken() == [b"after"]


def test_clear_gives_the_credit_of_what_was_out_back() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=1)
    broker.publish(b"1")
    broker.publish(b"2", **EVERY)
    broker.clear()
    broker.publish_many([b"3", b"4"])
    assert broker.taken() == [b"1", b"3"]


def test_after_clear_no_sequence_is_given_twice(rows: Rows) -> None:
    broker = CoreBroker(rows)
    before = max(fill(broker).values())
    broker.clear()
    broker.restart()
    assert broker.publish() > before


def test_a_report_on_what_was_cleared_changes_nothing() -> None:
    broker = CoreBroker()
    broker.subscribe()
    for kind in KINDS.values():
        sequence = broker.publish(b"1", **kind)
        broker.clear()
        assert broker.processed(sequence) == {}
    assert broker.describe()["completed"] == 0


# --- delete -----------------------------------------------------------------------------------


def test_deleting_tells_publishers_and_everybody_who_waits(rows: Rows) -> None:
    broker = CoreBroker(rows)
    fill(broker)
    broker.subscribe(b"puller", "nothing", credit=0)
    pull = broker.pull(1, 60_000, node=b"puller")
    order = broker.order(node=b"worker")
    assert broker.ordered(order) is None
    broker.delete_topic()
    assert {receipt.verdict for number, receipt in broker.receipts.items() if number != 5} == {
        "dropped"
    }
    assert broker.answer(pull, b"puller") == "topic_gone"
    assert broker.ordered(order) == "topic_gone"
    assert {(gone.node, gone.code) for gone in broker.gone} == {
        (b"consumer", "topic_gone"),
        (b"puller", "topic_gone"),
    }


def test_a_deleted_topic_is_gone(rows: Rows) -> None:
    broker = CoreBroker(rows)
    fill(broker)
    broker.delete_topic()
    for _ in range(2):
        with pytest.raises(PeerError) as refusal:
            broker.describe()
        assert code_of(refusal) == "no_such_topic"
        broker.advance(10_000)
        broker.restart()


def test_deleting_leaves_no_row_behind(rows: Rows) -> None:
    broker = CoreBroker(rows, history="full", unique=True, max_attempts=2)
    fill(broker)
    number = broker.actor.keys.number
    broker.delete_topic()
    assert list(rows.scan(topic_prefix(number), after(topic_prefix(number)))) == []
    assert [key for key, _ in rows.scan(b"\x00", b"\x02") if key.startswith(STORE_TOPIC)] == []


def test_deleting_leaves_nothing_on_disk_after_compaction(tmp_path: Path) -> None:
    secret = b"a payload that nobody may find again"
    with Store(tmp_path / "store") as store:
        broker = CoreBroker(store, history="full")
        broker.subscribe(name="durable", credit=1)
        for kind in (ONE, EVERY):
            for number in range(50):
                broker.publish(secret + bytes([number]), **kind)
        store.flush()
        assert any(secret in path.read_bytes() for path in store.folder.iterdir())
        broker.delete_topic()
        store.compact()
        assert {key for key, _ in store.scan(b"\x00n", b"\x02")} == {STORE_NEXT}
        store.close()
        for path in store.folder.iterdir():
            assert secret[:20] not in path.read_bytes(), path.name


def test_a_topic_made_again_is_empty_and_gives_no_sequence_twice(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.configure(max_attempts=4)
    before = max(fill(broker).values())
    broker.delete_topic()
    broker.restart()
    broker.take()
    broker.subscribe(name="durable")
    assert broker.publish(b"new", producer=b"another-producer") > before
    assert broker.taken() == [b"new"]
    assert broker.describe()["settings"] == broker.defaults
    assert [receiver["name"] for receiver in broker.receivers()] == ["durable"]


def test_a_topic_made_again_in_the_same_turn_is_new(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.publish(b"old")
    broker.shard.handle("orders", ask.DeleteTopic(b"admin", 901), broker.now_ms)
    broker.shard.handle("orders", ask.CreateTopic(b"admin", 902), broker.now_ms)
    broker.end_turn()
    broker.restart()
    broker.subscribe()
    assert broker.taken() == []


# --- history ----------------------------------------------------------------------------------


def history(broker: CoreBroker) -> list[Any]:
    """Rows for the Spark jobs: id, header, payload, accepted, resolved, verdict, ladder."""
    keys = broker.actor.keys
    return [unpack(row, 7) for _, row in broker.rows.scan(*keys.range_of("h"))]


def climb(broker: CoreBroker, **kind: Any) -> list[Any]:
    """One message up the whole ladder, with a second between its steps; its history."""
    broker.subscribe(name="reader", credit=0)
    sequence = broker.publish(b"payload", **kind)
    broker.advance(1_000)
    broker.grant(1)
    broker.advance(1_000)
    broker.received(sequence)
    broker.advance(1_000)
    broker.processed(sequence)
    return history(broker)


def test_without_history_nothing_of_a_resolved_message_is_kept() -> None:
    assert climb(CoreBroker()) == []


@pytest.mark.parametrize("kind", [PUSH, ONLINE, ONE], ids=["push", "online", "one"])
def test_history_keeps_every_timestamp_of_the_ladder(rows: Rows, kind: dict[str, Any]) -> None:
    broker = CoreBroker(rows, history="headers")
    start = broker.now_ms
    ((_, _, payload, accepted_ms, resolved_ms, verdict, ladder),) = climb(broker, **kind)
    assert (payload, verdict) == (None, "ok")
    assert (accepted_ms - start, resolved_ms - start) == (0, 3_000)
    status, attempts, *times = ladder["reader"]
    assert (status, attempts) == ("processed", 1)
    assert [time_ms - start for time_ms in times] == [1_000, 2_000, 3_000]


def test_history_of_a_message_for_several_has_the_ladder_of_each() -> None:
    broker = CoreBroker(history="headers")
    broker.subscribe(b"other", name="other")
    start = broker.now_ms
    assert climb(broker, max_receivers=2) == []
    (sequence,) = [delivered.sequence for delivered in broker.take(b"other")]
    broker.processed(sequence, node=b"other")
    ((*_, verdict, ladder),) = history(broker)
    assert verdict == "ok"
    assert [time_ms - start for time_ms in ladder["reader"][2:]] == [1_000, 2_000, 3_000]
    assert [time_ms - start for time_ms in ladder["other"][2:]] == [0, -start, 3_000]


def test_full_history_keeps_the_payload_too() -> None:
    ((_, encoded, payload, *_),) = climb(CoreBroker(history="full"))
    assert payload == b"payload"
    assert encoded


@durable_kind
def test_history_tells_of_failures(kind: dict[str, Any]) -> None:
    broker = CoreBroker(history="headers")
    broker.subscribe(name="reader")
    broker.failed(broker.publish(**kind))
    if kind is EVERY:
        broker.advance(7 * DAY_MS)
    ((*_, verdict, ladder),) = history(broker)
    assert (verdict, ladder["reader"][0]) == ("failed", "failed")


@durable_kind
def test_history_tells_of_what_expired(kind: dict[str, Any]) -> None:
    broker = CoreBroker(history="headers")
    broker.publish(**kind)
    broker.advance(7 * DAY_MS)
    ((*_, verdict, ladder),) = history(broker)
    assert (verdict, ladder) == ("expired", {})


def test_a_second_attempt_has_its_own_times_in_history() -> None:
    broker = CoreBroker(history="headers", max_attempts=2)
    broker.subscribe(name="reader")
    sequence = broker.publish()
    broker.advance(1_000)
    broker.received(sequence)
    broker.advance(1_000)
    broker.failed(sequence)  # and goes out again at once
    again_ms = broker.now_ms
    broker.advance(1_000)
    broker.processed(sequence)
    ((*_, ladder),) = history(broker)
    assert ladder["reader"] == ("processed", 2, again_ms, 0, again_ms + 1_000)


def test_history_keeps_the_times_of_an_order_over_a_restart(rows: Rows) -> None:
    broker = CoreBroker(rows, history="headers")
    sequence = broker.make()
    broker.order()
    broker.advance(1_000)
    broker.fetch(sequence)
    active_ms = broker.now_ms
    broker.restart()
    broker.advance(1_000)
    broker.complete(sequence)
    ((*_, ladder),) = history(broker)
    (ladder_of_work,) = ladder.values()
    assert ladder_of_work[3:] == (active_ms, active_ms + 1_000)


def test_history_goes_after_its_time(rows: Rows) -> None:
    broker = CoreBroker(rows, history="headers", history_ttl_ms=10 * 60_000)
    climb(broker)
    broker.advance(9 * 60_000)
    assert len(history(broker)) == 1
    broker.restart()
    broker.advance(3 * 60_000)
    assert history(broker) == []


def test_what_a_topic_keeps_in_memory_is_bounded_by_its_windows() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0)
    for _ in range(5):
        broker.publish_many([b"x"] * 1_000)
    assert len(broker.actor.pool.live) <= limits.WINDOW_MAX


def test_times_that_hold_no_more_are_not_kept() -> None:
    # With nothing out the next thing due is an expiry in days, with something out its deadline.
    broker = CoreBroker()
    broker.subscribe()
    for number in range(OUTDATED_MAX):
        incoming = (number.to_bytes(16, "big"), header().encoded, b"x")
        broker.do(ask.Publish(b"p", 0, (incoming,)))
        (delivered,) = broker.inbox.popitem()[1]
        broker.do(ask.Report(b"consumer", 0, 1, Status.PROCESSED, (delivered.sequence,)))
    assert len(broker.shard._due) <= OUTDATED_MAX + 2
    assert (broker.actor.next_due_ms(), broker.topic) in broker.shard._due
