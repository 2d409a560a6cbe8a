"""The pytest plugin: a broker and clients as fixtures, for tests with asterism[broker] installed.

pytest loads this file in every run, so it imports next to nothing until a fixture is used.
"""

import re
import secrets
import tomllib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from asterism.sdk.aio import Node
    from asterism.sdk.client import BlockingNode
    from asterism.testing import Broker

TEST_NAME_MAX = 60  # characters of a test's name that a topic has


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the broker, in ``pytest.ini`` or ``[tool.pytest.ini_options]``."""
    parser.addini("asterism_doors", "doors that asterism_broker opens, by name", type="args")
    parser.addini("asterism_workers", "how many workers asterism_broker has", default="2")
    parser.addini(
        "asterism_config",
        "the configuration of asterism_broker: lines as asterism.toml has them",
        type="linelist",
    )


@pytest.fixture(scope="session")
def asterism_broker(pytestconfig: pytest.Config) -> Iterator["Broker"]:
    """One running broker for the whole run; give each test topics of its own."""
    from asterism.testing import Broker

    workers = str(pytestconfig.getini("asterism_workers"))
    if not workers.isdecimal():
        raise pytest.UsageError(f"asterism_workers is a whole number, not {workers!r}")
    try:
        config = tomllib.loads("\n".join(pytestconfig.getini("asterism_config")))
    except tomllib.TOMLDecodeError as error:
        raise pytest.UsageError(f"asterism_config is not TOML: {error}") from None
    with Broker(int(workers), pytestconfig.getini("asterism_doors"), config) as broker:
        yield broker


@pytest.fixture
def asterism_topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that no other test uses. The first message creates the topic."""
    name = re.sub(r"[^\w.-]+", "-", request.node.name)[:TEST_NAME_MAX].strip("-")
    return f"{name}-{secrets.token_hex(4)}"


@pytest.fixture
def asterism_node(asterism_broker: "Broker") -> "Node":
    """An asyncio client of the broker, to be opened by the test: ``async with asterism_node``.

    The test opens it because only the test knows which event loop it runs on.
    """
    import asterism

    return asterism.connect(asterism_broker.address)


@pytest.fixture
def asterism_node_blocking(asterism_broker: "Broker") -> Iterator["BlockingNode"]:
    """A connected blocking client of the broker; it is closed after the test."""
    import asterism

    with asterism.connect_blocking(asterism_broker.address) as node:
        yield node
