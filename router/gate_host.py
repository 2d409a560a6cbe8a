"""The gate: takes the connections of clients, and passes their bytes on to the ROUTER behind it.

ZeroMQ bounds messages by their number and connections not at all, and lets a peer choose the name
under which a ROUTER knows it. So every connection ends here. The gate does the handshake with the
client, opens a connection of its own to the ROUTER under a name that it makes, and from there on
passes bytes both ways, whose frames it counts. It holds no message, and looks into none.

I1  A client's connection has a name (the routing id) of random bytes, which nobody else knows. The
    ROUTER takes connections of this process alone.
I2  A client without a session has one small message under way at a time, and has to say HELLO
    within ``hello_timeout``; else it is cut.
I3  What a client has sent and the front-end has not taken is at most ``MESSAGES_MAX`` and at most
    ``WINDOW_BYTES``, a read, and one message. A message above ``SMALL_BYTES`` is read once it has
    been granted its size out of ``LARGE_BYTES_MAX``, which all clients share. A client that is over
    a bound is not read until it no longer is; while others wait for a grant, one that has it and
    does not send is cut.
I4  Of what the ROUTER has for a client, no more than one read is here.
I5  There are at most so many connections; for the next, the oldest without a session is cut.
I6  A client is charged for what the front-end takes of it. Over time that is ``max_requests`` a
    second; a client that sends more is not read meanwhile.
"""

import contextlib
import errno
import logging
import os
import select
import socket
import stat
import struct
from collections.abc import Iterable
from heapq import heappop, heappush
from math import ceil
from typing import Final

from asterism.config import Address
from asterism.process_host import fields_of
from asterism.router.zmtp import GREETING, Frames, Handshake, ViolationError, ready
from asterism.wire import FRAME_BYTES_MAX

READ_BYTES: Final = 128 << 10  # of one connection in one turn
EVENTS_MAX: Final = 128  # sockets that one turn looks at
ACCEPTS_MAX: Final = 64  # of one listener in one turn
BACKLOG: Final = 1_024
HELLO_BYTES_MAX: Final = 64 << 10  # of a message of a client without a session
WINDOW_BYTES: Final = 256 << 10  # that a client has sent and the front-end has not taken
SMALL_BYTES: Final = 256 << 10  # a larger message needs a grant
LARGE_BYTES_MAX: Final = 256 << 20  # of all messages that need one,
LARGER_BYTES: Final = 4 << 20  # of which those that are larger than this
LARGER_BYTES_MAX: Final = 192 << 20  # leave a part to others
MESSAGES_MAX: Final = 128  # that a client has sent and the front-end has not taken; fewer where its
# last ones cost so much that these would cost more than it may spend, and of a new client:
FIRST_MESSAGES_MAX: Final = 16
CHARGED_BYTES: Final = 16 << 10  # so many bytes cost 1
COST_WEIGHT: Final = 1 / 8  # of a message, in what those of its client are taken to cost
COMMAND_COST: Final = 10  # of a PING of ZMTP, which the ROUTER answers
BURST_MS: Final = 1_000  # what a client may send in so long it may send at once,
DEBT_MS_MAX: Final = 1_000  # for so long it is held up at a time, at most: it must hear of us.
# Then one message of it is taken, and so on until it has paid; at most it owes this.
OWED_MS_MAX: Final = 10_000
FIRST_BURST_MS: Final = 100  # and in so long when it has just connected: a new one costs nothing
SLOW_MS: Final = 500  # for so long a grant may go unused while others wait,
SLOW_BYTES_MS: Final = 1_000  # and so many bytes have to come in each millisecond after that
LEAVING_MS: Final = 2_000  # for the front-end to take what a client sent before it left
DESCRIPTORS_EACH: Final = 3  # the client's, ours to the ROUTER, and that one's
DESCRIPTORS_SPARE: Final = 128
SEND_BUFFER_BYTES: Final = 1 << 20
ROUTING_BYTES: Final = 16
_IN: Final = select.EPOLLIN
_OUT: Final = select.EPOLLOUT
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
log = logging.getLogger("asterism.frontend")


