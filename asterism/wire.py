"""Frames <-> commands and effects: the protocol of ``docs/protocol.md``. Pure.

A message on the wire is one frame, between a client and the broker and between its processes. It
is made of *parts*, one or several, one behind the other (a frame costs more than a part does):

    head    version:u8 verb:u8 worker:u16 node:u32 request:u64 topic bytes:u16 body bytes:u32
            big-endian, 22 bytes
    topic   the topic's name, UTF-8; empty where the verb is about no topic
    body    one MessagePack value

A *lane*, the socket of a session and a worker on one machine, carries parts with no frames around
them.

The front-end forwards by head and topic alone. Between it and the workers a frame goes before that
one: the *session*, 13 bytes, so that an answer finds its way back. A *node* of the core is a
session and the number that its client gave it in the head: a gateway carries many.

    session   13 random bytes
              eight zeros, "w", number of a worker:u32      of a worker that asks another
    node      session:13 number:u32
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgpack

from asterism import commands as ask
from asterism import limits
from asterism.commands import Command, CreateTopic, DeleteTopic
from asterism.effects import (
    Accepted,
    Deliver,
    Effect,
    EndpointGone,
    Forward,
    Refuse,
    Reply,
    Resolved,
)
from asterism.errors import PeerError
from asterism.message import Status
from asterism.options import (
    names_for_users,
    topic_fields,
    topic_overrides,
    topic_settings_as_user,
)
from asterism.packing import pack_value
from asterism.settings import TopicSettings

VERSION: Final = 1
HEAD: Final = struct.Struct(">BBHIQHI")
NUMBER: Final = struct.Struct(">I")
COUNT: Final = struct.Struct(">Q")
SESSION_BYTES: Final = 13
LANE_TOKEN_BYTES: Final = 16
LANE_SOCKET: Final = "lane-{}.sock"  # of a worker, by its number, in the folder that WELCOME names
NODE_BYTES: Final = SESSION_BYTES + NUMBER.size
ANY_WORKER: Final = 0xFFFF  # in a head: of no worker, but of the front-end itself
# A topic that begins with this byte, which no name has, names a process: ``\0w3``, ``\0i``,
# ``\0d32768`` (of a dedicated topic).
PROCESS: Final = b"\0"
NIL: Final = b"\xc0"  # the body that says nothing


class Verb(IntEnum):
    """What a head says: below 128 from a client, from 128 on from the broker."""

    # Of the session: the front-end answers.
    HELLO = 1
    PING = 2
    GOODBYE = 3
    DETACH = 4  # one node of the session ends
    # Of a process: a worker or the front-end answers for itself.
    STATUS = 8
    LIST_TOPICS = 9
    SNAPSHOT = 10
    LANE = 11  # from here on the session speaks to this worker on a socket of their own
    # Of a topic: its actor answers.
    PUBLISH = 16
    AWAIT_RECEIPTS = 17
    SUBSCRIBE = 18
    CREATE_RECEIVER = 19
    SET_INTERESTS = 20
    UNSUBSCRIBE = 21
    GRANT = 22
    PULL = 23
    CANCEL_WAIT = 24
    REPORT = 25
    EXTEND = 26
    LIST_RECEIVERS = 27
    DELETE_RECEIVER = 28
    SEEK = 29
    CONFIGURE = 30
    DESCRIBE = 31
    CLEAR = 32
    DELETE_TOPIC = 33
    CREATE_TOPIC = 34
    LIST_PARKED = 35
    RENEW = 36
    ABANDON = 37
    RENEW_ALL = 38
    ABANDON_ALL = 39
    DRAFT = 40
    SET_DRAFT = 41
    ORDER = 42
    FETCH = 43
    COMPLETE = 44
    FAIL = 45
    STATS = 46
    # From the broker.
    WELCOME = 128
    PONG = 129
    CLOSED = 130  # the session is over, or never was: say hello again
    RESTARTED = 131  # a worker has come back: what it had not answered, and its endpoints, are gone
    ELSEWHERE = 132  # a topic that the worker of this lane has not: ask through the front-end
    ACCEPTED = 144
    REPLY = 145
    REFUSE = 146
    DELIVER = 147
    GONE = 148
    RESOLVED = 149


FIRST_TOPIC_VERB: Final = Verb.PUBLISH
FIRST_BROKER_VERB: Final = Verb.WELCOME

DELIVERIES_TOGETHER_MAX: Final = 1_000  # of several commands in one message to an endpoint
DELIVERIES_BYTES_MAX: Final = 16 << 20  # of one part; past it they go in several, or alone

TOGETHER_MAX: Final = 64  # parts in one frame
FRAME_BYTES_MAX: Final = 64 << 20  # one frame of a client; a larger one costs it its connection
BODY_BYTES_MIN: Final = 16 << 10  # any verb's body may be as large
BODY_BYTES_MAX: Final = 2 << 20  # of a verb of a topic, but for those with a payload
_WITH_PAYLOAD: Final = frozenset({int(Verb.PUBLISH), int(Verb.SET_DRAFT)})
PLAIN_BYTES_MAX: Final = 128 << 10  # a larger body is decoded with the bounds that follow
VALUES_MAX: Final = 5 * limits.BATCH_MESSAGES_MAX + 1_024  # entries of its arrays and maps, in all
LENGTH_MAX: Final = 2 * limits.BATCH_MESSAGES_MAX  # entries of one of them
TEXT_BYTES_MAX: Final = 64 << 10  # of one text in it
TOGETHER_BYTES_MAX: Final = 256 << 10  # of a frame, after which the next part begins another
_Asked = Command | CreateTopic | DeleteTopic


class Part(NamedTuple):
    """One part of a frame: what its head says, and where in the frame it is."""

    verb: int
    worker: int
    node: int
    request: int
    topic: bytes
    begin: int
    body: int
    end: int


def pack_part(
    verb: int,
    request: int = 0,
    topic: bytes = b"",
    body: bytes = NIL,
    *,
    node: int = 0,
    worker: int = ANY_WORKER,
) -> bytes:
    head = HEAD.pack(VERSION, verb, worker, node, request, len(topic), len(body))
    return b"".join((head, topic, body))


def read_parts(frame: bytes | memoryview) -> list[Part]:
    """The parts of a frame. One that is not made of parts, or of another version, is refused."""
    parts: list[Part] = []
    begin, size = 0, len(frame)
    while begin < size or not parts:
        if len(parts) == TOGETHER_MAX:
            raise PeerError("bad_request", f"a frame has at most {TOGETHER_MAX} parts")
        try:
            part = _read_part(frame, begin)
        except struct.error:
            raise PeerError("bad_request", f"a head has {HEAD.size} bytes") from None
        if part.end > size:
            raise PeerError("bad_request", "a frame ends before its last part does")
        parts.append(part)
        begin = part.end
    return parts


def _read_part(frame: bytes | memoryview, begin: int) -> Part:
    """The part that begins there; it may end behind the end of the frame."""
    version, verb, worker, node, request, topic_bytes, body_bytes = _read_head(frame, begin)
    if version != VERSION:
        raise PeerError("unsupported_version", f"this is version {VERSION}, not {version}")
    topic = begin + HEAD.size
    body = topic + topic_bytes
    # What Part(...) does, without the function around it: every part passes here, on either side.
    fields = (verb, worker, node, request, bytes(frame[topic:body]), begin, body, body + body_bytes)
    return tuple.__new__(Part, fields)


class PartStream:
    """The parts of a lane, which has no frames: one part right behind the other, cut anywhere."""

    def __init__(self) -> None:
        self._held: list[bytes] = []  # the beginning of a part that is not whole yet
        self.held_bytes = 0
        self._wanted = 0  # bytes that it has at least

    def take(self, data: bytes) -> tuple[bytes, list[Part]]:
        """Takes what has come; the parts that are whole by now, and the bytes they lie in."""
        if self._held:
            self._held.append(data)
            self.held_bytes += len(data)
            if self.held_bytes < self._wanted:
                return b"", []
            data = b"".join(self._held)
            self._held = []
            self.held_bytes = 0
        parts: list[Part] = []
        begin, size = 0, len(data)
        while begin + HEAD.size <= size:
            part = _read_part(data, begin)
            if part.end > size:
                if part.end - begin > FRAME_BYTES_MAX:
                    raise PeerError("too_large", f"a part has at most {FRAME_BYTES_MAX} bytes")
                if part.verb < FIRST_BROKER_VERB:
                    check_size(part.verb, part.end - part.body)
                self._wanted = part.end - begin
                break
            parts.append(part)
            begin = part.end
        else:
            self._wanted = HEAD.size
        if begin < size:
            self._held = [data[begin:] if begin else data]
            self.held_bytes = size - begin
        return data, parts


_read_head: Final = HEAD.unpack_from


def pack_body(value: object) -> bytes:
    try:
        return pack_value(value)
    except OverflowError:
        raise PeerError("bad_request", "a whole number has at most 64 bits") from None


def read_body(body: bytes | memoryview) -> Any:
    """The value of a body: arrays are tuples. What is not MessagePack is refused."""
    try:
        # Keys are texts or bytes: the hashes of other keys can be foreseen, and made to collide.
        return msgpack.unpackb(body, use_list=False, strict_map_key=True)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        why = str(error) or type(error).__name__
        raise PeerError("bad_request", f"a body is not MessagePack: {why}") from None


def check_size(verb: int, size: int) -> None:
    """Refuses a body that is larger than any that its verb needs."""
    if verb in _WITH_PAYLOAD:
        return  # a frame's own bound is its bound
    most = BODY_BYTES_MAX if verb >= FIRST_TOPIC_VERB else BODY_BYTES_MIN
    if size > most:
        raise PeerError("too_large", f"the body of this verb has at most {most} bytes")


def check_topic(topic: bytes) -> None:
    """Refuses a name that no topic has, before it is remembered anywhere."""
    if len(topic) > limits.TOPIC_BYTES_MAX:
        raise PeerError("bad_request", f"a topic's name has at most {limits.TOPIC_BYTES_MAX} bytes")


class _Values:
    """Counts what is decoded of one body: a byte of it may stand for a map, which takes 64."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = VALUES_MAX

    def count(self, value: Any) -> Any:
        self.left -= len(value) + 1
        if self.left < 0:
            raise PeerError("too_large", f"a body has more than {VALUES_MAX} values")
        return value


