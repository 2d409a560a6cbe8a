"""The work queue (spec section 7, and what the HTTP door asks of it): every verb in every state."""

from collections.abc import Callable
from typing import Any

import pytest

from asterism import PeerError, limits
from asterism import commands as ask
from asterism.message import NEVER_MS
from asterism.rows import Rows
from asterism.settings import DAY_MS, BackoffMs
from tests.support.core import CoreBroker
from tests.support.kinds import code_of

Verb = Callable[[CoreBroker, int], object]


def outcome(broker: CoreBroker, verb: Verb, sequence: int) -> str:
    try:
        verb(broker, sequence)
    except PeerError as refusal:
        return refusal.code
    return "ok"


COUNTED = ("drafting", "waiting", "ordered", "active", "failed")


def state_of(broker: CoreBroker) -> str:
    """The state of the only message of a topic."""
    stats = broker.stats()
    found = [state for state in COUNTED if stats[state]]
    assert len(found) <= 1 and sum(stats[state] for state in COUNTED) == len(found)
    return found[0] if found else "gone"


def bring_to(broker: CoreBroker, state: str, payload: bytes = b"payload") -> int:
    """One message in a state."""
    sequence = broker.draft()
    if state == "gone":
        broker.abandon(sequence)
    if state in ("drafting", "gone"):
        return sequence
    broker.set_draft(sequence, payload)
    if state != "waiting":
        assert broker.ordered(broker.order()) == sequence
    if state in ("active", "failed"):
        broker.fetch(sequence)
    if state == "failed":
        broker.fail(sequence)
    return sequence


def orders(broker: CoreBroker, count: int) -> list[int | str | None]:
    return [broker.ordered(broker.order(0)) for _ in range(count)]


# --- every verb in every state ----------------------------------------------------------------

VERBS: dict[str, Verb] = {
    "set": lambda broker, sequence: broker.set_draft(sequence, b"set"),
    "get": lambda broker, sequence: broker.fetch(sequence),
    "complete": lambda broker, sequence: broker.complete(sequence),
    "fail": lambda broker, sequence: broker.fail(sequence),
    "renew": lambda broker, sequence: broker.renew(sequence),
    "abandon": lambda broker, sequence: broker.abandon(sequence),
}
# What a verb makes of a message in a state; a code where it is refused.
WRONG, NONE = "wrong_state", "no_such_message"
STATES = [*COUNTED, "gone"]
TABLE = {
    "set": ["waiting", "waiting", WRONG, WRONG, WRONG, NONE],
    "get": [WRONG, "waiting", "active", "active", "failed", NONE],
    "complete": [WRONG, WRONG, WRONG, "gone", WRONG, NONE],
    "fail": [WRONG, WRONG, WRONG, "failed", WRONG, NONE],
    "renew": [WRONG, WRONG, WRONG, WRONG, "waiting", NONE],
    "abandon": ["gone", "gone", "gone", "gone", "gone", NONE],
}
CASES = [
    (verb, state, expected)
    for verb, line in TABLE.items()
    for state, expected in zip(STATES, line, strict=True)
]


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarted"])
@pytest.mark.parametrize(("verb", "state", "expected"), CASES)
def test_a_verb_in_a_state_does_what_the_table_says(
    rows: Rows, verb: str, state: str, expected: str, restarts: bool
) -> None:
    broker = CoreBroker(rows)
    sequence = bring_to(broker, state)
    if restarts:
        broker.restart()
    assert state_of(broker) == state
    code = outcome(broker, VERBS[verb], sequence)
    if expected in STATES:
        assert (code, state_of(broker)) == ("ok", expected)
    else:
        assert (code, state_of(broker)) == (expected, state)
    assert broker.stats()["completed"] == (verb == "complete" and state == "active")


