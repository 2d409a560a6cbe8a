"""Messages that pass: push and online, done once they are sent.

Most of them are over in the command that brings them, so nothing need be made for them. Those for
which there is no credit wait as a run (``runs.py``). Whatever comes between others takes the
ordinary way (``publishing.py``), and does there what this comes to.
"""

from asterism import limits
from asterism.actors.delivery import Delivery
from asterism.actors.dispatch import Dispatch
from asterism.actors.pool import Lane
from asterism.actors.receivers import Receiver
from asterism.actors.runs import Run
from asterism.checks import are_all
from asterism.commands import Incoming, Publish
from asterism.message import NEVER_MS, Header, Mode, Status
from asterism.storage.keys import WORK

# How headers begin that say: online, expects to be sent, and no wish but attributes.
_ONLINE_SENT = {bytes((0x90 + fields, Mode.ONLINE, Status.SENT)) for fields in (3, 4)}
_THREE = {3}
_ID_BYTES = {limits.MESSAGE_ID_BYTES}


class Passing(Dispatch):
    """Sends batches of messages that want nothing but to be sent."""

    def pass_unheard(self, command: Publish) -> range | None:
        """Accepts online messages of a node that has all endpoints of the topic, without echo, and
        so gets none of them; ``None``, with nothing done, if it cannot be told at a glance.

        That is all of the traffic of a door whose clients talk among themselves: their headers,
        each of which may be of its own, need not be read.
        """
        settings, messages = self.box.value, command.messages
        if not self.is_unheard(command.node):
            return None
        columns = columns_of(messages)
        if columns is None:
            return None
        _, headers, payloads = columns
        if not {header[:3] for header in headers} <= _ONLINE_SENT:
            return None
        if max(map(len, payloads)) > settings.max_payload:
            return None
        return self.take_numbers(len(messages))

    def is_unheard(self, node: bytes) -> bool:
        """Is there nobody, nor any history, for online messages of a node?"""
        return self.box.value.history == "none" and self.receivers.is_alone(node)

    def take_numbers(self, count: int) -> range:
        sequences = range(self.next_sequence, self.next_sequence + count)
        self.next_sequence += count
        self.head_dirty = True
        return sequences

    def pass_on(
        self, messages: tuple[Incoming, ...], header: Header, node: bytes, now_ms: int
    ) -> range | None:
        """Sends messages of one header, or has them wait as a run; ``None``, with nothing done, if
        they cannot be handled together."""
        settings = self.box.value
        if settings.concurrency is not None or settings.history != "none":
            return None
        if self.is_memory_full(len(messages)):
            return None
        by_number = self.receivers.by_number
        numbers = self.receivers.audience(header.subjects)
        audience = [by_number[number] for number in numbers if number != WORK]
        wanting = [receiver for receiver in audience if receiver.endpoints]
        subjects = header.subjects
        run = Run(self.next_sequence, messages, now_ms, NEVER_MS, True, subjects=subjects)
        if header.mode is Mode.ONLINE:
            if self.receivers.quiet:
                hears = self.receivers.hears
                wanting = [receiver for receiver in wanting if hears(receiver, node, subjects)]
            passed = self.pass_to_all(wanting, run, now_ms)
        else:
            passed = bool(wanting) and self.pass_to_one(wanting, header, run)
        if not passed:
            return None
        return self.take_numbers(len(messages))

    def is_memory_full(self, count: int) -> bool:
        """Would so many more push and online messages be too many?"""
        held = len(self.memory) + self.pool.pushed_count + self.kept_messages
        return held + count > limits.MEMORY_MESSAGES_MAX

    def has_memory_for(self, size: int, now_ms: int) -> bool:
        """Is there room for a large payload, if need be by dropping the oldest online copies that
        wait for somebody without credit? Those who read must not wait for those who do not."""
        if self.memory_bytes + size > limits.MEMORY_BYTES_MAX:
            # Some more than is needed, or each message to come would look for the next.
            self.drop_copies_of_the_slow(limits.MEMORY_BYTES_MAX * 3 // 4 - size, now_ms)
        return self.memory_bytes == 0 or self.memory_bytes + size <= limits.MEMORY_BYTES_MAX

    def drop_copies_of_the_slow(self, bytes_left: int, now_ms: int) -> None:
        """Drops the copies that wait for receivers without credit, the oldest first, until no more
        than so many bytes of large payloads are left."""
        for message in list(self.memory.values()):
            if self.memory_bytes <= bytes_left:
                return
            if message.large_bytes and message.copies:
                for copy in list(message.copies.values()):
                    receiver = copy.receiver
                    assert receiver is not None
                    if copy.waits and not receiver.credit:
                        self.end_copy(copy, Status.UNREACHABLE, now_ms)

    def pass_to_all(self, receivers: list[Receiver], run: Run, now_ms: int) -> bool:
        """A copy for each; what a receiver has no credit for waits for it."""
        # Who has no credit gets nothing now, whatever it is owed: it need not hold up the others.
        if not all(self.waits_for_nothing(receiver) for receiver in receivers if receiver.credit):
            return False
        first, messages = run.first, run.messages
        for receiver in receivers:
            count = min(receiver.credit, len(messages))
            if count:
                self.pass_to(receiver, range(first, first + count), messages[:count])
            if count < len(messages):
                waiting = Run(first, messages, run.accepted_ms, NEVER_MS, in_memory=True)
                waiting.skip(count)
                self.keep(receiver, waiting, now_ms)
        return True

    def pass_to_one(self, receivers: list[Receiver], header: Header, run: Run) -> bool:
        """Each message for whoever takes it, at once or when there is credit."""
        lane = self.pool.lane_of(header, True)
        if all(self.waits_for_nothing(receiver) for receiver in receivers) and self.pass_by_turns(
            lane, range(run.first, run.first + len(run)), run.messages
        ):
            return True
        if not self.pool.add_pushed_run(run, lane):
            return False
        self.push_tally.add(header.subjects, len(run))
        self.fed[lane] = None
        return True

    def queue_copy(self, delivery: Delivery, now_ms: int) -> None:
        receiver = delivery.receiver
        assert receiver is not None
        self.wait_with_copies(delivery, receiver)
        receiver.copies_count += 1
        if receiver.credit:
            self.hungry[receiver] = None
        elif len(receiver.copies) > limits.ONLINE_COPIES_MAX:
            oldest = receiver.copies.head()
            assert oldest is not None
            receiver.copies.pop()
            self.end_copy(oldest, Status.UNREACHABLE, now_ms)

    def pass_by_turns(self, lane: Lane, sequences: range, messages: tuple[Incoming, ...]) -> bool:
        """Sends each to one that is ready, a few at a time; False if they are too many."""
        if sum(receiver.credit for receiver in lane.ready) < len(messages):
            return False
        begin, count = 0, len(messages)
        while begin < count:
            receiver = lane.next_ready()
            assert receiver is not None
            share = max((count - begin) // (8 * len(lane.ready) * len(receiver.ready)), 1)
            if len(lane.ready) == len(receiver.ready) == 1:
                share = count - begin
            until = begin + min(share, receiver.credit, count - begin)
            self.pass_to(receiver, sequences[begin:until], messages[begin:until])
            begin = until
        return True


def columns_of(
    messages: tuple[Incoming, ...],
) -> tuple[tuple[bytes, ...], tuple[bytes, ...], tuple[bytes, ...]] | None:
    """Ids, headers and payloads; ``None`` if one is not a message by type and size."""
    if not are_all(tuple, messages) or set(map(len, messages)) != _THREE:
        return None
    ids, headers, payloads = zip(*messages, strict=True)
    if (
        are_all(bytes, ids)
        and set(map(len, ids)) == _ID_BYTES
        and are_all(bytes, headers)
        and are_all(bytes, payloads)
    ):
        return ids, headers, payloads
    return None
