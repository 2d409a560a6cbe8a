"""What the core sees of a store: ordered rows of bytes, read at once, written with the turn.

The core never touches a file. It reads through this interface and collects its writes in it; the
host commits them in one batch, synced, before anything that depends on them is sent.
"""

from collections.abc import Iterator
from typing import Protocol


class Rows(Protocol):
    """The rows of one store as this turn sees them: what is committed, and its own writes."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or ``None``."""

    def scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows with ``low <= key < high``, in key order.

        Rows written while the iterator is open may or may not be seen.
        """

    def put(self, key: bytes, value: bytes) -> None:
        """Writes a row with this turn's batch."""

    def delete(self, key: bytes) -> None:
        """Deletes a row with this turn's batch; a row that is not there is no error."""

    def write_all(self, rows: dict[bytes, bytes | None]) -> None:
        """Writes rows, and deletes those of value ``None``, with this turn's batch."""

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Deletes the rows with ``low <= key < high`` with this turn's batch."""
