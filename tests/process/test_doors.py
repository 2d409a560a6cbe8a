"""A door is one folder: a toy door of another project is found, configured, started, looked at and
stopped, and nothing outside its folder knows it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import asterism
from asterism.config import ConfigError, load
from asterism.doors import read_listen
from asterism.doors_host import doors
from asterism.testing import Broker, StartError
from tests.support.children import bounded
from tests.support.doors import any_ports
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.process
WAIT_S = 20
TOY = ROOT / "tests" / "process" / "toy_door"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy door is installed, here and in the processes that are started from here."""
    monkeypatch.syspath_prepend(TOY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TOY), str(ROOT)]))
    for name in [name for name in os.environ if name.startswith(("ASTERISM_", "TOY_", "MQ_"))]:
        monkeypatch.delenv(name)


def lines(address: str, *sent: str, count: int) -> list[str]:
    """What the toy door says, its greeting first, when it is sent these lines."""
    with socket.create_connection(read_listen(address), WAIT_S) as asked:
        asked.settimeout(WAIT_S)
        asked.sendall("".join(f"{line}\n" for line in sent).encode())
        with asked.makefile() as said:
            return [said.readline().rstrip("\n") for _ in range(count)]


# --- in tests of programs -------------------------------------------------------------------------


@pytest.mark.usefixtures("toy")
def test_a_broker_for_tests_opens_a_door_of_another_project() -> None:
    with Broker(workers=1, doors=("toy",), config={"toy": {"greeting": "good day"}}) as broker:
        assert doors()["toy"].health(broker.door("toy"), WAIT_S) is None
        with asterism.connect_blocking(broker.address) as node:
            inbox = node.subscribe("tea", name="kitchen")
            assert lines(broker.toy_address, "tea one cup", count=2) == ["good day", "1"]
            assert inbox.receive(WAIT_S).payload == b"one cup"


@pytest.mark.usefixtures("toy")
def test_a_door_takes_its_port_again_after_a_restart() -> None:
    with Broker(workers=1, doors=("toy",)) as broker:
        before = broker.toy_address
        broker.restart("toy")
        assert broker.toy_address == before
        assert lines(before, count=1) == ["hello"]


@pytest.mark.usefixtures("toy")
def test_variables_of_the_surroundings_reach_no_door_of_a_broker_for_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOY_GREETING", "from the surroundings")
    with Broker(workers=1, doors=("toy",)) as broker:
        assert lines(broker.toy_address, count=1) == ["hello"]
    env = {"TOY_GREETING": "given"}
    with Broker(workers=1, doors=("toy",), env=env) as broker:
        assert lines(broker.toy_address, count=1) == ["given"]


def test_a_door_that_is_not_installed_is_nowhere_named() -> None:
    with pytest.raises(StartError, match="there is no door 'toy': the doors are") as refused:
        Broker(doors=("toy",))
    assert "toy" not in str(refused.value).partition("the doors are")[2]
    with pytest.raises(ConfigError, match="there is no setting 'toy'"):
        Broker(config={"toy": {"greeting": "x"}}).start()


# --- by the command line --------------------------------------------------------------------------

FILE = 'workers = 1\n[toy]\nlisten = "127.0.0.1:0"\ngreeting = "from the file"\n'


