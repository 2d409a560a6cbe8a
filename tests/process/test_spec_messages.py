"""Messages, end to end: the fields, the modes and the guarantees of section 3."""

import asyncio
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import asterism
from asterism.sdk.aio import Inbox, Node
from asterism.testing import Broker
from tests.process.conftest import (
    WAIT_S,
    consumer,
    counts,
    is_empty,
    moment,
    receive,
    refused,
    take,
    until,
    with_a_client,
    wrong,
)
from tests.support.batches import some

pytestmark = pytest.mark.process


# --- fields ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict_broker() -> Iterator[Broker]:
    with Broker(workers=1, config={"auto_create": False}) as running:
        yield running


def test_a_topic_must_exist_unless_topics_are_made_by_themselves(
    broker: Broker, strict_broker: Broker, topic: str
) -> None:
    with asterism.connect_blocking(broker.address) as node:
        node.publish(topic, b"")
        assert topic in node.list_topics()
    with asterism.connect_blocking(strict_broker.address) as node:
        attempts = (lambda: node.publish(topic, b""), lambda: node.subscribe(topic))
        for attempt in attempts:
            with pytest.raises(asterism.PeerError) as raised:
                attempt()
            assert raised.value.code == "no_such_topic"
        node.create_topic(topic)
        node.publish(topic, b"")


