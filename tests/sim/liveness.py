"""What must be true of a topic when faults have stopped and time has passed."""

from tests.sim.checking import Checking
from tests.sim.model import Kind, Message, Receiver, Standing, State


def check_nothing_is_owed(topic: Checking, everything_is_wanted: bool) -> None:
    """Everybody is well and has credit, so everything that somebody is owed has arrived."""
    # What nobody wants stops a blocking topic, and rightly so.
    if topic.settings.blocking and not everything_is_wanted:
        return
    if topic.outbox and everything_is_wanted:
        raise topic.fail(f"{len(topic.outbox)} dead letters never arrived")
    for out in topic.out():
        raise topic.fail(f"message {out.message.sequence} is still out to {out.receiver.name!r}")
    for message in topic.live.values():
        if message.state is State.DRAFT:
            raise topic.fail(f"draft {message.sequence} was never deleted")
        if message.kind is Kind.ONLINE:
            raise topic.fail(f"online message {message.sequence} is still there")
        if message.state in (State.HELD, State.KEPT) and not waits_rightly(topic, message):
            raise topic.fail(f"message {message.sequence} is owed, and never arrived")


def waits_rightly(topic: Checking, message: Message) -> bool:
    return not any(is_stuck(topic, message, receiver) for receiver in topic.receivers.values())


def is_stuck(topic: Checking, message: Message, receiver: Receiver) -> bool:
    if not receiver.endpoints:
        return False
    fate = message.shared if message.kind.single else message.fates.get(receiver)
    if fate is not None and fate.standing is not Standing.OWED:
        return False
    if message.state is State.KEPT:
        wanted = receiver.wanted_since(message.stamp, message.header.subjects)
        # One that was renewed may have to wait for a place, as those before its time was over.
        has_place = message.kind.single or topic.has_place(message, receiver)
        return fate is not None and all(wanted) and has_place
    return topic.is_owed(message, receiver)
