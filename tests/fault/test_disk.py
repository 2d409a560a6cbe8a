"""A full disk, and a folder that cannot be written, beneath a running broker.

The promise: publishers are refused with ``busy`` or ``internal`` and a sentence, nothing that was
accepted is lost, and the broker goes on by itself when there is space again.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import chain, repeat
from pathlib import Path
from typing import Final

import pytest

import asterism
from asterism.router.placement import store_of
from asterism.testing import Broker, StartError
from tests.fault.disk import (
    BarePublisher,
    Disk,
    Refused,
    file_in_its_place,
    limited_disk,
    no_permission,
    small_disk,
    until,
)

pytestmark = [pytest.mark.fault, pytest.mark.slow]

STORES: Final = 2
BACK_S: Final = 30.0  # for the broker to go on; a store is tried every second
FULL_S: Final = 20.0  # for a disk that is full to be noticed by whoever writes
Spoil = Callable[[Path], AbstractContextManager[None]]


def topic_in(store: int) -> str:
    names = (f"orders-{number}" for number in range(100))
    return next(name for name in names if store_of(name, STORES) == store)


TOPIC: Final = topic_in(0)
ELSEWHERE: Final = topic_in(1)


@pytest.fixture(params=[limited_disk, small_disk], ids=["limited", "small"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    with request.param(tmp_path) as disk:
        yield disk


def broker_on(folder: Path) -> Broker:
    # Full to the last byte: without a low-water mark, which would refuse before (test_low_disk.py).
    return Broker(workers=2, config={"data_dir": str(folder), "stores": STORES, "min_free": 0})


def payloads(kind: str, count: int) -> list[bytes]:
    return [f"{kind} {number}".encode() for number in range(count)]


def is_refused(answer: Refused | list[int]) -> bool:
    return isinstance(answer, Refused)


def is_accepted(answer: Refused | list[int]) -> bool:
    return not is_refused(answer)


def check_sentence(answer: Refused | list[int]) -> None:
    """A refusal says in a few words what is wrong, and when to come again."""
    assert isinstance(answer, Refused)
    assert answer.code in ("busy", "internal")
    assert len(answer.detail.split()) >= 5, answer.detail
    assert answer.code == "internal" or answer.retry_after_ms


def process_all(broker: Broker, topic: str, count: int) -> list[bytes]:
    """Processes what a topic holds until so many have been; the payloads, each sequence once."""
    found: dict[int, bytes] = {}
    with asterism.connect_blocking(broker.address, name="consumer") as node:
        inbox = node.subscribe(topic, group="crew", timeout=BACK_S)
        while len(found) < count:
            delivery = inbox.receive(timeout=BACK_S)
            found[delivery.sequence] = delivery.payload
            delivery.processed(confirm=True)
        described = node.describe(topic)
    assert (described.held, described.completed) == (0, count)
    return sorted(found.values())


def filling(number: int) -> bytes:
    # Large: the log of a store has blocks of its own, and takes small ones for a while.
    return (b"while it fills %d " % number).ljust(4_096, b".")


def fill_until_refused(
    disk: Disk, broker: Broker, publisher: BarePublisher
) -> tuple[list[bytes], Refused, bytes]:
    """Fills the disk; what was accepted all the same, the first refusal, and what it refused."""
    disk.fill(broker)
    accepted: list[bytes] = []

    def publish() -> Refused | list[int]:
        payload = filling(len(accepted))
        answer = publisher.publish([payload])
        if is_accepted(answer):
            accepted.append(payload)
        return answer

    answer = until(FULL_S, publish, is_refused)
    assert isinstance(answer, Refused)
    return accepted, answer, filling(len(accepted))


# --- a full disk ----------------------------------------------------------------------------------


def test_a_full_disk_refuses_with_a_sentence_and_all_goes_on_when_there_is_space(
    disk: Disk,
) -> None:
    with broker_on(disk.folder) as broker, BarePublisher(broker.address, TOPIC) as publisher:
        wanted = payloads("before", 20)
        assert publisher.publish(wanted) == list(range(1, 21))
        accepted, answer, refused = fill_until_refused(disk, broker, publisher)
        check_sentence(answer)
        assert disk.complaint in answer.detail
        for _ in range(3):  # it stays so, and is said every time
            check_sentence(publisher.again())
        disk.empty()
        until(BACK_S, publisher.again, is_accepted)
        wanted += [*accepted, refused, *payloads("after", 20)]
        assert is_accepted(publisher.publish(payloads("after", 20)))
        assert process_all(broker, TOPIC, len(wanted)) == sorted(wanted)


def test_the_sdk_waits_for_space_and_delivers_what_was_published_meanwhile(disk: Disk) -> None:
    with (
        broker_on(disk.folder) as broker,
        BarePublisher(broker.address, TOPIC) as publisher,
        asterism.connect_blocking(broker.address, name="publisher") as node,
    ):
        accepted, _, _ = fill_until_refused(disk, broker, publisher)
        sent = payloads("meanwhile", 100)
        receipt = node.send_many(TOPIC, sent, expect="processed", max_receivers=1)
        with pytest.raises(TimeoutError, match="not accepted"):
            receipt.accepted(timeout=0.5)
        disk.empty()
        receipt.accepted(timeout=BACK_S)
        # What was refused to the other publisher was stored by nobody.
        wanted = sorted([*accepted, *sent])
        assert process_all(broker, TOPIC, len(wanted)) == wanted
        assert {outcome.verdict for outcome in receipt.all_resolved(BACK_S) if outcome} == {"ok"}


def test_processes_killed_on_a_full_disk_come_back_when_there_is_space(disk: Disk) -> None:
    with broker_on(disk.folder) as broker:
        wanted = payloads("before", 20)
        with BarePublisher(broker.address, TOPIC) as publisher:
            assert is_accepted(publisher.publish(wanted))
            accepted, _, _ = fill_until_refused(disk, broker, publisher)
        killed = {pid for kind in ("frontend", "interests", "worker") for pid in broker.kill(kind)}
        until(FULL_S, lambda: all_pids(broker), lambda pids: len(pids - killed) == len(killed))
        disk.empty()
        broker.wait_ready(BACK_S)
        with BarePublisher(broker.address, TOPIC) as publisher:
            publish = chain(
                [lambda: publisher.publish(payloads("after", 5))], repeat(publisher.again)
            )
            until(BACK_S, lambda: next(publish)(), is_accepted)
        wanted += [*accepted, *payloads("after", 5)]
        assert process_all(broker, TOPIC, len(wanted)) == sorted(wanted)


def all_pids(broker: Broker) -> set[int]:
    return {pid for pids in broker.pids().values() for pid in pids}


# --- a folder that cannot be written --------------------------------------------------------------


@pytest.mark.parametrize("spoil", [file_in_its_place, no_permission])
def test_a_store_whose_folder_cannot_be_written_refuses_alone_and_comes_back(
    tmp_path: Path, spoil: Spoil
) -> None:
    with broker_on(tmp_path / "data") as broker, BarePublisher(broker.address, TOPIC) as publisher:
        wanted = payloads("before", 20)
        assert is_accepted(publisher.publish(wanted))
        with spoil(broker.data_dir / "stores" / "0000"):
            broker.restart("worker")
            check_sentence(publisher.publish([b"meanwhile"]))
            with BarePublisher(broker.address, ELSEWHERE) as other:
                assert is_accepted(other.publish([b"elsewhere"]))
            check_status(broker)
        until(BACK_S, publisher.again, is_accepted)
        wanted.append(b"meanwhile")
        assert process_all(broker, TOPIC, len(wanted)) == sorted(wanted)
        assert process_all(broker, ELSEWHERE, 1) == [b"elsewhere"]


def test_a_store_that_comes_back_leaves_a_worker_that_is_busy_with_others_alive(
    tmp_path: Path,
) -> None:
    config = {"data_dir": str(tmp_path / "data"), "stores": STORES}
    with (
        Broker(workers=1, config=config) as broker,
        BarePublisher(broker.address, ELSEWHERE) as publisher,
        asterism.connect_blocking(broker.address, name="consumer") as node,
        contextlib.ExitStack() as until_it_is_back,
    ):
        with file_in_its_place(broker.data_dir / "stores" / "0001"):
            broker.restart("worker")
            check_sentence(publisher.publish([b"meanwhile"]))
            until_it_is_back.enter_context(publishing(broker))
            inbox = node.subscribe(TOPIC, group="crew", credit=100)
            assert inbox.receive().attempt == 1  # and never reports: it is to fail over
            pids = broker.pids()["worker"]
        until(BACK_S, publisher.again, is_accepted)
        until_it_is_back.close()
        assert broker.pids()["worker"] == pids, broker.logs()


@contextlib.contextmanager
def publishing(broker: Broker) -> Iterator[None]:
    """Three who publish one message after the other."""
    is_over = threading.Event()

    def publish() -> None:
        with asterism.connect_blocking(broker.address, name="publisher") as node:
            while not is_over.is_set():
                node.publish(TOPIC, b"x", expect="processed", max_receivers=1, timeout=BACK_S)

    with ThreadPoolExecutor() as threads:
        publishers = [threads.submit(publish) for _ in range(3)]
        try:
            yield
        finally:
            is_over.set()
    for each in publishers:
        each.result()


def check_status(broker: Broker) -> None:
    """Whoever asks is told which store is away."""
    with asterism.connect_blocking(broker.address, name="operator") as node:
        first, second = node.query_status()["workers"]
    assert first["stores"]["0"] != "open"
    assert second["stores"]["1"] == "open"


def test_a_broker_does_not_start_in_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"cannot be made: .*Name a data folder"):
        broker_on(tmp_path / "file" / "data").start()
