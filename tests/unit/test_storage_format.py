"""The format on disk: keys sort as their numbers count, rows come back as they went, and a damaged
row is an ``internal`` error and nothing else.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asterism import PeerError
from asterism.message import decode_header
from asterism.storage import keys as keys_module
from asterism.storage.keys import (
    COMMON,
    FIRST_RECEIVER,
    NONE_RANK,
    POOL,
    PRIORITY_NONE,
    RANK_END,
    STORE_FORMAT,
    STORE_NEXT,
    STORE_TOPIC,
    WORK,
    TopicKeys,
    after,
    number_at_end,
    rank_of,
    read_due,
    read_endpoint,
    topic_prefix,
)
from asterism.storage.records import (
    ATTEMPTS_MAX,
    DELAYED,
    DRAFT,
    HAS_DUE,
    HAS_PRODUCER,
    NATURAL,
    ONLY_PARKED,
    PARKED,
    PLACED,
    RENEWED,
    PageRecord,
    Record,
    decode_exception,
    decode_page,
    decode_record,
    encode_exception,
    encode_page,
    encode_record,
    pack,
    unpack,
)

U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
RANKS = st.builds(rank_of, st.none() | st.integers(0, 2**31 - 1), U64)
PRODUCERS = st.binary(min_size=16, max_size=16)
NODES = st.binary(min_size=1, max_size=64)
TOPICS = st.integers(0, 2**32 - 2)  # the last number has no key above it, and is never reached

# Each kind of key and the numbers it is made of, in the order in which it sorts.
KEYS: dict[str, tuple[Callable[..., bytes], tuple[st.SearchStrategy[Any], ...]]] = {
    "m": (TopicKeys.pool, (U64,)),
    "l": (TopicKeys.log, (U64,)),
    "w": (TopicKeys.waiting, (U32, RANKS)),
    "k": (TopicKeys.keyed, (U32, PRODUCERS, U64)),
    "d": (TopicKeys.exception, (U32, U64)),
    "x": (TopicKeys.done, (U32, U64)),
    "r": (TopicKeys.receiver, (U32,)),
    "e": (lambda keys, *it: keys.endpoint(it[0], it[2], it[1]), (U32, U32, NODES)),
    "f": (TopicKeys.floor, (U32,)),
    "p": (TopicKeys.parked, (U64,)),
    "g": (TopicKeys.page, (U64,)),
    "a": (TopicKeys.answer, (PRODUCERS, U64)),
    "o": (TopicKeys.outcome, (U32, PRODUCERS, U64)),
    "t": (TopicKeys.due, (U64, U8, U32, U64)),
    "u": (TopicKeys.payload_digest, (PRODUCERS, U64)),
    "v": (TopicKeys.fared, (U64, U32)),
    "b": (TopicKeys.outbox, (U64,)),
    "h": (TopicKeys.history, (U64, U64)),
}
SINGLE = {"c": "head", "n": "reserve", "s": "settings"}
any_kind = pytest.mark.parametrize("kind", KEYS)


# --- keys -------------------------------------------------------------------------------------


def test_every_kind_of_row_that_the_format_draws_is_tested_here() -> None:
    drawn = {
        line.split()[0]
        for line in (keys_module.__doc__ or "").splitlines()
        if line[:7] == "       "
    }
    assert drawn == KEYS.keys() | SINGLE.keys()


@any_kind
@given(data=st.data(), topic=TOPICS)
def test_keys_sort_as_their_numbers_count(kind: str, data: st.DataObject, topic: int) -> None:
    make, parts = KEYS[kind]
    first, second = data.draw(st.tuples(*parts)), data.draw(st.tuples(*parts))
    keys = TopicKeys(topic)
    assert (make(keys, *first) < make(keys, *second)) == (first < second)
    assert (make(keys, *first) == make(keys, *second)) == (first == second)


@any_kind
@given(data=st.data(), topic=TOPICS)
def test_a_key_is_in_the_range_of_its_kind_and_in_no_other(
    kind: str, data: st.DataObject, topic: int
) -> None:
    make, parts = KEYS[kind]
    keys = TopicKeys(topic)
    key = make(keys, *data.draw(st.tuples(*parts)))
    inside = [other for other in (*KEYS, *SINGLE) if within(keys.range_of(other), key)]
    assert inside == [kind]
    assert within(keys.all_rows, key)


def within(bounds: tuple[bytes, bytes], key: bytes) -> bool:
    low, high = bounds
    return low <= key < high


@given(first=TOPICS, second=TOPICS, data=st.data())
def test_topics_share_no_rows(first: int, second: int, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(KEYS)))
    make, parts = KEYS[kind]
    key = make(TopicKeys(first), *data.draw(st.tuples(*parts)))
    assert within(TopicKeys(second).all_rows, key) == (first == second)


def test_the_ranges_of_the_kinds_of_a_topic_are_disjoint_and_fill_its_range() -> None:
    keys = TopicKeys(7)
    ranges = sorted(keys.range_of(kind) for kind in (*KEYS, *SINGLE))
    for (_, high), (low, _) in itertools.pairwise(ranges):
        assert high <= low
    assert keys.all_rows[0] <= ranges[0][0] and ranges[-1][1] <= keys.all_rows[1]


def test_the_rows_of_the_store_itself_are_apart_from_every_topic() -> None:
    for key in (STORE_FORMAT, STORE_NEXT, STORE_TOPIC + b"name", STORE_TOPIC + b"\xff" * 255):
        assert key < topic_prefix(0)
    named = (STORE_TOPIC, after(STORE_TOPIC))
    assert within(named, STORE_TOPIC + "Ω".encode())
    assert not within(named, STORE_FORMAT) and not within(named, STORE_NEXT)


@given(
    prefix=st.binary(min_size=1, max_size=6).filter(lambda prefix: prefix.strip(b"\xff") != b""),
    rest=st.binary(max_size=6),
)
def test_after_is_above_every_key_with_the_prefix_and_below_the_next(
    prefix: bytes, rest: bytes
) -> None:
    assert prefix + rest < after(prefix)
    assert prefix + rest <= prefix + b"\xff" * 6 < after(prefix)


@given(
    first=st.tuples(st.none() | st.integers(0, 2**31 - 1), U64),
    second=st.tuples(st.none() | st.integers(0, 2**31 - 1), U64),
)
def test_ranks_go_by_priority_then_by_position_and_none_is_last(
    first: tuple[int | None, int], second: tuple[int | None, int]
) -> None:
    def order(pair: tuple[int | None, int]) -> tuple[bool, int, int]:
        return pair[0] is None, pair[0] or 0, pair[1]

    assert (rank_of(*first) < rank_of(*second)) == (order(first) < order(second))
    assert rank_of(*first) < RANK_END
    assert (rank_of(*first) >= NONE_RANK) == (first[0] is None)


def test_no_priority_reaches_that_of_none() -> None:
    assert rank_of(2**31 - 1, 2**64 - 1) < NONE_RANK == rank_of(None, 0)
    assert PRIORITY_NONE == 2**32 - 1


@given(topic=TOPICS, due_ms=U64, what=U8, list_number=U32, sequence=U64)
def test_a_due_row_is_read_from_its_key(
    topic: int, due_ms: int, what: int, list_number: int, sequence: int
) -> None:
    keys = TopicKeys(topic)
    key = keys.due(due_ms, what, list_number, sequence)
    assert read_due(key) == (due_ms, what, list_number, sequence)
    assert within(keys.due_until(due_ms), key) or due_ms == 2**64 - 1
    assert due_ms == 0 or not within(keys.due_until(due_ms - 1), key)


@given(key=st.binary(max_size=40))
def test_what_is_not_the_key_of_a_due_row_is_internal(key: bytes) -> None:
    if len(key) != 27 or key[5:6] != b"t":
        with pytest.raises(PeerError) as refusal:
            read_due(key)
        assert refusal.value.code == "internal"


@given(topic=TOPICS, producer=PRODUCERS, other=PRODUCERS, number=U64, bucket=U32, time_ms=U64)
@example(
    topic=1, producer=bytes(16), other=bytes(15) + b"\x01", number=2**64 - 1, bucket=1, time_ms=1
)
def test_the_narrower_ranges_hold_exactly_their_own(
    topic: int, producer: bytes, other: bytes, number: int, bucket: int, time_ms: int
) -> None:
    keys = TopicKeys(topic)
    assert within(keys.answers(producer), keys.answer(producer, number))
    assert within(keys.answers(producer), keys.answer(other, number)) == (producer == other)
    assert within(keys.outcomes_before(bucket), keys.outcome(bucket, producer, number)) is False
    if bucket:
        assert within(keys.outcomes_before(bucket), keys.outcome(bucket - 1, producer, number))
    assert within(keys.history_before(time_ms), keys.history(time_ms, number)) is False
    if time_ms:
        assert within(keys.history_before(time_ms), keys.history(time_ms - 1, number))


@given(topic=TOPICS, sequence=U64, other=U64, receiver=U32)
@example(topic=1, sequence=5, other=6, receiver=2**32 - 1)
def test_how_a_message_fared_is_one_range(
    topic: int, sequence: int, other: int, receiver: int
) -> None:
    keys = TopicKeys(topic)
    assert within(keys.fared_all(sequence), keys.fared(sequence, receiver))
    assert within(keys.fared_all(sequence), keys.fared(other, receiver)) == (sequence == other)
    assert number_at_end(keys.fared(sequence, receiver), 4) == receiver


@given(
    topic=TOPICS,
    receiver=st.integers(0, 2**32 - 2),
    other=st.integers(0, 2**32 - 2),
    number=U64,
    rank=RANKS,
)
def test_a_receivers_rows_are_its_own(
    topic: int, receiver: int, other: int, number: int, rank: int
) -> None:
    keys = TopicKeys(topic)
    owned = keys.of_receiver(receiver)
    rows = [
        keys.exception(other, number),
        keys.done(other, number),
        keys.waiting(other, rank),
        keys.floor(other),
        keys.receiver(other),
        keys.endpoint(other, b"node", 7),
    ]
    for row in rows:
        assert any(within(bounds, row) for bounds in owned) == (receiver == other)
    assert within((keys.waiting(other, 0), keys.waiting_end(other)), keys.waiting(other, rank))


def test_the_lists_that_are_no_receivers_are_apart_from_them() -> None:
    assert len({POOL, COMMON, WORK}) == 3
    assert max(POOL, COMMON, WORK) < FIRST_RECEIVER


def test_a_kind_that_is_not_drawn_has_no_range() -> None:
    for kind in ("z", "A", ""):
        with pytest.raises(AssertionError):
            TopicKeys(1).range_of(kind + "!")


# --- records ----------------------------------------------------------------------------------


@st.composite
def records(draw: st.DrawFn) -> Record:
    asked = draw(st.booleans())
    return Record(
        state=draw(st.sampled_from([NATURAL, PLACED, PARKED, DRAFT, DELAYED])),
        flags=draw(st.sampled_from([0, HAS_DUE, ONLY_PARKED, ONLY_PARKED | RENEWED]))
        | asked * HAS_PRODUCER,
        attempts=draw(U16),
        spent=draw(st.sampled_from([0, 1, ATTEMPTS_MAX])),
        accepted_ms=draw(U64),
        expires_ms=draw(U64),
        rank=draw(RANKS),
        holder=draw(U32),
        producer=draw(PRODUCERS) if asked else None,
        number=draw(U64) if asked else 0,
        id=draw(PRODUCERS),
        header=draw(st.binary(max_size=300)),
        payload=draw(st.binary(max_size=300)),
    )


@given(record=records())
def test_a_message_row_comes_back_as_it_went(record: Record) -> None:
    assert decode_record(encode_record(record)) == record


@given(record=records())
def test_the_state_of_a_message_row_is_its_first_byte(record: Record) -> None:
    assert encode_record(record)[0] == record.state


def test_the_largest_header_fits_a_message_row() -> None:
    record = Record(0, 0, 0, 0, 0, 0, 0, None, 0, bytes(16), b"h" * 60_000, b"payload")
    assert decode_record(encode_record(record)) == record


@given(record=records(), data=st.data())
def test_a_message_row_that_is_cut_short_is_internal(record: Record, data: st.DataObject) -> None:
    row = encode_record(record)
    whole = len(row) - len(record.payload)  # a shorter payload is a payload too
    cut = data.draw(st.integers(0, whole - 1))
    with pytest.raises(PeerError) as refusal:
        decode_record(row[:cut])
    assert refusal.value.code == "internal"


ENTRIES = st.lists(st.tuples(U64, U16), max_size=20)
PAGES = st.builds(PageRecord, U8, U32, U64, U64, ENTRIES)
HOLDERS = st.tuples(st.binary(min_size=1, max_size=64), U32)


@given(page=PAGES)
def test_a_page_row_comes_back_as_it_went(page: PageRecord) -> None:
    assert decode_page(encode_page(page)) == page


@given(PAGES, HOLDERS, st.data())
def test_a_page_row_names_its_holder_whole_or_is_damaged(
    page: PageRecord, holder: tuple[bytes, int], data: st.DataObject
) -> None:
    plain = len(encode_page(page))  # of an earlier version: it names nobody
    page.holder = holder
    row = encode_page(page)
    assert decode_page(row) == page
    with pytest.raises(PeerError, match="internal"):
        decode_page(row[: data.draw(st.integers(plain + 1, len(row) - 1))])


def test_an_attempt_count_that_is_too_large_stays_at_its_bound() -> None:
    page = PageRecord(2, 16, 0, 0, [(1, ATTEMPTS_MAX + 5)])
    assert decode_page(encode_page(page)).entries == [(1, ATTEMPTS_MAX)]


@given(page=PAGES, data=st.data())
def test_a_page_row_that_is_cut_short_is_internal(page: PageRecord, data: st.DataObject) -> None:
    row = encode_page(page)
    with pytest.raises(PeerError) as refusal:
        decode_page(row[: data.draw(st.integers(0, len(row) - 1))])
    assert refusal.value.code == "internal"


@given(state=st.sampled_from([PLACED, PARKED, DELAYED]), rank=RANKS, attempts=U16, spent=U16)
def test_an_exception_row_comes_back_as_it_went(
    state: int, rank: int, attempts: int, spent: int
) -> None:
    row = encode_exception(state, rank, attempts, spent)
    assert decode_exception(row) == (state, rank, attempts, spent)
    assert len(row) == (17 if spent else 15), "what was never renewed is as in earlier versions"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.binary(max_size=20)
    | st.text(max_size=20),
    lambda inner: st.tuples(inner, inner) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@given(values=st.lists(VALUES, max_size=8))
def test_any_other_row_comes_back_as_it_went(values: list[Any]) -> None:
    assert unpack(pack(*values), len(values)) == tuple(values)


@given(values=st.lists(VALUES, max_size=5), count=st.integers(0, 8))
def test_a_row_of_another_number_of_values_is_internal(values: list[Any], count: int) -> None:
    if count != len(values):
        with pytest.raises(PeerError) as refusal:
            unpack(pack(*values), count)
        assert refusal.value.code == "internal"


DECODERS: dict[str, Callable[[bytes], object]] = {
    "message": decode_record,
    "page": decode_page,
    "exception": decode_exception,
    "values": lambda row: unpack(row, 2),
}


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS.keys())
@given(row=st.binary(max_size=120))
def test_no_bytes_make_a_decoder_raise_anything_but_internal(
    decode: Callable[[bytes], object], row: bytes
) -> None:
    try:
        decode(row)
    except PeerError as error:
        assert error.code == "internal"


@given(record=records(), page=PAGES, data=st.data())
def test_no_flipped_bytes_make_a_decoder_raise_anything_but_internal(
    record: Record, page: PageRecord, data: st.DataObject
) -> None:
    rows = [encode_record(record), encode_page(page), pack({"a": (1, b"")}, "é")]
    damaged = bytearray(data.draw(st.sampled_from(rows)))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(U8)
    for decode in DECODERS.values():
        try:
            decode(bytes(damaged))
        except PeerError as error:
            assert error.code == "internal"


def test_a_page_that_claims_more_than_it_has_is_internal_and_costs_nothing() -> None:
    row = bytearray(encode_page(PageRecord(2, 16, 0, 0, [(1, 1)])))
    head = len(row) - 10
    row[head - 4 : head] = b"\xff\xff\xff\xff"
    with pytest.raises(PeerError) as refusal:
        decode_page(bytes(row))
    assert refusal.value.code == "internal"


def test_a_state_that_there_is_not_is_internal() -> None:
    record = Record(NATURAL, 0, 0, 0, 0, 0, 0, None, 0, bytes(16), b"h", b"p")
    row = bytearray(encode_record(record))
    row[0] = DELAYED + 1
    with pytest.raises(PeerError) as refusal:
        decode_record(bytes(row))
    assert refusal.value.code == "internal"


def test_deep_nesting_does_not_overflow_the_stack() -> None:
    with pytest.raises(PeerError) as refusal:
        unpack(b"\x91" * 100_000, 1)
    assert refusal.value.code == "internal"


@pytest.mark.parametrize(
    "row",
    [
        b"\x92\x81\x80\x00\x00",
        b"\x92\x81\x91\x80\x00\x00",
        b"\x92\xc7\x0c\xff" + b"\xff" * 12 + b"\x00",
    ],
    ids=["a map as a key", "a map within a key", "a time out of bounds"],
)
def test_values_that_python_cannot_hold_are_internal(row: bytes) -> None:
    with pytest.raises(PeerError) as refusal:
        unpack(row, 2)
    assert refusal.value.code == "internal"


def test_a_header_that_python_cannot_hold_is_the_publishers_mistake() -> None:
    encoded = b"\x94\x02\x04\x91\xa1a\x81\x80\x00"  # attributes with a map as a key
    with pytest.raises(PeerError) as refusal:
        decode_header(encoded)
    assert refusal.value.code == "bad_request"


@given(topic=TOPICS, receiver=U32, number=U32, node=NODES)
def test_the_key_of_an_endpoint_tells_it(
    topic: int, receiver: int, number: int, node: bytes
) -> None:
    key = TopicKeys(topic).endpoint(receiver, node, number)
    assert read_endpoint(key) == (receiver, node, number)
