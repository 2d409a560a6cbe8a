"""The benchmark of the Pub/Sub door: each case runs, small. No speed is asserted."""

import json
from pathlib import Path
from typing import Any

import pytest

from asterism.cli import output
from tests.benchmark import bench_pubsub
from tests.benchmark.bench_pubsub import DOOR, NAMES, REFERENCE
from tests.support import pubsub_emulator

pytestmark = [pytest.mark.process, pytest.mark.slow]
SMALL = (
    *("--messages", "200", "--rounds", "1"),
    *("--streams", "3", "--subscriptions", "14", "--waiting", "300"),
)


def measured(tmp_path: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """What a small run writes."""
    path = tmp_path / "figures.json"
    assert bench_pubsub.main([*SMALL, *arguments, "--json", str(path)]) == code
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.mark.parametrize("case", NAMES)
def test_a_case_measures_the_servers_that_are_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    written = measured(tmp_path, "--cases", case)
    shown = capsys.readouterr().out
    assert written["notes"] == []
    assert {figure["case"] for figure in written["figures"]} == {case}
    here = [DOOR] if pubsub_emulator.missing() else [DOOR, REFERENCE]
    for figure in written["figures"]:
        assert figure["what"] in shown
        assert list(figure["rounds"]) == here
        if figure["unit"].endswith("/s"):
            assert all(figure[name] > 0 for name in here)


def test_without_the_emulator_the_door_is_measured_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(pubsub_emulator.JAR_VARIABLE, str(tmp_path / "none"))
    written = measured(tmp_path, "--cases", "latency")
    assert all(list(figure["rounds"]) == [DOOR] for figure in written["figures"])
    assert f"{DOOR} alone" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--cases", "nothing"], ["--messages", "0"]])
def test_wrong_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench_pubsub.main(arguments)
    assert ended.value.code == output.WRONG_USE
    assert arguments[0] in capsys.readouterr().err
