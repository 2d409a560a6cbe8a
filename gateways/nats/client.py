"""One connection of a client: what it is allowed, what it has asked for, what is on its way to it.

I1  What a client is sent leaves in the order in which it came about: in one write a turn, or in
    several where one client says much to few, so that those work while the rest is worked off.
I2  Its operations are worked off in order. Where one of them has to wait (for the barrier of a
    PONG, to know whether anybody answers a request, for the next turn), all behind it wait, and it
    is not read.
I3  No more than ``max_pending`` bytes wait for a client; one that is further behind is cut.
I4  However much it says, others are heard after ``TURN_S`` (``server.py``), a few operations and
    one read of its connection.
I5  Whatever goes wrong here ends this connection and no other.
"""

import asyncio
import hmac
import os
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from asterism.gateways.nats import protocol
from asterism.gateways.nats.protocol import (
    Connect,
    Operation,
    Parser,
    Ping,
    Pong,
    ProtocolError,
    Publication,
    Subscribe,
    Unsubscribe,
)
from asterism.gateways.nats.subscriptions import Subscription

if TYPE_CHECKING:
    from asterism.gateways.nats.exchange import Presence
    from asterism.gateways.nats.server import Server, Unfinished

OPERATIONS_MAX: Final = 32  # that are read at a time; what is behind them waits as bytes
# Operations that a client may always cause before others get their turn, in the time of tiny
# messages: so one that says little need not wait for those that say much.
STEP: Final = 32
CONTROL_COST: Final = 8  # a SUB, in the same measure; a long one costs more
CONTROL_COST_BYTES: Final = 64  # of its pattern: so many cost as much as a tiny message
QUESTION_COST: Final = 16  # a request of which the broker is asked whether anybody is there
QUESTIONS_MAX: Final = 64  # requests of one client that are not settled; then it is not read
# Bytes that come at once from a client which most likely has sent more: the event loop would go on
# reading them, up to 8 MiB, and others would wait that long.
LARGE_READ_BYTES: Final = 65_536
FIRST_PING_S: Final = 2.0  # after CONNECT, whatever the interval: it measures the way
NAME_SHOWN_MAX: Final = 256
_FLAGS: Final = ("verbose", "pedantic", "echo", "headers", "no_responders")
_TEXTS: Final = ("user", "pass", "auth_token", "name", "lang", "version")
_OPTIONS: Final = {*_FLAGS, *_TEXTS, "protocol"}  # the rest of a CONNECT is forgotten


