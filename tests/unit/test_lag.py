"""What a receiver has still to do, and that asking for it changes nothing."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from asterism import commands as ask
from asterism import limits
from asterism.actors.counting import COUNT_PAUSE_MS
from asterism.actors.delivery import Delivery
from asterism.actors.receivers import Receiver
from asterism.errors import PeerError
from asterism.rows import Rows
from asterism.settings import BackoffMs, DropOld, RejectNew
from asterism.storage.keys import RANK_END
from asterism.storage.memory import MemoryRows
from asterism.storage.records import pack, unpack
from tests.support.core import CoreBroker
from tests.support.kinds import Kind, across_restarts, durable_kinds, every_kind
from tests.support.lags import check_lags

EVERY: Kind = {"max_receivers": None}
MANY = 16_000


def told(broker: CoreBroker, name: str = "r") -> tuple[int, int, int | None]:
    """The lag of a receiver, how many are out, and how old the oldest is."""
    (row,) = [each for each in broker.receivers() if each["name"] == name]
    assert row["counted"], "the numbers are exact"
    assert row["out"] == row["in_flight"]
    lag = {field: row[field] for field in ("lag", "out", "oldest_ms", "counted")}
    assert broker.describe()["lags"][name] == lag
    check_lags(broker.actor)
    return row["lag"], row["out"], row["oldest_ms"]


# --- what lag is ----------------------------------------------------------------------------------


@every_kind
def test_lag_is_what_is_out_and_what_waits(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="r", credit=1)
    assert told(broker) == (0, 0, None)
    first = broker.publish(**kind)
    broker.advance(30)
    broker.publish(**kind)
    broker.publish(**kind)
    broker.advance(10)
    assert told(broker) == (3, 1, 40)
    broker.processed(first)
    assert told(broker) == (2, 1, 10)


@durable_kinds
@across_restarts
def test_lag_outlives_a_restart(rows: Rows, kind: Kind, restarts: bool) -> None:
    broker = CoreBroker(rows)
    broker.subscribe(name="r", credit=2)
    broker.create_receiver("other", "a/*")
    broker.create_receiver("else", "b")
    for subject in ("a/1", "b", "a/2", "b", "a/1"):
        broker.publish(subject=subject, **kind)
        broker.advance(10)
    broker.processed(1)
    if restarts:
        broker.restart()
        assert told(broker)[1] == 0
    assert told(broker)[0] == 4
    if kind["max_receivers"] != 1:
        assert (told(broker, "other")[0], told(broker, "else")[0]) == (3, 2)
    else:  # the first is done; two are out, until the worker is restarted
        expected = (2, 2) if restarts else (1, 1)
        assert (told(broker, "other")[0], told(broker, "else")[0]) == expected


def test_a_message_of_the_pool_is_the_lag_of_all_who_could_take_it_until_one_does() -> None:
    broker = CoreBroker()
    broker.subscribe(b"one", name="r", credit=0)
    broker.subscribe(b"two", name="s", interests="a/*", credit=0)
    broker.create_receiver("t", "b")
    first = broker.publish(subject="a/b")
    broker.publish(subject="a/b")
    broker.publish(subject="b")
    assert [told(broker, name)[:2] for name in "rst"] == [(3, 0), (2, 0), (1, 0)]
    broker.grant(1, node=b"two")
    assert [told(broker, name)[:2] for name in "rst"] == [(2, 0), (2, 1), (1, 0)]
    broker.processed(first, node=b"two")
    broker.detach(b"two")
    assert [told(broker, name)[:2] for name in "rst"] == [(2, 0), (1, 0), (1, 0)]


@durable_kinds
def test_what_is_parked_is_not_lag_and_is_again_when_it_is_renewed(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="r")
    sequence = broker.publish(**kind)
    broker.failed(sequence)
    assert told(broker) == (0, 0, None)
    broker.ask(ask.Renew(b"admin", broker.request(), sequence))
    assert told(broker)[:2] == (1, 1)
    broker.processed(sequence)
    assert told(broker) == (0, 0, None)


@every_kind
def test_what_pauses_between_two_attempts_is_lag(kind: Kind) -> None:
    broker = CoreBroker(max_attempts=3, retry_backoff=BackoffMs(1_000, 1_000))
    broker.subscribe(name="r")
    sequence = broker.publish(**kind)
    broker.failed(sequence)
    broker.advance(500)
    assert told(broker) == (1, 0, 500)
    broker.advance(500)
    assert told(broker) == (1, 1, 1_000)


@every_kind
def test_what_waits_for_its_time_is_lag_from_then_on(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="r", credit=0)
    broker.publish(deliver_ms=broker.now_ms + 1_000, **kind)
    assert told(broker) == (0, 0, None)
    broker.advance(1_000)
    assert told(broker) == (1, 0, 1_000)


@durable_kinds
def test_what_waits_for_its_time_is_not_counted_for_a_new_receiver(kind: Kind) -> None:
    broker = CoreBroker()
    broker.publish(deliver_ms=broker.now_ms + 1_000, **kind)
    broker.create_receiver("r")
    assert told(broker) == (0, 0, None)
    broker.advance(1_000)
    assert told(broker)[0] == 1


@durable_kinds
def test_what_is_dropped_before_its_time_was_nobodys_lag(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="r", credit=0)
    sequence = broker.publish(deliver_ms=broker.now_ms + 1_000, **kind)
    broker.ask(ask.Abandon(b"admin", broker.request(), sequence))
    assert told(broker) == (0, 0, None)


@every_kind
def test_what_is_set_aside_behind_its_key_is_lag(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="r")
    for _ in range(3):
        broker.publish(ordering_key="k", **kind)
    assert told(broker) == (3, 1, 0)


def test_a_message_that_waits_for_a_place_is_lag_until_it_is_over() -> None:
    broker = CoreBroker()
    for name in ("r", "s", "t"):
        broker.subscribe(name.encode(), name=name)
    sequence = broker.publish(max_receivers=2)
    assert [told(broker, name)[:2] for name in "rst"].count((1, 1)) == 2
    assert [told(broker, name)[:2] for name in "rst"].count((1, 0)) == 1
    for node in (b"r", b"s", b"t"):
        broker.processed(sequence, node=node)
    assert [told(broker, name) for name in "rst"] == [(0, 0, None)] * 3


@durable_kinds
@across_restarts
def test_what_expires_is_lag_no_longer(rows: Rows, kind: Kind, restarts: bool) -> None:
    broker = CoreBroker(rows, default_ttl_ms=1_000)
    broker.create_receiver("r")
    broker.create_receiver("s", "nothing")
    for _ in range(5):
        broker.publish(**kind)
    broker.advance(500)
    broker.publish(**kind)
    if restarts:
        broker.restart()
    broker.advance(600)
    assert told(broker) == (1, 0, 600)
    assert told(broker, "s") == (0, 0, None)


# --- when receivers change ------------------------------------------------------------------------


def test_the_backlog_of_a_new_receiver_is_counted_a_few_rows_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "COUNT_ROWS_MAX", 8)
    broker = CoreBroker()
    broker.publish_many([b"x"] * 30, **EVERY)
    broker.create_receiver("r")
    (row,) = broker.receivers()
    assert row["lag"] < 30 and not row["counted"]
    assert not broker.describe()["counted"]
    broker.publish(**EVERY)
    broker.advance(20 * COUNT_PAUSE_MS)
    assert told(broker)[0] == 31
    assert broker.describe()["counted"]


def test_what_changes_while_a_count_goes_on_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "COUNT_ROWS_MAX", 8)
    broker = CoreBroker()
    sequences = broker.publish_many([b"x"] * 30, **EVERY)
    broker.subscribe(name="r", credit=30)
    assert not broker.receivers()[0]["counted"]
    for sequence in (sequences[0], sequences[29], sequences[5]):
        assert isinstance(sequence, int)
        broker.processed(sequence)
        check_lags(broker.actor)
    broker.ask(ask.Abandon(b"admin", broker.request(), 12))
    broker.advance(20 * COUNT_PAUSE_MS)
    assert told(broker)[0] == 26


@across_restarts
def test_a_receiver_that_is_moved_is_counted_anew(rows: Rows, restarts: bool) -> None:
    broker = CoreBroker(rows)
    broker.subscribe(name="r")
    for _ in range(5):
        broker.processed(broker.publish(**EVERY))
    assert told(broker)[0] == 0
    broker.unsubscribe()
    broker.seek("r", sequence=3)
    if restarts:
        broker.restart()
    assert told(broker)[0] == 3
    broker.seek("r")
    assert told(broker)[0] == 0


@durable_kinds
@across_restarts
def test_lag_follows_the_interests_of_a_receiver(rows: Rows, kind: Kind, restarts: bool) -> None:
    broker = CoreBroker(rows)
    broker.subscribe(name="r", interests="a/*", credit=0)
    for subject in ("a/1", "b", "a/2", "b", "b"):
        broker.publish(subject=subject, **kind)
    assert told(broker)[0] == 2
    broker.set_interests("b")
    if restarts:
        broker.restart()
    assert told(broker)[0] == 3
    if not restarts:
        broker.set_interests("a/1", "b")
        assert told(broker)[0] == 4


def test_a_folder_of_an_earlier_version_is_counted_when_it_is_opened() -> None:
    rows = MemoryRows()
    broker = CoreBroker(rows)
    broker.subscribe(name="r", credit=1)
    broker.processed(broker.publish(**EVERY))
    broker.publish_many([b"x"] * 4, **EVERY)
    broker.publish(subject="b")
    broker.detach()
    keys = broker.actor.keys
    (number,) = [each.number for each in broker.actor.receivers.by_name.values()]
    floor = rows.get(keys.floor(number))
    head = rows.get(keys.head)
    assert floor is not None and head is not None
    rows.put(keys.floor(number), floor[:8])
    rows.put(keys.head, pack(*unpack(head, 5)[:4]))
    broker.restart()
    assert told(broker)[0] == 5
    assert broker.describe()["kept"] == 1


# --- very many subjects ---------------------------------------------------------------------------


def test_a_topic_of_very_many_subjects_says_about_how_many_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SUBJECTS_COUNTED_MAX", 4)
    broker = CoreBroker()
    broker.subscribe(name="r", credit=0)
    broker.create_receiver("s", "order/3")
    for number in range(10):
        broker.publish(subject=f"order/{number}")
    assert told(broker)[0] == 10
    row = broker.receivers()[1]
    assert row["lag"] >= 1 and not row["counted"]
    broker.grant(10)
    broker.processed(*range(1, 11))
    assert told(broker, "s") == (0, 0, None)


# --- what the topic merely keeps ------------------------------------------------------------------


@across_restarts
def test_what_everybody_has_done_is_kept_and_does_not_wait(rows: Rows, restarts: bool) -> None:
    broker = CoreBroker(rows)
    broker.subscribe(b"one", name="r")
    broker.subscribe(b"two", name="s")
    sequence = broker.publish(**EVERY)
    broker.processed(sequence, node=b"one")
    described = broker.describe()
    assert (described["held"], described["kept"]) == (1, 0)
    broker.processed(sequence, node=b"two")
    if restarts:
        broker.restart()
    broker.advance(100)
    described = broker.describe()
    assert (described["held"], described["waiting"], described["kept"]) == (1, 0, 1)
    assert described["oldest_waiting_ms"] is None
    broker.publish(**EVERY)
    broker.advance(10)
    assert broker.describe()["oldest_waiting_ms"] == (10 if restarts else None)
    broker.create_receiver("late")
    described = broker.describe()
    assert (described["held"], described["kept"]) == (2, 0)


def test_what_nobody_is_interested_in_yet_waits() -> None:
    broker = CoreBroker()
    broker.publish(**EVERY)
    described = broker.describe()
    assert (described["held"], described["waiting"], described["kept"]) == (1, 1, 0)
    broker.create_receiver("r", "nothing")
    assert broker.describe()["waiting"] == 1


def test_what_a_receiver_alone_had_to_do_is_kept_when_the_receiver_is_deleted() -> None:
    broker = CoreBroker()
    broker.subscribe(name="r")
    broker.create_receiver("s")
    broker.processed(broker.publish(**EVERY))
    assert broker.describe()["kept"] == 0
    broker.delete_receiver("s")
    assert broker.describe()["kept"] == 1


def test_what_is_kept_counts_for_overflow_and_is_dropped_like_any_other() -> None:
    broker = CoreBroker(overflow=RejectNew(1))
    broker.subscribe(name="r")
    broker.processed(broker.publish(**EVERY))
    with pytest.raises(PeerError, match="holds 1"):
        broker.publish(**EVERY)
    broker.configure(overflow=DropOld(1))
    broker.publish(**EVERY)
    described = broker.describe()
    assert (described["held"], described["kept"], described["sent"]) == (1, 0, 1)


def test_a_message_that_several_hold_is_one_that_does_not_wait() -> None:
    broker = CoreBroker()
    for name in ("r", "s", "t"):
        broker.subscribe(name.encode(), name=name, credit=1)
    broker.publish(**EVERY)
    broker.publish(**EVERY)
    described = broker.describe()
    assert (described["held"], described["sent"], described["waiting"]) == (2, 3, 1)


# --- receivers without a name ---------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True], ids=["lost", "restarted"])
def test_the_lag_of_a_receiver_without_a_name_is_kept_while_it_is_away(restarts: bool) -> None:
    broker = CoreBroker(grace_ms=5_000)
    name = broker.subscribe(credit=2)
    for _ in range(4):
        broker.publish(**EVERY)
    broker.processed(2)
    if restarts:
        broker.restart()
    else:
        broker.suspend()
    broker.publish(**EVERY)
    assert told(broker, name)[:2] == (4, 2)
    assert broker.actor.log_kept_to == RANK_END
    holding = ((b"consumer",), (1, 3), (1, 1))
    broker.ask(ask.Subscribe(b"consumer", broker.request(), 1, ("**",), credit=1, holding=holding))
    broker.processed(1, 3)
    assert told(broker, name)[0] == 2
    broker.detach()
    assert broker.receivers() == [] and broker.describe()["kept"] == 0


@across_restarts
def test_what_is_renewed_for_others_after_its_time_is_their_lag(rows: Rows, restarts: bool) -> None:
    broker = CoreBroker(rows, max_attempts=1)
    broker.subscribe(b"gone")
    broker.subscribe(b"done", name="done")
    broker.create_receiver("r")
    sequence = broker.publish(max_receivers=3)
    broker.processed(sequence, node=b"done")
    broker.failed(sequence, node=b"gone")
    broker.detach(b"gone")
    assert (told(broker)[0], told(broker, "done")[0]) == (1, 0)
    broker.advance(broker.defaults.default_ttl_ms)
    assert (told(broker)[0], told(broker, "done")[0]) == (0, 0)
    if restarts:
        broker.restart()
    broker.renew(sequence)
    if restarts:
        broker.restart()
    assert (told(broker)[0], told(broker, "done")[0]) == (1, 0)
    assert broker.describe()["kept"] == 0


def test_what_is_renewed_for_nobody_after_its_time_is_kept() -> None:
    broker = CoreBroker(max_attempts=1)
    broker.subscribe(b"gone")
    broker.subscribe(b"done", name="done")
    sequence = broker.publish(max_receivers=3)
    broker.processed(sequence, node=b"done")
    broker.failed(sequence, node=b"gone")
    broker.detach(b"gone")
    broker.advance(broker.defaults.default_ttl_ms)
    broker.renew(sequence)
    assert told(broker, "done")[0] == 0
    described = broker.describe()
    assert (described["held"], described["kept"]) == (1, 1)


@pytest.mark.parametrize("reads", [False, True], ids=["away", "has read on"])
def test_one_that_is_moved_back_before_it_is_renewed_for_others_has_it_to_do(reads: bool) -> None:
    broker = CoreBroker(max_attempts=1)
    broker.subscribe(b"gone")
    broker.subscribe(b"done", name="done")
    sequence = broker.publish(max_receivers=3)
    broker.processed(sequence, node=b"done")
    broker.failed(sequence, node=b"gone")
    broker.detach(b"gone")
    broker.advance(broker.defaults.default_ttl_ms)
    broker.detach(b"done")
    broker.seek("done", sequence=0)
    broker.take(b"done")
    if reads:
        broker.subscribe(b"done", name="done")
    assert told(broker, "done")[0] == 0
    broker.renew(sequence)
    assert told(broker, "done")[:2] == (1, reads)
    if not reads:
        broker.subscribe(b"done", name="done")
    assert broker.taken(b"done") == [b"x"]
    broker.processed(sequence, node=b"done")
    assert told(broker, "done")[0] == 0


def test_what_was_written_of_a_receiver_is_not_written_again() -> None:
    rows = MemoryRows()
    broker = CoreBroker(rows)
    broker.subscribe(name="r")
    broker.create_receiver("idle")
    broker.publish(**EVERY)
    before = dict(rows.scan(*broker.actor.keys.range_of("f")))
    for receiver in broker.actor.receivers.by_name.values():
        assert receiver.floor_row == before[broker.actor.keys.floor(receiver.number)]
    broker.publish(**EVERY)
    broker.publish(**EVERY)
    assert dict(rows.scan(*broker.actor.keys.range_of("f"))) == before


def test_what_one_has_held_and_wants_no_more_is_kept_when_it_comes_back() -> None:
    broker = CoreBroker(grace_ms=5_000)
    broker.subscribe(b"other", name="other")
    broker.subscribe(name="r")
    sequence = broker.publish(subject="b", **EVERY)
    broker.processed(sequence, node=b"other")
    broker.set_interests("a")
    assert (told(broker)[:2], broker.describe()["kept"]) == ((1, 1), 0)
    broker.restart()
    assert (told(broker)[:2], broker.describe()["kept"]) == ((1, 1), 0)
    lost = ((b"consumer",), (), ())
    broker.ask(ask.Subscribe(b"consumer", broker.request(), 1, ("a",), name="r", holding=lost))
    assert (told(broker)[0], broker.describe()["kept"]) == (0, 1)


# --- asking changes nothing -----------------------------------------------------------------------


def deliveries() -> int:
    """How many deliveries have an object, those of tests before this one included."""
    gc.collect()
    return sum(type(each) is Delivery for each in gc.get_objects())


def queries(broker: CoreBroker) -> list[Any]:
    return [
        ask.Describe(b"admin", broker.request()),
        ask.Stats(b"admin", broker.request()),
        ask.ListReceivers(b"admin", broker.request()),
        ask.ListParked(b"admin", broker.request()),
        ask.Fetch(b"admin", broker.request(), 5),
        ask.Fetch(b"admin", broker.request(), MANY * 2),
    ]


WAITING_KINDS = pytest.mark.parametrize(
    "kind",
    [
        pytest.param({}, id="pool"),
        pytest.param({"receipt": True}, id="pool-receipt"),
        pytest.param(EVERY, id="log"),
        pytest.param({"mode": "push", "expect": "sent"}, id="push"),
        pytest.param({"mode": "online", "expect": "sent"}, id="online"),
    ],
)


def waiting(kind: Kind, **settings: Any) -> CoreBroker:
    """A topic on which very many messages wait, and some are out."""
    broker = CoreBroker(**settings)
    broker.subscribe(name="r", credit=10)
    for _ in range(MANY // 1_000):
        broker.publish_many([b"x"] * 1_000, **kind)
    return broker


def in_runs(broker: CoreBroker) -> int:
    """How many messages wait, or are out, without an object."""
    actor = broker.actor
    kept = sum(receiver.kept_count for receiver in actor.receivers.by_name.values())
    return sum(lane.runs.total for lane in actor.pool.lanes()) + len(actor.pool.plain) + kept


@WAITING_KINDS
def test_asking_leaves_what_waits_as_it_is_held(kind: Kind) -> None:
    broker = waiting(kind)
    before = deliveries(), in_runs(broker), broker.actor.next_due_ms()
    assert kind == EVERY or before[1] >= MANY - 1_000, "they wait in runs"
    for query in queries(broker):
        broker.do(query)
        assert (deliveries(), in_runs(broker), broker.actor.next_due_ms()) == before, query
    assert told(broker)[:2] == ((MANY, 10) if "mode" not in kind else (MANY - 10, 0))


@WAITING_KINDS
def test_what_was_asked_about_goes_out_as_if_nobody_had_asked(kind: Kind) -> None:
    asked, unasked = waiting(kind), waiting(kind)
    for query in queries(asked):
        asked.do(query)
    made = []
    for broker in (asked, unasked):
        before = deliveries()
        broker.take()
        broker.grant(5_000)
        made.append(deliveries() - before)
    assert made[0] == made[1] and in_runs(asked) == in_runs(unasked)
    assert asked.take() == unasked.take()
    if "mode" not in kind:
        assert asked.processed(*range(1, 5_001)) == unasked.processed(*range(1, 5_001)) == {}
        assert asked.describe() == unasked.describe()


def test_a_message_that_is_out_of_a_run_is_fetched_as_sent() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=5)
    broker.publish_many([b"x"] * 10)
    assert broker.actor.pool.plain
    fetched = [
        broker.ask(ask.Fetch(b"admin", broker.request(), sequence))["status"] for sequence in (1, 9)
    ]
    assert fetched == ["sent", "waiting"]


class CountedRows(MemoryRows):
    """Rows that count how many are read."""

    read = 0

    def get(self, key: bytes) -> bytes | None:
        self.read += 1
        return super().get(key)

    def scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        for entry in super().scan(low, high):
            self.read += 1
            yield entry


@pytest.mark.parametrize("restarts", [False, True], ids=["alive", "restarted"])
@durable_kinds
def test_asking_reads_as_much_whatever_the_backlog_is(kind: Kind, restarts: bool) -> None:
    read = []
    for size in (2_000, 20_000):
        rows = CountedRows()
        broker = CoreBroker(rows)
        broker.subscribe(name="r", credit=0)
        broker.create_receiver("s", "a/*")
        for _ in range(size // 1_000):
            broker.publish_many([b"x"] * 1_000, **kind)
        if restarts:
            broker.restart()
            broker.advance(1_000)
        rows.read = 0
        assert [row["lag"] for row in broker.receivers()] == [size, size]
        assert broker.describe()["waiting"] == size
        read.append(rows.read)
    assert read[0] == read[1] < 600


def test_a_count_that_goes_on_leaves_runs_as_they_are() -> None:
    broker = CoreBroker()
    broker.publish_many([b"x"] * 2_000, **EVERY)
    broker.publish_many([b"x"] * 100)
    broker.advance(60_000)
    broker.create_receiver("r", "nothing")
    broker.publish_many([b"x"] * 100)
    before = in_runs(broker)
    assert broker.actor.is_counting and before
    broker.advance(10 * COUNT_PAUSE_MS)
    assert broker.actor.log_kept_to == RANK_END
    assert in_runs(broker) == before


# --- where receivers are many, or come and go ----------------------------------------------------


def counting_asks(broker: CoreBroker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of which messages a receiver was asked whether it owes them."""
    asks: list[int] = []
    owes = broker.actor.log.owes

    def asked(receiver: Receiver, sequence: int) -> bool:
        asks.append(sequence)
        return owes(receiver, sequence)

    monkeypatch.setattr(broker.actor.log, "owes", asked)
    return asks


