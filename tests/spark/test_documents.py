"""What is written of Spark: its snippets run as they stand, and its tables are those there are."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from asterism.spark.options import OPTIONS
from asterism.spark.schemas import SCHEMAS, columns_in
from tests.spark.world import World
from tests.tidy import tree
from tests.tidy.test_docs import ALL_SNIPPETS

pytestmark = pytest.mark.process
SNIPPETS = [snippet for snippet in ALL_SNIPPETS if snippet.needs_spark]
TEXT = (tree.ROOT / "docs" / "spark.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """What stands under a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", TEXT, re.M | re.S)
    assert found is not None, f"docs/spark.md has no {heading}"
    return found[1]


@pytest.mark.parametrize("document", sorted({snippet.document for snippet in SNIPPETS}))
def test_the_snippets_run_one_after_another(
    spark: SparkSession,
    world: World,
    document: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(world.folder.parent, tmp_path / "snapshots")
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {"__name__": "__main__"}
    for snippet in SNIPPETS:
        if snippet.document == document:
            # A path that begins nowhere is from where Spark was started.
            text = snippet.text.replace('"snapshots"', repr(str(tmp_path / "snapshots")))
            text = text.replace('"lake/', f'"{tmp_path}/lake/')
            exec(compile("\n" * snippet.line + text, document, "exec"), known)


@pytest.mark.parametrize("table", SCHEMAS)
def test_the_columns_of_a_table_are_written_down(table: str) -> None:
    written = re.findall(r"^\| `(\w+)` \| ([A-Z].*?) \|", section(f"`{table}`"), re.M)
    assert dict(written) == columns_in(SCHEMAS[table])
    assert [name for name, _ in written] == list(columns_in(SCHEMAS[table]))


def test_every_option_is_written_down() -> None:
    assert re.findall(r"^\| `(\w+)` \|", section("Options"), re.M) == list(OPTIONS)
