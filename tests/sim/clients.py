"""Those who use the broker: publishers that retry, consumers that fail, stall and vanish."""

from collections import deque
from random import Random
from typing import Any, Protocol

from asterism import commands as ask
from asterism import limits
from asterism.effects import Accepted, Deliver, EndpointGone, Refusal, Refuse, Reply, Resolved
from asterism.message import Status, decode_header
from tests.sim import chance
from tests.sim.model import Violation
from tests.sim.network import Connection, Network
from tests.support.delivered import deliveries_of


class Surroundings(Protocol):
    """What a client sees of the world."""

    rng: Random
    now_ms: int
    network: Network
    healthy: bool  # faults have stopped: everybody does what they should
    topics: list[str]

    def request(self) -> int: ...
    def count(self) -> int: ...


class Client:
    """Somebody with a connection."""

    def __init__(self, world: Surroundings, name: str) -> None:
        self.world = world
        self.name = name
        self.connection: Connection | None = None

    def send(self, topic: str, command: Any) -> None:
        assert self.connection is not None
        self.connection.to_worker.append((topic, command))

    @property
    def node(self) -> bytes:
        assert self.connection is not None
        return self.connection.node

    def act(self) -> None:
        """Connects if need be, reads what has come, does something."""
        world = self.world
        if self.connection is None:
            self.connection = world.network.connect(self.name)
            self.connected()
        inbound = self.connection.to_client
        read = len(inbound) if world.healthy else world.rng.randint(0, len(inbound))
        for _ in range(read):
            topic, effect = inbound.popleft()
            self.receive(topic, effect)
        self.do()

    def vanish(self) -> None:
        """The connection breaks."""
        if self.connection is not None:
            self.world.network.break_off(self.connection)
            self.connection = None

    def connected(self) -> None: ...
    def receive(self, topic: str, effect: Any) -> None: ...
    def do(self) -> None: ...

    def crashed(self) -> None:
        """The worker is another one: what it knew of this connection is gone."""


class Publisher(Client):
    """Publishes as one producer on one topic, several batches at a time, until each is answered."""

    def __init__(self, world: Surroundings, name: str, topic: str) -> None:
        super().__init__(world, name)
        self.topic = topic
        self.producer = name.encode().ljust(16, b".")
        self.next_number = 1
        self.unanswered: deque[tuple[int, tuple[ask.Incoming, ...]]] = deque()
        self.asked: dict[int, tuple[int, tuple[ask.Incoming, ...]]] = {}
        self.results: dict[int, int | Refusal] = {}
        self.awaited: dict[int, None] = {}
        self.verdicts: dict[int, str] = {}
        self.rewind = False
        self.ask_receipts = False

    def connected(self) -> None:
        self.crashed()

    def crashed(self) -> None:
        self.rewind = True
        self.ask_receipts = True

    def do(self) -> None:
        world = self.world
        if self.rewind:
            self.rewind = False
            for batch in self.unanswered:
                self.publish(batch)
        if self.ask_receipts and self.awaited:
            self.ask_receipts = False
            numbers = tuple(self.awaited)
            sequences = tuple(self.sequence_of(number) for number in numbers)
            command = ask.AwaitReceipts(
                self.node, world.request(), self.producer, numbers, sequences
            )
            self.send(self.topic, command)
        if not world.healthy and len(self.unanswered) < 3 and world.rng.random() < 0.7:
            self.publish_new()

    def sequence_of(self, number: int) -> int:
        result = self.results[number]
        assert isinstance(result, int)
        return result

    def publish_new(self) -> None:
        world, messages = self.world, []
        for _ in range(world.rng.choice((1, 1, 2, 4))):
            count = world.count()
            encoded = chance.header(world.rng, world.now_ms).encoded
            payload = chance.payload(world.rng, count)
            messages.append((count.to_bytes(16, "big"), encoded, payload))
        batch = (self.next_number, tuple(messages))
        self.next_number += len(messages)
        self.unanswered.append(batch)
        self.publish(batch)

    def publish(self, batch: tuple[int, tuple[ask.Incoming, ...]]) -> None:
        first, messages = batch
        request = self.world.request()
        self.asked[request] = batch
        settled = 0
        while settled + 1 in self.results:
            settled += 1
        command = ask.Publish(self.node, request, messages, self.producer, first, settled)
        self.send(self.topic, command)

    def receive(self, topic: str, effect: Any) -> None:
        match effect:
            case Accepted():
                self.accepted(effect)
            case Refuse():
                if effect.request in self.asked and self.asked[effect.request] in self.unanswered:
                    self.rewind = True
            case Resolved():
                self.resolved(effect.number, effect.verdict)
            case Reply():
                for number, verdict, _ in effect.body.get("outcomes", ()):
                    if verdict == "unknown":
                        self.awaited.pop(number, None)
                    elif verdict != "pending":
                        self.resolved(number, verdict)

    def accepted(self, effect: Accepted) -> None:
        batch = self.asked.pop(effect.request)
        first, messages = batch
        for index, result in enumerate(effect.results):
            number = first + index
            if self.results.setdefault(number, result) != result:
                raise Violation(f"{self.name}: number {number} was answered in two ways")
            wants = decode_header(messages[index][1]).receipt
            if wants and isinstance(result, int) and number not in self.verdicts:
                self.awaited[number] = None
        if batch in self.unanswered:
            self.unanswered.remove(batch)

    def resolved(self, number: int, verdict: str) -> None:
        if self.verdicts.setdefault(number, verdict) != verdict:
            raise Violation(f"{self.name}: number {number} was resolved in two ways")
        self.awaited.pop(number, None)