class Connection:
    """One client's connection, and ours to the ROUTER for it."""

    __slots__ = (
        *("accepted_ms", "charged_until", "client", "cost", "frames_down", "frames_up", "granted"),
        *("granted_ms", "granted_until", "handshake_down", "handshake_up", "has_session", "held"),
        *("held_up_ms", "is_indebted", "is_leaving", "is_over", "is_waiting", "masks", "paid_ms"),
        *("refused", "refused_ms", "router", "routing", "sent", "taken", "taken_messages"),
        *("to_client", "to_router", "window"),
    )

    def __init__(self, client: socket.socket, now_ms: int) -> None:
        self.client = client
        self.router: socket.socket | None = None
        self.routing = os.urandom(ROUTING_BYTES)
        self.accepted_ms = now_ms
        self.has_session = False
        self.is_leaving = False  # the client has left; what it sent before is still on its way
        self.is_over = False
        self.handshake_down: Handshake | None = Handshake()  # with the client
        self.handshake_up: Handshake | None = Handshake()  # with the ROUTER
        self.frames_up = Frames()
        self.frames_down = Frames()
        self.held = b""  # read, and not yet to be passed on
        self.to_router: memoryview | bytes = b""
        self.to_client: memoryview | bytes = GREETING + ready(b"ROUTER")
        self.taken = 0  # bytes of messages that the front-end has taken
        self.taken_messages = 0
        self.sent = 0  # bytes of messages that the front-end has sent
        self.refused = 0  # messages, as a whole, since
        self.refused_ms = now_ms
        self.granted = 0  # for a large message
        self.granted_ms = 0
        self.granted_until = 0  # the payload by which the grant is used up
        self.charged_until = 0  # the payload up to which large messages were charged
        self.is_waiting = False  # for a grant
        self.is_indebted = False  # not read until it has paid for what it sent, or for long enough
        self.held_up_ms = 0  # since when
        self.cost = 0.0  # of a message of it, as the last ones were
        self.window = FIRST_MESSAGES_MAX  # messages that it may have on their way to the front-end
        self.paid_ms = float(now_ms - FIRST_BURST_MS)  # when that is, or was
        self.masks = {client.fileno(): 0}  # what is watched, by descriptor

    @property
    def due(self) -> int:
        """Bytes that the front-end has sent and the client has not taken."""
        return self.sent - self.frames_down.payload

    @property
    def untaken(self) -> int:
        """Bytes of whole messages that the front-end has not taken."""
        return self.frames_up.whole - self.taken

    @property
    def is_held_up(self) -> bool:
        """Is the client not read just now, whatever it sends?"""
        return not self.may_read()

    @property
    def passable(self) -> int:
        """Messages that may go to the ROUTER before the front-end has taken more."""
        most = self.window if self.has_session else 1
        return most - (self.frames_up.messages - self.taken_messages)

    def may_read(self) -> bool:
        """May more of the client be read?"""
        if self.handshake_down is not None:
            return True
        return not self.is_leaving and not self.held and self.may_pass()

    def may_pass(self) -> bool:
        """May more of what the client has sent go to the ROUTER?"""
        if self.handshake_up is not None or self.to_router:
            return False
        if self.is_waiting or self.is_indebted:
            return False
        return self.passable > 0 and self.untaken < WINDOW_BYTES


