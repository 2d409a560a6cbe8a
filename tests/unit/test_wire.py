"""Frames: what is packed is read again as it was, what is wrong is refused with a code."""

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism import DropOld, PeerError, RejectNew, limits, wire
from asterism import commands as ask
from asterism.effects import (
    Accepted,
    Deliver,
    Delivered,
    Effect,
    EndpointGone,
    Forward,
    Refusal,
    Refuse,
    Reply,
    Resolved,
)
from asterism.message import Header, Mode, Status
from asterism.options import topic_settings_as_user
from asterism.settings import BackoffMs, TopicSettings
from asterism.wire import COMMANDS, Verb
from tests.support.core import CoreBroker

SESSION = b"epoch-8-" + b"route"
NODE = SESSION + (7).to_bytes(4, "big")
PRODUCER = b"p" * limits.PRODUCER_ID_BYTES
ID = b"i" * limits.MESSAGE_ID_BYTES
HEADER = Header(Mode.DURABLE, Status.PROCESSED, ("a/b",)).encoded


def refusal(act: Callable[..., object], *arguments: object) -> PeerError:
    with pytest.raises(PeerError) as caught:
        act(*arguments)
    return caught.value


def read(verb: int, fields: object, request: int = 5) -> object:
    return wire.read_command(verb, NODE, request, wire.pack_body(fields))


# --- parts --------------------------------------------------------------------------------------


def only(frame: bytes) -> wire.Part:
    """The part of a frame that has one."""
    (part,) = wire.read_parts(frame)
    return part


PING = wire.pack_part(Verb.PING, 7)


def test_a_part_is_a_head_of_22_bytes_a_topic_and_a_body_in_the_order_of_the_document() -> None:
    part = wire.pack_part(
        *(Verb.PUBLISH, 0x05060708090A0B0C, b"orders", b"\x91\x01"), node=0x01020304, worker=0x0D0E
    )
    head = bytes.fromhex("01 10 0d0e 01020304 05060708090a0b0c 0006 00000002")
    assert len(head) == wire.HEAD.size == 22
    assert part == head + b"orders" + b"\x91\x01"


@pytest.mark.parametrize(
    ("verb", "worker", "node", "request_number"),
    [
        (0, 0, 0, 0),
        (Verb.HELLO, wire.ANY_WORKER, 0, 1),
        (Verb.DELIVER, 3, 9, 0),
        (0xFF, 0xFFFF, 2**32 - 1, 2**64 - 1),
    ],
)
@pytest.mark.parametrize(("topic", "body"), [(b"", b""), (b"t", wire.NIL), (b"t" * 65_535, b"b")])
def test_a_part_is_read_as_it_was_packed(
    verb: int, worker: int, node: int, request_number: int, topic: bytes, body: bytes
) -> None:
    frame = wire.pack_part(verb, request_number, topic, body, node=node, worker=worker)
    begins = 22 + len(topic)
    wanted = (verb, worker, node, request_number, topic, 0, begins, begins + len(body))
    assert only(frame) == wanted
    assert frame[begins:] == body


def test_a_part_without_more_is_of_the_first_node_wants_no_answer_and_says_nothing() -> None:
    frame = wire.pack_part(Verb.PING)
    assert only(frame) == (Verb.PING, wire.ANY_WORKER, 0, 0, b"", 0, 22, 23)
    assert wire.read_body(frame[22:]) is None


def test_parts_that_were_joined_are_read_in_order_each_with_its_place() -> None:
    packed = [
        wire.pack_part(Verb.PUBLISH, 1, b"orders", b"\x90"),
        wire.pack_part(Verb.PING, 2),
        wire.pack_part(Verb.GRANT, 0, b"o", b"", node=5),
    ]
    frame = b"".join(packed)
    parts = wire.read_parts(frame)
    assert [frame[part.begin : part.end] for part in parts] == packed
    assert [(part.verb, part.request, part.topic) for part in parts] == [
        (Verb.PUBLISH, 1, b"orders"),
        (Verb.PING, 2, b""),
        (Verb.GRANT, 0, b"o"),
    ]
    assert [frame[part.body : part.end] for part in parts] == [b"\x90", wire.NIL, b""]
    assert [(part.begin, part.body, part.end) for part in parts] == [
        *((0, 28, 29), (29, 51, 52), (52, 75, 75)),
    ]


# Of a part: verb, request, topic, body, node and worker.
packable = st.tuples(
    st.integers(0, 255),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=30),
    st.binary(max_size=60),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
)


@given(st.lists(packable, min_size=1, max_size=wire.TOGETHER_MAX))
def test_parts_that_are_packed_and_joined_are_read_back_with_their_places(
    wanted: list[tuple[int, int, bytes, bytes, int, int]],
) -> None:
    packed = [wire.pack_part(*fields[:4], node=fields[4], worker=fields[5]) for fields in wanted]
    frame = b"".join(packed)
    parts = wire.read_parts(frame)
    assert len(parts) == len(packed)
    begins = 0
    for part, whole, fields in zip(parts, packed, wanted, strict=True):
        verb, request, topic, body, node, worker = fields
        assert part[:5] == (verb, worker, node, request, topic)
        assert (part.begin, part.end) == (begins, begins + len(whole))
        assert part.body == part.end - len(body)
        assert frame[part.begin : part.end] == whole and frame[part.body : part.end] == body
        begins = part.end
    assert begins == len(frame)


