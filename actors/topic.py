"""The topic actor: a pure state machine. No socket, no file, no clock, no logging.

``handle`` and ``tick`` take the time and return effects; writes are collected in the topic's rows.
The host commits those rows, synced, before it performs an effect of the same turn. At the end of a
turn, before it commits, it calls ``end_turn``, which writes down what changed in many small steps.

I1 A message is accepted when its row is in the turn's rows: what is confirmed is stored.
I2 A delivery is in one place: waiting in a window or on disk, set aside, pausing, out, or parked.
I3 A message of the pool has at most one holder; a delivery's status only climbs while it is held.
I4 What a restart finds in the rows is all that is needed to go on; memory is a cache of it, and
   what is lost with memory (push and online messages, credit) was never promised to survive.
"""

from collections.abc import Callable
from heapq import heappop
from typing import Any

from asterism import commands as ask
from asterism.actors.delivery import LOG_KIND, MEMORY_KIND, POOL_KIND, Delivery, Message
from asterism.actors.endings import DROPPED, FAILED
from asterism.actors.pool import message_of
from asterism.actors.publishing import early
from asterism.actors.receivers import Receiver
from asterism.actors.retry import counts_as_held
from asterism.actors.state import SWEEP_MS
from asterism.actors.workqueue import WorkQueue
from asterism.commands import Command
from asterism.effects import Effect, EndpointGone, Refuse, Reply
from asterism.errors import PeerError
from asterism.limits import EXPIRE_ROWS_MAX
from asterism.message import NEVER_MS
from asterism.settings import TopicSettings, plain_overrides
from asterism.storage.keys import (
    COMMON,
    DUE_DELAY,
    DUE_DRAFT,
    DUE_EXPIRE,
    DUE_RETRY,
    POOL,
    RANK_END,
    WORK,
    number_at_end,
    rank_of,
    read_due,
)
from asterism.storage.records import (
    DELAYED,
    DRAFT,
    HAS_DUE,
    NATURAL,
    PARKED,
    PLACED,
    decode_exception,
    decode_record,
    encode_record,
    pack,
)

PRODUCER_SWEEP_MS = 3_600_000
FLOOR_LAG_MAX = 10_000  # an idle receiver's floor is written down once it lags by so much
CURSOR_LAG_MAX = 1_000_000  # and where the walk of expiry begins


