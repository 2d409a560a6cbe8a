"""``asterism up`` and ``supervisor.conf``: they start, restart what ends, and stop cleanly."""

import configparser
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import asterism
from asterism.config import Config
from asterism.doors import Door
from asterism.doors_host import doors, is_installed
from asterism.process_host import read_run_file
from asterism.running import Program, programs_of, running_names
from asterism.variables import variable_of
from tests.support.children import bounded
from tests.support.doors import any_ports
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.process
WAIT_S = 20
INSTALLED = [door for door in doors().values() if is_installed(door)]
CONFIGURATION = ROOT / "supervisor.conf"


def wait_for(is_so: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: sockets live in it, and the length of their paths is limited."""
    path = Path(tempfile.mkdtemp(prefix="asterism-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def environ(**variables: str) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("ASTERISM_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), **any_ports(), **variables}


# --- asterism up ----------------------------------------------------------------------------------


@contextmanager
def up(folder: Path, *arguments: str, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    """A broker in the foreground, that is ended at the end if it has not been before."""
    with up_after((), folder, *arguments, **variables) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def up_after(
    before: Sequence[str], folder: Path, *arguments: str, **variables: str
) -> "AbstractContextManager[subprocess.Popen[str]]":
    """A broker in the foreground, with words before it such as ``nohup``."""
    process = subprocess.Popen(
        [*before, sys.executable, "-m", "asterism", "up", *arguments],
        cwd=folder,
        env=environ(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return bounded(process)


def ready_line(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """What ``up --json`` says when it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    said: dict[str, Any] = json.loads(line)
    return said


ANY_PORT = ("--listen", "tcp://127.0.0.1:0", "--json")


def pids_of(said: dict[str, Any]) -> list[int]:
    return [pid for pids in said["pids"].values() for pid in pids]


def test_up_says_where_every_door_is_and_stops_at_an_interrupt(folder: Path) -> None:
    with up(folder, "--listen", "tcp://127.0.0.1:0", "--workers", "1") as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(len(INSTALLED) + 4)]
        assert "is running" in said[0]
        assert "ZeroMQ" in said[1] and "tcp://127.0.0.1:" in said[1]
        for door, line in zip(INSTALLED, said[2:], strict=False):
            assert door.name in line and "127.0.0.1:" in line
        assert str(folder / "asterism-data") in said[-2]
        wanted = {program.name for program in programs_of(1, INSTALLED)}
        assert running_names(folder / "asterism-data" / "run").keys() == wanted
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert not running_names(folder / "asterism-data" / "run")