def count_to_the_end(broker: CoreBroker) -> int:
    """How many parts it took."""
    for parts in range(2_000):
        if not broker.actor.is_counting:
            return parts
        broker.advance(COUNT_PAUSE_MS)
    raise AssertionError("the count does not end")


@pytest.mark.parametrize("receivers", [10, 200])
def test_a_part_of_a_count_asks_so_many_receivers_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch, receivers: int
) -> None:
    monkeypatch.setattr(limits, "COUNT_ROWS_MAX", 40)
    monkeypatch.setattr(limits, "COUNT_ASKS_MAX", 50)
    rows = CountedRows()
    broker = CoreBroker(rows)
    for each in range(receivers):
        broker.subscribe(name=f"r{each}", endpoint=each + 1)
    sequences = range(1, 1 + len(broker.publish_many([b"x"] * 30, **EVERY)))
    for each in range(receivers):
        broker.processed(*sequences, endpoint=each + 1)
    broker.publish(**EVERY)  # they have one to do: each of them has to be asked
    broker.create_receiver("s")
    count_to_the_end(broker)
    asks = counting_asks(broker, monkeypatch)
    rows.read = 0
    broker.delete_receiver("s")
    while broker.actor.is_counting:
        assert len(asks) < 50 + receivers, "a row that was begun is looked at to its end"
        assert rows.read <= 50
        asks.clear()
        rows.read = 0
        broker.advance(COUNT_PAUSE_MS)
    assert len(asks) < 50 + receivers and rows.read <= 50
    assert broker.describe()["kept"] == 30
    check_lags(broker.actor)


