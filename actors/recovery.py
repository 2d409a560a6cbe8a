"""Rows to actors: an ordinary start is the recovery.

Reads the head, the settings, the receivers and what was out; the backlog stays on disk. Deliveries
that were out with a connection are still out: they are kept for their holder, which may come back,
until the grace is over, and so are receivers that live with their connections. Where there is no
grace, or a row of an earlier version does not name the holder, deliveries wait again where they
were, with their attempts counted. What was ordered from the work queue is still ordered, under its
old deadline.
"""

from itertools import islice

from asterism.actors.delivery import POOL_KIND, Delivery
from asterism.actors.leases import Page
from asterism.actors.receivers import Matcher, Receiver, unnamed
from asterism.actors.topic import TopicActor
from asterism.limits import MARKS_MAX
from asterism.message import NEVER_MS, Status
from asterism.rows import Rows
from asterism.settings import DEFAULT_BOUNDS, Bounds, TopicSettings, overrides_from_plain
from asterism.storage.keys import (
    FIRST_RANK,
    FIRST_RECEIVER,
    POOL,
    WORK,
    number_at_end,
    rank_of,
    read_due,
    read_endpoint,
)
from asterism.storage.records import (
    DRAFT,
    NATURAL,
    PARKED,
    PLACED,
    PageRecord,
    decode_exception,
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
    bounds: Bounds = DEFAULT_BOUNDS,
    grace_ms: int = 0,
) -> TopicActor:
    """A topic as its rows tell it."""
    actor = TopicActor(name, number, rows, defaults, 1, matcher, bounds, grace_ms)
    head = rows.get(actor.keys.head)
    assert head is not None, f"the topic {name!r} has no head row"
    actor.read_head(head)
    actor.read_reserve()
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
    actor.count_on(0)
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
    if actor.grace_ms:
        _read_passing(actor)


def _read_passing(actor: TopicActor) -> None:
    """Receivers that live with their connections: those may have outlived the worker."""
    found: dict[int, Receiver] = {}
    for key, row in actor.rows.scan(*actor.keys.range_of("e")):
        number, node, endpoint = read_endpoint(key)
        stored = decode_receiver(row)
        receiver = found.get(number)
        if receiver is None:
            receiver = found[number] = actor.receivers.create(stored.name, False, number)
            receiver.stored = receiver.has_rows = True
        receiver.sent_timeout_ms = stored.sent_timeout_ms
        receiver.received_timeout_ms = stored.received_timeout_ms
        actor.absences.add(receiver, node, endpoint, stored.interests, NEVER_MS)
    for receiver in found.values():
        wanted = [interest for interests in receiver.away.values() for interest in interests]
        actor.receivers.set_interests(receiver, wanted)
        _read_progress(actor, receiver)


def _read_progress(actor: TopicActor, receiver: Receiver) -> None:
    keys, rows, number = actor.keys, actor.rows, receiver.number
    floor = rows.get(keys.floor(number))
    if floor is not None:
        receiver.floor_row = floor
        receiver.floor, owed, counted_to = decode_floor(floor)
        receiver.owed = owed or 0
        receiver.counted_to = 0 if owed is None else counted_to
    else:
        receiver.counted_to = 0
    actor.counting[receiver] = None
    if not actor.log_held:
        # Whatever it had moved is over. What it wanted no more was not looked for when that ended.
        own = (keys.waiting(number, 0), keys.waiting_end(number)), keys.keyed_of(number)
        for low, high in own:
            for key, _ in list(rows.scan(low, high)):
                rows.delete(key)
        _forget_moved(actor, *keys.exceptions(number))
    receiver.has_moved = any(True for _ in rows.scan(*keys.exceptions(number)))
    done = rows.scan(keys.done(number, 0), keys.done(number + 1, 0))
    marks = [number_at_end(key) for key, _ in islice(done, MARKS_MAX + 1)]
    receiver.marks = set(marks) if len(marks) <= MARKS_MAX else None
    receiver.horizon = 0


