"""The client's session: any bytes from a broker, and any history of losses with the real core.

Whatever arrives, a session answers with events and goes on. And whatever gets lost on the way
(connections, workers, answers), what is published is stored once, in order, and answered.
"""

import itertools
from collections import deque
from typing import Any

import msgpack
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asterism import commands as ask
from asterism import wire
from asterism.actors.shard import Shard
from asterism.effects import Deliver
from asterism.errors import PeerError
from asterism.message import Header, Mode, Status
from asterism.sdk import events as happened
from asterism.sdk.receiving import PROCESSED
from asterism.sdk.session import Session
from asterism.sdk.tickets import Ticket
from asterism.settings import TopicSettings
from asterism.storage.memory import MemoryRows
from asterism.wire import Verb, pack_body, pack_part
from tests.support.delivered import deliveries_of

HEADER = Header(Mode.DURABLE, Status.PROCESSED, ("a",), None, 1, receipt=True).encoded
SENT_HEADER = Header(Mode.ONLINE, Status.SENT, ("a",)).encoded
TOPICS = ("t", "u")

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-1, 12)
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4)
    | st.sampled_from([HEADER, SENT_HEADER, b"p" * 16, "busy", "wrong_state", "pending", "ok"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.text(max_size=3) | st.sampled_from(["refused", "outcomes", "receiver"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=16,
)
bodies = values.map(msgpack.packb) | st.binary(max_size=20)
topics = st.sampled_from([b"", b"t", b"u", b"\0w1", b"\xff"])
parts = st.builds(
    pack_part,
    st.sampled_from([verb for verb in Verb if verb >= wire.FIRST_BROKER_VERB]),
    st.integers(0, 12),
    topics,
    bodies,
    worker=st.integers(0, 2) | st.just(wire.ANY_WORKER),
)
frames = (
    parts
    | st.lists(parts, max_size=3).map(b"".join)
    | st.tuples(parts, st.binary(max_size=30)).map(b"".join)
    | st.tuples(parts, st.integers(0, 30)).map(lambda cut: cut[0][: cut[1]])
    | st.binary(max_size=30)
)


def chance() -> Any:
    numbers = itertools.count(1)
    return lambda size: next(numbers).to_bytes(size, "big")


def busy_session() -> Session:
    """A session with something of everything under way."""
    session = Session("fuzz", chance())
    session.open(0)
    (hello,) = session.flush(0)
    (part,) = wire.read_parts(hello)
    welcome = {"version": 1, "heartbeat_ms": 1_000, "workers": 2, "stores": 8}
    session.receive(pack_part(Verb.WELCOME, part.request, b"", pack_body(welcome)), 0)
    assert session.is_ready
    held = session.subscribe("t", ("**",), credit=4, name="me")
    session.subscribe("u", ("**",), credit=4)
    for topic in TOPICS:
        for _ in range(2):
            session.publish(Ticket(topic, 1, True), 0, [(b"i" * 16, HEADER, b"x")], 1)
            session.flush(0)
    session.request(Verb.DESCRIBE, b"t", ())
    held.is_ready = True
    held.report(PROCESSED, (1, 2), (1, 1), token="token")
    session.touch(held)
    session.flush(0)
    return session


@settings(max_examples=500)
@given(st.lists(frames, max_size=8))
@example([pack_part(Verb.RESTARTED, worker=0)])
@example([pack_part(Verb.DELIVER, 0, b"t", pack_body([1, "me", [[1, 1, b"i", HEADER, b"x"]]]))])
@example([pack_part(Verb.RESTARTED, worker=0) + pack_part(Verb.PONG)[:-1], b""])
def test_whatever_a_broker_sends_a_session_goes_on(arrived: list[bytes]) -> None:
    session = busy_session()
    now_ms = 0
    for frame in arrived:
        now_ms += 400
        events = session.receive(frame, now_ms) + session.tick(now_ms)
        if any(isinstance(event, happened.Lost) for event in events):
            session.lost()
            session.open(now_ms)
        session.flush(now_ms)
        session.next_due_ms()
        assert 0 <= session.window.messages <= 4
    session.lost()
    session.open(now_ms)
    assert len(session.flush(now_ms)) == 1


# --- with the core -------------------------------------------------------------------------------


class World:
    """A session, the core, and a connection between them that may be lost at any moment."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.rows = MemoryRows()
        self.shard = Shard(self.rows, TopicSettings())
        self.session = Session("world", chance())
        self.connections = itertools.count(1)
        self.node = b""
        self.to_broker: deque[bytes] = deque()
        self.to_client: deque[bytes] = deque()
        self.refuse_next = 0
        self.published: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.tickets: list[Ticket] = []
        self.resolved: set[Ticket] = set()
        self.connect()

    # --- the network

    def connect(self) -> None:
        self.node = next(self.connections).to_bytes(13, "big") + bytes(4)
        self.session.open(self.now_ms)
        self.flush()

    def flush(self) -> None:
        self.to_broker += self.session.flush(self.now_ms)

    def lose(self) -> None:
        self.to_broker.clear()
        self.to_client.clear()
        self.shard.detach(self.node, self.now_ms)
        self.end_turn()
        self.session.lost()
        self.connect()

    def restart(self) -> None:
        """The worker dies with what has reached it, and comes back from its rows."""
        self.to_broker.clear()
        self.shard = Shard(self.rows, TopicSettings())
        if self.session.is_ready:
            self.to_client.append(pack_part(Verb.RESTARTED, worker=0))
        else:
            self.lose()

    # --- the broker

    def broker_step(self) -> None:
        if not self.to_broker:
            return
        frame = self.to_broker.popleft()
        (part,) = wire.read_parts(frame)
        verb, _, _, request, topic = part[:5]
        if verb == Verb.HELLO:
            welcome = {"version": 1, "heartbeat_ms": 10**9, "workers": 1, "stores": 1}
            self.to_client.append(pack_part(Verb.WELCOME, request, b"", pack_body(welcome)))
            return
        if self.refuse_next and request:
            self.refuse_next -= 1
            refusal = pack_body(["busy", "the worker is away", 20])
            self.to_client.append(pack_part(Verb.REFUSE, request, topic, refusal))
            return
        try:
            command = wire.read_command(verb, self.node, request, frame[part.body :])
        except PeerError as error:
            raise AssertionError(f"the session sent what is wrong: {error}") from error
        self.shard.handle(topic.decode(), command, self.now_ms)
        self.end_turn()

    def end_turn(self) -> None:
        effects = self.shard.end_turn()
        for out in wire.write_effects(effects, 0):
            if out.node == self.node:
                self.to_client.append(out.part)

    # --- the client

    def client_step(self) -> None:
        if not self.to_client:
            return
        for event in self.session.receive(self.to_client.popleft(), self.now_ms):
            assert not isinstance(event, happened.Lost | happened.Rejected), event
            if isinstance(event, happened.Resolved):
                self.resolved.add(event.ticket)
        self.flush()

    def publish(self, topic: str, count: int) -> None:
        payloads = [b"%d" % (len(self.published[topic]) + n) for n in range(count)]
        ticket = Ticket(topic, count, True)
        batch = [(b"i" * 16, HEADER, payload) for payload in payloads]
        self.session.publish(ticket, 0, batch, sum(len(HEADER) + len(p) for p in payloads))
        self.published[topic] += payloads
        self.tickets.append(ticket)

    def pause(self) -> None:
        self.now_ms += 30
        self.session.tick(self.now_ms)
        self.flush()

    def settle(self) -> None:
        """Nothing gets lost any more: everything comes to its end."""
        self.refuse_next = 0
        for _ in range(400):
            while self.to_broker or self.to_client:
                self.broker_step()
                self.client_step()
            self.pause()
            if self.session.window.messages == 0 and not self.to_broker and not self.to_client:
                return
        raise AssertionError("something is never answered")

    def stored(self, topic: str) -> list[bytes]:
        """What a consumer would get, in order."""
        subscribe = ask.Subscribe(b"c" * 17, 1, 1, ("**",), "all", None, None, 100_000)
        self.shard.handle(topic, subscribe, self.now_ms)
        return [
            delivery.payload
            for _, effect in self.shard.end_turn()
            if isinstance(effect, Deliver)
            for delivery in deliveries_of(effect)
        ]

    def process_all(self, topic: str) -> None:
        held = range(1, 1_000)
        report = ask.Report(b"c" * 17, 2, 1, Status.PROCESSED, tuple(held))
        self.shard.handle(topic, report, self.now_ms)
        self.end_turn()


steps = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(TOPICS), st.integers(1, 4)),
    st.tuples(st.sampled_from(["flush", "broker", "broker", "client", "client", "pause"])),
    st.tuples(st.sampled_from(["lose", "restart", "refuse"])),
)


def play(world: World, step: tuple[Any, ...]) -> None:
    match step:
        case ("publish", topic, count):
            world.publish(topic, count)
        case ("refuse",):
            world.refuse_next += 1
        case ("broker",):
            world.broker_step()
        case ("client",):
            world.client_step()
        case (name,):
            getattr(world, name)()


@settings(max_examples=400)
@given(st.lists(steps, max_size=60), st.sampled_from(["nothing", "lose", "restart"]))
def test_what_is_published_is_stored_once_and_in_order_whatever_gets_lost(
    history: list[tuple[Any, ...]], at_last: str
) -> None:
    world = World()
    for step in history:
        play(world, step)
    world.flush()
    world.settle()
    for ticket in world.tickets:
        assert not ticket.missing and ticket.first_error() is None
        assert all(type(result) is int for result in ticket.results)
    if at_last != "nothing":
        getattr(world, at_last)()
        world.settle()
    for topic in TOPICS:
        assert world.stored(topic) == world.published[topic]
        world.process_all(topic)
    world.settle()
    assert all(ticket.is_resolved for ticket in world.tickets)
    assert {o.verdict for ticket in world.tickets for o in ticket.outcomes.values()} <= {"ok"}