def test_a_frame_of_no_parts_is_refused() -> None:
    error = refusal(wire.read_parts, b"")
    assert (error.code, error.detail) == ("bad_request", "a head has 22 bytes")


@pytest.mark.parametrize("before", [b"", PING, PING * 5], ids=["first", "second", "sixth"])
@pytest.mark.parametrize("size", [1, 2, 16, 21])
def test_a_head_that_is_cut_off_is_refused(before: bytes, size: int) -> None:
    error = refusal(wire.read_parts, before + PING[:size])
    assert (error.code, error.detail) == ("bad_request", "a head has 22 bytes")


def head_of(topic_bytes: int, body_bytes: int) -> bytes:
    """A head that says so, whatever stands behind it."""
    return wire.HEAD.pack(
        wire.VERSION, Verb.PUBLISH, wire.ANY_WORKER, 0, 7, topic_bytes, body_bytes
    )


@pytest.mark.parametrize("before", [b"", PING], ids=["first", "second"])
@pytest.mark.parametrize(
    "cut",
    [
        head_of(1, 0),
        head_of(0, 1),
        head_of(6, 0) + b"order",
        head_of(6, 1) + b"orders",
        head_of(6, 2) + b"orders" + b"\x90",
        head_of(65_535, 0) + bytes(65_534),
        head_of(0, 2**32 - 1) + b"\x90",
        head_of(65_535, 2**32 - 1),
    ],
    ids=lambda cut: cut[16:].hex()[:24],
)
def test_a_topic_or_a_body_that_is_longer_than_the_frame_is_refused(
    before: bytes, cut: bytes
) -> None:
    error = refusal(wire.read_parts, before + cut)
    assert error.code == "bad_request"
    assert error.detail == "a frame ends before its last part does"


def test_a_byte_behind_the_last_part_is_a_part_that_is_cut_off() -> None:
    assert refusal(wire.read_parts, PING + b"\x01").code == "bad_request"


def test_so_many_parts_make_a_frame_and_no_more() -> None:
    most = wire.TOGETHER_MAX
    assert most == 64
    assert len(wire.read_parts(PING * most)) == most
    for count in (most + 1, 3 * most):
        error = refusal(wire.read_parts, PING * count)
        assert (error.code, error.detail) == ("bad_request", "a frame has at most 64 parts")


def test_nothing_behind_the_last_part_that_may_be_is_read() -> None:
    """Or a frame of millions of them would hold up the front-end, and all of its clients."""
    error = refusal(wire.read_parts, PING * wire.TOGETHER_MAX + b"\xff" * wire.HEAD.size)
    assert (error.code, error.detail) == ("bad_request", "a frame has at most 64 parts")


@pytest.mark.parametrize("version", [0, 2, 255])
@pytest.mark.parametrize("before", [b"", PING, PING * 63], ids=["first", "second", "last"])
def test_a_part_of_another_version_is_refused(before: bytes, version: int) -> None:
    error = refusal(wire.read_parts, before + bytes([version]) + PING[1:])
    assert error.code == "unsupported_version"
    assert error.detail == f"this is version 1, not {version}"


def test_verbs_of_clients_and_of_the_broker_do_not_mix() -> None:
    from_broker = {verb for verb in Verb if verb >= wire.FIRST_BROKER_VERB}
    assert {verb.name for verb in from_broker} == {
        *("WELCOME", "PONG", "CLOSED", "RESTARTED", "ELSEWHERE", "ACCEPTED"),
        *("REPLY", "REFUSE", "DELIVER", "GONE", "RESOLVED"),
    }
    of_topics = {verb for verb in Verb if wire.FIRST_TOPIC_VERB <= verb < wire.FIRST_BROKER_VERB}
    assert of_topics == set(COMMANDS)


def test_every_command_that_can_be_asked_of_a_topic_has_a_verb() -> None:
    asked = {kind for kind in vars(ask).values() if isinstance(kind, type)}
    requests = {kind for kind in asked if issubclass(kind, ask.Request)} - {ask.Request}
    assert set(COMMANDS.values()) == requests - {ask.Detach, ask.Suspend}  # the front-end tells
    assert len(set(COMMANDS.values())) == len(COMMANDS)


def test_the_topic_of_a_process_is_no_name_of_a_topic() -> None:
    assert wire.worker_topic(12) == b"\0w12"
    assert wire.worker_topic(0).startswith(wire.PROCESS)


# --- parts of a lane ----------------------------------------------------------------------------

LANE_PARTS = [
    wire.pack_part(Verb.PUBLISH, 1, b"orders", b"\x91\x01", node=3, worker=4),
    wire.pack_part(Verb.PING, 2),
    wire.pack_part(Verb.GRANT, 0, b"o", b""),
    wire.pack_part(Verb.REPORT, 2**64 - 1, b"", bytes(70)),
]