def test_those_that_are_counted_together_are_asked_of_so_many_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "COUNT_ASKS_MAX", 50)
    broker = CoreBroker()
    broker.publish_many([b"x"] * 40, **EVERY)
    for each in range(60):
        broker.create_receiver(f"r{each}")
    assert len(broker.actor.counting) == 60
    asks = counting_asks(broker, monkeypatch)
    while broker.actor.is_counting:
        asks.clear()
        broker.advance(COUNT_PAUSE_MS)
        assert len(asks) <= 50 + 60 + 50, "what is allowed, and a row of each walk"
    assert {row["lag"] for row in broker.receivers()} == {40}
    check_lags(broker.actor)


def test_who_owes_nothing_is_not_asked_of_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = CoreBroker()
    for each in range(20):
        broker.subscribe(name=f"r{each}", endpoint=each + 1, credit=100)
    for _ in range(10):
        sequence = broker.publish(**EVERY)
        for each in range(20):
            broker.processed(sequence, endpoint=each + 1)
    assert broker.describe()["kept"] == 10
    broker.create_receiver("s")
    asks = counting_asks(broker, monkeypatch)
    broker.delete_receiver("s")
    count_to_the_end(broker)
    assert asks == [] and broker.describe()["kept"] == 10
    check_lags(broker.actor)