def _read_pages(actor: TopicActor) -> None:
    keys, rows = actor.keys, actor.rows
    held: dict[int, PageRecord] = {}
    for key, row in list(rows.scan(*keys.range_of("g"))):
        number, record = number_at_end(key), decode_page(row)
        actor.pages.next_number = max(actor.pages.next_number, number + 1)
        if record.receiver == WORK:
            _restore_order(actor, number, record)
        elif record.holder is None or not actor.grace_ms:
            _return_to_waiting(actor, number, record)
        else:
            held[number] = record
    _count_parked(actor)
    _forget_passing(actor)
    _keep_for_holders(actor, held)


def _restore_order(actor: TopicActor, number: int, record: PageRecord) -> None:
    work = actor.receivers.work
    page = Page(number, work, Status(record.status), record.started_ms)
    page.deadline_ms = record.deadline_ms
    ((sequence, attempts),) = record.entries
    delivery = actor.pool_delivery(sequence)
    assert delivery is not None, "an ordered message without its row"
    _put_out(actor, delivery, attempts, page)
    actor.pages.restore(page)


def _put_out(actor: TopicActor, delivery: Delivery, attempts: int, page: Page) -> None:
    """A delivery is out, on a page, as it was when the worker ended."""
    receiver, message, sequence = page.receiver, delivery.message, delivery.sequence
    delivery.attempts = attempts
    delivery.waits = False
    delivery.status = page.status
    delivery.receiver, delivery.holder = receiver, receiver.number
    # When one that was received went out is not kept: it had by the time it was received.
    delivery.sent_ms = page.started_ms
    if page.status is Status.RECEIVED:
        delivery.received_ms = page.started_ms
    delivery.page = page
    page.deliveries[sequence] = receiver.held[sequence] = delivery
    locks = receiver.locks
    if message.kind == POOL_KIND:
        actor.pool.live[sequence] = delivery
        locks = actor.pool.locks
    if message.header.ordering_key is not None:
        locks.admits(message.header.ordering_key, sequence)


def _keep_for_holders(actor: TopicActor, held: dict[int, PageRecord]) -> None:
    """Puts out again what was out with connections, each on the last page that it was on."""
    last: dict[tuple[int, int], tuple[int, int]] = {}  # list, sequence -> attempts, page
    for number, record in held.items():
        for sequence, attempts in record.entries:
            listed = _list_where_out(actor, record.receiver, sequence, attempts)
            if listed is not None and attempts >= last.get((listed, sequence), (0, 0))[0]:
                last[listed, sequence] = (attempts, number)
    pages: dict[int, Page] = {}
    for (listed, sequence), (attempts, number) in last.items():
        record = held[number]
        page = pages.get(number)
        if page is None:
            receiver = actor.receivers.by_number.get(record.receiver)
            if receiver is None:
                receiver = _passing_of(actor, record)
            page = Page(number, receiver, Status(record.status), record.started_ms)
            page.holder = record.holder
            pages[number] = page
        if listed == POOL:
            delivery = actor.pool_delivery(sequence)
            assert delivery is not None
        else:
            delivery = _log_delivery(actor, page.receiver, sequence)
        _put_out(actor, delivery, attempts, page)
    for number in held:
        if number in pages:
            actor.pages.restore(pages[number])
        else:
            actor.rows.delete(actor.keys.page(number))


def _list_where_out(
    actor: TopicActor, receiver_number: int, sequence: int, attempts: int
) -> int | None:
    """The list in which an entry of a page is out still; None if it came back, or is over."""
    row = actor.rows.get(actor.keys.pool(sequence))
    if row is not None:
        is_out = row[0] in (NATURAL, PLACED) and decode_record(row).attempts < attempts
        return POOL if is_out else None
    receiver = actor.receivers.by_number.get(receiver_number)
    if receiver is None or not actor.log.is_owed(receiver, sequence):
        return None
    exception = actor.rows.get(actor.keys.exception(receiver_number, sequence))
    if exception is not None and decode_exception(exception).attempts >= attempts:
        return None
    return receiver_number


