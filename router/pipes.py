"""What a worker has been sent and has not taken: bounded in bytes, and shared. Pure.

ZeroMQ bounds a pipe by its messages, of which one may have 64 MB. So a worker says with its
heartbeat, and more often while much comes, how many bytes it has taken in all.

I1  A frame goes on a pipe that is empty, or where it stays within ``PIPE_BYTES_MAX``. Large frames
    leave a part of that to small ones, and one session's leave a part to those of others.
I2  What wants no answer waits in the outbox, within ``OUTBOX_BYTES_MAX``.
"""

from collections import deque
from typing import Final

PIPE_BYTES_MAX: Final = 64 << 20  # to one worker; past it, clients are told busy
LARGE_PIPE_BYTES_MAX: Final = 48 << 20  # of that, for frames that are large
SHARE_BYTES_MAX: Final = 24 << 20  # of that, for those of one session
LARGE_BYTES: Final = 256 << 10  # what is large
OUTBOX_BYTES_MAX: Final = 16 << 20  # of frames that want no answer; past it they are dropped
OUTBOX_FRAMES_MAX: Final = 100_000


class Pipe:
    """The way to one worker."""

    __slots__ = ("_large", "_large_bytes", "_sent", "_shares", "_taken", "outbox", "outbox_bytes")

    def __init__(self) -> None:
        self._sent = 0
        self._taken = 0
        self._large: deque[tuple[int, bytes, int]] = deque()  # where it ends, whose, how large
        self._large_bytes = 0
        self._shares: dict[bytes, int] = {}
        self.outbox: deque[tuple[bytes, ...]] = deque()
        self.outbox_bytes = 0

    def admits(self, session: bytes, size: int) -> bool:
        """May a session's frame be sent?"""
        untaken = self._sent - self._taken
        if size < LARGE_BYTES:
            return untaken + size <= PIPE_BYTES_MAX
        share = self._shares.get(session, 0)
        return not self._large_bytes or (
            untaken + size <= LARGE_PIPE_BYTES_MAX and share + size <= SHARE_BYTES_MAX
        )

    def count_sent(self, session: bytes, size: int) -> None:
        self._sent += size
        if size >= LARGE_BYTES:
            self._large.append((self._sent, session, size))
            self._large_bytes += size
            self._shares[session] = self._shares.get(session, 0) + size

    def count_taken(self, taken: int) -> None:
        """The worker has taken so many bytes in all. It may have taken some that were sent before
        it was known, which were not counted."""
        self._taken = taken
        self._sent = max(self._sent, taken)
        while self._large and self._large[0][0] <= taken:
            _, session, size = self._large.popleft()
            self._large_bytes -= size
            self._shares[session] -= size
            if not self._shares[session]:
                del self._shares[session]

    def park(self, frames: tuple[bytes, ...]) -> bool:
        """Keeps what the worker does not take now; False where there is no room for it."""
        size = sum(map(len, frames))
        if self.outbox_bytes + size > OUTBOX_BYTES_MAX or self.is_full:
            return False
        self.keep(frames)
        return True

    @property
    def is_full(self) -> bool:
        return len(self.outbox) >= OUTBOX_FRAMES_MAX

    def keep(self, frames: tuple[bytes, ...]) -> None:
        """Keeps what the worker has to know, whatever else waits."""
        self.outbox.append(frames)
        self.outbox_bytes += sum(map(len, frames))

    def unpark(self) -> None:
        """The first of the outbox has gone."""
        self.outbox_bytes -= sum(map(len, self.outbox.popleft()))
