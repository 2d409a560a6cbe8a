"""Lanes: the sockets on which clients of this machine speak to a worker with nobody in between.

A lane is a shortcut of a session, which begins, gives its signs of life and ends at the front-end.
Its client connects to this worker's socket in the file system, writes a token, and sends the same
token through the front-end (``LANE``). Behind that, all that it has for this worker comes on the
lane; behind the answer to it, all that this worker has for it goes there. So nothing overtakes
anything. A lane that ends takes with it what its session holds here, as a session that ends does.

I1  A lane is of this process's user, or of root. It is read once its session has claimed it, and
    not before; one that nobody claims is cut after some seconds.
I2  What a client does not take waits in its lane's outbox. Past a bound, one that takes nothing for
    some seconds is cut; one that reads is not, however much a turn has for it: what may come is
    bounded by the credit that it gave. This process never waits for a client.
I3  A worker that is asked one small thing soon after the other stays awake for a moment: to fall
    asleep, to be woken and to find its memory again takes it longer than to answer. It does not
    where things come seldom or are large, nor while other processes want its core: the kernel makes
    a process that yields wait behind them for milliseconds, one that slept for much less.
I4  Parts that are not whole yet are bounded for all lanes together; past that, the lane is cut that
    has the most of one.
I5  A session whose lane is over is sent nothing, by whatever way, until that is taken note of.
"""

import contextlib
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Iterator
from time import monotonic
from typing import Final

from asterism import wire
from asterism.errors import PeerError
from asterism.wire import Part

LANES_MAX: Final = 1_024  # of one worker; further clients go through the front-end
HELD_BYTES_MAX: Final = 256 << 20  # of parts that are not whole yet, of all lanes
UNCLAIMED_S: Final = 5.0  # for a session to claim a connection
UNCLAIMED_MAX: Final = (
    256  # connections that no session has claimed; the oldest is cut for the next
)
ACCEPTS_MAX: Final = 16  # connections that are taken in at a time; others wait for the next
OUTBOX_BYTES_MAX: Final = 64 << 20  # waiting for one client; past it, one that stalls is cut
STALLED_S: Final = 5.0  # for how long it takes nothing of that
READY_MAX: Final = 64  # sockets that one turn looks at; the others come first in the next
READ_BYTES: Final = 128 << 10  # of one lane in one turn
SLICE_PARTS: Final = 32  # of one lane, before the others have theirs
AWAKE_S: Final = 0.000_2  # for so long a worker waits awake, where the last wait was as short
# A yield that took so long was the turn of a process that keeps the core busy; the client that the
# worker speaks with takes a fraction of it. Then, for CROWDED_S, the worker sleeps when it waits,
# and has lost one message in hundreds to finding that out.
YIELDED_S: Final = 0.001
CROWDED_S: Final = 0.25
SMALL_BYTES: Final = 4_096  # what has come in one turn of a dialogue, at most
SOCKET_BUFFER_BYTES: Final = 1 << 20  # as far as the system allows
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
_IN: Final = select.EPOLLIN
_IN_OUT: Final = select.EPOLLIN | select.EPOLLOUT


class Lane:
    """One connection of a client."""

    __slots__ = (
        *("accepted_at", "descriptor", "is_held", "outbox", "outbox_bytes", "rest", "session"),
        *("socket", "stream", "taken_at", "token"),
    )

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.descriptor = connection.fileno()
        self.accepted_at = monotonic()
        self.token = b""
        self.session = b""  # once it is claimed
        self.stream = wire.PartStream()
        self.outbox: deque[bytes | memoryview] = deque()
        self.outbox_bytes = 0
        self.rest: tuple[bytes, list[Part]] | None = None  # read, and not handed out yet
        self.is_held = False  # nothing more is taken of it before it takes what it is sent
        self.taken_at = 0.0  # when its client took something of the outbox, or that began

    def has_left(self) -> bool:
        """Has its client closed it, whatever is still to be read of it?"""
        poll = select.poll()
        poll.register(self.descriptor, 0)
        return bool(poll.poll(0))

    def learn_token(self) -> bool:
        """Reads the token, which comes first; false where this is no lane of a client of ours."""
        with contextlib.suppress(OSError):
            self.token = self.socket.recv(wire.LANE_TOKEN_BYTES)
        return len(self.token) == wire.LANE_TOKEN_BYTES