class TopicActor(WorkQueue):
    """One topic. See the layers below it for what each command does."""

    def handle(self, command: Command, now_ms: int) -> list[Effect]:
        """Does what is asked; what a peer did wrong is answered, and has changed nothing."""
        self.handed_bytes = 0
        kind = type(command)
        if kind not in _KNOW_RUNS:
            self.unroll_all()
        try:
            _HANDLERS[kind](self, command, now_ms)
        except PeerError as error:
            if isinstance(command, ask.Request) and not isinstance(command, ask.Grant | ask.Detach):
                self.effects.append(
                    Refuse(
                        command.node,
                        command.request,
                        error.code,
                        error.detail,
                        error.retry_after_ms,
                    )
                )
        return self._finish(now_ms)

    def _finish(self, now_ms: int) -> list[Effect]:
        if self.fed or self.hungry or self.stalled or self.box.value.blocking or self.touched:
            self.pump(now_ms)
        else:
            self.pages.close_open()
        if self.outbox_next < self.next_outbox:
            self.send_outbox(now_ms)
        if now_ms >= self.next_sample_ms:
            self.sample(now_ms)
        if self.log.has_left_strays:
            self.log.has_left_strays = False
            self.end_unwanted(now_ms)
            self.recount_kept()
        if self.is_counting and now_ms >= self.next_count_ms:
            self.count_on(now_ms)
        effects, self.effects = self.effects, []
        return effects

    # --- time -------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """When ``tick`` has something to do; in the past if it should be called at once."""
        due_ms = self._next_due_ms()
        if self.is_counting and (due_ms is None or self.next_count_ms < due_ms):
            return self.next_count_ms
        return due_ms

    def _is_counting_alone(self, now_ms: int) -> bool:
        """Is nothing due but the count of the log, which need not know of runs?"""
        due_ms = self._next_due_ms()
        return due_ms is None or due_ms > now_ms

    def _next_due_ms(self) -> int | None:
        if self.pool.unfinished or self.log.unfinished or self.has_handed_enough:
            return 0
        outbox_waits = self.outbox_paused_ms and self.outbox_next < self.next_outbox
        due_ms = self.pages.next_due_ms()
        for time_ms in (
            self.absences.next_due_ms(),
            self.next_due_row_ms,
            self.next_expiry_ms["m"],
            self.next_expiry_ms["l"],
            self.pausing[0][0] if self.pausing else None,
            self.waits[0][0] if self.waits else None,
            self.next_sweep_ms,
            self.outbox_paused_ms if outbox_waits else None,
        ):
            if time_ms is not None and (due_ms is None or time_ms < due_ms):
                due_ms = time_ms
        return due_ms

    def tick(self, now_ms: int) -> list[Effect]:
        """Does what has become due."""
        self.handed_bytes = 0
        if self.is_counting and self._is_counting_alone(now_ms):
            return self._finish(now_ms)
        self.unroll_all()
        self.pool.unfinished = self.log.unfinished = False
        for delivery in self.pages.due(now_ms):
            if delivery.page is not None:
                self.unreachable(delivery, now_ms)
        for node, endpoint in self.absences.due(now_ms):
            self.end_absence(node, endpoint, now_ms)
        self._tick_pausing(now_ms)
        self._tick_waits(now_ms)
        self._tick_due_rows(now_ms)
        self._tick_expiry("m", now_ms)
        self._tick_expiry("l", now_ms)
        if self.next_sweep_ms is not None and now_ms >= self.next_sweep_ms:
            self._sweep(now_ms)
        return self._finish(now_ms)

    def _tick_pausing(self, now_ms: int) -> None:
        while self.pausing and self.pausing[0][0] <= now_ms:
            _, _, delivery = heappop(self.pausing)
            message, receiver = delivery.message, delivery.receiver
            if message.kind == MEMORY_KIND and self.memory.get(message.sequence) is not message:
                continue
            if receiver is None:
                self._due_in_memory(message, now_ms)
            elif self._is_current_delivery(delivery, receiver):
                self.wait_again(delivery, receiver)

    def _due_in_memory(self, message: Message, now_ms: int) -> None:
        """A delayed push or online message may go; a push that nobody wants by now has failed."""
        if message.copies is None:
            try:
                self.check_receiver(message.header)
            except PeerError:
                self.end_single(early(message), FAILED, now_ms)
                return
        self.enter_memory(message, now_ms)

    def _is_current_delivery(self, delivery: Delivery, receiver: Receiver) -> bool:
        """Is a delivery that paused still what its receiver is owed?"""
        copies = delivery.message.copies
        if copies is None:
            return self.pool.live.get(delivery.sequence) is delivery
        return copies.get(receiver.number) is delivery

    def _tick_waits(self, now_ms: int) -> None:
        while self.waits and (self.waits[0][2].over or self.waits[0][0] <= now_ms):
            _, _, wait = heappop(self.waits)
            if wait.over:
                continue
            if wait.endpoint is not None:
                self.end_pull(wait.endpoint)
            else:
                self.end_order(wait)
                self.effects.append(Reply(wait.node, wait.request, {"sequence": None}))

    def _tick_due_rows(self, now_ms: int) -> None:
        if self.next_due_row_ms is None or self.next_due_row_ms > now_ms:
            return
        self.next_due_row_ms = None
        low, high = self.keys.range_of("t")
        due: list[tuple[bytes, int, int, int]] = []
        for key, _ in self.rows.scan(low, high):
            due_ms, what, list_number, sequence = read_due(key)
            if due_ms > now_ms or len(due) >= EXPIRE_ROWS_MAX:
                self.next_due_row_ms = due_ms
                break
            due.append((key, what, list_number, sequence))
        for key, what, list_number, sequence in due:
            self.rows.delete(key)
            self._on_due(what, list_number, sequence, now_ms)

    def _on_due(self, what: int, list_number: int, sequence: int, now_ms: int) -> None:
        if what == DUE_DRAFT:
            self._due_draft(sequence, now_ms)
        elif what == DUE_EXPIRE:
            self._expire("m" if list_number == POOL else "l", sequence, now_ms)
        elif what == DUE_DELAY and list_number == COMMON:
            self._due_delay_in_log(sequence, now_ms)
        elif list_number == POOL:
            self._due_in_pool(sequence)
        else:
            assert what == DUE_RETRY
            self._due_retry_in_log(list_number, sequence)

    def _due_draft(self, sequence: int, now_ms: int) -> None:
        record = self.record_of("m", sequence)
        if record is None or record.state != DRAFT:
            return
        due_ms = record.accepted_ms + self.settings.draft_timeout_ms
        if due_ms > now_ms:  # the timeout was raised meanwhile
            self.add_due(due_ms, DUE_DRAFT, POOL, sequence)
            return
        self.rows.delete(self.keys.pool(sequence))
        self.drafting -= 1
        self.head_dirty = True

    def _due_in_pool(self, sequence: int) -> None:
        """A delay or a pause of a message of the pool is over."""
        record = self.record_of("m", sequence)
        if record is None or record.state != DELAYED or sequence in self.pool.live:
            return
        header = self.header_of(record.header)
        delivery = Delivery(
            message_of(sequence, record, header, POOL_KIND), record.rank, record.attempts
        )
        if not counts_as_held(record):
            self.pool_tally.add(header.subjects)
            self.head_dirty = True
        delivery.holder, delivery.spent = record.holder, record.spent
        back = record.attempts and self.settings.requeue == "back"
        rank = rank_of(header.priority, self.take_number()) if back else record.rank
        self.wait_in_pool(delivery, rank)

    def _due_delay_in_log(self, sequence: int, now_ms: int) -> None:
        """A delayed log message joins the log; for those who read past it, by rows of its own."""
        record = self.record_of("l", sequence)
        if record is None or record.state != DELAYED:
            return
        header = self.header_of(record.header)
        record.state = NATURAL if header.priority is None else PLACED
        self.rows.put(self.keys.log(sequence), encode_record(record))
        if record.state == PLACED:
            self.rows.put(self.keys.waiting(COMMON, record.rank), sequence.to_bytes(8, "big"))
        if header.ordering_key is not None:
            self.key_order.put(COMMON, header.ordering_key, record.rank, sequence)
        message = message_of(sequence, record, header, LOG_KIND)
        for number in self.receivers.audience(header.subjects):
            if number != WORK:
                receiver = self.receivers.by_number[number]
                delivery = Delivery(message, record.rank)
                delivery.receiver = receiver
                receiver.count(sequence, 1)
                self.wait_in_log(delivery, receiver, record.rank)
                message = delivery.message

    def _due_retry_in_log(self, number: int, sequence: int) -> None:
        receiver = self.receivers.by_number.get(number)
        exception = self.rows.get(self.keys.exception(number, sequence))
        if receiver is None or exception is None:
            return
        state, rank, attempts, spent = decode_exception(exception)
        message = self.log_message(sequence)
        if message is None:
            self.rows.delete(self.keys.exception(number, sequence))
        elif state == DELAYED:
            delivery = Delivery(message, 0, attempts)
            delivery.receiver, delivery.spent = receiver, spent
            if not self.is_interested(receiver, message):
                receiver.count(sequence, 1)  # nobody counts what is on disk alone
                receiver.has_strays = True
            if self.settings.requeue == "back":
                rank = rank_of(message.header.priority, self.take_number())
            self.wait_in_log(delivery, receiver, rank)

    def _tick_expiry(self, kind: str, now_ms: int) -> None:
        """Ends the messages that expire in sequence order, from where it stopped last time."""
        next_ms = self.next_expiry_ms[kind]
        if next_ms is None or next_ms > now_ms:
            return
        self.next_expiry_ms[kind] = None
        # Not from ``low_sequence``: what was delayed or moved may still wait before it.
        start = self.expiry_cursor[kind]
        key_of = self.keys.pool if kind == "m" else self.keys.log
        expired: list[int] = []
        for key, row in self.rows.scan(key_of(start), self.keys.range_of(kind)[1]):
            self.expiry_cursor[kind] = number_at_end(key)
            record = decode_record(row)
            if record.state in (DRAFT, PARKED) or record.flags & HAS_DUE:
                continue
            if record.expires_ms == NEVER_MS:
                continue
            if record.expires_ms > now_ms or len(expired) >= EXPIRE_ROWS_MAX:
                self.next_expiry_ms[kind] = record.expires_ms
                break
            expired.append(number_at_end(key))
        for sequence in expired:
            self._expire(kind, sequence, now_ms)
        self.head_dirty = True

    def _expire(self, kind: str, sequence: int, now_ms: int) -> None:
        if kind == "m":
            row = self.rows.get(self.keys.pool(sequence))
            if row is not None and row[0] not in (PARKED, DRAFT):
                delivery = self.pool_delivery(sequence)
                assert delivery is not None
                self.expire_pool(delivery, now_ms)
        else:
            row = self.rows.get(self.keys.log(sequence))
            if row is not None and row[0] != PARKED:
                message = self.log_message(sequence)
                assert message is not None
                self.expire_log(message, now_ms)

    def _sweep(self, now_ms: int) -> None:
        """Drops what is kept for a time only, and looks again later if something is left."""
        self.outcomes.forget_old(self.settings.receipt_ttl_ms, now_ms)
        low, high = self.keys.history_before(now_ms - self.settings.history_ttl_ms)
        if any(True for _ in self.rows.scan(low, high)):
            self.rows.delete_range(low, high)
        if now_ms // PRODUCER_SWEEP_MS != self.producers_swept:
            self.producers_swept = now_ms // PRODUCER_SWEEP_MS
            self.producers.forget_silent(now_ms)
        left = any(self._has_rows(kind) for kind in "oha")
        self.next_sweep_ms = now_ms + SWEEP_MS if left else None

    def _has_rows(self, kind: str) -> bool:
        return any(True for _ in self.rows.scan(*self.keys.range_of(kind)))

    # --- the end of a turn ------------------------------------------------------------------

    def end_turn(self) -> bool:
        """Writes what the turn changed; the host commits right after it.

        Must that be synced before anything of the turn leaves, even where the rest need not be?
        """
        self.pages.write_rows()
        for receiver in self.unsettled:
            if not receiver.stored:
                self.write_receiver(receiver)
            self.log.settle(receiver, self.next_sequence)
        self.unsettled.clear()
        if self.head_dirty:
            if self.next_sequence >= self.marks_at:
                self._raise_marks()
            self.write_head()
        must_sync, self.producers.has_new = self.producers.has_new, False
        if self.next_sequence > self.reserved:
            self.reserve()
            must_sync = True
        return must_sync

    def _raise_marks(self) -> None:
        """Moves the marks from which a restart reads on; now and then, so cheap on average."""
        count = len(self.receivers.by_number)
        self.marks_at = self.next_sequence + max(FLOOR_LAG_MAX, 10 * count, len(self.pool.live))
        self.pool.raise_low_sequence(self.next_sequence)
        if self.next_sequence >= self.cursors_at:
            # To find the oldest is to step over the remains of all that were consumed.
            self.cursors_at = self.next_sequence + CURSOR_LAG_MAX
            self._raise_expiry_cursor("m", self.keys.pool)
            self._raise_expiry_cursor("l", self.keys.log)
        for receiver in self.receivers.by_name.values():
            if receiver.stored and self.next_sequence - receiver.floor > FLOOR_LAG_MAX:
                self.log.settle(receiver, self.next_sequence)

    def _raise_expiry_cursor(self, kind: str, key_of: Callable[[int], bytes]) -> None:
        """The next walk of expiry begins at the oldest message that is there."""
        high = self.keys.range_of(kind)[1]
        first = next(iter(self.rows.scan(key_of(self.expiry_cursor[kind]), high)), None)
        self.expiry_cursor[kind] = self.next_sequence if first is None else number_at_end(first[0])

    # --- the topic itself -------------------------------------------------------------------

    def on_configure(self, command: ask.Configure, now_ms: int) -> None:
        self.configure(dict(command.changes), command.inherit, now_ms)
        self.effects.append(Reply(command.node, command.request))

    def configure(self, changes: dict[str, Any], inherit: tuple[str, ...], now_ms: int) -> None:
        """Changes settings of this topic, and gives others back to the broker's defaults."""
        self.defaults.check_names((*changes, *inherit))
        overrides = {
            name: value for name, value in (self.overrides | changes).items() if name not in inherit
        }
        settings = self.defaults.changed(overrides)
        if settings.dead_letter == self.name:
            raise PeerError("bad_request", "a topic cannot be its own dead-letter topic")
        before, self.box.value, self.overrides = self.box.value, settings, overrides
        self.rows.put(self.keys.settings, pack(plain_overrides(overrides)))
        self._settings_changed(before, settings)

    def _settings_changed(self, before: TopicSettings, after: TopicSettings) -> None:
        self.keep_payload_index()
        if before.draft_timeout_ms != after.draft_timeout_ms:
            self._move_drafts(after.draft_timeout_ms)
        self.pages.settings_changed()
        self.incoming.clear()  # what a message leaves to its topic may be something else now
        timeouts = (after.sent_timeout_ms, after.received_timeout_ms)
        if (before.sent_timeout_ms, before.received_timeout_ms) != timeouts:
            for receiver in self.receivers.by_name.values():
                self.tell_timeouts(receiver)
        if before.blocking != after.blocking:
            self.current = None
            self.current_for.clear()
            self.nothing_under_way()
        # Whatever held deliveries back may hold them back no longer.
        for receiver in self.receivers.by_number.values():
            if receiver.credit:
                self.hungry[receiver] = None

    def keep_payload_index(self) -> None:
        """The topic became unique, or is it no longer: here, or by the broker's defaults."""
        if self.settings.unique == bool(self.indexed):
            return
        self.indexed = int(self.settings.unique)
        self.head_dirty = True
        if self.settings.unique:
            self._index_payloads()
        else:
            self.rows.delete_range(*self.keys.range_of("u"))
            self.digests.clear()

    def _index_payloads(self) -> None:
        """What the topic holds already counts."""
        for kind in "ml":
            for key, row in list(self.rows.scan(*self.keys.range_of(kind))):
                record = decode_record(row)
                if record.state != DRAFT:
                    self.remember_payload(record.payload, number_at_end(key), POOL_KIND)
        for message in self.memory.values():
            self.remember_payload(self.payload_of(message), message.sequence, MEMORY_KIND)

    def _move_drafts(self, timeout_ms: int) -> None:
        for key, _ in list(self.rows.scan(*self.keys.range_of("t"))):
            _, what, _, sequence = read_due(key)
            record = self.record_of("m", sequence) if what == DUE_DRAFT else None
            if record is not None:
                self.rows.delete(key)
                self.add_due(record.accepted_ms + timeout_ms, DUE_DRAFT, POOL, sequence)

    def on_describe(self, command: ask.Describe, now_ms: int) -> None:
        sent, received = self.pages.counts((POOL_KIND, LOG_KIND, MEMORY_KIND))
        waiting, oldest = self.waiting_now()
        body = {
            "topic": self.name,
            "settings": self.settings,
            "overrides": sorted(self.overrides),
            "held": self.held,
            "drafting": self.drafting,
            "waiting": waiting,
            "sent": sent,
            "received": received,
            "parked": self.parked,
            "completed": self.completed,
            "receivers": len(self.receivers.by_name),
            "endpoints": len(self.receivers.endpoints),
            "next_sequence": self.next_sequence,
            "oldest_waiting_ms": None if oldest is None else max(now_ms - oldest, 0),
            "totals": dict(self.totals),
            "rates": self.rates(now_ms),
            "kept": self.log_kept,
            "counted": self.log_kept_to == RANK_END,
            "lags": {name: lag.told(now_ms) for name, lag in self.largest_lags()},
        }
        self.effects.append(Reply(command.node, command.request, body))

    def on_clear(self, command: ask.Clear, now_ms: int) -> None:
        self.drop_everything(now_ms)
        self.effects.append(Reply(command.node, command.request))

    def drop_everything(self, now_ms: int) -> None:
        """Drops every message and count; publishers and waiting orders are told."""
        self._tell_publishers(now_ms)
        for order in list(self.receivers.work.orders.values()):
            self.end_order(order)
            self.effects.append(
                Refuse(order.node, order.request, "topic_gone", "the topic was cleared")
            )
        for kind in "mlwkdxptguvbh":
            self.rows.delete_range(*self.keys.range_of(kind))
        for receiver in self.receivers.by_number.values():
            self._empty_receiver(receiver)
        self._forget_messages()

    def _tell_publishers(self, now_ms: int) -> None:
        for message in list(self.memory.values()):
            if message.producer is not None:
                self.resolve(message, DROPPED, message.statuses or {}, now_ms)
        if not self.asked:
            return
        for kind, number_kind in (("m", POOL_KIND), ("l", LOG_KIND)):
            for key, row in self.rows.scan(*self.keys.range_of(kind)):
                record = decode_record(row)
                if record.producer is not None:
                    header = self.header_of(record.header)
                    message = message_of(number_at_end(key), record, header, number_kind)
                    self.resolve(message, DROPPED, self.statuses_of(message.sequence), now_ms)

    def _empty_receiver(self, receiver: Receiver) -> None:
        for delivery in list(receiver.held.values()):
            self.release(delivery)
        self.log.forget_receiver(receiver)
        receiver.copies.drain()
        receiver.locks.drain()
        receiver.copies_count = receiver.parked = 0
        receiver.done_now.clear()
        receiver.marks = set()
        receiver.horizon = RANK_END
        receiver.floor = self.next_sequence
        receiver.owed, receiver.counted_to, receiver.has_strays = 0, RANK_END, False
        if receiver.stored and receiver.number != WORK:
            self.unsettled[receiver] = None

    def _forget_messages(self) -> None:
        self.pool.forget_all()
        self.key_order.forget_all()
        self.pool.low_sequence = self.log.low_sequence = self.next_sequence
        self.pages.forget_all()
        self.log.messages.clear()
        self.memory.clear()
        self.memory_bytes = 0
        self.digests.clear()
        self.pausing.clear()
        self.places.clear()
        self.forwarding.clear()
        self._returned.clear()
        self._returned_pages.clear()
        self.current = None
        self.current_for.clear()
        self.nothing_under_way()
        self.fed.clear()
        self.counting.clear()
        self.pool_tally.clear()
        self.push_tally.clear()
        self.log_kept, self.log_kept_to = 0, RANK_END
        self.pool_held = self.log_held = self.drafting = self.parked = self.completed = 0
        self.asked = self.listed = self.last_expiry_ms = 0
        self.outbox_next = self.next_outbox
        self.next_due_row_ms = None
        self.next_expiry_ms = {"m": None, "l": None}
        self.head_dirty = True

    def delete(self, now_ms: int) -> list[Effect]:
        """The topic ends: everybody on it is told, and its rows go."""
        self.drop_everything(now_ms)
        for endpoint in list(self.receivers.endpoints.values()):
            if endpoint.pull is not None:
                pull = endpoint.pull
                self.effects.append(
                    Refuse(pull.node, pull.request, "topic_gone", "the topic was deleted")
                )
            self.effects.append(EndpointGone(endpoint.node, endpoint.number, "topic_gone"))
        self.rows.delete_range(*self.keys.all_rows)
        effects, self.effects = self.effects, []
        return effects

    def on_forward_settled(self, command: ask.ForwardSettled, now_ms: int) -> None:
        self.forward_settled(command.number, command.code, command.detail, command.counted, now_ms)


