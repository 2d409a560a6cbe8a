"""What the interest router knows: for each topic its interests, and at which version. Pure.

All of it is soft: the workers own their receivers and tell them again whenever they are asked. A
version names one set of interests of a topic. A question is answered only at the version that is
known here, so that an answer is never older than the question, whatever was lost on the way.
"""

from collections.abc import Iterable

from asterism.router.interest import InterestTrie

Pairs = Iterable[tuple[str, int]]


class InterestTable:
    """The interests of all topics."""

    def __init__(self) -> None:
        self._topics: dict[str, tuple[int, InterestTrie[int]]] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def replace(self, topic: str, version: int, pairs: Pairs) -> None:
        """These are all interests of a topic."""
        trie: InterestTrie[int] = InterestTrie()
        for interest, receiver in pairs:
            trie.add(interest, receiver)
        self._topics[topic] = (version, trie)

    def change(self, topic: str, before: int, after: int, added: Pairs, removed: Pairs) -> bool:
        """From one version to the next; False, with nothing done, if the first is not known."""
        known = self._topics.get(topic)
        if known is None or known[0] != before:
            return False
        trie = known[1]
        for interest, receiver in removed:
            trie.remove(interest, receiver)
        for interest, receiver in added:
            trie.add(interest, receiver)
        self._topics[topic] = (after, trie)
        return True

    def forget(self, topic: str) -> None:
        self._topics.pop(topic, None)

    def match(self, topic: str, version: int, subjects: tuple[str, ...]) -> frozenset[int] | None:
        """Who is interested; ``None`` if this version is not known here."""
        known = self._topics.get(topic)
        if known is None or known[0] != version:
            return None
        return known[1].match_any(subjects)
