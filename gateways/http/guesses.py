"""How often the password may be guessed: so often at once, then one guess at a time. Pure.

Each address has its own allowance, and all together have one, so that many addresses guess no
faster. Only wrong guesses count, and no wait is longer than the time of one guess, so that nobody
can keep the owner out once the guessing has stopped. An address that has given the password is
asked for its own allowance alone: guesses from elsewhere cannot keep it out.
"""

import ipaddress
from typing import Final

AT_ONCE: Final = 10  # wrong guesses of one address, before it has to wait
EVERY_S: Final = 5.0  # from then on, between two of them
ALL_AT_ONCE: Final = 100  # the same of all addresses together
ALL_EVERY_S: Final = 0.5
PEERS_MAX: Final = 4_096  # addresses that are remembered, of either kind


class Guesses:
    """What is known of those who give passwords."""

    def __init__(self) -> None:
        # When the guesses of an address will be forgotten; each wrong one moves that on.
        self._over_s: dict[str, float] = {}
        self._all_over_s = 0.0
        self._proven: dict[str, None] = {}  # addresses that have given the password, oldest first

    def wait_s(self, address: str, now_s: float) -> float:
        """How long an address has to wait before it may give a password; 0 if it need not."""
        peer = peer_of(address)
        own_s = self._over_s.get(peer, 0.0) - now_s - (AT_ONCE - 1) * EVERY_S
        all_s = self._all_over_s - now_s - (ALL_AT_ONCE - 1) * ALL_EVERY_S
        return max(own_s, 0.0 if peer in self._proven else all_s, 0.0)

    def wrong(self, address: str, now_s: float) -> None:
        """Counts a wrong guess."""
        peer = peer_of(address)
        over_s = max(self._over_s.pop(peer, 0.0), now_s) + EVERY_S
        if len(self._over_s) >= PEERS_MAX:
            self._over_s = {held: at_s for held, at_s in self._over_s.items() if at_s > now_s}
        if len(self._over_s) >= PEERS_MAX:
            del self._over_s[next(iter(self._over_s))]
        self._over_s[peer] = over_s
        self._all_over_s = max(self._all_over_s, now_s) + ALL_EVERY_S

    def right(self, address: str) -> None:
        """Remembers who has given the password."""
        peer = peer_of(address)
        if peer in self._proven:
            return
        if len(self._proven) >= PEERS_MAX:
            del self._proven[next(iter(self._proven))]
        self._proven[peer] = None


def peer_of(address: str) -> str:
    """Whose an address is: a network of IPv6 has more addresses than anybody could count."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
