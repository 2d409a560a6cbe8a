"""Deliveries under ``/v1``: pulled, and reported on with another request.

What a client pulled is addressed by its receiver's name from then on: it stays out until its
deadline or its report, through whichever process that comes.
"""

import asyncio
import base64
import logging
import time
from typing import Any, Final

from asterism import checks, limits
from asterism.errors import PeerError
from asterism.gateways.http.protocol import Request, Response, json_of
from asterism.gateways.http.queues import TIMEOUT_S, if_there
from asterism.gateways.http.v1_input import Report, body_of, reports_of, seconds_within, texts
from asterism.sdk.aio import Delivery, Node
from asterism.settings import TIMEOUT_MS_MAX

PULL_MAX: Final = 1_000  # deliveries in one answer: it is made in memory
PULL_DEFAULT: Final = 100
PULL_BYTES_MAX: Final = 16 * 1_048_576  # of payloads in one answer, but for the last of them
WAIT_S_MAX: Final = 300.0
KNOWN_S: Final = 10.0  # for so long a setting of a topic that was asked for is taken as it was
TOPICS_KNOWN_MAX: Final = 10_000
log = logging.getLogger("asterism.http")


class Deliveries:
    """What is asked by those who receive, one request at a time."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._payload_max: dict[str, tuple[int, float]] = {}  # by topic, and until when it holds
        self._giving: set[asyncio.Future[None]] = set()  # back, what nobody has got

    async def pull(self, request: Request) -> Response:
        body = body_of(request, "max", "max_bytes", "wait", "interests")
        most = checks.whole("max", body.get("max", PULL_DEFAULT), 1, PULL_MAX)
        most_bytes = checks.whole(
            "max_bytes", body.get("max_bytes", PULL_BYTES_MAX), 1, PULL_BYTES_MAX
        )
        wait = seconds_within("wait", body.get("wait", 0), WAIT_S_MAX)
        interests = None
        if body.get("interests") is not None:
            interests = texts("interests", body["interests"], limits.INTERESTS_MAX)
        topic, receiver = _named(request)
        largest = await self._largest(topic)
        pulled: list[Delivery] = []
        try:
            while most and most_bytes > 0:
                # No more than surely fit: what came too much could not be taken back unharmed.
                count = min(most, max(most_bytes // largest, 1))
                more = await self._node.pull(
                    topic, receiver, count, wait, interests=interests, timeout=TIMEOUT_S
                )
                pulled += more
                if len(more) < count:
                    break
                most -= count
                most_bytes -= sum(len(delivery.payload) for delivery in more)
                wait = 0
        except (PeerError, TimeoutError, ConnectionError):
            if not pulled:
                raise
        except asyncio.CancelledError:  # the client has hung up between two pulls
            self._give_up(topic, receiver, pulled)
            raise
        return json_of({"deliveries": [told(delivery) for delivery in pulled]})

    async def _largest(self, topic: str) -> int:
        """The bytes that a payload of a topic may have; asked now and then."""
        now_s = time.monotonic()
        known, until_s = self._payload_max.get(topic, (0, 0.0))
        if now_s < until_s:
            return known
        found = await if_there(self._node.query("describe", topic, timeout=TIMEOUT_S))
        largest = max(int(found["settings"]["max_payload"]), 1) if found else 1_048_576
        if len(self._payload_max) >= TOPICS_KNOWN_MAX:
            self._payload_max.clear()
        self._payload_max[topic] = (largest, now_s + KNOWN_S)
        return largest

    def _give_up(self, topic: str, receiver: str, pulled: list[Delivery]) -> None:
        sequences = [held.sequence for held in pulled if held.expect != "sent"]
        if sequences:
            giving = asyncio.ensure_future(self._give_back(topic, receiver, sequences))
            self._giving.add(giving)
            giving.add_done_callback(self._giving.discard)

    async def _give_back(self, topic: str, receiver: str, sequences: list[int]) -> None:
        try:
            await self._node.extend(topic, receiver, sequences, 0, timeout=TIMEOUT_S)
        except (PeerError, TimeoutError, ConnectionError) as error:
            log.info("what was pulled from %s comes back in its time: %s", topic, error)

    async def report(self, request: Request) -> Response:
        reports = reports_of(body_of(request, "received", "processed", "failed"))
        topic, receiver = _named(request)
        return json_of({"refused": await reported(self._node, topic, receiver, reports)})

    async def extend(self, request: Request) -> Response:
        body = body_of(request, "sequences", "seconds")
        sequences = checks.tuple_of("sequences", body.get("sequences"), limits.BATCH_MESSAGES_MAX)
        numbers = [checks.whole("sequence", held, 0, limits.SEQUENCE_MAX) for held in sequences]
        seconds = seconds_within("seconds", body.get("seconds"), TIMEOUT_MS_MAX / 1_000)
        refused = await self._node.extend(*_named(request), numbers, seconds, timeout=TIMEOUT_S)
        return json_of(
            {"refused": [{"sequence": held, "code": code} for held, code in refused.items()]}
        )


async def reported(
    node: Node, topic: str, receiver: str, reports: list[Report]
) -> list[dict[str, Any]]:
    """Reports for a receiver; those that do not count, and why."""
    found = []
    for report in reports:
        refused = await node.report(
            topic,
            receiver,
            report.status,
            report.sequences,
            report.reason,
            attempts=report.attempts or None,
            timeout=TIMEOUT_S,
        )
        found += [
            {"sequence": sequence, "status": report.status, "code": code}
            for sequence, code in refused.items()
        ]
    return found


def told(delivery: Delivery) -> dict[str, Any]:
    """A delivery as JSON can hold it; with ``reply_to`` where it wants an answer."""
    target = delivery.reply_to
    wanted = {} if target is None else {"reply_to": {"topic": target[0], "subject": target[1]}}
    return {
        "sequence": delivery.sequence,
        "attempt": delivery.attempt,
        "id": delivery.id.hex(),
        "topic": delivery.topic,
        "receiver": delivery.receiver,
        "subjects": delivery.subjects,
        "attributes": delivery.attributes,
        "mode": delivery.mode,
        "expect": delivery.expect,
        **wanted,
        **contents_of(delivery.payload),
    }


def contents_of(payload: bytes) -> dict[str, str]:
    """A payload in base64 and, where it is text, as that too."""
    encoded = {"payload_base64": base64.b64encode(payload).decode()}
    try:
        return {**encoded, "payload": payload.decode()}
    except UnicodeDecodeError:
        return encoded


def _named(request: Request) -> tuple[str, str]:
    topic, receiver = request.names["topic"], request.names["receiver"]
    return topic, checks.text("receiver", receiver, limits.NAME_BYTES_MAX)
