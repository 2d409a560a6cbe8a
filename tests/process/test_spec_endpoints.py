"""Endpoints and flow, end to end: section 6, with consumers that are really killed and stopped."""

import asyncio
import contextlib
import functools
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import asterism
from asterism.sdk.aio import Inbox, Node
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
    moment,
    receive,
    refused,
    take,
    until,
    with_a_client,
    worker_of_topic,
)

pytestmark = pytest.mark.process

HEARTBEAT_S = 0.3


@pytest.fixture(scope="module")
def quick_broker() -> Iterator[Broker]:
    """A broker that takes a silent client for gone within a second."""
    with Broker(workers=WORKERS, config={"heartbeat": HEARTBEAT_S}) as running:
        yield running


@contextlib.asynccontextmanager
async def client(address: str) -> AsyncIterator[Node]:
    async with asterism.connect(address) as node:
        yield node


# --- receivers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wish", ["name", "group"])
@with_a_client
async def test_a_receiver_with_a_name_outlives_its_connections_and_restarts(
    node: Node, topic: str, broker: Broker, wish: str
) -> None:
    named: dict[str, Any] = {wish: "r"}
    async with client(node.address) as other:
        inbox = await other.subscribe(topic, "a/*", **named)
        await node.publish(topic, b"1", subject="a/1", expect="processed")
        assert await take(inbox, 1) == [b"1"]
    await node.publish(topic, b"2", subject="a/2", expect="processed")
    await node.publish(topic, b"not", subject="b", expect="processed")
    await asyncio.to_thread(broker.restart, "worker", worker_of_topic(topic))
    (row,) = await node.list_receivers(topic)
    assert (row.name, row.durable, row.online) == ("r", True, False)
    async with client(node.address) as other:
        inbox = await other.subscribe(topic, "a/*", **named)
        assert await take(inbox, 1) == [b"2"], "what it has confirmed is remembered"
        assert await is_empty(other, inbox)


@pytest.mark.parametrize("durable", [None, False])
@with_a_client
async def test_a_receiver_that_is_not_durable_lives_as_long_as_its_last_connection(
    node: Node, topic: str, durable: bool | None
) -> None:
    group = "g" if durable is False else None

    async with client(node.address) as first:
        await first.subscribe(topic, group=group, durable=durable)
        async with client(node.address) as second:
            await second.subscribe(topic, group=group, durable=durable)
            assert await has_receivers(node, topic, 1 if group else 2)
        # A goodbye and another client's question travel by different connections.
        await until(functools.partial(has_receivers, node, topic, 1), "one receiver to be left")
    await until(functools.partial(has_receivers, node, topic, 0), "the last receiver to end")


@with_a_client
async def test_the_members_of_a_group_share_its_copies(node: Node, topic: str) -> None:
    members = [await node.subscribe(topic, group="g", credit=5) for _ in range(3)]
    alone = await node.subscribe(topic, name="alone")
    payloads = [b"%d" % number for number in range(15)]
    await node.publish_many(topic, payloads, expect="processed")
    shares = [await receive(member, 5) for member in members]
    assert sorted(each.payload for share in shares for each in share) == sorted(payloads)
    assert len(await receive(alone, 15)) == 15, "who is not of the group has copies of its own"


# --- a consumer is killed -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["push", "durable"])
def test_what_a_killed_consumer_held_goes_to_another(
    quick_broker: Broker, topic: str, mode: str
) -> None:
    async def play() -> None:
        async with (
            client(quick_broker.address) as node,
            consumer(quick_broker.address, topic, "g", credit=3) as victim,
        ):
            wishes: dict[str, Any] = {"max_receivers": 1} if mode == "durable" else {}
            receipts = await node.publish_many(
                topic, [b"1", b"2", b"3"], mode=mode, expect="processed", **wishes
            )
            assert [await victim.line() for _ in range(3)] == ["1 1", "2 1", "3 1"]
            heir = await node.subscribe(topic, group="g")
            assert await is_empty(node, heir)
            await victim.kill()
            inherited = await receive(heir, 3)
            assert min(each.attempt for each in inherited) >= 2
            await heir.processed(inherited)
            verdicts = {each.verdict for each in await receipts.all_resolved(WAIT_S) if each}
            assert verdicts == {"ok"}

    asyncio.run(play())


