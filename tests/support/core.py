"""A broker of one shard for tests: the core with a clock that the test moves, and plain verbs.

Every verb runs one whole turn (handle, tick, end of turn, commit) and returns what came of it. The
effects of each turn are kept in ``effects``; what endpoints were sent piles up in ``inbox``.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from asterism import commands as ask
from asterism.actors.shard import Shard
from asterism.actors.topic import TopicActor
from asterism.effects import (
    Accepted,
    Deliver,
    Effect,
    EndpointGone,
    Refusal,
    Refuse,
    Reply,
    Resolved,
)
from asterism.errors import PeerError
from asterism.message import Header, Mode, Status
from asterism.rows import Rows
from asterism.settings import TopicSettings
from asterism.storage.memory import MemoryRows
from tests.support.delivered import Delivered, deliveries_of

PRODUCER = b"producer-of-tests"[:16]
START_MS = 1_700_000_000_000
TICKS_AT_ONCE_MAX = 10_000


def header(subject: str | tuple[str, ...] = "a/b", **fields: Any) -> Header:
    """A header: durable, for one receiver, expects to be processed, unless told otherwise."""
    subjects = (subject,) if isinstance(subject, str) else subject
    mode = Mode[fields.pop("mode", "durable").upper()]
    expect = Status[fields.pop("expect", "processed").upper()]
    if mode is Mode.DURABLE:
        fields.setdefault("max_receivers", 1)
    return Header(mode, expect, subjects, **fields)


class CoreBroker:
    """One shard over rows; ``restart`` loses the memory and keeps the rows."""

    def __init__(
        self,
        rows: Rows | None = None,
        topic: str = "orders",
        grace_ms: int = 0,
        **settings: Any,
    ) -> None:
        self.rows: Rows = MemoryRows() if rows is None else rows
        self.defaults = TopicSettings(**settings)
        self.topic = topic
        self.now_ms = START_MS
        self.grace_ms = grace_ms
        self.shard = Shard(self.rows, self.defaults, grace_ms=grace_ms)
        self.effects: list[Effect] = []
        self.inbox: dict[tuple[bytes, int], list[Delivered]] = defaultdict(list)
        self.receipts: dict[int, Resolved] = {}
        self.resolved: dict[tuple[bytes, int], Resolved] = {}  # by producer too
        self.answers: dict[tuple[bytes, int], Effect] = {}
        self.gone: list[EndpointGone] = []
        self._requests = itertools.count(1)
        self._ids = itertools.count(1)
        self._numbers: dict[bytes, int] = defaultdict(int)

    # --- turns --------------------------------------------------------------------------------

    def restart(self) -> None:
        """The worker was killed between two turns and comes back."""
        self.shard = Shard(self.rows, self.defaults, grace_ms=self.grace_ms)
        self.end_turn()
        self.shard.begin_grace(self.now_ms)
        self.end_turn()

    def end_turn(self) -> list[Effect]:
        self.effects = [effect for _, effect in self.shard.end_turn()]
        commit = getattr(self.rows, "commit", None)
        if commit is not None:
            commit()
        for effect in self.effects:
            self._see(effect)
        return self.effects

    def _see(self, effect: Effect) -> None:
        match effect:
            case Deliver():
                self.inbox[effect.node, effect.endpoint].extend(deliveries_of(effect))
            case Resolved():
                receipt = (effect.producer, effect.number)
                assert receipt not in self.resolved, "a receipt was resolved twice"
                self.receipts[effect.number] = self.resolved[receipt] = effect
            case Accepted() | Reply() | Refuse():
                self.answers[effect.node, effect.request] = effect
            case EndpointGone():
                self.gone.append(effect)
            case _:
                pass

    def do(self, command: Any, topic: str | None = None) -> list[Effect]:
        """One turn with one command."""
        self.shard.handle(topic or self.topic, command, self.now_ms)
        return self.end_turn()

    def ask(self, command: Any, topic: str | None = None) -> dict[str, Any]:
        """One turn with one command; its answer's body, or its refusal as a ``PeerError``."""
        self.do(command, topic)
        answer = self.answers.get((command.node, command.request))
        if isinstance(answer, Refuse):
            raise PeerError(answer.code, answer.detail)
        assert isinstance(answer, Reply), f"no answer to {command}"
        return answer.body

    def advance(self, ms: int) -> None:
        """Time passes; whatever becomes due on the way is done in order."""
        until = self.now_ms + ms
        at_once = 0  # ticks at one moment: what is due must end some time
        while (due_ms := self.shard.next_due_ms()) is not None and due_ms <= until:
            at_once = at_once + 1 if due_ms <= self.now_ms else 0
            assert at_once < TICKS_AT_ONCE_MAX, "something is due for ever"
            self.now_ms = max(self.now_ms, due_ms)
            self.shard.tick(self.now_ms)
            self.end_turn()
        self.now_ms = until

    def tick(self) -> None:
        """What is due at this moment is done; a host does so after every start."""
        self.advance(0)

    @contextmanager
    def on(self, topic: str) -> Iterator[None]:
        """The verbs within are about another topic."""
        before, self.topic = self.topic, topic
        try:
            yield
        finally:
            self.topic = before

    @property
    def actor(self) -> TopicActor:
        return self.shard.topics[self.topic]

    def request(self) -> int:
        return next(self._requests)

    # --- publishing ---------------------------------------------------------------------------

    def publish(
        self, payload: bytes = b"x", subject: str | tuple[str, ...] = "a/b", **fields: Any
    ) -> int:
        """Publishes one message; its sequence, or its refusal as a ``PeerError``."""
        (result,) = self.publish_many([payload], subject, **fields)
        if isinstance(result, Refusal):
            raise PeerError(result.code, result.detail)
        return result

    def publish_many(
        self,
        payloads: list[bytes],
        subject: str | tuple[str, ...] = "a/b",
        producer: bytes = PRODUCER,
        topic: str | None = None,
        node: bytes = b"publisher",
        **fields: Any,
    ) -> tuple[int | Refusal, ...]:
        encoded = header(subject, **fields).encoded
        messages = tuple((next(self._ids).to_bytes(16, "big"), encoded, body) for body in payloads)
        first = self._numbers[producer] + 1
        self._numbers[producer] += len(messages)
        command = ask.Publish(node, self.request(), messages, producer, first)
        self.do(command, topic)
        answer = self.answers[node, command.request]
        if isinstance(answer, Refuse):
            raise PeerError(answer.code, answer.detail)
        assert isinstance(answer, Accepted)
        return answer.results

    def last_number(self, producer: bytes = PRODUCER) -> int:
        """The producer's number of the message published last: receipts go by it."""
        return self._numbers[producer]

    def await_receipts(
        self, *numbers: int, producer: bytes = PRODUCER, node: bytes = b"publisher"
    ) -> dict[int, tuple[str, dict[str, str]]]:
        """Asks again for receipts: verdict and statuses, or ``pending`` or ``unknown``."""
        body = self.ask(ask.AwaitReceipts(node, self.request(), producer, numbers))
        return {number: (verdict, statuses) for number, verdict, statuses in body["outcomes"]}

    # --- receiving ----------------------------------------------------------------------------

    def subscribe(
        self,
        node: bytes = b"consumer",
        interests: str | tuple[str, ...] = "**",
        endpoint: int = 1,
        credit: int = 100,
        **fields: Any,
    ) -> str:
        """Subscribes an endpoint; the name of its receiver."""
        wanted = (interests,) if isinstance(interests, str) else interests
        command = ask.Subscribe(node, self.request(), endpoint, wanted, credit=credit, **fields)
        name = self.ask(command)["receiver"]
        assert isinstance(name, str)
        return name

    def take(self, node: bytes = b"consumer", endpoint: int = 1) -> list[Delivered]:
        """What the endpoint was sent since it was last asked."""
        return self.inbox.pop((node, endpoint), [])

    def taken(self, node: bytes = b"consumer", endpoint: int = 1) -> list[bytes]:
        """The payloads of ``take``."""
        return [delivered.payload for delivered in self.take(node, endpoint)]

    def report(
        self,
        status: str,
        *sequences: int,
        node: bytes = b"consumer",
        endpoint: int = 1,
        **fields: Any,
    ) -> dict[int, str]:
        """Reports on deliveries; the codes of those that were refused."""
        command = ask.Report(
            node, self.request(), endpoint, Status[status.upper()], sequences, **fields
        )
        return dict(self.ask(command).get("refused", []))

    def processed(self, *sequences: int, **fields: Any) -> dict[int, str]:
        return self.report("processed", *sequences, **fields)

    def received(self, *sequences: int, **fields: Any) -> dict[int, str]:
        return self.report("received", *sequences, **fields)

    def failed(self, *sequences: int, reason: str = "no", **fields: Any) -> dict[int, str]:
        return self.report("failed", *sequences, reason=reason, **fields)

    def extend(
        self, timeout_ms: int, *sequences: int, node: bytes = b"consumer", endpoint: int = 1
    ) -> dict[int, str]:
        """Moves deadlines; the codes of those that were refused."""
        command = ask.Extend(node, self.request(), endpoint, sequences, timeout_ms)
        return dict(self.ask(command).get("refused", []))

    def grant(self, credit: int, node: bytes = b"consumer", endpoint: int = 1) -> None:
        self.do(ask.Grant(node, self.request(), endpoint, credit))

    def detach(self, node: bytes = b"consumer") -> None:
        """The connection of a node is lost."""
        self.shard.detach(node, self.now_ms)
        self.end_turn()

    def suspend(self, node: bytes = b"consumer") -> None:
        """The connection of a node is lost, and may come back."""
        self.shard.suspend(node, self.now_ms)
        self.end_turn()

    def unsubscribe(self, node: bytes = b"consumer", endpoint: int = 1) -> None:
        self.ask(ask.Unsubscribe(node, self.request(), endpoint))

    def set_interests(self, *interests: str, node: bytes = b"consumer", endpoint: int = 1) -> None:
        self.ask(ask.SetInterests(node, self.request(), endpoint, interests))

    def pull(
        self, count: int, wait_ms: int = 0, node: bytes = b"consumer", endpoint: int = 1
    ) -> int:
        """Pulls, and does what is due at once; the request, whose ``answer`` may come later."""
        command = ask.Pull(node, self.request(), endpoint, count, wait_ms)
        self.do(command)
        self.tick()
        return command.request

    def cancel_wait(self, waiting: int, node: bytes = b"consumer") -> None:
        self.ask(ask.CancelWait(node, self.request(), waiting))

    def answer(self, request: int, node: bytes = b"consumer") -> dict[str, Any] | str | None:
        """What a request was answered: the reply's body, a refusal's code, or nothing yet."""
        answer = self.answers.get((node, request))
        if isinstance(answer, Refuse):
            return answer.code
        return answer.body if isinstance(answer, Reply) else None

    # --- receivers ----------------------------------------------------------------------------

    def create_receiver(self, name: str, *interests: str, **fields: Any) -> None:
        command = ask.CreateReceiver(b"admin", self.request(), name, interests or ("**",), **fields)
        self.ask(command)

    def receivers(self, after: str = "") -> list[dict[str, Any]]:
        """The receivers of the topic, by name."""
        listed = self.ask(ask.ListReceivers(b"admin", self.request(), after))["receivers"]
        assert isinstance(listed, list)
        return listed

    def delete_receiver(self, name: str) -> None:
        self.ask(ask.DeleteReceiver(b"admin", self.request(), name))

    def seek(self, name: str, **target: int) -> int:
        """Moves a receiver; the sequence that it stands at now."""
        sequence = self.ask(ask.Seek(b"admin", self.request(), name, **target))["sequence"]
        assert isinstance(sequence, int)
        return sequence

    # --- the work queue -----------------------------------------------------------------------

    def draft(self, priority: int | None = None) -> int:
        identity = next(self._ids).to_bytes(16, "big")
        body = self.ask(ask.Draft(b"admin", self.request(), identity, priority))
        assert isinstance(body["sequence"], int)
        return body["sequence"]

    def set_draft(self, sequence: int, payload: bytes = b"x", **attributes: str) -> None:
        self.ask(ask.SetDraft(b"admin", self.request(), sequence, payload, attributes))

    def make(self, payload: bytes = b"x", priority: int | None = None) -> int:
        """Drafts and sets a message."""
        sequence = self.draft(priority)
        self.set_draft(sequence, payload)
        return sequence

    def order(self, wait_ms: int | None = None, node: bytes = b"worker") -> int:
        """Orders; the request, whose ``ordered`` may come later."""
        command = ask.Order(node, self.request(), wait_ms)
        self.do(command)
        self.tick()
        return command.request

    def ordered(self, request: int, node: bytes = b"worker") -> int | str | None:
        """What an order got: a sequence, or a refusal's code; ``None`` while it waits."""
        answer = self.answer(request, node)
        return answer["sequence"] if isinstance(answer, dict) else answer

    def complete(self, sequence: int) -> None:
        self.ask(ask.Complete(b"worker", self.request(), sequence))

    def fail(self, sequence: int, reason: str = "no") -> None:
        self.ask(ask.Fail(b"worker", self.request(), sequence, reason))

    def abandon_all(self) -> None:
        self.ask(ask.AbandonAll(b"admin", self.request()))

    # --- parked deliveries --------------------------------------------------------------------

    def parked(self) -> list[dict[str, Any]]:
        """The parked deliveries, oldest failure first."""
        listed = self.ask(ask.ListParked(b"admin", self.request()))["parked"]
        assert isinstance(listed, list)
        return listed

    def fetch(self, sequence: int) -> dict[str, Any]:
        return self.ask(ask.Fetch(b"admin", self.request(), sequence))

    def renew(self, sequence: int, receiver: str | None = None) -> None:
        self.ask(ask.Renew(b"admin", self.request(), sequence, receiver))

    def renew_all(self) -> None:
        self.ask(ask.RenewAll(b"admin", self.request()))

    def abandon(self, sequence: int, receiver: str | None = None) -> None:
        self.ask(ask.Abandon(b"admin", self.request(), sequence, receiver))

    # --- the topic ----------------------------------------------------------------------------

    def configure(self, **changes: Any) -> None:
        self.ask(ask.Configure(b"admin", self.request(), changes))

    def describe(self) -> dict[str, Any]:
        return self.ask(ask.Describe(b"admin", self.request()))

    def stats(self) -> dict[str, Any]:
        return self.ask(ask.Stats(b"admin", self.request()))

    def create_topic(self, topic: str, **changes: Any) -> None:
        self.ask(ask.CreateTopic(b"admin", self.request(), changes), topic)

    def delete_topic(self, topic: str | None = None) -> None:
        self.ask(ask.DeleteTopic(b"admin", self.request()), topic)

    def clear(self) -> None:
        self.ask(ask.Clear(b"admin", self.request()))

    def inherit(self, *names: str) -> None:
        """Gives settings back to the broker's defaults."""
        self.ask(ask.Configure(b"admin", self.request(), {}, names))
