"""Subscribing under ``/v1``: server-sent events, and a WebSocket that also takes reports.

A subscription lives as long as its connection: a client that hangs up unsubscribes at once, and
what it held and did not finish goes to others.

Messages that clients have not read yet are held in this process, ``UNREAD_BYTES_MAX`` at most for
all clients together. Past that it cuts the clients for which it holds the most, and first those
that have read nothing since it last looked.
"""

import asyncio
import contextlib
import json
import logging
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
from asterism.sdk import arguments
from asterism.sdk.aio import Delivery, Inbox, Node
from asterism.sdk.arguments import ARGUMENT_ERRORS
from asterism.sdk.connection import MAX_LEASE

STREAMS_MAX: Final = 4_096  # subscriptions through one process; the next is refused with busy
CREDIT: Final = 256  # deliveries out at a time, unless a client says otherwise
CREDIT_MAX: Final = 10_000  # they may all lie in this process, for a client that is slow
BATCH_MAX: Final = 32  # deliveries taken at a time
PIECE_BYTES: Final = 65_536  # of server-sent events are written at a time, or one that is larger
UNREAD_BYTES_MAX: Final = 64 * 1_048_576  # of payloads that wait here for all clients together
LOOK_S: Final = 0.05  # between looks how much that is
KEEP_ALIVE_S: Final = 15.0
CLOSE_S: Final = 5.0
OVER: Final = 1011  # why a WebSocket is closed: the broker has ended the subscription
EVENT_STREAM: Final = "text/event-stream"
QUERY: Final = (
    *("interest", "name", "group", "durable", "credit", "auto"),
    *("sent_timeout", "received_timeout"),
)
log = logging.getLogger("asterism.http")


class Writer:
    """Writes the deliveries of one subscription to its client."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.written = 0  # how many deliveries
        self._taken_bytes = 0  # of those that are taken and not written yet
        self._task: asyncio.Task[Any] | None = None  # that writes them

    @property
    def unread_bytes(self) -> int:
        return self.inbox.waiting_bytes + self._taken_bytes

    async def next(self, timeout: float | None) -> list[Delivery]:
        """The next deliveries to write, none after that time."""
        self._task = asyncio.current_task()
        try:
            batch = await self.inbox.batch(BATCH_MAX, timeout)
        except TimeoutError:
            batch = []
        self._taken_bytes = sum(len(delivery.payload) for delivery in batch)
        return batch

    def wrote(self, delivery: Delivery) -> None:
        self.written += 1
        self._taken_bytes -= len(delivery.payload)

    def cut(self) -> None:
        """Ends the subscription, and the connection with it."""
        if self._task is not None:
            self._task.cancel()


class Streams:
    """The subscriptions of all clients."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._open = 0
        self._writers: dict[Writer, int] = {}  # with how many it had written at the last look
        self._looking: asyncio.Task[None] | None = None

    async def events(self, request: Request) -> Response:
        """Subscribes; the answer goes on for as long as the client reads it."""
        query = Query(request, *QUERY)
        auto = bool(query.flag("auto"))
        feed = Feed(self, await self.subscribe(request, query), auto)
        self._watch(feed)
        headers = ((b"x-accel-buffering", b"no"),)  # a proxy would keep what is to be read now
        return Response(200, media=EVENT_STREAM, headers=headers, stream=feed)

    async def socket(self, request: Request, receive: Receive, send: Send) -> None:
        """Subscribes, and talks with the client until it hangs up."""
        query = Query(request, *QUERY)
        auto = bool(query.flag("auto"))
        inbox = await self.subscribe(request, query)
        talk = Conversation(self._node, inbox, auto, receive, send)
        try:
            # What is written to a client that has hung up, or reads nothing, fails.
            with contextlib.suppress(OSError):
                await send({"type": "websocket.accept"})
                self._watch(talk)
                await talk.run()
        finally:
            await self.leave(talk)

    async def subscribe(self, request: Request, query: Query) -> Inbox:
        if self._open >= STREAMS_MAX:
            raise PeerError("busy", f"{STREAMS_MAX} clients are subscribed through this process")
        credit = query.whole("credit")
        name, group = query.text("name"), query.text("group")
        if name is not None and group is not None:
            raise PeerError("bad_request", "a receiver has a name or a group, not both")
        self._open += 1
        try:
            return await self._node.subscribe(
                request.names["topic"],
                *query.many("interest"),
                name=name,
                group=group,
                durable=query.flag("durable"),
                credit=CREDIT if credit is None else checks.whole("credit", credit, 0, CREDIT_MAX),
                sent_timeout=query.number("sent_timeout"),
                received_timeout=query.number("received_timeout"),
                max_lease=MAX_LEASE,  # a client that is connected keeps what it holds
                timeout=TIMEOUT_S,
            )
        except BaseException:
            self._open -= 1
            raise

    async def leave(self, writer: Writer) -> None:
        self._open -= 1
        self._writers.pop(writer, None)
        with contextlib.suppress(PeerError, TimeoutError, ConnectionError):
            await writer.inbox.close(CLOSE_S)

    def _watch(self, writer: Writer) -> None:
        self._writers[writer] = 0
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look_on())

    async def _look_on(self) -> None:
        while self._writers:
            await asyncio.sleep(LOOK_S)
            self._look()

    def _look(self) -> None:
        """Cuts clients until what the others have not read is within the bound."""
        unread = {writer: writer.unread_bytes for writer in self._writers}
        excess = sum(unread.values()) - UNREAD_BYTES_MAX
        if excess > 0:
            rank = sorted(
                unread,
                key=lambda writer: (writer.written == self._writers[writer], unread[writer]),
                reverse=True,
            )
            for writer in rank:
                if excess <= 0:
                    break
                log.warning("cuts a client that does not read its stream")
                del self._writers[writer]
                writer.cut()
                excess -= unread[writer]
        for writer in self._writers:
            self._writers[writer] = writer.written