@with_a_client
async def test_a_message_has_one_subject_or_more(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r")
    await node.publish(topic, b"", subjects=["a/b", "c"])
    assert (await inbox.receive(WAIT_S)).subjects == ("a/b", "c")
    async with wrong("bad_subject"):
        await node.publish(topic, b"", subjects=[])


@with_a_client
async def test_a_payload_may_be_empty_and_is_at_most_max_payload(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r")
    mebibyte = bytes(1 << 20)
    for payload in (b"", bytes(range(256)), mebibyte):
        await node.publish(topic, payload)
        assert (await inbox.receive(WAIT_S)).payload == payload
    async with refused("too_large"):
        await node.publish(topic, mebibyte + b"!")
    await node.configure(topic, max_payload=3)
    await node.publish(topic, b"123")
    async with refused("too_large"):
        await node.publish(topic, b"1234")


@with_a_client
async def test_attributes_are_delivered_unchanged(node: Node, topic: str) -> None:
    attributes = {"content-type": "text/plain", "": "", "Größe": "x" * 4096, "a": "\0\n✓"}
    inbox = await node.subscribe(topic, name="r")
    await node.publish(topic, b"", attributes=attributes)
    assert (await inbox.receive(WAIT_S)).attributes == attributes


@with_a_client
async def test_modes_and_expectations_are_those_of_the_table(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r")
    for mode in ("push", "online", "durable"):
        for expect in ("sent", "received", "processed"):
            await node.publish(topic, b"", mode=mode, expect=expect)
            delivery = await inbox.receive(WAIT_S)
            assert (delivery.mode, delivery.expect) == (mode, expect)
            await delivery.processed()
    async with wrong("bad_request"):
        await node.publish(topic, b"", mode="loud")
    async with wrong("bad_request"):
        await node.publish(topic, b"", expect="waiting")
    for mode in ("push", "online"):
        async with wrong("bad_request"):
            await node.publish(topic, b"", mode=mode, max_receivers=1)
        async with wrong("bad_request"):
            await node.publish(topic, b"", mode=mode, ttl=10)


@with_a_client
async def test_once_max_receivers_are_done_the_message_is_over(node: Node, topic: str) -> None:
    receipt = await node.publish(topic, b"", expect="processed", max_receivers=2)
    for name in ("a", "b"):
        assert await take(await node.subscribe(topic, name=name), 1) == [b""]
    assert (await receipt.resolved(WAIT_S)).verdict == "ok"
    assert await is_empty(node, await node.subscribe(topic, name="c"))
    assert await counts(node, topic, "held") == (0,)


@with_a_client
async def test_a_message_expires_at_its_time(node: Node, topic: str) -> None:
    receipt = await node.publish(topic, b"short", expires_at=moment(0.1), receipt=True)
    await node.publish(topic, b"long", ttl=600)
    assert await receipt.resolved(WAIT_S) == ("expired", {})
    inbox = await node.subscribe(topic, name="late")
    assert await take(inbox, 1) == [b"long"]
    assert await is_empty(node, inbox)


@with_a_client
async def test_a_message_without_a_time_expires_by_the_topics_default(
    node: Node, topic: str
) -> None:
    await node.create_topic(topic, default_ttl=0.1)
    receipt = await node.publish(topic, b"", receipt=True)
    assert (await receipt.resolved(WAIT_S)).verdict == "expired"


@with_a_client
async def test_never_is_allowed_where_max_receivers_is_set(node: Node, topic: str) -> None:
    await node.create_topic(topic, default_ttl=0.05)
    measure = await node.publish(topic, b"", receipt=True)
    await node.publish(topic, b"for ever", expires_at="never", max_receivers=1)
    assert (await measure.resolved(WAIT_S)).verdict == "expired"
    assert await take(await node.subscribe(topic, name="r"), 1) == [b"for ever"]
    async with wrong("bad_request"):
        await node.publish(topic, b"", expires_at="never")


@pytest.mark.parametrize("max_receivers", [1, 2, None])
@with_a_client
async def test_priority_nought_goes_first_none_last_and_ties_go_by_age(
    node: Node, topic: str, max_receivers: int | None
) -> None:
    given = [None, 7, 0, 7, None, 0]
    messages = [asterism.Message(b"%d" % n, priority=p) for n, p in enumerate(given)]
    await node.publish_many(topic, messages, expect="processed", max_receivers=max_receivers)
    inbox = await node.subscribe(topic, name="r", credit=1)
    assert await take(inbox, 6) == [b"2", b"5", b"1", b"3", b"0", b"4"]


@with_a_client
async def test_a_message_is_not_delivered_before_its_time(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r")
    due = moment(0.4)
    await node.publish(topic, b"later", deliver_at=due)
    await node.publish(topic, b"now")
    assert (await inbox.receive(WAIT_S)).payload == b"now"
    assert (await inbox.receive(WAIT_S)).payload == b"later"
    assert moment() >= due


@pytest.mark.parametrize("max_receivers", [1, None])
@with_a_client
async def test_messages_of_one_key_come_one_at_a_time_in_order(
    node: Node, topic: str, max_receivers: int | None
) -> None:
    messages = [asterism.Message(b"k%d" % n, ordering_key="k") for n in range(3)]
    messages += [asterism.Message(b"other", ordering_key="l"), asterism.Message(b"free")]
    await node.publish_many(topic, messages, expect="processed", max_receivers=max_receivers)
    inbox = await node.subscribe(topic, name="r")
    first = await receive(inbox, 3)
    assert [delivery.payload for delivery in first] == [b"k0", b"other", b"free"]
    assert await is_empty(node, inbox), "the key is taken"
    await first[0].extend(0)
    again = await inbox.receive(WAIT_S)
    assert (again.payload, again.attempt) == (b"k0", 2), "nobody overtakes it"
    await again.processed()
    assert await take(inbox, 2) == [b"k1", b"k2"]


@pytest.mark.parametrize(
    "kind",
    [{"max_receivers": 1}, {"max_receivers": None}, {"mode": "push"}, {"mode": "online"}],
    ids=["one", "all", "push", "online"],
)
@with_a_client
async def test_priorities_do_not_turn_a_key_round(
    node: Node, topic: str, kind: dict[str, Any]
) -> None:
    inbox = await node.subscribe(topic, name="r", credit=1)
    await node.publish(topic, b"first", expect="processed", **kind)
    held = await inbox.receive(WAIT_S)  # while this one is held, the others wait
    for payload, key, priority in (
        (b"k1", "k", None),
        (b"k2", "k", 0),
        (b"k3", "k", 5),
        (b"free", None, 9),
        (b"last", None, None),
    ):
        await node.publish(
            topic, payload, expect="processed", ordering_key=key, priority=priority, **kind
        )
    await held.processed()
    assert await take(inbox, 5) == [b"free", b"k1", b"k2", b"k3", b"last"]


@with_a_client
async def test_an_id_has_sixteen_bytes_and_goes_by_time(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r")
    receipts = [await node.publish(topic, b"") for _ in range(5)]
    ids = [delivery.id for delivery in await receive(inbox, 5)]
    assert ids == [receipt.id for receipt in receipts] == sorted(ids)
    assert {len(each) for each in ids} == {16}


# --- push -----------------------------------------------------------------------------------------


@with_a_client
async def test_push_goes_to_one_receiver_by_turns(node: Node, topic: str) -> None:
    inboxes = [await node.subscribe(topic, name=name) for name in "abc"]
    await node.subscribe(topic, "elsewhere", name="not interested")
    await node.publish_many(topic, [b"%d" % n for n in range(9)], mode="push")
    await node.describe(topic)
    found = [await some(inbox, 100, 0) for inbox in inboxes]
    assert [len(each) for each in found] == [3, 3, 3]
    assert len({delivery.payload for each in found for delivery in each}) == 9


@with_a_client
async def test_push_with_nobody_interested_is_refused_at_once(node: Node, topic: str) -> None:
    async with refused("no_receiver"):
        await node.publish(topic, b"", mode="push")
    await node.subscribe(topic, "elsewhere", name="r")
    async with refused("no_receiver"):
        await node.publish(topic, b"", mode="push")


@with_a_client
async def test_push_waits_while_nobody_interested_has_credit(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r", credit=1)
    await node.publish_many(topic, [b"1", b"2"], mode="push", expect="processed")
    first = await inbox.receive(WAIT_S)
    assert await is_empty(node, inbox)
    assert await counts(node, topic, "waiting", "sent") == (1, 1)
    await first.processed()
    assert (await inbox.receive(WAIT_S)).payload == b"2"


# --- online ---------------------------------------------------------------------------------------


@with_a_client
async def test_online_goes_to_everybody_who_is_there_at_that_moment(node: Node, topic: str) -> None:
    inboxes = [await node.subscribe(topic, name=name) for name in ("a", "b")]
    gone = await node.subscribe(topic, name="away")
    await gone.close()
    await node.publish(topic, b"1", mode="online")
    later = await node.subscribe(topic, name="later")
    back = await node.subscribe(topic, name="away")
    for inbox in inboxes:
        assert (await inbox.receive(WAIT_S)).payload == b"1"
    for inbox in (later, back):
        assert await is_empty(node, inbox)


@with_a_client
async def test_online_with_nobody_there_is_accepted_and_ok(node: Node, topic: str) -> None:
    receipt = await node.publish(topic, b"", mode="online", expect="processed")
    assert await receipt.resolved(WAIT_S) == ("ok", {})


@with_a_client
async def test_who_has_seen_accepted_has_been_sent_his_own_copy(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic)
    for number in range(50):
        await node.publish(topic, b"%d" % number, mode="online")
        (delivery,) = await some(inbox, 10, 0)
        assert delivery.payload == b"%d" % number


# --- durable --------------------------------------------------------------------------------------


@with_a_client
async def test_durable_goes_to_those_who_are_there_and_those_who_come(
    node: Node, topic: str
) -> None:
    early = await node.subscribe(topic, name="early")
    await node.publish(topic, b"1", expect="processed")
    assert await take(early, 1) == [b"1"]
    for inbox in (await node.subscribe(topic, name="late"), await node.subscribe(topic)):
        assert await take(inbox, 1) == [b"1"]


@pytest.mark.parametrize("kinds", [["worker"], ["frontend", "interests", "worker"]])
@with_a_client
async def test_what_was_accepted_outlives_the_kill_of_every_process(
    node: Node, topic: str, broker: Broker, kinds: list[str]
) -> None:
    await node.publish_many(topic, [b"%d" % n for n in range(100)], expect="processed")
    await asyncio.gather(*(asyncio.to_thread(broker.restart, kind) for kind in kinds))
    inbox = await node.subscribe(topic, name="r")
    assert await take(inbox, 100) == [b"%d" % n for n in range(100)]


@with_a_client
async def test_no_more_than_max_receivers_are_in_the_air_or_done(node: Node, topic: str) -> None:
    inboxes = [await node.subscribe(topic, name=name) for name in "abc"]
    await node.publish(topic, b"", expect="processed", max_receivers=2)
    await node.describe(topic)
    found = [each for inbox in inboxes for each in await some(inbox, 10, 0)]
    assert len(found) == 2
    await found[0].processed(confirm=True)
    for inbox in inboxes:
        assert await is_empty(node, inbox), "one is done, one is in the air"
    await found[1].extend(0)
    (third,) = [each for inbox in inboxes for each in await some(inbox, 10, 0)]
    assert (third.attempt, third.receiver) != (1, found[0].receiver)


@with_a_client
async def test_a_queue_of_one_receiver_never_has_two_holders(node: Node, topic: str) -> None:
    """Two groups of two members work on one queue; each message has one holder at any time."""
    inboxes = [await node.subscribe(topic, group=group, credit=3) for group in "aabb"]
    held: Counter[bytes] = Counter()
    done: Counter[bytes] = Counter()

    async def work(inbox: Inbox) -> None:
        while sum(done.values()) < 200:
            for delivery in await some(inbox, 3, 0.05):
                held[delivery.payload] += 1
                assert held[delivery.payload] == 1, "two hold it at once"
                await asyncio.sleep(0)
                held[delivery.payload] -= 1
                done[delivery.payload] += 1
                await delivery.processed()

    payloads = [b"%d" % n for n in range(200)]
    await node.publish_many(topic, payloads, expect="processed", max_receivers=1)
    await asyncio.gather(*map(work, inboxes))
    assert done == Counter(payloads)


# --- guarantees -----------------------------------------------------------------------------------


@with_a_client
async def test_durable_messages_that_expect_sent_are_handed_out_once(
    node: Node, topic: str, broker: Broker
) -> None:
    await node.publish_many(topic, [b"1", b"2"], max_receivers=1, expect="sent")
    async with consumer(node.address, topic, group="g") as killed:
        assert [await killed.line(), await killed.line()] == ["1 1", "2 1"]
        await killed.kill()
    await asyncio.to_thread(broker.restart, "worker")
    assert await is_empty(node, await node.subscribe(topic, group="g"))
    assert await counts(node, topic, "held") == (0,)


@with_a_client
async def test_push_that_expects_sent_comes_at_most_once(node: Node, topic: str) -> None:
    async with asterism.connect(node.address) as other:
        await other.subscribe(topic, group="g")
        receipt = await node.publish(topic, b"", mode="push", receipt=True)
        assert (await receipt.resolved(WAIT_S)).verdict == "ok"
        inbox = await node.subscribe(topic, group="g")
    assert await is_empty(node, inbox)


@with_a_client
async def test_first_attempts_come_in_the_order_of_acceptance(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r", credit=32)
    payloads = [b"%d" % n for n in range(2_000)]

    async def publish() -> None:
        for payload in payloads:
            await node.send(topic, payload, expect="processed")

    async def consume() -> list[tuple[bytes, int]]:
        seen: list[tuple[bytes, int]] = []
        while len(seen) < len(payloads):
            taken = await inbox.batch(20, WAIT_S)
            await inbox.processed(taken)
            seen += [(delivery.payload, delivery.attempt) for delivery in taken]
        return seen

    _, seen = await asyncio.gather(publish(), consume())
    assert seen == [(payload, 1) for payload in payloads]


@pytest.mark.parametrize("kind", ["frontend", "interests", "worker"])
@with_a_client
async def test_nothing_is_lost_when_a_process_is_killed_in_the_middle(
    node: Node, topic: str, broker: Broker, kind: str
) -> None:
    inbox = await node.subscribe(topic, name="r", credit=64)
    payloads = [b"%d" % n for n in range(3_000)]
    seen: Counter[bytes] = Counter()
    accepted = 0

    async def publish() -> None:
        nonlocal accepted
        for start in range(0, len(payloads), 50):
            receipt = await node.publish_many(
                topic, payloads[start : start + 50], expect="processed", max_receivers=1
            )
            accepted += len(receipt.sequences)

    async def consume() -> None:
        while len(seen) < len(payloads):
            taken = await inbox.batch(50, WAIT_S)
            assert taken, f"only {len(seen)} of {len(payloads)} came"
            await inbox.processed(taken)
            seen.update(delivery.payload for delivery in taken)

    async def kill() -> None:
        for threshold in (500, 1_500):
            await until(functools.partial(reached, threshold), "enough to be accepted")
            await asyncio.to_thread(broker.restart, kind)

    async def reached(threshold: int) -> bool:
        return accepted >= threshold

    async def all_are_over() -> bool:
        return await counts(node, topic, "held") == (0,)

    await asyncio.gather(publish(), consume(), kill())
    assert accepted == len(payloads) and set(seen) == set(payloads)
    await until(all_are_over, "all to be processed")
    assert await counts(node, topic, "completed") == (len(payloads),), "and none was stored twice"
