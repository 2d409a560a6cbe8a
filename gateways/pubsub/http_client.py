"""Posts requests to one URL over HTTP/1.1, and returns the status of each answer.

Connections are kept for the next request. The status is the first that the server sends, also where
that is 102: push endpoints answer by it, and clients of HTTP wait for another behind it.
"""

import asyncio
import contextlib
import ssl
from functools import cache
from typing import Final
from urllib.parse import urlsplit

import h11

CONNECT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 1_048_576  # of an answer that is read, to keep the connection
HEAD_BYTES_MAX: Final = 65_536
READ_BYTES: Final = 65_536
KEPT_S: Final = 30.0  # that an idle connection is kept
CONTINUE: Final = 100  # says nothing yet
_PORTS: Final = {"http": 80, "https": 443}


@cache
def _tls() -> ssl.SSLContext:
    """One for all endpoints: to read the system's certificates takes a while."""
    return ssl.create_default_context()


class PostError(Exception):
    """A request had no answer; it says why."""


class Endpoint:
    """Where requests go to: one URL."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        assert place.hostname is not None and place.scheme in _PORTS
        self._host = place.hostname
        self._port = place.port or _PORTS[place.scheme]
        self._tls = _tls() if place.scheme == "https" else None
        self._target = (place.path or "/") + (f"?{place.query}" if place.query else "")
        self._host_header = place.netloc.rpartition("@")[2].encode()
        self._idle: list[_Connection] = []  # the one that was used last comes last

    async def post(self, headers: list[tuple[bytes, bytes]], body: bytes, timeout_s: float) -> int:
        """Posts a body, and returns the status of the answer; ``PostError`` where none comes."""
        request = h11.Request(
            method="POST",
            target=self._target,
            headers=[
                (b"Host", self._host_header),
                *headers,
                (b"Content-Length", str(len(body)).encode()),
            ],
        )
        try:
            async with asyncio.timeout(timeout_s):
                return await self._post(request, body)
        except TimeoutError:
            raise PostError(f"no answer within {timeout_s:g} s") from None
        except (OSError, EOFError, UnicodeError) as error:  # the last of a host that is no name
            raise PostError(f"no answer: {error or type(error).__name__}") from None
        except h11.RemoteProtocolError as error:
            raise PostError(f"the answer is not HTTP: {error}") from None

    async def close(self) -> None:
        """Closes the connections that are idle."""
        while self._idle:
            self._idle.pop().close()

    async def _post(self, request: h11.Request, body: bytes) -> int:
        connection = self._reused()
        if connection is not None:
            try:
                return await self._exchange(connection, request, body)
            except (OSError, EOFError):
                # The server may have closed a connection that was idle, just now: one more try.
                if connection.has_answered:
                    raise
        return await self._exchange(await self._connect(), request, body)

    async def _exchange(self, connection: "_Connection", request: h11.Request, body: bytes) -> int:
        is_whole = False
        try:
            status = await connection.exchange(request, body)
            is_whole = connection.is_reusable
        finally:
            if not is_whole:
                connection.close()
        if is_whole:
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle.append(connection)
        return status

    def _reused(self) -> "_Connection | None":
        """A connection that is there still, the youngest; those that are too old are closed."""
        oldest_s = asyncio.get_running_loop().time() - KEPT_S
        while self._idle and (self._idle[0].idle_since_s < oldest_s or self._idle[0].is_closed):
            self._idle.pop(0).close()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed:
                return connection
            connection.close()
        return None

    async def _connect(self) -> "_Connection":
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(
                self._host, self._port, ssl=self._tls, limit=READ_BYTES
            )
        return _Connection(reader, writer)


class _Connection:
    """One connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self.has_answered = False  # anything at all, to this request
        self.is_reusable = False
        self.idle_since_s = 0.0

    @property
    def is_closed(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    async def exchange(self, request: h11.Request, body: bytes) -> int:
        """Sends a request, and reads its answer to the end where that is near."""
        self.has_answered = self.is_reusable = False
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            data = self._http.send(event)
            if data:
                self._writer.write(data)
        # An answer may come before all is sent; then the rest is not.
        draining = asyncio.ensure_future(self._writer.drain())
        try:
            status = await self._status()
            if status >= 200:
                await self._read_rest()
                await draining
        finally:
            draining.cancel()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await draining
        return status

    async def _status(self) -> int:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                await self._read()
            elif isinstance(event, h11.InformationalResponse):
                if event.status_code != CONTINUE:
                    return event.status_code
            elif isinstance(event, h11.Response):
                return event.status_code
            else:
                raise EOFError("the server closed the connection")

    async def _read_rest(self) -> None:
        left = ANSWER_BYTES_MAX
        while left > 0:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                await self._read()
            elif isinstance(event, h11.Data):
                left -= len(event.data)
            else:
                states = (self._http.our_state, self._http.their_state)
                self.is_reusable = states == (h11.DONE, h11.DONE)
                return

    async def _read(self) -> None:
        data = await self._reader.read(READ_BYTES)
        if not data and not self.has_answered:
            raise EOFError("the server closed the connection")
        self.has_answered = True
        self._http.receive_data(data)

    def close(self) -> None:
        self._writer.transport.abort()
