"""Publishing under ``/v1``: one message or many, and what became of each."""

import asyncio
import re
import secrets
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from asterism import checks, limits
from asterism.errors import PeerError
from asterism.gateways.http.protocol import RefusedError, Request, Response, json_of, refusal_of
from asterism.gateways.http.queues import TIMEOUT_S
from asterism.gateways.http.v1_input import Query, body_of, seconds_within, texts
from asterism.gateways.http.v1_messages import (
    QUERY_WISHES,
    Sent,
    common_wishes,
    listed,
    raw_message,
)
from asterism.sdk.aio import Message, Node, Once, Outcome, Receipt
from asterism.sdk.arguments import ARGUMENT_ERRORS
from asterism.sdk.composing import Wishes, make_header
from asterism.sdk.connection import clock_ms
from asterism.sdk.tickets import UNKNOWN

BODY_BYTES_MAX: Final = 16 * 1_048_576  # many messages in one body, or a large one in base64
RESOLVED_S_MAX: Final = 300.0
RECEIPTS_MAX: Final = 1_000  # asked for in one request
KEY: Final = b"idempotency-key"
KEY_BYTES_MAX: Final = 255
RECEIPT: Final = re.compile(r"([0-9a-f]{32})-([0-9]{1,19})-([0-9]{1,19})")


class Accepted(NamedTuple):
    """A message that the topic has; with a receipt, where one was asked for."""

    sequence: int
    id: bytes
    receipt: str | None = None
    outcome: Outcome | None = None


Fate = Accepted | PeerError


