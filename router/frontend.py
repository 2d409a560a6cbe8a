"""Sessions: who is connected, what is on its way to them, who has gone silent. Pure.

A session is one connection to the front-end. It begins with a hello and ends with a goodbye, with
silence, or with the front-end itself; then its workers are told, and what it held fails over.

I1 A session's id is random bytes: an answer to a session of an earlier front-end is never taken for
   one of this, and nobody can guess another's.
I2 A session is its connection's, and no other's: it ends with it.
I3 What cannot be sent now waits in the session's outbox, in order and within bounds; at the bound
   the session is over.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from asterism import checks, limits, wire
from asterism.errors import PeerError
from asterism.wire import Verb

MISSED_MAX: Final = 3  # heartbeats; a session that misses so many is cut
OUTBOX_BYTES_MAX: Final = 64 << 20  # waiting for one client that does not read; then it is cut


class Session:
    """One client, for as long as it is connected."""

    __slots__ = (
        *("connection", "id", "last_ms", "name", "outbox", "outbox_bytes", "routing", "taken"),
        "workers",
    )

    def __init__(
        self, session_id: bytes, routing: bytes, connection: Any, name: str, now_ms: int
    ) -> None:
        assert len(session_id) == wire.SESSION_BYTES
        self.id = session_id
        self.routing = routing
        self.connection = connection  # the host's own
        self.name = name
        self.last_ms = now_ms
        self.taken = 0  # parts that it has sent, its hello aside
        self.workers: set[bytes] = set()  # those it has sent something to
        self.outbox: deque[bytes] = deque()
        self.outbox_bytes = 0

    def park(self, frame: bytes) -> bool:
        """Keeps what the client does not take now; False when there is no room for it."""
        self.outbox_bytes += len(frame)
        self.outbox.append(frame)
        return self.outbox_bytes <= OUTBOX_BYTES_MAX

    def unpark(self) -> int:
        """The first of the outbox has gone; how many bytes it had."""
        size = len(self.outbox.popleft())
        self.outbox_bytes -= size
        return size


class Sessions:
    """All sessions of a front-end."""

    def __init__(self, epoch: bytes, broker: dict[str, Any]) -> None:
        assert len(epoch) == 8
        self.epoch = epoch
        self.by_routing: dict[bytes, Session] = {}
        self._by_id: dict[bytes, Session] = {}
        self._broker = broker  # what every client is told of it
        self._heartbeat_ms: int = broker["heartbeat_ms"]

    def hello(
        self, routing: bytes, connection: Any, session_id: bytes, body: bytes, now_ms: int
    ) -> dict[str, Any]:
        """Begins a session; what the client is welcomed with."""
        assert routing not in self.by_routing
        wire.check_size(Verb.HELLO, len(body))
        asked = wire.read_asked(body)
        if type(asked) is not dict:
            raise PeerError("bad_request", "the body of a hello is a map")
        versions = checks.tuple_of("versions", asked.get("versions"), 64)
        if wire.VERSION not in versions:
            raise PeerError("unsupported_version", f"this broker speaks version {wire.VERSION}")
        name = checks.text("name", asked.get("name", ""), limits.NAME_BYTES_MAX, least=0)
        session = Session(session_id, routing, connection, name, now_ms)
        self.by_routing[routing] = session
        self._by_id[session_id] = session
        return {"version": wire.VERSION, "session": session.id, **self._broker}

    def of(self, session_id: bytes) -> Session | None:
        """The session of an id that a worker answers to; ``None`` if it is over."""
        return self._by_id.get(session_id)

    def end(self, session: Session) -> bool:
        """A session is over; False if it was already."""
        if self._by_id.pop(session.id, None) is None:
            return False
        del self.by_routing[session.routing]
        return True

    def silent(self, now_ms: int) -> Iterator[Session]:
        """Those that have missed too many heartbeats."""
        oldest_ms = now_ms - MISSED_MAX * self._heartbeat_ms
        for session in list(self.by_routing.values()):
            if session.last_ms < oldest_ms:
                yield session


def closed(code: str, detail: str, request: int = 0) -> bytes:
    """The part that tells a client that its session is over."""
    return wire.pack_part(Verb.CLOSED, request, b"", wire.pack_body((code, detail)))


def refusal(error: PeerError, node: int, request: int, topic: bytes) -> bytes:
    """The part that tells a client that the front-end itself refuses what it asked."""
    body = wire.pack_body((error.code, error.detail, error.retry_after_ms))
    return wire.pack_part(Verb.REFUSE, request, topic, body, node=node)
