"""The HTTP door: whole cycles of the work queue, draft, set, order, get, complete.

    python -m tests.benchmark.bench_http [--clients 16] [--seconds 5] [--rounds 3] [--json FILE]

Clients share one queue; each asks the next thing when it has the answer to the last, with a payload
of 100 bytes. Every commit is synced to disk. They are a few processes that write requests made
beforehand to connections that they keep, and read no more of an answer than they must, so that it
is the broker that is measured. The reference is what the service whose interface this is does.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

import uvloop

from asterism.testing import Broker
from tests.benchmark.report import progress, write_report

PAYLOAD: Final = b"x" * 100
QUEUE: Final = "bench"
PROCESSES: Final = 2  # that the clients are spread over
WARM_UP_S: Final = 1.0  # from the start of the clients until it counts
CYCLES_REFERENCE: Final = {16: 80.0, 1: 55.0}  # cycles/s, by the number of clients
END: Final = b"\r\n\r\n"
LENGTH: Final = b"content-length: "


class Connection(asyncio.Protocol):
    """A connection that is kept; one request at a time."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the door has hung up: {error}"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(END)
        if head < 0:
            return
        status = int(self._buffer[9:12])
        start, size = head + len(END), 0
        if status != 204:
            at = self._buffer.index(LENGTH) + len(LENGTH)
            size = int(self._buffer[at : self._buffer.index(b"\r", at)])
        if len(self._buffer) < start + size:
            return
        body, self._buffer = self._buffer[start : start + size], b""
        assert self._answer is not None, "an answer that nobody has asked for"
        self._answer.set_result((status, body))

    async def ask(self, request: bytes, wanted: int) -> bytes:
        assert self._transport is not None
        self._answer = self._loop.create_future()
        self._transport.write(request)
        status, body = await self._answer
        assert status == wanted, f"{request[:60]!r}: {status} {body!r}"
        return body

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


def _request(method: str, path: str, host: str, body: bytes = b"", media: str = "") -> bytes:
    lines = [f"{method} /mq/{QUEUE}/messages{path} HTTP/1.1", f"Host: {host}"]
    if media:
        lines += [f"Content-Type: {media}", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + END + body


class Requests:
    """The requests of a cycle; those that name a message have a gap for its id."""

    def __init__(self, host: str) -> None:
        self.draft = _request("POST", "", host, b'{"priority":null}', "application/json")
        self.set = _request("PUT", "/%b", host, PAYLOAD, "application/octet-stream")
        self.order = _request("GET", "", host)
        self.get = _request("GET", "/%b", host)
        self.complete = _request("PATCH", "/%b/complete", host)


async def _cycle(connection: Connection, requests: Requests) -> None:
    drafted = await connection.ask(requests.draft, 200)
    await connection.ask(requests.set % drafted, 204)
    ordered = await connection.ask(requests.order, 200)
    assert await connection.ask(requests.get % ordered, 200) == PAYLOAD
    await connection.ask(requests.complete % ordered, 204)


async def _client(url: str, begin: float, end: float) -> list[float]:
    """Goes through cycles until it is over; how long each took that was done in its time."""
    where = urlsplit(url)
    assert where.hostname is not None and where.port is not None
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, where.hostname, where.port)
    requests = Requests(where.netloc)
    took = []
    started = time.monotonic()
    while started < end:
        await _cycle(connection, requests)
        done = time.monotonic()
        if begin <= done < end:
            took.append(done - started)
        started = done
    connection.close()
    return took


def _clients(url: str, count: int, begin: float, end: float) -> list[float]:
    """Some of the clients, in a process of their own."""

    async def run() -> list[list[float]]:
        return await asyncio.gather(*(_client(url, begin, end) for _ in range(count)))

    return [took for each in uvloop.run(run()) for took in each]


def run_round(pool: ProcessPoolExecutor, url: str, clients: int, seconds: float) -> list[float]:
    """How long each cycle took of those that so many clients did in so many seconds."""
    begin = time.monotonic() + WARM_UP_S
    shares = [clients // PROCESSES + (clients % PROCESSES > n) for n in range(PROCESSES)]
    running = [
        pool.submit(_clients, url, share, begin, begin + seconds) for share in shares if share
    ]
    return [took for future in running for took in future.result()]


def measure(url: str, clients: int, seconds: float, rounds: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        run_round(pool, url, clients, WARM_UP_S)  # once the processes run, starting is quick
        for count in dict.fromkeys((clients, 1)):
            rates, middles = [], []
            for _ in progress(range(rounds), f"{count} clients"):
                took = run_round(pool, url, count, seconds)
                rates.append(len(took) / seconds)
                middles.append(1_000 * statistics.median(took))
            name = "1 client" if count == 1 else f"{count} clients"
            figures[f"{name}: cycles/s"] = statistics.median(rates)
            figures[f"{name}: ms a cycle"] = statistics.median(middles)
            if count in CYCLES_REFERENCE:
                reference = CYCLES_REFERENCE[count]
                figures[f"{name}: ratio to {reference:g}"] = statistics.median(rates) / reference
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=16, help="at a time (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="of a round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds a case (default %(default)s)")
    parser.add_argument("--url", help="of a door that runs, instead of one that is started")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    if options.url:
        figures = measure(options.url, options.clients, options.seconds, options.rounds)
    else:
        with Broker(doors=("http",)) as broker:
            url = broker.http_url
            figures = measure(url, options.clients, options.seconds, options.rounds)
    write_report("http", figures, options.json)


if __name__ == "__main__":
    main()
