"""What a client holds stays its own while processes are restarted, until it is gone."""

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import pytest

import asterism
from asterism.sdk.aio import Node
from asterism.testing import Broker
from asterism.wire import Verb
from tests.process.conftest import (
    WAIT_S,
    WORKERS,
    Raw,
    consumer,
    counts,
    has_receivers,
    is_empty,
    message,
    new_topic,
    receive,
    until,
    with_a_client,
    worker_of_topic,
)

pytestmark = pytest.mark.process
GRACE_S = 300  # no test waits for it: what comes before it is over came for another reason


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(workers=WORKERS, config={"restart_grace": GRACE_S}) as running:
        yield running


async def restart(broker: Broker, kind: str, topic: str) -> None:
    index = worker_of_topic(topic) if kind == "worker" else 0
    await asyncio.to_thread(broker.restart, kind, index)


async def joined(node: Node, topic: str, count: int) -> None:
    """So many endpoints are on a topic again."""
    async with asyncio.timeout(WAIT_S):
        while await counts(node, topic, "endpoints") != (count,):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["worker", "frontend"])
@with_a_client
async def test_what_a_client_has_in_hand_stays_its_own_when_a_process_is_restarted(
    node: Node, broker: Broker, kind: str
) -> None:
    topic = new_topic()
    async with asterism.connect(broker.address, name="other") as other:
        mine = await node.subscribe(topic, group="crew", credit=2)
        receipt = await node.publish(topic, b"job", expect="processed", max_receivers=1)
        (held,) = await receive(mine, 1)
        theirs = await other.subscribe(topic, group="crew", credit=2)
        await restart(broker, kind, topic)
        await joined(node, topic, 2)
        assert await is_empty(other, theirs) and await is_empty(node, mine)
        assert await counts(node, topic, "sent", "waiting") == (1, 0)
        await held.processed(confirm=True)
        outcome = await receipt.resolved(WAIT_S)
        assert (outcome.verdict, held.attempt) == ("ok", 1)


@pytest.mark.parametrize("kind", ["worker", "frontend"])
@with_a_client
async def test_what_waits_in_an_inbox_is_there_still_when_a_process_was_restarted(
    node: Node, broker: Broker, kind: str
) -> None:
    topic = new_topic()
    inbox = await node.subscribe(topic, credit=10)
    for number in range(5):
        await node.publish(topic, b"%d" % number, expect="processed", max_receivers=1)
    (first,) = await receive(inbox, 1)
    await node.describe(topic)
    await restart(broker, kind, topic)
    await joined(node, topic, 1)
    rest = await receive(inbox, 4)
    assert [one.payload for one in rest] == [b"1", b"2", b"3", b"4"]
    assert [one.attempt for one in rest] == [1, 1, 1, 1], "nothing was sent again"
    for one in (first, *rest):
        await one.processed(confirm=True)
    assert await counts(node, topic, "held", "completed") == (0, 5)


@with_a_client
async def test_what_a_client_held_that_ends_while_the_worker_is_away_goes_to_others(
    node: Node, broker: Broker
) -> None:
    topic = new_topic()
    async with consumer(broker.address, topic, "crew", credit=1) as gone:
        await node.publish(topic, b"job", expect="processed", max_receivers=1, receipt=False)
        assert await gone.line() == "job 1"
        broker.kill("worker", worker_of_topic(topic))
        await gone.kill()
    inbox = await node.subscribe(topic, group="crew", credit=1)
    (again,) = await receive(inbox, 1)
    assert (again.payload, again.attempt) == (b"job", 2)
    await again.processed(confirm=True)


def test_a_client_by_hand_comes_back_with_the_name_of_its_session(broker: Broker) -> None:
    """As docs/protocol.md says; and nobody does so with the name of another."""
    topic = new_topic()
    with Raw(broker.address, hello=False) as mine, Raw(broker.address, hello=False) as thief:
        about = {"versions": [1], "name": "raw"}
        own = mine.ask(Verb.HELLO, "", about).body["session"]
        other = thief.ask(Verb.HELLO, "", about).body["session"]
        fields = [1, ["**"], None, "crew", None, 1]
        assert mine.ask_again(Verb.SUBSCRIBE, topic, fields).verb == Verb.REPLY
        (sequence,) = mine.publish(topic, message(b"job", max_receivers=1))
        mine.until(Verb.DELIVER)
        broker.restart("worker", worker_of_topic(topic))
        mine.until(Verb.RESTARTED)
        holding = [[sequence], [1]]
        stolen = thief.ask_again(
            Verb.SUBSCRIBE, topic, [*fields, None, None, [[other], *holding]]
        ).body
        assert (stolen["receiver"], stolen["lost"]) == ("crew", (sequence,))
        told = mine.ask_again(Verb.SUBSCRIBE, topic, [*fields, None, None, [[own], *holding]]).body
        assert told["receiver"] == "crew" and "lost" not in told
        assert mine.reply(Verb.REPORT, topic, 1, 4, [sequence]) == {}
        assert mine.reply(Verb.DESCRIBE, topic)["completed"] == 1
        assert thief.next_within(0) is None, "it was sent nothing"


