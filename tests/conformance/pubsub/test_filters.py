"""Filters: each operator of the language, and what is no filter.

All filters of a kind stand on one topic, so that each message is judged by every one of them.
"""

from collections.abc import Mapping

import pytest
from google.api_core.exceptions import InvalidArgument
from google.pubsub_v1.types import PubsubMessage

from tests.conformance.pubsub.clients import Pair, Project, data_of
from tests.conformance.pubsub.conftest import PubSubServer

pytestmark = [pytest.mark.process, pytest.mark.beyond_reference("filters nothing")]

MESSAGES: dict[str, Mapping[str, str]] = {
    "plain": {},
    "com": {"domain": "com"},
    "community": {"domain": "community"},
    "org": {"domain": "org", "name": "x"},
    "empty": {"domain": ""},
    "Com": {"domain": "Com"},
    "tag": {"iana.org/language_tag": "de"},
    "quote": {"name": 'a"b\\c'},
    "wide": {"name": "ü€"},
    "dash": {"a-b_c1": "1"},
}
ALL = set(MESSAGES)
WITH_DOMAIN = {"com", "community", "org", "empty", "Com"}
FILTERS: dict[str, set[str]] = {
    "": ALL,
    "attributes:domain": WITH_DOMAIN,
    "NOT attributes:domain": ALL - WITH_DOMAIN,
    "-attributes:domain": ALL - WITH_DOMAIN,
    'attributes.domain = "com"': {"com"},
    'attributes.domain="com"': {"com"},
    'attributes.domain = ""': {"empty"},
    'attributes.domain != "com"': ALL - {"com"},
    'NOT attributes.domain = "com"': ALL - {"com"},
    'hasPrefix(attributes.domain, "com")': {"com", "community"},
    'hasPrefix(attributes.domain,"")': WITH_DOMAIN,
    'NOT hasPrefix(attributes.domain, "com")': ALL - {"com", "community"},
    'attributes.domain = "com" OR attributes.domain = "org"': {"com", "org"},
    'attributes.domain = "org" AND attributes.name = "x"': {"org"},
    'attributes.domain = "org" AND attributes.name = "y"': set(),
    "attributes:name AND NOT attributes:domain": {"quote", "wide"},
    'attributes:domain AND (attributes.domain = "com" OR attributes:name)': {"com", "org"},
    '(attributes:domain AND attributes:name) OR attributes:"a-b_c1"': {"org", "dash"},
    "NOT (attributes:domain OR attributes:name)": {"plain", "tag", "dash"},
    'attributes:"iana.org/language_tag"': {"tag"},
    'attributes."iana.org/language_tag" = "de"': {"tag"},
    r'attributes.name = "a\"b\\c"': {"quote"},
    r'attributes.name = "\u00fc\u20ac"': {"wide"},
    'attributes.name = "ü€"': {"wide"},
    "attributes:a-b_c1": {"dash"},
    "(attributes:name)": {"org", "quote", "wide"},
    '((attributes.domain = "com"))': {"com"},
    "attributes:domain\n  AND\tattributes:name": {"org"},
}
NOT_FILTERS = [
    "attributes",
    "attributes.domain",
    "attributes.domain =",
    'attributes.domain == "com"',
    "attributes.domain = com",
    'attributes.domain = "com',
    "domain",
    'attributes.domain > "a"',
    "attributes:a AND attributes:b OR attributes:c",
    "attributes:a attributes:b",
    'hasSuffix(attributes.a, "b")',
    "hasPrefix(attributes.a)",
    'hasPrefix("a", attributes.a)',
    "(attributes:a",
    "attributes:a)",
    "NOT",
    "attributes:a and attributes:b",
    "()",
    "data:a",
    "attributes:a AND",
    '"',
    "attributes:" + "a" * 256,
]


@pytest.fixture(scope="module")
def judged(server: PubSubServer, pair: Pair) -> dict[str, set[str]]:
    """Of each filter the messages that came."""
    project = server.project(pair)
    topic = project.topic()
    subscriptions = {
        expression: project.subscription(topic, f"sub-{number}", filter=expression)
        for number, expression in enumerate(FILTERS)
    }
    everything = [
        PubsubMessage(data=name.encode(), attributes=attributes)
        for name, attributes in MESSAGES.items()
    ]
    project.bare.publish(topic=topic, messages=everything)
    found: dict[str, set[str]] = {}
    for expression, subscription in subscriptions.items():
        got: set[str] = set()
        if FILTERS[expression]:
            messages = project.pull(subscription, len(FILTERS[expression]), s=5)
            got = {one.decode() for one in data_of(messages)}
        left = project.subscriber.pull(
            subscription=subscription, max_messages=10, return_immediately=True
        )
        found[expression] = got | {one.decode() for one in data_of(left.received_messages)}
    return found


@pytest.mark.parametrize("expression", FILTERS, ids=lambda expression: expression or "none")
def test_a_filter_lets_through(judged: dict[str, set[str]], expression: str) -> None:
    assert judged[expression] == FILTERS[expression]


@pytest.mark.parametrize("expression", NOT_FILTERS, ids=lambda expression: expression[:30])
def test_what_is_no_filter_is_refused(project: Project, expression: str) -> None:
    topic = project.topic()
    with pytest.raises(InvalidArgument):
        project.subscription(topic, filter=expression)


def test_what_a_filter_leaves_out_is_acknowledged(project: Project) -> None:
    """It comes by no replay either, and does not hold up what comes behind it."""
    topic = project.topic()
    subscription = project.subscription(topic, filter="attributes:wanted")
    project.publish(topic, *[b"left out"] * 500)
    project.publish(topic, b"wanted", wanted="1")
    with project.collect(subscription) as collected:
        assert collected.wait_for(1) == [b"wanted"]
    project.nothing(subscription)


def test_a_stream_is_sent_what_passes(project: Project) -> None:
    topic = project.topic()
    subscription = project.subscription(topic, filter='attributes.even = "yes"')
    with project.stream(subscription, max_outstanding_messages=2) as stream:
        for number in range(40):
            project.publish(topic, b"%d" % number, even="yes" if number % 2 == 0 else "no")
        seen: list[int] = []
        while len(seen) < 20:
            got = stream.take(1)
            seen += map(int, data_of(got))
            stream.acknowledge(got)
    assert sorted(seen) == list(range(0, 40, 2))


def test_a_filter_leaves_an_ordered_key_in_order(project: Project) -> None:
    topic = project.topic()
    subscription = project.subscription(
        topic, filter="attributes:odd", enable_message_ordering=True
    )
    for number in range(20):
        attributes = {"odd": "1"} if number % 2 else {"even": "1"}
        project.publish(topic, b"%d" % number, ordering_key="a", **attributes)
    with project.collect(subscription) as collected:
        assert [int(one) for one in collected.wait_for(10)] == list(range(1, 20, 2))
