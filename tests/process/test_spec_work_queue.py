"""The work queue, end to end: every operation of section 7."""

import asyncio

import pytest

from asterism.sdk.aio import Node
from asterism.testing import Broker
from tests.process.conftest import (
    WAIT_S,
    refused,
    take,
    with_a_client,
    worker_of_topic,
)

pytestmark = pytest.mark.process


async def waiting_order(node: Node, topic: str) -> "asyncio.Task[int | None]":
    """An order that waits in the broker by now."""
    await node.create_topic(topic, exist_ok=True)
    order = asyncio.create_task(node.order(topic, WAIT_S))
    await node.stats(topic)  # meanwhile it was sent; and it goes before what is asked from now on
    return order


async def put(node: Node, topic: str, payload: bytes, priority: int | None = None) -> int:
    """A message that waits in the queue; its sequence."""
    sequence = await node.draft(topic, priority)
    await node.set(topic, sequence, payload)
    return sequence


async def fail(node: Node, topic: str, count: int) -> list[int]:
    """Orders so many messages, and fails them; their sequences."""
    failed = []
    for _ in range(count):
        sequence = await node.order(topic)
        assert sequence is not None
        await node.fetch(topic, sequence)
        await node.fail(topic, sequence, "no")
        failed.append(sequence)
    return failed


async def stats(node: Node, topic: str) -> tuple[int, ...]:
    names = ("drafting", "waiting", "ordered", "active", "completed", "failed")
    said = await node.stats(topic)
    return tuple(getattr(said, name) for name in names)


@with_a_client
async def test_a_draft_is_set_ordered_read_and_completed(node: Node, topic: str) -> None:
    sequence = await node.draft(topic, 5)
    assert await stats(node, topic) == (1, 0, 0, 0, 0, 0)
    assert await node.order(topic) is None, "a draft is not there yet"
    await node.set(topic, sequence, b"work", {"content-type": "text/plain"})
    assert await stats(node, topic) == (0, 1, 0, 0, 0, 0)
    assert await node.order(topic) == sequence
    assert await stats(node, topic) == (0, 0, 1, 0, 0, 0)
    read = await node.fetch(topic, sequence)
    assert (read.payload, read.priority) == (b"work", 5)
    assert (read.attributes, read.status) == ({"content-type": "text/plain"}, "received")
    assert await stats(node, topic) == (0, 0, 0, 1, 0, 0)
    await node.complete(topic, sequence)
    assert await stats(node, topic) == (0, 0, 0, 0, 1, 0)


@with_a_client
async def test_set_replaces_the_payload_of_what_waits_and_of_nothing_else(
    node: Node, topic: str
) -> None:
    first, second = await put(node, topic, b"before"), await put(node, topic, b"other")
    await node.set(topic, first, b"after")
    assert await node.order(topic) == first, "it keeps its place"
    assert (await node.fetch(topic, first)).payload == b"after"
    async with refused("wrong_state"):
        await node.set(topic, first, b"too late")
    assert await node.order(topic) == second


@with_a_client
async def test_order_takes_the_best_that_waits(node: Node, topic: str) -> None:
    given = [None, 7, 0, 7]
    sequences = [await put(node, topic, b"", priority) for priority in given]
    ordered = [await node.order(topic) for _ in given]
    assert ordered == [sequences[position] for position in (2, 1, 3, 0)]
    assert await node.order(topic) is None


@with_a_client
async def test_order_waits_for_a_message(node: Node, topic: str) -> None:
    waiting = [await waiting_order(node, topic) for _ in range(2)]
    sequences = [await put(node, topic, b"%d" % number) for number in range(2)]
    assert await asyncio.gather(*waiting) == sequences
    assert await node.order(topic, 0.05) is None


@with_a_client
async def test_an_order_that_nobody_waits_for_any_more_takes_nothing(
    node: Node, topic: str
) -> None:
    waiting = await waiting_order(node, topic)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    sequence = await put(node, topic, b"")
    assert await node.order(topic) == sequence


@with_a_client
async def test_every_state_but_drafting_can_be_read_any_number_of_times(
    node: Node, topic: str
) -> None:
    sequence = await node.draft(topic)
    async with refused("wrong_state"):
        await node.fetch(topic, sequence)
    await node.set(topic, sequence, b"work")
    for status, step in [("waiting", node.order), ("received", None), ("received", node.fail)]:
        for _ in range(2):
            assert (await node.fetch(topic, sequence)).status == status
        if step == node.order:
            assert await node.order(topic) == sequence
        elif step == node.fail:
            await node.fail(topic, sequence)
    read = await node.fetch(topic, sequence)
    assert (read.status, read.payload) == ("failed", b"work")
    await node.abandon(topic, sequence)
    async with refused("no_such_message"):
        await node.fetch(topic, sequence)


