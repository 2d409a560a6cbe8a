"""The bare path: what processes of our shape can do when nobody asks anything of them.

A forwarder between two ROUTER sockets, one worker that stores what comes with RocksDB and syncs
once a turn, a publisher, a consumer. There are no topics, receivers, credit, deadlines, receipts or
retries, and nothing is checked: the ratio of the broker to it is what all of that costs. It is
measured in the same turns as the broker, by ``bench_broker``. ``direct`` is the same with no
forwarder: clients talk to the one worker. Both are written plainly, not trimmed as the broker is.

Between the processes travel three frames: who it is from or for, a verb, and a packed body. A
message has an id, a header and a payload, of the same sizes as ours.
"""

import asyncio
import itertools
import multiprocessing
import multiprocessing.process
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Final

import msgpack
import zmq

from asterism.attached import attach
from asterism.cli.bench_cases import BATCH, PeerRun, latencies_us, per_second
from asterism.cli.bench_clients import (
    TIMEOUT_S,
    BenchError,
    Client,
    Shared,
    answers,
    quantities,
    shared,
    stamp_of,
    stamped,
)

WINDOW: Final = 16_384  # unanswered messages of a publisher, as in our SDK
TURN_FRAMES: Final = 512
READY_S: Final = 20.0
STOP_S: Final = 5.0
HEADER: Final = msgpack.packb([2, 4, ["bench"], {}, 1])  # as long as one of ours
KEY: Final = struct.Struct(">Q")
WORKER: Final = b"worker"
CONSUMER: Final = b"consumer"
PUBLISHER: Final = b"publisher"

PUBLISH, ACCEPTED, JOIN, DELIVER, PROCESSED = b"P", b"A", b"J", b"D", b"R"


def _socket(kind: int, identity: bytes = b"") -> "zmq.Socket[bytes]":
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    made = context.socket(kind)
    made.sndhwm = made.rcvhwm = 0
    made.linger = 0
    if identity:
        made.identity = identity
    return made


# --- the servers ----------------------------------------------------------------------------------


def forward(parent: int, folder: str, port: Any) -> None:
    """The forwarder: swaps the sender and the target of whatever comes, and looks at nothing."""
    attach(parent)
    front, back = _socket(zmq.ROUTER), _socket(zmq.ROUTER)
    back.bind(f"ipc://{folder}/back")
    port.send(front.bind_to_random_port("tcp://127.0.0.1"))
    poller = zmq.Poller()
    poller.register(front, zmq.POLLIN)
    poller.register(back, zmq.POLLIN)
    while True:
        for source, _ in poller.poll():
            target = back if source is front else front
            for _ in range(TURN_FRAMES):
                try:
                    sender, receiver, verb, body = source.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                target.send_multipart((receiver, sender, verb, body), copy=False)


