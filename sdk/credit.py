"""How much credit an inbox has, unless it is told: as much as its consumer is seen to need. Pure.

What waits in an inbox waits for its one consumer, while another of the group may be idle. So an
inbox begins small. It grows while its consumer empties it, and fast: the next deliveries should be
there when it asks. It shrinks to a tenth of a second's work where the consumer is slower than that.

I1  A consumer that never finds its inbox empty does not make it grow: more would only wait.
I2  An inbox grows past what a tenth of a second brings only for a consumer that asks for more at a
    time, or has all in its hands and asks.
I3  No call is made for a single delivery: deliveries are counted as they come, a frame at a time.
"""

from typing import Final

CREDIT_FIRST: Final = 8
CREDIT_MOST: Final = 16_384
WORK_MS: Final = 100  # what may wait, and how long a pace is measured at least


class AdaptiveCredit:
    """Decides when a limit grows and shrinks; the limit itself is the subscription's."""

    __slots__ = ("_asked_for", "_emptied", "_from_ms", "_from_number", "_pace_ms", "_pace_number")

    def __init__(self) -> None:
        self._from_ms = 0  # since when, and which delivery, a whole limit has to come
        self._from_number = 0
        self._pace_ms = 0  # the same for how many were taken
        self._pace_number = 0
        self._emptied = False  # has the consumer taken all there was, since the pace was measured?
        self._asked_for = 1  # at a time, by a consumer that did not get it

    def more(self, limit: int, arrived: int, in_hand: int, wanted: int, now_ms: int) -> int:
        """The consumer asked for ``wanted``, and has emptied the inbox: how much more it may have.

        ``arrived`` is how many deliveries have come in all, ``in_hand`` how many are unfinished.
        """
        self._emptied = True
        self._asked_for = wanted
        came, took_ms = arrived - self._from_number, now_ms - self._from_ms
        if came < limit and in_hand < limit:
            if took_ms > WORK_MS:  # there was nothing to be had for a while: begin anew
                self._from_ms, self._from_number = now_ms, arrived
            return 0
        self._from_ms, self._from_number = now_ms, arrived
        # Twice what is taken at a time: the one half is worked on while the other half comes.
        is_wanted = in_hand >= limit or took_ms <= WORK_MS or limit < 2 * wanted
        return min(limit, CREDIT_MOST - limit) if is_wanted else 0

    def less(self, limit: int, arrived: int, waiting: int, now_ms: int) -> int:
        """Deliveries came, and so many wait: how much less it may have."""
        took_ms = now_ms - self._pace_ms
        if took_ms < WORK_MS:
            return 0
        taken = arrived - waiting
        in_work_ms = -(-(taken - self._pace_number) * WORK_MS // took_ms)
        is_first, self._pace_ms, self._pace_number = not self._pace_ms, now_ms, taken
        emptied, self._emptied = self._emptied, False
        if is_first or emptied:
            return 0
        excess = waiting - max(in_work_ms, self._asked_for, 1)
        return min(max(excess, 0), limit - 1)
