"""The table of errors and the exception that carries one of its codes."""

import pickle

import pytest

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


def test_an_error_crosses_processes_whole() -> None:
    copy = pickle.loads(pickle.dumps(PeerError("busy", "full", 250)))
    assert (copy.code, copy.detail, copy.retry_after_ms) == ("busy", "full", 250)
