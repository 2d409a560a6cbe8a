"""The kinds of messages that a promise may be tried with, and what tests of restarts share."""

from typing import Any

import pytest

from asterism.errors import PeerError
from tests.support.core import CoreBroker

Kind = dict[str, Any]

ONE = pytest.param({"max_receivers": 1}, id="durable-one")
TWO = pytest.param({"max_receivers": 2}, id="durable-two")
ALL = pytest.param({"max_receivers": None}, id="durable-all")
PUSH = pytest.param({"mode": "push"}, id="push")
ONLINE = pytest.param({"mode": "online"}, id="online")

durable_kinds = pytest.mark.parametrize("kind", [ONE, TWO, ALL])
every_kind = pytest.mark.parametrize("kind", [ONE, TWO, ALL, PUSH, ONLINE])
# With a kind beside it, ``tests/unit/conftest.py`` leaves out restarts of what is in memory only.
across_restarts = pytest.mark.parametrize("restarts", [False, True], ids=["alive", "restarted"])


def come_back(broker: CoreBroker, restarts: bool, **subscribe: Any) -> None:
    """Where the test is of a restart: the worker is killed, and the receiver comes again."""
    if restarts:
        broker.restart()
        broker.tick()
        broker.subscribe(**subscribe)


def code_of(refusal: pytest.ExceptionInfo[PeerError]) -> str:
    return refusal.value.code
