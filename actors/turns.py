"""Whose turn it is: what sessions sent through the front-end, taken a frame of each. Pure.

It comes in one row. Taken as it comes, a client that sends without pause would have all others wait
for all that it sent before them.

I1  What a session sent is taken in the order in which it sent it.
I2  A session that has something here is in the row once, and goes to its end with each frame.
I3  A session has at most ``FRAMES_MAX`` frames here, and of those that want no answer, such as
    credit, up to ``UNANSWERED_MAX``; their bytes are the front-end's to bound. What is told about
    it, a word, waits behind them.
"""

from collections import deque
from typing import Final

from asterism.wire import Part, read_parts

FRAMES_MAX: Final = 512  # of one session; what comes beyond is refused with busy
UNANSWERED_MAX: Final = 8_192  # the same with frames that cannot be refused: they want no answer


class Turns:
    """The frames that wait, by session."""

    def __init__(self) -> None:
        # Whose turn is next comes first.
        self._row: dict[bytes, deque[tuple[bytes | memoryview, list[Part]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._row)

    def add(self, session: bytes, frame: bytes | memoryview) -> bool:
        """Has a frame wait; False where the session has as many here as it may."""
        waiting = self._row.get(session)
        parts = read_parts(frame)
        if waiting is None:
            waiting = self._row[session] = deque()
        elif len(waiting) >= FRAMES_MAX and (
            len(waiting) >= UNANSWERED_MAX or all(part.request for part in parts)
        ):
            return False
        waiting.append((frame, parts))
        return True

    def add_word(self, session: bytes, word: bytes) -> bool:
        """Has a word wait, which is no frame and has no parts; False where it need not wait."""
        waiting = self._row.get(session)
        if waiting is None:
            return False
        waiting.append((word, []))
        return True

    def take(self) -> tuple[bytes, bytes | memoryview, list[Part]]:
        """Whose turn it is, its next frame, and the parts of it; it goes to the end of the row.

        Where there are no parts, it is a word.
        """
        session = next(iter(self._row))
        waiting = self._row.pop(session)
        frame, parts = waiting.popleft()
        if waiting:
            self._row[session] = waiting
        return session, frame, parts

    def put_back(self, session: bytes, frame: bytes | memoryview, parts: list[Part]) -> None:
        """Has what is left of a frame come next of its session."""
        self._row.setdefault(session, deque()).appendleft((frame, parts))

    def take_all(self, session: bytes) -> list[tuple[bytes | memoryview, list[Part]]]:
        """All that a session has here, in order."""
        return list(self._row.pop(session, ()))

    @property
    def sessions(self) -> list[bytes]:
        return list(self._row)
