"""Connections: what is in the air between clients and the worker, in order, until it breaks."""

from collections import deque
from typing import Any

from asterism.effects import Effect

Sent = tuple[str | None, Any]
"""A topic and a command; no topic: the connection itself is gone."""


class Connection:
    """One node. A broken one delivers nothing more, in either direction."""

    def __init__(self, node: bytes) -> None:
        self.node = node
        self.alive = True
        self.to_worker: deque[Sent] = deque()
        self.to_client: deque[tuple[str, Effect]] = deque()


class Network:
    """All connections, in the order they were made."""

    def __init__(self) -> None:
        self._made = 0
        self.connections: dict[bytes, Connection] = {}
        self.lost_nodes: deque[bytes] = deque()  # the worker has yet to hear that they are over
        self.suspended: set[bytes] = set()  # and of these it has heard that they may come back

    def connect(self, who: str) -> Connection:
        self._made += 1
        connection = Connection(f"{who}-{self._made:05}".encode())
        self.connections[connection.node] = connection
        return connection

    def break_off(self, connection: Connection) -> None:
        """What is in the air is lost; the worker hears of it later."""
        connection.alive = False
        connection.to_worker.clear()
        connection.to_client.clear()
        self.connections.pop(connection.node, None)
        self.lost_nodes.append(connection.node)

    def carry(self, topic: str, effect: Effect) -> None:
        node = getattr(effect, "node", None)
        connection = self.connections.get(node) if node is not None else None
        if connection is not None:
            connection.to_client.append((topic, effect))

    def busy(self) -> list[Connection]:
        return [connection for connection in self.connections.values() if connection.to_worker]

    def is_quiet(self) -> bool:
        return not self.lost_nodes and not any(
            connection.to_worker or connection.to_client for connection in self.connections.values()
        )
