"""The benchmark of the NATS door: each case runs, small, on both servers. No speed is asserted."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from asterism.cli import output
from asterism.cli.bench_clients import BenchError
from asterism.cli.bench_servers import NATS_PACKAGES, NATS_SERVER, not_installed
from tests.benchmark import bench_nats
from tests.benchmark.bench_nats import DOOR, NAMES, REFERENCE
from tests.benchmark.turns import Case, Reading, Round, Side

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(not_installed(NATS_PACKAGES, NATS_SERVER)), reason="nats-server or nats-py is missing"
    ),
]
SMALL = ("--messages", "200", "--connections", "12", "--rounds", "1")


def measured(tmp_path: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """What a small run writes."""
    path = tmp_path / "figures.json"
    assert bench_nats.main([*SMALL, *arguments, "--json", str(path)]) == code
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.mark.parametrize("case", NAMES)
def test_a_case_measures_both_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    written = measured(tmp_path, "--cases", case)
    shown = capsys.readouterr().out
    assert written["notes"] == []
    assert {figure["case"] for figure in written["figures"]} == {case}
    rates = [figure for figure in written["figures"] if figure["unit"].endswith("/s")]
    assert rates or case == "request"
    for figure in written["figures"]:
        assert figure["what"] in shown
        assert set(figure["rounds"]) == {DOOR, REFERENCE}
    for figure in rates:
        assert figure[DOOR] > 0
        assert figure[REFERENCE] > 0
        assert figure["ratio"] > 0


def test_a_case_that_fails_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def broken(side: Side) -> Iterator[Round]:
        def measure(count: int) -> list[Reading]:
            raise BenchError(f"{side.name} broke")

        yield measure

    @contextmanager
    def whole(side: Side) -> Iterator[Round]:
        yield lambda count: [Reading("it", "deliveries/s", count)]

    made = {"throughput": Case(broken), "request": Case(whole)}
    monkeypatch.setattr(bench_nats, "cases", lambda count: made)
    written = measured(tmp_path, "--cases", "throughput,request", code=output.REFUSED)
    assert written["notes"] == [f"throughput failed: {DOOR} broke"]
    assert {figure["case"] for figure in written["figures"]} == {"request"}


@pytest.mark.parametrize("arguments", [["--cases", "nothing"], ["--messages", "0"]])
def test_wrong_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench_nats.main(arguments)
    assert ended.value.code == output.WRONG_USE
    assert arguments[0] in capsys.readouterr().err
