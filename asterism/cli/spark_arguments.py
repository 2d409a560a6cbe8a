"""The arguments of ``asterism spark``. Building them imports no Spark."""

import argparse
from typing import Any

from asterism.cli.arguments import (
    Parser,
    add_command,
    add_configuration,
    count_above_0,
    seconds,
)

_SNAPSHOT = (
    "a snapshot, a folder of snapshots (the newest), or a name in snapshots in the data folder "
    "(default: the newest there)"
)


def add_spark(commands: Any) -> None:
    spark = commands.add_parser("spark", help="report on, export, replay, audit, query a snapshot")
    inner = spark.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_report(inner)
    _add_export(inner)
    _add_replay(inner)
    _add_audit(inner)
    _add_sql(inner)


def _job(commands: Any, name: str, help: str, description: str) -> Parser:
    job = add_command(commands, name, f"spark.{name}", help, description)
    job.add_argument(
        "--master", metavar="URL", help="where Spark runs: local[*] (default), spark://host:7077, …"
    )
    job.add_argument(
        "--conf",
        action="append",
        default=[],
        type=_setting,
        metavar="KEY=VALUE",
        help="a setting of Spark; repeatable",
    )
    add_configuration(job)
    return job


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, not {text!r}")
    return key, value


def _snapshot(job: Parser) -> None:
    job.add_argument("snapshot", nargs="?", metavar="SNAPSHOT", help=_SNAPSHOT)


def _add_report(commands: Any) -> None:
    report = _job(
        commands,
        "report",
        "backlog, rates, latencies, failures: tables and one page",
        "Write what a snapshot says of a broker: backlog by topic, status and age, rates by\n"
        "minute, times on the ladder, failures by reason, slowest receivers, largest payloads,\n"
        "subjects by volume; each as Parquet and JSON, and all on one page.",
    )
    _snapshot(report)
    report.add_argument(
        "--out", metavar="FOLDER", default="asterism-report", help="(default: %(default)s)"
    )


def _add_export(commands: Any) -> None:
    export = _job(
        commands,
        "export",
        "what is new, into Parquet by topic and date",
        "Add what is new in a snapshot to a folder of Parquet, by topic and date. Run again, it\n"
        "adds what is newer; killed and run again, it is whole, and nothing is there twice.",
    )
    _snapshot(export)
    export.add_argument("--out", metavar="FOLDER", required=True, help="a folder, or hdfs://…")
    export.add_argument(
        "--table",
        action="append",
        choices=("messages", "history"),
        help="only this table (default: both)",
    )
    export.add_argument("--no-payload", action="store_true", help="leave payloads out")


def _add_replay(commands: Any) -> None:
    replay = _job(
        commands,
        "replay",
        "publish selected messages again, each once",
        "Publish messages of a snapshot again, to a topic. The same command again goes on where\n"
        "it was, and publishes nothing twice; another --name is another replay.\n\n"
        "  asterism spark replay --to orders --where \"topic = 'orders' and status = 'failed'\"\n"
        "  asterism spark replay --to again --from history --where \"verdict = 'expired'\"",
    )
    _snapshot(replay)
    replay.add_argument("--to", required=True, metavar="TOPIC", help="where they are published")
    replay.add_argument(
        "--from",
        dest="source",
        choices=("messages", "history"),
        default="messages",
        help="the table that --where is about (default: %(default)s)",
    )
    replay.add_argument("--where", default="true", metavar="SQL", help="which (default: all)")
    replay.add_argument(
        "--rate", type=seconds, metavar="N", help="messages a second, all executors together"
    )
    replay.add_argument("--ttl", type=seconds, metavar="SECONDS", help="how long they live")
    replay.add_argument("--name", default="", help="tells one replay of the same from another")
    replay.add_argument(
        "--producers",
        type=count_above_0,
        metavar="N",
        help="how many publish at a time (default: Spark's cores); 1 keeps the order",
    )
    replay.add_argument(
        "--progress",
        metavar="FOLDER",
        help="its memory, which every executor can write to (default: in replays, data folder)",
    )
    replay.add_argument("--dry-run", action="store_true", help="only show how many")
    replay.add_argument("--address", metavar="ADDRESS", help="the broker, as for other commands")
    replay.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, default=30.0, help="(default: 30)"
    )


def _add_audit(commands: Any) -> None:
    audit = _job(
        commands,
        "audit",
        "whether a snapshot agrees with itself",
        "Check that every delivery has its message, counters agree with rows, sequences and\n"
        "floors are where they may be. Exit code 1, and the rows that do not fit, if any do not.",
    )
    _snapshot(audit)


def _add_sql(commands: Any) -> None:
    sql = _job(
        commands,
        "sql",
        "ask anything, in SQL",
        "Ask a snapshot in SQL; its tables are messages, deliveries, receivers, topics, history.\n"
        '\n  asterism spark sql "select topic, count(*) from messages group by topic"',
    )
    sql.add_argument("query", metavar="SQL")
    _snapshot(sql)
    sql.add_argument("--csv", action="store_true", help="print CSV")
    sql.add_argument(
        "--limit",
        type=int,
        default=1_000,
        metavar="N",
        help="at most so many rows; 0 for all (default: %(default)s)",
    )