def test_a_connection_that_ends_fails_over_long_before_its_heartbeats_are_missed(
    topic: str,
) -> None:
    """It has no lane, whose end the worker itself would see."""

    async def play(address: str) -> None:
        async with client(address) as node, consumer(address, topic, "g", credit=1) as victim:
            await node.publish(topic, b"held", expect="processed", max_receivers=1)
            assert await victim.line() == "held 1"
            heir = await node.subscribe(topic, group="g")
            await victim.kill()
            assert (await heir.receive(WAIT_S)).attempt == 2

    with Broker(workers=1, config={"lanes": False, "heartbeat": 3 * WAIT_S}) as running:
        asyncio.run(play(running.address))


def test_a_silent_node_is_cut_and_what_it_held_fails_over(quick_broker: Broker, topic: str) -> None:
    """It is stopped, not ended: its connection stays, and only its heartbeats are missed."""

    async def play() -> None:
        async with (
            client(quick_broker.address) as node,
            consumer(quick_broker.address, topic, "g", credit=1) as victim,
        ):
            await node.publish(topic, b"held", expect="processed", max_receivers=1)
            assert await victim.line() == "held 1"
            heir = await node.subscribe(topic, group="g")
            victim.signal(signal.SIGSTOP)
            assert (await heir.receive(WAIT_S)).attempt >= 2
            victim.signal(signal.SIGCONT)  # it connects again, and works on
            await until(lambda: has_two_endpoints(node, topic), "the other to come back")

    asyncio.run(play())


async def has_two_endpoints(node: Node, topic: str) -> bool:
    return await counts(node, topic, "endpoints") == (2,)


def test_a_node_that_gives_signs_of_life_is_not_cut(quick_broker: Broker, topic: str) -> None:
    async def play() -> None:
        async with client(quick_broker.address) as node:
            inbox = await node.subscribe(topic, name="r")
            await node.publish(topic, b"", expect="processed", deliver_at=moment(5 * HEARTBEAT_S))
            delivery = await inbox.receive(WAIT_S)  # long after a silent one were cut
            await delivery.processed(confirm=True)
            (row,) = await node.list_receivers(topic)
            assert (row.endpoints, delivery.attempt) == (1, 1)

    asyncio.run(play())


def test_a_client_connects_again_to_a_broker_that_was_silent(topic: str) -> None:
    """The front-end is stopped for longer than three heartbeats, then it goes on."""

    async def play(running: Broker) -> None:
        async with client(running.address) as node:
            inbox = await node.subscribe(topic, name="r")
            running.kill("frontend", number=signal.SIGSTOP)
            try:
                sending = asyncio.create_task(node.publish(topic, b"1", expect="processed"))
                done, _ = await asyncio.wait([sending], timeout=5 * HEARTBEAT_S)
                assert not done
            finally:
                running.kill("frontend", number=signal.SIGCONT)
            await sending
            assert await take(inbox, 1) == [b"1"]
            assert await is_empty(node, inbox)

    # By a lane it would be published all the same.
    with Broker(workers=WORKERS, config={"lanes": False, "heartbeat": HEARTBEAT_S}) as running:
        asyncio.run(play(running))


# --- credit ---------------------------------------------------------------------------------------


