"""Leases in the core: an endpoint renews what it holds, and takes credit back."""

from asterism import commands as ask
from asterism.effects import Reply
from tests.support.core import CoreBroker

A, B = b"alpha", b"beta"
SENT_MS, RECEIVED_MS = 60_000, 300_000


def renew(broker: CoreBroker, *held: tuple[int, int], node: bytes = A) -> dict[int, str]:
    """Renews the leases of deliveries by sequence and attempt; the codes of those refused."""
    sequences, attempts = zip(*held, strict=True)
    command = ask.Extend(node, broker.request(), 1, sequences, None, attempts=attempts)
    return dict(broker.ask(command).get("refused", []))


def grant(broker: CoreBroker, credit: int, less: int) -> None:
    broker.do(ask.Grant(A, broker.request(), 1, credit, less))


def holder_of(count: int, credit: int = 100) -> tuple[CoreBroker, list[tuple[int, int]]]:
    """A broker whose one endpoint holds so many deliveries that went out together."""
    broker = CoreBroker()
    broker.subscribe(A, group="crew", credit=credit)
    broker.publish_many([b"x"] * count)
    return broker, [(delivered.sequence, 1) for delivered in broker.take(A)]


# --- renewing -----------------------------------------------------------------------------------


def test_a_renewed_lease_begins_anew() -> None:
    broker, held = holder_of(3)
    for _ in range(5):
        broker.advance(SENT_MS - 1)
        assert renew(broker, *held) == {}
    assert broker.take(A) == []
    broker.advance(SENT_MS)
    assert [delivered.attempt for delivered in broker.take(A)] == [2, 2, 2]


def test_each_step_is_renewed_by_its_own_deadline() -> None:
    broker, (first, second) = holder_of(2)
    broker.received(first[0], node=A)
    assert renew(broker, first, second) == {}
    broker.advance(SENT_MS)
    assert [delivered.sequence for delivered in broker.take(A)] == [second[0]]
    broker.advance(RECEIVED_MS - SENT_MS)
    assert first[0] in [delivered.sequence for delivered in broker.take(A)]


def test_what_is_not_named_keeps_its_deadline() -> None:
    broker, (first, second, third) = holder_of(3)
    broker.advance(SENT_MS - 1)
    assert renew(broker, first, third) == {}
    broker.advance(1)
    assert [delivered.sequence for delivered in broker.take(A)] == [second[0]]


def test_a_lease_of_another_attempt_is_not_yours() -> None:
    broker, (held,) = holder_of(1)
    broker.advance(SENT_MS)
    assert [delivered.attempt for delivered in broker.take(A)] == [2]
    broker.advance(SENT_MS - 1)
    assert renew(broker, held) == {held[0]: "not_yours"}
    broker.advance(1)
    assert [delivered.attempt for delivered in broker.take(A)] == [3], "it was not extended"


def test_what_waits_again_or_is_over_cannot_be_renewed() -> None:
    broker, (over, waits) = holder_of(2, credit=2)
    broker.processed(over[0], node=A)
    grant(broker, 0, 2)
    broker.advance(SENT_MS)
    assert broker.take(A) == []
    refused = renew(broker, over, waits, (10**6, 1))
    assert refused == {
        over[0]: "not_yours",
        waits[0]: "not_yours",
        10**6: "no_such_message",
    }


def test_another_member_of_a_group_is_told_that_a_delivery_is_not_its_own() -> None:
    broker, (held,) = holder_of(1)
    broker.subscribe(B, group="crew")
    grant(broker, 0, 100)
    broker.advance(SENT_MS)
    (moved,) = broker.take(B)
    assert renew(broker, held, node=A) == {held[0]: "not_yours"}
    assert renew(broker, (moved.sequence, moved.attempt), node=B) == {}


def test_a_deadline_that_was_asked_for_is_not_shortened_by_renewing() -> None:
    broker, (one, other) = holder_of(2)
    broker.extend(10 * SENT_MS, one[0], node=A)
    assert renew(broker, one, other) == {}
    broker.advance(SENT_MS)
    assert [delivered.sequence for delivered in broker.take(A)] == [other[0]]
    broker.advance(9 * SENT_MS - 1)
    assert one[0] not in [delivered.sequence for delivered in broker.take(A)]
    broker.advance(1)
    assert one[0] in [delivered.sequence for delivered in broker.take(A)]


