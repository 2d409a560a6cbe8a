"""What can be asked of a topic: one small immutable class for each command.

``node`` is the connection that asks; ``request`` is its number for the answer. Every constructor
checks its fields and raises ``PeerError``: what has been built is well-formed. A sequence is the
number a topic gives a message; it is never given twice under one topic name.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from asterism import checks, limits
from asterism.errors import PeerError
from asterism.message import Status
from asterism.subjects import MANY, split_interest
from asterism.values import value_class

REQUEST_MAX = 2**63 - 1
_REPORTED = (Status.RECEIVED, Status.PROCESSED, Status.FAILED)
SETTINGS_MAX = 64  # names in one command; there are fewer settings


@value_class
class Request:
    """A command that is answered: with ``Reply`` or ``Accepted``, or with ``Refuse``."""

    node: bytes
    request: int

    def __post_init__(self) -> None:
        node, request = self.node, self.request
        if type(node) is not bytes or not 1 <= len(node) <= limits.NODE_BYTES_MAX:
            checks.octets("node", node, 1, limits.NODE_BYTES_MAX)
        if type(request) is not int or not 0 <= request <= REQUEST_MAX:
            checks.whole("request", request, 0, REQUEST_MAX)
        self.check()

    def check(self) -> None:
        """Checks the fields of the command itself; most have some."""


# --- publishing -------------------------------------------------------------------------------

Incoming = tuple[bytes, bytes, bytes]
"""A message as a publisher sends it: its id, its encoded header, its payload."""


FORWARDER_TAG: Final = b"\0fwd\0\0"
"""How the producers of dead letters begin, which topics publish. Those of clients may not."""


@value_class
class Publish(Request):
    """Publishes messages, in order.

    ``producer`` makes it idempotent: the messages are numbered from ``first`` without a gap, and
    whatever was answered before is answered again. ``settled`` is the number up to which the
    producer has seen the answers, so that they need not be remembered any longer.
    """

    messages: tuple[Incoming, ...]
    producer: bytes | None = None
    first: int = 1
    settled: int = 0

    def check(self) -> None:
        if type(self.messages) is not tuple:
            raise PeerError("bad_request", "messages must be a tuple")
        if not 1 <= len(self.messages) <= limits.BATCH_MESSAGES_MAX:
            raise PeerError("too_large", f"a batch has 1 to {limits.BATCH_MESSAGES_MAX} messages")
        producer, first, settled = self.producer, self.first, self.settled
        if producer is not None:
            size = limits.PRODUCER_ID_BYTES
            if type(producer) is not bytes or len(producer) != size:
                checks.octets("producer", producer, size, size)
        if type(first) is not int or not 1 <= first <= limits.SEQUENCE_MAX:
            checks.whole("first", first, 1, limits.SEQUENCE_MAX)
        if type(settled) is not int or not 0 <= settled <= limits.SEQUENCE_MAX:
            checks.whole("settled", settled, 0, limits.SEQUENCE_MAX)


@value_class
class AwaitReceipts(Request):
    """Asks again for receipts of messages published by ``producer``; a new connection may.

    ``sequences``, where given, are those that the messages were accepted under: with them the
    broker can tell a message that is under way from one whose outcome is no longer kept.
    """

    producer: bytes
    numbers: tuple[int, ...]
    sequences: tuple[int, ...] = ()

    def check(self) -> None:
        checks.octets("producer", self.producer, limits.PRODUCER_ID_BYTES, limits.PRODUCER_ID_BYTES)
        _numbers("numbers", self.numbers)
        checks.tuple_of("sequences", self.sequences, limits.BATCH_MESSAGES_MAX, least=0)
        if self.sequences:
            _numbers("sequences", self.sequences)
            if len(self.sequences) != len(self.numbers):
                raise PeerError("bad_request", "sequences and numbers differ in length")


# --- receiving --------------------------------------------------------------------------------


@value_class
class Subscribe(Request):
    """Puts an endpoint on the topic; answered once every later match will reach it.

    With a ``name`` or a ``group`` it joins the durable receiver of that name, unless ``durable``
    is false; without either it is a receiver by itself for as long as its connection lives.

    With ``echo`` false, online messages that the node itself publishes pass over the receiver where
    this endpoint wants them: for doors, which serve their own clients themselves.

    ``holding`` is for an endpoint that comes back: the sessions under which it was given what it
    still holds, the sequences of that, and their attempts. ``None``: all that it was given as this
    node.
    """

    endpoint: int
    interests: tuple[str, ...]
    name: str | None = None
    group: str | None = None
    durable: bool | None = None
    credit: int = 0
    sent_timeout_ms: int | None = None
    received_timeout_ms: int | None = None
    holding: tuple[tuple[bytes, ...], tuple[int, ...], tuple[int, ...]] | None = None
    echo: bool = True

    def check(self) -> None:
        _endpoint(self.endpoint)
        _interests(self.interests)
        checks.maybe_text("name", self.name, limits.NAME_BYTES_MAX)
        checks.maybe_text("group", self.group, limits.NAME_BYTES_MAX)
        if self.durable is not None:
            checks.flag("durable", self.durable)
        if self.durable and self.name is None and self.group is None:
            raise PeerError("bad_request", "a durable receiver needs a name or a group")
        checks.flag("echo", self.echo)
        checks.whole("credit", self.credit, 0, limits.CREDIT_MAX)
        _timeouts(self.sent_timeout_ms, self.received_timeout_ms)
        if self.holding is not None:
            _holding(self.holding)


@value_class
class CreateReceiver(Request):
    """Makes a durable receiver with nobody on it yet; it is owed every live match."""

    name: str
    interests: tuple[str, ...]
    sent_timeout_ms: int | None = None
    received_timeout_ms: int | None = None

    def check(self) -> None:
        checks.text("name", self.name, limits.NAME_BYTES_MAX)
        _interests(self.interests)
        _timeouts(self.sent_timeout_ms, self.received_timeout_ms)


@value_class
class SetInterests(Request):
    """Replaces an endpoint's interests; what is already on its way is neither lost nor repeated."""

    endpoint: int
    interests: tuple[str, ...]

    def check(self) -> None:
        _endpoint(self.endpoint)
        _interests(self.interests)


