"""Idempotent publishing: what each producer was answered, until it says that it knows.

A producer numbers its messages on a topic from 1 without a gap. The answer to each publish is one
row, written in the same batch as its messages. A publish whose numbers were answered before gets
the same answer again; one that skips numbers is refused, since what it skips may be lost on the
way and would then look like something answered before.

Answers to messages that are in memory alone, and refusals, are not synced: a power cut may take
them, and the producer goes on behind numbers that are not known here. It is believed when it says
that it has seen their answers (``settled``): nothing durable was among them, as that would have
been synced with its answer. A producer's first answer is always synced. So one that is not known
at all was forgotten, with whatever of its messages may have been stored, and is not believed.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from asterism import limits
from asterism.effects import Refusal
from asterism.errors import PeerError
from asterism.rows import Rows
from asterism.storage.keys import TopicKeys, number_at_end
from asterism.storage.records import pack, unpack

Result = int | Refusal
PRODUCER_TTL_MS = 7 * 86_400_000  # a producer that was silent for so long is forgotten
KEPT_MS_MIN = 600_000  # where there are too many, one is still remembered for so long
FORGOTTEN_SHARE = 10  # and then a tenth is forgotten at once, so that looking for them is rare


class Producer:
    """One producer as this topic knows it. ``answers`` go by the number of their first message."""

    __slots__ = ("answers", "high", "node", "seen_ms")

    def __init__(self) -> None:
        self.high = 0
        self.answers: dict[int, Sequence[Result]] = {}
        self.node: bytes | None = None
        self.seen_ms = 0


class Producers:
    """The producers of a topic: those in use in memory, all of them in rows."""

    def __init__(self, rows: Rows, keys: TopicKeys, most: int) -> None:
        self._rows = rows
        self._keys = keys
        self._most = most
        self._count: int | None = None  # of those that have rows; counted once it matters
        self._full_until_ms = 0
        self._cached: dict[bytes, Producer] = {}
        self.has_new = False  # one got its first answer in this turn, which must be synced

    def get(self, producer_id: bytes) -> Producer:
        """The producer, from memory or its rows; a new one if it is not known."""
        producer = self._cached.pop(producer_id, None)
        if producer is None:
            producer = self._load(producer_id)
            if len(self._cached) >= limits.PRODUCERS_CACHED_MAX:
                del self._cached[next(iter(self._cached))]
        self._cached[producer_id] = producer  # now the most recently used
        return producer

    def node_of(self, producer_id: bytes) -> bytes | None:
        """Where the producer was last seen, if that is remembered."""
        producer = self._cached.get(producer_id)
        return None if producer is None else producer.node

    def _load(self, producer_id: bytes) -> Producer:
        producer = Producer()
        for key, value in self._rows.scan(*self._keys.answers(producer_id)):
            first = number_at_end(key)
            producer.seen_ms, results = unpack(value, 2)
            answer = _expand(results)
            producer.answers[first] = answer
            producer.high = max(producer.high, first + len(answer) - 1)
        return producer

    def answered(self, producer: Producer, first: int, count: int, settled: int) -> list[Result]:
        """The answers given before to the front of a batch; ``wrong_state`` where that fails."""
        if producer.high:
            producer.high = max(producer.high, min(settled, first - 1))
        if first > producer.high + 1:
            if producer.high == 0:
                raise PeerError(
                    "wrong_state", "this producer is not known here: begin a new one at 1"
                )
            raise PeerError(
                "busy", f"number {producer.high + 1} is still missing: send from there", 0
            )
        known: list[Result] = []
        while len(known) < count and first + len(known) <= producer.high:
            known.append(self._answer(producer, first + len(known)))
        return known

    def _answer(self, producer: Producer, number: int) -> Result:
        for first, results in producer.answers.items():
            if first <= number < first + len(results):
                return results[number - first]
        raise PeerError("wrong_state", f"the answer to number {number} is no longer kept")

    def record(
        self,
        producer_id: bytes,
        producer: Producer,
        results: Sequence[Result],
        settled: int,
        now_ms: int,
    ) -> None:
        """Remembers the answer to the next numbers and forgets what the producer knows of."""
        first, answers = producer.high + 1, producer.answers
        rows, key_of = self._rows, self._keys.answer
        if results:
            if not producer.high:
                self.has_new = True
                if self._count is not None:
                    self._count += 1
            answers[first] = results
            producer.high += len(results)
            producer.seen_ms = now_ms
            rows.put(key_of(producer_id, first), pack(now_ms, _compress(results)))
        # The last answer always stays: it carries the high-water mark.
        for first in list(answers)[:-1]:
            last = first + len(answers[first]) - 1
            if last > settled and len(answers) <= limits.ANSWERS_MAX:
                break
            del answers[first]
            rows.delete(key_of(producer_id, first))

    def admit(self, now_ms: int) -> None:
        """Sees that there is room for one more; ``busy`` if too many were here of late."""
        if self._count is None:
            self._count = len(self._seen())
        if self._count >= self._most and now_ms >= self._full_until_ms:
            seen = self._seen()
            wanted = len(seen) - self._most + max(self._most // FORGOTTEN_SHARE, 1)
            oldest = sorted(seen.values())[:wanted]
            self._full_until_ms = oldest[0].ms + KEPT_MS_MIN
            self._count = len(seen) - self._forget(oldest, now_ms - KEPT_MS_MIN)
        if self._count >= self._most:
            detail = (
                f"{self._count} producers have published here of late, as many as the topic "
                "remembers: use fewer ids, or raise max_producers_per_topic"
            )
            pause_ms = max(self._full_until_ms - now_ms, 1)
            raise PeerError("busy", detail, min(pause_ms, limits.FULL_RETRY_MS))

    def forget_silent(self, now_ms: int) -> None:
        """Drops the rows of producers that were silent for long."""
        seen = self._seen()
        self._count = len(seen) - self._forget(seen.values(), now_ms - PRODUCER_TTL_MS)

    def _seen(self) -> dict[bytes, "Seen"]:
        """All producers that have rows."""
        seen: dict[bytes, Seen] = {}
        low, high = self._keys.range_of("a")
        for key, value in self._rows.scan(low, high):
            producer_id = key[len(low) : len(low) + limits.PRODUCER_ID_BYTES]
            before = seen.get(producer_id)
            keys = [key] if before is None else [*before.keys, key]
            seen[producer_id] = Seen(unpack(value, 2)[0], producer_id, keys)
        return seen

    def _forget(self, candidates: Iterable["Seen"], until_ms: int) -> int:
        """Drops the rows of those that were seen last at this time or before; how many they are."""
        forgotten = 0
        for producer in candidates:
            if producer.ms <= until_ms:
                for key in producer.keys:
                    self._rows.delete(key)
                self._cached.pop(producer.id, None)
                forgotten += 1
        return forgotten


class Seen(NamedTuple):
    """A producer by its rows; by when it was answered last."""

    ms: int
    id: bytes
    keys: list[bytes]


def _compress(results: Sequence[Result]) -> list[object]:
    """Runs of consecutive sequences as [first, count]; refusals as [code, detail, count]."""
    if isinstance(results, range):
        return [[results.start, len(results)]]
    runs: list[list[object]] = []
    expected: Result | None = None
    for result in results:
        if runs and result == expected:
            runs[-1][-1] += 1  # type: ignore[operator]
        elif isinstance(result, int):
            runs.append([result, 1])
        else:
            runs.append([result.code, result.detail, 1])
        expected = result + 1 if isinstance(result, int) else result
    return list(runs)


def _expand(runs: tuple[tuple[object, ...], ...]) -> tuple[Result, ...]:
    results: list[Result] = []
    for run in runs:
        if len(run) == 2:
            first, count = run
            assert isinstance(first, int) and isinstance(count, int)
            results.extend(range(first, first + count))
        else:
            code, detail, count = run
            assert isinstance(code, str) and isinstance(detail, str) and isinstance(count, int)
            results.extend([Refusal(code, detail)] * count)
    return tuple(results)
