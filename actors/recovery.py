"""Rows to actors: an ordinary start is the recovery.

Reads the head, the settings, the durable receivers and what was out; the backlog stays on disk.
What was out with a connection waits again where it was, with its attempts counted; what was
ordered from the work queue is still ordered, under its old deadline.
"""

from itertools import islice

from asterism.actors.delivery import POOL_KIND, Delivery
from asterism.actors.leases import Page
from asterism.actors.pool import message_of
from asterism.actors.receivers import Matcher, Receiver
from asterism.actors.topic import TopicActor
from asterism.limits import MARKS_MAX
from asterism.message import Status
from asterism.rows import Rows
from asterism.settings import TopicSettings, overrides_from_plain
from asterism.storage.keys import (
    FIRST_RANK,
    FIRST_RECEIVER,
    POOL,
    WORK,
    number_at_end,
    read_due,
)
from asterism.storage.records import (
    DRAFT,
    NATURAL,
    PARKED,
    PLACED,
    PageRecord,
    decode_floor,
    decode_page,
    decode_parked,
    decode_receiver,
    decode_record,
    decode_settings,
)


def recover(
    name: str,
    number: int,
    rows: Rows,
    defaults: TopicSettings,
    matcher: Matcher | None = None,
) -> TopicActor:
    """A topic as its rows tell it."""
    actor = TopicActor(name, number, rows, defaults, 1, matcher)
    head = rows.get(actor.keys.head)
    assert head is not None, f"the topic {name!r} has no head row"
    actor.read_head(head)
    _read_settings(actor)
    _read_receivers(actor)
    _read_pages(actor)
    _read_times(actor)
    actor.keep_payload_index()
    if actor.pool_held:
        actor.pool.frontier = 0
    if actor.settings.blocking and actor.under_way:
        _go_on_with(actor, actor.under_way)
    actor.outbox_next = 0
    actor.next_sweep_ms = 0
    return actor


def _read_settings(actor: TopicActor) -> None:
    row = actor.rows.get(actor.keys.settings)
    if row is not None:
        actor.overrides = overrides_from_plain(decode_settings(row))
        actor.box.value = actor.defaults.changed(actor.overrides)


def _read_receivers(actor: TopicActor) -> None:
    keys, rows = actor.keys, actor.rows
    for key, row in rows.scan(*keys.range_of("r")):
        number = number_at_end(key, 4)
        stored = decode_receiver(row)
        receiver = actor.receivers.create(stored.name, True, number)
        receiver.sent_timeout_ms = stored.sent_timeout_ms
        receiver.received_timeout_ms = stored.received_timeout_ms
        actor.receivers.set_interests(receiver, stored.interests)
        _read_progress(actor, receiver)


def _read_progress(actor: TopicActor, receiver: Receiver) -> None:
    keys, rows, number = actor.keys, actor.rows, receiver.number
    floor = rows.get(keys.floor(number))
    if floor is not None:
        receiver.floor = receiver.stored_floor = decode_floor(floor)
    done = rows.scan(keys.done(number, 0), keys.done(number + 1, 0))
    marks = [number_at_end(key) for key, _ in islice(done, MARKS_MAX + 1)]
    receiver.marks = set(marks) if len(marks) <= MARKS_MAX else None
    receiver.horizon = 0


def _read_pages(actor: TopicActor) -> None:
    keys, rows = actor.keys, actor.rows
    for key, row in list(rows.scan(*keys.range_of("g"))):
        number, record = number_at_end(key), decode_page(row)
        actor.pages.next_number = max(actor.pages.next_number, number + 1)
        if record.receiver == WORK:
            _restore_order(actor, number, record)
        else:
            _return_to_waiting(actor, number, record)
    _count_parked(actor)
    _forget_passing(actor)


