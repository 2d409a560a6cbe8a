"""How the client keeps what it holds: the policy and the session, with time passed in."""

from typing import Any

from asterism import limits
from asterism.sdk.deliveries import Received
from asterism.sdk.leases import NEVER_MS, Leases
from asterism.sdk.receiving import FAILED, PROCESSED, Subscription
from asterism.wire import Verb
from tests.unit.test_session import HEADER, SENT_HEADER, Client, Sent

SENT_MS, RECEIVED_MS = 600, 3_000
LOOK_MS = SENT_MS // 3


def client_with(held_for_ms: int | None = 10_000, credit: int | None = 10) -> "Holder":
    return Holder(held_for_ms, credit)


class Holder(Client):
    """A client with one subscription, whose deadlines it was told."""

    def __init__(self, max_lease_ms: int | None, credit: int | None) -> None:
        super().__init__()
        self.open()
        self.held = self.session.subscribe(
            "t", ("**",), name="me", credit=credit, max_lease_ms=max_lease_ms
        )
        (sent,) = self.flush()
        self.answer(sent, receiver="me", sent_timeout_ms=SENT_MS, received_timeout_ms=RECEIVED_MS)
        self.flush()

    def answer(self, sent: Sent, **body: Any) -> None:
        self.told(Verb.REPLY, body, request=sent.request, topic="t", worker=0)

    def come(self, *sequences: int, attempt: int = 1, header: bytes = HEADER) -> None:
        items = [[number, attempt, b"i" * 16, header, b"p"] for number in sequences]
        self.told(Verb.DELIVER, [self.held.endpoint, "me", items], topic="t", worker=0)

    def pass_looks(self, count: int) -> list[Sent]:
        """So many looks pass; what is sent meanwhile, heartbeats aside, each of it answered."""
        sent: list[Sent] = []
        for _ in range(count):
            self.now_ms += LOOK_MS
            self.session.tick(self.now_ms)
            for part in self.flush():
                if part.verb is Verb.PING:
                    self.told(Verb.PONG, None, request=part.request)
                    continue
                sent.append(part)
                if part.verb is Verb.EXTEND:
                    self.answer(part)
        return sent


def delivery_of(held: Subscription) -> Received:
    item, is_free = held.take_one()
    return Received(held, item, is_free)


# --- the session --------------------------------------------------------------------------------


def test_what_waits_and_what_is_in_hand_is_renewed_in_one_request() -> None:
    client = client_with()
    client.come(1, 2, 3)
    delivery_of(client.held)
    assert client.pass_looks(1) == [], "nothing was held for so long"
    (renewed,) = client.pass_looks(1)
    expected = (client.held.endpoint, (2, 3, 1), None, None, (1, 1, 1))
    assert (renewed.verb, renewed.body) == (Verb.EXTEND, expected)
    assert len(client.pass_looks(3)) == 3


def test_nothing_is_sent_where_nothing_is_held_for_long() -> None:
    client = client_with()
    for number in range(1, 30):
        client.come(number)
        delivery = delivery_of(client.held)
        delivery._climb(PROCESSED)
        client.session.touch(client.held)
        assert [sent.verb for sent in client.pass_looks(1)] == [Verb.REPORT]
    assert client.pass_looks(5) == []
    assert client.session.look_ms == NEVER_MS


def test_what_expects_no_report_is_not_renewed() -> None:
    client = client_with()
    client.come(1, 2, header=SENT_HEADER)
    assert client.pass_looks(4) == []


def test_a_lease_of_nothing_renews_nothing() -> None:
    client = client_with(held_for_ms=0)
    client.come(1, 2)
    assert client.pass_looks(10) == []
    assert len(client.held.buffer) == 2, "the deadlines are the broker's alone"


def test_what_the_broker_says_has_gone_is_not_handed_out_and_who_has_it_can_see_it() -> None:
    client = client_with()
    client.come(1, 2, 3)
    mine = delivery_of(client.held)
    assert not mine.lost
    client.pass_looks(1)
    client.now_ms += LOOK_MS
    client.session.tick(client.now_ms)
    renewed = next(sent for sent in client.flush() if sent.verb is Verb.EXTEND)
    client.answer(renewed, refused=[[1, "not_yours"], [2, "not_yours"]])
    assert mine.lost
    assert [item[0] for item in client.held.buffer] == [3]


def test_a_failure_of_an_old_attempt_leaves_the_newer_one_in_hand() -> None:
    client = client_with()
    client.come(1)
    old = delivery_of(client.held)
    client.come(1, attempt=2)
    new = delivery_of(client.held)
    old._climb(FAILED)
    assert not new.lost
    renewed = [part for part in client.pass_looks(3) if part.verb is Verb.EXTEND]
    assert renewed and {part.body[4] for part in renewed} == {(2,)}
    new._climb(FAILED)
    assert not client.held.taken


