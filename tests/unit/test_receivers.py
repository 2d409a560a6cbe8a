"""Endpoints and flow (spec section 6): who gets a copy, credit, pulls, seeking, and large backlogs.

A helper that consumes reports on what it is sent until nothing more comes: what it saw, in the
order in which it saw it, is the promise under test.
"""

import random
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from asterism import PeerError, limits
from asterism import commands as ask
from asterism.rows import Rows
from asterism.settings import DAY_MS, BackoffMs
from asterism.storage.keys import WORK_NAME
from tests.support.core import CoreBroker
from tests.support.kinds import across_restarts, code_of, come_back

PUSH: dict[str, Any] = {"mode": "push"}
ONLINE: dict[str, Any] = {"mode": "online"}
ONE: dict[str, Any] = {"max_receivers": 1}
EVERY: dict[str, Any] = {"max_receivers": None}
KINDS = {"push": PUSH, "online": ONLINE, "one": ONE, "every": EVERY}
DURABLE = {"one": ONE, "every": EVERY}

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
durable_kind = pytest.mark.parametrize("kind", DURABLE.values(), ids=DURABLE.keys())


def numbered(first: int, last: int) -> list[bytes]:
    return [str(number).encode() for number in range(first, last)]


def consume(broker: CoreBroker, *nodes: bytes, most: int | None = None) -> dict[bytes, list[bytes]]:
    """Takes and finishes what nodes are sent until nothing more comes, or ``most`` have come."""
    seen: dict[bytes, list[bytes]] = {node: [] for node in nodes}
    while True:
        taken = {node: broker.take(node) for node in nodes}
        if not any(taken.values()):
            broker.tick()
            if not any(broker.inbox.get((node, 1)) for node in nodes):
                return seen
        for node, deliveries in taken.items():
            if deliveries:
                seen[node] += [delivered.payload for delivered in deliveries]
                broker.processed(*[delivered.sequence for delivered in deliveries], node=node)
        if most is not None and sum(map(len, seen.values())) >= most:
            return seen


# --- who is a receiver ------------------------------------------------------------------------


def test_a_named_receiver_outlives_its_connection_and_a_restart(rows: Rows) -> None:
    broker = CoreBroker(rows)
    assert broker.subscribe(name="durable") == "durable"
    broker.detach()
    broker.publish(b"meanwhile", **EVERY)
    broker.restart()
    assert [(r["name"], r["durable"], r["online"]) for r in broker.receivers()] == [
        ("durable", True, False)
    ]
    broker.subscribe(name="durable")
    assert broker.taken() == [b"meanwhile"]


