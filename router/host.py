"""The front-end process: one ROUTER for clients, one for workers, and frames between the two.

It forwards by head and topic and never looks into a body. It holds no message: what it cannot hand
on it refuses (``busy``) or keeps in a bounded outbox. Between it and a worker go, besides what is
forwarded (session, frame), a few messages of their own with an empty session:

    worker -> front-end   "", "ready", epoch       at its start, and as its heartbeat
    worker -> front-end   "", "route", topic, to   a topic of its has a process of its own, or none
    front-end -> worker   "", "epoch", epochs      the answer: who this front-end is, and whom of
                                                   that worker it knows (8 bytes each)
    front-end -> worker   "", "ended", session     a session is over
    front-end -> worker   "", "detach", node       one node of a session is over
"""

import logging
import os
import time
from collections import deque
from typing import Any, Final

import zmq

from asterism import __version__, wire
from asterism.config import Config
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
from asterism.router.placement import store_of, worker_of
from asterism.wire import Part, Verb

DRAIN_MAX: Final = 256  # messages taken from one socket before the other has its turn
ROUTES_MAX: Final = 65_536  # topics whose worker is remembered; all are forgotten past it
PIPE_MAX: Final = 1_000  # messages ZeroMQ holds for one peer; then the outbox, or busy
WORKER_OUTBOX_MAX: Final = 100_000  # small frames that want no answer and wait for one worker
WORKER_RETRY_MS: Final = 50  # the hint of ``busy`` while a worker is away or behind
PROBE_AFTER_MS: Final = (20, 250)  # after a connection has ended
PROBE_STILL_MS: Final = 10  # who has sent something since is there
BLOCKED_POLL_MS: Final = 2  # nothing tells when a ROUTER's peer takes more: it is tried again
log = logging.getLogger("asterism.frontend")


