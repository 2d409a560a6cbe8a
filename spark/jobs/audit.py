"""``asterism spark audit``: whether a snapshot agrees with itself.

Each check is a query for the rows that do not fit, as ``topic``, ``sequence``, ``receiver`` and
``detail``; a good snapshot has none. The checks trust no counter and no table more than another:
where two of them must agree, the row says what each has.
"""

from functools import reduce
from typing import Any, Final, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from asterism.spark.jobs.common import Tables, kept, query, read_tables, reason_of
from asterism.storage.snapshot import Snapshot

READABLE: Final = "readable"
ROWS_MAX: Final = 100  # of one check; how many there are is counted besides


class Check(NamedTuple):
    """What must be so, and the rows for which it is not."""

    promise: str
    query: str


_ONE_SNAPSHOT: Final = "cast(null as bigint) as sequence, cast(null as string) as receiver"

CHECKS: Final[dict[str, Check]] = {
    "delivery-without-message": Check(
        "Every delivery has its message",
        """
        select d.topic, d.sequence, d.receiver, concat('its status is ', d.status) as detail
        from {deliveries} d left anti join {messages} m
          on m.topic = d.topic and m.sequence = d.sequence
        """,
    ),
    "message-without-delivery": Check(
        "Every message for one receiver has its one delivery, and that has its status",
        """
        select m.topic, m.sequence, cast(null as string) as receiver,
               concat('it is ', m.status, ', its deliveries are ',
                      coalesce(array_join(d.statuses, ', '), 'none')) as detail
        from {messages} m left join (
            select topic, sequence, collect_list(status) as statuses from {deliveries}
            group by topic, sequence
        ) d on m.topic = d.topic and m.sequence = d.sequence
        where m.kind = 'pool' and m.status <> 'drafting'
          and not coalesce(d.statuses = array(m.status), false)
        """,
    ),
    "parked-without-delivery": Check(
        "A message that is there for its parked deliveries alone has one",
        """
        select m.topic, m.sequence, cast(null as string) as receiver,
               'none of its deliveries has failed' as detail
        from {messages} m left anti join {deliveries} d
          on m.topic = d.topic and m.sequence = d.sequence and d.status = 'failed'
        where m.kind = 'log' and m.status = 'failed'
        """,
    ),
    "twice": Check(
        "A sequence is that of one message, and a receiver has one delivery of it",
        """
        select topic, sequence, cast(null as string) as receiver,
               concat('it is there ', count(*), ' times') as detail
        from {messages} group by topic, sequence having count(*) > 1
        union all
        select topic, sequence, receiver, concat('it is delivered ', count(*), ' times')
        from {deliveries} group by topic, sequence, receiver having count(*) > 1
        """,
    ),
    "counters": Check(
        "A topic's counters are the numbers of its rows",
        f"""
        with counted as (
            select topic, count_if(status not in ('drafting', 'failed')) as held,
                   count_if(status = 'drafting') as drafting
            from {{messages}} group by topic
        ), failed as (
            select topic, count(*) as parked from {{deliveries}} where status = 'failed'
            group by topic
        ), compared as (
            select t.topic, stack(3, 'held', t.held, coalesce(c.held, 0L),
                                     'drafting', t.drafting, coalesce(c.drafting, 0L),
                                     'parked', t.parked, coalesce(f.parked, 0L))
                     as (counter, says, found)
            from {{topics}} t left join counted c on c.topic = t.topic
            left join failed f on f.topic = t.topic
        )
        select topic, {_ONE_SNAPSHOT},
               concat(counter, ' says ', says, ', there are ', found) as detail
        from compared where says <> found
        """,
    ),
    # What an earlier receiver of the same name has parked outlives it, and is not counted.
    "receivers-counters": Check(
        "There are as many parked deliveries, of messages for several, as a receiver counts",
        """
        select r.topic, cast(null as bigint) as sequence, r.receiver,
               concat('parked says ', r.parked, ', there are ', coalesce(d.parked, 0)) as detail
        from {receivers} r left join (
            select d.topic, d.receiver, count(*) as parked
            from {deliveries} d join {messages} m
              on m.topic = d.topic and m.sequence = d.sequence and m.kind = 'log'
            where d.status = 'failed' group by d.topic, d.receiver
        ) d on d.topic = r.topic and d.receiver = r.receiver
        where r.parked > coalesce(d.parked, 0)
        """,
    ),
    "sequences": Check(
        "Every sequence lies within what the manifest says of its topic",
        """
        select s.topic, s.sequence, cast(null as string) as receiver,
               concat(s.what, ' is outside of ', t.first_sequence, ' to ', t.next_sequence - 1)
                 as detail
        from (
            select topic, sequence, 'a message' as what from {messages}
            union all select topic, sequence, 'a message in history' from {history}
        ) s join {topics} t on t.topic = s.topic
        where s.sequence >= t.next_sequence
           or (s.what = 'a message' and s.sequence < t.first_sequence)
        """,
    ),
    # What lies before a floor may still be to do: a delivery that was moved behind its equals, or
    # pauses before a retry, has a row of its own, and the floor passes it.
    "floors": Check(
        "A receiver's floor is no later than its topic",
        """
        select r.topic, cast(null as bigint) as sequence, r.receiver,
               concat('its floor is ', r.floor, ', and the next sequence is ', t.next_sequence)
                 as detail
        from {receivers} r join {topics} t on t.topic = r.topic
        where r.floor > t.next_sequence or r.floor < 0
        """,
    ),
    "topics": Check(
        "Every row is of a topic that is there, and names and numbers are there once",
        f"""
        select o.topic, {_ONE_SNAPSHOT}, concat(o.what, ' of a topic that is not there') as detail
        from (
            select distinct topic, 'messages' as what from {{messages}}
            union select distinct topic, 'deliveries' from {{deliveries}}
            union select distinct topic, 'receivers' from {{receivers}}
            union select distinct topic, 'history' from {{history}}
        ) o left anti join {{topics}} t on t.topic = o.topic
        union all
        select min(topic), {_ONE_SNAPSHOT}, concat('store ', store, ' has ', count(*),
               ' topics of number ', number)
        from {{topics}} group by store, number having count(*) > 1
        union all
        select topic, {_ONE_SNAPSHOT}, concat(count(*), ' receivers have number ', number)
        from {{receivers}} group by topic, number having count(*) > 1
        """,
    ),
    "times": Check(
        "Nothing happens before what it follows",
        """
        select topic, sequence, cast(null as string) as receiver,
               'it was resolved before it was accepted' as detail
        from {history} where resolved_at < accepted_at
        union all
        select topic, sequence, step.receiver, 'its steps are not in order'
        from {history} lateral view explode(ladder) as step
        where step.sent_at < accepted_at or step.received_at < step.sent_at
           or step.ended_at < coalesce(step.received_at, step.sent_at)
           or step.ended_at > resolved_at
        union all
        select topic, sequence, receiver, 'it was sent, or failed, before it was accepted'
        from {deliveries} where sent_at < accepted_at or failed_at < accepted_at
        """,
    ),
}