class Shouter(Client):
    """Publishes without an identity, and never asks what became of it."""

    def do(self) -> None:
        world = self.world
        if world.healthy or world.rng.random() < 0.6:
            return
        count = world.count()
        encoded = chance.header(world.rng, world.now_ms, receipts=False).encoded
        message = (count.to_bytes(16, "big"), encoded, chance.payload(world.rng, count))
        topic = world.rng.choice(world.topics)
        self.send(topic, ask.Publish(self.node, world.request(), (message,)))


class Seat:
    """One endpoint of a consumer."""

    def __init__(self, topic: str, number: int, fields: dict[str, Any], pulls: bool) -> None:
        self.topic = topic
        self.number = number
        self.fields = fields
        self.pulls = pulls
        self.interests: tuple[str, ...] = ("**",)
        self.subscribed = "no"
        self.asking: int | None = None
        self.pull: int | None = None
        self.held: dict[int, tuple[int, str]] = {}  # sequence -> attempt, step
        self.kept: dict[int, int] = {}  # sequence -> attempt: held when the endpoint was lost
        self.named: dict[int, int] = {}  # of those, what it said that it holds
        self.nodes: list[bytes] = []  # as which it may have been given them
        self.past: list[tuple[int, int]] = []
        self.to_grant = 0
        self.window_open = False

    def leave(self) -> None:
        self.subscribed = "no"
        self.asking = self.pull = None
        self.past += [(sequence, attempt) for sequence, (attempt, _) in self.held.items()]
        self.kept |= {sequence: attempt for sequence, (attempt, _) in self.held.items()}
        self.held.clear()
        self.to_grant = 0
        self.window_open = False

    def came_back(self, node: bytes, lost: list[int]) -> None:
        """What it named is its own again, but for these."""
        self.nodes = [node]
        for sequence, attempt in self.named.items():
            if sequence not in lost:
                self.held.setdefault(sequence, (attempt, "sent"))
        self.kept, self.named = {}, {}


