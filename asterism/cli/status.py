"""``asterism status``: what each process of a broker reports, and which clients its doors have.

Doors do not report through the broker: this reads their files in the data folder, asks the system
about their processes, and lists their clients by the function in the door's record.
"""

import argparse
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import asterism
from asterism.cli import context, output
from asterism.config import ConfigError
from asterism.process_host import read_run_file
from asterism.running import FRONTEND, all_doors, running_names

NO_ANSWER: Final = "does not answer; it is being restarted, or its log says why"
CLIENTS_SHOWN_MAX: Final = 100  # of a door, to people; --json has all of them
NAME_SHOWN_MAX: Final = 64  # characters of a client's name, to people


def run(options: argparse.Namespace) -> int:
    with context.connect(options) as node:
        before, asked = ask_all(node, options.timeout), time.monotonic()
        time.sleep(options.interval)
        seconds = time.monotonic() - asked
        processes = ask_all(node, options.timeout)
        for name, status in processes.items():
            status["rates"] = rates(before.get(name, {}), status, seconds)
    here = _doors_of(options, node.address)
    for status in here.values():
        status |= clients_of(status, None if options.json else CLIENTS_SHOWN_MAX, options.timeout)
    processes |= here
    if options.json:
        output.say_json({"address": node.address, "processes": processes})
    else:
        output.say(f"Asterism at {node.address}")
        output.say(as_table(processes))
        for line in stores_away(processes):
            output.say(line)
        for name, status in here.items():
            for line in clients_as_lines(name, status):
                output.say(line)
    unwell = {"problem", "clients_problem"}
    missing = [name for name, status in processes.items() if status.keys() & unwell]
    return output.REFUSED if missing or stores_away(processes) else output.DONE


def stores_away(processes: dict[str, dict[str, Any]]) -> list[str]:
    """What the workers say of stores that they cannot use: the topics in them are away."""
    return [
        f"{name}: {said}"
        for name, status in processes.items()
        for said in (status.get("stores") or {}).values()
        if said != "open"
    ]


def _doors_of(options: argparse.Namespace, address: str) -> dict[str, dict[str, Any]]:
    """The doors of a broker, if it is that of the configured data folder."""
    try:
        folder = context.data_folder(context.configuration(options))
    except ConfigError:  # which the broker at a given address has nothing to do with
        return {}
    return doors(folder / "run") if context.said_address(folder) == address else {}


def ask_all(node: asterism.BlockingNode, timeout_s: float) -> dict[str, dict[str, Any]]:
    """What each process says of itself, by its name; ``problem`` for one that says nothing."""
    told = node.query_status(timeout=timeout_s)
    found = {FRONTEND: told["frontend"], "interests": told["interests"]}
    for number, status in enumerate(told["workers"]):
        found[f"worker-{number}"] = status
        for topic, own in ((status or {}).get("dedicated") or {}).items():
            name = f"dedicated-{own['number']}"
            try:
                found[name] = {"topic": topic, **node.query_process(name, timeout=timeout_s)}
            except (TimeoutError, asterism.BrokerError):
                found[name] = None
    return {name: dict(status or {"problem": NO_ANSWER}) for name, status in found.items()}


def doors_in(names: Iterable[str], door: str) -> list[str]:
    """The processes of a door: there may be several, with its name and with more behind it."""
    return [name for name in names if name == door or name.startswith(f"{door}-")]


def doors(run_folder: Path) -> dict[str, dict[str, Any]]:
    """The doors that run by this run folder, and what the system knows of them."""
    running = running_names(run_folder)
    found: dict[str, dict[str, Any]] = {}
    for door in all_doors().values():
        for name in doors_in(running, door.name):
            said = read_run_file(run_folder, name)
            system = of_system(running[name])
            where = said.get(door.shows)
            own = {"process": name, "door": door.name}
            found[name] = {**own, **said, "where": where, **system, "rates": {}}
    return found


def clients_of(status: Mapping[str, Any], most: int | None, timeout_s: float) -> dict[str, Any]:
    """The clients of a door's process, at most this many; nothing for a door that lists none."""
    try:
        told = all_doors()[status["door"]].clients(status, most, timeout_s)
    except OSError as error:
        return {"clients_problem": str(error) or type(error).__name__}
    if told is None:
        return {}
    return {"clients_total": told.total, "clients": [each._asdict() for each in told.listed]}


def clients_as_lines(name: str, status: Mapping[str, Any]) -> Iterator[str]:
    """The clients of a process of a door, for people."""
    if "clients_problem" in status:
        yield f"\nclients of {name}: not known: {status['clients_problem']}"
    elif status.get("clients"):
        total, listed = status["clients_total"], status["clients"][:CLIENTS_SHOWN_MAX]
        yield f"\nclients of {name}: {total:,}"
        head = ["name", "address", "subscriptions", "messages in", "messages out"]
        numbers = ("subscriptions", "messages_in", "messages_out")
        yield output.table(
            head,
            [
                [
                    each["name"][:NAME_SHOWN_MAX] or None,
                    each["address"],
                    *(f"{each[key]:,}" for key in numbers),
                ]
                for each in listed
            ],
        )
        if total > len(listed):
            yield f"and {total - len(listed):,} more"
    elif "clients_total" in status:
        yield f"\nclients of {name}: none"


def of_system(pid: int) -> dict[str, int]:
    """How long a process has been there, and its memory; nothing of one that is gone."""
    try:
        # What comes after the name, which may hold anything; the 22nd field is when it started.
        begun = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
        uptime_s = float(Path("/proc/uptime").read_bytes().split()[0])
    except (OSError, IndexError, ValueError):
        return {}
    begun_s = begun / os.sysconf("SC_CLK_TCK")
    return {
        "uptime_ms": max(0, round((uptime_s - begun_s) * 1_000)),
        "memory_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
    }


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
        uptime_ms, memory_bytes = status.get("uptime_ms"), status.get("memory_bytes")
        rows.append(
            [
                name,
                status["pid"],
                None if uptime_ms is None else output.shown_duration(uptime_ms),
                None if memory_bytes is None else output.shown_bytes(memory_bytes),
                _doing(status),
            ]
        )
    total = sum(status.get("memory_bytes", 0) for status in processes.values())
    rows.append(["all", None, None, output.shown_bytes(total), ""])
    return output.table(["process", "pid", "uptime", "memory", "rates"], rows)


def _doing(status: dict[str, Any]) -> str:
    """What a process does: its rates, behind the topic that it is for, or where a door is."""
    shown = [f"{what} {output.shown_rate(rate)}" for what, rate in status["rates"].items()]
    whose = [f"topic {status['topic']}"] if "topic" in status else []
    where = [str(status["where"])] if status.get("where") else []
    disk = status.get("disk") or {}
    free = output.shown_bytes(disk.get("free_bytes", 0))
    held = [f"publishing is held: {free} free"] if disk.get("publishing_held") else []
    return ", ".join([*whose, *shown, *where, *held])
