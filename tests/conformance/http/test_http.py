"""What users of the web expect of any service: names, methods, negotiation, CORS, pages."""

import gzip
import json
import os
import re

import httpx
import pytest

from asterism.testing import Broker
from tests.conformance.http.conftest import Queue


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "x" * 255])
def test_namespaces_have_letters_digits_dots_hyphens_and_underscores(
    http: httpx.Client, name: str
) -> None:
    queue = Queue(http, name)
    message = queue.make(b"1")
    assert queue.order() == message
    http.delete(queue.base)


@pytest.mark.parametrize("name", ["a%2Fb", "a%20b", "%C3%A4", "a~b", "x" * 256, "%FF"])
def test_another_name_is_400(http: httpx.Client, name: str) -> None:
    answer = http.get(f"/mq/{name}/stats")
    assert answer.status_code == 400
    assert answer.json()["message"]
    assert http.get(f"/mq/a/messages/{name}").status_code == 400


def test_a_path_that_there_is_not_is_404(http: httpx.Client) -> None:
    for path in ("/nothing", "/mq/a/nothing", "/mq/a/messages/1/nothing", "/mq/a/b/c/d/e"):
        answer = http.get(path)
        assert answer.status_code == 404
        assert "/docs" in answer.json()["message"]
    assert http.get(f"/mq/{'x' * 601}/stats").status_code == 404
    assert [http.request(method, "/mq/").status_code for method in ("GET", "HEAD")] == [404, 404]


def test_a_method_that_there_is_not_is_405_and_says_which_there_are(queue: Queue) -> None:
    answer = queue.http.post(f"{queue.base}/failed-messages")
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "DELETE", "OPTIONS"}
    answer = queue.http.head(f"{queue.base}/messages")  # it would order one
    assert answer.status_code == 405


def test_head_is_get_without_its_body(queue: Queue) -> None:
    for path in ("/mq", f"{queue.base}/stats", f"{queue.base}/failed-messages", "/health"):
        told, headed = queue.http.get(path), queue.http.head(path)
        assert headed.status_code == 200
        assert headed.content == b""
        assert headed.headers["content-length"] == told.headers["content-length"]


def test_options_tells_what_may_be_done(queue: Queue) -> None:
    answer = queue.http.options(f"{queue.base}/messages")
    assert answer.status_code == 204
    assert set(answer.headers["allow"].split(", ")) == {"POST", "GET", "OPTIONS"}


def test_a_page_of_this_machine_may_use_it(queue: Queue) -> None:
    origin = {"Origin": "http://localhost:3000"}
    preflight = queue.http.options(
        f"{queue.base}/messages",
        headers={
            **origin,
            "Access-Control-Request-Method": "PATCH",
            "Access-Control-Request-Headers": "content-type",
        },
    )
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert preflight.headers["access-control-allow-methods"] == "GET,HEAD,PUT,PATCH,POST,DELETE"
    assert preflight.headers["access-control-allow-headers"] == "content-type"
    answer = queue.http.get(f"{queue.base}/stats", headers=origin)
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "x-mq-state" in answer.headers["access-control-expose-headers"].lower()
    assert "access-control-allow-origin" not in queue.http.get(f"{queue.base}/stats").headers


