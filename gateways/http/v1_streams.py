"""Subscribing under ``/v1``: server-sent events, and a WebSocket that also takes reports.

A subscription lives as long as its connection: a client that hangs up unsubscribes at once, and
what it held and did not finish goes to others.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Final

from asterism import checks
from asterism.errors import PeerError
from asterism.gateways.http.protocol import (
    STALLED_S,
    Receive,
    RefusedError,
    Request,
    Response,
    Send,
    refusal_of,
    with_code,
)
from asterism.gateways.http.queues import TIMEOUT_S
from asterism.gateways.http.v1_deliveries import reported, told
from asterism.gateways.http.v1_input import Query, fields_of, reports_of
from asterism.sdk.aio import Inbox, Node

STREAMS_MAX: Final = 4_096  # subscriptions through one process; the next is refused with busy
CREDIT: Final = 256  # deliveries out at a time, unless a client says otherwise
CREDIT_MAX: Final = 10_000  # they may all lie in this process, for a client that is slow
BATCH_MAX: Final = 32  # deliveries written at a time
KEEP_ALIVE_S: Final = 15.0
CLOSE_S: Final = 5.0
OVER: Final = 1011  # why a WebSocket is closed: the broker has ended the subscription
EVENT_STREAM: Final = "text/event-stream"
QUERY: Final = (
    *("interest", "name", "group", "durable", "credit", "auto"),
    *("sent_timeout", "received_timeout"),
)


class Streams:
    """The subscriptions of all clients."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._open = 0

    async def events(self, request: Request) -> Response:
        """Subscribes; the answer goes on for as long as the client reads it."""
        query = Query(request, *QUERY)
        auto = bool(query.flag("auto"))
        feed = Feed(self, await self.subscribe(request, query), auto)
        headers = ((b"x-accel-buffering", b"no"),)  # a proxy would keep what is to be read now
        return Response(200, media=EVENT_STREAM, headers=headers, stream=feed)

    async def socket(self, request: Request, receive: Receive, send: Send) -> None:
        """Subscribes, and talks with the client until it hangs up."""
        query = Query(request, *QUERY)
        auto = bool(query.flag("auto"))
        inbox = await self.subscribe(request, query)
        try:
            # What is written to a client that has hung up, or reads nothing, fails.
            with contextlib.suppress(OSError):
                await send({"type": "websocket.accept"})
                await Conversation(self._node, inbox, auto, receive, send).run()
        finally:
            await self.leave(inbox)

    async def subscribe(self, request: Request, query: Query) -> Inbox:
        if self._open >= STREAMS_MAX:
            raise PeerError("busy", f"{STREAMS_MAX} clients are subscribed through this process")
        credit = query.whole("credit")
        self._open += 1
        try:
            return await self._node.subscribe(
                request.names["topic"],
                *query.many("interest"),
                name=query.text("name"),
                group=query.text("group"),
                durable=query.flag("durable"),
                credit=CREDIT if credit is None else checks.whole("credit", credit, 0, CREDIT_MAX),
                sent_timeout=query.number("sent_timeout"),
                received_timeout=query.number("received_timeout"),
                timeout=TIMEOUT_S,
            )
        except BaseException:
            self._open -= 1
            raise

    async def leave(self, inbox: Inbox) -> None:
        self._open -= 1
        with contextlib.suppress(PeerError, TimeoutError, ConnectionError):
            await inbox.close(CLOSE_S)


class Feed:
    """The deliveries of one subscription as server-sent events."""

    def __init__(self, streams: Streams, inbox: Inbox, auto: bool) -> None:
        self._streams = streams
        self._inbox = inbox
        self._auto = auto

    async def pieces(self) -> AsyncIterator[bytes]:
        inbox = self._inbox
        yield _event("subscribed", {"topic": inbox.topic, "receiver": inbox.receiver})
        while True:
            try:
                batch = await inbox.batch(BATCH_MAX, KEEP_ALIVE_S)
            except (PeerError, ConnectionError) as error:
                yield _event("error", failure_of(error))
                return
            if not batch:
                yield b": still here\n\n"
                continue
            yield b"".join(
                _event("message", told(delivery), delivery.sequence) for delivery in batch
            )
            if self._auto:  # they are written by now
                await inbox.processed(batch)

    async def close(self) -> None:
        await self._streams.leave(self._inbox)


def _event(kind: str, value: dict[str, Any], number: int | None = None) -> bytes:
    head = f"event: {kind}\n" + ("" if number is None else f"id: {number}\n")
    return f"{head}data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


class Conversation:
    """One WebSocket: deliveries go out; reports and credit come in."""

    def __init__(self, node: Node, inbox: Inbox, auto: bool, receive: Receive, send: Send) -> None:
        self._node = node
        self._inbox = inbox
        self._auto = auto
        self._receive = receive
        self._send = send
        self._writing = asyncio.Lock()
        self._credit = 0  # beyond what it began with

    async def run(self) -> None:
        """Until the client hangs up, or the subscription is over."""
        inbox = self._inbox
        await self._say("subscribed", {"topic": inbox.topic, "receiver": inbox.receiver})
        tasks = [asyncio.ensure_future(self._deliver()), asyncio.ensure_future(self._listen())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _say(self, event: str, value: dict[str, Any]) -> None:
        async with self._writing, asyncio.timeout(STALLED_S):
            text = json.dumps({"event": event, **value}, separators=(",", ":"))
            await self._send({"type": "websocket.send", "text": text})

    async def _deliver(self) -> None:
        while True:
            try:
                batch = await self._inbox.batch(BATCH_MAX, None)
            except (PeerError, ConnectionError) as error:
                await self._say("error", failure_of(error))
                await self._send({"type": "websocket.close", "code": OVER})
                return
            for delivery in batch:
                await self._say("message", told(delivery))
            if self._auto:
                await self._inbox.processed(batch)

    async def _listen(self) -> None:
        while True:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return
            data = event.get("text") or event.get("bytes") or b""
            try:
                await self._take(data.encode() if isinstance(data, str) else data)
            except (RefusedError, PeerError, TimeoutError, ConnectionError) as error:
                await self._say("error", failure_of(error))

    async def _take(self, data: bytes) -> None:
        request = Request("POST", (), {b"content-type": b"application/json"}, data)
        body = fields_of("a frame", request.json(), ("received", "processed", "failed", "credit"))
        reports = reports_of(body)
        if body.get("credit") is not None:
            more = checks.whole("credit", body["credit"], 1, CREDIT_MAX - self._credit)
            self._credit += more
            await self._node.grant(self._inbox, more)
        if reports:
            inbox = self._inbox
            refused = await reported(self._node, inbox.topic, inbox.receiver, reports)
            await self._say("reported", {"refused": refused})


def failure_of(error: Exception) -> dict[str, Any]:
    """What went wrong, as it is told to somebody who is connected already."""
    if isinstance(error, PeerError):
        error = refusal_of(error)
    if isinstance(error, RefusedError):
        return {"code": with_code(error).code, "message": error.message}
    return {"code": "busy", "message": f"the broker does not answer: {error}"}
