"""The ladder (spec section 2): every step of a delivery, and who may move it when."""

from typing import Any

import pytest

from asterism import PeerError, limits
from asterism import commands as ask
from asterism.actors.shard import Shard
from asterism.effects import Forward
from asterism.errors import ERRORS
from asterism.message import decode_header
from asterism.settings import BackoffMs, RejectNew
from tests.support.core import START_MS, CoreBroker, header
from tests.support.kinds import (
    ALL,
    ONE,
    ONLINE,
    PUSH,
    Kind,
    across_restarts,
    come_back,
    durable_kinds,
    every_kind,
)

A, B, C = b"node-a", b"node-b", b"node-c"


def counts(broker: CoreBroker) -> dict[str, int]:
    """How many messages are on each step, without those where there are none."""
    described = broker.describe()
    steps = ("drafting", "waiting", "sent", "received", "parked", "completed")
    return {step: described[step] for step in steps if described[step]}


def draft(broker: CoreBroker, number: int = 1, priority: int | None = None) -> int:
    body = broker.ask(
        ask.Draft(b"admin", broker.request(), number.to_bytes(16, "big"), priority=priority)
    )
    sequence = body["sequence"]
    assert isinstance(sequence, int)
    return sequence


def set_draft(broker: CoreBroker, sequence: int, payload: bytes = b"set") -> None:
    broker.ask(ask.SetDraft(b"admin", broker.request(), sequence, payload))


# --- the steps --------------------------------------------------------------------------------


@across_restarts
def test_a_message_climbs_from_drafting_to_processed(restarts: bool) -> None:
    broker = CoreBroker()
    sequence = draft(broker)
    assert counts(broker) == {"drafting": 1}
    set_draft(broker, sequence)
    if restarts:
        broker.restart()
    assert counts(broker) == {"waiting": 1}
    broker.subscribe(name="worker")
    assert counts(broker) == {"sent": 1}
    broker.received(sequence)
    assert counts(broker) == {"received": 1}
    broker.processed(sequence)
    assert counts(broker) == {"completed": 1}


def test_a_receiver_that_says_so_makes_its_delivery_failed() -> None:
    broker = CoreBroker()
    broker.subscribe()
    sequence = broker.publish()
    broker.failed(sequence)
    assert counts(broker) == {"parked": 1}
    assert broker.fetch(sequence)["status"] == "failed"


def test_a_passed_deadline_makes_a_delivery_unreachable_and_the_message_waits() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=1)
    first = broker.publish()
    second = broker.publish()
    broker.advance(60_000)
    assert broker.fetch(first)["status"] == "waiting"
    assert broker.fetch(second)["status"] == "sent"


def test_processed_may_come_without_received() -> None:
    broker = CoreBroker()
    broker.subscribe()
    broker.processed(broker.publish())
    assert counts(broker) == {"completed": 1}


# --- rule 1: a status only climbs -------------------------------------------------------------


def test_a_status_only_climbs() -> None:
    broker = CoreBroker()
    broker.subscribe()
    sequence = broker.publish(receipt=True)
    broker.processed(sequence)
    for status in ("received", "failed", "processed"):
        assert broker.report(status, sequence) == {}
    assert counts(broker) == {"completed": 1}
    assert broker.receipts[1].verdict == "ok"


def test_received_again_does_not_move_the_deadline() -> None:
    broker = CoreBroker()
    broker.subscribe()
    sequence = broker.publish()
    broker.received(sequence)
    broker.advance(299_999)
    broker.received(sequence)
    assert counts(broker) == {"received": 1}
    broker.advance(1)
    assert [delivered.attempt for delivered in broker.take()] == [1, 2]


@every_kind
@pytest.mark.parametrize("repeated", ["received", "processed", "failed"])
def test_a_repeated_report_is_answered_and_changes_nothing(kind: Kind, repeated: str) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    broker.report(repeated, sequence)
    before = broker.describe()
    assert broker.report(repeated, sequence) == {}
    assert broker.describe() == before


@durable_kinds
@pytest.mark.parametrize("repeated", ["processed", "failed"])
def test_a_report_repeated_after_a_restart_changes_nothing(kind: Kind, repeated: str) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    broker.report(repeated, sequence)
    come_back(broker, True, name="worker")
    before = broker.describe()
    assert broker.report(repeated, sequence) == {}
    assert broker.describe() == before
    assert broker.taken() == [b"x"]


@durable_kinds
@across_restarts
@pytest.mark.parametrize("status", ["received", "failed"])
def test_a_late_report_other_than_processed_changes_nothing(
    kind: Kind, restarts: bool, status: str
) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    broker.detach()
    if restarts:
        broker.restart()
    broker.subscribe(name="worker", credit=0)
    before = broker.describe()
    assert broker.report(status, sequence) == {}
    assert broker.describe() == before
    assert counts(broker) == {"waiting": 1}


@every_kind
@pytest.mark.parametrize("status", ["received", "processed", "failed"])
def test_only_the_holder_may_report(kind: Kind, status: str) -> None:
    broker = CoreBroker()
    broker.subscribe(A, "a/**")
    broker.subscribe(B, "b/**")
    sequence = broker.publish(subject="a/b", **kind)
    before = broker.describe()
    assert broker.report(status, sequence, node=B) == {sequence: "not_yours"}
    assert broker.describe() == before


@pytest.mark.parametrize("kind", [ONE, PUSH])
@pytest.mark.parametrize("status", ["received", "processed", "failed"])
def test_nobody_may_report_on_what_a_receiver_had_that_is_gone(kind: Kind, status: str) -> None:
    broker = CoreBroker()
    broker.subscribe(A)
    broker.subscribe(C, credit=0)
    sequence = broker.publish(**kind)
    broker.detach(A)
    broker.subscribe(B, "other/**", credit=0)
    before = broker.describe()
    for node in (B, C):
        assert broker.report(status, sequence, node=node) == {sequence: "not_yours"}
    assert broker.describe() == before
    broker.grant(1, C)
    assert broker.taken(C) == [b"x"]


