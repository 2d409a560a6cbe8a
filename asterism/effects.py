"""What a topic wants done: answers, deliveries, receipts, forwards.

Writes are not here: a topic collects them in its ``Rows``, and the host commits those, synced,
before it performs any effect of the same turn. Effects leave in the order they were returned, so
that a client that sees its answer has been sent what the command caused.
"""

from dataclasses import field
from typing import Any, NamedTuple, TypeAlias

from asterism.errors import ERRORS
from asterism.values import value_class


class Refusal(NamedTuple):
    """Why one message of a batch was refused."""

    code: str
    detail: str


# One message as a receiver gets it: sequence, attempt, id, header, payload; the last two are the
# publisher's bytes. A named tuple would take twice as long to make, and one is made per delivery.
Delivered: TypeAlias = tuple[int, int, bytes, bytes, bytes]


@value_class
class Accepted:
    """The answer to ``Publish``: for each message its sequence, or why it was refused."""

    node: bytes
    request: int
    results: tuple[int | Refusal, ...]


@value_class
class Reply:
    """The answer to any other request."""

    node: bytes
    request: int
    body: dict[str, Any] = field(default_factory=dict)


@value_class
class Refuse:
    """A request was refused, and nothing of it was done."""

    node: bytes
    request: int
    code: str
    detail: str = ""
    retry_after_ms: int | None = None

    def __post_init__(self) -> None:
        assert self.code in ERRORS


@value_class
class Deliver:
    """Deliveries for one endpoint, in order."""

    node: bytes
    endpoint: int
    receiver: str
    deliveries: list[Delivered]


@value_class
class EndpointGone:
    """The endpoint is off the topic by the broker's doing; the code says why."""

    node: bytes
    endpoint: int
    code: str


@value_class
class Resolved:
    """A receipt: how a message ended, to the node where its producer was last seen."""

    node: bytes | None
    producer: bytes
    number: int
    verdict: str
    statuses: dict[str, str]


@value_class
class Forward:
    """Publish this to another topic, as message ``count`` of ``producer``, and settle it here.

    ``number`` is for the ``ForwardSettled`` that answers it; ``settled`` goes into the publish.
    """

    number: int
    target: str
    producer: bytes
    count: int
    settled: int
    message: tuple[bytes, bytes, bytes]


Effect = Accepted | Reply | Refuse | Deliver | EndpointGone | Resolved | Forward
