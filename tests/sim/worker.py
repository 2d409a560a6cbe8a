"""A worker that can be killed between any two steps of its turn, over a real store in a folder."""

from enum import Enum
from pathlib import Path
from typing import Any

from asterism.actors.shard import Shard, TopicEffect
from asterism.actors.topic import TopicActor
from asterism.commands import ForwardSettled, Suspend
from asterism.effects import Effect, Forward
from asterism.settings import TopicSettings
from asterism.storage.records import unpack
from asterism.storage.store import Budget, Store
from tests.sim.auditor import Forwarded, Step

UNDONE = ("failed", "waiting")
ABANDONED = "abandoned"


class Killed(Enum):
    """Where in its turn a worker is killed."""

    HANDLED = "after the commands, before the end of the turn"
    ENDED = "before the write"  # as a power cut before the sync: what was not synced is lost
    WRITTEN = "before the sync"  # a killed process: the system still has what was written
    SYNCED = "before any effect is performed"
    SENDING = "between two effects"


class WatchedShard(Shard):
    """A shard that lets on what each command caused, dead letters included."""

    def __init__(self, store: Store, defaults: TopicSettings, grace_ms: int) -> None:
        self._carried: list[Forwarded] = []
        super().__init__(store, defaults, grace_ms=grace_ms)

    def caused(self, since: int) -> list[TopicEffect]:
        return self._effects[since:]

    def due_by(self, now_ms: int) -> list[str]:
        return [name for name, due_ms in self._scheduled.items() if due_ms <= now_ms]

    def scheduled_ms(self, topic: str) -> int | None:
        return self._scheduled.get(topic)

    def parked(self) -> list[tuple[str, int, str]]:
        """What is parked where a delivery that a crash undid may have been the last one."""
        found = []
        for name, actor in self.topics.items():
            if actor.settings.max_deliveries is not None:
                for _, row in self._rows.scan(*actor.keys.range_of("p")):
                    _, sequence, receiver, *_ = unpack(row, 6)
                    found.append((name, sequence, receiver))
        return found

    def effect_count(self) -> int:
        return len(self._effects)

    def _forward(self, actor: TopicActor, forward: Forward, now_ms: int) -> None:
        target = self.topics.get(forward.target)
        sequence = self._first_sequence if target is None else target.next_sequence
        seen = Forwarded(actor.name, forward.target, forward.message, sequence)
        self._carried.append(seen)
        self._effects.append((forward.target, seen))  # type: ignore[arg-type]
        super()._forward(actor, forward, now_ms)

    def _settle(self, actor: TopicActor, settled: ForwardSettled, now_ms: int) -> None:
        # Settling may set off the next dead letter, so it is noted before.
        carried = self._carried.pop()
        carried.code, carried.parked_as = settled.code, actor.next_sequence
        super()._settle(actor, settled, now_ms)


class Worker:
    """One shard and its store."""

    def __init__(self, folder: Path, defaults: TopicSettings, grace_ms: int) -> None:
        self._folder = folder
        self._defaults = defaults
        self._grace_ms = grace_ms
        self._budget = Budget()
        self.kills = 0
        self.start()

    def start(self) -> None:
        self.store = Store(self._folder, budget=self._budget)
        self.shard = WatchedShard(self.store, self._defaults, self._grace_ms)

    def settle_in(self, now_ms: int) -> None:
        """The end of a start: what recovery tidied up is written, and clients may come back."""
        self.shard.begin_grace(now_ms)
        self.shard.end_turn()
        self.store.commit()

    def handle(self, topic: str | None, command: Any, now_ms: int) -> Step:
        """One command of a turn; ``None`` is the tick, no topic a lost connection."""
        shard = self.shard
        before = shard.effect_count()
        ticked = shard.due_by(now_ms) if command is None else []
        if command is None:
            shard.tick(now_ms)
        elif isinstance(command, Suspend):
            shard.suspend(command.node, now_ms)
        elif topic is None:
            shard.detach(command.node, now_ms)
        else:
            shard.handle(topic, command, now_ms)
        return Step(topic, command, list(shard.caused(before)), ticked, shard.parked())

    def end_turn(self) -> list[tuple[str, Effect]]:
        """The effects of the turn that leave the worker; nothing is written yet."""
        effects = self.shard.end_turn()
        return [(topic, effect) for topic, effect in effects if not isinstance(effect, Forwarded)]

    def was_counted(self, topic: str, sequence: int, receiver: str) -> bool:
        """Whether a receiver is done with a log message, by the rows; it is if that has ended."""
        actor = self.shard.topics[topic]
        keys, known = actor.keys, actor.receivers.by_name.get(receiver)
        if self.store.get(keys.log(sequence)) is None:
            return True
        fared = [unpack(row, 6)[:2] for _, row in self.store.scan(*keys.fared_all(sequence))]
        status = dict(fared).get(receiver)
        if status in UNDONE and known is not None:
            # Renewed, or parked: what it does then is not noted where nobody wants to know.
            return self.store.get(keys.exception(known.number, sequence)) is None
        return status not in (None, ABANDONED)

    def survived(self, topic: str, receiver: str) -> bool:
        """Whether a receiver is there."""
        return receiver in self.shard.topics[topic].receivers.by_name

    def kill(self) -> None:
        """The process ends: what is pending, and the shard, are gone."""
        self.kills += 1
        self.store.discard()
        self.store.close()

    def close(self) -> None:
        self.store.close()
