"""A client of the work queue, and one who administers topics at random."""

from typing import Any

from asterism import commands as ask
from asterism.effects import Refuse, Reply
from tests.sim import chance
from tests.sim.auditor import Auditor
from tests.sim.clients import Client, Surroundings


class WorkClient(Client):
    """Drafts, sets, orders, fetches, completes, fails and abandons."""

    def __init__(self, world: Surroundings, name: str, topic: str) -> None:
        super().__init__(world, name)
        self.topic = topic
        self.asked: dict[int, Any] = {}
        self.drafts: list[int] = []
        self.ordered: list[int] = []
        self.active: list[int] = []
        self.old: list[int] = []

    def connected(self) -> None:
        self.asked.clear()

    def crashed(self) -> None:
        self.asked.clear()

    def ask(self, kind: Any, *fields: Any, **named: Any) -> None:
        request = self.world.request()
        command = kind(self.node, request, *fields, **named)
        self.asked[request] = command
        self.send(self.topic, command)

    def receive(self, topic: str, effect: Any) -> None:
        if not isinstance(effect, Reply | Refuse):
            return
        command = self.asked.pop(effect.request, None)
        if not isinstance(effect, Reply):
            return
        match command:
            case ask.Draft():
                self.drafts.append(effect.body["sequence"])
            case ask.Order():
                if effect.body["sequence"] is not None:
                    self.ordered.append(effect.body["sequence"])
            case ask.Fetch():
                if effect.body["status"] == "received":
                    self.active.append(command.sequence)

    def do(self) -> None:
        if self.world.healthy:
            self.work_off()
        elif self.world.rng.random() < 0.7:
            self.do_something()

    def work_off(self) -> None:
        for sequence in self.ordered:
            self.ask(ask.Fetch, sequence)
        for sequence in self.active:
            self.ask(ask.Complete, sequence)
        self.ordered.clear()
        self.active.clear()

    def do_something(self) -> None:
        rng = self.world.rng
        verb = rng.choice(("draft", "set", "set", "order", "fetch", "fetch", "end", "end", "old"))
        if verb == "draft":
            priority = rng.choice((None, None, 0, 1))
            self.ask(ask.Draft, self.world.count().to_bytes(16, "big"), priority)
        elif verb == "set" and self.drafts:
            self.set_one(rng.choice(self.drafts))
        elif verb == "order" and not any(isinstance(c, ask.Order) for c in self.asked.values()):
            self.ask(ask.Order, rng.choice((None, 0, 500, 3_000)))
        elif verb == "fetch" and self.ordered:
            self.old.append(self.ordered[-1])
            self.ask(ask.Fetch, self.ordered.pop())
        elif verb == "end" and self.active:
            self.end_one(self.active.pop())
        elif verb == "old":
            self.touch_old()

    def set_one(self, sequence: int) -> None:
        rng = self.world.rng
        if rng.random() < 0.7:
            self.drafts.remove(sequence)
            self.old.append(sequence)
        payload = chance.payload(rng, self.world.count())
        attributes = {"set": "yes"} if rng.random() < 0.5 else {}
        self.ask(ask.SetDraft, sequence, payload, attributes)

    def end_one(self, sequence: int) -> None:
        self.old.append(sequence)
        if self.world.rng.random() < 0.3:
            self.ask(ask.Fail, sequence, "no use")
        else:
            self.ask(ask.Complete, sequence)

    def touch_old(self) -> None:
        rng = self.world.rng
        if not self.old:
            return
        sequence = rng.choice(self.old)
        kind = rng.choice((ask.Fetch, ask.Complete, ask.Renew, ask.Abandon, ask.SetDraft))
        if kind is ask.SetDraft:
            self.ask(kind, sequence, chance.payload(rng, self.world.count()))
        elif kind is ask.Abandon and rng.random() < 0.5:
            self.ask(ask.Fetch, sequence)
        else:
            self.ask(kind, sequence)


class Admin(Client):
    """Changes settings and clears, moves, deletes and renews, with no regard for anybody."""

    def __init__(self, world: Surroundings, name: str, auditor: Auditor) -> None:
        super().__init__(world, name)
        self.auditor = auditor

    def do(self) -> None:
        rng = self.world.rng
        if self.world.healthy or rng.random() < 0.6:
            return
        topic = rng.choice(self.world.topics)
        command = self.choose(topic)
        if command is not None:
            self.send(topic, command)

    def choose(self, topic: str) -> Any:
        rng, node, request = self.world.rng, self.node, self.world.request()
        ledger = self.auditor.topic(topic)
        live = sorted(ledger.live)
        durable = [name for name, receiver in ledger.receivers.items() if receiver.durable]
        roll = rng.random()
        if roll < 0.3:
            others = [name for name in self.world.topics if name > topic]
            changes = chance.rare_setting(rng, others)
            # A lowered bound ends push messages when their turn comes, and shows it to nobody.
            changes.pop("max_deliveries", None)
            return ask.Configure(node, request, changes)
        if roll < 0.55:
            return self.sweep(request)
        if roll < 0.75 and live:
            kind = rng.choice((ask.Renew, ask.Renew, ask.Abandon))
            return kind(node, request, rng.choice(live), rng.choice([None, *durable]))
        return self.move(request, durable, live)

    def sweep(self, request: int) -> Any:
        rng = self.world.rng
        kinds = (ask.RenewAll, ask.RenewAll, ask.RenewAll, ask.AbandonAll, ask.Clear)
        return rng.choice(kinds)(self.node, request)

    def move(self, request: int, durable: list[str], live: list[int]) -> Any:
        rng, node = self.world.rng, self.node
        if not durable or rng.random() < 0.1:
            wanted = chance.interests(rng)
            return ask.CreateReceiver(node, request, rng.choice(chance.NAMES), wanted)
        if rng.random() < 0.25:
            return ask.DeleteReceiver(node, request, rng.choice(durable))
        return self.seek(rng.choice(durable), request, live)

    def seek(self, name: str, request: int, live: list[int]) -> ask.Seek:
        rng = self.world.rng
        roll = rng.random()
        if roll < 0.4 and live:
            return ask.Seek(self.node, request, name, rng.choice(live))
        if roll < 0.7:
            return ask.Seek(self.node, request, name, None, self.world.now_ms - 2_000)
        return ask.Seek(self.node, request, name)