class BareWorker:
    """Numbers messages, stores them, passes them on; deletes what is processed."""

    def __init__(self, folder: str) -> None:
        from rocksdict import Options, Rdict, WriteBatch, WriteOptions

        self._rows = Rdict(f"{folder}/rows", Options(raw_mode=True))
        self._synced = WriteOptions()
        self._synced.sync = True
        self._batch_type = WriteBatch
        self._last = 0
        self._socket = self._connect(folder)

    def _connect(self, folder: str) -> "zmq.Socket[bytes]":
        socket = _socket(zmq.DEALER, WORKER)
        socket.connect(f"ipc://{folder}/back")
        # The forwarder cannot send to whom it has not heard of.
        socket.send_multipart((WORKER, JOIN, b""))
        return socket

    def _receive(self) -> list[bytes]:
        return self._socket.recv_multipart(zmq.NOBLOCK)

    def _send(self, receiver: bytes, verb: bytes, body: bytes) -> None:
        self._socket.send_multipart((receiver, verb, body))

    def turn(self) -> None:
        """Takes what has come, writes it in one synced batch, and only then tells anybody."""
        self._socket.poll()
        rows = self._batch_type(raw_mode=True)
        answers: list[tuple[bytes, bytes, bytes]] = []
        fresh: list[tuple[int, list[bytes]]] = []
        for _ in range(TURN_FRAMES):
            try:
                sender, verb, body = self._receive()
            except zmq.Again:
                break
            if verb == PUBLISH:
                answers.append((sender, ACCEPTED, self._store(msgpack.unpackb(body), rows, fresh)))
            elif verb == PROCESSED:
                for number in msgpack.unpackb(body):
                    rows.delete(KEY.pack(number))
            elif verb == JOIN:
                answers.append((sender, JOIN, b""))
        if len(rows):
            self._rows.write(rows, self._synced)
        if fresh:
            answers.append((CONSUMER, DELIVER, msgpack.packb(fresh)))
        for answer in answers:
            self._send(*answer)

    def _store(
        self, messages: list[list[bytes]], rows: Any, fresh: list[tuple[int, list[bytes]]]
    ) -> bytes:
        """Rows of some messages; the answer to them."""
        for message in messages:
            self._last += 1
            rows.put(KEY.pack(self._last), msgpack.packb(message))
            fresh.append((self._last, message))
        answer: bytes = msgpack.packb(len(messages))
        return answer


class DirectWorker(BareWorker):
    """The same with clients of its own."""

    def _connect(self, folder: str) -> "zmq.Socket[bytes]":
        socket = _socket(zmq.ROUTER)
        self.port = socket.bind_to_random_port("tcp://127.0.0.1")
        return socket

    def _receive(self) -> list[bytes]:
        sender, _, verb, body = self._socket.recv_multipart(zmq.NOBLOCK)
        return [sender, verb, body]

    def _send(self, receiver: bytes, verb: bytes, body: bytes) -> None:
        self._socket.send_multipart((receiver, WORKER, verb, body))


def work(parent: int, folder: str) -> None:
    attach(parent)
    worker = BareWorker(folder)
    while True:
        worker.turn()


def work_directly(parent: int, folder: str, port: Any) -> None:
    attach(parent)
    worker = DirectWorker(folder)
    port.send(worker.port)
    while True:
        worker.turn()


# --- the clients ----------------------------------------------------------------------------------


class BareMember:
    """A publisher or a consumer. It blocks its loop: nothing else runs on it."""

    def __init__(self, port: int, identity: bytes, size: int, shared: Shared) -> None:
        self._port = port
        self._identity = identity
        self._size = size
        self._shared = shared

    async def open(self) -> None:
        deadline = time.monotonic() + READY_S
        while True:
            self._socket = _socket(zmq.DEALER, self._identity)
            self._socket.connect(f"tcp://127.0.0.1:{self._port}")
            self._socket.send_multipart((WORKER, JOIN, b""))
            if self._socket.poll(500):
                self._socket.recv_multipart()
                return
            self._socket.close()  # what came before the worker was there is lost: again
            if time.monotonic() > deadline:
                raise BenchError("the bare worker does not answer")
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        self._socket.close()

    def _receive(self, verb: bytes) -> Any:
        while True:
            if not self._socket.poll(round(TIMEOUT_S * 1_000)):
                raise BenchError("nothing came")
            _, got, body = self._socket.recv_multipart()
            if got == verb:
                return msgpack.unpackb(body)

    async def publish(self, count: int, batch: int) -> int:
        """Publishes in batches with a window of unanswered ones; when it began."""
        payload, ids = b"x" * self._size, itertools.count(time.time_ns())
        unanswered = 0
        began = time.monotonic_ns()
        for quantity in quantities(count, batch):
            while unanswered + quantity > WINDOW:
                unanswered -= self._receive(ACCEPTED)
            messages = [(next(ids).to_bytes(16), HEADER, payload) for _ in range(quantity)]
            body = msgpack.packb(messages)
            self._socket.send_multipart((WORKER, PUBLISH, body))
            unanswered += quantity
        while unanswered:
            unanswered -= self._receive(ACCEPTED)
        return began

    async def consume(self, count: int) -> int:
        """Takes and processes so many; when the last report was made and answered."""
        while count > 0:
            numbers = [number for number, _ in self._receive(DELIVER)]
            self._socket.send_multipart((WORKER, PROCESSED, msgpack.packb(numbers)))
            count -= len(numbers)
        self._confirm()
        return time.monotonic_ns()

    def _confirm(self) -> None:
        """Waits until the worker has done what it was told before."""
        self._socket.send_multipart((WORKER, JOIN, b""))
        while self._socket.poll(round(TIMEOUT_S * 1_000)):
            if self._socket.recv_multipart()[1] == JOIN:
                return
        raise BenchError("nothing came")

    async def publish_each(self, count: int) -> list[tuple[int, int]]:
        """One after the other, each when the one before is processed."""
        moments = []
        for number in range(count):
            payload = stamped(self._size)
            message = (number.to_bytes(16), HEADER, payload)
            self._socket.send_multipart((WORKER, PUBLISH, msgpack.packb([message])))
            self._receive(ACCEPTED)
            moments.append((stamp_of(payload), time.monotonic_ns()))
            self._shared.heard.recv_bytes()
        return moments

    async def consume_each(self, count: int) -> list[int]:
        moments = []
        for _ in range(count):
            ((number, _),) = self._receive(DELIVER)
            moments.append(time.monotonic_ns())
            self._socket.send_multipart((WORKER, PROCESSED, msgpack.packb([number])))
            self._confirm()
            self._shared.told.send_bytes(b"1")
        return moments