def read_asked(body: bytes | memoryview) -> Any:
    """The value of a body that a client sent: as ``read_body``, and what decoding it takes in
    memory and time is bounded by its size where it is small, and by its values where it is not."""
    if len(body) <= PLAIN_BYTES_MAX:
        return read_body(body)
    count = _Values().count
    try:
        return msgpack.unpackb(
            body,
            use_list=False,
            strict_map_key=True,
            list_hook=count,
            object_hook=count,
            max_array_len=LENGTH_MAX,
            max_map_len=LENGTH_MAX,
            max_str_len=TEXT_BYTES_MAX,
        )
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        why = str(error) or type(error).__name__
        if " exceeds max_" in why:
            raise PeerError("too_large", f"in a body, {why}") from None
        raise PeerError("bad_request", f"a body is not MessagePack: {why}") from None


OF_WORKER: Final = bytes(8) + b"w"  # how the session of a worker begins


def session_of_worker(number: int) -> bytes:
    """The session as which a worker publishes to topics of other workers."""
    return OF_WORKER + NUMBER.pack(number)


def worker_of_session(session: bytes) -> bytes:
    """The name by which the front-end knows the worker of such a session."""
    (number,) = NUMBER.unpack_from(session, len(OF_WORKER))
    return b"w%d" % int(number)


