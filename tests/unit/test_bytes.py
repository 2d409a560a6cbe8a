"""Large payloads: what is on its way, and what is in memory, is bounded in bytes and not only in
number; whoever gives something back gets the next, and nobody waits for somebody else."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism import limits
from asterism.errors import PeerError
from asterism.settings import DropOld
from tests.support.core import CoreBroker
from tests.support.kinds import ALL, ONE, ONLINE, PUSH, Kind, code_of, every_kind

LARGE, ENDPOINT, HANDED, MEMORY = 10, 100, 1_000, 2_000
SIZE = 40  # of a large payload here: an endpoint is laden with three

sent_kinds = pytest.mark.parametrize("kind", [ONE, ALL, PUSH, ONLINE])


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WINDOW_RECORD_BYTES_MAX", LARGE)
    monkeypatch.setattr(limits, "ENDPOINT_BYTES_MAX", ENDPOINT)
    monkeypatch.setattr(limits, "HANDED_BYTES_MAX", HANDED)
    monkeypatch.setattr(limits, "MEMORY_BYTES_MAX", MEMORY)


def large(number: int, size: int = SIZE) -> bytes:
    return b"%d" % number + b"." * (size - len(str(number)))


def numbers(payloads: list[bytes]) -> list[int]:
    return [int(payload.rstrip(b".")) for payload in payloads]


def publish(broker: CoreBroker, count: int, kind: Kind, **fields: Any) -> list[int]:
    return [broker.publish(large(number), **kind, **fields) for number in range(count)]


# --- what one endpoint has in its hands -----------------------------------------------------------


@every_kind
def test_an_endpoint_has_no_more_bytes_in_its_hands_than_it_may(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=50, name="me")
    sequences = publish(broker, 5, kind)
    assert numbers(broker.taken()) == [0, 1, 2], "the third is the one over the bound"
    broker.received(*sequences[:3])
    assert broker.taken() == [], "to have received them is not to be done with them"
    broker.processed(sequences[1])
    assert numbers(broker.taken()) == [3]
    broker.failed(sequences[0])
    assert numbers(broker.taken()) == [4]
    assert broker.processed(*sequences[2:]) == {}
    assert broker.receivers()[0]["credit"] == 50


@every_kind
def test_a_payload_above_the_bound_is_sent_all_the_same_by_itself(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=50, name="me")
    sequences = [broker.publish(large(number, 150), **kind) for number in range(3)]
    for number, sequence in enumerate(sequences):
        assert numbers(broker.taken()) == [number]
        broker.processed(sequence)


@every_kind
def test_small_payloads_count_for_nothing(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=50, name="me")
    broker.publish_many([large(number, LARGE) for number in range(30)], **kind)
    assert len(broker.taken()) == 30


@pytest.mark.parametrize("kind", [ONE, PUSH])
def test_what_one_endpoint_may_not_have_another_of_its_group_gets(kind: Kind) -> None:
    broker = CoreBroker()
    for node in (b"anna", b"bert"):
        broker.subscribe(node, credit=50, group="crew")
    publish(broker, 8, kind)
    assert (len(broker.take(b"anna")), len(broker.take(b"bert"))) == (3, 3)
    broker.subscribe(b"carl", credit=50, group="crew")
    assert numbers(broker.taken(b"carl")) == [6, 7]


@pytest.mark.parametrize("kind", [ALL, ONLINE])
def test_a_receiver_that_is_laden_holds_up_nobody_else(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(b"slow", credit=50, name="slow")
    broker.subscribe(b"quick", credit=50, name="quick")
    for number in range(9):
        sequence = broker.publish(large(number), **kind)
        assert numbers(broker.taken(b"quick")) == [number]
        broker.processed(sequence, node=b"quick")
    assert numbers(broker.taken(b"slow")) == [0, 1, 2]


@every_kind
def test_a_delivery_that_is_taken_away_gives_its_bytes_back(kind: Kind) -> None:
    broker = CoreBroker(sent_timeout_ms=100)
    broker.subscribe(credit=50, name="me")
    broker.subscribe(b"other", credit=50, name="me")
    publish(broker, 6, kind)
    assert (len(broker.take()), len(broker.take(b"other"))) == (3, 3)
    broker.detach(b"other")
    for _ in range(3):
        for delivered in broker.take():
            broker.processed(delivered.sequence)
    broker.advance(100)  # whose deadline has passed
    publish(broker, 6, kind)
    assert len(broker.take()) == 3


def test_a_topic_that_is_cleared_gives_all_bytes_back() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=50, name="me")
    publish(broker, 6, {})
    broker.clear()
    broker.take()
    publish(broker, 6, {})
    assert len(broker.take()) == 3


def test_credit_of_an_endpoint_that_is_laden_counts_once_it_no_longer_is() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=3, name="me")
    sequences = publish(broker, 7, {})
    assert len(broker.take()) == 3
    broker.grant(2)
    assert broker.take() == []
    broker.processed(*sequences[:3])
    assert len(broker.take()) == 3
    broker.processed(*sequences[3:6])
    assert len(broker.take()) == 1
    assert broker.receivers()[0]["credit"] == 4


@every_kind
def test_a_pull_gets_what_the_endpoint_may_have_and_one_more_waits(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0, name="me")
    sequences = publish(broker, 5, kind)
    first = broker.pull(10)
    assert (numbers(broker.taken()), broker.answer(first)) == ([0, 1, 2], {"count": 3})
    second = broker.pull(10, wait_ms=100)
    assert (broker.taken(), broker.answer(second)) == ([], None)
    broker.processed(*sequences[:3])
    assert (numbers(broker.taken()), broker.answer(second)) == ([3, 4], {"count": 2})
    assert broker.receivers()[0]["credit"] == 0, "what a pull did not use is gone"


def test_a_pull_that_waits_for_bytes_in_vain_leaves_no_credit_behind() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0, name="me")
    sequences = publish(broker, 5, {})
    broker.pull(3)
    waiting = broker.pull(10, wait_ms=100)
    broker.advance(100)
    assert broker.answer(waiting) == {"count": 0}
    broker.take()
    broker.processed(*sequences[:3])
    assert broker.take() == []


# --- what is done once it is sent -----------------------------------------------------------------


@sent_kinds
def test_what_is_done_once_it_is_sent_gives_its_bytes_back_by_a_grant(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=50, name="me")
    publish(broker, 7, kind, expect="sent")
    assert numbers(broker.taken()) == [0, 1, 2]
    broker.grant(1)
    assert numbers(broker.taken()) == [3]
    broker.grant(3)
    assert numbers(broker.taken()) == [4, 5, 6]
    assert broker.receivers()[0]["credit"] == 0, "three are out: what there is does not count"
    broker.grant(3)
    assert broker.receivers()[0]["credit"] == 50


@sent_kinds
def test_a_grant_pays_for_what_was_sent_first_be_it_large_or_small(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=50, name="me")
    broker.publish(b"1", **kind, expect="sent")
    broker.publish_many([b"2", b"3"], **kind, expect="sent")  # a run, where it may be one
    publish(broker, 5, kind, expect="sent")
    assert len(broker.take()) == 6
    broker.grant(3)  # for the small ones
    assert broker.take() == []
    broker.grant(1)
    assert len(broker.take()) == 1


def test_credit_that_was_granted_ahead_pays_for_nothing() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0, name="me")
    broker.grant(50)
    publish(broker, 5, {}, expect="sent")
    assert len(broker.take()) == 3
    broker.grant(1)
    assert len(broker.take()) == 1


def test_a_pull_of_what_is_done_once_it_is_sent_waits_for_no_grant() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0, name="me")
    publish(broker, 5, {}, expect="sent")
    broker.pull(4)
    assert len(broker.take()) == 4
    broker.pull(4)
    assert len(broker.take()) == 1


# --- what one command sends -----------------------------------------------------------------------


def turns(broker: CoreBroker) -> Iterator[int]:
    """How many bytes each turn sends until nothing is due."""
    while (due_ms := broker.shard.next_due_ms()) is not None and due_ms <= broker.now_ms:
        broker.shard.tick(broker.now_ms)
        broker.end_turn()
        yield sum(len(delivered.payload) for delivered in broker.take())


@pytest.mark.parametrize("size", [LARGE, LARGE + 1])
@every_kind
def test_a_command_sends_so_many_bytes_and_the_next_turns_go_on(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, size: int
) -> None:
    monkeypatch.setattr(limits, "ENDPOINT_BYTES_MAX", 10_000)
    monkeypatch.setattr(limits, "MEMORY_BYTES_MAX", 10_000)
    broker = CoreBroker()
    broker.subscribe(credit=0, name="me")
    for _ in range(35):
        broker.publish_many([b"." * size] * 10, **kind)
    broker.grant(350)
    sent = [sum(len(delivered.payload) for delivered in broker.take()), *turns(broker)]
    assert sum(sent) == 350 * size
    assert max(sent) <= HANDED + 10 * LARGE, "a run more than the bound, or a message"
    assert len(sent) >= 3


@pytest.mark.parametrize("blocking", [False, True])
def test_a_large_message_for_many_goes_out_over_several_turns(
    monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    monkeypatch.setattr(limits, "HANDED_BYTES_MAX", 3 * SIZE)
    broker = CoreBroker(blocking=blocking)
    nodes = [b"node-%d" % number for number in range(8)]
    for node in nodes:
        broker.subscribe(node, name=node.decode())
    broker.publish(large(1), max_receivers=None)
    assert sum(len(broker.inbox[node, 1]) for node in nodes) == 3
    broker.tick()
    assert [len(broker.take(node)) for node in nodes] == [1] * 8


def test_a_turn_ends_when_its_topics_have_sent_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = CoreBroker()
    topics = [f"topic--{number}" for number in range(4)]
    for topic in topics:
        with broker.on(topic):
            broker.subscribe(topic.encode(), name="me")
            publish(broker, 2, {}, deliver_ms=broker.now_ms + 50, producer=topic.encode() * 2)
    monkeypatch.setattr(limits, "HANDED_BYTES_MAX", 2 * SIZE)
    broker.now_ms += 50
    broker.shard.tick(broker.now_ms)
    broker.end_turn()
    assert sum(len(broker.inbox[topic.encode(), 1]) for topic in topics) == 2
    broker.tick()
    assert [len(broker.take(topic.encode())) for topic in topics] == [2] * 4


def test_dead_letters_go_out_over_several_turns_too() -> None:
    broker = CoreBroker(dead_letter="dead")
    broker.subscribe(credit=50, name="me")
    sequences = [broker.publish(large(number, HANDED // 2)) for number in range(7)]
    for sequence in sequences:
        broker.failed(sequence)
    broker.tick()
    with broker.on("dead"):
        broker.subscribe(b"undertaker", credit=50, name="undertaker")
        for number in range(7):
            (delivered,) = broker.take(b"undertaker")
            assert numbers([delivered.payload]) == [number]
            broker.processed(delivered.sequence, node=b"undertaker")


# --- what is in memory ----------------------------------------------------------------------------

TIGHT = 200


@pytest.fixture
def tight_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MEMORY_BYTES_MAX", TIGHT)


tight = pytest.mark.usefixtures("tight_memory")


@tight
def test_a_topic_holds_so_many_bytes_of_push_messages_and_refuses_more() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0)
    publish(broker, 5, {"mode": "push"})
    with pytest.raises(PeerError) as refusal:
        broker.publish(large(5), mode="push")
    assert code_of(refusal) == "busy"
    broker.publish(b"small", mode="push")
    broker.publish(large(6), max_receivers=1)
    broker.grant(1)
    (delivered,) = broker.take()
    broker.processed(delivered.sequence)
    broker.take()
    broker.publish(large(7), mode="push")


@tight
def test_a_push_message_above_the_bound_is_held_by_itself() -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0)
    broker.publish(large(0, TIGHT + 1), mode="push")
    with pytest.raises(PeerError) as refusal:
        broker.publish(large(1), mode="push")
    assert code_of(refusal) == "busy"


@tight
@pytest.mark.parametrize("expect", ["sent", "processed"])
def test_who_does_not_read_loses_the_oldest_copies_and_the_others_none(expect: str) -> None:
    broker = CoreBroker()
    broker.subscribe(b"slow", credit=0, name="slow")
    broker.subscribe(b"quick", credit=50, name="quick")
    for number in range(20):
        sequence = broker.publish(large(number), mode="online", expect=expect, receipt=True)
        assert numbers(broker.taken(b"quick")) == [number]
        if expect == "sent":
            broker.grant(1, b"quick")
        else:
            broker.processed(sequence, node=b"quick")
        assert broker.actor.memory_bytes <= TIGHT
    done = "sent" if expect == "sent" else "processed"
    assert broker.receipts[1].statuses == {"slow": "unreachable", "quick": done}
    broker.grant(50, b"slow")
    kept = numbers(broker.taken(b"slow"))
    assert kept == list(range(kept[0], kept[0] + 3)) and kept[0] >= 15


@pytest.mark.parametrize("settings", [{}, {"overflow": DropOld(4)}], ids=["memory", "overflow"])
@tight
def test_copies_that_were_dropped_are_let_go(settings: dict[str, Any]) -> None:
    broker = CoreBroker(**settings)
    broker.subscribe(b"slow", credit=0, name="slow")
    publish(broker, 20, {"mode": "online"})
    slow = broker.actor.receivers.find("slow")
    assert len(slow.copies) == slow.copies_count <= 5


@tight
def test_what_waits_for_a_turn_and_not_for_credit_is_not_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HANDED_BYTES_MAX", 1)
    monkeypatch.setattr(limits, "ENDPOINT_BYTES_MAX", 10_000)
    broker = CoreBroker()
    for number in range(6):
        broker.subscribe(b"node-%d" % number, name=f"{number}", credit=50)
    results = broker.publish_many([large(number) for number in range(8)], mode="online")
    accepted = [number for number, result in enumerate(results) if isinstance(result, int)]
    assert accepted == [0, 1, 2, 3, 4], "the others are refused, with busy"
    broker.tick()
    for number in range(6):
        assert numbers(broker.taken(b"node-%d" % number)) == accepted


# --- all of it together ---------------------------------------------------------------------------

steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 4), st.sampled_from([1, 11, 40, 150])),
    st.tuples(st.sampled_from(["processed", "failed"]), st.integers(0, 1), st.integers(0, 9)),
    st.tuples(st.just("grant"), st.integers(0, 1), st.integers(1, 4)),
    st.tuples(st.just("pull"), st.integers(0, 1), st.integers(1, 4)),
    st.tuples(st.just("leave"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("later"), st.just(0), st.integers(1, 60)),
    st.tuples(st.just("clear"), st.just(0), st.just(0)),
)
KINDS: list[Kind] = [
    {"max_receivers": 1},
    {"max_receivers": 2},
    {"mode": "online"},
    {"mode": "online", "expect": "sent"},
    {"max_receivers": 1, "expect": "sent"},
]


@settings(max_examples=300)
@given(st.lists(steps, max_size=40))
def test_what_is_counted_is_what_is_out_and_all_comes_in_the_end(
    history: list[tuple[str, int, int]],
) -> None:
    broker = CoreBroker(sent_timeout_ms=50, max_attempts=1_000)
    nodes = [b"anna", b"bert"]
    out: dict[bytes, list[int]] = {node: [] for node in nodes}
    for node in nodes:
        broker.subscribe(node, name=node.decode(), credit=2)
    for step in history:
        do(broker, nodes, out, *step)
        for node in nodes:
            out[node] += [delivered.sequence for delivered in broker.take(node)]
        check(broker)
    drain(broker, nodes)
    assert broker.actor.memory_bytes == 0
    assert broker.describe()["held"] == 0


def do(
    broker: CoreBroker,
    nodes: list[bytes],
    out: dict[bytes, list[int]],
    what: str,
    which: int,
    amount: int,
) -> None:
    node = nodes[which % 2]
    match what:
        case "publish":
            broker.publish_many([b"." * amount] * 2, **KINDS[which])
        case "processed" | "failed":
            for sequence in out[node][amount : amount + 1]:
                broker.report(what, sequence, node=node)
        case "grant":
            broker.grant(amount, node)
        case "pull":
            broker.pull(amount, node=node)
        case "leave":
            broker.detach(node)
            broker.subscribe(node, name=node.decode(), credit=2)
        case "later":
            broker.advance(amount)
        case _:
            broker.clear()


def check(broker: CoreBroker) -> None:
    """Is what is counted what there is?"""
    actor = broker.actor
    assert actor.memory_bytes == sum(held.large_bytes for held in actor.memory.values())
    for receiver in actor.receivers.by_number.values():
        for endpoint in receiver.endpoints.values():
            held = [d for d in receiver.held.values() if d.endpoint is endpoint]
            unpaid = sum(size for _, size in endpoint.unpaid)
            assert endpoint.bytes_out == unpaid + sum(delivery.size for delivery in held)
            assert not (endpoint.is_laden and endpoint.credit)
            assert endpoint.is_laden or not endpoint.withheld
            assert (endpoint in receiver.ready) == bool(endpoint.credit)


def drain(broker: CoreBroker, nodes: list[bytes]) -> None:
    """Everything is taken, and finished or given back, until nothing is left."""
    for _ in range(200):
        before = broker.actor.held
        for node in nodes:
            broker.grant(5, node)
            broker.tick()
            for sequence in {delivered.sequence for delivered in broker.take(node)}:
                broker.processed(sequence, node=node)
        broker.advance(51)  # what was not reported on comes again
        if before == 0 == broker.actor.held:
            return
    raise AssertionError("something is never sent")
