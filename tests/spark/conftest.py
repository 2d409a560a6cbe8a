"""What the tests of Spark share: one session for the whole run, and a snapshot of a busy broker."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import asterism.spark
from tests.spark.world import World, make_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """Starting one takes ten seconds and more: there is one for all tests of Spark."""
    scratch = tmp_path_factory.mktemp("spark")
    running = asterism.spark.session(
        "local[2]",
        {
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "1g",
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        },
    )
    running.sparkContext.setLogLevel("OFF")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A snapshot of a broker that held something of everything, and what it held."""
    folder: Path = tmp_path_factory.mktemp("world")
    return make_world(folder)
