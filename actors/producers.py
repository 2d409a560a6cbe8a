"""Idempotent publishing: what each producer was answered, until it says that it knows.

A producer numbers its messages on a topic from 1 without a gap. The answer to each publish is one
row, written in the same batch as its messages. A publish whose numbers were answered before gets
the same answer again; one that skips numbers is refused, since what it skips may be lost on the
way and would then look like something answered before.
"""

from collections.abc import Sequence

from asterism import limits
from asterism.effects import Refusal
from asterism.errors import PeerError
from asterism.rows import Rows
from asterism.storage.keys import TopicKeys, number_at_end
from asterism.storage.records import pack, unpack

Result = int | Refusal
PRODUCER_TTL_MS = 7 * 86_400_000  # a producer that was silent for so long is forgotten


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

    def __init__(self, rows: Rows, keys: TopicKeys) -> None:
        self._rows = rows
        self._keys = keys
        self._cached: dict[bytes, Producer] = {}

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

    def answered(self, producer: Producer, first: int, count: int) -> list[Result]:
        """The answers given before to the front of a batch; ``wrong_state`` where that fails."""
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

    def forget_silent(self, now_ms: int) -> None:
        """Drops the rows of producers that were silent for long."""
        last_seen: dict[bytes, int] = {}
        low, high = self._keys.range_of("a")
        for key, value in self._rows.scan(low, high):
            last_seen[key[len(low) : len(low) + limits.PRODUCER_ID_BYTES]] = unpack(value, 2)[0]
        for producer_id, seen_ms in last_seen.items():
            if seen_ms + PRODUCER_TTL_MS <= now_ms:
                self._rows.delete_range(*self._keys.answers(producer_id))
                self._cached.pop(producer_id, None)


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
