"""Topics, end to end: every row of section 4, and what can be done with a topic as a whole."""

import asyncio
import functools
from pathlib import Path
from typing import Any, Literal

import pytest

import asterism
from asterism.config import Config
from asterism.router.placement import store_of
from asterism.sdk.aio import Node
from asterism.storage.store import Store
from asterism.testing import Broker
from tests.process.conftest import (
    WAIT_S,
    counts,
    is_empty,
    moment,
    receive,
    refused,
    take,
    until,
    with_a_client,
)
from tests.support.batches import some

pytestmark = pytest.mark.process


# --- blocking -------------------------------------------------------------------------------------


@with_a_client
async def test_a_blocking_topic_sends_nothing_before_the_last_message_is_resolved(
    node: Node, topic: str
) -> None:
    await node.create_topic(topic, blocking=True)
    inbox = await node.subscribe(topic, name="r")
    await node.publish_many(topic, [b"1", b"2", b"3"], expect="processed", max_receivers=1)
    first = await inbox.receive(WAIT_S)
    assert await is_empty(node, inbox)
    await first.received(confirm=True)
    assert await is_empty(node, inbox), "received is not enough"
    await first.processed()
    second = await inbox.receive(WAIT_S)
    assert second.payload == b"2"
    await second.failed("no")
    assert await take(inbox, 1) == [b"3"], "a final failure resolves it, and the topic goes on"


@with_a_client
async def test_a_blocking_topic_waits_for_everybody_who_is_interested(
    node: Node, topic: str
) -> None:
    await node.create_topic(topic, blocking=True)
    a, b = await node.subscribe(topic, name="a"), await node.subscribe(topic, name="b")
    await node.publish_many(topic, [b"1", b"2"], expect="processed")
    assert await take(a, 1) == [b"1"]
    assert await is_empty(node, a), "the other is not done with the first"
    assert await take(b, 1) == [b"1"]
    assert await take(a, 1) == [b"2"]


# --- overflow -------------------------------------------------------------------------------------


@with_a_client
async def test_reject_new_refuses_what_is_too_much(node: Node, topic: str) -> None:
    await node.create_topic(topic, overflow=asterism.RejectNew(2))
    inbox = await node.subscribe(topic, name="r", credit=1)
    await node.publish_many(topic, [b"1", b"2"], expect="processed", max_receivers=1)
    async with refused("overflow"):
        await node.publish(topic, b"3")
    assert await counts(node, topic, "waiting", "sent") == (1, 1), "both kinds count"
    await take(inbox, 1)
    await node.publish(topic, b"4", expect="processed", max_receivers=1)
    assert await take(inbox, 2) == [b"2", b"4"]


@with_a_client
async def test_neither_parked_messages_nor_drafts_count_as_held(node: Node, topic: str) -> None:
    await node.create_topic(topic, overflow=asterism.RejectNew(1))
    inbox = await node.subscribe(topic, name="r")
    await node.publish(topic, b"1", expect="processed", max_receivers=1)
    await (await inbox.receive(WAIT_S)).failed("no", confirm=True)
    await node.draft(topic)
    await node.publish(topic, b"2", expect="processed", max_receivers=1)
    assert await counts(node, topic, "parked", "drafting", "held") == (1, 1, 1)
    async with refused("overflow"):
        await node.publish(topic, b"3")


@with_a_client
async def test_what_is_renewed_of_an_expired_message_counts_for_overflow(
    node: Node, topic: str
) -> None:
    await node.create_topic(topic, overflow=asterism.RejectNew(1))
    inbox = await node.subscribe(topic, name="r")
    receipt = await node.publish(topic, b"1", expect="processed", expires_at=moment(0.2))
    await (await inbox.receive(WAIT_S)).failed("no", confirm=True)

    async def is_over() -> bool:
        return await counts(node, topic, "held", "parked") == (0, 1)

    await until(is_over, "it expires, and what is parked of it stays")
    await node.renew(topic, receipt.sequence)
    again = await inbox.receive(WAIT_S)
    assert await counts(node, topic, "held", "sent", "waiting") == (1, 1, 0)
    async with refused("overflow"):
        await node.publish(topic, b"2")
    await again.processed(confirm=True)
    await node.publish(topic, b"2")


