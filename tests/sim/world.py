"""One run: a world made from a seed, its faulty days, and what must be true when faults stop."""

import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from asterism import commands as ask
from asterism.settings import DropOld, TopicSettings
from tests.sim import chance
from tests.sim.auditor import Auditor, Step
from tests.sim.clients import Client, Consumer, Publisher, Seat, Shouter
from tests.sim.leftovers import leftovers
from tests.sim.liveness import check_nothing_is_owed
from tests.sim.model import Receiver, State, Violation
from tests.sim.network import Network
from tests.sim.telling import told
from tests.sim.work import Admin, WorkClient
from tests.sim.worker import Killed, Worker

START_MS = 1_700_000_000_000
STEPS = 220
DAY_MS = 86_400_000
PROBE = b"probe"


class World:
    """Everything in one run."""

    def __init__(self, seed: int, steps: int = STEPS, tell: Callable[[str], None] | None = None):
        self.seed = seed
        self.steps = steps
        self.tell = tell
        self.rng = Random(seed)
        self.now_ms = START_MS
        self.healthy = False
        self.network = Network()
        self._requests = itertools.count(1)
        self._counts = itertools.count(1)
        defaults = TopicSettings()
        memory = Path("/dev/shm")
        place = memory if memory.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="asterism-sim-", dir=place))
        self.grace_ms = self.rng.choice((0, 500, 5_000))
        self.worker = Worker(self.folder / "store", defaults, self.grace_ms)
        self.auditor = Auditor(
            defaults, self.worker.was_counted, self.worker.survived, self.grace_ms
        )
        self.topics = ["alpha", "beta", "gamma"][: self.rng.randint(1, 3)]
        self.crashes = self.rng.choice((0.0, 0.03, 0.1))
        self.breaks = self.rng.choice((0.0, 0.02, 0.06))
        self.jumps = self.rng.choice((0.01, 0.03))
        self.early_tick = self.rng.random() < 0.5
        self.clients: list[Client] = []
        self._heirs: set[tuple[Receiver, str]] = set()
        self._make_topics()
        self._make_clients()

    def request(self) -> int:
        return next(self._requests)

    def count(self) -> int:
        return next(self._counts)

    def say(self, what: str) -> None:
        if self.tell is not None:
            self.tell(f"{self.now_ms - START_MS:>9} {what}")

    # --- making -------------------------------------------------------------------------------

    def _make_topics(self) -> None:
        steps = []
        for name in self.topics:
            others = [other for other in self.topics if other > name]
            changes = chance.settings(self.rng, others)
            command = ask.CreateTopic(PROBE, self.request(), changes)
            self.say(f"{name} {changes}")
            steps.append(self.worker.handle(name, command, self.now_ms))
        self.worker.end_turn()
        self.worker.store.commit()
        self.auditor.see(steps, self.now_ms)

    def _make_clients(self) -> None:
        rng = self.rng
        for number in range(rng.randint(1, 3)):
            self.clients.append(Publisher(self, f"pub{number}", rng.choice(self.topics)))
        if rng.random() < 0.2:
            self.clients.append(Shouter(self, "shouter"))
        for number in range(rng.randint(1, 4)):
            seats = [self._seat(index + 1) for index in range(rng.choice((1, 1, 2)))]
            self.clients.append(Consumer(self, f"con{number}", seats))
        if rng.random() < 0.5:
            self.clients.append(WorkClient(self, "work", rng.choice(self.topics)))
        if rng.random() < 0.5:
            self.clients.append(Admin(self, "admin", self.auditor))

    def _seat(self, number: int) -> Seat:
        rng = self.rng
        roll = rng.random()
        fields: dict[str, Any] = {}
        if roll < 0.35:
            fields["name"] = rng.choice(chance.NAMES)
        elif roll < 0.65:
            fields["group"] = rng.choice(chance.GROUPS)
        elif roll < 0.75:
            fields.update(group="casual", durable=False)
        seat = Seat(rng.choice(self.topics), number, fields, pulls=rng.random() < 0.3)
        seat.interests = chance.interests(rng)
        return seat

    # --- running ------------------------------------------------------------------------------

    def run(self) -> None:
        """The whole of it; raises ``Violation``, or whatever the broker raised."""
        try:
            for _ in range(self.steps):
                self.step()
            self.recover()
        finally:
            self.worker.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def step(self) -> None:
        rng = self.rng
        roll = rng.random()
        if roll < 0.5:
            client = rng.choice(self.clients)
            client.act()
            if rng.random() < self.breaks:
                self.say(f"{client.name} loses its connection")
                client.vanish()
        else:
            self.turn(self.draw_items(), self.draw_kill())
        self.now_ms += rng.choice((0, 0, 1, 5, 20))
        if rng.random() < self.jumps:
            self.now_ms += rng.choice((150, 1_000, 6_000, 30_000))

    def draw_items(self) -> list[tuple[str | None, Any]]:
        """What the worker finds when it drains its sockets."""
        rng, network = self.rng, self.network
        items: list[tuple[str | None, Any]] = []
        if network.lost_nodes and rng.random() < 0.5:
            node = network.lost_nodes.popleft()
            if node not in network.suspended and rng.random() < 0.5:
                # A lane is lost, or the front-end is another: it is over later, or never is.
                network.suspended.add(node)
                if rng.random() < 0.7:
                    network.lost_nodes.append(node)
                items.append((None, ask.Suspend(node, 0)))
            else:
                items.append((None, ask.Detach(node, 0)))
        for _ in range(rng.randint(0, 6)):
            busy = network.busy()
            if busy:
                items.append(rng.choice(busy).to_worker.popleft())
        return items

    def draw_kill(self) -> Killed | None:
        return self.rng.choice(list(Killed)) if self.rng.random() < self.crashes else None

    def turn(self, items: list[tuple[str | None, Any]], kill: Killed | None = None) -> None:
        """One turn of the worker, which may be killed on its way."""
        worker, steps = self.worker, []
        if self.early_tick or self.drops_old() or self.auditor.has_expired(self.now_ms):
            steps.append(worker.handle(None, None, self.now_ms))
        for topic, command in items:
            steps.append(worker.handle(topic, command, self.now_ms))
        steps.append(worker.handle(None, None, self.now_ms))
        steps += self.probe()
        if kill is Killed.HANDLED:
            return self.crash(kill)
        effects = worker.end_turn()
        if kill is Killed.ENDED:
            return self.crash(kill)
        worker.store.write()
        self.tell_steps(steps)
        self.auditor.see(steps, self.now_ms)
        self.check_schedule()
        if kill is Killed.WRITTEN:
            return self.crash(kill)
        worker.store.sync()
        if kill is Killed.SYNCED:
            return self.crash(kill)
        sent = self.rng.randint(0, len(effects)) if kill is Killed.SENDING else len(effects)
        for topic, effect in effects[:sent]:
            self.network.carry(topic, effect)
        if kill is Killed.SENDING:
            self.crash(kill)
        return None

    def check_schedule(self) -> None:
        """The worker knows of everything that will be due."""
        for name, topic in self.auditor.topics.items():
            due_ms, scheduled_ms = topic.next_due_ms(), self.worker.shard.scheduled_ms(name)
            if due_ms is not None and (scheduled_ms is None or scheduled_ms > due_ms):
                raise topic.fail(f"something is due at {due_ms}, scheduled is {scheduled_ms}")

    def drops_old(self) -> bool:
        """Where the oldest is dropped, time is told first: what expired is not the oldest."""
        return any(isinstance(t.settings.overflow, DropOld) for t in self.auditor.topics.values())

    def probe(self) -> list[Step]:
        """Asks a topic about itself, as anybody may; the auditor knows the answers."""
        if self.rng.random() < 0.4 and not self.healthy:
            return []
        topic = self.rng.choice(self.topics)
        kinds = [ask.Describe, ask.Stats, ask.ListReceivers, ask.ListParked]
        commands = [kind(PROBE, self.request()) for kind in kinds]
        return [self.worker.handle(topic, command, self.now_ms) for command in commands]

    def tell_steps(self, steps: list[Step]) -> None:
        if self.tell is None:
            return
        for step in steps:
            if getattr(step.command, "node", None) == PROBE or not (step.command or step.effects):
                continue
            self.say(f"> {step.topic} {told(step.command)}")
            for topic, effect in step.effects:
                self.say(f"    {topic} {told(effect)}")

    def crash(self, kill: Killed) -> None:
        """The worker is gone and comes back; some of what was sent to it is lost."""
        self.say(f"! the worker is killed {kill.value}")
        rng = self.rng
        self.worker.kill()
        self.worker.start()
        if rng.random() < 0.2:
            self.say("! and again before its start is over")
            self.worker.kill()
            self.worker.start()
        self.worker.settle_in(self.now_ms)
        self.auditor.crash(self.now_ms)
        if rng.random() < 0.5:  # the front-end is another, and does not know who was lost
            self.network.lost_nodes.clear()
        for connection in list(self.network.connections.values()):
            if rng.random() < 0.5:
                connection.to_worker.clear()
        for client in self.clients:
            client.crashed()

    # --- when faults stop ---------------------------------------------------------------------

    def recover(self) -> None:
        """No more faults: whatever is owed must arrive, and nothing may be left over."""
        self.say("--- faults stop")
        self.healthy = True
        self._adopt_receivers()
        self._settle()
        self._adopt_receivers()  # of those that were made by what was still in the air
        self._live(60_000)
        for name in self.topics:
            check_nothing_is_owed(self.auditor.topic(name), everything_is_wanted=False)
        self.say("--- somebody wants everything, and what is parked is renewed")
        for name in self.topics:
            # Two, so that what wants two receivers has them.
            for janitor in ("janitor", "caretaker"):
                seat = Seat(name, 1, {"name": janitor}, pulls=False)
                self.clients.append(Consumer(self, f"{janitor}-{name}", [seat]))
        self._renew_all()
        self._live(30_000)
        self._renew_all()
        self._live(30_000)
        for name in self.topics:
            check_nothing_is_owed(self.auditor.topic(name), everything_is_wanted=True)
        self._check_publishers()
        self._abandon_kept()
        self.say("--- years pass")
        for pause_ms in (chance.LONG_MS, DAY_MS, 8 * DAY_MS, chance.LONG_MS, 8 * DAY_MS):
            self.now_ms += pause_ms
            self._settle()
            self._abandon_kept()
        # Some remains of what ended unseen are only found when they are read again.
        self.crash(Killed.SYNCED)
        self._settle()
        left = leftovers(self.worker.store, self.topics)
        if left:
            raise Violation(f"rows are left over: {left}")

    def _renew_all(self) -> None:
        items = [(name, ask.RenewAll(PROBE, self.request())) for name in self.topics]
        self.turn([*items])

    def _abandon_kept(self) -> None:
        """What was renewed for one who does not want it any more waits until it is abandoned."""
        items = [
            (name, ask.Abandon(PROBE, self.request(), message.sequence))
            for name in self.topics
            for message in self.auditor.topic(name).live.values()
            if message.state is State.KEPT
        ]
        self.turn([*items])

    def _adopt_receivers(self) -> None:
        """Every durable receiver has somebody."""
        for name in self.topics:
            ledger = self.auditor.topic(name)
            for receiver in ledger.receivers.values():
                if receiver.durable and (receiver, name) not in self._heirs:
                    self._heirs.add((receiver, name))
                    seat = Seat(name, 1, {"name": receiver.name}, pulls=False)
                    seat.interests = receiver.interests or ("**",)
                    self.clients.append(Consumer(self, f"heir-{receiver.name}-{name}", [seat]))

    def _live(self, for_ms: int) -> None:
        """Time passes, everybody is well."""
        until_ms = self.now_ms + for_ms
        while self.now_ms < until_ms:
            self._settle()
            due_ms = self.worker.shard.next_due_ms()
            later_ms = self.now_ms + 5_000
            self.now_ms = min(later_ms, until_ms, max(due_ms or later_ms, self.now_ms + 1))
        self._settle()

    def _settle(self) -> None:
        """Turns until nobody has anything to say."""
        for round_number in range(200):
            for client in self.clients:
                client.act()
            items: list[tuple[str | None, Any]] = [
                (None, ask.Detach(node, 0)) for node in self.network.lost_nodes
            ]
            self.network.lost_nodes.clear()
            for connection in self.network.busy():
                items += connection.to_worker
                connection.to_worker.clear()
            self.turn(items)
            if self.network.is_quiet() and round_number > 0:
                return
        raise Violation("the broker and its clients do not come to rest")

    def _check_publishers(self) -> None:
        """Every publisher has its answers and, for what is over, its receipts."""
        for client in self.clients:
            if isinstance(client, Publisher):
                client.ask_receipts = True
        self._settle()
        for client in self.clients:
            if isinstance(client, Publisher):
                self._check_publisher(client)

    def _check_publisher(self, client: Publisher) -> None:
        if client.unanswered:
            raise Violation(f"{client.name} has no answer to {len(client.unanswered)} batches")
        ledger = self.auditor.topic(client.topic)
        for number, verdict in client.verdicts.items():
            known = ledger.verdicts.get((client.producer, number))
            if known is None or known[0] != verdict:
                raise Violation(f"{client.name}: receipt {number} is {verdict}, not {known}")
        live = {(m.producer, m.number) for m in ledger.live.values() if m.asked}
        for number in client.awaited:
            known = ledger.verdicts.get((client.producer, number))
            late = known is not None and known[1] + ledger.settings.receipt_ttl_ms <= self.now_ms
            lost = (client.producer, number) in ledger.lost
            if not (late or lost or (client.producer, number) in live):
                raise Violation(f"{client.name} never heard of number {number}: {known}")
