"""Ack ids, and acknowledgements on their way to the broker.

An ack id names a delivery without anything that a restart of the door forgets:

    TAG-SEQUENCE-ATTEMPT-NUMBER     3f9a01bc-1234-1-18a2f00c7d2e1

the first characters of the subscription's uid, the message, its attempt, and a number (hexadecimal)
that no other delivery of this door has, nor one of a door before it.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from asterism import limits

TAG_CHARACTERS: Final = 8
CHARACTERS_MAX: Final = TAG_CHARACTERS + 3 * 21  # of an ack id: of every number at most 20
BATCH_MAX: Final = 2_000  # sequences in one request to the broker

FIRST_NUMBER: Final = (
    time.time_ns() // 1_000
)  # that this door gives; a lower one is of a door before
_numbers: Final = itertools.count(FIRST_NUMBER)


class AckId(NamedTuple):
    """What an ack id says."""

    sequence: int
    attempt: int
    number: int


def next_number() -> int:
    """A number for a delivery: another than any that this door, or one before it, has given."""
    return next(_numbers)


def ack_id_of(tag: str, sequence: int, attempt: int, number: int) -> str:
    """The text of an ack id."""
    return f"{tag}-{sequence}-{attempt}-{number:x}"


def read_ack_id(tag: str, text: str) -> AckId | None:
    """What an ack id of a subscription says; ``None`` where it is none, or another's."""
    parts = text.split("-")
    if len(parts) != 4 or parts[0] != tag or len(text) > CHARACTERS_MAX:
        return None
    try:
        found = AckId(int(parts[1]), int(parts[2]), int(parts[3], 16))
    except ValueError:
        return None
    return found if 0 <= found.sequence <= limits.SEQUENCE_MAX and found.attempt > 0 else None


Send = Callable[[list[int]], Awaitable[dict[int, str]]]


class Gathered:
    """Sequences that go to the broker together: those of one turn of the loop, or more.

    While the broker answers, what is added gathers: the busier it is, the more go at a time.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._sequences: list[int] = []
        self._told: asyncio.Future[dict[int, str]] | None = None
        self._sending: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return self._sending is None

    def add(self, sequences: Iterable[int]) -> "asyncio.Future[dict[int, str]]":
        """Sends these with the others; the codes of those that do not count, by sequence."""
        if self._told is None:
            self._told = asyncio.get_running_loop().create_future()
        self._sequences += sequences
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send_all())
        return self._told

    async def confirmed(self, sequences: Iterable[int]) -> dict[int, str]:
        """The same, when the broker has answered."""
        # Others wait for this answer as well: whoever gives up must not take it from them.
        return await asyncio.shield(self.add(sequences))

    async def _send_all(self) -> None:
        try:
            while self._told is not None:
                sequences, told = self._sequences, self._told
                self._sequences, self._told = [], None
                try:
                    refused: dict[int, str] = {}
                    for start in range(0, len(sequences), BATCH_MAX):
                        refused |= await self._send(sequences[start : start + BATCH_MAX])
                except Exception as error:  # whoever waits is told, each for himself
                    told.set_exception(error)
                    told.exception()  # it may be that nobody waits any more
                else:
                    told.set_result(refused)
        finally:
            self._sending = None