@with_a_client
async def test_drop_old_drops_the_oldest_that_waits(node: Node, topic: str) -> None:
    await node.create_topic(topic, overflow=asterism.DropOld(3))
    inbox = await node.subscribe(topic, name="r", credit=1)
    receipts = [
        await node.publish(topic, b"%d" % number, expect="processed", max_receivers=1)
        for number in range(5)
    ]
    for dropped in (1, 2):
        assert await receipts[dropped].resolved(WAIT_S) == ("dropped", {})
    assert await take(inbox, 3) == [b"0", b"3", b"4"], "what is in flight stays"


@with_a_client
async def test_drop_old_drops_what_is_in_flight_when_nothing_waits(node: Node, topic: str) -> None:
    await node.create_topic(topic, overflow=asterism.DropOld(2))
    inbox = await node.subscribe(topic, name="r")
    receipts = [
        await node.publish(topic, b"%d" % number, expect="processed", max_receivers=1)
        for number in range(3)
    ]
    assert (await receipts[0].resolved(WAIT_S)).verdict == "dropped"
    first, *others = await receive(inbox, 3)
    await first.processed()  # late, and no error
    await inbox.processed(others)
    assert [(await receipt.resolved(WAIT_S)).verdict for receipt in receipts[1:]] == ["ok", "ok"]


# --- concurrency, unique, history, dedicated ------------------------------------------------------


@with_a_client
async def test_no_more_deliveries_are_in_flight_than_concurrency_allows(
    node: Node, topic: str
) -> None:
    await node.create_topic(topic, concurrency=2)
    inboxes = [await node.subscribe(topic, group="g") for _ in range(3)]
    await node.publish_many(topic, [b"%d" % n for n in range(6)], expect="processed")
    done = 0
    while done < 6:
        await node.describe(topic)
        out = [each for inbox in inboxes for each in await some(inbox, 10, 0)]
        assert len(out) == 2
        await inboxes[0].processed(out)
        done += len(out)
        next_ones = functools.partial(has_sent, node, topic, min(2, 6 - done))
        await until(next_ones, "the next to be sent")


async def has_sent(node: Node, topic: str, count: int) -> bool:
    return await counts(node, topic, "sent") == (count,)


@with_a_client
async def test_a_unique_topic_refuses_the_payload_of_a_live_message(node: Node, topic: str) -> None:
    await node.create_topic(topic, unique=True)
    inbox = await node.subscribe(topic, name="r")
    await node.publish(topic, b"same", expect="processed", max_receivers=1)
    await node.publish(topic, b"other", expect="processed", max_receivers=1)
    async with refused("duplicate"):
        await node.publish(topic, b"same", expect="processed", max_receivers=1)
    await node.draft(topic)
    await node.draft(topic)  # neither has a payload yet
    await take(inbox, 2)
    await node.publish(topic, b"same", expect="processed", max_receivers=1)


def rows_with(folder: Path, topic: str, text: str) -> list[bytes]:
    """The rows of a snapshot, in the store of a topic, that hold this text in key or value."""
    count = Config().stores
    number = store_of(topic, count)
    with Store(folder / f"store-{number:04}", number=number, count=count) as store:
        rows = store.scan(b"", b"\xff")
        return [key for key, value in rows if text.encode() in key or text.encode() in value]


@pytest.mark.parametrize("history, kept", [("none", 0), ("headers", 0), ("full", 1)])
def test_resolved_messages_are_kept_as_history(
    broker: Broker, topic: str, history: Literal["none", "headers", "full"], kept: int
) -> None:
    with asterism.connect_blocking(broker.address) as node:
        node.create_topic(topic, history=history)
        inbox = node.subscribe(topic, name="r")
        payload, subject = f"payload of {topic}.", f"subject/of/{topic}."
        receipt = node.publish(
            topic, payload.encode(), subject=subject, expect="processed", max_receivers=1
        )
        inbox.receive(WAIT_S).processed()
        assert receipt.resolved(WAIT_S).verdict == "ok"
    folder = broker.snapshot()
    kinds = [key[5:6] for key in rows_with(folder, topic, subject)]
    assert kinds == ([] if history == "none" else [b"h"]), "a row of history, and no other"
    assert len(rows_with(folder, topic, payload)) == kept


@with_a_client
async def test_a_dedicated_topic_has_a_process_of_its_own(
    node: Node, topic: str, broker: Broker
) -> None:
    await node.create_topic(topic, dedicated=True)
    await until(functools.partial(has_process, node, topic), "its process to be there")
    pid = await process_of(node, topic)
    assert pid not in [each for pids in broker.pids().values() for each in pids]
    inbox = await node.subscribe(topic, name="r")
    await node.publish(topic, b"1", expect="processed")
    assert await take(inbox, 1) == [b"1"]
    await node.delete_topic(topic)


