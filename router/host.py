"""The front-end process: one ROUTER for clients, one for workers, and frames between the two.

Clients reach their ROUTER through the gate (``gate_host.py``), which bounds what each may send.

It forwards by head and topic and never looks into a body. It holds no message: what it cannot hand
on it refuses (``busy``) or keeps in a bounded outbox. Between it and a worker go, besides what is
forwarded (session, frame), a few messages of their own with an empty session:

    worker -> front-end   "", "ready", epoch, n    at its start, and as its heartbeat; n is how many
                                                   bytes of frames it has taken in all, u64
    worker -> front-end   "", "route", topic, to   a topic of its has a process of its own, or none
    front-end -> worker   "", "epoch", epochs      the answer: who this front-end is, and whom of
                                                   that worker it knows (8 bytes each)
    front-end -> worker   "", "ended", sessions    sessions are over: one at its end; to a worker
                                                   that was restarted, all that ended of late
    front-end -> worker   "", "detach", node       one node of a session is over
"""

import contextlib
import logging
import os
import resource
import select
import time
from collections import deque
from typing import Any, Final

import zmq

from asterism import __version__, wire
from asterism.config import IPC, Address, Config
from asterism.errors import PeerError
from asterism.frames_host import is_readable, receive, rest, send
from asterism.process_host import (
    Clock,
    Stopping,
    fields_of,
    memory_bytes,
    run_folder,
    say_ready,
    settle_memory,
    socket_address,
    socket_folder,
    store_count,
)
from asterism.router.frontend import (
    Session,
    Sessions,
    closed,
    refusal,
)
from asterism.router.gate_host import (
    CHARGED_BYTES,
    DEBT_MS_MAX,
    DESCRIPTORS_EACH,
    DESCRIPTORS_SPARE,
    Connection,
    Gate,
)
from asterism.router.pipes import Pipe
from asterism.router.placement import store_of, worker_of
from asterism.wire import Part, Verb

DRAIN_MAX: Final = 256  # messages taken from the workers before clients have their turn
DRAIN_COST_MAX: Final = 128  # of what is taken from clients before the others have their turn, but
DRAIN_BYTES_MAX: Final = 8 << 20  # for the last message; and bytes of it, likewise
# Publishing and consuming cost 1 a request. All else is rare and takes a worker longer, so it costs
# more: a client that floods the broker with it would keep the front-end and the workers busy.
TRAFFIC: Final = frozenset(
    {
        *(Verb.PUBLISH, Verb.AWAIT_RECEIPTS, Verb.GRANT, Verb.PULL, Verb.CANCEL_WAIT, Verb.REPORT),
        *(Verb.EXTEND, Verb.DRAFT, Verb.SET_DRAFT, Verb.ORDER, Verb.FETCH, Verb.COMPLETE),
        Verb.FAIL,
    }
)
RECEIVING: Final = frozenset({Verb.SUBSCRIBE, Verb.SET_INTERESTS, Verb.UNSUBSCRIBE, Verb.DETACH})
RECEIVING_COST: Final = 20  # of coming to a topic, of other interests, and of leaving it
CONTROL_COST: Final = 40  # of anything else, and of what cannot be understood
ROUTES_MAX: Final = 65_536  # topics whose worker is remembered; all are forgotten past it
BACKLOG: Final = 1_024  # connections of the gate that ZeroMQ has not taken yet
PIPE_MAX: Final = 1_000  # messages ZeroMQ holds for one peer; then the outbox, or busy
ENDED_MAX: Final = 10_000  # sessions of which a worker is told when it comes back
WORKER_RETRY_MS: Final = 50  # the hint of ``busy`` while a worker is away or behind
CLIENT_WINDOW_BYTES: Final = 256 << 10  # in ZeroMQ's hands for one client; what follows is parked
CLIENTS_BYTES_MAX: Final = 512 << 20  # for all clients; past it, the one with the most is cut
REFUSED_MAX: Final = 1_000  # messages refused as a whole, in
REFUSED_MS: Final = 10_000  # such a time; then the client is cut
CLOSE_S: Final = 0.2  # for clients to take what they are told at the end
BLOCKED_POLL_MS: Final = 2  # nothing tells when a ROUTER's peer takes more: it is tried again
log = logging.getLogger("asterism.frontend")


