"""Producers after a power cut go on behind lost answers, and how many a topic remembers."""

import random
from collections.abc import Iterator

import pytest

from asterism import commands as ask
from asterism import wire
from asterism.actors.shard import Shard
from asterism.effects import Accepted, Effect, Forward, Refusal, Refuse
from asterism.errors import PeerError
from asterism.message import Header, Mode, Status
from asterism.sdk.session import Session
from asterism.sdk.tickets import Ticket
from asterism.wire import Verb, pack_body, pack_part
from tests.support.core import PRODUCER, CoreBroker, header
from tests.support.power import PoweredBroker

SYNCS = pytest.mark.parametrize("always", [True, False], ids=["always", "20ms"])


def send(
    broker: CoreBroker, first: int, settled: int, count: int = 1, mode: str = "durable"
) -> tuple[int | Refusal, ...]:
    """Publishes messages numbered from ``first``, as a producer that has seen ``settled``."""
    encoded = header(mode=mode).encoded
    messages = tuple(
        (number.to_bytes(16, "big"), encoded, b"%d" % number)
        for number in range(first, first + count)
    )
    request = broker.request()
    broker.do(ask.Publish(b"publisher", request, messages, PRODUCER, first, settled))
    answer = broker.answers[b"publisher", request]
    if isinstance(answer, Refuse):
        raise PeerError(answer.code, answer.detail, answer.retry_after_ms)
    assert isinstance(answer, Accepted)
    return answer.results


@pytest.fixture(params=[True, False], ids=["always", "20ms"])
def broker(request: pytest.FixtureRequest) -> Iterator[PoweredBroker]:
    """With a topic, which was synced when it was made."""
    broker = PoweredBroker(always=request.param)
    broker.subscribe()
    yield broker


# --- answers that were lost ---------------------------------------------------------------------


def test_a_producer_whose_answers_were_lost_goes_on_with_its_numbers(
    broker: PoweredBroker,
) -> None:
    for number in range(1, 6):
        send(broker, number, number - 1, mode="push")
    broker.cut_power()
    (sequence,) = send(broker, 6, settled=5)
    assert isinstance(sequence, int)
    assert send(broker, 6, settled=5) == (sequence,)
    send(broker, 7, settled=6)
    assert broker.actor.held == 2


def test_a_producer_whose_first_answer_alone_was_given_goes_on(broker: PoweredBroker) -> None:
    send(broker, 1, settled=0, mode="push")
    broker.cut_power()
    send(broker, 2, settled=1)
    assert broker.actor.held == 1


def test_a_producer_goes_on_behind_refusals_that_were_lost(broker: PoweredBroker) -> None:
    send(broker, 1, settled=0)
    broker.detach()
    (refusal,) = send(broker, 2, settled=1, mode="push")
    assert isinstance(refusal, Refusal) and refusal.code == "no_receiver"
    broker.cut_power()
    send(broker, 3, settled=2)


def test_numbers_that_were_not_answered_are_still_missed(broker: PoweredBroker) -> None:
    for number in range(1, 4):
        send(broker, number, number - 1, mode="push")
    broker.cut_power()
    with pytest.raises(PeerError, match="number 4 is still missing") as refused:
        send(broker, 6, settled=3)  # 4 and 5 are on their way, or lost
    assert (refused.value.code, refused.value.retry_after_ms) == ("busy", 0)
    assert broker.actor.held == 0
    send(broker, 4, settled=3, count=2)
    send(broker, 6, settled=3)
    assert broker.actor.held == 3


def test_what_was_stored_durably_is_not_stored_again_after_a_cut() -> None:
    broker = PoweredBroker(always=True)
    broker.subscribe()
    send(broker, 1, settled=0, mode="push")
    stored = send(broker, 2, settled=1, count=2)  # its answer does not reach the publisher
    broker.cut_power()
    assert send(broker, 2, settled=1, count=2) == stored
    assert broker.actor.held == 2