def test_receivers_that_come_and_go_do_not_hold_up_the_count_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "COUNT_ROWS_MAX", 8)
    broker = CoreBroker()
    broker.publish_many([b"x"] * 100, **EVERY)
    broker.create_receiver("r")
    receiver = broker.actor.receivers.by_name["r"]
    for each in range(100):
        if receiver.counted_to == RANK_END:
            break
        before = receiver.counted_to
        for _ in range(2):
            broker.subscribe(interests=("a/*",) if each % 2 else ("nothing",), endpoint=9, credit=0)
            broker.advance(COUNT_PAUSE_MS)
            broker.unsubscribe(endpoint=9)
            broker.advance(COUNT_PAUSE_MS)
        assert receiver.counted_to > before
        check_lags(broker.actor)
    assert told(broker)[0] == 100
    count_to_the_end(broker)
    assert broker.describe()["counted"] and broker.describe()["kept"] == 0
    check_lags(broker.actor)


def test_those_whose_count_goes_on_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "COUNT_ROWS_MAX", 8)
    broker = CoreBroker()
    broker.publish_many([b"x"] * 100, **EVERY)
    for each in range(5):
        broker.create_receiver(f"r{each}")
    while broker.actor.counting:
        before = {each: each.counted_to for each in broker.actor.counting}
        broker.advance(len(before) * 2 * COUNT_PAUSE_MS)
        assert all(each.counted_to > position for each, position in before.items())
        check_lags(broker.actor)
    assert [told(broker, f"r{each}")[0] for each in range(5)] == [100] * 5
