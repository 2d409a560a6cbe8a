"""Killed and paused processes under load: nothing is lost, stored twice or out of order.

The short form of ``python -m tests.fault.killing``; and the judge of both is judged here, by
records in which each promise is broken in the smallest way.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.fault.killing import (
    CALM_S,
    GRACE_S,
    LATE_S,
    Accepted,
    Delivered,
    Judgement,
    Kill,
    Plan,
    Seen,
    Stroke,
    audit,
    run,
    strokes_of,
)

pytestmark = [pytest.mark.fault, pytest.mark.slow]


def explained(judged: Judgement, folder: Path) -> str:
    wrong = "\n".join(judged.wrong)
    return f"{wrong}\nseed {judged.figures['seed']}; notes and logs are in {folder}"


# --- real processes -------------------------------------------------------------------------------


# Where the machine is busy, a process takes longer to come back than 0.3 seconds, and little flows
# between the kills. With more time, they are sure to hit what is under way. The clients are of the
# broker's machine: with lanes they speak to the workers themselves, without as from another one.
@pytest.mark.parametrize(
    ("every_s", "kills", "lanes"),
    [(0.3, 8, True), (0.8, 4, True), (0.8, 4, False)],
    ids=["quick", "slow", "slow without lanes"],
)
def test_killed_processes_lose_nothing_repeat_only_what_was_under_way_and_keep_the_order(
    tmp_path: Path, every_s: float, kills: int, lanes: bool
) -> None:
    plan = Plan(messages=4_000, kills=kills, every_s=every_s, seed=8, lanes=lanes)
    judged = run(plan, tmp_path)
    assert not judged.wrong, explained(judged, tmp_path)
    assert sum(judged.figures["processes_killed"].values()) >= kills
    if every_s > 0.5:
        assert judged.figures["accepted_between_kills"] > 0


def test_a_killed_interest_router_repeats_nothing(tmp_path: Path) -> None:
    plan = Plan(messages=1_000, kills=3, targets=("interests",), pauses=False)
    judged = run(plan, tmp_path)
    assert not judged.wrong, explained(judged, tmp_path)
    assert judged.figures["delivered_again"] == 0


def test_paused_processes_repeat_nothing(tmp_path: Path) -> None:
    plan = Plan(messages=1_000, kills=4)
    strokes = [
        Stroke(CALM_S + number * plan.every_s, name, 0.4) for number, name in enumerate(plan.names)
    ]
    judged = run(plan, tmp_path, strokes=strokes)
    assert not judged.wrong, explained(judged, tmp_path)
    assert judged.figures["pauses"] == len(plan.names)
    assert judged.figures["delivered_again"] == 0


@pytest.mark.parametrize("lanes", [True, False], ids=["lanes", "no lanes"])
def test_nobody_is_handed_what_another_holds_while_processes_are_killed(
    tmp_path: Path, lanes: bool
) -> None:
    """Consumers hold what they have in hand for longer than a process takes to come back."""
    targets = ("worker-0", "worker-1", "frontend")
    plan = Plan(messages=400, kills=3, every_s=2.5, lanes=lanes, work_s=2.0)
    strokes = [Stroke(CALM_S + number * plan.every_s, name) for number, name in enumerate(targets)]
    judged = run(plan, tmp_path, strokes=strokes)
    assert not judged.wrong, explained(judged, tmp_path)
    assert judged.figures["two_holders"] == 0
    assert sum(judged.figures["processes_killed"].values()) == len(targets)


# --- the judge ------------------------------------------------------------------------------------

PLAN = Plan(messages=4, kills=1)
TOPIC, OTHER = PLAN.topics
KILLED_AT = 10.0


def delivery(sequence: int, attempt: int = 1, consumer: int = 0, at: float = 5.0) -> Delivered:
    """Of the message of this sequence, in ``seen``."""
    return Delivered(TOPIC, 0, sequence, sequence, attempt, consumer, at)


def kill_of(name: str) -> Kill:
    return Kill(name, name, 1, KILLED_AT, KILLED_AT + 0.5)


def seen(**changes: Any) -> Seen:
    """A run in which four messages were published and processed, with something else in it."""
    accepted = [Accepted(TOPIC, 0, number, number, 4.0, 4.5) for number in range(1, 5)]
    emptied = {"held": 0, "waiting": 0, "sent": 0, "received": 0, "parked": 0}
    described = [
        {"topic": TOPIC, "completed": 4, **emptied},
        {"topic": OTHER, "completed": 0, **emptied},
    ]
    good = Seen(
        plan=PLAN,
        accepted=accepted,
        refused=[],
        verdicts={"ok": 4},
        delivered=[delivery(number) for number in range(1, 5)],
        kills=[],
        pauses=0,
        described=described,
        seconds=1.0,
        drained_s=1.0,
    )
    return good._replace(**changes)


def test_the_judge_finds_nothing_wrong_where_nothing_is() -> None:
    assert audit(seen()).wrong == []


def test_the_judge_notices_two_holders_at_once() -> None:
    handed = [
        delivery(1, at=9.0)._replace(until=12.0),
        *(delivery(number) for number in (2, 3, 4)),
        delivery(1, attempt=2, consumer=1, at=11.0)._replace(until=11.5),
    ]
    judged = audit(seen(delivered=handed, kills=[kill_of("frontend")]))
    assert judged.figures["two_holders"] == 1
    assert any("two holders at once" in line for line in judged.wrong)


@pytest.mark.parametrize(
    ("consumer", "until", "at"),
    [(0, 12.0, 11.0), (1, 11.0, 11.0), (1, 99.0, KILLED_AT + 0.5 + GRACE_S)],
    ids=["the same consumer", "once its report was answered", "once its grace is over"],
)
def test_the_judge_finds_one_holder_where_there_is_one(
    consumer: int, until: float, at: float
) -> None:
    handed = [
        delivery(1, at=9.0)._replace(until=until),
        *(delivery(number) for number in (2, 3, 4)),
        delivery(1, attempt=2, consumer=consumer, at=at)._replace(until=at + 1),
    ]
    judged = audit(seen(delivered=handed, kills=[kill_of("frontend")]))
    assert judged.figures["two_holders"] == 0 and not judged.wrong


def test_the_judge_notices_what_was_lost() -> None:
    judged = audit(seen(delivered=[delivery(number) for number in (1, 2, 4)]))
    assert judged.figures["lost"] == 1
    assert "never delivered" in judged.wrong[0]


def test_the_judge_notices_what_was_not_accepted() -> None:
    assert "3 accepted of 4" in audit(seen(accepted=seen().accepted[:3])).wrong[0]
    assert "1 refused" in audit(seen(refused=["internal"])).wrong[0]


def test_the_judge_notices_a_receipt_that_does_not_say_ok() -> None:
    assert "not all receipts" in audit(seen(verdicts={"ok": 3, "unknown": 1})).wrong[0]


def test_the_judge_notices_a_message_under_two_sequences() -> None:
    again = Delivered(TOPIC, 0, 2, 9, 1, 0, 5.0)
    judged = audit(seen(delivered=[*seen().delivered, again]))
    assert judged.figures["stored_twice"] == 1
    assert "stored twice" in judged.wrong[0]


def test_the_judge_notices_two_messages_under_one_sequence() -> None:
    accepted = [one._replace(sequence=max(one.sequence, 2)) for one in seen().accepted]
    assert any("stored twice" in line for line in audit(seen(accepted=accepted)).wrong)


def test_the_judge_notices_a_topic_that_is_not_empty() -> None:
    first, second = seen().described
    left = [{**first, "held": 1, "waiting": 1}, second]
    assert "is not empty" in audit(seen(described=left)).wrong[0]


def test_the_judge_notices_a_topic_that_counts_more_than_were_accepted() -> None:
    first, second = seen().described
    counted = [{**first, "completed": 5}, second]
    assert "5 are done" in audit(seen(described=counted)).wrong[0]


def test_the_judge_notices_messages_stored_out_of_order() -> None:
    accepted = [one._replace(number=5 - one.number) for one in seen().accepted]
    delivered = [one._replace(number=5 - one.number) for one in seen().delivered]
    judged = audit(seen(accepted=accepted, delivered=delivered))
    assert len(judged.wrong) == 1
    assert "out of order" in judged.wrong[0]


def test_the_judge_notices_first_attempts_out_of_order() -> None:
    judged = audit(seen(delivered=[delivery(number) for number in (1, 3, 2, 4)]))
    assert "out of order" in judged.wrong[0]


def test_the_judge_looks_at_the_order_of_each_consumer_alone() -> None:
    delivered = [delivery(2, consumer=1), delivery(4, consumer=1), delivery(1), delivery(3)]
    assert audit(seen(delivered=delivered)).wrong == []


def test_the_judge_notices_an_attempt_that_was_made_twice() -> None:
    again = delivery(4, consumer=1, at=11.0)
    judged = audit(seen(delivered=[*seen().delivered, again], kills=[kill_of("frontend")]))
    assert "attempts delivered twice" in judged.wrong[0]


@pytest.mark.parametrize("name", ["frontend", "worker-0"])
def test_a_delivery_under_way_at_a_kill_may_be_repeated(name: str) -> None:
    again = delivery(4, attempt=2, consumer=1, at=11.0)
    judged = audit(seen(delivered=[*seen().delivered, again], kills=[kill_of(name)]))
    assert judged.wrong == []
    assert judged.figures["duplicates"] == 1


@pytest.mark.parametrize("name", ["interests", "worker-1"])
def test_the_judge_notices_what_was_repeated_though_its_processes_lived(name: str) -> None:
    again = delivery(4, attempt=2, consumer=1, at=11.0)
    judged = audit(seen(delivered=[*seen().delivered, again], kills=[kill_of(name)]))
    assert "nobody was killed" in judged.wrong[0]


@pytest.mark.parametrize(
    ("first_at", "again_at"),
    [(5.0, 9.0), (KILLED_AT + 0.5 + LATE_S + 0.1, 20.0)],
    ids=["before the kill", "after it"],
)
def test_the_judge_notices_what_was_repeated_at_another_time_than_a_kill(
    first_at: float, again_at: float
) -> None:
    delivered = [delivery(1), delivery(2), delivery(3), delivery(4, at=first_at)]
    delivered.append(delivery(4, attempt=2, consumer=1, at=again_at))
    judged = audit(seen(delivered=delivered, kills=[kill_of("frontend")]))
    assert "nobody was killed" in judged.wrong[0]


@pytest.mark.parametrize(
    ("name", "lanes", "sent_at", "is_right"),
    [
        ("frontend", True, KILLED_AT + 0.1, True),
        ("frontend", True, KILLED_AT + 0.5 + LATE_S + 0.1, False),
        ("frontend", False, KILLED_AT + 0.1, False),
        ("worker-0", True, KILLED_AT + 0.1, False),
    ],
    ids=["on lanes", "long after it", "without lanes", "a worker"],
)
def test_what_was_sent_on_lanes_before_all_had_heard_of_a_killed_front_end_may_be_repeated(
    name: str, lanes: bool, sent_at: float, is_right: bool
) -> None:
    accepted = [one._replace(sent_at=sent_at) for one in seen().accepted]
    delivered = [delivery(number, at=KILLED_AT + 0.2) for number in range(1, 5)]
    delivered.append(delivery(4, attempt=2, consumer=1, at=20.0))
    plan = PLAN._replace(lanes=lanes)
    judged = audit(seen(plan=plan, accepted=accepted, delivered=delivered, kills=[kill_of(name)]))
    assert (judged.wrong == []) is is_right


def test_a_seed_decides_who_is_struck_and_when() -> None:
    plan = Plan(kills=20, seed=3)
    assert strokes_of(plan) == strokes_of(plan)
    assert strokes_of(plan) != strokes_of(plan._replace(seed=4))
    assert sum(stroke.pause_s == 0 for stroke in strokes_of(plan)) == 20
