"""Every command of ``asterism`` and its arguments. Building this imports nothing of the broker."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any, NoReturn

from asterism import __version__
from asterism.cli import output

if TYPE_CHECKING:
    from asterism.doors import Door, Listen

_EXIT_CODES = """\
exit codes: 0 done, 1 refused or failed, 2 wrong use or configuration, 3 no broker answers,
130 interrupted"""


class Parser(argparse.ArgumentParser):
    """Reads arguments: behind a command, options and others in any order. Who names no command is
    shown which there are."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: COMMAND"):
            self.print_help(sys.stderr)
            self.exit(2, f"\n{self.prog}: name one of these commands\n")
        super().error(message)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """First the options of a command, wherever they stand, then what they leave.

        By itself argparse gives every argument that may be absent its value at the first gap
        between options. ``parse_intermixed_args`` takes no commands and, in Python 3.11, loses
        the ``--`` before words that begin with a dash.
        """
        if self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if "--" in words else len(words)
        options = _Part(self, self._get_optional_actions())
        found, left = options.parse_known_args(words[:end], namespace)
        others = _Part(self, self._get_positional_actions())
        found, unknown = others.parse_known_args(left + words[end:], found)
        for name, value in self._defaults.items():
            if not hasattr(found, name):
                setattr(found, name, value)
        return found, unknown


class _Part(argparse.ArgumentParser):
    """Reads some of the arguments of a command; that one speaks to the user."""

    def __init__(self, command: Parser, actions: Iterable[argparse.Action]) -> None:
        super().__init__(add_help=False)
        self._command = command
        for action in actions:
            self._add_action(action)
        self._mutually_exclusive_groups = [
            group
            for group in command._mutually_exclusive_groups
            if set(group._group_actions) <= set(self._actions)
        ]

    def error(self, message: str) -> NoReturn:
        self._command.error(message)

    def print_help(self, file: IO[str] | None = None) -> None:  # type: ignore[override]
        self._command.print_help(file)


