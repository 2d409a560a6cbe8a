"""The interest router: a worker that asks it gets what its own receivers want, whatever happens."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from asterism.actors.asking_host import AskedMatcher, Asking
from asterism.config import Config
from asterism.testing import Broker

pytestmark = pytest.mark.process
SECONDS_MAX = 10.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(workers=1) as running:
        yield running


@pytest.fixture
def asking(broker: Broker) -> Iterator[Asking]:
    context: zmq.Context[Any] = zmq.Context()
    asked = Asking(Config(data_dir=str(broker.data_dir)), context)
    yield asked
    asked.close()
    context.term()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)


def answers(matcher: AskedMatcher, asking: Asking, subjects: tuple[str, ...]) -> bool:
    """Whether the router itself has an answer at the matcher's version."""
    found = asking.ask([(matcher._topic, matcher._version, subjects)])
    return bool(found) and found is not None and found[0] is not None


def test_the_router_answers_once_it_was_told_the_whole(asking: Asking) -> None:
    matcher = AskedMatcher("t", asking)
    matcher.add("a/*", 1)
    matcher.add("**", 2)
    wait_until(lambda: matcher.match_any(("a/b",)) == {1, 2} and answers(matcher, asking, ("x",)))
    assert matcher.match_any(("a/b",)) == {1, 2}
    assert matcher.match_any(("b",)) == {2}


def test_an_answer_is_never_older_than_the_interests(asking: Asking) -> None:
    matcher = AskedMatcher("older", asking)
    matcher.add("a", 1)
    wait_until(lambda: matcher.match_any(("a",)) == {1} and answers(matcher, asking, ("a",)))
    matcher.look_up([("a",)])
    matcher.add("a", 2)
    assert matcher.match_any(("a",)) == {1, 2}
    matcher.remove("a", 1)
    assert matcher.match_any(("a",)) == {2}


def test_without_a_router_a_worker_resolves_by_itself(tmp_path: Path) -> None:
    context: zmq.Context[Any] = zmq.Context()
    asking = Asking(Config(data_dir=str(tmp_path)), context)
    matcher = AskedMatcher("alone", asking)
    matcher.add("a/**", 7)
    assert matcher.match_any(("a/b",)) == {7}
    assert matcher.match_any(("b",)) == frozenset()
    asking.close()
    context.term()


def test_a_router_that_was_killed_learns_everything_again(broker: Broker, asking: Asking) -> None:
    matcher = AskedMatcher("again", asking)
    matcher.add("a", 1)
    broker.restart("interests")
    assert matcher.match_any(("a",)) == {1}
    wait_until(lambda: matcher.match_any(("a",)) == {1} and answers(matcher, asking, ("a",)))
