"""Never two holders at once, across restarts (spec section 3, Modes, durable).

What was out with a session stays that session's for a grace: until its endpoint has come back, is
known to be gone, or the grace is over. Every rule holds after a restart of the worker, and after a
connection was lost that may come back.
"""

from collections.abc import Callable
from typing import Any

import pytest

from asterism import commands as ask
from asterism.actors.shard import Shard
from asterism.errors import PeerError
from asterism.settings import DropOld
from asterism.storage.keys import STORE_TOPIC, TopicKeys
from asterism.storage.memory import MemoryRows
from asterism.storage.records import decode_page, encode_page
from tests.support.core import CoreBroker

A, B, C = b"node-a", b"node-b", b"node-c"
NEW = b"node-x"  # as which A comes back, in a session of its own
GRACE_MS = 5_000
Away = Callable[[CoreBroker], None]


def away_by_restart(broker: CoreBroker) -> None:
    broker.restart()


def away_by_loss(broker: CoreBroker) -> None:
    for node in (A, B):
        broker.suspend(node)


each_way = pytest.mark.parametrize("away", [away_by_restart, away_by_loss])


def crew(broker: CoreBroker, *nodes: bytes, **fields: Any) -> None:
    for node in nodes:
        broker.subscribe(node, group="crew", **fields)


