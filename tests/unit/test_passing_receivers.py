"""Receivers that live with their connections (spec section 6), and what outlives them (section 2,
rule 6).

While its connection lives, such a receiver keeps its progress over every restart: what it has done
does not come again, and no message counts it twice. What it has parked outlives it.
"""

from collections.abc import Callable
from typing import Any

import pytest

from asterism import PeerError, limits
from asterism import commands as ask
from asterism.actors.shard import Shard
from asterism.rows import Rows
from asterism.settings import BackoffMs
from asterism.storage.keys import FIRST_PASSING, TopicKeys, is_passing
from asterism.storage.memory import MemoryRows
from asterism.storage.records import pack, unpack
from tests.support.core import CoreBroker

A, B, C = b"node-a", b"node-b", b"node-c"
NEW = b"node-x"  # as which A comes back, in a session of its own
GRACE_MS = 5_000
KEYS = TopicKeys(1)
Away = Callable[[CoreBroker], None]


def away_by_restart(broker: CoreBroker) -> None:
    broker.restart()


def away_by_loss(broker: CoreBroker) -> None:
    for node in (A, B):
        broker.suspend(node)


def away_again_and_again(broker: CoreBroker) -> None:
    broker.suspend(A)
    broker.restart()
    broker.restart()


each_way = pytest.mark.parametrize("away", [away_by_restart, away_by_loss, away_again_and_again])
each_kind = pytest.mark.parametrize("fields", [{}, {"group": "casual", "durable": False}])


def come_back(
    broker: CoreBroker,
    node: bytes = A,
    *held: tuple[int, int],
    sessions: tuple[bytes, ...] = (A,),
    interests: tuple[str, ...] = ("**",),
    **fields: Any,
) -> dict[str, Any]:
    """Subscribes again, and says what is held, of which sessions; what that was answered, but for
    the deadlines."""
    sequences, attempts = tuple(one[0] for one in held), tuple(one[1] for one in held)
    fields = {"credit": 100, "holding": (sessions, sequences, attempts), **fields}
    told = broker.ask(ask.Subscribe(node, broker.request(), 1, interests, **fields))
    return {name: value for name, value in told.items() if not name.endswith("_timeout_ms")}


def broker_with(*nodes: bytes, rows: Rows | None = None, **settings: Any) -> CoreBroker:
    """These subscribe without a name."""
    broker = CoreBroker(rows, grace_ms=GRACE_MS, **settings)
    for node in nodes:
        broker.subscribe(node)
    return broker


def rows_of(broker: CoreBroker, *kinds: str) -> list[bytes]:
    return [key for kind in kinds for key, _ in broker.rows.scan(*KEYS.range_of(kind))]


# --- what it has done does not come again -------------------------------------------------------


@each_way
@each_kind
def test_what_it_has_done_does_not_come_again(away: Away, fields: dict[str, Any]) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    name = broker.subscribe(A, **fields)
    sequences = [broker.publish(b"%d" % each, max_receivers=None) for each in range(5)]
    broker.take(A)
    broker.processed(sequences[0], sequences[3], node=A)
    away(broker)
    left = [(sequences[each], 1) for each in (1, 2, 4)]
    assert come_back(broker, A, *left, **fields) == {"receiver": name}
    broker.advance(2 * GRACE_MS)
    assert broker.taken(A) == []
    assert broker.processed(*[sequence for sequence, _ in left], node=A) == {}
    later = broker.publish(b"later", max_receivers=None)
    assert [one.sequence for one in broker.take(A)] == [later]


@each_way
def test_what_was_done_by_being_sent_does_not_come_again(away: Away) -> None:
    broker = broker_with(A)
    broker.publish(b"told", max_receivers=None, expect="sent")
    assert broker.taken(A) == [b"told"]
    away(broker)
    come_back(broker)
    assert broker.taken(A) == []


@each_way
def test_what_was_accepted_while_it_was_away_reaches_it(away: Away) -> None:
    broker = broker_with(A)
    broker.processed(broker.publish(b"before", max_receivers=None), node=A)
    broker.take(A)
    away(broker)
    broker.publish(b"meanwhile", max_receivers=None)
    come_back(broker)
    assert broker.taken(A) == [b"meanwhile"]