def took(stream: wire.PartStream, *pieces: bytes) -> list[bytes]:
    """The parts that a stream is found to have when it comes in these pieces, as they were."""
    found = []
    for piece in pieces:
        data, parts = stream.take(piece)
        for part in parts:
            whole = data[part.begin : part.end]
            again = wire.pack_part(
                *(part.verb, part.request, part.topic, data[part.body : part.end]),
                node=part.node,
                worker=part.worker,
            )
            assert again == whole
            found.append(whole)
    return found


@pytest.mark.parametrize("part", LANE_PARTS, ids=lambda part: Verb(part[1]).name)
def test_a_part_that_comes_whole_is_there_at_once(part: bytes) -> None:
    stream = wire.PartStream()
    assert took(stream, part) == [part]
    assert took(stream, part) == [part]
    assert stream.take(b"") == (b"", [])


def test_parts_that_come_byte_by_byte_are_each_there_with_their_last_byte() -> None:
    stream = wire.PartStream()
    for part in LANE_PARTS * 2:
        for number in range(len(part) - 1):
            assert took(stream, part[number : number + 1]) == []
        assert took(stream, part[-1:]) == [part]


def test_parts_may_be_cut_anywhere() -> None:
    whole = b"".join(LANE_PARTS)
    for first in range(len(whole) + 1):
        for second in range(first, len(whole) + 1):
            pieces = whole[:first], whole[first:second], whole[second:]
            assert took(wire.PartStream(), *pieces) == LANE_PARTS


def test_several_parts_and_the_beginning_of_another_are_those_parts() -> None:
    stream = wire.PartStream()
    first, second, third, fourth = LANE_PARTS
    assert took(stream, first + second + third[:5]) == [first, second]
    assert took(stream, third[5:] + fourth + first + second[:-1]) == [third, fourth, first]
    assert took(stream, second[-1:]) == [second]


def test_a_lane_has_more_parts_than_a_frame_may() -> None:
    assert took(wire.PartStream(), PING * (3 * wire.TOGETHER_MAX)) == [PING] * 192


def test_a_part_in_very_many_pieces_is_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every piece anew, a client's megabytes would take the worker minutes."""
    read: list[int] = []
    read_part = wire._read_part

    def counted(frame: bytes, begin: int) -> wire.Part:
        read.append(len(frame))
        return read_part(frame, begin)

    monkeypatch.setattr(wire, "_read_part", counted)
    part = wire.pack_part(Verb.PUBLISH, 1, b"orders", bytes(1 << 20))
    stream = wire.PartStream()
    first, last = PING + part[:100], part[-1:]
    pieces = [part[at : min(at + 100, len(part) - 1)] for at in range(100, len(part) - 1, 100)]
    assert took(stream, first) == [PING]
    assert took(stream, *pieces) == []
    assert all(held is piece for held, piece in zip(stream._held[1:], pieces, strict=True))
    assert took(stream, last) == [part]
    heads = [len(first)] * 2
    assert read == [*heads, len(part)], "it is looked at once its head is there, and once all is"


@pytest.mark.parametrize("version", [0, 2, 255])
@pytest.mark.parametrize("before", [b"", PING, PING + LANE_PARTS[0]], ids=["0", "1", "2"])
def test_a_part_of_another_version_on_a_lane_is_refused(before: bytes, version: int) -> None:
    error = refusal(wire.PartStream().take, before + bytes([version]) + PING[1:])
    assert error.code == "unsupported_version"
    stream = wire.PartStream()
    stream.take(before + bytes([version]))
    assert refusal(stream.take, PING[1:]).code == "unsupported_version"


def test_a_part_of_a_lane_has_so_many_bytes_and_no_more() -> None:
    """It is refused by what its head announces: nobody is made to hold it first."""
    most = wire.FRAME_BYTES_MAX - wire.HEAD.size - len(b"orders")
    assert took(wire.PartStream(), head_of(6, most)) == []
    for before in (b"", PING):
        error = refusal(wire.PartStream().take, before + head_of(6, most + 1))
        assert error.code == "too_large"
    stream = wire.PartStream()
    stream.take(head_of(6, most + 1)[:-1])
    assert refusal(stream.take, head_of(6, most + 1)[-1:]).code == "too_large"


# --- bodies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1, 2**63, 0.5, "text", b"bytes", (), (1, ("a",)), {}, {"a": {"b": b""}}],
)
def test_a_body_is_read_as_it_was_packed(value: object) -> None:
    assert wire.read_body(wire.pack_body(value)) == value


def test_arrays_are_read_as_tuples() -> None:
    assert wire.read_body(wire.pack_body([1, [2], {"a": [3]}])) == (1, (2,), {"a": (3,)})


