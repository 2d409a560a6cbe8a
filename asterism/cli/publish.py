"""``asterism pub``: publishes an argument, a file or standard input."""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, Final

import asterism
from asterism import checks
from asterism.cli import context, output
from asterism.errors import PeerError

READ_BYTES: Final = 65_536  # of the input at once; the lines in it are one batch
LINE_BYTES_MAX: Final = 64 << 20  # one message; a longer line is refused


def run(options: argparse.Namespace) -> int:
    checks.topic_name(options.topic)
    if options.message is not None and options.file is not None:
        raise output.CommandError("give a message or a file, not both", output.WRONG_USE)
    wishes = _wishes(options)
    with _source(options) as (source, size), context.connect(options) as node:
        return _publish_all(node, options, wishes, _batches(options, source), size)


def _publish_all(
    node: asterism.BlockingNode,
    options: argparse.Namespace,
    wishes: dict[str, Any],
    batches: Iterator[list[bytes]],
    size: int,
) -> int:
    progress = output.Progress("messages", is_wanted=options.message is None)
    first = last = None
    count = sent_bytes = 0
    verdicts: Counter[str] = Counter()
    try:
        for batch in batches:
            receipt = node.publish_many(options.topic, batch, **wishes)
            count += len(batch)
            last = receipt.sequences[-1]
            first = receipt.sequences[0] if first is None else first
            if options.wait:
                outcomes = receipt.all_resolved(timeout=options.timeout)
                verdicts.update(outcome.verdict for outcome in outcomes if outcome is not None)
            sent_bytes += sum(map(len, batch)) + len(batch)
            progress.tell(count, min(sent_bytes / size, 1.0) if size else None)
    except PeerError as error:
        refused = getattr(error, "receipt", None)
        count += len(refused.sequences) if refused is not None else 0
        accepted = f" {count} others were accepted." if count else ""
        raise output.CommandError(output.refusal(error.code, error.detail) + accepted) from error
    finally:
        progress.end()
    _say(options, count, (first, last), verdicts)
    return output.REFUSED if verdicts.keys() - {"ok"} else output.DONE


def _say(
    options: argparse.Namespace,
    count: int,
    sequences: tuple[int | None, int | None],
    verdicts: Counter[str],
) -> None:
    first, last = sequences
    if options.json:
        told = {"topic": options.topic, "count": count, "first": first, "last": last}
        output.say_json(told | ({"verdicts": verdicts} if options.wait else {}))
        return
    which = f" {first}" if first == last else f"s {first} to {last}"
    what = f"accepted {count}: sequence{which}" if count else "there was nothing to publish"
    resolved = ", ".join(f"{verdict} {number}" for verdict, number in verdicts.items())
    output.say(f"{what}; {resolved}" if resolved else what)


def _wishes(options: argparse.Namespace) -> dict[str, Any]:
    wishes: dict[str, Any] = {"mode": options.mode, "expect": options.expect}
    if options.subject:
        wishes["subjects"] = tuple(options.subject)
    if options.attribute:
        wishes["attributes"] = dict(map(_attribute, options.attribute))
    for name in ("max_receivers", "ttl", "priority", "ordering_key"):
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
        if sys.stdin.isatty():
            output.warn("Reading messages, one a line; Ctrl-D ends.")
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
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if begun:
        yield [begun.removesuffix(b"\r")]
