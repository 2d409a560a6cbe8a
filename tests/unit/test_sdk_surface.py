"""What users of the SDK see and write, as far as that needs no broker."""

import asyncio
import inspect
import pydoc
import re
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

import asterism
from asterism import BlockingDelivery, BlockingNode, Delivery, Node
from asterism.options import TopicOptions, topic_overrides, topic_settings_as_user
from asterism.sdk.composing import Wishes
from asterism.sdk.consuming import SubscribeOptions
from asterism.sdk.link import Link
from asterism.sdk.listing import BlockingListing, Listing, Pages
from asterism.sdk.receiving import Subscription
from asterism.sdk.results import (
    BrokerStatus,
    ParkedDelivery,
    ProcessStatus,
    QueueStats,
    ReceiverInfo,
    ReceiverLag,
    StoredMessage,
    TopicInfo,
)
from asterism.settings import BackoffMs, TopicSettings
from tests.unit.test_session import HEADER

# --- units ----------------------------------------------------------------------------------------


def test_a_backoff_is_in_seconds() -> None:
    overrides: dict[str, Any] = topic_overrides({"retry_backoff": asterism.Backoff(0.5, 8)})
    assert overrides == {"retry_backoff": BackoffMs(500, 8_000)}
    assert asterism.Backoff(min=0.5, max=8) == asterism.Backoff(0.5, 8)
    shown = topic_settings_as_user(TopicSettings().changed(overrides))
    assert shown["retry_backoff"] == {"min": 0.5, "max": 8}


@pytest.mark.parametrize("pair", [(8, 0.5), (-1, 8), (0, 1e9), (float("nan"), 8)])
def test_a_backoff_that_cannot_be_is_a_value_error(pair: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"retry_backoff\.m"):
        asterism.Backoff(*pair)


def test_a_backoff_of_anything_but_numbers_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="number of seconds"):
        asterism.Backoff("0.5", 8)  # type: ignore[arg-type]


# --- results --------------------------------------------------------------------------------------

READERS: dict[str, Any] = {
    "topic": TopicInfo.from_wire,
    "receiver": ReceiverInfo.from_wire,
    "parked": ParkedDelivery.from_wire,
    "message": lambda said: StoredMessage.from_wire(7, said),
    "stats": QueueStats.from_wire,
    "process": ProcessStatus.from_wire,
    "broker": BrokerStatus.from_wire,
}


@pytest.mark.parametrize("kind", READERS)
def test_a_result_takes_what_another_version_says_and_does_without_what_it_does_not(
    kind: str,
) -> None:
    read = READERS[kind]
    assert read({}) == read({"of a later version": 1}) or kind == "process"
    result = read({})
    with pytest.raises((FrozenInstanceError, TypeError, AttributeError)):
        result.name = "changed"
    assert type(result).__name__ in repr(result)


def test_times_of_a_topic_and_its_receivers_are_in_seconds() -> None:
    topic = TopicInfo.from_wire({"topic": "t", "waiting": 3, "oldest_waiting_ms": 1_500})
    assert (topic.name, topic.waiting, topic.oldest_waiting) == ("t", 3, 1.5)
    assert TopicInfo.from_wire({"oldest_waiting_ms": None}).oldest_waiting is None
    said = {"name": "r", "sent_timeout_ms": 60_000, "received_timeout_ms": 500, "interests": ["a"]}
    receiver = ReceiverInfo.from_wire(said)
    assert (receiver.sent_timeout, receiver.received_timeout) == (60, 0.5)
    assert receiver.interests == ("a",)


def test_the_lag_of_a_receiver_is_there_where_the_broker_says_it() -> None:
    old = ReceiverInfo.from_wire({"name": "r"})
    assert (old.lag, old.out, old.oldest) == (None, None, None)
    lag = {"lag": 5, "out": 2, "oldest_ms": 2_500, "counted": True}
    new = ReceiverInfo.from_wire({"name": "r", **lag})
    assert (new.lag, new.out, new.oldest, new.counted) == (5, 2, 2.5, True)
    topic = TopicInfo.from_wire({"kept": 3, "counted": True, "lags": {"r": lag}})
    assert (topic.kept, topic.counted) == (3, True)
    assert topic.lags == {"r": ReceiverLag(lag=5, out=2, oldest=2.5, counted=True)}


def test_when_a_delivery_failed_is_a_time_with_its_zone() -> None:
    parked = ParkedDelivery.from_wire({"sequence": 4, "failed_ms": 1_700_000_000_500})
    assert parked.failed_at == datetime.fromtimestamp(1_700_000_000.5, UTC)


def test_a_process_keeps_what_else_it_says() -> None:
    said = {"process": "worker-0", "pid": 9, "uptime_ms": 1_500, "lanes": 2}
    process = ProcessStatus.from_wire({**said, "disk": {"free_bytes": 5}})
    assert (process.name, process.pid, process.uptime) == ("worker-0", 9, 1.5)
    assert process.disk is not None and process.disk.free_bytes == 5
    assert process.details == {"lanes": 2}
    status = BrokerStatus.from_wire({"frontend": None, "workers": [said, None]})
    assert status.frontend is None and [bool(worker) for worker in status.workers] == [True, False]


# --- lists ----------------------------------------------------------------------------------------