@each_way
def test_it_comes_back_under_another_session_and_is_the_same_receiver(away: Away) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    name = broker.subscribe(A)
    done, held = (broker.publish(b"job", max_receivers=None) for _ in range(2))
    broker.processed(done, node=A)
    broker.take(A)
    away(broker)
    assert come_back(broker, NEW, (held, 1)) == {"receiver": name}
    for _ in range(2):
        broker.restart()
        assert come_back(broker, NEW, (held, 1), sessions=(NEW,)) == {"receiver": name}
    assert broker.taken(NEW) == []
    assert [r["name"] for r in broker.receivers()] == [name]


@each_way
def test_max_receivers_never_counts_one_receiver_twice(away: Away) -> None:
    broker = broker_with(A)
    sequence = broker.publish(b"job", max_receivers=2, receipt=True)
    broker.processed(sequence, node=A)
    broker.take(A)
    away(broker)
    come_back(broker)
    broker.advance(GRACE_MS)
    assert broker.taken(A) == [] and not broker.receipts
    other = broker.subscribe(C)
    broker.processed(sequence, node=C)
    (receipt,) = broker.receipts.values()
    assert receipt.verdict == "ok" and len(receipt.statuses) == 2 and other in receipt.statuses


@each_way
def test_a_place_that_it_has_is_kept_while_it_is_away(away: Away) -> None:
    broker = broker_with(A, B)
    sequence = broker.publish(b"job", max_receivers=2)
    away(broker)
    broker.subscribe(C)
    broker.advance(GRACE_MS - 1)
    assert broker.taken(C) == []
    broker.advance(1)
    assert sequence and broker.taken(C) == [b"job"]


@each_way
def test_attempts_go_on_counting(away: Away) -> None:
    broker = broker_with(A, max_attempts=3, retry_backoff=BackoffMs(1_000, 1_000))
    sequence = broker.publish(b"job", max_receivers=None)
    broker.failed(sequence, node=A)
    broker.take(A)
    away(broker)
    come_back(broker)
    broker.advance(1_000)
    assert [one.attempt for one in broker.take(A)] == [2]


@each_way
def test_a_client_that_says_nothing_has_its_receiver_back_in_the_same_session(away: Away) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    name = broker.subscribe(A)
    done, held = (broker.publish(b"job", max_receivers=None) for _ in range(2))
    broker.processed(done, node=A)
    broker.take(A)
    away(broker)
    assert broker.subscribe(A) == name
    broker.advance(2 * GRACE_MS)
    assert broker.taken(A) == []
    assert broker.processed(held, node=A) == {}


@each_way
def test_an_endpoint_that_does_not_name_its_own_session_has_its_receiver_back_all_the_same(
    away: Away,
) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    name = broker.subscribe(A)
    broker.processed(broker.publish(b"job", max_receivers=None), node=A)
    broker.take(A)
    for _ in range(2):
        away(broker)
        assert come_back(broker, A, sessions=(C,)) == {"receiver": name}
    assert broker.taken(A) == [] and broker.actor.absences.count == 0


@each_way
def test_nobody_has_a_receiver_back_that_was_not_that_of_a_session_he_names(away: Away) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    name = broker.subscribe(A)
    broker.processed(broker.publish(b"job", max_receivers=None), node=A)
    away(broker)
    assert come_back(broker, C, sessions=(B, C))["receiver"] != name
    assert broker.taken(C) == [b"job"]


@each_way
def test_another_endpoint_of_the_node_is_another_receiver(away: Away) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    names = [broker.subscribe(A, endpoint=number) for number in (1, 2)]
    sequence = broker.publish(b"job", max_receivers=None)
    broker.processed(sequence, node=A, endpoint=1)
    broker.processed(sequence, node=A, endpoint=2)
    broker.take(A, 1), broker.take(A, 2)
    away(broker)
    told = [
        broker.ask(
            ask.Subscribe(A, broker.request(), number, ("**",), credit=9, holding=((A,), (), ()))
        )["receiver"]
        for number in (2, 1)
    ]
    assert told == names[::-1]
    assert broker.taken(A, 1) == broker.taken(A, 2) == []