class Consumer(Client):
    """Receives on a few endpoints, in its own manner."""

    def __init__(self, world: Surroundings, name: str, seats: list[Seat]) -> None:
        super().__init__(world, name)
        self.seats = seats
        rng = world.rng
        self.fails = rng.choice((0.0, 0.1, 0.4))
        self.stalls = rng.choice((0.0, 0.2, 0.6))
        self.restless = rng.choice((0.0, 0.02, 0.06))
        self.confused = False

    def connected(self) -> None:
        for seat in self.seats:
            seat.leave()

    def crashed(self) -> None:
        self.connected()

    def seat(self, topic: str, number: int) -> Seat:
        return next(s for s in self.seats if (s.topic, s.number) == (topic, number))

    def receive(self, topic: str, effect: Any) -> None:
        match effect:
            case Deliver():
                self.delivered(self.seat(topic, effect.endpoint), effect)
            case EndpointGone():
                self.seat(topic, effect.endpoint).leave()
            case Reply() | Refuse():
                for seat in self.seats:
                    self.answered(seat, effect)

    def answered(self, seat: Seat, effect: Reply | Refuse) -> None:
        if effect.request == seat.asking:
            seat.asking = None
            seat.subscribed = "yes" if isinstance(effect, Reply) else "no"
            self.confused |= isinstance(effect, Refuse)
            if isinstance(effect, Reply):
                seat.came_back(effect.node, effect.body.get("lost", []))
        elif effect.request == seat.pull:
            seat.pull = None
            if isinstance(effect, Refuse) and effect.code == "no_such_receiver":
                seat.leave()

    def delivered(self, seat: Seat, effect: Deliver) -> None:
        for delivered in deliveries_of(effect):
            if decode_header(delivered.header).expect is Status.SENT:
                seat.to_grant += 1
            else:
                seat.held[delivered.sequence] = (delivered.attempt, "sent")

    def do(self) -> None:
        if self.confused:
            # An earlier subscription of this connection was not lost after all: begin anew.
            self.confused = False
            self.vanish()
            return
        for seat in self.seats:
            if seat.subscribed == "no":
                self.subscribe(seat)
            elif self.world.healthy:
                self.serve_well(seat)
            elif self.world.rng.random() >= self.stalls:
                self.serve(seat)

    def subscribe(self, seat: Seat) -> None:
        world, fields = self.world, dict(seat.fields)
        if not world.healthy and world.rng.random() < 0.15:
            seat.interests = chance.interests(world.rng)
        if not world.healthy and world.rng.random() < 0.1:
            fields["sent_timeout_ms"] = world.rng.choice((100, 700))
        credit = 0 if seat.pulls else world.rng.randint(0, 6)
        if seat.nodes:
            credit = self.say_holding(seat, credit, fields)
        seat.nodes = [*seat.nodes, self.node][-limits.HOLDING_SESSIONS_MAX :]
        seat.asking = world.request()
        seat.subscribed = "asked"
        command = ask.Subscribe(
            self.node, seat.asking, seat.number, seat.interests, credit=credit, **fields
        )
        self.send(seat.topic, command)

    def say_holding(self, seat: Seat, credit: int, fields: dict[str, Any]) -> int:
        """Says what it holds, or a part of it, or nothing; the credit that it may ask for then.

        Which of several take credit, where there is not enough for all, is the broker's choice.
        """
        world, roll = self.world, self.world.rng.random()
        if roll < 0.15 and not world.healthy:
            seat.named = {}
            return 0  # it is taken to hold all
        seat.named = dict(seat.kept)
        if roll < 0.3 and not world.healthy:
            some = world.rng.sample(sorted(seat.kept), world.rng.randint(0, len(seat.kept)))
            seat.named = {sequence: seat.kept[sequence] for sequence in some}
        nodes = tuple(dict.fromkeys(seat.nodes))
        fields["holding"] = (nodes, tuple(seat.named), tuple(seat.named.values()))
        return credit + len(seat.named) if credit else 0

    def report(self, seat: Seat, status: Status, sequences: list[tuple[int, int]]) -> None:
        numbers = tuple(sequence for sequence, _ in sequences)
        attempts = tuple(attempt for _, attempt in sequences)
        reason = "it broke" if status is Status.FAILED else ""
        # Now and then a receiver's name speaks for it, as a gateway does.
        name = seat.fields.get("name") if self.world.rng.random() < 0.1 else None
        command = ask.Report(
            self.node, self.world.request(), seat.number, status, numbers, reason, name, attempts
        )
        self.send(seat.topic, command)

    def give_credit(self, seat: Seat, credit: int, less: int = 0) -> None:
        command = ask.Grant(self.node, self.world.request(), seat.number, credit, less)
        self.send(seat.topic, command)

    def serve_well(self, seat: Seat) -> None:
        if seat.held:
            pairs = [(sequence, attempt) for sequence, (attempt, _) in seat.held.items()]
            self.report(seat, Status.PROCESSED, pairs)
            seat.held.clear()
        if not seat.window_open:
            seat.window_open = True
            self.give_credit(seat, 500)

    def serve(self, seat: Seat) -> None:
        rng = self.world.rng
        if seat.to_grant and not seat.pulls:
            self.give_credit(seat, seat.to_grant)
            seat.to_grant = 0
        if seat.pulls and seat.pull is None and seat.subscribed == "yes":
            seat.pull = self.world.request()
            count, wait_ms = rng.randint(1, 4), rng.choice((0, 100, 2_000))
            self.send(seat.topic, ask.Pull(self.node, seat.pull, seat.number, count, wait_ms))
        chosen = rng.sample(sorted(seat.held), rng.randint(0, min(3, len(seat.held))))
        if chosen:
            self.work_on(seat, chosen)
        if rng.random() < self.restless:
            self.fidget(seat)

    def work_on(self, seat: Seat, chosen: list[int]) -> None:
        rng = self.world.rng
        pairs = [(sequence, seat.held[sequence][0]) for sequence in chosen]
        roll = rng.random()
        if roll < self.fails:
            self.report(seat, Status.FAILED, pairs)
        elif roll < self.fails + 0.15:
            self.report(seat, Status.RECEIVED, pairs)
            return
        elif roll < self.fails + 0.22:
            self.extend(seat, chosen)
            return
        else:
            self.report(seat, Status.PROCESSED, pairs)
        for sequence in chosen:
            seat.past.append((sequence, seat.held.pop(sequence)[0]))

    def extend(self, seat: Seat, chosen: list[int]) -> None:
        """Moves deadlines; or renews the leases of some, or of all that it holds."""
        rng, number = self.world.rng, self.world.request()
        timeout_ms = rng.choice((0, 300, 4_000, None, None))
        sequences, attempts = tuple(chosen), None
        if timeout_ms is None or rng.random() < 0.3:
            sequences = tuple(seat.held) if rng.random() < 0.7 else sequences
            attempts = tuple(seat.held[sequence][0] for sequence in sequences)
        command = ask.Extend(
            self.node, number, seat.number, sequences, timeout_ms, attempts=attempts
        )
        self.send(seat.topic, command)

    def fidget(self, seat: Seat) -> None:
        """What a consumer does now and then: other interests, old reports, leaving."""
        rng, node, request = self.world.rng, self.node, self.world.request()
        roll = rng.random()
        if roll < 0.3:
            seat.interests = chance.interests(rng)
            self.send(seat.topic, ask.SetInterests(node, request, seat.number, seat.interests))
        elif roll < 0.6 and seat.past:
            pairs = rng.sample(seat.past, min(2, len(seat.past)))
            self.report(seat, rng.choice((Status.PROCESSED, Status.FAILED)), pairs)
        elif roll < 0.8 and seat.pull is not None:
            self.send(seat.topic, ask.CancelWait(node, request, seat.pull))
        elif roll < 0.9:
            less = 0 if seat.pulls else rng.choice((0, 0, 1, 4))
            self.give_credit(seat, rng.randint(less == 0, 3), less)
        else:
            self.send(seat.topic, ask.Unsubscribe(node, request, seat.number))
            seat.leave()