@pytest.mark.parametrize(
    "body",
    [
        b"",  # nothing at all
        b"\xc1",  # what MessagePack never uses
        b"\x90\x90",  # a second value behind the first
        b"\x92\x01",  # cut off
        b"\xdd\xff\xff\xff\xff",  # an array longer than its frame
        b"\xdf\xff\xff\xff\xff",  # a map of that sort
        b"\xc6\xff\xff\xff\xff",  # bytes of that sort
        b"\xa1\xff",  # text that is not UTF-8
        b"\x81\x80\x01",  # a map as a key
        b"\x81\x91\x80\x01",  # an array that holds one
        b"\xc7\x03\xffabc",  # a time of a length that times do not have
        b"\xd7\xff" + b"\xff" * 8,  # a time with too many nanoseconds
        b"\x91" * 100_000 + b"\x90",  # deeper than anybody needs
        b"\x81" * 100_000 + b"\x90",
    ],
    ids=lambda body: body[:6].hex() or "empty",
)
def test_a_body_that_is_not_messagepack_is_refused(body: bytes) -> None:
    error = refusal(wire.read_body, body)
    assert error.code == "bad_request"
    assert error.detail.startswith("a body is not MessagePack: ")


# --- commands -----------------------------------------------------------------------------------

MESSAGES = ((ID, HEADER, b"payload"), (ID, HEADER, b""))
# Each verb: all its fields as they travel, and the command that they are.
WHOLE: list[tuple[Verb, list[Any], ask.Request]] = [
    (
        Verb.PUBLISH,
        [MESSAGES, PRODUCER, 3, 2],
        ask.Publish(NODE, 5, MESSAGES, PRODUCER, 3, 2),
    ),
    (
        Verb.AWAIT_RECEIPTS,
        [PRODUCER, [1, 2], [8, 9]],
        ask.AwaitReceipts(NODE, 5, PRODUCER, (1, 2), (8, 9)),
    ),
    (
        Verb.SUBSCRIBE,
        [
            *(1, ["a/*", "b/**"], "name", "group", True, 256, 1_000, 2_000),
            [[b"s" * 13], [7, 9], [1, 2]],
        ],
        ask.Subscribe(
            *(NODE, 5, 1, ("a/*", "b/**"), "name", "group", True, 256, 1_000, 2_000),
            ((b"s" * 13,), (7, 9), (1, 2)),
        ),
    ),
    (
        Verb.CREATE_RECEIVER,
        ["name", ["a"], 1_000, 2_000],
        ask.CreateReceiver(NODE, 5, "name", ("a",), 1_000, 2_000),
    ),
    (Verb.SET_INTERESTS, [1, ["a", "b"]], ask.SetInterests(NODE, 5, 1, ("a", "b"))),
    (Verb.UNSUBSCRIBE, [1], ask.Unsubscribe(NODE, 5, 1)),
    (Verb.GRANT, [1, 100, 5], ask.Grant(NODE, 5, 1, 100, 5)),
    (Verb.PULL, [1, 10, 500], ask.Pull(NODE, 5, 1, 10, 500)),
    (Verb.CANCEL_WAIT, [4], ask.CancelWait(NODE, 5, 4)),
    (
        Verb.REPORT,
        [1, 5, [7, 8], "why", "name", [1, 2]],
        ask.Report(NODE, 5, 1, Status.FAILED, (7, 8), "why", "name", (1, 2)),
    ),
    (Verb.EXTEND, [1, [7], 0, "name", [2]], ask.Extend(NODE, 5, 1, (7,), 0, "name", (2,))),
    (Verb.LIST_RECEIVERS, ["m"], ask.ListReceivers(NODE, 5, "m")),
    (Verb.DELETE_RECEIVER, ["name"], ask.DeleteReceiver(NODE, 5, "name")),
    (Verb.SEEK, ["name", None, 1_700], ask.Seek(NODE, 5, "name", None, 1_700)),
    (
        Verb.CONFIGURE,
        [{"unique": True}, ["history"]],
        ask.Configure(NODE, 5, {"unique": True}, ("history",)),
    ),
    (Verb.DESCRIBE, [], ask.Describe(NODE, 5)),
    (Verb.CLEAR, [], ask.Clear(NODE, 5)),
    (Verb.DELETE_TOPIC, [], ask.DeleteTopic(NODE, 5)),
    (Verb.CREATE_TOPIC, [{"requeue": "front"}], ask.CreateTopic(NODE, 5, {"requeue": "front"})),
    (Verb.LIST_PARKED, [3], ask.ListParked(NODE, 5, 3)),
    (Verb.RENEW, [3, "name"], ask.Renew(NODE, 5, 3, "name")),
    (Verb.ABANDON, [3, "name"], ask.Abandon(NODE, 5, 3, "name")),
    (Verb.RENEW_ALL, [], ask.RenewAll(NODE, 5)),
    (Verb.ABANDON_ALL, [], ask.AbandonAll(NODE, 5)),
    (Verb.DRAFT, [ID, 2], ask.Draft(NODE, 5, ID, 2)),
    (Verb.SET_DRAFT, [3, b"p", {"k": "v"}], ask.SetDraft(NODE, 5, 3, b"p", {"k": "v"})),
    (Verb.ORDER, [1_000], ask.Order(NODE, 5, 1_000)),
    (Verb.FETCH, [3], ask.Fetch(NODE, 5, 3)),
    (Verb.COMPLETE, [3], ask.Complete(NODE, 5, 3)),
    (Verb.FAIL, [3, "why"], ask.Fail(NODE, 5, 3, "why")),
    (Verb.STATS, [], ask.Stats(NODE, 5)),
]
# Those with defaults, and how many fields they cannot do without.
REQUIRED: dict[Verb, int] = {
    Verb.PUBLISH: 1,
    Verb.AWAIT_RECEIPTS: 2,
    Verb.SUBSCRIBE: 2,
    Verb.CREATE_RECEIVER: 2,
    Verb.GRANT: 2,
    Verb.PULL: 2,
    Verb.REPORT: 3,
    Verb.EXTEND: 3,
    Verb.LIST_RECEIVERS: 0,
    Verb.SEEK: 1,
    Verb.CONFIGURE: 0,
    Verb.CREATE_TOPIC: 0,
    Verb.LIST_PARKED: 0,
    Verb.RENEW: 1,
    Verb.ABANDON: 1,
    Verb.DRAFT: 1,
    Verb.SET_DRAFT: 2,
    Verb.ORDER: 0,
    Verb.FAIL: 1,
}
each_command = pytest.mark.parametrize(
    ("verb", "fields", "command"), WHOLE, ids=[verb.name for verb, _, _ in WHOLE]
)


