"""Hostile clients at the NATS door, while an ordinary pair of clients goes on asking and answering.

    python -m tests.fault.nats_hostile --minutes 5 --seed 7 [--kinds tiny,groups] [--json FILE]

As ``tests.fault.hostile`` has it for the broker: the kinds of ``tests.fault.nats_hostile_kinds``
come in turn, and then all of them together. Meanwhile one client of ``nats-py`` asks another one
thing after the other, through the door. It is judged:

P1  No process of the broker dies.
P2  No process holds more memory than its bound.
P3  Every request is answered.
P4  What is wrong is answered by -ERR or by the end of the connection, before and after all this.

How long an answer takes is reported beside the time that it takes with no hostile client there. It
is not judged: machines differ. A hostile client stands for one on another machine (``SCHED_IDLE``);
with ``--near`` it shares this machine as any other program does.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import nats

from asterism.testing import Broker
from tests.fault.hostile import (
    BOUNDS_MB,
    Measured,
    Phase,
    Result,
    Watch,
    await_ready,
    busy,
    figures_of,
    phases_of,
    table,
    wait,
)
from tests.fault.hostile_kinds import Target
from tests.fault.killing import Client, Notes, Tell, told_on_a_terminal
from tests.fault.nats_hostile_kinds import GARBAGE, KINDS

SUBJECT: Final = "ordinary.service"
ANSWER_S: Final = 30.0  # for an answer; one that takes longer is lost
GARBAGE_S: Final = 10.0  # for what is wrong to be answered
NATS_MB: Final = 1_000  # half of it is what clients have not read yet (PENDING_ALL_MAX)
NATS_BOUNDS_MB: Final = {**BOUNDS_MB, "nats": NATS_MB}


# --- the ordinary pair ----------------------------------------------------------------------------


async def ask(url: str, notes: Notes) -> None:
    """Asks one thing after the other; how long each answer took, and when."""
    answering = await nats.connect(url)
    asking = await nats.connect(url)

    async def answer(message: Any) -> None:
        await message.respond(message.data)

    await answering.subscribe(SUBJECT, cb=answer)
    for _ in range(2):  # the PING of the first one may overtake the SUB, in this client
        await answering.flush(timeout=round(ANSWER_S))
    notes.add("ready")
    number = 0
    while True:
        number += 1
        began = time.monotonic()
        try:
            await asking.request(SUBJECT, b"%d" % number, timeout=ANSWER_S)
        except Exception as error:  # of nats-py: each is a request without its answer
            notes.add("lost", number, repr(error), time.monotonic() - began)
            continue
        notes.add("answered", number, began, time.monotonic() - began)


async def run_pair(job: dict[str, Any]) -> None:
    """Asks until its standard input says something, or ends."""
    loop = asyncio.get_running_loop()
    with open(job["notes"], "w") as file:
        task = asyncio.create_task(ask(job["url"], Notes(file)))

        def on_input() -> None:
            os.read(0, 1)
            loop.remove_reader(0)
            task.cancel()

        loop.add_reader(0, on_input)
        with suppress(asyncio.CancelledError):
            await task


# --- what is wrong, and what is said of it --------------------------------------------------------


def wrongly_answered(port: int) -> list[str]:
    """Kinds of garbage that the door does not answer as it should."""
    return [
        f"{name} is answered by {said!r}"
        for name, (data, sentence) in GARBAGE.items()
        if (said := _answer_to(port, data)) is None or sentence not in said
    ]


def _answer_to(port: int, data: bytes) -> bytes | None:
    """What is said until the connection ends; nothing if it does not end, or nobody greets."""
    with suppress(TimeoutError), socket.create_connection(("127.0.0.1", port), GARBAGE_S) as one:
        said = b""
        while b"\r\n" not in said:
            said = one.recv(4_096)
        return _said_to(one, data)
    return None


def _said_to(one: socket.socket, data: bytes) -> bytes | None:
    deadline = time.monotonic() + GARBAGE_S
    one.setblocking(False)
    said = b""
    while time.monotonic() < deadline:
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            data = data[one.send(data[: 1 << 16]) :] if data else b""
        try:
            more = one.recv(4_096)
        except BlockingIOError:
            time.sleep(0.001)
        except ConnectionResetError:
            return said
        else:
            said += more
            if not more:
                return said
    return None


# --- a run ----------------------------------------------------------------------------------------


def run(
    phases: list[Phase],
    seed: int,
    folder: Path,
    bounds_mb: Mapping[str, int] = NATS_BOUNDS_MB,
    tell: Tell = lambda line: None,
    near: bool = False,
) -> Result:
    """Runs the phases against a broker of its own."""
    chance = random.Random(seed)
    measured: list[Measured] = []
    with ExitStack() as stack:
        config = {"nats": {"monitor": "127.0.0.1:0"}}
        broker = stack.enter_context(Broker(doors=("nats",), config=config))
        stack.callback(lambda: (folder / "broker.log").write_text(broker.logs()))
        urls = str(broker.nats_url), str(broker.nats_monitor_url)
        port, monitor_port = (int(url.rpartition(":")[2].rstrip("/")) for url in urls)
        target = Target(port, monitor_port)
        wrong = [f"before: {line}" for line in wrongly_answered(target.port)]
        job = {"part": SUBJECT, "name": "pair", "number": 1, "url": urls[0]}
        job["notes"] = str(folder / "pair.notes")
        pair = Client(job, "tests.fault.nats_hostile")
        stack.callback(pair.end)
        await_ready(pair)
        watch = stack.enter_context(Watch(broker))
        for phase in phases:
            tell(f"{phase.name}: {phase.seconds:.0f} s, {len(pair.lines):,} notes")
            began = time.monotonic()
            with busy(phase, target, chance, near, "tests.fault.nats_hostile_kinds"):
                wait(pair, phase.seconds)
                ended = time.monotonic()
            measured.append(Measured(phase, began, ended, *watch.take()))
        pair.end()
        wrong += [f"after: {line}" for line in wrongly_answered(target.port)]
    return _judge(measured, pair, wrong, bounds_mb)


def _judge(
    measured: list[Measured], pair: Client, wrong: list[str], bounds_mb: Mapping[str, int]
) -> Result:
    waits = [(line[2], line[3] * 1_000) for line in pair.lines if line[0] == "answered"]
    wrong = wrong + [f"no answer: {line[1:]}" for line in pair.lines if line[0] == "lost"]
    figures, broken = figures_of(measured, waits, bounds_mb)
    return Result(figures, len(waits), wrong + broken)


# --- the command ----------------------------------------------------------------------------------


def _kinds(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    for kind in chosen:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"there is no {kind!r}: {', '.join(KINDS)}")
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fault.nats_hostile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=None, help="by default another every time")
    parser.add_argument("--kinds", type=_kinds, default=tuple(KINDS), help=", ".join(KINDS))
    parser.add_argument(
        "--near", action="store_true", help="hostile clients take their share of this machine"
    )
    parser.add_argument("--json", metavar="FILE", help="where the figures go as JSON")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        asyncio.run(run_pair(json.loads(options.job)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no hostile client is left behind
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    folder = Path(tempfile.mkdtemp(prefix="asterism-nats-hostile-"))
    phases = phases_of(options.minutes, options.kinds)
    with told_on_a_terminal() as tell:
        result = run(phases, seed, folder, tell=tell, near=options.near)
    sys.stdout.write(f"{table(result.figures)}\n")
    sys.stdout.write("".join(f"WRONG: {line}\n" for line in result.wrong))
    sys.stdout.write(f"{result.accepted:,} answered, seed {seed}; notes and logs are in {folder}\n")
    if options.json:
        report = [one._asdict() for one in result.figures]
        content = {"figures": report, "wrong": result.wrong, "seed": seed}
        Path(options.json).write_text(json.dumps(content, indent=2) + "\n")
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