@with_a_client
async def test_no_more_is_sent_than_there_is_credit_for(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r", credit=2)
    await node.publish_many(topic, [b"%d" % n for n in range(5)], expect="processed")
    out = await receive(inbox, 2)
    assert await is_empty(node, inbox)
    await out[0].received(confirm=True)
    assert await is_empty(node, inbox), "received gives nothing back where processed is expected"
    await out[1].processed(confirm=True)
    assert (await inbox.receive(WAIT_S)).payload == b"2", "finishing one gives one back"
    assert await is_empty(node, inbox)


def test_where_sent_is_expected_the_client_gives_credit_back(broker: Broker, topic: str) -> None:
    with Raw(broker.address) as raw:
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["**"], "r", None, None, 2)
        with asterism.connect_blocking(broker.address) as node:
            node.publish_many(topic, [b"%d" % number for number in range(5)])
        assert payloads_sent(raw, topic) == [b"0", b"1"]
        raw.send(Verb.GRANT, topic, [1, 1])
        assert payloads_sent(raw, topic) == [b"2"]
        raw.send(Verb.GRANT, topic, [1, 10])
        assert payloads_sent(raw, topic) == [b"3", b"4"]


def payloads_sent(raw: Raw, topic: str) -> list[bytes]:
    raw.reply(Verb.DESCRIBE, topic)
    batches = [said.body[2] for said in raw.unasked if said.verb == Verb.DELIVER]
    raw.unasked.clear()
    return [item[4] for batch in batches for item in batch]


@with_a_client
async def test_a_pull_brings_what_is_there_and_waits_for_the_first(node: Node, topic: str) -> None:
    await node.create_receiver(topic, "r")
    await node.publish_many(topic, [b"1", b"2", b"3"], expect="processed")
    pulled = await node.pull(topic, "r", 2)
    assert [each.payload for each in pulled] == [b"1", b"2"]
    (last,) = await node.pull(topic, "r", 10)
    for each in (*pulled, last):
        await each.processed(confirm=True)
    assert await node.pull(topic, "r", 10) == []
    waiting = asyncio.create_task(node.pull(topic, "r", 10, WAIT_S))
    await node.describe(topic)
    await node.publish_many(topic, [b"4", b"5"], expect="processed")
    assert [each.payload for each in await waiting] == [b"4", b"5"]


@with_a_client
async def test_a_consumer_that_stops_reading_holds_up_nobody(node: Node, topic: str) -> None:
    payloads = [b"%d" % number for number in range(2_000)]
    async with consumer(node.address, topic, credit=10) as slow:
        quick = await node.subscribe(topic, name="quick")
        slow.signal(signal.SIGSTOP)
        await node.publish_many(topic, payloads, expect="processed")
        seen: list[bytes] = []
        while len(seen) < len(payloads):
            taken = await quick.batch(500, WAIT_S)
            assert taken, f"only {len(seen)} came"
            await quick.processed(taken)
            seen += [each.payload for each in taken]
        assert seen == payloads
        rows = {row.name: row for row in await node.list_receivers(topic)}
        (other,) = set(rows) - {"quick"}
        assert rows[other].in_flight <= 10, "it holds no more than its credit"
        slow.signal(signal.SIGCONT)
        assert await slow.line() == "0 1"


def test_a_client_that_never_reads_is_cut_and_costs_nothing(
    quick_broker: Broker, topic: str
) -> None:
    """It has credit without end, and takes nothing: what it is sent waits within a bound."""
    with Raw(quick_broker.address) as raw, asterism.connect_blocking(quick_broker.address) as node:
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["**"], None, None, None, 1_000_000)
        others = node.subscribe(topic, name="reads")
        for _ in range(60):
            node.publish_many(topic, [bytes(10_000)] * 50, mode="online")
            taken = 0
            while taken < 50:
                taken += len(others.batch(50, WAIT_S))

        async def is_alone() -> bool:
            return [row.name for row in node.list_receivers(topic)] == ["reads"]

        asyncio.run(until(is_alone, "the other to be cut"))


# --- deleting a receiver --------------------------------------------------------------------------


