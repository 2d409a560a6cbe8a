"""The interest router process: resolves globs for the workers. ``python -m
asterism.router.interests_host``

A worker sends one MessagePack array a message, and is answered where it asks:

    ["told", [message, …]]                               one of the next three each
        ["change", topic, before, after, added, removed] added, removed: [[interest, receiver], …]
        ["whole", topic, version, pairs]
        ["forget", topic]
    ["match", number, [[topic, version, subjects], …]]   -> [number, [receivers | nil, …]]

``nil`` says that the version is not known here: the worker then tells the whole, and meanwhile
resolves by itself. So a killed interest router costs nobody anything but that.
"""

import argparse
import logging
import os
import time
from typing import Any, Final

import msgpack
import zmq

from asterism import wire
from asterism.config import Config
from asterism.errors import PeerError
from asterism.process_host import (
    Clock,
    Stopping,
    fields_of,
    memory_bytes,
    run_process,
    say_ready,
    settle_memory,
    socket_address,
)
from asterism.router.frontend import refusal
from asterism.router.interests import InterestTable
from asterism.wire import Part, Verb

DRAIN_MAX: Final = 1_024
HEARTBEAT_MS: Final = 200
log = logging.getLogger("asterism.interests")


class InterestRouter:
    """Answers workers."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._clock = Clock()
        self._started_ms = self._clock.now_ms()
        self._table = InterestTable()
        self._context = zmq.Context()
        self._workers = self._context.socket(zmq.ROUTER)
        self._workers.linger = 0
        self._workers.router_mandatory = True
        self._workers.bind(socket_address(config, "interests"))
        self._frontend = self._context.socket(zmq.DEALER)
        self._frontend.identity = b"i"
        self._frontend.linger = 0
        self._frontend.connect(socket_address(config, "workers"))
        self._epoch = os.urandom(8)
        self._taken = 0  # bytes of frames of the front-end
        self._asked = 0
        self._unknown = 0

    def run(self, stopping: Stopping) -> None:
        poller = zmq.Poller()
        poller.register(self._workers, zmq.POLLIN)
        poller.register(self._frontend, zmq.POLLIN)
        poller.register(stopping.wakeup, zmq.POLLIN)
        say_ready(self._config, "interests", started_ms=self._started_ms)
        log.info("is ready")
        settle_memory()
        next_beat_ms = 0
        while not stopping.asked:
            poller.poll(HEARTBEAT_MS)
            if self._clock.now_ms() >= next_beat_ms:
                next_beat_ms = self._clock.now_ms() + HEARTBEAT_MS
                self._send_frontend([b"", b"ready", self._epoch, wire.COUNT.pack(self._taken)])
            self._drain_workers()
            self._drain_frontend()
        self._workers.close()
        self._frontend.close()
        self._context.term()

    def _drain_workers(self) -> None:
        for _ in range(DRAIN_MAX):
            try:
                worker, body = self._workers.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            answer = self._on_worker(msgpack.unpackb(body, use_list=False))
            if answer is not None:
                self._answer(worker, answer)

    def _answer(self, worker: bytes, answer: object) -> None:
        try:
            self._workers.send_multipart([worker, msgpack.packb(answer)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            # It is gone, or behind; it does not wait for long, and resolves by itself.
            log.warning("an answer is not taken %s", fields_of(worker=worker.hex()))

    def _on_worker(self, message: tuple[Any, ...]) -> object:
        what, *rest = message
        if what == "match":
            number, questions = rest
            self._asked += len(questions)
            found = [self._table.match(*question) for question in questions]
            self._unknown += found.count(None)
            return number, [None if one is None else list(one) for one in found]
        assert what == "told"
        for told, *about in rest[0]:
            self._on_told(told, about)
        return None

    def _on_told(self, what: str, about: list[Any]) -> None:
        if what == "change":
            self._table.change(*about)
        elif what == "whole":
            self._table.replace(*about)
        else:
            assert what == "forget"
            self._table.forget(*about)

    def _drain_frontend(self) -> None:
        for _ in range(DRAIN_MAX):
            try:
                session, frame, *_ = self._frontend.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if session:
                self._taken += len(frame)
                for part in wire.read_parts(frame):
                    self._on_client(session, part)

    def _on_client(self, session: bytes, part: Part) -> None:
        if part.verb == Verb.STATUS:
            body = wire.pack_body(self._status())
            answer = wire.pack_part(Verb.REPLY, part.request, part.topic, body, node=part.node)
        else:
            error = PeerError("bad_request", "the interest router answers to STATUS alone")
            answer = refusal(error, part.node, part.request, part.topic)
        self._send_frontend([session, answer])

    def _status(self) -> dict[str, Any]:
        return {
            "process": "interests",
            "pid": os.getpid(),
            "uptime_ms": self._clock.now_ms() - self._started_ms,
            "memory_bytes": memory_bytes(),
            "cpu_ms": round(time.process_time() * 1_000),
            "topics": len(self._table),
            "totals": {"asked": self._asked, "unknown": self._unknown},
        }

    def _send_frontend(self, frames: list[bytes]) -> None:
        try:
            self._frontend.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            log.warning("the front-end takes nothing %s", fields_of(frames=len(frames)))


def run(config: Config) -> None:
    """Runs the interest router until it is told to stop."""
    stopping = Stopping()
    InterestRouter(config).run(stopping)
    log.info("has stopped")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m asterism.router.interests_host")
    run_process(lambda _: "interests", lambda config, _: run(config), parser)


if __name__ == "__main__":
    main()
