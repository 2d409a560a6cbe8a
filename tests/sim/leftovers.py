"""What a store may still hold when everything in it is long over."""

from collections import Counter

from asterism.rows import Rows
from asterism.storage.keys import STORE_TOPIC, TopicKeys, after

# Of a topic without messages: its counters, its reserve of sequences, its settings, its receivers
# and how far they are. What a receiver did out of order goes when its floor next moves.
EXPLAINED = frozenset("cnsrefx")


def leftovers(rows: Rows, topics: list[str]) -> dict[str, dict[str, int]]:
    """By topic, the kinds of rows that nothing explains, and how many there are."""
    found: dict[str, dict[str, int]] = {}
    numbers: set[int] = set()
    for key, value in rows.scan(STORE_TOPIC, after(STORE_TOPIC)):
        name, number = key[len(STORE_TOPIC) :].decode(), int.from_bytes(value, "big")
        numbers.add(number)
        unexplained = _unexplained(rows, TopicKeys(number))
        if unexplained or name not in topics:
            found[name] = unexplained
    orphans = Counter(int.from_bytes(row[1:5], "big") for row, _ in rows.scan(b"\x01", b"\x02"))
    for number, count in sorted(orphans.items()):
        if number not in numbers:
            found[f"topic number {number}, which is gone"] = {"rows": count}
    return found


def _unexplained(rows: Rows, keys: TopicKeys) -> dict[str, int]:
    receivers = {row[6:10] for kind in "re" for row, _ in rows.scan(*keys.range_of(kind))}
    kinds: Counter[str] = Counter()
    for row, _ in rows.scan(*keys.all_rows):
        kind = chr(row[5])
        if kind not in EXPLAINED or (kind in "fx" and row[6:10] not in receivers):
            kinds[kind] += 1
    return dict(sorted(kinds.items()))