def _restore_order(actor: TopicActor, number: int, record: PageRecord) -> None:
    work = actor.receivers.work
    page = Page(number, work, Status(record.status), record.started_ms)
    page.deadline_ms = record.deadline_ms
    ((sequence, attempts),) = record.entries
    row = actor.rows.get(actor.keys.pool(sequence))
    assert row is not None, "an ordered message without its row"
    stored = decode_record(row)
    message = message_of(sequence, stored, actor.header_of(stored.header), POOL_KIND)
    delivery = Delivery(message, stored.rank, attempts)
    delivery.placed = stored.state != 0
    delivery.waits = False
    delivery.status = Status(record.status)
    delivery.receiver, delivery.holder = work, WORK
    # When an active one was ordered is not kept: it was so by the time it became active.
    delivery.sent_ms = record.started_ms
    if delivery.status is Status.RECEIVED:
        delivery.received_ms = record.started_ms
    delivery.page = page
    page.deliveries[sequence] = delivery
    work.held[sequence] = actor.pool.live[sequence] = delivery
    if message.header.ordering_key is not None:
        actor.pool.locks.admits(message.header.ordering_key, sequence)
    actor.pages.restore(page)


def _return_to_waiting(actor: TopicActor, number: int, record: PageRecord) -> None:
    """Keeps the attempts of what was out with a connection, for when it is read again."""
    keys, rows, receiver = actor.keys, actor.rows, actor.receivers.by_number.get(record.receiver)
    kept = False
    for sequence, attempts in record.entries:
        row = rows.get(keys.pool(sequence))
        if row is not None and row[0] not in (PARKED, DRAFT):
            # A page stays while one of its entries is out: for another, its row may say more.
            if decode_record(row).attempts < attempts:
                kept |= actor.add_returned(POOL, sequence, attempts, record.receiver, number)
        elif receiver is not None and actor.log.is_owed(receiver, sequence):
            kept |= actor.add_returned(record.receiver, sequence, attempts, record.receiver, number)
    if not kept:
        rows.delete(keys.page(number))


def _go_on_with(actor: TopicActor, sequence: int) -> None:
    """What a blocking topic had sent before it ended comes first: nothing may overtake it."""
    delivery = actor.pool_delivery(sequence)
    if delivery is not None:
        if delivery.page is not None:  # ordered from the work queue, and still out
            actor.current, actor.current_sent = sequence, True
            return
        row = actor.rows.get(actor.keys.pool(sequence))
        if row is not None and row[0] in (NATURAL, PLACED):
            attempts, holder = actor.returned(POOL, sequence)
            delivery.attempts = max(delivery.attempts, attempts)
            delivery.holder = holder or delivery.holder
            actor.store_place(delivery, FIRST_RANK)
        return
    message = actor.log_message(sequence)
    if message is not None:
        for receiver in list(actor.receivers.by_name.values()):
            if actor.log.is_owed(receiver, sequence) and actor.is_interested(receiver, message):
                actor.put_first_in_log(receiver, message)


def _count_parked(actor: TopicActor) -> None:
    """Parked deliveries of receivers that lived with their connection are over with them."""
    if not actor.parked:
        return
    for key, row in list(actor.rows.scan(*actor.keys.range_of("p"))):
        list_number = decode_parked(row).list_number
        receiver = actor.receivers.by_number.get(list_number)
        if receiver is not None:
            receiver.parked += 1
        elif list_number != POOL:
            actor.abandon_at(number_at_end(key), 0)


def _forget_passing(actor: TopicActor) -> None:
    """Deletes what receivers that lived with their connection have left behind."""
    keys, rows = actor.keys, actor.rows
    for kind in "dwx":
        low, high = keys.range_of(kind)
        start = low
        while (found := next(iter(rows.scan(start, high)), None)) is not None:
            number = number_at_end(found[0][: len(low) + 4], 4)
            begin, start = start, low + (number + 1).to_bytes(4, "big")
            if number >= FIRST_RECEIVER and number not in actor.receivers.by_number:
                left = [number_at_end(key) for key, _ in rows.scan(begin, start)]
                rows.delete_range(begin, start)
                if kind == "d":
                    actor.end_kept_for_nobody(left, 0)


def _read_times(actor: TopicActor) -> None:
    for key, _ in actor.rows.scan(*actor.keys.range_of("t")):
        actor.next_due_row_ms = read_due(key)[0]
        break
    # The walk of expiry finds out by itself from when on it is needed.
    if actor.pool_held:
        actor.next_expiry_ms["m"] = 0
    if actor.log_held:
        actor.next_expiry_ms["l"] = 0
