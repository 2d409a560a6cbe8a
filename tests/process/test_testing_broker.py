"""The broker for users' tests: what it gives, what it restarts, what it leaves behind."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import asterism
from asterism.config import ConfigError
from asterism.testing import Broker, StartError
from tests.support.children import bounded
from tests.tidy.test_docs import ALL_SNIPPETS
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.process
WAIT_S = 20


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.01)


def all_pids(broker: Broker) -> set[int]:
    return {pid for pids in broker.pids().values() for pid in pids}


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


# --- what it gives --------------------------------------------------------------------------------


def test_it_has_an_address_that_answers(broker: Broker) -> None:
    with asterism.connect_blocking(broker.address) as node:
        assert node.query_status()["frontend"]["pid"] in broker.pids()["frontend"]
        assert len(node.query_status()["workers"]) == 2


def test_it_tells_its_processes_by_kind(broker: Broker) -> None:
    pids = broker.pids()
    assert {kind: len(each) for kind, each in pids.items()} == {
        "frontend": 1,
        "interests": 1,
        "worker": 2,
    }
    with asterism.connect_blocking(broker.address) as node:
        told = [status["pid"] for status in node.query_status()["workers"]]
    assert sorted(told) == sorted(pids["worker"])


def test_its_folder_is_its_own(broker: Broker) -> None:
    assert (broker.data_dir / "stores.json").exists()
    assert "is ready" in broker.logs()


def test_a_snapshot_has_a_manifest_and_every_store(broker: Broker) -> None:
    folder = broker.snapshot()
    assert folder.parent == broker.data_dir / "snapshots"
    assert (folder / "manifest.json").exists()
    assert len(list(folder.glob("store-*"))) == 8
    assert broker.snapshot() != folder


def test_a_snapshot_can_be_restored_as_the_document_says(tmp_path: Path) -> None:
    config = {"data_dir": str(tmp_path / "data")}
    with Broker(workers=1, config=config) as first:
        with asterism.connect_blocking(first.address) as node:
            node.create_topic("before")
        folder = first.snapshot()
        with asterism.connect_blocking(first.address) as node:
            node.create_topic("after")
    for store in json.loads((folder / "manifest.json").read_text())["stores"]:
        place = tmp_path / "data" / "stores" / f"{store['number']:04}"
        shutil.rmtree(place)
        shutil.copytree(folder / store["folder"], place)
    with (
        Broker(workers=1, config=config) as second,
        asterism.connect_blocking(second.address) as node,
    ):
        assert list(node.list_topics()) == ["before"]


# --- what it restarts -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["frontend", "interests", "worker"])
def test_restart_ends_the_processes_of_a_kind_and_waits_for_others(
    broker: Broker, kind: str
) -> None:
    before, address = broker.pids(), broker.address
    broker.restart(kind)
    after = broker.pids()
    assert not set(before[kind]) & set(after[kind])
    assert len(before[kind]) == len(after[kind])
    assert {other: pids for other, pids in before.items() if other != kind} == {
        other: pids for other, pids in after.items() if other != kind
    }
    assert broker.address == address
    with asterism.connect_blocking(address) as node:
        assert len(node.query_status()["workers"]) == 2


def test_one_worker_can_be_restarted_alone(broker: Broker) -> None:
    before = broker.pids()["worker"]
    broker.restart("worker", index=1, number=signal.SIGTERM)
    after = broker.pids()["worker"]
    assert after[0] == before[0] and after[1] != before[1]


def test_what_is_killed_from_outside_comes_back(broker: Broker) -> None:
    before = all_pids(broker)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(all_pids(broker) - before) == 4, "four new processes")
    broker.wait_ready()
    with asterism.connect_blocking(broker.address) as node:
        assert node.query_status()["workers"][1]["pid"] in broker.pids()["worker"]


def test_a_topic_outlives_the_kill_of_every_process(broker: Broker) -> None:
    with asterism.connect_blocking(broker.address) as node:
        node.create_topic("kept", max_attempts=7)
    for kind in broker.pids():
        broker.kill(kind)
    wait_for(lambda: len(all_pids(broker)) == 4, "four processes")
    broker.wait_ready()
    with asterism.connect_blocking(broker.address) as node:
        described = node.describe("kept")
    assert described.settings["max_attempts"] == 7


def test_a_kind_that_does_not_exist_is_refused(broker: Broker) -> None:
    with pytest.raises(ValueError, match="there are frontend, interests, worker"):
        broker.kill("back-end")
    with pytest.raises(ValueError, match="there is no worker 2; they are 0 to 1"):
        broker.restart("worker", index=2)


# --- configuration --------------------------------------------------------------------------------


def test_it_is_configured_like_any_other() -> None:
    config = {"stores": 3, "topic": {"max_attempts": 5}}
    with Broker(workers=1, config=config, env={"ASTERISM_AUTO_CREATE": "false"}) as broker:
        assert len(broker.pids()["worker"]) == 1
        assert len(list((broker.data_dir / "stores").glob("[0-9]*[0-9]"))) == 3
        with asterism.connect_blocking(broker.address) as node:
            node.create_topic("t")
            assert node.describe("t").settings["max_attempts"] == 5


def test_variables_of_the_surroundings_do_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTERISM_WORKERS", "5")
    monkeypatch.setenv("ASTERISM_NO_SUCH_KEY", "1")
    with Broker(workers=1) as broker:
        assert len(broker.pids()["worker"]) == 1


def test_a_wrong_configuration_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="wrokers"):
        Broker(config={"wrokers": 1}).start()


def test_a_door_that_is_not_installed_is_a_clear_error() -> None:
    with pytest.raises(StartError, match="there is no door 'side'"):
        Broker(doors=("side",))


def test_one_door_may_be_named_by_itself() -> None:
    with Broker(workers=1, doors="http") as broker:
        assert broker.http_url.startswith("http://127.0.0.1:")
        assert len(broker.pids()["http"]) == 1


def test_a_variable_is_text() -> None:
    with pytest.raises(TypeError, match="ASTERISM_WORKERS in env is of type int"):
        Broker(env={"ASTERISM_WORKERS": 1})  # type: ignore[dict-item]


def test_a_door_that_was_asked_for_is_not_left_out() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(StartError, match="Address already in use"),
    ):
        Broker(workers=1, doors=("http",), env={"MQ_PORT": str(other.getsockname()[1])}).start()


def test_a_variable_that_is_given_must_be_one() -> None:
    with pytest.raises(ConfigError, match="there is no variable ASTERISM_WROKERS"):
        Broker(env={"ASTERISM_WROKERS": "1"})


def test_a_broker_without_a_door_says_so(broker: Broker) -> None:
    assert not hasattr(broker, "http_url")
    with pytest.raises(StartError, match="without the door 'http'"):
        _ = broker.http_url
    with pytest.raises(AttributeError):
        _ = broker.no_such_thing


def test_a_broker_that_cannot_start_says_why_with_the_end_of_its_log() -> None:
    with Broker(workers=1) as first:
        taken = Broker(workers=1, config={"listen": first.address})
        with pytest.raises(StartError, match="frontend: ended with code 1") as refused:
            taken.start()
        assert "in use" in str(refused.value)


# --- what it leaves behind ------------------------------------------------------------------------


def test_nothing_is_left_of_it() -> None:
    with Broker(workers=1) as broker:
        pids, folder = all_pids(broker), broker.data_dir.parent
    assert all(map(is_gone, pids))
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="does not run"):
        _ = broker.address


def test_a_paused_process_does_not_keep_it_from_stopping() -> None:
    with Broker(workers=1) as broker:
        pids = all_pids(broker)
        broker.kill("worker", number=signal.SIGSTOP)
    assert all(map(is_gone, pids))


ORPHANS = """
import sys
from asterism.testing import Broker

