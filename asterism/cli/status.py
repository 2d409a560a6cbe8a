"""``asterism status``: every process of a broker, as it says of itself."""

import argparse
import time
from typing import Any, Final

import asterism
from asterism.cli import context, output

NO_ANSWER: Final = "does not answer; it is being restarted, or its log says why"


def run(options: argparse.Namespace) -> int:
    with context.connect(options) as node:
        before, asked = ask_all(node, options.timeout), time.monotonic()
        time.sleep(options.interval)
        seconds = time.monotonic() - asked
        processes = ask_all(node, options.timeout)
        for name, status in processes.items():
            status["rates"] = rates(before.get(name, {}), status, seconds)
    if options.json:
        output.say_json({"address": node.address, "processes": processes})
    else:
        output.say(f"Asterism at {node.address}")
        output.say(as_table(processes))
    missing = [name for name, status in processes.items() if "problem" in status]
    return output.REFUSED if missing else output.DONE


def ask_all(node: asterism.BlockingNode, timeout_s: float) -> dict[str, dict[str, Any]]:
    """What each process says of itself, by its name; ``problem`` for one that says nothing."""
    told = node.status(timeout=timeout_s)
    found = {"frontend": told["frontend"], "interests": told["interests"]}
    found |= {f"worker-{number}": status for number, status in enumerate(told["workers"])}
    return {name: dict(status or {"problem": NO_ANSWER}) for name, status in found.items()}


def rates(before: dict[str, Any], after: dict[str, Any], seconds: float) -> dict[str, float]:
    """How fast the totals of a process grew; none over its restart."""
    if before.get("pid") != after.get("pid"):
        return {}
    totals: dict[str, Any] = after.get("totals") or {}
    earlier: dict[str, Any] = before.get("totals") or {}
    return {
        name: round((total - earlier[name]) / seconds, 1)
        for name, total in totals.items()
        if name in earlier
    }


def as_table(processes: dict[str, dict[str, Any]]) -> str:
    rows: list[list[object]] = []
    for name, status in processes.items():
        if "problem" in status:
            rows.append([name, None, None, None, status["problem"]])
            continue
        shown = [f"{what} {output.shown_rate(rate)}" for what, rate in status["rates"].items()]
        rows.append(
            [
                name,
                status["pid"],
                output.shown_duration(status["uptime_ms"]),
                output.shown_bytes(status["memory_bytes"]),
                ", ".join(shown),
            ]
        )
    total = sum(status.get("memory_bytes", 0) for status in processes.values())
    rows.append(["all", None, None, output.shown_bytes(total), ""])
    return output.table(["process", "pid", "uptime", "memory", "rates"], rows)
