"""What a match costs when a topic has 1,000 interests, and when it has 100,000.

    python -m tests.benchmark.bench_interest [--json FILE]

Both tries are in the same process and are asked in turns, so that whatever else the machine does
falls on both. Every subject asks about something drawn from the whole of its trie, and finds as
many receivers in the large one as in the small one (this is checked): what is left is the cost of
the interests that do not match.
"""

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from asterism.router.interest import InterestTrie
from asterism.subjects import split_subject

SIZES = (1_000, 100_000)
ROUNDS = 41
SUBJECTS = 2_000

# One line per kind of interest: the glob, and a subject for it, with room for a number.
KINDS = (
    ("user/{}/*", "user/{}/joined"),
    ("order/{}/paid", "order/{}/paid"),
    ("device/{}/**", "device/{}/sensor/temperature"),
    ("room/*/seat/{}", "room/blue/seat/{}"),
    ("**/invoice-{}", "shop/berlin/invoice-{}"),
)
# Interests that a topic has a few of at any size; both tries have them.
SHARED = ("order/*/paid", "**/quit", "user/**/deleted", "*/*/joined", "audit/**")
# Nobody holds these but for ``**/quit``, which the second one finds.
STRANGERS = ("nobody/{}/here", "user/{}/a/b/quit")

Asked = TypeVar("Asked")


def build_trie(size: int) -> InterestTrie[int]:
    trie: InterestTrie[int] = InterestTrie()
    for receiver, interest in enumerate(SHARED):
        trie.add(interest, receiver)
    for receiver in range(len(SHARED), size):
        trie.add(KINDS[receiver % len(KINDS)][0].format(receiver // len(KINDS)), receiver)
    return trie


def build_subjects(size: int) -> list[str]:
    """The same kinds in the same order for every size; only the numbers are of the size."""
    shapes = [subject for _, subject in KINDS] + list(STRANGERS)
    numbers = random.Random(size)
    # From 1: the shared interests have taken the numbers below.
    return [
        shapes[i % len(shapes)].format(numbers.randrange(1, size // len(KINDS)))
        for i in range(SUBJECTS)
    ]


def nanoseconds_each(ask: Callable[[Asked], object], questions: Sequence[Asked]) -> float:
    started_ns = time.perf_counter_ns()
    for question in questions:
        ask(question)
    return (time.perf_counter_ns() - started_ns) / len(questions)


def measure() -> dict[str, object]:
    tries = {size: build_trie(size) for size in SIZES}
    subjects = {size: build_subjects(size) for size in SIZES}
    segments = {size: [split_subject(subject) for subject in subjects[size]] for size in SIZES}
    found = {size: [len(tries[size].match(each)) for each in subjects[size]] for size in SIZES}
    assert found[SIZES[0]] == found[SIZES[1]], "both sizes must find the same"

    whole_ns: dict[int, list[float]] = {size: [] for size in SIZES}
    walk_ns: dict[int, list[float]] = {size: [] for size in SIZES}
    for turn in range(ROUNDS):
        # Who goes first changes, or the second would always find the other's leavings in the cache.
        for size in SIZES if turn % 2 else reversed(SIZES):
            whole_ns[size].append(nanoseconds_each(tries[size].match, subjects[size]))
            walk_ns[size].append(nanoseconds_each(tries[size].match_segments, segments[size]))
    return {
        "benchmark": "interest",
        "python": platform.python_version(),
        "rounds": ROUNDS,
        "subjects": SUBJECTS,
        "receivers_per_subject": statistics.fmean(found[SIZES[0]]),
        "sizes": [
            {
                "interests": size,
                "nodes": tries[size].node_count(),
                "match_ns": statistics.median(whole_ns[size]),
                "match_segments_ns": statistics.median(walk_ns[size]),
            }
            for size in SIZES
        ],
        "match_ratio": ratio(whole_ns),
        "match_segments_ratio": ratio(walk_ns),
    }


def ratio(cost_ns: dict[int, list[float]]) -> float:
    """The median over rounds of large to small: each round compares like with like."""
    small, large = (cost_ns[size] for size in SIZES)
    return statistics.median(b / a for a, b in zip(small, large, strict=True))


def table(result: dict[str, object]) -> str:
    rows = result["sizes"]
    assert isinstance(rows, list)
    lines = [f"{'interests':>10} {'nodes':>9} {'match ns':>10} {'of it walk ns':>14}"]
    for row in rows:
        lines.append(
            f"{row['interests']:>10,} {row['nodes']:>9,} {row['match_ns']:>10,.0f}"
            f" {row['match_segments_ns']:>14,.0f}"
        )
    lines.append(
        f"{'ratio':>20} {result['match_ratio']:>10.2f} {result['match_segments_ratio']:>14.2f}"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Match cost with 1,000 and 100,000 interests.")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    result = measure()
    text = json.dumps(result, indent=2)
    sys.stdout.write(f"{table(result)}\n{text}\n")
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