@pytest.mark.parametrize("verb", VERBS)
def test_a_sequence_that_never_was_is_no_message(verb: str) -> None:
    broker = CoreBroker()
    broker.draft()
    for sequence in (0, 2, 10**15):
        assert outcome(broker, VERBS[verb], sequence) == "no_such_message"


@pytest.mark.parametrize("verb", ["complete", "fail", "renew", "abandon"])
def test_a_verb_that_is_repeated_has_no_further_effect(verb: str) -> None:
    broker = CoreBroker()
    sequence = bring_to(broker, "failed" if verb == "renew" else "active")
    VERBS[verb](broker, sequence)
    before = broker.stats()
    assert outcome(broker, VERBS[verb], sequence) in ("wrong_state", "no_such_message")
    assert broker.stats() == before


# --- draft and set ----------------------------------------------------------------------------


def test_a_draft_that_is_never_set_is_deleted(rows: Rows) -> None:
    broker = CoreBroker(rows)
    sequence = broker.draft()
    broker.advance(59_999)
    assert state_of(broker) == "drafting"
    broker.restart()
    broker.advance(1)
    assert state_of(broker) == "gone"
    assert outcome(broker, VERBS["set"], sequence) == "no_such_message"


def test_the_draft_timeout_in_force_decides() -> None:
    broker = CoreBroker()
    broker.draft()
    broker.advance(10_000)
    broker.configure(draft_timeout_ms=15_000)
    broker.advance(4_999)
    assert state_of(broker) == "drafting"
    broker.advance(1)
    assert state_of(broker) == "gone"
    broker.draft()
    broker.configure(draft_timeout_ms=100_000)
    broker.advance(99_999)
    assert state_of(broker) == "drafting"


def test_what_was_set_in_time_does_not_expire(rows: Rows) -> None:
    broker = CoreBroker(rows)
    sequence = bring_to(broker, "waiting")
    broker.advance(365 * DAY_MS)
    broker.restart()
    broker.tick()
    assert broker.ordered(broker.order()) == sequence


def test_what_failed_does_not_expire() -> None:
    broker = CoreBroker()
    bring_to(broker, "failed")
    broker.advance(365 * DAY_MS)
    assert state_of(broker) == "failed"


@pytest.mark.parametrize(
    "payload", [b"", b"\x00\xff\xfe", b"x" * 20_000], ids=["empty", "bytes", "large"]
)
def test_get_returns_exactly_what_set_sent(rows: Rows, payload: bytes) -> None:
    broker = CoreBroker(rows)
    sequence = broker.draft(7)
    broker.set_draft(sequence, payload, **{"content-type": "text/plain"})
    for _ in range(2):
        read = broker.fetch(sequence)
        assert read["payload"] == payload
        assert read["attributes"] == {"content-type": "text/plain"}
        assert (read["priority"], read["status"]) == (7, "waiting")
        broker.restart()


@pytest.mark.parametrize("state", ["waiting", "ordered", "active", "failed"])
def test_get_reads_a_message_in_any_state_but_drafting(state: str) -> None:
    broker = CoreBroker()
    sequence = bring_to(broker, state)
    names = {"ordered": "received", "active": "received"}
    for _ in range(3):
        read = broker.fetch(sequence)
        assert (read["payload"], read["status"]) == (b"payload", names.get(state, state))


def test_set_replaces_payload_and_attributes_of_a_waiting_message(rows: Rows) -> None:
    broker = CoreBroker(rows)
    sequence = broker.draft(3)
    broker.set_draft(sequence, b"old", kind="old")
    broker.set_draft(sequence, b"new", kind="new")
    broker.restart()
    broker.order()
    read = broker.fetch(sequence)
    assert (read["payload"], read["attributes"], read["priority"]) == (b"new", {"kind": "new"}, 3)


def test_a_payload_over_the_limit_is_refused_and_the_draft_stays() -> None:
    broker = CoreBroker(max_payload=3)
    sequence = broker.draft()
    with pytest.raises(PeerError) as refusal:
        broker.set_draft(sequence, b"1234")
    assert code_of(refusal) == "too_large"
    assert state_of(broker) == "drafting"
    broker.set_draft(sequence, b"123")