class Numbers:
    """A list of the numbers up to some, a page of three at a time."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[int] = []

    async def page(self, after: int) -> list[int]:
        self.asked.append(after)
        return list(range(after + 1, min(after + 3, self.count) + 1))

    def listing(self) -> Listing[int]:
        return Listing("numbers", Pages(self.page, int, 0, 3))


@pytest.mark.parametrize("count", [0, 1, 3, 4, 6, 7])
def test_a_list_goes_on_over_its_pages_to_its_end(count: int) -> None:
    async def awaited() -> list[int]:
        return await Numbers(count).listing()

    async def gone_through() -> list[int]:
        return [number async for number in Numbers(count).listing()]

    whole = list(range(1, count + 1))
    assert asyncio.run(awaited()) == asyncio.run(gone_through()) == whole
    assert list(BlockingListing(Numbers(count).listing(), asyncio.run)) == whole


def test_a_list_asks_for_a_page_when_it_is_wanted_and_not_before() -> None:
    numbers = Numbers(100)
    listing = BlockingListing(numbers.listing(), asyncio.run)
    assert numbers.asked == [] and "numbers" in repr(listing)
    assert [next(listing) for _ in range(3)] == [1, 2, 3] and numbers.asked == [0]
    assert next(listing) == 4 and numbers.asked == [0, 3]


# --- help -----------------------------------------------------------------------------------------

PUBLISHING = ("publish", "send", "publish_many", "send_many", "request")
NAMED: list[tuple[Any, type[Any]]] = [
    *((getattr(node, verb), Wishes) for node in (Node, BlockingNode) for verb in PUBLISHING),
    *((delivery.reply, Wishes) for delivery in (Delivery, BlockingDelivery)),
    *((node.create_topic, TopicOptions) for node in (Node, BlockingNode)),
    *((node.configure, TopicOptions) for node in (Node, BlockingNode)),
    *((node.consume, SubscribeOptions) for node in (Node, BlockingNode)),
]


@pytest.mark.parametrize(("verb", "keywords"), NAMED, ids=lambda held: held.__qualname__)
def test_help_names_every_keyword_of_a_verb(verb: Any, keywords: type[Any]) -> None:
    parameters = inspect.signature(verb).parameters
    assert keywords.__annotations__.keys() <= parameters.keys()
    kinds = {parameter.kind for parameter in parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    shown = pydoc.plain(pydoc.render_doc(verb))
    for name in keywords.__annotations__:
        assert re.search(rf"^ +{name}: \w", shown, re.MULTILINE), f"{name} is not told"


def test_help_tells_defaults_and_units() -> None:
    shown = pydoc.plain(pydoc.render_doc(Node.create_topic))
    assert "sent_timeout: 60 unless the broker says otherwise, in seconds" in shown
    assert inspect.signature(Node.publish).parameters["mode"].default == "durable"
    assert "ttl: seconds until it expires" in pydoc.plain(pydoc.render_doc(Node.publish))


@pytest.mark.parametrize("owner", [Node, BlockingNode, Delivery, BlockingDelivery])
def test_help_tells_that_a_request_and_its_answer_are_push_messages(owner: Any) -> None:
    verb = owner.request if owner in (Node, BlockingNode) else owner.reply
    assert inspect.signature(verb).parameters["mode"].default == "push"


def test_help_names_exceptions_as_users_know_them() -> None:
    for owner in (Node, BlockingNode, asterism.Receipt, asterism.BatchReceipt):
        assert "``PeerError``" not in pydoc.plain(pydoc.render_doc(owner))


# --- connecting -----------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"address": 7700}, TypeError, "address must be text, not 7700"),
    ({"address": b"tcp://127.0.0.1:7700"}, TypeError, "address must be text"),
    ({"address": "localhost:7700"}, ValueError, "address must be like tcp://127.0.0.1:7700, not"),
    ({"address": ""}, ValueError, "address must be like tcp://127.0.0.1:7700, not"),
    ({"name": 5}, TypeError, "name must be text, not 5"),
    ({"timeout": "10"}, TypeError, "timeout must be a number of seconds, not '10'"),
]


@pytest.mark.parametrize(("given", "kind", "sentence"), WRONG)
@pytest.mark.parametrize("connect", [asterism.connect, asterism.connect_blocking])
def test_what_cannot_be_connected_to_is_refused_at_once(
    connect: Any, given: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=re.escape(sentence)):
        connect(**given)


class Sockets:
    """A context of ZeroMQ whose sockets cannot connect."""

    def __init__(self) -> None:
        self.closed = 0

    def socket(self, _: int) -> Any:
        return self

    def connect(self, _: str) -> None:
        raise KeyboardInterrupt

    def close(self) -> None:
        self.closed += 1


def test_a_socket_that_was_not_opened_is_closed_whatever_went_wrong() -> None:
    loop = asyncio.new_event_loop()
    link = Link(loop, lambda frame: None)
    link._context.term()
    sockets: Any = Sockets()
    link._context = sockets
    with pytest.raises(KeyboardInterrupt):
        link.open("tcp://127.0.0.1:7700", lambda: None, lambda: None)
    assert sockets.closed == 1 and not link.is_open
    loop.close()


# --- reports --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, asterism.BrokerError("topic_gone")])
def test_a_report_on_what_has_no_inbox_any_more_is_not_waited_for(error: Any) -> None:
    async def report() -> None:
        held = Subscription("t", 1, ("**",))
        node = SimpleNamespace(_check_open=lambda: None, _loop=asyncio.get_running_loop())
        inbox: Any = SimpleNamespace(_node=node, _error=error)
        held.is_over = True
        delivery = Delivery(inbox, held, (1, 1, b"i" * 16, HEADER, b"p"), False)
        await delivery.processed(confirm=True)

    with pytest.raises(type(error) if error else asterism.ClosedError):
        asyncio.run(report())
