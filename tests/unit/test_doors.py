"""The record of a door: what it may say, how it is found, and what its settings are made of."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Any

import pytest

from asterism import checks
from asterism.cli import main, output
from asterism.cli.arguments import parser
from asterism.config import KEYS, Config, ConfigError, from_mapping, warning_of
from asterism.doors import (
    RESERVED,
    Customary,
    Door,
    Listen,
    listen_address,
    listen_text,
    read_listen,
    setting,
    settings_of,
    with_host,
    with_port,
)
from asterism.doors_host import DoorError, doors, is_installed
from asterism.errors import PeerError
from asterism.running import FRONTEND, KINDS
from asterism.variables import as_whole
from tests.tidy.tree import ROOT


@dataclass(frozen=True, slots=True)
class Bell:
    """The settings of a door that nobody has."""

    listen: str = setting("127.0.0.1:7000", listen_address, "where it listens")
    rings: int = setting(3, lambda name, value: checks.whole(name, value, 1, 9), "how often")
    pause: float = setting(0.5, lambda name, value: value, "between two")
    muted: bool = setting(False, checks.flag, "whether it rings at all")
    limit: int | None = setting(
        None, lambda name, value: checks.whole(name, value, 1, 99), "at most", as_whole
    )
    key: str = setting("", lambda n, v: checks.text(n, v, 99, least=0), "of it", is_secret=True)


@dataclass(frozen=True, slots=True)
class Mute:
    """Settings that do not say where to listen."""

    rings: int = setting(3, lambda name, value: value, "how often")


BELL = Door(
    name="bell",
    title="bell",
    settings=Bell,
    module="asterism_bell",
    needs=("asterism_bell",),
    customary={
        "BELL_HOST": Customary("listen", with_host),
        "BELL_PORT": Customary("listen", with_port),
        "BELL_LIMIT": Customary("limit"),
        "BELL_UNIQUE": Customary("topic.unique"),
    },
)


@pytest.fixture
def bell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bell is the one door that there is."""
    monkeypatch.setattr("asterism.config.doors", lambda: {"bell": BELL})


# --- the record -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", "Bell", "bell-2", "a_b", "1bell", "a" * 17, *sorted(RESERVED)]
)
def test_a_door_has_a_name_that_is_one_word_and_nothing_else_has(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a door"):
        Door(name=name, title="x", settings=Bell, module="asterism_x")


def test_no_door_can_have_the_name_of_a_process_a_key_or_an_option() -> None:
    options = parser(with_doors=False).parse_args(["up"])
    taken = {*KINDS, FRONTEND, *vars(options), *(key.partition(".")[0] for key in KEYS)}
    assert {name for name in taken if name.isalnum()} <= RESERVED


def test_a_door_says_where_it_listens() -> None:
    with pytest.raises(ValueError, match="must have listen"):
        Door(name="mute", title="mute", settings=Mute, module="asterism_x")  # type: ignore[type-var]


def test_the_module_of_a_door_tells_that_its_processes_are_of_a_broker() -> None:
    with pytest.raises(ValueError, match="must have asterism in its name"):
        Door(name="bell", title="bell", settings=Bell, module="bell")


def test_what_installs_a_door_is_its_extra_or_what_it_needs() -> None:
    assert BELL.install == "python -m pip install asterism_bell"
    (own, *_) = doors().values()
    assert own.install == f"python -m pip install 'asterism[{own.extra}]'"


def test_a_secret_is_not_shown() -> None:
    assert "hidden" not in repr(Config(doors={"bell": Bell(key="hidden")}))


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Bell().rings = 4  # type: ignore[misc]
    assert list(settings_of(Bell)) == ["listen", "rings", "pause", "muted", "limit", "key"]


# --- where it listens -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("127.0.0.1:80", Listen("127.0.0.1", 80)),
        ("[::1]:0", Listen("::1", 0)),
        ("[fe80::1%eth0]:65535", Listen("fe80::1%eth0", 65_535)),
        ("host.example:1", Listen("host.example", 1)),
        ("*:8080", Listen("*", 8_080)),
    ],
)
def test_a_host_and_a_port_are_read_and_written(text: str, listen: Listen) -> None:
    assert read_listen(text) == listen
    assert listen_text(*listen) == listen_address("bell.listen", text) == text