class Lanes:
    """The lanes of one worker; and what else it waits for, since it waits for all at once."""

    def __init__(self, path: str | None, alert: bool = False) -> None:
        """Listens at a path; without one, there are no lanes. ``alert``: it may wait awake."""
        self._is_alert = alert
        self._was_short = False  # was the last wait for something small as short?
        self._crowded_until = 0.0  # other processes want this core: it does not wait awake
        self._taken_bytes = 0  # of lanes since it waited last
        self._epoll = select.epoll()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if path is not None:
            self._listen(path)
        self._watched: set[int] = set()
        self._lanes: dict[int, Lane] = {}  # by descriptor: those that are claimed
        self._unclaimed: dict[int, Lane] = {}  # by descriptor; the oldest first
        self._by_token: dict[bytes, Lane] = {}  # those of them that have written it
        self._arrivals = select.epoll()  # of tokens: these connections are many, and mostly silent
        self._of_session: dict[bytes, Lane] = {}
        self._ended: dict[bytes, None] = {}  # sessions whose lane is over
        self._ready: deque[tuple[int, int]] = deque()
        self._held_bytes = 0  # of parts that are not whole yet
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)

    def _listen(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of the worker before this one
        self._listener.bind(path)
        self._listener.listen(LANES_MAX)

    def __len__(self) -> int:
        return len(self._lanes)

    def watch(self, descriptor: int) -> None:
        """Has ``wait`` end when something else than a lane has something to say."""
        self._watched.add(descriptor)
        self._epoll.register(descriptor, _IN)

    def wait(self, timeout_ms: int) -> bool:
        """Waits until there is something to read, or the time is over; is it of what is watched?"""
        ready = self._ready
        if ready or not timeout_ms:
            fresh = self._epoll.poll(0, READY_MAX)
        else:
            fresh = self._wait(timeout_ms / 1_000)
        self._taken_bytes = 0
        if ready:  # whom the last turn had no time for: they come first
            known = {descriptor for descriptor, _ in ready}
            ready.extend(event for event in fresh if event[0] not in known)
        else:
            ready.extend(fresh)
        return not self._watched.isdisjoint([descriptor for descriptor, _ in fresh])

    def _wait(self, timeout_s: float) -> list[tuple[int, int]]:
        is_dialogue = self._is_alert and self._taken_bytes <= SMALL_BYTES
        began = monotonic()
        if is_dialogue and self._was_short and began >= self._crowded_until:
            fresh = self._wait_awake(began)
            if fresh:
                return fresh
        fresh = self._epoll.poll(timeout_s, READY_MAX)
        self._was_short = is_dialogue and monotonic() - began < AWAKE_S
        return fresh

    def _wait_awake(self, began: float) -> list[tuple[int, int]]:
        """Waits without sleeping, for a moment, as long as no other process wants this core."""
        now = began
        while now < began + AWAKE_S:
            fresh = self._epoll.poll(0, READY_MAX)
            if fresh:
                return fresh
            yielded = monotonic()
            os.sched_yield()
            now = monotonic()
            if now - yielded > YIELDED_S:
                self._crowded_until = now + CROWDED_S
                break
        return []

    # --- what comes -------------------------------------------------------------------------

    def has_input(self) -> bool:
        """Has something come on a lane that no ``read`` has handed out yet?"""
        fresh = self._ready or self._epoll.poll(0, READY_MAX)
        return any(descriptor in self._lanes for descriptor, _ in fresh)

    def read(self) -> Iterator[tuple[bytes, bytes, list[Part]]]:
        """What has come: of which session, the bytes, and the parts in them.

        Who does not read on gets what is left after the next ``wait``.
        """
        while self._ready:
            descriptor, events = self._ready.popleft()
            lane = self._lanes.get(descriptor)
            if lane is None:
                continue
            if events & select.EPOLLOUT:
                self._drain(lane)
            if events & ~select.EPOLLOUT and not lane.is_held:
                data, parts = lane.rest or self._read(lane)
                lane.rest = None
                if len(parts) > SLICE_PARTS:
                    self.put_back(lane.session, data, parts[SLICE_PARTS:])
                if parts:
                    yield lane.session, data, parts[:SLICE_PARTS]

    def put_back(self, session: bytes, data: bytes, parts: list[Part]) -> None:
        """Has parts that were read come again, behind what other lanes have."""
        lane = self._of_session.get(session)
        if lane is None or not parts:
            return
        later = lane.rest[1] if lane.rest is not None else []
        lane.rest = data, parts + later
        self._ready.append((lane.descriptor, int(_IN)))

    def _read(self, lane: Lane) -> tuple[bytes, list[Part]]:
        try:
            size = lane.socket.recv_into(self._buffer)
        except BlockingIOError:
            return b"", []
        except OSError:
            size = 0
        try:
            if size:
                self._taken_bytes += size
                return self._take(lane, bytes(self._view[:size]))
        except PeerError:
            pass  # nothing behind it can be understood: as if the client had left
        self._end(lane)
        return b"", []

    def _take(self, lane: Lane, data: bytes) -> tuple[bytes, list[Part]]:
        before = lane.stream.held_bytes
        try:
            return lane.stream.take(data)
        finally:
            self._held_bytes += lane.stream.held_bytes - before
            if self._held_bytes > HELD_BYTES_MAX:
                self._end(max(self._lanes.values(), key=lambda held: held.stream.held_bytes))

    def take_in(self) -> bool:
        """Takes in some of the connections that wait; true where these were all.

        Nothing wakes the worker for them: a client that connects and says so wakes it by that.
        """
        for _ in range(ACCEPTS_MAX):
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return True
            if not _is_welcome(connection):
                connection.close()
                continue
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
            if len(self._unclaimed) >= UNCLAIMED_MAX:
                self._drop(next(iter(self._unclaimed.values())))
            lane = Lane(connection)
            self._unclaimed[lane.descriptor] = lane
            self._arrivals.register(lane.descriptor, _IN)
        return False

    def _drop(self, lane: Lane) -> None:
        """Forgets a connection that nobody has claimed."""
        self._release(lane)
        lane.socket.close()

    def _release(self, lane: Lane) -> None:
        del self._unclaimed[lane.descriptor]
        if self._by_token.get(lane.token) is lane:
            del self._by_token[lane.token]
        else:
            self._arrivals.unregister(lane.descriptor)

    def _learn_tokens(self) -> None:
        for descriptor, _ in self._arrivals.poll(0, UNCLAIMED_MAX):
            lane = self._unclaimed[descriptor]
            if lane.learn_token() and lane.token not in self._by_token:
                self._arrivals.unregister(descriptor)
                self._by_token[lane.token] = lane
            else:
                self._drop(lane)

    def cut_unclaimed(self) -> None:
        """Cuts connections that no session has claimed in time."""
        oldest = monotonic() - UNCLAIMED_S
        while self._unclaimed:
            lane = next(iter(self._unclaimed.values()))
            if lane.accepted_at >= oldest:
                return
            self._drop(lane)

    def has_connected(self, token: bytes) -> bool:
        """Has somebody written this token on a connection that was taken in?"""
        self._learn_tokens()
        return token in self._by_token

    def claim(self, session: bytes, token: bytes) -> None:
        """A session says which lane is its own; ``PeerError`` where there is none of that token
        among the connections that were taken in."""
        lane = self._by_token[token] if self.has_connected(token) else None
        if lane is not None and lane.has_left():
            self._drop(lane)  # given up before it was claimed
            lane = None
        if lane is None:
            raise PeerError("wrong_state", "there is no lane of that token here")
        if len(self._lanes) >= LANES_MAX:
            self._drop(lane)
            raise PeerError("busy", f"{LANES_MAX} lanes are open here")
        self._release(lane)
        lane.session = session
        self._lanes[lane.descriptor] = lane
        self._of_session[session] = lane
        self._epoll.register(lane.descriptor, _IN)

    # --- what goes --------------------------------------------------------------------------

    def has(self, session: bytes) -> bool:
        return session in self._of_session

    def send(self, session: bytes, data: bytes) -> bool:
        """Sends on the lane of a session; False where it has none."""
        lane = self._of_session.get(session)
        if lane is None:
            return session in self._ended  # it is on its way to ask for all of it again
        if lane.outbox:
            self._park(lane, data)
            return True
        try:
            sent = lane.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._end(lane)
            return True
        if sent < len(data):
            self._epoll.modify(lane.descriptor, _IN_OUT)
            self._park(lane, memoryview(data)[sent:])
        return True

    def _park(self, lane: Lane, data: bytes | memoryview) -> None:
        if not lane.outbox:
            lane.taken_at = monotonic()
        lane.outbox.append(data)
        lane.outbox_bytes += len(data)
        if lane.outbox_bytes <= OUTBOX_BYTES_MAX:
            return
        if monotonic() - lane.taken_at >= STALLED_S:
            self._end(lane)
        elif not lane.is_held:
            lane.is_held = True
            self._epoll.modify(lane.descriptor, select.EPOLLOUT)

    def _drain(self, lane: Lane) -> None:
        """Sends what waits, as far as the client takes it."""
        while lane.outbox:
            data = lane.outbox[0]
            try:
                sent = lane.socket.send(data)
            except BlockingIOError:
                return
            except OSError:
                self._end(lane)
                return
            lane.outbox_bytes -= sent
            lane.taken_at = monotonic()
            if lane.is_held and lane.outbox_bytes <= OUTBOX_BYTES_MAX:
                lane.is_held = False
                self._epoll.modify(lane.descriptor, _IN_OUT)
                self._ready.append((lane.descriptor, int(_IN)))
            if sent < len(data):
                lane.outbox[0] = memoryview(data)[sent:]  # what is left is not copied each time
                return
            lane.outbox.popleft()
        self._epoll.modify(lane.descriptor, _IN)

    # --- the end ----------------------------------------------------------------------------

    def _end(self, lane: Lane) -> None:
        if self.close(lane.session):
            self._ended[lane.session] = None

    def is_over(self, session: bytes) -> bool:
        """Has a lane of this session ended, of which ``take_ended`` has not told yet?

        To be asked before anything is taken that the session sent through the front-end: who
        closes a lane and goes on there sent it behind that.
        """
        lane = self._of_session.get(session)
        if lane is not None and lane.has_left():
            self._end(lane)
        return session in self._ended

    def close(self, session: bytes) -> bool:
        """Closes the lane of a session; False where it has none."""
        lane = self._of_session.pop(session, None)
        if lane is None:
            return False
        del self._lanes[lane.descriptor]
        self._held_bytes -= lane.stream.held_bytes
        self._epoll.unregister(lane.descriptor)
        lane.socket.close()
        return True

    def take_ended(self) -> list[bytes]:
        """The sessions whose lane has ended by itself since this was asked last."""
        if not self._ended:
            return []
        ended, self._ended = self._ended, {}
        return list(ended)

    def close_all(self) -> None:
        """Cuts every lane; further ones may come, of those too who have connected already: one of a
        session that is over is claimed by nobody, and one of the next may be ahead of its claim."""
        for session in list(self._of_session):
            self.close(session)

    def end(self) -> None:
        self.close_all()
        for lane in list(self._unclaimed.values()):
            self._drop(lane)
        self._arrivals.close()
        self._listener.close()
        self._epoll.close()


def _is_welcome(connection: socket.socket) -> bool:
    """Is the peer of this process's user, or root?"""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(raw)[1] in (0, os.getuid())