@durable_kinds
@pytest.mark.parametrize("status", ["received", "processed", "failed"])
def test_a_receiver_that_was_never_sent_its_copy_may_not_report(kind: Kind, status: str) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0, name="worker")
    sequence = broker.publish(**kind)
    assert broker.report(status, sequence) == {sequence: "not_yours"}
    assert counts(broker) == {"waiting": 1}


@every_kind
@pytest.mark.parametrize("status", ["processed", "failed"])
def test_any_member_of_a_group_may_report(kind: Kind, status: str) -> None:
    broker = CoreBroker()
    broker.subscribe(A, group="workers")
    broker.subscribe(B, group="workers", credit=0)
    sequence = broker.publish(receipt=True, **kind)
    assert broker.taken(A) == [b"x"]
    assert broker.report(status, sequence, node=B) == {}
    assert counts(broker).get("sent", 0) == 0


@every_kind
def test_processed_after_the_deadline_completes_what_nobody_else_holds(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=1)
    first = broker.publish(b"first", receipt=True, **kind)
    broker.publish(b"second", **kind)
    broker.advance(60_000)
    # The second took the only credit: the first waits behind it, with nobody.
    assert broker.taken() == [b"first", b"second"]
    assert broker.processed(first) == {}
    broker.advance(60_000)
    assert broker.taken() == [b"second"]
    if kind.get("max_receivers", 1) == 1:
        assert broker.receipts[1].statuses == {"worker": "processed"}


@durable_kinds
@pytest.mark.parametrize("settings", [{}, {"requeue": "front"}], ids=["back", "front"])
def test_processed_after_a_restart_completes_what_nobody_else_holds(
    kind: Kind, settings: dict[str, Any]
) -> None:
    broker = CoreBroker(**settings)
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    broker.restart()
    broker.subscribe(name="worker", credit=0)
    assert broker.processed(sequence) == {}
    broker.take()
    broker.grant(10)
    assert broker.taken() == []
    assert "sent" not in counts(broker)


@durable_kinds
def test_processed_during_the_pause_before_a_retry_completes_the_message(kind: Kind) -> None:
    broker = CoreBroker(max_attempts=2, retry_backoff=BackoffMs(1_000, 1_000))
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    broker.failed(sequence)
    assert broker.processed(sequence) == {}
    broker.take()
    broker.advance(10_000)
    assert broker.taken() == []


