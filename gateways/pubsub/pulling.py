"""Pull, Acknowledge and ModifyAckDeadline: what a subscriber asks for one request at a time."""

import asyncio
from typing import Any, Final

from google.protobuf import empty_pb2
from google.pubsub_v1.types import pubsub as types

from asterism.gateways.pubsub import rules
from asterism.gateways.pubsub.errors import Code, Refusal, invalid_ack_ids
from asterism.gateways.pubsub.feeds import Feed, Handed, Taker
from asterism.gateways.pubsub.subscriptions import Subscriptions
from asterism.sdk.connection import clock_ms

ANSWER_BYTES_MAX: Final = 3_900_000  # of messages: clients take no answer over 4 MiB by default
NAMED_MAX: Final = 80  # invalid ack ids in an answer: clients take 8 KiB of metadata for sure
WAIT_S_MAX: Final = 90.0  # that a pull waits for a message
PullResponse: Final[Any] = types.PullResponse.pb()


class Puller(Taker):
    """A client that waits for messages, once."""

    def __init__(self, most: int, deadline_s: float, waits: bool) -> None:
        super().__init__(most, ANSWER_BYTES_MAX, deadline_s)
        self._waits = waits
        self.handed: list[Handed] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_impatient(self) -> bool:
        return bool(self.handed) or not self._waits

    def give(self, handed: Handed) -> None:
        self.handed.append(handed)

    def settle(self, is_all: bool) -> None:
        feed = self.feed
        if not self.is_impatient or self.done.done() or feed is None:
            return
        if is_all or not self.wanted(feed.size):
            self.most = self.out
            self.done.set_result(None)

    def fail(self, refusal: Refusal) -> None:
        if not self.done.done():
            self.done.set_exception(refusal)


async def take(feed: Feed, most: int, wait_s: float | None, waits: bool = True) -> Any:
    """A ``PullResponse`` of what there is, once there is something; cancelling it takes nothing."""
    puller = Puller(most, feed.terms.deadline_s, waits)
    feed.join(puller)
    try:
        async with asyncio.timeout(wait_s):
            await puller.done
    except TimeoutError:
        pass  # what came in the last moment is answered all the same
    except asyncio.CancelledError:  # nobody is there to have it
        feed.leave(puller)
        feed.give_back(puller.handed)
        raise
    feed.leave(puller)
    response = PullResponse()
    now_ms = clock_ms()
    for handed in puller.handed:
        feed.write(response.received_messages.add(), handed, now_ms)
    return response


class Pulling:
    """What subscribers ask for one request at a time."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions

    async def pull(self, request: Any) -> Any:
        """Messages, as many as there are and are wanted; waits for the first."""
        most = rules.pull_count(request)
        feed = self._subscriptions.pulled_feed(request.subscription)
        # A client with a shorter deadline hangs up before, and is answered nothing.
        return await take(feed, most, WAIT_S_MAX, not request.return_immediately)

    async def acknowledge(self, request: Any) -> Any:
        """Acknowledges messages; what it confirms never comes again."""
        rules.check_acknowledge(request)
        feed = self._subscriptions.feed(request.subscription)
        _check_nameable(feed, request.ack_ids)
        invalid = await feed.acknowledge(request.ack_ids)
        if invalid and feed.terms.is_exactly_once:
            raise invalid_ack_ids(invalid)
        return empty_pb2.Empty()

    async def modify_ack_deadline(self, request: Any) -> Any:
        """Moves deadlines, or gives messages back."""
        rules.check_modify_ack_deadline(request)
        feed = self._subscriptions.feed(request.subscription)
        _check_nameable(feed, request.ack_ids)
        invalid = await feed.modify(request.ack_ids, request.ack_deadline_seconds)
        if invalid and feed.terms.is_exactly_once:
            raise invalid_ack_ids(invalid)
        return empty_pb2.Empty()


def _check_nameable(feed: Feed, ack_ids: Any) -> None:
    """Refuses a request with more invalid ack ids than one answer can name, before anything counts.

    Clients take what an answer does not name as done, and take no answer that names too many.
    """
    if not feed.terms.is_exactly_once:
        return
    count = feed.count_invalid(ack_ids)
    if count > NAMED_MAX:
        said = f"{count} ack ids are not valid: none counts, as no answer can name them all."
        raise Refusal(Code.FAILED_PRECONDITION, said)