@each_way
def test_other_interests_reach_back_to_what_it_was_not_sent(away: Away) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    broker.subscribe(A, "a/*")
    broker.processed(broker.publish(b"a", "a/1", max_receivers=None), node=A)
    broker.take(A)
    away(broker)
    broker.publish(b"b", "b/1", max_receivers=None)
    come_back(broker)  # it wants everything now
    assert broker.taken(A) == [b"b"]


def test_its_timeouts_are_its_own_after_a_restart() -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    broker.subscribe(A, sent_timeout_ms=700)
    held = broker.publish(b"job", max_receivers=None)
    broker.restart()
    come_back(broker, A, (held, 1))
    assert broker.receivers()[0]["sent_timeout_ms"] == 700


@each_way
def test_a_group_keeps_what_a_member_wants_that_is_away(away: Away) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    casual: dict[str, Any] = {"group": "casual", "durable": False}
    broker.subscribe(A, "a", **casual)
    broker.subscribe(C, "c", **casual)
    broker.processed(broker.publish(b"first", "a", max_receivers=None), node=A)
    broker.take(A)
    away(broker)
    come_back(broker, C, sessions=(C,), interests=("c",), **casual)
    broker.publish(b"for a", "a", max_receivers=None)
    assert broker.taken(C) == [b"for a"]  # any of a group may have its copies
    broker.advance(GRACE_MS)
    broker.publish(b"for nobody", "a", max_receivers=None)
    assert broker.taken(C) == []


# --- it ends ------------------------------------------------------------------------------------


@each_way
@each_kind
def test_it_ends_with_its_backlog_when_the_grace_is_over(
    away: Away, fields: dict[str, Any]
) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS, max_attempts=2)
    broker.subscribe(A, **fields)
    sequences = [broker.publish(b"job", max_receivers=None) for _ in range(4)]
    broker.processed(sequences[3], sequences[1], node=A)
    broker.failed(sequences[0], node=A)
    away(broker)
    broker.advance(GRACE_MS - 1)
    assert len(broker.receivers()) == 1
    broker.advance(1)
    assert broker.receivers() == []
    assert rows_of(broker, *"refdxwg") == []
    assert broker.actor.absences.count == 0


@each_way
def test_it_ends_at_once_when_its_session_is_over(away: Away) -> None:
    broker = broker_with(A)
    broker.processed(broker.publish(b"job", max_receivers=None), node=A)
    away(broker)
    broker.detach(A)
    assert broker.receivers() == []
    assert rows_of(broker, *"refdxwg") == []


@each_way
def test_it_may_be_deleted_while_it_is_away(away: Away) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    name = broker.subscribe(A)
    broker.publish(b"job", max_receivers=None)
    away(broker)
    broker.delete_receiver(name)
    assert rows_of(broker, *"refdxwg") == []
    broker.advance(GRACE_MS)
    assert come_back(broker)["receiver"] and broker.taken(A)[-1:] == [b"job"]


@each_way
def test_a_cleared_topic_has_nothing_for_one_that_comes_back(away: Away) -> None:
    broker = broker_with(A)
    sequence = broker.publish(b"job", max_receivers=None)
    broker.processed(broker.publish(b"done", max_receivers=None), node=A)
    broker.take(A)
    away(broker)
    broker.clear()
    assert come_back(broker, A, (sequence, 1))["lost"] == [sequence]
    broker.restart()
    come_back(broker)
    broker.publish(b"next", max_receivers=None)
    assert broker.taken(A) == [b"next"]


@each_way
def test_a_deleted_topic_leaves_nothing_of_those_who_are_away(away: Away) -> None:
    broker = broker_with(A)
    broker.publish(b"job", max_receivers=None)
    away(broker)
    broker.delete_topic()
    assert isinstance(broker.rows, MemoryRows)
    assert list(broker.rows.scan(b"\x01", b"\x02")) == []
    broker.advance(GRACE_MS)


