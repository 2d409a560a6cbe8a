"""``asterism pub``: publishes an argument, a file or standard input."""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, Final

import asterism
from asterism import checks
from asterism.cli import context, output
from asterism.errors import PeerError
from asterism.sdk.client import BlockingBatchReceipt

READ_BYTES: Final = 65_536  # of the input at once; the lines in it are one batch
BATCH_MAX: Final = 8_192  # lines of a batch; a file of empty ones has many
LINE_BYTES_MAX: Final = 64 << 20  # one message; a longer line is refused


class Done:
    """What has been accepted so far, and how it ended where that was waited for."""

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0  # of the input
        self.first: int | None = None
        self.last: int | None = None
        self.verdicts: Counter[str] = Counter()

    def add(self, batch: list[bytes], sequences: Sequence[int]) -> None:
        self.count += len(batch)
        self.bytes += sum(map(len, batch)) + len(batch)
        self.first = sequences[0] if self.first is None else self.first
        self.last = sequences[-1]


def run(options: argparse.Namespace) -> int:
    checks.topic_name(options.topic)
    if options.message is not None and options.file is not None:
        raise output.CommandError("give a message or a file, not both", output.WRONG_USE)
    if options.ttl is not None and options.mode != "durable":
        raise output.CommandError("--ttl is for durable messages alone", output.WRONG_USE)
    wishes = _wishes(options)
    with _source(options) as (source, size), context.connect(options) as node:
        is_typed = source is not None and source.isatty()
        if is_typed:
            output.warn("Reading messages, one a line; Ctrl-D ends.")
        progress = output.Progress("messages", is_wanted=source is not None and not is_typed)
        return _publish_all(node, options, wishes, _batches(options, source), (progress, size))


def _publish_all(
    node: asterism.BlockingNode,
    options: argparse.Namespace,
    wishes: dict[str, Any],
    batches: Iterator[list[bytes]],
    told: tuple[output.Progress, int],
) -> int:
    progress, size = told
    done = Done()
    try:
        for batch in batches:
            receipt = node.publish_many(options.topic, batch, timeout=options.timeout, **wishes)
            done.add(batch, receipt.sequences)
            if options.wait:
                done.verdicts.update(_verdicts(receipt, options, done))
            progress.tell(done.count, min(done.bytes / size, 1.0) if size else None)
    except PeerError as error:
        refused = getattr(error, "receipt", None)
        count = done.count + (len(refused.sequences) if refused is not None else 0)
        accepted = f" {count} others were accepted." if count else ""
        raise output.CommandError(output.refusal(error.code, error.detail) + accepted) from error
    except TimeoutError as error:
        accepted = f" {done.count} before it were accepted." if done.count else ""
        raise output.CommandError(output.late(error, accepted), output.UNREACHABLE) from error
    except KeyboardInterrupt:
        progress.end()
        output.warn(f"asterism: interrupted; {done.count} were accepted before")
        raise
    finally:
        progress.end()
    _say(options, done)
    return output.REFUSED if done.verdicts.keys() - {"ok"} else output.DONE


def _verdicts(receipt: BlockingBatchReceipt, options: argparse.Namespace, done: Done) -> list[str]:
    try:
        outcomes = receipt.all_resolved(timeout=options.timeout)
    except TimeoutError:
        never = options.mode == "durable" and options.max_receivers is None
        why = (
            "a durable message is resolved when it expires, unless --max-receivers says how many "
            "make it done"
            if never
            else "--timeout waits longer"
        )
        raise output.CommandError(
            f"accepted {done.count}, and not all were resolved within {options.timeout:g} s; they "
            f"may still be: {why}."
        ) from None
    return [outcome.verdict for outcome in outcomes if outcome is not None]


def _say(options: argparse.Namespace, done: Done) -> None:
    count, first, last = done.count, done.first, done.last
    if options.json:
        told = {"topic": options.topic, "count": count, "first": first, "last": last}
        output.say_json(told | ({"verdicts": done.verdicts} if options.wait else {}))
        return
    which = f" {first}" if first == last else f"s {first} to {last}"
    what = f"accepted {count}: sequence{which}" if count else "there was nothing to publish"
    resolved = ", ".join(f"{verdict} {number}" for verdict, number in done.verdicts.items())
    output.say(f"{what}; {resolved}" if resolved else what)


def _wishes(options: argparse.Namespace) -> dict[str, Any]:
    wishes: dict[str, Any] = {"mode": options.mode}
    if options.subject:
        wishes["subjects"] = tuple(options.subject)
    if options.attribute:
        wishes["attributes"] = dict(map(_attribute, options.attribute))
    for name in ("expect", "max_receivers", "ttl", "priority", "ordering_key"):
        if getattr(options, name) is not None:
            wishes[name] = getattr(options, name)
    if options.delay is not None:
        wishes["deliver_at"] = time.time_ns() / 1e9 + options.delay
    if options.wait:
        wishes["receipt"] = True
    return wishes


def _attribute(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise PeerError("bad_request", f"the attribute {checks.shown(word)} is not NAME=VALUE")
    return name, value


@contextmanager
def _source(options: argparse.Namespace) -> Iterator[tuple[BinaryIO | None, int]]:
    """Where lines come from, and how many bytes there are, or 0 where that is not known."""
    if options.message is not None:
        yield None, 0
    elif options.file is None or options.file == "-":
        yield sys.stdin.buffer, 0
    else:
        with ExitStack() as closed:
            try:
                file = closed.enter_context(open(options.file, "rb"))
            except OSError as error:
                message = f"{options.file}: cannot be read: {error.strerror}"
                raise output.CommandError(message, output.WRONG_USE) from None
            yield file, os.fstat(file.fileno()).st_size


def _batches(options: argparse.Namespace, source: BinaryIO | None) -> Iterator[list[bytes]]:
    """The messages, as many at once as have come: a slow input is not waited for."""
    if source is None:
        yield [os.fsencode(options.message)]
        return
    if options.whole:
        yield [source.read()]
        return
    read: Callable[[int], bytes] = source.read1  # type: ignore[attr-defined]
    begun = b""
    while data := read(READ_BYTES):
        *lines, begun = (begun + data).split(b"\n")
        if len(begun) > LINE_BYTES_MAX:
            raise PeerError("too_large", f"a line has more than {LINE_BYTES_MAX} bytes")
        for start in range(0, len(lines), BATCH_MAX):
            yield [line.removesuffix(b"\r") for line in lines[start : start + BATCH_MAX]]
    if begun:
        yield [begun.removesuffix(b"\r")]
