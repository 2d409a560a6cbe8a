"""One Spark for all tests of a run: to start it takes longer than most of them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import asterism.spark

CONFIG = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session: SparkSession = asterism.spark.session("local[2]", CONFIG)
    yield session
    session.stop()
