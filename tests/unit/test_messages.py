"""Messages (spec section 3): every field and its limit, the three modes, order."""

from typing import Any

import pytest

from asterism import commands as ask
from asterism import limits
from asterism.effects import Refusal
from asterism.errors import PeerError
from asterism.message import NEVER_MS, Mode, decode_header
from asterism.settings import DAY_MS, BackoffMs
from asterism.subjects import split_subject
from tests.support.core import START_MS, CoreBroker, header
from tests.support.kinds import (
    ALL,
    ONE,
    ONLINE,
    PUSH,
    TWO,
    Kind,
    across_restarts,
    come_back,
    durable_kinds,
    every_kind,
)

A, B, C, D, E = (b"node-" + letter for letter in (b"a", b"b", b"c", b"d", b"e"))
NAMES = {A: "a", B: "b", C: "c", D: "d", E: "e"}


def finish_all(broker: CoreBroker, node: bytes = b"consumer") -> list[bytes]:
    """What a receiver is sent until there is no more, when it processes all it is sent."""
    finished = []
    while delivered := broker.take(node):
        for one in delivered:
            finished.append(one.payload)
            broker.processed(one.sequence, node=node)
    return finished


def refused(broker: CoreBroker, *args: Any, **fields: Any) -> str:
    """The code with which a message is refused."""
    with pytest.raises(PeerError) as refusal:
        broker.publish(*args, **fields)
    return refusal.value.code


# --- topic, subjects --------------------------------------------------------------------------


def test_a_topic_is_made_by_the_first_message_to_it() -> None:
    broker = CoreBroker(topic="never seen before")
    broker.publish()
    assert broker.describe()["held"] == 1


@every_kind
def test_a_message_with_several_subjects_reaches_a_receiver_once(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(interests=("order/*/paid", "order/**", "audit"))
    broker.publish(subject=("order/17/paid", "audit", "elsewhere"), **kind)
    assert broker.taken() == [b"x"]


@every_kind
def test_one_matching_subject_is_enough(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(interests="audit")
    broker.publish(subject=("order/17/paid", "audit"), **kind)
    assert broker.taken() == [b"x"]


@pytest.mark.parametrize("count", [0, limits.SUBJECTS_MAX + 1])
def test_a_message_has_one_or_more_subjects_up_to_a_bound(count: int) -> None:
    with pytest.raises(PeerError, match="bad_subject"):
        header(tuple(f"s/{index}" for index in range(count)))


def test_a_message_may_have_as_many_subjects_as_the_bound_says() -> None:
    broker = CoreBroker()
    broker.subscribe()
    broker.publish(subject=tuple(f"s/{index}" for index in range(limits.SUBJECTS_MAX)))
    (delivered,) = broker.take()
    assert len(decode_header(delivered.header).subjects) == limits.SUBJECTS_MAX


@pytest.mark.parametrize("subject", ["", "/", "//", "a/*", "**", "a/**/b", "x" * 1_025])
def test_a_subject_that_is_none_is_refused(subject: str) -> None:
    with pytest.raises(PeerError, match="bad_subject"):
        header(subject)


def test_slashes_too_many_do_not_make_another_subject() -> None:
    assert split_subject("//a///b/") == split_subject("a/b")
    broker = CoreBroker()
    broker.subscribe(interests="a/b")
    broker.publish(subject="/a//b/")
    assert broker.taken() == [b"x"]


# --- payload ----------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("limit", [0, 1, 9_000])
def test_a_payload_of_exactly_the_limit_passes_and_one_byte_more_does_not(
    kind: Kind, limit: int
) -> None:
    broker = CoreBroker(max_payload=limit)
    broker.subscribe(name="worker")
    payload = bytes(limit)
    broker.publish(payload, **kind)
    assert broker.taken() == [payload]
    assert refused(broker, payload + b"+", **kind) == "too_large"


def test_the_limit_of_a_payload_is_one_mebibyte_unless_told_otherwise() -> None:
    broker = CoreBroker()
    broker.publish(bytes(1_048_576))
    assert refused(broker, bytes(1_048_577)) == "too_large"


# Above 8192 bytes a payload stays on disk until it is sent: both sides of that are tried.
SIZES = [0, 1, limits.WINDOW_RECORD_BYTES_MAX, limits.WINDOW_RECORD_BYTES_MAX + 1, 300_000]


@every_kind
@across_restarts
@pytest.mark.parametrize("size", SIZES)
def test_payload_header_and_id_arrive_byte_for_byte(kind: Kind, restarts: bool, size: int) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=0)
    payload = bytes(index * 7 % 256 for index in range(size))
    fields = {"attributes": {"k": "v", "": "", "ü": "\n"}, "priority": 3, **kind}
    broker.publish(payload, **fields)
    come_back(broker, restarts, name="worker", credit=0)
    broker.grant(1)
    (first,) = broker.take()
    broker.advance(60_000)
    broker.grant(1)
    again = broker.take()[0]
    for delivered in (first, again):
        assert delivered.payload == payload
        assert delivered.header == header(**fields).encoded
        assert delivered.id == (1).to_bytes(16, "big")


# --- attributes -------------------------------------------------------------------------------

ATTRIBUTES: list[dict[str, str]] = [
    {},
    {"content-type": "text/plain; charset=utf-8"},
    {"": ""},
    {"snow": "☃", "newline\n": "\x00"},
    {"k" * limits.ATTRIBUTE_BYTES_MAX: "v" * limits.ATTRIBUTE_BYTES_MAX},
    {str(index): str(index) for index in range(limits.ATTRIBUTES_MAX)},
]


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=range(len(ATTRIBUTES)))
@across_restarts
def test_attributes_are_delivered_unchanged(attributes: dict[str, str], restarts: bool) -> None:
    broker = CoreBroker()
    broker.publish(attributes=attributes)
    if restarts:
        broker.restart()
    broker.subscribe()
    (delivered,) = broker.take()
    arrived = decode_header(delivered.header).attributes
    assert arrived == attributes
    assert list(arrived) == list(attributes)


