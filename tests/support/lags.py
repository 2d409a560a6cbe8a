"""What each receiver has still to do, found by looking at everything: to compare with what is told.

It reads rows and memory as they are, runs included, and shares no count with the core.
"""

from asterism.actors.receivers import Receiver
from asterism.actors.topic import TopicActor
from asterism.router.interest import matches
from asterism.storage.keys import RANK_END, number_at_end
from asterism.storage.records import (
    DELAYED,
    NATURAL,
    PARKED,
    PLACED,
    Record,
    decode_exception,
    decode_fared,
    decode_record,
)


def check_lags(actor: TopicActor) -> None:
    """What is counted is what is there, also while a count goes on; and it is told so."""
    assert actor.log_kept == found_kept(actor)
    told = actor.lags(actor.receivers.by_name.values())
    for name, receiver in actor.receivers.by_name.items():
        assert receiver.owed == len(owed_by(actor, receiver)), f"of the log, by {name}"
        assert told[name].out == out_with(actor, receiver)
        lag = lag_of(actor, receiver)
        if told[name].counted:
            assert told[name].lag == len(lag), f"{name} has still to do {sorted(lag)}"
            assert told[name].since_ms == oldest_of(actor, lag)
        elif receiver.counted_to == RANK_END:
            assert told[name].lag >= len(lag), f"{name} has still to do {sorted(lag)}"


def found_kept(actor: TopicActor) -> int:
    """Held log messages that somebody is interested in, and everybody is through with."""
    kept = 0
    receivers = actor.receivers.by_name.values()
    for sequence, record in rows_of(actor, "l"):
        if sequence < actor.log_kept_to and record.state not in (DELAYED, PARKED):
            wanted = any(wants(actor, each, record) for each in receivers)
            kept += wanted and not any(
                sequence in each.known or owes(actor, each, sequence, record) for each in receivers
            )
    return kept


def owed_by(actor: TopicActor, receiver: Receiver) -> set[int]:
    """The log messages that a receiver owes, as far as they are counted."""
    rows = rows_of(actor, "l")
    owed = {sequence for sequence, record in rows if owes(actor, receiver, sequence, record)}
    return {each for each in owed | set(receiver.known) if each < receiver.counted_to}


def oldest_of(actor: TopicActor, sequences: set[int]) -> int | None:
    """When the oldest of these was accepted."""
    times = []
    for sequence in sequences:
        message = actor.memory.get(sequence)
        record = actor.record_of("m", sequence) or actor.record_of("l", sequence)
        if message is not None:
            times.append(message.accepted_ms)
        elif record is not None:
            times.append(record.accepted_ms)
        else:
            runs = [run for lane in actor.pool.lanes() for run in lane.runs]
            runs += [run for receiver in actor.keepers for run in receiver.kept]
            (run, *_) = [run for run in runs if 0 <= sequence - run.first < len(run)]
            times.append(run.accepted_ms)
    return min(times, default=None)


def out_with(actor: TopicActor, receiver: Receiver) -> int:
    pages = [page for page in actor.pages.all() if page.receiver is receiver]
    return sum(page.left + len(page.deliveries) for page in pages)


def lag_of(actor: TopicActor, receiver: Receiver) -> set[int]:
    """The sequences of all that a receiver has still to do."""
    lag = set(receiver.held) | owed_by(actor, receiver)
    for sequence, record in rows_of(actor, "m"):
        page = actor.pool.plain.get(sequence)
        live = actor.pool.live.get(sequence)
        waits = record.state in (NATURAL, PLACED) or (record.state == DELAYED and record.attempts)
        if page is not None:
            if page.receiver is receiver:
                lag.add(sequence)
        elif waits and (live is None or live.page is None) and wants(actor, receiver, record):
            lag.add(sequence)
    return lag | lag_in_memory(actor, receiver)


def lag_in_memory(actor: TopicActor, receiver: Receiver) -> set[int]:
    """Push and online messages, in runs and by themselves."""
    lag = {
        sequence
        for sequence, message in actor.memory.items()
        if receiver.number in (message.copies or ())
        or (waits_as_push(actor, sequence) and is_wanted(receiver, message.header.subjects))
    }
    for run in receiver.kept:
        lag.update(range(run.first, run.first + len(run)))
    for run in [run for lane in actor.pool.lanes() for run in lane.runs if run.in_memory]:
        for at, (_, encoded, _) in enumerate(run.messages[run.taken :], run.first):
            if is_wanted(receiver, actor.header_of(encoded).subjects):
                lag.add(at)
    return lag


def waits_as_push(actor: TopicActor, sequence: int) -> bool:
    live = actor.pool.live.get(sequence)
    return actor.memory[sequence].copies is None and live is not None and live.page is None


def owes(actor: TopicActor, receiver: Receiver, sequence: int, record: Record) -> bool:
    """Has a receiver this log message still to do, by what is written down?"""
    keys, rows, number = actor.keys, actor.rows, receiver.number
    if record.state == DELAYED or sequence in receiver.done_now:
        return False
    exception = rows.get(keys.exception(number, sequence))
    if record.state == PARKED:
        fared = rows.get(keys.fared(sequence, number))
        renewed = fared is not None and decode_fared(fared).status == "waiting"
        if not renewed or exception is None:
            return False
    if not wants(actor, receiver, record):
        return False
    if exception is not None:
        return decode_exception(exception).state != PARKED
    marked = sequence in (receiver.marks or ()) or rows.get(keys.done(number, sequence)) is not None
    return sequence >= receiver.floor and not marked


def wants(actor: TopicActor, receiver: Receiver, record: Record) -> bool:
    return is_wanted(receiver, actor.header_of(record.header).subjects)


def is_wanted(receiver: Receiver, subjects: tuple[str, ...]) -> bool:
    return any(matches(each, subject) for each in receiver.interests for subject in subjects)


def rows_of(actor: TopicActor, kind: str) -> list[tuple[int, Record]]:
    low, high = actor.keys.range_of(kind)
    return [(number_at_end(key), decode_record(row)) for key, row in actor.rows.scan(low, high)]
