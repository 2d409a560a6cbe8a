"""Tables of a snapshot that are made by hand, so that each row of them is known."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from asterism.spark.schemas import SCHEMAS

TAKEN = datetime(2026, 1, 31, 12, tzinfo=UTC)
MESSAGE = {
    "topic": "orders",
    "kind": "pool",
    "status": "waiting",
    "mode": "durable",
    "expect": "processed",
    "subjects": ["order/1"],
    "attributes": {},
    "receipt": False,
    "accepted_at": TAKEN,
    "attempts": 0,
    "payload_bytes": 3,
    "payload": b"abc",
    "store": 0,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "messages": {**MESSAGE, "sequence": 1, "max_receivers": 1},
    "deliveries": {
        **{"topic": "orders", "sequence": 1, "status": "waiting", "attempts": 0},
        **{"accepted_at": TAKEN, "store": 0},
    },
    "receivers": {
        **{"topic": "orders", "receiver": "billing", "number": 16, "interests": ["**"]},
        **{"floor": 1, "parked": 0, "store": 0},
    },
    "topics": {
        **{"topic": "orders", "number": 1, "first_sequence": 1, "next_sequence": 1_000},
        **{"held": 0, "parked": 0, "drafting": 0, "completed": 0, "settings": {}},
        **{"snapshot_at": TAKEN, "store": 0},
    },
    "history": {
        **{name: MESSAGE[name] for name in ("topic", "mode", "expect", "subjects", "attributes")},
        **{"sequence": 1, "verdict": "ok", "accepted_at": TAKEN, "resolved_at": TAKEN},
        **{"ladder": [], "payload_bytes": 3, "payload": b"abc", "store": 0},
    },
}


def before(seconds: float) -> datetime:
    """So long before the snapshot was taken."""
    return TAKEN - timedelta(seconds=seconds)


def frame(spark: SparkSession, table: str, rows: Sequence[dict[str, Any]]) -> DataFrame:
    schema = cast(StructType, StructType.fromDDL(SCHEMAS[table]))
    whole = [{**DEFAULTS[table], **row} for row in rows]
    values = [tuple(row.get(name) for name in schema.names) for row in whole]
    # Kept, since each use would otherwise ask a Python process for the rows again.
    return spark.createDataFrame(values, schema).coalesce(1).persist()


def tables(spark: SparkSession, **rows: Sequence[dict[str, Any]]) -> dict[str, DataFrame]:
    """The five tables; those that are not given are empty, but for the topic ``orders``."""
    return {name: frame(spark, name, rows.get(name, [{}] * (name == "topics"))) for name in SCHEMAS}


def step(receiver: str, status: str, *times: datetime | None) -> tuple[Any, ...]:
    """An entry of a ladder: sent, received, ended."""
    return receiver, status, 1, *times
