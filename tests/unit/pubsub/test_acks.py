"""Ack ids, and acknowledgements that go to the broker together."""

import asyncio

import pytest

from asterism.gateways.pubsub.acks import AckId, Gathered, ack_id_of, next_number, read_ack_id

TAG = "3f9a01bc"


def test_an_ack_id_is_read_as_it_was_written() -> None:
    number = next_number()
    assert read_ack_id(TAG, ack_id_of(TAG, 1_234, 5, number)) == AckId(1_234, 5, number)


def test_no_two_deliveries_have_the_same_number() -> None:
    numbers = [next_number() for _ in range(1_000)]
    assert sorted(set(numbers)) == numbers


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        f"{TAG}-1-1",
        f"{TAG}-1-1-1-1",
        "00000000-1-1-1",
        f"{TAG}-x-1-1",
        f"{TAG}-1-0-1",
        f"{TAG}--1-1-1",
        f"{TAG}-{2**63}-1-1",
        f"{TAG}-1-1-{'f' * 5_000}",
        f"{TAG}-1-1-\N{SUPERSCRIPT TWO}",
    ],
)
def test_what_is_no_ack_id_of_the_subscription_is_none(text: str) -> None:
    assert read_ack_id(TAG, text) is None


class Broker:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    async def send(self, sequences: list[int]) -> dict[int, str]:
        self.sent.append(sequences)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return {}


def test_what_comes_in_one_turn_and_while_the_broker_answers_goes_together() -> None:
    async def play() -> None:
        broker = Broker()
        gathered = Gathered(broker.send)
        first = [gathered.add([1]), gathered.add([2, 3])]
        await asyncio.sleep(0)
        second = [gathered.add([4]), gathered.add([5])]
        broker.may_answer.set()
        assert await asyncio.gather(*first, *second) == [{}] * 4
        assert broker.sent == [[1, 2, 3], [4, 5]]
        await asyncio.sleep(0)
        assert gathered.is_idle

    asyncio.run(play())


def test_whoever_gives_up_does_not_take_the_answer_from_others() -> None:
    async def play() -> None:
        broker = Broker()
        gathered = Gathered(broker.send)
        gone = asyncio.ensure_future(gathered.confirmed([1]))
        stays = asyncio.ensure_future(gathered.confirmed([2]))
        await asyncio.sleep(0)
        gone.cancel()
        broker.may_answer.set()
        assert await stays == {}

    asyncio.run(play())


def test_everybody_is_told_of_a_failure_and_the_next_goes_on() -> None:
    async def play() -> None:
        broker = Broker()
        broker.may_answer.set()
        broker.error = TimeoutError("no answer")
        gathered = Gathered(broker.send)
        ended = await asyncio.gather(
            gathered.confirmed([1]), gathered.confirmed([2]), return_exceptions=True
        )
        assert [type(each) for each in ended] == [TimeoutError, TimeoutError]
        broker.error = None
        assert await gathered.confirmed([3]) == {}

    asyncio.run(play())