@value_class
class Unsubscribe(Request):
    """Takes an endpoint off the topic; what it held goes to another receiver."""

    endpoint: int

    def check(self) -> None:
        _endpoint(self.endpoint)


@value_class
class Grant(Request):
    """Gives the broker leave to send an endpoint so many deliveries more. Not answered.

    ``less`` is taken back first: of what is unused, and the rest as deliveries give it back.
    """

    endpoint: int
    credit: int
    less: int = 0

    def check(self) -> None:
        _endpoint(self.endpoint)
        checks.whole("credit", self.credit, 0, limits.CREDIT_MAX)
        if self.less != 0:
            checks.whole("less", self.less, 0, limits.CREDIT_MAX)


@value_class
class Pull(Request):
    """Asks for up to ``count`` deliveries, waiting for the first; answered with their number."""

    endpoint: int
    count: int
    wait_ms: int = 0

    def check(self) -> None:
        _endpoint(self.endpoint)
        checks.whole("count", self.count, 1, limits.CREDIT_MAX)
        checks.whole("wait_ms", self.wait_ms, 0, limits.TIME_MS_MAX)


@value_class
class CancelWait(Request):
    """Ends the waiting ``Pull`` or ``Order`` of number ``waiting``: nothing more is sent for it."""

    waiting: int

    def check(self) -> None:
        checks.whole("waiting", self.waiting, 0, REQUEST_MAX)


@value_class
class Report(Request):
    """Says how far deliveries have come: received, processed or failed.

    The reporter is an endpoint of this node or, with ``receiver``, the receiver of that name, for
    which a gateway speaks. ``attempts``, where given, tells which attempt each report is about: a
    failure of an earlier attempt does not end the one under way.
    """

    endpoint: int
    status: Status
    sequences: tuple[int, ...]
    reason: str = ""
    receiver: str | None = None
    attempts: tuple[int, ...] | None = None

    def check(self) -> None:
        _endpoint(self.endpoint)
        # A number that equals a status is not one: what compares it by identity would err.
        if type(self.status) is not Status or self.status not in _REPORTED:
            raise PeerError("bad_request", "status must be received, processed or failed")
        _numbers("sequences", self.sequences)
        if self.reason != "":
            checks.text("reason", self.reason, limits.HEADER_BYTES_MAX, least=0)
        if self.receiver is not None:
            checks.text("receiver", self.receiver, limits.NAME_BYTES_MAX)
        if self.attempts is not None:
            _numbers("attempts", self.attempts)
            if len(self.attempts) != len(self.sequences):
                raise PeerError("bad_request", "attempts and sequences differ in length")