def test_every_command_is_tried() -> None:
    assert [verb for verb, _, _ in WHOLE] == list(COMMANDS)
    assert all(type(command) is COMMANDS[verb] for verb, _, command in WHOLE)


@each_command
def test_a_command_is_read_from_its_fields(
    verb: Verb, fields: list[Any], command: ask.Request
) -> None:
    assert read(verb, fields) == command


@each_command
def test_fields_at_the_end_may_be_left_out_where_they_have_a_default(
    verb: Verb, fields: list[Any], command: ask.Request
) -> None:
    required = REQUIRED.get(verb, len(fields))
    wanted: Any = COMMANDS[verb]
    for count in range(required, len(fields) + 1):
        values = [getattr(command, name) for name in wanted.__slots__[:count]]
        assert read(verb, fields[:count]) == wanted(NODE, 5, *values)


@each_command
def test_a_command_with_too_many_or_too_few_fields_is_refused(
    verb: Verb, fields: list[Any], command: ask.Request
) -> None:
    wrong = [[*fields, None], [*fields, None, None]]
    if required := REQUIRED.get(verb, len(fields)):
        wrong += [fields[: required - 1], []]
    for body in wrong:
        assert refusal(read, verb, body).code == "bad_request"


@each_command
@pytest.mark.parametrize("body", [None, {}, {"endpoint": 1}, 1, "text", b"bytes", True, 0.5])
def test_a_body_that_is_no_array_is_refused(
    body: object, verb: Verb, fields: list[Any], command: ask.Request
) -> None:
    error = refusal(read, verb, body)
    assert error.code == "bad_request"
    assert error.detail == "a command's body is an array of its fields"


@each_command
def test_a_body_that_is_an_extension_is_refused(
    verb: Verb, fields: list[Any], command: ask.Request
) -> None:
    for body in (msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 0)):
        assert refusal(read, verb, body).code == "bad_request"


# Besides bad_request, what a field of the wrong type is refused with.
OTHER_CODES = {
    (Verb.SUBSCRIBE, 1): "bad_interest",
    (Verb.CREATE_RECEIVER, 1): "bad_interest",
    (Verb.SET_INTERESTS, 1): "bad_interest",
}
FIELDS = [(verb, index) for verb, fields, _ in WHOLE for index in range(len(fields))]
WRONG = (-1, 0.5, 2**64 - 1, msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 0))


@pytest.mark.parametrize(
    ("verb", "index"), FIELDS, ids=[f"{verb.name}-{index}" for verb, index in FIELDS]
)
def test_a_field_of_the_wrong_type_is_refused(verb: Verb, index: int) -> None:
    (fields,) = [fields for known, fields, _ in WHOLE if known is verb]
    for value in WRONG:
        error = refusal(read, verb, [*fields[:index], value, *fields[index + 1 :]])
        assert error.code == OTHER_CODES.get((verb, index), "bad_request")


@pytest.mark.parametrize(
    ("verb", "index"),
    [(Verb.AWAIT_RECEIPTS, 1), (Verb.SUBSCRIBE, 1), (Verb.REPORT, 2), (Verb.REPORT, 5)],
)
def test_an_array_with_something_wrong_in_it_is_refused(verb: Verb, index: int) -> None:
    (fields,) = [fields for known, fields, _ in WHOLE if known is verb]
    inner: list[Any] = [*WRONG, [], {}, None]
    for value in inner:
        error = refusal(read, verb, [*fields[:index], [value], *fields[index + 1 :]])
        assert error.code == OTHER_CODES.get((verb, index), "bad_request")


@pytest.mark.parametrize("message", [1, None, [], {}, [ID, HEADER], [ID, {}, b""], [[], [], []]])
def test_what_is_in_a_batch_is_for_the_topic_to_judge(message: Any) -> None:
    command = read(Verb.PUBLISH, [[message, [ID, HEADER, b"good"]]])
    assert isinstance(command, ask.Publish)
    ((part, _, body),) = written(*CoreBroker().do(command))
    assert part.verb == Verb.ACCEPTED
    assert body[0][0] == "bad_request" and type(body[1]) is int