def parser(with_doors: bool = True) -> Parser:
    """The parser of the whole command line; what it returns names a module and a function.

    To look for doors takes time, and ``up`` alone has options of them.
    """
    whole = Parser(
        prog="asterism",
        description="A durable message broker, from the command line.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"asterism {__version__}")
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_up(commands, _doors() if with_doors else ())
    _add_status(commands)
    _add_topic(commands)
    _add_pub(commands)
    _add_sub(commands)
    _add_receiver(commands)
    _add_parked(commands)
    _add_snapshot(commands)
    _add_doctor(commands)
    from asterism.cli.spark_arguments import add_spark  # it takes what is here

    add_spark(commands)
    _add_completion(commands)
    if find_spec("asterism.cli.bench") is not None:
        commands.add_parser("bench", help="measure a broker", add_help=False)
    return whole


def _doors() -> "Iterable[Door[Any]]":
    from asterism.doors_host import DoorError, doors  # other commands do without

    try:
        return doors().values()
    except DoorError as error:
        raise output.CommandError(str(error), output.WRONG_USE) from None


def add_command(commands: Any, name: str, target: str, help: str, description: str = "") -> Parser:
    """A command that ``module.function`` of this package runs."""
    module, _, function = target.partition(".")
    command: Parser = commands.add_parser(
        name,
        help=help,
        description=description or help[:1].upper() + help[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(module=module, function=function)
    return command


def add_configuration(command: Parser) -> None:
    command.add_argument(
        "--config", metavar="FILE", help="the broker's configuration (default: $ASTERISM_CONFIG)"
    )
    command.add_argument("--data", metavar="FOLDER", help="the data folder (data_dir)")
    command.add_argument("--json", action="store_true", help="print JSON, for machines")


def _connected(command: Parser) -> None:
    add_configuration(command)
    command.add_argument(
        "--address",
        metavar="ADDRESS",
        help="the broker, as tcp://127.0.0.1:7700 (default: $ASTERISM_ADDRESS, or the one of the "
        "data folder)",
    )
    command.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=5.0,
        help="how long to wait for an answer (default: 5)",
    )


def seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < 10**9:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return seconds


def count_above_0(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return count


def _receivers_wanted(text: str) -> int | str:
    return text if text == "all" else count_above_0(text)


def sequence(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise argparse.ArgumentTypeError(f"must be the number of a message, not {text!r}")
    return number


def _moment(text: str) -> float:
    """Seconds since 1970, or a date and a time."""
    try:
        moment = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError):
            moment = -1.0
    if not 0 <= moment < 10**12:
        raise argparse.ArgumentTypeError(
            f"must be a time, as 2026-01-31T12:00 or seconds since 1970, not {text!r}"
        )
    return moment


_AGES = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}


def _age(text: str) -> float:
    """Seconds, of a number with a unit."""
    unit = _AGES.get(text[-1:])
    try:
        age = float(text[:-1]) * unit if unit else -1.0
    except ValueError:
        age = -1.0
    if not 0 <= age < 10**12:
        raise argparse.ArgumentTypeError(f"must be a number with s, m, h, d or w, not {text!r}")
    return age


# --- the broker itself ----------------------------------------------------------------------------


def _listen_of(text: str) -> "Listen":
    """A port, or a host and a port."""
    from asterism.doors import read_listen

    try:
        return read_listen(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a port, or a host and a port as 127.0.0.1:8080, not {text!r}"
        ) from None


def _add_up(commands: Any, doors: "Iterable[Door[Any]]") -> None:
    up = add_command(
        commands,
        "up",
        "up.run",
        "run a broker in the foreground",
        "Run a whole broker here until Ctrl-C: front-end, interest router, workers. Its data is\n"
        "in ./asterism-data, its logs in ./asterism-data/log; it listens on this machine alone.",
    )
    add_configuration(up)
    up.add_argument("--listen", metavar="ADDRESS", help="where clients connect (listen)")
    for door in doors:
        of_door = up.add_mutually_exclusive_group()
        of_door.add_argument(
            f"--{door.name}",
            metavar="PORT",
            type=_listen_of,
            help=f"the {door.title} door's port, or host and port, as 127.0.0.1:8080 "
            f"({door.listen_key})",
        )
        of_door.add_argument(
            f"--no-{door.name}", action="store_true", help=f"run without the {door.title} door"
        )
    up.add_argument("--workers", metavar="N", type=count_above_0, help="worker processes (workers)")
    up.add_argument("--logs", action="store_true", help="log here, not into files")


def _add_status(commands: Any) -> None:
    status = add_command(
        commands,
        "status",
        "status.run",
        "show every process: uptime, memory, rates; and the clients of doors",
    )
    _connected(status)
    status.add_argument(
        "--interval",
        metavar="SECONDS",
        type=seconds,
        default=0.5,
        help="how long rates are measured (default: 0.5)",
    )


def _add_snapshot(commands: Any) -> None:
    snapshot = commands.add_parser(
        "snapshot",
        help="copy every store while the broker runs; list, verify, delete, copy those",
        description="Copy every store, and look after the copies. By itself it is create.",
    )
    inner = snapshot.add_subparsers(title="commands", metavar="COMMAND", required=True)
    create = add_command(
        inner,
        "create",
        "snapshot.create",
        "take a snapshot while the broker runs",
        "Copy every store as it is at one moment, without stopping traffic, into a new folder\n"
        "under snapshots in the data folder. The manifest is written last: without one, a folder\n"
        "is no snapshot. With --keep or --older-than, older ones are deleted afterwards.",
    )
    _connected(create)
    _retained(create)
    listing = add_command(inner, "list", "snapshot.list_all", "list snapshots, the oldest first")
    listing.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="where they are (default: of the data folder)"
    )
    verify = add_command(
        inner,
        "verify",
        "snapshot.verify",
        "read a snapshot, and say what is wrong with it",
        "Read every row of a snapshot; compare its files, counts and sequences with its manifest.\n"
        "Exit code 1 if anything does not fit.",
    )
    verify.add_argument("--write", action="store_true", help="note digests of a whole one's files")
    delete = add_command(
        inner,
        "delete",
        "snapshot.delete",
        "delete snapshots by name, number or age",
        "Delete the snapshots named, or those that are neither of the N newest (--keep) nor\n"
        "younger than AGE (--older-than). The newest is never deleted by number or age.",
    )
    delete.add_argument(
        "snapshots", nargs="*", default=[], metavar="SNAPSHOT", help="its name or folder, or latest"
    )
    delete.add_argument(
        "--unfinished", action="store_true", help="even one that has no manifest, if it is named"
    )
    _retained(delete)
    copy = add_command(
        inner,
        "copy",
        "snapshot.copy",
        "copy a snapshot to another disk, and compare",
        "Copy a snapshot into a folder, on another disk or mounted from elsewhere. Every file is\n"
        "read back and compared; the copy is a snapshot only when all of it is there.",
    )
    for command in (verify, copy):
        command.add_argument("snapshot", metavar="SNAPSHOT", help="its name or folder, or latest")
    copy.add_argument("to", metavar="FOLDER", help="where copies are kept; made if it is not there")
    for command in (listing, verify, delete, copy):
        add_configuration(command)


def _retained(command: Parser) -> None:
    command.add_argument("--keep", metavar="N", type=count_above_0, help="keep the N newest")
    command.add_argument(
        "--older-than", metavar="AGE", type=_age, help="delete older ones alone: 90s, 30m, 12h, 7d"
    )


def _add_doctor(commands: Any) -> None:
    doctor = add_command(
        commands,
        "doctor",
        "doctor.run",
        "say what is wrong, and what to do",
        "Look at the installation, the configuration, the data folder, its stores, the processes\n"
        "and the address; say what is wrong and what to do. Exit code 1 if anything is.",
    )
    add_configuration(doctor)
    doctor.add_argument(
        "--accept-loss",
        action="store_true",
        help="open stores that have lost synced writes, and go on without those",
    )


def _add_completion(commands: Any) -> None:
    completion = add_command(
        commands,
        "completion",
        "completion.run",
        "print the completion script of a shell",
        "Print a completion script. For bash:  source <(asterism completion bash)",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


# --- topics ---------------------------------------------------------------------------------------

_SETTINGS = (
    "A setting is NAME=VALUE, by the names of docs/configuration.md without `topic.`:\n"
    "  overflow.size=10000 overflow.policy=drop_old sent_timeout=30 dead_letter=none"
)


def _add_topic(commands: Any) -> None:
    topic = commands.add_parser("topic", help="create, list, show, set, clear, delete topics")
    inner = topic.add_subparsers(title="commands", metavar="COMMAND", required=True)
    create = add_command(inner, "create", "topics.create", "create a topic", _SETTINGS)
    create.add_argument("topic")
    create.add_argument("settings", nargs="*", default=[], metavar="NAME=VALUE")
    listing = add_command(inner, "list", "topics.list_all", "list all topics")
    listing.add_argument("--long", "-l", action="store_true", help="with counts; slower")
    show = add_command(inner, "show", "topics.show", "show a topic: settings, counts, rates")
    show.add_argument("topic")
    change = add_command(inner, "set", "topics.change", "change settings of a topic", _SETTINGS)
    change.add_argument("topic")
    change.add_argument("settings", nargs="*", default=[], metavar="NAME=VALUE")
    change.add_argument(
        "--inherit",
        action="append",
        default=[],
        metavar="NAME",
        help="let this setting follow the broker's default again",
    )
    clear = add_command(inner, "clear", "topics.clear", "drop every message of a topic")
    delete = add_command(inner, "delete", "topics.delete", "delete a topic with all it holds")
    for command in (clear, delete):
        command.add_argument("topic")
        command.add_argument("--yes", "-y", action="store_true", help="do not ask")
    for command in (create, listing, show, change, clear, delete):
        _connected(command)


def _add_receiver(commands: Any) -> None:
    receiver = commands.add_parser("receiver", help="list, show, seek, delete receivers of a topic")
    inner = receiver.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = add_command(inner, "list", "receivers.list_all", "list the receivers of a topic")
    show = add_command(inner, "show", "receivers.show", "show a receiver: interests, counts")
    seek = add_command(
        inner,
        "seek",
        "receivers.seek",
        "move a durable receiver back, or to now",
        "Move a durable receiver among the durable messages that are on disk: back to one, or to\n"
        "a time, from which it gets them again, or forward to now, behind all that waits for it.",
    )
    delete = add_command(
        inner, "delete", "receivers.delete", "delete a receiver, and what waits for it"
    )
    for command in (listing, show, seek, delete):
        command.add_argument("topic")
        if command is not listing:
            command.add_argument("name", metavar="receiver")
        _connected(command)
    where = seek.add_mutually_exclusive_group(required=True)
    where.add_argument("--sequence", type=sequence, metavar="N", help="the first that it gets")
    where.add_argument(
        "--time",
        type=_moment,
        metavar="TIME",
        help="what was accepted from then on: 2026-01-31T12:00, in this machine's zone unless it "
        "says another, or seconds since 1970",
    )
    where.add_argument("--now", action="store_true", help="nothing that was published before")
    delete.add_argument("--yes", "-y", action="store_true", help="do not ask")


def _add_parked(commands: Any) -> None:
    parked = commands.add_parser("parked", help="list, renew, abandon what has failed for good")
    inner = parked.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = add_command(inner, "list", "parked.list_all", "list parked deliveries of a topic")
    listing.add_argument("topic")
    listing.add_argument("--payload", action="store_true", help="show what they carry as well")
    renew = add_command(inner, "renew", "parked.renew", "put parked deliveries back to waiting")
    abandon = add_command(inner, "abandon", "parked.abandon", "drop parked deliveries")
    for command in (renew, abandon):
        command.add_argument("topic")
        command.add_argument("sequences", nargs="*", default=[], type=sequence, metavar="SEQUENCE")
        command.add_argument("--all", action="store_true", help="every one of the topic")
        command.add_argument("--receiver", metavar="NAME", help="only of this receiver")
    for command in (listing, renew, abandon):
        _connected(command)


# --- messages -------------------------------------------------------------------------------------


def _add_pub(commands: Any) -> None:
    pub = add_command(
        commands,
        "pub",
        "publish.run",
        "publish messages",
        "Publish the message given, or each line of a file or of standard input as one message.\n\n"
        "  asterism pub orders 'a message' --subject order/17/paid\n"
        "  asterism pub orders --file messages.txt --expect processed\n"
        "  generate | asterism pub orders",
    )
    pub.add_argument("topic")
    pub.add_argument("message", nargs="?", help="the payload; without it, lines of the input")
    pub.add_argument("--file", metavar="FILE", help="read lines from here; - is standard input")
    pub.add_argument("--whole", action="store_true", help="the whole input is one message")
    pub.add_argument(
        "--subject",
        "-s",
        action="append",
        metavar="SUBJECT",
        help="what it is about; may be given several times (default: the topic's name)",
    )
    pub.add_argument("--mode", choices=("push", "online", "durable"), default="durable")
    pub.add_argument(
        "--expect",
        choices=("sent", "received", "processed"),
        help="what counts as done (default: as the topic says; that of durable messages is "
        "processed, of others sent)",
    )
    pub.add_argument(
        "--attribute", "-a", action="append", default=[], metavar="NAME=VALUE", help="repeatable"
    )
    pub.add_argument(
        "--max-receivers",
        type=_receivers_wanted,
        metavar="N",
        help="over when N are done; all: never, whatever the topic says",
    )
    pub.add_argument("--ttl", type=seconds, metavar="SECONDS", help="how long it lives")
    pub.add_argument("--priority", type=int, metavar="N", help="0 goes first")
    pub.add_argument("--delay", type=seconds, metavar="SECONDS", help="not to be sent before")
    pub.add_argument("--ordering-key", metavar="KEY", help="one at a time, in order, per key")
    pub.add_argument(
        "--wait", action="store_true", help="wait until each is resolved, and show the verdicts"
    )
    _connected(pub)


def _add_sub(commands: Any) -> None:
    sub = add_command(
        commands,
        "sub",
        "subscribe.run",
        "show messages as they come",
        "Subscribe, and print each message as it comes; a message counts as processed once it is\n"
        "printed. Without --name or --group the receiver is gone when this ends; with one it is\n"
        "durable: the broker keeps what it misses, until `--forget` or its deletion.",
    )
    sub.add_argument("topic")
    sub.add_argument(
        "interests", nargs="*", default=[], metavar="INTEREST", help="globs (default: **)"
    )
    receiver = sub.add_mutually_exclusive_group()
    receiver.add_argument("--name", metavar="NAME", help="a durable receiver of this name")
    receiver.add_argument("--group", metavar="NAME", help="share one copy with others of the group")
    sub.add_argument("--count", "-n", type=count_above_0, metavar="N", help="end after N messages")
    sub.add_argument("--for", dest="seconds", type=seconds, metavar="SECONDS", help="end then")
    sub.add_argument(
        "--credit", type=count_above_0, default=1_024, metavar="N", help="fetched at once"
    )
    sub.add_argument("--forget", action="store_true", help="delete the receiver at the end")
    sub.add_argument("--raw", action="store_true", help="print payloads alone, byte for byte")
    _connected(sub)
