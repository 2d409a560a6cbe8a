"""Who of the clients of the NATS door wants a subject, and what of that is remembered."""

import pytest

from asterism.gateways.nats import subscriptions as module
from asterism.gateways.nats.subscriptions import (
    NOBODY,
    ROUTED_MAX,
    ROUTES_MAX,
    SUBJECT_KEPT_BYTES_MAX,
    Subscription,
    Subscriptions,
)


class Client:
    is_closed = False


def subscribe(
    held: Subscriptions, pattern: bytes, queue: bytes | None = None, client: object = None
) -> Subscription:
    one = Subscription(client or Client(), pattern, queue, b"1")
    held.add(one)
    return one


@pytest.mark.parametrize("subject", [b"a..b", b".a", b"a.", b".", b""])
def test_a_subject_with_an_empty_token_reaches_nobody(subject: bytes) -> None:
    held = Subscriptions()
    subscribe(held, b">")
    subscribe(held, b"a.*.b")
    assert held.route(subject) is NOBODY


def test_stars_within_tokens_are_letters() -> None:
    held = Subscriptions()
    literal = [subscribe(held, pattern) for pattern in (b"a*", b"**", b"a.**", b">>", b"a.>b")]
    assert [held.route(one.pattern).plain for one in literal] == [(one,) for one in literal]
    for other in (b"ab", b"x", b"a.x", b"x.y"):
        assert held.route(other).is_empty


def test_a_published_star_is_a_token_like_any_other() -> None:
    held = Subscriptions()
    star, every, literal = (subscribe(held, pattern) for pattern in (b"*", b">", b"a"))
    assert set(held.route(b"*").plain) == {star, every}
    assert held.route(b">").plain and literal not in held.route(b"*").plain


def test_who_has_many_subscriptions_comes_behind_who_has_few() -> None:
    """A message for very many is handed out in parts: nobody waits for another's thousands."""
    held = Subscriptions()
    greedy = Client()
    for _ in range(50):
        subscribe(held, b">", client=greedy)
    modest = subscribe(held, b"a")
    for _ in range(50):
        subscribe(held, b"*", client=greedy)
    assert held.route(b"a").plain[0] is modest


def test_members_of_a_queue_group_are_found_by_its_name() -> None:
    held = Subscriptions()
    members = {subscribe(held, pattern, b"q") for pattern in (b"a.b", b"a.*", b">")}
    alone = subscribe(held, b"a.b")
    route = held.route(b"a.b")
    assert route.plain == (alone,) and set(route.by_queue) == {b"q"}
    assert set(route.by_queue[b"q"]) == members and len(route.everybody) == 2


def test_routes_are_remembered_within_bounds() -> None:
    held = Subscriptions()
    subscribe(held, b">")
    for number in range(ROUTES_MAX + 10):
        held.route(b"s.%d" % number)
        assert held.routes_known <= ROUTES_MAX
    known = held.routes_known
    held.route(b"a" * (SUBJECT_KEPT_BYTES_MAX + 1))
    assert held.routes_known == known


def test_subscribers_in_routes_are_remembered_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many subjects times many subscribers filled the memory."""
    assert ROUTED_MAX <= 1_000_000
    monkeypatch.setattr(module, "ROUTED_MAX", 1_000)
    held = Subscriptions()
    for _ in range(100):
        subscribe(held, b">")
    for number in range(200):
        assert len(held.route(b"s.%d" % number).plain) == 100
        assert held.routes_known <= 10


def test_routes_that_are_forgotten_are_counted_no_more() -> None:
    held = Subscriptions()
    one = subscribe(held, b"a")
    for _ in range(3):
        held.route(b"a")
        other = subscribe(held, b"a")
        held.route(b"a")
        held.remove(other)
    held.route(b"a")
    assert held._routed == 1
    held.remove(one)
    assert held._routed == 0 and held.route(b"a").is_empty


def test_what_subscriptions_hold_is_counted_and_given_back() -> None:
    held = Subscriptions()
    small, large = subscribe(held, b"a"), subscribe(held, b"a." * 1_000 + b"b", b"q" * 100)
    assert large.weight > 100 * small.weight
    assert held.weight == small.weight + large.weight
    held.remove(large)
    held.remove(small)
    assert held.weight == 0 and len(held) == 0
