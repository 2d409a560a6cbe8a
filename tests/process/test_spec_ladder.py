"""The ladder, end to end: every rule of section 2 through real processes and the real client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import asterism
from asterism import limits
from asterism.message import Status
from asterism.sdk.aio import Inbox, Node
from asterism.testing import Broker
from asterism.wire import Verb
from tests.process.conftest import (
    WAIT_S,
    WORKERS,
    Raw,
    counts,
    is_empty,
    message,
    new_topic,
    receive,
    refused,
    take,
    until,
    with_a_client,
    worker_of_topic,
)
from tests.support.batches import some

pytestmark = pytest.mark.process

SOON = 0.15  # seconds until a deadline that is to pass
NOT_SOON = 30.0  # until one that is not


@contextlib.asynccontextmanager
async def other_client(node: Node) -> AsyncIterator[Node]:
    async with asterism.connect(node.address, "other") as other:
        yield other


async def publish_for_one(node: Node, topic: str, *payloads: bytes) -> asterism.BatchReceipt:
    """Messages that one receiver is to process."""
    return await node.publish_many(topic, list(payloads), expect="processed", max_receivers=1)


# --- the steps ------------------------------------------------------------------------------------


@with_a_client
async def test_a_message_climbs_from_waiting_to_processed(node: Node, topic: str) -> None:
    receipt = await node.publish(topic, b"", expect="processed", max_receivers=1)
    steps = ("waiting", "sent", "received", "completed")
    assert await counts(node, topic, *steps) == (1, 0, 0, 0)
    inbox = await node.subscribe(topic, name="r")
    delivery = await inbox.receive(WAIT_S)
    assert await counts(node, topic, *steps) == (0, 1, 0, 0)
    await delivery.received(confirm=True)
    assert await counts(node, topic, *steps) == (0, 0, 1, 0)
    await delivery.processed(confirm=True)
    assert await counts(node, topic, *steps) == (0, 0, 0, 1)
    assert await receipt.resolved(WAIT_S) == ("ok", {"r": "processed"})


@with_a_client
async def test_a_receiver_may_say_that_it_failed(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r")
    receipt = await node.publish(topic, b"", expect="processed", max_receivers=1)
    with contextlib.suppress(ZeroDivisionError):
        async with await inbox.receive(WAIT_S):
            raise ZeroDivisionError("no")
    assert await receipt.resolved(WAIT_S) == ("failed", {"r": "failed"})
    (parked,) = await node.list_parked(topic)
    assert parked.reason == "ZeroDivisionError: no"


# --- 1: a status only climbs ----------------------------------------------------------------------


def test_a_late_or_repeated_report_is_answered_and_changes_nothing(
    broker: Broker, topic: str
) -> None:
    with Raw(broker.address) as raw:
        raw.reply(Verb.SUBSCRIBE, topic, 1, ["**"], "r", None, None, 10)
        held = raw.publish(topic, message(max_receivers=1))
        for status in (Status.RECEIVED, Status.RECEIVED, Status.PROCESSED):
            assert raw.reply(Verb.REPORT, topic, 1, status, held) == {}
        for late in (Status.PROCESSED, Status.RECEIVED, Status.FAILED):
            assert raw.reply(Verb.REPORT, topic, 1, late, held) == {}
        described = raw.reply(Verb.DESCRIBE, topic)
        assert (described["completed"], described["parked"], described["held"]) == (1, 0, 0)


def test_only_the_receiver_that_holds_a_delivery_may_report_on_it(
    broker: Broker, topic: str
) -> None:
    with Raw(broker.address) as holder, Raw(broker.address) as other:
        holder.reply(Verb.SUBSCRIBE, topic, 1, ["**"], "holder", None, None, 10)
        held = holder.publish(topic, message(max_receivers=1))
        other.reply(Verb.SUBSCRIBE, topic, 1, ["**"], "other", None, None, 10)
        for status in (Status.RECEIVED, Status.PROCESSED, Status.FAILED):
            said = other.reply(Verb.REPORT, topic, 1, status, held)
            assert said == {"refused": ((held[0], "not_yours"),)}
        said = other.reply(Verb.EXTEND, topic, 1, held, 0)
        assert said == {"refused": ((held[0], "not_yours"),)}
        assert holder.reply(Verb.REPORT, topic, 1, Status.PROCESSED, held) == {}


def test_any_member_of_a_group_may_report(broker: Broker, topic: str) -> None:
    with Raw(broker.address) as holder, Raw(broker.address) as member:
        holder.reply(Verb.SUBSCRIBE, topic, 1, ["**"], None, "g", None, 10)
        held = holder.publish(topic, message(max_receivers=1))
        member.reply(Verb.SUBSCRIBE, topic, 1, ["**"], None, "g", None, 10)
        assert member.reply(Verb.REPORT, topic, 1, Status.PROCESSED, held) == {}
        assert member.reply(Verb.DESCRIBE, topic)["completed"] == 1


@with_a_client
async def test_processed_after_its_deadline_completes_what_nobody_else_holds(
    node: Node, topic: str
) -> None:
    await node.create_topic(topic, sent_timeout=SOON)
    inbox = await node.subscribe(topic, name="r", credit=1, max_lease=0)
    receipt = await node.publish(topic, b"", expect="processed", max_receivers=1)
    delivery = await inbox.receive(WAIT_S)
    await inbox.set_interests("nothing")  # so that it waits when it comes back

    async def waits() -> bool:
        return await counts(node, topic, "waiting", "sent") == (1, 0)

    await until(waits, "the deadline to pass")
    await delivery.processed(confirm=True)
    assert (await receipt.resolved(WAIT_S)).verdict == "ok"
    assert await counts(node, topic, "held", "completed") == (0, 1)


@with_a_client
async def test_processed_after_a_restart_completes_what_nobody_else_holds(
    node: Node, topic: str, broker: Broker
) -> None:
    inbox = await node.subscribe(topic, name="r")
    receipt = await node.publish(topic, b"", expect="processed", max_receivers=1)
    delivery = await inbox.receive(WAIT_S)
    await asyncio.to_thread(broker.restart, "worker", worker_of_topic(topic))
    await delivery.processed(confirm=True)
    assert (await receipt.resolved(WAIT_S)).verdict == "ok"
    assert await counts(node, topic, "held", "completed") == (0, 1)


# --- 2: the expectation ---------------------------------------------------------------------------


@pytest.mark.parametrize("expect", ["sent", "received", "processed"])
@with_a_client
async def test_a_delivery_is_done_when_it_reaches_the_expectation(
    node: Node, topic: str, expect: str
) -> None:
    inbox = await node.subscribe(topic, name="r")
    receipt = await node.publish(topic, b"", expect=expect, max_receivers=1)
    delivery = await inbox.receive(WAIT_S)
    for step in ("sent", "received", "processed"):
        if step == "received":
            await delivery.received(confirm=True)
        elif step == "processed":
            await delivery.processed(confirm=True)
        if step == expect:
            break
        with pytest.raises(TimeoutError):
            await receipt.resolved(0)
    assert await receipt.resolved(WAIT_S) == ("ok", {"r": expect})


# --- 3: deadlines ---------------------------------------------------------------------------------


@with_a_client
async def test_a_draft_that_was_never_set_is_deleted(node: Node, topic: str) -> None:
    await node.create_topic(topic, draft_timeout=SOON)
    sequence = await node.draft(topic)
    await until(lambda: is_gone(node, topic, sequence), "the draft to be deleted")
    async with refused("no_such_message"):
        await node.set(topic, sequence, b"late")


async def is_gone(node: Node, topic: str, sequence: int) -> bool:
    try:
        await node.fetch(topic, sequence)
    except asterism.PeerError as error:
        return error.code == "no_such_message"
    return False


@pytest.mark.parametrize("passing", ["sent_timeout", "received_timeout"])
@with_a_client
async def test_a_passed_deadline_makes_a_delivery_unreachable_and_it_comes_again(
    node: Node, topic: str, passing: str
) -> None:
    settings: dict[str, Any] = {passing: SOON}
    await node.create_topic(topic, **settings)
    inbox = await node.subscribe(topic, name="r", max_lease=0)
    receipt = await node.publish(topic, b"", expect="processed", max_receivers=1)
    first = await inbox.receive(WAIT_S)
    if passing == "received_timeout":
        await first.received()
    second = await inbox.receive(WAIT_S)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.id == second.id == receipt.id
    await second.processed()
    assert (await receipt.resolved(WAIT_S)).verdict == "ok"


@with_a_client
async def test_a_receiver_may_have_deadlines_of_its_own(node: Node, topic: str) -> None:
    patient = await node.subscribe(topic, name="patient")
    hasty = await node.subscribe(topic, name="hasty", sent_timeout=SOON, max_lease=0)
    await node.publish(topic, b"", expect="processed")
    first = await hasty.receive(WAIT_S)
    assert (await hasty.receive(WAIT_S)).attempt == first.attempt + 1
    assert (await patient.receive(WAIT_S)).attempt == 1
    assert await is_empty(node, patient)


@with_a_client
async def test_deadlines_run_only_up_to_the_expectation(node: Node, topic: str) -> None:
    await node.create_topic(topic, received_timeout=SOON)
    inbox = await node.subscribe(topic, name="r", max_lease=0)
    await node.publish(topic, b"is done", expect="received", max_receivers=1)
    await node.publish(topic, b"is not", expect="processed", max_receivers=1)
    for delivery in await receive(inbox, 2):
        await delivery.received()
    again = await inbox.receive(WAIT_S)
    assert (again.payload, again.attempt) == (b"is not", 2)
    assert await counts(node, topic, "held") == (1,)


@with_a_client
async def test_a_deadline_may_be_extended_any_number_of_times(node: Node, topic: str) -> None:
    await node.create_topic(topic, sent_timeout=SOON)
    await publish_for_one(node, topic, b"extended", b"measure")
    inbox = await node.subscribe(topic, name="r", max_lease=0)
    extended, _ = await receive(inbox, 2)
    await extended.extend(NOT_SOON)
    # The other one passes its own deadline again and again meanwhile.
    for attempt in (2, 3, 4):
        await extended.extend(NOT_SOON)
        measure = await inbox.receive(WAIT_S)
        assert (measure.payload, measure.attempt) == (b"measure", attempt)
    await extended.processed(confirm=True)


@with_a_client
async def test_a_deadline_that_is_extended_on_entry_holds(node: Node, topic: str) -> None:
    await node.create_topic(topic, received_timeout=SOON)
    await publish_for_one(node, topic, b"extended", b"measure")
    inbox = await node.subscribe(topic, name="r", max_lease=0)
    extended, measure = await receive(inbox, 2)
    async with extended:
        await extended.extend(NOT_SOON)
        await measure.received()
        again = await inbox.receive(WAIT_S)
        assert again.payload == b"measure", "the deadline of the other was extended"


@with_a_client
async def test_a_receiver_may_give_up_at_once(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r")
    await publish_for_one(node, topic, b"")
    await (await inbox.receive(WAIT_S)).extend(0)
    assert (await inbox.receive(WAIT_S)).attempt == 2


# --- 4: unreachable -------------------------------------------------------------------------------


async def give_up_the_first_of_three(node: Node, topic: str, **wishes: Any) -> list[bytes]:
    """The order in which three messages come when the first was given up once."""
    payloads = [b"1", b"2", b"3"]
    await node.publish_many(topic, payloads, expect="processed", max_receivers=1, **wishes)
    inbox = await node.subscribe(topic, name="r", credit=1)
    await (await inbox.receive(WAIT_S)).extend(0)
    return await take(inbox, 3)


@with_a_client
async def test_what_was_unreachable_waits_behind_its_equals(node: Node, topic: str) -> None:
    assert await give_up_the_first_of_three(node, topic) == [b"2", b"3", b"1"]


@with_a_client
async def test_what_was_unreachable_keeps_its_priority(node: Node, topic: str) -> None:
    messages = [asterism.Message(b"urgent", priority=0), asterism.Message(b"plain")]
    await node.publish_many(topic, messages, expect="processed", max_receivers=1)
    inbox = await node.subscribe(topic, name="r", credit=1)
    await (await inbox.receive(WAIT_S)).extend(0)
    assert await take(inbox, 2) == [b"urgent", b"plain"]


@pytest.mark.parametrize("keeping", ["front", "blocking", "ordering key"])
@with_a_client
async def test_front_a_blocking_topic_and_an_ordering_key_keep_the_place(
    node: Node, topic: str, keeping: str
) -> None:
    settings: dict[str, dict[str, Any]] = {
        "front": {"requeue": "front"},
        "blocking": {"blocking": True},
        "ordering key": {},
    }
    await node.create_topic(topic, **settings[keeping])
    wishes = {"ordering_key": "k"} if keeping == "ordering key" else {}
    assert await give_up_the_first_of_three(node, topic, **wishes) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("mode", ["push", "durable"])
@with_a_client
async def test_what_was_unreachable_goes_to_another_receiver(
    node: Node, topic: str, mode: str
) -> None:
    inboxes = [await node.subscribe(topic, name=name) for name in ("a", "b")]
    wishes: dict[str, Any] = {"max_receivers": 1} if mode == "durable" else {}
    receipt = await node.publish(topic, b"", mode=mode, expect="processed", **wishes)
    found = [await some(inbox, 1, 0) for inbox in inboxes]
    holder = 0 if found[0] else 1
    (first,) = found[holder]
    await first.extend(0)
    second = await inboxes[1 - holder].receive(WAIT_S)
    assert (second.attempt, second.id) == (2, first.id)
    await second.processed()
    outcome = await receipt.resolved(WAIT_S)
    assert outcome.statuses[second.receiver] == "processed"


@with_a_client
async def test_a_connection_that_closes_fails_over_at_once_with_all_it_held(
    node: Node, topic: str
) -> None:
    await publish_for_one(node, topic, *(b"%d" % number for number in range(10)))
    async with other_client(node) as other:
        held = await receive(await other.subscribe(topic, group="g"), 10)
        inbox = await node.subscribe(topic, group="g")
        assert await is_empty(node, inbox)
    again = await receive(inbox, 10)
    assert {delivery.id for delivery in again} == {delivery.id for delivery in held}
    assert {delivery.attempt for delivery in again} == {2}


# --- 5: failed ------------------------------------------------------------------------------------


async def fail(inbox: Inbox, count: int, reason: str = "no") -> None:
    for delivery in await receive(inbox, count):
        await delivery.failed(reason, confirm=True)


@with_a_client
async def test_a_failure_is_retried_while_attempts_are_left(node: Node, topic: str) -> None:
    await node.create_topic(topic, max_attempts=3)
    inbox = await node.subscribe(topic, name="r")
    receipt = await node.publish(topic, b"", expect="processed", max_receivers=1)
    for attempt in (1, 2, 3):
        delivery = await inbox.receive(WAIT_S)
        assert delivery.attempt == attempt
        await delivery.failed("no", confirm=True)
    assert (await receipt.resolved(WAIT_S)).verdict == "failed"
    (parked,) = await node.list_parked(topic)
    assert parked.attempts == 3


@with_a_client
async def test_a_retry_comes_after_a_pause(node: Node, topic: str) -> None:
    pause = 0.3
    await node.create_topic(topic, max_attempts=2, retry_backoff=asterism.Backoff(0.3, 0.3))
    inbox = await node.subscribe(topic, name="r")
    await publish_for_one(node, topic, b"")
    delivery = await inbox.receive(WAIT_S)
    loop = asyncio.get_running_loop()
    failed_at = loop.time()
    await delivery.failed("no", confirm=True)
    assert (await inbox.receive(WAIT_S)).attempt == 2
    assert loop.time() - failed_at >= pause


@with_a_client
async def test_a_durable_message_that_failed_is_parked_listed_read_and_renewed(
    node: Node, topic: str
) -> None:
    inbox = await node.subscribe(topic, name="r")
    receipts = await publish_for_one(node, topic, b"first", b"second")
    first, second = await receive(inbox, 2)
    await second.failed("the second", confirm=True)
    await first.failed("the first", confirm=True)
    parked = await node.list_parked(topic)
    assert [(row.sequence, row.reason) for row in parked] == [
        (second.sequence, "the second"),
        (first.sequence, "the first"),
    ]
    read = await node.fetch(topic, first.sequence)
    assert (read.status, read.payload) == ("failed", b"first")
    assert {o.verdict for o in await receipts.all_resolved(WAIT_S) if o} == {"failed"}
    await node.renew_all(topic)
    assert await take(inbox, 2) == [b"second", b"first"], "in the order in which they failed"
    assert await counts(node, topic, "parked", "held") == (0, 0)


@pytest.mark.parametrize("wanted", [1, None], ids=["one", "every"])
@with_a_client
async def test_a_late_failure_of_before_a_renewal_ends_nothing(
    node: Node, broker: Broker, topic: str, wanted: int | None
) -> None:
    inbox = await node.subscribe(topic, name="r")
    receipt = await node.publish(topic, b"", expect="processed", max_receivers=wanted)
    first = await inbox.receive(WAIT_S)
    await first.failed("no", confirm=True)
    await node.renew(topic, receipt.sequence)
    again = await inbox.receive(WAIT_S)
    assert again.attempt == 2
    late = ([first.sequence], "late", "r", [first.attempt])
    with Raw(broker.address) as raw:
        assert raw.reply(Verb.REPORT, topic, 0, Status.FAILED, *late) == {}
    assert await counts(node, topic, "parked", "sent") == (0, 1)
    await again.processed(confirm=True)
    assert await node.list_parked(topic) == []


@with_a_client
async def test_an_abandoned_message_is_gone_and_not_counted(node: Node, topic: str) -> None:
    inbox = await node.subscribe(topic, name="r")
    receipt = await publish_for_one(node, topic, b"")
    await fail(inbox, 1)
    await node.abandon(topic, receipt.sequence)
    assert await node.list_parked(topic) == []
    assert await counts(node, topic, "completed", "held") == (0, 0)
    async with refused("no_such_message"):
        await node.renew(topic, receipt.sequence)


@pytest.mark.parametrize("other_worker", [False, True], ids=["same worker", "other worker"])
@with_a_client
async def test_a_dead_letter_goes_to_its_topic_with_the_reason_and_where_it_failed(
    node: Node, topic: str, other_worker: bool
) -> None:
    here = worker_of_topic(topic)
    letters = new_topic((here + 1) % WORKERS if other_worker else here)
    await node.create_topic(topic, dead_letter=letters)
    dead = await node.subscribe(letters, name="undertaker")
    inbox = await node.subscribe(topic, name="r")
    receipt = await node.publish(
        topic, b"body", expect="processed", max_receivers=1, attributes={"kept": "yes"}
    )
    await fail(inbox, 1, "it broke")
    letter = await dead.receive(WAIT_S)
    assert (letter.payload, letter.subject) == (b"body", topic)
    assert letter.attributes == {
        "kept": "yes",
        "dead-letter-topic": topic,
        "dead-letter-receiver": "r",
        "dead-letter-reason": "it broke",
    }
    assert (await receipt.resolved(WAIT_S)).verdict == "failed"
    assert await node.list_parked(topic) == []


@pytest.mark.parametrize("other_worker", [False, True], ids=["same worker", "other worker"])
@with_a_client
async def test_a_dead_letter_that_its_topic_has_already_is_parked_with_both_reasons(
    node: Node, topic: str, other_worker: bool
) -> None:
    here = worker_of_topic(topic)
    letters = new_topic((here + 1) % WORKERS if other_worker else here)
    await node.create_topic(letters, unique=True)
    await node.publish(letters, b"body", expect="processed", max_receivers=1)
    await node.create_topic(topic, dead_letter=letters)
    inbox = await node.subscribe(topic, name="r")
    await publish_for_one(node, topic, b"body")
    await fail(inbox, 1, "it broke")

    async def is_parked() -> bool:
        return bool(await node.list_parked(topic))

    await until(is_parked, "a dead letter that is refused is parked")
    (parked,) = await node.list_parked(topic)
    assert parked.receiver == "r"
    assert "it broke" in parked.reason and "duplicate" in parked.reason
    await node.renew(topic, parked.sequence)
    assert await take(inbox, 1) == [b"body"]


@with_a_client
async def test_a_message_with_no_room_for_the_attributes_of_a_dead_letter_is_parked(
    node: Node, topic: str
) -> None:
    await node.create_topic(topic, dead_letter=new_topic())
    inbox = await node.subscribe(topic, name="r")
    attributes = {f"{number}": "v" for number in range(limits.ATTRIBUTES_MAX)}
    receipt = await node.publish(
        topic, b"", expect="processed", max_receivers=1, attributes=attributes
    )
    await fail(inbox, 1, "it broke")
    assert (await receipt.resolved(WAIT_S)).verdict == "failed"
    (parked,) = await node.list_parked(topic)
    assert "it broke" in parked.reason and "no room" in parked.reason
    assert (await node.fetch(topic, parked.sequence)).attributes == attributes


@with_a_client
async def test_a_message_that_is_not_durable_is_dropped_when_it_failed(
    node: Node, topic: str
) -> None:
    inbox = await node.subscribe(topic, name="r")
    for mode in ("push", "online"):
        receipt = await node.publish(topic, b"", mode=mode, expect="processed")
        await fail(inbox, 1)
        assert await receipt.resolved(WAIT_S) == ("failed", {"r": "failed"})
    assert await counts(node, topic, "parked", "held") == (0, 0)


# --- 6: all attempts together ---------------------------------------------------------------------


@with_a_client
async def test_max_deliveries_bounds_all_attempts_unreachable_ones_included(
    node: Node, topic: str
) -> None:
    await node.create_topic(topic, max_deliveries=3, max_attempts=10)
    inbox = await node.subscribe(topic, name="r")
    receipt = await node.publish(topic, b"", expect="processed", max_receivers=1)
    await (await inbox.receive(WAIT_S)).extend(0)
    await (await inbox.receive(WAIT_S)).failed("no")
    await (await inbox.receive(WAIT_S)).extend(0)
    assert (await receipt.resolved(WAIT_S)).verdict == "failed"
    (parked,) = await node.list_parked(topic)
    assert parked.attempts == 3


@with_a_client
async def test_parking_is_per_receiver(node: Node, topic: str) -> None:
    inboxes = {name: await node.subscribe(topic, name=name) for name in ("good", "bad")}
    await node.publish(topic, b"", expect="processed")
    await fail(inboxes["bad"], 1)
    (parked,) = await node.list_parked(topic)
    assert parked.receiver == "bad"
    assert await take(inboxes["good"], 1) == [b""]
    late = await node.subscribe(topic, name="late")
    assert await take(late, 1) == [b""], "it lives on for those who come later"


@with_a_client
async def test_a_parked_delivery_keeps_its_place_until_it_is_renewed_or_abandoned(
    node: Node, topic: str
) -> None:
    inboxes = {name: await node.subscribe(topic, name=name) for name in ("a", "b")}
    receipt = await node.publish(topic, b"", expect="processed", max_receivers=2)
    await fail(inboxes["a"], 1)
    third = await node.subscribe(topic, name="c")
    assert await is_empty(node, third), "one is parked, one is in the air: that is two"
    await node.abandon(topic, receipt.sequence, "a")
    assert (await third.receive(WAIT_S)).sequence == receipt.sequence