def test_a_deadline_that_was_asked_for_with_others_is_not_shortened_by_renewing_it_alone() -> None:
    broker, (one, other) = holder_of(2)
    broker.extend(10 * SENT_MS, one[0], other[0], node=A)
    assert renew(broker, one) == {}
    broker.advance(10 * SENT_MS - 1)
    assert broker.take(A) == []
    broker.advance(1)
    assert len(broker.take(A)) == 2


def test_a_changed_timeout_counts_from_the_last_renewal() -> None:
    broker, (held,) = holder_of(1)
    broker.advance(50_000)
    renew(broker, held)
    broker.configure(sent_timeout_ms=20_000)
    broker.advance(19_999)
    assert broker.take(A) == []
    broker.advance(1)
    assert len(broker.take(A)) == 1


def test_renewing_all_that_went_out_together_makes_no_objects_and_no_rows() -> None:
    broker, held = holder_of(50)
    pages = len(broker.actor.pages._pages)
    assert broker.actor.pool.plain
    before = dict(broker.rows.scan(*broker.actor.keys.all_rows))
    renew(broker, *held)
    assert len(broker.actor.pages._pages) == pages
    assert len(broker.actor.pool.plain) == 50, "they are still one run"
    assert dict(broker.rows.scan(*broker.actor.keys.all_rows)) == before


def test_an_order_that_is_renewed_keeps_its_new_deadline_over_a_restart() -> None:
    broker = CoreBroker()
    sequence = broker.make()
    broker.order()
    broker.advance(SENT_MS - 1)
    command = ask.Extend(
        b"gateway", broker.request(), 0, (sequence,), None, receiver="work-queue", attempts=(1,)
    )
    assert broker.ask(command) == {}
    broker.restart()
    broker.advance(SENT_MS - 1)
    assert broker.describe()["waiting"] == 0
    broker.advance(1)
    assert broker.describe()["waiting"] == 1


# --- what a holder is told ----------------------------------------------------------------------


def test_who_subscribes_is_told_the_deadlines() -> None:
    broker = CoreBroker(sent_timeout_ms=7_000)
    command = ask.Subscribe(A, broker.request(), 1, ("**",), received_timeout_ms=9_000)
    told = broker.ask(command)
    assert (told["sent_timeout_ms"], told["received_timeout_ms"]) == (7_000, 9_000)


def told_unasked(broker: CoreBroker) -> list[tuple[bytes, dict[str, object]]]:
    return [
        (effect.node, effect.body)
        for effect in broker.effects
        if isinstance(effect, Reply) and effect.request == 0
    ]


def test_whoever_is_on_the_topic_is_told_of_other_deadlines() -> None:
    broker = CoreBroker()
    broker.subscribe(A)
    broker.configure(sent_timeout_ms=5_000)
    now = {"endpoint": 1, "sent_timeout_ms": 5_000, "received_timeout_ms": RECEIVED_MS}
    assert told_unasked(broker) == [(A, now)]
    broker.configure(max_attempts=3)
    assert told_unasked(broker) == []


def test_the_members_of_a_group_are_told_of_the_deadlines_that_another_brings() -> None:
    broker = CoreBroker()
    broker.subscribe(A, group="crew")
    broker.subscribe(B, group="crew", sent_timeout_ms=5_000)
    now = {"endpoint": 1, "sent_timeout_ms": 5_000, "received_timeout_ms": RECEIVED_MS}
    assert told_unasked(broker) == [(A, now)]
    broker.subscribe(b"third", group="crew", sent_timeout_ms=5_000)
    assert told_unasked(broker) == []


# --- credit that is taken back ------------------------------------------------------------------


def test_unused_credit_is_taken_back_at_once() -> None:
    broker = CoreBroker()
    broker.subscribe(A, credit=10)
    grant(broker, 0, 7)
    broker.publish_many([b"x"] * 10)
    assert len(broker.take(A)) == 3


def test_credit_that_deliveries_have_is_taken_back_as_they_end() -> None:
    broker, held = holder_of(10, credit=4)
    assert len(held) == 4
    grant(broker, 0, 3)
    for sequence, _ in held[:3]:
        broker.processed(sequence, node=A)
    assert broker.take(A) == [], "what they gave back was owed"
    broker.processed(held[3][0], node=A)
    assert len(broker.take(A)) == 1


def test_credit_that_is_given_pays_first_what_is_owed() -> None:
    broker, _ = holder_of(10, credit=4)
    grant(broker, 0, 3)
    grant(broker, 5, 0)
    assert len(broker.take(A)) == 2


def test_credit_can_be_taken_and_given_at_once() -> None:
    broker, _ = holder_of(10, credit=4)
    grant(broker, 3, 1)
    assert len(broker.take(A)) == 2
