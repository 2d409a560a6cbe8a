"""``asterism bench``: what a broker can do here, in figures, and beside other brokers."""

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from asterism.cli import output
from asterism.cli.bench_cases import CASES, OWN_BROKER, Bench, Options, Peer, soak
from asterism.cli.bench_clients import BenchError
from asterism.cli.bench_jetstream import JetStream
from asterism.cli.bench_peers import Nats, RedisStreams
from asterism.cli.bench_rabbitmq import RabbitMQ
from asterism.cli.bench_report import Bar, Report, machine
from asterism.running import StartError, check_installed
from asterism.testing import Broker

SIZE_MIN: Final = 8  # a payload carries the moment it was published
PEERS: Final[Mapping[str, Callable[[], Peer]]] = {
    "redis": RedisStreams,
    "nats": Nats,
    "jetstream": JetStream,
    "rabbitmq": RabbitMQ,
}


def main(
    arguments: Sequence[str], more_peers: Mapping[str, Callable[[], Peer]] | None = None
) -> int:
    """Runs the benchmark; its exit code. ``more_peers`` can be named in ``--peers`` as well."""
    known = {**PEERS, **(more_peers or {})}
    given = parser(known).parse_args(list(arguments))
    options = Options(
        **{name: getattr(given, name) for name in Options.__dataclass_fields__ if name in given}
    )
    cases = given.cases or [name for name in CASES if not (given.address and name in OWN_BROKER)]
    report = Report()
    _check_installed(given.address, cases)
    _check_paths(given.folder, given.json)
    if given.folder:
        tempfile.tempdir = given.folder  # for the broker, and for every peer
    facts = machine(tempfile.gettempdir())
    if facts["filesystem"] in ("tmpfs", "ramfs"):
        report.note("the temporary folder is in memory, where a sync costs nothing: see --folder")
    run(given.address, cases, [known[name]() for name in given.peers], options, report)
    _show(given.json, report, {**asdict(options), "cases": cases, "peers": given.peers}, facts)
    return output.REFUSED if any(map(_is_failure, report.notes)) else output.DONE


def run(
    address: str | None,
    cases: Sequence[str],
    peers: Sequence[Peer],
    options: Options,
    report: Report,
) -> None:
    """Runs cases, those of the peers beside them, into a report."""
    work: dict[str, Callable[[Bench], object]] = {name: CASES[name] for name in cases}
    if options.soak:
        work["soak"] = soak
    bar = Bar(len(work))
    with ExitStack() as stack:
        stack.callback(bar.clear)
        bar.begin("starting")
        broker = None
        if address is None and set(work) - OWN_BROKER:
            try:
                broker = stack.enter_context(Broker(workers=options.workers))
            except StartError as error:
                raise output.CommandError(f"no broker of its own: {error}") from error
            address = broker.address
        bench = Bench(options, address or "", broker, report, bar)
        stack.callback(bench.close)
        if set(work) - OWN_BROKER:
            _check_reachable(bench)
            _start_peers(bench, peers, stack)
        for name, case in work.items():
            bar.begin(name)
            _run_case(bench, name, case)
            bar.end_case()


def _check_reachable(bench: Bench) -> None:
    try:
        bench.publisher.ask("memory")
    except BenchError as error:
        raise output.CommandError(
            f"{bench.address}: {error}. Start a broker with `asterism up`, or leave --address out.",
            output.UNREACHABLE,
        ) from error


def _start_peers(bench: Bench, peers: Sequence[Peer], stack: ExitStack) -> None:
    for peer in peers:
        missing = peer.missing()
        if missing:
            bench.report.note(f"without {peer.name}: {missing}")
            continue
        stack.callback(peer.stop)
        try:
            bench.peers[peer.name] = peer.start(bench.options.size)
        except BenchError as error:
            bench.report.note(f"without {peer.name}: {error}")


def _run_case(bench: Bench, name: str, case: Callable[[Bench], object]) -> None:
    """Runs a case; one that goes wrong is noted, and the others go on."""
    try:
        case(bench)
        bench.end_case()
    except (BenchError, StartError) as error:
        bench.report.note(f"{name} failed: {error}")
        bench.drop_clients()