def test_the_grace_begins_when_clients_can_come_back() -> None:
    broker = broker_with(A)
    broker.processed(broker.publish(b"job", max_receivers=None), node=A)
    broker.take(A)
    broker.shard = Shard(broker.rows, broker.defaults, grace_ms=GRACE_MS)
    broker.end_turn()
    broker.advance(10 * GRACE_MS)  # the worker takes long, or the front-end is away
    assert broker.shard.absent_nodes() == [A]
    broker.shard.begin_grace(broker.now_ms)
    broker.end_turn()
    broker.advance(GRACE_MS - 1)
    come_back(broker)
    assert broker.taken(A) == []


def test_without_a_grace_it_ends_with_a_restart(rows: Rows) -> None:
    broker = CoreBroker(rows)
    broker.subscribe(A)
    broker.processed(broker.publish(b"job", max_receivers=None), node=A)
    broker.restart()
    assert broker.receivers() == []
    assert rows_of(broker, *"refdxwg") == []


def test_there_are_no_more_endpoints_away_than_may_be_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    monkeypatch.setattr(limits, "ENDPOINTS_MAX", 2)
    for node in (A, B, C):
        broker.subscribe(node)
        broker.suspend(node)
    assert broker.actor.absences.count == len(broker.receivers()) == 2


# --- what it costs ------------------------------------------------------------------------------


def test_one_that_gets_nothing_that_is_stored_writes_nothing() -> None:
    broker = broker_with(A, B)
    for mode in ("push", "online"):
        for sequence in [broker.publish(b"x", mode=mode) for _ in range(4)]:
            for node in (A, B):
                broker.processed(sequence, node=node)
    assert rows_of(broker, *"refdxwg") == []


def test_what_it_writes_need_not_be_synced() -> None:
    rows = MemoryRows()
    broker = broker_with(A, rows=rows)
    sequences = [broker.publish(b"x", max_receivers=None) for _ in range(4)]
    broker.processed(*sequences[2:], node=A)
    broker.extend(0, sequences[0], node=A)
    written = rows_of(broker, *"efdxwg")
    assert {chr(key[5]) for key in written} == set("efdxwg")
    assert all(map(is_passing, written))
    assert not is_passing(KEYS.exception(16, 1)) and not is_passing(KEYS.floor(16))


def test_the_numbers_of_those_that_come_and_go_begin_again_after_the_last() -> None:
    broker = broker_with(A)
    broker.actor.receivers.next_passing = 2**32 - 1
    broker.subscribe(B)
    broker.subscribe(C)
    numbers = {receiver.number for receiver in broker.actor.receivers.by_name.values()}
    assert numbers == {FIRST_PASSING, 2**32 - 1, FIRST_PASSING + 1}


def test_a_head_of_an_earlier_version_counts_durable_receivers_alone() -> None:
    broker = broker_with(A)
    broker.create_receiver("durable")
    row = broker.rows.get(KEYS.head)
    assert row is not None
    *rest, (count, _), _ = unpack(row, 5)
    broker.rows.put(KEYS.head, pack(*rest, (count,)))
    broker.restart()
    broker.subscribe(B)
    assert broker.actor.receivers.next_number == count
    assert broker.actor.receivers.next_passing == FIRST_PASSING + 1


def test_a_page_of_an_earlier_version_is_kept_for_the_receiver_that_it_names() -> None:
    broker = broker_with(A)
    sequence = broker.publish(b"job")
    broker.take(A)
    for key in rows_of(broker, "e"):
        broker.rows.delete(key)
    broker.restart()
    broker.subscribe(B)
    broker.advance(GRACE_MS - 1)
    assert broker.taken(B) == []
    assert "lost" not in come_back(broker, NEW, (sequence, 1))
    broker.advance(2 * GRACE_MS)
    assert broker.processed(sequence, node=NEW) == {}


# --- what it has parked outlives it -------------------------------------------------------------


def parked_and_gone(
    gone: Callable[[CoreBroker], None], **fields: Any
) -> tuple[CoreBroker, int, str]:
    """A message that A, without a name, has failed for good before it went."""
    broker = CoreBroker(grace_ms=GRACE_MS)
    name = broker.subscribe(A)
    sequence = broker.publish(b"bad", receipt=True, **fields)
    broker.failed(sequence, node=A, reason="it broke")
    broker.take(A)
    gone(broker)
    return broker, sequence, name


