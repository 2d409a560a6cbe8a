"""Receipts and idempotent publishing (spec section 3): accepted, then resolved once."""

from typing import Any

import pytest

from asterism import DropOld
from asterism import commands as ask
from asterism.effects import Accepted, Refusal, Refuse, Resolved
from asterism.errors import PeerError
from asterism.settings import DAY_MS, BackoffMs
from tests.support.core import PRODUCER, START_MS, CoreBroker, header
from tests.support.kinds import (
    ONE,
    PUSH,
    TWO,
    Kind,
    across_restarts,
    durable_kinds,
    every_kind,
)

A, B, C = b"node-a", b"node-b", b"node-c"
OTHER = b"another producer"

Outcome = tuple[str, dict[str, str]]


def outcome(broker: CoreBroker, number: int = 1) -> Outcome | None:
    """The verdict and statuses that the publisher was told, or ``None`` if it was not told yet."""
    receipt = broker.receipts.get(number)
    return None if receipt is None else (receipt.verdict, receipt.statuses)


def come_back(broker: CoreBroker, restarts: bool, **receivers: bytes) -> None:
    """Where the test is of a restart: the worker is killed, and the receivers come again."""
    if restarts:
        broker.restart()
        broker.tick()
        for name, node in receivers.items():
            broker.subscribe(node, name=name)


# --- accepted, then resolved ------------------------------------------------------------------


