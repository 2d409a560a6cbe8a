"""``asterism spark replay``: selected messages, published again, each of them once.

    <folder>/plan.json              what this replay is; written once the selection is whole
    <folder>/selection/ …           the selected messages, as Parquet: a file for each producer
    <folder>/progress/0003.jsonl    how far producer 3 has come: a line for each batch

The selection is written before anything is published, so that the same messages stand at the same
places whenever the replay goes on, whatever has become of the snapshot. A producer publishes its
file in order, and its numbers are the places in it. The broker stores a number of a producer once.

I1  A line of progress is on disk before the next batch is published. So a number that is published
    again is one of the last batch, whose answer the broker still keeps.
I2  A batch is one frame: no answer in it is settled before all of it is.
I3  A producer that the broker may have forgotten (``DOUBT_MS``) publishes nothing.

Every executor has to see the folder under the same path.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import asterism
from asterism.errors import PeerError
from asterism.sdk.arguments import ARGUMENT_ERRORS
from asterism.sdk.composing import Wishes
from asterism.spark.jobs.common import JobError, Tables, read_tables, reason_of
from asterism.storage.snapshot import Snapshot

PLAN: Final = "plan.json"
PLAN_VERSION: Final = 1
BATCH_MESSAGES: Final = 1_000  # with these, a batch is one frame of the protocol
BATCH_BYTES: Final = 400_000
MESSAGE_BYTES: Final = 200  # what a message comes to beside its payload, roughly
PACE_S: Final = 0.1  # a producer with a rate publishes what is due so often
DOUBT_MS: Final = 6 * 86_400_000  # the broker forgets a producer after seven days
REFUSED_KEPT: Final = 100  # refusals that a line of progress names
SOURCES: Final = ("messages", "history")
COLUMNS: Final = (
    *("topic", "sequence", "mode", "expect", "subjects", "attributes", "priority"),
    *("ordering_key", "max_receivers", "payload"),
)


@dataclass(frozen=True)
class Wanted:
    """What is to be replayed, and to where."""

    topic: str
    source: str = "messages"
    where: str = "true"
    ttl_s: float | None = None
    name: str = ""  # another name is another replay


@dataclass(frozen=True)
class Plan:
    """A replay that has begun."""

    id: str
    wanted: dict[str, Any]
    snapshot: str
    count: int
    producers: list[dict[str, Any]]  # file, count, id


class Done(NamedTuple):
    """How far a replay has come."""

    selected: int
    published: int
    refused: dict[str, int]
    is_resumed: bool


# --- what is selected -----------------------------------------------------------------------------


def select(tables: Tables, wanted: Wanted) -> DataFrame:
    """The messages of a replay; SQL that Spark does not understand is a ``JobError``."""
    if wanted.source not in SOURCES:
        raise JobError(f"a replay is over messages or history, not {wanted.source!r}")
    rows = tables[wanted.source]
    if wanted.source == "messages":
        rows = rows.where(sql.col("status") != "drafting")
    try:
        chosen = rows.where(wanted.where)
        # Of a message that was renewed and ended again there are two rows, and it is one message.
        return chosen.select(*COLUMNS).dropDuplicates(["topic", "sequence"])
    except PySparkException as error:
        raise JobError(f"--where: {reason_of(error)}") from error


def replay_id(snapshot: Snapshot, wanted: Wanted) -> str:
    """The same for the same question of the same snapshot: so the same command goes on."""
    said = json.dumps([snapshot.name, snapshot.time_ms, asdict(wanted)], sort_keys=True)
    return hashlib.blake2b(said.encode(), digest_size=12).hexdigest()


def count(spark: SparkSession, snapshot: Snapshot, wanted: Wanted) -> dict[str, int]:
    """How many messages would be published, by the topic that they come from."""
    rows = select(read_tables(spark, snapshot), wanted)
    return {
        row["topic"]: row["count"]
        for row in rows.groupBy("topic").count().orderBy("topic").collect()
    }


# --- the plan -------------------------------------------------------------------------------------


def prepare(
    spark: SparkSession, snapshot: Snapshot, wanted: Wanted, folder: Path, producers: int
) -> tuple[Plan, bool]:
    """The plan of a replay, and whether it was there before."""
    found = read_plan(folder)
    key = replay_id(snapshot, wanted)
    if found is not None:
        if found.id != key:
            raise JobError(f"{folder}: here is another replay. Name another folder.")
        return found, True
    shutil.rmtree(folder / "selection", ignore_errors=True)  # of a run that ended before its plan
    folder.mkdir(parents=True, exist_ok=True)
    _write_selection(select(read_tables(spark, snapshot), wanted), folder, producers)
    listed = []
    for at, path in enumerate(sorted((folder / "selection").glob("*.parquet"))):
        held = pq.read_metadata(path).num_rows
        if held:
            said = f"{key} {at} {producers} {held}".encode()
            producer = hashlib.blake2b(said, digest_size=16).hexdigest()
            listed.append({"file": path.name, "count": held, "id": producer})
    _check_payloads(folder, listed)
    total = sum(entry["count"] for entry in listed)
    plan = Plan(key, asdict(wanted), str(snapshot.folder), total, listed)
    (folder / "progress").mkdir(exist_ok=True)
    _write_whole(folder / PLAN, json.dumps({"version": PLAN_VERSION, **asdict(plan)}, indent=1))
    return plan, False


def _write_selection(rows: DataFrame, folder: Path, producers: int) -> None:
    keys = ("topic", "sequence")
    spread = rows.repartition(1) if producers == 1 else rows.repartitionByRange(producers, *keys)
    try:
        spread.sortWithinPartitions(*keys).write.parquet((folder / "selection").as_uri())
    except PySparkException as error:
        raise JobError(reason_of(error)) from error


def _check_payloads(folder: Path, listed: list[dict[str, Any]]) -> None:
    """History of headers alone cannot be published again, and is not passed over in silence."""
    for entry in listed:
        column = pq.read_table(folder / "selection" / entry["file"], columns=["payload"])
        if column["payload"].null_count:
            raise JobError(
                "some of the selected messages have no payload, since their topic keeps "
                'history = "headers": add `payload is not null` to --where to leave them out.'
            )


def read_plan(folder: Path) -> Plan | None:
    try:
        said = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if said.pop("version") != PLAN_VERSION:
        raise JobError(f"{folder}: this replay was begun by another version of Asterism")
    return Plan(**said)


def _write_whole(path: Path, text: str) -> None:
    draft = path.with_suffix(".draft")
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


# --- progress -------------------------------------------------------------------------------------


class Progress:
    """How far one producer has come: a file that only grows."""

    def __init__(self, folder: Path, at: int) -> None:
        self._path = folder / "progress" / f"{at:04}.jsonl"
        self.upto = 0
        self.time_ms: int | None = None  # of the last line
        self.refused: dict[str, int] = {}
        self._whole = 0  # bytes of whole lines
        self._read()

    def _read(self) -> None:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return
        for line in text.split(b"\n")[:-1]:  # the last is empty, or was cut short by a kill
            said = json.loads(line)
            # Spark may have had two executors do the same: then both have recorded it.
            if self.time_ms is not None and said["upto"] <= self.upto:
                continue
            self._take(said)
        self._whole = text.rfind(b"\n") + 1

    def _take(self, said: dict[str, Any]) -> None:
        self.upto, self.time_ms = said["upto"], said["time_ms"]
        for code, _ in said.get("refused", ()):
            self.refused[code] = self.refused.get(code, 0) + 1

    def add(self, upto: int, refused: Sequence[tuple[str, int]], now_ms: int) -> None:
        """Records, on disk, that all up to here is answered."""
        said: dict[str, Any] = {"upto": upto, "time_ms": now_ms}
        if refused:
            said["refused"] = list(refused)
        line = json.dumps(said).encode() + b"\n"
        with open(self._path, "ab") as file:
            file.truncate(self._whole)  # a line that a kill has cut short
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._whole += len(line)
        self._take(said)


def done(folder: Path, plan: Plan, is_resumed: bool) -> Done:
    """How far a replay has come, from its folder."""
    published, refused = 0, dict[str, int]()
    for at in range(len(plan.producers)):
        progress = Progress(folder, at)
        published += progress.upto - sum(progress.refused.values())
        for code, number in progress.refused.items():
            refused[code] = refused.get(code, 0) + number
    return Done(plan.count, published, refused, is_resumed)


# --- publishing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """The work of one producer, as it goes to an executor."""

    folder: str
    at: int
    file: str
    count: int
    producer: str
    address: str
    topic: str
    ttl_s: float | None
    rate: float | None  # messages a second, of this producer
    timeout_s: float


def run(
    spark: SparkSession,
    snapshot: Snapshot,
    wanted: Wanted,
    folder: Path,
    address: str,
    rate: float | None = None,
    producers: int | None = None,
    timeout_s: float = 30.0,
    tell: Callable[[str], None] | None = None,
) -> Done:
    """Publishes what is selected and was not published before by this replay."""
    folder = folder.absolute()
    if tell is not None:
        tell("selecting")
    wide = producers or spark.sparkContext.defaultParallelism
    plan, is_resumed = prepare(spark, snapshot, wanted, folder, wide)
    tasks = _tasks(plan, folder, address, rate, timeout_s)
    if tasks:
        if tell is not None:
            tell("publishing")
        work = spark.sparkContext.parallelize(tasks, len(tasks))
        try:
            errors = [error for error in work.map(publish_all).collect() if error]
        except Exception as error:
            raise JobError(f"the executors could not publish: {reason_of(error)}") from error
        if errors:
            raise JobError(f"{errors[0]} Run the same command again to go on.")
    return done(folder, plan, is_resumed)


def _tasks(
    plan: Plan, folder: Path, address: str, rate: float | None, timeout_s: float
) -> list[Task]:
    """The work that is left. However many of them run at a time, together they keep the rate."""
    left = [
        (at, entry)
        for at, entry in enumerate(plan.producers)
        if Progress(folder, at).upto < entry["count"]
    ]
    share = rate / len(left) if rate and left else None
    return [
        Task(
            str(folder),
            at,
            entry["file"],
            entry["count"],
            entry["id"],
            address,
            plan.wanted["topic"],
            plan.wanted["ttl_s"],
            share,
            timeout_s,
        )
        for at, entry in left
    ]


def publish_all(task: Task) -> str:
    """Does the work of one producer, on an executor; what went wrong, or nothing.

    An error is returned, not raised: what one producer cannot do is no reason to end the others
    between a batch and its line, and Spark would try it again at once.
    """
    progress = Progress(Path(task.folder), task.at)
    now_ms = _now_ms()
    if progress.time_ms is None:
        progress.add(0, (), now_ms)  # before the first batch: from here on there may be doubt
    elif now_ms - progress.time_ms > DOUBT_MS:
        days = DOUBT_MS // 86_400_000
        return (
            f"{task.folder}: this replay stopped more than {days} days ago, and the broker may "
            "have forgotten what it stored last. Begin another with --name, without what is there."
        )
    try:
        _publish_file(task, progress)
    except PeerError as error:
        return f"{task.topic}: {error.code}: {error.detail}"
    except ARGUMENT_ERRORS as error:
        return f"{task.topic}: {error.refusal.code}: {error}"
    except (ConnectionError, TimeoutError) as error:
        return f"{task.address}: {error}."
    return ""


def _publish_file(task: Task, progress: Progress) -> None:
    name = f"replay-{task.at}"
    with asterism.connect_blocking(task.address, name=name, timeout=task.timeout_s) as node:
        node.produce_as(task.topic, bytes.fromhex(task.producer), progress.upto + 1)
        pace = Pace(task.rate, time.monotonic, time.sleep)
        path = Path(task.folder) / "selection" / task.file
        for batch in batches(read_rows(path, progress.upto), pace.most):
            pace.wait(len(batch))
            refused = _publish(node, task, batch)
            first = progress.upto + 1
            named = [(code, first + place) for place, code in refused]
            progress.add(progress.upto + len(batch), named, _now_ms())


def _publish(
    node: asterism.BlockingNode, task: Task, batch: list[dict[str, Any]]
) -> list[tuple[int, str]]:
    """Publishes a batch; the places and the codes of what the topic refused for good."""
    messages = [message_of(row, task.ttl_s) for row in batch]
    try:
        node.publish_many(task.topic, messages, timeout=task.timeout_s, receipt=False)
    except PeerError as error:
        receipt = getattr(error, "receipt", None)
        refused = [(place, one.code) for place, one in receipt.refused] if receipt else []
        # Refused one by one, the numbers are used, and the answers stay so. Refused as a whole,
        # nothing is stored and no number is used: then this has to be seen to, and goes on later.
        if not refused or (len(refused) == len(batch) and not _is_of_messages(error)):
            raise
        return refused
    return []


def _is_of_messages(error: PeerError) -> bool:
    """Is this what a topic says of a message, rather than of the producer or the frame?"""
    return error.code in ("overflow", "duplicate", "too_large", "no_receiver", "bad_subject")


def message_of(row: dict[str, Any], ttl_s: float | None) -> asterism.Message:
    """A message as it was, but for its times: those have passed."""
    wishes: Wishes = {
        "subjects": list(row["subjects"]),
        "mode": row["mode"],
        "expect": row["expect"],
        "attributes": dict(row["attributes"] or ()),
        "priority": row["priority"],
        "ordering_key": row["ordering_key"],
    }
    if row["mode"] == "durable":
        # Not as the topic that it goes to says: as it was.
        wishes["max_receivers"] = row["max_receivers"] or "all"
    if ttl_s is not None:
        wishes["ttl"] = ttl_s
    return asterism.Message(row["payload"], **wishes)


def read_rows(path: Path, skipped: int) -> Iterator[dict[str, Any]]:
    """The rows of a file, in order, from a place on."""
    for batch in pq.ParquetFile(path).iter_batches(batch_size=BATCH_MESSAGES):
        if skipped >= batch.num_rows:
            skipped -= batch.num_rows
            continue
        yield from batch.slice(skipped).to_pylist()
        skipped = 0


def batches(rows: Iterable[dict[str, Any]], most: int) -> Iterator[list[dict[str, Any]]]:
    """Rows in batches that are one frame each; a large message goes alone."""
    batch: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        more = len(row["payload"]) + MESSAGE_BYTES + _header_size(row)
        if batch and (len(batch) >= most or size + more > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += more
    if batch:
        yield batch


def _header_size(row: dict[str, Any]) -> int:
    words = [*row["subjects"], *(word for pair in row["attributes"] or () for word in pair)]
    return sum(4 * len(word) for word in words)


class Pace:
    """Keeps one producer to its rate: never more than that much ahead of the clock."""

    def __init__(
        self, rate: float | None, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()
        self.most = BATCH_MESSAGES if rate is None else max(1, int(min(rate * PACE_S, 1_000)))

    def wait(self, count: int) -> None:
        """Returns when so many may be published. Time that was not used is not made up for."""
        if self._rate is None:
            return
        now = self._clock()
        if self._free_at > now:
            self._sleep(self._free_at - now)
        self._free_at = max(self._free_at, now) + count / self._rate


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
