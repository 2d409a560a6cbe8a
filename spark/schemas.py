"""The tables that Spark reads out of a snapshot: their columns and types. Imports no Spark.

Each is the text of a Spark schema, so that the driver, the executors, the documents and the tests
all take it from here. Times are timestamps in UTC; what is not there is null.
"""

from typing import Final

_MESSAGE: Final = (
    "id BINARY, mode STRING, expect STRING, subjects ARRAY<STRING>, "
    "attributes MAP<STRING, STRING>, priority BIGINT, ordering_key STRING, max_receivers BIGINT"
)

SCHEMAS: Final[dict[str, str]] = {
    # What a topic holds. `kind` is "pool" (for one receiver) or "log" (for several); `status` is of
    # the ladder: drafting, waiting, sent, received, failed. Of a message for several receivers it
    # is waiting, or failed once it is there for its parked deliveries alone: see `deliveries`.
    "messages": (
        "topic STRING, sequence BIGINT, kind STRING, status STRING, "
        f"{_MESSAGE}, receipt BOOLEAN, accepted_at TIMESTAMP, expires_at TIMESTAMP, "
        "deliver_at TIMESTAMP, attempts INT, payload_bytes BIGINT, payload BINARY, store INT"
    ),
    # What each receiver has still to do, or has failed at: a row for a message and a receiver.
    # `receiver` is null where a message for one receiver waits for whoever comes first; `status` is
    # waiting, sent, received or failed. What is done with is gone, and is in `history`.
    "deliveries": (
        "topic STRING, sequence BIGINT, receiver STRING, status STRING, attempts INT, "
        "accepted_at TIMESTAMP, sent_at TIMESTAMP, deadline_at TIMESTAMP, failed_at TIMESTAMP, "
        "reason STRING, store INT"
    ),
    # Durable receivers. All of the log before `floor` is done, moved or parked.
    "receivers": (
        "topic STRING, receiver STRING, number BIGINT, interests ARRAY<STRING>, floor BIGINT, "
        "parked BIGINT, store INT"
    ),
    # Topics, with their counts at the moment of the snapshot and all settings that hold for them.
    "topics": (
        "topic STRING, number BIGINT, first_sequence BIGINT, next_sequence BIGINT, held BIGINT, "
        "parked BIGINT, drafting BIGINT, completed BIGINT, settings MAP<STRING, STRING>, "
        "snapshot_at TIMESTAMP, store INT"
    ),
    # How messages ended, of topics whose setting `history` keeps it. `ladder` has an entry for each
    # receiver; a payload is there with history = "full" alone.
    "history": (
        f"topic STRING, sequence BIGINT, verdict STRING, {_MESSAGE}, accepted_at TIMESTAMP, "
        "resolved_at TIMESTAMP, ladder ARRAY<STRUCT<receiver: STRING, status: STRING, "
        "attempts: INT, sent_at: TIMESTAMP, received_at: TIMESTAMP, ended_at: TIMESTAMP>>, "
        "payload_bytes BIGINT, payload BINARY, store INT"
    ),
}


def columns_in(schema: str) -> dict[str, str]:
    """The columns of a schema's text, and their types."""
    columns: dict[str, str] = {}
    depth, begin = 0, 0
    for at, character in enumerate(schema + ","):
        depth += (character == "<") - (character == ">")
        if character == "," and depth == 0:
            name, _, kind = schema[begin:at].strip().partition(" ")
            columns[name] = kind
            begin = at + 1
    return columns