_Handler = Callable[[TopicActor, Any, int], None]
_HANDLERS: dict[type, _Handler] = {
    ask.Publish: TopicActor.on_publish,
    ask.AwaitReceipts: TopicActor.on_await_receipts,
    ask.Subscribe: TopicActor.on_subscribe,
    ask.CreateReceiver: TopicActor.on_create_receiver,
    ask.SetInterests: TopicActor.on_set_interests,
    ask.Unsubscribe: TopicActor.on_unsubscribe,
    ask.Grant: TopicActor.on_grant,
    ask.Pull: TopicActor.on_pull,
    ask.CancelWait: TopicActor.on_cancel_wait,
    ask.Report: TopicActor.on_report,
    ask.Extend: TopicActor.on_extend,
    ask.Detach: TopicActor.on_detach,
    ask.Suspend: TopicActor.on_suspend,
    ask.ListReceivers: TopicActor.on_list_receivers,
    ask.DeleteReceiver: TopicActor.on_delete_receiver,
    ask.Seek: TopicActor.on_seek,
    ask.Configure: TopicActor.on_configure,
    ask.Describe: TopicActor.on_describe,
    ask.Clear: TopicActor.on_clear,
    ask.ListParked: TopicActor.on_list_parked,
    ask.Renew: TopicActor.on_renew,
    ask.Abandon: TopicActor.on_abandon,
    ask.RenewAll: TopicActor.on_renew_all,
    ask.AbandonAll: TopicActor.on_abandon_all,
    ask.Draft: TopicActor.on_draft,
    ask.SetDraft: TopicActor.on_set_draft,
    ask.Order: TopicActor.on_order,
    ask.Fetch: TopicActor.on_fetch,
    ask.Complete: TopicActor.on_complete,
    ask.Fail: TopicActor.on_fail,
    ask.Stats: TopicActor.on_stats,
    ask.ForwardSettled: TopicActor.on_forward_settled,
}
# What takes messages as they come in runs; for every other command each gets its objects first.
# Those who only ask change nothing, so that a topic that is watched is as quick as any other.
_KNOW_RUNS = frozenset(
    {
        *(ask.Publish, ask.Report, ask.Extend, ask.Grant, ask.AwaitReceipts),
        *(ask.Describe, ask.Stats, ask.ListReceivers, ask.ListParked, ask.Fetch),
    }
)
