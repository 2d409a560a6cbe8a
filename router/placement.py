"""Where a topic lives: topic -> store -> worker. Pure, and the only place that knows.

Nobody keeps a table of this: it is computed from the name and two counts, by every process alike.

P1  The store of a topic depends on its name and the number of stores only: not on the process, the
    machine, the version of Python or the number of workers. A data folder holds what this function
    said when it was written, so for a folder that exists the function never changes.
P2  Every store has exactly one worker, whatever the number of workers; changing that number at a
    restart moves whole stores and no rows.

Counts come from the configuration, which has been checked: a wrong one here is our own mistake.
"""

from hashlib import blake2b

# 64 bits over a handful of stores: what the modulo favours is too little to be measured.
_DIGEST_BYTES = 8


def store_of(topic: str, stores: int) -> int:
    """The store of a topic: BLAKE2b of its UTF-8 name, unkeyed and made for 8 bytes (not a longer
    digest cut short), read as a big-endian integer, modulo the number of stores.
    """
    assert stores >= 1, f"{stores} stores hold no topic"
    digest = blake2b(topic.encode(), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest, "big") % stores


def worker_of(store: int, workers: int) -> int:
    """The worker that opens a store."""
    assert store >= 0, f"there is no store {store}"
    assert workers >= 1, f"{workers} workers open no store"
    return store % workers


def stores_of(worker: int, workers: int, stores: int) -> range:
    """The stores that a worker opens, ascending; none if there are more workers than stores."""
    assert 0 <= worker < workers, f"there is no worker {worker} of {workers}"
    assert stores >= 1, f"{stores} stores are none to open"
    return range(worker, stores, workers)