@pytest.mark.parametrize("priority", [-1, 1.5, "1", True, 2**31])
def test_a_bad_priority_is_refused(priority: Any) -> None:
    with pytest.raises(PeerError) as refusal:
        ask.Draft(b"n", 1, bytes(16), priority)
    assert code_of(refusal) == "bad_request"


# --- order ------------------------------------------------------------------------------------


def test_the_lowest_priority_number_goes_first_and_none_last(rows: Rows) -> None:
    broker = CoreBroker(rows)
    made = {priority: broker.make(priority=priority) for priority in (None, 10, 2, 0, 2**31 - 1)}
    broker.restart()
    assert orders(broker, 6) == [made[0], made[2], made[10], made[2**31 - 1], made[None], None]


def test_ties_go_by_the_time_of_becoming_waiting(rows: Rows) -> None:
    broker = CoreBroker(rows)
    first, second, third = (broker.draft() for _ in range(3))
    for sequence in (second, third, first):
        broker.set_draft(sequence)
    broker.restart()
    assert orders(broker, 3) == [second, third, first]


def test_setting_a_waiting_message_again_keeps_its_place(rows: Rows) -> None:
    broker = CoreBroker(rows)
    first, second = broker.make(), broker.make()
    broker.set_draft(first, b"again")
    broker.restart()
    broker.set_draft(first, b"and again")
    assert orders(broker, 2) == [first, second]


@pytest.mark.parametrize("state", ["ordered", "active"])
def test_what_is_rolled_back_goes_behind_its_equals_with_its_priority(
    rows: Rows, state: str
) -> None:
    broker = CoreBroker(rows, sent_timeout_ms=1_000, received_timeout_ms=1_000)
    first = broker.make(priority=1)
    assert orders(broker, 1) == [first]
    if state == "active":
        broker.fetch(first)
    second, worse = broker.make(priority=1), broker.make(priority=2)
    broker.advance(1_000)
    broker.restart()
    assert orders(broker, 3) == [second, first, worse]


def test_requeue_front_keeps_the_place_of_what_is_rolled_back() -> None:
    broker = CoreBroker(sent_timeout_ms=1_000, requeue="front")
    first, second = broker.make(), broker.make()
    assert orders(broker, 1) == [first]
    broker.advance(1_000)
    assert orders(broker, 2) == [first, second]


def test_a_renewed_message_goes_behind_its_equals() -> None:
    broker = CoreBroker()
    first = bring_to(broker, "failed")
    second = broker.make()
    broker.renew(first)
    assert orders(broker, 2) == [second, first]


def test_an_order_waits_until_there_is_a_message() -> None:
    broker = CoreBroker()
    order = broker.order()
    broker.advance(DAY_MS)
    assert broker.ordered(order) is None
    sequence = broker.draft()
    assert broker.ordered(order) is None
    broker.set_draft(sequence)
    assert broker.ordered(order) == sequence


def test_an_order_with_a_time_ends_with_nothing() -> None:
    broker = CoreBroker()
    order = broker.order(5_000)
    broker.advance(4_999)
    assert broker.answer(order, b"worker") is None
    broker.advance(1)
    assert broker.answer(order, b"worker") == {"sequence": None}
    broker.make()
    assert state_of(broker) == "waiting"


def complete_active(broker: CoreBroker, sequence: int) -> None:
    broker.fetch(sequence)
    broker.complete(sequence)


def fail_active(broker: CoreBroker, sequence: int) -> None:
    broker.fetch(sequence)
    broker.fail(sequence)


