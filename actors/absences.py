"""Endpoints that are away and may come back to a receiver that lives with its connections.

Such a receiver ends with its last endpoint. But when the worker was restarted, or a connection was
lost in a way that its client may not know of, the client lives: its endpoint is *away*, and its
receiver stays, with all that it has done, until the endpoint has come back, is known to be gone,
or the grace is over. No rows, no clock.

I1 A holder is in ``_by_node`` exactly while it is in ``away`` of its receiver.
I2 A holder is in the heap once for its present end, but not before the grace has begun.
"""

from heapq import heappop, heappush

from asterism.actors.receivers import Receiver
from asterism.message import NEVER_MS


class Absences:
    """All endpoints of a topic that are away."""

    def __init__(self) -> None:
        self._by_node: dict[bytes, dict[int, tuple[Receiver, int]]] = {}
        self._heap: list[tuple[int, bytes, int]] = []
        self.count = 0

    def add(
        self,
        receiver: Receiver,
        node: bytes,
        endpoint: int,
        interests: tuple[str, ...],
        until_ms: int,
    ) -> None:
        """An endpoint is away; its receiver waits for it at most until then."""
        assert self.find(node, endpoint) is None
        receiver.away[node, endpoint] = interests
        self._by_node.setdefault(node, {})[endpoint] = (receiver, until_ms)
        self.count += 1
        if until_ms != NEVER_MS:
            heappush(self._heap, (until_ms, node, endpoint))

    def find(self, node: bytes, endpoint: int) -> Receiver | None:
        """The receiver that waits for an endpoint."""
        found = self._by_node.get(node, {}).get(endpoint)
        return None if found is None else found[0]

    def take(self, node: bytes, endpoint: int) -> Receiver:
        """An endpoint has come back, or is waited for no longer."""
        numbers = self._by_node[node]
        receiver, _ = numbers.pop(endpoint)
        if not numbers:
            del self._by_node[node]
        del receiver.away[node, endpoint]
        self.count -= 1
        return receiver

    def nodes(self) -> list[bytes]:
        return list(self._by_node)

    def of(self, node: bytes) -> list[int]:
        """The endpoints of a node that are away."""
        return list(self._by_node.get(node, ()))

    def begin_grace(self, until_ms: int) -> None:
        """Clients can come back from now on, and no longer than until then."""
        for node, numbers in self._by_node.items():
            for endpoint, (receiver, known_ms) in numbers.items():
                if known_ms == NEVER_MS:
                    numbers[endpoint] = (receiver, until_ms)
                    heappush(self._heap, (until_ms, node, endpoint))

    def due(self, now_ms: int) -> list[tuple[bytes, int]]:
        """Those for whom the grace is over; they are away until they are taken."""
        late = []
        while (next_ms := self.next_due_ms()) is not None and next_ms <= now_ms:
            _, node, endpoint = heappop(self._heap)
            late.append((node, endpoint))
        return late

    def next_due_ms(self) -> int | None:
        """When the first grace is over."""
        while self._heap:
            until_ms, node, endpoint = self._heap[0]
            found = self._by_node.get(node, {}).get(endpoint)
            if found is not None and found[1] == until_ms:
                return until_ms
            heappop(self._heap)
        return None
