"""Sockets between the processes, that a process is the only one of its name, and its log."""

import logging
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asterism.config import Config, ConfigError, load
from asterism.process_host import (
    SOCKET_PATH_MAX,
    Clock,
    TakenError,
    begin_logging,
    fields_of,
    socket_address,
    socket_folder,
    take_name,
)


def test_sockets_have_short_paths_however_long_those_of_the_folders_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long-" * 30)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    config = load(None, {"ASTERISM_DATA_DIR": str(long / "data")})
    other = load(None, {"ASTERISM_DATA_DIR": str(long / "other")})
    paths = [
        Path(socket_address(each, "interests").removeprefix("ipc://"))
        for each in (config, config, other)
    ]
    for path in set(paths):
        path.parent.rmdir()
    assert max(len(str(path)) for path in paths) <= SOCKET_PATH_MAX
    assert paths[0] == paths[1] != paths[2]


def test_sockets_are_in_the_data_folder_where_they_can_be() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        config = load(None, {"ASTERISM_DATA_DIR": folder})
        assert socket_address(config, "workers") == f"ipc://{folder}/run/workers.sock"


# --- one process of a name ------------------------------------------------------------------------


def test_a_name_has_one_process_in_a_data_folder(tmp_path: Path) -> None:
    config = load(None, {"ASTERISM_DATA_DIR": str(tmp_path / "data")})
    other = load(None, {"ASTERISM_DATA_DIR": str(tmp_path / "other")})
    held = [take_name(config, "worker-0"), take_name(config, "worker-1")]
    held.append(take_name(other, "worker-0"))
    with pytest.raises(TakenError) as refusal:
        take_name(config, "worker-0", wait_s=0)
    said = str(refusal.value)
    assert f"{tmp_path / 'data'}: worker-0" in said
    assert f"process {os.getpid()}." in said
    assert "Stop that broker first" in said and "\n" not in said
    for lock in held:
        os.close(lock)


def test_a_name_is_taken_as_soon_as_its_process_has_ended(tmp_path: Path) -> None:
    config = load(None, {"ASTERISM_DATA_DIR": str(tmp_path)})
    held = take_name(config, "interests")
    ends = threading.Timer(0.2, os.close, [held])
    ends.start()
    os.close(take_name(config, "interests", wait_s=20))
    ends.join()


def test_a_name_is_not_held_by_what_its_process_has_started(tmp_path: Path) -> None:
    config = load(None, {"ASTERISM_DATA_DIR": str(tmp_path)})
    held = take_name(config, "worker-0")
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        os.close(held)
        os.close(take_name(config, "worker-0", wait_s=0))
        child.kill()


# --- what others might lay in the way -------------------------------------------------------------


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Config, Path]]:
    """A configuration whose sockets need a short folder, and that folder."""
    config = load(None, {"ASTERISM_DATA_DIR": str(tmp_path / ("long-" * 30))})
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        monkeypatch.setattr(tempfile, "tempdir", home)
        folder = socket_folder(config)
        folder.rmdir()
        yield config, folder


def test_a_link_is_no_folder_for_sockets(short: tuple[Config, Path], tmp_path: Path) -> None:
    config, folder = short
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="remove it"):
        socket_folder(config)


def test_a_folder_for_sockets_that_others_can_open_is_refused(short: tuple[Config, Path]) -> None:
    config, folder = short
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="remove it"):
        socket_folder(config)


def test_a_lock_that_is_a_link_is_refused_and_what_it_names_is_left_alone(tmp_path: Path) -> None:
    config = load(None, {"ASTERISM_DATA_DIR": str(tmp_path / "data")})
    (tmp_path / "data" / "run").mkdir(parents=True)
    (tmp_path / "precious").write_text("as it was")
    (tmp_path / "data" / "run" / "worker-0.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigError, match=r"worker-0\.lock"):
        take_name(config, "worker-0", wait_s=0)
    assert (tmp_path / "precious").read_text() == "as it was"


# --- the log --------------------------------------------------------------------------------------

# Ends a line, moves the cursor, colours, clears, ends a line for some readers, reverses, hides.
NASTY = "\r\n\x1b[2J\x1b]0;owned\x07\x00\x7f\x85\u2028\u2029\u202e\u2066\u200b\ud800"


def logged(capsys: pytest.CaptureFixture[str], *event: object, **how: Any) -> str:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        begin_logging("worker-0", "info")
        logging.getLogger("asterism.test").error(*event, **how)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "event", [("%s",), ("cuts a client %s",)], ids=["a message", "a field of it"]
)
def test_what_a_peer_chose_cannot_forge_a_line_of_the_log(
    event: tuple[str], capsys: pytest.CaptureFixture[str]
) -> None:
    forged = f"x{NASTY}2026-01-01T00:00:00.000Z info frontend all is well"
    shown = forged if event == ("%s",) else fields_of(name="x\r\x1b[2Jwell")
    line = logged(capsys, *event, shown)
    assert line.endswith("\n") and line[:-1].isprintable()
    assert "well" in line


def test_an_error_whose_text_a_peer_chose_forges_no_event(
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        raise ValueError("wrong\n2026-01-01T00:00:00.000Z error frontend forged\x1b[2J")
    except ValueError:
        lines = logged(capsys, "ends by an error", exc_info=True)[:-1].split("\n")
    assert all(line.isprintable() for line in lines)
    assert all(line.startswith("  ") for line in lines[1:])
    assert "forged" in lines[-1]


def test_a_field_and_a_message_of_the_log_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(fields_of(name="x" * 100_000)) < 1_000
    assert len(logged(capsys, "x" * 100_000)) < 10_000


def test_the_clock_goes_on_where_that_of_the_system_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall_ns, steady_ns = 10**18, 10**12
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns)
    monkeypatch.setattr(time, "monotonic_ns", lambda: steady_ns)
    clock = Clock()
    began_ms = clock.now_ms()
    assert began_ms == wall_ns // 1_000_000
    wall_ns -= 3_600 * 10**9
    steady_ns += 5 * 10**9
    assert clock.now_ms() == began_ms + 5_000
    wall_ns += 7_200 * 10**9  # set forward: it follows
    assert clock.now_ms() == wall_ns // 1_000_000