@with_a_client
async def test_only_what_is_active_is_completed_or_fails(node: Node, topic: str) -> None:
    sequence = await put(node, topic, b"")
    for step in (node.order, None):
        for end in (node.complete, node.fail):
            async with refused("wrong_state"):
                await end(topic, sequence)
        if step is not None:
            assert await step(topic) == sequence
    await node.fetch(topic, sequence)
    await node.complete(topic, sequence)
    async with refused("no_such_message"):
        await node.complete(topic, sequence)


@with_a_client
async def test_what_was_ordered_and_not_read_in_time_waits_again(node: Node, topic: str) -> None:
    await node.create_topic(topic, sent_timeout=0.1, received_timeout=0.1)
    sequence = await put(node, topic, b"")
    assert await node.order(topic) == sequence
    assert await node.order(topic, WAIT_S) == sequence
    await node.fetch(topic, sequence)
    assert await node.order(topic, WAIT_S) == sequence, "and so does what was active for too long"


@with_a_client
async def test_failed_messages_are_listed_and_renewed_in_order(node: Node, topic: str) -> None:
    for number in range(3):
        await put(node, topic, b"%d" % number)
    failed = await fail(node, topic, 3)
    assert [row.sequence for row in await node.list_parked(topic)] == failed
    await node.renew(topic, failed[1])
    assert await stats(node, topic) == (0, 1, 0, 0, 0, 2)
    async with refused("wrong_state"):
        await node.renew(topic, failed[1])
    await node.renew_all(topic)
    ordered = [await node.order(topic) for _ in range(3)]
    assert ordered == [failed[1], failed[0], failed[2]], "first in, first out"


@with_a_client
async def test_abandon_drops_a_message_in_any_state_and_counts_nothing(
    node: Node, topic: str
) -> None:
    draft = await node.draft(topic)
    failed = await put(node, topic, b"")
    await fail(node, topic, 1)
    active = await put(node, topic, b"")
    assert await node.order(topic) == active
    await node.fetch(topic, active)
    ordered = await put(node, topic, b"")
    assert await node.order(topic) == ordered
    waiting = await put(node, topic, b"")
    assert await stats(node, topic) == (1, 1, 1, 1, 0, 1)
    for sequence in (draft, failed, active, ordered, waiting):
        await node.abandon(topic, sequence)
    assert await stats(node, topic) == (0, 0, 0, 0, 0, 0)


@with_a_client
async def test_all_failed_messages_can_be_abandoned(node: Node, topic: str) -> None:
    for number in range(3):
        await put(node, topic, b"%d" % number)
    await fail(node, topic, 2)
    await node.abandon_all(topic)
    assert await node.list_parked(topic) == []
    assert await stats(node, topic) == (0, 1, 0, 0, 0, 0)


@with_a_client
async def test_clear_wakes_waiting_orders_and_resets_the_counter(node: Node, topic: str) -> None:
    sequence = await put(node, topic, b"")
    assert await node.order(topic) == sequence
    await node.fetch(topic, sequence)
    await node.complete(topic, sequence)
    waiting = await waiting_order(node, topic)
    await node.clear(topic)
    async with refused("topic_gone"):
        await waiting
    assert await stats(node, topic) == (0, 0, 0, 0, 0, 0)


@with_a_client
async def test_the_queue_outlives_the_kill_of_its_worker_in_every_state(
    node: Node, topic: str, broker: Broker
) -> None:
    for _ in range(5):
        await put(node, topic, b"work")
    await fail(node, topic, 1)
    completed, active, ordered = [await node.order(topic) for _ in range(3)]
    assert completed is not None and active is not None and ordered is not None
    await node.fetch(topic, completed)
    await node.complete(topic, completed)
    await node.fetch(topic, active)
    draft = await node.draft(topic)
    before = await stats(node, topic)
    assert before == (1, 1, 1, 1, 1, 1)
    await asyncio.to_thread(broker.restart, "worker", worker_of_topic(topic))
    assert await stats(node, topic) == before
    await node.complete(topic, active)
    await node.set(topic, draft, b"")
    assert (await node.fetch(topic, ordered)).payload == b"work"
    assert (await stats(node, topic))[4] == 2


@with_a_client
async def test_an_order_waits_through_the_kill_of_its_worker(
    node: Node, topic: str, broker: Broker
) -> None:
    waiting = await waiting_order(node, topic)
    await asyncio.to_thread(broker.restart, "worker", worker_of_topic(topic))
    sequence = await put(node, topic, b"")
    assert await waiting == sequence


@with_a_client
async def test_what_was_published_can_be_ordered_and_what_was_drafted_received(
    node: Node, topic: str
) -> None:
    receipt = await node.publish(topic, b"published", expect="processed", max_receivers=1)
    assert await node.order(topic) == receipt.sequence
    await node.fetch(topic, receipt.sequence)
    await node.complete(topic, receipt.sequence)
    assert (await receipt.resolved(WAIT_S)).verdict == "ok"
    inbox = await node.subscribe(topic, name="r")
    await put(node, topic, b"drafted")
    assert await take(inbox, 1) == [b"drafted"]
