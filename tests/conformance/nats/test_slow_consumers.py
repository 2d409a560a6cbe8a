"""A consumer that does not read is cut, and costs the others nothing."""

import time
from typing import Any

import pytest

from tests.conformance.nats.conftest import NatsServer, Started
from tests.conformance.nats.raw_client import RawClient, pub, sub

pytestmark = pytest.mark.process

PENDING_BYTES = 2 << 20
BODY = b"x" * 60_000
CUT_S = 30.0


def _until(server: NatsServer, field: str, least: int) -> dict[str, Any]:
    deadline = time.monotonic() + CUT_S
    while (varz := server.varz())[field] < least:
        assert time.monotonic() < deadline, varz
        time.sleep(0.01)
    return varz


@pytest.fixture
def strict(start: Started) -> NatsServer:
    return start(max_pending=PENDING_BYTES, write_deadline=10.0)


def flood(publisher: RawClient, reader: RawClient, subject: str, rounds: int) -> None:
    """Publishes more than the buffers of the system hold, while the reader keeps up."""
    for number in range(rounds):
        publisher.send(pub(subject, b"%d " % number + BODY))
        assert int(reader.read_message().payload.split()[0]) == number


def test_who_reads_nothing_is_cut_and_the_others_get_everything(
    strict: NatsServer, subject: str
) -> None:
    before = strict.varz()["slow_consumers"]
    with (
        strict.connect(receive_bytes=4_096) as slow,
        strict.connect() as reader,
        strict.connect() as publisher,
    ):
        for client in (slow, reader):
            client.until_pong(sub(subject))
        flood(publisher, reader, subject, 300)
        _until(strict, "slow_consumers", before + 1)
        assert publisher.until_pong(pub(subject, b"last")) == b""
        assert reader.read_message().payload == b"last"
        said = slow.until_closed()
        assert said.startswith(b"MSG ") and b"last" not in said
        assert len(said) < 300 * len(BODY)


def test_a_slow_consumer_s_place_in_a_queue_is_taken_by_others(
    strict: NatsServer, subject: str
) -> None:
    before = strict.varz()["slow_consumers"]
    with (
        strict.connect(receive_bytes=4_096) as slow,
        strict.connect() as reader,
        strict.connect() as publisher,
    ):
        slow.until_pong(sub(subject, 1) + sub(f"{subject}.shared", 2, "q"))
        reader.until_pong(sub(subject, 1) + sub(f"{subject}.shared", 2, "q"))
        flood(publisher, reader, subject, 300)
        _until(strict, "slow_consumers", before + 1)
        publisher.until_pong(pub(f"{subject}.shared", b"x") * 50)
        assert len(reader.messages_until_pong()) == 50


def test_who_is_behind_but_reads_stays_and_gets_everything(
    strict: NatsServer, subject: str
) -> None:
    with strict.connect(receive_bytes=4_096) as late, strict.connect() as publisher:
        late.until_pong(sub(subject))
        for number in range(20):
            publisher.until_pong(pub(subject, b"%d " % number + BODY))
        got = late.read_messages(20)
        assert [int(one.payload.split()[0]) for one in got] == list(range(20))
        assert late.until_pong() == b""


def test_who_takes_nothing_for_the_write_deadline_is_cut(start: Started, subject: str) -> None:
    """With far fewer bytes than it may be behind."""
    patient = start(write_deadline=0.5)
    before = patient.varz()["slow_consumers"]
    with (
        patient.connect(receive_bytes=4_096) as slow,
        patient.connect() as reader,
        patient.connect() as publisher,
    ):
        for client in (slow, reader):
            client.until_pong(sub(subject))
        flood(publisher, reader, subject, 200)
        _until(patient, "slow_consumers", before + 1)
        assert publisher.until_pong(pub(subject, b"last")) == b""
        assert reader.read_message().payload == b"last"
        assert slow.until_closed().startswith(b"MSG ")
