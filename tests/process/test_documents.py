"""The snippets of the documents that need a broker, as they are written, in the order they stand.

Each document has a broker of its own. It and its doors listen on free ports, which are put in the
place of those that a reader has by default; ``.venv/bin/`` is where the reader's commands lie. A
snippet whose program is not on this machine is left out, and the test says so when it has run the
others.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asterism.testing import Broker
from tests.tidy import tree
from tests.tidy.test_docs import ALL_SNIPPETS, Snippet, commands

pytestmark = pytest.mark.process
DEFAULT_ADDRESS = "tcp://127.0.0.1:7700"
# What the doors say of themselves, by where the documents say that it is.
DEFAULT_URLS = {
    "http://localhost:8080": "http_url",
    "nats://127.0.0.1:4222": "nats_url",
    "http://127.0.0.1:8222": "nats_monitor_url",
    "http://127.0.0.1:8086": "pubsub_rest_url",
    "127.0.0.1:8085": "pubsub_address",
}
SECONDS_MAX = 60
# Programs in the documents that neither a shell nor Python brings, and how one comes by them.
PROGRAMS = {"curl": "install the package curl of this system, such as by `apt install curl`"}
DOCUMENTS = sorted({snippet.document for snippet in ALL_SNIPPETS if snippet.needs_broker})


@pytest.fixture(params=DOCUMENTS)
def document(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def broker() -> Iterator[Broker]:
    table = {"monitor": "127.0.0.1:0"}
    with Broker(doors=("http", "nats", "pubsub"), config={"nats": table}) as running:
        yield running


def script_of(snippet: Snippet, folder: Path) -> list[str]:
    if snippet.language == "python":
        path = folder / f"snippet_{snippet.line}.py"
        path.write_text(snippet.text)
        return [sys.executable, str(path)]
    lines = "\n".join(commands(snippet)).replace(".venv/bin/", "")
    return ["bash", "-e", "-o", "pipefail", "-c", lines]


def missing(snippet: Snippet, path: str) -> list[str]:
    """The programs of a snippet that are not here."""
    if snippet.language == "python":
        return []
    words = re.findall(r"[\w-]+", snippet.text)
    return [name for name in PROGRAMS if name in words and shutil.which(name, path=path) is None]


def test_the_snippets_of_a_document_run(document: str, broker: Broker, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(tree.ROOT),
        "ASTERISM_DATA_DIR": str(broker.data_dir),
    }
    left_out = []
    for snippet in ALL_SNIPPETS:
        if snippet.document != document or not snippet.needs_broker:
            continue
        if absent := missing(snippet, path):
            left_out += [f"{snippet} needs {name}: {PROGRAMS[name]}" for name in absent]
            continue
        text = snippet.text.replace(DEFAULT_ADDRESS, broker.address)
        for url, said in DEFAULT_URLS.items():
            text = text.replace(url, getattr(broker, said))
        here = snippet._replace(text=text)
        done = subprocess.run(
            script_of(here, tmp_path),
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == 0, f"{snippet}\n{snippet.text}\n{done.stdout}{done.stderr}"
    if left_out:
        pytest.skip("; ".join(left_out))