class Found(NamedTuple):
    """A check that does not hold: how many rows do not fit, and the first of them."""

    check: str
    promise: str
    misfits: int
    rows: list[dict[str, Any]]


def misfits(tables: Tables, name: str) -> DataFrame:
    """The rows that do not fit one check."""
    found = query(tables, CHECKS[name].query)
    return found.select(lit(name).alias("check"), "topic", "sequence", "receiver", "detail")


def run(spark: SparkSession, snapshot: Snapshot) -> list[Found]:
    """Every check that does not hold, in a snapshot."""
    try:
        with kept(read_tables(spark, snapshot, payload=False)) as tables:
            return audit(tables)
    except PySparkException as error:
        # Reading has checks of its own: damage, and fewer messages than the manifest says.
        nothing = dict.fromkeys(("topic", "sequence", "receiver"))
        return [
            Found(READABLE, "All of it can be read", 1, [{**nothing, "detail": reason_of(error)}])
        ]


def audit(tables: Tables) -> list[Found]:
    """Every check that does not hold. All are one job, so that they share what they read."""
    rows = reduce(DataFrame.unionAll, [misfits(tables, name) for name in CHECKS]).persist()
    try:
        counts = {row["check"]: row["count"] for row in rows.groupBy("check").count().collect()}
        return [_found(rows, name, counts[name]) for name in CHECKS if name in counts]
    finally:
        rows.unpersist()


def _found(rows: DataFrame, name: str, count: int) -> Found:
    of_it = rows.where(col("check") == name).drop("check")
    first = of_it.orderBy("topic", "sequence", "receiver").limit(ROWS_MAX).collect()
    return Found(name, CHECKS[name].promise, count, [row.asDict() for row in first])
