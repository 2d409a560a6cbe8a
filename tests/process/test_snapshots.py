"""``asterism snapshot`` against a broker that runs, under load: taken, verified, kept, copied."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import asterism
from asterism.cli import main
from asterism.storage.keys import TopicKeys, number_at_end
from asterism.storage.moving import FIRST_NUMBER
from asterism.storage.reading import ReadOnlyStore
from asterism.storage.snapshot import MANIFEST, list_snapshots, open_snapshot
from asterism.storage.verifying import verify
from asterism.testing import Broker
from tests.support.children import bounded
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.process
WAIT_S = 60
COUNT_OF_STORES = 8
BATCH = 50


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def home(broker: Broker) -> Iterator[Path]:
    """Where the broker's snapshots are; empty before each test and after it."""
    folder = broker.data_dir / "snapshots"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class Line:
    """The command line, with the broker's configuration."""

    def __init__(self, broker: Broker, capture: pytest.CaptureFixture[str]) -> None:
        self._config = str(broker.data_dir.parent / "asterism.toml")
        self._capture = capture
        self.error = ""

    def run(self, *arguments: object, code: int = 0) -> str:
        """What a command prints; it has to end with this code."""
        self._capture.readouterr()
        ended = main(["snapshot", *map(str, arguments), "--config", self._config])
        out, self.error = self._capture.readouterr()
        assert ended == code, f"{arguments} ended with {ended}: {out}{self.error}"
        return out

    def json(self, *arguments: object, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code))

    def create(self, *arguments: object) -> Path:
        return Path(self.json("create", *arguments)["folder"])


@pytest.fixture
def line(broker: Broker, home: Path, capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(broker, capsys)


class Traffic:
    """Publishes to some topics until it is told to end; how many were accepted."""

    def __init__(self, broker: Broker, topics: list[str]) -> None:
        self.accepted = dict.fromkeys(topics, 0)
        self._broker = broker
        self._is_over = threading.Event()
        self._flows = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._publish)

    def _publish(self) -> None:
        with asterism.connect_blocking(self._broker.address) as node:
            while not self._is_over.is_set():
                for topic in self.accepted:
                    payloads = [os.urandom(200) for _ in range(BATCH)]
                    node.publish_many(topic, payloads, expect="processed", max_receivers=1)
                    self.accepted[topic] += BATCH
                self._flows.release()

    def wait(self, rounds: int) -> None:
        """Waits until so many more batches of each topic were accepted."""
        for _ in range(rounds):
            assert self._flows.acquire(timeout=WAIT_S), "nothing is accepted any more"

    def __enter__(self) -> "Traffic":
        self._thread.start()
        self.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(WAIT_S)


# --- taking ---------------------------------------------------------------------------------------


def test_a_snapshot_under_load_fits_its_manifest_and_holds_all_accepted_before(
    broker: Broker, line: Line
) -> None:
    topics = [f"loaded-{number}" for number in range(6)]
    with Traffic(broker, topics) as traffic:
        for _ in range(3):
            before = dict(traffic.accepted)
            folder = line.create()
            after = dict(traffic.accepted)
            snapshot = open_snapshot(folder)
            found = verify(snapshot)
            assert found.problems == []
            for topic, least in before.items():
                said = snapshot.topics[topic]
                assert least <= said["held"] <= after[topic] + BATCH
                with ReadOnlyStore(snapshot.store_folder(said["store"])) as store:
                    rows = store.scan(*TopicKeys(said["number"]).range_of("m"))
                    sequences = [number_at_end(key) for key, _ in rows]
                assert sequences == list(range(said["first_sequence"], said["next_sequence"]))
            traffic.wait(2)


def fill_with_all_kinds(node: asterism.BlockingNode) -> None:
    """Messages in every state that a snapshot counts."""
    node.create_topic("kinds", max_attempts=1)
    node.create_receiver("kinds", "one")
    node.create_receiver("kinds", "two")
    node.publish_many("kinds", [b"log"] * 10, expect="processed")
    with node.subscribe("kinds", name="one") as inbox:
        taken = inbox.batch(4, WAIT_S)
        while len(taken) < 4:
            taken += inbox.batch(4 - len(taken), WAIT_S)
        taken[0].failed("broken", confirm=True)
        taken[1].failed("broken", confirm=True)
        taken[2].processed(confirm=True)
    node.create_topic("work", max_attempts=1)
    node.publish_many("work", [b"pool"] * 20, expect="processed", max_receivers=1)
    node.publish("work", b"later", expect="processed", max_receivers=1, deliver_at=2_000_000_000)
    with node.subscribe("work") as inbox:
        delivery = inbox.batch(1, WAIT_S)[0]
        delivery.failed("broken", confirm=True)
        inbox.batch(1, WAIT_S)[0].processed(confirm=True)
    node.draft("work")
    node.draft("work")


