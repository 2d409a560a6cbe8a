"""Real power cuts of a real file system, a few of them: ``tests.fault.image_cuts`` makes more."""

import os
import random
from pathlib import Path

import pytest

from tests.fault import image_cuts, volatile_disk
from tests.fault.image_cuts import Plan, Seen, judge

pytestmark = [pytest.mark.fault, pytest.mark.slow]
CUTS = 3
PLAN = Plan(cuts=CUTS, seed=1, lives=CUTS, life_s=(0.3, 0.8))


@pytest.mark.parametrize("sync", ["always", "20ms"])
def test_what_was_accepted_before_a_power_cut_is_there_after_it(
    short_folder: Path, sync: str
) -> None:
    missing = volatile_disk.unavailable()
    if missing:
        pytest.skip(missing)
    judged = image_cuts.run(PLAN._replace(sync=sync), short_folder)
    assert judged.wrong == []
    assert judged.figures["cuts"] == CUTS
    assert judged.figures["accepted"] > 0


@pytest.fixture
def short_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sockets live beneath it, and the system limits the length of their paths."""
    return tmp_path_factory.mktemp("c")


# --- the disk -------------------------------------------------------------------------------------


def test_a_flushed_write_outlives_every_cut_and_an_unflushed_one_may_not(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    lost = 0
    for seed in range(50):
        path.write_bytes(b"." * 65_536)
        file = os.open(path, os.O_RDWR)
        cache = volatile_disk.Cache(file)
        cache.write(0, b"flushed" * 1_000)
        cache.flush()
        cache.write(4_096, b"later" * 1_000)
        cache.write(20_000, b"apart" * 100)
        cache.cut(random.Random(seed))
        content = os.pread(file, 65_536, 0)
        os.close(file)
        assert content[:4_096] == (b"flushed" * 1_000)[:4_096]
        assert len(content) == 65_536
        lost += b"apart" not in content
    assert 0 < lost < 50


# --- the judge ------------------------------------------------------------------------------------


def seen(**more: object) -> Seen:
    """A message that was accepted, delivered, reported and resolved; then what is given."""
    one = ("orders", 1)
    held = Seen([10.0], [], {one: 5.0}, {("orders", "d", 1): {7}}, {one: ("ok", 8.0)})
    held.delivered.add(one)
    held.reported[one] = 7.0
    for name, value in more.items():
        setattr(held, name, value)
    return held


def wrong(held: Seen, sync: str = "always") -> set[str]:
    tally = judge(PLAN._replace(sync=sync), held)
    return {name for name, value in tally._asdict().items() if isinstance(value, tuple) and value}


def test_the_judge_finds_nothing_where_nothing_is_wrong() -> None:
    assert wrong(seen()) == set()


def test_the_judge_sees_a_message_that_is_lost() -> None:
    assert wrong(seen(delivered=set())) == {"lost"}


def test_a_message_may_be_lost_only_if_it_was_accepted_within_the_interval_of_syncs() -> None:
    assert wrong(seen(delivered=set()), "20ms") == {"lost"}
    assert wrong(seen(delivered=set(), cuts=[5.01]), "20ms") == set()
    assert wrong(seen(delivered=set(), cuts=[5.01])) == {"lost"}


def test_the_judge_sees_a_message_that_was_ended_before_anybody_reported_it() -> None:
    assert wrong(seen(reported={("orders", 1): 9.0})) == {"ended_by_another"}
    assert wrong(seen(reported={})) == {"ended_by_another"}


def test_the_judge_sees_sequences_that_were_given_twice() -> None:
    twice = {("orders", "d", 1): {7}, ("orders", "p", 2): {7}}
    assert wrong(seen(sequences=twice)) == {"sequences_twice"}
    assert wrong(seen(sequences={("orders", "d", 1): {7, 8}})) == {"sequences_twice"}


def test_the_judge_sees_verdicts_that_never_came_and_publishers_that_were_refused() -> None:
    assert wrong(seen(verdicts={})) == {"unresolved"}
    assert wrong(seen(refused=["1 on orders: wrong_state"])) == {"refused"}


def test_the_judge_tells_a_store_that_was_refused_from_a_broker_that_did_not_start() -> None:
    assert wrong(seen(unstarted=["store 3 is damaged"])) == {"stores_refused"}
    assert wrong(seen(unstarted=["Expecting value: line 1"])) == {"not_started"}
