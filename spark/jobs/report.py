"""``asterism spark report``: what a snapshot says of a broker, as tables and as one page.

Each table is a function from the tables of a snapshot to one data frame, so that it can be asked of
any of them; ``run`` asks all and writes them as Parquet, as JSON, and into ``report.html``.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from asterism.spark.jobs.common import JobError, Tables, kept, query, read_tables
from asterism.spark.jobs.report_page import page
from asterism.storage.snapshot import Snapshot

PAGE: Final = "report.html"
PAYLOADS_MAX: Final = 25
RECEIVERS_MAX: Final = 50
SUBJECTS_MAX: Final = 50
SEGMENT_VALUES_MAX: Final = 100  # different names in one place of subjects; with more, it varies

# How old what waits is. The last bound is open.
AGES: Final = (
    (60, "under 1 min"),
    (600, "1 to 10 min"),
    (3_600, "10 to 60 min"),
    (86_400, "1 to 24 h"),
    (None, "over 1 day"),
)


def topics(tables: Tables) -> DataFrame:
    """Every topic with its counts."""
    return query(
        tables,
        """
        select topic, held, parked, drafting, completed, next_sequence,
               settings['history'] as history, snapshot_at
        from {topics} order by held desc, topic
        """,
    )


def backlog(tables: Tables) -> DataFrame:
    """What is still to be done, by topic, status and age: a message for each of its receivers."""
    cases = " ".join(
        f"when age_s < {bound} then {at}" for at, (bound, _) in enumerate(AGES) if bound is not None
    )
    names = ", ".join(f"'{name}'" for _, name in AGES)
    return query(
        tables,
        f"""
        with open as (
            select d.topic, d.status, d.accepted_at, m.payload_bytes
            from {{deliveries}} d left join {{messages}} m
              on m.topic = d.topic and m.sequence = d.sequence
            union all
            select topic, status, accepted_at, payload_bytes from {{messages}}
            where status = 'drafting'
        ), aged as (
            select open.*, greatest(0, unix_millis(t.snapshot_at) - unix_millis(accepted_at)) / 1000
                     as age_s
            from open join {{topics}} t on t.topic = open.topic
        )
        select topic, status, age_order, array({names})[age_order] as age, count(*) as deliveries,
               sum(payload_bytes) as payload_bytes, max(age_s) as oldest_s
        from (select *, case {cases} else {len(AGES) - 1} end as age_order from aged)
        group by topic, status, age_order order by topic, status, age_order
        """,
    )


def rates(tables: Tables) -> DataFrame:
    """By minute and topic: accepted, ended well, ended otherwise. Of topics that keep no history,
    only what they still hold is known. The first minute is not whole, since nobody knows when in
    it the messages began, nor is the one in which the snapshot was taken."""
    return query(
        tables,
        """
        with accepted as (
            select topic, sequence, accepted_at as at from {messages} where status <> 'drafting'
            union
            select topic, sequence, accepted_at as at from {history}
        ), counted as (
            select date_trunc('minute', at) as minute, topic, sum(accepted) as accepted,
                   sum(ok) as ended_ok, sum(other) as ended_otherwise
            from (
                select topic, at, 1L as accepted, 0L as ok, 0L as other from accepted
                union all
                select topic, resolved_at, 0L, if(verdict = 'ok', 1L, 0L),
                       if(verdict = 'ok', 0L, 1L)
                from {history}
            )
            group by minute, topic
        )
        select *, minute > (select min(minute) from counted)
                  and minute < (select date_trunc('minute', min(snapshot_at)) from {topics})
                    as whole
        from counted order by minute, topic
        """,
    )


_STEPS: Final = """
    select topic, accepted_at, step.receiver, step.status, step.attempts, step.sent_at,
           step.received_at, step.ended_at
    from {history} lateral view explode(ladder) as step
"""
_PERCENTILES: Final = """
    element_at(percentile_approx(ms, array(0.5, 0.95, 0.99), 10000), 1) as p50_ms,
    element_at(percentile_approx(ms, array(0.5, 0.95, 0.99), 10000), 2) as p95_ms,
    element_at(percentile_approx(ms, array(0.5, 0.95, 0.99), 10000), 3) as p99_ms,
    max(ms) as max_ms