WAKES: dict[str, tuple[str, Verb]] = {
    "set": ("drafting", lambda broker, sequence: broker.set_draft(sequence)),
    "renew": ("failed", lambda broker, sequence: broker.renew(sequence)),
    "renew all": ("failed", lambda broker, _: broker.renew_all()),
    "rollback of ordered": ("ordered", lambda broker, _: broker.advance(60_000)),
    "rollback of active": ("active", lambda broker, _: broker.advance(300_000)),
}


@pytest.mark.parametrize(("state", "wake"), WAKES.values(), ids=WAKES.keys())
@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarted"])
def test_an_order_that_waits_is_woken(state: str, wake: Verb, restarts: bool) -> None:
    broker = CoreBroker()
    sequence = bring_to(broker, state)
    if restarts:
        broker.restart()
    order = broker.order()
    assert broker.ordered(order) is None
    wake(broker, sequence)
    assert broker.ordered(order) == sequence


FREES: dict[str, Verb] = {
    "complete": complete_active,
    "fail": fail_active,
    "abandon": lambda broker, sequence: broker.abandon(sequence),
}


@pytest.mark.parametrize("free", FREES.values(), ids=FREES.keys())
def test_an_order_held_up_by_concurrency_is_woken_when_a_place_is_free(
    rows: Rows, free: Verb
) -> None:
    broker = CoreBroker(rows, concurrency=1)
    first, second = broker.make(), broker.make()
    assert orders(broker, 1) == [first]
    order = broker.order()
    assert broker.ordered(order) is None
    free(broker, first)
    assert broker.ordered(order) == second


def test_rollback_frees_a_place_of_concurrency() -> None:
    broker = CoreBroker(concurrency=1)
    first, second = broker.make(), broker.make()
    assert orders(broker, 1) == [first]
    order = broker.order()
    broker.advance(60_000)
    assert broker.ordered(order) == second


def test_one_message_wakes_exactly_one_order_and_the_first() -> None:
    broker = CoreBroker()
    waiting = [broker.order() for _ in range(3)]
    made = []
    for count in (1, 2, 3):
        made.append(broker.make())
        assert [broker.ordered(order) for order in waiting] == made + [None] * (3 - count)


def test_an_order_is_answered_once() -> None:
    broker = CoreBroker()
    order = broker.order()
    first = broker.make()
    broker.make()
    assert broker.ordered(order) == first
    assert (broker.stats()["ordered"], broker.stats()["waiting"]) == (1, 1)


def test_clear_wakes_all_orders_of_its_topic_and_of_no_other() -> None:
    broker = CoreBroker()
    waiting = [broker.order() for _ in range(3)]
    with broker.on("other"):
        elsewhere = broker.order()
    broker.clear()
    assert {broker.ordered(order) for order in waiting} == {"topic_gone"}
    assert broker.ordered(elsewhere) is None


@pytest.mark.parametrize("way", ["detach", "cancel"])
def test_an_order_of_one_who_hung_up_leaves_the_message_waiting(way: str) -> None:
    broker = CoreBroker()
    order = broker.order(node=b"gone")
    if way == "detach":
        broker.detach(b"gone")
    else:
        broker.cancel_wait(order, node=b"gone")
    sequence = broker.make()
    assert broker.ordered(order, b"gone") is None
    assert state_of(broker) == "waiting"
    assert broker.ordered(broker.order()) == sequence


def test_hanging_up_ends_no_order_of_another() -> None:
    broker = CoreBroker()
    gone, stays = broker.order(node=b"gone"), broker.order(node=b"stays")
    broker.cancel_wait(stays, node=b"gone")
    broker.detach(b"gone")
    sequence = broker.make()
    assert broker.ordered(gone, b"gone") is None
    assert broker.ordered(stays, b"stays") == sequence


def test_what_was_ordered_stays_ordered_when_its_client_hangs_up() -> None:
    broker = CoreBroker()
    bring_to(broker, "ordered")
    broker.detach(b"worker")
    assert state_of(broker) == "ordered"