class Gate:
    """All connections of clients."""

    def __init__(
        self,
        addresses: Iterable[Address],
        router: str,
        connections_max: int,
        hello_ms: int,
        requests_max: int,
        debt_ms_max: int,
    ) -> None:
        """Listens; ``router`` is the path at which the ROUTER does.

        A client is held up for ``debt_ms_max`` at a time: it must hear of the broker in between.
        """
        self._debt_ms_max = debt_ms_max
        self._request_ms = 1_000 / requests_max
        self._indebted: list[tuple[float, bytes, Connection]] = []  # a heap, by when they have paid
        self._router = router
        self._connections_max = connections_max
        self._hello_ms = hello_ms
        self._epoll = select.epoll()
        self._by_descriptor: dict[int, Connection] = {}
        self.by_routing: dict[bytes, Connection] = {}
        self._nameless: dict[Connection, None] = {}  # without a session, the oldest first
        self._leaving: dict[Connection, int] = {}  # until when it is waited for
        self._unconnected: dict[Connection, None] = {}  # the ROUTER was not quick enough
        self._waiting: dict[Connection, None] = {}  # for a grant, in order
        self._granted: dict[Connection, None] = {}
        self._granted_bytes = 0
        self._ended: list[bytes] = []
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._now_ms = 0
        self._next_look_ms = 0
        self._logged_ms = 0
        self._unlogged = 0
        self.due_bytes = 0  # of all connections
        self.cut_count = 0  # connections cut, for whatever reason
        self._listeners: dict[int, socket.socket] = {}
        self._paths: list[tuple[str, int]] = []  # of our sockets in the file system, with inodes
        self.addresses = [self._listen(address) for address in addresses]

    def fileno(self) -> int:
        """Readable when there is something to do."""
        return self._epoll.fileno()

    def __len__(self) -> int:
        return len(self.by_routing)

    # --- listening --------------------------------------------------------------------------

    def _listen(self, address: Address) -> str:
        """Listens at an address; the one that it has become."""
        try:
            listener = self._bound_path(address) if address.path else _bound_port(address)
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), address.text) from None
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._listeners[listener.fileno()] = listener
        self._epoll.register(listener, _IN)
        if address.path:
            return address.text
        return f"tcp://{address.host}:{listener.getsockname()[1]}"

    def _bound_path(self, address: Address) -> socket.socket:
        """A socket in the file system, for this user alone; one that nobody listens at is replaced,
        and what is no socket is left alone."""
        path = address.path
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise OSError(errno.EEXIST, "what is there is not a socket")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
                try:
                    tried.connect(path)
                except ConnectionRefusedError:
                    os.unlink(path)
                else:
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        self._paths.append((path, os.lstat(path).st_ino))
        return listener

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                client, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    # The listener speaks up again at once; by then there is room, or soon is.
                    self._cut_oldest("no descriptor is left")
                    return
                continue  # this one has left already
            if not _is_welcome(client):
                client.close()
                continue
            if len(self.by_routing) >= self._connections_max and not self._cut_oldest(
                "as many connections as may are open"
            ):
                client.close()
                self._tell("has as many clients as may connect")
                continue
            self._open(client)

    def _open(self, client: socket.socket) -> None:
        client.setblocking(False)
        if client.family != socket.AF_UNIX:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(client, self._now_ms)
        self.by_routing[connection.routing] = connection
        self._by_descriptor[client.fileno()] = connection
        self._nameless[connection] = None
        self._send_client(connection)
        self._watch(connection)

    # --- a turn -----------------------------------------------------------------------------

    def turn(self, now_ms: int) -> None:
        """Passes on what has come, some of each."""
        self._now_ms = now_ms
        for descriptor, events in self._epoll.poll(0, EVENTS_MAX):
            connection = self._by_descriptor.get(descriptor)
            if connection is None:
                listener = self._listeners.get(descriptor)
                if listener is not None:
                    self._accept(listener)
            elif not connection.is_over:
                self._serve(connection, descriptor, events)
        if self._unconnected:
            for connection in list(self._unconnected):
                self._connect(connection)
        while self._indebted and self._indebted[0][0] <= now_ms:
            self._read_on(heappop(self._indebted)[-1])
        if now_ms >= self._next_look_ms:
            self._look()

    def wait_ms(self) -> int:
        """How long nobody need call ``turn`` while nothing comes."""
        if self._unconnected:
            return 2
        wait_ms = 100 if self._nameless or self._leaving or self._waiting else 1_000
        if self._indebted:
            wait_ms = min(wait_ms, max(ceil(self._indebted[0][0]) - self._now_ms, 1))
        return wait_ms

    def _serve(self, connection: Connection, descriptor: int, events: int) -> None:
        try:
            if connection.router is not None and descriptor == connection.router.fileno():
                if events & _OUT:
                    self._send_router(connection)
                # What was sent may have been all that was left of a client that has gone.
                if events & ~_OUT and connection.router.fileno() >= 0:
                    self._read_router(connection)
            else:
                if events & _OUT:
                    self._send_client(connection)
                if events & ~_OUT and not connection.is_over:
                    self._read_client(connection)
        except ViolationError as error:
            self._cut(connection, str(error))
        self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        """Has the poll look at what can go on."""
        if connection.is_over:
            return
        if not connection.is_leaving:
            wanted = (_IN if connection.may_read() else 0) | (_OUT if connection.to_client else 0)
            self._set_mask(connection, connection.client.fileno(), wanted)
        # It is closed before the connection is over, where the ROUTER has yet to take the rest.
        if connection.router is not None and connection.router.fileno() >= 0:
            reads = not connection.to_client and not connection.is_leaving
            wanted = (_IN if reads else 0) | (_OUT if connection.to_router else 0)
            self._set_mask(connection, connection.router.fileno(), wanted)

    def _set_mask(self, connection: Connection, descriptor: int, wanted: int) -> None:
        """Unregistered where nothing is wanted: epoll tells of a peer that left all the same."""
        before = connection.masks[descriptor]
        if wanted == before:
            return
        connection.masks[descriptor] = wanted
        if not before:
            self._epoll.register(descriptor, wanted)
        elif wanted:
            self._epoll.modify(descriptor, wanted)
        else:
            self._epoll.unregister(descriptor)

    # --- from the client to the ROUTER --------------------------------------------------------

    def _read_client(self, connection: Connection) -> None:
        try:
            size = connection.client.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self._leave(connection)
            return
        data: memoryview | bytes = self._view[:size]
        if connection.handshake_down is not None:
            behind = connection.handshake_down.take(data)
            if behind is None:
                return
            connection.handshake_down = None
            connection.held = behind
            self._connect(connection)
            return
        self._pass(connection, data)

    def _connect(self, connection: Connection) -> None:
        """Connects to the ROUTER, under a name that it takes for the client's."""
        self._unconnected.pop(connection, None)
        try:
            router = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            self._cut(connection, f"it cannot be passed on: {error.strerror}")
            return
        router.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        try:
            router.connect(self._router)
        except BlockingIOError:  # its queue of connections is full
            router.close()
            self._unconnected[connection] = None
            return
        except OSError as error:
            router.close()
            self._cut(connection, f"it cannot be passed on: {error.strerror}")
            return
        connection.router = router
        connection.masks[router.fileno()] = 0
        self._by_descriptor[router.fileno()] = connection
        connection.to_router = GREETING + ready(b"DEALER", connection.routing)
        self._send_router(connection)
        self._watch(connection)

    def _pass(self, connection: Connection, data: memoryview | bytes) -> None:
        """Passes on what a client has sent, as far as it may."""
        frames = connection.frames_up
        size_max = FRAME_BYTES_MAX if connection.has_session else HELLO_BYTES_MAX
        commands = frames.commands
        end = frames.take(data, size_max, connection.passable)
        if frames.commands > commands:  # the front-end does not see them
            self.charge(connection, COMMAND_COST * (frames.commands - commands))
        if end < len(data):
            connection.held = bytes(data[end:])
        if frames.message > SMALL_BYTES and frames.message > connection.granted:
            self._charge_large(connection)
            if not connection.is_indebted:
                self._grant(connection)
        connection.to_router = data[:end]
        self._send_router(connection)

    def _send_router(self, connection: Connection) -> None:
        router = connection.router
        assert router is not None
        data = connection.to_router
        try:
            sent = router.send(data) if data else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._cut(connection, "the ROUTER has ended it")
            return
        # What is left is copied: the buffer is for the next read.
        connection.to_router = bytes(data[sent:]) if sent < len(data) else b""
        if not connection.to_router and connection.is_leaving and not connection.held:
            self._close_router(connection)

    def _go_on(self, connection: Connection) -> None:
        """A client may send more: what was read of it is passed on, then more is read."""
        if connection.is_over:
            return
        if connection.held and connection.may_pass():
            held, connection.held = connection.held, b""
            try:
                self._pass(connection, held)
            except ViolationError as error:
                self._cut(connection, str(error))
        self._watch(connection)

    def taken(self, routing: bytes, size: int) -> Connection | None:
        """The front-end has taken a message from the ROUTER; whose, if it is anybody's still."""
        connection = self.by_routing.get(routing)
        if connection is None:
            return None
        connection.taken += size
        connection.taken_messages += 1
        if connection.granted and connection.taken >= connection.granted_until:
            self._release(connection)
        return connection

    def proceed(self, connection: Connection) -> None:
        """The front-end has done what a message asked: its client may send more."""
        if connection.is_over:
            return  # it was cut for that message
        if connection.is_leaving and not connection.untaken and not connection.held:
            self._end(connection)
        elif connection.held or connection.masks.get(connection.client.fileno()) == 0:
            self._go_on(connection)

    # --- pace -------------------------------------------------------------------------------

    def charge_taken(self, connection: Connection, cost: float, size: int) -> None:
        """The front-end has taken a message of a client, and done so much for it."""
        is_charged = size > SMALL_BYTES  # when it began
        self.charge(connection, cost if is_charged else cost + size / CHARGED_BYTES)

    def _charge_large(self, connection: Connection) -> None:
        """A large message has begun: its client pays for its bytes before the rest is read."""
        frames = connection.frames_up
        ends_at = frames.whole + frames.message
        if ends_at > connection.charged_until:
            more = min(frames.message, ends_at - connection.charged_until)
            connection.charged_until = ends_at
            self.charge(connection, more / CHARGED_BYTES)

    def charge(self, connection: Connection, cost: float) -> None:
        """A client has cost so much; one that asks too much is held up, also with what it sent
        before it left."""
        if connection.is_over:
            return
        if connection.client.family == socket.AF_UNIX:
            connection.window = MESSAGES_MAX
            return  # of this user: a door, which carries many clients, or a program of its own
        earliest_ms = float(self._now_ms - BURST_MS)
        paid_ms = max(connection.paid_ms, earliest_ms) + cost * self._request_ms
        connection.paid_ms = min(paid_ms, self._now_ms + OWED_MS_MAX)
        known = connection.cost or cost  # the first one tells
        connection.cost = known + (cost - known) * COST_WEIGHT
        left = (self._now_ms - connection.paid_ms) / self._request_ms
        connection.window = max(1, min(MESSAGES_MAX, int(left / max(connection.cost, 1.0))))
        if left < 0 and not connection.is_indebted:
            connection.is_indebted = True
            connection.held_up_ms = self._now_ms
            self._hold_up(connection)

    def _hold_up(self, connection: Connection) -> None:
        until_ms = min(connection.paid_ms, connection.held_up_ms + self._debt_ms_max)
        heappush(self._indebted, (until_ms, connection.routing, connection))

    def _read_on(self, connection: Connection) -> None:
        """A client was held up: goes on with it, unless more was charged meanwhile."""
        if connection.is_over:
            return
        most_ms = connection.held_up_ms + self._debt_ms_max
        if self._now_ms < min(connection.paid_ms, most_ms):
            self._hold_up(connection)
            return
        connection.is_indebted = False
        connection.granted_ms += self._now_ms - connection.held_up_ms  # it was not slow meanwhile
        self._go_on(connection)

    # --- grants for large messages ------------------------------------------------------------

    def _grant(self, connection: Connection) -> None:
        """Grants a message its size, or has its client wait; what was granted for it counts."""
        frames = connection.frames_up
        more = frames.message - connection.granted
        if frames.message <= SMALL_BYTES or more <= 0:  # the one that it waited for is over
            self._stop_waiting(connection)
            return
        most = LARGER_BYTES_MAX if frames.message > LARGER_BYTES else LARGE_BYTES_MAX
        if self._granted_bytes + more > most:
            connection.is_waiting = True
            self._waiting[connection] = None
            self._next_look_ms = min(self._next_look_ms, self._now_ms + SLOW_MS)
            return
        self._stop_waiting(connection)
        connection.granted += more
        connection.granted_ms = self._now_ms
        connection.granted_until = frames.whole + frames.message
        self._granted_bytes += more
        self._granted[connection] = None

    def _stop_waiting(self, connection: Connection) -> None:
        connection.is_waiting = False
        self._waiting.pop(connection, None)

    def _release(self, connection: Connection) -> None:
        self._granted_bytes -= connection.granted
        connection.granted = connection.granted_until = 0
        self._granted.pop(connection, None)
        if connection.is_over:
            self._stop_waiting(connection)
        elif connection.frames_up.message > SMALL_BYTES:
            self._grant(connection)  # the next one has begun already
        for other in list(self._waiting):
            if other in self._waiting:  # else it ended, or went on, with one before it
                self._grant(other)
                if other.is_waiting:
                    return  # those behind it wait on too
                self._go_on(other)

    def _cut_slow(self) -> None:
        """Somebody waits for a grant: those who have one and do not use it are cut."""
        for connection in list(self._granted):
            late_ms = self._now_ms - connection.granted_ms - SLOW_MS
            frames = connection.frames_up
            # With no message under way, it is the front-end that has not taken it yet.
            is_slow = frames.payload - frames.whole < late_ms * SLOW_BYTES_MS
            if frames.message and late_ms > 0 and is_slow and not connection.is_indebted:
                self._cut(connection, "it sends a large message slowly, and others wait")

    # --- from the ROUTER to the client --------------------------------------------------------

    def _read_router(self, connection: Connection) -> None:
        assert connection.router is not None
        try:
            size = connection.router.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self._cut(connection, "the ROUTER has ended it")
            return
        data: memoryview | bytes = self._view[:size]
        if connection.handshake_up is not None:
            behind = connection.handshake_up.take(data)
            if behind is None:
                return
            connection.handshake_up = None
            self._go_on(connection)
            data = behind
        if data and not connection.is_over:
            before = connection.frames_down.payload
            connection.frames_down.take(data, FRAME_BYTES_MAX << 2)
            self.due_bytes -= connection.frames_down.payload - before
            connection.to_client = data
            self._send_client(connection)

    def _send_client(self, connection: Connection) -> None:
        data = connection.to_client
        try:
            sent = connection.client.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._leave(connection)
            return
        connection.to_client = bytes(data[sent:]) if sent < len(data) else b""

    def count_sent(self, connection: Connection, size: int) -> None:
        """The front-end has sent a message to a client."""
        connection.sent += size
        self.due_bytes += size

    # --- sessions, and the end ----------------------------------------------------------------

    def begin_session(self, connection: Connection) -> None:
        connection.has_session = True
        self._nameless.pop(connection, None)

    def end_session(self, connection: Connection) -> None:
        """A session is over; its client may begin another, in time."""
        if connection.has_session and not connection.is_over:
            connection.has_session = False
            connection.accepted_ms = self._now_ms
            self._nameless[connection] = None

    def _leave(self, connection: Connection) -> None:
        """The client has left: what it sent before that goes to the ROUTER still."""
        if connection.is_leaving:
            return
        self._set_mask(connection, connection.client.fileno(), 0)
        self._by_descriptor.pop(connection.client.fileno(), None)
        connection.is_leaving = True
        connection.to_client = b""
        connection.client.close()
        self._nameless.pop(connection, None)
        if connection.handshake_up is not None or connection.router is None:
            self._end(connection)
            return
        self._leaving[connection] = self._now_ms + LEAVING_MS
        if not connection.to_router and not connection.held:
            self._close_router(connection)
        if not connection.untaken and not connection.held:
            self._end(connection)

    def _close_router(self, connection: Connection) -> None:
        router = connection.router
        if router is not None and router.fileno() >= 0:
            self._set_mask(connection, router.fileno(), 0)
            self._by_descriptor.pop(router.fileno(), None)
            router.close()

    def cut(self, connection: Connection, why: str) -> None:
        """Ends a connection, whatever is on its way."""
        if not connection.is_over:
            self._cut(connection, why)

    def _cut(self, connection: Connection, why: str) -> None:
        self.cut_count += 1
        self._tell(why)
        self._end(connection)

    def _cut_oldest(self, why: str) -> bool:
        connection = next(iter(self._nameless), None)
        if connection is not None:
            self._cut(connection, why)
        return connection is not None

    def _end(self, connection: Connection) -> None:
        if connection.is_over:
            return
        if not connection.is_leaving:
            self._set_mask(connection, connection.client.fileno(), 0)
            self._by_descriptor.pop(connection.client.fileno(), None)
            connection.client.close()
        connection.is_over = True
        connection.held = connection.to_router = connection.to_client = b""
        self._close_router(connection)
        self.due_bytes -= connection.due
        del self.by_routing[connection.routing]
        for held in (self._nameless, self._leaving, self._unconnected):
            held.pop(connection, None)
        if connection.granted or connection.is_waiting:
            self._release(connection)
        self._ended.append(connection.routing)

    def take_ended(self) -> list[bytes]:
        """The connections that have ended since this was asked last."""
        ended, self._ended = self._ended, []
        return ended

    def _look(self) -> None:
        """What time does: those that have not said hello, that have left, that are slow."""
        self._next_look_ms = self._now_ms + 100
        while self._nameless:
            connection = next(iter(self._nameless))
            if connection.accepted_ms + self._hello_ms > self._now_ms:
                break
            self._cut(connection, "it did not say hello in time")
        for connection, until_ms in list(self._leaving.items()):
            if until_ms > self._now_ms:
                break
            self._end(connection)
        if self._waiting:
            self._cut_slow()

    def _tell(self, why: str) -> None:
        """Logs that a connection was cut: one line a second at most, whatever peers do."""
        self._unlogged += 1
        if self._now_ms - self._logged_ms >= 1_000:
            log.info("cuts a connection: %s %s", why, fields_of(since=self._unlogged))
            self._logged_ms, self._unlogged = self._now_ms, 0

    def flush(self, now_ms: int) -> bool:
        """Passes on what is left for clients; false once there is nothing, or nobody takes it."""
        self.turn(now_ms)
        return self.due_bytes > 0 or any(held.to_client for held in self.by_routing.values())

    def close(self) -> None:
        for listener in self._listeners.values():
            listener.close()
        for connection in list(self.by_routing.values()):
            self._end(connection)
        self._epoll.close()
        for path, inode in self._paths:
            with contextlib.suppress(OSError):
                if os.lstat(path).st_ino == inode:
                    os.unlink(path)


def _bound_port(address: Address) -> socket.socket:
    host = "0.0.0.0" if address.host == "*" else address.host.strip("[]")
    found = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(found[0], found[1])
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(found[4])
    return listener


def _is_welcome(client: socket.socket) -> bool:
    """By a socket in the file system, only the user of this process may come, and root."""
    if client.family != socket.AF_UNIX:
        return True
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(raw)[1] in (0, os.getuid())
