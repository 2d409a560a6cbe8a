"""What a broker writes is for its own user alone, whatever it writes."""

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import asterism
from asterism.testing import Broker

pytestmark = pytest.mark.process
SECONDS_MAX = 30.0


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """The surroundings would let everybody read and write what is made."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)


def open_to_others(folder: Path) -> dict[str, str]:
    """Everything in a folder, and the folder itself, that others may use in any way."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and stat.S_IMODE(mode) & 0o077:
            found[str(path.relative_to(folder))] = stat.filemode(mode)
    return found


def test_nothing_that_a_broker_writes_can_be_read_by_others(tmp_path: Path) -> None:
    with Broker(workers=2, doors=("http",), keep=True) as broker:
        with asterism.connect_blocking(broker.address) as node:
            node.create_topic("own", dedicated=True)
            wait_until(lambda: list((broker.data_dir / "dedicated").glob("[0-9]*/topic.json")))
            node.subscribe("t", "**", name="reader", durable=True)
            node.publish_many("t", [b"x" * 1_000] * 100)
            node.publish("own", b"x")
        snapshot = broker.snapshot()
        broker.restart("worker")
        assert open_to_others(broker.data_dir) == {}
        assert open_to_others(broker.log_dir) == {}
        command = [sys.executable, "-m", "asterism", "snapshot", "copy", "latest"]
        told = [*command, str(tmp_path / "copies"), "--data", str(broker.data_dir)]
        subprocess.run(told, check=True, capture_output=True, timeout=SECONDS_MAX)
        assert (tmp_path / "copies" / snapshot.name / "manifest.json").exists()
        assert open_to_others(tmp_path / "copies") == {}
        data = broker.data_dir
    told = [sys.executable, "-m", "asterism", "doctor", "--data", str(data), "--json"]
    subprocess.run(told, check=False, capture_output=True, timeout=SECONDS_MAX)
    assert open_to_others(data) == {}
    shutil.rmtree(data.parent)


def test_a_data_folder_that_others_could_open_is_shut(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    with Broker(workers=1, config={"data_dir": str(data)}) as broker:
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        assert "other users could look into the data folder" in broker.logs()