def test_as_many_orders_wait_as_may_and_one_more_is_told_to_come_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PULLS_MAX", 2)
    broker = CoreBroker()
    answers = [broker.ordered(broker.order()) for _ in range(3)]
    assert answers == [None, None, "busy"]


def test_orders_do_not_outlive_a_restart() -> None:
    broker = CoreBroker()
    order = broker.order()
    broker.restart()
    broker.make()
    assert broker.ordered(order) is None
    assert state_of(broker) == "waiting"


# --- deadlines --------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "timeout_ms"), [("ordered", 60_000), ("active", 300_000)])
def test_what_is_out_survives_a_restart_with_its_deadline(
    rows: Rows, state: str, timeout_ms: int
) -> None:
    broker = CoreBroker(rows)
    bring_to(broker, state)
    broker.advance(timeout_ms - 10)
    broker.restart()
    assert state_of(broker) == state
    broker.advance(9)
    assert state_of(broker) == state
    broker.advance(1)
    assert state_of(broker) == "waiting"


def test_an_active_message_is_completed_after_a_restart(rows: Rows) -> None:
    broker = CoreBroker(rows)
    sequence = bring_to(broker, "active")
    broker.restart()
    assert orders(broker, 1) == [None]
    broker.complete(sequence)
    assert broker.stats()["completed"] == 1
    broker.restart()
    assert state_of(broker) == "gone"


def test_getting_an_active_message_again_does_not_restart_its_clock() -> None:
    broker = CoreBroker()
    sequence = bring_to(broker, "active")
    broker.advance(200_000)
    broker.fetch(sequence)
    broker.advance(100_000)
    assert state_of(broker) == "waiting"


def test_getting_an_ordered_message_starts_the_clock_of_active() -> None:
    broker = CoreBroker()
    sequence = bring_to(broker, "ordered")
    broker.advance(59_000)
    broker.fetch(sequence)
    broker.advance(299_999)
    assert state_of(broker) == "active"
    broker.advance(1)
    assert state_of(broker) == "waiting"


@pytest.mark.parametrize(
    ("state", "setting"), [("ordered", "sent_timeout_ms"), ("active", "received_timeout_ms")]
)
def test_the_timeout_in_force_decides_for_what_is_out(state: str, setting: str) -> None:
    broker = CoreBroker()
    bring_to(broker, state)
    broker.configure(**{setting: 5_000})
    broker.advance(4_999)
    assert state_of(broker) == state
    broker.advance(1)
    assert state_of(broker) == "waiting"


def test_a_completion_that_comes_too_late_does_not_touch_the_new_holder() -> None:
    broker = CoreBroker()
    sequence = bring_to(broker, "active")
    broker.advance(300_000)
    assert orders(broker, 1) == [sequence]
    assert outcome(broker, VERBS["complete"], sequence) == "wrong_state"
    assert state_of(broker) == "ordered"


# --- failing ----------------------------------------------------------------------------------


def test_failed_messages_are_listed_oldest_failure_first(rows: Rows) -> None:
    broker = CoreBroker(rows)
    made = [broker.make() for _ in range(3)]
    orders(broker, 3)
    for sequence in (made[2], made[0], made[1]):
        broker.advance(1_000)
        fail_active(broker, sequence)
    broker.restart()
    listed = broker.parked()
    assert [parked["sequence"] for parked in listed] == [made[2], made[0], made[1]]
    assert [parked["reason"] for parked in listed] == ["no"] * 3
    assert listed[1]["failed_ms"] - listed[0]["failed_ms"] == 1_000


def test_failed_messages_are_listed_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIST_MAX", 2)
    broker = CoreBroker()
    made = [bring_to(broker, "failed") for _ in range(5)]
    seen: list[int] = []
    after = 0
    while page := broker.ask(ask.ListParked(b"admin", broker.request(), after))["parked"]:
        assert len(page) <= 2
        seen += [parked["sequence"] for parked in page]
        after = page[-1]["position"]
    assert seen == made


