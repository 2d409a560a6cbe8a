"""Where the sockets between the processes are, whatever the data folder is called."""

import tempfile
from pathlib import Path

import pytest

from asterism.config import load
from asterism.process_host import SOCKET_PATH_MAX, socket_address


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
