"""The worker process: its stores, their topics, and the turn in which they act.

A turn: drain the sockets (bounded), hand each command to its topic, let time pass, make one batch a
store durable, and only then send what came of it. Nothing is confirmed before it is stored. A small
batch is durable in the store's log: RocksDB gets it behind the answers, ahead of the next turn.

A worker is ready when its stores have been opened and the front-end knows it.

A store that fails (a full disk, a folder that cannot be written) takes its topics with it, and
nothing else: what the turn had decided is forgotten, everybody who asked is told to come again, and
the store is opened anew as soon as that works; the ordinary start is the recovery.

A topic that is ``dedicated`` has a store and a process of its own, which is a worker for that topic
alone: a child of the worker whose topic it would be. When the setting changes, the store is closed,
the topic is moved, and the store is opened again, as after a restart.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import zmq

from asterism import commands as ask
from asterism import limits, wire
from asterism.actors.asking_host import AskedMatcher, Asking
from asterism.actors.lanes_host import Lanes
from asterism.actors.moves_host import Moves
from asterism.actors.shard import Shard, forward_answer
from asterism.actors.snapshot_host import Open, Snapshots, folder_for
from asterism.actors.space_host import FreeSpace, Reclaiming
from asterism.actors.topic import TopicActor
from asterism.actors.turns import Turns
from asterism.config import Config, ConfigError
from asterism.effects import Accepted, Forward, Refusal, Refuse
from asterism.errors import PeerError
from asterism.frames_host import is_readable, receive, receive_any, rest, send
from asterism.options import topic_settings_as_user
from asterism.process_host import (
    Clock,
    Stopping,
    fields_of,
    memory_bytes,
    say_ready,
    settle_memory,
    socket_address,
    socket_folder,
    store_count,
)
from asterism.router.placement import store_of, stores_of
from asterism.storage.folder import check_made, note_made
from asterism.storage.keys import is_passing
from asterism.storage.moving import Dedicated, dedicated_in
from asterism.storage.snapshot import clear_abandoned
from asterism.storage.store import Budget, Store, StoreError
from asterism.wire import Part, Verb

TURN_COMMANDS_MAX: Final = 128  # of one turn, but for those that came with the last one
TURN_BYTES_MAX: Final = 8 << 20  # of their bodies, with the same exception
TURN_S: Final = 0.006  # of taking commands, from lanes and from the front-end each
SLICE_S: Final = 0.000_3  # of what came through the front-end, while a lane has something
RECEIVE_MAX: Final = 512  # frames that a turn receives; it takes fewer, in turns
FLOOD_RETRY_MS: Final = 100  # the hint of busy for what one session has too much of
HEARTBEAT_MS: Final = 200  # to the front-end
TAKEN_BYTES: Final = 4 << 20  # after so many the front-end is told ahead of the next heartbeat
RECONNECT_MS: Final = 10  # to a front-end that is being started
EPOCH_BYTES: Final = 8
REOPEN_MS: Final = 1_000  # how often a store that failed is tried again
ELSEWHERE_MS: Final = 50  # the hint of busy while a topic is being moved
CHILD_END_S: Final = 10  # how long the process of a dedicated topic may take to end
FORWARD_MS_MAX: Final = 2_000  # for the answer of another worker to a dead letter
LEFT_CODE: Final = 3  # how such a process ends when its topic is dedicated no longer
SEND_MS_MAX: Final = 10_000  # a front-end that takes nothing for so long is taken for gone
LANES_MS: Final = 20  # between two times that lanes are opened
CLAIMS_MAX: Final = 1_024  # of lanes whose connections may still wait; past it they are refused
PIPE_MAX: Final = 1_000  # messages ZeroMQ holds each way
DETAIL_MAX: Final = 120  # characters of a store's failure that a client is told
# Below the low-water mark these are refused: they store more, or keep the disk from being emptied.
GROWING: Final = (ask.Publish, ask.Draft, ask.SetDraft, ask.CreateTopic)
log = logging.getLogger("asterism.worker")


class ElsewhereError(PeerError):
    """A topic is not of this worker, or not at the moment."""


class HostedShard(Shard):
    """The topics of one store of several."""

    def __init__(
        self,
        store: Store,
        config: Config,
        asking: Asking,
        owns: Callable[[str], bool],
        moved_count: Callable[[], int],
    ) -> None:
        self._owns = owns
        self._moved_count = moved_count
        self._asking = asking
        self.matchers: dict[str, AskedMatcher] = {}
        super().__init__(
            store,
            config.topic,
            config.auto_create,
            config.bounds(store.count),
            config.restart_grace_ms,
        )

    def topic_count(self) -> int:
        return len(self.topics) + self._moved_count()

    def owns(self, topic: str) -> bool:
        return self._owns(topic)

    def matcher_for(self, topic: str) -> AskedMatcher:
        matcher = self.matchers[topic] = AskedMatcher(topic, self._asking)
        return matcher

    def forget_topic(self, topic: str) -> None:
        self.matchers.pop(topic).forget()

    def look_up(self, topic: str, publish: ask.Publish) -> None:
        """Asks at once for all subjects of a publish that are not known yet."""
        actor = self.topics.get(topic)
        if actor is None or actor.receivers.is_alone(publish.node):  # which hears nothing of it
            return
        unknown = []
        last: object = None
        for message in publish.messages:
            # What is not a message is for the topic to refuse.
            encoded = message[1] if type(message) is tuple and len(message) == 3 else None
            if encoded == last or type(encoded) is not bytes:
                continue
            last = encoded
            try:
                subjects = actor.incoming_header(encoded).subjects
            except PeerError:
                continue
            if not actor.receivers.is_known(subjects):
                unknown.append(subjects)
        if unknown:
            self.matchers[topic].look_up(unknown)


class Hosted:
    """One store of this worker: open, or waiting to be opened again."""

    def __init__(self, number: int, folder: Path, called: str = "") -> None:
        self.number = number
        self.called = called or f"store {number}"
        self.folder = folder
        self.store: Store | None = None
        self.shard: HostedShard | None = None
        self.failure = ""
        self.retry_ms = 0
        self.asked: list[tuple[bytes, int, str]] = []  # in this turn: node, request, topic
        self.synced_ms = 0
        self.unsynced = False
        self.reclaiming = Reclaiming()


class Ended(NamedTuple):
    """What a turn of one store leaves to do once it is durable."""

    hosted: Hosted
    store: Store
    forwards: list[tuple[str, Forward]]
    frames: list[tuple[bytes, bytes]]  # by the session
    must_sync: bool  # first, whatever the interval: what leaves has numbers that a cut may undo


class Child:
    """The process of a dedicated topic; it ends with this one."""

    def __init__(self, held: Dedicated, hosted: Hosted) -> None:
        self.held = held
        self.hosted = hosted
        self.start()

    def start(self) -> None:
        parent, number = str(os.getpid()), str(self.held.number)
        command = ["asterism.attached", parent, "asterism.actors", "--dedicated", number]
        self.process = subprocess.Popen([sys.executable, "-m", *command])


class Worker:
    """Runs the topics of some stores."""

    def __init__(self, config: Config, number: int, dedicated: Dedicated | None = None) -> None:
        self._config = config
        self._number = number
        self._dedicated = dedicated
        self._name = f"{'worker' if dedicated is None else 'dedicated'}-{number}"
        self._clock = Clock()
        self._now_ms = self._started_ms = self._clock.now_ms()
        self._count = store_count(config) if dedicated is None else 1
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._asking = Asking(config, self._context)
        self._budget = Budget()
        home = Path(config.data_dir).absolute()
        self._hosted = self._stores_to_open(home)
        self._space = FreeSpace(home, config.min_free, self._unwritten_bytes)
        self._moves = Moves(
            home / "dedicated", self._count, config.topic.dedicated, self._space.can_move
        )
        self._children: dict[str, Child] = {}  # topic -> its process
        self._is_laden = False  # this turn has much to send: it takes nothing more
        self._moving: dict[Hosted, None] = {}  # stores of which a topic is to be moved
        self._leaving = False  # the topic of this process is dedicated no longer
        self._stores: dict[bytes, tuple[Hosted, str]] = {}  # topic -> its store, and its name
        self._nodes: dict[bytes, set[bytes]] = {}  # session -> its nodes that hold something
        # Request -> topic, its number there, and until when an answer is waited for.
        self._forwards: dict[int, tuple[str, int, int]] = {}
        # Not from 1: an answer to the worker before this one must not settle what this one sends.
        self._next_forward = 1 + int.from_bytes(os.urandom(6), "big")
        self._session = wire.session_of_worker(number)
        self._sync_interval_ms = config.sync_interval_ms
        self._epoch = os.urandom(EPOCH_BYTES)
        self._is_known = False  # to the front-end, as the one that it is since it began
        self._grace_waits = False  # for the front-end: who cannot come back is not late
        self._is_ready = False  # has it said that it is?
        self._frontend_epoch: bytes | None = None
        self._next_beat_ms = 0
        self._snapshots = Snapshots()
        self._totals = {"turns": 0, "commands": 0, "syncs": 0, "sent": 0}
        self._last_status: tuple[int, dict[str, Any]] = (0, {})  # the turn, and what it was
        self._socket = self._connect()
        # Bytes of frames that came through the front-end, in all; and as far as that knows.
        self._taken = self._said_taken = 0
        self._turns = Turns()  # what has come through the front-end, and is not taken yet
        self._may_have_frames = True  # whether the socket is to be looked at
        self._claims: list[tuple[bytes, int, bytes, bytes]] = []  # node, request, topic, token
        self._next_lanes_ms = 0  # when lanes are opened next
        self._lanes = self._take_lanes()

    def _stores_to_open(self, home: Path) -> dict[int, Hosted]:
        if self._dedicated is not None:
            return {0: Hosted(0, self._dedicated.store, "the topic's own store")}
        return {
            store: Hosted(store, home / "stores" / f"{store:04}")
            for store in stores_of(self._number, self._config.workers, self._count)
        }

    def _connect(self) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        socket.identity = (b"w%d" if self._dedicated is None else b"d%d") % self._number
        socket.sndhwm = socket.rcvhwm = PIPE_MAX
        socket.linger = 1_000
        socket.reconnect_ivl = RECONNECT_MS
        socket.connect(socket_address(self._config, "workers"))
        return socket

    def _take_lanes(self) -> Lanes:
        config = self._config
        takes_lanes = config.lanes and self._dedicated is None
        path = socket_folder(config) / wire.LANE_SOCKET.format(self._number)
        has_cores = len(os.sched_getaffinity(0)) > 1
        return Lanes(str(path) if takes_lanes else None, alert=config.alert and has_cores)

    def _descriptor(self) -> int:
        descriptor = self._socket.fd
        assert isinstance(descriptor, int)
        return descriptor

    # --- life -------------------------------------------------------------------------------

    def run(self, stopping: Stopping) -> None:
        self._beat()  # before anything is asked: whoever is told later that we are new asks again
        for hosted in self._hosted.values():
            self._open(hosted)
        clear_abandoned(self._snapshots_home, self._now_ms)
        for descriptor in (self._descriptor(), stopping.wakeup, self._snapshots.wakeup):
            self._lanes.watch(descriptor)
        settle_memory()
        self._beat()
        while not stopping.asked and not self._leaving:
            if self._may_have_frames:
                # Its descriptor speaks up only once somebody has looked in vain.
                self._may_have_frames = bool(self._turns) or is_readable(self._socket)
            self._may_have_frames |= self._lanes.wait(
                0 if self._may_have_frames else self._wait_ms()
            )
            self._turn()
        # What was asked before the end is answered: nobody is left to wonder.
        self._turn()
        self._close()

    @property
    def _snapshots_home(self) -> Path:
        return Path(self._config.data_dir).absolute() / "snapshots"

    @property
    def is_left(self) -> bool:
        """Has the topic of this process been deleted, or is it dedicated no longer?"""
        return self._leaving

    def _close(self) -> None:
        self._end_children(list(self._children.values()))
        self._snapshots.close()
        for hosted in self._hosted.values():
            if hosted.store is not None:
                hosted.store.close()
        self._asking.close()
        self._lanes.end()
        self._socket.close()
        self._context.term()

    def _open(self, hosted: Hosted) -> None:
        """Opens a store and recovers its topics; one that cannot be opened is tried again."""
        try:
            if self._dedicated is not None and not self._dedicated.is_there:
                raise StoreError(self._dedicated.missing)
            check_made(hosted.folder)
            hosted.store = Store(
                hosted.folder, number=hosted.number, count=self._count, budget=self._budget
            )
            if self._dedicated is None:
                note_made(hosted.folder)
                self._start_children(hosted, hosted.store)
            hosted.shard = HostedShard(
                hosted.store,
                self._config,
                self._asking,
                lambda topic: self._has(topic, hosted),
                lambda: sum(child.hosted is hosted for child in self._children.values()),
            )
            hosted.shard.end_turn()
            hosted.store.commit()
        except StoreError as error:
            self._fail(hosted, error)
            return
        for node in hosted.shard.absent_nodes():
            self._nodes.setdefault(node[: wire.SESSION_BYTES], set()).add(node)
        self._grace_waits = True
        if self._dedicated is not None:
            self._see_whether_it_stays(self._dedicated, hosted.shard)

    def _fail(self, hosted: Hosted, error: StoreError) -> None:
        """A store cannot be used now; its topics are away until it is opened again."""
        log.error("a store fails: %s %s", error, fields_of(store=hosted.number))
        store, hosted.store, hosted.shard = hosted.store, None, None
        hosted.failure = f"{hosted.called} cannot be used now: {_reason(error)}"
        hosted.retry_ms = self._now_ms + REOPEN_MS
        if store is not None:
            try:
                store.close()
            except StoreError as closing:
                log.error("and closing it: %s %s", closing, fields_of(store=hosted.number))
        asked, hosted.asked = hosted.asked, []
        told = [(topic, self._unusable(hosted, node, request)) for node, request, topic in asked]
        self._send(told)

    def _reopen(self, hosted: Hosted) -> None:
        self._stores.clear()
        self._open(hosted)
        if hosted.store is not None:
            log.info("a store is back %s", fields_of(store=hosted.number))
            # As after a restart: endpoints of its topics are gone, and their owners must know. All
            # of this worker's are, so that there is one way to come back.
            self._forget_sessions()
            self._drop_turns()
            self._epoch, self._is_known = os.urandom(EPOCH_BYTES), False
            self._beat()
            self._tell_routes()

    # --- topics that have a process of their own --------------------------------------------

    def _has(self, topic: str, hosted: Hosted) -> bool:
        """Is this topic one of this store?"""
        if self._dedicated is not None:
            return topic == self._dedicated.topic
        return store_of(topic, self._count) == hosted.number and topic not in self._children

    def _start_children(self, hosted: Hosted, store: Store) -> None:
        """Moves what has to be moved, while nobody has it open; starts what has its own process."""
        for held in self._moves.settle(hosted.number, store, self._children, self._now_ms):
            if held.topic not in self._children:
                self._children[held.topic] = Child(held, hosted)

    def _see_whether_it_stays(self, held: Dedicated, shard: HostedShard) -> None:
        """A topic that is deleted or dedicated no longer may be here: it could not be moved."""
        actor = shard.topics.get(held.topic)
        if actor is None:
            held.deleted.touch()
        if actor is None or not actor.settings.dedicated:
            self._moves.wait_with(held.topic, self._now_ms)

    def _move(self, hosted: Hosted) -> None:
        """A setting has changed: closes the store, so that opening it moves the topic."""
        children = [child for child in self._children.values() if child.hosted is hosted]
        self._end_children(children)
        self._close_store(hosted)
        self._reopen(hosted)
        for child in children:
            if child.held.topic not in self._children:
                self._send_frames((b"", b"route", child.held.topic.encode(), b""))

    def _close_store(self, hosted: Hosted) -> None:
        store, hosted.store, hosted.shard = hosted.store, None, None
        if store is not None:
            try:
                store.close()
            except StoreError as error:  # the next opening tells whether it can be used
                log.error("closing a store: %s %s", error, fields_of(store=hosted.number))

    def _end_children(self, children: list[Child]) -> None:
        for child in children:
            child.process.terminate()
        for child in children:
            del self._children[child.held.topic]
            try:
                child.process.wait(CHILD_END_S)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()

    def _look_after_children(self) -> None:
        for child in list(self._children.values()):
            code = child.process.poll()
            if code == LEFT_CODE and self._moves.may_begin(child.held.topic, self._now_ms):
                self._moving[child.hosted] = None
            elif code == LEFT_CODE:
                child.start()
            elif code is not None:
                log.error(
                    "a topic's process has ended %s", fields_of(topic=child.held.topic, code=code)
                )
                child.start()

        for topic in self._moves.due(self._now_ms):
            self._begin_move(self._hosted[store_of(topic, self._count)])

    def _tell_routes(self) -> None:
        for child in self._children.values():
            to = b"d%d" % child.held.number
            self._send_frames((b"", b"route", child.held.topic.encode(), to))

    def _unusable(self, hosted: Hosted, node: bytes, request: int) -> Refuse:
        return Refuse(node, request, "busy", hosted.failure, REOPEN_MS)

    # --- a turn -----------------------------------------------------------------------------

    def _wait_ms(self) -> int:
        """How long a poll may wait."""
        if self._snapshots.has_more:
            return 0
        next_ms = self._next_beat_ms
        if self._claims:
            next_ms = min(next_ms, self._next_lanes_ms)
        for hosted in self._hosted.values():
            due_ms = hosted.retry_ms if hosted.shard is None else hosted.shard.next_due_ms()
            if due_ms is not None and due_ms < next_ms:
                next_ms = due_ms
            if hosted.unsynced and self._sync_interval_ms is not None:
                next_ms = min(next_ms, hosted.synced_ms + self._sync_interval_ms)
        return max(next_ms - self._clock.now_ms(), 0)

    def _turn(self) -> None:
        self._now_ms = self._clock.now_ms()
        self._totals["turns"] += 1
        self._is_laden = False
        if self._may_have_frames:
            self._drain()
        self._drain_lanes()
        self._asking.end_turn()
        for hosted in self._hosted.values():
            # Ahead of all that is staged: one that comes back changes what others hold.
            if hosted.shard is None and self._now_ms >= hosted.retry_ms:
                self._reopen(hosted)
        ended: list[Ended] = []
        for hosted in self._hosted.values():
            shard = hosted.shard
            if shard is not None and (hosted.unsynced or shard.has_turn(self._now_ms)):
                self._end_turn(hosted, shard, ended)
        for turn in ended:
            self._confirm(turn)
        while self._moving:
            self._move(self._moving.popitem()[0])
        self._go_on_with_snapshots()
        if self._now_ms >= self._next_lanes_ms:
            self._open_lanes()
        if self._now_ms >= self._next_beat_ms:
            self._beat()
            self._look_after_children()
            self._look_after_space()

    def _drain(self) -> None:
        """Takes what has come through the front-end; of each session a frame, and then the next.

        A client that floods the front-end holds up clients on lanes for a slice, and not a turn.
        """
        began = time.monotonic()
        self._receive_frames(began + SLICE_S)
        taken = commands = 0
        while self._turns and commands < TURN_COMMANDS_MAX and taken < TURN_BYTES_MAX:
            if self._is_laden or self._is_over(began):
                break
            session, frame, parts = self._turns.take()
            if not parts:
                self._on_left(bytes(frame))
                continue
            if self._lanes.is_over(session):
                self._end_lanes()
            left = self._take_parts(session, frame, parts)
            if left:
                self._turns.put_back(session, frame, left)
            else:
                self._count_taken(frame)
            commands += len(parts)
            taken += parts[-1].end - parts[0].begin
        self._may_have_frames |= bool(self._turns)

    def _is_over(self, began: float) -> bool:
        """Has what came through the front-end had its time in this turn?"""
        spent = time.monotonic() - began
        return spent > TURN_S or (spent > SLICE_S and self._lanes.has_input())

    def _receive_frames(self, until: float) -> None:
        socket = self._socket
        for count in range(RECEIVE_MAX):
            if not is_readable(socket):
                self._may_have_frames = False
                return
            if not count % 8 and time.monotonic() > until and self._lanes.has_input():
                return
            session = receive(socket)
            if not session:
                self._on_control(receive(socket), *rest(socket))
                continue
            frame = receive_any(socket)
            if not self._is_known and not session.startswith(wire.OF_WORKER):
                # It was sent to the worker before this one. The front-end is about to tell whoever
                # asked that this one is new, and he asks again: to do it now would be to do it
                # twice.
                self._count_taken(frame)
            elif not self._turns.add(session, frame):
                self._refuse_frame(session, frame)
                self._count_taken(frame)

    def _count_taken(self, frame: bytes | memoryview) -> None:
        self._taken += len(frame)
        if self._taken - self._said_taken >= TAKEN_BYTES:
            self._say_taken()

    def _refuse_frame(self, session: bytes, frame: bytes | memoryview) -> None:
        error = PeerError("busy", "too much of this client waits here already", FLOOD_RETRY_MS)
        for part in wire.read_parts(frame):
            if part.request:
                node = session + wire.NUMBER.pack(part.node)
                self._refuse(node, part.request, part.topic, error)

    def _drop_turns(self) -> None:
        """Drops what clients sent: they are told of a restart, and send it again."""
        for session in self._turns.sessions:
            if not session.startswith(wire.OF_WORKER):
                for frame, parts in self._turns.take_all(session):
                    if parts:  # and not a word: the front-end tells it again
                        self._count_taken(frame)

    def _take_parts(
        self, session: bytes, data: bytes | memoryview, parts: list[Part]
    ) -> list[Part]:
        """Takes parts that came together; those that are left once the turn has enough to send."""
        for index, part in enumerate(parts):
            if self._is_laden:
                return parts[index:]
            self._take(session, part, data[part.body : part.end])
        return []

    def _drain_lanes(self) -> None:
        """Takes what has come by lanes; of each no more than a bound."""
        taken = commands = 0
        until = time.monotonic() + TURN_S
        for session, data, parts in self._lanes.read():
            left = self._take_parts(session, data, parts)
            if left:
                self._lanes.put_back(session, data, left)
            commands += len(parts)
            taken += len(data)
            if commands >= TURN_COMMANDS_MAX or taken >= TURN_BYTES_MAX:
                break
            if self._is_laden or time.monotonic() > until:
                break
        self._end_lanes()

    def _end_lanes(self) -> None:
        for session in self._lanes.take_ended():
            self._suspend_session(session)  # the front-end tells if it is over

    def _open_lanes(self) -> None:
        """Behind all that was sent through the front-end, the lane of a session is used.

        A client that connects again and again holds others up for a moment now and then.
        """
        self._next_lanes_ms = self._now_ms + LANES_MS
        are_all_in = self._lanes.take_in()
        claims, self._claims = self._claims, []
        for node, request, topic, token in claims:
            is_early = not are_all_in and not self._lanes.has_connected(token)
            if is_early and len(self._claims) < CLAIMS_MAX:
                self._claims.append((node, request, topic, token))
                continue
            session = node[: wire.SESSION_BYTES]
            if self._lanes.close(session):
                self._suspend_session(session)  # its client gave the one before up
            try:
                self._lanes.claim(session, token)
            except PeerError as error:
                self._refuse(node, request, topic, error)
            else:
                self._send_frames((session, self._reply_part(node, request, topic, {})))

    def _end_turn(self, hosted: Hosted, shard: HostedShard, ended: list[Ended]) -> None:
        """Lets time pass, writes what the turn decided, and gets ready what is to be sent.

        All that need not wait for the sync is done ahead of it: meanwhile the disk has begun.
        """
        store = hosted.store
        assert store is not None
        try:
            due_ms = shard.next_due_ms()
            if due_ms is not None and due_ms <= self._now_ms:
                shard.tick(self._now_ms)
            effects = shard.end_turn()
            if store.pending_count:
                hosted.unsynced |= shard.must_sync or store.has_pending_but(is_passing)
                is_due = shard.must_sync or self._is_sync_due(hosted)
                store.stage(begin_sync=hosted.unsynced and is_due)
        except StoreError as error:
            self._fail(hosted, error)
            return
        forwards = [(topic, held) for topic, held in effects if isinstance(held, Forward)]
        if forwards:
            effects = [held for held in effects if not isinstance(held[1], Forward)]
        # Another store remembers the numbers of what is forwarded to it.
        must_sync = shard.must_sync or bool(forwards)
        ended.append(Ended(hosted, store, forwards, self._frames_of(effects), must_sync))

    def _confirm(self, turn: Ended) -> None:
        """Makes what a turn wrote durable, and sends what came of it."""
        hosted, store, forwards, frames, must_sync = turn
        try:
            if hosted.unsynced and (must_sync or self._is_sync_due(hosted)):
                store.sync()
                self._totals["syncs"] += 1
                hosted.unsynced = False
                hosted.synced_ms = self._now_ms
            hosted.asked.clear()
            for topic, forward in forwards:
                self._forward(topic, forward)
            for session, frame in frames:
                self._post(session, frame)
            store.write()  # what is staged
        except StoreError as error:
            self._fail(hosted, error)

    def _is_sync_due(self, hosted: Hosted) -> bool:
        interval_ms = self._sync_interval_ms
        return interval_ms is None or self._now_ms - hosted.synced_ms >= interval_ms

    # --- taking -----------------------------------------------------------------------------

    def _take(self, session: bytes, part: Part, body: bytes | memoryview) -> None:
        verb, _, number, request, topic = part[:5]
        node = session + wire.NUMBER.pack(number)
        if session == self._session and verb >= wire.FIRST_BROKER_VERB:
            self._on_answer(verb, request, bytes(body))
            return
        self._totals["commands"] += 1
        try:
            if verb == Verb.DETACH:
                self._leave(node)
                self._reply(node, request, topic, {})
            elif topic.startswith(wire.PROCESS):
                self._of_myself(verb, node, request, topic, bytes(body))
            else:
                self._of_topic(verb, node, request, topic, body)
        except PeerError as error:
            if isinstance(error, ElsewhereError) and self._lanes.has(session):
                elsewhere = wire.pack_part(Verb.ELSEWHERE, 0, topic, worker=self._number)
                self._lanes.send(session, elsewhere)
            if request:
                self._refuse(node, request, topic, error)

    def _of_topic(
        self, verb: int, node: bytes, request: int, topic: bytes, body: bytes | memoryview
    ) -> None:
        command = wire.read_command(verb, node, request, body)
        if isinstance(command, GROWING):
            self._check_room(node, body)
        hosted, name = self._stores.get(topic) or self._store_of(topic)
        shard = hosted.shard
        if shard is None:
            if request:
                self._send([(name, self._unusable(hosted, node, request))])
            return
        if isinstance(command, ask.Publish):
            _check_producer(command)
            shard.look_up(name, command)
        else:
            self._check_processes(command)
        if request:
            hosted.asked.append((node, request, name))
        try:
            shard.handle(name, command, self._now_ms)
        except StoreError as error:
            self._fail(hosted, error)
            return
        if isinstance(command, ask.Subscribe | ask.Order) and shard.has_node(node):
            self._nodes.setdefault(node[: wire.SESSION_BYTES], set()).add(node)
        self._is_laden |= shard.has_handed_enough
        actor = shard.topics.get(name)
        if self._dedicated is not None or (actor is not None and actor.settings.dedicated):
            self._see_to_place(hosted, name, actor)

    def _see_to_place(self, hosted: Hosted, name: str, actor: TopicActor | None) -> None:
        """Has a topic moved that is dedicated and not here alone, or the other way round."""
        if self._dedicated is not None:
            if actor is None:
                self._dedicated.deleted.touch()  # its worker lists it no more, though we live on
            elif actor.settings.dedicated:
                return
        if self._moves.may_begin(name, self._now_ms):
            self._begin_move(hosted)

    def _begin_move(self, hosted: Hosted) -> None:
        """For the end of the turn; the process of one topic leaves that to the worker."""
        if self._dedicated is not None:
            self._leaving = True
        else:
            self._moving[hosted] = None

    def _check_processes(self, command: object) -> None:
        """Refuses to make a topic dedicated where this worker has as many of them as it may."""
        if not isinstance(command, ask.CreateTopic | ask.Configure) or self._dedicated is not None:
            return
        if not command.changes.get("dedicated"):
            return
        shards = [hosted.shard for hosted in self._hosted.values() if hosted.shard is not None]
        topics = [actor for shard in shards for actor in shard.topics.values()]
        count = len(self._children) + sum(actor.settings.dedicated for actor in topics)
        if count >= -(-self._config.max_dedicated // self._config.workers):
            detail = (
                f"{count} topics of this worker have a process of their own, as many as may: "
                "make another one shared, or raise max_dedicated"
            )
            raise PeerError("busy", detail, limits.FULL_RETRY_MS)

    def _check_room(self, node: bytes, body: bytes | memoryview) -> None:
        # A dead letter of another worker only moves: it leaves room where it was.
        if not node.startswith(wire.OF_WORKER):
            self._space.check(len(body))

    def _store_of(self, topic: bytes) -> tuple[Hosted, str]:
        wire.check_topic(topic)
        try:
            name = topic.decode()
        except UnicodeDecodeError:
            raise PeerError("bad_request", "a topic's name is UTF-8") from None
        hosted = self._hosted.get(store_of(name, self._count))
        if hosted is None or not self._has(name, hosted):
            self._tell_routes()
            raise ElsewhereError("busy", "the topic is another worker's: ask again", ELSEWHERE_MS)
        if hosted.shard is not None and name not in hosted.shard.topics:
            self._moves.check_name(name)
        if len(self._stores) >= limits.HEADERS_CACHED_MAX:
            self._stores.clear()
        self._stores[topic] = hosted, name
        return hosted, name

    def _refuse(self, node: bytes, request: int, topic: bytes, error: PeerError) -> None:
        refusal = Refuse(node, request, error.code, error.detail, error.retry_after_ms)
        # It may be no topic's name, of any bytes and too long for a head once they are replaced.
        shown = topic[: limits.TOPIC_BYTES_MAX].decode(errors="replace")
        self._send([(shown, refusal)])

    # --- connections ------------------------------------------------------------------------

    def _on_control(self, what: bytes, value: bytes) -> None:
        if what == b"ended":
            for begin in range(0, len(value), wire.SESSION_BYTES):
                session = value[begin : begin + wire.SESSION_BYTES]
                if not self._turns.add_word(session, session):
                    self._on_left(session)
        elif what == b"detach":
            if not self._turns.add_word(value[: wire.SESSION_BYTES], value):
                self._on_left(value)
        elif what == b"epoch":
            frontend_epoch, known = value[:EPOCH_BYTES], value[EPOCH_BYTES:]
            self._is_known = known == self._epoch
            if self._is_known and not self._is_ready:
                self._say_ready()
            if frontend_epoch != self._frontend_epoch:
                self._on_frontend(frontend_epoch)
            if self._is_known and self._grace_waits:
                self._begin_grace()

    def _say_ready(self) -> None:
        """Who looks for it finds it from now on: until the front-end knew it, he was told busy."""
        self._is_ready = True
        say_ready(self._config, self._name, started_ms=self._started_ms)
        log.info("is ready %s", fields_of(stores=len(self._hosted)))

    def _on_frontend(self, epoch: bytes) -> None:
        if self._frontend_epoch is not None:
            log.info("the front-end has come back")
            self._forget_sessions()
            self._drop_turns()
            # It will never say of a session of the one before that it is over.
            self._nodes.clear()
            for hosted in self._hosted.values():
                if hosted.shard is not None:
                    hosted.shard.forget_nodes()
        self._frontend_epoch = epoch
        self._tell_routes()

    def _begin_grace(self) -> None:
        self._grace_waits = False
        for hosted in self._hosted.values():
            if hosted.shard is not None:
                hosted.shard.begin_grace(self._now_ms)

    def _on_left(self, who: bytes) -> None:
        """A session is over, or a node of one, and all that it sent before that is taken."""
        if len(who) == wire.SESSION_BYTES:
            self._lanes.close(who)
            self._end_session(who)
        else:
            self._leave(who)

    def _leave(self, node: bytes) -> None:
        self._nodes.get(node[: wire.SESSION_BYTES], set()).discard(node)
        self._detach(node)

    def _end_session(self, session: bytes) -> None:
        for node in self._nodes.pop(session, ()):
            self._detach(node)

    def _suspend_session(self, session: bytes) -> None:
        """A session has lost what it had here, and lives: its client is about to come back."""
        nodes = self._nodes.get(session, ())

        def suspend(shard: HostedShard) -> None:
            for node in nodes:
                shard.suspend(node, self._now_ms)

        self._on_shards(suspend)

    def _forget_sessions(self) -> None:
        """The endpoints of every session are gone; their clients may come back."""
        self._lanes.close_all()
        for session in self._nodes:
            self._suspend_session(session)
        lost, self._forwards = self._forwards, {}
        for topic, number, _ in lost.values():
            self._settle(topic, ask.ForwardSettled(number, "busy", "the front-end was away"))

    def _detach(self, node: bytes) -> None:
        self._on_shards(lambda shard: shard.detach(node, self._now_ms))

    def _on_shards(self, do: Callable[[HostedShard], None]) -> None:
        for hosted in self._hosted.values():
            if hosted.shard is not None:
                try:
                    do(hosted.shard)
                except StoreError as error:
                    self._fail(hosted, error)

    def _say_taken(self) -> None:
        """Gives the sign of life, with which the front-end learns what it may send."""
        self._said_taken = self._taken
        self._send_frames((b"", b"ready", self._epoch, wire.COUNT.pack(self._taken)))

    def _beat(self) -> None:
        self._next_beat_ms = self._now_ms + HEARTBEAT_MS
        self._say_taken()
        self._lanes.cut_unclaimed()
        for request, (topic, number, until_ms) in list(self._forwards.items()):
            if until_ms > self._now_ms:
                break  # the others were sent later
            # The worker that it was sent to was killed, it seems. Sent again, it is stored once.
            del self._forwards[request]
            self._settle(topic, ask.ForwardSettled(number, "busy", "no answer came"))

    # --- the disk ---------------------------------------------------------------------------

    def _unwritten_bytes(self) -> int:
        stores = (hosted.store for hosted in self._hosted.values())
        return sum(store.held_bytes for store in stores if store is not None)

    def _look_after_space(self) -> None:
        """Notes whether the disk is short of room; if so, has the stores give back what is free."""
        if self._space.look():
            return
        for hosted in self._hosted.values():
            shard, store = hosted.shard, hosted.store
            if shard is not None and store is not None and hosted.reclaiming.is_due(self._now_ms):
                held = sum(actor.held for actor in shard.topics.values())
                try:
                    is_stuck = hosted.reclaiming.step(store, held, self._space.free_bytes)
                except StoreError as error:
                    self._fail(hosted, error)
                else:
                    if is_stuck:
                        self._close_store(hosted)
                        self._reopen(hosted)

    # --- performing -------------------------------------------------------------------------

    def _send(self, effects: list[Any]) -> None:
        for session, frame in self._frames_of(effects):
            self._post(session, frame)

    def _frames_of(self, effects: list[Any]) -> list[tuple[bytes, bytes]]:
        """Effects as they are sent, by the session: what is for one together."""
        frames: list[tuple[bytes, bytes]] = []
        together: dict[bytes, list[bytes]] = {}
        sizes: dict[bytes, int] = {}
        for node, part in wire.write_effects(effects, self._number):
            self._totals["sent"] += 1
            session = node[: wire.SESSION_BYTES]
            parts = together.get(session)
            size = len(part) + sizes.get(session, 0)
            if parts is None:
                together[session] = [part]
            elif len(parts) < wire.TOGETHER_MAX and size <= wire.TOGETHER_BYTES_MAX:
                parts.append(part)
            else:
                frames.append((session, b"".join(parts)))
                together[session] = [part]
                size = len(part)
            sizes[session] = size
        frames += [(session, b"".join(parts)) for session, parts in together.items()]
        return frames

    def _post(self, session: bytes, frame: bytes) -> None:
        """Sends to a client: by its lane, where it has one."""
        if not self._lanes.send(session, frame):
            self._send_frames((session, frame))

    def _send_frames(self, frames: tuple[bytes, ...]) -> None:
        """Sends; waits for a front-end that is behind, and not for ever for one that is gone."""
        self._may_have_frames = True  # to send may swallow the sign that there is something
        try:
            send(self._socket, frames)
        except zmq.Again:
            if self._socket.poll(SEND_MS_MAX, zmq.POLLOUT):
                send(self._socket, frames)
                return
            # Every session of such a front-end is over by now, and asks again through another.
            log.error("the front-end takes nothing: what it was sent is dropped")

    # --- dead letters for topics of other stores ----------------------------------------------

    def _forward(self, topic: str, forward: Forward) -> None:
        request = self._next_forward
        self._next_forward += 1
        self._forwards[request] = (topic, forward.number, self._now_ms + FORWARD_MS_MAX)
        fields = ((forward.message,), forward.producer, forward.count, forward.settled)
        target, body = forward.target.encode(), wire.pack_body(fields)
        self._send_frames((self._session, wire.pack_part(Verb.PUBLISH, request, target, body)))

    def _on_answer(self, verb: int, request: int, body: bytes) -> None:
        """Another topic has answered what was forwarded to it."""
        asked = self._forwards.pop(request, None)
        if asked is None:
            return
        topic, number, _ = asked
        answer = wire.read_body(body)
        effect: Accepted | Refuse
        if verb == Verb.ACCEPTED:
            (result,) = answer
            result = result if isinstance(result, int) else Refusal(*result)
            effect = Accepted(self._session, request, (result,))
        else:
            code, detail, _ = answer
            effect = Refuse(self._session, request, code, detail)
        self._settle(topic, forward_answer(number, effect))

    def _settle(self, topic: str, settled: ask.ForwardSettled) -> None:
        hosted, _ = self._store_of(topic.encode())
        if hosted.shard is not None and topic in hosted.shard.topics:
            hosted.shard.handle(topic, settled, self._now_ms)

    # --- of the worker itself ---------------------------------------------------------------

    def _of_myself(self, verb: int, node: bytes, request: int, topic: bytes, body: bytes) -> None:
        wire.check_size(verb, len(body))
        if verb == Verb.STATUS:
            reply = self._status_of_turn()
        elif verb == Verb.LIST_TOPICS:
            reply = self._topics(wire.read_asked(body))
        elif verb == Verb.SNAPSHOT:
            self._begin_snapshot(node, request, topic, wire.read_asked(body))
            return
        elif verb == Verb.LANE:
            self._claims.append((node, request, topic, _token(wire.read_asked(body))))
            return
        else:
            raise PeerError("bad_request", f"a worker itself does not do {verb}")
        self._reply(node, request, topic, reply)

    def _reply(self, node: bytes, request: int, topic: bytes, reply: dict[str, Any]) -> None:
        self._post(node[: wire.SESSION_BYTES], self._reply_part(node, request, topic, reply))

    def _reply_part(self, node: bytes, request: int, topic: bytes, reply: dict[str, Any]) -> bytes:
        (number,) = wire.NUMBER.unpack_from(node, wire.SESSION_BYTES)
        body = wire.pack_body(reply)
        return wire.pack_part(Verb.REPLY, request, topic, body, node=number, worker=self._number)

    def _status_of_turn(self) -> dict[str, Any]:
        """It walks every topic: made once, however many ask for it in a turn."""
        turn = self._totals["turns"]
        if self._last_status[0] != turn:
            self._last_status = turn, self._status()
        return self._last_status[1]

    def _status(self) -> dict[str, Any]:
        shards = [hosted.shard for hosted in self._hosted.values() if hosted.shard is not None]
        topics = [actor for shard in shards for actor in shard.topics.values()]
        totals: dict[str, int] = dict(self._totals)
        rates: dict[str, float] = {}
        for actor in topics:
            for name, total in actor.totals.items():
                totals[name] = totals.get(name, 0) + total
            for name, rate in actor.rates(self._now_ms).items():
                rates[name] = rates.get(name, 0.0) + rate
        return {
            "process": self._name,
            "pid": os.getpid(),
            "uptime_ms": self._now_ms - self._started_ms,
            "memory_bytes": memory_bytes(),
            "cpu_ms": round(time.process_time() * 1_000),
            "topics": len(topics),
            "held": sum(actor.held for actor in topics),
            "rates": rates,
            "totals": totals,
            "lanes": len(self._lanes),
            "dedicated": {
                child.held.topic: {"number": child.held.number, "pid": child.process.pid}
                for child in self._children.values()
            },
            "disk": self._space.told(),
            "stores": {
                str(hosted.number): hosted.failure if hosted.shard is None else "open"
                for hosted in self._hosted.values()
            },
        }

    def _topics(self, fields: Any) -> dict[str, Any]:
        after = fields[0] if type(fields) is tuple and fields else ""
        if type(after) is not str:
            raise PeerError("bad_request", "a list goes on after a name")
        shards = [hosted.shard for hosted in self._hosted.values() if hosted.shard is not None]
        names = [name for shard in shards for name in shard.topics]
        own = [child.held for child in self._children.values()]
        names += [held.topic for held in own if not held.deleted.exists()]
        behind = sorted(name for name in names if name > after)
        return {"topics": behind[: limits.LIST_MAX]}

    def _begin_snapshot(self, node: bytes, request: int, topic: bytes, fields: Any) -> None:
        """Checkpoints of this worker's stores, each between two turns."""
        if type(fields) is not tuple or len(fields) != 1 or type(fields[0]) is not str:
            raise PeerError("bad_request", "a snapshot needs a folder")
        self._space.check(0)  # it keeps the files of what is consumed from being deleted
        home, most = self._snapshots_home, self._config.max_snapshots
        folder = folder_for(home, fields[0], most, self._now_ms)
        stores = []
        for hosted in self._hosted.values():
            if hosted.store is None or hosted.shard is None:
                raise PeerError("busy", hosted.failure, REOPEN_MS)
            number = hosted.number if self._dedicated is None else self._number
            stores.append(Open(number, hosted.store, hosted.shard))
        self._snapshots.ask((node, request, topic), folder, stores)

    def _go_on_with_snapshots(self) -> None:
        taken = self._snapshots.step(self._now_ms)
        if taken is None:
            return
        node, request, topic = taken.asker
        if taken.error is not None:
            self._refuse(node, request, topic, taken.error)
            return
        reply = {
            "stores": taken.stores,
            "store_count": self._count if self._dedicated is None else 0,
            "dedicated": [child.held.number for child in self._children.values()],
            "topic_defaults": topic_settings_as_user(self._config.topic),
            "time_ms": self._now_ms,
        }
        self._reply(node, request, topic, reply)