def test_up_runs_beside_the_variables_of_a_kubernetes_service_and_says_so_once(
    folder: Path,
) -> None:
    variables = {"ASTERISM_PORT": "tcp://10.0.0.1:7700", "ASTERISM_SERVICE_HOST": "10.0.0.1"}
    with up(folder, *ANY_PORT, "--workers", "1", **variables) as process:
        ready_line(process)
        process.terminate()
        assert process.wait(WAIT_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == (
            "asterism: variables that asterism does not know are ignored: 'ASTERISM_PORT', "
            "'ASTERISM_SERVICE_HOST'\n"
        )
    logs = [path.read_text() for path in (folder / "asterism-data" / "log").iterdir()]
    assert logs and not any("ASTERISM_PORT" in log for log in logs)


def test_a_process_by_itself_logs_the_variables_that_it_does_not_know(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "asterism.router.interests_host"],
        cwd=folder,
        env=environ(ASTERISM_WROKERS="3"),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        process.terminate()
        process.communicate()
    assert " warning interests " in said and "did you mean ASTERISM_WORKERS?" in said


def test_up_stops_at_sigterm_too(folder: Path) -> None:
    with up(folder, *ANY_PORT, "--workers", "1") as process:
        said = ready_line(process)
        process.terminate()
        assert process.wait(WAIT_S) == 0
    assert not any(map(psutil.pid_exists, pids_of(said)))


def test_up_under_nohup_outlives_its_terminal(folder: Path) -> None:
    with up_after(["nohup"], folder, *ANY_PORT, "--workers", "1") as process:
        said = ready_line(process)
        process.send_signal(signal.SIGHUP)
        (worker,) = said["pids"]["worker"]
        os.kill(worker, signal.SIGKILL)
        run = folder / "asterism-data" / "run"
        wait_for(lambda: read_run_file(run, "worker-0")["pid"] != worker, "another worker")
        assert process.poll() is None
        process.terminate()
        assert process.wait(WAIT_S) == 0


def test_up_takes_its_data_folder_and_a_configuration(folder: Path) -> None:
    (folder / "asterism.toml").write_text("workers = 1\n[topic]\nmax_attempts = 9\n")
    with up(folder, *ANY_PORT, "--config", "asterism.toml", "--data", "elsewhere") as process:
        said = ready_line(process)
        assert Path(said["data_dir"]) == folder / "elsewhere"
        with asterism.connect_blocking(said["doors"]["ZeroMQ"]) as node:
            node.create_topic("t")
            assert node.describe("t").settings["max_attempts"] == 9
        process.terminate()
        assert process.wait(WAIT_S) == 0


def test_up_restarts_what_ends_and_says_so(folder: Path) -> None:
    with up(folder, *ANY_PORT, "--workers", "1") as process:
        said = ready_line(process)
        (worker,) = said["pids"]["worker"]
        os.kill(worker, signal.SIGKILL)
        run = folder / "asterism-data" / "run"
        wait_for(lambda: read_run_file(run, "worker-0")["pid"] != worker, "another worker")
        with asterism.connect_blocking(said["doors"]["ZeroMQ"]) as node:
            assert node.query_status()["workers"][0]["pid"] != worker
        process.terminate()
        assert process.wait(WAIT_S) == 0
        assert process.stderr is not None
        assert "worker-0 was ended by SIGKILL: starting it" in process.stderr.read()


def test_nothing_outlives_a_killed_up(folder: Path) -> None:
    with up(folder, *ANY_PORT, "--workers", "1") as process:
        said = ready_line(process)
        process.kill()
        process.wait(WAIT_S)
        for pid in pids_of(said):
            wait_for(lambda pid=pid: not psutil.pid_exists(pid), f"the end of {pid}")  # type: ignore[misc]


def test_up_begins_where_a_killed_up_left_off(folder: Path) -> None:
    with up(folder, *ANY_PORT) as process:
        said = ready_line(process)
        with asterism.connect_blocking(said["doors"]["ZeroMQ"]) as node:
            node.create_topic("kept")
        process.kill()
        process.wait(WAIT_S)
    with up(folder, *ANY_PORT, "--workers", "3") as process:
        with asterism.connect_blocking(ready_line(process)["doors"]["ZeroMQ"]) as node:
            assert "kept" in list(node.list_topics())  # beside those of doors
        process.terminate()
        assert process.wait(WAIT_S) == 0


def test_a_second_up_on_the_same_folder_is_refused(folder: Path) -> None:
    with up(folder, *ANY_PORT, "--workers", "1") as first:
        ready_line(first)
        with up(folder, *ANY_PORT, "--workers", "1") as second:
            _, problem = second.communicate(timeout=WAIT_S)
            assert second.returncode == 1
            assert "another broker runs with this data folder" in problem
        assert first.poll() is None
        first.terminate()


SECOND = [
    ("frontend", "asterism.router"),
    ("interests", "asterism.router.interests_host"),
    ("worker-0", "asterism.actors", "--worker", "0"),
    *((door.name, door.module) for door in INSTALLED),
]


def test_a_second_process_of_a_name_is_refused_and_takes_nothing_from_the_first(
    folder: Path,
) -> None:
    variables = environ(
        ASTERISM_DATA_DIR=str(folder / "asterism-data"),
        ASTERISM_WORKERS="1",
        ASTERISM_LISTEN="tcp://127.0.0.1:0",
    )
    with up(folder, *ANY_PORT, "--workers", "1") as first:
        said = ready_line(first)
        run = folder / "asterism-data" / "run"
        running = running_names(run)
        with ExitStack() as ended:
            seconds = []
            for _, *command in SECOND:
                second = subprocess.Popen(
                    [sys.executable, "-m", *command],
                    env=variables,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                seconds.append(ended.enter_context(bounded(second)))
                ended.callback(second.kill)
            for (name, *_), second in zip(SECOND, seconds, strict=True):
                _, problem = second.communicate(timeout=WAIT_S)
                assert second.returncode == 1
                assert problem.count("\n") == 1
                assert f"{folder / 'asterism-data'}: {name}" in problem
                assert f"as process {running[name]}. Stop that broker first" in problem
        assert running_names(run) == running
        with asterism.connect_blocking(said["doors"]["ZeroMQ"]) as node:
            inbox = node.subscribe("t", "a/*")
            node.publish("t", b"1", subject="a/b")
            (delivery,) = inbox.batch(1, timeout=WAIT_S)
            assert delivery.payload == b"1"
        first.terminate()
        assert first.wait(WAIT_S) == 0


def test_an_up_that_cannot_start_says_why_and_leaves_nothing(folder: Path) -> None:
    (folder / "asterism-data").mkdir()
    (folder / "asterism-data" / "stores.json").write_text('{"stores": "many"}')
    with up(folder, *ANY_PORT) as process:
        _, problem = process.communicate(timeout=WAIT_S)
        assert process.returncode == 1
    assert "at its start; the last lines of" in problem
    assert f"{folder / 'asterism-data' / 'stores.json'}: is damaged: " in problem
    assert "delete the file" in problem and "Traceback" not in problem
    assert not running_names(folder / "asterism-data" / "run")


def test_an_up_whose_address_is_taken_says_what_to_do(folder: Path) -> None:
    with up(folder, *ANY_PORT, "--workers", "1") as first:
        taken = ready_line(first)["doors"]["ZeroMQ"]
        with up(folder, "--data", "other", "--listen", taken) as second:
            _, problem = second.communicate(timeout=WAIT_S)
            assert second.returncode == 1
        first.terminate()
    assert "Address already in use" in problem and "asterism up --listen" in problem
    assert "Traceback" not in problem and 'File "' not in problem


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


every_door = pytest.mark.parametrize("door", INSTALLED, ids=lambda door: door.name)


@every_door
def test_a_taken_port_of_a_door_is_told_and_the_broker_runs_without_the_door(
    folder: Path, door: Door[Any]
) -> None:
    name = door.name
    with taken_port() as port:
        variables = {variable_of(door.listen_key): f"127.0.0.1:{port}"}
        with up(folder, *ANY_PORT, "--workers", "1", **variables) as process:
            said = ready_line(process)
            assert name not in said["doors"] and said["pids"][name] == []
            with asterism.connect_blocking(said["doors"]["ZeroMQ"]) as node:
                node.publish("t", b"1")
            process.terminate()
            assert process.wait(WAIT_S) == 0
            assert process.stderr is not None
            problem = process.stderr.read()
    assert problem.count("\n") == 1
    assert problem.startswith(
        f"{name}: cannot listen on 127.0.0.1:{port}: Address already in use. Name another address "
        f"by {name}.listen"
    )
    assert problem.endswith(
        f" or `asterism up --{name} PORT`, leave this door out by `asterism up --no-{name}`, or "
        "stop the program that listens there, perhaps another broker. The broker runs without "
        "this door.\n"
    )


@every_door
def test_up_chooses_the_port_of_a_door_or_leaves_the_door_out(
    folder: Path, door: Door[Any]
) -> None:
    name = door.name
    with taken_port() as port:
        variables = {variable_of(door.listen_key): f"127.0.0.1:{port}"}
        for arguments, is_open in (
            ((f"--{name}", "0"), True),
            ((f"--{name}", "[::1]:0"), True),
            ((f"--no-{name}",), False),
        ):
            with up(folder, *ANY_PORT, *arguments, **variables) as process:
                said = ready_line(process)
                assert (name in said["doors"]) is is_open
                if "[::1]:0" in arguments:
                    assert "[::1]:" in said["doors"][name]
                process.terminate()
                assert process.wait(WAIT_S) == 0
                assert process.stderr is not None and process.stderr.read() == ""


def test_bin_up_takes_the_arguments_of_up_and_runs_without_a_door_that_is_taken(
    folder: Path,
) -> None:
    prepared = folder / "venv"
    (prepared / "bin").mkdir(parents=True)
    command = prepared / "bin" / "asterism"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m asterism "$@"\n')
    command.chmod(0o700)
    project = (ROOT / "pyproject.toml").read_bytes()
    sums = subprocess.run(["cksum"], input=project, capture_output=True, check=True).stdout
    (prepared / "asterism-up-stamp").write_text(f"{sums.decode().strip()} {ROOT}\n")
    with taken_port() as port:
        process = subprocess.Popen(
            [ROOT / "bin" / "up", *ANY_PORT, "--workers", "1", "--http", str(port)],
            cwd=folder,
            env=environ(ASTERISM_VENV=str(prepared)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            assert "http" not in ready_line(process)["doors"]
            process.terminate()
            assert process.wait(WAIT_S) == 0
            assert process.stderr is not None
            assert process.stderr.read().endswith("The broker runs without this door.\n")


def test_a_wrong_configuration_ends_up_with_code_2(folder: Path) -> None:
    (folder / "wrong.toml").write_text("wrokers = 1\n")
    with up(folder, "--config", "wrong.toml") as process:
        _, problem = process.communicate(timeout=WAIT_S)
        assert process.returncode == 2
    assert problem.count("\n") == 1 and "did you mean workers?" in problem
    assert not (folder / "asterism-data").exists()


def test_bin_up_explains_itself() -> None:
    done = subprocess.run([ROOT / "bin" / "up", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "usage: bin/up" in done.stdout


# --- supervisord ----------------------------------------------------------------------------------


@contextmanager
def supervised(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The configuration as it is, in a folder of its own; only the ports are free ones."""
    for file in (CONFIGURATION, *(ROOT / "gateways").glob("*/supervisor.conf")):
        place = folder / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", "supervisor.conf"],
        cwd=folder,
        env=environ(ASTERISM_LISTEN="tcp://127.0.0.1:0"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    with bounded(process):
        try:
            yield process
        finally:
            children = psutil.Process(process.pid).children() if process.poll() is None else []
            process.terminate()
            try:
                process.wait(WAIT_S)
            finally:
                for child in children:
                    if child.is_running():
                        child.kill()
                process.kill()


WANTED = {program.name for program in programs_of(Config().workers, INSTALLED)}


def wait_until_all_run(folder: Path, but: set[int] | None = None) -> dict[str, int]:
    run = folder / "asterism-data" / "run"
    wait_for(
        lambda: {n for n, pid in running_names(run).items() if pid not in (but or set())} == WANTED,
        "all processes",
    )
    return running_names(run)


def test_supervisord_runs_the_broker_as_it_is(folder: Path) -> None:
    with supervised(folder):
        running = wait_until_all_run(folder)
        address = read_run_file(folder / "asterism-data" / "run", "frontend")["address"]
        with asterism.connect_blocking(address) as node:
            told = [status["pid"] for status in node.query_status()["workers"]]
            assert told == [running[f"worker-{number}"] for number in range(Config().workers)]
        logs = {path.name for path in folder.glob("*.log")}
        assert logs == {"supervisord.log", *(f"asterism-{name}.log" for name in WANTED)}
    assert not running_names(folder / "asterism-data" / "run")


def test_supervisord_restarts_what_is_killed(folder: Path) -> None:
    with supervised(folder):
        before = set(wait_until_all_run(folder).values())
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        after = wait_until_all_run(folder, but=before)
        assert not before & set(after.values())


def test_supervisor_conf_and_the_configuration_agree_on_the_workers() -> None:
    read = configparser.RawConfigParser()
    read.read(CONFIGURATION)
    assert f'ASTERISM_WORKERS="{Config().workers}"' in read["supervisord"]["environment"]
    assert read["program:worker"]["numprocs"] == "%(ENV_ASTERISM_WORKERS)s"


def test_supervisor_conf_has_a_program_for_each_kind_of_process() -> None:
    read = configparser.RawConfigParser()
    read.read(CONFIGURATION)
    for program in programs_of(1):
        check_program(read, program)


@every_door
def test_each_door_has_a_program_in_its_own_folder(door: Door[Any]) -> None:
    read = configparser.RawConfigParser()
    assert read.read(ROOT / "gateways" / door.name / "supervisor.conf")
    (program,) = (each for each in programs_of(1, [door]) if each.kind == door.name)
    check_program(read, program)
    assert int(read[f"program:{door.name}"]["priority"]) == 400, "stopped before the front-end"


def check_program(read: configparser.RawConfigParser, program: Program) -> None:
    section = read[f"program:{program.kind}"]
    assert section["command"].startswith(f"python -m {program.module}")
    assert section["autorestart"] == "true"
    assert section["stopsignal"] == "TERM"