def test_without_a_name_a_receiver_lives_as_long_as_its_connection(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.subscribe()
    broker.detach()
    assert broker.receivers() == []
    broker.subscribe()
    broker.restart()
    assert broker.receivers() == []


def test_a_group_that_is_not_durable_lives_as_long_as_its_last_connection() -> None:
    broker = CoreBroker()
    for node in (b"a", b"b"):
        broker.subscribe(node, group="crew", durable=False)
    broker.detach(b"a")
    assert [(r["name"], r["durable"]) for r in broker.receivers()] == [("crew", False)]
    broker.detach(b"b")
    assert broker.receivers() == []


def test_a_group_that_is_not_durable_leaves_no_rows() -> None:
    broker = CoreBroker()
    broker.subscribe(group="crew", durable=False)
    for kind in KINDS.values():
        broker.failed(broker.publish(**kind))
        broker.publish(**kind)
        broker.processed(broker.publish(**kind))
    broker.detach()
    broker.abandon_all()  # what it has parked outlives it
    for row_kind in "refdxv":
        assert list(broker.rows.scan(*broker.actor.keys.range_of(row_kind))) == []


def test_a_receiver_that_lives_with_its_connection_leaves_no_rows_of_what_it_did() -> None:
    broker = CoreBroker()
    broker.subscribe()
    sequences = [broker.publish(**EVERY) for _ in range(3)]
    for sequence in reversed(sequences):
        broker.processed(sequence)
    broker.detach()
    for row_kind in "refdxw":
        assert list(broker.rows.scan(*broker.actor.keys.range_of(row_kind))) == []


def test_a_restart_leaves_no_rows_of_receivers_that_lived_with_their_connection(rows: Rows) -> None:
    broker = CoreBroker(rows, max_attempts=2)
    broker.subscribe(name="durable")
    broker.subscribe(b"passing")
    sequences = [broker.publish(**EVERY) for _ in range(4)]
    for node in (b"consumer", b"passing"):
        broker.failed(sequences[0], node=node)
        broker.failed(sequences[1], node=node)
        broker.failed(sequences[1], node=node)
        broker.processed(sequences[2], node=node)
    broker.restart()
    assert len(broker.parked()) == 2  # also what the other has parked
    for parked in broker.parked():
        if parked["receiver"] != "durable":
            broker.abandon(parked["sequence"], parked["receiver"])
    kept = broker.actor.receivers.by_name["durable"].number
    for row_kind in "refdxw":
        for key, _ in broker.rows.scan(*broker.actor.keys.range_of(row_kind)):
            assert int.from_bytes(key[6:10], "big") == kept


def test_a_name_is_durable_or_not_and_cannot_be_both() -> None:
    broker = CoreBroker()
    broker.subscribe(b"a", group="durable")
    broker.subscribe(b"b", group="passing", durable=False)
    for name, durable in (("durable", False), ("passing", True)):
        with pytest.raises(PeerError) as refusal:
            broker.subscribe(b"c", group=name, durable=durable)
        assert code_of(refusal) == "wrong_state"


def test_a_durable_receiver_needs_a_name() -> None:
    with pytest.raises(PeerError) as refusal:
        CoreBroker().subscribe(durable=True)
    assert code_of(refusal) == "bad_request"


def test_nobody_joins_the_receiver_of_another_connection_by_guessing_its_name() -> None:
    broker = CoreBroker()
    private = broker.subscribe(b"a")
    for field in ("name", "group"):
        named: dict[str, Any] = {field: private}
        with pytest.raises(PeerError) as refusal:
            broker.subscribe(b"b", **named)
        assert code_of(refusal) == "bad_request"


@pytest.mark.parametrize(
    "fields", [{"name": WORK_NAME}, {"group": WORK_NAME}, {"group": WORK_NAME, "durable": False}]
)
def test_nobody_takes_the_name_of_the_work_queue(fields: dict[str, Any]) -> None:
    broker = CoreBroker()
    with pytest.raises(PeerError, match="work queue") as refusal:
        broker.subscribe(**fields)
    assert code_of(refusal) == "bad_request"
    with pytest.raises(PeerError, match="work queue") as refusal:
        broker.create_receiver(WORK_NAME)
    assert code_of(refusal) == "bad_request"
    assert broker.receivers() == []


def test_a_receiver_that_was_named_as_the_work_queue_before_opens() -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    broker.actor.create_receiver(WORK_NAME, True)
    broker.end_turn()
    broker.restart()
    broker.subscribe(name=WORK_NAME)
    broker.publish()
    assert broker.taken() == [b"x"]


def test_an_endpoint_is_on_a_topic_once() -> None:
    broker = CoreBroker()
    broker.subscribe()
    with pytest.raises(PeerError) as refusal:
        broker.subscribe()
    assert code_of(refusal) == "wrong_state"
    broker.subscribe(endpoint=2)
    broker.unsubscribe()
    broker.subscribe()


def test_an_endpoint_that_is_not_there_is_refused() -> None:
    broker = CoreBroker()
    broker.publish()
    for use in (broker.unsubscribe, lambda: broker.set_interests("a"), lambda: broker.processed(1)):
        with pytest.raises(PeerError) as refusal:
            use()
        assert code_of(refusal) == "no_such_receiver"
    assert broker.answer(broker.pull(1)) == "no_such_receiver"


@every_kind
def test_endpoints_of_a_group_share_its_copies(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    for node in (b"a", b"b", b"c"):
        broker.subscribe(node, group="crew")
    broker.publish_many(numbered(0, 30), **kind)
    seen = [broker.taken(node) for node in (b"a", b"b", b"c")]
    assert all(len(payloads) == 10 for payloads in seen)
    assert sorted(chain.from_iterable(seen)) == sorted(numbered(0, 30))


@every_kind
def test_every_group_gets_its_own_copy_where_the_mode_says_so(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    for node in (b"a", b"b"):
        broker.subscribe(node, group=node.decode())
    broker.publish(b"1", **kind)
    copies = broker.taken(b"a") + broker.taken(b"b")
    assert copies == [b"1"] * (2 if kind in (ONLINE, EVERY) else 1)


@durable_kind
def test_what_one_endpoint_of_a_group_held_goes_to_another(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    broker.subscribe(b"a", group="crew")
    sequence = broker.publish(b"1", **kind)
    broker.subscribe(b"b", group="crew")
    broker.detach(b"a")
    (again,) = broker.take(b"b")
    assert (again.sequence, again.attempt) == (sequence, 2)


def test_any_member_of_a_group_may_report_and_nobody_else() -> None:
    broker = CoreBroker()
    broker.subscribe(b"a", group="crew")
    sequence = broker.publish()
    broker.subscribe(b"b", group="crew")
    broker.subscribe(b"stranger", "nothing")
    assert broker.processed(sequence, node=b"stranger") == {sequence: "not_yours"}
    assert broker.processed(sequence, node=b"b") == {}
    assert broker.describe()["completed"] == 1


# --- interests --------------------------------------------------------------------------------


@every_kind
def test_what_is_accepted_after_subscribe_returned_reaches_the_receiver(
    rows: Rows, kind: dict[str, Any]
) -> None:
    broker = CoreBroker(rows)
    for number in range(3):
        broker.subscribe(f"n{number}".encode(), f"s{number}")
        broker.publish(b"x", f"s{number}", **kind)
        assert broker.taken(f"n{number}".encode()) == [b"x"]


@durable_kind
def test_a_new_receiver_sees_every_live_message_that_matches(
    rows: Rows, kind: dict[str, Any]
) -> None:
    broker = CoreBroker(rows)
    broker.publish(b"1", "a", **kind)
    broker.publish(b"2", "b", **kind)
    broker.publish(b"3", "a", priority=0, **kind)
    broker.subscribe(b"one", "a")
    assert broker.taken(b"one") == [b"3", b"1"]
    broker.restart()
    broker.subscribe(b"two", "a")
    assert broker.taken(b"two") == [b"3", b"1"]


def test_a_new_receiver_does_not_see_what_is_over() -> None:
    broker = CoreBroker()
    broker.subscribe()
    broker.processed(broker.publish(b"1"))
    broker.publish(b"2", max_receivers=None, expires_ms=broker.now_ms + 10)
    broker.advance(10)
    broker.subscribe(b"late")
    assert broker.taken(b"late") == []


@every_kind
def test_a_message_reaches_a_receiver_once_however_many_interests_match(
    kind: dict[str, Any],
) -> None:
    broker = CoreBroker()
    broker.subscribe(b"a", ("x", "y", "*", "**"), group="crew")
    broker.subscribe(b"b", ("x", "y/**"), group="crew")
    broker.publish(b"1", ("x", "y", "y/z"), **kind)
    assert broker.taken(b"a") + broker.taken(b"b") == [b"1"]


@every_kind
def test_replaced_interests_hold_for_what_comes_after(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    broker.subscribe(b"keeper", ("a", "b"), credit=0)  # so that a push has somebody
    broker.subscribe(interests="a")
    broker.set_interests("b")
    broker.publish(b"a", "a", **kind)
    broker.publish(b"b", "b", **kind)
    assert broker.taken() == [b"b"]


@durable_kind
def test_replaced_interests_hold_for_what_waits_already(rows: Rows, kind: dict[str, Any]) -> None:
    broker = CoreBroker(rows)
    broker.subscribe(interests="a", credit=1, name="durable")
    first = broker.publish(b"1", "a", **kind)
    broker.publish(b"2", "a", **kind)
    broker.set_interests("b")
    broker.publish(b"3", "b", **kind)
    broker.processed(first)
    assert broker.taken() == [b"1", b"3"]


@every_kind
def test_replacing_interests_neither_loses_nor_repeats_what_is_in_flight(
    kind: dict[str, Any],
) -> None:
    broker = CoreBroker()
    broker.subscribe(interests="a", name="durable")
    sequence = broker.publish(b"1", "a", receipt=True, **kind)
    broker.set_interests("b")
    broker.set_interests("a", "b")
    assert broker.taken() == [b"1"]
    assert broker.processed(sequence) == {}
    assert broker.describe()["totals"]["processed"] == 1
    assert broker.taken() == []


@durable_kind
def test_what_was_in_flight_when_interests_changed_comes_again_after_a_failure(
    kind: dict[str, Any],
) -> None:
    broker = CoreBroker(max_attempts=2)
    broker.subscribe(interests=("a", "b"), name="durable")
    sequence = broker.publish(b"1", "a", **kind)
    broker.set_interests("a")
    broker.failed(sequence)
    assert broker.taken() == [b"1", b"1"]


def test_the_interests_of_a_durable_receiver_survive_a_restart(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.subscribe(interests="a", name="durable")
    broker.set_interests("b/*", "c")
    broker.restart()
    assert broker.receivers()[0]["interests"] == ["b/*", "c"]
    broker.publish(b"a", "a", **EVERY)
    broker.publish(b"b", "b/1", **EVERY)
    broker.subscribe(interests=("b/*", "c"), name="durable")
    assert broker.taken() == [b"b"]


def test_a_group_keeps_what_an_absent_member_wants(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.subscribe(b"a", "a", group="crew", credit=9)
    broker.subscribe(b"b", "b", group="crew", credit=9)
    broker.restart()
    broker.subscribe(b"a", "a", group="crew", credit=9)
    broker.publish(b"1", "b", **EVERY)
    broker.processed(broker.publish(b"2", "a", **EVERY), node=b"a")
    broker.subscribe(b"b", "b", group="crew", credit=9)
    assert sorted(broker.taken(b"a") + broker.taken(b"b")) == [b"1", b"2"]


def test_a_group_keeps_what_a_member_that_leaves_wanted() -> None:
    broker = CoreBroker()
    broker.subscribe(b"a", "a", group="crew", credit=9)
    broker.subscribe(b"b", "b", group="crew", credit=9)
    broker.unsubscribe(b"b")
    broker.subscribe(b"c", "c", group="crew", credit=9)
    assert sorted(broker.receivers()[0]["interests"]) == ["a", "b", "c"]


def test_a_group_is_interested_in_what_its_connected_members_say_when_one_says_it_anew() -> None:
    broker = CoreBroker()
    broker.subscribe(b"a", "a", group="crew")
    broker.subscribe(b"b", "b", group="crew")
    broker.detach(b"b")
    broker.set_interests("c", node=b"a")
    assert broker.receivers()[0]["interests"] == ["c"]


def test_a_group_that_is_not_durable_forgets_what_a_member_that_left_wanted() -> None:
    broker = CoreBroker()
    broker.subscribe(b"a", "a", group="crew", durable=False)
    broker.subscribe(b"b", "b", group="crew", durable=False)
    broker.detach(b"b")
    assert broker.receivers()[0]["interests"] == ["a"]


def test_a_name_that_comes_back_says_anew_what_it_wants(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.subscribe(interests="a", name="anna")
    broker.restart()
    broker.subscribe(interests="b", name="anna")
    assert broker.receivers()[0]["interests"] == ["b"]


def test_wider_interests_reach_what_waits_behind_what_was_read(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.subscribe(interests="a", name="anna", credit=1)
    broker.publish(b"1", "a", **EVERY)
    for payload in (b"2", b"3"):
        broker.publish(payload, "b", **EVERY)
    broker.publish(b"4", "a", **EVERY)
    broker.set_interests("a", "b")
    broker.grant(9)
    assert broker.taken() == [b"1", b"2", b"3", b"4"]


def test_bad_interests_are_refused_and_change_nothing() -> None:
    broker = CoreBroker()
    broker.subscribe(interests="a")
    for interests in ((), ("",), ("///",), ("a", "")):
        with pytest.raises(PeerError) as refusal:
            broker.set_interests(*interests)
        assert code_of(refusal) == "bad_interest"
    assert broker.receivers()[0]["interests"] == ["a"]


# --- credit -----------------------------------------------------------------------------------


@every_kind
def test_no_more_is_sent_than_there_is_credit_for(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=3)
    broker.publish_many(numbered(0, 10), **kind)
    assert broker.taken() == numbered(0, 3)


@every_kind
def test_each_endpoint_of_a_group_gets_no_more_than_its_own_credit(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    broker.subscribe(b"small", group="crew", credit=1)
    broker.subscribe(b"large", group="crew", credit=4)
    broker.publish_many(numbered(0, 10), **kind)
    assert (len(broker.take(b"small")), len(broker.take(b"large"))) == (1, 4)


@every_kind
def test_without_credit_nothing_is_sent(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0)
    broker.publish(b"1", **kind)
    assert broker.taken() == []
    broker.grant(1)
    assert broker.taken() == [b"1"]


@every_kind
@pytest.mark.parametrize("end", ["processed", "failed"])
def test_finishing_a_delivery_gives_its_credit_back(kind: dict[str, Any], end: str) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=1)
    for payload in numbered(0, 5):
        broker.publish(payload, **kind)
    seen = []
    for _ in range(5):
        (delivered,) = broker.take()
        seen.append(delivered.payload)
        broker.report(end, delivered.sequence)
    assert seen == numbered(0, 5)
    assert broker.receivers()[0]["credit"] == 1


def test_received_gives_credit_back_only_where_it_finishes() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=1)
    first = broker.publish(b"1", expect="received")
    second = broker.publish(b"2")
    broker.publish(b"3")
    broker.received(first)
    assert broker.taken() == [b"1", b"2"]
    broker.received(second)
    assert broker.taken() == []


@every_kind
def test_where_sent_is_enough_only_a_grant_gives_credit_back(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=2)
    broker.publish_many(numbered(0, 5), expect="sent", **kind)
    assert broker.taken() == numbered(0, 2)
    broker.grant(1)
    assert broker.taken() == numbered(2, 3)
    broker.grant(5)
    assert broker.taken() == numbered(3, 5)
    assert broker.receivers()[0]["credit"] == 3


@durable_kind
def test_a_passed_deadline_gives_the_credit_back(kind: dict[str, Any]) -> None:
    broker = CoreBroker(sent_timeout_ms=1_000)
    broker.subscribe(credit=1)
    broker.publish(b"1", **kind)
    broker.publish(b"2", **kind)
    broker.advance(1_000)
    assert broker.taken() == [b"1", b"2"]
    assert broker.receivers()[0]["credit"] == 0


@every_kind
def test_a_repeated_report_gives_no_credit_twice(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=1)
    sequence = broker.publish(b"1", **kind)
    for _ in range(3):
        broker.processed(sequence)
    broker.publish_many(numbered(0, 4), **kind)
    assert broker.taken() == [b"1", b"0"]


def test_a_delivery_that_was_pulled_before_gives_the_credit_of_a_window_back() -> None:
    broker = CoreBroker()
    broker.subscribe(b"puller", credit=0)
    broker.publish(b"1")
    broker.pull(1, node=b"puller")
    broker.subscribe(credit=1)
    broker.detach(b"puller")
    (delivered,) = broker.take()
    broker.processed(delivered.sequence)
    broker.publish(b"2")
    assert broker.taken() == [b"2"]


def test_credit_is_bounded() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=limits.CREDIT_MAX)
    broker.grant(limits.CREDIT_MAX)
    assert broker.receivers()[0]["credit"] == limits.CREDIT_MAX


def test_a_grant_to_an_endpoint_that_is_not_there_is_ignored() -> None:
    broker = CoreBroker()
    broker.subscribe()
    assert broker.do(ask.Grant(b"stranger", 1, 1, 5)) == []


# --- slow consumers ---------------------------------------------------------------------------


@durable_kind
def test_a_consumer_without_credit_does_not_grow_the_memory(
    rows: Rows, kind: dict[str, Any]
) -> None:
    broker = CoreBroker(rows)
    broker.subscribe(credit=0, name="slow")
    for start in range(0, 5_000, 1_000):
        broker.publish_many(numbered(start, start + 1_000), **kind)
    actor = broker.actor
    receiver = actor.receivers.by_name["slow"]
    assert len(actor.pool.live) <= limits.WINDOW_MAX
    assert len(receiver.known) <= limits.WINDOW_MAX
    assert len(actor.log.messages) <= limits.WINDOW_MAX
    assert len(receiver.window) <= limits.WINDOW_MAX


@durable_kind
def test_reading_a_backlog_does_not_grow_the_memory(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    broker.publish_many(numbered(0, 5_000), **kind)
    broker.restart()
    broker.subscribe(credit=10, name="slow")
    actor = broker.actor
    for _ in range(20):
        deliveries = broker.take()
        broker.processed(*[delivered.sequence for delivered in deliveries])
        receiver = actor.receivers.by_name["slow"]
        assert len(actor.pool.live) <= limits.WINDOW_MAX + 10
        assert len(receiver.known) <= limits.WINDOW_MAX + 10


@durable_kind
def test_messages_for_nobody_do_not_grow_the_memory(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    broker.publish_many(numbered(0, 5_000), **kind)
    assert len(broker.actor.pool.live) <= limits.WINDOW_MAX
    assert broker.actor.log.messages == {}


@every_kind
def test_a_slow_consumer_does_not_slow_its_neighbours(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    broker.subscribe(b"slow", "a", credit=0)
    broker.subscribe(b"fast", "b", credit=1)
    broker.publish_many(numbered(0, 3_000), "a", **kind)
    broker.publish_many(numbered(0, 50), "b", **kind)
    assert consume(broker, b"fast")[b"fast"] == numbered(0, 50)


@durable_kind
def test_a_backlog_for_nobody_does_not_hide_what_lies_behind_it(
    rows: Rows, kind: dict[str, Any]
) -> None:
    broker = CoreBroker(rows)
    broker.publish_many(numbered(0, 4_000), "nobody", **kind)
    broker.publish(b"found", "a", **kind)
    broker.restart()
    broker.subscribe(interests="a")
    broker.publish(b"new", "a", **kind)
    assert consume(broker, b"consumer")[b"consumer"] == [b"found", b"new"]


def test_a_new_neighbour_does_not_cut_others_off_behind_a_backlog() -> None:
    broker = CoreBroker()
    broker.publish_many(numbered(0, 3_000), "nobody")
    broker.subscribe(b"a", "a")
    broker.subscribe(b"b", "b", credit=0)  # audiences change, and lanes are formed anew
    broker.publish(b"1", "a")
    assert consume(broker, b"a")[b"a"] == [b"1"]


# --- pulls ------------------------------------------------------------------------------------


@every_kind
def test_a_pull_is_answered_at_once_with_what_there_is(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0)
    broker.publish_many(numbered(0, 3), **kind)
    assert broker.answer(broker.pull(5, 60_000)) == {"count": 3}
    assert broker.taken() == numbered(0, 3)


def test_a_pull_gets_no_more_than_it_asked_for() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0)
    broker.publish_many(numbered(0, 5))
    assert broker.answer(broker.pull(2)) == {"count": 2}
    assert broker.answer(broker.pull(2)) == {"count": 2}
    assert broker.taken() == numbered(0, 4)


def test_a_pull_waits_for_the_first_and_leaves_no_credit_behind() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0)
    pull = broker.pull(5, 60_000)
    assert broker.answer(pull) is None
    broker.publish(b"1")
    assert broker.answer(pull) == {"count": 1}
    broker.publish(b"2")
    assert broker.taken() == [b"1"]


def test_a_pull_that_finds_nothing_ends_when_its_time_is_over() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0)
    assert broker.answer(broker.pull(1)) == {"count": 0}
    pull = broker.pull(1, 5_000)
    broker.advance(4_999)
    assert broker.answer(pull) is None
    broker.advance(1)
    assert broker.answer(pull) == {"count": 0}
    broker.publish(b"1")
    assert broker.taken() == []


def test_a_cancelled_pull_takes_nothing_more() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0)
    pull = broker.pull(3, 60_000)
    broker.cancel_wait(pull)
    broker.publish(b"1")
    assert broker.taken() == []
    broker.advance(60_000)
    assert broker.answer(broker.pull(1)) == {"count": 1}


def test_a_pull_ends_with_its_connection() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0, name="durable")
    pull = broker.pull(1, 60_000)
    broker.detach()
    broker.publish(b"1")
    broker.advance(60_000)
    assert broker.answer(pull) is None
    assert broker.describe()["waiting"] == 1


def test_what_was_pulled_goes_on_to_another_when_the_connection_is_lost() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0, group="crew")
    broker.publish(b"1")
    broker.pull(1)
    broker.detach()
    broker.subscribe(b"other", group="crew")
    assert broker.taken(b"other") == [b"1"]


def test_one_pull_of_an_endpoint_waits_at_a_time() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0)
    first = broker.pull(1, 60_000)
    assert broker.answer(broker.pull(1, 60_000)) == "wrong_state"
    broker.publish(b"1")
    assert broker.answer(first) == {"count": 1}


def test_finishing_what_was_pulled_gives_no_credit() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0)
    broker.publish_many([b"1", b"2"])
    broker.pull(1)
    (delivered,) = broker.take()
    broker.processed(delivered.sequence)
    assert broker.taken() == []


def test_pulls_that_were_answered_do_not_count_against_those_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PULLS_MAX", 3)
    broker = CoreBroker()
    broker.subscribe(credit=0)
    broker.publish_many(numbered(0, 9))
    for _ in range(9):
        assert broker.answer(broker.pull(1, 60_000)) == {"count": 1}


def test_as_many_pulls_wait_as_may_and_one_more_is_told_to_come_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PULLS_MAX", 2)
    broker = CoreBroker()
    for endpoint in (1, 2, 3):
        broker.subscribe(endpoint=endpoint, credit=0)
    answers = [broker.answer(broker.pull(1, 60_000, endpoint=endpoint)) for endpoint in (1, 2, 3)]
    assert answers == [None, None, "busy"]
    broker.advance(60_000)
    assert broker.answer(broker.pull(1, 0, endpoint=3)) == {"count": 0}


def test_an_unsubscribed_endpoint_gets_its_waiting_pull_answered() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0)
    pull = broker.pull(1, 60_000)
    broker.unsubscribe()
    assert broker.answer(pull) == {"count": 0}


# --- managing receivers -----------------------------------------------------------------------


@durable_kind
def test_deleting_a_receiver_drops_its_backlog_at_once(rows: Rows, kind: dict[str, Any]) -> None:
    broker = CoreBroker(rows)
    broker.subscribe(name="gone", credit=2)
    broker.publish_many(numbered(0, 5), **kind)
    held = [delivered.sequence for delivered in broker.take()]
    broker.failed(held[0])
    broker.delete_receiver("gone")
    assert [(gone.endpoint, gone.code) for gone in broker.gone] == [(1, "no_such_receiver")]
    assert broker.answer(broker.pull(1)) == "no_such_receiver"
    for _ in range(2):
        assert broker.receivers() == []
        number = 16
        left = [
            chr(key[5])
            for low, high in broker.actor.keys.of_receiver(number)
            for key, _ in broker.rows.scan(low, high)
        ]
        assert left == (["d"] if kind is EVERY else [])  # of what it has parked
        broker.restart()
    assert len(broker.parked()) == 1


def test_a_pull_that_waits_is_told_that_its_receiver_is_gone() -> None:
    broker = CoreBroker()
    broker.subscribe(name="gone", credit=0)
    pull = broker.pull(1, 60_000)
    broker.delete_receiver("gone")
    assert broker.answer(pull) == "no_such_receiver"


def test_what_a_deleted_receiver_held_of_the_pool_goes_to_others() -> None:
    broker = CoreBroker()
    broker.subscribe(name="gone")
    broker.publish(b"1")
    broker.subscribe(b"other")
    broker.delete_receiver("gone")
    assert broker.taken(b"other") == [b"1"]


def test_a_receiver_that_is_not_there_cannot_be_deleted_or_moved() -> None:
    broker = CoreBroker()
    broker.publish()
    for use in (lambda: broker.delete_receiver("nobody"), lambda: broker.seek("nobody")):
        with pytest.raises(PeerError) as refusal:
            use()
        assert code_of(refusal) == "no_such_receiver"


def test_a_deleted_name_can_be_used_again_and_begins_anew(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.subscribe(name="again")
    broker.processed(broker.publish(b"1", **EVERY))
    broker.delete_receiver("again")
    broker.take()
    broker.subscribe(name="again")
    assert broker.taken() == [b"1"]


def test_receivers_are_listed_by_name_and_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIST_MAX", 2)
    broker = CoreBroker()
    for name in ("c", "a", "b"):
        broker.create_receiver(name)
    first = [receiver["name"] for receiver in broker.receivers()]
    assert first == ["a", "b"]
    assert [receiver["name"] for receiver in broker.receivers(after="b")] == ["c"]


def test_a_listed_receiver_tells_its_state() -> None:
    broker = CoreBroker()
    broker.subscribe(interests=("/a//b/", "c"), name="r", credit=5, sent_timeout_ms=7)
    broker.failed(broker.publish(b"1", **EVERY))
    broker.publish(b"2", **EVERY)
    (listed,) = broker.receivers()
    assert listed | {"floor": 0} == {
        "name": "r", "durable": True, "online": True, "endpoints": 1, "interests": ["a/b", "c"],
        "credit": 4, "in_flight": 1, "parked": 1, "floor": 0, "sent_timeout_ms": 7,
        "received_timeout_ms": 300_000, "lag": 1, "out": 1, "oldest_ms": 0, "counted": True,
    }  # fmt: skip


def test_a_receiver_can_be_made_before_anybody_is_on_it(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.create_receiver("r", "a/b", received_timeout_ms=9)
    broker.publish(b"1", **EVERY)
    broker.restart()
    assert broker.receivers()[0]["received_timeout_ms"] == 9
    broker.subscribe(interests="a/b", name="r")
    assert broker.taken() == [b"1"]
    with pytest.raises(PeerError) as refusal:
        broker.create_receiver("r")
    assert code_of(refusal) == "wrong_state"


# --- seek -------------------------------------------------------------------------------------


def with_log(rows: Rows | None = None, **settings: Any) -> tuple[CoreBroker, list[int]]:
    """A durable reader that has done five messages, a second apart."""
    broker = CoreBroker(rows, **settings)
    broker.subscribe(name="reader")
    sequences = []
    for payload in numbered(0, 5):
        sequences.append(broker.publish(payload, **EVERY))
        broker.advance(1_000)
    broker.processed(*sequences)
    broker.take()
    return broker, sequences


def test_seek_back_to_a_sequence_sends_again_from_there(rows: Rows) -> None:
    broker, sequences = with_log(rows)
    assert broker.seek("reader", sequence=sequences[2]) == sequences[2]
    assert broker.taken() == numbered(2, 5)
    broker.restart()
    broker.subscribe(name="reader")
    assert broker.taken() == numbered(2, 5)
    broker.processed(*sequences[2:])
    broker.restart()
    broker.subscribe(name="reader")
    assert broker.taken() == []


def test_seek_back_to_a_time_sends_again_what_was_accepted_since(rows: Rows) -> None:
    broker, sequences = with_log(rows)
    assert broker.seek("reader", time_ms=broker.now_ms - 2_000) == sequences[3]
    assert broker.taken() == numbered(3, 5)


def test_seek_to_a_time_to_come_is_seek_to_now() -> None:
    broker, _ = with_log()
    broker.seek("reader", sequence=0)
    broker.take()
    broker.seek("reader", time_ms=broker.now_ms + DAY_MS)
    assert broker.taken() == []
    broker.publish(b"new", **EVERY)
    assert broker.taken() == [b"new"]


def test_seek_to_now_skips_what_waits(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.create_receiver("reader")
    broker.publish_many(numbered(0, 2_000), **EVERY)
    broker.seek("reader")
    broker.restart()
    broker.publish(b"new", **EVERY)
    broker.subscribe(name="reader")
    assert broker.taken() == [b"new"]


def test_seek_back_goes_only_as_far_as_what_is_on_disk() -> None:
    broker, sequences = with_log()
    broker.abandon(sequences[0])
    broker.seek("reader", sequence=0)
    assert broker.taken() == numbered(1, 5)


def test_seek_gives_back_what_the_receiver_holds() -> None:
    broker = CoreBroker()
    broker.subscribe(name="reader", credit=2)
    sequences = broker.publish_many(numbered(0, 3), **EVERY)
    broker.take()
    broker.seek("reader", sequence=0)
    assert broker.taken() == numbered(0, 2)
    broker.seek("reader")
    assert broker.describe()["sent"] == 0
    assert broker.processed(*[s for s in sequences if isinstance(s, int)]) == {}
    assert broker.receivers()[0]["credit"] == 2
    assert broker.taken() == []


@pytest.mark.parametrize("forward", [False, True], ids=["back", "forward"])
def test_seek_leaves_what_is_parked_parked(rows: Rows, forward: bool) -> None:
    broker = CoreBroker(rows)
    broker.subscribe(name="reader")
    bad, good = broker.publish(b"bad", **EVERY), broker.publish(b"good", **EVERY)
    broker.failed(bad)
    broker.processed(good)
    broker.take()
    broker.seek("reader", **({} if forward else {"sequence": 0}))
    assert broker.taken() == ([] if forward else [b"good"])
    broker.restart()
    broker.subscribe(name="reader")
    broker.take()
    broker.renew(bad)
    assert broker.taken() == [b"bad"]


def test_seek_finds_messages_with_priorities_too() -> None:
    broker = CoreBroker()
    broker.subscribe(name="reader")
    for payload, priority in ((b"low", 9), (b"none", None), (b"high", 1)):
        broker.processed(broker.publish(payload, priority=priority, **EVERY))
    broker.take()
    broker.seek("reader", sequence=0)
    assert broker.taken() == [b"high", b"low", b"none"]


def test_only_a_durable_receiver_can_be_moved() -> None:
    broker = CoreBroker()
    name = broker.subscribe()
    with pytest.raises(PeerError) as refusal:
        broker.seek(name)
    assert code_of(refusal) == "wrong_state"


def test_seek_of_one_receiver_leaves_the_others_where_they_are() -> None:
    broker, _ = with_log()
    broker.subscribe(b"other", name="other")
    broker.take(b"other")
    broker.seek("reader", sequence=0)
    assert broker.taken(b"other") == []


def test_seek_does_not_retry_what_paused_before_it() -> None:
    broker = CoreBroker(max_attempts=5, retry_backoff=BackoffMs(1_000, 1_000))
    broker.subscribe(name="reader")
    broker.failed(broker.publish(b"1", **EVERY))
    broker.take()
    broker.seek("reader")
    broker.advance(10_000)
    assert broker.taken() == []


# --- what was confirmed is remembered ---------------------------------------------------------


def priorities(count: int, chance: random.Random) -> list[int | None]:
    return [chance.choice([None, None, 0, 1, 5]) for _ in range(count)]


@pytest.mark.parametrize("with_priorities", [False, True], ids=["plain", "priorities"])
@durable_kind
def test_out_of_order_acknowledgements_survive_restarts(
    rows: Rows, kind: dict[str, Any], with_priorities: bool
) -> None:
    chance = random.Random(7)
    broker = CoreBroker(rows)
    waiting = set(range(60))
    wanted = priorities(60, chance) if with_priorities else [None] * 60
    for number, priority in enumerate(wanted):
        broker.publish(str(number).encode(), priority=priority, **kind)
    while waiting:
        broker.subscribe(name="reader", credit=25)
        deliveries = broker.take()
        numbers = {int(delivered.payload) for delivered in deliveries}
        assert numbers <= waiting, "something done came again"
        assert len(numbers) == min(25, len(waiting)), "something undone is lost"
        done = chance.sample(deliveries, (len(deliveries) + 1) // 2)
        broker.processed(*[delivered.sequence for delivered in done])
        waiting -= {int(delivered.payload) for delivered in done}
        broker.take()
        broker.restart()
    broker.subscribe(name="reader")
    assert broker.taken() == []


def test_a_receiver_remembers_what_it_did_out_of_order_for_each_receiver_apart(rows: Rows) -> None:
    broker = CoreBroker(rows)
    for node in (b"a", b"b"):
        broker.subscribe(node, name=node.decode())
    sequences = [broker.publish(payload, **EVERY) for payload in numbered(0, 6)]
    broker.processed(*sequences[1::2], node=b"a")
    broker.processed(*sequences[0::2], node=b"b")
    broker.restart()
    broker.inbox.clear()
    for node in (b"a", b"b"):
        broker.subscribe(node, name=node.decode())
    assert broker.taken(b"a") == numbered(0, 6)[0::2]
    assert broker.taken(b"b") == numbered(0, 6)[1::2]


def test_attempts_are_counted_over_a_restart(rows: Rows) -> None:
    broker = CoreBroker(rows)
    for kind in DURABLE.values():
        broker.publish(**kind)
    for attempt in (1, 2, 3):
        broker.subscribe(name="reader")
        assert [delivered.attempt for delivered in broker.take()] == [attempt, attempt]
        broker.restart()


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarted"])
def test_a_message_that_ended_while_its_place_was_on_disk_does_no_harm(restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(name="reader")
    sequence = broker.publish(b"1", **EVERY)
    broker.detach()  # it has a place of its own from now on
    if restarts:
        broker.restart()
    broker.abandon(sequence)
    broker.take()
    broker.subscribe(name="reader")
    broker.publish(b"2", **EVERY)
    assert broker.taken() == [b"2"]


# --- large backlogs ---------------------------------------------------------------------------


@durable_kind
def test_a_large_backlog_arrives_once_and_in_order(rows: Rows, kind: dict[str, Any]) -> None:
    broker = CoreBroker(rows)
    broker.publish_many(numbered(0, 2_500), **kind)
    broker.subscribe(name="reader", credit=700)
    broker.publish_many(numbered(2_500, 5_000), **kind)
    seen = consume(broker, b"consumer", most=2_100)[b"consumer"]
    broker.publish_many(numbered(5_000, 5_200), **kind)
    seen += consume(broker, b"consumer")[b"consumer"]
    assert seen == numbered(0, 5_200)


@durable_kind
def test_a_large_backlog_arrives_once_and_in_order_over_a_restart(
    rows: Rows, kind: dict[str, Any]
) -> None:
    broker = CoreBroker(rows)
    broker.publish_many(numbered(0, 3_000), **kind)
    broker.subscribe(name="reader", credit=300)
    seen = consume(broker, b"consumer", most=1_500)[b"consumer"]
    broker.restart()
    broker.inbox.clear()
    broker.subscribe(name="reader", credit=300)
    seen += consume(broker, b"consumer")[b"consumer"]
    assert seen == numbered(0, 3_000)


@durable_kind
def test_interleaved_interests_each_get_theirs_in_order(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    nodes = [b"0", b"1", b"2"]
    for start in range(0, 5_000, 500):
        for third in range(3):
            payloads = [n for n in numbered(start, start + 500) if int(n) % 3 == third]
            broker.publish_many(payloads, f"s/{third}", **kind)
    broker.restart()
    for node in nodes:
        broker.subscribe(node, f"s/{node.decode()}", name=node.decode(), credit=100)
    seen = consume(broker, *nodes)
    for third, node in enumerate(nodes):
        assert seen[node] == [n for n in numbered(0, 5_000) if int(n) % 3 == third]


def test_several_audiences_share_a_pool_of_spilled_lanes() -> None:
    broker = CoreBroker()
    chance = random.Random(3)
    subjects = [("a",), ("b",), ("c",), ("a", "b"), ("b", "c"), ("a", "b", "c")]
    interest_of = {b"x": ("a",), b"y": ("a", "b"), b"z": ("b", "c")}
    for node, interests in interest_of.items():
        broker.subscribe(node, interests, credit=0)
    subject_of = {}
    for payload in numbered(0, 5_000):
        subject_of[payload] = chance.choice(subjects)
        broker.publish(payload, subject_of[payload])
    for node in interest_of:
        broker.grant(64, node)
    seen = consume(broker, *interest_of)
    assert sorted(chain.from_iterable(seen.values())) == sorted(subject_of)
    for node, payloads in seen.items():
        assert payloads == sorted(payloads, key=int), node
        assert all(set(subject_of[payload]) & set(interest_of[node]) for payload in payloads)


@pytest.mark.parametrize("named", [{"name": "reader"}, {}], ids=["durable", "passing"])
@durable_kind
def test_priorities_that_arrive_out_of_order_go_first_and_nothing_is_repeated(
    kind: dict[str, Any], named: dict[str, Any]
) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=50, **named)
    broker.publish_many(numbered(0, 100), **kind)
    seen = consume(broker, b"consumer", most=50)[b"consumer"]
    held = broker.take()
    broker.publish_many(numbered(100, 2_600), priority=7, **kind)
    broker.publish_many(numbered(2_600, 5_000), priority=3, **kind)
    seen += [delivered.payload for delivered in held]
    broker.processed(*[delivered.sequence for delivered in held])
    seen += consume(broker, b"consumer")[b"consumer"]
    assert Counter(seen).most_common(1)[0][1] == 1, "something came twice"
    assert seen == numbered(0, 100) + numbered(2_600, 5_000) + numbered(100, 2_600)


@durable_kind
def test_receivers_may_come_and_go_in_the_middle_of_a_backlog(kind: dict[str, Any]) -> None:
    broker = CoreBroker()
    broker.publish_many(numbered(0, 5_000), "s", **kind)
    broker.subscribe(b"a", "s", name="a", credit=200)
    seen = consume(broker, b"a", most=1_000)[b"a"]
    for number in range(4):
        other = f"other{number}".encode()
        broker.subscribe(other, "else", credit=10)  # audiences change
        seen += consume(broker, b"a", most=600)[b"a"]
        broker.unsubscribe(other) if number % 2 else broker.detach(other)
        seen += consume(broker, b"a", most=200)[b"a"]
    seen += consume(broker, b"a")[b"a"]
    assert seen == numbered(0, 5_000)


def test_two_receivers_of_a_pool_have_its_backlog_between_them() -> None:
    broker = CoreBroker()
    broker.publish_many(numbered(0, 3_000))
    broker.subscribe(b"a", credit=10)
    seen = consume(broker, b"a", most=1_000)
    broker.subscribe(b"b", credit=10)
    for node, payloads in consume(broker, b"a", b"b").items():
        assert payloads == sorted(payloads, key=int)
        seen[node] = seen.get(node, []) + payloads
    assert sorted(seen[b"a"] + seen[b"b"], key=int) == numbered(0, 3_000)
    assert len(seen[b"b"]) > 500


@pytest.mark.parametrize("named", [{"name": "reader"}, {}], ids=["durable", "passing"])
def test_what_was_put_back_is_not_lost_behind_a_backlog(named: dict[str, Any]) -> None:
    broker = CoreBroker(max_attempts=3)
    broker.subscribe(credit=20, **named)
    broker.publish_many(numbered(0, 600), **EVERY)
    failed = broker.take()
    broker.failed(*[delivered.sequence for delivered in failed])
    for start in range(600, 4_000, 200):
        broker.publish_many(numbered(start, start + 200), **EVERY)
    seen = consume(broker, b"consumer")[b"consumer"]
    assert Counter(seen) == Counter(numbered(0, 4_000))


@pytest.mark.parametrize("named", [{"name": "reader"}, {}], ids=["durable", "passing"])
def test_many_messages_done_out_of_order_are_remembered(
    monkeypatch: pytest.MonkeyPatch, small_limits: None, named: dict[str, Any]
) -> None:
    monkeypatch.setattr(limits, "MARKS_MAX", 3)
    broker = CoreBroker()
    broker.subscribe(credit=40, **named)
    broker.publish_many(numbered(0, 40), **EVERY)
    held = broker.take()
    stuck, rest = held[0], held[1:]
    broker.processed(*[delivered.sequence for delivered in rest])
    # What comes first now pushes the window back behind all that is done already.
    for payload in numbered(100, 120):
        broker.publish(payload, priority=1, **EVERY)
    seen = consume(broker, b"consumer")[b"consumer"]
    broker.processed(stuck.sequence)
    for payload in numbered(200, 220):
        broker.publish(payload, priority=0, **EVERY)
    seen += consume(broker, b"consumer")[b"consumer"]
    assert sorted(seen) == sorted(numbered(100, 120) + numbered(200, 220))
    broker.unsubscribe()
    if not named:
        for row_kind in "dxw":
            low, high = broker.actor.keys.range_of(row_kind)
            rows = [key for key, _ in broker.rows.scan(low, high)]
            assert [key for key in rows if int.from_bytes(key[6:10], "big") >= 16] == []


def test_small_windows_lose_and_repeat_nothing(small_limits: None) -> None:
    chance = random.Random(11)
    broker = CoreBroker()
    wanted: Counter[bytes] = Counter()
    broker.subscribe(b"a", ("x", "y"), name="a", credit=3)
    broker.subscribe(b"b", "y", credit=2)
    seen: Counter[bytes] = Counter()
    for number in range(300):
        payload, subject = str(number).encode(), chance.choice(["x", "y", "z"])
        broker.publish(payload, subject, priority=chance.choice([None, None, 1, 2]), **EVERY)
        wanted[payload] += {"x": 1, "y": 2, "z": 0}[subject]
        if number % 7 == 0:
            for taken in consume(broker, b"a", b"b", most=5).values():
                seen.update(taken)
    for taken in consume(broker, b"a", b"b").values():
        seen.update(taken)
    assert seen == +wanted


# --- max_receivers ----------------------------------------------------------------------------


def test_no_more_deliveries_are_out_or_done_than_max_receivers(rows: Rows) -> None:
    broker = CoreBroker(rows)
    nodes = [b"a", b"b", b"c"]
    for node in nodes:
        broker.subscribe(node, name=node.decode())
    sequence = broker.publish(b"1", max_receivers=2, receipt=True)
    holders = [node for node in nodes if broker.take(node)]
    assert len(holders) == 2
    for node in holders:
        broker.processed(sequence, node=node)
    assert broker.receipts[1].verdict == "ok"
    (third,) = set(nodes) - set(holders)
    assert broker.taken(third) == []
    broker.restart()
    broker.subscribe(third, name=third.decode())
    assert broker.taken(third) == []


@pytest.mark.parametrize("lost", ["detached", "timed out", "given up"])
def test_a_receiver_that_was_held_back_gets_the_place_of_one_that_failed(lost: str) -> None:
    broker = CoreBroker(sent_timeout_ms=1_000)
    nodes = [b"a", b"b", b"c"]
    for node in nodes:
        broker.subscribe(node, name=node.decode())
    sequence = broker.publish(b"1", max_receivers=2)
    holders = [node for node in nodes if broker.take(node)]
    (third,) = set(nodes) - set(holders)
    if lost == "detached":
        broker.detach(holders[0])
    elif lost == "given up":
        broker.extend(0, sequence, node=holders[0])
    else:
        broker.received(sequence, node=holders[1])
        broker.advance(1_000)
    assert broker.taken(third) == [b"1"]
    assert broker.describe()["held"] == 1


def test_a_parked_delivery_keeps_its_place_until_it_is_abandoned(rows: Rows) -> None:
    broker = CoreBroker(rows)
    for node in (b"a", b"b"):
        broker.subscribe(node, name=node.decode())
    sequence = broker.publish(b"1", max_receivers=2, receipt=True)
    broker.failed(sequence, node=b"a")
    broker.subscribe(b"c", name="c")
    assert broker.taken(b"c") == []
    broker.restart()
    for node in (b"b", b"c"):
        broker.subscribe(node, name=node.decode(), credit=1)
    held = [node for node in (b"b", b"c") if broker.take(node)]
    assert len(held) == 1
    broker.abandon(sequence, receiver="a")
    assert len(broker.take(b"b") + broker.take(b"c")) == 1


def test_a_receiver_that_is_done_does_not_get_it_again(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.subscribe(b"a", name="a")
    sequence = broker.publish(b"1", max_receivers=2)
    broker.processed(sequence, node=b"a")
    broker.restart()
    broker.take(b"a")
    broker.subscribe(b"a", name="a")
    assert broker.taken(b"a") == []
    broker.subscribe(b"b", name="b")
    assert broker.taken(b"b") == [b"1"]


@across_restarts
def test_a_receiver_that_is_done_and_moved_back_gets_it_again_in_its_own_place(
    restarts: bool,
) -> None:
    broker = CoreBroker()
    for name in (b"a", b"b"):
        broker.subscribe(name, name=name.decode())
    sequence = broker.publish(b"1", max_receivers=3, receipt=True)
    broker.processed(sequence, node=b"a")
    broker.take(b"a")
    come_back(broker, restarts, node=b"a", name="a")
    broker.seek("a", sequence=0)
    assert broker.taken(b"a") == [b"1"]
    broker.detach(b"a")  # it comes back, and its place is still its own
    if restarts:
        broker.restart()
        broker.subscribe(b"b", name="b")
    broker.subscribe(b"c", name="c")
    broker.subscribe(b"d", name="d")
    assert broker.taken(b"c") == [b"1"]
    assert broker.taken(b"d") == [], "a has done it, b and c have it: these are three"
    broker.subscribe(b"a", name="a")
    assert broker.taken(b"a") == [b"1"]
    assert broker.processed(sequence, node=b"a") == {}
    assert broker.describe()["held"] == 1, "that it did it again does not count again"
    broker.processed(sequence, node=b"b")
    broker.processed(sequence, node=b"c")
    assert broker.receipts[1].verdict == "ok"
    assert broker.describe()["held"] == 0


def test_what_fails_after_its_receiver_was_moved_back_is_parked_in_its_place() -> None:
    broker = CoreBroker()
    for name in (b"a", b"b", b"c"):
        broker.subscribe(name, name=name.decode())
    sequence = broker.publish(b"1", max_receivers=2)
    first, second = (name for name in (b"a", b"b", b"c") if broker.taken(name))
    (third,) = {b"a", b"b", b"c"} - {first, second}
    broker.processed(sequence, node=first)
    broker.seek(first.decode(), sequence=0)
    assert broker.taken(first) == [b"1"]
    broker.failed(sequence, node=first)
    assert [entry["receiver"] for entry in broker.parked()] == [first.decode()]
    broker.processed(sequence, node=second)
    assert broker.taken(third) == []
    assert broker.describe()["held"] == 1, "one is done, and one is parked"
    broker.detach(third)
    broker.renew(sequence)
    broker.processed(sequence, node=first)
    assert broker.describe()["held"] == 0


def test_what_was_moved_back_and_not_renewed_is_over_with_its_message() -> None:
    broker = CoreBroker()
    for name in (b"a", b"b"):
        broker.subscribe(name, name=name.decode())
    sequence = broker.publish(b"1", max_receivers=3, expires_ms=broker.now_ms + 1_000)
    broker.failed(sequence, node=b"b")
    broker.processed(sequence, node=b"a")
    broker.seek("a", sequence=0)
    broker.detach(b"a")
    broker.advance(1_000)
    broker.take(b"a")
    broker.subscribe(b"a", name="a")
    assert broker.taken(b"a") == []
    assert broker.describe()["held"] == 0


def renewed_for_one_that_left(order: str, **fields: Any) -> tuple[CoreBroker, int]:
    """A message expires; its only parked delivery was renewed, of a receiver that has narrowed."""
    broker = CoreBroker()
    broker.subscribe(interests="a/*", credit=1, **fields)
    sequence = broker.publish(subject="a/x", expires_ms=broker.now_ms + 1_000, **EVERY)
    broker.failed(sequence)
    holding = broker.publish(subject="a/x", **EVERY)
    assert len(broker.take()) == 2, "its credit is used up, so that what is renewed waits"
    steps: dict[str, Callable[[], object]] = {
        "narrow": lambda: broker.set_interests("b/*"),
        "renew": lambda: broker.renew(sequence),
        "read on": lambda: broker.processed(holding),
        "expire": lambda: broker.advance(1_000),
        "restart": broker.restart,
        "return": lambda: broker.subscribe(interests="b/*", **fields),
    }
    for step in order.split(", "):
        steps[step]()
    broker.tick()
    return broker, sequence


@pytest.mark.parametrize("fields", [{"name": "anna"}, {"group": "crew", "durable": False}], ids=str)
@pytest.mark.parametrize(
    "order",
    [
        "narrow, renew, read on, expire",
        "renew, narrow, read on, expire",
        "renew, expire, narrow",
        "narrow, renew, expire, read on",
        "renew, expire, narrow, read on",
    ],
)
def test_an_expired_message_does_not_stay_for_a_receiver_that_wants_it_no_more(
    order: str, fields: dict[str, Any]
) -> None:
    broker, sequence = renewed_for_one_that_left(order, **fields)
    for delivered in broker.take():
        broker.processed(delivered.sequence)
    assert broker.describe()["held"] == 1, "the other one, that did not expire"
    assert broker.actor.record_of("l", sequence) is None
    broker.set_interests("a/*")
    assert broker.taken() == []


@pytest.mark.parametrize("order", ["narrow, renew, expire", "renew, expire"])
def test_nor_does_it_stay_when_a_restart_comes_between(order: str) -> None:
    broker, sequence = renewed_for_one_that_left(f"{order}, restart, return", name="anna")
    assert broker.taken() == []
    assert broker.describe()["held"] == 1, "the other one, that did not expire"
    assert broker.actor.record_of("l", sequence) is None


def test_an_expired_message_stays_for_another_who_has_it_parked() -> None:
    broker = CoreBroker()
    for name in (b"a", b"b"):
        broker.subscribe(name, "a/*", name=name.decode(), credit=1)
    sequence = broker.publish(b"1", "a/x", expires_ms=broker.now_ms + 1_000, **EVERY)
    for name in (b"a", b"b"):
        broker.failed(sequence, node=name)
    broker.publish(b"2", "a/x", **EVERY)
    broker.set_interests("b/*", node=b"a")
    broker.renew(sequence, "a")
    broker.restart()
    broker.subscribe(b"a", "b/*", name="a")
    broker.advance(1_000)
    assert broker.taken(b"a") == [b"1", b"2"], "from before the restart"
    assert [entry["receiver"] for entry in broker.parked()] == ["b"]
    broker.subscribe(b"b", "a/*", name="b")
    broker.take(b"b")
    broker.renew(sequence)
    assert broker.taken(b"b") == [b"1"]
    broker.processed(sequence, node=b"b")
    assert broker.actor.record_of("l", sequence) is None


def test_a_large_backlog_with_max_receivers_reaches_two_of_three(rows: Rows) -> None:
    broker = CoreBroker(rows)
    nodes = [b"a", b"b", b"c"]
    broker.publish_many(numbered(0, 1_500), max_receivers=2)
    for node in nodes:
        broker.subscribe(node, name=node.decode(), credit=40)
    seen: Counter[bytes] = Counter()
    for payloads in consume(broker, *nodes).values():
        assert len(payloads) == len(set(payloads))
        seen.update(payloads)
    assert seen == Counter(dict.fromkeys(numbered(0, 1_500), 2))
    assert broker.describe()["held"] == 0


@pytest.mark.parametrize("batches", [[1] * 9, [9], [2, 4, 3], [4, 5]], ids=str)
def test_a_receiver_that_does_not_read_has_its_newest_online_copies(
    monkeypatch: pytest.MonkeyPatch, batches: list[int]
) -> None:
    monkeypatch.setattr(limits, "ONLINE_COPIES_MAX", 3)
    broker = CoreBroker()
    broker.subscribe(b"slow", credit=0)
    broker.subscribe(b"late", credit=0)
    broker.subscribe(b"quick", credit=100)
    broker.publish(b"first", mode="online", expect="sent")
    payloads = [str(number).encode() for number in range(1, 10)]
    for size in batches:
        batch, payloads = payloads[:size], payloads[size:]
        broker.publish_many(batch, mode="online", expect="sent")
    everything = [b"first", *(str(number).encode() for number in range(1, 10))]
    assert broker.taken(b"quick") == everything
    assert broker.actor.held == 3
    broker.grant(2, b"slow")
    broker.grant(100, b"slow")
    assert broker.taken(b"slow") == everything[-3:]
    assert broker.actor.held == 3  # somebody else waits for them
    broker.detach(b"late")
    assert broker.actor.held == 0


@pytest.mark.parametrize("requeue", ["back", "front"])
def test_a_receiver_without_credit_gets_all_after_a_restart_as_it_has_credit(
    small_limits: None, requeue: str
) -> None:
    broker = CoreBroker(sent_timeout_ms=10, requeue=requeue)
    broker.subscribe(name="anna", credit=0)
    first = broker.publish(b"0", max_receivers=None)
    broker.restart()
    for each in range(1, 5):
        broker.publish(b"%d" % each, max_receivers=None, expect="sent", receipt=True)
    broker.subscribe(name="anna", credit=1)
    broker.advance(60)  # the first comes back, and waits again
    broker.grant(3)
    broker.grant(3)
    assert {b"0", b"1", b"2", b"3", b"4"} == set(broker.taken())
    assert broker.processed(first) == {}