def test_renew_all_is_first_in_first_out_within_a_priority(rows: Rows) -> None:
    broker = CoreBroker(rows)
    made = [broker.make(priority=priority) for priority in (1, 1, 0, 1)]
    orders(broker, 4)
    for sequence in (made[3], made[2], made[0], made[1]):
        fail_active(broker, sequence)
    broker.renew_all()
    broker.restart()
    assert broker.parked() == []
    assert orders(broker, 4) == [made[2], made[3], made[0], made[1]]


def test_the_bulk_verbs_are_fine_with_nothing_to_do() -> None:
    broker = CoreBroker()
    bring_to(broker, "waiting")
    broker.renew_all()
    broker.abandon_all()
    assert broker.parked() == []
    assert state_of(broker) == "waiting"


def test_abandon_all_drops_every_failed_message_and_nothing_else(rows: Rows) -> None:
    broker = CoreBroker(rows)
    for _ in range(3):
        bring_to(broker, "failed")
    bring_to(broker, "waiting")
    broker.abandon_all()
    broker.restart()
    assert state_of(broker) == "waiting"
    assert broker.stats()["completed"] == 0


def test_a_renewed_message_can_fail_and_be_renewed_again() -> None:
    broker = CoreBroker()
    sequence = bring_to(broker, "failed")
    for _ in range(3):
        broker.renew(sequence)
        assert orders(broker, 1) == [sequence]
        fail_active(broker, sequence)
    assert len(broker.parked()) == 1


def test_a_failure_is_retried_where_the_topic_says_so(rows: Rows) -> None:
    broker = CoreBroker(rows, max_attempts=2, retry_backoff=BackoffMs(1_000, 1_000))
    sequence = bring_to(broker, "active")
    broker.fail(sequence)
    broker.restart()
    order = broker.order()
    broker.advance(999)
    assert broker.ordered(order) is None
    broker.advance(1)
    assert broker.ordered(order) == sequence
    fail_active(broker, sequence)
    assert state_of(broker) == "failed"


# --- stats ------------------------------------------------------------------------------------


def test_stats_count_every_state(rows: Rows) -> None:
    broker = CoreBroker(rows)
    for state, count in (("failed", 5), ("active", 4), ("ordered", 3), ("drafting", 1)):
        for _ in range(count):
            bring_to(broker, state)
    for _ in range(2):
        broker.make()
    for _ in range(2):
        stats = broker.stats()
        assert [stats[state] for state in COUNTED] == [1, 2, 3, 4, 5]
        broker.restart()


def test_completed_survives_restarts_and_only_clear_resets_it(rows: Rows) -> None:
    broker = CoreBroker(rows)
    for _ in range(3):
        broker.complete(bring_to(broker, "active"))
    broker.abandon(bring_to(broker, "active"))
    broker.abandon(bring_to(broker, "failed"))
    broker.restart()
    assert broker.stats()["completed"] == 3
    broker.clear()
    assert broker.stats()["completed"] == 0
    broker.restart()
    assert broker.stats()["completed"] == 0


