"""Questions in SQL, and the command line of the jobs."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asterism.cli import main
from asterism.spark.jobs.common import JobError, find_snapshot
from asterism.storage.snapshot import SnapshotError
from tests.spark.jobs.conftest import World

pytestmark = [pytest.mark.process, pytest.mark.slow]
Said = pytest.CaptureFixture[str]


def ask(text: str, world: World, *more: str) -> int:
    return main(["spark", "sql", text, str(world.snapshot.folder), *more])


COUNTS = "select topic, count(*) as count from messages group by topic order by topic"


@pytest.mark.usefixtures("spark")
def test_an_answer_is_a_table_json_or_csv(world: World, capsys: Said) -> None:
    assert ask(COUNTS, world) == 0
    assert capsys.readouterr().out.splitlines() == [
        "topic   count",
        "notes       5",
        "orders     11",
    ]
    assert ask(COUNTS, world, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows == [{"topic": "notes", "count": 5}, {"topic": "orders", "count": 11}]
    assert ask(COUNTS, world, "--csv") == 0
    table = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert table == [["topic", "count"], ["notes", "5"], ["orders", "11"]]
    assert ask("select 1", world, "--csv", "--json") == 2


@pytest.mark.usefixtures("spark")
def test_all_five_tables_can_be_asked_together(world: World, capsys: Said) -> None:
    text = """
        select (select count(*) from deliveries where status = 'failed') as failed,
               (select count(*) from deliveries where status = 'waiting') as waiting,
               (select count(*) from deliveries) as deliveries,
               (select count(*) from receivers) as receivers,
               (select max(completed) from topics) as completed,
               (select count(*) from history where verdict = 'ok') as ok
    """
    assert ask(text, world, "--json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {"failed": 4, "waiting": 11, "deliveries": 15, "receivers": 2, "completed": 20, "ok": 20}
    ]


@pytest.mark.usefixtures("spark")
def test_what_is_nested_is_json_and_what_is_more_than_the_limit_is_said(
    world: World, capsys: Said
) -> None:
    text = "select ladder, payload, attributes from history where verdict = 'ok' order by sequence"
    assert ask(text, world, "--json", "--limit", "2") == 0
    said = capsys.readouterr()
    first: dict[str, Any] = json.loads(said.out)[0]
    assert first["ladder"][0]["receiver"] == "billing"
    assert first["attributes"] == {"number": "0"}
    assert bytes.fromhex(first["payload"]) == b"order 0"
    assert "more than 2 rows" in said.err
    assert ask(text, world, "--limit", "0") == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 21 and "more than" not in shown.err


@pytest.mark.usefixtures("spark")
def test_a_wrong_question_is_one_line(world: World, capsys: Said) -> None:
    assert ask("select nothing from messages", world) == 1
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1
    assert "nothing" in said.err


def test_a_snapshot_is_named_by_its_path_its_folder_or_its_name(
    world: World, tmp_path: Path
) -> None:
    folder = world.snapshot.folder
    assert find_snapshot(str(folder)).folder == folder
    newest = find_snapshot(str(folder.parent)).folder
    assert newest == max(path for path in folder.parent.iterdir() if path.is_dir())
    assert find_snapshot(folder.name, folder.parent).folder == folder
    assert find_snapshot(None, folder.parent).folder == newest
    with pytest.raises(JobError, match="asterism snapshot"):
        find_snapshot(None, tmp_path)
    with pytest.raises(SnapshotError):
        find_snapshot(str(tmp_path / "nowhere"), tmp_path)


WITHOUT_SPARK = """
import contextlib
import importlib.util
import sys

from asterism.cli import main

with contextlib.suppress(SystemExit):
    main(["spark", "report", "--help"])
assert "pyspark" not in sys.modules, "help must be fast"
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "pyspark" else found(name, *more)
sys.exit(main(["spark", "audit"]))
"""


def test_help_imports_no_spark_and_a_missing_extra_is_said() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip() == "asterism: this needs pyspark: pip install 'asterism[spark]'"


@pytest.mark.usefixtures("spark")
def test_an_export_and_a_replay_run_from_the_command_line(
    world: World, tmp_path: Path, capsys: Said
) -> None:
    snapshot = str(world.snapshot.folder)
    out = str(tmp_path / "out")
    assert (
        main(
            ["spark", "export", snapshot, "--out", out, "--table", "history", "--conf", "spark.a=1"]
        )
        == 0
    )
    assert "24 new rows" in capsys.readouterr().out
    dry = ["spark", "replay", snapshot, "--to", "elsewhere", "--where", "status = 'failed'"]
    assert main([*dry, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"selected": 4, "topics": {"orders": 4}}
    progress = ["--progress", str(tmp_path / "progress"), "--address", world.broker.address]
    assert main([*dry, *progress]) == 0
    assert "4 of 4 are published" in capsys.readouterr().out
    assert main([*dry, *progress, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["published"], again["is_resumed"]) == (4, True)
