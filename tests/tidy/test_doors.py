"""Nothing but its own folder names a door: what runs, configures and shows doors finds them."""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from asterism.doors import Door, settings_of
from asterism.doors_host import doors
from tests.tidy import tree

# Those that may come are not to be named before they are there.
NAMES = frozenset({*doors(), "nats", "moonmq", "pubsub"})
VARIABLES = frozenset(variable for door in doors().values() for variable in door.customary)
# The brokers that the benchmarks measure beside ours are peers, and no doors.
PEERS = re.compile(r"asterism/cli/bench(_\w+)?\.py")
# The same letters, of something else: links, a tag of a page, a section that supervisord wants.
OTHERS = re.compile(r"https?://|http-equiv|unix_http_server")
# A word is what stands between capitals, digits and signs: `no_http`, HttpDoor and "http" have one
# that is a door's name, https has none.
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
every_door = pytest.mark.parametrize("door", list(doors().values()), ids=lambda door: door.name)


def named_in(text: str) -> set[str]:
    """The doors, and the variables of doors, that a text names."""
    own = OTHERS.sub("", text)
    words = {word.lower() for word in WORD.findall(own)}
    return (words & NAMES) | (set(re.findall(r"[A-Z][A-Z_]+", own)) & VARIABLES)


def code() -> Iterator[Path]:
    """What must name no door."""
    for path in tree.package_sources():
        name = tree.relative(path)
        if not name.startswith("gateways/") and not PEERS.fullmatch(name):
            yield path
    yield tree.ROOT / "supervisor.conf"
    yield from sorted((tree.ROOT / "bin").iterdir())
    yield from sorted((tree.ROOT / "gateways").glob("*.py"))


@pytest.mark.parametrize("path", list(code()), ids=tree.relative)
def test_no_code_outside_the_folder_of_a_door_names_it(path: Path) -> None:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = named_in(line)
        assert not found, f"{tree.relative(path)}:{number} names {', '.join(sorted(found))}"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('if door == "http":', {"http"}),
        ("options.no_http", {"http"}),
        ("class HttpDoor:", {"http"}),
        ("# The HTTP door is special.", {"http"}),
        ("from asterism.gateways.nats import server", {"nats"}),
        ('environ["MQ_PORT"]', {"MQ_PORT"}),
        ("http://127.0.0.1 and https://example.org", set()),
        ("https", set()),
        ("ZMQ_PORT = RABBITMQ_HOST", set()),
        ("[unix_http_server]", set()),
    ],
)
def test_a_name_is_found_as_a_word_and_not_in_others(text: str, named: set[str]) -> None:
    assert named_in(text) == named


@every_door
def test_a_door_lies_in_a_folder_of_its_name(door: Door[Any]) -> None:
    assert (tree.ROOT / "gateways" / door.name / "door.py").is_file()
    assert door.module == f"asterism.gateways.{door.name}"


@every_door
def test_a_door_has_an_extra_that_is_one_of_all_doors(door: Door[Any]) -> None:
    project = tomllib.loads((tree.ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    if not door.extra:  # it needs nothing
        assert not door.needs
        return
    installed = {re.split(r"[<>=\[; ]", line)[0] for line in extras[door.extra]}
    for module in door.needs:
        top = module.partition(".")[0]
        assert installed & set(packages_distributions()[top]), f"nothing installs {module}"
    assert f"asterism[{door.extra}]" in extras["doors"]


@every_door
def test_every_setting_of_a_door_has_one_line_of_meaning(door: Door[Any]) -> None:
    for name, setting in settings_of(door.settings).items():
        assert setting.meaning and "\n" not in setting.meaning, name
