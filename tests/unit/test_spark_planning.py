"""What Spark is to read, planned from a manifest: parts, filters, options. No Java is started."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from asterism.spark.columns import Headers, MessageBlock
from asterism.spark.filters import understood
from asterism.spark.options import OptionError, check_names, find_snapshot, read_options, schema_of
from asterism.spark.planning import Filters, plan
from asterism.spark.schemas import SCHEMAS, columns_in
from asterism.storage.keys import TopicKeys
from asterism.storage.records import (
    DELAYED,
    DRAFT,
    HAS_PRODUCER,
    NATURAL,
    ONLY_PARKED,
    PARKED,
    PLACED,
    RENEWED,
    encode_fields,
    pack,
)
from asterism.storage.snapshot import Snapshot, SnapshotError
from asterism.storage.store import Store

NOW_MS = 1_700_000_000_000


def topic(store: int, first: int, after: int, held: int, number: int = 1) -> dict[str, Any]:
    return {
        "store": store, "number": number, "first_sequence": first, "next_sequence": after,
        "held": held, "parked": 0, "drafting": 0, "completed": 0,
    }  # fmt: skip


def snapshot_of(folder: Path, **topics: dict[str, Any]) -> Snapshot:
    stores = [
        {"number": number, "folder": f"store-{number:04}", "files": {}}
        for number in sorted({told["store"] for told in topics.values()})
    ]
    return Snapshot(folder, {"time_ms": NOW_MS, "stores": stores, "topics": topics})


# --- parts ----------------------------------------------------------------------------------------


@given(
    first=st.integers(1, 1_000),
    span=st.integers(1, 2_000),
    held=st.integers(0, 2_000),
    most=st.integers(1, 700),
    low=st.integers(0, 3_500),
    high=st.integers(0, 3_500),
)
def test_parts_hold_every_wanted_sequence_once(
    first: int, span: int, held: int, most: int, low: int, high: int
) -> None:
    snapshot = snapshot_of(Path("x"), a=topic(0, first, first + span, held))
    parts = plan(snapshot, "messages", Filters(sequences=(low, high)), most)
    spans = [found for part in parts for found in part.spans]
    covered = [at for found in spans for at in range(found.low, found.high)]
    assert covered == list(range(max(first, low), min(first + span, high)))
    assert len(spans) <= held // most + 1


def test_a_long_gap_makes_no_parts_of_nothing() -> None:
    snapshot = snapshot_of(Path("x"), a=topic(0, 1, 10**12, 10))
    assert len(plan(snapshot, "messages", Filters(), 100)) == 1


def test_small_topics_of_a_store_share_a_part_and_stores_do_not() -> None:
    topics = {f"t{n}": topic(n % 2, 1, 11, 10, n + 1) for n in range(100)}
    parts = plan(snapshot_of(Path("x"), **topics), "messages", Filters(), 250)
    assert sorted(found.topic for part in parts for found in part.spans) == sorted(topics)
    assert {part.store for part in parts} == {0, 1}
    assert len(parts) == 6  # of eleven rows each, by an upper estimate


def test_only_a_topic_that_is_read_whole_is_counted_against_the_manifest() -> None:
    snapshot = snapshot_of(Path("x"), a=topic(0, 1, 101, 100))
    ((whole,),) = [part.spans for part in plan(snapshot, "messages", Filters(), 1_000)]
    assert whole.held == 100
    for filters, most in ((Filters(sequences=(2, 200)), 1_000), (Filters(), 30)):
        for part in plan(snapshot, "messages", filters, most):
            assert all(found.held == 0 for found in part.spans)


def test_an_empty_filter_plans_nothing() -> None:
    snapshot = snapshot_of(Path("x"), a=topic(0, 1, 101, 100))
    for filters in (
        Filters(sequences=(5, 5)), Filters(topics=frozenset()), Filters(statuses=frozenset()),
        Filters(accepted_ms=(9, 3)), Filters(topics=frozenset({"b"})),
    ):  # fmt: skip
        assert plan(snapshot, "messages", filters, 10) == []


@pytest.mark.parametrize("spread_ms", [0, 3, 50_000])
def test_history_is_split_by_time_and_no_row_is_left_out(tmp_path: Path, spread_ms: int) -> None:
    keys, count = TopicKeys(7), 5_000
    times = [NOW_MS - spread_ms - 1 + number * spread_ms // count for number in range(count)]
    times += [NOW_MS + 86_400_000]  # by a clock that was set back since
    with Store(tmp_path / "store-0000") as store:
        for number, at in enumerate(times):
            store.put(keys.history(at, number), pack(b"", b"", None, at, at, "ok", {}))
        store.commit()
    snapshot = snapshot_of(tmp_path, a=topic(0, 1, count + 1, 0, 7))
    parts = plan(snapshot, "history", Filters(), 500)
    spans = sorted((found.low, found.high) for part in parts for found in part.spans)
    for at in times:
        assert sum(low <= at < high for low, high in spans) == 1
    if spread_ms > 1_000:
        sizes = [sum(low <= at < high for at in times) for low, high in spans]
        assert 5 <= len(spans) <= 64 and max(sizes) <= 1_500
    until = plan(snapshot, "history", Filters(resolved_ms=(0, NOW_MS)), 500)
    assert max(found.high for part in until for found in part.spans) == NOW_MS


# --- filters --------------------------------------------------------------------------------------

TIME = datetime(2023, 11, 14, 22, 13, 20, 1_500, tzinfo=UTC)


@pytest.mark.parametrize(
    ("one", "bounds"),
    [
        (EqualTo(("sequence",), 5), (5, 6)),
        (EqualNullSafe(("sequence",), 5), (5, 6)),
        (GreaterThan(("sequence",), 5), (6, 2**63)),
        (GreaterThanOrEqual(("sequence",), 5), (5, 2**63)),
        (LessThan(("sequence",), 5), (0, 5)),
        (LessThanOrEqual(("sequence",), 5), (0, 6)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_comparison_of_sequences_is_a_range(one: Filter, bounds: tuple[int, int]) -> None:
    known, left = understood([one], "messages", Filters())
    assert (known.sequences, left) == (bounds, [])


@given(st.integers(-3_000, 3_000), st.integers(-3, 3))
def test_a_comparison_of_times_is_exact(micro: int, ms: int) -> None:
    value = TIME.replace(microsecond=0) + timedelta(microseconds=micro)
    at = NOW_MS + ms
    for kind, holds in (
        (EqualTo, ms * 1_000 == micro), (GreaterThan, ms * 1_000 > micro),
        (GreaterThanOrEqual, ms * 1_000 >= micro), (LessThan, ms * 1_000 < micro),
        (LessThanOrEqual, ms * 1_000 <= micro),
    ):  # fmt: skip
        known, left = understood([kind(("accepted_at",), value)], "messages", Filters())
        low, high = known.accepted_ms
        assert not left and (low <= at < high) is holds


def test_names_are_narrowed_by_every_filter_on_them() -> None:
    filters: list[Filter] = [
        IsNotNull(("topic",)), In(("topic",), ("a", "b", "c")), EqualTo(("status",), "sent"),
        In(("topic",), ("b", "d", None)),
    ]  # fmt: skip
    known, left = understood(filters, "messages", Filters())
    assert (known.topics, known.statuses, left) == (frozenset("b"), frozenset({"sent"}), [])


def test_one_of_several_sequences_narrows_and_is_left_to_spark() -> None:
    one = In(("sequence",), (9, 4, 6))
    known, left = understood([one], "messages", Filters())
    assert (known.sequences, left) == ((4, 10), [one])


@pytest.mark.parametrize(
    ("table", "one"),
    [
        ("messages", EqualTo(("priority",), 1)),
        ("messages", Not(EqualTo(("status",), "sent"))),
        ("messages", IsNull(("topic",))),
        ("messages", StringStartsWith(("topic",), "a")),
        ("messages", EqualTo(("sequence",), None)),
        ("messages", GreaterThan(("topic",), "a")),
        ("messages", EqualTo(("sequence",), 1.5)),
        ("messages", EqualTo(("attributes", "a"), "b")),
        ("messages", In(("sequence",), (1, None))),
        ("history", EqualTo(("verdict",), "ok")),
        ("topics", EqualTo(("held",), 1)),
    ],
)
def test_what_is_not_understood_goes_back_to_spark(table: str, one: Filter) -> None:
    assert understood([one], table, Filters()) == (Filters(), [one])


# --- options --------------------------------------------------------------------------------------


def test_options_have_defaults() -> None:
    options = read_options({"path": "x"})
    assert (options.table, options.topics, options.pushdown) == ("messages", None, False)
    assert (options.rows_per_partition, options.batch_rows) == (250_000, 4_096)
    assert options.columns == tuple(columns_in(SCHEMAS["messages"]))


def test_options_are_read_in_any_case() -> None:
    options = read_options({"PATH": "x", "RowsPerPartition": "5", "pushDown": "TRUE"})
    assert (options.rows_per_partition, options.pushdown) == (5, True)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2023-11-14T22:13:20Z", NOW_MS),
        ("2023-11-14 22:13:20", NOW_MS),
        ("2023-11-14T23:13:20.001+01:00", NOW_MS + 1),
        ("2023-11-14T22:13:20.000001Z", NOW_MS + 1),
    ],
)
def test_a_time_is_in_utc_unless_it_says_otherwise(text: str, ms: int) -> None:
    assert read_options({"path": "x", "since": text, "until": text}).since_ms == ms


def test_a_span_of_time_is_not_for_tables_without_times() -> None:
    with pytest.raises(OptionError, match="no times"):
        read_options({"path": "x", "table": "topics", "since": "2023-11-14"})


def test_a_path_is_needed() -> None:
    with pytest.raises(OptionError, match="path"):
        read_options({"table": "messages"})


def test_an_option_of_streams_alone_is_not_one_of_a_read() -> None:
    check_names({"startingoffsets": "latest"})
    with pytest.raises(OptionError, match="startingoffsets"):
        check_names({"startingoffsets": "latest"}, streaming=False)
    check_names({"since": "2023-11-14"}, streaming=False)
    with pytest.raises(OptionError, match="since"):
        check_names({"since": "2023-11-14"}, streaming=True)


@pytest.mark.parametrize("table", SCHEMAS)
def test_a_schema_is_taken_apart_and_put_together(table: str) -> None:
    assert schema_of({"table": table}) == SCHEMAS[table]


def test_a_folder_without_a_snapshot_says_so(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="no snapshot here"):
        find_snapshot(tmp_path)
    with pytest.raises(SnapshotError, match="no such folder"):
        find_snapshot(f"file://{tmp_path}/nowhere")


def test_what_waits_or_is_out_is_held_and_so_is_what_is_renewed_of_a_message_that_is_over() -> None:
    states = {
        (NATURAL, 0): True, (PLACED, 0): True, (DELAYED, 0): True, (DRAFT, 0): False,
        (PARKED, 0): False, (PARKED, ONLY_PARKED): False, (PARKED, ONLY_PARKED | RENEWED): True,
    }  # fmt: skip
    rows = [
        encode_fields(state, flags, 0, NOW_MS, 0, 0, 0, None, 0, bytes(16), b"", b"")
        for state, flags in states
    ]
    keyed = [TopicKeys(1).log(sequence) for sequence in range(len(rows))]
    block = MessageBlock(keyed, rows, Headers())
    assert block.held.tolist() == list(states.values())


def test_a_message_that_was_renewed_is_read_as_any_other() -> None:
    asked: tuple[bytes | None, ...] = (None, bytes(16))
    rows = [
        encode_fields(PLACED, flags, 3, NOW_MS, 0, 0, 0, producer, 1, b"i" * 16, b"", b"p", spent)
        for flags, producer in zip((0, HAS_PRODUCER), asked, strict=True)
        for spent in (0, 2)
    ]
    keyed = [TopicKeys(1).pool(sequence) for sequence in range(len(rows))]
    block = MessageBlock(keyed, rows, Headers())
    assert block.ids().to_pylist() == [b"i" * 16] * len(rows)
    assert block.payloads().to_pylist() == [b"p"] * len(rows)
