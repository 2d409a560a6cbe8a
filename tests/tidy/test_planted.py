"""Every planted bug can still be planted: its place stands in the code exactly once."""

import pytest

from tests.mutation.planted import PLANTED, Planted
from tests.tidy.tree import ROOT


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.promise)
def test_a_planted_bug_has_its_place(bug: Planted) -> None:
    assert (ROOT / bug.file).read_text().count(bug.before) == 1
    assert bug.before != bug.after
    for test in bug.tests.split():
        assert (ROOT / test).exists()


def test_there_is_a_planted_bug_for_each_main_promise() -> None:
    assert len(PLANTED) >= 20
    assert len({bug.promise for bug in PLANTED}) == len(PLANTED)
