"""The auditor: sees every turn that reached the disk, step by step, and checks every promise.

It stands at the worker's door: it is shown each command with the effects it caused, and told of
crashes. What was never written never happened, so a turn that was lost is not shown to it.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

from asterism import commands as ask
from asterism.effects import Accepted, Deliver, EndpointGone, Refuse, Reply, Resolved
from asterism.message import Header, Mode, decode_header
from asterism.settings import TopicSettings
from tests.sim.checking import Checking
from tests.sim.ledger import Survived, WasCounted
from tests.sim.model import DeadLetter, Violation


@dataclass
class Forwarded:
    """A dead letter that the worker carried from one topic to another, and what came of it."""

    source: str
    target: str
    message: tuple[bytes, bytes, bytes]
    sequence: int
    code: str | None = "unsettled"
    parked_as: int = 0  # the sequence that it has at its source, where it was refused for good


@dataclass
class Step:
    """One command and what it caused; no command: time passed, for the topics in ``ticked``."""

    topic: str | None
    command: Any
    effects: list[tuple[str, Any]] = field(default_factory=list)
    ticked: list[str] = field(default_factory=list)
    parked: list[tuple[str, int, str]] = field(default_factory=list)  # topic, sequence, receiver


class Auditor:
    """Holds what the broker does against what it promises."""

    def __init__(
        self, defaults: TopicSettings, was_counted: WasCounted, survived: Survived, grace_ms: int
    ) -> None:
        self.defaults = defaults
        self.grace_ms = grace_ms
        self.was_counted = was_counted
        self.survived = survived
        self.stamps = itertools.count(1)
        self.topics: dict[str, Checking] = {}

    def topic(self, name: str) -> Checking:
        if name not in self.topics:
            topic = Checking(name, self.defaults, self.stamps, self.was_counted, self.survived)
            topic.grace_ms = self.grace_ms
            self.topics[name] = topic
        return self.topics[name]

    # --- turns --------------------------------------------------------------------------------

    def see(self, steps: list[Step], now_ms: int) -> None:
        """A turn reached the disk."""
        for step in steps:
            for topic in self.topics.values():
                topic.step += 1
            self._see_step(step, now_ms)
            for name, sequence, receiver in step.parked:
                self.topic(name).give_up(sequence, receiver, now_ms)
            for topic in self.topics.values():
                topic.check_overtaken()
                if topic.expected or topic.pulls_over:
                    raise topic.fail(f"missing: {topic.expected} {topic.pulls_over}")

    def has_expired(self, now_ms: int) -> bool:
        """Whether a message is held whose time is over."""
        return any(m.expires_ms <= now_ms for t in self.topics.values() for m in t.held())

    def crash(self, now_ms: int) -> None:
        for topic in self.topics.values():
            topic.crash(now_ms)

    def _see_step(self, step: Step, now_ms: int) -> None:
        if step.command is None:
            for name in step.ticked:
                self.topic(name).tick(now_ms)
        elif step.topic is None:
            for topic in self.topics.values():
                topic.apply(step.command, {}, now_ms)
        else:
            self._see_command(step, now_ms)
        for name, effect in step.effects:
            self._see_effect(name, effect, step, now_ms)

    def _see_command(self, step: Step, now_ms: int) -> None:
        command = step.command
        topic = self.topic(step.topic or "")
        answer = _answer_to(step)
        if isinstance(command, ask.CreateTopic):
            topic.override(dict(command.changes))
        elif isinstance(answer, Refuse):
            if not topic.may_refuse(command, answer.code, now_ms):
                raise topic.fail(f"{command} was refused without cause: {answer}")
        elif isinstance(command, ask.Publish):
            if not isinstance(answer, Accepted):
                raise topic.fail(f"{command} has no answer")
            topic.accept_batch(command, answer.results, now_ms)
        elif isinstance(command, ask.Grant | ask.Pull | ask.Order):
            topic.apply(command, {}, now_ms)
        elif isinstance(answer, Reply):
            topic.apply(command, answer.body, now_ms)
            self._see_probe(topic, command, answer.body, now_ms)
        else:
            raise topic.fail(f"{command} has no answer")

    def _see_probe(self, topic: Checking, command: Any, body: dict[str, Any], now_ms: int) -> None:
        match command:
            case ask.AwaitReceipts():
                topic.check_outcomes(command, body, now_ms)
            case ask.Describe():
                topic.check_described(body, now_ms)
                topic.check_nobody_idles(now_ms)
            case ask.Stats():
                topic.check_stats(body, now_ms)
            case ask.ListReceivers():
                topic.check_receivers(body)
            case ask.ListParked():
                topic.check_listed(body)

    def _see_effect(self, name: str, effect: Any, step: Step, now_ms: int) -> None:
        topic = self.topic(name)
        match effect:
            case Deliver():
                topic.check_deliver(effect, now_ms)
            case Resolved():
                topic.check_resolved(effect, now_ms)
            case Reply():
                topic.check_reply(effect, step.command is None, now_ms)
            case EndpointGone():
                topic.check_gone(effect)
            case Forwarded():
                self._see_forwarded(effect, now_ms)
            case _:
                pass

    # --- dead letters -------------------------------------------------------------------------

    def _see_forwarded(self, seen: Forwarded, now_ms: int) -> None:
        source, target = self.topic(seen.source), self.topic(seen.target)
        letter = _matching(source, seen, now_ms)
        if seen.code in ("overflow", "busy"):
            return  # it stays, and is sent again
        source.outbox.remove(letter)
        if seen.code is None:
            message_id, encoded, payload = seen.message
            header = decode_header(encoded)
            target.check_acceptable(header, payload, now_ms)
            target.accept(seen.sequence, message_id, header, payload, None, 0, now_ms)
        elif seen.code != "duplicate" or target.twin_of(seen.message[2]) is None:
            raise source.fail(f"a dead letter was refused for good: {seen.code}")
        else:
            source.park_letter(seen.parked_as, seen.message, letter.receiver.name, now_ms)


def _answer_to(step: Step) -> Any:
    key = (step.command.node, step.command.request)
    for _, effect in step.effects:
        if isinstance(effect, Accepted | Reply | Refuse) and (effect.node, effect.request) == key:
            return effect
    return None


def _matching(source: Checking, seen: Forwarded, now_ms: int) -> DeadLetter:
    """The dead letter that this is; it must be what failed, with the reason added."""
    name = decode_header(seen.message[1]).attributes["dead-letter-receiver"]
    for message, _, _ in source.doomed():
        if message.id == seen.message[0]:
            source.give_up(message.sequence, name, now_ms)
            break
    for letter in source.outbox:
        if letter.target == seen.target and _is_moved(source.name, letter, seen):
            return letter
    raise Violation(f"{source.name}: a dead letter that nothing failed for: {seen}")


def _is_moved(source: str, letter: DeadLetter, seen: Forwarded) -> bool:
    message_id, encoded, payload = seen.message
    message, header = letter.message, decode_header(encoded)
    added = {"dead-letter-topic": source, "dead-letter-receiver": letter.receiver.name}
    if letter.reason:
        added["dead-letter-reason"] = letter.reason
    attributes = dict(header.attributes)
    if not letter.reason:
        attributes.pop("dead-letter-reason", None)
    old = message.header
    moved = Header(
        Mode.DURABLE, old.expect, old.subjects, old.attributes | added, old.max_receivers,
        priority=old.priority, ordering_key=old.ordering_key,
    )  # fmt: skip
    told = Header(
        header.mode, header.expect, header.subjects, attributes, header.max_receivers,
        header.expires_ms, header.priority, header.deliver_ms, header.ordering_key, header.receipt,
    )  # fmt: skip
    return (message_id, payload, told) == (message.id, message.payload, moved)