def worker_topic(number: int) -> bytes:
    """The topic of what is asked of a worker itself."""
    return PROCESS + b"w%d" % number


def dedicated_topic(number: int) -> bytes:
    """The topic of what is asked of the process of a dedicated topic."""
    return PROCESS + b"d%d" % number


# --- commands ---------------------------------------------------------------------------------
# A body is the array of the command's fields, in their order and without node and request; fields
# at the end may be left out where they have a default.

COMMANDS: Final[dict[Verb, type[_Asked]]] = {
    Verb.PUBLISH: ask.Publish,
    Verb.AWAIT_RECEIPTS: ask.AwaitReceipts,
    Verb.SUBSCRIBE: ask.Subscribe,
    Verb.CREATE_RECEIVER: ask.CreateReceiver,
    Verb.SET_INTERESTS: ask.SetInterests,
    Verb.UNSUBSCRIBE: ask.Unsubscribe,
    Verb.GRANT: ask.Grant,
    Verb.PULL: ask.Pull,
    Verb.CANCEL_WAIT: ask.CancelWait,
    Verb.REPORT: ask.Report,
    Verb.EXTEND: ask.Extend,
    Verb.LIST_RECEIVERS: ask.ListReceivers,
    Verb.DELETE_RECEIVER: ask.DeleteReceiver,
    Verb.SEEK: ask.Seek,
    Verb.CONFIGURE: ask.Configure,
    Verb.DESCRIBE: ask.Describe,
    Verb.CLEAR: ask.Clear,
    Verb.DELETE_TOPIC: DeleteTopic,
    Verb.CREATE_TOPIC: CreateTopic,
    Verb.LIST_PARKED: ask.ListParked,
    Verb.RENEW: ask.Renew,
    Verb.ABANDON: ask.Abandon,
    Verb.RENEW_ALL: ask.RenewAll,
    Verb.ABANDON_ALL: ask.AbandonAll,
    Verb.DRAFT: ask.Draft,
    Verb.SET_DRAFT: ask.SetDraft,
    Verb.ORDER: ask.Order,
    Verb.FETCH: ask.Fetch,
    Verb.COMPLETE: ask.Complete,
    Verb.FAIL: ask.Fail,
    Verb.STATS: ask.Stats,
}
_COMMANDS: Final[dict[int, type[_Asked]]] = {int(verb): kind for verb, kind in COMMANDS.items()}


