"""What unit tests share: rows of both sorts, and which pairs of parameters mean something."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from asterism.rows import Rows
from asterism.storage.memory import MemoryRows
from asterism.storage.store import Store


@pytest.fixture(params=["memory", "rocksdb"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rows]:
    """Rows in memory, then rows in a real store."""
    if request.param == "memory":
        yield MemoryRows()
    else:
        with Store(tmp_path / "store") as store:
            yield store


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Push and online messages are not promised to outlive a restart: there is nothing to try."""
    items[:] = [item for item in items if not _restarts_memory(item)]


def _restarts_memory(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    kind = parameters.get("kind")
    return parameters.get("restarts") is True and isinstance(kind, dict) and "mode" in kind
