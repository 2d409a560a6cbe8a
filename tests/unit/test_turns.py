"""Whose turn it is at a worker: each session in its turn, and in its own order."""

from asterism.actors.turns import FRAMES_MAX, UNANSWERED_MAX, Turns
from asterism.wire import Verb, pack_body, pack_part

FLOOD, QUIET = b"flood", b"quiet"


def frame(first: int, count: int = 1) -> bytes:
    return b"".join(pack_part(Verb.STATS, first + index, b"t") for index in range(count))


def taken(turns: Turns) -> tuple[bytes, list[int]]:
    """Takes a frame: whose it is, and the requests in it."""
    session, _, parts = turns.take()
    return session, [part.request for part in parts]


def test_who_sends_one_thing_does_not_wait_for_all_that_another_sent_before() -> None:
    turns = Turns()
    for number in range(500):
        assert turns.add(FLOOD, frame(number))
    turns.add(QUIET, frame(1_000))
    assert [taken(turns)[0] for _ in range(2)] == [FLOOD, QUIET]
    assert [taken(turns) for _ in range(499)] == [(FLOOD, [number]) for number in range(1, 500)]
    assert not turns


def test_what_is_left_of_a_frame_comes_before_the_next_of_its_session() -> None:
    turns = Turns()
    turns.add(FLOOD, frame(0, 3))
    turns.add(FLOOD, frame(1_000))
    turns.add(QUIET, frame(2_000))
    session, data, parts = turns.take()
    turns.put_back(session, data, parts[1:])
    assert [taken(turns) for _ in range(3)] == [
        (QUIET, [2_000]),
        (FLOOD, [1, 2]),
        (FLOOD, [1_000]),
    ]


def test_a_session_has_so_many_frames_there_and_no_more() -> None:
    turns = Turns()
    assert all(turns.add(FLOOD, frame(number)) for number in range(FRAMES_MAX))
    assert not turns.add(FLOOD, frame(FRAMES_MAX))
    assert turns.add(QUIET, frame(0))
    taken(turns)
    assert turns.add(FLOOD, frame(FRAMES_MAX))


def test_a_word_about_a_session_waits_behind_what_it_sent() -> None:
    turns = Turns()
    assert not turns.add_word(FLOOD, b"it left"), "there is nothing to wait for"
    turns.add(FLOOD, frame(1))
    assert turns.add_word(FLOOD, b"it left")
    assert taken(turns) == (FLOOD, [1])
    assert turns.take() == (FLOOD, b"it left", [])
    assert not turns


def test_all_that_a_session_sent_is_taken_at_once_and_in_order() -> None:
    turns = Turns()
    for number in range(3):
        turns.add(FLOOD, frame(number))
        turns.add(QUIET, frame(10 + number))
    all_of_it = turns.take_all(FLOOD)
    assert [parts[0].request for _, parts in all_of_it] == [0, 1, 2]
    assert turns.sessions == [QUIET]
    assert turns.take_all(FLOOD) == []


def test_credit_is_kept_where_what_wants_an_answer_is_refused() -> None:
    """A client that is not told would take its credit for granted, and wait for ever."""
    turns = Turns()
    for number in range(FRAMES_MAX):
        assert turns.add(QUIET, pack_part(Verb.DESCRIBE, number + 1, b"t"))
    assert not turns.add(QUIET, pack_part(Verb.DESCRIBE, 9_999, b"t"))
    grant = pack_part(Verb.GRANT, 0, b"t", pack_body((1, 10)))
    assert turns.add(QUIET, grant)
    while turns:
        last = turns.take()[1]
    assert last == grant
    for _ in range(UNANSWERED_MAX):
        assert turns.add(QUIET, grant)
    assert not turns.add(QUIET, grant)