@value_class
class Extend(Request):
    """Moves the deadline of held deliveries to ``timeout_ms`` from now; 0 gives them up at once.

    ``None`` renews the lease: the deadline of the step that each is on begins anew. ``attempts``,
    where given, tells which attempt of each is meant: whatever is not out under it is refused.
    """

    endpoint: int
    sequences: tuple[int, ...]
    timeout_ms: int | None
    receiver: str | None = None
    attempts: tuple[int, ...] | None = None

    def check(self) -> None:
        _endpoint(self.endpoint)
        _numbers("sequences", self.sequences)
        checks.maybe_whole("timeout_ms", self.timeout_ms, 0, limits.TIME_MS_MAX)
        checks.maybe_text("receiver", self.receiver, limits.NAME_BYTES_MAX)
        if self.attempts is not None:
            _numbers("attempts", self.attempts)
            if len(self.attempts) != len(self.sequences):
                raise PeerError("bad_request", "attempts and sequences differ in length")


@value_class
class Detach(Request):
    """The node is gone: all it held fails over, its waits end. Not answered."""


@value_class
class Suspend(Request):
    """The node has lost its endpoints and may come back: what it held stays its own for the grace,
    its waits end. Not answered."""


# --- receivers, topic -------------------------------------------------------------------------


@value_class
class ListReceivers(Request):
    """Lists receivers by name, after a name, at most ``limits.LIST_MAX``."""

    after: str = ""

    def check(self) -> None:
        checks.text("after", self.after, limits.NAME_BYTES_MAX, least=0)


@value_class
class DeleteReceiver(Request):
    """Deletes a durable receiver and drops its backlog at once."""

    name: str

    def check(self) -> None:
        checks.text("name", self.name, limits.NAME_BYTES_MAX)


@value_class
class Seek(Request):
    """Moves a durable receiver to a sequence or a time still on disk; with neither, to now."""

    name: str
    sequence: int | None = None
    time_ms: int | None = None

    def check(self) -> None:
        checks.text("name", self.name, limits.NAME_BYTES_MAX)
        checks.maybe_whole("sequence", self.sequence, 0, limits.SEQUENCE_MAX)
        checks.maybe_whole("time_ms", self.time_ms, 0, limits.TIME_MS_MAX)
        if self.sequence is not None and self.time_ms is not None:
            raise PeerError("bad_request", "seek to a sequence or to a time, not to both")


@value_class
class Configure(Request):
    """Changes the topic's own settings; those in ``inherit`` follow the broker's defaults again."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    inherit: tuple[str, ...] = ()

    def check(self) -> None:
        _settings(self.changes)
        for name in checks.tuple_of("inherit", self.inherit, SETTINGS_MAX, least=0):
            checks.text("a setting's name", name, limits.NAME_BYTES_MAX)


@value_class
class Describe(Request):
    """Asks for the settings, the counts, the receivers' number, the oldest waiting and rates."""


@value_class
class Clear(Request):
    """Drops every message and count; settings and durable receivers stay."""


@value_class
class DeleteTopic(Request):
    """Drops the topic with all that belongs to it."""


@value_class
class CreateTopic(Request):
    """Makes a topic with settings of its own."""

    changes: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        _settings(self.changes)


# --- parked deliveries ------------------------------------------------------------------------


@value_class
class ListParked(Request):
    """Lists parked deliveries, oldest failure first, after a position; ``LIST_MAX`` at most."""

    after: int = 0

    def check(self) -> None:
        checks.whole("after", self.after, 0, limits.SEQUENCE_MAX)


@value_class
class Renew(Request):
    """Puts a parked delivery back to waiting; with no ``receiver``, every one of the message."""

    sequence: int
    receiver: str | None = None

    def check(self) -> None:
        _sequence(self.sequence)
        checks.maybe_text("receiver", self.receiver, limits.NAME_BYTES_MAX)


@value_class
class Abandon(Request):
    """Drops a message in any state, or with ``receiver`` its parked delivery there; not counted."""

    sequence: int
    receiver: str | None = None

    def check(self) -> None:
        _sequence(self.sequence)
        checks.maybe_text("receiver", self.receiver, limits.NAME_BYTES_MAX)


@value_class
class RenewAll(Request):
    """Puts every parked delivery back to waiting, oldest failure first."""


@value_class
class AbandonAll(Request):
    """Drops every parked delivery."""


# --- the work queue (spec section 7) ----------------------------------------------------------


@value_class
class Draft(Request):
    """Begins a message: answered with its sequence; it is deleted unless it is set in time."""

    id: bytes
    priority: int | None = None

    def check(self) -> None:
        checks.octets("id", self.id, limits.MESSAGE_ID_BYTES, limits.MESSAGE_ID_BYTES)
        checks.maybe_whole("priority", self.priority, 0, limits.PRIORITY_MAX)


