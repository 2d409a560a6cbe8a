"""Interests, end to end: section 5, with the interest router there and with it killed."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import asterism
from asterism.sdk.aio import Inbox, Node
from asterism.testing import Broker
from asterism.wire import Verb
from tests.process.conftest import (
    WAIT_S,
    Raw,
    is_empty,
    receive,
    take,
    until,
    with_a_client,
    wrong,
)
from tests.support.batches import some

pytestmark = pytest.mark.process

TABLE = {
    "user/*": (["user/a", "user/b"], ["user", "user/a/b"]),
    "user/*/quit": (["user/a/quit", "user/b/quit"], ["user/quit"]),
    "user/**": (["user/a", "user/a/quit", "user/b/helloworld"], ["user"]),
    "a/**/b": (["a/x/b", "a/x/y/b"], ["a/b"]),
    "a/**/*": (["a/b/c", "a/b/c/d"], ["a/b"]),
    "**": (["a", "a/b", "user/a/b/c"], []),
    "**/*/**": (["a/b/c", "a/b/c/d/e"], ["a", "a/b"]),
    "user-*": (["user-*"], ["user-a"]),
    "Straße/*": (["Straße/ü"], ["straße/ü", "STRASSE/ü"]),
    "//a//*/": (["a/b", "/a/b", "a//b/", "//a///b//"], ["a", "a/b/c"]),
}


async def subjects_of(node: Node, inbox: Inbox) -> list[str]:
    await node.describe(inbox.topic)
    return [delivery.subject for delivery in await some(inbox, 1_000, 0)]


@pytest.mark.parametrize("mode", ["online", "durable"])
@with_a_client
async def test_an_interest_matches_what_the_table_says(node: Node, topic: str, mode: str) -> None:
    inboxes = {interest: await node.subscribe(topic, interest, credit=100) for interest in TABLE}
    matching = {interest: set(good) for interest, (good, _) in TABLE.items()}
    subjects = sorted({each for good, bad in TABLE.values() for each in good + bad})
    await node.publish_many(
        topic, [asterism.Message(b"", subject=subject) for subject in subjects], mode=mode
    )
    for interest, inbox in inboxes.items():
        found = await subjects_of(node, inbox)
        assert matching[interest] <= set(found), interest
        assert not set(TABLE[interest][1]) & set(found), interest
        assert len(found) == len(set(found)), "each came once"


@pytest.mark.parametrize("subject", ["", "/", "a/*", "**", "a/**/b"])
def test_a_subject_that_is_none_is_refused(broker: Broker, topic: str, subject: str) -> None:
    with (
        asterism.connect_blocking(broker.address) as node,
        pytest.raises(ValueError, match=r"segment|1 to"),
    ):
        node.publish(topic, b"", subject=subject)
    with Raw(broker.address) as raw:  # the broker says the same as the client
        header = b"\x93\x02\x02\x91" + bytes([0xA0 + len(subject)]) + subject.encode()
        ((code, _),) = raw.ask(Verb.PUBLISH, topic, [[[bytes(16), header, b""]]]).body
        assert code == "bad_subject"


@with_a_client
async def test_a_message_with_several_subjects_reaches_a_receiver_once(
    node: Node, topic: str
) -> None:
    inbox = await node.subscribe(topic, "a/*", "*/b", "c", "**")
    for mode in ("push", "online", "durable"):
        await node.publish(topic, b"", subjects=["a/b", "a/x", "c"], mode=mode)
        await inbox.receive(WAIT_S)
        assert await is_empty(node, inbox)


# --- changed while running ------------------------------------------------------------------------


@with_a_client
async def test_interests_can_be_replaced_while_running(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, "a", name="r")
    await node.publish(topic, b"1", subject="a")
    await node.publish(topic, b"2", subject="b")
    assert [each.payload for each in await receive(inbox, 1)] == [b"1"]
    await inbox.set_interests("b", "c/*")
    assert [each.payload for each in await receive(inbox, 1)] == [b"2"], (
        "it waits for whoever comes"
    )
    await node.publish(topic, b"3", subject="a")
    await node.publish(topic, b"4", subject="c/1")
    assert [each.payload for each in await receive(inbox, 1)] == [b"4"]
    assert await is_empty(node, inbox)
    async with wrong("bad_interest"):
        await inbox.set_interests("")


@with_a_client
async def test_what_is_in_flight_is_neither_lost_nor_repeated(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, "a", name="r")
    receipt = await node.publish(topic, b"", subject="a", expect="processed", max_receivers=1)
    held = await inbox.receive(WAIT_S)
    await inbox.set_interests("b")
    await inbox.set_interests("a")
    assert await is_empty(node, inbox), "it is not repeated"
    await inbox.set_interests("b")
    await held.processed()
    assert (await receipt.resolved(WAIT_S)).verdict == "ok", "it is not lost"


@with_a_client
async def test_a_stream_under_changing_interests_comes_whole_and_once(
    node: Node, topic: str
) -> None:
    """The part of the interests that stays is never missed while the rest changes."""
    inbox = await node.subscribe(topic, "kept/*", name="r")
    payloads = [b"%d" % number for number in range(600)]
    is_over = False

    async def publish() -> None:
        nonlocal is_over
        async with asterism.connect(node.address) as publisher:
            for start in range(0, len(payloads), 20):
                messages = [
                    asterism.Message(payload, subject=f"kept/{start}")
                    for payload in payloads[start : start + 20]
                ]
                await publisher.publish_many(topic, messages, expect="processed")
        is_over = True

    async def change() -> None:
        number = 0
        while not is_over:
            number += 1
            await inbox.set_interests("kept/*", f"passing/{number}", f"kept/{number}/**")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(publish())
        tasks.create_task(change())
        seen = [(each.payload, each.attempt) for each in await receive_all(inbox, len(payloads))]
    assert seen == [(payload, 1) for payload in payloads]
    assert await is_empty(node, inbox)


async def receive_all(inbox: Inbox, count: int) -> list[asterism.Delivery]:
    seen: list[asterism.Delivery] = []
    while len(seen) < count:
        taken = await inbox.batch(100, WAIT_S)
        assert taken, f"only {len(seen)} of {count} came"
        await inbox.processed(taken)
        seen += taken
    return seen


# --- the subscription point -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["online", "durable"])
@with_a_client
async def test_when_subscribe_returns_everything_accepted_afterwards_comes(
    node: Node, topic: str, mode: str
) -> None:
    async with asterism.connect(node.address) as publisher:
        for number in range(20):
            inbox = await node.subscribe(topic, f"n/{number}/*")
            await publisher.publish(topic, b"%d" % number, subject=f"n/{number}/x", mode=mode)
            assert (await inbox.receive(WAIT_S)).payload == b"%d" % number


# --- the interest router --------------------------------------------------------------------------


async def round_trips(node: Node, topic: str, number: int) -> None:
    """New subjects and new interests, with nobody the worker could have asked before."""
    inbox = await node.subscribe(topic, f"{number}/*/x")
    for part in range(5):
        await node.publish(topic, b"%d" % part, subject=f"{number}/{part}/x")
        await node.publish(topic, b"not", subject=f"{number}/{part}/y")
    assert await take(inbox, 5) == [b"%d" % part for part in range(5)]
    assert await is_empty(node, inbox)


@with_a_client
async def test_messages_find_their_receivers_while_the_interest_router_is_killed(
    node: Node, topic: str, broker: Broker
) -> None:
    await round_trips(node, topic, 0)
    restarting = asyncio.create_task(asyncio.to_thread(broker.restart, "interests"))
    number = 0
    while not restarting.done() or number == 0:
        number += 1
        await round_trips(node, topic, number)
    await restarting
    await round_trips(node, topic, number + 1)
    await until(answers_again(node), "the new one to be known")


def answers_again(node: Node) -> Callable[[], Awaitable[bool]]:
    async def is_so() -> bool:
        return (await node.query_status())["interests"] is not None

    return is_so
