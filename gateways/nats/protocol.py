"""The client protocol of NATS, both ways: bytes into operations, and what goes back. Pure.

    PUB <subject> [reply] <size>CRLF <payload>CRLF
    HPUB <subject> [reply] <header size> <total size>CRLF <headers><payload>CRLF
    SUB <subject> [queue] <sid>CRLF         UNSUB <sid> [max]CRLF
    CONNECT {json}CRLF   PING CRLF   PONG CRLF

A parser takes whole buffers, of any number of messages, and remembers control lines that it has
seen: a publisher that sends to one subject all day has each of its lines parsed once. Where reading
and the server of reference could differ, this does what nats-server 2.15 does; its tests run
against both.

I1  What stands before a mistake is handed out; nothing behind it is.
I2  A parser holds at most one control line, or one message, that has not come whole; and as bytes,
    since operations take many times their room, what its reader has not asked for yet.
I3  No input raises anything, or takes longer than its length: a byte is looked at a few times.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

CRLF: Final = b"\r\n"
CONTROL_LINE_MAX: Final = 4_096  # bytes; a longer line ends the connection
SIZE_DIGITS_MAX: Final = 9
LINES_KEPT_MAX: Final = 4_096  # control lines of publishers that are remembered; then all go
LINE_KEPT_BYTES_MAX: Final = 512  # longer ones are parsed each time
# So many bytes of a line that has to be parsed take as long as an operation whose line is known.
LINE_COST_BYTES: Final = 64
PIECES_MAX: Final = 64  # of a message that comes in many; then they are put together

# As clients write it, without its line end: some leave two spaces where an address would stand.
_PLAIN_PUB: Final = re.compile(
    rb"PUB +([^ \t\r]+) +(?:([^ \t\r]+) +)?([0-9]{1,%d})\r" % SIZE_DIGITS_MAX
).fullmatch
MANY: Final = 1 << 30  # more than any buffer has
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"
OK: Final = b"+OK\r\n"
NO_RESPONDERS: Final = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n"

UNKNOWN_OPERATION: Final = "Unknown Protocol Operation"
CONTROL_LINE_EXCEEDED: Final = "maximum control line exceeded"
PAYLOAD_VIOLATION: Final = "Maximum Payload Violation"
INVALID_SUBJECT: Final = "Invalid Subject"
INVALID_PUBLISH_SUBJECT: Final = "Invalid Publish Subject"
INVALID_PROTOCOL: Final = "invalid client protocol"
HEADERS_REQUIRED: Final = "no responders requires headers support"
AUTHORIZATION: Final = "Authorization Violation"
AUTHENTICATION_TIMEOUT: Final = "Authentication Timeout"
STALE: Final = "Stale Connection"
CONNECTIONS_EXCEEDED: Final = "maximum connections exceeded"
SUBSCRIPTIONS_EXCEEDED: Final = "maximum subscriptions exceeded"


class ProtocolError(Exception):
    """A mistake that ends the connection, with the sentence that the client is told, if any."""

    def __init__(self, sentence: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence


class Publication:
    """The control line of a publisher: all but the payload, which follows it."""

    __slots__ = ("announced", "head", "header", "header_size", "reply", "size", "subject", "tail",
                 "weight")  # fmt: skip

    def __init__(
        self, subject: bytes, reply: bytes | None, header_size: int, size: int, is_hpub: bool
    ) -> None:
        self.subject = subject
        self.reply = reply
        self.header_size = header_size  # 0: a message without headers
        is_hpub &= header_size > 0
        self.size = size  # of headers and payload together
        # What a subscriber is sent is these with its sid between them, and then the payload.
        self.head = (b"HMSG " if is_hpub else b"MSG ") + subject + b" "
        sizes = b"%d %d\r\n" % (header_size, size) if is_hpub else b"%d\r\n" % size
        self.tail = sizes if reply is None else reply + b" " + sizes
        self.announced = size + 2
        # Bytes that a subscriber is sent, but for its sid.
        self.weight = len(self.head) + len(self.tail) + self.announced
        self.header: bytes | None = None  # of the message at the broker, once it was made

    @property
    def is_valid(self) -> bool:
        return is_publishable(self.subject)

    def without_headers(self) -> "Publication":
        """The same for a subscriber that cannot read headers."""
        return Publication(self.subject, self.reply, 0, self.size - self.header_size, False)


class Subscribe(NamedTuple):
    """SUB."""

    subject: bytes
    queue: bytes | None
    sid: bytes


class Unsubscribe(NamedTuple):
    """UNSUB; ``most`` deliveries in all, or 0: at once."""

    sid: bytes
    most: int


class Connect(NamedTuple):
    """CONNECT: what the client says of itself."""

    options: dict[str, Any]


class Ping(NamedTuple):
    """PING."""


class Pong(NamedTuple):
    """PONG."""


class Nothing(NamedTuple):
    """What a server may be told, and need not do anything about."""


Control = Subscribe | Unsubscribe | Connect | Ping | Pong | Nothing
Operation = tuple[Publication, bytes] | Control
"""A publication with its headers, payload and line end; or anything else."""


def is_publishable(subject: bytes) -> bool:
    """Is it a subject without wildcards and empty tokens? A pedantic client is told if not."""
    tokens = subject.split(b".")
    return b"" not in tokens and b"*" not in tokens and b">" not in tokens


def is_pattern(subject: bytes) -> bool:
    """Can it be subscribed to?"""
    tokens = subject.split(b".")
    return b"" not in tokens and b">" not in tokens[:-1]


class Lines:
    """Control lines of publishers that were parsed before, for all connections of a door."""

    def __init__(self, payload_max: int, line_max: int = CONTROL_LINE_MAX) -> None:
        self.payload_max = payload_max
        self.line_max = line_max
        self.known: dict[bytes, Publication] = {}

    def keep(self, line: bytes, publication: Publication) -> None:
        if len(line) > LINE_KEPT_BYTES_MAX or publication.reply is not None:
            return  # an address for an answer is hardly ever used twice
        if len(self.known) >= LINES_KEPT_MAX:
            self.known.clear()
        self.known[line] = publication


class Parser:
    """What comes in on one connection."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._rest: list[bytes] = []  # pieces of what has not come whole, or was not asked for
        self._joined = 0  # pieces of these that were put together from others
        self._at = 0  # where the first of them is read on
        self._wanted = 0  # bytes that have to be there before it is worth another look
        self._is_in_line = False  # does it wait for nothing but a line end?
        self.held = 0  # bytes that it holds
        self.is_behind = False  # is there more to be read of what has come?
        self.must_connect = False  # CONNECT has to come first, and nothing else is read before it
        self.error: ProtocolError | None = None

    def feed(self, data: bytes, most: int = MANY) -> list[Operation]:
        """Operations that are whole, so many at most, and fewer where they are long: one at least.
        With ``is_behind`` there are more of them, which ``feed(b"")`` returns. After a mistake
        ``error`` is set, and no more is read."""
        if self.error is not None:
            return []
        if data:
            self._add(data)
            if not self.is_behind and not self._is_worth_a_look(data):
                return []
        if not self._rest or not most:
            self.is_behind = bool(self._rest)
            return []
        found: list[Operation] = []
        data = self._rest[0] if len(self._rest) == 1 else self._together()
        try:
            at = self._take(data, self._at, found, most)
        except ProtocolError as error:
            self.error = error
            at = len(data)
            self.is_behind = False
        self._keep(data, at)
        return found

    def forget(self) -> None:
        """What has not been read is of no use any more."""
        self._rest, self.held, self.is_behind = [], 0, False
        self._at = self._joined = self._wanted = 0

    def _add(self, data: bytes) -> None:
        self._rest.append(data)
        self.held += len(data)
        if len(self._rest) - self._joined > PIECES_MAX:
            self._rest[self._joined :] = [b"".join(self._rest[self._joined :])]
            self._joined += 1
            if self._at:
                self._rest[0], self._at = self._rest[0][self._at :], 0

    def _is_worth_a_look(self, data: bytes) -> bool:
        if self._is_in_line and self.held <= self._lines.line_max:
            return b"\n" in data
        return self.held >= self._wanted

    def _together(self) -> bytes:
        self._rest[0], self._at = self._rest[0][self._at :], 0
        return b"".join(self._rest)

    def _keep(self, data: bytes, at: int) -> None:
        """Holds what was not read, in one piece."""
        self.held = len(data) - at
        self._joined = 0
        if not self.held:
            self._rest, self._at = [], 0
        elif self.is_behind:
            self._rest, self._at = [data], at  # it is read on in a moment, and not copied for that
        else:
            self._rest, self._at = [data[at:] if at else data], 0

    def _take(self, data: bytes, at: int, found: list[Operation], most: int) -> int:
        """Reads operations; returns where the first one begins that was not read."""
        known, size, left = self._lines.known, len(data), most
        self._wanted, self._is_in_line = 0, False
        self.is_behind = True
        while at < size:
            if left <= 0:
                return at
            left -= 1
            if self.must_connect and data[at : at + 1] not in b"Cc":
                raise ProtocolError(AUTHORIZATION)
            end = data.find(b"\n", at)
            if end < 0:
                self._check_begin(data[at : at + LONGEST_VERB])
                self._check_line(size - at)
                self.is_behind, self._is_in_line = False, size - at >= LONGEST_VERB
                return at
            line = data[at:end]
            publication = known.get(line)
            if publication is None:
                left -= len(line) // LINE_COST_BYTES
                operation = self._plain_pub(line) or self._control(line)
                self.must_connect &= not isinstance(operation, Connect)
                if not isinstance(operation, Publication):
                    found.append(operation)
                    at = end + 1
                    continue
                publication = operation
            begin = end + 1
            after = begin + publication.announced
            if after > size:
                if after - 2 < size:
                    self._check_end(data, after - 2)
                # It is looked at once more when only its last byte is missing: as above.
                self.is_behind, self._wanted = False, after - at - (size < after - 1)
                return at
            body = data[begin:after]
            if body[-2:] != CRLF:
                raise ProtocolError(UNKNOWN_OPERATION)
            found.append((publication, body))
            at = after
        self.is_behind = False
        return at

    def _check_end(self, data: bytes, at: int) -> None:
        """What follows a payload is told as soon as one byte of it is wrong."""
        if data[at : at + 1] != b"\r":
            raise ProtocolError(UNKNOWN_OPERATION)

    def _check_line(self, size: int) -> None:
        if size > self._lines.line_max + len(b"CONNECT "):
            raise ProtocolError(CONTROL_LINE_EXCEEDED)

    def _check_begin(self, begun: bytes) -> None:
        """Nothing that could become a command is waited for in vain."""
        upper = begun.upper()
        for name, _ in _VERBS.get(upper[:1], ()):
            if name.startswith(upper) or upper.startswith(name):
                return
        raise ProtocolError(UNKNOWN_OPERATION)

    def _control(self, line: bytes) -> Control | Publication:
        """One control line, without its line end."""
        verb = _VERBS.get(line[:1].upper())
        for name, read in verb or ():
            if line[: len(name)].upper() == name:
                found: Control | Publication = read(
                    self, line, line[len(name) :].replace(b"\r", b"")
                )
                return found
        raise ProtocolError(UNKNOWN_OPERATION)

    # --- verbs ------------------------------------------------------------------------------

    def _arguments(self, rest: bytes) -> list[bytes]:
        """What stands behind a verb that has to have something behind it."""
        if rest[:1] not in (b" ", b"\t"):
            raise ProtocolError(UNKNOWN_OPERATION)
        if len(rest) - 1 > self._lines.line_max:
            raise ProtocolError(CONTROL_LINE_EXCEEDED)
        return rest.replace(b"\t", b" ").split(b" ")

    def _fields(self, rest: bytes, least: int, most: int) -> list[bytes]:
        fields = [field for field in self._arguments(rest) if field]
        if not least <= len(fields) <= most:
            raise ProtocolError
        return fields

    def _pub(self, line: bytes, rest: bytes) -> Publication:
        fields = self._fields(rest, 2, 3)
        size = _size(fields[-1])
        reply = fields[1] if len(fields) == 3 else None
        return self._publication(line, Publication(fields[0], reply, 0, size, is_hpub=False))

    def _hpub(self, line: bytes, rest: bytes) -> Publication:
        fields = self._fields(rest, 3, 4)
        header_size, size = _size(fields[-2]), _size(fields[-1])
        if header_size > size:
            raise ProtocolError
        reply = fields[1] if len(fields) == 4 else None
        return self._publication(
            line, Publication(fields[0], reply, header_size, size, is_hpub=True)
        )

    def _plain_pub(self, line: bytes) -> Publication | None:
        """A PUB as clients write it; ``None`` where it is anything else, or may be wrong."""
        found = _PLAIN_PUB(line)
        if found is None or len(line) > self._lines.line_max:
            return None
        subject, reply, size = found.groups()
        return self._publication(line, Publication(subject, reply, 0, int(size), is_hpub=False))

    def _publication(self, line: bytes, publication: Publication) -> Publication:
        if publication.size > self._lines.payload_max:
            raise ProtocolError(PAYLOAD_VIOLATION)
        self._lines.keep(line, publication)
        return publication

    def _sub(self, line: bytes, rest: bytes) -> Subscribe:
        fields = self._fields(rest, 2, 3)
        return Subscribe(fields[0], fields[1] if len(fields) == 3 else None, fields[-1])

    def _unsub(self, line: bytes, rest: bytes) -> Unsubscribe:
        fields = self._fields(rest, 1, 2)
        most = fields[1] if len(fields) == 2 else b"0"
        is_number = most.isdigit() and len(most) <= SIZE_DIGITS_MAX
        return Unsubscribe(fields[0], int(most) if is_number else 0)

    def _connect(self, line: bytes, rest: bytes) -> Connect:
        if len(rest) > self._lines.line_max:
            raise ProtocolError(CONTROL_LINE_EXCEEDED)
        return Connect(read_options(rest))

    def _ping(self, line: bytes, rest: bytes) -> Ping:
        return Ping()

    def _pong(self, line: bytes, rest: bytes) -> Pong:
        return Pong()

    def _info(self, line: bytes, rest: bytes) -> Nothing:
        if rest[:1] not in (b" ", b"\t"):
            raise ProtocolError
        read_options(rest)
        return Nothing()

    def _ok(self, line: bytes, rest: bytes) -> Nothing:
        return Nothing()

    def _err(self, line: bytes, rest: bytes) -> Nothing:
        raise ProtocolError("" if rest.strip() else UNKNOWN_OPERATION)