@each_command
def test_a_request_number_that_is_too_large_is_refused(
    verb: Verb, fields: list[Any], command: ask.Request
) -> None:
    read(verb, fields, ask.REQUEST_MAX)
    assert refusal(read, verb, fields, ask.REQUEST_MAX + 1).code == "bad_request"


@pytest.mark.parametrize(
    "verb", [*(verb for verb in Verb if verb not in COMMANDS), 0, 5, 47, 127, 255]
)
def test_a_verb_that_is_no_command_is_refused(verb: int) -> None:
    error = refusal(read, verb, [])
    assert (error.code, error.detail) == ("bad_request", f"there is no verb {int(verb)}")


@pytest.mark.parametrize("status", [0, 1, 2, 6, 7, 2**40, True, None, "processed", 4.0])
def test_a_status_that_cannot_be_reported_is_refused(status: object) -> None:
    error = refusal(read, Verb.REPORT, [1, status, [7]])
    assert error.detail == "status must be received, processed or failed"


def test_a_batch_that_is_empty_or_too_long_is_too_large() -> None:
    most = limits.BATCH_MESSAGES_MAX
    message = (ID, HEADER, b"")
    read(Verb.PUBLISH, [[message] * most])
    for count in (0, most + 1):
        assert refusal(read, Verb.PUBLISH, [[message] * count]).code == "too_large"


# --- settings as users write them ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "held"),
    [
        ({"sent_timeout": 2.5}, {"sent_timeout_ms": 2_500}),
        ({"default_ttl": 60}, {"default_ttl_ms": 60_000}),
        ({"overflow": {"size": 9}}, {"overflow": RejectNew(9)}),
        ({"overflow": {"size": 9, "policy": "drop_old"}}, {"overflow": DropOld(9)}),
        ({"overflow": None}, {"overflow": None}),
        ({"retry_backoff": {"min": 0.5, "max": 60}}, {"retry_backoff": BackoffMs(500, 60_000)}),
        ({"dead_letter": "dead", "unique": True}, {"dead_letter": "dead", "unique": True}),
    ],
)
@pytest.mark.parametrize("verb", [Verb.CREATE_TOPIC, Verb.CONFIGURE], ids=lambda verb: verb.name)
def test_settings_travel_in_the_units_of_users(
    verb: Verb, written: dict[str, Any], held: dict[str, Any]
) -> None:
    wanted: Any = COMMANDS[verb]
    assert read(verb, [written]) == wanted(NODE, 5, held)


def test_settings_to_inherit_go_by_the_names_of_users() -> None:
    assert read(Verb.CONFIGURE, [{}, ["sent_timeout", "overflow"]]) == ask.Configure(
        NODE, 5, {}, ("sent_timeout_ms", "overflow")
    )


@pytest.mark.parametrize(
    "fields",
    [
        [[]],
        [None],
        ["unique"],
        [{"sent_timeout_ms": 5}],
        [{"sent_timeuot": 5}],
        [{b"unique": True}],
        [{1: 2}],
        [{(1,): 2}],
        [{"sent_timeout": 0}],
        [{"sent_timeout": "60"}],
        [{"sent_timeout": float("nan")}],
        [{"sent_timeout": float("inf")}],
        [{"sent_timeout": msgpack.Timestamp(1, 0)}],
        [{"blocking": None}],
        [{"overflow": 9}],
        [{"overflow": {}}],
        [{"overflow": {"size": "9"}}],
        [{"overflow": {"size": 9, b"policy": 1}}],
        [{"retry_backoff": {"min": 2, "max": 1}}],
        [{"history": ["none"]}],
    ],
    ids=repr,
)
@pytest.mark.parametrize("verb", [Verb.CREATE_TOPIC, Verb.CONFIGURE], ids=lambda verb: verb.name)
def test_settings_that_are_none_are_refused(verb: Verb, fields: list[Any]) -> None:
    assert refusal(read, verb, fields).code == "bad_request"


@pytest.mark.parametrize(
    "inherit", [None, "unique", ["sent_timeout_ms"], [1], [[]], ["unique"] * 65]
)
def test_names_to_inherit_that_are_none_are_refused(inherit: object) -> None:
    assert refusal(read, Verb.CONFIGURE, [{}, inherit]).code == "bad_request"


# --- effects ------------------------------------------------------------------------------------


def written(*effects: Effect, topic: str = "orders") -> list[tuple[wire.Part, str, Any]]:
    """What leaves a worker of number 3, decoded; every part is for ``NODE``."""
    outgoing = list(wire.write_effects([(topic, effect) for effect in effects], 3))
    assert all(sent.node == NODE for sent in outgoing)
    return [unpacked(sent) for sent in outgoing]


def unpacked(sent: wire.Outgoing) -> tuple[wire.Part, str, Any]:
    """The one part of it, its topic, and the value of its body."""
    part = only(sent.part)
    return part, part.topic.decode(), msgpack.unpackb(sent.part[part.body : part.end])


