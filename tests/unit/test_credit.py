"""How much credit an inbox has that nobody fixed: the policy, with time passed in."""

from asterism.sdk.credit import CREDIT_FIRST, CREDIT_MOST, WORK_MS, AdaptiveCredit


class Window:
    """An inbox with a backlog behind it: what is asked is there a millisecond later."""

    def __init__(self) -> None:
        self.policy = AdaptiveCredit()
        self.limit = CREDIT_FIRST
        self.now_ms = 1_000
        self.arrived = self.waiting = self.in_hand = 0

    def fill(self) -> None:
        """As much comes as there is credit for."""
        count = max(self.limit - self.waiting - self.in_hand, 0)
        self.arrived += count
        self.waiting += count
        self.limit -= self.policy.less(self.limit, self.arrived, self.waiting, self.now_ms)

    def ask(self, wanted: int = 1) -> None:
        """The consumer takes what it asks for; where that is not there, it may have more."""
        if wanted > self.waiting:
            self.limit += self.policy.more(
                self.limit, self.arrived, self.in_hand, wanted, self.now_ms
            )
        taken = min(wanted, self.waiting)
        self.waiting -= taken
        self.in_hand += taken

    def work(self, seconds_each: float, seconds: float, wanted: int = 1) -> float:
        """Takes and finishes for so long, each or each batch in its time; the part of it that it
        did not wait."""
        waited = 0
        until_ms, clock, filled_ms = self.now_ms + seconds * 1_000, float(self.now_ms), 0
        while self.now_ms < until_ms:
            if self.now_ms > filled_ms:
                filled_ms = self.now_ms
                self.fill()
            self.ask(wanted)
            clock += seconds_each * 1_000 if self.in_hand else 1
            waited += not self.in_hand
            self.now_ms = int(clock)
            self.in_hand = 0
        return 1 - waited / 1_000 / seconds


def test_an_inbox_begins_small() -> None:
    assert Window().limit == CREDIT_FIRST <= 16


def test_a_fast_consumer_has_all_it_can_take_within_a_moment() -> None:
    window = Window()
    assert window.work(0.000_005, seconds=1) > 0.95, "it hardly ever waits"
    window = Window()
    window.work(0.001, seconds=0.1, wanted=10_000)  # it takes all there is at a time
    assert window.limit == CREDIT_MOST


def test_an_inbox_never_grows_past_its_bound() -> None:
    window = Window()
    window.work(0.001, seconds=5, wanted=100_000)
    assert window.limit == CREDIT_MOST


def test_what_waits_for_a_slow_consumer_is_a_fraction_of_a_seconds_work() -> None:
    for seconds_each in (0.035, 0.2, 3.0):
        window = Window()
        window.work(seconds_each, seconds=100 * seconds_each)
        assert window.waiting <= max(WORK_MS / 1_000 / seconds_each, 1) + 1
        assert window.limit >= 1


def test_a_consumer_that_becomes_slow_is_left_with_little() -> None:
    window = Window()
    window.work(0.000_005, seconds=1)
    window.work(0.05, seconds=2)
    assert window.limit <= 8


def test_a_consumer_that_becomes_fast_again_hardly_waits_again() -> None:
    window = Window()
    window.work(0.5, seconds=10)
    assert window.limit <= 2
    assert window.work(0.000_005, seconds=1) > 0.95


def test_one_that_is_never_found_empty_does_not_grow() -> None:
    window = Window()
    for _ in range(1_000):
        window.fill()
        window.ask()
        window.in_hand = 0
        window.now_ms += 1
    assert window.limit == CREDIT_FIRST


def test_one_message_now_and_then_does_not_make_it_grow() -> None:
    window = Window()
    for _ in range(1_000):
        window.arrived += 1
        window.waiting += 1
        window.ask()
        window.in_hand = 0
        window.ask()
        window.now_ms += 50
    assert window.limit == CREDIT_FIRST


def test_who_takes_many_at_a_time_and_rarely_gets_as_many_as_he_asks_for() -> None:
    window = Window()
    window.work(1.0, seconds=30, wanted=1_000)
    assert 1_000 <= window.limit <= 4_000


def test_who_has_all_in_hand_and_asks_may_have_more() -> None:
    window = Window()
    for _ in range(10):  # nothing is finished: many work at a time
        window.fill()
        while window.waiting:
            window.ask()
        window.ask()
        window.now_ms += 1_000
    assert window.limit >= 1_000