def _is_failure(note: str) -> bool:
    return " failed: " in note


def _show(path: str | None, report: Report, options: dict[str, Any], facts: dict[str, Any]) -> None:
    text = report.as_json(options, facts)
    if path == "-":
        output.say(text)
        return
    output.say(
        f"Python {facts['python']}, {facts['system']}, {facts['cores']} cores, load "
        f"{facts['load'][0]}; {facts['filesystem']}, a sync takes {facts['sync_us']:,} µs; "
        f"{options['size']}-byte messages, medians of {options['rounds']} rounds"
    )
    output.say(report.table())
    for note in report.notes:
        output.warn(f"note: {note}")
    if path:
        Path(path).write_text(text + "\n", encoding="utf-8")


def _check_installed(address: str | None, cases: Sequence[str]) -> None:
    """Says before the run what a broker of its own needs."""
    if address is not None and not set(cases) & OWN_BROKER:
        return
    try:
        check_installed()
    except StartError as error:
        message = f"{error}. A broker that runs can be measured without it: --address."
        raise output.CommandError(message, output.WRONG_USE) from None


def _check_paths(folder: str | None, file: str | None) -> None:
    """Says before the run, not after it, what cannot be written to."""
    try:
        if folder:
            with tempfile.TemporaryFile(dir=folder):
                pass
        if file and file != "-":
            Path(file).touch()
    except OSError as error:
        message = f"{error.filename}: cannot be written to: {error.strerror}"
        raise output.CommandError(message, output.WRONG_USE) from error


# --- arguments ------------------------------------------------------------------------------------


def parser(peers: Mapping[str, object]) -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:11} {_first_line(case)}" for name, case in CASES.items())
    whole = argparse.ArgumentParser(
        prog="asterism bench",
        description="Measure a broker: one publisher process, one consumer process, real clients.\n"
        "Without --address it is a broker of its own in a temporary folder.",
        epilog=f"cases:\n{listed}\n\nMore in docs/benchmarks.md.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = Options()
    add = whole.add_argument
    add("--cases", type=_names(CASES), metavar="NAME,…", help="some of the cases (default: all)")
    add(
        "--messages",
        type=_whole(1),
        default=defaults.messages,
        metavar="N",
        help="messages a round; slow cases take a part of it (default: %(default)s)",
    )
    add("--size", type=_whole(SIZE_MIN), default=defaults.size, metavar="BYTES",
        help="of a payload (default: %(default)s)")  # fmt: skip
    add("--rounds", type=_whole(1), default=defaults.rounds, metavar="N",
        help="each figure is the median of so many (default: %(default)s)")  # fmt: skip
    add(
        "--peers",
        type=_names(peers),
        default=[],
        metavar="NAME,…",
        help=f"measure these beside it: {', '.join(peers)}",
    )
    add("--soak", type=_minutes, default=0.0, metavar="MINUTES",
        help="at the end, half of the highest rate for so long")  # fmt: skip
    add("--address", metavar="ADDRESS", help="a broker that runs, as tcp://127.0.0.1:7700")
    add("--json", metavar="FILE", help="write all figures there; - is standard output")
    add("--folder", metavar="FOLDER", help="where the temporary folders are made")
    add("--workers", type=_whole(1), default=defaults.workers, metavar="N",
        help="of its own broker (default: %(default)s)")  # fmt: skip
    add("--credit", type=_whole(1), default=defaults.credit, metavar="N",
        help="of each consumer (default: %(default)s)")  # fmt: skip
    add("--topics", type=_whole(1), default=defaults.topics, metavar="N",
        help="in the case topics (default: %(default)s)")  # fmt: skip
    add("--endpoints", type=_whole(1), default=defaults.endpoints, metavar="N",
        help="in the case endpoints (default: %(default)s)")  # fmt: skip
    return whole


def _first_line(case: Callable[[Bench], object]) -> str:
    return (case.__doc__ or "").partition("\n")[0]


def _names(known: Mapping[str, object]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        found = [name for name in text.split(",") if name]
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no {name!r}: {', '.join(known)}")
        return found

    return names


def _whole(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {text}")
        return number

    return whole


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes < 10**6:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return minutes
