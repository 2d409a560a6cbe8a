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
    name_of(options)
    with context.connect(options) as node:
        parked = list(_parked(node, options))
        if options.payload:
            for each in parked:
                each |= _payload(node, options, each["sequence"])
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


def _parked(node: BlockingNode, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    after = 0
    while True:
        told = node.query("list_parked", options.topic, after, timeout=options.timeout)
        page = told.get("parked", ())
        if not page:
            return
        yield from map(dict, page)
        after = page[-1]["position"]


def _payload(node: BlockingNode, options: argparse.Namespace, sequence: int) -> dict[str, Any]:
    try:
        read = node.fetch(options.topic, sequence, timeout=options.timeout)
    except PeerError as error:
        return {"payload": f"({error.code})"}
    return shown_payload(read.payload)


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
        chosen = _chosen(list(_parked(node, options)), options)
        if options.all and options.receiver is None:
            every(node, topic, timeout=options.timeout)
        else:
            for count, each in enumerate(chosen):
                try:
                    # For its receiver alone: the message may be alive for others.
                    where = (topic, each["sequence"], each["receiver"] or None)
                    one(node, *where, timeout=options.timeout)
                except PeerError as error:
                    said = output.refusal(error.code, error.detail)
                    before = f" {count} before it were {done}." if count else ""
                    raise output.CommandError(said + before) from error
    if options.json:
        output.say_json({"topic": options.topic, done: len(chosen)})
    else:
        output.say(f"{done} {len(chosen)}")
    return output.DONE


def _chosen(parked: list[dict[str, Any]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Those of the parked deliveries that a command is about; it may name no others."""
    chosen = [
        each
        for each in parked
        if (options.all or each["sequence"] in options.sequences)
        and options.receiver in (None, each["receiver"])
    ]
    others = set(options.sequences) - {each["sequence"] for each in chosen}
    if others:
        whom = f" for {options.receiver}" if options.receiver is not None else ""
        raise output.CommandError(
            f"{', '.join(map(str, sorted(others)))}: not parked{whom}. Nothing was changed; "
            "`asterism parked list` shows what is parked."
        )
    return chosen