def test_what_a_snapshot_says_of_drafts_and_parked_ones_fits_their_rows(
    broker: Broker, line: Line
) -> None:
    with asterism.connect_blocking(broker.address) as node:
        fill_with_all_kinds(node)
    snapshot = open_snapshot(line.create())
    work, kinds = snapshot.topics["work"], snapshot.topics["kinds"]
    assert (work["held"], work["parked"], work["drafting"]) == (19, 1, 2)
    assert (kinds["held"], kinds["parked"]) == (10, 2)
    assert line.json("verify", snapshot.folder)["problems"] == []


def test_a_topic_with_a_store_of_its_own_is_in_the_snapshot(broker: Broker, line: Line) -> None:
    with asterism.connect_blocking(broker.address) as node:
        node.create_topic("alone", dedicated=True)
        node.publish_many("alone", [b"x"] * 7, expect="processed", max_receivers=1)
        snapshot = open_snapshot(line.create())
        node.delete_topic("alone")
    assert len(snapshot.stores) == COUNT_OF_STORES + 1
    assert snapshot.topics["alone"]["held"] == 7
    assert line.json("verify", snapshot.name)["good"]


def test_a_topic_with_a_store_of_its_own_is_restored_as_the_document_says(tmp_path: Path) -> None:
    config = {"data_dir": str(tmp_path / "data")}
    with Broker(workers=1, config=config) as first:
        with asterism.connect_blocking(first.address) as node:
            node.create_topic("alone", dedicated=True)
            node.publish_many("alone", [b"x"] * 7, expect="processed", max_receivers=1)
        snapshot = open_snapshot(first.snapshot())
        with asterism.connect_blocking(first.address) as node:
            node.delete_topic("alone")
    shutil.rmtree(tmp_path / "data" / "dedicated")
    owners = {topic["store"]: name for name, topic in snapshot.topics.items()}
    for store in snapshot.stores:
        number = store["number"]
        place = tmp_path / "data" / "stores" / f"{number:04}"
        if number >= FIRST_NUMBER:
            place = tmp_path / "data" / "dedicated" / str(number) / "store"
            place.parent.mkdir(parents=True)
            (place.parent / "topic.json").write_text(json.dumps({"topic": owners[number]}))
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(snapshot.folder / store["folder"], place)
    with (
        Broker(workers=1, config=config) as second,
        asterism.connect_blocking(second.address) as node,
    ):
        assert node.describe("alone").held == 7


def test_snapshots_that_are_asked_for_at_once_are_all_whole(broker: Broker, home: Path) -> None:
    with Traffic(broker, ["busy"]), ThreadPoolExecutor(4) as threads:
        folders = list(threads.map(lambda _: broker.snapshot(), range(6)))
    assert sorted(folders) == sorted(snapshot.folder for snapshot in list_snapshots(home))
    assert len(set(folders)) == 6
    for folder in folders:
        assert verify(open_snapshot(folder)).problems == []


def test_a_worker_that_is_killed_meanwhile_leaves_a_whole_snapshot_or_none(
    broker: Broker, home: Path
) -> None:
    with Traffic(broker, ["killed-0", "killed-1"]) as traffic, ThreadPoolExecutor(1) as threads:
        for index in (0, 1, 0):
            taking = threads.submit(broker.snapshot)
            broker.restart("worker", index=index)
            try:
                folder = taking.result(WAIT_S)
            except (asterism.PeerError, ConnectionError, TimeoutError):
                continue
            assert verify(open_snapshot(folder)).problems == []
            traffic.wait(1)
    # Nothing but whole ones is left.
    found = [snapshot.folder for snapshot in list_snapshots(home)]
    assert sorted(found) == sorted(home.iterdir())


def test_a_finished_snapshot_is_never_written_over(broker: Broker, line: Line) -> None:
    folder = line.create()
    with asterism.connect_blocking(broker.address) as node:
        with pytest.raises(asterism.PeerError, match="finished snapshot") as refused:
            node.snapshot(folder.name)
        assert refused.value.code == "bad_request"
    assert line.json("verify", folder)["good"]


NO_NAMES = [
    "..",
    ".",
    "",
    "a/..",
    "../x",
    "a/b",
    ".hidden",
    "a\0b",
    "/asterism-x",
    "x\n",
    "x.tmp",
]