def _check_producer(command: ask.Publish) -> None:
    """Keeps clients from taking the numbers of dead letters, which topics publish."""
    producer, tag = command.producer, ask.FORWARDER_TAG
    is_tagged = type(producer) is bytes and producer[: len(tag)] == tag
    if is_tagged and not command.node.startswith(wire.OF_WORKER):
        raise PeerError("bad_request", f"a producer's id does not begin with {tag!r}")


def _token(body: Any) -> bytes:
    token = body[0] if type(body) is tuple and len(body) == 1 else None
    if type(token) is not bytes or len(token) != wire.LANE_TOKEN_BYTES:
        raise PeerError("bad_request", f"a lane has a token of {wire.LANE_TOKEN_BYTES} bytes")
    return token


def _reason(error: StoreError) -> str:
    """Why a store fails, in a few words and with no path: a client may be anybody."""
    cause = error.__cause__
    why = (isinstance(cause, OSError) and cause.strerror) or str(cause or error)
    parts = [part for part in why.split(": ") if "/" not in part and "While" not in part]
    shown = ": ".join(dict.fromkeys(parts))
    return f"{shown[:DETAIL_MAX].rstrip(':. ')}; the worker's log says more"


def run(config: Config, number: int) -> None:
    """Runs a worker until it is told to stop."""
    stopping = Stopping()
    Worker(config, number).run(stopping)
    log.info("has stopped")


def run_dedicated(config: Config, number: int) -> None:
    """Runs the worker of one topic until it is told to stop, or the topic is no longer its own."""
    stopping = Stopping()
    home = Path(config.data_dir).absolute() / "dedicated"
    held = next((held for held in dedicated_in(home) if held.number == number), None)
    if held is None:
        raise ConfigError(f"{home} has no topic of number {number}")
    held.deleted.unlink(missing_ok=True)  # of a deletion that was not stored
    worker = Worker(config, number, held)
    worker.run(stopping)
    log.info("has stopped")
    if worker.is_left:
        sys.exit(LEFT_CODE)