def gone_by_leaving(broker: CoreBroker) -> None:
    broker.detach(A)


def gone_by_restart(broker: CoreBroker) -> None:
    broker.restart()
    broker.advance(GRACE_MS)


def gone_long_ago(broker: CoreBroker) -> None:
    broker.detach(A)
    broker.restart()
    broker.restart()


each_end = pytest.mark.parametrize("gone", [gone_by_leaving, gone_by_restart, gone_long_ago])


@each_end
def test_what_it_has_parked_stays_listed(gone: Away) -> None:
    broker, sequence, name = parked_and_gone(gone, max_receivers=None)
    assert broker.receivers() == []
    listed = [(each["sequence"], each["receiver"], each["reason"]) for each in broker.parked()]
    assert listed == [(sequence, name, "it broke")]
    assert broker.describe()["parked"] == 1


@each_end
def test_what_it_has_parked_keeps_its_place_until_it_is_renewed(gone: Away) -> None:
    broker, sequence, _ = parked_and_gone(gone, max_receivers=2)
    broker.subscribe(B)
    broker.subscribe(C)
    assert sorted(broker.taken(B) + broker.taken(C)) == [b"bad"]
    broker.renew(sequence)
    assert sorted(broker.taken(B) + broker.taken(C)) == [b"bad"]
    for node in (B, C):
        broker.processed(sequence, node=node)
    assert broker.parked() == [] and broker.describe()["held"] == 0


@each_end
def test_what_it_has_parked_keeps_its_place_until_it_is_abandoned(gone: Away) -> None:
    broker, sequence, name = parked_and_gone(gone, max_receivers=2)
    broker.subscribe(B)
    broker.subscribe(C)
    assert sorted(broker.taken(B) + broker.taken(C)) == [b"bad"]
    broker.abandon(sequence, name)
    assert broker.parked() == []
    assert sorted(broker.taken(B) + broker.taken(C)) == [b"bad"]


@each_end
@pytest.mark.parametrize("abandoned", [False, True])
def test_what_it_has_parked_makes_the_verdict_failed(gone: Away, abandoned: bool) -> None:
    broker, sequence, name = parked_and_gone(gone, max_receivers=None)
    assert not broker.receipts
    if abandoned:
        broker.abandon(sequence, name)
    broker.restart()
    broker.advance(broker.defaults.default_ttl_ms)
    (receipt,) = broker.receipts.values()
    assert (receipt.verdict, receipt.statuses) == ("failed", {name: "failed"})
    assert len(broker.parked()) == (not abandoned)


@each_end
def test_one_that_was_renewed_for_nobody_did_not_fail_for_good(gone: Away) -> None:
    broker, sequence, _ = parked_and_gone(gone, max_receivers=None)
    broker.renew(sequence)
    assert broker.parked() == []
    broker.subscribe(C)
    assert broker.taken(C) == [b"bad"]
    broker.advance(broker.defaults.default_ttl_ms)
    (receipt,) = broker.receipts.values()
    assert receipt.verdict == "expired"
    assert broker.describe()["held"] == 0


@each_end
@pytest.mark.parametrize("most", [2, None])
@pytest.mark.parametrize("priority", [3, None])
def test_one_that_is_renewed_after_its_time_goes_to_whoever_has_not_had_it(
    gone: Away, most: int | None, priority: int | None
) -> None:
    broker, sequence, _ = parked_and_gone(gone, max_receivers=most, priority=priority)
    broker.advance(broker.defaults.default_ttl_ms)
    assert broker.describe()["held"] == 0
    broker.subscribe(B)
    assert broker.taken(B) == []
    broker.renew(sequence)
    assert broker.describe()["held"] == 1
    broker.restart()
    come_back(broker, B, sessions=(B,))
    broker.subscribe(C)
    assert broker.taken(C) == [b"bad"]
    assert broker.processed(sequence, node=C) == {}
    broker.advance(broker.defaults.default_ttl_ms)
    assert broker.describe()["held"] == 0 and broker.parked() == []