def command(folder: Path, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
    # Doors of our own run beside it: each takes a free port.
    ports = {name: port for name, port in any_ports().items() if "TOY" not in name}
    return subprocess.Popen(
        [sys.executable, "-m", "asterism", *arguments],
        cwd=folder,
        env={**os.environ, **ports, "ASTERISM_CONFIG": "asterism.toml", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def up(folder: Path, *arguments: str, **variables: str) -> Iterator[dict[str, Any]]:
    """A broker in the foreground, and what it says when it is ready; stopped at the end."""
    words = ("up", "--json", "--listen", "tcp://127.0.0.1:0", *arguments)
    with bounded(command(folder, *words, **variables)) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield json.loads(line)
        process.terminate()
        assert process.wait(WAIT_S) == 0
        assert process.stderr.read() == ""


def told(folder: Path, *arguments: str, code: int = 0) -> Any:
    with bounded(command(folder, *arguments, "--json")) as process:
        out, problem = process.communicate(timeout=WAIT_S)
        assert process.returncode == code, out + problem
        return json.loads(out)


def findings(folder: Path, code: int = 0) -> dict[str, dict[str, str]]:
    return {each["about"]: each for each in told(folder, "doctor", code=code)["findings"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "asterism.toml").write_text(FILE)
    return tmp_path


@pytest.mark.usefixtures("toy")
def test_up_starts_a_door_and_status_and_doctor_show_it_until_it_is_stopped(folder: Path) -> None:
    with up(folder) as said:
        address, (pid,) = said["doors"]["toy"], said["pids"]["toy"]
        assert lines(address, count=1) == ["from the file"]
        shown = told(folder, "status")["processes"]["toy"]
        assert (shown["pid"], shown["where"]) == (pid, address)
        assert not [key for key in shown if key.startswith("clients")]  # it never tells of them
        assert findings(folder)["door toy"] == {
            "about": "door toy",
            "state": "good",
            "what": f"{address} ({pid})",
            "to_do": "",
        }
        os.kill(pid, signal.SIGSTOP)
        ill = findings(folder, code=1)["door toy"]
        assert ill["state"] == "wrong" and "it does not answer: timed out" in ill["what"]
        os.kill(pid, signal.SIGCONT)
    assert not psutil.pid_exists(pid)
    with pytest.raises(ConnectionRefusedError):
        lines(address, count=1)


@pytest.mark.usefixtures("toy")
def test_variables_win_over_the_file_and_ours_over_the_customary_ones(folder: Path) -> None:
    with up(folder, TOY_GREETING="customary", ASTERISM_TOY__ECHOES="2") as said:
        assert lines(said["doors"]["toy"], "t x", count=3) == ["customary", "1", "1"]
    with up(folder, TOY_GREETING="customary", ASTERISM_TOY__GREETING="ours") as said:
        assert lines(said["doors"]["toy"], count=1) == ["ours"]


@pytest.mark.usefixtures("toy")
def test_up_chooses_the_port_of_a_door_or_leaves_the_door_out(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with up(folder, "--toy", "0", TOY_PORT=str(port)) as said:
            assert read_listen(said["doors"]["toy"]).port != port
        with up(folder, "--no-toy") as said:
            assert "toy" not in said["doors"] and "toy" not in said["pids"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with up(folder, "--toy", f"127.0.0.2:{port}") as said:
        assert said["doors"]["toy"] == f"127.0.0.2:{port}"


@pytest.mark.usefixtures("toy")
def test_a_door_opens_to_others_only_where_that_is_said(folder: Path) -> None:
    words = ("up", "--listen", "tcp://127.0.0.1:0", "--toy", "0.0.0.0:0")
    with bounded(command(folder, *words)) as process:
        _, problem = process.communicate(timeout=WAIT_S)
        assert process.returncode == 1
    assert "toy.listen is 0.0.0.0:0: others than this machine could connect" in problem
    with up(folder, "--toy", "0.0.0.0:0", ASTERISM_INSECURE="true") as said:
        assert lines(said["doors"]["toy"], count=1) == ["from the file"]


@pytest.mark.usefixtures("toy")
def test_the_doctor_tells_of_a_port_that_a_door_cannot_have(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (folder / "asterism.toml").write_text(f'[toy]\nlisten = "127.0.0.1:{port}"\n')
        found = findings(folder, code=1)["door toy"]
    assert "Address already in use" in found["what"]
    assert "toy.listen (TOY_PORT)" in found["to_do"] and "up --no-toy" in found["to_do"]


@pytest.mark.usefixtures("toy")
def test_a_mistake_in_the_table_of_a_door_is_told_by_its_key(tmp_path: Path) -> None:
    file = tmp_path / "asterism.toml"
    for text, variables, wrong in (
        ("[toy]\nechoes = 10", {}, f"{file}: toy.echoes must be from 1 to 9, not 10"),
        ("[toy]\nechos = 1", {}, f"{file}: there is no setting in toy 'echos'"),
        ("toy = 1", {}, f"{file}: toy must be a table"),
        ("", {"TOY_PORT": "x"}, "TOY_PORT: toy.listen must be a host and a port"),
        ("", {"ASTERISM_TOY__ECHOES": "x"}, "ASTERISM_TOY__ECHOES: toy.echoes must be an integer"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError) as refused:
            load(str(file), variables)
        assert str(refused.value).startswith(wrong)