@pytest.mark.parametrize(
    "attributes",
    [
        {"k" * (limits.ATTRIBUTE_BYTES_MAX + 1): ""},
        {"k": "v" * (limits.ATTRIBUTE_BYTES_MAX + 1)},
        {str(index): "" for index in range(limits.ATTRIBUTES_MAX + 1)},
        {"k": 1},
        {1: "v"},
    ],
    ids=["long key", "long value", "too many", "no text", "no text key"],
)
def test_attributes_over_their_bounds_are_refused(attributes: Any) -> None:
    with pytest.raises(PeerError, match="bad_request"):
        header(attributes=attributes)


def test_a_header_over_its_bound_is_too_large() -> None:
    attributes = {str(index): "v" * limits.ATTRIBUTE_BYTES_MAX for index in range(15)}
    with pytest.raises(PeerError, match="too_large"):
        header(attributes=attributes)


# --- the other fields -------------------------------------------------------------------------

GOOD_FIELDS: list[dict[str, Any]] = [
    {"priority": 0},
    {"priority": limits.PRIORITY_MAX},
    {"deliver_ms": 0},
    {"ordering_key": "k" * limits.ORDERING_KEY_BYTES_MAX},
    {"max_receivers": limits.RECEIVERS_WANTED_MAX},
    {"expires_ms": NEVER_MS - 1, "max_receivers": None},
    {"expires_ms": NEVER_MS, "max_receivers": 1},
    {"expires_ms": NEVER_MS, "max_receivers": 7},
]
BAD_FIELDS: list[dict[str, Any]] = [
    {"priority": -1},
    {"priority": limits.PRIORITY_MAX + 1},
    {"priority": 1.0},
    {"priority": True},
    {"deliver_ms": -1},
    {"deliver_ms": limits.TIME_MS_MAX + 1},
    {"ordering_key": ""},
    {"ordering_key": "k" * (limits.ORDERING_KEY_BYTES_MAX + 1)},
    {"max_receivers": -1},
    {"expires_ms": NEVER_MS, "max_receivers": 0},
    {"max_receivers": limits.RECEIVERS_WANTED_MAX + 1},
    {"max_receivers": 1, "mode": "push"},
    {"max_receivers": 1, "mode": "online"},
    {"expires_ms": 1, "mode": "push"},
    {"expires_ms": 1, "mode": "online"},
    {"expires_ms": -1},
    {"expires_ms": NEVER_MS + 1},
    {"expires_ms": NEVER_MS, "max_receivers": None},
    {"receipt": 1},
]


