"""The core alone: publish to processed, with no socket and no disk.

    python -m tests.benchmark.bench_core [--messages N] [--batch N] [--json FILE]

One producer publishes 128-byte messages in batches; one consumer with a window of credit reports
each batch as processed. Rows go to memory, so that what is measured is decisions alone. The same
run measures a bare loop that only builds and drops as many tuples: the ratio to it is steadier
than the figure, since these machines are noisy.
"""

import argparse
import statistics
import time

from asterism import commands as ask
from asterism.actors.shard import Shard
from asterism.effects import Accepted, Deliver
from asterism.message import Header, Mode, Status
from asterism.settings import TopicSettings
from asterism.storage.memory import MemoryRows
from tests.benchmark.report import write_report
from tests.support.delivered import deliveries_of

PAYLOAD = b"x" * 128
TOPIC = "orders"
NOW_MS = 1_700_000_000_000

CASES: dict[str, Header] = {
    "durable, one receiver": Header(Mode.DURABLE, Status.PROCESSED, ("order/1/paid",), {}, 1),
    "durable, one receiver, receipt": Header(
        Mode.DURABLE, Status.PROCESSED, ("order/1/paid",), {}, 1, receipt=True
    ),
    "durable, log": Header(Mode.DURABLE, Status.PROCESSED, ("order/1/paid",)),
    "push, processed": Header(Mode.PUSH, Status.PROCESSED, ("order/1/paid",)),
    "online, sent": Header(Mode.ONLINE, Status.SENT, ("order/1/paid",)),
}


def run_case(header: Header, messages: int, batch: int, subjects: int = 1) -> float:
    """Messages per second from publish to processed."""
    shard = Shard(MemoryRows(), TopicSettings())
    shard.handle(
        TOPIC, ask.Subscribe(b"c", 0, 1, ("order/*/paid",), name="w", credit=batch * 4), NOW_MS
    )
    shard.end_turn()
    headers = (
        [
            Header(
                header.mode, header.expect, (f"order/{n}/paid",), {}, header.max_receivers
            ).encoded
            for n in range(subjects)
        ]
        if subjects > 1
        else [header.encoded]
    )
    first, done = 1, 0
    started = time.process_time()
    while done < messages:
        incoming = tuple(
            (number.to_bytes(16, "big"), headers[number % len(headers)], PAYLOAD)
            for number in range(first, first + batch)
        )
        shard.handle(TOPIC, ask.Publish(b"p", 0, incoming, b"P" * 16, first, first - 1), NOW_MS)
        first += batch
        done += _consume(shard, header)
    return done / (time.process_time() - started)


def _consume(shard: Shard, header: Header) -> int:
    """One turn's effects performed by a consumer that is done at once."""
    done = 0
    for _, effect in shard.end_turn():
        if isinstance(effect, Deliver):
            sequences = tuple(delivered.sequence for delivered in deliveries_of(effect))
            done += len(sequences)
            if header.expect is Status.SENT:
                shard.handle(TOPIC, ask.Grant(b"c", 0, 1, len(sequences)), NOW_MS)
            else:
                shard.handle(TOPIC, ask.Report(b"c", 0, 1, Status.PROCESSED, sequences), NOW_MS)
        elif isinstance(effect, Accepted):
            assert type(effect.results[0]) is int, effect.results[0]
    return done


def baseline(messages: int) -> float:
    """Tuples built and dropped per second: how fast this machine is at this moment."""
    started = time.process_time()
    kept: dict[int, tuple[int, bytes, bytes]] = {}
    for number in range(messages):
        kept[number] = (number, number.to_bytes(16, "big"), PAYLOAD)
        if number >= 1_000:
            del kept[number - 1_000]
    return messages / (time.process_time() - started)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--messages", type=int, default=200_000, help="messages a round (default %(default)s)"
    )
    parser.add_argument(
        "--batch", type=int, default=100, help="messages a frame (default %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds a case (default %(default)s)")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    bare = statistics.median(baseline(options.messages) for _ in range(options.rounds))
    figures["baseline tuples/s"] = bare
    for name, header in CASES.items():
        rates = [run_case(header, options.messages, options.batch) for _ in range(options.rounds)]
        figures[f"{name}: messages/s"] = statistics.median(rates)
        figures[f"{name}: ratio to baseline"] = statistics.median(rates) / bare
    name = "durable, one receiver"
    spread = [
        run_case(CASES[name], options.messages, options.batch, subjects=100_000)
        for _ in range(options.rounds)
    ]
    figures[f"{name}, 100,000 subjects: messages/s"] = statistics.median(spread)
    write_report("core", figures, options.json)


if __name__ == "__main__":
    main()
