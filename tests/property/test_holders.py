"""Never two holders at once: clients of one group, with the core, whatever is lost or restarted.

Every client is a real session. Connections are lost, for good or so that they may come back, the
worker is restarted, and what is in the air is dropped. Meanwhile no application is handed what
another has in hand; in the end everything is processed.

The same of messages for several receivers, with clients whose receivers live with their
connections: what one of them has done, and was told so, it never gets again.
"""

import itertools
from collections import deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from asterism import commands as ask
from asterism import wire
from asterism.actors.shard import Shard
from asterism.message import Header, Mode, Status
from asterism.sdk import events as happened
from asterism.sdk.receiving import FAILED, PROCESSED, RECEIVED, Subscription
from asterism.sdk.session import Session
from asterism.settings import TopicSettings
from asterism.storage.memory import MemoryRows
from asterism.wire import Verb, pack_body, pack_part

TOPIC = "t"
PEERS = 3
GRACE_MS = 3_600_000  # it is never over here: everybody comes back
CREDIT = 3
SETTLING_MAX = 2_000


class Peer:
    """A client, its connection, and what its application has in hand."""

    def __init__(self, number: int, world: "World") -> None:
        self.world = world
        self.session = Session(f"peer-{number}", lambda size: bytes([number]) * size)
        shares = number < 2 and world.most == 1
        self.held: Subscription = self.session.subscribe(
            TOPIC, ("**",), group="crew" if shares else None, credit=CREDIT
        )
        self.ended: dict[int, int] = {}  # sequence -> as what it was reported last
        self.done: set[int] = set()  # processed, and told so
        self.in_hand: dict[int, int] = {}  # sequence -> attempt, until its report is answered
        self.to_broker: deque[bytes] = deque()
        self.to_client: deque[bytes] = deque()
        self.connect()

    def connect(self) -> None:
        self.node = next(self.world.connections).to_bytes(13, "big") + bytes(4)
        self.session.open(self.world.now_ms)
        self.flush()

    def flush(self) -> None:
        self.to_broker += self.session.flush(self.world.now_ms)

    def lose(self) -> None:
        """The connection is gone, and what is in the air with it."""
        self.to_broker.clear()
        self.to_client.clear()
        self.session.lost()
        self.connect()

    def read(self) -> None:
        if not self.to_client:
            return
        for event in self.session.receive(self.to_client.popleft(), self.world.now_ms):
            assert not isinstance(event, happened.Lost | happened.Rejected | happened.Gone), event
            if isinstance(event, happened.Reported):
                assert isinstance(event.token, int)
                self.in_hand.pop(event.token, None)
                if self.ended.get(event.token) == PROCESSED and not event.refused:
                    self.done.add(event.token)
        self.flush()

    def take(self) -> None:
        for (sequence, attempt, *_), _ in self.held.take(2):
            assert sequence not in self.done, "it comes again"
            for other in self.world.peers if self.world.most == 1 else ():
                assert sequence not in other.in_hand or other is self, "two holders at once"
            self.in_hand[sequence] = attempt
            self.ended.pop(sequence, None)

    def report(self, status: int) -> None:
        # Of messages for several, each is ended once: what comes behind that is no news.
        once = set() if self.world.most == 1 else self.ended
        mine = [item for item in self.in_hand.items() if item[0] not in once]
        for sequence, attempt in mine[:2]:
            is_last = status != RECEIVED
            token = sequence if is_last else None
            reason = "no" if status == FAILED else ""
            self.held.report(status, (sequence,), (attempt,), reason, token, is_last=is_last)
            self.session.touch(self.held)
            if is_last:
                self.ended[sequence] = status
            if status == FAILED:  # whoever is next may have it before this one is answered
                del self.in_hand[sequence]
        self.flush()


