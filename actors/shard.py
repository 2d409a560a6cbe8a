"""A shard: the topics of one store, and the turn in which they act. Pure but for its rows.

The shard names topics, makes and deletes them, hands each command to its actor, carries dead
letters between topics of the same store, and knows when something is due. A host drives it:

    shard.handle(topic, command, now_ms)   any number of times; effects are kept
    shard.tick(now_ms)                     what has become due
    effects = shard.end_turn()             writes what the turn changed; commit the rows, synced
    … and only then perform the effects, in order.

A host that syncs less often must sync a turn that ``must_sync`` before it performs its effects.
"""

from heapq import heapify, heappop, heappush

from asterism import checks, limits
from asterism import commands as ask
from asterism.actors.receivers import Matcher
from asterism.actors.recovery import recover
from asterism.actors.topic import TopicActor
from asterism.commands import Command, CreateTopic, DeleteTopic, ForwardSettled, Publish, Request
from asterism.effects import Accepted, Effect, Forward, Refuse, Reply
from asterism.errors import PeerError
from asterism.rows import Rows
from asterism.settings import DEFAULT_BOUNDS, Bounds, TopicSettings
from asterism.storage.keys import STORE_NEXT, STORE_SNAPSHOT, STORE_TOPIC, after
from asterism.storage.records import pack, unpack

OUTDATED_MAX = 1_000  # times in the heap that hold no more, beyond one a topic
FORWARDER = b"\x00forwarder"  # the node as which dead letters are published


TopicEffect = tuple[str, Effect]
"""An effect behind the topic that it is of."""


