"""What /metrics says: every topic, and which processes answered, whatever is stopped."""

import itertools
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import asterism
from asterism.config import Config
from asterism.router.placement import store_of, worker_of
from asterism.testing import Broker
from tests.conformance.http.conftest import PASSWORD, Queue
from tests.conformance.http.stopping import AGAIN_S, dead, stopped, timed, until

pytestmark = [pytest.mark.process, pytest.mark.fault]

WORKERS = 2
AT_ONCE = 32
MANY = 200  # topics, of each worker: more than are asked at a time
STRANGE = 'a "b" \\ c/d é 漢'
_LABEL = r'[a-z]+="(?:[^"\\\n]|\\["\\n])*"'
_LINE = re.compile(rf"(?P<labelled>[a-z_]+\{{(?:{_LABEL},?)*\}}) (?P<value>\d+(?:\.\d+)?)")
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker of its own: the others' must not be stopped."""
    env = {"MQ_ADMIN_PASSWORD": PASSWORD}
    with Broker(workers=WORKERS, doors=("http",), env=env) as running:
        yield running


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    """A client of a door behind which everything answers."""
    with httpx.Client(base_url=broker.http_url, timeout=AGAIN_S) as client:
        until(lambda: client.get("/ready").status_code == 200, "everything answers")
        yield client


@pytest.fixture
def node(broker: Broker) -> Iterator[asterism.BlockingNode]:
    with asterism.connect_blocking(broker.address) as made:
        yield made


def metrics(http: httpx.Client) -> dict[str, float]:
    """Every line by its name and labels; each is as the format says, and there once."""
    found: dict[str, float] = {}
    for line in timed(http, "/metrics").text.splitlines():
        if not line.startswith("#"):
            read = _LINE.fullmatch(line)
            assert read, line
            assert read["labelled"] not in found
            found[read["labelled"]] = float(read["value"])
    return found


def messages(topic: str, state: str) -> str:
    return f'asterism_messages{{namespace="{topic}",state="{state}"}}'


def events(topic: str, event: str) -> str:
    return f'asterism_message_events_total{{namespace="{topic}",event="{event}"}}'


def up(process: str) -> str:
    return f'asterism_up{{process="{process}"}}'


def topic_of(worker: int) -> str:
    """A name that nobody has used, of a topic of this worker."""
    while True:
        name = f"topic-{next(_numbers)}"
        if worker_of(store_of(name, Config().stores), WORKERS) == worker:
            return name


# --- every topic --------------------------------------------------------------------------------


def test_what_is_for_several_receivers_is_counted(
    http: httpx.Client, node: asterism.BlockingNode
) -> None:
    topic = topic_of(0)
    inbox = node.subscribe(topic, "**", name="one", durable=True, credit=1)
    node.create_receiver(topic, "another", "**")
    node.publish(topic, b"1", subject="a", expect="processed")
    node.publish(topic, b"2", subject="a", expect="processed")
    inbox.receive()
    told = metrics(http)
    assert told[messages(topic, "waiting")] == 1
    assert told[messages(topic, "ordered")] == 1
    assert told[events(topic, "published")] == 2
    assert told[events(topic, "delivered")] == 1


@pytest.mark.parametrize("mode", ["push", "online"])
def test_a_topic_of_messages_in_memory_is_there(
    http: httpx.Client, node: asterism.BlockingNode, mode: str
) -> None:
    topic = topic_of(1)
    inbox = node.subscribe(topic, "**", name="here", credit=1)
    node.publish(topic, b"1", subject="a", mode=mode, expect="sent")
    inbox.receive()
    told = metrics(http)
    assert told[messages(topic, "waiting")] == 0
    assert told[events(topic, "published")] == 1
    assert told[events(topic, "delivered")] == 1


