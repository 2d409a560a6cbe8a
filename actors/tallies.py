"""How many messages of the pool are held, by their subjects. Plain data; no decisions.

Who is interested in a message changes while it waits; its subjects do not. So counts are kept by
subjects, and who has to do them is asked when somebody wants to know. A topic with very many
different subjects counts those beyond a bound together.

I1 While ``others`` is not 0, all messages of subjects that are not in ``by_subjects`` are in it.
"""

from asterism import limits

Subjects = tuple[str, ...]


class Tally:
    """Counts of held messages."""

    __slots__ = ("by_subjects", "others")

    def __init__(self) -> None:
        self.by_subjects: dict[Subjects, int] = {}
        self.others = 0

    def add(self, subjects: Subjects, count: int = 1) -> None:
        by_subjects = self.by_subjects
        known = by_subjects.get(subjects)
        if known is not None:
            by_subjects[subjects] = known + count
        elif self.others or len(by_subjects) >= limits.SUBJECTS_COUNTED_MAX:
            self.others += count  # also once there is room again: see I1
        else:
            by_subjects[subjects] = count

    def take(self, subjects: Subjects, count: int = 1) -> None:
        known = self.by_subjects.get(subjects)
        if known is None:
            # A folder of an earlier version does not say what was delayed: never below 0.
            self.others = max(self.others - count, 0)
        elif known > count:
            self.by_subjects[subjects] = known - count
        else:
            del self.by_subjects[subjects]

    def clear(self) -> None:
        self.by_subjects.clear()
        self.others = 0

    def stored(self) -> tuple[tuple[tuple[Subjects, int], ...], int]:
        """What the head keeps: few subjects as they are, more of them as one number."""
        if len(self.by_subjects) <= limits.SUBJECTS_STORED_MAX:
            return tuple(self.by_subjects.items()), self.others
        return (), self.others + sum(self.by_subjects.values())

    def restore(self, by_subjects: tuple[tuple[Subjects, int], ...], others: int) -> None:
        self.by_subjects = dict(by_subjects)
        self.others = others