@with_a_client
async def test_a_deleted_dedicated_topic_is_listed_no_more(node: Node, topic: str) -> None:
    await node.create_topic(topic, dedicated=True)
    await until(functools.partial(has_process, node, topic), "its process to be there")
    await node.delete_topic(topic)
    assert topic not in await node.list_topics()


async def process_of(node: Node, topic: str) -> int | None:
    """The process of a dedicated topic, by what the workers say."""
    for worker in (await node.query_status())["workers"]:
        if worker is not None and worker.get("dedicated", {}).get(topic):
            return int(worker["dedicated"][topic]["pid"])
    return None


async def has_process(node: Node, topic: str) -> bool:
    return await process_of(node, topic) is not None


# --- settings -------------------------------------------------------------------------------------

EVERY_SETTING: dict[str, Any] = {
    "blocking": True,
    "overflow": {"size": 17, "policy": "drop_old"},
    "concurrency": 5,
    "unique": True,
    "draft_timeout": 1.5,
    "sent_timeout": 2.5,
    "received_timeout": 3.5,
    "max_attempts": 4,
    "max_deliveries": 9,
    "retry_backoff": {"min": 0.5, "max": 8},
    "dead_letter": "somewhere",
    "requeue": "front",
    "default_ttl": 77,
    "max_payload": 1234,
    "history": "headers",
    "history_ttl": 88,
    "receipt_ttl": 99,
    "dedicated": False,  # that one has a test of its own
}


