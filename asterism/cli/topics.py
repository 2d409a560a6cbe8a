"""``asterism topic``: create, list, show, set, clear, delete."""

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from asterism import checks
from asterism.cli import context, output
from asterism.config import KEYS, MAY_BE_NONE
from asterism.errors import PeerError
from asterism.options import TOPIC_NAMES, topic_overrides, unknown

_COUNTS = ("waiting", "sent", "received", "parked", "drafting", "completed")


def name_of(options: argparse.Namespace) -> str:
    """The topic that a command is about, checked before anybody connects."""
    return checks.topic_name(options.topic)


def settings_from(given: Iterable[str]) -> dict[str, Any]:
    """Settings as NAME=VALUE words, by the names of the configuration; checked."""
    settings: dict[str, Any] = {}
    for word in given:
        name, equals, text = word.partition("=")
        key = f"topic.{name}"
        if not equals:
            raise PeerError("bad_request", f"{checks.shown(word)} is not NAME=VALUE")
        if text.lower() in ("none", "") and key in MAY_BE_NONE:
            settings[name] = None
            continue
        if key not in KEYS:
            known = [known.removeprefix("topic.") for known in KEYS if known.startswith("topic.")]
            raise PeerError("bad_request", unknown("topic setting", name, known))
        table, dot, inner = name.partition(".")
        value = KEYS[key](text)
        if not dot:
            settings[name] = value
        elif settings.get(table) is None:
            settings[table] = {inner: value}
        else:
            settings[table][inner] = value
    topic_overrides(settings)
    return settings


def create(options: argparse.Namespace) -> int:
    settings = settings_from(options.settings)
    topic = name_of(options)
    with context.connect(options) as node:
        node.create_topic(topic, timeout=options.timeout, **settings)
    return done(options, f"created {options.topic}", {"created": options.topic})


def list_all(options: argparse.Namespace) -> int:
    described: list[dict[str, Any]] = []
    with context.connect(options) as node:
        names = list(node.list_topics(timeout=options.timeout))
        if options.long:
            for name in names:
                try:
                    described.append(node.query("describe", name, timeout=options.timeout))
                except PeerError as error:
                    if error.code != "no_such_topic":  # deleted since it was listed
                        raise
    if options.json:
        output.say_json({"topics": described if options.long else names})
    elif options.long:
        rows = [[each["topic"], *(each[count] for count in _COUNTS)] for each in described]
        output.say(output.table(["topic", *_COUNTS], rows))
    else:
        for name in names:
            output.say(name)
    return output.DONE


def show(options: argparse.Namespace) -> int:
    topic = name_of(options)
    with context.connect(options) as node:
        described = node.query("describe", topic, timeout=options.timeout)
    if options.json:
        output.say_json(described)
        return output.DONE
    output.say(described["topic"])
    rows = [[count, described[count]] for count in _COUNTS]
    rows += [
        [name, described[name]] for name in ("kept", "receivers", "endpoints", "next_sequence")
    ]
    oldest_ms = described["oldest_waiting_ms"]
    rows.append(["oldest waiting", oldest_ms if oldest_ms is None else f"{oldest_ms / 1_000:g} s"])
    rows += [[f"{name} per second", f"{rate:.1f}"] for name, rate in described["rates"].items()]
    for name, value in rows:
        output.say(f"  {name:24} {'-' if value is None else value}")
    _say_lags(described)
    own = set(described["overrides"])
    output.say("settings (* set on this topic)")
    for name, value in described["settings"].items():
        mark = "*" if name in own or f"{name}_ms" in own else " "
        output.say(f" {mark}{name:24} {_setting(value)}")
    return output.DONE


def _say_lags(described: dict[str, Any]) -> None:
    lags = described["lags"]
    if not lags:
        return
    some = f" ({len(lags)} of {described['receivers']}, those with the largest)"
    output.say(f"lags{some if len(lags) < described['receivers'] else ''}")
    rows = [[name, *told_lag(lag).values()] for name, lag in lags.items()]
    for line in output.table(["receiver", "lag", "out", "oldest"], rows).splitlines():
        output.say(f"  {line}")


def told_lag(lag: dict[str, Any]) -> dict[str, str]:
    """A lag as people read it; a tilde is before what the broker knows only about."""
    near = "" if lag["counted"] else "~"
    return {
        "lag": f"{near}{lag['lag']}",
        "out": str(lag["out"]),
        "oldest": "-" if lag["oldest_ms"] is None else f"{near}{lag['oldest_ms'] / 1_000:g} s",
    }


def _setting(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={_setting(inner)}" for name, inner in value.items())
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def change(options: argparse.Namespace) -> int:
    settings = settings_from(options.settings)
    for name in options.inherit:
        if name not in TOPIC_NAMES:
            raise PeerError("bad_request", unknown("topic setting", name, TOPIC_NAMES))
    if not settings and not options.inherit:
        raise output.CommandError("name a setting, as NAME=VALUE or --inherit NAME", 2)
    topic = name_of(options)
    with context.connect(options) as node:
        # A mistyped name would make a topic, where topics come to be when they are first used.
        node.describe(topic, timeout=options.timeout)
        node.configure(topic, inherit=options.inherit, timeout=options.timeout, **settings)
    return done(options, f"changed {options.topic}", {"changed": options.topic})


def clear(options: argparse.Namespace) -> int:
    topic = name_of(options)
    confirm(options, f"Drop every message of {options.topic}?")
    with context.connect(options) as node:
        node.clear(topic, timeout=options.timeout)
    return done(options, f"cleared {options.topic}", {"cleared": options.topic})


def delete(options: argparse.Namespace) -> int:
    topic = name_of(options)
    confirm(options, f"Delete {options.topic}, its messages and its receivers?")
    with context.connect(options) as node:
        node.delete_topic(topic, timeout=options.timeout)
    return done(options, f"deleted {options.topic}", {"deleted": options.topic})


def confirm(options: argparse.Namespace, question: str) -> None:
    """Asks a person; a script, whom nobody can ask, says --yes."""
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise output.CommandError("this drops messages: say --yes if that is wanted", 2)
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise output.CommandError("nothing was changed")


def done(options: argparse.Namespace, line: str, value: dict[str, Any]) -> int:
    """Says what was done, to a person or to a machine."""
    if options.json:
        output.say_json(value)
    else:
        output.say(line)
    return output.DONE