def test_the_lag_of_each_named_receiver_is_there(
    http: httpx.Client, node: asterism.BlockingNode
) -> None:
    topic = topic_of(0)
    inbox = node.subscribe(topic, "**", name="one", credit=1)
    node.subscribe(topic, "**", credit=0)
    node.create_receiver(topic, 'an"other\n', "**")
    node.publish(topic, b"1", subject="a", expect="processed")
    node.publish(topic, b"2", subject="a", expect="processed")
    inbox.receive()
    told = metrics(http)
    one = f'{{namespace="{topic}",receiver="one"}}'
    assert told[f"asterism_receiver_lag{one}"] == 2
    assert told[f"asterism_receiver_out{one}"] == 1
    assert 0 <= told[f"asterism_receiver_oldest_seconds{one}"] < 60
    other = f'{{namespace="{topic}",receiver="an\\"other\\n"}}'
    assert told[f"asterism_receiver_lag{other}"] == 2
    of_topic = [
        name for name in told if name.startswith(f'asterism_receiver_lag{{namespace="{topic}"')
    ]
    assert len(of_topic) == 2, "a receiver without a name is another at each connection"
    assert told[f'asterism_messages_kept{{namespace="{topic}"}}'] == 0


def test_a_topic_may_have_any_name_and_nothing_in_it(
    http: httpx.Client, node: asterism.BlockingNode
) -> None:
    node.create_topic(STRANGE)
    shown = STRANGE.replace("\\", "\\\\").replace('"', '\\"')
    assert metrics(http)[messages(shown, "waiting")] == 0


def test_the_empty_namespace_is_there_by_its_name(http: httpx.Client) -> None:
    Queue(http, "").make()
    told = metrics(http)
    assert told[messages("", "waiting")] == 1
    assert messages("~", "waiting") not in told


# --- whatever is stopped ------------------------------------------------------------------------


def test_every_process_is_up(http: httpx.Client) -> None:
    told = metrics(http)
    assert [told[up(name)] for name in ("frontend", "worker-0", "worker-1")] == [1, 1, 1]


@pytest.mark.parametrize("how", [stopped, dead])
def test_topics_of_a_worker_that_does_not_answer_are_missing(
    broker: Broker, http: httpx.Client, node: asterism.BlockingNode, how: object
) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = {worker: [topic_of(worker) for _ in range(MANY)] for worker in range(WORKERS)}
        list(pool.map(node.create_topic, itertools.chain(*made.values())))
    with stopped(broker, "worker", 1) if how is stopped else dead(broker, 1):
        until(lambda: metrics(http)[up("worker-1")] == 0, "it does not answer")
        told = metrics(http)
        assert (told[up("frontend")], told[up("worker-0")]) == (1, 1)
        assert all(messages(topic, "waiting") in told for topic in made[0])
        assert not any(messages(topic, "waiting") in told for topic in made[1])
        assert 'asterism_disk_free_bytes{process="worker-0"}' in told
        assert 'asterism_disk_free_bytes{process="worker-1"}' not in told
    until(lambda: metrics(http)[up("worker-1")] == 1, "it answers again")
    told = metrics(http)
    assert all(messages(topic, "waiting") in told for topic in made[1])


@pytest.mark.parametrize("kind", ["frontend", "worker"])
def test_many_ask_at_once_while_all_of_a_kind_are_stopped(
    broker: Broker, http: httpx.Client, kind: str
) -> None:
    process = "frontend" if kind == "frontend" else "worker-0"
    with stopped(broker, kind), ThreadPoolExecutor(AT_ONCE) as pool:
        until(lambda: metrics(http)[up(process)] == 0, "it does not answer")
        told = list(pool.map(lambda _: timed(http, "/metrics"), range(AT_ONCE * 2)))
        assert all(f"{up(process)} 0\n" in each.text for each in told)


def test_a_dedicated_topic_whose_process_is_stopped_is_missing_alone(
    http: httpx.Client, node: asterism.BlockingNode
) -> None:
    topic, other = topic_of(0), topic_of(0)
    node.create_topic(other)
    node.create_topic(topic, dedicated=True)
    until(lambda: topic in node.query_process("worker-0")["dedicated"], "it has a process")
    held = node.query_process("worker-0")["dedicated"][topic]
    process = up(f"dedicated-{held['number']}")
    until(lambda: metrics(http).get(process) == 1, "it answers")
    assert messages(topic, "waiting") in metrics(http)
    os.kill(held["pid"], signal.SIGSTOP)
    try:
        until(lambda: metrics(http)[process] == 0, "it does not answer")
        told = metrics(http)
        assert (told[up("worker-0")], told[messages(other, "waiting")]) == (1, 0)
        assert messages(topic, "waiting") not in told
    finally:
        os.kill(held["pid"], signal.SIGCONT)
    until(lambda: metrics(http)[process] == 1, "it answers again")
    node.delete_topic(topic)
