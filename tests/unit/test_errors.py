"""The table of errors and the exception that carries one of its codes."""

import copy
import pickle
from collections.abc import Callable

import pytest

import asterism
from asterism import PeerError
from asterism.errors import ADVICE, ERRORS


def test_the_codes_are_those_of_the_specification() -> None:
    assert set(ERRORS) == {
        "bad_request",
        "bad_subject",
        "bad_interest",
        "unsupported_version",
        "unauthorized",
        "forbidden",
        "no_such_topic",
        "no_such_receiver",
        "no_such_message",
        "wrong_state",
        "not_yours",
        "topic_exists",
        "no_receiver",
        "overflow",
        "duplicate",
        "too_large",
        "topic_gone",
        "busy",
        "internal",
    }


def test_every_code_has_a_sentence() -> None:
    for sentence in ERRORS.values():
        assert sentence[0].isupper() and sentence.endswith(".")


def test_an_error_reads_as_its_code_what_was_wrong_and_what_to_do() -> None:
    error = PeerError("overflow", "topic 'a' holds 5")
    assert str(error) == "overflow: topic 'a' holds 5. Consume some, or raise the size."
    assert str(PeerError("overflow")) == f"overflow: {ERRORS['overflow']}"


@pytest.mark.parametrize(
    ("code", "detail", "said"),
    [
        ("no_such_topic", "there is no topic 'x'", " Create it, or allow auto_create."),
        ("topic_exists", "there is a topic 'x'", " Configure it instead."),
        ("wrong_state", "the message is not parked", ""),
        ("duplicate", "a live message has this payload", ""),
        ("internal", "a row is damaged", " The broker's log says more."),
    ],
)
def test_what_a_detail_says_is_not_said_again(code: str, detail: str, said: str) -> None:
    assert str(PeerError(code, detail)) == f"{code}: {detail}.{said}"
    assert str(PeerError(code, f"{detail}.")) == f"{code}: {detail}.{said}"


def test_every_code_has_its_advice() -> None:
    assert list(ADVICE) == list(ERRORS)
    assert all(said == "" or said.endswith(".") for said in ADVICE.values())


def test_an_error_may_carry_when_to_try_again() -> None:
    assert PeerError("busy", "full", 250).retry_after_ms == 250
    assert PeerError("busy").retry_after_ms is None


def test_a_code_outside_the_table_is_our_bug_not_a_peers() -> None:
    with pytest.raises(AssertionError):
        PeerError("no_such_code")


@pytest.mark.parametrize("code", ERRORS)
def test_an_error_is_of_the_class_of_its_code(code: str) -> None:
    error = PeerError(code, "so it was", 250)
    named = code.replace("_", "")
    assert type(error).__name__.lower() == named and type(error).__name__ in asterism.__all__
    assert isinstance(error, asterism.BrokerError) and not isinstance(error, OSError)
    assert (error.code, error.detail, error.retry_after) == (code, "so it was", 0.25)


def test_a_kind_of_refusal_that_a_part_of_the_broker_has_stays_that() -> None:
    class OursError(PeerError):
        pass

    error = OursError("busy", "ask another", 250)
    assert (type(error), error.code, error.retry_after_ms) == (OursError, "busy", 250)
    assert type(PeerError("busy")) is asterism.Busy


def test_a_class_takes_no_code_but_its_own() -> None:
    assert type(asterism.Overflow("overflow", "full")) is asterism.Overflow
    with pytest.raises(AssertionError):
        asterism.Overflow("busy")


@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
@pytest.mark.parametrize("code", ERRORS)
def test_an_error_crosses_processes_whole(
    code: str, again: Callable[[PeerError], PeerError]
) -> None:
    error = PeerError(code, "full", 250)
    error.receipt = object()  # which belongs to this process
    second = again(error)
    assert type(second) is type(error)
    assert (second.code, second.detail, second.retry_after_ms) == (code, "full", 250)
    assert second.receipt is None
