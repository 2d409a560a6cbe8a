"""``asterism sub``: prints messages as they come.

Messages are fetched, at most as many at once as will be printed, and nothing more is sent before
those are: what the broker has sent may be over for it, and a window that is kept open is full of
messages that nobody sees when the command ends.
"""

import argparse
import base64
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from asterism import checks
from asterism.cli import context, output
from asterism.sdk.client import BlockingDelivery, BlockingInbox

LOOK_S: Final = 60.0  # how long one fetch waits for a message


def run(options: argparse.Namespace) -> int:
    checks.topic_name(options.topic)
    if options.raw and options.json:
        raise output.CommandError("give --raw or --json, not both", output.WRONG_USE)
    with _interruptible(), context.connect(options) as node:
        inbox = node.subscribe(
            options.topic,
            *(options.interests or ["**"]),
            name=options.name,
            group=options.group,
            credit=0,
            timeout=options.timeout,
        )
        try:
            count = _print_all(inbox, options)
        finally:
            if options.forget and (options.name or options.group):
                node.delete_receiver(options.topic, inbox.receiver, timeout=options.timeout)
    if options.count is None or count == options.count:
        return output.DONE
    output.warn(f"asterism: {count} of {options.count} messages came")
    return output.REFUSED


@contextmanager
def _interruptible() -> Iterator[None]:
    """A script ends this with a signal, and a terminal by closing, as a person does with Ctrl-C:
    the broker is told goodbye."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in output.ends()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_all(inbox: BlockingInbox, options: argparse.Namespace) -> int:
    """Prints until there were enough, time is up, or somebody interrupts; how many there were."""
    count = 0
    ends = None if options.seconds is None else time.monotonic() + options.seconds
    while options.count is None or count < options.count:
        left = LOOK_S if ends is None else min(LOOK_S, ends - time.monotonic())
        if left <= 0:
            break
        most = options.credit if options.count is None else options.count - count
        for delivery in inbox.pull(min(most, options.credit), left, timeout=None):
            # Not in ``with``: where it cannot be printed, nobody has failed at it, and it goes back
            # when the connection is closed.
            delivery.received()
            _print(delivery, options)
            delivery.processed()
            count += 1
    return count


def _print(delivery: BlockingDelivery, options: argparse.Namespace) -> None:
    if options.raw:
        output.say_bytes(delivery.payload)
    elif options.json:
        output.say_json(
            {
                "topic": options.topic,
                "sequence": delivery.sequence,
                "attempt": delivery.attempt,
                "id": delivery.id,
                "subjects": list(delivery.subjects),
                "attributes": dict(delivery.attributes),
                **shown_payload(delivery.payload),
            }
        )
    else:
        again = f" (attempt {delivery.attempt})" if delivery.attempt > 1 else ""
        subjects = output.shown_text(" ".join(delivery.subjects))
        output.say(f"{subjects}{again}\t{payload_line(shown_payload(delivery.payload))}")


def shown_payload(payload: bytes) -> dict[str, str]:
    """A payload as text or, where it is none, in base64."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def payload_line(shown: dict[str, str]) -> str:
    """A payload as people see it, on one line."""
    if "payload" in shown:
        return output.shown_text(shown["payload"])
    return f"base64:{shown['payload_base64']}"
