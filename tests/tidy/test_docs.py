"""Every command and every snippet in the documents works: they are run as they are written.

A Python snippet runs here, in a folder of its own. A shell snippet runs in the checkout, under
``bash -e``, with this interpreter's folder first on the path. A command that is itself the whole
test run, or a long one, is on ``LONG``: of such a command only ``--help`` is run. A snippet that
needs a running broker says so behind its language (``sh broker``), and runs in ``tests/process``;
one that needs Spark (``python spark``) runs in ``tests/spark``.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tidy import tree

LONG = (
    "bin/test",
    "bin/up",
    ".ci/run",
    "tests/fresh/run",
    "python -m tests.sim",
    "python -m tests.fault.image_cuts",
    "python -m tests.fault.hostile",
    "python -m tests.fault.nats_hostile",
    "asterism up",
    "asterism bench",
    *(f"asterism spark {job}" for job in ("report", "export", "replay", "audit", "sql")),
    "supervisord",
)
SECONDS_MAX = 60


class Snippet(NamedTuple):
    """A fenced block of a document."""

    document: str
    line: int
    language: str
    text: str
    needs_broker: bool = False
    needs_spark: bool = False

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


FENCE = re.compile(r"^```([\w-]*)([^\n]*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
KNOWN_LANGUAGES = frozenset({"hex", "sh", "console", "python", "toml", "text", "json"})


def snippets_in(document: str, text: str) -> list[Snippet]:
    return [
        Snippet(
            document,
            text.count("\n", 0, found.start()) + 1,
            found[1],
            found[3],
            found[2].strip() == "broker",
            found[2].strip() == "spark",
        )
        for found in FENCE.finditer(text)
    ]


ALL_SNIPPETS = [
    snippet
    for path in tree.documents()
    for snippet in snippets_in(tree.relative(path), path.read_text(encoding="utf-8"))
]
SNIPPETS = [
    snippet for snippet in ALL_SNIPPETS if not (snippet.needs_broker or snippet.needs_spark)
]


def commands(snippet: Snippet) -> list[str]:
    """The lines to run: all of a ``sh`` block, those behind a prompt of a ``console`` block."""
    lines = snippet.text.replace("\\\n", " ").splitlines()
    if snippet.language == "console":
        return [line[2:] for line in lines if line.startswith("$ ")]
    return lines


def shortened(command: str) -> str:
    """The command, or its ``--help`` where the command itself is too long a run for a test."""
    for long in LONG:
        if command == long or command.startswith(f"{long} "):
            return f"{long} --help"
    return command


@pytest.mark.parametrize("snippet", ALL_SNIPPETS, ids=str)
def test_a_snippet_says_what_it_is(snippet: Snippet) -> None:
    assert snippet.language in KNOWN_LANGUAGES, f"{snippet} is of no language that is checked"


@pytest.mark.parametrize("snippet", [s for s in SNIPPETS if s.language == "python"], ids=str)
def test_a_python_snippet_runs(
    snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # The padding makes a traceback point at the line of the document.
    code = compile("\n" * snippet.line + snippet.text, snippet.document, "exec")
    exec(code, {"__name__": "__main__"})


@pytest.mark.parametrize(
    "snippet", [s for s in SNIPPETS if s.language in ("sh", "console")], ids=str
)
def test_a_shell_snippet_runs(snippet: Snippet) -> None:
    script = "\n".join(shortened(command) for command in commands(snippet))
    assert script.strip(), f"{snippet} has no command in it"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=tree.ROOT,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, f"{snippet}\n{script}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    ("command", "run"),
    [
        ("bin/test", "bin/test --help"),
        ("bin/test tests/unit -k overflow", "bin/test --help"),
        ("python -m tests.sim --seed 7", "python -m tests.sim --help"),
        ("bin/tests", "bin/tests"),
        ("python -m asterism", "python -m asterism"),
    ],
)
def test_only_long_commands_are_shortened(command: str, run: str) -> None:
    assert shortened(command) == run


def test_snippets_are_found_where_they_stand() -> None:
    text = "a\n```sh\nls \\\n  -l\n```\n\n```console\n$ true\noutput\n```\n"
    first, second = snippets_in("x.md", text)
    assert (first.line, first.language) == (2, "sh")
    assert [shlex.split(command) for command in commands(first)] == [["ls", "-l"]]
    assert (second.line, commands(second)) == (7, ["true"])
