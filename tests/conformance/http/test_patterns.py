"""Names by the OpenAPI document are names to the broker, and the other way round.

A pattern cannot count bytes: what has too many is the only difference.
"""

import string
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import jsonschema_rs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asterism import checks, limits
from asterism.errors import PeerError
from asterism.gateways.http.openapi import NAMED
from asterism.gateways.http.v1_schemas import INTEREST, NAME, PUBLISH_QUERY, SETTINGS, SUBJECT
from asterism.subjects import split_interest, split_subject
from tests.conformance.http.conftest import PASSWORD, new_name

Check = Callable[[str], object]

# Everything that means something to anybody, and everything else.
CHARACTERS = st.one_of(
    st.sampled_from("/*ab.-_~ %:\t\n\r\x00\x1f\x7f\x80\x85\x9f\xa0\u2028\u2029é漢😀"),
    st.characters(exclude_categories=["Cs"]),
)
TEXT = st.text(CHARACTERS, max_size=40)
SEGMENTS = st.lists(
    st.one_of(st.sampled_from(["", "*", "**", "***", "a", "*a", "a*", "*\n", "\n"]), TEXT),
    max_size=limits.SEGMENTS_MAX + 4,
).map("/".join)
LENGTHS = st.builds(
    lambda character, size: character * size,
    st.sampled_from(["a", "é", "漢", "😀", "/a", " "]),
    st.sampled_from([0, 1, 32, 33, 63, 64, 85, 86, 127, 128, 255, 256, 512, 513, 1_024, 1_025]),
)
ANY = st.one_of(TEXT, SEGMENTS, LENGTHS)


def receiver_name(value: str) -> str:
    return checks.text("receiver", value, limits.NAME_BYTES_MAX)


def accepts(check: Check, value: str) -> bool:
    try:
        check(value)
    except PeerError:
        return False
    return True


def compare(schema: dict[str, Any], check: Check, bytes_max: int, value: str) -> None:
    """What the broker takes the document allows; what it refuses for more than its bytes, not."""
    allowed = jsonschema_rs.Draft202012Validator(schema).is_valid(value)
    if accepts(check, value):
        assert allowed, f"the broker takes {value!r}, and the document does not allow it"
    elif len(value.encode()) <= bytes_max:
        assert not allowed, f"the document allows {value!r}, which the broker refuses"


@given(value=ANY)
@example("a/b")
@example(" ")
@example("a\n")
@example("\x85")
def test_a_name_of_a_topic(value: str) -> None:
    compare(NAMED["topic"], checks.topic_name, limits.TOPIC_BYTES_MAX, value)
    dead_letter, _ = SETTINGS["properties"]["dead_letter"]["anyOf"]
    compare(dead_letter, checks.topic_name, limits.TOPIC_BYTES_MAX, value)


@given(value=ANY)
@example("a b/é")
def test_a_name_of_a_receiver(value: str) -> None:
    compare(NAMED["receiver"], receiver_name, limits.NAME_BYTES_MAX, value)
    compare(NAME, receiver_name, limits.NAME_BYTES_MAX, value)


@given(value=ANY)
@example("//order/17.5/ok ay//")
@example("a/*/b")
@example("**")
@example("***/*a/**b/*\n")
@example("/".join(string.ascii_letters[: limits.SEGMENTS_MAX]))
@example("/".join(string.ascii_letters[: limits.SEGMENTS_MAX + 1]))
def test_a_subject_and_an_interest(value: str) -> None:
    compare(SUBJECT, split_subject, limits.SUBJECT_BYTES_MAX, value)
    compare(INTEREST, split_interest, limits.SUBJECT_BYTES_MAX, value)


@given(name=TEXT, value=TEXT)
@example("Content-Type", "text/plain\n")
def test_an_attribute_of_a_query(name: str, value: str) -> None:
    schema = PUBLISH_QUERY["attribute"]["items"]
    validator = jsonschema_rs.Draft202012Validator(schema)
    assert validator.is_valid(f"{name}:{value}")
    assert not validator.is_valid(name.replace(":", ""))


# --- with a door --------------------------------------------------------------------------------

# Not the names of other files: where those run beside, they are of the same broker.
STRANGE = ["b c", "é/漢", "%2F", "y" * 255, "漢" * 85, "a?b=c&d#e", "*", "\u2028"]
SUBJECTS = ["//a//b/", "a.b c", "é/😀", "*a/**b/***", "/".join(["a"] * limits.SEGMENTS_MAX), "\n"]


@pytest.mark.process
@pytest.mark.parametrize("name", STRANGE)
def test_a_door_takes_a_name_that_its_document_allows(http: httpx.Client, name: str) -> None:
    """As the path of a topic and of a receiver, and in a query."""
    password = {"Authorization": f"Bearer {PASSWORD}"}
    document = http.get("/openapi.json").json()["paths"]
    path = document["/v1/topics/{topic}/receivers/{receiver}"]
    for parameter in path["parameters"]:
        assert jsonschema_rs.Draft202012Validator(parameter["schema"]).is_valid(name)
    topic = f"/v1/topics/{quote(name, safe='')}"
    assert (
        http.put(topic, json={"dead_letter": f"{name[:1]}/é"}, headers=password).status_code == 201
    )
    receiver = f"{topic}/receivers/{quote(name, safe='')}"
    assert http.put(receiver, json={"interests": ["**"]}).status_code == 201
    listed = http.get(f"{topic}/receivers", params={"after": name[:-1]}).json()["receivers"]
    assert [row["name"] for row in listed] == [name]
    assert http.delete(topic, headers=password).status_code == 204


@pytest.mark.process
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_door_takes_a_subject_that_its_document_allows(http: httpx.Client, subject: str) -> None:
    topic = f"/v1/topics/{new_name('subjects')}"
    assert http.put(f"{topic}/receivers/r", json={"interests": [subject]}).status_code == 201
    body = {"messages": [{"payload": "x", "subject": subject}]}
    assert http.post(f"{topic}/messages", json=body).status_code == 200
    (delivery,) = http.post(f"{topic}/receivers/r/pull", json={"wait": 5}).json()["deliveries"]
    assert delivery["payload"] == "x"
