"""Names of Google's resources, and those that the broker has for them."""

import pytest

from asterism import limits
from asterism.gateways.pubsub.names import (
    Kind,
    Name,
    broker_name,
    name_of,
    read_name,
    read_project,
    resource_name,
)
from tests.unit.pubsub.refusals import refused


def test_a_name_is_read_in_its_parts() -> None:
    name = read_name("projects/my-shop/topics/orders.v1", Kind.TOPIC)
    assert name == Name("my-shop", Kind.TOPIC, "orders.v1")
    assert str(name) == "projects/my-shop/topics/orders.v1"
    assert name_of("my-shop", Kind.TOPIC, "orders.v1") == name


@pytest.mark.parametrize("id", ["abc", "a" * 255, "a-_.~+%9", "Good", "gooG"])
def test_an_id_has_three_to_255_of_its_characters(id: str) -> None:
    assert read_name(f"projects/p/subscriptions/{id}", Kind.SUBSCRIPTION).id == id


@pytest.mark.parametrize("id", ["", "ab", "a" * 256, "1abc", "-abc", "goog", "googx", "a b", "aé"])
def test_another_id_is_refused(id: str) -> None:
    with refused("where an id has 3 to 255"):
        read_name(f"projects/p/topics/{id}", Kind.TOPIC)


@pytest.mark.parametrize(
    "text",
    [
        *("", "orders", "projects/p/topics", "projects//topics/orders", "/projects/p/topics/abc"),
        *("projects/p/subscriptions/orders", "projects/p/topics/a/b", "projects/p q/topics/abc"),
        *("_deleted-topic_", "projects/p/topics/abc\n", "projects/p/topics/abc/"),
    ],
)
def test_what_is_no_name_of_the_kind_is_refused(text: str) -> None:
    with refused("is not the name of a topic"):
        read_name(text, Kind.TOPIC)


def test_a_project_is_read() -> None:
    assert read_project("projects/example.com:shop") == "example.com:shop"
    for text in ("projects", "projects/", "shop", "projects/a/b", "projects/a b"):
        with refused("is not the name of a project"):
            read_project(text)


def test_the_broker_has_project_and_id() -> None:
    name = Name("shop", Kind.TOPIC, "orders")
    assert broker_name(name) == "shop/orders"
    assert resource_name("shop/orders", Kind.TOPIC) == name


@pytest.mark.parametrize(
    "broker", ["orders", "shop/or", "shop/a/b", "/orders", "shop/1st", "a b/cde"]
)
def test_a_topic_of_another_shape_has_no_name_here(broker: str) -> None:
    assert resource_name(broker, Kind.TOPIC) is None


def test_names_that_are_too_long_for_the_broker_stay_different() -> None:
    long = [Name("p" * 30, Kind.TOPIC, "a" * 250 + end) for end in "bc"]
    names = [broker_name(name) for name in long]
    assert names[0] != names[1]
    assert all(len(name) == limits.TOPIC_BYTES_MAX for name in names)
    assert all(resource_name(name, Kind.TOPIC) is None for name in names)


def test_a_name_that_just_fits_stays_as_it_is() -> None:
    name = Name("shop", Kind.TOPIC, "a" * (limits.TOPIC_BYTES_MAX - 5))
    assert broker_name(name) == f"shop/{name.id}"
    assert resource_name(broker_name(name), Kind.TOPIC) == name