def test_one_that_is_renewed_after_its_time_goes_to_those_who_wait_for_a_place() -> None:
    broker = CoreBroker()
    broker.subscribe(A)
    broker.subscribe(B, name="b")
    sequence = broker.publish(b"bad", max_receivers=2)
    broker.processed(sequence, node=B)
    broker.failed(sequence, node=A)
    broker.detach(A)
    broker.subscribe(C, name="c")
    broker.take(B)
    broker.advance(broker.defaults.default_ttl_ms)
    broker.renew(sequence)
    assert (broker.taken(B), broker.taken(C)) == ([], [b"bad"])
    broker.processed(sequence, node=C)
    assert broker.describe()["held"] == 0


@each_end
def test_what_it_has_parked_ends_when_it_is_abandoned(gone: Away) -> None:
    broker, sequence, _ = parked_and_gone(gone, max_receivers=None)
    broker.advance(broker.defaults.default_ttl_ms)
    broker.abandon_all()
    assert broker.parked() == []
    assert rows_of(broker, *"dlpv") == []
    with pytest.raises(PeerError, match="no_such_message"):
        broker.renew(sequence)


def test_what_a_deleted_receiver_has_parked_outlives_it_too() -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="billing")
    sequence = broker.publish(b"bad", max_receivers=2)
    broker.failed(sequence, node=A)
    broker.delete_receiver("billing")
    broker.restart()
    assert [each["receiver"] for each in broker.parked()] == ["billing"]
    broker.subscribe(B, name="billing")
    broker.subscribe(C, name="other")
    assert sorted(broker.taken(B) + broker.taken(C)) == [b"bad"]
    broker.renew_all()
    assert sorted(broker.taken(B) + broker.taken(C)) == [b"bad"]


@each_end
def test_a_cleared_topic_has_nothing_parked(gone: Away) -> None:
    broker, _, _ = parked_and_gone(gone, max_receivers=None)
    broker.clear()
    assert broker.parked() == []
    assert rows_of(broker, *"dlpv") == []


# --- found on the way ---------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"name": "crew"}])
def test_an_ordering_key_is_held_by_what_is_kept_of_the_log(fields: dict[str, Any]) -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    broker.subscribe(A, **fields)
    first = broker.publish(b"first", max_receivers=None, ordering_key="k")
    broker.publish(b"second", max_receivers=None, ordering_key="k")
    assert broker.taken(A) == [b"first"]
    broker.suspend(A)
    come_back(broker, A, (first, 1), **fields)
    assert broker.taken(A) == []
    broker.processed(first, node=A)
    assert broker.taken(A) == [b"second"]


def test_one_whose_last_delivery_was_lost_is_given_up_only_where_it_has_a_place() -> None:
    broker = CoreBroker(max_deliveries=1)
    broker.subscribe(A, name="a")
    sequence = broker.publish(b"job", max_receivers=1 + 1)
    assert broker.taken(A) == [b"job"]
    broker.restart()  # without a grace: its last delivery is lost
    for node in (B, C):
        broker.subscribe(node, name=node.decode())
    assert broker.taken(B) == broker.taken(C) == [b"job"]
    broker.subscribe(A, name="a")
    broker.tick()
    assert broker.parked() == []
    broker.processed(sequence, node=B)
    broker.processed(sequence, node=C)
    assert broker.parked() == [] and broker.describe()["held"] == 0


def test_a_restart_does_not_bring_back_what_expired_while_it_was_out() -> None:
    broker = CoreBroker(grace_ms=GRACE_MS)
    soon = broker.now_ms + 1_000
    brief = broker.publish(b"brief", max_receivers=None, expires_ms=soon)
    broker.publish(b"long", max_receivers=None)
    broker.subscribe(A, name="a")  # so that both are on one page
    broker.subscribe(B, name="b")
    broker.failed(brief, node=B)  # it is kept for that alone
    broker.advance(1_000)
    before = broker.describe()["sent"]
    broker.restart()
    assert broker.describe()["sent"] == before
    assert come_back(broker, A, (brief, 1), name="a")["lost"] == [brief]