@pytest.mark.parametrize("fields", GOOD_FIELDS, ids=str)
def test_a_field_at_its_bound_is_accepted_and_travels(fields: dict[str, Any]) -> None:
    made = header(**fields)
    assert decode_header(made.encoded) == made
    CoreBroker().publish(**fields)


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=str)
def test_a_field_beyond_its_bound_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(PeerError) as refusal:
        header(**fields)
    assert refusal.value.code == "bad_request"
    assert refusal.value.detail


@pytest.mark.parametrize("expect", ["drafting", "waiting", "failed", "unreachable"])
def test_an_expectation_is_sent_received_or_processed(expect: str) -> None:
    with pytest.raises(PeerError, match="bad_request"):
        header(expect=expect)


@pytest.mark.parametrize("size", [0, 15, 17])
def test_an_id_has_sixteen_bytes(size: int) -> None:
    broker = CoreBroker()
    broker.do(ask.Publish(b"p", 1, ((bytes(size), header().encoded, b""),)))
    answer: Any = broker.answers[b"p", 1]
    assert answer.results[0].code == "bad_request"


# --- push -------------------------------------------------------------------------------------


def test_push_goes_to_exactly_one_receiver_by_turns() -> None:
    broker = CoreBroker()
    for node in (A, B, C):
        broker.subscribe(node)
    broker.publish_many([b"%d" % index for index in range(9)], mode="push")
    taken = [broker.taken(node) for node in (A, B, C)]
    assert taken == [[b"%d" % index for index in range(turn, 9, 3)] for turn in range(3)]


def test_push_chooses_among_those_that_are_interested_and_have_credit() -> None:
    broker = CoreBroker()
    broker.subscribe(A, "other/**")
    broker.subscribe(B, credit=0)
    broker.subscribe(C)
    broker.publish_many([b"1", b"2"], mode="push")
    assert [broker.taken(node) for node in (A, B, C)] == [[], [], [b"1", b"2"]]


def test_push_that_nobody_is_interested_in_is_refused_at_once() -> None:
    broker = CoreBroker()
    broker.subscribe(A, "other/**")
    assert refused(broker, mode="push") == "no_receiver"
    assert broker.describe()["held"] == 0


def test_a_durable_receiver_that_is_offline_does_not_count_for_push() -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.detach(A)
    assert refused(broker, mode="push") == "no_receiver"


def test_push_waits_while_nobody_interested_has_credit() -> None:
    broker = CoreBroker()
    broker.subscribe(A, credit=0)
    broker.subscribe(B, credit=0)
    broker.publish(mode="push")
    assert (broker.take(A), broker.take(B)) == ([], [])
    broker.grant(1, B)
    assert (broker.taken(A), broker.taken(B)) == ([], [b"x"])


@pytest.mark.parametrize("mode", ["push", "online"])
def test_what_is_not_durable_is_kept_in_memory_only(mode: str) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=0)
    broker.publish(mode=mode)
    assert broker.describe()["held"] == 1
    come_back(broker, True, name="worker")
    assert broker.taken() == []
    assert broker.describe()["held"] == 0


@pytest.mark.parametrize("mode", ["push", "online"])
def test_sent_without_a_store_is_handed_out_at_most_once(mode: str) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.publish(mode=mode, expect="sent")
    broker.subscribe(B, name="b")
    broker.detach(A)
    broker.advance(DAY_MS)
    assert (broker.taken(A), broker.taken(B)) == ([b"x"], [])


# --- online -----------------------------------------------------------------------------------


def test_online_sends_a_copy_to_every_interested_receiver() -> None:
    broker = CoreBroker()
    broker.subscribe(A)
    broker.subscribe(B, "a/**")
    broker.subscribe(C, "other/**")
    broker.subscribe(D, group="g")
    broker.subscribe(E, group="g")
    broker.publish(mode="online")
    assert [broker.taken(node) for node in (A, B, C)] == [[b"x"], [b"x"], []]
    assert broker.taken(D) + broker.taken(E) == [b"x"]


