"""The connections of the door: how many there may be, and how long they may do nothing.

A connection that owes something is one on which the door waits for the client: for a request, or
for the rest of one. Those are hung up on in time, and sooner where others want their place. One
whose request is whole waits for the door, a long poll say, for as long as it likes; and so does a
WebSocket, which is asked now and then whether it is there. One whose client does not read what was
written for it is cut.
"""

from typing import Final, NamedTuple, Protocol

from asterism.gateways.http.protocol import STALLED_S

RATE_MIN: Final = 1_024  # bytes a second of a body, and of an answer that is being read
LOOK_S: Final = 1.0  # between looks for those whose time is over


class Patience(NamedTuple):
    """How much is waited for."""

    request_s: float = 20.0  # for a request once the connection is there, and for the rest of it
    idle_s: float = 75.0  # for the next request
    connections: int = 16_384


class Owing(Protocol):
    """A connection on which something is awaited from the client."""

    due_s: float

    def give_up(self, now_s: float) -> None:
        """Hangs up, with a word where there is somebody to hear it; its time is over."""

    def cut(self) -> None:
        """Hangs up at once: others want the place."""


class Clogged(Protocol):
    """A way out on which more was written than the client has read."""

    def get_write_buffer_size(self) -> int: ...

    def abort(self) -> None: ...


class Connections:
    """Those that owe something, and those that do not read."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.owing: dict[Owing, None] = {}  # the longest first
        self._clogged: dict[Clogged, tuple[float, int]] = {}  # since when, and with how much

    def make_room(self, newcomer: Owing, count: int) -> bool:
        """Is there a place for one more, or can there be?"""
        if count <= self.patience.connections:
            return True
        oldest = next(iter(self.owing))
        if oldest is newcomer:
            return False
        del self.owing[oldest]
        oldest.cut()
        return True

    def clogs(self, way: Clogged, now_s: float) -> None:
        self._clogged.setdefault(way, (now_s, way.get_write_buffer_size()))

    def flows(self, way: Clogged) -> None:
        self._clogged.pop(way, None)

    def look(self, now_s: float) -> None:
        """Hangs up on those whose time is over."""
        for connection in [held for held in self.owing if held.due_s < now_s]:
            connection.give_up(now_s)
        for way, (since_s, size) in list(self._clogged.items()):
            left = way.get_write_buffer_size()
            if size - left >= RATE_MIN * STALLED_S:
                self._clogged[way] = (now_s, left)
            elif now_s - since_s > STALLED_S:
                self.flows(way)
                way.abort()