# Their first letters, and what reads them.
_VERBS: Final[Mapping[bytes, Any]] = {
    b"P": ((b"PUB", Parser._pub), (b"PING", Parser._ping), (b"PONG", Parser._pong)),
    b"H": ((b"HPUB", Parser._hpub),),
    b"S": ((b"SUB", Parser._sub),),
    b"U": ((b"UNSUB", Parser._unsub),),
    b"C": ((b"CONNECT", Parser._connect),),
    b"I": ((b"INFO", Parser._info),),
    b"+": ((b"+OK", Parser._ok),),
    b"-": ((b"-ERR", Parser._err),),
}

LONGEST_VERB: Final = max(len(name) for verbs in _VERBS.values() for name, _ in verbs)


def _size(field: bytes) -> int:
    if not field.isdigit() or len(field) > SIZE_DIGITS_MAX:
        raise ProtocolError
    return int(field)


def read_options(text: bytes) -> dict[str, Any]:
    """The map in a CONNECT, its names in small letters; ``ProtocolError`` if it is none."""
    try:
        found = json.loads(text.decode(errors="replace"))
    except (ValueError, RecursionError):
        raise ProtocolError from None
    if found is None:
        return {}
    if type(found) is not dict:
        raise ProtocolError
    return {name.lower(): value for name, value in found.items() if value is not None}


# --- to the client ------------------------------------------------------------------------------


def info_line(info: Mapping[str, object]) -> bytes:
    """INFO, with what the server says of itself."""
    return b"INFO %b \r\n" % json.dumps(info, separators=(",", ":")).encode()


def error_line(sentence: str) -> bytes:
    """-ERR, with a sentence."""
    return b"-ERR '%b'\r\n" % sentence.encode()


def no_responders(subject: bytes, reply: bytes, sid: bytes) -> bytes:
    """What a request on a subject gets that nobody is there to answer."""
    headers = NO_RESPONDERS % subject
    size = len(headers)
    return b"HMSG %b %b%d %d\r\n%b\r\n" % (reply, sid, size, size, headers)