@pytest.mark.parametrize("name", NO_NAMES, ids=repr)
def test_a_snapshot_is_a_folder_among_the_snapshots_and_nowhere_else(
    name: str, broker: Broker, home: Path
) -> None:
    before = sorted(path.name for path in broker.data_dir.iterdir())
    for named in (name, f"{home}/{name}"):
        with asterism.connect_blocking(broker.address) as node:
            with pytest.raises(asterism.PeerError, match="a snapshot is a folder in") as refused:
                node.snapshot(named)
            assert refused.value.code == "bad_request"
    assert sorted(path.name for path in broker.data_dir.iterdir()) == before


def lay_link(home: Path, to: Path) -> None:
    """A snapshot that nobody waits for any more may make the folder once again."""
    for _ in range(100):
        shutil.rmtree(home, ignore_errors=True)
        with suppress(FileExistsError):
            home.symlink_to(to)
            return
    raise AssertionError(f"{home} comes back for ever")


def test_snapshots_go_through_no_link(broker: Broker, home: Path, tmp_path: Path) -> None:
    with asterism.connect_blocking(broker.address) as node:
        lay_link(home, tmp_path)
        try:
            with pytest.raises(asterism.PeerError, match="is a link"):
                node.snapshot("one")
        finally:
            home.unlink()
        home.mkdir()
        (home / "two").symlink_to(tmp_path)
        with pytest.raises(asterism.PeerError, match="is a link"):
            node.snapshot("two")
    assert not list(tmp_path.glob("*/store-*")) and not list(tmp_path.glob("store-*"))


def test_there_are_only_so_many_snapshots_and_the_refusal_says_how_to_delete_one() -> None:
    with (
        Broker(workers=1, config={"max_snapshots": 2, "stores": 1}) as small,
        asterism.connect_blocking(small.address) as node,
    ):
        first = small.snapshot()
        node.snapshot("never-finished")
        for _ in range(2):
            with pytest.raises(asterism.PeerError, match="asterism snapshot delete") as refused:
                small.snapshot()
            assert "max_snapshots" in refused.value.detail
        assert len(list(first.parent.iterdir())) == 2
        # Nobody takes it any more: it is cleared when its room is wanted.
        abandoned = first.parent / "never-finished"
        for path in (*abandoned.iterdir(), abandoned):
            os.utime(path, (1, 1))
        assert small.snapshot().exists()
        assert not abandoned.exists() and first.exists()


# --- listing, deleting, keeping -------------------------------------------------------------------


def test_snapshots_are_listed_and_deleted_by_name(line: Line, home: Path) -> None:
    assert "no snapshot in" in line.run("list")
    first, second, third = (line.create() for _ in range(3))
    (home / "20200101T000000Z" / "store-0000").mkdir(parents=True)
    listed = line.json("list")
    assert [each["folder"] for each in listed["snapshots"]] == [str(first), str(second), str(third)]
    assert listed["unfinished"] == ["20200101T000000Z"]
    assert listed["snapshots"][0]["own_bytes"] < listed["snapshots"][0]["bytes"] / 2
    shown = line.run("list")
    assert first.name in shown
    assert "20200101T000000Z  is not finished" in shown
    assert line.json("delete", first.name, third)["deleted"] == [first.name, third.name]
    assert [each["name"] for each in line.json("list")["snapshots"]] == [second.name]
    line.run("delete", "20200101T000000Z", code=1)
    assert "--unfinished" in line.error
    line.run("delete", "20200101T000000Z", "--unfinished")
    assert list(home.iterdir()) == [second]


def test_snapshots_are_kept_by_number_and_by_age(line: Line, home: Path) -> None:
    names = [line.create().name for _ in range(4)]
    assert line.json("delete", "--older-than", "1h")["deleted"] == []
    assert line.json("delete", "--keep", 3)["deleted"] == names[:1]
    created = line.json("create", "--keep", 2)
    assert created["deleted"] == names[1:3]
    assert line.json("delete", "--keep", 1, "--older-than", "1d")["deleted"] == []
    assert line.json("delete", "--older-than", "0s")["deleted"] == names[3:]
    assert [path.name for path in home.iterdir()] == [Path(created["folder"]).name]


def test_the_newest_is_named_latest(line: Line, home: Path) -> None:
    line.run("verify", "latest", code=1)
    assert "there is no snapshot here" in line.error
    first, second = line.create(), line.create()
    assert line.json("verify", "latest")["folder"] == str(second)
    assert line.json("delete", "latest")["deleted"] == [second.name]
    assert line.json("verify", "latest")["folder"] == str(first)


def test_a_wrong_use_is_told(line: Line) -> None:
    line.run("delete", code=2)
    assert "name snapshots to delete" in line.error
    line.run("delete", "a", "--keep", 1, code=2)
    for age in ("7", "d", "-1d", "soon"):
        with pytest.raises(SystemExit):
            line.run("delete", f"--older-than={age}")


# --- verifying ------------------------------------------------------------------------------------


