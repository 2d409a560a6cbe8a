"""A broker with an HTTP door, and a client that says what a queue is asked."""

import itertools
from collections.abc import Iterator

import httpx
import pytest

from asterism.testing import Broker

PASSWORD = "a-password-for-tests"
_names = itertools.count(1)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(doors=("http",), env={"MQ_ADMIN_PASSWORD": PASSWORD}) as running:
        yield running


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, timeout=20) as client:
        yield client


@pytest.fixture
def queue(http: httpx.Client) -> "Queue":
    return Queue(http, f"queue-{next(_names)}")


class Queue:
    """A namespace of its own."""

    def __init__(self, http: httpx.Client, namespace: str) -> None:
        self.http = http
        self.namespace = namespace
        self.base = f"/mq/{namespace}"

    def draft(self, priority: int | None = None) -> str:
        answer = self.http.post(f"{self.base}/messages", json={"priority": priority})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        return answer.text

    def set(self, message: str, payload: bytes | str = b"x", **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.put(
            f"{self.base}/messages/{message}", content=payload, headers=named
        ).status_code

    def make(self, payload: bytes | str = b"x", priority: int | None = None) -> str:
        """A message that waits."""
        message = self.draft(priority)
        assert self.set(message, payload) == 204
        return message

    def order(self) -> str:
        answer = self.http.get(f"{self.base}/messages")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        return answer.text

    def get(self, message: str) -> httpx.Response:
        return self.http.get(f"{self.base}/messages/{message}")

    def activate(self, payload: bytes | str = b"x") -> str:
        """A message that is active."""
        message = self.make(payload)
        assert self.order() == message
        assert self.get(message).status_code == 200
        return message

    def abandon(self, message: str) -> int:
        return self.http.delete(f"{self.base}/messages/{message}").status_code

    def patch(self, message: str, what: str) -> int:
        return self.http.patch(f"{self.base}/messages/{message}/{what}").status_code

    def park(self, payload: bytes | str = b"x") -> str:
        """A message that failed."""
        message = self.activate(payload)
        assert self.patch(message, "fail") == 204
        return message

    def failed(self, **headers: str) -> httpx.Response:
        return self.http.get(f"{self.base}/failed-messages", headers=headers)

    def stats(self) -> dict[str, int]:
        answer = self.http.get(f"{self.base}/stats")
        assert answer.status_code == 200
        counts = dict(answer.json())
        assert counts.pop("namespace") == self.namespace
        assert set(counts) == {"drafting", "waiting", "ordered", "active", "completed", "failed"}
        return {name: count for name, count in counts.items() if count}

    def admin(self, method: str, key: str = "", **fields: object) -> httpx.Response:
        path = f"/admin{self.base}/config" + (f"/{key}" if key else "")
        headers = {"Authorization": f"Bearer {PASSWORD}"}
        return self.http.request(method, path, headers=headers, **fields)  # type: ignore[arg-type]