def test_what_is_processed_is_not_handed_out_again_by_the_same_client() -> None:
    client = client_with()
    client.come(1, 2)
    old = delivery_of(client.held)
    client.come(1, attempt=2)
    client.come(3, attempt=2)
    old._climb(PROCESSED)
    assert [(item[0], item[1]) for item, _ in client.held.take(9)] == [(2, 1), (3, 2)]


def test_what_is_processed_is_not_handed_out_again_once_its_endpoint_is_back() -> None:
    client = client_with()
    client.come(1)
    old = delivery_of(client.held)
    client.come(1, attempt=2)
    client.held.forget_connection()
    old._climb(PROCESSED)
    client.held.came_back(b"s", ())
    assert not client.held.buffer


def test_what_came_again_is_remembered_only_while_something_waits() -> None:
    client = client_with()
    for number in range(1, 50):
        client.come(number, attempt=2)
        delivery_of(client.held)
    assert len(client.held.again) <= 1


def stalled(client: Holder) -> Sent:
    """It was held up for longer than the deadline; what it asks before it hands out anything."""
    client.now_ms += SENT_MS + LOOK_MS
    client.session.look_if_late(client.held, client.now_ms)
    assert not client.held.buffer
    (asked,) = (part for part in client.flush() if part.verb is Verb.EXTEND)
    return asked


def test_after_a_stall_only_what_is_renewed_is_handed_out() -> None:
    client = client_with()
    client.come(1, 2, 3)
    asked = stalled(client)
    assert asked.body == (client.held.endpoint, (1, 2, 3), None, None, (1, 1, 1))
    client.answer(asked, refused=[[2, "not_yours"]])
    client.come(4)
    assert [item[0] for item, _ in client.held.take(9)] == [1, 3, 4]


def test_after_a_stall_what_lay_in_the_socket_is_renewed_too() -> None:
    client = client_with()
    client.come(1)
    asked = stalled(client)
    client.come(2, 3)  # ahead of the answer
    client.answer(asked)
    assert [item[0] for item, _ in client.held.take(9)] == [1]
    client.come(4)
    (asked,) = (part for part in client.flush() if part.verb is Verb.EXTEND)
    client.answer(asked, refused=[[3, "not_yours"]])
    assert sorted(item[0] for item, _ in client.held.take(9)) == [2, 4]


def test_after_a_stall_a_timer_that_is_first_hands_out_nothing_either() -> None:
    client = client_with()
    client.come(1)
    client.now_ms += SENT_MS + LOOK_MS
    client.session.tick(client.now_ms)
    assert not client.held.buffer
    (asked,) = (part for part in client.flush() if part.verb is Verb.EXTEND)
    client.answer(asked)
    assert [item[0] for item in client.held.buffer] == [1]


def test_an_answer_from_before_a_stall_says_nothing_behind_it() -> None:
    client = client_with()
    client.come(1)
    before = stalled(client)
    client.now_ms += SENT_MS + LOOK_MS
    client.session.tick(client.now_ms)
    client.answer(before)
    assert not client.held.buffer
    (asked,) = (part for part in client.flush() if part.verb is Verb.EXTEND)
    client.answer(asked)
    assert [item[0] for item in client.held.buffer] == [1]


def test_what_a_busy_broker_did_not_renew_after_a_stall_is_asked_for_again() -> None:
    client = client_with()
    client.come(1)
    asked = stalled(client)
    client.told(Verb.REFUSE, ["busy", "", 10], request=asked.request, topic="t", worker=0)
    assert not client.held.buffer
    assert [part.verb for part in client.pass_looks(1)] == [Verb.EXTEND]
    assert [item[0] for item in client.held.buffer] == [1]


def test_a_connection_that_is_lost_after_a_stall_brings_back_what_is_its_own() -> None:
    client = client_with()
    client.come(1, 2)
    stalled(client)
    client.held.forget_connection()
    client.held.came_back(b"s", (2,))
    assert [item[0] for item in client.held.buffer] == [1]


def test_who_is_not_late_hands_out_at_once() -> None:
    client = client_with()
    client.come(1)
    client.now_ms += LOOK_MS + LOOK_MS // 2
    client.session.look_if_late(client.held, client.now_ms)
    assert [item[0] for item in client.held.buffer] == [1]


def test_a_newer_attempt_that_came_meanwhile_stays() -> None:
    client = client_with()
    client.come(1)
    client.pass_looks(1)
    client.now_ms += LOOK_MS
    client.session.tick(client.now_ms)
    renewed = next(sent for sent in client.flush() if sent.verb is Verb.EXTEND)
    client.come(1, attempt=2)
    client.answer(renewed, refused=[[1, "not_yours"]])
    assert [item[:2] for item in client.held.buffer] == [(1, 2)]


def test_after_max_lease_a_delivery_in_hand_is_given_up_and_lost() -> None:
    client = client_with(held_for_ms=10 * LOOK_MS)
    client.held.leases.most_ms = 20 * LOOK_MS
    client.come(1)
    mine = delivery_of(client.held)
    sent = client.pass_looks(19)
    assert {part.body[2] for part in sent} == {None} and not mine.lost
    given_up = client.pass_looks(2)[-1]
    assert given_up.body == (client.held.endpoint, (1,), 0, None, (1,))
    assert mine.lost