def _read_report(fields: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(fields) > 1 and type(fields[1]) is int and fields[1] in _STATUSES:
        return (fields[0], _STATUSES[fields[1]], *fields[2:])
    return fields


def _read_settings(fields: tuple[Any, ...]) -> tuple[Any, ...]:
    """Settings travel as users write them: by the names, and in the units, of the configuration."""
    changes = topic_overrides(fields[0]) if fields else {}
    inherit = (topic_fields(fields[1]),) if len(fields) == 2 else ()
    return (changes, *inherit, *fields[2:])


_STATUSES: Final = {int(status): status for status in Status}
_READERS: Final[dict[int, Callable[[tuple[Any, ...]], tuple[Any, ...]]]] = {
    Verb.REPORT: _read_report,
    Verb.CONFIGURE: _read_settings,
    Verb.CREATE_TOPIC: _read_settings,
}


def read_command(verb: int, node: bytes, request: int, body: bytes | memoryview) -> _Asked:
    """The command of a head and a body; anything but a well-formed one is a ``PeerError``."""
    kind = _COMMANDS.get(verb)
    if kind is None:
        raise PeerError("bad_request", f"there is no verb {verb}")
    check_size(verb, len(body))
    fields = read_asked(body)
    if type(fields) is not tuple:
        raise PeerError("bad_request", "a command's body is an array of its fields")
    reader = _READERS.get(verb)
    if reader is not None:
        fields = reader(fields)
    try:
        return kind(node, request, *fields)  # type: ignore[arg-type]
    except TypeError:
        raise PeerError("bad_request", f"{Verb(verb).name} has other fields than these") from None


# --- effects ----------------------------------------------------------------------------------


class Outgoing(NamedTuple):
    """What leaves a worker: the node that it is for, and the part of a frame."""

    node: bytes
    part: bytes


_new_tuple: Final = tuple.__new__  # a named tuple's own constructor is slow


def write_effects(effects: Sequence[tuple[str, Effect]], worker: int) -> Iterator[Outgoing]:
    """The parts of effects, in order. Receipts for one node that follow one another are one, and
    so are the deliveries of a turn for one endpoint, up to a number, where the first of them was:
    a delivery may come before an answer that it came after, never the other way round. Of two
    effects nothing is put together: there is no gain in it."""
    receipts: list[tuple[bytes, int, str, dict[str, str]]] = []
    receipts_for: tuple[str, bytes] | None = None
    for topic, effect in effects if len(effects) <= 2 else _together(effects):
        if isinstance(effect, Resolved):
            if effect.node is None:
                continue  # nobody is there to be told; he may ask again
            if receipts and receipts_for != (topic, effect.node):
                yield _receipts(receipts_for, receipts, worker)
                receipts = []
            receipts_for = topic, effect.node
            receipts.append((effect.producer, effect.number, effect.verdict, effect.statuses))
            continue
        if receipts:
            yield _receipts(receipts_for, receipts, worker)
            receipts = []
        outgoing = _write(topic, effect, worker)
        if len(outgoing.part) > DELIVERIES_BYTES_MAX:
            yield from _in_several(topic, effect, outgoing, worker)
        else:
            yield outgoing
    if receipts:
        yield _receipts(receipts_for, receipts, worker)


def _in_several(topic: str, effect: Effect, outgoing: Outgoing, worker: int) -> Iterator[Outgoing]:
    """What is larger than one part should be: deliveries by halves, anything else as it is."""
    if not isinstance(effect, Deliver) or len(effect.deliveries) == 1:
        yield outgoing
        return
    middle = len(effect.deliveries) // 2
    for some in (effect.deliveries[:middle], effect.deliveries[middle:]):
        half = Deliver(effect.node, effect.endpoint, effect.receiver, some)
        yield from write_effects([(topic, half)], worker)


def _together(effects: Sequence[tuple[str, Effect]]) -> list[tuple[str, Effect]]:
    """Effects with deliveries for one endpoint put together."""
    joined: list[tuple[str, Effect]] = []
    begun: dict[tuple[str, bytes, int], Deliver] = {}
    for topic, effect in effects:
        if isinstance(effect, Deliver):
            key = (topic, effect.node, effect.endpoint)
            first = begun.get(key)
            count = 0 if first is None else len(first.deliveries) + len(effect.deliveries)
            if first is not None and count <= DELIVERIES_TOGETHER_MAX:
                first.deliveries.extend(effect.deliveries)
                continue
            effect = Deliver(effect.node, effect.endpoint, effect.receiver, [*effect.deliveries])
            begun[key] = effect
        elif isinstance(effect, EndpointGone):
            begun.pop((topic, effect.node, effect.endpoint), None)
        joined.append((topic, effect))
    return joined


def _receipts(
    receipts_for: tuple[str, bytes] | None,
    receipts: list[tuple[bytes, int, str, dict[str, str]]],
    worker: int,
) -> Outgoing:
    assert receipts_for is not None
    topic, node = receipts_for
    return _outgoing(Verb.RESOLVED, topic, node, 0, worker, receipts)


def _write(topic: str, effect: Effect, worker: int) -> Outgoing:
    match effect:
        case Reply():  # first, as the most frequent
            body = _plain(effect.body) if effect.body else effect.body
            return _outgoing(Verb.REPLY, topic, effect.node, effect.request, worker, body)
        case Deliver():
            deliver = (effect.endpoint, effect.receiver, effect.deliveries)
            return _outgoing(Verb.DELIVER, topic, effect.node, 0, worker, deliver)
        case Accepted():
            return _outgoing(
                Verb.ACCEPTED, topic, effect.node, effect.request, worker, effect.results
            )
        case Refuse():
            refusal = (effect.code, effect.detail, effect.retry_after_ms)
            return _outgoing(Verb.REFUSE, topic, effect.node, effect.request, worker, refusal)
        case EndpointGone():
            gone = (effect.endpoint, effect.code)
            return _outgoing(Verb.GONE, topic, effect.node, 0, worker, gone)
        case Resolved() | Forward():
            raise AssertionError("receipts go together, and a forward goes to another topic")


def _outgoing(
    verb: Verb, topic: str, node: bytes, request: int, worker: int, body: object
) -> Outgoing:
    (number,) = NUMBER.unpack_from(node, len(node) - NUMBER.size)
    packed = pack_value(body)
    part = pack_part(verb, request, topic.encode(), packed, node=number, worker=worker)
    return _new_tuple(Outgoing, (node, part))


def _plain(body: dict[str, Any]) -> dict[str, Any]:
    settings = body.get("settings")
    if isinstance(settings, TopicSettings):
        overrides = names_for_users(body["overrides"])
        return body | {"settings": topic_settings_as_user(settings), "overrides": overrides}
    return body