with Broker(workers=1) as broker:
    print(*(pid for pids in broker.pids().values() for pid in pids), flush=True)
    sys.stdin.read()
"""


def test_its_processes_do_not_outlive_a_killed_owner(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", ORPHANS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )
    with bounded(owner):
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 3
        owner.kill()
    for pid in pids:
        wait_for(lambda pid=pid: is_gone(pid), f"the end of {pid}")  # type: ignore[misc]


# --- the fixture ----------------------------------------------------------------------------------

PLUGIN_USERS = """
import asterism
seen = []

def test_first(asterism_broker):
    with asterism.connect_blocking(asterism_broker.address) as node:
        node.create_topic("of-the-session")
    seen.append(asterism_broker.address)

def test_second(asterism_broker):
    assert seen == [asterism_broker.address]
    with asterism.connect_blocking(asterism_broker.address) as node:
        assert list(node.list_topics()) == ["of-the-session"]
"""


def run_pytest(folder: Path, tests: str, options: str = "") -> "subprocess.CompletedProcess[str]":
    """A run of somebody's tests, in an environment that has asterism."""
    (folder / "test_users.py").write_text(tests)
    (folder / "pyproject.toml").write_text(options)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--durations=0", str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


def use_plugin(folder: Path, tests: str = PLUGIN_USERS, options: str = "") -> str:
    """Somebody's tests, which pass; what pytest says."""
    done = run_pytest(folder, tests, options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_pytest_fixture_gives_one_broker_to_a_session(tmp_path: Path) -> None:
    assert "2 passed" in use_plugin(tmp_path)


def test_the_pytest_fixture_is_ready_within_two_seconds_of_its_second_use(tmp_path: Path) -> None:
    use_plugin(tmp_path)
    (setup,) = re.findall(r"([0-9.]+)s setup +\S*test_first", use_plugin(tmp_path))
    assert float(setup) < 2


FIXTURE_USERS = """
import asyncio

names = []

def test_a_topic_of_its_own(asterism_topic):
    names.append(asterism_topic)
    assert asterism_topic.startswith("test_a_topic_of_its_own")

def test_another_one(asterism_topic, asterism_node_blocking):
    assert asterism_topic not in names
    inbox = asterism_node_blocking.subscribe(asterism_topic, name="me")
    asterism_node_blocking.publish(asterism_topic, b"x")
    assert inbox.receive(timeout=10).payload == b"x"

def test_a_client_that_the_test_opens(asterism_topic, asterism_node):
    async def publish():
        async with asterism_node as node:
            return (await node.publish(asterism_topic, b"x")).sequence
    assert asyncio.run(publish()) == 1
"""


def test_the_pytest_fixtures_give_topics_and_clients(tmp_path: Path) -> None:
    assert "3 passed" in use_plugin(tmp_path, FIXTURE_USERS)


OPTION_USERS = """
def test_the_broker_is_as_it_was_asked_for(asterism_broker, asterism_node_blocking):
    assert asterism_broker.http_url.startswith("http://")
    assert len(asterism_broker.pids()["worker"]) == 1
    asterism_node_blocking.create_topic("t")
    assert asterism_node_blocking.describe("t").settings["max_attempts"] == 7
"""
OPTIONS = """
[tool.pytest.ini_options]
asterism_doors = "http"
asterism_workers = "1"
asterism_config = ["sync = '20ms'", "topic.max_attempts = 7"]
"""


def test_the_options_of_the_pytest_fixture_are_in_the_users_own_file(tmp_path: Path) -> None:
    assert "1 passed" in use_plugin(tmp_path, OPTION_USERS, OPTIONS)


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ('asterism_config = "topic ="', "asterism_config is not TOML"),
        ('asterism_workers = "many"', "asterism_workers is a whole number, not 'many'"),
        ('asterism_doors = "window"', "window"),
    ],
)
def test_a_bad_option_of_the_pytest_fixture_is_said(tmp_path: Path, option: str, why: str) -> None:
    done = run_pytest(tmp_path, PLUGIN_USERS, f"[tool.pytest.ini_options]\n{option}\n")
    assert done.returncode == 1
    assert why in done.stdout


def test_the_tests_and_options_of_the_page_for_users_work(tmp_path: Path) -> None:
    page = [one for one in ALL_SNIPPETS if one.document == "docs/testing-your-application.md"]
    tests = [one.text for one in page if "def test_" in one.text or "@pytest.fixture" in one.text]
    (options,) = (one.text for one in page if one.language == "toml")
    assert "2 passed" in use_plugin(tmp_path, "\n".join(tests), options)


def test_a_reset_leaves_no_topic_and_no_message(broker: Broker) -> None:
    with asterism.connect_blocking(broker.address) as node:
        node.create_topic("own", dedicated=True)
        node.publish("shared", b"x", max_receivers=1)
        inbox = node.subscribe("shared", name="me", credit=0)
        broker.reset()
        with pytest.raises(asterism.PeerError, match="topic_gone"):
            inbox.receive(WAIT_S)
        assert list(node.list_topics()) == []
        assert node.publish("shared", b"y").sequence > 0