def come_back(
    broker: CoreBroker,
    node: bytes,
    *held: tuple[int, int],
    sessions: tuple[bytes, ...] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Subscribes again, and says what is held, of which sessions; what that was answered."""
    sequences, attempts = tuple(one[0] for one in held), tuple(one[1] for one in held)
    holding = (sessions or (node,), sequences, attempts)
    fields = {"credit": 100, "group": "crew", "holding": holding, **fields}
    return broker.ask(ask.Subscribe(node, broker.request(), 1, ("**",), **fields))


def broker_with_one_out(**fields: Any) -> tuple[CoreBroker, int]:
    """A message is out with A, of a group."""
    broker = CoreBroker(grace_ms=GRACE_MS)
    crew(broker, A)
    sequence = broker.publish(b"job", **fields)
    assert broker.taken(A) == [b"job"]
    return broker, sequence


# --- nobody else gets it ------------------------------------------------------------------------


@each_way
def test_nobody_else_gets_what_was_out_before_the_grace_is_over(away: Away) -> None:
    broker, _ = broker_with_one_out()
    away(broker)
    crew(broker, B)
    broker.advance(GRACE_MS - 1)
    assert broker.taken(B) == []
    broker.advance(1)
    (late,) = broker.take(B)
    assert (late.payload, late.attempt) == (b"job", 2)


@each_way
def test_what_is_kept_for_its_holder_counts_as_out(away: Away) -> None:
    broker, _ = broker_with_one_out()
    away(broker)
    described = broker.describe()
    assert (described["sent"], described["waiting"], described["held"]) == (1, 0, 1)


@each_way
def test_an_unnamed_receiver_gets_nothing_that_another_one_held(away: Away) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    broker.subscribe(A)
    broker.publish(b"job")
    broker.take(A)
    away(broker)
    broker.subscribe(B)
    broker.advance(GRACE_MS - 1)
    assert broker.taken(B) == []
    broker.advance(1)
    assert broker.taken(B) == [b"job"]


def test_the_grace_begins_when_clients_can_come_back() -> None:
    broker, _ = broker_with_one_out()
    broker.shard = Shard(broker.rows, broker.defaults, grace_ms=GRACE_MS)
    broker.end_turn()
    crew(broker, B)
    broker.advance(10 * GRACE_MS)  # the worker takes long, or the front-end is away
    assert broker.taken(B) == []
    broker.shard.begin_grace(broker.now_ms)
    broker.end_turn()
    broker.advance(GRACE_MS - 1)
    assert broker.taken(B) == []
    broker.advance(1)
    assert broker.taken(B) == [b"job"]


def test_a_second_restart_begins_the_grace_anew() -> None:
    broker, sequence = broker_with_one_out()
    broker.restart()
    broker.advance(GRACE_MS - 1)
    broker.restart()
    crew(broker, B)
    broker.advance(GRACE_MS - 1)
    assert broker.taken(B) == []
    assert "lost" not in come_back(broker, A, (sequence, 1))


@each_way
def test_without_a_grace_what_was_out_goes_to_whoever_comes_first(away: Away) -> None:
    broker = CoreBroker(grace_ms=0)
    crew(broker, A)
    broker.publish(b"job")
    broker.take(A)
    away(broker)
    crew(broker, B)
    broker.tick()
    assert broker.taken(B) == [b"job"]


def test_a_page_of_an_earlier_version_names_nobody_and_is_given_to_whoever_comes_first() -> None:
    broker, _ = broker_with_one_out()
    assert isinstance(broker.rows, MemoryRows)
    (number,) = [value for _, value in broker.rows.scan(STORE_TOPIC, STORE_TOPIC + b"\xff")]
    pages = TopicKeys(int.from_bytes(number, "big")).range_of("g")
    for key, row in list(broker.rows.scan(*pages)):
        record = decode_page(row)
        assert record.holder == (A, 1)
        record.holder = None
        broker.rows.put(key, encode_page(record))
    broker.restart()
    crew(broker, B)
    broker.tick()
    assert broker.taken(B) == [b"job"]


@each_way
def test_an_ordering_key_is_held_by_what_is_kept(away: Away) -> None:
    broker, first = broker_with_one_out(ordering_key="k")
    broker.publish(b"next", ordering_key="k")
    away(broker)
    crew(broker, B)
    broker.tick()
    assert broker.taken(B) == []
    come_back(broker, A, (first, 1))
    broker.processed(first, node=A)
    assert broker.taken(A) + broker.taken(B) == [b"next"]


@each_way
def test_concurrency_counts_what_is_kept(away: Away) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS, concurrency=1)
    crew(broker, A)
    first = broker.publish(b"job")
    broker.publish(b"next")
    assert broker.taken(A) == [b"job"]
    away(broker)
    crew(broker, B)
    broker.tick()
    assert broker.taken(B) == []
    come_back(broker, A, (first, 1))
    broker.processed(first, node=A)
    assert broker.taken(A) + broker.taken(B) == [b"next"]


@each_way
@pytest.mark.parametrize("most", [1, None])
def test_a_blocking_topic_waits_for_what_is_kept(away: Away, most: int | None) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS, blocking=True)
    crew(broker, A)
    first = broker.publish(b"job", max_receivers=most)
    broker.publish(b"next", max_receivers=most)
    assert broker.taken(A) == [b"job"]
    away(broker)
    crew(broker, B)
    broker.tick()
    assert broker.taken(B) == []
    come_back(broker, A, (first, 1))
    broker.processed(first, node=A)
    assert broker.taken(A) + broker.taken(B) == [b"next"]


@each_way
def test_a_place_of_max_receivers_is_taken_by_what_is_kept(away: Away) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    for node, name in ((A, "a"), (B, "b")):
        broker.subscribe(node, name=name)
    sequence = broker.publish(b"job", max_receivers=2)
    assert broker.taken(A) == broker.taken(B) == [b"job"]
    away(broker)
    broker.subscribe(C, name="c")
    broker.advance(GRACE_MS - 1)
    assert broker.taken(C) == []
    come_back(broker, A, (sequence, 1), group=None, name="a")
    broker.processed(sequence, node=A)
    come_back(broker, B, (sequence, 1), group=None, name="b")
    broker.processed(sequence, node=B)
    assert broker.taken(C) == [] and broker.describe()["held"] == 0


@each_way
def test_a_copy_of_the_log_is_kept_for_its_holder(away: Away) -> None:
    broker, sequence = broker_with_one_out(max_receivers=None)
    away(broker)
    crew(broker, B)
    broker.advance(GRACE_MS - 1)
    assert broker.taken(B) == []
    come_back(broker, A, (sequence, 1))
    broker.processed(sequence, node=A)
    broker.restart()
    crew(broker, B)
    broker.advance(GRACE_MS)
    assert broker.taken(B) == []


# --- coming back --------------------------------------------------------------------------------


@each_way
def test_what_an_endpoint_names_is_out_with_it_again_and_is_not_sent_again(away: Away) -> None:
    broker, sequence = broker_with_one_out()
    away(broker)
    told = come_back(broker, A, (sequence, 1))
    assert told["receiver"] == "crew" and "lost" not in told
    crew(broker, B)
    broker.advance(2 * GRACE_MS)
    assert broker.taken(A) == broker.taken(B) == []
    assert broker.processed(sequence, node=A) == {}
    assert broker.describe()["completed"] == 1


@each_way
def test_what_an_endpoint_does_not_name_was_lost_and_waits_again_at_once(away: Away) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    crew(broker, A)
    first, _ = broker.publish(b"has"), broker.publish(b"never got")
    away(broker)
    crew(broker, B)
    broker.take(A)
    come_back(broker, A, (first, 1), credit=1)
    (again,) = broker.take(B)
    assert (again.payload, again.attempt) == (b"never got", 2)


@each_way
def test_another_attempt_than_the_last_is_not_the_one_that_is_kept(away: Away) -> None:
    broker, sequence = broker_with_one_out()
    broker.extend(0, sequence, node=A)
    assert [one.attempt for one in broker.take(A)] == [2]
    away(broker)
    assert come_back(broker, A, (sequence, 1))["lost"] == [sequence]
    assert [one.attempt for one in broker.take(A)] == [3]


@each_way
def test_an_endpoint_that_says_nothing_is_taken_to_hold_everything(away: Away) -> None:
    broker, sequence = broker_with_one_out()
    away(broker)
    crew(broker, A, B)
    broker.advance(2 * GRACE_MS)
    assert broker.taken(A) == broker.taken(B) == []
    assert broker.processed(sequence, node=A) == {}


@each_way
def test_it_comes_back_under_another_session_by_naming_the_one_that_it_was_given_to(
    away: Away,
) -> None:
    broker, sequence = broker_with_one_out()
    away(broker)
    assert "lost" not in come_back(broker, NEW, (sequence, 1), sessions=(b"node-y", A))
    broker.advance(2 * GRACE_MS)
    assert broker.processed(sequence, node=NEW) == {}
    assert broker.describe()["completed"] == 1


@each_way
def test_nobody_claims_what_was_not_given_to_the_session_that_he_names(away: Away) -> None:
    broker, sequence = broker_with_one_out()
    away(broker)
    assert come_back(broker, B, (sequence, 1))["lost"] == [sequence]
    assert come_back(broker, C, (sequence, 1), sessions=(B, C))["lost"] == [sequence]
    broker.advance(GRACE_MS - 1)
    assert broker.taken(B) == broker.taken(C) == []


@each_way
def test_another_endpoint_of_the_node_claims_nothing(away: Away) -> None:
    broker, sequence = broker_with_one_out()
    away(broker)
    holding = ((A,), (sequence,), (1,))
    fields: dict[str, Any] = {"group": "crew", "credit": 9, "holding": holding}
    told = broker.ask(ask.Subscribe(A, broker.request(), 2, ("**",), **fields))
    assert told["lost"] == [sequence]
    assert broker.taken(A, 2) == []
    assert "lost" not in come_back(broker, A, (sequence, 1))


@each_way
def test_an_unnamed_receiver_comes_back_to_what_it_held(away: Away) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    broker.subscribe(A)
    sequence = broker.publish(b"job")
    broker.take(A)
    away(broker)
    assert "lost" not in come_back(broker, NEW, (sequence, 1), sessions=(A,), group=None)
    broker.subscribe(B)
    broker.advance(2 * GRACE_MS)
    assert broker.taken(B) == []
    assert broker.processed(sequence, node=NEW) == {}


@each_way
def test_it_comes_back_on_the_step_that_it_was_on_with_a_new_deadline(away: Away) -> None:
    broker, sequence = broker_with_one_out()
    broker.received(sequence, node=A)
    broker.advance(299_000)
    away(broker)
    come_back(broker, A, (sequence, 1))
    assert broker.describe()["received"] == 1
    broker.advance(299_000)
    assert broker.taken(A) == []
    broker.advance(1_000)
    assert broker.taken(A) == [b"job"]


@each_way
def test_what_comes_back_takes_credit_and_gives_it_back(away: Away) -> None:
    broker, sequence = broker_with_one_out()
    away(broker)
    come_back(broker, A, (sequence, 1), credit=1)
    broker.publish(b"next")
    assert broker.taken(A) == []
    broker.processed(sequence, node=A)
    assert broker.taken(A) == [b"next"]


@each_way
def test_what_comes_back_without_credit_gives_none_back(away: Away) -> None:
    broker, sequence = broker_with_one_out()
    away(broker)
    come_back(broker, A, (sequence, 1), credit=0)
    broker.publish(b"next")
    broker.processed(sequence, node=A)
    assert broker.taken(A) == []


def test_an_endpoint_that_is_there_still_is_made_anew_with_what_it_holds() -> None:
    broker, sequence = broker_with_one_out()
    crew(broker, B)
    with pytest.raises(PeerError, match="wrong_state"):
        crew(broker, A)
    assert "lost" not in come_back(broker, A, (sequence, 1))
    broker.tick()
    assert broker.taken(A) == broker.taken(B) == []
    assert broker.describe()["endpoints"] == 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": "~bad"}, "bad_request"),
        ({"group": "passing"}, "wrong_state"),
        ({"group": "one-too-many"}, "busy"),
    ],
)
def test_an_endpoint_whose_subscription_is_refused_stays_as_it_was(
    fields: dict[str, Any], code: str
) -> None:
    broker, sequence = broker_with_one_out()
    broker.subscribe(C, "none", group="passing", durable=False)
    broker.actor.receivers._durable_max = 1
    before = broker.describe()
    holding = ((A,), (sequence,), (1,))
    with pytest.raises(PeerError, match=code):
        broker.subscribe(A, holding=holding, **fields)
    assert broker.describe() == before
    assert broker.processed(sequence, node=A) == {}


# --- reports meanwhile --------------------------------------------------------------------------


@each_way
def test_a_report_by_the_receiver_completes_what_is_kept(away: Away) -> None:
    broker, sequence = broker_with_one_out()
    away(broker)
    assert broker.processed(sequence, node=C, receiver="crew") == {}
    assert broker.describe()["completed"] == 1
    assert come_back(broker, A, (sequence, 1))["lost"] == [sequence]


@each_way
def test_a_first_sign_while_it_is_kept_counts_when_it_comes_back(away: Away) -> None:
    broker, sequence = broker_with_one_out()
    away(broker)
    assert broker.received(sequence, node=C, receiver="crew") == {}
    come_back(broker, A, (sequence, 1))
    assert broker.describe()["received"] == 1


@each_way
def test_what_is_kept_and_extended_by_name_stays_with_its_holder(away: Away) -> None:
    broker, sequence = broker_with_one_out()
    away(broker)
    broker.ask(ask.Extend(C, broker.request(), 0, (sequence,), 60_000, receiver="crew"))
    broker.advance(2 * GRACE_MS)
    assert "lost" not in come_back(broker, A, (sequence, 1))


@each_way
def test_whoever_does_not_hold_what_is_kept_cannot_end_it(away: Away) -> None:
    broker, sequence = broker_with_one_out()
    away(broker)
    broker.subscribe(B, name="other")
    assert broker.processed(sequence, node=B) == {sequence: "not_yours"}


# --- gone ---------------------------------------------------------------------------------------


@each_way
def test_a_session_that_is_over_fails_over_at_once(away: Away) -> None:
    broker, _ = broker_with_one_out()
    away(broker)
    crew(broker, B)
    broker.detach(A)
    (again,) = broker.take(B)
    assert (again.payload, again.attempt) == (b"job", 2)


def test_a_connection_that_ends_fails_over_at_once_as_ever() -> None:
    broker, _ = broker_with_one_out()
    crew(broker, B)
    broker.detach(A)
    assert broker.taken(B) == [b"job"]


@each_way
def test_what_is_kept_when_the_topic_is_cleared_is_gone(away: Away) -> None:
    broker, sequence = broker_with_one_out()
    away(broker)
    broker.clear()
    assert come_back(broker, A, (sequence, 1))["lost"] == [sequence]
    assert broker.publish(b"next") and broker.taken(A) == [b"next"]


@each_way
def test_what_is_kept_for_a_receiver_that_is_deleted_goes_to_others(away: Away) -> None:
    broker, _ = broker_with_one_out()
    away(broker)
    broker.subscribe(B, name="other")
    broker.delete_receiver("crew")
    assert broker.taken(B) == [b"job"]


@each_way
def test_max_deliveries_counts_what_nobody_came_back_for(away: Away) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS, max_deliveries=1)
    crew(broker, A)
    sequence = broker.publish(b"job")
    away(broker)
    broker.advance(GRACE_MS)
    assert [parked["sequence"] for parked in broker.parked()] == [sequence]


# --- what is in memory alone --------------------------------------------------------------------


def test_a_push_message_is_kept_while_its_connection_may_come_back() -> None:
    broker, sequence = broker_with_one_out(mode="push")
    broker.suspend(A)
    crew(broker, B)
    broker.advance(GRACE_MS - 1)
    assert broker.taken(B) == []
    assert "lost" not in come_back(broker, NEW, (sequence, 1), sessions=(A,))
    assert broker.processed(sequence, node=NEW) == {}


def test_an_online_copy_ends_with_its_connection() -> None:
    broker, sequence = broker_with_one_out(mode="online", receipt=True)
    broker.suspend(A)
    assert broker.receipts[broker.last_number()].statuses == {"crew": "unreachable"}
    assert come_back(broker, A, (sequence, 1))["lost"] == [sequence]


@each_way
def test_nothing_of_a_page_is_left_behind_once_all_is_processed(away: Away) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    crew(broker, A)
    sequences = [broker.publish(b"%d" % number) for number in range(5)]
    broker.publish_many([b"x"] * 5)
    broker.take(A)
    away(broker)
    come_back(broker, A, *((sequence, 1) for sequence in sequences))
    for one in broker.take(A):
        sequences.append(one.sequence)
    broker.processed(*sequences, node=A)
    assert broker.describe()["held"] == 0
    number = TopicKeys(1)
    assert list(broker.rows.scan(*number.range_of("g"))) == []


# --- what is not well-formed --------------------------------------------------------------------


@pytest.mark.parametrize(
    "holding",
    [
        (),
        ((A,), (1,)),
        ((A,), (1,), ()),
        ((), (1,), (1,)),
        ((b"",), (1,), (1,)),
        (("text",), (1,), (1,)),
        ((A,), ("1",), (1,)),
        ((A,), (True,), (1,)),
        ((A,), 1, 1),
        ((A,) * 9, (), ()),
        7,
    ],
)
def test_a_holding_that_is_none_is_refused(holding: Any) -> None:
    with pytest.raises(PeerError) as caught:
        ask.Subscribe(A, 1, 1, ("**",), holding=holding)
    assert caught.value.code in ("bad_request", "too_large")


@each_way
def test_what_is_kept_for_a_receiver_that_lived_with_its_connection_can_be_dropped(
    away: Away,
) -> None:
    """Where a full topic drops its oldest, and nothing else is held."""
    broker = CoreBroker(grace_ms=GRACE_MS, overflow=DropOld(1))
    broker.subscribe(A)
    broker.publish(b"old", max_receivers=1, expect="processed")
    assert broker.taken(A) == [b"old"]
    away(broker)
    broker.publish(b"new", max_receivers=1, expect="processed")
    crew(broker, B)
    assert broker.taken(B) == [b"new"]
    broker.advance(GRACE_MS)
    assert broker.taken(B) == []