def test_nothing_is_cached(queue: Queue) -> None:
    for path in ("/mq", f"{queue.base}/stats", "/nothing"):
        assert queue.http.get(path).headers["cache-control"] == "private, no-cache"


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("*/*", "application/json"),
        ("application/x-ndjson", "application/x-ndjson"),
        ("application/x-ndjson, application/json", "application/json"),
        ("application/x-ndjson;q=0.9, application/json;q=0.5", "application/x-ndjson"),
        ("application/x-ndjson;q=0.1, */*", "application/json"),
        ("text/html", "application/json"),
    ],
)
def test_lists_come_as_lines_where_that_is_preferred(
    http: httpx.Client, accept: str, media: str
) -> None:
    answer = http.get("/mq", headers={"Accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(media)


def test_bodies_are_compressed_when_asked(queue: Queue) -> None:
    message = queue.make(b"a" * 10_000)
    path = f"{queue.base}/messages/{message}"
    with queue.http.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as answer:
        raw = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == "gzip"
    assert len(raw) < 1_000
    assert gzip.decompress(raw) == b"a" * 10_000


@pytest.mark.parametrize("accepted", ["", "gzip;q=0", "*;q=0", "*, gzip;q=0", "br", "identity"])
def test_bodies_are_not_compressed_for_who_does_not_take_that(queue: Queue, accepted: str) -> None:
    message = queue.make(b"a" * 10_000)
    headers = {"Accept-Encoding": accepted}
    plain = queue.http.get(f"{queue.base}/messages/{message}", headers=headers)
    assert "content-encoding" not in plain.headers
    assert plain.headers["vary"] == "accept-encoding"
    assert plain.content == b"a" * 10_000


@pytest.mark.parametrize("repeats", [True, False])
def test_a_large_body_is_compressed_only_if_that_makes_it_smaller(
    queue: Queue, repeats: bool
) -> None:
    payload = b"a" * 1_000_000 if repeats else os.urandom(1_000_000)
    message = queue.make(payload)
    headers = {"Accept-Encoding": "*"}
    answer = queue.http.get(f"{queue.base}/messages/{message}", headers=headers)
    assert answer.content == payload
    assert ("content-encoding" in answer.headers) == repeats


def test_a_connection_is_kept(queue: Queue) -> None:
    answers = [queue.http.get("/health") for _ in range(3)]
    assert all(answer.headers.get("connection") != "close" for answer in answers)
    streams = [answer.extensions["network_stream"] for answer in answers]
    addresses = {stream.get_extra_info("client_addr") for stream in streams}
    assert len(addresses) == 1


@pytest.mark.parametrize(
    "wanted",
    [
        *("0.6.2", "=0.6.2", "v0.6.2", "0.6", "0.6.x", "0", "0.X", "x", "*", ""),
        *("^0.6.0", "^0.6", "^0", "~0.6.0", "~0.6", "~> 0.6.1", "^0.6.2"),
        *(">=0.6.0", ">= 0.5", ">0.6.1", ">0.5", "<0.7.0", "<=0.6", "<1", "<=0.6.2"),
        *(">=0.5.0 <0.7.0", "0.5 - 0.6", "0.6.2 - 1.0.0", "^0.5.0 || ^0.6.0", "1.x||0.6.x"),
    ],
)
def test_a_version_in_the_range_that_a_client_takes_is_served(
    http: httpx.Client, wanted: str
) -> None:
    assert http.get("/mq", headers={"Accept-Version": wanted}).status_code == 200


@pytest.mark.parametrize(
    "wanted",
    [
        *("1.0.0", "0.6.1", "0.7", "^0.5.0", "^0.6.3", "^1", "~0.5", "~0.6.3", ">0.6.2", ">0.6"),
        *("<0.6.2", "<0.6", "<=0.6.1", ">=0.6.0 <0.6.2", "0.5 - 0.6.1", "^0.5.0 || ^0.7.0"),
        *("x.y", "0.6.2.1", "one", "0.6.2-rc.1", "^^0.6.2", "1" * 300, "a" * 30_000),
    ],
)
def test_another_version_of_the_interface_is_refused(http: httpx.Client, wanted: str) -> None:
    answer = http.get("/mq", headers={"Accept-Version": wanted})
    assert answer.status_code == 400
    assert "0.6.2" in answer.json()["message"]


def test_the_client_of_that_service_is_served(broker: Broker) -> None:
    """It says with every request which versions it was written for."""
    headers = {"Accept-Version": "^0.6.0"}
    with httpx.Client(base_url=broker.http_url, headers=headers, timeout=20) as http:
        queue = Queue(http, "of-that-client")
        message = queue.park(b"1")
        assert queue.failed().json() == [message]
        assert queue.patch(message, "renew") == 204
        assert queue.order() == message
        assert queue.get(message).headers["x-mq-priority"] == "null"
        assert queue.patch(message, "complete") == 204
        assert queue.stats() == {"completed": 1}
        assert queue.admin("PUT", "unique", json=True).status_code == 204
        assert queue.namespace in http.get("/mq").json()
        assert http.delete(queue.base).status_code == 204


def test_health_and_robots(http: httpx.Client) -> None:
    health = http.get("/health")
    assert (health.status_code, health.text) == (200, "OK")
    robots = http.get("/robots.txt")
    assert robots.headers["content-type"].startswith("text/plain")
    assert "Disallow: /" in robots.text


def test_metrics_tell_counts_by_namespace_and_state(queue: Queue) -> None:
    queue.make(b"1"), queue.make(b"2")
    answer = queue.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    label = f'namespace="{queue.namespace}",state="waiting"'
    assert f"asterism_messages{{{label}}} 2" in answer.text.split("\n")
    for line in answer.text.splitlines():
        label = r'[a-z]+="(?:[^"\\]|\\["\\])*"'
        assert re.fullmatch(rf"#.*|[a-z_]+\{{(?:{label},?)*\}} \d+(\.\d+)?", line), line


def test_the_interface_is_described_and_can_be_read(http: httpx.Client) -> None:
    answer = http.get("/openapi.json")
    document = json.loads(answer.content)
    assert document["openapi"].startswith("3.")
    assert "/mq/{namespace}/messages/{id}/complete" in document["paths"]
    page = http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/openapi.json" in page.text