class Client(asyncio.Protocol):
    """A connection, from INFO to its end."""

    _has_said_much = False  # is it read again only when its turn comes?
    # What is paused: beneath TLS, which drops what it has read and not handed on at the end.
    reading: asyncio.Transport | None = None

    def __init__(self, server: "Server", number: int) -> None:
        self.server = server
        self.number: int = number
        self.transport: asyncio.Transport | None = None
        self._descriptor = -1  # of a connection that may be written to past its transport
        self.parser = Parser(server.lines)
        self.parser.must_connect = server.asks_who
        self.is_securing = server.tls is not None  # is TLS still to come?
        self.subscriptions: dict[bytes, Subscription] = {}
        self.pieces: list[bytes] = []  # to be written at the end of this turn
        self.pending = 0  # bytes of them
        self.is_closed = False
        self.options: dict[str, Any] = {}
        self.peer = ("", 0)
        self.verbose, self.pedantic, self.echo = True, True, True  # until it says otherwise
        self.headers = self.no_responders = False
        self.protocol = 0
        self.has_connected = False  # has it said CONNECT?
        self.has_ponged = False  # was a PING of it answered?
        self.in_messages: int = 0
        self.in_bytes: int = 0
        self.out_messages: int = 0
        self.out_bytes: int = 0
        self.began_s: float = server.now_s()
        self.heard_s: float = self.began_s
        self.looked_s = 0.0  # when it was last looked whether it is to be asked
        self.pinged_s = 0.0  # when it was asked last
        self.round_trip_s: float = 0.0
        self.unanswered = 0  # PINGs
        self.clogged_s = 0.0  # since when it takes nothing of what waits for it; 0: it does
        self.asked: dict[Presence, int] = {}  # what for, since the last barrier: its versions
        self.weight = 0  # bytes that its subscriptions are taken to hold
        self.is_queued = False  # does it wait for its turn?
        self.counted = 0  # bytes that wait for it or because of it, as the server counts them
        self.is_over = False  # is the connection gone, and not only its end decided?
        self._operations: deque[Operation] = deque()
        self._unfinished: Unfinished | None = None  # a message that not all have been given yet
        self._has_ended = False  # it says no more
        self._dropped = 0  # bytes that it said while it was being closed
        self._holds = self._is_paused = False  # an operation waits, and all behind it; is it read?
        self._questions = 0  # requests of which it is not known yet whether anybody is there

    # --- the connection ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is of no such class
        self.reading = self.transport
        self.peer = (transport.get_extra_info("peername") or ("", 0))[:2]
        if self.server.tls is None and (socket := transport.get_extra_info("socket")) is not None:
            self._descriptor = socket.fileno()
        self.server.enter(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True
        if error is None and not self.is_closed and (self._has_more or self._holds):
            # It closed behind what it said last, which TLS does not hold back while it is not read.
            self._has_ended = True
            if not self._holds:
                self.server.later(self)
        else:
            self.end()
        self.server.forget(self)

    def end(self) -> None:
        """Forgets everything of it."""
        if not self.is_closed:
            self.is_closed = True
            self.pieces.clear()
            self._operations.clear()
            self._unfinished = None
            self.parser.forget()
            self.server.leave(self)

    def cut(self) -> None:
        """Ends it at once; what waits for it is lost."""
        transport, self.pieces = self.transport, []
        self.end()
        if transport is not None:
            transport.abort()

    def fail(self, sentence: str) -> None:
        """Ends it, with a sentence where there is one."""
        if self.is_closed or self.transport is None:
            return
        if self.is_securing:  # nothing may be said in the open
            self.cut()
            return
        if sentence:
            self.say(protocol.error_line(sentence))
        self.flush()
        if not self.is_closed:
            self.end()
            if not self.is_over:
                self.server.let_go(self)

    # --- out --------------------------------------------------------------------------------

    def say(self, data: bytes) -> None:
        """Sends a line, at the end of this turn."""
        if self.is_closed:
            return
        if not self.pieces:
            self.server.touched.append(self)
            self.server.schedule()
        self.pieces.append(data)

    def flush(self) -> None:
        """Writes what has gathered."""
        pieces, transport = self.pieces, self.transport
        if not pieces or transport is None or self.is_closed:
            return
        self.pieces = []
        self.pending = 0
        if self.is_over:
            return
        data = b"".join(pieces)
        sent = self._write_now(transport, data)
        if sent < len(data):
            transport.write(data[sent:] if sent else data)
        size = transport.get_write_buffer_size()
        if size > self.server.settings.max_pending:
            self.server.cut_slow(self, "it is behind by more than max_pending")
        elif size or self.counted:
            self.server.count(self)

    def _write_now(self, transport: asyncio.Transport, data: bytes) -> int:
        """Writes what the connection takes at once, if nothing waits before it; how many bytes.

        uvloop writes at the end of its turn: by then whoever this is for could have been at work.
        """
        if self._descriptor < 0 or transport.is_closing() or transport.get_write_buffer_size():
            return 0
        try:
            return os.write(self._descriptor, data)
        except OSError:  # it is full, or gone: the transport sees to both
            return 0

    def pause_writing(self) -> None:
        self.clogged_s = self.server.now_s()

    def resume_writing(self) -> None:
        self.clogged_s = 0.0
        self.server.count(self)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that it has not taken yet."""
        return self.pending + self.unwritten_bytes

    @property
    def unwritten_bytes(self) -> int:
        """Those of them that its connection holds."""
        if self.transport is None or self.is_over:
            return 0
        return self.transport.get_write_buffer_size()

    # --- in ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            self._drop(data)
            return
        self.heard_s = self.server.now_s()
        self.server.hear(self, self.heard_s)
        self._has_said_much = len(data) >= LARGE_READ_BYTES
        if self._is_paused:
            self.parser.feed(data, 0)
        else:
            self._operations.extend(self.parser.feed(data, OPERATIONS_MAX))
            self.work()
        if self.parser.held or self.counted:
            self.server.count(self)

    def _drop(self, data: bytes) -> None:
        """It goes on talking, while what it is to be told last is on its way."""
        self._dropped += len(data)
        if self._dropped > self.server.settings.max_payload and self.transport is not None:
            self.transport.close()

    def eof_received(self) -> bool:
        """It says no more: what it has said is answered, then it is closed."""
        self._has_ended = True
        if not self.is_closed:
            self.work()
        return not self.is_closed and self.server.tls is None  # TLS ends with either side

    def take_turn(self) -> bool:
        """Its turn has come; is that all that others are to wait for now?"""
        had_said_much, self._has_said_much = self._has_said_much, False
        self.work()
        return had_said_much

    def work(self) -> None:
        """Works off what it has said, as far as this turn goes."""
        self.server.guard(self, self._work)

    def _work(self) -> None:
        if self.is_closed or self._holds:
            return
        try:
            self._work_on()
        except ProtocolError as error:
            self.fail(error.sentence)
            return
        if self.is_closed or self._holds:
            pass
        elif self._has_more or (self._has_said_much and self.parser.error is None):
            self.server.later(self)
        elif self.parser.error is not None:
            self.fail(self.parser.error.sentence)
        elif self._has_ended:
            self._holds = True
            self.server.after_barrier(self, lambda: self.fail(""))
        self._pace()
        if self.counted:
            self.server.count(self)

    def _work_on(self) -> None:
        server, operations, left = self.server, self._operations, STEP
        steps, written_at = 0, 1
        while not self._holds and not server.is_full:
            if self._unfinished is not None:
                self._unfinished = server.go_on_with(self._unfinished)
                left = 0
            elif operations or self._read_on():
                left -= self._do(operations.popleft())
            else:
                return
            if left <= 0:
                if self.is_closed or server.is_turn_over():
                    return
                left, steps = STEP, steps + 1
                if steps == written_at:  # rarer and rarer: a write costs more than a message
                    server.hand_over()
                    written_at *= 2

    def _read_on(self) -> bool:
        """Reads more of what has come; is there any?"""
        if self.parser.is_behind:
            self._operations.extend(self.parser.feed(b"", OPERATIONS_MAX))
        return bool(self._operations)

    @property
    def _has_more(self) -> bool:
        return bool(self._operations) or self.parser.is_behind or self._unfinished is not None

    def _do(self, operation: Operation) -> int:
        """Works off an operation, or has it wait; what that cost."""
        if self._questions and (
            self._questions >= QUESTIONS_MAX or not self._is_question(operation)
        ):
            self._operations.appendleft(operation)
            self._holds = True
            return 0
        if type(operation) is tuple:
            return self._publish(*operation)
        self._control(operation)  # type: ignore[arg-type]
        if isinstance(operation, Subscribe):
            return CONTROL_COST + len(operation.subject) // CONTROL_COST_BYTES
        return CONTROL_COST

    def _pace(self) -> None:
        """Reads no more of it while what it has said is not worked off, or cannot be handed on."""
        wanted = self._has_more or self._has_said_much or self._holds or self.server.is_full
        if self.is_closed or self.reading is None:
            return
        if wanted and not self._holds:
            self.server.later(self)
        if wanted is self._is_paused:
            return
        self._is_paused = wanted
        if self.is_over:
            return
        if wanted:
            self.reading.pause_reading()
        else:
            self.reading.resume_reading()

    def go_on(self) -> None:
        """What it waited for has come about."""
        self._holds = False
        self.work()

    def _is_question(self, operation: Operation) -> bool:
        """Is it a request too, of which others have to say whether anybody is there?"""
        if type(operation) is not tuple:
            return False
        publication: Publication = operation[0]  # type: ignore[assignment, misc]  # no Control
        return self.server.is_question(self, publication)

    def begin_question(self) -> None:
        self._questions += 1

    def end_question(self) -> None:
        self._questions -= 1
        if not self._questions and self._holds:
            self.go_on()

    # --- operations -------------------------------------------------------------------------

    def _publish(self, publication: Publication, body: bytes) -> int:
        if not self.has_connected:
            self._check_may()
        self.in_messages += 1
        self.in_bytes += publication.size
        if publication.header_size and not self.headers:
            raise ProtocolError
        if self.pedantic and not publication.is_valid:
            self.say(protocol.error_line(protocol.INVALID_PUBLISH_SUBJECT))
        if self.verbose:
            self.say(protocol.OK)
        asked = self._questions
        self._unfinished, cost = self.server.publish(self, publication, body)
        return cost if self._questions == asked else QUESTION_COST

    def _control(self, operation: protocol.Control) -> None:
        if not self.has_connected and not isinstance(operation, Connect):
            self._check_may()
        match operation:
            case Ping():
                self._ping()
            case Pong():
                self._pong()
            case Subscribe():
                self._subscribe(operation)
            case Unsubscribe():
                self._unsubscribe(operation)
            case Connect(options):
                self._connect(options)

    def _check_may(self) -> None:
        """Refuses whoever has not said yet who it is, where that is asked."""
        if self.server.asks_who:
            raise ProtocolError(protocol.AUTHORIZATION)

    def _ping(self) -> None:
        operations = self._operations
        count = 1
        while operations and isinstance(operations[0], Ping):
            operations.popleft()
            count += 1
        self._holds = True
        self.server.after_barrier(self, lambda: self._answer_ping(count))

    def _answer_ping(self, count: int) -> None:
        self.say(protocol.PONG * count)
        if not self.has_ponged and self.has_connected:
            self.has_ponged = True
            if self.protocol >= 1:
                self.say(self.server.info_for(self, connect_info=True))
        self.go_on()

    def _pong(self) -> None:
        if self.unanswered:
            self.round_trip_s = self.server.now_s() - self.pinged_s
        self.unanswered = 0

    def _subscribe(self, asked: Subscribe) -> None:
        server = self.server
        if not protocol.is_pattern(asked.subject):
            self.say(protocol.error_line(protocol.INVALID_SUBJECT))
            return
        if asked.sid not in self.subscriptions:
            subscription = Subscription(self, asked.subject, asked.queue, asked.sid)
            if not server.has_room_for(subscription):
                self.say(protocol.error_line(protocol.SUBSCRIPTIONS_EXCEEDED))
                return
            self.subscriptions[asked.sid] = subscription
            self.weight += subscription.weight
            server.subscribe(subscription)
        if self.verbose:
            self.say(protocol.OK)

    def _unsubscribe(self, asked: Unsubscribe) -> None:
        subscription = self.subscriptions.get(asked.sid)
        if subscription is not None:
            subscription.most = asked.most
            if subscription.delivered >= asked.most:
                self.finish(subscription)
        if self.verbose:
            self.say(protocol.OK)

    def finish(self, subscription: Subscription) -> None:
        """A subscription ends."""
        if not subscription.is_over:
            subscription.is_over = True
            del self.subscriptions[subscription.sid]
            self.weight -= subscription.weight
            self.server.unsubscribe(subscription)

    # --- who it is --------------------------------------------------------------------------

    def _connect(self, options: dict[str, Any]) -> None:
        merged = self.options | {name: options[name] for name in _OPTIONS & options.keys()}
        _check_kinds(merged)
        spoken = merged.get("protocol", 0)
        if spoken not in (0, 1):
            raise ProtocolError(protocol.INVALID_PROTOCOL)
        if not self._is_known(merged):
            raise ProtocolError(protocol.AUTHORIZATION)
        self.options = merged
        self.protocol = spoken
        self.verbose = merged.get("verbose", True)
        self.pedantic = merged.get("pedantic", True)
        self.echo = merged.get("echo", True)
        self.headers = merged.get("headers", False)
        self.no_responders = merged.get("no_responders", False)
        self.has_connected = True
        if self.no_responders and not self.headers:
            raise ProtocolError(protocol.HEADERS_REQUIRED)
        if self.verbose:
            self.say(protocol.OK)

    def _is_known(self, options: dict[str, Any]) -> bool:
        settings = self.server.settings
        if settings.token:
            return _are_same(options.get("auth_token", ""), settings.token)
        if settings.user or settings.password:
            is_user = _are_same(options.get("user", ""), settings.user)
            return _are_same(options.get("pass", ""), settings.password) and is_user
        return True

    @property
    def name(self) -> str:
        """What it calls itself."""
        return str(self.options.get("name", ""))[:NAME_SHOWN_MAX]

    # --- signs of life ----------------------------------------------------------------------

    def look(self, now_s: float) -> None:
        """Asks whether it is there, where that is due; cuts one that does not answer."""
        settings = self.server.settings
        interval_s = settings.ping_interval
        if not self.looked_s and self.has_connected:
            interval_s = min(FIRST_PING_S, interval_s)
        if now_s - (self.looked_s or self.began_s) < interval_s:
            return
        is_first, self.looked_s = not self.looked_s, now_s
        if now_s - self.heard_s < interval_s and not is_first:
            return  # it has said something, whatever it was
        if self.unanswered >= settings.max_pings:
            self.server.stale += 1
            self.fail(protocol.STALE)
        else:
            self._ask(now_s)

    def _ask(self, now_s: float) -> None:
        self.pinged_s = now_s
        self.unanswered += 1
        self.say(protocol.PING)


def _check_kinds(options: dict[str, Any]) -> None:
    """Ends who says something of the wrong kind, as the server of reference does."""
    is_wrong = any(type(options.get(name, False)) is not bool for name in _FLAGS)
    is_wrong |= any(type(options.get(name, "")) is not str for name in _TEXTS)
    if is_wrong or type(options.get("protocol", 0)) is not int:
        raise ProtocolError


def _are_same(given: str, wanted: str) -> bool:
    """In a time that does not tell how much of it was right."""
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())
