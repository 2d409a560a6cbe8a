"""A message's header: what a publisher says of a message, encoded once.

The publisher encodes the header. Where it leaves something to the topic (``expect`` of nil, no
``max_receivers``), the topic fills that in when it accepts the message, so that what is stored and
delivered says everything; otherwise the publisher's bytes are stored and delivered as they came.
The payload is never looked at. A header is a MessagePack array in the order of the fields below;
fields at the end that have their default are left out, so the header of a plain message is a few
bytes:

    [mode, expect, subjects, attributes, max_receivers, expires_ms, priority, deliver_ms,
     ordering_key, receipt]
"""

from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgpack

from asterism import checks, limits
from asterism.errors import PeerError
from asterism.packing import pack_value
from asterism.subjects import split_subject

PLAIN_BYTES_MAX: Final = 256  # a larger header is decoded more carefully
NEVER_MS: Final = limits.TIME_MS_MAX  # expires_ms of a message that does not expire


class Mode(IntEnum):
    """Who gets a message: one receiver, all that are online, or all until it is over."""

    PUSH = 0
    ONLINE = 1
    DURABLE = 2


class Status(IntEnum):
    """A delivery's step on the ladder; up to PROCESSED a higher number is a later step."""

    DRAFTING = 0
    WAITING = 1
    SENT = 2
    RECEIVED = 3
    PROCESSED = 4
    FAILED = 5
    UNREACHABLE = 6


_MODES: Final = {int(mode): mode for mode in Mode}
EXPECTATIONS: Final = (Status.SENT, Status.RECEIVED, Status.PROCESSED)
_EXPECTED: Final = {int(status): status for status in EXPECTATIONS}
EXPECTED: Final = {status.name.lower(): status for status in EXPECTATIONS}
# What a message expects that does not say, on a topic that does not say either.
DEFAULT_EXPECT: Final = {
    Mode.PUSH: Status.SENT,
    Mode.ONLINE: Status.SENT,
    Mode.DURABLE: Status.PROCESSED,
}
ALL_RECEIVERS: Final = 0  # max_receivers of a message that has no limit, whatever its topic says


class _Fields(NamedTuple):
    mode: Mode
    expect: Status
    subjects: tuple[str, ...]
    attributes: dict[str, str]
    max_receivers: int | None
    expires_ms: int | None
    priority: int | None
    deliver_ms: int | None
    ordering_key: str | None
    receipt: bool
    encoded: bytes  # what travels and is stored
    says_expect: bool  # or is that left to the topic?
    is_plain: bool  # durable, for one receiver, with no other wish: what most messages are
    passes: bool  # push or online, done once it is sent, with no other wish
    goes_in_runs: bool  # plain but for a receipt, and somebody has to finish it


_TRAVEL: Final = 10  # fields that travel; what follows them is derived
_DEFAULTS: Final[tuple[Any, ...]] = (
    {},
    None,
    None,
    None,
    None,
    None,
    False,
)  # of the last of those


class Header(_Fields):
    """A checked header: building one refuses what is wrong, so that one that is there is right."""

    __slots__ = ()

    def __new__(
        cls,
        mode: Mode,
        expect: Status | None,  # none: as the topic says
        subjects: tuple[str, ...],
        attributes: dict[str, str] | None = None,
        max_receivers: int | None = None,
        expires_ms: int | None = None,
        priority: int | None = None,
        deliver_ms: int | None = None,
        ordering_key: str | None = None,
        receipt: bool = False,
    ) -> "Header":
        if type(mode) is not Mode:
            raise PeerError("bad_request", f"mode must be a Mode, not {checks.shown(mode)}")
        if expect is not None and (type(expect) is not Status or expect not in EXPECTATIONS):
            raise PeerError("bad_request", "expect must be sent, received or processed")
        expected = DEFAULT_EXPECT[mode] if expect is None else expect
        rest = (
            subjects, {} if attributes is None else attributes, max_receivers,
            expires_ms, priority, deliver_ms, ordering_key, receipt,
        )  # fmt: skip
        fields = (mode, expected, *rest)
        kinds = _check(fields)
        encoded = _encode((mode, expect, *rest))
        if len(encoded) > limits.HEADER_BYTES_MAX:
            raise PeerError("too_large", f"the header has {len(encoded)} bytes")
        return tuple.__new__(cls, (*fields, encoded, expect is not None, *kinds))

    def __getnewargs__(self) -> Any:
        return (self.mode, self._said, *tuple(self)[2:_TRAVEL])

    @property
    def _said(self) -> Status | None:
        return self.expect if self.says_expect else None

    def with_attributes(self, attributes: dict[str, str]) -> "Header":
        """The same header with other attributes."""
        rest: dict[str, Any] = {name: getattr(self, name) for name in self._fields[4:_TRAVEL]}
        return Header(self.mode, self._said, self.subjects, attributes, **rest)

    def settled(self, expect: Status | None, max_receivers: int | None) -> "Header":
        """The header as a topic of these settings takes it: it leaves nothing open any more."""
        wanted = self.max_receivers
        if wanted == ALL_RECEIVERS:
            wanted = None
        elif wanted is None and self.mode is Mode.DURABLE:
            wanted = max_receivers
        if self.says_expect and wanted == self.max_receivers:
            return self
        expected = self.expect if self.says_expect or expect is None else expect
        rest: dict[str, Any] = {name: getattr(self, name) for name in self._fields[5:_TRAVEL]}
        return Header(self.mode, expected, self.subjects, self.attributes, wanted, **rest)


