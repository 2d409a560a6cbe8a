"""Who holds which message, and until when."""

from asterism.gateways.pubsub.holds import RENEW_S, Budget, Held, Holds, Swept


class Counting:
    """Somebody who holds messages, or gives them: counts the bytes that came back."""

    def __init__(self) -> None:
        self.freed_bytes = 0

    def freed(self, size: int) -> None:
        self.freed_bytes += size


def held(number: int, until_s: float, taker: Counting, attempt: int = 1, size: int = 10) -> Held:
    return Held(number, attempt, size, taker, Counting(), until_s)


def test_what_is_held_is_nobodys_after_its_deadline() -> None:
    holds, taker = Holds(Budget(10)), Counting()
    holds.add(7, held(1, 110.0, taker, attempt=3), 100.0)
    assert holds.sweep(109.0) == Swept([], [])
    assert holds.is_held(7, 1)
    assert holds.sweep(110.5) == Swept([(7, 3)], [])
    assert not holds.is_held(7, 1)
    assert (len(holds), taker.freed_bytes) == (0, 10)


def test_a_deadline_can_be_moved_both_ways() -> None:
    holds, taker = Holds(Budget(10)), Counting()
    first, second = held(1, 110.0, taker), held(2, 600.0, taker)
    holds.add(1, first, 100.0)
    holds.add(2, second, 100.0)
    holds.extend(1, first, 125.0)
    holds.extend(2, second, 105.0)
    assert holds.sweep(112.0) == Swept([(2, 1)], [])
    assert holds.sweep(125.5) == Swept([(1, 1)], [])


def test_a_lease_is_renewed_before_it_runs_out_for_as_long_as_the_message_is_held() -> None:
    holds = Holds(Budget(10))
    holds.add(1, held(1, 100.0 + 3 * RENEW_S, Counting()), 100.0)
    renewed = 0
    for quarter in range(400, 400 + int(12 * RENEW_S) + 2):
        expired, to_renew = holds.sweep(quarter / 4)
        renewed += len(to_renew)
        if expired:
            break
    assert (expired, renewed) == ([(1, 1)], 2)


def test_a_message_that_is_handed_out_anew_is_no_more_with_whoever_had_it() -> None:
    holds, before, after = Holds(Budget(10)), Counting(), Counting()
    holds.add(1, held(1, 110.0, before), 100.0)
    holds.add(1, held(2, 120.0, after), 105.0)
    assert (before.freed_bytes, after.freed_bytes) == (10, 0)
    assert not holds.is_held(1, 1)
    assert holds.sweep(111.0) == Swept([], [])
    assert holds.is_held(1, 2)


def test_what_all_may_have_comes_back_with_what_is_released() -> None:
    budget = Budget(2)
    one, other = Holds(budget), Holds(budget)
    one.add(1, held(1, 110.0, Counting()), 100.0)
    other.add(1, held(2, 110.0, Counting()), 100.0)
    assert budget.left == 0
    one.release(1)
    assert one.release(1) is None
    other.release_all()
    assert budget.left == 2


def test_nothing_is_kept_of_what_is_released() -> None:
    holds = Holds(Budget(1_000))
    for sequence in range(1_000):
        holds.add(sequence, held(sequence, 600.0, Counting()), 100.0)
        holds.release(sequence)
    assert holds._due == {}
    assert holds._held == {}