class Feed(Writer):
    """The deliveries of one subscription as server-sent events."""

    def __init__(self, streams: Streams, inbox: Inbox, auto: bool) -> None:
        super().__init__(inbox)
        self._streams = streams
        self._auto = auto

    async def pieces(self) -> AsyncIterator[bytes]:
        inbox = self.inbox
        yield _event("subscribed", {"topic": inbox.topic, "receiver": inbox.receiver})
        while True:
            try:
                batch = await self.next(KEEP_ALIVE_S)
            except (PeerError, ConnectionError) as error:
                yield _event("error", failure_of(error))
                return
            if not batch:
                yield b": still here\n\n"
                continue
            piece = b""
            for delivery in batch:
                piece += _event("message", told(delivery), delivery.sequence)
                if len(piece) >= PIECE_BYTES:
                    yield piece
                    piece = b""
                self.wrote(delivery)
            if piece:
                yield piece
            if self._auto:  # they are written by now
                await inbox.processed(batch)

    async def close(self) -> None:
        await self._streams.leave(self)


def _event(kind: str, value: dict[str, Any], number: int | None = None) -> bytes:
    head = f"event: {kind}\n" + ("" if number is None else f"id: {number}\n")
    return f"{head}data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


class Conversation(Writer):
    """One WebSocket: deliveries go out; reports and credit come in."""

    def __init__(self, node: Node, inbox: Inbox, auto: bool, receive: Receive, send: Send) -> None:
        super().__init__(inbox)
        self._node = node
        self._auto = auto
        self._receive = receive
        self._send = send
        self._writing = asyncio.Lock()
        self._credit = 0  # beyond what it began with

    async def run(self) -> None:
        """Until the client hangs up, or the subscription is over."""
        inbox = self.inbox
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
                batch = await self.next(None)
            except (PeerError, ConnectionError) as error:
                await self._say("error", failure_of(error))
                await self._send({"type": "websocket.close", "code": OVER})
                return
            for delivery in batch:
                await self._say("message", told(delivery))
                self.wrote(delivery)
            if self._auto:
                await self.inbox.processed(batch)

    async def _listen(self) -> None:
        while True:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return
            data = event.get("text") or event.get("bytes") or b""
            try:
                await self._take(data.encode() if isinstance(data, str) else data)
            except (
                RefusedError,
                PeerError,
                *ARGUMENT_ERRORS,
                TimeoutError,
                ConnectionError,
            ) as error:
                await self._say("error", failure_of(error))

    async def _take(self, data: bytes) -> None:
        request = Request("POST", (), {b"content-type": b"application/json"}, data)
        body = fields_of("a frame", request.json(), ("received", "processed", "failed", "credit"))
        reports = reports_of(body)
        if body.get("credit") is not None:
            more = checks.whole("credit", body["credit"], 1, CREDIT_MAX - self._credit)
            self._credit += more
            self.inbox.grant(more)
        if reports:
            inbox = self.inbox
            refused = await reported(self._node, inbox.topic, inbox.receiver, reports)
            for report in reports:
                if report.status != "received":
                    inbox.let_go(report.sequences)
            await self._say("reported", {"refused": refused})


def failure_of(error: Exception) -> dict[str, Any]:
    """What went wrong, as it is told to somebody who is connected already."""
    if isinstance(error, (PeerError, *ARGUMENT_ERRORS)):
        error = refusal_of(arguments.refusal_of(error))
    if isinstance(error, RefusedError):
        return {"code": with_code(error).code, "message": error.message}
    return {"code": "busy", "message": f"the broker does not answer: {error}"}