@every_kind
def test_accepted_comes_first_and_resolved_once(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.subscribe(B, name="b")
    if kind.get("max_receivers", 1) is None:
        kind = kind | {"expires_ms": START_MS + 1_000}
    broker.publish(receipt=True, expect="sent", **kind)
    seen = [type(effect) for effect in broker.effects if isinstance(effect, Accepted | Resolved)]
    assert seen[0] is Accepted
    broker.advance(DAY_MS)  # the broker of tests refuses a second receipt
    assert outcome(broker) is not None


def test_resolved_with_nobody_there_comes_after_accepted() -> None:
    broker = CoreBroker()
    broker.publish(receipt=True, mode="online")
    assert [type(effect) for effect in broker.effects] == [Accepted, Resolved]


@every_kind
def test_a_publisher_that_did_not_ask_is_told_nothing(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    broker.processed(broker.publish(**kind))
    broker.advance(30 * DAY_MS)
    assert broker.receipts == {}
    assert broker.await_receipts(1)[1][0] == "unknown"


# --- the verdicts -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ONE, PUSH])
@across_restarts
def test_one_delivery_resolves_it_when_it_is_done(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    sequence = broker.publish(receipt=True, **kind)
    broker.received(sequence, node=A)
    assert outcome(broker) is None
    come_back(broker, restarts, a=A)
    broker.processed(sequence, node=A)
    assert outcome(broker) == ("ok", {"a": "processed"})


@pytest.mark.parametrize("kind", [ONE, PUSH])
def test_one_delivery_resolves_it_when_it_failed_for_good(kind: Kind) -> None:
    broker = CoreBroker(max_attempts=2, retry_backoff=BackoffMs(1_000, 1_000))
    broker.subscribe(A, name="a")
    sequence = broker.publish(receipt=True, **kind)
    broker.failed(sequence, node=A)
    assert outcome(broker) is None
    broker.advance(1_000)
    broker.failed(sequence, node=A)
    assert outcome(broker) == ("failed", {"a": "failed"})


@every_kind
def test_running_out_of_deliveries_is_a_failure_too(kind: Kind) -> None:
    broker = CoreBroker(max_deliveries=2)
    broker.subscribe(A, name="a")
    expires: Kind = {} if "mode" in kind else {"expires_ms": START_MS + 600_000}
    broker.publish(receipt=True, **kind, **expires)
    broker.advance(600_000)
    assert outcome(broker) == ("failed", {"a": "failed"})


def test_online_is_resolved_when_every_copy_is_done() -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.subscribe(B, name="b")
    sequence = broker.publish(receipt=True, mode="online")
    broker.processed(sequence, node=A)
    assert outcome(broker) is None
    broker.processed(sequence, node=B)
    assert outcome(broker) == ("ok", {"a": "processed", "b": "processed"})


@pytest.mark.parametrize("first_fails", [True, False])
def test_online_is_failed_if_any_copy_failed(first_fails: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.subscribe(B, name="b")
    sequence = broker.publish(receipt=True, mode="online")
    bad, good = (A, B) if first_fails else (B, A)
    broker.failed(sequence, node=bad)
    assert outcome(broker) is None
    broker.processed(sequence, node=good)
    told = outcome(broker)
    assert told is not None and told[0] == "failed"
    assert sorted(told[1].values()) == ["failed", "processed"]


@pytest.mark.parametrize("wanted", [1, 2, 3])
@across_restarts
def test_durable_is_ok_as_soon_as_max_receivers_are_done(wanted: int, restarts: bool) -> None:
    broker = CoreBroker()
    nodes = {"a": A, "b": B, "c": C}
    for name, node in nodes.items():
        broker.subscribe(node, name=name)
    sequence = broker.publish(receipt=True, max_receivers=wanted)
    done = dict(list(nodes.items())[:wanted])
    for count, (name, node) in enumerate(done.items()):
        assert outcome(broker) is None
        if restarts and count == 1:
            come_back(broker, True, **done)
        assert broker.processed(sequence, node=node) == {}, name
    assert outcome(broker) == ("ok", dict.fromkeys(done, "processed"))


@pytest.mark.parametrize("wanted", [2, 3])
@pytest.mark.parametrize("settings", [{}, {"dead_letter": "dead"}], ids=["parked", "moved"])
@across_restarts
def test_durable_is_failed_as_soon_as_its_receivers_cannot_all_be_done(
    wanted: int, settings: dict[str, Any], restarts: bool
) -> None:
    broker = CoreBroker(**settings)
    broker.subscribe(A, name="a")
    broker.subscribe(B, name="b")
    sequence = broker.publish(receipt=True, max_receivers=wanted)
    broker.processed(sequence, node=A)
    come_back(broker, restarts, a=A, b=B)
    broker.failed(sequence, node=B)
    # The failed delivery keeps its place: without a renewal there are never enough.
    assert outcome(broker) == ("failed", {"a": "processed", "b": "failed"})


@durable_kinds
@across_restarts
def test_at_expiry_nobody_done_is_expired(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.publish(receipt=True, expires_ms=START_MS + 5_000, **kind)
    come_back(broker, restarts, a=A)
    broker.advance(4_999)
    assert outcome(broker) is None
    broker.advance(1)
    told = outcome(broker)
    assert told is not None and told[0] == "expired"


@across_restarts
def test_at_expiry_without_max_receivers_one_done_is_ok(restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    sequence = broker.publish(receipt=True, expires_ms=START_MS + 5_000, max_receivers=None)
    broker.processed(sequence, node=A)
    broker.subscribe(B, name="b", credit=0)
    come_back(broker, restarts)
    assert outcome(broker) is None
    broker.advance(5_000)
    assert outcome(broker) == ("ok", {"a": "processed"})


def test_at_expiry_fewer_than_max_receivers_is_expired() -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    sequence = broker.publish(receipt=True, expires_ms=START_MS + 5_000, max_receivers=2)
    broker.processed(sequence, node=A)
    broker.advance(5_000)
    assert outcome(broker) == ("expired", {"a": "processed"})


@across_restarts
@pytest.mark.parametrize("settings", [{}, {"dead_letter": "dead"}], ids=["parked", "moved"])
def test_at_expiry_a_failure_for_good_is_failed(restarts: bool, settings: dict[str, Any]) -> None:
    broker = CoreBroker(**settings)
    broker.subscribe(A, name="a")
    sequence = broker.publish(receipt=True, expires_ms=START_MS + 5_000, max_receivers=None)
    broker.failed(sequence, node=A)
    come_back(broker, restarts)
    assert outcome(broker) is None
    broker.advance(5_000)
    assert outcome(broker) == ("failed", {"a": "failed"})


@pytest.mark.parametrize("done", [True, False])
def test_at_expiry_it_is_ok_if_one_was_done_and_else_failed_if_one_failed(done: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.subscribe(B, name="b")
    sequence = broker.publish(receipt=True, expires_ms=START_MS + 5_000, max_receivers=None)
    broker.failed(sequence, node=B)
    if done:
        broker.processed(sequence, node=A)
    broker.advance(5_000)
    told = outcome(broker)
    assert told is not None and told[0] == ("ok" if done else "failed")
    assert told[1] == ({"a": "processed"} if done else {}) | {"b": "failed"}


@every_kind
@pytest.mark.parametrize("out", [False, True], ids=["waiting", "in flight"])
def test_what_overflow_drops_is_dropped(kind: Kind, out: bool) -> None:
    broker = CoreBroker(overflow=DropOld(1))
    broker.subscribe(name="worker", credit=int(out))
    broker.publish(b"old", receipt=True, **kind)
    broker.publish(b"new", **kind)
    told = outcome(broker)
    assert told is not None and told[0] == "dropped"
    assert broker.describe()["held"] == 1


def test_what_came_back_to_waiting_can_be_dropped_by_overflow() -> None:
    broker = CoreBroker(overflow=DropOld(1))
    broker.subscribe(A, name="a")
    broker.publish(b"old", receipt=True, max_receivers=None)
    broker.describe()  # looks for the oldest that waits, and finds this one out
    broker.detach(A)
    broker.publish(b"new", max_receivers=None)
    assert outcome(broker) == ("dropped", {})


def test_what_everybody_has_done_can_be_dropped_by_overflow() -> None:
    broker = CoreBroker(overflow=DropOld(1))
    broker.subscribe(A, name="a")
    sequence = broker.publish(b"old", receipt=True, max_receivers=None)
    broker.describe()
    broker.processed(sequence, node=A)
    broker.publish(b"new", max_receivers=None)
    assert outcome(broker) == ("dropped", {"a": "processed"})


ENDINGS = pytest.mark.parametrize("ending", [ask.Clear, ask.DeleteTopic])


@every_kind
@ENDINGS
@pytest.mark.parametrize("out", [False, True], ids=["waiting", "in flight"])
def test_what_is_cleared_or_deleted_is_dropped(kind: Kind, ending: Any, out: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=int(out))
    broker.publish(receipt=True, **kind)
    broker.ask(ending(b"admin", broker.request()))
    told = outcome(broker)
    assert told is not None and told[0] == "dropped"


@ENDINGS
@across_restarts
def test_what_is_dropped_tells_who_was_done_by_then(ending: Any, restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    sequence = broker.publish(receipt=True, max_receivers=2)
    broker.processed(sequence, node=A)
    come_back(broker, restarts)
    broker.ask(ending(b"admin", broker.request()))
    assert outcome(broker) == ("dropped", {"a": "processed"})


@every_kind
@pytest.mark.parametrize("out", [False, True], ids=["waiting", "in flight"])
def test_what_is_abandoned_is_dropped(kind: Kind, out: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=int(out))
    broker.abandon(broker.publish(receipt=True, **kind))
    told = outcome(broker)
    assert told is not None and told[0] == "dropped"
    assert broker.describe()["held"] == 0


@durable_kinds
def test_what_was_parked_and_is_abandoned_keeps_its_verdict(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    sequence = broker.publish(receipt=True, **kind)
    broker.failed(sequence, node=A)
    broker.abandon(sequence)
    told = outcome(broker)
    verdict = "dropped" if kind["max_receivers"] is None else "failed"
    assert told is not None and told[0] == verdict


@pytest.mark.parametrize("kind", [ONE, TWO])
@across_restarts
def test_a_renewed_message_processed_later_does_not_change_its_verdict(
    kind: Kind, restarts: bool
) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.subscribe(B, name="b")
    sequence = broker.publish(receipt=True, **kind)
    broker.failed(sequence, node=A)
    told = outcome(broker)
    assert told is not None and told[0] == "failed"
    come_back(broker, restarts, a=A, b=B)
    broker.renew(sequence)
    broker.processed(sequence, node=A)
    broker.processed(sequence, node=B)
    assert broker.describe()["held"] == 0
    assert outcome(broker) == told  # a second receipt would have failed the test
    assert broker.await_receipts(1)[1] == told


def test_every_status_of_a_receiver_is_by_its_name() -> None:
    broker = CoreBroker()
    group = broker.subscribe(A, group="workers")
    alone = broker.subscribe(B)
    sequence = broker.publish(receipt=True, mode="online", expect="received")
    broker.received(sequence, node=A)
    broker.received(sequence, node=B)
    assert outcome(broker) == ("ok", {group: "received", alone: "received"})
    assert (group, group == alone) == ("workers", False)


# --- asking again -----------------------------------------------------------------------------


@every_kind
def test_a_publisher_that_reconnects_gets_what_it_still_awaits(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    expires: Kind = {} if "mode" in kind else {"expires_ms": START_MS + 1_000}
    broker.publish(receipt=True, **kind, **expires)
    assert broker.await_receipts(1, node=b"publisher again")[1] == ("pending", {})
    broker.processed(1, node=A)
    broker.advance(1_000)
    assert broker.receipts[1].node == b"publisher again"


@every_kind
@across_restarts
def test_an_outcome_is_told_again_to_a_publisher_that_asks(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    expires: Kind = {} if "mode" in kind else {"expires_ms": START_MS + 1_000}
    broker.processed(broker.publish(receipt=True, **kind, **expires), node=A)
    broker.advance(1_000)
    told = outcome(broker)
    assert told is not None
    come_back(broker, restarts)
    for _ in range(2):
        assert broker.await_receipts(1, node=b"publisher again")[1] == told


@durable_kinds
def test_a_receipt_that_is_awaited_outlives_a_restart(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.publish(receipt=True, expires_ms=START_MS + 1_000, **kind)
    come_back(broker, True, a=A)
    assert broker.await_receipts(1, node=b"publisher again")[1] == ("pending", {})
    broker.processed(1, node=A)
    broker.advance(1_000)
    receipt = broker.receipts[1]
    assert receipt.node == b"publisher again"
    assert receipt.statuses == {"a": "processed"}


def test_what_is_lost_with_memory_is_not_awaited_for_ever() -> None:
    broker = CoreBroker()
    broker.subscribe(A, credit=0)
    broker.publish(receipt=True, mode="push")
    assert broker.await_receipts(1)[1][0] == "pending"
    broker.restart()
    assert broker.await_receipts(1)[1][0] == "unknown"


def test_numbers_never_published_and_messages_refused_have_no_receipt() -> None:
    broker = CoreBroker(max_payload=1)
    broker.publish_many([b"1", b"22"], receipt=True)
    answers = broker.await_receipts(1, 2, 3)
    assert {number: verdict for number, (verdict, _) in answers.items()} == {
        1: "pending",
        2: "unknown",
        3: "unknown",
    }


@across_restarts
def test_outcomes_are_kept_for_receipt_ttl(restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.processed(broker.publish(receipt=True), node=A)
    come_back(broker, restarts)
    broker.advance(3_599_999)
    assert broker.await_receipts(1)[1] == ("ok", {"a": "processed"})
    broker.advance(1_200_000)
    assert broker.await_receipts(1)[1] == ("unknown", {})


def test_a_changed_receipt_ttl_takes_effect() -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.processed(broker.publish(receipt=True), node=A)
    broker.configure(receipt_ttl_ms=2 * DAY_MS)
    broker.advance(DAY_MS)
    assert broker.await_receipts(1)[1][0] == "ok"
    broker.configure(receipt_ttl_ms=1_000)
    broker.advance(1_200_000)
    assert broker.await_receipts(1)[1][0] == "unknown"


# --- idempotent publishing --------------------------------------------------------------------


def message(number: int, payload: bytes = b"x", **fields: Any) -> tuple[bytes, bytes, bytes]:
    return number.to_bytes(16, "big"), header(**fields).encoded, payload


def send(
    broker: CoreBroker,
    first: int,
    *payloads: bytes,
    producer: bytes = PRODUCER,
    settled: int = 0,
    **fields: Any,
) -> tuple[int | Refusal, ...]:
    """Publishes messages numbered from ``first``, as a producer that may have done so before."""
    messages = tuple(message(first + at, body, **fields) for at, body in enumerate(payloads))
    request = broker.request()
    broker.do(ask.Publish(b"publisher", request, messages, producer, first, settled))
    answer = broker.answers[b"publisher", request]
    if isinstance(answer, Refuse):
        raise PeerError(answer.code, answer.detail, answer.retry_after_ms)
    assert isinstance(answer, Accepted)
    return answer.results


@every_kind
@across_restarts
def test_sending_again_gets_the_first_answer_and_stores_nothing_twice(
    kind: Kind, restarts: bool
) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    first = send(broker, 1, b"1", b"2", **kind)
    come_back(broker, restarts, a=A)
    broker.take(A)
    before = broker.describe()
    assert send(broker, 1, b"1", b"2", **kind) == first
    assert broker.describe() == before
    assert broker.take(A) == []


@across_restarts
def test_sending_again_after_the_message_is_over_stores_nothing(restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    first = send(broker, 1, b"1", receipt=True)
    broker.processed(1, node=A)
    come_back(broker, restarts, a=A)
    assert send(broker, 1, b"1", receipt=True) == first
    broker.advance(DAY_MS)
    assert broker.taken(A) == [b"1"]


@across_restarts
def test_a_refusal_is_given_again_though_it_would_be_accepted_now(restarts: bool) -> None:
    broker = CoreBroker(max_payload=1)
    first = send(broker, 1, b"1", b"too long", b"3")
    assert isinstance(first[1], Refusal) and first[1].code == "too_large"
    broker.configure(max_payload=100)
    come_back(broker, restarts)
    assert send(broker, 1, b"1", b"too long", b"3") == first
    assert broker.describe()["held"] == 2


@across_restarts
def test_a_batch_that_overlaps_is_answered_and_goes_on_from_there(restarts: bool) -> None:
    broker = CoreBroker()
    first = send(broker, 1, b"1", b"2")
    second = send(broker, 3, b"3")
    come_back(broker, restarts)
    results = send(broker, 2, b"2", b"3", b"4", b"5")
    assert results[:2] == (first[1], *second)
    broker.subscribe()
    assert broker.taken() == [b"1", b"2", b"3", b"4", b"5"]


@across_restarts
def test_a_gap_is_refused_until_what_is_missing_has_come(restarts: bool) -> None:
    broker = CoreBroker()
    send(broker, 1, b"1")
    come_back(broker, restarts)
    with pytest.raises(PeerError) as refusal:
        send(broker, 3, b"3")
    assert refusal.value.code == "busy"
    assert refusal.value.retry_after_ms is not None
    assert broker.describe()["held"] == 1
    send(broker, 2, b"2")
    send(broker, 3, b"3")
    assert broker.describe()["held"] == 3


def test_an_unknown_producer_begins_at_one() -> None:
    broker = CoreBroker()
    send(broker, 1, b"1", producer=OTHER)
    with pytest.raises(PeerError, match="wrong_state"):
        send(broker, 2, b"2")
    assert broker.describe()["held"] == 1
    send(broker, 1, b"1")


@across_restarts
def test_settled_answers_are_forgotten_and_the_high_water_mark_is_kept(restarts: bool) -> None:
    broker = CoreBroker()
    for number in range(1, 5):
        send(broker, number, b"%d" % number, settled=number - 1)
    come_back(broker, restarts)
    with pytest.raises(PeerError, match="wrong_state"):
        send(broker, 1, b"1")
    assert broker.describe()["held"] == 4
    send(broker, 5, b"5", settled=4)
    assert broker.describe()["held"] == 5


@across_restarts
def test_a_producer_that_has_settled_everything_is_still_known(restarts: bool) -> None:
    broker = CoreBroker()
    send(broker, 1, b"1", settled=1)
    come_back(broker, restarts)
    send(broker, 1, b"1")
    send(broker, 2, b"2")
    assert broker.describe()["held"] == 2


def test_the_rows_of_settled_answers_do_not_pile_up() -> None:
    broker = CoreBroker()
    for number in range(1, 100):
        send(broker, number, b"x", settled=number - 1)
    low, high = broker.actor.keys.answers(PRODUCER)
    assert len(list(broker.rows.scan(low, high))) <= 2


@across_restarts
def test_answers_that_are_not_settled_are_kept(restarts: bool) -> None:
    broker = CoreBroker()
    answers = [send(broker, number, b"x") for number in range(1, 50)]
    come_back(broker, restarts)
    assert [send(broker, number, b"x") for number in range(1, 50)] == answers


@across_restarts
def test_two_producers_do_not_mix(restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    mine = send(broker, 1, b"mine", receipt=True)
    theirs = send(broker, 1, b"theirs", producer=OTHER, receipt=True)
    assert mine != theirs
    come_back(broker, restarts, a=A)
    assert send(broker, 1, b"mine", receipt=True) == mine
    broker.failed(2, node=A)
    broker.processed(1, node=A)
    assert broker.resolved[PRODUCER, 1].verdict == "ok"
    assert broker.resolved[OTHER, 1].verdict == "failed"
    assert broker.await_receipts(1, producer=OTHER)[1][0] == "failed"


def test_a_crash_before_the_commit_forgets_the_answer_with_the_message() -> None:
    broker = CoreBroker()
    send(broker, 1, b"1")
    kept = dict(broker.rows.scan(b"", b"\xff" * 8))
    lost = CoreBroker()
    for key, value in kept.items():
        lost.rows.put(key, value)
    send(broker, 2, b"2")  # a turn whose rows never reach the other disk
    lost.restart()
    assert len(send(lost, 2, b"2")) == 1
    lost.subscribe()
    assert lost.taken() == [b"1", b"2"]


def test_without_a_producer_every_publish_is_a_new_one() -> None:
    broker = CoreBroker()
    for request in (1, 2):
        broker.do(ask.Publish(b"p", request, (message(1),)))
    assert broker.describe()["held"] == 2


def test_a_receipt_without_a_producer_is_refused() -> None:
    broker = CoreBroker()
    broker.do(ask.Publish(b"p", 1, (message(1, receipt=True),)))
    answer = broker.answers[b"p", 1]
    assert isinstance(answer, Accepted)
    (refusal,) = answer.results
    assert isinstance(refusal, Refusal) and refusal.code == "bad_request"


# --- many at once -------------------------------------------------------------------------------

OK_BY_A: Outcome = ("ok", {"a": "processed"})
NUMBERS = range(1, 11)


def publish_ten(broker: CoreBroker) -> list[int]:
    """Publishes ten messages at once that ask for receipts; their sequences."""
    payloads = [b"%d" % number for number in NUMBERS]
    return [result for result in broker.publish_many(payloads, receipt=True) if type(result) is int]


def told(broker: CoreBroker) -> dict[int, Outcome | None]:
    return {number: outcome(broker, number) for number in broker.receipts}


@across_restarts
def test_each_message_of_a_batch_has_its_own_receipt(restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a", credit=6)
    sequences = publish_ten(broker)
    come_back(broker, restarts, a=A)
    broker.take(A)
    broker.processed(*sequences[2:5], node=A)
    assert told(broker) == dict.fromkeys([3, 4, 5], OK_BY_A)
    broker.processed(sequences[0], node=A)
    broker.take(A)
    broker.processed(sequences[1], *sequences[5:], node=A)
    assert told(broker) == dict.fromkeys(NUMBERS, OK_BY_A)
    assert broker.await_receipts(*NUMBERS) == dict.fromkeys(NUMBERS, OK_BY_A)
    assert broker.actor.asked == 0


@across_restarts
def test_a_batch_that_fails_in_part_and_expires_in_part_tells_each(restarts: bool) -> None:
    broker = CoreBroker(default_ttl_ms=1_000)
    broker.subscribe(A, name="a", credit=4)
    sequences = publish_ten(broker)
    come_back(broker, restarts, a=A)
    broker.failed(sequences[1], node=A)
    broker.processed(sequences[0], node=A)
    assert told(broker) == {1: OK_BY_A, 2: ("failed", {"a": "failed"})}
    broker.detach(A)
    broker.advance(2_000)
    expired: Outcome = ("expired", {})
    first_two: dict[int, Outcome] = {1: OK_BY_A, 2: ("failed", {"a": "failed"})}
    assert told(broker) == first_two | dict.fromkeys(range(3, 11), expired)
    assert broker.actor.asked == 0


def test_a_batch_for_several_receivers_tells_of_each_message_who_had_it() -> None:
    broker = CoreBroker()
    broker.subscribe(A, "a/**", name="a")
    broker.subscribe(B, "b/**", name="b")
    subjects = ["a/1", "a/2", "b/1", "a/1", "b/1", "b/2"]
    for _ in range(2):  # headers that are new, and that are known
        messages = tuple(
            (bytes(15) + bytes([at]), header(subject, receipt=True).encoded, subject.encode())
            for at, subject in enumerate(subjects)
        )
        first = broker.last_number() + 1
        command = ask.Publish(A, broker.request(), messages, PRODUCER, first)
        broker._numbers[PRODUCER] += len(messages)
        broker.do(command)
        for node in (A, B):
            broker.processed(*(item.sequence for item in broker.take(node)), node=node)
        assert {number: outcome(broker, number) for number in range(first, first + 6)} == {
            first + at: ("ok", {subject[0]: "processed"}) for at, subject in enumerate(subjects)
        }


def test_of_a_batch_those_are_told_who_asked() -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    for _ in range(2):
        messages = tuple(
            (bytes(15) + bytes([at]), header(receipt=bool(at % 2)).encoded, b"x") for at in range(4)
        )
        first = broker.last_number() + 1
        broker._numbers[PRODUCER] += 4
        broker.do(ask.Publish(A, broker.request(), messages, PRODUCER, first))
        broker.processed(*(item.sequence for item in broker.take(A)), node=A)
        assert outcome(broker, first) is outcome(broker, first + 2) is None
        assert outcome(broker, first + 1) == outcome(broker, first + 3) == OK_BY_A
    assert broker.actor.asked == 0


def test_a_batch_that_is_more_than_a_window_has_all_its_receipts(small_limits: None) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a", credit=3)
    publish_ten(broker)
    publish_ten(broker)
    while taken := [item.sequence for item in broker.take(A)]:
        broker.processed(*taken, node=A)
        broker.tick()
    assert told(broker) == dict.fromkeys(range(1, 21), OK_BY_A)
    assert broker.actor.asked == 0


def test_a_backlog_of_several_producers_has_all_its_receipts_after_a_restart() -> None:
    broker = CoreBroker()
    producers = [PRODUCER, OTHER, PRODUCER, PRODUCER, OTHER]
    sequences: dict[int, tuple[bytes, int]] = {}
    for producer in producers:
        (first, *_) = broker.publish_many([b"x"] * 3, receipt=True, producer=producer)
        assert type(first) is int
        last = broker.last_number(producer)
        sequences |= {first + at: (producer, last - 2 + at) for at in range(3)}
    broker.publish_many([b"y"] * 3)
    broker.restart()
    broker.subscribe(A, name="a", credit=0)
    broker.publish(b"z")
    broker.grant(100, A)
    assert broker.actor.pool.plain, "it is read by the batch"
    for item in broker.take(A):
        broker.processed(item.sequence, node=A)
        resolved = [effect for effect in broker.effects if isinstance(effect, Resolved)]
        expected = [sequences[item.sequence]] if item.sequence in sequences else []
        assert [(effect.producer, effect.number) for effect in resolved] == expected
    assert (len(broker.resolved), broker.actor.asked) == (15, 0)


def test_a_batch_that_is_cleared_is_dropped_for_each() -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a", credit=4)
    publish_ten(broker)
    broker.clear()
    assert told(broker) == dict.fromkeys(NUMBERS, ("dropped", {}))
