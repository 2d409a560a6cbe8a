"""``asterism parked``: what has failed for good and waits for a person."""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

from asterism.cli import context, output
from asterism.cli.subscribe import payload_line, shown_payload
from asterism.cli.topics import name_of
from asterism.errors import PeerError
from asterism.sdk.client import BlockingNode


def list_all(options: argparse.Namespace) -> int:
    topic = name_of(options)
    with context.connect(options) as node:
        parked = list(_parked(node, topic))
        if options.payload:
            for each in parked:
                each |= _payload(node, topic, each["sequence"])
    if options.json:
        output.say_json({"topic": options.topic, "parked": parked})
        return output.DONE
    head = ["sequence", "receiver", "attempts", "failed", "reason"]
    rows = [
        [
            each["sequence"],
            each["receiver"] or "-",
            each["attempts"],
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["failed_ms"] / 1_000)),
            each["reason"],
            *([payload_line(each)] if options.payload else []),
        ]
        for each in parked
    ]
    output.say(output.table([*head, *(["payload"] if options.payload else [])], rows))
    return output.DONE


def _parked(node: BlockingNode, topic: str) -> Iterator[dict[str, Any]]:
    after = 0
    while True:
        page = node.list_parked(topic, after=after)
        if not page:
            return
        yield from map(dict, page)
        after = page[-1]["position"]


def _payload(node: BlockingNode, topic: str, sequence: int) -> dict[str, Any]:
    try:
        return shown_payload(node.fetch(topic, sequence)["payload"])
    except PeerError as error:
        return {"payload": f"({error.code})"}


def renew(options: argparse.Namespace) -> int:
    return _each(options, "renewed", BlockingNode.renew, BlockingNode.renew_all)


def abandon(options: argparse.Namespace) -> int:
    return _each(options, "abandoned", BlockingNode.abandon, BlockingNode.abandon_all)


def _each(
    options: argparse.Namespace, done: str, one: Callable[..., None], every: Callable[..., None]
) -> int:
    if bool(options.sequences) == options.all:
        raise output.CommandError("name sequences, or --all of them", output.WRONG_USE)
    topic = name_of(options)
    with context.connect(options) as node:
        if options.all and options.receiver is None:
            count = sum(1 for _ in _parked(node, topic))
            every(node, topic)
        else:
            sequences = options.sequences or [
                each["sequence"]
                for each in _parked(node, topic)
                if each["receiver"] == options.receiver
            ]
            for sequence in sequences:
                one(node, topic, sequence, options.receiver)
            count = len(sequences)
    if options.json:
        output.say_json({"topic": options.topic, done: count})
    else:
        output.say(f"{done} {count}")
    return output.DONE