def _passing_of(actor: TopicActor, record: PageRecord) -> Receiver:
    """The receiver that lives with a connection, where an earlier version wrote of it no more than
    the page says."""
    assert record.holder is not None
    node, endpoint = record.holder
    receiver = actor.absences.find(node, endpoint)
    if receiver is None:
        receiver = actor.receivers.create(unnamed(node, endpoint), False, record.receiver)
        actor.absences.add(receiver, node, endpoint, (), NEVER_MS)
        actor.write_receiver(receiver)
    return receiver


def _log_delivery(actor: TopicActor, receiver: Receiver, sequence: int) -> Delivery:
    """A receiver's delivery of a log message, which is in nobody's window."""
    message = actor.log_message(sequence)
    assert message is not None and message.copies is not None
    delivery = Delivery(message, rank_of(message.header.priority, sequence))
    exception = actor.rows.get(actor.keys.exception(receiver.number, sequence))
    if exception is not None:
        _, delivery.rank, _, delivery.spent = decode_exception(exception)
        delivery.placed = True
    message.copies[receiver.number] = receiver.known[sequence] = delivery
    receiver.has_strays |= not actor.is_interested(receiver, message)
    actor.log.messages[sequence] = message
    if message.header.max_receivers is not None:
        actor.places_of(message).out.add(receiver.number)
    return delivery


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
        if delivery.page is not None:  # it is out still
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
    if message is None:
        return
    owed = [
        receiver
        for receiver in actor.receivers.by_name.values()
        if actor.log.is_owed(receiver, sequence) and actor.is_interested(receiver, message)
    ]
    if any(sequence in receiver.held for receiver in owed):  # it is out still, with some
        actor.current, actor.current_sent = sequence, True
        actor.current_for = {receiver.number for receiver in owed}
        return
    for receiver in owed:
        actor.put_first_in_log(receiver, message)


def _count_parked(actor: TopicActor) -> None:
    """Parked deliveries outlive their receivers: those of the others are counted."""
    if not actor.parked:
        return
    for _, row in actor.rows.scan(*actor.keys.range_of("p")):
        receiver = actor.receivers.by_number.get(decode_parked(row).list_number)
        if receiver is not None:
            receiver.parked += 1


def _forget_passing(actor: TopicActor) -> None:
    """Deletes what receivers have left behind that lived with their connections, and are gone."""
    keys, rows = actor.keys, actor.rows
    left: list[int] = []
    for kind in "defkwx":
        low, high = keys.range_of(kind)
        start = low
        while (found := next(iter(rows.scan(start, high)), None)) is not None:
            number = number_at_end(found[0][: len(low) + 4], 4)
            begin, start = start, low + (number + 1).to_bytes(4, "big")
            if number < FIRST_RECEIVER or number in actor.receivers.by_number:
                continue
            if kind == "d":
                left += _forget_moved(actor, begin, start)
            else:
                rows.delete_range(begin, start)
    actor.end_kept_for_nobody(left, 0)


def _forget_moved(actor: TopicActor, low: bytes, high: bytes) -> list[int]:
    """Deletes the exceptions of a receiver that is gone; of which messages. What it has parked
    outlives it."""
    moved = []
    for key, row in list(actor.rows.scan(low, high)):
        if decode_exception(row).state != PARKED:
            actor.rows.delete(key)
            moved.append(number_at_end(key))
    return moved


def _read_times(actor: TopicActor) -> None:
    for key, _ in actor.rows.scan(*actor.keys.range_of("t")):
        actor.next_due_row_ms = read_due(key)[0]
        break
    # The walk of expiry finds out by itself from when on it is needed.
    if actor.pool_held:
        actor.next_expiry_ms["m"] = 0
    if actor.log_held:
        actor.next_expiry_ms["l"] = 0