def shown(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as they are described, parts of tables by their whole names."""
    return {
        name if part is None else f"{name}.{part}": held
        for name, value in settings.items()
        for part, held in (value.items() if isinstance(value, dict) else [(None, value)])
    }


def flat(settings: dict[str, Any]) -> dict[str, Any]:
    return shown({name: value for name, value in settings.items() if value is not None})


@with_a_client
async def test_every_setting_can_be_given_changed_and_read_back(
    node: Node, topic: str, broker: Broker
) -> None:
    await node.create_topic(topic, **EVERY_SETTING)
    described = await node.describe(topic)
    assert flat(described.settings) == flat(EVERY_SETTING)
    await node.configure(topic, max_attempts=6, overflow=None, inherit=["blocking"])
    changed = {**EVERY_SETTING, "max_attempts": 6, "overflow": None, "blocking": False}
    assert flat((await node.describe(topic)).settings) == flat(changed)
    await asyncio.to_thread(broker.restart, "worker")
    described = await node.describe(topic)
    assert flat(described.settings) == flat(changed), "and it outlives a restart"
    assert "blocking" not in described.overrides and "overflow" in described.overrides


def test_the_configuration_has_the_defaults(topic: str) -> None:
    with (
        Broker(workers=1, config={"topic": {"max_attempts": 8, "sent_timeout": 9}}) as broker,
        asterism.connect_blocking(broker.address) as node,
    ):
        node.create_topic(topic, sent_timeout=1)
        settings = node.describe(topic).settings
    assert (settings["max_attempts"], settings["sent_timeout"]) == (8, 1)


@with_a_client
async def test_a_changed_setting_holds_for_what_is_there_already(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r")
    await node.publish(topic, b"", expect="processed", max_receivers=1)
    await inbox.receive(WAIT_S)
    await node.configure(topic, sent_timeout=0.01)
    assert (await inbox.receive(WAIT_S)).attempt == 2


# --- a topic as a whole ---------------------------------------------------------------------------


@with_a_client
async def test_topics_are_listed_from_all_workers(node: Node, topic: str) -> None:
    names = [f"{topic}/{number}" for number in range(20)]
    for name in names:
        await node.create_topic(name)
    async with refused("topic_exists"):
        await node.create_topic(names[0])
    assert [name for name in await node.list_topics() if name.startswith(f"{topic}/")] == sorted(
        names
    )


@with_a_client
async def test_what_is_listed_in_pages_is_listed_whole(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r", credit=2_000)
    receipts = await node.publish_many(
        topic, [b""] * 1_100, expect="processed", max_receivers=1, receipt=False
    )
    await inbox.failed(await receive(inbox, 1_100), "no")
    listed = await node.list_parked(topic)
    assert [row.sequence for row in listed] == receipts.sequences
    later = [row async for row in node.list_parked(topic, after=listed[999].position)]
    assert later == listed[1_000:]
    for number in range(1_100):
        await node.create_receiver(topic, f"receiver {number:04}", "nothing")
    named = [row.name for row in await node.list_receivers(topic)]
    assert named == sorted(["r", *(f"receiver {number:04}" for number in range(1_100))])
    await node.delete_topic(topic)


@with_a_client
async def test_a_topic_describes_itself(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r", credit=2)
    await node.subscribe(topic, "nothing")
    await node.publish_many(topic, [b"%d" % n for n in range(5)], expect="processed")
    first, second = await receive(inbox, 2)
    await first.received(confirm=True)
    described = await node.describe(topic)
    names = ("name", "held", "sent", "received", "receivers", "endpoints")
    assert tuple(getattr(described, name) for name in names) == (topic, 5, 1, 1, 2, 2)
    assert described.oldest_waiting is not None and 0 <= described.oldest_waiting < WAIT_S
    assert described.totals["published"] == 5 and described.totals["delivered"] == 2
    assert described.rates["published"] > 0
    receivers = {row.name: row for row in await node.list_receivers(topic)}
    assert receivers["r"].in_flight == 2 and receivers["r"].interests == ("**",)
    await inbox.processed([first, second])


@with_a_client
async def test_a_receiver_tells_its_lag_and_a_topic_what_it_keeps(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, "a", name="r", credit=2)
    await node.create_receiver(topic, "s", "a", "b")
    for subject in ("a", "a", "a", "b"):
        await node.publish(topic, b"x", subject=subject, expect="processed")
    first, second = await receive(inbox, 2)
    rows = {row.name: row for row in await node.list_receivers(topic)}
    assert [(rows[name].lag, rows[name].out) for name in "rs"] == [(3, 2), (4, 0)]
    assert all(row.counted and row.oldest is not None for row in rows.values())
    await inbox.processed([first, second])
    await node.delete_receiver(topic, "s")
    described = await node.describe(topic)
    assert (described.held, described.kept, described.counted) == (4, 2, True)
    assert described.lags["r"].lag == 1
    await node.publish(topic, b"x", subject="a", max_receivers=1, expect="processed")
    assert (await node.describe(topic)).lags["r"].lag == 2


@with_a_client
async def test_clear_drops_every_message_and_keeps_settings_and_receivers(
    node: Node, topic: str
) -> None:
    await node.create_topic(topic, max_attempts=7)
    inbox = await node.subscribe(topic, name="r", credit=1)
    receipts = await node.publish_many(topic, [b"1", b"2"], expect="processed", max_receivers=1)
    await inbox.receive(WAIT_S)
    await node.clear(topic)
    assert {each.verdict for each in await receipts.all_resolved(WAIT_S) if each} == {"dropped"}
    described = await node.describe(topic)
    assert (described.held, described.settings["max_attempts"]) == (0, 7)
    await node.publish(topic, b"3", expect="processed", max_receivers=1)
    assert await take(inbox, 1) == [b"3"]


@with_a_client
async def test_deleting_a_topic_tells_whoever_waits(node: Node, topic: str) -> None:
    await node.create_receiver(topic, "pulled")
    inbox = await node.subscribe(topic, "nothing", name="r")
    receipt = await node.publish(topic, b"", subject="unheard", expect="processed")
    await node.pull(topic, "pulled", 10)
    waiting = [
        asyncio.create_task(inbox.receive(WAIT_S)),
        asyncio.create_task(node.pull(topic, "pulled", 1, WAIT_S)),
        asyncio.create_task(node.order(topic, WAIT_S)),
    ]
    await node.describe(topic)  # meanwhile the three were sent
    await node.delete_topic(topic)
    assert (await receipt.resolved(WAIT_S)).verdict == "dropped"
    for each in waiting:
        async with refused("topic_gone"):
            await each
    async with refused("no_such_topic"):
        await node.describe(topic)
    assert topic not in await node.list_topics()


def test_deleting_a_topic_leaves_nothing_on_disk(broker: Broker, topic: str) -> None:
    name = topic = f"{topic} to be deleted"
    with asterism.connect_blocking(broker.address) as node:
        node.create_receiver(topic, f"receiver of {name}")
        node.publish_many(topic, [f"payload of {name}".encode()] * 3)
        before = rows_with(broker.snapshot(), topic, name)
        node.delete_topic(topic)
    assert len(before) >= 5
    assert rows_with(broker.snapshot(), topic, name) == []