"""


def ladder(tables: Tables) -> DataFrame:
    """From accepted to each step of the ladder, by topic."""
    return query(
        tables,
        f"""
        with steps as ({_STEPS}), timed as (
            select topic, 0 as step_order, 'sent' as step, accepted_at, sent_at as at from steps
            union all
            select topic, 1, 'received', accepted_at, received_at from steps
            union all
            select topic, 2, 'processed', accepted_at, ended_at from steps
            where status = 'processed'
        )
        select topic, step_order, step, count(*) as deliveries, {_PERCENTILES}
        from (select *, cast(unix_millis(at) - unix_millis(accepted_at) as double) as ms
              from timed where at is not null)
        group by topic, step_order, step order by topic, step_order
        """,
    )


def failures(tables: Tables) -> DataFrame:
    """What has failed for good and is parked, by its reason."""
    return query(
        tables,
        """
        select topic, coalesce(nullif(reason, ''), '(no reason given)') as reason,
               count(*) as deliveries, count(distinct receiver) as receivers,
               min(failed_at) as first_at, max(failed_at) as last_at
        from {deliveries} where status = 'failed'
        group by topic, 2 order by deliveries desc, topic, reason
        """,
    )


def endings(tables: Tables) -> DataFrame:
    """How messages ended, of topics that keep history."""
    return query(
        tables,
        """
        select topic, verdict, count(*) as messages, max(resolved_at) as last_at
        from {history} group by topic, verdict order by topic, verdict
        """,
    )


def receivers(tables: Tables) -> DataFrame:
    """Who is slow: from sent to the end of a delivery, and what still waits for each."""
    return query(
        tables,
        f"""
        with done as (
            select topic, receiver, count(*) as deliveries,
                   count_if(status in ('failed', 'unreachable')) as failed, {_PERCENTILES}
            from (select *, cast(unix_millis(ended_at) - unix_millis(sent_at) as double) as ms
                  from ({_STEPS}))
            group by topic, receiver
        ), open as (
            select d.topic, d.receiver, count_if(status <> 'failed') as waiting,
                   max(if(status <> 'failed', unix_millis(t.snapshot_at)
                       - unix_millis(d.accepted_at), null)) / 1000 as oldest_s
            from {{deliveries}} d join {{topics}} t on t.topic = d.topic
            where d.receiver is not null group by d.topic, d.receiver
        )
        select coalesce(done.topic, open.topic) as topic,
               coalesce(done.receiver, open.receiver) as receiver,
               coalesce(deliveries, 0L) as deliveries, coalesce(failed, 0L) as failed,
               p50_ms, p95_ms, p99_ms, max_ms, coalesce(waiting, 0L) as waiting, oldest_s
        from done full outer join open
          on done.topic = open.topic and done.receiver = open.receiver
        order by p95_ms desc nulls last, waiting desc, topic, receiver limit {RECEIVERS_MAX}
        """,
    )


_SEEN: Final = """
    select topic, sequence, subjects, payload_bytes, accepted_at, true as held from {messages}
    where status <> 'drafting'
    union all
    select h.topic, h.sequence, h.subjects, h.payload_bytes, h.accepted_at, false
    from {history} h left anti join {messages} m on m.topic = h.topic and m.sequence = h.sequence
"""


def payloads(tables: Tables) -> DataFrame:
    """The largest messages, held or in history."""
    return query(
        tables,
        f"""
        select topic, sequence, payload_bytes, array_join(subjects, ', ') as subjects, accepted_at,
               held
        from ({_SEEN}) where payload_bytes is not null
        order by payload_bytes desc, topic, sequence limit {PAYLOADS_MAX}
        """,
    )


def subjects(tables: Tables) -> DataFrame:
    """What messages are about, by volume; a message counts for each of its subjects.

    Subjects count by their shape. Of those of one topic with equally many segments, ``*`` stands
    for a segment with a digit where several such differ, and for any where there are very many.
    """
    return query(
        tables,
        f"""
        with counted as (
            select topic, subject, split(subject, '/') as segments, count(*) as messages,
                   sum(payload_bytes) as payload_bytes
            from (select topic, payload_bytes, explode(subjects) as subject from ({_SEEN}))
            group by topic, subject
        ), places as (
            select topic, length, place, count(distinct segment) as names,
                   count(distinct if(segment rlike '[0-9]', segment, null)) as numbers
            from (select topic, size(segments) as length, posexplode(segments) as (place, segment)
                  from counted)
            group by topic, length, place
        ), varying as (
            select topic, length, collect_set(if(numbers > 1, place, null)) as in_number,
                   collect_set(if(names > {SEGMENT_VALUES_MAX}, place, null)) as in_name
            from places group by topic, length
        ), shaped as (
            select c.topic, messages, payload_bytes, array_join(transform(segments, (segment, at) ->
                     if(array_contains(in_name, at)
                        or (array_contains(in_number, at) and segment rlike '[0-9]'), '*', segment)
                   ), '/') as shape
            from counted c join varying v on v.topic = c.topic and v.length = size(c.segments)
        )
        select shape as subject, topic, count(*) as subjects, sum(messages) as messages,
               sum(payload_bytes) as payload_bytes
        from shaped group by shape, topic order by messages desc, subject, topic
        limit {SUBJECTS_MAX}
        """,
    )


TABLES: Final[dict[str, Callable[[Tables], DataFrame]]] = {
    "topics": topics,
    "backlog": backlog,
    "rates": rates,
    "ladder": ladder,
    "failures": failures,
    "endings": endings,
    "receivers": receivers,
    "payloads": payloads,
    "subjects": subjects,
}


class Written(NamedTuple):
    """Where a report is, and how many rows each of its tables has."""

    folder: Path
    page: Path
    rows: dict[str, int]


def run(
    spark: SparkSession, snapshot: Snapshot, into: Path, tell: Callable[[str], None] | None = None
) -> Written:
    """Writes the report of a snapshot; ``tell`` hears which table is being made."""
    try:
        into.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JobError(f"{into}: cannot be written to: {error.strerror}") from error
    made: dict[str, list[dict[str, Any]]] = {}
    with kept(read_tables(spark, snapshot, payload=False)) as tables:
        for name, make in TABLES.items():
            if tell is not None:
                tell(name)
            table = make(tables).toArrow()
            made[name] = table.to_pylist()
            _write_table(into, name, table, made[name])
    taken = datetime.fromtimestamp(snapshot.time_ms / 1_000, UTC)
    written = into / PAGE
    _write_text(written, page(made, str(snapshot.folder.name), taken))
    return Written(into, written, {name: len(rows) for name, rows in made.items()})


def _write_table(into: Path, name: str, table: pa.Table, rows: list[dict[str, Any]]) -> None:
    pq.write_table(table, into / f"{name}.parquet")
    _write_text(into / f"{name}.json", json.dumps(rows, ensure_ascii=False, default=_plain) + "\n")


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
