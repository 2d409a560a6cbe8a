"""What the door says of itself and of the broker, while processes are stopped or dead."""

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import httpx
import pytest

from asterism.gateways.http.door import DOOR
from asterism.gateways.http.processes import KEPT_S, Processes
from asterism.gateways.http.protocol import RefusedError, Request
from asterism.sdk.aio import connect
from asterism.testing import Broker
from tests.conformance.http.conftest import PASSWORD
from tests.conformance.http.stopping import AGAIN_S, LOOK_S, dead, stopped, timed, until

pytestmark = [pytest.mark.process, pytest.mark.fault]

AT_ONCE = 32
ALL = {"frontend": True, "worker-0": True, "worker-1": True}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker of its own: the others' must not be stopped."""
    with Broker(doors=("http",), env={"MQ_ADMIN_PASSWORD": PASSWORD}) as running:
        yield running


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    """A client of a door behind which everything answers."""
    with httpx.Client(base_url=broker.http_url, timeout=AGAIN_S) as client:
        until(lambda: client.get("/ready").status_code == 200, "everything answers")
        yield client


def until_silent(http: httpx.Client, *processes: str) -> httpx.Response:
    """The answer of /ready once it has seen who does not answer; each answer comes in time."""
    answer = timed(http, "/ready")

    def is_told() -> bool:
        nonlocal answer
        answer = timed(http, "/ready")
        return answer.status_code == 503 and answer.json()["silent"] == list(processes)

    until(is_told, f"{processes} do not answer")
    return answer


# --- /ready -------------------------------------------------------------------------------------


def test_it_is_ready_while_every_process_answers(http: httpx.Client) -> None:
    answer = timed(http, "/ready")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.json() == {"ready": True, "processes": ALL}


def test_a_stopped_worker_is_named_until_it_goes_on(broker: Broker, http: httpx.Client) -> None:
    with stopped(broker, "worker", 1):
        told = until_silent(http, "worker-1")
        assert told.json() == {
            "statusCode": 503,
            "error": "Service Unavailable",
            "message": "worker-1 does not answer: see whether it runs, and its log",
            "ready": False,
            "processes": {**ALL, "worker-1": False},
            "silent": ["worker-1"],
        }
        assert int(told.headers["retry-after"]) > 0
        health = timed(http, "/health")
        assert (health.status_code, health.text) == (200, "OK")
    until(lambda: timed(http, "/ready").status_code == 200, "it answers again")


def test_every_worker_may_be_stopped(broker: Broker, http: httpx.Client) -> None:
    with stopped(broker, "worker"):
        told = until_silent(http, "worker-0", "worker-1").json()
        assert told["message"].startswith("worker-0 and worker-1 do not answer: ")
        assert timed(http, "/health").text == "OK"


def test_a_dead_worker_is_named_until_another_is_there(broker: Broker, http: httpx.Client) -> None:
    with dead(broker, 0):
        until_silent(http, "worker-0")
        for _ in range(10):
            assert timed(http, "/ready").json()["processes"] == {**ALL, "worker-0": False}
        assert timed(http, "/health").text == "OK"
    until(lambda: timed(http, "/ready").status_code == 200, "it answers again")


def test_a_stopped_front_end_is_named_and_the_door_is_alive(
    broker: Broker, http: httpx.Client
) -> None:
    """By lanes the workers still answer, until the door takes the connection for lost."""
    with stopped(broker, "frontend"):
        until(lambda: timed(http, "/ready").status_code == 503, "it does not answer")
        assert "frontend" in timed(http, "/ready").json()["silent"]
        health = timed(http, "/health")
        assert (health.status_code, health.text) == (200, "OK")
    until(lambda: timed(http, "/ready").status_code == 200, "it answers again")


def test_the_process_of_a_dedicated_topic_is_named_too(broker: Broker, http: httpx.Client) -> None:
    path, password = "/v1/topics/a-process", {"Authorization": f"Bearer {PASSWORD}"}
    made = http.put(path, json={"dedicated": True}, headers=password)
    assert made.status_code == 201

    def dedicated() -> dict[str, bool]:
        told = timed(http, "/ready").json()["processes"]
        return {name: answers for name, answers in told.items() if name not in ALL}

    until(lambda: list(dedicated().values()) == [True], "it has a process")
    (name,) = dedicated()
    assert name.startswith("dedicated-")
    workers = http.get("/v1/status").json()["workers"]
    (pid,) = (held["pid"] for worker in workers for held in worker["dedicated"].values())
    os.kill(pid, signal.SIGSTOP)
    try:
        until_silent(http, name)
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: timed(http, "/ready").status_code == 200, "it answers again")
    assert http.delete(path, headers=password).status_code == 204
    until(lambda: dedicated() == {}, "it has none any more")


def test_many_who_ask_at_once_are_answered_in_time(broker: Broker, http: httpx.Client) -> None:
    http.get("/ready")
    with (
        stopped(broker, "worker", 0),
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        until_silent(http, "worker-0")
        answers = list(pool.map(lambda _: timed(http, "/ready"), range(AT_ONCE * 4)))
        assert {answer.status_code for answer in answers} == {503}


def test_a_stopped_process_finds_one_question_however_often_it_is_asked_about(
    broker: Broker,
) -> None:
    async def scenario() -> None:
        async with connect(broker.address, "asks", timeout=AGAIN_S) as node:
            processes = Processes(node)
            assert all((await processes.look()).values())
            with stopped(broker, "worker", 0):
                for _ in range(4):
                    await asyncio.sleep(2 * KEPT_S)  # what was seen before is forgotten
                    told = await asyncio.gather(*(processes.look() for _ in range(AT_ONCE)))
                    assert all(each["worker-0"] is None for each in told)
                    assert len(node._answers) == 1
            async with asyncio.timeout(AGAIN_S):
                while (await processes.look())["worker-0"] is None:
                    await asyncio.sleep(LOOK_S)
            assert not node._answers

    asyncio.run(scenario())


# --- /health ------------------------------------------------------------------------------------


def test_a_door_that_the_broker_has_turned_away_is_not_healthy(broker: Broker) -> None:
    """It does not connect again then: only to start it anew helps."""

    async def scenario() -> None:
        request = Request("GET", (), {})
        node = connect(broker.address, "closed", timeout=AGAIN_S)
        async with node:
            assert (await Processes(node).health(request)).body == b"OK"
        with pytest.raises(RefusedError) as refused:
            await Processes(node).health(request)
        assert refused.value.status == 503

    asyncio.run(scenario())


def test_the_health_check_of_the_door_asks_the_door(broker: Broker, http: httpx.Client) -> None:
    said = broker.door("http")
    assert DOOR.health(said, AGAIN_S) is None
    with stopped(broker, "http"):
        found = DOOR.health(said, LOOK_S)
        assert found is not None and found.startswith("/health does not answer: ")
    for url in (f"{broker.http_url}0", "", "http://127.0.0.1"):
        assert DOOR.health({"url": url}, LOOK_S) is not None


def test_the_health_check_tells_of_a_door_that_says_it_is_not_well() -> None:
    class Ill(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(503, "turned away")

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Ill) as server:
        answering = Thread(target=server.handle_request)
        answering.start()
        found = DOOR.health({"url": f"http://127.0.0.1:{server.server_port}"}, AGAIN_S)
        answering.join()
    assert found is not None and found.startswith("/health answers 503")
