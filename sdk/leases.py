"""How a client keeps what it holds: which deliveries it renews, when, and for how long. Pure.

It *looks* at every third of the shortest deadline, and renews what was there at the last look
already. So a consumer that is quick enough renews nothing, a delivery that stays is renewed after
two thirds of its deadline at the latest, and nothing is noted when a delivery comes or goes.

I1  A lease is renewed until ``most_ms`` after the delivery came or, in hand, was handed out.
I2  What is not renewed any more is given up, in step with the broker: it is never handed out, and
    whoever has it in hand can see it. Not before every deadline that it may have by itself is over.
"""

from typing import Final, NamedTuple

MAX_LEASE_MS: Final = 3_600_000
LOOK_MS_MIN: Final = 10
NEVER_MS: Final = 1 << 62


class Looked(NamedTuple):
    """What to do, by sequence and attempt."""

    renewed: dict[int, int]
    given_up: dict[int, int]


class Leases:
    """The leases of one endpoint."""

    __slots__ = ("_in_hand", "_looked_ms", "_waiting", "look_ms", "most_ms", "timeouts")

    def __init__(self, most_ms: int | None) -> None:
        self.most_ms = most_ms  # None: for ever; 0: nothing is kept
        self.timeouts = (0, 0)  # sent and received, once the broker has said them
        self.look_ms = NEVER_MS  # when to look next; never while nothing is held
        self._looked_ms = 0
        self._waiting: dict[int, int] = {}  # sequence -> since when it waits, at the latest
        self._in_hand: dict[int, int] = {}

    def begin(self, now_ms: int) -> bool:
        """Something is held; is there a time to look that was not before?"""
        if self.look_ms != NEVER_MS or self.most_ms == 0 or not self.timeouts[0]:
            return False
        self._looked_ms = now_ms
        self._waiting, self._in_hand = {}, {}
        self.look_ms = now_ms + self._pause_ms()
        return True

    def set_timeouts(self, sent_ms: int, received_ms: int) -> bool:
        """The broker said the deadlines; is what is held to be renewed at once?"""
        before, self.timeouts = self.timeouts, (sent_ms, received_ms)
        return self.look_ms != NEVER_MS and min(self.timeouts) < min(before)

    def look_later(self, now_ms: int) -> None:
        """Nothing can be renewed now."""
        self.look_ms = now_ms + self._pause_ms()

    def is_late(self, now_ms: int) -> bool:
        """Was it not looked for so long that a deadline may be over, of what came long ago?

        What came just behind the last look but one was renewed at neither.
        """
        return now_ms >= self.look_ms + self._pause_ms()

    def _pause_ms(self) -> int:
        return max(min(self.timeouts) // 3, LOOK_MS_MIN)

    def look(
        self, waiting: dict[int, int], in_hand: dict[int, int], now_ms: int, *, all_: bool = False
    ) -> Looked:
        """Looks at what is held, attempts by sequence. With ``all_`` what is new is renewed too."""
        looked = Looked({}, {})
        known = self._waiting.keys() | self._in_hand.keys()
        if all_:
            known = known | waiting.keys() | in_hand.keys()
        self._waiting = self._look_at(waiting, self._waiting, known, now_ms, looked)
        self._in_hand = self._look_at(in_hand, self._in_hand, known, now_ms, looked)
        self._looked_ms = now_ms
        is_idle = not (self._waiting or self._in_hand)
        self.look_ms = NEVER_MS if is_idle else now_ms + self._pause_ms()
        return looked

    def _look_at(
        self,
        held: dict[int, int],
        before: dict[int, int],
        known: set[int],
        now_ms: int,
        looked: Looked,
    ) -> dict[int, int]:
        most_ms = NEVER_MS if self.most_ms is None else self.most_ms
        end_ms = max(most_ms, *self.timeouts)
        after = {}
        for sequence, attempt in held.items():
            since_ms = before.get(sequence, self._looked_ms)
            if now_ms - since_ms >= end_ms:
                looked.given_up[sequence] = attempt
                continue
            after[sequence] = since_ms
            if sequence in known and now_ms - since_ms < most_ms:
                looked.renewed[sequence] = attempt
        return after