@with_a_client
async def test_deleting_a_durable_receiver_drops_its_backlog(node: Node, topic: str) -> None:
    await node.create_receiver(topic, "r")
    await node.publish(topic, b"", expect="processed", max_receivers=1)
    await node.pull(topic, "r", 1)
    waiting = asyncio.create_task(node.pull(topic, "r", 1, WAIT_S))
    await node.describe(topic)
    await node.delete_receiver(topic, "r")
    async with refused("no_such_receiver"):
        await waiting
    async with refused("no_such_receiver"):
        await node.pull(topic, "r", 1)
    async with refused("no_such_receiver"):
        await node.delete_receiver(topic, "r")
    assert await node.list_receivers(topic) == []


@with_a_client
async def test_the_endpoints_of_a_deleted_receiver_are_told(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r")
    waiting = asyncio.create_task(inbox.receive(WAIT_S))
    await node.describe(topic)
    await node.delete_receiver(topic, "r")
    async with refused("no_such_receiver"):
        await waiting


# --- seek -----------------------------------------------------------------------------------------


async def ten_done(node: Node, topic: str) -> tuple[Inbox, list[int]]:
    """A receiver that has processed ten messages; their sequences."""
    inbox = await node.subscribe(topic, name="r", credit=100)
    receipts = await node.publish_many(topic, [b"%d" % n for n in range(10)], expect="processed")
    await take(inbox, 10)
    return inbox, receipts.sequences


async def has_credit(node: Node, topic: str, credit: int) -> bool:
    (row,) = await node.list_receivers(topic)
    return bool(row.credit == credit)


@with_a_client
async def test_a_receiver_may_be_moved_back_to_a_message(
    node: Node, topic: str, broker: Broker
) -> None:
    inbox, sequences = await ten_done(node, topic)
    await node.seek(topic, "r", sequence=sequences[7])
    assert await take(inbox, 3) == [b"7", b"8", b"9"]
    await asyncio.to_thread(broker.restart, "worker", worker_of_topic(topic))
    await until(functools.partial(has_credit, node, topic, 100), "the inbox to be there again")
    assert await is_empty(node, inbox), "and that they are done again is remembered"
    await node.seek(topic, "r", sequence=0)
    assert await take(inbox, 10) == [b"%d" % n for n in range(10)]


@with_a_client
async def test_a_receiver_may_be_moved_back_to_a_message_for_several_receivers(
    node: Node, topic: str
) -> None:
    inboxes = {name: await node.subscribe(topic, name=name) for name in ("a", "b")}
    receipt = await node.publish(topic, b"1", expect="processed", max_receivers=2)
    assert await take(inboxes["a"], 1) == [b"1"]
    await node.seek(topic, "a", sequence=0)
    assert await take(inboxes["a"], 1) == [b"1"]
    assert await counts(node, topic, "held") == (1,), "it is done by one of two, be it twice"
    assert await take(inboxes["b"], 1) == [b"1"]
    outcome = await receipt.resolved(WAIT_S)
    assert outcome == ("ok", {"a": "processed", "b": "processed"})


@with_a_client
async def test_a_receiver_may_be_moved_back_to_a_time(node: Node, topic: str) -> None:
    inbox, _ = await ten_done(node, topic)

    async def clock_moved() -> bool:
        return moment() > between + 0.005

    between = moment()
    await until(clock_moved, "a millisecond")  # the broker keeps times to the millisecond
    await node.publish(topic, b"after", expect="processed")
    await take(inbox, 1)
    await node.seek(topic, "r", time=between + 0.002)
    assert await take(inbox, 1) == [b"after"]
    assert await is_empty(node, inbox)


@with_a_client
async def test_a_receiver_may_be_moved_forward_to_now(node: Node, topic: str) -> None:
    await node.create_receiver(topic, "r")
    await node.publish_many(topic, [b"%d" % n for n in range(10)], expect="processed")
    await node.seek(topic, "r")
    inbox = await node.subscribe(topic, name="r")
    assert await is_empty(node, inbox)
    await node.publish(topic, b"new", expect="processed")
    assert await take(inbox, 1) == [b"new"]
