"""Asterism: a durable message broker whose topics are actors.

This package is the vocabulary that every part shares: commands, effects, errors, limits, settings.
The parts themselves are its subpackages. Importing it opens nothing and needs no RocksDB, so that
a client install stays light.
"""

from typing import Final

from asterism.errors import PeerError
from asterism.settings import Backoff, DropOld, RejectNew

__version__: Final = "0.1.0"

__all__ = ["Backoff", "DropOld", "PeerError", "RejectNew", "__version__"]