def test_a_producer_that_was_forgotten_is_not_believed(broker: PoweredBroker) -> None:
    """Its last message may have been stored, and its answer lost on the way."""
    send(broker, 1, settled=0)
    send(broker, 2, settled=1)
    broker.sync()
    broker.ask(ask.DeleteTopic(b"admin", broker.request()))
    with pytest.raises(PeerError, match="wrong_state"):
        send(broker, 2, settled=1)


# --- with the SDK -------------------------------------------------------------------------------


class Wired:
    """A session of the SDK at a broker whose power can be cut."""

    def __init__(self, always: bool) -> None:
        self.broker = PoweredBroker(always)
        self.broker.subscribe()
        self.session = Session("wired", random.Random(1).randbytes)
        self.session.produce_as("orders", PRODUCER, 1)  # it may take no other id to help itself
        self._node = b""
        self._lives = 0
        self.connect()

    def connect(self) -> None:
        self._lives += 1
        self._node = self._lives.to_bytes(13, "big") + bytes(4)
        self.session.open(self.broker.now_ms)

    def publish(self, mode: Mode) -> Ticket:
        """Publishes one message, and carries frames until nobody has anything to say."""
        encoded = Header(mode, Status.PROCESSED, ("a/b",), None, None, receipt=False).encoded
        ticket = Ticket("orders", 1, False)
        self.session.publish(ticket, 0, [(b"i" * 16, encoded, b"x")], 100)
        for _ in range(50):
            self.broker.now_ms += 60
            self.session.tick(self.broker.now_ms)
            for frame in self.session.flush(self.broker.now_ms):
                self._carry(frame)
        return ticket

    def _carry(self, frame: bytes) -> None:
        for part in wire.read_parts(frame):
            verb, _, _, request, topic = part[:5]
            if verb == Verb.HELLO:
                welcome = {"version": 1, "heartbeat_ms": 10**9, "workers": 1, "stores": 1}
                answer = pack_part(Verb.WELCOME, request, b"", pack_body(welcome))
                self.session.receive(answer, self.broker.now_ms)
                continue
            command = wire.read_command(verb, self._node, request, frame[part.body : part.end])
            effects = self.broker.do(command, topic.decode())
            for out in wire.write_effects([("orders", effect) for effect in effects], 0):
                if out.node == self._node:
                    self.session.receive(out.part, self.broker.now_ms)

    def cut_power(self) -> None:
        self.broker.cut_power()
        self.session.lost()
        self.connect()


@SYNCS
def test_a_client_publishes_on_after_a_power_cut_took_the_answers_it_had(always: bool) -> None:
    wired = Wired(always)
    for _ in range(3):
        assert type(wired.publish(Mode.PUSH).results[0]) is int
    wired.cut_power()
    for _ in range(3):
        assert type(wired.publish(Mode.DURABLE).results[0]) is int
    assert wired.broker.actor.held == 3


# --- dead letters -------------------------------------------------------------------------------


class NearShard(Shard):
    """The dead-letter topic is in another store."""

    def owns(self, topic: str) -> bool:
        return topic != "dead"


def forwards(effects: list[Effect]) -> list[Forward]:
    return [effect for effect in effects if isinstance(effect, Forward)]


def test_a_dead_letter_says_of_no_number_that_has_no_answer_that_it_is_settled() -> None:
    broker = CoreBroker(dead_letter="dead")
    broker.shard = NearShard(broker.rows, broker.defaults)
    broker.subscribe()
    sequences = broker.publish_many([b"1", b"2", b"3"])
    sent: list[Forward] = []
    for sequence in sequences:
        assert isinstance(sequence, int)
        broker.failed(sequence)
        sent += forwards(broker.effects)
    assert [forward.count for forward in sent] == [1, 2, 3]
    numbers = [forward.number for forward in sent]
    broker.do(ask.ForwardSettled(numbers[0], "overflow", "it is full", counted=True))
    for number in numbers[1:]:
        broker.do(ask.ForwardSettled(number, "busy", "no answer came"))
    again: list[Forward] = []
    for _ in range(20):
        broker.now_ms += 1_000
        broker.shard.tick(broker.now_ms)
        again += forwards(broker.end_turn())
    assert sorted(forward.count for forward in again) == [2, 3, 4]
    assert all(forward.settled == 1 for forward in again)
