"""The asyncio client against a real broker: every verb, and what it does when processes die."""

import asyncio
import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import asterism
from asterism.message import Header, Mode, Status
from asterism.sdk.aio import Delivery, Inbox, Node
from asterism.sdk.connection import Receipt
from asterism.sdk.link import Link
from asterism.testing import Broker
from tests.support.batches import some

pytestmark = pytest.mark.process
WAIT_S = 20
PRODUCER = bytes(range(16))
_names = itertools.count(1)

Scenario = Callable[[Node, str], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_names)}"


def test_a_connection_that_is_cut_as_it_is_made_is_made_anew(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = iter(range(3))
    read = Link._read_monitor

    def cut(link: Link, on_lost: Callable[[], None]) -> None:
        if next(cuts, None) is None:
            read(link, on_lost)
        else:
            on_lost()

    monkeypatch.setattr(Link, "_read_monitor", cut)
    failures: list[dict[str, Any]] = []

    async def play() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
        async with asterism.connect(broker.address, name="cut", timeout=WAIT_S) as node:
            await node.publish(f"topic-{next(_names)}", b"x")

    asyncio.run(play())
    assert not failures


def test_passing_through_comes_behind_what_waits_in_the_client(broker: Broker, topic: str) -> None:
    """More frames than may be unanswered: the rest is sent as answers come."""

    def forward(node: Node, topic: str, count: int) -> Receipt:
        header = Header(Mode.ONLINE, Status.SENT, ("a",))
        receipt = Receipt(node, topic, header, count, b"")
        assert node.forward(receipt, [(header.encoded, b"x")] * count, 20 * count)
        return receipt

    async def scenario(node: Node, topic: str) -> None:
        await node.create_topic(topic)
        for worker in range(len(broker.pids()["worker"])):
            broker.kill("worker", worker, signal.SIGSTOP)
        receipts = []
        try:
            while not node._session.has_unsent(topic):
                receipts.append(forward(node, topic, 1))
                node._flush()
            receipts += [forward(node, topic, 1_000) for _ in range(10)]
            passing = asyncio.create_task(node.pass_through(topic))
            await asyncio.sleep(0.01)
        finally:
            for worker in range(len(broker.pids()["worker"])):
                broker.kill("worker", worker, signal.SIGCONT)
        await passing
        assert all(receipt.accepted_count == receipt.count for receipt in receipts)

    run(broker, topic, scenario)


def run(broker: Broker, topic: str, scenario: Scenario, **options: Any) -> None:
    """Plays a scenario with a client of its own."""

    async def play() -> None:
        async with (
            asyncio.timeout(3 * WAIT_S),
            asterism.connect(broker.address, name="test", **options) as node,
        ):
            await scenario(node, topic)

    asyncio.run(play())


async def until(is_so: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not await is_so():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        await asyncio.sleep(0.01)


async def take(inbox: Inbox, count: int) -> list[Delivery]:
    """So many deliveries, each of them processed."""
    taken: list[Delivery] = []
    while len(taken) < count:
        more = await inbox.batch(count - len(taken), WAIT_S)
        assert more, f"only {len(taken)} of {count} came"
        await inbox.processed(more)
        taken += more
    return taken


async def none_comes(inbox: Inbox) -> bool:
    return await some(inbox, 1, 0.2) == []


# --- the surface ----------------------------------------------------------------------------------


def test_the_surface_works_as_it_is_written_down(broker: Broker) -> None:
    async def play() -> None:
        async with asterism.connect(broker.address, name="billing") as node:
            await node.create_topic("orders", overflow=asterism.DropOld(10_000))
            inbox = await node.subscribe("orders", "order/*/paid", name="billing", credit=256)
            receipt = await node.publish(
                "orders",
                b"...",
                subject="order/17/paid",
                mode="durable",
                expect="processed",
                max_receivers=1,
            )
            seen = []
            async for delivery in inbox:
                async with delivery:
                    seen.append((delivery.subjects, delivery.payload, delivery.attempt))
                break
            outcome = await receipt.resolved(timeout=5)
            assert seen == [(("order/17/paid",), b"...", 1)]
            assert (outcome.verdict, outcome.statuses) == ("ok", {"billing": "processed"})

    asyncio.run(play())


def test_a_message_carries_what_its_publisher_said_of_it(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        inbox = await node.subscribe(topic, "a/*", "b")
        receipt = await node.publish(
            topic,
            bytearray(b"payload"),
            subjects=["a/1", "b"],
            attributes={"content-type": "text/plain"},
            expect="received",
            priority=3,
            ordering_key="k",
        )
        delivery = await inbox.receive(WAIT_S)
        assert delivery.subjects == ("a/1", "b") and delivery.subject == "a/1"
        assert delivery.attributes == {"content-type": "text/plain"}
        assert (delivery.payload, delivery.id) == (b"payload", receipt.id)
        assert (delivery.sequence, delivery.topic) == (receipt.sequence, topic)
        assert (delivery.mode, delivery.expect) == ("durable", "received")
        assert delivery.receiver == inbox.receiver
        await delivery.received(confirm=True)
        assert delivery.is_finished
        assert await none_comes(inbox), "two of its subjects match, and it comes once"

    run(broker, topic, scenario)


def test_what_the_broker_refuses_is_raised_with_its_code(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        with pytest.raises(asterism.PeerError) as refused:
            await node.publish(topic, b"x", mode="push")
        assert refused.value.code == "no_receiver"
        with pytest.raises(asterism.PeerError) as missing:
            await node.describe("there is none")
        assert missing.value.code == "no_such_topic"
        await node.create_topic(topic + "-new")
        await node.create_topic(topic + "-new", exist_ok=True)
        with pytest.raises(asterism.PeerError) as exists:
            await node.create_topic(topic + "-new")
        assert exists.value.code == "topic_exists"
        with pytest.raises(ValueError, match="interest"):
            await node.subscribe(topic, "")
        with pytest.raises(RuntimeError, match="no receipt was asked for"):
            await (await node.publish(topic, b"x")).resolved()

    run(broker, topic, scenario)


def test_a_client_that_is_closed_says_so(broker: Broker) -> None:
    async def play() -> None:
        node = await asterism.connect(broker.address)
        inbox = await node.subscribe("closing")
        waiting = asyncio.create_task(inbox.receive(WAIT_S))
        await asyncio.sleep(0)
        await node.close()
        with pytest.raises(asterism.ClosedError):
            await waiting
        with pytest.raises(asterism.ClosedError, match="closed"):
            await node.publish("closing", b"x")
        with pytest.raises(asterism.ClosedError):
            await anext(inbox)
        await node.close()

    asyncio.run(play())


def test_without_a_broker_connecting_fails_in_time() -> None:
    async def play() -> None:
        with pytest.raises(ConnectionError, match=r"no broker answered at tcp://127\.0\.0\.1:1"):
            await asterism.connect("tcp://127.0.0.1:1", timeout=0.2)
        with pytest.raises(ValueError, match="address must be like tcp:"):
            await asterism.connect("nonsense")

    asyncio.run(play())


# --- publishing -----------------------------------------------------------------------------------


def test_many_are_published_at_once_and_each_has_its_outcome(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        inbox = await node.subscribe(topic, name="all", credit=1_000)
        payloads = [b"%d" % number for number in range(5_000)]
        receipt = await node.publish_many(topic, payloads, expect="processed", max_receivers=1)
        assert len(receipt) == 5_000 and receipt.sequences == sorted(receipt.sequences)
        taken = await take(inbox, 5_000)
        assert [delivery.payload for delivery in taken] == payloads
        outcomes = await receipt.all_resolved(WAIT_S)
        assert {outcome.verdict for outcome in outcomes if outcome} == {"ok"}
        assert (await receipt[-1].resolved(WAIT_S)).statuses == {"all": "processed"}
        assert receipt[17].sequence == receipt.sequences[17]

    run(broker, topic, scenario)


def test_of_many_messages_some_may_differ_and_some_may_be_refused(
    broker: Broker, topic: str
) -> None:
    async def scenario(node: Node, topic: str) -> None:
        await node.create_topic(topic, overflow=asterism.RejectNew(2))
        other = asterism.Message(b"2", subject="other")
        messages: list[bytes | asterism.Message] = [b"1", other, b"3"]
        with pytest.raises(asterism.PeerError) as refused:
            await node.publish_many(topic, messages, subject="common")
        assert refused.value.code == "overflow"
        receipt = refused.value.receipt
        assert len(receipt.sequences) == 2
        assert [(position, error.code) for position, error in receipt.refused] == [(2, "overflow")]
        inbox = await node.subscribe(topic)
        taken = await take(inbox, 2)
        assert [delivery.subject for delivery in taken] == ["common", "other"]

    run(broker, topic, scenario)


def test_more_than_a_window_holds_may_be_published_at_once(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        payloads = [b"%d" % number for number in range(1_000)]
        receipt = await node.publish_many(topic, payloads, timeout=WAIT_S)
        assert len(receipt.sequences) == 1_000

    run(broker, topic, scenario, window_messages=64)


def test_a_number_of_more_than_64_bits_is_refused(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        with pytest.raises(ValueError, match="priority must be from 0 to"):
            await node.publish(topic, b"", priority=2**64)
        with pytest.raises(ValueError, match="sequence must be from 0 to"):
            await node.fetch(topic, 2**70)

    run(broker, topic, scenario)


def test_a_loop_that_only_sends_is_held_back(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        inbox = await node.subscribe(topic, name="all", credit=10_000)
        most = 0
        receipts = []
        for number in range(2_000):
            receipts.append(await node.send(topic, b"%d" % number))
            most = max(most, node._session.window.messages)
        assert most <= 64
        for receipt in receipts:
            await receipt.accepted()
        taken = await take(inbox, 2_000)
        assert [delivery.payload for delivery in taken] == [b"%d" % n for n in range(2_000)]

    run(broker, topic, scenario, window_messages=64)


def test_tasks_that_publish_at_the_same_time_share_frames(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        before = node._session._next_request
        receipts = await asyncio.gather(*(node.publish(topic, b"x") for _ in range(300)))
        assert len({receipt.sequence for receipt in receipts}) == 300
        assert node._session._next_request - before <= 3

    run(broker, topic, scenario)


def test_priority_and_delay_decide_the_order(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        later = datetime.now(UTC) + timedelta(seconds=0.4)
        common: dict[str, Any] = {"max_receivers": 1, "receipt": False}
        await node.publish(topic, b"late", deliver_at=later, **common)
        await node.publish(topic, b"none", **common)
        await node.publish(topic, b"second", priority=5, **common)
        await node.publish(topic, b"first", priority=0, **common)
        inbox = await node.subscribe(topic)
        taken = await take(inbox, 4)
        assert [delivery.payload for delivery in taken] == [b"first", b"second", b"none", b"late"]

    run(broker, topic, scenario)


def test_a_message_that_nobody_wants_expires(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        receipt = await node.publish(topic, b"x", ttl=0.1, receipt=True)
        assert (await receipt.resolved(WAIT_S)).verdict == "expired"

    run(broker, topic, scenario)


# --- receiving ------------------------------------------------------------------------------------


def test_an_exception_fails_a_delivery_and_it_can_be_renewed(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        inbox = await node.subscribe(topic, name="me")
        receipt = await node.publish(topic, b"x", expect="processed", max_receivers=1)
        with pytest.raises(KeyError):
            async with await inbox.receive(WAIT_S):
                raise KeyError("no such customer")
        outcome = await receipt.resolved(WAIT_S)
        assert (outcome.verdict, outcome.statuses) == ("failed", {"me": "failed"})
        (parked,) = await node.list_parked(topic)
        assert (parked.sequence, parked.receiver) == (receipt.sequence, "me")
        assert parked.reason == "KeyError: 'no such customer'"
        await node.renew(topic, receipt.sequence)
        delivery = await inbox.receive(WAIT_S)
        await delivery.failed("again", confirm=True)
        await node.renew_all(topic)
        await (await inbox.receive(WAIT_S)).failed("and again", confirm=True)
        await node.abandon(topic, receipt.sequence)
        assert await node.list_parked(topic) == []
        await node.abandon_all(topic)

    run(broker, topic, scenario)


def test_a_delivery_that_is_given_up_comes_again(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        inbox = await node.subscribe(topic, name="me", received_timeout=60)
        await node.publish(topic, b"x", expect="processed", max_receivers=1)
        first = await inbox.receive(WAIT_S)
        await first.extend(30)
        await first.extend(0)
        second = await inbox.receive(WAIT_S)
        assert (second.sequence, second.attempt) == (first.sequence, 2)
        await second.processed(confirm=True)
        await second.failed("too late to say")
        assert await node.list_parked(topic) == []

    run(broker, topic, scenario)


def test_a_task_that_is_cancelled_gives_its_delivery_up(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        inbox = await node.subscribe(topic, name="me")
        await node.publish(topic, b"x", expect="processed", max_receivers=1)
        entered = asyncio.Event()

        async def work() -> None:
            async with await inbox.receive(WAIT_S):
                entered.set()
                await asyncio.sleep(WAIT_S)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        assert (await inbox.receive(WAIT_S)).attempt == 2

    run(broker, topic, scenario)


@pytest.mark.parametrize("expect", ["sent", "processed"])
def test_no_more_is_sent_than_there_is_credit_for(broker: Broker, topic: str, expect: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        inbox = await node.subscribe(topic, name="me", credit=10)
        wishes: dict[str, Any] = {"expect": expect, "max_receivers": 1, "receipt": False}
        await node.publish_many(topic, [b"%d" % number for number in range(100)], **wishes)

        async def has_arrived() -> bool:
            return len(inbox._subscription.buffer) == 10

        await until(has_arrived, "ten deliveries")
        assert (await node.describe(topic)).totals["delivered"] == 10
        taken = await take(inbox, 100)
        assert [delivery.payload for delivery in taken] == [b"%d" % n for n in range(100)]
        assert len(inbox._subscription.buffer) == 0

    run(broker, topic, scenario)


def test_interests_can_be_replaced_and_an_inbox_left(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        inbox = await node.subscribe(topic, "a")
        await inbox.set_interests("b")
        for subject in ("a", "b"):
            await node.publish(topic, subject.encode(), subject=subject, mode="online")
        assert (await inbox.receive(WAIT_S)).payload == b"b"
        await inbox.close()
        await node.publish(topic, b"b", subject="b", mode="online")
        assert [delivery async for delivery in inbox] == []
        assert await node.list_receivers(topic) == []

    run(broker, topic, scenario)


def test_a_group_shares_its_messages(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        inboxes = [await node.subscribe(topic, group="g", credit=50) for _ in range(2)]
        await node.publish_many(topic, [b"x"] * 100, expect="processed")
        counts = [len(await take(inbox, 50)) for inbox in inboxes]
        assert counts == [50, 50]
        assert await none_comes(inboxes[0]) and await none_comes(inboxes[1])

    run(broker, topic, scenario)


def test_deleting_a_topic_ends_its_inboxes(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        inbox = await node.subscribe(topic)
        await node.delete_topic(topic)
        with pytest.raises(asterism.PeerError) as gone:
            await inbox.receive(WAIT_S)
        assert gone.value.code == "topic_gone"
        receipts = [await node.publish(topic, b"%d" % number) for number in range(3)]
        assert len({receipt.sequence for receipt in receipts}) == 3

    run(broker, topic, scenario)


def test_publishing_goes_on_after_its_topic_was_deleted(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        await node.publish_many(topic, [b"old"] * 3)
        await node.delete_topic(topic)
        await node.publish_many(topic, [b"new"] * 2)
        inbox = await node.subscribe(topic)
        assert [delivery.payload for delivery in await take(inbox, 2)] == [b"new"] * 2

    run(broker, topic, scenario)


# --- pulling, asking, the work queue --------------------------------------------------------------


def test_a_receiver_can_be_pulled_from(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        with pytest.raises(asterism.PeerError, match="no_such_receiver"):
            await node.create_topic(topic)
            await node.pull(topic, "me")
        await node.create_receiver(topic, "me", "a")
        await node.publish_many(topic, [b"1", b"2", b"3"], subject="a", expect="processed")
        first = await node.pull(topic, "me", 2)
        second = await node.pull(topic, "me", 2)
        assert [each.payload for each in first + second] == [b"1", b"2", b"3"]
        for delivery in first + second:
            await delivery.processed(confirm=True)
        assert await node.pull(topic, "me", 2, wait=0.1) == []
        (row,) = await node.list_receivers(topic)
        assert row.interests == ("a",), "pulling changes nothing about the receiver"

    run(broker, topic, scenario)


def test_of_a_receiver_that_was_deleted_a_pull_leaves_nothing_behind(
    broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(node: Node, topic: str) -> None:
        for number in range(3):
            await node.pull(topic, f"r{number}", interests=["a"])
            await node.delete_receiver(topic, f"r{number}")
        await node.stats(topic)  # behind which all has been heard
        assert not node._pulls and not node._inboxes
        with pytest.raises(asterism.PeerError, match="no_such_receiver"):
            await node.pull(topic, "r0")

    run(broker, topic, scenario)
    assert not caplog.records, "nobody was pulling, so that there is nothing to warn of"


def test_a_pull_waits_and_one_that_is_cancelled_takes_nothing_along(
    broker: Broker, topic: str
) -> None:
    async def scenario(node: Node, topic: str) -> None:
        await node.create_receiver(topic, "me")
        pull = asyncio.create_task(node.pull(topic, "me", 1, wait=WAIT_S))
        await node.publish(topic, b"1", expect="processed")
        (delivery,) = await pull
        await delivery.processed(confirm=True)
        for _ in range(3):
            cancelled = asyncio.create_task(node.pull(topic, "me", 1, wait=WAIT_S))
            await asyncio.sleep(0.02)
            cancelled.cancel()
        await node.publish(topic, b"2", expect="processed")
        (delivery,) = await node.pull(topic, "me", 1, wait=WAIT_S)
        assert delivery.payload == b"2"

    run(broker, topic, scenario)


def test_a_pull_leaves_nothing_behind_for_receivers_that_there_are_not(
    broker: Broker, topic: str
) -> None:
    async def scenario(node: Node, topic: str) -> None:
        await node.create_topic(topic)
        for number in range(3):
            with pytest.raises(asterism.PeerError, match="no_such_receiver"):
                await node.pull(topic, f"nobody-{number}")
        assert node._pulls == {}
        assert await node.pull(topic, "r", interests=["**"]) == []
        assert list(node._pulls) == [(topic, "r")]
        await node.delete_receiver(topic, "r")
        with pytest.raises(asterism.PeerError, match="no_such_receiver"):
            await node.pull(topic, "r")
        assert node._pulls == {}
        await node.pull(topic, "r", interests=["**"])
        await node.delete_topic(topic)
        assert await node.pull(topic, "r", interests=["**"]) == []  # by another than before

    run(broker, topic, scenario)


# --- once -----------------------------------------------------------------------------------------


def test_what_is_published_once_is_stored_once_whoever_says_it(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        messages = [asterism.Message(b"1"), asterism.Message(b"2", mode="push")]
        first = await node.publish_once(topic, PRODUCER, messages)
        assert (first[0].number, first[0].result, first[1].number) == (1, 1, 2)
        assert isinstance(first[1].result, asterism.PeerError)
        async with asterism.connect(broker.address) as other:
            again = await other.publish_once(topic, PRODUCER, messages)
        assert [(each.id, str(each.result)) for each in again] == [
            (each.id, str(each.result)) for each in first
        ]
        assert (await node.describe(topic)).held == 1
        assert (await node.fetch(topic, 1)).id == first[0].id
        with pytest.raises(asterism.PeerError, match="too_large"):
            await node.publish_once(topic, bytes(16), [asterism.Message(bytes(1 << 26))])

    run(broker, topic, scenario)


@pytest.mark.parametrize("kind", ["worker", "frontend"])
def test_what_is_published_once_is_stored_once_though_a_process_is_killed(
    broker: Broker, topic: str, kind: str
) -> None:
    async def scenario(node: Node, topic: str) -> None:
        message = [asterism.Message(b"1")]
        for number in range(5):
            producer = bytes(15) + bytes((number,))
            await node.publish_once(topic, producer, message)
            broker.kill(kind)
            await asyncio.gather(
                *(node.publish_once(topic, producer, message, timeout=WAIT_S) for _ in range(3))
            )
            await asyncio.to_thread(broker.wait_ready)
        assert (await node.describe(topic)).held == 5

    run(broker, topic, scenario)


def test_several_clients_may_wait_for_the_same_outcome(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        wishes: dict[str, Any] = {"expect": "processed", "max_receivers": 1}
        (published,) = await node.publish_once(
            topic, PRODUCER, [asterism.Message(b"1", **wishes, receipt=True)]
        )
        assert isinstance(published.result, int)
        asked = {1: published.result}
        assert (await node.outcomes(topic, PRODUCER, asked))[1].verdict == "pending"
        assert (await node.outcomes(topic, PRODUCER, {9: 9}))[9].verdict == "unknown"
        async with asterism.connect(broker.address) as other:
            clients = (node, other, node)
            waiting = [
                asyncio.create_task(each.outcomes(topic, PRODUCER, asked, WAIT_S))
                for each in clients
            ]
            inbox = await node.subscribe(topic, name="r")
            assert not any(task.done() for task in waiting)
            await take(inbox, 1)
            began = time.monotonic()
            for found in await asyncio.gather(*waiting):
                assert found == {1: asterism.Outcome("ok", {"r": "processed"})}
            assert time.monotonic() - began < WAIT_S / 2  # none of them waits to its end
            assert node._overhearing == other._overhearing == {}

    run(broker, topic, scenario)


def test_what_was_cancelled_is_given_back_before_a_client_has_closed(
    broker: Broker, topic: str
) -> None:
    async def scenario(node: Node, topic: str) -> None:
        async with asterism.connect(broker.address) as leaving:
            ordered = asyncio.create_task(leaving.order(topic, None, timeout=None))
            while not leaving._answers:
                await asyncio.sleep(0)
            (asked,) = leaving._answers.values()
            asked.add_done_callback(lambda _: ordered.cancel())  # in the moment that it is told
            await node.publish(topic, b"1", max_receivers=1)
            with pytest.raises(asyncio.CancelledError):
                await ordered
        assert (await node.stats(topic)).ordered == 0
        assert await node.order(topic) == 1

    run(broker, topic, scenario)


def test_a_request_is_answered(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        inbox = await node.subscribe(topic, "double")

        async def serve() -> None:
            async for delivery in inbox:
                async with delivery:
                    await delivery.reply(delivery.payload * 2)

        server = asyncio.create_task(serve())
        answers = await asyncio.gather(
            *(node.request(topic, b"%d" % n, subject="double", timeout=WAIT_S) for n in range(20))
        )
        assert [answer.payload for answer in answers] == [b"%d" % n * 2 for n in range(20)]
        server.cancel()
        with pytest.raises(asterism.PeerError, match="no_receiver"):
            await node.request(topic, b"x", subject="nobody")
        with pytest.raises(TimeoutError):
            await node.request(topic, b"x", subject="double", timeout=0.2)

    run(broker, topic, scenario)


def test_the_work_queue_has_its_verbs(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        first, second = await node.draft(topic), await node.draft(topic, priority=0)
        await node.set(topic, first, b"1", {"a": "b"})
        await node.set(topic, second, b"2")
        assert (await node.stats(topic)).waiting == 2
        assert await node.order(topic) == second
        assert (await node.fetch(topic, second)).payload == b"2"
        await node.complete(topic, second)
        assert await node.order(topic, wait=1) == first
        assert (await node.fetch(topic, first)).attributes == {"a": "b"}
        await node.fail(topic, first, "why")
        assert await node.order(topic, wait=0.05) is None
        stats = await node.stats(topic)
        assert (stats.completed, stats.failed) == (1, 1)

    run(broker, topic, scenario)


# --- topics, receivers, processes -----------------------------------------------------------------


def test_topics_are_made_changed_described_listed_cleared(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        backoff = asterism.Backoff(min=0.1, max=2)
        await node.create_topic(topic, retry_backoff=backoff, sent_timeout=2.5)
        await node.configure(topic, max_attempts=3, inherit=["sent_timeout"])
        await node.publish_many(topic, [b"x"] * 3)
        described = await node.describe(topic)
        assert described.settings["retry_backoff"] == {"min": 0.1, "max": 2}
        assert described.settings["max_attempts"] == 3
        assert described.settings["sent_timeout"] == 60
        assert described.waiting == 3
        await node.clear(topic)
        assert (await node.describe(topic)).waiting == 0
        assert topic in await node.list_topics()
        await node.delete_topic(topic)
        assert topic not in await node.list_topics()

    run(broker, topic, scenario)


def test_a_receiver_is_moved_and_deleted(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        inbox = await node.subscribe(topic, name="me")
        receipt = await node.publish_many(topic, [b"1", b"2", b"3"], expect="processed")
        await take(inbox, 3)
        await node.describe(topic)
        assert await node.seek(topic, "me", sequence=receipt.sequences[1]) == receipt.sequences[1]
        assert [delivery.payload for delivery in await take(inbox, 2)] == [b"2", b"3"]
        await node.seek(topic, "me", time=0)
        assert len(await take(inbox, 3)) == 3
        await node.seek(topic, "me")
        await node.delete_receiver(topic, "me")
        with pytest.raises(asterism.PeerError, match="no_such_receiver"):
            await inbox.receive(WAIT_S)

    run(broker, topic, scenario)


def test_every_process_says_how_it_is(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        status = await node.query_status()
        pids = broker.pids()
        assert status["frontend"]["pid"] == pids["frontend"][0]
        assert status["interests"]["pid"] == pids["interests"][0]
        assert sorted(worker["pid"] for worker in status["workers"]) == sorted(pids["worker"])

    run(broker, topic, scenario)


# --- what dies comes back -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["frontend", "worker", "interests"])
def test_a_killed_process_costs_nothing(broker: Broker, topic: str, kind: str) -> None:
    """Published once, in order, whatever was killed meanwhile; duplicates only of what was out."""

    async def scenario(node: Node, topic: str) -> None:
        inbox = await node.subscribe(topic, name="me", credit=100)
        first: dict[int, bytes] = {}
        seen: Counter[int] = Counter()

        async def consume() -> None:
            while len(first) < 3_000:
                batch = await inbox.batch(50, WAIT_S)
                assert batch, f"{len(first)} of 3,000 came"
                for delivery in batch:
                    first.setdefault(delivery.sequence, delivery.payload)
                    seen[delivery.sequence] += 1
                await inbox.processed(batch)

        consumer = asyncio.create_task(consume())
        receipts = []
        for number in range(300):
            payloads = [b"%d" % (number * 10 + n) for n in range(10)]
            wishes: dict[str, Any] = {"expect": "processed", "max_receivers": 1}
            receipts.append(await node.send_many(topic, payloads, **wishes))
            if number in (100, 200):
                await asyncio.to_thread(broker.kill, kind)
            await asyncio.sleep(0.002)
        for receipt in receipts:
            await receipt.accepted(WAIT_S)
        await consumer
        sequences = [sequence for receipt in receipts for sequence in receipt.sequences]
        assert sequences == sorted(set(sequences)) and len(sequences) == 3_000
        assert [first[sequence] for sequence in sequences] == [b"%d" % n for n in range(3_000)]
        assert set(first) == set(sequences), "nothing was stored twice"
        assert sum(seen.values()) <= 3_000 + 400, "only what was out may come twice"
        for receipt in receipts:
            outcomes = await receipt.all_resolved(WAIT_S)
            assert {outcome.verdict for outcome in outcomes if outcome} == {"ok"}
        assert (await node.describe(topic)).held == 0

    run(broker, topic, scenario)
    broker.wait_ready()


def test_a_worker_that_is_stopped_holds_publishers_back(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        await node.create_topic(topic)
        broker.kill("worker", number=signal.SIGSTOP)
        try:
            sent = 0
            with pytest.raises(TimeoutError, match="no room"):
                while sent < 10_000:
                    await node.send(topic, b"x" * 100, timeout=0.3)
                    sent += 1
            assert sent == 500
        finally:
            broker.kill("worker", number=signal.SIGCONT)
        await node.publish(topic, b"y", timeout=WAIT_S)
        assert (await node.describe(topic)).totals["published"] == 501

    run(broker, topic, scenario, window_messages=500)


def test_a_consumer_whose_loop_was_blocked_does_not_do_what_others_have_done(
    broker: Broker,
) -> None:
    payloads = {b"%d" % number for number in range(6)}

    def do_all() -> None:
        done: set[bytes] = set()
        with asterism.connect_blocking(broker.address) as node:
            inbox = node.subscribe("blocked", group="g", sent_timeout=0.5)
            while done < payloads:
                delivery = inbox.receive(20)
                delivery.processed(confirm=True)
                done.add(delivery.payload)

    async def play() -> None:
        async with asterism.connect(broker.address) as node:
            inbox = await node.subscribe("blocked", group="g", sent_timeout=0.5, credit=6)
            await node.publish_many("blocked", list(payloads), expect="processed")
            first = await inbox.receive(20)
            while len(inbox._subscription.buffer) < 5:
                await asyncio.sleep(0.005)
            other = threading.Thread(target=do_all)
            other.start()
            other.join(30)  # it holds up the loop until the other has done all
            assert not other.is_alive()
            with pytest.raises(TimeoutError):
                await inbox.receive(1)
            assert first.lost

    asyncio.run(play())


def test_a_pull_that_waits_can_be_ended_and_loses_nothing(broker: Broker, topic: str) -> None:
    async def scenario(node: Node, topic: str) -> None:
        await node.create_receiver(topic, "me")
        inbox = await node.subscribe(topic, group="me", credit=0)
        await inbox.end_pull()  # there is none
        for number in range(20):
            pull = asyncio.create_task(inbox.pull(1, wait=WAIT_S))
            await asyncio.sleep(0)
            ending = asyncio.create_task(inbox.end_pull())
            await node.publish(topic, b"%d" % number, expect="processed")
            await ending
            got = await pull or await inbox.pull(1, wait=WAIT_S)
            assert [(one.payload, one.attempt) for one in got] == [(b"%d" % number, 1)]
            await got[0].processed(confirm=True)

    run(broker, topic, scenario)
