"""Who wants a subject: one trie of one topic's interests. Pure: no socket, no file, no clock.

Each segment of an interest is an edge; ``*`` and ``**`` are edges of their own, so an interest that
matches is found without looking at those that do not. A match walks the trie with the set of nodes
that the segments read so far can have led to. It does not check what a caller may subscribe to,
and it does not remember answers: who asks often keeps them.

I1  A node exists only on the path of an interest that some receiver holds: a leaf has receivers.
    What has been removed leaves nothing behind.
I2  A receiver holds an interest once, however it spelled the slashes; ``len`` counts these pairs.
I3  A walk looks at a node at most once per segment. Many ``**`` in one interest, or in many, cost
    at most nodes times segments, never a power of anything.
I4  The same walk answers for a whole trie and for a single pair: there is no second matcher.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from asterism.subjects import MANY, ONE, split_interest, split_subject

Receiver = TypeVar("Receiver", bound=Hashable)


class _Node(Generic[Receiver]):
    """The interests that begin with one sequence of segments.

    Most nodes have one kind of child or only receivers, and there are as many nodes as interests
    and more: so each collection is made when it is first needed, and given up when it is empty.
    """

    __slots__ = ("literals", "many", "one", "receivers")

    def __init__(self) -> None:
        self.literals: dict[str, _Node[Receiver]] | None = None
        self.one: _Node[Receiver] | None = None
        self.many: _Node[Receiver] | None = None
        self.receivers: set[Receiver] | None = None

    def child(self, segment: str) -> "_Node[Receiver] | None":
        if segment == ONE:
            return self.one
        if segment == MANY:
            return self.many
        return None if self.literals is None else self.literals.get(segment)

    def attach(self, segment: str) -> "_Node[Receiver]":
        child: _Node[Receiver] = _Node()
        if segment == ONE:
            self.one = child
        elif segment == MANY:
            self.many = child
        elif self.literals is None:
            self.literals = {segment: child}
        else:
            self.literals[segment] = child
        return child

    def detach(self, segment: str) -> None:
        if segment == ONE:
            self.one = None
        elif segment == MANY:
            self.many = None
        else:
            assert self.literals is not None, "only a child that is there is detached"
            del self.literals[segment]
            # An emptied dict keeps its table, as large as it ever was.
            self.literals = self.literals or None

    def has_children(self) -> bool:
        return not (self.literals is None and self.one is None and self.many is None)

    def children(self) -> "Iterable[_Node[Receiver]]":
        yield from (self.literals or {}).values()
        yield from (child for child in (self.one, self.many) if child is not None)


class InterestTrie(Generic[Receiver]):
    """Globs to receivers. A receiver is any hashable value; the core uses small integers."""

    __slots__ = ("_pairs", "_root")

    def __init__(self) -> None:
        self._root: _Node[Receiver] = _Node()
        self._pairs = 0

    def __len__(self) -> int:
        """How many (interest, receiver) pairs are held."""
        return self._pairs

    def node_count(self) -> int:
        """How many nodes there are besides the root: counted, for tests of I1, not remembered."""
        count = -1
        to_visit = [self._root]
        while to_visit:
            count += 1
            to_visit.extend(to_visit.pop().children())
        return count

    def add(self, interest: str, receiver: Receiver) -> bool:
        """Whether the pair is new. ``bad_interest`` changes nothing."""
        return self.add_segments(split_interest(interest), receiver)

    def add_segments(self, segments: tuple[str, ...], receiver: Receiver) -> bool:
        """``add`` for a caller that has split its interest, by whatever rules."""
        node = self._root
        for segment in segments:
            node = node.child(segment) or node.attach(segment)
        if node.receivers is None:
            node.receivers = set()
        elif receiver in node.receivers:
            return False
        node.receivers.add(receiver)
        self._pairs += 1
        return True

    def remove(self, interest: str, receiver: Receiver) -> bool:
        """Whether the pair was there. ``bad_interest`` changes nothing."""
        return self.remove_segments(split_interest(interest), receiver)

    def remove_segments(self, segments: tuple[str, ...], receiver: Receiver) -> bool:
        """``remove`` for a caller that has split its interest."""
        node = self._root
        path: list[tuple[_Node[Receiver], str]] = []
        for segment in segments:
            path.append((node, segment))
            child = node.child(segment)
            if child is None:
                return False
            node = child
        if node.receivers is None or receiver not in node.receivers:
            return False
        node.receivers.remove(receiver)
        self._pairs -= 1
        if not node.receivers:
            node.receivers = None
            _prune(node, path)
        return True

    def match(self, subject: str) -> set[Receiver]:
        """Who wants this subject; the caller owns the set. ``bad_subject`` if it is none."""
        return self.match_segments(split_subject(subject))

    def match_segments(self, segments: tuple[str, ...]) -> set[Receiver]:
        """``match`` for a caller that has what ``split_subject`` returned."""
        found: set[Receiver] = set()
        _walk(self._root, segments, found)
        return found

    def match_any(self, subjects: Iterable[str]) -> frozenset[Receiver]:
        """Who wants a message with these subjects: each once, whatever number of them matches."""
        assert not isinstance(subjects, str), "one subject is matched by match()"
        found: set[Receiver] = set()
        for subject in subjects:
            _walk(self._root, split_subject(subject), found)
        return frozenset(found)


def matches(interest: str, subject: str) -> bool:
    """Whether one interest wants one subject.

    It builds a trie of one interest. Who holds an interest against many subjects (a filter, a scan
    of a backlog) builds that trie once and asks it.
    """
    trie: InterestTrie[None] = InterestTrie()
    trie.add(interest, None)
    return bool(trie.match(subject))


def _walk(root: _Node[Receiver], segments: tuple[str, ...], found: set[Receiver]) -> None:
    """Add to ``found`` the receivers of every interest that matches the whole of ``segments``.

    ``level`` holds the nodes that end exactly here. A node has one parent, so no node comes twice
    from there; only a ``**`` can also come from itself. But a ``**`` that was reached stays reached
    whatever follows: its receivers are found at once, and if interests go on behind it, it stands
    in ``looping`` for the rest of the walk.
    """
    level = [root]
    looping: list[_Node[Receiver]] = []
    reached: set[_Node[Receiver]] = set()
    for segment in segments:
        following: list[_Node[Receiver]] = []
        # A copy: a ``**`` reached by this segment takes its next step with the next segment.
        for node in level + looping:
            if node.literals and (literal := node.literals.get(segment)):
                following.append(literal)
            if node.one:
                following.append(node.one)
            if node.many and node.many not in reached:
                _enter(node.many, reached, looping, found)
        level = following
        if not level and not looping:
            return
    for node in level:
        if node.receivers is not None:
            found |= node.receivers


def _enter(
    many: _Node[Receiver],
    reached: set[_Node[Receiver]],
    looping: list[_Node[Receiver]],
    found: set[Receiver],
) -> None:
    """A ``**`` has taken its first segment."""
    reached.add(many)
    if many.receivers is not None:
        found |= many.receivers
    if many.has_children():
        looping.append(many)


def _prune(node: _Node[Receiver], path: list[tuple[_Node[Receiver], str]]) -> None:
    """Detach ``node`` and those above it that are on nobody's path any more (I1)."""
    for parent, segment in reversed(path):
        if node.receivers is not None or node.has_children():
            return
        parent.detach(segment)
        node = parent