def test_online_with_nobody_there_is_accepted_and_ok_with_no_receivers() -> None:
    broker = CoreBroker()
    broker.publish(mode="online", receipt=True)
    assert (broker.receipts[1].verdict, broker.receipts[1].statuses) == ("ok", {})
    assert broker.describe()["held"] == 0


def test_online_reaches_only_those_online_at_that_moment() -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.detach(A)
    broker.subscribe(B)
    broker.publish(mode="online")
    broker.subscribe(A, name="a")
    broker.subscribe(C)
    assert [broker.taken(node) for node in (A, B, C)] == [[], [b"x"], []]


def test_an_online_copy_waits_for_the_credit_of_its_receiver_alone() -> None:
    broker = CoreBroker()
    broker.subscribe(A, credit=0)
    broker.subscribe(B)
    broker.publish(mode="online")
    assert (broker.taken(A), broker.taken(B)) == ([], [b"x"])
    broker.grant(1, A)
    assert broker.taken(A) == [b"x"]


# --- durable ----------------------------------------------------------------------------------


@across_restarts
def test_durable_reaches_receivers_of_now_and_of_later(restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    sequence = broker.publish(max_receivers=None)
    broker.processed(sequence, node=A)
    if restarts:
        broker.restart()
        broker.subscribe(A, name="a")
    broker.advance(DAY_MS)
    broker.subscribe(B, name="b")
    broker.subscribe(C)
    assert [broker.taken(node) for node in (A, B, C)] == [[b"x"], [b"x"], [b"x"]]


@across_restarts
def test_a_new_endpoint_sees_every_live_message_that_matches(restarts: bool) -> None:
    broker = CoreBroker()
    for index in range(6):
        broker.publish(b"%d" % index, subject="even" if index % 2 == 0 else "odd", max_receivers=4)
    if restarts:
        broker.restart()
    broker.subscribe(A, "even")
    assert broker.taken(A) == [b"0", b"2", b"4"]


@durable_kinds
@across_restarts
def test_durable_is_not_lost_while_nobody_takes_it(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.publish(**kind)
    broker.advance(6 * DAY_MS)
    if restarts:
        broker.restart()
        broker.tick()
    broker.subscribe(A)
    assert broker.taken(A) == [b"x"]


@pytest.mark.parametrize("wanted", [1, 2, 3])
@across_restarts
def test_never_more_than_max_receivers_are_in_the_air_or_done(wanted: int, restarts: bool) -> None:
    broker = CoreBroker()
    for node, name in NAMES.items():
        broker.subscribe(node, name=name)
    sequence = broker.publish(max_receivers=wanted)
    done: set[bytes] = set()
    while broker.describe()["held"]:
        holders = {node for node in NAMES if broker.take(node)}
        assert holders and len(holders | done) <= wanted and not holders & done
        node = sorted(holders)[0]
        broker.processed(sequence, node=node)
        done.add(node)
        if restarts:
            broker.restart()
            for other, name in NAMES.items():
                broker.subscribe(other, name=name)
        else:
            for other in holders - {node}:
                broker.extend(0, sequence, node=other)
    assert len(done) == wanted
    assert [broker.taken(node) for node in NAMES] == [[]] * 5


def test_a_message_for_one_receiver_never_has_two_holders() -> None:
    broker = CoreBroker()
    for node in NAMES:
        broker.subscribe(node)
    broker.publish()
    for _ in range(10):
        assert sum(len(broker.take(node)) for node in NAMES) == 1
        assert broker.describe()["sent"] == 1
        broker.advance(60_000)


@across_restarts
def test_a_message_is_over_once_max_receivers_are_done(restarts: bool) -> None:
    broker = CoreBroker()
    sequence = 0
    broker.subscribe(A, name="a")
    broker.subscribe(B, name="b")
    sequence = broker.publish(max_receivers=2)
    broker.processed(sequence, node=A)
    if restarts:
        broker.restart()
        broker.subscribe(B, name="b")
    broker.processed(sequence, node=B)
    assert broker.describe()["held"] == 0
    broker.subscribe(C)
    assert broker.taken(C) == []


# --- expiry -----------------------------------------------------------------------------------


@durable_kinds
@across_restarts
def test_a_durable_message_expires_at_its_time(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.publish(expires_ms=START_MS + 10_000, **kind)
    if restarts:
        broker.restart()
    broker.advance(9_999)
    assert broker.describe()["held"] == 1
    broker.advance(1)
    assert broker.describe()["held"] == 0
    broker.subscribe()
    assert broker.taken() == []


@durable_kinds
@across_restarts
def test_a_message_without_a_time_expires_by_the_default(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.publish_many([b"1", b"2"], **kind)
    if restarts:
        broker.restart()
    broker.advance(7 * DAY_MS - 1)
    assert broker.describe()["held"] == 2
    broker.advance(1)
    assert broker.describe()["held"] == 0


def test_the_default_is_the_one_of_when_it_was_published() -> None:
    broker = CoreBroker(default_ttl_ms=1_000)
    broker.publish()
    broker.configure(default_ttl_ms=10_000)
    broker.publish()
    broker.configure(default_ttl_ms=100)
    broker.publish()
    held = []
    for ms in (99, 1, 899, 1, 8_999, 1):
        broker.advance(ms)
        held.append(broker.describe()["held"])
    assert held == [3, 2, 2, 1, 1, 0]


@pytest.mark.parametrize("wanted", [1, 2])
@across_restarts
def test_a_message_may_never_expire_and_holds_up_nobody_elses_end(
    wanted: int, restarts: bool
) -> None:
    broker = CoreBroker()
    broker.publish(b"for ever", max_receivers=wanted, expires_ms=NEVER_MS)
    broker.publish(b"for a week", max_receivers=wanted)
    if restarts:
        broker.restart()
    broker.advance(365 * DAY_MS)
    assert broker.describe()["held"] == 1
    broker.subscribe()
    assert broker.taken() == [b"for ever"]


@durable_kinds
def test_a_message_that_expires_is_taken_from_its_holder(kind: Kind) -> None:
    broker = CoreBroker(sent_timeout_ms=DAY_MS)
    broker.subscribe(name="worker", credit=1)
    first = broker.publish(b"1", expires_ms=START_MS + 1_000, **kind)
    broker.publish(b"2", **kind)
    broker.advance(1_000)
    assert broker.taken() == [b"1", b"2"]
    assert broker.processed(first) == {}
    assert broker.describe()["held"] == 1


@durable_kinds
def test_what_has_expired_when_it_is_published_reaches_nobody(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe()
    broker.publish(expires_ms=START_MS, **kind)
    broker.tick()
    assert broker.taken() == []
    assert broker.describe()["held"] == 0


# --- priority ---------------------------------------------------------------------------------


@every_kind
@across_restarts
def test_priority_nought_goes_first_none_last_and_ties_go_by_age(
    kind: Kind, restarts: bool
) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=0)
    for payload, priority in (
        (b"none 1", None),
        (b"five 1", 5),
        (b"nought 1", 0),
        (b"none 2", None),
        (b"nought 2", 0),
        (b"five 2", 5),
        (b"last of numbers", limits.PRIORITY_MAX),
    ):
        broker.publish(payload, priority=priority, **kind)
    come_back(broker, restarts, name="worker", credit=0)
    broker.grant(10)
    assert broker.taken() == [
        b"nought 1", b"nought 2", b"five 1", b"five 2", b"last of numbers", b"none 1", b"none 2",
    ]  # fmt: skip


def test_priority_goes_over_all_kinds_of_messages_of_a_receiver() -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=0)
    kinds: list[Kind] = [{}, {"max_receivers": None}, {"mode": "push"}, {"mode": "online"}]
    for priority in (None, 1, 0):
        for index, kind in enumerate(kinds):
            broker.publish(b"%s %d" % (str(priority).encode(), index), priority=priority, **kind)
    broker.grant(100)
    assert broker.taken() == [
        b"%s %d" % (priority, index) for priority in (b"0", b"1", b"None") for index in range(4)
    ]


# --- deliver_at -------------------------------------------------------------------------------


@every_kind
@across_restarts
def test_a_delayed_message_is_delivered_at_its_time_and_not_before(
    kind: Kind, restarts: bool
) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    broker.publish(b"later", deliver_ms=START_MS + 5_000, **kind)
    broker.publish(b"now", **kind)
    assert broker.taken() == [b"now"]
    if restarts:
        come_back(broker, True, name="worker")
        broker.take()
    broker.advance(4_999)
    assert broker.taken() == []
    broker.advance(1)
    assert broker.taken() == [b"later"]


@every_kind
@pytest.mark.parametrize("deliver_ms", [0, START_MS])
def test_a_time_that_has_come_delays_nothing(kind: Kind, deliver_ms: int) -> None:
    broker = CoreBroker()
    broker.subscribe()
    broker.publish(deliver_ms=deliver_ms, **kind)
    assert broker.taken() == [b"x"]


@durable_kinds
@across_restarts
def test_a_delayed_message_reaches_a_receiver_that_comes_after_its_time(
    kind: Kind, restarts: bool
) -> None:
    broker = CoreBroker()
    broker.publish(deliver_ms=START_MS + 5_000, **kind)
    broker.advance(6_000)
    if restarts:
        broker.restart()
        broker.tick()
    broker.subscribe()
    assert broker.taken() == [b"x"]


def test_a_delayed_online_message_is_for_those_online_at_its_time() -> None:
    broker = CoreBroker()
    broker.subscribe(A)
    broker.publish(mode="online", deliver_ms=START_MS + 5_000)
    broker.detach(A)
    broker.subscribe(B)
    broker.advance(5_000)
    assert (broker.taken(A), broker.taken(B)) == ([], [b"x"])


def test_a_delayed_push_may_be_published_before_its_receiver_is_there() -> None:
    broker = CoreBroker()
    broker.publish(mode="push", deliver_ms=START_MS + 5_000)
    broker.subscribe()
    broker.advance(5_000)
    assert broker.taken() == [b"x"]


@pytest.mark.parametrize("kind", [ONE, ALL])
def test_delayed_messages_are_delivered_in_the_order_of_their_times(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe()
    for seconds in (3, 1, 2):
        broker.publish(b"%d" % seconds, deliver_ms=START_MS + seconds * 1_000, **kind)
    broker.advance(10_000)
    assert broker.taken() == [b"1", b"2", b"3"]


# --- ordering keys ----------------------------------------------------------------------------


@every_kind
def test_messages_of_one_key_reach_a_receiver_one_at_a_time(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    broker.publish_many([b"1", b"2", b"3"], ordering_key="k", **kind)
    for payload in (b"1", b"2", b"3"):
        (delivered,) = broker.take()
        assert delivered.payload == payload
        broker.processed(delivered.sequence)


@every_kind
def test_keys_do_not_hold_up_one_another(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    broker.publish(b"k1", ordering_key="k", **kind)
    broker.publish(b"k2", ordering_key="k", **kind)
    broker.publish(b"j1", ordering_key="j", **kind)
    broker.publish(b"none", **kind)
    assert broker.taken() == [b"k1", b"j1", b"none"]


@pytest.mark.parametrize("kind", [ALL, TWO, ONLINE])
def test_a_key_is_held_per_receiver(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a")
    broker.subscribe(B, name="b")
    broker.publish_many([b"1", b"2"], ordering_key="k", **kind)
    (first,) = broker.take(A)
    broker.processed(first.sequence, node=A)
    assert (broker.taken(A), broker.taken(B)) == ([b"2"], [b"1"])


@pytest.mark.parametrize("kind", [ONE, PUSH])
def test_a_key_goes_over_all_who_share_a_queue(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(A)
    broker.subscribe(B)
    first, _ = broker.publish_many([b"1", b"2"], ordering_key="k", **kind)
    assert isinstance(first, int)
    assert broker.taken(A) + broker.taken(B) == [b"1"]
    broker.processed(first, node=A)
    assert broker.taken(A) + broker.taken(B) == [b"2"]


@every_kind
@pytest.mark.parametrize("how", ["deadline", "failure", "pause", "given up"])
def test_a_key_keeps_its_order_through_failures(kind: Kind, how: str) -> None:
    pause = BackoffMs(1_000, 1_000) if how == "pause" else None
    broker = CoreBroker(max_attempts=3, retry_backoff=pause)
    broker.subscribe(name="worker")
    broker.publish_many([b"1", b"2", b"3"], ordering_key="k", **kind)
    for _ in range(2):
        (delivered,) = broker.take()
        assert delivered.payload == b"1"
        if how == "deadline":
            broker.advance(60_000)
        elif how == "given up":
            broker.extend(0, delivered.sequence)
        else:
            broker.failed(delivered.sequence)
            broker.advance(1_000)
    assert finish_all(broker) == [b"1", b"2", b"3"]


@durable_kinds
@pytest.mark.parametrize("failures", [0, 1])
def test_a_key_keeps_its_order_through_a_restart(kind: Kind, failures: int) -> None:
    broker = CoreBroker(max_attempts=5)
    broker.subscribe(name="worker")
    first, *_ = broker.publish_many([b"1", b"2", b"3"], ordering_key="k", **kind)
    assert isinstance(first, int)
    for _ in range(failures):
        broker.failed(first)
    broker.take()
    come_back(broker, True, name="worker")
    assert [delivered.payload for delivered in broker.inbox[b"consumer", 1]] == [b"1"]
    assert finish_all(broker) == [b"1", b"2", b"3"]


@durable_kinds
def test_a_final_failure_lets_the_next_of_its_key_go(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    first, _ = broker.publish_many([b"1", b"2"], ordering_key="k", **kind)
    assert isinstance(first, int)
    broker.failed(first)
    assert broker.taken() == [b"1", b"2"]


@every_kind
def test_a_key_goes_on_when_its_holder_is_gone(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(A, group="g")
    broker.publish_many([b"1", b"2"], ordering_key="k", **kind)
    broker.subscribe(B, group="g")
    broker.detach(A)
    assert finish_all(broker, B) == [b"1", b"2"]


def test_a_receiver_that_is_moved_back_is_not_stuck_on_a_key_it_has_finished() -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    first = broker.publish(b"1", ordering_key="k", max_receivers=2)
    broker.processed(first)
    broker.seek("worker", sequence=0)
    broker.publish(b"2", ordering_key="k", max_receivers=2)
    assert broker.taken() == [b"1", b"1"], "it has it again, and the next of the key waits"
    broker.processed(first)
    assert broker.taken() == [b"2"]


def test_an_ordering_key_is_not_held_up_by_what_nobody_wants() -> None:
    broker = CoreBroker()
    broker.publish(b"unwanted", "b", ordering_key="k")
    broker.publish_many([b"1", b"2"], "a", ordering_key="k")
    broker.subscribe(interests="a")
    for payload in (b"1", b"2"):
        (delivered,) = broker.take()
        assert delivered.payload == payload
        broker.processed(delivered.sequence)


def test_what_is_tried_again_goes_before_the_rest_of_its_key_after_a_restart() -> None:
    broker = CoreBroker(max_attempts=5)
    broker.subscribe(name="anna", interests=("a", "b"), credit=1)
    first = broker.publish(b"1", "a", ordering_key="k")
    broker.publish(b"2", "b", ordering_key="k")
    broker.failed(first)
    broker.take()
    broker.restart()
    broker.subscribe(b"other", "b")
    assert broker.taken(b"other") == [b"2"]
    broker.detach(b"other")
    broker.subscribe(name="anna", interests=("a", "b"))
    assert broker.taken() == [b"1"]


def test_a_key_set_aside_is_found_by_whoever_wants_it_later() -> None:
    broker = CoreBroker()
    broker.subscribe(b"x", ("a", "b"), credit=1)
    first, *_ = broker.publish_many([b"1", b"2"], "a", ordering_key="k")
    broker.publish(b"3", "b", ordering_key="k")
    broker.grant(5, b"x")  # 2 and 3 come to the head and are set aside
    assert isinstance(first, int)
    broker.set_interests("c", node=b"x")
    broker.processed(first, node=b"x")
    broker.subscribe(b"y", "b")
    assert broker.taken(b"y") == [b"3"]


# --- order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [{"expect": "sent"}, {"mode": "push"}, {"receipt": True}])
def test_what_comes_later_and_is_handled_otherwise_comes_later(later: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(credit=0)
    broker.publish_many([b"1", b"2"])
    broker.publish(b"3", **later)
    broker.publish_many([b"4"])
    broker.grant(9)
    assert broker.taken() == [b"1", b"2", b"3", b"4"]


def test_one_that_has_no_credit_does_not_keep_an_online_message_from_others() -> None:
    broker = CoreBroker()
    broker.subscribe(A, name="a", credit=0)
    broker.subscribe(B, name="b", credit=9)
    for _ in range(2):  # the second time its header is known
        broker.publish_many([b"1", b"2"], mode="online", expect="sent")
    assert (broker.taken(A), broker.taken(B)) == ([], [b"1", b"2"] * 2)
    broker.grant(9, A)
    assert broker.taken(A) == [b"1", b"2"] * 2
    assert broker.describe()["held"] == 0


@across_restarts
def test_first_attempts_are_in_acceptance_order(restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=0)
    kinds: list[Kind] = [{}, {"max_receivers": None}, {"max_receivers": 3}]
    if not restarts:
        kinds += [{"mode": "push"}, {"mode": "online"}]
    payloads = [b"%d" % index for index in range(60)]
    for index, payload in enumerate(payloads):
        broker.publish(payload, producer=bytes([index % 3]) * 16, **kinds[index % len(kinds)])
    come_back(broker, restarts, name="worker", credit=0)
    taken: list[bytes] = []
    while len(taken) < len(payloads):
        broker.grant(7)
        more = broker.taken()
        assert more
        taken += more
    assert taken == payloads


@durable_kinds
@across_restarts
@pytest.mark.usefixtures("small_limits")
def test_order_holds_for_a_backlog_that_does_not_fit_in_memory(kind: Kind, restarts: bool) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker", credit=0)
    payloads = [b"%d" % index for index in range(50)]
    for payload in payloads:
        broker.publish(payload, **kind)
    come_back(broker, restarts, name="worker", credit=0)
    taken: list[bytes] = []
    for _ in range(100):
        broker.grant(1)
        broker.tick()
        taken += finish_all(broker)
    assert taken == payloads


# --- guarantees -------------------------------------------------------------------------------


@durable_kinds
def test_durable_that_expects_sent_is_handed_out_once_even_over_a_restart(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    broker.publish(expect="sent", **kind)
    assert broker.taken() == [b"x"]
    broker.advance(DAY_MS)
    come_back(broker, True, name="worker")
    assert broker.taken() == []


@durable_kinds
def test_durable_is_delivered_again_until_it_is_done(kind: Kind) -> None:
    broker = CoreBroker()
    broker.subscribe(name="worker")
    sequence = broker.publish(**kind)
    for _ in range(3):
        broker.advance(60_000)
        come_back(broker, True, name="worker")
    broker.processed(sequence)
    deliveries = len(broker.take())
    assert deliveries == 7
    come_back(broker, True, name="worker")
    broker.advance(60_000)
    assert broker.take() == []


def test_a_delivery_once_pulled_gives_credit_back_where_a_window_was_granted() -> None:
    broker = CoreBroker()
    broker.subscribe(A, credit=0)
    broker.do(ask.Pull(A, broker.request(), 1, 1, 1_000))
    sequence = broker.publish(b"1")
    broker.subscribe(B, credit=1)
    broker.detach(A)
    broker.processed(sequence, node=B)
    broker.publish(b"2")
    assert broker.taken(B) == [b"1", b"2"]


def test_every_mode_is_one_of_three() -> None:
    assert [mode.name.lower() for mode in Mode] == ["push", "online", "durable"]


def test_a_refusal_of_one_message_says_which_and_why() -> None:
    broker = CoreBroker(max_payload=1)
    results = broker.publish_many([b"1", b"22", b"3"])
    assert [type(result) for result in results] == [int, Refusal, int]
    refusal = results[1]
    assert isinstance(refusal, Refusal) and "2" in refusal.detail
