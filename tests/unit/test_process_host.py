"""Where the sockets between the processes are, and that a process is the only one of its name."""

import os
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from asterism.config import load
from asterism.process_host import SOCKET_PATH_MAX, TakenError, socket_address, take_name


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
