"""Messages that pass: push and online, done once they are sent, when everybody can take them now.

Such messages are over in the command that brings them: nothing of them is kept, so nothing need be
made for them. Whatever does not go at once takes the ordinary way (``publishing.py``), and does
there what this comes to.
"""

from itertools import repeat

from asterism import limits
from asterism.actors.delivery import MEMORY_KIND, Delivery, Message
from asterism.actors.dispatch import Dispatch, as_delivered
from asterism.actors.pool import Lane
from asterism.actors.receivers import Endpoint, Receiver
from asterism.commands import Incoming
from asterism.message import NEVER_MS, Header, Mode, Status
from asterism.storage.keys import NONE_RANK, RANK_END, WORK


class Passing(Dispatch):
    """Sends batches of messages that want nothing but to be sent."""

    def pass_on(self, messages: tuple[Incoming, ...], header: Header, now_ms: int) -> range | None:
        """Sends messages of one header; ``None``, with nothing done, if one would have to wait."""
        settings = self.box.value
        if settings.concurrency is not None or settings.history != "none":
            return None
        count = len(messages)
        sequences = range(self.next_sequence, self.next_sequence + count)
        by_number = self.receivers.by_number
        numbers = self.receivers.audience(header.subjects)
        audience = [by_number[number] for number in numbers if number != WORK]
        wanting = [receiver for receiver in audience if receiver.endpoints]
        # Who has no credit gets nothing now, whatever it is owed: it need not hold up the others.
        stalled = []
        if header.mode is Mode.ONLINE:
            stalled = [receiver for receiver in wanting if not receiver.credit]
            if len(self.memory) + count > limits.MEMORY_MESSAGES_MAX:
                return None
        taking = [receiver for receiver in wanting if receiver not in stalled]
        if not all(self.waits_for_nothing(receiver) for receiver in taking):
            return None
        if header.mode is Mode.ONLINE:
            if any(receiver.credit < count for receiver in taking):
                return None
            for receiver in taking:
                self.pass_to(receiver, sequences, messages)
            if stalled:
                self.keep_for(stalled, sequences, messages, header, now_ms)
        elif not self.pass_by_turns(self.pool.lane_of(header, True), sequences, messages):
            return None
        self.next_sequence += count
        self.head_dirty = True
        return sequences

    def keep_for(
        self,
        receivers: list[Receiver],
        sequences: range,
        messages: tuple[Incoming, ...],
        header: Header,
        now_ms: int,
    ) -> None:
        """Keeps copies of online messages for those who have no credit now."""
        for sequence, (message_id, _, payload) in zip(sequences, messages, strict=True):
            message = Message(sequence, message_id, header, payload, now_ms, NEVER_MS, MEMORY_KIND)
            self.memory[sequence] = message
            for receiver in receivers:
                delivery = Delivery(message, NONE_RANK | sequence)
                delivery.receiver = receiver
                assert message.copies is not None
                message.copies[receiver.number] = delivery
            for delivery in list((message.copies or {}).values()):
                self.queue_copy(delivery, now_ms)

    def queue_copy(self, delivery: Delivery, now_ms: int) -> None:
        receiver = delivery.receiver
        assert receiver is not None
        receiver.copies_count += 1
        receiver.copies.push(delivery)
        if receiver.credit:
            self.hungry[receiver] = None
        elif len(receiver.copies) > limits.ONLINE_COPIES_MAX:
            oldest = receiver.copies.head()
            assert oldest is not None
            receiver.copies.pop()
            self.end_copy(oldest, Status.UNREACHABLE, now_ms)

    def waits_for_nothing(self, receiver: Receiver) -> bool:
        """Is there nothing that this receiver is owed and has not been sent?"""
        if receiver.has_own() or self.pool.frontier != RANK_END:
            return False
        return all(
            lane.spill is None and not lane.runs and not lane.window and not lane.memory
            for lane in receiver.lanes
        )

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

    def pass_to(self, receiver: Receiver, sequences: range, messages: tuple[Incoming, ...]) -> None:
        """Sends to the endpoints of a receiver that has the credit; it is done by that."""
        begin, count = 0, len(messages)
        while begin < count:
            endpoint = next(iter(receiver.ready))
            sharing = len(receiver.ready)
            share = count - begin if sharing == 1 else max((count - begin) // (8 * sharing), 1)
            until = begin + min(share, endpoint.credit, count - begin)
            self._hand(endpoint, sequences[begin:until], messages[begin:until])
            receiver.spend(endpoint, until - begin)
            begin = until
        self.totals["processed"] += count

    def _hand(self, endpoint: Endpoint, sequences: range, messages: tuple[Incoming, ...]) -> None:
        if not endpoint.outgoing:
            self.touched.append(endpoint)
        columns = zip(sequences, repeat(1), *zip(*messages, strict=True), strict=False)
        endpoint.outgoing += map(as_delivered, columns)
        pull = endpoint.pull
        if pull is not None:
            pull.remaining -= min(pull.remaining, len(messages))