def test_a_queue_is_listed_from_its_first_draft_until_it_is_cleared(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.configure(unique=True)
    assert broker.stats()["listed"] is False
    broker.abandon(broker.draft())
    broker.restart()
    assert broker.stats()["listed"] is True
    broker.clear()
    broker.restart()
    assert broker.stats()["listed"] is False


def test_abandoning_is_counted_nowhere() -> None:
    broker = CoreBroker()
    for state in COUNTED:
        broker.abandon(bring_to(broker, state))
    stats = broker.stats()
    assert [stats[state] for state in (*COUNTED, "completed")] == [0] * 6


# --- with the other doors ---------------------------------------------------------------------


@pytest.mark.parametrize("expect", ["sent", "received", "processed"])
def test_a_message_for_one_receiver_can_be_ordered_whatever_is_expected_of_it(
    rows: Rows, expect: str
) -> None:
    broker = CoreBroker(rows)
    sequence = broker.publish(b"from afar", expect=expect, receipt=True, expires_ms=NEVER_MS)
    assert broker.ordered(broker.order()) == sequence
    broker.restart()
    assert broker.fetch(sequence)["payload"] == b"from afar"
    assert 1 not in broker.receipts
    broker.complete(sequence)
    assert broker.receipts[1].verdict == "ok"


def test_a_message_for_several_receivers_is_not_of_the_work_queue() -> None:
    broker = CoreBroker()
    sequence = broker.publish(max_receivers=None)
    assert orders(broker, 1) == [None]
    for verb in ("set", "complete", "fail"):
        assert outcome(broker, VERBS[verb], sequence) == "no_such_message"


def test_a_drafted_message_is_seen_by_a_subscriber() -> None:
    broker = CoreBroker()
    broker.subscribe(interests="orders")
    draft = broker.draft()
    assert broker.taken() == []
    broker.set_draft(draft, b"1")
    (delivered,) = broker.take()
    assert (delivered.sequence, delivered.payload) == (draft, b"1")
    broker.processed(draft)
    assert broker.stats()["completed"] == 1


def test_what_a_subscriber_holds_is_not_the_work_queues_to_end() -> None:
    broker = CoreBroker()
    broker.subscribe()
    sequence = broker.make()
    assert state_of(broker) == "ordered"
    assert broker.fetch(sequence)["status"] == "sent"
    for verb in ("set", "complete", "fail", "renew"):
        assert outcome(broker, VERBS[verb], sequence) == "wrong_state"
    assert broker.processed(sequence) == {}


def test_what_is_ordered_is_not_a_subscribers_to_report_on() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0)
    sequence = bring_to(broker, "active")
    assert broker.processed(sequence) == {sequence: "not_yours"}
    assert state_of(broker) == "active"


def test_orders_and_subscribers_share_what_waits() -> None:
    broker = CoreBroker()
    order = broker.order()
    broker.subscribe(credit=1)
    made = [broker.make(), broker.make()]
    taken = [delivered.sequence for delivered in broker.take()]
    assert sorted([broker.ordered(order), *taken], key=str) == sorted(made, key=str)


def test_what_a_lost_subscriber_held_can_be_ordered() -> None:
    broker = CoreBroker()
    broker.subscribe()
    sequence = broker.make()
    order = broker.order()
    broker.detach()
    assert broker.ordered(order) == sequence


def test_a_push_message_is_not_handed_to_an_order() -> None:
    broker = CoreBroker()
    order = broker.order(0)
    broker.subscribe(credit=0)
    broker.publish(mode="push")
    assert broker.ordered(broker.order(0)) is None
    assert broker.ordered(order) is None
    with pytest.raises(PeerError) as refusal:
        broker.detach()
        broker.publish(mode="push")
    assert code_of(refusal) == "no_receiver"


def test_a_large_backlog_is_ordered_once_and_in_order(rows: Rows) -> None:
    broker = CoreBroker(rows)
    made = [
        sequence for sequence in broker.publish_many([b"x"] * 2_500) if isinstance(sequence, int)
    ]
    urgent = broker.make(priority=0)
    broker.restart()
    seen = []
    for _ in range(2_501):
        sequence = broker.ordered(broker.order(0))
        assert isinstance(sequence, int)
        seen.append(sequence)
        if len(seen) % 10 == 0:
            broker.abandon(sequence)
        if len(seen) == 1_300:
            broker.restart()
    assert seen == [urgent, *made]


def test_the_name_of_a_topic_that_is_no_subject_makes_drafts_all_the_same() -> None:
    for name in ("*", "**", "/", "a/**/b"):
        broker = CoreBroker(topic=name)
        sequence = broker.make(b"1")
        broker.subscribe(interests="**")
        assert [delivered.sequence for delivered in broker.take()] == [sequence]