def test_what_waited_too_long_is_dropped_and_no_more_comes_until_somebody_asks() -> None:
    client = client_with(held_for_ms=20 * LOOK_MS)
    client.come(1, 2)
    *_, grant, given_up = client.pass_looks(21)
    assert (grant.verb, grant.body) == (Verb.GRANT, (client.held.endpoint, 0, 10))
    assert given_up.body[1:3] == ((1, 2), 0)
    assert not client.held.buffer
    assert client.held.want_more(1, client.now_ms)
    client.session.touch(client.held)
    (grant,) = client.flush()
    assert grant.body == (client.held.endpoint, 10)


def test_with_no_limit_a_lease_is_renewed_for_ever() -> None:
    client = client_with(held_for_ms=None)
    client.come(1)
    mine = delivery_of(client.held)
    assert len(client.pass_looks(50)) == 49
    assert not mine.lost


def test_a_shorter_deadline_is_heard_of_and_renewed_at_once() -> None:
    client = client_with()
    client.come(1)
    body = {"endpoint": client.held.endpoint, "sent_timeout_ms": 90, "received_timeout_ms": 90}
    client.told(Verb.REPLY, body, topic="t", worker=0)
    (renewed,) = client.flush()
    assert renewed.verb is Verb.EXTEND
    assert client.session.look_ms == client.now_ms + 30


def test_more_than_a_request_may_name_is_renewed_in_several() -> None:
    client = client_with(credit=20_000)
    client.come(*range(1, 15_001))
    client.pass_looks(1)
    first, second = client.pass_looks(1)
    assert (len(first.body[1]), len(second.body[1])) == (limits.BATCH_MESSAGES_MAX, 5_000)


def test_while_its_endpoint_is_away_nothing_is_renewed_and_then_it_is_again() -> None:
    client = client_with()
    client.come(1)
    mine = delivery_of(client.held)
    client.session.lost()
    client.now_ms += 10 * LOOK_MS
    (subscribe,) = client.open()
    client.answer(
        subscribe, receiver="me", sent_timeout_ms=SENT_MS, received_timeout_ms=RECEIVED_MS
    )
    sent = client.pass_looks(3)
    assert Verb.EXTEND in [part.verb for part in sent]
    assert not mine.lost


def test_what_was_lost_while_its_endpoint_was_away_can_be_seen() -> None:
    client = client_with()
    client.come(1)
    mine = delivery_of(client.held)
    client.session.lost()
    (subscribe,) = client.open()
    client.answer(subscribe, receiver="me", lost=[1])
    assert mine.lost


def test_a_busy_broker_is_asked_again_soon() -> None:
    client = client_with()
    client.come(1)
    client.pass_looks(1)
    client.now_ms += LOOK_MS
    client.session.tick(client.now_ms)
    renewed = next(sent for sent in client.flush() if sent.verb is Verb.EXTEND)
    client.refuse(renewed, "busy", "", 20)
    client.now_ms += 20
    client.session.tick(client.now_ms)
    assert Verb.EXTEND in [sent.verb for sent in client.flush()]


def test_a_finished_delivery_is_not_lost() -> None:
    client = client_with()
    client.come(1)
    mine = delivery_of(client.held)
    mine._climb(PROCESSED)
    assert not mine.lost


def test_a_client_that_is_not_told_deadlines_renews_nothing() -> None:
    leases = Leases(10_000)
    assert not leases.begin(1_000) and leases.look_ms == NEVER_MS


# --- credit ---------------------------------------------------------------------------------------


def test_credit_that_nobody_fixed_is_raised_when_the_consumer_wants_more() -> None:
    client = client_with(credit=None)
    first = client.held.credit
    client.come(*range(1, first + 1), header=SENT_HEADER)
    client.held.take(first)
    client.held.want_more(1, client.now_ms)  # from here on it is measured
    client.come(*range(1, first + 1), header=SENT_HEADER)
    client.held.take(first)
    assert client.held.want_more(1, client.now_ms + 1)
    client.session.touch(client.held)
    (grant,) = client.flush()
    assert grant.body == (client.held.endpoint, 3 * first), "what was taken, and as much again"


def test_credit_is_taken_back_from_a_consumer_that_leaves_too_much() -> None:
    client = client_with(credit=None)
    first = client.held.credit
    client.come(*range(1, first + 1))
    delivery_of(client.held)
    client.now_ms += 1_000
    client.come(first + 1)
    (grant,) = client.flush()
    assert grant.verb is Verb.GRANT
    endpoint, credit, less = grant.body
    assert (endpoint, credit, less) == (client.held.endpoint, 0, first - 1)
    assert client.held.credit == 1


def test_a_fixed_credit_stays() -> None:
    client = client_with(credit=10)
    for start in range(1, 100, 10):
        client.come(*range(start, start + 10), header=SENT_HEADER)
        client.held.take(10)
        assert not client.held.want_more(1_000, client.now_ms)
    assert client.held.credit == 10
