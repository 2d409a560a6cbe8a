"""The clients as users meet them: reports, ends of inboxes, lists, results, in both alike."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import asterism
from asterism import Node
from asterism.testing import Broker

pytestmark = pytest.mark.process
WAIT_S = 30.0


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    return f"surface-{abs(hash(request.node.nodeid))}"


def run(broker: Broker, scenario: Callable[[Node], Awaitable[None]]) -> None:
    async def begin() -> None:
        async with asterism.connect(broker.address, name="surface") as node:
            await scenario(node)

    asyncio.run(begin())


# --- reports --------------------------------------------------------------------------------------

WORK: dict[str, Any] = {"expect": "processed", "max_receivers": 1}


def test_ack_and_nack_are_processed_and_failed(broker: Broker, topic: str) -> None:
    async def scenario(node: Node) -> None:
        inbox = await node.subscribe(topic, name="r")
        receipts = await node.publish_many(topic, [b"1", b"2"], **WORK)
        await (await inbox.receive(WAIT_S)).ack()
        await (await inbox.receive(WAIT_S)).nack("no stock", confirm=True)
        outcomes = await receipts.all_resolved(WAIT_S)
        assert [outcome.verdict for outcome in outcomes if outcome] == ["ok", "failed"]
        assert [(await node.query("list_parked", topic, 0))["parked"][0]["reason"]] == ["no stock"]

    run(broker, scenario)


def test_ack_and_nack_of_the_blocking_client_are_the_same(broker: Broker, topic: str) -> None:
    with asterism.connect_blocking(broker.address) as node:
        inbox = node.subscribe(topic, name="r")
        receipts = node.publish_many(topic, [b"1", b"2"], **WORK)
        inbox.receive(WAIT_S).ack(confirm=True)
        inbox.receive(WAIT_S).nack("no stock")
        outcomes = receipts.all_resolved(WAIT_S)
        assert [outcome.verdict for outcome in outcomes if outcome] == ["ok", "failed"]


def test_nack_is_final_unless_another_attempt_is_allowed(broker: Broker, topic: str) -> None:
    with asterism.connect_blocking(broker.address) as node:
        node.create_topic(topic, max_attempts=2)
        inbox = node.subscribe(topic, name="r")
        receipt = node.publish(topic, b"1", **WORK)
        inbox.receive(WAIT_S).nack()
        again = inbox.receive(WAIT_S)
        assert again.attempt == 2
        again.nack()
        assert receipt.resolved(WAIT_S).verdict == "failed"


def test_what_is_given_back_comes_again_and_has_not_failed(broker: Broker, topic: str) -> None:
    async def scenario(node: Node) -> None:
        inbox = await node.subscribe(topic, name="r", credit=1)
        receipt = await node.publish(topic, b"1", **WORK)
        delivery = await inbox.receive(WAIT_S)
        await delivery.give_back()
        assert delivery.is_finished
        await delivery.failed("too late")  # says nothing any more
        again = await inbox.receive(WAIT_S)
        assert (again.sequence, again.attempt) == (delivery.sequence, 2)
        await again.ack()
        assert (await receipt.resolved(WAIT_S)).verdict == "ok"

    run(broker, scenario)
    with asterism.connect_blocking(broker.address) as node:
        inbox = node.subscribe(topic, name="r", credit=1)
        receipt = node.publish(topic, b"2", **WORK)
        inbox.receive(WAIT_S).give_back()
        again = inbox.receive(WAIT_S)
        assert (again.payload, again.attempt) == (b"2", 2)
        again.ack()
        assert receipt.resolved(WAIT_S).verdict == "ok"


# --- pulls ----------------------------------------------------------------------------------------


def test_a_pull_by_other_interests_than_the_receiver_has_is_refused(
    broker: Broker, topic: str
) -> None:
    async def scenario(node: Node) -> None:
        assert await node.pull(topic, "r", interests=["a", "b"]) == []
        await node.publish_many(topic, [b"1"], subject="a", expect="processed")
        with pytest.raises(asterism.WrongState, match=r"'r' of .* is interested in a, b"):
            await node.pull(topic, "r", interests=["c"])
        (delivery,) = await node.pull(topic, "r", wait=WAIT_S, interests=["b", "a"])
        await delivery.ack(confirm=True)

    run(broker, scenario)
    with asterism.connect_blocking(broker.address) as node:  # which has pulled nothing yet
        with pytest.raises(asterism.WrongState, match="is interested in"):
            node.pull(topic, "r", interests=["c"])
        assert node.pull(topic, "r", interests=["a", "b"]) == []
        assert next(node.list_receivers(topic)).interests == ("a", "b")


# --- ends of inboxes ------------------------------------------------------------------------------


def test_receive_and_batch_say_alike_that_time_is_over(broker: Broker, topic: str) -> None:
    async def scenario(node: Node) -> None:
        inbox = await node.subscribe(topic)
        for ask in (inbox.receive(0.01), inbox.batch(10, 0.01)):
            with pytest.raises(TimeoutError, match=r"no delivery within 0\.01 s"):
                await ask

    run(broker, scenario)
    with asterism.connect_blocking(broker.address) as node:
        inbox = node.subscribe(topic)
        for ask in (lambda: inbox.receive(0.01), lambda: inbox.batch(10, 0.01)):
            with pytest.raises(TimeoutError, match=r"no delivery within 0\.01 s"):
                ask()


def test_receive_and_batch_say_alike_that_the_inbox_is_closed(broker: Broker, topic: str) -> None:
    async def scenario(node: Node) -> None:
        inbox = await node.subscribe(topic)
        waiting = [asyncio.create_task(ask) for ask in (inbox.receive(None), inbox.batch(9, None))]
        await asyncio.sleep(0)
        assert not inbox.is_closed
        await inbox.close()
        assert inbox.is_closed
        for ask in (*waiting, inbox.receive(), inbox.batch()):
            with pytest.raises(asterism.ClosedError, match="this inbox is closed"):
                await ask
        assert [delivery async for delivery in inbox] == []

    run(broker, scenario)
    with asterism.connect_blocking(broker.address) as node:
        inbox = node.subscribe(topic)
        inbox.close()
        for ask in (inbox.receive, inbox.batch):
            with pytest.raises(asterism.ClosedError, match="this inbox is closed"):
                ask()
        assert list(inbox) == []