# --- receivers that live with their connections ---------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"group": "casual", "durable": False}], ids=["", "group"])
@pytest.mark.parametrize("kind", ["worker", "frontend"])
@with_a_client
async def test_a_receiver_without_a_name_does_not_get_again_what_it_has_done(
    node: Node, broker: Broker, kind: str, fields: dict[str, Any]
) -> None:
    topic = new_topic()
    inbox = await node.subscribe(topic, credit=10, **fields)
    for number in range(6):
        await node.publish(topic, b"%d" % number, expect="processed", max_receivers=None)
    came = await receive(inbox, 5)
    for done in (came[0], came[1], came[4]):
        await done.processed(confirm=True)
    (before,) = await node.list_receivers(topic)
    for _ in range(2):
        await restart(broker, kind, topic)
        await joined(node, topic, 1)
    (last,) = await receive(inbox, 1)
    assert (last.payload, last.attempt) == (b"5", 1)
    for held in (came[2], came[3], last):
        await held.processed(confirm=True)
    await node.publish(topic, b"later", expect="processed", max_receivers=None)
    (later,) = await receive(inbox, 1)
    assert later.payload == b"later" and await is_empty(node, inbox)
    (after,) = await node.list_receivers(topic)
    assert after.name == before.name


@pytest.mark.parametrize("kind", ["worker", "frontend"])
@with_a_client
async def test_a_receiver_without_a_name_counts_once_for_max_receivers(
    node: Node, broker: Broker, kind: str
) -> None:
    topic = new_topic()
    inbox = await node.subscribe(topic, credit=10)
    receipt = await node.publish(topic, b"job", expect="processed", max_receivers=2)
    (mine,) = await receive(inbox, 1)
    await mine.processed(confirm=True)
    await restart(broker, kind, topic)
    await joined(node, topic, 1)
    assert await is_empty(node, inbox) and await counts(node, topic, "held") == (1,)
    async with asterism.connect(broker.address, name="other") as other:
        theirs = await other.subscribe(topic, credit=10)
        (second,) = await receive(theirs, 1)
        await second.processed(confirm=True)
    outcome = await receipt.resolved(WAIT_S)
    assert outcome.verdict == "ok" and len(outcome.statuses) == 2


@with_a_client
async def test_a_receiver_without_a_name_ends_with_its_connection_while_the_worker_is_away(
    node: Node, broker: Broker
) -> None:
    topic = new_topic()
    async with asterism.connect(broker.address, name="gone") as gone:
        inbox = await gone.subscribe(topic, credit=10)
        await node.publish(topic, b"job", expect="processed", max_receivers=None)
        (held,) = await receive(inbox, 1)
        await held.processed(confirm=True)
        broker.kill("worker", worker_of_topic(topic))
    await until(functools.partial(has_receivers, node, topic, 0), "its receiver to end")


def test_a_client_by_hand_that_says_nothing_has_its_receiver_back(broker: Broker) -> None:
    """As docs/protocol.md says of one that does not send ``holding``."""
    topic = new_topic()
    with Raw(broker.address) as raw:
        fields = [1, ["**"], None, None, None, 9]
        name = raw.ask_again(Verb.SUBSCRIBE, topic, fields).body["receiver"]
        done, _ = (raw.publish(topic, message(b"job", max_receivers=2))[0] for _ in range(2))
        raw.until(Verb.DELIVER)
        assert raw.reply(Verb.REPORT, topic, 1, 4, [done]) == {}
        broker.restart("worker", worker_of_topic(topic))
        raw.until(Verb.RESTARTED)
        raw.unasked.clear()
        again = raw.ask_again(Verb.SUBSCRIBE, topic, fields).body
        assert again["receiver"] == name and "lost" not in again
        assert raw.reply(Verb.DESCRIBE, topic)["sent"] == 1
        assert raw.unasked == [], "nothing was sent again"
