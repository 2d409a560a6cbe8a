"""How much clients may make: topics, durable receivers, producers. What is there already stays."""

from collections.abc import Callable
from unittest.mock import Mock

import pytest

from asterism import commands as ask
from asterism import limits
from asterism.actors.producers import KEPT_MS_MIN
from asterism.actors.shard import Shard
from asterism.config import Config
from asterism.errors import PeerError
from asterism.settings import Bounds
from tests.support.core import CoreBroker


def bounded(broker: CoreBroker | None = None, **bounds: int) -> CoreBroker:
    """A broker that is held to these bounds from now on, as after a restart."""
    broker = broker or CoreBroker()
    broker.shard = Shard(broker.rows, broker.defaults, bounds=Bounds(**bounds))
    broker.end_turn()
    return broker


def producer_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


# --- topics -------------------------------------------------------------------------------------


def use(broker: CoreBroker, topic: str, act: Callable[[CoreBroker], object]) -> None:
    with broker.on(topic):
        act(broker)


@pytest.mark.parametrize(
    "act",
    [
        lambda b: b.publish(producer=producer_of(b.request())),
        lambda b: b.subscribe(),
        lambda b: b.draft(),
        lambda b: b.create_receiver("one"),
        lambda b: b.ask(ask.CreateTopic(b"admin", b.request(), {})),
    ],
    ids=["publish", "subscribe", "draft", "create_receiver", "create"],
)
def test_one_topic_too_many_is_busy_however_it_would_be_made(
    act: Callable[[CoreBroker], object],
) -> None:
    broker = bounded(topics=2)
    for topic in ("a", "b"):
        use(broker, topic, lambda b: b.create_topic(b.topic))
    before = dict(broker.rows.scan(b"\x00", b"\x02"))
    with pytest.raises(PeerError, match="max_topics") as refused:
        use(broker, "c", act)
    assert refused.value.code == "busy"
    assert dict(broker.rows.scan(b"\x00", b"\x02")) == before
    broker.ask(ask.DeleteTopic(b"admin", broker.request()), "a")
    use(broker, "c", act)


def test_topics_beyond_a_bound_that_was_lowered_stay() -> None:
    broker = CoreBroker()
    for topic in ("a", "b", "c"):
        use(broker, topic, lambda b: b.draft())
    bounded(broker, topics=1)
    for topic in ("a", "b", "c"):
        use(broker, topic, lambda b: b.draft())
    with pytest.raises(PeerError, match="max_topics"):
        use(broker, "d", lambda b: b.draft())


def test_a_dead_letter_waits_while_there_is_no_room_for_its_topic() -> None:
    broker = bounded(CoreBroker(dead_letter="dead"), topics=1)
    broker.subscribe()
    broker.failed(broker.publish(b"x"))
    assert "dead" not in broker.shard.topics
    bounded(broker, topics=2)
    broker.advance(60_000)
    assert broker.shard.topics["dead"].held == 1


@pytest.mark.parametrize(("stores", "most"), [(1, 10_000), (8, 1_563), (2, 6_250)])
def test_a_store_takes_its_share_of_the_topics_and_a_quarter_more(stores: int, most: int) -> None:
    assert Config(max_topics=10_000).bounds(stores).topics == most
    assert Config(max_topics=1).bounds(stores).topics == 1


# --- receivers ----------------------------------------------------------------------------------


def test_one_durable_receiver_too_many_is_busy_and_others_do_not_count() -> None:
    broker = bounded(receivers=2)
    for number in range(5):
        broker.subscribe(b"%d" % number)
    broker.create_receiver("one")
    broker.subscribe(name="two")
    for act in (
        lambda: broker.create_receiver("three"),
        lambda: broker.subscribe(b"third", name="three"),
    ):
        with pytest.raises(PeerError, match="max_receivers_per_topic") as refused:
            act()
        assert refused.value.code == "busy"
    broker.subscribe(b"third")
    broker.delete_receiver("one")
    broker.create_receiver("three")


def test_receivers_beyond_a_bound_that_was_lowered_stay() -> None:
    broker = CoreBroker()
    for name in ("one", "two", "three"):
        broker.create_receiver(name)
    bounded(broker, receivers=1)
    broker.subscribe(name="three")
    with pytest.raises(PeerError, match="max_receivers_per_topic"):
        broker.create_receiver("four")


# --- producers ----------------------------------------------------------------------------------


def test_one_producer_too_many_is_busy_while_all_were_here_of_late() -> None:
    broker = bounded(producers=3)
    for number in range(3):
        broker.publish(producer=producer_of(number))
        broker.advance(1_000)
    with pytest.raises(PeerError, match="max_producers_per_topic") as refused:
        broker.publish(producer=producer_of(3))
    assert refused.value.code == "busy"
    broker.publish(producer=producer_of(1))  # those that are known go on
    assert broker.actor.held == 4


@pytest.mark.parametrize("restarts", [False, True])
def test_the_producer_that_was_silent_longest_is_forgotten_for_a_new_one(restarts: bool) -> None:
    broker = bounded(producers=3)
    for number in range(3):
        broker.publish(producer=producer_of(number))
        broker.advance(1_000)
    broker.publish(producer=producer_of(0))
    broker.advance(KEPT_MS_MIN - 2_000)
    if restarts:
        bounded(broker, producers=3)
    broker.publish(producer=producer_of(3))
    for number in (0, 2, 3):
        broker.publish(producer=producer_of(number))
    with pytest.raises(PeerError, match="wrong_state"):
        broker.publish(producer=producer_of(1))


def test_a_topic_that_is_full_of_producers_is_not_looked_through_for_each_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = bounded(producers=3)
    for number in range(3):
        broker.publish(producer=producer_of(number))
    producers = broker.actor.producers
    look = Mock(wraps=producers._seen)
    monkeypatch.setattr(producers, "_seen", look)
    for number in range(3, 20):
        with pytest.raises(PeerError, match="busy"):
            broker.publish(producer=producer_of(number))
    assert look.call_count == 1


# --- interests, and nodes -------------------------------------------------------------------------


def test_the_members_of_a_group_may_bring_so_many_interests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "RECEIVER_INTERESTS_MAX", 3)
    broker = CoreBroker()
    broker.subscribe(interests=("a", "b"), group="crew", endpoint=1)
    broker.subscribe(interests=("b", "c"), group="crew", endpoint=2)
    with pytest.raises(PeerError, match="too many interests"):
        broker.subscribe(interests="d", group="crew", endpoint=3)


def test_a_node_that_was_refused_is_not_remembered() -> None:
    broker = CoreBroker()
    with pytest.raises(PeerError, match="does not begin with ~"):
        broker.subscribe(name="~no")
    assert not broker.shard._nodes


def test_the_interests_on_a_topic_have_so_many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPIC_SEGMENTS_MAX", 5)
    broker = CoreBroker()
    broker.subscribe(interests=("a/b", "c"), endpoint=1)
    with pytest.raises(PeerError, match="as many interests as it may"):
        broker.subscribe(interests="d/e/f", endpoint=2)
    broker.subscribe(interests="d/e", endpoint=2)
    broker.detach(b"consumer")
    broker.subscribe(interests="a/b/c/d/e", endpoint=3)
