"""The tree is laid out as it says: links, docstrings, screens, versions, nobody's own machine."""

import ast
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import asterism
from tests.tidy import tree

FUNCTION_LINES_MAX = 60


@pytest.mark.parametrize("folder", tree.FOLDERS)
def test_every_folder_is_linked_into_the_package(folder: str) -> None:
    link = tree.ROOT / "asterism" / folder
    if link.is_file() and not link.is_symlink():
        pytest.fail(
            f"asterism/{folder} is a plain file: this checkout was made without symbolic links. "
            "Allow them (git config core.symlinks true; on Windows also developer mode) and check "
            "the tree out again."
        )
    assert link.is_symlink(), f"asterism/{folder} must be a link to ../{folder}"
    assert os.readlink(link) == f"../{folder}", "the link is relative, so that a checkout can move"
    assert link.resolve() == tree.ROOT / folder


def test_nothing_else_is_linked() -> None:
    links = {path.name for path in (tree.ROOT / "asterism").iterdir() if path.is_symlink()}
    assert links == set(tree.FOLDERS)


def test_the_package_says_that_it_is_typed() -> None:
    assert (tree.ROOT / "asterism" / "py.typed").is_file()


def test_the_package_and_the_project_agree_on_the_version() -> None:
    project = tomllib.loads((tree.ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == asterism.__version__


@pytest.mark.parametrize("path", tree.all_sources(), ids=tree.relative)
def test_a_file_opens_by_saying_what_it_is(path: Path) -> None:
    docstring = ast.get_docstring(tree.parsed(path))
    assert docstring and docstring.strip(), f"{tree.relative(path)} needs a docstring"


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function; its docstring is for reading, and does not count."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        docstring = function.body[0]
        assert docstring.end_lineno is not None
        lines -= docstring.end_lineno - docstring.lineno + 1
    return lines


@pytest.mark.parametrize("path", tree.all_sources(), ids=tree.relative)
def test_a_function_fits_a_screen(path: Path) -> None:
    for node in ast.walk(tree.parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = body_lines(node)
            assert lines <= FUNCTION_LINES_MAX, (
                f"{tree.relative(path)}:{node.lineno} {node.name} has {lines} lines, "
                f"over {FUNCTION_LINES_MAX}"
            )


# Written in pieces, so that this file does not find itself.
FOREIGN = {
    "a path of somebody's machine": re.compile(
        r"(?<![\w.~$}])/(?:"
        + "|".join(["home", "root", "Users", "work", "tmp", "opt", "mnt"])
        + r")/\w"
    ),
    "a drive of somebody's machine": re.compile(r"\b[A-Z]:" + r"\\\w"),
    "a package registry": re.compile(
        "|".join(
            [
                *("pypi" + r"\.org", "python" + r"hosted\.org", "registry" + r"\.npm"),
                *("/sim" + "ple/", "arti" + "factory", "index" + "-url"),
            ]
        )
    ),
}


@pytest.mark.parametrize("path", tree.all_files(), ids=tree.relative)
def test_a_file_knows_nothing_of_the_machine_it_was_written_on(path: Path) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    for what, pattern in FOREIGN.items():
        found = pattern.search(text)
        assert not found, f"{tree.relative(path)} names {what}: {found[0]!r}"


COMMANDS = ["bin/test", "bin/up", ".ci/run", "tests/fresh/run"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_good_bash(name: str) -> None:
    checked = subprocess.run(
        ["bash", "-n", str(tree.ROOT / name)], capture_output=True, text=True, timeout=60
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_can_be_run(name: str) -> None:
    command = tree.ROOT / name
    assert os.access(command, os.X_OK), f"{name} must be executable"
    assert command.read_text().startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in command.read_text()


def test_the_type_check_counts_every_folder() -> None:
    counted = re.search(r"find (asterism [\w ]+ tests) -name", (tree.ROOT / "bin/test").read_text())
    assert counted is not None
    assert counted[1].split() == ["asterism", *tree.FOLDERS, "tests"]