class FrontEnd:
    """Forwards frames."""

    def __init__(self, config: Config) -> None:
        self._clock = Clock()
        self._config = config
        self._stores = store_count(config)
        self._context = zmq.Context()
        self._clients = self._router(socket_address(config, "frontend"), os.getpid())
        self._workers = self._router(socket_address(config, "workers"))
        self._workers.router_handover = True
        self._gate = self._open_gate(config)
        self.address = self._gate.addresses[0]
        self._sessions = Sessions(os.urandom(8), self._about_broker())
        self._routes: dict[bytes, bytes] = {}
        self._dedicated: dict[bytes, bytes] = {}  # topic -> its process; told by the workers
        self._worker_epochs: dict[bytes, bytes] = {}
        self._pipes: dict[bytes, Pipe] = {}  # by process
        self._behind: set[bytes] = set()  # processes for which something is parked
        self._blocked: dict[Session, None] = {}
        # Sessions that are over, with their workers: one that was away then keeps what they held.
        self._ended: deque[tuple[bytes, set[bytes]]] = deque(maxlen=ENDED_MAX)
        self._started_ms = self._clock.now_ms()
        self._next_look_ms = 0
        self._next_gate_ms = 0
        self._now_ms = self._started_ms
        self._parked_bytes = 0  # in outboxes of clients
        self._forwarded = 0
        self._returned = 0

    def _about_broker(self) -> dict[str, Any]:
        """What a client is told when it is welcomed, of the broker as it is."""
        config = self._config
        about: dict[str, Any] = {
            "heartbeat_ms": config.heartbeat_ms,
            "workers": config.workers,
            "broker": __version__,
            "frame_bytes_max": wire.FRAME_BYTES_MAX,
            "stores": self._stores,
        }
        if config.lanes:
            about["lanes"] = str(socket_folder(config))
        return about

    def _open_gate(self, config: Config) -> Gate:
        """Listens where clients connect; the doors of the same data folder do so by a path."""
        router = socket_address(config, "frontend").removeprefix(IPC)
        doors = socket_address(config, "clients")
        addresses = (*config.endpoints(), Address(doors, path=doors.removeprefix(IPC)))
        room = (_allow_many_files() - DESCRIPTORS_SPARE) // DESCRIPTORS_EACH
        if room < config.max_connections:
            fields = fields_of(max_connections=config.max_connections, takes=room)
            log.warning("the system allows fewer connections than max_connections %s", fields)
        most = max(min(config.max_connections, room), 1)
        pace = config.max_requests, min(config.heartbeat_ms, DEBT_MS_MAX)
        return Gate(addresses, router, most, config.hello_timeout_ms, *pace)

    def _router(self, address: str, peer_pid: int | None = None) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.ROUTER)
        socket.router_mandatory = True
        if peer_pid is not None:
            socket.setsockopt(zmq.IPC_FILTER_PID, peer_pid)  # the gate's, which is in this process
            socket.backlog = BACKLOG
        socket.sndhwm = socket.rcvhwm = PIPE_MAX
        socket.linger = 200
        socket.ipv6 = address.startswith("tcp://[")
        socket.bind(address)
        return socket

    def run(self, stopping: Stopping) -> None:
        poller = zmq.Poller()
        poller.register(self._clients, zmq.POLLIN)
        poller.register(self._workers, zmq.POLLIN)
        poller.register(self._gate.fileno(), zmq.POLLIN)
        poller.register(stopping.wakeup, zmq.POLLIN)
        listen = ",".join(self._gate.addresses[:-1])
        said = {"address": self.address, "listen": listen, "started_ms": self._clock.now_ms()}
        say_ready(self._config, "frontend", **said)
        log.info("listens %s", fields_of(address=listen, workers=self._config.workers))
        settle_memory()
        look_ms = max(self._config.heartbeat_ms // 2, 1)
        while not stopping.asked:
            ready = dict(poller.poll(self._wait_ms(look_ms)))
            self._now_ms = self._clock.now_ms()
            if self._gate.fileno() in ready or self._now_ms >= self._next_gate_ms:
                self._gate.turn(self._now_ms)
                self._next_gate_ms = self._now_ms + self._gate.wait_ms()
            if self._workers in ready:
                self._drain_workers()
            if self._clients in ready:
                self._drain_clients()
            for routing in self._gate.take_ended():
                self._on_departure(routing)
            if self._blocked:
                self._unblock()
            if self._behind:
                self._catch_up()
            if self._now_ms >= self._next_look_ms:
                self._next_look_ms = self._now_ms + look_ms
                self._cut_silent()
        self._close()

    def _wait_ms(self, look_ms: int) -> int:
        if self._is_blocked():
            return BLOCKED_POLL_MS
        return min(look_ms, self._gate.wait_ms())

    def _on_departure(self, routing: bytes) -> None:
        """A connection has ended, and its session with it."""
        session = self._sessions.by_routing.get(routing)
        if session is not None:
            self._end(session)

    def _cut_silent(self) -> None:
        for session in self._sessions.silent(self._now_ms):
            if session.connection.is_held_up:
                session.last_ms = self._now_ms  # its signs of life lie where nobody reads them
                continue
            log.info("cuts a silent client %s", fields_of(name=session.name))
            self._to_client(session, closed("busy", "nothing was heard of you for long"))
            self._end(session)

    def _close(self) -> None:
        for session in list(self._sessions.by_routing.values()):
            self._to_client(session, closed("busy", "the broker is being stopped"))
        until = time.monotonic() + CLOSE_S
        while time.monotonic() < until and self._gate.flush(self._now_ms):
            select.select([self._gate.fileno()], [], [], BLOCKED_POLL_MS / 1_000)
        self._gate.close()
        self._clients.close()
        self._workers.close()
        self._context.term()

    def _is_blocked(self) -> bool:
        return bool(self._blocked or self._behind)

    # --- from clients -----------------------------------------------------------------------

    def _drain_clients(self) -> None:
        drained = cost = 0
        while cost < DRAIN_COST_MAX and drained < DRAIN_BYTES_MAX:
            routing, frame = receive(self._clients), receive(self._clients)
            more = rest(self._clients)
            size = len(frame) + sum(map(len, more)) if more else len(frame)
            connection = self._gate.taken(routing, size)
            cost += 1
            if connection is not None:
                asked = self._on_client(connection, frame, 1 + len(more))
                cost += asked
                self._gate.charge_taken(connection, asked, size)
                self._gate.proceed(connection)
            drained += size
            if not is_readable(self._clients):
                return

    def _on_client(self, connection: Connection, frame: bytes, count: int) -> int:
        """Takes a message of a client: one frame, of one part or several. What they cost."""
        try:
            if count != 1:
                raise PeerError("bad_request", f"a message is one frame, not {count}")
            parts = wire.read_parts(frame)
        except PeerError as error:
            self._send_client(connection, refusal(error, 0, 0, b""))
            self._count_refused(connection)
            return CONTROL_COST * count
        routing = connection.routing
        session = self._sessions.by_routing.get(routing)
        if session is not None:
            session.taken += len(parts)
        held: list[Part] = []  # for one worker, one behind the other
        held_for = b""
        for part in parts:
            worker = self._destination(part)
            if held and worker != held_for:
                self._forward(connection, held_for, frame, held)
                held = []
            if worker:
                held.append(part)
                held_for = worker
            else:
                self._on_part(connection, frame, part)
        if held:
            self._forward(connection, held_for, frame, held)
        return sum(map(_cost, parts))

    def _count_refused(self, connection: Connection) -> None:
        """A message was refused as a whole; a client that sends nothing else is cut."""
        if self._now_ms - connection.refused_ms > REFUSED_MS:
            connection.refused_ms, connection.refused = self._now_ms, 0
        connection.refused += 1
        if connection.refused > REFUSED_MAX:
            self._gate.cut(connection, "too much of what it sends cannot be understood")

    def _destination(self, part: Part) -> bytes:
        """The worker that a part is for; empty where the front-end answers it, or refuses it."""
        if not Verb.STATUS <= part.verb < wire.FIRST_BROKER_VERB:
            return b""
        try:
            if part.end - part.body > wire.BODY_BYTES_MIN:
                wire.check_size(part.verb, part.end - part.body)
            worker = self._routes.get(part.topic) or self._route(part.topic)
        except PeerError:
            return b""
        return worker if worker != b"f" else b""

    def _forward(
        self, connection: Connection, worker: bytes, frame: bytes, parts: list[Part]
    ) -> None:
        """Hands on what is for one worker, of one message of a client, as one message."""
        session = self._sessions.by_routing.get(connection.routing)
        if session is None:
            for part in parts:
                self._say_unknown(connection, part.request)
            return
        session.last_ms = self._now_ms
        self._forwarded += len(parts)
        begin, end = parts[0].begin, parts[-1].end
        whole = frame if end - begin == len(frame) else frame[begin:end]
        if worker in self._worker_epochs:
            session.workers.add(worker)
            if worker not in self._behind and self._send_worker(worker, session.id, whole) is None:
                return
        for part in parts:
            command = (session.id, frame[part.begin : part.end])
            try:
                self._to_worker(worker, *command, wanted=part.request != 0)
            except PeerError as error:
                if part.request:
                    answer = refusal(error, part.node, part.request, part.topic)
                    self._to_client(session, answer)

    def _say_unknown(self, connection: Connection, request: int) -> None:
        self._send_client(connection, closed("wrong_state", "say hello first", request))
        self._count_refused(connection)

    def _on_part(self, connection: Connection, frame: bytes, part: Part) -> None:
        """Takes what is not for a worker."""
        session = self._sessions.by_routing.get(connection.routing)
        if session is None:
            if part.verb == Verb.HELLO:
                self._hello(connection, part, frame[part.body : part.end])
            else:
                self._say_unknown(connection, part.request)
            return
        session.last_ms = self._now_ms
        try:
            self._of_session(session, part, frame)
        except PeerError as error:
            if part.request:
                self._to_client(session, refusal(error, part.node, part.request, part.topic))

    def _hello(self, connection: Connection, part: Part, body: bytes) -> None:
        if connection.is_over:
            return
        session_id = os.urandom(wire.SESSION_BYTES)
        routing = connection.routing
        try:
            welcome = self._sessions.hello(routing, connection, session_id, body, self._now_ms)
        except PeerError as error:
            self._send_client(connection, refusal(error, part.node, part.request, b""))
            self._count_refused(connection)
            return
        self._gate.begin_session(connection)
        session = self._sessions.by_routing[routing]
        log.debug("welcomes a client %s", fields_of(name=session.name))
        self._answer(session, Verb.WELCOME, part, welcome)

    def _of_session(self, session: Session, part: Part, frame: bytes) -> None:
        """What the front-end itself answers."""
        wire.check_size(part.verb, part.end - part.body)
        match part.verb:
            case Verb.HELLO:
                self._end(session)
                self._hello(session.connection, part, frame[part.body : part.end])
            case Verb.PING:
                self._answer(session, Verb.PONG, part, None)
            case Verb.GOODBYE:
                self._to_client(session, closed("busy", "goodbye", part.request))
                self._end(session)
            case Verb.DETACH:
                node = session.id + wire.NUMBER.pack(part.node)
                if not self._behind.isdisjoint(session.workers):
                    raise PeerError("busy", "a worker is behind", WORKER_RETRY_MS)
                if any(self._pipe(worker).is_full for worker in session.workers):
                    raise PeerError("busy", "a worker is behind", WORKER_RETRY_MS)
                self._tell(session.workers, b"detach", node)
                self._answer(session, Verb.REPLY, part, {})
            case verb if verb >= wire.FIRST_BROKER_VERB:
                raise PeerError("bad_request", f"the verb {verb} is the broker's")
            case verb if verb >= Verb.STATUS:
                self._of_myself(session, part)
            case verb:
                raise PeerError("bad_request", f"there is no verb {verb}")

    def _answer(self, session: Session, verb: Verb, part: Part, body: object) -> None:
        packed = wire.pack_body(body)
        answer = wire.pack_part(verb, part.request, part.topic, packed, node=part.node)
        self._to_client(session, answer)

    def _route(self, topic: bytes) -> bytes:
        """The worker of a topic, or the process that a topic names."""
        if topic.startswith(wire.PROCESS):
            return self._process(topic[1:])
        wire.check_topic(topic)
        try:
            store = store_of(topic.decode(), self._stores)
        except UnicodeDecodeError:
            raise PeerError("bad_request", "a topic's name is UTF-8") from None
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        worker = self._dedicated.get(topic) or b"w%d" % worker_of(store, self._config.workers)
        self._routes[topic] = worker
        return worker

    def _process(self, name: bytes) -> bytes:
        if name in (b"f", b"i"):
            return name
        if len(name) <= 6 and name[:1] in (b"w", b"d") and name[1:].isdigit():
            number = int(name[1:])
            if name[:1] == b"d" or number < self._config.workers:
                return b"%c%d" % (name[0], number)
        raise PeerError("bad_request", "there is no such process")

    def _of_myself(self, session: Session, part: Part) -> None:
        self._route(part.topic)  # which refuses what is nobody's
        if part.verb != Verb.STATUS:
            raise PeerError("bad_request", "the front-end answers to STATUS alone")
        self._answer(session, Verb.REPLY, part, self._status())

    def _status(self) -> dict[str, Any]:
        return {
            "process": "frontend",
            "pid": os.getpid(),
            "uptime_ms": self._now_ms - self._started_ms,
            "memory_bytes": memory_bytes(),
            "cpu_ms": round(time.process_time() * 1_000),
            "address": self.address,
            "sessions": len(self._sessions.by_routing),
            "connections": len(self._gate),
            "connections_cut": self._gate.cut_count,
            "clients_bytes": self._gate.due_bytes + self._parked_bytes,
            "workers_known": len(self._worker_epochs),
            "totals": {"forwarded": self._forwarded, "returned": self._returned},
        }

    # --- to workers -------------------------------------------------------------------------

    def _send_worker(self, worker: bytes, session_id: bytes, frame: bytes) -> int | None:
        """Sends a frame of a session, as far as its worker's pipe takes it."""
        pipe = self._pipe(worker)
        if not pipe.admits(session_id, len(frame)):
            return int(zmq.EAGAIN)
        failed = self._send(self._workers, (worker, session_id, frame))
        if failed is None:
            pipe.count_sent(session_id, len(frame))
        return failed

    def _pipe(self, worker: bytes) -> Pipe:
        pipe = self._pipes.get(worker)
        if pipe is None:
            pipe = self._pipes[worker] = Pipe()
        return pipe

    def _to_worker(self, worker: bytes, session_id: bytes, frame: bytes, wanted: bool) -> None:
        """Hands a frame to a worker; what wants an answer is refused where that cannot be."""
        if worker not in self._worker_epochs:
            if wanted:
                raise PeerError("busy", "the topic's worker is away or behind", WORKER_RETRY_MS)
            return  # with the worker that is gone, all it would have been told is void
        failed: int | None = zmq.EAGAIN
        if worker not in self._behind:
            failed = self._send_worker(worker, session_id, frame)
        if failed is None or (failed == zmq.EHOSTUNREACH and not wanted):
            return
        if wanted or not self._pipe(worker).park((session_id, frame)):
            raise PeerError("busy", "the topic's worker is away or behind", WORKER_RETRY_MS)
        self._behind.add(worker)

    def _tell(self, workers: set[bytes], *frames: bytes) -> None:
        """Tells workers what they have to know, behind what they were sent."""
        for worker in workers:
            if worker not in self._worker_epochs:
                continue
            if worker not in self._behind:
                failed = self._send(self._workers, (worker, b"", *frames))
                if failed is None or failed == zmq.EHOSTUNREACH:
                    continue
            self._pipe(worker).keep((b"", *frames))
            self._behind.add(worker)

    def _send(self, socket: "zmq.Socket[bytes]", frames: tuple[bytes, ...]) -> int | None:
        """Sends without waiting; the error number where that cannot be."""
        try:
            send(socket, frames)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return error.errno
        return None

    # --- from workers -----------------------------------------------------------------------

    def _drain_workers(self) -> None:
        for _ in range(DRAIN_MAX):
            worker, session_id = receive(self._workers), receive(self._workers)
            frame = receive(self._workers)
            if session_id:
                self._return(worker, session_id, frame)
            else:
                self._on_control(worker, frame, *rest(self._workers))
            if not is_readable(self._workers):
                return

    def _return(self, worker: bytes, session_id: bytes, frame: bytes) -> None:
        if session_id.startswith(wire.OF_WORKER):
            self._between_workers(worker, session_id, frame)
            return
        session = self._sessions.of(session_id)
        if session is not None:
            self._returned += 1
            self._to_client(session, frame)

    def _on_control(self, worker: bytes, what: bytes, value: bytes, to: bytes = b"") -> None:
        if what == b"route":
            self._routes.pop(value, None)
            before, after = self._dedicated.get(value), to or worker
            # A worker that gives a topic away has opened its store anew, and said so: told twice,
            # its clients would subscribe twice, and what they got in between would fail over.
            if before is not None and before[:1] == b"d" and before != after:
                self._say_restarted(before)  # what its clients had there is elsewhere now
            self._dedicated[value] = after
            return
        assert what == b"ready"
        epoch = value
        before = self._worker_epochs.get(worker)
        self._worker_epochs[worker] = epoch
        self._send(self._workers, (worker, b"", b"epoch", self._sessions.epoch + epoch))
        if before == epoch:
            self._pipe(worker).count_taken(wire.COUNT.unpack(to)[0])
            return
        self._pipes.pop(worker, None)
        self._behind.discard(worker)
        log.info("knows a process %s", fields_of(name=worker.decode()))
        if worker != b"i":
            self._tell_ended(worker)
            self._say_restarted(worker)

    def _tell_ended(self, worker: bytes) -> None:
        of = self._sessions.of
        told = [held for held, workers in self._ended if worker in workers and of(held) is None]
        if told:
            self._tell({worker}, b"ended", b"".join(told))

    def _say_restarted(self, worker: bytes) -> None:
        # A client that never had an answer from a topic's own process does not know that its
        # requests went there: the topic tells it which ones to send again.
        own = (topic for topic, process in self._dedicated.items() if process == worker)
        topic = next(own, b"") if worker[:1] == b"d" else b""
        for session in list(self._sessions.by_routing.values()):
            if worker in session.workers:
                # What comes behind this many parts is for the worker that is there now.
                taken = wire.pack_body(session.taken)
                number = int(worker[1:])
                told = wire.pack_part(Verb.RESTARTED, 0, topic, taken, worker=number)
                self._to_client(session, told)

    def _between_workers(self, worker: bytes, session_id: bytes, frame: bytes) -> None:
        """A worker asks another, as which it has a session of its own; or it answers one."""
        for part in wire.read_parts(frame):
            message = (session_id, frame[part.begin : part.end])
            if part.verb >= wire.FIRST_BROKER_VERB:
                self._answer_worker(wire.worker_of_session(session_id), *message)
                continue
            try:
                to = self._routes.get(part.topic) or self._route(part.topic)
                self._to_worker(to, *message, wanted=True)
            except PeerError as error:
                answer = refusal(error, part.node, part.request, part.topic)
                self._answer_worker(worker, session_id, answer)

    def _answer_worker(self, worker: bytes, session_id: bytes, frame: bytes) -> None:
        """Sends a worker the answer to what it asked; one that is lost is asked for again."""
        if self._send(self._workers, (worker, session_id, frame)) is None:
            self._pipe(worker).count_sent(session_id, len(frame))

    # --- to clients -------------------------------------------------------------------------

    def _send_client(self, connection: Connection, frame: bytes) -> int | None:
        """Sends to a client, as far as its window allows."""
        if connection.is_over:
            return int(zmq.EHOSTUNREACH)
        if connection.due > CLIENT_WINDOW_BYTES:
            return int(zmq.EAGAIN)
        failed = self._send(self._clients, (connection.routing, frame))
        if failed is None:
            self._gate.count_sent(connection, len(frame))
        return failed

    def _to_client(self, session: Session, frame: bytes) -> None:
        if session in self._blocked:
            self._park(session, frame)
            return
        failed = self._send_client(session.connection, frame)
        if failed == zmq.EHOSTUNREACH:
            self._end(session)
        elif failed is not None:
            self._blocked[session] = None
            self._park(session, frame)

    def _park(self, session: Session, frame: bytes) -> None:
        self._parked_bytes += len(frame)
        if not session.park(frame):
            self._cut_unread(session)
        elif self._parked_bytes + self._gate.due_bytes > CLIENTS_BYTES_MAX:
            self._cut_unread(max(self._sessions.by_routing.values(), key=_held_bytes))

    def _cut_unread(self, session: Session) -> None:
        log.warning("cuts a client that does not read %s", fields_of(name=session.name))
        self._end(session)
        self._gate.cut(session.connection, "it does not read what it is sent")

    def _unblock(self) -> None:
        for session in list(self._blocked):
            failed = None
            while session.outbox and failed is None:
                failed = self._send_client(session.connection, session.outbox[0])
                if failed is None:
                    self._parked_bytes -= session.unpark()
            if failed == zmq.EHOSTUNREACH:
                self._end(session)
            elif failed is None:
                del self._blocked[session]

    def _catch_up(self) -> None:
        """Sends workers what was parked for them."""
        for worker in list(self._behind):
            pipe = self._pipe(worker)
            failed = None
            while pipe.outbox and failed is None:
                first = pipe.outbox[0]
                failed = (
                    self._send_worker(worker, *first)
                    if first[0]
                    else self._send(self._workers, (worker, *first))
                )
                if failed is None:
                    pipe.unpark()
            if failed is None or failed == zmq.EHOSTUNREACH:
                self._behind.discard(worker)

    def _end(self, session: Session) -> None:
        self._blocked.pop(session, None)
        if self._sessions.end(session):
            self._ended.append((session.id, session.workers))
            self._parked_bytes -= session.outbox_bytes
            self._gate.end_session(session.connection)
            self._tell(session.workers, b"ended", session.id)


def _cost(part: Part) -> int:
    """What a request costs its client, beside its bytes."""
    if part.verb in TRAFFIC:
        return 1
    cost = RECEIVING_COST if part.verb in RECEIVING else CONTROL_COST
    return cost * (1 + (part.end - part.begin) // CHARGED_BYTES)


def _held_bytes(session: Session) -> int:
    due: int = session.connection.due
    return due + session.outbox_bytes


def _allow_many_files() -> int:
    """Raises the bound of open files as far as the system allows; what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def run(config: Config) -> None:
    """Runs the front-end until it is told to stop."""
    stopping = Stopping()
    run_folder(config)
    FrontEnd(config).run(stopping)
    log.info("has stopped")
