"""``docs/protocol.md`` is true: its bytes decode to what it says, its tables are those of the code.

An example is a block of language ``hex``. It is one frame, a piece of a part a line, and behind a
body stands what it decodes to:

    01 02 ff ff …   # head: PING worker 65535 node 0 request 7 topic 0 body 1
    --              # topic: ""                 (no bytes)
    c0              # body
    # = null                                    (JSON, with bytes as h'6f6b')

Or it is headers of messages, each a line ``# header`` with what it decodes to; or a frame that is
refused as a whole, with its code: ``# refused: bad_request``.
"""

import ast
import dataclasses
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import msgpack
import pytest

from asterism import limits, wire
from asterism import message as messages
from asterism.actors.shard import Shard
from asterism.effects import EndpointGone, Refuse, Resolved
from asterism.errors import ERRORS, PeerError
from asterism.message import Header, Mode, Status, decode_header
from asterism.options import TOPIC_NAMES, topic_overrides, topic_settings_as_user
from asterism.router.frontend import refusal
from asterism.settings import TopicSettings
from asterism.storage.memory import MemoryRows
from asterism.wire import COMMANDS, Verb
from tests.support.delivered import Delivered
from tests.tidy import tree

TEXT = (tree.ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
NODE = bytes(wire.NODE_BYTES)
NOW_MS = 1_700_000_000_000


# --- reading the document -----------------------------------------------------------------------


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables(text: str) -> list[list[list[str]]]:
    """Every table of a text: its rows, the first of which is the heading."""
    found = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    parsed = [[cells_of(line) for line in table.splitlines()] for table in found]
    return [[rows[0], *rows[2:]] for rows in parsed]


def table(text: str, *heading: str) -> list[list[str]]:
    """The rows of the one table with a heading that begins so."""
    (found,) = [rows for rows in tables(text) if tuple(rows[0][: len(heading)]) == heading]
    return found[1:]


def named(cell: str) -> str:
    """What stands in a cell, which is one name in backticks."""
    name = re.fullmatch(r"`([^`]+)`", cell)
    assert name, f"{cell} is no name in backticks"
    return name[1]


def section(title: str) -> str:
    """What stands under a heading, up to the next one."""
    found = re.findall(
        rf"^###? {re.escape(title)}\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL
    )
    assert len(found) == 1, f"docs/protocol.md has {len(found)} sections {title}"
    text: str = found[0]
    return text


# --- examples -----------------------------------------------------------------------------------


class Piece(NamedTuple):
    """One line of an example: bytes, what the comment calls them, what it says of them."""

    octets: bytes
    kind: str
    stated: str


PIECE = re.compile(
    r"(--|[0-9a-f]{2}(?: [0-9a-f]{2})*)  # (head|topic|body|header|refused)(?:: (.*))?"
)


def examples(text: str) -> Iterator[list[Piece]]:
    """The blocks, each a list of pieces; what a body decodes to is in its ``stated``."""
    for block in re.findall(r"^```hex\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        pieces: list[Piece] = []
        for line in filter(None, block.splitlines()):
            if line.startswith("# = "):
                assert pieces[-1].kind in ("body", "header") and not pieces[-1].stated
                pieces[-1] = pieces[-1]._replace(stated=line.removeprefix("# = "))
                continue
            found = PIECE.fullmatch(line)
            assert found, f"{line!r} is no piece with a comment of what it is"
            octets = b"" if found[1] == "--" else bytes.fromhex(found[1])
            pieces.append(Piece(octets, found[2], found[3] or ""))
        assert all(piece.stated for piece in pieces), "an example says what its pieces are"
        yield pieces


def value_of(stated: str) -> Any:
    """The value of a line of JSON in which bytes are written h'…'."""

    def restored(held: dict[str, Any]) -> Any:
        return bytes.fromhex(held["$hex"]) if set(held) == {"$hex"} else held

    text = re.sub(r"h'([0-9a-f]*)'", r'{"$hex": "\1"}', stated)
    return json.loads(text, object_hook=restored)


class Told(NamedTuple):
    """A part of an example: as it is read, all its bytes, those of its body, what these say."""

    part: wire.Part
    octets: bytes
    packed: bytes
    body: Any


def told(text: str) -> list[Told]:
    """The parts of all frames that are shown in a text; their bytes are read as one frame each."""
    whole = []
    for pieces in examples(text):
        if pieces[0].kind in ("header", "refused"):
            continue
        assert [piece.kind for piece in pieces] == ["head", "topic", "body"] * (len(pieces) // 3)
        frame = b"".join(piece.octets for piece in pieces)
        bodies = [piece for piece in pieces if piece.kind == "body"]
        for part, body in zip(wire.read_parts(frame), bodies, strict=True):
            octets = frame[part.begin : part.end]
            whole.append(Told(part, octets, body.octets, value_of(body.stated)))
    return whole


PIECES = [piece for example in examples(TEXT) for piece in example]
TOLD = told(section("16. A whole session in bytes"))


@pytest.mark.parametrize(
    "piece", PIECES, ids=lambda piece: f"{piece.kind}-{piece.octets[:20].hex()}"
)
def test_an_example_decodes_to_what_stands_beside_it(piece: Piece) -> None:
    match piece.kind:
        case "head":
            version, verb, worker, node, request, topic, body = wire.HEAD.unpack(piece.octets)
            assert version == wire.VERSION
            said = f"{Verb(verb).name} worker {worker} node {node} request {request}"
            assert piece.stated == f"{said} topic {topic} body {body}"
        case "topic":
            assert piece.octets.decode() == json.loads(piece.stated)
        case "refused":
            with pytest.raises(PeerError) as caught:
                wire.read_parts(piece.octets)
            assert caught.value.code == piece.stated
        case _:
            assert msgpack.unpackb(piece.octets) == value_of(piece.stated)
            assert piece.octets == wire.pack_body(value_of(piece.stated))


def test_the_parts_of_an_example_are_what_the_code_packs() -> None:
    shown = told(TEXT)
    assert len(shown) == len([piece for piece in PIECES if piece.kind == "head"])
    for part, octets, packed, _ in shown:
        verb, worker, node, request, topic = part[:5]
        assert octets == wire.pack_part(verb, request, topic, packed, node=node, worker=worker)
        assert octets.endswith(topic + packed)


def test_a_frame_of_several_parts_is_shown() -> None:
    both = told(section("Parts together"))
    assert [Verb(part.verb).name for part, _, _, _ in both] == ["STATS", "PING"]
    assert both[1].part.begin == both[0].part.end


def test_a_frame_that_is_refused_is_shown_with_its_answer_to_the_byte() -> None:
    text = section("A message that is refused as a whole")
    (wrong,) = [piece for pieces in examples(text) for piece in pieces if piece.kind == "refused"]
    with pytest.raises(PeerError) as caught:
        wire.read_parts(wrong.octets)
    (answer,) = told(text)
    assert answer.octets == refusal(caught.value, 0, 0, b"")


def test_a_header_of_the_examples_is_one() -> None:
    headers = [piece for piece in PIECES if piece.kind == "header"]
    assert len(headers) == 3
    for piece in headers:
        header = decode_header(piece.octets)
        stated = value_of(piece.stated)
        fields = [list(value) if type(value) is tuple else value for value in header]
        assert fields[: len(stated)] == stated
        again = Header(header.mode, header.expect, header.subjects, *header[3:10])
        assert again.encoded == piece.octets, "the shortest encoding is the one that is shown"


def test_the_headers_within_the_example_are_headers() -> None:
    (published,) = [whole.body[0] for whole in TOLD if whole.part.verb == Verb.PUBLISH]
    (delivered,) = [whole.body[2] for whole in TOLD if whole.part.verb == Verb.DELIVER]
    assert [entry[2:] for entry in delivered] == published
    for _, header, _ in published:
        assert decode_header(header).subjects == ("order/17/paid",)


def test_the_example_is_a_whole_session() -> None:
    assert [Verb(whole.part.verb).name for whole in TOLD] == [
        *("HELLO", "WELCOME", "CREATE_TOPIC", "REPLY", "SUBSCRIBE", "REPLY"),
        *("PUBLISH", "DELIVER", "ACCEPTED", "REPORT", "RESOLVED", "REPLY"),
        *("UNSUBSCRIBE", "REFUSE", "PING", "PONG", "GOODBYE", "CLOSED"),
    ]


def test_the_example_is_what_the_core_says_to_the_byte() -> None:
    (welcome,) = [whole.body for whole in TOLD if whole.part.verb == Verb.WELCOME]
    shard = Shard(MemoryRows(), TopicSettings())
    expected: list[bytes] = []
    for whole in TOLD:
        verb, worker, number, request, topic = whole.part[:5]
        if verb >= Verb.ACCEPTED:
            assert whole.octets == expected.pop(0)
        elif Verb.PUBLISH <= verb < Verb.WELCOME:
            assert not expected, "everything that a command caused stands before the next command"
            assert worker == wire.ANY_WORKER
            node = welcome["session"] + wire.NUMBER.pack(number)
            command = wire.read_command(verb, node, request, whole.packed)
            shard.handle(topic.decode(), command, NOW_MS)
            expected = [sent.part for sent in wire.write_effects(shard.end_turn(), 1)]
    assert not expected


def test_answers_of_the_example_have_the_number_of_their_request() -> None:
    unasked = (Verb.DELIVER, Verb.RESOLVED)
    numbers = [whole.part.request for whole in TOLD if whole.part.verb not in unasked]
    assert all(after - before in (0, 1) for before, after in pairwise(numbers))
    assert all(whole.part.request == 0 for whole in TOLD if whole.part.verb in unasked)


def test_the_welcome_of_the_example_has_the_keys_of_its_table() -> None:
    (welcome,) = [whole.body for whole in TOLD if whole.part.verb == Verb.WELCOME]
    (hello,) = [whole.body for whole in TOLD if whole.part.verb == Verb.HELLO]
    of_hello, of_welcome = tables(section("HELLO"))
    assert [json.loads(named(cells[0])) for cells in of_hello[1:]] == list(hello)
    assert [json.loads(named(cells[0])) for cells in of_welcome[1:]] == list(welcome)
    assert len(welcome["session"]) == wire.SESSION_BYTES


def test_the_restart_in_bytes_is_what_the_core_says_to_the_byte() -> None:
    """Before it is what the section tells in words; from RESTARTED on it is bytes."""
    shown = told(section("17. A restart in bytes"))
    (restarted, *rest) = shown
    asked = [whole for whole in rest if whole.part.verb < Verb.WELCOME]
    answers = [whole.octets for whole in rest if whole.part.verb >= Verb.WELCOME]
    assert (restarted.part.verb, restarted.body) == (Verb.RESTARTED, 5)
    (published,) = [whole.body for whole in asked if whole.part.verb == Verb.PUBLISH]
    (subscribed,) = [whole.body for whole in asked if whole.part.verb == Verb.SUBSCRIBE]
    (reported,) = [whole.body for whole in asked if whole.part.verb == Verb.REPORT]
    sessions, held, _ = subscribed[-1]
    assert reported[2] == held[:1], "what it reports again, it holds until there is an answer"
    node = sessions[0] + wire.NUMBER.pack(0)
    rows = MemoryRows()
    shard = Shard(rows, TopicSettings(), grace_ms=1_000)

    def turn(*commands: tuple[int, int, Any]) -> list[bytes]:
        for verb, request, body in commands:
            command = wire.read_command(verb, node, request, wire.pack_body(body))
            shard.handle("orders", command, NOW_MS)
        return [sent.part for sent in wire.write_effects(shard.end_turn(), 1)]

    ((_, header, payload),), producer, _, _ = published
    turn((Verb.SUBSCRIBE, 3, subscribed[:6]))
    batch = [[bytes(16), header, payload]] * 2
    turn((Verb.PUBLISH, 4, [batch, producer, 1, 0]))
    turn((Verb.REPORT, 5, reported))
    shard = Shard(rows, TopicSettings(), grace_ms=1_000)
    shard.begin_grace(NOW_MS)
    again = turn(*[(whole.part.verb, whole.part.request, whole.body) for whole in asked])
    assert again == answers


# --- verbs --------------------------------------------------------------------------------------


def test_every_verb_stands_in_the_document_with_its_number_and_no_other() -> None:
    rows = table(TEXT, "verb", "number")
    assert [(named(cells[0]), int(cells[1])) for cells in rows] == [(v.name, int(v)) for v in Verb]
    for cells in rows:
        assert cells[2] == ("client" if int(cells[1]) < wire.FIRST_BROKER_VERB else "broker")


def test_every_verb_that_is_named_exists() -> None:
    spoken = set(
        re.findall(r"\b[A-Z]{4,}(?:_[A-Z]+)*\b", re.sub(r"```.*?```", "", TEXT, flags=re.S))
    )
    others = {
        "DEALER",
        "ROUTER",
        "JSON",
        "UUID",
        "HTTP",
        "ZMQ_ROUTING_ID",
        "ZMQ_LINGER",
        "ZMTP",
        "NULL",
    }
    assert spoken - others - set(vars(limits)) <= {verb.name for verb in Verb}


def test_every_verb_of_a_client_says_what_it_does_a_second_time() -> None:
    rows = table(section("Sent twice"), "verb", "sent a second time")
    names = [name for cells in rows for name in re.findall(r"`([A-Z_]+)`", cells[0])]
    clients = [verb.name for verb in Verb if verb < wire.FIRST_BROKER_VERB]
    assert sorted(names) == sorted(clients)


def test_the_codes_of_closed_are_those_that_the_front_end_says() -> None:
    rows = table(section("CLOSED"), "code", "request in the head")
    stated = {named(cells[0]) for cells in rows}
    assert stated <= set(ERRORS)
    source = (tree.ROOT / "router" / "host.py").read_text(encoding="utf-8")
    assert set(re.findall(r'closed\("(\w+)"', source)) == stated


def test_the_head_is_drawn_as_it_is() -> None:
    drawing = section("1. Transport")
    widths = [int(width) // 8 for width in re.findall(r"\bu(\d+)\b", drawing)]
    letters = {1: "B", 2: "H", 4: "I", 8: "Q"}
    assert ">" + "".join(letters[width] for width in widths) == wire.HEAD.format
    (scale,) = re.findall(r"^ byte +([\d ]+)$", drawing, re.MULTILINE)
    starts = [sum(widths[:index]) for index in range(len(widths) + 1)]
    assert [int(start) for start in scale.split()] == starts


# --- commands -----------------------------------------------------------------------------------

# For each command an array of fields that it takes; required ones at least.
SAMPLES: dict[Verb, list[Any]] = {
    Verb.PUBLISH: [[[b"i" * 16, Header(Mode.ONLINE, Status.SENT, ("a",)).encoded, b""]]],
    Verb.AWAIT_RECEIPTS: [b"p" * 16, [1]],
    Verb.SUBSCRIBE: [1, ["a/*"]],
    Verb.CREATE_RECEIVER: ["other", ["a"]],
    Verb.SET_INTERESTS: [1, ["a"]],
    Verb.UNSUBSCRIBE: [1],
    Verb.GRANT: [1, 1],
    Verb.PULL: [1, 1],
    Verb.CANCEL_WAIT: [1],
    Verb.REPORT: [1, 4, [1]],
    Verb.EXTEND: [1, [1], 1],
    Verb.DELETE_RECEIVER: ["billing"],
    Verb.SEEK: ["billing"],
    Verb.RENEW: [1],
    Verb.ABANDON: [1],
    Verb.DRAFT: [b"i" * 16],
    Verb.SET_DRAFT: [1, b""],
    Verb.FETCH: [1],
    Verb.COMPLETE: [1],
    Verb.FAIL: [1],
}
FIELDS = ("field", "type", "default", "bounds", "meaning")


def field_rows(verb: Verb) -> list[list[str]]:
    text = section(verb.name)
    if "No fields: the body is `[]`." in text:
        return []
    return table(text, *FIELDS)


def fields_of(verb: Verb) -> list[dataclasses.Field[Any]]:
    return list(dataclasses.fields(COMMANDS[verb]))[2:]  # behind node and request


def default_of(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return "`{}`"
    if field.default is dataclasses.MISSING:
        return "required"
    return shown_default(field.default)


def shown_default(value: object) -> str:
    return "`nil`" if value is None else f"`{json.dumps(value)}`"


@pytest.mark.parametrize("verb", COMMANDS, ids=lambda verb: verb.name)
def test_the_fields_of_a_command_are_listed_in_order_with_their_defaults(verb: Verb) -> None:
    documented = [(named(cells[0]), cells[2]) for cells in field_rows(verb)]
    assert documented == [(field.name, default_of(field)) for field in fields_of(verb)]


TYPES = {"int": "int", "str": "str", "bytes": "bin", "bool": "bool", "Status": "int"}


@pytest.mark.parametrize("verb", COMMANDS, ids=lambda verb: verb.name)
def test_the_fields_of_a_command_have_the_types_of_the_code(verb: Verb) -> None:
    for cells, field in zip(field_rows(verb), fields_of(verb), strict=True):
        kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
        kind = kind.removesuffix(" | None")
        if kind.startswith("tuple["):
            assert cells[1].startswith("array"), (verb, cells)
        elif kind.startswith(("dict", "collections.abc.Mapping")):
            assert cells[1].startswith("map"), (verb, cells)
        else:
            assert cells[1] == TYPES[kind], (verb, cells)


def read(verb: Verb, fields: list[Any]) -> object:
    return wire.read_command(verb, NODE, 1, wire.pack_body(fields))


def with_field(verb: Verb, index: int, value: object) -> list[Any]:
    """A good command of this verb but for one field; those between have their defaults."""
    fields: list[Any] = list(SAMPLES.get(verb, []))
    for field in fields_of(verb)[len(fields) : index]:
        fields.append({} if field.default is dataclasses.MISSING else field.default)
    return [*fields[:index], value, *fields[index + 1 :]]


class Bound(NamedTuple):
    """What a cell of a table allows: so much and no more, of some unit, else a code."""

    least: float
    most: float
    unit: str
    code: str


BOUND = re.compile(
    r"([0-9.]+)(?: to ([0-9]+))?( bytes| entries| seconds)?(?: \(`(\w+)`\))?(?:,.*)?"
)


def bound_in(cell: str) -> Bound | None:
    parts = BOUND.fullmatch(cell)
    if parts is None:
        return None
    number = float if parts[3] == " seconds" else int
    least = number(parts[1])
    most = number(parts[2]) if parts[2] else least
    return Bound(least, most, (parts[3] or "").strip(), parts[4] or "bad_request")


def values_at(bound: Bound, kind: str, sample: object) -> tuple[list[Any], list[Any]]:
    """Values of a type that are within a bound, at both ends, and values just outside."""
    step = 0.001 if bound.unit == "seconds" else 1
    outside = [bound.most + 1] + ([bound.least - step] if bound.least > 0 else [])

    def sized(size: float) -> Any:
        if bound.unit in ("", "seconds"):
            return size
        if kind == "str":
            return "n" * int(size)
        if kind == "bin":
            return b"n" * int(size)
        if kind.startswith("map"):
            return {f"key{index}": "" for index in range(int(size))}
        assert isinstance(sample, list)
        return sample[:1] * int(size)

    if bound.unit == "":
        outside.append(-1)
    return [sized(bound.least), sized(bound.most)], [sized(size) for size in outside]


BOUNDED = [
    (verb, index, cells)
    for verb in COMMANDS
    for index, cells in enumerate(field_rows(verb))
    if bound_in(cells[3]) is not None and "3, 4 or 5" not in cells[3]
]


@pytest.mark.parametrize(
    ("verb", "index", "cells"), BOUNDED, ids=[f"{v.name}.{named(c[0])}" for v, _, c in BOUNDED]
)
def test_a_documented_bound_is_the_bound(verb: Verb, index: int, cells: list[str]) -> None:
    bound = bound_in(cells[3])
    assert bound is not None
    sample = SAMPLES.get(verb, [])[index : index + 1] or [["sent_timeout"]]
    within, outside = values_at(bound, cells[1], sample[0])
    for value in within:
        read(verb, with_field(verb, index, value))
    for value in outside:
        with pytest.raises(PeerError) as caught:
            read(verb, with_field(verb, index, value))
        assert caught.value.code == bound.code


EACH = [
    (verb, index, cells)
    for verb in COMMANDS
    for index, cells in enumerate(field_rows(verb))
    if "each " in cells[3]
]


@pytest.mark.parametrize(
    ("verb", "index", "cells"), EACH, ids=[f"{v.name}.{named(c[0])}" for v, _, c in EACH]
)
def test_a_documented_bound_of_each_entry_is_the_bound(
    verb: Verb, index: int, cells: list[str]
) -> None:
    bounds = re.search(r"each ([0-9]+) to ([0-9]+)$", cells[3])
    assert bounds
    for value in (int(bounds[1]), int(bounds[2])):
        read(verb, with_field(verb, index, [value]))
    for value in (int(bounds[1]) - 1, int(bounds[2]) + 1):
        with pytest.raises(PeerError):
            read(verb, with_field(verb, index, [value]))


@pytest.mark.parametrize(
    ("verb", "index"),
    [(Verb.AWAIT_RECEIPTS, 2), (Verb.REPORT, 5), (Verb.EXTEND, 4)],
    ids=["AWAIT_RECEIPTS.sequences", "REPORT.attempts", "EXTEND.attempts"],
)
def test_what_goes_with_others_is_as_many_as_they_are(verb: Verb, index: int) -> None:
    assert "as many as" in field_rows(verb)[index][3]
    with pytest.raises(PeerError, match="differ in length"):
        read(verb, with_field(verb, index, [1, 2]))


def test_only_some_statuses_can_be_reported() -> None:
    (cells,) = [cells for cells in field_rows(Verb.REPORT) if cells[0] == "`status`"]
    allowed = [int(number) for number in re.findall(r"\d", cells[3])]
    for status in Status:
        if status in allowed:
            read(Verb.REPORT, [1, int(status), [1]])
        else:
            with pytest.raises(PeerError):
                read(Verb.REPORT, [1, int(status), [1]])


def test_no_bound_is_left_untested() -> None:
    tested = {(verb, named(cells[0])) for verb, _, cells in [*BOUNDED, *EACH]}
    left = {
        (verb, named(cells[0]))
        for verb in COMMANDS
        for cells in field_rows(verb)
        if cells[3] and (verb, named(cells[0])) not in tested
    }
    assert left == {(Verb.REPORT, "status")}


# --- answers ------------------------------------------------------------------------------------


def prepared() -> Shard:
    """A topic with a receiver, a message that it holds, one that is parked, and one of work."""
    shard = Shard(MemoryRows(), TopicSettings())
    encoded = Header(Mode.DURABLE, Status.PROCESSED, ("a/b",), max_receivers=1).encoded
    batch = [[b"i" * 16, encoded, b""], [b"j" * 16, encoded, b""]]
    earlier: list[tuple[Verb, list[Any]]] = [
        (Verb.SUBSCRIBE, [1, ["a/*"], "billing", None, None, 2]),
        (Verb.SUBSCRIBE, [2, ["b"]]),
        (Verb.PUBLISH, [batch]),
        (Verb.REPORT, [1, int(Status.FAILED), [2]]),
        (Verb.DRAFT, [b"d" * 16]),
        (Verb.DRAFT, [b"d" * 16]),
    ]
    for verb, fields in earlier:
        shard.handle("orders", read(verb, fields), NOW_MS)  # type: ignore[arg-type]
    work = shard.topics["orders"].next_sequence - 2
    shard.handle("orders", read(Verb.SET_DRAFT, [work, b""]), NOW_MS)  # type: ignore[arg-type]
    shard.handle("orders", read(Verb.ORDER, [0]), NOW_MS)  # type: ignore[arg-type]
    shard.handle("orders", read(Verb.FETCH, [work]), NOW_MS)  # type: ignore[arg-type]
    shard.end_turn()
    return shard


def answer_to(verb: Verb) -> Any:
    """The body of the answer that the core gives to a good command."""
    shard = prepared()
    draft = shard.topics["orders"].next_sequence - 2
    fields = {
        Verb.RENEW: [2],
        Verb.SUBSCRIBE: [3, ["a"]],
        Verb.PULL: [2, 1],
        Verb.ORDER: [0],
        Verb.SET_DRAFT: [draft, b"other"],
        Verb.COMPLETE: [draft - 1],
        Verb.FAIL: [draft - 1],
    }.get(verb, SAMPLES.get(verb, []))
    topic = "fresh" if verb is Verb.CREATE_TOPIC else "orders"
    command = wire.read_command(verb, NODE, 99, wire.pack_body(fields))
    shard.handle(topic, command, NOW_MS)
    shard.tick(NOW_MS)
    frame = b"".join(sent.part for sent in wire.write_effects(shard.end_turn(), 1))
    answers = [part for part in wire.read_parts(frame) if part.request == 99] if frame else []
    bodies = [msgpack.unpackb(frame[part.body : part.end]) for part in answers]
    assert [part.verb for part in answers] in ([Verb.REPLY], []), bodies
    return bodies[0] if bodies else None


@pytest.mark.parametrize("verb", COMMANDS, ids=lambda verb: verb.name)
def test_an_answer_has_the_keys_that_the_document_lists(verb: Verb) -> None:
    if verb is Verb.PUBLISH:
        return  # the worked example has it
    text = section(verb.name)
    answered = answer_to(verb)
    if verb is Verb.GRANT:
        assert answered is None and "never answered" in text
        return
    stated = re.search(r"^Answer: (.*)$", text, re.MULTILINE)
    assert stated, f"the section of {verb.name} says how it is answered"
    listed = [json.loads(cells[0][1:-1]) for rows in tables(text) for cells in rows[1:]
              if cells[0].startswith('`"')]  # fmt: skip
    keys = re.findall(r'"(\w+)":', stated[1].partition(", or ")[0])
    if keys == [] and listed:
        assert list(answered) == listed
        return
    assert list(answered) == keys
    if listed:
        assert list(answered[keys[0]][0]) == listed


def test_settings_are_described_by_the_names_that_users_give_them() -> None:
    described = answer_to(Verb.DESCRIBE)
    assert tuple(described["settings"]) == TOPIC_NAMES
    rows = {json.loads(named(cells[0])): cells for cells in table(section("DESCRIBE"), "key")}
    assert re.findall(r"`(\w+)`", rows["totals"][2]) == list(described["totals"])
    assert list(described["rates"]) == list(described["totals"])


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        (Verb.REFUSE, [field.name for field in dataclasses.fields(Refuse)][2:]),
        (Verb.GONE, [field.name for field in dataclasses.fields(EndpointGone)][1:]),
        (Verb.RESOLVED, [field.name for field in dataclasses.fields(Resolved)][1:]),
        (Verb.DELIVER, ["endpoint", "receiver", "deliveries"]),
    ],
    ids=lambda value: value.name if isinstance(value, Verb) else "",
)
def test_the_fields_of_what_the_broker_sends_are_listed_in_order(
    verb: Verb, fields: list[str]
) -> None:
    rows = table(section(verb.name), "field", "type", "meaning")
    assert [named(cells[0]) for cells in rows] == fields


def test_the_fields_of_a_delivery_are_listed_in_order() -> None:
    rows = table(section("DELIVER"), "of a delivery")
    assert tuple(named(cells[0]) for cells in rows) == Delivered._fields


# --- messages -----------------------------------------------------------------------------------


def header_rows() -> list[list[str]]:
    return table(section("The header"), *FIELDS)


def header_of(name: str, value: object) -> bytes:
    """The bytes of a durable header with one field set."""
    fields: list[Any] = [2, 4, ["a"], {}, 1, None, None, None, None, False]
    fields[[named(cells[0]) for cells in header_rows()].index(name)] = value
    packed: bytes = msgpack.packb(fields)
    return packed


def test_the_fields_of_a_header_are_listed_in_order_with_their_defaults() -> None:
    rows = header_rows()
    assert tuple(named(cells[0]) for cells in rows) == Header._fields[: len(rows)]
    plain = decode_header(msgpack.packb([1, 2, ["a"]]))
    assert [cells[2] for cells in rows[:3]] == ["required"] * 3
    for cells in rows[3:]:
        assert cells[2] == shown_default(getattr(plain, named(cells[0])))
    with pytest.raises(PeerError):
        decode_header(msgpack.packb([2, 4, ["a"], {}, 1, None, None, None, None, False, None]))


@pytest.mark.parametrize("cells", header_rows(), ids=lambda cells: cells[0].strip("`"))
def test_a_documented_bound_of_a_header_is_the_bound(cells: list[str]) -> None:
    name, bound = named(cells[0]), bound_in(cells[3])
    if bound is None or "or" in cells[3].split():
        assert name in ("mode", "expect", "receipt")
        return
    within, outside = values_at(bound, cells[1], ["a"])
    for value in within:
        decode_header(header_of(name, value))
    for value in outside:
        with pytest.raises(PeerError) as caught:
            decode_header(header_of(name, value))
        assert caught.value.code == bound.code


def test_only_some_statuses_can_be_expected() -> None:
    (cells,) = [cells for cells in header_rows() if cells[0] == "`expect`"]
    allowed = [int(number) for number in re.findall(r"\d", cells[3])]
    assert allowed == [int(status) for status in messages.EXPECTATIONS]


def test_every_mode_and_status_stands_in_the_document_with_its_number() -> None:
    for heading, kind in (("mode", Mode), ("status", Status)):
        rows = table(TEXT, heading, "number")
        numbers = [(named(cells[0]), int(cells[1])) for cells in rows]
        assert numbers == [(member.name.lower(), int(member)) for member in kind]


# --- settings, errors, limits -------------------------------------------------------------------


def test_every_setting_stands_in_the_document_with_its_default() -> None:
    rows = table(section("Settings"), "setting")
    shown = topic_settings_as_user(TopicSettings())
    assert [(named(cells[0]), cells[2]) for cells in rows] == [
        (name, shown_default(value)) for name, value in shown.items()
    ]


@pytest.mark.parametrize(
    "cells", table(section("Settings"), "setting"), ids=lambda cells: cells[0].strip("`")
)
def test_a_documented_range_of_a_setting_is_the_range(cells: list[str]) -> None:
    name, kind = named(cells[0]), cells[1]
    bound = bound_in(cells[3])
    if bound is not None:
        within, outside = values_at(bound, kind, None)
    elif kind == "bool":
        within, outside = [True, False], [0, "true"]
    elif name == "overflow":
        within = [
            {"size": 1},
            {"size": 1, "policy": "reject_new"},
            {"size": 1, "policy": "drop_old"},
        ]
        outside = [{}, {"size": 0}, {"size": 1, "policy": "other"}]
    elif name == "retry_backoff":
        within, outside = [{"min": 0, "max": 0.5}], [{"min": 1}, {"min": 2, "max": 1}]
    else:
        within, outside = re.findall(r'`"(\w+)"`', cells[4]), ["other"]
    for value in within:
        topic_overrides({name: value})
    for value in outside:
        with pytest.raises(PeerError):
            topic_overrides({name: value})


def test_every_code_says_what_a_client_does() -> None:
    rows = table(section("12. Errors"), "code")
    assert [named(cells[0]) for cells in rows] == list(ERRORS)
    assert all(cells[1] for cells in rows)


def test_every_code_that_is_named_exists() -> None:
    for code in re.findall(r"\(`([a-z_]+)`\)", TEXT):
        assert code in ERRORS
    for cells in table(section("15. Limits"), "limit"):
        assert set(re.findall(r"`(\w+)`", cells[3])) <= set(ERRORS)


def test_every_limit_that_is_stated_is_the_limit() -> None:
    rows = table(section("15. Limits"), "limit", "value")
    stated = {named(cells[0]): int(cells[1]) for cells in rows}
    assert stated == {name: getattr(limits, name) for name in stated}


def test_every_limit_on_what_a_peer_may_send_is_stated() -> None:
    stated = [named(cells[0]) for cells in table(section("15. Limits"), "limit")]
    source = tree.parsed(tree.ROOT / "asterism" / "limits.py")
    names = [
        node.target.id
        for node in source.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    of_peers = names[: names.index("WINDOW_MAX")]  # from there on: what a topic keeps in memory
    of_peers.remove("NODE_BYTES_MAX")  # nodes get their ids from the broker
    assert stated[: len(of_peers)] == of_peers


def test_limits_in_sentences_are_the_limits() -> None:
    """Numbers that stand in prose, each with the words around it."""
    for words in (
        f"one or more **parts**, at most {wire.TOGETHER_MAX}, one right behind the other",
        f"A part is a head of {wire.HEAD.size} bytes, a topic and a body",
        f"| the frame has more than {wire.TOGETHER_MAX} parts | `bad_request` |",
        f"fewer than {wire.HEAD.size} bytes are left for its head",
        f"at most {wire.TOGETHER_MAX}, and no more than some {wire.TOGETHER_BYTES_MAX >> 10} KiB",
        f"a frame has 1 to {wire.TOGETHER_MAX} parts (`bad_request`)",
        f"At most {limits.ANSWERS_MAX} unsettled answers",
        f"has 1 to {limits.SEGMENTS_MAX} segments and 1 to {limits.SUBJECT_BYTES_MAX} bytes",
        f"a key or value has 0 to {limits.ATTRIBUTE_BYTES_MAX} bytes",
        f"name is 1 to {limits.TOPIC_BYTES_MAX} bytes",
        f"1 to {limits.HEADER_BYTES_MAX} bytes (`too_large`)",
        f"| {limits.MESSAGE_ID_BYTES} bytes | the publisher's name for it",
        f"what would take it over {limits.CREDIT_MAX} is cut",
        f"kept up to {limits.REASON_BYTES_MAX} bytes",
        f"by name, at most {limits.LIST_MAX};",
        f"oldest failure first, at most {limits.LIST_MAX};",
        f"{messages.NEVER_MS}: never, which needs `max_receivers`",
    ):
        assert words in " ".join(TEXT.split()), words
