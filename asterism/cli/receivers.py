"""``asterism receiver``: list, show, seek, delete."""

import argparse
from collections.abc import Iterator
from typing import Any, Final

import asterism
from asterism import limits
from asterism.cli import context, output
from asterism.cli.topics import confirm, done, name_of, told_lag
from asterism.errors import PeerError

COLUMNS: Final = (
    *("name", "durable", "online", "endpoints", "interests", "credit", "lag", "out", "oldest"),
    "parked",
)


def _receivers(
    node: asterism.BlockingNode, topic: str, timeout_s: float
) -> Iterator[dict[str, Any]]:
    """Those of a topic, as the broker says them."""
    after = ""
    while True:
        told = node.query("list_receivers", topic, after, timeout=timeout_s)
        yield from (page := told.get("receivers", ()))
        if len(page) < limits.LIST_MAX:
            return
        after = page[-1]["name"]


def list_all(options: argparse.Namespace) -> int:
    topic = name_of(options)
    with context.connect(options) as node:
        found = list(_receivers(node, topic, options.timeout))
    if options.json:
        output.say_json({"topic": topic, "receivers": found})
    else:
        rows = [[_column(each, column) for column in COLUMNS] for each in found]
        output.say(output.table(COLUMNS, rows))
    return output.DONE


def _column(receiver: dict[str, Any], column: str) -> str:
    return told_lag(receiver).get(column) or _shown(receiver[column])


def show(options: argparse.Namespace) -> int:
    topic = name_of(options)
    with context.connect(options) as node:
        found = list(_receivers(node, topic, options.timeout))
    receiver = next((each for each in found if each["name"] == options.name), None)
    if receiver is None:
        raise PeerError("no_such_receiver", f"{options.name!r} is not a receiver of {topic!r}")
    if options.json:
        output.say_json({"topic": topic, **receiver})
        return output.DONE
    output.say(output.shown_text(receiver["name"]))
    for name, value in (receiver | told_lag(receiver)).items():
        if name in ("oldest_ms", "counted"):
            continue  # told with the others
        if name.endswith("_ms"):
            name, value = name.removesuffix("_ms"), f"{value / 1_000:g} s"
        if name != "name":
            output.say(f"  {name:24} {output.shown_text(_shown(value))}")
    return output.DONE


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(value) if isinstance(value, list | tuple) else str(value)


def seek(options: argparse.Namespace) -> int:
    topic = name_of(options)
    with context.connect(options) as node:
        sequence = node.seek(
            topic,
            options.name,
            sequence=options.sequence,
            time=options.time,
            timeout=options.timeout,
        )
    value = {"topic": topic, "receiver": options.name, "sequence": sequence}
    return done(options, f"{options.name} of {topic} is at {sequence}", value)


def delete(options: argparse.Namespace) -> int:
    topic = name_of(options)
    confirm(options, f"Delete {options.name} of {topic}, and what waits for it?")
    with context.connect(options) as node:
        node.delete_receiver(topic, options.name, timeout=options.timeout)
    value = {"topic": topic, "deleted": options.name}
    return done(options, f"deleted {options.name} of {topic}", value)
