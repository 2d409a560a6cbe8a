"""The pytest plugin: a broker as a fixture, for whoever has asterism[broker] installed.

pytest loads this file in every run, so it imports next to nothing until the fixture is used.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from asterism.testing import Broker


@pytest.fixture(scope="session")
def asterism_broker() -> Iterator["Broker"]:
    """One running broker for the whole session; give each test topics of its own."""
    from asterism.testing import Broker

    with Broker() as broker:
        yield broker