@pytest.mark.parametrize(
    "text", ["", "8080", ":80", "::1:80", "a:65536", "a:-1", "a:x", "a b:1", "tcp://a:1", "[x]:1"]
)
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(PeerError, match=r"bell\.listen must "):
        listen_address("bell.listen", text)


# --- its table in the configuration ---------------------------------------------------------------


@pytest.mark.usefixtures("bell")
def test_a_door_has_its_defaults_where_nothing_is_said() -> None:
    assert from_mapping({}).door(BELL) == Config().door(BELL) == Bell()
    assert from_mapping({"bell": {"rings": 3}}) == Config()


@pytest.mark.usefixtures("bell")
def test_a_variable_is_read_as_what_the_default_is() -> None:
    environ = {
        "ASTERISM_BELL__LISTEN": "[::1]:1",
        "ASTERISM_BELL__RINGS": "5",
        "ASTERISM_BELL__PAUSE": "1.5",
        "ASTERISM_BELL__MUTED": "true",
        "ASTERISM_BELL__LIMIT": "7",
        "ASTERISM_BELL__KEY": "x",
    }
    assert from_mapping({}, environ).door(BELL) == Bell("[::1]:1", 5, 1.5, True, 7, "x")
    assert warning_of(environ) == ""
    misspelt = warning_of({"ASTERISM_BELL_RINGS": "5"})
    assert misspelt.endswith("(did you mean ASTERISM_BELL__RINGS?)")


@pytest.mark.usefixtures("bell")
def test_an_empty_variable_is_none_where_that_may_be() -> None:
    file = {"bell": {"limit": 5}}
    assert from_mapping(file).door(BELL).limit == 5
    assert from_mapping(file, {"ASTERISM_BELL__LIMIT": ""}).door(BELL).limit is None
    with pytest.raises(ConfigError, match=r"ASTERISM_BELL__RINGS: bell\.rings must be an"):
        from_mapping(file, {"ASTERISM_BELL__RINGS": ""})


@pytest.mark.usefixtures("bell")
def test_customary_variables_win_over_the_file_and_ours_over_both() -> None:
    file = {"bell": {"listen": "127.0.0.2:81", "limit": 5}, "topic": {"unique": False}}
    customary = {"BELL_PORT": "82", "BELL_LIMIT": "6", "BELL_UNIQUE": "true"}
    told = from_mapping(file, customary)
    assert (told.door(BELL).listen, told.door(BELL).limit) == ("127.0.0.2:82", 6)
    assert told.topic.unique
    told = from_mapping({}, {"BELL_PORT": "tcp://10.0.0.1:7000"})  # as Kubernetes says
    assert told == Config()
    assert from_mapping({}, {"BELL_HOST": "::1"}).door(BELL).listen == "[::1]:7000"
    assert from_mapping(file, {"BELL_PORT": "", "BELL_LIMIT": ""}) == from_mapping(file)
    ours = {"ASTERISM_BELL__LISTEN": "127.0.0.3:83", "ASTERISM_TOPIC__UNIQUE": "false"}
    told = from_mapping(file, {**customary, **ours})
    assert (told.door(BELL).listen, told.topic.unique) == ("127.0.0.3:83", False)


@pytest.mark.usefixtures("bell")
@pytest.mark.parametrize(
    ("values", "environ", "message"),
    [
        ({"bell": {"rigns": 1}}, {}, "here: there is no setting in bell 'rigns'"),
        ({"bel": {}}, {}, "here: there is no setting 'bel'; did you mean bell?"),
        ({"bell": []}, {}, "here: bell must be a table"),
        ({"bell": {"rings": 0}}, {}, "here: bell.rings must be from 1 to 9, not 0"),
        ({"bell": {"listen": 5}}, {"BELL_PORT": "1"}, "here: bell.listen must be text, not int"),
        ({}, {"BELL_PORT": "x"}, "BELL_PORT: bell.listen must be a host and a port"),
        ({}, {"BELL_UNIQUE": "x"}, "BELL_UNIQUE: topic.unique must be true or false"),
        ({}, {"ASTERISM_BELL": "1"}, ""),
    ],
)
def test_a_mistake_names_its_source_and_its_key(
    values: dict[str, Any], environ: dict[str, str], message: str
) -> None:
    if not message:
        assert from_mapping(values, environ, "here") == Config()
        return
    with pytest.raises(ConfigError) as refused:
        from_mapping(values, environ, "here")
    assert str(refused.value).startswith(message)


