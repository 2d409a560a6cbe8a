"""What the documents claim is so: error codes, configuration keys, tests, files."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import asterism
from asterism.config import KEYS, MAY_BE_NONE, Config, ConfigError, from_mapping, parse
from asterism.doors import Door, settings_of
from asterism.doors_host import doors
from asterism.errors import ERRORS, PeerError
from asterism.options import topic_settings_as_user
from asterism.variables import variable_of
from tests.tidy import tree

ERRORS_DOCUMENT = tree.ROOT / "docs" / "errors.md"
CONFIGURATION_DOCUMENT = tree.ROOT / "docs" / "configuration.md"


def rows(path: Path) -> list[list[str]]:
    """The cells of every table row of a document whose first cell is one name in backticks."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        name = re.fullmatch(r"`([^`]+)`", cells[0])
        if line.startswith("|") and name:
            found.append([name[1], *cells[1:]])
    return found


# --- errors -------------------------------------------------------------------------------------


def test_every_code_stands_in_the_document_with_its_sentence() -> None:
    documented = [(cells[0], cells[1]) for cells in rows(ERRORS_DOCUMENT)]
    assert documented == list(ERRORS.items()), "docs/errors.md is the table of asterism/errors.py"


def test_every_code_stands_in_the_document_with_its_class() -> None:
    for code, _, named, _ in rows(ERRORS_DOCUMENT):
        found = getattr(asterism, named.strip("`"))
        assert issubclass(found, asterism.BrokerError) and type(PeerError(code)) is found


def test_every_code_says_what_to_do() -> None:
    for code, _, _, what_to_do in rows(ERRORS_DOCUMENT):
        assert what_to_do.endswith("."), f"{code} needs a sentence on what to do"


@pytest.mark.parametrize("code", ERRORS)
def test_a_code_is_in_lower_case_with_underscores(code: str) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", code)


# --- configuration ------------------------------------------------------------------------------


def configured(key: str, value: object) -> Config:
    """The configuration with one key set, in a table whose other part is as wide as can be."""
    parts: dict[str, Any] = {"topic.overflow.policy": {"size": 1}}
    parts["topic.retry_backoff.min"] = {"max": 31_622_400}
    parts["topic.retry_backoff.max"] = {"min": 0}
    *tables, name = key.split(".")
    inner = {**parts.get(key, {}), name: value}
    for table in reversed(tables):
        inner = {table: inner}
    return from_mapping(inner)


def setting_of(key: str) -> tuple[Door[Any], str] | None:
    """The door that a key belongs to, and its name there."""
    table, _, name = key.partition(".")
    return (doors()[table], name) if table in doors() else None


def document_of(door: Door[Any]) -> Path:
    """The document of a door: docs/doors holds those of protocols that others have described."""
    docs = tree.ROOT / "docs"
    return next(
        path
        for path in (docs / "doors" / f"{door.name}.md", docs / f"{door.name}.md")
        if path.is_file()
    )


def default_of(key: str) -> object:
    if (held := setting_of(key)) is not None:
        door, name = held
        return getattr(Config().door(door), name)
    if not key.startswith("topic."):
        return getattr(Config(), key)
    shown = topic_settings_as_user(Config().topic)
    return shown.get(key.removeprefix("topic."))


CONFIGURATION_ROWS = rows(CONFIGURATION_DOCUMENT)


def test_every_key_stands_in_the_document_and_no_other() -> None:
    of_doors = [door.key(name) for door in doors().values() for name in settings_of(door.settings)]
    assert [cells[0] for cells in CONFIGURATION_ROWS] == [*KEYS, *of_doors]


@pytest.mark.parametrize("cells", CONFIGURATION_ROWS, ids=lambda cells: cells[0])
def test_a_setting_of_a_door_means_what_its_record_says(cells: list[str]) -> None:
    if (held := setting_of(cells[0])) is not None:
        door, name = held
        assert cells[3] == settings_of(door.settings)[name].meaning


@pytest.mark.parametrize("door", list(doors().values()), ids=lambda door: door.name)
def test_the_customary_variables_of_a_door_stand_in_its_own_document(door: Door[Any]) -> None:
    document = document_of(door).read_text(encoding="utf-8")
    for variable in door.customary:
        assert f"`{variable}`" in document


@pytest.mark.parametrize("cells", CONFIGURATION_ROWS, ids=lambda cells: cells[0])
def test_a_documented_default_is_the_default(cells: list[str]) -> None:
    key, default = cells[0], cells[1]
    if key == "topic.overflow.policy":
        # The default of a part of a table that is itself none: what it is once the table is there.
        assert configured("topic.overflow.size", 1) == configured(key, default.strip('`"'))
    elif default == "none":
        assert default_of(key) is None
    else:
        assert tomllib.loads(f"value = {default.strip('`')}") == {"value": default_of(key)}


@pytest.mark.parametrize("cells", CONFIGURATION_ROWS, ids=lambda cells: cells[0])
def test_a_documented_range_is_the_range(cells: list[str]) -> None:
    key, _, allowed = cells[:3]
    bounds = re.match(r"([0-9.]+) to ([0-9]+)\b( seconds)?", allowed)
    if not bounds:
        choices = re.findall(r"`([^`]+)`", allowed)
        for choice in choices:
            configured(key, tomllib.loads(f"value = {choice}")["value"])
        assert choices or re.match(r"text of [01] to ", allowed)
        return
    number = float if bounds[3] else int
    step = number("0.001") if bounds[3] else 1
    least, most = number(bounds[1]), int(bounds[2])
    configured(key, least)
    configured(key, most)
    for outside in (least - step, most + 1):
        with pytest.raises(ConfigError, match=re.escape(key)):
            configured(key, outside)


def test_what_may_be_none_is_documented_so() -> None:
    document = CONFIGURATION_DOCUMENT.read_text(encoding="utf-8")
    may_be_none = [
        door.key(name)
        for door in doors().values()
        for name, setting in settings_of(door.settings).items()
        if setting.may_be_none
    ]
    for key in (*MAY_BE_NONE, *may_be_none):
        assert f"`{variable_of(key)}`" in document


def fenced(path: Path, language: str) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_every_example_of_a_file_is_a_good_one() -> None:
    examples = fenced(CONFIGURATION_DOCUMENT, "toml")
    assert examples
    for example in examples:
        parse(example.encode())


# --- dependencies -------------------------------------------------------------------------------


def test_every_dependency_is_accounted_for() -> None:
    project = tomllib.loads((tree.ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    wanted = [*project["dependencies"], *extras]
    names = {re.split(r"[<>=\[; ]", line)[0] for line in wanted} - {project["name"]}
    assert {cells[0] for cells in rows(tree.ROOT / "docs" / "dependencies.md")} == names


# --- tests and files ----------------------------------------------------------------------------

NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)(?:\[[^`]*\])?`")
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("document", tree.documents(), ids=tree.relative)
def test_every_test_that_a_document_names_exists(document: Path) -> None:
    for name, test in NAMED_TEST.findall(document.read_text(encoding="utf-8")):
        path = tree.ROOT / name
        assert path.is_file(), f"{tree.relative(document)} names {name}, which is not there"
        assert test in tree.defined_names(path), (
            f"{tree.relative(document)} names {name}::{test}, which is not there"
        )


@pytest.mark.parametrize("document", tree.documents(), ids=tree.relative)
def test_every_link_of_a_document_leads_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{tree.relative(document)} links {target}"
