"""Outcomes of messages whose publisher asked for a receipt, kept until they are too old.

Outcomes are filed by the time at which they came about, in a bucket of ten minutes, so that the
old ones go with one range and none needs a timer of its own.
"""

from asterism.rows import Rows
from asterism.storage.keys import TopicKeys
from asterism.storage.records import pack, unpack

BUCKET_MS = 600_000


class Outcomes:
    """The outcomes of a topic; nothing is held in memory."""

    def __init__(self, rows: Rows, keys: TopicKeys) -> None:
        self._rows = rows
        self._keys = keys

    def file(
        self, producer: bytes, number: int, verdict: str, statuses: dict[str, str], now_ms: int
    ) -> None:
        key = self._keys.outcome(now_ms // BUCKET_MS, producer, number)
        self._rows.put(key, pack(verdict, statuses))

    def file_all(
        self, told: list[tuple[bytes, int]], verdict: str, statuses: dict[str, str], now_ms: int
    ) -> None:
        """Files one outcome for many messages, each by its producer and number."""
        key_of, bucket = self._keys.outcome, now_ms // BUCKET_MS
        row = pack(verdict, statuses)
        self._rows.write_all(
            dict.fromkeys([key_of(bucket, producer, number) for producer, number in told], row)
        )

    def find(
        self, producer: bytes, number: int, ttl_ms: int, now_ms: int
    ) -> tuple[str, dict[str, str]] | None:
        for bucket in range(now_ms // BUCKET_MS, (now_ms - ttl_ms) // BUCKET_MS - 1, -1):
            if bucket >= 0:
                row = self._rows.get(self._keys.outcome(bucket, producer, number))
                if row is not None:
                    verdict, statuses = unpack(row, 2)
                    return verdict, statuses
        return None

    def forget_old(self, ttl_ms: int, now_ms: int) -> None:
        """Drops the buckets of which every outcome is too old."""
        bucket = (now_ms - ttl_ms) // BUCKET_MS
        low, high = self._keys.outcomes_before(max(bucket, 0))
        if any(True for _ in self._rows.scan(low, high)):
            self._rows.delete_range(low, high)
