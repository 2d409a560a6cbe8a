"""Placement: the same for ever, even, and with exactly one owner for each store."""

from collections import Counter

import pytest

from asterism.router.placement import store_of, stores_of, worker_of

# What `printf %s <topic> | b2sum -l 64` prints. A change strands the topics of every data folder.
KNOWN = {
    "orders": 0xD5ACEBE867B47F4D,
    "nats": 0xC3AEF00295572AC7,
    "a": 0x40F89E395B66422F,
    "größe/✓": 0x1FB17D6E12111DEE,
    " ": 0x144FC5787A5C7B42,
}


@pytest.mark.parametrize(("topic", "digest"), KNOWN.items())
@pytest.mark.parametrize("stores", [1, 2, 3, 8, 16, 1_000])
def test_the_store_of_a_topic_never_changes(topic: str, digest: int, stores: int) -> None:
    assert store_of(topic, stores) == digest % stores


def test_the_stores_of_the_default_folder_written_out() -> None:
    assert [store_of(topic, 8) for topic in KNOWN] == [5, 7, 7, 6, 2]


@pytest.mark.parametrize("stores", [2, 3, 8, 64])
def test_topics_spread_evenly_even_when_their_names_are_alike(stores: int) -> None:
    per_store = Counter(store_of(f"tenant-{i}", stores) for i in range(stores * 1_000))
    assert set(per_store) == set(range(stores))
    # Six standard deviations of a fair draw: a fixed input, so it holds always or never.
    assert all(abs(held - 1_000) < 190 for held in per_store.values())


@pytest.mark.parametrize("stores", [1, 2, 7, 8, 16, 64])
def test_every_store_has_exactly_one_worker_however_many_there_are(stores: int) -> None:
    for workers in range(1, stores + 3):
        opened = [
            store for worker in range(workers) for store in stores_of(worker, workers, stores)
        ]
        assert sorted(opened) == list(range(stores))
        for worker in range(workers):
            opened_here = stores_of(worker, workers, stores)
            assert all(worker_of(store, workers) == worker for store in opened_here)


def test_stores_are_shared_out_to_within_one() -> None:
    for workers in range(1, 9):
        counts = [len(stores_of(worker, workers, 8)) for worker in range(workers)]
        assert max(counts) - min(counts) <= 1


def test_a_worker_too_many_opens_nothing() -> None:
    assert list(stores_of(8, 9, 8)) == []


def test_the_number_of_workers_does_not_move_a_topic() -> None:
    store = store_of("orders", 8)
    for workers in range(1, 12):
        assert store in stores_of(worker_of(store, workers), workers, 8)


def test_counts_that_cannot_be_are_our_mistake() -> None:
    with pytest.raises(AssertionError):
        store_of("orders", 0)
    with pytest.raises(AssertionError):
        worker_of(0, 0)
    with pytest.raises(AssertionError):
        worker_of(-1, 2)
    with pytest.raises(AssertionError):
        stores_of(2, 2, 8)
    with pytest.raises(AssertionError):
        stores_of(-1, 2, 8)
    with pytest.raises(AssertionError):
        stores_of(0, 1, 0)