@pytest.fixture
def folder(broker: Broker, line: Line) -> Path:
    """A snapshot with something in it."""
    with asterism.connect_blocking(broker.address) as node:
        payloads = [os.urandom(2_000) for _ in range(500)]
        node.publish_many("bytes", payloads, expect="processed", max_receivers=1)
    return line.create()


def table_of(folder: Path) -> Path:
    return max(folder.rglob("*.sst"), key=lambda path: path.stat().st_size)


def flip(path: Path) -> None:
    """Flips a bit; of a file of its own, for it is one with the broker's."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)


def test_verify_finds_a_flipped_byte_and_a_missing_file(folder: Path, line: Line) -> None:
    told = line.json("verify", folder.name)
    assert told["good"]
    assert told["rows"] > 500
    assert "is whole" in line.run("verify", folder)
    flip(table_of(folder))
    told = line.json("verify", folder.name, code=1)
    assert "Corruption" in told["problems"][0]
    assert "is damaged: 1 found" in line.run("verify", folder, code=1)
    table_of(folder).unlink()
    assert "No such file" in line.run("verify", folder, code=1)


def test_verify_refuses_what_is_no_whole_snapshot(folder: Path, line: Line, home: Path) -> None:
    manifest = folder / MANIFEST
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[: len(whole) // 2])
    line.run("verify", folder, code=1)
    assert "manifest.json is damaged" in line.error
    manifest.unlink()
    line.run("verify", folder, code=1)
    assert "it has no manifest.json" in line.error
    line.run("verify", "nothing", code=1)
    assert "no such folder" in line.error
    manifest.write_bytes(whole.replace(b'"version": 1', b'"version": 2'))
    line.run("verify", folder, code=1)
    assert "format 2" in line.error
    assert line.json("list")["snapshots"] == []


def test_verify_notes_digests_when_asked(folder: Path, line: Line) -> None:
    line.run("verify", folder, "--write")
    options = next(folder.rglob("OPTIONS-*"))
    flip(options)
    assert options.name in line.run("verify", folder, code=1)


# --- copying --------------------------------------------------------------------------------------


def test_a_copy_is_compared_and_stands_alone(folder: Path, line: Line, tmp_path: Path) -> None:
    told = line.json("copy", folder.name, tmp_path / "mounted")
    assert told["folder"] == str(tmp_path / "mounted" / folder.name)
    line.run("delete", folder.name)
    assert line.json("verify", told["folder"])["good"]
    listed = line.json("list", tmp_path / "mounted")["snapshots"]
    assert [each["folder"] for each in listed] == [told["folder"]]
    line.run("copy", told["folder"], tmp_path / "mounted", code=1)
    assert "there already" in line.error


def test_what_cannot_be_copied_is_told(folder: Path, line: Line, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line.run("copy", folder, tmp_path / "file" / "copies", code=1)
    assert "could not be copied here" in line.error
    table_of(folder).unlink()
    line.run("copy", folder, tmp_path / "copies", code=1)
    assert "it is missing" in line.error
    line.run("list", tmp_path / "file", code=1)
    assert "Not a directory" in line.error


# It stops before it syncs its file of this number, says so, and waits there to be killed.
STOPPING = """
import os, sys
from asterism.cli import main

count, true_sync = 0, os.fsync

def stopping(descriptor):
    global count
    count += 1
    if count == int(sys.argv[1]):
        os.write(1, b"here\\n")
        sys.stdin.read()
    true_sync(descriptor)

os.fsync = stopping
main(["snapshot", "copy", *sys.argv[2:]])
"""


@pytest.mark.parametrize("at", ["the first file", "the middle", "the manifest", "the name"])
def test_a_copy_that_is_killed_is_no_snapshot(
    folder: Path, line: Line, tmp_path: Path, at: str
) -> None:
    files = sum(len(store["files"]) for store in open_snapshot(folder).stores)
    folders = COUNT_OF_STORES
    last = files + folders  # each file is synced, and each folder of them
    stop = {"the first file": 1, "the middle": last // 2, "the manifest": last + 1}.get(
        at, last + 2
    )
    command = [sys.executable, "-c", STOPPING, str(stop), str(folder), str(tmp_path / "copies")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with bounded(
        subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ) as copying:
        assert copying.stdout is not None
        assert copying.stdout.readline() == b"here\n"
        copying.send_signal(signal.SIGKILL)
    assert list_snapshots(tmp_path / "copies") == []
    (left,) = (tmp_path / "copies").iterdir()
    line.run("verify", left, code=1)
    copied = Path(line.json("copy", folder, tmp_path / "copies")["folder"])
    assert list((tmp_path / "copies").iterdir()) == [copied]
    assert line.json("verify", copied)["good"]
