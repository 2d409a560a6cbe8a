"""A broker of one shard whose power can be cut: what was not synced by then is lost.

It syncs as a worker does: with ``sync = "always"`` whatever is not of the passing kinds, with an
interval (which never ends here: the worst case) only what must be synced before it leaves.
"""

from typing import Any

from asterism.actors.shard import Shard
from asterism.effects import Effect
from asterism.storage.keys import is_passing
from asterism.storage.memory import MemoryRows
from tests.support.core import CoreBroker

_ALL = (b"\x00", b"\x02")

State = dict[bytes, bytes]


class PoweredBroker(CoreBroker):
    """A ``CoreBroker`` that knows what is on its disk."""

    def __init__(self, always: bool = True, **settings: Any) -> None:
        self._always = always
        self._written: State = {}
        self._synced: State = {}
        super().__init__(**settings)

    def end_turn(self) -> list[Effect]:
        effects = super().end_turn()
        written = dict(self.rows.scan(*_ALL))
        changed = {key for key, _ in written.items() ^ self._written.items()}
        self._written = written
        wants_sync = self._always and not all(map(is_passing, changed))
        if wants_sync or getattr(self.shard, "must_sync", False):
            self.sync()
        return effects

    def sync(self) -> None:
        self._synced = self._written

    def cut_power(self) -> None:
        """The machine goes down and comes back; connections, and what was not synced, are lost."""
        self.rows = MemoryRows()
        self.rows.write_all(dict(self._synced))
        self._written = self._synced
        self.inbox.clear()
        self.shard = Shard(self.rows, self.defaults)
        self.end_turn()
        self.sync()  # a worker commits, synced, what its opening wrote
