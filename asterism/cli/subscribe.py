"""``asterism sub``: prints messages as they come."""

import argparse
import base64
import signal
import sys
import time
from types import FrameType
from typing import Any, Final

from asterism import checks
from asterism.cli import context, output

LOOK_S: Final = 0.5  # between looks whether it is to end


def run(options: argparse.Namespace) -> int:
    checks.topic_name(options.topic)
    # A script ends this with a signal as a person does with Ctrl-C: the broker is told goodbye.
    signal.signal(signal.SIGTERM, _interrupt)
    with context.connect(options) as node:
        inbox = node.subscribe(
            options.topic,
            *(options.interests or ["**"]),
            name=options.name,
            group=options.group,
            credit=min(options.credit, options.count or options.credit),
        )
        try:
            count = _print_all(inbox, options)
        finally:
            if options.forget and (options.name or options.group):
                node.delete_receiver(options.topic, options.name or options.group)
    return output.DONE if options.count is None or count == options.count else output.REFUSED


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _print_all(inbox: Any, options: argparse.Namespace) -> int:
    """Prints until there were enough, time is up, or somebody interrupts; how many there were."""
    count = 0
    ends = None if options.seconds is None else time.monotonic() + options.seconds
    while options.count is None or count < options.count:
        left = LOOK_S if ends is None else min(LOOK_S, ends - time.monotonic())
        if left <= 0:
            break
        try:
            delivery = inbox.receive(timeout=left)
        except TimeoutError:
            continue
        with delivery:
            _print(delivery, options)
        count += 1
    return count


def _print(delivery: Any, options: argparse.Namespace) -> None:
    if options.raw:
        sys.stdout.buffer.write(delivery.payload + b"\n")
        sys.stdout.buffer.flush()
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
        shown = shown_payload(delivery.payload)
        again = f" (attempt {delivery.attempt})" if delivery.attempt > 1 else ""
        payload = shown.get("payload", shown.get("payload_base64"))
        output.say(f"{' '.join(delivery.subjects)}{again}\t{payload}")


def shown_payload(payload: bytes) -> dict[str, str]:
    """A payload as text or, where it is none, in base64."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}