def test_settings_made_in_a_program_are_checked_as_well() -> None:
    assert Config(doors={"bell": Bell(rings=9)}).door(BELL).rings == 9
    with pytest.raises(ConfigError, match=r"bell\.rings must be from 1 to 9, not 10"):
        Config(doors={"bell": Bell(rings=10)})


# --- how it is found ------------------------------------------------------------------------------

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package with a module and entry points where packages are."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(package: str, code: str, points: str) -> None:
        (tmp_path / f"{package}.py").write_text(code)
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points)

    return put


RECORD = """
from asterism.doors import Door
from tests.unit.test_doors import Bell
DOOR = Door(name="{name}", title="x", settings=Bell, module="{module}")
"""


def test_a_door_of_another_package_is_found_by_its_entry_point(install: Install) -> None:
    install("asterism_x", RECORD.format(name="knocker", module="asterism_x"), points("asterism_x"))
    found = doors()["knocker"]
    assert found.name == "knocker" and is_installed(found)
    assert next(iter(doors())) != "knocker", "those of asterism come first"


def points(module: str, record: str = "DOOR") -> str:
    return f"[asterism.doors]\nx = {module}:{record}\n"


def test_a_door_whose_module_is_missing_is_found_and_not_installed(install: Install) -> None:
    install("fob", RECORD.format(name="fob", module="no_such.asterism"), points("fob"))
    assert not is_installed(doors()["fob"])


@pytest.mark.parametrize(
    ("package", "code", "entry_points", "wrong"),
    [
        ("torn", "1 / 0", points("torn"), "the package torn has a door x that cannot be loaded"),
        ("gone", "", points("gone", "MISSING"), "the package gone has a door x that cannot be"),
        ("other", "DOOR = 5", points("other"), "other:DOOR is not an asterism.doors.Door"),
        (
            "second",
            RECORD.format(name=next(iter(doors())), module="asterism"),
            points("second"),
            "the package second has a door named",
        ),
    ],
)
def test_a_door_that_cannot_be_used_is_told_with_its_package(
    install: Install, package: str, code: str, entry_points: str, wrong: str
) -> None:
    install(package, code, entry_points)
    with pytest.raises(DoorError, match=wrong):
        doors()
    with pytest.raises(ConfigError, match=wrong):
        from_mapping({})


@pytest.mark.parametrize("line", ["up", "up --help", "doctor", "status", "topic list"])
def test_the_command_line_says_in_one_line_which_door_cannot_be_used(
    install: Install, capsys: pytest.CaptureFixture[str], line: str, tmp_path: Path
) -> None:
    install("torn", "1 / 0", points("torn"))
    words = [*line.split(), "--data", str(tmp_path)] if "help" not in line else line.split()
    code = main(words)
    shown = capsys.readouterr()
    assert code == output.WRONG_USE and shown.err.count("\n") == 1
    assert shown.err.startswith("asterism: the package torn has a door x that cannot be loaded")


def test_packages_without_doors_are_not_loaded(install: Install) -> None:
    install("bystander", "1 / 0", "[console_scripts]\nx = bystander:main\n")
    assert "bystander" not in doors()


HEAVY = ("asyncio", "importlib.metadata", "email", "http", "uvicorn", "zmq")
LOOK = f"""
import sys
from asterism.config import load
load(None, {{}})
print(*sorted(set({HEAVY!r}) & set(sys.modules)))
"""


def test_to_look_for_doors_loads_none_of_what_they_need() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