class Publishing:
    """What publishers ask."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def publish(self, request: Request) -> Response:
        query = Query(request, "resolved", *QUERY_WISHES)
        common = common_wishes(query)
        if request.media == "application/json":
            messages = listed(body_of(request, "messages"), common)
        else:
            messages = [raw_message(request, common)]
        wait = query.number("resolved")
        if wait is not None:
            seconds_within("resolved", wait, RESOLVED_S_MAX)
        for _, wishes in messages:
            # By default it is for those who wait: receipts cost the broker something.
            wishes["receipt"] = bool(wishes.get("receipt", wait is not None))
        producer = _producer_of(request)
        if producer is None and any(wishes["receipt"] for _, wishes in messages):
            producer = secrets.token_bytes(limits.PRODUCER_ID_BYTES)
        topic = request.names["topic"]
        if producer is None:
            return _answer(await self._publish(topic, messages), False)
        fates = await self._publish_once(topic, producer, messages)
        if wait is not None:
            fates = await self._resolved(topic, producer, fates, wait)
        return _answer(fates, KEY in request.headers)

    # --- by the client's own producer, which is fast ----------------------------------------

    async def _publish(self, topic: str, messages: list[Sent]) -> list[Fate]:
        """Sends all of them, and waits until each is accepted or refused."""
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        sent = [await self._send(topic, payload, wishes) for payload, wishes in messages]
        return [await _accepted(receipt, deadline) for receipt in sent]

    async def _send(self, topic: str, payload: bytes, wishes: Wishes) -> Receipt | PeerError:
        try:
            return await self._node.send(topic, payload, timeout=TIMEOUT_S, **wishes)
        except PeerError as error:
            return error
        except ARGUMENT_ERRORS as error:
            return error.refusal

    # --- by a producer of this request alone, which anybody may ask for again ----------------

    async def _publish_once(self, topic: str, producer: bytes, messages: list[Sent]) -> list[Fate]:
        """Sends those that can be sent, and tells what became of each.

        They are numbered in order, without those that cannot: the same body has the same numbers.
        """
        checks.topic_name(topic)
        now_ms = clock_ms()
        wrong = [_wrong(topic, now_ms, wishes) for _, wishes in messages]
        good = [
            Message(payload, **wishes)
            for (payload, wishes), error in zip(messages, wrong, strict=True)
            if error is None
        ]
        done: list[Once] = []
        if good:
            done = await self._node.publish_once(topic, producer, good, timeout=TIMEOUT_S)
        coming = iter(zip(done, good, strict=True))
        return [_fate(producer, *next(coming)) if error is None else error for error in wrong]

    async def _resolved(
        self, topic: str, producer: bytes, fates: list[Fate], wait: float
    ) -> list[Fate]:
        """Waits for the verdicts, all together so long."""
        awaited = {
            read_receipt(fate.receipt)[1]: fate.sequence
            for fate in fates
            if isinstance(fate, Accepted) and fate.receipt is not None
        }
        if not awaited:
            return fates
        found = await self._node.outcomes(topic, producer, awaited, wait, timeout=TIMEOUT_S)
        return [
            fate._replace(outcome=found.get(read_receipt(fate.receipt)[1]))
            if isinstance(fate, Accepted) and fate.receipt is not None
            else fate
            for fate in fates
        ]

    # --- receipts that are fetched later ----------------------------------------------------

    async def receipt(self, request: Request) -> Response:
        query = Query(request, "wait")
        wait = seconds_within("wait", query.number("wait") or 0.0, RESOLVED_S_MAX)
        (told,) = await self._receipts(request, [request.names["receipt"]], wait)
        return json_of(told)

    async def receipts(self, request: Request) -> Response:
        body = body_of(request, "receipts", "wait")
        asked = texts("receipts", body.get("receipts"), RECEIPTS_MAX)
        wait = seconds_within("wait", body.get("wait", 0), RESOLVED_S_MAX)
        return json_of({"receipts": await self._receipts(request, list(asked), wait)})

    async def _receipts(
        self, request: Request, asked: list[str], wait: float
    ) -> list[dict[str, Any]]:
        topic = request.names["topic"]
        by_producer: dict[bytes, dict[int, int]] = {}
        for receipt in asked:
            producer, number, sequence = read_receipt(receipt)
            by_producer.setdefault(producer, {})[number] = sequence
        answers = await asyncio.gather(
            *(
                self._node.outcomes(topic, producer, numbers, wait, timeout=TIMEOUT_S)
                for producer, numbers in by_producer.items()
            )
        )
        found = dict(zip(by_producer, answers, strict=True))
        told = []
        for receipt in asked:
            producer, number, sequence = read_receipt(receipt)
            outcome = found[producer].get(number)
            told.append({"receipt": receipt, "sequence": sequence, **_verdict(outcome)})
        return told


def _producer_of(request: Request) -> bytes | None:
    """Who publishes, where the client has said by a key which request this is."""
    key = request.headers.get(KEY)
    if key is None:
        return None
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise RefusedError(400, f"an Idempotency-Key has 1 to {KEY_BYTES_MAX} bytes")
    return blake2b(key, digest_size=limits.PRODUCER_ID_BYTES, person=b"idempotency-key").digest()


def _wrong(topic: str, now_ms: int, wishes: Wishes) -> PeerError | None:
    """Why a message cannot be sent."""
    try:
        make_header(topic, now_ms, **wishes)
    except PeerError as error:
        return error
    return None


def _fate(producer: bytes, once: Once, message: Message) -> Fate:
    if isinstance(once.result, PeerError):
        return once.result
    receipt = f"{producer.hex()}-{once.number}-{once.result}" if message.wishes["receipt"] else None
    return Accepted(once.result, once.id, receipt)


def read_receipt(receipt: str) -> tuple[bytes, int, int]:
    """Producer, number and sequence of a message by its receipt."""
    found = RECEIPT.fullmatch(receipt)
    if found is None or max(int(found[2]), int(found[3])) > limits.SEQUENCE_MAX:
        raise RefusedError(400, f"{checks.shown(receipt)} is not a receipt that this service gave")
    return bytes.fromhex(found[1]), int(found[2]), int(found[3])


async def _accepted(receipt: Receipt | PeerError, deadline: float) -> Fate:
    if isinstance(receipt, PeerError):
        return receipt
    try:
        left_s = max(deadline - asyncio.get_running_loop().time(), 0)
        await receipt.accepted(left_s)
        return Accepted(receipt.sequence, receipt.id)
    except PeerError as error:
        return error
    except TimeoutError as error:
        return PeerError("busy", str(error))


# --- what is answered ---------------------------------------------------------------------------


def _answer(fates: list[Fate], has_key: bool) -> Response:
    """200 if all were accepted, 207 if some, else the status of the first refusal."""
    refused = [fate for fate in fates if isinstance(fate, PeerError)]
    told: dict[str, Any] = {"results": [_result(fate) for fate in fates]}
    if not refused:
        return json_of(told)
    if len(refused) < len(fates):
        return json_of(told)._replace(status=207)
    first = refusal_of(refused[0])
    if has_key and first.status == 503:  # the same again would get the same answer
        again = "Nothing was stored, and with this key it stays so: try again with another."
        first = RefusedError(409, f"{first.message} {again}", (), first.code)
    body = {"code": first.code, "message": first.message, **told}
    return json_of(body)._replace(status=first.status, headers=first.headers)


def _result(fate: Fate) -> dict[str, Any]:
    if isinstance(fate, PeerError):
        return {"code": fate.code, "message": refusal_of(fate).message}
    told: dict[str, Any] = {"sequence": fate.sequence, "id": fate.id.hex()}
    if fate.receipt is not None:
        told["receipt"] = fate.receipt
    return told if fate.outcome is None else {**told, **_verdict(fate.outcome)}


def _verdict(outcome: Outcome | None) -> dict[str, Any]:
    verdict, statuses = outcome or Outcome(UNKNOWN, {})
    return {"verdict": verdict, "statuses": statuses}