class World:
    """A worker and its clients."""

    def __init__(self, most: int = 1) -> None:
        self.most = most
        self.header = Header(Mode.DURABLE, Status.PROCESSED, ("a",), None, most).encoded
        self.was_cut = False
        self.now_ms = 1_000_000
        self.rows = MemoryRows()
        self.connections = itertools.count(1)
        self.peers: list[Peer] = []
        self.published = 0
        self.open_shard()
        self.peers += [Peer(number, self) for number in range(PEERS)]

    def open_shard(self) -> None:
        self.shard = Shard(self.rows, TopicSettings(max_attempts=1_000), grace_ms=GRACE_MS)
        self.shard.begin_grace(self.now_ms)
        self.end_turn()

    def restart(self) -> None:
        """The worker dies with what has reached it, and comes back from its rows."""
        self.open_shard()
        for peer in self.peers:
            peer.to_broker.clear()
            if peer.session.is_ready:
                peer.to_client.append(pack_part(Verb.RESTARTED, worker=0))
            else:
                peer.lose()

    def new_front_end(self) -> None:
        """Every session is lost, and may come back under another name."""
        for peer in self.peers:
            self.shard.suspend(peer.node, self.now_ms)
        self.shard.forget_nodes()
        self.end_turn()
        for peer in self.peers:
            peer.lose()

    def lose_lane(self, peer: Peer) -> None:
        """The worker has lost a client that has its session still."""
        if peer.session.is_ready:
            peer.to_broker.clear()
            self.shard.suspend(peer.node, self.now_ms)
            self.end_turn()
            peer.to_client.append(pack_part(Verb.RESTARTED, worker=0))

    def cut(self, peer: Peer) -> None:
        """A session is over: what its client has in hand is not its own any more."""
        self.shard.detach(peer.node, self.now_ms)
        self.end_turn()
        peer.in_hand.clear()
        peer.done.clear()  # and its receiver is another
        self.was_cut = True
        peer.lose()

    def publish(self) -> None:
        self.published += 1
        message = (self.published.to_bytes(16, "big"), self.header, b"%d" % self.published)
        self.shard.handle(TOPIC, ask.Publish(b"p" * 17, 1, (message,)), self.now_ms)
        self.end_turn()

    def serve(self, peer: Peer) -> None:
        if not peer.to_broker:
            return
        frame = peer.to_broker.popleft()
        (part,) = wire.read_parts(frame)
        verb, _, _, request, topic = part[:5]
        if verb == Verb.HELLO:
            about = {"version": 1, "heartbeat_ms": 10**9, "workers": 1, "stores": 1}
            welcome = pack_body({**about, "session": peer.node[:13]})
            peer.to_client.append(pack_part(Verb.WELCOME, request, b"", welcome))
            return
        command: Any = wire.read_command(verb, peer.node, request, frame[part.body :])
        self.shard.handle(topic.decode(), command, self.now_ms)
        self.end_turn()

    def end_turn(self) -> None:
        for out in wire.write_effects(self.shard.end_turn(), 0):
            for peer in self.peers:
                if out.node == peer.node:
                    peer.to_client.append(out.part)

    def finish(self, peer: Peer) -> None:
        """A client does what has come, without anything in between."""
        peer.take()
        peer.report(PROCESSED)
        for _ in range(3):
            self.serve(peer)
            peer.read()

    def pause(self) -> None:
        self.now_ms += 30
        self.shard.tick(self.now_ms)
        self.end_turn()
        for peer in self.peers:
            peer.session.tick(self.now_ms)
            peer.flush()

    def settle(self) -> None:
        """Nothing gets lost any more: everything is processed."""
        for _ in range(SETTLING_MAX):
            for peer in self.peers:
                self.serve(peer)
                peer.read()
                peer.take()
                peer.report(PROCESSED)
            self.pause()
            if not self.shard.topics[TOPIC].held:
                return
        raise AssertionError("something is never processed")


ON_PEER = ("serve", "serve", "serve", "read", "read", "take", "take", "done", "failed", "received")
steps = st.one_of(
    st.tuples(st.sampled_from(["publish", "publish", "pause", "restart", "new_front_end"])),
    st.tuples(
        st.sampled_from([*ON_PEER, *ON_PEER, "finish", "finish", "lose_lane", "cut"]),
        st.integers(0, PEERS - 1),
    ),
)
REPORTS = {"done": PROCESSED, "failed": FAILED, "received": RECEIVED}


def play(world: World, step: tuple[Any, ...]) -> None:
    match step:
        case (name,):
            getattr(world, name)()
        case ("serve" | "finish" | "lose_lane" | "cut" as name, number):
            getattr(world, name)(world.peers[number])
        case ("read" | "take" as name, number):
            getattr(world.peers[number], name)()
        case (name, number):
            world.peers[number].report(REPORTS[name])


@settings(max_examples=300)
@given(st.lists(steps, max_size=120))
def test_nobody_is_handed_what_another_has_in_hand_whatever_is_lost(
    history: list[tuple[Any, ...]],
) -> None:
    world = World()
    live_through(world, history)
    assert world.shard.topics[TOPIC].completed == world.published


@settings(max_examples=300)
@given(st.lists(steps, max_size=120))
def test_nobody_without_a_name_gets_again_what_he_has_done_whatever_is_lost(
    history: list[tuple[Any, ...]],
) -> None:
    world = World(most=PEERS)
    live_through(world, history)
    if not world.was_cut:  # nobody was counted twice, so that everybody had his turn
        for peer in world.peers:
            while peer.to_broker or peer.to_client:
                world.serve(peer)
                peer.read()
            assert len(peer.done) == world.published


def live_through(world: World, history: list[tuple[Any, ...]]) -> None:
    world.publish()
    for _ in range(4):  # everybody is on the topic, with something to lose
        for peer in world.peers:
            world.serve(peer)
            peer.read()
    for step in history:
        play(world, step)
    world.settle()
