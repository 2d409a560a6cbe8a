"""Receipts and idempotent publishing, end to end: the second half of section 3."""

import asyncio
import os
from collections import Counter

import pytest

import asterism
from asterism.sdk.aio import Inbox, Node
from asterism.testing import Broker
from asterism.wire import Verb
from tests.process.conftest import (
    WAIT_S,
    Raw,
    counts,
    message,
    receive,
    take,
    with_a_client,
    worker_of_topic,
)

pytestmark = pytest.mark.process


async def fail(inbox: Inbox, count: int = 1) -> None:
    for delivery in await receive(inbox, count):
        await delivery.failed("no", confirm=True)


async def is_pending(receipt: asterism.Receipt) -> bool:
    """Whether a receipt is not resolved, as far as has been heard."""
    try:
        await receipt.resolved(0)
    except TimeoutError:
        return True
    return False


# --- accepted -------------------------------------------------------------------------------------


@with_a_client
async def test_accepted_says_under_which_number_the_topic_has_it(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r")
    receipts = await node.publish_many(topic, [b"1", b"2", b"3"])
    assert receipts.sequences == sorted(receipts.sequences)
    assert [each.sequence for each in await receive(inbox, 3)] == receipts.sequences


# --- resolved -------------------------------------------------------------------------------------


@with_a_client
async def test_push_is_resolved_by_its_one_delivery(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r")
    good = await node.publish(topic, b"", mode="push", expect="processed")
    assert await is_pending(good)
    await take(inbox, 1)
    assert await good.resolved(WAIT_S) == ("ok", {"r": "processed"})
    bad = await node.publish(topic, b"", mode="push", expect="processed")
    await fail(inbox)
    assert await bad.resolved(WAIT_S) == ("failed", {"r": "failed"})


@with_a_client
async def test_online_is_resolved_by_all_of_its_copies(node: Node, topic: str) -> None:
    a, b = await node.subscribe(topic, name="a"), await node.subscribe(topic, name="b")
    receipts = await node.publish_many(topic, [b"1", b"2"], mode="online", expect="processed")
    await take(a, 2)
    first, second = await receive(b, 2)
    assert not receipts.outcomes
    await first.processed()
    await second.failed("no")
    assert await receipts.all_resolved(WAIT_S) == [
        ("ok", {"a": "processed", "b": "processed"}),
        ("failed", {"a": "processed", "b": "failed"}),
    ]


@with_a_client
async def test_an_online_copy_is_final_when_its_connection_closes(node: Node, topic: str) -> None:
    async with asterism.connect(node.address) as other:
        inbox = await other.subscribe(topic, name="r")
        receipt = await node.publish(topic, b"", mode="online", expect="processed")
        await inbox.receive(WAIT_S)
    assert await receipt.resolved(WAIT_S) == ("failed", {"r": "unreachable"})


@with_a_client
async def test_durable_is_ok_as_soon_as_max_receivers_are_done(node: Node, topic: str) -> None:
    inboxes = [await node.subscribe(topic, name=name) for name in "ab"]
    receipt = await node.publish(topic, b"", expect="processed", max_receivers=2)
    await take(inboxes[0], 1)
    assert await is_pending(receipt)
    await take(inboxes[1], 1)
    assert await receipt.resolved(WAIT_S) == ("ok", {"a": "processed", "b": "processed"})


@with_a_client
async def test_durable_is_failed_as_soon_as_max_receivers_cannot_be_done(
    node: Node, topic: str
) -> None:
    inboxes = [await node.subscribe(topic, name=name) for name in "ab"]
    receipt = await node.publish(topic, b"", expect="processed", max_receivers=2)
    await fail(inboxes[0])
    assert (await receipt.resolved(WAIT_S)).verdict == "failed"


@pytest.mark.parametrize(
    "ends, verdict",
    [
        ((), "expired"),
        (("ok",), "ok"),
        (("ok", "failed"), "ok"),
        (("failed",), "failed"),
        (("held",), "expired"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else value,
)
@with_a_client
async def test_at_its_expiry_a_durable_message_is_what_its_receivers_made_of_it(
    node: Node, topic: str, ends: tuple[str, ...], verdict: str
) -> None:
    inboxes = [await node.subscribe(topic, name=f"r{n}") for n in range(len(ends))]
    receipt = await node.publish(topic, b"", expect="processed", ttl=0.4)
    for end, inbox in zip(ends, inboxes, strict=True):
        delivery = await inbox.receive(WAIT_S)
        if end == "ok":
            await delivery.processed(confirm=True)
        elif end == "failed":
            await delivery.failed("no", confirm=True)
    assert (await receipt.resolved(WAIT_S)).verdict == verdict


@with_a_client
async def test_a_renewal_does_not_change_a_verdict_that_was_given(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r")
    receipt = await node.publish(topic, b"", expect="processed", max_receivers=1)
    await fail(inbox)
    assert (await receipt.resolved(WAIT_S)).verdict == "failed"
    await node.renew(topic, receipt.sequence)
    await take(inbox, 1)
    assert await counts(node, topic, "completed") == (1,)
    assert (await receipt.resolved(WAIT_S)).verdict == "failed"


def test_a_receipt_is_resolved_once_and_only_where_it_was_asked_for(
    broker: Broker, topic: str
) -> None:
    producer = os.urandom(16)
    with Raw(broker.address) as raw:
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["**"], "r", None, None, 10)
        messages = [message(b"1", max_receivers=1), message(b"2", max_receivers=1, receipt=True)]
        (one, two) = raw.ask(Verb.PUBLISH, topic, [messages, producer, 1, 0]).body
        raw.reply(Verb.REPORT, topic, 1, 4, [one, two])
        raw.reply(Verb.REPORT, topic, 1, 4, [one, two])
        resolved = [each.body for each in raw.unasked if each.verb == Verb.RESOLVED]
    assert resolved == [((producer, 2, "ok", {"r": "processed"}),)]


# --- receipts survive -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["frontend", "worker", "interests"])
@pytest.mark.parametrize("done_first", [False, True], ids=["done after", "done before"])
@with_a_client
async def test_a_receipt_survives_the_kill_of_a_process(
    node: Node, topic: str, broker: Broker, kind: str, done_first: bool
) -> None:
    async with asterism.connect(node.address) as other:
        inbox = await other.subscribe(topic, name="r")
        receipt = await node.publish(topic, b"", expect="processed", max_receivers=1)
        delivery = await inbox.receive(WAIT_S)
        if done_first:  # and the broker ends before the publisher can be told, or after
            await delivery.processed()
        await asyncio.to_thread(broker.restart, kind)
        await delivery.processed()
        assert await receipt.resolved(WAIT_S) == ("ok", {"r": "processed"})


def await_receipts(raw: Raw, topic: str, producer: bytes, *numbers: int) -> list[object]:
    return list(raw.ask_again(Verb.AWAIT_RECEIPTS, topic, (producer, numbers)).body["outcomes"])


def test_a_publisher_that_comes_back_asks_again_for_what_it_awaits(
    broker: Broker, topic: str
) -> None:
    producer = os.urandom(16)
    with Raw(broker.address) as raw:
        messages = [message(b"%d" % n, max_receivers=1, receipt=True) for n in range(2)]
        first, second = raw.ask(Verb.PUBLISH, topic, [messages, producer, 1, 0]).body
    with Raw(broker.address) as worker:
        worker.reply(Verb.SUBSCRIBE, topic, 1, ["**"], "r", None, None, 1)
        worker.reply(Verb.REPORT, topic, 1, 4, [first])
    broker.restart("worker", worker_of_topic(topic))
    with Raw(broker.address) as again:
        assert await_receipts(again, topic, producer, 1, 2, 3) == [
            (1, "ok", {"r": "processed"}),
            (2, "pending", {}),
            (3, "unknown", {}),
        ]
        again.reply(Verb.ABANDON, topic, second)
        assert again.until(Verb.RESOLVED).body == ((producer, 2, "dropped", {}),)


# --- publishing is idempotent ---------------------------------------------------------------------


@pytest.mark.parametrize("killed", [None, "frontend", "interests", "worker"])
def test_what_is_published_again_gets_the_first_answer_and_is_stored_once(
    broker: Broker, topic: str, killed: str | None
) -> None:
    batch = [[message(b"%d" % n, n, max_receivers=1) for n in range(5)], os.urandom(16), 1, 0]
    with Raw(broker.address) as raw:
        first = raw.ask(Verb.PUBLISH, topic, batch).body
    if killed is not None:
        broker.restart(killed)
    with Raw(broker.address) as raw:
        assert raw.ask_again(Verb.PUBLISH, topic, batch).body == first
        assert raw.ask(Verb.PUBLISH, topic, batch).body == first
        assert raw.reply(Verb.DESCRIBE, topic)["held"] == 5


def test_the_first_answer_stands_also_when_it_was_a_refusal(broker: Broker, topic: str) -> None:
    producer = os.urandom(16)
    with Raw(broker.address) as raw:
        raw.reply(Verb.CREATE_TOPIC, topic, {"max_payload": 1})
        batch = [[message(b"1"), message(b"22"), message(b"3")], producer, 1, 0]
        first = raw.ask(Verb.PUBLISH, topic, batch).body
        assert first[1][0] == "too_large"
        raw.reply(Verb.CONFIGURE, topic, {"max_payload": 10})
    broker.restart("worker", worker_of_topic(topic))
    with Raw(broker.address) as raw:
        assert raw.ask_again(Verb.PUBLISH, topic, batch).body == first


def test_a_producer_leaves_no_gap(broker: Broker, topic: str) -> None:
    producer = os.urandom(16)
    batches = {n: [[message(b"%d" % n)], producer, n, n - 1] for n in (1, 2, 3)}
    with Raw(broker.address) as raw:
        assert raw.refusal(Verb.PUBLISH, topic, batches[3]) in ("busy", "wrong_state")
        first = raw.ask(Verb.PUBLISH, topic, batches[1]).body[0]
        assert raw.refusal(Verb.PUBLISH, topic, [[message(b"3")], producer, 3, 1]) == "busy"
        assert raw.ask(Verb.PUBLISH, topic, batches[2]).body == (first + 1,)
        assert raw.ask(Verb.PUBLISH, topic, batches[3]).body == (first + 2,)


@pytest.mark.parametrize("kind", ["frontend", "worker"])
@with_a_client
async def test_a_client_that_lost_its_answers_sends_again_and_nothing_is_stored_twice(
    node: Node, topic: str, broker: Broker, kind: str
) -> None:
    """Everything is under way, and as little as can be is answered, when the process is killed."""
    payloads = [b"%d" % n for n in range(2_000)]
    receipts = [
        await node.send_many(topic, payloads[start : start + 100], expect="processed")
        for start in range(0, len(payloads), 100)
    ]
    await asyncio.to_thread(broker.restart, kind)
    for receipt in receipts:
        await receipt.accepted(WAIT_S)
    inbox = await node.subscribe(topic, name="r", credit=1_000)
    seen: list[bytes] = []
    while len(seen) < len(payloads):
        taken = await inbox.batch(1_000, WAIT_S)
        assert taken, f"only {len(seen)} came"
        await inbox.processed(taken)
        seen += [delivery.payload for delivery in taken if delivery.attempt == 1]
    assert Counter(seen) == Counter(payloads)
    assert seen == payloads, "in the order in which they were published"
    described = await node.describe(topic)
    assert described.held == len(payloads)
