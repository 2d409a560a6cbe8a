"""How a worker asks the interest router, and does without it when it must.

A worker owns its receivers, so it can always resolve an interest by itself; the interest router
does it for all workers in a process of its own. What it does not answer in time, or at another
version, is resolved here, and it is told the whole again. After a question that stayed without an
answer nothing is asked for a while: a killed interest router costs one short wait, not one a turn.
"""

import logging
import os
from typing import Any, Final

import msgpack
import zmq

from asterism.config import Config
from asterism.process_host import Clock, socket_address
from asterism.router.interest import InterestTrie

ANSWER_MS_MAX: Final = 20  # how long a turn waits for an answer
PAUSE_MS: Final = 500  # how long nothing is asked after an answer that did not come
QUESTIONS_MAX: Final = 4_096  # in one message
TOLD_MAX: Final = 256  # things that wait to be told together: each message wakes a thread
log = logging.getLogger("asterism.worker")


class Asking:
    """The worker's connection to the interest router."""

    def __init__(self, config: Config, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self._clock = Clock()
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.immediate = True  # nothing is kept for one that is not there
        self._socket.connect(socket_address(config, "interests"))
        self._number = 0
        self._untold: list[tuple[object, ...]] = []
        self._paused_until_ms = 0
        self.looked_up: list[AskedMatcher] = []  # in this turn

    def end_turn(self) -> None:
        """Tells what changed; what was looked up in this turn and not used is not kept."""
        for matcher in self.looked_up:
            matcher.forget_answers()
        self.looked_up.clear()
        self._tell_all()

    def tell(self, *message: object) -> None:
        """Says something that needs no answer, at the end of the turn or ahead of a question; if it
        is lost, a question shows it."""
        self._untold.append(message)
        if len(self._untold) >= TOLD_MAX:
            self._tell_all()

    def _tell_all(self) -> None:
        if not self._untold:
            return
        untold, self._untold = self._untold, []
        try:
            self._socket.send(msgpack.packb(("told", untold)), zmq.NOBLOCK)
        except zmq.Again:
            return

    def ask(self, questions: list[tuple[str, int, tuple[str, ...]]]) -> list[Any] | None:
        """The receivers for each question; ``None`` where there is no answer to be had now."""
        now_ms = self._clock.now_ms()
        if now_ms < self._paused_until_ms:
            return None
        self._tell_all()
        self._number += 1
        try:
            message = msgpack.packb(("match", self._number, questions))
            self._socket.send(message, zmq.NOBLOCK)
            while self._socket.poll(ANSWER_MS_MAX):
                number, found = msgpack.unpackb(self._socket.recv(zmq.NOBLOCK))
                if number == self._number:  # else late: of a question that was given up
                    return list(found)
        except zmq.Again:
            pass
        self._paused_until_ms = now_ms + PAUSE_MS
        log.debug("the interest router does not answer")
        return None

    def close(self) -> None:
        self._socket.close()


class AskedMatcher:
    """The interests of one topic: kept here, resolved by the interest router."""

    def __init__(self, topic: str, asking: Asking) -> None:
        self._topic = topic
        self._asking = asking
        self._own: InterestTrie[int] = InterestTrie()
        self._pairs: dict[tuple[str, int], None] = {}
        # Another worker, or this one before it was killed, never had this version.
        self._version = int.from_bytes(os.urandom(7), "big")
        self._answers: dict[tuple[str, ...], frozenset[int]] = {}

    def add(self, interest: str, receiver: int) -> bool:
        added = self._own.add(interest, receiver)
        self._pairs[interest, receiver] = None
        self._changed(((interest, receiver),), ())
        return added

    def remove(self, interest: str, receiver: int) -> bool:
        removed = self._own.remove(interest, receiver)
        self._pairs.pop((interest, receiver), None)
        self._changed((), ((interest, receiver),))
        return removed

    def _changed(self, added: object, removed: object) -> None:
        self._answers.clear()  # they are of the version before
        before, self._version = self._version, self._version + 1
        self._asking.tell("change", self._topic, before, self._version, added, removed)

    def match_any(self, subjects: tuple[str, ...]) -> frozenset[int]:
        self.look_up([subjects])
        found = self._answers.pop(subjects, None)
        return self._own.match_any(subjects) if found is None else found

    def look_up(self, wanted: list[tuple[str, ...]]) -> None:
        """Asks for all of these at once, so that ``match_any`` need not for each."""
        missing = [subjects for subjects in wanted if subjects not in self._answers]
        for begin in range(0, len(missing), QUESTIONS_MAX):
            some = missing[begin : begin + QUESTIONS_MAX]
            questions = [(self._topic, self._version, subjects) for subjects in some]
            found = self._asking.ask(questions)
            if found is None:
                return
            if found[0] is None:  # one version for all: it is known there, or it is not
                self._asking.tell("whole", self._topic, self._version, list(self._pairs))
                return
            self._asking.looked_up.append(self)
            for subjects, receivers in zip(some, found, strict=True):
                self._answers[subjects] = frozenset(receivers)

    def forget_answers(self) -> None:
        """The turn is over: what was looked up and not used is not kept."""
        self._answers.clear()

    def forget(self) -> None:
        """The topic is gone."""
        self._asking.tell("forget", self._topic)