class Shard:
    """All topics of one store."""

    def __init__(
        self,
        rows: Rows,
        defaults: TopicSettings,
        auto_create: bool = True,
        bounds: Bounds = DEFAULT_BOUNDS,
        grace_ms: int = 0,
    ) -> None:
        self._rows = rows
        self._bounds = bounds
        self._defaults = defaults
        self._auto_create = auto_create
        self._grace_ms = grace_ms
        self.topics: dict[str, TopicActor] = {}
        self._nodes: dict[bytes, dict[str, None]] = {}  # node -> topics that it has been on
        self._effects: list[TopicEffect] = []
        self.handed_bytes = 0  # payloads that topics have sent in this turn
        self._touched: dict[str, TopicActor] = {}
        self._due: list[tuple[int, str]] = []
        self._scheduled: dict[str, int] = {}
        self._next_topic, self._first_sequence = 1, 1
        self._has_numbered = False  # topics were made or deleted in this turn
        self.must_sync = False  # the turn that ended last gave numbers that must not be given again
        self._recover()

    def _recover(self) -> None:
        row = self._rows.get(STORE_NEXT)
        if row is not None:
            self._next_topic, self._first_sequence = unpack(row, 2)
        for key, value in list(self._rows.scan(STORE_TOPIC, after(STORE_TOPIC))):
            name = key[len(STORE_TOPIC) :].decode()
            number, matcher = int.from_bytes(value, "big"), self.matcher_for(name)
            actor = recover(
                name, number, self._rows, self._defaults, matcher, self._bounds, self._grace_ms
            )
            self.topics[name] = self._touched[name] = actor
            for node in actor.absent_nodes():
                self._nodes.setdefault(node, {})[name] = None

    # --- commands ---------------------------------------------------------------------------

    def handle(self, topic: str, command: Command | CreateTopic | DeleteTopic, now_ms: int) -> None:
        """Gives a command to a topic; its effects come with ``end_turn``."""
        try:
            actor = self.topics.get(topic) if type(topic) is str else None
            if actor is None:  # the name of one that is there was checked when it was made
                checks.topic_name(topic)
            if isinstance(command, CreateTopic):
                self._create(topic, command, now_ms)
            elif isinstance(command, DeleteTopic):
                self._delete(topic, command, now_ms)
            else:
                if actor is None:
                    actor = self._find(topic, command, now_ms)
                effects = actor.handle(command, now_ms)
                self._perform(actor, effects, now_ms)
                if type(command) is ask.Subscribe or type(command) is ask.Order:
                    self._note_node(command.node, topic, effects)
        except PeerError as error:
            if isinstance(command, Request) and not isinstance(command, ask.Grant | ask.Detach):
                refusal = Refuse(
                    command.node, command.request, error.code, error.detail, error.retry_after_ms
                )
                self._effects.append((topic, refusal))

    def _note_node(self, node: bytes, topic: str, effects: list[Effect]) -> None:
        """A node is on a topic, unless it was refused: that leaves nothing to take off."""
        if not any(type(effect) is Refuse and effect.node == node for effect in effects):
            self._nodes.setdefault(node, {})[topic] = None

    def has_node(self, node: bytes) -> bool:
        """Is a node on a topic, or was it?"""
        return node in self._nodes

    def detach(self, node: bytes, now_ms: int) -> None:
        """A connection is gone: every topic that it was on is told."""
        for name in self._nodes.pop(node, {}):
            actor = self.topics.get(name)
            if actor is not None:
                self._perform(actor, actor.handle(ask.Detach(node, 0), now_ms), now_ms)

    def suspend(self, node: bytes, now_ms: int) -> None:
        """A connection is lost and may come back: every topic that it was on keeps what it held."""
        for name in self._nodes.get(node, {}):
            actor = self.topics.get(name)
            if actor is not None:
                self._perform(actor, actor.handle(ask.Suspend(node, 0), now_ms), now_ms)

    def begin_grace(self, now_ms: int) -> None:
        """Clients can reach the topics: what a restart found to be out is kept from now on."""
        for name, actor in self.topics.items():
            if actor.absent_nodes():
                actor.begin_grace(now_ms + self._grace_ms)
                self._touched[name] = actor

    def absent_nodes(self) -> list[bytes]:
        """The nodes for which topics keep something."""
        return [node for actor in self.topics.values() for node in actor.absent_nodes()]

    def forget_nodes(self) -> None:
        """No connection of before will end, be lost or come back under its own name."""
        self._nodes.clear()

    def _find(self, name: str, command: Command, now_ms: int) -> TopicActor:
        actor = self.topics.get(name)
        if actor is None:
            if not self._auto_create or not isinstance(command, _CREATES):
                raise PeerError("no_such_topic", f"there is no topic {name!r}")
            actor = self._make(name)
        return actor

    def _make(self, name: str) -> TopicActor:
        count = self.topic_count()
        if count >= self._bounds.topics:
            detail = (
                f"the store that {name!r} would be in has {count} topics, as many as it may: "
                "delete some, or raise max_topics"
            )
            raise PeerError("busy", detail, limits.FULL_RETRY_MS)
        number = self._next_topic
        self._next_topic += 1
        matcher, first = self.matcher_for(name), self._first_sequence
        actor = TopicActor(
            name,
            number,
            self._rows,
            self._defaults,
            first,
            matcher,
            self._bounds,
            self._grace_ms,
        )
        self.topics[name] = self._touched[name] = actor
        self._rows.put(STORE_TOPIC + name.encode(), number.to_bytes(4, "big"))
        self._write_next()
        return actor

    def _write_next(self) -> None:
        self._rows.put(STORE_NEXT, pack(self._next_topic, self._first_sequence))
        self._has_numbered = True

    def _create(self, name: str, command: CreateTopic, now_ms: int) -> None:
        if name in self.topics:
            raise PeerError("topic_exists", f"there is a topic {name!r}")
        self._defaults.changed(dict(command.changes))  # refused before anything is made
        if command.changes.get("dead_letter") == name:
            raise PeerError("bad_request", "a topic cannot be its own dead-letter topic")
        actor = self._make(name)
        actor.configure(dict(command.changes), (), now_ms)
        self._effects.append((name, Reply(command.node, command.request)))

    def _delete(self, name: str, command: DeleteTopic, now_ms: int) -> None:
        actor = self.topics.pop(name, None)
        if actor is None:
            raise PeerError("no_such_topic", f"there is no topic {name!r}")
        self._perform(actor, actor.delete(now_ms), now_ms)
        self._touched.pop(name, None)
        self._scheduled.pop(name, None)
        self.forget_topic(name)
        self._rows.delete(STORE_TOPIC + name.encode())
        # A topic of the same name must not give a sequence that somebody may still remember.
        self._first_sequence = max(self._first_sequence, actor.next_sequence)
        self._write_next()
        self._effects.append((name, Reply(command.node, command.request)))

    # --- effects ----------------------------------------------------------------------------

    def _perform(self, actor: TopicActor, effects: list[Effect], now_ms: int) -> None:
        self._touched[actor.name] = actor
        self.handed_bytes += actor.handed_bytes
        for effect in effects:
            if type(effect) is Forward:
                self._forward(actor, effect, now_ms)
            else:
                self._effects.append((actor.name, effect))

    def _forward(self, actor: TopicActor, forward: Forward, now_ms: int) -> None:
        """Publishes a dead letter to a topic of this store; others are the host's to carry."""
        if not self.owns(forward.target):
            self._effects.append((actor.name, forward))
            return
        publish = Publish(
            FORWARDER,
            forward.number,
            (forward.message,),
            forward.producer,
            forward.count,
            forward.settled,
        )
        try:
            target = self._find(forward.target, publish, now_ms)
        except PeerError as error:
            self._settle(actor, ForwardSettled(forward.number, error.code, error.detail), now_ms)
            return
        for effect in target.handle(publish, now_ms):
            if isinstance(effect, Accepted | Refuse) and effect.node == FORWARDER:
                self._settle(actor, forward_answer(forward.number, effect), now_ms)
            elif isinstance(effect, Forward):
                self._forward(target, effect, now_ms)
            else:
                self._effects.append((target.name, effect))
        self._touched[target.name] = target
        self.handed_bytes += target.handed_bytes

    def topic_count(self) -> int:
        """How many topics this store answers for; a host adds those that have their own store."""
        return len(self.topics)

    def owns(self, topic: str) -> bool:
        """Is this topic one of this store? A host with several stores decides by placement."""
        return True

    def matcher_for(self, topic: str) -> Matcher | None:
        """Who resolves a topic's interests; ``None``: the topic itself."""
        return None

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: whoever resolved its interests need not know them any more."""

    def _settle(self, actor: TopicActor, settled: ForwardSettled, now_ms: int) -> None:
        self._perform(actor, actor.handle(settled, now_ms), now_ms)

    # --- time and turns ---------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """When ``tick`` has something to do next."""
        return self._due[0][0] if self._due else None

    def has_turn(self, now_ms: int) -> bool:
        """Was anything done since the last turn, or is something due?"""
        due = self._due
        return bool(self._touched or self._effects or (due and due[0][0] <= now_ms))

    @property
    def has_handed_enough(self) -> bool:
        """Have the topics sent as much in this turn as one of them may? Then it should end."""
        return self.handed_bytes >= limits.HANDED_BYTES_MAX

    def tick(self, now_ms: int) -> None:
        """Lets every topic do what has become due; the next turn goes on where that is much."""
        while self._due and self._due[0][0] <= now_ms and not self.has_handed_enough:
            due_ms, name = heappop(self._due)
            if self._scheduled.get(name) == due_ms:
                del self._scheduled[name]
                actor = self.topics[name]
                self._perform(actor, actor.tick(now_ms), now_ms)

    def note_snapshot(self, now_ms: int) -> int:
        """The time of a snapshot that this turn ends with: history before it is complete.

        It is kept with the rows, so that nothing is filed before it after a restart either,
        whatever the clock says by then.
        """
        time_ms = max(now_ms, int.from_bytes(self._rows.get(STORE_SNAPSHOT) or b"", "big"))
        self._rows.put(STORE_SNAPSHOT, time_ms.to_bytes(8, "big"))
        return time_ms

    def end_turn(self) -> list[TopicEffect]:
        """Writes what the turn changed and returns its effects: commit before performing them."""
        self.must_sync, self._has_numbered = self._has_numbered, False
        for name, actor in self._touched.items():
            self.must_sync |= actor.end_turn()
            due_ms = actor.next_due_ms()
            if due_ms is not None and self._scheduled.get(name) != due_ms:
                self._schedule(name, due_ms)
        self._touched.clear()
        self.handed_bytes = 0
        effects, self._effects = self._effects, []
        return effects

    def _schedule(self, name: str, due_ms: int) -> None:
        """Remembers when a topic has something to do; what it said before is found out of date."""
        self._scheduled[name] = due_ms
        heappush(self._due, (due_ms, name))
        if len(self._due) > 2 * len(self._scheduled) + OUTDATED_MAX:
            self._due = [(due_ms, name) for name, due_ms in self._scheduled.items()]
            heapify(self._due)


def forward_answer(number: int, effect: Accepted | Refuse) -> ForwardSettled:
    """What the answer to a forwarded publish means for the topic it came from."""
    if isinstance(effect, Refuse):
        return ForwardSettled(number, effect.code, effect.detail)
    result = effect.results[0]
    if isinstance(result, int):
        return ForwardSettled(number)
    return ForwardSettled(number, result.code, result.detail, counted=True)


_CREATES = (
    ask.Publish,
    ask.Subscribe,
    ask.CreateReceiver,
    ask.Draft,
    ask.Order,
    ask.Configure,
)
