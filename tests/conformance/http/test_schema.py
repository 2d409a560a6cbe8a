"""Whatever the OpenAPI document allows, and what it does not, is answered, and never with a 5xx."""

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from asterism.gateways.http.admin import KEYS
from asterism.testing import Broker
from tests.conformance.http.conftest import PASSWORD, Queue

pytestmark = [pytest.mark.process, pytest.mark.slow]

Operation = APIOperation[Any, Any, Any, Any]
_numbers = itertools.count(1)
EXAMPLES = 8  # of each operation, and of each way to make one
WITHIN_S = 20.0
WAITING_S = 0.2  # what may wait for ever has a client that does not
WAITING = {
    ("GET", "/mq/{namespace}/messages"),
    ("POST", "/v1/topics/{topic}/messages"),
    ("POST", "/v1/topics/{topic}/receipts"),
    ("GET", "/v1/topics/{topic}/receipts/{receipt}"),
    ("POST", "/v1/topics/{topic}/request"),
    ("POST", "/v1/topics/{topic}/receivers/{receiver}/pull"),
    ("GET", "/v1/topics/{topic}/subscribe"),
}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
# What is asked by the document alone, on names that come to mind, is done: its schemas are right.
DONE = {
    ("POST", "/mq/{namespace}/messages"): 200,
    ("PUT", "/mq/{namespace}/messages/{id}"): 204,
    **{("PUT", f"/admin/mq/{{namespace}}/config/{key}"): 204 for key in KEYS},
    **{("DELETE", f"/admin/mq/{{namespace}}/config/{key}"): 204 for key in KEYS},
    ("GET", "/admin/mq/{namespace}/config"): 200,
    ("PUT", "/v1/topics/{topic}"): 201,
    ("POST", "/v1/topics/{topic}/messages"): 200,
    ("GET", "/v1/status"): 200,
}
WHOLE = ("/mq", "/admin")  # every answer there is one that the document tells of; else, no 5xx
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker for this file alone: topics of any name are deleted here, and a store counts the
    messages of later topics from where a deleted one stopped."""
    with Broker(doors=("http",), env={"MQ_ADMIN_PASSWORD": PASSWORD}) as running:
        yield running


def test_no_request_by_or_against_the_document_is_a_server_error(
    broker: Broker, queue: Queue
) -> None:
    schema = schemathesis.openapi.from_url(f"{broker.http_url}/openapi.json")
    answered: dict[tuple[str, str], Counter[int]] = {}
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        counts = answered.setdefault((operation.method.upper(), operation.path), Counter())
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            _try(operation, mode, {}, counts)
        if "{id}" in operation.path:
            for named in _messages(queue):
                _try(operation, GenerationMode.POSITIVE, named, counts)
    _say(answered)
    assert set(answered) == _told(broker)
    assert all(answered.values())
    for asked, status in DONE.items():
        assert answered[asked][status], f"{asked}: {answered[asked]}"


def _messages(queue: Queue) -> list[dict[str, str]]:
    """A message in each state, in a queue of its own."""
    named = []
    for make in (Queue.draft, Queue.make, Queue.activate, Queue.park):
        own = Queue(queue.http, f"{queue.namespace}-{next(_numbers)}")
        named.append({"namespace": own.namespace, "id": make(own)})
    return named


def _told(broker: Broker) -> set[tuple[str, str]]:
    """What there is by the document; itself, which has been read by now, aside."""
    paths = httpx.get(f"{broker.http_url}/openapi.json").json()["paths"]
    return {
        (method.upper(), path)
        for path, methods in paths.items()
        for method in methods
        if method != "parameters" and path != "/openapi.json"
    }


def _say(answered: dict[tuple[str, str], Counter[int]]) -> None:
    for (method, path), counts in answered.items():
        shown = ", ".join(
            f"{count} x {status or 'waits'}" for status, count in sorted(counts.items())
        )
        sys.stdout.write(f"\n{method} {path}: {shown}")


def _try(
    operation: Operation, mode: GenerationMode, named: dict[str, str], counts: Counter[int]
) -> None:
    """Some requests of one kind, on what the path names, or else on whatever comes to mind."""
    if mode is GenerationMode.NEGATIVE and not (operation.body or operation.path_parameters):
        return  # there is nothing about it that could be wrong

    def ask(case: Case[Any]) -> None:
        waits = (case.method.upper(), case.path) in WAITING
        case.path_parameters.update(named)
        try:
            answer = case.call(
                headers={"Authorization": f"Bearer {PASSWORD}"},
                timeout=WAITING_S if waits else WITHIN_S,
            )
        except (requests.ReadTimeout, requests.ConnectionError) as error:
            # The second is what a time that runs out in the middle of an answer is called.
            assert waits and "timed out" in str(error), f"{case.method} {case.path}: {error}"
            counts[0] += 1
            return
        counts[answer.status_code] += 1
        checks = CHECKS if case.path.startswith(WHOLE) else CHECKS[:1]
        case.validate_response(answer, checks=checks)

    run: Callable[[], None] = given(operation.as_strategy(generation_mode=mode))(SETTINGS(ask))
    run()