DELIVERED = [(9, 1, ID, HEADER, b"payload"), (10, 2, ID, HEADER, b"")]
ENCODED: list[tuple[Effect, Verb, int, Any]] = [
    (
        Deliver(NODE, 4, "billing", DELIVERED),
        Verb.DELIVER,
        0,
        [4, "billing", [[9, 1, ID, HEADER, b"payload"], [10, 2, ID, HEADER, b""]]],
    ),
    (
        Accepted(NODE, 5, (8, Refusal("overflow", "full"), 9)),
        Verb.ACCEPTED,
        5,
        [8, ["overflow", "full"], 9],
    ),
    (Reply(NODE, 5), Verb.REPLY, 5, {}),
    (
        Reply(NODE, 5, {"refused": [(9, "not_yours")]}),
        Verb.REPLY,
        5,
        {"refused": [[9, "not_yours"]]},
    ),
    (Refuse(NODE, 5, "busy", "wait", 50), Verb.REFUSE, 5, ["busy", "wait", 50]),
    (Refuse(NODE, 5, "not_yours"), Verb.REFUSE, 5, ["not_yours", "", None]),
    (EndpointGone(NODE, 4, "topic_gone"), Verb.GONE, 0, [4, "topic_gone"]),
    (
        Resolved(NODE, PRODUCER, 2, "ok", {"billing": "processed"}),
        Verb.RESOLVED,
        0,
        [[PRODUCER, 2, "ok", {"billing": "processed"}]],
    ),
]


@pytest.mark.parametrize(
    ("effect", "verb", "request_number", "body"),
    ENCODED,
    ids=[verb.name for _, verb, _, _ in ENCODED],
)
def test_an_effect_is_encoded_as_the_document_says(
    effect: Effect, verb: Verb, request_number: int, body: object
) -> None:
    ((part, topic, said),) = written(effect)
    assert part[:4] == (verb, 3, 7, request_number)
    assert (topic, said) == ("orders", body)


def test_effects_leave_in_their_order() -> None:
    sent = written(*(effect for effect, _, _, _ in ENCODED))
    assert [part.verb for part, _, _ in sent] == [verb for _, verb, _, _ in ENCODED]


def test_a_topic_is_sent_in_utf8() -> None:
    assert written(Reply(NODE, 5), topic="größe")[0][1] == "größe"


def receipt(number: int, node: bytes | None = NODE) -> Resolved:
    return Resolved(node, PRODUCER, number, "ok", {})


def test_a_receipt_for_nobody_is_not_sent() -> None:
    assert written(receipt(1, None)) == []
    assert [body for _, _, body in written(receipt(1, None), Reply(NODE, 5))] == [{}]


def test_receipts_that_follow_one_another_are_one_part() -> None:
    ((part, _, body),) = written(receipt(1), receipt(2), receipt(3, None), receipt(4))
    assert part[:4] == (Verb.RESOLVED, 3, 7, 0)
    assert body == [[PRODUCER, number, "ok", {}] for number in (1, 2, 4)]


def test_receipts_keep_their_place_among_other_effects() -> None:
    sent = written(receipt(1), Reply(NODE, 5), receipt(2), Reply(NODE, 6), receipt(3))
    assert [Verb(part.verb).name for part, _, _ in sent] == [
        *("RESOLVED", "REPLY", "RESOLVED", "REPLY", "RESOLVED"),
    ]


def test_receipts_of_other_topics_and_nodes_are_parts_of_their_own() -> None:
    other = SESSION + (8).to_bytes(4, "big")
    effects = [
        ("orders", receipt(1)),
        ("others", receipt(2)),
        ("others", receipt(3, other)),
        ("others", receipt(4, other)),
    ]
    sent = list(wire.write_effects(effects, 3))
    assert [(one.node, only(one.part).topic) for one in sent] == [
        (NODE, b"orders"),
        (NODE, b"others"),
        (other, b"others"),
    ]
    assert [only(one.part).node for one in sent] == [7, 7, 8]
    numbers = [[entry[1] for entry in unpacked(one)[2]] for one in sent]
    assert numbers == [[1], [2], [3, 4]]


def test_a_forward_is_for_no_client() -> None:
    forward = Forward(1, "dead", PRODUCER, 1, 0, (ID, HEADER, b""))
    with pytest.raises(AssertionError):
        written(forward)


def test_settings_come_back_in_the_units_of_users() -> None:
    settings = TopicSettings(
        sent_timeout_ms=2_500, overflow=DropOld(9), retry_backoff=BackoffMs(500, 60_000)
    )
    described = {"topic": "orders", "settings": settings, "overrides": ["sent_timeout_ms"]}
    ((_, _, body),) = written(Reply(NODE, 5, described))
    assert body["settings"] == topic_settings_as_user(settings)
    assert body["overrides"] == ["sent_timeout"]
    shown = body["settings"]
    assert shown["sent_timeout"] == 2.5
    assert shown["overflow"] == {"size": 9, "policy": "drop_old"}
    assert shown["retry_backoff"] == {"min": 0.5, "max": 60}
    assert not any(name.endswith("_ms") for name in shown)


def test_settings_that_were_described_can_be_set_again() -> None:
    broker = CoreBroker(sent_timeout_ms=2_500, overflow=DropOld(9))
    broker.publish()
    broker.do(ask.Describe(NODE, 5))
    ((_, _, body),) = written(*broker.effects)
    command = read(Verb.CONFIGURE, [body["settings"]], 6)
    assert isinstance(command, ask.Configure)
    assert TopicSettings().changed(command.changes) == broker.defaults