class FrontEnd:
    """Forwards frames."""

    def __init__(self, config: Config) -> None:
        self._clock = Clock()
        self._config = config
        self._stores = store_count(config)
        self._context = zmq.Context()
        self._clients = self._router(config.listen, wire.FRAME_BYTES_MAX)
        self._workers = self._router(socket_address(config, "workers"))
        self._workers.router_handover = True
        self.address = self._clients.getsockopt_string(zmq.LAST_ENDPOINT)
        # For the doors of the same data folder: an eighth quicker than through TCP.
        self._clients.bind(socket_address(config, "clients"))
        self._departures = self._clients.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._probes: list[int] = []  # when clients are to be looked for next
        self._sessions = Sessions(os.urandom(8), self._about_broker())
        self._routes: dict[bytes, bytes] = {}
        self._dedicated: dict[bytes, bytes] = {}  # topic -> its process; told by the workers
        self._worker_epochs: dict[bytes, bytes] = {}
        self._worker_outboxes: dict[bytes, deque[tuple[bytes, ...]]] = {}
        self._blocked: dict[Session, None] = {}
        self._started_ms = self._clock.now_ms()
        self._next_look_ms = 0
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

    def _router(self, address: str, frame_bytes_max: int = -1) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.ROUTER)
        socket.router_mandatory = True
        socket.maxmsgsize = frame_bytes_max  # holds for what is bound after it
        socket.sndhwm = socket.rcvhwm = PIPE_MAX
        socket.linger = 200
        socket.bind(address)
        return socket

    def run(self, stopping: Stopping) -> None:
        poller = zmq.Poller()
        poller.register(self._clients, zmq.POLLIN)
        poller.register(self._workers, zmq.POLLIN)
        poller.register(self._departures, zmq.POLLIN)
        poller.register(stopping.wakeup, zmq.POLLIN)
        say_ready(self._config, "frontend", address=self.address, started_ms=self._clock.now_ms())
        log.info("listens %s", fields_of(address=self.address, workers=self._config.workers))
        settle_memory()
        look_ms = max(self._config.heartbeat_ms // 2, 1)
        while not stopping.asked:
            ready = dict(poller.poll(self._wait_ms(look_ms)))
            self._now_ms = self._clock.now_ms()
            if self._workers in ready:
                self._drain_workers()
            if self._clients in ready:
                self._drain_clients()
            if self._is_blocked():
                self._unblock()
            if self._departures in ready:
                self._on_departure()
            if self._probes and self._now_ms >= self._probes[0]:
                self._probe()
            if self._now_ms >= self._next_look_ms:
                self._next_look_ms = self._now_ms + look_ms
                for session in self._sessions.silent(self._now_ms):
                    log.info("cuts a silent client %s", fields_of(name=session.name))
                    self._to_client(session, closed("busy", "nothing was heard of you for long"))
                    self._end(session)
        self._close()

    def _wait_ms(self, look_ms: int) -> int:
        if self._is_blocked():
            return BLOCKED_POLL_MS
        if self._probes:
            return min(max(self._probes[0] - self._clock.now_ms(), 0), look_ms)
        return look_ms

    def _on_departure(self) -> None:
        """A connection has ended. ZeroMQ does not say whose; to send to it tells."""
        while is_readable(self._departures):
            receive(self._departures)
            rest(self._departures)
        if not self._probes:  # twice: at first it may not be known there yet
            self._probes = [self._now_ms + after_ms for after_ms in PROBE_AFTER_MS]

    def _probe(self) -> None:
        """Sends to clients that have been still for a moment; those that are gone are found out."""
        del self._probes[0]
        still_ms = self._now_ms - PROBE_STILL_MS
        sign = wire.pack_part(Verb.PONG)
        for session in list(self._sessions.by_routing.values()):
            if session.last_ms <= still_ms and session not in self._blocked:
                self._to_client(session, sign)

    def _close(self) -> None:
        self._clients.disable_monitor()
        self._departures.close(linger=0)
        for session in list(self._sessions.by_routing.values()):
            self._to_client(session, closed("busy", "the broker is being stopped"))
        self._clients.close()
        self._workers.close()
        self._context.term()

    def _is_blocked(self) -> bool:
        return bool(self._blocked or self._worker_outboxes)

    # --- from clients -----------------------------------------------------------------------

    def _drain_clients(self) -> None:
        for _ in range(DRAIN_MAX):
            routing, frame = receive(self._clients), receive(self._clients)
            self._on_client(routing, frame, 1 + len(rest(self._clients)))
            if not is_readable(self._clients):
                return

    def _on_client(self, routing: bytes, frame: bytes, count: int) -> None:
        """Takes a message of a client: one frame, of one part or several."""
        try:
            if count != 1:
                raise PeerError("bad_request", f"a message is one frame, not {count}")
            parts = wire.read_parts(frame)
        except PeerError as error:
            self._send(self._clients, (routing, refusal(error, 0, 0, b"")))
            return
        session = self._sessions.by_routing.get(routing)
        if session is not None:
            session.taken += len(parts)
        held: list[Part] = []  # for one worker, one behind the other
        held_for = b""
        for part in parts:
            worker = self._destination(part)
            if held and worker != held_for:
                self._forward(routing, held_for, frame, held)
                held = []
            if worker:
                held.append(part)
                held_for = worker
            else:
                self._on_part(routing, frame, part)
        if held:
            self._forward(routing, held_for, frame, held)

    def _destination(self, part: Part) -> bytes:
        """The worker that a part is for; empty where the front-end answers it, or refuses it."""
        if not Verb.STATUS <= part.verb < wire.FIRST_BROKER_VERB:
            return b""
        try:
            worker = self._routes.get(part.topic) or self._route(part.topic)
        except PeerError:
            return b""
        return worker if worker != b"f" else b""

    def _forward(self, routing: bytes, worker: bytes, frame: bytes, parts: list[Part]) -> None:
        """Hands on what is for one worker, of one message of a client, as one message."""
        session = self._sessions.by_routing.get(routing)
        if session is None:
            for part in parts:
                self._say_unknown(routing, part.request)
            return
        session.last_ms = self._now_ms
        session.workers.add(worker)
        self._forwarded += len(parts)
        begin, end = parts[0].begin, parts[-1].end
        whole = frame if end - begin == len(frame) else frame[begin:end]
        takes = worker in self._worker_epochs and worker not in self._worker_outboxes
        if takes and self._send(self._workers, (worker, session.id, whole)) is None:
            return
        for part in parts:
            command = (session.id, frame[part.begin : part.end])
            try:
                self._to_worker(worker, command, wanted=part.request != 0)
            except PeerError as error:
                if part.request:
                    answer = refusal(error, part.node, part.request, part.topic)
                    self._to_client(session, answer)

    def _say_unknown(self, routing: bytes, request: int) -> None:
        unknown = closed("wrong_state", "say hello first", request)
        self._send(self._clients, (routing, unknown))

    def _on_part(self, routing: bytes, frame: bytes, part: Part) -> None:
        """Takes what is not for a worker."""
        body = frame[part.body : part.end]
        session = self._sessions.by_routing.get(routing)
        if session is None:
            if part.verb == Verb.HELLO:
                self._hello(routing, part, body)
            else:
                self._say_unknown(routing, part.request)
            return
        session.last_ms = self._now_ms
        try:
            self._of_session(session, part, body)
        except PeerError as error:
            if part.request:
                self._to_client(session, refusal(error, part.node, part.request, part.topic))

    def _hello(self, routing: bytes, part: Part, body: bytes) -> None:
        try:
            welcome = self._sessions.hello(routing, body, self._now_ms)
        except PeerError as error:
            self._send(self._clients, (routing, refusal(error, part.node, part.request, b"")))
            return
        session = self._sessions.by_routing[routing]
        log.debug("welcomes a client %s", fields_of(name=session.name))
        self._answer(session, Verb.WELCOME, part, welcome)

    def _of_session(self, session: Session, part: Part, body: bytes) -> None:
        """What the front-end itself answers."""
        match part.verb:
            case Verb.HELLO:
                self._end(session)
                self._hello(session.routing, part, body)
            case Verb.PING:
                self._answer(session, Verb.PONG, part, None)
            case Verb.GOODBYE:
                self._to_client(session, closed("busy", "goodbye", part.request))
                self._end(session)
            case Verb.DETACH:
                node = session.id + wire.NUMBER.pack(part.node)
                self._tell(session.workers, (b"", b"detach", node))
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
            "workers_known": len(self._worker_epochs),
            "totals": {"forwarded": self._forwarded, "returned": self._returned},
        }

    # --- to workers -------------------------------------------------------------------------

    def _to_worker(self, worker: bytes, frames: tuple[bytes, ...], wanted: bool) -> None:
        """Hands frames to a worker; what wants an answer is refused where that cannot be."""
        outbox = self._worker_outboxes.get(worker)
        if wanted and worker not in self._worker_epochs:
            raise PeerError("busy", "the topic's worker is away or behind", WORKER_RETRY_MS)
        if outbox is None:
            sent = self._send(self._workers, (worker, *frames))
            if sent is None:
                return
        if wanted:
            raise PeerError("busy", "the topic's worker is away or behind", WORKER_RETRY_MS)
        if outbox is None:
            if sent == zmq.EHOSTUNREACH:
                return  # with the worker that is gone, all it would have been told is void
            outbox = self._worker_outboxes[worker] = deque()
        if len(outbox) >= WORKER_OUTBOX_MAX:
            raise PeerError("busy", "the topic's worker is behind", WORKER_RETRY_MS)
        outbox.append(frames)

    def _tell(self, workers: set[bytes], frames: tuple[bytes, ...]) -> None:
        for worker in workers:
            self._to_worker(worker, frames, wanted=False)

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
            before = self._dedicated.get(value)
            self._dedicated[value] = to or worker
            if before is not None and before != self._dedicated[value]:
                self._say_restarted(before)  # what its clients had there is elsewhere now
            return
        assert what == b"ready"
        epoch = value
        before = self._worker_epochs.get(worker)
        self._worker_epochs[worker] = epoch
        self._send(self._workers, (worker, b"", b"epoch", self._sessions.epoch + epoch))
        if before == epoch:
            return
        self._worker_outboxes.pop(worker, None)
        log.info("knows a process %s", fields_of(name=worker.decode()))
        if worker != b"i":
            self._say_restarted(worker)

    def _say_restarted(self, worker: bytes) -> None:
        for session in list(self._sessions.by_routing.values()):
            if worker in session.workers:
                # What comes behind this many parts is for the worker that is there now.
                taken = wire.pack_body(session.taken)
                told = wire.pack_part(Verb.RESTARTED, body=taken, worker=int(worker[1:]))
                self._to_client(session, told)

    def _between_workers(self, worker: bytes, session_id: bytes, frame: bytes) -> None:
        """A worker asks another, as which it has a session of its own; or it answers one."""
        for part in wire.read_parts(frame):
            message = (session_id, frame[part.begin : part.end])
            if part.verb >= wire.FIRST_BROKER_VERB:
                self._send(self._workers, (wire.worker_of_session(session_id), *message))
                continue
            try:
                to = self._routes.get(part.topic) or self._route(part.topic)
                self._to_worker(to, message, wanted=True)
            except PeerError as error:
                answer = refusal(error, part.node, part.request, part.topic)
                self._send(self._workers, (worker, session_id, answer))

    # --- to clients -------------------------------------------------------------------------

    def _to_client(self, session: Session, frame: bytes) -> None:
        if session in self._blocked:
            self._park(session, frame)
            return
        failed = self._send(self._clients, (session.routing, frame))
        if failed == zmq.EHOSTUNREACH:
            self._end(session)
        elif failed is not None:
            self._blocked[session] = None
            self._park(session, frame)

    def _park(self, session: Session, frame: bytes) -> None:
        if not session.park(frame):
            log.warning("cuts a client that does not read %s", fields_of(name=session.name))
            self._end(session)

    def _unblock(self) -> None:
        for session in list(self._blocked):
            failed = None
            while session.outbox and failed is None:
                failed = self._send(self._clients, (session.routing, session.outbox[0]))
                if failed is None:
                    session.unpark()
            if failed == zmq.EHOSTUNREACH:
                self._end(session)
            elif failed is None:
                del self._blocked[session]
        for worker, outbox in list(self._worker_outboxes.items()):
            failed = None
            while outbox and failed is None:
                failed = self._send(self._workers, (worker, *outbox[0]))
                if failed is None:
                    outbox.popleft()
            if failed is None or failed == zmq.EHOSTUNREACH:
                del self._worker_outboxes[worker]

    def _end(self, session: Session) -> None:
        self._blocked.pop(session, None)
        if self._sessions.end(session):
            self._tell(session.workers, (b"", b"ended", session.id))


def run(config: Config) -> None:
    """Runs the front-end until it is told to stop."""
    stopping = Stopping()
    run_folder(config)
    FrontEnd(config).run(stopping)
    log.info("has stopped")
