"""A cluster of Spark's own: a master and two workers, with nothing of ours but a zip."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from asterism.spark.java import java_home
from tests.spark.world import World

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 120
CLASSES = "org.apache.spark.deploy"
MASTER = re.compile(r"Starting Spark master at (spark://\S+)")

SCRIPT = """
import sys, asterism.spark
master, snapshot, folder = sys.argv[1:]
spark = asterism.spark.session(master, {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "90s",
})
spark.sparkContext.addPyFile(str(asterism.spark.package(folder)))
frame = spark.read.format("asterism").option("rowsPerPartition", "20").load(snapshot)
print("rows", frame.count(), frame.filter("topic = 'own'").count())

def where(_):
    import os, time, asterism.storage
    time.sleep(0.2)  # so that one executor does not do it all
    return asterism.storage.__file__, os.getppid()

found = spark.sparkContext.parallelize(range(8), 8).map(where).collect()
print("zipped", all(".zip" in path for path, _ in found))
print("executors", len({daemon for _, daemon in found}))
spark.stop()
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers."""
    started: list[subprocess.Popen[bytes]] = []
    spark_class = Path(pyspark.__path__[0]) / "bin" / "spark-class"
    environ = {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_DIR": str(tmp_path / "workers"),
    }

    def start(*arguments: str) -> Path:
        log = tmp_path / f"{len(started)}.log"
        with open(log, "wb") as file:
            started.append(
                subprocess.Popen(
                    [spark_class, *arguments], env=environ, stdout=file, stderr=file, cwd=tmp_path
                )
            )
        return log

    try:
        log = start(f"{CLASSES}.master.Master", *at_loopback())
        address = said(log, MASTER)
        for _ in range(2):
            start(f"{CLASSES}.worker.Worker", *at_loopback(), "-c", "1", "-m", "768m", address)
        yield address
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(WAIT_S)


def at_loopback() -> list[str]:
    return ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]


def said(log: Path, pattern: re.Pattern[str]) -> str:
    """What a process has logged, once it has."""
    until = time.monotonic() + WAIT_S
    while (found := pattern.search(log.read_text())) is None:
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)
    return found[1]


def test_executors_of_a_cluster_read_with_the_zip_alone(
    master: str, world: World, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, master, str(world.folder), str(tmp_path / "zip")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=3 * WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5_000:]
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line[:1].islower())
    assert told["rows"] == f"{len(world.messages)} 5"
    assert (told["zipped"], told["executors"]) == ("True", "2")