def delivery(sequence: int) -> Delivered:
    return (sequence, 1, ID, HEADER, b"")


def test_deliveries_of_a_turn_for_one_endpoint_travel_together_where_the_first_was() -> None:
    sent = written(
        Deliver(NODE, 4, "billing", [delivery(1)]),
        Reply(NODE, 5, {}),
        Deliver(NODE, 5, "other", [delivery(2)]),
        Deliver(NODE, 4, "billing", [delivery(3)]),
    )
    assert [part.verb for part, _, _ in sent] == [Verb.DELIVER, Verb.REPLY, Verb.DELIVER]
    assert [[one[0] for one in body[2]] for part, _, body in sent if part.verb == Verb.DELIVER] == [
        [1, 3],
        [2],
    ]


def test_deliveries_do_not_travel_together_past_the_end_of_their_endpoint() -> None:
    sent = written(
        Deliver(NODE, 4, "billing", [delivery(1)]),
        EndpointGone(NODE, 4, "no_such_receiver"),
        Deliver(NODE, 4, "billing", [delivery(2)]),
    )
    assert [part.verb for part, _, _ in sent] == [Verb.DELIVER, Verb.GONE, Verb.DELIVER]


def test_so_many_deliveries_and_no_more_travel_together() -> None:
    half = wire.DELIVERIES_TOGETHER_MAX // 2
    batches = [Deliver(NODE, 4, "billing", [delivery(number)] * half) for number in range(1, 4)]
    sent = written(*batches)
    assert [len(body[2]) for _, _, body in sent] == [2 * half, half]
    assert [len(batch.deliveries) for batch in batches] == [half] * 3


def test_deliveries_of_many_bytes_go_in_several_parts_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of them all could be larger than what a lane may bring."""
    monkeypatch.setattr(wire, "DELIVERIES_BYTES_MAX", 1_000)
    sizes = [10, 10, 10, 2_000, 300, 300, 300, 300, 5]
    large = [(number, 1, ID, HEADER, bytes(size)) for number, size in enumerate(sizes)]
    sent = written(Reply(NODE, 5), Deliver(NODE, 4, "billing", large), Reply(NODE, 6))
    assert [part.verb for part, _, _ in (sent[0], sent[-1])] == [Verb.REPLY, Verb.REPLY]
    parts = sent[1:-1]
    assert {(part.verb, body[0], body[1]) for part, _, body in parts} == {
        (Verb.DELIVER, 4, "billing")
    }
    together = [[one[0] for one in body[2]] for _, _, body in parts]
    assert [number for numbers in together for number in numbers] == list(range(len(sizes)))
    assert [3] in together, "what is too large by itself goes alone"
    assert len(together) < len(sizes)
    ends = [part.end - part.begin for part, _, body in parts if len(body[2]) > 1]
    assert ends and max(ends) <= 1_000


def test_an_answer_of_many_bytes_is_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "DELIVERIES_BYTES_MAX", 1_000)
    ((_, _, body),) = written(Reply(NODE, 5, {"payload": bytes(5_000)}))
    assert len(body["payload"]) == 5_000


@pytest.mark.parametrize(
    "value",
    [
        [[{}] * 1_000] * 200,
        [[()] * 19_000] * 10,
        [{str(n): None for n in range(19_000)}] * 5,
        "x" * 200_000,
        [None] * 200_000,
    ],
    ids=["maps", "arrays", "keys", "text", "entries"],
)
def test_a_large_body_of_very_many_values_is_refused_before_they_are_made(value: object) -> None:
    body = wire.pack_body([value])
    with pytest.raises(PeerError) as refused:
        wire.read_command(Verb.PUBLISH, b"node", 1, body)
    assert refused.value.code == "too_large"


def test_the_largest_of_every_verb_is_read() -> None:
    """Bodies of as many entries as their commands take, each as long as it may be."""
    message = (bytes(16), Header(Mode.DURABLE, Status.PROCESSED, ("a/b",)).encoded, bytes(100))
    numbers = range(2**62, 2**62 + limits.BATCH_MESSAGES_MAX)
    interests = [f"{n:04}" + "i" * (limits.SUBJECT_BYTES_MAX - 4) for n in range(1_024)]
    bodies: dict[Verb, list[object]] = {
        Verb.PUBLISH: [[message] * limits.BATCH_MESSAGES_MAX, bytes(16), 1, 0],
        Verb.AWAIT_RECEIPTS: [bytes(16), list(numbers), list(numbers)],
        Verb.SUBSCRIBE: [1, interests, "n", None, None, 5],
        Verb.SET_DRAFT: [1, bytes(8 << 20), {str(n): "v" * 4_096 for n in range(128)}],
    }
    for verb, fields in bodies.items():
        assert wire.read_command(verb, b"node", 1, wire.pack_body(fields)).request == 1  # type: ignore[union-attr]


def test_keys_of_maps_are_texts_or_bytes_whose_hashes_nobody_can_foresee() -> None:
    for key in ((1, 2), 7, None):
        body = msgpack.packb({key: 0}, strict_types=False)
        with pytest.raises(PeerError, match="bad_request"):
            wire.read_body(body)