@value_class
class SetDraft(Request):
    """Gives a draft its payload and lets it wait, or replaces the payload of a waiting message."""

    sequence: int
    payload: bytes
    attributes: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        _sequence(self.sequence)
        checks.octets("payload", self.payload, 0, 2**40)
        checks.string_map("attributes", self.attributes)


@value_class
class Order(Request):
    """Takes the best waiting message, or waits for one; ``wait_ms`` of ``None`` waits for ever."""

    wait_ms: int | None = None

    def check(self) -> None:
        checks.maybe_whole("wait_ms", self.wait_ms, 0, limits.TIME_MS_MAX)


@value_class
class Fetch(Request):
    """Reads a message; one that was ordered becomes active. Any number of times."""

    sequence: int

    def check(self) -> None:
        _sequence(self.sequence)


@value_class
class Complete(Request):
    """Ends an active message well."""

    sequence: int

    def check(self) -> None:
        _sequence(self.sequence)


@value_class
class Fail(Request):
    """Ends an active message badly: it is parked, or retried where the topic says so."""

    sequence: int
    reason: str = ""

    def check(self) -> None:
        _sequence(self.sequence)
        checks.text("reason", self.reason, limits.HEADER_BYTES_MAX, least=0)


@value_class
class Stats(Request):
    """Asks for the counts of the work queue, by the names that its states have there."""


# --- from the broker itself -------------------------------------------------------------------


@value_class
class ForwardSettled:
    """The answer to a ``Forward``: no code when the other topic has the message.

    ``counted``: the refusal was of this one message, and is what that number gets from now on.
    """

    number: int
    code: str | None = None
    detail: str = ""
    counted: bool = False


Command = (
    Publish
    | AwaitReceipts
    | Subscribe
    | CreateReceiver
    | SetInterests
    | Unsubscribe
    | Grant
    | Pull
    | CancelWait
    | Report
    | Extend
    | Detach
    | Suspend
    | ListReceivers
    | DeleteReceiver
    | Seek
    | Configure
    | Describe
    | Clear
    | ListParked
    | Renew
    | Abandon
    | RenewAll
    | AbandonAll
    | Draft
    | SetDraft
    | Order
    | Fetch
    | Complete
    | Fail
    | Stats
    | ForwardSettled
)


def _settings(changes: object) -> None:
    if not isinstance(changes, Mapping) or len(changes) > SETTINGS_MAX:
        raise PeerError("bad_request", f"settings are a map of at most {SETTINGS_MAX}")
    for name in changes:
        checks.text("a setting's name", name, limits.NAME_BYTES_MAX)


def _holding(value: object) -> None:
    if type(value) is not tuple or len(value) != 3:
        raise PeerError("bad_request", "holding has sessions, sequences and attempts")
    sessions, sequences, attempts = value
    for session in checks.tuple_of("sessions", sessions, limits.HOLDING_SESSIONS_MAX):
        checks.octets("a session", session, 1, limits.NODE_BYTES_MAX)
    for numbers in (sequences, attempts):
        checks.tuple_of("holding", numbers, limits.HOLDING_MAX, least=0)
        if not set(map(type, numbers)) <= {int}:
            raise PeerError("bad_request", "sequences and attempts are whole numbers")
    if len(sequences) != len(attempts):
        raise PeerError("bad_request", "sequences and attempts differ in length")


def _endpoint(value: object) -> None:
    if type(value) is not int or not 0 <= value <= 2**32 - 1:
        checks.whole("endpoint", value, 0, 2**32 - 1)


def _sequence(value: object) -> None:
    checks.whole("sequence", value, 0, limits.SEQUENCE_MAX)


def _numbers(name: str, values: object) -> None:
    most = limits.SEQUENCE_MAX
    for value in checks.tuple_of(name, values, limits.BATCH_MESSAGES_MAX):
        if type(value) is not int or not 0 <= value <= most:
            checks.whole(name, value, 0, most)


def _interests(values: object) -> None:
    many = 0
    for interest in checks.tuple_of("interests", values, limits.INTERESTS_MAX, "bad_interest"):
        many += split_interest(interest).count(MANY)
    if many > limits.MANY_MAX:
        raise PeerError("bad_interest", f"the interests have ** over {limits.MANY_MAX} times")


def _timeouts(sent_ms: object, received_ms: object) -> None:
    # With no time at all a delivery would come back and go out again for ever, in one turn each.
    checks.maybe_whole("sent_timeout_ms", sent_ms, 1, limits.TIME_MS_MAX)
    checks.maybe_whole("received_timeout_ms", received_ms, 1, limits.TIME_MS_MAX)