def decode_header(encoded: bytes) -> Header:
    """The header of these bytes; anything but a well-formed header is a ``PeerError``."""
    checks.octets("a header", encoded, 1, limits.HEADER_BYTES_MAX, "too_large")
    try:
        if len(encoded) <= PLAIN_BYTES_MAX:
            values = msgpack.unpackb(encoded, use_list=False, strict_map_key=True)
        else:
            values = _unpack_large(encoded)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise PeerError("bad_request", f"a header is not MessagePack: {error}") from None
    if type(values) is not tuple or not 3 <= len(values) <= _TRAVEL:
        raise PeerError("bad_request", f"a header is an array of 3 to {_TRAVEL} fields")
    mode, expect = values[0], values[1]
    if type(mode) is not int or mode not in _MODES:
        raise PeerError("bad_request", f"there is no mode {checks.shown(mode)}")
    if expect is not None and (type(expect) is not int or expect not in _EXPECTED):
        raise PeerError("bad_request", f"expect cannot be {checks.shown(expect)}")
    rest = values[2:] if len(values) == _TRAVEL else values[2:] + _DEFAULTS[len(values) - 3 :]
    expected = DEFAULT_EXPECT[_MODES[mode]] if expect is None else _EXPECTED[expect]
    fields = (_MODES[mode], expected, *rest)
    kinds = _check(fields)
    return tuple.__new__(Header, (*fields, encoded, expect is not None, *kinds))


def _unpack_large(encoded: bytes) -> Any:
    """Decodes a header that has room for much that no header has: it stops at a map too many."""
    maps = 0

    def count(value: Any) -> Any:
        nonlocal maps
        maps += 1
        if maps > 3:  # subjects, attributes, and the header itself
            raise ValueError("it has more arrays or maps than a header")
        return value

    return msgpack.unpackb(
        encoded, use_list=False, strict_map_key=True, list_hook=count, object_hook=count
    )


def _encode(fields: tuple[Any, ...]) -> bytes:
    mode, expect, *rest = fields
    values = [int(mode), None if expect is None else int(expect), *rest]
    # The array's defaults are None, False and the empty map; a priority of 0 is not one of them.
    while len(values) > 3 and (values[-1] is None or values[-1] is False or values[-1] == {}):
        values.pop()
    try:
        return pack_value(values)
    except OverflowError:
        raise PeerError("bad_request", "a whole number has at most 64 bits") from None


def _check(fields: tuple[Any, ...]) -> tuple[bool, bool, bool]:
    """Refuses fields that are wrong; of right ones, says whether they are of a message that is
    plain, of one that passes, and of one that goes in runs."""
    mode, expect, subjects, attributes, max_receivers, *wishes, receipt = fields
    checks.tuple_of("subjects", subjects, limits.SUBJECTS_MAX, "bad_subject")
    if type(subjects) is not tuple:
        raise PeerError("bad_subject", "subjects must be a tuple")
    for subject in subjects:
        split_subject(subject)
    if type(attributes) is not dict or attributes:
        checks.string_map("attributes", attributes)
    if receipt is not False:
        checks.flag("receipt", receipt)
    if max_receivers is not None:
        checks.whole("max_receivers", max_receivers, ALL_RECEIVERS, limits.RECEIVERS_WANTED_MAX)
        if mode is not Mode.DURABLE:
            raise PeerError("bad_request", "max_receivers is for durable messages alone")
    if wishes == [None, None, None, None]:
        passes = mode is not Mode.DURABLE and expect is Status.SENT and not receipt
        for_one = max_receivers == 1
        return for_one and not receipt, passes, for_one and expect is not Status.SENT
    _check_wishes(mode, max_receivers, *wishes)
    return False, False, False


def _check_wishes(
    mode: Mode,
    max_receivers: int | None,
    expires_ms: object,
    priority: object,
    deliver_ms: object,
    ordering_key: object,
) -> None:
    checks.maybe_whole("priority", priority, 0, limits.PRIORITY_MAX)
    checks.maybe_whole("deliver_at", deliver_ms, 0, limits.TIME_MS_MAX)
    checks.maybe_text("ordering_key", ordering_key, limits.ORDERING_KEY_BYTES_MAX)
    checks.maybe_whole("expires_at", expires_ms, 0, NEVER_MS)
    if expires_ms is not None and mode is not Mode.DURABLE:
        raise PeerError("bad_request", "expires_at is for durable messages alone")
    if expires_ms == NEVER_MS and not max_receivers:
        raise PeerError("bad_request", "a message that never expires needs max_receivers")