class BarePath:
    """The peer of no semantics."""

    name = "bare"
    what = "bare path, no semantics"

    def __init__(self) -> None:
        self._folder = ""
        self._servers: list[multiprocessing.process.BaseProcess] = []
        self._clients: list[Client] = []

    def missing(self) -> str:
        return "" if find_spec("rocksdict") else "the package rocksdict is not installed"

    def start(self, size: int) -> Mapping[str, PeerRun]:
        self._folder = tempfile.mkdtemp(prefix="asterism-bare-")
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        for target, arguments in self._programs(theirs):
            server = context.Process(
                target=target, args=(os.getpid(), self._folder, *arguments), daemon=True
            )
            server.start()
            self._servers.append(server)
        theirs.close()
        if not ours.poll(READY_S):
            raise BenchError("the bare path does not answer")
        port, held = ours.recv(), shared()
        for identity in (PUBLISHER, CONSUMER):
            name = f"bare {identity.decode()}"
            self._clients.append(Client(name, BareMember, port, identity, size, held))
        return {
            "durable": PeerRun(f"{self.what}, batches of {BATCH}", self._end_to_end),
            "latency": PeerRun(self.what, self._latency),
        }

    def _programs(self, port: Any) -> list[tuple[Callable[..., None], tuple[Any, ...]]]:
        return [(forward, (port,)), (work, ())]

    def stop(self) -> None:
        while self._clients:
            self._clients.pop().close()
        for server in self._servers:
            server.terminate()
            server.join(STOP_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end_to_end(self, count: int) -> float:
        publisher, consumer = self._clients
        consumer.tell("consume", count)
        publisher.tell("publish", count, BATCH)
        began, ended = answers(publisher, consumer)
        return per_second(count, began, ended)

    def _latency(self, count: int) -> tuple[list[float], list[float]]:
        publisher, consumer = self._clients
        consumer.tell("consume_each", count)
        publisher.tell("publish_each", count)
        published, delivered = answers(publisher, consumer)
        return latencies_us(published, delivered)


class DirectPath(BarePath):
    """The bare path without a front-end."""

    name = "direct"
    what = "bare path, no front-end either"

    def _programs(self, port: Any) -> list[tuple[Callable[..., None], tuple[Any, ...]]]:
        return [(work_directly, (port,))]
