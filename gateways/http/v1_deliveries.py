"""Deliveries under ``/v1``: pulled, and reported on with another request.

What a client pulled is addressed by its receiver's name from then on: it stays out until its
deadline or its report, through whichever process that comes.
"""

import base64
import json
from typing import Any, Final

from asterism import checks, limits
from asterism.gateways.http.protocol import Request, Response, json_of
from asterism.gateways.http.queues import TIMEOUT_S
from asterism.gateways.http.v1_input import Report, body_of, reports_of, seconds_within, texts
from asterism.sdk.aio import Delivery, Node
from asterism.settings import TIMEOUT_MS_MAX

PULL_MAX: Final = 1_000  # deliveries in one answer: it is made in memory
PULL_DEFAULT: Final = 100
WAIT_S_MAX: Final = 300.0


class Deliveries:
    """What is asked by those who receive, one request at a time."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def pull(self, request: Request) -> Response:
        body = body_of(request, "max", "wait", "interests")
        most = checks.whole("max", body.get("max", PULL_DEFAULT), 1, PULL_MAX)
        wait = seconds_within("wait", body.get("wait", 0), WAIT_S_MAX)
        interests = None
        if body.get("interests") is not None:
            interests = texts("interests", body["interests"], limits.INTERESTS_MAX)
        topic, receiver = _named(request)
        pulled = await self._node.pull(
            topic, receiver, most, wait, interests=interests, timeout=TIMEOUT_S
        )
        return json_of({"deliveries": [told(delivery) for delivery in pulled]})

    async def give_back(self, request: Request, response: Response) -> None:
        """A client hung up in the very moment that its pull was answered: nobody has it."""
        pulled = json.loads(response.body)["deliveries"]
        sequences = [held["sequence"] for held in pulled if held["expect"] != "sent"]
        if sequences:
            await self._node.extend(*_named(request), sequences, 0, timeout=TIMEOUT_S)

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
    """A delivery as JSON can hold it."""
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
