"""The Node client @nats-io/transport-node, unchanged: the parts of ``smoke.cjs``, each once."""

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conformance.nats.conftest import NatsServer, Started

pytestmark = pytest.mark.process

PACKAGE = "@nats-io/transport-node"
SCRIPT = Path(__file__).with_name("smoke.cjs")
INSTALL_S = 120.0
RUN_S = 60.0
PARTS = [
    *("publishAndSubscribe", "requestAndReply", "noResponders", "requestMany", "queueGroups"),
    *("headers", "maximum", "largePayload", "drainSubscription", "roundTripAndStats"),
    "drainConnection",
]


@pytest.fixture(scope="session")
def modules(pytestconfig: pytest.Config) -> Path:
    """A folder of modules with the client in it, which is kept for the next run."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(
                f"{program} is not on the path (the packages nodejs and npm in most systems)"
            )
    cache = pytestconfig.cache
    assert cache is not None
    folder = cache.mkdir("nats-node")
    modules = folder / "node_modules"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (modules / PACKAGE / "package.json").exists():
            command = [
                "npm",
                "install",
                "--no-audit",
                "--no-fund",
                "--prefix",
                str(folder),
                PACKAGE,
            ]
            made = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
            if made.returncode != 0:
                pytest.skip(f"npm could not install {PACKAGE}: {made.stderr[-300:]}")
    return modules


def _parts_that_went_well(modules: Path, *arguments: str) -> list[str]:
    ran = subprocess.run(
        ["node", str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        env={**os.environ, "NODE_PATH": str(modules)},
    )
    assert ran.returncode == 0, ran.stderr
    return list(json.loads(ran.stdout))


def test_an_application_runs(server: NatsServer, modules: Path) -> None:
    assert _parts_that_went_well(modules, server.url) == PARTS


def test_an_application_runs_with_a_token(start: Started, modules: Path) -> None:
    guarded = start(token="t0ken")
    assert _parts_that_went_well(modules, guarded.url, "t0ken") == [*PARTS, "wrongToken"]