@across_restarts
def test_a_late_processed_does_not_end_what_another_holds(restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    sequence = broker.publish()
    broker.detach(A)
    if restarts:
        broker.restart()
    broker.subscribe(B, name="b")
    broker.subscribe(A, name="a")
    assert broker.processed(sequence, node=A) == {sequence: "not_yours"}
    assert counts(broker) == {"sent": 1}
    assert broker.processed(sequence, node=B) == {}


@across_restarts
def test_a_late_processed_takes_no_place_that_others_hold(restarts: bool) -> None:
    broker = CoreBroker()
    for node, name in ((A, "a"), (B, "b"), (C, "c")):
        broker.subscribe(node, name=name, credit=0)
    broker.grant(1, A)
    sequence = broker.publish(max_receivers=2)
    broker.detach(A)
    if restarts:
        broker.restart()
        for node, name in ((B, "b"), (C, "c")):
            broker.subscribe(node, name=name, credit=0)
    broker.grant(1, B)
    broker.grant(1, C)
    broker.subscribe(A, name="a", credit=0)
    broker.processed(sequence, node=A)
    broker.processed(sequence, node=B)
    # Two places, two holders: were the late report counted, the message would be over by now.
    assert counts(broker)["sent"] == 1


@pytest.mark.parametrize("how", ["out", "moved"])
def test_a_late_processed_ends_nothing_that_expired_and_stays_for_who_parked_it(how: str) -> None:
    broker = CoreBroker(default_ttl_ms=60_000)
    broker.subscribe(A, name="a")
    broker.subscribe(B, name="b")
    sequence = broker.publish(max_receivers=None)
    broker.failed(sequence, node=A)
    if how == "moved":  # what b has of it is in rows of its own
        broker.detach(B)
    broker.restart()
    broker.advance(60_000)
    broker.subscribe(B, name="b", credit=0)
    assert broker.processed(sequence, node=B) == {sequence: "not_yours"}
    assert [(each["name"], each["lag"]) for each in broker.receivers()] == [("a", 0), ("b", 0)]
    assert [entry["receiver"] for entry in broker.parked()] == ["a"]


def test_a_late_processed_is_no_error_once_another_has_finished() -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    sequence = broker.publish()
    broker.subscribe(B, name="b")
    broker.detach(A)
    broker.processed(sequence, node=B)
    broker.subscribe(A, name="a")
    assert broker.processed(sequence, node=A) == {}
    assert counts(broker) == {"completed": 1}


@durable_kinds
def test_a_failure_of_an_earlier_attempt_does_not_end_the_present_one(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    broker.advance(60_000)
    assert [delivered.attempt for delivered in broker.take()] == [1, 2]
    assert broker.failed(sequence, attempts=(1,)) == {}
    assert counts(broker) == {"sent": 1}
    broker.failed(sequence, attempts=(2,))
    assert counts(broker)["parked"] == 1


# --- rule 2: the expectation ------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("expect", ["sent", "received", "processed"])
def test_a_delivery_is_done_when_it_reaches_its_expectation(kind: Kind, expect: str) -> None:
    broker = CoreBroker()
    names = [broker.subscribe(A, name="a"), broker.subscribe(B, name="b")]
    expires: Kind = {} if "mode" in kind else {"expires_ms": broker.now_ms + 3_600_000}
    sequence = broker.publish(receipt=True, expect=expect, **kind, **expires)
    for status in ("received", "processed"):
        if expect in ("received", "processed"):
            assert "ok" not in [receipt.verdict for receipt in broker.receipts.values()]
            holders = [node for node in (A, B) if broker.inbox[node, 1]]
            for node in holders:
                broker.report(status, sequence, node=node)
        if status == expect:
            break
    broker.advance(3_600_000)
    receipt = broker.receipts[1]
    assert receipt.verdict == "ok"
    assert set(receipt.statuses.values()) == {expect}
    assert set(receipt.statuses) <= set(names)


@pytest.mark.parametrize("expect", ["sent", "received"])
def test_a_failure_after_the_expectation_changes_nothing(expect: str) -> None:
    broker = CoreBroker()
    broker.subscribe()
    sequence = broker.publish(expect=expect, receipt=True)
    broker.received(sequence)
    assert broker.failed(sequence) == {}
    assert counts(broker) == {"completed": 1}
    assert broker.receipts[1].verdict == "ok"


# --- rule 3: deadlines ------------------------------------------------------------------------


@across_restarts
def test_a_draft_that_was_never_set_is_deleted_at_its_deadline(restarts: bool) -> None:
    broker = CoreBroker()
    sequence = draft(broker)
    if restarts:
        broker.restart()
    broker.advance(59_999)
    assert counts(broker) == {"drafting": 1}
    broker.advance(1)
    assert counts(broker) == {}
    with pytest.raises(PeerError, match="no_such_message"):
        set_draft(broker, sequence)


@across_restarts
def test_a_draft_that_was_set_has_no_deadline_any_more(restarts: bool) -> None:
    broker = CoreBroker()
    set_draft(broker, draft(broker))
    if restarts:
        broker.restart()
    broker.advance(30 * 24 * 3_600_000)
    assert counts(broker) == {"waiting": 1}


@pytest.mark.parametrize("timeout_ms", [10_000, 200_000])
def test_a_changed_draft_timeout_holds_for_drafts_that_are_there(timeout_ms: int) -> None:
    broker = CoreBroker()
    draft(broker)
    broker.advance(5_000)
    broker.configure(draft_timeout_ms=timeout_ms)
    broker.advance(timeout_ms - 5_001)
    assert counts(broker) == {"drafting": 1}
    broker.advance(1)
    assert counts(broker) == {}


@every_kind
@pytest.mark.parametrize(("step", "timeout_ms"), [("sent", 60_000), ("received", 300_000)])
def test_a_deadline_passes_at_its_very_millisecond(kind: Kind, step: str, timeout_ms: int) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    if step == "received":
        broker.advance(1_000)  # the deadline of a step runs from that step on
        broker.received(sequence)
    broker.take()
    broker.advance(timeout_ms - 1)
    assert broker.take() == []
    broker.advance(1)
    assert [delivered.attempt for delivered in broker.take()] == [2]


@every_kind
@pytest.mark.parametrize("step", ["sent", "received"])
@across_restarts
def test_a_receiver_may_have_deadlines_of_its_own(kind: Kind, step: str, restarts: bool) -> None:
    broker = CoreBroker()
    own: Kind = {"sent_timeout_ms": 7_000, "received_timeout_ms": 9_000}
    broker.subscribe(name="worker", **own)
    come_back(broker, restarts, name="worker")
    sequence = broker.publish(**kind)
    if step == "received":
        broker.received(sequence)
    broker.take()
    broker.advance(own[f"{step}_timeout_ms"] - 1)
    assert broker.take() == []
    broker.advance(1)
    assert len(broker.take()) == 1


@every_kind
@pytest.mark.parametrize("expect", ["sent", "received"])
def test_a_deadline_runs_only_up_to_the_expectation(kind: Kind, expect: str) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    sequence = broker.publish(expect=expect, **kind)
    broker.received(sequence)
    assert broker.taken() == [b"x"]
    broker.advance(3_600_000)
    assert broker.taken() == []


@pytest.mark.parametrize("step", ["sent", "received"])
def test_a_deadline_can_be_extended_any_number_of_times(step: str) -> None:
    broker = CoreBroker()
    broker.subscribe()
    sequence = broker.publish()
    if step == "received":
        broker.received(sequence)
    broker.take()
    for _ in range(20):
        assert broker.extend(400_000, sequence) == {}
        broker.advance(399_999)
    assert broker.take() == []
    broker.advance(1)
    assert len(broker.take()) == 1


def test_a_deadline_can_be_brought_forward() -> None:
    broker = CoreBroker()
    broker.subscribe()
    sequence = broker.publish()
    broker.take()
    broker.extend(1, sequence)
    broker.advance(1)
    assert len(broker.take()) == 1


def test_an_extended_delivery_that_is_received_has_the_deadline_of_that_step() -> None:
    broker = CoreBroker()
    broker.subscribe()
    sequence = broker.publish()
    broker.extend(10_000_000, sequence)
    broker.received(sequence)
    broker.take()
    broker.advance(300_000)
    assert len(broker.take()) == 1


@every_kind
@pytest.mark.parametrize("step", ["sent", "received"])
def test_extending_by_nothing_gives_up_at_once(kind: Kind, step: str) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    if step == "received":
        broker.received(sequence)
    assert broker.extend(0, sequence) == {}
    assert [delivered.attempt for delivered in broker.take()] == [1, 2]


def test_extending_what_another_holds_is_not_yours() -> None:
    broker = CoreBroker()
    broker.subscribe(A)
    sequence = broker.publish()
    broker.subscribe(B)
    assert broker.extend(0, sequence, node=B) == {sequence: "not_yours"}
    assert broker.taken(B) == []


@pytest.mark.parametrize("timeout_ms", [5_000, 100_000])
@pytest.mark.parametrize("step", ["sent", "received"])
def test_a_changed_timeout_holds_for_what_is_out_already(step: str, timeout_ms: int) -> None:
    broker = CoreBroker()
    broker.subscribe()
    sequence = broker.publish()
    if step == "received":
        broker.received(sequence)
    broker.take()
    broker.advance(1_000)
    broker.configure(**{f"{step}_timeout_ms": timeout_ms})
    broker.advance(timeout_ms - 1_001)
    assert broker.take() == []
    broker.advance(1)
    assert len(broker.take()) == 1


def test_a_changed_timeout_does_not_move_a_deadline_that_was_extended() -> None:
    broker = CoreBroker()
    broker.subscribe()
    sequence = broker.publish()
    broker.extend(50_000, sequence)
    broker.take()
    broker.configure(sent_timeout_ms=1_000)
    broker.advance(49_999)
    assert broker.take() == []
    broker.advance(1)
    assert len(broker.take()) == 1


# --- rule 4: unreachable ----------------------------------------------------------------------


def order_of_finishing(broker: CoreBroker, count: int) -> list[bytes]:
    """What a receiver of credit one is sent, when it processes everything it is sent."""
    finished = []
    for _ in range(count):
        (delivered,) = broker.take()
        finished.append(delivered.payload)
        broker.processed(delivered.sequence)
    return finished


@every_kind
@across_restarts
def test_what_was_unreachable_waits_behind_its_equals(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=1)
    broker.publish_many([b"1", b"2", b"3"], **kind)
    assert broker.taken() == [b"1"]
    broker.advance(60_000)
    (second,) = broker.take()
    come_back(broker, restarts, name="worker", credit=1)
    if restarts:
        (second,) = broker.take()
    assert second.payload == b"2"
    broker.processed(second.sequence)
    assert order_of_finishing(broker, 2) == [b"3", b"1"]


@pytest.mark.parametrize("kind", [ONE, ALL, PUSH, ONLINE])
def test_what_was_unreachable_keeps_its_priority(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=1)
    broker.publish(b"urgent", priority=0, **kind)
    broker.publish(b"urgent too", priority=0, **kind)
    broker.publish(b"later", priority=1, **kind)
    broker.publish(b"last", **kind)
    assert broker.taken() == [b"urgent"]
    broker.advance(60_000)
    assert order_of_finishing(broker, 4) == [b"urgent too", b"urgent", b"later", b"last"]


KEEPS_PLACE = pytest.mark.parametrize(
    ("settings", "fields"),
    [
        pytest.param({"requeue": "front"}, {}, id="front"),
        pytest.param({"blocking": True}, {}, id="blocking"),
        pytest.param({}, {"ordering_key": "k"}, id="ordering-key"),
    ],
)


@KEEPS_PLACE
@every_kind
@across_restarts
def test_what_keeps_its_place_goes_first_again(
    settings: dict[str, Any], fields: dict[str, Any], kind: Kind, restarts: bool
) -> None:
    broker = CoreBroker(**settings)
    broker.subscribe(name="worker", credit=1)
    broker.publish_many([b"1", b"2", b"3"], **fields, **kind)
    for _ in range(3):
        assert broker.taken() == [b"1"]
        broker.advance(60_000)
    if restarts:
        broker.take()
        come_back(broker, True, name="worker", credit=1)
    if "blocking" in settings and kind.get("max_receivers") == 2:
        return  # it wants a second receiver before the topic goes on
    assert order_of_finishing(broker, 3) == [b"1", b"2", b"3"]


@every_kind
@across_restarts
def test_the_attempt_count_rises_with_every_delivery(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    broker.publish(**kind)
    broker.advance(60_000)
    come_back(broker, restarts, name="worker")
    broker.advance(60_000)
    attempts = [delivered.attempt for delivered in broker.take()]
    assert attempts == ([1, 2, 3, 4] if restarts else [1, 2, 3])


@pytest.mark.parametrize("credit", [1, 100])
@pytest.mark.parametrize("kind", [ONE, PUSH])
def test_what_was_unreachable_goes_to_another_receiver(kind: Kind, credit: int) -> None:
    broker = CoreBroker()
    broker.subscribe(A, credit=credit)
    broker.subscribe(B, credit=credit)
    broker.publish(b"1", **kind)
    second = broker.publish(b"2", **kind)
    assert (broker.taken(A), broker.taken(B)) == ([b"1"], [b"2"])
    broker.processed(second, node=B)
    broker.advance(60_000)
    # By turns it would be the first receiver again, which has just let it pass.
    assert (broker.taken(A), broker.taken(B)) == ([], [b"1"])


@pytest.mark.parametrize("credit", [1, 100])
def test_a_place_that_falls_free_goes_to_another_receiver(credit: int) -> None:
    broker = CoreBroker()
    for node in (A, B, C):
        broker.subscribe(node, credit=credit)
    sequence = broker.publish(max_receivers=2)
    assert [len(broker.take(node)) for node in (A, B, C)] == [1, 1, 0]
    broker.received(sequence, node=B)
    broker.advance(60_000)
    assert [len(broker.take(node)) for node in (A, B, C)] == [0, 0, 1]


def test_with_nobody_else_it_goes_to_the_same_receiver_again() -> None:
    broker = CoreBroker()
    broker.subscribe(A)
    broker.subscribe(B, credit=0)
    broker.publish()
    broker.advance(60_000)
    assert broker.taken(A) == [b"x", b"x"]


@pytest.mark.parametrize("kind", [ONE, PUSH])
@pytest.mark.parametrize("how", ["closed", "unsubscribed"])
def test_a_closed_connection_fails_over_at_once_with_all_it_held(kind: Kind, how: str) -> None:
    broker = CoreBroker()
    broker.subscribe(A)
    results = broker.publish_many([b"1", b"2", b"3"], **kind)
    broker.received(results[1], node=A)  # type: ignore[arg-type]
    broker.subscribe(B)
    if how == "closed":
        broker.detach(A)
    else:
        broker.ask(ask.Unsubscribe(A, broker.request(), 1))
    assert broker.taken(B) == [b"1", b"2", b"3"]
    assert broker.now_ms == START_MS


def test_a_late_report_counts_for_the_last_holder_though_an_earlier_one_holds_others() -> None:
    broker = CoreBroker(max_attempts=5)
    broker.subscribe(b"first", name="first", credit=2)
    stays, moves = broker.publish_many([b"1", b"2"])
    assert isinstance(stays, int) and isinstance(moves, int)
    broker.subscribe(b"second", name="second", credit=1)
    broker.failed(moves, node=b"first")
    broker.set_interests("nothing", node=b"first")
    broker.detach(b"second")  # it waits, and was with the second last
    broker.restart()
    broker.subscribe(b"second", name="second", credit=0)
    assert broker.processed(moves, node=b"second") == {}
    assert broker.describe()["totals"]["processed"] == 1


@durable_kinds
def test_a_closed_connection_fails_over_within_its_group(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(A, group="workers")
    broker.publish(**kind)
    broker.subscribe(B, group="workers")
    broker.detach(A)
    assert [delivered.attempt for delivered in broker.take(B)] == [2]


def test_an_online_copy_is_lost_with_its_connection() -> None:
    broker = CoreBroker()
    name = broker.subscribe()
    broker.publish(mode="online", receipt=True)
    broker.detach()
    assert broker.receipts[1].statuses == {name: "unreachable"}


# --- rule 5: failed ---------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_a_failure_is_retried_while_attempts_are_left(kind: Kind, attempts: int) -> None:
    broker = CoreBroker(max_attempts=attempts)
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    for attempt in range(1, attempts + 1):
        (delivered,) = broker.take()
        assert delivered.attempt == attempt
        broker.failed(sequence)
    assert broker.take() == []


def test_a_changed_number_of_attempts_holds_for_what_is_out_already() -> None:
    broker = CoreBroker()
    broker.subscribe()
    sequence = broker.publish()
    broker.configure(max_attempts=2)
    broker.failed(sequence)
    assert len(broker.take()) == 2


@every_kind
def test_a_retry_comes_after_a_pause_that_doubles_up_to_its_bound(kind: Kind) -> None:
    broker = CoreBroker(max_attempts=9, retry_backoff=BackoffMs(1_000, 5_000))
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    broker.take()
    for pause_ms in (1_000, 2_000, 4_000, 5_000, 5_000):
        broker.failed(sequence)
        broker.advance(pause_ms - 1)
        assert broker.take() == []
        broker.advance(1)
        assert len(broker.take()) == 1


@durable_kinds
def test_the_pause_before_a_retry_outlives_a_restart(kind: Kind) -> None:
    broker = CoreBroker(max_attempts=3, retry_backoff=BackoffMs(1_000, 5_000))
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    for attempt, pause_ms in ((1, 1_000), (2, 2_000)):
        assert [delivered.attempt for delivered in broker.take()] == [attempt]
        broker.failed(sequence)
        come_back(broker, True, name="worker")
        broker.advance(pause_ms - 1)
        assert broker.take() == []
        broker.advance(1)
    assert [delivered.attempt for delivered in broker.take()] == [3]
    broker.failed(sequence)
    assert len(broker.parked()) == 1


@durable_kinds
@pytest.mark.parametrize("key", [None, "k"])
def test_failures_before_a_restart_count(kind: Kind, key: str | None) -> None:
    broker = CoreBroker(max_attempts=2, retry_backoff=BackoffMs(1_000, 1_000))
    broker.subscribe(name="worker")
    sequence = broker.publish(ordering_key=key, **kind)
    broker.take()
    broker.failed(sequence)
    come_back(broker, True, name="worker")
    broker.advance(1_000)
    assert [delivered.attempt for delivered in broker.take()] == [2]
    broker.failed(sequence)
    assert [entry["attempts"] for entry in broker.parked()] == [2]


@durable_kinds
@across_restarts
def test_a_durable_message_that_failed_for_good_is_parked_and_listed(
    kind: Kind, restarts: bool
) -> None:
    broker = CoreBroker(max_attempts=2)
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    broker.failed(sequence, reason="first")
    broker.advance(500)
    broker.failed(sequence, reason="no paper left")
    come_back(broker, restarts, name="worker")
    (entry,) = broker.parked()
    assert entry.pop("position") > 0
    assert entry == {
        "sequence": sequence,
        "receiver": "worker",
        "reason": "no paper left",
        "attempts": 2,
        "failed_ms": START_MS + 500,
    }


@durable_kinds
@across_restarts
def test_a_parked_message_can_be_read(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    sequence = broker.publish(b"what it was", attributes={"k": "v"}, **kind)
    broker.failed(sequence)
    come_back(broker, restarts, name="worker")
    read = broker.fetch(sequence)
    assert (read["status"], read["payload"]) == ("failed", b"what it was")
    assert read["attributes"] == {"k": "v"}


@durable_kinds
@across_restarts
def test_parked_messages_are_renewed_in_the_order_they_failed(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    sequences = broker.publish_many([b"1", b"2", b"3"], **kind)
    for index in (2, 0, 1):
        broker.failed(sequences[index])  # type: ignore[arg-type]
    broker.take()
    come_back(broker, restarts, name="worker")
    broker.renew_all()
    assert broker.taken() == [b"3", b"1", b"2"]
    assert broker.parked() == []


@durable_kinds
@across_restarts
def test_a_renewed_message_waits_behind_those_that_wait(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=1)
    sequence = broker.publish(b"renewed", **kind)
    broker.failed(sequence)
    broker.publish_many([b"2", b"3"], **kind)
    broker.renew(sequence)
    broker.take()
    if restarts:
        come_back(broker, True, name="worker", credit=1)
    else:
        broker.detach()
        broker.configure(requeue="front")
        broker.subscribe(name="worker", credit=1)
    finished = order_of_finishing(broker, 3)
    assert finished.index(b"renewed") > finished.index(b"3")


@durable_kinds
@across_restarts
@pytest.mark.parametrize(
    "settings", [{"max_attempts": 2}, {"max_deliveries": 2, "max_attempts": 9}]
)
def test_attempts_go_on_over_a_renewal_and_their_bounds_count_from_it(
    kind: Kind, restarts: bool, settings: dict[str, Any]
) -> None:
    broker = CoreBroker(**settings)
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    seen = []
    for _ in range(3):
        for _ in range(2):
            seen += [delivered.attempt for delivered in broker.take()]
            broker.failed(sequence)
            if not broker.parked():
                come_back(broker, restarts, name="worker")
        assert [entry["attempts"] for entry in broker.parked()] == [len(seen)]
        broker.renew(sequence)
        come_back(broker, restarts, name="worker")
    assert len(seen) >= 6 and seen == sorted(seen)


@durable_kinds
@across_restarts
def test_a_repeated_failure_of_before_a_renewal_ends_nothing(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker(grace_ms=5_000)
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    broker.failed(sequence, attempts=(1,))
    broker.renew(sequence)
    if restarts:
        broker.restart()
        broker.subscribe(name="worker", holding=((b"consumer",), (sequence,), (2,)))
    assert broker.failed(sequence, attempts=(1,)) == {}
    assert broker.parked() == []
    assert [delivered.attempt for delivered in broker.take()][:2] == [1, 2]
    broker.failed(sequence, attempts=(2,))
    assert [entry["attempts"] for entry in broker.parked()] == [2]


@durable_kinds
def test_the_pause_before_a_retry_begins_anew_with_a_renewal(kind: Kind) -> None:
    broker = CoreBroker(max_attempts=3, retry_backoff=BackoffMs(1_000, 9_000))
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    for pause_ms in (1_000, 2_000):
        broker.failed(sequence)
        broker.advance(pause_ms)
    broker.failed(sequence)
    broker.renew(sequence)
    broker.failed(sequence)
    broker.take()
    broker.advance(1_000)
    assert [delivered.attempt for delivered in broker.take()] == [5]


@durable_kinds
@across_restarts
def test_a_late_processed_of_before_a_renewal_ends_nothing(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=1)
    sequence = broker.publish(**kind)
    broker.failed(sequence)
    broker.detach()
    broker.renew(sequence)
    if restarts:
        broker.restart()
    broker.subscribe(name="worker", credit=0)
    assert broker.processed(sequence) == {sequence: "not_yours"}
    assert broker.describe()["held"] == 1


@durable_kinds
def test_a_message_renewed_after_its_time_is_delivered_all_the_same(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    sequence = broker.publish(expires_ms=broker.now_ms + 1_000, **kind)
    broker.failed(sequence)
    broker.take()
    broker.advance(10_000)
    broker.renew(sequence)
    assert broker.taken() == [b"x"]
    broker.processed(sequence)
    assert broker.describe()["held"] == 0


def test_what_a_passing_receiver_has_parked_can_be_renewed_and_parked_again() -> None:
    broker = CoreBroker()
    broker.subscribe()
    first, second = broker.publish_many([b"1", b"2"], max_receivers=None)
    assert isinstance(first, int) and isinstance(second, int)
    broker.failed(first, second)
    broker.renew(first)
    with pytest.raises(PeerError, match="wrong_state"):
        broker.renew(first)
    broker.detach()
    assert [parked["sequence"] for parked in broker.parked()] == [second]
    assert counts(broker) == {"waiting": 2, "parked": 1}


@durable_kinds
@across_restarts
def test_an_abandoned_message_is_gone_and_not_counted(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    broker.failed(sequence)
    broker.abandon(sequence)
    come_back(broker, restarts, name="worker")
    assert broker.taken() == [b"x"]
    assert broker.parked() == []
    assert counts(broker) == {}
    with pytest.raises(PeerError, match="no_such_message"):
        broker.fetch(sequence)


def test_every_parked_message_can_be_abandoned_at_once() -> None:
    broker = CoreBroker()
    broker.subscribe()
    broker.failed(*broker.publish_many([b"1", b"2"]))  # type: ignore[arg-type]
    broker.ask(ask.AbandonAll(b"admin", broker.request()))
    assert counts(broker) == {}


@pytest.mark.parametrize("kind", [PUSH, ONLINE])
def test_a_message_that_is_not_durable_is_dropped_when_it_failed(kind: Kind) -> None:
    broker = CoreBroker(dead_letter="dead")
    broker.subscribe()
    broker.failed(broker.publish(**kind))
    assert broker.describe()["held"] == 0
    assert broker.parked() == []
    assert "dead" not in broker.shard.topics


@every_kind
@pytest.mark.parametrize("settings", [{}, {"dead_letter": "dead"}], ids=["parked", "moved"])
def test_the_verdict_of_a_message_that_failed_for_good_is_failed(
    kind: Kind, settings: dict[str, Any]
) -> None:
    broker = CoreBroker(**settings)
    broker.subscribe(name="worker")
    expires: Kind = {} if "mode" in kind else {"expires_ms": broker.now_ms + 1_000}
    broker.failed(broker.publish(receipt=True, **kind, **expires))
    broker.advance(1_000)
    assert broker.receipts[1].verdict == "failed"
    assert broker.receipts[1].statuses == {"worker": "failed"}


# --- rule 5: dead letters ---------------------------------------------------------------------


def dead_letters(broker: CoreBroker) -> list[tuple[bytes, dict[str, str]]]:
    """The payloads and attributes that the dead-letter topic has for a new receiver."""
    with broker.on("dead"):
        broker.subscribe(b"undertaker")
    letters = broker.take(b"undertaker")
    broker.detach(b"undertaker")
    return [(letter.payload, decode_header(letter.header).attributes) for letter in letters]


@durable_kinds
@across_restarts
def test_a_dead_letter_carries_its_reason_and_its_topic(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker(dead_letter="dead")
    with broker.on("dead"):
        broker.configure(dead_letter=None)
    broker.subscribe(name="worker")
    sequence = broker.publish(b"letter", attributes={"mine": "kept"}, **kind)
    broker.failed(sequence, reason="it burned")
    if restarts:
        broker.restart()
        broker.tick()
    ((payload, attributes),) = dead_letters(broker)
    assert payload == b"letter"
    assert attributes["mine"] == "kept"
    assert attributes["dead-letter-reason"] == "it burned"
    assert attributes["dead-letter-topic"] == "orders"
    assert broker.parked() == []


def test_a_message_is_over_here_once_all_its_places_are_dead_letters() -> None:
    broker = CoreBroker(dead_letter="dead")
    broker.subscribe(A, name="a")
    broker.subscribe(B, name="b")
    sequence = broker.publish(max_receivers=2)
    broker.failed(sequence, node=A)
    broker.failed(sequence, node=B)
    assert broker.describe()["held"] == 0


def dead_topic(broker: CoreBroker, **settings: Any) -> None:
    """Makes the dead-letter topic: a small one, for a test of what it refuses."""
    with broker.on("dead"):
        broker.ask(ask.CreateTopic(b"admin", broker.request(), {"dead_letter": None, **settings}))


@across_restarts
def test_a_dead_letter_that_is_refused_for_good_is_parked_here_with_the_reason(
    restarts: bool,
) -> None:
    broker = CoreBroker(dead_letter="dead")
    dead_topic(broker, max_payload=3)
    broker.subscribe(name="worker")
    broker.failed(broker.publish(b"too long"), reason="it burned")
    if restarts:
        broker.restart()
        broker.tick()
    (entry,) = broker.parked()
    assert "it burned" in entry["reason"] and "too_large" in entry["reason"]
    assert entry["receiver"] == "worker"
    assert broker.fetch(entry["sequence"])["payload"] == b"too long"
    assert dead_letters(broker) == []


@durable_kinds
@across_restarts
def test_a_dead_letter_that_its_topic_has_already_is_parked_here_with_both_reasons(
    kind: Kind, restarts: bool
) -> None:
    broker = CoreBroker(dead_letter="dead")
    dead_topic(broker, unique=True)
    broker.publish(b"letter", topic="dead", producer=b"another producer")
    broker.subscribe(name="worker")
    broker.failed(broker.publish(b"letter", attributes={"k": "v"}, **kind), reason="it burned")
    broker.take()
    come_back(broker, restarts, name="worker")
    (entry,) = broker.parked()
    assert "it burned" in entry["reason"] and "duplicate" in entry["reason"]
    read = broker.fetch(entry["sequence"])
    assert (read["payload"], read["attributes"]["k"]) == (b"letter", "v")
    broker.renew(entry["sequence"])
    assert broker.taken() == [b"letter"]


def test_a_long_reason_leaves_room_for_why_the_dead_letter_was_refused() -> None:
    broker = CoreBroker(dead_letter="dead")
    dead_topic(broker, max_payload=3)
    broker.subscribe(name="worker")
    broker.failed(broker.publish(b"too long"), reason="x" * limits.REASON_BYTES_MAX)
    (entry,) = broker.parked()
    assert entry["reason"].startswith("xxx") and "too_large" in entry["reason"]
    assert len(entry["reason"]) <= limits.REASON_BYTES_MAX


def test_a_dead_letter_that_is_parked_here_is_live_for_a_unique_topic() -> None:
    broker = CoreBroker(dead_letter="dead", unique=True)
    dead_topic(broker)
    broker.publish(b"letter", topic="dead", producer=b"another producer")
    broker.subscribe(name="worker")
    broker.failed(broker.publish(b"letter"))
    (entry,) = broker.parked()
    with pytest.raises(PeerError, match="duplicate"):
        broker.publish(b"letter")
    broker.abandon(entry["sequence"])
    broker.publish(b"letter")


@across_restarts
def test_a_dead_letter_that_finds_no_room_is_sent_again_later(restarts: bool) -> None:
    broker = CoreBroker(dead_letter="dead")
    dead_topic(broker, overflow=RejectNew(1))
    broker.publish(b"in the way", topic="dead", producer=b"another producer")
    broker.subscribe(name="worker")
    broker.failed(broker.publish(b"letter"))
    assert (broker.parked(), broker.describe()["held"]) == ([], 0)
    broker.advance(20_000)
    if restarts:
        broker.restart()
        broker.tick()
    with broker.on("dead"):
        broker.configure(overflow=None)
    broker.advance(10_000)
    assert [payload for payload, _ in dead_letters(broker)] == [b"in the way", b"letter"]
    broker.advance(60_000)
    assert len(dead_letters(broker)) == 2


def test_dead_letters_keep_their_order() -> None:
    broker = CoreBroker(dead_letter="dead")
    dead_topic(broker)
    broker.subscribe()
    payloads = [b"%d" % index for index in range(5)]
    broker.failed(*broker.publish_many(payloads))  # type: ignore[arg-type]
    assert [payload for payload, _ in dead_letters(broker)] == payloads


def test_a_dead_letter_finds_its_topic_deleted_and_made_again() -> None:
    broker = CoreBroker(dead_letter="dead")
    dead_topic(broker)
    broker.subscribe()
    broker.failed(broker.publish(b"1"))
    with broker.on("dead"):
        broker.ask(ask.DeleteTopic(b"admin", broker.request()))
    dead_topic(broker)
    broker.failed(broker.publish(b"2"))
    assert [payload for payload, _ in dead_letters(broker)] == [b"2"]


def test_a_message_whose_header_has_no_room_for_the_reason_is_parked() -> None:
    broker = CoreBroker(dead_letter="dead")
    broker.subscribe()
    attributes = {f"{index}": "v" * 4_000 for index in range(14)}
    room = 60_000 - len(header(attributes={**attributes, "last": ""}).encoded) - 10
    sequence = broker.publish(attributes={**attributes, "last": "v" * room})
    assert broker.failed(sequence, reason="it burned") == {}
    (entry,) = broker.parked()
    assert entry["reason"].startswith("it burned") and "'dead'" in entry["reason"]
    assert counts(broker) == {"parked": 1}


@durable_kinds
@across_restarts
@pytest.mark.parametrize("own", [limits.ATTRIBUTES_MAX - 3, limits.ATTRIBUTES_MAX - 2])
def test_a_dead_letter_keeps_all_its_attributes_or_is_parked_with_both_reasons(
    kind: Kind, restarts: bool, own: int
) -> None:
    broker = CoreBroker(dead_letter="dead")
    dead_topic(broker)
    broker.subscribe(name="worker")
    attributes = {f"{index}": "v" for index in range(own)}
    sequence = broker.publish(b"letter", attributes=attributes, **kind)
    assert broker.failed(sequence, reason="it burned") == {}
    come_back(broker, restarts, name="worker")
    parked, letters = broker.parked(), dead_letters(broker)
    assert len(parked) + len(letters) == 1
    if letters:
        assert letters[0][1].items() >= attributes.items()
    else:
        assert own > limits.ATTRIBUTES_MAX - 3, "there is room for the three of a dead letter"
        assert "it burned" in parked[0]["reason"] and "'dead'" in parked[0]["reason"]
        assert broker.fetch(sequence)["attributes"] == attributes


def test_a_dead_letter_of_a_dead_letter_has_room_where_the_first_had() -> None:
    broker = CoreBroker(dead_letter="dead")
    dead_topic(broker)
    broker.subscribe(name="worker")
    attributes = {f"{index}": "v" for index in range(limits.ATTRIBUTES_MAX - 3)}
    attributes |= {f"dead-letter-{what}": "" for what in ("topic", "receiver", "reason")}
    broker.failed(broker.publish(attributes=attributes), reason="again")
    ((_, told),) = dead_letters(broker)
    assert told["dead-letter-reason"] == "again" and len(told) == limits.ATTRIBUTES_MAX


class Elsewhere:
    """A dead-letter topic in another store: letters travel, and either end may be killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Shard, "owns", lambda _, topic: topic != "dead")
        self.here = CoreBroker(dead_letter="dead")
        self.there = CoreBroker(topic="dead")

    def under_way(self) -> list[Forward]:
        return [effect for effect in self.here.effects if isinstance(effect, Forward)]

    def carry(self, forward: Forward) -> ask.ForwardSettled:
        """Publishes a letter over there; the answer is not here yet."""
        answer = self.there.do(
            ask.Publish(
                b"carrier", self.there.request(), (forward.message,), forward.producer,
                forward.count, forward.settled,
            )
        )  # fmt: skip
        assert answer
        return ask.ForwardSettled(forward.number)


@pytest.mark.parametrize("arrived", [False, True], ids=["lost on the way", "answer lost"])
def test_a_crash_between_two_topics_neither_loses_nor_doubles_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    world = Elsewhere(monkeypatch)
    world.here.subscribe()
    world.here.failed(world.here.publish(b"letter"))
    (forward,) = world.under_way()
    if arrived:
        world.carry(forward)
    world.here.restart()
    world.here.tick()
    (again,) = world.under_way()
    world.here.do(world.carry(again))
    world.here.restart()
    world.here.tick()
    assert world.under_way() == []
    world.there.subscribe()
    assert world.there.taken() == [b"letter"]


# --- rule 6: max_deliveries, parking per receiver ---------------------------------------------


@every_kind
def test_reaching_max_deliveries_is_a_final_failure(kind: Kind) -> None:
    broker = CoreBroker(max_deliveries=3)
    broker.subscribe(name="worker")
    broker.publish(**kind)
    broker.advance(600_000)
    assert [delivered.attempt for delivered in broker.take()] == [1, 2, 3]
    assert len(broker.parked()) == (0 if "mode" in kind else 1)


@durable_kinds
def test_max_deliveries_counts_failures_and_lost_deliveries_together(kind: Kind) -> None:
    broker = CoreBroker(max_deliveries=3, max_attempts=100)
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    broker.failed(sequence)
    broker.extend(0, sequence)
    broker.failed(sequence, reason="the third")
    assert len(broker.take()) == 3
    assert [entry["reason"] for entry in broker.parked()] == ["the third"]


@durable_kinds
def test_a_delivery_lost_in_a_restart_counts_for_max_deliveries(kind: Kind) -> None:
    broker = CoreBroker(max_deliveries=2)
    broker.subscribe(name="worker")
    broker.publish(**kind)
    for _ in range(3):
        come_back(broker, True, name="worker")
    assert [delivered.attempt for delivered in broker.take()] == [1, 2]
    assert [entry["attempts"] for entry in broker.parked()] == [2]


@across_restarts
def test_parking_is_per_receiver(restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.subscribe(B, name="b", credit=0)
    sequence = broker.publish(max_receivers=None)
    broker.failed(sequence, node=A)
    come_back(broker, restarts, node=B, name="b", credit=0)
    broker.grant(1, B)
    assert broker.taken(B) == [b"x"]
    broker.processed(sequence, node=B)
    broker.subscribe(C, name="c")
    assert broker.taken(C) == [b"x"]
    assert [entry["receiver"] for entry in broker.parked()] == ["a"]


def two_places_one_parked(restarts: bool) -> tuple[CoreBroker, int]:
    """A message for two receivers: a has parked it, b has processed it, c would like it."""
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.subscribe(B, name="b")
    sequence = broker.publish(max_receivers=2)
    broker.failed(sequence, node=A)
    broker.processed(sequence, node=B)
    if restarts:
        broker.restart()
        broker.tick()
        broker.subscribe(A, name="a")
    broker.take(A)
    broker.subscribe(C, name="c")
    return broker, sequence


@across_restarts
def test_a_parked_delivery_keeps_its_place(restarts: bool) -> None:
    broker, _ = two_places_one_parked(restarts)
    assert broker.taken(C) == []


@across_restarts
def test_a_renewed_delivery_goes_to_the_receiver_that_had_parked_it(restarts: bool) -> None:
    broker, sequence = two_places_one_parked(restarts)
    broker.detach(C)
    broker.renew(sequence, "a")
    assert broker.taken(A) == [b"x"]
    broker.processed(sequence, node=A)
    assert broker.describe()["held"] == 0


@across_restarts
def test_an_abandoned_delivery_gives_its_place_to_another(restarts: bool) -> None:
    broker, sequence = two_places_one_parked(restarts)
    broker.abandon(sequence, "a")
    assert broker.taken(C) == [b"x"]
    broker.processed(sequence, node=C)
    assert broker.describe()["held"] == 0
    assert broker.taken(A) == []


def test_every_code_of_a_refused_report_is_in_the_table() -> None:
    broker = CoreBroker()
    broker.subscribe(A)
    broker.subscribe(B)
    refused = broker.processed(broker.publish(), 10**6, node=B)
    assert set(refused.values()) == {"not_yours", "no_such_message"} <= set(ERRORS)


@pytest.mark.parametrize("requeue", ["front", "back"])
@pytest.mark.parametrize("wanted", [1, None], ids=["one", "every"])
def test_what_failed_and_paused_keeps_its_place_as_the_topic_says(
    requeue: str, wanted: int | None
) -> None:
    broker = CoreBroker(requeue=requeue, max_attempts=2, retry_backoff=BackoffMs(100, 100))
    broker.subscribe(name="c", credit=1)
    first = broker.publish(b"1", max_receivers=wanted)
    second = broker.publish(b"2", max_receivers=wanted)
    broker.publish(b"3", max_receivers=wanted)
    broker.failed(first)
    broker.advance(100)
    broker.processed(second)
    assert broker.taken() == [b"1", b"2", b"1" if requeue == "front" else b"3"]
